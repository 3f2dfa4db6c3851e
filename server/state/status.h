/* doorman_server, part STATE: what pages and metrics show of the store of counters. */
#ifndef DOORMAN_SERVER_STATUS_H
#define DOORMAN_SERVER_STATUS_H

#include "../server.h"

#define STATE_TEXT 512

/* Guarded by the lock of the service. */
struct state_status {
    bool is_reading;              /* not all rows have been read yet */
    doorman_time taken_since;     /* when the oldest change was made that is in a batch and not in
                                     the store; DOORMAN_NEVER: there is none */
    counter rows_written, errors; /* errors: reads and writes that failed */
    uint64_t rows_read;
    uint64_t rows_unreadable; /* damaged, of a newer version, or too many. They stay in the store */
    struct trouble trouble;   /* why the store cannot be read or written */
    bool took_over;           /* the process began with the leases and holds of the last one */
    char learns[STATE_TEXT];  /* why it did not; "": it did, or the store cannot keep them */
};

/* Returns the age of the oldest change that is not in the store, or a little more; 0: the store has
 * all. Precondition: the lock is held. */
static inline doorman_time server_state_age(const struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    const doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permits_info info = {.changed_since = DOORMAN_NEVER};
    doorman_time since = service->state_status->taken_since;
    if (permits) doorman_permits_read(permits, &info);
    if (info.changed_since < since) since = info.changed_since;
    return since < now ? now - since : 0;
}

#endif
