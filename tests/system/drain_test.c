/* A drain (E11): a planned stop without the end of the process, for a machine that will be taken
 * away. The tests use real servers: a single one, and a node of three processes with an etcd and a
 * Redis. */
#define _GNU_SOURCE
#define LINES HOST JSON BEARER("top-1")
#define READER HOST JSON BEARER("read-4")
#include "node_fixture.h"

#include <sqlite3.h>

#define DRAINED "\"state\":\"drained\""
#define SERVING "\"state\":\"serving\""

static const char *tokens_make(void) {
    static char path[96];
    snprintf(path, sizeof path, "%s/tokens", process_new()->folder);
    file_write(path, "admin ann top-1\nread ron read-4\n");
    return path;
}

/* Returns the value of a metric without labels. */
static double gauge(const struct fixture *fixture, const char *name) {
    char *response = get(fixture, "/metrics", LINES), line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(response, line);
    if (!at) fail_msg("no metric %s", name);
    double value = strtod(at + strlen(line), NULL);
    free(response);
    return value;
}

static bool says(const struct fixture *fixture, const char *path, const char *text) {
    char *response = get(fixture, path, LINES);
    bool is_there = strstr(response, text) != NULL;
    free(response);
    return is_there;
}

static void await_text(const struct fixture *fixture, const char *path, const char *text) {
    EVENTUALLY(says(fixture, path, text));
}

/* ---- a node of three processes -------------------------------------------------------------- */

static void start_node(const char *ttl) {
    node.tokens = tokens_make();
    node_start(QUOTA, ttl);
}

/* Drains a process of the node, and waits until another process decides. Returns the index of that
 * process. */
static int member_drain(int index) {
    const struct fixture *fixture = &node.members[index].fixture;
    int next = -1;
    expect_post(fixture, "/v1/drain?reason=new%20kernel", LINES, "", 200, "\"audit\":");
    await_text(fixture, "/v1/drain", DRAINED);
    EVENTUALLY((next = node_find_master(index)) >= 0);
    return next;
}

static void member_undrain(int index) {
    const struct fixture *fixture = &node.members[index].fixture;
    expect_post(fixture, "/v1/undrain", LINES, "", 200, "\"audit\":null");
    await_text(fixture, "/v1/drain", SERVING);
}

/* E11: in each round, two masters are drained one after the other while clients take units. */
TEST(drains_of_a_node_under_load_forget_nothing) {
    static long before[LOADS][KEYS];
    memset(before, 0, sizeof before);
    start_node("30");
    for (int i = 0, count = rounds("DOORMAN_RESTARTS", 2); i < count; i++) {
        int master = node_await_master();
        loads_start();
        for (int k = 0; k < 2; k++) {
            sleep_ms(100); /* of load */
            int next = member_drain(master);
            assert_int_not_equal(next, master);
            process_await(node.members[next].process, "msg=\"leases and holds taken over\"", 1);
            member_undrain(master);
            master = next;
        }
        loads_stop();
        assert_int_equal(account_compare(master, before, 0, 0), 0);
    }
}

static bool is_ready(const struct fixture *fixture) {
    char *response = get(fixture, "/readyz", LINES);
    bool ready = code_of(response) == 200;
    free(response);
    return ready;
}

/* E11: an undrain comes at any moment of a drain. Then the process stays master, or gives the
 * mastership back and stands for election again. */
TEST(drains_that_are_called_off_forget_nothing) {
    static const int delays[] = {0, 1, 2, 4, 8, 16, 32, 64}; /* in milliseconds */
    static long before[LOADS][KEYS];
    memset(before, 0, sizeof before);
    start_node("30");
    node_await_master();
    loads_start();
    for (size_t i = 0; i < sizeof delays / sizeof *delays; i++) {
        const struct fixture *fixture = &node.members[node_await_master()].fixture;
        expect_post(fixture, "/v1/drain", LINES, "", 200, "\"audit\":");
        sleep_ms(delays[i]);
        expect_post(fixture, "/v1/undrain", LINES, "", 200, "\"audit\":");
        await_text(fixture, "/v1/drain", SERVING);
    }
    loads_stop();
    assert_int_equal(account_compare(node_await_master(), before, 0, 0), 0);
    for (int i = 0; i < MEMBERS; i++) {
        EVENTUALLY(is_ready(&node.members[i].fixture));
    }
}

