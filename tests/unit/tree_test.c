/* Tests trees of servers, as section >>server of doorman.h promises them (T1 to T9, R7, R8). Nodes
 * and clients are in one process, the test delivers their messages, and time is a variable. */
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#include <math.h>

#define SECOND DOORMAN_SECOND
#define NODES_MAX 32
#define LEVELS_MAX 4

/* ---- a forest in one process ----------------------------------------------------------------- */

typedef struct node {
    char name[16];
    doorman_server *server; /* NULL: the node is dead */
    int parent;             /* the index of its parent; -1: the node is a root */
    uint64_t incarnation;
} node;

typedef struct forest_client {
    char id[24];
    int node;
    doorman_client *client;
    doorman_client_resource *resource;
    double wants;
    int priority;
    bool stalled; /* the requests of this client are not sent */
} forest_client;

typedef struct forest {
    doorman_time now;
    doorman_config *config;
    node nodes[NODES_MAX];
    size_t node_count;
    forest_client *clients;
    size_t client_count, client_capacity;
    bool cut[NODES_MAX];      /* the connection from this node to its parent is cut */
    bool divide_leases;       /* leases of nodes may have parts of units */
    bool hide_algorithm;      /* responses are changed so that they name no algorithm */
    uint64_t started_clients; /* the number of clients that were added */
    size_t largest_request;   /* the largest number of items in one request */
    size_t refused;           /* the number of requests that were answered with an error */
    doorman_error error;      /* the last error */
    size_t events[DOORMAN_EVENT_COUNT];
} forest;

static void count_event(void *context, const doorman_event *event) {
    forest *f = (forest *)context;
    f->events[event->kind]++;
}

static void start_node(forest *f, int index) {
    node *n = &f->nodes[index];
    const char *parents[] = {n->parent >= 0 ? f->nodes[n->parent].name : ""};
    doorman_server_options options = {.node = n->name, .on_event = count_event, .context = f};
    if (n->parent < 0) options.config = f->config;
    if (n->parent >= 0) options.parents = parents, options.parent_count = 1;
    options.seed[0] = (uint64_t)index + 1;
    options.seed[1] = ++n->incarnation;
    doorman_error error = {0};
    doorman_status status = doorman_server_create(&n->server, &options, &error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s: %s", n->name, error.text);
    doorman_mastership mastership = {.address = n->name, .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(n->server, &mastership, f->now), DOORMAN_OK);
}

static void stop_node(forest *f, int index) {
    doorman_server_destroy(f->nodes[index].server);
    f->nodes[index].server = NULL;
}

static void restart_node(forest *f, int index) {
    stop_node(f, index);
    start_node(f, index);
}

static int add_node(forest *f, int parent) {
    int index = (int)f->node_count++;
    assert_true(f->node_count <= NODES_MAX);
    f->nodes[index].parent = parent;
    snprintf(f->nodes[index].name, sizeof f->nodes[index].name, "n%d", index);
    start_node(f, index);
    return index;
}

/* Starts a forest with one root, which has finished learning. */
static forest *forest_start(const doorman_template *templates, size_t count) {
    forest *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->now = 1000 * SECOND;
    doorman_config_options options = {.templates = templates, .template_count = count};
    assert_int_equal(doorman_config_create(&f->config, &options, NULL), DOORMAN_OK);
    add_node(f, -1);
    f->now += 1000 * SECOND;
    return f;
}

static forest *forest_start_one(double capacity, doorman_algorithm algorithm) {
    doorman_template all = {.identifier_glob = "*",
                            .capacity = capacity,
                            .has_algorithm = true,
                            .algorithm = algorithm};
    return forest_start(&all, 1);
}

static const doorman_algorithm fair = {.lease_length = 60 * DOORMAN_SECOND,
                                       .refresh_interval = 8 * DOORMAN_SECOND};

static void forest_stop(forest *f) {
    for (size_t i = 0; i < f->client_count; i++) doorman_client_destroy(f->clients[i].client);
    for (size_t i = 0; i < f->node_count; i++) doorman_server_destroy(f->nodes[i].server);
    doorman_config_destroy(f->config);
    free(f->clients);
    free(f);
}

static void start_client(forest *f, forest_client *m);

static forest_client *add_client(forest *f, int at, double wants, int priority) {
    if (f->client_count == f->client_capacity) {
        f->client_capacity = f->client_capacity ? 2 * f->client_capacity : 16;
        f->clients = realloc(f->clients, f->client_capacity * sizeof *f->clients);
        assert_non_null(f->clients);
    }
    forest_client *m = &f->clients[f->client_count];
    *m = (forest_client){.node = at, .wants = wants, .priority = priority};
    snprintf(m->id, sizeof m->id, "c%zu", f->client_count++);
    start_client(f, m);
    return m;
}

static void start_client(forest *f, forest_client *m) {
    const char *addresses[] = {f->nodes[m->node].name};
    doorman_client_options options = {.client_id = m->id,
                                      .addresses = addresses,
                                      .address_count = 1,
                                      .seed = ++f->started_clients};
    assert_int_equal(doorman_client_create(&m->client, &options, NULL, f->now), DOORMAN_OK);
    doorman_resource_options resource = {
        .resource_id = "db", .has_priority = true, .priority = m->priority};
    assert_int_equal(doorman_client_open(&m->resource, m->client, &resource, NULL, f->now),
                     DOORMAN_OK);
    assert_int_equal(doorman_client_set_wants(m->resource, m->wants, f->now), DOORMAN_OK);
}

/* Restarts a client under the same id. It has lost all its state. */
static void reset_client(forest *f, size_t client) {
    doorman_client_destroy(f->clients[client].client);
    start_client(f, &f->clients[client]);
}

static int node_at(const forest *f, const char *address) {
    for (size_t i = 0; i < f->node_count; i++) {
        if (strcmp(f->nodes[i].name, address) == 0) return (int)i;
    }
    return -1;
}

/* Delivers the request of an upstream, and the response. Messages take no time. Returns whether
 * there was a request. */
static bool exchange(forest *f, doorman_upstream *upstream, bool cut) {
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, f->now)) return false;
    int at = node_at(f, request.address);
    bool reached = !cut && at >= 0 && f->nodes[at].server;
    if (request.item_count > f->largest_request) f->largest_request = request.item_count;
    if (reached && doorman_server_handle(f->nodes[at].server, &request, &response, &f->error,
                                         f->now) != DOORMAN_OK) {
        reached = false;
        f->refused++;
    }
    if (!reached) {
        doorman_upstream_failed(upstream, request.sequence, f->now);
        return true;
    }
    for (size_t i = 0; f->hide_algorithm && i < response.item_count; i++) {
        ((doorman_capacity_response *)(uintptr_t)response.items)[i].algorithm = NULL;
    }
    for (size_t i = 0; f->divide_leases && request.is_server && i < response.item_count; i++) {
        doorman_lease *lease = &((doorman_capacity_response *)(uintptr_t)response.items)[i].gets;
        if (lease->capacity > 0) lease->capacity -= 0.5;
    }
    assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, f->now),
                     DOORMAN_OK);
    return true;
}

static double leased(const forest *f, const forest_client *m) {
    doorman_resource_info info = {.leased = false};
    if (m->resource) doorman_client_read(m->resource, &info, f->now);
    return info.leased ? info.capacity : 0;
}

static double sum_leased(const forest *f) {
    double sum = 0;
    for (size_t i = 0; i < f->client_count; i++) sum += leased(f, &f->clients[i]);
    return sum;
}

static void set_wants(forest *f, size_t client, double wants) {
    f->clients[client].wants = wants;
    assert_int_equal(doorman_client_set_wants(f->clients[client].resource, wants, f->now),
                     DOORMAN_OK);
}

static void set_stalled(forest *f, size_t client, bool stalled) {
    f->clients[client].stalled = stalled;
}

/* Handles everything that is due now, in all nodes and clients. */
static void handle_due(forest *f) {
    for (int round = 0; round < 100; round++) {
        bool busy = false;
        for (size_t i = 0; i < f->node_count; i++) {
            if (!f->nodes[i].server) continue;
            busy = exchange(f, doorman_server_upstream(f->nodes[i].server), f->cut[i]) || busy;
        }
        for (size_t i = 0; i < f->client_count; i++) {
            if (f->clients[i].stalled) continue;
            busy = exchange(f, doorman_client_upstream(f->clients[i].client), false) || busy;
        }
        if (!busy) return;
    }
    fail_msg("the messages do not end");
}

/* Lets time pass, in steps of 0.1 s, and checks that the leases never exceed the capacity (T7). */
static void run_for(forest *f, double seconds, double capacity) {
    for (int step = 0; step < (int)(seconds * 10 + 0.5); step++) {
        f->now += SECOND / 10;
        handle_due(f);
        double sum = sum_leased(f);
        if (sum > capacity * (1 + 1e-12)) {
            fail_msg("leases of %.17g in force, capacity %.17g, %g s later", sum, capacity,
                     (double)step / 10);
        }
    }
}

static bool resource_of(const forest *f, int at, doorman_server_resource *out) {
    doorman_cursor cursor = {0};
    return doorman_server_next_resource(f->nodes[at].server, &cursor, out, f->now);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Finds the client whose lease differs most from what one server would grant it. Returns the
 * difference as a part of its share.
 *   share   out: its share */
static double off_from_one_server(const forest *f, const doorman_algorithm *algorithm,
                                  double capacity, size_t *client, double *share) {
    doorman_demand *demands = calloc(f->client_count, sizeof *demands);
    double *shares = calloc(f->client_count, sizeof *shares);
    assert_true(demands && shares);
    for (size_t i = 0; i < f->client_count; i++) {
        demands[i] = (doorman_demand){f->clients[i].wants, 1, f->clients[i].priority};
    }
    assert_int_equal(
        doorman_shares(algorithm, capacity, demands, f->client_count, shares, NULL, NULL, NULL),
        DOORMAN_OK);
    double worst = 0;
    *client = 0;
    for (size_t i = 0; i < f->client_count; i++) {
        double off = fabs(leased(f, &f->clients[i]) - shares[i]) / fmax(shares[i], 1e-6);
        if (off > worst) worst = off, *client = i;
    }
    *share = shares[*client];
    free(shares);
    free(demands);
    return worst;
}

static void compare_with_one_server(const forest *f, const doorman_algorithm *algorithm,
                                    double capacity, double within) {
    size_t client;
    double share;
    if (off_from_one_server(f, algorithm, capacity, &client, &share) <= within) return;
    fail_msg("%s has %.9g, and should have %.9g", f->clients[client].id,
             leased(f, &f->clients[client]), share);
}

/* T1, T4: after the first request for a resource, a node asks its parent at once. The holder renews
 * one second later, and gets its share. */
TEST(a_first_request_through_a_node_gets_its_share_within_seconds) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, add_node(f, 0));
    forest_client *m = add_client(f, leaf, 40, 1);
    handle_due(f);
    assert_exact(leased(f, m), 0);
    run_for(f, 2.5, 100);
    assert_exact(leased(f, m), 40);
    /* The first TRY_LATER does not make any lease entry last longer. */
    for (int i = 0; i <= leaf; i++) {
        doorman_cursor cursor = {0};
        doorman_server_lease lease;
        assert_true(doorman_server_next_lease(f->nodes[i].server, "db", &cursor, &lease, f->now));
        assert_true(lease.expires_at <= f->now + 63 * SECOND);
    }
    forest_stop(f);
}

static int reason_of(const forest *f, const forest_client *m) {
    doorman_resource_info info;
    doorman_client_read(m->resource, &info, f->now);
    return (int)info.reason;
}

/* S14: the reason of a node's own lease comes from its parent, and the node finds the reasons for
 * its clients itself. First a client of the root holds everything, and the node gets a lease of 0.
 * The node has nothing to divide, so the lease of 0 of its client is the share of the client. */
TEST(a_node_reads_the_reason_of_its_own_lease_and_gives_its_own_reasons) {
    doorman_server_resource resource;
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, 0, 100, 1);
    handle_due(f);
    set_stalled(f, 0, true);
    add_client(f, leaf, 100, 1);
    add_client(f, leaf, 10, 1);
    run_for(f, 5, 100);
    assert_true(resource_of(f, leaf, &resource));
    assert_true(resource.leased);
    assert_exact(resource.capacity, 0);
    assert_int_equal(resource.reason, DOORMAN_LEASE_RESERVED);
    assert_int_equal(reason_of(f, &f->clients[1]), DOORMAN_LEASE_SHARE);
    set_stalled(f, 0, false);
    run_for(f, 60, 100);
    assert_true(resource_of(f, leaf, &resource));
    assert_about(resource.capacity, 55);
    assert_int_equal(resource.reason, DOORMAN_LEASE_SHARE);
    assert_int_equal(reason_of(f, &f->clients[0]), DOORMAN_LEASE_SHARE);
    assert_int_equal(reason_of(f, &f->clients[1]), DOORMAN_LEASE_SHARE);
    assert_int_equal(reason_of(f, &f->clients[2]), 0);
    set_wants(f, 0, 0);
    set_wants(f, 1, 20);
    run_for(f, 60, 100);
    assert_true(resource_of(f, leaf, &resource));
    assert_about(resource.capacity, 30);
    assert_int_equal(resource.reason, 0);
    assert_true(resource_of(f, 0, &resource));
    assert_int_equal(resource.reason, 0); /* a root has no lease of its own */
    forest_stop(f);
}

