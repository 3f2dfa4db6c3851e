/* Undo (E5): an act of administration is taken back, unless a later act has changed the same thing.
 * The tests use real servers with a file as their store. */
#define _GNU_SOURCE
#include "state_fixture.h"

#define ADMIN HOST JSON BEARER("top-1")
#define ALICE HOST JSON BEARER("alice-2")
#define BOB HOST JSON BEARER("bob-3")
#define READER HOST JSON BEARER("read-4")
#define TOKENS                                                                                     \
    "admin ann top-1\nsupport alice alice-2 api/*\nsupport bob bob-3 maps\nread ron read-4\n"
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000, \"plans\": {\"pro\": "        \
    "{\"limit\": 40}, \"free\": {\"limit\": 2}}}]}]}"

/* A server with a store and tokens. Each test has one. */
struct office {
    char path[96], tokens[96];
    struct fixture fixture;
};

static void office_start(struct office *office) {
    const char *const more[] = {"--http-token", office->tokens, NULL};
    office->fixture = start(API, office->path, more);
}

static void office_open(struct office *office) {
    state_path(office->path);
    snprintf(office->tokens, sizeof office->tokens, "%s/tokens", process_new()->folder);
    file_write(office->tokens, TOKENS);
    office_start(office);
}

/* Sends a request with a body, and expects a status and a text in the response. */
static void act(const struct office *office, const char *verb, const char *path, const char *lines,
                const char *body, int code, const char *text) {
    expect_verb(&office->fixture, verb, path, lines, body, code, text);
}

/* Sets the limit "quota" of the key "acme" for a day. */
static void raise_limit(const struct office *office, const char *lines, int limit,
                        const char *text) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": "
             "{\"limit\": %d}, \"expires_in\": 86400, \"reason\": \"ticket 1\"}",
             limit);
    act(office, "PUT", "/v1/overrides", lines, body, 200, text);
}

static void undo(const struct office *office, const char *lines, int id, int code,
                 const char *text) {
    char path[96];
    snprintf(path, sizeof path, "/v1/audit/%d/undo?reason=mistake", id);
    act(office, "POST", path, lines, "", code, text);
}

static void expect_limit(const struct office *office, const char *key, int limit) {
    char body[256], text[64];
    snprintf(body, sizeof body,
             "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"%s\", \"limit\": "
             "\"quota\"}]}",
             key);
    snprintf(text, sizeof text, "\"limit\":%d,", limit);
    char *response = post(&office->fixture, "/v1/inspect", ADMIN, body);
    if (!strstr(response, text)) fail_msg("expected %s in %s", text, response);
    free(response);
}

static void give_plan(const struct office *office, const char *plan, const char *text) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"%s\", \"reason\": \"r\"}", plan);
    act(office, "PUT", "/v1/plans", ADMIN, body, 200, text);
}

/* Bans the key "acme" for some seconds. 0 ends the ban. */
static void ban(const struct office *office, int seconds) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\", \"ban\": %d}]}",
             seconds);
    act(office, "POST", "/v1/reset", ADMIN, body, 200, "");
}

static void expect_banned(const struct office *office, bool is_banned) {
    expect(&office->fixture, "/v1/allow?resource=api/search&key=acme&cost=0", ADMIN,
           is_banned ? 429 : 200, is_banned ? "BANNED" : "GRANTED");
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST(an_override_that_is_undone_gives_way_to_the_one_before) {
    struct office office;
    office_open(&office);
    raise_limit(&office, ALICE, 20, "\"id\":1");
    raise_limit(&office, ALICE, 30, "\"id\":2");
    undo(&office, ALICE, 2, 200, "\"id\":3");
    expect_limit(&office, "acme", 20);
    kill_now(&office.fixture);
    office_start(&office);
    expect_limit(&office, "acme", 20);
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"undoes\":2,\"of\":\"override\"");
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"reason\":\"mistake\"");
    expect(&office.fixture, "/v1/overrides", READER, 200, "\"reason\":\"mistake\"");
    server_stop(&office.fixture.server);
}

