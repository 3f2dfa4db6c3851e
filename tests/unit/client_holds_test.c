/* Tests holds of permit clients: ends, renewals, releases, transfers. Most tests check one promise
 * each. At the end, some clients with clocks of different rates use one server over a network that
 * loses and delays messages, and a plain account adds up what they use. */
#include "unit.h"

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (SECOND / 1000)

/* ---- a client whose server is played by the test -------------------------------------------- */

typedef struct world {
    doorman_permit_client *client;
    doorman_upstream *upstream, *lane;
    doorman_request request; /* the last message */
    doorman_time now;
    void *context;
    doorman_acquired acquired;
    doorman_held change;
    uint64_t hold; /* of the last acquire */
} world;

static world *world_start_with(doorman_permit_policy policy) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};
    world *w = calloc(1, sizeof *w);
    const doorman_client_options options = {.client_id = "me",
                                            .addresses = addresses,
                                            .address_count = 2,
                                            .seed = 7,
                                            .permits = policy};
    w->now = 100 * SECOND;
    assert_int_equal(doorman_permit_client_create(&w->client, &options, NULL, w->now), DOORMAN_OK);
    w->upstream = doorman_permit_client_upstream(w->client);
    return w;
}

static world *world_start(void) {
    return world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_OPEN});
}

static void world_end(world *w) {
    doorman_permit_client_destroy(w->client);
    free(w);
    assert_int_equal(memory_blocks(), 0);
}

static void acquire_for(world *w, double cost, doorman_time max_wait, doorman_time timeout) {
    const doorman_permit_item item = {.resource_id = "job", .key = "a", .cost = cost};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait, .hold = &w->hold};
    doorman_status status =
        doorman_permit_client_acquire(w->client, &request, timeout, w, NULL, w->now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(w->hold > 0 && w->hold < UINT64_C(1) << 53);
}

static bool take_from(world *w, doorman_upstream *upstream, doorman_method method) {
    doorman_request request;
    if (!doorman_upstream_request(upstream, &request, w->now)) return false;
    w->request = request;
    assert_int_equal(request.method, method);
    return true;
}

static void take(world *w, doorman_method method) {
    assert_true(take_from(w, w->upstream, method));
}

static bool is_quiet(world *w) {
    doorman_request request;
    return !doorman_upstream_request(w->upstream, &request, w->now);
}

static void respond_permit(world *w, doorman_upstream *upstream, const doorman_permit *permit) {
    const doorman_response response = {
        .method = DOORMAN_ACQUIRE, .is_master = true, .permits = permit, .permit_count = 1};
    assert_int_equal(doorman_upstream_response(upstream, w->request.sequence, &response, w->now),
                     DOORMAN_OK);
}

static void grant(world *w, uint64_t id, double units, doorman_time waited,
                  doorman_time expires_in) {
    const doorman_permit_grant item = {.granted = units, .limit = "slots"};
    const doorman_permit permit = {.granted = true,
                                   .items = &item,
                                   .item_count = 1,
                                   .hold_id = id,
                                   .waited = waited,
                                   .expires_in = expires_in};
    respond_permit(w, w->upstream, &permit);
}

static void respond_holds(world *w, const doorman_hold *holds, size_t count) {
    const doorman_response response = {
        .method = w->request.method, .is_master = true, .holds = holds, .hold_count = count};
    assert_int_equal(doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now),
                     DOORMAN_OK);
}

/* Answers the last message with one hold of one item. */
static void respond_hold(world *w, uint64_t id, double amount, doorman_time expires_in) {
    const doorman_hold_item item = {"job", "a", amount};
    const doorman_hold hold = {.id = id, .expires_in = expires_in, .items = &item, .item_count = 1};
    respond_holds(w, &hold, 1);
}

static void respond_gone(world *w) {
    const doorman_hold gone = {.gone = true};
    respond_holds(w, &gone, 1);
}

static bool next(world *w) {
    return doorman_permit_client_next(w->client, &w->context, &w->acquired, w->now);
}

static bool next_change(world *w) {
    return doorman_permit_client_next_change(w->client, &w->change, w->now);
}

static doorman_held held(const world *w) {
    doorman_held out;
    doorman_permit_client_read_hold(w->client, w->hold, &out);
    return out;
}

static void release(world *w) {
    const doorman_hold_request request = {.id = w->hold};
    assert_int_equal(doorman_permit_client_release(w->client, &request, NULL, w->now), DOORMAN_OK);
}

static void fail_message(world *w) {
    doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
}

static size_t hold_count(const world *w) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->client, &info);
    return info.hold_count;
}

/* Returns a client with a hold of 2 units that lasts from 100 s to 115 s. */
static world *world_with_hold(void) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND);
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].request_id, w->hold);
    grant(w, 77, 2, 0, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold == w->hold);
    return w;
}

/* ---- ends and renewals (P8) ----------------------------------------------------------------- */

TEST(a_hold_ends_as_counted_from_the_sending) {
    world *w = world_start_with((doorman_permit_policy){.drift = 0.25});
    acquire_for(w, 2, 0, SECOND);
    take(w, DOORMAN_ACQUIRE);
    w->now += SECOND / 2;
    grant(w, 77, 2, SECOND / 4, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted);
    doorman_time end = 100 * SECOND + SECOND / 5 + 15 * SECOND; /* 0.25 s / 1.25 */
    assert_int_equal(w->acquired.ends_at, end);
    assert_int_equal(held(w).ends_at, end);
    w->now = end - 1;
    take(w, DOORMAN_RENEW);
    assert_false(next_change(w));
    w->now = end;
    assert_true(next_change(w) && w->change.gone && w->change.hold == w->hold);
    assert_true(held(w).gone);
    world_end(w);
}

TEST(a_renewal_is_due_at_a_third_and_never_moves_the_end_back) {
    world *w = world_with_hold();
    assert_int_equal(doorman_upstream_due(w->upstream), 105 * SECOND);
    w->now = 105 * SECOND - 1;
    assert_true(is_quiet(w));
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    assert_int_equal(w->request.hold_count, 1);
    assert_int_equal(w->request.holds[0].id, 77);
    assert_int_equal(w->request.holds[0].item_count, 0);
    w->now += SECOND;
    respond_hold(w, 77, 2, 15 * SECOND);
    assert_int_equal(held(w).ends_at, 120 * SECOND);
    w->now = 110 * SECOND;
    take(w, DOORMAN_RENEW);
    respond_hold(w, 77, 2, 3 * SECOND); /* the configuration has changed */
    assert_int_equal(held(w).ends_at, 120 * SECOND);
    assert_int_equal(doorman_upstream_due(w->upstream), 111 * SECOND);
    world_end(w);
}