/* Starts a client with a gauge whose wants follow its use. */
static forest_client *add_gauge(forest *f, int at) {
    forest_client *m = add_client(f, at, 0, 1);
    const doorman_resource_options gauge = {.resource_id = "db", .kind = DOORMAN_GAUGE};
    doorman_client_close(m->resource, f->now);
    assert_int_equal(doorman_client_open(&m->resource, m->client, &gauge, NULL, f->now),
                     DOORMAN_OK);
    return m;
}

/* K6, S3, T1: idle clients of a tree want nothing, and all nodes know them. The first call of such
 * a client gets its unit within seconds, although nodes and clients ask only every 16 s. */
TEST(the_first_unit_of_an_idle_client_comes_through_a_tree_within_seconds) {
    const doorman_template all = {.identifier_glob = "*",
                                  .capacity = 100,
                                  .whole = true,
                                  .has_algorithm = true,
                                  .algorithm = {.decay_factor = 1}};
    for (int levels = 1; levels <= 3; levels++) {
        forest *f = forest_start(&all, 1);
        doorman_server_resource resource;
        int leaf = 0;
        for (int i = 0; i < levels; i++) leaf = add_node(f, leaf);
        for (int i = 0; i < 10; i++) add_gauge(f, leaf);
        add_client(f, leaf, 0, 1);
        run_for(f, 60, 100);
        assert_exact(sum_leased(f), 0);
        assert_true(resource_of(f, 0, &resource));
        assert_exact(resource.wants, 0);
        assert_exact(resource.subclients, 11);
        for (size_t i = 0; i < 10; i++) {
            if (i == 5) set_wants(f, 10, 30); /* the leaf is not idle any more */
            run_for(f, 10 + (double)random_below(30), 100);
            forest_client *m = &f->clients[i];
            doorman_time start = f->now;
            while (doorman_client_try(m->resource, 1, NULL, f->now) != DOORMAN_ALLOWED) {
                run_for(f, 0.5, 100);
                assert_true(f->now - start < 60 * SECOND);
            }
            if (f->now - start > (1 + 2 * levels) * SECOND)
                fail_msg("%d levels: %g s", levels, (double)(f->now - start) / 1e9);
        }
        forest_stop(f);
    }
}

/* T1: a spike under one leaf is met within seconds, although the root's child asks every 8 s. */
TEST(unmet_demand_is_sent_to_the_parent_early) {
    forest *f = forest_start_one(1000, fair);
    int leaf = add_node(f, add_node(f, 0));
    add_client(f, leaf, 40, 1);
    run_for(f, 20, 1000);
    set_wants(f, 0, 500);
    run_for(f, 10, 1000);
    assert_exact(leased(f, &f->clients[0]), 500);
    forest_stop(f);
}

/* T7: a leaf gets the share of another leaf only when that share is free. run_for checks every
 * step. */
TEST(a_share_moves_from_leaf_to_leaf) {
    forest *f = forest_start_one(100, fair);
    int region = add_node(f, 0), one = add_node(f, region), two = add_node(f, region);
    add_client(f, one, 100, 1);
    run_for(f, 10, 100);
    assert_exact(leased(f, &f->clients[0]), 100);
    add_client(f, two, 100, 1);
    run_for(f, 20, 100);
    assert_near(leased(f, &f->clients[0]), 50, 1e-9);
    assert_near(leased(f, &f->clients[1]), 50, 1e-9);
    forest_stop(f);
}

/* T3: the refresh interval is 8 s for the root's holders, 4 s one level below, then 2 s, and never
 * below 1.5 s. */
TEST(the_refresh_interval_falls_by_half_a_level) {
    doorman_algorithm algorithm = fair;
    algorithm.minimum_refresh_interval = 3 * SECOND / 2;
    forest *f = forest_start_one(100, algorithm);
    int at = 0;
    for (int level = 0; level < 4; level++) at = add_node(f, at);
    add_client(f, at, 40, 1);
    run_for(f, 60, 100);
    const double expected[] = {8, 4, 2, 1.5, 1.5};
    for (int i = 0; i <= 4; i++) {
        doorman_server_resource resource;
        assert_true(resource_of(f, i, &resource));
        assert_exact((double)resource.settings->algorithm.refresh_interval / SECOND, expected[i]);
    }
    forest_stop(f);
}

/* R7, R8: a leaf that restarts gets its last lease again at once, and its clients keep their
 * leases. It learns until the leases of its predecessor have ended. */
TEST(a_leaf_that_restarts_keeps_the_leases_of_its_clients) {
    forest *f = forest_start_one(100, fair);
    int region = add_node(f, 0), one = add_node(f, region), two = add_node(f, region);
    add_client(f, one, 100, 1);
    add_client(f, one, 30, 1);
    add_client(f, two, 100, 1);
    run_for(f, 60, 100);
    restart_node(f, one);
    for (int i = 0; i < 100; i++) {
        run_for(f, 1, 100);
        assert_near(sum_leased(f), 100, 1e-6);
    }
    compare_with_one_server(f, &fair, 100, 1e-6);
    forest_stop(f);
}

/* R7, R8: the leaf has been away for 3 s, and leases last 7 s. A client that has lost its lease
 * meanwhile gets its share when the leaf has finished learning. */
TEST(a_leaf_that_was_away_grants_the_old_leases_again) {
    doorman_algorithm algorithm = {.lease_length = 7 * SECOND, .refresh_interval = SECOND};
    forest *f = forest_start_one(1200, algorithm);
    int region = add_node(f, 0), one = add_node(f, region), two = add_node(f, region);
    for (int i = 0; i < 3; i++) add_client(f, one, 200, 1);
    for (int i = 0; i < 3; i++) add_client(f, two, 1000, 1);
    run_for(f, 60, 1200);
    stop_node(f, one);
    run_for(f, 3, 1200);
    start_node(f, one);
    reset_client(f, 2);
    for (size_t i = 0; i < 3; i++) set_wants(f, i, 300);
    run_for(f, 20, 1200);
    assert_near(sum_leased(f), 1200, 1e-6);
    forest_stop(f);
}

/* R6, R8: no holder grows while a leaf learns, because the leaf may not know all old leases yet. */
TEST(no_holder_grows_while_a_leaf_learns) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    add_client(f, leaf, 40, 1);
    run_for(f, 30, 100);
    /* Client 0 continues to use 60 until its lease ends, but its requests are not sent. */
    set_stalled(f, 0, true);
    restart_node(f, leaf);
    set_wants(f, 1, 100);
    run_for(f, 25, 100);
    assert_exact(leased(f, &f->clients[1]), 40);
    run_for(f, 60, 100);
    assert_exact(leased(f, &f->clients[1]), 100);
    forest_stop(f);
}

/* R8: as soon as its parent has answered, a leaf knows when it stops learning. A new leaf, which
 * has no lease at its parent, does not learn. */
TEST(a_leaf_says_when_it_stops_learning) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    assert_int_equal(doorman_server_learns_until(f->nodes[leaf].server, f->now), 0);
    restart_node(f, leaf);
    assert_int_equal(doorman_server_learns_until(f->nodes[leaf].server, f->now), 0);
    run_for(f, 20, 100);
    doorman_time ends = doorman_server_learns_until(f->nodes[leaf].server, f->now);
    doorman_server_resource resource;
    assert_true(resource_of(f, leaf, &resource));
    assert_true(resource.is_learning);
    assert_int_equal(ends, resource.learned_at);
    assert_int_equal(doorman_server_learns_until(f->nodes[leaf].server, ends - 1), ends);
    assert_int_equal(doorman_server_learns_until(f->nodes[leaf].server, ends), 0);
    run_for(f, 60, 100);
    assert_int_equal(doorman_server_learns_until(f->nodes[leaf].server, f->now), 0);
    forest_stop(f);
}

/* R6: a root that restarts grants its children what they claim, and does not treat them as new
 * holders without a lease. */
TEST(a_root_that_restarts_learns_from_its_children) {
    forest *f = forest_start_one(100, fair);
    int one = add_node(f, 0), two = add_node(f, 0);
    add_client(f, one, 80, 1);
    add_client(f, two, 80, 1);
    run_for(f, 60, 100);
    restart_node(f, 0);
    for (int i = 0; i < 100; i++) {
        run_for(f, 1, 100);
        assert_near(sum_leased(f), 100, 1e-6);
    }
    forest_stop(f);
}

/* S13: a node with leases that falls silent is reported once, when its last lease expires. A node
 * that has no clients any more releases its leases, and is not reported. */
TEST(a_child_whose_last_lease_expires_is_reported_once) {
    const doorman_template both[] = {{.identifier_glob = "db", .capacity = 100},
                                     {.identifier_glob = "*", .capacity = 100}};
    forest *f = forest_start(both, 2);
    int silent = add_node(f, 0), idle = add_node(f, 0);
    add_client(f, silent, 40, 1);
    forest_client *leaves = add_client(f, idle, 40, 1);
    run_for(f, 200, 100);
    const doorman_server *root = f->nodes[0].server;
    assert_int_equal(doorman_server_lease_count(root, f->nodes[silent].name, true), 1);
    assert_int_equal(doorman_server_lease_count(root, f->nodes[idle].name, true), 1);
    assert_int_equal(doorman_server_lease_count(root, f->nodes[idle].name, false), 0);
    doorman_client_close(leaves->resource, f->now);
    leaves->resource = NULL;
    run_for(f, 200, 100);
    assert_int_equal(doorman_server_lease_count(root, f->nodes[idle].name, true), 0);
    assert_int_equal(f->events[DOORMAN_EVENT_CHILD_ENDED], 0);
    f->cut[silent] = true;
    run_for(f, 40, 100);
    assert_int_equal(f->events[DOORMAN_EVENT_CHILD_ENDED], 0);
    run_for(f, 40, 100);
    assert_int_equal(f->events[DOORMAN_EVENT_CHILD_ENDED], 1);
    assert_int_equal(doorman_server_lease_count(root, f->nodes[silent].name, true), 0);
    run_for(f, 100, 100);
    assert_int_equal(f->events[DOORMAN_EVENT_CHILD_ENDED], 1);
    forest_stop(f);
}

static double in_force(const forest *f, const forest_client *m) {
    doorman_resource_info info;
    doorman_client_read(m->resource, &info, f->now);
    return info.capacity;
}

/* S4, T4: a new node below a learning root has no lease. The clients of the node get TRY_LATER,
 * hear that a server learns, and use the configured safe capacity. */
TEST(clients_below_a_learning_root_are_answered_try_later) {
    const doorman_template all = {
        .identifier_glob = "*", .capacity = 100, .has_safe_capacity = true, .safe_capacity = 7};
    forest *f = forest_start(&all, 1);
    restart_node(f, 0);
    int region = add_node(f, 0), leaf = add_node(f, region);
    forest_client *m = add_client(f, leaf, 40, 1);
    doorman_resource_info info;
    handle_due(f);
    run_for(f, 3, 100);
    for (int i = 0; i < 58; i++) {
        run_for(f, 1, 100);
        doorman_client_read(m->resource, &info, f->now);
        assert_false(info.leased);
        assert_true(info.learning);
        assert_int_equal(info.outcome, DOORMAN_TRY_LATER);
        assert_exact(info.capacity, 7);
    }
    doorman_server_resource resource;
    assert_true(resource_of(f, 0, &resource));
    assert_exact(resource.wants, 40);
    assert_true(resource_of(f, leaf, &resource));
    assert_int_equal(resource.expired_count, 0);
    run_for(f, 6, 100); /* the root learns for 63 s; then each level takes one step */
    doorman_client_read(m->resource, &info, f->now);
    assert_exact(leased(f, m), 40);
    assert_false(info.learning);
    forest_stop(f);
}

/* S4, R7: a root restarts, and a leaf restarts while the root learns. So the leaf has no lease. Its
 * clients keep their leases until these end. After that they get TRY_LATER, and not a lease of
 * 0. */