TEST(an_undo_is_undone_like_any_act) {
    struct office office;
    office_open(&office);
    raise_limit(&office, ALICE, 20, "\"id\":1");
    undo(&office, ALICE, 1, 200, "\"id\":2");
    expect_limit(&office, "acme", 5);
    undo(&office, ALICE, 2, 200, "\"id\":3");
    expect_limit(&office, "acme", 20);
    act(&office, "DELETE", "/v1/overrides?resource=api/search&limit=quota&key=acme", ALICE, "", 200,
        "\"id\":4");
    undo(&office, ALICE, 4, 200, "\"id\":5");
    expect_limit(&office, "acme", 20);
    server_stop(&office.fixture.server);
}

TEST(what_a_later_act_has_changed_is_not_undone) {
    struct office office;
    office_open(&office);
    raise_limit(&office, ALICE, 20, "\"id\":1");
    raise_limit(&office, ADMIN, 30, "\"id\":2");
    undo(&office, ALICE, 1, 409, "the act 2 came later (override by ann at 2");
    expect_limit(&office, "acme", 30);
    undo(&office, ADMIN, 2, 200, "\"id\":3");
    undo(&office, ADMIN, 2, 409, "the act 3 came later (undo by ann at 2");
    expect_limit(&office, "acme", 20);
    server_stop(&office.fixture.server);
}

TEST(a_row_that_has_ended_in_the_meantime_does_not_come_back) {
    struct office office;
    office_open(&office);
    act(&office, "PUT", "/v1/overrides", ADMIN,
        "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": "
        "{\"limit\": 20}, \"expires_in\": 2, \"reason\": \"r\"}",
        200, "\"id\":1");
    raise_limit(&office, ALICE, 30, "\"id\":2");
    sleep_ms(2500); /* the first row would have ended after 2 s */
    undo(&office, ALICE, 2, 200, "\"had_ended\":\"2");
    expect_limit(&office, "acme", 5);
    raise_limit(&office, ALICE, 30, "\"id\":4");
    undo(&office, ALICE, 4, 200, "\"id\":5");
    undo(&office, ALICE, 4, 409, "the act 5 came later");
    server_stop(&office.fixture.server);
}

TEST(an_undo_needs_the_right_and_the_bounds_of_the_act) {
    struct office office;
    office_open(&office);
    raise_limit(&office, ADMIN, 500, "\"id\":1");
    raise_limit(&office, ALICE, 20, "\"id\":2");
    undo(&office, BOB, 2, 403, "'bob' may only change maps");
    undo(&office, READER, 2, 403, "with the role support");
    undo(&office, ALICE, 2, 403, "the role support may give at most 10 times the limit");
    expect_limit(&office, "acme", 20);
    act(&office, "PUT", "/v1/overrides", ADMIN,
        "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"b\", \"set\": {\"limit\": "
        "9}, \"reason\": \"r\"}",
        200, "\"id\":3");
    act(&office, "DELETE", "/v1/overrides?resource=api/search&limit=quota&key=b", ALICE, "", 200,
        "\"id\":4");
    undo(&office, ALICE, 4, 403, "only the role admin can set it again");
    undo(&office, ADMIN, 4, 200, "\"id\":5");
    expect_limit(&office, "b", 9);
    server_stop(&office.fixture.server);
}

