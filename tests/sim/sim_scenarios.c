/* The scenarios of the design document's simulation, run on the same code as the server: see sim.h.
 *
 * Scenarios one to three have a root and 5 clients. Four has a root, a region and its 5 clients.
 * Five to seven have a root, 3 regions, 3 data centres in each region, and 5 clients in each data
 * centre. Each node has three processes. The capacity is 500, and leases last 60 s. The holders of
 * the root ask every 8 s. The holders of each lower level ask twice as often as those above, but no
 * holder asks twice within 2 s. Messages are instant and none is lost. Each client starts with the
 * wants of its sim_shape. Then, at once and every 10 s, its wants w become w * (1 + 0.1 * (1 -
 * 2U)), with U uniform in [0, 1). Time is continuous. (The original ticks in whole seconds, but the
 * header spreads renewals by some percent of their interval, and whole seconds would round that
 * away.)
 *
 * Wants and mishaps have their own random numbers, so that both kinds of handover see the same
 * wants and the same mishaps. */
#include "sim.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CAPACITY 500.0
#define SECONDS ((size_t)3600) /* the longest run */
#define FIRST_SAMPLE ((size_t)75)
#define SAMPLE_INTERVAL ((size_t)5)
#define PARTS 9 /* clients or data centres that a picture shows separately */
#define SEEDS_MAX 1000
#define SHORT_FACTOR 10 /* short runs are repeated more often, because each says little */

typedef struct sim_shape {
    size_t regions, centres; /* regions below the root; data centres below each region */
    double wants;            /* of each client at the start */
} sim_shape;

static const sim_shape single_root = {0, 0, 110}, one_region = {1, 0, 100},
                       three_regions = {3, 3, 15};

typedef struct sim_scenario {
    const char *name;
    const sim_shape *shape;
    size_t seconds;
    sim_handler disturbance;   /* NULL: none */
    double disturbance_amount; /* seconds without a master, or what clients want (more) */
    size_t disturbance_start, disturbance_end; /* its beginning and its end, in seconds */
    size_t level;                              /* the level of the node that loses its master */
    const char *original, *original_over;      /* min, median, max; percent in use, samples over */
} sim_scenario;

/* The figures of one run. in_use, largest and mean_over are percent of the capacity; recovery is in
 * seconds. */
typedef struct sim_result {
    double in_use, largest, mean_over, recovery;
    size_t samples_over;
    uint64_t hash;
} sim_result;

/* What happens in each second. */
typedef struct sim_timeline {
    double leased[SECONDS + 1], wanted[SECONDS + 1], part[PARTS][SECONDS + 1];
    bool without_master[SECONDS + 1]; /* some node has no master */
} sim_timeline;

/* ---- events */

static void random_walk_wants(sim_world *world, const sim_event *event) {
    double wants = world->clients[event->actor].usages[0].wants;
    double unit = sim_unit(&world->fault_random[SIM_SPIKE]);
    sim_set_wants(world, event->actor, 0, wants * (1 + 0.1 * (1 - 2 * unit)));
    sim_schedule(world, world->now + 10 * DOORMAN_SECOND, *event);
}

static size_t random_client(sim_world *world) {
    return sim_pick(&world->fault_random[SIM_GAP], world->client_count);
}

static size_t random_node(sim_world *world, size_t first, size_t end) {
    return first + sim_pick(&world->fault_random[SIM_GAP], end - first);
}

static void raise_wants(sim_world *world, const sim_event *event) {
    size_t client = random_client(world);
    sim_set_wants(world, client, 0, world->clients[client].usages[0].wants + event->amount);
}

static void raise_two_wants(sim_world *world, const sim_event *event) {
    size_t first = random_client(world), second = random_client(world);
    while (second == first) second = random_client(world);
    sim_set_wants(world, first, 0, event->amount);
    sim_set_wants(world, second, 0, event->amount);
}

/* Leaves a random node of a level without a master for a time. */
static void lose_master(sim_world *world, const sim_event *event) {
    size_t first = 0, end = world->node_count;
    while (world->nodes[first].level < event->target) first++;
    while (world->nodes[end - 1].level > event->target) end--;
    doorman_time gap = (doorman_time)event->amount * DOORMAN_SECOND;
    sim_resign(world, random_node(world, first, end), world->now + gap);
}

