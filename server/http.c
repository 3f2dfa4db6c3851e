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
 *     HEAD       the head of a request        it is complete, and the peer    CONTINUING
 *                comes in                     waits before it sends the body
 *                                             it is complete                  BODY
 *                                             it is refused                   SENDING
 *                                             timeout, or a disconnect        FREE
 *     CONTINUING the interim response 100     it is sent                      BODY
 *                goes out                     timeout, or a disconnect        FREE
 *     BODY       the body of an allowed       it is complete, or refused      SENDING
 *                request comes in             timeout, or a disconnect        FREE
 *     SENDING    the response goes out        it is sent                      HEAD, DRAINING, FREE
 *                                             timeout, or a disconnect        FREE
 *     DRAINING   the rest of the body of a    it has been read, timeout, or   FREE
 *                refused request comes in     a disconnect
 *
 * When all connections are in use (V5), the server closes the one that has waited longest for its
 *    request. A request must arrive within HTTP_TIMEOUT_SECONDS, from its first byte to its last
 *    byte. Its response must leave within HTTP_TIMEOUT_SECONDS too. */
#include "server.h"

#include <sys/random.h>

#include <nng/supplemental/util/platform.h>

#define HTTP_TIMEOUT_SECONDS 30
#define HTTP_DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* for one read */
#define HTTP_BUFFER_MAX ((size_t)64 << 10)

#define HTTP_CONNECTION_MAX 256

enum http_connection_state {
    CONNECTION_FREE,
    CONNECTION_HEAD,
    CONNECTION_CONTINUING,
    CONNECTION_BODY,
    CONNECTION_SENDING,
    CONNECTION_DRAINING
};

struct http_connection {
    struct service *service;
    nng_stream *stream;
    nng_aio *aio;
    enum http_connection_state state; /* the lock of HTTP guards state and deadline */
    doorman_time deadline;
    char *in;                     /* bytes received */
    size_t in_bytes, in_capacity; /* in_bytes: bytes of `in` that have been received */
    char *head;                   /* a copy of the head; NULL: the head is not complete */
    size_t head_bytes, used;      /* bytes of `in`: of the head, and of the whole request */
    struct http_request request;  /* its strings point into `head` */
    struct chunk_reader chunks;   /* the position in a body that comes in chunks */
    struct text out;              /* bytes to send */
    size_t sent;                  /* bytes of `out` that have been sent */
    bool last, is_head;           /* last: close after the response; is_head: send no body */
    size_t body_left;             /* bytes of a refused body to read before closing, so that
                                     the peer can read the response; SIZE_MAX: not known */
};

struct http {
    pthread_mutex_t lock;
    char address[320];              /* "http://HOST:PORT"; "": HTTP does not listen */
    char token[HTTP_TOKEN_MAX + 1]; /* "": none */
    nng_stream_listener *listener;
    nng_aio *aio; /* for accepting connections */
    bool accepting, stopping;
    struct http_connection connections[HTTP_CONNECTION_MAX];
};

static void http_accept(struct http *http);

static const char *code_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {411, "Length Required"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {431, "Request Header Fields Too Large"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"}};
    const char *reason = "Internal Server Error";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].code == code) reason = reasons[i].reason;
    }
    return reason;
}

/* Writes the head and the body of a response to connection->out. */
static void connection_format_response(struct http_connection *connection,
                                       struct http_response *response) {
    struct text *out = &connection->out;
    if (response->text.failed)
        server_http_response_set_error(response, 500, "INTERNAL", "out of memory");
    out->buffer.bytes = 0;
    server_text_addf(
        out,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: %s\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        "Referrer-Policy: no-referrer\r\n%s",
        response->code, code_reason(response->code), response->type, response->text.buffer.bytes,
        connection->last ? "close" : "keep-alive", response->more);
    server_text_addf(
        out,
        "Content-Security-Policy: default-src 'none'; style-src 'nonce-%s'; "
        "script-src 'nonce-%s'; connect-src 'self'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'\r\n\r\n",
        response->nonce, response->nonce);
    if (!connection->is_head) {
        server_text_add_bytes(out, response->text.buffer.text, response->text.buffer.bytes);
    }
}

