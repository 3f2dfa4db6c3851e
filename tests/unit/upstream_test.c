/* Tests section >>upstream of doorman.h: which requests a client sends, when, to which address, and
 * how the client handles the responses. The tests themselves write the responses. doorman.h defines
 * the rules K1 to K3 and R1 to R12. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)

/* ---- a client whose time is a variable, and a server whose responses the test chooses ---- */

typedef struct world {
    doorman_client *client;
    doorman_upstream *upstream;
    doorman_time now;
    doorman_request request; /* the last request made */
    uint64_t lease_id;       /* the id of the last lease that was granted */
    size_t change_count;     /* the number of calls of on_change */
    size_t blocks;           /* allocated before the start */
} world;

static const char *const one_address[] = {"tcp://a:1"};

static world world_start_full(doorman_client_options options) {
    world w = {.now = 1000 * SECOND, .lease_id = 100, .blocks = memory_blocks()};
    options.client_id = "client";
    if (!options.seed) options.seed = 1;
    assert_int_equal(doorman_client_create(&w.client, &options, NULL, w.now), DOORMAN_OK);
    w.upstream = doorman_client_upstream(w.client);
    return w;
}

static world world_start_at(const char *const *addresses, size_t address_count) {
    const doorman_client_options options = {
        .addresses = addresses, .address_count = address_count, .seed = random_bits()};
    return world_start_full(options);
}

static world world_start(void) { return world_start_at(one_address, 1); }

/* Destroys the client, and checks that all memory was freed. */
static void world_stop(world *w) {
    doorman_client_destroy(w->client);
    assert_int_equal(memory_blocks(), w->blocks);
}

static void record_change(void *context, const doorman_resource_info *info) {
    (void)info;
    ((world *)context)->change_count++;
}

static doorman_client_resource *open_resource(world *w, const char *resource_id, double wants) {
    doorman_client_resource *resource = NULL;
    const doorman_resource_options options = {.resource_id = resource_id,
                                              .kind = DOORMAN_GAUGE,
                                              .wants = wants,
                                              .on_change = record_change,
                                              .context = w};
    assert_int_equal(doorman_client_open(&resource, w->client, &options, NULL, w->now), DOORMAN_OK);
    return resource;
}

static bool has_request(world *w) {
    bool made = doorman_upstream_request(w->upstream, &w->request, w->now);
    assert_int_equal(made, w->request.sequence != 0);
    if (made) assert_string_equal(w->request.address, doorman__upstream_address(w->upstream));
    return made;
}

static void wait_for_request(world *w) {
    for (int i = 0; i < 1000; i++) {
        doorman_time due = doorman_upstream_due(w->upstream);
        assert_true(due != DOORMAN_NEVER);
        if (due > w->now) w->now = due;
        if (has_request(w)) return;
    }
    fail_msg("the client sends no request");
}

/* Lets time pass until the client sends a request. Returns the time of the request. */
static doorman_time next_request_at(world *w) {
    wait_for_request(w);
    return w->now;
}

/* Returns a lease of 60 s with a refresh interval of 16 s, for item i of the last request. */
static doorman_capacity_response granted_lease(world *w, size_t i, double capacity) {
    return (doorman_capacity_response){.resource_id = w->request.items[i].resource_id,
                                       .outcome = DOORMAN_GRANTED,
                                       .gets = {.id = ++w->lease_id,
                                                .node = "root",
                                                .capacity = capacity,
                                                .committed = capacity,
                                                .expires_in = 60 * SECOND,
                                                .refresh_interval = 16 * SECOND}};
}

static doorman_capacity_response refusal(world *w, doorman_outcome outcome,
                                         doorman_time refresh_interval) {
    return (doorman_capacity_response){.resource_id = w->request.items[0].resource_id,
                                       .outcome = outcome,
                                       .gets.refresh_interval = refresh_interval};
}

static doorman_status reply(world *w, const doorman_capacity_response *item_responses,
                            size_t answer_count) {
    const doorman_response response = {.method = w->request.method,
                                       .is_master = true,
                                       .items = item_responses,
                                       .item_count = answer_count};
    return doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now);
}

/* Answers every item of the last request with a lease of this capacity. */
static void grant_one(world *w, double capacity) {
    static doorman_capacity_response item_responses[DOORMAN__ITEMS_MAX];
    for (size_t i = 0; i < w->request.item_count; i++)
        item_responses[i] = granted_lease(w, i, capacity);
    assert_int_equal(reply(w, item_responses, w->request.item_count), DOORMAN_OK);
}

static void respond_with(world *w, doorman_capacity_response item_response) {
    assert_int_equal(reply(w, &item_response, 1), DOORMAN_OK);
}

static void respond_to_release(world *w) {
    assert_int_equal(w->request.method, DOORMAN_RELEASE_CAPACITY);
    assert_int_equal(reply(w, NULL, 0), DOORMAN_OK);
}

static doorman_status redirect(world *w, const char *address) {
    const doorman_response response = {.method = w->request.method, .master_address = address};
    return doorman_upstream_response(w->upstream, w->request.sequence, &response, w->now);
}

static void fail_request(world *w) {
    doorman_upstream_failed(w->upstream, w->request.sequence, w->now);
}

static doorman_resource_info read_now(const world *w, const doorman_client_resource *resource) {
    doorman_resource_info info;
    doorman_client_read(resource, &info, w->now);
    return info;
}

static void set_wants(world *w, doorman_client_resource *resource, double wants) {
    assert_int_equal(doorman_client_set_wants(resource, wants, w->now), DOORMAN_OK);
}

static void release(doorman_client_resource *gauge, double n) {
    assert_int_equal(doorman_client_release(gauge, n), DOORMAN_OK);
}

/* Takes units of a gauge, which are then in flight. */
static void take_units(const world *w, doorman_client_resource *resource, double n) {
    assert_int_equal(doorman_client_try(resource, n, NULL, w->now), DOORMAN_ALLOWED);
}

/* Starts a client with one resource, "db", and a lease of this capacity that begins now. */
static doorman_client_resource *start_with_lease(world *w, double wants, double capacity) {
    *w = world_start();
    doorman_client_resource *resource = open_resource(w, "db", wants);
    assert_true(has_request(w));
    grant_one(w, capacity);
    return resource;
}

/* ---- when to ask ---- */

/* K1 */
TEST(a_new_resource_is_requested_at_once) {
    world w = world_start();
    assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
    assert_false(has_request(&w));
    open_resource(&w, "db", 120);
    assert_int_equal(doorman_upstream_due(w.upstream), w.now);
    assert_true(has_request(&w));
    assert_int_equal(w.request.method, DOORMAN_GET_CAPACITY);
    assert_string_equal(w.request.holder_id, "client");
    assert_false(w.request.is_server);
    assert_int_equal(w.request.item_count, 1);
    const doorman_capacity_request *item_request = w.request.items;
    assert_string_equal(item_request->resource_id, "db");
    assert_int_equal(item_request->has.id, 0);
    assert_int_equal(item_request->wants_count, 1);
    assert_exact(item_request->wants->wants, 120);
    assert_int_equal(item_request->wants->priority, 1);
    world_stop(&w);
}

/* K1 */
TEST(no_request_is_sent_while_another_is_under_way) {
    world w = world_start();
    open_resource(&w, "db", 120);
    assert_true(has_request(&w));
    open_resource(&w, "disk", 5);
    assert_false(has_request(&w));
    w.now += 4 * SECOND;
    assert_false(has_request(&w));
    world_stop(&w);
}

