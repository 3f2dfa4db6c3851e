/* Permits through an agent: 64 callers in one process each ask for one permit after the other. In
 * the first rounds the callers are threads that wait, in the later rounds callbacks in the agent's
 * thread. The server and this process share the machine, as the echo and its load do. */
#include "bench.h"

#include <pthread.h>

enum { CALLERS = 64, ROUNDS_MAX = 48 };
#define ROUND_LENGTH (DOORMAN_SECOND / 10)

typedef struct fleet fleet;

typedef struct caller {
    fleet *fleet;
    pthread_t thread; /* only of a caller with a thread */
    char key[HOLDER_ID_BYTES + 1];
} caller;

/* Callers wait for `resume` between rounds, so that they do not disturb the echo. */
struct fleet {
    doorman_agent *agent;
    bool has_threads;
    bool runs, stops; /* atomic; the mutex guards the writes */
    uint64_t granted; /* atomic */
    size_t running;   /* callers within a round; atomic */
    pthread_mutex_t mutex;
    pthread_cond_t resume;
    caller callers[CALLERS];
};

static void sleep_for(doorman_time time) {
    const struct timespec length = {.tv_sec = (time_t)(time / DOORMAN_SECOND),
                                    .tv_nsec = (long)(time % DOORMAN_SECOND)};
    nanosleep(&length, NULL);
}

static void count_grant(fleet *f, doorman_status status, const doorman_acquired *acquired) {
    must(status == DOORMAN_OK && acquired->decided_by == DOORMAN_BY_SERVER && acquired->granted,
         "a permit was not granted");
    __atomic_fetch_add(&f->granted, 1, __ATOMIC_RELAXED);
}

/* ---- callers with a thread */

/* Waits for the next round. Returns false if there is none. */
static bool await_round(fleet *f) {
    pthread_mutex_lock(&f->mutex);
    while (!f->runs && !f->stops) pthread_cond_wait(&f->resume, &f->mutex);
    bool goes_on = !f->stops;
    if (goes_on) __atomic_fetch_add(&f->running, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&f->mutex);
    return goes_on;
}