TEST(renewals_travel_together) {
    world *w = world_with_hold();
    w->now = 102 * SECOND;
    for (int i = 0; i < 5; i++) {
        acquire_for(w, 1, 0, SECOND);
        take(w, DOORMAN_ACQUIRE);
        grant(w, 80 + (uint64_t)i, 1, 0, 15 * SECOND);
    }
    while (next(w)) assert_true(w->acquired.granted);
    w->now = 105 * SECOND; /* past half of the time of the others */
    take(w, DOORMAN_RENEW);
    assert_int_equal(w->request.hold_count, 6);
    world_end(w);
}

TEST(after_gone_the_client_says_once_what_it_holds) {
    world *w = world_with_hold();
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    respond_gone(w);
    assert_false(next_change(w));
    take(w, DOORMAN_RENEW);
    assert_int_equal(w->request.holds[0].item_count, 1);
    assert_string_equal(w->request.holds[0].items[0].resource_id, "job");
    assert_string_equal(w->request.holds[0].items[0].key, "a");
    assert_float_equal(w->request.holds[0].items[0].amount, 2, 0);
    respond_hold(w, 77, 1, 15 * SECOND); /* the new master had only one free unit */
    assert_true(next_change(w) && !w->change.gone);
    assert_float_equal(w->change.units[0], 1, 0);
    assert_false(next_change(w));
    w->now = 110 * SECOND;
    take(w, DOORMAN_RENEW);
    assert_int_equal(w->request.holds[0].item_count, 0);
    respond_gone(w);
    take(w, DOORMAN_RENEW);
    respond_gone(w);
    assert_true(next_change(w) && w->change.gone);
    assert_int_equal(w->change.ends_at, 120 * SECOND); /* the client may use its units until then */
    assert_int_equal(hold_count(w), 0);
    assert_true(is_quiet(w));
    world_end(w);
}

TEST(a_failed_renewal_is_repeated_until_the_end) {
    world *w = world_with_hold();
    size_t failures = 0;
    w->now = 105 * SECOND;
    for (int i = 0; i < 1000 && w->now < 115 * SECOND; i++) {
        if (take_from(w, w->upstream, DOORMAN_RENEW)) {
            fail_message(w);
            failures++;
        }
        assert_false(w->now < 115 * SECOND && next_change(w));
        doorman_time due = doorman_upstream_due(w->upstream);
        w->now = due > w->now ? due : w->now;
    }
    assert_int_equal(w->now, 115 * SECOND);
    assert_true(failures > 5); /* the breaker has opened meanwhile */
    assert_true(next_change(w) && w->change.gone);
    world_end(w);
}

/* ---- releases ------------------------------------------------------------------------------- */

TEST(a_release_is_sent_once_and_forgets_the_hold) {
    world *w = world_with_hold();
    release(w);
    assert_true(held(w).gone);
    release(w);
    take(w, DOORMAN_RELEASE);
    assert_int_equal(w->request.hold_count, 1);
    assert_int_equal(w->request.holds[0].id, 77);
    assert_int_equal(w->request.holds[0].amount_count, 0);
    release(w);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 0);
    release(w);
    assert_true(is_quiet(w));
    assert_false(next_change(w));
    world_end(w);
}

TEST(a_release_can_keep_units) {
    world *w = world_with_hold();
    const double keep = 0.5;
    const doorman_hold_request request = {.id = w->hold, .amounts = &keep, .amount_count = 1};
    assert_int_equal(doorman_permit_client_release(w->client, &request, NULL, w->now), DOORMAN_OK);
    assert_float_equal(held(w).units[0], 0.5, 0);
    take(w, DOORMAN_RELEASE);
    assert_float_equal(w->request.holds[0].amounts[0], 0.5, 0);
    fail_message(w);
    take(w, DOORMAN_RELEASE); /* a lost answer: the release is repeated */
    respond_hold(w, 77, 0.5, 0);
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    world_end(w);
}

TEST(a_release_before_the_message_sends_nothing) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND);
    release(w);
    assert_true(next(w) && !w->acquired.granted);
    assert_int_equal(w->acquired.decided_by, DOORMAN_BY_CALLER);
    assert_true(is_quiet(w));
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

TEST(a_release_while_the_permit_is_under_way_releases_what_is_granted) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND);
    take(w, DOORMAN_ACQUIRE);
    release(w);
    assert_true(next(w) && !w->acquired.granted && w->acquired.hold == 0);
    grant(w, 77, 2, 0, 15 * SECOND);
    assert_false(next(w));
    take(w, DOORMAN_RELEASE);
    assert_int_equal(w->request.holds[0].id, 77);
    assert_int_equal(w->request.holds[0].request_id, 0);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

TEST(a_late_grant_is_released) {
    world *w = world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    acquire_for(w, 2, 0, SECOND / 100);
    take(w, DOORMAN_ACQUIRE);
    w->now += SECOND / 100;
    assert_true(next(w) && !w->acquired.granted && w->acquired.hold == 0);
    w->now += SECOND / 100;
    grant(w, 77, 2, 0, 15 * SECOND);
    take(w, DOORMAN_RELEASE);
    assert_int_equal(w->request.holds[0].id, 77);
    world_end(w);
}

TEST(without_an_answer_a_hold_is_released_by_its_number) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND / 100);
    take(w, DOORMAN_ACQUIRE);
    w->now += SECOND;
    assert_true(next(w) && w->acquired.granted && w->acquired.hold == 0);
    assert_int_equal(w->acquired.decided_by, DOORMAN_BY_FALLBACK);
    take(w, DOORMAN_RELEASE);
    assert_int_equal(w->request.holds[0].id, 0);
    assert_int_equal(w->request.holds[0].request_id, w->hold);
    respond_gone(w);
    release(w); /* a hold of the fallback: nothing to do */
    assert_true(is_quiet(w));
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

TEST(a_lost_answer_is_asked_for_again_with_the_same_number) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND);
    take(w, DOORMAN_ACQUIRE);
    fail_message(w);
    w->now += SECOND / 10;
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].request_id, w->hold);
    grant(w, 77, 2, 0, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted);
    assert_int_equal(w->acquired.ends_at, 100 * SECOND + SECOND / 10 + 15 * SECOND);
    world_end(w);
}

