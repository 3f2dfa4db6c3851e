/* Messages on permits: a server that answers them, and their JSON. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char limits[] =
    "{\"resources\": ["
    "{\"identifier_glob\": \"login\", \"limits\": ["
    "{\"name\": \"per-user\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 5, "
    "\"refunds\": true},"
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, "
    "\"window\": \"day\"}]},"
    "{\"identifier_glob\": \"slow\", \"limits\": ["
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 2, \"max_debt\": 3, "
    "\"on_restart\": \"empty\"}]},"
    "{\"identifier_glob\": \"few\", \"limits\": ["
    "{\"name\": \"one\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 60, "
    "\"max_keys\": 1, \"overflow\": \"refuse\"}]},"
    "{\"identifier_glob\": \"open\", \"limits\": []}]}";

static const char capacities[] = "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 10},"
                                 "{\"identifier_glob\": \"login\", \"limits\": []}]}";

/* ---- a server ------------------------------------------------------------------------------- */

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) print_error("%s\n", error.text);
    assert_int_equal(status, DOORMAN_OK);
    return config;
}

typedef struct node {
    doorman_config *config;
    doorman_server *server;
    doorman_error error;
    doorman_time now;
    doorman_response response;
} node;

static void become_master(node *n, bool is_master) {
    const doorman_mastership mastership = {.address = "tcp://here:1",
                                           .until = is_master ? DOORMAN_NEVER : 0};
    assert_int_equal(doorman_server_set_master(n->server, &mastership, n->now), DOORMAN_OK);
}

/* Creates a server that is master.
 *   permits   may be NULL */
static node *node_start(const char *text, const doorman_permits_options *permits) {
    node *n = calloc(1, sizeof *n);
    assert_non_null(n);
    n->now = 7 * SECOND;
    n->config = config_of(text);
    const doorman_server_options options = {
        .node = "n", .config = n->config, .seed = {1, 2}, .permits = permits};
    assert_int_equal(doorman_server_create(&n->server, &options, &n->error, n->now), DOORMAN_OK);
    become_master(n, true);
    return n;
}

static void node_stop(node *n) {
    doorman_server_destroy(n->server);
    doorman_config_destroy(n->config);
    free(n);
}

static doorman_status send_request(node *n, const doorman_request *request) {
    n->error.text[0] = '\0';
    return doorman_server_handle(n->server, request, &n->response, &n->error, n->now);
}

static doorman_status acquire_all(node *n, const doorman_permit_request *permits, size_t count) {
    const doorman_request request = {
        .method = DOORMAN_ACQUIRE, .holder_id = "c", .permits = permits, .permit_count = count};
    return send_request(n, &request);
}

/* Asks for one permit of one item. */
static doorman_permit acquire(node *n, const char *resource_id, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = resource_id, .key = key, .cost = cost};
    const doorman_permit_request permit = {.items = &item, .item_count = 1};
    assert_int_equal(acquire_all(n, &permit, 1), DOORMAN_OK);
    assert_true(n->response.is_master);
    assert_int_equal(n->response.permit_count, 1);
    return n->response.permits[0];
}

static doorman_status send_entry(node *n, doorman_method method, doorman_permit_entry entry) {
    const doorman_request request = {
        .method = method, .holder_id = "c", .entries = &entry, .entry_count = 1};
    return send_request(n, &request);
}

static doorman_permit_result result_of(node *n, doorman_method method, doorman_permit_entry entry) {
    assert_int_equal(send_entry(n, method, entry), DOORMAN_OK);
    assert_int_equal(n->response.result_count, 1);
    return n->response.results[0];
}

/* ---- a server decides ----------------------------------------------------------------------- */

/* P16 */
TEST(only_a_master_decides) {
    node *n = node_start(limits, NULL);
    assert_true(acquire(n, "login", "alice", 5).granted);
    doorman_permits_info info;
    doorman_permits_read(doorman_server_permits(n->server), &info);
    assert_int_equal(info.counter_count, 2);
    become_master(n, false);
    assert_null(doorman_server_permits(n->server));
    const doorman_permit_item item = {.resource_id = "login", .cost = 1};
    const doorman_permit_request permit = {.items = &item, .item_count = 1};
    assert_int_equal(acquire_all(n, &permit, 1), DOORMAN_OK);
    assert_false(n->response.is_master);
    assert_string_equal(n->response.master_address, "tcp://here:1");
    assert_int_equal(n->response.permit_count, 0);
    assert_int_equal(doorman_upstream_due(doorman_server_upstream(n->server)), DOORMAN_NEVER);
    node_stop(n);
}

/* P16 */
TEST(a_new_master_has_fresh_counters) {
    node *n = node_start(limits, NULL);
    assert_true(acquire(n, "login", "alice", 5).granted);
    assert_false(acquire(n, "login", "alice", 1).granted);
    become_master(n, false);
    become_master(n, true);
    assert_true(acquire(n, "login", "alice", 5).granted);
    n->now += 3600 * SECOND;
    become_master(n, false);
    become_master(n, true);
    doorman_permit permit = acquire(n, "slow", "a", 1); /* the new bucket is empty */
    assert_true(permit.granted);
    assert_int_equal(permit.wait, 0);
    permit = acquire(n, "slow", "a", 3);
    assert_false(permit.granted);
    n->now += 1 * SECOND;
    permit = acquire(n, "slow", "a", 1);
    assert_true(permit.granted && permit.wait == 0);
    node_stop(n);
}

/* A mastership also ends when its time passes. */
TEST(counters_end_with_the_time_of_the_mastership) {
    node *n = node_start(limits, NULL);
    const doorman_mastership soon = {.address = "tcp://here:1", .until = n->now + 60 * SECOND};
    assert_int_equal(doorman_server_set_master(n->server, &soon, n->now), DOORMAN_OK);
    assert_true(acquire(n, "login", "alice", 5).granted);
    n->now += 60 * SECOND;
    const doorman_permit_entry entry = {.resource_id = "login", .key = "alice"};
    assert_int_equal(send_entry(n, DOORMAN_INSPECT, entry), DOORMAN_OK);
    assert_false(n->response.is_master);
    assert_null(doorman_server_permits(n->server));
    node_stop(n);
}

/* P26: without an epoch, 1970 begins at `now` = 0. */
TEST(windows_follow_the_epoch_of_the_server) {
    node *n = node_start(limits, NULL);
    (void)acquire(n, "login", "alice", 0.5);
    doorman_permit permit = acquire(n, "login", "bob", 0.25);
    assert_true(permit.granted);
    const doorman_permit_entry entry = {.resource_id = "login", .key = "bob", .limit = "all"};
    doorman_permit_result result = result_of(n, DOORMAN_INSPECT, entry);
    assert_int_equal(result.state.detail_count, 1);
    assert_int_equal(result.state.details[0].reset_after, (86400 - 7) * SECOND);
    doorman_server_set_epoch(n->server, (20000 * 86400 + 86000) * SECOND, n->now);
    n->now += 100 * SECOND;
    result = result_of(n, DOORMAN_INSPECT, entry);
    assert_true(result.state.details[0].used <= 0); /* another day */
    assert_true(acquire(n, "login", "bob", 1).granted);
    result = result_of(n, DOORMAN_INSPECT, entry);
    assert_int_equal(result.state.details[0].reset_after, 300 * SECOND);
    node_stop(n);
}

TEST(an_epoch_that_steps_back_opens_no_new_window) {
    node *n = node_start(limits, NULL);
    for (int i = 0; i < 20; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(acquire(n, "login", key, 5).granted);
    }
    const doorman_time before[] = {0, -5 * SECOND, INT64_MIN, 6 * SECOND};
    for (size_t i = 0; i < COUNT(before); i++) {
        doorman_server_set_epoch(n->server, before[i], n->now);
        assert_false(acquire(n, "login", "new", 1).granted);
    }
    doorman_server_set_epoch(n->server, DOORMAN_NEVER, n->now);
    assert_true(acquire(n, "login", "new", 1).granted);
    n->now += SECOND;
    assert_true(acquire(n, "login", "new", 1).granted);
    node_stop(n);
}

/* Time that goes back counts as standing still. */
TEST(a_clock_that_steps_back_gives_no_units) {
    node *n = node_start(limits, NULL);
    assert_true(acquire(n, "login", "alice", 5).granted);
    for (int i = 0; i < 5; i++) {
        n->now -= SECOND;
        assert_false(acquire(n, "login", "alice", 1).granted);
    }
    n->now += 5 * SECOND;
    doorman_permit permit = acquire(n, "login", "alice", 1);
    assert_false(permit.granted);
    assert_int_equal(permit.retry_after, SECOND);
    n->now += SECOND;
    assert_true(acquire(n, "login", "alice", 1).granted);
    node_stop(n);
}