/* Starts to send or to receive, with a deadline. nng calls connection_step at the end. */
static void connection_start_io(struct http_connection *connection, bool sending) {
    doorman_time left = connection->deadline - doorman_clock();
    nng_aio_set_timeout(connection->aio, left > 0 ? (nng_duration)(left / 1000000 + 1) : 1);
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

/* Moves a connection to its next state, and sets the deadline of this state. A request has one
 * deadline, so CONTINUING and BODY keep the deadline of HEAD. Precondition: the lock of HTTP is
 * held. */
static void connection_move(struct http_connection *connection, enum http_connection_state state) {
    static const unsigned moves[] = {
        [CONNECTION_FREE] = 1U << CONNECTION_HEAD,
        [CONNECTION_HEAD] = 1U << CONNECTION_CONTINUING | 1U << CONNECTION_BODY |
                            1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_CONTINUING] = 1U << CONNECTION_BODY | 1U << CONNECTION_FREE,
        [CONNECTION_BODY] = 1U << CONNECTION_SENDING | 1U << CONNECTION_FREE,
        [CONNECTION_SENDING] =
            1U << CONNECTION_HEAD | 1U << CONNECTION_DRAINING | 1U << CONNECTION_FREE,
        [CONNECTION_DRAINING] = 1U << CONNECTION_FREE};
    assert(moves[connection->state] >> state & 1U);
    int seconds = state == CONNECTION_DRAINING ? HTTP_DRAIN_SECONDS : HTTP_TIMEOUT_SECONDS;
    if (state != CONNECTION_CONTINUING && state != CONNECTION_BODY) {
        connection->deadline = doorman_clock() + seconds * DOORMAN_SECOND;
    }
    connection->state = state;
}

static void connection_set_state(struct http_connection *connection,
                                 enum http_connection_state state) {
    struct http *http = connection->service->http;
    pthread_mutex_lock(&http->lock);
    connection_move(connection, state);
    pthread_mutex_unlock(&http->lock);
}

/* Makes a large input buffer smaller. Keeps the received bytes, which belong to the next
 * request. */
static void connection_shrink(struct http_connection *connection) {
    size_t capacity = connection->in_bytes > 0 ? HTTP_BUFFER_MAX : 0;
    if (connection->in_capacity <= HTTP_BUFFER_MAX || connection->in_bytes > HTTP_BUFFER_MAX)
        return;
    char *in = capacity ? (char *)realloc(connection->in, capacity) : NULL;
    if (capacity && !in) return;
    if (!capacity) free(connection->in);
    connection->in = in;
    connection->in_capacity = capacity;
    /* cppcheck-suppress memleak ; the connection owns the memory */
}

/* Frees the buffers of a request and its response. */
static void connection_free_buffers(struct http_connection *connection) {
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out.failed = false;
    free(connection->head);
    connection->head = NULL;
    connection_shrink(connection);
}