TEST(a_renewal_under_way_is_followed_by_the_release) {
    world *w = world_with_hold();
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    release(w);
    assert_true(is_quiet(w));
    respond_hold(w, 77, 2, 15 * SECOND);
    take(w, DOORMAN_RELEASE);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

/* ---- lanes (P21) ---------------------------------------------------------------------------- */

TEST(a_permit_that_waits_delays_no_other_message) {
    world *w = world_with_hold();
    uint64_t first = w->hold;
    doorman_upstream *lane = NULL;
    assert_int_equal(doorman_permit_client_add_lane(w->client, &lane), DOORMAN_OK);
    acquire_for(w, 1, 20 * SECOND, 30 * SECOND);
    assert_true(is_quiet(w));
    assert_int_equal(doorman_upstream_due(lane), 0);
    assert_true(take_from(w, lane, DOORMAN_ACQUIRE));
    assert_int_equal(w->request.permits[0].max_wait, 20 * SECOND);
    doorman_request waiting = w->request;
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    respond_hold(w, 77, 2, 15 * SECOND);
    w->now = 108 * SECOND;
    w->request = waiting;
    const doorman_permit_grant item = {.granted = 1, .limit = "slots"};
    const doorman_permit permit = {.granted = true,
                                   .items = &item,
                                   .item_count = 1,
                                   .hold_id = 78,
                                   .waited = 7 * SECOND + SECOND / 2,
                                   .expires_in = 10 * SECOND};
    respond_permit(w, lane, &permit);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold != first);
    doorman_time waited = (doorman_time)(7.5e9 / 1.05);
    assert_int_equal(w->acquired.ends_at, 100 * SECOND + waited + 10 * SECOND);
    world_end(w);
}

/* Without a lane, the client waits for the answer for as long as with a lane. */
TEST(without_a_lane_a_permit_that_waits_delays_the_next_message) {
    world *w = world_start();
    acquire_for(w, 1, 20 * SECOND, 30 * SECOND);
    take(w, DOORMAN_ACQUIRE);
    doorman_request waiting = w->request;
    w->now += 20 * SECOND;
    assert_true(is_quiet(w));
    assert_false(next(w));
    w->request = waiting;
    grant(w, 77, 1, 19 * SECOND, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted);
    assert_int_equal(w->acquired.decided_by, DOORMAN_BY_SERVER);
    world_end(w);
}

TEST(a_queue_leaves_time_for_its_answer) {
    world *w = world_start();
    acquire_for(w, 1, 30 * SECOND, 2 * SECOND);
    take(w, DOORMAN_ACQUIRE); /* without a lane */
    assert_int_equal(w->request.permits[0].max_wait, 2 * SECOND - SECOND / 2);
    release(w);
    assert_true(next(w));
    world_end(w);
}

/* P7: all waits of a permit together last at most max_wait, also if servers change. */
TEST(a_repeated_wait_asks_for_the_rest_of_its_time) {
    world *w = world_start();
    acquire_for(w, 1, 10 * SECOND, 60 * SECOND);
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].max_wait, 10 * SECOND);
    w->now += 4 * SECOND;
    doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].max_wait, 6 * SECOND);
    w->now += 7 * SECOND;
    doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
    w->now = doorman_upstream_due(w->upstream);
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].max_wait, 0);
    grant(w, 77, 1, 0, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted);
    release(w);
    take(w, DOORMAN_RELEASE);
    respond_hold(w, 77, 0, 0);
    world_end(w);
}

TEST(a_canceled_wait_is_released_in_the_queue) {
    world *w = world_start();
    doorman_upstream *lane = NULL;
    assert_int_equal(doorman_permit_client_add_lane(w->client, &lane), DOORMAN_OK);
    acquire_for(w, 1, 20 * SECOND, 30 * SECOND);
    assert_true(take_from(w, lane, DOORMAN_ACQUIRE));
    doorman_request waiting = w->request;
    release(w);
    assert_true(next(w) && w->acquired.decided_by == DOORMAN_BY_CALLER);
    take(w, DOORMAN_RELEASE);
    assert_int_equal(w->request.holds[0].request_id, w->hold);
    respond_hold(w, 0, 0, 0);
    assert_int_equal(hold_count(w), 1); /* the message of the lane has no answer yet */
    w->request = waiting;
    const doorman_permit refused = {.reason = DOORMAN_REASON_TIMED_OUT, .limit = "slots"};
    respond_permit(w, lane, &refused);
    assert_int_equal(hold_count(w), 0);
    assert_int_equal(doorman_upstream_due(lane), DOORMAN_NEVER);
    world_end(w);
}

/* ---- numbers that the application knows before it asks --------------------------------------- */

static doorman_status acquire_as(world *w, double cost, doorman_error *error) {
    const doorman_permit_item item = {.resource_id = "job", .key = "a", .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .request_id = w->hold};
    return doorman_permit_client_acquire(w->client, &request, SECOND, w, error, w->now);
}

static world *world_with_number(void) {
    world *w = world_start();
    assert_int_equal(doorman_permit_client_new_hold(w->client, &w->hold), DOORMAN_OK);
    assert_true(w->hold > 0 && w->hold < UINT64_C(1) << 53);
    assert_int_equal(hold_count(w), 1);
    assert_true(is_quiet(w) && !held(w).gone && held(w).ends_at == 0);
    return w;
}

TEST(a_permit_gets_the_number_that_it_asks_with) {
    world *w = world_with_number();
    uint64_t other = 0;
    assert_int_equal(doorman_permit_client_new_hold(w->client, &other), DOORMAN_OK);
    assert_true(other != w->hold);
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
    take(w, DOORMAN_ACQUIRE);
    assert_int_equal(w->request.permits[0].request_id, w->hold);
    grant(w, 77, 2, 0, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold == w->hold);
    assert_float_equal(held(w).units[0], 2, 0);
    release(w);
    take(w, DOORMAN_RELEASE);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 1); /* `other` */
    w->hold = other;
    release(w);
    assert_int_equal(hold_count(w), 0);
    assert_true(is_quiet(w));
    world_end(w);
}

TEST(a_number_that_is_released_before_its_permit_ends_the_permit) {
    for (int kill_switch = 0; kill_switch < 2; kill_switch++) {
        world *w = world_with_number();
        doorman_permit_client_kill_switch(w->client, kill_switch);
        release(w);
        assert_int_equal(hold_count(w), 0); /* nothing has to remember it */
        assert_true(held(w).gone);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
            assert_true(next(w) && !w->acquired.granted && !w->acquired.hold);
            assert_int_equal(w->acquired.decided_by, DOORMAN_BY_CALLER);
        }
        assert_true(is_quiet(w));
        assert_int_equal(hold_count(w), 0);
        world_end(w);
    }
}

