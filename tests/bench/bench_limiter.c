/* The cost of a limiter's try, and how evenly a limiter grants waits. */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* ---- a try ----------------------------------------------------------------------------------- */

enum { TRIES = 100000, ROUNDS_MAX = 64, LOG_LIMIT = 1000 };

enum { TOKEN, LEAKY, DEBT, FIXED, SLIDING, LOG, CONCURRENCY, KIND_COUNT };

/* Each of these limits allows every try of the benchmark. */
static const doorman_limit_options limit_options[KIND_COUNT] = {
    [TOKEN] = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1e12, .size = 1e12},
    [LEAKY] = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1e12, .max_debt = DOORMAN_SECOND},
    [DEBT] = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1e12, .size = 1e12, .max_debt = DOORMAN_SECOND},
    [FIXED] = {.kind = DOORMAN_FIXED_WINDOW, .limit = 1e8, .window = DOORMAN_SECOND},
    [SLIDING] = {.kind = DOORMAN_SLIDING_WINDOW, .limit = 1e8, .window = DOORMAN_SECOND},
    [LOG] = {.kind = DOORMAN_SLIDING_LOG, .limit = LOG_LIMIT, .window = 1},
    [CONCURRENCY] = {.kind = DOORMAN_CONCURRENCY, .limit = 1}};

typedef struct limiters {
    uint64_t word;
    doorman_client *client;
    doorman_client_resource *rate, *narrow, *gauge;
    doorman_limit limits[KIND_COUNT];
    doorman_limiter states[KIND_COUNT];
    doorman_arrival arrivals[LOG_LIMIT];
    doorman_result result;
} limiters;

/* Opens a resource that gets no lease. Its fallback gives the capacity that it wants. */
static doorman_client_resource *open_resource(limiters *l, const char *resource_id,
                                              doorman_resource_kind kind, double capacity,
                                              doorman_time now) {
    doorman_resource_options options = {.resource_id = resource_id,
                                        .kind = kind,
                                        .wants = capacity,
                                        .fallback = DOORMAN_OPTIMISTIC};
    doorman_client_resource *resource = NULL;
    must(doorman_client_open(&resource, l->client, &options, NULL, now) == DOORMAN_OK,
         "cannot open a resource");
    return resource;
}

static void init_limiters(limiters *l) {
    doorman_time now = doorman_clock();
    const char *nobody = "tcp://127.0.0.1:1";
    doorman_client_options options = {
        .client_id = "bench", .addresses = &nobody, .address_count = 1, .seed = 1};
    must(doorman_client_create(&l->client, &options, NULL, now) == DOORMAN_OK,
         "cannot create a client");
    l->rate = open_resource(l, "rate", DOORMAN_RATE, 1e12, now);
    l->narrow = open_resource(l, "narrow", DOORMAN_RATE, 1e-3, now);
    l->gauge = open_resource(l, "gauge", DOORMAN_GAUGE, 1, now);
    for (int i = 0; i < KIND_COUNT; i++) {
        doorman_arrival *arrivals = i == LOG ? l->arrivals : NULL;
        must(doorman_limit_init(&l->limits[i], &limit_options[i], NULL) == DOORMAN_OK &&
                 doorman_limiter_init(&l->states[i], &l->limits[i], arrivals, now) == DOORMAN_OK,
             "cannot initialise a limiter");
    }
}

static uint64_t use(limiters *l, int kind, doorman_result *out, doorman_time now) {
    return doorman_limiter_try(&l->states[kind], &l->limits[kind], 1, out, now);
}

static uint64_t hold_locally(limiters *l, doorman_time now) {
    uint64_t decision = use(l, CONCURRENCY, NULL, now);
    doorman_limiter_release(&l->states[CONCURRENCY], &l->limits[CONCURRENCY], 1);
    return decision;
}