TEST(a_drained_process_names_the_master_and_is_not_ready) {
    start_node("30");
    int master = node_await_master();
    const struct fixture *fixture = &node.members[master].fixture;
    take(fixture, "ann", 10);
    expect(fixture, "/readyz", LINES, 200, "ready");
    int next = member_drain(master);
    await_text(fixture, "/v1/status", "\"master_address\":\"tcp");
    expect(fixture, "/readyz", LINES, 503, "drained");
    expect(fixture, "/v1/status", LINES, 200, "\"drain\":{\"state\":\"drained\"");
    expect(fixture, "/v1/status", LINES, 200, "\"reason\":\"new kernel\"");
    expect(fixture, "/", LINES, 200, "new kernel");
    assert_true(gauge(fixture, "doorman_server_is_drained") >= 1);
    process_await(node.members[master].process, "msg=\"this process is drained\"", 1);
    assert_int_equal(used(&node.members[next].fixture, "ann"), 10);
    process_signal(node.members[master].process, SIGTERM);
    process_end(node.members[master].process, 0);
}

/* A drained process does not stand for election, even if no other process is left. */
TEST(a_drained_process_becomes_master_after_an_undrain_only) {
    start_node("6");
    int master = node_await_master();
    const struct fixture *fixture = &node.members[master].fixture;
    (void)member_drain(master);
    for (int i = 0; i < MEMBERS; i++) {
        if (i == master) continue;
        process_signal(node.members[i].process, SIGTERM);
        process_end(node.members[i].process, 0);
    }
    await_text(fixture, "/v1/status", "\"master_address\":null");
    assert_true(gauge(fixture, "doorman_server_is_master") <= 0);
    member_undrain(master);
    EVENTUALLY(member_decides(master));
    expect(fixture, "/readyz", LINES, 200, "ready");
}

/* A standby writes its drain and undrain to the audit as soon as it is master. */
TEST(a_drain_of_a_standby_is_in_its_log_and_later_in_the_audit) {
    start_node("30");
    int master = node_await_master(), standby = (master + 1) % MEMBERS;
    const struct fixture *fixture = &node.members[standby].fixture;
    expect_post(fixture, "/v1/drain?reason=disk", LINES, "", 200, "\"audit\":null");
    await_text(fixture, "/v1/drain", DRAINED);
    process_await(node.members[standby].process,
                  "msg=\"an act that is not in the audit\" what=drain", 1);
    expect_post(fixture, "/v1/drain?reason=other", LINES, "", 200, "\"reason\":\"disk\"");
    assert_true(member_decides(master));
    member_undrain(standby);
    for (int i = 0; i < MEMBERS; i++) {
        if (i == standby) continue;
        process_signal(node.members[i].process, SIGTERM);
        process_end(node.members[i].process, 0);
    }
    EVENTUALLY(member_decides(standby));
    await_text(fixture, "/v1/audit", "\"what\":\"undrain\"");
    await_text(fixture, "/v1/audit", "\"what\":\"drain\",\"reason\":\"disk\"");
}

/* The row of the audit that waits for a mastership is lost when the process ends. */
TEST(a_drained_standby_ends_as_any_other) {
    start_node("30");
    int standby = (node_await_master() + 1) % MEMBERS;
    expect_post(&node.members[standby].fixture, "/v1/drain", LINES, "", 200, "\"audit\":null");
    process_signal(node.members[standby].process, SIGTERM);
    process_end(node.members[standby].process, 0);
}

/* If the store cannot take the changes, no grant may be lost: the process stays master. */
TEST(a_drain_is_called_off_if_the_store_fails) {
    start_node("6");
    int master = node_await_master();
    const struct fixture *fixture = &node.members[master].fixture;
    take(fixture, "ann", 10);
    await_written(fixture);
    redis_kill(&node.redis);
    take(fixture, "ann", 1000);
    expect_post(fixture, "/v1/drain", LINES, "", 503, "nothing was changed");
    take(fixture, "ann", 100);
    redis_start(&node.redis);
    await_written(fixture);
    int next = member_drain(master);
    assert_int_equal(used(&node.members[next].fixture, "ann"), 1110);
}

/* ---- a single process ----------------------------------------------------------------------- */

