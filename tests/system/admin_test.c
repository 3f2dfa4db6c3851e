/* Administration (E5): who may change what for whom, what the audit says about a change, and what
 * happens if the audit cannot be written. The servers are real. Each STORY runs with a file as the
 * store, and again with a Redis if redis-server is installed. */
#define _GNU_SOURCE
#include <sys/resource.h>

#define ADMIN HOST JSON BEARER("top-1")
#define ALICE HOST JSON BEARER("alice-2")
#define BOB HOST JSON BEARER("bob-3")
#define READER HOST JSON BEARER("read-4")
#define TOKENS                                                                                     \
    "admin ann top-1\nsupport alice alice-2 api/* login\nsupport bob bob-3 maps\n"                 \
    "read ron read-4\nwrite web web-5\n"
#define WEB HOST JSON BEARER("web-5")
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000}, {\"name\": \"burst\", "      \
    "\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 9, \"durable\": false}]}]}"

#define LINES READER
#include "admin_fixture.h"

#define ENTRY(more) "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\"" more "}]}"

static void take_one(const struct fixture *fixture, const char *key, int code) {
    char path[128];
    snprintf(path, sizeof path, "/v1/allow?resource=api/search&key=%s", key);
    expect(fixture, path, WEB, code, "");
}

/* Returns the rows of the audit that a query yields, the newest first. */
static cJSON *audit(const struct fixture *fixture, const char *query) {
    char path[256], *at = NULL;
    snprintf(path, sizeof path, "/v1/audit%s", query);
    char *response = get(fixture, path, ADMIN);
    if (code_of(response) != 200) fail_msg("%s: %s", path, response);
    cJSON *rows = cJSON_CreateArray();
    for (char *line = strtok_r((char *)(uintptr_t)body_of(response), "\n", &at); line;
         line = strtok_r(NULL, "\n", &at)) {
        cJSON *row = cJSON_Parse(line);
        if (!row) fail_msg("not JSON: %s", line);
        cJSON_AddItemToArray(rows, row);
    }
    free(response);
    return rows;
}

/* Expects the newest act that a query yields to have these values: pairs of a path and a text. */
static void expect_act(const struct fixture *fixture, const char *query,
                       const char *const (*pairs)[2], size_t count) {
    cJSON *rows = audit(fixture, query);
    const cJSON *row = cJSON_GetArrayItem(rows, 0);
    if (!row) fail_msg("%s: no act", query);
    for (size_t i = 0; i < count; i++) {
        const cJSON *value = find(row, pairs[i][0]);
        char *printed = value ? cJSON_PrintUnformatted(value) : NULL;
        if (!printed || strcmp(printed, pairs[i][1]) != 0) {
            fail_msg("%s: expected %s, got %s", pairs[i][0], pairs[i][1], printed);
        }
        cJSON_free(printed);
    }
    cJSON_Delete(rows);
}

#define EXPECT_ACT(fixture, query, ...)                                                            \
    do {                                                                                           \
        static const char *const pairs_[][2] = {__VA_ARGS__};                                      \
        expect_act(fixture, query, pairs_, sizeof pairs_ / sizeof *pairs_);                        \
    } while (0)

/* Returns the response to a GET of a reader. It is valid until the next call. */
static const char *get_body(const struct fixture *fixture, const char *path) {
    static char body[8192];
    char *response = get(fixture, path, READER);
    snprintf(body, sizeof body, "%s", response);
    free(response);
    return body;
}

/* ---- the audit ------------------------------------------------------------------------------ */

/* E5: the audit says who did what and why, and what the value was before. It still does after the
 * process was killed. */
STORY(a_reset_is_in_the_audit_and_stays_there) {
    struct fixture fixture = place_start(place);
    for (int i = 0; i < 3; i++) take_one(&fixture, "acme", 200);
    expect_post(&fixture, "/v1/reset?reason=ticket%204711", ALICE, ENTRY(", \"limit\": \"quota\""),
                200, "\"count\":1");
    for (int i = 0; i < 2; i++) {
        EXPECT_ACT(&fixture, "", {"id", "1"}, {"token", "\"alice\""}, {"role", "\"support\""},
                   {"what", "\"reset\""}, {"reason", "\"ticket 4711\""},
                   {"entries[0].resource_id", "\"api/search\""}, {"entries[0].key", "\"acme\""},
                   {"entries[0].limit", "\"quota\""}, {"entries[0].used_before.quota", "3"});
        if (i == 0) kill_now(&fixture);
        if (i == 0) fixture = place_start(place);
    }
    expect(&fixture, "/metrics", ADMIN, 200,
           "doorman_administration_acts_total{what=\"reset\"} 0\n");
    expect_post(&fixture, "/v1/reset", ADMIN, ENTRY(", \"ban\": 60"), 200, "\"count\":1");
    expect(&fixture, "/metrics", ADMIN, 200, "doorman_administration_acts_total{what=\"ban\"} 1\n");
    process_await(fixture.server.process,
                  "msg=\"an act of administration\" what=ban token=ann audit=2\n", 1);
    expect_post(&fixture, "/v1/reset", ADMIN, ENTRY(", \"ban\": 0"), 200, "\"count\":1");
    EXPECT_ACT(&fixture, "", {"id", "3"}, {"what", "\"end_ban\""}, {"entries[0].ban", "0"});
    server_stop(&fixture.server);
}

/* A page continues after the last act of the page before. */
STORY(the_audit_is_listed_by_key_token_and_page) {
    struct fixture fixture = place_start(place);
    for (int i = 0; i < 7; i++) {
        expect_post(&fixture, "/v1/reset", i % 2 ? ALICE : ADMIN,
                    i < 4 ? ENTRY("")
                          : "{\"entry\": [{\"resource_id\": \"api/a\", \"key\": \"b\"}]}",
                    200, "");
    }
    cJSON *rows = audit(&fixture, "?key=acme");
    assert_int_equal(cJSON_GetArraySize(rows), 4);
    cJSON_Delete(rows);
    rows = audit(&fixture, "?who=alice&key=b");
    assert_int_equal(cJSON_GetArraySize(rows), 1);
    assert_true(number(cJSON_GetArrayItem(rows, 0), "id") == 6);
    cJSON_Delete(rows);
    rows = audit(&fixture, "?limit=3");
    assert_int_equal(cJSON_GetArraySize(rows), 4);
    assert_string_equal(text(cJSON_GetArrayItem(rows, 3), "next"), "5");
    cJSON_Delete(rows);
    rows = audit(&fixture, "?limit=4&after=5");
    assert_int_equal(cJSON_GetArraySize(rows), 4);
    assert_true(number(cJSON_GetArrayItem(rows, 0), "id") == 4);
    assert_true(number(cJSON_GetArrayItem(rows, 3), "id") == 1);
    cJSON_Delete(rows);
    server_stop(&fixture.server);
}

TEST(wrong_questions_to_the_audit_are_refused) {
    static const char *const cases[][2] = {
        {"?whom=alice", "whom: is no parameter; the parameters are key, who, after, limit"},
        {"?who=a&who=b", "who: occurs twice"},
        {"?limit=0", "limit: must be a number from 1 to 1000"},
        {"?limit=1001", "limit: must be a number from 1 to 1000"},
        {"?after=x", "after: must be an id of the list"},
        {"?after=0", "after: must be an id of the list"}};
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[96];
        snprintf(path, sizeof path, "/v1/audit%s", cases[i][0]);
        expect(&fixture, path, ADMIN, 400, cases[i][1]);
    }
    expect(&fixture, "/v1/audit", ALICE, 200, "");
    expect(&fixture, "/v1/audit", READER, 403, "needs a token with the role support; 'ron'");
    expect(&fixture, "/v1/audit", HOST, 401, "");
    expect_post(&fixture, "/v1/audit", ADMIN, "{}", 405, "Allow: GET, HEAD");
    server_stop(&fixture.server);
}

