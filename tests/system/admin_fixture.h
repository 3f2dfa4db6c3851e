/* Helpers shared by the tests of administration with a file or a Redis as the store. Before a
 * program includes this file, it defines TOKENS (the text of a file of tokens) and API (a
 * configuration). */
#ifndef DOORMAN_TESTS_ADMIN_FIXTURE_H
#define DOORMAN_TESTS_ADMIN_FIXTURE_H

#include "redis_fixture.h"
#include "state_fixture.h"

/* A store, and the flags of a server that uses it. */
struct place {
    struct redis redis;
    char path[96], tokens[96];
    const char *flags[10];
};

static inline void place_init(struct place *place, bool is_redis) {
    const char *address = place->path;
    state_path(place->path);
    snprintf(place->tokens, sizeof place->tokens, "%s/tokens", process_new()->folder);
    file_write(place->tokens, TOKENS);
    if (is_redis) {
        redis_require(&place->redis);
        address = place->redis.address;
    }
    const char *flags[] = {"--state", address, "--node", "n", "--http-token", place->tokens};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) place->flags[i] = flags[i];
}

static inline struct fixture place_start(const struct place *place) {
    struct fixture fixture = fixture_start(API, place->flags);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    return fixture;
}

static inline void place_restart(const struct place *place, struct fixture *fixture) {
    kill_now(fixture);
    *fixture = place_start(place);
}

/* Defines two tests with the same body. The store is a file in the first test, and a Redis in the
 * second test. */
#define STORY(name)                                                                                \
    static void name##_told(struct place *place);                                                  \
    TEST(name) {                                                                                   \
        struct place place = {.path = ""};                                                         \
        place_init(&place, false);                                                                 \
        name##_told(&place);                                                                       \
    }                                                                                              \
    TEST(name##_in_a_redis) {                                                                      \
        struct place place = {.path = ""};                                                         \
        place_init(&place, true);                                                                  \
        name##_told(&place);                                                                       \
    }                                                                                              \
    static void name##_told(struct place *place)

#endif