/* P16: a server that learns leases decides on permits of limits that need not learn holds. */
TEST(a_server_that_learns_decides_on_permits) {
    node *n = node_start(capacities, NULL);
    assert_true(doorman_server_learns_until(n->server, n->now) > n->now);
    assert_true(acquire(n, "login", "alice", 1).granted);
    node_stop(n);
    n = node_start(limits, NULL); /* it has no leases, so nothing is learned */
    assert_int_equal(doorman_server_learns_until(n->server, n->now), 0);
    node_stop(n);
}

TEST(a_template_without_limits_has_no_permits_and_without_capacity_no_leases) {
    node *n = node_start(capacities, NULL);
    doorman_permit permit = acquire(n, "db", "alice", 1);
    assert_false(permit.granted);
    assert_int_equal(permit.reason, DOORMAN_REASON_UNMATCHED);
    assert_true(acquire(n, "login", "alice", 1).granted);
    assert_true(acquire(n, "no template", "alice", 1).granted); /* G2 */
    const doorman_demand demand = {1, 1, 1};
    const doorman_capacity_request wants = {
        .resource_id = "login", .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = "c", .items = &wants, .item_count = 1};
    assert_int_equal(send_request(n, &request), DOORMAN_OK);
    assert_int_equal(n->response.items[0].outcome, DOORMAN_UNMATCHED);
    node_stop(n);
}

/* P15 */
TEST(a_new_configuration_keeps_the_counters) {
    node *n = node_start(limits, NULL);
    assert_true(acquire(n, "login", "alice", 5).granted);
    doorman_config *same = config_of(limits);
    assert_int_equal(doorman_server_configure(n->server, same, n->now), DOORMAN_OK);
    doorman_config_destroy(n->config);
    n->config = same;
    doorman_permit permit = acquire(n, "login", "alice", 1);
    assert_false(permit.granted);
    assert_string_equal(permit.limit, "per-user");
    assert_int_equal(permit.retry_after, 1 * SECOND);
    node_stop(n);
}

/* G8, P17: in a root, a leased limit of a resource without capacity could never grant anything. */
TEST(a_root_refuses_a_leased_limit_without_any_capacity) {
    static const char leased[] =
        "{\"resources\": [{\"identifier_glob\": \"a\", \"limits\": []}, "
        "{\"identifier_glob\": \"b\", \"limits\": [{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", "
        "\"limit\": 1, \"window\": \"day\"}, {\"name\": \"share\", \"per\": \"resource\", "
        "\"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\"}]}]}";
    doorman_config *wrong = config_of(leased), *config = config_of(limits);
    doorman_error error = {0};
    doorman_server_options options = {.node = "root", .config = wrong, .seed = {1, 2}};
    node *n = calloc(1, sizeof *n);
    assert_non_null(n);
    assert_int_equal(doorman_server_create(&n->server, &options, &error, 0),
                     DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "config: resources[1].limits[1]: cannot be leased"));
    assert_int_equal(doorman_config_fits(wrong, true, &error), DOORMAN_OK);
    options.config = config;
    assert_int_equal(doorman_server_create(&n->server, &options, &error, 0), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(n->server, wrong, 0), DOORMAN_INVALID_ARGUMENT);
    doorman_config_destroy(wrong);
    n->config = config;
    node_stop(n);
}

/* G8 */
TEST(a_node_with_a_parent_may_have_limits_alone) {
    static const char *const parents[] = {"tcp://parent:1"};
    doorman_config *config = config_of(limits), *wrong = config_of(capacities);
    doorman_error error = {0};
    doorman_server_options options = {
        .node = "child", .config = wrong, .parents = parents, .parent_count = 1, .seed = {1, 2}};
    node *n = calloc(1, sizeof *n);
    assert_non_null(n);
    assert_int_equal(doorman_server_create(&n->server, &options, &error, 0),
                     DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "config: resources[0].capacity: must be absent"));
    options.config = config;
    assert_int_equal(doorman_server_create(&n->server, &options, &error, 0), DOORMAN_OK);
    become_master(n, true);
    assert_true(acquire(n, "login", "alice", 5).granted);
    assert_false(acquire(n, "login", "alice", 1).granted);
    assert_int_equal(doorman_server_configure(n->server, wrong, 0), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_server_configure(n->server, NULL, 0), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_server_configure(n->server, config, 0), DOORMAN_OK);
    assert_false(acquire(n, "login", "alice", 1).granted);
    doorman_config_destroy(wrong);
    n->config = config;
    node_stop(n);
}

TEST(a_node_without_a_configuration_refuses_all_permits) {
    static const char *const parents[] = {"tcp://parent:1"};
    const doorman_server_options options = {
        .node = "child", .parents = parents, .parent_count = 1, .seed = {1, 2}};
    node *n = calloc(1, sizeof *n);
    assert_non_null(n);
    assert_int_equal(doorman_server_create(&n->server, &options, NULL, 0), DOORMAN_OK);
    become_master(n, true);
    assert_int_equal(acquire(n, "login", "alice", 1).reason, DOORMAN_REASON_UNMATCHED);
    doorman_config *config = config_of(limits);
    assert_int_equal(doorman_server_configure(n->server, config, 0), DOORMAN_OK);
    assert_true(acquire(n, "login", "alice", 1).granted);
    n->config = config;
    node_stop(n);
}

/* P14: the work of the server includes the work of the permits. */
TEST(the_loop_of_the_server_removes_fresh_counters) {
    node *n = node_start(limits, NULL);
    doorman_upstream *upstream = doorman_server_upstream(n->server);
    assert_true(acquire(n, "slow", "a", 1).granted);
    doorman_permits_info info = {.counter_count = 1};
    for (int i = 0; i < 100 && doorman_upstream_due(upstream) != DOORMAN_NEVER; i++) {
        doorman_request none;
        n->now = doorman_upstream_due(upstream);
        assert_false(doorman_upstream_request(upstream, &none, n->now));
        doorman_permits_read(doorman_server_permits(n->server), &info);
        if (n->now < 9 * SECOND) assert_int_equal(info.counter_count, 1);
    }
    assert_int_equal(info.counter_count, 0);
    assert_int_equal(info.resource_count, 0);
    assert_int_equal(doorman_upstream_due(upstream), DOORMAN_NEVER);
    node_stop(n);
}

/* ---- whole messages ------------------------------------------------------------------------- */

/* P1 applies to each permit by itself. The parts of a growing response keep their addresses. */
TEST(the_permits_of_a_message_are_decided_in_their_order) {
    enum { PERMITS = 60 };
    node *n = node_start(limits, NULL);
    doorman_permit_item items[PERMITS][2];
    doorman_permit_request permits[PERMITS];
    for (size_t i = 0; i < PERMITS; i++) {
        items[i][0] = (doorman_permit_item){.resource_id = "login", .key = "alice", .cost = 2};
        items[i][1] = (doorman_permit_item){.resource_id = "slow", .key = "x", .cost = 0};
        permits[i] =
            (doorman_permit_request){.items = items[i], .item_count = 2, .detail = i % 2 == 0};
    }
    assert_int_equal(acquire_all(n, permits, PERMITS), DOORMAN_OK);
    assert_int_equal(n->response.permit_count, PERMITS);
    for (size_t i = 0; i < PERMITS; i++) {
        const doorman_permit *permit = &n->response.permits[i];
        assert_int_equal(permit->granted, i < 2);
        assert_int_equal(permit->detail_count, i % 2 ? 0 : 3);
        if (i < 2) assert_string_equal(permit->items[0].limit, "per-user");
        if (i < 2) assert_true(permit->items[0].remaining <= 3 - 2.0 * (double)i);
        if (i < 2) assert_string_equal(permit->items[1].limit, "b");
        if (i >= 2) assert_string_equal(permit->limit, "per-user");
        if (i % 2 == 0) assert_string_equal(permit->details[1].limit, "all");
    }
    assert_int_equal(acquire_all(n, NULL, 0), DOORMAN_OK);
    assert_int_equal(n->response.permit_count, 0);
    node_stop(n);
}

static char too_long_key[258]; /* one byte more than a key may have, and the final 0 */

