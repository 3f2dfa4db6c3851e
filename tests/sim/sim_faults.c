/* Random systems and random faults, and how a failing run is shrunk: see sim.h.
 *
 * A run builds a system from the seed, simulates it with faults for some time, and then without
 * faults until every share must have its exact value. Each run draws which kinds of faults happen,
 * and how often ("swarm testing", Groce et al. 2012): a bug that needs one kind of fault often
 * hides behind the noise of all the others.
 *
 * A quarter of the runs also has a schedule of cuts, to find faults of the handover after a cut.
 * The capacity falls several times in the first third of the run and then stays, while gauges keep
 * units in flight and all demands change. Half of these runs have no other kind of fault. */
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
#define BOUND_OPTION(code, option, least) option,
    static const char *const options[] = {SIM_BOUNDS(BOUND_OPTION)};
    return options[bound];
}

size_t sim_bound_least(size_t bound) {
#define BOUND_LEAST(code, option, least) least,
    static const size_t leasts[] = {SIM_BOUNDS(BOUND_LEAST)};
    return leasts[bound];
}

/* ---- random configurations */

static doorman_algorithm random_algorithm(uint64_t *dice) {
    static const doorman_time lengths[] = {12 * SECOND, 20 * SECOND, 30 * SECOND, 60 * SECOND};
    doorman_algorithm algorithm = {.lease_length = lengths[sim_below(dice, 4)]};
    uint64_t kind = sim_below(dice, 32);
    algorithm.kind = kind < 16   ? DOORMAN_FAIR_SHARE
                     : kind < 23 ? DOORMAN_PROPORTIONAL_SHARE
                     : kind < 30 ? DOORMAN_PRIORITY_SHARE
                     : kind < 31 ? DOORMAN_STATIC_SHARE
                                 : DOORMAN_NO_ALGORITHM;
    if (sim_below(dice, 16) == 0) algorithm.handover = DOORMAN_IMMEDIATE;
    algorithm.refresh_interval =
        sim_time_between(dice, algorithm.lease_length / 12, algorithm.lease_length);
    algorithm.has_minimum_interval = sim_below(dice, 2);
    algorithm.minimum_interval = sim_time_between(dice, 0, 5 * SECOND);
    if (!algorithm.has_minimum_interval) algorithm.minimum_interval = 0;
    algorithm.has_learning_mode_duration = sim_below(dice, 16) == 0;
    algorithm.learning_mode_duration = sim_time_between(dice, 0, 2 * algorithm.lease_length);
    if (!algorithm.has_learning_mode_duration) algorithm.learning_mode_duration = 0;
    if (algorithm.kind == DOORMAN_PRIORITY_SHARE) algorithm.reserve = sim_unit(dice);
    if (sim_below(dice, 2)) algorithm.decay_factor = sim_between(dice, 0.25, 1);
    return algorithm;
}

static double random_capacity(uint64_t *dice) {
    uint64_t choice = sim_below(dice, 8);
    if (choice == 0) return 0;
    if (choice == 1) return sim_between(dice, 0, 1);
    return sim_between(dice, 50, 500);
}

static double random_wants(uint64_t *dice) {
    uint64_t choice = sim_below(dice, 6);
    if (choice == 0) return (double)sim_below(dice, 2);
    return sim_between(dice, 1, choice < 3 ? 150 : 1000);
}

/* Some resources have leases of whole units, often with a small capacity, so that most shares are
 * not integers. */
static void draw_whole(sim_world *world, sim_rules *rules, bool first) {
    uint64_t *dice = &world->fault_dice[SIM_WHOLE];
    bool few = sim_below(dice, 2), change = sim_below(dice, first ? 2 : 8) == 0;
    if (world->intensity[SIM_WHOLE] <= 0 || !change) return;
    rules->whole = !rules->whole;
    if (rules->whole && few) rules->capacity /= 16;
}

/* Adds the next configuration. For each resource it keeps the rules, changes one of them, or
 * changes all. */