/* K1 */
TEST(one_request_renews_all_leases_past_half_their_interval) {
    world w = world_start();
    doorman_time start = w.now;
    open_resource(&w, "first", 1);
    assert_true(has_request(&w));
    grant_one(&w, 1);
    w.now = start + 7 * SECOND;
    open_resource(&w, "past half", 1);
    assert_true(has_request(&w));
    assert_int_equal(w.request.item_count, 1); /* the first one is not past half its interval */
    grant_one(&w, 1);
    w.now = start + 10 * SECOND;
    open_resource(&w, "young", 1);
    assert_true(has_request(&w));
    assert_int_equal(w.request.item_count, 2); /* the first one is renewed with it */
    assert_string_equal(w.request.items[1].resource_id, "first");
    grant_one(&w, 1);
    wait_for_request(&w);
    assert_true(w.now >= start + 23 * SECOND); /* the second one is due first */
    assert_int_equal(w.request.item_count, 3);
    world_stop(&w);
}

/* K1 */
TEST(a_renewal_is_up_to_a_twentieth_late_and_never_early) {
    double least = 1, most = 0;
    for (int i = 0; i < 300; i++) {
        world w;
        start_with_lease(&w, 10, 10);
        doorman_time sent = w.now;
        w.now = sent + 16 * SECOND - 1;
        assert_false(has_request(&w));
        double late = (double)(next_request_at(&w) - sent - 16 * SECOND) / (double)(16 * SECOND);
        least = late < least ? late : least;
        most = late > most ? late : most;
        world_stop(&w);
    }
    assert_true(least >= 0 && least < 0.01);
    assert_true(most > 0.04 && most <= 0.05);
}

/* K1 */
TEST(a_change_of_wants_by_a_tenth_or_less_causes_no_request) {
    static const double quiet[] = {110, 90, 100, 101}, loud[] = {110.1, 89.9, 0, 1e15};
    for (size_t i = 0; i < 4; i++) {
        world w;
        doorman_client_resource *resource = start_with_lease(&w, 100, 100);
        w.now += 6 * SECOND;
        set_wants(&w, resource, quiet[i]);
        assert_false(has_request(&w));
        set_wants(&w, resource, loud[i]);
        assert_true(has_request(&w));
        assert_exact(w.request.items[0].wants->wants, loud[i]);
        world_stop(&w);
    }
}

/* K1 */
TEST(changed_wants_wait_for_the_minimum_interval) {
    /* The minimum interval is at most half of the refresh interval. */
    static const doorman_time intervals[] = {16, 6}, minima[] = {5, 3};
    for (size_t i = 0; i < 2; i++) {
        world w = world_start();
        doorman_client_resource *resource = open_resource(&w, "db", 100);
        assert_true(has_request(&w));
        doorman_time sent = w.now;
        doorman_capacity_response item_response = granted_lease(&w, 0, 100);
        item_response.gets.refresh_interval = intervals[i] * SECOND;
        respond_with(&w, item_response);
        w.now += SECOND;
        set_wants(&w, resource, 200);
        assert_int_equal(doorman_upstream_due(w.upstream), sent + minima[i] * SECOND);
        w.now = sent + minima[i] * SECOND - 1;
        assert_false(has_request(&w));
        w.now++;
        assert_true(has_request(&w));
        world_stop(&w);
    }
}

/* K1 */
TEST(wants_that_change_during_a_request_are_sent_next) {
    world w = world_start();
    doorman_client_resource *resource = open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    set_wants(&w, resource, 500);
    grant_one(&w, 100);
    doorman_time sent = w.now;
    assert_int_equal(next_request_at(&w), sent + 5 * SECOND);
    assert_exact(w.request.items[0].wants->wants, 500);
    world_stop(&w);
}

/* K1, R12: new wants are reported even if units in flight still prevent a confirmation. */
TEST(wants_that_change_while_a_gauge_is_above_its_lease_are_sent) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    take_units(&w, resource, 90);
    wait_for_request(&w);
    grant_one(&w, 10);
    assert_true(has_request(&w)); /* "has 90": the client cannot confirm less now */
    grant_one(&w, 10);
    doorman_time sent = w.now;
    w.now += SECOND;
    set_wants(&w, resource, 1000);
    assert_true(next_request_at(&w) <= sent + 6 * SECOND);
    assert_exact(w.request.items[0].wants->wants, 1000);
    world_stop(&w);
}

/* R12 */
TEST(a_smaller_lease_is_confirmed_at_once) {
    world w;
    start_with_lease(&w, 100, 100);
    wait_for_request(&w);
    assert_exact(w.request.items[0].has.capacity, 100);
    grant_one(&w, 60);
    assert_int_equal(doorman_upstream_due(w.upstream), w.now);
    assert_true(has_request(&w));
    assert_exact(w.request.items[0].has.capacity, 60);
    assert_int_equal(w.request.items[0].has.id, w.lease_id);
    grant_one(&w, 60);
    doorman_time sent = w.now;
    assert_true(next_request_at(&w) >= sent + 16 * SECOND);
    world_stop(&w);
}

/* R12 */
TEST(a_larger_or_equal_lease_needs_no_confirmation) {
    for (int more = 0; more < 2; more++) {
        world w;
        start_with_lease(&w, 100, 50);
        wait_for_request(&w);
        grant_one(&w, 50 + more);
        doorman_time sent = w.now;
        assert_true(next_request_at(&w) >= sent + 16 * SECOND);
        world_stop(&w);
    }
}

/* R12 */
TEST(a_failed_confirmation_is_repeated) {
    world w;
    start_with_lease(&w, 100, 100);
    wait_for_request(&w);
    grant_one(&w, 60);
    assert_true(has_request(&w));
    fail_request(&w);
    doorman_time failed = w.now;
    assert_true(next_request_at(&w) <= failed + 2 * SECOND);
    assert_exact(w.request.items[0].has.capacity, 60);
    world_stop(&w);
}

/* R12, R3 */
TEST(a_gauge_above_its_lease_confirms_as_it_falls_at_most_once_a_second) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    take_units(&w, resource, 90);
    wait_for_request(&w);
    assert_exact(w.request.items[0].has.capacity, 100);
    assert_exact(w.request.items[0].outstanding, 90);
    grant_one(&w, 10);
    assert_true(has_request(&w));
    assert_exact(w.request.items[0].has.capacity, 10);
    assert_exact(w.request.items[0].outstanding, 90);
    grant_one(&w, 10);
    doorman_time end = w.now + 10 * SECOND;
    for (; w.now < end; w.now += 100 * MILLISECOND)
        assert_false(has_request(&w)); /* the units in flight stay the same */
    release(resource, 1);
    doorman_time first = next_request_at(&w);
    assert_true(first <= end + SECOND);
    assert_exact(w.request.items[0].outstanding, 89);
    grant_one(&w, 10);
    release(resource, 79);
    assert_int_equal(next_request_at(&w), first + SECOND);
    assert_exact(w.request.items[0].has.capacity, 10);
    grant_one(&w, 10);
    assert_true(next_request_at(&w) >= first + 17 * SECOND);
    world_stop(&w);
}

/* K1: the client sends a request when the first resource is due. While units in flight prevent a
 * confirmation, the confirmation is not due. */
TEST(a_gauge_above_its_lease_does_not_speed_up_other_resources) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    take_units(&w, resource, 90);
    wait_for_request(&w);
    open_resource(&w, "disk", 5);
    grant_one(&w, 10);
    assert_true(has_request(&w)); /* the confirmation, and the new resource */
    assert_int_equal(w.request.item_count, 2);
    doorman_capacity_response item_responses[] = {granted_lease(&w, 0, 10),
                                                  granted_lease(&w, 1, 5)};
    assert_int_equal(reply(&w, item_responses, 2), DOORMAN_OK);
    doorman_time sent = w.now;
    assert_true(next_request_at(&w) >= sent + 16 * SECOND);
    world_stop(&w);
}

