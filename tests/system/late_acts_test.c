/* Acts of administration at a store that fails, or answers too late (E5, E7): what the response
 * says, what is in force afterwards, and what the audit says of the act. The tests use real servers
 * with a file or a Redis. */
#define _GNU_SOURCE
#include <sys/resource.h>

#define ADMIN HOST JSON BEARER("top-1")
#define TOKENS "admin ann top-1\n"
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000, \"plans\": {\"pro\": "        \
    "{\"limit\": 40}, \"free\": {\"limit\": 2}}}, {\"name\": \"burst\", \"kind\": "                \
    "\"TOKEN_BUCKET\", \"rate\": 0.000001, "                                                       \
    "\"size\": 9}, {\"name\": \"all\", \"kind\": \"FIXED_WINDOW\", \"per\": \"template\", "        \
    "\"limit\": 900, \"window\": 10000000}]}]}"

#include "admin_fixture.h"

#define STORE_NOTES_MAX 64 /* notes of one call, as in server/store/store.h */

#define WHY ", \"reason\": \"ticket 4711\"}"
#define SET(key)                                                                                   \
    "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"" key                         \
    "\", \"set\": {\"limit\": 50}" WHY
#define END(key) "/v1/overrides?resource=api/search&limit=quota&reason=done&key=" key
#define BAN(key)                                                                                   \
    "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"" key "\", \"ban\": 600}]}"
#define LATE "it is not known whether this was done; look at /v1/audit when the store answers again"

static void act(const struct fixture *fixture, const char *verb, const char *path, const char *body,
                int code, const char *text) {
    expect_verb(fixture, verb, path, ADMIN, body, code, text);
}

static bool has(const struct fixture *fixture, const char *path, const char *text) {
    char *response = get(fixture, path, ADMIN);
    const bool does = code_of(response) == 200 && strstr(response, text);
    free(response);
    return does;
}

/* Returns whether the state of a key has a text. */
static bool inspect_has(const struct fixture *fixture, const char *key, const char *text) {
    char body[128];
    snprintf(body, sizeof body, "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"%s\"}]}",
             key);
    char *response = post(fixture, "/v1/inspect", ADMIN, body);
    const bool does = strstr(response, text) != NULL;
    free(response);
    return does;
}

/* Sends a request. Returns true if the store was asked to write the act, but has not answered, and
 * false if nothing was changed. */
static bool act_is_late(const struct fixture *fixture, const char *verb, const char *path,
                        const char *body) {
    char request[1024];
    snprintf(request, sizeof request,
             "%s %s HTTP/1.1\r\n" ADMIN "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", verb,
             path, strlen(body), body);
    char *response = exchange(fixture, request);
    const bool is_late = strstr(response, LATE) != NULL;
    if (code_of(response) != 503) fail_msg("%s", response);
    if (!is_late) assert_non_null(strstr(response, "nothing was changed"));
    free(response);
    return is_late;
}

/* Sends a request while the Redis hangs. When the server has answered, the Redis continues, and
 * executes what the server has sent it. If the server was already waiting for the Redis, for
 * example in its test whether it can write, it has not sent the act. In that case the request is
 * sent again. */
static void act_late(const struct fixture *fixture, const struct place *place, const char *verb,
                     const char *path, const char *body) {
    for (bool is_late = false; !is_late;) {
        EVENTUALLY(has(fixture, "/v1/audit", ""));
        sleep_ms(200);
        process_signal(place->redis.process, SIGSTOP);
        is_late = act_is_late(fixture, verb, path, body);
        process_signal(place->redis.process, SIGCONT);
    }
}

/* Starts a server that writes counters only every 60 s, so that it sends the Redis hardly anything
 * except acts. */
static struct fixture redis_place_start(struct place *place) {
    place_init(place, true);
    place->flags[6] = "--state-interval";
    place->flags[7] = "60";
    return place_start(place);
}

/* ---- a Redis that answers too late ---------------------------------------------------------- */

/* E1: the list, the decisions and the next process all have the override. */
TEST(an_override_that_a_redis_takes_late_comes_into_force) {
    struct place place = {.path = ""};
    struct fixture fixture = redis_place_start(&place);
    act_late(&fixture, &place, "PUT", "/v1/overrides", SET("acme"));
    EVENTUALLY(inspect_has(&fixture, "acme", "\"limit\":50"));
    assert_true(has(&fixture, "/v1/overrides", "\"key\":\"acme\""));
    assert_true(has(&fixture, "/v1/audit", "\"key\":\"acme\""));
    place_restart(&place, &fixture);
    assert_true(inspect_has(&fixture, "acme", "\"limit\":50"));
    server_stop(&fixture.server);
}

