/* Simulates the mixes of fair_mixes.h, with fair shares and in the order of arrival. Prints what
 * the keys of each group get beside their exact max-min shares, and writes the data of a picture. A
 * quick run simulates only the fair shares, and prints only the first broken promise.
 */
#include "sim.h"

#include "fair_mixes.h"

#include <inttypes.h>

/* Returns the name of the promise that a result breaks, or NULL. */
static const char *broken_promise(const fair_mix *mix, const fair_result *result) {
    if (result->used < mix->used) return "too little is in use";
    if (mix->within > 0 && result->worst > mix->within) return "a key lacks a part of its share";
    if (mix->within > 0 && result->most > mix->within) return "a key gets more than its share";
    return result->served[0] < mix->least ? "the first keys are refused" : NULL;
}

static void print_row(const fair_mix *mix, size_t group, const fair_result *fair,
                      const fair_result *plain) {
    const bool first = group == 0;
    char name[32];
    const size_t keys = mix->groups[group].count;
    snprintf(name, sizeof name, "%zu %s", keys, mix->groups[group].name);
    printf("%-36s %-10s %8.4g %8.4g %8.4g", first ? mix->name : "", name, fair->exact[group],
           fair->each[group], plain->each[group]);
    if (first) printf(" %8.1f %8.1f", 100 * fair->used, 100 * plain->used);
    if (first && mix->within > 0) {
        printf(" %7.1f%% %7.1f%%", 100 * fair->worst, 100 * fair->most);
    }
    printf("\n");
}

/* Writes what a group gets, in % of its exact share. */
static void write_row(FILE *data, const fair_mix *mix, size_t group, const fair_result *fair,
                      const fair_result *plain) {
    fprintf(data, "\"%s: %s\" %.2f %.2f\n", mix->name, mix->groups[group].name,
            100 * fair->each[group] / fair->exact[group],
            100 * plain->each[group] / fair->exact[group]);
}

int sim_fair_quick(uint64_t seed) {
    for (size_t i = 0; i < FAIR_MIXES; i++) {
        fair_mix mix = fair_mixes[i];
        mix.seed = seed + i;
        const fair_result result = fair_simulate(&mix, true);
        const char *broken = broken_promise(&mix, &result);
        if (!broken) continue;
        printf("FAILED: seed %" PRIu64 ", event 0: %s: %s\n", seed, mix.name, broken);
        return 1;
    }
    return 0;
}

int sim_fair(uint64_t seed, const char *folder) {
    char path[512];
    int failed = 0;
    snprintf(path, sizeof path, "%s/fair.dat", folder);
    FILE *data = fopen(path, "w");
    if (!data) {
        perror(path);
        return 1;
    }
    printf(
        "Units a second of each key: its exact share, what it gets of a fair limit, and in the\n"
        "order of arrival (plain). Then the part of the limit that is in use, in %%, and what a\n"
        "key of a fair limit lacks of its share, or has beyond it, at most in any ten "
        "windows.\n\n");
    printf("%-36s %-10s %8s %8s %8s %8s %8s %8s %8s\n", "", "keys", "exact", "fair", "plain",
           "in use", "plain", "lacks", "beyond");
    for (size_t i = 0; i < FAIR_MIXES; i++) {
        fair_mix mix = fair_mixes[i];
        mix.seed = seed + i;
        const fair_result fair = fair_simulate(&mix, true), plain = fair_simulate(&mix, false);
        for (size_t j = 0; j < FAIR_GROUPS && mix.groups[j].count; j++) {
            print_row(&mix, j, &fair, &plain);
            write_row(data, &mix, j, &fair, &plain);
        }
        if (mix.once > 0) {
            printf("%-36s %-10s %8s %8.4g %8.4g\n", "", "once, all", "", fair.once, plain.once);
        }
        const char *broken = broken_promise(&mix, &fair);
        if (broken) printf("FAILED: %s\n", broken);
        failed += broken != NULL;
    }
    fclose(data);
    return failed > 0;
}
