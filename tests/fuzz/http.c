/* Any bytes as what an HTTP connection sends to doorman_server. Each request has one response,
 * which is valid HTTP, and no byte of a request gets into the head of a response.
 *
 * The first byte says how many bytes are read or written at once, whether there are tokens, and
 * when the thread of pages makes a response. The input replaces nng's streams; all other code is
 * the server's own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* as in server.h */
#endif
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
#include <nng/supplemental/util/platform.h>

static void fuzz_set_iov(const nng_iov *iov);
static void fuzz_wait(bool sends);
static void fuzz_sleep(void);
static nng_stream *fuzz_stream_free(nng_stream *stream);
static size_t fuzz_count(void);
static int fuzz_result(void);
static void fuzz_cancel(void);

#define nng_aio_set_timeout(aio, duration) ((void)(aio), (void)(duration))
#define nng_aio_set_iov(aio, count, iov) fuzz_set_iov(iov)
#define nng_aio_count(aio) fuzz_count()
#define nng_aio_cancel(aio) fuzz_cancel()
#define nng_aio_result(aio) fuzz_result()
#define nng_stream_send(stream, aio) fuzz_wait(true)
#define nng_stream_recv(stream, aio) fuzz_wait(false)
#define nng_stream_free(stream) fuzz_stream_free(stream)
#define nng_stream_close(stream) ((void)(stream))
#define nng_stream_listener_accept(listener, aio) ((void)(listener))
#define nng_sleep_aio(duration, aio) ((void)(duration), fuzz_sleep())
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_HTTP
#define DOORMAN_SERVER_UNMATCHED
#define DOORMAN_SERVER_WARNINGS
#include "doorman_server.c"
#undef main
#include "server/http/allow.c"
#include "server/util/base64.c"
#include "server/pages/children.c"
#include "server/log/changes.c"
#include "server/log/config_text.c"
#include "server/pages/config_check.c"
#include "server/pages/descriptors.c"
#include "server/pages/counters.c"
#include "server/pages/front.c"
#include "server/pages/graph.c"
#include "server/pages/health.c"
#include "server/pages/history.c"
#include "server/util/host.c"
#include "server/http/http_connection.c"
#include "server/http/http_listen.c"
#include "server/http/http_request.c"
#include "server/http/http_response.c"
#include "server/http/limit_fields.c"
#include "server/pages/json.c"
#include "server/pages/limit_history.c"
#include "server/pages/limits.c"
#include "server/pages/lists.c"
#include "server/http/method.c"
#include "server/pages/holds.c"
#include "server/pages/metrics.c"
#include "server/pages/page.c"
#include "server/pages/page_facts.c"
#include "server/pages/process.c"
#include "server/pages/snapshot.c"
#include "server/http/text.c"
#include "server/http/tokens.c"
#include "server/log/unmatched.c"
#include "server/log/warnings.c"

#include "fuzz.h"

#define STEPS 4000

/* The operation that the server waits for, and its result. */
static struct {
    fuzz_text input;
    nng_iov iov;
    bool sends, sleeps, waits;
    size_t count;
    int result;
    doorman_buffer output;
} wire;

static void fuzz_set_iov(const nng_iov *iov) { wire.iov = *iov; }

static void fuzz_wait(bool sends) {
    must(!wire.waits && wire.iov.iov_len > 0);
    wire.waits = true;
    wire.sleeps = false;
    wire.sends = sends;
}

static void fuzz_sleep(void) {
    must(!wire.waits);
    wire.waits = wire.sleeps = true;
}

static nng_stream *fuzz_stream_free(nng_stream *stream) { return stream; }

static size_t fuzz_count(void) { return wire.count; }

static int fuzz_result(void) { return wire.result; }

static void fuzz_cancel(void) {
    wire.waits = false;
    wire.count = 0;
    wire.result = NNG_ECANCELED;
}

/* Does what the thread of pages does when a response waits for it. */
static void make_response(struct http *http) {
    server_lock(&http->lock);
    http_make_response(http);
    server_unlock(&http->lock);
    must(!wire.waits);
}

/* Makes room for more bytes of output. The library frees the buffer with free. */
static void reserve_output(size_t more) {
    char *text = (char *)realloc(wire.output.text, wire.output.bytes + more);
    must(text != NULL);
    wire.output.text = text;
}

/* Ends the delay of a response, or the sleep before the stream is freed. */
static void end_delay(struct http_connection *connection) {
    connection->deadline = doorman_clock();
    wire.waits = false;
    wire.count = 0;
    wire.result = wire.sleeps ? 0 : NNG_ETIMEDOUT;
}