TEST(an_end_of_an_override_that_a_redis_takes_late_ends_it) {
    struct place place = {.path = ""};
    struct fixture fixture = redis_place_start(&place);
    act(&fixture, "PUT", "/v1/overrides", SET("acme"), 200, "");
    act(&fixture, "PUT", "/v1/overrides", SET("globex"), 200, "");
    act_late(&fixture, &place, "DELETE", END("acme"), "");
    EVENTUALLY(!inspect_has(&fixture, "acme", "\"limit\":50"));
    process_await(fixture.server.process, "that an act has removed it\" override=1\n", 1);
    assert_true(has(&fixture, "/v1/audit?limit=1", "\"what\":\"end_override\""));
    assert_true(inspect_has(&fixture, "globex", "\"limit\":50"));
    act(&fixture, "DELETE", END("acme"), "", 404, "there is no such override");
    place_restart(&place, &fixture);
    assert_false(inspect_has(&fixture, "acme", "\"limit\":50"));
    assert_true(inspect_has(&fixture, "globex", "\"limit\":50"));
    server_stop(&fixture.server);
}

/* E2: a plan ends too if the Redis takes its end late. The log has the id of the plan, which is
 * computed from the id of the act that gave the plan. */
TEST(an_end_of_a_plan_that_a_redis_takes_late_ends_it) {
    struct place place = {.path = ""};
    struct fixture fixture = redis_place_start(&place);
    act(&fixture, "PUT", "/v1/plans",
        "{\"plans\": [{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\"}, {\"glob\": "
        "\"api/*\", \"key\": \"globex\", \"plan\": \"pro\"}]" WHY,
        200, "");
    act_late(&fixture, &place, "DELETE", "/v1/plans?glob=api/*&key=acme&reason=done", "");
    EVENTUALLY(!inspect_has(&fixture, "acme", "\"limit\":40"));
    process_await(fixture.server.process, "that an act has removed it\" plan=16384\n", 1);
    assert_true(inspect_has(&fixture, "globex", "\"limit\":40"));
    place_restart(&place, &fixture);
    assert_false(inspect_has(&fixture, "acme", "\"limit\":40"));
    assert_true(inspect_has(&fixture, "globex", "\"limit\":40"));
    server_stop(&fixture.server);
}

/* E1: a bucket gets the units of an override that the Redis takes late. */
TEST(units_that_a_redis_takes_late_are_added_once) {
    static const char adds[] = "{\"resource\": \"api/search\", \"limit\": \"burst\", \"key\": "
                               "\"acme\", \"add\": 7, \"expires_in\": 86400" WHY;
    struct place place = {.path = ""};
    struct fixture fixture = redis_place_start(&place);
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=5", ADMIN, 200, "");
    act_late(&fixture, &place, "PUT", "/v1/overrides", adds);
    EVENTUALLY(inspect_has(&fixture, "acme", "\"limit\":16,\"used\":"));
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=12", ADMIN, 429, "");
    server_stop(&fixture.server);
}

/* E5: if the Redis takes the act too late, the ban does not come into force, and the audit marks
 * the act as not known. */
TEST(a_ban_that_a_redis_takes_late_is_not_known_in_the_audit) {
    struct place place = {.path = ""};
    struct fixture fixture = redis_place_start(&place);
    do {
        EVENTUALLY(has(&fixture, "/v1/audit", ""));
        sleep_ms(200);
        process_signal(place.redis.process, SIGSTOP);
        act(&fixture, "POST", "/v1/reset", BAN("acme"), 503, "nothing was changed, because");
        process_signal(place.redis.process, SIGCONT);
        EVENTUALLY(has(&fixture, "/v1/audit", ""));
    } while (!has(&fixture, "/v1/audit", "\"ban\":600"));
    assert_true(has(&fixture, "/v1/audit", "\"known\":false}\n"));
    assert_false(inspect_has(&fixture, "acme", "BANNED"));
    act(&fixture, "POST", "/v1/reset", BAN("acme"), 200, "\"count\":1");
    assert_false(has(&fixture, "/v1/audit?limit=1", "\"known\":false"));
    assert_true(inspect_has(&fixture, "acme", "BANNED"));
    act(&fixture, "POST", "/v1/audit/2/undo?reason=mistake", "", 200, "{\"id\": 3}\n");
    assert_false(has(&fixture, "/v1/audit?limit=1", "\"known\":false"));
    assert_false(inspect_has(&fixture, "acme", "BANNED"));
    server_stop(&fixture.server);
}

