/* Tests permit clients that reserve and settle (P27), and whose reports count once (P28). Time is a
 * variable. The messages go to a real server object, and tests lose some of them. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HOUR (3600 * SECOND)

static const char limits[] =
    "{\"resources\": [{\"identifier_glob\": \"llm*\", \"limits\": [{\"name\": \"all\", \"kind\": "
    "\"FIXED_WINDOW\", \"per\": \"resource\", \"limit\": 1000000, \"window\": 1000000}]},"
    "{\"identifier_glob\": \"jobs\", \"limits\": [{\"name\": \"slots\", \"kind\": "
    "\"CONCURRENCY\", \"limit\": 2, \"time_to_live\": 30, \"on_restart\": \"full\"}, {\"name\": "
    "\"units\", \"kind\": "
    "\"FIXED_WINDOW\", \"limit\": 100, \"window\": 1000000}]}]}";

/* What happens to a message. */
enum loss { ARRIVES, REQUEST_IS_LOST, ANSWER_IS_LOST };

typedef struct world {
    doorman_config *config;
    doorman_server *server;
    doorman_permit_client *client;
    doorman_upstream *upstream;
    doorman_request request; /* the last message */
    doorman_time now;
    void *context; /* of the last result */
    doorman_acquired out;
} world;

static void server_start(world *w) {
    const doorman_server_options options = {
        .node = "n", .config = w->config, .seed = {random_bits(), 1}};
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_create(&w->server, &options, NULL, w->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
}

static world *world_start(doorman_permit_policy policy) {
    static const char *const addresses[] = {"tcp://a:1"};
    world *w = calloc(1, sizeof *w);
    const doorman_client_options options = {.client_id = "me",
                                            .addresses = addresses,
                                            .address_count = 1,
                                            .seed = random_bits() | 1,
                                            .permits = policy};
    w->now = 100 * SECOND;
    doorman_status status = doorman_json_config(&w->config, limits, strlen(limits), NULL);
    assert_int_equal(status, DOORMAN_OK);
    assert_int_equal(doorman_permit_client_create(&w->client, &options, NULL, w->now), DOORMAN_OK);
    w->upstream = doorman_permit_client_upstream(w->client);
    server_start(w);
    return w;
}

static void world_end(world *w) {
    doorman_permit_client_destroy(w->client);
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    free(w);
    assert_int_equal(memory_blocks(), 0);
}

/* Replaces the master by a new one, which knows nothing. */
static void change_master(world *w) {
    doorman_server_destroy(w->server);
    server_start(w);
}

/* Lets one message of the client travel. Returns whether there was one. */
static bool travel(world *w, enum loss loss) {
    doorman_response response;
    if (!doorman_upstream_request(w->upstream, &w->request, w->now)) return false;
    if (loss != REQUEST_IS_LOST) {
        doorman_error error = {0};
        doorman_status status =
            doorman_server_handle(w->server, &w->request, &response, &error, w->now);
        if (status != DOORMAN_OK) fail_msg("%s", error.text);
    }
    if (loss == ARRIVES) {
        doorman_status status =
            doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now);
        assert_int_equal(status, DOORMAN_OK);
    } else {
        doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
    }
    return true;
}

static void travel_all(world *w) {
    while (travel(w, ARRIVES)) {
    }
}

static void reserve(world *w, const char *resource_id, double cost, void *context) {
    const doorman_permit_item item = {.resource_id = resource_id, .key = "ann", .cost = cost};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .settle_within = 60 * SECOND};
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_acquire(w->client, &request, SECOND, context, &error, w->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
}

static doorman_settle_request settle_of(const doorman_permit_item *item, uint64_t reservation) {
    return (doorman_settle_request){.id = reservation, .items = item, .item_count = 1};
}

