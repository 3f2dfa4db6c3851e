/*
 * Keys that share a fair limit (P29), in simulated time. The simulator prints the results of these
 * mixes, and tests/unit/fair_test.c checks their promises.
 *
 * The keys of a group ask at random times (Poisson), each for the same amount on average. A greedy
 * key asks for much more than it can get, like a program that tries again at once. At the end of
 * each window, from the 20th on, what the keys got in the last ten windows is compared with exact
 * max-min shares of what they asked for.
 */
#ifndef FAIR_MIXES_H
#define FAIR_MIXES_H

#include "../../doorman_permits.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAIR_GROUPS = 2, FAIR_KEYS_MAX = 320, FAIR_WINDOWS = 10 };
#define FAIR_WINDOW (2 * DOORMAN_SECOND)
#define FAIR_SPAN 20.0 /* seconds: ten windows */

typedef struct fair_group {
    const char *name;
    size_t count;
    double rate; /* units a second that each key asks for */
    double cost; /* units at once; 0: 1 */
    uint32_t weight;
    double on, off; /* seconds in which it asks and does not ask, in turn; 0: always */
    double bound;   /* units a second that another limit allows each key; 0: there is none */
} fair_group;

typedef struct fair_mix {
    const char *name;
    double rate, size;
    fair_group groups[FAIR_GROUPS];
    double once;   /* keys a second that ask once */
    double spans;  /* how often ten windows are simulated, after ten that do not count */
    double used;   /* promised: the least part of the rate that is in use */
    double within; /* promised: the shares are exact within this part; 0: not promised */
    double least;  /* promised: at least this part of what the first group asks for */
    uint64_t seed;
} fair_mix;

/* The result of a mix. */
typedef struct fair_result {
    double used;                /* part of the rate */
    double served[FAIR_GROUPS]; /* part of what was asked for */
    double each[FAIR_GROUPS];   /* units a second of a key */
    double exact[FAIR_GROUPS];  /* what max-min shares would give it */
    double once;                /* units a second of the keys that ask once, together */
    double worst;               /* the largest part of its exact share that a key lacks, in any ten
                                   windows */
    double most;                /* the same for what a key gets beyond its share */
    double bytes;               /* of memory at the end */
} fair_result;

static const fair_mix fair_mixes[] = {
    {"40 small keys, 5 greedy ones",
     1000,
     1000,
     {{.name = "small", .count = 40, .rate = 5}, {.name = "greedy", .count = 5, .rate = 2000}},
     .spans = 3,
     .used = 0.995,
     .within = 0.05,
     .least = 0.999},
    {"20 keys, a greedy one",
     1000,
     1000,
     {{.name = "small", .count = 20, .rate = 20}, {.name = "greedy", .count = 1, .rate = 5000}},
     .spans = 3,
     .used = 0.99,
     .within = 0.05,
     .least = 0.999},
    {"a key of 100, two of 700",
     1000,
     1000,
     {{.name = "small", .count = 1, .rate = 100}, {.name = "large", .count = 2, .rate = 700}},
     .spans = 4,
     .used = 0.99,
     .within = 0.05,
     .least = 0.999},
    {"10 keys that burst, 5 greedy ones",
     1000,
     1000,
     {{.name = "burst", .count = 10, .rate = 100, .on = 1, .off = 9},
      {.name = "greedy", .count = 5, .rate = 2000}},
     .spans = 5,
     .used = 0.99,
     .within = 0.05,
     .least = 0.995},
    {"weights of 1 and 9",
     1000,
     1000,
     {{.name = "one", .count = 1, .rate = 2000},
      {.name = "nine", .count = 1, .rate = 2000, .weight = 9}},
     .spans = 3,
     .used = 0.995,
     .within = 0.05},
    {"300 equal keys",
     1000,
     1000,
     {{.name = "equal", .count = 300, .rate = 20}},
     .spans = 3,
     .used = 0.995,
     .within = 0.05},
    {"a lone key",
     1000,
     1000,
     {{.name = "lone", .count = 1, .rate = 3000}},
     .spans = 3,
     .used = 0.998,
     .within = 0.01},
    {"5,000 keys a second that ask once",
     1000,
     1000,
     {{.name = "stay", .count = 20, .rate = 20}},
     .once = 5000,
     .spans = 2,
     .used = 0.99,
     .within = 0.05,
     .least = 0.999},
    {"5 keys with another limit, 5 greedy",
     1000,
     1000,
     {{.name = "bound", .count = 5, .rate = 2000, .bound = 10},
      {.name = "greedy", .count = 5, .rate = 2000}},
     .spans = 3,
     .used = 0.99,
     .within = 0.05},
    {"two greedy keys, rate and size of 1",
     1,
     1,
     {{.name = "greedy", .count = 2, .rate = 20}},
     .spans = 40,
     .used = 0.93},
    {"two keys of cost 950, size 1,000",
     1000,
     1000,
     {{.name = "large", .count = 2, .rate = 20000, .cost = 950}},
     .spans = 20,
     .used = 0.9},
    {"a key of cost 300, 9 greedy ones",
     1000,
     1000,
     {{.name = "large", .count = 1, .rate = 100, .cost = 300},
      {.name = "greedy", .count = 9, .rate = 2000}},
     .spans = 20,
     .used = 0.98,
     .least = 0.55},
    {"20 keys of 0.1, 10 greedy ones",
     5,
     5,
     {{.name = "slow", .count = 20, .rate = 0.1}, {.name = "greedy", .count = 10, .rate = 50}},
     .spans = 50,
     .used = 0.97,
     .least = 0.65},
};

