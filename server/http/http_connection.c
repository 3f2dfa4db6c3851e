/* doorman_server, part HTTP: connections. This file changes service->http, and calls the function
 * for the path of each request.
 *
 * A request has no thread of its own, and none of its steps waits. The loop (http_listen.c) calls
 * server_connection_step when epoll reports the socket of a connection, and the connection then
 * does what it can do now:
 *
 *     state      meaning                      event                           next state
 *     FREE       not in use                   the loop accepts a connection   SHAKING with TLS,
 *                                                                             otherwise HEAD
 *     SHAKING    the handshake of TLS is in   it is complete                  HEAD
 *                progress                     the peer speaks plain HTTP      SENDING
 *                                             failure, or timeout             FREE
 *     IDLE       a response was sent, and     the first byte comes in         HEAD
 *                the next request may come    timeout, or a disconnect        FREE
 *     HEAD       the head of a request        it is complete, and the peer    CONTINUING
 *                comes in                     waits before it sends the body
 *                                             it is complete                  BODY
 *                                             it is refused                   SENDING
 *                                             timeout, or a disconnect        FREE
 *     CONTINUING the interim response 100     it is sent                      BODY
 *                goes out                     timeout, or a disconnect        FREE
 *     BODY       the body of an allowed       it is complete, or refused      SENDING
 *                request comes in             it is complete, and the thread  ANSWERING
 *                                             of pages makes the response
 *                                             it is complete, and permits     ANSWERING
 *                                             may wait, or nodes are asked
 *                                             it is complete, and the         DELAYED
 *                                             response must wait
 *                                             timeout, or a disconnect        FREE
 *     ANSWERING  the response waits for the   it is made                      SENDING
 *                thread of pages, or that     a disconnect while it waits     FREE
 *                thread makes it              a disconnect while it is made   ABANDONED
 *                permits of a message wait    the last one is decided         SENDING
 *                (P7), or other nodes are     a disconnect                    ABANDONED
 *                asked (N4)                   a node has granted the permit   DELAYED
 *                                             from a later time on
 *     DELAYED    the response is made. It     the time has come               SENDING
 *                says that a permit is        the server stops: the           SENDING
 *                granted from a later time    response is 503
 *                on, and waits until then     a disconnect                    FREE
 *     ABANDONED  the thread of pages makes a  the thread has stopped making   FREE
 *                response for nobody          the response
 *                permits leave the queues,    they have left, or the nodes    FREE
 *                or nodes are asked           have answered
 *     SENDING    the response goes out        it is sent                      IDLE, DRAINING
 *                                             it is sent, and is the last     FREE
 *                                             it is sent, and bytes of the    HEAD
 *                                             next request have arrived
 *                                             timeout, or a disconnect        FREE
 *     DRAINING   the rest of the body of a    it has been read, timeout, or   FREE
 *                refused request comes in     a disconnect
 *
 * Only the loop changes the state of a connection, and only it uses the socket. A connection may
 *    belong to another thread only in ANSWERING and ABANDONED. That thread writes `out`, adds the
 *    connection to http->answered, and wakes the loop, which then sends the response. The lock of
 *    HTTP guards http->answered, and the queue of the thread of pages.
 * The thread of pages makes all responses that need a copy of the state, one after the other. These
 *    responses are, for example, pages, metrics and the configuration. Health checks and messages
 *    of the protocol need few steps under the lock of the service, and the description of the API
 *    needs none. So the loop answers these at once, even while many pages wait. At most
 *    HTTP_QUEUE_MAX pages wait, and a request for a further page gets the status 503.
 * In ANSWERING and DELAYED the connection receives, so that it notices a disconnect. A peer that
 *    has shut down only its sending side counts as disconnected too, because the server cannot tell
 *    the difference. What the connection receives belongs to the next requests. When
 *    HTTP_BUFFER_MAX bytes have arrived, the connection stops receiving, `receives` is false, and
 *    only sending notices a disconnect. If a page reads the body of its request, the body stays in
 *    `in`, so the connection does not receive while the page is made.
 * A message whose permits wait in this process counts as a delayed response, see below. The thread
 *    that causes the last decision of the message makes the response. If the peer leaves, the
 *    permits leave the queues.
 * In DELAYED, the time of the response is the deadline of the state. The units of a client that
 *    leaves stay charged, because permits of rates cannot be given back. At most HTTP_DELAYED_MAX
 *    connections are in DELAYED, and at most a quarter of http->limit. At this bound, a request is
 *    decided as if it could not wait.
 * When few connections are free, a connection closes after the next response that the loop
 *    makes at once. That response has `Connection: close`, so its client loses no response. If no
 *    connection is free, http_listen.c closes some without such a response.
 * A request must arrive within HTTP_TIMEOUT_SECONDS, from its first byte to its last byte. For the
 *    first request, this time begins when the connection is accepted. SENDING lasts at most
 *    HTTP_TIMEOUT_SECONDS. */
