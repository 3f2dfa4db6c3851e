/* doorman_server: what the server does for permits. Only the core includes this file. */
#ifndef DOORMAN_SERVER_PERMITS_H
#define DOORMAN_SERVER_PERMITS_H

#include "../server.h"

#include <time.h>

/* Passes the time since 1970 to the server object (P26). Precondition: the lock is held. */
static inline void server_set_epoch(struct service *service, doorman_time now) {
    struct timespec time;
    assert(server_lock_is_held(&service->lock));
    clock_gettime(CLOCK_REALTIME, &time);
    doorman_server_set_epoch(service->server, time.tv_sec * DOORMAN_SECOND + time.tv_nsec, now);
}

#endif
