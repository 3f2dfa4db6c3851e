/* Permit clients: batches, refusals that are still valid, the fallback, the breaker, the kill
 * switch. Time is a variable. The tests play the server: they read a request, and make its
 * response. */
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (SECOND / 1000)

typedef struct world {
    doorman_permit_client *client;
    doorman_upstream *upstream;
    doorman_request request;
    doorman_time now;
    void *context; /* of the last decision */
    doorman_acquired acquired;
    doorman_permit permits[12000];
    doorman_permit_grant grants[12000];
    doorman_permit_result results[100];
} world;

static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};

static world *world_start_with(doorman_permit_policy policy, size_t address_count) {
    world *w = calloc(1, sizeof *w);
    const doorman_client_options options = {.client_id = "me",
                                            .addresses = addresses,
                                            .address_count = address_count,
                                            .seed = 7,
                                            .permits = policy};
    w->now = 100 * SECOND;
    assert_int_equal(doorman_permit_client_create(&w->client, &options, NULL, w->now), DOORMAN_OK);
    w->upstream = doorman_permit_client_upstream(w->client);
    return w;
}

static world *world_start(void) {
    return world_start_with((doorman_permit_policy){.shadow = false}, 1);
}

static void world_end(world *w) {
    doorman_permit_client_destroy(w->client);
    free(w);
    assert_int_equal(memory_blocks(), 0);
}

/* Asks for a permit of one item. The context is a number, so that tests can tell calls apart. */
static void acquire_for(world *w, const char *key, double cost, doorman_time max_wait,
                        doorman_time timeout, size_t number) {
    const doorman_permit_item item = {.resource_id = "login", .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .max_wait = max_wait};
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_acquire(w->client, &request, timeout, (void *)number, &error, w->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
}

static void acquire(world *w, const char *key, size_t number) {
    acquire_for(w, key, 1, 0, SECOND, number);
}

/* Prepares decisions that grant everything. */
static void prepare_grants(world *w) {
    assert_true(w->request.permit_count <= 12000 && w->request.entry_count <= 100);
    memset(w->permits, 0, w->request.permit_count * sizeof *w->permits);
    for (size_t i = 0, n = 0; i < w->request.permit_count; i++) {
        const doorman_permit_request *asked = &w->request.permits[i];
        w->permits[i].granted = true;
        w->permits[i].items = &w->grants[n];
        w->permits[i].item_count = asked->item_count;
        for (size_t j = 0; j < asked->item_count; j++, n++) {
            w->grants[n] = (doorman_permit_grant){
                .granted = asked->items[j].cost, .limit = "per-user", .remaining = 4};
        }
    }
}

/* Takes the next message. If there is none, w->request stays the last message, which may still be
 * under way. The items of a message are valid until the next call on the client. */
static bool take_message(world *w) {
    doorman_request request;
    bool made = doorman_upstream_request(w->upstream, &request, w->now);
    if (made) w->request = request;
    if (made) prepare_grants(w);
    return made;
}

/* Returns a response that grants everything. A test changes it before it calls `respond`. */
static doorman_response grant_all(world *w) {
    return (doorman_response){.method = w->request.method,
                              .is_master = true,
                              .permits = w->permits,
                              .permit_count = w->request.permit_count,
                              .results = w->results,
                              .result_count = w->request.entry_count};
}

static void refuse(world *w, size_t index, doorman_reason reason, doorman_time valid_for) {
    w->permits[index] = (doorman_permit){.reason = reason,
                                         .limit = "per-user",
                                         .has_retry_after = true,
                                         .retry_after = 2 * valid_for,
                                         .valid_for = valid_for};
}

static doorman_status respond(world *w, const doorman_response *response) {
    return doorman_upstream_response(w->upstream, w->request.sequence, response, w->now);
}

static void grant_message(world *w) {
    doorman_response response = grant_all(w);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
}

static void fail_message(world *w) {
    doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
}

static void redirect_message(world *w, const char *address) {
    const doorman_response response = {.method = w->request.method, .master_address = address};
    assert_int_equal(respond(w, &response), DOORMAN_OK);
}

static bool next(world *w) {
    return doorman_permit_client_next(w->client, &w->context, &w->acquired, w->now);
}

static void assert_next(world *w, size_t number, bool granted, doorman_decider decider) {
    assert_true(next(w));
    assert_int_equal((size_t)w->context, number);
    assert_int_equal(w->acquired.granted, granted);
    assert_int_equal(w->acquired.decided_by, decider);
}

static doorman_permit_client_info info_of(const world *w) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->client, &info);
    return info;
}

/* ---- batches (P21) */

TEST(one_caller_is_sent_at_once) {
    world *w = world_start();
    assert_int_equal(doorman_upstream_due(w->upstream), DOORMAN_NEVER);
    assert_false(take_message(w));
    acquire(w, "ann", 1);
    assert_true(doorman_upstream_due(w->upstream) <= w->now);
    assert_true(take_message(w));
    assert_int_equal(w->request.method, DOORMAN_ACQUIRE);
    assert_string_equal(w->request.holder_id, "me");
    assert_string_equal(w->request.address, "tcp://a:1");
    assert_int_equal(w->request.permit_count, 1);
    assert_string_equal(w->request.permits[0].items[0].key, "ann");
    assert_false(next(w));
    grant_message(w);
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_exact(w->acquired.units[0], 1);
    assert_exact(w->acquired.units[1], 0);
    assert_string_equal(w->acquired.limit, "per-user");
    assert_exact(w->acquired.remaining, 4);
    assert_false(next(w));
    assert_int_equal(doorman_upstream_due(w->upstream), DOORMAN_NEVER);
    world_end(w);
}

TEST(callers_share_the_next_message) {
    world *w = world_start();
    acquire(w, "ann", 1);
    assert_true(take_message(w));
    for (size_t i = 2; i <= 65; i++) acquire(w, "bob", i);
    assert_false(take_message(w));
    assert_int_equal(info_of(w).waiting_count, 65);
    grant_message(w);
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_true(take_message(w));
    assert_int_equal(w->request.permit_count, 64);
    grant_message(w);
    for (size_t i = 2; i <= 65; i++) assert_next(w, i, true, DOORMAN_BY_SERVER);
    assert_int_equal(info_of(w).messages, 2);
    world_end(w);
}

