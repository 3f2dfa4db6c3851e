/* Tests section >>client of doorman.h: the resources of an application, their leases, fallbacks and
 * wants, mostly with a real server in the same process. doorman.h defines the rules. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)
#define MINUTE (60 * DOORMAN_SECOND)
#define YEAR (INT64_C(365) * 86400 * DOORMAN_SECOND)

/* ---- a server, its clients, and the messages between them; time is a variable ---- */

enum { CLIENTS = 4, CLIENTS_MAX = 128 };

typedef struct world {
    doorman_time now;
    doorman_time skew; /* how much the server's clock is ahead */
    doorman_config *config;
    doorman_server *server;
    doorman_client *clients[CLIENTS_MAX];
    size_t client_count;
    bool down;                       /* the server does not answer */
    unsigned loss;                   /* percentage of requests, and of responses, that are lost */
    size_t request_count;            /* the number of requests that clients have made */
    size_t change_count;             /* the number of calls of on_change */
    doorman_client_resource *opened; /* the last resource that was opened */
    doorman_resource_info changed;   /* the state that the last call of on_change received */
    size_t blocks;                   /* allocated before the start */
} world;

/* Makes a configuration with one template for all resources, without learning. If safe_capacity <
 * 0, the template has no safe capacity. */
static doorman_config *config_with(double capacity, double safe_capacity,
                                   doorman_time lease_length) {
    const doorman_template all = {
        .identifier_glob = "*",
        .capacity = capacity,
        .has_safe_capacity = safe_capacity >= 0,
        .safe_capacity = safe_capacity >= 0 ? safe_capacity : 0,
        .has_algorithm = true,
        .algorithm = {.lease_length = lease_length, .has_learning_mode_duration = true}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    return config;
}

static doorman_config *config_of(double capacity, doorman_time lease_length) {
    return config_with(capacity, -1, lease_length);
}

static void server_start(world *w) {
    const doorman_server_options options = {
        .node = "root", .config = w->config, .seed = {random_bits(), random_bits()}};
    const doorman_mastership mastership = {.address = "tcp://a:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_create(&w->server, &options, NULL, w->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
}

static void world_start_safe(world *w, double capacity, double safe_capacity) {
    *w = (world){.now = 1000 * SECOND, .blocks = memory_blocks()};
    w->config = config_with(capacity, safe_capacity, 0);
    server_start(w);
}

static void world_start(world *w, double capacity) { world_start_safe(w, capacity, -1); }

/* Replaces the server by a new one, which learns for as long as leases last. */
static void server_restart(world *w, double capacity) {
    const doorman_template all = {.identifier_glob = "*", .capacity = capacity};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    assert_int_equal(doorman_config_create(&w->config, &options, NULL), DOORMAN_OK);
    server_start(w);
}

static void world_stop(world *w) {
    for (size_t i = 0; i < w->client_count; i++) doorman_client_destroy(w->clients[i]);
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    assert_int_equal(memory_blocks(), w->blocks);
}

static doorman_client *add_client(world *w, const char *client_id) {
    static const char *const address = "tcp://a:1";
    const doorman_client_options options = {
        .client_id = client_id, .addresses = &address, .address_count = 1, .seed = random_bits()};
    doorman_client **client = &w->clients[w->client_count++];
    assert_int_equal(doorman_client_create(client, &options, NULL, w->now), DOORMAN_OK);
    return *client;
}

static void release(doorman_client_resource *gauge, double n) {
    assert_int_equal(doorman_client_release(gauge, n), DOORMAN_OK);
}

static void record_change(void *context, const doorman_resource_info *info) {
    world *w = context;
    w->change_count++;
    w->changed = *info;
}

static doorman_client_resource *open_with(world *w, doorman_client *client,
                                          doorman_resource_options options) {
    doorman_client_resource *resource = NULL;
    options.resource_id = "db";
    options.has_safe_capacity = options.safe_capacity != 0;
    if (!options.on_change) {
        options.on_change = record_change;
        options.context = w;
    }
    assert_int_equal(doorman_client_open(&resource, client, &options, NULL, w->now), DOORMAN_OK);
    w->opened = resource;
    return resource;
}

static doorman_client_resource *open_resource(world *w, doorman_client *client, double wants) {
    return open_with(w, client, (doorman_resource_options){.wants = wants});
}

static doorman_client_resource *open_gauge(world *w, doorman_client *client, double wants) {
    return open_with(w, client, (doorman_resource_options){.kind = DOORMAN_GAUGE, .wants = wants});
}

static bool lost(const world *w) { return w->down || random_below(100) < w->loss; }

static doorman_time due_of(doorman_client *client) {
    return doorman_upstream_due(doorman_client_upstream(client));
}

/* Lets a client do the work that is due. */
static void work(doorman_client *client, doorman_time now) {
    doorman_request request;
    (void)doorman_upstream_request(doorman_client_upstream(client), &request, now);
}

/* Delivers a client's request to the server, and the response to the client, unless a message is
 * lost. */
static void exchange(world *w, doorman_client *client) {
    doorman_upstream *upstream = doorman_client_upstream(client);
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, w->now)) return;
    w->request_count++;
    bool arrived = !lost(w) && doorman_server_handle(w->server, &request, &response, NULL,
                                                     w->now + w->skew) == DOORMAN_OK;
    if (arrived && !lost(w)) {
        assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, w->now),
                         DOORMAN_OK);
    } else {
        doorman_upstream_failed(upstream, request.sequence, w->now);
    }
}

static void exchange_all(world *w) {
    for (size_t i = 0; i < w->client_count; i++) exchange(w, w->clients[i]);
}

static void run_until(world *w, doorman_time until) {
    for (int i = 0; i < 100000; i++) {
        doorman_time due = DOORMAN_NEVER;
        for (size_t k = 0; k < w->client_count; k++) {
            doorman_time its = due_of(w->clients[k]);
            due = its < due ? its : due;
        }
        if (due > until) {
            w->now = until;
            return;
        }
        if (due > w->now) w->now = due;
        exchange_all(w);
    }
    fail_msg("the clients are always due");
}

static void run_for(world *w, doorman_time duration) { run_until(w, w->now + duration); }

static doorman_resource_info read_now(const world *w, const doorman_client_resource *resource) {
    doorman_resource_info info;
    doorman_client_read(resource, &info, w->now);
    return info;
}

static void set_wants(world *w, doorman_client_resource *resource, double wants) {
    assert_int_equal(doorman_client_set_wants(resource, wants, w->now), DOORMAN_OK);
}

static size_t holder_count(world *w) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource = {.holder_count = 0};
    (void)doorman_server_next_resource(w->server, &cursor, &resource, w->now);
    return resource.holder_count;
}

/* ---- without a server, for tests of one response ---- */

static void respond(world *w, doorman_client *client, doorman_capacity_response item_response) {
    doorman_upstream *upstream = doorman_client_upstream(client);
    doorman_request request;
    (void)doorman_upstream_request(upstream, &request, w->now);
    assert_int_equal(request.item_count, 1);
    item_response.resource_id = "db";
    if (!item_response.gets.refresh_interval) item_response.gets.refresh_interval = 16 * SECOND;
    const doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                       .is_master = true,
                                       .items = &item_response,
                                       .item_count = 1};
    assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, w->now),
                     DOORMAN_OK);
}

static doorman_capacity_response granted_lease(double capacity) {
    return (doorman_capacity_response){
        .outcome = DOORMAN_GRANTED,
        .gets = {.id = 1, .node = "root", .capacity = capacity, .expires_in = MINUTE}};
}

static doorman_capacity_response with_safe_capacity(doorman_capacity_response item_response,
                                                    double safe_capacity) {
    item_response.has_safe_capacity = true;
    item_response.safe_capacity = safe_capacity;
    return item_response;
}

static void sleep_until_due(world *w, doorman_client *client) {
    doorman_time due = due_of(client);
    assert_true(due != DOORMAN_NEVER);
    if (due > w->now) w->now = due;
}

/* A5: gauge_is_divided warns an application once while the leases of its gauge are not whole units,
 * even if the gauge has no lease for a time. */
TEST(a_gauge_on_fractional_units_is_reported_once) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_gauge(&w, client, 2);
    assert_false(read_now(&w, resource).gauge_is_divided);
    size_t before = w.change_count;
    for (int i = 0; i < 3; i++) {
        respond(&w, client, granted_lease(0.8));
        assert_int_equal(w.change_count, before + 1);
        assert_true(w.changed.gauge_is_divided && !w.changed.whole);
        w.now += 20 * SECOND;
    }
    doorman_capacity_response whole = granted_lease(1);
    whole.whole = true;
    respond(&w, client, whole);
    assert_true(read_now(&w, resource).whole);
    assert_false(read_now(&w, resource).gauge_is_divided);
    assert_false(w.changed.gauge_is_divided);
    w.now += 20 * SECOND;
    respond(&w, client, granted_lease(0.8));
    assert_true(w.changed.leased && w.changed.gauge_is_divided);
    w.now += 2 * MINUTE;
    work(client, w.now);
    assert_true(!w.changed.leased && w.changed.gauge_is_divided);
    world_stop(&w);
}

/* A5: wants of whole units are rounded up, so that no part of a unit is given back. */
TEST(wants_of_whole_units_are_rounded_up) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_resource(&w, client, 2.3);
    doorman_capacity_response whole = granted_lease(3);
    whole.whole = true;
    respond(&w, client, whole);
    sleep_until_due(&w, client);
    respond(&w, client, whole);
    assert_true(due_of(client) >= w.now + 16 * SECOND); /* nothing has changed */
    sleep_until_due(&w, client);
    doorman_request request;
    (void)doorman_upstream_request(doorman_client_upstream(client), &request, w.now);
    assert_exact(request.items->wants->wants, 3);
    assert_exact(request.items->has.capacity, 3);
    assert_exact(read_now(&w, resource).capacity, 3);
    assert_exact(read_now(&w, resource).wants, 2.3);
    world_stop(&w);
}

/* ---- options ---- */

static void assert_names(const doorman_error *error, const char *field) {
    if (strncmp(error->text, field, strlen(field)) == 0) return;
    fail_msg("\"%s\" does not begin with %s", error->text, field);
}

/* Fails unless a client with these options is refused, for a reason that begins with this text. */
static void expect_refused(const doorman_client_options *options, const char *reason) {
    doorman_client *client = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_client_create(&client, options, &error, 0), DOORMAN_INVALID_ARGUMENT);
    assert_names(&error, reason);
    assert_null(client);
    assert_int_equal(doorman_client_create(&client, options, NULL, 0), DOORMAN_INVALID_ARGUMENT);
}

/* C5 */
TEST(invalid_client_options_are_refused) {
#define ONE .seed = 1, .addresses = good, .address_count = 1
    const doorman_tls tls = {.authority = "A"};
    static const char *const good[] = {"tcp://a:1"}, *const bad[] = {"tcp://a:1", "", NULL};
    char too_long[DOORMAN_ID_BYTES_MAX + 2] = {0};
    memset(too_long, 'x', sizeof too_long - 1);
    const struct {
        const char *reason;
        doorman_client_options options;
    } wrongs[] = {
        {"client_id", {ONE}},
        {"client_id", {ONE, .client_id = ""}},
        {"client_id", {ONE, .client_id = too_long}},
        {"client_id", {ONE, .client_id = "a\x7f"}},
        {"client_id", {ONE, .client_id = "a\xff"}},
        {"addresses", {.seed = 1, .client_id = "c"}},
        {"addresses", {.seed = 1, .client_id = "c", .address_count = 1}},
        {"addresses", {.seed = 1, .client_id = "c", .addresses = good, .address_count = 17}},
        {"addresses[1]", {.seed = 1, .client_id = "c", .addresses = bad, .address_count = 2}},
        {"addresses[0]", {.seed = 1, .client_id = "c", .addresses = bad + 2, .address_count = 1}},
        {"request_timeout", {ONE, .client_id = "c", .request_timeout = -1}},
        {"request_timeout", {ONE, .client_id = "c", .request_timeout = INT64_MAX}},
        {"request_timeout: must be from 1 ms",
         {ONE, .client_id = "c", .request_timeout = MILLISECOND - 1}},
        {"tls", {ONE, .client_id = "c", .tls = &tls}},
    };
#undef ONE
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        expect_refused(&wrongs[i].options, wrongs[i].reason);
    }
}

