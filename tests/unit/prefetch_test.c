/* Units that a permit client takes ahead for keys that are used often (P24). Time is a variable. A
 * server in the same process decides. */
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (SECOND / 1000)

enum { CLIENTS_MAX = 3 };

/* Clients, and a server whose resource "api" has a token bucket for each key. */
typedef struct world {
    doorman_config *config;
    doorman_server *server;
    doorman_permit_client *clients[CLIENTS_MAX];
    size_t client_count;
    doorman_time now;
    doorman_request request;   /* the last message of a client */
    size_t messages;           /* that were answered */
    doorman_acquired acquired; /* the last decision */
} world;

static const char *const addresses[] = {"tcp://a:1"};

static doorman_client_options options_of(const char *id, doorman_permit_policy policy) {
    return (doorman_client_options){
        .client_id = id, .addresses = addresses, .address_count = 1, .seed = 7, .permits = policy};
}

static void add_client(world *w, doorman_permit_policy policy) {
    char id[] = "client-0";
    id[7] = (char)('0' + w->client_count);
    const doorman_client_options options = options_of(id, policy);
    doorman_permit_client **client = &w->clients[w->client_count++];
    assert_int_equal(doorman_permit_client_create(client, &options, NULL, w->now), DOORMAN_OK);
}

static world *world_start_with(doorman_permit_limit limit, doorman_permit_policy policy) {
    world *w = calloc(1, sizeof *w);
    w->now = 1000 * SECOND;
    limit.name = "bucket";
    limit.kind = DOORMAN_TOKEN_BUCKET;
    const doorman_template api = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = &limit,
                                  .limit_count = 1};
    const doorman_config_options config = {.templates = &api, .template_count = 1};
    assert_int_equal(doorman_config_create(&w->config, &config, NULL), DOORMAN_OK);
    const doorman_server_options options = {.node = "eu", .config = w->config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&w->server, &options, NULL, w->now), DOORMAN_OK);
    const doorman_mastership master = {.address = "tcp://a:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(w->server, &master, w->now), DOORMAN_OK);
    add_client(w, policy);
    return w;
}

/* Starts a world with a bucket of `size` units, and a client that takes units ahead for a
 * second. */
static world *world_start(double rate, double size) {
    return world_start_with(
        (doorman_permit_limit){.figures = {.rate = rate, .size = size}},
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED, .prefetch = SECOND});
}

static void world_end(world *w) {
    for (size_t i = 0; i < w->client_count; i++) doorman_permit_client_destroy(w->clients[i]);
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    free(w);
    assert_int_equal(memory_blocks(), 0);
}

static void ask(world *w, const doorman_permit_request *request) {
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_acquire(w->clients[0], request, SECOND, NULL, &error, w->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
}

/* Takes the next message of a client. Returns false if there is none. */
static bool take_message(world *w, size_t client) {
    doorman_upstream *upstream = doorman_permit_client_upstream(w->clients[client]);
    return doorman_upstream_request(upstream, &w->request, w->now);
}

/* Lets the server answer the last message. */
static void answer(world *w, size_t client) {
    doorman_upstream *upstream = doorman_permit_client_upstream(w->clients[client]);
    doorman_response response = {.is_master = false};
    assert_int_equal(doorman_server_handle(w->server, &w->request, &response, NULL, w->now),
                     DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, w->request.sequence, &response, w->now),
                     DOORMAN_OK);
    w->messages++;
}

/* Lets the server answer all messages of a client. */
static void exchange(world *w, size_t client) {
    while (take_message(w, client)) answer(w, client);
}

static bool next(world *w, size_t client) {
    void *context = NULL;
    return doorman_permit_client_next(w->clients[client], &context, &w->acquired, w->now);
}

/* Asks for a permit, and returns who has decided. Messages that follow are not answered yet. */
static doorman_decider decide(world *w, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = "api", .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    ask(w, &request);
    if (!next(w, 0)) {
        assert_true(take_message(w, 0));
        answer(w, 0);
        assert_true(next(w, 0));
    }
    return w->acquired.decided_by;
}

