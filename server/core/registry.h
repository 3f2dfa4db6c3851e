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
    size_t count = 0;
    EACH_PART(part, state_bytes) {
        void *state = calloc(1, (*part)->state_bytes);
        memcpy((char *)service + (*part)->state_at, &state, sizeof state);
        made = made && state;
    }
    EACH_PART(part, message) {
        assert(count + 1 < sizeof service->message_parts / sizeof *service->message_parts);
        service->message_parts[count++] = *part;
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
    const struct server_part *const *part = service->message_parts;
    for (; *part; part++) (*part)->message(service, report);
}

void server_note_learning(struct service *service, enum learning_cause cause, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    EACH_PART(part, learns)(*part)->learns(service, cause, now);
}

/* Logs that a drain is complete, or that it has ended. */
static void drain_log(const struct service *service) {
    const struct drain *drain = &service->drain;
    bool is_drained = drain->phase == DRAIN_DONE;
    server_log(service->settings, LEVEL_INFO,
               is_drained ? "this process is drained" : "this process is no longer drained", "by",
               drain->by[0] ? drain->by : "(no token)", drain->reason[0] ? "reason" : LOG_END,
               drain->reason, LOG_END);
}

void server_drain_move(struct service *service, enum drain_phase phase) {
    struct drain *drain = &service->drain;
    assert(server_lock_is_held(&service->lock) && phase != drain->phase);
    const bool was_done = drain->phase == DRAIN_DONE || drain->phase == DRAIN_RETURNING;
    int seconds = phase == DRAIN_WRITING ? DRAIN_WRITE_SECONDS : DRAIN_PAUSE_SECONDS;
    drain->phase = phase;
    drain->until = doorman_clock() + seconds * DOORMAN_SECOND;
    if (phase == DRAIN_DONE || (phase == DRAIN_NONE && was_done)) drain_log(service);
    if (phase == DRAIN_DONE && drain->must_end) {
        server_drain_move(service, service->settings->election_key ? DRAIN_NONE : DRAIN_RETURNING);
        return;
    }
    if (phase == DRAIN_NONE) drain->must_end = false;
    EACH_PART(part, drains)(*part)->drains(service);
}

void server_drain_call_off(struct service *service, const char *why) {
    struct drain *drain = &service->drain;
    assert(drain->phase == DRAIN_WRITING || drain->phase == DRAIN_PAUSED);
    snprintf(drain->failure, sizeof drain->failure, "%s", why);
    server_log(service->settings, LEVEL_ERROR,
               "the drain is called off, and this process stays master", "why", drain->failure,
               LOG_END);
    server_drain_move(service, DRAIN_NONE);
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

static void tell_mastership_end(void *context, doorman_server *server, doorman_time now) {
    struct service *service = (struct service *)context;
    (void)server; /* it is that of the service */
    EACH_PART(part, loses)(*part)->loses(service, now);
}

/* Lists the parts that want events of permits. There are many events, and thanks to the list no
 * event needs a search. Returns the kinds that the parts want. */
static unsigned find_permit_parts(struct service *service) {
    unsigned kinds = 0;
    service->permit_part_count = 0;
    EACH_PART(part, permit_event) {
        if ((*part)->wants_permit_events && !(*part)->wants_permit_events(service)) continue;
        assert(service->permit_part_count < PERMIT_PARTS_MAX);
        service->permit_parts[service->permit_part_count++] = *part;
        kinds |= (*part)->permit_events;
    }
    return kinds;
}

static void tell_permit_event(void *context, const doorman_permit_event *event) {
    struct service *service = (struct service *)context;
    for (size_t i = 0; i < service->permit_part_count; i++) {
        const struct server_part *part = service->permit_parts[i];
        if (part->permit_events >> event->kind & 1U) part->permit_event(service, event);
    }
}

#endif