/* C5: a typing error in an address is found at the start. */
TEST(invalid_addresses_are_refused) {
    static const char *const port = "addresses[0]: the port must be a number from 1 to 65535";
    static const char *const space = "addresses[0]: must not begin or end with a space";
    static const char *const within = "addresses[0]: must not contain a space";
    static const struct {
        const char *address, *error;
    } rows[] = {{"tcp://a:99999", port},      {"tcp://a:65536", port},
                {"tcp://a:0", port},          {"tcp://a:", port},
                {"tcp://a:1x", port},         {"tcp://a:18446744073709551617", port},
                {"tls+tcp://a:99999", port},  {"ws://a:99999/doorman", port},
                {"wss://[::1]:99999/", port}, {" tcp://a:1", space},
                {"tcp://a:1 ", space},        {"tcp://a :1", within},
                {"tcp://a: 1", within},       {"ws://a:1/a b", within},
                {"wss://a b/", within},       {"tls+tcp://a b:1", within},
                {"inproc://a b", ""},         {"tcp://a:65535", ""},
                {"tcp://[::1]:1", ""},        {"ws://a/doorman", ""},
                {"wss://[::1]/", ""},         {"ipc:///tmp/a b:99999", ""},
                {"inproc://a:99999", ""},     {"tcp4://a:65536", port},
                {"tcp6://[::1]:65536", port}, {"tls+tcp4://a:70000", port},
                {"tls+tcp6://a:70000", port}, {"tcp4://a:65535", ""},
                {"unix:///tmp/a:99999", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const doorman_client_options options = {
            .client_id = "c", .addresses = &rows[i].address, .address_count = 1, .seed = 1};
        doorman_client *client = NULL;
        doorman_error error = {0};
        doorman_status status = doorman_client_create(&client, &options, &error, 0);
        assert_int_equal(status, rows[i].error[0] ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK);
        assert_string_equal(error.text, rows[i].error);
        doorman_client_destroy(client);
    }
}

#define TOO_LONG (DOORMAN_DURATION_MAX + 1)

static const struct {
    const char *field;
    doorman_resource_options options;
} invalid_resource_options[] = {
    {"resource_id", {.resource_id = NULL}},
    {"resource_id", {.resource_id = ""}},
    {"resource_id", {.resource_id = "a\nb"}},
    {"priority", {.resource_id = "db", .has_priority = true, .priority = -1}},
    {"priority", {.resource_id = "db", .has_priority = true, .priority = 16}},
    {"priority: needs has_priority", {.resource_id = "db", .priority = 1}},
    {"wants", {.resource_id = "db", .wants = -1}},
    {"wants", {.resource_id = "db", .wants = (double)NAN}},
    {"wants", {.resource_id = "db", .wants = (double)INFINITY}},
    {"wants", {.resource_id = "db", .wants = 1.1e15}},
    {"wants: must be at most wants_maximum",
     {.resource_id = "db", .wants = 61, .wants_maximum = 60}},
    {"wants_minimum: must be 0 if wants is set",
     {.resource_id = "db", .wants = 7, .wants_minimum = 1}},
    {"wants_minimum: must be 0 if wants is set",
     {.resource_id = "db", .wants = 7, .has_wants_minimum = true}},
    {"wants_initial: must be 0 if wants is set",
     {.resource_id = "db", .wants = 7, .wants_initial = 7}},
    {"window: must be 0 if wants is set", {.resource_id = "db", .wants = 7, .window = SECOND}},
    {"wants_initial: must be at most wants_maximum",
     {.resource_id = "db", .wants_initial = 61, .wants_maximum = 60}},
    {"wants_initial: must be at least wants_minimum",
     {.resource_id = "db", .wants_initial = 4, .wants_minimum = 5}},
    {"wants_initial: must be at least wants_minimum", {.resource_id = "db", .wants_initial = 0.5}},
    {"wants_minimum", {.resource_id = "db", .wants_minimum = -1}},
    {"wants_minimum", {.resource_id = "db", .wants_minimum = (double)NAN}},
    {"wants_maximum", {.resource_id = "db", .wants_maximum = -1}},
    {"wants_maximum", {.resource_id = "db", .wants_maximum = (double)NAN}},
    {"wants_maximum", {.resource_id = "db", .wants_maximum = 0.5}},
    {"wants_maximum", {.resource_id = "db", .wants_minimum = 5, .wants_maximum = 4}},
    {"wants_initial", {.resource_id = "db", .wants_initial = -1}},
    {"wants_initial", {.resource_id = "db", .wants_initial = (double)NAN}},
    {"window", {.resource_id = "db", .window = -1}},
    {"window", {.resource_id = "db", .window = TOO_LONG}},
    {"window", {.resource_id = "db", .window = 10 * MILLISECOND - 1}},
    {"burst", {.resource_id = "db", .burst = -1}},
    {"burst", {.resource_id = "db", .burst = TOO_LONG}},
    {"burst: must be from 1 us", {.resource_id = "db", .burst = 1}},
    {"burst: must be from 1 us", {.resource_id = "db", .burst = 999}},
    {"burst_units: must be a finite number", {.resource_id = "db", .burst_units = -1}},
    {"burst_units: must be a finite number", {.resource_id = "db", .burst_units = 1.1e15}},
    {"burst_units: must be 0 if burst is set",
     {.resource_id = "db", .burst = SECOND, .burst_units = 5}},
    {"kind", {.resource_id = "db", .kind = (doorman_resource_kind)2}},
    {"burst: must be 0: a gauge", {.resource_id = "db", .kind = DOORMAN_GAUGE, .burst = 1000}},
    {"burst_units: must be 0: a gauge",
     {.resource_id = "db", .kind = DOORMAN_GAUGE, .burst_units = 1}},
    {"fallback", {.resource_id = "db", .fallback = (doorman_fallback)3}},
    {"safe_capacity: must be -1",
     {.resource_id = "db", .has_safe_capacity = true, .safe_capacity = -2}},
    {"safe_capacity: must be -1",
     {.resource_id = "db", .has_safe_capacity = true, .safe_capacity = (double)NAN}},
    {"safe_capacity: needs has_safe_capacity", {.resource_id = "db", .safe_capacity = 5}},
    {"safe_capacity: needs has_safe_capacity", {.resource_id = "db", .safe_capacity = (double)NAN}},
    {"has_safe_capacity: must not be set unless the fallback is SAFE",
     {.resource_id = "db",
      .fallback = DOORMAN_PESSIMISTIC,
      .has_safe_capacity = true,
      .safe_capacity = 5}},
    {"has_safe_capacity: must not be set unless the fallback is SAFE",
     {.resource_id = "db", .fallback = DOORMAN_OPTIMISTIC, .has_safe_capacity = true}},
};

/* C5 */
TEST(invalid_resource_options_are_refused) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    size_t count = sizeof invalid_resource_options / sizeof *invalid_resource_options;
    for (size_t i = 0; i < count; i++) {
        const doorman_resource_options *options = &invalid_resource_options[i].options;
        doorman_client_resource *resource = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_client_open(&resource, client, options, &error, w.now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_names(&error, invalid_resource_options[i].field);
        assert_null(resource);
        assert_int_equal(due_of(client), DOORMAN_NEVER);
    }
    world_stop(&w);
}

/* C5 */
TEST(invalid_wants_are_refused) {
    const double wrongs[] = {-1, (double)NAN, (double)INFINITY, 1.1e15};
    world w;
    world_start(&w, 100);
    doorman_client_resource *resource = open_resource(&w, add_client(&w, "client"), 7);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        assert_int_equal(doorman_client_set_wants(resource, wrongs[i], w.now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_exact(read_now(&w, resource).wants, 7);
    }
    resource = NULL;
    const doorman_resource_options bounded = {.resource_id = "disk", .wants_maximum = 60};
    assert_int_equal(doorman_client_open(&resource, w.clients[0], &bounded, NULL, w.now),
                     DOORMAN_OK);
    assert_int_equal(doorman_client_set_wants(resource, 61, w.now), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_client_set_wants(resource, 60, w.now), DOORMAN_OK);
    world_stop(&w);
}

/* C3 */
TEST(a_priority_of_zero_is_not_the_default) {
    for (int given = 0; given < 2; given++) {
        world w;
        world_start(&w, 100);
        doorman_client *client = add_client(&w, "client");
        open_with(&w, client, (doorman_resource_options){.wants = 1, .has_priority = given});
        doorman_request request;
        (void)doorman_upstream_request(doorman_client_upstream(client), &request, w.now);
        assert_int_equal(request.items[0].wants->priority, given ? 0 : 1);
        world_stop(&w);
    }
}

/* ---- fallbacks ---- */

/* K4 */
TEST(a_fallback_applies_only_without_a_lease) {
    static const struct {
        doorman_fallback mode;
        /* The safe capacities in the options and in the response. -2: the response has none. */
        double given, received;
        double before, after;
    } cases[] = {
        {DOORMAN_SAFE, 0, -2, 0, 0},
        {DOORMAN_SAFE, 5, -2, 5, 5},
        {DOORMAN_SAFE, 5, 8, 5, 8},
        {DOORMAN_SAFE, 5, 0, 5, 0},
        {DOORMAN_SAFE, DOORMAN_UNLIMITED, -2, DOORMAN_UNLIMITED, DOORMAN_UNLIMITED},
        {DOORMAN_SAFE, 5, DOORMAN_UNLIMITED, 5, DOORMAN_UNLIMITED},
        {DOORMAN_PESSIMISTIC, 0, 8, 0, 0},
        {DOORMAN_OPTIMISTIC, 0, 8, 100, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        world_start(&w, 100);
        doorman_client *client = add_client(&w, "client");
        doorman_client_resource *resource = open_with(
            &w, client,
            (doorman_resource_options){
                .wants = 100, .fallback = cases[i].mode, .safe_capacity = cases[i].given});
        assert_false(read_now(&w, resource).leased);
        assert_exact(read_now(&w, resource).capacity, cases[i].before);
        doorman_capacity_response item_response = granted_lease(40);
        if (cases[i].received > -2)
            item_response = with_safe_capacity(item_response, cases[i].received);
        respond(&w, client, item_response);
        assert_true(read_now(&w, resource).leased);
        assert_exact(read_now(&w, resource).capacity, 40);
        w.now += MINUTE;
        assert_false(read_now(&w, resource).leased);
        assert_exact(read_now(&w, resource).capacity, cases[i].after);
        world_stop(&w);
    }
}

/* K4 */
TEST(limiters_follow_the_fallback_and_the_lease) {
    static const struct {
        doorman_fallback mode;
        double safe_capacity, without;
    } cases[] = {{DOORMAN_SAFE, 5, 5},
                 {DOORMAN_SAFE, DOORMAN_UNLIMITED, 100},
                 {DOORMAN_PESSIMISTIC, 0, 0},
                 {DOORMAN_OPTIMISTIC, 0, 50}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        world w;
        world_start(&w, 100);
        doorman_client *client = add_client(&w, "client");
        doorman_resource_options options = {.kind = i % 2 ? DOORMAN_GAUGE : DOORMAN_RATE,
                                            .wants = 50,
                                            .fallback = cases[i / 2].mode,
                                            .safe_capacity = cases[i / 2].safe_capacity,
                                            .burst = i % 2 ? 0 : SECOND};
        doorman_client_resource *resource = open_with(&w, client, options);
        for (int step = 0; step < 3; step++) { /* before, during and after the lease */
            double units = step == 1 ? 20 : cases[i / 2].without;
            double more = options.kind == DOORMAN_GAUGE ? units + 1 : 0.1;
            if (step == 1) respond(&w, client, granted_lease(20));
            if (step == 2) work(client, w.now += MINUTE - SECOND);
            w.now += SECOND; /* a higher rate saves a burst of its own */
            if (units > 0) {
                assert_int_equal(doorman_client_try(resource, units, NULL, w.now), DOORMAN_ALLOWED);
                if (options.kind == DOORMAN_GAUGE) release(resource, units);
            }
            if (units < 100) {
                assert_int_not_equal(doorman_client_try(resource, more, NULL, w.now),
                                     DOORMAN_ALLOWED);
            }
        }
        world_stop(&w);
    }
}

/* K4 */
TEST(a_safe_capacity_in_a_refusal_is_used) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource =
        open_with(&w, client, (doorman_resource_options){.wants = 100, .safe_capacity = 5});
    const doorman_capacity_response later = {.outcome = DOORMAN_TRY_LATER,
                                             .gets.refresh_interval = SECOND};
    respond(&w, client, with_safe_capacity(later, 8));
    assert_exact(read_now(&w, resource).capacity, 8);
    sleep_until_due(&w, client);
    respond(&w, client, later); /* this response has no safe capacity */
    assert_exact(read_now(&w, resource).capacity, 8);
    sleep_until_due(&w, client);
    respond(&w, client, with_safe_capacity(later, 3));
    assert_exact(read_now(&w, resource).capacity, 3);
    assert_exact(w.changed.capacity, 3);
    world_stop(&w);
}

/* K4 */
TEST(on_change_is_called_exactly_when_something_has_changed) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource =
        open_with(&w, client, (doorman_resource_options){.wants = 100, .safe_capacity = 5});
    w.change_count = 0;
    respond(&w, client, granted_lease(40));
    assert_int_equal(w.change_count, 1);
    assert_true(w.changed.leased);
    assert_exact(w.changed.capacity, 40);
    sleep_until_due(&w, client);
    /* This safe capacity matters only after the lease. */
    respond(&w, client, with_safe_capacity(granted_lease(40), 8));
    assert_int_equal(w.change_count, 1);
    sleep_until_due(&w, client);
    respond(&w, client, granted_lease(50));
    assert_int_equal(w.change_count, 2);
    assert_exact(w.changed.capacity, 50);
    doorman_time end = w.now + MINUTE;
    const doorman_capacity_response later = {.outcome = DOORMAN_TRY_LATER,
                                             .gets.refresh_interval = MINUTE};
    sleep_until_due(&w, client);
    respond(&w, client, later);
    assert_int_equal(w.change_count, 3);
    assert_int_equal(w.changed.outcome, DOORMAN_TRY_LATER);
    set_wants(&w, resource, 101);
    assert_int_equal(w.change_count, 3);
    w.now = end - 1;
    work(client, w.now);
    assert_int_equal(w.change_count, 3);
    assert_int_equal(due_of(client), end);
    w.now = end;
    work(client, w.now);
    assert_int_equal(w.change_count, 4);
    assert_false(w.changed.leased);
    assert_exact(w.changed.capacity, 8);
    work(client, w.now + 1);
    assert_int_equal(w.change_count, 4);
    world_stop(&w);
}

/* K4, S14: an application can read why its lease is less than its wants, also in on_change. Without
 * a lease there is no reason. */
TEST(a_client_can_read_why_its_lease_is_less_than_its_wants) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource =
        open_with(&w, client, (doorman_resource_options){.wants = 100, .safe_capacity = 5});
    assert_int_equal(read_now(&w, resource).reason, 0);
    doorman_capacity_response reserved = granted_lease(0), share = granted_lease(0);
    reserved.gets.reason = DOORMAN_LEASE_RESERVED;
    share.gets.reason = DOORMAN_LEASE_SHARE;
    respond(&w, client, reserved);
    assert_int_equal(read_now(&w, resource).reason, DOORMAN_LEASE_RESERVED);
    assert_int_equal(w.changed.reason, DOORMAN_LEASE_RESERVED);
    w.change_count = 0;
    sleep_until_due(&w, client);
    respond(&w, client, share); /* only the reason has changed */
    assert_int_equal(w.change_count, 1);
    assert_int_equal(w.changed.reason, DOORMAN_LEASE_SHARE);
    doorman_time end = w.now + MINUTE;
    sleep_until_due(&w, client);
    const doorman_capacity_response later = {.outcome = DOORMAN_TRY_LATER,
                                             .gets.refresh_interval = MINUTE};
    respond(&w, client, later);
    assert_int_equal(read_now(&w, resource).reason,
                     DOORMAN_LEASE_SHARE); /* of the lease in force */
    w.now = end;
    work(client, w.now);
    assert_int_equal(read_now(&w, resource).reason, 0);
    assert_int_equal(w.changed.reason, 0);
    sleep_until_due(&w, client);
    respond(&w, client, granted_lease(100));
    assert_int_equal(read_now(&w, resource).reason, 0);
    world_stop(&w);
}

