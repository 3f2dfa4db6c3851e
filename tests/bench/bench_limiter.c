/* What a limiter costs who calls it, and how evenly it lets through those who wait. */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* ---- a try ----------------------------------------------------------------------------------- */

typedef enum act { CLOCK, CLOCK_AND_SWAP, ALLOWED, REFUSED, ACT_COUNT } act;
enum { TRIES = 100000, ROUNDS_MAX = 64 };

/* Nanoseconds that one act takes. Each loop is its own, so that none pays for asking which. */
static double cost(act what, doorman_rate *rate) {
    uint64_t word = 0, sum = 0;
    doorman_time start = cpu_time();
    if (what == CLOCK) {
        for (int i = 0; i < TRIES; i++) sum += (uint64_t)doorman_clock();
    } else if (what == CLOCK_AND_SWAP) {
        for (int i = 0; i < TRIES; i++) {
            uint64_t now = (uint64_t)doorman_clock(),
                     old = __atomic_load_n(&word, __ATOMIC_RELAXED);
            sum += __atomic_compare_exchange_n(&word, &old, now, true, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED);
        }
    } else {
        for (int i = 0; i < TRIES; i++) {
            sum += doorman_rate_try(rate, 1, doorman_clock()) == DOORMAN_ALLOWED;
        }
    }
    doorman_time end = cpu_time();
    __asm__ volatile("" : : "r"(sum)); /* is used, so that nothing of it is left out */
    return (double)(end - start) / TRIES;
}

void bench_limiter(bench *b) {
    double costs[ACT_COUNT][ROUNDS_MAX], ns[ACT_COUNT];
    size_t rounds = b->quick ? 15 : ROUNDS_MAX;
    doorman_rate rates[ACT_COUNT];
    for (int what = 0; what < ACT_COUNT; what++) {
        double rate = what == ALLOWED ? 1e12 : 1e-3;
        must(doorman_rate_init(&rates[what], rate, 0, doorman_clock()) == DOORMAN_OK, "no limiter");
    }
    bench_step(b, "a limiter's try");
    for (size_t i = 0; i < rounds; i++) {
        for (int what = 0; what < ACT_COUNT; what++) {
            costs[what][i] = cost((act)what, &rates[what]);
        }
    }
    for (int what = 0; what < ACT_COUNT; what++) ns[what] = median(costs[what], rounds);
    bench_row(b, ns[CLOCK], "ns", ANY, "a clock read");
    bench_row(b, ns[CLOCK_AND_SWAP], "ns", ANY, "a clock read and a compare-and-swap");
    bench_row(b, ns[ALLOWED], "ns", ANY, "a limiter's try, allowed, with its clock read");
    bench_row(b, ns[ALLOWED] / ns[CLOCK_AND_SWAP], "times", MOST(1.3),
              "  beside a clock read and a compare-and-swap");
    bench_row(b, ns[REFUSED], "ns", ANY, "a limiter's try, refused, with its clock read");
    bench_row(b, ns[REFUSED] / ns[CLOCK], "times", MOST(1.3), "  beside a clock read");
}

/* ---- pacing ---------------------------------------------------------------------------------- */

enum { WAITERS_MAX = 16, WINDOWS_MAX = 8 };
#define WINDOW (DOORMAN_SECOND / 100)

typedef struct waiter {
    struct pacing *pacing;
    pthread_t thread;
    double *passed; /* when, in nanoseconds; room for all that the rate lets through */
    size_t count, max;
} waiter;

typedef struct pacing {
    doorman_agent *agent;
    doorman_resource *resource;
    doorman_time from, to; /* what passes between these counts */
    waiter waiters[WAITERS_MAX];
} pacing;

static size_t seconds_of(const bench *b) { return b->quick ? 1 : 5; }

static void *wait_on(void *argument) {
    waiter *w = argument;
    pacing *p = w->pacing;
    doorman_time now = doorman_clock();
    while (now < p->to && w->count < w->max) {
        must(doorman_agent_rate_wait(p->agent, p->resource, 1, PATIENCE) == DOORMAN_OK,
             "a wait that ends without its unit");
        now = doorman_clock();
        if (now >= p->from && now < p->to) w->passed[w->count++] = (double)now;
    }
    return NULL;
}

static void await_lease(pacing *p, double rate) {
    const struct timespec moment = {.tv_nsec = 10000000};
    doorman_time end = doorman_clock() + PATIENCE;
    doorman_resource_info info = {0};
    do {
        nanosleep(&moment, NULL);
        doorman_agent_read(p->agent, p->resource, &info);
    } while ((!info.leased || info.capacity < rate) && doorman_clock() < end);
    must(info.leased && !(info.capacity < rate), "no lease comes");
}