static uint64_t swap(uint64_t *word, doorman_time now) {
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    return __atomic_compare_exchange_n(word, &old, (uint64_t)now, true, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

static uint64_t hold(doorman_client_resource *gauge, doorman_time now) {
    uint64_t decision = doorman_client_try(gauge, 1, NULL, now);
    (void)doorman_client_release(gauge, 1);
    return decision;
}

/* Each call has a loop of its own, so that none pays for a choice between them. The sum is used, so
 * that the compiler cannot remove the calls. */
#define LOOP(name, call)                                                                           \
    static uint64_t name(limiters *l) {                                                            \
        uint64_t sum = 0;                                                                          \
        for (int i = 0; i < TRIES; i++) {                                                          \
            doorman_time now = doorman_clock();                                                    \
            sum += (uint64_t)(call);                                                               \
        }                                                                                          \
        (void)l;                                                                                   \
        return sum;                                                                                \
    }

LOOP(read_clock, now)
LOOP(read_and_swap, swap(&l->word, now))
LOOP(rate_allowed, doorman_client_try(l->rate, 1, NULL, now))
LOOP(rate_refused, doorman_client_try(l->narrow, 1, NULL, now))
LOOP(gauge_held, hold(l->gauge, now))
LOOP(token_allowed, use(l, TOKEN, NULL, now))
LOOP(leaky_allowed, use(l, LEAKY, &l->result, now))
LOOP(debt_allowed, use(l, DEBT, &l->result, now))
LOOP(fixed_allowed, use(l, FIXED, NULL, now))
LOOP(sliding_allowed, use(l, SLIDING, NULL, now))
LOOP(log_allowed, use(l, LOG, NULL, now))
LOOP(concurrency_held, hold_locally(l, now))

enum { OPERATION_CLOCK, OPERATION_SWAP };

/* Each operation includes a clock read. `most` is the goal, as a multiple of the cost of the row
 * `beside`. */
static const struct {
    const char *name;
    uint64_t (*run)(limiters *l);
    int beside;
    double most;
} operations[] = {{"a clock read", read_clock, 0, 0},
                  {"a clock read and a compare-and-swap", read_and_swap, 0, 0},
                  {"a rate's try, allowed", rate_allowed, OPERATION_SWAP, 1.3},
                  {"a rate's try, refused", rate_refused, OPERATION_CLOCK, 1.3},
                  {"a gauge's try, and its release", gauge_held, 0, 0},
                  {"a token bucket's try", token_allowed, 0, 0},
                  {"a leaky bucket's try", leaky_allowed, 0, 0},
                  {"a debt bucket's try", debt_allowed, 0, 0},
                  {"a fixed window's try", fixed_allowed, 0, 0},
                  {"a sliding window's try", sliding_allowed, 0, 0},
                  {"a sliding log's try", log_allowed, 0, 0},
                  {"a concurrency limiter's try, and its release", concurrency_held, 0, 0}};
enum { OPERATION_COUNT = sizeof operations / sizeof *operations };

static double cost(uint64_t (*run)(limiters *l), limiters *l) {
    doorman_time start = cpu_time();
    uint64_t sum = run(l);
    doorman_time end = cpu_time();
    __asm__ volatile("" : : "r"(sum));
    return (double)(end - start) / TRIES;
}

void bench_limiter(bench *b) {
    static limiters l;
    static double costs[OPERATION_COUNT][ROUNDS_MAX];
    double ns[OPERATION_COUNT];
    size_t rounds = b->quick ? 15 : ROUNDS_MAX;
    init_limiters(&l);
    bench_step(b, "a limiter's try");
    for (size_t i = 0; i < rounds; i++) {
        for (int index = 0; index < OPERATION_COUNT; index++) {
            costs[index][i] = cost(operations[index].run, &l);
        }
    }
    doorman_client_destroy(l.client);
    for (int index = 0; index < OPERATION_COUNT; index++) ns[index] = median(costs[index], rounds);
    for (int index = 0; index < OPERATION_COUNT; index++) {
        int beside = operations[index].beside;
        bench_row(b, ns[index], "ns", ANY, "%s", operations[index].name);
        if (operations[index].most <= 0) continue;
        bench_row(b, ns[index] / ns[beside], "times", MOST(operations[index].most),
                  "  relative to %s", operations[beside].name);
    }
}

/* ---- pacing ---------------------------------------------------------------------------------- */

enum { WAITERS_MAX = 16, WINDOWS_MAX = 8 };
#define WINDOW (DOORMAN_SECOND / 100)

typedef struct waiter {
    struct pacing *pacing;
    pthread_t thread;
    double *passed; /* the times of its units, in nanoseconds; room for all that the rate allows */
    size_t count, max;
} waiter;

typedef struct pacing {
    doorman_agent *agent;
    doorman_resource *resource;
    doorman_time from, to; /* units count from `from` until `to` */
    waiter waiters[WAITERS_MAX];
} pacing;

static size_t seconds_of(const bench *b) { return b->quick ? 1 : 5; }

static void *wait_on(void *argument) {
    waiter *w = argument;
    pacing *p = w->pacing;
    doorman_time now = doorman_clock();
    while (now < p->to && w->count < w->max) {
        must(doorman_resource_wait(p->resource, 1, TIMEOUT) == DOORMAN_OK,
             "a wait ended without its unit");
        now = doorman_clock();
        if (now >= p->from && now < p->to) w->passed[w->count++] = (double)now;
    }
    return NULL;
}

static void await_lease(pacing *p, double rate) {
    const struct timespec moment = {.tv_nsec = 10000000};
    doorman_time end = doorman_clock() + TIMEOUT;
    doorman_resource_info info = {0};
    do {
        nanosleep(&moment, NULL);
        doorman_resource_read(p->resource, &info);
    } while ((!info.leased || info.capacity < rate) && doorman_clock() < end);
    must(info.leased && !(info.capacity < rate), "no lease was received");
}

/* Returns how many of the times are in the busiest 10 ms. The times are sorted. */
static size_t busiest(const double *times, size_t count) {
    size_t most = 0, first = 0;
    for (size_t i = 0; i < count; i++) {
        while (times[i] - times[first] >= (double)WINDOW) first++;
        if (i + 1 - first > most) most = i + 1 - first;
    }
    return most;
}

/* Returns how many of the times are in the busiest 10 ms of a second: the median over all seconds,
 * so that a pause of the whole machine does not count against the limiter. */
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

/* Measures how evenly this machine wakes a thread that only sleeps. Returns the wake-ups in the
 * busiest 10 ms, as a multiple of the average. */
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
    p->from = doorman_clock() + DOORMAN_SECOND / 2; /* by then the saved burst is used up */
    p->to = p->from + (doorman_time)seconds * DOORMAN_SECOND;
    for (size_t i = 0; i < waiters; i++) {
        waiter *w = &p->waiters[i];
        *w = (waiter){.pacing = p, .max = 2 * seconds * (size_t)rate};
        w->passed = calloc(w->max, sizeof *w->passed);
        must(w->passed && pthread_create(&w->thread, NULL, wait_on, w) == 0,
             "cannot start a thread");
    }
    for (size_t i = 0; i < waiters; i++) pthread_join(p->waiters[i].thread, NULL);
}

static void measure(bench *b, pacing *p, size_t waiters, double rate, const char *words) {
    size_t count = 0, seconds = seconds_of(b);
    bench_step(b, "pacing, %zu waiters, %s a second", waiters, words);
    run_waiters(p, waiters, seconds, rate);
    double *times = calloc(waiters * p->waiters[0].max, sizeof *times);
    must(times, "out of memory");
    for (size_t i = 0; i < waiters; i++) {
        for (size_t k = 0; k < p->waiters[i].count; k++) times[count++] = p->waiters[i].passed[k];
        free(p->waiters[i].passed);
    }
    must(count > 1, "no unit was let through");
    sort(times, count);
    double passed = (double)(count - 1) * 1e9 / (times[count - 1] - times[0]);
    double off = 100 * (passed / rate - 1);
    double most = usual_busiest(times, count, seconds) / (rate * WINDOW / 1e9);
    bench_row(b, off < 0 ? -off : off, "% off", MOST(0.1), "pacing, %zu waiters, %s a second",
              waiters, words);
    bench_row(b, most, "times average", MOST(rate > 5000 ? 1.05 : 1.2), "  the busiest 10 ms");
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
             doorman_resource_open(&p.resource, p.agent, &resource, NULL) == DOORMAN_OK,
         "cannot start an agent");
    await_lease(&p, rate);
    measure(b, &p, 1, rate, words);
    measure(b, &p, 16, rate, words);
    doorman_agent_stop(p.agent);
    bench_step(b, "a thread that sleeps, %s times a second", words);
    bench_row(b, sleeper_busiest(seconds_of(b), rate), "times average", ANY,
              "  the same for a thread that only sleeps");
}