static doorman_permit_client_info info_of(const world *w) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->clients[0], &info);
    return info;
}

/* Uses a key twice, and lets the client take units ahead. */
static void fill_stock(world *w, double cost) {
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", cost), DOORMAN_BY_SERVER);
    exchange(w, 0);
    assert_exact(info_of(w).prefetched, 2 * cost);
}

/* ---- when units are taken, and how many */

TEST(a_key_that_is_used_often_is_served_without_a_message) {
    world *w = world_start(1, 100);
    fill_stock(w, 1);
    size_t messages = w->messages;
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_PREFETCH);
    assert_true(w->acquired.granted);
    assert_exact(w->acquired.units[0], 1);
    assert_string_equal(w->acquired.limit, "bucket");
    assert_exact(w->acquired.remaining, 96); /* of the last answer: two and two are taken */
    assert_int_equal(w->messages, messages);
    assert_int_equal(info_of(w).prefetch_granted, 1);
    assert_int_equal(info_of(w).granted, 2); /* what was taken ahead is no permit of a caller */
    world_end(w);
}

TEST(a_client_without_prefetch_takes_nothing_ahead) {
    world *w = world_start_with((doorman_permit_limit){.figures = {.rate = 1, .size = 100}},
                                (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    for (int i = 0; i < 10; i++) {
        assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
        assert_false(take_message(w, 0));
    }
    world_end(w);
}

TEST(keys_that_are_used_once_are_not_prefetched) {
    world *w = world_start(1, 100);
    for (int i = 0; i < 50; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        assert_int_equal(decide(w, key, 5), DOORMAN_BY_SERVER);
        assert_false(take_message(w, 0));
    }
    w->now += SECOND; /* the second use comes too late */
    assert_int_equal(decide(w, "0", 5), DOORMAN_BY_SERVER);
    assert_false(take_message(w, 0));
    assert_exact(info_of(w).prefetched, 0);
    world_end(w);
}

TEST(at_most_what_was_used_in_the_time_is_taken) {
    world *w = world_start(1, 1000);
    assert_int_equal(decide(w, "ann", 20), DOORMAN_BY_SERVER);
    w->now += SECOND; /* this use is in the past now */
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 1.75), DOORMAN_BY_SERVER);
    assert_true(take_message(w, 0));
    assert_exact(w->request.permits[0].items[0].cost, 3); /* 3.5 were used */
    answer(w, 0);
    assert_false(take_message(w, 0));
    world_end(w);
}

TEST(at_most_half_of_what_remains_is_taken) {
    world *w = world_start(0.001, 16);
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 5), DOORMAN_BY_SERVER);
    assert_true(take_message(w, 0)); /* 10 were used, and 6 remain */
    assert_exact(w->request.permits[0].items[0].cost, 3);
    answer(w, 0);
    assert_exact(info_of(w).prefetched, 3);
    world_end(w);
}

/* Another client takes most of the rest of the bucket first. So the server grants fewer units than
 * the first client asked for, and refuses nothing. */
TEST(units_that_are_gone_meanwhile_are_not_refused) {
    world *w = world_start(0.001, 16);
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 5), DOORMAN_BY_SERVER);
    assert_true(take_message(w, 0));
    const doorman_request ahead = w->request;
    add_client(w, (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    const doorman_permit_item item = {.resource_id = "api", .key = "ann", .cost = 5};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(
        doorman_permit_client_acquire(w->clients[1], &request, SECOND, NULL, NULL, w->now),
        DOORMAN_OK);
    exchange(w, 1);
    w->request = ahead;
    answer(w, 0);
    assert_exact(info_of(w).prefetched, 1);
    assert_int_equal(info_of(w).refused, 0);
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_PREFETCH);
    world_end(w);
}

/* ---- when units are lost */

TEST(unused_units_lapse_after_twice_the_time) {
    for (int late = 0; late < 2; late++) {
        world *w = world_start(0.001, 100);
        fill_stock(w, 1);
        w->now += 2 * SECOND - 1 + late;
        assert_int_equal(decide(w, "ann", 1), late ? DOORMAN_BY_SERVER : DOORMAN_BY_PREFETCH);
        assert_exact(info_of(w).lapsed, late ? 2 : 0);
        world_end(w);
    }
}