static void add_version(sim_world *world, uint64_t *dice, bool first) {
    sim_rules rules[SIM_RESOURCES];
    for (size_t i = 0; i < world->resource_count; i++) {
        if (!first) rules[i] = world->versions[world->version_count - 1].rules[i];
        uint64_t choice = sim_below(dice, 8);
        if (first || choice == 0) {
            bool units = !first && rules[i].whole;
            rules[i] = (sim_rules){.matched = true, .whole = units};
            rules[i].capacity = random_capacity(dice);
            rules[i].algorithm = random_algorithm(dice);
        } else if (choice < 4) {
            rules[i].capacity = random_capacity(dice);
        } else if (choice == 4 || !rules[i].matched) {
            rules[i].matched = !rules[i].matched;
        }
        draw_whole(world, &rules[i], first);
    }
    sim_add_version(world, rules);
}

static sim_clock random_clock(sim_world *world) {
    uint64_t *dice = &world->fault_dice[SIM_CLOCK];
    sim_clock clock = {sim_time_between(dice, 1000 * SECOND, 2000 * SECOND), 1000};
    int64_t rate = SIM_RATE_MIN + (int64_t)sim_below(dice, SIM_RATE_MAX - SIM_RATE_MIN + 1);
    if (sim_below(dice, 2)) rate = sim_below(dice, 2) ? SIM_RATE_MIN : SIM_RATE_MAX;
    if (world->intensity[SIM_CLOCK] > 0) clock.rate = rate;
    return clock;
}

/* ---- load: gauges take units and give them back, rates take units */

/* Gives back the units that an event took. If the resource is closed, the units were abandoned. */
static void give_back(sim_world *world, const sim_event *event) {
    sim_use *use = &world->clients[event->who].uses[event->what];
    double amount = event->amount;
    if (use->opening != event->life) return;
    sim_touch_client(world, event->who);
    if (use->resource) {
        doorman_gauge_release(doorman_resource_gauge(use->resource), amount);
        sim_note(world, "c%zu gives %.6g of r%zu back", event->who, amount, event->what);
    } else {
        use->abandoned = use->abandoned > amount ? use->abandoned - amount : 0;
        use->owed += amount;
    }
}

/* Takes everything that a gauge has left, or a part of it, for some time. */
static void use_gauge(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->who];
    sim_use *use = &client->uses[event->what];
    uint64_t *dice = &world->fault_dice[SIM_HOLD];
    doorman_time local = sim_local(&client->machine.clock, world->now);
    doorman_time hold = sim_time_between(dice, SECOND / 10, world->hold);
    double part = sim_below(dice, 2) ? 1 : sim_unit(dice);
    doorman_resource_info info;
    if (world->now < world->end) {
        sim_plan(world, world->now + sim_time_between(dice, SECOND / 10, 10 * SECOND), *event);
    }
    if (world->now >= world->end || client->machine.still_until) return;
    if (!sim_leased(world, event->who, event->what, &info)) return;
    double amount = (double)(int64_t)((info.capacity - info.in_flight) * part * 16) / 16;
    if (amount <= 0) return;
    doorman_gauge *gauge = doorman_resource_gauge(use->resource);
    sim_touch_client(world, event->who);
    if (doorman_gauge_try(gauge, amount, local) != DOORMAN_ALLOWED) {
        sim_fail(world, "%s has %g of r%zu with %g in flight, but is refused %g", client->id,
                 info.capacity, event->what, info.in_flight, amount);
        return;
    }
    sim_note(world, "%s uses %.6g of r%zu for %.3f s", client->id, amount, event->what,
             (double)hold / SECOND);
    sim_event back = {.handler = give_back, .who = event->who, .what = event->what};
    back.life = use->opening;
    back.amount = amount;
    sim_plan(world, world->now + hold, back);
}

/* Tries to take what the capacity gives in up to 10 s, which is more than there is, in one or
 * several parts. */