TEST(a_number_that_is_released_while_its_permit_waits_ends_the_permit) {
    world *w = world_with_number();
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
    take(w, DOORMAN_ACQUIRE);
    release(w);
    assert_true(next(w) && w->acquired.decided_by == DOORMAN_BY_CALLER);
    grant(w, 77, 2, 0, 15 * SECOND);
    take(w, DOORMAN_RELEASE);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

TEST(a_number_is_for_one_permit) {
    world *w = world_with_number();
    doorman_error error;
    assert_int_equal(acquire_as(w, -1, NULL), DOORMAN_INVALID_ARGUMENT); /* still not used */
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
    for (int i = 0; i < 2; i++) { /* before the grant, and after it */
        assert_int_equal(acquire_as(w, 2, &error), DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, "request_id: is the number of another permit");
        if (i) break;
        take(w, DOORMAN_ACQUIRE);
        grant(w, 77, 2, 0, 15 * SECOND);
        assert_true(next(w) && w->acquired.granted);
    }
    release(w);
    for (int i = 0; i < 2; i++) { /* while it is released, and after that */
        assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
        assert_true(next(w) && w->acquired.decided_by == DOORMAN_BY_CALLER);
        if (i) break;
        take(w, DOORMAN_RELEASE);
        respond_hold(w, 77, 0, 0);
        assert_int_equal(hold_count(w), 0);
    }
    world_end(w);
}

TEST(a_number_that_was_not_given_out_is_refused) {
    world *w = world_with_number();
    const uint64_t number = w->hold;
    const uint64_t wrong[] = {number - 1, number + 1, number + ((UINT64_C(1) << 53) - 1),
                              UINT64_C(1) << 53, UINT64_MAX};
    doorman_error error;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        w->hold = wrong[i];
        assert_int_equal(acquire_as(w, 2, &error), DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text,
                            "request_id: must be 0, or a number that new_hold has given out");
    }
    const doorman_permit_item item = {.resource_id = "job", .cost = 1};
    const doorman_permit_request both = {
        .items = &item, .item_count = 1, .request_id = number, .hold = &w->hold};
    assert_int_equal(doorman_permit_client_acquire(w->client, &both, SECOND, w, &error, w->now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "hold: must be NULL if request_id is given");
    world_end(w);
}

/* The numbers are a ring: 2^53 - 1 is followed by 1. */
TEST(numbers_begin_again_after_the_last_one) {
    world *w = world_start();
    const uint64_t last = (UINT64_C(1) << 53) - 1;
    w->client->hold_number = last - 1;
    for (uint64_t expected = last, i = 0; i < 2; i++, expected = 1) {
        assert_int_equal(doorman_permit_client_new_hold(w->client, &w->hold), DOORMAN_OK);
        assert_true(w->hold == expected);
    }
    w->hold = last;
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
    w->hold = last - 1;
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_INVALID_ARGUMENT);
    w->hold = 2;
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_INVALID_ARGUMENT);
    world_end(w);
}

TEST(numbers_without_a_permit_are_bounded) {
    world *w = world_start();
    uint64_t number = 0;
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(doorman_permit_client_new_hold(w->client, &w->hold), DOORMAN_OK);
    }
    assert_int_equal(doorman_permit_client_new_hold(w->client, &number),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_true(number == 0);
    release(w);
    assert_int_equal(doorman_permit_client_new_hold(w->client, &w->hold), DOORMAN_OK);
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK); /* this one has a permit now */
    assert_int_equal(doorman_permit_client_new_hold(w->client, &number), DOORMAN_OK);
    world_end(w);
}

TEST(a_number_without_a_permit_cannot_be_transferred) {
    world *w = world_with_number();
    const doorman_hold_request request = {.id = w->hold, .timeout = SECOND};
    assert_int_equal(doorman_permit_client_transfer(w->client, &request, w, NULL, w->now),
                     DOORMAN_OK);
    assert_true(next(w) && w->acquired.decided_by == DOORMAN_BY_CALLER);
    assert_int_equal(acquire_as(w, 2, NULL), DOORMAN_OK);
    take(w, DOORMAN_ACQUIRE);
    world_end(w);
}

/* ---- transfers (P11) ------------------------------------------------------------------------ */

static void transfer(world *w, const double *amounts, size_t count) {
    const doorman_hold_request request = {.id = w->hold,
                                          .amounts = amounts,
                                          .amount_count = count,
                                          .time_to_live = 5 * SECOND,
                                          .timeout = SECOND};
    doorman_status status = doorman_permit_client_transfer(w->client, &request, w, NULL, w->now);
    assert_int_equal(status, DOORMAN_OK);
}

TEST(a_transfer_takes_its_units_at_once) {
    world *w = world_with_hold();
    const double amount = 0.5;
    transfer(w, &amount, 1);
    assert_float_equal(held(w).units[0], 1.5, 0);
    take(w, DOORMAN_TRANSFER);
    assert_int_equal(w->request.holds[0].id, 77);
    assert_float_equal(w->request.holds[0].amounts[0], 0.5, 0);
    uint64_t request_id = w->request.holds[0].request_id;
    assert_true(request_id && request_id != w->hold);
    fail_message(w);
    take(w, DOORMAN_TRANSFER); /* it is repeated with the same request_id */
    assert_int_equal(w->request.holds[0].request_id, request_id);
    respond_hold(w, 555, 0.5, 5 * SECOND);
    assert_true(next(w) && w->acquired.granted && w->acquired.transfer_id == 555);
    assert_false(held(w).gone);
    transfer(w, NULL, 0);
    take(w, DOORMAN_TRANSFER);
    assert_float_equal(w->request.holds[0].amounts[0], 1.5, 0);
    respond_hold(w, 556, 1.5, 5 * SECOND);
    assert_true(next(w) && w->acquired.transfer_id == 556);
    assert_int_equal(hold_count(w), 0); /* all units are gone */
    assert_true(is_quiet(w));
    transfer(w, NULL, 0);
    assert_true(next(w) && !w->acquired.granted);
    assert_int_equal(w->acquired.decided_by, DOORMAN_BY_CALLER);
    world_end(w);
}