static const struct {
    doorman_permit_item item;
    double max_wait;
    bool equal;
    const char *text;
} wrong_permits[] = {
    {{.resource_id = "", .cost = 1}, 0, false, "items[0].resource_id: must be 1 to 256 bytes"},
    {{.resource_id = NULL, .cost = 1}, 0, false, "items[0].resource_id: must be 1 to 256 bytes"},
    {{.resource_id = "a\n", .cost = 1}, 0, false, "items[0].resource_id: must be 1 to 256"},
    {{.resource_id = "a", .key = too_long_key, .cost = 1}, 0, false, "items[0].key: must be 0 to"},
    {{.resource_id = "a", .key = "\xff", .cost = 1}, 0, false, "items[0].key: must be 0 to 256"},
    {{.resource_id = "a", .cost = NAN}, 0, false, "items[0].cost: must be"},
    {{.resource_id = "a", .cost = -1}, 0, false, "items[0].cost: must be"},
    {{.resource_id = "a", .cost = 1.1e15}, 0, false, "items[0].cost: must be"},
    {{.resource_id = "a", .cost = 1, .has_min = true, .min = 2}, 0, false, "items[0].min: must"},
    {{.resource_id = "a", .cost = 1, .has_min = true, .min = -1}, 0, false, "items[0].min: mu"},
    {{.resource_id = "a", .cost = 1, .has_min = true, .min = NAN}, 0, false, "items[0].min: mu"},
    {{.resource_id = "a", .cost = 1}, -1, false, "max_wait: must be"},
    {{.resource_id = "a", .cost = 1}, 2e17, false, "max_wait: must be"},
    {{.resource_id = "a", .cost = 0.5}, 0, true, "equal: no whole number"},
};

/* An error answers the whole message, and no part of the message takes effect. */
TEST(a_wrong_message_charges_nothing) {
    node *n = node_start(limits, NULL);
    memset(too_long_key, 'k', sizeof too_long_key - 1);
    for (size_t i = 0; i < COUNT(wrong_permits); i++) {
        const doorman_permit_item good = {.resource_id = "login", .key = "alice", .cost = 5};
        const doorman_permit_request permits[] = {
            {.items = &good, .item_count = 1},
            {.items = &wrong_permits[i].item,
             .item_count = 1,
             .max_wait = (doorman_time)wrong_permits[i].max_wait,
             .equal = wrong_permits[i].equal}};
        char text[80];
        snprintf(text, sizeof text, "permits[1].%s", wrong_permits[i].text);
        assert_int_equal(acquire_all(n, permits, 2), DOORMAN_INVALID_ARGUMENT);
        if (strstr(n->error.text, text) != n->error.text) fail_msg("%zu: %s", i, n->error.text);
    }
    assert_true(acquire(n, "login", "alice", 5).granted);
    node_stop(n);
}

/* A release of the first entry would grant the permit of the second entry, which waits. So the
 * amounts of the second entry are checked before anything is released. */
TEST(a_wrong_release_of_a_permit_that_waits_releases_nothing) {
    node *n = node_start("{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": "
                         "\"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 5, "
                         "\"max_wait\": 30}]}]}",
                         NULL);
    n->now += 100 * SECOND; /* the holds of a predecessor have ended */
    const doorman_permit_item item = {.resource_id = "a", .cost = 1};
    doorman_permit_request permit = {
        .items = &item, .item_count = 1, .request_id = 1, .max_wait = 10 * SECOND};
    const doorman_request acquire_it = {.method = DOORMAN_ACQUIRE,
                                        .holder_id = "c",
                                        .permits = &permit,
                                        .permit_count = 1,
                                        .may_wait = true,
                                        .connection = 1};
    assert_int_equal(send_request(n, &acquire_it), DOORMAN_OK);
    const doorman_hold_request hold = {.id = n->response.permits[0].hold_id};
    assert_true(hold.id > 0);
    permit.request_id = 2;
    assert_int_equal(send_request(n, &acquire_it), DOORMAN_OK);
    assert_true(n->response.permits[0].pending);
    const double amounts[2] = {0, 0};
    const doorman_hold_request releases[] = {
        hold, {.request_id = 2, .amounts = amounts, .amount_count = 2}};
    doorman_request request = {
        .method = DOORMAN_RELEASE, .holder_id = "c", .holds = releases, .hold_count = 2};
    assert_int_equal(send_request(n, &request), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(n->error.text,
                        "holds[1].amounts: must have one amount for each item of the hold");
    request = (doorman_request){
        .method = DOORMAN_RENEW, .holder_id = "c", .holds = &hold, .hold_count = 1};
    assert_int_equal(send_request(n, &request), DOORMAN_OK);
    assert_false(n->response.holds[0].gone);
    node_stop(n);
}

/* P19 */
TEST(bounds_of_a_message_are_refused_by_name) {
    const doorman_permits_options few = {
        .item_max = 3, .message_item_max = 5, .message_detail_max = 2};
    node *n = node_start(limits, &few);
    doorman_permit_item items[4];
    doorman_permit_request permits[6];
    doorman_permit_entry entries[6];
    for (size_t i = 0; i < 4; i++) items[i] = (doorman_permit_item){.resource_id = "open"};
    for (size_t i = 0; i < 6; i++) {
        permits[i] = (doorman_permit_request){.items = items, .item_count = 1};
        entries[i] = (doorman_permit_entry){.resource_id = "login", .cost = 1};
    }
    assert_int_equal(acquire_all(n, permits, 5), DOORMAN_OK);
    assert_int_equal(acquire_all(n, permits, 6), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "permits: at most 5 items in a message, not 6");
    permits[1].item_count = 4;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "permits[1].items: at most 3, not 4");
    permits[1].item_count = 0;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(n->error.text, "permits[1].items: must be a list of items");
    permits[1].item_count = 1;
    permits[0].detail = permits[1].detail = true;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_OK);
    permits[2].detail = true;
    assert_int_equal(acquire_all(n, permits, 3), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text,
                        "permits: at most 2 permits with detail in a message, not 3");
    doorman_request request = {
        .method = DOORMAN_REPORT, .holder_id = "c", .entries = entries, .entry_count = 6};
    assert_int_equal(send_request(n, &request), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "entries: at most 5, not 6");
    request.method = DOORMAN_INSPECT, request.entry_count = 3;
    assert_int_equal(send_request(n, &request), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "entries: at most 2, not 3");
    assert_true(acquire(n, "login", NULL, 5).granted); /* nothing was charged */
    node_stop(n);
}

TEST(only_administration_needs_no_client_id) {
    node *n = node_start(limits, NULL);
    static const doorman_method methods[] = {DOORMAN_ACQUIRE, DOORMAN_REPORT, DOORMAN_INSPECT,
                                             DOORMAN_RESET};
    for (size_t i = 0; i < COUNT(methods); i++) {
        doorman_request request = {.method = methods[i]};
        doorman_status expected = i < 2 ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
        assert_int_equal(send_request(n, &request), expected);
        if (i < 2) assert_string_equal(n->error.text, "holder_id: " DOORMAN__ID_RULE);
        request.holder_id = "";
        assert_int_equal(send_request(n, &request), DOORMAN_INVALID_ARGUMENT);
        request.holder_id = "c", request.is_server = true;
        assert_int_equal(send_request(n, &request), DOORMAN_INVALID_ARGUMENT);
    }
    node_stop(n);
}

/* ---- reports, inspections, resets ------------------------------------------------------------ */

/* P13 */
TEST(reports_charge_what_an_action_has_cost) {
    node *n = node_start(limits, NULL);
    const doorman_permit_entry six = {.resource_id = "login", .key = "alice", .cost = 6};
    const doorman_permit_entry refund = {.resource_id = "login", .key = "alice", .cost = -1};
    const doorman_permit_entry one = {.resource_id = "few", .key = "a", .cost = 1};
    const doorman_permit_entry other = {.resource_id = "few", .key = "b", .cost = 1};
    assert_true(fabs(result_of(n, DOORMAN_REPORT, six).charged - 5) < 1e-9); /* max_cost */
    assert_false(acquire(n, "login", "alice", 1).granted);
    assert_true(fabs(result_of(n, DOORMAN_REPORT, refund).charged) <
                1e-9); /* `all` has no refunds */
    assert_true(fabs(result_of(n, DOORMAN_REPORT, one).charged - 1) < 1e-9);
    assert_true(fabs(result_of(n, DOORMAN_REPORT, other).charged) < 1e-9); /* max_keys */
    node_stop(n);
}

TEST(inspections_change_nothing) {
    node *n = node_start(limits, NULL);
    const doorman_permit_entry entry = {.resource_id = "login", .key = "alice"};
    assert_true(acquire(n, "login", "alice", 2).granted);
    for (int i = 0; i < 3; i++) {
        const doorman_permit state_ = result_of(n, DOORMAN_INSPECT, entry).state;
        assert_true(state_.granted);
        assert_int_equal(state_.detail_count, 2);
        assert_string_equal(state_.details[0].limit, "per-user");
        assert_true(fabs(state_.details[0].remaining - 3) < 1e-9);
    }
    doorman_permit_entry named = entry;
    named.limit = "all";
    doorman_permit shown = result_of(n, DOORMAN_INSPECT, named).state;
    assert_int_equal(shown.detail_count, 1);
    assert_string_equal(shown.details[0].limit, "all");
    node_stop(n);
}

