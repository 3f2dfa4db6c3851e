/* Shards that move between nodes, and what clients get while shards move.
 *
 * There are 2 to 8 nodes. Each has a store, and one or two processes, which elect a master. A map
 * in etcd says which node owns each shard. Each master has real permits and a real mover, and does
 * what the mover says (sim_shards_node.c). Operators move shards, drain and add nodes, rebalance,
 * and call moves off. If all processes of a node are gone, an operator may move its shards: their
 * rows are made from the store of the dead node. Clients may know old maps, and repeat calls that
 * have no answer (sim_shards_load.c).
 *
 * Processes crash, also right after a write. They stand still, or cannot reach etcd, and believe
 * for a while that they are master. Stores are slow or gone. Reads and transactions of etcd are
 * lost or late, and so are their answers. In runs that are called exact, processes lose nothing.
 *
 * Checks:
 *     - only the owner of a shard decides for it, and no two processes do at one time
 *     - an account of each shard agrees with all decisions (sim_shards_account.c)
 *     - clients never use more holds than the limit
 *     - when the faults have ended, each shard arrives at its target, with `from` 0, and no node
 *       knows anything of a shard of another one
 *
 * The world moves in small steps. */
#include "sim_shards.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define EPOCH (1792000000 * SECOND) /* October 2026 */
#define MASTERSHIP (4 * SECOND)     /* by the clock of the process */
#define VACANCY (5 * SECOND)        /* after which the next master can be elected, by true time */

const char *const sim_shards_places[SHARDS_PLACES] = {
    "bucket", "lasting", "window", "long", "sliding", "one/x", "hold", "mixed", "more", "tiers"};
const char *const sim_shards_keys[SHARDS_KEYS] = {"k0", "{k0}x", "y{k0}z", "k1", "{k1}", "k2",
                                                  "",   "k3",    "k4",     "k5", "{}k6", "k7"};

static shards_world the_world; /* one at a time */

void sim_shards_fail(shards_world *world, const char *format, ...) {
    va_list arguments;
    if (world->failure[0]) return;
    va_start(arguments, format);
    vsnprintf(world->failure, sizeof world->failure, format, arguments);
    va_end(arguments);
}

