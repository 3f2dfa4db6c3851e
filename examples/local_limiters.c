/* The limiters that need no server. Each gets the same requests and allows at most 5 a second. Time
 * is a variable, so the program does not wait, and prints the same text every time.
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

static void check(doorman_status status) {
    if (status == DOORMAN_OK) return;
    fprintf(stderr, "local_limiters: %s\n", doorman_status_text(status));
    exit(1);
}

/* Prints one column: `*` allowed at once, a number: allowed after a wait in tenths of a second, `-`
 * refused. */
static void print_decision(doorman_decision decision, doorman_time wait) {
    if (decision != DOORMAN_ALLOWED) {
        printf("  -");
    } else if (wait == 0) {
        printf("  *");
    } else {
        printf("%3d", (int)((wait + DOORMAN_SECOND / 20) / (DOORMAN_SECOND / 10)));
    }
}

static void rate(void) {
    doorman_rate limiter;
    check(doorman_rate_init(&limiter, LIMIT, 0, 0));
    printf("\nrate            ");
    for (int i = 0; i < COUNT; i++) print_decision(doorman_rate_try(&limiter, 1, time_of(i)), 0);
}

static void token_bucket(void) {
    doorman_token_bucket bucket;
    check(doorman_token_bucket_init(&bucket, LIMIT, LIMIT, 0));
    printf("\ntoken bucket    ");
    for (int i = 0; i < COUNT; i++) {
        print_decision(doorman_token_bucket_try(&bucket, 1, time_of(i)), 0);
    }
}

static void leaky_bucket(void) {
    doorman_leaky_bucket bucket;
    check(doorman_leaky_bucket_init(&bucket, LIMIT, LIMIT, 0));
    printf("\nleaky bucket    ");
    for (int i = 0; i < COUNT; i++) {
        doorman_time wait = 0;
        doorman_decision decision = doorman_leaky_bucket_try(&bucket, 1, &wait, time_of(i));
        print_decision(decision, wait);
    }
}

static void debt_bucket(void) {
    doorman_debt_options options = {.units_per_second = LIMIT,
                                    .capacity = LIMIT,
                                    .debt_max = LIMIT,
                                    .wait_max = DOORMAN_SECOND / 2};
    doorman_debt_bucket bucket;
    check(doorman_debt_bucket_init(&bucket, &options, 0));
    printf("\nbucket with debt");
    for (int i = 0; i < COUNT; i++) {
        doorman_time wait = 0;
        doorman_decision decision = doorman_debt_bucket_try(&bucket, 1, &wait, time_of(i));
        print_decision(decision, wait);
    }
}

static void fixed_window(void) {
    doorman_fixed_window window;
    check(doorman_fixed_window_init(&window, LIMIT, DOORMAN_SECOND, 0));
    printf("\nfixed window    ");
    for (int i = 0; i < COUNT; i++) {
        print_decision(doorman_fixed_window_try(&window, 1, time_of(i)), 0);
    }
}

static void sliding_window(void) {
    doorman_sliding_window window;
    check(doorman_sliding_window_init(&window, LIMIT, DOORMAN_SECOND, 0));
    printf("\nsliding window  ");
    for (int i = 0; i < COUNT; i++) {
        print_decision(doorman_sliding_window_try(&window, 1, time_of(i)), 0);
    }
}

static void sliding_log(void) {
    doorman_arrival room[LIMIT];
    doorman_sliding_log log;
    check(doorman_sliding_log_init(&log, LIMIT, DOORMAN_SECOND, room));
    printf("\nsliding log     ");
    for (int i = 0; i < COUNT; i++) {
        print_decision(doorman_sliding_log_try(&log, 1, time_of(i)), 0);
    }
}

int main(void) {
    printf("*: allowed at once; 3: allowed after 0.3 s; -: refused\n\n");
    printf("at (seconds)    ");
    for (int i = 0; i < COUNT; i++) {
        bool again = i > 0 && arrivals[i] == arrivals[i - 1];
        if (again) printf("   ");
        if (!again) printf(" %d.%d", arrivals[i] / 10, arrivals[i] % 10);
    }
    rate();
    token_bucket();
    leaky_bucket();
    debt_bucket();
    fixed_window();
    sliding_window();
    sliding_log();
    printf("\n");
    return 0;
}