/* Settles a reservation. If the timeout is 0, there is no result. */
static void settle(world *w, const char *resource_id, uint64_t reservation, double cost,
                   doorman_time timeout) {
    const doorman_permit_item item = {.resource_id = resource_id, .key = "ann", .cost = cost};
    doorman_settle_request request = settle_of(&item, reservation);
    request.timeout = timeout;
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_settle(w->client, &request, (void *)99, &error, w->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
}

static bool next(world *w) {
    return doorman_permit_client_next(w->client, &w->context, &w->out, w->now);
}

/* Reserves units, which the server grants. Returns the number of the reservation. */
static uint64_t reserved(world *w, double cost) {
    reserve(w, "llm", cost, NULL);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted && w->out.reservation);
    return w->out.reservation;
}

static double used_of(world *w, const char *resource_id, size_t index) {
    doorman_permit out;
    doorman_permits *permits = doorman_server_permits(w->server);
    doorman_status status =
        doorman_permits_inspect(permits, ITEM_OF(resource_id, "ann"), &out, NULL, w->now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(index < out.detail_count);
    return out.details[index].used;
}

static double used(world *w) { return used_of(w, "llm", 0); }

static doorman_permit_client_info info_of(const world *w) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->client, &info);
    return info;
}

/* ---- reserve and settle (P27) --------------------------------------------------------------- */

TEST(what_a_reservation_did_not_cost_comes_back) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    const uint64_t number = reserved(w, 40);
    assert_int_equal(w->out.settle_by, w->now + 60 * SECOND);
    assert_exact(used(w), 40);
    settle(w, "llm", number, 15, SECOND);
    assert_false(next(w));
    travel_all(w);
    assert_true(next(w));
    assert_ptr_equal(w->context, (void *)99);
    assert_true(w->out.granted && !w->out.late && !w->out.unknown);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_SERVER);
    assert_exact(w->out.units[0], -25);
    assert_exact(used(w), 15);
    settle(w, "llm", reserved(w, 5), 8, SECOND);
    travel_all(w);
    assert_true(next(w));
    assert_exact(w->out.units[0], 3);
    assert_exact(used(w), 23);
    assert_int_equal(info_of(w).settled, 2);
    world_end(w);
}

TEST(a_reservation_is_settled_once) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    const uint64_t number = reserved(w, 40);
    settle(w, "llm", number, 15, 0);
    travel_all(w);
    assert_false(next(w));
    settle(w, "llm", number, 16, SECOND);
    travel_all(w);
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_int_equal(w->out.reason, DOORMAN_REASON_REPEATED);
    assert_exact(used(w), 15);
    assert_int_equal(info_of(w).unsettled, 1);
    world_end(w);
}

TEST(a_permit_without_settle_within_reserves_nothing) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    const doorman_permit_item item = {.resource_id = "llm", .key = "ann", .cost = 5};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted);
    assert_int_equal(w->out.reservation, 0);
    settle(w, "llm", w->out.reservation, 1, SECOND);
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_CALLER);
    assert_false(travel(w, ARRIVES));
    assert_exact(used(w), 5);
    world_end(w);
}

TEST(a_settle_whose_answer_was_lost_is_sent_again_and_counts_once) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    const uint64_t number = reserved(w, 40);
    settle(w, "llm", number, 50, 0);
    for (int i = 0; i < 4; i++) assert_true(travel(w, ANSWER_IS_LOST));
    assert_exact(used(w), 50);
    assert_true(travel(w, ARRIVES));
    assert_false(travel(w, ARRIVES));
    assert_exact(used(w), 50);
    assert_int_equal(info_of(w).settled, 1);
    assert_int_equal(info_of(w).unsettled, 0);
    world_end(w);
}

/* The caller gets a result in time, and the settle continues. */
TEST(a_settle_continues_after_the_timeout_of_its_caller) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    settle(w, "llm", reserved(w, 40), 7, SECOND);
    assert_true(travel(w, REQUEST_IS_LOST));
    w->now += SECOND - 1;
    assert_false(next(w));
    w->now += 1;
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_FALLBACK);
    travel_all(w);
    assert_exact(used(w), 7);
    assert_int_equal(info_of(w).settled, 1);
    world_end(w);
}

