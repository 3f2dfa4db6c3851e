/* Tests section >>server of doorman.h: a node that answers requests. The comment that opens the
 * section defines the rules. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND

/* ---- a node whose time is a variable, and holders whose claims the test chooses ---- */

typedef struct world {
    doorman_config *config;
    doorman_server *server;
    doorman_time now;
    size_t events[DOORMAN_EVENT_COUNT];
    char holder_id[16]; /* the holder of the last event */
    doorman_error error;
} world;

static void record_event(void *context, const doorman_event *event) {
    world *w = context;
    w->events[event->kind]++;
    snprintf(w->holder_id, sizeof w->holder_id, "%s", event->holder_id);
}

/* Makes a configuration of one template for every resource. By default leases last 60 s and the
 * refresh interval is 16 s. */
static doorman_config *config_of(double capacity, const doorman_algorithm *algorithm) {
    doorman_template all = {.identifier_glob = "*", .capacity = capacity, .has_algorithm = true};
    if (algorithm) all.algorithm = *algorithm;
    doorman_config *config = NULL;
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    return config;
}

static void become_master(world *w) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
}

static world *world_start_full(double capacity, const doorman_algorithm *algorithm,
                               doorman_server_options options) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->config = config_of(capacity, algorithm);
    w->now = 1000 * SECOND;
    options.node = "root";
    options.config = w->config;
    options.seed[0] = 7;
    options.on_event = record_event;
    options.context = w;
    assert_int_equal(doorman_server_create(&w->server, &options, &w->error, w->now), DOORMAN_OK);
    become_master(w);
    return w;
}

/* Starts a node. If `algorithm` is NULL, the node does not learn. */
static world *world_start(double capacity, const doorman_algorithm *algorithm) {
    doorman_algorithm quick = {.has_learning_mode_duration = true};
    const doorman_server_options options = {.node = NULL};
    return world_start_full(capacity, algorithm ? algorithm : &quick, options);
}

static void world_stop(world *w) {
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    free(w);
}

static doorman_time due_of(const world *w) {
    return doorman_upstream_due(doorman_server_upstream(w->server));
}

/* Lets the server do the work that is due. A root never has a request for a parent. */
static void work(world *w) {
    doorman_request request;
    assert_false(doorman_upstream_request(doorman_server_upstream(w->server), &request, w->now));
    assert_int_equal(request.sequence, 0);
}

static void reload(world *w, doorman_config *config) {
    assert_int_equal(doorman_server_configure(w->server, config, w->now), DOORMAN_OK);
    doorman_config_destroy(w->config);
    w->config = config;
}

typedef struct holder {
    const char *id;
    double wants;
    doorman_lease has;
    double outstanding;
    int priority;
    bool is_server;
    char node[16];
} holder;

static doorman_status request_resource(world *w, const char *resource_id, const holder *h,
                                       doorman_capacity_response *item_response) {
    const doorman_demand demand = {h->wants, 1, h->priority};
    doorman_capacity_request item_request = {.resource_id = resource_id,
                                             .has = h->has,
                                             .outstanding = h->outstanding,
                                             .wants = &demand,
                                             .wants_count = 1};
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = h->is_server,
                                     .holder_id = h->id,
                                     .items = &item_request,
                                     .item_count = 1};
    doorman_response response;
    doorman_status status =
        doorman_server_handle(w->server, &request, &response, &w->error, w->now);
    if (status == DOORMAN_OK && response.item_count) *item_response = response.items[0];
    return status;
}

/* A holder sends a request, and stores the lease that it gets. */
static doorman_capacity_response request(world *w, holder *h) {
    doorman_capacity_response item_response = {.resource_id = NULL};
    assert_int_equal(request_resource(w, "db", h, &item_response), DOORMAN_OK);
    if (item_response.outcome == DOORMAN_GRANTED && item_response.gets.id) {
        h->has = item_response.gets;
        snprintf(h->node, sizeof h->node, "%s", item_response.gets.node);
        h->has.node = h->node;
    }
    return item_response;
}

static double request_capacity(world *w, holder *h) { return request(w, h).gets.capacity; }

static void release(world *w, const holder *h, uint64_t id) {
    const doorman_capacity_request asked = {.resource_id = "db", .has.id = id};
    const doorman_request request = {
        .method = DOORMAN_RELEASE_CAPACITY, .holder_id = h->id, .items = &asked, .item_count = 1};
    doorman_response response;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                     DOORMAN_OK);
}

/* Returns what the node shows of "db". Returns zeros if the node does not know "db". */
static doorman_server_resource read_resource(world *w) {
    doorman_server_resource resource = {.resource_id = NULL};
    (void)doorman_server_find(w->server, "db", &resource, w->now);
    return resource;
}

static size_t count_resources(world *w, size_t *holders) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    size_t count = 0;
    *holders = 0;
    for (; doorman_server_next_resource(w->server, &cursor, &resource, w->now); count++) {
        *holders += resource.holder_count;
    }
    return count;
}

/* ---- tests ---- */

/* S5 */
TEST(new_holders_get_a_share_of_the_capacity) {
    world *w = world_start(120, NULL);
    holder a = {.id = "a", .wants = 1000}, b = {.id = "b", .wants = 50},
           c = {.id = "c", .wants = 10};
    assert_about(request_capacity(w, &a), 120);
    /* Nothing is free. Holder a keeps its lease until it confirms a smaller lease. */
    assert_about(request_capacity(w, &b), 0);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 70);
    w->now += SECOND;
    assert_about(request_capacity(w, &b), 0); /* holder a may not have its smaller lease yet */
    assert_about(request_capacity(w, &a),
                 70); /* this confirms, even within the minimum interval (R11) */
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &b), 50);
    assert_about(request_capacity(w, &c), 0);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 60);
    assert_about(request_capacity(w, &a), 60);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &c), 10);
    assert_about(read_resource(w).has, 120);
    world_stop(w);
}

/* T7 with `immediate`: when a holder is granted a smaller lease, others get the difference at once.
 * Until the holder receives the smaller lease, the leases may exceed the capacity. */
TEST(immediate_handover_grants_at_once) {
    const doorman_algorithm immediate = {.handover = DOORMAN_IMMEDIATE,
                                         .has_learning_mode_duration = true};
    world *w = world_start(100, &immediate);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_about(request_capacity(w, &a), 100);
    assert_about(request_capacity(w, &b), 0);
    w->now += 16 * SECOND;
    assert_about(request_capacity(w, &a), 50);
    assert_about(read_resource(w).committed, 50);
    assert_about(request_capacity(w, &b), 50);
    world_stop(w);
}

/* S1 */
TEST(a_server_that_is_not_master_names_the_master) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 10};
    assert_about(request_capacity(w, &a), 10);
    doorman_mastership other = {.address = "tcp://there:1", .until = w->now};
    assert_int_equal(doorman_server_set_master(w->server, &other, w->now), DOORMAN_OK);
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    doorman_response response;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                     DOORMAN_OK);
    assert_false(response.is_master);
    assert_string_equal(response.master_address, "tcp://there:1");
    assert_int_equal(read_resource(w).holder_count,
                     0); /* losing mastership deletes all state at once */
    world_stop(w);
}

/* S1: a mastership ends at its time, without any call. */
TEST(mastership_ends_exactly_at_its_time_without_a_call) {
    world *w = world_start(100, NULL);
    const doorman_mastership mastership = {.address = "tcp://here:1",
                                           .until = w->now + 10 * SECOND};
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    doorman_response response;
    w->now = mastership.until - 1;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                     DOORMAN_OK);
    assert_true(response.is_master);
    w->now = mastership.until;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                     DOORMAN_OK);
    assert_false(response.is_master);
    assert_null(response.master_address);
    world_stop(w);
}

/* S2, S8 */
TEST(a_lease_is_committed_until_its_end_plus_drift) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_int_equal(request(w, &a).gets.expires_in, 60 * SECOND);
    w->now += 63 * SECOND - 1;
    assert_about(read_resource(w).has, 100);
    assert_about(request_capacity(w, &b), 0);
    w->now += 1;
    assert_int_equal(read_resource(w).expired_count, 1);
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], 1);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &b), 100);
    world_stop(w);
}

/* S3, R11 */
TEST(a_request_within_the_minimum_interval_gets_the_same_lease) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 40};
    uint64_t first = request(w, &a).gets.id;
    w->now += 5 * SECOND - 1;
    doorman_capacity_response again = request(w, &a);
    assert_true(again.gets.id == first);
    assert_about(again.gets.capacity, 40);
    assert_int_equal(again.gets.expires_in, 55 * SECOND + 1);
    w->now += 1;
    again = request(w, &a);
    assert_true(again.gets.id != first);
    assert_about(again.gets.capacity, 40);
    world_stop(w);
}

/* S3, L4: a holder that was granted all its wants and now wants more gets more at once. */
TEST(a_satisfied_holder_can_grow_within_the_minimum_interval) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 1}, b = {.id = "b", .wants = 30};
    uint64_t first = request(w, &a).gets.id;
    assert_about(request_capacity(w, &b), 30);
    w->now += SECOND / 5;
    a.wants = 1000;
    doorman_capacity_response grown = request(w, &a);
    assert_true(grown.gets.id != first);
    assert_about(grown.gets.capacity, 70);
    assert_int_equal(grown.gets.expires_in, 60 * SECOND);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* S3: the minimum interval applies to a holder whose wants were not met. So the holder gains
 * nothing by asking often. */
TEST(an_unsatisfied_holder_waits_for_the_minimum_interval) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 90}, b = {.id = "b", .wants = 90};
    assert_about(request_capacity(w, &a), 90);
    uint64_t first = request(w, &b).gets.id;
    a.wants = a.has.capacity = 20;
    w->now += SECOND;
    assert_about(request_capacity(w, &a), 20); /* then 70 are free */
    b.wants = 95;
    doorman_capacity_response again = request(w, &b);
    assert_true(again.gets.id == first);
    assert_about(again.gets.capacity, 10);
    w->now += 4 * SECOND;
    assert_about(request_capacity(w, &b), 80);
    world_stop(w);
}

/* S3: a holder that would not get more gets no new lease within the minimum interval. */
TEST(a_holder_that_cannot_grow_gets_the_same_lease) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 50}, b = {.id = "b", .wants = 50};
    uint64_t first = request(w, &a).gets.id;
    assert_about(request_capacity(w, &b), 50);
    w->now += SECOND;
    a.wants = 90;
    doorman_capacity_response again = request(w, &a);
    assert_true(again.gets.id == first);
    assert_about(again.gets.capacity, 50);
    world_stop(w);
}

/* R11, T7: a holder gives an amount back within the minimum interval. When it wants the amount
 * again, another holder may have a part of it. */
TEST(a_holder_that_gave_capacity_back_grows_only_from_free_capacity) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 80}, b = {.id = "b", .wants = 50};
    uint64_t first = request(w, &a).gets.id;
    a.wants = a.has.capacity = 30;
    w->now += SECOND;
    assert_about(request_capacity(w, &a), 30);
    assert_about(request_capacity(w, &b), 50);
    a.wants = 80;
    w->now += SECOND;
    doorman_capacity_response grown = request(w, &a);
    assert_true(grown.gets.id != first);
    assert_about(grown.gets.capacity, 50);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* R11: a holder that asks too soon (S3) gets its last lease, without what it has given back. */
TEST(a_returned_amount_is_not_granted_again_within_the_minimum_interval) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 80};
    assert_about(request_capacity(w, &a), 80);
    a.wants = 30;
    a.has.capacity = 30;
    w->now += SECOND;
    assert_about(request_capacity(w, &a), 30);
    assert_about(read_resource(w).committed, 30);
    w->now += SECOND;
    assert_about(request_capacity(w, &a), 30);
    world_stop(w);
}

/* R11: the minimum interval (S3) applies only to requests that name the last lease. */
TEST(a_holder_that_lost_its_lease_need_not_wait) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 40};
    uint64_t first = request(w, &a).gets.id;
    a.has = (doorman_lease){.id = 0};
    w->now += 1;
    doorman_capacity_response item_response = request(w, &a);
    assert_true(item_response.gets.id != first);
    assert_about(item_response.gets.capacity, 40);
    world_stop(w);
}