/* ---- what to ask ---- */

/* R3, R9 */
TEST(a_request_reports_the_lease_and_its_remaining_time) {
    world w;
    start_with_lease(&w, 100, 80);
    doorman_time sent = w.now;
    wait_for_request(&w);
    const doorman_lease *has = &w.request.items[0].has;
    assert_int_equal(has->id, w.lease_id);
    assert_string_equal(has->node, "root");
    assert_exact(has->capacity, 80);
    assert_int_equal(has->expires_in, sent + 60 * SECOND - w.now);
    world_stop(&w);
}

/* R3 */
TEST(a_lease_that_has_ended_is_not_reported) {
    for (doorman_time early = 0; early < 2; early++) {
        world w;
        start_with_lease(&w, 100, 80);
        w.now += 60 * SECOND - early;
        assert_true(has_request(&w));
        assert_int_equal(w.request.items[0].has.id, early ? w.lease_id : 0);
        world_stop(&w);
    }
}

/* R3 */
TEST(a_holder_that_wants_less_lowers_its_limit_before_it_reports_it) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    set_wants(&w, resource, 30);
    assert_exact(read_now(&w, resource).capacity, 100); /* nothing has been reported yet */
    w.now += 5 * SECOND;
    assert_true(has_request(&w));
    assert_exact(w.request.items[0].has.capacity, 30);
    assert_exact(read_now(&w, resource).capacity, 30);
    assert_int_equal(doorman_client_try(resource, 31, NULL, w.now), DOORMAN_IMPOSSIBLE);
    fail_request(&w);
    set_wants(&w, resource, 100);
    assert_exact(read_now(&w, resource).capacity, 30); /* the reported amount binds */
    world_stop(&w);
}

/* R3 */
TEST(units_in_flight_are_reported_with_any_wants) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    take_units(&w, resource, 70);
    set_wants(&w, resource, 30);
    wait_for_request(&w);
    assert_exact(w.request.items[0].has.capacity, 30);
    assert_exact(w.request.items[0].outstanding, 70);
    assert_exact(read_now(&w, resource).capacity, 30);
    world_stop(&w);
}

/* R3: nothing is committed for units in flight under a lease that has ended. So a new master must
 * not accept a claim to these units. */
TEST(units_in_flight_after_the_lease_has_ended_are_reported_but_not_claimed) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    take_units(&w, resource, 90);
    w.now += 60 * SECOND;
    assert_true(has_request(&w));
    assert_int_equal(w.request.items[0].has.id, 0);
    assert_exact(w.request.items[0].outstanding, 90);
    grant_one(&w, 10);
    wait_for_request(&w);
    assert_exact(w.request.items[0].has.capacity, 10);
    assert_exact(w.request.items[0].outstanding, 90);
    world_stop(&w);
}

/* R3: units in flight above the lease are reported while they are in use, and never claimed as a
 * lease. */
TEST(units_above_the_lease_are_reported_but_not_claimed) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    doorman_time end = w.now + 60 * SECOND;
    take_units(&w, resource, 90);
    wait_for_request(&w);
    grant_one(&w, 10);
    while (w.now < end + 60 * SECOND) {
        wait_for_request(&w);
        assert_exact(w.request.items[0].has.capacity, 10);
        assert_exact(w.request.items[0].outstanding, 90);
        grant_one(&w, 10);
    }
    world_stop(&w);
}

/* K1, V5: a request stays within its bounds. */
TEST(many_resources_are_split_into_several_requests) {
    enum { count = 2500 };
    world w = world_start();
    doorman_client_resource *resources[count];
    for (size_t i = 0; i < count; i++) {
        char id[16];
        snprintf(id, sizeof id, "db/%zu", i);
        resources[i] = open_resource(&w, id, 1);
    }
    static const size_t parts[] = {500, 500, 500, 500, 500};
    for (size_t i = 0; i < 5; i++) {
        assert_true(has_request(&w));
        assert_int_equal(w.request.item_count, parts[i]);
        grant_one(&w, 1);
    }
    assert_false(has_request(&w));
    for (size_t i = 0; i < count; i++) {
        assert_true(read_now(&w, resources[i]).leased);
        doorman_client_close(resources[i], w.now);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_true(has_request(&w));
        assert_int_equal(w.request.item_count, parts[i]);
        respond_to_release(&w);
    }
    assert_false(has_request(&w));
    world_stop(&w);
}

/* K1: each resource is renewed often enough, even if responses are slow and one request cannot
 * contain all resources. */
TEST(every_one_of_many_resources_is_renewed) {
    enum { count = 2500, ROUNDS = 60 };
    static unsigned asked[count];
    memset(asked, 0, sizeof asked);
    world w = world_start();
    for (size_t i = 0; i < count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%zu", i);
        open_resource(&w, id, 1);
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        while (!has_request(&w)) w.now += SECOND;
        for (size_t i = 0; i < w.request.item_count; i++) {
            asked[strtoul(w.request.items[i].resource_id, NULL, 10)]++;
        }
        static doorman_capacity_response item_responses[DOORMAN__ITEMS_MAX];
        for (size_t i = 0; i < w.request.item_count; i++) {
            item_responses[i] = granted_lease(&w, i, 1);
            item_responses[i].gets.refresh_interval = 8 * SECOND;
        }
        w.now += 4 * SECOND;
        assert_int_equal(reply(&w, item_responses, w.request.item_count), DOORMAN_OK);
    }
    for (size_t i = 0; i < count; i++) assert_true(asked[i] >= ROUNDS / 5);
    world_stop(&w);
}

/* ---- failures ---- */

/* K2 */
TEST(retries_back_off_from_one_second_to_one_minute) {
    double least[10], most[10];
    for (size_t i = 0; i < 10; i++) least[i] = 1e9, most[i] = 0;
    for (int round = 0; round < 300; round++) {
        world w = world_start();
        open_resource(&w, "db", 10);
        assert_true(has_request(&w));
        for (size_t i = 0; i < 10; i++) {
            doorman_time failed = w.now;
            fail_request(&w);
            double delay = (double)(next_request_at(&w) - failed) / (double)SECOND;
            least[i] = delay < least[i] ? delay : least[i];
            most[i] = delay > most[i] ? delay : most[i];
        }
        world_stop(&w);
    }
    for (size_t i = 0; i < 10; i++) {
        double bound = i < 5 ? (double)(2 << i) : 60;
        assert_true(least[i] >= 1 && most[i] <= bound);
        assert_true(least[i] < 1 + 0.05 * bound && most[i] > 0.9 * bound); /* full jitter */
    }
}

/* K2 */
TEST(a_response_ends_the_back_off) {
    world w = world_start();
    open_resource(&w, "db", 10);
    for (int i = 0; i < 8; i++) {
        wait_for_request(&w);
        fail_request(&w);
    }
    wait_for_request(&w);
    respond_with(&w, refusal(&w, DOORMAN_TRY_LATER, SECOND));
    wait_for_request(&w);
    doorman_time failed = w.now;
    fail_request(&w);
    assert_true(next_request_at(&w) <= failed + 2 * SECOND);
    world_stop(&w);
}

/* K2. After each failure at least 4 s before the lease ends, three more tries follow before the
 * end. At least 1 s passes between two tries. */
