/* Routes of a permit client (N9): each call goes to the node that owns its shard. Time is a
 * variable. The nodes are servers of the library, which get each message at once. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (SECOND / 1000)
#define NODES 4
#define SHARDS 8

static const char limits_text[] =
    "{\"shards\": 8, \"resources\": [\n"
    "  {\"identifier_glob\": \"hold\", \"limits\": [\n"
    "    {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 3, \"time_to_live\": 60,\n"
    "     \"queue\": 5, \"max_wait\": 60}]},\n"
    "  {\"identifier_glob\": \"pay\", \"limits\": [\n"
    "    {\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\",\n"
    "     \"unsettled\": \"refund\"}]},\n"
    "  {\"identifier_glob\": \"*\", \"limits\": [\n"
    "    {\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", \"limit\": 50, \"window\": \"day\"}]}]}";

static const char *const names[NODES] = {"a", "b", "c", "d"};
static const char *const node_addresses[NODES][2] = {{"tcp://a:1", "tcp://a:2"},
                                                     {"tcp://b:1", "tcp://b:2"},
                                                     {"tcp://c:1", "tcp://c:2"},
                                                     {"tcp://d:1", "tcp://d:2"}};

struct world {
    doorman_config *config;
    doorman_server *servers[NODES];
    bool is_down[NODES];                           /* its messages fail */
    bool loses[NODES];                             /* its answers are lost */
    size_t received[NODES], discoveries, messages; /* `received`: on permits */
    size_t largest;                                /* the most permits in a message */
    doorman_shard owners[SHARDS];
    uint64_t epoch; /* of the newest map */
    size_t node_count;
    doorman_permit_client *client;
    doorman_time now;
    struct {
        size_t number;
        doorman_acquired out;
    } decisions[100]; /* that no test has looked at yet */
    size_t decision_count;
    size_t number; /* of the last decision */
    doorman_acquired out;
};

static doorman_shard_map map_of(const struct world *w, doorman_shard_node nodes[NODES]) {
    for (size_t i = 0; i < NODES; i++) {
        nodes[i] = (doorman_shard_node){
            .name = names[i], .addresses = node_addresses[i], .address_count = 2};
    }
    return (doorman_shard_map){.epoch = w->epoch,
                               .shards = {.count = SHARDS, .seed = {11, 12}},
                               .owners = w->owners,
                               .nodes = nodes,
                               .node_count = w->node_count};
}

/* Lets a node know the newest map. */
static void tell(struct world *w, size_t node) {
    doorman_shard_node nodes[NODES];
    const doorman_shard_map map = map_of(w, nodes);
    assert_int_equal(doorman_server_set_shard_map(w->servers[node], &map), DOORMAN_OK);
}

static void tell_all(struct world *w) {
    for (size_t i = 0; i < NODES; i++) tell(w, i);
}

static doorman_permits *permits_of(struct world *w, size_t node) {
    return doorman_server_permits(w->servers[node]);
}

static void own(struct world *w, size_t node, size_t shard, bool owned) {
    assert_int_equal(doorman_permits_own(permits_of(w, node), shard, owned, true, w->now),
                     DOORMAN_OK);
}

static void become_master(struct world *w, size_t node, bool is_master) {
    const doorman_mastership mastership = {.address = node_addresses[node][0],
                                           .until = is_master ? DOORMAN_NEVER : 0,
                                           .predecessor_gone = SECOND};
    assert_int_equal(doorman_server_set_master(w->servers[node], &mastership, w->now), DOORMAN_OK);
}

static void client_start(struct world *w, doorman_permit_policy policy) {
    const doorman_client_options options = {.client_id = "me",
                                            .addresses = node_addresses[0],
                                            .address_count = 2,
                                            .seed = 7,
                                            .permits = policy};
    assert_int_equal(doorman_permit_client_create(&w->client, &options, NULL, w->now), DOORMAN_OK);
}

/* Starts a world in which node i % 3 owns shard i. The last node owns no shards. */
static struct world *world_start_with(doorman_permit_policy policy) {
    const doorman_shards shards = {.count = SHARDS, .seed = {11, 12}};
    struct world *w = calloc(1, sizeof *w);
    doorman_error error = {0};
    assert_non_null(w);
    w->now = 1000 * SECOND;
    w->epoch = 5;
    w->node_count = NODES;
    doorman_status status =
        doorman_json_config(&w->config, limits_text, strlen(limits_text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    for (size_t i = 0; i < NODES; i++) {
        const doorman_server_options options = {
            .node = names[i], .config = w->config, .seed = {i + 1, 2}};
        assert_int_equal(doorman_server_create(&w->servers[i], &options, &error, w->now),
                         DOORMAN_OK);
        become_master(w, i, true);
        assert_int_equal(doorman_permits_set_shards(permits_of(w, i), &shards), DOORMAN_OK);
    }
    for (size_t i = 0; i < SHARDS; i++) {
        w->owners[i] = (doorman_shard){.owner = i % 3, .target = i % 3};
        own(w, i % 3, i, true);
    }
    client_start(w, policy);
    return w;
}

static struct world *world_start(void) {
    struct world *w = world_start_with((doorman_permit_policy){.shadow = false});
    tell_all(w);
    return w;
}

static void world_end(struct world *w) {
    doorman_permit_client_destroy(w->client);
    for (size_t i = 0; i < NODES; i++) doorman_server_destroy(w->servers[i]);
    doorman_config_destroy(w->config);
    free(w);
    assert_int_equal(memory_blocks(), 0);
}

/* ---- moves of shards */

static size_t shard_of(const char *resource, const char *key) {
    const doorman_shards shards = {.count = SHARDS, .seed = {11, 12}};
    return doorman_shard_of(&shards, resource, key, false);
}

/* Writes a key of a shard. */
static void key_of(char key[32], size_t shard) {
    size_t n = 0;
    do snprintf(key, 32, "key-%zu", n++);
    while (shard_of("r", key) != shard);
}

/* Moves a shard, with all that its owner knows, to another node, which decides from now on. The map
 * has the new owner, but no node knows this map yet. */
static void move(struct world *w, size_t shard, size_t to) {
    const size_t from = w->owners[shard].owner;
    doorman_shard_cursor cursor = {0};
    doorman_shard_part part;
    assert_int_not_equal(from, to);
    own(w, from, shard, false);
    while (!cursor.at_end) {
        assert_int_equal(
            doorman_permits_next_shard_rows(permits_of(w, from), shard, &cursor, &part, w->now),
            DOORMAN_OK);
        assert_int_equal(
            doorman_permits_restore_shard(permits_of(w, to), &part, NULL, NULL, w->now),
            DOORMAN_OK);
    }
    cursor = (doorman_shard_cursor){0};
    while (!cursor.at_end) {
        assert_int_equal(doorman_permits_drop_shard(permits_of(w, from), shard, &cursor, w->now),
                         DOORMAN_OK);
    }
    own(w, to, shard, true);
    w->owners[shard].owner = w->owners[shard].target = to;
    w->epoch++;
}

/* ---- the loop of the client */

static size_t node_at(const char *address) {
    for (size_t i = 0; i < NODES; i++) {
        for (size_t j = 0; j < 2; j++) {
            if (strcmp(node_addresses[i][j], address) == 0) return i;
        }
    }
    fail_msg("no node has the address %s", address);
    return 0;
}

/* Sends the message of an upstream, if one is due. Gives the answer or failure to the upstream. */
static bool exchange(struct world *w, doorman_upstream *upstream) {
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, w->now)) return false;
    const size_t node = node_at(request.address);
    w->messages++;
    if (request.permit_count > w->largest) w->largest = request.permit_count;
    if (request.method == DOORMAN_DISCOVERY) {
        w->discoveries++;
    } else {
        w->received[node]++;
    }
    doorman_status status = DOORMAN_UNAVAILABLE;
    if (!w->is_down[node]) {
        status = doorman_server_handle(w->servers[node], &request, &response, NULL, w->now);
    }
    if (status != DOORMAN_OK || w->loses[node]) {
        doorman_upstream_failed(upstream, request.sequence, w->now);
    } else {
        status = doorman_upstream_response(upstream, request.sequence, &response, w->now);
        assert_int_equal(status, DOORMAN_OK);
    }
    return true;
}