TEST(a_message_has_a_bound_of_items_and_of_text) {
    world *w = world_start();
    doorman_permit_item items[100];
    for (size_t i = 0; i < 100; i++)
        items[i] = (doorman_permit_item){.resource_id = "r", .cost = 1};
    const doorman_permit_request request = {.items = items, .item_count = 100};
    for (size_t i = 0; i < 101; i++) {
        assert_int_equal(
            doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
            DOORMAN_OK);
    }
    const size_t expected[] = {40, 40, 21};
    for (size_t i = 0; i < 3; i++) {
        assert_true(take_message(w));
        assert_int_equal(w->request.permit_count, expected[i]);
        grant_message(w);
    }
    assert_false(take_message(w));
    char key[257];
    memset(key, 'k', 256);
    key[256] = 0;
    for (size_t i = 0; i < 2000; i++) acquire(w, key, i);
    size_t count = 0, messages = 0;
    while (take_message(w)) {
        assert_true(w->request.permit_count * (6 + 257) <= DOORMAN__MESSAGE_TEXT);
        count += w->request.permit_count;
        messages++;
        grant_message(w);
    }
    assert_int_equal(count, 2000);
    assert_int_equal(messages, 3);
    world_end(w);
}

static doorman_status report(world *w, const char *key, double cost) {
    return doorman_permit_client_report(
        w->client, &(doorman_permit_item){.resource_id = "login", .key = key, .cost = cost}, NULL,
        w->now);
}

TEST(permits_and_reports_alternate) {
    world *w = world_start();
    acquire(w, "ann", 1);
    assert_true(take_message(w));
    acquire(w, "ann", 2);
    assert_int_equal(report(w, "ann", 2.5), DOORMAN_OK);
    assert_int_equal(report(w, NULL, -1), DOORMAN_OK);
    grant_message(w);
    assert_true(take_message(w));
    assert_int_equal(w->request.method, DOORMAN_REPORT);
    assert_int_equal(w->request.entry_count, 2);
    assert_string_equal(w->request.entries[0].key, "ann");
    assert_exact(w->request.entries[0].cost, 2.5);
    assert_string_equal(w->request.entries[1].key, "");
    assert_exact(w->request.entries[1].cost, -1);
    assert_int_equal(report(w, "ann", 1), DOORMAN_OK);
    grant_message(w);
    assert_true(take_message(w));
    assert_int_equal(w->request.method, DOORMAN_ACQUIRE);
    grant_message(w);
    assert_true(take_message(w));
    assert_int_equal(w->request.method, DOORMAN_REPORT);
    grant_message(w);
    assert_int_equal(info_of(w).reported, 3);
    assert_int_equal(info_of(w).lost, 0);
    assert_false(take_message(w));
    world_end(w);
}

/* P13: a report that is larger than the room of a limit is charged in part. */
TEST(units_that_a_report_could_not_charge_are_counted) {
    world *w = world_start();
    const double costs[] = {5, 2, -3}, charged[] = {1.5, 2, -1};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(report(w, "ann", costs[i]), DOORMAN_OK);
        w->results[i].charged = charged[i];
    }
    assert_true(take_message(w));
    assert_int_equal(w->request.entry_count, 3);
    grant_message(w);
    assert_int_equal(info_of(w).reported, 3);
    assert_exact(info_of(w).uncharged, 3.5);
    world_end(w);
}

/* ---- the wait of a grant */

static void wait_with(world *w, doorman_time wait) {
    doorman_response response = grant_all(w);
    w->permits[0].wait = wait;
    assert_int_equal(respond(w, &response), DOORMAN_OK);
}

TEST(a_grant_with_a_wait_comes_after_the_wait) {
    world *w = world_start();
    acquire_for(w, "ann", 1, SECOND / 2, SECOND, 1);
    assert_true(take_message(w));
    assert_int_equal(w->request.permits[0].max_wait, SECOND / 2);
    wait_with(w, SECOND / 4);
    assert_false(next(w));
    assert_int_equal(doorman_upstream_due(w->upstream), w->now + SECOND / 4);
    w->now += SECOND / 4 - 1;
    assert_false(next(w));
    w->now += 1;
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.wait, 0);
    world_end(w);
}

/* The client waits for its caller only until the timeout of the call. Then the decision says how
 * long the caller still has to wait. */
TEST(a_wait_ends_with_the_timeout) {
    world *w = world_start();
    acquire_for(w, "ann", 1, SECOND, SECOND / 2, 1);
    w->now += SECOND / 10;
    assert_true(take_message(w));
    assert_int_equal(w->request.permits[0].max_wait, 4 * SECOND / 10);
    w->now += SECOND / 10;
    wait_with(w, 4 * SECOND / 10);
    w->now += 3 * SECOND / 10 - 1;
    assert_false(next(w));
    w->now += 1;
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.wait, SECOND / 10);
    assert_int_equal(info_of(w).timed_out, 0);
    world_end(w);
}

/* ---- refusals that are still valid (P22) */

/* Lets the server refuse `key` with this cost and max_wait. */
static void learn_refusal(world *w, const char *key, double cost, doorman_time max_wait,
                          doorman_time valid_for) {
    acquire_for(w, key, cost, max_wait, 10 * SECOND, 0);
    assert_true(take_message(w));
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_RATE, valid_for);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_next(w, 0, false, DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_RATE);
}

/* Returns whether the client refuses by itself. If not, the server grants. */
static bool refuses_alone(world *w, const char *key, double cost, doorman_time max_wait) {
    acquire_for(w, key, cost, max_wait, 10 * SECOND, 9);
    if (take_message(w)) {
        grant_message(w);
        assert_next(w, 9, true, DOORMAN_BY_SERVER);
        return false;
    }
    assert_next(w, 9, false, DOORMAN_BY_REFUSAL);
    return true;
}

