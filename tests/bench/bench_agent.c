/* Permits through an agent: 64 threads of one process ask for one permit after the other. The
 * server and this process share the machine, as the echo and its load do. */
#include "bench.h"

#include <pthread.h>

enum { THREADS = 64, ROUNDS_MAX = 48 };
#define ROUND_LENGTH (DOORMAN_SECOND / 10)

typedef struct asker {
    doorman_agent *agent;
    const bool *stops; /* atomic */
    const bool *runs;  /* atomic; false: the thread pauses */
    uint64_t *granted; /* atomic */
    char key[HOLDER_ID_BYTES + 1];
    pthread_t thread;
} asker;

static void *asker_main(void *context) {
    asker *self = context;
    const doorman_permit_item item = {.resource_id = "permits/64", .key = self->key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    while (!__atomic_load_n(self->stops, __ATOMIC_RELAXED)) {
        doorman_acquired acquired;
        if (!__atomic_load_n(self->runs, __ATOMIC_RELAXED)) {
            const struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
            continue;
        }
        doorman_status status =
            doorman_agent_acquire(self->agent, &request, TIMEOUT, &acquired, NULL);
        must(status == DOORMAN_OK && acquired.decided_by == DOORMAN_BY_SERVER && acquired.granted,
             "a permit was not granted");
        __atomic_fetch_add(self->granted, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Lets the threads run for a round. Returns permits a second. */
static double run_askers(bool *runs, const uint64_t *granted) {
    const struct timespec round = {.tv_nsec = (long)ROUND_LENGTH};
    const struct timespec drain = {.tv_nsec = (long)(ROUND_LENGTH / 10)};
    __atomic_store_n(runs, true, __ATOMIC_RELAXED);
    nanosleep(&drain, NULL); /* until all threads run */
    uint64_t before = __atomic_load_n(granted, __ATOMIC_RELAXED);
    doorman_time start = doorman_clock();
    nanosleep(&round, NULL);
    double count = (double)(__atomic_load_n(granted, __ATOMIC_RELAXED) - before);
    double rate = count * 1e9 / (double)(doorman_clock() - start);
    __atomic_store_n(runs, false, __ATOMIC_RELAXED);
    nanosleep(&drain, NULL);
    return rate;
}

typedef struct comparison {
    double permits, requests, ratio; /* medians; a second, a second, permits for each request */
} comparison;

static comparison compare_rounds(bench *b, load *echo, bool *runs, const uint64_t *granted) {
    double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], ratios[ROUNDS_MAX];
    size_t rounds = b->quick ? 12 : ROUNDS_MAX;
    run_askers(runs, granted);
    load_round(echo, ROUND_LENGTH);
    for (size_t i = 0; i < rounds; i++) {
        ours[i] = run_askers(runs, granted);
        theirs[i] = load_round(echo, ROUND_LENGTH);
        ratios[i] = ours[i] / theirs[i];
        bench_tick(b);
    }
    return (comparison){median(ours, rounds), median(theirs, rounds), median(ratios, rounds)};
}

static void report(bench *b, const comparison *c, doorman_agent *agent) {
    doorman_agent_info info;
    must(doorman_agent_read_info(agent, &info) == DOORMAN_OK, "cannot read an agent");
    bench_row(b, c->permits, "permits/s", ANY, "permits through an agent, 64 threads");
    bench_row(b, (double)info.permits.granted / (double)info.permits.messages, "permits", ANY,
              "  in a message");
    bench_row(b, c->requests, "requests/s", ANY, "  an nng echo of one permit, 16 connections");
    bench_row(b, c->ratio, "times", LEAST(5), "  permits for each request of the echo");
}

/* A caller without a thread: each decision asks for the next permit. */
typedef struct chain {
    doorman_agent *agent;
    const bool *stops; /* atomic */
    uint64_t *granted; /* atomic */
    size_t *running;   /* atomic */
    char key[HOLDER_ID_BYTES + 1];
} chain;

static void chain_on_decided(void *context, doorman_status status,
                             const doorman_acquired *acquired);

static void chain_next(chain *self) {
    const doorman_permit_item item = {.resource_id = "permits/64", .key = self->key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    must(doorman_agent_acquire_async(self->agent, &request, TIMEOUT, chain_on_decided, self,
                                     NULL) == DOORMAN_OK,
         "a permit was not asked");
}

static void chain_on_decided(void *context, doorman_status status,
                             const doorman_acquired *acquired) {
    chain *self = context;
    must(status == DOORMAN_OK && acquired->granted, "a permit was not granted");
    __atomic_fetch_add(self->granted, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(self->stops, __ATOMIC_RELAXED)) {
        __atomic_fetch_sub(self->running, 1, __ATOMIC_RELAXED);
    } else {
        chain_next(self);
    }
}

static void measure_callbacks(bench *b, doorman_agent *agent) {
    static chain chains[THREADS];
    const struct timespec length = {.tv_sec = b->quick ? 1 : 3};
    bool stops = false;
    uint64_t granted = 0;
    size_t running = THREADS;
    for (size_t i = 0; i < THREADS; i++) {
        chains[i] =
            (chain){.agent = agent, .stops = &stops, .granted = &granted, .running = &running};
        write_holder_id(chains[i].key, i);
        chain_next(&chains[i]);
    }
    doorman_time start = doorman_clock();
    uint64_t before = __atomic_load_n(&granted, __ATOMIC_RELAXED);
    nanosleep(&length, NULL);
    double count = (double)(__atomic_load_n(&granted, __ATOMIC_RELAXED) - before);
    bench_row(b, count * 1e9 / (double)(doorman_clock() - start), "permits/s", ANY,
              "  64 callbacks in place of the threads");
    __atomic_store_n(&stops, true, __ATOMIC_RELAXED);
    const struct timespec pause = {.tv_nsec = 1000000};
    while (__atomic_load_n(&running, __ATOMIC_RELAXED) > 0) nanosleep(&pause, NULL);
}

/* One thread alone: the time from the call to the decision. */
static void measure_alone(bench *b, doorman_agent *agent) {
    enum { CALLS = 2000 };
    static double times[CALLS];
    const doorman_permit_item item = {.resource_id = "permits/1", .key = "alone", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    for (int i = 0; i < CALLS; i++) {
        doorman_acquired acquired;
        doorman_time start = doorman_clock();
        doorman_status status = doorman_agent_acquire(agent, &request, TIMEOUT, &acquired, NULL);
        must(status == DOORMAN_OK && acquired.granted, "a permit was not granted");
        times[i] = (double)(doorman_clock() - start) / 1e3;
    }
    bench_row(b, median(times, CALLS), "us", ANY, "  one thread alone: time of a permit");
}

void bench_agent(bench *b) {
    static asker askers[THREADS];
    bool stops = false, runs = false;
    uint64_t granted = 0;
    char address[64];
    const char *addresses[] = {address};
    peer *server = peer_server(b), *echo = peer_echo();
    load_options options = {.to = echo, .echo = true, .connections = 16, .in_flight = 1};
    options.permits = true;
    options.holders = 64;
    options.resource = "permits/64";
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", (unsigned)server->port);
    const doorman_client_options client = {.addresses = addresses, .address_count = 1};
    doorman_agent *agent = NULL;
    bench_step(b, "permits through an agent, and an echo");
    must(doorman_agent_start(&agent, &client, NULL) == DOORMAN_OK, "cannot start an agent");
    for (size_t i = 0; i < THREADS; i++) {
        askers[i] = (asker){.agent = agent, .stops = &stops, .runs = &runs, .granted = &granted};
        write_holder_id(askers[i].key, i);
        must(pthread_create(&askers[i].thread, NULL, asker_main, &askers[i]) == 0, "no thread");
    }
    load *l = load_open(&options);
    comparison c = compare_rounds(b, l, &runs, &granted);
    load_close(l);
    __atomic_store_n(&stops, true, __ATOMIC_RELAXED);
    for (size_t i = 0; i < THREADS; i++) pthread_join(askers[i].thread, NULL);
    report(b, &c, agent);
    measure_callbacks(b, agent);
    measure_alone(b, agent);
    doorman_agent_stop(agent);
    peer_stop(server);
    peer_stop(echo);
}