/* Takes all decisions of the client. */
static void collect(struct world *w) {
    void *context = NULL;
    doorman_acquired out;
    while (doorman_permit_client_next(w->client, &context, &out, w->now)) {
        assert_true(w->decision_count < 100);
        w->decisions[w->decision_count].number = (size_t)context;
        w->decisions[w->decision_count++].out = out;
    }
}

/* Runs the loop until nothing is due now. */
static void run(struct world *w) {
    for (int i = 0; i < 1000; i++) {
        bool some = false;
        doorman_upstream *upstream = NULL;
        for (size_t j = 0; (upstream = doorman_permit_client_port(w->client, j)); j++) {
            some = exchange(w, upstream) || some;
        }
        for (size_t j = 0; j < w->client->lane_count; j++) {
            some = exchange(w, &w->client->lanes[j]->batch.upstream) || some;
        }
        collect(w);
        if (!some) return;
    }
    fail_msg("the client sends messages without an end");
}

/* Returns when the client is due. */
static doorman_time due(struct world *w) {
    doorman_upstream *upstream = NULL;
    doorman_time at = DOORMAN_NEVER;
    for (size_t j = 0; (upstream = doorman_permit_client_port(w->client, j)); j++) {
        at = doorman__earlier(at, doorman_upstream_due(upstream));
    }
    return at;
}

/* Lets time pass, and runs the loop whenever the client is due. */
static void pass(struct world *w, doorman_time time) {
    const doorman_time end = w->now + time;
    run(w);
    for (int same = 0; same < 10; same++) {
        const doorman_time at = due(w);
        if (at > end) {
            w->now = end;
            return;
        }
        if (at > w->now) same = 0;
        w->now = doorman__later(w->now, at);
        run(w);
    }
    fail_msg("the client is due without an end");
}

static bool next(struct world *w) {
    collect(w);
    if (!w->decision_count) return false;
    w->number = w->decisions[0].number;
    w->out = w->decisions[0].out;
    memmove(w->decisions, w->decisions + 1, --w->decision_count * sizeof *w->decisions);
    return true;
}

static doorman_permit_client_info info_of(const struct world *w) {
    doorman_permit_client_info info;
    doorman_permit_client_read(w->client, &info);
    return info;
}

/* Asks for a permit. The number identifies the call. */
static void ask(struct world *w, const char *key, size_t number) {
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, 20 * SECOND, (void *)number,
                                                   NULL, w->now),
                     DOORMAN_OK);
}

static void ask_shard(struct world *w, size_t shard, size_t number) {
    char key[32];
    key_of(key, shard);
    ask(w, key, number);
}

static void assert_next(struct world *w, bool granted, doorman_decider decider) {
    assert_true(next(w));
    assert_int_equal(w->out.decided_by, decider);
    assert_int_equal(w->out.granted, granted);
}

/* Starts a world whose client knows the map. */
static struct world *world_start_routed(void) {
    struct world *w = world_start();
    ask_shard(w, 0, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(info_of(w).map_epoch, 5);
    memset(w->received, 0, sizeof w->received);
    w->messages = w->discoveries = 0;
    return w;
}

/* ---- a client learns the map ---------------------------------------------------------------- */

TEST(without_a_map_all_calls_go_to_the_addresses_of_the_options) {
    struct world *w = world_start_with((doorman_permit_policy){.shadow = false});
    for (size_t i = 0; i < SHARDS; i += 3) ask_shard(w, i, i);
    run(w);
    for (size_t i = 0; i < SHARDS; i += 3) assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->messages, 1);
    assert_int_equal(w->discoveries, 0);
    assert_null(doorman_permit_client_port(w->client, 1));
    assert_null(doorman_permit_client_port(NULL, 0));
    assert_ptr_equal(doorman_permit_client_port(w->client, 0),
                     doorman_permit_client_upstream(w->client));
    assert_int_equal(info_of(w).map_epoch, 0);
    assert_null(w->client->routes);
    world_end(w);
}

TEST(the_first_answer_leads_to_the_map_and_the_map_to_the_owners) {
    struct world *w = world_start();
    ask_shard(w, 1, 7); /* another node than the one that is asked first owns it */
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->messages, 3); /* refused as MOVED, discovery, granted */
    assert_int_equal(w->discoveries, 1);
    assert_int_equal(w->received[1], 1);
    assert_int_equal(info_of(w).moved, 1);
    assert_int_equal(info_of(w).map_epoch, 5);
    world_end(w);
}

TEST(each_call_goes_to_the_owner_of_its_shard_and_a_node_gets_one_message) {
    struct world *w = world_start_routed();
    for (size_t i = 0; i < 4 * SHARDS; i++) ask_shard(w, i % SHARDS, i);
    run(w);
    for (size_t i = 0; i < 4 * SHARDS; i++) assert_next(w, true, DOORMAN_BY_SERVER);
    for (size_t i = 0; i < 3; i++) assert_int_equal(w->received[i], 1);
    assert_int_equal(w->received[3], 0);
    assert_int_equal(w->messages, 3);
    assert_int_equal(info_of(w).moved, 0);
    world_end(w);
}