/* P21: the response to each transfer lists all items of its hold. */
TEST(a_message_has_no_more_transfers_than_a_response_has_room_for) {
    world *w = world_start();
    doorman_permit_item items[DOORMAN_PERMIT_ITEMS_MAX];
    doorman_permit_grant grants[DOORMAN_PERMIT_ITEMS_MAX];
    double amounts[DOORMAN_PERMIT_ITEMS_MAX] = {1};
    for (size_t i = 0; i < DOORMAN_PERMIT_ITEMS_MAX; i++) {
        items[i] = (doorman_permit_item){.resource_id = "job", .cost = 100};
        grants[i] = (doorman_permit_grant){.granted = 100};
    }
    const doorman_permit_request request = {
        .items = items, .item_count = DOORMAN_PERMIT_ITEMS_MAX, .hold = &w->hold};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, w, NULL, w->now),
                     DOORMAN_OK);
    take(w, DOORMAN_ACQUIRE);
    const doorman_permit permit = {.granted = true,
                                   .items = grants,
                                   .item_count = DOORMAN_PERMIT_ITEMS_MAX,
                                   .hold_id = 77,
                                   .expires_in = 15 * SECOND};
    respond_permit(w, w->upstream, &permit);
    assert_true(next(w) && w->acquired.granted);
    const size_t most = DOORMAN__MESSAGE_ITEMS / DOORMAN_PERMIT_ITEMS_MAX;
    for (size_t i = 0; i < most + 1; i++) transfer(w, amounts, DOORMAN_PERMIT_ITEMS_MAX);
    take(w, DOORMAN_TRANSFER);
    assert_int_equal(w->request.hold_count, most);
    world_end(w);
}

/* A release names the units that are kept. If it arrived before the transfer, it would also release
 * the units that are transferred. */
TEST(a_release_does_not_overtake_a_transfer) {
    world *w = world_with_hold();
    const double keep = 1.5, moved = 0.5;
    const doorman_hold_request request = {.id = w->hold, .amounts = &keep, .amount_count = 1};
    assert_int_equal(doorman_permit_client_release(w->client, &request, NULL, w->now), DOORMAN_OK);
    transfer(w, &moved, 1);
    take(w, DOORMAN_TRANSFER);
    respond_hold(w, 555, 0.5, 5 * SECOND);
    take(w, DOORMAN_RELEASE);
    assert_float_equal(w->request.holds[0].amounts[0], 1, 0);
    world_end(w);
}

TEST(a_refused_transfer_gives_its_units_back) {
    world *w = world_with_hold();
    transfer(w, NULL, 0);
    take(w, DOORMAN_TRANSFER);
    const doorman_hold refused = {.reason = DOORMAN_REASON_MAX_HOLDS};
    respond_holds(w, &refused, 1);
    assert_true(next(w) && !w->acquired.granted);
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_MAX_HOLDS);
    assert_float_equal(held(w).units[0], 2, 0);
    world_end(w);
}

/* The timeout of the caller ends, and the answer comes before the caller takes its result. */
TEST(a_late_answer_to_a_transfer_does_not_change_its_result) {
    world *w = world_with_hold();
    const double amount = 0.5;
    transfer(w, &amount, 1);
    w->now += SECOND / 2;
    take(w, DOORMAN_TRANSFER);
    w->now += SECOND / 2;
    assert_true(is_quiet(w));
    const doorman_hold refused = {.reason = DOORMAN_REASON_MAX_HOLDS};
    respond_holds(w, &refused, 1);
    assert_true(next(w) && !w->acquired.granted);
    assert_int_equal(w->acquired.decided_by, DOORMAN_BY_FALLBACK);
    assert_float_equal(held(w).units[0], 1.5, 0); /* the units do not return */
    world_end(w);
}

TEST(a_seized_transfer_is_a_hold_with_its_items) {
    world *w = world_start();
    const doorman_hold_request request = {.id = 555, .timeout = SECOND};
    assert_int_equal(doorman_permit_client_seize(w->client, &request, w, NULL, w->now), DOORMAN_OK);
    take(w, DOORMAN_SEIZE);
    assert_int_equal(w->request.holds[0].id, 555);
    assert_true(w->request.holds[0].request_id > 0);
    respond_hold(w, 78, 1.5, 15 * SECOND);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold);
    assert_float_equal(w->acquired.units[0], 1.5, 0);
    w->hold = w->acquired.hold;
    assert_int_equal(held(w).ends_at, 115 * SECOND);
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    respond_gone(w);
    take(w, DOORMAN_RENEW);
    assert_string_equal(w->request.holds[0].items[0].resource_id, "job");
    world_end(w);
}

TEST(a_seizure_of_what_is_gone_is_refused) {
    world *w = world_start();
    const doorman_hold_request request = {.id = 555, .timeout = SECOND};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_permit_client_seize(w->client, &request, w, NULL, w->now),
                         DOORMAN_OK);
        take(w, DOORMAN_SEIZE);
        if (i == 0) respond_gone(w);
        if (i == 1) w->now += SECOND; /* no answer: the fallback never seizes */
        assert_true(next(w) && !w->acquired.granted && !w->acquired.hold);
    }
    take(w, DOORMAN_RELEASE); /* the server may have granted the second one */
    world_end(w);
}

/* ---- the kill switch (P25) ------------------------------------------------------------------ */

TEST(in_shadow_a_granted_hold_is_renewed_and_released) {
    world *w = world_start_with((doorman_permit_policy){.shadow = true});
    acquire_for(w, 2, 0, SECOND);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold == w->hold);
    take(w, DOORMAN_ACQUIRE);
    grant(w, 77, 2, 0, 15 * SECOND);
    w->now = 105 * SECOND;
    take(w, DOORMAN_RENEW);
    respond_hold(w, 77, 2, 15 * SECOND);
    release(w);
    take(w, DOORMAN_RELEASE);
    respond_hold(w, 77, 0, 0);
    assert_int_equal(hold_count(w), 0);
    world_end(w);
}

TEST(the_kill_switch_keeps_what_is_granted_later) {
    world *w = world_start();
    acquire_for(w, 2, 0, SECOND);
    take(w, DOORMAN_ACQUIRE);
    doorman_permit_client_kill_switch(w->client, true);
    assert_true(next(w) && w->acquired.granted && w->acquired.hold == w->hold);
    grant(w, 77, 2, 0, 15 * SECOND);
    assert_false(held(w).gone);
    release(w);
    take(w, DOORMAN_RELEASE);
    world_end(w);
}