/* The server charges after the message was sent. So a time that begins with the sending is safe. */
TEST(the_time_of_units_begins_when_their_message_is_sent) {
    world *w = world_start(0.001, 100);
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
    assert_true(take_message(w, 0));
    w->now += SECOND / 2;
    answer(w, 0);
    w->now += 3 * SECOND / 2;
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
    assert_exact(info_of(w).lapsed, 2);
    world_end(w);
}

TEST(an_idle_client_forgets_its_stocks) {
    world *w = world_start(1, 100);
    fill_stock(w, 1);
    doorman_upstream *upstream = doorman_permit_client_upstream(w->clients[0]);
    assert_int_equal(doorman_upstream_due(upstream), w->now + 2 * SECOND);
    w->now += 2 * SECOND;
    assert_false(next(w, 0));
    assert_int_equal(w->clients[0]->stocks.table.count, 0);
    assert_int_equal(doorman_upstream_due(upstream), DOORMAN_NEVER);
    assert_exact(info_of(w).lapsed, 2);
    world_end(w);
}

TEST(stocks_are_bounded) {
    world *w = world_start(1, 100);
    fill_stock(w, 1);
    for (int i = 0; i < 10010; i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        assert_int_equal(decide(w, key, 1), DOORMAN_BY_SERVER);
        assert_true(w->clients[0]->stocks.table.count <= DOORMAN__STOCKS_MAX);
    }
    assert_exact(info_of(w).lapsed, 2); /* "ann" was not used for the longest time */
    world_end(w);
}

TEST(a_ban_ends_the_stock) {
    world *w = world_start(1, 100);
    fill_stock(w, 5);
    doorman_permits *permits = doorman_server_permits(w->server);
    assert_int_equal(doorman_permits_ban(permits, ITEM_OF("api", "ann"), 60 * SECOND, NULL, w->now),
                     DOORMAN_OK);
    assert_int_equal(decide(w, "ann", 11), DOORMAN_BY_SERVER); /* more than the stock has */
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_BANNED);
    w->now += 3 * SECOND / 2; /* the refusal is not valid any more, but the units would be */
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_BANNED);
    assert_exact(info_of(w).lapsed, 10);
    world_end(w);
}

/* ---- which permits get units of a stock */

TEST(permits_with_holds_or_several_items_ask_the_server) {
    world *w = world_start(1, 100);
    fill_stock(w, 2);
    uint64_t hold = 0;
    const doorman_permit_item items[] = {{.resource_id = "api", .key = "ann", .cost = 1},
                                         {.resource_id = "api", .key = "bob", .cost = 1}};
    const doorman_permit_request requests[] = {
        {.items = items, .item_count = 2},
        {.items = items, .item_count = 1, .equal = true},
        {.items = items, .item_count = 1, .hold = &hold},
        {.items = items, .item_count = 1, .hold = &hold, .max_wait = SECOND}};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        ask(w, &requests[i]);
        assert_false(next(w, 0));
        exchange(w, 0);
        assert_true(next(w, 0));
        assert_true(w->acquired.granted);
        assert_int_equal(w->acquired.decided_by, DOORMAN_BY_SERVER);
    }
    assert_int_equal(info_of(w).prefetch_granted, 0);
    world_end(w);
}

/* A limit can have a max_cost. The client does not know it. */
TEST(a_permit_that_costs_more_than_any_before_asks_the_server) {
    world *w = world_start_with(
        (doorman_permit_limit){
            .figures = {.rate = 1, .size = 100}, .has_max_cost = true, .max_cost = 3},
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED, .prefetch = SECOND});
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 3), DOORMAN_BY_SERVER);
    exchange(w, 0);
    assert_exact(info_of(w).prefetched, 3); /* the client has asked for 6 */
    assert_int_equal(decide(w, "ann", 4), DOORMAN_BY_SERVER);
    assert_int_equal(w->acquired.reason, DOORMAN_REASON_MAX_COST);
    assert_int_equal(decide(w, "ann", 3), DOORMAN_BY_PREFETCH);
    world_end(w);
}