TEST(a_node_gets_messages_as_large_as_what_waits_for_it) {
    struct world *w = world_start_routed();
    char key[64];
    for (size_t i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "%zu{key}", i);
        ask(w, key, i);
    }
    run(w);
    assert_int_equal(w->messages, 1);
    assert_int_equal(w->largest, 40);
    world_end(w);
}

TEST(calls_that_wait_for_the_first_map_go_to_their_owners) {
    struct world *w = world_start();
    doorman_upstream *home = doorman_permit_client_upstream(w->client);
    ask_shard(w, 0, 0);
    assert_true(exchange(w, home)); /* the answer names a map */
    for (size_t i = 0; i < SHARDS; i++) ask_shard(w, i, i);
    assert_true(exchange(w, home)); /* the discovery goes first */
    assert_int_equal(w->discoveries, 1);
    run(w);
    for (size_t i = 0; i < SHARDS + 1; i++) assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(info_of(w).moved, 0);
    world_end(w);
}

/* ---- a shard moves -------------------------------------------------------------------------- */

TEST(a_key_that_has_moved_is_asked_at_its_new_owner) {
    struct world *w = world_start_routed();
    move(w, 0, 1);
    tell_all(w);
    ask_shard(w, 0, 1);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_exact(w->out.remaining, 48); /* the counter has moved too */
    assert_int_equal(w->received[0], 1);
    assert_int_equal(w->received[1], 1);
    assert_int_equal(w->discoveries, 1);
    ask_shard(w, 0, 2);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->messages, 4);
    world_end(w);
}

TEST(any_answer_tells_of_a_later_map) {
    struct world *w = world_start_routed();
    move(w, 0, 1);
    tell_all(w);
    ask_shard(w, 2, 1); /* has not moved */
    run(w);
    ask_shard(w, 0, 2);
    run(w);
    assert_int_equal(info_of(w).moved, 0);
    assert_int_equal(info_of(w).map_epoch, 6);
    assert_int_equal(w->discoveries, 1);
    world_end(w);
}

TEST(a_call_waits_while_its_shard_moves) {
    struct world *w = world_start_routed();
    own(w, 0, 0, false); /* the move begins: nobody decides, and the map is as before */
    ask_shard(w, 0, 1);
    const doorman_time pauses[] = {50, 100, 200, 400, 800, 1000, 1000};
    for (size_t i = 0; i < 7; i++) {
        const size_t before = w->received[0];
        run(w);
        assert_int_equal(w->received[0], before + 1);
        assert_false(next(w));
        assert_int_equal(due(w), w->now + pauses[i] * MILLISECOND);
        w->now += pauses[i] * MILLISECOND;
    }
    assert_int_equal(w->discoveries, 0);
    own(w, 0, 0, true); /* the move was called off */
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    world_end(w);
}

TEST(a_call_that_waits_goes_to_the_new_owner_with_the_next_map) {
    struct world *w = world_start_routed();
    own(w, 0, 0, false);
    ask_shard(w, 0, 1);
    pass(w, SECOND); /* it would be sent again 550 ms later */
    own(w, 0, 0, true);
    move(w, 0, 2);
    tell_all(w);
    ask_shard(w, 1, 2); /* its answer brings the map */
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->number, 2);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->number, 1);
    assert_int_equal(w->received[2], 1);
    world_end(w);
}

/* A new owner may learn of the map later than the client. */
TEST(a_node_that_does_not_know_yet_that_it_is_the_owner_is_asked_again) {
    struct world *w = world_start_routed();
    move(w, 0, 1);
    own(w, 1, 0, false);
    tell(w, 0);
    ask_shard(w, 0, 1);
    run(w);
    assert_false(next(w));
    assert_int_equal(w->received[1], 1);
    pass(w, 300 * MILLISECOND);
    own(w, 1, 0, true);
    pass(w, SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->discoveries, 1);
    world_end(w);
}

TEST(after_ten_refusals_the_fallback_decides) {
    struct world *w = world_start_routed();
    own(w, 0, 0, false);
    ask_shard(w, 0, 1);
    pass(w, 6499 * MILLISECOND);
    assert_false(next(w));
    assert_int_equal(w->received[0], 10);
    pass(w, 60 * MILLISECOND);
    assert_next(w, true, DOORMAN_BY_FALLBACK);
    assert_int_equal(w->received[0], 11);
    assert_int_equal(info_of(w).moved, 11);
    assert_int_equal(due(w), DOORMAN_NEVER);
    world_end(w);
}