/* Makes one mishap, and plans the next one in a minute. With probability 10/15 a client wants 100
 * more, for good. With probability 4/15 a node has no master for up to a minute. With probability
 * 1/15 a node elects a master; a third of the time the same process wins, and nothing changes. */
static void random_disturbance(sim_world *world, const sim_event *event) {
    uint64_t *random = &world->fault_random[SIM_GAP];
    uint64_t draw = sim_below(random, 15), wait = sim_below(random, 61),
             winner = sim_below(random, 3);
    size_t node = random_node(world, 0, world->node_count);
    sim_event more = {.amount = 100};
    if (draw < 10) {
        raise_wants(world, &more);
    } else if (draw < 14) {
        sim_resign(world, node, world->now + (doorman_time)wait * DOORMAN_SECOND);
    } else if (winner) {
        sim_resign(world, node, world->now);
    }
    sim_schedule(world, world->now + 60 * DOORMAN_SECOND, *event);
}

static const sim_scenario scenarios[] = {
    {"one", &single_root, 300, NULL, 0, 0, 0, 0, "98.6  99.3  99.5", "0   0   0"},
    {"two", &single_root, 300, lose_master, 20, 120, 140, 0, "98.4  99.1  99.8", "0   0   0"},
    {"three", &single_root, 300, lose_master, 70, 120, 190, 0, "53    61    98  ", "0   0   0"},
    {"four", &one_region, 300, NULL, 0, 0, 0, 0, "98.3  99.6  99.7", "0   0   0"},
    {"five", &three_regions, 3600, NULL, 0, 0, 0, 0, "99.04 99.10 99.16", "0 to 2   "},
    {"six", &three_regions, 300, raise_two_wants, 1000, 150, 150, 0, "96.5  97.8  98.7",
     "0   0   0"},
    {"seven", &three_regions, 3600, random_disturbance, 0, 60, 0, 0, "93.3  96.4  97.4",
     "4  20  44"},
};

/* Single mishaps in the tree of scenario five. */
static const sim_scenario disturbances[] = {
    {"a client wants 100 more", &three_regions, 390, raise_wants, 100, 150, 150, 0, "19", NULL},
    {"a new master for a data centre", &three_regions, 390, lose_master, 0, 150, 150, 2, "55",
     NULL},
    {"a new master for a region", &three_regions, 390, lose_master, 0, 150, 150, 1, "61", NULL},
    {"a new master for the root", &three_regions, 390, lose_master, 0, 150, 150, 0, "", NULL},
    {"a data centre has no master for 60 s", &three_regions, 390, lose_master, 60, 150, 210, 2,
     "125", NULL},
    {"a region has no master for 60 s", &three_regions, 390, lose_master, 60, 150, 210, 1, "125",
     NULL},
    {"the root has no master for 60 s", &three_regions, 390, lose_master, 60, 150, 210, 0, "130",
     NULL},
};

/* ---- one run */

static void add_clients(sim_world *world, size_t node, double wants) {
    for (size_t i = 0; i < 5; i++) {
        size_t index = world->client_count;
        sim_client *client = sim_add_client(world, node, (sim_clock){1000 * DOORMAN_SECOND, 1000});
        client->usages[0] = (sim_usage){.node = node, .wants = wants, .priority = 1};
        sim_start_client(world, index);
        sim_open(world, index, 0);
        sim_schedule(world, 0, (sim_event){.handler = random_walk_wants, .actor = index});
    }
}

/* Adds the nodes level by level: the root, the regions, the data centres. */
static void build(sim_world *world, const sim_shape *shape) {
    size_t root = sim_add_node(world, SIM_NONE, 3), first_leaf = root;
    for (size_t i = 0; i < shape->regions; i++) sim_add_node(world, root, 3);
    if (shape->regions) first_leaf = root + 1;
    for (size_t i = 0; i < shape->regions * shape->centres; i++) {
        sim_add_node(world, root + 1 + i / shape->centres, 3);
    }
    if (shape->centres) first_leaf = root + 1 + shape->regions;
    for (size_t i = 0; i < world->process_count; i++) sim_start_process(world, i);
    size_t node_count = world->node_count;
    for (size_t i = first_leaf; i < node_count; i++) add_clients(world, i, shape->wants);
}

