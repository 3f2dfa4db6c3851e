/* Permits in one process on one core. Keys have 32 bytes and are chosen at random. The limits grant
 * every permit, so each decision charges all its counters. Memory is what malloc reports as in use,
 * with its own headers.
 *
 * Only the decision is measured. A real key comes from the network and is therefore in the cache.
 * Here each key is one cache line, which is prefetched while the previous permit is decided. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, BATCH = 100 };

typedef struct key {
    char text[64];
} key;

typedef struct key_fleet {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now;
    key *keys;
    const key *next;     /* is decided on next */
    size_t count, items; /* items: of each permit */
    const doorman_permit_limit *limits;
    size_t limit_count;
    double bytes;       /* memory for each key */
    doorman_time pause; /* the longest call */
    uint64_t random;
} key_fleet;

static const doorman_permit_limit one_limit[] = {
    {.name = "user", .kind = DOORMAN_TOKEN_BUCKET, .figures = {.rate = 1, .size = 1e6}}};
static const doorman_permit_limit three_limits[] = {
    {.name = "user",
     .kind = DOORMAN_TOKEN_BUCKET,
     .figures = {.rate = 1, .size = 1e6},
     .max_keys = 10000000},
    {.name = "day",
     .max_keys = 10000000,
     .kind = DOORMAN_FIXED_WINDOW,
     .figures = {.limit = 1e9, .calendar = DOORMAN_DAY}},
    {.name = "all",
     .per = DOORMAN_PER_RESOURCE,
     .kind = DOORMAN_TOKEN_BUCKET,
     .figures = {.rate = 1e6, .size = 1e12}}};
static const doorman_permit_limit shared_limit[] = {{.name = "all",
                                                     .per = DOORMAN_PER_RESOURCE,
                                                     .kind = DOORMAN_TOKEN_BUCKET,
                                                     .figures = {.rate = 1e9, .size = 1e12}}};
static const doorman_permit_limit fair_limit[] = {{.name = "all",
                                                   .per = DOORMAN_PER_RESOURCE,
                                                   .kind = DOORMAN_TOKEN_BUCKET,
                                                   .figures = {.rate = 1e9, .size = 1e12},
                                                   .fair = true}};

/* A limit of a resource that the fleet does not ask for. */
static const doorman_permit_limit beside_limit[] = {
    {.name = "beside", .kind = DOORMAN_TOKEN_BUCKET, .figures = {.rate = 1, .size = 1e6}}};

/* Asks for one permit. The items differ in their resource. */
static void decide(key_fleet *f, const char *text) {
    static const char *const ids[] = {"api/search", "login"};
    doorman_permit_item items[2] = {{.cost = 1}, {.cost = 1}};
    for (size_t i = 0; i < f->items; i++) items[i].resource_id = ids[i];
    for (size_t i = 0; i < f->items; i++) items[i].key = text;
    const doorman_permit_request request = {.items = items, .item_count = f->items};
    doorman_permit permit;
    f->now += 1000;
    doorman_status status = doorman_permits_acquire(f->permits, &request, &permit, NULL, f->now);
    must(status == DOORMAN_OK && permit.granted, "a permit was refused");
}

static void create_permits(key_fleet *f) {
    const doorman_template templates[2] = {{.identifier_glob = "beside",
                                            .without_capacity = true,
                                            .has_limits = true,
                                            .limits = beside_limit,
                                            .limit_count = 1},
                                           {.identifier_glob = "*",
                                            .without_capacity = true,
                                            .has_limits = true,
                                            .limits = f->limits,
                                            .limit_count = f->limit_count}};
    const doorman_config_options options = {.templates = templates, .template_count = 2};
    must(doorman_config_create(&f->config, &options, NULL) == DOORMAN_OK,
         "cannot make a configuration");
    const doorman_permits_options of = {.config = f->config, .seed = {1, 2}};
    must(doorman_permits_create(&f->permits, &of, NULL, f->now) == DOORMAN_OK,
         "cannot make permits");
    doorman_permits_set_epoch(f->permits, 1700000000 * DOORMAN_SECOND, f->now);
}

/* Makes the permits, and decides once on each key.
 *   f   count, items, limits and limit_count are set, and the other fields are 0 */
static void keys_arrive(key_fleet *f, bench *b) {
    const size_t count = f->count;
    f->random = 1;
    f->now = 1000 * DOORMAN_SECOND;
    f->keys = aligned_alloc(sizeof *f->keys, count * sizeof *f->keys);
    must(f->keys, "out of memory");
    for (size_t i = 0; i < count; i++) write_holder_id(f->keys[i].text, i);
    create_permits(f);
    double before = bytes_in_use();
    for (size_t i = 0; i < count; i++) {
        doorman_time start = cpu_time();
        decide(f, f->keys[i].text);
        note_pause(&f->pause, start);
        if (i % 1000 == 0) bench_tick(b);
    }
    f->next = f->keys;
    f->bytes = (bytes_in_use() - before) / (double)count;
}