TEST(a_call_that_waits_for_its_shard_ends_with_its_timeout) {
    struct world *w = world_start_with((doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    own(w, 0, 0, false);
    char key[32];
    key_of(key, 0);
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(
        doorman_permit_client_acquire(w->client, &request, 70 * MILLISECOND, NULL, NULL, w->now),
        DOORMAN_OK);
    pass(w, 69 * MILLISECOND);
    assert_false(next(w));
    pass(w, MILLISECOND);
    assert_next(w, false, DOORMAN_BY_FALLBACK);
    assert_int_equal(info_of(w).timed_out, 1);
    assert_int_equal(w->messages, 2);
    world_end(w);
}

/* A server that names a later map, but does not send it, is not asked endlessly. */
TEST(a_client_asks_for_a_map_at_most_every_50_ms) {
    struct world *w = world_start_routed();
    doorman_upstream *port = doorman_permit_client_port(w->client, 1);
    for (size_t i = 0; i < 20; i++) {
        doorman_request request;
        const doorman_permit_grant grant = {.granted = 1};
        const doorman_permit permit = {.granted = true, .items = &grant, .item_count = 1};
        ask_shard(w, 0, i);
        while (doorman_upstream_request(port, &request, w->now)) {
            const doorman_response response = {.method = request.method,
                                               .is_master = true,
                                               .permits = &permit,
                                               .permit_count = request.permit_count,
                                               .map_epoch = 9};
            w->discoveries += request.method == DOORMAN_DISCOVERY;
            assert_int_equal(doorman_upstream_response(port, request.sequence, &response, w->now),
                             DOORMAN_OK);
        }
        assert_next(w, true, DOORMAN_BY_SERVER);
        w->now += 10 * MILLISECOND;
    }
    assert_int_equal(w->discoveries, 4);
    world_end(w);
}

/* ---- a node fails --------------------------------------------------------------------------- */

TEST(a_node_that_fails_stops_only_its_own_keys) {
    struct world *w = world_start_routed();
    w->is_down[1] = true;
    for (size_t i = 0; i < 2; i++) {
        ask_shard(w, 1, i);
        run(w);
        assert_next(w, true, DOORMAN_BY_FALLBACK);
    }
    assert_true(info_of(w).is_pausing);
    const size_t before = w->received[1];
    assert_true(before >= 5);
    ask_shard(w, 1, 3);
    run(w);
    assert_next(w, true, DOORMAN_BY_FALLBACK); /* at once, and without a message */
    assert_int_equal(w->received[1], before);
    ask_shard(w, 0, 4);
    ask_shard(w, 2, 5);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_next(w, true, DOORMAN_BY_SERVER);
    w->is_down[1] = false;
    pass(w, 60 * SECOND);
    ask_shard(w, 1, 6);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_false(info_of(w).is_pausing);
    world_end(w);
}

TEST(each_node_has_a_failover_of_its_own_addresses) {
    struct world *w = world_start_routed();
    ask_shard(w, 1, 1);
    doorman_upstream *port = doorman_permit_client_port(w->client, 2);
    doorman_request request;
    assert_true(doorman_upstream_request(port, &request, w->now));
    assert_string_equal(request.address, "tcp://b:1");
    doorman_upstream_failed(port, request.sequence, w->now);
    assert_true(doorman_upstream_request(port, &request, w->now));
    assert_string_equal(request.address, "tcp://b:2");
    const doorman_response response = {.method = DOORMAN_ACQUIRE, .master_address = "tcp://b:1"};
    assert_int_equal(doorman_upstream_response(port, request.sequence, &response, w->now),
                     DOORMAN_OK);
    assert_true(doorman_upstream_request(port, &request, w->now));
    assert_string_equal(request.address, "tcp://b:1"); /* the redirect */
    doorman_upstream_failed(port, request.sequence, w->now);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    world_end(w);
}

/* All shards of a node have moved, and the node is gone, so it cannot send the map. */
TEST(after_a_failure_the_servers_of_the_options_are_asked_for_a_map) {
    struct world *w = world_start_routed();
    for (size_t i = 1; i < SHARDS; i += 3) move(w, i, 0);
    tell(w, 0);
    w->is_down[1] = true;
    ask_shard(w, 1, 1);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(info_of(w).map_epoch, w->epoch);
    assert_int_equal(w->received[1], 1);
    world_end(w);
}

/* ---- nodes that come and go ----------------------------------------------------------------- */

static size_t port_count(const struct world *w) {
    size_t count = 0;
    while (doorman_permit_client_port(w->client, count)) count++;
    return count;
}

TEST(a_new_node_gets_the_port_of_one_that_is_gone) {
    struct world *w = world_start_routed();
    const size_t before = port_count(w);
    assert_int_equal(before, 1 + NODES);
    w->node_count = 3; /* the last one had no shards */
    w->epoch++;
    tell_all(w);
    ask_shard(w, 0, 1);
    run(w);
    assert_int_equal(info_of(w).map_epoch, w->epoch);
    w->node_count = NODES;
    w->epoch++;
    move(w, 0, 3);
    tell_all(w);
    ask_shard(w, 0, 1);
    run(w);
    assert_int_equal(w->received[3], 1);
    assert_int_equal(port_count(w), before);
    world_end(w);
}

TEST(an_answer_of_a_node_that_is_gone_counts) {
    struct world *w = world_start_routed();
    doorman_upstream *port = doorman_permit_client_port(w->client, 1);
    doorman_request request;
    ask_shard(w, 0, 1);
    assert_true(doorman_upstream_request(port, &request, w->now));
    doorman_response response;
    assert_int_equal(doorman_server_handle(w->servers[0], &request, &response, NULL, w->now),
                     DOORMAN_OK);
    const doorman_permit permit = response.permits[0];
    const doorman_permit_grant grant = permit.items[0];
    doorman_permit kept = permit;
    kept.items = &grant;
    for (size_t i = 0; i < SHARDS; i += 3) move(w, i, 1);
    doorman_shard_node nodes[NODES];
    doorman_shard_map map = map_of(w, nodes);
    for (size_t i = 0; i < SHARDS; i++) w->owners[i].owner = w->owners[i].target -= 1;
    for (size_t i = 0; i < SHARDS; i++) w->owners[i].target = w->owners[i].owner;
    map.nodes = nodes + 1; /* without node a */
    map.node_count = 3;
    assert_int_equal(doorman_server_set_shard_map(w->servers[1], &map), DOORMAN_OK);
    ask_shard(w, 1, 2);
    run(w);
    assert_int_equal(info_of(w).map_epoch, w->epoch);
    assert_next(w, true, DOORMAN_BY_SERVER);
    response.permits = &kept;
    response.map_epoch = 0;
    assert_int_equal(doorman_upstream_response(port, request.sequence, &response, w->now),
                     DOORMAN_OK);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->number, 1);
    ask_shard(w, 0, 3);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_exact(w->out.remaining, 47);
    world_end(w);
}

static doorman_status give_map(struct world *w, const doorman_shard_map *map) {
    doorman_upstream *home = doorman_permit_client_upstream(w->client);
    doorman_request request;
    w->client->map_port = &w->client->home;
    assert_true(doorman_upstream_request(home, &request, w->now));
    assert_int_equal(request.method, DOORMAN_DISCOVERY);
    assert_true(request.has_map_epoch);
    const doorman_response response = {.method = DOORMAN_DISCOVERY, .map = map};
    return doorman_upstream_response(home, request.sequence, &response, w->now);
}

TEST(an_earlier_map_and_a_map_with_wrong_addresses_have_no_effect) {
    struct world *w = world_start_routed();
    static const char *const wrong_address[] = {"tcp://a:0"};
    doorman_shard_node nodes[NODES];
    w->epoch = 4;
    doorman_shard_map map = map_of(w, nodes);
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    assert_int_equal(info_of(w).map_epoch, 5);
    w->owners[0].owner = w->owners[0].target = 1; /* a map of the same epoch says something else */
    map.epoch = 5;
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    ask_shard(w, 0, 1);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->received[1], 0);
    w->owners[0].owner = w->owners[0].target = 0;
    map.epoch = 6;
    nodes[2].addresses = wrong_address;
    nodes[2].address_count = 1;
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    assert_int_equal(give_map(w, NULL), DOORMAN_OK);
    assert_int_equal(info_of(w).map_epoch, 5);
    nodes[2].addresses = node_addresses[2];
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    assert_int_equal(info_of(w).map_epoch, 6);
    world_end(w);
}

