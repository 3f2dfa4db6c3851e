/* Leased limits of permits (P17), as the section >>leased of doorman_permits.h promises them.
 * Servers, lease clients and permits are in one process, the test delivers the messages, and time
 * is a variable. After each step, long runs compare what was used with the capacity. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define STEP (SECOND / 100)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HOLDERS 3

/* ---- a fixture ------------------------------------------------------------------------------ */

/* The root has the index 0. The child, if there is one, has the index 1. */
typedef struct fixture {
    doorman_config *configs[2];
    doorman_server *servers[2];
    uint64_t incarnation;
    doorman_client *clients[HOLDERS]; /* clients[i] asks servers[at[i]] */
    doorman_client_resource *resources[HOLDERS];
    size_t at[HOLDERS], client_count;
    doorman_time now;
    doorman_permit out;
    doorman_response response;
    doorman_error error;
    double granted; /* by permits */
    size_t refused[DOORMAN_REASON_COUNT];
} fixture;

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void make_master(fixture *f, size_t index, doorman_time until) {
    const doorman_mastership mastership = {.address = index ? "child" : "root", .until = until};
    assert_int_equal(doorman_server_set_master(f->servers[index], &mastership, f->now), DOORMAN_OK);
}

static void start_server(fixture *f, size_t index) {
    static const char *const parents[] = {"root"};
    doorman_server_options options = {.node = index ? "child" : "root",
                                      .config = f->configs[index],
                                      .parents = index ? parents : NULL,
                                      .parent_count = index,
                                      .seed = {index + 1, ++f->incarnation}};
    if (doorman_server_create(&f->servers[index], &options, &f->error, f->now) != DOORMAN_OK) {
        fail_msg("%s", f->error.text);
    }
    make_master(f, index, DOORMAN_NEVER);
}

/* Restarts a server, and no time passes. The new process knows nothing. */
static void restart_server(fixture *f, size_t index) {
    doorman_server_destroy(f->servers[index]);
    start_server(f, index);
}

static fixture start(const char *root, const char *child) {
    fixture f = {.now = 1000 * SECOND};
    f.configs[0] = config_of(root);
    start_server(&f, 0);
    f.now += 1000 * SECOND; /* the root has learned */
    if (child) f.configs[1] = config_of(child);
    if (child) start_server(&f, 1);
    return f;
}

static void stop(fixture *f) {
    for (size_t i = 0; i < f->client_count; i++) doorman_client_destroy(f->clients[i]);
    for (size_t i = 0; i < 2; i++) {
        doorman_server_destroy(f->servers[i]);
        doorman_config_destroy(f->configs[i]);
    }
}

static void add_holder(fixture *f, size_t at, const char *resource_id, doorman_resource_kind kind) {
    static const char *const names[HOLDERS] = {"a", "b", "c"};
    static const char *const addresses[] = {"server"};
    const size_t index = f->client_count++;
    const doorman_client_options options = {
        .client_id = names[index], .addresses = addresses, .address_count = 1, .seed = 5 + index};
    const doorman_resource_options resource = {
        .resource_id = resource_id, .kind = kind, .fallback = DOORMAN_PESSIMISTIC};
    assert_int_equal(doorman_client_create(&f->clients[index], &options, NULL, f->now), DOORMAN_OK);
    assert_int_equal(
        doorman_client_open(&f->resources[index], f->clients[index], &resource, NULL, f->now),
        DOORMAN_OK);
    f->at[index] = at;
}

static void add_client(fixture *f, size_t at, const char *resource_id) {
    add_holder(f, at, resource_id, DOORMAN_RATE);
}

static void add_gauge(fixture *f, size_t at, const char *resource_id) {
    add_holder(f, at, resource_id, DOORMAN_GAUGE);
}

/* Does the work of an upstream. Its request goes to `to`. */
static void pump(fixture *f, doorman_upstream *upstream, doorman_server *to) {
    for (int i = 0; i < 100 && doorman_upstream_due(upstream) <= f->now; i++) {
        doorman_request request;
        if (!doorman_upstream_request(upstream, &request, f->now)) continue;
        assert_non_null(to);
        doorman_response response;
        doorman_status status = doorman_server_handle(to, &request, &response, &f->error, f->now);
        if (status != DOORMAN_OK) fail_msg("%s", f->error.text);
        (void)doorman_upstream_response(upstream, request.sequence, &response, f->now);
    }
}

static void pump_all(fixture *f) {
    for (size_t i = 0; i < 2; i++) {
        if (!f->servers[i]) continue;
        pump(f, doorman_server_upstream(f->servers[i]), f->servers[0]);
    }
    for (size_t i = 0; i < f->client_count; i++) {
        pump(f, doorman_client_upstream(f->clients[i]), f->servers[f->at[i]]);
    }
}

static void pass(fixture *f, doorman_time time) {
    for (const doorman_time end = f->now + time; f->now < end;) {
        f->now = f->now + STEP < end ? f->now + STEP : end;
        pump_all(f);
    }
}

