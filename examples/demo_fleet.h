/* The clients of `make demo` and `make demo TREE=1`, and measurements.
 *
 * Each client has its own agent, connection and thread. The thread tries to do as many queries a
 * second as the client wants, and waits for the limiter before each query. "does" counts the
 * queries that passed the limiter. The demos check all the time whether the sum of the leases, or
 * of the queries, exceeds the capacity.
 */
#ifndef DOORMAN_EXAMPLES_DEMO_FLEET_H
#define DOORMAN_EXAMPLES_DEMO_FLEET_H

#include "demo.h"

#define RESOURCE "db/orders"
#define BURST (DOORMAN_SECOND / 10)

enum { CLIENTS_MAX = 16 };

static double larger(double a, double b) { return a > b ? a : b; }

/* ---- the clients ----------------------------------------------------------------------------- */

typedef struct client {
    const char *name;
    int color;            /* ANSI, 1 to 6 */
    const server *server; /* the server that the client asks */
    atomic_int wants;     /* queries a second; 0: the client has left */
    atomic_ulong done;
    doorman_agent *agent;
    doorman_resource *resource;
    pthread_t thread;
    double has, does;
} client;

/* Tries to do a query every 1 / wants seconds. After a delay the thread skips queries that are late
 * by more than half a burst. */
static void *client_main(void *argument) {
    client *c = argument;
    doorman_time next = doorman_clock();
    for (int wants; (wants = atomic_load(&c->wants)) > 0;) {
        sleep_until(next);
        if (doorman_resource_wait(c->resource, 1, TICK) == DOORMAN_OK) {
            atomic_fetch_add(&c->done, 1);
        }
        doorman_time backlog = doorman_clock() - BURST / 2;
        next += DOORMAN_SECOND / wants;
        if (next < backlog) next = backlog;
    }
    return NULL;
}

/* The fallback is pessimistic. A client without a lease does nothing, so leases cover all use. */
static bool client_join(client *c, int wants) {
    const char *addresses[] = {c->server->address};
    doorman_client_options options = {
        .addresses = addresses, .address_count = 1, .request_timeout = DOORMAN_SECOND};
    doorman_resource_options resource = {
        .resource_id = RESOURCE, .wants = wants, .burst = BURST, .fallback = DOORMAN_PESSIMISTIC};
    doorman_error error = {0};
    atomic_store(&c->wants, wants);
    if (doorman_agent_start(&c->agent, &options, &error) == DOORMAN_OK &&
        doorman_resource_open(&c->resource, c->agent, &resource, &error) == DOORMAN_OK &&
        pthread_create(&c->thread, NULL, client_main, c) == 0) {
        return true;
    }
    fprintf(stderr, "demo: %s cannot start: %s\n", c->name, error.text);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
    return false;
}

/* Ends the thread first, because an agent that has stopped must not be used. */
static void client_leave(client *c) {
    atomic_store(&c->wants, 0);
    if (!c->agent) return;
    pthread_join(c->thread, NULL);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
}

/* Changes what a client wants. A client that has not joined joins. A client that wants 0 leaves. */
static bool client_set_wants(client *c, int wants) {
    if (wants == 0) {
        client_leave(c);
        return true;
    }
    if (!c->agent) return client_join(c, wants);
    atomic_store(&c->wants, wants);
    return doorman_resource_set_wants(c->resource, wants) == DOORMAN_OK;
}

/* ---- what is measured ------------------------------------------------------------------------ */

typedef struct sample {
    doorman_time at;
    unsigned long done[CLIENTS_MAX], total;
} sample;

typedef struct client_fleet {
    double capacity;
    int count, settle_seconds; /* use counts after wants reach the capacity for this time */
    client clients[CLIENTS_MAX];
    sample samples[SAMPLES]; /* the last second; a tick uses samples[tick % SAMPLES] */
    int full_ticks;          /* the clients have wanted at least the capacity for this many ticks */
    double used, usable;
    double peak_leased, peak_use; /* as parts of what is allowed; above 1 is a failure */
} client_fleet;