/* K3 */
TEST(a_map_does_not_lead_from_tls_to_plain_text) {
    struct world *w = world_start();
    static const char *const secure[] = {"tls+tcp://a:1"};
    const doorman_client_options options = {
        .client_id = "me", .addresses = secure, .address_count = 1, .seed = 7};
    doorman_permit_client_destroy(w->client);
    assert_int_equal(doorman_permit_client_create(&w->client, &options, NULL, w->now), DOORMAN_OK);
    doorman_shard_node nodes[NODES];
    doorman_shard_map map = map_of(w, nodes);
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    assert_int_equal(info_of(w).map_epoch, 0);
    for (size_t i = 0; i < NODES; i++)
        nodes[i] = (doorman_shard_node){.name = names[i], .addresses = secure, .address_count = 1};
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    assert_int_equal(info_of(w).map_epoch, 5);
    world_end(w);
}

TEST(new_addresses_of_a_node_are_used_from_its_next_message_on) {
    struct world *w = world_start_routed();
    static const char *const other[] = {"tcp://other:1"};
    doorman_shard_node nodes[NODES];
    doorman_request request;
    w->epoch = 6;
    doorman_shard_map map = map_of(w, nodes);
    nodes[1].addresses = other;
    nodes[1].address_count = 1;
    assert_int_equal(give_map(w, &map), DOORMAN_OK);
    ask_shard(w, 1, 1);
    doorman_upstream *port = doorman_permit_client_port(w->client, 2);
    assert_true(doorman_upstream_request(port, &request, w->now));
    assert_string_equal(request.address, "tcp://other:1");
    map.epoch = 7;
    map.nodes = nodes;
    assert_int_equal(give_map(w, &map), DOORMAN_OK); /* the text of the address stays valid */
    assert_string_equal(request.address, "tcp://other:1");
    world_end(w);
}

/* ---- holds, reservations and reports follow ------------------------------------------------- */

static uint64_t hold(struct world *w, const char *key, doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "hold", .key = key, .cost = 1};
    uint64_t number = 0;
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .hold = &number, .max_wait = max_wait};
    assert_int_equal(
        doorman_permit_client_acquire(w->client, &request, 20 * SECOND, NULL, NULL, w->now),
        DOORMAN_OK);
    return number;
}

static size_t holds_at(struct world *w, size_t node) {
    doorman_permits_info info;
    doorman_permits_read(permits_of(w, node), &info);
    return info.hold_count;
}

static bool is_gone(const struct world *w, uint64_t number) {
    doorman_held held;
    doorman_permit_client_read_hold(w->client, number, &held);
    return held.gone;
}

TEST(a_hold_is_renewed_and_released_at_the_owner_of_its_shard) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(holds_at(w, 0), 1);
    move(w, 0, 1);
    tell_all(w);
    pass(w, 200 * SECOND);
    assert_false(is_gone(w, number));
    assert_int_equal(holds_at(w, 0), 0);
    assert_int_equal(holds_at(w, 1), 1);
    assert_int_equal(w->received[0], 2); /* the permit, and a renewal that was refused as MOVED */
    const doorman_hold_request release = {.id = number};
    move(w, 0, 2);
    tell_all(w);
    assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now), DOORMAN_OK);
    run(w);
    assert_int_equal(holds_at(w, 1) + holds_at(w, 2), 0);
    assert_int_equal(info_of(w).hold_count, 0);
    world_end(w);
}

TEST(a_renewal_waits_while_the_shard_moves_and_a_release_takes_its_place) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    own(w, 0, 0, false);
    pass(w, 30 * SECOND); /* a renewal was due after 20 s */
    const size_t renewals = w->received[0] - 1;
    assert_true(renewals > 10 && renewals < 20);
    assert_false(is_gone(w, number));
    const doorman_hold_request release = {.id = number};
    assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now), DOORMAN_OK);
    pass(w, 3 * SECOND);
    assert_int_equal(holds_at(w, 0), 1);
    own(w, 0, 0, true);
    pass(w, 2 * SECOND);
    assert_int_equal(holds_at(w, 0), 0);
    assert_int_equal(info_of(w).hold_count, 0);
    world_end(w);
}

TEST(a_hold_whose_shard_never_comes_back_ends_at_its_end) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    own(w, 0, 0, false);
    doorman_held held;
    doorman_permit_client_read_hold(w->client, number, &held);
    pass(w, held.ends_at - w->now - 1);
    assert_false(is_gone(w, number));
    pass(w, 1);
    assert_true(is_gone(w, number));
    assert_true(doorman_permit_client_next_change(w->client, &held, w->now));
    pass(w, 300 * SECOND);
    assert_int_equal(info_of(w).hold_count, 0);
    assert_int_equal(due(w), DOORMAN_NEVER);
    world_end(w);
}

/* A hold that was granted just before its shard moved is known to the new owner. */
TEST(a_permit_whose_answer_was_lost_has_the_same_hold_at_the_new_owner) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    (void)hold(w, key, 0);
    doorman_upstream *port = doorman_permit_client_port(w->client, 1);
    w->loses[0] = true;
    assert_true(exchange(w, port));
    assert_int_equal(holds_at(w, 0), 1);
    w->loses[0] = false;
    move(w, 0, 1);
    tell_all(w);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(holds_at(w, 1), 1);
    world_end(w);
}

TEST(a_hold_that_is_refused_as_moved_is_granted_later) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    own(w, 0, 0, false);
    const uint64_t number = hold(w, key, 0);
    pass(w, SECOND);
    assert_false(next(w));
    own(w, 0, 0, true);
    pass(w, SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(w->out.hold, number);
    own(w, 0, 0, false);
    const uint64_t other = hold(w, key, 0);
    pass(w, SECOND);
    const doorman_hold_request release = {.id = other};
    assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now), DOORMAN_OK);
    assert_next(w, false, DOORMAN_BY_CALLER);
    own(w, 0, 0, true);
    pass(w, 5 * SECOND);
    assert_int_equal(holds_at(w, 0), 1);
    assert_int_equal(info_of(w).hold_count, 1);
    world_end(w);
}