TEST(a_permit_gets_no_more_units_of_a_stock_than_of_a_server) {
    world *w = world_start_with(
        (doorman_permit_limit){
            .figures = {.rate = 1, .size = 100}, .has_max_cost = true, .max_cost = 1},
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED, .prefetch = SECOND});
    const doorman_permit_item item = {
        .resource_id = "api", .key = "ann", .cost = 2, .has_min = true, .min = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
    exchange(w, 0);
    for (int i = 0; i < 3; i++) {
        ask(w, &request);
        if (!next(w, 0)) {
            exchange(w, 0); /* and the stock grows */
            assert_true(next(w, 0));
        }
        assert_exact(w->acquired.units[0], 1);
    }
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_PREFETCH);
    world_end(w);
}

/* A server counts in 1/4096 of a unit. So a unit is enough for at most 4096 permits. */
TEST(small_costs_are_rounded_up_as_by_a_server) {
    world *w = world_start(0.001, 100);
    fill_stock(w, 1);
    for (int i = 0; i < 4096; i++) {
        assert_int_equal(decide(w, "ann", 1e-9), DOORMAN_BY_PREFETCH);
    }
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_PREFETCH);
    assert_exact(info_of(w).prefetched, 2);
    assert_int_equal(decide(w, "ann", 1e-9), DOORMAN_BY_SERVER);
    world_end(w);
}

TEST(the_kill_switch_spends_no_units) {
    world *w = world_start(1, 100);
    fill_stock(w, 1);
    doorman_permit_client_kill_switch(w->clients[0], true);
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_BYPASS);
    exchange(w, 0);
    doorman_permit_client_kill_switch(w->clients[0], false);
    assert_int_equal(decide(w, "ann", 2), DOORMAN_BY_SERVER);
    assert_int_equal(decide(w, "ann", 2), DOORMAN_BY_PREFETCH);
    world_end(w);
}

/* ---- failures */

/* The server may have charged although its answer was lost. So the message is not sent again, and
 * no caller notices. */
TEST(a_message_that_fails_is_not_sent_again) {
    world *w = world_start(1, 100);
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER);
    assert_true(take_message(w, 0));
    assert_int_equal(info_of(w).waiting_count, 0);
    doorman_upstream_failed(doorman_permit_client_upstream(w->clients[0]), w->request.sequence,
                            w->now);
    assert_false(take_message(w, 0));
    assert_int_equal(info_of(w).fallback_refused, 0);
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_SERVER); /* and this asks for units again */
    exchange(w, 0);
    assert_int_equal(decide(w, "ann", 1), DOORMAN_BY_PREFETCH);
    world_end(w);
}

/* While the breaker is open, the units in stock can be used. No server is asked. */
TEST(units_can_be_used_while_servers_fail) {
    world *w = world_start(0.001, 1000);
    fill_stock(w, 10);
    doorman_upstream *upstream = doorman_permit_client_upstream(w->clients[0]);
    for (size_t i = 0; i < 5; i++) {
        const doorman_permit_item item = {.resource_id = "api", .key = "bob", .cost = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        ask(w, &request);
        assert_true(take_message(w, 0));
        doorman_upstream_failed(upstream, w->request.sequence, w->now);
    }
    assert_true(info_of(w).is_pausing);
    while (next(w, 0)) assert_int_equal(w->acquired.decided_by, DOORMAN_BY_FALLBACK);
    for (int i = 0; i < 2; i++) assert_int_equal(decide(w, "ann", 10), DOORMAN_BY_PREFETCH);
    w->now += SECOND; /* the pause has passed */
    assert_false(take_message(w, 0));
    world_end(w);
}

TEST(without_memory_no_units_are_taken) {
    bool worked = false;
    for (size_t n = 1; !worked && n < 200; n++) {
        world *w = world_start(1, 100);
        const doorman_permit_item item = {.resource_id = "api", .key = "ann", .cost = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        for (size_t i = 0; i < 40; i++) ask(w, &request);
        assert_true(take_message(w, 0));
        doorman_response response = {.is_master = false};
        assert_int_equal(doorman_server_handle(w->server, &w->request, &response, NULL, w->now),
                         DOORMAN_OK);
        memory_fails_at(n);
        assert_int_equal(doorman_upstream_response(doorman_permit_client_upstream(w->clients[0]),
                                                   w->request.sequence, &response, w->now),
                         DOORMAN_OK);
        worked = memory_works();
        for (size_t i = 0; i < 40; i++) {
            assert_true(next(w, 0));
            assert_true(w->acquired.granted);
        }
        world_end(w);
    }
    assert_true(worked);
}

TEST(wrong_times_are_refused) {
    const doorman_time times[] = {-1, 1, MILLISECOND - 1, 60 * SECOND + 1};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        const doorman_client_options options =
            options_of("me", (doorman_permit_policy){.prefetch = times[i]});
        doorman_permit_client *client = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_permit_client_create(&client, &options, &error, 0),
                         DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, "permits.prefetch: must be 0, or from 1 ms to 60 s");
    }
    assert_int_equal(memory_blocks(), 0);
}

