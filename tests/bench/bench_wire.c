/* Requests over the network: how many a second, compared with an echo of the same bytes, and what
 * ten thousand connections cost. In one of ten requests the holder changes its wants. */
#include "bench.h"

#include <sys/resource.h>

enum { ROUNDS_MAX = 64 };
#define GO_DOORMAN 28000 /* requests a second of the original Doorman, in Go: 10 clients, 2 cores */

/* Rounds are short, so that other work of the machine affects both rounds of most pairs equally. */
static size_t rounds_of(const bench *b) { return b->quick ? 12 : 48; }
#define ROUND_LENGTH (DOORMAN_SECOND / 10)

typedef struct side {
    load *load;
    const peer *peer;
    double rates[ROUNDS_MAX];
    double rate, microseconds; /* responses a second, median; the peer's CPU time for each, mean */
    uint64_t answered;
    double ran;
} side;

static void run_round(side *s, size_t round) {
    double before = peer_seconds(s->peer);
    uint64_t answered = load_answered(s->load);
    s->rates[round] = load_round(s->load, ROUND_LENGTH);
    s->ran += peer_seconds(s->peer) - before;
    s->answered += load_answered(s->load) - answered;
}

static void sum_up(side *s, size_t rounds) {
    s->rate = median(s->rates, rounds);
    s->microseconds = 1e6 * s->ran / (double)s->answered;
}

/* Measures two loads alternately, after a round of each that does not count, and closes them.
 * Returns the first rate divided by the second one: the median of the pairs of rounds. */
static double run_sides(bench *b, side *first, side *second) {
    double ratios[ROUNDS_MAX];
    size_t rounds = rounds_of(b);
    load_round(first->load, ROUND_LENGTH);
    load_round(second->load, ROUND_LENGTH);
    for (size_t i = 0; i < rounds; i++) {
        run_round(first, i);
        run_round(second, i);
        ratios[i] = first->rates[i] / second->rates[i];
        bench_tick(b);
    }
    sum_up(first, rounds);
    sum_up(second, rounds);
    load_close(first->load);
    load_close(second->load);
    return median(ratios, rounds);
}

static void compare_with_echo(bench *b, const peer *server, const peer *echo, size_t in_flight) {
    const char *words = in_flight == 1 ? "one in flight on each" : "four in flight on each";
    bench_step(b, "16 connections, %s, and an echo", words);
    load_options ours = {.to = server, .connections = 16, .in_flight = in_flight};
    ours.holders = 64;
    ours.resource = "fair/64";
    ours.resources = 1;
    load_options theirs = ours;
    theirs.to = echo;
    theirs.echo = true;
    side us = {.load = load_open(&ours), .peer = server};
    side them = {.load = load_open(&theirs), .peer = echo};
    double ratio = run_sides(b, &us, &them);
    bench_row(b, us.rate, "requests/s", in_flight == 1 ? ANY : LEAST(2 * GO_DOORMAN),
              "16 connections, %s", words);
    bench_row(b, them.rate, "requests/s", ANY, "  an nng echo of the same bytes");
    bench_row(b, ratio, "times", LEAST(in_flight == 1 ? 0.90 : 0.85),
              "  the server relative to the echo");
    bench_row(b, us.microseconds, "us", ANY, "  CPU time of the server for a request");
    bench_row(b, them.microseconds, "us", ANY, "  CPU time of the echo");
}

static void compare_permits_with_echo(bench *b, const peer *server, const peer *echo) {
    bench_step(b, "16 connections, one permit in each message, and an echo");
    load_options ours = {.to = server, .connections = 16, .in_flight = 1, .permits = true};
    ours.resources = 1;
    ours.holders = 64;
    ours.resource = "permits/64";
    load_options theirs = ours;
    theirs.to = echo;
    theirs.echo = true;
    side us = {.load = load_open(&ours), .peer = server};
    side them = {.load = load_open(&theirs), .peer = echo};
    double ratio = run_sides(b, &us, &them);
    bench_row(b, us.rate, "permits/s", ANY, "16 connections, one permit in each message");
    bench_row(b, them.rate, "requests/s", ANY, "  an nng echo of the same bytes");
    bench_row(b, ratio, "times", LEAST(0.85), "  the server relative to the echo");
    bench_row(b, us.microseconds, "us", ANY, "  CPU time of the server for a permit");
}