TEST(a_leaf_that_restarts_below_a_learning_root_answers_try_later_and_never_0) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    forest_client *m = add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    restart_node(f, 0);
    run_for(f, 10, 100);
    restart_node(f, leaf);
    for (int i = 0; i < 50; i++) {
        run_for(f, 1, 100);
        assert_true(leased(f, m) > 0 || in_force(f, m) > 0);
    }
    run_for(f, 70, 100);
    assert_exact(leased(f, m), 60);
    forest_stop(f);
}

/* T7: all servers restart at once. The clients keep their leases until these end, and the capacity
 * is not exceeded. */
TEST(all_servers_can_restart_at_once) {
    forest *f = forest_start_one(100, fair);
    int region = add_node(f, 0), one = add_node(f, region), two = add_node(f, region);
    add_client(f, one, 80, 1);
    add_client(f, two, 80, 1);
    run_for(f, 60, 100);
    for (int i = 0; i <= two; i++) restart_node(f, i);
    run_for(f, 10, 100);
    add_client(f, one, 50, 1);
    run_for(f, 200, 100);
    compare_with_one_server(f, &fair, 100, 1e-6);
    forest_stop(f);
}

/* T4, S6: a node that is cut off from its parent grants leases until its own lease ends. No lease
 * of its holders ends later. After that the node answers TRY_LATER, and does not grant a lease of
 * 0. */
TEST(a_node_without_a_lease_answers_try_later) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    f->cut[leaf] = true;
    run_for(f, 40, 100);
    assert_exact(leased(f, &f->clients[0]), 60);
    doorman_server_resource resource;
    assert_true(resource_of(f, leaf, &resource));
    doorman_resource_info info;
    doorman_client_read(f->clients[0].resource, &info, f->now);
    assert_true(info.expires_at <= resource.lease_end);
    run_for(f, 25, 100);
    doorman_client_read(f->clients[0].resource, &info, f->now);
    assert_false(info.leased);
    assert_int_equal(info.outcome, DOORMAN_TRY_LATER);
    f->cut[leaf] = false;
    run_for(f, 70, 100);
    assert_exact(leased(f, &f->clients[0]), 60);
    forest_stop(f);
}

/* S6: the length of a node's lease does not change between two renewals, and is still known after
 * the lease has ended. The lease of a node ends no later than the lease of its parent, so it can be
 * shorter than lease_length. */
TEST(the_length_of_a_nodes_lease_is_that_of_its_last_lease) {
    forest *f = forest_start_one(100, fair);
    int region = add_node(f, 0), leaf = add_node(f, region);
    add_client(f, leaf, 60, 1);
    doorman_server_resource last, resource = {.leased = false};
    for (int i = 0; i < 60 && !resource.leased; i++, run_for(f, 1, 100)) {
        if (resource_of(f, region, &resource) && !resource.leased) {
            assert_true(resource.lease_length == 0);
        }
    }
    run_for(f, 30, 100);
    f->cut[region] = true;
    run_for(f, 20, 100);
    assert_true(resource_of(f, region, &last) && resource_of(f, leaf, &resource));
    assert_true(last.lease_length > 59 * SECOND && last.lease_length <= 60 * SECOND);
    assert_true(resource.lease_length < last.lease_length - 5 * SECOND);
    for (int i = 0; i < 60 && (resource_of(f, region, &resource) && resource.leased); i++) {
        run_for(f, 1, 100);
    }
    assert_true(!resource.leased && resource.lease_length == last.lease_length);
    assert_true(resource_of(f, 0, &resource) && resource.lease_length == 0);
    forest_stop(f);
}

/* R10: a node stops asking for clients that have left, and then releases its lease. */
TEST(a_node_releases_the_lease_that_no_client_wants) {
    forest *f = forest_start_one(100, fair);
    int region = add_node(f, 0), leaf = add_node(f, region);
    add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    doorman_server_resource resource;
    assert_true(resource_of(f, 0, &resource));
    assert_exact(resource.wants, 60);
    doorman_client_close(f->clients[0].resource, f->now);
    f->clients[0].resource = NULL;
    run_for(f, 30, 100);
    assert_false(resource_of(f, 0, &resource));
    assert_false(resource_of(f, region, &resource));
    forest_stop(f);
}

/* R10: a node that learns does not release its lease, even if no holder has sent a request. It does
 * not know yet which holders use the lease. */
TEST(a_learning_node_releases_nothing) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    add_client(f, leaf, 20, 1);
    run_for(f, 30, 100);
    restart_node(f, leaf);
    set_stalled(f, 0, true);
    run_for(f, 3, 100); /* the other client sends a request, so the leaf has a lease */
    doorman_client_close(f->clients[1].resource, f->now);
    f->clients[1].resource = NULL;
    run_for(f, 20, 100); /* now the leaf knows no holder */
    doorman_server_resource resource;
    assert_true(resource_of(f, 0, &resource));
    assert_exact(resource.committed, 80);
    set_stalled(f, 0, false);
    run_for(f, 5, 100);
    assert_exact(leased(f, &f->clients[0]), 60);
    forest_stop(f);
}

#define LITERAL_CLIENTS 20

/* A client that asks exactly when the server says, without a random delay. */
typedef struct literal_client {
    char id[16], node[DOORMAN_ID_BYTES_MAX + 1];
    doorman_lease has;
    doorman_time end, next;
} literal_client;

static void renew_literal(forest *f, int at, literal_client *m) {
    const doorman_demand demand = {1, 1, 1};
    doorman_capacity_request item_request = {
        .resource_id = "db", .wants = &demand, .wants_count = 1};
    if (f->now < m->end) item_request.has = m->has;
    item_request.has.expires_in = m->end > f->now ? m->end - f->now : 0;
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .holder_id = m->id,
                                     .items = &item_request,
                                     .item_count = 1};
    doorman_response response;
    assert_int_equal(doorman_server_handle(f->nodes[at].server, &request, &response, NULL, f->now),
                     DOORMAN_OK);
    const doorman_capacity_response *item = response.items;
    m->next = f->now + item->gets.refresh_interval;
    if (item->outcome != DOORMAN_GRANTED) return;
    doorman_time interval = item->gets.refresh_interval, left = item->gets.expires_in;
    if (interval < SECOND && interval != left) {
        fail_msg("%s should ask again after %lld ns, %lld ns before the lease ends", m->id,
                 (long long)interval, (long long)left);
    }
    m->has = item->gets;
    strcpy(m->node, m->has.node);
    m->has.node = m->node;
    m->end = f->now + left;
}

/* Lets a second pass. Returns the number of requests. *together becomes the largest number of
 * requests within 10 ms. */
static int literal_second(forest *f, int at, literal_client *clients, int *together) {
    int count = 0;
    *together = 0;
    for (int step = 0; step < 100; step++) {
        int now = 0;
        f->now += SECOND / 100;
        handle_due(f);
        for (int i = 0; i < LITERAL_CLIENTS; i++) {
            if (f->now < clients[i].next) continue;
            renew_literal(f, at, &clients[i]);
            now++;
        }
        count += now;
        if (now > *together) *together = now;
    }
    return count;
}

/* S6, T4: a node that has lost its parent cannot extend leases. Its holders ask at most once a
 * second until their leases end, and once at the end. After that they do not ask together. */
TEST(the_clients_of_a_node_without_its_parent_do_not_ask_more_and_more_often) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0), together;
    literal_client clients[LITERAL_CLIENTS] = {{.next = 0}};
    for (int i = 0; i < LITERAL_CLIENTS; i++) {
        snprintf(clients[i].id, sizeof clients[i].id, "literal-%d", i);
        clients[i].next = f->now + i * (SECOND / 10);
    }
    for (int i = 0; i < 30; i++) (void)literal_second(f, leaf, clients, &together);
    f->cut[leaf] = true;
    for (int i = 0; i < 100; i++) {
        int count = literal_second(f, leaf, clients, &together);
        assert_true(count <= 2 * LITERAL_CLIENTS);
        if (i > 80) assert_true(together <= LITERAL_CLIENTS / 3);
    }
    f->cut[leaf] = false;
    for (int i = 0; i < 70; i++) (void)literal_second(f, leaf, clients, &together);
    for (int i = 0; i < LITERAL_CLIENTS; i++) assert_true(clients[i].end > f->now);
    forest_stop(f);
}

/* S3, S6: a lease may be short because the node's own lease ends soon. The minimum interval is then
 * at most a sixth of the lease. So a request gets a new lease in time, and not the old lease
 * again. */
TEST(a_short_lease_is_renewed_in_time) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    f->cut[leaf] = true;
    doorman_server_resource resource;
    assert_true(resource_of(f, leaf, &resource));
    f->now = resource.lease_end - 3 * SECOND;
    handle_due(f); /* leases last at most 3 s from now on */
    doorman_resource_info before, after;
    doorman_client_read(f->clients[0].resource, &before, f->now);
    f->cut[leaf] = false;
    run_for(f, 2, 100);
    doorman_client_read(f->clients[0].resource, &after, f->now);
    assert_true(before.leased && after.leased);
    assert_true(after.expires_at > before.expires_at);
    forest_stop(f);
}

/* S7: if no safe capacity is configured, each level divides its capacity, and a node without
 * capacity has no safe capacity. A configured safe capacity is passed down the tree. */
TEST(safe_capacities_are_passed_down_the_tree) {
    for (int given = 0; given < 2; given++) {
        doorman_template all = {.identifier_glob = "*",
                                .capacity = 100,
                                .has_safe_capacity = given,
                                .safe_capacity = given ? 7 : 0,
                                .has_algorithm = true,
                                .algorithm = fair};
        forest *f = forest_start(&all, 1);
        int leaf = add_node(f, add_node(f, 0));
        add_client(f, leaf, 60, 1);
        add_client(f, leaf, 60, 1);
        run_for(f, 30, 100);
        doorman_server_resource resource;
        assert_true(resource_of(f, leaf, &resource));
        assert_true(resource.has_safe_capacity);
        assert_near(resource.safe_capacity, given ? 7 : 50, 1e-9);
        for (size_t i = 0; i < 2; i++) set_wants(f, i, 0);
        run_for(f, 60, 100);
        assert_true(resource_of(f, leaf, &resource)); /* the leaf has no capacity now */
        assert_true(given ? resource.has_safe_capacity : !resource.has_safe_capacity);
        forest_stop(f);
    }
}

/* Ids that look like globs are plain ids. A node keeps a resource even if nobody wants any of
 * it. */
TEST(resource_ids_that_look_like_globs_are_plain_ids) {
    static const char *const ids[] = {"*", "[", "db/[a-z]*"};
    doorman_template templates[] = {
        {.identifier_glob = "db/*", .capacity = 100, .has_algorithm = true, .algorithm = fair},
        {.identifier_glob = "*", .capacity = 50, .has_algorithm = true, .algorithm = fair}};
    forest *f = forest_start(templates, 2);
    int leaf = add_node(f, add_node(f, 0));
    forest_client *m = add_client(f, leaf, 0, 1);
    for (size_t i = 0; i < 3; i++) {
        doorman_client_resource *resource = NULL;
        doorman_resource_options options = {.resource_id = ids[i], .wants = 10};
        assert_int_equal(doorman_client_open(&resource, m->client, &options, NULL, f->now),
                         DOORMAN_OK);
    }
    run_for(f, 30, 50);
    doorman_server_resource resource;
    doorman_cursor cursor = {0};
    size_t count = 0;
    while (doorman_server_next_resource(f->nodes[leaf].server, &cursor, &resource, f->now)) {
        assert_exact(resource.wants, strcmp(resource.resource_id, "db") == 0 ? 0 : 10);
        assert_exact(resource.has, resource.wants);
        count++;
    }
    assert_int_equal(count, 4);
    forest_stop(f);
}

/* G2: requests for unmatched resources are granted in full, even through a tree. If the
 * configuration says so, they are refused. */
TEST(unmatched_resources_are_refused_or_granted_through_the_tree) {
    for (int reject = 0; reject < 2; reject++) {
        forest *f = forest_start(NULL, 0);
        doorman_config *config = NULL;
        doorman_config_options options = {.reject_unmatched = reject};
        assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
        assert_int_equal(doorman_server_configure(f->nodes[0].server, config, f->now), DOORMAN_OK);
        doorman_config_destroy(f->config);
        f->config = config;
        int leaf = add_node(f, add_node(f, 0));
        forest_client *m = add_client(f, leaf, 1e6, 1);
        run_for(f, 60, 1e6);
        doorman_resource_info info;
        doorman_client_read(m->resource, &info, f->now);
        assert_exact(leased(f, m), reject ? 0 : 1e6);
        assert_int_equal(info.outcome, reject ? DOORMAN_UNMATCHED : DOORMAN_GRANTED);
        forest_stop(f);
    }
}

