/* Random systems and random faults, and how a failing run is shrunk: see sim.h.
 *
 * A run builds a system from the seed, simulates it with faults for some time, and then without
 * faults until every share must have its exact value. Each run draws which kinds of faults happen,
 * and how often ("swarm testing", Groce et al. 2012): a bug that needs one kind of fault often
 * hides behind the noise of all the others.
 *
 * A quarter of the runs with leases also have a schedule of cuts, to find bugs in the handover
 * after a cut. The capacity mostly falls, several times in the first third of the run, while gauges
 * keep units in flight and demands change. Half of these runs have no other faults, except that
 * clocks may differ. */
#include "sim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define SECOND DOORMAN_SECOND
#define NODES ((size_t)7) /* the largest number in a run */
#define CLIENTS 12        /* the largest number in a run */

const char *sim_fault_name(size_t fault) {
#define FAULT_NAME(code, name, text) name,
    static const char *const names[] = {SIM_FAULTS(FAULT_NAME)};
    return names[fault];
}

const char *sim_bound_option(size_t bound) {
#define BOUND_OPTION(code, option, minimum) option,
    static const char *const options[] = {SIM_BOUNDS(BOUND_OPTION)};
    return options[bound];
}

size_t sim_bound_minimum(size_t bound) {
#define BOUND_MINIMUM(code, option, minimum) minimum,
    static const size_t minimums[] = {SIM_BOUNDS(BOUND_MINIMUM)};
    return minimums[bound];
}

/* ---- random configurations */

static doorman_kind random_kind(uint64_t *random) {
    static const struct {
        doorman_kind kind;
        uint64_t parts; /* how often this kind is drawn, in proportion to the others */
    } kinds[] = {{DOORMAN_FAIR_SHARE, 16},
                 {DOORMAN_PROPORTIONAL_SHARE, 7},
                 {DOORMAN_PRIORITY_SHARE, 7},
                 {DOORMAN_STATIC_SHARE, 1},
                 {DOORMAN_NO_ALGORITHM, 1}};
    uint64_t all = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) all += kinds[i].parts;
    uint64_t drawn = sim_below(random, all);
    size_t at = 0;
    for (; drawn >= kinds[at].parts; at++) drawn -= kinds[at].parts;
    return kinds[at].kind;
}

static doorman_algorithm random_algorithm(uint64_t *random) {
    static const doorman_time lengths[] = {12 * SECOND, 20 * SECOND, 30 * SECOND, 60 * SECOND};
    doorman_algorithm algorithm = {.lease_length = lengths[sim_below(random, 4)]};
    algorithm.kind = random_kind(random);
    if (sim_below(random, 16) == 0) algorithm.handover = DOORMAN_IMMEDIATE;
    algorithm.refresh_interval =
        sim_time_between(random, algorithm.lease_length / 12, algorithm.lease_length);
    algorithm.has_minimum_interval = sim_below(random, 2);
    algorithm.minimum_interval = sim_time_between(random, 0, 5 * SECOND);
    if (!algorithm.has_minimum_interval) algorithm.minimum_interval = 0;
    algorithm.has_learning_mode_duration = sim_below(random, 16) == 0;
    algorithm.learning_mode_duration = sim_time_between(random, 0, 2 * algorithm.lease_length);
    if (!algorithm.has_learning_mode_duration) algorithm.learning_mode_duration = 0;
    if (algorithm.kind == DOORMAN_PRIORITY_SHARE) algorithm.reserve = sim_unit(random);
    if (sim_below(random, 2)) algorithm.decay_factor = sim_between(random, 0.25, 1);
    return algorithm;
}

/* Shortens leases of more than 20 s to 12 s: runs with leased permits have many messages. */
static void shorten(doorman_algorithm *algorithm) {
    if (algorithm->lease_length <= 20 * SECOND) return;
    algorithm->refresh_interval /= algorithm->lease_length / (6 * SECOND);
    algorithm->lease_length = 12 * SECOND;
}

static double random_capacity(uint64_t *random) {
    uint64_t choice = sim_below(random, 8);
    if (choice == 0) return 0;
    if (choice == 1) return sim_between(random, 0, 1);
    return sim_between(random, 50, 500);
}

static double random_wants(uint64_t *random) {
    uint64_t choice = sim_below(random, 6);
    if (choice == 0) return (double)sim_below(random, 2);
    return sim_between(random, 1, choice < 3 ? 150 : 1000);
}

/* Decides whether a resource has leases of whole units. The capacity of such a resource is often
 * small, so that most shares are not integers. */
static void draw_whole(sim_world *world, sim_rules *rules, bool first) {
    uint64_t *random = &world->fault_random[SIM_WHOLE];
    bool few = sim_below(random, 2), change = sim_below(random, first ? 2 : 8) == 0;
    if (world->intensity[SIM_WHOLE] <= 0 || !change) return;
    rules->whole = !rules->whole;
    if (rules->whole && few) rules->capacity /= 16;
}

/* Adds the next configuration. For each resource it keeps the rules, changes one of them, or
 * changes all. */