/* S14: two clients share 100 units. The second one waits until the first one has confirmed its
 * smaller lease. Then both have their share. */
TEST(two_clients_that_share_read_the_reason_of_the_server) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *a = open_resource(&w, add_client(&w, "a"), 100);
    exchange_all(&w);
    assert_int_equal(read_now(&w, a).reason, 0);
    doorman_client_resource *b = open_resource(&w, add_client(&w, "b"), 100);
    exchange_all(&w);
    assert_int_equal(read_now(&w, b).reason, DOORMAN_LEASE_RESERVED);
    run_for(&w, MINUTE);
    assert_exact(read_now(&w, a).capacity, 50);
    assert_exact(read_now(&w, b).capacity, 50);
    assert_int_equal(read_now(&w, a).reason, DOORMAN_LEASE_SHARE);
    assert_int_equal(read_now(&w, b).reason, DOORMAN_LEASE_SHARE);
    set_wants(&w, a, 30);
    run_for(&w, MINUTE);
    assert_int_equal(read_now(&w, a).reason, 0);
    world_stop(&w);
}

/* K4: an OPTIMISTIC resource has its wants as capacity only without a lease. */
TEST(without_a_lease_an_optimistic_capacity_follows_its_wants) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_with(
        &w, client, (doorman_resource_options){.wants = 100, .fallback = DOORMAN_OPTIMISTIC});
    w.change_count = 0;
    set_wants(&w, resource, 200);
    assert_int_equal(w.change_count, 1);
    assert_exact(w.changed.capacity, 200);
    set_wants(&w, resource, 200);
    assert_int_equal(w.change_count, 1);
    respond(&w, client, granted_lease(40));
    set_wants(&w, resource, 300);
    assert_int_equal(w.change_count, 2); /* only the lease has changed the capacity */
    w.now += MINUTE;
    work(client, w.now);
    assert_exact(w.changed.capacity, 300);
    world_stop(&w);
}

/* ---- leases ---- */

/* K4: the test reads the state just before, at and just after the end of the lease, without an
 * update in between. */
TEST(a_lease_is_over_at_its_end) {
    for (int i = 0; i < 6; i++) {
        doorman_time late = i % 3 - 1;
        world w;
        world_start(&w, 100);
        doorman_client *client = add_client(&w, "client");
        doorman_client_resource *resource =
            open_with(&w, client,
                      (doorman_resource_options){.kind = i < 3 ? DOORMAN_RATE : DOORMAN_GAUGE,
                                                 .wants = 100,
                                                 .fallback = DOORMAN_PESSIMISTIC});
        respond(&w, client, granted_lease(40));
        assert_int_equal(read_now(&w, resource).expires_at, w.now + MINUTE);
        w.now += MINUTE + late;
        doorman_decision expected = late < 0 ? DOORMAN_ALLOWED : DOORMAN_REFUSED;
        assert_int_equal(read_now(&w, resource).leased, late < 0);
        assert_int_equal(doorman_client_try(resource, 1, NULL, w.now), expected);
        world_stop(&w);
    }
}

/* K4. The client of the original Doorman keeps the rate of an expired lease. */
TEST(an_expired_rate_is_not_kept) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource = open_resource(&w, add_client(&w, "client"), 1000);
    run_for(&w, SECOND);
    assert_int_equal(doorman_client_try(resource, 100, NULL, w.now), DOORMAN_ALLOWED);
    w.down = true;
    run_for(&w, MINUTE);                                 /* requests fail */
    assert_exact(read_now(&w, resource).capacity, 1000); /* the safe capacity for one client */
    w.now += MINUTE;
    world_stop(&w);
    world_start(&w, 1000);
    resource =
        open_with(&w, add_client(&w, "client"),
                  (doorman_resource_options){.wants = 1000, .fallback = DOORMAN_PESSIMISTIC});
    run_for(&w, SECOND);
    w.down = true;
    run_for(&w, MINUTE);
    assert_int_equal(doorman_client_try(resource, 1, NULL, w.now), DOORMAN_REFUSED);
    world_stop(&w);
}

/* C1: while the machine is suspended, only the clock runs. */
TEST(a_lease_ends_while_the_machine_is_suspended) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_with(
        &w, client, (doorman_resource_options){.wants = 100, .fallback = DOORMAN_PESSIMISTIC});
    run_for(&w, SECOND);
    assert_exact(read_now(&w, resource).capacity, 100);
    w.now += 8 * 60 * MINUTE;
    assert_int_equal(doorman_client_try(resource, 1, NULL, w.now), DOORMAN_REFUSED);
    assert_false(read_now(&w, resource).leased);
    run_for(&w, SECOND);
    assert_true(read_now(&w, resource).leased);
    world_stop(&w);
}

/* S8. The original Doorman ends leases by the wall clock. Here each side uses its own clock, and
 * any difference between the clocks is harmless. */
TEST(leases_do_not_depend_on_the_clocks_of_other_machines) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *resource = open_resource(&w, add_client(&w, "client"), 100);
    w.skew = 50 * YEAR;
    run_for(&w, SECOND);
    assert_true(read_now(&w, resource).leased);
    assert_true(read_now(&w, resource).expires_at <= w.now + MINUTE);
    w.skew += 30 * SECOND;
    run_for(&w, 10 * MINUTE);
    assert_true(read_now(&w, resource).leased);
    assert_exact(read_now(&w, resource).capacity, 100);
    world_stop(&w);
}

/* K7. The client of the original Doorman hangs when its server is gone. */
TEST(a_lost_server_costs_few_requests_and_is_found_again) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *resource = open_with(
        &w, add_client(&w, "client"), (doorman_resource_options){.wants = 100, .safe_capacity = 5});
    w.down = true;
    run_for(&w, 60 * MINUTE);
    assert_exact(read_now(&w, resource).capacity, 5);
    assert_false(read_now(&w, resource).has_outcome);
    assert_in_range(w.request_count, 60, 300); /* 31 s between requests, on average */
    w.down = false;
    run_for(&w, MINUTE);
    assert_true(read_now(&w, resource).leased);
    w.down = true;
    run_for(&w, 50 * SECOND); /* the lease is still in force */
    w.down = false;
    assert_true(read_now(&w, resource).has_outcome);
    run_for(&w, MINUTE);
    assert_exact(read_now(&w, resource).capacity, 100);
    world_stop(&w);
}

/* S4, K4: when a server comes back, its clients keep their safe capacity until the server has
 * learned. A safe capacity of 40/s stays 40/s all the time, in the limiter too. */
TEST(a_learning_server_leaves_the_safe_capacity_in_force) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with(&w, add_client(&w, "client"),
                  (doorman_resource_options){.wants = 100, .safe_capacity = 40});
    w.down = true;
    run_for(&w, 3 * SECOND);
    w.down = false;
    server_restart(&w, 1000);
    doorman_time learned_at = w.now + 63 * SECOND;
    size_t requests = w.request_count, changes = w.change_count;
    double used = 0;
    for (; w.now + SECOND / 20 < learned_at; run_for(&w, SECOND / 20)) {
        doorman_resource_info info = read_now(&w, resource);
        assert_false(info.leased);
        assert_exact(info.capacity, 40);
        if (doorman_client_try(resource, 2, NULL, w.now) == DOORMAN_ALLOWED) {
            used += 2;
        }
    }
    assert_true(used >= 62 * 40 && used <= 63 * 40 + 4);
    assert_true(read_now(&w, resource).has_outcome && read_now(&w, resource).learning);
    assert_int_equal(read_now(&w, resource).outcome, DOORMAN_TRY_LATER);
    assert_int_equal(w.change_count, changes + 1); /* the server learns */
    assert_in_range(w.request_count - requests, 4, 6);
    run_until(&w, learned_at + SECOND);
    assert_exact(read_now(&w, resource).capacity, 100);
    assert_false(read_now(&w, resource).learning);
    assert_int_equal(w.change_count, changes + 2);
    world_stop(&w);
}

/* S4, S7: a server that learns sends no safe capacity. The last safe capacity that was received
 * stays in force. */
TEST(a_learning_server_leaves_the_last_received_safe_capacity) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with(&w, add_client(&w, "client"), (doorman_resource_options){.wants = 100});
    doorman_client_resource *other =
        open_with(&w, add_client(&w, "other"), (doorman_resource_options){.wants = 100});
    run_for(&w, 20 * SECOND);
    assert_exact(read_now(&w, resource).capacity, 100);
    w.down = true;
    run_for(&w, 2 * MINUTE);
    assert_exact(read_now(&w, resource).capacity, 500);
    w.down = false;
    server_restart(&w, 1000);
    for (int i = 0; i < 62; i++) {
        run_for(&w, SECOND);
        assert_exact(read_now(&w, resource).capacity, 500);
        assert_exact(read_now(&w, other).capacity, 500);
    }
    run_for(&w, 62 * SECOND); /* a back-off lasts up to 60 s (K2) */
    assert_exact(read_now(&w, resource).capacity, 100);
    world_stop(&w);
}

/* S4: while the next server learns, a lease stays in force, and is granted again. */
TEST(a_learning_server_grants_the_same_lease_again) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with(&w, add_client(&w, "client"), (doorman_resource_options){.wants = 100});
    run_for(&w, 10 * SECOND);
    server_restart(&w, 1000);
    run_for(&w, 40 * SECOND);
    doorman_resource_info info = read_now(&w, resource);
    assert_true(info.leased && info.learning);
    assert_exact(info.capacity, 100);
    run_for(&w, 40 * SECOND);
    assert_false(read_now(&w, resource).learning);
    world_stop(&w);
}