static void set_up(sim_world *world, const sim_scenario *scenario, doorman_handover handover) {
    sim_rules rules = {.matched = true, .capacity = CAPACITY};
    rules.algorithm = (doorman_algorithm){.handover = handover,
                                          .lease_length = 60 * DOORMAN_SECOND,
                                          .refresh_interval = 8 * DOORMAN_SECOND,
                                          .has_minimum_interval = true,
                                          .minimum_interval = 2 * DOORMAN_SECOND};
    world->ttl = 15 * DOORMAN_SECOND;
    sim_add_resource(world);
    sim_add_version(world, &rules);
    build(world, scenario->shape);
    if (!scenario->disturbance) return;
    sim_event event = {.handler = scenario->disturbance,
                       .target = scenario->level,
                       .amount = scenario->disturbance_amount};
    sim_schedule(world, (doorman_time)scenario->disturbance_start * DOORMAN_SECOND, event);
}

static void sample(sim_world *world, sim_timeline *timeline, size_t second) {
    bool by_client = world->client_count <= PARTS;
    size_t leaves = world->node_count - world->client_count / 5;
    double leased = 0, wanted = 0;
    for (size_t i = 0; i < PARTS; i++) timeline->part[i][second] = 0;
    for (size_t i = 0; i < world->client_count; i++) {
        doorman_resource_info info;
        double has = sim_leased(world, i, 0, &info) ? info.capacity : 0;
        timeline->part[by_client ? i : world->clients[i].node - leaves][second] += has;
        leased += has;
        wanted += world->clients[i].usages[0].wants;
    }
    timeline->leased[second] = leased;
    timeline->wanted[second] = wanted;
    timeline->without_master[second] = false;
    for (size_t i = 0; i < world->node_count; i++) {
        if (sim_key_holder(world, i) == SIM_NONE) timeline->without_master[second] = true;
    }
}

/* ---- overshoots (S12) */

/* What one node reports of the resource. */
typedef struct sim_report {
    bool known; /* false: the node has no master, or its master does not know the resource */
    bool learns;
    doorman_server_resource resource;
} sim_report;

static sim_report read_report(sim_world *world, size_t node) {
    size_t master = sim_key_holder(world, node);
    sim_report report = {.known = false};
    if (master == SIM_NONE) return report;
    const sim_process *process = &world->processes[master];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    report.known =
        doorman_server_find(process->server, world->resources[0], &report.resource, local);
    report.learns = report.known && local < report.resource.learned_at;
    return report;
}

/* Returns what the master of a node has committed for one of its holders. */
static double committed_for(sim_world *world, size_t node, const char *holder) {
    const sim_process *process = &world->processes[sim_key_holder(world, node)];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    while (doorman_server_next_lease(process->server, world->resources[0], &cursor, &lease, local))
        if (strcmp(lease.holder_id, holder) == 0) return lease.committed;
    return 0;
}

/* Returns the sum of the leases in force of a node's holders. Each client and each child node says
 * what it has. A child whose master is missing, or does not know the resource, counts with what the
 * node has committed for it. */
static double leases_in_force(sim_world *world, size_t node) {
    double sum = 0;
    bool leaf = true;
    for (size_t i = node + 1; i < world->node_count; i++) {
        if (world->nodes[i].parent != node) continue;
        sim_report child = read_report(world, i);
        sum += child.known ? child.resource.capacity
                           : committed_for(world, node, world->nodes[i].name);
        leaf = false;
    }
    return leaf ? world->nodes[node].leases[0] : sum;
}

/* Returns by how much the leases of a node's holders exceed what the parent has committed for the
 * node; at the root, by how much they exceed the capacity. With confirmed handover no node is ever
 * over. If the parent does not know all its holders, the result is INFINITY. */
static double true_overshoot(sim_world *world, size_t node, doorman_handover handover) {
    size_t parent = world->nodes[node].parent;
    if (handover == DOORMAN_CONFIRMED) return 0;
    double in_force = leases_in_force(world, node);
    if (parent == SIM_NONE) return in_force - CAPACITY;
    sim_report report = read_report(world, parent);
    if (!report.known || report.learns) return INFINITY;
    return in_force - committed_for(world, parent, world->nodes[node].name);
}

