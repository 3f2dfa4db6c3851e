/* Sends any bytes to doorman_server on an HTTP connection. Each response is valid HTTP, and no
 * request adds a line of its own to the head of a response.
 *
 * The first byte says how many bytes are read or written at once, whether there are tokens, and
 * when the thread of pages makes a response. This file replaces the calls of sockets and of epoll,
 * and the loops of the threads. All other code is the server's own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* as in server.h */
#endif
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static ssize_t fuzz_recv(int socket, void *bytes, size_t room, int marks);
static ssize_t fuzz_send(int socket, const void *bytes, size_t count, int marks);
static int fuzz_close(int socket);
static int fuzz_epoll_ctl(int epoll, int operation, int socket, struct epoll_event *event);

#define recv fuzz_recv
#define send fuzz_send
#define close fuzz_close
#define epoll_ctl fuzz_epoll_ctl
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
#include "server/config/changes.c"
#include "server/config/config_text.c"
#include "server/pages/config_check.c"
#include "server/pages/descriptors.c"
#include "server/pages/counters.c"
#include "server/pages/front.c"
#include "server/pages/graph.c"
#include "server/pages/health.c"
#include "server/pages/history.c"
#include "server/util/host.c"
#include "server/util/socket.c"
#include "server/http/decision.c"
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

/* Replaces the socket of the connection. */
static struct {
    fuzz_text input;
    size_t most; /* bytes that one call reads or writes */
    unsigned calls;
    doorman_buffer output;
} wire;

/* Returns true, with EAGAIN in errno, for every fifth call of the socket. */
static bool fuzz_is_full(void) {
    bool full = wire.calls++ % 5 == 4;
    if (full) errno = EAGAIN;
    return full;
}

static ssize_t fuzz_recv(int socket, void *bytes, size_t room, int marks) {
    size_t count = room < wire.most ? room : wire.most;
    (void)socket, (void)marks;
    must(room > 0);
    if (fuzz_is_full()) return -1;
    if (count > wire.input.bytes) count = wire.input.bytes;
    if (count > 0) memcpy(bytes, wire.input.text, count);
    wire.input.text += count;
    wire.input.bytes -= count;
    return (ssize_t)count;
}

/* Makes room for more bytes of output, with realloc, because the library frees the buffer with
 * free. */
static void reserve_output(size_t more) {
    char *text = (char *)realloc(wire.output.text, wire.output.bytes + more);
    must(text != NULL);
    wire.output.text = text;
}

static ssize_t fuzz_send(int socket, const void *bytes, size_t count, int marks) {
    (void)socket, (void)marks;
    must(count > 0);
    if (fuzz_is_full()) return -1;
    if (count > wire.most) count = wire.most;
    reserve_output(count);
    memcpy(wire.output.text + wire.output.bytes, bytes, count);
    wire.output.bytes += count;
    return (ssize_t)count;
}

static int fuzz_close(int socket) {
    (void)socket;
    return 0;
}

static int fuzz_epoll_ctl(int epoll, int operation, int socket, struct epoll_event *event) {
    (void)epoll, (void)operation, (void)socket, (void)event;
    return 0;
}

/* Does what the thread of pages does for a request in the queue. */
static void make_response(struct http *http) {
    server_lock(&http->lock);
    http_make_response(http);
    server_unlock(&http->lock);
}

/* Returns whether a line in the head of a response begins like a line that the server writes. */
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

/* Checks one response. Returns its end. Returns NULL if the response is not complete, or is the
 * last response and has no body. The server itself never writes "<zz". If a page has it, an id or a
 * part of a query was not escaped. */
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

/* Makes leases. Some ids of holders and resources must be escaped wherever they are shown. */
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
    service->http->service = service;
    service->http->wake = -1;
    service->http->evict_at = DOORMAN_NEVER;
    service->http->connections[0].service = service;
    service->http->free = &service->http->connections[0];
    service->http->limit = HTTP_CONNECTION_MAX;
}

static void stop(struct service *service) {
    if (service->http->connections[0].state != CONNECTION_FREE) {
        server_connection_close(&service->http->connections[0]);
    }
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

/* Does one step of the loop, or one of another thread.
 *   lazy   the thread of pages makes a response only in every second step */
static void step(struct http *http, struct http_connection *connection, int i, bool lazy) {
    bool ends = connection->state == CONNECTION_DELAYED &&
                (!connection->receives || !wire.input.bytes || i % 4 == 0);
    if (http->queue && (!lazy || i % 2)) {
        make_response(http);
    } else if (http->answered) {
        server_http_take_answers(http);
    } else if (ends) {
        connection->deadline = doorman_clock();
        server_connection_expire(connection);
    } else if (connection->events) {
        server_connection_step(connection);
    } else {
        must(http->queue != NULL);
    }
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
    wire.most = sizes[data[0] & 3];
    wire.calls = 0;
    struct http_connection *connection = http_open_connection(service->http, -1, NULL);
    server_connection_step(connection);
    for (int i = 0; i < STEPS && connection->state != CONNECTION_FREE; i++) {
        step(service->http, connection, i, data[0] & 8);
    }
    check_output();
    stop(service);
    free(service);
    return 0;
}
