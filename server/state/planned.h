/* doorman_server, part STATE: planned stops that nobody notices (D8). */
#ifndef DOORMAN_SERVER_PLANNED_H
#define DOORMAN_SERVER_PLANNED_H

#include "state.h"

/* Leaves the leases and holds of this process in the store for the next mastership, and ends the
 * mastership of the server object. Does nothing if the store cannot keep them. Logs a failure; the
 * next master then learns. Precondition: no message is decided any more, all rows are written, and
 * the lock is not held.
 *   name   of the store, for the log */
void server_state_hand_over(struct service *service, struct store *store, const char *name);

/* What the last mastership has left in the store, or in the memory of this process. */
struct planned {
    enum store_result result; /* STORE_OK: bytes; STORE_END: nothing was left; else it failed */
    unsigned char *bytes;
    size_t count;
    char why[STATE_TEXT]; /* if it is not STORE_OK; "": the store keeps no such bytes */
};

/* Takes out of the store what the last mastership has left there.
 *   out   written in full; server_state_take_over or server_state_drop frees it */
void server_state_take(struct store *store, struct planned *out);

/* Keeps the leases and holds of this process in its memory, for its next mastership. From then on
 * the server object is not master. Precondition: `loses` is being called, and the lock is held.
 *   out   written in full; server_state_take_over or server_state_drop frees it */
void server_state_keep(struct service *service, struct planned *out, doorman_time now);

void server_state_drop(struct planned *planned);

/* Begins with what was left, and logs whether this process does so or learns. Precondition: no
 * message was answered in this mastership yet, and the lock is held.
 *   planned   freed
 *   name      of the store, for the log
 *   out       its fields took_over and learns are written */
void server_state_take_over(struct service *service, struct planned *planned, const char *name,
                            struct state_status *out);

#endif
