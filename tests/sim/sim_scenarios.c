/* The scenarios of the design document's own simulation, on the code that the server runs: see
 * sim.h.
 *
 * One to three are a root and 5 clients, four a root, a region and its 5 clients; five to seven are
 * a root, 3 regions, 3 data centres in each, and 5 clients in each of those. A node has three
 * processes. The capacity is 500, leases are of 60 s, the root's holders ask every 8 s, each level
 * below twice as often, never twice within 2 s. Messages are instant and none is lost. Each client
 * wants what the table says, and then, at once and every 10 s, w * (1 + 0.1 * (1 - 2U)). Time is
 * continuous, unlike in the original, which ticks in whole seconds: the header spreads renewals by
 * some percent of their interval, and whole seconds would round that away.
 *
 * The dice for wants and mishaps are not those for the rest: both kinds of handover see the same
 * wants and the same mishaps. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY 500.0
#define SECONDS ((size_t)3600) /* at most */
#define FIRST_SAMPLE ((size_t)75)
#define SAMPLE_INTERVAL ((size_t)5)
#define PARTS 9 /* clients, or data centres, told apart in a picture */
#define SEEDS_MAX 1000
#define SHORT_FACTOR 10 /* a run of five minutes says little */

typedef struct sim_shape {
    size_t regions, centres; /* below the root, and below each region */
    double wants;            /* of each client, at the start */
} sim_shape;

static const sim_shape root_alone = {0, 0, 110}, region = {1, 0, 100}, planet = {3, 3, 15};

typedef struct sim_scenario {
    const char *name;
    const sim_shape *shape;
    size_t seconds;
    sim_handler mishap;          /* NULL: none */
    double mishap_for;           /* its amount: a time, or how much more is wanted */
    size_t mishap_at, mishap_to; /* in seconds: from its beginning to its end */
    size_t level;                /* of the node that is struck, where not every one may be */
    const char *original, *original_over; /* min, median, max; percent in use, samples over */
} sim_scenario;

/* What one run comes to, in percent of the capacity, and seconds. */
typedef struct sim_result {
    double in_use, largest, mean_over, recovery;
    size_t samples_over;
    uint64_t hash;
} sim_result;

/* By the second. */
typedef struct sim_course {
    double leased[SECONDS + 1], wanted[SECONDS + 1], part[PARTS][SECONDS + 1];
    bool headless[SECONDS + 1]; /* some node has no master */
} sim_course;

/* ---- what happens */

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

/* Some node of one level has no master for a time. */
static void lose_master(sim_world *world, const sim_event *event) {
    size_t first = 0, end = world->node_count;
    while (world->nodes[first].level < event->what) first++;
    while (world->nodes[end - 1].level > event->what) end--;
    doorman_time gap = (doorman_time)event->amount * DOORMAN_SECOND;
    sim_resign(world, any_node(world, first, end), world->now + gap);
}

/* Once a minute: with probability 10/15 somebody wants 100 more, for good; with 4/15 a node has no
 * master for up to a minute; with 1/15 it elects anew, and a third of the time the same process
 * wins, and nothing changes. */
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