/* ---- opening and closing ---- */

/* K5 */
TEST(opening_twice_gives_one_resource) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *first = open_resource(&w, client, 100);
    doorman_client_resource *second = open_resource(&w, client, 7);
    assert_ptr_equal(first, second);
    assert_exact(read_now(&w, first).wants, 100); /* the options of the first call apply */
    run_for(&w, SECOND);
    assert_int_equal(w.request_count, 1);
    doorman_client_close(second, w.now);
    run_for(&w, SECOND);
    assert_int_equal(w.request_count, 1);
    assert_exact(read_now(&w, first).capacity, 100);
    doorman_client_close(first, w.now);
    run_for(&w, SECOND);
    assert_int_equal(w.request_count, 2);
    assert_int_equal(holder_count(&w), 0);
    assert_int_equal(due_of(client), DOORMAN_NEVER);
    world_stop(&w);
}

static int other_context;
static const struct {
    const char *field;
    doorman_resource_options options;
} other_openings[] = {
    {"priority", {.has_priority = true, .priority = 2}},
    {"wants", {.wants = 7}},
    {"wants_minimum", {.wants_minimum = 2, .wants_initial = 3}},
    {"wants_maximum", {.wants_maximum = 9}},
    {"wants_initial", {.wants_initial = 4}},
    {"window", {.window = SECOND}},
    {"burst", {.burst = SECOND}},
    {"fallback", {.fallback = DOORMAN_OPTIMISTIC}},
    {"safe_capacity", {.has_safe_capacity = true, .safe_capacity = 1}},
    {"shadow", {.shadow = true}},
    {"on_change", {.on_change = record_change}},
    {"context", {.context = &other_context}},
    {"", {.resource_id = "db"}},
    {"", {.has_priority = true, .priority = 1, .wants_minimum = 1, .wants_maximum = 1e15}},
    {"", {.has_safe_capacity = true}},
    {"", {.wants_initial = 1, .window = 10 * SECOND, .burst = SECOND / 10}},
};

/* K5: a second call for an open resource reports the first option that differs, and changes
 * nothing. An option that equals its default does not differ from an option of zero. */
TEST(other_options_on_a_second_opening_are_reported) {
    for (size_t i = 0; i < sizeof other_openings / sizeof *other_openings; i++) {
        world w;
        world_start(&w, 100);
        doorman_client *client = add_client(&w, "client");
        const doorman_resource_options first = {.resource_id = "db"};
        doorman_resource_options second = other_openings[i].options;
        second.resource_id = "db";
        doorman_client_resource *one = NULL, *two = NULL;
        doorman_error error = {.text = "the text of another call"};
        assert_int_equal(doorman_client_open(&one, client, &first, &error, w.now), DOORMAN_OK);
        assert_string_equal(error.text, "");
        assert_false(read_now(&w, one).options_differ);
        assert_int_equal(doorman_client_open(&two, client, &second, &error, w.now), DOORMAN_OK);
        assert_ptr_equal(one, two);
        assert_names(&error, other_openings[i].field);
        assert_int_equal(read_now(&w, one).options_differ, other_openings[i].field[0] != 0);
        assert_int_equal(doorman_client_open(&two, client, &first, &error, w.now), DOORMAN_OK);
        assert_string_equal(error.text, "");
        assert_exact(read_now(&w, one).wants, 1);
        for (int opening = 0; opening < 3; opening++) doorman_client_close(one, w.now);
        assert_int_equal(doorman_client_open(&one, client, &second, NULL, w.now), DOORMAN_OK);
        assert_false(read_now(&w, one).options_differ);
        world_stop(&w);
    }
}

static doorman_status open_as(world *w, doorman_resource_kind kind, doorman_error *error) {
    const doorman_resource_options options = {.resource_id = "db", .kind = kind, .wants = 10};
    return doorman_client_open(&w->opened, w->clients[0], &options, error, w->now);
}

/* K5: a resource has one limiter. The other kind is refused while the resource is open. It is also
 * refused while a closed resource has units in use. */
TEST(a_resource_is_a_rate_or_a_gauge) {
    world w;
    doorman_error error = {0};
    world_start(&w, 100);
    (void)add_client(&w, "client");
    assert_int_equal(open_as(&w, DOORMAN_RATE, NULL), DOORMAN_OK);
    run_for(&w, SECOND);
    doorman_client_resource *resource = w.opened;
    assert_int_equal(open_as(&w, DOORMAN_GAUGE, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "kind: 'db' is open as a RATE");
    assert_ptr_equal(w.opened, resource);
    assert_int_equal(doorman_client_release(resource, 1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_client_try(resource, 1, NULL, w.now), DOORMAN_ALLOWED);
    doorman_client_close(resource, w.now); /* the lease has not been released yet */
    assert_int_equal(open_as(&w, DOORMAN_GAUGE, &error), DOORMAN_OK);
    resource = w.opened;
    assert_int_equal(read_now(&w, resource).kind, DOORMAN_GAUGE);
    assert_exact(read_now(&w, resource).capacity, 10);
    assert_exact(read_now(&w, resource).in_use, 0);
    assert_int_equal(doorman_client_try(resource, 10, NULL, w.now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_client_release(resource, -1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_client_release(resource, (double)NAN), DOORMAN_INVALID_ARGUMENT);
    doorman_client_close(resource, w.now);
    assert_int_equal(open_as(&w, DOORMAN_RATE, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "kind: 'db' was closed as a GAUGE, and has units in use");
    assert_int_equal(open_as(&w, DOORMAN_GAUGE, &error),
                     DOORMAN_OK); /* the units are still known */
    assert_exact(read_now(&w, w.opened).in_use, 10);
    release(w.opened, 10);
    doorman_client_close(w.opened, w.now);
    assert_int_equal(open_as(&w, DOORMAN_RATE, &error), DOORMAN_OK);
    assert_int_equal(read_now(&w, w.opened).kind, DOORMAN_RATE);
    assert_exact(read_now(&w, w.opened).counts.allowed, 0);
    world_stop(&w);
}

TEST(the_safe_capacity_of_the_server_can_be_read) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource =
        open_with(&w, client, (doorman_resource_options){.wants = 100, .safe_capacity = 5});
    assert_false(read_now(&w, resource).has_safe_capacity);
    respond(&w, client, with_safe_capacity(granted_lease(40), 0));
    assert_true(read_now(&w, resource).has_safe_capacity);
    assert_exact(read_now(&w, resource).safe_capacity, 0);
    world_stop(&w);
}

/* K5 */
TEST(a_resource_opened_again_takes_the_new_options) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_with(
        &w, client,
        (doorman_resource_options){.wants = 80, .fallback = DOORMAN_OPTIMISTIC, .burst = SECOND});
    run_for(&w, SECOND);
    doorman_client_close(resource, w.now); /* the lease has not been released yet */
    resource = open_with(&w, client,
                         (doorman_resource_options){.wants = 30, .fallback = DOORMAN_PESSIMISTIC});
    run_for(&w, SECOND);
    assert_exact(read_now(&w, resource).capacity, 30);
    assert_int_equal(holder_count(&w), 1);
    w.down = true;
    run_for(&w, 2 * MINUTE);
    assert_exact(read_now(&w, resource).capacity, 0);
    world_stop(&w);
}

/* R10. In the original Doorman a release races with requests. Here a release arrives late, and
 * names a lease that is no longer the last one. */
TEST(a_late_release_does_not_end_a_new_lease) {
    world w;
    world_start(&w, 100);
    doorman_client *client = add_client(&w, "client");
    doorman_upstream *upstream = doorman_client_upstream(client);
    doorman_client_resource *resource = open_resource(&w, client, 100);
    run_for(&w, SECOND);
    doorman_client_close(resource, w.now);
    doorman_request release;
    (void)doorman_upstream_request(upstream, &release, w.now);
    assert_int_equal(release.method, DOORMAN_RELEASE_CAPACITY);
    const doorman_capacity_request delayed = release.items[0];
    doorman_upstream_failed(upstream, release.sequence, w.now);
    resource = open_resource(&w, client, 100);
    run_for(&w, 10 * SECOND);
    assert_true(read_now(&w, resource).leased);
    const doorman_capacity_request item_request = {.resource_id = "db", .has.id = delayed.has.id};
    release.items = &item_request;
    doorman_response response;
    assert_int_equal(doorman_server_handle(w.server, &release, &response, NULL, w.now), DOORMAN_OK);
    assert_int_equal(holder_count(&w), 1);
    world_stop(&w);
}

/* K5. In the original Doorman two clients in one process have the same id. */
TEST(two_clients_in_one_process_are_two_holders) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *one = open_resource(&w, add_client(&w, "host:4242:1"), 80);
    doorman_client_resource *other = open_resource(&w, add_client(&w, "host:4242:2"), 80);
    run_for(&w, 2 * MINUTE);
    assert_int_equal(holder_count(&w), 2);
    assert_about(read_now(&w, one).capacity, 50);
    assert_about(read_now(&w, other).capacity, 50);
    world_stop(&w);
}

/* T7, R3: the units that a gauge has in flight are not granted to another client. */
TEST(capacity_moves_to_another_client_as_a_gauge_releases) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *full = open_gauge(&w, add_client(&w, "a"), 100);
    run_for(&w, SECOND);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(doorman_client_try(full, 1, NULL, w.now), DOORMAN_ALLOWED);
    }
    doorman_client_resource *new_ = open_resource(&w, add_client(&w, "b"), 100);
    for (int in_flight = 100; in_flight > 0; in_flight--) {
        run_for(&w, 5 * SECOND);
        doorman_resource_info a = read_now(&w, full), b = read_now(&w, new_);
        assert_exact(a.in_use, in_flight);
        assert_true(fmax(a.capacity, a.in_use) + b.capacity <= 100);
        release(full, 1);
    }
    run_for(&w, MINUTE);
    assert_about(read_now(&w, full).capacity, 50);
    assert_about(read_now(&w, new_).capacity, 50);
    world_stop(&w);
}

/* Returns the larger of what a client has in use and what its lease allows. */
static double in_force(const world *w, const doorman_client_resource *resource) {
    if (!resource) return 0;
    doorman_resource_info info = read_now(w, resource);
    return fmax(info.leased ? info.capacity : 0, info.in_use);
}

static void change_lease_length(world *w, double capacity, doorman_time lease_length) {
    doorman_config *config = config_of(capacity, lease_length);
    assert_int_equal(doorman_server_configure(w->server, config, w->now), DOORMAN_OK);
    doorman_config_destroy(w->config);
    w->config = config;
}

/* Gives back all units in flight if there is no lease. T7 counts units in flight only while a lease
 * covers them. When a lease has ended, the server grants its amount to other clients. The context
 * points to the application's pointer to the gauge, which is NULL while the gauge is being opened.
 * Then open_gauge_randomly releases. */
static void release_without_lease(void *context, const doorman_resource_info *info) {
    doorman_client_resource *const *gauge = context;
    if (*gauge && !info->leased && info->in_use > 0) release(*gauge, info->in_use);
}

/* Opens a gauge. A gauge that was closed with units in flight still has these units, but its lease
 * may have ended. on_change is not called for a closed resource, so this function releases them. */
static void open_gauge_randomly(world *w, doorman_client *client, doorman_client_resource **gauge) {
    *gauge = open_with(w, client,
                       (doorman_resource_options){.kind = DOORMAN_GAUGE,
                                                  .wants = 1 + 200 * random_unit(),
                                                  .fallback = DOORMAN_PESSIMISTIC,
                                                  .on_change = release_without_lease,
                                                  .context = gauge});
    const doorman_resource_info info = read_now(w, *gauge);
    release_without_lease(gauge, &info);
}

static void call_randomly(world *w, doorman_client *client, doorman_client_resource **resource) {
    if (!*resource) {
        open_gauge_randomly(w, client, resource);
        return;
    }
    double n = (double)random_below(50);
    doorman_resource_info info;
    doorman_client_read(*resource, &info, w->now);
    switch (random_below(4)) {
    case 0: set_wants(w, *resource, (double)random_below(200)); break;
    case 1: (void)doorman_client_try(*resource, n, NULL, w->now); break;
    case 2: release(*resource, n < info.in_use ? n : info.in_use); break;
    default: doorman_client_close(*resource, w->now); *resource = NULL;
    }
}