static bool acquire_cost(fixture *f, size_t server, const char *resource_id, double cost) {
    const doorman_permit_item item = {.resource_id = resource_id, .cost = cost};
    const doorman_permit_request permit = {.items = &item, .item_count = 1};
    const doorman_request request = {
        .method = DOORMAN_ACQUIRE, .holder_id = "web", .permits = &permit, .permit_count = 1};
    doorman_status status =
        doorman_server_handle(f->servers[server], &request, &f->response, &f->error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", f->error.text);
    assert_int_equal(f->response.permit_count, f->response.is_master ? 1 : 0);
    if (!f->response.is_master) return false;
    f->out = f->response.permits[0];
    if (f->out.granted) f->granted += f->out.items[0].granted;
    if (!f->out.granted) f->refused[f->out.reason]++;
    return f->out.granted;
}

static bool acquire(fixture *f, size_t server, const char *resource_id) {
    return acquire_cost(f, server, resource_id, 1);
}

/* Reads the lease of the permits at a server. Returns false if there is none. */
static bool lease_of_permits(fixture *f, size_t server, const char *resource_id,
                             doorman_server_lease *out) {
    doorman_cursor cursor = {0};
    while (doorman_server_next_lease(f->servers[server], resource_id, &cursor, out, f->now)) {
        if (strcmp(out->holder_id, "(permits)") == 0) return true;
    }
    return false;
}

/* Uses all units that clients and permits may use now. Returns how many. */
static double use_all(fixture *f, const char *resource_id) {
    double used = 0;
    for (size_t i = 0; i < f->client_count; i++) {
        for (int n = 0; n < 1000; n++) {
            if (doorman_client_try(f->resources[i], 1, NULL, f->now) != DOORMAN_ALLOWED) break;
            used++;
        }
    }
    for (size_t i = 0; i < 2; i++) {
        for (int n = 0; f->servers[i] && n < 1000 && acquire(f, i, resource_id); n++) used++;
    }
    return used;
}

#define ALGORITHM                                                                                  \
    "\"algorithm\": {\"kind\": \"FAIR_SHARE\", \"lease_length\": 20, \"refresh_interval\": 5}"
#define LEASED                                                                                     \
    "{\"name\": \"share\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": "          \
    "\"leased\"}"
#define ROOT                                                                                       \
    "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1000, " ALGORITHM                \
    ", \"limits\": [" LEASED "]}]}"
#define CHILD "{\"resources\": [{\"identifier_glob\": \"db\", \"limits\": [" LEASED "]}]}"

/* ---- stories -------------------------------------------------------------------------------- */

TEST(the_first_permit_is_refused_while_there_is_no_lease) {
    fixture f = start(ROOT, NULL);
    doorman_server_lease lease;
    assert_false(acquire(&f, 0, "db"));
    assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    assert_string_equal(f.out.limit, "share");
    assert_true(f.out.has_retry_after);
    assert_int_equal(f.out.retry_after, SECOND);
    assert_int_equal(f.out.valid_for, SECOND);
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    pass(&f, SECOND);
    assert_true(acquire(&f, 0, "db"));
    stop(&f);
}

TEST(a_permit_of_cost_0_and_an_inspection_open_no_lease) {
    fixture f = start(ROOT, NULL);
    doorman_server_lease lease;
    (void)acquire_cost(&f, 0, "db", 0);
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_int_equal(doorman_permits_inspect(permits, ITEM_OF("db", ""), &f.out, &f.error, f.now),
                     DOORMAN_OK);
    assert_int_equal(f.out.detail_count, 1);
    assert_string_equal(f.out.details[0].limit, "share");
    assert_exact(f.out.details[0].most, 0);
    pass(&f, SECOND);
    assert_false(lease_of_permits(&f, 0, "db", &lease));
    stop(&f);
}

/* Lets all holders use what they can. Returns the part of the capacity that they use in the second
 * half of the time. P17: in any t seconds they use at most capacity * (t + burst), plus a few units
 * that limiters round up. L1 says so for each limiter, and the bursts of all limiters add up like
 * their leases. */
static double run_model(fixture *f, const char *resource_id, double capacity, int seconds) {
    const int steps = seconds * (int)(SECOND / STEP);
    double *used = calloc((size_t)steps + 1, sizeof *used); /* the sum up to each step */
    assert_non_null(used);
    for (int i = 0; i < steps; i++) {
        pass(f, STEP);
        used[i + 1] = used[i] + use_all(f, resource_id);
        for (int t = 1; t <= i + 1; t = t < 64 ? t + 1 : t * 2) {
            /* the burst of 0.1 s, and one unit that each of the limiters may round up */
            const double most = capacity * ((double)t / 100 + 0.1) + (double)HOLDERS + 2;
            const double sum = used[i + 1] - used[i + 1 - t];
            if (sum > most) fail_msg("%g in %d steps, at most %g", sum, t, most);
        }
    }
    const double second_half = used[steps] - used[steps / 2];
    free(used);
    return second_half / (capacity * seconds / 2);
}

TEST(permits_and_leases_use_the_capacity_and_never_more) {
    fixture f = start(ROOT, NULL);
    for (size_t i = 0; i < HOLDERS; i++) add_client(&f, 0, "db");
    const double in_use = run_model(&f, "db", 1000, 120);
    print_message("in use: %.2f %%\n", 100 * in_use);
    assert_true(in_use >= 0.99);
    doorman_server_lease lease;
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    assert_near(lease.has, 250, 0.02); /* four holders share fairly */
    stop(&f);
}

TEST(permits_of_two_nodes_use_one_capacity) {
    fixture f = start(ROOT, CHILD);
    add_client(&f, 0, "db");
    add_client(&f, 1, "db");
    const double in_use = run_model(&f, "db", 1000, 120);
    print_message("in use: %.2f %%\n", 100 * in_use);
    assert_true(in_use >= 0.99);
    doorman_server_lease lease;
    assert_true(lease_of_permits(&f, 1, "db", &lease));
    assert_near(lease.has, 250, 0.05);
    stop(&f);
}

TEST(permits_alone_get_the_whole_capacity) {
    fixture f = start(ROOT, NULL);
    assert_true(run_model(&f, "db", 1000, 60) >= 0.99);
    stop(&f);
}

TEST(a_lease_that_shrinks_shrinks_what_permits_get) {
    fixture f = start(ROOT, NULL);
    (void)run_model(&f, "db", 1000, 30);
    doorman_config *smaller =
        config_of("{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 100, " ALGORITHM
                  ", \"limits\": [" LEASED "]}]}");
    assert_int_equal(doorman_server_configure(f.servers[0], smaller, f.now), DOORMAN_OK);
    doorman_config_destroy(f.configs[0]);
    f.configs[0] = smaller;
    for (int i = 0; i < 2100; i++) { /* the old leases end within a lease length, with drift */
        pass(&f, STEP);
        (void)use_all(&f, "db");
    }
    const double in_use = run_model(&f, "db", 100, 60);
    assert_true(in_use >= 0.99 && in_use <= 1.01);
    stop(&f);
}

TEST(permits_stop_with_the_mastership_and_begin_without_a_lease) {
    fixture f = start(ROOT, NULL);
    (void)run_model(&f, "db", 1000, 30);
    make_master(&f, 0, 0);
    assert_false(acquire(&f, 0, "db"));
    assert_false(f.response.is_master);
    make_master(&f, 0, DOORMAN_NEVER);
    const doorman_time learned = f.now + 21 * SECOND;
    while (f.now + STEP < learned) { /* nobody gets the part of the lost lease */
        pass(&f, STEP);
        assert_false(acquire(&f, 0, "db"));
        assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    }
    pass(&f, 10 * SECOND);
    assert_true(run_model(&f, "db", 1000, 60) >= 0.99);
    stop(&f);
}

/* Both nodes restart at random times. */
TEST(the_capacity_is_never_exceeded_when_masters_change) {
    for (int run = 0; run < 4; run++) {
        fixture f = start(ROOT, CHILD);
        add_client(&f, 0, "db");
        add_client(&f, 1, "db");
        double used[12001] = {0};
        for (int i = 0; i < 12000; i++) {
            pass(&f, STEP);
            if (random_below(1500) == 0) restart_server(&f, random_below(2));
            used[i + 1] = used[i] + use_all(&f, "db");
            for (int t = 100; t <= i; t *= 2) {
                /* each limiter may save one unit, also one of a process that was restarted */
                double most = 1000 * ((double)t / 100 + 0.1) + 4 + (double)f.incarnation;
                double sum = used[i + 1] - used[i + 1 - t];
                if (sum > most) fail_msg("%g in %d steps, at most %g", sum, t, most);
            }
        }
        stop(&f);
    }
}

TEST(an_idle_lease_is_released) {
    fixture f = start(ROOT, NULL);
    doorman_server_lease lease;
    (void)acquire(&f, 0, "db");
    pass(&f, 59 * SECOND);
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    pass(&f, 3 * SECOND);
    assert_false(lease_of_permits(&f, 0, "db", &lease));
    assert_int_equal(doorman_upstream_due(doorman_server_upstream(f.servers[0])) > f.now, 1);
    stop(&f);
}

TEST(refusals_raise_the_wants) {
    fixture f = start(ROOT, NULL);
    doorman_server_lease lease;
    (void)acquire_cost(&f, 0, "db", 400); /* more than the lease of an idle limit saves in years */
    pass(&f, 3 * SECOND);
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    assert_true(lease.has >= 200); /* it saves 400 units in 2 s */
    assert_true(acquire_cost(&f, 0, "db", 400));
    assert_false(acquire_cost(&f, 0, "db", 400));
    assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    const doorman_time retry = f.out.retry_after;
    assert_true(retry > 0 && retry <= 3 * SECOND);
    stop(&f);
}

TEST(a_refusal_by_another_limit_takes_nothing_of_the_lease) {
    fixture f = start("{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1000, "
                      "\"limits\": [" LEASED ", {\"name\": \"none\", \"per\": \"resource\", "
                      "\"kind\": \"FIXED_WINDOW\", \"limit\": 0, \"window\": 60}]}]}",
                      NULL);
    for (int i = 0; i < 300; i++) {
        pass(&f, STEP);
        assert_false(acquire_cost(&f, 0, "db", 0.01));
    }
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_int_equal(doorman_permits_inspect(permits, ITEM_OF("db", ""), &f.out, &f.error, f.now),
                     DOORMAN_OK);
    assert_about(f.out.details[0].remaining, 1); /* an idle lease is 1, and all of it is saved */
    stop(&f);
}

/* Limits of several resources may share one lease, which wants the sum of what they want. */
TEST(limits_with_one_lease_share_it) {
    fixture f = start("{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1000}, "
                      "{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"share\", "
                      "\"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\", "
                      "\"lease_of\": \"db\", \"priority\": 3, \"subclients\": 5}]}]}",
                      NULL);
    for (int i = 0; i < 500; i++) {
        pass(&f, STEP);
        (void)acquire_cost(&f, 0, i % 2 ? "api/a" : "api/b", 5);
    }
    doorman_server_lease lease;
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    assert_int_equal(lease.priority, 3);
    assert_exact(lease.subclients, 5);
    pass(&f, SECOND);
    const doorman_permit_item items[] = {{.resource_id = "api/a", .cost = 4},
                                         {.resource_id = "api/b", .cost = 4}};
    const doorman_permit_request both = {.items = items, .item_count = 2};
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_int_equal(
        doorman_permits_inspect(permits, ITEM_OF("api/a", ""), &f.out, &f.error, f.now),
        DOORMAN_OK);
    const double before = f.out.details[0].remaining;
    assert_true(before >= 8);
    assert_int_equal(doorman_permits_acquire(permits, &both, &f.out, &f.error, f.now), DOORMAN_OK);
    assert_true(f.out.granted);
    assert_about(f.out.items[0].remaining, before - 8);
    assert_about(f.out.items[1].remaining, before - 8);
    stop(&f);
}

/* The permits of a node may stand for several clients. */
TEST(subclients_are_the_weight_of_the_permits) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1000, " ALGORITHM
        ", \"limits\": [{\"name\": \"share\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "
        "\"rate\": \"leased\", \"subclients\": %d}]}]}";
    static const int subclients[] = {3, 9, 1};
    char own[512];
    snprintf(own, sizeof own, text, subclients[0]);
    fixture f = start(own, NULL);
    add_client(&f, 0, "db");
    for (size_t i = 0; i < COUNT(subclients); i++) {
        doorman_server_lease lease;
        snprintf(own, sizeof own, text, subclients[i]);
        doorman_config *config = config_of(own);
        assert_int_equal(doorman_server_configure(f.servers[0], config, f.now), DOORMAN_OK);
        doorman_config_destroy(f.configs[0]);
        f.configs[0] = config;
        for (int j = 0; j < 6000; j++) {
            pass(&f, STEP);
            (void)use_all(&f, "db");
        }
        assert_true(lease_of_permits(&f, 0, "db", &lease));
        assert_exact(lease.subclients, subclients[i]);
        assert_near(lease.has, 1000.0 * subclients[i] / (subclients[i] + 1), 0.02);
    }
    stop(&f);
}

