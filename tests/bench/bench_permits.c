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
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = f->limits,
                                  .limit_count = f->limit_count};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
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

/* All counters are fresh again, and are removed by updates and by decisions. */
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

/* What it costs that 1,000 keys share a limit fairly. */
static void fair_row(bench *b) {
    double rates[2];
    for (int i = 0; i < 2; i++) {
        key_fleet f = {.count = 1000, .items = 1, .limit_count = 1};
        f.limits = i == 0 ? shared_limit : fair_limit;
        keys_arrive(&f, b);
        rates[i] = bench_rate(b, some_permits, &f);
        fleet_stop(&f);
    }
    bench_row(b, rates[0] / rates[1], "times", MOST(1.3),
              "time of a permit of a fair limit with 1,000 keys, relative to a limit that is not");
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
    fair_row(b);
}