/* A typing error must not look like a key without counters. */
TEST(inspections_and_resets_of_unknown_limits_are_refused) {
    static const char *const errors[] = {
        "entries[0].limit: the template of this resource has no limit with this name",
        "entries[0].resource_id: the list of limits of its template is empty",
        "entries[0].resource_id: no template with limits matches this resource"};
    static const char *const resources[] = {"login", "open", "other"};
    node *n = node_start(limits, NULL);
    for (int resets = 0; resets < 2; resets++) {
        doorman_method method = resets ? DOORMAN_RESET : DOORMAN_INSPECT;
        for (int i = 0; i < 3; i++) {
            doorman_permit_entry entry = {.resource_id = resources[i], .key = "a", .limit = "none"};
            assert_int_equal(send_entry(n, method, entry), DOORMAN_INVALID_ARGUMENT);
            assert_string_equal(n->error.text, errors[i]);
            entry.limit = NULL;
            if (i == 0) continue;
            assert_int_equal(send_entry(n, method, entry), DOORMAN_INVALID_ARGUMENT);
            entry.sets_ban = true, entry.ban = SECOND; /* a ban needs no limit */
            assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
            entry.sets_ban = false, entry.ban = 0;
            assert_int_equal(send_entry(n, method, entry), DOORMAN_OK);
            (void)send_entry(n, DOORMAN_RESET, entry);
        }
    }
    node_stop(n);
}

/* P20 */
TEST(resets_remove_counters_and_set_and_end_bans) {
    node *n = node_start(limits, NULL);
    doorman_permit_entry entry = {.resource_id = "login", .key = "alice"};
    assert_true(acquire(n, "login", "alice", 5).granted);
    entry.limit = "all";
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 0);
    assert_false(acquire(n, "login", "alice", 1).granted);
    entry.limit = NULL;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_true(acquire(n, "login", "alice", 1).granted);
    entry.sets_ban = true;
    entry.ban = 30 * SECOND;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    doorman_permit permit = acquire(n, "login", "alice", 1);
    assert_int_equal(permit.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(permit.retry_after, 30 * SECOND);
    assert_true(acquire(n, "login", "bob", 1).granted);
    entry.ban = 0;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 0);
    assert_true(acquire(n, "login", "alice", 1).granted);
    entry.ban = 10 * SECOND;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    n->now += 10 * SECOND;
    assert_true(acquire(n, "login", "alice", 1).granted);
    entry.resource_id = "open"; /* it has no limits */
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_int_equal(acquire(n, "open", "alice", 1).reason, DOORMAN_REASON_BANNED);
    node_stop(n);
}

/* P20: a reset says which counters it has removed, and what they had counted. */
TEST(a_reset_tells_what_it_has_reset) {
    node *n = node_start(limits, NULL);
    doorman_permit_entry entry = {.resource_id = "login", .key = "alice"};
    assert_true(acquire(n, "login", "alice", 5).granted);
    doorman_permit_result result = result_of(n, DOORMAN_RESET, entry);
    assert_int_equal(result.state.detail_count, 1); /* the limits per key */
    assert_string_equal(result.state.details[0].limit, "per-user");
    assert_true(result.state.details[0].was_reset);
    assert_exact(result.state.details[0].used, 5);
    result = result_of(n, DOORMAN_RESET, entry);
    assert_false(result.state.details[0].was_reset);
    entry.limit = "all";
    result = result_of(n, DOORMAN_RESET, entry);
    assert_int_equal(result.state.detail_count, 1);
    assert_true(result.state.details[0].was_reset);
    assert_exact(result.state.details[0].used, 5);
    node_stop(n);
}

TEST(bans_have_a_bound_too) {
    const doorman_permits_options one = {.counter_max = 1};
    node *n = node_start(limits, &one);
    doorman_permit_entry entry = {
        .resource_id = "login", .key = "a", .sets_ban = true, .ban = SECOND};
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    entry.key = "b", entry.ban = 9 * SECOND;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_int_equal(acquire(n, "login", "b", 1).retry_after, 9 * SECOND);
    assert_int_not_equal(acquire(n, "login", "a", 1).reason, DOORMAN_REASON_BANNED);
    node_stop(n);
    const doorman_permits_options none = {.memory_max = 100};
    n = node_start(limits, &none);
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 0);
    assert_int_equal(acquire(n, "login", "b", 1).reason, DOORMAN_REASON_MAX_KEYS);
    node_stop(n);
}

TEST(wrong_entries_are_refused_with_their_path) {
    node *n = node_start(limits, NULL);
    const struct {
        doorman_method method;
        doorman_permit_entry entry;
        const char *text;
    } wrong[] = {
        {DOORMAN_REPORT, {.resource_id = ""}, "entries[0].resource_id: must be 1 to 256"},
        {DOORMAN_RESET, {.resource_id = "a", .key = "\xc0"}, "entries[0].key: must be 0 to 256"},
        {DOORMAN_REPORT,
         {.resource_id = "a", .cost = INFINITY},
         "entries[0].cost: must be a finite"},
        {DOORMAN_REPORT,
         {.resource_id = "a", .cost = -1.1e15},
         "entries[0].cost: must be a finite"},
        {DOORMAN_RESET,
         {.resource_id = "a", .sets_ban = true, .ban = -1},
         "entries[0].ban: must be"},
        {DOORMAN_RESET,
         {.resource_id = "a", .sets_ban = true, .limit = "all"},
         "entries[0].limit: must be absent"},
        {DOORMAN_REPORT, {.resource_id = "a", .sets_ban = true}, "entries[0].ban: only in a reset"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(send_entry(n, wrong[i].method, wrong[i].entry), DOORMAN_INVALID_ARGUMENT);
        if (strstr(n->error.text, wrong[i].text) != n->error.text) fail_msg("%s", n->error.text);
    }
    node_stop(n);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Serves a message. The caller frees the reply. */
static char *serve(node *n, const char *text) {
    doorman_buffer reply = {0};
    (void)doorman_json_serve(n->server, text, strlen(text), &reply, 0, n->now);
    assert_non_null(reply.text);
    return reply.text;
}

static void assert_reply(node *n, const char *message, const char *reply) {
    char *text = serve(n, message);
    if (strcmp(text, reply) != 0) print_error("%s\n", message);
    assert_string_equal(text, reply);
    free(text);
}

TEST(messages_are_answered_in_json) {
    node *n = node_start(limits, NULL);
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"max_wait\": 0.5, \"item\": "
                 "[{\"resource_id\": \"login\", \"key\": \"alice\"}, {\"resource_id\": \"slow\", "
                 "\"key\": \"acme\", \"cost\": 9, \"min\": 1}]}, {\"item\": [{\"resource_id\": "
                 "\"slow\", \"key\": \"acme\", \"cost\": 2}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"item\":[{\"granted\":1,"
                 "\"limit\":\"per-user\",\"remaining\":4,\"reset_after\":1},{\"granted\":1,"
                 "\"limit\":\"b\",\"remaining\":0,\"reset_after\":3}]},{\"decision\":\"REFUSED\","
                 "\"resource_id\":\"slow\",\"key\":\"acme\",\"limit\":\"b\",\"reason\":\"RATE\","
                 "\"retry_after\":1,\"valid_for\":1}]}}");
    assert_reply(n, "{\"acquire\": {\"client_id\": \"c\", \"permit\": []}}",
                 "{\"acquire\":{\"permit\":[]}}");
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"max_wait\": 3, \"item\": "
                 "[{\"resource_id\": \"slow\", \"key\": \"acme\"}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"wait\":1,\"item\":["
                 "{\"granted\":1,\"limit\":\"b\",\"remaining\":0,\"reset_after\":4}]}]}}");
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
                 "\"open\"}, {\"resource_id\": \"slow\", \"key\": \"acme\"}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"REFUSED\",\"resource_id\":\"slow\","
                 "\"key\":\"acme\",\"item_index\":1,\"limit\":\"b\",\"reason\":\"RATE\","
                 "\"retry_after\":2,\"valid_for\":0}]}}");
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
                 "\"open\", \"cost\": 1e15}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"item\":[{\"granted\":"
                 "1000000000000000}]}]}}");
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
                 "\"slow\", \"key\": \"x\", \"cost\": 0}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"item\":[{\"granted\":0,"
                 "\"limit\":\"b\",\"remaining\":0,\"reset_after\":2}]}]}}");
    node_stop(n);
}