/* S3 */
TEST(the_minimum_interval_is_at_most_half_the_refresh_interval) {
    const doorman_algorithm lively = {.lease_length = 6 * SECOND,
                                      .refresh_interval = 2 * SECOND,
                                      .has_learning_mode_duration = true};
    world *w = world_start(100, &lively);
    holder a = {.id = "a", .wants = 40};
    uint64_t first = request(w, &a).gets.id;
    w->now += SECOND;
    assert_true(request(w, &a).gets.id != first);
    world_stop(w);
}

/* S4, R6: holders are granted what they claim, and no holder grows. */
TEST(a_new_master_grants_holders_what_they_claim) {
    const doorman_algorithm fair = {.kind = DOORMAN_FAIR_SHARE};
    world *w = world_start(100, &fair);
    holder a = {.id = "a",
                .wants = 90,
                .has = {.id = 5, .node = "root", .capacity = 60, .expires_in = SECOND}};
    holder b = {.id = "b", .wants = 90};
    doorman_capacity_response item_response = request(w, &a);
    assert_about(item_response.gets.capacity, 60);
    assert_false(item_response.has_safe_capacity); /* S7: none while learning */
    assert_true(item_response.learning);
    assert_int_equal(request(w, &b).outcome, DOORMAN_TRY_LATER);
    w->now += 63 * SECOND - 1;
    assert_int_equal(request(w, &b).outcome, DOORMAN_TRY_LATER);
    assert_about(request_capacity(w, &a), 60);
    w->now += 1; /* R8: the longest lease with drift has ended */
    item_response = request(w, &b);
    assert_about(item_response.gets.capacity, 40);
    assert_false(item_response.learning);
    world_stop(w);
}

static const doorman_algorithm learns = {.kind = DOORMAN_FAIR_SHARE};

/* Fails unless a learning server answers TRY_LATER with this interval. */
static void assert_refused(world *w, holder *h, doorman_time refresh_interval) {
    doorman_capacity_response item_response = request(w, h);
    assert_int_equal(item_response.outcome, DOORMAN_TRY_LATER);
    assert_true(item_response.learning);
    assert_int_equal(item_response.gets.id, 0);
    assert_int_equal(item_response.gets.refresh_interval, refresh_interval);
}

/* S4: a refused holder retries after the usual interval, or when learning ends, whichever is
 * sooner. It does not retry within 1 s. */
TEST(a_holder_without_a_lease_is_refused_until_learning_ends) {
    world *w = world_start(100, &learns);
    holder a = {.id = "a", .wants = 90};
    assert_refused(w, &a, 16 * SECOND);
    w->now += 53 * SECOND;
    assert_refused(w, &a, 10 * SECOND);
    w->now += 10 * SECOND - 1;
    assert_refused(w, &a, SECOND);
    w->now += 1;
    assert_about(request_capacity(w, &a), 90);
    world_stop(w);
}

/* S4: the wants of a refused holder count for as long as the holder keeps asking. Nothing is
 * committed for the holder. If it stops asking, no lease counts as expired. */
TEST(the_wants_of_a_refused_holder_count_while_it_keeps_asking) {
    world *w = world_start(100, &learns);
    holder a = {.id = "a", .wants = 90}, b = {.id = "b", .wants = 7};
    assert_refused(w, &a, 16 * SECOND);
    assert_refused(w, &b, 16 * SECOND);
    assert_about(read_resource(w).wants, 97);
    assert_about(read_resource(w).committed, 0);
    assert_int_equal(read_resource(w).holder_count, 2);
    w->now += 40 * SECOND;
    assert_refused(w, &a, 16 * SECOND);
    w->now += 3 * 16 * SECOND * 21 / 20 - 40 * SECOND - 1;
    assert_int_equal(read_resource(w).holder_count, 2);
    w->now += 1;
    assert_int_equal(read_resource(w).holder_count, 1);
    assert_about(read_resource(w).wants, 90);
    assert_int_equal(read_resource(w).expired_count, 0);
    world_stop(w);
}

/* S4: a refused holder that does not ask again is forgotten after the length of a lease plus the
 * drift, even if three refresh intervals are longer. */
TEST(a_refused_holder_is_forgotten_after_one_lease_length) {
    const doorman_algorithm slow = {.lease_length = 60 * SECOND, .refresh_interval = 50 * SECOND};
    world *w = world_start(100, &slow);
    holder a = {.id = "a", .wants = 90};
    assert_refused(w, &a, 50 * SECOND);
    w->now += 63 * SECOND - 1;
    assert_int_equal(read_resource(w).holder_count, 1);
    w->now += 1;
    assert_int_equal(read_resource(w).holder_count, 0);
    world_stop(w);
}

/* S4, R6: if there is no room for a claim, the holder gets a lease of 0, and stops using the old
 * lease. Later the holder may get what other holders give back. */
TEST(a_claim_that_does_not_fit_gets_0) {
    world *w = world_start(100, &learns);
    holder a = {.id = "a",
                .wants = 100,
                .has = {.id = 5, .node = "root", .capacity = 100, .expires_in = SECOND}};
    holder b = {.id = "b",
                .wants = 30,
                .has = {.id = 6, .node = "root", .capacity = 30, .expires_in = SECOND}};
    assert_about(request_capacity(w, &a), 100);
    assert_exact(request_capacity(w, &b), 0);
    assert_about(read_resource(w).committed, 100);
    w->now += 6 * SECOND;
    a.has.capacity = 80; /* the rest is free for holders with a lease of this node */
    assert_about(request_capacity(w, &a), 80);
    assert_about(request_capacity(w, &b), 20);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* S4: a holder that has given back everything has 0, but keeps its lease until the end of the
 * lease. When it wants something again, it may get the amount that it returned. */
TEST(a_holder_that_returned_everything_can_get_it_again) {
    world *w = world_start(100, &learns);
    holder a = {.id = "a",
                .wants = 60,
                .has = {.id = 5, .node = "root", .capacity = 60, .expires_in = SECOND}};
    assert_about(request_capacity(w, &a), 60);
    uint64_t id = a.has.id;
    a.wants = a.has.capacity = 0;
    assert_exact(request_capacity(w, &a), 0); /* within the minimum interval */
    w->now += 6 * SECOND;
    assert_exact(request_capacity(w, &a), 0);
    assert_about(read_resource(w).committed, 0);
    w->now += 6 * SECOND;
    a.wants = 40;
    assert_about(request_capacity(w, &a), 40);
    assert_true(a.has.id != id);
    world_stop(w);
}

/* S4: a lease of 0 is in force too, and ends the fallback of its holder. So a new master renews it,
 * as it renews any other lease. A claim to a lease of 0 of another node is ignored. */
TEST(a_learning_server_renews_a_lease_of_0) {
    world *w = world_start(0, &learns);
    const doorman_lease zero = {.id = 5, .node = "root", .expires_in = SECOND};
    holder a = {.id = "a", .wants = 90, .has = zero};
    holder b = {.id = "b", .wants = 90, .has = {.id = 5, .node = "leaf", .expires_in = SECOND}};
    for (int i = 0; i < 12; i++) {
        doorman_capacity_response item_response = request(w, &a);
        assert_int_equal(item_response.outcome, DOORMAN_GRANTED);
        assert_true(item_response.learning);
        assert_true(item_response.gets.id && item_response.gets.id != zero.id);
        assert_exact(item_response.gets.capacity, 0);
        if (i % 2 == 0) assert_int_equal(item_response.gets.refresh_interval, 5 * SECOND);
        assert_true(item_response.gets.expires_in > 50 * SECOND);
        w->now += i % 2 ? 6 * SECOND : SECOND; /* every second request comes too soon (S3) */
    }
    assert_refused(w, &b, 16 * SECOND);
    assert_exact(read_resource(w).committed, 0);
    world_stop(w);
}

/* R6, S4: a holder that lost its lease is refused. The amount that it may still use stays
 * committed. */
TEST(a_holder_that_lost_its_lease_is_refused_and_stays_committed) {
    world *w = world_start(100, &learns);
    holder a = {.id = "a",
                .wants = 60,
                .has = {.id = 5, .node = "root", .capacity = 60, .expires_in = SECOND}};
    assert_about(request_capacity(w, &a), 60);
    holder again = {.id = "a", .wants = 60};
    w->now += SECOND;
    assert_refused(w, &again, 16 * SECOND);
    assert_about(read_resource(w).committed, 60);
    assert_about(request_capacity(w, &a), 60); /* the last lease can still be named */
    world_stop(w);
}

/* S4: an algorithm that does not divide the capacity grants at once. */
TEST(a_kind_that_does_not_divide_the_capacity_needs_no_learning) {
    const doorman_algorithm each = {.kind = DOORMAN_STATIC_SHARE};
    world *w = world_start(100, &each);
    holder a = {.id = "a", .wants = 90};
    doorman_capacity_response item_response = request(w, &a);
    assert_about(item_response.gets.capacity, 90);
    assert_false(item_response.learning);
    world_stop(w);
}

/* R6. The original Doorman, which is written in Go, accepts a claim of 1e9. */
TEST(while_learning_claims_are_limited_to_the_capacity) {
    const doorman_algorithm fair = {.kind = DOORMAN_FAIR_SHARE};
    world *w = world_start(100, &fair);
    holder a = {.id = "a", .has = {.id = 5, .node = "root", .capacity = 70, .expires_in = SECOND}};
    holder b = {.id = "b", .has = {.id = 6, .node = "root", .capacity = 1e9, .expires_in = SECOND}};
    a.wants = b.wants = 1e9;
    assert_about(request_capacity(w, &a), 70);
    assert_about(request_capacity(w, &b), 30);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* R6 */
TEST(while_learning_claims_to_leases_of_other_nodes_are_ignored) {
    const doorman_algorithm fair = {.kind = DOORMAN_FAIR_SHARE};
    world *w = world_start(100, &fair);
    holder a = {.id = "a",
                .wants = 70,
                .has = {.id = 5, .node = "elsewhere", .capacity = 70, .expires_in = SECOND}};
    assert_about(request_capacity(w, &a), 0);
    world_stop(w);
}

/* R8: the predecessor may have granted longer leases under a configuration that this server loads
 * only while it learns. So the server learns for as long as these leases may last. */
TEST(longer_leases_that_are_loaded_while_learning_extend_it) {
    const doorman_algorithm quick = {.lease_length = 20 * SECOND};
    const doorman_algorithm slow = {.lease_length = 60 * SECOND};
    world *w = world_start(100, &quick);
    holder a = {.id = "a", .wants = 70};
    assert_about(request_capacity(w, &a), 0);
    w->now += 10 * SECOND;
    reload(w, config_of(100, &slow));
    w->now += 52 * SECOND;
    a.has.id = 0;
    assert_about(request_capacity(w, &a), 0);
    w->now += SECOND;
    a.has.id = 0;
    assert_about(request_capacity(w, &a), 70);
    world_stop(w);
}

/* R8: the time to learn counts from when the predecessor was known to be gone. If that was before
 * the mastership began, learning ends earlier. */
TEST(learning_starts_when_the_predecessor_was_gone) {
    const doorman_algorithm fair = {.kind = DOORMAN_FAIR_SHARE};
    world *w = world_start(100, &fair);
    doorman_mastership other = {.until = 0};
    assert_int_equal(doorman_server_set_master(w->server, &other, w->now), DOORMAN_OK);
    const doorman_mastership mastership = {.address = "tcp://here:1",
                                           .until = DOORMAN_NEVER,
                                           .predecessor_gone = w->now - 62 * SECOND};
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
    holder a = {.id = "a", .wants = 70};
    assert_about(request_capacity(w, &a), 0);
    w->now += SECOND;
    a.has.id = 0;
    assert_about(request_capacity(w, &a), 70);
    world_stop(w);
}

/* ---- S10: two processes under one id ---- */

static bool is_shared(world *w, const char *holder_id) {
    doorman_cursor cursor = {0};
    doorman_server_lease lease = {.holder_id = ""};
    do {
        assert_true(doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now));
    } while (strcmp(lease.holder_id, holder_id) != 0);
    return lease.shared;
}

/* Lets a process renew its lease `times` times, every 8 s. */
static void renew_repeatedly(world *w, holder *h, int times) {
    for (int i = 0; i < times; i++) {
        (void)request(w, h);
        w->now += 8 * SECOND;
    }
}

/* S10: the second process is noticed when it renews its lease for the second time, after two
 * refresh intervals. When one process has ended, renewals of the other remove the mark. */
TEST(two_processes_with_one_id_are_detected) {
    world *w = world_start(1000, NULL);
    holder a = {.id = "same", .wants = 800}, b = a, other = {.id = "other", .wants = 10};
    renew_repeatedly(w, &a, 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 0);
        assert_false(is_shared(w, "same"));
        assert_about(request_capacity(w, &b), 800); /* both have it; nothing prevents that */
        w->now += 7 * SECOND;
        assert_about(request_capacity(w, &a), 800);
        w->now += 9 * SECOND;
        (void)request(w, &other);
    }
    assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 1);
    assert_string_equal(w->holder_id, "same");
    assert_true(is_shared(w, "same"));
    assert_false(is_shared(w, "other"));
    for (int i = 0; i < 5; i++) {
        (void)request(w, &b);
        w->now += 8 * SECOND;
        (void)request(w, &a);
        w->now += 8 * SECOND;
    }
    assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 11);
    renew_repeatedly(w, &a, 6);
    assert_true(is_shared(w, "same"));
    renew_repeatedly(w, &a, 1);
    assert_false(is_shared(w, "same"));
    assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 11);
    world_stop(w);
}

