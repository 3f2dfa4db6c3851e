/* C4: a call that runs out of memory says so in its status, and changes nothing. P9 is an
 * exception. Each function of the test cases is called while its first allocation fails, then while
 * its second allocation fails, and so on, until no allocation fails. Each test runs twice: one run
 * fails a single allocation, and the other run also fails all later allocations. After each failure
 * the visible state has not changed. The same call then has the result that it has without a
 * failure. At the end no memory is left allocated. */
#include "unit.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define DOORMAN_JSON
#define DOORMAN_NNG
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"
#include "../../doorman_throttle.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)
#define TEST_TIMEOUT (60 * SECOND)
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- texts: the visible state and the result of a call, for comparison ---------------------- */

typedef struct text {
    char *at;
    size_t bytes, capacity;
} text;

static void add(text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(text *to, const char *format, ...) {
    for (;;) {
        va_list values;
        va_start(values, format);
        size_t room = to->capacity - to->bytes;
        size_t bytes = (size_t)vsnprintf(to->at ? to->at + to->bytes : NULL, room, format, values);
        va_end(values);
        if (bytes < room) {
            to->bytes += bytes;
            return;
        }
        to->capacity = 2 * (to->capacity + bytes + 1);
        to->at = realloc(to->at, to->capacity);
        assert_non_null(to->at);
    }
}

static void text_start(text *t) {
    t->bytes = 0;
    add(t, "\n");
}

static void text_end(text *t) {
    free(t->at);
    *t = (text){NULL, 0, 0};
}

/* ---- the fixture: a root, a node below it, and a client of each ----------------------------- */

enum { RESOURCES = 2 };

static const char *const resource_ids[2][RESOURCES] = {{"db/1", "disk"}, {"db/1", "net"}};

typedef struct fixture {
    doorman_time now;
    doorman_config *config, *other_config;
    doorman_server *root, *node;
    doorman_client *clients[2]; /* one of the root, one of the node */
    doorman_client_resource *resources[2][RESOURCES];

    /* The result of the call. */
    text outcome;
    doorman_config *created_config;
    doorman_server *created_server;
    doorman_client *created_client;
    doorman_client_resource *created_resource;
    doorman_agent *agent;
    doorman_transport *transport;
    doorman_buffer reply;
    doorman_json_exchange exchange;
    doorman_permits *permits;
    doorman_limiter_map *map;
    doorman_throttle *throttle;
    doorman_permit_client *permit_client;

    /* The input of the call. */
    doorman_request request;
    doorman_buffer message; /* a message to the root, or its response */
} fixture;

static const doorman_template templates[] = {
    {.identifier_glob = "db/*",
     .description = "queries a second",
     .unit = "queries/s",
     .capacity = 100,
     .has_safe_capacity = true,
     .safe_capacity = 3,
     .has_algorithm = true,
     .algorithm = {.kind = DOORMAN_PRIORITY_SHARE,
                   .has_learning_mode_duration = true,
                   .reserve = 0.1}},
    {.identifier_glob = "disk",
     .capacity = 40,
     .whole = true,
     .has_algorithm = true,
     .algorithm = {.has_learning_mode_duration = true}},
    {.identifier_glob = "*",
     .capacity = 25,
     .whole = true,
     .has_algorithm = true,
     .algorithm = {.kind = DOORMAN_PROPORTIONAL_SHARE, .has_learning_mode_duration = true}},
};
static const doorman_config_options all_templates = {.templates = templates,
                                                     .template_count = COUNT_OF(templates)};
/* A configuration without the first template, and with more capacity in the other templates. */
static const doorman_template fewer[] = {
    {.identifier_glob = "disk", .capacity = 300, .has_algorithm = true},
    {.identifier_glob = "*", .capacity = 200, .has_algorithm = true},
};

static const char *const parents[] = {"tcp://root:1", "tcp://root:2"};
static const char *const children[] = {"tcp://node:1"};

static doorman_server *start_server(const fixture *s, const char *name) {
    bool is_root = strcmp(name, "root") == 0;
    doorman_server_options options = {.node = name, .seed = {3, 4}};
    if (is_root) options.config = s->config;
    if (!is_root) options.parents = parents;
    if (!is_root) options.parent_count = COUNT_OF(parents);
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    assert_int_equal(doorman_server_create(&server, &options, NULL, s->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &mastership, s->now), DOORMAN_OK);
    return server;
}

static void start_client(fixture *s, int which) {
    const doorman_client_options options = {.client_id = which ? "of the node" : "of the root",
                                            .addresses = which ? children : parents,
                                            .address_count = 1,
                                            .seed = 5};
    assert_int_equal(doorman_client_create(&s->clients[which], &options, NULL, s->now), DOORMAN_OK);
    for (int i = 0; i < RESOURCES; i++) {
        const doorman_resource_options resource = {.resource_id = resource_ids[which][i],
                                                   .wants = 30 + 10 * i};
        assert_int_equal(doorman_client_open(&s->resources[which][i], s->clients[which], &resource,
                                             NULL, s->now),
                         DOORMAN_OK);
    }
}

/* Delivers the request that is due, and its response. Does nothing if no request is due. */
static void exchange(fixture *s, doorman_upstream *upstream, doorman_server *server) {
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, s->now)) return;
    assert_int_equal(doorman_server_handle(server, &request, &response, NULL, s->now), DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, s->now),
                     DOORMAN_OK);
}

static void exchange_all(fixture *s) {
    for (int round = 0; round < 3; round++, s->now += 5 * SECOND) {
        exchange(s, doorman_client_upstream(s->clients[0]), s->root);
        exchange(s, doorman_client_upstream(s->clients[1]), s->node);
        exchange(s, doorman_server_upstream(s->node), s->root);
    }
}

static fixture *fixture_start(void) {
    fixture *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->now = 1000 * SECOND;
    assert_int_equal(doorman_config_create(&s->config, &all_templates, NULL), DOORMAN_OK);
    s->root = start_server(s, "root");
    s->node = start_server(s, "node");
    start_client(s, 0);
    start_client(s, 1);
    exchange_all(s);
    return s;
}

static void fixture_stop(fixture *s) {
    doorman_agent_stop(s->agent);
    doorman_transport_destroy(s->transport);
    doorman_client_destroy(s->created_client);
    doorman_server_destroy(s->created_server);
    for (int i = 0; i < 2; i++) doorman_client_destroy(s->clients[i]);
    doorman_server_destroy(s->node);
    doorman_server_destroy(s->root);
    doorman_config_destroy(s->config);
    doorman_config_destroy(s->other_config);
    doorman_config_destroy(s->created_config);
    doorman_buffer_uninit(&s->reply);
    doorman_buffer_uninit(&s->message);
    doorman_json_exchange_uninit(&s->exchange);
    doorman_permits_destroy(s->permits);
    doorman_limiter_map_destroy(s->map);
    doorman_throttle_destroy(s->throttle);
    doorman_permit_client_destroy(s->permit_client);
    text_end(&s->outcome);
    free(s);
}

/* ---- the visible state ---------------------------------------------------------------------- */

/* Writes the leases of a resource. Checks that they add up to its sums, and that a root commits no
 * more than its capacity. A node whose own lease has ended may commit more: it has no capacity,
 * although the leases of its holders may last a little longer. */
static void dump_resource(text *output, doorman_server *server,
                          const doorman_server_resource *resource, doorman_time now) {
    add(output,
        "%s capacity %.17g leased %d %" PRId64 " outcome %d expired %" PRIu64 " learns %" PRId64
        " safe %.17g\n",
        resource->resource_id, resource->capacity, resource->leased, resource->lease_end,
        (int)resource->outcome, resource->expired_count, resource->learned_at,
        resource->safe_capacity);
    double has = 0, counted = 0, wants = 0, subclients = 0;
    size_t holders = 0;
    doorman_server_lease lease;
    doorman_cursor cursor = {0};
    while (doorman_server_next_lease(server, resource->resource_id, &cursor, &lease, now)) {
        add(output,
            "    %s %d has %.17g committed %.17g wants %.17g of %.17g, %d, %" PRId64 " to %" PRId64
            "\n",
            lease.holder_id, lease.is_server, lease.has, lease.committed, lease.wants,
            lease.subclients, lease.priority, lease.granted_at, lease.expires_at);
        has += lease.has, counted += lease.committed, wants += lease.wants;
        subclients += lease.subclients;
        holders++;
    }
    assert_about(resource->has, has);
    assert_about(resource->committed, counted);
    assert_about(resource->wants, wants);
    assert_about(resource->subclients, subclients);
    assert_int_equal(resource->holder_count, holders);
    bool is_root = !doorman_server_upstream(server);
    if (is_root) assert_true(resource->committed <= resource->capacity);
}

static void dump_server(text *output, doorman_server *server, doorman_time now) {
    doorman_server_resource resource;
    doorman_cursor cursor = {0};
    while (doorman_server_next_resource(server, &cursor, &resource, now)) {
        dump_resource(output, server, &resource, now);
    }
    const doorman_upstream *upstream = doorman_server_upstream(server);
    if (upstream->address_count) add(output, "address %s\n", doorman__upstream_address(upstream));
}

static void dump_client(text *output, const fixture *s, int which) {
    for (int i = 0; i < RESOURCES; i++) {
        doorman_resource_info info;
        doorman_client_read(s->resources[which][i], &info, s->now);
        add(output,
            "%s leased %d capacity %.17g wants %.17g until %" PRId64 " outcome %d, %" PRIu64
            " failures\n",
            info.resource_id, info.leased, info.capacity, info.wants, info.expires_at,
            (int)info.outcome, info.refresh_failures);
    }
    add(output, "due %" PRId64 " at %s\n",
        doorman_upstream_due(doorman_client_upstream(s->clients[which])),
        doorman__upstream_address(doorman_client_upstream(s->clients[which])));
}

static void dump_state(const fixture *s, text *output) {
    text_start(output);
    dump_server(output, s->root, s->now);
    dump_server(output, s->node, s->now);
    for (int i = 0; i < 2; i++) dump_client(output, s, i);
}

/* ---- test cases: a call, and its result ----------------------------------------------------- */

typedef struct test_case {
    const char *function;        /* the function under test */
    const char *promise;         /* what happens without memory; the name of the test */
    void (*prepare)(fixture *s); /* may be NULL */
    /* May be called repeatedly. Writes its result to s->outcome. */
    doorman_status (*call)(fixture *s);
    size_t failures; /* the least number of allocations whose failure makes the call fail */
} test_case;

/* Runs a test case with a new fixture while allocation number `nth` fails. If `once` is false, all
 * later allocations fail too. `expected` is the state and the result without a failure. Returns
 * whether no allocation failed. */
static bool test_case_try(const test_case *test, size_t nth, bool once, const text *expected,
                          size_t *failures) {
    size_t blocks = memory_blocks();
    text before = {NULL, 0, 0}, after = {NULL, 0, 0};
    fixture *s = fixture_start();
    if (test->prepare) test->prepare(s);
    dump_state(s, &before);
    if (once) memory_fails_at(nth);
    if (!once) memory_fails_from(nth);
    text_start(&s->outcome);
    doorman_status status = test->call(s);
    bool worked = memory_works();
    if (status != DOORMAN_OK) {
        assert_false(worked);
        assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
        ++*failures;
        dump_state(s, &after);
        assert_string_equal(after.at, before.at);
        text_start(&s->outcome);
        assert_int_equal(test->call(s), DOORMAN_OK);
    }
    dump_state(s, &after);
    add(&after, "%s", s->outcome.at);
    assert_string_equal(after.at, expected->at);
    fixture_stop(s);
    text_end(&before);
    text_end(&after);
    assert_int_equal(memory_blocks(), blocks);
    return worked;
}

static void test_case_run(void **state) {
    const test_case *test = (const test_case *)*state;
    text expected = {NULL, 0, 0};
    fixture *s = fixture_start();
    if (test->prepare) test->prepare(s);
    text_start(&s->outcome);
    assert_int_equal(test->call(s), DOORMAN_OK);
    dump_state(s, &expected);
    add(&expected, "%s", s->outcome.at);
    fixture_stop(s);
    for (int once = 0; once < 2; once++) {
        size_t nth = 1, failures = 0;
        while (!test_case_try(test, nth, once, &expected, &failures)) assert_true(++nth < 10000);
        if (failures < test->failures) {
            fail_msg("%s: only %zu of %zu failing allocations make it fail", test->function,
                     failures, nth - 1);
        }
    }
    text_end(&expected);
}

/* ---- configurations and shares */