TEST(retries_fit_three_times_before_the_first_lease_ends) {
    for (int round = 0; round < 500; round++) {
        world w = world_start();
        open_resource(&w, "db", 10);
        assert_true(has_request(&w));
        doorman_capacity_response item_response = granted_lease(&w, 0, 10);
        item_response.gets.expires_in = (doorman_time)(5 + random_below(600)) * SECOND;
        item_response.gets.refresh_interval = (doorman_time)(1 + random_below(5)) * SECOND;
        doorman_time end = w.now + item_response.gets.expires_in;
        respond_with(&w, item_response);
        doorman_time tries[4] = {0}; /* the last four tries */
        for (size_t i = 0; w.now < end; i++) {
            assert_true(i < 1000);
            wait_for_request(&w);
            for (size_t k = 0; k < 3; k++) tries[k] = tries[k + 1];
            tries[3] = w.now;
            assert_true(w.now - tries[2] >= SECOND);
            bool in_time = tries[0] && end - tries[0] >= 4 * SECOND;
            assert_true(!in_time || w.now < end);
            fail_request(&w);
        }
        world_stop(&w);
    }
}

/* K2: the lease that ends first bounds the pauses, even if the request is for another resource. */
TEST(a_lease_of_any_resource_speeds_up_the_retries) {
    for (int round = 0; round < 100; round++) {
        world w = world_start();
        open_resource(&w, "short", 10);
        open_resource(&w, "long", 10);
        assert_true(has_request(&w));
        doorman_capacity_response item_responses[] = {granted_lease(&w, 0, 10),
                                                      granted_lease(&w, 1, 10)};
        item_responses[0].gets.expires_in = 20 * SECOND;
        item_responses[1].gets.refresh_interval = SECOND;
        assert_int_equal(reply(&w, item_responses, 2), DOORMAN_OK);
        doorman_time end = w.now + 20 * SECOND;
        int try_count = 0;
        for (; w.now < end && try_count < 100; try_count++) {
            wait_for_request(&w);
            fail_request(&w);
        }
        assert_in_range(try_count, 5, 20); /* the last one may be too late */
        world_stop(&w);
    }
}

/* K2 */
TEST(a_timeout_counts_as_a_failure) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};
    for (doorman_time timeout = 0; timeout < 3; timeout++) {
        const doorman_client_options options = {
            .addresses = addresses, .address_count = 2, .request_timeout = timeout * SECOND};
        world w = world_start_full(options);
        open_resource(&w, "db", 10);
        assert_true(has_request(&w));
        doorman_time until = w.now + (timeout ? timeout : 5) * SECOND;
        const doorman_request unanswered = w.request;
        assert_int_equal(doorman_upstream_due(w.upstream), until);
        w.now = until - 1;
        assert_false(has_request(&w));
        assert_string_equal(doorman__upstream_address(w.upstream), "tcp://a:1");
        w.now = until;
        assert_true(has_request(&w)); /* at the next address, without a pause */
        assert_string_equal(w.request.address, "tcp://b:1");
        const doorman_request next = w.request;
        w.request = unanswered;
        doorman_capacity_response item_response = {.resource_id = "db",
                                                   .gets.refresh_interval = SECOND};
        assert_int_equal(reply(&w, &item_response, 1), DOORMAN_STALE);
        w.request = next;
        fail_request(&w);
        doorman_time retry = next_request_at(&w);
        assert_true(retry >= until + SECOND && retry <= until + 2 * SECOND);
        world_stop(&w);
    }
}

/* K2 */
TEST(addresses_are_tried_in_turn) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};
    world w = world_start_at(addresses, 3);
    open_resource(&w, "db", 10);
    for (size_t i = 0; i < 7; i++) {
        wait_for_request(&w);
        assert_string_equal(doorman__upstream_address(w.upstream), addresses[i % 3]);
        fail_request(&w);
    }
    wait_for_request(&w);
    grant_one(&w, 10);
    wait_for_request(&w);
    assert_string_equal(doorman__upstream_address(w.upstream), "tcp://b:1"); /* it has answered */
    world_stop(&w);
}

/* K2 */
TEST(a_pause_follows_a_round_of_all_addresses) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};
    world w = world_start_at(addresses, 3);
    open_resource(&w, "db", 10);
    for (size_t round = 0; round < 8; round++) {
        doorman_time before = w.now;
        assert_true(next_request_at(&w) >= before + (round > 0 ? SECOND : 0));
        for (size_t i = 0; i < 3; i++) {
            if (i > 0) assert_true(has_request(&w));
            assert_string_equal(w.request.address, addresses[i]);
            fail_request(&w);
        }
        assert_true(doorman_upstream_due(w.upstream) >= w.now + SECOND);
    }
    world_stop(&w);
}

/* K2. A response ends the round too, so the next round has all addresses again. */
TEST(a_response_ends_a_round) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};
    world w = world_start_at(addresses, 2);
    open_resource(&w, "db", 10);
    wait_for_request(&w);
    fail_request(&w);
    assert_true(has_request(&w));
    grant_one(&w, 10);
    wait_for_request(&w);
    assert_string_equal(w.request.address, "tcp://b:1");
    fail_request(&w);
    assert_true(has_request(&w));
    assert_string_equal(w.request.address, "tcp://a:1");
    fail_request(&w);
    assert_true(doorman_upstream_due(w.upstream) >= w.now + SECOND);
    world_stop(&w);
}

/* Opens a resource, gets a lease with this refresh interval, and lets requests fail until the lease
 * has ended and the bound of the pauses does not rise any more. */
static world start_failing(doorman_time refresh_interval) {
    world w = world_start();
    open_resource(&w, "db", 10);
    wait_for_request(&w);
    doorman_capacity_response lease = granted_lease(&w, 0, 10);
    lease.gets.refresh_interval = refresh_interval;
    respond_with(&w, lease);
    wait_for_request(&w);
    respond_with(&w, refusal(&w, DOORMAN_TRY_LATER, SECOND)); /* its interval does not count */
    doorman_time end = w.now + 120 * SECOND;
    for (int i = 0; i < 7 || w.now < end; i++) {
        assert_true(i < 1000);
        wait_for_request(&w);
        fail_request(&w);
    }
    return w;
}

/* K2 */
TEST(pauses_are_at_most_the_refresh_interval) {
    const doorman_time intervals[] = {SECOND / 2, SECOND, 5 * SECOND, 30 * SECOND};
    for (size_t i = 0; i < 4; i++) {
        world w = start_failing(intervals[i]);
        doorman_time bound = intervals[i] > SECOND ? intervals[i] : SECOND;
        doorman_time least = bound, most = 0;
        for (int round = 0; round < 300; round++) {
            doorman_time failed = w.now;
            doorman_time pause = next_request_at(&w) - failed;
            least = pause < least ? pause : least;
            most = pause > most ? pause : most;
            fail_request(&w);
        }
        assert_true(least >= SECOND && most <= bound);
        assert_true(least <= SECOND + bound / 20 && most >= bound - bound / 20); /* full jitter */
        world_stop(&w);
    }
}

/* R2 */
TEST(only_the_request_in_progress_can_fail) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};
    world w = world_start_at(addresses, 2);
    open_resource(&w, "db", 10);
    assert_true(has_request(&w));
    doorman_upstream_failed(w.upstream, w.request.sequence - 1, w.now);
    doorman_upstream_failed(w.upstream, w.request.sequence + 1, w.now);
    assert_string_equal(doorman__upstream_address(w.upstream), "tcp://a:1");
    grant_one(&w, 10);
    fail_request(&w);
    assert_string_equal(doorman__upstream_address(w.upstream), "tcp://a:1");
    world_stop(&w);
}

