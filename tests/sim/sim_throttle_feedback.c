/* Feedback from overloaded servers (H11): see sim_throttle.h. A resource has a capacity of 1,000
 * units a second. Ten clients use all that they lease. Four servers do this work. They report once
 * per refresh interval, each at its own time. After 20 intervals their dependency loses half of its
 * capacity, and after 60 it recovers. The doorman servers are real: a root, or a root and a node
 * below it.
 */
#include "sim_throttle.h"

#include <math.h>
#include <stdlib.h>

enum { CLIENTS = 10, SERVERS = 4 };

#define CAPACITY 1000.0
#define REFRESH (16 * DOORMAN_SECOND)
#define STEP (DOORMAN_SECOND / 10)
#define LOSS_AT (20 * REFRESH)     /* of half of the capacity */
#define RECOVERY_AT (60 * REFRESH) /* of the dependency */
#define END_AT (SIM_FEEDBACK_INTERVALS * REFRESH)

typedef struct client {
    char id[16], node[DOORMAN_ID_BYTES_MAX + 1];
    doorman_lease has;
    doorman_time end, renews_at;
} client;

/* A server that does the work. At most 0.1 s of its work waits. */
typedef struct worker {
    char id[16];
    double waiting; /* units */
    doorman_overload_report counted;
} worker;

typedef struct feedback_world {
    doorman_config *config;
    doorman_server *root, *child; /* child: NULL if there is none */
    doorman_time now;
    uint64_t random;
    client clients[CLIENTS];
    worker workers[SERVERS];
    sim_feedback result;
    double least, most;        /* use after it has settled */
    doorman_time inside_since; /* the use is in its range; 0: it is not */
    bool settled, grown;       /* after the loss; after the recovery */
} feedback_world;

static void must(bool good) {
    if (!good) abort();
}

static doorman_server *add_server(feedback_world *world, const char *node, const char *parent) {
    const doorman_mastership mastership = {.address = node, .until = DOORMAN_NEVER};
    const doorman_server_options options = {.node = node,
                                            .config = parent ? NULL : world->config,
                                            .parents = &parent,
                                            .parent_count = parent ? 1 : 0,
                                            .seed = {world->random, 1}};
    doorman_server *server = NULL;
    must(doorman_server_create(&server, &options, NULL, world->now) == DOORMAN_OK);
    must(doorman_server_set_master(server, &mastership, world->now) == DOORMAN_OK);
    return server;
}

static void start(feedback_world *world, doorman_handover handover, bool with_parent) {
    const doorman_template all = {
        .identifier_glob = "*",
        .capacity = CAPACITY,
        .overload = {.target = DOORMAN_SECOND / 20},
        .has_algorithm = true,
        .algorithm = {.has_learning_mode_duration = true, .handover = handover}};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    must(doorman_config_create(&world->config, &options, NULL) == DOORMAN_OK);
    world->now = 1000 * REFRESH;
    world->root = add_server(world, "root", NULL);
    if (with_parent) world->child = add_server(world, "child", "root");
    for (int i = 0; i < CLIENTS; i++) {
        snprintf(world->clients[i].id, sizeof world->clients[i].id, "client %d", i);
        world->clients[i].renews_at = world->now + i * REFRESH / CLIENTS;
    }
    for (int i = 0; i < SERVERS; i++) {
        snprintf(world->workers[i].id, sizeof world->workers[i].id, "server %d", i);
    }
}

static doorman_server *asked(const feedback_world *world) {
    return world->child ? world->child : world->root;
}

/* Renews the lease of a client. After a cut it confirms its lease in the next step (R12). */
static void renew(feedback_world *world, client *own) {
    const doorman_demand demand = {CAPACITY, 1, 1};
    if (world->now >= own->end) own->has = (doorman_lease){.id = 0};
    own->has.expires_in = own->has.id ? own->end - world->now : 0;
    const doorman_capacity_request item = {
        .resource_id = "r", .has = own->has, .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = own->id, .items = &item, .item_count = 1};
    doorman_response response;
    must(doorman_server_handle(asked(world), &request, &response, NULL, world->now) == DOORMAN_OK);
    own->renews_at = world->now + DOORMAN_SECOND;
    if (response.items[0].outcome != DOORMAN_GRANTED) return;
    bool cut = own->has.id && response.items[0].gets.capacity < own->has.capacity;
    own->has = response.items[0].gets;
    snprintf(own->node, sizeof own->node, "%s", own->has.node);
    own->has.node = own->node;
    own->end = world->now + own->has.expires_in;
    own->renews_at = world->now + (cut ? STEP : own->has.refresh_interval);
}