/* S10: first one process asks eight times as often as the other. Then responses are lost. */
TEST(two_processes_with_one_id_are_detected_at_different_request_rates) {
    world *w = world_start(1000, NULL);
    holder a = {.id = "same", .wants = 800}, b = a;
    for (int round = 0; round < 6; round++) {
        renew_repeatedly(w, &a, 8);
        if (round < 2) assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 0);
        (void)request(w, &b);
        w->now += SECOND;
    }
    assert_true(w->events[DOORMAN_EVENT_SHARED_ID] > 0);
    world_stop(w);
    w = world_start(1000, NULL);
    a.has.id = b.has.id = 0;
    for (int i = 0; i < 200; i++) {
        holder copy = i % 2 ? a : b;
        (void)request(w, random_below(10) ? (i % 2 ? &a : &b) : &copy);
        w->now += 5 * SECOND;
    }
    assert_true(w->events[DOORMAN_EVENT_SHARED_ID] > 20);
    world_stop(w);
}

/* One process over a bad network. It names the lease of the last response that it accepted, and
 * accepts only responses to its last request (R2). */
typedef struct process {
    holder now, copies[4]; /* `copies` are requests that may arrive again, or late */
} process;

static void run_on_bad_network(world *w, process *p) {
    holder *late = &p->copies[random_below(4)];
    switch (random_below(8)) {
    case 0: /* the response is lost */
        *late = p->now;
        (void)request(w, late);
        *late = p->now; /* the request, without the lease that it got */
        break;
    case 1: { /* the request arrives twice, and either response is accepted */
        holder first = p->now, second = p->now;
        *late = p->now;
        (void)request(w, &first);
        (void)request(w, &second);
        p->now = random_below(2) ? first : second;
        p->now.has.node = p->now.node;
        break;
    }
    case 2: { /* an old request arrives now, for the first time or again */
        holder copy = *late;
        if (copy.id) (void)request(w, &copy);
        break;
    }
    case 3: /* the request will arrive late */ *late = p->now; break;
    case 4: /* it restarts, rarely */
        if (random_below(4) == 0) p->now.has.id = 0;
        break;
    default: (void)request(w, &p->now); break;
    }
    w->now += (doorman_time)random_below(20) * SECOND;
}

/* S10 */
TEST(one_process_on_a_bad_network_is_not_reported_as_two) {
    for (int run = 0; run < 20; run++) {
        world *w = world_start(1000, NULL);
        process p = {.now = {.id = "one", .wants = 800}};
        for (int i = 0; i < 2000; i++) {
            if (p.now.has.id && random_below(50) == 0) p.now.has.id = 0; /* the lease ends */
            run_on_bad_network(w, &p);
        }
        assert_int_equal(w->events[DOORMAN_EVENT_SHARED_ID], 0);
        world_stop(w);
    }
}

/* ---- S11: holders that do not confirm ---- */

static doorman_server_lease lease_of(world *w, const char *holder_id) {
    doorman_cursor cursor = {0};
    doorman_server_lease lease = {.holder_id = ""};
    do {
        assert_true(doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now));
    } while (strcmp(lease.holder_id, holder_id) != 0);
    return lease;
}

/* Fails unless the mark of a holder is `is_marked`, and no other holder is marked. */
static void assert_unconfirmed(world *w, const char *holder_id, bool is_marked) {
    assert_int_equal(lease_of(w, holder_id).unconfirmed, is_marked);
    assert_int_equal(read_resource(w).unconfirmed_count, is_marked);
}

/* A client that sends no `has` keeps its first lease committed. */
TEST(a_holder_that_never_confirms_is_marked) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    (void)request(w, &a);
    (void)request(w, &b);
    for (int i = 0; i < 3; i++) {
        assert_unconfirmed(w, "a", false);
        assert_int_equal(w->events[DOORMAN_EVENT_UNCONFIRMED], 0);
        w->now += 6 * SECOND;
        a.has.id = 0;
        assert_about(request_capacity(w, &a), 50);
        assert_about(request_capacity(w, &b), 0);
    }
    assert_unconfirmed(w, "a", true);
    assert_int_equal(w->events[DOORMAN_EVENT_UNCONFIRMED], 1);
    assert_about(lease_of(w, "a").committed, 100);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 50); /* it names its last lease */
    assert_unconfirmed(w, "a", false);
    assert_int_equal(w->events[DOORMAN_EVENT_UNCONFIRMED], 1);
    assert_about(lease_of(w, "a").committed, 50);
    world_stop(w);
}

/* A client that names its last lease, but claims more than that lease, does not confirm it. A
 * client that reports more units in use than its lease has confirms it, because units in use may
 * exceed the lease. */
TEST(a_holder_that_claims_more_than_its_lease_is_marked) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    (void)request(w, &a);
    (void)request(w, &b);
    for (int i = 0; i < 4; i++) {
        assert_unconfirmed(w, "a", false);
        a.has.capacity = 100;
        w->now += 6 * SECOND;
        (void)request(w, &a);
    }
    assert_unconfirmed(w, "a", true); /* the first of the four requests had a lease of 100 */
    a.outstanding = 100;
    w->now += 6 * SECOND;
    (void)request(w, &a);
    assert_unconfirmed(w, "a", false);
    assert_about(lease_of(w, "a").committed, 100);
    world_stop(w);
}

/* A restart, a lost response and a copy that comes first each add only 1 to the requests without a
 * confirmation. */
TEST(a_restart_and_lost_messages_do_not_mark_a_holder) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100};
    (void)request(w, &a);
    for (int i = 0; i < 20; i++) {
        holder copy = a;
        if (i % 2 == 0) a.has.id = 0; /* the process restarts */
        w->now += 6 * SECOND;
        (void)request(w, &copy); /* this response is lost, or this is a late copy */
        (void)request(w, &a);
        assert_unconfirmed(w, "a", false);
        w->now += 6 * SECOND;
        (void)request(w, &a);
    }
    world_stop(w);
}

/* A client whose lease has ended names no lease. Its lease entry lasts longer than the lease. */
TEST(requests_after_the_end_of_the_lease_need_no_confirmation) {
    for (int early = 0; early < 2; early++) {
        world *w = world_start(100, NULL);
        holder a = {.id = "a", .wants = 100};
        doorman_time end = w->now + request(w, &a).gets.expires_in;
        for (int i = 0; i < 3; i++) {
            w->now = end - early;
            a.has.id = 0;
            end = w->now + request(w, &a).gets.expires_in;
        }
        assert_unconfirmed(w, "a", early == 1);
        world_stop(w);
    }
}

TEST(a_marked_holder_that_leaves_is_no_longer_counted) {
    for (int expires = 0; expires < 2; expires++) {
        world *w = world_start(100, NULL);
        holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 1};
        for (int i = 0; i < 4; i++) {
            a.has.id = 0;
            (void)request(w, &a);
        }
        assert_unconfirmed(w, "a", true);
        w->now += 30 * SECOND;
        (void)request(w, &b);
        if (!expires) release(w, &a, a.has.id);
        if (expires) w->now += 40 * SECOND;
        assert_unconfirmed(w, "b", false);
        assert_int_equal(read_resource(w).holder_count, 1);
        world_stop(w);
    }
}

/* R4: a request that does not name the last lease does not lower the committed amount. */
TEST(a_delayed_duplicate_of_a_request_frees_nothing) {
    world *w = world_start(682, NULL);
    holder c1 = {.id = "c1", .wants = 500}, c0 = {.id = "c0", .wants = 682};
    holder copy = c1;
    assert_about(request_capacity(w, &c1), 500);
    w->now += 6 * SECOND;
    (void)request(w, &copy); /* it claims nothing */
    assert_about(request_capacity(w, &c0), 182);
    assert_about(read_resource(w).committed, 682);
    world_stop(w);
}

/* R3, R4: a gauge confirms no less than its units in flight. */
TEST(units_in_flight_stay_committed) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_about(request_capacity(w, &a), 100);
    assert_about(request_capacity(w, &b), 0);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 50);
    a.outstanding = 90;
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 50);
    b.has.id = 0;
    assert_about(request_capacity(w, &b), 10);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* R5: a client still uses 4 units of a lease that has ended. A report of units in use commits
 * nothing, because no lease in force has these units. */
TEST(units_in_use_without_a_lease_are_not_committed) {
    world *w = world_start(5, NULL);
    holder a = {.id = "a", .wants = 0, .outstanding = 4}, b = {.id = "b", .wants = 5};
    doorman_capacity_response item_response = request(w, &a);
    assert_exact(item_response.gets.capacity, 0);
    assert_exact(item_response.gets.committed, 0);
    assert_exact(read_resource(w).committed, 0);
    assert_exact(request_capacity(w, &b), 5);
    a.outstanding = 400; /* a careless client cannot take what others have */
    w->now += 6 * SECOND;
    assert_exact(request(w, &a).gets.committed, 0);
    assert_exact(request_capacity(w, &b), 5);
    world_stop(w);
}

/* R4, R5: the committed amount in a response is the part of the claim that stays committed. */
TEST(a_response_says_how_much_of_the_claim_stays_committed) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_exact(request_capacity(w, &a), 100);
    assert_exact(request_capacity(w, &b), 0);
    w->now += 6 * SECOND;
    a.outstanding = 150;
    doorman_capacity_response item_response = request(w, &a);
    assert_exact(item_response.gets.capacity, 50);
    assert_exact(item_response.gets.committed, 100); /* the lease was 100 */
    w->now += 6 * SECOND;
    holder again = {.id = "a", .wants = 100};
    item_response = request(w, &again);
    assert_exact(item_response.gets.capacity, 50);
    assert_exact(item_response.gets.committed, 50); /* the request claims nothing */
    assert_exact(read_resource(w).committed, 100);  /* the earlier lease is still in force */
    world_stop(w);
}

/* R6: three leases of 30 were granted before the capacity fell to 50. The new master commits only
 * what fits, and each holder replaces its old lease. */
TEST(after_a_cut_a_learning_server_commits_only_what_fits) {
    world *w = world_start(50, &learns);
    static const char *const ids[] = {"a", "b", "c"};
    static const double fits[] = {30, 20, 0};
    for (int i = 0; i < 3; i++) {
        holder h = {.id = ids[i],
                    .wants = 30,
                    .outstanding = 30,
                    .has = {.id = 5, .node = "root", .capacity = 30, .expires_in = SECOND}};
        doorman_capacity_response item_response = request(w, &h);
        assert_int_equal(item_response.outcome, DOORMAN_GRANTED);
        assert_exact(item_response.gets.capacity, fits[i]);
        assert_exact(item_response.gets.committed, fits[i]);
    }
    assert_exact(read_resource(w).committed, 50);
    world_stop(w);
}

/* R5: after a cut, units in use do not let a lease grow while the leases do not fit. */
TEST(no_lease_grows_while_the_leases_do_not_fit) {
    world *w = world_start(300, NULL);
    holder a = {.id = "a", .wants = 150, .outstanding = 150};
    holder b = {.id = "b", .wants = 150, .outstanding = 150};
    assert_exact(request_capacity(w, &a), 150);
    assert_exact(request_capacity(w, &b), 150);
    reload(w, config_of(100, NULL));
    w->now += 6 * SECOND;
    a.wants = 10;
    assert_exact(request_capacity(w, &a), 10);
    w->now += 6 * SECOND;
    a.wants = 1000;
    assert_exact(request_capacity(w, &a), 10); /* its target is 50, but b still has 150 */
    b.wants = 1000;
    assert_exact(request_capacity(w, &b), 50);
    w->now += 6 * SECOND;
    assert_exact(request_capacity(w, &a), 50);
    assert_exact(read_resource(w).committed, 300);
    world_stop(w);
}