#include "http_connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define HTTP_DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* for one read */
#define HTTP_BUFFER_MAX ((size_t)64 << 10)
#define HTTP_QUEUE_MAX 32 /* responses that wait for the thread of pages */

/* ---- the limit ------------------------------------------------------------------------------ */

size_t server_http_reserve(const struct http *http) { return http->limit / 8; }

bool server_http_is_crowded(const struct http *http) {
    return http->used_count + server_http_reserve(http) > http->limit;
}

/* At most one connection of four is delayed. So delayed connections never keep others out. */
bool server_http_reserve_delay(struct service *service) {
    struct http *http = service->http;
    server_lock(&http->lock);
    bool reserved = http->delayed_count < HTTP_DELAYED_MAX && http->delayed_count < http->limit / 4;
    http->delayed_count += reserved;
    server_unlock(&http->lock);
    return reserved;
}

void server_http_cancel_delay(struct service *service) {
    struct http *http = service->http;
    server_lock(&http->lock);
    assert(http->delayed_count > 0);
    http->delayed_count--;
    server_unlock(&http->lock);
}

size_t server_http_connection_count(const struct service *service, size_t *limit, size_t *delayed) {
    struct http *http = service->http;
    server_lock(&http->lock);
    size_t count = http->used_count;
    *limit = http->limit;
    *delayed = http->delayed_count;
    server_unlock(&http->lock);
    return count;
}

/* ---- states --------------------------------------------------------------------------------- */

/* Changes the counts that other threads read. */
static void connection_count_move(const struct http_connection *connection,
                                  enum http_connection_state state) {
    struct http *http = connection->service->http;
    bool opens = connection->state == CONNECTION_FREE, closes = state == CONNECTION_FREE;
    bool was_delayed = connection->state == CONNECTION_DELAYED;
    if (!opens && !closes && !was_delayed) return;
    server_lock(&http->lock);
    if (opens) http->used_count++;
    if (closes) http->used_count--;
    if (was_delayed) http->delayed_count--;
    assert(http->used_count <= http->limit && http->delayed_count <= HTTP_DELAYED_MAX);
    server_unlock(&http->lock);
}

static void connection_set_deadline(struct http_connection *connection, doorman_time deadline) {
    struct http *http = connection->service->http;
    connection->deadline = deadline;
    if (deadline < http->next_at) http->next_at = deadline;
}

/* A request has one deadline, so CONTINUING and BODY keep the deadline of HEAD, and the first HEAD
 * keeps that of the handshake. In ANSWERING the peer has nothing to do, so there is no deadline. */
void server_connection_move(struct http_connection *connection, enum http_connection_state state) {
    static const unsigned moves[] = {
        [CONNECTION_FREE] = 1U << CONNECTION_HEAD | 1U << CONNECTION_SHAKING,
        [CONNECTION_SHAKING] =
            1U << CONNECTION_HEAD | 1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_IDLE] = 1U << CONNECTION_HEAD | 1U << CONNECTION_FREE,
        [CONNECTION_HEAD] = 1U << CONNECTION_CONTINUING | 1U << CONNECTION_BODY |
                            1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_CONTINUING] = 1U << CONNECTION_BODY | 1U << CONNECTION_FREE,
        [CONNECTION_BODY] = 1U << CONNECTION_ANSWERING | 1U << CONNECTION_DELAYED |
                            1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_ANSWERING] = 1U << CONNECTION_SENDING | 1U << CONNECTION_ABANDONED |
                                 1U << CONNECTION_DELAYED | 1U << CONNECTION_FREE,
        [CONNECTION_ABANDONED] = 1U << CONNECTION_FREE,
        [CONNECTION_DELAYED] = 1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_SENDING] = 1U << CONNECTION_IDLE | 1U << CONNECTION_HEAD |
                               1U << CONNECTION_DRAINING | 1U << CONNECTION_FREE,
        [CONNECTION_DRAINING] = 1U << CONNECTION_FREE};
    bool keeps = state == CONNECTION_CONTINUING || state == CONNECTION_BODY ||
                 connection->state == CONNECTION_SHAKING;
    bool waits =
        state == CONNECTION_ANSWERING || state == CONNECTION_ABANDONED || state == CONNECTION_FREE;
    int seconds = state == CONNECTION_DRAINING ? HTTP_DRAIN_SECONDS : HTTP_TIMEOUT_SECONDS;
    (void)moves; /* without assertions */
    assert(moves[connection->state] >> state & 1U);
    connection_count_move(connection, state);
    if (waits) {
        connection->deadline = DOORMAN_NEVER;
    } else if (!keeps) {
        const doorman_time now = connection->service->http->now;
        connection_set_deadline(connection, now + seconds * DOORMAN_SECOND);
    }
    connection->state = state;
}

/* Makes a large input buffer smaller. Keeps the received bytes, because they belong to the next
 * request. */
