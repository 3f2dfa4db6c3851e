/* Plans (E2): PUT, GET and DELETE /v1/plans with real servers and a store, which may be a file or a
 * Redis, over restarts and crashes; and notes (rows of administration in a store) that a later note
 * outranks. */
#define _GNU_SOURCE
#include <sqlite3.h>

#define ADMIN HOST JSON BEARER("top-1")
#define ALICE HOST JSON BEARER("alice-2")
#define READER HOST JSON BEARER("read-3")
#define TOKENS "admin ann top-1\nsupport alice alice-2 api/*\nread ron read-3\n"
#define QUOTA_OF(plans)                                                                            \
    "{\"name\": \"quota\", \"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000" plans "}"
#define BURST "{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 90}"
#define WITH(limits)                                                                               \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [" limits "]}, "                \
    "{\"identifier_glob\": \"maps\", \"limits\": [" limits "]}]}"
#define PLANS ", \"plans\": {\"free\": {\"limit\": 1}, \"pro\": {\"limit\": 50}}"
#define API WITH(QUOTA_OF(PLANS) ", " BURST)

#include "admin_fixture.h"

#define ROW(key, plan, more)                                                                       \
    "{\"glob\": \"api/*\", \"key\": \"" key "\", \"plan\": \"" plan "\"" more "}"
#define WHY ", \"reason\": \"ticket 4711\""
#define DAY ", \"expires_in\": 86400"

/* Returns whether the list of plans has a text. */
static bool list_has(const struct fixture *fixture, const char *text) {
    char *response = get(fixture, "/v1/plans", ADMIN);
    bool has = strstr(response, text) != NULL;
    free(response);
    return has;
}

static void put(const struct fixture *fixture, const char *lines, const char *body, int code,
                const char *text) {
    expect_verb(fixture, "PUT", "/v1/plans", lines, body, code, text);
}

/* Expects a text in the state of the limit `quota` for a key of api/search. */
static void expect_quota(const struct fixture *fixture, const char *key, const char *text) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"%s\", "
             "\"limit\": \"quota\"}]}",
             key);
    expect_post(fixture, "/v1/inspect", ADMIN, body, 200, text);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* E2: after kill -9 a plan still acts, and a person can end it. */
STORY(a_plan_outlasts_a_crash_until_it_is_ended) {
    static const char path[] = "/v1/plans?glob=api/*&key=acme&reason=done";
    struct fixture fixture = place_start(place);
    put(&fixture, ALICE, ROW("acme", "pro", DAY WHY), 200, "{\"id\": 1}");
    expect_quota(&fixture, "acme", "\"limit\":50");
    expect_quota(&fixture, "acme", "\"plan\":\"pro\"");
    place_restart(place, &fixture);
    expect_quota(&fixture, "acme", "\"limit\":50");
    put(&fixture, ADMIN, ROW("acme", "free", WHY), 200, "{\"id\": 2}");
    expect(&fixture, "/v1/audit", ADMIN, 200,
           "\"what\":\"plan\",\"reason\":\"ticket 4711\",\"glob\":\"api/*\",\"key\":\"acme\","
           "\"before\":{\"plan\":\"pro\",\"ends_at\":");
    expect(&fixture, "/v1/audit", ADMIN, 200, "\"after\":{\"plan\":\"free\"}}\n");
    expect(&fixture, "/v1/plans", READER, 200, "\"audit\":2,\"token\":\"ann\"");
    place_restart(place, &fixture);
    expect_quota(&fixture, "acme", "\"limit\":1");
    expect_verb(&fixture, "DELETE", path, READER, "", 403, "with the role support");
    expect_verb(&fixture, "DELETE", path, ALICE, "", 200, "{\"id\": 3}");
    expect_verb(&fixture, "DELETE", path, ALICE, "", 404, "the key has no plan row");
    expect_quota(&fixture, "acme", "\"limit\":5,");
    place_restart(place, &fixture);
    expect(&fixture, "/v1/audit?limit=1", ADMIN, 200,
           "\"before\":{\"plan\":\"free\"},\"after\":null}\n");
    expect_quota(&fixture, "acme", "\"limit\":5,");
    server_stop(&fixture.server);
}

/* Returns a body with a row for each of `count` keys. The caller frees it. */
static char *bulk(size_t count, const char *plan) {
    const size_t room = 100 * count + 100;
    char *body = (char *)malloc(room);
    size_t used = (size_t)snprintf(body, room, "{\"reason\": \"import\", \"plans\": [");
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(body + used, room - used,
                                 "%s{\"glob\": \"api/*\", \"key\": \"k%zu\", \"plan\": \"%s\"}",
                                 i ? ", " : "", i, plan);
    }
    snprintf(body + used, room - used, "]}");
    return body;
}