static void use_rate(sim_world *world, const sim_event *event) {
    sim_client *client = &world->clients[event->who];
    sim_use *use = &client->uses[event->what];
    uint64_t *dice = &world->dice;
    doorman_time next = world->now + sim_time_between(dice, SECOND / 100, 4 * SECOND);
    double amount = use->capacity * sim_between(dice, 0, 10);
    size_t parts = 1 + sim_pick(dice, 8);
    if (world->now < world->end) sim_plan(world, next, *event);
    if (!use->resource || client->machine.still_until || amount <= 0) return;
    doorman_time local = sim_local(&client->machine.clock, world->now);
    double before = use->passed;
    for (size_t i = 0; i < parts; i++) {
        doorman_rate *rate = doorman_resource_rate(use->resource);
        doorman_decision decision = doorman_rate_try(rate, amount / (double)parts, local);
        if (decision == DOORMAN_ALLOWED) use->passed += amount / (double)parts;
    }
    sim_touch_client(world, event->who);
    if (use->passed <= before) return;
    sim_note(world, "%s grants %.6g of r%zu", client->id, use->passed - before, event->what);
}

/* ---- faults that strike from time to time */

/* Returns whether a node is `top` or below it. */
static bool belongs(const sim_world *world, size_t node, size_t top) {
    while (node != top && node != SIM_NONE) node = world->nodes[node].parent;
    return node == top;
}

/* Starts or ends a partition. It separates one node and everything below it, or a random half. */
static void strike_partition(sim_world *world, uint64_t *dice) {
    bool below = sim_below(dice, 2);
    size_t top = sim_pick(dice, world->node_count);
    world->partitioned = !world->partitioned;
    for (size_t i = 0; i < world->client_count; i++) {
        sim_client *client = &world->clients[i];
        bool aside = sim_below(dice, 2);
        client->machine.aside = below ? belongs(world, client->node, top) : aside;
    }
    for (size_t i = 0; i < world->process_count; i++) {
        sim_process *process = &world->processes[i];
        bool aside = sim_below(dice, 2);
        process->machine.aside = below ? belongs(world, process->node, top) : aside;
    }
    sim_note(world, "%s", world->partitioned ? "a partition begins" : "the partition ends");
}

static void revive(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->who];
    if (!process->server && process->machine.life == event->life) {
        sim_start_process(world, event->who);
    }
}

static void strike_kill(sim_world *world, uint64_t *dice) {
    size_t process = sim_pick(dice, world->process_count);
    doorman_time back = world->now + sim_time_between(dice, 0, 60 * SECOND);
    if (!world->processes[process].server) return;
    sim_kill_process(world, process);
    uint64_t life = world->processes[process].machine.life;
    sim_plan(world, back, (sim_event){.handler = revive, .who = process, .life = life});
}

static void strike_freeze(sim_world *world, uint64_t *dice) {
    size_t process = sim_pick(dice, world->process_count);
    const sim_process *struck = &world->processes[process];
    doorman_time until = world->now + sim_time_between(dice, 0, 60 * SECOND);
    if (struck->server && !struck->machine.still_until) sim_freeze_process(world, process, until);
}

static void strike_stall(sim_world *world, uint64_t *dice) {
    size_t client = sim_pick(dice, world->client_count);
    const sim_client *struck = &world->clients[client];
    doorman_time until = world->now + sim_time_between(dice, 0, 60 * SECOND);
    if (struck->client && !struck->machine.still_until) sim_stall_client(world, client, until);
}

/* Makes the master of a node resign, and a third of the time that of its parent too: both learn. */
static void resign(sim_world *world, uint64_t *dice, doorman_time longest) {
    size_t node = sim_pick(dice, world->node_count), parent = world->nodes[node].parent;
    sim_resign(world, node, world->now + sim_time_between(dice, 0, longest));
    if (parent == SIM_NONE || sim_below(dice, 3)) return;
    sim_resign(world, parent, world->now + sim_time_between(dice, 0, longest));
}

static void strike_resign(sim_world *world, uint64_t *dice) { resign(world, dice, 0); }

/* A gap of up to 1.2 times a lease length of 60 s. */
static void strike_gap(sim_world *world, uint64_t *dice) { resign(world, dice, 72 * SECOND); }