TEST(a_valid_refusal_is_repeated_without_a_message) {
    world *w = world_start();
    learn_refusal(w, "ann", 2, SECOND / 10, SECOND / 2);
    w->now += SECOND / 4;
    assert_true(refuses_alone(w, "ann", 2, SECOND / 10));
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_RATE);
    assert_string_equal(w->acquired.limit, "per-user");
    assert_true(w->acquired.has_retry_after);
    assert_int_equal(w->acquired.retry_after, SECOND - SECOND / 4);
    assert_true(refuses_alone(w, "ann", 3, 0));
    assert_false(refuses_alone(w, "ann", 1, SECOND / 10)); /* a smaller minimum */
    assert_false(refuses_alone(w, "ann", 2, SECOND));      /* a longer wait */
    assert_false(refuses_alone(w, "bob", 2, SECOND / 10)); /* another key */
    w->now += SECOND / 4 - 1;
    assert_true(refuses_alone(w, "ann", 2, 0));
    w->now += 1;
    assert_false(refuses_alone(w, "ann", 2, 0));
    assert_int_equal(info_of(w).refused_locally, 3);
    world_end(w);
}

/* The server decides before its response arrives. So a time that begins with the response would be
 * too long. */
TEST(a_refusal_is_valid_from_when_the_message_was_sent) {
    world *w = world_start();
    acquire_for(w, "ann", 1, 0, 10 * SECOND, 1);
    assert_true(take_message(w));
    w->now += SECOND / 2;
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_RATE, 6 * SECOND / 10);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_next(w, 1, false, DOORMAN_BY_SERVER);
    w->now += SECOND / 10 - 1;
    assert_true(refuses_alone(w, "ann", 1, 0));
    w->now += 1;
    assert_false(refuses_alone(w, "ann", 1, 0));
    world_end(w);
}

TEST(a_permit_with_a_refused_item_is_refused) {
    world *w = world_start();
    learn_refusal(w, "ann", 1, 0, SECOND);
    const doorman_permit_item items[] = {
        {.resource_id = "login", .key = "bob", .cost = 1},
        {.resource_id = "login", .key = "ann", .cost = 5, .has_min = true, .min = 1}};
    const doorman_permit_request request = {.items = items, .item_count = 2};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    assert_next(w, 0, false, DOORMAN_BY_REFUSAL);
    assert_int_equal(w->acquired.item_index, 1);
    world_end(w);
}

/* A refusal of several items says nothing about one of them. A refusal with valid_for 0, for
 * example of CONCURRENCY, says nothing about the next moment. */
TEST(only_refusals_of_one_item_with_a_time_are_kept) {
    world *w = world_start();
    const doorman_permit_item items[] = {{.resource_id = "login", .key = "ann", .cost = 1},
                                         {.resource_id = "login", .key = "bob", .cost = 1}};
    const doorman_permit_request request = {.items = items, .item_count = 2};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    assert_true(take_message(w));
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_RATE, SECOND);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_next(w, 0, false, DOORMAN_BY_SERVER);
    assert_false(refuses_alone(w, "ann", 1, 0));
    learn_refusal(w, "bob", 1, 0, 0);
    assert_false(refuses_alone(w, "bob", 1, 0));
    world_end(w);
}

TEST(refusals_are_bounded) {
    world *w = world_start();
    char key[32];
    for (size_t i = 0; i <= DOORMAN__REFUSALS_MAX; i++) {
        snprintf(key, sizeof key, "key %zu", i);
        acquire_for(w, key, 1, 0, 10 * SECOND, 0);
    }
    while (take_message(w)) {
        doorman_response response = grant_all(w);
        for (size_t i = 0; i < w->request.permit_count; i++) {
            refuse(w, i, DOORMAN_REASON_RATE, SECOND);
        }
        assert_int_equal(respond(w, &response), DOORMAN_OK);
    }
    while (next(w)) assert_false(w->acquired.granted);
    assert_int_equal(w->client->refusals.table.count, DOORMAN__REFUSALS_MAX);
    assert_false(refuses_alone(w, "key 0", 1, 0)); /* the oldest one was forgotten */
    assert_true(refuses_alone(w, "key 1", 1, 0));
    w->now += SECOND;
    learn_refusal(w, "ann", 1, 0, SECOND);
    assert_int_equal(w->client->refusals.table.count, 1);
    world_end(w);
}

/* A key that is refused again and again must not keep the refusals of other keys in memory. */
TEST(a_refusal_that_is_renewed_is_the_last_one_to_be_forgotten) {
    world *w = world_start();
    learn_refusal(w, "hot", 1, 0, SECOND);
    learn_refusal(w, "ann", 1, 0, SECOND / 2);
    w->now += 3 * SECOND / 4;
    learn_refusal(w, "hot", 2, SECOND, SECOND);
    learn_refusal(w, "bob", 1, 0, SECOND);
    assert_int_equal(w->client->refusals.table.count, 2);
    assert_true(refuses_alone(w, "hot", 2, 0));
    world_end(w);
}

TEST(an_idle_client_forgets_its_refusals_when_the_last_one_ends) {
    world *w = world_start();
    learn_refusal(w, "ann", 1, 0, SECOND);
    learn_refusal(w, "bob", 1, 0, SECOND / 2);
    doorman_time end = w->client->refusals.end;
    assert_int_equal(doorman_upstream_due(w->upstream), end);
    w->now = end - 1;
    assert_false(take_message(w));
    assert_int_equal(w->client->refusals.table.count, 2);
    w->now = end;
    assert_false(take_message(w));
    assert_int_equal(w->client->refusals.table.count, 0);
    assert_int_equal(doorman_upstream_due(w->upstream), DOORMAN_NEVER);
    world_end(w);
}