/* E7 */
TEST(without_a_store_the_missing_flag_is_named) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture =
        fixture_start(API, (const char *[]){"--http-token", place.tokens, NULL});
    expect(&fixture, "/v1/audit", ADMIN, 404, "start it with --state");
    expect_post(&fixture, "/v1/reset", ADMIN, ENTRY(", \"ban\": 9"), 200, "\"count\":1");
    server_stop(&fixture.server);
    fixture = fixture_start(API, (const char *[]){"--state", place.path, NULL});
    expect(&fixture, "/v1/audit", HOST, 403, "needs a server with --http-token");
    server_stop(&fixture.server);
}

/* E6: without a bound on resets, the role support could lift a limit by endless resets of the
 * key. */
STORY(the_role_support_resets_a_key_twenty_times_a_day) {
    struct fixture fixture = place_start(place);
    for (int i = 0; i < 20; i++) expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 200, "");
    expect_post(
        &fixture, "/v1/reset", ALICE, ENTRY(""), 403,
        "the role support resets a key at most 20 times a day, and 'acme' of api/search was "
        "reset 20 times");
    kill_now(&fixture);
    fixture = place_start(place);
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 403, "at most 20 times a day");
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(", \"ban\": 5"), 200, "\"count\":1");
    expect_post(&fixture, "/v1/reset", ADMIN, ENTRY(""), 200, "");
    expect_post(&fixture, "/v1/reset", ALICE,
                "{\"entry\": [{\"resource_id\": \"api/other\", \"key\": \"acme\"}]}", 200, "");
    EXPECT_ACT(&fixture, "", {"id", "23"});
    server_stop(&fixture.server);
}