/* T7: random calls of applications, and random loss of messages. */
TEST(leases_and_units_in_flight_never_exceed_the_capacity) {
    static const char *const ids[CLIENTS] = {"a", "b", "c", "d"};
    for (int run = 0; run < 20; run++) {
        doorman_client_resource *resources[CLIENTS] = {NULL};
        world w;
        world_start(&w, 100);
        w.loss = (unsigned)random_below(30);
        for (size_t i = 0; i < CLIENTS; i++) add_client(&w, ids[i]);
        for (int step = 0; step < 1000; step++) {
            size_t i = random_below(CLIENTS);
            if (random_below(100) == 0)
                change_lease_length(&w, 100, step % 2 ? MINUTE : 20 * SECOND);
            call_randomly(&w, w.clients[i], &resources[i]);
            run_for(&w, (doorman_time)random_below(3000) * MILLISECOND);
            double sum = 0;
            for (size_t k = 0; k < CLIENTS; k++) sum += in_force(&w, resources[k]);
            assert_true(sum <= 100 * (1 + 1e-12));
        }
        world_stop(&w);
    }
}

/* ---- wants that follow use ---- */

/* Tries for one unit at a steady rate. Returns how many tries were refused. */
static size_t use_rate(world *w, doorman_client_resource *resource, double per_second,
                       doorman_time duration) {
    doorman_time start = w->now;
    size_t refused = 0, count = (size_t)(per_second * (double)duration / 1e9);
    for (size_t i = 1; i <= count; i++) {
        run_until(w, start + (doorman_time)((double)i * 1e9 / per_second));
        refused += doorman_client_try(resource, 1, NULL, w->now) != DOORMAN_ALLOWED;
    }
    return refused;
}

/* Takes units at a steady rate, and holds each unit for 1 s. So `per_second` units are in flight.
 * Returns how many units were refused. */
static size_t use_gauge(world *w, doorman_client_resource *resource, size_t per_second,
                        doorman_time duration) {
    enum { MOST = 1000 };
    bool in_flight[MOST] = {false};
    size_t refused = 0, count = per_second * (size_t)(duration / SECOND);
    for (size_t i = 0; i < count; i++) {
        run_for(w, SECOND / (doorman_time)per_second);
        bool *place = &in_flight[i % per_second];
        if (*place) release(resource, 1);
        *place = doorman_client_try(resource, 1, NULL, w->now) == DOORMAN_ALLOWED;
        refused += !*place;
    }
    for (size_t i = 0; i < MOST; i++) {
        if (in_flight[i]) release(resource, 1);
    }
    return refused;
}

static doorman_client_resource *open_with_wants_from_use(world *w,
                                                         doorman_resource_options options) {
    return open_with(w, add_client(w, "client"), options);
}

/* L4. In the original Doorman, at a steady demand of 10 units a second, the client wants 0.1. */
TEST(wants_settle_on_a_steady_demand) {
    static const double rates[] = {2, 10, 137, 1000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        world w;
        world_start(&w, 1e6);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.wants_minimum = 0.5});
        use_rate(&w, resource, rates[i], 2 * MINUTE);
        for (int k = 0; k < 30; k++) {
            assert_int_equal(use_rate(&w, resource, rates[i], SECOND), 0); /* nothing is refused */
            assert_near(read_now(&w, resource).wants, rates[i], 0.1);
            assert_near(read_now(&w, resource).capacity, rates[i], 0.1);
        }
        world_stop(&w);
    }
}

/* L4: demand counts from the first moment, even with the smallest possible lease. */
TEST(unmet_wants_grow_until_they_are_met) {
    world w;
    world_start(&w, 1e6);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants_minimum = 0.01});
    int minutes = 0;
    while (use_rate(&w, resource, 500, MINUTE) && minutes < 5) minutes++;
    assert_in_range(minutes, 1, 4);
    world_stop(&w);
}

/* L4 */
TEST(a_client_that_shares_wants_what_it_needs_not_what_it_gets) {
    world w;
    world_start(&w, 100);
    doorman_client_resource *greedy = open_resource(&w, add_client(&w, "greedy"), 1e6);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    assert_true(use_rate(&w, resource, 90, 3 * MINUTE) > 0);
    assert_near(read_now(&w, resource).wants, 90, 0.1);
    assert_near(read_now(&w, resource).capacity, 50, 1e-6);
    assert_near(read_now(&w, greedy).capacity, 50, 1e-6);
    world_stop(&w);
}

/* L4 */
TEST(a_busy_loop_does_not_raise_wants_without_bound) {
    world w;
    world_start(&w, 50);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    use_rate(&w, resource, 5000, 3 * MINUTE);
    assert_in_range(read_now(&w, resource).wants, 50, 8.5 * 50);
    use_rate(&w, resource, 20000, MINUTE);
    assert_in_range(read_now(&w, resource).wants, 50, 8.5 * 50);
    world_stop(&w);
}

/* L4, K6: the wants of a loop that gets nothing stay bounded too. */
TEST(a_busy_loop_without_capacity_wants_a_few_times_the_minimum) {
    world w;
    world_start(&w, 0);
    doorman_resource_options options = {.wants_minimum = 2};
    doorman_client_resource *rate = open_with_wants_from_use(&w, options);
    use_rate(&w, rate, 5000, MINUTE);
    assert_in_range(read_now(&w, rate).wants, 2, 17);
    options.kind = DOORMAN_GAUGE;
    doorman_client_resource *gauge = open_with(&w, add_client(&w, "other"), options);
    for (int i = 0; i < 100000; i++) {
        if (i % 1000 == 0) run_for(&w, SECOND);
        assert_int_equal(doorman_client_try(gauge, 1, NULL, w.now), DOORMAN_REFUSED);
    }
    assert_in_range(read_now(&w, gauge).wants, 2, 17);
    world_stop(&w);
}

/* K6, L4 */
TEST(an_idle_resource_keeps_the_minimum) {
    static const double minima[] = {0, 0.25, 20};
    for (size_t i = 0; i < 3; i++) {
        world w;
        world_start(&w, 1000);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.wants_minimum = minima[i]});
        double least = minima[i] > 0 ? minima[i] : 1;
        assert_exact(read_now(&w, resource).wants, least);
        run_for(&w, 5 * MINUTE);
        assert_exact(read_now(&w, resource).wants, least);
        /* The first call on the resource need not wait for a lease. */
        assert_exact(read_now(&w, resource).capacity, least);
        world_stop(&w);
    }
}

/* L4 */
TEST(wants_return_to_the_minimum_after_a_burst) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants_initial = 1000});
    use_rate(&w, resource, 500, 20 * SECOND);
    assert_true(read_now(&w, resource).wants > 400);
    run_for(&w, 12 * SECOND);
    assert_exact(read_now(&w, resource).wants, 1);
    run_for(&w, 30 * SECOND);
    assert_exact(read_now(&w, resource).capacity, 1);
    world_stop(&w);
}

/* L4: with a window of 1 s, use is forgotten after 1 s. */
TEST(a_shorter_window_forgets_sooner) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.window = SECOND});
    use_rate(&w, resource, 500, 40 * SECOND);
    assert_true(read_now(&w, resource).wants > 400);
    run_for(&w, SECOND + SECOND / 5);
    assert_exact(read_now(&w, resource).wants, 1);
    world_stop(&w);
}

/* L4: the newest use has the largest weight. */
TEST(a_changed_demand_is_seen_within_one_window) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants_initial = 200});
    use_rate(&w, resource, 100, MINUTE);
    use_rate(&w, resource, 20, 5 * SECOND);
    assert_true(read_now(&w, resource).wants < 0.5 * (100 + 20)); /* more than half of the way */
    use_rate(&w, resource, 20, 6 * SECOND);
    assert_near(read_now(&w, resource).wants, 20, 0.1);
    world_stop(&w);
}

/* L4 */
TEST(wants_of_a_gauge_settle_on_its_units_in_flight) {
    static const size_t counts[] = {2, 20, 500};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        world w;
        world_start(&w, 1e6);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.kind = DOORMAN_GAUGE});
        use_gauge(&w, resource, counts[i], 2 * MINUTE);
        assert_int_equal(use_gauge(&w, resource, counts[i], 20 * SECOND), 0);
        assert_near(read_now(&w, resource).wants, (double)counts[i], 0.1);
        run_for(&w, MINUTE);
        assert_exact(read_now(&w, resource).wants, 0);
        world_stop(&w);
    }
}

/* L4 */
TEST(a_busy_loop_on_a_gauge_does_not_raise_wants_without_bound) {
    world w;
    world_start(&w, 50);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.kind = DOORMAN_GAUGE});
    for (int i = 0; i < 200000; i++) {
        if (i % 1000 == 0) run_for(&w, SECOND);
        (void)doorman_client_try(resource, 1, NULL, w.now); /* the unit is not given back */
    }
    assert_in_range(read_now(&w, resource).wants, 50, 8 * 50);
    assert_exact(read_now(&w, resource).in_use, 50);
    world_stop(&w);
}

/* L2, L4: tries for more than the limiter can ever get show no demand, also with shadow mode. */
TEST(impossible_tries_do_not_raise_the_wants) {
    for (int i = 0; i < 4; i++) {
        doorman_resource_options options = {.shadow = i >= 2, .wants_maximum = 10};
        options.kind = i % 2 ? DOORMAN_GAUGE : DOORMAN_RATE;
        if (!(i % 2)) options.burst_units = 10;
        world w;
        world_start(&w, 1e6);
        doorman_client_resource *resource = open_with_wants_from_use(&w, options);
        run_for(&w, MINUTE); /* the ceiling is known from the first response on */
        const double idle = read_now(&w, resource).wants;
        for (int k = 0; k < 600; k++) {
            (void)doorman_client_try(resource, 11, NULL, w.now);
            if (i == 3) release(resource, 11);
            run_for(&w, SECOND / 10);
        }
        assert_exact(read_now(&w, resource).wants, idle);
        const doorman_counts counts = read_now(&w, resource).counts;
        assert_exact(i < 2 ? counts.refused : counts.excess, 6600);
        world_stop(&w);
    }
}

/* ---- gauges that are idle ---- */

/* A server with whole units, with many gauges that are idle, and with one busy gauge. */
enum { IDLE_GAUGES = 20 };

typedef struct gauges {
    world w;
    doorman_client_resource *busy, *idle[IDLE_GAUGES];
    size_t held; /* units in use of the busy gauge */
} gauges;

