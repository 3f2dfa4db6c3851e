/* Tests every public function with NULL for each argument that must not be NULL. The last test
 * checks that this file names each public function that takes pointers. Errors name arguments and
 * fields as the caller knows them (C10). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman_permits.h"
#include "../../doorman_throttle.h"

#include "../test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define REFUSED(call) assert_int_equal((call), DOORMAN_INVALID_ARGUMENT)

/* The call is refused, and its error begins with the name of the argument. */
#define NAMED(name, call)                                                                          \
    do {                                                                                           \
        doorman_error error = {0};                                                                 \
        REFUSED(call);                                                                             \
        if (strncmp(error.text, name, sizeof name - 1) != 0 || !error.path_bytes)                  \
            fail_msg("line %d: \"%s\" does not begin with \"%s\"", __LINE__, error.text, name);    \
    } while (0)

/* ---- valid objects -------------------------------------------------------------------------- */

static const doorman_permit_limit hourly = {
    .name = "hourly",
    .kind = DOORMAN_FIXED_WINDOW,
    .figures = {.limit = 10, .has_limit = true, .window = DOORMAN_SECOND}};
static const doorman_template everything = {.identifier_glob = "*",
                                            .capacity = 100,
                                            .has_limits = true,
                                            .limits = &hourly,
                                            .limit_count = 1};
static const doorman_config_options config_options = {.templates = &everything,
                                                      .template_count = 1};
static const char *const addresses[] = {"tcp://127.0.0.1:1"};
static const doorman_client_options client_options = {
    .client_id = "client", .addresses = addresses, .address_count = 1, .seed = 1};
static const doorman_resource_options resource_options = {.resource_id = "db", .wants = 1};
static const doorman_permit_item item = {.resource_id = "db", .cost = 1};
static const doorman_permit_request permit_request = {.items = &item, .item_count = 1};
static const doorman_hold_request hold_request = {.client_id = "client", .id = 1, .request_id = 1};
static const doorman_limit_options limit_options = {
    .kind = DOORMAN_TOKEN_BUCKET, .rate = 1, .size = 1};

static doorman_config *config_create(void) {
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &config_options, NULL), DOORMAN_OK);
    return config;
}

/* ---- configurations, shares, limiters, and the throttle -------------------------------------- */

TEST(configurations_and_shares_refuse_null) {
    doorman_config *config = config_create(), *out = NULL;
    doorman_config_options read;
    doorman_terms terms[DOORMAN_TERMS_MAX];
    double amount;
    NAMED("out: ", doorman_config_create(NULL, &config_options, &error));
    NAMED("options: ", doorman_config_create(&out, NULL, &error));
    NAMED("config: ", doorman_config_fits(NULL, false, &error));
    doorman_config_read(config, NULL);
    doorman_config_read(NULL, &read);
    assert_int_equal(read.template_count, 0);
    assert_null(doorman_config_find(NULL, "a"));
    assert_null(doorman_config_find(config, NULL));
    assert_null(doorman_config_descriptors(NULL));
    doorman_descriptor_item resolved;
    REFUSED(doorman_descriptors_resolve(NULL, NULL, NULL, 0, &resolved));
    REFUSED(doorman_descriptors_resolve(NULL, "d", NULL, 1, &resolved));
    REFUSED(doorman_descriptors_resolve(NULL, "d", NULL, 0, NULL));
    NAMED("demands: ", doorman_shares(NULL, 1, NULL, 1, &amount, NULL, NULL, &error));
    NAMED("terms_count: ", doorman_shares(NULL, 1, NULL, 0, NULL, terms, NULL, &error));
    doorman_config_destroy(NULL);
    doorman_config_destroy(config);
}

/* A count without its array is refused, and so is an element that is NULL. */
TEST(arrays_of_a_configuration_must_be_there) {
    static const char *const none[] = {NULL};
    static const doorman_override no_keys = {.key_count = 1}, null_key = {none, 1, {.limit = 1}};
    static const doorman_plan no_name = {.name = NULL, .figures = {.limit = 1, .has_limit = true}};
    doorman_permit_limit limits[10];
    doorman_template templates[14];
    doorman_config_options options[3] = {config_options, config_options, config_options};
    size_t count = 0;
    for (size_t i = 0; i < COUNT(limits); i++) limits[i] = hourly;
    for (size_t i = 0; i < COUNT(templates); i++) templates[i] = everything;
    limits[count++].name = NULL;
    limits[count++].key_count = 1;
    limits[count].keys = none, limits[count++].key_count = 1;
    limits[count++].override_count = 1;
    limits[count].overrides = &no_keys, limits[count++].override_count = 1;
    limits[count].overrides = &null_key, limits[count++].override_count = 1;
    limits[count++].plan_count = 1;
    limits[count].plans = &no_name, limits[count++].plan_count = 1;
    limits[count].kind = DOORMAN_TIERS, limits[count].figures = (doorman_figures){.tier_count = 1};
    for (size_t i = 0; i <= count; i++) templates[i].limits = &limits[i];
    templates[count + 1].limits = NULL;
    templates[count + 2].identifier_glob = NULL;
    for (size_t i = 0; i < count + 3; i++) {
        const doorman_config_options one = {.templates = &templates[i], .template_count = 1};
        doorman_config *out = NULL;
        if (doorman_config_create(&out, &one, NULL) != DOORMAN_INVALID_ARGUMENT)
            fail_msg("template %zu is accepted", i);
    }
    options[0].templates = NULL;
    options[1].shadow_count = 1;
    options[2].shadow = none, options[2].shadow_count = 1;
    for (size_t i = 0; i < COUNT(options); i++) {
        doorman_config *out = NULL;
        REFUSED(doorman_config_create(&out, &options[i], NULL));
    }
}

