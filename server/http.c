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
 *     FREE       not in use                   the server accepts a connection RECEIVING
 *     RECEIVING  a request comes in           it is complete, or refused      SENDING
 *                                             timeout, or a disconnect        FREE
 *     SENDING    the response goes out        it is sent                      RECEIVING, DRAINING,
 *                                                                             FREE
 *                                             timeout, or a disconnect        FREE
 *     DRAINING   the rest of the body of a    it has been read, timeout, or   FREE
 *                refused request comes in     a disconnect
 *
 * The server checks a request as soon as its head is complete (V3). The Host must be known.
 *    Otherwise a web page could use a DNS name of its own to reach a server on the machine of its
 *    reader. The token must be right. A POST must have a Content-Type that HTML forms cannot send.
 *    There are no CORS headers.
 * When all connections are in use (V5), the server closes the one that has waited longest for its
 *    request. A request must arrive within HTTP_TIMEOUT_SECONDS. Its response must leave within
 *    HTTP_TIMEOUT_SECONDS too. */
#include "server.h"

#include <strings.h>
#include <sys/random.h>

#include <nng/supplemental/util/platform.h>

#define HTTP_TIMEOUT_SECONDS 30
#define HTTP_DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* for one read; also the maximum size of a head */
#define HTTP_BUFFER_MAX ((size_t)64 << 10)

#define HTTP_CONNECTION_MAX 256
#define TOKEN_BYTES_MAX 512

enum http_connection_state {
    CONNECTION_FREE,
    CONNECTION_RECEIVING,
    CONNECTION_SENDING,
    CONNECTION_DRAINING
};

struct http_connection {
    struct service *service;
    nng_stream *stream;
    nng_aio *aio;
    enum http_connection_state state; /* the lock of HTTP guards state and deadline */
    doorman_time deadline;
    char *in;                           /* bytes received */
    size_t in_bytes, in_capacity, used; /* used: bytes of the request that was answered */
    struct text out;                    /* bytes to send */
    size_t sent;                        /* bytes of `out` that have been sent */
    bool last, is_head;                 /* last: close after the response; is_head: send no body */
    size_t body_left;                   /* bytes of a refused body to read before closing, so that
                                           the peer can read the response */
};

struct http {
    pthread_mutex_t lock;
    char address[320];               /* "http://HOST:PORT"; "": HTTP does not listen */
    char token[TOKEN_BYTES_MAX + 1]; /* "": none */
    nng_stream_listener *listener;
    nng_aio *aio; /* for accepting connections */
    bool accepting, stopping;
    struct http_connection connections[HTTP_CONNECTION_MAX];
};

static void http_accept(struct http *http);

/* Reads a field of the head.
 *   out       the first value, without the spaces around it
 *   returns   how often the field occurs; at least 2 if a value does not fit in `room` */
static int head_read(const char *head, const char *name, char *out, size_t room) {
    size_t name_bytes = strlen(name);
    int count = 0;
    out[0] = 0;
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, name_bytes) != 0 || line[name_bytes] != ':') continue;
        const char *value = line + name_bytes + 1;
        value += strspn(value, " \t");
        size_t bytes = strcspn(value, "\r\n");
        while (bytes > 0 && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t')) bytes--;
        if (count++ == 0 && bytes < room) snprintf(out, room, "%.*s", (int)bytes, value);
        if (bytes >= room) count = 2;
    }
    return count;
}

static bool host_wildcard(const char *host) {
    return !*host || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "[::]") == 0;
}

/* Returns whether a host is known. Known hosts are loopback, the host of --http, and the host of
 * --advertise. If HTTP listens on all addresses, every IP address is known too. */
static bool host_known(const struct service *service, const char *given) {
    char host[256], listening[256], advertised[256];
    server_host_read(given, host, sizeof host);
    server_host_read(service->http->address, listening, sizeof listening);
    server_host_read(service->advertise, advertised, sizeof advertised);
    return server_host_is_loopback(host) || strcasecmp(host, listening) == 0 ||
           (!host_wildcard(advertised) && strcasecmp(host, advertised) == 0) ||
           (host_wildcard(listening) && server_host_is_numeric(host));
}

