/* Messages on permits: a server that answers them, and their JSON. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define UNUSED (void)state

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
    doorman_error error = {""};
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
static void only_a_master_decides(void **state) {
    UNUSED;
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
static void a_new_master_has_fresh_counters(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    assert_true(acquire(n, "login", "alice", 5).granted);
    assert_false(acquire(n, "login", "alice", 1).granted);
    become_master(n, false);
    become_master(n, true);
    assert_true(acquire(n, "login", "alice", 5).granted);
    n->now += 3600 * SECOND;
    become_master(n, false);
    become_master(n, true);
    doorman_permit permit = acquire(n, "slow", "a", 1); /* empty: it has gained nothing yet */
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
static void counters_end_with_the_time_of_the_mastership(void **state) {
    UNUSED;
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
static void windows_follow_the_epoch_of_the_server(void **state) {
    UNUSED;
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

static void an_epoch_that_steps_back_opens_no_new_window(void **state) {
    UNUSED;
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

/* P16: leases are learned, permits are not. */
static void a_server_that_learns_decides_on_permits(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    assert_true(doorman_server_learns_until(n->server, n->now) > n->now);
    assert_true(acquire(n, "login", "alice", 1).granted);
    node_stop(n);
}

/* PERMITS.md, section 2 */
static void a_template_without_limits_has_no_permits_and_without_capacity_no_leases(void **state) {
    UNUSED;
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
static void a_new_configuration_keeps_the_counters(void **state) {
    UNUSED;
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

/* G8 */
static void a_node_with_a_parent_may_have_limits_alone(void **state) {
    UNUSED;
    static const char *const parents[] = {"tcp://parent:1"};
    doorman_config *config = config_of(limits), *wrong = config_of(capacities);
    doorman_error error = {""};
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

static void a_node_without_a_configuration_refuses_all_permits(void **state) {
    UNUSED;
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

/* P14: the work of the server includes that of the permits. */
static void the_loop_of_the_server_removes_fresh_counters(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    doorman_upstream *upstream = doorman_server_upstream(n->server);
    assert_true(acquire(n, "slow", "a", 1).granted);
    doorman_permits_info info;
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

/* P1 holds for each permit by itself. The parts of the response do not move. */
static void the_permits_of_a_message_are_decided_in_their_order(void **state) {
    UNUSED;
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

/* An error answers the whole message, and nothing of it has taken effect. */
static void a_wrong_message_charges_nothing(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    char long_key[258];
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[257] = '\0';
    const struct {
        doorman_permit_item item;
        double max_wait;
        bool equal;
        const char *text;
    } wrong[] = {
        {{.resource_id = "", .cost = 1}, 0, false, "item[0].resource_id: must be 1 to 256 bytes"},
        {{.resource_id = NULL, .cost = 1}, 0, false, "item[0].resource_id: must be 1 to 256 bytes"},
        {{.resource_id = "a\n", .cost = 1}, 0, false, "item[0].resource_id: must be 1 to 256"},
        {{.resource_id = "a", .key = long_key, .cost = 1}, 0, false, "item[0].key: must be 0 to"},
        {{.resource_id = "a", .key = "\xff", .cost = 1}, 0, false, "item[0].key: must be 0 to 256"},
        {{.resource_id = "a", .cost = NAN}, 0, false, "item[0].cost: must be"},
        {{.resource_id = "a", .cost = -1}, 0, false, "item[0].cost: must be"},
        {{.resource_id = "a", .cost = 1.1e15}, 0, false, "item[0].cost: must be"},
        {{.resource_id = "a", .cost = 1, .has_min = true, .min = 2}, 0, false, "item[0].min: must"},
        {{.resource_id = "a", .cost = 1, .has_min = true, .min = -1}, 0, false, "item[0].min: mu"},
        {{.resource_id = "a", .cost = 1, .has_min = true, .min = NAN}, 0, false, "item[0].min: mu"},
        {{.resource_id = "a", .cost = 1}, -1, false, "max_wait: must be"},
        {{.resource_id = "a", .cost = 1}, 2e17, false, "max_wait: must be"},
        {{.resource_id = "a", .cost = 0.5}, 0, true, "equal: no whole number"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const doorman_permit_item good = {.resource_id = "login", .key = "alice", .cost = 5};
        const doorman_permit_request permits[] = {{.items = &good, .item_count = 1},
                                                  {.items = &wrong[i].item,
                                                   .item_count = 1,
                                                   .max_wait = (doorman_time)wrong[i].max_wait,
                                                   .equal = wrong[i].equal}};
        char text[80];
        snprintf(text, sizeof text, "permit[1].%s", wrong[i].text);
        assert_int_equal(acquire_all(n, permits, 2), DOORMAN_INVALID_ARGUMENT);
        if (strstr(n->error.text, text) != n->error.text) fail_msg("%zu: %s", i, n->error.text);
    }
    assert_true(acquire(n, "login", "alice", 5).granted);
    node_stop(n);
}

/* P19 */
static void bounds_of_a_message_are_refused_by_name(void **state) {
    UNUSED;
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
    assert_string_equal(n->error.text, "permit: at most 5 items in a message, not 6");
    permits[1].item_count = 4;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "permit[1].item: at most 3, not 4");
    permits[1].item_count = 0;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(n->error.text, "permit[1].item: must be a list of items");
    permits[1].item_count = 1;
    permits[0].detail = permits[1].detail = true;
    assert_int_equal(acquire_all(n, permits, 2), DOORMAN_OK);
    permits[2].detail = true;
    assert_int_equal(acquire_all(n, permits, 3), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "permit: at most 2 permits with detail in a message, not 3");
    doorman_request request = {
        .method = DOORMAN_REPORT, .holder_id = "c", .entries = entries, .entry_count = 6};
    assert_int_equal(send_request(n, &request), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "entry: at most 5, not 6");
    request.method = DOORMAN_INSPECT, request.entry_count = 3;
    assert_int_equal(send_request(n, &request), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(n->error.text, "entry: at most 2, not 3");
    assert_true(acquire(n, "login", NULL, 5).granted); /* nothing was charged */
    node_stop(n);
}

static void only_administration_needs_no_client_id(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    static const doorman_method methods[] = {DOORMAN_ACQUIRE, DOORMAN_REPORT, DOORMAN_INSPECT,
                                             DOORMAN_RESET};
    for (size_t i = 0; i < COUNT(methods); i++) {
        doorman_request request = {.method = methods[i]};
        doorman_status expected = i < 2 ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK;
        assert_int_equal(send_request(n, &request), expected);
        if (i < 2) assert_string_equal(n->error.text, "client_id: " DOORMAN__ID_RULE);
        request.holder_id = "";
        assert_int_equal(send_request(n, &request), DOORMAN_INVALID_ARGUMENT);
        request.holder_id = "c", request.is_server = true;
        assert_int_equal(send_request(n, &request), DOORMAN_INVALID_ARGUMENT);
    }
    node_stop(n);
}

/* ---- reports, inspections, resets ------------------------------------------------------------ */

/* P13 */
static void reports_charge_what_an_action_has_cost(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    const doorman_permit_entry six = {.resource_id = "login", .key = "alice", .cost = 6};
    const doorman_permit_entry refund = {.resource_id = "login", .key = "alice", .cost = -1};
    const doorman_permit_entry one = {.resource_id = "few", .key = "a", .cost = 1};
    const doorman_permit_entry other = {.resource_id = "few", .key = "b", .cost = 1};
    assert_true(fabs(result_of(n, DOORMAN_REPORT, six).charged - 5) < 1e-9); /* max_cost */
    assert_false(acquire(n, "login", "alice", 1).granted);
    assert_true(fabs(result_of(n, DOORMAN_REPORT, refund).charged) < 1e-9); /* `all` has none */
    assert_true(fabs(result_of(n, DOORMAN_REPORT, one).charged - 1) < 1e-9);
    assert_true(fabs(result_of(n, DOORMAN_REPORT, other).charged) < 1e-9); /* max_keys */
    node_stop(n);
}

static void inspections_change_nothing(void **state) {
    UNUSED;
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
    named.limit = "none";
    assert_int_equal(result_of(n, DOORMAN_INSPECT, named).state.detail_count, 0);
    named.resource_id = "open";
    assert_int_equal(result_of(n, DOORMAN_INSPECT, named).state.detail_count, 0);
    node_stop(n);
}

/* P20 */
static void resets_remove_counters_and_set_and_end_bans(void **state) {
    UNUSED;
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

static void bans_have_a_bound_too(void **state) {
    UNUSED;
    const doorman_permits_options one = {.counter_max = 1};
    node *n = node_start(limits, &one);
    doorman_permit_entry entry = {
        .resource_id = "login", .key = "a", .sets_ban = true, .ban = SECOND};
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    entry.key = "b";
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 0);
    entry.key = "a", entry.ban = 9 * SECOND;
    assert_int_equal(result_of(n, DOORMAN_RESET, entry).count, 1);
    assert_int_equal(acquire(n, "login", "a", 1).retry_after, 9 * SECOND);
    node_stop(n);
}

static void wrong_entries_are_refused_with_their_path(void **state) {
    UNUSED;
    node *n = node_start(limits, NULL);
    const struct {
        doorman_method method;
        doorman_permit_entry entry;
        const char *text;
    } wrong[] = {
        {DOORMAN_REPORT, {.resource_id = ""}, "entry[0].resource_id: must be 1 to 256"},
        {DOORMAN_RESET, {.resource_id = "a", .key = "\xc0"}, "entry[0].key: must be 0 to 256"},
        {DOORMAN_REPORT, {.resource_id = "a", .cost = INFINITY}, "entry[0].cost: must be a finite"},
        {DOORMAN_REPORT, {.resource_id = "a", .cost = -1.1e15}, "entry[0].cost: must be a finite"},
        {DOORMAN_RESET, {.resource_id = "a", .sets_ban = true, .ban = -1}, "entry[0].ban: must be"},
        {DOORMAN_RESET,
         {.resource_id = "a", .sets_ban = true, .limit = "all"},
         "entry[0].limit: must be absent"},
        {DOORMAN_REPORT, {.resource_id = "a", .sets_ban = true}, "entry[0].ban: only in a reset"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(send_entry(n, wrong[i].method, wrong[i].entry), DOORMAN_INVALID_ARGUMENT);
        if (strstr(n->error.text, wrong[i].text) != n->error.text) fail_msg("%s", n->error.text);
    }
    node_stop(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_master_decides),
        cmocka_unit_test(a_new_master_has_fresh_counters),
        cmocka_unit_test(counters_end_with_the_time_of_the_mastership),
        cmocka_unit_test(windows_follow_the_epoch_of_the_server),
        cmocka_unit_test(an_epoch_that_steps_back_opens_no_new_window),
        cmocka_unit_test(a_server_that_learns_decides_on_permits),
        cmocka_unit_test(a_template_without_limits_has_no_permits_and_without_capacity_no_leases),
        cmocka_unit_test(a_new_configuration_keeps_the_counters),
        cmocka_unit_test(a_node_with_a_parent_may_have_limits_alone),
        cmocka_unit_test(a_node_without_a_configuration_refuses_all_permits),
        cmocka_unit_test(the_loop_of_the_server_removes_fresh_counters),
        cmocka_unit_test(the_permits_of_a_message_are_decided_in_their_order),
        cmocka_unit_test(a_wrong_message_charges_nothing),
        cmocka_unit_test(bounds_of_a_message_are_refused_by_name),
        cmocka_unit_test(only_administration_needs_no_client_id),
        cmocka_unit_test(reports_charge_what_an_action_has_cost),
        cmocka_unit_test(inspections_change_nothing),
        cmocka_unit_test(resets_remove_counters_and_set_and_end_bans),
        cmocka_unit_test(bans_have_a_bound_too),
        cmocka_unit_test(wrong_entries_are_refused_with_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