/* The kill switch has already decided this permit, so its caller does not wait for the answer. */
TEST(a_broken_answer_for_a_hold_whose_caller_is_gone_is_refused) {
    const doorman_permit_grant item = {.granted = -1};
    const doorman_permit broken[] = {
        {.granted = true, .hold_id = 77, .expires_in = SECOND},
        {.granted = true, .hold_id = 77, .items = &item, .item_count = 1, .expires_in = SECOND},
        {.granted = true, .hold_id = 77, .expires_in = -SECOND}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        for (int in_lane = 0; in_lane < 2; in_lane++) {
            world *w = world_start();
            if (in_lane) {
                assert_int_equal(doorman_permit_client_add_lane(w->client, &w->lane), DOORMAN_OK);
            }
            doorman_upstream *upstream = in_lane ? w->lane : w->upstream;
            acquire_for(w, 2, in_lane ? SECOND : 0, SECOND);
            assert_true(take_from(w, upstream, DOORMAN_ACQUIRE));
            doorman_permit_client_kill_switch(w->client, true);
            assert_true(next(w) && w->acquired.granted);
            const doorman_response response = {.method = DOORMAN_ACQUIRE,
                                               .is_master = true,
                                               .permits = &broken[i],
                                               .permit_count = 1};
            assert_int_equal(
                doorman_upstream_response(upstream, w->request.sequence, &response, w->now),
                DOORMAN_INVALID_ARGUMENT);
            assert_true(held(w).gone);
            world_end(w);
        }
    }
}

/* ---- clients, a server, a network and an account -------------------------------------------- */
/*
 * For each client and by its clock, the account adds up the units that the application may use:
 * from the decision until the application releases or transfers them, or until ends_at. The sum
 * must never exceed the limit. At the end there are no more faults, and every hold is released.
 * Then the server must soon count no units, before a hold could end by itself.
 */

#define CLIENTS 3
#define APP_HOLDS 12
#define MESSAGES 400
#define ENTRIES 40
#define LIMIT 4

typedef struct copy {
    doorman_permit_request permits[ENTRIES];
    doorman_permit_item items[ENTRIES];
    doorman_hold_request holds[ENTRIES];
    doorman_hold_item held[ENTRIES];
    double amounts[ENTRIES];
    doorman_permit out[ENTRIES];
    doorman_permit_grant grants[ENTRIES];
    doorman_hold results[ENTRIES];
} copy;

typedef struct message {
    bool used, answered;
    doorman_time at; /* when it arrives */
    size_t client;
    doorman_upstream *upstream;
    doorman_request request;
    uint64_t tickets[ENTRIES];
    size_t pending;
    bool waits; /* at the server */
    copy *copy;
} message;

typedef struct app_hold {
    uint64_t hold;
    double units;
    doorman_time ends_at;
} app_hold;

typedef struct app {
    doorman_permit_client *client;
    doorman_upstream *upstreams[4];
    double rate; /* of its clock */
    app_hold holds[APP_HOLDS];
    uint64_t asked[APP_HOLDS]; /* numbers without a decision */
    bool active;
} app;

typedef struct model {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now; /* true time, and that of the server */
    app apps[CLIENTS];
    message messages[MESSAGES];
    uint64_t transfers[8];
    bool faults;
    size_t granted, changes, seized, late;
} model;

static doorman_time clock_of(const model *m, const app *user) {
    return (doorman_time)((double)m->now * user->rate);
}

static const char *intern(const char *text) {
    static const char *const texts[] = {"job", "a", "b", ""};
    for (size_t i = 0; text && i < 4; i++) {
        if (strcmp(text, texts[i]) == 0) return texts[i];
    }
    return "";
}

static void permits_start(model *m, doorman_time learns) {
    const doorman_permits_options options = {.config = m->config,
                                             .seed = {random_bits(), 1},
                                             .learns_until = learns ? m->now + learns : 0};
    doorman_permits_destroy(m->permits);
    m->permits = NULL;
    assert_int_equal(doorman_permits_create(&m->permits, &options, NULL, m->now), DOORMAN_OK);
}

static message *message_new(model *m) {
    for (size_t i = 0; i < MESSAGES; i++) {
        message *to = &m->messages[i];
        if (to->used) continue;
        copy *kept = to->copy ? to->copy : calloc(1, sizeof *kept);
        *to = (message){.used = true, .copy = kept};
        return to;
    }
    fail_msg("too many messages");
    return NULL;
}

static void message_send(model *m, size_t client, doorman_upstream *upstream,
                         const doorman_request *request) {
    message *to = message_new(m);
    copy *c = to->copy;
    to->client = client;
    to->upstream = upstream;
    to->request = *request;
    to->at = m->now + (doorman_time)random_below(30) * MILLISECOND;
    if (m->faults && random_below(20) == 0) to->at += (doorman_time)random_below(3) * SECOND;
    assert_true(request->permit_count <= ENTRIES && request->hold_count <= ENTRIES);
    for (size_t i = 0; i < request->permit_count; i++) {
        c->permits[i] = request->permits[i];
        c->items[i] = request->permits[i].items[0];
        c->items[i].key = intern(c->items[i].key);
        c->items[i].resource_id = intern(c->items[i].resource_id);
        c->permits[i].items = &c->items[i];
    }
    for (size_t i = 0; i < request->hold_count; i++) {
        c->holds[i] = request->holds[i];
        if (c->holds[i].amount_count) c->amounts[i] = c->holds[i].amounts[0];
        if (c->holds[i].item_count) {
            c->held[i] = c->holds[i].items[0];
            c->held[i].key = intern(c->held[i].key);
            c->held[i].resource_id = intern(c->held[i].resource_id);
        }
        c->holds[i].amounts = &c->amounts[i];
        c->holds[i].items = &c->held[i];
    }
}

static void keep_permit(message *to, size_t i, const doorman_permit *permit) {
    copy *c = to->copy;
    c->out[i] = *permit;
    if (permit->granted) c->grants[i] = permit->items[0];
    c->grants[i].limit = NULL;
    c->out[i].items = &c->grants[i];
    c->out[i].limit = NULL;
}

/* Takes the decisions on permits that have waited. Keeps each decision in the message of its
 * permit. */
static void take_decisions(model *m) {
    doorman_permit out;
    uint64_t ticket;
    while (doorman_permits_next_decision(m->permits, &ticket, &out)) {
        for (size_t i = 0; i < MESSAGES; i++) {
            message *to = &m->messages[i];
            for (size_t j = 0; to->used && to->waits && j < to->request.permit_count; j++) {
                if (to->tickets[j] != ticket) continue;
                keep_permit(to, j, &out);
                to->tickets[j] = 0;
                to->pending--;
            }
        }
    }
}

