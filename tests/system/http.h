/* Helpers shared by the tests of the server over HTTP. Requests are written by hand, byte for
 * byte. */
#ifndef DOORMAN_TESTS_HTTP_H
#define DOORMAN_TESTS_HTTP_H

#include "harness.h"

#define CONFIG(capacity, more)                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": " capacity ", \"algorithm\": "    \
    "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 60, \"refresh_interval\": 5, "                   \
    "\"learning_mode_duration\": 0}}]" more "}"
#define CAPACITY_REQUEST(client, resource, wants)                                                  \
    "{\"client_id\": \"" client "\", \"resource\": [{\"resource_id\": \"" resource                 \
    "\", \"wants\": " wants "}]}"
#define HOST "Host: localhost\r\n"
#define BEARER(token) "Authorization: Bearer " token "\r\n"
#define JSON "Content-Type: application/json\r\n"

/* A server. `server` has its address for nng, and `http` has its address for HTTP. */
struct fixture {
    struct server server, http;
};

static inline struct fixture fixture_start(const char *config, const char *const *more) {
    const char *arguments[ARGUMENT_MAX] = {"--http", "127.0.0.1:0"};
    for (size_t i = 0; more && more[i]; i++) arguments[i + 2] = more[i];
    struct fixture fixture = {.server = server_start(config, arguments)};
    char *log_text = file_read(fixture.server.process->err);
    unsigned port = 0;
    const char *at = strstr(log_text, " http=");
    assert_non_null(at);
    assert_int_equal(sscanf(strchr(at, '/'), "//127.0.0.1:%u", &port), 1);
    fixture.http.process = fixture.server.process;
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    return fixture;
}

/* Starts a node with a parent. */
static inline struct fixture leaf_start(const char *parent) {
    struct fixture leaf = {.server = {process_new(), ""}};
    process_start(leaf.server.process,
                  (const char *[]){"--parent", parent, "--node", "leaf", "--listen",
                                   "tcp://127.0.0.1:0", "--http", "127.0.0.1:0", NULL},
                  NULL);
    process_await(leaf.server.process, " http=http", 1);
    char *log_text = file_read(leaf.server.process->err);
    unsigned port = 0;
    assert_int_equal(sscanf(strstr(log_text, " http="), " http=http://127.0.0.1:%u", &port), 1);
    snprintf(leaf.http.url, sizeof leaf.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    leaf.http.process = leaf.server.process;
    return leaf;
}

/* Reads a connection until the peer closes it, and closes `fd`. Returns the bytes as text, which
 * the caller frees. */
static inline char *drain(int fd) {
    size_t bytes = 0, capacity = (size_t)64 << 10;
    char *text = (char *)malloc(capacity);
    assert_non_null(text);
    for (ssize_t got = 1; got > 0;) {
        got = recv(fd, text + bytes, capacity - bytes - 1, 0);
        if (got > 0) bytes += (size_t)got;
        if (bytes + 1 < capacity) continue;
        assert_true(capacity < (size_t)8 << 20);
        capacity *= 2;
        text = (char *)realloc(text, capacity);
        assert_non_null(text);
    }
    text[bytes] = 0;
    close(fd);
    return text;
}

static inline char *exchange(const struct fixture *fixture, const char *request) {
    int fd = raw_connect(&fixture->http);
    raw_send(fd, request, strlen(request));
    return drain(fd);
}

/* Sends a GET. Returns the whole response, head and body; the caller frees it. */
static inline char *get(const struct fixture *fixture, const char *path, const char *lines) {
    char request[16384];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n", path,
             lines);
    return exchange(fixture, request);
}

static inline char *post(const struct fixture *fixture, const char *path, const char *lines,
                         const char *body) {
    size_t room = strlen(body) + 1024;
    char *request = (char *)malloc(room);
    assert_non_null(request);
    snprintf(request, room,
             "POST %s HTTP/1.1\r\n%sContent-Length: %zu\r\nConnection: close\r\n\r\n%s", path,
             lines, strlen(body), body);
    char *response = exchange(fixture, request);
    free(request);
    return response;
}

static inline int code_of(const char *response) {
    int code = 0;
    sscanf(response, "HTTP/1.1 %d", &code);
    return code;
}

static inline const char *body_of(const char *response) {
    const char *end = strstr(response, "\r\n\r\n");
    assert_non_null(end);
    return end + 4;
}

/* Fails unless the response to a GET has this status code and contains this text. */
static inline void expect(const struct fixture *fixture, const char *path, const char *lines,
                          int code, const char *text) {
    char *response = get(fixture, path, lines);
    if (code_of(response) != code || !strstr(response, text)) {
        fail_msg("%s: expected %d and '%s', got:\n%.4000s", path, code, text, response);
    }
    free(response);
}

static inline void expect_post(const struct fixture *fixture, const char *path, const char *lines,
                               const char *body, int code, const char *text) {
    char *response = post(fixture, path, lines, body);
    if (code_of(response) != code || !strstr(response, text)) {
        fail_msg("%s: expected %d and '%s', got:\n%.2000s", path, code, text, response);
    }
    free(response);
}

/* Sends a request with any verb and a body of any length, and expects a status and a text. */
static inline void expect_verb(const struct fixture *fixture, const char *verb, const char *path,
                               const char *lines, const char *body, int code, const char *text) {
    const size_t room = strlen(path) + strlen(lines) + strlen(body) + 256;
    char *request = (char *)malloc(room);
    assert_non_null(request);
    snprintf(request, room,
             "%s %s HTTP/1.1\r\n%sContent-Length: %zu\r\nConnection: close\r\n\r\n%s", verb, path,
             lines, strlen(body), body);
    char *response = exchange(fixture, request);
    if (code_of(response) != code || !strstr(response, text)) {
        fail_msg("%s %s %.300s: expected %d and '%s', got:\n%.2000s", verb, path, body, code, text,
                 response);
    }
    free(response);
    free(request);
}

static inline void request_capacity(const struct fixture *fixture, const char *body) {
    expect_post(fixture, "/v1/get_capacity", HOST JSON, body, 200, "\"response\"");
}

/* Returns the value of one series. Fails if there is no such series. */
static inline double metric(const struct fixture *fixture, const char *series) {
    char *response = get(fixture, "/metrics", HOST);
    char line[256];
    snprintf(line, sizeof line, "\n%s ", series);
    const char *at = strstr(response, line);
    if (!at) fail_msg("there is no series %s", series);
    double value = strtod(at + strlen(line), NULL);
    free(response);
    return value;
}

/* Starts a server, which must exit with this code and write this text to standard error. */
static inline void expect_refusal(const char *const *more, int code, const char *text) {
    struct process *process = process_new();
    const char *arguments[ARGUMENT_MAX] = {"--config", process->config, "--listen",
                                           "tcp://127.0.0.1:0"};
    for (size_t i = 0; more[i]; i++) arguments[i + 4] = more[i];
    file_write(process->config, CONFIG("100", ""));
    assert_int_equal(process_run(process, arguments, NULL), code);
    char *log_text = file_read(process->err);
    if (!strstr(log_text, text)) fail_msg("expected '%s', got '%s'", text, log_text);
    free(log_text);
}

static inline void require_program(const char *program) {
    char command[128];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
    require(system(command) == 0, program);
}

#endif