/* Compares the refusals with a list that remembers the last refusal of each key. */
TEST(refusals_are_those_of_a_slow_model) {
    struct {
        double min;
        doorman_time max_wait, until;
    } model[5] = {{0}};
    world *w = world_start();
    for (int step = 0; step < 20000; step++) {
        size_t k = random_below(5);
        const char key[2] = {(char)('a' + k), 0};
        double cost = (double)(1 + random_below(4));
        doorman_time max_wait = (doorman_time)random_below(4) * SECOND / 10;
        w->now += (doorman_time)random_below(50) * MILLISECOND;
        bool expected =
            w->now < model[k].until && cost >= model[k].min && max_wait <= model[k].max_wait;
        acquire_for(w, key, cost, max_wait, 10 * SECOND, 0);
        assert_int_equal(!take_message(w), expected);
        if (!expected) {
            doorman_time sent = w->now;
            w->now += (doorman_time)random_below(50) * MILLISECOND;
            doorman_response response = grant_all(w);
            doorman_time valid_for = (doorman_time)random_below(500) * MILLISECOND;
            bool refused = random_below(2) == 0;
            if (refused) refuse(w, 0, DOORMAN_REASON_RATE, valid_for);
            assert_int_equal(respond(w, &response), DOORMAN_OK);
            if (refused && sent + valid_for > w->now) {
                model[k].min = cost;
                model[k].max_wait = max_wait;
                model[k].until = sent + valid_for;
            }
        }
        assert_true(next(w));
    }
    world_end(w);
}

/* ---- the fallback (P23) */

static const doorman_limit_options one_a_second = {
    .kind = DOORMAN_TOKEN_BUCKET, .rate = 1, .size = 1};

TEST(no_answer_in_time_grants_the_minimum) {
    world *w = world_start();
    const doorman_permit_item items[] = {
        {.resource_id = "r", .key = "a", .cost = 5, .has_min = true, .min = 2},
        {.resource_id = "r", .key = "b", .cost = 0.1}};
    const doorman_permit_request request = {.items = items, .item_count = 2};
    doorman_time start = w->now;
    assert_int_equal(
        doorman_permit_client_acquire(w->client, &request, SECOND / 2, NULL, NULL, w->now),
        DOORMAN_OK);
    assert_true(take_message(w));
    assert_int_equal(doorman_upstream_due(w->upstream), start + SECOND / 2);
    w->now = start + SECOND / 2 - 1;
    assert_false(next(w));
    w->now = start + SECOND / 2;
    assert_next(w, 0, true, DOORMAN_BY_FALLBACK);
    assert_exact(w->acquired.units[0], 2);
    assert_exact(w->acquired.units[1], 0.1);
    assert_int_equal(info_of(w).timed_out, 1);
    assert_int_equal(info_of(w).fallback_granted, 1);
    assert_int_equal(info_of(w).waiting_count, 0);
    assert_false(take_message(w)); /* the message has timed out too */
    assert_int_equal(info_of(w).failures, 1);
    world_end(w);
}

TEST(equal_items_fall_back_to_a_whole_number) {
    world *w = world_start();
    const doorman_permit_item items[] = {
        {.resource_id = "r", .key = "a", .cost = 5, .has_min = true, .min = 1.5},
        {.resource_id = "r", .key = "b", .cost = 3, .has_min = true, .min = 0.5}};
    const doorman_permit_request request = {.items = items, .item_count = 2, .equal = true};
    assert_int_equal(
        doorman_permit_client_acquire(w->client, &request, SECOND / 2, NULL, NULL, w->now),
        DOORMAN_OK);
    w->now += SECOND;
    assert_next(w, 0, true, DOORMAN_BY_FALLBACK);
    assert_exact(w->acquired.units[0], 2);
    assert_exact(w->acquired.units[1], 2);
    world_end(w);
}

TEST(closed_refuses) {
    world *w = world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED}, 1);
    acquire(w, "ann", 1);
    w->now += SECOND;
    assert_next(w, 1, false, DOORMAN_BY_FALLBACK);
    assert_int_equal(w->acquired.reason, DOORMAN_NO_REASON);
    assert_false(w->acquired.has_retry_after);
    assert_int_equal(info_of(w).fallback_refused, 1);
    world_end(w);
}

TEST(a_local_limiter_decides_for_each_key) {
    world *w = world_start_with(
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_LOCAL, .local = &one_a_second}, 1);
    acquire(w, "ann", 1);
    acquire(w, "ann", 2);
    acquire(w, "bob", 3);
    w->now += SECOND;
    assert_next(w, 1, true, DOORMAN_BY_FALLBACK);
    assert_next(w, 2, false, DOORMAN_BY_FALLBACK);
    assert_true(w->acquired.has_retry_after);
    assert_int_equal(w->acquired.retry_after, SECOND);
    assert_next(w, 3, true, DOORMAN_BY_FALLBACK);
    acquire(w, "ann", 4);
    w->now += SECOND;
    assert_next(w, 4, true, DOORMAN_BY_FALLBACK);
    world_end(w);
}

TEST(an_unmatched_resource_falls_back) {
    world *w = world_start();
    acquire(w, "ann", 1);
    assert_true(take_message(w));
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_UNMATCHED, SECOND);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_next(w, 1, true, DOORMAN_BY_FALLBACK);
    assert_int_equal(info_of(w).failures, 0);
    acquire(w, "ann", 2); /* the last answer is valid for a second (P5) */
    assert_false(take_message(w));
    assert_next(w, 2, true, DOORMAN_BY_FALLBACK);
    world_end(w);
}

TEST(a_late_response_has_no_effect_on_a_call_that_timed_out) {
    world *w = world_start();
    acquire_for(w, "ann", 1, 0, 10 * MILLISECOND, 1);
    acquire_for(w, "bob", 1, 0, SECOND, 2);
    assert_true(take_message(w));
    w->now += 20 * MILLISECOND;
    assert_next(w, 1, true, DOORMAN_BY_FALLBACK);
    grant_message(w);
    assert_next(w, 2, true, DOORMAN_BY_SERVER);
    assert_false(next(w));
    assert_int_equal(info_of(w).failures, 0);
    world_end(w);
}