static void decide_hold(model *m, message *to, size_t i) {
    copy *c = to->copy;
    doorman_hold out = {.gone = false};
    doorman_hold_request request = c->holds[i];
    doorman_status status = DOORMAN_INVALID_ARGUMENT;
    doorman_time now = m->now;
    request.client_id = (const char *[]){"c0", "c1", "c2"}[to->client];
    switch ((int)to->request.method) {
    case DOORMAN_RENEW:
        status = doorman_permits_renew(m->permits, &request, &out, NULL, now);
        break;
    case DOORMAN_RELEASE:
        status = doorman_permits_release(m->permits, &request, &out, NULL, now);
        break;
    case DOORMAN_TRANSFER:
        status = doorman_permits_transfer(m->permits, &request, &out, NULL, now);
        break;
    case DOORMAN_SEIZE:
        status = doorman_permits_seize(m->permits, &request, &out, NULL, now);
        break;
    default: break;
    }
    assert_int_equal(status, DOORMAN_OK);
    if (out.item_count) c->held[i] = out.items[0];
    c->held[i].key = intern(c->held[i].key);
    c->held[i].resource_id = intern(c->held[i].resource_id);
    c->results[i] = out;
    c->results[i].items = &c->held[i];
}

/* The server processes a message. */
static void message_decide(model *m, message *to) {
    copy *c = to->copy;
    to->waits = true;
    for (size_t i = 0; i < to->request.permit_count; i++) {
        doorman_permit out = {.pending = false};
        c->permits[i].client_id = (const char *[]){"c0", "c1", "c2"}[to->client];
        c->permits[i].connection = 1 + to->client;
        assert_int_equal(doorman_permits_acquire(m->permits, &c->permits[i], &out, NULL, m->now),
                         DOORMAN_OK);
        keep_permit(to, i, &out);
        to->tickets[i] = out.pending ? out.ticket : 0;
        to->pending += out.pending;
        take_decisions(m);
    }
    for (size_t i = 0; i < to->request.hold_count; i++) {
        decide_hold(m, to, i);
        take_decisions(m);
    }
}

static void message_respond(model *m, message *to) {
    const copy *c = to->copy;
    app *user = &m->apps[to->client];
    const doorman_response response = {.method = to->request.method,
                                       .is_master = true,
                                       .permits = c->out,
                                       .permit_count = to->request.permit_count,
                                       .holds = c->results,
                                       .hold_count = to->request.hold_count};
    doorman_time now = clock_of(m, user);
    uint64_t sequence = to->request.sequence;
    to->used = false;
    if (m->faults && random_below(15) == 0) return; /* lost */
    if (m->faults && random_below(15) == 0) {
        doorman_upstream_failed(to->upstream, sequence, now);
    } else {
        doorman_status status = doorman_upstream_response(to->upstream, sequence, &response, now);
        assert_true(status == DOORMAN_OK || status == DOORMAN_STALE);
        m->late += status == DOORMAN_STALE;
    }
}

static void deliver(model *m) {
    for (size_t i = 0; i < MESSAGES; i++) {
        message *to = &m->messages[i];
        if (!to->used || to->at > m->now) continue;
        if (!to->waits && m->faults && random_below(20) == 0) {
            to->used = false; /* lost */
        } else if (!to->waits) {
            message_decide(m, to);
        }
        if (to->used && to->waits && !to->pending && !to->answered) {
            to->answered = true;
            to->at = m->now + (doorman_time)random_below(30) * MILLISECOND;
            if (m->faults && random_below(20) == 0)
                to->at += (doorman_time)random_below(3) * SECOND;
        }
        if (to->used && to->answered && to->at <= m->now) message_respond(m, to);
    }
}

static app_hold *app_find(app *user, uint64_t hold) {
    for (size_t i = 0; i < APP_HOLDS; i++) {
        if (user->holds[i].hold == hold) return &user->holds[i];
    }
    return NULL;
}

static void app_learn(model *m, app *user) {
    doorman_acquired acquired;
    doorman_held change;
    void *context;
    doorman_time now = clock_of(m, user);
    while (doorman_permit_client_next(user->client, &context, &acquired, now)) {
        if (acquired.transfer_id) m->transfers[random_below(8)] = acquired.transfer_id;
        size_t index = (size_t)context;
        if (index < APP_HOLDS) user->asked[index] = 0;
        if (!acquired.granted || !acquired.hold) continue;
        app_hold *hold = app_find(user, 0);
        assert_non_null(hold);
        *hold = (app_hold){acquired.hold, acquired.units[0], acquired.ends_at};
        m->granted++;
        m->seized += index > APP_HOLDS;
    }
    while (doorman_permit_client_next_change(user->client, &change, now)) {
        app_hold *hold = app_find(user, change.hold);
        assert_non_null(hold);
        m->changes++;
        hold->ends_at = change.ends_at; /* uses everything until then */
        if (change.gone && now >= change.ends_at) hold->hold = 0;
    }
    for (size_t i = 0; i < APP_HOLDS; i++) {
        doorman_held held;
        app_hold *hold = &user->holds[i];
        if (!hold->hold) continue;
        doorman_permit_client_read_hold(user->client, hold->hold, &held);
        if (!held.gone) hold->ends_at = held.ends_at;
        if (now >= hold->ends_at) hold->hold = 0;
    }
}

static void app_ask(model *m, app *user) {
    size_t slot = random_below(APP_HOLDS), free = 0;
    for (size_t i = 0; i < APP_HOLDS; i++) free += !user->holds[i].hold && !user->asked[i];
    if (user->asked[slot] || free < 4) return;
    doorman_time max_wait = (doorman_time)random_below(3) * SECOND;
    const doorman_permit_item item = {.resource_id = "job",
                                      .key = random_below(2) ? "a" : "b",
                                      .cost = 1 + (double)random_below(2)};
    doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait, .hold = &user->asked[slot]};
    if (random_below(2)) { /* a number that is known before, and sometimes released before */
        assert_int_equal(doorman_permit_client_new_hold(user->client, &user->asked[slot]),
                         DOORMAN_OK);
        request.request_id = user->asked[slot];
        request.hold = NULL;
        const doorman_hold_request early = {.id = request.request_id};
        if (random_below(8) == 0) {
            assert_int_equal(
                doorman_permit_client_release(user->client, &early, NULL, clock_of(m, user)),
                DOORMAN_OK);
        }
    }
    doorman_time timeout = (doorman_time)(1 + random_below(40)) * SECOND / 10;
    assert_int_equal(doorman_permit_client_acquire(user->client, &request, timeout, (void *)slot,
                                                   NULL, clock_of(m, user)),
                     DOORMAN_OK);
}