/* Checks that no node reports a larger overshoot than it truly has, and that some node reports one
 * if all clients together have more than the capacity. A node that learns may not know all leases,
 * so the second check needs nodes that have all learned. */
static void check_overshoots(sim_world *world, doorman_handover handover, double leased) {
    bool reported = false, all_know = true;
    for (size_t i = 0; i < world->node_count; i++) {
        sim_report report = read_report(world, i);
        double overshoot = report.known ? report.resource.overshoot : 0;
        all_know = all_know && report.known && !report.learns;
        if (overshoot <= 0) continue;
        reported = true;
        double truth = true_overshoot(world, i, handover);
        if (overshoot <= truth + 1e-6) continue;
        sim_fail(world, "%s reports an overshoot of %.9g, but it is over by %.9g",
                 world->nodes[i].name, overshoot, truth);
    }
    if (all_know && !reported && leased > CAPACITY * (1 + 1e-9)) {
        sim_fail(world, "the clients have %.9g, but no node reports an overshoot", leased);
    }
}

static bool well_used(const sim_timeline *timeline, size_t second) {
    double maximum = timeline->wanted[second] < CAPACITY ? timeline->wanted[second] : CAPACITY;
    return timeline->leased[second] >= 0.95 * maximum;
}

/* Returns the seconds from the beginning of the mishap until the capacity is well used and stays so
 * for 30 s. If that never happens, returns the seconds until the end of the run. Returns 0 if it
 * stays well used until a lease length after the end of the mishap (leases that have not ended can
 * hide a mishap for that long). Returns -1 if the scenario does not have exactly one mishap. */
static double recovery(const sim_timeline *timeline, const sim_scenario *scenario) {
    if (!scenario->disturbance_end) return -1;
    size_t start = scenario->disturbance_start, second = start, good = 0;
    size_t dip_deadline = scenario->disturbance_end + 60;
    while (second < dip_deadline && well_used(timeline, second)) second++;
    if (second == dip_deadline) return 0;
    for (; second <= scenario->seconds && good < 30; second++) {
        good = well_used(timeline, second) ? good + 1 : 0;
    }
    return good < 30 ? (double)(scenario->seconds - start) : (double)(second - good - start);
}

static sim_result evaluate(const sim_timeline *timeline, const sim_scenario *scenario) {
    sim_result result = {.recovery = recovery(timeline, scenario)};
    double used = 0, over = 0;
    size_t busy = 0;
    for (size_t second = FIRST_SAMPLE; second <= scenario->seconds; second += SAMPLE_INTERVAL) {
        double percent = 100 * timeline->leased[second] / CAPACITY;
        if (timeline->wanted[second] >= CAPACITY) {
            used += percent;
            busy++;
        }
        if (percent > result.largest) result.largest = percent;
        if (percent > 100 + 1e-9) {
            result.samples_over++;
            over += percent;
        }
    }
    result.in_use = busy ? used / (double)busy : 100;
    result.mean_over = result.samples_over ? over / (double)result.samples_over : 0;
    return result;
}

/* The result of one run, and its failure; "" means none. */
typedef struct sim_outcome {
    sim_result result;
    char failure[300];
    atomic_bool done;
} sim_outcome;

static void run(const sim_scenario *scenario, doorman_handover handover, uint64_t seed,
                sim_timeline *timeline, sim_outcome *out) {
    sim_world *world = malloc(sizeof *world);
    if (!world) abort();
    sim_init(world, seed);
    world->quiet = true;
    set_up(world, scenario, handover);
    for (size_t second = 0; second <= scenario->seconds; second++) {
        sim_run(world, (doorman_time)second * DOORMAN_SECOND);
        sample(world, timeline, second);
        check_overshoots(world, handover, timeline->leased[second]);
    }
    out->result = evaluate(timeline, scenario);
    out->result.hash = world->hash;
    if (handover == DOORMAN_CONFIRMED && out->result.samples_over) {
        sim_fail(world, "the leases exceed the capacity");
    }
    memcpy(out->failure, world->failure, sizeof out->failure);
    sim_uninit(world);
    free(world);
}