TEST(units_are_transferred_and_seized_at_the_owner_of_their_shard) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    own(w, 0, 0, false);
    const doorman_hold_request transfer = {.id = number, .timeout = 20 * SECOND};
    assert_int_equal(doorman_permit_client_transfer(w->client, &transfer, NULL, NULL, w->now),
                     DOORMAN_OK);
    pass(w, SECOND);
    assert_false(next(w));
    own(w, 0, 0, true);
    move(w, 0, 1);
    tell_all(w);
    pass(w, SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    const doorman_hold_request seize = {.id = w->out.transfer_id, .timeout = 20 * SECOND};
    move(w, 0, 2);
    tell_all(w);
    assert_int_equal(doorman_permit_client_seize(w->client, &seize, NULL, NULL, w->now),
                     DOORMAN_OK);
    pass(w, SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_exact(w->out.units[0], 1);
    assert_int_equal(holds_at(w, 2), 1);
    const doorman_hold_request release = {.id = w->out.hold};
    assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now), DOORMAN_OK);
    run(w);
    assert_int_equal(holds_at(w, 2), 0);
    world_end(w);
}

/* A seizure without an answer has no hold id and no items. Its release still finds the shard of the
 * transfer. */
TEST(a_seizure_without_an_answer_is_released_at_the_owner_of_the_transfer) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 1);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    const doorman_hold_request transfer = {.id = number, .timeout = SECOND};
    assert_int_equal(doorman_permit_client_transfer(w->client, &transfer, NULL, NULL, w->now),
                     DOORMAN_OK);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    const doorman_hold_request seize = {.id = w->out.transfer_id, .timeout = SECOND / 2};
    assert_int_equal(doorman_permit_client_seize(w->client, &seize, NULL, NULL, w->now),
                     DOORMAN_OK);
    w->loses[1] = true;
    assert_true(exchange(w, doorman_permit_client_port(w->client, 2)));
    w->loses[1] = false;
    w->is_down[1] = true;
    pass(w, SECOND);
    assert_next(w, false, DOORMAN_BY_FALLBACK);
    assert_int_equal(holds_at(w, 1), 1);
    w->is_down[1] = false;
    pass(w, 40 * SECOND);
    assert_int_equal(holds_at(w, 1), 0);
    world_end(w);
}

TEST(a_permit_in_a_queue_goes_on_waiting_at_the_new_owner) {
    struct world *w = world_start_routed();
    doorman_upstream *lane = NULL;
    char key[32];
    key_of(key, 0);
    assert_int_equal(doorman_permit_client_add_lane(w->client, &lane), DOORMAN_OK);
    for (int i = 0; i < 3; i++) {
        (void)hold(w, key, 0);
        run(w);
        assert_next(w, true, DOORMAN_BY_SERVER);
    }
    (void)hold(w, key, 10 * SECOND);
    doorman_request request;
    assert_true(doorman_upstream_request(lane, &request, w->now));
    assert_int_equal(node_at(request.address), 0);
    assert_int_equal(request.permits[0].max_wait, 10 * SECOND);
    w->now += 4 * SECOND; /* it waits in the queue of node a, until the shard moves */
    move(w, 0, 1);
    tell_all(w);
    const doorman_permit moved = {.reason = DOORMAN_REASON_MOVED};
    const doorman_response response = {.method = DOORMAN_ACQUIRE,
                                       .is_master = true,
                                       .permits = &moved,
                                       .permit_count = 1,
                                       .map_epoch = w->epoch};
    assert_int_equal(doorman_upstream_response(lane, request.sequence, &response, w->now),
                     DOORMAN_OK);
    doorman_upstream *port = doorman_permit_client_port(w->client, 1);
    assert_true(exchange(w, port));
    assert_int_equal(w->discoveries, 1);
    assert_true(doorman_upstream_request(lane, &request, w->now));
    assert_int_equal(node_at(request.address), 1);
    assert_int_equal(request.permits[0].max_wait, 6 * SECOND);
    doorman_upstream_failed(lane, request.sequence, w->now);
    assert_true(doorman_upstream_request(lane, &request, w->now));
    assert_string_equal(request.address, node_addresses[1][1]);
    world_end(w);
}

TEST(lanes_serve_all_nodes_in_turn) {
    struct world *w = world_start_routed();
    doorman_upstream *lane = NULL;
    char key[32];
    size_t asked[3] = {0};
    assert_int_equal(doorman_permit_client_add_lane(w->client, &lane), DOORMAN_OK);
    for (size_t i = 0; i < 9; i++) {
        key_of(key, i < 7 ? 0 : i - 6); /* most wait for node a */
        (void)hold(w, key, 10 * SECOND);
    }
    w->is_down[1] = true;
    for (size_t i = 0; i < 3; i++) {
        doorman_request request;
        assert_int_equal(doorman_upstream_due(lane), 0);
        assert_true(doorman_upstream_request(lane, &request, w->now));
        asked[node_at(request.address)]++;
        doorman_response response;
        assert_int_equal(doorman_server_handle(w->servers[node_at(request.address)], &request,
                                               &response, NULL, w->now),
                         DOORMAN_OK);
        assert_int_equal(doorman_upstream_response(lane, request.sequence, &response, w->now),
                         DOORMAN_OK);
    }
    for (size_t i = 0; i < 3; i++) assert_int_equal(asked[i], 1);
    world_end(w);
}

static uint64_t reserve(struct world *w, const char *key) {
    const doorman_permit_item item = {.resource_id = "pay", .key = key, .cost = 10};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .settle_within = 600 * SECOND};
    assert_int_equal(
        doorman_permit_client_acquire(w->client, &request, 20 * SECOND, NULL, NULL, w->now),
        DOORMAN_OK);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    return w->out.reservation;
}

static void settle(struct world *w, uint64_t number, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = "pay", .key = key, .cost = cost};
    const doorman_settle_request request = {
        .id = number, .items = &item, .item_count = 1, .timeout = 20 * SECOND};
    assert_int_equal(doorman_permit_client_settle(w->client, &request, NULL, NULL, w->now),
                     DOORMAN_OK);
}

/* Returns how much of the limit a key has used at a node. */
static double used_at(struct world *w, size_t node, const char *resource, const char *key) {
    doorman_permit state;
    assert_int_equal(
        doorman_permits_inspect(permits_of(w, node), ITEM_OF(resource, key), &state, NULL, w->now),
        DOORMAN_OK);
    return state.details[0].used;
}

TEST(a_reservation_is_settled_at_the_owner_of_its_shard) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = reserve(w, key);
    own(w, 0, 0, false);
    settle(w, number, key, 4);
    pass(w, SECOND);
    assert_false(next(w));
    own(w, 0, 0, true);
    move(w, 0, 1);
    tell_all(w);
    pass(w, 2 * SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_exact(w->out.units[0], -6);
    assert_exact(used_at(w, 1, "pay", key), 4);
    assert_int_equal(info_of(w).settled, 1);
    world_end(w);
}