/* A server remembers a settlement for a minute, so a client repeats a settle for less than 45 s.
 * Meanwhile the breaker can pause all messages, each time for up to 30 s or `max_pause`. */
TEST(a_settle_is_not_sent_for_longer_than_a_server_remembers_it) {
    const struct {
        doorman_time max_pause, least; /* for which it is sent at least */
    } cases[] = {{0, 15 * SECOND}, {SECOND, 43 * SECOND}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        world *w = world_start((doorman_permit_policy){.max_pause = cases[i].max_pause});
        settle(w, "llm", reserved(w, 40), 50, 0);
        const doorman_time first = w->now;
        doorman_time last = 0;
        while (doorman_upstream_due(w->upstream) < DOORMAN_NEVER) {
            w->now = doorman__later(w->now, doorman_upstream_due(w->upstream));
            if (travel(w, ANSWER_IS_LOST)) last = w->now;
            (void)next(w);
        }
        assert_in_range(last - first, cases[i].least, 45 * SECOND - 1);
        assert_int_equal(info_of(w).unsettled, 1);
        assert_exact(used(w), 50);
        world_end(w);
    }
}

/* Without a server the breaker opens. A settle waits up to 5 minutes until it can be sent for the
 * first time. */
TEST(a_settle_waits_until_a_server_can_be_reached) {
    world *w = world_start((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    const uint64_t first = reserved(w, 40), second = reserved(w, 40);
    for (int i = 0; i < 5; i++) {
        reserve(w, "llm", 1, NULL);
        while (!info_of(w).is_pausing && travel(w, REQUEST_IS_LOST)) {
        }
    }
    assert_true(info_of(w).is_pausing);
    while (next(w)) assert_false(w->out.granted);
    settle(w, "llm", first, 10, 5 * SECOND);
    assert_false(travel(w, ARRIVES));
    w->now += 4 * 60 * SECOND;
    assert_true(next(w));
    assert_int_equal(w->out.decided_by, DOORMAN_BY_FALLBACK);
    travel_all(w);
    assert_exact(used(w), 80); /* the settle is late: no units come back */
    settle(w, "llm", second, 45, 0);
    travel_all(w);
    assert_exact(used(w), 85);
    world_end(w);
}

TEST(a_settle_that_no_server_takes_is_lost_after_5_minutes) {
    world *w = world_start((doorman_permit_policy){.max_pause = 3600 * SECOND});
    const uint64_t number = reserved(w, 40);
    for (int i = 0; i < 14; i++) {
        reserve(w, "llm", 1, NULL);
        while (!info_of(w).is_pausing && travel(w, REQUEST_IS_LOST)) {
        }
        if (i < 13) w->now = doorman__later(w->now, w->upstream->retry_at);
    }
    while (next(w)) assert_true(w->out.granted);
    settle(w, "llm", number, 10, 0);
    w->now += 300 * SECOND - 1;
    assert_false(next(w));
    assert_int_equal(info_of(w).unsettled, 0);
    w->now += 1;
    assert_false(next(w));
    assert_int_equal(info_of(w).unsettled, 1);
    world_end(w);
}

/* The new master does not know the reservation, so it charges the real cost. */
TEST(a_settle_survives_a_change_of_master) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    settle(w, "llm", reserved(w, 40), 15, SECOND);
    assert_true(travel(w, REQUEST_IS_LOST));
    change_master(w);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted && w->out.unknown);
    assert_exact(w->out.units[0], 15);
    assert_exact(used(w), 15);
    world_end(w);
}

TEST(too_many_settles_are_lost_and_counted) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    for (size_t i = 0; i < DOORMAN__SETTLES_MAX; i++) settle(w, "llm", i + 1, 1, 0);
    assert_int_equal(info_of(w).unsettled, 0);
    settle(w, "llm", 77777, 1, SECOND);
    assert_int_equal(info_of(w).unsettled, 1);
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_FALLBACK);
    travel_all(w);
    assert_exact(used(w), (double)DOORMAN__SETTLES_MAX);
    settle(w, "llm", 77777, 1, 0);
    travel_all(w);
    assert_exact(used(w), (double)DOORMAN__SETTLES_MAX + 1);
    world_end(w);
}