static void report(feedback_world *world, worker *own) {
    own->counted.interval = REFRESH;
    const doorman_capacity_request item = {.resource_id = "r", .overload = own->counted};
    const doorman_request request = {
        .method = DOORMAN_REPORT_OVERLOAD, .holder_id = own->id, .items = &item, .item_count = 1};
    doorman_response response;
    must(doorman_server_handle(asked(world), &request, &response, NULL, world->now) == DOORMAN_OK);
    own->counted = (doorman_overload_report){.interval = 0};
}

/* Sends a node's due requests to the root. The root sends none, but does its own work that is
 * due. */
static void pass_on(feedback_world *world, doorman_server *from) {
    doorman_upstream *upstream = doorman_server_upstream(from);
    doorman_request request;
    doorman_response response;
    if (doorman_upstream_due(upstream) > world->now) return;
    while (doorman_upstream_request(upstream, &request, world->now)) {
        uint64_t sequence = request.sequence;
        must(doorman_server_handle(world->root, &request, &response, NULL, world->now) ==
             DOORMAN_OK);
        (void)doorman_upstream_response(upstream, sequence, &response, world->now);
    }
}

/* Returns the units that arrive at a server in one step, with some noise. */
static double arrivals(feedback_world *world, double use) {
    double unit = (double)(sim_random(&world->random) >> 11) / 9007199254740992.0;
    return use / SERVERS * (double)STEP / (double)DOORMAN_SECOND * (0.8 + 0.4 * unit);
}

static void do_work(feedback_world *world, worker *own, double use, double capacity) {
    double can = capacity / SERVERS * (double)STEP / (double)DOORMAN_SECOND;
    double arrived = arrivals(world, use), room = 2 * can;
    double refused = fmax(own->waiting + arrived - room, 0);
    double finished = fmin(own->waiting + arrived - refused, can);
    own->waiting += arrived - refused - finished;
    own->counted.arrived += arrived;
    own->counted.refused += refused;
    own->counted.finished += finished;
}

/* Notes when the use has settled in its range after the loss, and when it is back at 95 %. The use
 * can be in the range for a moment before it settles, because clients confirm a cut before other
 * clients get the difference. */
static void measure(feedback_world *world, double use, doorman_time passed) {
    sim_feedback *result = &world->result;
    double part = use / CAPACITY;
    result->use[passed * SIM_FEEDBACK_SAMPLES / REFRESH] = part;
    if (passed < LOSS_AT) return;
    if (passed < RECOVERY_AT) {
        bool inside = part >= 0.45 && part <= 0.52;
        if (!world->settled && (!inside || !world->inside_since)) {
            world->inside_since = inside ? passed : 0;
            world->least = world->most = part;
        }
        world->least = fmin(world->least, part);
        world->most = fmax(world->most, part);
        if (world->settled) result->swing = world->most - world->least;
        if (world->settled || !inside || passed - world->inside_since < REFRESH) return;
        world->settled = true;
        result->settles = (double)(world->inside_since - LOSS_AT) / (double)REFRESH;
    } else if (!world->grown && part >= 0.95) {
        result->recovers = (double)(passed - RECOVERY_AT) / (double)REFRESH;
        world->grown = true;
    }
}

static void step(feedback_world *world, doorman_time passed) {
    bool lost = passed >= LOSS_AT && passed < RECOVERY_AT;
    double use = 0;
    for (int i = 0; i < CLIENTS; i++) {
        client *own = &world->clients[i];
        if (world->now >= own->renews_at) renew(world, own);
        if (world->now < own->end) use += own->has.capacity;
    }
    for (int i = 0; i < SERVERS; i++) {
        worker *own = &world->workers[i];
        do_work(world, own, use, lost ? CAPACITY / 2 : CAPACITY * 1.05);
        if (passed % REFRESH == (2 * i + 1) * REFRESH / SERVERS / 2 / STEP * STEP) {
            report(world, own);
        }
    }
    if (world->child) pass_on(world, world->child);
    pass_on(world, world->root);
    measure(world, use, passed);
}

sim_feedback sim_feedback_run(doorman_handover handover, bool with_parent, uint64_t seed) {
    feedback_world *world = calloc(1, sizeof *world);
    must(world != NULL);
    world->random = seed;
    world->result = (sim_feedback){.settles = INFINITY, .swing = INFINITY, .recovers = INFINITY};
    start(world, handover, with_parent);
    doorman_time begin = world->now;
    for (doorman_time passed = 0; passed < END_AT; passed += STEP) {
        world->now = begin + passed;
        step(world, passed);
    }
    sim_feedback result = world->result;
    doorman_server_destroy(world->child);
    doorman_server_destroy(world->root);
    doorman_config_destroy(world->config);
    free(world);
    return result;
}