static void dump_config(text *outcome, const doorman_config *config) {
    doorman_config_options read;
    doorman_config_read(config, &read);
    const doorman_template *all = read.templates;
    for (size_t i = 0; i < read.template_count; i++) {
        add(outcome, "%s (%s) %s %.17g %d %.17g\n", all[i].identifier_glob, all[i].description,
            all[i].unit, all[i].capacity, (int)all[i].algorithm.kind, all[i].algorithm.reserve);
    }
}

static doorman_status create_config(fixture *s) {
    doorman_error error = {0};
    doorman_status status = doorman_config_create(&s->created_config, &all_templates, &error);
    if (status != DOORMAN_OK) assert_null(s->created_config);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    if (status == DOORMAN_OK) dump_config(&s->outcome, s->created_config);
    return status;
}

static doorman_status compute_shares(fixture *s) {
    enum { DEMANDS = 500 };
    doorman_demand demands[DEMANDS];
    for (int i = 0; i < DEMANDS; i++) demands[i] = (doorman_demand){i * 37 % 101, 1 + i % 7, i % 3};
    double amounts[DEMANDS] = {-1};
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t count = 77;
    doorman_error error = {0};
    doorman_status status = doorman_shares(&templates[0].algorithm, 9000, demands, DEMANDS, amounts,
                                           terms, &count, &error);
    if (status != DOORMAN_OK) assert_int_equal(count, 77);
    if (status != DOORMAN_OK) assert_true(amounts[0] < 0);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    for (size_t i = 0; status == DOORMAN_OK && i < count; i++) {
        add(&s->outcome, "%d %.17g %.17g\n", terms[i].priority, terms[i].level, terms[i].slope);
    }
    for (int i = 0; status == DOORMAN_OK && i < DEMANDS; i++) {
        add(&s->outcome, "%.17g\n", amounts[i]);
    }
    return status;
}

/* ---- permits */

static const doorman_tier tiers[] = {{.limit = 4, .window = SECOND, .active = SECOND}};
static const char *const vip_keys[] = {"vip-*"};
static const doorman_override overrides[] = {
    {.keys = vip_keys, .key_count = 1, .figures = {.has_limit = true, .limit = 9}}};
static const doorman_plan plans[] = {{"free", {.has_limit = true, .limit = 2}},
                                     {"pro", {.has_limit = true, .limit = 8}}};
static const doorman_permit_limit limits[] = {
    {.name = "bucket",
     .kind = DOORMAN_TOKEN_BUCKET,
     .figures = {.rate = 1, .size = 3},
     .ban = {.refusals = 2, .window = SECOND, .duration = SECOND}},
    {.name = "window",
     .kind = DOORMAN_FIXED_WINDOW,
     .figures = {.limit = 5, .calendar = DOORMAN_DAY},
     .overrides = overrides,
     .override_count = 1,
     .plans = plans,
     .plan_count = 2},
    {.name = "tiers",
     .per = DOORMAN_PER_TEMPLATE,
     .kind = DOORMAN_TIERS,
     .figures = {.tiers = tiers, .tier_count = 1}}};
static const doorman_permit_limit slots = {
    .name = "slots",
    .kind = DOORMAN_CONCURRENCY,
    .figures = {.limit = 1, .queue = 4, .has_max_wait = true, .max_wait = SECOND},
    .full_at_start = true};
static const doorman_template with_limits[] = {
    {.identifier_glob = "slots",
     .without_capacity = true,
     .has_limits = true,
     .limits = &slots,
     .limit_count = 1},
    {.identifier_glob = "*",
     .without_capacity = true,
     .has_limits = true,
     .limits = limits,
     .limit_count = COUNT_OF(limits)},
};
static const char *const in_shadow[] = {"beta-*"};
static const doorman_descriptor_match of_path = {"path", "/login*"};
static const doorman_descriptor_rule of_descriptors = {
    .domain = "shop", .entries = &of_path, .entry_count = 1, .resource = "r", .key = "{path}"};

static doorman_status create_limits(fixture *s) {
    const doorman_config_options options = {.templates = with_limits,
                                            .template_count = COUNT_OF(with_limits),
                                            .shadow = in_shadow,
                                            .shadow_count = COUNT_OF(in_shadow),
                                            .descriptors = &of_descriptors,
                                            .descriptor_count = 1};
    doorman_status status = doorman_config_create(&s->other_config, &options, NULL);
    if (status != DOORMAN_OK) assert_null(s->other_config);
    return status;
}

