/* How well each policy protects a server that gets more requests than it can do. See
 * sim_throttle.h.
 *
 * The server has 16, 4 or 1 workers. A request needs a worker for 10 ms on average, so 16 workers
 * can do 1,600 requests a second. An answer that comes more than 200 ms after the request is
 * useless. The policies:
 *
 *     Doorman   the throttle of doorman_throttle.h; 100 ms of work may wait
 *     none      requests wait in order of arrival, without a bound
 *     FIFO      the same, but at most 100 ms of work wait
 *     conc.     a fixed concurrency: at most two requests for each worker are in the server
 *     CoDel     the form of folly
 *     Maurer    the form of "Fail at Scale" with the newest first, and here with criticalities
 *
 * Each figure is the worst of all its runs. The same seed gives the same figures.
 */
#include "sim_throttle.h"

#include <math.h>

#define ALL_SERVICES (1u << SIM_EXPONENTIAL | 1u << SIM_BIMODAL | 1u << SIM_CONSTANT)
#define EVEN_SERVICES (1u << SIM_EXPONENTIAL | 1u << SIM_CONSTANT)
#define BIMODAL_SERVICE (1u << SIM_BIMODAL)
#define BEFORE_SLOW (10 * DOORMAN_SECOND)
#define SLOW_FOR (60 * DOORMAN_SECOND)

typedef enum metric {
    GOODPUT,
    P99_GROWTH,
    HIGH_ANSWERED,
    REFUSED,
    TASKS,
    RECOVERY,
    EVENNESS,
    WAIT,
    TRIES
} metric;
typedef enum goal_kind { NO_GOAL_LOW, AT_LEAST, AT_MOST, NO_GOAL_HIGH } goal_kind;

typedef struct figure {
    const char *name;
    metric metric;
    goal_kind goal_kind; /* NO_GOAL_LOW: the least value is shown; NO_GOAL_HIGH: the largest */
    double goal;
    unsigned services;
    size_t workers[2]; /* 0: there is only one number of workers */
    sim_throttle_load load;
} figure;

/* Runs with a slow dependency have their own length. */
#define SLOW_LOAD                                                                                  \
    .load = 0.8, .retries = true, .length = 2 * (BEFORE_SLOW + SLOW_FOR),                          \
    .slow_from = BEFORE_SLOW, .slow_for = SLOW_FOR

static const figure figures[] = {
    {"goodput at 1, 16 workers, %", GOODPUT, AT_LEAST, 94, ALL_SERVICES, {16}, {.load = 1}},
    {"goodput at 2, %", GOODPUT, AT_LEAST, 99, ALL_SERVICES, {16, 4}, {.load = 2}},
    {"goodput at 5, %", GOODPUT, AT_LEAST, 99, ALL_SERVICES, {16, 4}, {.load = 5}},
    {"goodput at 10, %", GOODPUT, AT_LEAST, 99, ALL_SERVICES, {16, 4}, {.load = 10}},
    {"goodput at 2, 1 worker, %", GOODPUT, AT_LEAST, 99, EVEN_SERVICES, {1}, {.load = 2}},
    {"the same, bimodal, %", GOODPUT, NO_GOAL_LOW, 0, BIMODAL_SERVICE, {1}, {.load = 2}},
    {"p99 at 2, times that at 0.8", P99_GROWTH, AT_MOST, 3, ALL_SERVICES, {16, 4}, {.load = 2}},
    {"the same, 1 worker", P99_GROWTH, AT_MOST, 3, ALL_SERVICES, {1}, {.load = 2}},
    {"highest answered at 2, 16 workers, %",
     HIGH_ANSWERED,
     AT_LEAST,
     99.9,
     ALL_SERVICES,
     {16},
     {.load = 2, .high = 0.25}},
    {"the same, 4 workers, even service, %",
     HIGH_ANSWERED,
     AT_LEAST,
     99.9,
     EVEN_SERVICES,
     {4},
     {.load = 2, .high = 0.25}},
    {"highest answered in bursts, even service, %",
     HIGH_ANSWERED,
     AT_LEAST,
     99.9,
     EVEN_SERVICES,
     {16},
     {.load = 0.93, .high = 0.5 / 0.93, .burst = 200}},
    {"the same, bimodal, %",
     HIGH_ANSWERED,
     NO_GOAL_LOW,
     0,
     BIMODAL_SERVICE,
     {16},
     {.load = 0.93, .high = 0.5 / 0.93, .burst = 200}},
    {"long and short answered at 5, less : more",
     EVENNESS,
     AT_LEAST,
     0.8,
     BIMODAL_SERVICE,
     {16, 4},
     {.load = 5}},
    {"refused at 0.8, 16 workers, %", REFUSED, AT_MOST, 0.5, ALL_SERVICES, {16}, {.load = 0.8}},
    {"recovery, retry budgets, s",
     RECOVERY,
     AT_MOST,
     1,
     ALL_SERVICES,
     {16},
     {SLOW_LOAD, .budget = true}},
    {"recovery, no budgets, s", RECOVERY, NO_GOAL_HIGH, 0, ALL_SERVICES, {16}, {SLOW_LOAD}},
    {"tries for a first try while slow, budgets",
     TRIES,
     AT_MOST,
     1.11,
     ALL_SERVICES,
     {16},
     {SLOW_LOAD, .budget = true}},
    {"longest wait while slow, ms", WAIT, AT_MOST, 100, ALL_SERVICES, {16}, {SLOW_LOAD}},
    {"the same in bursts, no deadlines, ms",
     WAIT,
     AT_MOST,
     100,
     1u << SIM_CONSTANT,
     {16},
     {.load = 0.93, .burst = 200, .no_deadlines = true}},
    {"longest wait at 0.8, ms", WAIT, AT_MOST, 60, ALL_SERVICES, {16}, {.load = 0.8}},
    {"tasks of 3 calls at 2, users known, %",
     TASKS,
     AT_LEAST,
     45,
     ALL_SERVICES,
     {16},
     {.load = 2, .tasks = true, .users = true}},
    {"the same, users not known, %",
     TASKS,
     NO_GOAL_LOW,
     0,
     ALL_SERVICES,
     {16},
     {.load = 2, .tasks = true}},
};