/* ---- many permits */

/* Acquires a permit every 10 ms for 10 s. Returns the number of messages. */
static size_t messages_for_a_hot_key(doorman_time prefetch) {
    world *w = world_start_with(
        (doorman_permit_limit){.figures = {.rate = 1000, .size = 1000}},
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED, .prefetch = prefetch});
    for (int i = 0; i < 1000; i++) {
        decide(w, "hot", 1);
        assert_true(w->acquired.granted);
        exchange(w, 0);
        w->now += 10 * MILLISECOND;
    }
    size_t messages = w->messages;
    world_end(w);
    return messages;
}

TEST(a_hot_key_needs_fewer_messages) {
    size_t without = messages_for_a_hot_key(0), with = messages_for_a_hot_key(SECOND);
    print_message("messages for 1,000 permits: %zu, with prefetch %zu\n", without, with);
    assert_int_equal(without, 1000);
    assert_true(with <= 50);
}

/* At random, messages are lost or fail. What callers get never exceeds what the bucket grants, and
 * no unit is taken twice. */
TEST(all_clients_together_stay_within_the_limit) {
    const double rate = 40, size = 30;
    static const double costs[] = {0.25, 1, 1, 1, 2, 3.7};
    world *w = world_start(rate, size);
    for (int i = 1; i < CLIENTS_MAX; i++) {
        add_client(w, (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED,
                                              .prefetch = SECOND / (doorman_time)(1 + i)});
    }
    doorman_time begin = w->now;
    double used = 0;
    size_t by_prefetch = 0;
    for (int step = 0; step < 30000; step++) {
        size_t i = random_below(CLIENTS_MAX);
        double cost = costs[random_below(sizeof costs / sizeof *costs)];
        const doorman_permit_item item = {.resource_id = "api", .key = "hot", .cost = cost};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        if (random_below(4) > 0) {
            assert_int_equal(
                doorman_permit_client_acquire(w->clients[i], &request, SECOND, NULL, NULL, w->now),
                DOORMAN_OK);
        }
        if (take_message(w, i)) {
            size_t what = random_below(20);
            if (what > 2) answer(w, i);
            if (what == 1) {
                doorman_upstream_failed(doorman_permit_client_upstream(w->clients[i]),
                                        w->request.sequence, w->now);
            }
        }
        while (next(w, i)) {
            if (w->acquired.granted) used += w->acquired.units[0];
            by_prefetch += w->acquired.decided_by == DOORMAN_BY_PREFETCH;
        }
        if (random_below(100) == 0) w->now += (doorman_time)random_below(3) * SECOND;
        w->now += (doorman_time)random_below(20) * MILLISECOND;
        double most = size + rate * ((double)(w->now - begin) / 1e9);
        if (used > most) fail_msg("%g of %g units at step %d", used, most, step);
    }
    assert_true(by_prefetch > 1000);
    doorman_permit_client_info info = info_of(w);
    assert_true(info.prefetched >= info.lapsed && info.lapsed > 0);
    world_end(w);
}