/* Writes, for each second (in a long run every 10 s): the time, the capacity, the sum of wants,
 * whether some node has no master, and the stacked leases of the parts. */
static void write_timeline(const char *folder, const sim_scenario *scenario,
                           const sim_timeline *timeline) {
    char path[300];
    snprintf(path, sizeof path, "%s/scenario_%s.dat", folder, scenario->name);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return;
    }
    size_t step = scenario->seconds > 1000 ? 10 : 1;
    size_t parts = scenario->shape->centres ? PARTS : 5;
    for (size_t second = 0; second <= scenario->seconds; second += step) {
        fprintf(file, "%zu %g %g %d", second, CAPACITY, timeline->wanted[second],
                timeline->without_master[second]);
        double sum = 0;
        for (size_t i = 0; i < parts; i++) {
            sum += timeline->part[i][second];
            fprintf(file, " %g", sum);
        }
        fputc('\n', file);
    }
    fclose(file);
}

/* ---- all runs, by several processes */
/*
 * First all runs are listed. With one job, each run is made when its outcome is read. With several
 * jobs, as many processes take the runs in the order of the list, and write the outcomes to shared
 * memory. Outcomes are read in the same order, so that the output does not depend on the number of
 * jobs. A process that dies leaves its run without an outcome. */

typedef struct sim_task {
    const sim_scenario *scenario;
    doorman_handover handover;
    uint64_t seed;
    bool writes_timeline; /* write the course of this run to the folder */
} sim_task;

typedef struct sim_run_queue {
    sim_task *tasks;
    size_t count, capacity;
    size_t read; /* number of outcomes read so far */
    const char *folder;
    uint64_t jobs;
    pid_t workers[SIM_JOBS]; /* 0: the process has ended */
    sim_outcome *outcomes;   /* in shared memory */
    atomic_size_t *started;  /* number of runs begun so far, in shared memory */
    time_t reported_at;
} sim_run_queue;

static void add_task(sim_run_queue *queue, sim_task task) {
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity ? 2 * queue->capacity : 256;
        queue->tasks = realloc(queue->tasks, queue->capacity * sizeof *queue->tasks);
        if (!queue->tasks) abort();
    }
    queue->tasks[queue->count++] = task;
}

static void run_task(const sim_run_queue *queue, size_t index) {
    static sim_timeline timeline;
    const sim_task *task = &queue->tasks[index];
    sim_outcome *outcome = &queue->outcomes[index];
    run(task->scenario, task->handover, task->seed, &timeline, outcome);
    if (task->writes_timeline) write_timeline(queue->folder, task->scenario, &timeline);
    atomic_store(&outcome->done, true);
}

/* Takes runs until all have been begun, or until the parent process has ended. */
static void worker_main(const sim_run_queue *queue, pid_t parent) {
    for (;;) {
        size_t index = atomic_fetch_add(queue->started, 1);
        if (index >= queue->count || getppid() != parent) return;
        run_task(queue, index);
    }
}

static void *share_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static void start_workers(sim_run_queue *queue) {
    pid_t parent = getpid();
    queue->outcomes = share_memory(queue->count * sizeof *queue->outcomes);
    queue->started = share_memory(sizeof *queue->started);
    queue->reported_at = time(NULL);
    fflush(NULL);
    for (uint64_t i = 0; i < queue->jobs && queue->jobs > 1; i++) {
        queue->workers[i] = fork();
        if (queue->workers[i] < 0) abort();
        if (queue->workers[i] > 0) continue;
        worker_main(queue, parent);
        _Exit(0);
    }
}

static bool workers_running(sim_run_queue *queue) {
    bool any = false;
    for (uint64_t i = 0; i < queue->jobs; i++) {
        pid_t *worker = &queue->workers[i];
        if (*worker && waitpid(*worker, NULL, WNOHANG) != 0) *worker = 0;
        any = any || *worker;
    }
    return any;
}

static void report_progress(sim_run_queue *queue) {
    size_t done = 0;
    if (time(NULL) - queue->reported_at < 2) return;
    queue->reported_at = time(NULL);
    for (size_t i = 0; i < queue->count; i++) done += atomic_load(&queue->outcomes[i].done);
    fprintf(stderr, "%zu of %zu runs\n", done, queue->count);
}

