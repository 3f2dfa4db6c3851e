/* The scenarios of the design document's simulation, run on the same code as the server: see sim.h.
 *
 * Scenarios one to three have a root and 5 clients. Four has a root, a region and its 5 clients.
 * Five to seven have a root, 3 regions, 3 data centres in each region, and 5 clients in each data
 * centre. Each node has three processes. The capacity is 500, and leases last 60 s. The root's
 * holders ask every 8 s, each level below it twice as often, and never twice within 2 s. Messages
 * are instant and none is lost. Each client starts with the wants in the table. Then, at once and
 * every 10 s, its wants w become w * (1 + 0.1 * (1 - 2U)), with U uniform in [0, 1). Time is
 * continuous. (The original ticks in whole seconds, but the header spreads renewals by some percent
 * of their interval, and whole seconds would round that away.)
 *
 * Wants and mishaps have their own random numbers, so that both kinds of handover see the same
 * wants and the same mishaps. */
#include "sim.h"

#include <assert.h>
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

static const sim_shape root_alone = {0, 0, 110}, region = {1, 0, 100}, planet = {3, 3, 15};

typedef struct sim_scenario {
    const char *name;
    const sim_shape *shape;
    size_t seconds;
    sim_handler mishap; /* NULL: none */
    double mishap_for;  /* how long it lasts, in seconds, or how much more a client wants */
    size_t mishap_at, mishap_to;          /* its beginning and its end, in seconds */
    size_t level;                         /* the level of the node that loses its master */
    const char *original, *original_over; /* min, median, max; percent in use, samples over */
} sim_scenario;

/* The figures of one run: percent of the capacity, and seconds. */
typedef struct sim_result {
    double in_use, largest, mean_over, recovery;
    size_t samples_over;
    uint64_t hash;
} sim_result;

/* What happens in each second. */
typedef struct sim_course {
    double leased[SECONDS + 1], wanted[SECONDS + 1], part[PARTS][SECONDS + 1];
    bool headless[SECONDS + 1]; /* some node has no master */
} sim_course;

/* ---- events */

static void walk_wants(sim_world *world, const sim_event *event) {
    double wants = world->clients[event->who].uses[0].wants;
    double unit = sim_unit(&world->fault_dice[SIM_SPIKE]);
    sim_want(world, event->who, 0, wants * (1 + 0.1 * (1 - 2 * unit)));
    sim_plan(world, world->now + 10 * DOORMAN_SECOND, *event);
}

static size_t any_client(sim_world *world) {
    return sim_pick(&world->fault_dice[SIM_GAP], world->client_count);
}

static size_t any_node(sim_world *world, size_t first, size_t end) {
    return first + sim_pick(&world->fault_dice[SIM_GAP], end - first);
}

static void want_more(sim_world *world, const sim_event *event) {
    size_t client = any_client(world);
    sim_want(world, client, 0, world->clients[client].uses[0].wants + event->amount);
}

static void two_want_much(sim_world *world, const sim_event *event) {
    size_t first = any_client(world), second = any_client(world);
    while (second == first) second = any_client(world);
    sim_want(world, first, 0, event->amount);
    sim_want(world, second, 0, event->amount);
}

/* One random node of a level has no master for a time. */
static void lose_master(sim_world *world, const sim_event *event) {
    size_t first = 0, end = world->node_count;
    while (world->nodes[first].level < event->what) first++;
    while (world->nodes[end - 1].level > event->what) end--;
    doorman_time gap = (doorman_time)event->amount * DOORMAN_SECOND;
    sim_resign(world, any_node(world, first, end), world->now + gap);
}

/* Once a minute: with probability 10/15 a client wants 100 more, for good. With probability 4/15 a
 * node has no master for up to a minute. With probability 1/15 a node elects a master; a third of
 * the time the same process wins, and nothing changes. */
