/* doorman_server, part STATE: the thread of the store, which keeps counters, bans and notes of acts
 * over a restart. Other parts call it, wait for it, and show its status. */
#ifndef DOORMAN_SERVER_STATE_H
#define DOORMAN_SERVER_STATE_H

#include "../server.h"
#include "../store/store.h"

/* ---- what other parts do with the store ------------------------------------------------------ */

#define CALL_TEXT (STORE_TEXT + 128)

/* How long a call waits. doormanctl gives up after 10 s by default, and must get the answer
 * before. */
#define CALL_SECONDS 8

/* A function that runs on the thread that uses a store. */
struct state_call {
    /* Uses the store, without the lock of the service. When it begins, the thread has read the
     * rows if this store has any, but the mastership may have just ended. */
    void (*run)(struct service *service, struct store *store, void *context);
    void (*drop)(void *context); /* frees the context after CALL_LOST */
    void *context;

    /* Private. The lock of the service guards the fields below. */
    bool has_begun, is_over, is_lost;
};

/* Returns the store, for use before the thread of the store is started. Only the main thread calls
 * this, and only while the process starts. */
struct store *server_state_store(struct service *service);

/* Lets the thread of the store call `read_store` of each part once more, while this process is
 * master. After a failure it tries again. Any thread may call this, without the lock. Precondition:
 * server_keeps_acts. */
void server_state_reread(struct service *service);

enum call_result {
    CALL_OVER,    /* run has returned */
    CALL_REFUSED, /* run was not called, and will not be */
    CALL_LOST     /* the disk or the network hangs: run returns later, and drop is called then */
};

/* Lets the thread of the store run a function, and waits for its end, for 8 s at most. Only the
 * thread of pages calls this. Precondition: the lock is not held, and server_keeps_acts.
 *   call      must stay valid until run has returned, also after CALL_LOST
 *   why       out: if it is not CALL_OVER, the reason and what to do, as a phrase */
enum call_result server_state_call(struct service *service, struct state_call *call,
                                   char why[CALL_TEXT]);

/* ---- whether the store has what memory has --------------------------------------------------- */

/* Asks for all changes until now to be written soon. Returns the number of this request.
 * Precondition: there is a store, and the lock is not held. */
uint64_t server_state_want_flush(struct service *service);

/* Returns whether a request is done. The number 0 is always done. Preconditions: there is a
 * store, and the lock is not held. */
bool server_state_is_flushed(struct service *service, uint64_t number);

/* ---- what pages and metrics show ------------------------------------------------------------- */

#define STATE_TEXT 512

/* The lock of the service guards all fields except those of the type `counter`. */
struct state_status {
    bool is_reading;              /* not all rows have been read yet */
    doorman_time taken_since;     /* when the oldest change was made that is in a batch and not in
                                     the store; DOORMAN_NEVER: there is none */
    counter rows_written, errors; /* errors: reads and writes that failed */
    uint64_t rows_read;
    uint64_t rows_unreadable; /* damaged, of a newer version, or too many. They stay in the store */
    struct trouble trouble;   /* why the store cannot be read or written */
    bool took_over;           /* this mastership began with what the last one has left */
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
