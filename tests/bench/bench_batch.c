/* Messages of 100 permits in one process on one core: what a server does with a message after it is
 * parsed and before the response is written. Keys have 32 bytes and are chosen at random. The limit
 * grants every permit.
 *
 * A real key comes from the network and is therefore in the cache. Here each key is one cache line,
 * which is prefetched while the previous message is decided. */
#include "bench.h"

#include <stdlib.h>

enum { BATCH = 100 };

typedef struct key {
    char text[64];
} key;

/* The permits of a message, each of one item. */
typedef struct batch {
    doorman_permit_item items[BATCH];
    doorman_permit_request permits[BATCH];
} batch;

typedef struct batch_fleet {
    doorman_config *config;
    doorman_server *server;
    doorman_time now;
    key *keys;
    size_t count;
    batch batches[2]; /* while one is decided, the keys of the other one are loaded */
    batch *next;      /* is decided next */
    uint64_t random;
} batch_fleet;

static void make_server(batch_fleet *f) {
    static const doorman_permit_limit limit = {
        .name = "user", .kind = DOORMAN_TOKEN_BUCKET, .figures = {.rate = 1, .size = 1e6}};
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = &limit,
                                  .limit_count = 1};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    must(doorman_config_create(&f->config, &options, NULL) == DOORMAN_OK,
         "cannot make a configuration");
    const doorman_server_options node = {.node = "root", .config = f->config, .seed = {1, 2}};
    must(doorman_server_create(&f->server, &node, NULL, 0) == DOORMAN_OK, "cannot make a server");
    doorman_server_set_epoch(f->server, 1700000000 * DOORMAN_SECOND, 0);
    const doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    must(doorman_server_set_master(f->server, &mastership, 0) == DOORMAN_OK,
         "cannot make the server master");
}

static void decide(batch_fleet *f, const batch *permits) {
    const doorman_request request = {.method = DOORMAN_ACQUIRE,
                                     .holder_id = "bench",
                                     .permits = permits->permits,
                                     .permit_count = BATCH};
    doorman_response response;
    f->now += 1000 * BATCH;
    must(doorman_server_handle(f->server, &request, &response, NULL, f->now) == DOORMAN_OK,
         "a message was refused");
    must(response.permits[0].granted && response.permits[BATCH - 1].granted,
         "a permit was refused");
}

static void choose_key(batch_fleet *f, batch *permits, size_t index, size_t chosen) {
    permits->items[index] =
        (doorman_permit_item){.resource_id = "api/search", .key = f->keys[chosen].text, .cost = 1};
    permits->permits[index] =
        (doorman_permit_request){.items = &permits->items[index], .item_count = 1};
    __builtin_prefetch(&f->keys[chosen]);
}

static void choose_keys(batch_fleet *f, batch *permits) {
    for (size_t i = 0; i < BATCH; i++) {
        choose_key(f, permits, i, random_below(&f->random, f->count));
    }
}

static void fleet_start(batch_fleet *f, bench *b, size_t count) {
    *f = (batch_fleet){.count = count, .random = 1, .now = 1000 * DOORMAN_SECOND};
    f->keys = aligned_alloc(sizeof *f->keys, count * sizeof *f->keys);
    must(f->keys && count % BATCH == 0, "out of memory");
    for (size_t i = 0; i < count; i++) write_holder_id(f->keys[i].text, i);
    make_server(f);
    for (size_t i = 0; i < count; i += BATCH) {
        for (size_t j = 0; j < BATCH; j++) choose_key(f, &f->batches[0], j, i + j);
        decide(f, &f->batches[0]);
        bench_tick(b);
    }
    f->next = &f->batches[0];
}

static void fleet_stop(batch_fleet *f) {
    doorman_server_destroy(f->server);
    doorman_config_destroy(f->config);
    free(f->keys);
}

static void some_permits(void *context) {
    batch_fleet *f = (batch_fleet *)context;
    for (size_t i = 0; i < BENCH_SOME / BATCH; i++) {
        batch *next = f->next == &f->batches[0] ? &f->batches[1] : &f->batches[0];
        choose_keys(f, next);
        decide(f, f->next);
        f->next = next;
    }
}

void bench_batch(bench *b) {
    const char *names[] = {"1,000", "1,000,000"};
    static batch_fleet f;
    for (size_t i = 0; i < 2; i++) {
        bench_step(b, "permits in messages of %d, %s keys", BATCH, names[i]);
        fleet_start(&f, b, i == 0 ? 1000 : 1000000);
        bench_row(b, bench_rate(b, some_permits, &f), "permits/s", i == 0 ? ANY : LEAST(2e6),
                  "permits, %s keys, in messages of %d", names[i], BATCH);
        fleet_stop(&f);
    }
}