static void end_exile(sim_world *world, const sim_event *event) {
    sim_process *process = &world->processes[event->who];
    process->exiled = false;
    sim_note(world, "%s reaches the election again", process->address);
}

static void strike_exile(sim_world *world, uint64_t *dice) {
    size_t index = sim_pick(dice, world->process_count);
    sim_process *process = &world->processes[index];
    doorman_time back = world->now + sim_time_between(dice, 0, 60 * SECOND);
    if (process->exiled) return;
    process->exiled = true;
    sim_note(world, "%s cannot reach the election", process->address);
    sim_plan(world, back, (sim_event){.handler = end_exile, .who = index});
}

static void load(sim_world *world, const sim_event *event) {
    if (!world->processes[event->who].machine.still_until) sim_load(world, event->who);
}

/* All processes load a new configuration, each at its own time within 5 s. */
static void roll_out(sim_world *world, uint64_t *dice) {
    world->version++;
    for (size_t i = 0; i < world->process_count; i++) {
        sim_event event = {.handler = load, .who = i};
        sim_plan(world, world->now + sim_time_between(dice, 0, 5 * SECOND), event);
    }
}

static void strike_reload(sim_world *world, uint64_t *dice) {
    if (world->version_count == SIM_VERSIONS) return;
    add_version(world, dice, false);
    roll_out(world, dice);
}

/* Strikes only in the first third of a run, so that the sums have time to fit again. */
static void strike_cut(sim_world *world, uint64_t *dice) {
    if (world->version_count == SIM_VERSIONS || world->now > world->end / 3) return;
    sim_rules rules[SIM_RESOURCES];
    double factor = sim_below(dice, 5) ? sim_between(dice, 0.2, 0.9) : sim_between(dice, 1, 3);
    for (size_t i = 0; i < world->resource_count; i++) {
        rules[i] = world->versions[world->version].rules[i];
        rules[i].capacity *= factor;
    }
    sim_add_version(world, rules);
    roll_out(world, dice);
}

static void strike_spike(sim_world *world, uint64_t *dice) {
    size_t client = sim_pick(dice, world->client_count);
    size_t resource = sim_pick(dice, world->resource_count);
    double wants = random_wants(dice);
    if (sim_below(dice, 2)) wants = world->clients[client].uses[resource].wants * 0.95;
    if (!world->clients[client].machine.still_until) sim_want(world, client, resource, wants);
}

static void strike_die(sim_world *world, uint64_t *dice) {
    size_t client = sim_pick(dice, world->client_count);
    if (world->clients[client].client) {
        sim_kill_client(world, client);
        return;
    }
    sim_start_client(world, client);
    for (size_t i = 0; i < world->resource_count; i++) sim_open(world, client, i);
}

static void reopen(sim_world *world, const sim_event *event) {
    const sim_client *client = &world->clients[event->who];
    if (!client->client || client->machine.life != event->life || client->machine.still_until)
        return;
    if (!client->uses[event->what].resource) sim_open(world, event->who, event->what);
}

/* Closes a resource. Half of the resources are opened again within 10 s, while the release may
 * still be on its way. */
static void strike_close(sim_world *world, uint64_t *dice) {
    size_t client = sim_pick(dice, world->client_count);
    size_t resource = sim_pick(dice, world->resource_count);
    sim_client *struck = &world->clients[client];
    sim_use *use = &struck->uses[resource];
    doorman_resource_info info;
    if (!struck->client || struck->machine.still_until) return;
    if (!use->resource) {
        sim_open(world, client, resource);
        return;
    }
    doorman_resource_read(use->resource, &info, sim_local(&struck->machine.clock, world->now));
    bool abandons = sim_strikes(world, SIM_ABANDON, 1), soon = sim_below(dice, 2);
    doorman_time later = world->now + sim_time_between(dice, 0, 10 * SECOND);
    if (info.in_flight > 0 && !abandons) return;
    sim_close(world, client, resource);
    sim_event event = {
        .handler = reopen, .who = client, .what = resource, .life = struck->machine.life};
    if (soon) sim_plan(world, later, event);
}