/* R5, R6: a child node reports more units in use than a new master could grant. These units are
 * committed, but they are no lease. So the lease of the child does not grow at the expense of
 * another holder, even if that holder has not yet received a smaller lease. */
TEST(what_a_child_uses_without_a_lease_is_no_room_for_a_lease) {
    world *w = world_start(100, &learns);
    const doorman_lease old = {.id = 5, .node = "root", .capacity = 70, .expires_in = 60 * SECOND};
    holder a = {.id = "a", .is_server = true, .wants = 70, .outstanding = 70, .has = old};
    holder b = {.id = "b", .is_server = true, .wants = 70, .outstanding = 60, .has = old};
    w->now += 3 * SECOND;
    assert_exact(request_capacity(w, &a), 70);
    assert_exact(request_capacity(w, &b), 30);
    assert_exact(read_resource(w).committed, 130);
    w->now += 60 * SECOND; /* the server has learned */
    a.wants = 20;
    holder copy = a;
    assert_exact(request_capacity(w, &copy), 20); /* the response is lost, so a still has 70 */
    b.wants = 1000;
    assert_exact(request_capacity(w, &b), 30);
    assert_exact(read_resource(w).committed, 130);
    world_stop(w);
}

/* R10 */
TEST(a_release_names_its_lease) {
    world *w = world_start(176, NULL);
    holder a = {.id = "a", .wants = 176};
    uint64_t first = request(w, &a).gets.id;
    release(w, &a, first);
    assert_int_equal(read_resource(w).holder_count, 0);
    a.has.id = 0;
    assert_about(request_capacity(w, &a), 176); /* the resource has been opened again */
    release(w, &a, first);                      /* a copy of the old release arrives */
    assert_about(read_resource(w).has, 176);
    world_stop(w);
}

/* S6 */
TEST(the_refresh_interval_is_at_most_a_third_of_the_lease) {
    const doorman_algorithm slow = {.lease_length = 30 * SECOND,
                                    .refresh_interval = 30 * SECOND,
                                    .has_learning_mode_duration = true};
    world *w = world_start(100, &slow);
    holder a = {.id = "a", .wants = 40};
    assert_int_equal(request(w, &a).gets.refresh_interval, 10 * SECOND);
    world_stop(w);
}

/* S6: the minimum refresh interval does not make short leases end before they are renewed. */
TEST(short_leases_are_renewed_three_times_before_they_end) {
    const doorman_algorithm quick = {.lease_length = 3 * SECOND / 2,
                                     .refresh_interval = SECOND,
                                     .has_learning_mode_duration = true};
    world *w = world_start(100, &quick);
    holder a = {.id = "a", .wants = 40};
    assert_int_equal(request(w, &a).gets.refresh_interval, SECOND / 2);
    world_stop(w);
}

/* R12 */
TEST(a_holder_below_its_share_renews_sooner) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_int_equal(request(w, &a).gets.refresh_interval, 16 * SECOND);
    assert_int_equal(request(w, &b).gets.refresh_interval, 5 * SECOND);
    world_stop(w);
}

/* S7 */
TEST(the_safe_capacity_is_the_configured_one_or_an_equal_part) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 10}, b = {.id = "b", .wants = 10};
    assert_about(request(w, &a).safe_capacity, 100);
    assert_about(request(w, &b).safe_capacity, 50);
    doorman_template all = {.identifier_glob = "*",
                            .capacity = 100,
                            .has_safe_capacity = true,
                            .safe_capacity = DOORMAN_UNLIMITED};
    doorman_config *config = NULL;
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    reload(w, config);
    doorman_capacity_response item_response = request(w, &a);
    assert_true(item_response.has_safe_capacity);
    assert_about(item_response.safe_capacity, -1);
    world_stop(w);
}

/* S9 */
TEST(an_unknown_claim_is_reported_and_ignored) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100};
    holder b = {.id = "b",
                .wants = 100,
                .has = {.id = 77, .node = "root", .capacity = 50, .expires_in = SECOND}};
    assert_about(request_capacity(w, &a), 100);
    assert_about(request_capacity(w, &b), 0);
    assert_int_equal(w->events[DOORMAN_EVENT_UNKNOWN_CLAIM], 1);
    assert_about(read_resource(w).committed, 100);
    world_stop(w);
}

/* If an algorithm does not divide the capacity, each holder gets its own amount without
 * learning. */
TEST(static_amounts_are_per_client) {
    const doorman_algorithm each = {.kind = DOORMAN_STATIC_SHARE},
                            none = {.kind = DOORMAN_NO_ALGORITHM};
    world *w = world_start(10, &each);
    holder a = {.id = "a", .wants = 15}, b = {.id = "b", .wants = 7};
    assert_about(request_capacity(w, &a), 10);
    assert_about(request_capacity(w, &b), 7);
    reload(w, config_of(10, &none));
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 15);
    world_stop(w);
}

/* G5. In the original Doorman a cut causes a negative lease. */
TEST(after_a_cut_no_holder_grows_until_the_sum_fits) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 60}, b = {.id = "b", .wants = 40}, c = {.id = "c", .wants = 90};
    assert_about(request_capacity(w, &a), 60);
    assert_about(request_capacity(w, &b), 40);
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    reload(w, config_of(30, &quick));
    assert_about(read_resource(w).has, 100); /* no lease is dropped */
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &c), 0);
    assert_about(request_capacity(w, &a), 10);
    assert_about(request_capacity(w, &b), 10);
    assert_about(request_capacity(w, &c), 0);
    assert_about(request_capacity(w, &a), 10); /* this confirms */
    assert_about(request_capacity(w, &b), 10);
    assert_about(read_resource(w).committed, 20);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &c), 10);
    reload(w, config_of(0, &quick));
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 0);
    world_stop(w);
}

/* ---- why a lease is less than its holder wants (S14) ---- */

/* Sends a request, and fails unless the lease has this amount and this reason. The list of leases
 * must have the same reason. */
static void assert_reason(world *w, holder *h, double capacity, int reason) {
    doorman_capacity_response item_response = request(w, h);
    assert_int_equal(item_response.outcome, DOORMAN_GRANTED);
    assert_about(item_response.gets.capacity, capacity);
    if ((int)item_response.gets.reason != reason) {
        fail_msg("%s has %g and the reason \"%s\"", h->id, capacity,
                 doorman_lease_reason_name(item_response.gets.reason));
    }
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    bool found = false;
    while (!found && doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now)) {
        found = strcmp(lease.holder_id, h->id) == 0;
    }
    assert_true(found);
    assert_int_equal(lease.reason, reason);
}

/* S14: SHARE and RESERVED. The share of holder b is 50, but holder a may use 100 until it
 * confirms. */
TEST(a_lease_says_whether_the_share_is_used_up_or_still_committed) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 90};
    assert_reason(w, &a, 100, 0);
    assert_reason(w, &b, 0, DOORMAN_LEASE_RESERVED);
    w->now += 6 * SECOND;
    assert_reason(w, &a, 50, DOORMAN_LEASE_SHARE);
    assert_reason(w, &b, 0, DOORMAN_LEASE_RESERVED); /* a has not confirmed */
    assert_reason(w, &a, 50, DOORMAN_LEASE_SHARE);   /* this confirms */
    w->now += 6 * SECOND;
    assert_reason(w, &b, 50, DOORMAN_LEASE_SHARE);
    w->now += 6 * SECOND;
    b.wants = 50.04; /* 0.999 of the wants are all of them */
    assert_reason(w, &b, 50, 0);
    w->now += 6 * SECOND;
    b.wants = 30;
    assert_reason(w, &b, 30, 0);
    world_stop(w);
}

/* S14: if a holder wants more than the capacity, a lease of all of it has the reason SHARE. */
TEST(a_holder_that_wants_more_than_the_capacity_has_its_share) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 120};
    assert_reason(w, &a, 100, DOORMAN_LEASE_SHARE);
    reload(w, config_of(0, NULL));
    w->now += 6 * SECOND;
    release(w, &a, a.has.id);
    a.has.id = 0;
    w->now += 200 * SECOND;
    assert_reason(w, &a, 0, DOORMAN_LEASE_SHARE);
    world_stop(w);
}

/* S14: CUT. Leases from before the cut do not fit until all holders have confirmed smaller ones. */
TEST(a_lease_says_that_the_capacity_was_cut_until_the_leases_fit) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    world *w = world_start(100, &quick);
    holder a = {.id = "a", .wants = 60}, b = {.id = "b", .wants = 40}, c = {.id = "c", .wants = 90};
    assert_reason(w, &a, 60, 0);
    assert_reason(w, &b, 40, 0);
    reload(w, config_of(30, &quick));
    w->now += 6 * SECOND;
    assert_reason(w, &c, 0, DOORMAN_LEASE_CUT);
    assert_reason(w, &a, 10, DOORMAN_LEASE_CUT);
    assert_reason(w, &b, 10, DOORMAN_LEASE_CUT);
    assert_reason(w, &a, 10, DOORMAN_LEASE_CUT); /* this confirms: the same lease again (R11) */
    assert_reason(w, &b, 10, DOORMAN_LEASE_CUT);
    w->now += 6 * SECOND;
    assert_reason(w, &a, 10, DOORMAN_LEASE_SHARE);
    assert_reason(w, &c, 10, DOORMAN_LEASE_SHARE);
    holder small = {.id = "d", .wants = 0};
    assert_reason(w, &small, 0, 0);
    world_stop(w);
}

/* S14, H11: reports of overload cut the capacity as a new configuration does. */
TEST(a_lease_says_that_reports_of_overload_cut_the_capacity) {
    doorman_template all = {.identifier_glob = "*",
                            .capacity = 100,
                            .has_algorithm = true,
                            .algorithm = {.has_learning_mode_duration = true},
                            .overload = {.target = SECOND / 10, .capacity_min = 1}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    world *w = world_start(100, NULL);
    reload(w, config);
    holder a = {.id = "a", .wants = 50}, b = {.id = "b", .wants = 50};
    assert_reason(w, &a, 50, 0);
    assert_reason(w, &b, 50, 0);
    const doorman_capacity_request report = {
        .resource_id = "db",
        .overload = {.interval = 16 * SECOND, .arrived = 1600, .finished = 800, .refused = 800}};
    const doorman_request overloaded = {
        .method = DOORMAN_REPORT_OVERLOAD, .holder_id = "s", .items = &report, .item_count = 1};
    doorman_response response;
    for (int i = 0; i < 2; i++) { /* one interval without a report, and one with it */
        w->now += 16 * SECOND;
        assert_int_equal(doorman_server_handle(w->server, &overloaded, &response, NULL, w->now),
                         DOORMAN_OK);
    }
    double capacity = read_resource(w).capacity;
    assert_true(capacity < 60);
    assert_reason(w, &a, capacity / 2, DOORMAN_LEASE_CUT);
    assert_reason(w, &b, capacity / 2, DOORMAN_LEASE_CUT);
    w->now += 6 * SECOND;
    assert_int_equal(request(w, &a).gets.reason, DOORMAN_LEASE_CUT); /* b has not confirmed */
    assert_int_equal(request(w, &b).gets.reason, DOORMAN_LEASE_SHARE);
    assert_true(read_resource(w).capacity < 100); /* still lowered */
    world_stop(w);
}

/* S14: LEARNING. A refusal has its outcome, and no reason. */
TEST(a_lease_says_that_the_server_learns) {
    world *w = world_start(100, &learns);
    const doorman_lease old = {.id = 5, .node = "root", .capacity = 60, .expires_in = SECOND};
    holder a = {.id = "a", .wants = 90, .has = old}, b = {.id = "b", .wants = 90, .has = old};
    holder c = {.id = "c", .wants = 90}, d = {.id = "d", .wants = 60, .has = old};
    d.has.capacity = 0;
    assert_reason(w, &a, 60, DOORMAN_LEASE_LEARNING);
    assert_reason(w, &b, 40, DOORMAN_LEASE_LEARNING);
    assert_reason(w, &d, 0, DOORMAN_LEASE_LEARNING);
    assert_int_equal(request(w, &c).gets.reason, 0);
    w->now += 6 * SECOND;
    a.wants = 20;
    assert_reason(w, &a, 20, 0); /* it claims 60 and is granted 60, and wants less */
    w->now += 57 * SECOND;
    a.wants = 90;
    assert_reason(w, &a, 90, 0); /* the server has learned */
    world_stop(w);
}

/* S14: with STATIC each holder may have the same amount. The sum can exceed that amount, but this
 * is no cut. */
TEST(an_amount_that_is_not_divided_is_the_share_of_each) {
    const doorman_algorithm each = {.kind = DOORMAN_STATIC_SHARE};
    world *w = world_start(10, &each);
    holder a = {.id = "a", .wants = 15}, b = {.id = "b", .wants = 15}, c = {.id = "c", .wants = 7};
    for (int i = 0; i < 2; i++) {
        assert_reason(w, &a, 10, DOORMAN_LEASE_SHARE);
        assert_reason(w, &b, 10, DOORMAN_LEASE_SHARE);
        assert_reason(w, &c, 7, 0);
        w->now += 6 * SECOND;
    }
    reload(w, config_of(20, &each));
    b.wants = 40;
    assert_reason(w, &b, 20, DOORMAN_LEASE_SHARE);
    world_stop(w);
}

/* S14, R11: within the minimum interval a holder gets its last lease with the same reason again. If
 * that lease had no reason, and the holder now wants more, the lease has a reason now. */
TEST(a_repeated_lease_has_its_reason_again) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 10}, b = {.id = "b", .wants = 60}, c = {.id = "c", .wants = 90};
    assert_reason(w, &a, 10, 0);
    assert_reason(w, &b, 60, 0);
    uint64_t last = a.has.id;
    w->now += SECOND;
    assert_reason(w, &c, 30, DOORMAN_LEASE_RESERVED);
    a.wants = 30;
    assert_reason(w, &a, 10, DOORMAN_LEASE_RESERVED);
    assert_true(a.has.id == last);
    a.wants = 10;
    assert_reason(w, &a, 10, 0);
    release(w, &b, b.has.id); /* its units are free now, but c asks too soon */
    assert_reason(w, &c, 30, DOORMAN_LEASE_RESERVED);
    w->now += 6 * SECOND;
    assert_reason(w, &c, 90, 0);
    world_stop(w);
}

