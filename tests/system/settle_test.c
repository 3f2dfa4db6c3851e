/* Reservations of a real server: over HTTP, on its pages, and in its store, over planned restarts
 * and crashes (P27, P28). */
#define _GNU_SOURCE
#include "state_fixture.h"

#define RESERVE(id, cost)                                                                          \
    "{\"client_id\": \"gw\", \"permit\": [{\"request_id\": " #id ", \"settle_within\": 3000, "     \
    "\"item\": [{\"resource_id\": \"maps\", \"key\": \"ann\", \"cost\": " #cost "}]}]}"
#define SETTLE(id, cost)                                                                           \
    "{\"client_id\": \"gw\", \"entry\": [{\"request_id\": " #id ", \"item\": [{\"resource_id\": "  \
    "\"maps\", \"key\": \"ann\", \"cost\": " #cost "}]}]}"

static void reserve(struct fixture *fixture, const char *body) {
    expect_post(fixture, "/v1/acquire", HOST JSON, body, 200, "\"reservation\":{\"id\":");
}

static void settle(struct fixture *fixture, const char *body, const char *expected) {
    expect_post(fixture, "/v1/settle", HOST JSON, body, 200, expected);
}

TEST(what_was_not_used_comes_back_over_http) {
    struct fixture fixture = fixture_start(QUOTA, NULL);
    reserve(&fixture, RESERVE(1, 1000));
    expect(&fixture, "/v1/holds", HOST, 200,
           "\"reservations\":1,\"oldest_reservations\":[{\"holder\":\"g...\"");
    expect(&fixture, "/holds", HOST, 200, "<h2>Reservations</h2><p class=soft>1 in all</p>");
    assert_int_equal(used(&fixture, "ann"), 1000);
    settle(&fixture, SETTLE(1, 300), "\"item\":[{\"returned\":700,\"charged\":0}]");
    settle(&fixture, SETTLE(1, 300), "\"item\":[{\"returned\":700,\"charged\":0}]");
    settle(&fixture, SETTLE(1, 301), "{\"reason\":\"REPEATED\"}");
    settle(&fixture, SETTLE(2, 5), "{\"unknown\":true,\"item\":[{\"returned\":0,\"charged\":5}]}");
    assert_int_equal(used(&fixture, "ann"), 305);
    expect(&fixture, "/v1/holds", HOST, 200, "\"reservations\":0,\"oldest_reservations\":[]");
    server_stop(&fixture.server);
}

TEST(wrong_settles_are_refused_with_the_path) {
    static const struct {
        const char *body, *error;
    } wrong[] = {
        {SETTLE(0, 1), "entry[0].request_id: must be"},
        {SETTLE(1, -1), "entry[0].item[0].cost: must be"},
        {SETTLE(1, 1e16), "entry[0].item[0].cost: must be"},
        {SETTLE(1, null), "entry[0].item[0].cost: must be"},
        {"{\"client_id\": \"gw\", \"entry\": [{\"item\": []}]}",
         "entry[0].id: exactly one of id and request_id must be given"},
        {"{\"client_id\": \"gw\", \"entry\": [{\"id\": 1}]}", "entry[0].item: is missing"},
        {"{\"client_id\": \"gw\", \"entry\": [{\"id\": 1, \"item\": []}]}",
         "entry[0].item: must be a list of items"},
        {"{\"entry\": []}", "client_id: is missing"},
    };
    struct fixture fixture = fixture_start(QUOTA, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        expect_post(&fixture, "/v1/settle", HOST JSON, wrong[i].body, 400, wrong[i].error);
    }
    expect_post(&fixture, "/v1/acquire", HOST JSON,
                "{\"client_id\": \"gw\", \"permit\": [{\"settle_within\": 9, \"item\": "
                "[{\"resource_id\": \"maps\"}]}]}",
                400, "permit[0].request_id: is needed with settle_within");
    expect_post(&fixture, "/v1/acquire", HOST JSON,
                "{\"client_id\": \"gw\", \"permit\": [{\"settle_within\": 3601, \"request_id\": 1, "
                "\"item\": [{\"resource_id\": \"maps\"}]}]}",
                400, "permit[0].settle_within: must be more than 0 and at most an hour");
    expect_post(&fixture, "/v1/acquire", HOST JSON,
                "{\"client_id\": \"gw\", \"permit\": [{\"settle_within\": 0, \"request_id\": 1, "
                "\"item\": [{\"resource_id\": \"maps\"}]}]}",
                400, "permit[0].settle_within: must be more than 0 and at most an hour");
    assert_int_equal(used(&fixture, "ann"), 0);
    server_stop(&fixture.server);
}