/* A caller with a short timeout does not end the message: the server has at least 0.1 s. */
TEST(a_hurry_is_no_failure) {
    world *w = world_start();
    acquire_for(w, "ann", 1, 0, MILLISECOND, 1);
    assert_true(take_message(w));
    w->now += 99 * MILLISECOND;
    assert_false(take_message(w));
    assert_int_equal(info_of(w).failures, 0);
    w->now += MILLISECOND;
    assert_false(take_message(w));
    assert_int_equal(info_of(w).failures, 1);
    world_end(w);
}

TEST(a_failed_message_is_sent_again_to_the_next_address) {
    world *w = world_start_with((doorman_permit_policy){.shadow = false}, 2);
    acquire(w, "ann", 1);
    acquire(w, "bob", 2);
    assert_true(take_message(w));
    fail_message(w);
    acquire(w, "cat", 3);
    assert_true(take_message(w)); /* with only one permit */
    assert_string_equal(w->request.address, "tcp://b:1");
    assert_int_equal(w->request.permit_count, 1);
    assert_string_equal(w->request.permits[0].items[0].key, "ann");
    grant_message(w);
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_true(take_message(w));
    assert_string_equal(w->request.permits[0].items[0].key, "bob");
    assert_int_equal(w->request.permit_count, 1);
    fail_message(w);
    assert_true(take_message(w));
    assert_string_equal(w->request.address, "tcp://a:1");
    fail_message(w); /* the third time: once more than there are addresses */
    assert_next(w, 2, true, DOORMAN_BY_FALLBACK);
    assert_true(take_message(w));
    assert_string_equal(w->request.permits[0].items[0].key, "cat");
    grant_message(w);
    assert_next(w, 3, true, DOORMAN_BY_SERVER);
    world_end(w);
}

TEST(a_redirect_is_followed_at_once_with_all_permits) {
    world *w = world_start_with((doorman_permit_policy){.shadow = false}, 2);
    acquire(w, "ann", 1);
    acquire(w, "bob", 2);
    assert_true(take_message(w));
    redirect_message(w, "tcp://master:1");
    acquire(w, "cat", 3);
    assert_true(take_message(w));
    assert_string_equal(w->request.address, "tcp://master:1");
    assert_int_equal(w->request.permit_count, 3);
    assert_string_equal(w->request.permits[0].items[0].key, "ann");
    assert_string_equal(w->request.permits[2].items[0].key, "cat");
    grant_message(w);
    for (size_t i = 1; i <= 3; i++) assert_next(w, i, true, DOORMAN_BY_SERVER);
    acquire(w, "ann", 4);
    assert_true(take_message(w)); /* the master stays the address until it fails */
    assert_string_equal(w->request.address, "tcp://master:1");
    fail_message(w);
    assert_true(take_message(w));
    assert_string_equal(w->request.address, "tcp://b:1");
    assert_int_equal(info_of(w).failures, 1);
    world_end(w);
}

TEST(a_ring_of_redirects_is_a_failure) {
    world *w = world_start();
    acquire(w, "ann", 1);
    for (int i = 0; i <= DOORMAN__REDIRECTS_MAX; i++) {
        assert_true(take_message(w));
        assert_int_equal(info_of(w).failures, 0);
        redirect_message(w, i % 2 ? "tcp://x:1" : "tcp://y:1");
    }
    assert_int_equal(info_of(w).failures, 1);
    world_end(w);
}

TEST(a_response_that_does_not_fit_is_a_failure) {
    for (int which = 0; which < 6; which++) {
        world *w = world_start();
        acquire(w, "ann", 1);
        assert_true(take_message(w));
        doorman_response response = grant_all(w);
        if (which == 0) response.method = DOORMAN_REPORT;
        if (which == 1) response.permit_count = 0;
        if (which == 2) w->permits[0].item_count = 2;
        if (which == 3) w->permits[0].wait = -1;
        if (which == 4) w->grants[0].granted = -1;
        if (which == 5) w->permits[0] = (doorman_permit){.valid_for = -1};
        assert_int_equal(respond(w, &response), DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(info_of(w).failures, 1);
        assert_int_equal(respond(w, &response), DOORMAN_STALE);
        assert_true(take_message(w));
        grant_message(w);
        assert_next(w, 1, true, DOORMAN_BY_SERVER);
        world_end(w);
    }
}

/* ---- the breaker (P23) */

/* Lets messages fail until the breaker opens. */
static void open_breaker(world *w) {
    for (int i = 0; i < 5; i++) {
        assert_false(info_of(w).is_pausing);
        if (!w->client->home.queues[DOORMAN__CALL_PERMIT].first) acquire(w, "ann", 1);
        assert_true(take_message(w));
        fail_message(w);
    }
    assert_true(info_of(w).is_pausing);
    while (next(w)) assert_int_equal(w->acquired.decided_by, DOORMAN_BY_FALLBACK);
}

TEST(the_breaker_opens_after_five_failures_in_a_row) {
    world *w = world_start();
    open_breaker(w);
    assert_int_equal(info_of(w).failures, 5);
    assert_int_equal(info_of(w).pauses, 1);
    acquire(w, "ann", 2); /* no server is asked */
    assert_false(take_message(w));
    assert_next(w, 2, true, DOORMAN_BY_FALLBACK);
    assert_int_equal(report(w, "ann", 1), DOORMAN_OK);
    assert_int_equal(info_of(w).lost, 1);
    w->now += SECOND - 1;
    acquire(w, "ann", 3);
    assert_next(w, 3, true, DOORMAN_BY_FALLBACK);
    w->now += 1;
    acquire(w, "ann", 4);
    assert_true(take_message(w)); /* this message tests the server */
    acquire(w, "ann", 5);         /* does not wait for the test */
    assert_next(w, 5, true, DOORMAN_BY_FALLBACK);
    grant_message(w);
    assert_next(w, 4, true, DOORMAN_BY_SERVER);
    acquire(w, "ann", 6);
    assert_true(take_message(w)); /* the breaker is closed */
    fail_message(w);
    assert_false(info_of(w).is_pausing);
    world_end(w);
}

TEST(a_success_ends_the_row_of_failures) {
    world *w = world_start();
    for (int i = 0; i < 4; i++) {
        acquire(w, "ann", 1);
        assert_true(take_message(w));
        fail_message(w);
        assert_true(take_message(w));
        grant_message(w);
        assert_true(next(w));
    }
    assert_int_equal(info_of(w).failures, 4);
    open_breaker(w);
    assert_int_equal(info_of(w).failures, 9);
    world_end(w);
}

/* Opens the breaker. Lets the message that tests the server fail after each of these pauses, in
 * seconds. */
static void check_pauses(doorman_time max_pause, const int *pauses, size_t count) {
    world *w = world_start_with((doorman_permit_policy){.max_pause = max_pause}, 1);
    open_breaker(w);
    for (size_t i = 0; i < count; i++) {
        w->now += pauses[i] * SECOND - 1;
        acquire(w, "ann", 1);
        assert_false(take_message(w));
        assert_next(w, 1, true, DOORMAN_BY_FALLBACK);
        w->now += 1;
        acquire(w, "ann", 2);
        assert_true(take_message(w));
        fail_message(w);
        assert_next(w, 2, true, DOORMAN_BY_FALLBACK);
    }
    world_end(w);
}

TEST(a_failed_test_doubles_the_pause_up_to_max_pause) {
    const int usual[] = {1, 2, 4, 8, 16, 30, 30, 30}, shortest[] = {1, 1, 1}, few[] = {1, 2, 3, 3};
    const int most[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600};
    check_pauses(0, usual, sizeof usual / sizeof *usual);
    check_pauses(SECOND, shortest, sizeof shortest / sizeof *shortest);
    check_pauses(3 * SECOND, few, sizeof few / sizeof *few);
    check_pauses(3600 * SECOND, most, sizeof most / sizeof *most);
}

TEST(a_wrong_max_pause_is_refused) {
    const doorman_time wrong[] = {-1, 1, SECOND - 1, 3600 * SECOND + 1, DOORMAN_NEVER};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const doorman_client_options options = {.client_id = "me",
                                                .addresses = addresses,
                                                .address_count = 1,
                                                .seed = 7,
                                                .permits = {.max_pause = wrong[i]}};
        doorman_permit_client *client = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_permit_client_create(&client, &options, &error, 0),
                         DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, "permits.max_pause: must be 0, or from 1 s to 3600 s");
    }
}