/* E5: an act that cannot be written to the store is not done. */
TEST(a_store_that_is_full_refuses_the_act) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (int i = 0; i < 5; i++) take_one(&fixture, "acme", 200);
    const struct rlimit full = {4096, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
    const pid_t pid = fixture.server.process->pid;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &full, NULL), 0);
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 503,
                "nothing was changed, because the store of --state cannot keep it");
    take_one(&fixture, "acme", 429);
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &room, NULL), 0);
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 200, "\"count\":2");
    EXPECT_ACT(&fixture, "", {"id", "1"}, {"entries[0].used_before.quota", "5"});
    take_one(&fixture, "acme", 200);
    server_stop(&fixture.server);
}

/* A message is refused as a whole, before anything is written to the audit. */
TEST(what_is_refused_is_not_in_the_audit) {
    static const struct {
        const char *lines, *path, *body;
        int code;
    } cases[] = {
        {BOB, "/v1/reset", ENTRY(""), 403},
        {WEB, "/v1/reset", ENTRY(""), 403},
        {ALICE, "/v1/reset", ENTRY(", \"limit\": \"none\""), 400},
        {ALICE, "/v1/reset", ENTRY(", \"ban\": -1"), 400},
        {ALICE, "/v1/reset?reason=%ff", ENTRY(""), 400},
        {ALICE, "/v1/reset", "{}", 400},
        {ALICE, "/v1/reset", "{\"entry\": [{\"resource_id\": \"none\"}]}", 403},
        {ADMIN, "/v1/reset", "{\"entry\": [{\"resource_id\": \"none\"}]}", 400},
    };
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_post(&fixture, cases[i].path, cases[i].lines, cases[i].body, cases[i].code, "");
        cJSON *rows = audit(&fixture, "");
        if (cJSON_GetArraySize(rows) != 0) fail_msg("case %zu is in the audit", i);
        cJSON_Delete(rows);
    }
    server_stop(&fixture.server);
}

/* ---- overrides ------------------------------------------------------------------------------ */

#define SET(figures, more)                                                                         \
    "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": {" figures   \
    "}, \"reason\": \"ticket 4711\"" more "}"

/* E1: support sets an override for two seconds, sees it act, and sees it end. */
STORY(support_raises_a_limit_for_two_seconds) {
    struct fixture fixture = place_start(place);
    for (int i = 0; i < 5; i++) take_one(&fixture, "acme", 200);
    take_one(&fixture, "acme", 429);
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                SET("\"limit\": 50", ", \"expires_in\": 2"), 200, "\"then\":\"then refused until ");
    take_one(&fixture, "acme", 200);
    expect(&fixture, "/v1/overrides", READER, 200, "\"in_force\":true");
    expect(&fixture, "/v1/overrides?key=other", READER, 200, "\r\n\r\n");
    EXPECT_ACT(&fixture, "?key=acme", {"what", "\"override\""}, {"token", "\"alice\""},
               {"reason", "\"ticket 4711\""}, {"resource", "\"api/search\""}, {"before", "null"},
               {"after.set.limit", "50"});
    expect(&fixture, "/v1/allow?resource=api/search&key=other&cost=6", WEB, 429, "");
    EVENTUALLY(!strstr(get_body(&fixture, "/v1/overrides"), "ticket 4711"));
    take_one(&fixture, "acme", 429);
    server_stop(&fixture.server);
}

