/* A server that keeps its counters in a file or a Redis (V8): what the file costs its decisions,
 * how long it takes to read all counters, and how long a planned restart takes. The file is in the
 * folder of the peer, and so on the disk of the temporary files. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

enum { ROUNDS_MAX = 8 };

/* The text before the number of rows, in the log. */
#define ROWS_READ " rows="

typedef struct side {
    peer *peer;
    load *load;
    double rates[ROUNDS_MAX], late[ROUNDS_MAX]; /* late: p99.9 in seconds */
} side;

static side side_start(const bench *b, bool has_state, const load_options *options) {
    side s = {.peer = has_state ? peer_state_server(b, NULL, NULL) : peer_server(b)};
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

/* Measures decisions with and without a file. The keys are used in rotation. So if there are more
 * decisions a second than keys, each key changes in every second and is written once a second. A
 * message has `items` permits. Both servers have the same load, one after the other. */
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

/* Measures permits that arrive at random times, 5,000 a second, for 5,000 keys in turn. */
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

/* Until the store is read, asks for permits that no row concerns. Returns the longest time of such
 * a permit, in seconds.
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
    must(doorman_clock() < end, "the counters were not read");
    load_close(l);
    return longest;
}

/* Measures how fast rows are read. On a slow machine the server cannot write all rows before it
 * ends, and fewer are read.
 *   redis   NULL: they are in a file */
static void reading(bench *b, const peer *redis, goal to) {
    const char *store = redis ? "a Redis" : "a file";
    double rows = 0;
    bench_step(b, "the counters in %s are read", store);
    peer *p = peer_state_server(b, redis, NULL);
    fill(b, p, b->quick ? 50000 : 1000000);
    peer_restart(b, p);
    doorman_time start = doorman_clock();
    double longest = ask_while_reading(b, p, &rows), cpu = peer_seconds(p);
    double seconds = (double)(doorman_clock() - start) / 1e9;
    bench_row(b, seconds * 1e6 / rows, "s", to,
              "a million rows of counters in %s are read in (%.0f were)", store, rows);
    bench_row(b, cpu * 1e6 / rows, "s", ANY, "  CPU time of the server meanwhile");
    bench_row(b, 1e3 * longest, "ms", MOST(5), "  the slowest of other permits meanwhile");
    peer_stop(p);
}

/* ---- a planned restart ----------------------------------------------------------------------- */

/* Sends a message. Returns whether an answer with the expected text comes. */
static bool ask(const peer *p, const char *message, const char *expected) {
    char url[40], *answer = NULL;
    size_t bytes = 0;
    nng_socket socket;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", (unsigned)p->port);
    must(nng_req0_open(&socket) == 0, "cannot open a socket");
    nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 1000);
    bool has = nng_dial(socket, url, NULL, 0) == 0 &&
               nng_send(socket, (void *)(uintptr_t)message, strlen(message), 0) == 0 &&
               nng_recv(socket, &answer, &bytes, NNG_FLAG_ALLOC) == 0 &&
               memmem(answer, bytes, expected, strlen(expected));
    if (answer) nng_free(answer, bytes);
    nng_close(socket);
    return has;
}

/* What must work again. */
typedef enum again { A_PERMIT, A_LEASE, A_HOLD, AGAIN_COUNT } again;

/* A server alone, or two processes with an election. */
typedef struct pair {
    peer *all[2];
    size_t count;
    size_t master; /* the index of the one that has answered last */
} pair;

/* Waits until a new client gets what it asks for. Returns the seconds since `start`. */
static double await_again(bench *b, pair *to, again what, doorman_time start) {
    static const char *const formats[] = {
        "{\"acquire\":{\"client_id\":\"new-%d\",\"permit\":[{\"item\":[{\"resource_id\":\"quota\","
        "\"key\":\"new\"}]}]}}",
        "{\"get_capacity\":{\"client_id\":\"new-%d\",\"resource\":[{\"resource_id\":"
        "\"kept/lease\",\"priority\":1,\"wants\":1}]}}",
        "{\"acquire\":{\"client_id\":\"new-%d\",\"permit\":[{\"request_id\":1,\"item\":"
        "[{\"resource_id\":\"kept/hold\",\"key\":\"new\"}]}]}}"};
    static int clients;
    char message[256];
    snprintf(message, sizeof message, formats[what], ++clients);
    while (!ask(to->all[to->master], message, what == A_LEASE ? "\"gets\"" : "GRANTED")) {
        to->master = (to->master + 1) % to->count;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        must(doorman_clock() - start < TIMEOUT, "a restarted server does not serve");
        bench_tick(b);
    }
    return (double)(doorman_clock() - start) / 1e9;
}

/* Measures planned restarts. All counters have changed in the last second. The process that ends is
 * started again at once. If it does not get the key of the election soon enough, the other process
 * gets the key. */
static void restart(bench *b, pair *servers, const char *name, goal to) {
    static const char *const names[] = {", until it decides", "  until a new client has a lease",
                                        "  until a new client has a hold"};
    double gaps[AGAIN_COUNT][ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : 5;
    for (again what = 0; what < AGAIN_COUNT; what++) {
        await_again(b, servers, what, doorman_clock());
    }
    for (size_t i = 0; i < rounds; i++) {
        peer *master = servers->all[servers->master];
        fill(b, master, 10000);
        doorman_time start = doorman_clock();
        peer_restart(b, master);
        for (again what = 0; what < AGAIN_COUNT; what++) {
            gaps[what][i] = await_again(b, servers, what, start);
        }
    }
    for (again what = 0; what < AGAIN_COUNT; what++) {
        bench_row(b, median(gaps[what], rounds), "s", to, "%s%s", what ? "" : name, names[what]);
    }
    for (size_t i = 0; i < servers->count; i++) peer_stop(servers->all[i]);
}

static void restart_alone(bench *b) {
    pair servers = {.all = {peer_state_server(b, NULL, NULL)}, .count = 1};
    bench_step(b, "a planned restart with 10,000 counters");
    restart(b, &servers, "a planned restart with 10,000 counters", MOST(1));
}

static void with_redis(bench *b) {
#ifdef BENCH_REDIS
    peer *etcd = NULL, *redis = NULL;
    if (!peers_find(b, "counters in a Redis", &etcd, &redis)) return;
    reading(b, redis, MOST(6));
    peer_stop(redis);
    peer_stop(etcd);
    if (!peers_find(b, "a planned stop of a master", &etcd, &redis)) return;
    pair servers = {.count = 2};
    for (size_t i = 0; i < 2; i++) servers.all[i] = peer_state_server(b, redis, etcd);
    restart(b, &servers, "the same with a standby and a Redis", MOST(2));
    peer_stop(redis);
    peer_stop(etcd);
#else
    bench_skip(b, "counters in a Redis", "the part REDIS of the server");
#endif
}

void bench_state(bench *b) {
    decisions(b, "5,000", 5000, 1, LEAST(0.95));
    decisions(b, "50,000", 50000, 10, LEAST(0.7));
    latency(b);
    reading(b, NULL, MOST(2));
    restart_alone(b);
    with_redis(b);
}
