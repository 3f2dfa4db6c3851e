/* doorman_server, part STATE: lets other parts know when the store has what memory has now. */
#ifndef DOORMAN_SERVER_FLUSH_H
#define DOORMAN_SERVER_FLUSH_H

#include "../server.h"

/* Asks for all changes until now to be written soon. Returns the number of this request. Without
 * the lock. Precondition: there is a store. */
uint64_t server_state_want_flush(struct service *service);

/* Returns whether a request is done. The number 0 is always done. Precondition: the lock is not
 * held. */
bool server_state_is_flushed(struct service *service, uint64_t number);

#endif