/* Measures how late a wait times out when no unit is allowed. */
static void time_out(bench *b) {
    enum { WAITS = 50 };
    double late[WAITS];
    const char *unused_address = "tcp://127.0.0.1:1";
    doorman_client_options options = {.addresses = &unused_address, .address_count = 1};
    doorman_resource_options none = {
        .resource_id = "none", .wants = 1, .fallback = DOORMAN_PESSIMISTIC};
    pacing p;
    bench_step(b, "waits that time out");
    must(doorman_agent_start(&p.agent, &options, NULL) == DOORMAN_OK &&
             doorman_resource_open(&p.resource, p.agent, &none, NULL) == DOORMAN_OK,
         "cannot start an agent");
    for (int i = 0; i < WAITS; i++) {
        doorman_time timeout = (1 + i % 10) * DOORMAN_SECOND / 1000, start = doorman_clock();
        doorman_status status = doorman_resource_wait(p.resource, 1, timeout);
        must(status == DOORMAN_TIMED_OUT, "a wait did not time out");
        late[i] = (double)(doorman_clock() - start - timeout) / 1e6;
    }
    doorman_agent_stop(p.agent);
    bench_row(b, median(late, WAITS), "ms", MOST(2), "how late a wait times out");
}

void bench_pacing(bench *b) {
    peer *server = peer_server(b);
    char address[64];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", (unsigned)server->port);
    pace_at(b, address, 1000, "1,000");
    pace_at(b, address, 10000, "10,000");
    peer_stop(server);
    time_out(b);
}
