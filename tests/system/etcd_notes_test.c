/* Acts of administration that etcd keeps (E7): servers whose configuration is in etcd, without
 * --state. The tests use a real etcd, and are skipped without one. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#include <signal.h>

#define ADMIN HOST JSON BEARER("top-1")
#define KEY "doorman/config"
#define API(limit)                                                                                 \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": " limit ", \"window\": 100000000, \"on_unread\": "     \
    "\"refuse\", \"plans\": {\"pro\": {\"limit\": 40}}}]}]}"
#define OVERRIDE(key)                                                                              \
    "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"" key                         \
    "\", \"set\": {\"limit\": 70}, \"expires_in\": 86400, \"reason\": \"ticket 1\"}"

/* Starts a server whose configuration is in etcd.
 *   election_key   NULL: none */
static struct fixture notes_start(const struct etcd *etcd, const char *election_key) {
    static char tokens[128];
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, "admin ann top-1\n");
    const char *flags[] = {"--config",
                           "etcd:" KEY,
                           "--etcd",
                           etcd->url,
                           "--http-token",
                           tokens,
                           election_key ? "--election-key" : NULL,
                           election_key,
                           "--election-ttl",
                           "10",
                           NULL};
    return fixture_start("{}", flags);
}

static void etcd_begin(struct etcd *etcd) {
    etcd_require(etcd);
    etcd_put(etcd, KEY, API("5"));
}

static void act(const struct fixture *fixture, const char *verb, const char *path, const char *body,
                int code, const char *text) {
    expect_verb(fixture, verb, path, ADMIN, body, code, text);
}

static bool answers(const struct fixture *fixture, const char *path, int code) {
    char *response = get(fixture, path, ADMIN);
    const bool does = code_of(response) == code;
    free(response);
    return does;
}

/* Waits until a process is master, and has read the acts. */
static void await_acts(const struct fixture *fixture) {
    EVENTUALLY(answers(fixture, "/v1/audit", 200));
}

/* Returns whether the limit `quota` of a key has this value. */
static bool has_limit(const struct fixture *fixture, const char *key, int limit) {
    char body[256], text[64];
    snprintf(body, sizeof body,
             "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"%s\", \"limit\": "
             "\"quota\"}]}",
             key);
    snprintf(text, sizeof text, "\"limit\":%d,", limit);
    char *response = post(fixture, "/v1/inspect", ADMIN, body);
    const bool has = strstr(response, text) != NULL;
    free(response);
    return has;
}

static void act_thrice(const struct fixture *fixture) {
    act(fixture, "PUT", "/v1/overrides", OVERRIDE("acme"), 200, "");
    act(fixture, "PUT", "/v1/plans",
        "{\"glob\": \"api/*\", \"key\": \"globex\", \"plan\": \"pro\", \"reason\": \"r\"}", 200,
        "");
    act(fixture, "PUT", "/v1/overrides", OVERRIDE("initech"), 200, "");
    act(fixture, "POST", "/v1/audit/3/undo?reason=mistake", "", 200, "");
    assert_true(has_limit(fixture, "acme", 70));
}

static void expect_all(const struct fixture *fixture) {
    assert_true(has_limit(fixture, "acme", 70));
    assert_true(has_limit(fixture, "globex", 40));
    assert_true(has_limit(fixture, "initech", 5));
    expect(fixture, "/v1/audit", ADMIN, 200, "\"id\":4,");
    expect(fixture, "/v1/audit?key=acme", ADMIN, 200, "\"id\":1,");
}

/* E7 */
TEST(acts_outlast_a_master_that_is_killed) {
    struct etcd etcd;
    etcd_begin(&etcd);
    struct fixture first = notes_start(&etcd, "doorman/master");
    await_acts(&first);
    struct fixture second = notes_start(&etcd, "doorman/master");
    act_thrice(&first);
    act(&second, "PUT", "/v1/overrides", OVERRIDE("acme"), 503, "not the master");
    process_signal(first.server.process, SIGKILL);
    assert_int_equal(process_wait(first.server.process), 128 + SIGKILL);
    await_acts(&second);
    expect_all(&second);
    act(&second, "PUT", "/v1/overrides", OVERRIDE("umbrella"), 200, "\"id\":5");
    server_stop(&second.server);
    etcd_stop(&etcd);
}