static void connection_close(struct http_connection *connection) {
    struct http *http = connection->service->http;
    nng_stream_free(connection->stream);
    connection->stream = NULL;
    connection->in_bytes = 0;
    connection_free_buffers(connection);
    connection_set_state(connection, CONNECTION_FREE);
    http_accept(http);
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

static void connection_receive(struct http_connection *connection) {
    if (connection_reserve(connection)) {
        connection_start_io(connection, false);
    } else {
        connection_close(connection);
    }
}

/* Sends a reply, and frees its memory. */
static void connection_respond(struct http_connection *connection, struct http_response *response) {
    connection_format_response(connection, response);
    doorman_buffer_uninit(&response->text.buffer);
    connection->sent = 0;
    connection_set_state(connection, CONNECTION_SENDING);
    if (connection->out.failed) {
        connection_close(connection);
    } else {
        connection_start_io(connection, true);
    }
}

/* Fills at most 256 bytes with random bits from the system. */
static bool random_bits(void *out, size_t bytes) { return getentropy(out, bytes) == 0; }

static struct http_response http_response_init(void) {
    struct http_response response = {.code = 200, .type = "text/plain; charset=utf-8", .more = ""};
    uint64_t random[2] = {0};
    (void)random_bits(random, sizeof random);
    snprintf(response.nonce, sizeof response.nonce, "%016" PRIx64 "%016" PRIx64, random[0],
             random[1]);
    return response;
}

/* Refuses a request whose end is not known. */
static void connection_refuse(struct http_connection *connection, int code, const char *name,
                              const char *message) {
    struct http_response response = http_response_init();
    connection->last = true;
    connection->body_left = SIZE_MAX;
    server_http_response_set_error(&response, code, name, message);
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

/* Answers a request whose body is complete. */
static void connection_answer(struct http_connection *connection, size_t body_bytes) {
    struct http_request *request = &connection->request;
    struct http_response response = http_response_init();
    connection->used = connection->head_bytes + body_bytes;
    assert(connection->used <= connection->in_bytes);
    request->body = connection->in + connection->head_bytes;
    request->body_bytes = body_bytes;
    (request->route ? request->route->handle : server_handle_method)(connection->service, request,
                                                                     &response);
    connection_respond(connection, &response);
}

/* Removes the sizes of the chunks that have been received. */
static void connection_read_chunks(struct http_connection *connection) {
    size_t count = connection->in_bytes - connection->head_bytes;
    int code = server_http_read_chunks(&connection->chunks, connection->in + connection->head_bytes,
                                       &count, connection->service->settings->message_max);
    connection->in_bytes = connection->head_bytes + count;
    if (code == 100) {
        connection_receive(connection);
    } else if (code == 200) {
        connection_answer(connection, connection->chunks.body_bytes);
    } else if (code == 413) {
        connection_refuse(connection, code, "RESOURCE_EXHAUSTED",
                          "the message is larger than --max-message");
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
        connection_receive(connection);
    } else {
        connection_answer(connection, request->length);
    }
}

/* Checks a request whose head is complete. The body is read only if the request is allowed. The
 * interim response goes out only to a peer that has sent nothing of the body, because such a peer
 * may wait for it (RFC 9110, 10.1.1). */
static void connection_check(struct http_connection *connection) {
    struct http_request *request = &connection->request;
    struct http_response response = http_response_init();
    size_t received = connection->in_bytes - connection->head_bytes;
    bool known = request->length != SIZE_MAX;
    connection->last = request->is_last;
    connection->is_head = request->is_head;
    if (!server_http_request_check(connection->service, request, &response)) {
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
    connection->request = (struct http_request){.verb = NULL};
    connection->chunks = (struct chunk_reader){.left = 0};
    if (!head) {
        connection_close(connection);
        return;
    }
    memcpy(head, connection->in, bytes);
    head[bytes - 2] = 0; /* without the empty line at the end */
    if (server_http_request_read(&connection->request, head, bytes - 2)) {
        connection_check(connection);
    } else {
        connection_refuse(connection, 400, "INVALID_ARGUMENT",
                          "this is not a valid HTTP/1.1 request");
    }
}

/* Handles a request if its head is complete. The head ends with an empty line. */
static void connection_read_head(struct http_connection *connection) {
    char *end = (char *)memmem(connection->in, connection->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - connection->in) + 4 : connection->in_bytes;
    connection->is_head = false;
    if (bytes > HTTP_HEAD_MAX) {
        connection_refuse(connection, 431, "RESOURCE_EXHAUSTED", "the head is longer than 16 KiB");
    } else if (!end) {
        connection_receive(connection);
    } else {
        connection_take_head(connection, bytes);
    }
}

/* Called when the response has been sent. The next request may have been received already. */
static void connection_on_sent(struct http_connection *connection) {
    if (connection->body_left > 0) {
        connection->in_bytes = 0;
        connection_set_state(connection, CONNECTION_DRAINING);
        connection_receive(connection);
    } else if (connection->last) {
        connection_close(connection);
    } else {
        connection->in_bytes -= connection->used;
        memmove(connection->in, connection->in + connection->used, connection->in_bytes);
        connection->used = 0;
        connection_free_buffers(connection);
        connection_set_state(connection, CONNECTION_HEAD);
        if (connection->in_bytes > 0) {
            connection_read_head(connection);
        } else {
            connection_receive(connection);
        }
    }
}

/* Handles bytes that were received. */
static void connection_on_received(struct http_connection *connection, size_t count) {
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

/* nng calls this function when bytes were received or sent, and after an error or a timeout. */
static void connection_step(void *argument) {
    struct http_connection *connection = (struct http_connection *)argument;
    size_t count = nng_aio_count(connection->aio);
    bool sends =
        connection->state == CONNECTION_SENDING || connection->state == CONNECTION_CONTINUING;
    if (nng_aio_result(connection->aio) != 0) {
        connection_close(connection);
    } else if (!sends) {
        connection_on_received(connection, count);
    } else if ((connection->sent += count) < connection->out.buffer.bytes) {
        connection_start_io(connection, true);
    } else if (connection->state == CONNECTION_CONTINUING) {
        connection_set_state(connection, CONNECTION_BODY);
        connection_receive(connection);
    } else {
        connection_on_sent(connection);
    }
}

/* If all connections are in use, closes the one with the nearest deadline. A connection that sends
 * a response is closed only if all other connections send one too. Precondition: the lock is held.
 * So no connection changes its state during the call, and the cancelled operation belongs to the
 * current state.
 *   newest   this connection stays open */
static void http_make_room(struct http *http, const struct http_connection *newest) {
    struct http_connection *chosen = NULL;
    for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
        struct http_connection *connection = &http->connections[i];
        bool writes = connection->state == CONNECTION_SENDING;
        if (connection->state == CONNECTION_FREE) return;
        if (connection == newest) continue;
        bool better = !chosen || writes < (chosen->state == CONNECTION_SENDING);
        bool same = chosen && writes == (chosen->state == CONNECTION_SENDING);
        if (better || (same && connection->deadline < chosen->deadline)) chosen = connection;
    }
    if (chosen) nng_aio_cancel(chosen->aio);
}

/* Starts to accept a connection, if one is free and no accept is in progress. */
static void http_accept(struct http *http) {
    bool accepts = false;
    pthread_mutex_lock(&http->lock);
    for (size_t i = 0; i < HTTP_CONNECTION_MAX && !http->accepting && !http->stopping; i++) {
        accepts = accepts || http->connections[i].state == CONNECTION_FREE;
    }
    http->accepting = http->accepting || accepts;
    pthread_mutex_unlock(&http->lock);
    if (accepts) nng_stream_listener_accept(http->listener, http->aio);
}

static struct http_connection *http_open_connection(struct http *http, nng_stream *stream) {
    struct http_connection *connection = http->connections;
    pthread_mutex_lock(&http->lock);
    while (connection->state != CONNECTION_FREE) connection++;
    connection->stream = stream;
    connection_move(connection, CONNECTION_HEAD);
    connection->last = connection->is_head = false;
    connection->sent = connection->used = connection->body_left = 0;
    http->accepting = false;
    http_make_room(http, connection);
    pthread_mutex_unlock(&http->lock);
    return connection;
}

/* nng calls this function when it has accepted a connection, or has failed to accept one. After an
 * error, such as too many open files, the next try is 10 ms later. Other connections may close in
 * this time. */
static void http_step(void *argument) {
    struct http *http = (struct http *)argument;
    int result = nng_aio_result(http->aio);
    if (result == 0) {
        nng_stream *stream = (nng_stream *)nng_aio_get_output(http->aio, 0);
        connection_receive(http_open_connection(http, stream));
    } else {
        pthread_mutex_lock(&http->lock);
        http->accepting = false;
        http->stopping = http->stopping || result == NNG_ECLOSED || result == NNG_ECANCELED;
        pthread_mutex_unlock(&http->lock);
        nng_msleep(10);
    }
    http_accept(http);
}

/* Reads the token, which is the first word of a file. */
static enum exit_status http_load_token(struct http *http, const char *path) {
    enum exit_status exit_status = CONTINUE;
    FILE *file = fopen(path, "rb");
    char line[HTTP_TOKEN_MAX + 2] = "";
    if (!file) {
        exit_status = server_fatal_error(EXIT_ERROR, "--http-token %s: %s", path, strerror(errno));
    } else {
        line[fread(line, 1, sizeof line - 1, file)] = 0;
        fclose(file);
        char *first = line + strspn(line, " \t\r\n");
        first[strcspn(first, " \t\r\n")] = 0;
        if (!*first || strlen(line) > HTTP_TOKEN_MAX) {
            exit_status = server_fatal_error(EXIT_ERROR,
                                             "--http-token %s: must hold a token of 1 to %d bytes",
                                             path, HTTP_TOKEN_MAX);
        }
        snprintf(http->token, sizeof http->token, "%.*s", HTTP_TOKEN_MAX, first);
    }
    return exit_status;
}

/* Checks that an address that is not loopback has a token or client certificates. */
static enum exit_status http_check(const struct service *service) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    char host[256];
    server_host_read(settings->http, host, sizeof host);
    bool is_remote = !server_host_is_loopback(host);
    bool needs_certificate = service->tls && settings->tls_ca;
    if (is_remote && !settings->http_token && !needs_certificate) {
        exit_status =
            server_fatal_error(EXIT_USAGE,
                               "--http %s can be reached from other machines: give --http-token, "
                               "--tls-ca, or a loopback address",
                               settings->http);
    } else if (is_remote && !service->tls) {
        server_log(settings, LEVEL_WARNING, "the HTTP token travels in plain text: give --tls-cert",
                   "http", settings->http, LOG_END);
    }
    return exit_status;
}

/* Starts to listen. Returns 0 or an error of nng. Sets http->address, with the real port instead of
 * 0. */
static int http_listen(struct service *service) {
    struct http *http = service->http;
    char url[320], host[256];
    int port = 0;
    snprintf(url, sizeof url, "%s://%s", service->tls ? "tls+tcp" : "tcp", service->settings->http);
    server_host_read(service->settings->http, host, sizeof host);
    int error = nng_stream_listener_alloc(&http->listener, url);
    if (error == 0 && service->tls) {
        error = nng_stream_listener_set_ptr(http->listener, NNG_OPT_TLS_CONFIG, service->tls);
    }
    if (error == 0) error = nng_stream_listener_listen(http->listener);
    if (error == 0) {
        error = nng_stream_listener_get_int(http->listener, NNG_OPT_TCP_BOUND_PORT, &port);
        snprintf(http->address, sizeof http->address, "%s://%s:%d", service->tls ? "https" : "http",
                 host, port);
    }
    return error;
}

/* If the default address is in use, the server continues without HTTP and logs a warning. So a
 * second server on the same machine starts without extra flags. */
static enum exit_status http_listen_error(struct service *service, int error) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    if (error == NNG_EADDRINUSE && !settings->given[FLAG_HTTP]) {
        server_log(settings, LEVEL_WARNING,
                   "HTTP is off, because its address is in use; give --http, or --http off", "http",
                   settings->http, LOG_END);
    } else if (error == NNG_EADDRINVAL || error == NNG_EINVAL) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "cannot listen on --http '%s': %s; an address is, for example, %s",
            settings->http, nng_strerror(error), HTTP_DEFAULT);
    } else {
        exit_status = server_fatal_error(
            EXIT_ERROR, "cannot listen on --http %s: %s; give another address, or --http off",
            settings->http, nng_strerror(error));
    }
    return exit_status;
}