static void add_version(sim_world *world, uint64_t *random, bool first) {
    sim_rules rules[SIM_RESOURCES];
    for (size_t i = 0; i < world->resource_count; i++) {
        if (!first) rules[i] = world->versions[world->version_count - 1].rules[i];
        uint64_t choice = sim_below(random, 8);
        if (first || choice == 0) {
            bool units = !first && rules[i].whole;
            rules[i] = (sim_rules){.matched = true, .whole = units};
            rules[i].capacity = random_capacity(random);
            rules[i].algorithm = random_algorithm(random);
            if (world->leased) shorten(&rules[i].algorithm);
        } else if (choice < 4) {
            rules[i].capacity = random_capacity(random);
        } else if (choice == 4 || !rules[i].matched) {
            rules[i].matched = !rules[i].matched;
        }
        draw_whole(world, &rules[i], first);
        sim_overload_draw(world, &rules[i], first);
    }
    sim_add_version(world, rules);
}

static sim_clock random_clock(sim_world *world) {
    uint64_t *random = &world->fault_random[SIM_CLOCK];
    sim_clock clock = {sim_time_between(random, 1000 * SECOND, 2000 * SECOND), 1000};
    int64_t rate = SIM_RATE_MIN + (int64_t)sim_below(random, SIM_RATE_MAX - SIM_RATE_MIN + 1);
    if (sim_below(random, 2)) rate = sim_below(random, 2) ? SIM_RATE_MIN : SIM_RATE_MAX;
    if (world->intensity[SIM_CLOCK] > 0) clock.rate = rate;
    return clock;
}

/* ---- faults that strike from time to time */

/* Returns whether a node is `top` or below it. */
static bool is_below(const sim_world *world, size_t node, size_t top) {
    while (node != top && node != SIM_NONE) node = world->nodes[node].parent;
    return node == top;
}

/* Starts or ends a partition. It separates one node and everything below it, or a random half of
 * all clients and processes. */
static void inject_partition(sim_world *world, uint64_t *random) {
    bool below = sim_below(random, 2);
    size_t top = sim_pick(random, world->node_count);
    world->partitioned = !world->partitioned;
    for (size_t i = 0; i < world->client_count; i++) {
        sim_client *client = &world->clients[i];
        bool other_side = sim_below(random, 2);
        client->machine.other_side = below ? is_below(world, client->node, top) : other_side;
    }
    for (size_t i = 0; i < world->process_count; i++) {
        sim_process *process = &world->processes[i];
        bool other_side = sim_below(random, 2);
        process->machine.other_side = below ? is_below(world, process->node, top) : other_side;
    }
    sim_log(world, "%s", world->partitioned ? "a partition begins" : "the partition ends");
}

static void restart(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server && process->machine.incarnation == event->incarnation) {
        sim_start_process(world, event->actor);
    }
}

static void inject_kill(sim_world *world, uint64_t *random) {
    size_t process = sim_pick(random, world->process_count);
    doorman_time back = world->now + sim_time_between(random, 0, 60 * SECOND);
    if (!world->processes[process].server) return;
    sim_kill_process(world, process);
    uint64_t incarnation = world->processes[process].machine.incarnation;
    sim_schedule(world, back,
                 (sim_event){.handler = restart, .actor = process, .incarnation = incarnation});
}

static void inject_freeze(sim_world *world, uint64_t *random) {
    size_t process = sim_pick(random, world->process_count);
    const sim_process *chosen = &world->processes[process];
    doorman_time until = world->now + sim_time_between(random, 0, 60 * SECOND);
    if (chosen->server && !chosen->machine.paused_until) sim_pause_process(world, process, until);
}

static void inject_stall(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    const sim_client *chosen = &world->clients[client];
    doorman_time until = world->now + sim_time_between(random, 0, 60 * SECOND);
    if (chosen->client && !chosen->machine.paused_until) sim_pause_client(world, client, until);
}

/* Makes the master of a node resign, and in a third of the cases the master of its parent too. */
static void resign(sim_world *world, uint64_t *random, doorman_time longest) {
    size_t node = sim_pick(random, world->node_count), parent = world->nodes[node].parent;
    sim_resign(world, node, world->now + sim_time_between(random, 0, longest));
    if (parent == SIM_NONE || sim_below(random, 3)) return;
    sim_resign(world, parent, world->now + sim_time_between(random, 0, longest));
}

static void inject_resign(sim_world *world, uint64_t *random) { resign(world, random, 0); }

/* Leaves a node without a master for up to 1.2 times a lease length of 60 s. */
static void inject_gap(sim_world *world, uint64_t *random) { resign(world, random, 72 * SECOND); }

static void end_exile(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->actor];
    process->exiled = false;
    sim_log(world, "%s reaches the election again", process->address);
}

static void inject_exile(sim_world *world, uint64_t *random) {
    size_t index = sim_pick(random, world->process_count);
    sim_process *process = &world->processes[index];
    doorman_time back = world->now + sim_time_between(random, 0, 60 * SECOND);
    if (process->exiled) return;
    process->exiled = true;
    sim_log(world, "%s cannot reach the election", process->address);
    sim_schedule(world, back, (sim_event){.handler = end_exile, .actor = index});
}

static void load(sim_world *world, const sim_event *event) {
    if (!world->processes[event->actor].machine.paused_until) sim_load_config(world, event->actor);
}

/* Lets each process that has a configuration load the new one within 5 s, or after its pause. */
static void roll_out(sim_world *world, uint64_t *random) {
    world->version++;
    for (size_t i = 0; i < world->process_count; i++) {
        sim_event event = {.handler = load, .actor = i};
        sim_schedule(world, world->now + sim_time_between(random, 0, 5 * SECOND), event);
    }
}

