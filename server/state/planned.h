/* doorman_server, part STATE: planned stops that nobody notices (D8). */
#ifndef DOORMAN_SERVER_PLANNED_H
#define DOORMAN_SERVER_PLANNED_H

#include "state.h"
#include "store.h"

/* Leaves the leases and holds of this process in the store, for the next one. From then on the
 * server object is not master. Any failure is logged, and the next process learns. Precondition: no
 * message is decided any more, all rows are written, and the lock is not held.
 *   name   of the store, for the log */
void server_state_hand_over(struct service *service, struct store *store, const char *name);

/* Takes what the last process has left, and logs whether this one begins with it or learns.
 * Precondition: no message was answered yet, and the lock is held.
 *   out   its fields took_over and learns are written */
void server_state_take_over(struct service *service, struct store *store, const char *name,
                            struct state_status *out);

#endif