/* Without an election, overrides and plans are in force before the first answer. */
TEST(acts_outlast_a_process_without_an_election) {
    struct etcd etcd;
    etcd_begin(&etcd);
    struct fixture fixture = notes_start(&etcd, NULL);
    act_thrice(&fixture);
    process_signal(fixture.server.process, SIGKILL);
    assert_int_equal(process_wait(fixture.server.process), 128 + SIGKILL);
    fixture = notes_start(&etcd, NULL);
    expect_all(&fixture);
    act(&fixture, "POST", "/v1/drain?force=1&reason=r", "", 200, "\"audit\":5");
    act(&fixture, "POST", "/v1/undrain?reason=r", "", 200, "");
    await_acts(&fixture);
    assert_true(has_limit(&fixture, "acme", 70));
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* While etcd is away, decisions continue, but acts and the list of the audit fail. */
TEST(an_etcd_that_is_away_refuses_acts_and_nothing_else) {
    struct etcd etcd;
    etcd_begin(&etcd);
    struct fixture fixture = notes_start(&etcd, NULL);
    act(&fixture, "PUT", "/v1/overrides", OVERRIDE("acme"), 200, "");
    etcd_stop(&etcd);
    act(&fixture, "PUT", "/v1/overrides", OVERRIDE("globex"), 503, "because etcd cannot keep it");
    expect(&fixture, "/v1/audit", ADMIN, 503, "etcd");
    expect(&fixture, "/v1/allow?resource=api/search&key=acme", ADMIN, 200, "GRANTED");
    assert_true(has_limit(&fixture, "globex", 5));
    etcd.process = process_new();
    etcd_start(&etcd);
    await_acts(&fixture);
    act(&fixture, "PUT", "/v1/overrides", OVERRIDE("globex"), 200, "");
    assert_true(has_limit(&fixture, "globex", 70));
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

TEST(counters_and_bans_are_only_in_memory_and_the_answers_say_so) {
    struct etcd etcd;
    etcd_begin(&etcd);
    struct fixture fixture = notes_start(&etcd, NULL);
    const char *ban = "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\", "
                      "\"ban\": 3600}]}";
    act(&fixture, "POST", "/v1/reset", ban, 200, "\"note\":\"bans last until this process ends");
    act(&fixture, "POST", "/v1/reset",
        "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\", \"ban\": 0}]}", 200,
        "{\"entry\":[{\"count\":1}]}\n");
    char *metrics = get(&fixture, "/metrics", ADMIN), *status = get(&fixture, "/v1/status", ADMIN);
    assert_null(strstr(metrics, "store of --state"));
    assert_non_null(strstr(metrics, "doorman_administration_acts_total{what=\"ban\"} 1"));
    assert_null(strstr(status, "\"state\":{"));
    free(metrics);
    free(status);
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* E3 */
TEST(versions_of_the_key_are_kept_in_etcd) {
    struct etcd etcd;
    etcd_begin(&etcd);
    struct fixture fixture = notes_start(&etcd, NULL);
    char *status = get(&fixture, "/v1/status", ADMIN), lines[256];
    const char *at = strstr(status, "\"config\":{\"version\":");
    assert_non_null(at);
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n",
             strtol(at + strlen("\"config\":{\"version\":"), NULL, 10));
    free(status);
    expect_verb(&fixture, "PUT", "/v1/config?reason=r", lines, API("9"), 200, "5 -> 9");
    EVENTUALLY(has_limit(&fixture, "acme", 9));
    expect(&fixture, "/v1/config/versions", ADMIN, 200, "\"reason\":\"r\"");
    act(&fixture, "POST", "/v1/audit/1/undo?reason=mistake", "", 200, "");
    EVENTUALLY(has_limit(&fixture, "acme", 5));
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

TEST(a_server_that_keeps_no_acts_names_both_flags) {
    char tokens[128];
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, "admin ann top-1\n");
    struct fixture fixture =
        fixture_start(API("5"), (const char *[]){"--http-token", tokens, NULL});
    act(&fixture, "PUT", "/v1/overrides", OVERRIDE("acme"), 404,
        "start it with --state, or with --config etcd:KEY");
    server_stop(&fixture.server);
}