static void put_bulk(const struct fixture *fixture, size_t count, const char *plan,
                     const char *text) {
    char *body = bulk(count, plan);
    put(fixture, ADMIN, body, 200, text);
    free(body);
}

/* One act may take several batches of the store. */
STORY(plans_in_bulk_are_one_act_and_outlast_a_crash) {
    enum { KEYS = 300 };
    struct fixture fixture = place_start(place);
    put_bulk(&fixture, KEYS, "free", "{\"id\": 1}");
    put_bulk(&fixture, KEYS, "pro", "{\"id\": 2}");
    expect_quota(&fixture, "k299", "\"limit\":50");
    for (int i = 0; i < 2; i++) {
        if (i) place_restart(place, &fixture);
        expect_quota(&fixture, "k0", "\"limit\":50");
        expect_quota(&fixture, "k63", "\"limit\":50");
        expect_quota(&fixture, "k299", "\"limit\":50");
        expect(&fixture, "/v1/audit?key=k170&limit=1", ADMIN, 200, "\"bulk\":true,\"entries\":[{");
        expect(&fixture, "/v1/audit?key=k170&limit=1", ADMIN, 200,
               "\"key\":\"k299\",\"before\":{\"plan\":\"free\"},\"after\":{\"plan\":\"pro\"}}]}\n");
        expect(&fixture, "/v1/plans?key=k170", ADMIN, 200, "\"audit\":2");
    }
    expect_verb(&fixture, "DELETE", "/v1/plans?glob=api/*&key=k170", ADMIN, "", 200, "");
    place_restart(place, &fixture);
    expect_quota(&fixture, "k170", "\"limit\":5,");
    expect_quota(&fixture, "k171", "\"limit\":50");
    server_stop(&fixture.server);
}

TEST(ten_thousand_plans_are_set_at_once_and_no_more) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    char *body = bulk(10001, "pro");
    put(&fixture, ADMIN, body, 400, "plans: must be a list of at most 10000");
    free(body);
    put_bulk(&fixture, 10000, "pro", "{\"id\": 1}");
    place_restart(&place, &fixture);
    expect_quota(&fixture, "k0", "\"limit\":50");
    expect_quota(&fixture, "k9999", "\"limit\":50");
    server_stop(&fixture.server);
}

/* E2, E6: plans that are refused change nothing, and the response names them. */
TEST(plans_that_are_wrong_or_not_allowed_are_refused) {
#define TWO(one, other) "{\"reason\": \"x\", \"plans\": [" one ", " other "]}"
    static const struct {
        const char *lines, *body;
        int code;
        const char *text;
    } cases[] = {
        {ADMIN, ROW("acme", "pro", ""), 400, "reason: is missing"},
        {ADMIN, ROW("acme", "gold", WHY), 404,
         "plan: no limit of the template \\u0022api/*\\u0022 has such a plan"},
        {ADMIN, "{\"glob\": \"api/x\", \"key\": \"a\", \"plan\": \"pro\"" WHY "}", 404,
         "glob: no template with limits has this glob"},
        {ADMIN, "{\"glob\": \"api/*\", \"plan\": \"pro\"" WHY "}", 400, "key: is missing"},
        {ADMIN, ROW("acme", "", WHY), 400, "plan: must be 1 to 64 bytes"},
        {ADMIN, ROW("acme", "pro", ", \"ends_at\": 5" WHY), 400,
         "ends_at: must be later than starts_at"},
        {ADMIN, ROW("acme", "pro", ", \"limit\": \"quota\"" WHY), 400, "limit: is not known"},
        {ADMIN, "{\"plans\": [], \"reason\": \"x\"}", 400, "plans: must have at least one plan"},
        {ADMIN, "{\"plans\": 5, \"reason\": \"x\"}", 400, "plans: must be"},
        {ADMIN, TWO(ROW("a", "pro", ""), ROW("a", "free", "")), 400,
         "plans[1].key: plans[0] has this glob and key too"},
        {ADMIN, TWO(ROW("a", "gold", ""), ROW("b", "silver", "")), 404,
         "plans[0].plan: no limit of the template \\u0022api/*\\u0022 has such a plan; "
         "plans[1].plan: "},
        {ADMIN, TWO(ROW("a", "pro", ""), "{\"glob\": 7}"), 400,
         "plans[1].glob: must be a string; plans[1].key: is missing; plans[1].plan: is missing"},
        {ALICE, ROW("acme", "pro", WHY), 400, "expires_in: the role support must give it"},
        {ALICE, "{\"glob\": \"maps\", \"key\": \"a\", \"plan\": \"pro\"" DAY WHY "}", 403,
         "glob: maps: 'alice' may only change api/*"},
        {READER, ROW("acme", "pro", WHY), 403, "with the role support"},
    };
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(&fixture, cases[i].lines, cases[i].body, cases[i].code, cases[i].text);
    }
    expect_verb(&fixture, "DELETE", "/v1/plans?key=a", ADMIN, "", 400, "glob: is missing");
    expect_quota(&fixture, "acme", "\"limit\":5,");
    put(&fixture, ADMIN, ROW("acme", "pro", WHY), 200, "{\"id\": 1}"); /* the audit was empty */
    server_stop(&fixture.server);
}