/* STATIC and NO_ALGORITHM do not divide the capacity, at any level. */
TEST(amounts_of_kinds_that_do_not_divide_are_passed_through_the_tree) {
    for (int kind = DOORMAN_STATIC_SHARE; kind <= DOORMAN_NO_ALGORITHM; kind++) {
        doorman_algorithm algorithm = fair;
        algorithm.kind = (doorman_kind)kind;
        forest *f = forest_start_one(100, algorithm);
        int region = add_node(f, 0), leaf = add_node(f, region);
        for (int i = 0; i < 5; i++) add_client(f, i < 3 ? leaf : region, 80.0 * (i + 1), 1);
        run_for(f, 60, 1e6);
        compare_with_one_server(f, &algorithm, 100, 1e-9);
        forest_stop(f);
    }
}

/* T8: two, three and four nodes form a ring. No node is blocked, and no client gets a lease. */
TEST(a_loop_is_refused) {
    for (int ring = 2; ring <= 4; ring++) {
        forest *f = forest_start_one(100, fair);
        /* The parent is set before the other nodes exist, so that its address is not found yet. */
        f->nodes[0].parent = ring - 1;
        snprintf(f->nodes[ring - 1].name, sizeof f->nodes[0].name, "n%d", ring - 1);
        restart_node(f, 0);
        for (int i = 1; i < ring; i++) add_node(f, i - 1);
        forest_client *m = add_client(f, ring - 1, 10, 1);
        run_for(f, 100, 100);
        assert_true(f->refused > 0);
        assert_non_null(strstr(f->error.text, "a loop"));
        assert_exact(leased(f, m), 0);
        forest_stop(f);
    }
}

/* T5: the parent knows the node by its name, so all its servers are one holder. */
TEST(a_new_master_of_a_node_is_the_same_holder) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    run_for(f, 30, 100);
    restart_node(f, leaf);
    run_for(f, 5, 100);
    doorman_server_resource resource;
    assert_true(resource_of(f, 0, &resource));
    assert_int_equal(resource.holder_count, 1);
    assert_exact(resource.has, 60);
    forest_stop(f);
}

/* T2: priority 0 gets only its part of the reserve. Priority 2 gets more. The level of the reserve
 * lies between two demands of priority 2. The node of these demands has no demands of priority
 * 0. */
TEST(a_reserve_is_shared_fairly_across_nodes) {
    doorman_algorithm algorithm = fair;
    algorithm.kind = DOORMAN_PRIORITY_SHARE;
    algorithm.reserve = 0.675;
    forest *f = forest_start_one(369, algorithm);
    int one = add_node(f, 0), two = add_node(f, 0);
    add_client(f, one, 371, 1);
    add_client(f, one, 75, 2);
    add_client(f, one, 48, 2);
    add_client(f, two, 16, 2);
    add_client(f, two, 929, 0);
    run_for(f, 120, 369);
    compare_with_one_server(f, &algorithm, 369, 1e-3);
    forest_stop(f);
}

/* Immediate handover reaches the same shares, one step sooner. The sums are not asserted, because
 * they may exceed the capacity for a while. */
TEST(immediate_handover_reaches_the_same_shares) {
    doorman_algorithm algorithm = fair;
    algorithm.handover = DOORMAN_IMMEDIATE;
    forest *f = forest_start_one(100, algorithm);
    int region = add_node(f, 0), one = add_node(f, region), two = add_node(f, region);
    add_client(f, one, 100, 1);
    run_for(f, 20, 1000);
    add_client(f, two, 100, 1);
    add_client(f, two, 10, 1);
    run_for(f, 40, 1000);
    compare_with_one_server(f, &algorithm, 100, 1e-6);
    forest_stop(f);
}

/* Sends one request of a client that is not simulated. */
static void request_as(forest *f, int at, const char *client_id, const char *resource_id,
                       double wants, doorman_lease has) {
    const doorman_demand demand = {wants, 1, 1};
    const doorman_capacity_request item_request = {
        .resource_id = resource_id, .wants = &demand, .wants_count = 1, .has = has};
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .holder_id = client_id,
                                     .items = &item_request,
                                     .item_count = 1};
    doorman_response response;
    assert_int_equal(doorman_server_handle(f->nodes[at].server, &request, &response, NULL, f->now),
                     DOORMAN_OK);
}

/* A gauge client that is not simulated: its lease, and its units in flight. */
typedef struct gauge_client {
    const char *id;
    doorman_lease has;
    char node[DOORMAN_ID_BYTES_MAX + 1];
    double in_flight;
} gauge_client;

static void renew_gauge(forest *f, int at, gauge_client *gauge, double wants) {
    const doorman_demand demand = {wants, 1, 1};
    doorman_capacity_request item_request = {
        .resource_id = "db", .wants = &demand, .wants_count = 1, .has = gauge->has};
    item_request.outstanding = gauge->in_flight;
    item_request.has.capacity = fmax(gauge->has.capacity, gauge->in_flight);
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .holder_id = gauge->id,
                                     .items = &item_request,
                                     .item_count = 1};
    doorman_response response;
    assert_int_equal(doorman_server_handle(f->nodes[at].server, &request, &response, NULL, f->now),
                     DOORMAN_OK);
    if (response.items[0].outcome != DOORMAN_GRANTED) return;
    gauge->has = response.items[0].gets;
    strcpy(gauge->node, gauge->has.node);
    gauge->has.node = gauge->node;
}

/* T7, R5: the lease of a node falls from 300 to 100 while two gauges below it have 150 units in
 * flight each. Their wants alternate, so that each has a large target when it renews. One lease
 * length plus the drift after the cut, their leases fit the capacity. */
TEST(after_a_cut_the_leases_below_a_node_fit_for_any_wants) {
    doorman_algorithm algorithm = {
        .lease_length = 20 * SECOND, .refresh_interval = 4 * SECOND, .has_minimum_interval = true};
    forest *f = forest_start_one(300, algorithm);
    int leaf = add_node(f, 0);
    gauge_client a = {.id = "a"}, b = {.id = "b"};
    for (int i = 0; i < 10; i++) {
        renew_gauge(f, leaf, &a, 150);
        renew_gauge(f, leaf, &b, 150);
        run_for(f, 1, 300);
    }
    assert_exact(a.has.capacity + b.has.capacity, 300);
    doorman_template cut = {
        .identifier_glob = "*", .capacity = 100, .has_algorithm = true, .algorithm = algorithm};
    doorman_config_options options = {.templates = &cut, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(f->nodes[0].server, config, f->now), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = config;
    for (int second = 0; second < 120; second++) {
        a.in_flight = b.in_flight = second < 60 ? 150 : 0;
        renew_gauge(f, leaf, &a, 10);
        renew_gauge(f, leaf, &b, 1000);
        renew_gauge(f, leaf, &a, 1000);
        run_for(f, 1, 300);
        double sum = a.has.capacity + b.has.capacity;
        if (second > 25 && sum > 100 * (1 + 1e-12)) {
            fail_msg("leases of %g in force %d s later", sum, second);
        }
        if (second > 100) assert_true(sum > 90); /* little of the capacity is unused */
    }
    forest_stop(f);
}

/* A holder claims a lease that lasts for years, while the node has no lease yet. The claim counts
 * only for the length of a lease. So it does not take capacity from others for ever. */
TEST(a_claim_lasts_no_longer_than_a_lease) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    doorman_lease years = {
        .id = 1, .node = "n1", .capacity = 100, .expires_in = DOORMAN_DURATION_MAX};
    request_as(f, leaf, "liar", "db", 1, years);
    add_client(f, leaf, 60, 1);
    run_for(f, 100, 100);
    assert_exact(leased(f, &f->clients[0]), 60);
    forest_stop(f);
}

/* T8: one message from a child that has the root's name does not stop a node for ever. A child that
 * has the name of the node's own parent is refused at once. */
TEST(a_wrong_node_name_does_no_lasting_harm) {
    forest *f = forest_start_one(100, fair);
    int middle = add_node(f, add_node(f, 0));
    add_client(f, middle, 10, 1);
    run_for(f, 30, 100);
    for (int i = 0; i < 2; i++) {
        const char *path[] = {f->nodes[i].name};
        const doorman_demand demand = {1, 1, 1};
        const doorman_capacity_request item_request = {
            .resource_id = "db", .wants = &demand, .wants_count = 1};
        const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                         .is_server = true,
                                         .holder_id = path[0],
                                         .path = path,
                                         .path_count = 1,
                                         .items = &item_request,
                                         .item_count = 1};
        doorman_response response;
        doorman_status status =
            doorman_server_handle(f->nodes[middle].server, &request, &response, &f->error, f->now);
        assert_int_equal(status, i == 1 ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK);
    }
    run_for(f, 200, 100);
    assert_exact(leased(f, &f->clients[0]), 10);
    forest_stop(f);
}

/* Sums can be larger than the largest amount. 20,000 holders want the largest amount of a resource
 * whose algorithm does not divide the capacity. */
TEST(sums_above_the_largest_amount_cause_no_endless_requests) {
    doorman_algorithm algorithm = fair;
    algorithm.kind = DOORMAN_NO_ALGORITHM;
    algorithm.has_minimum_interval = true; /* the minimum interval is 0 */
    forest *f = forest_start_one(100, algorithm);
    int leaf = add_node(f, 0);
    char id[16];
    for (int i = 0; i < 20000; i++) {
        snprintf(id, sizeof id, "x%d", i);
        request_as(f, leaf, id, "db", DOORMAN_AMOUNT_MAX, (doorman_lease){.id = 0});
    }
    run_for(f, 5, INFINITY);
    for (int i = 0; i < 20000; i++) {
        snprintf(id, sizeof id, "x%d", i);
        request_as(f, leaf, id, "db", DOORMAN_AMOUNT_MAX, (doorman_lease){.id = 0});
    }
    uint64_t before = doorman_server_upstream(f->nodes[leaf].server)->sequence;
    run_for(f, 20, INFINITY);
    assert_true(doorman_server_upstream(f->nodes[leaf].server)->sequence - before < 20);
    forest_stop(f);
}

/* C7: if the parent answers FULL because of a bound, the node answers FULL too. */
TEST(full_at_the_parent_is_full_at_the_node) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    f->nodes[0].server->options.resource_max = 1;
    add_client(f, leaf, 10, 1);
    run_for(f, 5, 100);
    assert_exact(leased(f, &f->clients[0]), 10);
    doorman_client_resource *other = NULL;
    const doorman_resource_options options = {.resource_id = "other", .wants = 1};
    assert_int_equal(doorman_client_open(&other, f->clients[0].client, &options, NULL, f->now),
                     DOORMAN_OK);
    run_for(f, 10, 100);
    doorman_resource_info info;
    doorman_client_read(other, &info, f->now);
    assert_true(info.has_outcome && !info.leased);
    assert_int_equal(info.outcome, DOORMAN_FULL);
    forest_stop(f);
}

/* K2: a node's request also fails when it is not answered within the time-out. */
TEST(a_nodes_request_fails_after_its_timeout) {
    const char *parents[] = {"n0"};
    const doorman_server_options options = {.node = "leaf",
                                            .parents = parents,
                                            .parent_count = 1,
                                            .request_timeout = 2 * SECOND,
                                            .seed = {1, 2}};
    const doorman_mastership mastership = {.address = "leaf", .until = DOORMAN_NEVER};
    forest *f = forest_start_one(100, fair);
    node *leaf = &f->nodes[add_node(f, 0)];
    doorman_server_destroy(leaf->server);
    assert_int_equal(doorman_server_create(&leaf->server, &options, NULL, f->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(leaf->server, &mastership, f->now), DOORMAN_OK);
    add_client(f, 1, 10, 1);
    exchange(f, doorman_client_upstream(f->clients[0].client), false);
    doorman_upstream *upstream = doorman_server_upstream(leaf->server);
    doorman_request request;
    assert_true(doorman_upstream_request(upstream, &request, f->now));
    assert_int_equal(doorman__upstream_due(upstream), f->now + 2 * SECOND);
    forest_stop(f);
}

/* Lets time pass until a node has a lease, or has none. Returns how long that takes. */
static doorman_time await_lease(forest *f, int at, bool leased) {
    doorman_time start = f->now;
    doorman_server_resource resource;
    for (int i = 0; i < 10000; i++) {
        if (resource_of(f, at, &resource) && resource.leased == leased) return f->now - start;
        run_for(f, 0.1, INFINITY);
    }
    fail_msg("the lease of node %d does not change", at);
    return 0;
}

TEST(a_node_reports_the_end_of_its_lease_once) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    const size_t *ended = &f->events[DOORMAN_EVENT_LEASE_ENDED];
    add_client(f, leaf, 10, 1);
    run_for(f, 200, 100);
    for (size_t outage = 0; outage < 3; outage++) {
        await_lease(f, leaf, true);
        assert_int_equal(*ended, outage);
        f->cut[leaf] = true;
        await_lease(f, leaf, false);
        run_for(f, 85, 100);
        assert_int_equal(*ended, outage + 1);
        f->cut[leaf] = false;
    }
    forest_stop(f);
}