/* S14, A5: three holders take turns with two units. Each lease of 0 has a reason, and a lease of 1
 * has none. */
TEST(a_holder_that_waits_for_its_turn_is_told_why) {
    const doorman_template all = {.identifier_glob = "*",
                                  .capacity = 2,
                                  .whole = true,
                                  .has_algorithm = true,
                                  .algorithm = {.has_learning_mode_duration = true}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    world *w = world_start(2, NULL);
    reload(w, config);
    holder holders[] = {
        {.id = "a", .wants = 1}, {.id = "b", .wants = 0.5}, {.id = "c", .wants = 1}};
    size_t counts[2] = {0, 0}; /* leases of 0 with SHARE, with RESERVED */
    for (int i = 0; i < 300; i++) {
        holder *h = &holders[i % 3];
        const doorman_lease lease = request(w, h).gets;
        assert_int_equal(lease.reason == 0, lease.capacity >= 1);
        if (i == 2) assert_int_equal(lease.reason, DOORMAN_LEASE_RESERVED);
        if (lease.reason) counts[lease.reason == DOORMAN_LEASE_RESERVED]++;
        if (lease.reason) assert_int_not_equal(lease.reason, DOORMAN_LEASE_CUT);
        w->now += 2 * SECOND;
    }
    assert_true(counts[0] > 0 && counts[1] > 0);
    world_stop(w);
}

/* G5, R8: while a resource has no template, its leases have no entries in the lease table. */
TEST(a_resource_that_gains_a_template_learns_first) {
    world *w = world_start(100, NULL);
    doorman_template other = {.identifier_glob = "other", .capacity = 1};
    doorman_config *config = NULL;
    const doorman_config_options options = {.templates = &other, .template_count = 1};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    reload(w, config); /* no template matches "db" now */
    holder a = {.id = "a", .wants = 5000}, b = {.id = "b", .wants = 10};
    assert_about(request_capacity(w, &a), 5000); /* G2 */
    assert_int_equal(w->events[DOORMAN_EVENT_UNMATCHED], 1);
    assert_int_equal(read_resource(w).holder_count, 0);
    const doorman_algorithm fair = {.kind = DOORMAN_FAIR_SHARE};
    reload(w, config_of(100, &fair));
    assert_about(request_capacity(w, &b), 0);
    w->now += 63 * SECOND;
    b.has.id = 0;
    assert_about(request_capacity(w, &b), 10);
    world_stop(w);
}

static doorman_config *config_of_one(const char *glob, doorman_time lease_length) {
    doorman_template one = {.identifier_glob = glob, .capacity = 100, .has_algorithm = true};
    one.algorithm.lease_length = lease_length;
    doorman_config *config = NULL;
    const doorman_config_options options = {.templates = &one, .template_count = 1};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    return config;
}

/* G5, R8: a template is removed, and comes back with shorter leases. */
TEST(long_leases_of_a_removed_template_are_learned_when_it_returns) {
    world *w = world_start(100, NULL);
    reload(w, config_of_one("db", 300 * SECOND));
    holder a = {.id = "a", .wants = 100}, b = {.id = "b", .wants = 100};
    assert_about(request_capacity(w, &a), 100);
    w->now += SECOND;
    reload(w, config_of_one("other", 10 * SECOND));
    w->now += SECOND;
    reload(w, config_of_one("db", 10 * SECOND));
    w->now += 290 * SECOND;
    assert_about(request_capacity(w, &b), 0); /* holder a may still have all of it */
    w->now += 30 * SECOND;
    b.has.id = 0;
    assert_about(request_capacity(w, &b), 100);
    world_stop(w);
}

static doorman_config *config_of_two(const char *first, const char *second) {
    doorman_template both[] = {
        {.identifier_glob = first, .capacity = 100, .has_algorithm = true},
        {.identifier_glob = second, .capacity = 100, .has_algorithm = true},
    };
    for (size_t i = 0; i < 2; i++) {
        bool is_long = strncmp(both[i].identifier_glob, "db", 2) == 0;
        both[i].algorithm.lease_length = is_long ? 300 * SECOND : 60 * SECOND;
    }
    doorman_config *config = NULL;
    const doorman_config_options options = {.templates = both, .template_count = 2};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    return config;
}

/* Starts a master whose predecessor may have granted leases of 300 s for "db". */
static world *world_start_after_long_leases(doorman_config *config) {
    const doorman_mastership none = {.until = 0};
    world *w = world_start(100, NULL);
    assert_int_equal(doorman_server_set_master(w->server, &none, w->now), DOORMAN_OK);
    reload(w, config);
    become_master(w);
    return w;
}

/* G1, G5, R8: the template of a resource is removed, or another one comes before it. The resource
 * then matches a template with shorter leases. The time to learn of that template is over. But the
 * leases that the predecessor has granted may last longer, so the resource still learns. */
TEST(resources_that_match_another_template_learn_as_long_as_before) {
    doorman_config *changes[][2] = {
        {config_of_two("db", "d*"), config_of_one("d*", 60 * SECOND)},
        {config_of_two("d*", "db"), config_of_one("d*", 60 * SECOND)},
        {config_of_two("db*", "d*"), config_of_two("d*", "db*")},
    };
    for (size_t i = 0; i < 3; i++) {
        world *w = world_start_after_long_leases(changes[i][0]);
        holder a = {.id = "a", .wants = 100};
        w->now += 100 * SECOND;
        reload(w, changes[i][1]);
        assert_about(request_capacity(w, &a), 0); /* another holder may still have all of it */
        w->now += 215 * SECOND;
        a.has.id = 0;
        assert_about(request_capacity(w, &a), 100);
        world_stop(w);
    }
}

/* G5, R8 */
TEST(a_reload_of_the_same_templates_prolongs_no_learning) {
    world *w = world_start_after_long_leases(config_of_two("db", "d*"));
    w->now += 100 * SECOND;
    reload(w, config_of_two("db", "d*"));
    holder a = {.id = "a", .wants = 100};
    doorman_capacity_response item_response;
    assert_int_equal(request_resource(w, "dc", &a, &item_response), DOORMAN_OK);
    assert_about(item_response.gets.capacity, 100);
    world_stop(w);
}

/* S3, S6: a holder that renews on time gets a new lease, even if its refresh interval is short. */
TEST(a_holder_that_renews_on_time_gets_a_new_lease) {
    const doorman_algorithm slow = {.lease_length = 6 * SECOND,
                                    .refresh_interval = 6 * SECOND,
                                    .has_learning_mode_duration = true};
    world *w = world_start(100, &slow);
    holder a = {.id = "a", .wants = 40};
    doorman_capacity_response item_response = request(w, &a);
    for (int i = 0; i < 5; i++) {
        uint64_t last = item_response.gets.id;
        w->now += item_response.gets.refresh_interval;
        item_response = request(w, &a);
        assert_true(item_response.gets.id != last);
    }
    world_stop(w);
}

/* G2 */
TEST(unmatched_resources_can_be_refused) {
    world *w = world_start(100, NULL);
    const doorman_config_options options = {.reject_unmatched = true};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    reload(w, config);
    holder a = {.id = "a", .wants = 5};
    doorman_capacity_response item_response = request(w, &a);
    assert_int_equal(item_response.outcome, DOORMAN_UNMATCHED);
    assert_true(item_response.gets.refresh_interval > 0);
    world_stop(w);
}

/* G5, S2: earlier leases may end later than new, shorter leases. Each lease ends on time. */
TEST(a_reload_that_shortens_leases_keeps_the_earlier_ones) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 50}, b = {.id = "b", .wants = 50};
    assert_about(request_capacity(w, &a), 50);
    const doorman_algorithm quick = {.lease_length = 6 * SECOND,
                                     .refresh_interval = 2 * SECOND,
                                     .has_learning_mode_duration = true};
    reload(w, config_of(100, &quick));
    assert_int_equal(request(w, &b).gets.expires_in, 6 * SECOND);
    doorman_time start = w->now, quick_end = start + 6 * SECOND + 6 * SECOND / 20;
    w->now = quick_end - 1;
    assert_about(read_resource(w).has, 100);
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    for (int holders = 0; holders < 2; holders++) {
        assert_true(doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now));
    }
    assert_false(doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now));
    w->now = quick_end;
    assert_about(read_resource(w).has, 50);
    w->now = start + 63 * SECOND - 1;
    assert_about(read_resource(w).has, 50);
    w->now += 1;
    assert_int_equal(read_resource(w).holder_count, 0);
    world_stop(w);
}

/* C7 */
TEST(a_bound_refuses_only_the_new_holder) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    const doorman_server_options bounds = {
        .resource_max = 2, .holder_max = 2, .resource_max_per_holder = 1};
    world *w = world_start_full(100, &quick, bounds);
    holder a = {.id = "a", .wants = 5}, b = {.id = "b", .wants = 5}, c = {.id = "c", .wants = 5};
    assert_about(request_capacity(w, &a), 5);
    assert_about(request_capacity(w, &b), 5);
    assert_int_equal(request(w, &c).outcome, DOORMAN_FULL); /* bound: holders of one resource */
    doorman_capacity_response item_response;
    assert_int_equal(request_resource(w, "two", &a, &item_response), DOORMAN_OK);
    assert_int_equal(item_response.outcome, DOORMAN_FULL); /* bound: resources of one holder */
    assert_int_equal(request_resource(w, "two", &c, &item_response), DOORMAN_OK);
    assert_int_equal(item_response.outcome, DOORMAN_GRANTED);
    holder d = {.id = "d", .wants = 5};
    assert_int_equal(request_resource(w, "three", &d, &item_response), DOORMAN_OK);
    assert_int_equal(item_response.outcome, DOORMAN_FULL); /* bound: resources */
    assert_int_equal(w->events[DOORMAN_EVENT_FULL], 3);
    w->now += 6 * SECOND;
    assert_about(request_capacity(w, &a), 5);
    world_stop(w);
}