static void inject_reload(sim_world *world, uint64_t *random) {
    if (world->version_count == SIM_VERSIONS) return;
    add_version(world, random, false);
    roll_out(world, random);
}

/* Multiplies all capacities by a factor, mostly less than 1. Does so only in the first third of a
 * run, so that the sums of the leases have time to fit again. */
static void inject_cut(sim_world *world, uint64_t *random) {
    if (world->version_count == SIM_VERSIONS || world->now > world->end / 3) return;
    sim_rules rules[SIM_RESOURCES];
    double factor =
        sim_below(random, 5) ? sim_between(random, 0.2, 0.9) : sim_between(random, 1, 3);
    for (size_t i = 0; i < world->resource_count; i++) {
        rules[i] = world->versions[world->version].rules[i];
        rules[i].capacity *= factor;
        rules[i].overload.capacity_min *= factor;
    }
    sim_add_version(world, rules);
    roll_out(world, random);
}

static void inject_spike(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    size_t resource = sim_pick(random, world->resource_count);
    double wants = random_wants(random);
    if (sim_below(random, 2)) wants = world->clients[client].usages[resource].wants * 0.95;
    if (!world->clients[client].machine.paused_until) sim_set_wants(world, client, resource, wants);
}

static void inject_die(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    if (world->clients[client].client) {
        sim_kill_client(world, client);
        return;
    }
    sim_start_client(world, client);
    for (size_t i = 0; i < world->resource_count; i++) sim_open(world, client, i);
}

static void reopen(sim_world *world, const sim_event *event) {
    const sim_client *client = &world->clients[event->actor];
    if (!client->client || client->machine.incarnation != event->incarnation ||
        client->machine.paused_until) {
        return;
    }
    if (!client->usages[event->target].resource) sim_open(world, event->actor, event->target);
}

/* Closes a resource, or opens one that is closed. Half of the resources that it closes are opened
 * again within 10 s, while the release may still be on its way. */
static void inject_close(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    size_t resource = sim_pick(random, world->resource_count);
    sim_client *chosen = &world->clients[client];
    sim_usage *usage = &chosen->usages[resource];
    doorman_resource_info info;
    if (!chosen->client || chosen->machine.paused_until) return;
    if (!usage->resource) {
        sim_open(world, client, resource);
        return;
    }
    doorman_client_read(usage->resource, &info, sim_local(&chosen->machine.clock, world->now));
    bool abandons = sim_fault_occurs(world, SIM_ABANDON, 1), soon = sim_below(random, 2);
    doorman_time later = world->now + sim_time_between(random, 0, 10 * SECOND);
    if (info.in_use > 0 && !abandons) return;
    sim_close(world, client, resource);
    sim_event event = {.handler = reopen,
                       .actor = client,
                       .target = resource,
                       .incarnation = chosen->machine.incarnation};
    if (soon) sim_schedule(world, later, event);
}

/* A kind of fault, and the mean number of seconds between two strikes at full intensity. */
typedef struct sim_injector {
    void (*inject)(sim_world *world, uint64_t *random);
    double interval;
} sim_injector;

/* ---- faults of a run with permits that differ from those of a run with leases */

static void inject_permit_reload(sim_world *world, uint64_t *random) {
    if (sim_permits_add_version(world, random)) roll_out(world, random);
}

static void inject_permit_stall(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    doorman_time until = world->now + sim_time_between(random, 0, 10 * SECOND);
    if (!world->clients[client].machine.paused_until) sim_pause_client(world, client, until);
}

static void inject_permit_die(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    if (world->permits) sim_permits_restart_client(world, client);
    if (world->holds) sim_holds_restart_client(world, client);
}

static const sim_injector permit_injectors[SIM_FAULT_COUNT] = {
    [SIM_PARTITION] = {inject_partition, 20},
    [SIM_KILL] = {inject_kill, 15},
    [SIM_FREEZE] = {inject_freeze, 30},
    [SIM_RESIGN] = {inject_resign, 30},
    [SIM_GAP] = {inject_gap, 60},
    [SIM_EXILE] = {inject_exile, 20},
    [SIM_STALL] = {inject_permit_stall, 15},
    [SIM_DIE] = {inject_permit_die, 10},
    [SIM_RELOAD] = {inject_permit_reload, 10},
    [SIM_TIME] = {sim_permits_set_clock, 10},
};

static void inject_state_reload(sim_world *world, uint64_t *random) {
    if (sim_states_add_version(world, random)) roll_out(world, random);
}

static const sim_injector state_injectors[SIM_FAULT_COUNT] = {
    [SIM_KILL] = {inject_kill, 15},          [SIM_FREEZE] = {inject_freeze, 30},
    [SIM_RESIGN] = {inject_resign, 30},      [SIM_GAP] = {inject_gap, 60},
    [SIM_EXILE] = {inject_exile, 20},        [SIM_RELOAD] = {inject_state_reload, 15},
    [SIM_TIME] = {sim_states_set_clock, 10}, [SIM_GONE] = {sim_states_lose_store, 15},
    [SIM_OLD] = {sim_states_put_back, 15},   [SIM_STOP] = {sim_states_stop, 15},
};