/* A node gives a lease back when its last holder has left. */
TEST(a_lease_that_is_given_back_does_not_count_as_ended) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    request_as(f, leaf, "c", "db", 1, (doorman_lease){.id = 0});
    await_lease(f, leaf, true);
    run_for(f, 300, 100);
    doorman_server_resource resource;
    assert_false(resource_of(f, leaf, &resource));
    assert_int_equal(f->events[DOORMAN_EVENT_LEASE_ENDED], 0);
    forest_stop(f);
}

/* Leases of clients end with the lease of their node at the latest. On a busy machine, a node may
 * notice all these ends late and at the same time. It then removes the resource, and still reports
 * the end of its lease. */
TEST(a_lease_that_ends_with_those_of_its_holders_is_reported) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    doorman_upstream *upstream = doorman_server_upstream(f->nodes[leaf].server);
    request_as(f, leaf, "c", "db", 1, (doorman_lease){.id = 0});
    await_lease(f, leaf, true);
    f->cut[leaf] = true;
    request_as(f, leaf, "c", "db", 1, (doorman_lease){.id = 0});
    f->now += 1000 * SECOND;
    upstream->calls->work(upstream, f->now);
    doorman_server_resource resource;
    assert_false(resource_of(f, leaf, &resource));
    assert_int_equal(f->events[DOORMAN_EVENT_LEASE_ENDED], 1);
    forest_stop(f);
}

/* Very many leases that end together are reported by several calls. */
TEST(every_end_of_many_leases_is_reported) {
    enum { RESOURCES = 2500 };
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    char id[16];
    doorman_upstream *upstream = doorman_server_upstream(f->nodes[leaf].server);
    for (int i = 0; i < 2 * RESOURCES; i++) { /* the second request for a resource gets a lease */
        snprintf(id, sizeof id, "r%d", i % RESOURCES);
        request_as(f, leaf, "c", id, 1, (doorman_lease){.id = 0});
        (void)exchange(f, upstream, false);
    }
    f->now += 61 * SECOND;
    size_t *ended = &f->events[DOORMAN_EVENT_LEASE_ENDED], before = 0;
    for (int i = 0; i < 10 && *ended < RESOURCES; i++) {
        before = *ended;
        upstream->calls->work(upstream, f->now);
        assert_in_range(*ended - before, 1, 1000);
    }
    assert_int_equal(*ended, RESOURCES);
    forest_stop(f);
}

/* Starts a node with two addresses of its parent. No server has the second address. */
static int add_node_with_a_dead_address(forest *f, uint64_t seed) {
    const char *parents[] = {"n0", "dead"};
    int leaf = add_node(f, 0);
    const doorman_server_options options = {.node = "leaf",
                                            .parents = parents,
                                            .parent_count = 2,
                                            .on_event = count_event,
                                            .context = f,
                                            .seed = {seed, 1}};
    const doorman_mastership mastership = {.address = "leaf", .until = DOORMAN_NEVER};
    node *n = &f->nodes[leaf];
    doorman_server_destroy(n->server);
    assert_int_equal(doorman_server_create(&n->server, &options, NULL, f->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(n->server, &mastership, f->now), DOORMAN_OK);
    return leaf;
}

/* K2: after an outage in which its lease has ended, a node has a lease again within its refresh
 * interval of 8 s, although one of the addresses of its parent is dead. */
TEST(a_node_without_a_lease_is_back_within_its_refresh_interval) {
    for (uint64_t seed = 1; seed <= 50; seed++) {
        forest *f = forest_start_one(100, fair);
        int leaf = add_node_with_a_dead_address(f, seed);
        add_client(f, leaf, 10, 1);
        await_lease(f, leaf, true);
        f->cut[leaf] = true;
        run_for(f, 85 + (double)seed / 7, 100);
        await_lease(f, leaf, false);
        f->cut[leaf] = false;
        assert_true(await_lease(f, leaf, true) <= 8 * SECOND + SECOND / 5);
        forest_stop(f);
    }
}

/* A node forgets a resource without holders, even while the node learns. A request for the resource
 * is under way when the last entry ends. This request is never answered, and the next request is
 * refused. */
TEST(a_node_forgets_a_resource_that_its_parent_refuses) {
    forest *f = forest_start(NULL, 0);
    doorman_config *config = NULL;
    doorman_config_options options = {.reject_unmatched = true};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(f->nodes[0].server, config, f->now), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = config;
    int leaf = add_node(f, 0);
    request_as(f, leaf, "c", "db", 1, (doorman_lease){.id = 0});
    doorman_upstream *upstream = doorman_server_upstream(f->nodes[leaf].server);
    doorman_request request;
    assert_true(doorman_upstream_request(upstream, &request, f->now));
    run_for(f, 10, 100);
    doorman_upstream_failed(upstream, request.sequence, f->now);
    run_for(f, 100, 100);
    doorman_server_resource resource;
    assert_false(resource_of(f, leaf, &resource));
    assert_int_equal(doorman_upstream_due(upstream), DOORMAN_NEVER);
    forest_stop(f);
}

/* Releases of many resources, one after the other, do not delay the renewal of others. */
TEST(releases_do_not_delay_renewals) {
    forest *f = forest_start_one(1e6, fair);
    forest_client *m = add_client(f, 0, 10, 1);
    doorman_client_resource *closing[60];
    for (int i = 0; i < 60; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        doorman_resource_options options = {.resource_id = id, .wants = 1};
        assert_int_equal(doorman_client_open(&closing[i], m->client, &options, NULL, f->now),
                         DOORMAN_OK);
    }
    handle_due(f);
    doorman_upstream *upstream = doorman_client_upstream(m->client);
    for (int i = 0; i < 60; i++) { /* one release a second; each response takes 1 s */
        doorman_request request;
        doorman_response response;
        doorman_client_close(closing[i], f->now);
        (void)doorman_upstream_request(upstream, &request, f->now);
        f->now += SECOND;
        if (!request.sequence) continue;
        assert_int_equal(
            doorman_server_handle(f->nodes[0].server, &request, &response, NULL, f->now),
            DOORMAN_OK);
        assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, f->now),
                         DOORMAN_OK);
    }
    assert_exact(leased(f, m), 10);
    f->now += 30 * SECOND;
    assert_exact(leased(f, m), 10);
    forest_stop(f);
}

/* ---- requests to a parent, and its responses ------------------------------------------------- */

typedef struct parent_exchange {
    doorman_capacity_request item;
    doorman_request request;
    doorman_response response;
    doorman_error error;
} parent_exchange;

/* Sends one request of a server that is not simulated to the root. */
static doorman_status send(forest *f, parent_exchange *x, const doorman_demand *wants,
                           size_t count) {
    static const char *const path[] = {"child"};
    x->item.resource_id = "db";
    x->item.wants = wants;
    x->item.wants_count = count;
    x->request = (doorman_request){.method = DOORMAN_GET_CAPACITY,
                                   .is_server = true,
                                   .holder_id = "child",
                                   .path = path,
                                   .path_count = 1,
                                   .items = &x->item,
                                   .item_count = 1};
    return doorman_server_handle(f->nodes[0].server, &x->request, &x->response, &x->error, f->now);
}

/* Each group is a separate demand. The capacity is 120. One client wants 1000, and two clients want
 * 60 together. The level is 60, wherever the clients are. */
TEST(demand_groups_are_separate_demands) {
    forest *f = forest_start_one(120, fair);
    const doorman_demand wants[] = {{1000, 1, 1}, {60, 2, 1}, {0, 3, 1}};
    parent_exchange x = {.error = {.text = ""}};
    assert_int_equal(send(f, &x, wants, 3), DOORMAN_OK);
    assert_exact(x.response.items[0].gets.capacity, 120);
    assert_int_equal(x.response.items[0].terms_count, 1);
    assert_about(x.response.items[0].terms[0].level, 60);
    assert_int_equal(x.response.items[0].algorithm->kind, DOORMAN_FAIR_SHARE);
    assert_false(x.response.items[0].has_learn_for);
    assert_false(x.response.items[0].has_safe_capacity);
    forest_stop(f);
}

/* R7: a learning child with a lease entry gets its last lease again, and learns until the entry
 * ends. A learning child without an entry is a new holder. */
TEST(a_learning_child_gets_its_last_lease_and_when_learning_ends) {
    forest *f = forest_start_one(100, fair);
    const doorman_demand wants[] = {{80, 4, 1}}, more[] = {{90, 4, 1}}, less[] = {{10, 1, 1}};
    parent_exchange x = {.item = {.learning = true}};
    assert_int_equal(send(f, &x, wants, 1), DOORMAN_OK);
    assert_true(x.response.items[0].has_learn_for);
    assert_int_equal(x.response.items[0].learn_for, 0);
    assert_exact(x.response.items[0].gets.capacity, 80);
    f->now += 10 * SECOND;
    assert_int_equal(send(f, &x, more, 1), DOORMAN_OK);
    assert_exact(x.response.items[0].gets.capacity, 80);
    assert_int_equal(x.response.items[0].gets.reason, DOORMAN_LEASE_LEARNING); /* S14 */
    f->now += 10 * SECOND;
    assert_int_equal(send(f, &x, less, 1), DOORMAN_OK);
    assert_exact(x.response.items[0].gets.capacity, 80);
    assert_int_equal(x.response.items[0].gets.reason, 0); /* the child wants less */
    assert_int_equal(x.response.items[0].learn_for, 63 * SECOND - 10 * SECOND);
    add_client(f, 0, 100, 1); /* the child's capacity is not given to others */
    handle_due(f);
    assert_exact(leased(f, &f->clients[0]), 20);
    f->now += 10 * SECOND;
    x.item.learning = false;
    x.item.has = x.response.items[0].gets;
    assert_int_equal(send(f, &x, less, 1), DOORMAN_OK); /* the child has finished learning */
    assert_exact(x.response.items[0].gets.capacity, 10);
    forest_stop(f);
}

/* C5: the error names the wrong field, and the request has no effect. */
TEST(an_error_names_the_invalid_group) {
    static const struct {
        doorman_demand wants;
        const char *text;
    } cases[] = {
        {{-1, 1, 1}, "items[0].wants[1].wants: "},
        {{NAN, 1, 1}, "items[0].wants[1].wants: "},
        {{1, -1, 1}, "items[0].wants[1].subclients: "},
        {{1, 1.5, 1}, "items[0].wants[1].subclients: "},
        {{1, 2e9, 1}, "items[0].wants[1].subclients: "},
        {{1, 1, 16}, "items[0].wants[1].priority: "},
    };
    forest *f = forest_start_one(100, fair);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const doorman_demand wants[] = {{1, 1, 1}, cases[i].wants};
        parent_exchange x = {.error = {.text = ""}};
        assert_int_equal(send(f, &x, wants, 2), DOORMAN_INVALID_ARGUMENT);
        assert_non_null(strstr(x.error.text, cases[i].text));
    }
    parent_exchange x = {.item = {.outstanding = -1}};
    assert_int_equal(send(f, &x, NULL, 0), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(x.error.text, "items[0].outstanding: "));
    x.item.outstanding = 0;
    assert_int_equal(send(f, &x, NULL, DOORMAN__GROUPS_MAX + 1), DOORMAN_INVALID_ARGUMENT);
    doorman_server_resource resource;
    assert_false(resource_of(f, 0, &resource));
    /* A request without a demand is valid: the child wants nothing. */
    assert_int_equal(send(f, &x, NULL, 0), DOORMAN_OK);
    forest_stop(f);
}

/* A claim above the granted amount causes an event, and only the granted amount counts. */
TEST(a_claim_above_the_grant_is_reported) {
    forest *f = forest_start_one(100, fair);
    const doorman_demand wants[] = {{100, 4, 1}};
    parent_exchange x = {.error = {.text = ""}};
    assert_int_equal(send(f, &x, wants, 1), DOORMAN_OK);
    x.item.has = x.response.items[0].gets;
    x.item.has.capacity = 150;
    f->now += 10 * SECOND;
    assert_int_equal(send(f, &x, wants, 1), DOORMAN_OK);
    assert_int_equal(f->events[DOORMAN_EVENT_EXCESS_CLAIM], 1);
    assert_exact(x.response.items[0].gets.capacity, 100);
    assert_exact(x.response.items[0].gets.committed, 100);
    forest_stop(f);
}