void sim_shards_log(const shards_world *world, const char *format, ...) {
    va_list arguments;
    if (!world->verbose) return;
    printf("%9.3f  ", (double)world->now / 1e9);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

bool sim_shards_chance(shards_world *world, double probability) {
    return sim_unit(&world->random) < probability;
}

bool sim_shards_fault(shards_world *world, sim_fault fault, double probability) {
    const bool hit = sim_unit(&world->fault_random) < probability;
    return hit && world->faulty && world->on[fault];
}

/* Returns whether a fault that comes about once in `seconds` happens in this step. */
static bool strikes(shards_world *world, sim_fault fault, double seconds) {
    return sim_shards_fault(world, fault, (double)world->step / 1e9 / seconds);
}

doorman_time sim_shards_between(shards_world *world, doorman_time low, doorman_time high) {
    return sim_time_between(&world->random, low, high);
}

doorman_time sim_shards_local(const shards_process *process, doorman_time now) {
    return sim_local(&process->clock, now);
}

doorman_time sim_shards_epoch(const shards_world *world) { return EPOCH + world->now; }

bool sim_shards_is_master(const shards_world *world, const shards_process *process) {
    return process->alive && process->is_master &&
           sim_shards_local(process, world->now) < process->until;
}

bool sim_shards_is_durable(size_t place) { return place % 2 || place == SHARDS_SLIDING; }

size_t sim_shards_shard_of(const shards_world *world, size_t place, size_t key) {
    return doorman_shard_of(&world->shards, sim_shards_places[place], sim_shards_keys[key],
                            place == SHARDS_BY_RESOURCE);
}

void *sim_shards_grow(void *list, size_t count, size_t *capacity, size_t bytes) {
    if (count < *capacity) return list;
    *capacity = *capacity ? 2 * *capacity : 16;
    list = realloc(list, *capacity * bytes);
    if (!list) abort();
    return list;
}

/* ---- the configuration */

static doorman_permit_limit draw_limit(shards_world *world, doorman_limit_kind kind,
                                       const char *name, bool durable) {
    doorman_permit_limit limit = {.name = name, .kind = kind, .has_durable = true};
    const doorman_time window = (doorman_time)(5 + sim_below(&world->random, 30)) * SECOND;
    limit.durable = durable;
    if (kind == DOORMAN_TOKEN_BUCKET) {
        limit.figures.size = (double)(5 + sim_below(&world->random, 20));
        limit.figures.rate = (double)(1 + sim_below(&world->random, 4)) / 4;
    } else {
        limit.figures.limit = (double)(10 + sim_below(&world->random, 30));
        limit.figures.window = window;
    }
    return limit;
}

static void draw_limits(shards_world *world, doorman_permit_limit limits[SHARDS_PLACES][3],
                        doorman_tier tiers[2], size_t counts[SHARDS_PLACES]) {
    static const doorman_limit_kind kinds[] = {DOORMAN_TOKEN_BUCKET,   DOORMAN_TOKEN_BUCKET,
                                               DOORMAN_FIXED_WINDOW,   DOORMAN_FIXED_WINDOW,
                                               DOORMAN_SLIDING_WINDOW, DOORMAN_TOKEN_BUCKET};
    for (size_t i = 0; i < SHARDS_HOLD; i++) {
        limits[i][0] = draw_limit(world, kinds[i], "l", sim_shards_is_durable(i));
        counts[i] = 1;
    }
    limits[2][0].refund_unsettled = sim_below(&world->random, 2);
    limits[SHARDS_SLIDING][0].refund_unsettled = true;
    limits[SHARDS_BY_RESOURCE][0].per = DOORMAN_PER_RESOURCE;
    doorman_permit_limit *hold = &limits[SHARDS_HOLD][0];
    *hold = (doorman_permit_limit){.name = "l", .kind = DOORMAN_CONCURRENCY};
    hold->figures.limit = world->slots;
    hold->figures.time_to_live = world->time_to_live;
    hold->figures.queue = 4;
    hold->figures.has_queue = hold->figures.has_max_wait = true;
    hold->figures.max_wait = 4 * SECOND;
    counts[SHARDS_HOLD] = 1;
    for (size_t i = SHARDS_MIXED; i < SHARDS_MIXED + 2; i++) {
        limits[i][0] = draw_limit(world, DOORMAN_TOKEN_BUCKET, "l", i % 2);
        limits[i][1] = draw_limit(world, DOORMAN_FIXED_WINDOW, "fixed", true);
        limits[i][1].refund_unsettled = true;
        limits[i][2] = draw_limit(world, DOORMAN_SLIDING_WINDOW, "slides", i % 2 == 0);
        counts[i] = 3;
    }
    tiers[0] = (doorman_tier){.limit = 12, .window = 8 * SECOND, .active = 8 * SECOND};
    tiers[1] = (doorman_tier){.limit = 30, .window = 20 * SECOND, .active = 20 * SECOND};
    tiers[1].cooldown = 9 * SECOND;
    doorman_permit_limit *last = &limits[SHARDS_PLACES - 1][0];
    *last = (doorman_permit_limit){.name = "l", .kind = DOORMAN_TIERS};
    last->figures.tiers = tiers;
    last->figures.tier_count = 2;
    counts[SHARDS_PLACES - 1] = 1;
}

static doorman_config *make_config(const shards_world *world,
                                   doorman_permit_limit limits[SHARDS_PLACES][3],
                                   const size_t counts[SHARDS_PLACES]) {
    doorman_template templates[SHARDS_PLACES] = {{.identifier_glob = NULL}};
    doorman_config *config = NULL;
    doorman_error error = {0};
    for (size_t i = 0; i < SHARDS_PLACES; i++) {
        templates[i] = (doorman_template){.identifier_glob = sim_shards_places[i]};
        templates[i].without_capacity = templates[i].has_limits = true;
        templates[i].limits = limits[i];
        templates[i].limit_count = counts[i];
        templates[i].shard_by_resource = i == SHARDS_BY_RESOURCE;
    }
    const doorman_config_options options = {.templates = templates,
                                            .template_count = SHARDS_PLACES,
                                            .shard_count = world->shards.count};
    if (doorman_config_create(&config, &options, &error) == DOORMAN_OK) return config;
    fprintf(stderr, "the configuration is wrong: %s\n", error.text);
    abort();
}

static void configure(shards_world *world) {
    doorman_permit_limit limits[SHARDS_PLACES][3] = {{{.name = NULL}}};
    doorman_tier tiers[2];
    size_t counts[SHARDS_PLACES];
    draw_limits(world, limits, tiers, counts);
    world->config = make_config(world, limits, counts);
    doorman_time *window = &limits[SHARDS_SLIDING][0].figures.window;
    if (!world->exact) *window = *window / 16 * 15;
    world->single_config = make_config(world, limits, counts);
}

/* ---- processes and elections */

static void start(shards_world *world, size_t process) {
    shards_process *own = &world->processes[process];
    own->alive = true;
    own->watch_at = own->update_at = world->now;
}

void sim_shards_crash(shards_world *world, size_t process) {
    shards_process *own = &world->processes[process];
    if (!own->alive) return;
    sim_shards_log(world, "process %zu crashes", process);
    sim_shards_end(world, process);
    doorman_shard_mover_destroy(own->mover);
    own->mover = NULL;
    own->alive = false;
    own->incarnation++;
    own->starts_at = world->now + sim_shards_between(world, SECOND / 10, 8 * SECOND);
    world->crashes++;
}

static bool can_vote(const shards_world *world, const shards_process *process) {
    return process->alive && world->now >= process->paused_until &&
           world->now >= process->exiled_until;
}

static void renew(shards_world *world, shards_election *election, shards_process *master) {
    master->renewed_at = world->now;
    master->until = sim_shards_local(master, world->now) + MASTERSHIP;
    election->until = world->now + VACANCY;
}

static void elect(shards_world *world, size_t node) {
    shards_election *election = &world->elections[node];
    if (election->master != SIM_NONE) {
        shards_process *master = &world->processes[election->master];
        const bool renews = can_vote(world, master) && master->term == election->term &&
                            master->is_master && world->now < election->until;
        if (renews && world->now - master->renewed_at >= SECOND) renew(world, election, master);
    }
    if (world->now < election->until) return;
    election->master = SIM_NONE;
    const size_t process = (size_t)sim_below(&world->random, world->process_count);
    shards_process *candidate = &world->processes[process];
    if (candidate->node != node || !can_vote(world, candidate) || candidate->is_master) return;
    election->master = process;
    candidate->term = ++election->term;
    renew(world, election, candidate);
    sim_shards_log(world, "process %zu is master of node %zu, term %llu", process, node,
                   (unsigned long long)candidate->term);
    sim_shards_begin(world, process);
}

/* ---- operators */

static void rebalance(shards_world *world, size_t leaving) {
    bool stays[SHARDS_NODES];
    for (size_t i = 0; i < world->map.node_count; i++) stays[i] = i != leaving;
    (void)doorman_shards_balance(world->map.owners, world->shards.count, stays,
                                 world->map.node_count);
    world->map.epoch++;
}

static void force(shards_world *world) {
    const size_t shard = (size_t)sim_below(&world->random, world->shards.count);
    const size_t from = world->map.owners[shard].owner;
    shards_election *election = &world->elections[from];
    const size_t target = (size_t)sim_below(&world->random, world->map.node_count);
    if (world->force.used || !world->dead[from] || target == from) return;
    if (election->master != SIM_NONE || world->now < election->until) return;
    for (size_t i = 0; i < world->process_count; i++) {
        if (world->processes[i].node == from && world->processes[i].alive) return;
    }
    /* a forced move raises the term like a new master, so a late write of a master fails */
    world->stores[from].term = ++election->term;
    world->stores[from].number = UINT64_MAX;
    world->force = (shards_force){.used = true, .shard = shard, .from = from, .target = target};
    world->force.term = election->term;
    world->force.epoch = world->map.epoch;
    world->force.at = world->now + sim_shards_between(world, SECOND / 20, SECOND / 2);
}

static void operate(shards_world *world) {
    const double step = (double)world->step / 1e9;
    doorman_shard *shard = &world->map.owners[sim_below(&world->random, world->shards.count)];
    if (!world->faulty) return;
    if (sim_shards_chance(world, step)) {
        shard->target = (size_t)sim_below(&world->random, world->map.node_count);
        world->map.epoch++;
    }
    if (sim_shards_chance(world, step / 3) && shard->target != shard->owner) {
        shard->target = shard->owner;
        world->map.epoch++;
    }
    if (sim_shards_chance(world, step / 10) && world->map.node_count < world->node_count) {
        world->map.node_count++;
        rebalance(world, SIM_NONE);
    }
    if (sim_shards_chance(world, step / 10)) rebalance(world, SIM_NONE);
    if (sim_shards_chance(world, step / 15)) {
        rebalance(world, (size_t)sim_below(&world->random, world->map.node_count));
    }
    if (sim_shards_chance(world, step * 3)) force(world);
}

/* ---- faults */

/* The processes start again later. */
static void kill_node(shards_world *world, size_t node) {
    const doorman_time until = world->now + sim_shards_between(world, 8 * SECOND, 25 * SECOND);
    world->dead[node] = true;
    world->dead_until[node] = until;
    for (size_t i = 0; i < world->process_count; i++) {
        if (world->processes[i].node != node) continue;
        sim_shards_crash(world, i);
        world->processes[i].starts_at = until;
    }
}

static void strike(shards_world *world) {
    const size_t process = (size_t)sim_below(&world->fault_random, world->process_count);
    const size_t node = (size_t)sim_below(&world->fault_random, world->node_count);
    shards_process *own = &world->processes[process];
    const doorman_time span = sim_time_between(&world->fault_random, 0, 8 * SECOND);
    if (strikes(world, SIM_KILL, 8)) sim_shards_crash(world, process);
    if (strikes(world, SIM_DIE, 15)) kill_node(world, node);
    if (strikes(world, SIM_FREEZE, 6)) own->paused_until = world->now + span;
    if (strikes(world, SIM_EXILE, 6)) own->exiled_until = world->now + span;
    if (strikes(world, SIM_GONE, 8)) world->stores[node].gone_until = world->now + span;
    if (strikes(world, SIM_RESIGN, 6) && own->is_master) {
        shards_election *election = &world->elections[own->node];
        sim_shards_end(world, process);
        if (election->master == process) election->until = world->now;
    }
}

/* ---- runs */

static void step(shards_world *world) {
    world->now += world->step;
    world->steps++;
    if (world->faulty) strike(world);
    operate(world);
    for (size_t i = 0; i < world->node_count; i++) {
        if (world->dead[i] && world->now >= world->dead_until[i]) world->dead[i] = false;
        elect(world, i);
    }
    sim_shards_force(world);
    sim_shards_access(world);
    for (size_t i = 0; i < world->process_count && !world->failure[0]; i++) {
        shards_process *own = &world->processes[i];
        if (!own->alive && world->now >= own->starts_at) start(world, i);
        if (own->alive && world->now >= own->paused_until) sim_shards_work(world, i);
    }
    if (!world->failure[0]) sim_shards_load(world);
}

static void run_for(shards_world *world, doorman_time duration) {
    const doorman_time end = world->now + duration;
    while (world->now < end && !world->failure[0]) step(world);
}

/* Draws the kinds of faults. In an exact run no process loses what it knows, and all clocks run
 * alike. */
static void draw_faults(shards_world *world, const sim_run_options *options) {
    static const sim_fault losing[] = {SIM_KILL,  SIM_DIE,    SIM_FREEZE, SIM_EXILE,
                                       SIM_CRASH, SIM_RESIGN, SIM_CLOCK};
    bool forced = false;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        const bool drawn = sim_shards_chance(world, 0.5);
        world->on[i] = options->favoured[i] || (options->allowed[i] && drawn);
    }
    world->exact = sim_shards_chance(world, 0.4);
    for (size_t i = 0; i < sizeof losing / sizeof *losing; i++) {
        forced = forced || options->favoured[losing[i]];
    }
    if (forced) world->exact = false;
    for (size_t i = 0; world->exact && i < sizeof losing / sizeof *losing; i++) {
        world->on[losing[i]] = false;
    }
    world->on[SIM_CLOCK] = world->on[SIM_CLOCK] && sim_shards_chance(world, 0.4);
    world->counts = !world->on[SIM_CLOCK];
}