/* The most within any ten milliseconds of times that are in order. */
static size_t busiest(const double *times, size_t count) {
    size_t most = 0, first = 0;
    for (size_t i = 0; i < count; i++) {
        while (times[i] - times[first] >= (double)WINDOW) first++;
        if (i + 1 - first > most) most = i + 1 - first;
    }
    return most;
}

/* Of each second the busiest moment, of these the median: a machine that stood still for a while is
 * not the limiter's. */
static double usual_busiest(const double *times, size_t count, size_t seconds) {
    double most[WINDOWS_MAX];
    size_t first = 0;
    for (size_t s = 0; s < seconds; s++) {
        size_t end = first;
        double limit = times[0] + (double)(s + 1) * 1e9;
        while (end < count && times[end] < limit) end++;
        most[s] = (double)busiest(times + first, end - first);
        first = end;
    }
    return median(most, seconds);
}

/* What the machine allows at present: a thread that sleeps until each of its times. */
static double sleeper_busiest(size_t seconds, double rate) {
    size_t count = 0, max = seconds * (size_t)rate;
    double *times = calloc(max, sizeof *times);
    must(times, "out of memory");
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (; count < max; count++) {
        double after = (double)start.tv_nsec + (double)count * 1e9 / rate;
        struct timespec until = {.tv_sec = start.tv_sec + (time_t)(after / 1e9)};
        until.tv_nsec = (long)(after - 1e9 * (double)(time_t)(after / 1e9));
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        times[count] = (double)doorman_clock();
    }
    double most = usual_busiest(times, count, seconds);
    free(times);
    return most / (rate * WINDOW / 1e9);
}

static void run_waiters(pacing *p, size_t waiters, size_t seconds, double rate) {
    p->from = doorman_clock() + 3 * DOORMAN_SECOND / 2; /* the burst that was saved has passed */
    p->to = p->from + (doorman_time)seconds * DOORMAN_SECOND;
    for (size_t i = 0; i < waiters; i++) {
        waiter *w = &p->waiters[i];
        *w = (waiter){.pacing = p, .max = 3 * seconds * (size_t)rate};
        w->passed = calloc(w->max, sizeof *w->passed);
        must(w->passed && pthread_create(&w->thread, NULL, wait_on, w) == 0, "no thread");
    }
    for (size_t i = 0; i < waiters; i++) pthread_join(p->waiters[i].thread, NULL);
}

static void measure(bench *b, pacing *p, size_t waiters, double rate, const char *words) {
    size_t count = 0, seconds = seconds_of(b);
    bench_step(b, "pacing, %zu waiting, %s a second", waiters, words);
    run_waiters(p, waiters, seconds, rate);
    double *times = calloc(waiters * p->waiters[0].max, sizeof *times);
    must(times, "out of memory");
    for (size_t i = 0; i < waiters; i++) {
        for (size_t k = 0; k < p->waiters[i].count; k++) times[count++] = p->waiters[i].passed[k];
        free(p->waiters[i].passed);
    }
    must(count > 1, "nothing passed");
    sort(times, count);
    double passed = (double)(count - 1) * 1e9 / (times[count - 1] - times[0]);
    double off = 100 * (passed / rate - 1);
    double most = usual_busiest(times, count, seconds) / (rate * WINDOW / 1e9);
    bench_row(b, off < 0 ? -off : off, "% off", MOST(0.1), "pacing, %zu waiting, %s a second",
              waiters, words);
    bench_row(b, most, "times its part", MOST(rate > 5000 ? 1.05 : 1.2), "  the busiest 10 ms");
    free(times);
}

static void pace_at(bench *b, const char *address, double rate, const char *words) {
    char resource_id[32];
    snprintf(resource_id, sizeof resource_id, "pace/%g", rate);
    doorman_client_options options = {.addresses = &address, .address_count = 1};
    doorman_resource_options resource = {.resource_id = resource_id, .wants = rate};
    pacing p;
    bench_step(b, "a lease for %s a second", words);
    must(doorman_agent_start(&p.agent, &options, NULL) == DOORMAN_OK &&
             doorman_agent_open(&p.resource, p.agent, &resource, NULL) == DOORMAN_OK,
         "no agent");
    await_lease(&p, rate);
    measure(b, &p, 1, rate, words);
    measure(b, &p, 16, rate, words);
    doorman_agent_stop(p.agent);
    bench_step(b, "a thread that sleeps, %s times a second", words);
    bench_row(b, sleeper_busiest(seconds_of(b), rate), "times its part", ANY,
              "  the same of a thread that only sleeps");
}

void bench_pacing(bench *b) {
    peer *server = peer_server(b);
    char address[64];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", (unsigned)server->port);
    pace_at(b, address, 1000, "1,000");
    pace_at(b, address, 10000, "10,000");
    peer_stop(server);
}