static void connection_shrink(struct http_connection *connection) {
    size_t capacity = connection->in_bytes > 0 ? HTTP_BUFFER_MAX : 0;
    bool large = connection->in_capacity > HTTP_BUFFER_MAX;
    bool fits = connection->in_bytes <= HTTP_BUFFER_MAX;
    char *in = large && fits && capacity ? (char *)realloc(connection->in, capacity) : NULL;
    if (large && !capacity) free(connection->in);
    if (in || (large && !capacity)) {
        connection->in = in;
        connection->in_capacity = capacity;
    }
    /* cppcheck-suppress memleak ; the connection owns the memory */
}

static void connection_free_buffers(struct http_connection *connection) {
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out.failed = false;
    free(connection->head);
    connection->head = NULL;
    connection_shrink(connection);
}

/* A FREE connection keeps a small buffer for the next peer. */
void server_connection_close(struct http_connection *connection) {
    struct http *http = connection->service->http;
    server_connection_move(connection, CONNECTION_FREE);
    if (connection->tls) connection->service->tls_calls->end(connection->tls);
    connection->tls = NULL;
    close(connection->socket);
    connection->socket = -1;
    connection->events = 0;
    connection->in_bytes = 0;
    connection_free_buffers(connection);
    connection->next = http->free;
    http->free = connection;
}

/* ---- the socket ----------------------------------------------------------------------------- */

/* Makes room for the next read. Memory grows with the bytes received, not with Content-Length. */
static bool connection_reserve(struct http_connection *connection) {
    if (connection->in_capacity - connection->in_bytes >= READ_BYTES) return true;
    size_t capacity = connection->in_capacity * 2 + READ_BYTES + 1;
    char *in = (char *)realloc(connection->in, capacity);
    if (!in) return false;
    connection->in = in;
    connection->in_capacity = capacity;
    return true;
}

/* Sends or receives. On failure returns -1 and sets errno, as send and recv do. */
static ssize_t connection_io(struct http_connection *connection, bool sends, char *bytes,
                             size_t count) {
    const struct tls_calls *tls = connection->service->tls_calls;
    ssize_t result = -1;
    do {
        if (connection->tls) {
            result = sends ? tls->send(connection->tls, bytes, count)
                           : tls->receive(connection->tls, bytes, count);
        } else {
            result = sends ? send(connection->socket, bytes, count, MSG_NOSIGNAL)
                           : recv(connection->socket, bytes, count, 0);
        }
    } while (result < 0 && errno == EINTR);
    return result;
}

/* Returns the events of epoll that the state waits for. */
static uint32_t connection_events(const struct http_connection *connection) {
    switch (connection->state) {
    case CONNECTION_IDLE:
    case CONNECTION_HEAD:
    case CONNECTION_BODY:
    case CONNECTION_DRAINING: return EPOLLIN;
    case CONNECTION_SENDING:
    case CONNECTION_CONTINUING: return EPOLLOUT;
    case CONNECTION_ANSWERING:
    case CONNECTION_DELAYED: return connection->receives ? EPOLLIN : 0;
    case CONNECTION_SHAKING: return connection->events; /* connection_shake has set them */
    case CONNECTION_FREE:
    case CONNECTION_ABANDONED:
    default: return 0;
    }
}

/* Asks epoll for these events. A socket without events is removed from epoll, which would otherwise
 * report a hangup again and again. */
static void connection_watch_events(struct http_connection *connection, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = &connection->source};
    if (connection->state == CONNECTION_FREE || events == connection->events) return;
    int operation = !events ? EPOLL_CTL_DEL : connection->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    connection->events = events;
    if (epoll_ctl(connection->service->http->epoll, operation, connection->socket, &event) != 0) {
        connection->events = 0;
        connection_set_deadline(connection, doorman_clock()); /* the loop then closes it */
    }
}

/* ---- answers of other threads --------------------------------------------------------------- */

/* Removes a connection from the queue. Returns false if it is not in the queue. Precondition: the
 * lock of HTTP is held. */
static bool http_dequeue(struct http *http, const struct http_connection *connection) {
    assert(server_lock_is_held(&http->lock));
    struct http_connection **at = &http->queue;
    while (*at && *at != connection) at = &(*at)->next;
    if (!*at) return false;
    assert(http->queue_count > 0);
    *at = connection->next;
    http->queue_count--;
    return true;
}

/* Adds a connection to the end of the queue. Returns false if the queue is full. Precondition: the
 * lock of HTTP is held. */
static bool http_enqueue(struct http *http, struct http_connection *connection) {
    assert(server_lock_is_held(&http->lock));
    struct http_connection **end = &http->queue;
    if (http->queue_count == HTTP_QUEUE_MAX) return false;
    while (*end) end = &(*end)->next;
    *end = connection;
    connection->next = NULL;
    http->queue_count++;
    pthread_cond_signal(&http->page_wake);
    return true;
}

void server_http_wake(const struct http *http) {
    (void)eventfd_write(http->wake, 1); /* it only fails if the loop will wake anyway */
}

/* Adds a connection to http->answered, where the loop looks in each turn. Precondition: the lock of
 * HTTP is held. The caller must not use the connection after this. */