/* Compares a token with the token of a request. The time depends only on the length, so it does not
 * reveal the first wrong byte. */
static bool token_equal(const char *token, const char *given, size_t bytes) {
    size_t token_bytes = strlen(token);
    unsigned different = token_bytes != bytes;
    for (size_t i = 0; i < token_bytes; i++) {
        different |= (unsigned char)token[i] ^ (unsigned char)given[i < bytes ? i : 0];
    }
    return different == 0;
}

/* Checks the token of a request. Programs send "Bearer TOKEN". A browser asks its user for a
 * password, and sends "Basic" with any user name and the token as the password. */
static bool token_valid(const char *token, const char *head) {
    char value[TOKEN_BYTES_MAX * 2 + 512], pair[sizeof value];
    if (head_read(head, "Authorization", value, sizeof value) != 1) return false;
    if (strncasecmp(value, "Bearer ", 7) == 0) {
        return token_equal(token, value + 7, strlen(value + 7));
    }
    if (strncasecmp(value, "Basic ", 6) != 0) return false;
    size_t bytes = server_base64_read(pair, sizeof pair, value + 6);
    const char *colon = (const char *)memchr(pair, ':', bytes);
    size_t before = colon ? (size_t)(colon - pair) + 1 : bytes;
    return token_equal(token, pair + before, bytes - before);
}

static const struct route {
    const char *path;
    bool open; /* needs no token or Host, for health checks */
    void (*handle)(struct service *service, const struct http_request *request,
                   struct http_response *response);
} routes[] = {
    {"/", false, server_handle_page},
    {"/resources", false, server_handle_leases},
    {"/metrics", false, server_handle_metrics},
    {"/healthz", true, server_handle_health},
    {"/readyz", true, server_handle_ready},
    {"/v1/status", false, server_handle_status},
    {"/v1/config", false, server_handle_config},
};

static const struct route *route_find(const char *path) {
    const struct route *found = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) == 0) found = &routes[i];
    }
    return found;
}

/* Returns whether the path accepts messages of the protocol. Such a path is /v1, or /v1/ and the
 * name of a method. */
static bool path_is_method(const char *path) {
    bool found = strcmp(path, "/v1") == 0;
    for (int i = 0; strncmp(path, "/v1/", 4) == 0 && i < MESSAGE_UNKNOWN; i++) {
        found = found || strcmp(path + 4, server_message_names[i]) == 0;
    }
    return found;
}

static bool type_is_json(const char *head) {
    char type[128];
    if (head_read(head, "Content-Type", type, sizeof type) != 1) return false;
    type[strcspn(type, "; \t")] = 0;
    return strcasecmp(type, "application/json") == 0;
}

/* Checks the path, the verb and the type of the body. If the request is refused, returns false and
 * writes an error to the response. */
static bool http_request_check(const struct http_request *request, struct http_response *response) {
    bool method = path_is_method(request->path);
    bool post = strcmp(request->verb, "POST") == 0;
    bool get = strcmp(request->verb, "GET") == 0 || strcmp(request->verb, "HEAD") == 0;
    if (!request->route && !method) {
        server_http_response_set_error(response, 404, "NOT_FOUND", "this path does not exist");
    } else if (method ? !post : !get) {
        server_http_response_set_error(response, 405, "INVALID_ARGUMENT",
                                       method ? "methods of the protocol need POST"
                                              : "this path needs GET or HEAD");
        response->more = method ? "Allow: POST\r\n" : "Allow: GET, HEAD\r\n";
    } else if (post && !type_is_json(request->head)) {
        server_http_response_set_error(response, 415, "UNSUPPORTED_MEDIA_TYPE",
                                       "the body must be of Content-Type application/json");
    }
    return response->code == 200;
}

/* Checks the Host, the token and then the path. With a token, a GET may have any Host, because the
 * token already protects the data. Proxies and Prometheus may use other names for the server. If
 * the request is refused, returns false and writes an error to the response. */