TEST(a_settle_whose_answer_was_lost_counts_once_at_the_new_owner) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = reserve(w, key);
    settle(w, number, key, 14);
    w->loses[0] = true;
    assert_true(exchange(w, doorman_permit_client_port(w->client, 1)));
    w->loses[0] = false;
    move(w, 0, 1);
    tell_all(w);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_exact(used_at(w, 1, "pay", key), 14);
    world_end(w);
}

TEST(reports_follow_their_shards_and_count_once) {
    struct world *w = world_start_with((doorman_permit_policy){.report_once = true});
    tell_all(w);
    char key[32];
    key_of(key, 1);
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 5};
    assert_int_equal(doorman_permit_client_report(w->client, &item, NULL, w->now), DOORMAN_OK);
    run(w);
    assert_exact(used_at(w, 1, "r", key), 5);
    assert_int_equal(doorman_permit_client_report(w->client, &item, NULL, w->now), DOORMAN_OK);
    w->loses[1] = true;
    assert_true(exchange(w, doorman_permit_client_port(w->client, 2)));
    w->loses[1] = false;
    move(w, 1, 2);
    tell_all(w);
    run(w);
    assert_exact(used_at(w, 2, "r", key), 10);
    assert_int_equal(info_of(w).reported, 2);
    own(w, 2, 1, false);
    assert_int_equal(doorman_permit_client_report(w->client, &item, NULL, w->now), DOORMAN_OK);
    pass(w, 7 * SECOND);
    assert_int_equal(info_of(w).lost, 1);
    assert_int_equal(info_of(w).waiting_count, 0);
    world_end(w);
}

/* ---- decisions without a message ------------------------------------------------------------ */

/* N5 */
TEST(items_of_two_shards_are_refused_without_a_message) {
    struct world *w = world_start_routed();
    char key[32], other[32], braces[64];
    key_of(key, 0);
    key_of(other, 3); /* of the same node */
    snprintf(braces, sizeof braces, "x{%s}", key);
    const doorman_permit_item items[] = {{.resource_id = "r", .key = key, .cost = 1},
                                         {.resource_id = "r", .key = braces, .cost = 1},
                                         {.resource_id = "r", .key = other, .cost = 1}};
    doorman_permit_request request = {.items = items, .item_count = 3};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    assert_next(w, false, DOORMAN_BY_REFUSAL);
    assert_int_equal(w->out.reason, DOORMAN_REASON_SHARDS);
    assert_int_equal(w->out.item_index, 2);
    assert_false(w->out.has_retry_after);
    run(w);
    assert_int_equal(w->messages, 0);
    request.item_count = 2;
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    uint64_t number = 0;
    request = (doorman_permit_request){.items = items, .item_count = 3, .hold = &number};
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
                     DOORMAN_OK);
    assert_next(w, false, DOORMAN_BY_REFUSAL);
    assert_int_equal(info_of(w).hold_count, 0);
    world_end(w);
}

/* P22, P24 */
TEST(refusals_and_units_taken_ahead_stay_valid_over_a_move) {
    struct world *w = world_start_with((doorman_permit_policy){.prefetch = 10 * SECOND});
    tell_all(w);
    char key[32];
    key_of(key, 0);
    for (size_t i = 0; i < 6; i++) {
        ask(w, key, i);
        run(w);
        assert_true(next(w) && w->out.granted);
    }
    assert_true(doorman__stock_units((doorman__stock *)(void *)DOORMAN__WITHIN(
                    doorman__known, order, w->client->stocks.order.first)) >= 1);
    char full[32];
    key_of(full, 3);
    const doorman_permit_item item = {.resource_id = "r", .key = full, .cost = 60};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            doorman_permit_client_acquire(w->client, &request, SECOND, NULL, NULL, w->now),
            DOORMAN_OK);
        run(w);
        assert_next(w, false, i ? DOORMAN_BY_REFUSAL : DOORMAN_BY_SERVER);
        if (i) break;
        move(w, 0, 1);
        move(w, 3, 2);
        tell_all(w);
    }
    const size_t before = w->messages;
    ask(w, key, 9);
    assert_next(w, true, DOORMAN_BY_PREFETCH);
    assert_int_equal(w->messages, before);
    world_end(w);
}

TEST(units_that_are_taken_ahead_are_not_asked_for_again_after_a_move) {
    struct world *w = world_start_with((doorman_permit_policy){.prefetch = 10 * SECOND});
    tell_all(w);
    char key[32];
    key_of(key, 0);
    ask(w, key, 1);
    ask(w, key, 2);
    run(w);
    const size_t moved = info_of(w).moved;
    own(w, 0, 0, false);
    while (next(w)) assert_true(w->out.granted);
    for (int i = 0; i < 8; i++) { /* until a message asks for more */
        ask(w, key, 3);
        run(w);
        if (info_of(w).moved > moved) break;
        w->now += SECOND;
    }
    assert_true(info_of(w).moved > moved);
    pass(w, 30 * SECOND);
    assert_int_equal(w->client->prefetch_count, 0);
    world_end(w);
}

TEST(the_kill_switch_grants_calls_that_wait_for_their_shard) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    own(w, 0, 0, false);
    ask(w, key, 1);
    const uint64_t number = hold(w, key, 0);
    run(w);
    assert_false(next(w));
    doorman_permit_client_kill_switch(w->client, true);
    for (int i = 0; i < 2; i++) assert_next(w, true, DOORMAN_BY_BYPASS);
    assert_true(is_gone(w, number));
    doorman_permit_client_kill_switch(w->client, false);
    own(w, 0, 0, true);
    pass(w, 5 * SECOND);
    assert_int_equal(holds_at(w, 0), 0);
    world_end(w);
}

TEST(a_client_may_be_destroyed_while_calls_wait_for_their_shards) {
    struct world *w = world_start_routed();
    char key[32];
    key_of(key, 0);
    const uint64_t number = hold(w, key, 0);
    const uint64_t reservation = reserve(w, key);
    run(w);
    assert_next(w, true, DOORMAN_BY_SERVER);
    own(w, 0, 0, false);
    ask(w, key, 1);
    settle(w, reservation, key, 5);
    const doorman_hold_request release = {.id = number};
    assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now), DOORMAN_OK);
    run(w);
    ask_shard(w, 1, 2); /* queued */
    world_end(w);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Lets a client learn two maps; for the first one, the allocation `fault` fails. Returns true if no
 * allocation failed. */
