/* doorman_server, part LINK: questions to other processes, over nng or HTTP. Two parts include this
 * file: server/forward/ asks the nodes that own shards, and server/grpc/ asks the master. */
#ifndef DOORMAN_SERVER_LINK_H
#define DOORMAN_SERVER_LINK_H

#include "../server.h"

struct link;

/* A question to one process. The struct belongs to the caller before server_link_send, and again
 * after server_link_end. */
struct link_question {
    struct link_question *next; /* in its batch */
    struct link_batch *batch;
    doorman_time started_at;
    int result; /* 0, or an error of nng. NNG_EAGAIN: the process has decided nothing, because it
                   takes no batches, or nothing over HTTP. Ask it again: the message then goes
                   alone, or over nng */
    const char *text; /* the answer, in the message of the batch */
    size_t bytes;
};

/* Questions that travel as one. A batch has an aio and a context of its link, and keeps them for
 * later questions.
 *
 *     state     meaning                         event                 next
 *     IDLE      in the list of its link         a message is sent     QUEUED
 *                                               the link closes       (freed)
 *     QUEUED    it waits for others             its turn              SENDING; WAITING over HTTP
 *                                               it joins another one  IDLE
 *     SENDING   nng has the message             it was sent; error    WAITING; DONE
 *     WAITING   the process has not answered    answer, error         DONE
 *     DONE      not all questions have ended    the last one ends     IDLE
 */
enum link_state { LINK_IDLE, LINK_QUEUED, LINK_SENDING, LINK_WAITING, LINK_DONE };

struct link_batch {
    struct link *link;
    struct link_batch *next, *next_of_link;
    enum link_state state; /* threads of nng or the loop write it until DONE */
    bool is_alone;         /* other questions do not wait for it, and do not join it */
    bool is_sent;          /* from SENDING to the end of the last question */
    nng_ctx context;
    nng_aio *aio;
    doorman_time ends_at; /* of the question that has the most time */
    nng_msg *message;     /* the message to send while it is QUEUED, then the answer; NULL: none */
    struct link_question *questions;
    size_t count, left; /* left: questions that have not ended */
};

struct link_http;

/* A connection to a process. */
struct link {
    struct link_pool *pool;
    struct link *next;
    char address[DOORMAN_ID_BYTES_MAX + 1];
    nng_socket socket;
    bool is_stale; /* the files of TLS have changed since it was opened */
    struct link_batch *all, *idle;
    struct link_batch *queue, **queue_end; /* the first one is the oldest */
    size_t queue_count, queue_bytes;
    size_t sent_count; /* batches that were sent and have not ended, except those that go alone */
    doorman_time used_at;
    struct link_http *http; /* a second connection, for batches */
    uint32_t pipe_id;       /* atomic: of the last connection of nng */
    int pipe_count;         /* atomic */
    bool is_lost;           /* atomic: a connection has ended */
    bool refuses_batches;   /* atomic: it has answered a batch with something else */
};

/* The links of one part, which fills in the first members. Threads of nng and the loop of HTTP call
 * `take` and `changed`. */
struct link_pool {
    struct service *service;
    struct lock *lock; /* guards the links and the questions; its order is LOCK_LINKS */

    /* Takes the answers of a batch, without the lock. The batch stays as it is until the end of its
     * last question. */
    void (*take)(struct link_pool *pool, const struct link_batch *batch);

    /* Called without the lock when a connection is there, or was lost. If it was lost, the part
     * must call server_link_tend soon. */
    void (*changed)(struct link_pool *pool, bool is_lost);

    bool stops; /* questions end as soon as they can */
    struct link *links;
};

/* The caller holds the lock of the pool, unless a comment says otherwise. */

/* Returns the link to an address, and opens it if there is none. The link stays open for a minute
 * after its last use. Returns NULL if it cannot be opened. */
struct link *server_link_open(struct link_pool *pool, const char *address);

/* Returns whether the process at an address is connected. */
bool server_link_is_reached(const struct link_pool *pool, const char *address);

/* Returns whether a connection over HTTP may be opened now. */
bool server_link_wants_http(const struct link *link);

/* Opens a connection over HTTP to the same process. Once it is open, batches go over it, which
 * halves their cost. Precondition: server_link_wants_http.
 *   address   "http://HOST:PORT". If it has another host than the link, nothing is opened */
void server_link_open_http(struct link *link, const char *address);

/* Sends a message to the process of a link. A message that goes alone is sent at once. Any other
 * message is queued for server_link_flush, and may wait there for others.
 *   message    the call takes it on success
 *   is_alone   its answer may come late, so other messages must not wait for it. A long message
 *              goes alone too
 *   returns    false: it cannot be sent */
bool server_link_send(struct link *link, struct link_question *question, nng_msg *message,
                      doorman_time timeout, bool is_alone);

/* Sends the queued messages that need not wait for others. */
void server_link_flush(struct link_pool *pool);

/* Ends a question after `take`: the struct belongs to the caller again. */
void server_link_end(struct link_question *question);

/* Ends the questions of lost connections, all questions of a pool that stops, and connections over
 * HTTP whose time is over. Removes the links that are no longer needed, and returns them for the
 * caller to close. */
struct link *server_link_tend(struct link_pool *pool, doorman_time now);

/* Returns when to call server_link_tend for what goes over HTTP now. A message with less time than
 * DOORMAN_SECOND / 2 must go alone, so it is enough that the caller asks again within that time. */
doorman_time server_link_due(const struct link_pool *pool);

/* Returns whether a connection over HTTP is open. The owner of a stopped pool frees it only when
 * none is open. */
bool server_link_has_http(const struct link_pool *pool);

/* Closes links without questions. Precondition: the lock is not held, because closing waits for
 * callbacks of nng, which may take it. */
void server_link_close(struct link *links);

/* Notes that the files of TLS have changed. A dialer keeps the files that it was made with, so
 * server_link_open makes another link in the place of one that has lost its connection. */
void server_link_note_tls(struct link_pool *pool);

#endif