static doorman_status create_permits(fixture *s) {
    const doorman_permits_options options = {.config = s->other_config, .seed = {5, 6}};
    doorman_error error = {0};
    doorman_status status = doorman_permits_create(&s->permits, &options, &error, s->now);
    if (status != DOORMAN_OK) assert_null(s->permits);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static void prepare_limits(fixture *s) { assert_int_equal(create_limits(s), DOORMAN_OK); }

static void prepare_permits(fixture *s) {
    prepare_limits(s);
    assert_int_equal(create_permits(s), DOORMAN_OK);
}

static size_t permit_counters(fixture *s) {
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    return info.counter_count;
}

static doorman_status acquire_permit(fixture *s) {
    const doorman_permit_item items[] = {{.resource_id = "r", .key = "a", .cost = 1},
                                         {.resource_id = "s", .key = "vip-1", .cost = 2}};
    const doorman_permit_request request = {.items = items, .item_count = 2, .detail = true};
    doorman_permit permit = {.granted = false};
    doorman_status status = doorman_permits_acquire(s->permits, &request, &permit, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(permit_counters(s), 0);
    if (status != DOORMAN_OK) return status;
    assert_true(permit.granted);
    add(&s->outcome, "%zu counters, %zu details\n", permit_counters(s), permit.detail_count);
    return status;
}

static void prepare_counters(fixture *s) {
    prepare_permits(s);
    assert_int_equal(acquire_permit(s), DOORMAN_OK);
}

/* P31: acquires with a size that replaces that of the limit. After a failure the size is
 * forgotten. */
static doorman_status acquire_with_figures(fixture *s) {
    const doorman_permit_set set = {.limit = "bucket", .figures = {.has_size = true, .size = 20}};
    const doorman_permit_item item = {
        .resource_id = "r", .key = "a", .cost = 1, .sets = &set, .set_count = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    doorman_permit permit = {.granted = false};
    doorman_status status = doorman_permits_acquire(s->permits, &request, &permit, NULL, s->now);
    assert_int_equal(s->permits->sets.count, status == DOORMAN_OK);
    if (status != DOORMAN_OK) return status;
    assert_true(permit.granted);
    add(&s->outcome, "%.17g of %.17g\n", permit.details[0].remaining, permit.details[0].most);
    return status;
}

static doorman_status inspect_permits(fixture *s) {
    doorman_permit permit = {.granted = false};
    doorman_status status =
        doorman_permits_inspect(s->permits, ITEM_OF("r", "a"), &permit, NULL, s->now);
    if (status == DOORMAN_OK) add(&s->outcome, "%zu details\n", permit.detail_count);
    return status;
}

static doorman_status report_cost(fixture *s) {
    double charged = -1;
    doorman_status status = doorman_permits_report(
        s->permits, &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = 2}, &charged,
        NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(permit_counters(s), 0);
    if (status == DOORMAN_OK) add(&s->outcome, "charged %.17g\n", charged);
    return status;
}

static const doorman_permit_item settled_items[] = {{.resource_id = "r", .key = "a", .cost = 3},
                                                    {.resource_id = "s", .key = "b", .cost = 1}};

static size_t open_reservations(fixture *s) {
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    return info.reservation_count;
}

static doorman_status reserve_units(fixture *s) {
    const doorman_permit_item items[] = {{.resource_id = "r", .key = "a", .cost = 2},
                                         {.resource_id = "s", .key = "b", .cost = 2}};
    const doorman_permit_request request = {.items = items,
                                            .item_count = 2,
                                            .client_id = "c",
                                            .request_id = 7,
                                            .settle_within = SECOND};
    doorman_permit permit = {.granted = false};
    doorman_status status = doorman_permits_acquire(s->permits, &request, &permit, NULL, s->now);
    assert_int_equal(open_reservations(s), status == DOORMAN_OK);
    if (status != DOORMAN_OK) assert_int_equal(permit_counters(s), 0);
    if (status == DOORMAN_OK) assert_true(permit.granted && permit.reservation_id);
    return status;
}

static void prepare_reservation(fixture *s) {
    prepare_permits(s);
    assert_int_equal(reserve_units(s), DOORMAN_OK);
}

static doorman_status settle_units(fixture *s) {
    const doorman_settle_request request = {
        .client_id = "c", .request_id = 7, .items = settled_items, .item_count = 2};
    doorman_settlement out;
    doorman_status status = doorman_permits_settle(s->permits, &request, &out, NULL, s->now);
    assert_int_equal(open_reservations(s), status != DOORMAN_OK);
    if (status != DOORMAN_OK) return status;
    add(&s->outcome, "%.17g charged, %.17g charged\n", out.items[0].charged, out.items[1].charged);
    return status;
}

static doorman_status settle_unknown(fixture *s) {
    const doorman_settle_request request = {
        .client_id = "c", .id = 7, .items = settled_items, .item_count = 2};
    doorman_settlement out;
    doorman_status status = doorman_permits_settle(s->permits, &request, &out, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(permit_counters(s), 0);
    if (status == DOORMAN_OK) add(&s->outcome, "unknown: %d\n", out.unknown);
    return status;
}

static doorman_status report_cost_once(fixture *s) {
    const doorman_settle_request request = {
        .client_id = "c", .request_id = 7, .items = settled_items, .item_count = 2};
    doorman_settlement out;
    doorman_status status = doorman_permits_report_once(s->permits, &request, &out, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(permit_counters(s), 0);
    if (status == DOORMAN_OK) add(&s->outcome, "charged %.17g\n", out.items[0].charged);
    return status;
}

static doorman_status reset_permits(fixture *s) {
    return doorman_permits_reset(s->permits, ITEM_OF("r", "a"), NULL, NULL, NULL);
}

static doorman_status ban_key(fixture *s) {
    doorman_status status =
        doorman_permits_ban(s->permits, ITEM_OF("r", "a"), SECOND, NULL, s->now);
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    assert_int_equal(info.ban_count, status == DOORMAN_OK);
    return status;
}

static const doorman_override_row override_row = {.resource_id = "r",
                                                  .limit = "window",
                                                  .key = "a",
                                                  .id = 1,
                                                  .figures = {.limit = 9, .has_limit = true}};

static doorman_status set_override(fixture *s) {
    doorman_status status = doorman_permits_set_override(s->permits, &override_row, NULL, s->now);
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    assert_int_equal(info.override_count, status == DOORMAN_OK);
    return status;
}

static doorman_status restore_override(fixture *s) {
    doorman_status status =
        doorman_permits_restore_override(s->permits, &override_row, NULL, s->now);
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    assert_int_equal(info.override_count, status == DOORMAN_OK);
    return status;
}

static void prepare_override(fixture *s) {
    prepare_permits(s);
    assert_int_equal(set_override(s), DOORMAN_OK);
}

static doorman_status replace_override(fixture *s) {
    doorman_override_info info;
    doorman_override_row other = override_row;
    other.figures.limit = 8;
    doorman_status status = doorman_permits_set_override(s->permits, &other, NULL, s->now);
    assert_true(doorman_permits_find_override(s->permits, &other, &info));
    assert_exact(info.all.limit, status == DOORMAN_OK ? 8 : 9);
    return status;
}

static doorman_status look_after_override(fixture *s) {
    doorman_permit_detail detail;
    doorman_status status =
        doorman_permits_after_override(s->permits, &override_row, &detail, NULL, s->now);
    if (status == DOORMAN_OK) add(&s->outcome, "%g of %g\n", detail.used, detail.most);
    return status;
}

static const doorman_plan_row plan_row = {
    .identifier_glob = "*", .key = "a", .plan = "pro", .id = 1};

static doorman_status note_plan(const fixture *s, doorman_status status) {
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    assert_int_equal(info.plan_count, status == DOORMAN_OK);
    return status;
}

static doorman_status set_plan(fixture *s) {
    return note_plan(s, doorman_permits_set_plan(s->permits, &plan_row, NULL, s->now));
}

static doorman_status restore_plan(fixture *s) {
    return note_plan(s, doorman_permits_restore_plan(s->permits, &plan_row, NULL, s->now));
}

/* A row of a counter that prepare_row_of has taken from another object of permits. */
static unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
static size_t row_bytes;

/* Creates permits, and a row of a counter that they do not have.
 *   removed   the row says that the counter was removed */
static void prepare_row_of(fixture *s, bool removed) {
    const doorman_permit_limit limit = {
        .name = "q", .kind = DOORMAN_FIXED_WINDOW, .figures = {.limit = 4, .window = 100 * SECOND}};
    const doorman_template template_ = {.identifier_glob = "*",
                                        .without_capacity = true,
                                        .has_limits = true,
                                        .limits = &limit,
                                        .limit_count = 1};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    assert_int_equal(doorman_config_create(&s->other_config, &options, NULL), DOORMAN_OK);
    const doorman_permits_options permits = {.config = s->other_config, .seed = {1, 2}};
    doorman_permits *writer = NULL;
    double charged = 0;
    assert_int_equal(doorman_permits_create(&writer, &permits, NULL, s->now), DOORMAN_OK);
    assert_int_equal(doorman_permits_create(&s->permits, &permits, NULL, s->now), DOORMAN_OK);
    const doorman_permit_item item = {.resource_id = "r", .key = "a", .cost = 1};
    assert_int_equal(doorman_permits_report(writer, &item, &charged, NULL, s->now), DOORMAN_OK);
    row_bytes = doorman_permits_next_changed(writer, row, s->now);
    if (removed) {
        assert_int_equal(doorman_permits_reset(writer, ITEM_OF("r", "a"), "q", NULL, NULL),
                         DOORMAN_OK);
        row_bytes = doorman_permits_next_changed(writer, row, s->now);
    }
    assert_true(row_bytes > 0);
    doorman_permits_destroy(writer);
}

static void prepare_row(fixture *s) { prepare_row_of(s, false); }
static void prepare_removal(fixture *s) { prepare_row_of(s, true); }

static doorman_status restore_row(fixture *s) {
    doorman_status status = doorman_permits_restore(s->permits, row, row_bytes, NULL, s->now);
    assert_int_equal(permit_counters(s), status == DOORMAN_OK);
    return status;
}

static doorman_status restore_rows(fixture *s) {
    const doorman_stored_row rows[] = {{row, row_bytes}};
    size_t count = 1;
    doorman_status status = doorman_permits_restore_rows(s->permits, rows, &count, NULL, s->now);
    assert_int_equal(permit_counters(s), status == DOORMAN_OK);
    assert_int_equal(count, status == DOORMAN_OK);
    return status;
}

static doorman_status mark_removal(fixture *s) {
    doorman_status status = doorman_permits_mark_changed(s->permits, row, row_bytes, NULL);
    doorman_permits_info info;
    doorman_permits_read(s->permits, &info);
    assert_int_equal(info.changed_count, status == DOORMAN_OK);
    return status;
}

/* Creates permits with one hold of 2 units. */
static void prepare_holds(fixture *s) {
    const doorman_permit_limit limit = {
        .name = "slots", .kind = DOORMAN_CONCURRENCY, .figures = {.limit = 4}};
    const doorman_template template_ = {.identifier_glob = "*",
                                        .without_capacity = true,
                                        .has_limits = true,
                                        .limits = &limit,
                                        .limit_count = 1};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    assert_int_equal(doorman_config_create(&s->other_config, &options, NULL), DOORMAN_OK);
    const doorman_permits_options permits = {
        .config = s->other_config, .seed = {1, 2}, .learns_until = s->now};
    assert_int_equal(doorman_permits_create(&s->permits, &permits, NULL, s->now), DOORMAN_OK);
    const doorman_permit_item item = {.resource_id = "r", .key = "a", .cost = 2};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = "ann", .request_id = 1};
    doorman_permit permit = {.granted = false};
    assert_int_equal(doorman_permits_acquire(s->permits, &request, &permit, NULL, s->now),
                     DOORMAN_OK);
    assert_true(permit.granted);
}

/* Calls a function of holds on the hold that was granted last. Without memory the hold keeps its
 * units. */
static doorman_status
call_holds(fixture *s, doorman_status (*function)(doorman_permits *, const doorman_hold_request *,
                                                  doorman_hold *, doorman_error *, doorman_time)) {
    const doorman__hold *last = s->permits->holds.granted.last;
    const bool seizes = last->state == DOORMAN__TRANSFERRED;
    const doorman_hold_request request = {
        .client_id = seizes ? "bob" : "ann",
        .id = last->id,
        .request_id =
            function == doorman_permits_transfer || function == doorman_permits_seize ? 9 : 0};
    doorman_permits_info before, after;
    doorman_hold hold = {.gone = true};
    doorman_permits_read(s->permits, &before);
    doorman_status status = function(s->permits, &request, &hold, NULL, s->now);
    doorman_permits_read(s->permits, &after);
    if (status != DOORMAN_OK) assert_int_equal(after.hold_count, before.hold_count);
    if (status == DOORMAN_OK) assert_false(hold.gone);
    if (status == DOORMAN_OK) add(&s->outcome, "%zu holds\n", after.hold_count);
    return status;
}

static doorman_status renew_hold(fixture *s) { return call_holds(s, doorman_permits_renew); }
static doorman_status release_hold(fixture *s) { return call_holds(s, doorman_permits_release); }
static doorman_status transfer_hold(fixture *s) { return call_holds(s, doorman_permits_transfer); }
static doorman_status seize_hold(fixture *s) { return call_holds(s, doorman_permits_seize); }

static void prepare_transfer(fixture *s) {
    prepare_holds(s);
    assert_int_equal(transfer_hold(s), DOORMAN_OK);
    unit_free(s->permits->holds.items);
    s->permits->holds.items = NULL;
    s->permits->holds.item_capacity = 0;
}

static doorman_status configure_permits(fixture *s) {
    doorman_status status = doorman_permits_configure(s->permits, s->config);
    assert_ptr_equal(s->permits->config, status == DOORMAN_OK ? s->config : s->other_config);
    return status;
}

/* Creates permits with counters, and then loads a configuration with a second tier, for which one
 * counter needs memory. */
static void prepare_wider(fixture *s) {
    prepare_permits(s);
    assert_int_equal(acquire_permit(s), DOORMAN_OK);
    const doorman_tier more_tiers[] = {tiers[0], tiers[0]};
    doorman_permit_limit more[COUNT_OF(limits)];
    memcpy(more, limits, sizeof limits);
    more[2].figures = (doorman_figures){.tiers = more_tiers, .tier_count = 2};
    doorman_template wider = with_limits[1];
    wider.limits = more;
    wider.limit_count = COUNT_OF(more);
    const doorman_config_options options = {.templates = &wider, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_permits_configure(s->permits, config), DOORMAN_OK);
    doorman_config_destroy(s->other_config);
    s->other_config = config;
}

static doorman_status list_counters(fixture *s) {
    doorman_counter_cursor cursor = {0};
    doorman_permits_counter counter;
    doorman_status status = DOORMAN_OK;
    size_t count = 0;
    for (; status == DOORMAN_OK && count < 100; count++) {
        status = doorman_permits_next_counter(s->permits, NULL, &cursor, &counter, s->now);
    }
    if (status != DOORMAN_NOT_FOUND) return status;
    add(&s->outcome, "%zu counters listed\n", count - 1);
    return DOORMAN_OK;
}

/* Creates a master with limits. */
static void prepare_limits_server(fixture *s) {
    prepare_limits(s);
    const doorman_server_options options = {
        .node = "limits", .config = s->other_config, .seed = {3, 4}};
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_create(&s->created_server, &options, NULL, s->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(s->created_server, &mastership, s->now), DOORMAN_OK);
}

/* P9: a call that runs out of memory may have charged some units. Here the costs are 0, so even
 * such a call must leave the state as it was. */
static doorman_status acquire_from_server(fixture *s) {
    const doorman_permit_item items[] = {{.resource_id = "r", .key = "a"},
                                         {.resource_id = "s", .key = "vip-1"}};
    const doorman_permit_request permits[] = {{.items = items, .item_count = 2, .detail = true},
                                              {.items = items, .item_count = 1}};
    const doorman_request request = {.method = DOORMAN_ACQUIRE,
                                     .holder_id = "c",
                                     .permits = permits,
                                     .permit_count = COUNT_OF(permits)};
    doorman_response response = {.permit_count = 77};
    doorman_status status =
        doorman_server_handle(s->created_server, &request, &response, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(response.permit_count, 77);
    for (size_t i = 0; status == DOORMAN_OK && i < response.permit_count; i++) {
        add(&s->outcome, "%d, %zu details\n", response.permits[i].granted,
            response.permits[i].detail_count);
    }
    return status;
}

/* Sends a message of two entries. */
static doorman_status send_entries(fixture *s, doorman_method method) {
    const doorman_permit_entry entries[] = {{.resource_id = "r", .key = "a"},
                                            {.resource_id = "s", .key = "vip-1"}};
    const doorman_request request = {
        .method = method, .holder_id = "c", .entries = entries, .entry_count = COUNT_OF(entries)};
    doorman_response response = {.result_count = 77};
    doorman_status status =
        doorman_server_handle(s->created_server, &request, &response, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(response.result_count, 77);
    for (size_t i = 0; status == DOORMAN_OK && i < response.result_count; i++) {
        const doorman_permit_result *result = &response.results[i];
        add(&s->outcome, "%.17g charged, %zu removed, %zu details\n", result->charged,
            result->count, result->state.detail_count);
    }
    return status;
}

static doorman_status report_to_server(fixture *s) { return send_entries(s, DOORMAN_REPORT); }

static doorman_status settle_at_server(fixture *s) {
    const doorman_settle_request settle = {
        .request_id = 7, .items = settled_items, .item_count = 2};
    const doorman_request request = {
        .method = DOORMAN_SETTLE, .holder_id = "c", .settles = &settle, .settle_count = 1};
    doorman_response response = {.settlement_count = 77};
    doorman_status status =
        doorman_server_handle(s->created_server, &request, &response, NULL, s->now);
    if (status != DOORMAN_OK) assert_int_equal(response.settlement_count, 77);
    if (status == DOORMAN_OK) add(&s->outcome, "unknown: %d\n", response.settlements[0].unknown);
    return status;
}

static doorman_status inspect_at_server(fixture *s) { return send_entries(s, DOORMAN_INSPECT); }
static doorman_status reset_at_server(fixture *s) { return send_entries(s, DOORMAN_RESET); }

static doorman_status create_map(fixture *s) {
    const doorman_limiter_map_options options = {
        .limit = {.kind = DOORMAN_FIXED_WINDOW, .limit = 2, .window = SECOND}, .seed = {1, 2}};
    doorman_status status = doorman_limiter_map_create(&s->map, &options, NULL);
    if (status != DOORMAN_OK) assert_null(s->map);
    return status;
}

static doorman_status create_throttle(fixture *s) {
    const doorman_throttle_options options = {.queue_cost = 100, .queue_max = 10, .seed = {1, 2}};
    doorman_status status = doorman_throttle_create(&s->throttle, &options, NULL);
    if (status != DOORMAN_OK) assert_null(s->throttle);
    return status;
}

/* ---- servers */

static doorman_status create_server(fixture *s, const doorman_server_options *options) {
    doorman_error error = {0};
    doorman_status status = doorman_server_create(&s->created_server, options, &error, s->now);
    if (status != DOORMAN_OK) assert_null(s->created_server);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static doorman_status create_root(fixture *s) {
    const doorman_server_options options = {.node = "new", .config = s->config, .seed = {3, 4}};
    return create_server(s, &options);
}

static doorman_status create_node(fixture *s) {
    const doorman_server_options options = {
        .node = "new", .parents = parents, .parent_count = COUNT_OF(parents), .seed = {3, 4}};
    return create_server(s, &options);
}

static void create_other_config(fixture *s) {
    const doorman_config_options options = {.templates = fewer, .template_count = COUNT_OF(fewer)};
    assert_int_equal(doorman_config_create(&s->other_config, &options, NULL), DOORMAN_OK);
}

static doorman_status configure_server(fixture *s) {
    doorman_status status = doorman_server_configure(s->root, s->other_config, s->now);
    assert_ptr_equal(s->root->config, status == DOORMAN_OK ? s->other_config : s->config);
    return status;
}

/* What a master has handed over. */
static unsigned char handed[1 << 14];
static size_t handed_bytes;

static bool keep_handed(void *context, const void *bytes, size_t count) {
    (void)context;
    assert_true(handed_bytes + count <= sizeof handed);
    memcpy(handed + handed_bytes, bytes, count);
    handed_bytes += count;
    return true;
}

/* Hands over the leases of the root. The handover needs no memory. Then makes the root the master
 * again, without leases. */
static void hand_over(fixture *s) {
    const doorman_mastership other = {.address = "tcp://other:1"};
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    handed_bytes = 0;
    memory_fails_from(1);
    assert_int_equal(doorman_server_hand_over(s->root, keep_handed, NULL, s->now), DOORMAN_OK);
    assert_true(memory_works());
    assert_int_equal(doorman_server_set_master(s->root, &other, s->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(s->root, &mastership, s->now), DOORMAN_OK);
}

static doorman_status take_over(fixture *s) {
    return doorman_server_take_over(s->root, handed, handed_bytes, NULL, s->now);
}

static void dump_response(text *outcome, const doorman_response *response) {
    for (size_t i = 0; i < response->item_count; i++) {
        const doorman_capacity_response *item = &response->items[i];
        add(outcome,
            "%s outcome %d lease %" PRIu64 " capacity %.17g committed %.17g for %" PRId64 "\n",
            item->resource_id, (int)item->outcome, item->gets.id, item->gets.capacity,
            item->gets.committed, item->gets.expires_in);
        for (size_t j = 0; j < item->terms_count; j++) {
            add(outcome, "    %d %.17g %.17g\n", item->terms[j].priority, item->terms[j].level,
                item->terms[j].slope);
        }
    }
}

static doorman_status handle_request(fixture *s, doorman_server *server,
                                     const doorman_request *request) {
    doorman_response response;
    doorman_error error = {0};
    doorman_status status = doorman_server_handle(server, request, &response, &error, s->now);
    if (status == DOORMAN_OK) dump_response(&s->outcome, &response);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

/* Requests the first `count` of MANY resources for a holder, without a lease. Some of the resources
 * exist at the root and at the node. */
enum { MANY = 11 };

static doorman_status request_resources(fixture *s, doorman_server *server, const char *holder_id,
                                        size_t count) {
    static const char *const ids[MANY] = {"db/1", "disk",  "db/2", "tape", "net", "one",
                                          "two",  "three", "four", "five", "six"};
    const doorman_demand demand = {12, 1, 3};
    doorman_capacity_request items[MANY];
    for (size_t i = 0; i < count; i++) {
        items[i] =
            (doorman_capacity_request){.resource_id = ids[i], .wants = &demand, .wants_count = 1};
    }
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .holder_id = holder_id,
                                     .items = items,
                                     .item_count = count};
    return handle_request(s, server, &request);
}

static doorman_status request_by_new_client(fixture *s) {
    return request_resources(s, s->root, "new", MANY);
}
static doorman_status request_by_known_client(fixture *s) {
    return request_resources(s, s->root, "of the root", MANY);
}
static doorman_status request_to_node(fixture *s) {
    return request_resources(s, s->node, "new", MANY);
}

/* A server's request with the largest number of groups, of all priorities. It is for a new resource
 * and for a resource that exists. */
static doorman_status request_by_server(fixture *s, const char *holder_id) {
    static const char *const ids[] = {"db/1", "db/9"};
    doorman_demand groups[DOORMAN__GROUPS_MAX];
    for (int i = 0; i < DOORMAN__GROUPS_MAX; i++) {
        groups[i] = (doorman_demand){i * 5 % 97 + 1, 1 + i % 4, i % 16};
    }
    doorman_capacity_request items[2];
    for (int i = 0; i < 2; i++) {
        items[i] = (doorman_capacity_request){
            .resource_id = ids[i], .wants = groups, .wants_count = DOORMAN__GROUPS_MAX};
    }
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = true,
                                     .holder_id = holder_id,
                                     .path = &holder_id,
                                     .path_count = 1,
                                     .items = items,
                                     .item_count = 2};
    return handle_request(s, s->root, &request);
}

static doorman_status request_by_new_server(fixture *s) { return request_by_server(s, "new"); }
static doorman_status request_by_known_server(fixture *s) { return request_by_server(s, "node"); }

/* Releases the lease on "db/1" with a request that has more resources than any before. */
static doorman_status release_by_client(fixture *s) {
    static const char *const ids[] = {"db/1", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    doorman_server_lease lease;
    doorman_cursor cursor = {0};
    doorman_capacity_request items[COUNT_OF(ids)];
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        items[i] = (doorman_capacity_request){.resource_id = ids[i], .has.id = 1};
    }
    (void)doorman_server_next_lease(s->root, "db/1", &cursor, &lease, s->now);
    const doorman_request request = {.method = DOORMAN_RELEASE_CAPACITY,
                                     .holder_id = "of the root",
                                     .items = items,
                                     .item_count = COUNT_OF(ids)};
    return handle_request(s, s->root, &request);
}

/* ---- clients and nodes that send requests */

static void dump_request(text *outcome, const doorman_request *request) {
    add(outcome, "%s, %" PRIu64 "\n", request->holder_id, request->sequence);
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_capacity_request *item = &request->items[i];
        add(outcome, "%s has %" PRIu64 " %.17g, wants", item->resource_id, item->has.id,
            item->has.capacity);
        for (size_t j = 0; j < item->wants_count; j++) {
            const doorman_demand *wants = &item->wants[j];
            add(outcome, " %.17g/%.17g/%d", wants->wants, wants->subclients, wants->priority);
        }
        add(outcome, "\n");
    }
}

/* Starts a node that has not yet sent a request to its parent. Sends it a request of a client. */
static void start_node_with_request(fixture *s, size_t count) {
    s->created_server = start_server(s, "new");
    assert_int_equal(request_resources(s, s->created_server, "new", count), DOORMAN_OK);
    s->now += SECOND;
}

static void start_node_with_one_resource(fixture *s) { start_node_with_request(s, 1); }
static void start_node_with_many_resources(fixture *s) { start_node_with_request(s, MANY); }

static doorman_status compose_request(fixture *s) {
    doorman_request request;
    doorman_upstream *upstream = doorman_server_upstream(s->created_server);
    if (doorman_upstream_request(upstream, &request, s->now)) {
        dump_request(&s->outcome, &request);
        return DOORMAN_OK;
    }
    assert_int_equal(request.sequence, 0);
    assert_int_equal(doorman_upstream_due(upstream), s->now + SECOND); /* the client tries again */
    s->now += SECOND;
    return DOORMAN_OUT_OF_MEMORY;
}

static doorman_status create_client(fixture *s) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};
    const doorman_client_options options = {
        .client_id = "new", .addresses = addresses, .address_count = COUNT_OF(addresses)};
    doorman_error error = {0};
    doorman_status status = doorman_client_create(&s->created_client, &options, &error, s->now);
    if (status != DOORMAN_OK) assert_null(s->created_client);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static doorman_status create_estimate(fixture *s) {
    const doorman_estimate_options options = {.minimum = 1};
    doorman_estimate *estimate = NULL;
    doorman_status status = doorman_estimate_create(&estimate, &options, NULL, s->now);
    assert_true((status == DOORMAN_OK) == (estimate != NULL));
    doorman_estimate_destroy(estimate);
    return status;
}

/* Opens as many resources as the client's arrays can hold after their first allocation. */
static void create_client_with_resources(fixture *s) {
    static const char *const ids[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    doorman_client_resource *resource = NULL;
    assert_int_equal(create_client(s), DOORMAN_OK);
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        const doorman_resource_options options = {.resource_id = ids[i], .wants = 7};
        assert_int_equal(doorman_client_open(&resource, s->created_client, &options, NULL, s->now),
                         DOORMAN_OK);
    }
}

static doorman_status open_resource(fixture *s) {
    const doorman_resource_options options = {.resource_id = "db/1", .wants = 7};
    doorman_client_resource *resource = NULL;
    doorman_error error = {0};
    doorman_status status =
        doorman_client_open(&resource, s->created_client, &options, &error, s->now);
    if (status != DOORMAN_OK) assert_null(resource);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    add(&s->outcome, "due %" PRId64 "\n",
        doorman_upstream_due(doorman_client_upstream(s->created_client)));
    return status;
}

/* ---- JSON */

static const char config_text[] =
    "{\"resources\":[{\"identifier_glob\":\"db\",\"capacity\":7,\"description\":\"\\u00e9\","
    "\"algorithm\":{\"kind\":\"PRIORITY_SHARE\",\"parameters\":[{\"name\":\"reserve\","
    "\"value\":\"0.5\"}]}},{\"identifier_glob\":\"*\",\"capacity\":1}]}";

static doorman_status parse_config(fixture *s) {
    doorman_error error = {0};
    doorman_status status =
        doorman_json_config(&s->created_config, config_text, sizeof config_text - 1, &error);
    if (status != DOORMAN_OK) assert_null(s->created_config);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    if (status == DOORMAN_OK) dump_config(&s->outcome, s->created_config);
    return status;
}

static doorman_status check_config(fixture *s) {
    doorman_config_problem problems[2];
    doorman_config_problems list = {.items = problems, .room = 2, .count = 77};
    doorman_status status =
        doorman_json_check_config(&s->created_config, config_text, sizeof config_text - 1, &list);
    assert_int_equal(list.count, status == DOORMAN_OK ? 0 : 1);
    if (status != DOORMAN_OK) assert_null(s->created_config);
    if (status != DOORMAN_OK) assert_string_equal(problems[0].error.text, "out of memory");
    if (status == DOORMAN_OK) dump_config(&s->outcome, s->created_config);
    return status;
}

static doorman_status read_override(fixture *s) {
    static const char own[] = "{\"glob\":\"*\",\"limit\":\"tiers\",\"key\":\"a\",\"set\":"
                              "{\"tiers\":[{\"limit\":1,\"window\":2,\"active\":3}]}}";
    doorman_override_message message = {.expires_in = 0};
    doorman_error error = {0};
    doorman_status status = doorman_json_read_override(&message, own, sizeof own - 1, &error);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    if (status == DOORMAN_OK) add(&s->outcome, "%zu tiers\n", message.row.figures.tier_count);
    doorman_override_message_uninit(&message);
    return status;
}

static doorman_status read_plans(fixture *s) {
    static const char own[] =
        "{\"plans\":[{\"glob\":\"*\",\"key\":\"a\",\"plan\":\"pro\"}],\"reason\":\"x\"}";
    doorman_plans_message message = {.tree = NULL};
    doorman_status status = doorman_json_read_plans(&message, own, sizeof own - 1, NULL);
    assert_int_equal(message.plan_count, status == DOORMAN_OK);
    if (status == DOORMAN_OK) add(&s->outcome, "%s\n", message.plans[0].row.plan);
    doorman_plans_message_uninit(&message);
    return status;
}

static doorman_status write_plan(fixture *s) {
    doorman_status status = doorman_json_write_plan(&plan_row, "reason", &s->reply);
    if (status != DOORMAN_OK) assert_int_equal(s->reply.bytes, 0);
    if (status == DOORMAN_OK) add(&s->outcome, "%s\n", s->reply.text);
    return status;
}

static doorman_status write_override(fixture *s) {
    doorman_status status = doorman_json_write_override(&override_row, "reason", &s->reply);
    if (status != DOORMAN_OK) assert_int_equal(s->reply.bytes, 0);
    if (status == DOORMAN_OK) add(&s->outcome, "%s\n", s->reply.text);
    return status;
}

static doorman_status write_config(fixture *s) {
    doorman_status status = doorman_json_write_config(&all_templates, &s->reply);
    if (s->reply.text) assert_int_equal(strlen(s->reply.text), s->reply.bytes);
    if (status != DOORMAN_OK) assert_int_equal(s->reply.bytes, 0);
    if (status == DOORMAN_OK) add(&s->outcome, "%s\n", s->reply.text);
    return status;
}

/* The object of "db/1" has more than 16 keys, so the reader sorts the keys to find duplicates. */
static const char request_text[] =
    "{\"get_capacity\":{\"client_id\":\"new\",\"resource\":[{\"resource_id\":\"db/1\",\"wants\":5,"
    "\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,\"k\":1,"
    "\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1},{\"resource_id\":\"db/2\",\"wants\":50}]}}";

/* Adds a reply to the outcome. Without memory the reply is an error, or empty. */
static void dump_reply(fixture *s, const doorman_buffer *reply, doorman_status status) {
    static const char error[] = "{\"error\":{\"code\":\"INTERNAL\",\"message\":"
                                "\"out of memory; nothing has changed\"}}";
    if (reply->text) assert_int_equal(strlen(reply->text), reply->bytes);
    if (status == DOORMAN_OK) add(&s->outcome, "%s\n", reply->text);
    bool charges = reply->text && strstr(reply->text, "units may have been charged"); /* P9 */
    if (status != DOORMAN_OK && reply->bytes && !charges) assert_string_equal(reply->text, error);
}

static doorman_status serve_message(fixture *s) {
    doorman_status status = doorman_json_serve(s->root, request_text, sizeof request_text - 1,
                                               &s->reply, 1234567890, s->now);
    dump_reply(s, &s->reply, status);
    return status;
}

/* The costs are 0, because units may be charged without a reply (P9). */
static doorman_status serve_permits(fixture *s) {
    static const char message[] =
        "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"detail\": true, \"item\": "
        "[{\"resource_id\": \"r\", \"key\": \"a\", \"cost\": 0}]}, {\"item\": "
        "[{\"resource_id\": \"s\", \"cost\": 0}, {\"resource_id\": \"r\", \"cost\": 0}]}]}}";
    doorman_status status =
        doorman_json_serve(s->created_server, message, sizeof message - 1, &s->reply, 0, s->now);
    dump_reply(s, &s->reply, status);
    return status;
}

static doorman_status serve_inspection(fixture *s) {
    static const char message[] =
        "{\"inspect\": {\"entry\": [{\"resource_id\": \"r\"}, {\"resource_id\": \"s\"}]}}";
    doorman_status status =
        doorman_json_serve(s->created_server, message, sizeof message - 1, &s->reply, 0, s->now);
    dump_reply(s, &s->reply, status);
    return status;
}

static doorman_status read_message(fixture *s) {
    return doorman_json_exchange_read(&s->exchange, NULL, request_text, sizeof request_text - 1);
}

/* Decides a message twice. The decision is final until another message is read. */
static doorman_status decide_message(fixture *s) {
    doorman_status status = read_message(s);
    if (status == DOORMAN_OK) status = doorman_json_exchange_decide(&s->exchange, s->root, s->now);
    if (status == DOORMAN_OK) dump_response(&s->outcome, &s->exchange.response);
    assert_int_equal(doorman_json_exchange_decide(&s->exchange, s->root, s->now), status);
    return status;
}

static doorman_status write_reply(fixture *s) {
    doorman_status decided = read_message(s);
    if (decided == DOORMAN_OK) {
        decided = doorman_json_exchange_decide(&s->exchange, s->root, s->now);
    }
    doorman_status status = doorman_json_exchange_write(&s->exchange, 0);
    assert_int_equal(status, decided);
    dump_reply(s, &s->exchange.reply, status);
    return status;
}

static void prepare_waiting_message(fixture *s) {
    static const char message[] =
        "{\"acquire\": {\"client_id\": \"ann\", \"permit\": [{\"request_id\": 1, "
        "\"item\": [{\"resource_id\": \"slots\"}]}]}}";
    prepare_limits_server(s);
    assert_int_equal(
        doorman_json_serve(s->created_server, message, sizeof message - 1, &s->reply, 0, s->now),
        DOORMAN_OK);
}

/* Without memory, the decision on a permit that has waited is lost, as if its response were lost.
 * Each call of this function reads the message again, so its permit replaces the previous one. */
static doorman_status settle_message(fixture *s) {
    static const char message[] =
        "{\"acquire\": {\"client_id\": \"bob\", \"permit\": [{\"request_id\": 1, "
        "\"max_wait\": 9, \"item\": [{\"resource_id\": \"slots\"}]}]}}";
    const doorman_permit_grant grant = {.granted = 1, .limit = "slots"};
    const doorman_permit_detail details[1000] = {{.limit = "slots"}}; /* more than one allocation */
    const doorman_permit decision = {.granted = true,
                                     .items = &grant,
                                     .item_count = 1,
                                     .hold_id = 5,
                                     .expires_in = SECOND,
                                     .details = details,
                                     .detail_count = COUNT_OF(details)};
    doorman_json_exchange *exchange = &s->exchange;
    doorman_status status = doorman_json_exchange_read(exchange, NULL, message, sizeof message - 1);
    exchange->request.may_wait = true;
    if (status == DOORMAN_OK) {
        status = doorman_json_exchange_decide(exchange, s->created_server, s->now);
    }
    if (status != DOORMAN_OK) return status;
    assert_true(exchange->response.permits[0].pending);
    status =
        doorman_json_exchange_settle(exchange, exchange->response.permits[0].ticket, &decision);
    if (status == DOORMAN_OK) dump_response(&s->outcome, &exchange->response);
    if (status != DOORMAN_OK) assert_non_null(strstr(exchange->error.text, "out of memory"));
    return status;
}

/* A message that is refused unread needs memory only for its reply. */
static doorman_status writes_an_error(fixture *s) {
    size_t bytes = DOORMAN_MESSAGE_BYTES_MAX + 1;
    assert_int_equal(doorman_json_exchange_read(&s->exchange, NULL, NULL, bytes),
                     DOORMAN_RESOURCE_EXHAUSTED);
    doorman_status status = doorman_json_exchange_write(&s->exchange, 0);
    if (status == DOORMAN_OUT_OF_MEMORY) assert_int_equal(s->exchange.reply.bytes, 0);
    if (status == DOORMAN_OUT_OF_MEMORY) return status;
    assert_int_equal(status, DOORMAN_RESOURCE_EXHAUSTED);
    add(&s->outcome, "%s\n", s->exchange.reply.text);
    return DOORMAN_OK;
}

static void prepare_node_request(fixture *s) {
    start_node_with_many_resources(s);
    (void)doorman_upstream_request(doorman_server_upstream(s->created_server), &s->request, s->now);
}

static doorman_status write_request(fixture *s) {
    doorman_status status = doorman_json_request(&s->request, &s->reply);
    dump_reply(s, &s->reply, status);
    return status;
}

static void prepare_node_message(fixture *s) {
    prepare_node_request(s);
    assert_int_equal(doorman_json_request(&s->request, &s->message), DOORMAN_OK);
}

static doorman_status serve_node(fixture *s) {
    doorman_status status =
        doorman_json_serve(s->root, s->message.text, s->message.bytes, &s->reply, 0, s->now);
    dump_reply(s, &s->reply, status);
    return status;
}

/* Makes s->message, the response of the root to the next request. */
static void prepare_response(fixture *s, doorman_upstream *upstream) {
    assert_true(doorman_upstream_request(upstream, &s->request, s->now));
    assert_int_equal(doorman_json_request(&s->request, &s->reply), DOORMAN_OK);
    assert_int_equal(
        doorman_json_serve(s->root, s->reply.text, s->reply.bytes, &s->message, 0, s->now),
        DOORMAN_OK);
}

static void prepare_client_response(fixture *s) {
    s->now += 20 * SECOND;
    prepare_response(s, doorman_client_upstream(s->clients[0]));
}

static void prepare_node_response(fixture *s) {
    start_node_with_many_resources(s);
    prepare_response(s, doorman_server_upstream(s->created_server));
}

/* A lack of memory does not count as a failure of the request. The same text can be passed
 * again. */
static doorman_status read_response_text(fixture *s, doorman_upstream *upstream) {
    doorman_error error = {0};
    doorman_status status = doorman_json_response(upstream, s->request.sequence, s->message.text,
                                                  s->message.bytes, &error, s->now);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static doorman_status read_client_response(fixture *s) {
    return read_response_text(s, doorman_client_upstream(s->clients[0]));
}

static doorman_status read_node_response(fixture *s) {
    doorman_status status = read_response_text(s, doorman_server_upstream(s->created_server));
    dump_server(&s->outcome, s->created_server, s->now);
    if (status != DOORMAN_OK) text_start(&s->outcome);
    return status;
}

/* ---- permit clients */

static doorman_status create_permit_client(fixture *s) {
    const doorman_limit_options local = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1, .size = 1};
    const doorman_client_options options = {
        .client_id = "new",
        .addresses = parents,
        .address_count = COUNT_OF(parents),
        .seed = 5,
        .permits = {.fallback = DOORMAN_FAIL_LOCAL, .local = &local}};
    doorman_error error = {0};
    doorman_status status =
        doorman_permit_client_create(&s->permit_client, &options, &error, s->now);
    if (status != DOORMAN_OK) assert_null(s->permit_client);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static void prepare_permit_client(fixture *s) {
    assert_int_equal(create_permit_client(s), DOORMAN_OK);
}

static const doorman_permit_item one_item = {.resource_id = "r", .key = "a", .cost = 1};
static const doorman_permit_request one_request = {.items = &one_item, .item_count = 1};

/* Checks that one permit or report waits and a message is due. If the call has failed, nothing
 * waits and no message is due. */
static void check_permit_client(fixture *s, doorman_status status) {
    doorman_permit_client_info info;
    doorman_permit_client_read(s->permit_client, &info);
    assert_int_equal(info.waiting_count, status == DOORMAN_OK);
    assert_int_equal(doorman_upstream_request(doorman_permit_client_upstream(s->permit_client),
                                              &s->request, s->now),
                     status == DOORMAN_OK);
}

static doorman_status acquire_by_permit_client(fixture *s) {
    doorman_status status =
        doorman_permit_client_acquire(s->permit_client, &one_request, SECOND, NULL, NULL, s->now);
    check_permit_client(s, status);
    return status;
}

static doorman_status report_by_permit_client(fixture *s) {
    doorman_status status = doorman_permit_client_report(
        s->permit_client, &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = 2}, NULL,
        s->now);
    check_permit_client(s, status);
    return status;
}

static const doorman_settle_request one_settle = {
    .id = 7, .items = &one_item, .item_count = 1, .timeout = SECOND};

/* waiting_count counts the settle and also the caller that waits for its result. */
static doorman_status settle_by_permit_client(fixture *s) {
    doorman_status status =
        doorman_permit_client_settle(s->permit_client, &one_settle, NULL, NULL, s->now);
    doorman_permit_client_info info;
    doorman_permit_client_read(s->permit_client, &info);
    assert_int_equal(info.waiting_count, status == DOORMAN_OK ? 2 : 0);
    assert_int_equal(doorman_upstream_request(doorman_permit_client_upstream(s->permit_client),
                                              &s->request, s->now),
                     status == DOORMAN_OK);
    return status;
}

static uint64_t client_hold;

static doorman_status acquire_hold_by_permit_client(fixture *s) {
    doorman_permit_request request = one_request;
    request.hold = &client_hold;
    doorman_status status =
        doorman_permit_client_acquire(s->permit_client, &request, SECOND, NULL, NULL, s->now);
    check_permit_client(s, status);
    doorman_permit_client_info info;
    doorman_permit_client_read(s->permit_client, &info);
    assert_int_equal(info.hold_count, status == DOORMAN_OK);
    return status;
}

static doorman_status new_hold_of_permit_client(fixture *s) {
    client_hold = 0;
    doorman_status status = doorman_permit_client_new_hold(s->permit_client, &client_hold);
    assert_int_equal(client_hold != 0, status == DOORMAN_OK);
    return status;
}

static void prepare_number(fixture *s) {
    prepare_permit_client(s);
    assert_int_equal(new_hold_of_permit_client(s), DOORMAN_OK);
}

/* Acquires with the number client_hold. After an error the number still exists. */
static doorman_status acquire_number_by_permit_client(fixture *s) {
    doorman_permit_request request = one_request;
    request.request_id = client_hold;
    doorman_status status =
        doorman_permit_client_acquire(s->permit_client, &request, SECOND, NULL, NULL, s->now);
    check_permit_client(s, status);
    doorman_permit_client_info info;
    doorman_permit_client_read(s->permit_client, &info);
    assert_int_equal(info.hold_count, 1);
    return status;
}

/* Makes a client with a hold of one unit. */
static void prepare_client_hold(fixture *s) {
    const doorman_permit_grant grant = {.granted = 1};
    const doorman_permit permit = {
        .granted = true, .items = &grant, .item_count = 1, .hold_id = 9, .expires_in = 15 * SECOND};
    const doorman_response response = {
        .method = DOORMAN_ACQUIRE, .is_master = true, .permits = &permit, .permit_count = 1};
    doorman_acquired acquired;
    void *context;
    prepare_permit_client(s);
    assert_int_equal(acquire_hold_by_permit_client(s), DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(doorman_permit_client_upstream(s->permit_client),
                                               s->request.sequence, &response, s->now),
                     DOORMAN_OK);
    assert_true(doorman_permit_client_next(s->permit_client, &context, &acquired, s->now));
}

static doorman_status transfer_by_permit_client(fixture *s) {
    const doorman_hold_request request = {.id = client_hold, .timeout = SECOND};
    doorman_status status =
        doorman_permit_client_transfer(s->permit_client, &request, NULL, NULL, s->now);
    doorman_held held;
    doorman_permit_client_read_hold(s->permit_client, client_hold, &held);
    assert_true(status == DOORMAN_OK ? held.units[0] < 1 : held.units[0] >= 1);
    return status;
}

static doorman_status seize_by_permit_client(fixture *s) {
    const doorman_hold_request request = {.id = 10, .timeout = SECOND};
    doorman_status status =
        doorman_permit_client_seize(s->permit_client, &request, NULL, NULL, s->now);
    check_permit_client(s, status);
    return status;
}

static doorman_status add_lane_to_permit_client(fixture *s) {
    doorman_upstream *lane = NULL;
    doorman_status status = doorman_permit_client_add_lane(s->permit_client, &lane);
    assert_int_equal(lane != NULL, status == DOORMAN_OK);
    return status;
}

/* ---- agents and transports; nng's own allocations cannot be made to fail */

static const char *const unused_addresses[] = {"inproc://nobody"};

static doorman_status start_agent(fixture *s) {
    const doorman_client_options options = {
        .client_id = "new", .addresses = unused_addresses, .address_count = 1, .seed = 6};
    doorman_error error = {0};
    doorman_status status = doorman_agent_start(&s->agent, &options, &error);
    if (status != DOORMAN_OK) assert_null(s->agent);
    if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
    return status;
}

static void prepare_agent(fixture *s) { assert_int_equal(start_agent(s), DOORMAN_OK); }

static doorman_status open_agent_resource(fixture *s) {
    const doorman_resource_options options = {.resource_id = "db/1", .wants = 7};
    doorman_resource *resource = NULL;
    doorman_status status = doorman_resource_open(&resource, s->agent, &options, NULL);
    if (status != DOORMAN_OK) assert_null(resource);
    return status;
}

/* Without a server nothing is seized, and there is no hold whose units could be transferred. */
static doorman_status call_holds_of_agent(fixture *s, bool seizes) {
    const doorman_hold_request request = {.id = 7, .timeout = MILLISECOND};
    doorman_acquired acquired = {.granted = false};
    doorman_status status = seizes ? doorman_agent_seize(s->agent, &request, &acquired, NULL)
                                   : doorman_agent_transfer(s->agent, &request, &acquired, NULL);
    assert_false(acquired.granted);
    return status;
}

static doorman_status seize_by_agent(fixture *s) { return call_holds_of_agent(s, true); }

static doorman_status transfer_by_agent(fixture *s) { return call_holds_of_agent(s, false); }

static doorman_status new_hold_of_agent(fixture *s) {
    uint64_t number = 0;
    doorman_status status = doorman_agent_new_hold(s->agent, &number);
    assert_int_equal(number != 0, status == DOORMAN_OK);
    return status;
}

/* The agent has no server, so its fallback decides. */
static doorman_status acquire_by_agent(fixture *s) {
    doorman_acquired acquired = {.granted = false};
    doorman_error error = {0};
    doorman_status status =
        doorman_agent_acquire(s->agent, &one_request, SECOND, &acquired, &error);
    assert_int_equal(acquired.granted, status == DOORMAN_OK);
    assert_string_equal(error.text, status == DOORMAN_OK ? "" : "out of memory");
    return status;
}

static void ignore_decision(void *context, doorman_status status,
                            const doorman_acquired *acquired) {
    (void)context;
    assert_true(status == DOORMAN_OK ? acquired->granted : status == DOORMAN_UNAVAILABLE);
}

static doorman_status acquire_async_by_agent(fixture *s) {
    return doorman_agent_acquire_async(s->agent, &one_request, SECOND, ignore_decision, NULL, NULL);
}

static doorman_status report_by_agent(fixture *s) {
    return doorman_agent_report(s->agent, "r", "a", 2, NULL);
}

static doorman_status settle_by_agent(fixture *s) {
    const doorman_settle_request settle = {.id = 7, .items = &one_item, .item_count = 1};
    return doorman_agent_settle(s->agent, &settle, NULL, NULL);
}

static void ignore_wakeup(void *context) { (void)context; }

static doorman_status create_transport(fixture *s) {
    const doorman_tls tls = {.authority = "A", .certificate = "B", .key = "C"};
    const doorman_transport_options options = {.upstream = doorman_client_upstream(s->clients[0]),
                                               .on_wakeup = ignore_wakeup,
                                               .tls = &tls};
    doorman_status status = doorman_transport_create(&s->transport, &options);
    if (status != DOORMAN_OK) assert_null(s->transport);
    return status;
}

static void prepare_transport(fixture *s) { assert_int_equal(create_transport(s), DOORMAN_OK); }

static doorman_status set_tls(fixture *s) {
    const doorman_tls tls = {.authority = "D", .certificate = "E", .key = "F"};
    doorman_status status = doorman_transport_set_tls(s->transport, &tls);
    const char *const expected[2][3] = {{"A", "B", "C"}, {"D", "E", "F"}};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(s->transport->pem[i], expected[status == DOORMAN_OK][i]);
    }
    return status;
}

static const test_case test_cases[] = {
    {"doorman_config_create", "no configuration is made", NULL, create_config, 3},
    {"doorman_config_create", "no configuration with limits is made", NULL, create_limits, 4},
    {"doorman_permits_create", "no permits are made", prepare_limits, create_permits, 5},
    {"doorman_permits_configure", "permits keep their configuration", prepare_permits,
     configure_permits, 1},
    {"doorman_permits_acquire", "no units are charged", prepare_permits, acquire_permit, 20},
    {"doorman_permits_acquire", "no figures are brought", prepare_permits, acquire_with_figures,
     15},
    {"doorman_permits_acquire", "no figures are remembered", prepare_counters, acquire_with_figures,
     3},
    {"doorman_permits_inspect", "nothing is inspected", prepare_permits, inspect_permits, 5},
    {"doorman_permits_next_counter", "no counter is listed", prepare_wider, list_counters, 1},
    {"doorman_permits_report", "no cost is charged", prepare_permits, report_cost, 10},
    {"doorman_permits_acquire", "nothing is reserved", prepare_permits, reserve_units, 20},
    {"doorman_permits_settle", "nothing is settled", prepare_reservation, settle_units, 1},
    {"doorman_permits_settle", "no cost is charged", prepare_permits, settle_unknown, 10},
    {"doorman_permits_report_once", "no cost is charged", prepare_permits, report_cost_once, 10},
    {"doorman_permits_reset", "nothing is reset", prepare_permits, reset_permits, 3},
    {"doorman_permits_ban", "there is no ban", prepare_permits, ban_key, 3},
    {"doorman_permits_restore", "no row is restored", prepare_row, restore_row, 5},
    {"doorman_permits_restore_rows", "no row is restored", prepare_row, restore_rows, 5},
    {"doorman_permits_set_override", "no override is set", prepare_permits, set_override, 6},
    {"doorman_permits_set_override", "an override is not replaced", prepare_override,
     replace_override, 1},
    {"doorman_permits_restore_override", "no override is restored", prepare_permits,
     restore_override, 6},
    {"doorman_permits_after_override", "no end is described", prepare_override, look_after_override,
     3},
    {"doorman_permits_mark_changed", "no removal is yielded", prepare_removal, mark_removal, 1},
    {"doorman_permits_renew", "no hold is renewed", prepare_holds, renew_hold, 1},
    {"doorman_permits_release", "no hold is released", prepare_holds, release_hold, 1},
    {"doorman_permits_transfer", "nothing is transferred", prepare_holds, transfer_hold, 2},
    {"doorman_permits_seize", "nothing is seized", prepare_transfer, seize_hold, 3},
    {"doorman_server_handle", "no permit is answered", prepare_limits_server, acquire_from_server,
     8},
    {"doorman_server_handle", "no report is answered", prepare_limits_server, report_to_server, 4},
    {"doorman_server_handle", "no settle is answered", prepare_limits_server, settle_at_server, 4},
    {"doorman_server_handle", "no inspection is answered", prepare_limits_server, inspect_at_server,
     5},
    {"doorman_server_handle", "no reset is answered", prepare_limits_server, reset_at_server, 4},
    {"doorman_limiter_map_create", "no map is made", NULL, create_map, 1},
    {"doorman_throttle_create", "no throttle is made", NULL, create_throttle, 5},
    {"doorman_shares", "nothing is shared", NULL, compute_shares, 20},
    {"doorman_server_create", "no root is made", NULL, create_root, 2},
    {"doorman_server_create", "no node is made", NULL, create_node, 3},
    {"doorman_server_configure", "the last configuration stays", create_other_config,
     configure_server, 1},
    {"doorman_server_handle", "a new client gets nothing", NULL, request_by_new_client, 20},
    {"doorman_server_handle", "a client keeps what it has", NULL, request_by_known_client, 10},
    {"doorman_server_handle", "a client of a node gets nothing", NULL, request_to_node, 20},
    {"doorman_server_handle", "a new server gets nothing", NULL, request_by_new_server, 40},
    {"doorman_server_handle", "a server keeps what it has", NULL, request_by_known_server, 40},
    {"doorman_server_handle", "nothing is released", NULL, release_by_client, 1},
    {"doorman_server_take_over", "no lease is taken over", hand_over, take_over, 10},
    {"doorman_upstream_request", "a node sends no request", start_node_with_one_resource,
     compose_request, 1},
    {"doorman_client_create", "no client is made", NULL, create_client, 4},
    {"doorman_estimate_create", "no estimate is made", NULL, create_estimate, 1},
    {"doorman_client_open", "no resource is opened", create_client_with_resources, open_resource,
     3},
    {"doorman_json_config", "no configuration is read", NULL, parse_config, 20},
    {"doorman_json_check_config", "no configuration is checked", NULL, check_config, 20},
    {"doorman_json_write_config", "no configuration is written", NULL, write_config, 2},
    {"doorman_permits_set_plan", "no plan is set", prepare_permits, set_plan, 6},
    {"doorman_permits_restore_plan", "no plan is restored", prepare_permits, restore_plan, 6},
    {"doorman_json_read_plans", "no plans are read", NULL, read_plans, 17},
    {"doorman_json_write_plan", "no plan is written", prepare_permits, write_plan, 1},
    {"doorman_json_read_override", "no override is read", NULL, read_override, 20},
    {"doorman_json_write_override", "no override is written", prepare_permits, write_override, 1},
    {"doorman_json_serve", "nothing is served", NULL, serve_message, 40},
    {"doorman_json_serve", "no permits are served", prepare_limits_server, serve_permits, 30},
    {"doorman_json_serve", "no inspection is served", prepare_limits_server, serve_inspection, 20},
    {"doorman_json_serve", "a node is served nothing", prepare_node_message, serve_node, 60},
    {"doorman_json_exchange_read", "nothing is read", NULL, read_message, 30},
    {"doorman_json_exchange_decide", "nothing is decided", NULL, decide_message, 40},
    {"doorman_json_exchange_settle", "the decision is lost", prepare_waiting_message,
     settle_message, 10},
    {"doorman_json_exchange_write", "without a decision nothing is written", NULL, write_reply, 40},
    {"doorman_json_exchange_write", "an error is empty", NULL, writes_an_error, 1},
    {"doorman_json_request", "no request is written", prepare_node_request, write_request, 2},
    {"doorman_json_response", "a client accepts its response at the next try",
     prepare_client_response, read_client_response, 20},
    {"doorman_json_response", "a node accepts its response at the next try", prepare_node_response,
     read_node_response, 20},
    {"doorman_agent_start", "no agent starts", NULL, start_agent, 4},
    {"doorman_resource_open", "an agent opens nothing", prepare_agent, open_agent_resource, 4},
    {"doorman_permit_client_create", "no permit client is made", NULL, create_permit_client, 4},
    {"doorman_permit_client_acquire", "no permit is asked", prepare_permit_client,
     acquire_by_permit_client, 4},
    {"doorman_permit_client_report", "nothing is reported", prepare_permit_client,
     report_by_permit_client, 4},
    {"doorman_permit_client_settle", "nothing is settled", prepare_permit_client,
     settle_by_permit_client, 5},
    {"doorman_permit_client_acquire", "no hold is asked for", prepare_permit_client,
     acquire_hold_by_permit_client, 7},
    {"doorman_permit_client_new_hold", "no number is given out", prepare_permit_client,
     new_hold_of_permit_client, 1},
    {"doorman_permit_client_acquire", "a number has no permit", prepare_number,
     acquire_number_by_permit_client, 6},
    {"doorman_permit_client_transfer", "nothing is transferred", prepare_client_hold,
     transfer_by_permit_client, 2},
    {"doorman_permit_client_seize", "nothing is seized", prepare_permit_client,
     seize_by_permit_client, 6},
    {"doorman_permit_client_add_lane", "there is no new lane", prepare_permit_client,
     add_lane_to_permit_client, 2},
    {"doorman_agent_acquire", "nobody waits for a permit", prepare_agent, acquire_by_agent, 5},
    {"doorman_agent_new_hold", "no number is given out", prepare_agent, new_hold_of_agent, 1},
    {"doorman_agent_acquire_async", "no permit is asked", prepare_agent, acquire_async_by_agent, 5},
    {"doorman_agent_seize", "nobody waits for a hold", prepare_agent, seize_by_agent, 5},
    {"doorman_agent_transfer", "nobody waits for a transfer", prepare_agent, transfer_by_agent, 5},
    {"doorman_agent_report", "nothing is reported", prepare_agent, report_by_agent, 4},
    {"doorman_agent_settle", "nothing is settled", prepare_agent, settle_by_agent, 4},
    {"doorman_transport_create", "no transport is created", NULL, create_transport, 4},
    {"doorman_transport_set_tls", "the last certificates stay", prepare_transport, set_tls, 3},
};

/* ---- calls that need no memory -------------------------------------------------------------- */

/* The functions that return a status and are in no test case. */
static const char *const other_functions[] = {
    /* these need memory: shards_test.c fails each of their allocations */
    "doorman_shard_map_create",
    "doorman_shard_mover_create",
    "doorman_shard_mover_map",
    "doorman_permits_set_shards",
    "doorman_server_set_shards",
    "doorman_permits_find_shards",
    "doorman_permits_next_shard_rows",
    "doorman_permits_restore_shard",
    "doorman_json_read_shard_map",
    "doorman_json_write_shard_map",
    /* and these do not */
    "doorman_permits_own",
    "doorman_permits_drop_shard",
    "doorman_permits_shard_of_row",
    "doorman_upstream_response",
    "doorman_server_set_master",
    "doorman_server_hand_over",
    "doorman_client_set_wants",
    "doorman_limit_init",
    "doorman_limiter_init",
    "doorman_limiter_release",
    "doorman_limiter_map_release",
    "doorman_resource_set_wants",
    "doorman_resource_wait",
    "doorman_client_release",
    "doorman_agent_shutdown",
    "doorman_agent_stop",
    "doorman_agent_read_info",
    "doorman_resource_close",
    "doorman_resource_read",
    "doorman_agent_kill_switch",
    "doorman_resource_release",
    "doorman_election_init",
    "doorman_election_answered",
    "doorman_permit_client_release",
    "doorman_agent_release",
    "doorman_agent_release_part",
    "doorman_agent_read_hold",
    "doorman_client_report_overload",
    "doorman_resource_report_overload",
    "doorman_config_fits",
    "doorman_permits_end_override",
    "doorman_permits_end_reservation", /* see reservations_test.c */
    "doorman_server_set_shard_map",    /* see map_messages_test.c */
    "doorman_permits_check_plan",
    "doorman_permits_end_plan",
    "doorman_permit_row_read",
    "doorman_permits_set_rows",
    "doorman_descriptors_resolve",
};

static void limiters_start(doorman_time now) {
    const doorman_limit_options log = {.kind = DOORMAN_SLIDING_LOG, .limit = 2, .window = SECOND};
    const doorman_limit_options concurrency = {.kind = DOORMAN_CONCURRENCY, .limit = 1};
    doorman_limit limit;
    doorman_limiter limiter;
    doorman_arrival arrivals[2];
    doorman_result result;
    assert_int_equal(doorman_limit_init(&limit, &log, NULL), DOORMAN_OK);
    assert_int_equal(doorman_limiter_init(&limiter, &limit, arrivals, now), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 1, &result, now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limit_init(&limit, &concurrency, NULL), DOORMAN_OK);
    assert_int_equal(doorman_limiter_init(&limiter, &limit, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 1, &result, now), DOORMAN_ALLOWED);
    doorman_limiter_release(&limiter, &limit, 1);
}

TEST(limiters_and_clients_work_without_memory) {
    fixture *s = fixture_start();
    doorman_request request;
    doorman_response response;
    doorman_upstream *upstream = doorman_client_upstream(s->clients[0]);
    s->now += 20 * SECOND;
    memory_fails_from(1);
    limiters_start(s->now);
    assert_int_equal(doorman_config_fits(s->config, false, NULL), DOORMAN_OK);
    doorman_descriptor_item item;
    assert_int_equal(doorman_descriptors_resolve(NULL, "d", NULL, 0, &item), DOORMAN_OK);
    assert_int_equal(doorman_client_set_wants(s->resources[0][0], 50, s->now), DOORMAN_OK);
    assert_int_equal(doorman_client_try(s->resources[0][0], 1, NULL, s->now), DOORMAN_ALLOWED);
    const doorman_overload_report report = {.interval = SECOND, .arrived = 30, .refused = 20};
    assert_int_equal(doorman_client_report_overload(s->resources[0][0], &report, s->now),
                     DOORMAN_OK);
    assert_true(doorman_upstream_request(upstream, &request, s->now));
    assert_true(memory_works());
    assert_int_equal(doorman_server_handle(s->root, &request, &response, NULL, s->now), DOORMAN_OK);
    memory_fails_from(1);
    assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, s->now),
                     DOORMAN_OK);
    doorman_client_close(s->resources[0][1], s->now);
    (void)doorman_upstream_request(upstream, &request, s->now);
    assert_int_equal(request.method, DOORMAN_RELEASE_CAPACITY);
    assert_true(memory_works());
    fixture_stop(s);
}

TEST(holds_of_clients_work_without_memory) {
    fixture *s = fixture_start();
    doorman_hold_request own = {.client_id = NULL};
    prepare_client_hold(s);
    doorman_upstream *upstream = doorman_permit_client_upstream(s->permit_client);
    own.id = client_hold;
    memory_fails_from(1);
    s->now += 5 * SECOND;
    assert_true(doorman_upstream_request(upstream, &s->request, s->now));
    assert_int_equal(s->request.method, DOORMAN_RENEW);
    doorman_upstream_failed(upstream, s->request.sequence, s->now);
    assert_int_equal(doorman_permit_client_release(s->permit_client, &own, NULL, s->now),
                     DOORMAN_OK);
    assert_true(doorman_upstream_request(upstream, &s->request, s->now));
    assert_int_equal(s->request.method, DOORMAN_RELEASE);
    assert_true(memory_works());
    fixture_stop(s);
}

/* A server needs no memory while leases end and clients renew leases, because it keeps the memory
 * of its largest request. */
TEST(a_server_works_without_memory) {
    fixture *s = fixture_start();
    text before = {NULL, 0, 0}, after = {NULL, 0, 0};
    const doorman_mastership other = {.address = "tcp://other:1"};
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    s->now += 20 * SECOND;
    memory_fails_from(1);
    dump_state(s, &before);
    exchange(s, doorman_client_upstream(s->clients[0]), s->root);
    exchange(s, doorman_client_upstream(s->clients[1]), s->node);
    exchange(s, doorman_server_upstream(s->node), s->root);
    dump_state(s, &after);
    assert_string_not_equal(before.at, after.at);
    s->now += 70 * SECOND;
    doorman_request none;
    assert_false(doorman_upstream_request(doorman_server_upstream(s->root), &none, s->now));
    text_start(&after);
    dump_server(&after, s->root, s->now);
    assert_string_equal(after.at, "\n");
    assert_int_equal(doorman_server_set_master(s->root, &other, s->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(s->root, &mastership, s->now), DOORMAN_OK);
    assert_true(memory_works());
    text_end(&before);
    text_end(&after);
    fixture_stop(s);
}

/* If a node's request cannot contain all resources because memory is missing, the next request
 * contains the other resources. */
TEST(resources_that_do_not_fit_are_in_the_next_request) {
    fixture *s = fixture_start();
    start_node_with_many_resources(s);
    doorman_upstream *upstream = doorman_server_upstream(s->created_server);
    doorman_request request;
    doorman_response response;
    size_t expected[] = {1, MANY - 1};
    for (int i = 0; i < 2; i++) {
        if (i == 0) memory_fails_at(2);
        (void)doorman_upstream_request(upstream, &request, s->now);
        assert_int_equal(memory_works(), i == 1);
        assert_int_equal(request.item_count, expected[i]);
        assert_int_equal(doorman_server_handle(s->root, &request, &response, NULL, s->now),
                         DOORMAN_OK);
        assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, s->now),
                         DOORMAN_OK);
        assert_int_equal(doorman__upstream_due(upstream) <= s->now, i == 0);
    }
    fixture_stop(s);
}

/* An agent's waits need no memory. Only allocations of this thread fail, not those of the agent's
 * thread. */
TEST(waits_need_no_memory) {
    fixture *s = fixture_start();
    prepare_agent(s);
    doorman_resource *rate = NULL, *gauge = NULL;
    doorman_resource_options options = {
        .resource_id = "db/1", .wants = 7, .has_safe_capacity = true, .safe_capacity = 1000};
    assert_int_equal(doorman_resource_open(&rate, s->agent, &options, NULL), DOORMAN_OK);
    options.resource_id = "db/2", options.kind = DOORMAN_GAUGE;
    assert_int_equal(doorman_resource_open(&gauge, s->agent, &options, NULL), DOORMAN_OK);
    memory_fails_from(1);
    assert_int_equal(doorman_resource_set_wants(rate, 8), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(rate, 0, 0), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(rate, 100, DOORMAN_NEVER), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(rate, 5, DOORMAN_NEVER), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(gauge, 1000, DOORMAN_NEVER), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(gauge, 1, MILLISECOND), DOORMAN_TIMED_OUT);
    doorman_result result;
    assert_int_equal(doorman_resource_try(gauge, 1, &result), DOORMAN_REFUSED);
    assert_true(doorman_resource_delay(gauge, 1) > 0);
    assert_int_equal(doorman_resource_release(gauge, 1000), DOORMAN_OK);
    doorman_resource_info read;
    doorman_agent_info info;
    assert_int_equal(doorman_resource_read(rate, &read), DOORMAN_OK);
    assert_int_equal(doorman_agent_read_info(s->agent, &info), DOORMAN_OK);
    assert_int_equal(doorman_agent_kill_switch(s->agent, false), DOORMAN_OK);
    assert_int_equal(doorman_resource_close(rate), DOORMAN_OK);
    assert_int_equal(doorman_agent_shutdown(s->agent), DOORMAN_OK);
    assert_true(memory_works());
    fixture_stop(s);
}

struct arming {
    size_t fails_at;
    bool done; /* atomic */
};

/* Runs in the thread of the permits. Lets an allocation of this thread fail after this decision. */
static void arm_thread(void *context, doorman_status status, const doorman_acquired *acquired) {
    struct arming *arming = context;
    assert_true(status == DOORMAN_OK && acquired->decided_by == DOORMAN_BY_FALLBACK);
    memory_fails_at(arming->fails_at);
    __atomic_store_n(&arming->done, true, __ATOMIC_RELEASE);
}

/* The first permit that may wait in a queue needs a lane. If memory runs out for the lane, the
 * permit travels among the other messages. No server answers, so the fallback decides. */
TEST(a_permit_that_may_wait_is_sent_without_memory_for_a_lane) {
    const struct timespec nap = {.tv_nsec = 1000000};
    for (size_t n = 1; n <= 8; n++) {
        fixture *s = fixture_start();
        prepare_agent(s);
        struct arming arming = {.fails_at = n};
        assert_int_equal(
            doorman_agent_acquire_async(s->agent, &one_request, 0, arm_thread, &arming, NULL),
            DOORMAN_OK);
        for (int i = 0; i < 60000 && !__atomic_load_n(&arming.done, __ATOMIC_ACQUIRE); i++) {
            nanosleep(&nap, NULL);
        }
        assert_true(__atomic_load_n(&arming.done, __ATOMIC_ACQUIRE));
        doorman_agent_info info;
        assert_int_equal(doorman_agent_read_info(s->agent, &info), DOORMAN_OK);
        assert_int_equal(info.permits.messages, 0);
        uint64_t hold = 0;
        doorman_permit_request request = one_request;
        request.max_wait = SECOND;
        request.hold = &hold;
        doorman_acquired acquired;
        assert_int_equal(doorman_agent_acquire(s->agent, &request, SECOND, &acquired, NULL),
                         DOORMAN_OK);
        assert_int_equal(acquired.decided_by, DOORMAN_BY_FALLBACK);
        assert_int_equal(doorman_agent_read_info(s->agent, &info), DOORMAN_OK);
        assert_true(info.permits.messages > 0);
        fixture_stop(s);
    }
}

/* ---- a transport over a real socket --------------------------------------------------------- */

/* These tests answer on plain sockets, in nng's protocol. A socket of nng 1.5.2 for responses can
 * hang when it is closed while clients of the same process send requests. */

static char own_url[64]; /* of the listener of the present fixture */
static const char *const own_addresses[] = {own_url};

typedef struct transport_fixture {
    fixture *s;
    int listener, peer; /* sockets; -1: there is no connection */
    doorman_client *client;
    doorman_client_resource *resource;
    doorman_transport *transport;
    doorman_time now; /* the client's time: the machine's time, or later */
    int wakeups;      /* atomic */
} transport_fixture;

static void count_wakeup(void *context) { __atomic_fetch_add((int *)context, 1, __ATOMIC_SEQ_CST); }

/* Listens on a free port. */
static void transport_fixture_listen(transport_fixture *c) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->listener >= 0);
    assert_int_equal(bind(c->listener, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(c->listener, (struct sockaddr *)&address, &bytes), 0);
    assert_int_equal(listen(c->listener, 8), 0);
    snprintf(own_url, sizeof own_url, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
}

static void transport_fixture_start(transport_fixture *c) {
    *c = (transport_fixture){.s = fixture_start(), .peer = -1, .now = doorman_clock()};
    transport_fixture_listen(c);
    const doorman_client_options client_options = {.client_id = "new",
                                                   .addresses = own_addresses,
                                                   .address_count = 1,
                                                   .request_timeout = TEST_TIMEOUT};
    const doorman_resource_options resource_options = {.resource_id = "db/1", .wants = 7};
    assert_int_equal(doorman_client_create(&c->client, &client_options, NULL, c->now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&c->resource, c->client, &resource_options, NULL, c->now),
                     DOORMAN_OK);
    const doorman_transport_options options = {.upstream = doorman_client_upstream(c->client),
                                               .on_wakeup = count_wakeup,
                                               .context = &c->wakeups};
    assert_int_equal(doorman_transport_create(&c->transport, &options), DOORMAN_OK);
}

static void transport_fixture_stop(transport_fixture *c) {
    doorman_transport_destroy(c->transport);
    doorman_client_destroy(c->client);
    if (c->peer >= 0) close(c->peer);
    close(c->listener);
    fixture_stop(c->s);
}

static bool transport_fixture_leased(const transport_fixture *c) {
    doorman_resource_info info;
    doorman_client_read(c->resource, &info, c->now);
    return info.leased;
}

static bool read_all(int fd, void *out, size_t bytes) {
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool write_all(int fd, const void *from, size_t bytes) {
    return send(fd, from, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Accepts a connection in place of the last one, and exchanges nng's greeting. */
static void transport_fixture_accept(transport_fixture *c) {
    static const unsigned char req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const unsigned char rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    const struct timeval timeout = {.tv_sec = 60};
    const int on = 1;
    unsigned char greeting[8];
    if (c->peer >= 0) close(c->peer);
    c->peer = accept(c->listener, NULL, NULL);
    assert_true(c->peer >= 0);
    assert_int_equal(setsockopt(c->peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), 0);
    assert_int_equal(setsockopt(c->peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    assert_true(write_all(c->peer, rep, sizeof rep));
    assert_true(read_all(c->peer, greeting, sizeof greeting));
    assert_memory_equal(greeting, req, sizeof req);
}

/* Receives a request, on the connection or on a new one. It consists of 8 bytes that count the
 * rest, 4 bytes that name the request, and the text. Returns the bytes of the text. */
static size_t transport_fixture_receive(transport_fixture *c, unsigned char head[12], char *body,
                                        size_t most) {
    uint64_t bytes = 0;
    bool received = false;
    for (int i = 0; i < 3 && !received; i++) {
        struct pollfd ready[] = {{.fd = c->listener, .events = POLLIN},
                                 {.fd = c->peer, .events = POLLIN}};
        assert_true(poll(ready, 2, 60000) > 0);
        if (ready[0].revents) transport_fixture_accept(c);
        received = read_all(c->peer, head, 12);
        if (!received) close(c->peer);
        if (!received) c->peer = -1;
    }
    assert_true(received);
    for (int i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    assert_in_range(bytes, 5, most + 4);
    assert_true(read_all(c->peer, body, (size_t)bytes - 4));
    return (size_t)bytes - 4;
}

/* Sends the request that was prepared, answers it, and waits until the response has come. */
static void transport_fixture_answer(transport_fixture *c) {
    static char body[1 << 16];
    unsigned char head[12];
    int before = __atomic_load_n(&c->wakeups, __ATOMIC_SEQ_CST);
    doorman_transport_send(c->transport);
    size_t bytes = transport_fixture_receive(c, head, body, sizeof body);
    assert_int_equal(doorman_json_serve(c->s->root, body, bytes, &c->s->reply, 0, c->s->now),
                     DOORMAN_OK);
    for (int i = 0; i < 8; i++) {
        head[i] = (unsigned char)((uint64_t)(c->s->reply.bytes + 4) >> (56 - 8 * i));
    }
    assert_true(write_all(c->peer, head, sizeof head));
    assert_true(write_all(c->peer, c->s->reply.text, c->s->reply.bytes));
    doorman_time end = doorman_clock() + TEST_TIMEOUT;
    while (__atomic_load_n(&c->wakeups, __ATOMIC_SEQ_CST) == before) {
        assert_true(doorman_clock() < end);
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Sends a request through a transport while an allocation fails. A request that cannot be written
 * and a response that cannot be read count as failures: nothing is accepted, and the next request
 * follows after a back-off. Returns whether no allocation failed.
 *   kept   set to how many blocks of memory are left */
static bool try_without_memory(size_t nth, bool once, size_t *kept) {
    size_t blocks = memory_blocks();
    transport_fixture c;
    transport_fixture_start(&c);
    if (once) memory_fails_at(nth);
    if (!once) memory_fails_from(nth);
    bool prepared = doorman_transport_update(c.transport, NULL, c.now);
    doorman_transport_result result = {.has_ended = false};
    size_t left = unit__memory.until_failure;
    bool worked = memory_works();
    assert_int_equal(prepared, worked);
    if (prepared) {
        transport_fixture_answer(&c);
        if (once) memory_fails_at(left);
        if (!once) memory_fails_from(left);
        assert_false(doorman_transport_update(c.transport, &result, c.now));
        assert_true(result.has_ended);
        assert_string_equal(result.address, own_addresses[0]);
        worked = memory_works();
    }
    assert_int_equal(transport_fixture_leased(&c), worked);
    assert_int_equal(result.status, worked || !prepared ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
    assert_string_equal(result.error.text, result.status == DOORMAN_OK ? "" : "out of memory");
    if (!worked) {
        assert_true(doorman_upstream_due(doorman_client_upstream(c.client)) >
                    c.now); /* the client backs off */
        c.now = doorman_upstream_due(doorman_client_upstream(c.client));
        assert_true(doorman_transport_update(c.transport, NULL, c.now));
        transport_fixture_answer(&c);
        assert_false(doorman_transport_update(c.transport, &result, c.now));
        assert_true(result.has_ended && result.status == DOORMAN_OK);
        assert_true(transport_fixture_leased(&c));
    }
    transport_fixture_stop(&c);
    *kept = memory_blocks() - blocks;
    return worked;
}

/* On a busy machine nng 1.5.2 sometimes closes a socket late or never, and the socket keeps its
 * memory: see doorman__socket_close. So it is enough if one of three tries keeps no memory. */
static bool try_without_memory_again(size_t nth, bool once) {
    bool worked = false;
    size_t kept = 1;
    for (int tries = 0; tries < 3 && kept != 0; tries++) {
        worked = try_without_memory(nth, once, &kept);
    }
    assert_int_equal(kept, 0);
    return worked;
}

TEST(a_transport_without_memory_drops_the_response_and_retries) {
    for (int once = 0; once < 2; once++) {
        size_t nth = 1;
        while (!try_without_memory_again(nth, once)) assert_true(++nth < 1000);
        assert_true(nth > 20);
    }
}

/* A node sends no request until there is memory for a request. A response that was not read is
 * freed with its transport. */
TEST(the_transport_of_a_node_waits_for_memory) {
    fixture *s = fixture_start();
    start_node_with_many_resources(s);
    const doorman_tls tls = {.authority = "A"};
    const doorman_transport_options options = {.upstream =
                                                   doorman_server_upstream(s->created_server),
                                               .on_wakeup = ignore_wakeup,
                                               .tls = &tls};
    assert_int_equal(doorman_transport_create(&s->transport, &options), DOORMAN_OK);
    memory_fails_from(1);
    assert_false(doorman_transport_update(s->transport, NULL, s->now));
    assert_false(memory_works());
    assert_false(doorman_transport_update(s->transport, NULL, s->now + SECOND - 1));
    assert_true(doorman_transport_update(s->transport, NULL, s->now + SECOND));
    fixture_stop(s);
    size_t blocks = memory_blocks();
    transport_fixture c;
    transport_fixture_start(&c);
    assert_true(doorman_transport_update(c.transport, NULL, c.now));
    transport_fixture_answer(&c);
    transport_fixture_stop(&c);
    assert_int_equal(memory_blocks(), blocks);
}

/* ---- a server that is often short of memory ------------------------------------------------- */

enum { HOLDERS = 12, IDS = 5, WANTED = 3 };

/* Sends a request of a random holder for random resources, without a claim. Some of the holders are
 * servers. */
static doorman_status random_request(fixture *s, doorman_server *server) {
    static const char *const ids[IDS] = {"db/1", "db/2", "disk", "net", "tape"};
    doorman_demand demands[WANTED][WANTED];
    doorman_capacity_request items[WANTED];
    char holder[16];
    size_t first = random_below(IDS);
    const char *name = holder;
    bool is_server = server == s->root && random_below(3) == 0;
    snprintf(holder, sizeof holder, "%zu", random_below(HOLDERS));
    for (size_t i = 0; i < WANTED; i++) {
        for (size_t j = 0; j < WANTED; j++) {
            demands[i][j] = (doorman_demand){random_unit() * 40, 1, (int)random_below(4)};
        }
        items[i] =
            (doorman_capacity_request){.resource_id = ids[(first + i) % IDS],
                                       .wants = demands[i],
                                       .wants_count = is_server ? 1 + random_below(WANTED) : 1,
                                       .learning = is_server && random_below(4) == 0};
    }
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = is_server,
                                     .holder_id = holder,
                                     .path = &name,
                                     .path_count = is_server ? 1 : 0,
                                     .items = items,
                                     .item_count = 1 + random_below(WANTED)};
    doorman_response response;
    return doorman_server_handle(server, &request, &response, NULL, s->now);
}

TEST(random_holders_and_failing_allocations_keep_the_lease_tables_valid) {
    fixture *s = fixture_start();
    text before = {NULL, 0, 0}, after = {NULL, 0, 0};
    size_t refused = 0, done = 0;
    for (int round = 0; round < 4000; round++) {
        doorman_server *server = random_below(3) ? s->root : s->node;
        s->now += (doorman_time)random_below(4) * SECOND;
        doorman__server_work(&server->upstream, s->now);
        dump_state(s, &before);
        if (random_below(2)) memory_fails_at(1 + random_below(6));
        doorman_status status = random_request(s, server);
        (void)memory_works();
        dump_state(s, &after);
        if (status == DOORMAN_OK) done++;
        if (status == DOORMAN_OK) continue;
        refused++;
        assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
        assert_string_equal(after.at, before.at);
    }
    assert_true(refused > 100 && done > 100);
    text_end(&before);
    text_end(&after);
    fixture_stop(s);
}

/* ---- completeness --------------------------------------------------------------------------- */

static bool is_listed(const char *function) {
    bool listed = false;
    for (size_t i = 0; i < COUNT_OF(test_cases); i++) {
        listed = listed || strcmp(test_cases[i].function, function) == 0;
    }
    for (size_t i = 0; i < COUNT_OF(other_functions); i++) {
        listed = listed || strcmp(other_functions[i], function) == 0;
    }
    return listed;
}

/* Fails if a function that returns a status is neither in a test case nor in other_functions. */
TEST(each_function_that_returns_a_status_is_listed) {
    static const char start[] = "DOORMAN_API doorman_status ";
    static const char *const headers[] = {"doorman.h", "doorman_permits.h", "doorman_throttle.h"};
    char path[512], line[256], name[64];
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        size_t count = 0;
        snprintf(path, sizeof path, "%.*s../../%s",
                 (int)(strlen(__FILE__) - strlen("allocation_test.c")), __FILE__, headers[i]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file)) {
            if (strncmp(line, start, strlen(start)) != 0) continue;
            assert_int_equal(sscanf(line + strlen(start), "%63[a-z_]", name), 1);
            if (!is_listed(name)) fail_msg("%s is in neither list", name);
            count++;
        }
        fclose(file);
        assert_true(count > 0); /* the header was read */
    }
}

/* ---- the test cases ------------------------------------------------------------------------- */

static void *cjson_malloc(size_t bytes) { return unit_malloc(bytes); }
static void cjson_free(void *block) { unit_free(block); }

__attribute__((constructor)) static void test_cases_add(void) {
    cJSON_InitHooks(&(cJSON_Hooks){cjson_malloc, cjson_free});
    for (size_t i = 0; i < COUNT_OF(test_cases); i++) {
        test_add(__LINE__, (struct CMUnitTest){.name = test_cases[i].promise,
                                               .test_func = test_case_run,
                                               .initial_state = (void *)(uintptr_t)&test_cases[i]});
    }
}
