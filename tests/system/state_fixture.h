/* Helpers shared by the tests of servers with --state. */
#ifndef DOORMAN_TESTS_STATE_FIXTURE_H
#define DOORMAN_TESTS_STATE_FIXTURE_H

#include "http.h"

#define LIMIT(name, more)                                                                          \
    "{\"name\": \"" name "\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000000, "                    \
    "\"window\": 100000000" more "}"
#define MAPS(limits) "{\"resources\": [{\"identifier_glob\": \"maps\", \"limits\": [" limits "]}]}"
#define QUOTA MAPS(LIMIT("quota", ""))
#define MOST 1000000
#ifndef LINES
#define LINES HOST /* the header lines of each request; a test may define its own, with a token */
#endif
#define SECOND INT64_C(1000000000) /* times are in nanoseconds */

/* Returns the path of a file of counters, in a folder of its own. */
static inline void state_path(char path[96]) {
    snprintf(path, 96, "%s/state", process_new()->folder);
}

/* Starts a server, and waits until it has read its store. */
static inline struct fixture start(const char *config, const char *path, const char *const *more) {
    const char *arguments[ARGUMENT_MAX] = {"--state", path};
    for (size_t i = 0; more && more[i]; i++) arguments[i + 2] = more[i];
    struct fixture fixture = fixture_start(config, arguments);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    return fixture;
}

static inline void kill_now(struct fixture *fixture) {
    process_signal(fixture->server.process, SIGKILL);
    assert_int_equal(process_wait(fixture->server.process), 128 + SIGKILL);
}

/* Takes units of a key, which must be granted. */
static inline void take(const struct fixture *fixture, const char *key, int cost) {
    char path[512];
    snprintf(path, sizeof path, "/v1/allow?resource=maps&key=%s&cost=%d", key, cost);
    expect(fixture, path, LINES, 200, "\"decision\":\"GRANTED\"");
}

/* Returns how many units a key has used. */
static inline long used(const struct fixture *fixture, const char *key) {
    char path[512];
    snprintf(path, sizeof path, "/v1/allow?resource=maps&key=%s&cost=0", key);
    char *response = get(fixture, path, LINES), *at = strstr(response, "\"remaining\":");
    if (code_of(response) != 200 || !at) fail_msg("%s: %s", path, response);
    long left = strtol(at + strlen("\"remaining\":"), NULL, 10);
    free(response);
    return MOST - left;
}

static inline double status_number(const struct fixture *fixture, const char *path) {
    char *response = get(fixture, "/v1/status", LINES);
    cJSON *tree = cJSON_Parse(body_of(response));
    double value = number(tree, path);
    cJSON_Delete(tree);
    free(response);
    return value;
}

/* Waits until the store has all changes that were made before this call. */
static inline void await_written(const struct fixture *fixture) {
    EVENTUALLY(status_number(fixture, "state.age") <= 0);
}

static inline int rounds(const char *variable, int usual) {
    const char *value = getenv(variable);
    return value && *value ? atoi(value) : usual;
}

static inline int64_t clock_read(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* Asks for a unit of a key over a connection of nng's protocol, and returns whether it was granted.
 *   number, key   the key is NUMBER-KEY */
static inline bool load_ask(int fd, int number, int key) {
    char request[256] = {[8] = (char)0x80, [11] = 1};
    unsigned char head[12], answer[8192];
    int bytes = snprintf(request + 12, sizeof request - 12,
                         "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": "
                         "[{\"resource_id\": \"maps\", \"key\": \"%d-%d\"}]}]}}",
                         number, key);
    request[7] = (char)(bytes + 4);
    uint64_t length = 0;
    if (!send_all(fd, request, (size_t)bytes + 12) || !receive_all(fd, head, 12)) return false;
    for (int i = 0; i < 8; i++) length = length << 8 | head[i];
    if (length < 4 || length - 4 >= sizeof answer) return false;
    if (!receive_all(fd, answer, (size_t)length - 4)) return false;
    answer[length - 4] = 0;
    return strstr((char *)answer, "\"GRANTED\"") != NULL;
}

#endif