static sim_clock draw_clock(shards_world *world) {
    sim_clock clock = {.rate = 1000};
    if (world->exact) return clock;
    clock.offset = sim_shards_between(world, 0, 1000 * SECOND);
    if (world->on[SIM_CLOCK]) {
        clock.rate =
            SIM_RATE_MIN + (int64_t)sim_below(&world->random, SIM_RATE_MAX - SIM_RATE_MIN + 1);
    }
    return clock;
}

static void draw_nodes(shards_world *world, const sim_run_options *options) {
    const size_t most = options->maximum[SIM_MAX_NODES];
    world->node_count = 2 + (size_t)sim_below(&world->random, SHARDS_NODES - 1);
    if (world->node_count > most) world->node_count = most > 2 ? most : 2;
    world->client_count = 2 + (size_t)sim_below(&world->random, SHARDS_CLIENTS - 1);
    if (world->client_count > options->maximum[SIM_MAX_CLIENTS]) world->client_count = 2;
    world->map.node_count = 2 + (size_t)sim_below(&world->random, world->node_count - 1);
    world->map.epoch = 1;
    for (size_t i = 0; i < world->shards.count; i++) {
        const size_t owner = (size_t)sim_below(&world->random, world->map.node_count);
        world->map.owners[i] = (doorman_shard){.owner = owner, .target = owner};
    }
    for (size_t i = 0; i < world->node_count; i++) {
        const size_t processes = 1 + (size_t)sim_below(&world->random, 2);
        world->elections[i].master = SIM_NONE;
        for (size_t j = 0; j < processes; j++) {
            shards_process *process = &world->processes[world->process_count];
            process->node = i;
            process->clock = draw_clock(world);
            start(world, world->process_count++);
        }
    }
    for (size_t i = 0; i < world->client_count; i++) {
        world->clients[i].clock = draw_clock(world);
        snprintf(world->clients[i].name, sizeof world->clients[i].name, "c%zu", i);
    }
}