static const sim_injector hold_injectors[SIM_FAULT_COUNT] = {
    [SIM_PARTITION] = {inject_partition, 20},
    [SIM_KILL] = {inject_kill, 15},
    [SIM_FREEZE] = {inject_freeze, 30},
    [SIM_RESIGN] = {inject_resign, 30},
    [SIM_GAP] = {inject_gap, 60},
    [SIM_EXILE] = {inject_exile, 20},
    [SIM_STALL] = {inject_permit_stall, 15},
    [SIM_DIE] = {inject_permit_die, 10},
    [SIM_RELOAD] = {sim_holds_reload, 20},
    [SIM_CLOSE] = {sim_holds_close, 5},
};

static const sim_injector injectors[SIM_FAULT_COUNT] = {
    [SIM_PARTITION] = {inject_partition, 20},  [SIM_KILL] = {inject_kill, 15},
    [SIM_FREEZE] = {inject_freeze, 30},        [SIM_STALL] = {inject_stall, 15},
    [SIM_RESIGN] = {inject_resign, 20},        [SIM_GAP] = {inject_gap, 60},
    [SIM_EXILE] = {inject_exile, 20},          [SIM_RELOAD] = {inject_reload, 30},
    [SIM_SPIKE] = {inject_spike, 2},           [SIM_DIE] = {inject_die, 10},
    [SIM_CLOSE] = {inject_close, 5},           [SIM_CUT] = {inject_cut, 12},
    [SIM_OVERLOAD] = {sim_overload_inject, 1},
};

static const sim_injector *injector_of(const sim_world *world, size_t fault) {
    if (world->holds) return &hold_injectors[fault];
    if (world->states) return &state_injectors[fault];
    return world->permits ? &permit_injectors[fault] : &injectors[fault];
}

static void inject_fault(sim_world *world, const sim_event *event) {
    const sim_injector *injector = injector_of(world, event->target);
    uint64_t *random = &world->fault_random[event->target];
    double interval = injector->interval / world->intensity[event->target];
    if (world->now >= world->end) return;
    if (event->amount > 0) injector->inject(world, random);
    world->strikes[event->target] += event->amount > 0;
    sim_event next = *event;
    next.amount = 1;
    doorman_time wait = (doorman_time)(sim_between(random, 0, 2 * interval) * SECOND);
    sim_schedule(world, world->now + wait, next);
}

/* ---- one run */

static doorman_time longest_lease(const sim_world *world) {
    doorman_time longest = 0;
    for (size_t i = 0; i < world->version_count; i++) {
        for (size_t resource = 0; resource < world->resource_count; resource++) {
            const sim_rules *rules = &world->versions[i].rules[resource];
            doorman_time length = rules->matched ? rules->algorithm.lease_length : 60 * SECOND;
            if (length > longest) longest = length;
        }
    }
    return longest;
}

/* Sets wants that followed use to fixed values. Otherwise the wants could exceed the capacity at
 * any time. */
static void fix_wants(sim_world *world, size_t client) {
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_usage *usage = &world->clients[client].usages[i];
        if (!usage->follows_use) continue;
        usage->follows_use = false;
        sim_set_wants(world, client, i, usage->wants);
    }
}

/* Ends the faults: all processes run and reach each other, and messages are fast. (Each level
 * renews its lease after a third of it, and loses the time of a round trip: where a round trip
 * takes 2 s, four levels leave nothing of a lease of 12 s.) */
static void end_faults(sim_world *world) {
    if (world->latency > SECOND / 10) world->latency = SECOND / 10;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) world->intensity[i] = 0;
    world->partitioned = false;
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].exiled = false;
        if (world->processes[i].machine.paused_until) sim_kill_process(world, i);
        if (!world->processes[i].server) sim_start_process(world, i);
        sim_load_config(world, i);
    }
    for (size_t i = 0; i < world->node_count; i++) world->nodes[i].store.vacant_until = world->now;
    for (size_t i = 0; i < world->client_count; i++) {
        bool paused = world->clients[i].machine.paused_until;
        if (paused && world->permits) sim_permits_restart_client(world, i);
        if (paused && world->holds) sim_holds_restart_client(world, i);
        if (paused && !world->permits && !world->holds) sim_kill_client(world, i);
        fix_wants(world, i);
    }
    sim_log(world, "the faults end");
}

/* Decides whether this run has a schedule of cuts, as described above. */
static void set_up_cuts(sim_world *world, const sim_run_options *options) {
    uint64_t random = world->seed * 41 + 7;
    world->cuts = sim_below(&random, 4) == 0 && options->allowed[SIM_CUT];
    if (!world->cuts) return;
    bool alone = sim_below(&random, 2);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        bool favoured = i == SIM_CUT || i == SIM_SPIKE || i == SIM_HOLD || options->favoured[i];
        if (alone && i != SIM_CLOCK) world->intensity[i] = 0;
        if (favoured && options->allowed[i]) world->intensity[i] = 1;
    }
}

/* Draws how often each kind of fault happens. Kinds that were added later draw from their own
 * random numbers, so that old seeds still give the same runs where these kinds do not happen. */