/* Returns the length of a run in which as many requests arrive as in `seconds` at 16 workers. */
static doorman_time length_of(double seconds, size_t workers) {
    return (doorman_time)(seconds * 16 / (double)workers * (double)DOORMAN_SECOND);
}

static double value_of(const figure *shown, const sim_throttle_load *load) {
    sim_throttle_result result = sim_throttle_run(load);
    sim_throttle_load lower = *load;
    switch (shown->metric) {
    case GOODPUT: return 100 * result.goodput;
    case HIGH_ANSWERED: return 100 * result.answered;
    case REFUSED: return 100 * result.refused;
    case TASKS: return 100 * result.tasks;
    case RECOVERY: return result.recovery;
    case EVENNESS: return result.evenness;
    case WAIT: return 1000 * result.wait;
    case TRIES: return result.tries;
    case P99_GROWTH: break;
    }
    lower.load = 0.8;
    return result.p99 / sim_throttle_run(&lower).p99;
}

/* Returns the worst value of a policy. */
static double worst_value(const figure *shown, sim_policy_kind policy, double seconds,
                          uint64_t seed) {
    bool low = shown->goal_kind <= AT_LEAST;
    double worst = low ? INFINITY : -INFINITY;
    for (unsigned i = 0; i < 2 * SIM_SERVICE_COUNT; i++) {
        sim_throttle_load load = shown->load;
        load.policy = policy;
        load.seed = seed;
        load.service = (sim_service)(i / 2);
        load.workers = shown->workers[i % 2];
        if (!load.workers || !(shown->services & 1u << load.service)) continue;
        if (!load.length) load.length = length_of(seconds, load.workers);
        double value = value_of(shown, &load);
        worst = low ? fmin(worst, value) : fmax(worst, value);
    }
    return worst;
}

static bool is_reached(const figure *shown, double value) {
    if (shown->goal_kind == AT_LEAST) return value >= shown->goal;
    return shown->goal_kind != AT_MOST || value <= shown->goal;
}

/* Prints the line of one figure. Returns whether Doorman reaches the goal. */
static bool print_figure(const figure *shown, double seconds, uint64_t seed) {
    bool has_goal = shown->goal_kind == AT_LEAST || shown->goal_kind == AT_MOST, reached = true;
    printf("%-44s", shown->name);
    if (has_goal) {
        printf(" %s %5.2f", shown->goal_kind == AT_LEAST ? ">=" : "<=", shown->goal);
    } else {
        printf(" %8s", "");
    }
    for (int policy = 0; policy < SIM_POLICY_COUNT; policy++) {
        double value = worst_value(shown, (sim_policy_kind)policy, seconds, seed);
        if (policy == SIM_DOORMAN) reached = is_reached(shown, value);
        printf(" %7.*f", value < 10000 ? 2 : 0, value);
    }
    puts(reached ? "" : "  MISSED");
    return reached;
}