TEST(what_cannot_be_undone_is_said) {
    struct office office;
    office_open(&office);
    act(&office, "POST", "/v1/reset", ADMIN,
        "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\"}]}", 200, "");
    undo(&office, ADMIN, 1, 409, "the act 1 cannot be undone: it was 'reset'");
    undo(&office, ADMIN, 7, 404, "the audit has no act with this number");
    act(&office, "POST", "/v1/audit/1/undo", ADMIN, "", 409, "cannot be undone");
    raise_limit(&office, ADMIN, 20, "\"id\":2");
    act(&office, "POST", "/v1/audit/2/undo", ADMIN, "", 400, "reason: is missing");
    act(&office, "POST", "/v1/audit/2/undo?why=r", ADMIN, "", 400, "why: is no parameter");
    act(&office, "POST", "/v1/audit/x/undo", ADMIN, "", 404, "/v1/audit/ID/undo");
    act(&office, "POST", "/v1/audit/2/redo", ADMIN, "", 404, "/v1/audit/ID/undo");
    act(&office, "GET", "/v1/audit/2/undo", ADMIN, "", 405, "");
    expect_limit(&office, "acme", 20);
    server_stop(&office.fixture.server);
}

TEST(a_plan_that_is_undone_gives_way_to_the_one_before) {
    struct office office;
    office_open(&office);
    give_plan(&office, "pro", "\"id\": 1");
    give_plan(&office, "free", "\"id\": 2");
    expect_limit(&office, "acme", 2);
    undo(&office, ADMIN, 1, 409, "the act 2 came later (plan by ann at 2");
    undo(&office, ADMIN, 2, 200, "\"id\": 3");
    expect_limit(&office, "acme", 40);
    undo(&office, ADMIN, 3, 200, "\"id\": 4");
    expect_limit(&office, "acme", 2);
    act(&office, "DELETE", "/v1/plans?glob=api/*&key=acme&reason=r", ADMIN, "", 200, "\"id\": 5");
    expect_limit(&office, "acme", 5);
    undo(&office, ADMIN, 5, 200, "\"id\": 6");
    kill_now(&office.fixture);
    office_start(&office);
    expect_limit(&office, "acme", 2);
    server_stop(&office.fixture.server);
}

TEST(plans_of_many_keys_are_undone_whole_or_not_at_all) {
    static const char many[] =
        "{\"reason\": \"r\", \"plans\": [{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": "
        "\"pro\"}, {\"glob\": \"api/*\", \"key\": \"b\", \"plan\": \"pro\"}]}";
    struct office office;
    office_open(&office);
    give_plan(&office, "free", "\"id\": 1");
    act(&office, "PUT", "/v1/plans", ADMIN, many, 200, "\"id\": 2");
    expect_limit(&office, "b", 40);
    undo(&office, ADMIN, 2, 200, "\"id\": 3");
    expect_limit(&office, "acme", 2);
    expect_limit(&office, "b", 5);
    undo(&office, ADMIN, 3, 200, "\"id\": 4");
    expect_limit(&office, "acme", 40);
    expect_limit(&office, "b", 40);
    give_plan(&office, "free", "\"id\": 5");
    undo(&office, ADMIN, 4, 409, "the act 5 came later");
    expect_limit(&office, "b", 40);
    server_stop(&office.fixture.server);
}

TEST(a_ban_that_is_undone_gives_way_to_the_one_before) {
    struct office office;
    office_open(&office);
    ban(&office, 100000);
    expect_banned(&office, true);
    undo(&office, BOB, 1, 403, "'bob' may only change maps");
    undo(&office, ALICE, 1, 200, "\"id\": 2");
    expect_banned(&office, false);
    undo(&office, ALICE, 2, 200, "\"id\": 3");
    expect_banned(&office, true);
    ban(&office, 0);
    undo(&office, ALICE, 3, 409, "the act 4 came later (end_ban by ann at 2");
    undo(&office, ALICE, 4, 200, "\"id\": 5");
    expect_banned(&office, true);
    ban(&office, 200000);
    undo(&office, ALICE, 6, 200, "\"id\": 7");
    char *response = get(&office.fixture, "/v1/allow?resource=api/search&key=acme&cost=0", ADMIN);
    const char *at = strstr(response, "\"retry_after\":");
    assert_non_null(at);
    double left = strtod(at + strlen("\"retry_after\":"), NULL);
    assert_true(left > 90000 && left <= 100001);
    free(response);
    server_stop(&office.fixture.server);
}
