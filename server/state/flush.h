/* doorman_server, part STATE: lets other parts know when the store has what memory has now. */
#ifndef DOORMAN_SERVER_FLUSH_H
#define DOORMAN_SERVER_FLUSH_H

#include "../server.h"

/* Wants that all changes until now are written, soon. Returns the number of the wish. Without the
 * lock. Precondition: there is a store. */
uint64_t server_state_want_flush(struct service *service);

/* Returns whether a wish is fulfilled. 0: yes. Without the lock. */
bool server_state_is_flushed(struct service *service, uint64_t wish);

#endif
