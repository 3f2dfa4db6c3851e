/* What a server with --state remembers when the time of day has changed while it was stopped: a
 * month's end has come, or somebody has set the clock. clock_shift.c shifts the clock. */
#define _GNU_SOURCE
#include "state_fixture.h"

#define HOUR 3600
#define DAY (24 * HOUR)

#define MONTHLY                                                                                    \
    MAPS("{\"name\": \"quota\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000000, \"window\": "      \
         "\"month\"}")
#define SLIDING                                                                                    \
    MAPS("{\"name\": \"quota\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1000000, \"window\": "    \
         "172800}")
#define HOURLY_BUCKET                                                                              \
    MAPS("{\"name\": \"quota\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.25, \"size\": 1000000}")

/* Returns the first second of the month that is `months` after this month, in UTC. */
static int64_t month_begin(int months) {
    time_t now = time(NULL);
    struct tm date;
    gmtime_r(&now, &date);
    struct tm first = {.tm_year = date.tm_year, .tm_mon = date.tm_mon + months, .tm_mday = 1};
    return (int64_t)timegm(&first);
}

/* Starts a server whose clock is ahead of the clock of the machine by `seconds`. */
static struct fixture start_at(const char *config, const char *path, int64_t seconds) {
    char shift[32];
    snprintf(shift, sizeof shift, "%lld", (long long)seconds);
    setenv("CLOCK_SHIFT", shift, 1);
    setenv("LD_PRELOAD", "build/clock_shift.so", 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    struct fixture fixture = start(config, path, NULL);
    unsetenv("LD_PRELOAD");
    unsetenv("ASAN_OPTIONS");
    return fixture;
}

/* Uses 1,000 units at the time `stopped`, and returns how many are used after a planned restart at
 * the time `started`. Both are seconds from now. */
static long used_after(const char *config, int64_t stopped, int64_t started) {
    char path[96];
    state_path(path);
    struct fixture fixture = start_at(config, path, stopped);
    take(&fixture, "ann", 1000);
    server_stop(&fixture.server);
    fixture = start_at(config, path, started);
    long result = used(&fixture, "ann");
    server_stop(&fixture.server);
    return result;
}

TEST(a_quota_is_full_again_after_a_months_end_and_not_before) {
    int64_t end = month_begin(1) - time(NULL);
    assert_int_equal(used_after(MONTHLY, end - 2 * HOUR, end - HOUR), 1000);
    assert_int_equal(used_after(MONTHLY, end - HOUR, end + HOUR), 0);
    assert_int_equal(used_after(MONTHLY, end + HOUR, end + 2 * DAY), 1000);
}

/* Nobody must get a quota twice by setting the clock back. */
TEST(a_clock_that_is_set_back_over_a_months_end_does_not_fill_a_quota) {
    int64_t end = month_begin(1) - time(NULL);
    assert_int_equal(used_after(MONTHLY, end + HOUR, end - HOUR), 1000);
}

TEST(a_clock_that_steps_by_an_hour_moves_windows_by_no_more) {
    assert_int_equal(used_after(SLIDING, 0, HOUR), 1000);
    assert_int_equal(used_after(SLIDING, 0, -HOUR), 1000);
    assert_int_equal(used_after(SLIDING, 0, 3 * DAY), 0);
}

/* A quarter of a unit comes back in a second, so 900 in an hour. */
TEST(a_clock_that_steps_by_an_hour_fills_a_bucket_for_an_hour) {
    long used_then = used_after(HOURLY_BUCKET, 0, HOUR);
    assert_in_range(used_then, 1, 100);
    assert_in_range(used_after(HOURLY_BUCKET, 0, -HOUR), used_then + 800, 1000);
}

/* The time between stop and start counts for a ban, so a clock that is set ahead ends the ban
 * earlier. A clock that is set back does not make the ban longer. */
TEST(a_ban_of_two_hours_outlasts_a_clock_that_steps_by_an_hour) {
    static const char config[] =
        MAPS("{\"name\": \"few\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 1, "
             "\"ban\": {\"refusals\": 1, \"window\": 60, \"duration\": 7200}}");
    static const int64_t starts[] = {-HOUR, HOUR, 3 * HOUR};
    const char *ask = "/v1/allow?resource=maps&key=ann&cost=1";
    char path[96];
    state_path(path);
    struct fixture fixture = start_at(config, path, 0);
    expect(&fixture, ask, HOST, 200, "GRANTED");
    for (int i = 0; i < 2; i++) free(get(&fixture, ask, HOST));
    expect(&fixture, ask, HOST, 429, "\"reason\":\"BANNED\"");
    server_stop(&fixture.server);
    for (int i = 0; i < 3; i++) {
        fixture = start_at(config, path, starts[i]);
        if (i < 2) {
            expect(&fixture, ask, HOST, 429, "\"reason\":\"BANNED\"");
        } else {
            expect(&fixture, ask, HOST, 200, "GRANTED");
        }
        server_stop(&fixture.server);
    }
}