static void http_add_answered(struct http *http, struct http_connection *connection) {
    bool wakes = !http->answered && !server_http_is_loop;
    assert(!connection->is_answered);
    connection->is_answered = true;
    connection->next = http->answered;
    http->answered = connection;
    if (wakes) server_http_wake(http);
}

/* Handles a peer that has left in ANSWERING. Closes the connection if its request is still in the
 * queue. Otherwise the thread that makes the response still needs the connection. */
static void connection_abandon(struct http_connection *connection) {
    struct service *service = connection->service;
    struct http *http = service->http;
    connection->receives = false;
    server_lock(&http->lock);
    const uint64_t number = connection->waits ? connection->call.waiter.connection : 0;
    bool answered = connection->is_answered;
    bool closes = !answered && http_dequeue(http, connection);
    server_unlock(&http->lock);
    if (closes) {
        server_connection_close(connection);
    } else if (!answered) {
        /* Even if the response is made by now, the loop closes without sending it. */
        __atomic_store_n(&connection->abandoned, true, __ATOMIC_RELAXED);
        server_connection_move(connection, CONNECTION_ABANDONED);
        connection_watch_events(connection, 0);
        if (number) service->waits->disconnect(service, number);
    }
}

/* Receives once. Returns whether bytes have come. */
static bool connection_receive(struct http_connection *connection) {
    bool waits =
        connection->state == CONNECTION_ANSWERING || connection->state == CONNECTION_DELAYED;
    ssize_t count = -1;
    if (connection_reserve(connection)) {
        count = connection_io(connection, false, connection->in + connection->in_bytes,
                              connection->in_capacity - connection->in_bytes);
        if (count < 0 && errno == EAGAIN) return false;
    }
    if (count > 0) {
        connection->in_bytes += (size_t)count;
        if (waits) connection->receives = connection->in_bytes < HTTP_BUFFER_MAX;
    } else if (connection->state == CONNECTION_ANSWERING) {
        connection_abandon(connection);
    } else {
        server_connection_close(connection);
    }
    return count > 0;
}

/* ---- responses ------------------------------------------------------------------------------ */

/* Lets connection_run send what is in connection->out.
 *   state   SENDING or CONTINUING */
static void connection_send(struct http_connection *connection, enum http_connection_state state) {
    connection->sent = 0;
    if (connection->out.failed) {
        server_connection_close(connection);
    } else {
        server_connection_move(connection, state);
    }
}

/* Lets a connection close after its response, if few connections are free. A connection with bytes
 * of the next request stays open, because closing it could destroy the response on its way: the
 * peer's system drops a response when it learns that bytes were not read (RFC 9112, 9.6). */
static void connection_yield(struct http_connection *connection) {
    bool has_next = connection->in_bytes > connection->used;
    if (!has_next && server_http_is_crowded(connection->service->http)) connection->last = true;
}

/* Sends a response, and frees its memory. */
static void connection_respond(struct http_connection *connection, struct http_response *response) {
    connection_yield(connection);
    server_http_response_write(&connection->out, response, connection->last, connection->is_head);
    connection_send(connection, CONNECTION_SENDING);
}

/* Sends an error as the last response, because the end of the request is not known. */
static void connection_refuse_with(struct http_connection *connection,
                                   struct http_response *response) {
    connection->last = true;
    connection->body_left = SIZE_MAX;
    connection_respond(connection, response);
}

static void connection_refuse(struct http_connection *connection, int code, const char *name,
                              const char *message) {
    struct http_response response = server_http_response_init(NULL);
    server_http_response_set_error(&response, code, name, message);
    connection_refuse_with(connection, &response);
}

/* Removes the request from the received bytes. Its head stays valid. */
static void connection_consume(struct http_connection *connection) {
    assert(connection->used <= connection->in_bytes);
    connection->in_bytes -= connection->used;
    if (connection->used > 0 && connection->in_bytes > 0) {
        memmove(connection->in, connection->in + connection->used, connection->in_bytes);
    }
    connection->used = 0;
}

/* Removes a request whose body is not needed any more, so that bytes of the next request can be
 * received. */
static void connection_forget_body(struct http_connection *connection) {
    connection->request.body = NULL;
    connection->request.body_bytes = 0;
    connection_consume(connection);
}

/* Writes a response to `out`, where it waits for its time. Frees the memory of `response`. */
static void connection_delay(struct http_connection *connection, struct http_response *response) {
    doorman_time delay = response->delay;
    assert(delay > 0 && delay <= HTTP_DELAY_SECONDS_MAX * DOORMAN_SECOND);
    connection_forget_body(connection);
    connection_yield(connection);
    server_http_response_write(&connection->out, response, connection->last, connection->is_head);
    server_connection_move(connection, CONNECTION_DELAYED); /* the handler has reserved the delay */
    connection_set_deadline(connection, doorman_clock() + delay);
    connection->receives = connection->in_bytes < HTTP_BUFFER_MAX;
}