/* C7: a resource that is refused takes no room from others. */
TEST(a_refused_resource_leaves_nothing_behind) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    const doorman_server_options bounds = {.resource_max_per_holder = 1};
    world *w = world_start_full(100, &quick, bounds);
    holder a = {.id = "a", .wants = 5};
    assert_about(request_capacity(w, &a), 5);
    doorman_capacity_response item_response;
    size_t holders = 0;
    assert_int_equal(request_resource(w, "two", &a, &item_response), DOORMAN_OK);
    assert_int_equal(item_response.outcome, DOORMAN_FULL);
    assert_int_equal(count_resources(w, &holders), 1);
    world_stop(w);
}

static const struct {
    doorman_capacity_request item_request;
    doorman_demand demand;
    const char *text;
} wrong_items[] = {
    {{.resource_id = ""}, {1, 1, 1}, "items[1].resource_id: "},
    {{.resource_id = "a\x01"}, {1, 1, 1}, "items[1].resource_id: "},
    {{.resource_id = "\xff"}, {1, 1, 1}, "items[1].resource_id: "},
    {{.resource_id = "good"}, {1, 1, 1}, "items[1].resource_id: the same"},
    {{.resource_id = "x"}, {-1, 1, 1}, "items[1].wants[0].wants: "},
    {{.resource_id = "x"}, {NAN, 1, 1}, "items[1].wants[0].wants: "},
    {{.resource_id = "x"}, {INFINITY, 1, 1}, "items[1].wants[0].wants: "},
    {{.resource_id = "x"}, {1.1e15, 1, 1}, "items[1].wants[0].wants: "},
    {{.resource_id = "x"}, {1, 1, 16}, "items[1].wants[0].priority: "},
    {{.resource_id = "x"}, {1, 1, -1}, "items[1].wants[0].priority: "},
    {{.resource_id = "x"}, {1, 2, 1}, "items[1].wants[0].subclients: "},
    {{.resource_id = "x"}, {1, 0.5, 1}, "items[1].wants[0].subclients: "},
    {{.resource_id = "x", .outstanding = -1}, {1, 1, 1}, "items[1].outstanding: "},
    {{.resource_id = "x", .has = {.id = 1, .node = "", .capacity = 1}},
     {1, 1, 1},
     "items[1].has.node: "},
    {{.resource_id = "x", .has = {.id = 1, .node = "n", .capacity = NAN}},
     {1, 1, 1},
     "items[1].has.capacity: "},
    {{.resource_id = "x", .has = {.id = 1, .node = "n", .expires_in = -1}},
     {1, 1, 1},
     "items[1].has.expires_in: "},
    {{.resource_id = "x", .has = {.id = (UINT64_C(1) << 53) + 1, .node = "n"}},
     {1, 1, 1},
     "items[1].has.id: "},
};

/* C5: a request that is invalid has no effect, even if its first half is valid. */
TEST(an_invalid_message_changes_nothing) {
    world *w = world_start(100, NULL);
    for (size_t i = 0; i < sizeof wrong_items / sizeof *wrong_items; i++) {
        const doorman_demand right = {10, 1, 1};
        doorman_capacity_request item_requests[2] = {
            {.resource_id = "good", .wants = &right, .wants_count = 1},
            wrong_items[i].item_request};
        item_requests[1].wants = &wrong_items[i].demand;
        item_requests[1].wants_count = 1;
        const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                         .holder_id = "a",
                                         .items = item_requests,
                                         .item_count = 2};
        doorman_response response;
        doorman_cursor cursor = {0};
        doorman_server_resource resource;
        assert_int_equal(doorman_server_handle(w->server, &request, &response, &w->error, w->now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_ptr_equal(strstr(w->error.text, wrong_items[i].text), w->error.text);
        assert_false(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    }
    holder no_id = {.id = "", .wants = 1};
    doorman_capacity_response item_response;
    assert_int_equal(request_resource(w, "db", &no_id, &item_response), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(w->error.text, "holder_id: " DOORMAN__ID_RULE);
    world_stop(w);
}

/* Fails unless a request has the status `expected`, has an error that begins with `reason`, and
 * adds no resource. */
static void expect_invalid(world *w, const doorman_request *request, doorman_status expected,
                           const char *reason) {
    doorman_response response;
    size_t holders = 0;
    assert_int_equal(doorman_server_handle(w->server, request, &response, &w->error, w->now),
                     expected);
    assert_ptr_equal(strstr(w->error.text, reason), w->error.text);
    assert_int_equal(count_resources(w, &holders), 0);
}

/* C5: invalid requests of clients and of child nodes, and invalid releases. */
TEST(an_invalid_request_changes_nothing) {
    static const char *const deep[DOORMAN__PATH_MAX + 1] = {
        "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f", "10", "11"};
    static const char *const nameless[] = {"child", ""};
    const doorman_demand two[] = {{1, 1, 1}, {1, 1, 1}}, wrong_first[] = {{-1, 1, 1}, {1, 1, 1}};
    const doorman_capacity_request none = {.resource_id = "db"};
    const doorman_capacity_request both = {.resource_id = "db", .wants = two, .wants_count = 2};
    const doorman_capacity_request bad = {
        .resource_id = "db", .wants = wrong_first, .wants_count = 2};
    const doorman_capacity_request nothing = {.resource_id = "db", .has.id = 0};
    const doorman_capacity_request large = {.resource_id = "db", .has.id = (UINT64_C(1) << 53) + 1};
#define ONE(item) .items = &(item), .item_count = 1
#define GETS .method = DOORMAN_GET_CAPACITY
#define NODE_GETS GETS, .is_server = true
#define RELEASES .method = DOORMAN_RELEASE_CAPACITY
    const struct {
        doorman_request request;
        const char *reason;
    } wrong[] = {
        {{GETS, .holder_id = "a", ONE(none)}, "items[0].wants: "},
        {{GETS, .holder_id = "a", ONE(both)}, "items[0].wants: "},
        {{NODE_GETS, .holder_id = "a", .path = nameless, .path_count = 1, ONE(both)},
         "path[0]: must be the holder_id"},
        {{NODE_GETS, .holder_id = "child", .path = nameless, .path_count = 1, ONE(bad)},
         "items[0].wants[0].wants: "},
        {{NODE_GETS, .holder_id = "a", .path = deep, .path_count = DOORMAN__PATH_MAX + 1,
          ONE(both)},
         "path: more than 16 nodes"},
        {{NODE_GETS, .holder_id = "a", .path = nameless, .path_count = 2, ONE(both)}, "path[1]: "},
        {{RELEASES, .holder_id = "a", ONE(nothing)}, "items[0].has.id: "},
        {{RELEASES, .holder_id = "a", ONE(large)}, "items[0].has.id: "},
    };
#undef ONE
#undef GETS
#undef NODE_GETS
#undef RELEASES
    const doorman_request unknown = {.method = DOORMAN_METHOD_COUNT};
    world *w = world_start(100, NULL);
    expect_invalid(w, &unknown, DOORMAN_NOT_FOUND, "no such method");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        expect_invalid(w, &wrong[i].request, DOORMAN_INVALID_ARGUMENT, wrong[i].reason);
    }
    world_stop(w);
}

TEST(a_list_without_its_elements_is_named) {
    static const struct {
        doorman_request request;
        const char *list;
    } rows[] = {
        {{.method = DOORMAN_GET_CAPACITY, .holder_id = "c", .item_count = 1}, "items"},
        {{.method = DOORMAN_GET_CAPACITY, .holder_id = "c", .is_server = true, .path_count = 1},
         "path"},
        {{.method = DOORMAN_ACQUIRE, .holder_id = "c", .permit_count = 1}, "permits"},
        {{.method = DOORMAN_REPORT, .holder_id = "c", .entry_count = 1}, "entries"},
        {{.method = DOORMAN_RENEW, .holder_id = "c", .hold_count = 1}, "holds"},
    };
    world *w = world_start(100, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        doorman_response response;
        doorman_error error = {0};
        assert_int_equal(
            doorman_server_handle(w->server, &rows[i].request, &response, &error, w->now),
            DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(error.text, rows[i].list, strlen(rows[i].list));
    }
    world_stop(w);
}

/* C5: invalid options create no server, and an invalid call does not change a server. */
TEST(invalid_server_options_are_refused) {
    world *w = world_start(100, NULL);
    const doorman_config *config = w->config;
    const struct {
        const char *field;
        doorman_server_options options;
    } wrongs[] = {
        {"node", {.config = config}},
        {"node", {.node = "", .config = config}},
        {"drift", {.node = "n", .config = config, .drift = -0.1}},
        {"drift", {.node = "n", .config = config, .drift = 1.1}},
        {"drift", {.node = "n", .config = config, .drift = strtod("nan", NULL)}},
        {"request_timeout", {.node = "n", .config = config, .request_timeout = -1}},
        {"request_timeout", {.node = "n", .config = config, .request_timeout = DOORMAN_SECOND}},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        doorman_server *server = NULL;
        doorman_status status =
            doorman_server_create(&server, &wrongs[i].options, &w->error, w->now);
        assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
        assert_null(server);
        assert_int_equal(strcspn(w->error.text, ":"), strlen(wrongs[i].field));
        assert_ptr_equal(strstr(w->error.text, wrongs[i].field), w->error.text);
    }
    const doorman_mastership nobodys[] = {{.address = NULL, .until = DOORMAN_NEVER},
                                          {.address = "a\tb", .until = DOORMAN_NEVER},
                                          {.address = ""}};
    for (size_t i = 0; i < sizeof nobodys / sizeof *nobodys; i++) {
        assert_int_equal(doorman_server_set_master(w->server, &nobodys[i], w->now),
                         DOORMAN_INVALID_ARGUMENT);
    }
    assert_int_equal(doorman_server_configure(w->server, NULL, w->now), DOORMAN_INVALID_ARGUMENT);
    holder a = {.id = "a", .wants = 10};
    assert_about(request_capacity(w, &a), 10); /* mastership and configuration are unchanged */
    world_stop(w);
}

/* S8: with a drift of 1 a lease entry lasts twice as long as its lease. */
TEST(a_configured_drift_is_applied) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    world *w = world_start_full(100, &quick, (doorman_server_options){.drift = 1});
    holder a = {.id = "a", .wants = 10};
    assert_about(request_capacity(w, &a), 10);
    w->now += 120 * SECOND - 1;
    assert_int_equal(read_resource(w).holder_count, 1);
    w->now++;
    assert_int_equal(read_resource(w).holder_count, 0);
    world_stop(w);
}

/* An iteration over the leases of an unknown resource is empty. */
TEST(an_iteration_over_leases_ends_with_the_mastership) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 10};
    doorman_capacity_response item_response;
    doorman_server_resource resource;
    doorman_server_lease lease;
    doorman_cursor cursor = {0}, leases = {0};
    const doorman_mastership brief = {.address = "tcp://here:1", .until = w->now + 5 * SECOND};
    assert_int_equal(doorman_server_set_master(w->server, &brief, w->now), DOORMAN_OK);
    assert_int_equal(request_resource(w, "one", &a, &item_response), DOORMAN_OK);
    assert_int_equal(request_resource(w, "two", &a, &item_response), DOORMAN_OK);
    assert_false(doorman_server_next_lease(w->server, "three", &leases, &lease, w->now));
    assert_true(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    w->now += 5 * SECOND;
    assert_false(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    assert_int_equal(due_of(w), DOORMAN_NEVER);
    work(w);
    assert_int_equal(due_of(w), DOORMAN_NEVER);
    world_stop(w);
}

/* G1. In the original Doorman a slash in an id causes a crash if * is the only template. */
TEST(ids_can_contain_slashes_stars_and_brackets) {
    world *w = world_start(100, NULL);
    const char *const ids[] = {"a/b/c", "*", "[", "[a", "\\", "?", "../..", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        holder a = {.id = ids[i], .wants = 10};
        doorman_capacity_response item_response;
        assert_int_equal(request_resource(w, ids[i], &a, &item_response), DOORMAN_OK);
        assert_int_equal(item_response.outcome, DOORMAN_GRANTED);
        assert_about(item_response.gets.capacity, 10);
    }
    world_stop(w);
}

/* C1: if the clock goes back, time stands still. */
TEST(a_clock_that_goes_back_stands_still) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 90};
    assert_about(request_capacity(w, &a), 90);
    w->now -= 500 * SECOND;
    assert_about(request_capacity(w, &a), 90);
    w->now += 500 * SECOND + 63 * SECOND;
    assert_int_equal(read_resource(w).holder_count, 0);
    world_stop(w);
}