static void fleet_read_leases(const client_fleet *all, double leases[CLIENTS_MAX]) {
    for (int i = 0; i < all->count; i++) {
        const client *c = &all->clients[i];
        doorman_resource_info info = {0};
        if (c->agent) doorman_resource_read(c->resource, &info);
        leases[i] = info.leased ? info.capacity : 0;
    }
}

/* Leases can change while they are read one after the other. If two readings are equal, all leases
 * were in force at the same moment, between the two readings. */
static bool fleet_read_leases_of_one_moment(const client_fleet *all, double leases[CLIENTS_MAX]) {
    for (int tries = 0; tries < 100; tries++) {
        double again[CLIENTS_MAX] = {0};
        memset(leases, 0, sizeof again);
        fleet_read_leases(all, leases);
        fleet_read_leases(all, again);
        if (!memcmp(leases, again, sizeof again)) return true;
    }
    return false;
}

static double fleet_wants(const client_fleet *all) {
    double sum = 0;
    for (int i = 0; i < all->count; i++) sum += atomic_load(&all->clients[i].wants);
    return sum;
}

static void fleet_sample_leases(client_fleet *all) {
    double leases[CLIENTS_MAX], sum = 0;
    bool together = fleet_read_leases_of_one_moment(all, leases);
    for (int i = 0; i < all->count; i++) {
        all->clients[i].has = leases[i];
        sum += leases[i];
    }
    if (together) all->peak_leased = larger(all->peak_leased, sum / all->capacity);
}

/* Checks rule L1 for the time since the oldest sample, about a second. The queries must not exceed
 * the capacity for that time plus one burst. A thread counts a query just after the query has
 * passed the limiter. So the check allows one more query of each client. */
static void fleet_sample_queries(client_fleet *all, int tick) {
    sample *newest = &all->samples[tick % SAMPLES];
    const sample *last = &all->samples[(tick + SAMPLES - 1) % SAMPLES];
    const sample *oldest = &all->samples[(tick + 1) % SAMPLES];
    newest->at = doorman_clock();
    newest->total = 0;
    for (int i = 0; i < all->count; i++) {
        newest->done[i] = atomic_load(&all->clients[i].done);
        newest->total += newest->done[i];
    }
    double seconds = (double)(newest->at - oldest->at) / (double)DOORMAN_SECOND;
    for (int i = 0; i < all->count; i++) {
        all->clients[i].does = (double)(newest->done[i] - oldest->done[i]) / seconds;
    }
    double burst = (double)BURST / (double)DOORMAN_SECOND;
    double allowed = all->capacity * (seconds + burst) + all->count;
    all->peak_use = larger(all->peak_use, (double)(newest->total - oldest->total) / allowed);

    all->full_ticks = fleet_wants(all) >= all->capacity ? all->full_ticks + 1 : 0;
    if (all->full_ticks <= all->settle_seconds * TICKS_A_SECOND) return;
    all->used += (double)(newest->total - last->total);
    all->usable += all->capacity * (double)(newest->at - last->at) / (double)DOORMAN_SECOND;
}

static void fleet_start(client_fleet *all, doorman_time now) {
    for (int i = 0; i < SAMPLES; i++) all->samples[i].at = now - DOORMAN_SECOND;
}

static void fleet_leave(client_fleet *all) {
    for (int i = 0; i < all->count; i++) client_leave(&all->clients[i]);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Prints the last line. Returns the exit code. */
static int fleet_show_result(const client_fleet *all) {
    if (interrupted) {
        printf("Stopped.\n");
        return 130;
    }
    if (all->usable <= 0) {
        printf("The demo ended early.\n");
        return 1;
    }
    /* The tolerance is for rounding errors in sums of doubles. */
    bool kept = all->peak_leased <= 1 + 1e-9 && all->peak_use <= 1;
    printf("%.1f %% of the capacity was in use while more was wanted than there is",
           100 * all->used / all->usable);
    if (kept) {
        printf(", and it was never exceeded.\n");
    } else {
        printf(". IT WAS EXCEEDED: up to %.4f %% in leases, %.2f %% of the queries allowed.\n",
               100 * all->peak_leased, 100 * all->peak_use);
    }
    return kept ? 0 : 1;
}

#endif