/* E6: if the new plan of a key has another window, the counter of the key starts fresh. So the role
 * support may change the plan of a key only 20 times a day. */
TEST(the_role_support_changes_a_plan_twenty_times_a_day) {
    static const char path[] = "/v1/plans?glob=api/*&key=acme&reason=r";
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    for (int i = 0; i < 10; i++) {
        put(&fixture, ALICE, ROW("acme", "free", DAY WHY), 200, "");
        put(&fixture, ALICE, ROW("acme", "free", DAY WHY), 200, ""); /* it only ends later */
        expect_verb(&fixture, "DELETE", path, ALICE, "", 200, "");
    }
    put(&fixture, ALICE, ROW("acme", "pro", DAY WHY), 403,
        "the role support changes the plan of a key at most 20 times a day, and that of 'acme' for "
        "api/* was changed 20 times");
    put(&fixture, ALICE, TWO(ROW("b", "pro", DAY), ROW("acme", "pro", DAY)), 403, "'acme'");
    put(&fixture, ALICE, ROW("b", "pro", DAY WHY), 200, "");
    put(&fixture, ADMIN, ROW("acme", "pro", DAY WHY), 200, "");
    expect_verb(&fixture, "DELETE", path, ALICE, "", 403, "at most 20 times a day");
    server_stop(&fixture.server);
}

/* ---- overrides and configurations beside plans ---------------------------------------------- */

TEST(an_override_says_which_row_and_which_plan_it_hides) {
#define SET(scope, value)                                                                          \
    "{" scope ", \"limit\": \"quota\", \"key\": \"acme\", \"set\": {\"limit\": " value "}" WHY "}"
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    put(&fixture, ADMIN, ROW("acme", "pro", WHY), 200, "{\"id\": 1}");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"glob\": \"api/*\"", "70"), 200,
                "{\"id\":2,\"hides\":{\"plan\":\"pro\"}}");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"resource\": \"api/search\"", "80"),
                200, "{\"id\":3,\"hides\":{\"override\":2,\"plan\":\"pro\"}}");
    expect_quota(&fixture, "acme", "\"limit\":80");
    expect_quota(&fixture, "acme", "\"plan\":\"pro\"");
    server_stop(&fixture.server);
}

/* A line of a list may be longer than the buffers in which the server formats text. */
TEST(a_long_reason_is_listed_whole) {
    struct place place = {.path = ""};
    char reason[501], body[800], expected[700];
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    memset(reason, 'x', sizeof reason - 1);
    reason[sizeof reason - 1] = 0;
    snprintf(body, sizeof body, ROW("acme", "pro", ", \"reason\": \"%s\""), reason);
    put(&fixture, ADMIN, body, 200, "{\"id\": 1}");
    snprintf(expected, sizeof expected, "\"reason\":\"%s\"},\"in_force\":true}\n", reason);
    expect(&fixture, "/v1/plans", ADMIN, 200, expected);
    snprintf(expected, sizeof expected, "\"reason\":\"%s\",", reason);
    expect(&fixture, "/v1/audit", ADMIN, 200, expected);
    server_stop(&fixture.server);
}

/* A configuration that adds a plan, even with another window, or removes a plan, drops no counters
 * of the limit. A configuration that changes the window of a plan does. */