static void set_up(shards_world *world, const sim_run_options *options) {
    memset(world, 0, sizeof *world);
    world->seed = options->seed;
    world->random = options->seed * 2654435761u + 5;
    world->fault_random = options->seed * 2654435761u + 6;
    world->verbose = options->verbose;
    world->faulty = true;
    world->now = 10 * SECOND;
    draw_faults(world, options);
    world->step = sim_shards_between(world, SECOND / 100, SECOND / 25);
    world->time_to_live =
        world->exact ? 3600 * SECOND : sim_shards_between(world, 3 * SECOND, 20 * SECOND);
    world->slots = (double)(2 + sim_below(&world->random, 4));
    world->shards.count = 2 + (size_t)sim_below(&world->random, SHARDS_MOST - 1);
    world->shards.seed[0] = sim_random(&world->random);
    world->key_count = 3 + (size_t)sim_below(&world->random, SHARDS_KEYS - 2);
    world->place_count = world->exact ? SHARDS_PLACES : SHARDS_MIXED;
    world->unit_rate = (double)(5 + sim_below(&world->random, 40));
    configure(world);
    draw_nodes(world, options);
    sim_shards_account_open(world);
}

static void tear_down(shards_world *world) {
    sim_shards_uninit(world);
    sim_shards_account_close(world);
    doorman_config_destroy(world->config);
    doorman_config_destroy(world->single_config);
}