/* P6 */
TEST(details_list_each_limit_of_each_item) {
    node *n = node_start(limits, NULL);
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"detail\": true, \"item\": "
                 "[{\"resource_id\": \"login\", \"key\": \"alice\"}, {\"resource_id\": "
                 "\"open\"}]}, {\"detail\": true, \"item\": [{\"resource_id\": \"login\", "
                 "\"key\": \"alice\", \"cost\": 4.5}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"item\":[{\"granted\":1,"
                 "\"limit\":\"per-user\",\"remaining\":4,\"reset_after\":1,\"limits\":["
                 "{\"name\":\"per-user\",\"limit\":5,\"used\":1,\"remaining\":4,\"reset_after\":1,"
                 "\"window\":5},{\"name\":\"all\",\"limit\":100,\"used\":1,\"remaining\":99,"
                 "\"reset_after\":86393,\"window\":86400}]},{\"granted\":1,\"limits\":[]}]},"
                 "{\"decision\":\"REFUSED\",\"resource_id\":\"login\",\"key\":\"alice\",\"limit\":"
                 "\"per-user\",\"reason\":\"RATE\",\"retry_after\":0.5,\"valid_for\":0.5,"
                 "\"item\":[{\"limits\":[{\"name\":\"per-user\",\"limit\":5,\"used\":1,"
                 "\"remaining\":4,\"reset_after\":1,\"window\":5,\"refused\":true},{\"name\":"
                 "\"all\",\"limit\":100,\"used\":1,\"remaining\":99,\"reset_after\":86393,"
                 "\"window\":86400}]}]}]}}");
    node_stop(n);
}

TEST(administration_is_answered_in_json) {
    node *n = node_start(limits, NULL);
    assert_reply(n,
                 "{\"report\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"slow\", "
                 "\"key\": \"a\", \"cost\": 0.5}, {\"resource_id\": \"none\", \"cost\": -3}]}}",
                 "{\"report\":{\"entry\":[{\"charged\":0.5},{\"charged\":0}]}}");
    assert_reply(n,
                 "{\"inspect\": {\"entry\": [{\"resource_id\": \"slow\", \"key\": \"a\"}, "
                 "{\"resource_id\": \"slow\", \"limit\": \"b\"}]}}",
                 "{\"inspect\":{\"entry\":[{\"limits\":[{\"name\":\"b\",\"limit\":2,\"used\":2.5,"
                 "\"remaining\":0,\"reset_after\":2.5,\"window\":2}]},{\"limits\":[{\"name\":\"b\","
                 "\"limit\":2,\"used\":2,\"remaining\":0,\"reset_after\":2,\"window\":2}]}]}}");
    assert_reply(n,
                 "{\"reset\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"slow\", "
                 "\"key\": \"a\"}, {\"resource_id\": \"slow\", \"key\": \"a\", \"limit\": \"b\"}, "
                 "{\"resource_id\": \"slow\", \"key\": \"a\", \"ban\": 3600}]}}",
                 "{\"reset\":{\"entry\":[{\"count\":1},{\"count\":0},{\"count\":1}]}}");
    assert_reply(n, "{\"inspect\": {\"entry\": [{\"resource_id\": \"slow\", \"key\": \"a\"}]}}",
                 "{\"inspect\":{\"entry\":[{\"reason\":\"BANNED\",\"retry_after\":3600,\"limits\":["
                 "{\"name\":\"b\",\"limit\":2,\"used\":2,\"remaining\":0,\"reset_after\":2,"
                 "\"window\":2}]}]}}");
    assert_reply(n,
                 "{\"reset\": {\"entry\": [{\"resource_id\": \"slow\", \"key\": \"a\", \"ban\": "
                 "0}]}}",
                 "{\"reset\":{\"entry\":[{\"count\":1}]}}");
    become_master(n, false);
    static const char *const methods[] = {"acquire", "report", "inspect", "reset"};
    for (size_t i = 0; i < COUNT(methods); i++) {
        char message[128], reply[128];
        snprintf(message, sizeof message, "{\"%s\": {\"client_id\": \"c\", \"%s\": []}}",
                 methods[i], i ? "entry" : "permit");
        snprintf(reply, sizeof reply,
                 "{\"%s\":{\"mastership\":{\"master_address\":\"tcp://here:1\"}}}", methods[i]);
        assert_reply(n, message, reply);
    }
    node_stop(n);
}

#define ITEM(rest) "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [" rest "]}]}}"
#define KEY_OF_32 "0123456789abcdef0123456789abcdef"
#define KEY_OF_256 KEY_OF_32 KEY_OF_32 KEY_OF_32 KEY_OF_32 KEY_OF_32 KEY_OF_32 KEY_OF_32 KEY_OF_32

/* A message and a part of its error. */
struct refused {
    const char *message, *error;
};

/* Checks that the reply to each message is an error that contains the expected text. */
static void expect_refused(const struct refused *rows, size_t count) {
    node *n = node_start(limits, NULL);
    for (size_t i = 0; i < count; i++) {
        char *reply = serve(n, rows[i].message);
        if (strncmp(reply, "{\"error\":", 9) != 0 || !strstr(reply, rows[i].error)) {
            fail_msg("%s\n%s\n%s", rows[i].message, reply, rows[i].error);
        }
        free(reply);
    }
    node_stop(n);
}

TEST(a_message_on_permits_without_its_method_is_refused) {
    static const struct refused rows[] = {
        {"{\"acquire\": {\"acquire\": {}}}", "acquire.acquire: is a method inside a method"},
        {"{\"permit\": []}", "must be an object with one key, the method"},
        {"{\"entry\": []}", "must be an object with one key, the method"},
        {"{\"prolong\": {}}",
         "no such method: prolong; the methods are discovery, get_capacity, release_capacity, "
         "report_overload, acquire, report, inspect, reset, renew, release, transfer, seize, "
         "settle, get_server_capacity\""}};
    expect_refused(rows, COUNT(rows));
}

TEST(wrong_fields_of_a_message_are_refused_with_the_path) {
    static const struct refused rows[] = {
        {"{\"acquire\": {\"permit\": []}}", "acquire.client_id: is missing"},
        {"{\"report\": {\"entry\": []}}", "report.client_id: is missing"},
        {"{\"acquire\": {\"client_id\": \"\", \"permit\": []}}", "acquire.client_id: must be 1 to"},
        {"{\"inspect\": {\"client_id\": \"\", \"entry\": []}}", "inspect.client_id: must be 1 to"},
        {"{\"acquire\": {\"client_id\": \"c\"}}", "acquire.permit: is missing"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permits\": []}}",
         "acquire.permit: is missing; \\\"permits\\\" is not a field"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": {}}}", "acquire.permit: must be a list"},
        {"{\"acquire\": {\"client_id\": 7, \"permit\": []}}", "acquire.client_id: must be a"},
        {"{\"acquire\": []}", "acquire: must be an object"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [7]}}", "acquire.permit[0]: must be an"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{}]}}",
         "acquire.permit[0].item: is missing"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": 1}]}}",
         "acquire.permit[0].item: must be a list"}};
    expect_refused(rows, COUNT(rows));
}

TEST(wrong_fields_of_permits_and_entries_are_refused_with_the_path) {
    static const struct refused rows[] = {
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"max_wait\": -1, \"item\": []}]}}",
         "acquire.permit[0].max_wait: must be from 0 to 1e8 seconds"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"equal\": 1, \"item\": []}]}}",
         "acquire.permit[0].equal: must be a boolean"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"detail\": \"x\", \"item\": []}]}}",
         "acquire.permit[0].detail: must be a boolean"},
        {"{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"equal\": true, \"item\": "
         "[{\"resource_id\": \"a\", \"cost\": 0.5}]}]}}",
         "acquire.permit[0].equal: no whole number"},
        {"{\"report\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"a\"}]}}",
         "report.entry[0].cost: is missing"},
        {"{\"report\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"a\", \"cost\": "
         "-1.1e15}]}}",
         "report.entry[0].cost: must be a finite number from -1e15 to 1e15"},
        {"{\"reset\": {\"entry\": [{\"resource_id\": \"a\", \"ban\": -1}]}}",
         "reset.entry[0].ban: must be from 0 to 1e8 seconds"},
        {"{\"reset\": {\"entry\": [{\"resource_id\": \"a\", \"ban\": 1, \"limit\": \"x\"}]}}",
         "reset.entry[0].limit: must be absent beside a ban"},
        {"{\"inspect\": {\"entry\": [{\"key\": \"a\"}]}}",
         "inspect.entry[0].resource_id: is missing"},
        {"{\"inspect\": {\"entry\": [{\"resource_id\": \"a\", \"limit\": 1}]}}",
         "inspect.entry[0].limit: must be a string"}};
    expect_refused(rows, COUNT(rows));
}