/* K7, C1: if the clock goes back, time stands still. */
TEST(a_clock_that_goes_back_stands_still) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 10, 10);
    doorman_time sent = w.now;
    wait_for_request(&w);
    w.now = sent;
    grant_one(&w, 10);
    assert_true(read_now(&w, resource).expires_at >= sent + 76 * SECOND);
    open_resource(&w, "disk", 1);
    assert_true(has_request(&w));
    assert_int_equal(w.request.item_count, 1);
    world_stop(&w);
}

/* ---- redirects ---- */

/* K3 */
TEST(a_redirect_is_followed_at_once) {
    world w = world_start();
    open_resource(&w, "db", 10);
    assert_true(has_request(&w));
    assert_int_equal(redirect(&w, "tcp://master:1"), DOORMAN_OK);
    assert_int_equal(doorman_upstream_due(w.upstream), w.now);
    assert_string_equal(doorman__upstream_address(w.upstream), "tcp://master:1");
    assert_true(has_request(&w));
    grant_one(&w, 10);
    wait_for_request(&w);
    assert_string_equal(doorman__upstream_address(w.upstream),
                        "tcp://master:1"); /* it has answered */
    fail_request(&w);
    assert_string_equal(doorman__upstream_address(w.upstream), "tcp://a:1");
    world_stop(&w);
}

/* K3. The client of the original Doorman follows redirects without a bound. */
TEST(five_redirects_are_followed_and_the_sixth_is_a_failure) {
    world w = world_start();
    open_resource(&w, "db", 10);
    for (int round = 0; round < 20; round++) {
        wait_for_request(&w);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(redirect(&w, i % 2 ? "tcp://a:1" : "tcp://b:1"), DOORMAN_OK);
            assert_true(has_request(&w));
        }
        assert_int_equal(redirect(&w, "tcp://b:1"), DOORMAN_OK);
        assert_true(doorman_upstream_due(w.upstream) >= w.now + SECOND);
        assert_string_equal(doorman__upstream_address(w.upstream), "tcp://a:1");
    }
    world_stop(&w);
}

/* K3 */
TEST(a_response_resets_the_count_of_redirects) {
    world w = world_start();
    open_resource(&w, "db", 10);
    for (int i = 0; i < 20; i++) {
        wait_for_request(&w);
        assert_int_equal(redirect(&w, i % 2 ? "tcp://a:1" : "tcp://b:1"), DOORMAN_OK);
        assert_true(has_request(&w));
        grant_one(&w, 10);
    }
    world_stop(&w);
}

/* K3 */
TEST(no_redirect_is_followed_from_tls_to_plain_text) {
    static const struct {
        const char *from, *to;
        bool followed;
    } cases[] = {{"tls+tcp://a:1", "tcp://b:1", false},
                 {"tls+tcp://a:1", "ws://b:1", false},
                 {"wss://a:1", "tcp://b:1", false},
                 {"tls+tcp://a:1", "ipc:///b", false},
                 {"tls+tcp://a:1", "tls+tcp://b:1", true},
                 {"tls+tcp://a:1", "wss://b:1", true},
                 {"tcp://a:1", "tls+tcp://b:1", true},
                 {"tcp://a:1", "tcp://b:1", true},
                 {"wss4://a:1", "ws4://b:1", false},
                 {"TLS+TCP://a:1", "tcp://b:1", false},
                 {"wss://a:1", "wss6://b:1", true},
                 {"wss://a:1", "b", false},
                 {"a:1", "tls", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w = world_start_at(&cases[i].from, 1);
        open_resource(&w, "db", 10);
        assert_true(has_request(&w));
        assert_int_equal(redirect(&w, cases[i].to), DOORMAN_OK);
        assert_string_equal(doorman__upstream_address(w.upstream),
                            cases[i].followed ? cases[i].to : cases[i].from);
        assert_int_equal(has_request(&w), cases[i].followed);
        world_stop(&w);
    }
}

/* K3: the client does not follow a redirect to plain text after a redirect to TLS. */
TEST(after_a_redirect_to_tls_none_to_plain_text_is_followed) {
    world w = world_start();
    open_resource(&w, "db", 10);
    assert_true(has_request(&w));
    assert_int_equal(redirect(&w, "tls+tcp://b:1"), DOORMAN_OK);
    assert_true(has_request(&w));
    assert_int_equal(redirect(&w, "tcp://c:1"), DOORMAN_OK);
    assert_false(has_request(&w));
    world_stop(&w);
}

/* K2, K3 */
TEST(an_unknown_master_is_a_failure) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1"};
    char too_long[DOORMAN_ID_BYTES_MAX + 2] = {0};
    memset(too_long, 'x', sizeof too_long - 1);
    const char *const unusable[] = {NULL, "", "tcp://a\n:1", too_long};
    for (size_t i = 0; i < 4; i++) {
        world w = world_start_at(addresses, 2);
        open_resource(&w, "db", 10);
        assert_true(has_request(&w));
        assert_int_equal(redirect(&w, unusable[i]), DOORMAN_OK);
        assert_true(has_request(&w));
        assert_string_equal(w.request.address, "tcp://b:1");
        assert_int_equal(redirect(&w, unusable[i]), DOORMAN_OK);
        assert_true(doorman_upstream_due(w.upstream) >= w.now + SECOND);
        world_stop(&w);
    }
}

/* K2: an election does not take long, so the client retries after 1 to 4 s. */
TEST(an_unknown_master_is_retried_within_four_seconds) {
    world w = world_start();
    open_resource(&w, "db", 10);
    wait_for_request(&w);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(redirect(&w, NULL), DOORMAN_OK);
        doorman_time learned_at = w.now;
        wait_for_request(&w);
        assert_true(w.now - learned_at >= SECOND && w.now - learned_at <= 4 * SECOND);
    }
    world_stop(&w);
}

/* K2: the pause is 1 to 4 s if one server of a round knows no master, and all others fail. */
TEST(an_unknown_master_beside_dead_servers_is_retried_within_four_seconds) {
    static const char *const addresses[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};
    for (int alive = 0; alive < 3; alive++) {
        world w = world_start_at(addresses, 3);
        open_resource(&w, "db", 10);
        wait_for_request(&w);
        for (int round = 0; round < 50; round++) {
            for (int i = 0; i < 3; i++) {
                if (i > 0) assert_true(has_request(&w));
                if (i == alive) redirect(&w, NULL);
                if (i != alive) fail_request(&w);
            }
            doorman_time failed = w.now;
            wait_for_request(&w);
            assert_true(w.now - failed >= SECOND && w.now - failed <= 4 * SECOND);
        }
        world_stop(&w);
    }
}

/* ---- answers ---- */

/* R2 */
TEST(only_the_last_request_accepts_a_response_and_only_once) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 10);
    wait_for_request(&w);
    const doorman_request older = w.request;
    fail_request(&w);
    wait_for_request(&w);
    const doorman_request newer = w.request;
    assert_true(newer.sequence > older.sequence);
    doorman_capacity_response late = granted_lease(&w, 0, 99), now = granted_lease(&w, 0, 20);
    w.request = older;
    assert_int_equal(reply(&w, &late, 1), DOORMAN_STALE);
    assert_exact(read_now(&w, resource).capacity, 10);
    w.request = newer;
    assert_int_equal(reply(&w, &now, 1), DOORMAN_OK);
    assert_int_equal(reply(&w, &late, 1), DOORMAN_STALE);
    assert_exact(read_now(&w, resource).capacity, 20);
    w.request.sequence = 0;
    assert_int_equal(reply(&w, &late, 1), DOORMAN_STALE);
    world_stop(&w);
}

/* R2: the response comes just before, at, and just after the end of the lease that the request
 * reported. */