/* A response to a node's request. A test makes it invalid. */
typedef struct tested_response {
    doorman_response response;
    doorman_capacity_response item_response;
    doorman_algorithm algorithm;
    doorman_terms terms[DOORMAN_TERMS_MAX + 1];
} tested_response;

static void too_many_terms(tested_response *t) {
    t->item_response.terms_count = DOORMAN_TERMS_MAX + 1;
}
static void no_time_to_learn(tested_response *t) { t->item_response.has_learn_for = false; }
static void less_than_no_time(tested_response *t) { t->item_response.learn_for = -1; }
static void low_priority(tested_response *t) { t->terms[0].priority = -2; }
static void high_priority(tested_response *t) { t->terms[0].priority = DOORMAN_PRIORITY_MAX + 1; }
static void negative_level(tested_response *t) { t->terms[0].level = -1; }
static void negative_slope(tested_response *t) { t->terms[0].slope = -0.1; }
static void steep_slope(tested_response *t) { t->terms[0].slope = 1.1; }
static void wrong_algorithm(tested_response *t) { t->algorithm.decay_factor = 2; }
static void for_a_client(tested_response *t) { t->response.is_server = false; }

/* C5: an invalid response is a failure, and no part of it is accepted. */
TEST(invalid_terms_are_refused) {
    static void (*const wrongs[])(tested_response *) = {
        too_many_terms, no_time_to_learn, less_than_no_time, low_priority,    high_priority,
        negative_level, negative_slope,   steep_slope,       wrong_algorithm, for_a_client};
    for (size_t i = 0; i <= sizeof wrongs / sizeof *wrongs; i++) {
        bool right = i == sizeof wrongs / sizeof *wrongs;
        forest *f = forest_start_one(100, fair);
        int leaf = add_node(f, 0);
        add_client(f, leaf, 60, 1);
        exchange(f, doorman_client_upstream(f->clients[0].client), false);
        doorman_upstream *upstream = doorman_server_upstream(f->nodes[leaf].server);
        doorman_request request;
        tested_response t = {.response = {.is_master = false}};
        (void)doorman_upstream_request(upstream, &request, f->now);
        assert_int_equal(
            doorman_server_handle(f->nodes[0].server, &request, &t.response, NULL, f->now),
            DOORMAN_OK);
        t.item_response = t.response.items[0];
        t.algorithm = *t.item_response.algorithm;
        t.terms[0] = t.item_response.terms[0];
        t.item_response.algorithm = &t.algorithm;
        t.item_response.terms = t.terms;
        t.response.items = &t.item_response;
        if (!right) wrongs[i](&t);
        assert_int_equal(doorman_upstream_response(upstream, request.sequence, &t.response, f->now),
                         right ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT);
        doorman_server_resource resource;
        assert_true(resource_of(f, leaf, &resource));
        assert_int_equal(resource.leased, right);
        forest_stop(f);
    }
}

/* Returns the private state of a resource, or NULL if the server has none. */
static doorman__resource_entry *any_resource(const doorman_server *server) {
    return (doorman__resource_entry *)(void *)doorman__table_from(&server->resources, 0);
}

/* T2: a parent may send 16 levels of its own choice. The child's groups end at some of them, and
 * the number of groups stays within the bound. The groups sum to all clients' wants. */
TEST(more_levels_than_groups_do_no_harm) {
    forest *f = forest_start_one(1e6, fair);
    int leaf = add_node(f, 0);
    for (int i = 1; i <= 300; i++) add_client(f, leaf, i, 1);
    run_for(f, 5, 1e6);
    doorman__resource_entry *resource = any_resource(f->nodes[leaf].server);
    for (int i = 0; i < DOORMAN_TERMS_MAX; i++) {
        resource->upward->terms[i] = (doorman_terms){i, 5.0 + i, 0.5};
    }
    resource->leases.parent_terms_count = DOORMAN_TERMS_MAX;
    f->now += 20 * SECOND;
    doorman_request request;
    doorman_upstream *upstream = doorman_server_upstream(f->nodes[leaf].server);
    (void)doorman_upstream_request(upstream, &request, f->now);
    assert_true(request.items[0].wants_count <= DOORMAN__BAND_GROUPS);
    double wants = 0;
    for (size_t i = 0; i < request.items[0].wants_count; i++) {
        wants += request.items[0].wants[i].wants;
    }
    assert_about(wants, 300 * 301 / 2);
    forest_stop(f);
}

/* The child does not know an algorithm of a newer parent. The terms still apply, no lease is lost,
 * and the child reports an event. */
TEST(an_unknown_algorithm_keeps_the_lease) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    f->hide_algorithm = true;
    run_for(f, 30, 100);
    assert_true(f->events[DOORMAN_EVENT_UNKNOWN_KIND] > 0);
    assert_exact(leased(f, &f->clients[0]), 60);
    forest_stop(f);
}

/* T1: resources that do not fit into one message are sent in several messages. */
TEST(many_resources_are_split_into_several_messages) {
    enum { COUNT = 2500 };
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    forest_client *m = add_client(f, leaf, 1, 1);
    for (int i = 0; i < COUNT; i++) {
        char id[16];
        doorman_client_resource *resource = NULL;
        doorman_resource_options options = {.resource_id = id, .wants = 10};
        snprintf(id, sizeof id, "r%d", i);
        assert_int_equal(doorman_client_open(&resource, m->client, &options, NULL, f->now),
                         DOORMAN_OK);
    }
    run_for(f, 10, 100);
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    size_t given = 0;
    while (doorman_server_next_resource(f->nodes[leaf].server, &cursor, &resource, f->now)) {
        given += resource.has > 0;
    }
    assert_int_equal(given, COUNT + 1);
    assert_true(f->largest_request <= 1000);
    forest_stop(f);
}

/* T1: demands that do not fit into one message are also sent in several messages. */
TEST(many_groups_are_split_into_several_messages) {
    enum { COUNT = 150 };
    forest *f = forest_start_one(1e6, fair);
    int leaf = add_node(f, 0);
    static const char *const path[] = {"child"};
    static doorman_demand wants[DOORMAN__GROUPS_MAX];
    doorman_capacity_request item_requests[COUNT];
    char ids[COUNT][8];
    for (int i = 0; i < DOORMAN__GROUPS_MAX; i++) { /* each priority has demands from 1e-4 to 1e5 */
        wants[i] = (doorman_demand){pow(10, i / 16 * 9 / 31.0 - 4), 1, i % 16};
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "r%d", i);
        item_requests[i] = (doorman_capacity_request){
            .resource_id = ids[i], .wants = wants, .wants_count = DOORMAN__GROUPS_MAX};
    }
    doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                               .is_server = true,
                               .holder_id = "child",
                               .path = path,
                               .path_count = 1,
                               .items = item_requests,
                               .item_count = COUNT};
    doorman_response response;
    doorman_server *server = f->nodes[leaf].server;
    assert_int_equal(doorman_server_handle(server, &request, &response, NULL, f->now), DOORMAN_OK);
    handle_due(f);
    assert_true(f->largest_request < COUNT);
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    size_t leased = 0;
    while (doorman_server_next_resource(server, &cursor, &resource, f->now)) {
        leased += resource.leased;
    }
    assert_int_equal(leased, COUNT);
    forest_stop(f);
}

/* G8. */
TEST(a_node_has_a_configuration_or_a_parent) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    const char *parents[] = {"n0"};
    doorman_server *server = NULL;
    doorman_error error = {0};
    doorman_server_options options = {.node = "x", .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&server, &options, &error, 0), DOORMAN_INVALID_ARGUMENT);
    options.config = f->config;
    options.parents = parents;
    options.parent_count = 1;
    assert_int_equal(doorman_server_create(&server, &options, &error, 0), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "config: "));
    assert_int_equal(doorman_server_configure(f->nodes[leaf].server, f->config, f->now),
                     DOORMAN_INVALID_ARGUMENT);
    forest_stop(f);
}

/* C7 */
TEST(a_full_node_with_a_parent_refuses) {
    static const char *const parents[] = {"tcp://parent:1"};
    const doorman_server_options options = {
        .node = "child", .parents = parents, .parent_count = 1, .seed = {1, 2}, .holder_max = 1};
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &mastership, 0), DOORMAN_OK);
    for (int i = 0; i < 2; i++) {
        const doorman_demand demand = {1, 1, 1};
        const doorman_capacity_request item = {
            .resource_id = "db", .wants = &demand, .wants_count = 1};
        const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                         .holder_id = i ? "b" : "a",
                                         .items = &item,
                                         .item_count = 1};
        doorman_response response;
        assert_int_equal(doorman_server_handle(server, &request, &response, NULL, 0), DOORMAN_OK);
        assert_int_equal(response.items[0].outcome, i ? DOORMAN_FULL : DOORMAN_TRY_LATER);
    }
    doorman_server_destroy(server);
}

/* A root has work to do, but nothing to send. */
TEST(a_root_has_an_upstream_that_sends_nothing) {
    forest *f = forest_start_one(100, fair);
    doorman_request request;
    doorman_upstream *root = doorman_server_upstream(f->nodes[0].server);
    const doorman_response stray = {.method = DOORMAN_GET_CAPACITY, .is_master = true};
    add_client(f, 0, 60, 1);
    exchange(f, doorman_client_upstream(f->clients[0].client), false);
    assert_true(doorman_upstream_due(root) != DOORMAN_NEVER);
    f->clients[0].stalled = true;
    f->now += 100 * SECOND;
    assert_true(doorman_upstream_due(root) <= f->now);
    assert_false(doorman_upstream_request(root, &request, f->now));
    assert_int_equal(request.sequence, 0);
    assert_null(any_resource(f->nodes[0].server)); /* the server has freed the resource */
    assert_int_equal(doorman_upstream_due(root), DOORMAN_NEVER);
    assert_int_equal(doorman_upstream_response(root, 0, &stray, f->now), DOORMAN_STALE);
    doorman_upstream_failed(root, 0, f->now);
    assert_int_equal(doorman_upstream_due(root), DOORMAN_NEVER);
    forest_stop(f);
}

/* A server that loses mastership deletes its state, and a later response is ignored. */
TEST(a_lost_mastership_cancels_the_request_in_progress) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 60, 1);
    doorman_server *server = f->nodes[leaf].server;
    doorman_upstream *upstream = doorman_server_upstream(server);
    doorman_request request;
    doorman_response response;
    (void)doorman_upstream_request(upstream, &request, f->now);
    assert_int_equal(request.sequence, 0);
    exchange(f, doorman_client_upstream(f->clients[0].client), false);
    (void)doorman_upstream_request(upstream, &request, f->now);
    assert_true(request.sequence && request.is_server && request.items[0].learning);
    assert_int_equal(doorman_server_handle(f->nodes[0].server, &request, &response, NULL, f->now),
                     DOORMAN_OK);
    uint64_t sequence = request.sequence;
    doorman_mastership other = {.address = "other"};
    assert_int_equal(doorman_server_set_master(server, &other, f->now), DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, sequence, &response, f->now),
                     DOORMAN_STALE);
    assert_false(doorman_upstream_request(upstream, &request, f->now));
    assert_int_equal(doorman_upstream_due(upstream), DOORMAN_NEVER);
    forest_stop(f);
}

/* ---- fairness */

/* A large tree has up to 10,000 clients. With the address sanitizer it has up to 1200, because the
 * test would take twelve seconds otherwise. `make matrix` runs the test without a sanitizer. */
#ifdef __SANITIZE_ADDRESS__
enum { LARGE = 300 };
#else
enum { LARGE = 2500 };
#endif

/* T2: the shares of a tree and of a single server differ by at most 5 %, for every kind that
 * divides the capacity, and wherever the clients are. Wants differ by six orders of magnitude. */
TEST(a_tree_shares_as_one_server_would) {
    for (int round = 0; round < 24; round++) {
        doorman_algorithm algorithm = fair;
        algorithm.kind = (doorman_kind)(round % DOORMAN_STATIC_SHARE);
        if (algorithm.kind == DOORMAN_PRIORITY_SHARE) algorithm.reserve = random_unit() * 0.5;
        size_t count = round < 20 ? 1 + random_below(300) : LARGE * (1 + random_below(4));
        double sum = 0;
        double *wants = calloc(count, sizeof *wants);
        for (size_t i = 0; i < count; i++) sum += wants[i] = pow(10, 6 * random_unit());
        double capacity = sum * random_unit() * 1.2;
        forest *f = forest_start_one(capacity, algorithm);
        size_t levels = 1 + random_below(3), first = 0;
        for (size_t level = 0; level < levels; level++) {
            size_t last = f->node_count;
            for (size_t i = 0; i < 1 + random_below(5); i++) {
                add_node(f, (int)(first + random_below(last - first)));
            }
            first = last;
        }
        for (size_t i = 0; i < count; i++) {
            int at = (int)(first + random_below(f->node_count - first));
            add_client(f, at, wants[i], 1 + (int)random_below(3));
        }
        size_t client;
        double share;
        run_for(f, 100, capacity);
        /* very few trees need longer, for example with SEED=1795556093 */
        if (off_from_one_server(f, &algorithm, capacity, &client, &share) > 0.05) {
            run_for(f, 100, capacity);
        }
        compare_with_one_server(f, &algorithm, capacity, 0.05);
        free(wants);
        forest_stop(f);
    }
}