TEST(wrong_fields_of_items_are_refused_with_the_path) {
    static const struct refused rows[] = {
        {ITEM(""), "acquire.permit[0].item: must be a list of items"},
        {ITEM("1"), "acquire.permit[0].item[0]: must be an object"},
        {ITEM("{}"), "acquire.permit[0].item[0].resource_id: is missing"},
        {ITEM("{\"resource_id\": \"\"}"), "acquire.permit[0].item[0].resource_id: must be 1 to"},
        {ITEM("{\"resource_id\": null}"), "acquire.permit[0].item[0].resource_id: must be a str"},
        {ITEM("{\"resource_id\": \"a\\nb\"}"), "acquire.permit[0].item[0].resource_id: must be 1"},
        {ITEM("{\"resource_id\": \"" KEY_OF_256 "x\"}"),
         "acquire.permit[0].item[0].resource_id: must be 1 to 256"},
        {ITEM("{\"resource_id\": \"a\", \"key\": 3}"), "acquire.permit[0].item[0].key: must be a"},
        {ITEM("{\"resource_id\": \"a\"}, {\"resource_id\": \"a\", \"key\": \"" KEY_OF_256 "x\"}"),
         "acquire.permit[0].item[1].key: must be 0 to 256 bytes of UTF-8"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": \"1\"}"),
         "acquire.permit[0].item[0].cost: must be a number"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": -1}"), "acquire.permit[0].item[0].cost: must be"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": 1e309}"),
         "acquire.permit[0].item[0].cost: must be a finite number"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": 1.1e15}"),
         "acquire.permit[0].item[0].cost: must be a finite number from 0 to 1e15"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": 1, \"min\": 2}"),
         "acquire.permit[0].item[0].min: must be from 0 to the cost"},
        {ITEM("{\"resource_id\": \"a\", \"min\": -1}"),
         "acquire.permit[0].item[0].min: must be from 0 to the cost"},
        {ITEM("{\"resource_id\": \"a\", \"min\": 1e309}"),
         "acquire.permit[0].item[0].min: must be a finite number"},
        {ITEM("{\"resource_id\": \"a\", \"key\": \"x\", \"key\": \"y\"}"),
         "acquire.permit[0].item[0].key: appears twice"}};
    expect_refused(rows, COUNT(rows));
}

TEST(items_that_are_not_json_are_refused) {
    static const struct refused rows[] = {
        {ITEM("{\"resource_id\": \"a\", \"key\": \"x\\u0000y\"}"),
         "the control character U+0000 is not allowed"},
        {ITEM("{\"resource_id\": \"a\", \"key\": \"\xff\"}"), "not JSON: expected UTF-8"},
        {ITEM("{\"resource_id\": \"a\", \"key\": \"\xc0\x80\"}"), "not JSON: expected UTF-8"},
        {ITEM("{\"resource_id\": \"a\", \"key\": \"\\ud800\"}"), "a surrogate without its pair"},
        {ITEM("{\"resource_id\": \"a\", \"cost\": NaN}"), "not JSON: expected a value"}};
    expect_refused(rows, COUNT(rows));
}

/* Later versions of the protocol may have more fields. */
TEST(unknown_fields_are_ignored) {
    node *n = node_start(limits, NULL);
    assert_reply(n,
                 "{\"acquire\": {\"client_id\": \"c\", \"future\": [1], \"permit\": [{\"colour\": "
                 "\"red\", \"item\": [{\"resource_id\": \"open\", \"limit\": 7}]}]}}",
                 "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\",\"item\":[{\"granted\":1}]}]"
                 "}}");
    assert_reply(n, "{\"inspect\": {\"entry\": [{\"resource_id\": \"few\", \"ban\": {}}]}}",
                 "{\"inspect\":{\"entry\":[{\"limits\":[{\"name\":\"one\",\"limit\":9,\"used\":0,"
                 "\"remaining\":9,\"reset_after\":0,\"window\":60}]}]}}");
    node_stop(n);
}

/* Writes a message of `permits` permits with `items` items each. The caller frees it. */
static char *large_message(size_t permits, size_t items, const char *item) {
    size_t room = 100 + permits * (40 + items * (strlen(item) + 1)), bytes = 0;
    char *text = malloc(room);
    assert_non_null(text);
    bytes += (size_t)snprintf(text, room, "{\"acquire\":{\"client_id\":\"c\",\"permit\":[");
    for (size_t i = 0; i < permits; i++) {
        bytes += (size_t)snprintf(text + bytes, room - bytes, "%s{\"item\":[", i ? "," : "");
        for (size_t j = 0; j < items; j++) {
            bytes += (size_t)snprintf(text + bytes, room - bytes, "%s%s", j ? "," : "", item);
        }
        bytes += (size_t)snprintf(text + bytes, room - bytes, "]}");
    }
    (void)snprintf(text + bytes, room - bytes, "]}}");
    return text;
}

static void assert_large_reply(node *n, size_t permits, size_t items, const char *item,
                               const char *expected) {
    char *message = large_message(permits, items, item), *reply = serve(n, message);
    if (!strstr(reply, expected)) fail_msg("%.200s", reply);
    assert_true(strlen(reply) <= DOORMAN_MESSAGE_BYTES_MAX);
    free(message);
    free(reply);
}

/* P19 */
TEST(large_messages_are_answered_up_to_the_bounds) {
    node *n = node_start(limits, NULL);
    static const char item[] = "{\"resource_id\":\"login\",\"key\":\"a\",\"cost\":0.01}";
    static const char open[] = "{\"resource_id\":\"open\"}";
    assert_large_reply(n, 1, 100, item, "\"decision\":\"GRANTED\"");
    assert_true(fabs(acquire(n, "login", "a", 0).items[0].remaining - 4) < 0.02); /* added up */
    assert_large_reply(n, 1, 101, open,
                       "\"RESOURCE_EXHAUSTED\",\"message\":\"acquire.permit[0].item: at most 100");
    assert_large_reply(n, 10000, 1, open, "\"decision\":\"GRANTED\"");
    assert_large_reply(n, 100, 100, open, "\"decision\":\"GRANTED\"");
    assert_large_reply(n, 10001, 1, open,
                       "acquire.permit: at most 10000 items in a message, not 10001");
    assert_large_reply(n, 20000, 1, open,
                       "acquire.permit: the response could be larger than 4 MiB; send at most "
                       "16380 elements in one message");
    node_stop(n);
}

/* A request whose response a client could not read is refused before anything is charged. */
TEST(a_response_of_more_than_4_mib_is_not_begun) {
    node *n = node_start(limits, NULL);
    static const char item[] = "{\"resource_id\":\"login\",\"key\":\"" KEY_OF_256 "\"}";
    char quotes[600] = "{\"resource_id\":\"login\",\"key\":\"";
    for (int i = 0; i < 256; i++) strcat(quotes, "\x7f"); /* 6 bytes each in the response */
    strcat(quotes, "\"}");
    assert_large_reply(n, 5000, 1, item, "\"decision\":\"GRANTED\"");
    assert_int_equal(result_of(n, DOORMAN_RESET,
                               (doorman_permit_entry){.resource_id = "login", .key = KEY_OF_256})
                         .count,
                     1);
    assert_large_reply(n, 10000, 1, item, "could be larger than 4 MiB");
    assert_large_reply(n, 5000, 1, quotes, "could be larger than 4 MiB");
    assert_true(acquire(n, "login", KEY_OF_256, 5).granted);
    char message[20000] = "{\"acquire\":{\"client_id\":\"c\",\"permit\":[{\"detail\":true,"
                          "\"item\":[{\"resource_id\":\"open\"}";
    for (int i = 1; i < 100; i++) strcat(message, ",{\"resource_id\":\"open\"}");
    strcat(message, "]}]}}");
    char *reply = serve(n, message);
    assert_non_null(strstr(reply, "GRANTED"));
    free(reply);
    node_stop(n);
}

/* The exchange keeps its own copies: another thread may use the server before the reply is
 * written. */
