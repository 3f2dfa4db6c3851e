/*
 * The command line of the simulator: see sim.h.
 *
 *     sim scenarios [--seeds N] [--output FOLDER] [--jobs N]
 *     sim faults [--seeds N] [--seed FIRST] [--faults LIST] [--favour LIST] [--levels MOST]
 *         [--nodes MOST] [--clients MOST] [--resources MOST] [--seconds MOST] [--jobs N]
 *         [--verbose] [--no-shrink]
 *     sim permits ...
 *     sim holds ...
 *     sim leased ...
 *     sim state ...
 *     sim quotas ...
 *     sim shards ...
 *     sim throttle [--seed N] [--seconds N] [--output FOLDER]
 *     sim fair [--seed N] [--output FOLDER] [--quick]
 *
 * The runs of `faults` have leases. Runs of `permits` have permits, and runs of `holds` have holds.
 * Runs of `leased` have leases and leased permits. Runs of `state` have permits whose counters last
 * in stores with faults. Runs of `quotas` have clients like Envoy, which hold leases as quotas: see
 * sim_quota.c. Runs of `shards` have nodes between which shards move: see sim_shards.c. All of
 * these take the options of `faults`. `throttle` simulates a server with too many requests: see
 * sim_throttle.c. `fair` simulates keys that share a limit: see sim_fair.c.
 *
 *   --seeds    the number of seeds, which count up from the first one. Default: 10 for scenarios;
 *              otherwise 1,000, or 1 where --seed is given
 *   --seed     the first seed
 *   --jobs     the number of processes that share the runs
 *   --faults   the kinds of faults that may happen: a list, all, or none
 *   --favour   the kinds of faults that happen in every run at full intensity, to find rare bugs
 *   --levels, --nodes, --clients, --resources, --seconds
 *              the largest system, and the longest time with faults; --levels 1 excludes trees.
 *              For throttle --seconds is the simulated time of each run. Default: 20
 *   --quick    for fair: prints no table, draws no picture, ends at the first broken promise
 */
#define DOORMAN_MALLOC(bytes) sim_allocate(NULL, bytes)
#define DOORMAN_REALLOC(pointer, bytes) sim_allocate(pointer, bytes)
#define DOORMAN_FREE(pointer) sim_free(pointer)
#define DOORMAN_IMPLEMENTATION
#include "sim.h"
#include "sim_quota.h"
#include "sim_shards.h"
#include "sim_state.h"
#include "sim_throttle.h"

#include "server/grpc/quota.c"
#include "tests/sim/shards_fences.h"
#include "tests/sim/store_fences.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static int usage_error(const char *what) {
    fprintf(
        stderr,
        "%s\n"
        "usage: sim scenarios [--seeds N] [--output FOLDER] [--jobs N]\n"
        "       sim faults [--seeds N] [--seed FIRST] [--faults LIST] [--favour LIST]\n"
        "           [--levels MOST] [--nodes MOST] [--clients MOST] [--resources MOST]\n"
        "           [--seconds MOST] [--jobs N] [--verbose] [--no-shrink]\n"
        "       sim permits, sim holds, sim leased, sim state, sim quotas and sim shards, with\n"
        "           the options of sim faults\n"
        "       sim throttle [--seed N] [--seconds N] [--output FOLDER]\n"
        "       sim fair [--seed N] [--output FOLDER] [--quick]\n"
        "LIST is all, none, or kinds of faults separated by commas:\n",
        what);
#define FAULT_LINE(code, name, text) fprintf(stderr, "  %-10s %s\n", name, text);
    SIM_FAULTS(FAULT_LINE)
    return 2;
}

static bool read_number(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *out) {
    char *end = NULL;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *out >= minimum && *out <= maximum;
}

/* Reads a list of faults such as "loss,double". */
static bool read_faults(const char *list, bool *out) {
    bool all = strcmp(list, "all") == 0, known = true;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) out[i] = all;
    if (all || strcmp(list, "none") == 0) return true;
    while (*list && known) {
        size_t bytes = strcspn(list, ",");
        known = false;
        for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
            const char *name = sim_fault_name(i);
            if (strlen(name) == bytes && strncmp(name, list, bytes) == 0) out[i] = known = true;
        }
        list += bytes + (list[bytes] == ',');
    }
    return known;
}

enum { NO_BOUND = 100000 }; /* the largest value of an option that bounds the system */

typedef struct sim_command {
    sim_run_options options;
    uint64_t seeds, jobs;
    const char *folder;
    bool quick;
} sim_command;