static void gauges_start(gauges *g, double capacity, doorman_time lease_length) {
    const doorman_template all = {
        .identifier_glob = "*",
        .capacity = capacity,
        .whole = true,
        .has_algorithm = true,
        .algorithm = {.lease_length = lease_length, .has_learning_mode_duration = true}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    *g = (gauges){.w = {.now = 1000 * SECOND, .blocks = memory_blocks()}};
    assert_int_equal(doorman_config_create(&g->w.config, &options, NULL), DOORMAN_OK);
    server_start(&g->w);
    const doorman_resource_options gauge = {.kind = DOORMAN_GAUGE};
    g->busy = open_with(&g->w, add_client(&g->w, "busy"), gauge);
    for (size_t i = 0; i < IDLE_GAUGES; i++) {
        char id[16];
        snprintf(id, sizeof id, "idle-%zu", i);
        g->idle[i] = open_with(&g->w, add_client(&g->w, id), gauge);
    }
}

/* Lets the busy gauge take all that it gets, until it has this many units. Returns how long this
 * takes. */
static doorman_time gauges_take(gauges *g, size_t units) {
    doorman_time start = g->w.now;
    while (g->held < units && g->w.now - start < 10 * MINUTE) {
        while (doorman_client_try(g->busy, 1, NULL, g->w.now) == DOORMAN_ALLOWED) g->held++;
        run_for(&g->w, SECOND / 100);
    }
    assert_int_equal(g->held, units);
    return g->w.now - start;
}

/* Takes a unit. After a refusal tries again when retry_after has passed. Meanwhile the busy gauge
 * releases what its lease does not cover. Returns how long this takes. */
static doorman_time gauges_wake(gauges *g, size_t at) {
    doorman_time start = g->w.now;
    doorman_result result;
    while (doorman_client_try(g->idle[at], 1, &result, g->w.now) != DOORMAN_ALLOWED) {
        assert_true(g->w.now - start < 10 * MINUTE);
        for (doorman_time end = g->w.now + result.retry_after; g->w.now < end;) {
            run_for(&g->w, SECOND / 100);
            if (g->held <= (size_t)read_now(&g->w, g->busy).capacity) continue;
            release(g->busy, 1);
            g->held--;
        }
    }
    return g->w.now - start;
}

/* K6: the idle clients are still holders at the server. */
TEST(idle_gauges_leave_every_unit_to_a_busy_one) {
    gauges g;
    gauges_start(&g, 20, 0);
    run_for(&g.w, MINUTE);
    assert_true(gauges_take(&g, 20) <= SECOND);
    run_for(&g.w, 5 * MINUTE);
    assert_exact(read_now(&g.w, g.busy).capacity, 20);
    assert_int_equal(holder_count(&g.w), IDLE_GAUGES + 1);
    doorman_resource_info info = read_now(&g.w, g.idle[0]);
    assert_true(info.leased);
    assert_exact(info.wants, 0);
    assert_exact(info.capacity, 0);
    world_stop(&g.w);
}

/* K6, L4: the server has free units. */
TEST(the_first_call_of_an_idle_gauge_gets_a_free_unit_at_once) {
    gauges g;
    gauges_start(&g, 3 * IDLE_GAUGES, 0); /* a unit that was refused first may count twice */
    for (size_t i = 0; i < IDLE_GAUGES; i++) {
        run_for(&g.w, (doorman_time)random_below(60000) * MILLISECOND);
        assert_true(gauges_wake(&g, i) <= 250 * MILLISECOND);
    }
    world_stop(&g.w);
}

/* S3, A5: all units are in use, so the busy gauge must give one back. It learns this with its next
 * renewal, and the idle gauge gets the unit with its next request. An idle gauge that has had a
 * unit before is treated like a new one. */
TEST(the_first_call_of_an_idle_gauge_gets_a_unit_that_was_in_use) {
    gauges g;
    gauges_start(&g, 20, MINUTE);
    gauges_take(&g, 20);
    for (int i = 0; i < 20; i++) {
        run_for(&g.w, (doorman_time)random_below(60000) * MILLISECOND);
        /* a renewal, the next request (R12), and the next try after that */
        assert_true(gauges_wake(&g, 0) <= 17 * SECOND + 6 * SECOND + 6 * SECOND);
        release(g.idle[0], 1);
        gauges_take(&g, 20);
    }
    world_stop(&g.w);
}

/* L4 */
TEST(what_idle_gauges_leave_is_used_within_two_refresh_intervals) {
    static const doorman_time lengths[] = {3 * SECOND, 6 * SECOND, MINUTE};
    for (size_t k = 0; k < 3 * 20; k++) {
        doorman_time refresh = lengths[k % 3] / 3;
        if (refresh > 16 * SECOND) refresh = 16 * SECOND;
        gauges g;
        gauges_start(&g, IDLE_GAUGES, lengths[k % 3]);
        for (size_t i = 1; i < IDLE_GAUGES; i++) gauges_wake(&g, i);
        gauges_take(&g, 1);
        doorman_time end = g.w.now + 30 * SECOND + (doorman_time)random_below(20000) * MILLISECOND;
        while (g.w.now < end) { /* the busy gauge asks for more all the time */
            assert_int_equal(doorman_client_try(g.busy, 1, NULL, g.w.now), DOORMAN_REFUSED);
            run_for(&g.w, SECOND / 100);
        }
        for (size_t i = 1; i < IDLE_GAUGES; i++) release(g.idle[i], 1);
        doorman_time took = gauges_take(&g, IDLE_GAUGES);
        if (took > 2 * refresh) fail_msg("%g s of %g s", (double)took / 1e9, (double)refresh / 1e9);
        world_stop(&g.w);
    }
}

/* L4: a unit that is often in use stays with its gauge. */
TEST(a_gauge_that_is_used_now_and_then_keeps_its_units) {
    gauges g;
    gauges_start(&g, 20, 0);
    run_for(&g.w, MINUTE);
    assert_int_equal(doorman_client_try(g.idle[0], 3, NULL, g.w.now), DOORMAN_REFUSED);
    run_for(&g.w, SECOND);
    for (int i = 0; i < 3; i++) gauges_wake(&g, 0);
    for (int i = 0; i < 3; i++) release(g.idle[0], 1);
    for (int i = 0; i < 50; i++) {
        for (int k = 0; k < 3; k++) {
            assert_int_equal(doorman_client_try(g.idle[0], 1, NULL, g.w.now), DOORMAN_ALLOWED);
        }
        run_for(&g.w, SECOND / 10);
        for (int k = 0; k < 3; k++) release(g.idle[0], 1);
        run_for(&g.w, 4 * SECOND);
    }
    world_stop(&g.w);
}

/* L4: a large request is remembered until it was served and the gauge is idle again. */
TEST(a_gauge_forgets_a_large_request_that_was_served) {
    gauges g;
    gauges_start(&g, 20, 0);
    run_for(&g.w, MINUTE);
    assert_int_equal(doorman_client_try(g.idle[0], 8, NULL, g.w.now), DOORMAN_REFUSED);
    run_for(&g.w, 50 * SECOND);
    assert_int_equal(doorman_client_try(g.idle[0], 8, NULL, g.w.now), DOORMAN_ALLOWED);
    release(g.idle[0], 8);
    run_for(&g.w, 16 * SECOND);
    assert_exact(read_now(&g.w, g.idle[0]).capacity, 0);
    assert_true(gauges_take(&g, 20) <= SECOND);
    world_stop(&g.w);
}

/* K6: with more clients than units, each client that tries gets a unit at some time. */
TEST(without_a_lease_a_gauge_still_wants_a_unit) {
    gauges g;
    bool had[IDLE_GAUGES] = {false};
    size_t count = 0;
    gauges_start(&g, 3, 0);
    for (int step = 0; step < 60 * 60 * 10 && count < IDLE_GAUGES; step++) {
        for (size_t i = 0; i < IDLE_GAUGES; i++) {
            if (doorman_client_try(g.idle[i], 1, NULL, g.w.now) != DOORMAN_ALLOWED) {
                assert_true(step < 10 || read_now(&g.w, g.idle[i]).wants >= 1);
                continue;
            }
            count += !had[i];
            had[i] = true;
            release(g.idle[i], 1);
        }
        run_for(&g.w, SECOND / 10);
    }
    assert_int_equal(count, IDLE_GAUGES);
    world_stop(&g.w);
}

/* K6: a minimum that is given applies, even if it is 0. */
TEST(the_minimum_of_wants_is_1_for_a_rate_and_0_for_a_gauge) {
    static const struct {
        doorman_resource_options options;
        double wants;
    } rows[] = {
        {{.kind = DOORMAN_RATE}, 1},
        {{.kind = DOORMAN_RATE, .has_wants_minimum = true}, 0},
        {{.kind = DOORMAN_RATE, .has_wants_minimum = true, .wants_minimum = 0.5}, 0.5},
        {{.kind = DOORMAN_GAUGE}, 0},
        {{.kind = DOORMAN_GAUGE, .has_wants_minimum = true}, 0},
        {{.kind = DOORMAN_GAUGE, .wants_minimum = 2}, 2},
        {{.kind = DOORMAN_GAUGE, .wants_maximum = 0.5}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world w;
        world_start(&w, 1000);
        doorman_client_resource *resource = open_with_wants_from_use(&w, rows[i].options);
        run_for(&w, 5 * MINUTE);
        assert_exact(read_now(&w, resource).wants, rows[i].wants);
        assert_exact(read_now(&w, resource).capacity, rows[i].wants);
        world_stop(&w);
    }
}

/* K6, L4 */
TEST(a_rate_with_the_minimum_0_follows_use) {
    static const double rates[] = {0.5, 2, 137};
    for (size_t i = 0; i < 3; i++) {
        world w;
        world_start(&w, 1000);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.has_wants_minimum = true});
        run_for(&w, MINUTE);
        use_rate(&w, resource, rates[i], 2 * MINUTE);
        assert_int_equal(use_rate(&w, resource, rates[i], 30 * SECOND), 0);
        assert_near(read_now(&w, resource).wants, fmax(1, rates[i]), 0.1);
        run_for(&w, MINUTE);
        assert_exact(read_now(&w, resource).capacity, 0);
        assert_int_equal(doorman_client_try(resource, 1, NULL, w.now), DOORMAN_REFUSED);
        run_for(&w, 300 * MILLISECOND);
        assert_exact(read_now(&w, resource).capacity, 1);
        world_stop(&w);
    }
}

/* K6 */
TEST(wants_stay_between_their_bounds) {
    world w;
    world_start(&w, 1e6);
    doorman_client_resource *resource = open_with_wants_from_use(
        &w,
        (doorman_resource_options){.wants_minimum = 5, .wants_maximum = 60, .wants_initial = 60});
    assert_exact(read_now(&w, resource).wants, 60);
    use_rate(&w, resource, 200, MINUTE);
    assert_exact(read_now(&w, resource).wants, 60);
    use_rate(&w, resource, 1, MINUTE);
    assert_exact(read_now(&w, resource).wants, 5);
    world_stop(&w);
}

/* K6 */
TEST(the_first_request_asks_for_the_initial_wants) {
    world w;
    world_start(&w, 1e6);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants_initial = 70});
    run_for(&w, 0);
    assert_exact(read_now(&w, resource).capacity, 70);
    world_stop(&w);
}

/* K6 */
TEST(explicit_wants_do_not_follow_use) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *set = open_resource(&w, add_client(&w, "a"), 10);
    use_rate(&w, set, 500, MINUTE);
    assert_exact(read_now(&w, set).wants, 10);
    doorman_client_resource *followed = open_resource(&w, add_client(&w, "b"), 0);
    use_rate(&w, followed, 100, 20 * SECOND);
    set_wants(&w, followed, 3);
    use_rate(&w, followed, 100, MINUTE);
    assert_exact(read_now(&w, followed).wants, 3);
    world_stop(&w);
}

/* K4, L4: the limiter grows with the wants, even without a server. */
TEST(an_optimistic_fallback_with_wants_from_use_is_not_starved) {
    world w;
    world_start(&w, 1000);
    w.down = true;
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.fallback = DOORMAN_OPTIMISTIC});
    use_rate(&w, resource, 100, 2 * MINUTE);
    assert_int_equal(use_rate(&w, resource, 100, 10 * SECOND), 0);
    assert_near(read_now(&w, resource).capacity, 100, 0.1);
    assert_near(w.changed.capacity, 100, 0.1); /* on_change was called */
    world_stop(&w);
}

/* K1, L4: wants that change all the time do not cause a request each time. The client rarely sends
 * a request within the minimum interval: only if the load has grown and the server may have
 * more. */
TEST(wants_that_follow_use_keep_the_minimum_interval) {
    world w;
    world_start(&w, 1e6);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    for (int i = 0; i < 20; i++) {
        size_t before = w.request_count;
        use_rate(&w, resource, 1 + (double)random_below(500), 6 * SECOND);
        assert_in_range(w.request_count, before, before + 2 + 3);
    }
    assert_in_range(w.request_count, 2, 120 / 5 + 2 + 20);
    world_stop(&w);
    world_start(&w, 1);
    resource = open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    for (int i = 0; i < 20; i++) use_rate(&w, resource, 2 + (double)random_below(500), 6 * SECOND);
    assert_in_range(w.request_count, 2, 120 / 5 + 3);
    world_stop(&w);
}

/* ---- L4: how soon a lease follows ---- */

/* Tries for n units, `per_second` times a second, until the capacity is large enough. Returns how
 * long this takes after the first refusal. */
static doorman_time time_to_grow(world *w, doorman_client_resource *resource, double n,
                                 double per_second, double capacity) {
    doorman_time start = w->now, refused_at = 0;
    for (int i = 1; i <= 100000; i++) {
        run_until(w, start + (doorman_time)(i * 1e9 / per_second));
        if (refused_at && read_now(w, resource).capacity >= capacity) return w->now - refused_at;
        doorman_decision decision = doorman_client_try(resource, n, NULL, w->now);
        assert_int_not_equal(decision, DOORMAN_IMPOSSIBLE);
        if (decision == DOORMAN_REFUSED && !refused_at) refused_at = w->now;
    }
    return DOORMAN_NEVER;
}

static const double safe_capacities[] = {-1, 0, 10, 500};

/* L4: the bound of 250 ms applies at the start and after idle times, with each safe capacity. */
TEST(a_free_resource_is_granted_within_250_ms_of_the_first_refusal) {
    static const doorman_time idle[] = {0, 3 * SECOND, 25 * SECOND, 10 * MINUTE};
    for (size_t i = 0; i < sizeof safe_capacities / sizeof *safe_capacities; i++) {
        world w;
        world_start_safe(&w, 500, safe_capacities[i]);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
        for (size_t k = 0; k < sizeof idle / sizeof *idle; k++) {
            run_for(&w, idle[k]);
            assert_true(time_to_grow(&w, resource, 1, 2400, 500) <= 250 * MILLISECOND);
            use_rate(&w, resource, 2400, SECOND * (doorman_time)k);
        }
        world_stop(&w);
    }
}