enum { FAIR_MIXES = sizeof fair_mixes / sizeof *fair_mixes };

/* ---- one key */

typedef struct fair_member {
    const fair_group *group;
    char key[24];
    double next;                                       /* when it asks next */
    double phase;                                      /* of its bursts */
    double asked[FAIR_WINDOWS], granted[FAIR_WINDOWS]; /* in each of the last ten windows */
    double all_asked, all_granted;
    double demand; /* asked for in a second, as far as other limits allow */
} fair_member;

typedef struct fair_run {
    const fair_mix *mix;
    doorman_config *config;
    doorman_permits *permits;
    fair_member members[FAIR_KEYS_MAX + 1]; /* the last one stands for all keys that ask once */
    size_t count;
    size_t once; /* how many keys have asked once */
    uint64_t random;
    size_t window; /* how many windows have ended */
    double exact[FAIR_KEYS_MAX + 1], all_exact[FAIR_KEYS_MAX + 1];
    double seconds; /* simulated so far, without the first ten windows */
    double worst, most;
} fair_run;

/* Returns a number in (0, 1]: splitmix64 (Vigna 2015). */
static double fair_random(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return ((double)((x ^ x >> 31) >> 11) + 1) / 9007199254740992.0;
}

static double fair_cost(const fair_group *group) { return group->cost > 0 ? group->cost : 1; }

static void fair_plan_next(fair_run *run, fair_member *member) {
    const fair_group *group = member->group;
    member->next -= log(fair_random(&run->random)) / (group->rate / fair_cost(group));
    if (!(group->off > 0)) return;
    const double in_turn = fmod(member->next + member->phase, group->on + group->off);
    if (in_turn > group->on) member->next += group->on + group->off - in_turn;
}

/* ---- exact shares */

/* Sets the max-min share of each member, by weight. It bisects: slow but obvious. */
static void fair_exact(const fair_member *members, size_t count, double rate, double *out) {
    double low = 0, high = rate, sum = 0;
    for (size_t i = 0; i < count; i++) sum += members[i].demand;
    for (int step = 0; step < 100; step++) {
        const double level = (low + high) / 2;
        double all = 0;
        for (size_t i = 0; i < count; i++) {
            const uint32_t weight = members[i].group->weight;
            all += fmin(members[i].demand, level * (weight ? weight : 1));
        }
        if (all < rate) low = level;
        if (all >= rate) high = level;
    }
    for (size_t i = 0; i < count; i++) {
        const uint32_t weight = members[i].group->weight;
        out[i] = fmin(members[i].demand, sum <= rate ? rate : high * (weight ? weight : 1));
    }
}