/* Completes the operation that the server waits for, with at most `most` bytes. */
static void move_bytes(size_t most) {
    size_t count = wire.iov.iov_len < most ? wire.iov.iov_len : most;
    wire.waits = false;
    wire.result = 0;
    if (wire.sends) {
        reserve_output(count);
        memcpy(wire.output.text + wire.output.bytes, wire.iov.iov_buf, count);
        wire.output.bytes += count;
    } else if (wire.input.bytes) {
        if (count > wire.input.bytes) count = wire.input.bytes;
        memcpy(wire.iov.iov_buf, wire.input.text, count);
        wire.input.text += count;
        wire.input.bytes -= count;
    } else {
        wire.result = NNG_ECLOSED;
    }
    wire.count = wire.result ? 0 : count;
}

/* Returns whether a line of a response's head is one that the server writes. */
static bool is_known_line(const char *line) {
    static const char *const names[] = {"Content-Type: ",
                                        "Content-Length: ",
                                        "Connection: ",
                                        "Cache-Control: no-store",
                                        "X-Content-Type-O",
                                        "Referrer-Policy: no-referrer",
                                        "Allow: ",
                                        "WWW-Authenticate",
                                        "Content-Security-Policy: ",
                                        "Content-Disposition: ",
                                        "RateLimit-Policy: \"",
                                        "RateLimit: \"",
                                        "X-RateLimit-",
                                        "Retry-After: ",
                                        "Location: http"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(line, names[i], strlen(names[i])) == 0) return true;
    }
    return false;
}

/* Returns whether a response has its body. A response to HEAD has none: the next response follows
 * directly. */
static bool has_body(const char *body, size_t length) {
    const char *end = (const char *)memchr(body, 0, length);
    return !end && (!body[length] || strncmp(body + length, "HTTP/1.1 ", 9) == 0);
}

/* Checks one response. Returns its end; NULL if its head is not complete. The server itself never
 * writes "<zz". So if a page has it, an id or a part of a query was not escaped. */
static const char *check_response(const char *at) {
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    must(strncmp(at, "HTTP/1.1 ", 9) == 0);
    if (strncmp(at, interim, sizeof interim - 1) == 0) return at + sizeof interim - 1;
    const char *end = strstr(at, "\r\n\r\n"), *line = strstr(at, "\r\n");
    size_t length = SIZE_MAX;
    bool page = false;
    if (!end) return NULL;
    for (line += 2; line < end + 2; line = strstr(line, "\r\n") + 2) {
        must(is_known_line(line));
        if (strncmp(line, "Content-Length: ", 16) == 0) length = strtoull(line + 16, NULL, 10);
        page = page || strncmp(line, "Content-Type: text/html", 23) == 0;
    }
    must(length != SIZE_MAX);
    const char *body = end + 4;
    if (!has_body(body, length)) return strncmp(body, "HTTP/1.1 ", 9) == 0 ? body : NULL;
    must(!page || !memmem(body, length, "<zz", 3));
    return body + length;
}

static void check_output(void) {
    if (!wire.output.bytes) return;
    reserve_output(1);
    wire.output.text[wire.output.bytes] = 0;
    must(strlen(wire.output.text) == wire.output.bytes);
    const char *at = wire.output.text;
    while (at && *at) at = check_response(at);
}

/* Makes leases whose names must be escaped wherever they are shown. */
static void create_leases(struct service *service) {
    static const char *const holders[] = {"<zz", "\"'&", "client"};
    doorman_response response;
    doorman_demand demand = {.wants = 4, .subclients = 1, .priority = 2};
    doorman_capacity_request items[] = {{.resource_id = "db"}, {.resource_id = "x\"\\<zz"}};
    for (size_t i = 0; i < 2; i++) {
        items[i].wants = &demand;
        items[i].wants_count = 1;
    }
    for (size_t i = 0; i < 3; i++) {
        doorman_request request = {.method = DOORMAN_GET_CAPACITY, .holder_id = holders[i]};
        request.items = items;
        request.item_count = 2;
        must(doorman_server_handle(service->server, &request, &response, NULL, doorman_clock()) ==
             DOORMAN_OK);
    }
}