static struct fixture start_alone(const char *config) {
    char path[96];
    state_path(path);
    const char *const more[] = {"--node", "n", "--http-token", tokens_make(), NULL};
    return start(config, path, more);
}

/* An undrain is written when the process is master again. If the store fails then, it waits again,
 * and later acts are refused or made as usual. */
TEST(an_undrain_that_cannot_be_written_waits_again) {
    char path[96];
    sqlite3 *database = NULL;
    state_path(path);
    const char *const more[] = {"--node", "n", "--http-token", tokens_make(), NULL};
    struct fixture fixture = start(QUOTA, path, more);
    take(&fixture, "ann", 1);
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database,
                                  "CREATE TRIGGER refuse BEFORE INSERT ON administration WHEN "
                                  "NEW.note LIKE '%undrain%' OR NEW.note LIKE '%ticket%' "
                                  "BEGIN SELECT RAISE(FAIL, 'no room'); END",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    expect_post(&fixture, "/v1/drain?force=1", LINES, "", 200, "\"audit\":1");
    await_text(&fixture, "/v1/drain", DRAINED);
    expect_post(&fixture, "/v1/undrain", LINES, "", 200, "\"audit\":null");
    await_text(&fixture, "/v1/allow?resource=maps&key=ann", "GRANTED");
    for (int i = 0; i < 3; i++) {
        expect_post(&fixture, "/v1/reset?reason=ticket", LINES,
                    "{\"entry\": [{\"resource_id\": \"maps\", \"key\": \"ann\"}]}", 503, "no room");
    }
    assert_int_equal(sqlite3_exec(database, "DROP TRIGGER refuse", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(database);
    await_text(&fixture, "/v1/audit", "\"what\":\"undrain\"");
    server_stop(&fixture.server);
}

TEST(without_another_process_a_drain_must_be_forced) {
    struct fixture fixture = start_alone(QUOTA);
    expect_post(&fixture, "/v1/drain", READER, "", 403, "needs a token with the role admin");
    expect_post(&fixture, "/v1/drain?reason=a&reason=b", LINES, "", 400, "reason: occurs twice");
    expect_post(&fixture, "/v1/drain?why=a", LINES, "", 400, "why: is no parameter");
    expect_post(&fixture, "/v1/drain", LINES, "", 409, "add force=1");
    expect(&fixture, "/v1/drain", READER, 200, SERVING);
    expect_post(&fixture, "/v1/undrain", LINES, "", 200, SERVING);
    expect(&fixture, "/v1/allow?resource=maps&key=ann", LINES, 200, "GRANTED");
    expect_post(&fixture, "/v1/drain?force=1&reason=move", LINES, "", 200, "\"audit\":1");
    await_text(&fixture, "/v1/drain", DRAINED);
    expect(&fixture, "/v1/allow?resource=maps&key=ann", LINES, 503, "master");
    expect_post(&fixture, "/v1/undrain?reason=back", LINES, "", 200, "\"audit\":null");
    await_text(&fixture, "/v1/drain", SERVING);
    await_text(&fixture, "/v1/allow?resource=maps&key=ann", "\"remaining\":999998");
    await_text(&fixture, "/v1/audit", "\"what\":\"undrain\",\"reason\":\"back\"");
    expect(&fixture, "/v1/audit", LINES, 200,
           "\"what\":\"drain\",\"reason\":\"move\",\"force\":true");
    process_await(fixture.server.process, "msg=\"leases and holds taken over\"", 1);
    expect_post(&fixture, "/v1/drain?force=1", LINES, "", 200, "\"audit\":3");
    await_text(&fixture, "/v1/drain", DRAINED);
    server_stop(&fixture.server);
}

/* Without --state nothing lasts, so the process learns after an undrain, as after a start. */
TEST(a_process_without_a_store_can_be_drained) {
    struct fixture fixture =
        fixture_start(QUOTA, (const char *[]){"--http-token", tokens_make(), NULL});
    expect_post(&fixture, "/v1/drain?force=1", LINES, "", 200, DRAINED);
    expect(&fixture, "/readyz", LINES, 503, "drained");
    expect(&fixture, "/v1/allow?resource=maps&key=ann", LINES, 503, "master");
    expect_post(&fixture, "/v1/undrain", LINES, "", 200, SERVING);
    await_text(&fixture, "/v1/allow?resource=maps&key=ann", "GRANTED");
    server_stop(&fixture.server);
}