/* An item may ask for more than its minimum. It gets its minimum, and above it only whole units. */
TEST(an_item_gets_whole_units_above_its_minimum) {
    fixture f = start(ROOT, NULL);
    (void)run_model(&f, "db", 1000, 10);
    pass(&f, SECOND);
    const doorman_permit_item item = {
        .resource_id = "db", .cost = 5000, .has_min = true, .min = 0.5};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_int_equal(doorman_permits_acquire(permits, &request, &f.out, &f.error, f.now),
                     DOORMAN_OK);
    assert_true(f.out.granted);
    assert_true(f.out.items[0].granted >= 50 && f.out.items[0].granted <= 100.5);
    assert_true(f.out.items[0].remaining < 1);
    assert_false(acquire(&f, 0, "db"));
    stop(&f);
}

TEST(a_report_charges_what_is_saved_and_raises_the_wants) {
    fixture f = start(ROOT, NULL);
    double charged = -1;
    (void)run_model(&f, "db", 1000, 10);
    pass(&f, SECOND);
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_int_equal(doorman_permits_report(
                         permits, &(doorman_permit_item){.resource_id = "db", .key = "", .cost = 5},
                         &charged, NULL, f.now),
                     DOORMAN_OK);
    assert_exact(charged, 5);
    assert_int_equal(doorman_permits_report(
                         permits,
                         &(doorman_permit_item){.resource_id = "db", .key = "", .cost = 100000},
                         &charged, NULL, f.now),
                     DOORMAN_OK);
    assert_true(charged > 10 && charged < 100000);
    assert_false(acquire(&f, 0, "db")); /* no debt, but nothing is left either */
    assert_int_equal(doorman_permits_report(
                         permits, &(doorman_permit_item){.resource_id = "db", .key = "", .cost = 5},
                         &charged, NULL, f.now),
                     DOORMAN_OK);
    assert_exact(charged, 0);
    assert_int_equal(
        doorman_permits_report(permits,
                               &(doorman_permit_item){.resource_id = "db", .key = "", .cost = -5},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(charged, 0);
    size_t count = 9;
    assert_int_equal(doorman_permits_reset(permits, ITEM_OF("db", ""), "share", &count, NULL),
                     DOORMAN_OK);
    assert_int_equal(count, 0); /* a lease cannot be reset */
    pass(&f, STEP);
    assert_true(acquire(&f, 0, "db"));
    stop(&f);
}

TEST(a_limit_in_shadow_never_refuses) {
    fixture f = start("{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 10, "
                      "\"limits\": [{\"name\": \"share\", \"per\": \"resource\", \"kind\": "
                      "\"TOKEN_BUCKET\", \"rate\": \"leased\", \"shadow\": true}]}]}",
                      NULL);
    doorman_server_lease lease;
    for (int i = 0; i < 2000; i++) {
        pass(&f, STEP);
        assert_true(acquire(&f, 0, "db"));
    }
    assert_true(lease_of_permits(&f, 0, "db", &lease));
    assert_true(lease.has > 9);
    doorman_cursor cursor = {0};
    doorman_permits_limit info;
    assert_true(doorman_permits_next_limit(doorman_server_permits(f.servers[0]), &cursor, &info));
    assert_true(info.shadow_refused > 1500);
    stop(&f);
}

TEST(no_client_may_use_the_id_of_the_permits) {
    fixture f = start(ROOT, NULL);
    const doorman_demand wants = {.wants = 5};
    const doorman_capacity_request item = {.resource_id = "db", .wants = &wants, .wants_count = 1};
    doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = "(permits)", .items = &item, .item_count = 1};
    assert_int_equal(doorman_server_handle(f.servers[0], &request, &f.response, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    request.method = DOORMAN_RELEASE_CAPACITY;
    assert_int_equal(doorman_server_handle(f.servers[0], &request, &f.response, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    stop(&f);
}

TEST(leases_of_permits_are_bounded) {
    fixture f = start("{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 10, "
                      "\"limits\": [{\"name\": \"share\", \"per\": \"resource\", \"kind\": "
                      "\"TOKEN_BUCKET\", \"rate\": \"leased\", \"max_keys\": 2}]}]}",
                      NULL);
    (void)acquire(&f, 0, "a");
    assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    (void)acquire(&f, 0, "b");
    assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    (void)acquire(&f, 0, "c");
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_KEYS);
    pass(&f, 2 * SECOND);
    assert_true(acquire(&f, 0, "a"));
    assert_false(acquire(&f, 0, "c"));
    stop(&f);
}

TEST(permits_without_a_server_have_no_lease) {
    doorman_config *config = config_of(ROOT);
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    const doorman_permit_item item = {.resource_id = "db", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_permits *permits = NULL;
    doorman_permit out;
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, 0), DOORMAN_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(doorman_permits_acquire(permits, &request, &out, NULL, i * SECOND),
                         DOORMAN_OK);
        assert_false(out.granted);
        assert_int_equal(out.reason, DOORMAN_REASON_LEARNING);
    }
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

/* ---- holds out of a lease ------------------------------------------------------------------- */

#define SLOTS_MAX 512
#define WHOLE_ROOT                                                                                 \
    "{\"resources\": [{\"identifier_glob\": \"gpu\", \"capacity\": 40, \"whole\": "                \
    "true, " ALGORITHM ", \"limits\": [" SLOTS "]}]}"
#define WHOLE_CHILD "{\"resources\": [{\"identifier_glob\": \"gpu\", \"limits\": [" SLOTS "]}]}"
#define SLOTS                                                                                      \
    "{\"name\": \"slots\", \"per\": \"resource\", \"kind\": \"CONCURRENCY\", "                     \
    "\"limit\": \"leased\", \"time_to_live\": 15, \"queue\": 100, \"max_wait\": 10}"

/* A hold, as its holder knows it. */
typedef struct slot {
    size_t server;
    uint64_t id;
    doorman_time end; /* by the clock of the holder */
} slot;

typedef struct slots {
    slot list[SLOTS_MAX];
    size_t count;
    uint64_t next_request;
} slots;

/* Asks for a hold of one unit. Returns whether it was granted. */
static bool hold_one(fixture *f, slots *all, size_t server, doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "gpu", .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "web",
                                            .request_id = ++all->next_request,
                                            .max_wait = max_wait};
    doorman_permits *permits = doorman_server_permits(f->servers[server]);
    assert_int_equal(doorman_permits_acquire(permits, &request, &f->out, &f->error, f->now),
                     DOORMAN_OK);
    if (!f->out.granted) return false;
    assert_true(all->count < SLOTS_MAX);
    all->list[all->count++] = (slot){server, f->out.hold_id, f->now + f->out.expires_in};
    return true;
}

/* Releases a hold, which its holder no longer uses. */
static void release_one(fixture *f, slots *all, size_t index) {
    const slot own = all->list[index];
    const doorman_hold_request request = {.client_id = "web", .id = own.id};
    doorman_hold out;
    all->list[index] = all->list[--all->count];
    assert_int_equal(doorman_permits_release(doorman_server_permits(f->servers[own.server]),
                                             &request, &out, NULL, f->now),
                     DOORMAN_OK);
}

static void renew_one(fixture *f, slot *own) {
    const doorman_hold_item item = {.resource_id = "gpu", .key = "", .amount = 1};
    const doorman_hold_request request = {
        .client_id = "web", .id = own->id, .items = &item, .item_count = 1};
    doorman_hold out;
    assert_int_equal(doorman_permits_renew(doorman_server_permits(f->servers[own->server]),
                                           &request, &out, NULL, f->now),
                     DOORMAN_OK);
    if (out.gone) return;
    if (f->now + out.expires_in > own->end) own->end = f->now + out.expires_in;
}

/* Ends the holds whose time is over. Returns the units in use, by holders and by lease clients. */
static double units_in_use(fixture *f, slots *all) {
    for (size_t i = 0; i < all->count;) {
        if (all->list[i].end > f->now) {
            i++;
        } else {
            all->list[i] = all->list[--all->count];
        }
    }
    double sum = (double)all->count;
    for (size_t i = 0; i < f->client_count; i++) {
        doorman_resource_info info;
        doorman_client_read(f->resources[i], &info, f->now);
        sum += info.leased ? info.in_use : 0; /* a client without a lease must stop */
    }
    return sum;
}

TEST(holds_and_gauges_use_the_capacity_and_never_more) {
    for (int tree = 0; tree < 2; tree++) {
        fixture f = start(WHOLE_ROOT, tree ? WHOLE_CHILD : NULL);
        slots all = {.count = 0};
        double sum = 0;
        size_t samples = 0;
        add_gauge(&f, 0, "gpu");
        add_gauge(&f, (size_t)tree, "gpu");
        for (int i = 0; i < 12000; i++) {
            pass(&f, STEP);
            for (size_t j = 0; j < f.client_count; j++) {
                (void)doorman_client_try(f.resources[j], 1, NULL, f.now);
                if (random_below(100) == 0) (void)doorman_client_release(f.resources[j], 1);
            }
            if (all.count && random_below(50) == 0) release_one(&f, &all, random_below(all.count));
            for (size_t j = 0; j < all.count; j++) {
                if (random_below(300) == 0) renew_one(&f, &all.list[j]);
            }
            for (size_t j = 0; j <= (size_t)tree; j++) (void)hold_one(&f, &all, j, 0);
            double used = units_in_use(&f, &all);
            if (used > 40) fail_msg("%g units in use at step %d", used, i);
            if (i >= 6000) sum += used, samples++;
        }
        print_message("in use: %.2f %%\n", 100 * sum / (40 * (double)samples));
        assert_true(sum / (40 * (double)samples) >= 0.95);
        stop(&f);
    }
}

/* Nodes are restarted at random times. A holder may use its hold until the end that it knows. */
TEST(holds_of_a_predecessor_never_exceed_the_capacity) {
    for (int run = 0; run < 4; run++) {
        fixture f = start(WHOLE_ROOT, WHOLE_CHILD);
        slots all = {.count = 0};
        add_gauge(&f, 0, "gpu");
        for (int i = 0; i < 12000; i++) {
            pass(&f, STEP);
            if (random_below(1500) == 0) restart_server(&f, random_below(2));
            (void)doorman_client_try(f.resources[0], 1, NULL, f.now);
            if (random_below(100) == 0) (void)doorman_client_release(f.resources[0], 1);
            for (size_t j = 0; j < all.count; j++) {
                if (random_below(300) == 0) renew_one(&f, &all.list[j]);
            }
            if (all.count && random_below(50) == 0) release_one(&f, &all, random_below(all.count));
            for (size_t j = 0; j < 2; j++) (void)hold_one(&f, &all, j, 0);
            double used = units_in_use(&f, &all);
            if (used > 40) fail_msg("%g units in use at step %d", used, i);
        }
        stop(&f);
    }
}

TEST(a_hold_ends_no_later_than_its_lease) {
    fixture f = start(WHOLE_ROOT, NULL);
    slots all = {.count = 0};
    assert_false(hold_one(&f, &all, 0, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(f.out.retry_after, SECOND);
    pass(&f, SECOND);
    assert_true(hold_one(&f, &all, 0, 0));
    assert_int_equal(f.out.expires_in, 15 * SECOND);
    /* the server is suspended until the lease has 5 s left */
    doorman_server_lease lease;
    doorman_permits *permits = doorman_server_permits(f.servers[0]);
    assert_true(lease_of_permits(&f, 0, "gpu", &lease));
    const doorman_time end = lease.granted_at + 20 * SECOND;
    f.now = end - 5 * SECOND;
    const doorman_hold_request request = {.client_id = "web", .id = all.list[0].id};
    doorman_hold out;
    assert_int_equal(doorman_permits_renew(permits, &request, &out, NULL, f.now), DOORMAN_OK);
    assert_false(out.gone);
    doorman_cursor cursor = {0};
    doorman_permits_hold info = {.ends_at = 0};
    assert_true(doorman_permits_next_hold(permits, &cursor, &info));
    assert_true(info.ends_at <= end);
    assert_true(out.expires_in <= (doorman_time)((double)(info.ends_at - f.now) / 1.05));
    stop(&f);
}

/* P17. The permits learn for over an hour, because the holds of the limit "other" last for an hour.
 * The lease of "gpu" is in force long before the learning ends. */
TEST(a_new_master_does_not_believe_a_hold_out_of_a_lease) {
    fixture f =
        start("{\"resources\": [{\"identifier_glob\": \"gpu\", \"capacity\": 40, \"whole\": "
              "true, " ALGORITHM ", \"limits\": [" SLOTS
              "]}, {\"identifier_glob\": \"other\", \"limits\": [{\"name\": \"other\", "
              "\"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 3600}]}]}",
              NULL);
    restart_server(&f, 0);
    slots all = {.count = 0};
    for (int i = 0; i < 100 && !all.count; i++) {
        (void)hold_one(&f, &all, 0, 0);
        pass(&f, SECOND);
    }
    assert_int_equal(all.count, 1);
    release_one(&f, &all, 0); /* the lease has a free unit now */
    doorman_permits_info info;
    doorman_permits_read(doorman_server_permits(f.servers[0]), &info);
    assert_true(f.now < info.learns_until);
    const doorman_hold_item items[] = {{.resource_id = "gpu", .key = "", .amount = 1},
                                       {.resource_id = "other", .key = "", .amount = 1}};
    for (size_t count = 1; count <= COUNT(items); count++) {
        const doorman_hold_request request = {
            .client_id = "web", .id = 99, .items = items, .item_count = count};
        doorman_hold out;
        assert_int_equal(doorman_permits_renew(doorman_server_permits(f.servers[0]), &request, &out,
                                               NULL, f.now),
                         DOORMAN_OK);
        assert_int_equal(out.gone, count == 1);
        if (count == 2) assert_float_equal(out.items[0].amount, 0, 0);
        if (count == 2) assert_float_equal(out.items[1].amount, 1, 0);
    }
    stop(&f);
}

TEST(a_permit_waits_until_the_lease_has_grown) {
    fixture f = start(WHOLE_ROOT, NULL);
    slots all = {.count = 0};
    size_t granted = 0;
    for (int i = 0; i < 30; i++) {
        assert_false(hold_one(&f, &all, 0, 10 * SECOND));
        assert_true(f.out.pending);
    }
    for (int i = 0; i < 800; i++) {
        uint64_t ticket = 0;
        doorman_permit out;
        pass(&f, STEP);
        doorman_permits *permits = doorman_server_permits(f.servers[0]);
        while (doorman_permits_next_decision(permits, &ticket, &out)) granted += out.granted;
    }
    assert_int_equal(granted, 30);
    stop(&f);
}

/* A shrunk lease gives units back as they are released, and no hold starts before it fits. */
TEST(a_lease_that_shrinks_waits_for_its_holds) {
    fixture f = start(WHOLE_ROOT, NULL);
    slots all = {.count = 0};
    doorman_server_lease lease;
    for (int i = 0; i < 3000; i++) {
        pass(&f, STEP);
        (void)hold_one(&f, &all, 0, 0);
        for (size_t j = 0; j < all.count; j++) {
            if (i % 300 == 0) renew_one(&f, &all.list[j]);
        }
    }
    assert_int_equal(all.count, 40);
    add_gauge(&f, 0, "gpu"); /* it gets half, when holds are released */
    for (int i = 0; i < 1000; i++) {
        pass(&f, STEP);
        for (size_t j = 0; j < all.count; j++) {
            if (i % 300 == 0) renew_one(&f, &all.list[j]);
        }
        (void)doorman_client_try(f.resources[0], 1, NULL, f.now);
    }
    assert_true(lease_of_permits(&f, 0, "gpu", &lease));
    assert_exact(lease.has, 20);
    assert_exact(lease.committed, 40);
    assert_exact(units_in_use(&f, &all), 40);
    assert_false(hold_one(&f, &all, 0, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    while (all.count > 20) release_one(&f, &all, 0);
    for (int i = 0; i < 2000; i++) {
        pass(&f, STEP);
        for (size_t j = 0; j < all.count; j++) {
            if (i % 300 == 0) renew_one(&f, &all.list[j]);
        }
        (void)doorman_client_try(f.resources[0], 1, NULL, f.now);
        assert_true(units_in_use(&f, &all) <= 40);
    }
    assert_exact(units_in_use(&f, &all), 40);
    assert_int_equal(all.count, 20);
    stop(&f);
}

TEST(a_lease_of_a_gauge_is_released_when_nothing_is_held) {
    fixture f = start(WHOLE_ROOT, NULL);
    slots all = {.count = 0};
    doorman_server_lease lease;
    (void)hold_one(&f, &all, 0, 0);
    pass(&f, SECOND);
    assert_true(hold_one(&f, &all, 0, 0));
    for (int i = 0; i < 100; i++) { /* a held unit keeps the lease */
        pass(&f, SECOND);
        renew_one(&f, &all.list[0]);
    }
    assert_true(lease_of_permits(&f, 0, "gpu", &lease));
    release_one(&f, &all, 0);
    pass(&f, 70 * SECOND);
    assert_false(lease_of_permits(&f, 0, "gpu", &lease));
    stop(&f);
}

/* ---- configuration -------------------------------------------------------------------------- */

#define LIMIT_OF(fields)                                                                           \
    "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 10, \"limits\": [{\"name\": "    \
    "\"a\", " fields "}]}]}"
#define BUCKET "\"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\""

static const struct {
    const char *text, *error;
} wrong_configurations[] = {
    {LIMIT_OF("\"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\""), "limits[0].per"},
    {LIMIT_OF("\"per\": \"template\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\""),
     "limits[0].per"},
    {LIMIT_OF(BUCKET ", \"size\": 1"), "limits[0].size"},
    {LIMIT_OF(BUCKET ", \"max_debt\": 1"), "limits[0].max_debt"},
    {LIMIT_OF(BUCKET ", \"max_wait\": 1"), "limits[0].max_wait"},
    {LIMIT_OF(BUCKET ", \"warn_at\": 0.5"), "limits[0].warn_at"},
    {LIMIT_OF(BUCKET ", \"refunds\": true"), "limits[0].refunds"},
    {LIMIT_OF(BUCKET ", \"on_restart\": \"empty\""), "limits[0].on_restart"},
    {LIMIT_OF(BUCKET ", \"priority\": 16"), "limits[0].priority"},
    {LIMIT_OF(BUCKET ", \"subclients\": 0"), "limits[0].subclients"},
    {LIMIT_OF(BUCKET ", \"overrides\": [{\"keys\": [\"x\"], \"rate\": 1}]"), "limits[0].overrides"},
    {LIMIT_OF(BUCKET ", \"lease_of\": \"other\""), "limits[0].lease_of"},
    {LIMIT_OF(BUCKET ", \"lease_of\": \"\""), "limits[0].lease_of"},
    {LIMIT_OF("\"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"borrowed\""),
     "limits[0].rate"},
    {LIMIT_OF("\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"lease_of\": \"db\""),
     "limits[0].lease_of"},
    {LIMIT_OF("\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"priority\": 2"),
     "limits[0].priority"},
    {LIMIT_OF("\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"subclients\": 2"),
     "limits[0].subclients"},
    {LIMIT_OF(BUCKET "}, {\"name\": \"b\", " BUCKET), "limits[1].lease_of"},
    {LIMIT_OF("\"kind\": \"CONCURRENCY\", \"limit\": \"leased\""), "limits[0].per"},
    {LIMIT_OF("\"per\": \"resource\", \"kind\": \"CONCURRENCY\", \"limit\": \"leased\", "
              "\"on_restart\": \"full\""),
     "limits[0].on_restart"},
    {LIMIT_OF("\"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": \"leased\", "
              "\"window\": 1"),
     "limits[0].limit"},
    {"{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1}, {\"identifier_glob\": "
     "\"api/*\", \"limits\": [{\"name\": \"a\", \"per\": \"resource\", \"kind\": "
     "\"CONCURRENCY\", \"limit\": \"leased\", \"lease_of\": \"db\"}]}]}",
     "resources[1].limits[0].lease_of"},
    {"{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1, \"limits\": [{\"name\": "
     "\"a\", " BUCKET "}]}, {\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"a\", "
     "\"per\": \"resource\", \"kind\": \"CONCURRENCY\", \"limit\": \"leased\", "
     "\"lease_of\": \"db\"}]}]}",
     "resources[1].limits[0].kind"},
    {LIMIT_OF(BUCKET "}, {\"name\": \"b\", \"lease_of\": \"db\", " BUCKET), "limits[1].lease_of"},
    {"{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1}, {\"identifier_glob\": "
     "\"api\", \"limits\": [{\"name\": \"a\", " BUCKET "}]}]}",
     "resources[1].limits[0].lease_of"},
    {"{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1, \"limits\": [{\"name\": "
     "\"a\", " BUCKET "}]}, {\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"a\", "
     "\"lease_of\": \"db\", \"priority\": 2, " BUCKET "}]}]}",
     "resources[1].limits[0].priority"},
    {"{\"resources\": [{\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"a\", "
     "\"lease_of\": \"db\", \"subclients\": 2, " BUCKET "}]}, {\"identifier_glob\": \"d*\", "
     "\"capacity\": 1, \"limits\": [{\"name\": \"a\", " BUCKET "}]}]}",
     "resources[1].limits[0].subclients"},
};

TEST(wrong_configurations_are_refused_by_path) {
    for (size_t i = 0; i < COUNT(wrong_configurations); i++) {
        doorman_config *config = NULL;
        doorman_error error = {0};
        doorman_status status = doorman_json_config(&config, wrong_configurations[i].text,
                                                    strlen(wrong_configurations[i].text), &error);
        if (status == DOORMAN_OK || !strstr(error.text, wrong_configurations[i].error)) {
            fail_msg("%zu: %s does not name %s", i, error.text, wrong_configurations[i].error);
        }
    }
}

TEST(a_leased_limit_is_written_as_it_was_read) {
    doorman_config *config = config_of(LIMIT_OF(
        BUCKET ", \"lease_of\": \"db\", \"priority\": 0, \"subclients\": 7, \"max_keys\": 9"));
    doorman_config_options options;
    doorman_buffer text = {0};
    doorman_config_read(config, &options);
    assert_int_equal(doorman_json_write_config(&options, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"rate\":\"leased\",\"lease_of\":\"db\",\"priority\":0,"
                                      "\"subclients\":7"));
    assert_non_null(strstr(text.text, "\"max_keys\":9"));
    doorman_config_destroy(config);
    config = config_of(text.text);
    doorman_config_read(config, &options);
    const doorman_permit_limit *limit = &options.templates[0].limits[0];
    assert_true(limit->leased && limit->has_priority);
    assert_string_equal(limit->lease_of, "db");
    assert_int_equal(limit->subclients, 7);
    doorman_config_destroy(config);
    config = config_of(WHOLE_ROOT);
    doorman_config_read(config, &options);
    assert_int_equal(doorman_json_write_config(&options, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"limit\":\"leased\",\"time_to_live\":15,\"queue\":100,"
                                      "\"max_wait\":10}"));
    doorman_config_destroy(config);
    doorman_buffer_uninit(&text);
}

/* ---- without memory ------------------------------------------------------------------------- */

TEST(without_memory_a_permit_is_refused_and_nothing_leaks) {
    fixture f = start(ROOT, NULL);
    size_t n = 0;
    do {
        const doorman_permit_item item = {.resource_id = "db", .cost = 1};
        const doorman_permit_request permit = {.items = &item, .item_count = 1};
        const doorman_request request = {
            .method = DOORMAN_ACQUIRE, .holder_id = "web", .permits = &permit, .permit_count = 1};
        memory_fails_at(++n);
        doorman_status status =
            doorman_server_handle(f.servers[0], &request, &f.response, NULL, f.now);
        assert_true(status == DOORMAN_OK || status == DOORMAN_OUT_OF_MEMORY);
        if (status == DOORMAN_OK) assert_false(f.response.permits[0].granted);
        const bool worked = memory_works();
        restart_server(&f, 0);
        f.now += 1000 * SECOND;
        if (worked) break;
    } while (n < 1000);
    assert_true(n > 3 && n < 1000);
    stop(&f);
}
