/* doorman_server: the parts that the build has chosen, and what the core tells all of them. Only
 * the core includes this file. */
#ifndef DOORMAN_SERVER_REGISTRY_H
#define DOORMAN_SERVER_REGISTRY_H

#include "log.h"

#define PART(name) extern const struct server_part server_part_##name;
#include "parts.h"
#undef PART

const struct server_part *const server_parts[] = {
#define PART(name) &server_part_##name,
#include "parts.h"
#undef PART
    NULL};
const size_t server_part_count = sizeof server_parts / sizeof *server_parts - 1;

enum exit_status server_make_states(struct service *service) {
    bool made = true;
    EACH_PART(part, state_bytes) {
        void *state = calloc(1, (*part)->state_bytes);
        memcpy((char *)service + (*part)->state_at, &state, sizeof state);
        made = made && state;
    }
    return made ? CONTINUE : server_fatal_error(EXIT_ERROR, "out of memory");
}

void server_free_states(struct service *service) {
    EACH_PART(part, state_bytes) {
        void *state = NULL;
        memcpy(&state, (char *)service + (*part)->state_at, sizeof state);
        free(state);
    }
}

void server_note_message(struct service *service, const struct message_report *report) {
    EACH_PART(part, message)(*part)->message(service, report);
}

void server_note_learning(struct service *service, enum learning_cause cause, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    EACH_PART(part, learns)(*part)->learns(service, cause, now);
}

void server_note_tls(struct service *service) {
    EACH_PART(part, tls_changed)(*part)->tls_changed(service);
}

bool server_load_files(struct service *service, enum file_group group, bool is_quiet) {
    bool valid = true;
    EACH_PART(part, load_files) valid = (*part)->load_files(service, group, is_quiet) && valid;
    return valid;
}

static void tell_event(void *context, const doorman_event *event) {
    struct service *service = (struct service *)context;
    bool done = false;
    EACH_PART_BACKWARDS(part, event) done = done || (*part)->event(service, event);
}

static void tell_permit_event(void *context, const doorman_permit_event *event) {
    struct service *service = (struct service *)context;
    EACH_PART(part, permit_event)(*part)->permit_event(service, event);
}

#endif
