/* doorman_server: messages whose permits may wait (P7). server/waiting/ lets them wait. server.h
 * includes this file. */
#ifndef DOORMAN_SERVER_WAITER_H
#define DOORMAN_SERVER_WAITER_H

struct waiter_ticket;
struct worker;

/* A message whose permits may wait. The owner sets the members that are not private, except those
 * that are written later. */
struct waiter {
    doorman_json_exchange *exchange;
    const char *method; /* as in doorman_json_exchange_read; only used until the message is read */
    struct peer peer;
    char *http_address;    /* room for the HTTP address of the master, of DOORMAN_ID_BYTES_MAX + 1
                           bytes; NULL: the response must not have it */
    uint64_t connection;   /* not 0; no other connection has this number while this one is open. The
                            function `prepare` may set it */
    bool is_decided;       /* written when the message is decided; false: it has failed */
    bool may_forward;      /* other nodes may decide parts of the message */
    bool is_forwarded;     /* `prepare` is called because other nodes decide; written before it */
    doorman_status status; /* written before `finish`, and when the message does not wait */
    /* Prepares the owner to wait. Returns false if the message may not wait. NULL: it may not. */
    bool (*prepare)(struct waiter *waiter);
    /* Is called without the lock, on any thread. The reply is in the exchange.
     *   answers   false: the connection is closed, and there is no reply */
    void (*finish)(struct waiter *waiter, bool answers);

    /* Private. */
    struct service *service;
    struct waiter_ticket *tickets;  /* of the pending permits */
    size_t ticket_count, left;      /* left: permits that are still pending */
    struct waiter *previous, *next; /* in a list */
    bool answers;
};

/* What a part does with messages whose permits wait. service->waits has these functions if such a
 * part is there. */
struct waiting_calls {
    /* Returns whether a message that is not read yet probably asks to wait. Then its tree should be
     * shared: see server_shares_memory. */
    bool (*is_likely)(const struct waiter *waiter, const char *text, size_t bytes);

    /* Lets the permits of a message wait, if it asks for that. Precondition: the message is read.
     *   shared    in/out: whether its tree is shared. A message that may wait and whose tree is not
     *             shared is read again, with a shared tree
     *   returns   whether they may wait */
    bool (*prepare)(struct service *service, struct waiter *waiter, const char *text, size_t bytes,
                    bool *shared);

    /* Takes back what `prepare` has done for a message that does not wait. */
    void (*forget)(struct waiter *waiter);

    /* Adds a decided message to the messages that wait. Returns false if it does not wait: no
     * permit is pending, or its connection is closed. Precondition: the lock is held. */
    bool (*add)(struct service *service, struct waiter *waiter);

    /* Takes the decisions on permits that have waited. Call it after each call of the server object
     * that may have decided. Precondition: the lock is held. */
    void (*collect)(struct service *service);

    /* Answers the messages that wait no longer. Precondition: the lock is not held. */
    void (*finish)(struct service *service);

    /* Ends the wait of the messages of a connection that is closed. They get no answer. */
    void (*disconnect)(struct service *service, uint64_t connection);

    /* Lets another worker receive in the place of the worker of this message. Returns false if
     * there is no other worker. */
    bool (*replace_worker)(struct waiter *waiter);

    /* Keeps a replaced worker, which can later replace another worker. */
    void (*retire_worker)(struct worker *worker);
};

#endif