static void any_mishap(sim_world *world, const sim_event *event) {
    uint64_t *dice = &world->fault_dice[SIM_GAP];
    uint64_t draw = sim_below(dice, 15), wait = sim_below(dice, 61), winner = sim_below(dice, 3);
    size_t node = any_node(world, 0, world->node_count);
    sim_event more = {.amount = 100};
    if (draw < 10) {
        want_more(world, &more);
    } else if (draw < 14) {
        sim_resign(world, node, world->now + (doorman_time)wait * DOORMAN_SECOND);
    } else if (winner) {
        sim_resign(world, node, world->now);
    }
    sim_plan(world, world->now + 60 * DOORMAN_SECOND, *event);
}

static const sim_scenario scenarios[] = {
    {"one", &root_alone, 300, NULL, 0, 0, 0, 0, "98.6  99.3  99.5", "0   0   0"},
    {"two", &root_alone, 300, lose_master, 20, 120, 140, 0, "98.4  99.1  99.8", "0   0   0"},
    {"three", &root_alone, 300, lose_master, 70, 120, 190, 0, "53    61    98  ", "0   0   0"},
    {"four", &region, 300, NULL, 0, 0, 0, 0, "98.3  99.6  99.7", "0   0   0"},
    {"five", &planet, 3600, NULL, 0, 0, 0, 0, "99.04 99.10 99.16", "0 to 2   "},
    {"six", &planet, 300, two_want_much, 1000, 150, 150, 0, "96.5  97.8  98.7", "0   0   0"},
    {"seven", &planet, 3600, any_mishap, 0, 60, 0, 0, "93.3  96.4  97.4", "4  20  44"},
};

/* Single mishaps in the tree of scenario five. */
static const sim_scenario mishaps[] = {
    {"a client wants 100 more", &planet, 390, want_more, 100, 150, 150, 0, "19", NULL},
    {"a new master for a data centre", &planet, 390, lose_master, 0, 150, 150, 2, "55", NULL},
    {"a new master for a region", &planet, 390, lose_master, 0, 150, 150, 1, "61", NULL},
    {"a new master for the root", &planet, 390, lose_master, 0, 150, 150, 0, "", NULL},
    {"a data centre has no master for 60 s", &planet, 390, lose_master, 60, 150, 210, 2, "125",
     NULL},
    {"a region has no master for 60 s", &planet, 390, lose_master, 60, 150, 210, 1, "125", NULL},
    {"the root has no master for 60 s", &planet, 390, lose_master, 60, 150, 210, 0, "130", NULL},
};

/* ---- one run */