static void set_up_faults(sim_world *world, const sim_run_options *options) {
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        bool later = i == SIM_CARELESS || i == SIM_CUT || i == SIM_WHOLE || i == SIM_TIME ||
                     i == SIM_OVERLOAD || i >= SIM_HANDOVER;
        uint64_t *random = later ? &world->fault_random[i] : &world->random;
        double intensity = sim_below(random, later ? 4 : 3) ? sim_unit(random) : 0;
        if (later && intensity < 0.7) intensity = 0;
        if (options->favoured[i]) intensity = 1;
        bool allowed = options->allowed[i] && !(options->leased && i == SIM_OVERLOAD);
        world->intensity[i] = allowed ? intensity : 0;
    }
    set_up_cuts(world, options);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!injector_of(world, i)->inject || world->intensity[i] <= 0) continue;
        sim_schedule(world, 0, (sim_event){.handler = inject_fault, .target = i});
    }
}

/* Returns a leaf, or any node in a quarter of the cases. */
static size_t random_node(const sim_world *world, uint64_t *random) {
    size_t leaves[SIM_NODES] = {0}, count = 0;
    for (size_t i = 0; i < world->node_count; i++) {
        bool leaf = true;
        for (size_t j = 0; j < world->node_count; j++) leaf = leaf && world->nodes[j].parent != i;
        if (leaf) leaves[count++] = i;
    }
    size_t any = sim_pick(random, world->node_count), leaf = leaves[sim_pick(random, count)];
    return sim_below(random, 4) ? leaf : any;
}

static void set_up_client(sim_world *world, size_t index) {
    uint64_t random = world->seed * 31 + index;
    size_t node = random_node(world, &random), other = random_node(world, &random);
    sim_client *client = sim_add_client(world, node, random_clock(world));
    if (world->intensity[SIM_ROAM] > 0) client->other = other;
    uint64_t *careless = &world->fault_random[SIM_CARELESS];
    uint64_t habit = sim_below(careless, 4);
    client->names_earlier_lease = sim_below(careless, 2);
    client->careless = habit == 0 ? 1 : habit == 1 ? sim_unit(careless) : 0;
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_usage *usage = &client->usages[i];
        *usage =
            (sim_usage){.wants = random_wants(&random), .priority = (int)sim_below(&random, 4)};
        usage->gauge = sim_below(&random, 2) || world->cuts;
        usage->follows_use = !usage->gauge && world->seed / 4 % 4 == 0;
        usage->node = client->node;
    }
    sim_start_client(world, index);
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_open(world, index, i);
        bool gauge = client->usages[i].gauge;
        sim_event event = {
            .handler = gauge ? sim_use_gauge : sim_use_rate, .actor = index, .target = i};
        if (!gauge || world->intensity[SIM_HOLD] > 0) sim_schedule(world, 0, event);
    }
    sim_leased_add_client(world, index);
}

static size_t at_most(uint64_t drawn, size_t maximum) {
    return drawn < maximum ? (size_t)drawn : maximum;
}

/* Adds the nodes. A quarter of all systems are flat: one root, or two if clients roam. The others
 * are trees: first a chain with one node for each level, then further nodes at random places in
 * it. */
static void set_up_nodes(sim_world *world, const sim_run_options *options) {
    uint64_t random = world->seed * 17 + 1;
    size_t levels =
        1 + at_most(sim_below(&random, SIM_LEVELS), options->maximum[SIM_MAX_LEVELS] - 1);
    size_t more =
        at_most(sim_below(&random, NODES - levels + 1), options->maximum[SIM_MAX_NODES] - 1);
    if (levels == 1) more = world->intensity[SIM_ROAM] > 0;
    for (size_t i = 0; i < levels + more && i < options->maximum[SIM_MAX_NODES]; i++) {
        size_t parent = i ? i - 1 : SIM_NONE, processes = 1 + sim_pick(&random, 3);
        if (i >= levels) parent = levels > 1 ? sim_pick(&random, i) : SIM_NONE;
        while (i >= levels && levels > 1 && world->nodes[parent].level + 1 >= levels) {
            parent = world->nodes[parent].parent;
        }
        sim_add_node(world, parent, processes);
    }
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].machine.clock = random_clock(world);
        sim_start_process(world, i);
    }
}

static void set_up(sim_world *world, const sim_run_options *options) {
    static const doorman_time latencies[] = {SECOND / 1000, SECOND / 10, SECOND};
    static const doorman_time ttls[] = {3 * SECOND, 6 * SECOND, 15 * SECOND};
    uint64_t *random = &world->random;
    set_up_faults(world, options);
    world->follows = world->intensity[SIM_OVERLOAD] > 0;
    world->end = sim_time_between(random, 60 * SECOND, (world->leased ? 150 : 400) * SECOND);
    doorman_time longest = (doorman_time)options->maximum[SIM_MAX_SECONDS] * SECOND;
    if (world->end > longest) world->end = longest;
    world->verbose = options->verbose;
    world->quiet = options->quiet;
    world->latency = latencies[sim_below(random, 3)];
    world->ttl = ttls[sim_below(random, 3)];
    world->hold = (doorman_time)(world->intensity[SIM_HOLD] * 60 * SECOND);
    size_t resources =
        1 + at_most(sim_below(random, SIM_RESOURCES), options->maximum[SIM_MAX_RESOURCES] - 1);
    size_t clients =
        2 + at_most(sim_below(random, CLIENTS - 1), options->maximum[SIM_MAX_CLIENTS] - 2);
    for (size_t i = 0; i < resources; i++) sim_add_resource(world);
    sim_leased_draw(world);
    add_version(world, random, true);
    set_up_nodes(world, options);
    for (size_t i = 0; i < clients; i++) set_up_client(world, i);
}