/* ---- whole units (A5) ------------------------------------------------------------------------ */

#define WATCHED 32
#define STEPS_PER_SECOND 4
#define STEPS_MAX (STEPS_PER_SECOND * 20000)

static const doorman_algorithm usual = {.lease_length = 60 * DOORMAN_SECOND,
                                        .refresh_interval = 16 * DOORMAN_SECOND};

static forest *forest_start_whole(double capacity, doorman_algorithm algorithm) {
    doorman_template all = {.identifier_glob = "*",
                            .capacity = capacity,
                            .whole = true,
                            .has_algorithm = true,
                            .algorithm = algorithm};
    return forest_start(&all, 1);
}

/* What the test observes of the rotation. */
typedef struct rotation_history {
    size_t steps, requests;
    double in_use;         /* the average number of units in use */
    double means[WATCHED]; /* of each client */
    bool has_unit[WATCHED][STEPS_MAX];
} rotation_history;

/* Watches a rotation for some time. Fails unless leases are whole units, and their sum never
 * exceeds the capacity (A5, T7). */
static rotation_history *watch_rotation(forest *f, double seconds, double capacity) {
    rotation_history *t = calloc(1, sizeof *t);
    assert_non_null(t);
    assert_true(f->client_count <= WATCHED && seconds * STEPS_PER_SECOND <= STEPS_MAX);
    for (; (double)t->steps < seconds * STEPS_PER_SECOND; t->steps++) {
        double sum = 0;
        f->now += SECOND / STEPS_PER_SECOND;
        for (size_t i = 0; i < f->client_count; i++) {
            t->requests +=
                doorman_upstream_due(doorman_client_upstream(f->clients[i].client)) <= f->now;
        }
        handle_due(f);
        for (size_t i = 0; i < f->client_count; i++) {
            double has = leased(f, &f->clients[i]);
            assert_exact(has, floor(has));
            t->has_unit[i][t->steps] = has >= 1;
            t->means[i] += has;
            sum += has;
        }
        assert_true(sum <= capacity);
        t->in_use += sum;
    }
    t->in_use /= (double)t->steps;
    for (size_t i = 0; i < f->client_count; i++) t->means[i] /= (double)t->steps;
    return t;
}

/* Looks at each client and each span of `seconds`. Returns the smallest part of a span in which the
 * client has a unit. */
static double smallest_part(const rotation_history *t, size_t count, double seconds) {
    size_t length = (size_t)(seconds * STEPS_PER_SECOND);
    double least = 1;
    for (size_t i = 0; i < count; i++) {
        size_t has = 0;
        for (size_t step = 0; step < t->steps; step++) {
            has += t->has_unit[i][step];
            if (step >= length) has -= t->has_unit[i][step - length];
            if (step + 1 >= length) least = fmin(least, (double)has / (double)length);
        }
    }
    return least;
}

/* Fails unless the mean of each client is its share in a single server, up to the part `within`. */
static void compare_with_shares(const forest *f, const rotation_history *t,
                                const doorman_algorithm *algorithm, double capacity,
                                double within) {
    doorman_demand demands[WATCHED];
    double shares[WATCHED];
    for (size_t i = 0; i < f->client_count; i++) {
        demands[i] = (doorman_demand){ceil(f->clients[i].wants), 1, f->clients[i].priority};
    }
    assert_int_equal(
        doorman_shares(algorithm, capacity, demands, f->client_count, shares, NULL, NULL, NULL),
        DOORMAN_OK);
    for (size_t i = 0; i < f->client_count; i++) {
        double share = shares[i];
        assert_true(leased(f, &f->clients[i]) <= demands[i].wants); /* A4 */
        if (fabs(t->means[i] - share) <= within * share) continue;
        fail_msg("%s has %.9g on average, and its share is %.9g", f->clients[i].id, t->means[i],
                 share);
    }
}

/* Watches five hours, after the first rotation. */
static rotation_history *watch_rotation_long(forest *f, double capacity) {
    free(watch_rotation(f, 1000, capacity));
    return watch_rotation(f, 18000, capacity);
}

/* Compares the fast sums of a rotation with a recount, and checks that the lags sum to 0. */
static void audit_rotation(forest *f, int at) {
    doorman_server *server = f->nodes[at].server;
    doorman__lease_table *leases = &any_resource(server)->leases;
    doorman__total shares = {0, 0}, counted = {0, 0}, owed = {0, 0};
    size_t waiting = 0, pressing = 0, count = 0;
    double lags = 0, largest = 0;
    doorman__leases_tick(leases, false, f->now);
    doorman_cursor cursor = {0};
    for (doorman__link *link; (link = doorman__cursor_next(&cursor, &leases->entries)); count++) {
        const doorman__lease_entry *r = (const doorman__lease_entry *)(const void *)link;
        doorman__rotation *rotation = doorman__leases_rotation(leases, r);
        assert_non_null(rotation);
        doorman__rotation_settle(leases, rotation);
        waiting += rotation->waits;
        pressing += rotation->is_pressing;
        doorman__total_add(&owed, (double)rotation->owed);
        if (rotation->share <= 0) continue;
        doorman__total_add(&shares, rotation->share);
        doorman__total_add(&counted, r->committed);
        lags += rotation->lag;
        largest = fmax(largest, fabs(rotation->lag));
    }
    assert_int_equal(leases->rotations.count, leases->entries.count);
    assert_int_equal(waiting, leases->waiting);
    assert_int_equal(pressing, leases->pressing);
    assert_memory_equal(&owed, &leases->owed, sizeof owed);
    assert_memory_equal(&shares, &leases->rotation_shares, sizeof shares);
    assert_memory_equal(&counted, &leases->rotation_committed, sizeof counted);
    assert_true(fabs(lags) <= 1e-6 * fmax(1, largest));
}

/* A5: 25 clients, 20 units. Clients that wait for a unit do not send more requests. */
TEST(units_that_cannot_be_divided_rotate_among_holders) {
    forest *f = forest_start_whole(20, usual);
    for (int i = 0; i < 25; i++) add_client(f, 0, 1, 1);
    rotation_history *t = watch_rotation_long(f, 20);
    assert_true(smallest_part(t, 25, 600) >= 0.5);
    assert_true(t->in_use >= 0.98 * 20);
    assert_true((double)t->requests <= 1.15 * 25 * 18000 / 16);
    compare_with_shares(f, t, &usual, 20, 0.02);
    audit_rotation(f, 0);
    free(t);
    forest_stop(f);
}

/* A5: every kind grants whole units. The remainder of a divided capacity rotates. */
TEST(every_kind_gives_whole_units) {
    static const struct {
        doorman_kind kind;
        double reserve, in_use;
        int clients, wants; /* the most */
    } cases[] = {
        {DOORMAN_FAIR_SHARE, 0, 20, 12, 1},        {DOORMAN_FAIR_SHARE, 0, 20, 3, 1},
        {DOORMAN_FAIR_SHARE, 0, 20, 25, 4},        {DOORMAN_PROPORTIONAL_SHARE, 0, 20, 15, 4},
        {DOORMAN_PRIORITY_SHARE, 0.25, 20, 15, 4}, {DOORMAN_STATIC_SHARE, 0, 0, 12, 4},
        {DOORMAN_NO_ALGORITHM, 0, 0, 12, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        doorman_algorithm algorithm = usual;
        algorithm.kind = cases[i].kind;
        algorithm.reserve = cases[i].reserve;
        forest *f = forest_start_whole(20, algorithm);
        for (int k = 0; k < cases[i].clients; k++) {
            double wants = cases[i].wants > 1 ? 0.3 + k % cases[i].wants : 10;
            add_client(f, 0, wants, 1 + k % 3);
        }
        rotation_history *t = watch_rotation_long(f, cases[i].in_use > 0 ? 20 : 1e9);
        if (cases[i].in_use > 0) assert_true(t->in_use >= 0.98 * cases[i].in_use);
        compare_with_shares(f, t, &algorithm, 20, 0.03);
        audit_rotation(f, 0);
        free(t);
        forest_stop(f);
    }
}

/* A5: in a tree, clients below different nodes get the same shares. */
TEST(units_rotate_through_a_tree) {
    forest *f = forest_start_whole(20, usual);
    int one = add_node(f, 0), two = add_node(f, 0), three = add_node(f, one);
    const int leaves[] = {one, two, three};
    for (int i = 0; i < 25; i++) add_client(f, leaves[i % 3], 1, 1);
    rotation_history *t = watch_rotation_long(f, 20);
    assert_true(smallest_part(t, 25, 600) >= 0.5);
    assert_true(t->in_use >= 0.98 * 20);
    compare_with_shares(f, t, &usual, 20, 0.02);
    for (int i = 0; i <= three; i++) audit_rotation(f, i);
    free(t);
    forest_stop(f);
}

/* A new client does not wait for a whole rotation. It gets a unit when a holder releases a unit. */
TEST(a_newcomer_has_its_first_unit_soon) {
    forest *f = forest_start_whole(20, usual);
    for (int i = 0; i < 20; i++) add_client(f, 0, 1, 1);
    free(watch_rotation(f, 100, 20));
    add_client(f, 0, 1, 1);
    free(watch_rotation(f, 16 * 1.05 + 5.5, 20)); /* a renewal of a holder and of the client */
    assert_exact(leased(f, &f->clients[20]), 1);
    audit_rotation(f, 0);
    forest_stop(f);
}

/* A5: with one client more than there are units, one client at a time has no unit. Soon another
 * client gives up its unit. */
TEST(nobody_waits_long_for_a_turn) {
    forest *f = forest_start_whole(20, usual);
    for (int i = 0; i < 21; i++) add_client(f, 0, 4, 1);
    rotation_history *t = watch_rotation(f, 3600, 20);
    size_t longest = 0;
    for (int client = 0; client < 21; client++) {
        size_t without = 0;
        for (size_t step = 0; step < t->steps; step++) {
            without = t->has_unit[client][step] ? 0 : without + 1;
            if (without > longest) longest = without;
        }
    }
    assert_true(longest >= 1 && longest <= 3 * 60 * STEPS_PER_SECOND);
    free(t);
    forest_stop(f);
}

/* Clients come and go, and all sums stay correct. The resource is removed after the last client. */
TEST(the_rotation_continues_when_holders_leave) {
    forest *f = forest_start_whole(7, usual);
    for (int i = 0; i < 12; i++) add_client(f, 0, 1 + i % 3, 1);
    for (int round = 0; round < 200; round++) {
        size_t client = random_below(12);
        uint64_t action = random_below(4);
        if (action == 0) set_wants(f, client, (double)random_below(40) / 10);
        if (action == 1) set_stalled(f, client, random_below(2));
        if (action == 2) reset_client(f, client);
        free(watch_rotation(f, 1 + (double)random_below(40), 7));
        audit_rotation(f, 0);
    }
    for (size_t i = 0; i < 12; i++) set_stalled(f, i, true);
    f->now += 200 * SECOND;
    assert_non_null(any_resource(f->nodes[0].server));
    doorman_request none;
    doorman_upstream *root = doorman_server_upstream(f->nodes[0].server);
    assert_false(doorman_upstream_request(root, &none, f->now));
    assert_null(any_resource(f->nodes[0].server));
    forest_stop(f);
}

/* A5, G5: one lease length after a configuration requires whole units, all leases are whole
 * units. */
TEST(whole_units_can_be_switched_on_and_off) {
    forest *f = forest_start_one(20, usual);
    int leaf = add_node(f, 0);
    for (int i = 0; i < 25; i++) add_client(f, i % 2 ? leaf : 0, 1, 1);
    run_for(f, 60, 20);
    assert_near(leased(f, &f->clients[0]), 0.8, 1e-9);
    doorman_config_options read;
    doorman_config_read(f->config, &read);
    doorman_template all = read.templates[0];
    doorman_config *configs[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        all.whole = !i;
        const doorman_config_options options = {.templates = &all, .template_count = 1};
        assert_int_equal(doorman_config_create(&configs[i], &options, NULL), DOORMAN_OK);
    }
    doorman_server *root = f->nodes[0].server;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(doorman_server_configure(root, configs[i % 2], f->now), DOORMAN_OK);
        run_for(f, 60, 20);
        if (i % 2 == 0) {
            free(watch_rotation(f, 300, 20));
            audit_rotation(f, 0);
            audit_rotation(f, leaf);
        } else {
            run_for(f, 60, 20);
            assert_near(leased(f, &f->clients[0]), 0.8, 1e-9);
        }
    }
    forest_stop(f);
    for (int i = 0; i < 2; i++) doorman_config_destroy(configs[i]);
}