static double fair_sum(const double of_windows[FAIR_WINDOWS]) {
    double sum = 0;
    for (size_t i = 0; i < FAIR_WINDOWS; i++) sum += of_windows[i];
    return sum;
}

/* Compares what the keys got in the last ten windows with their exact shares, and begins the next
 * window. */
static void fair_end_window(fair_run *run) {
    const size_t count = run->count + (run->mix->once > 0), now = run->window % FAIR_WINDOWS;
    const size_t ended = ++run->window, next = ended % FAIR_WINDOWS;
    const bool counts = ended > FAIR_WINDOWS; /* the first ten do not */
    const bool compares = ended >= 2 * FAIR_WINDOWS, ends_span = compares && next == 0;
    for (size_t i = 0; i < count; i++) {
        fair_member *member = &run->members[i];
        member->demand = fair_sum(member->asked) / FAIR_SPAN;
        const double bound = member->group->bound;
        if (bound > 0) member->demand = fmin(member->demand, bound);
    }
    if (compares) fair_exact(run->members, count, run->mix->rate, run->exact);
    for (size_t i = 0; i < count; i++) {
        fair_member *member = &run->members[i];
        const double share = run->exact[i], got = fair_sum(member->granted) / FAIR_SPAN;
        if (compares && share > 0) run->worst = fmax(run->worst, (share - got) / share);
        if (compares && share > 0) run->most = fmax(run->most, (got - share) / share);
        if (counts) member->all_asked += member->asked[now];
        if (counts) member->all_granted += member->granted[now];
        if (ends_span) run->all_exact[i] += share * FAIR_SPAN;
        member->asked[next] = member->granted[next] = 0;
    }
    if (ends_span) run->seconds += FAIR_SPAN;
}

/* ---- a run */

static void fair_must(bool holds) {
    if (!holds) abort();
}

/* Makes the shared limit, with weights if it is fair, and a limit for each group that has a
 * bound. */
static doorman_config *fair_config(const fair_mix *mix, bool fair) {
    const char *globs[FAIR_GROUPS][1];
    char texts[FAIR_GROUPS][24];
    doorman_override weights[FAIR_GROUPS];
    doorman_permit_limit limits[2] = {{.name = "shared",
                                       .per = DOORMAN_PER_RESOURCE,
                                       .kind = DOORMAN_TOKEN_BUCKET,
                                       .fair = fair}};
    size_t count = 1, weight_count = 0;
    limits[0].figures.rate = mix->rate;
    limits[0].figures.size = mix->size;
    for (size_t i = 0; i < FAIR_GROUPS && mix->groups[i].count; i++) {
        const fair_group *group = &mix->groups[i];
        snprintf(texts[i], sizeof texts[i], "%s-*", group->name);
        globs[i][0] = texts[i];
        if (group->weight && fair) {
            weights[weight_count++] = (doorman_override){
                .keys = globs[i], .key_count = 1, .figures = {.weight = group->weight}};
        }
        if (!(group->bound > 0)) continue;
        doorman_permit_limit *own = &limits[count++];
        *own = (doorman_permit_limit){
            .name = "own", .kind = DOORMAN_TOKEN_BUCKET, .keys = globs[i], .key_count = 1};
        own->figures.rate = own->figures.size = group->bound;
    }
    limits[0].overrides = weight_count ? weights : NULL;
    limits[0].override_count = weight_count;
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = limits,
                                  .limit_count = count};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    fair_must(doorman_config_create(&config, &options, NULL) == DOORMAN_OK);
    return config;
}

