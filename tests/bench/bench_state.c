/* A server that keeps its counters in a file (V8): what this costs its decisions, how long it reads
 * the file, and how long a planned restart takes. The folder of the peer has the file, so it is on
 * the disk of the temporary folder. */
#include "bench.h"

#include <time.h>

enum { ROUNDS_MAX = 8 };

/* The line of the log says how many. The path of the file is before the number. */
#define ROWS_READ "/state rows="

typedef struct side {
    peer *peer;
    load *load;
    double rates[ROUNDS_MAX], late[ROUNDS_MAX]; /* late: p99.9 in seconds */
} side;

static side side_start(const bench *b, bool has_state, const load_options *options) {
    side s = {.peer = has_state ? peer_state_server(b) : peer_server(b)};
    load_options own = *options;
    own.to = s.peer;
    s.load = load_open(&own);
    return s;
}

static void side_stop(side *s) {
    load_close(s->load);
    peer_stop(s->peer);
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* The keys are used in rotation, so with more decisions a second than keys each key changes, and is
 * written, once a second. A message has `items` permits. Both servers have the same load, one after
 * the other. */
static void decisions(bench *b, const char *name, size_t keys, size_t items, goal to) {
    const load_options options = {.connections = 4,
                                  .in_flight = 4,
                                  .holders = keys / items,
                                  .resource = "quota",
                                  .resources = items,
                                  .permits = true};
    double ratios[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    bench_step(b, "decisions while %s counters a second change and are written", name);
    side with = side_start(b, true, &options), without = side_start(b, false, &options);
    load_round(with.load, DOORMAN_SECOND);
    load_round(without.load, DOORMAN_SECOND);
    for (size_t i = 0; i < rounds; i++) {
        with.rates[i] = load_round(with.load, 2 * DOORMAN_SECOND) * (double)items;
        without.rates[i] = load_round(without.load, 2 * DOORMAN_SECOND) * (double)items;
        ratios[i] = with.rates[i] / without.rates[i];
        bench_tick(b);
    }
    bench_row(b, median(with.rates, rounds), "permits/s", ANY,
              "permits while %s counters a second change", name);
    bench_row(b, median(without.rates, rounds), "permits/s", ANY, "  without --state");
    bench_row(b, median(ratios, rounds), "times", to, "  with --state relative to without");
    side_stop(&with);
    side_stop(&without);
}

/* Permits that arrive at random times, 5,000 a second, each for another key. */
static void latency(bench *b) {
    const load_options options = {.connections = 50,
                                  .in_flight = 1,
                                  .holders = 5000,
                                  .resource = "quota",
                                  .resources = 1,
                                  .permits = true};
    double ratios[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    bench_step(b, "the time of a permit while counters are written");
    side with = side_start(b, true, &options), without = side_start(b, false, &options);
    for (size_t i = 0; i < rounds; i++) {
        with.late[i] = load_pace(with.load, b, DOORMAN_SECOND / 100, 2 * DOORMAN_SECOND).p999;
        without.late[i] = load_pace(without.load, b, DOORMAN_SECOND / 100, 2 * DOORMAN_SECOND).p999;
        ratios[i] = with.late[i] / without.late[i];
    }
    bench_row(b, 1e3 * median(with.late, rounds), "ms", ANY,
              "p99.9 of a permit, 5,000 changed counters a second");
    bench_row(b, 1e3 * median(without.late, rounds), "ms", ANY, "  without --state");
    bench_row(b, median(ratios, rounds), "times", MOST(2), "  with --state relative to without");
    side_stop(&with);
    side_stop(&without);
}

/* ---- reading --------------------------------------------------------------------------------- */

#define FILL 100 /* permits in a message */

/* Uses `keys` keys. */
static void fill(bench *b, const peer *p, size_t keys) {
    const load_options options = {.to = p,
                                  .connections = 4,
                                  .in_flight = 4,
                                  .holders = keys / FILL,
                                  .resource = "quota",
                                  .resources = FILL,
                                  .permits = true};
    load *l = load_open(&options);
    while (load_answered(l) * FILL < keys) {
        load_round(l, DOORMAN_SECOND / 10);
        bench_tick(b);
    }
    load_close(l);
}

/* Asks for permits that no row concerns until the file was read. Returns the longest time of one,
 * in seconds.
 *   rows   out: how many were read */
static double ask_while_reading(bench *b, const peer *p, double *rows) {
    const load_options options = {.to = p,
                                  .connections = 4,
                                  .in_flight = 1,
                                  .holders = 16,
                                  .resource = "passing",
                                  .resources = 1,
                                  .permits = true};
    load *l = load_open(&options);
    double longest = 0;
    doorman_time end = doorman_clock() + 10 * TIMEOUT;
    while (!peer_read_log(p, ROWS_READ, rows) && doorman_clock() < end) {
        double slowest = load_pace(l, b, DOORMAN_SECOND / 100, DOORMAN_SECOND / 10).longest;
        if (slowest > longest) longest = slowest;
    }
    must(doorman_clock() < end, "the file of counters was not read");
    load_close(l);
    return longest;
}

/* On a slow machine the server cannot write all rows before it ends, and fewer are read. */
static void reading(bench *b) {
    double rows = 0;
    bench_step(b, "the file of counters is read");
    peer *p = peer_state_server(b);
    fill(b, p, b->quick ? 50000 : 1000000);
    peer_restart(b, p);
    doorman_time start = doorman_clock();
    double longest = ask_while_reading(b, p, &rows), cpu = peer_seconds(p);
    double seconds = (double)(doorman_clock() - start) / 1e9;
    bench_row(b, seconds * 1e6 / rows, "s", MOST(2),
              "a million rows of counters are read in (%.0f were)", rows);
    bench_row(b, cpu * 1e6 / rows, "s", ANY, "  CPU time of the server meanwhile");
    bench_row(b, 1e3 * longest, "ms", MOST(5), "  the slowest of other permits meanwhile");
    peer_stop(p);
}

/* ---- a planned restart ----------------------------------------------------------------------- */

/* All counters have changed in the last second. */
static void restart(bench *b) {
    double gaps[ROUNDS_MAX], rows = 0;
    size_t rounds = b->quick ? 3 : 5;
    bench_step(b, "a planned restart with 10,000 counters");
    peer *p = peer_state_server(b);
    for (size_t i = 0; i < rounds; i++) {
        fill(b, p, 10000);
        doorman_time start = doorman_clock();
        peer_restart(b, p);
        while (!peer_read_log(p, ROWS_READ, &rows)) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            must(doorman_clock() - start < TIMEOUT, "the file of counters was not read");
        }
        gaps[i] = (double)(doorman_clock() - start) / 1e9;
    }
    bench_row(b, median(gaps, rounds), "s", MOST(1),
              "a planned restart with 10,000 counters, until it decides");
    peer_stop(p);
}

void bench_state(bench *b) {
    decisions(b, "5,000", 5000, 1, LEAST(0.95));
    decisions(b, "50,000", 50000, 10, LEAST(0.7));
    latency(b);
    reading(b);
    restart(b);
}