/* Returns whether each shard is at its target, with `from` 0, and a master decides for it. */
static bool has_arrived(const shards_world *world) {
    for (size_t i = 0; i < world->shards.count; i++) {
        const doorman_shard *shard = &world->map.owners[i];
        const size_t master = world->elections[shard->owner].master;
        if (shard->owner != shard->target || shard->from || master == SIM_NONE) return false;
        const shards_process *own = &world->processes[master];
        if (!own->permits || !doorman_permits_owns(own->permits, i)) return false;
        if (doorman_shard_mover_state(own->mover, i) != DOORMAN_SHARD_OWNED) return false;
    }
    return true;
}

static void check_end(shards_world *world) {
    for (size_t i = 0; i < world->process_count && !world->failure[0]; i++) {
        shards_process *own = &world->processes[i];
        if (!own->permits || !sim_shards_is_master(world, own)) continue;
        sim_shards_check_known(world, i);
        for (size_t j = 0; world->exact && j < world->shards.count; j++) {
            if (doorman_permits_owns(own->permits, j)) sim_shards_account_inspect(world, i, j);
        }
    }
}

static void end_faults(shards_world *world) {
    world->faulty = false;
    for (size_t i = 0; i < world->process_count; i++) {
        world->processes[i].exiled_until = world->processes[i].paused_until = 0;
        world->processes[i].starts_at = 0;
    }
    for (size_t i = 0; i < world->node_count; i++) {
        world->stores[i].gone_until = 0;
        world->dead[i] = false;
    }
}