static bool learn_with_fault(size_t fault) {
    struct world *w = world_start();
    ask_shard(w, 1, 1);
    memory_fails_at(fault);
    for (int i = 0; i < 4; i++) {
        doorman_upstream *upstream = NULL;
        for (size_t j = 0; (upstream = doorman_permit_client_port(w->client, j)); j++) {
            (void)exchange(w, upstream);
        }
    }
    const bool complete = memory_works();
    pass(w, SECOND);
    assert_true(next(w)); /* the server may have had no memory */
    move(w, 1, 3);
    tell_all(w);
    ask_shard(w, 1, 2);
    pass(w, SECOND);
    assert_next(w, true, DOORMAN_BY_SERVER);
    assert_int_equal(info_of(w).map_epoch, w->epoch);
    assert_int_equal(port_count(w), 1 + NODES);
    world_end(w);
    return complete;
}

TEST(a_map_without_memory_is_asked_for_again) {
    size_t fault = 0;
    while (!learn_with_fault(++fault)) {
    }
    assert_true(fault > 10);
}

/* ---- random calls, moves and failures ------------------------------------------------------- */

#define KEYS 16
#define CALLS 40

/* The calls without a decision, the holds in use, and the units that were granted. */
struct account {
    bool is_open[CALLS]; /* the call has no decision yet */
    doorman_time asked[CALLS];
    uint64_t holds[CALLS]; /* the number of a hold that is in use; 0: none */
    double granted[KEYS];  /* by servers, of the resource "r" */
    size_t key_of_call[CALLS];
    bool certain; /* no answer was lost, so the account is exact */
};

static void random_key(char key[32], size_t index) { snprintf(key, 32, "key-%zu", index); }

static void random_call(struct world *w, struct account *account) {
    const size_t call = random_below(CALLS), index = random_below(KEYS);
    char key[32];
    random_key(key, index);
    if (account->is_open[call]) return;
    if (account->holds[call]) {
        const doorman_hold_request release = {.id = account->holds[call]};
        account->holds[call] = 0;
        assert_int_equal(doorman_permit_client_release(w->client, &release, NULL, w->now),
                         DOORMAN_OK);
        return;
    }
    const bool holds = random_below(3) == 0;
    const doorman_permit_item item = {.resource_id = holds ? "hold" : "r", .key = key, .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .hold = holds ? &account->holds[call] : NULL};
    account->is_open[call] = true;
    account->asked[call] = w->now;
    account->key_of_call[call] = index;
    assert_int_equal(doorman_permit_client_acquire(w->client, &request, 2 * SECOND,
                                                   (void *)(call + 1), NULL, w->now),
                     DOORMAN_OK);
}

static void take_decisions(struct world *w, struct account *account) {
    doorman_held held;
    while (next(w)) {
        const size_t call = w->number - 1;
        assert_true(w->number >= 1 && account->is_open[call]); /* one decision for each call */
        assert_true(w->now <= account->asked[call] + 2200 * MILLISECOND); /* 2 s, and a pass */
        account->is_open[call] = false;
        const bool is_hold = account->holds[call] != 0;
        if (is_hold && !w->out.hold) account->holds[call] = 0;
        if (is_hold || !w->out.granted || w->out.decided_by != DOORMAN_BY_SERVER) continue;
        account->granted[account->key_of_call[call]] += w->out.units[0];
    }
    while (doorman_permit_client_next_change(w->client, &held, w->now)) {
        for (size_t i = 0; i < CALLS; i++) {
            if (account->holds[i] == held.hold) account->holds[i] = 0;
        }
    }
}

static void random_fault(struct world *w, struct account *account, bool certain) {
    const size_t shard = random_below(SHARDS), node = random_below(NODES);
    switch (random_below(6)) {
    case 0:
        if (w->owners[shard].owner != node &&
            doorman_permits_owns(permits_of(w, w->owners[shard].owner), shard)) {
            move(w, shard, node);
        }
        break;
    case 1: tell(w, node); break;
    case 2: own(w, w->owners[shard].owner, shard, random_below(2)); break;
    case 3: w->is_down[node] = random_below(3) == 0; break;
    case 4:
        w->loses[node] = !certain && random_below(4) == 0;
        if (w->loses[node]) account->certain = false;
        break;
    default: break;
    }
}

static void assert_account(struct world *w, const struct account *account) {
    size_t held = 0, kept = 0;
    for (size_t i = 0; i < KEYS; i++) {
        char key[32];
        random_key(key, i);
        const size_t owner = w->owners[shard_of("r", key)].owner;
        const double used = used_at(w, owner, "r", key);
        if (account->certain) assert_exact(used, account->granted[i]);
        assert_true(account->granted[i] <= used && used <= 50);
    }
    for (size_t i = 0; i < CALLS; i++) held += account->holds[i] != 0;
    for (size_t i = 0; i < NODES; i++) kept += holds_at(w, i);
    assert_int_equal(kept, held);
}

static void random_story(bool certain) {
    struct world *w = world_start();
    struct account account = {.certain = true};
    for (int i = 0; i < 400; i++) {
        random_call(w, &account);
        if (random_below(8) == 0) random_fault(w, &account, certain);
        if (random_below(3) == 0) {
            pass(w, (doorman_time)random_below(200) * MILLISECOND);
            take_decisions(w, &account);
        }
    }
    for (size_t i = 0; i < NODES; i++) w->is_down[i] = w->loses[i] = false;
    for (size_t i = 0; i < SHARDS; i++) own(w, w->owners[i].owner, i, true);
    tell_all(w);
    for (int i = 0; i < 25; i++) {
        pass(w, 100 * MILLISECOND);
        take_decisions(w, &account);
    }
    pass(w, 200 * SECOND); /* each hold that is not in use is released by then */
    take_decisions(w, &account);
    for (size_t i = 0; i < CALLS; i++) assert_false(account.is_open[i]);
    assert_account(w, &account);
    for (size_t i = 0; i < SHARDS; i++) { /* now all calls find their owners at once */
        const uint64_t moved = info_of(w).moved;
        ask_shard(w, i, 1);
        run(w);
        assert_true(next(w));
        assert_int_equal(w->out.decided_by, DOORMAN_BY_SERVER);
        assert_true(info_of(w).moved <= moved + 1);
    }
    world_end(w);
}

TEST(random_calls_over_random_moves_are_counted_exactly) {
    for (int i = 0; i < 30; i++) random_story(true);
}

TEST(random_calls_with_lost_answers_are_never_granted_too_often) {
    for (int i = 0; i < 30; i++) random_story(false);
}
