/* doorman_server, part LINK: questions to other processes, over nng or HTTP. The parts that ask
 * other processes include this file: a node about the keys of another one (server/forward/), and
 * gRPC the master (server/grpc/). */
#ifndef DOORMAN_SERVER_LINK_H
#define DOORMAN_SERVER_LINK_H

#include "../server.h"

struct link;

/* A question to one process. The struct belongs to the caller until server_link_send, and again
 * after its end. */
struct link_question {
    struct link_question *next; /* in its batch */
    struct link_batch *batch;
    doorman_time started_at;
    int result; /* 0, or an error of nng. NNG_EAGAIN: the process does not take batches and has
                   decided nothing, so ask it again. The next message to it goes alone */
    const char *text; /* the answer, in the message of the batch */
    size_t bytes;
};

/* Questions that travel as one. A batch has an aio and a context of its link, and keeps them for
 * later questions.
 *
 *     state     meaning                         event                 next
 *     IDLE      in the list of its link         a message is sent     QUEUED
 *                                               the link closes       (freed)
 *     QUEUED    it waits for others             its turn              SENDING
 *                                               it joins another one  IDLE
 *     SENDING   nng has the message             it was sent           WAITING, DONE
 *     WAITING   the process has not answered    answer, error         DONE
 *     DONE      not all questions have ended    the last one ends     IDLE
 */
enum link_state { LINK_IDLE, LINK_QUEUED, LINK_SENDING, LINK_WAITING, LINK_DONE };

struct link_batch {
    struct link *link;
    struct link_batch *next, *next_of_link;
    enum link_state state; /* threads of nng write it from SENDING to DONE */
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
    size_t sent_count; /* batches that were sent and have not ended, without those alone */
    doorman_time used_at;
    struct link_http *http; /* a second connection, for batches */
    uint32_t pipe_id;       /* atomic: of the last connection of nng */
    int pipe_count;         /* atomic */
    bool is_lost;           /* atomic: a connection has ended */
    bool refuses_batches;   /* atomic: it has answered a batch with something else */
};

/* The links of one part, which fills in the first members. Threads of nng and the loop of HTTP call
 * the functions. */
struct link_pool {
    struct service *service;
    struct lock *lock; /* guards the links and the questions; its order is LOCK_LINKS */

    /* Takes the answers of a batch, without the lock. The batch stays as it is until the end of its
     * last question. */
    void (*take)(struct link_pool *pool, const struct link_batch *batch);

    /* A connection is there, or was lost: call server_link_tend soon. Without the lock. */
    void (*changed)(struct link_pool *pool, bool is_lost);

    bool stops; /* questions end as soon as they can */
    struct link *links;
};

/* The functions need the lock of the pool, if they do not say otherwise. */

/* Opens the link to an address, which stays open for a minute after the last call. Returns NULL if
 * it cannot be opened. */
struct link *server_link_open(struct link_pool *pool, const char *address);

/* Returns whether the process at an address is connected. */
bool server_link_is_reached(const struct link_pool *pool, const char *address);

/* Returns whether a connection over HTTP may be opened now. */
bool server_link_wants_http(const struct link *link);

/* Opens a connection over HTTP to the same process. It carries batches when it is there, which
 * halves what they cost. Precondition: server_link_wants_http.
 *   address   "http://HOST:PORT". If it has another host than the link, nothing is opened */
void server_link_open_http(struct link *link, const char *address);

/* Prepares to send a message to an address. It goes with the next call of server_link_flush, or
 * later with other messages.
 *   message    the call takes it on success
 *   is_alone   its answer may come late, so other messages must not wait for it
 *   returns    false: it cannot be sent */
bool server_link_send(struct link *link, struct link_question *question, nng_msg *message,
                      doorman_time timeout, bool is_alone);

/* Sends the messages that wait no longer. */
void server_link_flush(struct link_pool *pool);

/* Gives a question back to the caller after its answer was taken. */
void server_link_end(struct link_question *question);

/* Ends the questions of connections that were lost, and of a pool that stops, and questions over
 * HTTP whose time is over. Returns the links that are not used, which the caller closes. */
struct link *server_link_tend(struct link_pool *pool, doorman_time now);

/* Returns when to call server_link_tend for what was sent until now. A message that is sent later
 * has at least DOORMAN_SECOND / 2 until its end. */
doorman_time server_link_due(const struct link_pool *pool);

/* Returns whether a connection over HTTP is open. A pool that has stopped must wait until none
 * is. */
bool server_link_has_http(const struct link_pool *pool);

/* Closes links without questions. Precondition: the lock is not held, because nng waits for its
 * callbacks. */
void server_link_close(struct link *links);

/* Notes that the files of TLS have changed. A dialer keeps those that it was made with, so
 * server_link_open makes another link in the place of one that has lost its connection. */
void server_link_note_tls(struct link_pool *pool);

#endif