/* A kind of fault, and the mean number of seconds between two strikes at full intensity. */
typedef struct sim_striker {
    void (*strike)(sim_world *world, uint64_t *dice);
    double interval;
} sim_striker;

static const sim_striker strikers[SIM_FAULT_COUNT] = {
    [SIM_PARTITION] = {strike_partition, 20}, [SIM_KILL] = {strike_kill, 15},
    [SIM_FREEZE] = {strike_freeze, 30},       [SIM_STALL] = {strike_stall, 15},
    [SIM_RESIGN] = {strike_resign, 20},       [SIM_GAP] = {strike_gap, 60},
    [SIM_EXILE] = {strike_exile, 20},         [SIM_RELOAD] = {strike_reload, 30},
    [SIM_SPIKE] = {strike_spike, 2},          [SIM_DIE] = {strike_die, 10},
    [SIM_CLOSE] = {strike_close, 5},          [SIM_CUT] = {strike_cut, 12},
};

static void strike(sim_world *world, const sim_event *event) {
    const sim_striker *striker = &strikers[event->what];
    uint64_t *dice = &world->fault_dice[event->what];
    double interval = striker->interval / world->intensity[event->what];
    if (world->now >= world->end) return;
    if (event->amount > 0) striker->strike(world, dice);
    sim_event next = *event;
    next.amount = 1;
    doorman_time wait = (doorman_time)(sim_between(dice, 0, 2 * interval) * SECOND);
    sim_plan(world, world->now + wait, next);
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

/* Sets wants that followed use to fixed values. Otherwise they could exceed the capacity at any
 * time. */
static void settle_wants(sim_world *world, size_t client) {
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_use *use = &world->clients[client].uses[i];
        if (!use->follows) continue;
        use->follows = false;
        sim_want(world, client, i, use->wants);
    }
}

/* Ends the faults: repairs everything, and makes messages fast. (Each level renews its lease after
 * a third of it, and loses the time of a round trip: where a round trip takes 2 s, four levels
 * leave nothing of a lease of 12 s.) */
static void heal(sim_world *world) {
    if (world->latency > SECOND / 10) world->latency = SECOND / 10;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) world->intensity[i] = 0;
    world->partitioned = false;
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].exiled = false;
        if (world->processes[i].machine.still_until) sim_kill_process(world, i);
        if (!world->processes[i].server) sim_start_process(world, i);
        sim_load(world, i);
    }
    for (size_t i = 0; i < world->node_count; i++) world->nodes[i].vacant_until = world->now;
    for (size_t i = 0; i < world->client_count; i++) {
        if (world->clients[i].machine.still_until) sim_kill_client(world, i);
        settle_wants(world, i);
    }
    sim_note(world, "the faults end");
}

/* Decides whether this run has a schedule of cuts, as described above. */
static void set_up_cuts(sim_world *world, const sim_story *story) {
    uint64_t dice = world->seed * 41 + 7;
    world->cuts = sim_below(&dice, 4) == 0 && story->allowed[SIM_CUT];
    if (!world->cuts) return;
    bool alone = sim_below(&dice, 2);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        bool favoured = i == SIM_CUT || i == SIM_SPIKE || i == SIM_HOLD || story->favoured[i];
        if (alone && i != SIM_CLOCK) world->intensity[i] = 0;
        if (favoured && story->allowed[i]) world->intensity[i] = 1;
    }
}

/* Kinds of faults that were added later draw from their own random numbers, so that earlier seeds
 * give the same runs where these kinds do not happen. */
static void set_up_faults(sim_world *world, const sim_story *story) {
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        bool later = i == SIM_CARELESS || i == SIM_CUT || i == SIM_WHOLE;
        uint64_t *dice = later ? &world->fault_dice[i] : &world->dice;
        double intensity = sim_below(dice, later ? 4 : 3) ? sim_unit(dice) : 0;
        if (later && intensity < 0.7) intensity = 0;
        if (story->favoured[i]) intensity = 1;
        world->intensity[i] = story->allowed[i] ? intensity : 0;
    }
    set_up_cuts(world, story);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!strikers[i].strike || world->intensity[i] <= 0) continue;
        sim_plan(world, 0, (sim_event){.handler = strike, .what = i});
    }
}