static void *caller_main(void *context) {
    caller *self = context;
    fleet *f = self->fleet;
    const doorman_permit_item item = {.resource_id = "permits/64", .key = self->key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    while (await_round(f)) {
        while (__atomic_load_n(&f->runs, __ATOMIC_RELAXED)) {
            doorman_acquired acquired;
            doorman_status status =
                doorman_agent_acquire(f->agent, &request, TIMEOUT, &acquired, NULL);
            count_grant(f, status, &acquired);
        }
        __atomic_fetch_sub(&f->running, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* ---- callers without a thread: each decision asks for the next permit */

static void caller_on_decided(void *context, doorman_status status,
                              const doorman_acquired *acquired);

static void caller_next(caller *self) {
    const doorman_permit_item item = {.resource_id = "permits/64", .key = self->key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    must(doorman_agent_acquire_async(self->fleet->agent, &request, TIMEOUT, caller_on_decided, self,
                                     NULL) == DOORMAN_OK,
         "a permit was not asked");
}

static void caller_on_decided(void *context, doorman_status status,
                              const doorman_acquired *acquired) {
    caller *self = context;
    count_grant(self->fleet, status, acquired);
    if (__atomic_load_n(&self->fleet->runs, __ATOMIC_RELAXED)) {
        caller_next(self);
    } else {
        __atomic_fetch_sub(&self->fleet->running, 1, __ATOMIC_RELEASE);
    }
}

/* ---- rounds */

static void fleet_resume(fleet *f) {
    pthread_mutex_lock(&f->mutex);
    __atomic_store_n(&f->runs, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&f->resume);
    pthread_mutex_unlock(&f->mutex);
    if (f->has_threads) return;
    __atomic_store_n(&f->running, CALLERS, __ATOMIC_RELAXED);
    for (size_t i = 0; i < CALLERS; i++) caller_next(&f->callers[i]);
}

static void fleet_pause(fleet *f) {
    doorman_time end = doorman_clock() + TIMEOUT;
    pthread_mutex_lock(&f->mutex);
    __atomic_store_n(&f->runs, false, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&f->mutex);
    while (__atomic_load_n(&f->running, __ATOMIC_ACQUIRE) > 0 && doorman_clock() < end) {
        sleep_for(DOORMAN_SECOND / 1000);
    }
    must(__atomic_load_n(&f->running, __ATOMIC_ACQUIRE) == 0, "permits without a decision");
}

/* Lets the callers run for a round. Returns permits a second. */
static double run_round(fleet *f) {
    fleet_resume(f);
    sleep_for(ROUND_LENGTH / 10); /* until all callers run */
    uint64_t before = __atomic_load_n(&f->granted, __ATOMIC_RELAXED);
    doorman_time start = doorman_clock();
    sleep_for(ROUND_LENGTH);
    double count = (double)(__atomic_load_n(&f->granted, __ATOMIC_RELAXED) - before);
    double rate = count * 1e9 / (double)(doorman_clock() - start);
    fleet_pause(f);
    return rate;
}

static doorman_permit_client_info read_info(doorman_agent *agent) {
    doorman_agent_info info;
    must(doorman_agent_read_info(agent, &info) == DOORMAN_OK, "cannot read an agent");
    return info.permits;
}

/* Measures a fleet and the echo alternately, and writes the rows. */
static void compare(bench *b, fleet *f, load *echo) {
    double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], ratios[ROUNDS_MAX];
    size_t rounds = b->quick ? 12 : ROUNDS_MAX;
    run_round(f);
    load_round(echo, ROUND_LENGTH);
    doorman_permit_client_info before = read_info(f->agent);
    for (size_t i = 0; i < rounds; i++) {
        ours[i] = run_round(f);
        theirs[i] = load_round(echo, ROUND_LENGTH);
        ratios[i] = ours[i] / theirs[i];
        bench_tick(b);
    }
    doorman_permit_client_info after = read_info(f->agent);
    double granted = (double)(after.granted - before.granted);
    bench_row(b, median(ours, rounds), "permits/s", ANY, "permits through an agent, %d %s", CALLERS,
              f->has_threads ? "threads" : "callbacks");
    bench_row(b, granted / (double)(after.messages - before.messages), "permits", ANY,
              "  in a message");
    bench_row(b, median(theirs, rounds), "requests/s", ANY,
              "  an nng echo of one permit, 16 connections");
    bench_row(b, median(ratios, rounds), "times", LEAST(5),
              "  permits for each request of the echo");
}

static void measure_fleet(bench *b, doorman_agent *agent, load *echo, bool has_threads) {
    static fleet f;
    f = (fleet){.agent = agent, .has_threads = has_threads};
    must(pthread_mutex_init(&f.mutex, NULL) == 0 && pthread_cond_init(&f.resume, NULL) == 0,
         "cannot make a mutex");
    for (size_t i = 0; i < CALLERS; i++) {
        caller *c = &f.callers[i];
        c->fleet = &f;
        write_holder_id(c->key, i);
        if (has_threads) must(pthread_create(&c->thread, NULL, caller_main, c) == 0, "no thread");
    }
    compare(b, &f, echo);
    pthread_mutex_lock(&f.mutex);
    __atomic_store_n(&f.stops, true, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&f.resume);
    pthread_mutex_unlock(&f.mutex);
    for (size_t i = 0; has_threads && i < CALLERS; i++) pthread_join(f.callers[i].thread, NULL);
    pthread_cond_destroy(&f.resume);
    pthread_mutex_destroy(&f.mutex);
}

/* Measures the time from the call to the decision, for one thread alone. */
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
    bench_row(b, median(times, CALLS), "us", ANY,
              "one thread alone: time of a permit through an agent");
}

void bench_agent(bench *b) {
    char address[64];
    const char *addresses[] = {address};
    peer *server = peer_server(b), *echo = peer_echo();
    load_options options = {.to = echo, .echo = true, .connections = 16, .in_flight = 1};
    options.permits = true;
    options.resources = 1;
    options.holders = 64;
    options.resource = "permits/64";
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", (unsigned)server->port);
    const doorman_client_options client = {.addresses = addresses, .address_count = 1};
    doorman_agent *agent = NULL;
    bench_step(b, "permits through an agent, and an echo");
    must(doorman_agent_start(&agent, &client, NULL) == DOORMAN_OK, "cannot start an agent");
    load *l = load_open(&options);
    measure_fleet(b, agent, l, true);
    measure_fleet(b, agent, l, false);
    load_close(l);
    measure_alone(b, agent);
    doorman_agent_stop(agent);
    peer_stop(server);
    peer_stop(echo);
}