/* ---- a store that fails in a list ----------------------------------------------------------- */

#define MANY 3000

/* Gives a plan to many keys. Returns the response, which the caller frees. */
static char *put_many(const struct fixture *fixture, const char *plan) {
    const size_t room = MANY * 80;
    char *body = (char *)malloc(room), *request = (char *)malloc(room + 512);
    size_t used = (size_t)snprintf(body, room, "{\"reason\": \"all\", \"plans\": [");
    for (int i = 0; i < MANY; i++) {
        used += (size_t)snprintf(body + used, room - used,
                                 "%s{\"glob\": \"api/*\", \"key\": \"k%d\", \"plan\": \"%s\"}",
                                 i ? ", " : "", i, plan);
    }
    used += (size_t)snprintf(body + used, room - used, "]}");
    snprintf(request, room + 512,
             "PUT /v1/plans HTTP/1.1\r\n" ADMIN
             "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
             used, body);
    char *response = exchange(fixture, request);
    free(body);
    free(request);
    return response;
}

/* Gives a plan to many keys while the file cannot grow beyond a bound. Raises the bound until a
 * part of the keys has the plan. Returns the number of these keys. */
static long put_part(const struct fixture *fixture, const char *plan) {
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    const pid_t pid = fixture->server.process->pid;
    long done = 0;
    for (rlim_t most = 65536; done == 0; most += most / 8) {
        const struct rlimit room = {most, RLIM_INFINITY};
        assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &room, NULL), 0);
        char *response = put_many(fixture, plan);
        const char *first = strstr(response, "only the first ");
        if (code_of(response) != 503) fail_msg("%.2000s", response);
        if (!first) assert_non_null(strstr(response, "nothing was changed, because"));
        if (first) done = strtol(first + strlen("only the first "), NULL, 10);
        free(response);
    }
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &all, NULL), 0);
    return done;
}

static void expect_plan(const struct fixture *fixture, long index, const char *limit) {
    char key[24];
    snprintf(key, sizeof key, "k%ld", index);
    if (!inspect_has(fixture, key, limit)) fail_msg("%s has not %s", key, limit);
}

/* E2: each row is written whole or not at all, and the answer and the audit say how many rows were
 * written. A row that replaces another one takes two notes in the store. */
TEST(a_list_that_a_store_takes_in_part_is_whole_in_each_row) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    char *response = put_many(&fixture, "free"), text[96];
    assert_int_equal(code_of(response), 200);
    free(response);
    const long done = put_part(&fixture, "pro");
    assert_true(done < MANY);
    for (int i = 0; i < 2; i++) {
        expect_plan(&fixture, 0, "\"limit\":40");
        expect_plan(&fixture, done - 1, "\"limit\":40");
        expect_plan(&fixture, done, "\"limit\":2,");
        expect_plan(&fixture, MANY - 1, "\"limit\":2,");
        snprintf(text, sizeof text, "\"written\":%d", (STORE_NOTES_MAX - 1) / 2);
        EVENTUALLY(has(&fixture, "/v1/audit?limit=1", text));
        place_restart(&place, &fixture);
    }
    server_stop(&fixture.server);
}

/* ---- what the audit says -------------------------------------------------------------------- */

/* E5: a reset that names no limit resets only counters per key, so the audit has only these. */
TEST(a_reset_has_only_what_it_made_fresh_in_the_audit) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=3", ADMIN, 200, "");
    act(&fixture, "POST", "/v1/reset",
        "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\"}]}", 200, "");
    assert_true(has(&fixture, "/v1/audit", "\"used_before\":{\"quota\":3,\"burst\":3}"));
    act(&fixture, "POST", "/v1/reset",
        "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\", \"limit\": \"all\"}]}",
        200, "");
    assert_true(has(&fixture, "/v1/audit?limit=1", "\"used_before\":{\"all\":3}"));
    server_stop(&fixture.server);
}