/* Returns a leaf for most clients. A client that roams changes between two nodes. */
static size_t random_node(const sim_world *world, uint64_t *dice) {
    size_t leaves[SIM_NODES] = {0}, count = 0;
    for (size_t i = 0; i < world->node_count; i++) {
        bool leaf = true;
        for (size_t j = 0; j < world->node_count; j++) leaf = leaf && world->nodes[j].parent != i;
        if (leaf) leaves[count++] = i;
    }
    size_t any = sim_pick(dice, world->node_count), leaf = leaves[sim_pick(dice, count)];
    return sim_below(dice, 4) ? leaf : any;
}

static void set_up_client(sim_world *world, size_t index) {
    uint64_t dice = world->seed * 31 + index;
    size_t node = random_node(world, &dice), other = random_node(world, &dice);
    sim_client *client = sim_add_client(world, node, random_clock(world));
    if (world->intensity[SIM_ROAM] > 0) client->other = other;
    uint64_t *careless = &world->fault_dice[SIM_CARELESS];
    uint64_t habit = sim_below(careless, 4);
    client->names_earlier = sim_below(careless, 2);
    client->careless = habit == 0 ? 1 : habit == 1 ? sim_unit(careless) : 0;
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_use *use = &client->uses[i];
        *use = (sim_use){.wants = random_wants(&dice), .priority = (int)sim_below(&dice, 4)};
        use->gauge = sim_below(&dice, 2) || world->cuts;
        use->follows = !use->gauge && world->seed / 4 % 4 == 0;
        use->node = client->node;
    }
    sim_start_client(world, index);
    for (size_t i = 0; i < world->resource_count; i++) {
        sim_open(world, index, i);
        bool gauge = client->uses[i].gauge;
        sim_event event = {.handler = gauge ? use_gauge : use_rate, .who = index, .what = i};
        if (!gauge || world->intensity[SIM_HOLD] > 0) sim_plan(world, 0, event);
    }
}

static size_t at_most(uint64_t drawn, size_t most) { return drawn < most ? (size_t)drawn : most; }

/* A quarter of all systems are flat: one root, or two if clients roam. The others are trees: first
 * a chain with one node for each level, then further nodes at random places in it. */
