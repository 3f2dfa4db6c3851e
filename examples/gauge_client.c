/* A limit on how many transactions run at once on a shared database (a gauge).
 *
 *     make
 *     build/doorman_server --config config.example.json &
 *     build/examples/gauge_client
 *
 * Eight threads do transactions. Each thread waits for a unit before a transaction, and releases
 * the unit after the transaction. Start the program several times. While the server runs, all
 * programs together never run more transactions at once than the capacity of db/orders/transactions
 * in config.example.json. Without a server each program uses the safe capacity.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { WORKERS = 8 };

typedef struct work {
    doorman_agent *agent;
    doorman_resource *resource;
    atomic_bool over;
    atomic_int transactions;
} work;

static void sleep_for(doorman_time duration) {
    struct timespec time = {.tv_sec = (time_t)(duration / DOORMAN_SECOND),
                            .tv_nsec = (long)(duration % DOORMAN_SECOND)};
    nanosleep(&time, NULL);
}

static void *do_transactions(void *argument) {
    work *w = argument;
    while (!atomic_load(&w->over)) {
        if (doorman_resource_wait(w->resource, 1, DOORMAN_SECOND / 10) == DOORMAN_OK) {
            sleep_for(DOORMAN_SECOND / 50); /* simulates begin, a few statements, commit */
            atomic_fetch_add(&w->transactions, 1);
            doorman_resource_release(w->resource, 1);
        }
    }
    return NULL;
}

/* Prints a line every second, for ten seconds. */
static void watch(work *w) {
    bool is_told = false;
    for (int second = 1; second <= 10; second++) {
        sleep_for(DOORMAN_SECOND);
        doorman_resource_info info;
        doorman_resource_read(w->resource, &info);
        if (info.gauge_is_divided && !is_told) {
            fputs("gauge_client: leases are not of whole units, and a part of a unit is of no use; "
                  "the resource's template needs \"whole\": true\n",
                  stderr);
            is_told = true;
        }
        printf("%2d s: %d transactions done, %g in use, %s of %g at once\n", second,
               atomic_exchange(&w->transactions, 0), info.in_use,
               info.leased ? "a lease" : "without a lease, the safe capacity", info.capacity);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: gauge_client [ADDRESS]\n");
        return 0;
    }
    const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_resource_options database = {.resource_id = "db/orders/transactions",
                                         .kind = DOORMAN_GAUGE,
                                         .has_safe_capacity = true,
                                         .safe_capacity = 1};
    doorman_error error = {0};
    work w = {0};
    if (doorman_agent_start(&w.agent, &options, &error) != DOORMAN_OK ||
        doorman_resource_open(&w.resource, w.agent, &database, &error) != DOORMAN_OK) {
        fprintf(stderr, "gauge_client: %s\n", error.text);
        doorman_agent_stop(w.agent);
        return 1;
    }

    pthread_t workers[WORKERS];
    int started = 0;
    while (started < WORKERS && !pthread_create(&workers[started], NULL, do_transactions, &w)) {
        started++;
    }
    watch(&w);
    atomic_store(&w.over, true);
    for (int i = 0; i < started; i++) pthread_join(workers[i], NULL);
    doorman_agent_stop(w.agent);
    return 0;
}
