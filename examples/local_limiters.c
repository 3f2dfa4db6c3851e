/* The limiters that need no server. Each limiter gets the same requests, and is set to 5 a second.
 * How many it allows in a burst depends on its kind. The last limiter allows 5 requests at once,
 * and each request takes half a second. Time is a variable, so the program does not wait, and
 * prints the same text every time.
 *
 *     cc -I. examples/local_limiters.c -o local_limiters && ./local_limiters
 */
#define DOORMAN_IMPLEMENTATION
#include "doorman.h"

#include <stdio.h>
#include <stdlib.h>

/* Arrival times in tenths of a second: bursts just before and at a full second, an even stream, a
 * pause, and another burst. */
static const int arrivals[] = {9,  9,  9,  9,  9,  10, 10, 10, 10, 10, 12, 14,
                               16, 18, 20, 22, 24, 40, 40, 40, 40, 40, 40, 40};
enum { COUNT = sizeof arrivals / sizeof *arrivals, LIMIT = 5 };

static doorman_time time_of(int i) { return arrivals[i] * DOORMAN_SECOND / 10; }

static void check(doorman_status status, const char *what) {
    if (status == DOORMAN_OK) return;
    fprintf(stderr, "local_limiters: %s: %s\n", what, doorman_status_name(status));
    exit(1);
}

/* Prints one column. `*`: allowed at once. A number: allowed after a wait; the number is in
 * tenths of a second. `-`: refused. */
static void print_decision(doorman_decision decision, doorman_time wait) {
    if (decision != DOORMAN_ALLOWED) {
        printf("  -");
    } else if (wait == 0) {
        printf("  *");
    } else {
        printf("%3d", (int)((wait + DOORMAN_SECOND / 20) / (DOORMAN_SECOND / 10)));
    }
}

/* Releases the units of all requests that began half a second ago or earlier. */
static void release_finished(doorman_limiter *limiter, const doorman_limit *limit, bool *allowed,
                             doorman_time now) {
    for (int i = 0; i < COUNT; i++) {
        if (!allowed[i] || now - time_of(i) < DOORMAN_SECOND / 2) continue;
        doorman_limiter_release(limiter, limit, 1);
        allowed[i] = false;
    }
}

static void print_limiter(const char *name, const doorman_limit_options *options) {
    doorman_error error = {0};
    doorman_limit limit;
    doorman_limiter limiter;
    doorman_arrival room[LIMIT];
    check(doorman_limit_init(&limit, options, &error), error.text);
    bool log = options->kind == DOORMAN_SLIDING_LOG;
    check(doorman_limiter_init(&limiter, &limit, log ? room : NULL, 0), name);
    printf("\n%-16s", name);
    bool allowed[COUNT] = {false};
    for (int i = 0; i < COUNT; i++) {
        doorman_result result;
        bool concurrency = options->kind == DOORMAN_CONCURRENCY;
        if (concurrency) release_finished(&limiter, &limit, allowed, time_of(i));
        doorman_decision decision = doorman_limiter_try(&limiter, &limit, 1, &result, time_of(i));
        allowed[i] = decision == DOORMAN_ALLOWED;
        print_decision(decision, result.wait);
    }
}

static const struct {
    const char *name;
    doorman_limit_options options;
} limiters[] = {
    {"token bucket", {.kind = DOORMAN_TOKEN_BUCKET, .rate = LIMIT, .size = LIMIT}},
    {"leaky bucket", {.kind = DOORMAN_TOKEN_BUCKET, .rate = LIMIT, .max_debt = DOORMAN_SECOND}},
    {"bucket with debt",
     {.kind = DOORMAN_TOKEN_BUCKET,
      .rate = LIMIT,
      .size = LIMIT,
      .max_debt = DOORMAN_SECOND,
      .has_max_wait = true,
      .max_wait = DOORMAN_SECOND / 2}},
    {"fixed window", {.kind = DOORMAN_FIXED_WINDOW, .limit = LIMIT, .window = DOORMAN_SECOND}},
    {"sliding window", {.kind = DOORMAN_SLIDING_WINDOW, .limit = LIMIT, .window = DOORMAN_SECOND}},
    {"sliding log", {.kind = DOORMAN_SLIDING_LOG, .limit = LIMIT, .window = DOORMAN_SECOND}},
    {"concurrency", {.kind = DOORMAN_CONCURRENCY, .limit = LIMIT}},
};

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: local_limiters\n");
        return 0;
    }
    printf("*: allowed at once; 3: allowed after 0.3 s; -: refused\n\n");
    printf("at (seconds)    ");
    for (int i = 0; i < COUNT; i++) {
        bool again = i > 0 && arrivals[i] == arrivals[i - 1];
        if (again) printf("   ");
        if (!again) printf(" %d.%d", arrivals[i] / 10, arrivals[i] % 10);
    }
    for (size_t i = 0; i < sizeof limiters / sizeof *limiters; i++) {
        print_limiter(limiters[i].name, &limiters[i].options);
    }
    printf("\n");
    return 0;
}