static bool http_request_allowed(const struct service *service, const struct http_request *request,
                                 struct http_response *response) {
    const char *token = service->http->token;
    bool open = request->route && request->route->open;
    bool by_host = !token[0] || strcmp(request->verb, "POST") == 0;
    char host[256];
    if (open) return http_request_check(request, response);
    int hosts = head_read(request->head, "Host", host, sizeof host);
    if (by_host && (hosts != 1 || !host_known(service, host))) {
        server_http_response_set_error(
            response, 403, "PERMISSION_DENIED",
            "the Host is unknown: use a loopback name, or the host of --http or "
            "--advertise");
    } else if (token[0] && !token_valid(token, request->head)) {
        server_http_response_set_error(response, 401, "UNAUTHENTICATED",
                                       "the token is missing or wrong");
        response->more = "WWW-Authenticate: Basic realm=\"doorman\", charset=\"UTF-8\"\r\n";
    }
    return response->code == 200 && http_request_check(request, response);
}

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
                   {431, "Request Header Fields Too Large"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
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

static void connection_set_state(struct http_connection *connection,
                                 enum http_connection_state state) {
    struct http *http = connection->service->http;
    int seconds = state == CONNECTION_DRAINING ? HTTP_DRAIN_SECONDS : HTTP_TIMEOUT_SECONDS;
    pthread_mutex_lock(&http->lock);
    connection->state = state;
    connection->deadline = doorman_clock() + seconds * DOORMAN_SECOND;
    pthread_mutex_unlock(&http->lock);
}

static void connection_free_buffers(struct http_connection *connection) {
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out.failed = false;
    if (connection->in_capacity > HTTP_BUFFER_MAX) {
        free(connection->in);
        connection->in = NULL;
        connection->in_capacity = 0;
    }
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

/* Refuses a request, and discards the rest of it.
 *   body_left   bytes that the peer has not sent yet; SIZE_MAX: unknown */
static void connection_refuse(struct http_connection *connection, size_t body_left, int code,
                              const char *name, const char *message) {
    struct http_response response = http_response_init();
    connection->last = true;
    connection->body_left = body_left;
    connection->is_head = false;
    server_http_response_set_error(&response, code, name, message);
    connection_respond(connection, &response);
}

/* Returns the size of the body in bytes, or 0 without Content-Length. Returns SIZE_MAX if
 * Content-Length is invalid. Also returns SIZE_MAX if the body has a Transfer-Encoding, which this
 * server does not support. */
static size_t head_length(const char *head) {
    char value[32], coding[64];
    int count = head_read(head, "Content-Length", value, sizeof value);
    size_t digits = strspn(value, "0123456789"), length = 0;
    if (count > 1 || value[digits] || (count == 1 && digits == 0) || digits > 18 ||
        head_read(head, "Transfer-Encoding", coding, sizeof coding) > 0) {
        length = SIZE_MAX;
    } else if (count == 1) {
        length = (size_t)strtoull(value, NULL, 10);
    }
    return length;
}

/* Splits the first line of the head, "VERB /path?query HTTP/1.1", in place. Returns false if the
 * line is invalid. */
static bool http_request_parse(struct http_request *request, char *line) {
    char *path = strchr(line, ' ');
    char *version = path ? strchr(path + 1, ' ') : NULL;
    if (!version || path[1] != '/' || strncmp(version, " HTTP/1.", 8) != 0) return false;
    *path++ = 0;
    *version++ = 0;
    request->version = version;
    char *query = strchr(path, '?');
    if (query) *query++ = 0;
    request->verb = line;
    request->path = path;
    request->query = query ? query : "";
    request->route = route_find(path);
    return true;
}

/* Returns whether to close the connection after the response. This is so with HTTP/1.0, or if the
 * peer asks for it. */
static bool http_request_is_last(const struct http_request *request) {
    char value[64];
    head_read(request->head, "Connection", value, sizeof value);
    return strcmp(request->version, "HTTP/1.0") == 0 || strcasestr(value, "close");
}

/* Handles a request whose head is complete. If the request can be refused without its body, refuses
 * it at once. Otherwise waits for the body, and then answers. */
static void connection_handle(struct http_connection *connection, struct http_request *request,
                              size_t head_bytes) {
    char value[32];
    struct http_response response = http_response_init();
    size_t length = head_length(request->head), received = connection->in_bytes - head_bytes;
    size_t body_left = length == SIZE_MAX || length > received ? length - received : 0;
    bool has_length = head_read(request->head, "Content-Length", value, sizeof value) > 0;
    connection->last = http_request_is_last(request);
    connection->is_head = strcmp(request->verb, "HEAD") == 0;
    if (!http_request_allowed(connection->service, request, &response)) {
        connection->last = true;
        connection->body_left = body_left;
        connection_respond(connection, &response);
    } else if (length == SIZE_MAX || (!has_length && strcmp(request->verb, "POST") == 0)) {
        connection_refuse(connection, body_left, has_length ? 400 : 411, "INVALID_ARGUMENT",
                          "a body needs exactly one Content-Length, a number");
    } else if (length > connection->service->settings->message_max) {
        connection_refuse(connection, body_left, 413, "RESOURCE_EXHAUSTED",
                          "the message is larger than --max-message");
    } else if (body_left > 0) {
        connection_receive(connection);
    } else {
        connection->used = head_bytes + length;
        request->body = connection->in + head_bytes;
        request->body_bytes = length;
        (request->route ? request->route->handle : server_handle_method)(connection->service,
                                                                         request, &response);
        connection_respond(connection, &response);
    }
}

/* Handles a request if its head is complete. The head ends with an empty line. */
static void connection_parse(struct http_connection *connection) {
    char head[READ_BYTES + 1], line[READ_BYTES + 1];
    struct http_request request = {.head = head};
    char *end = (char *)memmem(connection->in, connection->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - connection->in) + 4 : connection->in_bytes;
    if (bytes > READ_BYTES) {
        connection_refuse(connection, SIZE_MAX, 431, "RESOURCE_EXHAUSTED",
                          "the head is longer than 16 KiB");
    } else if (!end) {
        connection_receive(connection);
    } else {
        memcpy(head, connection->in, bytes);
        head[bytes - 2] = 0;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(head, "\r"), head);
        if (strlen(head) == bytes - 2 && http_request_parse(&request, line)) {
            connection_handle(connection, &request, bytes);
        } else {
            connection_refuse(connection, SIZE_MAX, 400, "INVALID_ARGUMENT",
                              "this is not an HTTP/1.1 request");
        }
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
        connection_set_state(connection, CONNECTION_RECEIVING);
        if (connection->in_bytes > 0) {
            connection_parse(connection);
        } else {
            connection_receive(connection);
        }
    }
}

/* nng calls this function when bytes were received or sent, and after an error or a timeout. */
static void connection_step(void *argument) {
    struct http_connection *connection = (struct http_connection *)argument;
    size_t count = nng_aio_count(connection->aio);
    if (nng_aio_result(connection->aio) != 0) {
        connection_close(connection);
    } else if (connection->state == CONNECTION_DRAINING && count >= connection->body_left) {
        connection_close(connection);
    } else if (connection->state == CONNECTION_DRAINING) {
        connection->body_left -= count;
        connection_start_io(connection, false);
    } else if (connection->state == CONNECTION_RECEIVING) {
        connection->in_bytes += count;
        connection_parse(connection);
    } else if ((connection->sent += count) < connection->out.buffer.bytes) {
        connection_start_io(connection, true);
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
    connection->state = CONNECTION_RECEIVING;
    connection->deadline = doorman_clock() + HTTP_TIMEOUT_SECONDS * DOORMAN_SECOND;
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
    char line[TOKEN_BYTES_MAX + 2] = "";
    if (!file) {
        exit_status = server_fatal_error(EXIT_ERROR, "--http-token %s: %s", path, strerror(errno));
    } else {
        line[fread(line, 1, sizeof line - 1, file)] = 0;
        fclose(file);
        char *first = line + strspn(line, " \t\r\n");
        first[strcspn(first, " \t\r\n")] = 0;
        if (!*first || strlen(line) > TOKEN_BYTES_MAX) {
            exit_status = server_fatal_error(EXIT_ERROR,
                                             "--http-token %s: must hold a token of 1 to %d bytes",
                                             path, TOKEN_BYTES_MAX);
        }
        snprintf(http->token, sizeof http->token, "%.*s", TOKEN_BYTES_MAX, first);
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
            doorman_buffer_uninit(&connection->out.buffer);
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