/* E1: after kill -9 an override still acts, and a person can end it. */
STORY(an_override_outlasts_a_crash_until_it_is_ended) {
    static const char path[] = "/v1/overrides?resource=api/search&limit=quota&key=acme";
    struct fixture fixture = place_start(place);
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                SET("\"limit\": 50", ", \"expires_in\": 86400"), 200, "\"id\":1");
    kill_now(&fixture);
    fixture = place_start(place);
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=0", WEB, 200,
           "\"limit\":\"burst\"");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":50");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"limit\": 60", ""), 200, "\"id\":2");
    EXPECT_ACT(&fixture, "", {"id", "2"}, {"before.set.limit", "50"}, {"after.set.limit", "60"});
    expect(&fixture, "/v1/overrides", READER, 200, "{\"id\":2,\"token\":\"ann\"");
    expect_verb(&fixture, "DELETE", path, BOB, "", 403, "'bob' may only change maps");
    expect_verb(&fixture, "DELETE", path, READER, "", 403, "with the role support");
    expect_verb(&fixture, "DELETE", path, ALICE, "", 200, "\"id\":3");
    expect_verb(&fixture, "DELETE", path, ALICE, "", 404, "there is no such override");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":5");
    kill_now(&fixture);
    fixture = place_start(place);
    EXPECT_ACT(&fixture, "", {"id", "3"}, {"what", "\"end_override\""}, {"before.set.limit", "60"},
               {"after", "null"});
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":5");
    server_stop(&fixture.server);
}

/* E1, E6: an override that is refused changes nothing, and the response says what is wrong. */
TEST(an_override_that_is_wrong_or_not_allowed_is_refused) {
#define DAY ", \"expires_in\": 86400"
    static const struct {
        const char *lines, *body;
        int code;
        const char *text;
    } cases[] = {
        {ALICE, SET("\"limit\": 51", DAY), 403,
         "set.limit: the role support may give at most 10 times the limit as configured, which is "
         "50 here"},
        {ALICE, SET("\"limit\": 50, \"window\": 1000", DAY), 403,
         "set.window: the role support may not change the window of a limit"},
        {ALICE, SET("\"limit\": 5, \"window\": 20000000", DAY), 403,
         "set.window: the role support may not change the window of a limit"},
        {ALICE, SET("\"limit\": 50", ""), 400, "expires_in: the role support must give it"},
        {BOB, SET("\"limit\": 50", DAY), 403, "resource: api/search: 'bob' may only change maps"},
        {READER, SET("\"limit\": 50", DAY), 403, "with the role support; 'ron'"},
        {WEB, SET("\"limit\": 50", DAY), 403, "with the role support; 'web'"},
        {ADMIN, SET("\"limits\": 50", DAY), 400, "set.limits"},
        {ADMIN, SET("\"rate\": 50", DAY), 400, "set.rate"},
        {ADMIN,
         "{\"resource\": \"api/search\", \"limit\": \"none\", \"key\": \"a\", \"set\": "
         "{\"limit\": 1}, \"reason\": \"r\"}",
         404, "none"},
        {ADMIN,
         "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"a\", \"set\": "
         "{\"limit\": 1}}",
         400, "reason: is missing"},
        {ADMIN,
         "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"a\", \"add\": 9, "
         "\"reason\": \"r\"}",
         400, "expires_in: is missing beside add"},
        {ADMIN, "[]", 400, ""},
        {ADMIN, "", 400, ""},
    };
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_verb(&fixture, "PUT", "/v1/overrides", cases[i].lines, cases[i].body, cases[i].code,
                    cases[i].text);
    }
    cJSON *rows = audit(&fixture, "");
    assert_int_equal(cJSON_GetArraySize(rows), 0);
    cJSON_Delete(rows);
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":5");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"limit\": 5000", ""), 200, "");
    expect_verb(&fixture, "PATCH", "/v1/overrides", ADMIN, "{}", 405,
                "Allow: GET, HEAD, PUT, DELETE");
    expect_verb(&fixture, "PUT", "/v1/overrides", HOST BEARER("top-1"), SET("\"limit\": 5", ""),
                415, "");
    server_stop(&fixture.server);
}