/* R1 */
TEST(lease_ids_are_unique) {
    enum { ROUNDS = 2000 };
    world *w = world_start(100, NULL);
    static uint64_t ids[ROUNDS];
    holder a = {.id = "a", .wants = 90};
    for (size_t i = 0; i < ROUNDS; i++) {
        w->now += 6 * SECOND;
        ids[i] = request(w, &a).gets.id;
        assert_true(ids[i] >= 1 && ids[i] <= UINT64_C(1) << 53);
        for (size_t j = 0; j < i; j++) assert_true(ids[i] != ids[j]);
        const doorman_mastership no_master = {.until = 0};
        if (i % 100 == 0) {
            assert_int_equal(doorman_server_set_master(w->server, &no_master, w->now), DOORMAN_OK);
            become_master(w);
        }
    }
    world_stop(w);
}

/* S2: expired leases are freed without any request. */
TEST(update_frees_expired_leases) {
    world *w = world_start(100, NULL);
    for (int i = 0; i < 100; i++) {
        char id[16];
        snprintf(id, sizeof id, "h%d", i);
        holder h = {.id = id, .wants = 1};
        assert_about(request_capacity(w, &h), 1);
    }
    doorman_time due = due_of(w);
    assert_true(due <= w->now + 63 * SECOND);
    w->now += 63 * SECOND;
    work(w);
    size_t holders = 0;
    assert_int_equal(count_resources(w, &holders), 0);
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], 100);
    assert_int_equal(due_of(w), DOORMAN_NEVER);
    world_stop(w);
}

/* Checks that the heap of resources is in order, and that each resource is due no later than its
 * first lease entry ends. */
static void audit_dues(const world *w) {
    const doorman__timers *dues = &w->server->dues;
    assert_int_equal(dues->count, w->server->resources.count);
    for (size_t i = 0; i < dues->count; i++) {
        const doorman__resource_entry *resource =
            DOORMAN__WITHIN(doorman__resource_entry, due, dues->heap[i].timer);
        const doorman__lease_entry *first = doorman__leases_first(&resource->leases);
        assert_true(!first || resource->due.at <= first->end);
        assert_true(resource->due.at >= dues->heap[0].at);
        assert_int_equal(resource->due.position, i + 1);
    }
}

/* S2: the leases of resources end at random times. When no more update is due, all resources
 * without a lease are removed. The next update is due at least a second later. */
TEST(an_update_removes_all_resources_that_have_ended) {
    enum { RESOURCES = 50 };
    world *w = world_start(100, NULL);
    for (int step = 0; step < 5000; step++) {
        char id[16];
        doorman_capacity_response item_response;
        snprintf(id, sizeof id, "%zu", random_below(RESOURCES));
        assert_int_equal(request_resource(w, id, &(holder){.id = "h", .wants = 1}, &item_response),
                         DOORMAN_OK);
        audit_dues(w);
        w->now += (doorman_time)(random_unit() * 4e9);
        if (due_of(w) > w->now) {
            w->now += random_below(2) ? DOORMAN_SECOND : 0;
            if (due_of(w) > w->now) continue;
        }
        do {
            work(w);
        } while (due_of(w) <= w->now);
        audit_dues(w);
        assert_true(due_of(w) >= w->now + DOORMAN_SECOND);
        doorman_cursor cursor = {0};
        for (doorman__link *link; (link = doorman__cursor_next(&cursor, &w->server->resources));) {
            doorman__resource_entry *resource = (doorman__resource_entry *)(void *)link;
            assert_true(doorman__leases_first(&resource->leases)->end > w->now);
        }
    }
    w->now += 64 * SECOND;
    do {
        work(w);
    } while (due_of(w) <= w->now);
    assert_int_equal(w->server->resources.count, 0);
    assert_int_equal(due_of(w), DOORMAN_NEVER);
    world_stop(w);
}

TEST(an_update_is_due_at_once_when_the_last_holder_releases) {
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 1}, b = {.id = "b", .wants = 1};
    (void)request(w, &a);
    (void)request(w, &b);
    work(w);
    w->now += 1;
    release(w, &a, a.has.id);
    assert_true(due_of(w) > w->now);
    release(w, &b, b.has.id);
    assert_int_equal(due_of(w), w->now);
    work(w);
    assert_int_equal(w->server->resources.count, 0);
    world_stop(w);
}

/* R1: with the same seed, a process that restarts would repeat the ids of its leases. */
TEST(a_server_without_a_seed_is_refused) {
    doorman_config *config = config_of(100, NULL);
    doorman_server_options options = {.node = "root", .config = config};
    doorman_server *server = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_server_create(&server, &options, &error, 0), DOORMAN_INVALID_ARGUMENT);
    assert_null(server);
    assert_string_equal(error.text,
                        "seed: must not be 0, but random bits that are new for each process");
    for (int i = 0; i < 2; i++) {
        options.seed[i] = 1;
        assert_int_equal(doorman_server_create(&server, &options, &error, 0), DOORMAN_OK);
        doorman_server_destroy(server);
        options.seed[i] = 0;
    }
    doorman_config_destroy(config);
}

/* Only a program with nng takes random bits of the system, and this test has no nng. */
TEST(a_client_without_a_seed_is_refused_without_nng) {
    static const char *const addresses[] = {"tcp://a:1"};
    const doorman_client_options options = {
        .client_id = "c", .addresses = addresses, .address_count = 1};
    doorman_client *client = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_client_create(&client, &options, &error, 0), DOORMAN_INVALID_ARGUMENT);
    assert_null(client);
    assert_memory_equal(error.text, "seed: must not be 0", strlen("seed: must not be 0"));
}

/* S4: a kind that does not divide the capacity needs no learning. */
TEST(a_resource_shows_whether_it_learns) {
    for (int is_static = 0; is_static < 2; is_static++) {
        const doorman_algorithm algorithm = {.kind = is_static ? DOORMAN_STATIC_SHARE
                                                               : DOORMAN_FAIR_SHARE};
        world *w = world_start(100, &algorithm);
        holder a = {.id = "a", .wants = 1};
        (void)request(w, &a);
        doorman_server_resource resource = read_resource(w);
        doorman_time learned_at = w->now + 63 * SECOND;
        assert_int_equal(resource.divides_capacity, !is_static);
        assert_int_equal(resource.is_learning, !is_static);
        assert_int_equal(resource.learned_at, learned_at);
        for (; w->now < learned_at - 1; w->now += 10 * SECOND) (void)request(w, &a);
        w->now = learned_at - 1;
        assert_int_equal(read_resource(w).is_learning, !is_static);
        w->now = learned_at;
        assert_false(read_resource(w).is_learning);
        world_stop(w);
    }
}

/* R8: even before a holder asks, a root knows how long it learns. A server that is not master, or
 * whose mastership has ended, does not learn. */
TEST(a_root_says_when_it_stops_learning) {
    for (int is_static = 0; is_static < 2; is_static++) {
        const doorman_algorithm algorithm = {.kind = is_static ? DOORMAN_STATIC_SHARE
                                                               : DOORMAN_FAIR_SHARE};
        world *w = world_start(100, &algorithm);
        doorman_time ends = w->now + 63 * SECOND, expected = is_static ? 0 : ends;
        assert_int_equal(doorman_server_learns_until(w->server, w->now), expected);
        assert_int_equal(doorman_server_learns_until(w->server, ends - 1), expected);
        assert_int_equal(doorman_server_learns_until(w->server, ends), 0);
        doorman_mastership mastership = {.address = "tcp://here:1", .until = ends - 1};
        assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
        assert_int_equal(doorman_server_learns_until(w->server, ends - 2), expected);
        assert_int_equal(doorman_server_learns_until(w->server, ends - 1), 0);
        mastership.until = 0;
        assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
        assert_int_equal(doorman_server_learns_until(w->server, w->now), 0);
        world_stop(w);
    }
}

/* Returns the overshoot that the iterator shows. A look-up must show the same overshoot. */
static double overshoot(world *w) {
    doorman_server_resource resource = {.overshoot = -1};
    doorman_cursor cursor = {0};
    assert_true(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    assert_exact(resource.overshoot, read_resource(w).overshoot);
    return resource.overshoot;
}

/* Sets what a holder has, as a faulty server would. */
static void force_lease(world *w, const char *holder_id, double has) {
    uint64_t hash = doorman__hash(w->server->options.seed, "db");
    doorman__lease_table *leases = &doorman__server_find(w->server, hash, "db")->leases;
    hash = doorman__holder_hash(w->server, holder_id, false);
    doorman__leases_set_amounts(leases, doorman__leases_find(leases, hash, holder_id, false), has,
                                has);
}

/* S12: T7 holds for the older capacity until the leases from before the cut have ended. */
TEST(a_cut_is_no_overshoot_until_the_older_leases_have_ended) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 60}, b = {.id = "b", .wants = 40};
    doorman_time ended = w->now + 63 * SECOND;
    assert_about(request_capacity(w, &a), 60);
    assert_about(request_capacity(w, &b), 40);
    assert_exact(overshoot(w), 0);
    reload(w, config_of(30, &quick));
    assert_about(read_resource(w).has - read_resource(w).capacity, 70);
    assert_exact(overshoot(w), 0);
    w->now += 16 * SECOND;
    assert_about(request_capacity(w, &a), 15);
    assert_exact(overshoot(w), 0);
    force_lease(w, "a", 80);
    assert_about(overshoot(w), 20); /* the sum is 120, more than the older capacity */
    force_lease(w, "a", 50);
    w->now = ended - 1;
    assert_exact(overshoot(w), 0);
    w->now = ended; /* holder b is gone; holder a has a lease from after the cut */
    assert_about(overshoot(w), 20);
    force_lease(w, "a", 30);
    assert_exact(overshoot(w), 0);
    world_stop(w);
}

/* S12: each older capacity counts until its own leases have ended. Only two are stored. So a third
 * cut joins the last two: the larger counts until the later end. After a raise, smaller ones have
 * no effect. */
TEST(each_older_capacity_counts_until_its_own_leases_have_ended) {
    const double capacities[] = {80, 50, 20};
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    for (size_t cuts = 1; cuts <= 3; cuts++) {
        world *w = world_start(100, NULL);
        doorman_time start = w->now;
        holder a = {.id = "a", .wants = 10};
        for (size_t i = 0; i < cuts; i++, w->now += 10 * SECOND) {
            assert_about(request_capacity(w, &a), 10);
            reload(w, config_of(capacities[i], &quick));
        }
        assert_about(request_capacity(w, &a), 10);
        force_lease(w, "a", 200);
        for (size_t i = 0; i < cuts; i++) {
            double most = i == 0 ? 100 : cuts == 3 && i == 2 ? 80 : capacities[i - 1];
            w->now = start + (doorman_time)i * 10 * SECOND + 63 * SECOND - 1;
            assert_about(overshoot(w), 200 - most);
        }
        w->now++;
        assert_about(overshoot(w), 200 - capacities[cuts - 1]);
        reload(w, config_of(200, &quick));
        assert_exact(overshoot(w), 0);
        world_stop(w);
    }
}

/* S12: a lease from before the cut may be from a still earlier configuration with longer leases. */
TEST(an_older_capacity_counts_until_its_longest_lease_has_ended) {
    const doorman_algorithm quick = {.lease_length = 20 * SECOND,
                                     .refresh_interval = 5 * SECOND,
                                     .has_learning_mode_duration = true};
    world *w = world_start(100, NULL);
    holder a = {.id = "a", .wants = 100};
    assert_about(request_capacity(w, &a), 100);
    reload(w, config_of(100, &quick));
    reload(w, config_of(30, &quick));
    w->now += 63 * SECOND - 1;
    assert_about(read_resource(w).has, 100);
    assert_exact(overshoot(w), 0);
    world_stop(w);
}

/* S12: leases that no capacity bounded are no overshoot of a capacity that comes later. */
TEST(a_new_kind_is_no_overshoot_until_the_older_leases_have_ended) {
    const doorman_algorithm none = {.kind = DOORMAN_NO_ALGORITHM},
                            quick = {.has_learning_mode_duration = true};
    world *w = world_start(100, &none);
    doorman_time ended = w->now + 63 * SECOND;
    holder a = {.id = "a", .wants = 1000}, b = {.id = "b", .wants = 10};
    assert_about(request_capacity(w, &a), 1000);
    reload(w, config_of(100, &quick));
    w->now += 20 * SECOND;
    (void)request(w, &b);
    assert_true(read_resource(w).has > 100);
    assert_exact(overshoot(w), 0);
    force_lease(w, "b", 110);
    w->now = ended - 1;
    assert_exact(overshoot(w), 0);
    w->now = ended;
    assert_about(overshoot(w), 10);
    world_stop(w);
}