static void app_act(model *m, app *user) {
    app_hold *hold = &user->holds[random_below(APP_HOLDS)];
    doorman_time now = clock_of(m, user);
    const double part = 1;
    doorman_hold_request request = {.id = hold->hold, .timeout = SECOND};
    void *other = (void *)(size_t)(APP_HOLDS + 1);
    size_t what = random_below(12);
    if (what < 4) {
        app_ask(m, user);
    } else if (what == 4) { /* a cancellation at any moment */
        request.id = user->asked[random_below(APP_HOLDS)];
        assert_int_equal(doorman_permit_client_release(user->client, &request, NULL, now),
                         DOORMAN_OK);
    } else if (what < 8 && hold->hold) {
        hold->hold = 0;
        assert_int_equal(doorman_permit_client_release(user->client, &request, NULL, now),
                         DOORMAN_OK);
    } else if (what == 8 && hold->hold && hold->units > 1) {
        hold->units = 1;
        request.amounts = &part;
        request.amount_count = 1;
        assert_int_equal(doorman_permit_client_release(user->client, &request, NULL, now),
                         DOORMAN_OK);
    } else if (what == 9 && hold->hold) {
        hold->units -= 1;
        request.amounts = &part;
        request.amount_count = 1;
        if (hold->units <= 0) hold->hold = 0;
        assert_int_equal(doorman_permit_client_transfer(user->client, &request, other, NULL, now),
                         DOORMAN_OK);
    } else if (what == 10 && (request.id = m->transfers[random_below(8)])) {
        size_t free = 0;
        for (size_t i = 0; i < APP_HOLDS; i++) free += !user->holds[i].hold && !user->asked[i];
        if (free < 4) return;
        assert_int_equal(doorman_permit_client_seize(user->client, &request, other, NULL, now),
                         DOORMAN_OK);
    }
}

static void account(const model *m) {
    double sum = 0;
    for (size_t i = 0; i < CLIENTS; i++) {
        const app *user = &m->apps[i];
        doorman_time now = clock_of(m, user);
        for (size_t j = 0; j < APP_HOLDS; j++) {
            const app_hold *hold = &user->holds[j];
            if (hold->hold && now < hold->ends_at) sum += hold->units;
        }
    }
    if (sum > LIMIT) fail_msg("%g units are in use at %lld", sum, (long long)m->now);
}

static void run_loops(model *m) {
    for (size_t i = 0; i < CLIENTS; i++) {
        app *user = &m->apps[i];
        doorman_request request;
        for (size_t j = 0; j < 4; j++) {
            if (doorman_upstream_request(user->upstreams[j], &request, clock_of(m, user))) {
                message_send(m, i, user->upstreams[j], &request);
            }
            app_learn(m, user);
        }
    }
}

static void change_master(model *m) {
    for (size_t i = 0; i < MESSAGES; i++) {
        if (m->messages[i].waits && m->messages[i].pending) m->messages[i].used = false;
    }
    permits_start(m, (doorman_time)(3.2 * 1e9));
}

static void step(model *m) {
    m->now += (doorman_time)random_below(40) * MILLISECOND;
    doorman_permits_update(m->permits, m->now);
    take_decisions(m);
    deliver(m);
    run_loops(m);
    for (size_t i = 0; i < CLIENTS && m->faults; i++) {
        if (random_below(3) == 0) app_act(m, &m->apps[i]);
        app_learn(m, &m->apps[i]);
    }
    account(m);
    if (m->faults && random_below(1500) == 0) change_master(m);
}

/* Ends the faults, releases everything, and looks for units that are left. */
static void settle(model *m) {
    m->faults = false;
    for (int i = 0; i < 300; i++) step(m); /* the messages that are under way end */
    for (size_t i = 0; i < CLIENTS; i++) {
        app *user = &m->apps[i];
        for (size_t j = 0; j < APP_HOLDS; j++) {
            const doorman_hold_request request = {.id = user->holds[j].hold};
            user->holds[j].hold = 0;
            (void)doorman_permit_client_release(user->client, &request, NULL, clock_of(m, user));
        }
    }
    for (int i = 0; i < 40; i++) step(m); /* less than 1.7 s; a hold lasts 3 s */
    doorman_cursor cursor = {0};
    doorman_permits_hold left;
    while (doorman_permits_next_hold(m->permits, &cursor, &left)) {
        if (left.client_id) fail_msg("%s still holds %g", left.client_id, left.amount);
    }
    for (int i = 0; i < 300; i++) step(m); /* a client may still pause after its last failure */
    for (size_t i = 0; i < CLIENTS; i++) {
        doorman_permit_client_info info;
        doorman_permit_client_read(m->apps[i].client, &info);
        assert_int_equal(info.hold_count, 0);
        assert_int_equal(info.waiting_count, 0);
    }
}

static void history(model *m) {
    static const char *const addresses[] = {"tcp://a:1"};
    static const char *const names[] = {"c0", "c1", "c2"};
    static const double rates[] = {1, 1.045, 0.957};
    m->faults = true;
    m->now = 1000 * SECOND;
    permits_start(m, 0);
    for (size_t i = 0; i < CLIENTS; i++) {
        app *user = &m->apps[i];
        user->rate = rates[i];
        const doorman_client_options options = {.client_id = names[i],
                                                .addresses = addresses,
                                                .address_count = 1,
                                                .seed = random_bits() | 1,
                                                .permits = {.fallback = DOORMAN_FAIL_CLOSED}};
        assert_int_equal(
            doorman_permit_client_create(&user->client, &options, NULL, clock_of(m, user)),
            DOORMAN_OK);
        user->upstreams[0] = doorman_permit_client_upstream(user->client);
        for (size_t j = 1; j < 4; j++) {
            assert_int_equal(doorman_permit_client_add_lane(user->client, &user->upstreams[j]),
                             DOORMAN_OK);
        }
    }
    for (int i = 0; i < 4000; i++) step(m);
    settle(m);
    for (size_t i = 0; i < CLIENTS; i++) doorman_permit_client_destroy(m->apps[i].client);
    doorman_permits_destroy(m->permits);
}

TEST(holds_never_add_up_to_more_than_the_limit_and_never_leak) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"slots\", \"per\": "
        "\"resource\", \"kind\": \"CONCURRENCY\", \"limit\": 4, \"time_to_live\": 3, \"queue\": "
        "20, \"max_wait\": 3}]}]}";
    size_t granted = 0, seized = 0, changes = 0, late = 0;
    doorman_config *config = NULL;
    assert_int_equal(doorman_json_config(&config, text, strlen(text), NULL), DOORMAN_OK);
    for (int i = 0; i < 20; i++) {
        model *m = calloc(1, sizeof *m);
        m->config = config;
        history(m);
        granted += m->granted;
        seized += m->seized;
        changes += m->changes;
        late += m->late;
        for (size_t j = 0; j < MESSAGES; j++) free(m->messages[j].copy);
        free(m);
    }
    assert_true(granted > 1000 && seized > 10 && changes > 10 && late > 10);
    doorman_config_destroy(config);
    assert_int_equal(memory_blocks(), 0);
}