/* ---- help must not become a way around the limit (E6) --------------------------------------- */

#define LIMITS                                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"burst\", "        \
    "\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 9, \"overrides\": [{\"keys\": "        \
    "[\"b*\"], \"size\": 60}], \"plans\": {\"pro\": {\"size\": 90}}}, {\"name\": \"all\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"per\": \"resource\", \"limit\": "                               \
    "900, "                                                                                        \
    "\"window\": 10000000}, {\"name\": \"steps\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": "   \
    "9, "                                                                                          \
    "\"window\": 60, \"active\": 600}]}, {\"name\": \"pool\", \"kind\": \"TOKEN_BUCKET\", "        \
    "\"per\": \"resource\", \"rate\": 900, \"size\": 900, \"fair\": true, \"weight\": 2}]}]}"
#define OF_KEY(limit, more)                                                                        \
    "{\"resource\": \"api/search\", \"key\": \"acme\", \"limit\": \"" limit "\", " more            \
    ", \"expires_in\": 3600, \"reason\": \"r\"}"
#define OF_BIG(name, size)                                                                         \
    "{" name ", \"key\": \"big\", \"limit\": \"burst\", \"set\": {\"size\": " size                 \
    "}, \"expires_in\": 3600, \"reason\": \"r\"}"
#define TIER(active)                                                                               \
    "\"set\": {\"tiers\": [{\"limit\": 90, \"window\": 60, \"active\": " active "}]}"

static struct fixture limits_start(struct place *place) {
    place_init(place, false);
    struct fixture fixture = fixture_start(LIMITS, place->flags);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    return fixture;
}

/* Support gives a key at most ten times the weight, because a key with a large weight gets nearly
 * all of a fair limit. */
TEST(the_role_support_gives_a_key_at_most_ten_times_the_weight) {
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                OF_KEY("pool", "\"set\": {\"weight\": 21}"), 403,
                "set.weight: the role support may give at most 10 times the limit as configured, "
                "which is 20 here");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                OF_KEY("pool", "\"set\": {\"weight\": 20}"), 200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN,
                OF_KEY("pool", "\"set\": {\"weight\": 100000}"), 200, "");
    server_stop(&fixture.server);
}

/* By making a bucket small and large again, support could refill it: a small bucket is soon full,
 * and it would still be full when it is large again. */
TEST(the_role_support_makes_no_bucket_smaller) {
    static const char path[] = "/v1/overrides";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("burst", "\"set\": {\"size\": 8}"), 403,
                "set.size: the role support may not make a bucket smaller than it is without the "
                "override, which is 9 here");
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("burst", "\"set\": {\"size\": 20}"), 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("burst", "\"set\": {\"size\": 9}"), 200, "");
    expect_verb(&fixture, "PUT", "/v1/plans", ADMIN,
                "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\", \"reason\": \"r\"}",
                200, "");
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("burst", "\"set\": {\"size\": 89}"), 403,
                "which is 90 here");
    expect_verb(&fixture, "PUT", path, ADMIN, OF_KEY("burst", "\"set\": {\"size\": 8}"), 200, "");
    server_stop(&fixture.server);
}

/* A plan may end while an override without a size is in force. The key would then have the small
 * bucket of the configuration, which would soon be full and stay full when the plan comes back. */
TEST(a_plan_that_ends_makes_no_bucket_smaller_either) {
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", "/v1/plans", ADMIN,
                "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\", "
                "\"expires_in\": 600, \"reason\": \"r\"}",
                200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                OF_KEY("burst", "\"set\": {\"rate\": 0.002}"), 403, "which is 90 here");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                OF_KEY("burst", "\"set\": {\"rate\": 0.002, \"size\": 90}"), 200, "");
    server_stop(&fixture.server);
}