/* One mishap alone in the tree of five. */
static const sim_scenario mishaps[] = {
    {"a client wants 100 more", &planet, 390, want_more, 100, 150, 150, 0, "19", NULL},
    {"another master of a data centre", &planet, 390, lose_master, 0, 150, 150, 2, "55", NULL},
    {"another master of a region", &planet, 390, lose_master, 0, 150, 150, 1, "61", NULL},
    {"another master of the root", &planet, 390, lose_master, 0, 150, 150, 0, "", NULL},
    {"a data centre without one for 60 s", &planet, 390, lose_master, 60, 150, 210, 2, "125", NULL},
    {"a region without one for 60 s", &planet, 390, lose_master, 60, 150, 210, 1, "125", NULL},
    {"the root without one for 60 s", &planet, 390, lose_master, 60, 150, 210, 0, "130", NULL},
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

/* Nodes by levels: the root, the regions, the data centres. */
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

/* Seconds from the beginning of the mishap until 95 % is in use and stays so for 30 s; 0: it never
 * was less, which leases that go on hide for up to a lease length; -1: there is not just one
 * mishap, of which all this could be said. */
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

static bool run(const sim_scenario *scenario, doorman_handover handover, uint64_t seed,
                sim_course *course, sim_result *out) {
    sim_world *world = malloc(sizeof *world);
    if (!world) abort();
    sim_init(world, seed);
    set_up(world, scenario, handover);
    for (size_t second = 0; second <= scenario->seconds; second++) {
        sim_run(world, (doorman_time)second * DOORMAN_SECOND);
        look(world, course, second);
    }
    *out = evaluate(course, scenario);
    out->hash = world->hash;
    if (handover == DOORMAN_CONFIRMED && out->samples_over) {
        sim_fail(world, "over the capacity");
    }
    bool good = !world->failure[0];
    if (!good) {
        printf("scenario %s, seed %llu: %s\n", scenario->name, (unsigned long long)seed,
               world->failure);
    }
    sim_uninit(world);
    free(world);
    return good;
}

/* ---- what is told */

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

/* Time, capacity, wants together, whether some node has no master, and what each part has, stacked.
 * A long run is sampled every ten seconds. */
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

/* All seeds of one scenario and handover. */
static bool run_all(const sim_scenario *scenario, doorman_handover handover, size_t seeds,
                    sim_result *results, FILE *csv, const char *folder) {
    static sim_course course;
    bool good = true;
    for (size_t i = 0; i < seeds; i++) {
        sim_result *result = &results[i];
        good = run(scenario, handover, i + 1, &course, result) && good;
        if (i == 0 && folder) write_course(folder, scenario, &course);
        fprintf(csv, "%s,%zu,%s,%.4f,%zu,%.4f,%.4f,", scenario->name, i + 1,
                handover_names[handover], result->in_use, result->samples_over, result->largest,
                result->mean_over);
        fprintf(csv, result->recovery < 0 ? "\n" : "%.0f\n", result->recovery);
    }
    return good;
}

/* Same seed, same run (C1). */
static bool repeats(const sim_scenario *scenario, const sim_result *first) {
    static sim_course course;
    sim_result again;
    bool good = run(scenario, DOORMAN_CONFIRMED, 1, &course, &again);
    if (again.hash == first->hash) return good;
    printf("scenario %s, seed 1: two runs differ\n", scenario->name);
    return false;
}

static bool print_scenarios(size_t seeds, FILE *csv, const char *folder) {
    static sim_result results[SEEDS_MAX];
    bool good = true;
    printf("%zu seeds, of the short ones ten times as many: minimum, median, maximum.\n\n"
           "                      in use, %% of the capacity            samples over          "
           "  largest    mean   recovery\n"
           "scenario  handover    original          here               original   here       "
           "        %%  over %%          s\n",
           seeds);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const sim_scenario *scenario = &scenarios[i];
        size_t runs = scenario->seconds < SECONDS ? SHORT_FACTOR * seeds : seeds;
        good = run_all(scenario, DOORMAN_CONFIRMED, runs, results, csv, folder) && good;
        good = repeats(scenario, results) && good;
        print_row(scenario, "confirmed", results, runs);
        good = run_all(scenario, DOORMAN_IMMEDIATE, runs, results, csv, NULL) && good;
        print_row(scenario, "immediate", results, runs);
    }
    return good;
}

static bool print_mishaps(size_t seeds, FILE *csv) {
    static sim_result results[SEEDS_MAX];
    static double recoveries[SEEDS_MAX];
    bool good = true;
    printf(
        "\nOne mishap alone in the tree of five: seconds until 95 %% is in use, and stays so.\n\n"
        "%36s  original  confirmed    immediate\n",
        "");
    for (size_t i = 0; i < sizeof mishaps / sizeof *mishaps; i++) {
        printf("%-36s  %8s", mishaps[i].name, mishaps[i].original);
        for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
            good =
                run_all(&mishaps[i], (doorman_handover)handover, seeds, results, csv, NULL) && good;
            for (size_t j = 0; j < seeds; j++) recoveries[j] = results[j].recovery;
            print_spread(recoveries, seeds, "  %3.0f %3.0f %3.0f");
        }
        putchar('\n');
    }
    return good;
}

int sim_scenarios(uint64_t seeds, const char *folder) {
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
    bool good = print_scenarios((size_t)seeds, csv, folder);
    good = print_mishaps((size_t)seeds, csv) && good;
    fclose(csv);
    return good ? 0 : 1;
}