/* L4: the loads begin at random times between observations. The smallest load may take 500 ms. */
TEST(a_new_load_is_seen_within_250_ms) {
    static const double loads[] = {60, 200, 2400, 100000};
    for (int i = 0; i < 200; i++) {
        world w;
        world_start(&w, 1000);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
        double load = loads[i % 4];
        run_for(&w, (doorman_time)random_below(12000) * MILLISECOND);
        doorman_time took = time_to_grow(&w, resource, 1, load, 0.8 * fmin(load, 1000));
        if (took > (load > 100 ? 250 : 500) * MILLISECOND)
            fail_msg("%g: %g s", load, (double)took / 1e9);
        world_stop(&w);
    }
}

/* L4, K4: the fallback grows without a server. */
TEST(an_optimistic_fallback_follows_a_new_load_within_250_ms) {
    world w;
    world_start(&w, 1000);
    w.down = true;
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.fallback = DOORMAN_OPTIMISTIC});
    assert_true(time_to_grow(&w, resource, 1, 2400, 2000) <= 250 * MILLISECOND);
    use_rate(&w, resource, 2400, 2 * SECOND);
    assert_int_equal(use_rate(&w, resource, 2400, 5 * SECOND), 0);
    world_stop(&w);
}

/* L4: idle clients hold only the minimum, and a busy client gets the rest. When all clients become
 * busy, they share the capacity exactly. */
TEST(idle_clients_leave_the_capacity_to_a_busy_one) {
    enum { IDLE = 99 };
    for (size_t k = 0; k < sizeof safe_capacities / sizeof *safe_capacities; k++) {
        world w;
        world_start_safe(&w, 500, safe_capacities[k]);
        doorman_client_resource *resources[IDLE + 1];
        for (size_t i = 0; i <= IDLE; i++) {
            char id[16];
            snprintf(id, sizeof id, "client-%zu", i);
            resources[i] = open_resource(&w, add_client(&w, id), 0);
        }
        run_for(&w, MINUTE);
        assert_true(time_to_grow(&w, resources[0], 1, 2400, 500 - IDLE) <= 250 * MILLISECOND);
        for (size_t i = 1; i <= IDLE; i++) assert_exact(read_now(&w, resources[i]).capacity, 1);
        for (int ms = 0; ms < 60 * 1000; ms += 10) {
            run_for(&w, 10 * MILLISECOND);
            for (size_t i = 0; i <= IDLE; i++) {
                (void)doorman_client_try(resources[i], 1, NULL, w.now);
            }
        }
        for (size_t i = 0; i <= IDLE; i++) {
            assert_near(read_now(&w, resources[i]).capacity, 5, 1e-9);
        }
        world_stop(&w);
    }
}

/* L4: 40 clients use one unit a second each, at random times, and are sometimes refused. The busy
 * client still gets what they leave. */
TEST(clients_with_little_use_leave_the_rest_to_a_busy_one) {
    enum { LIGHT = 40 };
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resources[LIGHT + 1];
    for (size_t i = 0; i <= LIGHT; i++) {
        char id[16];
        snprintf(id, sizeof id, "client-%zu", i);
        resources[i] = open_resource(&w, add_client(&w, id), 0);
    }
    double sum = 0;
    enum { STEPS = 12000 };
    for (int step = 0; step < STEPS; step++) {
        run_for(&w, 10 * MILLISECOND);
        for (int i = 0; i < 50; i++) {
            (void)doorman_client_try(resources[0], 1, NULL, w.now);
        }
        for (size_t i = 1; i <= LIGHT; i++) {
            if (random_below(100)) continue;
            (void)doorman_client_try(resources[i], 1, NULL, w.now);
        }
        if (step >= STEPS / 2) sum += read_now(&w, resources[0]).capacity / (STEPS / 2);
    }
    assert_in_range((uintmax_t)sum, 750, 1000); /* equal shares would be 24 */
    world_stop(&w);
}

/* ---- L4: requests for more than one unit ---- */

/* L4: n units fit into a burst of 0.1 s when the rate is n / 0.1 s. Until then they are REFUSED,
 * and not IMPOSSIBLE, because they will fit later. */
TEST(a_try_for_many_units_of_a_free_rate_soon_succeeds) {
    for (double n = 1.5; n <= 100; n *= 1.3) {
        world w;
        world_start(&w, 1000);
        doorman_client_resource *resource =
            open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
        for (int k = 0; k < 3; k++) {
            run_for(&w, k * 30 * SECOND); /* the client is idle */
            bool allowed = false;
            for (int i = 0; i < 10 && !allowed; i++) {
                run_for(&w, 100 * MILLISECOND);
                doorman_decision decision = doorman_client_try(resource, n, NULL, w.now);
                assert_int_not_equal(decision, DOORMAN_IMPOSSIBLE);
                allowed = decision == DOORMAN_ALLOWED;
            }
            assert_true(allowed);
        }
        for (int i = 0; i < 20; i++) { /* n units still fit */
            run_for(&w, 3 * SECOND);
            assert_int_equal(doorman_client_try(resource, n, NULL, w.now), DOORMAN_ALLOWED);
        }
        run_for(&w, 130 * SECOND);                        /* ten windows, and a refresh */
        assert_exact(read_now(&w, resource).capacity, 1); /* the rest has been given back */
        world_stop(&w);
    }
}

/* L4 */
TEST(a_try_for_many_units_of_a_free_gauge_soon_succeeds) {
    static const double safe[] = {-1, 0};
    for (double n = 1.5; n <= 1000; n *= 1.7) {
        for (int s = 0; s < 2; s++) {
            world w;
            world_start_safe(&w, 1000, safe[s]);
            doorman_client_resource *resource =
                open_with_wants_from_use(&w, (doorman_resource_options){.kind = DOORMAN_GAUGE});
            for (int k = 0; k < 3; k++) {
                run_for(&w, k * 30 * SECOND);
                bool allowed = false;
                for (int i = 0; i < 6 && !allowed; i++) {
                    run_for(&w, 100 * MILLISECOND);
                    doorman_decision decision = doorman_client_try(resource, n, NULL, w.now);
                    assert_int_not_equal(decision, DOORMAN_IMPOSSIBLE);
                    allowed = decision == DOORMAN_ALLOWED;
                }
                assert_true(allowed);
                release(resource, n);
            }
            run_for(&w, 130 * SECOND);
            assert_exact(read_now(&w, resource).capacity, 0);
            world_stop(&w);
        }
    }
}

/* L4: if the server has no more, a request that does not fit is refused. The request raises the
 * wants to its size, but not above about eight times the capacity. */
TEST(a_try_for_more_than_the_server_has_does_not_raise_wants_without_bound) {
    world w;
    world_start(&w, 10);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    static const double sizes[] = {5, 1e6, 1e13};
    for (size_t k = 0; k < 3; k++) {
        size_t allowed = 0;
        for (int i = 0; i < 300; i++) {
            run_for(&w, 100 * MILLISECOND);
            doorman_decision decision = doorman_client_try(resource, sizes[k], NULL, w.now);
            if (sizes[k] > 5) assert_int_equal(decision, DOORMAN_REFUSED);
            allowed += decision == DOORMAN_ALLOWED;
        }
        if (sizes[k] <= 5) assert_in_range(allowed, 50, 60);
        assert_true(read_now(&w, resource).wants <= 85);
        assert_true(read_now(&w, resource).capacity <= 10);
    }
    world_stop(&w);
}

/* L2: IMPOSSIBLE depends on wants_maximum, or on the wants that are set. It does not depend on the
 * lease in force. */
TEST(impossible_means_that_it_can_never_be_granted) {
    world w;
    world_start(&w, 1000);
    doorman_resource_options options = {.wants_maximum = 60, .burst_units = 6};
    doorman_client_resource *rate = open_with_wants_from_use(&w, options);
    options.kind = DOORMAN_GAUGE, options.burst_units = 0;
    doorman_client_resource *gauge = open_with(&w, add_client(&w, "other"), options);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(doorman_client_try(rate, 6.001, NULL, w.now), DOORMAN_IMPOSSIBLE);
        assert_int_equal(doorman_client_try(gauge, 60.001, NULL, w.now), DOORMAN_IMPOSSIBLE);
        if (i < 2) assert_int_equal(doorman_client_try(rate, 6, NULL, w.now), DOORMAN_REFUSED);
        if (i == 0) assert_int_equal(doorman_client_try(gauge, 60, NULL, w.now), DOORMAN_REFUSED);
        run_for(&w, SECOND / 10);
    }
    run_for(&w, SECOND);
    assert_int_equal(doorman_client_try(rate, 6, NULL, w.now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_client_try(gauge, 60, NULL, w.now), DOORMAN_ALLOWED);
    set_wants(&w, gauge, 10);
    release(gauge, 60);
    run_for(&w, MINUTE);
    assert_int_equal(doorman_client_try(rate, 6.001, NULL, w.now), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_client_try(gauge, 10.001, NULL, w.now), DOORMAN_IMPOSSIBLE);
    set_wants(&w, gauge, 20);
    assert_int_equal(doorman_client_try(gauge, 10.001, NULL, w.now), DOORMAN_REFUSED);
    world_stop(&w);
}

/* L1, L2: a burst in units fits at any rate, so using it needs no high wants. */
TEST(a_burst_in_units_can_be_used_at_any_rate) {
    world w;
    world_start(&w, 1000);
    doorman_client_resource *resource =
        open_with_wants_from_use(&w, (doorman_resource_options){.burst_units = 20});
    run_for(&w, 30 * SECOND);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(doorman_client_try(resource, 20, NULL, w.now), DOORMAN_ALLOWED);
        assert_int_equal(doorman_client_try(resource, 20.01, NULL, w.now), DOORMAN_IMPOSSIBLE);
        run_for(&w, 40 * SECOND);
        assert_true(read_now(&w, resource).wants <= 11); /* 20 units in a fifth of a window */
    }
    world_stop(&w);
}

/* L4: a caller that sometimes tries for many units usually finds a lease that fits. This is so for
 * a burst in time and for a burst in units, even with less than one try in a window. */
TEST(an_occasional_try_for_many_units_succeeds) {
    static const doorman_time intervals[] = {500, 1000, 3000, 7000, 11000, 12000, 25000};
    static const double sizes[] = {1.5, 8, 20, 99};
    for (size_t i = 0; i < 7 * 4 * 2; i++) {
        double n = sizes[i % 4];
        bool in_units = i / 4 % 2;
        world w;
        world_start(&w, 1000);
        doorman_resource_options options = {.burst_units = in_units ? n : 0};
        doorman_client_resource *rate = open_with_wants_from_use(&w, options);
        size_t refused = 0;
        for (int k = 0; k < 40; k++) {
            run_for(&w, intervals[i / 8] * (DOORMAN_SECOND / 1000));
            if (doorman_client_try(rate, n, NULL, w.now) != DOORMAN_ALLOWED) refused++;
        }
        if (refused > 4) {
            fail_msg("%g units every %g s%s: %zu of 40 refused", n, (double)intervals[i / 8] / 1000,
                     in_units ? ", burst in units" : "", refused);
        }
        world_stop(&w);
    }
}

/* ---- L2: decisions with values for a reply's headers ---- */

/* L2: if the lease in force is too small, retry_after is when another lease is expected. */
TEST(a_refusal_says_when_to_try_again) {
    world w;
    world_start(&w, 1000);
    doorman_client *client = add_client(&w, "other");
    doorman_resource_options options = {.kind = DOORMAN_GAUGE, .wants = 0};
    doorman_client_resource *rate =
        open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0});
    doorman_client_resource *gauge = open_with(&w, add_client(&w, "gauge"), options);
    doorman_client_resource *half = open_resource(&w, client, 0.5);
    options.resource_id = "half", options.wants = 0.5;
    doorman_client_resource *half_gauge = NULL;
    assert_int_equal(doorman_client_open(&half_gauge, client, &options, NULL, w.now), DOORMAN_OK);
    doorman_result result;
    w.down = true;
    assert_int_equal(doorman_client_try(half, 1, &result, w.now),
                     DOORMAN_REFUSED); /* there is no lease, and the server is down */
    assert_in_range(result.retry_after, 1, 3 * SECOND);
    run_for(&w, MINUTE);
    assert_int_equal(doorman_client_try(half_gauge, 0.5, &result, w.now), DOORMAN_REFUSED);
    assert_in_range(result.retry_after, 1, 61 * SECOND);
    w.down = false;
    run_for(&w, 2 * MINUTE);
    assert_int_equal(doorman_client_try(rate, 200, &result, w.now), DOORMAN_REFUSED);
    assert_exact(result.limit, 1);
    assert_int_equal(result.retry_after, 2250 * MILLISECOND);
    doorman_time rate_due = w.now + result.retry_after;
    assert_int_equal(doorman_client_try(gauge, 20, &result, w.now), DOORMAN_REFUSED);
    assert_exact(result.remaining, 0);
    assert_int_equal(result.retry_after, 250 * MILLISECOND);
    run_for(&w, result.retry_after);
    assert_int_equal(doorman_client_try(gauge, 20, &result, w.now), DOORMAN_ALLOWED);
    run_for(&w, rate_due - w.now);
    assert_int_equal(doorman_client_try(rate, 200, &result, w.now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_client_try(half_gauge, 0.75, &result, w.now), DOORMAN_IMPOSSIBLE);
    assert_true(result.retry_after == DOORMAN_NEVER);
    world_stop(&w);
}