/* The size that the key has without the new override may come from an override in the
 * configuration, or from an override of the template. */
TEST(the_role_support_makes_no_bucket_smaller_than_the_configuration_does) {
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_BIG("\"resource\": \"api/a\"", "20"),
                403, "which is 60 here");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_BIG("\"glob\": \"api/*\"", "20"), 403,
                "which is 60 here");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_BIG("\"glob\": \"api/*\"", "80"), 200,
                "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_BIG("\"resource\": \"api/a\"", "70"),
                403, "which is 80 here");
    server_stop(&fixture.server);
}

/* An override that makes a bucket larger counts as a reset, because the larger bucket is full at
 * once if the key has used nothing. */
TEST(a_larger_bucket_counts_as_a_reset) {
    static const char path[] = "/v1/overrides?resource=api/search&key=acme&limit=burst";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    for (int i = 0; i < 20; i++) {
        expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                    OF_KEY("burst", "\"set\": {\"size\": 90}"), 200, "");
        expect_verb(&fixture, "DELETE", path, ALICE, "", 200, "");
    }
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_KEY("burst", "\"set\": {\"size\": 90}"),
                403, "the role support resets a key at most 20 times a day");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE,
                OF_KEY("burst", "\"set\": {\"rate\": 0.01}"), 200, "");
    server_stop(&fixture.server);
}

/* From the role support, an override that adds units and one that sets a limit together give at
 * most ten times the limit. */
TEST(the_role_support_gives_ten_times_the_limit_in_all) {
#define ADD(units)                                                                                 \
    "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"add\": " units      \
    ", \"expires_in\": 60, \"reason\": \"r\"}"
#define OF_GLOB(limit)                                                                             \
    "{\"glob\": \"api/*\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": {\"limit\": " limit   \
    "}, \"expires_in\": 60, \"reason\": \"r\"}"
    static const char path[] = "/v1/overrides", add[] = "and another override or the plan of ";
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect_verb(&fixture, "PUT", path, ALICE, ADD("51"), 403, "add: the role support may give");
    expect_verb(&fixture, "PUT", path, ALICE, ADD("20"), 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, SET("\"limit\": 31", DAY), 403, add);
    expect_verb(&fixture, "PUT", path, ALICE, OF_GLOB("31"), 403, add);
    expect_verb(&fixture, "PUT", path, ALICE, OF_GLOB("30"), 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, SET("\"limit\": 30", DAY), 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, ADD("21"), 403, add);
    expect_verb(&fixture, "PUT", path, ADMIN, ADD("21"), 200, "");
    server_stop(&fixture.server);
}

TEST(the_role_support_changes_only_the_limits_of_tiers) {
    static const char path[] = "/v1/overrides";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("steps", TIER("6000")), 403,
                "set.tiers: the role support may not change the number of tiers, or their times");
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("steps", "\"set\": {\"tiers\": []}"), 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, OF_KEY("steps", TIER("600")), 200, "");
    expect_verb(&fixture, "PUT", path, ADMIN, OF_KEY("steps", TIER("6000")), 200, "");
    server_stop(&fixture.server);
}

/* Each override that adds units counts as a reset, because it fills the bucket again. */
TEST(the_role_support_adds_to_a_key_and_resets_it_twenty_times_a_day_in_all) {
    static const char path[] = "/v1/overrides?resource=api/search&key=acme&limit=burst&add=1";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 200, "");
    for (int i = 0; i < 19; i++) {
        expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_KEY("burst", "\"add\": 9"), 200,
                    "");
        expect_verb(&fixture, "DELETE", path, ALICE, "", 200, "");
    }
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, OF_KEY("burst", "\"add\": 9"), 403,
                "the role support resets a key at most 20 times a day, and 'acme' of api/search");
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 403, "at most 20 times a day");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, OF_KEY("burst", "\"add\": 9"), 200, "");
    server_stop(&fixture.server);
}

/* The bound of ten times the limit holds for the sum of the added units and what the plan or the
 * configuration gives the key. */