/* Returns the time within which all capacity is in force again after reports have lowered it (H11).
 * A report may wait for one refresh interval at each level. It counts for 2.25 intervals more. Then
 * the capacity grows in 22 steps, one in each interval. A root makes them up to 30 s late. */
static doorman_time growing_time(const sim_world *world, doorman_time levels) {
    doorman_time longest = 0;
    for (size_t i = 0; i < world->version_count; i++) {
        for (size_t resource = 0; resource < world->resource_count; resource++) {
            const sim_rules *rules = &world->versions[i].rules[resource];
            doorman_time interval = rules->algorithm.refresh_interval;
            if (rules->overload.target && interval > longest) longest = interval;
        }
    }
    return (levels + 26) * longest + 60 * SECOND;
}

/* Returns the time within which all shares reach their exact values. It is the longer of 3 lease
 * lengths, and 60 s (the longest back-off of a client, K2) plus 2 lease lengths. Each level below
 * the root takes one more lease length, because a node may learn for that long after a response
 * from its parent. With reports of overload, growing_time is added. */
static doorman_time settling_time(const sim_world *world) {
    doorman_time length = longest_lease(world), levels = 0;
    for (size_t i = 0; i < world->node_count; i++) {
        doorman_time level = (doorman_time)world->nodes[i].level;
        if (level > levels) levels = level;
    }
    doorman_time slept = 60 * SECOND + 2 * length;
    doorman_time grown = world->follows ? growing_time(world, levels) : 0;
    return (slept > 3 * length ? slept : 3 * length) + levels * length + grown;
}

/* Draws how long a run without leases lasts, and how fast its network and its elections are. */
static void set_up_times(sim_world *world, const sim_run_options *options, doorman_time least,
                         doorman_time most) {
    static const doorman_time latencies[] = {SECOND / 1000, SECOND / 10, SECOND};
    doorman_time longest = (doorman_time)options->maximum[SIM_MAX_SECONDS] * SECOND;
    world->verbose = options->verbose;
    world->quiet = options->quiet;
    world->end = sim_time_between(&world->random, least, most);
    if (world->end > longest) world->end = longest;
    world->latency = latencies[sim_below(&world->random, 3)];
    world->ttl = 3 * SECOND * (1 + (doorman_time)sim_below(&world->random, 2));
}

static void set_up_permits(sim_world *world, const sim_run_options *options) {
    uint64_t *random = &world->random;
    sim_permits_set_up(world);
    set_up_faults(world, options);
    set_up_times(world, options, 10 * SECOND, 90 * SECOND);
    size_t nodes = 1 + at_most(sim_below(random, 3), options->maximum[SIM_MAX_NODES] - 1);
    size_t clients = 2 + at_most(sim_below(random, 4), options->maximum[SIM_MAX_CLIENTS] - 2);
    for (size_t i = 0; i < nodes; i++) {
        sim_add_node(world, i ? sim_pick(random, i) : SIM_NONE, 1 + sim_pick(random, 3));
    }
    (void)sim_permits_add_version(world, random);
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].machine.clock = random_clock(world);
        sim_start_process(world, i);
    }
    for (size_t i = 0; i < clients; i++) {
        sim_client *client = sim_add_client(world, sim_pick(random, nodes), random_clock(world));
        size_t other = sim_pick(random, nodes);
        if (world->intensity[SIM_ROAM] > 0) client->other = other;
        sim_permits_add_client(world, i);
    }
}

/* Runs a system with permits. The time without faults and messages is long enough for all counters,
 * except for those of the calendar, to be as if they were never used. */
static bool run_permits(sim_world *world, const sim_run_options *options) {
    sim_init(world, options->seed);
    set_up_permits(world, options);
    sim_run(world, world->end);
    if (!world->failure[0]) end_faults(world);
    if (!world->failure[0]) sim_run(world, world->end + 150 * SECOND);
    if (!world->failure[0]) sim_permits_check_idle(world);
    sim_permits_tear_down(world);
    sim_uninit(world);
    return !world->failure[0];
}

static void set_up_holds(sim_world *world, const sim_run_options *options) {
    uint64_t *random = &world->random;
    sim_holds_set_up(world);
    set_up_faults(world, options);
    set_up_times(world, options, 30 * SECOND, 150 * SECOND);
    size_t clients = 2 + at_most(sim_below(random, 5), options->maximum[SIM_MAX_CLIENTS] - 2);
    sim_add_node(world, SIM_NONE, 1 + sim_pick(random, 3));
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].machine.clock = random_clock(world);
        sim_start_process(world, i);
    }
    for (size_t i = 0; i < clients; i++) {
        (void)sim_add_client(world, 0, random_clock(world));
        sim_holds_restart_client(world, i);
    }
}

/* Runs a system with holds. The time without faults is long enough for all holds to end. */
static bool run_holds(sim_world *world, const sim_run_options *options) {
    sim_init(world, options->seed);
    set_up_holds(world, options);
    sim_run(world, world->end);
    if (!world->failure[0]) end_faults(world);
    if (!world->failure[0]) sim_run(world, world->end + 90 * SECOND);
    if (!world->failure[0]) sim_holds_check_idle(world);
    sim_holds_tear_down(world);
    sim_uninit(world);
    return !world->failure[0];
}

/* Runs a system with leases and leased permits. All permits and their leases have ended before the
 * shares are checked. Then clients want no leases, and ask for permits. */
