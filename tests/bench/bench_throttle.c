/* A throttle in one process on one core, with 10,000 requests that wait. A request is one offer,
 * one next and one finish, so the queue keeps its length. A pause is the longest time that one call
 * takes. */
#include "bench.h"

#include <stdlib.h>

enum { ROUNDS = 5, WAITING = 10000, CLASSES = 16, USERS = 64 };

typedef struct throttle_load {
    doorman_throttle *throttle;
    uint64_t last_id, random;
    doorman_time now;
    bool whole; /* requests have a user and a deadline, and criticalities and classes differ */
    char users[USERS][HOLDER_ID_BYTES + 1];
} throttle_load;

static void offer(throttle_load *l) {
    doorman_throttle_request request = {.id = ++l->last_id};
    if (l->whole) {
        request.class_id = random_below(&l->random, CLASSES);
        request.criticality = (unsigned)random_below(&l->random, DOORMAN_CRITICALITIES);
        request.user = l->users[random_below(&l->random, USERS)];
        request.deadline =
            l->now + 100 * DOORMAN_SECOND + (doorman_time)random_below(&l->random, 1000000);
    }
    must(doorman_throttle_offer(l->throttle, &request, NULL, l->now) != DOORMAN_THROTTLE_REFUSED,
         "a throttle refuses a request that it has room for");
}

static void start(throttle_load *l, bool whole) {
    const doorman_throttle_options options = {.queue_cost = 2 * WAITING,
                                              .queue_max = 2 * WAITING,
                                              .concurrency = CLASSES,
                                              .max_wait = 40 * DOORMAN_SECOND,
                                              .seed = {1, 2}};
    *l = (throttle_load){.random = 1, .now = DOORMAN_SECOND, .whole = whole};
    for (size_t i = 0; i < USERS; i++) write_holder_id(l->users[i], i);
    must(doorman_throttle_create(&l->throttle, &options, NULL) == DOORMAN_OK,
         "cannot make a throttle");
    for (size_t i = 0; i < WAITING; i++) offer(l);
}

/* Offers, starts and finishes requests. Time stands still, so no request waits too long. */
static void some_requests(void *context) {
    throttle_load *l = (throttle_load *)context;
    for (size_t i = 0; i < BENCH_SOME; i++) {
        uint64_t id = 0;
        offer(l);
        must(doorman_throttle_next(l->throttle, &id, l->now), "a throttle starts nothing");
        must(doorman_throttle_finish(l->throttle, id, 1, l->now), "a request was lost");
    }
}

/* Lets all requests wait too long. Returns the time of the longest call until all refusals are
 * read. */
static doorman_time time_out(throttle_load *l) {
    doorman_throttle_refusal refusal;
    size_t count = 0;
    l->now += 60 * DOORMAN_SECOND;
    doorman_time began = cpu_time();
    doorman_throttle_update(l->throttle, l->now);
    doorman_time longest = 0;
    note_pause(&longest, began);
    bool more = true;
    while (more) {
        began = cpu_time();
        more = doorman_throttle_next_refused(l->throttle, &refusal);
        note_pause(&longest, began);
        count += more;
    }
    must(count == WAITING, "requests do not time out");
    return longest;
}

void bench_throttle(bench *b) {
    static throttle_load only;
    throttle_load *l = &only;
    bench_step(b, "a throttle");
    bench_clock(b, "a throttle");
    for (int whole = 0; whole < 2; whole++) {
        const char *with = whole ? "  with users, deadlines, criticalities and classes" : NULL;
        start(l, whole);
        bench_row(b, 1e9 / bench_rate(b, some_requests, l), "ns", whole ? ANY : MOST(200), "%s",
                  with ? with : "offer, next and finish, 10,000 requests wait");
        double pauses[ROUNDS];
        for (size_t i = 0; i < ROUNDS; i++) {
            pauses[i] = (double)time_out(l);
            for (size_t k = 0; k < WAITING; k++) offer(l);
        }
        bench_row(b, median(pauses, ROUNDS) / 1e6, "ms", MOST(1),
                  "  longest pause while all time out");
        doorman_throttle_destroy(l->throttle);
    }
}