/* Makes the response out of the answer of other nodes. Any thread may call this function. */
static void connection_on_answer(void *context, const char *text, size_t bytes) {
    struct http_connection *connection = (struct http_connection *)context;
    struct http *http = connection->service->http;
    struct http_response response = server_http_response_init(NULL);
    response.may_delay = connection->is_delay;
    connection->request.route->finish(connection->service, &connection->request, text, bytes,
                                      &response);
    connection->delay = response.delay;
    server_http_response_write(&connection->out, &response, connection->last, connection->is_head);
    server_lock(&http->lock);
    connection->waits = false;
    http_add_answered(http, connection);
    server_unlock(&http->lock);
}

const char *server_http_ask(struct service *service, const struct http_request *request,
                            const doorman_request *message, bool may_delay) {
    const union {
        const struct http_request *request;
        char *bytes;
    } at = {.request = request}; /* a member of its connection, which is changed here */
    struct http_connection *connection =
        (struct http_connection *)(void *)(at.bytes - offsetof(struct http_connection, request));
    struct http *http = service->http;
    const struct forward_asker asker = {connection_on_answer, connection, DOORMAN_NEVER};
    server_connection_move(connection, CONNECTION_ANSWERING);
    connection->receives = connection->in_bytes - connection->used < HTTP_BUFFER_MAX;
    connection->abandoned = false;
    connection->call.waiter.connection = 0;
    connection->is_delay = may_delay;
    server_lock(&http->lock);
    connection->is_answered = false;
    connection->waits = true;
    server_unlock(&http->lock);
    const char *why = service->forwards->ask(service, message, asker);
    if (!why) return NULL;
    connection->waits = false;
    return why;
}

static void connection_answer_now(struct http_connection *connection) {
    const struct http_request *request = &connection->request;
    struct http_response response = server_http_response_init(NULL);
    request->route->handle(connection->service, request, &response);
    if (response.is_asked) {
        connection_forget_body(connection);
    } else if (response.delay > 0) {
        connection_delay(connection, &response);
    } else {
        connection_respond(connection, &response);
    }
}

/* Lets the thread of pages answer a request. While that thread uses a body, the connection does not
 * receive, because the body would move. */
static void connection_answer_later(struct http_connection *connection) {
    struct http *http = connection->service->http;
    bool keeps = connection->request.route->verbs && connection->request.body_bytes > 0;
    if (!keeps) connection_forget_body(connection);
    connection->receives = !keeps && connection->in_bytes < HTTP_BUFFER_MAX;
    connection->abandoned = false;
    server_lock(&http->lock);
    connection->is_answered = false;
    bool accepted = http_enqueue(http, connection);
    server_unlock(&http->lock);
    if (accepted) {
        server_connection_move(connection, CONNECTION_ANSWERING);
    } else {
        struct http_response response = server_http_response_init(NULL);
        server_http_response_set_unavailable(&response, "too many pages are being made");
        connection_respond(connection, &response);
    }
}

/* ---- messages that wait --------------------------------------------------------------------- */

/* Numbers of messages that wait over HTTP begin here, above the numbers of nng connections. */
#define WAITER_NUMBERS (UINT64_C(1) << 32)

static struct http_connection *waiter_connection(struct waiter *waiter) {
    return (struct http_connection *)(void *)((char *)waiter -
                                              offsetof(struct http_connection, call));
}

/* Lets a message wait. Returns false if many others wait, or if the connection cannot receive and
 * so would not notice that the peer leaves. A message that other nodes decide may always wait. The
 * loop calls this function, in connection_answer_message. */
static bool connection_prepare_wait(struct waiter *waiter) {
    struct http_connection *connection = waiter_connection(waiter);
    struct service *service = connection->service;
    struct http *http = service->http;
    bool receives = connection->in_bytes - connection->used < HTTP_BUFFER_MAX;
    if (connection->state == CONNECTION_ANSWERING) return true; /* it waits already */
    if (!waiter->is_forwarded && (!receives || !server_http_reserve_delay(service))) return false;
    connection->is_delay = !waiter->is_forwarded;
    server_connection_move(connection, CONNECTION_ANSWERING);
    connection->receives = receives;
    connection->abandoned = false;
    server_lock(&http->lock);
    waiter->connection = WAITER_NUMBERS + ++http->waiter_count;
    connection->is_answered = false;
    connection->waits = true;
    server_unlock(&http->lock);
    return true;
}

/* Makes the response to a message that has waited. Any thread may call this function.
 *   answers   false: the peer has left */
static void connection_finish_wait(struct waiter *waiter, bool answers) {
    struct http_connection *connection = waiter_connection(waiter);
    struct http *http = connection->service->http;
    struct http_response response = server_http_response_init(NULL);
    if (answers) {
        server_method_respond(&connection->call, &connection->request, &response);
        server_http_response_write(&connection->out, &response, connection->last,
                                   connection->is_head);
    }
    if (connection->is_delay) server_http_cancel_delay(connection->service);
    server_lock(&http->lock);
    connection->waits = false;
    http_add_answered(http, connection);
    server_unlock(&http->lock);
}