/* A server whose rows are not read yet says LEARNING. */
TEST(a_settle_is_repeated_while_a_server_learns) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    settle(w, "llm", reserved(w, 40), 15, 0);
    const doorman_settlement learning = {.reason = DOORMAN_REASON_LEARNING};
    const doorman_response response = {.method = DOORMAN_SETTLE,
                                       .is_master = true,
                                       .settlements = &learning,
                                       .settlement_count = 1};
    for (int i = 0; i < 100; i++) {
        assert_true(doorman_upstream_request(w->upstream, &w->request, w->now));
        assert_int_equal(
            doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now),
            DOORMAN_OK);
        assert_false(doorman_upstream_request(w->upstream, &w->request, w->now));
        assert_int_equal(doorman_upstream_due(w->upstream), w->now + SECOND);
        w->now += SECOND;
    }
    travel_all(w);
    assert_int_equal(info_of(w).settled, 1);
    world_end(w);
}

/* ---- without a server ----------------------------------------------------------------------- */

/* No server knows a reservation that the fallback has granted, so the settle charges the real
 * cost. */
TEST(what_the_fallback_has_granted_is_charged_when_it_is_settled) {
    world *w = world_start((doorman_permit_policy){.fallback = DOORMAN_FAIL_OPEN});
    reserve(w, "llm", 40, NULL);
    while (travel(w, REQUEST_IS_LOST)) {
    }
    assert_true(next(w));
    assert_true(w->out.granted && w->out.reservation);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_FALLBACK);
    assert_int_equal(w->out.settle_by, w->now + 60 * SECOND);
    settle(w, "llm", w->out.reservation, 15, SECOND);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted && w->out.unknown);
    assert_exact(used(w), 15);
    world_end(w);
}

/* The fallback grants after the server has granted and its answer was lost: nothing is charged
 * twice. */
TEST(what_a_server_has_granted_too_is_settled) {
    world *w = world_start((doorman_permit_policy){.fallback = DOORMAN_FAIL_OPEN});
    reserve(w, "llm", 40, NULL);
    while (travel(w, ANSWER_IS_LOST)) {
    }
    assert_exact(used(w), 40);
    assert_true(next(w));
    assert_int_equal(w->out.decided_by, DOORMAN_BY_FALLBACK);
    settle(w, "llm", w->out.reservation, 15, SECOND);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted && !w->out.unknown);
    assert_exact(used(w), 15);
    world_end(w);
}

