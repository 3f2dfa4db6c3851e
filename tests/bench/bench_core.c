/* Renewals in one process on one core. The holders of one FAIR_SHARE resource want about a fourth
 * more than its capacity, so each change makes the server search for the fill level. Memory is what
 * malloc reports as in use, with its own headers.
 *
 * Only the server's work is measured. A real request comes from the network and is therefore in the
 * cache. Here each holder is one cache line, which is prefetched while the previous holder is
 * served. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = 3 };
static const double parts[PARTS] = {0, 0.1, 1};
static const char *const part_names[PARTS] = {"none change", "a tenth change", "all change"};

/* What a client sends: 64 bytes, one cache line. */
typedef struct holder {
    double wants, capacity;
    uint64_t lease_id; /* 0: no lease */
    char id[HOLDER_ID_BYTES + 1];
} holder;

_Static_assert(sizeof(holder) == 64, "a holder is not one cache line");

typedef struct fleet {
    doorman_config *config;
    doorman_server *server;
    doorman_time now;
    holder *holders;
    holder *next; /* is served next */
    size_t count;
    double changing; /* the part of the renewals that changes what is wanted */
    double bytes;    /* memory for each holder */
    uint64_t random;
} fleet;

/* Renews the lease of one holder, which names its last lease. */
static void renew(fleet *f, holder *h) {
    doorman_demand demand = {h->wants, 1, 1};
    doorman_lease has = {.id = h->lease_id, .node = "root", .capacity = h->capacity};
    doorman_capacity_request item = {
        .resource_id = "db/orders", .has = has, .wants = &demand, .wants_count = 1};
    doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = h->id, .items = &item, .item_count = 1};
    doorman_response response;
    must(doorman_server_handle(f->server, &request, &response, NULL, f->now) == DOORMAN_OK,
         "a request was refused");
    h->lease_id = response.items[0].gets.id;
    h->capacity = response.items[0].gets.capacity;
}

static void make_server(fleet *f) {
    doorman_template all = {.identifier_glob = "*", .capacity = 40.0 * (double)f->count};
    all.has_algorithm = all.algorithm.has_learning_mode_duration = true;
    all.algorithm.has_minimum_interval = true;
    doorman_config_options options = {.templates = &all, .template_count = 1};
    must(doorman_config_create(&f->config, &options, NULL) == DOORMAN_OK,
         "cannot make a configuration");
    doorman_server_options node = {.node = "root", .config = f->config, .seed = {1, 2}};
    must(doorman_server_create(&f->server, &node, NULL, 0) == DOORMAN_OK, "cannot make a server");
    doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    must(doorman_server_set_master(f->server, &mastership, 0) == DOORMAN_OK,
         "cannot make the server master");
}

static void fleet_start(fleet *f, bench *b, size_t count) {
    *f = (fleet){.count = count, .random = 1};
    f->holders = aligned_alloc(sizeof *f->holders, count * sizeof *f->holders);
    must(f->holders, "out of memory");
    memset(f->holders, 0, count * sizeof *f->holders);
    make_server(f);
    double before = bytes_in_use();
    for (size_t i = 0; i < count; i++) {
        holder *h = &f->holders[i];
        write_holder_id(h->id, i);
        h->wants = 100 * random_unit(&f->random);
        renew(f, h);
        if (i % 1000 == 0) bench_tick(b);
    }
    f->next = f->holders;
    f->bytes = (bytes_in_use() - before) / (double)count;
}

static void fleet_stop(fleet *f) {
    doorman_server_destroy(f->server);
    doorman_config_destroy(f->config);
    free(f->holders);
}

static void some_renewals(void *context) {
    fleet *f = (fleet *)context;
    for (size_t i = 0; i < BENCH_SOME; i++) {
        holder *h = f->next;
        f->next = &f->holders[random_below(&f->random, f->count)];
        __builtin_prefetch(f->next);
        if (random_unit(&f->random) < f->changing) h->wants = 100 * random_unit(&f->random);
        f->now += 1000;
        renew(f, h);
    }
}

static goal goal_of(size_t count, size_t part) {
    if (count == 10000 && part == 2) return LEAST(1e6);
    if (count == 1000000 && part == 1) return LEAST(1.2e6);
    if (count == 1000000 && part == 2) return LEAST(300000);
    return ANY;
}

void bench_renewals(bench *b) {
    const char *names[] = {"1,000", "10,000", "100,000", "1,000,000"};
    size_t count = 1000;
    if (b->large_pages) bench_step(b, "in one process, with memory in pages of 2 MiB");
    fprintf(b->cost, "# holders, and nanoseconds a renewal: none, a tenth, all change\n");
    for (size_t i = 0; i < 4; i++, count *= 10) {
        fleet f;
        bench_step(b, "renewals in one process, %s holders", names[i]);
        fleet_start(&f, b, count);
        fprintf(b->cost, "%zu", count);
        for (size_t part = 0; part < PARTS; part++) {
            f.changing = parts[part];
            double rate = bench_rate(b, some_renewals, &f);
            bench_row(b, rate, "renewals/s", goal_of(count, part), "%s, %s holders, %s",
                      b->large_pages ? "large pages" : "one process", names[i], part_names[part]);
            fprintf(b->cost, " %.1f", 1e9 / rate);
        }
        fprintf(b->cost, "\n");
        if (i == 3) {
            bench_row(b, f.bytes, "bytes", MOST(240), "memory for a holder, of %s", names[i]);
        }
        fleet_stop(&f);
    }
}