/* S2, S12: one call removes only a part of very many leases that end together. */
TEST(leases_that_have_ended_together_are_no_overshoot) {
    enum { HOLDERS = 2500 };
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    world *w = world_start(HOLDERS, NULL);
    doorman_time ended = w->now + 63 * SECOND;
    for (int i = 0; i < HOLDERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "h%d", i);
        assert_about(request_capacity(w, &(holder){.id = id, .wants = 1}), 1);
    }
    reload(w, config_of(10, &quick));
    for (w->now = ended - 1; w->now < ended + 3; w->now++) {
        doorman_server_resource resource = read_resource(w);
        assert_true(resource.has > 10 || w->now == ended + 2);
        assert_exact(resource.overshoot, 0);
    }
    world_stop(w);
}

/* R7, S12: a child that learns gets its last lease again, even after a cut. */
TEST(the_lease_of_a_child_that_learns_is_no_overshoot) {
    const doorman_algorithm quick = {.has_learning_mode_duration = true};
    world *w = world_start(100, NULL);
    const doorman_demand demand = {60, 1, 1};
    doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = true,
                                     .holder_id = "child",
                                     .items = &item,
                                     .item_count = 1};
    doorman_response response;
    for (int i = 0; i < 3; i++, w->now += 30 * SECOND) {
        assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                         DOORMAN_OK);
        assert_about(response.items[0].gets.capacity, 60);
        if (i == 0) reload(w, config_of(30, &quick));
        item.learning = true;
    }
    w->now -= 30 * SECOND; /* the child got its lease again 30 and 60 s after the cut */
    assert_exact(overshoot(w), 0);
    w->now += 63 * SECOND - 1;
    assert_about(read_resource(w).has, 60);
    assert_exact(overshoot(w), 0);
    world_stop(w);
}

/* Two processes that share an id count as one holder, so their use together is no overshoot.
 * Amounts that are not parts of the capacity cannot exceed it. */
TEST(a_shared_id_or_an_undivided_amount_is_no_overshoot) {
    world *w = world_start(100, NULL);
    holder a = {.id = "same", .wants = 80}, b = a;
    for (int i = 0; i < 5; i++, w->now += 16 * SECOND) {
        assert_about(request_capacity(w, &a), 80);
        assert_about(request_capacity(w, &b), 80);
    }
    assert_true(w->events[DOORMAN_EVENT_SHARED_ID] > 0);
    assert_exact(overshoot(w), 0);
    world_stop(w);
    const doorman_algorithm undivided = {.kind = DOORMAN_NO_ALGORITHM};
    w = world_start(100, &undivided);
    a = (holder){.id = "a", .wants = 1000};
    assert_about(request_capacity(w, &a), 1000);
    assert_exact(overshoot(w), 0);
    world_stop(w);
}

/* S2: each update frees only a part of many expired leases, so that no request waits long. The
 * other expired leases do not change any response. */
TEST(an_update_with_much_work_does_a_part_and_is_due_again) {
    enum { HOLDERS = 25000 };
    world *w = world_start(100, NULL);
    holder late = {.id = "late", .wants = 100};
    for (int i = 0; i < HOLDERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "h%d", i);
        doorman_capacity_response item_response;
        assert_int_equal(
            request_resource(w, "other", &(holder){.id = id, .wants = 1}, &item_response),
            DOORMAN_OK);
    }
    w->now += 63 * SECOND;
    int updates = 0;
    for (; due_of(w) <= w->now && updates < 10; updates++) {
        size_t before = w->events[DOORMAN_EVENT_EXPIRED];
        work(w);
        assert_true(w->events[DOORMAN_EVENT_EXPIRED] - before <= 10000);
        if (updates == 0) assert_about(request_capacity(w, &late), 100);
    }
    assert_int_equal(updates, 3);
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], HOLDERS);
    size_t holders = 0;
    assert_int_equal(count_resources(w, &holders), 1);
    assert_int_equal(holders, 1);
    world_stop(w);
}

/* S2: one call removes only a part of very many expired leases. The rest still counts as committed,
 * except for the lease of a holder that asks again. */
TEST(a_call_removes_only_a_part_of_many_expired_leases) {
    enum { HOLDERS = 5000 };
    world *w = world_start(HOLDERS, NULL);
    holder last = {.id = "h4999", .wants = 1}, late = {.id = "late", .wants = 2 * HOLDERS};
    for (int i = 0; i < HOLDERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "h%d", i);
        assert_about(request_capacity(w, &(holder){.id = id, .wants = 1}), 1);
    }
    w->now += 63 * SECOND;
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], 0);
    assert_int_equal(read_resource(w).holder_count, HOLDERS - 1000);
    assert_about(read_resource(w).has, HOLDERS - 2000);
    assert_about(request_capacity(w, &late), 3000);
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], 3000);
    assert_about(request_capacity(w, &last), 1);
    assert_int_equal(w->events[DOORMAN_EVENT_EXPIRED], 4001);
    assert_int_equal(read_resource(w).expired_count, HOLDERS);
    assert_int_equal(read_resource(w).holder_count, 2);
    world_stop(w);
}

/* Lets the holder "h" request the resource whose id is `number`. */
static void request_by_number(world *w, int number) {
    char id[16];
    doorman_capacity_response item_response;
    snprintf(id, sizeof id, "%d", number);
    assert_int_equal(request_resource(w, id, &(holder){.id = "h", .wants = 1}, &item_response),
                     DOORMAN_OK);
}

/* Requests the resource whose id is `number`, or "db" for the holder whose id is `number`. */
static void ask_as_number(world *w, bool is_holder, int number) {
    char id[16];
    holder h = {.id = id, .wants = 1};
    snprintf(id, sizeof id, "%d", number);
    if (is_holder) {
        (void)request(w, &h);
    } else {
        request_by_number(w, number);
    }
}

/* Takes up to `steps` steps of an iteration over the resources, or over the leases of "db", and
 * counts how often each element is seen. Returns whether there may be more. */
static bool iterate(world *w, bool leases, doorman_cursor *cursor, int steps, int *visits) {
    doorman_server_resource resource;
    doorman_server_lease lease;
    bool more = true;
    for (int i = 0; i < steps && more; i++) {
        more = leases ? doorman_server_next_lease(w->server, "db", cursor, &lease, w->now)
                      : doorman_server_next_resource(w->server, cursor, &resource, w->now);
        if (more) visits[atoi(leases ? lease.holder_id : resource.resource_id)]++;
    }
    return more;
}

/* Removes every second element while one iteration is at `place`, and another one in the middle.
 * Then adds `added` elements: one, or enough for the hash table to grow. */
static void check_iteration(bool leases, int place, int added) {
    enum { COUNT = 40, MOST = 1000 };
    int visits[2][COUNT + MOST] = {{0}};
    doorman_cursor cursors[2] = {{0}, {0}};
    world *w = world_start(100, NULL);
    for (int i = 0; i < COUNT; i++) ask_as_number(w, leases, i);
    w->now += 30 * SECOND;
    for (int i = 0; i < COUNT; i += 2) ask_as_number(w, leases, i);
    iterate(w, leases, &cursors[0], place, visits[0]);
    iterate(w, leases, &cursors[1], COUNT / 2, visits[1]);
    w->now += 40 * SECOND;
    work(w);
    for (int i = 0; i < added; i++) ask_as_number(w, leases, COUNT + i);
    for (int i = 0; i < 2; i++) {
        int before = 0, all = 0;
        for (int k = 0; k < COUNT; k++) before += visits[i][k];
        assert_int_equal(before, i == 0 ? place : COUNT / 2);
        assert_false(iterate(w, leases, &cursors[i], COUNT + MOST, visits[i]));
        assert_false(iterate(w, leases, &cursors[i], 1, visits[i])); /* it stays at the end */
        for (int k = 0; k < COUNT + MOST; k++) {
            if (k < COUNT && k % 2 == 0) assert_int_equal(visits[i][k], 1);
            assert_true(visits[i][k] <= 1);
            all += visits[i][k];
        }
        assert_true(all >= COUNT / 2 && all <= COUNT + added);
    }
    world_stop(w);
}

TEST(an_iteration_visits_each_lasting_element_exactly_once) {
    for (int leases = 0; leases < 2; leases++) {
        for (int place = 0; place <= 40; place++) check_iteration(leases, place, 1);
        check_iteration(leases, 13, 1000);
    }
}

TEST(an_iteration_continues_in_a_table_that_shrinks) {
    enum { COUNT = 1000, KEPT = 10 };
    int visits[COUNT] = {0};
    doorman_cursor cursor = {0};
    world *w = world_start(100, NULL);
    for (int i = 0; i < COUNT; i++) request_by_number(w, i);
    w->now += 30 * SECOND;
    for (int i = 0; i < KEPT; i++) request_by_number(w, i);
    assert_true(iterate(w, false, &cursor, COUNT / 2, visits));
    w->now += 40 * SECOND;
    work(w);
    assert_false(iterate(w, false, &cursor, COUNT, visits));
    for (int i = 0; i < COUNT; i++) assert_true(visits[i] <= 1 && (visits[i] == 1 || i >= KEPT));
    world_stop(w);
}

/* A server that is no longer master has nothing to iterate over, and finds nothing. */
TEST(an_iteration_ends_with_the_mastership) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    world *w = world_start(100, NULL);
    for (int i = 0; i < 3; i++) request_by_number(w, i);
    assert_true(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    assert_true(doorman_server_find(w->server, "1", &resource, w->now));
    assert_string_equal(resource.resource_id, "1");
    assert_int_equal(resource.holder_count, 1);
    assert_false(doorman_server_find(w->server, "3", &resource, w->now));
    assert_string_equal(resource.resource_id, "1");
    const doorman_mastership no_master = {.until = 0};
    assert_int_equal(doorman_server_set_master(w->server, &no_master, w->now), DOORMAN_OK);
    assert_false(doorman_server_next_resource(w->server, &cursor, &resource, w->now));
    assert_false(doorman_server_find(w->server, "1", &resource, w->now));
    world_stop(w);
}

/* C9, A4, T7: holders act at random. Some of them lose their lease, report units in use, release,
 * or let their lease end. At every step the sums equal a recount of the leases, and the invariant
 * of section >>leases holds. */
TEST(sums_equal_a_recount_over_random_histories) {
    enum { HOLDERS = 20, STEPS = 20000 };
    world *w = world_start(100, NULL);
    holder h[HOLDERS];
    char ids[HOLDERS][16];
    memset(h, 0, sizeof h);
    for (int i = 0; i < HOLDERS; i++) {
        snprintf(ids[i], sizeof ids[i], "h%d", i);
        h[i].id = ids[i];
    }
    for (int step = 0; step < STEPS; step++) {
        holder *one = &h[random_below(HOLDERS)];
        w->now += (doorman_time)(random_unit() * 8e9);
        if (random_below(4) == 0) one->wants = random_unit() * 40;
        if (random_below(16) == 0) one->has.id = 0;
        if (random_below(16) == 0) one->outstanding = random_unit() * 20;
        if (random_below(16) == 0) release(w, one, one->has.id ? one->has.id : 1);
        assert_true(request_capacity(w, one) <= one->wants + 1e-12);
        doorman_server_resource sums = read_resource(w);
        doorman_server_lease lease;
        doorman_cursor cursor = {0};
        double has = 0, counted = 0, wants = 0;
        size_t count = 0;
        while (doorman_server_next_lease(w->server, "db", &cursor, &lease, w->now)) {
            has += lease.has;
            counted += lease.committed;
            wants += lease.wants;
            count++;
        }
        assert_true(sums.committed <= 100); /* exactly, without tolerance */
        assert_about(sums.has, has);
        assert_about(sums.committed, counted);
        assert_about(sums.wants, wants);
        assert_int_equal(sums.holder_count, count);
    }
    w->now += 63 * SECOND;
    assert_true(read_resource(w).committed <= 0 && read_resource(w).has <= 0 &&
                read_resource(w).wants <= 0);
    world_stop(w);
}