static bool run_leased(sim_world *world, const sim_run_options *options) {
    sim_init(world, options->seed);
    sim_leased_set_up(world);
    set_up(world, options);
    sim_run(world, world->end);
    if (!world->failure[0]) end_faults(world);
    doorman_time time = settling_time(world) + 120 * SECOND;
    sim_leased_pause(world);
    if (!world->failure[0]) sim_run(world, world->end + time);
    if (!world->failure[0]) sim_check_settled(world);
    if (!world->failure[0]) sim_leased_ask_all(world);
    if (!world->failure[0]) sim_run(world, world->end + time + settling_time(world));
    if (!world->failure[0]) sim_leased_check_granted(world);
    sim_leased_tear_down(world);
    sim_uninit(world);
    return !world->failure[0];
}

static void set_up_state(sim_world *world, const sim_run_options *options) {
    uint64_t *random = &world->random;
    sim_states_set_up(world);
    set_up_faults(world, options);
    set_up_times(world, options, 30 * SECOND, 150 * SECOND);
    size_t nodes = 1 + at_most(sim_below(random, 2), options->maximum[SIM_MAX_NODES] - 1);
    for (size_t i = 0; i < nodes; i++) sim_add_node(world, SIM_NONE, sim_below(random, 2) ? 3 : 1);
    (void)sim_states_add_version(world, random);
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].machine.clock = random_clock(world);
        sim_start_process(world, i);
    }
    sim_states_start(world);
}

/* Runs a system with stores. Clients continue for a minute without faults. Ten seconds later, all
 * changes must be written. */
static bool run_state(sim_world *world, const sim_run_options *options) {
    sim_init(world, options->seed);
    set_up_state(world, options);
    sim_run(world, world->end);
    if (!world->failure[0]) end_faults(world);
    if (!world->failure[0]) sim_run(world, world->end + 70 * SECOND);
    if (!world->failure[0]) sim_states_check_idle(world);
    sim_states_tear_down(world);
    sim_uninit(world);
    return !world->failure[0];
}

static sim_world world; /* one at a time; the SIGABRT handler reads it */

static bool run(const sim_run_options *options) {
    if (options->permits) return run_permits(&world, options);
    if (options->holds) return run_holds(&world, options);
    if (options->leased) return run_leased(&world, options);
    if (options->state) return run_state(&world, options);
    sim_init(&world, options->seed);
    set_up(&world, options);
    sim_run(&world, world.end);
    if (!world.failure[0]) end_faults(&world);
    if (!world.failure[0]) sim_run(&world, world.end + settling_time(&world));
    if (!world.failure[0]) sim_check_settled(&world);
    sim_uninit(&world);
    return !world.failure[0];
}

/* ---- reporting a failure, and shrinking it */

static void report_command(const sim_run_options *options) {
    bool first = true;
    const char *mode = options->permits  ? "permits"
                       : options->holds  ? "holds"
                       : options->leased ? "leased"
                       : options->state  ? "state"
                                         : "faults";
    printf("replay: %s %s --seed %" PRIu64, options->program, mode, options->seed);
    for (size_t i = 0; i < SIM_BOUND_COUNT; i++) {
        printf(" %s %zu", sim_bound_option(i), options->maximum[i]);
    }
    fputs(" --faults ", stdout);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!options->allowed[i]) continue;
        printf("%s%s", first ? "" : ",", sim_fault_name(i));
        first = false;
    }
    if (first) fputs("none", stdout);
    first = true;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!options->allowed[i] || !options->favoured[i]) continue;
        printf("%s%s", first ? " --favour " : ",", sim_fault_name(i));
        first = false;
    }
    putchar('\n');
}

static void report(const sim_run_options *options) {
    uint64_t count = world.log_count < SIM_LOG_LINES ? world.log_count : SIM_LOG_LINES;
    printf("FAILED: seed %" PRIu64 ", event %" PRIu64 ": %s\n", options->seed, world.handled_count,
           world.failure);
    for (uint64_t i = world.log_count - count; i < world.log_count; i++) {
        puts(world.log_lines[i % SIM_LOG_LINES]);
    }
    report_command(options);
}

/* Takes the smaller options if the run still fails with them. */
static bool try_smaller(sim_run_options *options, const sim_run_options *smaller) {
    if (run(smaller)) return false;
    *options = *smaller;
    return true;
}

/* Shrinks one bound while the run still fails: tries the least value first, then smaller steps.
 * Returns whether the bound is smaller now. */
static bool shrink_bound(sim_run_options *options, size_t bound) {
    size_t before = options->maximum[bound], minimum = sim_bound_minimum(bound);
    for (size_t step = before - minimum; step; step = step > 2 ? step / 2 : step - 1) {
        sim_run_options next = *options;
        if (next.maximum[bound] < minimum + step) continue;
        next.maximum[bound] -= step;
        (void)try_smaller(options, &next);
    }
    return options->maximum[bound] < before;
}

/* Shrinks the options while the run still fails: fewer kinds of faults, then a smaller system, then
 * less time. */
static void shrink(sim_run_options *options) {
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
            sim_run_options next = *options;
            next.allowed[i] = false;
            if (options->allowed[i]) smaller = try_smaller(options, &next) || smaller;
        }
        for (size_t i = 0; i < SIM_BOUND_COUNT; i++) smaller = shrink_bound(options, i) || smaller;
    }
}

static const sim_run_options *current_options;

