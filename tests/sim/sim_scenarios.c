/* The scenarios of the design document's own simulation, on the code that the server runs: see
 * sim.h.
 *
 * A root of three processes and 5 clients; capacity 500, leases of 60 s, a refresh every 8 s, a
 * minimum interval of 2 s. Messages are instant and none is lost. Each client wants 110, and then,
 * at once and every 10 s, w * (1 + 0.1 * (1 - 2U)). Time is continuous, unlike in the original,
 * which ticks in whole seconds: the header spreads renewals by some percent of their interval, and
 * whole seconds would round that away. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define CLIENTS 5
#define CAPACITY 500.0
#define SECONDS ((size_t)300)
#define FIRST_SAMPLE ((size_t)75)
#define SAMPLE_INTERVAL ((size_t)5)
#define SAMPLES 46
#define SEEDS_MAX 1000

typedef struct sim_scenario {
    const char *name;
    doorman_time outage, outage_end; /* the root has no master in between; 0: no outage */
    const char *original;            /* in use: min, median, max, in percent */
} sim_scenario;

static const sim_scenario scenarios[] = {
    {"one", 0, 0, "98.6  99.3  99.5"},
    {"two", 120 * DOORMAN_SECOND, 140 * DOORMAN_SECOND, "98.4  99.1  99.8"},
    {"three", 120 * DOORMAN_SECOND, 190 * DOORMAN_SECOND, "53    61    98"},
};

/* What one run comes to, in percent of the capacity, and seconds. */
typedef struct sim_result {
    double in_use, largest, mean_over, recovery;
    size_t samples_over;
    uint64_t hash;
} sim_result;

typedef struct sim_course {
    double leased[SECONDS + 1]; /* by the second */
    double wanted[SECONDS + 1];
    double client[CLIENTS][SECONDS + 1];
} sim_course;

static void walk_wants(sim_world *world, const sim_event *event) {
    double wants = world->clients[event->who].uses[0].wants;
    sim_want(world, event->who, 0, wants * (1 + 0.1 * (1 - 2 * sim_unit(&world->dice))));
    sim_plan(world, world->now + 10 * DOORMAN_SECOND, *event);
}

static void lose_master(sim_world *world, const sim_event *event) {
    sim_resign(world, event->who, world->now + (doorman_time)event->amount);
}

static void set_up(sim_world *world, const sim_scenario *scenario, doorman_handover handover) {
    sim_rules rules = {.matched = true, .capacity = CAPACITY};
    rules.algorithm = (doorman_algorithm){.handover = handover,
                                          .lease_length = 60 * DOORMAN_SECOND,
                                          .refresh_interval = 8 * DOORMAN_SECOND,
                                          .has_minimum_interval = true,
                                          .minimum_interval = 2 * DOORMAN_SECOND};
    world->ttl = 15 * DOORMAN_SECOND;
    sim_add_node(world, 3);
    sim_add_resource(world);
    sim_add_version(world, &rules);
    for (size_t i = 0; i < 3; i++) sim_start_process(world, i);
    for (size_t i = 0; i < CLIENTS; i++) {
        sim_client *client = sim_add_client(world, 0, (sim_clock){1000 * DOORMAN_SECOND, 1000});
        client->uses[0] = (sim_use){.wants = 110, .priority = 1};
        sim_start_client(world, i);
        sim_open(world, i, 0);
        sim_plan(world, 0, (sim_event){.handler = walk_wants, .who = i});
    }
    doorman_time gap = scenario->outage_end - scenario->outage;
    if (gap) {
        sim_event event = {.handler = lose_master, .who = 0, .amount = (double)gap};
        sim_plan(world, scenario->outage, event);
    }
}

static void look(const sim_world *world, sim_course *course, size_t second) {
    double leased = 0, wanted = 0;
    for (size_t i = 0; i < CLIENTS; i++) {
        doorman_resource_info info;
        double has = sim_leased(world, i, 0, &info) ? info.capacity : 0;
        course->client[i][second] = has;
        leased += has;
        wanted += world->clients[i].uses[0].wants;
    }
    course->leased[second] = leased;
    course->wanted[second] = wanted;
}

static bool well_used(const sim_course *course, size_t second) {
    double most = course->wanted[second] < CAPACITY ? course->wanted[second] : CAPACITY;
    return course->leased[second] >= 0.95 * most;
}

/* Seconds from the beginning of the outage until 95 % is in use and stays so for 30 s; 0: it never
 * was less, which leases that go on hide for up to a lease length; -1: there was no outage. */
static double recovery(const sim_course *course, const sim_scenario *scenario) {
    if (!scenario->outage_end) return -1;
    size_t start = (size_t)(scenario->outage / DOORMAN_SECOND), second = start, good = 0;
    size_t dips_before = (size_t)(scenario->outage_end / DOORMAN_SECOND) + 60;
    while (second < dips_before && well_used(course, second)) second++;
    if (second == dips_before) return 0;
    for (; second <= SECONDS && good < 30; second++) {
        good = well_used(course, second) ? good + 1 : 0;
    }
    return good < 30 ? (double)(SECONDS - start) : (double)(second - good - start);
}