TEST(a_reply_does_not_need_the_server) {
    static const char message[] =
        "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"detail\": true, \"item\": "
        "[{\"resource_id\": \"slow\", \"key\": \"acme\"}]}, {\"item\": [{\"resource_id\": "
        "\"slow\", \"key\": \"acme\"}]}]}}";
    node *n = node_start(limits, NULL);
    doorman_json_exchange one = {.status = DOORMAN_OK}, two = {.status = DOORMAN_OK};
    char first[1000] = "";
    for (int i = 0; i < 3; i++) {
        assert_int_equal(doorman_json_exchange_read(&one, NULL, message, strlen(message)),
                         DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_decide(&one, n->server, n->now), DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_read(&two, NULL, message, strlen(message)),
                         DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_decide(&two, n->server, n->now), DOORMAN_OK);
        doorman_config *other = config_of(capacities);
        assert_int_equal(doorman_server_configure(n->server, other, n->now), DOORMAN_OK);
        doorman_config_destroy(n->config);
        n->config = other;
        assert_int_equal(doorman_json_exchange_write(&one, 0), DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_write(&two, 0), DOORMAN_OK);
        if (i == 0) snprintf(first, sizeof first, "%s", one.reply.text);
        assert_string_equal(one.reply.text, first);
        assert_string_not_equal(two.reply.text, first);
        doorman_server_destroy(n->server);
        doorman_config_destroy(n->config);
        free(n);
        n = node_start(limits, NULL);
    }
    doorman_json_exchange_uninit(&one);
    doorman_json_exchange_uninit(&two);
    node_stop(n);
}

TEST(an_exchange_can_forbid_administration) {
    static const char *const messages[] = {
        "{\"inspect\": {\"entry\": []}}", "{\"reset\": {\"entry\": []}}",
        "{\"report\": {\"client_id\": \"c\", \"entry\": []}}", "{\"discovery\": {}}"};
    node *n = node_start(limits, NULL);
    doorman_json_exchange exchange = {.forbids_administration = true};
    for (size_t i = 0; i < COUNT(messages); i++) {
        const char *text = messages[i];
        doorman_status expected = i < 2 ? DOORMAN_NOT_FOUND : DOORMAN_OK;
        assert_int_equal(doorman_json_exchange_read(&exchange, NULL, text, strlen(text)), expected);
        assert_int_equal(doorman_json_exchange_decide(&exchange, n->server, n->now), expected);
        assert_int_equal(doorman_json_exchange_write(&exchange, 0), expected);
        static const char *const hints[] = {"as POST /v1/inspect with a token of the role read",
                                            "as POST /v1/reset with a token of the role support"};
        if (i < 2) assert_non_null(strstr(exchange.reply.text, hints[i]));
    }
    doorman_json_exchange_uninit(&exchange);
    node_stop(n);
}

/* ---- clients -------------------------------------------------------------------------------- */

/* Reads a response as a client does. The caller ends the reading. */
static doorman_status read_response(doorman__incoming *incoming, const char *text,
                                    doorman_error *error) {
    doorman__incoming_read(incoming, text, strlen(text), error);
    return incoming->reader.status;
}

static void assert_same_text(const char *a, const char *b) {
    assert_int_equal(a == NULL, b == NULL);
    if (a) assert_string_equal(a, b);
}

static void assert_same_permit(const doorman_permit *a, const doorman_permit *b) {
    assert_int_equal(a->granted, b->granted);
    assert_int_equal(a->warning, b->warning);
    assert_int_equal(a->wait, b->wait);
    assert_int_equal(a->item_count, b->item_count);
    for (size_t i = 0; i < a->item_count; i++) {
        assert_true(doorman__equal(a->items[i].granted, b->items[i].granted));
        assert_same_text(a->items[i].limit, b->items[i].limit);
        assert_int_equal(a->items[i].reset_after, b->items[i].reset_after);
        assert_true(b->items[i].remaining <= a->items[i].remaining);
        assert_true(b->items[i].remaining > a->items[i].remaining - 1e-5);
    }
    assert_int_equal(a->reservation_id, b->reservation_id);
    assert_int_equal(a->settle_within, b->settle_within);
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->item_index, b->item_index);
    assert_same_text(a->limit, b->limit);
    assert_int_equal(a->has_retry_after, b->has_retry_after);
    assert_int_equal(a->retry_after, b->retry_after);
    assert_int_equal(a->valid_for, b->valid_for);
    assert_int_equal(a->detail_count, b->detail_count);
    for (size_t i = 0; i < a->detail_count; i++) {
        const doorman_permit_detail *x = &a->details[i], *y = &b->details[i];
        assert_int_equal(x->item_index, y->item_index);
        assert_string_equal(x->limit, y->limit);
        assert_true(doorman__equal(x->most, y->most));
        assert_true(y->remaining <= x->remaining && y->remaining > x->remaining - 1e-5);
        assert_true(y->used >= x->used && y->used < x->used + 1e-5);
        assert_int_equal(x->reset_after, y->reset_after);
        assert_int_equal(x->window, y->window);
        assert_int_equal(x->tier, y->tier);
        assert_int_equal(x->shadow, y->shadow);
        assert_int_equal(x->refused, y->refused);
        assert_int_equal(x->moved_up, y->moved_up);
        assert_int_equal(x->refusals, y->refusals);
    }
}

static const char rich[] =
    "{\"resources\": [{\"identifier_glob\": \"r*\", \"limits\": ["
    "{\"name\": \"b\\\"ucket\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.37, \"size\": 7, "
    "\"max_debt\": 9, \"warn_at\": 0.5, \"refunds\": true, "
    "\"ban\": {\"refusals\": 3, \"window\": 9, \"duration\": 7}},"
    "{\"name\": \"w\", \"per\": \"resource\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 40.3, "
    "\"window\": 11},"
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 9, \"window\": 3, \"active\": "
    "3}, {\"limit\": 11, \"window\": 5, \"active\": 9, \"cooldown\": 20}]},"
    "{\"name\": \"s\", \"per\": \"template\", \"shadow\": true, \"kind\": \"FIXED_WINDOW\", "
    "\"limit\": 3, \"window\": \"minute\"}]}]}";

static double whole_below(size_t bound) { return (double)random_below(bound); }

/* A random request of one method. */
typedef struct random_request {
    doorman_request request;
    doorman_permit_request permits[4];
    doorman_permit_item items[4][3];
    doorman_permit_entry entries[4];
    doorman_settle_request settles[4];
} random_request;

/* Makes the i-th settle of a message, out of the items of the i-th permit. */
static void make_settle(random_request *r, size_t i) {
    const bool by_id = random_below(4) == 0;
    for (size_t j = 0; j < r->permits[i].item_count; j++) {
        r->items[i][j].has_min = false;
        r->items[i][j].min = 0;
    }
    r->settles[i] = (doorman_settle_request){.id = by_id ? 1 + random_below(9) : 0,
                                             .request_id = by_id ? 0 : 1 + random_below(9),
                                             .items = r->items[i],
                                             .item_count = r->permits[i].item_count};
}

static void make_request(random_request *r) {
    static const char *const ids[] = {"r1", "r2", "none", "\"quoted\""};
    static const char *const keys[] = {"", "a", "b\n\x7f\xc2\x85", NULL};
    const doorman_method method = (doorman_method)(DOORMAN_ACQUIRE + random_below(4));
    *r = (random_request){.request = {.method = random_below(5) ? method : DOORMAN_SETTLE,
                                      .holder_id = "c",
                                      .permits = r->permits,
                                      .entries = r->entries,
                                      .settles = r->settles}};
    size_t count = random_below(5);
    bool acquires = r->request.method == DOORMAN_ACQUIRE;
    if (acquires) r->request.permit_count = count;
    bool settles = r->request.method == DOORMAN_SETTLE;
    if (settles) r->request.settle_count = count;
    if (!acquires && !settles) r->request.entry_count = count;
    for (size_t i = 0; i < count; i++) {
        r->permits[i] =
            (doorman_permit_request){.items = r->items[i],
                                     .item_count = 1 + random_below(3),
                                     .max_wait = (doorman_time)random_below(9) * SECOND / 7,
                                     .detail = random_below(2)};
        if (random_below(2)) r->permits[i].request_id = 1 + random_below(9);
        if (r->permits[i].request_id)
            r->permits[i].settle_within = (doorman_time)random_below(9) * SECOND / 7;
        for (size_t j = 0; j < r->permits[i].item_count; j++) {
            double cost = random_below(3) ? whole_below(6) : whole_below(1000) / 61;
            r->items[i][j] = (doorman_permit_item){
                ids[random_below(4)], keys[random_below(4)], cost, random_below(2), 0, NULL, 0};
            if (r->items[i][j].has_min) r->items[i][j].min = cost / 3;
        }
        if (settles) make_settle(r, i);
        doorman_permit_entry *entry = &r->entries[i];
        *entry = (doorman_permit_entry){.resource_id = ids[random_below(4)],
                                        .key = keys[random_below(4)]};
        bool reports = r->request.method == DOORMAN_REPORT;
        if (reports) entry->cost = whole_below(999) / 61 - 5;
        if (reports) entry->request_id = random_below(2) ? 1 + random_below(9) : 0;
        bool administers = r->request.method > DOORMAN_REPORT;
        if (administers) entry->resource_id = ids[random_below(2)]; /* these have limits */
        if (administers && !random_below(3)) entry->limit = "w";
        if (r->request.method == DOORMAN_RESET && !entry->limit && !random_below(3)) {
            entry->sets_ban = true;
            entry->ban = (doorman_time)random_below(3) * SECOND / 3;
        }
    }
}