/* Reports that an assertion has failed. If the run kept no log, it is repeated with a log and ends
 * up here again. The state of the first run is not needed any more. */
static void on_abort(int number) {
    (void)number;
    if (world.quiet) {
        sim_run_options again = *current_options;
        again.quiet = false;
        (void)run(&again);
    }
    snprintf(world.failure, sizeof world.failure, "an assertion failed");
    report(current_options);
    fflush(stdout);
    _Exit(1);
}

/* Runs one seed. Reports a failure, and shrinks it. */
static bool run_fails(const sim_run_options *first) {
    sim_run_options options = *first;
    current_options = &options;
    options.quiet = !options.verbose;
    if (run(&options)) return false;
    options.quiet = false;
    if (!options.verbose) (void)run(&options);
    report(&options);
    if (!options.shrink) return true;
    puts("\nThe smallest failing run:");
    shrink(&options);
    run(&options);
    report(&options);
    return true;
}

/* C1: the same seed gives the same run, with a log and without. */
static bool is_repeatable(const sim_run_options *options) {
    sim_run_options quiet = *options;
    quiet.quiet = true;
    (void)run(&quiet);
    uint64_t hash = world.hash;
    (void)run(options);
    if (hash == world.hash) return true;
    printf("FAILED: seed %" PRIu64 ": two runs differ\n", options->seed);
    return false;
}

typedef struct sim_totals {
    uint64_t runs, events, hash; /* hash: the sum of the hashes of all runs */
    uint64_t strikes[SIM_FAULT_COUNT], counts[SIM_COUNT_COUNT];
    bool failed;
} sim_totals;

static void add_counts(uint64_t *sums, const uint64_t *counts, size_t count) {
    for (size_t i = 0; i < count; i++) sums[i] += counts[i];
}

/* Prints how often each fault has happened, and what the runs with stores have counted. */
static void print_counts(const sim_totals *totals) {
#define COUNT_NAME(code, name) name,
    static const char *const names[] = {SIM_COUNTS(COUNT_NAME)};
    fputs("faults:", stdout);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (totals->strikes[i]) printf(" %s %" PRIu64, sim_fault_name(i), totals->strikes[i]);
    }
    putchar('\n');
    for (size_t i = 0; i < SIM_COUNT_COUNT; i++)
        printf("%" PRIu64 " %s\n", totals->counts[i], names[i]);
}

/* Runs every `step`-th seed, starting with number `first`, until a run fails. */
static sim_totals run_seeds(const sim_run_options *options, uint64_t first, uint64_t seeds,
                            uint64_t step) {
    sim_totals totals = {.runs = 0};
    time_t reported_at = time(NULL);
    for (uint64_t i = first; i < seeds && !totals.failed; i += step) {
        sim_run_options next = *options;
        next.seed = options->seed + i;
        totals.failed = run_fails(&next);
        totals.runs++;
        totals.events += world.handled_count;
        totals.hash += world.hash;
        add_counts(totals.strikes, world.strikes, SIM_FAULT_COUNT);
        add_counts(totals.counts, world.counts, SIM_COUNT_COUNT);
        if (totals.failed) printf("found in run %" PRIu64 " of %" PRIu64 "\n", i + 1, seeds);
        if (time(NULL) - reported_at < 2 || first) continue;
        reported_at = time(NULL);
        fprintf(stderr, "about %" PRIu64 " of %" PRIu64 " runs\n", i + 1, seeds);
    }
    return totals;
}

/* Calls run_seeds in a separate process. Returns the pipe from which its totals can be read. */
static int run_in_child(const sim_run_options *options, uint64_t first, uint64_t seeds,
                        uint64_t step) {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0) abort();
    pid_t child = fork();
    if (child < 0) abort();
    if (child > 0) {
        close(ends[1]);
        return ends[0];
    }
    sim_totals totals = run_seeds(options, first, seeds, step);
    fflush(stdout);
    bool written = write(ends[1], &totals, sizeof totals) == (ssize_t)sizeof totals;
    _Exit(written ? 0 : 1);
}

int sim_faults(const sim_run_options *options, uint64_t seeds, uint64_t jobs) {
    sim_totals sum = {.runs = 0};
    int pipes[SIM_JOBS];
    current_options = options;
    signal(SIGABRT, on_abort);
    if (!options->verbose && !is_repeatable(options)) return 1;
    fflush(stdout);
    for (uint64_t i = 1; i < jobs; i++) pipes[i] = run_in_child(options, i, seeds, jobs);
    for (uint64_t i = 0; i < jobs; i++) {
        sim_totals totals = {.failed = true};
        if (i == 0) {
            totals = run_seeds(options, 0, seeds, jobs);
        } else if (read(pipes[i], &totals, sizeof totals) != (ssize_t)sizeof totals) {
            totals.failed = true;
        }
        sum.runs += totals.runs;
        sum.events += totals.events;
        sum.hash += totals.hash;
        add_counts(sum.strikes, totals.strikes, SIM_FAULT_COUNT);
        add_counts(sum.counts, totals.counts, SIM_COUNT_COUNT);
        sum.failed = sum.failed || totals.failed;
    }
    if (sum.failed) return 1;
    if (options->state) print_counts(&sum);
    printf("%" PRIu64 " runs, %" PRIu64 " events: nothing found; the hash is %016" PRIx64 "\n",
           sum.runs, sum.events, sum.hash);
    return 0;
}