/* A caller that is refused does not settle. So the client settles what the server has reserved. */
TEST(a_refused_caller_leaves_no_reservation) {
    world *w = world_start((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    reserve(w, "llm", 40, NULL);
    assert_true(travel(w, ANSWER_IS_LOST));
    assert_exact(used(w), 40);
    w->now += SECOND;
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_int_equal(w->out.reservation, 0);
    travel_all(w);
    assert_exact(used(w), 0);
    world_end(w);
}

TEST(a_permit_that_was_not_sent_is_not_settled) {
    world *w = world_start((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    reserve(w, "llm", 40, NULL);
    w->now += SECOND;
    assert_true(next(w));
    assert_false(w->out.granted);
    assert_false(travel(w, ARRIVES));
    world_end(w);
}

/* ---- the kill switch and shadow (P25) ------------------------------------------------------- */

TEST(a_bypassed_permit_is_settled_as_its_copy) {
    world *w = world_start((doorman_permit_policy){.shadow = true});
    reserve(w, "llm", 40, NULL);
    assert_true(next(w));
    assert_true(w->out.granted && w->out.reservation);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_BYPASS);
    travel_all(w);
    assert_exact(used(w), 40);
    settle(w, "llm", w->out.reservation, 15, 0);
    travel_all(w);
    assert_exact(used(w), 15);
    world_end(w);
}

TEST(a_bypassed_permit_that_a_server_refuses_is_not_charged) {
    world *w = world_start((doorman_permit_policy){.shadow = true});
    reserve(w, "llm", 2000000, NULL);
    assert_true(next(w));
    const uint64_t number = w->out.reservation;
    travel_all(w);
    assert_int_equal(info_of(w).bypassed, 1);
    settle(w, "llm", number, 15, SECOND);
    assert_true(next(w));
    assert_true(w->out.granted);
    assert_int_equal(w->out.decided_by, DOORMAN_BY_BYPASS);
    assert_false(travel(w, ARRIVES));
    assert_exact(used(w), 0);
    world_end(w);
}

/* An idle client forgets the copies that it sent in shadow. */
TEST(refused_copies_are_forgotten) {
    world *w = world_start((doorman_permit_policy){.shadow = true});
    for (int i = 0; i < 3; i++) {
        reserve(w, "llm", 2000000, NULL);
        travel_all(w);
        while (next(w)) {
        }
        w->now += SECOND;
    }
    assert_int_equal(w->client->copies.table.count, 3);
    w->now += HOUR;
    assert_false(next(w));
    assert_int_equal(w->client->copies.table.count, 0);
    world_end(w);
}

TEST(the_kill_switch_keeps_the_reservation_of_a_permit_under_way) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    reserve(w, "llm", 40, NULL);
    doorman_permit_client_kill_switch(w->client, true);
    assert_true(next(w));
    assert_int_equal(w->out.decided_by, DOORMAN_BY_BYPASS);
    assert_true(w->out.reservation);
    settle(w, "llm", w->out.reservation, 15, 0);
    travel_all(w);
    assert_exact(used(w), 15);
    world_end(w);
}

/* ---- holds ---------------------------------------------------------------------------------- */

TEST(a_settle_releases_the_hold_of_its_permit) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    uint64_t hold = 0;
    const doorman_permit_item item = {.resource_id = "jobs", .key = "ann", .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .settle_within = 60 * SECOND, .hold = &hold};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    travel_all(w);
    assert_true(next(w));
    assert_true(w->out.granted && hold);
    assert_int_equal(w->out.hold, hold);
    assert_int_equal(w->out.reservation, hold);
    assert_exact(used_of(w, "jobs", 0), 1);
    settle(w, "jobs", hold, 3, 0);
    travel_all(w);
    assert_exact(used_of(w, "jobs", 0), 0);
    assert_exact(used_of(w, "jobs", 1), 3);
    assert_int_equal(info_of(w).hold_count, 0);
    world_end(w);
}

/* ---- reports that count once (P28) ---------------------------------------------------------- */

static void report(world *w, double cost) {
    const doorman_permit_item item = {.resource_id = "llm", .key = "ann", .cost = cost};
    assert_int_equal(doorman_permit_client_report(w->client, &item, NULL, w->now), DOORMAN_OK);
}

TEST(a_report_counts_once_if_the_policy_says_so) {
    for (int once = 0; once < 2; once++) {
        world *w = world_start((doorman_permit_policy){.report_once = once});
        report(w, 5);
        assert_true(travel(w, ANSWER_IS_LOST));
        assert_int_equal(!w->request.entries[0].request_id, !once);
        assert_true(travel(w, ARRIVES));
        assert_exact(used(w), once ? 5 : 10);
        report(w, 5);
        travel_all(w);
        assert_exact(used(w), once ? 10 : 15);
        assert_int_equal(info_of(w).reported, 2);
        world_end(w);
    }
}

/* The server has no room to remember another report. */
TEST(a_report_that_a_server_cannot_remember_is_charged_without_an_id) {
    world *w = world_start((doorman_permit_policy){.report_once = true});
    report(w, 5);
    assert_true(doorman_upstream_request(w->upstream, &w->request, w->now));
    const doorman_permit_result result = {.reason = DOORMAN_REASON_REPEATS};
    const doorman_response response = {
        .method = DOORMAN_REPORT, .is_master = true, .results = &result, .result_count = 1};
    assert_int_equal(doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now),
                     DOORMAN_OK);
    assert_int_equal(info_of(w).reported, 0);
    assert_true(travel(w, ARRIVES));
    assert_int_equal(w->request.entries[0].request_id, 0);
    assert_exact(used(w), 5);
    assert_int_equal(info_of(w).reported, 1);
    world_end(w);
}