TEST(the_role_support_adds_up_to_ten_times_the_limit_in_all) {
#define ADD_TO(key, units)                                                                         \
    "{\"resource\": \"api/search\", \"key\": \"" key "\", \"limit\": \"burst\", \"add\": " units   \
    ", \"expires_in\": 60, \"reason\": \"r\"}"
    static const char path[] = "/v1/overrides";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect_verb(&fixture, "PUT", path, ALICE, ADD_TO("big", "31"), 403,
                "which is 90 here, and another override or the plan of the key gives 60 of it");
    expect_verb(&fixture, "PUT", path, ALICE, ADD_TO("big", "30"), 200, "");
    expect_verb(&fixture, "PUT", "/v1/plans", ADMIN,
                "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\", \"reason\": \"r\"}",
                200, "");
    expect_verb(&fixture, "PUT", path, ALICE, ADD_TO("acme", "1"), 403, "gives 90 of it");
    expect_verb(&fixture, "PUT", path, ADMIN, ADD_TO("acme", "1"), 200, "");
    server_stop(&fixture.server);
}

/* Resets of a key at one resource, and overrides of the key at all resources of the template, count
 * together towards the 20 resets a day. */
TEST(a_template_and_its_resources_have_one_bound_of_resets) {
#define OF_TEMPLATE(key)                                                                           \
    "{\"glob\": \"api/*\", \"key\": \"" key "\", \"limit\": \"burst\", \"set\": {\"size\": 20}, "  \
    "\"expires_in\": 60, \"reason\": \"r\"}"
    static const char path[] = "/v1/overrides", often[] = "at most 20 times a day";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    for (int i = 0; i < 10; i++) {
        expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 200, "");
        expect_verb(&fixture, "PUT", path, ALICE, OF_TEMPLATE("acme"), 200, "");
    }
    expect_verb(&fixture, "PUT", path, ALICE, OF_TEMPLATE("acme"), 403, often);
    expect_post(&fixture, "/v1/reset", ALICE, ENTRY(""), 403, often);
    expect_post(&fixture, "/v1/reset", ALICE,
                "{\"entry\": [{\"resource_id\": \"api/other\", \"key\": \"acme\"}]}", 200, "");
    expect_verb(&fixture, "PUT", path, ALICE, OF_TEMPLATE("other"), 200, "");
    server_stop(&fixture.server);
}

/* E6: whether support may reset a shared counter depends only on the limit of its own template, and
 * not on a limit with the same name in another template. */
TEST(the_role_support_resets_a_shared_counter_whose_name_others_have_too) {
#define OF_NAME(glob, per)                                                                         \
    "{\"identifier_glob\": \"" glob "\", \"limits\": [{\"name\": \"all\", \"per\": \"" per         \
    "\", \"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": \"day\"}]}"
#define ALL_OF(resource)                                                                           \
    "{\"entry\": [{\"resource_id\": \"" resource "\", \"key\": \"\", \"limit\": \"all\"}]}"
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture =
        fixture_start("{\"resources\": [" OF_NAME("api/*", "template") ", " OF_NAME(
                          "login", "resource") ", " OF_NAME("maps", "template") "]}",
                      place.flags);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    expect_post(&fixture, "/v1/reset", ALICE, ALL_OF("api/a"), 200, "");
    EXPECT_ACT(&fixture, "", {"entries[0].shared_by", "\"template\""});
    expect_post(&fixture, "/v1/reset", ALICE, ALL_OF("login"), 200, "");
    EXPECT_ACT(&fixture, "", {"entries[0].shared_by", "\"resource\""});
    expect_post(&fixture, "/v1/reset", ALICE, ALL_OF("maps"), 403, "'alice' may only change");
    server_stop(&fixture.server);
}