static void set_up_nodes(sim_world *world, const sim_story *story) {
    uint64_t dice = world->seed * 17 + 1;
    size_t levels = 1 + at_most(sim_below(&dice, SIM_LEVELS), story->most[SIM_MOST_LEVELS] - 1);
    size_t more = at_most(sim_below(&dice, NODES - levels + 1), story->most[SIM_MOST_NODES] - 1);
    if (levels == 1) more = world->intensity[SIM_ROAM] > 0;
    for (size_t i = 0; i < levels + more && i < story->most[SIM_MOST_NODES]; i++) {
        size_t parent = i ? i - 1 : SIM_NONE, processes = 1 + sim_pick(&dice, 3);
        if (i >= levels) parent = levels > 1 ? sim_pick(&dice, i) : SIM_NONE;
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

static void set_up(sim_world *world, const sim_story *story) {
    static const doorman_time latencies[] = {SECOND / 1000, SECOND / 10, SECOND};
    static const doorman_time ttls[] = {3 * SECOND, 6 * SECOND, 15 * SECOND};
    uint64_t *dice = &world->dice;
    set_up_faults(world, story);
    world->end = sim_time_between(dice, 60 * SECOND, 400 * SECOND);
    doorman_time longest = (doorman_time)story->most[SIM_MOST_SECONDS] * SECOND;
    if (world->end > longest) world->end = longest;
    world->verbose = story->verbose;
    world->quiet = story->quiet;
    world->latency = latencies[sim_below(dice, 3)];
    world->ttl = ttls[sim_below(dice, 3)];
    world->hold = (doorman_time)(world->intensity[SIM_HOLD] * 60 * SECOND);
    size_t resources =
        1 + at_most(sim_below(dice, SIM_RESOURCES), story->most[SIM_MOST_RESOURCES] - 1);
    size_t clients = 2 + at_most(sim_below(dice, CLIENTS - 1), story->most[SIM_MOST_CLIENTS] - 2);
    for (size_t i = 0; i < resources; i++) sim_add_resource(world);
    add_version(world, dice, true);
    set_up_nodes(world, story);
    for (size_t i = 0; i < clients; i++) set_up_client(world, i);
}

/* Returns the time within which all shares reach their exact values. It is the longer of 3 lease
 * lengths, and of 2 lease lengths after the longest back-off of a client (60 s, K2). Each level
 * below the root takes one more lease length, because a node may learn for that long after it has
 * heard from its parent. */
static doorman_time settling_time(const sim_world *world) {
    doorman_time length = longest_lease(world), levels = 0;
    for (size_t i = 0; i < world->node_count; i++) {
        doorman_time level = (doorman_time)world->nodes[i].level;
        if (level > levels) levels = level;
    }
    doorman_time slept = 60 * SECOND + 2 * length;
    return (slept > 3 * length ? slept : 3 * length) + levels * length;
}

static sim_world world; /* one at a time; the SIGABRT handler reads it */

static bool run(const sim_story *story) {
    sim_init(&world, story->seed);
    set_up(&world, story);
    sim_run(&world, world.end);
    if (!world.failure[0]) heal(&world);
    if (!world.failure[0]) sim_run(&world, world.end + settling_time(&world));
    if (!world.failure[0]) sim_check_settled(&world);
    sim_uninit(&world);
    return !world.failure[0];
}

/* ---- reporting a failure, and shrinking it */

static void tell_command(const sim_story *story) {
    bool first = true;
    printf("replay: %s faults --seed %" PRIu64, story->program, story->seed);
    for (size_t i = 0; i < SIM_BOUND_COUNT; i++) {
        printf(" %s %zu", sim_bound_option(i), story->most[i]);
    }
    fputs(" --faults ", stdout);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!story->allowed[i]) continue;
        printf("%s%s", first ? "" : ",", sim_fault_name(i));
        first = false;
    }
    if (first) fputs("none", stdout);
    first = true;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        if (!story->allowed[i] || !story->favoured[i]) continue;
        printf("%s%s", first ? " --favour " : ",", sim_fault_name(i));
        first = false;
    }
    putchar('\n');
}

static void tell(const sim_story *story) {
    uint64_t count = world.note_count < SIM_NOTES ? world.note_count : SIM_NOTES;
    printf("FAILED: seed %" PRIu64 ", event %" PRIu64 ": %s\n", story->seed, world.happened,
           world.failure);
    for (uint64_t i = world.note_count - count; i < world.note_count; i++) {
        puts(world.notes[i % SIM_NOTES]);
    }
    tell_command(story);
}

/* Makes the story smaller if it still fails. */
static bool try_smaller(sim_story *story, const sim_story *smaller) {
    if (run(smaller)) return false;
    *story = *smaller;
    return true;
}

/* Shrinks one bound to the smallest value that still fails: first to the least value, then in
 * smaller and smaller steps. */
static bool shrink_bound(sim_story *story, size_t bound) {
    size_t before = story->most[bound], least = sim_bound_least(bound);
    for (size_t step = before - least; step; step = step > 2 ? step / 2 : step - 1) {
        sim_story next = *story;
        if (next.most[bound] < least + step) continue;
        next.most[bound] -= step;
        (void)try_smaller(story, &next);
    }
    return story->most[bound] < before;
}

/* Shrinks a story for as long as it still fails: fewer kinds of faults, then a smaller system, then
 * less time. */
static void shrink(sim_story *story) {
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
            sim_story next = *story;
            next.allowed[i] = false;
            if (story->allowed[i]) smaller = try_smaller(story, &next) || smaller;
        }
        for (size_t i = 0; i < SIM_BOUND_COUNT; i++) smaller = shrink_bound(story, i) || smaller;
    }
}

static const sim_story *under_way;

