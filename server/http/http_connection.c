/* doorman_server, part HTTP: connections. This file changes service->http. It calls the function of
 * the path that a request names.
 *
 * This file does not use the HTTP server of nng. That server waits without a timeout for the rest
 * of a request. It does not limit the number of connections or the size of a head. It reads a body
 * before it checks the sender. So this file uses only the streams of nng, which support TLS.
 *
 * A connection (struct http_connection) has one aio, so that it does one thing at a time:
 *
 *     state      meaning                      event                           next state
 *     FREE       not in use                   the server accepts a connection HEAD
 *     IDLE       a response was sent, and     the first byte comes in         HEAD
 *                the next request may come    timeout, or a disconnect        CLOSING
 *     HEAD       the head of a request        it is complete, and the peer    CONTINUING
 *                comes in                     waits before it sends the body
 *                                             it is complete                  BODY
 *                                             it is refused                   SENDING
 *                                             timeout, or a disconnect        CLOSING
 *     CONTINUING the interim response 100     it is sent                      BODY
 *                goes out                     timeout, or a disconnect        CLOSING
 *     BODY       the body of an allowed       it is complete, or refused      SENDING
 *                request comes in             it is complete, and the thread  ANSWERING
 *                                             of pages makes the response
 *                                             it is complete, and its         ANSWERING
 *                                             permits may wait
 *                                             it is complete, and the         DELAYED
 *                                             response must wait
 *                                             timeout, or a disconnect        CLOSING
 *     ANSWERING  the response waits for the   it is made                      SENDING
 *                thread of pages, or this     a disconnect while it waits     CLOSING
 *                thread makes it              a disconnect while it is made   ABANDONED
 *                permits of a message wait    the last one is decided         SENDING
 *                (P7)                         a disconnect                    ABANDONED
 *     DELAYED    the response is made. It     the time has come             SENDING
 *                says that a permit is        the server stops: the         SENDING
 *                granted from a later time    response is 503
 *                on, and waits until then     a disconnect                  CLOSING
 *     ABANDONED  the thread of pages makes a  the thread has stopped making   CLOSING
 *                response for nobody          the response
 *                permits of a message leave   they have left                  CLOSING
 *                the queues
 *     SENDING    the response goes out        it is sent                      IDLE, DRAINING
 *                                             it is sent, and is the last     CLOSING
 *                                             it is sent, and bytes of the    HEAD
 *                                             next request have arrived
 *                                             timeout, or a disconnect        CLOSING
 *     DRAINING   the rest of the body of a    it has been read, timeout, or   CLOSING
 *                refused request comes in     a disconnect
 *     CLOSING    the stream is closed         nng does not use it any more    FREE
 *
 * The thread of pages makes all responses that need a copy of the state, one after the other. They
 *    are pages, metrics, the status and the configuration. Health checks and messages of the
 *    protocol need few steps under the lock of the leases, and the description of the API needs
 *    none. So nng's threads answer them at once, even while many pages wait. At most
 *    HTTP_QUEUE_MAX responses wait, and a further request is refused with the status 503.
 * In ANSWERING, the connection receives, so that it notices a disconnect. A peer that has shut down
 *    only its sending side counts as disconnected too, because the server cannot tell the
 *    difference. The bytes belong to the next requests. When HTTP_BUFFER_MAX bytes have arrived,
 *    the connection stops receiving, and `receives` is false. With TLS, a connection does not
 *    receive in ANSWERING. It would have to cancel the receive operation before it sends, and nng
 *    closes a TLS connection whose receive operation is cancelled. So the response is made even if
 *    the peer has left.
 * A message whose permits wait counts as a delayed response, see below. The thread that causes its
 *    last decision does what the thread of pages does for a page. A peer that leaves cancels its
 *    permits. With TLS the server does not notice that. The permits then wait until they are
 *    decided.
 * In ANSWERING, only the holder of the lock of HTTP may start or end the wait for a response. The
 *    thread of pages sets `is_answered` and cancels the receive operation. The callback of this
 *    operation then sends the response. Without a receive operation, the thread of pages itself
 *    sends the response. In ABANDONED, no operation is in progress, and only one thread uses the
 *    connection: the thread of pages, or the thread that finishes the message whose permits waited.
 * In DELAYED, the connection receives too, and the time of the response is its timeout. So no
 *    thread waits, and the connection of a client that leaves is free at once. The units of this
 *    client stay charged, because permits of rates cannot be given back. With TLS, and when
 *    HTTP_BUFFER_MAX bytes have arrived, the connection sleeps instead. It then notices a
 *    disconnect when it sends. At most HTTP_DELAYED_MAX connections are in DELAYED. While so many
 *    are, a request is decided as if it could not wait.
 * When few connections are free (V5), a connection closes after its next response, and the response
 *    says so with `Connection: close`. So a client never loses a response. http_listen.c closes
 *    connections when none is free.
 * A request must arrive within HTTP_TIMEOUT_SECONDS, from its first byte to its last byte. A
 *    response must leave within HTTP_TIMEOUT_SECONDS after it is made. */