TEST(limiters_refuse_null) {
    doorman_limit limit;
    doorman_limiter limiter;
    doorman_limiter_map *map = NULL;
    doorman_result result;
    const doorman_limiter_map_options map_options = {.limit = limit_options, .seed = {1, 2}};
    NAMED("limit: ", doorman_limit_init(NULL, &limit_options, &error));
    NAMED("options: ", doorman_limit_init(&limit, NULL, &error));
    assert_int_equal(doorman_limit_init(&limit, &limit_options, NULL), DOORMAN_OK);
    REFUSED(doorman_limiter_init(NULL, &limit, NULL, 0));
    REFUSED(doorman_limiter_init(&limiter, NULL, NULL, 0));
    assert_int_equal(doorman_limiter_init(&limiter, &limit, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(NULL, &limit, 1, &result, 0), DOORMAN_IMPOSSIBLE);
    assert_int_equal(result.retry_after, DOORMAN_NEVER);
    assert_int_equal(doorman_limiter_try(&limiter, NULL, 1, NULL, 0), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_limiter_delay(NULL, &limit, 1, 0), DOORMAN_NEVER);
    assert_int_equal(doorman_limiter_delay(&limiter, NULL, 1, 0), DOORMAN_NEVER);
    REFUSED(doorman_limiter_release(NULL, &limit, 1));
    REFUSED(doorman_limiter_release(&limiter, NULL, 1));
    NAMED("out: ", doorman_limiter_map_create(NULL, &map_options, &error));
    NAMED("options: ", doorman_limiter_map_create(&map, NULL, &error));
    assert_int_equal(doorman_limiter_map_create(&map, &map_options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_limiter_map_try(NULL, "a", 1, 1, NULL, 0), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_limiter_map_try(map, NULL, 1, 1, &result, 0), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_limiter_map_try(map, NULL, 0, 1, NULL, 0), DOORMAN_ALLOWED);
    REFUSED(doorman_limiter_map_release(NULL, "a", 1, 1));
    REFUSED(doorman_limiter_map_release(map, NULL, 1, 1));
    assert_false(doorman_limiter_map_reset(NULL, "a", 1));
    assert_false(doorman_limiter_map_reset(map, NULL, 1));
    assert_int_equal(doorman_limiter_map_sweep(NULL, 1, 0), 0);
    doorman_limiter_map_destroy(NULL);
    doorman_limiter_map_destroy(map);
}

TEST(a_throttle_refuses_null) {
    const doorman_throttle_options options = {.queue_cost = 10};
    const doorman_throttle_request request = {.id = 1};
    doorman_throttle *throttle = NULL;
    doorman_throttle_refusal refusal;
    doorman_throttle_counters counters;
    doorman_overload_report report;
    uint64_t id;
    NAMED("out: ", doorman_throttle_create(NULL, &options, &error));
    NAMED("options: ", doorman_throttle_create(&throttle, NULL, &error));
    assert_int_equal(doorman_throttle_create(&throttle, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_throttle_offer(NULL, &request, NULL, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(doorman_throttle_offer(throttle, NULL, &refusal, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(refusal.reason, DOORMAN_THROTTLE_BAD_REQUEST);
    assert_int_equal(doorman_throttle_offer(throttle, &request, NULL, 0), DOORMAN_THROTTLE_TAKEN);
    assert_false(doorman_throttle_next(NULL, &id, 0) || doorman_throttle_next(throttle, NULL, 0));
    assert_false(doorman_throttle_finish(NULL, 1, 1, 0));
    doorman_throttle_update(NULL, 0);
    assert_int_equal(doorman_throttle_due(NULL), DOORMAN_NEVER);
    assert_false(doorman_throttle_next_refused(NULL, &refusal));
    assert_false(doorman_throttle_next_refused(throttle, NULL));
    doorman_throttle_read(throttle, NULL);
    doorman_throttle_read(NULL, &counters);
    assert_int_equal(counters.offered, 0);
    doorman_throttle_report(throttle, 0, NULL, 0);
    doorman_throttle_report(NULL, 0, &report, 0);
    assert_int_equal(report.interval, 0);
    doorman_retry_budget_init(NULL);
    doorman_retry_budget_first_try(NULL);
    assert_false(doorman_retry_budget_retry(NULL));
    doorman_throttle_destroy(NULL);
    doorman_throttle_destroy(throttle);
}

static bool write_nothing(void *context, const void *bytes, size_t count) {
    return !context && bytes && count;
}

/* ---- servers, elections and permits ---------------------------------------------------------- */

TEST(a_server_without_its_options_is_refused) {
    doorman_config *config = config_create();
    doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    const char *const none[] = {NULL};
    doorman_server *server = NULL;
    NAMED("out: ", doorman_server_create(NULL, &options, &error, 0));
    NAMED("options: ", doorman_server_create(&server, NULL, &error, 0));
    options.node = NULL;
    NAMED("node: ", doorman_server_create(&server, &options, &error, 0));
    options.node = "root", options.config = NULL;
    NAMED("config: ", doorman_server_create(&server, &options, &error, 0));
    options.parent_count = 1;
    NAMED("addresses: ", doorman_server_create(&server, &options, &error, 0));
    options.parents = none;
    NAMED("addresses[0]: ", doorman_server_create(&server, &options, &error, 0));
    assert_null(server);
    doorman_config_destroy(config);
}

TEST(a_server_refuses_null) {
    doorman_config *config = config_create();
    const doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    doorman_server *server = NULL;
    doorman_response response;
    doorman_cursor cursor = {0, false};
    doorman_server_resource resource;
    doorman_server_lease lease;
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    REFUSED(doorman_server_configure(NULL, config, 0));
    REFUSED(doorman_server_configure(server, NULL, 0));
    REFUSED(doorman_server_set_master(NULL, &(doorman_mastership){.until = 1}, 0));
    REFUSED(doorman_server_set_master(server, NULL, 0));
    REFUSED(doorman_server_hand_over(NULL, write_nothing, NULL, 0));
    REFUSED(doorman_server_hand_over(server, NULL, NULL, 0));
    NAMED("server: ", doorman_server_take_over(NULL, (const unsigned char *)"", 0, &error, 0));
    NAMED("bytes: ", doorman_server_take_over(server, NULL, 0, &error, 0));
    doorman_server_set_epoch(NULL, 0, 0);
    assert_null(doorman_server_permits(NULL));
    assert_null(doorman_server_upstream(NULL));
    NAMED("server: ", doorman_server_handle(NULL, &request, &response, &error, 0));
    NAMED("request: ", doorman_server_handle(server, NULL, &response, &error, 0));
    NAMED("response: ", doorman_server_handle(server, &request, NULL, &error, 0));
    assert_false(doorman_server_next_resource(NULL, &cursor, &resource, 0));
    assert_false(doorman_server_next_resource(server, NULL, &resource, 0));
    assert_false(doorman_server_next_resource(server, &cursor, NULL, 0));
    assert_false(doorman_server_next_lease(NULL, "db", &cursor, &lease, 0));
    assert_false(doorman_server_next_lease(server, NULL, &cursor, &lease, 0));
    assert_false(doorman_server_next_lease(server, "db", NULL, &lease, 0));
    assert_false(doorman_server_next_lease(server, "db", &cursor, NULL, 0));
    assert_false(doorman_server_find(NULL, "db", &resource, 0));
    assert_false(doorman_server_find(server, NULL, &resource, 0));
    assert_false(doorman_server_find(server, "db", NULL, 0));
    assert_int_equal(doorman_server_learns_until(NULL, 0), 0);
    assert_int_equal(doorman_server_lease_count(NULL, "a", false), 0);
    assert_int_equal(doorman_server_lease_count(server, NULL, false), 0);
    doorman_server_destroy(NULL);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* Requests that say how many elements a list has, and lack the list or a field of an element. */
static const doorman_capacity_request bare_items[] = {{.wants_count = 1},
                                                      {.resource_id = "db"},
                                                      {.resource_id = "db", .wants_count = 1},
                                                      {.resource_id = "db", .has = {.id = 1}}};
static const doorman_permit_item bare_permit_item = {.cost = 1};
static const doorman_permit_request bare_permits[] = {
    {.item_count = 1}, {.items = &bare_permit_item, .item_count = 1}};
static const doorman_permit_entry bare_entry = {.cost = 1};
static const doorman_hold_request bare_holds[] = {{.id = 1, .amount_count = 1},
                                                  {.id = 1, .item_count = 1}};
static const doorman_settle_request bare_settles[] = {
    {.id = 1, .item_count = 1}, {.id = 1, .items = &bare_permit_item, .item_count = 1}};
static const char *const bare_path[] = {NULL};
static const doorman_request bare_requests[] = {
    {.method = DOORMAN_GET_CAPACITY, .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_GET_CAPACITY, .items = &bare_items[1], .item_count = 1},
    {.method = DOORMAN_GET_CAPACITY, .items = &bare_items[0], .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_GET_CAPACITY, .items = &bare_items[1], .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_GET_CAPACITY, .items = &bare_items[2], .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_GET_CAPACITY, .items = &bare_items[3], .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_RELEASE_CAPACITY, .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_RELEASE_CAPACITY, .items = bare_items, .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_REPORT_OVERLOAD, .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_REPORT_OVERLOAD, .items = bare_items, .item_count = 1, .holder_id = "a"},
    {.method = DOORMAN_GET_CAPACITY, .is_server = true, .holder_id = "a", .path_count = 1},
    {.method = DOORMAN_GET_CAPACITY,
     .is_server = true,
     .holder_id = "a",
     .path = bare_path,
     .path_count = 1},
    {.method = DOORMAN_ACQUIRE, .holder_id = "a", .permit_count = 1},
    {.method = DOORMAN_ACQUIRE, .holder_id = "a", .permits = &bare_permits[0], .permit_count = 1},
    {.method = DOORMAN_ACQUIRE, .holder_id = "a", .permits = &bare_permits[1], .permit_count = 1},
    {.method = DOORMAN_REPORT, .holder_id = "a", .entry_count = 1},
    {.method = DOORMAN_REPORT, .holder_id = "a", .entries = &bare_entry, .entry_count = 1},
    {.method = DOORMAN_INSPECT, .entry_count = 1},
    {.method = DOORMAN_INSPECT, .entries = &bare_entry, .entry_count = 1},
    {.method = DOORMAN_RESET, .entry_count = 1},
    {.method = DOORMAN_RESET, .entries = &bare_entry, .entry_count = 1},
    {.method = DOORMAN_RENEW, .holder_id = "a", .hold_count = 1},
    {.method = DOORMAN_RENEW, .holder_id = "a", .holds = &bare_holds[1], .hold_count = 1},
    {.method = DOORMAN_RELEASE, .holder_id = "a", .holds = &bare_holds[0], .hold_count = 1},
    {.method = DOORMAN_TRANSFER, .holder_id = "a", .holds = &bare_holds[0], .hold_count = 1},
    {.method = DOORMAN_SEIZE, .hold_count = 1, .holder_id = "a"},
    {.method = DOORMAN_SETTLE, .settle_count = 1, .holder_id = "a"},
    {.method = DOORMAN_SETTLE, .settles = &bare_settles[0], .settle_count = 1, .holder_id = "a"},
    {.method = DOORMAN_SETTLE, .settles = &bare_settles[1], .settle_count = 1, .holder_id = "a"}};

TEST(a_message_without_its_arrays_is_refused) {
    doorman_config *config = config_create();
    const doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    const doorman_mastership master = {.address = "here", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &master, 0), DOORMAN_OK);
    for (size_t i = 0; i < COUNT(bare_requests); i++) {
        doorman_response response;
        doorman_error error = {0};
        doorman_status status =
            doorman_server_handle(server, &bare_requests[i], &response, &error, DOORMAN_SECOND);
        if (status != DOORMAN_INVALID_ARGUMENT) fail_msg("request %zu: %s", i, error.text);
    }
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

TEST(an_election_refuses_null) {
    const doorman_election_options options = {.address = "here"};
    doorman_election election;
    doorman_election_call call;
    doorman_mastership mastership;
    NAMED("election: ", doorman_election_init(NULL, &options, &error, 0));
    NAMED("options: ", doorman_election_init(&election, NULL, &error, 0));
    NAMED("address: ",
          doorman_election_init(&election, &(doorman_election_options){.ttl = 0}, &error, 0));
    assert_int_equal(doorman_election_init(&election, &options, NULL, 0), DOORMAN_OK);
    assert_false(doorman_election_next(&election, NULL, 0));
    assert_false(doorman_election_next(NULL, &call, 0));
    assert_int_equal(call.due, DOORMAN_NEVER);
    REFUSED(doorman_election_answered(NULL, 1, NULL, 0));
    assert_int_equal(doorman_election_mastership(&election, NULL, 0), DOORMAN_NO_MASTER);
    assert_int_equal(doorman_election_mastership(NULL, &mastership, 0), DOORMAN_NO_MASTER);
    doorman_election_resign(NULL, 0);
    doorman_election_abstain(NULL, true, 0);
}

/* Creates permits. The caller destroys them before the configuration. */
static doorman_permits *permits_create(const doorman_config *config) {
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    doorman_permits *permits = NULL;
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    return permits;
}

TEST(permits_without_a_configuration_are_refused) {
    doorman_config *config = config_create();
    doorman_permits_options options = {.config = config, .seed = {1, 2}};
    doorman_permits *permits = NULL;
    NAMED("out: ", doorman_permits_create(NULL, &options, &error, 0));
    NAMED("options: ", doorman_permits_create(&permits, NULL, &error, 0));
    options.config = NULL;
    NAMED("config: ", doorman_permits_create(&permits, &options, &error, 0));
    assert_null(permits);
    permits = permits_create(config);
    REFUSED(doorman_permits_configure(NULL, config));
    REFUSED(doorman_permits_configure(permits, NULL));
    doorman_permits_destroy(NULL);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(decisions_refuse_null) {
    doorman_config *config = config_create();
    doorman_permits *permits = permits_create(config);
    doorman_permit permit;
    double charged;
    const doorman_permit_item nameless = {.cost = 1};
    const doorman_permit_item without_key = {.resource_id = "db", .cost = 1};
    const doorman_permit_request no_items = {.item_count = 1};
    const doorman_permit_request no_resource = {.items = &nameless, .item_count = 1};
    NAMED("permits: ", doorman_permits_acquire(NULL, &permit_request, &permit, &error, 0));
    NAMED("request: ", doorman_permits_acquire(permits, NULL, &permit, &error, 0));
    NAMED("out: ", doorman_permits_acquire(permits, &permit_request, NULL, &error, 0));
    NAMED("items: ", doorman_permits_acquire(permits, &no_items, &permit, &error, 0));
    NAMED("items[0].resource_id: ",
          doorman_permits_acquire(permits, &no_resource, &permit, &error, 0));
    NAMED("item: ", doorman_permits_report(permits, NULL, &charged, &error, 0));
    NAMED("permits: ", doorman_permits_report(NULL, &without_key, &charged, &error, 0));
    NAMED("resource_id: ", doorman_permits_report(permits, &nameless, &charged, &error, 0));
    NAMED("charged: ", doorman_permits_report(permits, &without_key, NULL, &error, 0));
    assert_int_equal(doorman_permits_report(permits, &without_key, &charged, NULL, 0), DOORMAN_OK);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(the_administration_of_permits_refuses_null) {
    doorman_config *config = config_create();
    doorman_permits *permits = permits_create(config);
    doorman_permit permit;
    NAMED("permits: ", doorman_permits_inspect(NULL, &item, &permit, &error, 0));
    NAMED("item: ", doorman_permits_inspect(permits, NULL, &permit, &error, 0));
    NAMED("resource_id: ", doorman_permits_inspect(permits, &bare_permit_item, &permit, &error, 0));
    NAMED("out: ", doorman_permits_inspect(permits, &item, NULL, &error, 0));
    NAMED("permits: ", doorman_permits_reset(NULL, &item, NULL, NULL, &error));
    NAMED("item: ", doorman_permits_reset(permits, NULL, NULL, NULL, &error));
    NAMED("resource_id: ", doorman_permits_reset(permits, &bare_permit_item, NULL, NULL, &error));
    NAMED("permits: ", doorman_permits_ban(NULL, &item, 1, &error, 0));
    NAMED("item: ", doorman_permits_ban(permits, NULL, 1, &error, 0));
    NAMED("resource_id: ", doorman_permits_ban(permits, &bare_permit_item, 1, &error, 0));
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(rows_refuse_null) {
    doorman_config *config = config_create();
    doorman_permits *permits = permits_create(config);
    const unsigned char bytes[1] = {1};
    doorman_permit_row row;
    NAMED("row: ", doorman_permit_row_read(NULL, 1, &row, &error));
    NAMED("out: ", doorman_permit_row_read(bytes, 1, NULL, &error));
    NAMED("bytes: ", doorman_permit_row_read(bytes, 1, &row, &error));
    NAMED("permits: ", doorman_permits_restore(NULL, bytes, 1, &error, 0));
    NAMED("row: ", doorman_permits_restore(permits, NULL, 1, &error, 0));
    const doorman_stored_row none = {NULL, 1};
    size_t count = 1;
    NAMED("permits: ", doorman_permits_restore_rows(NULL, &none, &count, &error, 0));
    NAMED("rows: ", doorman_permits_restore_rows(permits, NULL, &count, &error, 0));
    NAMED("count: ", doorman_permits_restore_rows(permits, &none, NULL, &error, 0));
    NAMED("row: ", doorman_permits_restore_rows(permits, &none, &count, &error, 0));
    assert_int_equal(count, 0);
    doorman_counter_cursor cursor = {0};
    assert_false(doorman_permits_mark_all(NULL, &cursor));
    assert_false(doorman_permits_mark_all(permits, NULL));
    NAMED("permits: ", doorman_permits_mark_changed(NULL, bytes, 1, &error));
    NAMED("row: ", doorman_permits_mark_changed(permits, NULL, 1, &error));
    REFUSED(doorman_permits_set_rows(NULL, DOORMAN_ROWS_READ));
    REFUSED(doorman_permits_set_rows(permits, DOORMAN_ROWS_COUNT));
    assert_int_equal(doorman_permits_next_changed(NULL, NULL, 0), 0);
    assert_int_equal(doorman_permits_next_changed(permits, NULL, 0), 0);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(overrides_refuse_null) {
    doorman_config *config = config_create();
    doorman_permits *permits = permits_create(config);
    const doorman_override_row row = {.limit = "hourly"}, named = {.resource_id = "db"};
    doorman_override_cursor cursor = {0, 0};
    doorman_override_info info;
    doorman_permit_detail detail;
    NAMED("permits: ", doorman_permits_set_override(NULL, &row, &error, 0));
    NAMED("row: ", doorman_permits_set_override(permits, NULL, &error, 0));
    NAMED("resource_id: ", doorman_permits_set_override(permits, &row, &error, 0));
    NAMED("limit: ", doorman_permits_set_override(permits, &named, &error, 0));
    NAMED("permits: ", doorman_permits_restore_override(NULL, &row, &error, 0));
    NAMED("row: ", doorman_permits_restore_override(permits, NULL, &error, 0));
    NAMED("resource_id: ", doorman_permits_restore_override(permits, &row, &error, 0));
    NAMED("permits: ", doorman_permits_end_override(NULL, &row, &error, 0));
    NAMED("name: ", doorman_permits_end_override(permits, NULL, &error, 0));
    NAMED("resource_id: ", doorman_permits_end_override(permits, &row, &error, 0));
    NAMED("permits: ", doorman_permits_after_override(NULL, &row, &detail, &error, 0));
    NAMED("name: ", doorman_permits_after_override(permits, NULL, &detail, &error, 0));
    NAMED("out: ", doorman_permits_after_override(permits, &row, NULL, &error, 0));
    NAMED("resource_id: ", doorman_permits_after_override(permits, &row, &detail, &error, 0));
    assert_false(doorman_permits_find_override(NULL, &row, &info));
    assert_false(doorman_permits_find_override(permits, NULL, &info));
    assert_false(doorman_permits_find_override(permits, &row, NULL));
    assert_false(doorman_permits_find_override(permits, &row, &info));
    assert_false(doorman_permits_next_override(NULL, &cursor, &info));
    assert_false(doorman_permits_next_override(permits, NULL, &info));
    assert_false(doorman_permits_next_override(permits, &cursor, NULL));
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(plans_refuse_null) {
    doorman_config *config = config_create();
    doorman_permits *permits = permits_create(config);
    const doorman_plan_row row = {.plan = "pro", .id = 1};
    doorman_override_cursor cursor = {0, 0};
    doorman_plan_info info;
    NAMED("permits: ", doorman_permits_set_plan(NULL, &row, &error, 0));
    NAMED("row: ", doorman_permits_set_plan(permits, NULL, &error, 0));
    NAMED("identifier_glob: ", doorman_permits_set_plan(permits, &row, &error, 0));
    NAMED("permits: ", doorman_permits_check_plan(NULL, &row, &error, 0));
    NAMED("row: ", doorman_permits_check_plan(permits, NULL, &error, 0));
    NAMED("permits: ", doorman_permits_restore_plan(NULL, &row, &error, 0));
    NAMED("row: ", doorman_permits_restore_plan(permits, NULL, &error, 0));
    NAMED("permits: ", doorman_permits_end_plan(NULL, &row, &error, 0));
    NAMED("name: ", doorman_permits_end_plan(permits, NULL, &error, 0));
    NAMED("identifier_glob: ", doorman_permits_end_plan(permits, &row, &error, 0));
    assert_false(doorman_permits_find_plan(NULL, &row, &info));
    assert_false(doorman_permits_find_plan(permits, NULL, &info));
    assert_false(doorman_permits_find_plan(permits, &row, NULL));
    assert_false(doorman_permits_find_plan(permits, &row, &info));
    assert_false(doorman_permits_next_plan(NULL, &cursor, &info));
    assert_false(doorman_permits_next_plan(permits, NULL, &info));
    assert_false(doorman_permits_next_plan(permits, &cursor, NULL));
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(plans_in_json_refuse_null) {
    doorman_plans_message message;
    const doorman_plan_row row = {.plan = "pro"};
    doorman_buffer text = {NULL, 0, 0};
    doorman_config_problems problems = {.room = 1, .count = 1}, none = {.count = 1};
    memset(&message, 0, sizeof message);
    REFUSED(doorman_json_read_plans(NULL, "{}", 2, &none));
    REFUSED(doorman_json_read_plans(&message, "{}", 2, &problems));
    assert_int_equal(problems.count + none.count, 0);
    REFUSED(doorman_json_read_plans(&message, NULL, 2, NULL));
    REFUSED(doorman_json_write_plan(NULL, NULL, &text));
    REFUSED(doorman_json_write_plan(&row, NULL, NULL));
    doorman_plans_message_uninit(&message);
    doorman_plans_message_uninit(NULL);
}

TEST(overrides_in_json_refuse_null) {
    doorman_override_message message;
    doorman_buffer text = {NULL, 0, 0};
    memset(&message, 0, sizeof message);
    NAMED("out: ", doorman_json_read_override(NULL, "{}", 2, &error));
    NAMED("text: ", doorman_json_read_override(&message, NULL, 2, &error));
    REFUSED(doorman_json_read_override(&message, NULL, 0, NULL));
    REFUSED(doorman_json_write_override(NULL, NULL, &text));
    REFUSED(doorman_json_write_override(&message.row, NULL, NULL));
    doorman_override_message_uninit(&message);
    doorman_override_message_uninit(NULL);
}

TEST(the_state_of_permits_refuses_null) {
    doorman_config *config = config_create();
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    doorman_permits *permits = NULL;
    doorman_permits_info info;
    doorman_permits_limit limit;
    doorman_permits_top top;
    doorman_cursor cursor = {0, false};
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_permits_due(NULL), DOORMAN_NEVER);
    doorman_permits_update(NULL, 0);
    doorman_permits_set_epoch(NULL, 0, 0);
    doorman_permits_read(permits, NULL);
    doorman_permits_read(NULL, &info);
    assert_int_equal(info.bytes, 0);
    assert_false(doorman_permits_next_limit(NULL, &cursor, &limit));
    assert_false(doorman_permits_next_limit(permits, NULL, &limit));
    assert_false(doorman_permits_next_limit(permits, &cursor, NULL));
    assert_false(doorman_permits_next_top(NULL, 0, DOORMAN_TOP_GRANTED, &cursor, &top));
    assert_false(doorman_permits_next_top(permits, 0, DOORMAN_TOP_GRANTED, NULL, &top));
    assert_false(doorman_permits_next_top(permits, 0, DOORMAN_TOP_GRANTED, &cursor, NULL));
    assert_false(doorman_permits_next_top(permits, 0, DOORMAN_TOP_COUNT, &cursor, &top));
    const doorman_usage_list list = {0, DOORMAN_USAGE_DAY}, none = {0, DOORMAN_USAGE_WINDOW_COUNT};
    doorman_permits_usage usage;
    assert_false(doorman_permits_next_usage(NULL, &list, &cursor, &usage, 0));
    assert_false(doorman_permits_next_usage(permits, NULL, &cursor, &usage, 0));
    assert_false(doorman_permits_next_usage(permits, &list, NULL, &usage, 0));
    assert_false(doorman_permits_next_usage(permits, &list, &cursor, NULL, 0));
    assert_false(doorman_permits_next_usage(permits, &none, &cursor, &usage, 0));
    doorman_permits_hold hold;
    assert_false(doorman_permits_find_hold(NULL, 1, &hold));
    assert_false(doorman_permits_find_hold(permits, 1, &hold));
    assert_false(doorman_permits_find_hold(permits, 1, NULL));
    assert_false(doorman_permits_end_hold(NULL, 1, 0));
    assert_false(doorman_permits_end_hold(permits, 1, 0));
    doorman_counter_cursor counters = {.table = 0};
    doorman_permits_counter counter;
    const doorman_status invalid = DOORMAN_INVALID_ARGUMENT;
    assert_int_equal(doorman_permits_next_counter(NULL, NULL, &counters, &counter, 0), invalid);
    assert_int_equal(doorman_permits_next_counter(permits, NULL, NULL, &counter, 0), invalid);
    assert_int_equal(doorman_permits_next_counter(permits, NULL, &counters, NULL, 0), invalid);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(holds_refuse_null) {
    static doorman_status (*const calls[])(doorman_permits *, const doorman_hold_request *,
                                           doorman_hold *, doorman_error *, doorman_time) = {
        doorman_permits_renew, doorman_permits_release, doorman_permits_transfer,
        doorman_permits_seize};
    doorman_config *config = config_create();
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    doorman_permits *permits = NULL;
    doorman_hold hold;
    doorman_permit permit;
    doorman_permits_hold held;
    doorman_permits_wait wait;
    doorman_cursor cursor = {0, false};
    uint64_t ticket;
    doorman_hold_request request = hold_request;
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    for (size_t i = 0; i < COUNT(calls); i++) {
        NAMED("permits: ", calls[i](NULL, &request, &hold, &error, 0));
        NAMED("request: ", calls[i](permits, NULL, &hold, &error, 0));
        NAMED("out: ", calls[i](permits, &request, NULL, &error, 0));
        request.client_id = NULL;
        NAMED("client_id: ", calls[i](permits, &request, &hold, &error, 0));
        request = hold_request;
    }
    request.amount_count = 1, request.request_id = 0;
    NAMED("amounts: ", doorman_permits_release(permits, &request, &hold, &error, 0));
    request.request_id = 1;
    NAMED("amounts: ", doorman_permits_transfer(permits, &request, &hold, &error, 0));
    request.amount_count = 0, request.item_count = 1, request.request_id = 0;
    NAMED("items: ", doorman_permits_renew(permits, &request, &hold, &error, 0));
    assert_int_equal(doorman_permits_cancel(NULL, 1, 0), 0);
    assert_false(doorman_permits_next_decision(NULL, &ticket, &permit));
    assert_false(doorman_permits_next_decision(permits, NULL, &permit));
    assert_false(doorman_permits_next_decision(permits, &ticket, NULL));
    assert_false(doorman_permits_next_hold(NULL, &cursor, &held));
    assert_false(doorman_permits_next_hold(permits, NULL, &held));
    assert_false(doorman_permits_next_hold(permits, &cursor, NULL));
    assert_false(doorman_permits_next_wait(NULL, &cursor, &wait));
    assert_false(doorman_permits_next_wait(permits, NULL, &wait));
    assert_false(doorman_permits_next_wait(permits, &cursor, NULL));
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(settlements_refuse_null) {
    static doorman_status (*const calls[])(doorman_permits *, const doorman_settle_request *,
                                           doorman_settlement *, doorman_error *, doorman_time) = {
        doorman_permits_settle, doorman_permits_report_once};
    doorman_config *config = config_create();
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    const doorman_settle_request whole = {
        .client_id = "c", .request_id = 1, .items = &item, .item_count = 1};
    doorman_permits *permits = NULL;
    doorman_settlement out;
    doorman_permits_reservation found;
    doorman_cursor cursor = {0, false};
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    for (size_t i = 0; i < COUNT(calls); i++) {
        doorman_settle_request request = whole;
        NAMED("permits: ", calls[i](NULL, &request, &out, &error, 0));
        NAMED("request: ", calls[i](permits, NULL, &out, &error, 0));
        NAMED("out: ", calls[i](permits, &request, NULL, &error, 0));
        request.client_id = NULL;
        NAMED("client_id: ", calls[i](permits, &request, &out, &error, 0));
        request = whole, request.items = NULL;
        NAMED("items: ", calls[i](permits, &request, &out, &error, 0));
        request = whole, request.items = &bare_permit_item;
        NAMED("items[0].resource_id: ", calls[i](permits, &request, &out, &error, 0));
        assert_int_equal(calls[i](permits, &whole, &out, NULL, 0), DOORMAN_OK);
    }
    assert_false(doorman_permits_next_reservation(NULL, &cursor, &found));
    assert_false(doorman_permits_next_reservation(permits, NULL, &found));
    assert_false(doorman_permits_next_reservation(permits, &cursor, NULL));
    assert_false(doorman_permits_find_reservation(NULL, 1, &found));
    assert_false(doorman_permits_find_reservation(permits, 1, &found));
    assert_false(doorman_permits_find_reservation(permits, 1, NULL));
    assert_int_equal(doorman_permits_end_reservation(NULL, 1, true, 0), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_end_reservation(permits, 1, true, 0), DOORMAN_NOT_FOUND);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

/* ---- clients --------------------------------------------------------------------------------- */

TEST(a_client_refuses_null) {
    const char *const none[] = {NULL};
    doorman_client_options options = client_options;
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    doorman_resource_info info;
    doorman_request request;
    const doorman_response response = {.method = DOORMAN_GET_CAPACITY, .is_master = true};
    NAMED("out: ", doorman_client_create(NULL, &options, &error, 0));
    NAMED("options: ", doorman_client_create(&client, NULL, &error, 0));
    assert_int_equal(doorman_client_create(&client, &options, NULL, 0), DOORMAN_OK);
    assert_null(doorman_client_upstream(NULL));
    NAMED("out: ", doorman_client_open(NULL, client, &resource_options, &error, 0));
    NAMED("client: ", doorman_client_open(&resource, NULL, &resource_options, &error, 0));
    NAMED("options: ", doorman_client_open(&resource, client, NULL, &error, 0));
    NAMED("resource_id: ", doorman_client_open(&resource, client,
                                               &(doorman_resource_options){.wants = 1}, &error, 0));
    assert_int_equal(doorman_client_open(&resource, client, &resource_options, NULL, 0),
                     DOORMAN_OK);
    doorman_client_close(NULL, 0);
    REFUSED(doorman_client_set_wants(NULL, 1, 0));
    REFUSED(doorman_client_report_overload(NULL, &(doorman_overload_report){.interval = 0}, 0));
    REFUSED(doorman_client_report_overload(resource, NULL, 0));
    doorman_client_read(resource, NULL, 0);
    doorman_client_read(NULL, &info, 0);
    assert_null(info.resource_id);
    assert_int_equal(doorman_client_try(NULL, 1, NULL, 0), DOORMAN_IMPOSSIBLE);
    REFUSED(doorman_client_release(NULL, 1));
    doorman_upstream *upstream = doorman_client_upstream(client);
    assert_int_equal(doorman_upstream_due(NULL), DOORMAN_NEVER);
    assert_false(doorman_upstream_request(upstream, NULL, 0));
    assert_false(doorman_upstream_request(NULL, &request, 0));
    assert_int_equal(request.sequence, 0);
    REFUSED(doorman_upstream_response(NULL, 1, &response, 0));
    REFUSED(doorman_upstream_response(upstream, 1, NULL, 0));
    doorman_upstream_failed(NULL, 1, 0);
    doorman_client_destroy(NULL);
    doorman_client_destroy(client);
    options.client_id = NULL;
    NAMED("client_id: ", doorman_client_create(&client, &options, &error, 0));
    options.client_id = "client", options.addresses = NULL;
    NAMED("addresses: ", doorman_client_create(&client, &options, &error, 0));
    options.addresses = none;
    NAMED("addresses[0]: ", doorman_client_create(&client, &options, &error, 0));
}

TEST(a_response_without_its_arrays_is_refused) {
    const doorman_capacity_response terms = {
        .resource_id = "db", .outcome = DOORMAN_GRANTED, .terms_count = 1};
    const doorman_capacity_response none = {.resource_id = NULL};
    const doorman_response responses[] = {
        {.method = DOORMAN_GET_CAPACITY, .is_master = true, .item_count = 1},
        {.method = DOORMAN_GET_CAPACITY, .is_master = true, .items = &none, .item_count = 1},
        {.method = DOORMAN_GET_CAPACITY, .is_master = true, .items = &terms, .item_count = 1}};
    for (size_t i = 0; i < COUNT(responses); i++) {
        doorman_client *client = NULL;
        doorman_client_resource *resource = NULL;
        doorman_request request;
        assert_int_equal(doorman_client_create(&client, &client_options, NULL, 0), DOORMAN_OK);
        assert_int_equal(doorman_client_open(&resource, client, &resource_options, NULL, 0),
                         DOORMAN_OK);
        doorman_upstream *upstream = doorman_client_upstream(client);
        assert_true(doorman_upstream_request(upstream, &request, DOORMAN_SECOND));
        if (doorman_upstream_response(upstream, request.sequence, &responses[i], DOORMAN_SECOND) !=
            DOORMAN_INVALID_ARGUMENT)
            fail_msg("response %zu is accepted", i);
        doorman_client_destroy(client);
    }
}

static const doorman_settle_request settle_request = {.id = 1};

TEST(a_permit_client_refuses_null) {
    doorman_permit_client *client = NULL;
    doorman_upstream *lane;
    doorman_acquired acquired;
    doorman_permit_client_info info;
    void *context;
    const doorman_permit_request no_items = {.item_count = 1};
    NAMED("out: ", doorman_permit_client_create(NULL, &client_options, &error, 0));
    NAMED("options: ", doorman_permit_client_create(&client, NULL, &error, 0));
    assert_int_equal(doorman_permit_client_create(&client, &client_options, NULL, 0), DOORMAN_OK);
    assert_null(doorman_permit_client_upstream(NULL));
    assert_null(doorman_permit_client_port(NULL, 0));
    assert_ptr_equal(doorman_permit_client_port(client, 0), doorman_permit_client_upstream(client));
    assert_null(doorman_permit_client_port(client, 1));
    assert_null(doorman_permit_client_port(client, SIZE_MAX));
    REFUSED(doorman_permit_client_add_lane(NULL, &lane));
    REFUSED(doorman_permit_client_add_lane(client, NULL));
    NAMED("client: ", doorman_permit_client_acquire(NULL, &permit_request, 1, NULL, &error, 0));
    NAMED("request: ", doorman_permit_client_acquire(client, NULL, 1, NULL, &error, 0));
    NAMED("items: ", doorman_permit_client_acquire(client, &no_items, 1, NULL, &error, 0));
    NAMED("item: ", doorman_permit_client_report(client, NULL, &error, 0));
    NAMED("client: ", doorman_permit_client_report(
                          NULL, &(doorman_permit_item){.resource_id = "db", .key = NULL, .cost = 1},
                          &error, 0));
    NAMED("resource_id: ",
          doorman_permit_client_report(
              client, &(doorman_permit_item){.resource_id = NULL, .key = NULL, .cost = 1}, &error,
              0));
    NAMED("client: ", doorman_permit_client_settle(NULL, &settle_request, NULL, &error, 0));
    NAMED("request: ", doorman_permit_client_settle(client, NULL, NULL, &error, 0));
    NAMED("items: ", doorman_permit_client_settle(client, &settle_request, NULL, &error, 0));
    assert_false(doorman_permit_client_next(NULL, &context, &acquired, 0));
    assert_false(doorman_permit_client_next(client, NULL, &acquired, 0));
    assert_false(doorman_permit_client_next(client, &context, NULL, 0));
    doorman_permit_client_kill_switch(NULL, true);
    doorman_permit_client_read(client, NULL);
    doorman_permit_client_read(NULL, &info);
    assert_int_equal(info.messages, 0);
    doorman_permit_client_destroy(NULL);
    doorman_permit_client_destroy(client);
}

TEST(a_permit_client_refuses_null_for_a_hold) {
    doorman_permit_client *client = NULL;
    doorman_held held;
    uint64_t number;
    assert_int_equal(doorman_permit_client_create(&client, &client_options, NULL, 0), DOORMAN_OK);
    REFUSED(doorman_permit_client_new_hold(NULL, &number));
    REFUSED(doorman_permit_client_new_hold(client, NULL));
    NAMED("client: ", doorman_permit_client_release(NULL, &hold_request, &error, 0));
    NAMED("request: ", doorman_permit_client_release(client, NULL, &error, 0));
    NAMED("client: ", doorman_permit_client_transfer(NULL, &hold_request, NULL, &error, 0));
    NAMED("request: ", doorman_permit_client_transfer(client, NULL, NULL, &error, 0));
    NAMED("client: ", doorman_permit_client_seize(NULL, &hold_request, NULL, &error, 0));
    NAMED("request: ", doorman_permit_client_seize(client, NULL, NULL, &error, 0));
    NAMED("timeout: ", doorman_permit_client_transfer(client, &hold_request, NULL, &error, 0));
    NAMED("timeout: ", doorman_permit_client_seize(client, &hold_request, NULL, &error, 0));
    assert_int_equal(doorman_permit_client_release(client, &hold_request, NULL, 0), DOORMAN_OK);
    doorman_permit_client_read_hold(client, 1, NULL);
    doorman_permit_client_read_hold(NULL, 1, &held);
    assert_true(held.gone);
    assert_false(doorman_permit_client_next_change(NULL, &held, 0));
    assert_false(doorman_permit_client_next_change(client, NULL, 0));
    doorman_permit_client_destroy(client);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

TEST(json_refuses_null) {
    doorman_config *config = NULL;
    doorman_buffer text = {NULL, 0, 0};
    doorman_json_exchange exchange;
    doorman_server *server = NULL;
    const doorman_permit decision = {.granted = true};
    const doorman_server_options options = {
        .node = "leaf", .parents = addresses, .parent_count = 1, .seed = {1, 2}};
    doorman_config_problems problems = {.room = 1, .count = 1}, none = {.count = 1};
    memset(&exchange, 0, sizeof exchange);
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    NAMED("out: ", doorman_json_config(NULL, "{}", 2, &error));
    NAMED("text: ", doorman_json_config(&config, NULL, 2, &error));
    REFUSED(doorman_json_check_config(&config, "{}", 2, &problems));
    REFUSED(doorman_json_check_config(&config, NULL, 2, &none));
    assert_int_equal(problems.count + none.count, 0);
    REFUSED(doorman_json_check_config(&config, NULL, 2, NULL));
    REFUSED(doorman_json_write_config(NULL, &text));
    REFUSED(doorman_json_write_config(&config_options, NULL));
    REFUSED(doorman_json_serve(NULL, "{}", 2, &text, 0, 0));
    REFUSED(doorman_json_serve(server, "{}", 2, NULL, 0, 0));
    REFUSED(doorman_json_serve(server, NULL, 2, &text, 0, 0));
    REFUSED(doorman_json_exchange_read(NULL, NULL, "{}", 2));
    REFUSED(doorman_json_exchange_read(&exchange, NULL, NULL, 2));
    REFUSED(doorman_json_exchange_decide(NULL, server, 0));
    REFUSED(doorman_json_exchange_decide(&exchange, NULL, 0));
    REFUSED(doorman_json_exchange_settle(NULL, 1, &decision));
    REFUSED(doorman_json_exchange_settle(&exchange, 1, NULL));
    doorman_json_exchange_undo(NULL);
    REFUSED(doorman_json_exchange_write(NULL, 0));
    REFUSED(doorman_json_request(NULL, &text));
    REFUSED(doorman_json_request(&(doorman_request){.method = DOORMAN_DISCOVERY}, NULL));
    NAMED("upstream: ", doorman_json_response(NULL, 1, "{}", 2, &error, 0));
    doorman_upstream *upstream = doorman_server_upstream(server);
    NAMED("text: ", doorman_json_response(upstream, 1, NULL, 2, &error, 0));
    doorman_json_exchange_uninit(NULL);
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(NULL);
    doorman_buffer_uninit(&text);
    doorman_server_destroy(server);
}

/* ---- agents ---------------------------------------------------------------------------------- */

static void on_decided(void *context, doorman_status status, const doorman_acquired *acquired) {
    (void)context, (void)status, (void)acquired;
}

static void on_wakeup(void *context) { (void)context; }

/* The server need not run: nothing is sent before the check. */
TEST(an_agent_refuses_null) {
    doorman_agent *agent = NULL;
    doorman_agent_info info;
    doorman_acquired out;
    doorman_held held;
    uint64_t number;
    NAMED("out: ", doorman_agent_start(NULL, &client_options, &error));
    NAMED("options: ", doorman_agent_start(&agent, NULL, &error));
    assert_int_equal(doorman_agent_start(&agent, &client_options, NULL), DOORMAN_OK);
    REFUSED(doorman_agent_read_info(NULL, &info));
    REFUSED(doorman_agent_read_info(agent, NULL));
    REFUSED(doorman_agent_kill_switch(NULL, true));
    NAMED("agent: ", doorman_agent_acquire(NULL, &permit_request, 1, &out, &error));
    NAMED("request: ", doorman_agent_acquire(agent, NULL, 1, &out, &error));
    NAMED("out: ", doorman_agent_acquire(agent, &permit_request, 1, NULL, &error));
    NAMED("agent: ",
          doorman_agent_acquire_async(NULL, &permit_request, 1, on_decided, NULL, &error));
    NAMED("request: ", doorman_agent_acquire_async(agent, NULL, 1, on_decided, NULL, &error));
    NAMED("on_decided: ",
          doorman_agent_acquire_async(agent, &permit_request, 1, NULL, NULL, &error));
    REFUSED(doorman_agent_new_hold(NULL, &number));
    REFUSED(doorman_agent_new_hold(agent, NULL));
    REFUSED(doorman_agent_release(NULL, 1));
    assert_int_equal(doorman_agent_release(agent, 0), DOORMAN_OK);
    NAMED("agent: ", doorman_agent_release_part(NULL, &hold_request, &error));
    NAMED("request: ", doorman_agent_release_part(agent, NULL, &error));
    NAMED("agent: ", doorman_agent_transfer(NULL, &hold_request, &out, &error));
    NAMED("request: ", doorman_agent_transfer(agent, NULL, &out, &error));
    NAMED("out: ", doorman_agent_transfer(agent, &hold_request, NULL, &error));
    NAMED("agent: ", doorman_agent_seize(NULL, &hold_request, &out, &error));
    NAMED("request: ", doorman_agent_seize(agent, NULL, &out, &error));
    NAMED("out: ", doorman_agent_seize(agent, &hold_request, NULL, &error));
    NAMED("timeout: ", doorman_agent_transfer(agent, &hold_request, &out, &error));
    NAMED("timeout: ", doorman_agent_seize(agent, &hold_request, &out, &error));
    REFUSED(doorman_agent_read_hold(NULL, 1, &held));
    REFUSED(doorman_agent_read_hold(agent, 1, NULL));
    NAMED("agent: ", doorman_agent_report(NULL, "db", NULL, 1, &error));
    NAMED("resource_id: ", doorman_agent_report(agent, NULL, NULL, 1, &error));
    NAMED("agent: ", doorman_agent_settle(NULL, &settle_request, &out, &error));
    NAMED("request: ", doorman_agent_settle(agent, NULL, &out, &error));
    NAMED("items: ", doorman_agent_settle(agent, &settle_request, NULL, &error));
    const doorman_settle_request waits = {.timeout = 1};
    NAMED("out: ", doorman_agent_settle(agent, &waits, NULL, &error));
    NAMED("items: ", doorman_agent_settle(agent, &waits, &out, &error));
    assert_int_equal(doorman_agent_shutdown(NULL), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(NULL), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
}

TEST(a_resource_refuses_null) {
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    doorman_resource_info info;
    const doorman_overload_report report = {.interval = 0};
    assert_int_equal(doorman_agent_start(&agent, &client_options, NULL), DOORMAN_OK);
    NAMED("out: ", doorman_resource_open(NULL, agent, &resource_options, &error));
    NAMED("agent: ", doorman_resource_open(&resource, NULL, &resource_options, &error));
    NAMED("options: ", doorman_resource_open(&resource, agent, NULL, &error));
    assert_int_equal(doorman_resource_open(&resource, agent, &resource_options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_resource_try(NULL, 1, NULL), DOORMAN_IMPOSSIBLE);
    REFUSED(doorman_resource_wait(NULL, 1, 0));
    REFUSED(doorman_resource_release(NULL, 1));
    assert_int_equal(doorman_resource_delay(NULL, 1), DOORMAN_NEVER);
    REFUSED(doorman_resource_set_wants(NULL, 1));
    REFUSED(doorman_resource_report_overload(NULL, &report));
    REFUSED(doorman_resource_report_overload(resource, NULL));
    REFUSED(doorman_resource_read(NULL, &info));
    REFUSED(doorman_resource_read(resource, NULL));
    assert_int_equal(doorman_resource_close(NULL), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
}

TEST(a_transport_refuses_null) {
    doorman_client *client = NULL;
    doorman_transport *transport = NULL;
    assert_int_equal(doorman_client_create(&client, &client_options, NULL, 0), DOORMAN_OK);
    doorman_upstream *upstream = doorman_client_upstream(client);
    const doorman_tls key_alone = {.authority = "", .key = ""}, nothing = {.authority = NULL};
    const doorman_transport_options wrong[] = {
        {.on_wakeup = on_wakeup},
        {.upstream = upstream},
        {.upstream = upstream, .on_wakeup = on_wakeup, .tls = &nothing},
        {.upstream = upstream, .on_wakeup = on_wakeup, .tls = &key_alone}};
    const doorman_transport_options options = {.upstream = upstream, .on_wakeup = on_wakeup};
    for (size_t i = 0; i < COUNT(wrong); i++)
        REFUSED(doorman_transport_create(&transport, &wrong[i]));
    REFUSED(doorman_transport_create(NULL, &options));
    REFUSED(doorman_transport_create(&transport, NULL));
    assert_int_equal(doorman_transport_create(&transport, &options), DOORMAN_OK);
    REFUSED(doorman_transport_set_tls(NULL, &key_alone));
    REFUSED(doorman_transport_set_tls(transport, NULL));
    REFUSED(doorman_transport_set_tls(transport, &key_alone));
    assert_false(doorman_transport_update(NULL, NULL, 0));
    doorman_transport_send(NULL);
    doorman_transport_destroy(NULL);
    doorman_transport_destroy(transport);
    doorman_client_destroy(client);
}

/* ---- names in errors (C10) ------------------------------------------------------------------- */

/* Checks that the error is `text`, or that it begins with `text` if `text` ends with a space. */
static void check_text(int line, const doorman_error *error, const char *text) {
    size_t bytes = strlen(text);
    bool begins = strncmp(error->text, text, bytes) == 0;
    if (!begins || (text[bytes - 1] != ' ' && error->text[bytes]))
        fail_msg("line %d: \"%s\" is not \"%s\"", line, error->text, text);
}

/* Checks that a call is refused with this text, and that path_bytes is the length of its path. */
#define TEXT(expected, call)                                                                       \
    do {                                                                                           \
        doorman_error error = {0};                                                                 \
        assert_true((call) != DOORMAN_OK);                                                         \
        check_text(__LINE__, &error, expected);                                                    \
        assert_int_equal(error.path_bytes, strcspn(expected, ":"));                                \
    } while (0)

TEST(errors_of_permits_have_the_names_of_c) {
    doorman_config *config = config_create();
    doorman_permits *permits = NULL;
    const doorman_permits_options options = {.config = config, .seed = {1, 2}, .item_max = 2};
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    const doorman_permit_item bad[3] = {
        item, {.resource_id = "db", .key = "\xff", .cost = 1}, item};
    const doorman_permit_request none = {.item_count = 0};
    const doorman_permit_request second = {.items = bad, .item_count = 2};
    const doorman_permit_request many = {.items = bad, .item_count = 3};
    const double amounts[] = {-1};
    const doorman_hold_item nameless = {.resource_id = ""};
    const doorman_hold_request amount = {
        .client_id = "c", .id = 1, .request_id = 1, .amounts = amounts, .amount_count = 1};
    const doorman_hold_request kept = {
        .client_id = "c", .id = 1, .amounts = amounts, .amount_count = 1};
    const doorman_hold_request items = {
        .client_id = "c", .id = 1, .items = &nameless, .item_count = 1};
    const doorman_permit_item no_name = {.resource_id = "", .cost = 1};
    doorman_permit permit;
    doorman_hold hold;
    double charged = 0;
    size_t count = 0;
    TEXT("items: must be a list of items",
         doorman_permits_acquire(permits, &none, &permit, &error, 0));
    TEXT("items[1].key: must be 0 to 256 bytes of UTF-8",
         doorman_permits_acquire(permits, &second, &permit, &error, 0));
    TEXT("items: at most 2, not 3", doorman_permits_acquire(permits, &many, &permit, &error, 0));
    TEXT("resource_id: must be 1 to 256 bytes ",
         doorman_permits_report(permits, &no_name, &charged, &error, 0));
    TEXT("key: must be 0 to 256 bytes of UTF-8",
         doorman_permits_report(permits, &bad[1], &charged, &error, 0));
    TEXT("key: must be 0 to 256 bytes of UTF-8",
         doorman_permits_inspect(permits, &bad[1], &permit, &error, 0));
    TEXT("key: must be 0 to 256 bytes of UTF-8",
         doorman_permits_reset(permits, &bad[1], NULL, &count, &error));
    TEXT("key: must be 0 to 256 bytes of UTF-8",
         doorman_permits_ban(permits, &bad[1], 1, &error, 0));
    TEXT("amounts[0]: must be ", doorman_permits_release(permits, &kept, &hold, &error, 0));
    TEXT("amounts[0]: must be ", doorman_permits_transfer(permits, &amount, &hold, &error, 0));
    TEXT("items[0].resource_id: must be 1 to 256 bytes ",
         doorman_permits_renew(permits, &items, &hold, &error, 0));
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(errors_of_permit_clients_have_the_names_of_c) {
    doorman_permit_client *client = NULL;
    doorman_agent *agent = NULL;
    doorman_acquired out;
    assert_int_equal(doorman_permit_client_create(&client, &client_options, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_agent_start(&agent, &client_options, NULL), DOORMAN_OK);
    const doorman_permit_item bad = {.resource_id = "db", .cost = -1};
    const doorman_permit_request none = {.item_count = 0};
    const doorman_permit_request wrong = {.items = &bad, .item_count = 1};
    const char *list = "items: must be a list of 1 to 100 items";
    const char *cost = "items[0].cost: must be a finite number from 0 to 1e15";
    TEXT(list, doorman_permit_client_acquire(client, &none, 1, NULL, &error, 0));
    TEXT(cost, doorman_permit_client_acquire(client, &wrong, 1, NULL, &error, 0));
    TEXT("resource_id: must be 1 to 256 bytes ",
         doorman_permit_client_report(
             client, &(doorman_permit_item){.resource_id = "", .key = NULL, .cost = 1}, &error, 0));
    TEXT("cost: must be a finite number from -1e15 to 1e15",
         doorman_permit_client_report(
             client, &(doorman_permit_item){.resource_id = "db", .key = NULL, .cost = -2e15},
             &error, 0));
    const doorman_settle_request settles = {.items = &bad, .item_count = 1};
    TEXT(cost, doorman_permit_client_settle(client, &settles, NULL, &error, 0));
    TEXT(cost, doorman_agent_settle(agent, &settles, NULL, &error));
    TEXT(list, doorman_agent_acquire(agent, &none, 1, &out, &error));
    TEXT(cost, doorman_agent_acquire(agent, &wrong, 1, &out, &error));
    TEXT(cost, doorman_agent_acquire_async(agent, &wrong, 1, on_decided, NULL, &error));
    TEXT("key: must be 0 to 256 bytes of UTF-8",
         doorman_agent_report(agent, "db", "\xff", 1, &error));
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    doorman_permit_client_destroy(client);
}

static const doorman_demand one_demand = {.wants = 1}, demand_negative = {.wants = -1},
                            demand_high = {1, 1, 16}, demand_of_two = {1, 2, 1},
                            demand_of_half = {1, 1.5, 1};
static const doorman_capacity_request
    wantless = {.resource_id = "db"},
    nameless_resource = {.wants = &one_demand},
    negative_wants = {.resource_id = "db", .wants = &demand_negative, .wants_count = 1},
    high_priority = {.resource_id = "db", .wants = &demand_high, .wants_count = 1},
    two_clients = {.resource_id = "db", .wants = &demand_of_two, .wants_count = 1},
    half_client = {.resource_id = "db", .wants = &demand_of_half, .wants_count = 1},
    same_twice[] = {{.resource_id = "db", .wants = &one_demand, .wants_count = 1},
                    {.resource_id = "db", .wants = &one_demand, .wants_count = 1}},
    negative_report = {.resource_id = "db", .overload = {.interval = -1}};
static const char *const other_path[] = {"other"};
static const doorman_permit_item unkeyed_item = {.resource_id = "db", .key = "\xff"};
static const doorman_permit_request unkeyed_permits = {.items = &unkeyed_item, .item_count = 1},
                                    empty_permit = {.item_count = 0};
static const doorman_permit_entry nameless_entry = {.resource_id = ""},
                                  unknown_limit = {.resource_id = "db", .limit = "x"};
static const doorman_hold_request hold_without_id = {.request_id = 1};
#define GET(list, count)                                                                           \
    { .method = DOORMAN_GET_CAPACITY, .holder_id = "a", .items = list, .item_count = count }
static const struct {
    doorman_request request;
    const char *in_c, *on_wire;
} wrong_messages[] = {
    {{.method = DOORMAN_GET_CAPACITY}, "holder_id: ", "client_id: "},
    {{.method = DOORMAN_GET_CAPACITY, .is_server = true}, "holder_id: ", "server_id: "},
    {GET(&nameless_resource, 1), "items[0].resource_id: ", "resource[0].resource_id: "},
    {GET(&wantless, 1), "items[0].wants: a client must have one demand", "resource[0].wants: "},
    {GET(&negative_wants, 1), "items[0].wants[0].wants: ", "resource[0].wants: "},
    {GET(&high_priority, 1), "items[0].wants[0].priority: ", "resource[0].priority: "},
    {GET(&two_clients, 1), "items[0].wants[0].subclients: ", "resource[0].num_clients: "},
    {GET(same_twice, 2), "items[1].resource_id: the same as that of items[0]",
     "resource[1].resource_id: the same as that of resource[0]"},
    {{.method = DOORMAN_GET_CAPACITY,
      .is_server = true,
      .holder_id = "a",
      .items = &half_client,
      .item_count = 1},
     "items[0].wants[0].subclients: ",
     "resource[0].wants[0].num_clients: "},
    {{.method = DOORMAN_GET_CAPACITY,
      .is_server = true,
      .holder_id = "a",
      .path = other_path,
      .path_count = 1},
     "path[0]: must be the holder_id, ",
     "path[0]: must be the server_id, "},
    {{.method = DOORMAN_RELEASE_CAPACITY, .holder_id = "a", .items = &wantless, .item_count = 1},
     "items[0].has.id: ",
     "resource[0].id: "},
    {{.method = DOORMAN_REPORT_OVERLOAD, .holder_id = "a", .items = &wantless, .item_count = 1},
     "items[0].overload.interval: ",
     "resource[0].interval: "},
    {{.method = DOORMAN_REPORT_OVERLOAD,
      .holder_id = "a",
      .items = &negative_report,
      .item_count = 1},
     "items[0].overload.interval: ",
     "resource[0].interval: "},
    {{.method = DOORMAN_ACQUIRE, .permits = &unkeyed_permits, .permit_count = 1},
     "holder_id: ",
     "client_id: "},
    {{.method = DOORMAN_ACQUIRE, .is_server = true, .holder_id = "a"},
     "is_server: must be false in a message on permits",
     "server_id: must be a client_id"},
    {{.method = DOORMAN_ACQUIRE, .holder_id = "a", .permits = &unkeyed_permits, .permit_count = 1},
     "permits[0].items[0].key: ",
     "permit[0].item[0].key: "},
    {{.method = DOORMAN_ACQUIRE, .holder_id = "a", .permits = &empty_permit, .permit_count = 1},
     "permits[0].items: must be a list of items",
     "permit[0].item: must be a list of items"},
    {{.method = DOORMAN_REPORT, .holder_id = "a", .entries = &nameless_entry, .entry_count = 1},
     "entries[0].resource_id: ",
     "entry[0].resource_id: "},
    {{.method = DOORMAN_INSPECT, .entries = &unknown_limit, .entry_count = 1},
     "entries[0].limit: ",
     "entry[0].limit: "},
    {{.method = DOORMAN_RENEW, .holder_id = "a", .holds = &hold_without_id, .hold_count = 1},
     "holds[0].id: is missing",
     "entry[0].id: is missing"},
};
#undef GET

/* The error of a wrong message has the names of C, or the names of the wire if JSON was read. */
TEST(errors_of_messages_have_the_names_of_their_caller) {
    doorman_config *config = config_create();
    doorman_server *server = NULL;
    const doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    const doorman_mastership master = {.until = DOORMAN_NEVER, .address = "tcp://127.0.0.1:1"};
    assert_int_equal(doorman_server_set_master(server, &master, 0), DOORMAN_OK);
    for (size_t i = 0; i < COUNT(wrong_messages); i++) {
        doorman_request request = wrong_messages[i].request;
        doorman_response response;
        if (doorman_server_handle(server, &request, &response, NULL, 0) == DOORMAN_OK)
            fail_msg("row %zu is accepted", i);
        TEXT(wrong_messages[i].in_c, doorman_server_handle(server, &request, &response, &error, 0));
        request.wire_names = true;
        TEXT(wrong_messages[i].on_wire,
             doorman_server_handle(server, &request, &response, &error, 0));
    }
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

static const char *const all_keys[] = {"*"};
static const doorman_tier no_window = {.limit = 1};
static const doorman_override queue_of_keys = {all_keys, 1, {.queue = 1, .has_queue = true}};
static const struct {
    doorman_permit_limit limit;
    const char *in_c, *json, *in_json;
} wrong_limits[] = {
    {{.name = "a", .kind = DOORMAN_TOKEN_BUCKET},
     "figures.rate: ",
     "'kind': 'TOKEN_BUCKET', 'rate': 0, 'size': 1",
     "rate: "},
    {{.name = "a",
      .kind = DOORMAN_TIERS,
      .figures = {.tiers = &no_window, .tier_count = 1, .has_tiers = true}},
     "figures.tiers[0].window: ",
     "'kind': 'TIERS', 'tiers': [{'limit': 1, 'window': 0}]",
     "tiers[0].window: "},
    {{.name = "a",
      .kind = DOORMAN_FIXED_WINDOW,
      .figures = {.limit = 1, .window = 1},
      .overrides = &queue_of_keys,
      .override_count = 1},
     "overrides[0].figures.queue: only CONCURRENCY has one",
     "'kind': 'FIXED_WINDOW', 'limit': 1, 'window': 1, 'overrides': [{'keys': ['*'], "
     "'queue': 1}]",
     "overrides[0].queue: only CONCURRENCY has one"},
    {{.name = "a",
      .kind = DOORMAN_SLIDING_WINDOW,
      .figures = {.limit = 1, .calendar = DOORMAN_DAY}},
     "figures.calendar: only a FIXED_WINDOW follows it",
     "'kind': 'SLIDING_WINDOW', 'limit': 1, 'window': 'day'",
     "window: only a FIXED_WINDOW follows the calendar; must be a number of seconds"},
    {{.name = "a", .kind = DOORMAN_CONCURRENCY, .figures = {.limit = 1}, .empty_at_start = true},
     "empty_at_start: must be false for CONCURRENCY",
     NULL,
     NULL},
    {{.name = "a", .kind = DOORMAN_TIERS, .empty_at_start = true},
     "empty_at_start: must be false for TIERS",
     "'kind': 'TIERS', 'tiers': [], 'on_restart': 'empty'",
     "on_restart: must be full for TIERS"},
    {{.name = "a",
      .kind = DOORMAN_TOKEN_BUCKET,
      .per = DOORMAN_PER_RESOURCE,
      .leased = true,
      .figures = {.rate = 1}},
     "figures.rate: must be 0 if it is leased",
     NULL,
     NULL},
    {{.name = "a",
      .kind = DOORMAN_FIXED_WINDOW,
      .figures = {.limit = 1, .window = 1},
      .ban = {.refusals = 1, .window = 1}},
     "ban.duration: ",
     "'kind': 'FIXED_WINDOW', 'limit': 1, 'window': 1, 'ban': "
     "{'refusals': 1, 'window': 1, 'duration': 0}",
     "ban.duration: "},
};

/* Creates each wrong configuration, and reads the same configuration from JSON. */
TEST(errors_of_configurations_have_the_names_of_their_caller) {
    for (size_t i = 0; i < COUNT(wrong_limits); i++) {
        const doorman_template template_ = {.identifier_glob = "*",
                                            .capacity = 1,
                                            .has_limits = true,
                                            .limits = &wrong_limits[i].limit,
                                            .limit_count = 1};
        const doorman_config_options options = {.templates = &template_, .template_count = 1};
        doorman_config *config = NULL;
        doorman_error error = {0};
        char text[400], json[400];
        REFUSED(doorman_config_create(&config, &options, &error));
        snprintf(text, sizeof text, "templates[0].limits[0].%s", wrong_limits[i].in_c);
        check_text(__LINE__, &error, text);
        if (!wrong_limits[i].json) continue;
        snprintf(json, sizeof json,
                 "{'resources': [{'identifier_glob': '*', 'capacity': 1, "
                 "'limits': [{'name': 'a', %s}]}]}",
                 wrong_limits[i].json);
        for (char *at = json; *at; at++)
            if (*at == '\'') *at = '"';
        assert_true(doorman_json_config(&config, json, strlen(json), &error) != DOORMAN_OK);
        const char *path = strstr(error.text, "resources");
        assert_non_null(path);
        memmove(error.text, path, strlen(path) + 1);
        snprintf(text, sizeof text, "resources[0].limits[0].%s", wrong_limits[i].in_json);
        check_text(__LINE__, &error, text);
    }
}

/* A configuration remembers whether it was read from JSON. */
TEST(a_configuration_that_does_not_fit_has_the_names_of_its_caller) {
    static const char json[] = "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1}]}";
    const doorman_template template_ = {.identifier_glob = "*", .capacity = 1};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    const doorman_config_options none = {.templates = NULL};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    TEXT("templates[0].without_capacity: must be true, ",
         doorman_config_fits(config, true, &error));
    doorman_config_destroy(config);
    assert_int_equal(doorman_json_config(&config, json, strlen(json), NULL), DOORMAN_OK);
    TEXT("resources[0].capacity: must be absent, ", doorman_config_fits(config, true, &error));
    doorman_config_destroy(config);
    doorman_error warning = {0};
    assert_int_equal(doorman_config_create(&config, &none, &warning), DOORMAN_OK);
    check_text(__LINE__, &warning, "templates: is empty, so nothing is limited");
    doorman_config_destroy(config);
    assert_int_equal(doorman_json_config(&config, "{\"resources\": []}", 17, &warning), DOORMAN_OK);
    check_text(__LINE__, &warning, "line 1, column 2: resources: is empty, so nothing is limited");
    doorman_config_destroy(config);
}

TEST(estimates_refuse_null) {
    doorman_estimate *estimate = NULL;
    doorman_estimate_options options = {.minimum = 1};
    NAMED("out", doorman_estimate_create(NULL, &options, &error, 0));
    NAMED("options", doorman_estimate_create(&estimate, NULL, &error, 0));
    options.minimum = -1;
    NAMED("minimum", doorman_estimate_create(&estimate, &options, &error, 0));
    options = (doorman_estimate_options){.window = 1};
    NAMED("window", doorman_estimate_create(&estimate, &options, &error, 0));
    assert_null(estimate);
    options.window = 0;
    assert_int_equal(doorman_estimate_create(&estimate, &options, NULL, 0), DOORMAN_OK);
    assert_float_equal(doorman_estimate_add(estimate, NULL, DOORMAN_SECOND), 0, 0);
    assert_float_equal(doorman_estimate_add(NULL, NULL, 0), 0, 0);
    doorman_estimate_destroy(estimate);
    doorman_estimate_destroy(NULL);
}

TEST(shards_refuse_null) {
    const doorman_shards shards = {.count = 4, .seed = {1, 2}};
    const char *const address[] = {"tcp://a:1"};
    const doorman_shard_node node = {.name = "a", .addresses = address, .address_count = 1};
    doorman_shard owners[4] = {{.owner = 0}};
    const doorman_shard_map map = {
        .epoch = 1, .shards = shards, .owners = owners, .nodes = &node, .node_count = 1};
    doorman_shard_map *copy = NULL;
    doorman_buffer text = {0};
    assert_int_equal(doorman_shard_of(NULL, "r", "k", false), 0);
    assert_int_equal(doorman_shard_of(&shards, NULL, "k", false), 0);
    NAMED("out", doorman_shard_map_create(NULL, &map, &error));
    NAMED("map", doorman_shard_map_create(&copy, NULL, &error));
    doorman_shard_map wrong = map;
    wrong.owners = NULL;
    NAMED("owners", doorman_shard_map_create(&copy, &wrong, &error));
    wrong = map;
    wrong.rule_count = 1;
    NAMED("rules", doorman_shard_map_create(&copy, &wrong, &error));
    assert_int_equal(doorman_shard_map_find(NULL, "r", "k"), 0);
    assert_int_equal(doorman_shard_map_find(&map, NULL, "k"), 0);
    assert_int_equal(doorman_shard_map_node(NULL, "a"), 0);
    assert_int_equal(doorman_shard_map_node(&map, NULL), 1);
    assert_int_equal(doorman_shards_balance(NULL, 4, (const bool[]){true}, 1), 0);
    assert_int_equal(doorman_shards_balance(owners, 4, NULL, 1), 0);
    NAMED("out", doorman_json_read_shard_map(NULL, "{}", 2, &error));
    NAMED("text", doorman_json_read_shard_map(&copy, NULL, 2, &error));
    assert_int_equal(doorman_json_write_shard_map(NULL, &text), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_json_write_shard_map(&map, NULL), DOORMAN_INVALID_ARGUMENT);
    doorman_shard_map_destroy(NULL);
    assert_null(copy);
}

TEST(movers_of_shards_refuse_null) {
    doorman_shard_mover *mover = NULL;
    doorman_shard_action action;
    assert_int_equal(doorman_shard_mover_create(NULL, "a"), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_shard_mover_create(&mover, NULL), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_shard_mover_create(&mover, "a"), DOORMAN_OK);
    assert_int_equal(doorman_shard_mover_map(mover, NULL, true), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_shard_mover_map(NULL, NULL, true), DOORMAN_INVALID_ARGUMENT);
    doorman_shard_mover_start(mover);
    assert_false(doorman_shard_mover_next(mover, true, NULL));
    assert_false(doorman_shard_mover_next(NULL, true, &action));
    doorman_shard_mover_start(NULL);
    doorman_shard_mover_stop(NULL);
    doorman_shard_mover_end(NULL, DOORMAN_SHARD_DONE);
    assert_int_equal(doorman_shard_mover_state(NULL, 0), DOORMAN_SHARD_AWAY);
    doorman_shard_mover_destroy(mover);
    doorman_shard_mover_destroy(NULL);
}

TEST(permits_of_shards_refuse_null) {
    const doorman_shards shards = {.count = 4, .seed = {1, 2}}, many = {.count = 1025};
    const doorman_config_options options = {.shard_count = 4};
    doorman_config *config = NULL;
    doorman_permits *permits = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    const doorman_permits_options of = {.config = config, .seed = {1, 2}};
    assert_int_equal(doorman_permits_create(&permits, &of, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_permits_set_shards(NULL, &shards), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_set_shards(permits, &many), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_server_set_shards(NULL, &shards), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_server_set_shard_map(NULL, NULL), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_own(permits, 0, true, true, 0), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_set_shards(permits, &shards), DOORMAN_OK);
    assert_int_equal(doorman_permits_own(NULL, 0, true, true, 0), DOORMAN_INVALID_ARGUMENT);
    assert_false(doorman_permits_owns(NULL, 0));
    assert_false(doorman_permits_owns(permits, 4));
    assert_int_equal(doorman_permits_shard_decided(NULL, 0), 0);
    assert_int_equal(doorman_permits_shard_decided(permits, 4), 0);
    assert_int_equal(doorman_permits_shard_of(NULL, "r", "k"), 0);
    doorman_shard_cursor cursor = {0};
    unsigned char row[64] = {0};
    doorman_shard_part part = {0, row, 5}, other = {4, row, 5}, absent = {0, NULL, 5};
    size_t shard = 0;
    const doorman_status wrong = DOORMAN_INVALID_ARGUMENT;
    assert_int_equal(doorman_permits_next_shard_rows(NULL, 0, &cursor, &part, 0), wrong);
    assert_int_equal(doorman_permits_next_shard_rows(permits, 0, NULL, &part, 0), wrong);
    assert_int_equal(doorman_permits_next_shard_rows(permits, 0, &cursor, NULL, 0), wrong);
    assert_int_equal(doorman_permits_next_shard_rows(permits, 4, &cursor, &part, 0), wrong);
    NAMED("permits", doorman_permits_restore_shard(NULL, &part, NULL, &error, 0));
    NAMED("part", doorman_permits_restore_shard(permits, NULL, NULL, &error, 0));
    NAMED("rows", doorman_permits_restore_shard(permits, &absent, NULL, &error, 0));
    NAMED("shard", doorman_permits_restore_shard(permits, &other, NULL, &error, 0));
    assert_false(doorman_permits_find_shards(NULL, 1, 0));
    assert_int_equal(doorman_permits_drop_shard(NULL, 0, &cursor, 0), wrong);
    assert_int_equal(doorman_permits_drop_shard(permits, 0, NULL, 0), wrong);
    assert_int_equal(doorman_permits_drop_shard(permits, 4, &cursor, 0), wrong);
    assert_int_equal(doorman_permits_shard_of_row(NULL, row, 5, &shard), wrong);
    assert_int_equal(doorman_permits_shard_of_row(permits, NULL, 5, &shard), wrong);
    assert_int_equal(doorman_permits_shard_of_row(permits, row, 5, NULL), wrong);
    assert_int_equal(doorman_shard_part_add(NULL, 7, 0, row, 5), 7);
    assert_int_equal(doorman_shard_part_add(row, 7, 0, NULL, 5), 7);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

/* ---- the list is complete -------------------------------------------------------------------- */

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be read", path);
    size_t room = (size_t)4 << 20;
    char *text = malloc(room);
    assert_non_null(text);
    text[fread(text, 1, room - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* These functions have no pointers. */
static const char *const without_pointers[] = {"doorman_status_name", "doorman_method_name",
                                               "doorman_reason_name", "doorman_lease_reason_name",
                                               "doorman_clock"};

static bool has_pointers(const char *name, size_t bytes) {
    for (size_t i = 0; i < COUNT(without_pointers); i++) {
        if (strlen(without_pointers[i]) == bytes && !memcmp(without_pointers[i], name, bytes))
            return false;
    }
    return true;
}

/* Checks that this file names each public function of a header, except functions without pointers.
 * Returns how many public functions the header has. */
static size_t check_functions_of(const char *path) {
    char *header = read_file(path), *here = read_file("tests/unit/arguments_test.c");
    size_t count = 0;
    for (char *at = header; (at = strstr(at, "\nDOORMAN_API "));) {
        at += strlen("\nDOORMAN_API ");
        char *end = strchr(at, '('), *name = end;
        while (name > at && (name[-1] == '_' || (name[-1] >= 'a' && name[-1] <= 'z'))) name--;
        *end = '\0';
        if (has_pointers(name, strlen(name)) && !strstr(here, name))
            fail_msg("%s is not tested here", name);
        count++;
        at = end + 1;
    }
    free(header);
    free(here);
    return count;
}

TEST(every_public_function_is_in_this_file) {
    assert_true(check_functions_of("doorman.h") > 50);
    assert_true(check_functions_of("doorman_permits.h") > 50);
    assert_true(check_functions_of("doorman_throttle.h") > 10);
}