static void add_clients(sim_world *world, size_t node, double wants) {
    for (size_t i = 0; i < 5; i++) {
        size_t index = world->client_count;
        sim_client *client = sim_add_client(world, node, (sim_clock){1000 * DOORMAN_SECOND, 1000});
        client->uses[0] = (sim_use){.node = node, .wants = wants, .priority = 1};
        sim_start_client(world, index);
        sim_open(world, index, 0);
        sim_plan(world, 0, (sim_event){.handler = walk_wants, .who = index});
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
    if (!scenario->mishap) return;
    sim_event event = {
        .handler = scenario->mishap, .what = scenario->level, .amount = scenario->mishap_for};
    sim_plan(world, (doorman_time)scenario->mishap_at * DOORMAN_SECOND, event);
}

static void look(const sim_world *world, sim_course *course, size_t second) {
    bool by_client = world->client_count <= PARTS;
    size_t leaves = world->node_count - world->client_count / 5;
    double leased = 0, wanted = 0;
    for (size_t i = 0; i < PARTS; i++) course->part[i][second] = 0;
    for (size_t i = 0; i < world->client_count; i++) {
        doorman_resource_info info;
        double has = sim_leased(world, i, 0, &info) ? info.capacity : 0;
        course->part[by_client ? i : world->clients[i].node - leaves][second] += has;
        leased += has;
        wanted += world->clients[i].uses[0].wants;
    }
    course->leased[second] = leased;
    course->wanted[second] = wanted;
    course->headless[second] = false;
    for (size_t i = 0; i < world->node_count; i++) {
        if (world->nodes[i].master == SIM_NONE) course->headless[second] = true;
    }
}

static bool well_used(const sim_course *course, size_t second) {
    double most = course->wanted[second] < CAPACITY ? course->wanted[second] : CAPACITY;
    return course->leased[second] >= 0.95 * most;
}

/* Returns the seconds from the beginning of the mishap until 95 % is in use and stays so for 30 s.
 * Returns 0 if use never falls below that (leases that have not ended can hide a mishap for up to a
 * lease length). Returns -1 if the scenario does not have exactly one mishap. */
static double recovery(const sim_course *course, const sim_scenario *scenario) {
    if (!scenario->mishap_to) return -1;
    size_t start = scenario->mishap_at, second = start, good = 0;
    size_t dips_before = scenario->mishap_to + 60;
    while (second < dips_before && well_used(course, second)) second++;
    if (second == dips_before) return 0;
    for (; second <= scenario->seconds && good < 30; second++) {
        good = well_used(course, second) ? good + 1 : 0;
    }
    return good < 30 ? (double)(scenario->seconds - start) : (double)(second - good - start);
}

static sim_result evaluate(const sim_course *course, const sim_scenario *scenario) {
    sim_result result = {.recovery = recovery(course, scenario)};
    double used = 0, over = 0;
    size_t busy = 0;
    for (size_t second = FIRST_SAMPLE; second <= scenario->seconds; second += SAMPLE_INTERVAL) {
        double percent = 100 * course->leased[second] / CAPACITY;
        if (course->wanted[second] >= CAPACITY) {
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
                sim_course *course, sim_outcome *out) {
    sim_world *world = malloc(sizeof *world);
    if (!world) abort();
    sim_init(world, seed);
    world->quiet = true;
    set_up(world, scenario, handover);
    for (size_t second = 0; second <= scenario->seconds; second++) {
        sim_run(world, (doorman_time)second * DOORMAN_SECOND);
        look(world, course, second);
    }
    out->result = evaluate(course, scenario);
    out->result.hash = world->hash;
    if (handover == DOORMAN_CONFIRMED && out->result.samples_over) {
        sim_fail(world, "the leases exceed the capacity");
    }
    memcpy(out->failure, world->failure, sizeof out->failure);
    sim_uninit(world);
    free(world);
}

/* Writes, for each second: the time, the capacity, the sum of wants, whether some node has no
 * master, and the stacked leases of the parts. A long run is sampled every 10 s. */
static void write_course(const char *folder, const sim_scenario *scenario,
                         const sim_course *course) {
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
        fprintf(file, "%zu %g %g %d", second, CAPACITY, course->wanted[second],
                course->headless[second]);
        double sum = 0;
        for (size_t i = 0; i < parts; i++) {
            sum += course->part[i][second];
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
    bool draws; /* write the course of this run to the folder */
} sim_task;

typedef struct sim_schedule {
    sim_task *tasks;
    size_t count, capacity;
    size_t read; /* number of outcomes read so far */
    const char *folder;
    uint64_t jobs;
    pid_t workers[SIM_JOBS]; /* 0: the process has ended */
    sim_outcome *outcomes;   /* in shared memory */
    atomic_size_t *begun;    /* number of runs begun so far, in shared memory */
    time_t told_at;
} sim_schedule;

static void add_task(sim_schedule *plan, sim_task task) {
    if (plan->count == plan->capacity) {
        plan->capacity = plan->capacity ? 2 * plan->capacity : 256;
        plan->tasks = realloc(plan->tasks, plan->capacity * sizeof *plan->tasks);
        if (!plan->tasks) abort();
    }
    plan->tasks[plan->count++] = task;
}

static void do_task(const sim_schedule *plan, size_t index) {
    static sim_course course;
    const sim_task *task = &plan->tasks[index];
    sim_outcome *outcome = &plan->outcomes[index];
    run(task->scenario, task->handover, task->seed, &course, outcome);
    if (task->draws) write_course(plan->folder, task->scenario, &course);
    atomic_store(&outcome->done, true);
}

/* Returns when all runs have been begun, or when the parent process has ended. */
static void work(const sim_schedule *plan, pid_t parent) {
    for (;;) {
        size_t index = atomic_fetch_add(plan->begun, 1);
        if (index >= plan->count || getppid() != parent) return;
        do_task(plan, index);
    }
}

static void *share_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static void start_work(sim_schedule *plan) {
    pid_t parent = getpid();
    plan->outcomes = share_memory(plan->count * sizeof *plan->outcomes);
    plan->begun = share_memory(sizeof *plan->begun);
    plan->told_at = time(NULL);
    fflush(NULL);
    for (uint64_t i = 0; i < plan->jobs && plan->jobs > 1; i++) {
        plan->workers[i] = fork();
        if (plan->workers[i] < 0) abort();
        if (plan->workers[i] > 0) continue;
        work(plan, parent);
        _Exit(0);
    }
}

static bool at_work(sim_schedule *plan) {
    bool any = false;
    for (uint64_t i = 0; i < plan->jobs; i++) {
        pid_t *worker = &plan->workers[i];
        if (*worker && waitpid(*worker, NULL, WNOHANG) != 0) *worker = 0;
        any = any || *worker;
    }
    return any;
}

static void tell_progress(sim_schedule *plan) {
    size_t done = 0;
    if (time(NULL) - plan->told_at < 2) return;
    plan->told_at = time(NULL);
    for (size_t i = 0; i < plan->count; i++) done += atomic_load(&plan->outcomes[i].done);
    fprintf(stderr, "%zu of %zu runs\n", done, plan->count);
}

/* Returns the outcome of the next run, which must be of this scenario, and prints its failure. */
static const sim_outcome *read_outcome(sim_schedule *plan, const sim_scenario *scenario) {
    assert(plan->read < plan->count && plan->tasks[plan->read].scenario == scenario);
    size_t index = plan->read++;
    sim_outcome *outcome = &plan->outcomes[index];
    if (plan->jobs == 1) do_task(plan, index);
    for (bool waits = true; waits && !atomic_load(&outcome->done);) {
        waits = at_work(plan);
        if (waits) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        tell_progress(plan);
    }
    tell_progress(plan);
    if (!atomic_load(&outcome->done)) {
        snprintf(outcome->failure, sizeof outcome->failure, "the run did not finish");
    }
    if (outcome->failure[0]) {
        printf("scenario %s, seed %llu: %s\n", scenario->name,
               (unsigned long long)plan->tasks[index].seed, outcome->failure);
    }
    return outcome;
}

static void end_work(sim_schedule *plan) {
    for (uint64_t i = 0; i < plan->jobs; i++) {
        if (plan->workers[i]) waitpid(plan->workers[i], NULL, 0);
    }
    munmap(plan->outcomes, plan->count * sizeof *plan->outcomes);
    munmap(plan->begun, sizeof *plan->begun);
    free(plan->tasks);
}

/* Lists all seeds of one scenario and handover. */
static void plan_all(sim_schedule *plan, const sim_scenario *scenario, doorman_handover handover,
                     size_t seeds, bool draws) {
    for (size_t i = 0; i < seeds; i++) {
        add_task(plan, (sim_task){scenario, handover, i + 1, draws && i == 0});
    }
}

static size_t runs_of(const sim_scenario *scenario, size_t seeds) {
    return scenario->seconds < SECONDS ? SHORT_FACTOR * seeds : seeds;
}

/* Lists the runs in the order in which print_scenarios and print_mishaps read them. */
static void plan_runs(sim_schedule *plan, size_t seeds) {
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        size_t runs = runs_of(&scenarios[i], seeds);
        plan_all(plan, &scenarios[i], DOORMAN_CONFIRMED, runs, true);
        plan_all(plan, &scenarios[i], DOORMAN_CONFIRMED, 1, false); /* repeats the first run */
        plan_all(plan, &scenarios[i], DOORMAN_IMMEDIATE, runs, false);
    }
    for (size_t i = 0; i < sizeof mishaps / sizeof *mishaps; i++) {
        plan_all(plan, &mishaps[i], DOORMAN_CONFIRMED, seeds, false);
        plan_all(plan, &mishaps[i], DOORMAN_IMMEDIATE, seeds, false);
    }
}

/* ---- output */

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

typedef struct spread {
    double least, median, most;
} spread;

static spread spread_of(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_size);
    double middle = (values[(count - 1) / 2] + values[count / 2]) / 2;
    return (spread){values[0], middle, values[count - 1]};
}

static void print_spread(double *values, size_t count, const char *format) {
    spread found = spread_of(values, count);
    printf(format, found.least, found.median, found.most);
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
    if (scenario->mishap_to) print_spread(recoveries, count, "   %3.0f %3.0f %3.0f");
    putchar('\n');
}

static const char *const handover_names[] = {"confirmed", "immediate"};

/* Reads the results of all seeds of one scenario and handover. */
static bool read_all(sim_schedule *plan, const sim_scenario *scenario, doorman_handover handover,
                     size_t seeds, sim_result *results, FILE *csv) {
    bool good = true;
    for (size_t i = 0; i < seeds; i++) {
        const sim_outcome *outcome = read_outcome(plan, scenario);
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
static bool repeats(sim_schedule *plan, const sim_scenario *scenario, const sim_result *first) {
    const sim_outcome *again = read_outcome(plan, scenario);
    if (again->result.hash == first->hash) return !again->failure[0];
    printf("scenario %s, seed 1: two runs differ\n", scenario->name);
    return false;
}

static bool print_scenarios(sim_schedule *plan, size_t seeds, FILE *csv) {
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
        good = read_all(plan, scenario, DOORMAN_CONFIRMED, runs, results, csv) && good;
        good = repeats(plan, scenario, results) && good;
        print_row(scenario, "confirmed", results, runs);
        good = read_all(plan, scenario, DOORMAN_IMMEDIATE, runs, results, csv) && good;
        print_row(scenario, "immediate", results, runs);
    }
    return good;
}

static bool print_mishaps(sim_schedule *plan, size_t seeds, FILE *csv) {
    static sim_result results[SEEDS_MAX];
    static double recoveries[SEEDS_MAX];
    bool good = true;
    printf(
        "\nOne mishap in the tree of scenario five: seconds until 95 %% is in use and stays so.\n\n"
        "%36s  original  confirmed    immediate\n",
        "");
    for (size_t i = 0; i < sizeof mishaps / sizeof *mishaps; i++) {
        printf("%-36s  %8s", mishaps[i].name, mishaps[i].original);
        for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
            good = read_all(plan, &mishaps[i], (doorman_handover)handover, seeds, results, csv) &&
                   good;
            for (size_t j = 0; j < seeds; j++) recoveries[j] = results[j].recovery;
            print_spread(recoveries, seeds, "  %3.0f %3.0f %3.0f");
        }
        putchar('\n');
    }
    return good;
}

int sim_scenarios(uint64_t seeds, const char *folder, uint64_t jobs) {
    static sim_schedule plan;
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
    plan.folder = folder;
    plan.jobs = jobs;
    plan_runs(&plan, (size_t)seeds);
    start_work(&plan);
    bool good = print_scenarios(&plan, (size_t)seeds, csv);
    good = print_mishaps(&plan, (size_t)seeds, csv) && good;
    end_work(&plan);
    fclose(csv);
    return good ? 0 : 1;
}