TEST(a_response_after_the_reported_lease_has_ended_is_dropped) {
    for (doorman_time late = -1; late <= 1; late++) {
        world w;
        doorman_client_resource *resource = start_with_lease(&w, 100, 10);
        doorman_time end = w.now + 60 * SECOND;
        w.now = end - SECOND;
        assert_true(has_request(&w));
        assert_int_equal(w.request.items[0].has.id, w.lease_id);
        w.now = end + late;
        grant_one(&w, 20);
        assert_int_equal(read_now(&w, resource).leased, late < 0);
        assert_int_equal(has_request(&w), late >= 0);
        if (late >= 0) assert_int_equal(w.request.items[0].has.id, 0);
        world_stop(&w);
    }
}

/* R2: a request that reported no lease can be answered until it times out. */
TEST(a_late_response_to_a_request_without_a_lease_is_accepted) {
    world w = world_start();
    doorman_client_resource *resource = open_resource(&w, "db", 10);
    assert_true(has_request(&w));
    w.now += 4 * SECOND;
    grant_one(&w, 10);
    assert_true(read_now(&w, resource).leased);
    world_stop(&w);
}

static void wrong_resource(doorman_capacity_response *a) { a->resource_id = "elsewhere"; }
static void no_resource(doorman_capacity_response *a) { a->resource_id = NULL; }
static void wrong_reason(doorman_capacity_response *a) {
    a->gets.reason = (doorman_lease_reason)(DOORMAN_LEASE_LEARNING + 1);
}
static void low_reason(doorman_capacity_response *a) { a->gets.reason = (doorman_lease_reason)1; }
static void wrong_outcome(doorman_capacity_response *a) {
    a->outcome = (doorman_outcome)(DOORMAN_FULL + 1);
}
static void id_zero(doorman_capacity_response *a) { a->gets.id = 0; }
static void id_large(doorman_capacity_response *a) { a->gets.id = (UINT64_C(1) << 53) + 1; }
static void no_node(doorman_capacity_response *a) { a->gets.node = NULL; }
static void empty_node(doorman_capacity_response *a) { a->gets.node = ""; }
static void control_node(doorman_capacity_response *a) { a->gets.node = "a\tb"; }
static void negative(doorman_capacity_response *a) { a->gets.capacity = -1; }
static void not_a_number(doorman_capacity_response *a) { a->gets.capacity = (double)NAN; }
static void infinite(doorman_capacity_response *a) { a->gets.capacity = (double)INFINITY; }
static void too_much(doorman_capacity_response *a) { a->gets.capacity = 1.1e15; }
static void committed_not_a_number(doorman_capacity_response *a) {
    a->gets.committed = (double)NAN;
}
static void past_end(doorman_capacity_response *a) { a->gets.expires_in = -1; }
static void endless(doorman_capacity_response *a) { a->gets.expires_in = DOORMAN_NEVER; }
static void refresh_zero(doorman_capacity_response *a) { a->gets.refresh_interval = 0; }
static void refresh_negative(doorman_capacity_response *a) { a->gets.refresh_interval = -SECOND; }
static void refresh_never(doorman_capacity_response *a) {
    a->gets.refresh_interval = DOORMAN_NEVER;
}
static void wrong_safe_capacity(doorman_capacity_response *a) {
    a->has_safe_capacity = true;
    a->safe_capacity = -2;
}
static void nan_safe_capacity(doorman_capacity_response *a) {
    a->has_safe_capacity = true;
    a->safe_capacity = (double)NAN;
}
static void refused_without_refresh(doorman_capacity_response *a) {
    a->outcome = DOORMAN_TRY_LATER;
    a->gets.refresh_interval = 0;
}

/* C5: responds with two items. `spoil` makes the second one invalid, so the first one is not
 * accepted either. */
static void try_invalid_response(void (*spoil)(doorman_capacity_response *)) {
    world w = world_start();
    doorman_client_resource *db = open_resource(&w, "db", 100),
                            *disk = open_resource(&w, "disk", 5);
    assert_true(has_request(&w));
    grant_one(&w, 5);
    wait_for_request(&w);
    doorman_resource_info before = read_now(&w, db);
    w.change_count = 0;
    doorman_capacity_response item_responses[] = {granted_lease(&w, 0, 50),
                                                  granted_lease(&w, 1, 3)};
    spoil(&item_responses[1]);
    assert_int_equal(reply(&w, item_responses, 2), DOORMAN_INVALID_ARGUMENT);
    assert_exact(read_now(&w, db).capacity, 5);
    assert_int_equal(read_now(&w, db).expires_at, before.expires_at);
    assert_exact(read_now(&w, disk).capacity, 5);
    assert_int_equal(w.change_count, 0);
    assert_true(doorman_upstream_due(w.upstream) >= w.now + SECOND); /* it counts as a failure */
    wait_for_request(&w);
    size_t at = strcmp(w.request.items[0].resource_id, "db") == 0 ? 0 : 1;
    uint64_t id = w.request.items[at].has.id; /* one of the two earlier leases */
    assert_true(id == w.lease_id - 3 || id == w.lease_id - 2);
    world_stop(&w);
}

TEST(an_invalid_response_changes_nothing) {
    static void (*const spoils[])(doorman_capacity_response *) = {wrong_resource,
                                                                  no_resource,
                                                                  wrong_reason,
                                                                  low_reason,
                                                                  wrong_outcome,
                                                                  id_zero,
                                                                  id_large,
                                                                  no_node,
                                                                  empty_node,
                                                                  control_node,
                                                                  negative,
                                                                  not_a_number,
                                                                  infinite,
                                                                  too_much,
                                                                  committed_not_a_number,
                                                                  past_end,
                                                                  endless,
                                                                  refresh_zero,
                                                                  refresh_negative,
                                                                  refresh_never,
                                                                  wrong_safe_capacity,
                                                                  nan_safe_capacity,
                                                                  refused_without_refresh};
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) try_invalid_response(spoils[i]);
}

/* C5 */
TEST(a_response_that_does_not_match_its_request_is_invalid) {
    for (size_t count = 0; count <= 3; count++) {
        world w = world_start();
        doorman_client_resource *db = open_resource(&w, "db", 100);
        open_resource(&w, "disk", 5);
        assert_true(has_request(&w));
        doorman_capacity_response swapped[] = {granted_lease(&w, 1, 5), granted_lease(&w, 0, 5),
                                               granted_lease(&w, 0, 5)};
        assert_int_equal(reply(&w, swapped, count), DOORMAN_INVALID_ARGUMENT); /* 2: wrong order */
        assert_false(read_now(&w, db).leased);
        assert_false(has_request(&w));
        world_stop(&w);
    }
}

/* C5 */
TEST(a_response_to_another_method_is_invalid) {
    static const doorman_method methods[] = {DOORMAN_DISCOVERY, DOORMAN_RELEASE_CAPACITY};
    for (size_t i = 0; i < 2; i++) {
        world w = world_start();
        doorman_client_resource *db = open_resource(&w, "db", 100);
        assert_true(has_request(&w));
        doorman_capacity_response item_response = granted_lease(&w, 0, 5);
        w.request.method = methods[i];
        assert_int_equal(reply(&w, &item_response, 1), DOORMAN_INVALID_ARGUMENT);
        assert_false(read_now(&w, db).leased);
        world_stop(&w);
    }
}

/* C5: values exactly at the bounds are accepted. */
TEST(response_values_at_their_bounds_are_accepted) {
    world w = world_start();
    doorman_client_resource *db = open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    doorman_capacity_response item_response = granted_lease(&w, 0, DOORMAN_AMOUNT_MAX);
    item_response.gets.id = UINT64_C(1) << 53;
    item_response.gets.expires_in = item_response.gets.refresh_interval = DOORMAN_DURATION_MAX;
    item_response.has_safe_capacity = true;
    item_response.safe_capacity = DOORMAN_UNLIMITED;
    respond_with(&w, item_response);
    assert_exact(read_now(&w, db).capacity, DOORMAN_AMOUNT_MAX);
    assert_true(doorman_upstream_due(w.upstream) >= w.now + DOORMAN_DURATION_MAX / 2);
    world_stop(&w);
}