/* A child rounds down what a parent of an older version grants. */
TEST(a_fractional_lease_from_the_parent_is_rounded_down) {
    forest *f = forest_start_whole(20, usual);
    int leaf = add_node(f, 0);
    for (int i = 0; i < 3; i++) add_client(f, leaf, 10, 1);
    f->divide_leases = true;
    free(watch_rotation(f, 100, 19.5));
    assert_exact(sum_leased(f), 19);
    doorman_server_resource resource;
    assert_true(resource_of(f, leaf, &resource));
    assert_exact(resource.capacity, 19);
    assert_exact(resource.safe_capacity,
                 6); /* S7: the level in the parent's terms is 20 / 3, rounded down */
    forest_stop(f);
}

/* ---- overshoots (S12) */

/* Lets time pass until a node has granted more than its lease. Checks that the node reports no
 * overshoot until then. Returns the difference. */
static double run_until_cut(forest *f, int at) {
    doorman_server_resource resource = {.overshoot = 0};
    for (int step = 0; step < 200; step++) {
        f->now += SECOND / 10;
        handle_due(f);
        assert_true(resource_of(f, at, &resource));
        if (resource.has > resource.capacity + 1) return resource.has - resource.capacity;
        assert_exact(resource.overshoot, 0);
    }
    fail_msg("the node never has more than its lease");
    return 0;
}

static double overshoot_of(const forest *f, int at) {
    doorman_server_resource resource = {.overshoot = -1};
    assert_true(resource_of(f, at, &resource));
    return resource.overshoot;
}

/* A second leaf asks for as much as the first one, so the lease of the first one falls by half. The
 * client of the first leaf has the older lease until it renews. With `confirmed` handover the root
 * keeps the older lease committed. With `immediate` handover the root grants the difference at
 * once. */
TEST(a_smaller_lease_is_an_overshoot_only_if_the_rest_is_granted_at_once) {
    for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
        doorman_algorithm algorithm = fair;
        algorithm.handover = (doorman_handover)handover;
        forest *f = forest_start_one(100, algorithm);
        int one = add_node(f, 0), two = add_node(f, 0);
        add_client(f, one, 100, 1);
        for (int step = 0; step < 100; step++, f->now += SECOND / 10) handle_due(f);
        set_stalled(f, 0, true);
        add_client(f, two, 100, 1);
        double excess = run_until_cut(f, one);
        assert_near(excess, 50, 1e-6);
        assert_near(overshoot_of(f, one), handover == DOORMAN_IMMEDIATE ? excess : 0, 1e-9);
        assert_exact(overshoot_of(f, two), 0);
        set_stalled(f, 0, false);
        for (int step = 0; step < 100; step++, f->now += SECOND / 10) handle_due(f);
        assert_exact(overshoot_of(f, one), 0);
        forest_stop(f);
    }
}

/* A node whose parent is the test. */
typedef struct lone_node {
    doorman_server *server;
    doorman_time now;
    uint64_t lease_count;
} lone_node;

/* Grants the node a lease of 60 s, as its parent. */
static void grant_to_node(lone_node *n, double capacity, double committed,
                          doorman_handover handover) {
    doorman_algorithm algorithm = fair;
    doorman_request request;
    algorithm.handover = handover;
    assert_true(doorman_upstream_request(doorman_server_upstream(n->server), &request, n->now));
    const doorman_capacity_response item = {.resource_id = "db",
                                            .outcome = DOORMAN_GRANTED,
                                            .gets = {.id = ++n->lease_count,
                                                     .node = "parent",
                                                     .capacity = capacity,
                                                     .committed = committed,
                                                     .expires_in = 60 * SECOND,
                                                     .refresh_interval = 8 * SECOND},
                                            .algorithm = &algorithm,
                                            .has_learn_for = request.items[0].learning};
    const doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                       .is_server = true,
                                       .is_master = true,
                                       .items = &item,
                                       .item_count = 1};
    assert_int_equal(doorman_upstream_response(doorman_server_upstream(n->server), request.sequence,
                                               &response, n->now),
                     DOORMAN_OK);
}

static double ask_node(lone_node *n, double wants) {
    const doorman_demand demand = {wants, 1, 1};
    const doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = "a", .items = &item, .item_count = 1};
    doorman_response response;
    assert_int_equal(doorman_server_handle(n->server, &request, &response, NULL, n->now),
                     DOORMAN_OK);
    return response.items[0].gets.capacity;
}

/* Starts a node whose own lease of 100 begins now. The node has one client, which holds all 100. */
static lone_node start_lone_node(doorman_handover handover) {
    static const char *const parents[] = {"parent"};
    const doorman_server_options options = {
        .node = "node", .parents = parents, .parent_count = 1, .seed = {1, 2}};
    const doorman_mastership mastership = {.address = "node", .until = DOORMAN_NEVER};
    lone_node n = {.now = 1000 * SECOND};
    assert_int_equal(doorman_server_create(&n.server, &options, NULL, n.now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(n.server, &mastership, n.now), DOORMAN_OK);
    assert_exact(ask_node(&n, 100), 0);
    grant_to_node(&n, 100, 100, handover);
    assert_exact(ask_node(&n, 100), 100);
    return n;
}

/* Makes the entry of the client end far in the future. A correct server never makes an entry last
 * longer than the node's own lease. */
static void keep_entry(lone_node *n) {
    uint64_t hash = doorman__hash(n->server->options.seed, "db");
    doorman__lease_table *leases = &doorman__server_find(n->server, hash, "db")->leases;
    doorman__leases_set_end(leases, leases->oldest, n->now + 500 * SECOND);
}

static doorman_server_resource read_node(const lone_node *n) {
    doorman_server_resource resource = {.overshoot = -1};
    assert_true(doorman_server_find(n->server, "db", &resource, n->now));
    return resource;
}

/* A parent that learns commits less than the node has claimed. The node's older lease is in force
 * until it ends, and a slow clock of a client may add the drift. What is in force after that time
 * is an overshoot. With `immediate` handover the older lease does not count. */
TEST(an_older_lease_of_a_node_counts_until_it_has_ended) {
    for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
        lone_node n = start_lone_node((doorman_handover)handover);
        bool immediate = handover == DOORMAN_IMMEDIATE;
        doorman_time ends = n.now + 63 * SECOND;
        keep_entry(&n);
        n.now += 10 * SECOND;
        grant_to_node(&n, 40, 40, (doorman_handover)handover);
        assert_exact(read_node(&n).capacity, 40);
        assert_exact(read_node(&n).overshoot, immediate ? 60 : 0);
        n.now = ends - 1;
        assert_exact(read_node(&n).overshoot, immediate ? 60 : 0);
        n.now = ends;
        assert_exact(read_node(&n).overshoot, 60);
        doorman_server_destroy(n.server);
    }
}

/* R5: what the parent keeps committed for the node counts, even after the older lease has ended. */
TEST(what_the_parent_keeps_committed_is_no_overshoot) {
    lone_node n = start_lone_node(DOORMAN_CONFIRMED);
    doorman_time ends = n.now + 63 * SECOND;
    keep_entry(&n);
    n.now += 10 * SECOND;
    grant_to_node(&n, 40, 100, DOORMAN_CONFIRMED);
    n.now = ends;
    assert_exact(read_node(&n).capacity, 40);
    assert_exact(read_node(&n).has, 100);
    assert_exact(read_node(&n).overshoot, 0);
    n.now += 10 * SECOND;
    assert_exact(read_node(&n).overshoot, 100); /* the smaller lease has ended too */
    doorman_server_destroy(n.server);
}

/* R3: a node limits itself to what it claims, so the older lease does not count after a claim. */
TEST(a_claim_of_a_node_ends_its_older_lease) {
    lone_node n = start_lone_node(DOORMAN_CONFIRMED);
    uint64_t hash = doorman__hash(n.server->options.seed, "db");
    doorman__lease_table *leases = &doorman__server_find(n.server, hash, "db")->leases;
    doorman__leases_set_demands(leases, leases->oldest, &(doorman_demand){40, 1, 1}, 1);
    doorman__leases_set_amounts(leases, leases->oldest, 40, 40);
    n.now += 10 * SECOND;
    grant_to_node(&n, 40, 40, DOORMAN_CONFIRMED);
    assert_exact(read_node(&n).overshoot, 0);
    doorman__leases_set_amounts(leases, leases->oldest, 100, 100);
    assert_exact(read_node(&n).overshoot, 60);
    doorman_server_destroy(n.server);
}

/* S6, S8: a node that has lost its lease reports no overshoot until the drift has passed. Entries
 * of its clients that last longer are an overshoot. */
TEST(a_lost_lease_counts_until_the_drift_has_passed) {
    for (int faulty = 0; faulty < 2; faulty++) {
        lone_node n = start_lone_node(DOORMAN_CONFIRMED);
        doorman_time start = n.now;
        if (faulty) keep_entry(&n);
        n.now = start + 60 * SECOND;
        assert_false(read_node(&n).leased);
        assert_exact(read_node(&n).capacity, 0);
        assert_exact(read_node(&n).has, 100);
        assert_exact(read_node(&n).overshoot, 0);
        n.now = start + 63 * SECOND - 1;
        assert_exact(read_node(&n).has, 100);
        assert_exact(read_node(&n).overshoot, 0);
        n.now = start + 63 * SECOND;
        doorman_server_resource resource = {.overshoot = -1};
        bool found = doorman_server_find(n.server, "db", &resource, n.now);
        if (faulty) assert_exact(resource.overshoot, 100);
        if (found && !faulty) assert_exact(resource.overshoot, 0);
        doorman_server_destroy(n.server);
    }
}

/* ---- texts for people ---- */

static void configure_texts(forest *f, const char *description, const char *unit) {
    const doorman_template all = {
        .identifier_glob = "*", .description = description, .unit = unit, .capacity = 100};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *last = f->config;
    assert_int_equal(doorman_config_create(&f->config, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(f->nodes[0].server, f->config, f->now), DOORMAN_OK);
    doorman_config_destroy(last);
}

static void expect_texts(const forest *f, int at, const char *description, const char *unit) {
    doorman_server_resource info;
    assert_true(resource_of(f, at, &info));
    assert_string_equal(info.settings->description, description);
    assert_string_equal(info.settings->unit, unit);
}

/* T9: the root shows the whole description, and the nodes of every level below it show its first
 * 256 bytes. */
TEST(nodes_show_the_description_and_the_unit_of_the_root) {
    forest *f = forest_start_one(100, fair);
    char description[401] = "", sent[257] = "";
    int leaf = add_node(f, add_node(f, 0));
    add_client(f, leaf, 5, 1);
    run_for(f, 30, 100);
    for (int at = 0; at <= leaf; at++) expect_texts(f, at, "", "");
    configure_texts(f, "queries of \"orders\"", "queries/s");
    run_for(f, 60, 100);
    for (int at = 0; at <= leaf; at++) expect_texts(f, at, "queries of \"orders\"", "queries/s");
    memset(description, 'd', 400);
    memset(sent, 'd', 256);
    configure_texts(f, description, "");
    run_for(f, 60, 100);
    expect_texts(f, 0, description, "");
    for (int at = 1; at <= leaf; at++) expect_texts(f, at, sent, "");
    configure_texts(f, NULL, NULL);
    run_for(f, 60, 100);
    for (int at = 0; at <= leaf; at++) expect_texts(f, at, "", "");
    forest_stop(f);
}

/* C4: a node without memory for new texts still takes its lease. It takes the texts later. */
TEST(a_node_without_memory_keeps_the_last_texts) {
    forest *f = forest_start_one(100, fair);
    int leaf = add_node(f, 0);
    add_client(f, leaf, 5, 1);
    configure_texts(f, "first", "a");
    run_for(f, 30, 100);
    expect_texts(f, leaf, "first", "a");
    configure_texts(f, "second", "b");
    memory_fails_from(1);
    run_for(f, 60, 100);
    assert_true(!memory_works());
    expect_texts(f, leaf, "first", "a");
    assert_exact(leased(f, &f->clients[0]), 5);
    run_for(f, 30, 100);
    expect_texts(f, leaf, "second", "b");
    forest_stop(f);
}