/* Reads the rows of the master, changes the master, and lets the new one wait for the rows. Returns
 * how many rows there are. */
static size_t change_master_with_rows(world *w, unsigned char rows[][DOORMAN_PERMIT_ROW_BYTES_MAX],
                                      size_t bytes[], size_t most) {
    size_t count = 0;
    doorman_permits *permits = doorman_server_permits(w->server);
    while ((bytes[count] = doorman_permits_next_changed(permits, rows[count], w->now))) {
        assert_true(++count < most);
    }
    change_master(w);
    permits = doorman_server_permits(w->server);
    assert_int_equal(doorman_permits_set_rows(permits, DOORMAN_ROWS_AWAITED), DOORMAN_OK);
    return count;
}

/* P28: the answer of the old master is lost, and the new master does not know yet what the old
 * master has counted. */
TEST(a_report_keeps_its_id_while_a_new_master_learns) {
    static unsigned char rows[8][DOORMAN_PERMIT_ROW_BYTES_MAX];
    size_t bytes[8];
    world *w = world_start((doorman_permit_policy){.report_once = true});
    doorman_permits_set_epoch(doorman_server_permits(w->server), w->now, w->now);
    report(w, 5);
    assert_true(travel(w, ANSWER_IS_LOST));
    const uint64_t id = w->request.entries[0].request_id;
    const size_t count = change_master_with_rows(w, rows, bytes, 8);
    assert_int_equal(count, 2); /* the counter and the report */
    for (int i = 0; i < 20; i++) {
        assert_true(travel(w, ARRIVES));
        assert_int_equal(w->request.entries[0].request_id, id);
        assert_int_equal(info_of(w).reported, 0);
        assert_false(travel(w, ARRIVES));
        assert_int_equal(doorman_upstream_due(w->upstream), w->now + SECOND);
        w->now += SECOND;
    }
    doorman_permits *permits = doorman_server_permits(w->server);
    doorman_permits_set_epoch(permits, w->now, w->now);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(doorman_permits_restore(permits, rows[i], bytes[i], NULL, w->now),
                         DOORMAN_OK);
    }
    assert_int_equal(doorman_permits_set_rows(permits, DOORMAN_ROWS_READ), DOORMAN_OK);
    travel_all(w);
    assert_exact(used(w), 5);
    assert_int_equal(info_of(w).reported, 1);
    assert_exact(info_of(w).uncharged, 0);
    world_end(w);
}

/* Answers the next report with LEARNING. */
static void refuse_to_learn(world *w) {
    const doorman_permit_result result = {.reason = DOORMAN_REASON_LEARNING};
    const doorman_response response = {
        .method = DOORMAN_REPORT, .is_master = true, .results = &result, .result_count = 1};
    assert_true(doorman_upstream_request(w->upstream, &w->request, w->now));
    assert_int_equal(doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now),
                     DOORMAN_OK);
}

/* P28: a server refuses a report for at most 10 minutes. A client gives up after 11 minutes. */
TEST(a_report_is_lost_if_servers_learn_for_longer_than_they_may) {
    world *w = world_start((doorman_permit_policy){.report_once = true});
    report(w, 5);
    const doorman_time begin = w->now;
    for (; w->now - begin < 660 * SECOND; w->now += SECOND) {
        refuse_to_learn(w);
        assert_int_equal(info_of(w).lost, 0);
    }
    assert_false(travel(w, ARRIVES));
    assert_int_equal(info_of(w).lost, 1);
    assert_int_equal(info_of(w).reported, 0);
    assert_int_equal(doorman_upstream_due(w->upstream), DOORMAN_NEVER);
    world_end(w);
}