/* Answers a message of the protocol. If its permits wait, or other nodes decide,
 * connection_finish_wait makes the response, perhaps before this function ends. */
static void connection_answer_message(struct http_connection *connection) {
    struct service *service = connection->service;
    struct http_response response = server_http_response_init(NULL);
    connection->call.waiter =
        (struct waiter){.prepare = connection_prepare_wait, .finish = connection_finish_wait};
    if (server_method_handle(service, &connection->call, &connection->request, &response)) {
        if (connection->waits && connection->is_delay) server_http_cancel_delay(service);
        connection->waits = false;
        connection_respond(connection, &response);
    } else {
        connection_consume(connection);
    }
}

/* ---- the thread of pages -------------------------------------------------------------------- */

/* Makes the first response of the queue. Precondition: the lock of HTTP is held. This function
 * releases it while it makes the response. */
static void http_make_response(struct http *http) {
    struct http_connection *connection = http->queue;
    const struct http_request *request = &connection->request;
    http->current = connection;
    http_dequeue(http, connection);
    server_unlock(&http->lock);
    struct http_response response = server_http_response_init(&connection->abandoned);
    request->route->handle(connection->service, request, &response);
    server_http_response_write(&connection->out, &response, connection->last, connection->is_head);
    server_lock(&http->lock);
    http->current = NULL;
    bool abandoned = server_is_abandoned(&connection->abandoned);
    *(abandoned ? &http->abandoned_count : &http->made_count) += 1;
    http_add_answered(http, connection);
}

static void *http_main(void *argument) {
    struct http *http = (struct http *)argument;
    server_lock(&http->lock);
    while (!http->ending) {
        if (http->queue) {
            http_make_response(http);
        } else {
            server_condition_wait(&http->page_wake, &http->lock, DOORMAN_NEVER);
        }
    }
    server_unlock(&http->lock);
    return NULL;
}

bool server_http_start_thread(struct http *http) {
    http->has_thread = pthread_create(&http->thread, NULL, http_main, http) == 0;
    return http->has_thread;
}

void server_http_stop_thread(struct http *http) {
    server_lock(&http->lock);
    http->ending = true;
    if (http->current) __atomic_store_n(&http->current->abandoned, true, __ATOMIC_RELAXED);
    if (http->has_thread) pthread_cond_signal(&http->page_wake);
    server_unlock(&http->lock);
    if (http->has_thread) pthread_join(http->thread, NULL);
    http->has_thread = false;
}

/* ---- requests ------------------------------------------------------------------------------- */
/* A function here returns false if the request needs more bytes. */

/* Answers a request whose body is complete. */
static bool connection_answer(struct http_connection *connection, size_t body_bytes) {
    struct http_request *request = &connection->request;
    connection->used = connection->head_bytes + body_bytes;
    request->body = connection->in + connection->head_bytes;
    request->body_bytes = body_bytes;
    if (!request->route) {
        connection_answer_message(connection);
    } else if (!request->route->is_immediate) {
        connection_answer_later(connection);
    } else {
        connection_answer_now(connection);
    }
    return true;
}

/* Reads the chunks that have been received, and removes their sizes. */
static bool connection_read_chunks(struct http_connection *connection) {
    size_t count = connection->in_bytes - connection->head_bytes;
    int code = server_http_read_chunks(&connection->chunks, connection->in + connection->head_bytes,
                                       &count, connection->request.body_max);
    connection->in_bytes = connection->head_bytes + count;
    if (code == 200) {
        connection_answer(connection, connection->chunks.body_bytes);
    } else if (code == 413) {
        struct http_response response = server_http_response_init(NULL);
        server_http_response_set_too_large(&response, &connection->request);
        connection_refuse_with(connection, &response);
    } else if (code == 431) {
        connection_refuse(connection, code, "RESOURCE_EXHAUSTED",
                          "the extensions and trailers of the chunks are longer than 16 KiB");
    } else if (code != 100) {
        connection_refuse(connection, code, "INVALID_ARGUMENT", "a chunk of the body is invalid");
    }
    return code != 100;
}

static bool connection_read_body(struct http_connection *connection) {
    const struct http_request *request = &connection->request;
    if (request->is_chunked) return connection_read_chunks(connection);
    if (connection->in_bytes - connection->head_bytes < request->length) return false;
    return connection_answer(connection, request->length);
}

/* Checks the certificate of the peer, and then all else that server_http_request_check checks.
 *   returns   false: the response is an error */
static bool connection_check_access(struct http_connection *connection,
                                    struct http_response *response) {
    struct http_request *request = &connection->request;
    char text[256];
    if (connection->refusal[0]) {
        snprintf(text, sizeof text, "the certificate of the client is refused: %s",
                 connection->refusal);
        server_http_response_set_error(response, 403, "PERMISSION_DENIED", text);
        return false;
    }
    bool allowed = server_http_request_check(connection->service, request, response);
    if (request->has_wrong_token) {
        server_log_peer(connection->service, WARNING_TOKEN, connection->peer, NULL);
    } else if (request->lacks_role) {
        server_log_peer(connection->service, WARNING_ROLE, connection->peer, request->token.name);
    }
    return allowed;
}