/* Makes two tokens of different roles. */
static void start_tokens(struct service *service) {
    char text[] = "admin one secret\nread two public";
    doorman_error error;
    struct tokens *tokens = (struct tokens *)calloc(1, sizeof *tokens);
    must(tokens && server_lock_init(&tokens->lock, LOCK_TOKENS));
    tokens->list = (struct token_list *)calloc(1, sizeof *tokens->list);
    must(tokens->list && tokens_read(tokens->list, text, &error));
    service->tokens = tokens;
}

static void start(struct service *service, bool has_tokens) {
    static const char config[] =
        "{\"resources\":[{\"identifier_glob\":\"db\",\"description\":\"<b>\\\"'&\","
        "\"unit\":\"</b>\\\"'&\","
        "\"capacity\":10,\"algorithm\":{\"kind\":\"PRIORITY_SHARE\",\"learning_mode_duration\":0}},"
        "{\"identifier_glob\":\"pay\",\"limits\":["
        "{\"name\":\"<zz\\\"\\u00e9\",\"kind\":\"TOKEN_BUCKET\",\"rate\":1,\"size\":2,"
        "\"max_debt\":60}]},"
        "{\"identifier_glob\":\"*\",\"capacity\":5}]}";
    must(doorman_json_config(&service->config, config, sizeof config - 1, NULL) == DOORMAN_OK);
    doorman_server_options options = {.node = "node", .config = service->config};
    options.on_event = tell_event;
    options.context = service;
    service->server = fuzz_server(&options);
    must(server_lock_init(&service->lock, LOCK_SERVICE));
    must(server_lock_init(&service->config_lock, LOCK_CONFIG));
    server_lock(&service->lock);
    create_leases(service);
    server_unlock(&service->lock);
    service->id = "id";
    service->node = "node";
    service->advertise = "tcp://doorman.example:15000";
    service->http = (struct http *)calloc(1, sizeof *service->http);
    service->history = (struct history *)calloc(1, sizeof *service->history);
    service->limit_history = (struct limit_history *)calloc(1, sizeof *service->limit_history);
    service->longest_hold = (struct lock_hold *)calloc(1, sizeof *service->longest_hold);
    service->warnings = (struct warnings *)calloc(1, sizeof *service->warnings);
    must(service->http && service->history && service->limit_history);
    must(service->longest_hold && service->warnings);
    must(server_lock_init(&service->http->lock, LOCK_HTTP));
    must(server_lock_init(&service->history->lock, LOCK_HISTORY));
    must(server_lock_init(&service->limit_history->lock, LOCK_HISTORY));
    for (int i = 1; i <= 3; i++) limit_history_work(service, i * HISTORY_INTERVAL);
    snprintf(service->http->address, sizeof service->http->address, "http://127.0.0.1:15050");
    if (has_tokens) start_tokens(service);
    service->http->connections[0].service = service;
    service->http->limit = HTTP_CONNECTION_MAX;
}

static void stop(struct service *service) {
    server_connection_free_buffers(&service->http->connections[0]);
    free(service->http->connections[0].in);
    free(service->http);
    tokens_destroy(service);
    history_clear(service->history);
    free(service->history);
    limit_history_clear(service->limit_history);
    free(service->limit_history);
    free(service->longest_hold);
    free(service->warnings);
    doorman_server_destroy(service->server);
    doorman_config_destroy(service->config);
    free(service->children);
    doorman_buffer_uninit(&wire.output);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const size_t sizes[] = {1, 7, 100, 100000};
    if (!bytes) return 0;
    struct settings settings = {.http = "", .log_level = LEVEL_ERROR, .message_max = 2000};
    struct service *service = (struct service *)calloc(1, sizeof *service);
    must(service != NULL);
    service->settings = &settings;
    start(service, data[0] & 4);
    wire.input = (fuzz_text){(const char *)data + 1, bytes - 1};
    struct http_connection *connection = http_open_connection(service->http, NULL);
    server_connection_receive(connection);
    for (int i = 0; i < STEPS && connection->state != CONNECTION_FREE; i++) {
        must(wire.waits);
        if (service->http->queue && (!(data[0] & 8) || i % 2)) {
            make_response(service->http);
        } else if (connection->state == CONNECTION_CLOSING ||
                   (connection->state == CONNECTION_DELAYED &&
                    (wire.sleeps || !wire.input.bytes || i % 4 == 0))) {
            end_delay(connection);
        } else {
            move_bytes(sizes[data[0] & 3]);
        }
        server_connection_step(connection);
    }
    wire.waits = false;
    check_output();
    stop(service);
    free(service);
    return 0;
}
