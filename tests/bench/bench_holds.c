/* Holds in one process on one core: 100,000 holds of 1,000 clients on 1,000 keys. A pair releases a
 * hold that is chosen at random, and acquires a new hold for the same client and key. A pause is
 * the longest time of one call, with the reading of its decisions. Memory is what malloc reports as
 * in use. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { HOLDS = 100000, CLIENTS = 1000, WAITS = 10000 };

typedef struct hold_client {
    char id[HOLDER_ID_BYTES + 1], key[HOLDER_ID_BYTES + 1];
} hold_client;

typedef struct hold_fleet {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now;
    hold_client clients[CLIENTS];
    uint64_t ids[HOLDS]; /* the hold with index i belongs to the client i % CLIENTS */
    uint64_t last_request, random;
    size_t next;        /* the index of the hold that is released next */
    doorman_time pause; /* the longest call so far */
} hold_fleet;

static doorman_config *create_config(double limit) {
    const doorman_permit_limit slots = {.name = "slots",
                                        .kind = DOORMAN_CONCURRENCY,
                                        .figures = {.limit = limit,
                                                    .time_to_live = 15 * DOORMAN_SECOND,
                                                    .queue = WAITS,
                                                    .max_wait = 5 * DOORMAN_SECOND}};
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = &slots,
                                  .limit_count = 1};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    must(doorman_config_create(&config, &options, NULL) == DOORMAN_OK,
         "cannot make a configuration");
    return config;
}

/* Asks for one unit. Returns the hold, or 0 if the permit waits. */
static uint64_t acquire(hold_fleet *f, const char *client_id, const char *key,
                        doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "transcode", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = client_id,
                                            .request_id = ++f->last_request,
                                            .max_wait = max_wait};
    doorman_permit permit;
    doorman_status status = doorman_permits_acquire(f->permits, &request, &permit, NULL, f->now);
    must(status == DOORMAN_OK && permit.granted == !max_wait && permit.pending == !!max_wait,
         "a hold was refused");
    return permit.hold_id;
}

static void release(hold_fleet *f, size_t index) {
    const doorman_hold_request request = {.client_id = f->clients[index % CLIENTS].id,
                                          .id = f->ids[index]};
    doorman_hold hold;
    doorman_status status = doorman_permits_release(f->permits, &request, &hold, NULL, f->now);
    must(status == DOORMAN_OK && !hold.gone, "a hold was lost");
}

static void advance(hold_fleet *f, doorman_time by) { f->now += by; }

/* Makes all holds. Returns the bytes of each. */
static double holds_start(hold_fleet *f) {
    f->now = 1000 * DOORMAN_SECOND;
    f->random = 1;
    for (size_t i = 0; i < CLIENTS; i++) {
        write_holder_id(f->clients[i].id, i);
        write_holder_id(f->clients[i].key, CLIENTS + i);
    }
    f->config = create_config(HOLDS / CLIENTS);
    const doorman_permits_options of = {.config = f->config, .seed = {1, 2}};
    must(doorman_permits_create(&f->permits, &of, NULL, f->now) == DOORMAN_OK,
         "cannot make permits");
    doorman_permits_set_epoch(f->permits, 1700000000 * DOORMAN_SECOND, f->now);
    double before = bytes_in_use();
    for (size_t i = 0; i < HOLDS; i++) {
        const hold_client *client = &f->clients[i % CLIENTS];
        f->ids[i] = acquire(f, client->id, client->key, 0);
    }
    return (bytes_in_use() - before) / HOLDS;
}

/* Releases and acquires holds. Time stands still, so no hold ends. */
static void some_pairs(void *context) {
    hold_fleet *f = (hold_fleet *)context;
    for (size_t i = 0; i < BENCH_SOME; i++) {
        size_t index = f->next;
        const hold_client *client = &f->clients[index % CLIENTS];
        f->next = (size_t)random_below(&f->random, HOLDS);
        __builtin_prefetch(&f->ids[f->next]);
        release(f, index);
        f->ids[index] = acquire(f, client->id, client->key, 0);
    }
}

/* Updates the permits until nothing is due. Takes all decisions. */
static void settle(hold_fleet *f) {
    doorman_permit permit;
    uint64_t ticket = 0;
    for (size_t i = 0; i < HOLDS && doorman_permits_due(f->permits) <= f->now; i++) {
        doorman_time start = cpu_time();
        doorman_permits_update(f->permits, f->now);
        while (doorman_permits_next_decision(f->permits, &ticket, &permit)) {
        }
        note_pause(&f->pause, start);
    }
}

/* Lets WAITS permits of many clients wait for one key, and time out together. */
static void waits_time_out(hold_fleet *f) {
    for (size_t i = 0; i < WAITS; i++) {
        doorman_time start = cpu_time();
        must(!acquire(f, f->clients[i % CLIENTS].id, f->clients[0].key, 5 * DOORMAN_SECOND),
             "a permit does not wait");
        note_pause(&f->pause, start);
    }
    advance(f, 5 * DOORMAN_SECOND);
    settle(f);
    doorman_permits_info info;
    doorman_permits_read(f->permits, &info);
    must(info.wait_count == 0 && info.hold_count == HOLDS, "waits do not time out");
}

static void holds_end(hold_fleet *f) {
    f->pause = 0;
    advance(f, 15 * DOORMAN_SECOND);
    settle(f);
    doorman_permits_info info;
    doorman_permits_read(f->permits, &info);
    must(info.hold_count == 0, "holds do not end");
}

static void reload(hold_fleet *f) {
    doorman_config *config = create_config(HOLDS / CLIENTS + 1);
    f->pause = 0;
    doorman_time start = cpu_time();
    must(doorman_permits_configure(f->permits, config) == DOORMAN_OK, "cannot reload");
    note_pause(&f->pause, start);
    doorman_config_destroy(f->config);
    f->config = config;
}

void bench_holds(bench *b) {
    static hold_fleet fleet;
    hold_fleet *f = &fleet;
    bench_step(b, "holds");
    bench_clock(b, "holds");
    double bytes = holds_start(f);
    bench_row(b, bench_rate(b, some_pairs, f), "pairs/s", LEAST(1e6),
              "acquire and release, 100,000 holds in force");
    bench_row(b, bytes, "bytes", ANY, "  memory for a hold");
    f->pause = 0;
    waits_time_out(f);
    bench_row(b, (double)f->pause / 1e6, "ms", MOST(5),
              "longest pause while 10,000 permits wait and time out");
    reload(f);
    bench_row(b, (double)f->pause / 1e6, "ms", ANY, "  a changed configuration");
    holds_end(f);
    bench_row(b, (double)f->pause / 1e6, "ms", MOST(5),
              "longest pause while 100,000 holds end together");
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
}