/* An assertion of the header has failed. If the run took no notes, it is repeated with notes and
 * ends up here again; the state of the first run is not used any more. */
static void on_abort(int number) {
    (void)number;
    if (world.quiet) {
        sim_story again = *under_way;
        again.quiet = false;
        (void)run(&again);
    }
    snprintf(world.failure, sizeof world.failure, "an assertion failed");
    tell(under_way);
    fflush(stdout);
    _Exit(1);
}

/* Runs one seed. Reports a failure, and shrinks it. */
static bool fails(const sim_story *first) {
    sim_story story = *first;
    under_way = &story;
    story.quiet = !story.verbose;
    if (run(&story)) return false;
    story.quiet = false;
    if (!story.verbose) (void)run(&story);
    tell(&story);
    if (!story.shrink) return true;
    puts("\nThe smallest failing run:");
    shrink(&story);
    run(&story);
    tell(&story);
    return true;
}

/* C1: the same seed gives the same run, with notes and without. */
static bool repeats(const sim_story *story) {
    sim_story quiet = *story;
    quiet.quiet = true;
    (void)run(&quiet);
    uint64_t hash = world.hash;
    (void)run(story);
    if (hash == world.hash) return true;
    printf("FAILED: seed %" PRIu64 ": two runs differ\n", story->seed);
    return false;
}

typedef struct sim_tally {
    uint64_t runs, events, hash; /* hash: of the last run */
    bool failed;
} sim_tally;

/* Runs every `step`-th seed, starting with number `first`. */
static sim_tally run_seeds(const sim_story *story, uint64_t first, uint64_t seeds, uint64_t step) {
    sim_tally tally = {.runs = 0};
    time_t told_at = time(NULL);
    for (uint64_t i = first; i < seeds && !tally.failed; i += step) {
        sim_story next = *story;
        next.seed = story->seed + i;
        tally.failed = fails(&next);
        tally.runs++;
        tally.events += world.happened;
        tally.hash = world.hash;
        if (tally.failed) printf("found in run %" PRIu64 " of %" PRIu64 "\n", i + 1, seeds);
        if (time(NULL) - told_at < 2 || first) continue;
        told_at = time(NULL);
        fprintf(stderr, "about %" PRIu64 " of %" PRIu64 " runs\n", i + 1, seeds);
    }
    return tally;
}

/* Runs the seeds in a separate process. Returns the pipe from which its tally can be read. */
static int run_apart(const sim_story *story, uint64_t first, uint64_t seeds, uint64_t step) {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0) abort();
    pid_t child = fork();
    if (child < 0) abort();
    if (child > 0) {
        close(ends[1]);
        return ends[0];
    }
    sim_tally tally = run_seeds(story, first, seeds, step);
    fflush(stdout);
    bool told = write(ends[1], &tally, sizeof tally) == (ssize_t)sizeof tally;
    _Exit(told ? 0 : 1);
}

int sim_faults(const sim_story *story, uint64_t seeds, uint64_t jobs) {
    sim_tally sum = {.runs = 0};
    int tallies[SIM_JOBS];
    under_way = story;
    signal(SIGABRT, on_abort);
    if (!story->verbose && !repeats(story)) return 1;
    fflush(stdout);
    for (uint64_t i = 1; i < jobs; i++) tallies[i] = run_apart(story, i, seeds, jobs);
    for (uint64_t i = 0; i < jobs; i++) {
        sim_tally tally = {.failed = true};
        if (i == 0) {
            tally = run_seeds(story, 0, seeds, jobs);
        } else if (read(tallies[i], &tally, sizeof tally) != (ssize_t)sizeof tally) {
            tally.failed = true;
        }
        sum.runs += tally.runs;
        sum.events += tally.events;
        sum.hash ^= tally.hash;
        sum.failed = sum.failed || tally.failed;
    }
    if (sum.failed) return 1;
    printf("%" PRIu64 " runs, %" PRIu64 " events: nothing found; the last runs' hash is %016" PRIx64
           "\n",
           sum.runs, sum.events, sum.hash);
    return 0;
}
