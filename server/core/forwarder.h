/* doorman_server: messages about keys for which another node decides (N4). server/forward/ sends
 * them there. server.h includes this file. */
#ifndef DOORMAN_SERVER_FORWARDER_H
#define DOORMAN_SERVER_FORWARDER_H

struct forward_job;

#define OWNER_TEXT 640 /* bytes of the phrase that names an owner */

/* Who gets the answer to a message that was forwarded. */
struct forward_asker {
    /* Is called once, on any thread, without a lock.
     *   text     the whole reply, {"METHOD": {...}} or {"error": {...}}, valid during the call;
     *            NULL: the server stops */
    void (*answer)(void *context, const char *text, size_t bytes);
    void *context;
    doorman_time timeout; /* more than 0 */
};

/* What a part does with messages for other nodes. service->forwards has these functions if such a
 * part is there. */
struct forward_calls {
    /* Returns whether this node lacks the shard of an item of a request. Precondition: the lock is
     * held. */
    bool (*is_away)(const struct service *service, const doorman_request *request);

    /* Finds the first item with a shard that this node lacks. The phrase `out` then names the node
     * that decides for the item, with its addresses, or says that the shard moves now.
     * Precondition: the lock is held.
     *   returns   the index of the item; SIZE_MAX: there is none */
    size_t (*find_owner)(const struct service *service, const doorman_request *request,
                         char out[OWNER_TEXT]);

    /* Finds out whether another node decides for a part of a message that was decided here, and
     * prepares to send that part there. Call it before the reply is written.
     *   text      of the message; NULL: the request of the exchange is written again
     *   returns   NULL: no, or the message may not be forwarded, or cannot be now */
    struct forward_job *(*prepare)(struct service *service, struct waiter *waiter, const char *text,
                                   size_t bytes);

    /* Does the same for a message that was read and not decided here. Returns NULL also if this
     * node decides for a part of it. If it returns a job, the caller does not decide the message,
     * and writes no reply. */
    struct forward_job *(*prepare_whole)(struct service *service, struct waiter *waiter,
                                         const char *text, size_t bytes);

    /* Sends what `prepare` or `prepare_whole` has found. When all answers are there, `finish` of
     * the waiter is called, perhaps before this call returns. Precondition for a job of `prepare`:
     * the reply of this process was written. */
    void (*begin)(struct service *service, struct forward_job *job);

    /* Sends a request that was not decided here.
     *   request   used only during the call
     *   returns   NULL: it is sent, and the asker gets an answer | why it is not sent */
    const char *(*ask)(struct service *service, const doorman_request *request,
                       struct forward_asker asker);

    /* A loop that handles many messages in a turn calls `hold` at the start of a turn, and
     * `release` at its end. `release` sends the messages that it forwards in between, so messages
     * to the same node travel together. */
    void (*hold)(void);
    bool (*holds)(void); /* whether `release` has something to send */
    void (*release)(struct service *service);

    /* Returns whether a node of the cluster has forwarded a message. That node has checked the
     * rights of the sender. */
    bool (*is_signed)(struct service *service, const char *text, size_t bytes);
};

#endif