/* Returns the outcome of the next run, which must be of this scenario, and prints its failure. */
static const sim_outcome *read_outcome(sim_run_queue *queue, const sim_scenario *scenario) {
    assert(queue->read < queue->count && queue->tasks[queue->read].scenario == scenario);
    size_t index = queue->read++;
    sim_outcome *outcome = &queue->outcomes[index];
    if (queue->jobs == 1) run_task(queue, index);
    for (bool waits = true; waits && !atomic_load(&outcome->done);) {
        waits = workers_running(queue);
        if (waits) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        report_progress(queue);
    }
    report_progress(queue);
    if (!atomic_load(&outcome->done)) {
        snprintf(outcome->failure, sizeof outcome->failure, "the run did not finish");
    }
    if (outcome->failure[0]) {
        printf("scenario %s, seed %llu: %s\n", scenario->name,
               (unsigned long long)queue->tasks[index].seed, outcome->failure);
    }
    return outcome;
}

static void stop_workers(sim_run_queue *queue) {
    for (uint64_t i = 0; i < queue->jobs; i++) {
        if (queue->workers[i]) waitpid(queue->workers[i], NULL, 0);
    }
    munmap(queue->outcomes, queue->count * sizeof *queue->outcomes);
    munmap(queue->started, sizeof *queue->started);
    free(queue->tasks);
}

static void add_runs(sim_run_queue *queue, const sim_scenario *scenario, doorman_handover handover,
                     size_t seeds, bool writes_timeline) {
    for (size_t i = 0; i < seeds; i++) {
        add_task(queue, (sim_task){scenario, handover, i + 1, writes_timeline && i == 0});
    }
}

static size_t runs_of(const sim_scenario *scenario, size_t seeds) {
    return scenario->seconds < SECONDS ? SHORT_FACTOR * seeds : seeds;
}

/* Lists the runs in the order in which print_scenarios and print_disturbances read them. */
static void add_all_runs(sim_run_queue *queue, size_t seeds) {
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        size_t runs = runs_of(&scenarios[i], seeds);
        add_runs(queue, &scenarios[i], DOORMAN_CONFIRMED, runs, true);
        add_runs(queue, &scenarios[i], DOORMAN_CONFIRMED, 1, false); /* repeats the first run */
        add_runs(queue, &scenarios[i], DOORMAN_IMMEDIATE, runs, false);
    }
    for (size_t i = 0; i < sizeof disturbances / sizeof *disturbances; i++) {
        add_runs(queue, &disturbances[i], DOORMAN_CONFIRMED, seeds, false);
        add_runs(queue, &disturbances[i], DOORMAN_IMMEDIATE, seeds, false);
    }
}

/* ---- output */

static int compare_doubles(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

typedef struct spread {
    double minimum, median, maximum;
} spread;

static spread spread_of(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    double middle = (values[(count - 1) / 2] + values[count / 2]) / 2;
    return (spread){values[0], middle, values[count - 1]};
}

static void print_spread(double *values, size_t count, const char *format) {
    spread found = spread_of(values, count);
    printf(format, found.minimum, found.median, found.maximum);
}

static void print_row(const sim_scenario *scenario, const char *handover, const sim_result *results,
                      size_t count) {
    static double values[SEEDS_MAX], over[SEEDS_MAX], recoveries[SEEDS_MAX];
    double largest = 0, mean = 0;
    size_t runs_over = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] = results[i].in_use;
        over[i] = (double)results[i].samples_over;
        recoveries[i] = results[i].recovery;
        if (results[i].largest > largest) largest = results[i].largest;
        if (!results[i].samples_over) continue;
        mean += results[i].mean_over;
        runs_over++;
    }
    printf("%-9s %-10s  %s  ", scenario->name, handover, scenario->original);
    print_spread(values, count, "%5.2f %5.2f %5.2f  ");
    printf("%s  ", scenario->original_over);
    print_spread(over, count, "%3.0f %3.0f %3.0f");
    printf("  %7.2f ", largest);
    if (runs_over) {
        printf("%7.2f", mean / (double)runs_over);
    } else {
        fputs("      -", stdout);
    }
    if (scenario->disturbance_end) print_spread(recoveries, count, "   %3.0f %3.0f %3.0f");
    putchar('\n');
}