static bool read_option(const char *name, const char *value, sim_command *out) {
    sim_run_options *options = &out->options;
    uint64_t number = 0;
    if (strcmp(name, "--seeds") == 0) return read_number(value, 1, 1000000000, &out->seeds);
    if (strcmp(name, "--seed") == 0) return read_number(value, 1, UINT64_MAX, &options->seed);
    if (strcmp(name, "--faults") == 0) return read_faults(value, options->allowed);
    if (strcmp(name, "--favour") == 0) return read_faults(value, options->favoured);
    if (strcmp(name, "--output") == 0) {
        out->folder = value;
        return true;
    }
    if (strcmp(name, "--jobs") == 0) return read_number(value, 1, SIM_JOBS, &out->jobs);
    for (size_t i = 0; i < SIM_BOUND_COUNT; i++) {
        if (strcmp(name, sim_bound_option(i)) != 0) continue;
        bool read = read_number(value, sim_bound_minimum(i), NO_BOUND, &number);
        options->maximum[i] = (size_t)number;
        return read;
    }
    return false;
}

static int run_throttle(const sim_command *command) {
    size_t seconds = command->options.maximum[SIM_MAX_SECONDS];
    if (seconds == NO_BOUND) seconds = 20;
    if (seconds < 2) return usage_error("--seconds: at least 2");
    return sim_throttle(seconds, command->options.seed ? command->options.seed : 1,
                        command->folder);
}

static int run_fair(const sim_command *command) {
    const uint64_t seed = command->options.seed ? command->options.seed : 1;
    return command->quick ? sim_fair_quick(seed) : sim_fair(seed, command->folder);
}

bool sim_in_processes(sim_seeds_function *run, const sim_run_options *options, uint64_t seeds,
                      uint64_t jobs) {
    bool failed = false;
    size_t children = 0;
    fflush(stdout);
    for (uint64_t i = 1; i < jobs && i < seeds; i++) {
        pid_t child = fork();
        if (child < 0) abort();
        if (child == 0) {
            failed = run(options, i, seeds, jobs);
            fflush(stdout);
            _Exit(failed);
        }
        children++;
    }
    failed = run(options, 0, seeds, jobs);
    for (; children > 0; children--) {
        int status = 1;
        if (wait(&status) < 0 || status != 0) failed = true;
    }
    return failed;
}

int main(int argc, char **argv) {
    sim_command command = {.jobs = 1, .folder = "build/sim"};
    command.options = (sim_run_options){.program = argv[0], .shrink = true};
    for (size_t i = 0; i < SIM_BOUND_COUNT; i++) command.options.maximum[i] = NO_BOUND;
    (void)read_faults("all", command.options.allowed);
    if (argc < 2)
        return usage_error("missing command: scenarios, faults, permits, holds, leased, state, "
                           "quotas, shards, throttle or fair");
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) {
            command.options.verbose = true;
            command.options.shrink = false;
        } else if (strcmp(argv[i], "--no-shrink") == 0) {
            command.options.shrink = false;
        } else if (strcmp(argv[i], "--quick") == 0) {
            command.quick = true;
        } else if (i + 1 < argc && read_option(argv[i], argv[i + 1], &command)) {
            i++;
        } else {
            return usage_error(argv[i]);
        }
    }
    if (strcmp(argv[1], "scenarios") == 0) {
        return sim_scenarios(command.seeds ? command.seeds : 10, command.folder, command.jobs);
    }
    if (strcmp(argv[1], "throttle") == 0) return run_throttle(&command);
    if (strcmp(argv[1], "fair") == 0) return run_fair(&command);
    command.options.permits = strcmp(argv[1], "permits") == 0;
    command.options.holds = strcmp(argv[1], "holds") == 0;
    command.options.leased = strcmp(argv[1], "leased") == 0;
    command.options.state = strcmp(argv[1], "state") == 0;
    bool quotas = strcmp(argv[1], "quotas") == 0;
    bool shards = strcmp(argv[1], "shards") == 0;
    bool faults = strcmp(argv[1], "faults") == 0 || command.options.leased;
    bool known = faults || command.options.permits || command.options.holds ||
                 command.options.state || quotas || shards;
    if (!known) return usage_error(argv[1]);
    if (!command.seeds) command.seeds = command.options.seed ? 1 : 1000;
    if (!command.options.seed) command.options.seed = 1;
    if (quotas) return sim_quotas(&command.options, command.seeds, command.jobs);
    if (shards) return sim_shards(&command.options, command.seeds, command.jobs);
    return sim_faults(&command.options, command.seeds, command.jobs);
}