TEST(a_plan_that_comes_drops_no_counters_of_its_limit) {
    static const char *const changes[] = {
        WITH(QUOTA_OF(", \"plans\": {\"free\": {\"limit\": 1}, \"pro\": {\"limit\": 50}, "
                      "\"max\": {\"limit\": 7, \"window\": 60}}") ", " BURST),
        WITH(QUOTA_OF(", \"plans\": {\"free\": {\"limit\": 1}}") ", " BURST)};
    struct fixture fixture = fixture_start(API, (const char *[]){NULL});
    expect(&fixture, "/v1/allow?resource=api/search&key=acme", HOST, 200, "");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        expect_post(&fixture, "/v1/config/check", HOST JSON, changes[i], 200,
                    "\"drops_counters\":0");
    }
    expect_post(
        &fixture, "/v1/config/check", HOST JSON,
        WITH(QUOTA_OF(", \"plans\": {\"pro\": {\"limit\": 50, \"window\": 60}}") ", " BURST), 200,
        "\"drops_counters\":1");
    server_stop(&fixture.server);
}

TEST(a_plan_that_the_configuration_loses_is_idle_until_it_comes_back) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    put(&fixture, ADMIN, ROW("acme", "pro", WHY), 200, "{\"id\": 1}");
    config_replace(fixture.server.process, WITH(QUOTA_OF("") ", " BURST));
    process_signal(fixture.server.process, SIGHUP);
    EVENTUALLY(list_has(&fixture, "\"in_force\":false,\"idle\":true"));
    expect_quota(&fixture, "acme", "\"limit\":5,");
    config_replace(fixture.server.process, API);
    process_signal(fixture.server.process, SIGHUP);
    EVENTUALLY(list_has(&fixture, "\"in_force\":true"));
    expect_quota(&fixture, "acme", "\"limit\":50");
    server_stop(&fixture.server);
}

/* ---- notes that a later one outranks -------------------------------------------------------- */

static void run_sql(const struct place *place, const char *commands) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(place->path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, commands, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* Adds an earlier note with the same name, as if two acts had been written at the same time. */
#define OLDER(kind, from)                                                                          \
    "INSERT INTO administration SELECT kind, '00000000000000000001', 0, " from                     \
    " FROM administration WHERE kind = '" kind "';"

/* The store lists the newest note first, so the server reads the earlier note last. */
TEST(an_earlier_note_does_not_replace_a_later_one_after_a_restart) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect_post(&fixture, "/v1/reset", ADMIN,
                "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"b\"}]}", 200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"resource\": \"api/search\"", "80"),
                200, "{\"id\":2}");
    put(&fixture, ADMIN, ROW("bob", "pro", WHY), 200, "{\"id\": 3}");
    server_stop(&fixture.server);
    run_sql(&place, OLDER("override", "replace(note, '80', '8')")
                        OLDER("plan", "replace(note, '\"pro\"', '\"free\"')"));
    fixture = place_start(&place);
    expect_quota(&fixture, "acme", "\"limit\":80");
    expect_quota(&fixture, "bob", "\"limit\":50");
    expect_verb(&fixture, "DELETE", "/v1/plans?glob=api/*&key=bob", ADMIN, "", 200, "");
    expect_verb(&fixture, "DELETE", "/v1/overrides?resource=api/search&limit=quota&key=acme", ADMIN,
                "", 200, "");
    place_restart(&place, &fixture); /* the earlier ones were deleted */
    expect_quota(&fixture, "acme", "\"limit\":5,");
    expect_quota(&fixture, "bob", "\"limit\":5,");
    server_stop(&fixture.server);
}

/* A later note replaces an earlier one for ever, even if the later one has ended by now. */
TEST(an_earlier_note_does_not_come_back_after_a_later_one_has_ended) {
    struct place place = {.path = ""};
    place_init(&place, false);
    struct fixture fixture = place_start(&place);
    expect_post(&fixture, "/v1/reset", ADMIN,
                "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"b\"}]}", 200, "");
    expect_verb(&fixture, "PUT", "/v1/overrides", ADMIN, SET("\"resource\": \"api/search\"", "80"),
                200, "{\"id\":2}");
    put(&fixture, ADMIN, ROW("bob", "pro", WHY), 200, "{\"id\": 3}");
    server_stop(&fixture.server);
    run_sql(&place,
            OLDER("override", "note")
                OLDER("plan", "note") "UPDATE administration SET ends_at = 9 WHERE kind <> 'act' "
                                      "AND identity <> '00000000000000000001';");
    fixture = place_start(&place);
    expect_quota(&fixture, "acme", "\"limit\":5,");
    expect_quota(&fixture, "bob", "\"limit\":5,");
    place_restart(&place, &fixture);
    expect_quota(&fixture, "acme", "\"limit\":5,");
    expect_quota(&fixture, "bob", "\"limit\":5,");
    server_stop(&fixture.server);
}