/* Lets all counters become fresh again. Updates and decisions remove them. */
static void keys_expire(key_fleet *f, bench *b) {
    doorman_permits_info info = {.counter_count = f->count};
    f->pause = 0;
    f->now += 3600 * DOORMAN_SECOND;
    for (size_t i = 0; info.counter_count > 100 && i < f->count; i++) {
        doorman_time start = cpu_time();
        if (i % BATCH == 0) doorman_permits_update(f->permits, f->now);
        if (i % BATCH) decide(f, f->keys[i % 50].text);
        note_pause(&f->pause, start);
        doorman_permits_read(f->permits, &info);
        if (i % BATCH == 0) bench_tick(b);
    }
    must(info.counter_count <= 100, "keys do not expire");
}

static void fleet_stop(key_fleet *f) {
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
    free(f->keys);
}

static void some_permits(void *context) {
    key_fleet *f = (key_fleet *)context;
    for (size_t i = 0; i < BENCH_SOME; i++) {
        const key *k = f->next;
        f->next = &f->keys[random_below(&f->random, f->count)];
        __builtin_prefetch(f->next);
        decide(f, k->text);
    }
}

void bench_clock(bench *b, const char *beside) {
    double costs[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        doorman_time start = cpu_time(), sum = 0;
        for (int j = 0; j < 100000; j++) sum += doorman_clock();
        __asm__ volatile("" : : "r"(sum));
        costs[i] = (double)(cpu_time() - start) / 100000;
    }
    bench_row(b, median(costs, ROUNDS), "ns", ANY, "beside %s: a clock read", beside);
}

static goal rate_goal(size_t count, size_t items) {
    if (items == 2 && count == 1000) return LEAST(1e6);
    if (items == 1 && count == 1000) return LEAST(4e6);
    if (items == 1 && count == 1000000) return LEAST(1.2e6);
    return ANY;
}

static void expiry_rows(bench *b, key_fleet *f, const char *name) {
    bench_row(b, f->bytes, "bytes", MOST(96), "memory for a key of permits, of %s", name);
    bench_row(b, (double)f->pause / 1e6, "ms", MOST(5), "longest pause while %s keys arrive", name);
    keys_expire(f, b);
    bench_row(b, (double)f->pause / 1e6, "ms", MOST(5), "longest pause while %s keys expire", name);
}

/* Returns the decisions a second on random keys of one limit. */
static double rate_of(bench *b, const doorman_permit_limit *limit, size_t keys) {
    key_fleet f = {.count = keys, .items = 1, .limits = limit, .limit_count = 1};
    keys_arrive(&f, b);
    double rate = bench_rate(b, some_permits, &f);
    fleet_stop(&f);
    return rate;
}

/* Writes what it costs that keys share a limit fairly. What a fair limit stores for 100,000 keys
 * does not fit into the caches, so it is compared with a limit that also stores something for each
 * key. */
static void fair_rows(bench *b) {
    bench_row(b, rate_of(b, shared_limit, 1000) / rate_of(b, fair_limit, 1000), "times", MOST(1.3),
              "time of a permit of a fair limit with 1,000 keys, relative to a limit that is not");
    double fair = rate_of(b, fair_limit, 100000);
    bench_row(b, rate_of(b, one_limit, 100000) / fair, "times", MOST(1.3),
              "the same with 100,000 keys, relative to a counter for each key");
    bench_row(b, rate_of(b, shared_limit, 100000) / fair, "times", ANY,
              "  relative to one counter for all");
}

/* ---- what other limits and other permits have, and a decision does not use ------------------- */

enum { BESIDE = 100000 }; /* override rows, or reservations */

/* Gives a limit an override row for each of many keys. No key of the fleet has a row.
 *   resource, limit   name the limit */
static void add_overrides(key_fleet *f, bench *b, const char *resource, const char *limit) {
    char text[HOLDER_ID_BYTES + 1];
    for (size_t i = 0; i < BESIDE; i++) {
        write_holder_id(text, 10 * BESIDE + i);
        const doorman_override_row row = {.resource_id = resource,
                                          .limit = limit,
                                          .key = text,
                                          .id = i + 1,
                                          .figures = {.rate = 2}};
        must(doorman_permits_set_override(f->permits, &row, NULL, f->now) == DOORMAN_OK,
             "cannot set an override");
        if (i % 1000 == 0) bench_tick(b);
    }
}

static void add_overrides_beside(key_fleet *f, bench *b) {
    add_overrides(f, b, "beside", "beside");
}

static void add_overrides_of_others(key_fleet *f, bench *b) {
    add_overrides(f, b, "api/search", "user");
}