/* Resets of a shared counter count together, whichever keys they name. */
TEST(the_role_support_resets_a_shared_counter_twenty_times_a_day) {
#define SHARED(resource, key)                                                                      \
    "{\"entry\": [{\"resource_id\": \"" resource "\", \"key\": \"" key "\", \"limit\": \"all\"}]}"
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    for (int i = 0; i < 20; i++) {
        expect_post(&fixture, "/v1/reset", ALICE,
                    i % 2 ? SHARED("api/a", "x") : SHARED("api/a", "y"), 200, "");
    }
    expect_post(&fixture, "/v1/reset", ALICE, SHARED("api/a", "z"), 403, "at most 20 times a day");
    expect_post(&fixture, "/v1/reset", ALICE, SHARED("api/b", "z"), 200, "");
    expect_post(&fixture, "/v1/reset", ADMIN, SHARED("api/a", "z"), 200, "");
    EXPECT_ACT(&fixture, "", {"entries[0].shared_by", "\"resource\""});
    server_stop(&fixture.server);
}

/* If an undo brings back an override that adds units, the units are not granted once more. */
TEST(an_undo_adds_nothing_to_a_bucket) {
    static const char path[] = "/v1/overrides?resource=api/search&key=acme&limit=burst&add=1";
    static const char limit[] = "\"limit\":18,\"used\":";
    struct place place = {.path = ""};
    struct fixture fixture = limits_start(&place);
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=9", WEB, 200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, OF_KEY("burst", "\"add\": 9"), 200,
                "\"id\":1");
    expect_verb(&fixture, "DELETE", path, ADMIN, "", 200, "\"id\":2");
    expect_post(&fixture, "/v1/reset", ADMIN, ENTRY(", \"limit\": \"steps\""), 200, "");
    expect(&fixture, "/v1/allow?resource=api/search&key=acme&cost=9", WEB, 200, "");
    expect_verb(&fixture, "POST", "/v1/audit/2/undo?reason=r", ADMIN, "", 200, "\"id\":4");
    char *response = post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"burst\""));
    const char *used = strstr(response, limit);
    assert_non_null(used);
    assert_true(strtod(used + strlen(limit), NULL) > 17);
    free(response);
    server_stop(&fixture.server);
}

/* An override that is refused leaves the override before it as it was. */
TEST(a_refused_override_keeps_the_one_before_it) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"limit\": 20", ""), 200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, SET("\"limit\": 99", DAY), 403, "");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":20");
    const struct rlimit full = {4096, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
    assert_int_equal(prlimit(fixture.server.process->pid, RLIMIT_FSIZE, &full, NULL), 0);
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, SET("\"limit\": 30", DAY), 503,
                "nothing was changed, because the store of --state cannot keep it");
    assert_int_equal(prlimit(fixture.server.process->pid, RLIMIT_FSIZE, &room, NULL), 0);
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":20");
    expect_verb(&fixture, "PUT", "/v1/overrides", ALICE, SET("\"limit\": 30", DAY), 200, "");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":30");
    server_stop(&fixture.server);
}

/* An override with a glob concerns the key at all resources of the template. An override that adds
 * units concerns the key at one resource. */
TEST(an_override_of_a_template_and_one_that_adds) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect_verb(
        &fixture, "PUT", "/v1/overrides", ALICE,
        "{\"glob\": \"api/*\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": {\"limit\": "
        "40}, \"expires_in\": 60, \"reason\": \"r\"}",
        200, "\"id\":1");
    expect_verb(
        &fixture, "PUT", "/v1/overrides", ALICE,
        "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"add\": 7, "
        "\"expires_in\": 60, \"reason\": \"r\"}",
        200, "\"id\":2");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":47");
    expect_post(&fixture, "/v1/inspect", ADMIN,
                "{\"entry\": [{\"resource_id\": \"api/x\", \"key\": \"acme\", \"limit\": "
                "\"quota\"}]}",
                200, "\"limit\":40");
    expect_verb(&fixture, "DELETE",
                "/v1/overrides?resource=api/search&limit=quota&key=acme&add=1&reason=done", ALICE,
                "", 200, "");
    expect_verb(&fixture, "DELETE", "/v1/overrides?glob=api/*&limit=quota&key=acme", ALICE, "", 200,
                "");
    expect_post(&fixture, "/v1/inspect", ADMIN, ENTRY(", \"limit\": \"quota\""), 200,
                "\"limit\":5");
    EXPECT_ACT(&fixture, "?after=4", {"reason", "\"done\""}, {"before.add", "7"});
    server_stop(&fixture.server);
}