static enum exit_status http_start_connections(struct service *service) {
    struct http *http = service->http;
    int error = nng_aio_alloc(&http->aio, http_step, http);
    for (size_t i = 0; error == 0 && i < HTTP_CONNECTION_MAX; i++) {
        http->connections[i].service = service;
        error = nng_aio_alloc(&http->connections[i].aio, connection_step, &http->connections[i]);
    }
    if (error == 0) http_accept(http);
    return error == 0
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR, "cannot serve HTTP: %s", nng_strerror(error));
}

enum exit_status server_http_start(struct service *service) {
    const char *token = service->settings->http_token;
    enum exit_status exit_status = http_check(service);
    struct http *http = (struct http *)calloc(1, sizeof *http);
    bool has_history = server_history_create(service);
    service->http = http;
    if (exit_status == CONTINUE &&
        (!http || !has_history || pthread_mutex_init(&http->lock, NULL) != 0)) {
        exit_status = server_fatal_error(EXIT_ERROR, "out of memory");
    }
    if (exit_status == CONTINUE && token) exit_status = http_load_token(http, token);
    if (exit_status == CONTINUE) {
        int error = http_listen(service);
        exit_status =
            error == 0 ? http_start_connections(service) : http_listen_error(service, error);
    }
    return exit_status;
}

/* nng_aio_stop waits for the end of the callback of the aio. */
void server_http_stop(struct service *service) {
    struct http *http = service->http;
    if (http) {
        pthread_mutex_lock(&http->lock);
        http->stopping = true;
        pthread_mutex_unlock(&http->lock);
        if (http->listener) nng_stream_listener_close(http->listener);
        nng_aio_stop(http->aio);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) nng_aio_stop(http->connections[i].aio);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
            struct http_connection *connection = &http->connections[i];
            nng_stream_free(connection->stream);
            nng_aio_free(connection->aio);
            connection_free_buffers(connection);
            free(connection->in);
        }
        nng_aio_free(http->aio);
        if (http->listener) nng_stream_listener_free(http->listener);
        pthread_mutex_destroy(&http->lock);
    }
    server_history_destroy(service);
    free(http);
}

const char *server_http_address(const struct service *service) {
    return service->http && service->http->address[0] ? service->http->address : "off";
}

const char *server_http_token(const struct service *service) { return service->http->token; }