/* An election ends soon, so the client asks often. */
TEST(servers_without_a_master_are_asked_every_four_seconds) {
    world *w = world_start();
    open_breaker(w);
    const int pauses[] = {1, 2, 4, 4, 4};
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        w->now += pauses[i] * SECOND - 1;
        acquire(w, "ann", 1);
        assert_false(take_message(w));
        assert_next(w, 1, true, DOORMAN_BY_FALLBACK);
        w->now += 1;
        acquire(w, "ann", 2);
        assert_true(take_message(w));
        redirect_message(w, NULL);
        assert_next(w, 2, true, DOORMAN_BY_FALLBACK);
    }
    world_end(w);
}

TEST(closed_says_when_the_breaker_asks_again) {
    world *w = world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED}, 1);
    open_breaker(w);
    w->now += SECOND / 4;
    acquire(w, "ann", 1);
    assert_next(w, 1, false, DOORMAN_BY_FALLBACK);
    assert_true(w->acquired.has_retry_after);
    assert_int_equal(w->acquired.retry_after, 3 * SECOND / 4);
    world_end(w);
}

/* Compares the breaker with a model that has a number of failures and a time. There is one address,
 * and one call at a time. The message of a call may fail twice before the call falls back. */
TEST(the_breaker_is_that_of_a_slow_model) {
    world *w = world_start();
    unsigned failures = 0;
    doorman_time open_until = 0;
    for (int step = 0; step < 20000; step++) {
        w->now += (doorman_time)random_below(3000) * MILLISECOND;
        acquire(w, "ann", 1);
        bool asked = take_message(w);
        assert_int_equal(asked, w->now >= open_until);
        for (int tries = 0; asked; tries++) {
            if (random_below(4) == 0) {
                grant_message(w);
                failures = 0;
                break;
            }
            fail_message(w);
            failures++;
            if (failures >= 5) {
                int seconds = failures >= 10 ? 30 : 1 << (failures - 5);
                open_until = w->now + (seconds > 30 ? 30 : seconds) * SECOND;
            }
            asked = take_message(w);
            assert_int_equal(asked, failures < 5 && tries == 0);
        }
        assert_true(next(w));
        assert_int_equal(w->acquired.decided_by, failures == 0 && w->now >= open_until
                                                     ? DOORMAN_BY_SERVER
                                                     : DOORMAN_BY_FALLBACK);
    }
    world_end(w);
}

/* ---- the kill switch and shadow (P25) */

TEST(in_shadow_a_permit_is_granted_at_once_and_counted) {
    world *w = world_start_with((doorman_permit_policy){.shadow = true}, 1);
    acquire_for(w, "ann", 7, 0, SECOND, 1);
    assert_next(w, 1, true, DOORMAN_BY_BYPASS);
    assert_exact(w->acquired.units[0], 7);
    assert_true(take_message(w)); /* the server counts */
    assert_exact(w->request.permits[0].items[0].cost, 7);
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_RATE, SECOND);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_false(next(w));
    assert_int_equal(info_of(w).bypassed, 1);
    acquire_for(w, "ann", 7, 0, SECOND, 2);
    assert_next(w, 2, true, DOORMAN_BY_BYPASS);
    assert_false(take_message(w)); /* refused locally, and counted too */
    assert_int_equal(info_of(w).bypassed, 2);
    assert_int_equal(info_of(w).waiting_count, 0);
    world_end(w);
}