/* L2: retry_after is 250 ms plus the time in which the largest possible wants save the units. Wants
 * that are set do not grow. Other wants grow until this time is a fifth of the window. */
TEST(a_refusal_of_many_units_knows_how_far_wants_can_grow) {
    static const struct {
        doorman_resource_options options;
        double n;
        doorman_time retry_after;
    } rows[] = {{{.wants = 10}, 1000, 100 * SECOND},
                {{.wants_maximum = 1000}, 1e6, 1000 * SECOND},
                {{.window = 50 * SECOND}, 1e6, 10 * SECOND},
                {{.wants_initial = 1e6}, 1e6, SECOND},
                {{.wants = 0}, 1e9, 2 * SECOND}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world w;
        world_start(&w, 1000);
        doorman_result result;
        doorman_client_resource *cold = open_with(&w, add_client(&w, "cold"), rows[i].options);
        assert_int_equal(doorman_client_try(cold, rows[i].n, &result, w.now), DOORMAN_REFUSED);
        assert_int_equal(result.retry_after, rows[i].retry_after + 250 * MILLISECOND);
        world_stop(&w);
    }
}

/* L2, L4: the client does not know the capacity of a gauge. But the client knows when it next asks
 * the server for 50 units. retry_after ends then, so callers rarely try for more units than the
 * gauge has. */
TEST(a_gauge_that_is_too_small_is_tried_rarely) {
    world w;
    world_start(&w, 20);
    doorman_resource_options options = {.kind = DOORMAN_GAUGE};
    doorman_client_resource *gauge = open_with(&w, add_client(&w, "gauge"), options);
    run_for(&w, MINUTE);
    doorman_time end = w.now + 20 * MINUTE;
    doorman_result result;
    int count = 0;
    while (w.now < end) {
        assert_int_equal(doorman_client_try(gauge, 50, &result, w.now), DOORMAN_REFUSED);
        assert_in_range(result.retry_after, 1, 2 * MINUTE);
        run_for(&w, result.retry_after);
        count++;
    }
    assert_in_range(count, 1, 200);
    assert_int_equal(doorman_client_try(gauge, 20, &result, w.now), DOORMAN_REFUSED);
    run_for(&w, result.retry_after);
    assert_int_equal(doorman_client_try(gauge, 20, &result, w.now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_client_try(gauge, 1, &result, w.now), DOORMAN_REFUSED);
    assert_in_range(result.retry_after, 1, MINUTE);
    world_stop(&w);
}

/* ---- L4: cost ---- */

/* K7: an idle client only refreshes its leases. If its wants follow use, the client also checks one
 * flag five times a second. */
TEST(an_idle_client_only_polls) {
    world w;
    world_start(&w, 1000);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_resource(&w, client, 0);
    run_for(&w, MINUTE);
    size_t requests = w.request_count, updates = 0;
    for (doorman_time end = w.now + 10 * MINUTE; w.now < end; updates++) {
        exchange_all(&w);
        doorman_time due = due_of(client);
        assert_true(due > w.now && due <= w.now + 200 * MILLISECOND);
        w.now = due;
    }
    assert_in_range(updates, 10 * 60 * 5, 10 * 60 * 7);
    assert_in_range(w.request_count, requests + 30, requests + 10 * 60 / 16 + 1);
    set_wants(&w, resource, 5); /* these wants do not follow use */
    run_for(&w, 20 * SECOND);
    updates = 0;
    for (doorman_time end = w.now + MINUTE; w.now < end; updates++) {
        exchange_all(&w);
        if (due_of(client) > w.now) w.now = due_of(client);
    }
    assert_in_range(updates, 2, 15);
    world_stop(&w);
}

/* ---- L4: applications whose load changes ---- */

/* An application. An open application sends requests at its own pace, and drops refused requests. A
 * closed application has workers. Each worker waits for a unit, and is then busy for 20 ms. */
typedef struct application {
    doorman_client_resource *resource;
    bool closed;
    double owed;          /* open: requests that are due, with a fraction */
    size_t waiting, busy; /* closed: number of workers */
    size_t started[20];   /* closed: workers that became busy in each of the last 20 ms */
    double least, most;   /* the range of wants after settling */
} application;

static void application_add_waiters(application *a, size_t count, doorman_time now) {
    a->waiting = count;
    doorman__waiting_set(&a->resource->waiting, count * 4096, now);
}

/* Simulates one millisecond, at a demand of `demand` requests a second. */
static void application_run(application *a, double demand, size_t millisecond, doorman_time now) {
    doorman_client_resource *rate = a->resource;
    if (!a->closed) {
        for (a->owed += demand / 1000; a->owed >= 1; a->owed--)
            (void)doorman_client_try(rate, 1, NULL, now);
        return;
    }
    size_t *started = &a->started[millisecond % 20], workers = (size_t)(demand / 50);
    a->busy -= *started;
    *started = 0;
    size_t waiting = workers > a->busy ? workers - a->busy : 0;
    while (waiting > 0 && doorman__rate_delay(&rate->rate, 1, now) == 0) {
        assert_int_equal(doorman_client_try(rate, 1, NULL, now), DOORMAN_ALLOWED);
        waiting--, a->busy++, ++*started;
    }
    application_add_waiters(a, waiting, now);
}

/* A load that changes linearly from one demand to another. */
typedef struct phase {
    int seconds;
    double from, to;
} phase;

enum { REFRESH_SECONDS = 5 };

/* Simulates one phase. If the demand is constant, the wants must reach the demand within three
 * refresh intervals. After that they must stay within 10 % of the demand, and must not
 * oscillate. */
static void run_phase(world *w, application *a, const phase *p, double share) {
    const size_t length = (size_t)p->seconds * 1000, settled = 3 * REFRESH_SECONDS * 1000;
    bool stays = p->from >= p->to && p->from <= p->to;
    a->least = 1e15, a->most = 0;
    for (size_t ms = 0; ms < length; ms++) {
        double demand = p->from + (p->to - p->from) * (double)ms / (double)length;
        run_for(w, MILLISECOND);
        application_run(a, demand, ms, w->now);
        if (!stays || ms < settled) continue;
        doorman_resource_info info = read_now(w, a->resource);
        a->least = fmin(a->least, info.wants);
        a->most = fmax(a->most, info.wants);
        double target = fmax(1, fmin(p->to, share));
        if (info.capacity < 0.9 * target || (p->to < share && info.capacity > 1.2 * fmax(1, p->to)))
            fail_msg("phase of %d s at %g, after %zu ms: the capacity is %g", p->seconds, p->to, ms,
                     info.capacity);
    }
    if (stays && length > settled) {
        assert_true(a->least >= 0.9 * fmin(p->to, share));
        assert_true(a->most <= fmax(1, (p->to > share ? 8.5 : 1.1) * p->to));
        assert_true(a->most <= 1.1 * a->least || p->to > share); /* no oscillation */
    }
}

static void world_start_fast(world *w, double capacity) {
    world_start(w, capacity);
    doorman_config *old = w->config;
    const doorman_template all = {.identifier_glob = "*",
                                  .capacity = capacity,
                                  .has_algorithm = true,
                                  .algorithm = {.lease_length = 20 * SECOND,
                                                .refresh_interval = REFRESH_SECONDS * SECOND,
                                                .has_learning_mode_duration = true}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    assert_int_equal(doorman_config_create(&w->config, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(w->server, w->config, w->now), DOORMAN_OK);
    doorman_config_destroy(old);
}

static const phase steps[] = {{30, 100, 100}, {30, 800, 800}, {30, 200, 200}, {30, 2500, 2500}};
static const phase ramps[] = {
    {30, 100, 100}, {40, 100, 1500}, {20, 1500, 1500}, {40, 1500, 200}, {20, 200, 200}};
static const phase spikes[] = {
    {30, 200, 200}, {2, 2000, 2000}, {30, 200, 200}, {1, 4000, 4000}, {30, 200, 200}};
static const phase stops[] = {{30, 500, 500}, {30, 0, 0}, {30, 500, 500}, {30, 0, 0}};

static const struct {
    const phase *phases;
    size_t count;
} loads[] = {{steps, 4}, {ramps, 5}, {spikes, 5}, {stops, 4}};

/* L4: wants settle within three refresh intervals, do not oscillate, and return to the minimum when
 * idle. */
TEST(wants_settle_on_a_load_that_steps_ramps_spikes_and_stops) {
    for (int closed = 0; closed < 2; closed++) {
        for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
            world w;
            world_start_fast(&w, 1e5);
            application a = {
                .resource = open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0})};
            a.closed = closed;
            for (size_t k = 0; k < loads[i].count; k++) {
                run_phase(&w, &a, &loads[i].phases[k], 1e5);
            }
            application_add_waiters(&a, 0, w.now);
            run_for(&w, 3 * REFRESH_SECONDS * SECOND);
            assert_exact(read_now(&w, a.resource).wants, 1);
            assert_exact(read_now(&w, a.resource).capacity, 1);
            world_stop(&w);
        }
    }
}

/* L4: two clients need more than the capacity, and share it. One client gets what the other one
 * gives back. */
TEST(wants_settle_when_two_clients_share_too_little) {
    static const phase before = {20, 100, 100}, busy = {40, 800, 800};
    for (int closed = 0; closed < 2; closed++) {
        world w;
        world_start_fast(&w, 1000);
        doorman_client_resource *other = open_resource(&w, add_client(&w, "other"), 800);
        application a = {.resource =
                             open_with_wants_from_use(&w, (doorman_resource_options){.wants = 0})};
        a.closed = closed;
        run_phase(&w, &a, &before, 500);
        run_phase(&w, &a, &busy, 500);
        assert_near(read_now(&w, other).capacity, 500, 0.01);
        set_wants(&w, other, 0);
        run_phase(&w, &a, &busy, 1000);
        set_wants(&w, other, 800);
        run_phase(&w, &a, &busy, 500);
        assert_near(read_now(&w, other).capacity, 500, 0.01);
        application_add_waiters(&a, 0, w.now);
        world_stop(&w);
    }
}

/* ---- L5 ---- */

/* L5: shadow mode applies to one resource, and can be set in its options. */
TEST(shadow_mode_applies_to_one_resource) {
    world w;
    world_start(&w, 0);
    doorman_client *client = add_client(&w, "client");
    const doorman_resource_options other = {.resource_id = "other", .wants = 5};
    doorman_client_resource *earnest = NULL;
    doorman_client_resource *shadowed =
        open_with(&w, client, (doorman_resource_options){.wants = 5, .shadow = true});
    assert_int_equal(doorman_client_open(&earnest, client, &other, NULL, w.now), DOORMAN_OK);
    run_for(&w, SECOND);
    assert_int_equal(doorman_client_try(shadowed, 1, NULL, w.now), DOORMAN_ALLOWED);
    assert_int_equal(doorman_client_try(earnest, 1, NULL, w.now), DOORMAN_REFUSED);
    assert_exact(read_now(&w, shadowed).counts.excess, 1);
    doorman_client_close(shadowed, w.now);
    shadowed = open_with(&w, client, (doorman_resource_options){.wants = 5});
    assert_int_equal(doorman_client_try(shadowed, 1, NULL, w.now), DOORMAN_REFUSED);
    world_stop(&w);
}

/* L5 */
TEST(the_fallback_and_refresh_failures_can_be_read) {
    world w;
    world_start(&w, 10);
    doorman_client *client = add_client(&w, "client");
    doorman_client_resource *resource = open_with(
        &w, client, (doorman_resource_options){.wants = 5, .fallback = DOORMAN_OPTIMISTIC});
    run_for(&w, SECOND);
    assert_int_equal(read_now(&w, resource).refresh_failures, 0);
    assert_int_equal(read_now(&w, resource).fallback, DOORMAN_OPTIMISTIC);
    w.down = true;
    size_t asked = w.request_count;
    run_for(&w, 3 * MINUTE);
    assert_int_equal(read_now(&w, resource).refresh_failures, w.request_count - asked);
    assert_true(w.request_count > asked);
    world_stop(&w);
}