/* Charges another limit for many keys.
 *   settle_within   0: the permits are no reservations */
static void add_permits(key_fleet *f, bench *b, doorman_time settle_within) {
    char text[HOLDER_ID_BYTES + 1];
    for (size_t i = 0; i < BESIDE; i++) {
        write_holder_id(text, 10 * BESIDE + i);
        const doorman_permit_item item = {.resource_id = "beside", .key = text, .cost = 1};
        doorman_permit_request request = {.items = &item, .item_count = 1};
        if (settle_within) {
            request.client_id = text;
            request.request_id = i + 1;
            request.settle_within = settle_within;
        }
        doorman_permit permit;
        must(doorman_permits_acquire(f->permits, &request, &permit, NULL, f->now) == DOORMAN_OK &&
                 permit.granted && !permit.reservation_id == !settle_within,
             "a permit was refused");
        if (i % 1000 == 0) bench_tick(b);
    }
}

static void add_permits_beside(key_fleet *f, bench *b) { add_permits(f, b, 0); }

static void add_reservations(key_fleet *f, bench *b) { add_permits(f, b, 3600 * DOORMAN_SECOND); }

/* Returns the time of decisions of the second fleet, divided by that of the first. The fleets
 * decide in turn, so that what disturbs one fleet disturbs the other one too. */
static double time_ratio(bench *b, key_fleet *fleets) {
    double ratios[7];
    const size_t rounds = b->quick ? 3 : sizeof ratios / sizeof *ratios;
    for (size_t i = 0; i < rounds; i++) {
        doorman_time times[2] = {0, 0};
        for (int j = 0; j < 40; j++) {
            const int which =
                (j + j / 2) % 2; /* 0, 1, 1, 0: a drift of the clock rate cancels out */
            const doorman_time start = cpu_time();
            for (int k = 0; k < 10; k++) some_permits(&fleets[which]);
            times[which] += cpu_time() - start;
        }
        ratios[i] = (double)times[1] / (double)times[0];
        bench_tick(b);
    }
    return median(ratios, rounds);
}

typedef void adds(key_fleet *f, bench *b);

static void add_nothing(key_fleet *f, bench *b) {
    (void)f;
    (void)b;
}

/* Compares decisions on 1,000 keys of two fleets that differ in what `first` and `second` add. */
static double ratio_beside(bench *b, adds *first, adds *second) {
    key_fleet fleets[2] = {{.count = 1000, .items = 1, .limits = one_limit, .limit_count = 1},
                           {.count = 1000, .items = 1, .limits = one_limit, .limit_count = 1}};
    for (int i = 0; i < 2; i++) keys_arrive(&fleets[i], b);
    first(&fleets[0], b);
    second(&fleets[1], b);
    const double ratio = time_ratio(b, fleets);
    for (int i = 0; i < 2; i++) fleet_stop(&fleets[i]);
    return ratio;
}

static void beside_rows(bench *b) {
    bench_step(b, "permits beside 100,000 override rows");
    bench_row(b, ratio_beside(b, add_nothing, add_overrides_beside), "times", MOST(1.1),
              "time of a permit, if another limit has 100,000 override rows, relative to none");
    bench_row(b, ratio_beside(b, add_nothing, add_overrides_of_others), "times", ANY,
              "  if its own limit has 100,000 override rows, for other keys");
    bench_step(b, "permits beside 100,000 reservations");
    bench_row(b, ratio_beside(b, add_permits_beside, add_reservations), "times", MOST(1.1),
              "time of a permit, if 100,000 others are open reservations, relative to permits");
}

void bench_permits(bench *b) {
    const char *names[] = {"1,000", "10,000", "100,000", "1,000,000"};
    size_t count = 1000;
    bench_clock(b, "permits");
    fprintf(b->permits, "# keys, and nanoseconds a permit: one item, two items with 3 limits\n");
    for (size_t i = 0; i < 4; i++, count *= 10) {
        fprintf(b->permits, "%zu", count);
        for (size_t items = 1; items <= 2; items++) {
            key_fleet f = {.count = count, .items = items, .limit_count = items == 1 ? 1 : 3};
            f.limits = items == 1 ? one_limit : three_limits;
            bench_step(b, "permits of %zu items, %s keys", items, names[i]);
            keys_arrive(&f, b);
            double rate = bench_rate(b, some_permits, &f);
            bench_row(b, rate, "permits/s", rate_goal(count, items), "permits, %s keys, %s",
                      names[i], items == 1 ? "a token bucket" : "2 items with 3 limits each");
            fprintf(b->permits, " %.1f", 1e9 / rate);
            if (items == 1 && i == 3) expiry_rows(b, &f, names[i]);
            fleet_stop(&f);
        }
        fprintf(b->permits, "\n");
    }
    bench_step(b, "permits of a fair limit");
    fair_rows(b);
    beside_rows(b);
}