static bool run_fails(const sim_run_options *options) {
    shards_world *world = &the_world;
    set_up(world, options);
    const doorman_time faulty = (doorman_time)(10 + sim_below(&world->random, 50)) * SECOND;
    const doorman_time most = (doorman_time)options->maximum[SIM_MAX_SECONDS] * SECOND;
    run_for(world, faulty < most ? faulty : most);
    end_faults(world);
    run_for(world, 10 * SECOND);
    world->quiet = true;
    for (int i = 0; i < 60 && !has_arrived(world); i++) run_for(world, SECOND);
    if (!has_arrived(world)) sim_shards_fail(world, "a shard does not arrive");
    run_for(world, 4 * SECOND);
    check_end(world);
    const char *kind = world->exact ? "exact" : "not exact";
    if (!world->failure[0]) {
        tear_down(world);
        return false;
    }
    printf("FAILED: seed %llu, event %llu: %s (%s)\n", (unsigned long long)options->seed,
           (unsigned long long)world->steps, world->failure, kind);
    printf("repeat: %s shards --seed %llu --verbose\n", options->program,
           (unsigned long long)options->seed);
    tear_down(world);
    return true;
}

/* Runs every `step`-th seed. Returns whether one has failed. */
static bool run_seeds(const sim_run_options *options, uint64_t first, uint64_t seeds,
                      uint64_t step_count) {
    uint64_t sums[10] = {0}, hash = 0;
    for (uint64_t i = first; i < seeds; i += step_count) {
        sim_run_options next = *options;
        next.seed = options->seed + i;
        if (run_fails(&next)) return true;
        const shards_world *world = &the_world;
        const uint64_t counts[10] = {1,
                                     world->steps,
                                     world->decisions,
                                     world->moved,
                                     world->moves_done,
                                     world->forced,
                                     world->masterships,
                                     world->crashes,
                                     world->losses,
                                     world->refused_writes};
        for (size_t j = 0; j < 10; j++) sums[j] += counts[j];
        hash += world->hash;
    }
    static const char *const names[10] = {"runs",          "steps",   "decisions",
                                          "moved calls",   "moves",   "forced moves",
                                          "masterships",   "crashes", "decisions lost in them",
                                          "writes refused"};
    for (size_t j = 0; j < 10; j++) printf("%llu %s, ", (unsigned long long)sums[j], names[j]);
    printf("nothing found; the hash is %016llx\n", (unsigned long long)hash);
    return false;
}

int sim_shards(const sim_run_options *options, uint64_t seeds, uint64_t jobs) {
    return sim_in_processes(run_seeds, options, seeds, jobs);
}