TEST(the_kill_switch_ends_all_waits) {
    world *w = world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED}, 1);
    acquire_for(w, "waits", 1, SECOND, SECOND, 1);
    assert_true(take_message(w));
    wait_with(w, SECOND / 2);
    acquire(w, "sent", 2);
    assert_true(take_message(w));
    acquire(w, "queued", 3);
    doorman_permit_client_kill_switch(w->client, true);
    bool seen[5] = {false};
    for (int i = 0; i < 3; i++) {
        assert_true(next(w));
        assert_true(w->acquired.granted);
        seen[(size_t)w->context] = true;
    }
    assert_true(seen[1] && seen[2] && seen[3]);
    grant_message(w); /* of the message under way, which nobody waits for */
    assert_false(next(w));
    acquire(w, "ann", 4);
    assert_next(w, 4, true, DOORMAN_BY_BYPASS);
    doorman_permit_client_kill_switch(w->client, false);
    assert_true(take_message(w));
    doorman_response response = grant_all(w);
    refuse(w, 0, DOORMAN_REASON_RATE, SECOND);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    acquire(w, "ann", 5);
    assert_next(w, 5, false, DOORMAN_BY_REFUSAL);
    world_end(w);
}

/* A decision has the figures of the limit that it names, also in a refusal. */
TEST(a_decision_with_detail_has_the_figures_of_its_limit) {
    world *w = world_start();
    const doorman_permit_item item = {.resource_id = "login", .key = "ann", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    const doorman_permit_detail details[] = {
        {.limit = "all", .most = 1000, .remaining = 900, .window = 60 * SECOND},
        {.limit = "per-user",
         .most = 5,
         .remaining = 3,
         .reset_after = 2 * SECOND,
         .window = 5 * SECOND}};
    for (int i = 0; i < 102; i++) {
        assert_int_equal(
            doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
            DOORMAN_OK);
    }
    assert_true(take_message(w));
    assert_int_equal(w->request.permit_count, 100); /* a server takes no more with detail */
    assert_true(w->request.permits[0].detail);
    doorman_response response = grant_all(w);
    refuse(w, 1, DOORMAN_REASON_RATE, SECOND / 10);
    for (size_t i = 0; i < 2; i++) w->permits[i].details = details, w->permits[i].detail_count = 2;
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(next(w));
        assert_int_equal(w->acquired.granted, i != 1);
        assert_true(w->acquired.quota >= (i < 2 ? 5 : 0) && w->acquired.quota <= (i < 2 ? 5 : 0));
        assert_int_equal(w->acquired.window, i < 2 ? 5 * SECOND : 0);
        assert_true(w->acquired.remaining >= (i < 2 ? 3 : 4));
        assert_int_equal(w->acquired.reset_after, i < 2 ? 2 * SECOND : 0);
    }
    world_end(w);
}

/* P23: the client decides alone. It sends no message, except a copy while the kill switch is on. */
TEST(a_timeout_of_0_waits_for_no_server) {
    static const doorman_time timeouts[] = {0, -1, -DOORMAN_NEVER};
    world *w = world_start_with(
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_LOCAL, .local = &one_a_second}, 1);
    for (size_t i = 0; i < 3; i++) {
        acquire_for(w, "ann", 1, SECOND, timeouts[i], i);
        assert_next(w, i, i == 0, DOORMAN_BY_FALLBACK);
    }
    assert_false(take_message(w));
    assert_int_equal(info_of(w).timed_out, 3);
    doorman_permit_client_kill_switch(w->client, true);
    acquire_for(w, "ann", 1, SECOND, 0, 4);
    assert_next(w, 4, true, DOORMAN_BY_BYPASS);
    assert_true(take_message(w));
    world_end(w);
}

/* ---- checks, and ends */

