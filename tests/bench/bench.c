/* How fast the library is, in one process on one core: `make bench`.
 *
 * The machine is shared and noisy, so what can be is measured beside something that everybody
 * knows, in the same run: a try of a limiter beside a read of the clock and a compare-and-swap. Of
 * several rounds the fastest counts, for all alike. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG /* for doorman_clock */
#include "doorman.h"

#include <stdlib.h>

#define ID_BYTES 32

typedef struct fleet {
    doorman_config *config;
    doorman_server *server;
    doorman_time now;
    size_t count;
    char (*ids)[ID_BYTES + 1];
    doorman_lease *has;
    double *wants;
    uint64_t random;
} fleet;

static void must(bool done) {
    if (done) return;
    fprintf(stderr, "bench: out of memory, or refused\n");
    exit(1);
}

/* One renewal of one holder, which names its last lease. */
static void renew(fleet *f, size_t i) {
    doorman_demand demand = {f->wants[i], 1, 1};
    doorman_ask ask = {
        .resource_id = "db/orders", .has = f->has[i], .wants = &demand, .wants_count = 1};
    doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = f->ids[i], .asks = &ask, .ask_count = 1};
    doorman_response response;
    must(doorman_server_handle(f->server, &request, &response, NULL, f->now) == DOORMAN_OK);
    f->has[i] = response.answers[0].gets;
}

static void fleet_start(fleet *f, size_t count) {
    doorman_template all = {.identifier_glob = "*", .capacity = 50.0 * (double)count};
    all.has_algorithm = all.algorithm.has_learning_mode_duration = true;
    all.algorithm.has_minimum_interval = true;
    doorman_config_options options = {.templates = &all, .template_count = 1};
    *f = (fleet){.count = count, .random = 1};
    must(doorman_config_create(&f->config, &options, NULL) == DOORMAN_OK);
    doorman_server_options node = {.node = "root", .config = f->config, .seed = {1, 2}};
    must(doorman_server_create(&f->server, &node, NULL, 0) == DOORMAN_OK);
    doorman_mastership mine = {.address = "here", .until = DOORMAN_NEVER};
    must(doorman_server_set_master(f->server, &mine, 0) == DOORMAN_OK);
    f->ids = calloc(count, sizeof *f->ids);
    f->has = calloc(count, sizeof *f->has);
    f->wants = calloc(count, sizeof *f->wants);
    must(f->ids && f->has && f->wants);
    for (size_t i = 0; i < count; i++) {
        snprintf(f->ids[i], sizeof f->ids[i], "web-%016zx-%011zu", i * 2654435761u, i);
        f->wants[i] = 100 * doorman__random_unit(&f->random);
        renew(f, i);
    }
}

static void fleet_stop(fleet *f) {
    doorman_server_destroy(f->server);
    doorman_config_destroy(f->config);
    free(f->ids);
    free(f->has);
    free(f->wants);
}

/* Renewals a second, by holders chosen at random, of which a part wants something else. */
static double renewals(fleet *f, double changing) {
    enum { ROUNDS = 3 };
    size_t count = f->count < 200000 ? 200000 : f->count;
    doorman_time best = DOORMAN_NEVER;
    for (int round = 0; round < ROUNDS; round++) {
        doorman_time start = doorman_clock();
        for (size_t k = 0; k < count; k++) {
            size_t i = (size_t)(doorman__random(&f->random) >> 11) % f->count;
            if (doorman__random_unit(&f->random) < changing) {
                f->wants[i] = 100 * doorman__random_unit(&f->random);
            }
            f->now += 1000;
            renew(f, i);
        }
        best = doorman__earlier(best, doorman_clock() - start);
    }
    return (double)count * 1e9 / (double)best;
}

typedef enum act { CLOCK, CLOCK_AND_SWAP, TRY_ALLOWED, TRY_REFUSED } act;

/* Nanoseconds that one act takes. */
static double cost(act what) {
    enum { COUNT = 2000000, ROUNDS = 5 };
    doorman_time best = DOORMAN_NEVER;
    doorman_rate rate;
    uint64_t word = 0, sum = 0;
    must(doorman_rate_init(&rate, what == TRY_ALLOWED ? 1e12 : 1e-3, 0, doorman_clock()) ==
         DOORMAN_OK);
    for (int round = 0; round < ROUNDS; round++) {
        doorman_time start = doorman_clock();
        for (int i = 0; i < COUNT; i++) {
            doorman_time now = doorman_clock();
            if (what == CLOCK) sum += (uint64_t)now;
            if (what == CLOCK_AND_SWAP) {
                uint64_t old = __atomic_load_n(&word, __ATOMIC_RELAXED);
                sum += __atomic_compare_exchange_n(&word, &old, (uint64_t)now, true,
                                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED);
            }
            if (what >= TRY_ALLOWED) sum += doorman_rate_try(&rate, 1, now) == DOORMAN_ALLOWED;
        }
        best = doorman__earlier(best, doorman_clock() - start);
    }
    __asm__ volatile("" : : "r"(sum)); /* is used, so that nothing of it is left out */
    return (double)best / COUNT;
}

int main(void) {
    printf("renewals a second of one FAIR_SHARE resource, one core; a part of them wants more or "
           "less\n%10s %14s %14s %14s\n",
           "holders", "none", "a tenth", "all");
    for (size_t count = 1000; count <= 1000000; count *= 10) {
        fleet f;
        fleet_start(&f, count);
        printf("%10zu", count);
        for (int part = 0; part < 3; part++) {
            const double parts[] = {0, 0.1, 1};
            printf(" %14.0f", renewals(&f, parts[part]));
            fflush(stdout);
        }
        printf("\n");
        fleet_stop(&f);
    }
    double clock = cost(CLOCK), swap = cost(CLOCK_AND_SWAP);
    double allowed = cost(TRY_ALLOWED), refused = cost(TRY_REFUSED);
    printf("\na limiter's try, one thread, the clock read included\n");
    printf("  allowed  %6.1f ns   %.2f of a clock read and a compare-and-swap (%.1f ns)\n", allowed,
           allowed / swap, swap);
    printf("  refused  %6.1f ns   %.2f of a clock read (%.1f ns)\n", refused, refused / clock,
           clock);
    return 0;
}
