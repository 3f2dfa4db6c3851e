/* doorman_server, part STATE: planned stops that nobody notices (D8). The library writes leases and
 * holds as bytes, and the store keeps the bytes for the next mastership only (D9).
 *
 * A stop, or a drain: no message is decided any more, and all rows are written. Then the bytes are
 * made, in one step with the end of the mastership, and written. So rows and bytes describe one
 * moment.
 *
 * The next mastership: its process removes the bytes from the store before it uses them. So no
 * second process can ever begin with the same bytes, even if this one is killed at once. If
 * anything is wrong with the bytes, this process learns, as after a crash.
 *
 * When an election ends a mastership, the process keeps such bytes in its memory (D7). */
#include "planned.h"

/* Bytes that the library hands over. */
struct handover {
    unsigned char *bytes;
    size_t count, capacity;
};

static bool handover_add(void *context, const void *bytes, size_t count) {
    struct handover *handover = (struct handover *)context;
    if (count > handover->capacity - handover->count) {
        size_t capacity = 2 * handover->capacity + count;
        void *grown = realloc(handover->bytes, capacity);
        if (!grown) return false;
        handover->bytes = (unsigned char *)grown;
        handover->capacity = capacity;
    }
    memcpy(handover->bytes + handover->count, bytes, count);
    handover->count += count;
    return true;
}

void server_state_hand_over(struct service *service, struct store *store, const char *name) {
    struct handover handover = {.bytes = NULL};
    char bytes[24];
    if (!server_store_can_leave(store)) return;
    server_lock(&service->lock);
    doorman_status status =
        doorman_server_hand_over(service->server, handover_add, &handover, doorman_clock());
    server_unlock(&service->lock);
    const char *error = "out of memory";
    bool is_left = status == DOORMAN_OK;
    if (is_left) {
        is_left = server_store_leave(store, handover.bytes, handover.count) == STORE_OK;
        error = server_store_error(store);
    }
    free(handover.bytes);
    snprintf(bytes, sizeof bytes, "%zu", handover.count);
    if (is_left) {
        server_log(service->settings, LEVEL_INFO, "leases and holds left for the next start",
                   "store", name, "bytes", bytes, LOG_END);
    } else {
        server_log(service->settings, LEVEL_ERROR,
                   "leases and holds cannot be left for the next start, which learns them", "store",
                   name, "error", error, LOG_END);
    }
}

void server_state_take(struct store *store, struct planned *out) {
    *out = (struct planned){.result = STORE_END};
    if (!server_store_can_leave(store)) return;
    out->result = server_store_take(store, &out->bytes, &out->count);
    snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1,
             server_store_error(store));
}

void server_state_keep(struct service *service, struct planned *out, doorman_time now) {
    struct handover handover = {.bytes = NULL};
    assert(server_lock_is_held(&service->lock));
    const doorman_status status =
        doorman_server_hand_over(service->server, handover_add, &handover, now);
    *out = (struct planned){.result = STORE_OK, .bytes = handover.bytes, .count = handover.count};
    if (status != DOORMAN_OK) server_state_drop(out); /* there was no memory */
}

void server_state_drop(struct planned *planned) {
    free(planned->bytes);
    planned->bytes = NULL;
}

void server_state_take_over(struct service *service, struct planned *planned, const char *name,
                            struct state_status *out) {
    doorman_error error = {0};
    assert(server_lock_is_held(&service->lock));
    out->took_over = false;
    if (planned->result == STORE_OK) {
        doorman_status status = doorman_server_take_over(service->server, planned->bytes,
                                                         planned->count, &error, doorman_clock());
        out->took_over = status == DOORMAN_OK;
        /* NOT_FOUND: the bytes are of another node; the library's text does not name --node. */
        snprintf(planned->why, sizeof planned->why, "%.400s%s",
                 error.text[0] ? error.text : server_status_text(status),
                 status == DOORMAN_NOT_FOUND ? "; give --node the same name each time" : "");
    }
    server_state_drop(planned);
    snprintf(out->learns, sizeof out->learns, "%s", out->took_over ? "" : planned->why);
    if (out->took_over) {
        server_log(service->settings, LEVEL_INFO, "leases and holds taken over", "store", name,
                   LOG_END);
    } else if (out->learns[0]) {
        server_log(service->settings, planned->result == STORE_END ? LEVEL_INFO : LEVEL_WARNING,
                   "leases and holds are learned", "store", name, "why", out->learns, LOG_END);
    }
}