static void expect_refused(world *w, const doorman_permit_request *request, const char *reason) {
    doorman_error error = {0};
    assert_int_equal(doorman_permit_client_acquire(w->client, request, 1, NULL, &error, w->now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, reason);
}

TEST(wrong_permits_are_refused) {
    world *w = world_start();
    doorman_permit_item items[101];
    for (size_t i = 0; i < 101; i++)
        items[i] = (doorman_permit_item){.resource_id = "r", .cost = 1};
    const doorman_permit_item no_id = {.cost = 1}, negative = {.resource_id = "r", .cost = -1};
    const doorman_permit_item uneven[] = {{.resource_id = "r", .cost = 1.5},
                                          {.resource_id = "r", .cost = 1.2}};
    const struct {
        doorman_permit_request request;
        const char *text;
    } cases[] = {
        {{.items = items}, "items: must be a list of 1 to 100 items"},
        {{.items = items, .item_count = 101}, "items: must be a list of 1 to 100 items"},
        {{.items = items, .item_count = 1, .max_wait = -1},
         "max_wait: must be from 0 to 1e8 seconds"},
        {{.items = &no_id, .item_count = 1},
         "items[0].resource_id: must be 1 to 256 bytes of UTF-8 without control characters"},
        {{.items = &negative, .item_count = 1},
         "items[0].cost: must be a finite number from 0 to 1e15"},
        {{.items = items, .item_count = 1, .priority = 3}, "priority: needs has_priority"},
        {{.items = items, .item_count = 1, .has_priority = true, .priority = 16},
         "priority: must be from 0 to 15"},
        {{.items = items, .item_count = 1, .time_to_live = -1},
         "time_to_live: must be from 0 to 1e8 seconds"},
        {{.items = items, .item_count = 2, .share = true}, "share: needs a permit of one item"},
        {{.items = uneven, .item_count = 2, .equal = true},
         "equal: no whole number is between min and cost of all items"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refused(w, &cases[i].request, cases[i].text);
    }
    assert_int_equal(report(w, "ann", 1e16), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(info_of(w).waiting_count, 0);
    assert_false(take_message(w));
    world_end(w);
}

TEST(wrong_options_are_refused) {
    const doorman_limit_options debt = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1, .max_debt = 1};
    const doorman_limit_options gauge = {.kind = DOORMAN_CONCURRENCY, .limit = 1};
    const doorman_limit_options no_rate = {.kind = DOORMAN_TOKEN_BUCKET};
    const doorman_permit_policy policies[] = {{.fallback = (doorman_permit_fallback)3},
                                              {.fallback = DOORMAN_FAIL_LOCAL},
                                              {.local = &one_a_second},
                                              {.fallback = DOORMAN_FAIL_LOCAL, .local = &debt},
                                              {.fallback = DOORMAN_FAIL_LOCAL, .local = &gauge},
                                              {.fallback = DOORMAN_FAIL_LOCAL, .local = &no_rate}};
    for (size_t i = 0; i <= sizeof policies / sizeof *policies; i++) {
        bool is_policy = i < sizeof policies / sizeof *policies;
        doorman_client_options options = {
            .client_id = "me", .addresses = addresses, .address_count = 1, .seed = 1};
        if (is_policy) options.permits = policies[i];
        if (!is_policy) options.address_count = 0;
        doorman_permit_client *client = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_permit_client_create(&client, &options, &error, 0),
                         DOORMAN_INVALID_ARGUMENT);
        assert_null(client);
        assert_true(error.text[0] != 0);
    }
    assert_int_equal(memory_blocks(), 0);
}

TEST(a_client_with_calls_in_all_states_can_be_destroyed) {
    world *w = world_start();
    learn_refusal(w, "refused", 1, 0, SECOND);
    acquire_for(w, "waits", 1, SECOND, SECOND, 1);
    assert_true(take_message(w));
    wait_with(w, SECOND / 2);
    acquire(w, "sent", 2);
    assert_true(take_message(w));
    acquire(w, "queued", 3);
    assert_int_equal(report(w, "queued", 1), DOORMAN_OK);
    acquire(w, "refused", 4);
    world_end(w);
    doorman_permit_client_destroy(NULL);
}

/* Answers the message under way, with random decisions.
 *   what   6: no process is the master. 7: another process is. Otherwise the server decides */
static void answer_randomly(world *w, size_t what) {
    doorman_response response = grant_all(w);
    for (size_t i = 0; i < w->request.permit_count; i++) {
        if (random_below(3) == 0) refuse(w, i, DOORMAN_REASON_RATE, SECOND / 10);
        if (random_below(9) == 0) refuse(w, i, DOORMAN_REASON_UNMATCHED, SECOND / 10);
        bool waits = w->permits[i].granted && random_below(2) == 0;
        if (waits) w->permits[i].wait = (doorman_time)random_below(300) * MILLISECOND;
    }
    if (what == 6) response.is_master = false;
    if (what == 7) response.is_master = false, response.master_address = "tcp://c:1";
    (void)respond(w, &response);
}

/* Messages are lost, fail, are redirected, come late, or are answered. Each caller gets exactly one
 * decision within its timeout. */
TEST(each_call_ends_once_and_in_time) {
    enum { CALLS = 64 };
    world *w = world_start_with((doorman_permit_policy){.shadow = false}, 2);
    doorman_time ends[CALLS] = {0}; /* 0: there is no such call now */
    bool under_way = false;
    for (int step = 0; step < 50000; step++) {
        size_t number = random_below(CALLS);
        const char key[2] = {(char)('a' + random_below(8)), 0};
        if (ends[number] == 0) {
            doorman_time timeout = 1 + (doorman_time)random_below(600) * MILLISECOND;
            acquire_for(w, key, 1, (doorman_time)random_below(2) * SECOND, timeout, number);
            ends[number] = w->now + timeout;
        }
        if (take_message(w)) under_way = true;
        size_t what = random_below(12);
        if (under_way && what < 8) {
            answer_randomly(w, what);
            under_way = false;
        } else if (under_way && what == 8) {
            fail_message(w);
            under_way = false;
        }
        while (next(w)) {
            size_t ended = (size_t)w->context;
            assert_true(ended < CALLS && ends[ended] > 0 && w->now <= ends[ended]);
            assert_true(w->acquired.wait == 0 || w->now == ends[ended]);
            ends[ended] = 0;
        }
        doorman_time due = doorman_upstream_due(w->upstream);
        doorman_time later = w->now + (doorman_time)random_below(30) * MILLISECOND;
        w->now = due > w->now && due < later ? due : later;
        while (next(w)) {
            size_t ended = (size_t)w->context;
            assert_true(ended < CALLS && ends[ended] > 0);
            ends[ended] = 0;
        }
    }
    assert_true(info_of(w).pauses > 0 && info_of(w).granted > 1000);
    world_end(w);
}

TEST(a_server_object_decides) {
    world *w = world_start();
    const doorman_permit_limit limit = {.name = "per-user",
                                        .kind = DOORMAN_FIXED_WINDOW,
                                        .figures = {.limit = 2, .window = 60 * SECOND}};
    const doorman_template login = {.identifier_glob = "login",
                                    .without_capacity = true,
                                    .has_limits = true,
                                    .limits = &limit,
                                    .limit_count = 1};
    const doorman_config_options config_options = {.templates = &login, .template_count = 1};
    doorman_config *config = NULL;
    doorman_server *server = NULL;
    assert_int_equal(doorman_config_create(&config, &config_options, NULL), DOORMAN_OK);
    const doorman_server_options options = {.node = "eu", .config = config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&server, &options, NULL, w->now), DOORMAN_OK);
    const doorman_mastership master = {.address = "tcp://a:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(server, &master, w->now), DOORMAN_OK);
    for (size_t i = 1; i <= 3; i++) acquire(w, "ann", i);
    assert_true(take_message(w));
    doorman_response response;
    assert_int_equal(doorman_server_handle(server, &w->request, &response, NULL, w->now),
                     DOORMAN_OK);
    assert_int_equal(respond(w, &response), DOORMAN_OK);
    assert_next(w, 1, true, DOORMAN_BY_SERVER);
    assert_next(w, 2, true, DOORMAN_BY_SERVER);
    assert_next(w, 3, false, DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_RATE);
    assert_string_equal(w->acquired.limit, "per-user");
    assert_true(refuses_alone(w, "ann", 1, 0));
    doorman_server_destroy(server);
    doorman_config_destroy(config);
    world_end(w);
}
