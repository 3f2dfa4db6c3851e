/* What events cost: the CPU time of the server for a permit, in messages of 100 permits. The
 * benchmark compares four servers: one without --events, one with --events and no subscriber, one
 * whose subscriber gets a hundredth of the grants, and one whose subscriber gets all grants. The
 * servers take turns. The subscribers run in this process, on the same cores. */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/supplemental/util/platform.h>

enum { ROUNDS_MAX = 48, SIDES = 4, PERMITS = 100 };
#define ROUND_LENGTH (DOORMAN_SECOND / 10)

typedef struct subscriber {
    pthread_t thread;
    nng_socket socket;
    uint64_t count; /* events that have come; atomic */
} subscriber;

typedef struct side {
    peer *peer;
    load *load;
    subscriber *subscriber; /* NULL: none */
    double rates[ROUNDS_MAX];
    double seconds, permits; /* CPU time of the server, and permits */
} side;

static void *subscriber_main(void *context) {
    subscriber *own = (subscriber *)context;
    nng_msg *message = NULL;
    while (nng_recvmsg(own->socket, &message, 0) == 0) {
        nng_msg_free(message);
        __atomic_add_fetch(&own->count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void subscriber_start(subscriber *own, const peer *to) {
    char url[64];
    double port = 0;
    const doorman_time end = doorman_clock() + TIMEOUT;
    while (!peer_read_log(to, " events=tcp://127.0.0.1:", &port)) {
        must(doorman_clock() < end, "the server publishes nothing");
        nng_msleep(10);
    }
    snprintf(url, sizeof url, "tcp://127.0.0.1:%.0f", port);
    must(nng_sub0_open(&own->socket) == 0 &&
             nng_socket_set(own->socket, NNG_OPT_SUB_SUBSCRIBE, "", 0) == 0 &&
             nng_dial(own->socket, url, NULL, 0) == 0 &&
             pthread_create(&own->thread, NULL, subscriber_main, own) == 0,
         "cannot subscribe to events");
}

static void side_start(const bench *b, side *s, const char *sample, subscriber *by) {
    s->peer = sample ? peer_event_server(b, sample) : peer_server(b);
    const load_options options = {.to = s->peer,
                                  .connections = 16,
                                  .in_flight = 1,
                                  .permits = true,
                                  .resources = PERMITS,
                                  .holders = 64,
                                  .resource = "permits/64"};
    s->load = load_open(&options);
    s->subscriber = by;
    if (by) subscriber_start(by, s->peer);
    load_round(s->load, ROUND_LENGTH);
}

static void side_stop(side *s) {
    load_close(s->load);
    if (s->subscriber) {
        nng_close(s->subscriber->socket);
        pthread_join(s->subscriber->thread, NULL);
        must(s->subscriber->count > 0, "the subscriber got no events");
    }
    peer_stop(s->peer);
}

static void run_round(side *s, size_t round) {
    const double before = peer_seconds(s->peer);
    const uint64_t answered = load_answered(s->load);
    s->rates[round] = PERMITS * load_round(s->load, ROUND_LENGTH);
    s->seconds += peer_seconds(s->peer) - before;
    s->permits += PERMITS * (double)(load_answered(s->load) - answered);
}

/* Compares CPU time, because it depends less on other work of the machine than rates do. */
static void report(bench *b, side *sides, size_t rounds) {
    static const char *const names[SIDES] = {"messages of 100 permits, 16 connections",
                                             "  CPU time, with --events and no subscriber",
                                             "  CPU time, with a subscriber to 1 % of the grants",
                                             "  CPU time, with a subscriber to all grants"};
    const goal goals[SIDES] = {ANY, MOST(1.1), MOST(1.15), ANY};
    const double alone = sides[0].seconds / sides[0].permits;
    bench_row(b, median(sides[0].rates, rounds), "permits/s", ANY, "%s", names[0]);
    bench_row(b, 1e6 * alone, "us", ANY, "  CPU time of the server for a permit");
    for (int i = 1; i < SIDES; i++) {
        bench_row(b, sides[i].seconds / sides[i].permits / alone, "times", goals[i], "%s",
                  names[i]);
    }
}

void bench_events(bench *b) {
    static const char *const samples[SIDES] = {NULL, "1", "0.01", "1"};
    side sides[SIDES] = {{.peer = NULL}};
    subscriber subscribers[SIDES] = {{.count = 0}};
    const size_t rounds = b->quick ? 12 : ROUNDS_MAX;
    bench_step(b, "permits with and without events");
    for (int i = 0; i < SIDES; i++) {
        side_start(b, &sides[i], samples[i], i > 1 ? &subscribers[i] : NULL);
    }
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < SIDES; i++) run_round(&sides[(round + i) % SIDES], round);
        bench_tick(b);
    }
    for (int i = 0; i < SIDES; i++) side_stop(&sides[i]);
    report(b, sides, rounds);
}