/* Writes for each sample its time in refresh intervals, and for each entry of `found` the percent
 * of the capacity that the clients use. */
static bool write_feedback(const sim_feedback *found, size_t count, const char *folder) {
    char path[300];
    snprintf(path, sizeof path, "%s/feedback.dat", folder);
    FILE *data = fopen(path, "w");
    if (!data) return false;
    for (size_t i = 0; i < SIM_FEEDBACK_INTERVALS * SIM_FEEDBACK_SAMPLES; i++) {
        fprintf(data, "%g", (double)i / SIM_FEEDBACK_SAMPLES);
        for (size_t j = 0; j < count; j++) fprintf(data, " %.2f", 100 * found[j].use[i]);
        fputc('\n', data);
    }
    return fclose(data) == 0;
}

/* Prints how the capacity follows reports of overload (H11). Returns whether the goals are reached
 * and the data are written. */
static bool print_feedback(uint64_t seed, const char *folder) {
    static sim_feedback found[4];
    bool good = true;
    puts("\nfeedback, in refresh intervals     settles <= 4   recovers <= 20   swing <= 10 %");
    for (unsigned i = 0; i < 4; i++) {
        bool immediate = i & 2, with_parent = i & 1;
        found[i] =
            sim_feedback_run(immediate ? DOORMAN_IMMEDIATE : DOORMAN_CONFIRMED, with_parent, seed);
        bool reached = found[i].settles <= 4 && found[i].recovers <= 20 && found[i].swing <= 0.1;
        printf("%-9s handover, %-11s %15.2f %16.2f %15.1f%s\n",
               immediate ? "immediate" : "confirmed", with_parent ? "with parent" : "a root",
               found[i].settles, found[i].recovers, 100 * found[i].swing,
               reached ? "" : "  MISSED");
        good = reached && good;
    }
    if (write_feedback(found, 4, folder)) return good;
    perror(folder);
    return false;
}

/* Writes what each policy does at each load: the load, the goodput in percent and the p99 in
 * milliseconds of each policy. The server has 16 workers and bimodal service. */
static bool write_picture(double seconds, uint64_t seed, const char *folder) {
    static const double loads[] = {0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 7, 10};
    char path[300];
    snprintf(path, sizeof path, "%s/throttle.dat", folder);
    FILE *data = fopen(path, "w");
    if (!data) return false;
    fputs("load", data);
    for (int policy = 0; policy < SIM_POLICY_COUNT; policy++) {
        const char *name = sim_policy_name((sim_policy_kind)policy);
        fprintf(data, " %s-goodput %s-p99", name, name);
    }
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        fprintf(data, "\n%g", loads[i]);
        for (int policy = 0; policy < SIM_POLICY_COUNT; policy++) {
            const sim_throttle_load load = {.policy = (sim_policy_kind)policy,
                                            .service = SIM_BIMODAL,
                                            .workers = 16,
                                            .load = loads[i],
                                            .length = length_of(seconds, 16),
                                            .seed = seed};
            sim_throttle_result result = sim_throttle_run(&load);
            fprintf(data, " %.2f %.1f", 100 * result.goodput, 1000 * result.p99);
        }
    }
    fputc('\n', data);
    return fclose(data) == 0;
}

int sim_throttle(uint64_t seconds, uint64_t seed, const char *folder) {
    bool good = true;
    printf("%-53s", "the worst of all runs");
    for (int policy = 0; policy < SIM_POLICY_COUNT; policy++) {
        printf(" %7s", sim_policy_name((sim_policy_kind)policy));
    }
    putchar('\n');
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        good = print_figure(&figures[i], (double)seconds, seed) && good;
        fflush(stdout);
    }
    good = print_feedback(seed, folder) && good;
    fflush(stdout);
    fputs("the data of the picture\n", stderr);
    if (!write_picture((double)seconds, seed, folder)) {
        perror(folder);
        return 1;
    }
    return good ? 0 : 1;
}