static const char *const handover_names[] = {"confirmed", "immediate"};

static bool read_all(sim_run_queue *queue, const sim_scenario *scenario, doorman_handover handover,
                     size_t seeds, sim_result *results, FILE *csv) {
    bool good = true;
    for (size_t i = 0; i < seeds; i++) {
        const sim_outcome *outcome = read_outcome(queue, scenario);
        const sim_result *result = &outcome->result;
        results[i] = *result;
        good = !outcome->failure[0] && good;
        fprintf(csv, "%s,%zu,%s,%.4f,%zu,%.4f,%.4f,", scenario->name, i + 1,
                handover_names[handover], result->in_use, result->samples_over, result->largest,
                result->mean_over);
        fprintf(csv, result->recovery < 0 ? "\n" : "%.0f\n", result->recovery);
    }
    return good;
}

/* C1: the same seed gives the same run. */
static bool is_repeatable(sim_run_queue *queue, const sim_scenario *scenario,
                          const sim_result *first) {
    const sim_outcome *again = read_outcome(queue, scenario);
    if (again->result.hash == first->hash) return !again->failure[0];
    printf("scenario %s, seed 1: two runs differ\n", scenario->name);
    return false;
}

static bool print_scenarios(sim_run_queue *queue, size_t seeds, FILE *csv) {
    static sim_result results[SEEDS_MAX];
    bool good = true;
    printf("%zu seeds, ten times as many for short runs: minimum, median, maximum.\n\n"
           "                      in use, %% of the capacity            samples over          "
           "  largest    mean   recovery\n"
           "scenario  handover    original          here               original   here       "
           "        %%  over %%          s\n",
           seeds);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const sim_scenario *scenario = &scenarios[i];
        size_t runs = runs_of(scenario, seeds);
        good = read_all(queue, scenario, DOORMAN_CONFIRMED, runs, results, csv) && good;
        good = is_repeatable(queue, scenario, results) && good;
        print_row(scenario, "confirmed", results, runs);
        good = read_all(queue, scenario, DOORMAN_IMMEDIATE, runs, results, csv) && good;
        print_row(scenario, "immediate", results, runs);
    }
    return good;
}

static bool print_disturbances(sim_run_queue *queue, size_t seeds, FILE *csv) {
    static sim_result results[SEEDS_MAX];
    static double recoveries[SEEDS_MAX];
    bool good = true;
    printf(
        "\nOne mishap in the tree of scenario five: seconds until 95 %% is in use and stays so.\n\n"
        "%36s  original  confirmed    immediate\n",
        "");
    for (size_t i = 0; i < sizeof disturbances / sizeof *disturbances; i++) {
        printf("%-36s  %8s", disturbances[i].name, disturbances[i].original);
        for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
            good = read_all(queue, &disturbances[i], (doorman_handover)handover, seeds, results,
                            csv) &&
                   good;
            for (size_t j = 0; j < seeds; j++) recoveries[j] = results[j].recovery;
            print_spread(recoveries, seeds, "  %3.0f %3.0f %3.0f");
        }
        putchar('\n');
    }
    return good;
}

int sim_scenarios(uint64_t seeds, const char *folder, uint64_t jobs) {
    static sim_run_queue queue;
    char path[300];
    snprintf(path, sizeof path, "%s/scenarios.csv", folder);
    FILE *csv = fopen(path, "w");
    if (!csv || seeds < 1 || seeds > SEEDS_MAX / SHORT_FACTOR) {
        perror(path);
        return 1;
    }
    fputs("scenario,seed,handover,in_use_percent,samples_over,largest_percent,mean_over_percent,"
          "recovery_seconds\n",
          csv);
    queue.folder = folder;
    queue.jobs = jobs;
    add_all_runs(&queue, (size_t)seeds);
    start_workers(&queue);
    bool good = print_scenarios(&queue, (size_t)seeds, csv);
    good = print_disturbances(&queue, (size_t)seeds, csv) && good;
    stop_workers(&queue);
    fclose(csv);
    return good ? 0 : 1;
}