/* Checks a request whose head is complete. The body is read only if the request is allowed. The
 * interim response goes out only if the peer has asked for it and has sent nothing of the body,
 * because such a peer may wait for it (RFC 9110, 10.1.1). */
static void connection_check(struct http_connection *connection) {
    struct http_request *request = &connection->request;
    struct http_response response = server_http_response_init(NULL);
    size_t received = connection->in_bytes - connection->head_bytes;
    bool known = request->length != SIZE_MAX;
    connection->last = request->is_last;
    connection->is_head = request->is_head;
    if (!connection_check_access(connection, &response)) {
        connection->last = true;
        connection->body_left = !known                       ? SIZE_MAX
                                : request->length > received ? request->length - received
                                                             : 0;
        connection_respond(connection, &response);
    } else if (request->expects_continue && received == 0) {
        connection->out.buffer.bytes = 0;
        server_text_add(&connection->out, "HTTP/1.1 100 Continue\r\n\r\n");
        connection_send(connection, CONNECTION_CONTINUING);
    } else {
        server_connection_move(connection, CONNECTION_BODY);
    }
}

/* Reads a complete head from a copy, because `in` can move while the body arrives. */
static void connection_take_head(struct http_connection *connection, size_t bytes) {
    char *head = (char *)malloc(bytes);
    connection->head = head;
    connection->head_bytes = bytes;
    connection->request = (struct http_request){.peer = connection->peer};
    connection->chunks = (struct chunk_reader){.left = 0};
    if (!head) {
        server_connection_close(connection);
        return;
    }
    memcpy(head, connection->in, bytes);
    head[bytes - 2] = 0; /* without the empty line at the end */
    const char *wrong = server_http_request_read(&connection->request, head, bytes - 2);
    if (wrong) {
        connection_refuse(connection, 400, "INVALID_ARGUMENT", wrong);
    } else {
        connection_check(connection);
    }
}

/* Handles a request if its head is complete. The head ends with an empty line. Empty lines before
 * it have no meaning, and do not move the deadline. */
static bool connection_read_head(struct http_connection *connection) {
    if (connection->in_bytes == 0) return false;
    if (connection->state == CONNECTION_IDLE) server_connection_move(connection, CONNECTION_HEAD);
    connection->used = server_http_empty_lines(connection->in, connection->in_bytes);
    connection_consume(connection);
    char *end = (char *)memmem(connection->in, connection->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - connection->in) + 4 : connection->in_bytes;
    connection->is_head = false;
    if (bytes > HTTP_HEAD_MAX) {
        connection_refuse(connection, 431, "RESOURCE_EXHAUSTED", "the head is longer than 16 KiB");
    } else if (end) {
        connection_take_head(connection, bytes);
    }
    return end || bytes > HTTP_HEAD_MAX;
}

/* ---- steps ---------------------------------------------------------------------------------- */
/* A function here returns false only if the connection waits or is closed. */

/* Answers a peer that speaks plain HTTP to a port of HTTPS. */
static bool connection_refuse_plain(struct http_connection *connection) {
    server_log_handshake(connection->service, false, connection->peer);
    connection->service->tls_calls->end(connection->tls);
    connection->tls = NULL;
    connection_refuse(connection, 400, "INVALID_ARGUMENT",
                      "this port speaks HTTPS: use an address that begins with https://");
    return true;
}

/* Returns whether the peer does not speak TLS. TLS begins with the byte 0x16, and HTTP begins with
 * a capital letter. */
static bool connection_is_plain(const struct http_connection *connection) {
    char first = 0;
    return recv(connection->socket, &first, 1, MSG_PEEK) == 1 && first >= 'A' && first <= 'Z';
}

static bool connection_shake(struct http_connection *connection) {
    struct service *service = connection->service;
    if (connection_is_plain(connection)) return connection_refuse_plain(connection);
    enum tls_result result = service->tls_calls->handshake(connection->tls, connection->refusal,
                                                           sizeof connection->refusal);
    if (result == TLS_DONE) {
        if (connection->refusal[0]) server_log_handshake(service, true, connection->peer);
        server_connection_move(connection, CONNECTION_HEAD);
    } else if (result == TLS_FAILED) {
        server_log_handshake(service, false, connection->peer);
        server_connection_close(connection);
    } else {
        connection_watch_events(connection, result == TLS_WRITES ? EPOLLOUT : EPOLLIN);
    }
    return result == TLS_DONE;
}