static void assert_same_settlements(const doorman_response *sent, const doorman_response *got) {
    assert_int_equal(sent->settlement_count, got->settlement_count);
    for (size_t i = 0; i < got->settlement_count; i++) {
        const doorman_settlement *a = &sent->settlements[i], *b = &got->settlements[i];
        assert_int_equal(a->reason, b->reason);
        assert_int_equal(a->id, b->id);
        assert_int_equal(a->late, b->late);
        assert_int_equal(a->unknown, b->unknown);
        assert_int_equal(a->item_count, b->item_count);
        for (size_t j = 0; j < a->item_count; j++) {
            assert_true(doorman__equal(a->items[j].returned, b->items[j].returned));
            assert_true(doorman__equal(a->items[j].charged, b->items[j].charged));
        }
    }
}

/* Sends a request through the exchange. Compares the response with the reply as a client reads
 * it. */
static void check_round_trip(node *n, doorman_json_exchange *exchange, const random_request *r) {
    doorman_buffer text = {0};
    doorman__incoming incoming;
    doorman_error error = {0};
    assert_int_equal(doorman_json_request(&r->request, &text), DOORMAN_OK);
    doorman_status status = doorman_json_exchange_read(exchange, NULL, text.text, text.bytes);
    if (status != DOORMAN_OK) fail_msg("%s\n%s", text.text, exchange->error.text);
    status = doorman_json_exchange_decide(exchange, n->server, n->now);
    if (status != DOORMAN_OK) fail_msg("%s\n%s", text.text, exchange->error.text);
    const doorman_response *sent = &exchange->response, *got = &incoming.response;
    assert_int_equal(exchange->request.permit_count, r->request.permit_count);
    assert_int_equal(exchange->request.entry_count, r->request.entry_count);
    assert_int_equal(doorman_json_exchange_write(exchange, 0), DOORMAN_OK);
    status = read_response(&incoming, exchange->reply.text, &error);
    if (status != DOORMAN_OK) fail_msg("%s\n%s", exchange->reply.text, error.text);
    assert_int_equal(got->method, r->request.method);
    assert_true(got->is_master);
    assert_int_equal(got->permit_count, r->request.permit_count);
    assert_int_equal(got->result_count, r->request.entry_count);
    assert_same_settlements(sent, got);
    for (size_t i = 0; i < got->permit_count; i++) {
        assert_same_permit(&sent->permits[i], &got->permits[i]);
    }
    for (size_t i = 0; i < got->result_count; i++) {
        doorman_permit_result expected = sent->results[i];
        bool inspects = got->method == DOORMAN_INSPECT;
        if (inspects) expected.state.items = NULL, expected.state.item_count = 0;
        expected.state.valid_for = 0; /* an inspection does not have it */
        if (!inspects) expected.state = (doorman_permit){.granted = !expected.reason};
        assert_true(doorman__equal(expected.charged, got->results[i].charged));
        assert_int_equal(expected.count, got->results[i].count);
        assert_int_equal(expected.reason, got->results[i].reason);
        assert_same_permit(&expected.state, &got->results[i].state);
    }
    (void)doorman__read_end(&incoming.reader);
    doorman_buffer_uninit(&text);
}

/* What a client writes is what the server reads, and the other way round. */
TEST(random_messages_survive_the_wire) {
    node *n = node_start(rich, NULL);
    doorman_json_exchange exchange = {.status = DOORMAN_OK};
    for (int i = 0; i < 3000; i++) {
        random_request r;
        make_request(&r);
        n->now += (doorman_time)(random_below(1000) * 1000003);
        check_round_trip(n, &exchange, &r);
    }
    doorman_json_exchange_uninit(&exchange);
    node_stop(n);
}

/* A newer server may have more reasons and decisions. */
TEST(a_client_survives_what_it_does_not_know) {
    static const char text[] =
        "{\"acquire\": {\"permit\": [{\"decision\": \"REFUSED\", \"reason\": \"MOON_PHASE\", "
        "\"retry_after\": 2, \"new\": {}}, {\"decision\": \"PENDING\"}, {\"decision\": "
        "\"GRANTED\", \"item\": [{\"granted\": 1, \"remaining\": 8e15, \"colour\": 1}]}]}}";
    doorman__incoming incoming;
    doorman_error error = {0};
    assert_int_equal(read_response(&incoming, text, &error), DOORMAN_OK);
    const doorman_permit *permits = incoming.response.permits;
    assert_int_equal(incoming.response.permit_count, 3);
    assert_false(permits[0].granted);
    assert_int_equal(permits[0].reason, DOORMAN_NO_REASON);
    assert_int_equal(permits[0].retry_after, 2 * SECOND);
    assert_false(permits[1].granted || permits[1].has_retry_after);
    assert_true(permits[2].granted && permits[2].item_count == 1);
    (void)doorman__read_end(&incoming.reader);
}

TEST(wrong_responses_are_refused) {
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {"{\"acquire\": {}}", "acquire.permit: is missing"},
        {"{\"acquire\": {\"permit\": 1}}", "acquire.permit: must be a list"},
        {"{\"acquire\": {\"permit\": [1]}}", "acquire.permit[0]: must be an object"},
        {"{\"acquire\": {\"permit\": [{}]}}", "acquire.permit[0].decision: is missing"},
        {"{\"acquire\": {\"permit\": [{\"decision\": \"GRANTED\", \"item\": [{}]}]}}",
         "acquire.permit[0].item[0].granted: is missing"},
        {"{\"acquire\": {\"permit\": [{\"decision\": \"GRANTED\", \"item\": [{\"granted\": -1}]}]"
         "}}",
         "acquire.permit[0].item[0].granted: must be"},
        {"{\"acquire\": {\"permit\": [{\"decision\": \"GRANTED\", \"wait\": -1}]}}",
         "acquire.permit[0].wait: must be"},
        {"{\"acquire\": {\"permit\": [{\"decision\": \"REFUSED\", \"item\": [{\"limits\": "
         "[{}]}]}]}}",
         "acquire.permit[0].item[0].limits[0].name: is missing"},
        {"{\"report\": {}}", "report.entry: is missing"},
        {"{\"report\": {\"entry\": [{\"charged\": \"1\"}]}}", "report.entry[0].charged: must be a"},
        {"{\"error\": {\"code\": \"INVALID_ARGUMENT\", \"message\": \"acquire.permit: x\"}}",
         "INVALID_ARGUMENT: acquire.permit: x"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        doorman__incoming incoming;
        doorman_error error = {0};
        assert_int_equal(read_response(&incoming, wrong[i].text, &error), DOORMAN_INVALID_ARGUMENT);
        if (strncmp(error.text, wrong[i].error, strlen(wrong[i].error)) != 0) {
            fail_msg("%s: %s", wrong[i].text, error.text);
        }
        (void)doorman__read_end(&incoming.reader);
    }
}

/* The response of a node that is not master has no decisions. */
TEST(a_client_reads_the_mastership) {
    doorman__incoming incoming;
    doorman_error error = {0};
    assert_int_equal(read_response(&incoming,
                                   "{\"acquire\": {\"mastership\": {\"master_address\": \"x\"}}}",
                                   &error),
                     DOORMAN_OK);
    assert_false(incoming.response.is_master);
    assert_string_equal(incoming.response.master_address, "x");
    assert_int_equal(incoming.response.permit_count, 0);
    (void)doorman__read_end(&incoming.reader);
}

/* Amounts for people are rounded so that nobody believes that more is left than there is. */
TEST(remaining_is_rounded_down_and_used_up) {
    for (int i = 0; i < 100000; i++) {
        double amount = pow(10, whole_below(17)) * (whole_below(1000000) + 1) / 999983;
        double down = doorman__six_decimals(amount), up = doorman__six_decimals_up(amount);
        assert_true(down <= amount && up >= amount);
        assert_true(amount < 1e9 ? down > amount - 2e-6 : down > amount - 1.5);
        assert_true(amount < 1e9 ? up < amount + 3e-6 : up < amount + 1.5);
    }
    assert_true(doorman__equal(doorman__six_decimals(-1), 0));
    assert_true(doorman__equal(doorman__six_decimals(4), 4));
    assert_true(doorman__equal(doorman__six_decimals_up(4), 4));
}