/* D1, D8 */
TEST(a_reservation_outlasts_planned_restarts) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    reserve(&fixture, RESERVE(1, 1000));
    reserve(&fixture, RESERVE(2, 100));
    settle(&fixture, SETTLE(2, 40), "\"returned\":60");
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 1040);
    reserve(&fixture, RESERVE(1, 1000)); /* a repeat */
    settle(&fixture, SETTLE(2, 40), "\"returned\":60");
    settle(&fixture, SETTLE(1, 300), "\"returned\":700");
    assert_int_equal(used(&fixture, "ann"), 340);
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, NULL);
    settle(&fixture, SETTLE(1, 300), "\"returned\":700");
    assert_int_equal(used(&fixture, "ann"), 340);
    server_stop(&fixture.server);
}

/* V8: what is written outlasts a crash. Nothing is charged twice. */
TEST(a_reservation_outlasts_a_crash) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    reserve(&fixture, RESERVE(1, 1000));
    reserve(&fixture, RESERVE(2, 100));
    settle(&fixture, SETTLE(2, 150), "\"charged\":50");
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 1150);
    settle(&fixture, SETTLE(2, 150), "\"charged\":50");
    settle(&fixture, SETTLE(1, 300), "\"returned\":700");
    assert_int_equal(used(&fixture, "ann"), 450);
    server_stop(&fixture.server);
}

#define REFUND ", \"unsettled\": \"refund\""
#define BOTH                                                                                       \
    MAPS(LIMIT("each",                                                                             \
               REFUND) ", " LIMIT("all", ", \"per\": \"resource\"" REFUND)) /* the same figures */
#define OF(key, id, within, cost)                                                                  \
    "{\"client_id\": \"gw\", \"permit\": [{\"request_id\": " #id ", \"settle_within\": " #within   \
    ", \"item\": [{\"resource_id\": \"maps\", \"key\": \"" key "\", \"cost\": " #cost "}]}]}"

/* Returns what all keys have used together. The answer shows the limit that has the least left. For
 * a key that has used nothing, this is the shared limit. */
static long used_by_all(const struct fixture *fixture) { return used(fixture, "nobody"); }

/* P27, V8: after a crash, a reservation that is settled or ends returns units to each counter that
 * was charged, and to no other counter. */
TEST(after_a_crash_units_come_back_to_the_counters_that_were_charged) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(BOTH, path, NULL);
    reserve(&fixture, OF("ann", 1, 3000, 1000));
    reserve(&fixture, OF("bob", 2, 3000, 50));
    reserve(&fixture, OF("cay", 3, 3, 700));
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(BOTH, path, NULL);
    settle(&fixture, SETTLE(1, 300), "\"returned\":700");
    EVENTUALLY(used_by_all(&fixture) == 350); /* the reservation of cay has ended */
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(BOTH, path, NULL);
    settle(&fixture, SETTLE(1, 300), "\"returned\":700"); /* a repeat */
    assert_int_equal(used_by_all(&fixture), 350);
    server_stop(&fixture.server);
}

#define FAIR                                                                                       \
    MAPS("{\"name\": \"pool\", \"kind\": \"TOKEN_BUCKET\", \"per\": \"resource\", \"fair\": "      \
         "true, \"rate\": 0.01, \"size\": 1000000}")

/* P27, P29: units that a key has reserved, but not used, can go to another key. */
TEST(what_a_key_of_a_fair_limit_did_not_use_is_there_for_others) {
    struct fixture fixture = fixture_start(FAIR, NULL);
    reserve(&fixture, OF("ann", 1, 3000, 900000));
    expect_post(&fixture, "/v1/acquire", HOST JSON, OF("bob", 2, 3000, 500000), 200, "REFUSED");
    settle(&fixture, SETTLE(1, 100000), "\"returned\":800000");
    EVENTUALLY(used(&fixture, "eve") <= 100000);
    server_stop(&fixture.server);
}

#define REPORT(id, cost)                                                                           \
    "{\"client_id\": \"gw\", \"entry\": [{\"request_id\": " #id ", \"resource_id\": \"maps\", "    \
    "\"key\": \"ann\", \"cost\": " #cost "}]}"

/* P28 */
TEST(a_report_with_a_request_id_counts_once_also_over_a_restart) {
    char path[96];
    state_path(path);
    for (int i = 0; i < 2; i++) {
        struct fixture fixture = start(QUOTA, path, NULL);
        expect_post(&fixture, "/v1/report", HOST JSON, REPORT(7, 30), 200, "[{\"charged\":30}]");
        expect_post(&fixture, "/v1/report", HOST JSON, REPORT(7, 30), 200, "[{\"charged\":30}]");
        expect_post(&fixture, "/v1/report", HOST JSON, REPORT(7, 31), 200,
                    "[{\"charged\":0,\"reason\":\"REPEATED\"}]");
        assert_int_equal(used(&fixture, "ann"), 30);
        server_stop(&fixture.server);
    }
}