#include "http_connection.h"

#define HTTP_DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* for one read */
#define HTTP_BUFFER_MAX ((size_t)64 << 10)
#define HTTP_QUEUE_MAX 32 /* responses that wait for the thread of pages */

/* Starts to send or to receive. nng calls server_connection_step at the end. So the caller must not
 * use the connection after this call. */
static void connection_start_io(struct http_connection *connection, bool sending) {
    doorman_time left = connection->deadline - doorman_clock();
    nng_duration timeout = left > 0 ? (nng_duration)(left / 1000000 + 1) : 1;
    if (connection->deadline == DOORMAN_NEVER) timeout = NNG_DURATION_INFINITE;
    nng_aio_set_timeout(connection->aio, timeout);
    if (sending) {
        nng_iov iov = {connection->out.buffer.text + connection->sent,
                       connection->out.buffer.bytes - connection->sent};
        nng_aio_set_iov(connection->aio, 1, &iov);
        nng_stream_send(connection->stream, connection->aio);
    } else {
        nng_iov iov = {connection->in + connection->in_bytes,
                       connection->in_capacity - connection->in_bytes};
        nng_aio_set_iov(connection->aio, 1, &iov);
        nng_stream_recv(connection->stream, connection->aio);
    }
}

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

void server_http_accept(struct http *http) {
    server_lock(&http->lock);
    bool accepts = http->used_count < http->limit && !http->accepting && !http->stopping;
    http->accepting = http->accepting || accepts;
    server_unlock(&http->lock);
    if (accepts) nng_stream_listener_accept(http->listener, http->aio);
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

/* A request has one deadline, so CONTINUING and BODY keep the deadline of HEAD. In ANSWERING the
 * peer has nothing to do, so there is no deadline. */
void server_connection_move(struct http_connection *connection, enum http_connection_state state) {
    static const unsigned moves[] = {
        [CONNECTION_FREE] = 1U << CONNECTION_HEAD,
        [CONNECTION_IDLE] = 1U << CONNECTION_HEAD | 1U << CONNECTION_CLOSING,
        [CONNECTION_HEAD] = 1U << CONNECTION_CONTINUING | 1U << CONNECTION_BODY |
                            1U << CONNECTION_SENDING | 1U << CONNECTION_CLOSING,
        [CONNECTION_CONTINUING] = 1U << CONNECTION_BODY | 1U << CONNECTION_CLOSING,
        [CONNECTION_BODY] = 1U << CONNECTION_ANSWERING | 1U << CONNECTION_DELAYED |
                            1U << CONNECTION_SENDING | 1U << CONNECTION_CLOSING,
        [CONNECTION_ANSWERING] =
            1U << CONNECTION_SENDING | 1U << CONNECTION_ABANDONED | 1U << CONNECTION_CLOSING,
        [CONNECTION_ABANDONED] = 1U << CONNECTION_CLOSING,
        [CONNECTION_DELAYED] = 1U << CONNECTION_SENDING | 1U << CONNECTION_CLOSING,
        [CONNECTION_SENDING] = 1U << CONNECTION_IDLE | 1U << CONNECTION_HEAD |
                               1U << CONNECTION_DRAINING | 1U << CONNECTION_CLOSING,
        [CONNECTION_DRAINING] = 1U << CONNECTION_CLOSING,
        [CONNECTION_CLOSING] = 1U << CONNECTION_FREE};
    struct http *http = connection->service->http;
    (void)moves; /* without assertions */
    assert(moves[connection->state] >> state & 1U);
    if (connection->state == CONNECTION_FREE) http->used_count++;
    if (state == CONNECTION_FREE) http->used_count--;
    if (connection->state == CONNECTION_DELAYED) http->delayed_count--;
    assert(http->used_count <= http->limit && http->delayed_count <= HTTP_DELAYED_MAX);
    int seconds = state == CONNECTION_DRAINING ? HTTP_DRAIN_SECONDS : HTTP_TIMEOUT_SECONDS;
    if (state != CONNECTION_CONTINUING && state != CONNECTION_BODY) {
        connection->deadline = doorman_clock() + seconds * DOORMAN_SECOND;
    }
    if (state == CONNECTION_ANSWERING) connection->deadline = DOORMAN_NEVER;
    connection->state = state;
    connection->is_evicted = connection->is_probed = false;
}

static void connection_set_state(struct http_connection *connection,
                                 enum http_connection_state state) {
    struct http *http = connection->service->http;
    server_lock(&http->lock);
    server_connection_move(connection, state);
    server_unlock(&http->lock);
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

void server_connection_free_buffers(struct http_connection *connection) {
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out.failed = false;
    free(connection->head);
    connection->head = NULL;
    connection_shrink(connection);
}

/* Closes a stream, and frees it when nng does not use it any more. nng 1.5.2 may still use it in
 * two places:
 *   - A thread that holds the lock may cancel the operation that has just ended. So the state
 *     changes first, with the lock.
 *   - nng's thread for timeouts ends an operation without a lock, also one that has just ended. So
 *     the connection sleeps before the stream is freed: the same thread ends the sleep, after it
 *     has ended everything that was due before.
 *
 * nng closes a stream that is freed in a thread of its own, and with nng 1.5.2 lost connections can
 * block this thread. So the stream is closed first, which tells the peer at once. */
static void connection_close(struct http_connection *connection) {
    connection_set_state(connection, CONNECTION_CLOSING);
    nng_stream_close(connection->stream);
    connection->in_bytes = 0;
    server_connection_free_buffers(connection);
    nng_aio_set_timeout(connection->aio, NNG_DURATION_INFINITE);
    nng_sleep_aio(1, connection->aio);
}

/* Called after the sleep. If `result` is not 0, the server stops, and http_stop frees the
 * stream. */
static void connection_on_closed(struct http_connection *connection, int result) {
    struct http *http = connection->service->http;
    if (result != 0) return;
    nng_stream_free(connection->stream);
    connection->stream = NULL;
    connection_set_state(connection, CONNECTION_FREE);
    server_http_accept(http);
}

/* Makes room for the next read. Memory grows with the bytes received, not with Content-Length. */
static bool connection_reserve(struct http_connection *connection) {
    bool done = true;
    if (connection->in_capacity - connection->in_bytes < READ_BYTES) {
        size_t capacity = connection->in_capacity * 2 + READ_BYTES + 1;
        char *in = (char *)realloc(connection->in, capacity);
        done = in != NULL;
        if (done) connection->in = in;
        if (done) connection->in_capacity = capacity;
        /* cppcheck-suppress memleak ; the connection owns the memory */
    }
    return done;
}

void server_connection_receive(struct http_connection *connection) {
    if (connection_reserve(connection)) {
        connection_start_io(connection, false);
    } else {
        connection_close(connection);
    }
}

/* Sends the response in connection->out. */
static void connection_send(struct http_connection *connection) {
    connection->sent = 0;
    connection_set_state(connection, CONNECTION_SENDING);
    if (connection->out.failed) {
        connection_close(connection);
    } else {
        connection_start_io(connection, true);
    }
}

/* Lets a connection close after its response, if few connections are free. A connection with bytes
 * of the next request stays open, because closing it could destroy the response on its way: the
 * peer's system drops a response when it learns that bytes were not read (RFC 9112, 9.6). */
static void connection_yield(struct http_connection *connection) {
    struct http *http = connection->service->http;
    bool has_next = connection->in_bytes > connection->used;
    server_lock(&http->lock);
    if (!has_next && server_http_is_crowded(http)) connection->last = true;
    server_unlock(&http->lock);
}

/* Sends a response, and frees its memory. */
static void connection_respond(struct http_connection *connection, struct http_response *response) {
    connection_yield(connection);
    server_http_response_write(&connection->out, response, connection->last, connection->is_head);
    connection_send(connection);
}

/* Refuses a request whose end is not known. */
static void connection_refuse(struct http_connection *connection, int code, const char *name,
                              const char *message) {
    struct http_response response = server_http_response_init(NULL);
    connection->last = true;
    connection->body_left = SIZE_MAX;
    server_http_response_set_error(&response, code, name, message);
    connection_respond(connection, &response);
}

/* Refuses a body in chunks whose size is too large. */
static void connection_refuse_size(struct http_connection *connection) {
    struct http_response response = server_http_response_init(NULL);
    connection->last = true;
    connection->body_left = SIZE_MAX;
    server_http_response_set_too_large(&response, connection->service->settings->message_max);
    connection_respond(connection, &response);
}

static void connection_send_continue(struct http_connection *connection) {
    connection->out.buffer.bytes = 0;
    server_text_add(&connection->out, "HTTP/1.1 100 Continue\r\n\r\n");
    connection->sent = 0;
    if (connection->out.failed) {
        connection_close(connection);
    } else {
        connection_set_state(connection, CONNECTION_CONTINUING);
        connection_start_io(connection, true);
    }
}

/* Removes the request from the received bytes. Its head stays valid. */
static void connection_consume(struct http_connection *connection) {
    assert(connection->used <= connection->in_bytes);
    connection->in_bytes -= connection->used;
    memmove(connection->in, connection->in + connection->used, connection->in_bytes);
    connection->used = 0;
}

/* Removes a request whose body is not needed any more, so that bytes of the next request can be
 * received. */
static void connection_forget_body(struct http_connection *connection) {
    connection->request.body = NULL;
    connection->request.body_bytes = 0;
    connection_consume(connection);
}

/* Waits for the time of a response. */
static void connection_await_delay(struct http_connection *connection) {
    bool receives = !server_http_has_tls(connection->service) &&
                    connection->in_bytes < HTTP_BUFFER_MAX && connection_reserve(connection);
    doorman_time left = connection->deadline - doorman_clock();
    if (receives) {
        connection_start_io(connection, false);
    } else {
        nng_aio_set_timeout(connection->aio, NNG_DURATION_INFINITE);
        nng_sleep_aio(left > 0 ? (nng_duration)(left / 1000000 + 1) : 1, connection->aio);
    }
}

/* Keeps a response until its time. Frees its memory. */
static void connection_delay(struct http_connection *connection, struct http_response *response) {
    struct http *http = connection->service->http;
    doorman_time delay = response->delay;
    assert(delay > 0 && delay <= HTTP_DELAY_SECONDS_MAX * DOORMAN_SECOND);
    connection_forget_body(connection);
    connection_yield(connection);
    server_http_response_write(&connection->out, response, connection->last, connection->is_head);
    server_lock(&http->lock);
    assert(http->delayed_count > 0); /* the handler has reserved the delay */
    server_connection_move(connection, CONNECTION_DELAYED);
    connection->deadline = doorman_clock() + delay;
    server_unlock(&http->lock);
    connection_await_delay(connection);
}

/* Answers that the server stops, instead of the response that waits. */
static void connection_end_delay(struct http_connection *connection) {
    struct http_response response = server_http_response_init(NULL);
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out = (struct text){.failed = false};
    connection->last = true;
    server_http_response_set_error(&response, 503, "UNAVAILABLE", "the server is stopping");
    response.more = "Retry-After: 1\r\n";
    server_http_response_write(&connection->out, &response, true, connection->is_head);
    connection_send(connection);
}

/* Called in DELAYED, when the time may have come, or bytes of the next request were received, or
 * the peer has left, or the server stops. */
static void connection_on_delayed(struct http_connection *connection, int result, size_t count) {
    struct http *http = connection->service->http;
    connection->in_bytes += count;
    server_lock(&http->lock);
    bool stops = result == NNG_ECANCELED && http->stopping;
    server_unlock(&http->lock);
    if (stops) {
        connection_end_delay(connection);
    } else if (result != 0 && result != NNG_ETIMEDOUT) {
        connection_close(connection);
    } else if (doorman_clock() < connection->deadline) {
        connection_await_delay(connection);
    } else {
        connection_send(connection);
    }
}

/* Answers a request on this thread. */
static void connection_answer_now(struct http_connection *connection) {
    const struct http_request *request = &connection->request;
    struct http_response response = server_http_response_init(NULL);
    request->route->handle(connection->service, request, &response);
    if (response.delay > 0) {
        connection_delay(connection, &response);
    } else {
        connection_respond(connection, &response);
    }
}

/* Adds a connection to the end of the queue. Precondition: the lock of HTTP is held.
 *   returns   false: the queue is full */
static bool http_enqueue(struct http *http, struct http_connection *connection) {
    struct http_connection **end = &http->queue;
    if (http->queue_count == HTTP_QUEUE_MAX) return false;
    while (*end) end = &(*end)->next;
    *end = connection;
    connection->next = NULL;
    http->queue_count++;
    pthread_cond_signal(&http->wake);
    return true;
}

/* Removes a connection from the queue. Returns false if it is not in the queue. Precondition: the
 * lock of HTTP is held. */
static bool http_dequeue(struct http *http, const struct http_connection *connection) {
    struct http_connection **at = &http->queue;
    while (*at && *at != connection) at = &(*at)->next;
    if (!*at) return false;
    *at = connection->next;
    http->queue_count--;
    return true;
}

/* Starts to receive in ANSWERING. The response may be made before the operation starts. The thread
 * of pages then cancels nothing, so this function cancels the operation. */
static void connection_watch(struct http_connection *connection) {
    struct http *http = connection->service->http;
    connection_start_io(connection, false);
    server_lock(&http->lock);
    if (connection->state == CONNECTION_ANSWERING && connection->is_answered &&
        connection->receives) {
        nng_aio_cancel(connection->aio);
    }
    server_unlock(&http->lock);
}

/* What another thread does with a connection in ANSWERING whose response it has made. */
enum answer_end {
    ANSWER_WATCHED, /* nothing: the callback of the receive operation sends the response */
    ANSWER_SENDS,
    ANSWER_CLOSES /* the peer has left */
};

/* Says that a response is made. The caller then calls connection_end_answer, without the lock.
 * Precondition: the lock of HTTP is held. */
static enum answer_end connection_set_answered(struct http_connection *connection) {
    connection->is_answered = true;
    if (connection->state == CONNECTION_ABANDONED) return ANSWER_CLOSES;
    if (!connection->receives) return ANSWER_SENDS;
    nng_aio_cancel(connection->aio);
    return ANSWER_WATCHED;
}

static void connection_end_answer(struct http_connection *connection, enum answer_end end) {
    if (end == ANSWER_CLOSES) connection_close(connection);
    if (end == ANSWER_SENDS) connection_send(connection);
}

/* Lets the thread of pages answer a request. While that thread has a body, nothing is received,
 * because the body could move. */
static void connection_answer_later(struct http_connection *connection) {
    struct http *http = connection->service->http;
    bool keeps = connection->request.route->verbs && connection->request.body_bytes > 0;
    if (!keeps) connection_forget_body(connection);
    bool receives = !keeps && !server_http_has_tls(connection->service) &&
                    connection->in_bytes < HTTP_BUFFER_MAX && connection_reserve(connection);
    server_lock(&http->lock);
    bool accepted = http_enqueue(http, connection);
    if (accepted) {
        server_connection_move(connection, CONNECTION_ANSWERING);
        connection->is_answered = connection->abandoned = false;
        connection->receives = receives;
    }
    server_unlock(&http->lock);
    if (!accepted) {
        struct http_response response = server_http_response_init(NULL);
        server_http_response_set_error(&response, 503, "UNAVAILABLE",
                                       "too many pages are being made");
        response.more = "Retry-After: 1\r\n";
        connection_respond(connection, &response);
    } else if (receives) {
        connection_watch(connection);
    }
}

/* ---- messages that wait */

/* The numbers of connections that wait over HTTP begin here, because nng's numbers are smaller. */
#define WAITER_NUMBERS (UINT64_C(1) << 32)

static struct http_connection *waiter_connection(struct waiter *waiter) {
    return (struct http_connection *)(void *)((char *)waiter -
                                              offsetof(struct http_connection, call));
}

/* Lets a message wait, if few others wait. Without TLS the connection must be able to receive. */
static bool connection_prepare_wait(struct waiter *waiter) {
    struct http_connection *connection = waiter_connection(waiter);
    struct service *service = connection->service;
    struct http *http = service->http;
    bool receives = !server_http_has_tls(service) && connection->in_bytes < HTTP_BUFFER_MAX;
    if ((!server_http_has_tls(service) && !receives) || !server_http_reserve_delay(service))
        return false;
    if (receives && !connection_reserve(connection)) {
        server_http_cancel_delay(service);
        return false;
    }
    connection->request.body = connection->in + connection->head_bytes;
    server_lock(&http->lock);
    waiter->connection = WAITER_NUMBERS + ++http->waiter_count;
    server_connection_move(connection, CONNECTION_ANSWERING);
    connection->is_answered = connection->abandoned = false;
    connection->receives = receives;
    connection->waits = true;
    server_unlock(&http->lock);
    return true;
}

/* Sends the response to a message that has waited. Any thread may call this function.
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
    server_http_cancel_delay(connection->service);
    server_lock(&http->lock);
    connection->waits = false;
    enum answer_end end = connection_set_answered(connection);
    server_unlock(&http->lock);
    connection_end_answer(connection, end);
}

/* Answers a message of the protocol. If its permits wait, the connection may belong to another
 * thread, except if it receives. */
static void connection_answer_message(struct http_connection *connection) {
    struct service *service = connection->service;
    struct http_response response = server_http_response_init(NULL);
    connection->call.waiter =
        (struct waiter){.prepare = connection_prepare_wait, .finish = connection_finish_wait};
    if (server_method_handle(service, &connection->call, &connection->request, &response)) {
        if (connection->waits) server_http_cancel_delay(service);
        connection->waits = false;
        connection_respond(connection, &response);
    } else if (!server_http_has_tls(service)) {
        connection_forget_body(connection);
        connection_watch(connection);
    }
}

/* Answers a request whose body is complete. */
static void connection_answer(struct http_connection *connection, size_t body_bytes) {
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
}

/* Called in ANSWERING, when bytes of the next request were received, or the peer has left, or the
 * thread of pages has cancelled the receive operation.
 *   has_left   the receive operation has failed */
static void connection_on_watched(struct http_connection *connection, bool has_left, size_t count) {
    struct http *http = connection->service->http;
    connection->in_bytes += count;
    bool room = connection->in_bytes < HTTP_BUFFER_MAX && connection_reserve(connection);
    struct service *service = connection->service;
    server_lock(&http->lock);
    const uint64_t number = connection->waits ? connection->call.waiter.connection : 0;
    bool answered = connection->is_answered;
    bool closes = !answered && has_left && http_dequeue(http, connection);
    bool receives = !answered && !has_left && room;
    connection->receives = receives;
    if (!answered && has_left && !closes) {
        __atomic_store_n(&connection->abandoned, true, __ATOMIC_RELAXED);
        server_connection_move(connection, CONNECTION_ABANDONED);
    }
    server_unlock(&http->lock);
    if (answered) {
        connection_send(connection);
    } else if (closes) {
        connection_close(connection);
    } else if (receives) {
        connection_watch(connection);
    } else if (has_left && number) {
        service->waits->disconnect(service, number); /* the connection may be closed meanwhile */
    }
}

/* Makes the first response of the queue. The lock of HTTP is held before and after, and is released
 * meanwhile. */
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
    enum answer_end end = connection_set_answered(connection);
    *(end == ANSWER_CLOSES ? &http->abandoned_count : &http->made_count) += 1;
    server_unlock(&http->lock);
    connection_end_answer(connection, end);
    server_lock(&http->lock);
}

/* The thread of pages. */
static void *http_main(void *argument) {
    struct http *http = (struct http *)argument;
    server_lock(&http->lock);
    while (!http->ending) {
        if (http->queue) {
            http_make_response(http);
        } else {
            server_condition_wait(&http->wake, &http->lock, DOORMAN_NEVER);
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
    http->stopping = http->ending = true;
    if (http->current) __atomic_store_n(&http->current->abandoned, true, __ATOMIC_RELAXED);
    if (http->has_thread) pthread_cond_signal(&http->wake);
    server_unlock(&http->lock);
    if (http->has_thread) pthread_join(http->thread, NULL);
}

/* Removes the sizes of the chunks that have been received. */
static void connection_read_chunks(struct http_connection *connection) {
    size_t count = connection->in_bytes - connection->head_bytes;
    int code = server_http_read_chunks(&connection->chunks, connection->in + connection->head_bytes,
                                       &count, connection->service->settings->message_max);
    connection->in_bytes = connection->head_bytes + count;
    if (code == 100) {
        server_connection_receive(connection);
    } else if (code == 200) {
        connection_answer(connection, connection->chunks.body_bytes);
    } else if (code == 413) {
        connection_refuse_size(connection);
    } else if (code == 431) {
        connection_refuse(connection, code, "RESOURCE_EXHAUSTED",
                          "the extensions and trailers of the chunks are longer than 16 KiB");
    } else {
        connection_refuse(connection, code, "INVALID_ARGUMENT", "a chunk of the body is invalid");
    }
}

static void connection_read_body(struct http_connection *connection) {
    const struct http_request *request = &connection->request;
    if (request->is_chunked) {
        connection_read_chunks(connection);
    } else if (connection->in_bytes - connection->head_bytes < request->length) {
        server_connection_receive(connection);
    } else {
        connection_answer(connection, request->length);
    }
}

/* Checks a request whose head is complete. The body is read only if the request is allowed. The
 * interim response goes out only to a peer that has sent nothing of the body, because such a peer
 * may wait for it (RFC 9110, 10.1.1). */
static void connection_check(struct http_connection *connection) {
    struct http_request *request = &connection->request;
    struct http_response response = server_http_response_init(NULL);
    size_t received = connection->in_bytes - connection->head_bytes;
    bool known = request->length != SIZE_MAX;
    connection->last = request->is_last;
    connection->is_head = request->is_head;
    bool allowed = server_http_request_check(connection->service, request, &response);
    if (request->has_wrong_token) {
        server_log_peer(connection->service, WARNING_TOKEN, &connection->peer, NULL);
    } else if (request->lacks_role) {
        server_log_peer(connection->service, WARNING_ROLE, &connection->peer, request->token.name);
    }
    if (!allowed) {
        connection->last = true;
        connection->body_left = !known                       ? SIZE_MAX
                                : request->length > received ? request->length - received
                                                             : 0;
        connection_respond(connection, &response);
    } else if (request->expects_continue && received == 0) {
        connection_send_continue(connection);
    } else {
        connection_set_state(connection, CONNECTION_BODY);
        connection_read_body(connection);
    }
}

/* Reads a complete head from a copy, because `in` can move while the body arrives. */
static void connection_take_head(struct http_connection *connection, size_t bytes) {
    char *head = (char *)malloc(bytes);
    connection->head = head;
    connection->head_bytes = bytes;
    connection->request = (struct http_request){.stream = connection->stream};
    connection->chunks = (struct chunk_reader){.left = 0};
    if (!head) {
        connection_close(connection);
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
static void connection_read_head(struct http_connection *connection) {
    connection->used = server_http_empty_lines(connection->in, connection->in_bytes);
    connection_consume(connection);
    char *end = (char *)memmem(connection->in, connection->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - connection->in) + 4 : connection->in_bytes;
    connection->is_head = false;
    if (bytes > HTTP_HEAD_MAX) {
        connection_refuse(connection, 431, "RESOURCE_EXHAUSTED", "the head is longer than 16 KiB");
    } else if (!end) {
        server_connection_receive(connection);
    } else {
        connection_take_head(connection, bytes);
    }
}

/* Called when the response has been sent. The next request may have been received already. */
static void connection_on_sent(struct http_connection *connection) {
    if (connection->body_left > 0) {
        connection->in_bytes = 0;
        connection_set_state(connection, CONNECTION_DRAINING);
        server_connection_receive(connection);
    } else if (connection->last) {
        connection_close(connection);
    } else {
        connection_consume(connection);
        server_connection_free_buffers(connection);
        connection_set_state(connection,
                             connection->in_bytes > 0 ? CONNECTION_HEAD : CONNECTION_IDLE);
        if (connection->in_bytes > 0) {
            connection_read_head(connection);
        } else {
            server_connection_receive(connection);
        }
    }
}

/* Handles bytes that were received. */
static void connection_on_received(struct http_connection *connection, size_t count) {
    if (connection->state == CONNECTION_IDLE) connection_set_state(connection, CONNECTION_HEAD);
    if (connection->state != CONNECTION_DRAINING) {
        connection->in_bytes += count;
        (connection->state == CONNECTION_HEAD ? connection_read_head
                                              : connection_read_body)(connection);
    } else if (count >= connection->body_left) {
        connection_close(connection);
    } else {
        connection->body_left -= count;
        connection_start_io(connection, false);
    }
}

/* Called when the operation of a connection has failed. Returns whether the connection receives
 * once more, because the timer has cancelled its receive operation for the first time (see
 * http_listen.c). */
static bool connection_probes(struct http_connection *connection) {
    struct http *http = connection->service->http;
    bool cancelled = nng_aio_result(connection->aio) == NNG_ECANCELED;
    bool receives = connection->state == CONNECTION_IDLE || connection->state == CONNECTION_HEAD ||
                    connection->state == CONNECTION_BODY;
    server_lock(&http->lock);
    bool probes = cancelled && receives && !connection->is_probed &&
                  !server_http_has_tls(connection->service) && !http->stopping;
    connection->is_probed = connection->is_probed || probes;
    server_unlock(&http->lock);
    return probes;
}

/* Logs a failed handshake. nng reports it as an error of the first operation. */
static void connection_log_failure(const struct http_connection *connection, int result) {
    if (connection->state == CONNECTION_HEAD && connection->in_bytes + connection->sent == 0) {
        server_log_handshake(connection->service, result, &connection->peer);
    }
}

/* Returns the result of an operation. With nng 1.5.2, a timeout of an aio that has slept before is
 * a success without bytes. An operation of a stream never succeeds without bytes. */
static int connection_result(const struct http_connection *connection) {
    int result = nng_aio_result(connection->aio);
    bool is_timeout = result == 0 && nng_aio_count(connection->aio) == 0;
    return is_timeout && connection->state != CONNECTION_CLOSING ? NNG_ETIMEDOUT : result;
}

void server_connection_step(void *argument) {
    struct http_connection *connection = (struct http_connection *)argument;
    size_t count = nng_aio_count(connection->aio);
    bool sends =
        connection->state == CONNECTION_SENDING || connection->state == CONNECTION_CONTINUING;
    int result = connection_result(connection);
    bool failed = result != 0;
    if (connection->state == CONNECTION_CLOSING) {
        connection_on_closed(connection, result);
    } else if (connection->state == CONNECTION_ANSWERING) {
        connection_on_watched(connection, failed, failed ? 0 : count);
    } else if (connection->state == CONNECTION_DELAYED) {
        connection_on_delayed(connection, result, failed ? 0 : count);
    } else if (failed && connection_probes(connection)) {
        connection_start_io(connection, false);
    } else if (failed) {
        connection_log_failure(connection, result);
        connection_close(connection);
    } else if (!sends) {
        connection_on_received(connection, count);
    } else if ((connection->sent += count) < connection->out.buffer.bytes) {
        connection_start_io(connection, true);
    } else if (connection->state == CONNECTION_CONTINUING) {
        connection_set_state(connection, CONNECTION_BODY);
        server_connection_receive(connection);
    } else {
        connection_on_sent(connection);
    }
}