/* K1: a lease is renewed before it ends, whatever interval the server names. */
TEST(a_lease_is_renewed_before_it_ends) {
    world w = world_start();
    open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    doorman_capacity_response item_response = granted_lease(&w, 0, 5);
    item_response.gets.refresh_interval = DOORMAN_DURATION_MAX;
    respond_with(&w, item_response);
    assert_true(next_request_at(&w) < w.now + 60 * SECOND);
    world_stop(&w);
}

/* R9, S8 */
TEST(a_lease_starts_when_its_request_is_sent) {
    world w = world_start();
    doorman_client_resource *db = open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    doorman_time sent = w.now;
    w.now += 4 * SECOND;
    grant_one(&w, 100);
    assert_int_equal(read_now(&w, db).expires_at, sent + 60 * SECOND);
    world_stop(&w);
}

/* K1: after a response the client waits for a whole refresh interval, so the server's minimum
 * interval has passed too. But a slow response delays the renewal by at most half an interval,
 * because otherwise the lease could end first. */
TEST(a_refresh_interval_starts_at_the_response) {
    static const doorman_time intervals[] = {16, 6}, starts[] = {4, 3};
    for (size_t i = 0; i < 2; i++) {
        world w = world_start();
        open_resource(&w, "db", 100);
        assert_true(has_request(&w));
        doorman_time sent = w.now;
        w.now += 4 * SECOND;
        doorman_capacity_response item_response = granted_lease(&w, 0, 100);
        item_response.gets.refresh_interval = intervals[i] * SECOND;
        respond_with(&w, item_response);
        doorman_time least = sent + (starts[i] + intervals[i]) * SECOND, next = next_request_at(&w);
        assert_true(next >= least && next <= least + intervals[i] * SECOND / 20);
        world_stop(&w);
    }
}

/* R9 */
TEST(the_end_of_a_lease_never_moves_back) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 100);
    doorman_time end = w.now + 60 * SECOND;
    wait_for_request(&w);
    doorman_capacity_response shorter = granted_lease(&w, 0, 80);
    shorter.gets.expires_in = 20 * SECOND;
    respond_with(&w, shorter);
    assert_int_equal(read_now(&w, resource).expires_at, end);
    assert_exact(read_now(&w, resource).capacity, 80);
    world_stop(&w);
}

/* S4, K4: a holder that is refused keeps its lease, and the outcome is reported. */
TEST(a_refused_holder_keeps_its_lease_and_learns_why) {
    static const doorman_outcome grants[] = {DOORMAN_TRY_LATER, DOORMAN_UNMATCHED, DOORMAN_FULL};
    for (size_t i = 0; i < 3; i++) {
        world w;
        doorman_client_resource *resource = start_with_lease(&w, 100, 40);
        doorman_time end = w.now + 60 * SECOND;
        wait_for_request(&w);
        w.change_count = 0;
        respond_with(&w, refusal(&w, grants[i], 3 * SECOND));
        doorman_resource_info info = read_now(&w, resource);
        assert_true(info.leased && info.has_outcome);
        assert_exact(info.capacity, 40);
        assert_int_equal(info.expires_at, end);
        assert_int_equal(info.outcome, grants[i]);
        assert_int_equal(w.change_count, 1);
        doorman_time sent = w.now, next = next_request_at(&w);
        assert_true(next >= sent + 3 * SECOND && next <= sent + 3150 * MILLISECOND);
        assert_int_equal(w.request.items[0].has.id, w.lease_id); /* the last accepted lease */
        world_stop(&w);
    }
}

/* ---- releases ---- */

/* R10 */
TEST(a_release_names_the_newest_lease) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    wait_for_request(&w);
    grant_one(&w, 50);
    doorman_client_close(resource, w.now);
    assert_int_equal(doorman_upstream_due(w.upstream), w.now);
    assert_true(has_request(&w));
    assert_int_equal(w.request.method, DOORMAN_RELEASE_CAPACITY);
    assert_string_equal(w.request.holder_id, "client");
    assert_int_equal(w.request.item_count, 1);
    assert_string_equal(w.request.items[0].resource_id, "db");
    assert_int_equal(w.request.items[0].has.id, w.lease_id);
    respond_to_release(&w);
    assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
    world_stop(&w);
}

/* R10: a release is sent once, and never repeated to a new master. */
TEST(a_release_is_sent_once) {
    enum { FAILS, TIMES_OUT, REDIRECTED, WAYS };
    for (int way = 0; way < WAYS; way++) {
        world w;
        doorman_client_resource *resource = start_with_lease(&w, 100, 40);
        doorman_client_close(resource, w.now);
        assert_true(has_request(&w));
        if (way == FAILS) fail_request(&w);
        if (way == TIMES_OUT) w.now += 5 * SECOND;
        if (way == REDIRECTED) assert_int_equal(redirect(&w, "tcp://master:1"), DOORMAN_OK);
        assert_false(has_request(&w));
        assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
        world_stop(&w);
    }
}

/* C5, R10 */
TEST(a_response_to_a_release_grants_no_lease) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    assert_true(has_request(&w));
    resource = open_resource(&w, "db", 100);
    const doorman_capacity_response item_responses[] = {granted_lease(&w, 0, 7),
                                                        granted_lease(&w, 0, 7)};
    (void)reply(&w, item_responses, 2);
    assert_false(read_now(&w, resource).leased);
    world_stop(&w);
}

TEST(a_resource_without_a_lease_is_closed_without_a_request) {
    world w = world_start();
    doorman_client_close(open_resource(&w, "db", 100), w.now);
    assert_false(has_request(&w));
    assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
    world_stop(&w);
}

/* R10 */
TEST(a_close_during_a_request_releases_the_lease_of_its_response) {
    world w = world_start();
    doorman_client_resource *resource = open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    doorman_client_close(resource, w.now);
    w.change_count = 0;
    grant_one(&w, 100);
    assert_int_equal(w.change_count, 0); /* a closed resource gets no callback */
    assert_true(has_request(&w));
    assert_int_equal(w.request.method, DOORMAN_RELEASE_CAPACITY);
    assert_int_equal(w.request.items[0].has.id, w.lease_id);
    respond_to_release(&w);
    assert_false(has_request(&w));
    world_stop(&w);
}

TEST(a_close_during_a_request_that_grants_nothing_sends_no_release) {
    for (int refused = 0; refused < 2; refused++) {
        world w = world_start();
        doorman_client_resource *resource = open_resource(&w, "db", 100);
        assert_true(has_request(&w));
        doorman_client_close(resource, w.now);
        if (refused) respond_with(&w, refusal(&w, DOORMAN_TRY_LATER, SECOND));
        if (!refused) fail_request(&w);
        assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
        world_stop(&w);
    }
}

TEST(a_resource_reopened_before_its_release_keeps_its_lease) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    resource = open_resource(&w, "db", 100);
    assert_exact(read_now(&w, resource).capacity, 40);
    assert_true(has_request(&w));
    assert_int_equal(w.request.method, DOORMAN_GET_CAPACITY);
    assert_int_equal(w.request.items[0].has.id, w.lease_id);
    world_stop(&w);
}

