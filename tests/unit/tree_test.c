/* Trees of servers, as section >>server of doorman.h promises them (T1 to T8, R7, R8): nodes and
 * clients in one process, their messages carried by hand, and time a variable. */
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
    doorman_server *server; /* NULL: dead */
    int parent;             /* -1: a root */
    uint64_t life;
} node;

typedef struct member {
    char id[24];
    int node;
    doorman_client *client;
    doorman_resource *resource;
    double wants, subclients;
    int priority;
} member;

typedef struct forest {
    doorman_time now;
    doorman_config *config;
    node nodes[NODES_MAX];
    size_t node_count;
    member *members;
    size_t member_count, member_capacity;
    bool cut[NODES_MAX]; /* the way from this node to its parent */
    size_t messages;
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
    options.seed[1] = ++n->life;
    doorman_error error = {""};
    doorman_status status = doorman_server_create(&n->server, &options, &error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s: %s", n->name, error.text);
    doorman_mastership mine = {.address = n->name, .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(n->server, &mine, f->now), DOORMAN_OK);
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

static forest *plant(const doorman_template *templates, size_t count) {
    forest *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->now = 1000 * SECOND;
    doorman_config_options options = {.templates = templates, .template_count = count};
    assert_int_equal(doorman_config_create(&f->config, &options, NULL), DOORMAN_OK);
    add_node(f, -1);
    return f;
}

static forest *plant_one(double capacity, doorman_algorithm algorithm) {
    doorman_template all = {.identifier_glob = "*",
                            .capacity = capacity,
                            .has_algorithm = true,
                            .algorithm = algorithm};
    return plant(&all, 1);
}

/* Roots that know nobody yet need not learn, but where a test is of that. */
static const doorman_algorithm fair = {.lease_length = 60 * DOORMAN_SECOND,
                                       .refresh_interval = 8 * DOORMAN_SECOND,
                                       .has_learning_mode_duration = true};

static void fell(forest *f) {
    for (size_t i = 0; i < f->member_count; i++) doorman_client_destroy(f->members[i].client);
    for (size_t i = 0; i < f->node_count; i++) doorman_server_destroy(f->nodes[i].server);
    doorman_config_destroy(f->config);
    free(f->members);
    free(f);
}

static member *add_member(forest *f, int at, double wants, int priority) {
    if (f->member_count == f->member_capacity) {
        f->member_capacity = f->member_capacity ? 2 * f->member_capacity : 16;
        f->members = realloc(f->members, f->member_capacity * sizeof *f->members);
        assert_non_null(f->members);
    }
    member *m = &f->members[f->member_count];
    *m = (member){.node = at, .wants = wants, .priority = priority};
    snprintf(m->id, sizeof m->id, "c%zu", f->member_count++);
    const char *addresses[] = {f->nodes[at].name};
    doorman_client_options options = {
        .client_id = m->id, .addresses = addresses, .address_count = 1, .seed = f->member_count};
    assert_int_equal(doorman_client_create(&m->client, &options, NULL, f->now), DOORMAN_OK);
    doorman_resource_options resource = {
        .resource_id = "db", .has_priority = true, .priority = priority};
    assert_int_equal(doorman_resource_open(&m->resource, m->client, &resource, NULL, f->now),
                     DOORMAN_OK);
    assert_int_equal(doorman_resource_set_wants(m->resource, wants, f->now), DOORMAN_OK);
    return m;
}

static int node_at(const forest *f, const char *address) {
    for (size_t i = 0; i < f->node_count; i++) {
        if (strcmp(f->nodes[i].name, address) == 0) return (int)i;
    }
    return -1;
}

/* Carries one request of an asker, if it has one. Messages take no time. */
static bool carry(forest *f, doorman_asker *asker, bool cut) {
    doorman_request request;
    doorman_response response;
    assert_int_equal(doorman_asker_request(asker, &request, f->now), DOORMAN_OK);
    if (!request.sequence) return false;
    int at = node_at(f, doorman_asker_address(asker));
    bool reached = !cut && at >= 0 && f->nodes[at].server;
    doorman_error error = {""};
    f->messages++;
    if (reached) {
        reached = doorman_server_handle(f->nodes[at].server, &request, &response, &error,
                                        f->now) == DOORMAN_OK;
    }
    if (!reached) {
        doorman_asker_failed(asker, request.sequence, f->now);
        return true;
    }
    assert_int_equal(doorman_asker_response(asker, request.sequence, &response, f->now),
                     DOORMAN_OK);
    return true;
}

static double leased(const forest *f, const member *m) {
    doorman_resource_info info;
    doorman_resource_read(m->resource, &info, f->now);
    return info.leased ? info.capacity : 0;
}

static double sum_leased(const forest *f) {
    double sum = 0;
    for (size_t i = 0; i < f->member_count; i++) sum += leased(f, &f->members[i]);
    return sum;
}

/* All that is due now, in every node and client, until nothing is. */
static void settle(forest *f) {
    for (int round = 0; round < 100; round++) {
        bool busy = false;
        for (size_t i = 0; i < f->node_count; i++) {
            if (!f->nodes[i].server) continue;
            doorman_server_update(f->nodes[i].server, f->now);
            doorman_asker *asker = doorman_server_asker(f->nodes[i].server);
            if (asker) busy = carry(f, asker, f->cut[i]) || busy;
        }
        for (size_t i = 0; i < f->member_count; i++) {
            doorman_client_update(f->members[i].client, f->now);
            busy = carry(f, doorman_client_asker(f->members[i].client), false) || busy;
        }
        if (!busy) return;
    }
    fail_msg("messages without end");
}

/* Time passes, in steps of a tenth of a second; the leases never exceed the capacity (T7). */
static void pass(forest *f, double seconds, double capacity) {
    for (int step = 0; step < (int)(seconds * 10 + 0.5); step++) {
        f->now += SECOND / 10;
        settle(f);
        double sum = sum_leased(f);
        if (sum > capacity * (1 + 1e-12)) {
            fail_msg("%.17g of %.17g in force, %g s after", sum, capacity, (double)step / 10);
        }
    }
}

static bool resource_of(const forest *f, int at, doorman_server_resource *out) {
    const void *cursor = NULL;
    return doorman_server_next_resource(f->nodes[at].server, &cursor, out, f->now);
}

/* ---- stories --------------------------------------------------------------------------------- */

/* T1, T4. */
static void a_first_request_has_its_share_a_second_later(void **state) {
    (void)state;
    forest *f = plant_one(100, fair);
    int leaf = add_node(f, add_node(f, 0));
    member *m = add_member(f, leaf, 40, 1);
    settle(f);
    assert_exact(leased(f, m), 0);
    pass(f, 2.5, 100);
    assert_exact(leased(f, m), 40);
    fell(f);
}

/* What one server would give to all clients of the forest. */
static void hold_against_one_server(const forest *f, const doorman_algorithm *algorithm,
                                    double capacity, double within) {
    doorman_demand *demands = calloc(f->member_count, sizeof *demands);
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t terms_count = 0;
    assert_non_null(demands);
    for (size_t i = 0; i < f->member_count; i++) {
        demands[i] = (doorman_demand){f->members[i].wants, 1, f->members[i].priority};
    }
    assert_int_equal(doorman_shares_solve(algorithm, capacity, demands, f->member_count, terms,
                                          &terms_count),
                     DOORMAN_OK);
    double worst = 0;
    size_t who = 0;
    for (size_t i = 0; i < f->member_count; i++) {
        double fair_share = doorman_terms_target(terms, terms_count, &demands[i]);
        double off = fabs(leased(f, &f->members[i]) - fair_share) / fmax(fair_share, 1e-6);
        if (off > worst) worst = off, who = i;
    }
    double fair_share = doorman_terms_target(terms, terms_count, &demands[who]);
    printf("%zu nodes %zu clients %s: worst %.3g (%.6g for %.6g, wants %.6g at %s)\n", f->node_count,
           f->member_count, doorman_kind_name(algorithm->kind), worst,
           leased(f, &f->members[who]), fair_share, f->members[who].wants,
           f->nodes[f->members[who].node].name);
    if (worst > within) fail_msg("off by more than %g", within);
    free(demands);
}

/* T2: within 5 %, for every kind, wherever the clients sit, whose wants differ by six orders. */
static void a_tree_shares_as_one_server_would(void **state) {
    (void)state;
    for (int round = 0; round < 24; round++) {
        doorman_algorithm algorithm = fair;
        algorithm.kind = (doorman_kind)(round % 3);
        if (algorithm.kind == DOORMAN_PRIORITY_SHARE) algorithm.reserve = random_unit() * 0.5;
        size_t count = round < 20 ? 1 + random_below(300) : 2500 * (1 + random_below(4));
        double sum = 0;
        double *wants = calloc(count, sizeof *wants);
        for (size_t i = 0; i < count; i++) sum += wants[i] = pow(10, 6 * random_unit());
        double capacity = sum * random_unit() * 1.2;
        forest *f = plant_one(capacity, algorithm);
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
            add_member(f, at, wants[i], 1 + (int)random_below(3));
        }
        pass(f, 100, capacity);
        hold_against_one_server(f, &algorithm, capacity, 0.05);
        free(wants);
        fell(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_shares_as_one_server_would),
        cmocka_unit_test(a_first_request_has_its_share_a_second_later),
    };
    return run_all(tests);
}
