/* doorman_server, part STATE: what other parts do with the store. */
#ifndef DOORMAN_SERVER_CALL_H
#define DOORMAN_SERVER_CALL_H

#include "../server.h"
#include "store.h"

#define CALL_TEXT (STORE_TEXT + 128)

/* How long a call waits. doormanctl gives up after 10 s, and must get the answer before. */
#define CALL_SECONDS 8

/* A function that runs on the thread of the store. */
struct state_call {
    /* Uses the store. Runs without the lock of the service, while this process is master and has
     * read the rows. */
    void (*run)(struct service *service, struct store *store, void *context);
    void (*drop)(void *context); /* frees the context after CALL_LOST */
    void *context;

    /* Private. The lock of the service guards these. */
    bool has_begun, is_over, is_lost;
};

/* Returns the store before the thread of the store is started. Only the main thread calls this, and
 * only while the process starts. */
struct store *server_state_store(struct service *service);

/* Lets the thread of the store call `read_store` of each part once more, unless this process is not
 * the master. After a failure it tries again. Any thread calls this, without the lock.
 * Precondition: server_keeps_acts. */
void server_state_reread(struct service *service);

enum call_result {
    CALL_OVER,    /* run has returned */
    CALL_REFUSED, /* run was not called, and will not be */
    CALL_LOST     /* the disk or the network hangs: run returns later, and drop is called then */
};

/* Lets the thread of the store run a function, and waits for it, for 8 s at most. Only the thread
 * of pages calls this. Precondition: the lock is not held, and server_keeps_acts.
 *   call      must stay valid until run has returned, also after CALL_LOST
 *   why       out: if it is not CALL_OVER, the reason and what to do, as a phrase */
enum call_result server_state_call(struct service *service, struct state_call *call,
                                   char why[CALL_TEXT]);

#endif