static void compare_holder_counts(bench *b, const peer *server) {
    bench_step(b, "10 connections, 10 clients, and 10,000");
    load_options ten = {.to = server, .connections = 10, .in_flight = 1, .holders = 10};
    ten.resource = "fair/10";
    ten.resources = 1;
    load_options all = ten;
    all.holders = 10000;
    all.resource = "fair/10000";
    side few = {.load = load_open(&ten), .peer = server};
    side many = {.load = load_open(&all), .peer = server};
    double ratio = run_sides(b, &many, &few);
    bench_row(b, few.rate, "requests/s", ANY, "10 connections, 10 FAIR_SHARE clients");
    bench_row(b, many.rate, "requests/s", ANY, "  10,000 clients over the same connections");
    bench_row(b, ratio, "times", LEAST(0.90), "  10,000 relative to 10 clients");
}

static void measure_hundred_in_flight(bench *b, const peer *server) {
    double rates[ROUNDS_MAX];
    bench_step(b, "16 connections, requests of 100 resources");
    load_options options = {.to = server, .connections = 16, .in_flight = 1, .holders = 16};
    options.resource = "many/";
    options.resources = 100;
    load *l = load_open(&options);
    load_round(l, ROUND_LENGTH);
    for (size_t i = 0; i < rounds_of(b); i++) rates[i] = load_round(l, ROUND_LENGTH);
    load_close(l);
    bench_row(b, 100 * median(rates, rounds_of(b)), "resources/s", LEAST(1e6),
              "16 connections, requests of 100 resources");
}

void bench_wire(bench *b) {
    peer *server = peer_server(b), *echo = peer_echo();
    compare_with_echo(b, server, echo, 1);
    compare_with_echo(b, server, echo, 4);
    compare_holder_counts(b, server);
    measure_hundred_in_flight(b, server);
    compare_permits_with_echo(b, server, echo);
    peer_stop(server);
    peer_stop(echo);
}

/* ---- ten thousand connections ---------------------------------------------------------------- */

#define PERIOD (5 * DOORMAN_SECOND)

typedef struct measurement {
    double bytes; /* the peer's memory for each connection */
    paced paced;
    double reconnected; /* seconds */
} measurement;

/* Measures a load. The memory of the peer is read after nearly every connection has been used. */
static measurement measure(bench *b, const load_options *options, doorman_time length) {
    measurement c = {0};
    double before = peer_memory(options->to);
    load *l = load_open(options);
    c.paced = load_pace(l, b, PERIOD, length);
    c.bytes = (peer_memory(options->to) - before) / (double)options->connections;
    if (!options->echo) {
        bench_step(b, "all connections at once");
        c.reconnected = load_reconnect(l, b);
    }
    load_close(l);
    return c;
}

/* Each connection is a file here and a file in the peer, and a few more files are needed. Returns
 * whether `count` connections are possible. */
static bool can_open(size_t count) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < count + 100) return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static void report(bench *b, const measurement *ours, const measurement *echo, const char *count) {
    const paced *renewals = &ours->paced;
    bench_row(b, (double)renewals->asked, "requests", ANY, "%s connections, each every 5 s", count);
    bench_row(b, (double)renewals->unanswered, "requests", MOST(0), "  unanswered");
    bench_row(b, 1e3 * renewals->p50, "ms", ANY, "  median time to the response");
    bench_row(b, 1e3 * renewals->p99, "ms", MOST(10), "  99th percentile");
    bench_row(b, 1e3 * echo->paced.p99, "ms", ANY, "  99th percentile of an echo");
    bench_row(b, ours->bytes / 1024, "KiB", ANY, "  memory for a connection and its lease");
    bench_row(b, echo->bytes / 1024, "KiB", ANY, "  memory for a connection of the echo");
    bench_row(b, (ours->bytes - echo->bytes) / 1024, "KiB", MOST(40), "  more than the echo");
    bench_row(b, ours->reconnected, "s", MOST(10),
              "  all reconnect at once, until all are answered");
}

void bench_connections(bench *b) {
    size_t count = b->quick || !can_open(10000) ? 2000 : 10000;
    const char *words = count == 10000 ? "10,000" : "2,000";
    must(can_open(count), "cannot open 2,000 files: see ulimit -n");
    peer *server = peer_server(b), *echo = peer_echo();
    load_options options = {.to = server, .connections = count, .in_flight = 1, .holders = count};
    options.resource = "fair/10000";
    options.resources = 1;
    bench_step(b, "%s connections", words);
    measurement ours = measure(b, &options, b->quick ? PERIOD : 3 * PERIOD);
    options.to = echo;
    options.echo = true;
    bench_step(b, "%s connections to an echo", words);
    measurement theirs = measure(b, &options, PERIOD);
    peer_stop(server);
    peer_stop(echo);
    report(b, &ours, &theirs, words);
}