/* A close and a reopening during a request have no effect, and the response is accepted. */
TEST(a_resource_reopened_during_a_request_takes_its_response) {
    world w = world_start();
    doorman_client_resource *resource = open_resource(&w, "db", 100);
    assert_true(has_request(&w));
    doorman__held_lease *held = w.upstream->first;
    assert_int_equal(held->state, DOORMAN__HELD_REQUESTED);
    doorman_client_close(resource, w.now);
    assert_int_equal(held->state, DOORMAN__HELD_ABANDONED);
    resource = open_resource(&w, "db", 100);
    assert_int_equal(held->state, DOORMAN__HELD_REQUESTED);
    grant_one(&w, 70);
    assert_int_equal(held->state, DOORMAN__HELD_IDLE);
    assert_exact(read_now(&w, resource).capacity, 70);
    assert_false(has_request(&w));
    world_stop(&w);
}

/* R10. The client of the original Doorman has a race between a release and later requests. */
TEST(a_resource_reopened_during_its_release_is_requested_again) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    assert_true(has_request(&w));
    resource = open_resource(&w, "db", 100);
    assert_false(read_now(&w, resource).leased);
    respond_to_release(&w);
    assert_true(has_request(&w));
    assert_int_equal(w.request.method, DOORMAN_GET_CAPACITY);
    assert_int_equal(w.request.items[0].has.id, 0);
    grant_one(&w, 70);
    assert_exact(read_now(&w, resource).capacity, 70);
    world_stop(&w);
}

/* R9, S8: the server has no entry for a released lease. So a new lease may end earlier. */
TEST(a_lease_after_a_release_can_end_earlier_than_the_released_one) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    assert_true(has_request(&w));
    resource = open_resource(&w, "db", 100);
    respond_to_release(&w);
    assert_true(has_request(&w));
    doorman_capacity_response shorter = granted_lease(&w, 0, 40);
    shorter.gets.expires_in = 20 * SECOND;
    respond_with(&w, shorter);
    assert_int_equal(read_now(&w, resource).expires_at, w.now + 20 * SECOND);
    world_stop(&w);
}

TEST(a_resource_reopened_and_closed_during_its_release_is_removed) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    assert_true(has_request(&w));
    doorman_client_close(open_resource(&w, "db", 100), w.now);
    respond_to_release(&w);
    assert_false(has_request(&w));
    assert_int_equal(doorman_upstream_due(w.upstream), DOORMAN_NEVER);
    world_stop(&w);
}

TEST(a_resource_reopened_after_its_release_is_a_new_one) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    doorman_client_close(resource, w.now);
    assert_true(has_request(&w));
    respond_to_release(&w);
    resource = open_resource(&w, "db", 100);
    assert_false(read_now(&w, resource).has_outcome);
    assert_true(has_request(&w));
    assert_int_equal(w.request.items[0].has.id, 0);
    world_stop(&w);
}

/* R10: units in flight are still in use. So their lease is not released, and lasts until its
 * end. */
TEST(a_close_with_units_in_flight_releases_nothing) {
    for (int under_way = 0; under_way < 2; under_way++) {
        world w;
        doorman_client_resource *resource = start_with_lease(&w, 100, 40);
        doorman_time end = w.now + 60 * SECOND;
        take_units(&w, resource, 1);
        if (under_way) wait_for_request(&w);
        doorman_client_close(resource, w.now);
        if (under_way) respond_with(&w, refusal(&w, DOORMAN_TRY_LATER, SECOND));
        while (doorman_upstream_due(w.upstream) != DOORMAN_NEVER) {
            w.now = doorman__later(w.now, doorman_upstream_due(w.upstream));
            assert_true(w.now <= end);
            assert_false(has_request(&w));
        }
        world_stop(&w);
    }
}

/* R3 */
TEST(units_in_flight_survive_close_and_reopen) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    take_units(&w, resource, 30);
    doorman_client_close(resource, w.now);
    resource = open_resource(&w, "db", 100);
    assert_exact(read_now(&w, resource).in_use, 30);
    assert_true(has_request(&w));
    assert_exact(w.request.items[0].outstanding, 30);
    assert_int_equal(w.request.items[0].has.id, w.lease_id);
    world_stop(&w);
}

/* K2: a release waits for the back-off like any other request, and is dropped when its lease
 * ends. */
TEST(releases_to_a_failing_server_back_off) {
    world w;
    doorman_client_resource *resource = start_with_lease(&w, 100, 40);
    wait_for_request(&w);
    fail_request(&w);
    doorman_client_close(resource, w.now);
    assert_false(has_request(&w));
    doorman_time failed = w.now;
    assert_true(next_request_at(&w) >= failed + SECOND);
    assert_int_equal(w.request.method, DOORMAN_RELEASE_CAPACITY);
    world_stop(&w);
}

/* C3: a client can be destroyed in any state; world_stop checks for leaks. */
TEST(a_client_can_be_destroyed_in_any_state) {
    enum { IDLE, REQUESTED, HOLDING, RELEASING, MOMENTS };
    for (int moment = 0; moment < MOMENTS; moment++) {
        world w = world_start();
        doorman_client_resource *resource = open_resource(&w, "db", 100);
        open_resource(&w, "disk", 100);
        if (moment >= REQUESTED) assert_true(has_request(&w));
        if (moment >= HOLDING) grant_one(&w, 10);
        if (moment == RELEASING) doorman_client_close(resource, w.now);
        if (moment == RELEASING) assert_true(has_request(&w));
        world_stop(&w);
    }
}

/* C1: the same calls with the same seed make the same requests at the same times. */
TEST(the_same_seed_makes_the_same_requests) {
    doorman_time times[2][30];
    const doorman_client_options options = {
        .addresses = one_address, .address_count = 1, .seed = random_bits()};
    for (size_t run = 0; run < 2; run++) {
        world w = world_start_full(options);
        open_resource(&w, "db", 100);
        for (size_t i = 0; i < 30; i++) {
            wait_for_request(&w);
            times[run][i] = w.now;
            if (i % 3) fail_request(&w);
            if (i % 3 == 0) grant_one(&w, 40);
        }
        world_stop(&w);
    }
    assert_memory_equal(times[0], times[1], sizeof times[0]);
}

TEST(every_method_has_its_wire_name) {
    assert_string_equal(doorman_method_name(DOORMAN_DISCOVERY, false), "discovery");
    assert_string_equal(doorman_method_name(DOORMAN_DISCOVERY, true), "discovery");
    assert_string_equal(doorman_method_name(DOORMAN_GET_CAPACITY, false), "get_capacity");
    assert_string_equal(doorman_method_name(DOORMAN_GET_CAPACITY, true), "get_server_capacity");
    assert_string_equal(doorman_method_name(DOORMAN_RELEASE_CAPACITY, false), "release_capacity");
    assert_string_equal(doorman_method_name(DOORMAN_METHOD_COUNT, true), "?");
    assert_string_equal(doorman_method_name((doorman_method)-1, false), "?");
    assert_string_equal(doorman_lease_reason_name((doorman_lease_reason)0), "");
    assert_string_equal(doorman_lease_reason_name(DOORMAN_LEASE_SHARE), "SHARE");
    assert_string_equal(doorman_lease_reason_name(DOORMAN_LEASE_CUT), "CUT");
    assert_string_equal(doorman_lease_reason_name(DOORMAN_LEASE_RESERVED), "RESERVED");
    assert_string_equal(doorman_lease_reason_name(DOORMAN_LEASE_LEARNING), "LEARNING");
    const int unknown[] = {-1, 1, DOORMAN_LEASE_SHARE - 1, DOORMAN_LEASE_LEARNING + 1};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_string_equal(doorman_lease_reason_name((doorman_lease_reason)unknown[i]), "?");
    }
}