static void connection_on_sent(struct http_connection *connection) {
    if (connection->body_left > 0) {
        connection->in_bytes = 0;
        server_connection_move(connection, CONNECTION_DRAINING);
    } else if (connection->last) {
        server_connection_close(connection);
    } else {
        connection_consume(connection);
        connection_free_buffers(connection);
        server_connection_move(connection,
                               connection->in_bytes > 0 ? CONNECTION_HEAD : CONNECTION_IDLE);
    }
}

static bool connection_flush(struct http_connection *connection) {
    const doorman_buffer *out = &connection->out.buffer;
    while (connection->sent < out->bytes) {
        ssize_t count = connection_io(connection, true, out->text + connection->sent,
                                      out->bytes - connection->sent);
        if (count < 0 && errno == EAGAIN) return false;
        if (count < 0) {
            server_connection_close(connection);
            return false;
        }
        connection->sent += (size_t)count;
    }
    if (connection->state == CONNECTION_CONTINUING) {
        server_connection_move(connection, CONNECTION_BODY);
    } else {
        connection_on_sent(connection);
    }
    return true;
}

/* Drops the received bytes of the body of a refused request. */
static bool connection_drain(struct http_connection *connection) {
    size_t count = connection->in_bytes;
    connection->in_bytes = 0;
    if (count >= connection->body_left) {
        server_connection_close(connection);
    } else if (connection->body_left != SIZE_MAX) {
        connection->body_left -= count;
    }
    return false;
}

static bool connection_advance(struct http_connection *connection) {
    switch (connection->state) {
    case CONNECTION_SHAKING: return connection_shake(connection);
    case CONNECTION_IDLE:
    case CONNECTION_HEAD: return connection_read_head(connection);
    case CONNECTION_BODY: return connection_read_body(connection);
    case CONNECTION_CONTINUING:
    case CONNECTION_SENDING: return connection_flush(connection);
    case CONNECTION_DRAINING: return connection_drain(connection);
    case CONNECTION_FREE:
    case CONNECTION_ANSWERING:
    case CONNECTION_ABANDONED:
    case CONNECTION_DELAYED:
    default: return false;
    }
}

/* Returns whether a connection waits for bytes that its TLS session already has. epoll does not
 * report these. */
static bool connection_has_bytes(const struct http_connection *connection) {
    bool receives = connection->state != CONNECTION_FREE &&
                    connection->state != CONNECTION_SHAKING &&
                    connection_events(connection) == EPOLLIN;
    return receives && connection->tls &&
           connection->service->tls_calls->has_bytes(connection->tls);
}

/* Does all that needs no waiting, and then tells epoll what the connection waits for. */
static void connection_run(struct http_connection *connection) {
    do {
        while (connection_advance(connection)) continue;
    } while (connection_has_bytes(connection) && connection_receive(connection));
    connection_watch_events(connection, connection_events(connection));
}

/* One read for each report of epoll is enough, because epoll reports again what is left. */
void server_connection_step(struct http_connection *connection) {
    bool shakes = connection->state == CONNECTION_SHAKING;
    bool receives = !shakes && connection_events(connection) == EPOLLIN;
    if (receives && !connection_receive(connection)) {
        connection_watch_events(connection, connection_events(connection));
    } else {
        connection_run(connection);
    }
}

void server_connection_probe(struct http_connection *connection) {
    bool receives = connection->state == CONNECTION_IDLE || connection->state == CONNECTION_HEAD ||
                    connection->state == CONNECTION_BODY;
    if (receives) server_connection_step(connection);
}

void server_connection_expire(struct http_connection *connection) {
    if (connection->state == CONNECTION_DELAYED) {
        connection_send(connection, CONNECTION_SENDING);
        connection_run(connection);
    } else if (connection->state == CONNECTION_ANSWERING ||
               connection->state == CONNECTION_ABANDONED) {
        connection->deadline = DOORMAN_NEVER; /* another thread uses the connection */
    } else {
        server_connection_close(connection);
    }
}

void server_connection_end_delay(struct http_connection *connection) {
    struct http_response response = server_http_response_init(NULL);
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out = (struct text){.failed = false};
    connection->last = true;
    server_http_response_set_unavailable(&response, "the server is stopping");
    server_http_response_write(&connection->out, &response, true, connection->is_head);
    connection_send(connection, CONNECTION_SENDING);
    connection_run(connection);
}

void server_http_take_answers(struct http *http) {
    server_lock(&http->lock);
    struct http_connection *answered = http->answered, *next = NULL;
    http->answered = NULL;
    server_unlock(&http->lock);
    for (; answered; answered = next) {
        next = answered->next;
        const doorman_time delay = answered->delay;
        answered->delay = 0;
        if (answered->state == CONNECTION_ABANDONED) {
            if (delay > 0) server_http_cancel_delay(answered->service);
            server_connection_close(answered);
        } else if (delay > 0) {
            server_connection_move(answered, CONNECTION_DELAYED); /* as in connection_delay */
            connection_set_deadline(answered, doorman_clock() + delay);
            connection_run(answered);
        } else {
            connection_send(answered, CONNECTION_SENDING);
            connection_run(answered);
        }
    }
}