static sim_result evaluate(const sim_course *course, const sim_scenario *scenario) {
    sim_result result = {.recovery = recovery(course, scenario)};
    double used = 0, over = 0;
    size_t busy = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t second = FIRST_SAMPLE + i * SAMPLE_INTERVAL;
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
    for (size_t second = 0; second <= SECONDS; second++) {
        sim_run(world, (doorman_time)second * DOORMAN_SECOND);
        look(world, course, second);
    }
    bool good = !world->failure[0];
    if (!good) {
        printf("scenario %s, seed %llu: %s\n", scenario->name, (unsigned long long)seed,
               world->failure);
    }
    *out = evaluate(course, scenario);
    out->hash = world->hash;
    sim_uninit(world);
    free(world);
    return good;
}

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

/* By the second: time, capacity, wants together, what each of the clients has, stacked. */
static void write_course(const char *folder, const sim_scenario *scenario,
                         const sim_course *course) {
    char path[300];
    snprintf(path, sizeof path, "%s/scenario_%s.dat", folder, scenario->name);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return;
    }
    for (size_t second = 0; second <= SECONDS; second++) {
        fprintf(file, "%zu %g %g", second, CAPACITY, course->wanted[second]);
        double sum = 0;
        for (size_t i = 0; i < CLIENTS; i++) {
            sum += course->client[i][second];
            fprintf(file, " %g", sum);
        }
        fputc('\n', file);
    }
    fclose(file);
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
    spread used = spread_of(values, count), samples = spread_of(over, count);
    spread recovered = spread_of(recoveries, count);
    printf("%-9s %-10s  %-16s  %5.2f %5.2f %5.2f   %3.0f %3.0f %3.0f   %7.2f ", scenario->name,
           handover, scenario->original, used.least, used.median, used.most, samples.least,
           samples.median, samples.most, largest);
    if (runs_over) {
        printf("%7.2f", mean / (double)runs_over);
    } else {
        fputs("      -", stdout);
    }
    if (recovered.median >= 0) {
        printf("   %3.0f %3.0f %3.0f", recovered.least, recovered.median, recovered.most);
    }
    putchar('\n');
}

/* All seeds of one scenario and handover; the first seed twice: same seed, same run (C1). */
static bool run_all(const sim_scenario *scenario, doorman_handover handover, size_t seeds,
                    FILE *csv, const char *folder) {
    static sim_course course;
    static sim_result results[SEEDS_MAX];
    const char *name = handover == DOORMAN_CONFIRMED ? "confirmed" : "immediate";
    sim_result again;
    bool good = run(scenario, handover, 1, &course, &again);
    if (handover == DOORMAN_CONFIRMED) write_course(folder, scenario, &course);
    for (size_t i = 0; i < seeds; i++) {
        sim_result *result = &results[i];
        good = run(scenario, handover, i + 1, &course, result) && good;
        fprintf(csv, "%s,%zu,%s,%.4f,%zu,%.4f,%.4f,", scenario->name, i + 1, name, result->in_use,
                result->samples_over, result->largest, result->mean_over);
        fprintf(csv, result->recovery < 0 ? "\n" : "%.0f\n", result->recovery);
        if (handover == DOORMAN_CONFIRMED && result->samples_over) {
            printf("scenario %s, seed %zu: over the capacity\n", scenario->name, i + 1);
            good = false;
        }
    }
    if (again.hash != results[0].hash) {
        printf("scenario %s, seed 1: two runs differ\n", scenario->name);
        good = false;
    }
    print_row(scenario, name, results, seeds);
    return good;
}

int sim_scenarios(uint64_t seeds, const char *folder) {
    char path[300];
    snprintf(path, sizeof path, "%s/scenarios.csv", folder);
    FILE *csv = fopen(path, "w");
    if (!csv || seeds < 1 || seeds > SEEDS_MAX) {
        perror(path);
        return 1;
    }
    fputs("scenario,seed,handover,in_use_percent,samples_over,largest_percent,mean_over_percent,"
          "recovery_seconds\n",
          csv);
    printf("%llu seeds: minimum, median, maximum. In the original no sample was over.\n\n"
           "                      in use, %% of the capacity           samples over  "
           "largest    mean   recovery\n"
           "scenario  handover    original          here                              "
           "      %%  over %%          s\n",
           (unsigned long long)seeds);
    bool good = true;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
            good = run_all(&scenarios[i], (doorman_handover)handover, (size_t)seeds, csv, folder) &&
                   good;
        }
    }
    fclose(csv);
    return good ? 0 : 1;
}