static void fair_ask(fair_run *run, fair_member *member) {
    const doorman_time now = (doorman_time)(member->next * 1e9);
    const doorman_permit_item item = {
        .resource_id = "partner", .key = member->key, .cost = fair_cost(member->group)};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_permit permit;
    fair_must(doorman_permits_acquire(run->permits, &request, &permit, NULL, now) == DOORMAN_OK);
    member->asked[run->window % FAIR_WINDOWS] += item.cost;
    if (permit.granted) member->granted[run->window % FAIR_WINDOWS] += item.cost;
}

static fair_run *fair_start(const fair_mix *mix, bool fair) {
    static const fair_group once = {.name = "once", .count = 1};
    fair_run *run = (fair_run *)calloc(1, sizeof *run);
    fair_must(run != NULL);
    run->mix = mix;
    run->random = mix->seed;
    run->config = fair_config(mix, fair);
    const doorman_permits_options options = {.config = run->config, .seed = {1, mix->seed}};
    fair_must(doorman_permits_create(&run->permits, &options, NULL, 0) == DOORMAN_OK);
    for (size_t i = 0; i < FAIR_GROUPS; i++) {
        for (size_t j = 0; j < mix->groups[i].count; j++) {
            fair_must(run->count < FAIR_KEYS_MAX);
            fair_member *member = &run->members[run->count++];
            member->group = &mix->groups[i];
            member->phase = 0.37 * (double)j;
            snprintf(member->key, sizeof member->key, "%s-%zu", member->group->name, j);
            fair_plan_next(run, member);
        }
    }
    run->members[run->count] = (fair_member){.group = &once, .next = HUGE_VAL};
    if (mix->once > 0) run->members[run->count].next = 0;
    return run;
}

/* Lets the next key ask, if it is due before `until`. Returns when it is due. */
static double fair_step(fair_run *run, double until) {
    fair_member *first = &run->members[0];
    for (size_t i = 1; i <= run->count; i++) {
        if (run->members[i].next < first->next) first = &run->members[i];
    }
    const double now = first->next;
    if (now >= until) return now;
    const bool once = first == &run->members[run->count];
    if (once) snprintf(first->key, sizeof first->key, "once-%zu", run->once++);
    fair_ask(run, first);
    if (!once) fair_plan_next(run, first);
    if (once) first->next -= log(fair_random(&run->random)) / run->mix->once;
    return now;
}

static void fair_read(const fair_run *run, fair_result *out) {
    const fair_mix *mix = run->mix;
    double all = 0;
    size_t next = 0;
    *out = (fair_result){.worst = run->worst, .most = run->most};
    for (size_t i = 0; i < FAIR_GROUPS && mix->groups[i].count; i++) {
        double asked = 0, granted = 0, exact = 0;
        const double keys = (double)mix->groups[i].count;
        for (size_t j = 0; j < mix->groups[i].count; j++, next++) {
            asked += run->members[next].all_asked;
            granted += run->members[next].all_granted;
            exact += run->all_exact[next];
        }
        out->served[i] = granted / asked;
        out->each[i] = granted / keys / run->seconds;
        out->exact[i] = exact / keys / run->seconds;
        all += granted;
    }
    const double once = run->members[run->count].all_granted;
    doorman_permits_info info;
    doorman_permits_read(run->permits, &info);
    out->bytes = (double)info.bytes;
    out->once = once / run->seconds;
    out->used = (all + once) / run->seconds / mix->rate;
}

/* Simulates a mix.
 *   fair   false: the limit grants in the order of arrival */
static fair_result fair_simulate(const fair_mix *mix, bool fair) {
    fair_run *run = fair_start(mix, fair);
    fair_result result;
    while (run->window < (size_t)(mix->spans + 1) * FAIR_WINDOWS) {
        const double until = (double)(run->window + 1) * FAIR_SPAN / FAIR_WINDOWS;
        while (fair_step(run, until) < until) continue;
        fair_end_window(run);
    }
    fair_read(run, &result);
    doorman_permits_destroy(run->permits);
    doorman_config_destroy(run->config);
    free(run);
    return result;
}

#endif