/* A report that a server did not count while it learned counts towards the bound of 10,000. This
 * report survives an outage, but the other reports are lost. */
TEST(reports_that_wait_are_bounded_and_stay_in_an_outage) {
    world *w = world_start((doorman_permit_policy){.report_once = true});
    report(w, 5);
    refuse_to_learn(w);
    for (int i = 0; i < 9999; i++) report(w, 5);
    assert_int_equal(info_of(w).lost, 0);
    report(w, 5);
    assert_int_equal(info_of(w).lost, 1);
    while (travel(w, REQUEST_IS_LOST)) continue; /* the breaker opens */
    assert_int_equal(info_of(w).lost, 10000);
    for (int i = 0; i < 100 && !info_of(w).reported; i++) {
        w->now += SECOND;
        travel_all(w);
    }
    assert_exact(used(w), 5);
    assert_int_equal(info_of(w).reported, 1);
    world_end(w);
}

/* ---- errors --------------------------------------------------------------------------------- */

TEST(wrong_settles_are_refused_with_the_name_of_the_field) {
    world *w = world_start((doorman_permit_policy){.shadow = false});
    doorman_error error;
    doorman_permit_item item = {.resource_id = "llm", .cost = -1};
    doorman_settle_request request = settle_of(&item, 1);
    const struct {
        double cost;
        bool has_min;
        uint64_t id;
        doorman_time timeout;
        const char *text;
    } cases[] = {{-1, false, 1, 0, "items[0].cost: "},
                 {1, true, 1, 0, "items[0].min: only a permit has one"},
                 {1, false, UINT64_C(1) << 53, 0, "id: must be at most 2^53 - 1"},
                 {1, false, 1, -1, "timeout: "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        item.cost = cases[i].cost;
        item.has_min = cases[i].has_min;
        request.id = cases[i].id;
        request.timeout = cases[i].timeout;
        assert_int_equal(doorman_permit_client_settle(w->client, &request, NULL, &error, w->now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, cases[i].text));
    }
    assert_false(travel(w, ARRIVES));
    world_end(w);
}

/* ---- everything at random ------------------------------------------------------------------- */

#define STORIES 200

/* Each reservation is charged once, with its real cost, whatever messages are lost. */
TEST(lost_messages_never_charge_twice_or_not_at_all) {
    for (int round = 0; round < 30; round++) {
        const doorman_permit_policy policies[] = {
            {.fallback = DOORMAN_FAIL_OPEN}, {.fallback = DOORMAN_FAIL_CLOSED}, {.shadow = true}};
        world *w = world_start(policies[random_below(3)]);
        double expected = 0;
        uint64_t waiting[STORIES];
        size_t waiting_count = 0;
        for (int i = 0; i < STORIES; i++) {
            if (random_below(2)) reserve(w, "llm", (double)random_below(50), NULL);
            w->now += (doorman_time)random_below(SECOND / 5);
            while (random_below(4) && travel(w, random_below(3)   ? ARRIVES
                                                : random_below(2) ? REQUEST_IS_LOST
                                                                  : ANSWER_IS_LOST)) {
            }
            while (next(w)) {
                if (w->context) continue; /* a settle */
                if (w->out.granted) waiting[waiting_count++] = w->out.reservation;
            }
            if (waiting_count && random_below(2)) {
                const double cost = (double)random_below(80);
                expected += cost;
                settle(w, "llm", waiting[--waiting_count], cost, random_below(2) ? SECOND / 2 : 0);
            }
        }
        while (waiting_count) settle(w, "llm", waiting[--waiting_count], 0, 0);
        for (int i = 0; i < 20; i++, w->now += SECOND) {
            travel_all(w);
            while (next(w)) {
                if (!w->context && w->out.granted) settle(w, "llm", w->out.reservation, 0, 0);
            }
        }
        assert_exact(used(w), expected);
        assert_int_equal(info_of(w).unsettled, 0);
        assert_int_equal(w->client->settle_count, 0);
        world_end(w);
    }
}
