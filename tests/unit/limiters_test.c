/* Tests section >>limiters of doorman.h: rates, gauges and limiters without a server. One thread
 * calls them with a clock that is a variable, or 16 threads call them. doorman.h defines the
 * rules. */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)
#define MINUTE (60 * DOORMAN_SECOND)
#define DAY (INT64_C(86400) * DOORMAN_SECOND)
#define YEAR (365 * DAY)

/* ---- helpers ---- */

static doorman__rate rate_of(double units_per_second, doorman_time burst, doorman_time now) {
    doorman__rate rate;
    doorman__rate_init(&rate, units_per_second, burst, 0, now);
    return rate;
}

static doorman__gauge gauge_of(double capacity) {
    doorman__gauge gauge;
    doorman__gauge_init(&gauge, capacity);
    return gauge;
}

static doorman__rate rate_with_units(double units_per_second, double burst, doorman_time now) {
    doorman__rate rate;
    doorman__rate_init(&rate, units_per_second, 0, burst, now);
    return rate;
}

static void set_shadow(doorman__usage *usage, bool on) {
    doorman__usage_bypass(usage, DOORMAN__SHADOW, on);
}

/* Tries `tries` times for one unit, each time at `now`. Returns how many are allowed. */
static int count_allowed(doorman__rate *rate, int tries, doorman_time now) {
    int allowed = 0;
    for (int i = 0; i < tries; i++) allowed += doorman__rate_try(rate, 1, now) == DOORMAN_ALLOWED;
    return allowed;
}

/* A resource without a lease, which may use what it wants. So a test can set its capacity. */
typedef struct source {
    doorman_client *client;
    doorman_client_resource *resource;
} source;

static source source_open_as(doorman_resource_kind kind, double capacity, doorman_time burst,
                             doorman_time now) {
    static const char *const address = "tcp://a:1";
    const doorman_client_options client = {
        .client_id = "client", .addresses = &address, .address_count = 1, .seed = 1};
    const doorman_resource_options resource = {.resource_id = "db",
                                               .kind = kind,
                                               .wants = 1,
                                               .burst = burst,
                                               .fallback = DOORMAN_OPTIMISTIC};
    source s;
    assert_int_equal(doorman_client_create(&s.client, &client, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&s.resource, s.client, &resource, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_client_set_wants(s.resource, capacity, now), DOORMAN_OK);
    return s;
}

static source source_open(double rate, doorman_time burst, doorman_time now) {
    return source_open_as(DOORMAN_RATE, rate, burst, now);
}

static source source_open_gauge(double capacity) {
    return source_open_as(DOORMAN_GAUGE, capacity, 0, 0);
}

static void source_set(const source *s, double capacity, doorman_time now) {
    assert_int_equal(doorman_client_set_wants(s->resource, capacity, now), DOORMAN_OK);
}

/* ---- L1: the bound ---- */

/* One try. */
typedef struct history_entry {
    doorman_time at;
    double rate;    /* the rate from this try to the next */
    double largest; /* the largest request up to this one */
    double taken;   /* the units that this try took */
} history_entry;

/* Checks the bound by a slow recount. Between any two tries, the units taken are at most the sum of
 * two amounts. The first amount is the integral of the rate. The second amount is what may have
 * been saved before the first try: the rate at that time * burst, but at least one unit, and at
 * least the largest request. */
static void check_every_window(const history_entry *history, size_t count, doorman_time burst) {
    double seconds = (double)burst / (double)SECOND;
    for (size_t first = 0; first < count; first++) {
        double taken = 0, flowed = 0, saved = fmax(1, history[first].rate * seconds);
        for (size_t last = first; last < count; last++) {
            const history_entry *now = &history[last];
            taken += now->taken;
            saved = fmax(saved, now->largest);
            if (taken > (flowed + saved) * (1 + 1e-8)) {
                fail_msg("moments %zu to %zu: %.17g taken of %.17g and %.17g saved", first, last,
                         taken, flowed, saved);
            }
            if (last + 1 < count) {
                flowed += now->rate * (double)(now[1].at - now->at) / (double)SECOND;
            }
        }
    }
}

static double random_rate(void) { return pow(10, random_unit() * 8 - 2); }

/* Returns the time until the next try. This time is sometimes 0, sometimes long, and mostly the
 * time of a few units. */
static doorman_time random_pause(double rate, doorman_time burst) {
    size_t kind = random_below(10);
    if (kind == 0) return 0;
    if (kind == 1) return burst * (doorman_time)random_below(20);
    double units = random_unit() * 3;
    return (doorman_time)(units / fmax(rate, 0.01) * 1e9);
}

/* Returns one unit, a random amount, or 0 so that units can be saved. */
static double random_units(double rate, doorman_time burst, bool single) {
    size_t kind = random_below(5);
    if (kind == 0) return 0;
    return kind < 3 || single ? 1 : 2 * random_unit() * fmax(1, rate * (double)burst / 1e9);
}

enum { HISTORY_LENGTH = 400 };

/* Tries at random times for random amounts, or for single units. The rate changes at one try in
 * `every`. If `every` is 0, the rate never changes. */
static void run_randomly(history_entry *history, doorman_time burst, size_t every, bool may_rise,
                         bool single) {
    doorman_time now = 1000 * SECOND;
    double rate = random_rate(), largest = 0;
    source s = source_open(rate, burst, now);
    for (size_t i = 0; i < HISTORY_LENGTH; i++) {
        now += random_pause(rate, burst);
        if (every && random_below(every) == 0) {
            double other = random_below(4) ? random_rate() : 0;
            rate = may_rise ? other : fmin(rate, other + 0.5 * rate);
            source_set(&s, rate, now);
        }
        double n = random_units(rate, burst, single);
        bool allowed = doorman_client_try(s.resource, n, NULL, now) == DOORMAN_ALLOWED;
        largest = fmax(largest, n);
        history[i] = (history_entry){now, rate, largest, allowed ? n : 0};
    }
    doorman_client_destroy(s.client);
}

static doorman_time random_burst(void) {
    return (doorman_time)(1 + random_below(2000)) * MILLISECOND;
}

static void check_histories(size_t every, bool may_rise) {
    static history_entry history[HISTORY_LENGTH];
    for (int i = 0; i < 100; i++) {
        doorman_time burst = random_burst();
        run_randomly(history, burst, every, may_rise, i % 2);
        check_every_window(history, HISTORY_LENGTH, burst);
    }
}

/* L1 */
TEST(a_steady_rate_is_never_exceeded_in_any_window) { check_histories(0, false); }

/* L1 */
TEST(a_rate_that_falls_is_never_exceeded_in_any_window) { check_histories(10, false); }

/* L1: the rate falls and rises again. */
TEST(a_rate_that_changes_is_never_exceeded_in_any_window) { check_histories(5, true); }

/* L1: a burst that was saved at a low rate has no more units at a high rate. Otherwise each move of
 * capacity between two holders would add a burst. */
TEST(a_higher_rate_does_not_enlarge_the_saved_burst) {
    source s = source_open(0, 0, 0);
    doorman__rate *rate = &s.resource->rate;
    doorman_time now = 0;
    int allowed = 0;
    for (int i = 0; i < 10; i++) {
        source_set(&s, 0, now);
        assert_int_equal(count_allowed(rate, 1, now), 0);
        now += 100 * MILLISECOND;
        source_set(&s, 1000, now);
        for (int ms = 0; ms <= 100; ms++) {
            allowed += count_allowed(rate, 200, now + ms * MILLISECOND);
        }
        now += 100 * MILLISECOND;
    }
    assert_in_range(allowed, 900, 1100); /* 1 s at 1000 a second, and a burst of 0.1 s */
    doorman_client_destroy(s.client);
}

/* L1 */
TEST(a_rate_that_is_tried_all_the_time_is_fully_used) {
    static const double rates[] = {0.5, 1, 3, 6, 7, 9, 10, 33, 97, 1000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        doorman__rate rate = rate_of(rates[i], 0, 0);
        int allowed = 0;
        doorman_time end = (doorman_time)(100 / rates[i] * 1e9), step = end / 10000;
        for (doorman_time now = 0; now <= end; now += step) allowed += count_allowed(&rate, 1, now);
        assert_in_range(allowed, 98, 100);
    }
}

/* ---- L1: the burst ---- */

/* L1 */
TEST(a_rate_starts_empty) {
    doorman__rate rate = rate_of(10, 0, 5 * SECOND);
    assert_int_equal(doorman__rate_try(&rate, 1, 5 * SECOND), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_try(&rate, 1, 5 * SECOND + 100 * MILLISECOND - 1),
                     DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_try(&rate, 1, 5 * SECOND + 100 * MILLISECOND), DOORMAN_ALLOWED);
}

/* L1: the first rate is the rate of the example in the comment of the section. */
TEST(unused_time_is_saved_for_one_burst) {
    doorman__rate rate = rate_of(10, 0, 0);
    assert_int_equal(count_allowed(&rate, 5, 5 * SECOND), 1);
    assert_int_equal(doorman__rate_delay(&rate, 1, 5 * SECOND), 100 * MILLISECOND);
    doorman__rate larger = rate_of(100, 2 * SECOND, 0);
    assert_int_equal(count_allowed(&larger, 500, MINUTE), 200);
    assert_int_equal(count_allowed(&larger, 500, MINUTE + SECOND), 100);
    assert_int_equal(count_allowed(&larger, 500, MINUTE + SECOND), 0); /* the clock has not moved */
}

/* L1: with every rate, the whole burst passes at once, to the exact unit. */
TEST(a_whole_burst_can_be_used_at_once) {
    for (int units = 1; units <= 2000; units++) {
        doorman__rate second = rate_of(units, SECOND, 0);
        assert_int_equal(doorman__rate_delay(&second, units, 0), SECOND);
        assert_int_equal(doorman__rate_try(&second, units, SECOND - 1), DOORMAN_REFUSED);
        assert_int_equal(doorman__rate_try(&second, units, SECOND), DOORMAN_ALLOWED);
        doorman__rate tenth = rate_of(10 * units, 0, 0);
        assert_int_equal(doorman__rate_try(&tenth, units, MINUTE), DOORMAN_ALLOWED);
        assert_int_equal(doorman__rate_try(&tenth, units, MINUTE), DOORMAN_REFUSED);
    }
}

/* L1: no request is too large for a rate, unless the burst is a number of units. */
TEST(a_request_larger_than_the_burst_saves_up_for_it) {
    doorman__rate rate = rate_of(100, 0, 0); /* the burst is worth 10 units */
    assert_int_equal(count_allowed(&rate, 20, MINUTE), 10);
    assert_int_equal(doorman__rate_try(&rate, 20, MINUTE), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_delay(&rate, 20, MINUTE), 200 * MILLISECOND);
    doorman_time due = MINUTE + 200 * MILLISECOND;
    assert_int_equal(doorman__rate_try(&rate, 20, due - 1), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_try(&rate, 20, due), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_try(&rate, 1, due), DOORMAN_REFUSED);
    /* A try for one unit drops what was saved beyond the burst. */
    assert_int_equal(doorman__rate_try(&rate, 1, 2 * MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_try(&rate, 20, 2 * MINUTE), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_delay(&rate, 20, 2 * MINUTE), 110 * MILLISECOND);
    doorman__rate in_units;
    doorman__rate_init(&in_units, 100, 0, 5, 0);
    assert_int_equal(doorman__rate_try(&in_units, 5, MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_try(&in_units, 5.001, 2 * MINUTE), DOORMAN_IMPOSSIBLE);
}

/* L1: a lease that changes every second takes away nothing that is saved for a large request. */
TEST(what_a_large_request_has_saved_survives_a_change_of_the_rate) {
    doorman__rate rate = rate_of(1, 0, 0);
    double saved = 1; /* in the first second */
    for (int second = 1; second <= 100; second++) {
        double units_per_second = second % 2 ? 1.25 : 1;
        doorman_time now = second * SECOND;
        doorman__rate_set(&rate, (doorman__schedule){units_per_second, DOORMAN_NEVER, 0}, 50, now);
        doorman_decision decision = doorman__rate_try(&rate, 50, now);
        if (decision == DOORMAN_ALLOWED) {
            assert_true(saved >= 50);
            return;
        }
        saved += units_per_second;
        assert_true(saved < 60);
    }
    fail();
}

/* L1 */
TEST(a_slow_rate_still_allows_one_unit) {
    static const double rates[] = {0.5, 0.3, 1.0 / 3, 0.7, 3, 6, 7, 9, 9.99, 1e-3, 1e-6};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        doorman__rate rate = rate_of(rates[i], 0, 0);
        doorman_time unit = (doorman_time)ceil(1e9 / rates[i]);
        for (doorman_time k = 1; k <= 10; k++) {
            assert_int_equal(count_allowed(&rate, 3, k * (unit + 1)), 1);
        }
        assert_int_equal(count_allowed(&rate, 3, 20 * unit), 1); /* no second unit was saved */
    }
}

/* L1 */
TEST(a_smaller_lease_shrinks_the_saved_burst) {
    source s = source_open(1000, 0, 0);
    doorman__rate *rate = &s.resource->rate;
    source_set(&s, 100, MINUTE);
    assert_int_equal(count_allowed(rate, 1000, MINUTE), 10);
    source_set(&s, 1000, 2 * MINUTE);
    assert_int_equal(count_allowed(rate, 1000, 2 * MINUTE + SECOND), 100);
    doorman_client_destroy(s.client);
}

/* L1: the test tries just before, at and just after the end of a lease, without a call in
 * between. */
TEST(an_expired_lease_is_seen_at_once) {
    for (doorman_time late = -1; late <= 1; late++) {
        doorman__rate rate = rate_of(0, 0, 0);
        doorman__rate_set(&rate, (doorman__schedule){1000, MINUTE, 10}, 0, 0);
        assert_int_equal(count_allowed(&rate, 200, MINUTE + late), late < 0 ? 100 : 1);
        doorman__gauge gauge = gauge_of(0);
        doorman__gauge_set(&gauge, (doorman__schedule){5, MINUTE, 0});
        assert_int_equal(doorman__gauge_try(&gauge, 1, MINUTE + late),
                         late < 0 ? DOORMAN_ALLOWED : DOORMAN_REFUSED);
    }
}

/* L1: a saved burst has no more units if the lease ends and the fallback has a larger capacity,
 * such as a safe capacity. Otherwise all clients would use more when their server is gone. */
TEST(the_end_of_a_lease_does_not_enlarge_the_saved_burst) {
    static const double leases[] = {0, 5, 10, 50};
    for (size_t i = 0; i < sizeof leases / sizeof *leases; i++) {
        int saved = (int)fmax(1, leases[i] / 10); /* at least one unit may be saved */
        doorman__rate rate = rate_of(0, 0, 0);
        doorman__rate_set(&rate, (doorman__schedule){leases[i], MINUTE, 1000}, 0, 0);
        int allowed = count_allowed(&rate, 200, MINUTE); /* the client has not seen the end yet */
        assert_in_range(allowed, 1, saved);
        doorman__rate_set(&rate, (doorman__schedule){0, 0, 1000}, 0, MINUTE);
        assert_in_range(allowed + count_allowed(&rate, 200, MINUTE), 1, saved);
        int later = count_allowed(&rate, 200, MINUTE + 50 * MILLISECOND);
        assert_in_range(later, 50, 50);
        assert_int_equal(count_allowed(&rate, 200, 2 * MINUTE), 100);
        rate = rate_of(0, 0, 0);
        doorman__rate_set(&rate, (doorman__schedule){leases[i], MINUTE, 1000}, 0, 0);
        doorman__rate_set(&rate, (doorman__schedule){0, 0, 1000}, 0,
                          MINUTE); /* set before the first try */
        assert_in_range(count_allowed(&rate, 200, MINUTE), 0, saved);
    }
}

/* L1: with every rate, the burst has exactly the configured number of units. */
TEST(a_burst_in_units_has_that_size_at_any_rate) {
    static const double rates[] = {1e-3, 0.3, 1, 7, 1000, 1e6};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        for (int burst = 1; burst <= 1000; burst *= 3) {
            doorman_time full = (doorman_time)ceil(burst / rates[i] * 1e9) + 1, now = 5 * SECOND;
            doorman__rate rate = rate_with_units(rates[i], burst, now);
            assert_int_equal(doorman__rate_try(&rate, burst, now + full * 9 / 10), DOORMAN_REFUSED);
            assert_int_equal(doorman__rate_try(&rate, burst, now + full), DOORMAN_ALLOWED);
            assert_int_equal(doorman__rate_try(&rate, burst + 0.01, now + full),
                             DOORMAN_IMPOSSIBLE);
            assert_in_range(count_allowed(&rate, 2000, now + 3 * full), burst - 1, burst);
        }
    }
    doorman__rate half = rate_with_units(10, 0.5, 0);
    assert_int_equal(count_allowed(&half, 5, MINUTE), 1); /* one unit always fits */
}

/* L1: a change of the rate does not add units to what was saved. */
TEST(a_burst_in_units_is_not_enlarged_by_a_change) {
    doorman__rate rate = rate_with_units(10, 20, 0);
    doorman__rate_set(&rate, (doorman__schedule){1000, DOORMAN_NEVER, 0}, 0,
                      SECOND); /* 10 units are saved */
    assert_int_equal(count_allowed(&rate, 100, SECOND), 10);
    assert_int_equal(count_allowed(&rate, 100, MINUTE), 20);
    doorman__rate_set(&rate, (doorman__schedule){1, 2 * MINUTE, 1000}, 0, MINUTE + SECOND);
    assert_in_range(count_allowed(&rate, 100, MINUTE + SECOND), 0, 20);
    assert_in_range(count_allowed(&rate, 100, 2 * MINUTE), 0, 20);
}

/* L2: a result has the values that the headers of a reply need. */
TEST(a_decision_has_the_remaining_units_and_the_retry_time) {
    doorman_result result;
    doorman__rate rate = rate_of(10, SECOND, 0);
    assert_int_equal(doorman__rate_decide(&rate, 4, &result, MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(result.decision, DOORMAN_ALLOWED);
    assert_exact(result.limit, 10);
    assert_about(result.remaining, 6);
    assert_int_equal(result.retry_after, 0);
    assert_int_equal(result.reset_after, 400 * MILLISECOND);
    assert_int_equal(doorman__rate_decide(&rate, 8, &result, MINUTE), DOORMAN_REFUSED);
    assert_about(result.remaining, 6);
    assert_int_equal(result.retry_after, 200 * MILLISECOND);
    assert_int_equal(doorman__rate_try(&rate, 8, MINUTE + result.retry_after - 1), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_try(&rate, 8, MINUTE + result.retry_after), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_decide(&rate, 11, &result, 2 * MINUTE), DOORMAN_ALLOWED);
    doorman__rate_init(&rate, 10, 0, 10, 0);
    assert_int_equal(doorman__rate_decide(&rate, 11, &result, MINUTE), DOORMAN_IMPOSSIBLE);
    assert_true(result.retry_after == DOORMAN_NEVER);
    rate = rate_of(DOORMAN_UNLIMITED, 0, 0);
    assert_int_equal(doorman__rate_decide(&rate, 1e9, &result, 0), DOORMAN_ALLOWED);
    assert_exact(result.remaining, DOORMAN_UNLIMITED);
    rate = rate_of(0, 0, 0);
    assert_int_equal(doorman__rate_decide(&rate, 1, &result, 0), DOORMAN_REFUSED);
    assert_exact(result.remaining, 0);
    assert_true(result.retry_after == DOORMAN_NEVER); /* no resource: the rate will not change */
    set_shadow(&rate.usage, true);
    assert_int_equal(doorman__rate_decide(&rate, 1, &result, 0), DOORMAN_ALLOWED);
    assert_int_equal(result.retry_after, 0);
}

/* L2 */
TEST(a_decision_of_a_gauge_has_the_remaining_units) {
    doorman_result result;
    doorman__gauge gauge = gauge_of(10);
    assert_int_equal(doorman__gauge_decide(&gauge, 7, &result, 0), DOORMAN_ALLOWED);
    assert_exact(result.limit, 10);
    assert_exact(result.remaining, 3);
    assert_int_equal(result.retry_after, 0);
    assert_int_equal(doorman__gauge_decide(&gauge, 4, &result, 0), DOORMAN_REFUSED);
    assert_exact(result.remaining, 3);
    assert_true(result.retry_after == DOORMAN_NEVER);
    assert_int_equal(doorman__gauge_decide(&gauge, 11, &result, 0), DOORMAN_IMPOSSIBLE);
    doorman__gauge_set(&gauge,
                       (doorman__schedule){5, DOORMAN_NEVER, 5}); /* below the units in flight */
    assert_int_equal(doorman__gauge_decide(&gauge, 8, &result, 0), DOORMAN_REFUSED);
    assert_exact(result.remaining, 0);
    gauge = gauge_of(DOORMAN_UNLIMITED);
    assert_int_equal(doorman__gauge_decide(&gauge, 7, &result, 0), DOORMAN_ALLOWED);
    assert_exact(result.remaining, DOORMAN_UNLIMITED);
}

/* ---- L1: clocks ---- */

/* C1: two threads read the clock, and the thread with the earlier time makes the second call. */
TEST(a_clock_that_goes_back_a_little_loses_nothing) {
    doorman__rate rate = rate_of(1000, 0, 0);
    assert_int_equal(count_allowed(&rate, 200, MINUTE), 100);
    assert_int_equal(count_allowed(&rate, 200, MINUTE - SECOND), 0);
    assert_int_equal(doorman__rate_delay(&rate, 1, MINUTE - SECOND), SECOND + MILLISECOND);
    assert_int_equal(count_allowed(&rate, 200, MINUTE + 10 * MILLISECOND), 10);
}

/* C1 */
TEST(no_clock_can_block_an_unlimited_rate) {
    doorman__rate rate = rate_of(DOORMAN_UNLIMITED, 0, MINUTE);
    static const doorman_time times[] = {MINUTE, MINUTE - 1, 0, YEAR, MINUTE, DOORMAN_NEVER};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        assert_int_equal(doorman__rate_delay(&rate, 1e15, times[i]), 0);
        assert_int_equal(doorman__rate_try(&rate, 1e15, times[i]), DOORMAN_ALLOWED);
    }
}

/* L1 */
TEST(a_year_without_use_saves_one_burst) {
    doorman__rate rate = rate_of(1000, 0, 0);
    assert_int_equal(count_allowed(&rate, 1000, YEAR), 100);
    assert_int_equal(count_allowed(&rate, 1000, YEAR + SECOND), 100);
}

/* L1: the stored time wraps around after 834 days, which delays a call by at most 20 minutes. */
TEST(years_without_use_save_at_most_one_burst) {
    const doorman_time round = INT64_C(1) << 56;
    for (int i = 0; i < 2000; i++) {
        doorman_time start = (doorman_time)random_below(1000) * DAY;
        doorman_time idle = (doorman_time)(random_unit() * 30 * (double)YEAR);
        if (i % 2) {
            idle = round * (1 + i % 9) + (doorman_time)random_below(100) * MINUTE - 50 * MINUTE;
        }
        doorman__rate rate = rate_of(1000, 0, start);
        assert_in_range(count_allowed(&rate, 300, start + idle), 0, 100);
        doorman_time delay = doorman__rate_delay(&rate, 1, start + idle);
        assert_true(delay <= 20 * MINUTE);
        assert_int_equal(doorman__rate_try(&rate, 1, start + idle + delay), DOORMAN_ALLOWED);
    }
}

/* ---- L2: amounts ---- */

/* L2 */
TEST(invalid_amounts_are_impossible) {
    const double none[] = {-1, -1e-300, (double)NAN, (double)INFINITY, -(double)INFINITY, 1.1e15};
    const double rates[] = {0, 10, 1e15, DOORMAN_UNLIMITED};
    for (size_t r = 0; r < 4; r++) {
        doorman__rate rate = rate_of(rates[r], 0, 0);
        doorman__gauge gauge = gauge_of(rates[r]);
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
            assert_int_equal(doorman__rate_try(&rate, none[i], MINUTE), DOORMAN_IMPOSSIBLE);
            assert_int_equal(doorman__rate_delay(&rate, none[i], MINUTE), DOORMAN_NEVER);
            assert_int_equal(doorman__gauge_try(&gauge, none[i], MINUTE), DOORMAN_IMPOSSIBLE);
            doorman__gauge_release(&gauge, none[i]);
        }
        assert_exact(doorman__gauge_in_flight(&gauge), 0);
    }
}

/* L2: the amounts are impossible even if the burst of a rate has room for them. */
TEST(more_units_than_there_can_be_are_impossible) {
    const double none[] = {(double)INFINITY, 1e19, 2.25e15, 1.001e15};
    doorman__rate rate = rate_of(1e9, DOORMAN_DURATION_MAX, 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(doorman__rate_try(&rate, none[i], MINUTE), DOORMAN_IMPOSSIBLE);
    }
    assert_int_equal(doorman__rate_try(&rate, DOORMAN_AMOUNT_MAX, 0), DOORMAN_REFUSED);
    const doorman_limit_options options = {.kind = DOORMAN_TOKEN_BUCKET,
                                           .rate = 1e9,
                                           .size = DOORMAN_AMOUNT_MAX,
                                           .max_debt = DOORMAN_SECOND * 1000000};
    doorman_limit limit;
    assert_int_equal(doorman_limit_init(&limit, &options, NULL), DOORMAN_OK);
    doorman_limiter bucket;
    assert_int_equal(doorman_limiter_init(&bucket, &limit, NULL, 0), DOORMAN_OK);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(doorman_limiter_try(&bucket, &limit, none[i], NULL, 0),
                         DOORMAN_IMPOSSIBLE);
    }
}

/* L2 */
TEST(an_amount_of_0_is_always_allowed) {
    const double rates[] = {0, 1e-9, 10, DOORMAN_UNLIMITED};
    for (size_t r = 0; r < 4; r++) {
        doorman__rate rate = rate_of(rates[r], 0, MINUTE);
        doorman__gauge gauge = gauge_of(rates[r]);
        assert_int_equal(doorman__rate_try(&rate, 0, 0), DOORMAN_ALLOWED);
        assert_int_equal(doorman__rate_delay(&rate, 0, 0), 0);
        assert_int_equal(doorman__gauge_try(&gauge, 0, 0), DOORMAN_ALLOWED);
    }
}

/* L2 */
TEST(a_rate_of_0_refuses_until_it_rises) {
    source s = source_open(0, 0, 0);
    doorman__rate *rate = &s.resource->rate;
    assert_int_equal(doorman__rate_try(rate, 1, YEAR), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_delay(rate, 1, YEAR), DOORMAN_NEVER);
    source_set(&s, 10, YEAR);
    assert_int_equal(doorman__rate_try(rate, 1, YEAR + SECOND), DOORMAN_ALLOWED);
    doorman_client_destroy(s.client);
}

/* L2 */
TEST(a_rate_of_almost_0_allows_nothing) {
    doorman__rate rate = rate_of(1e-9, 0, 0);
    for (doorman_time now = 0; now < YEAR; now += DAY) {
        assert_true(doorman__rate_try(&rate, 1, now) != DOORMAN_ALLOWED);
    }
    /* This amount is worth 11.6 days of the rate. */
    assert_int_equal(doorman__rate_try(&rate, 1e-3, YEAR), DOORMAN_ALLOWED);
}

/* L1 */
TEST(a_huge_rate_is_enforced) {
    doorman__rate rate = rate_of(1e12, 0, 0);
    assert_int_equal(doorman__rate_try(&rate, 1e11, SECOND), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_try(&rate, 1e6, SECOND), DOORMAN_REFUSED);
    assert_int_equal(doorman__rate_delay(&rate, 1e6, SECOND), 1000);
    assert_int_equal(doorman__rate_try(&rate, 1.001e11, MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_delay(&rate, 1, MINUTE), 1);
}

/* L2: a try is refused 1 ns before the delay is over, and allowed when the delay is over. A call of
 * delay takes no units. */
TEST(delay_is_exactly_the_time_until_a_try_succeeds) {
    for (int i = 0; i < 20000; i++) {
        double units = random_rate();
        doorman_time burst = random_burst(),
                     now = (doorman_time)random_below(1000000) * MILLISECOND;
        doorman__rate rate = rate_of(units, burst, now);
        now += (doorman_time)(random_unit() * 2 * (double)burst);
        double most = fmax(1, units * (double)burst / 1e9);
        (void)doorman__rate_try(&rate, random_unit() * most, now);
        double n = random_below(4) ? random_unit() * most : 1;
        doorman_time delay = doorman__rate_delay(&rate, n, now);
        assert_true(delay >= 0 && delay != DOORMAN_NEVER);
        doorman__rate early = rate, late = rate;
        if (delay) assert_int_equal(doorman__rate_try(&early, n, now + delay - 1), DOORMAN_REFUSED);
        assert_int_equal(doorman__rate_try(&late, n, now + delay), DOORMAN_ALLOWED);
    }
}

/* L1 */
TEST(the_longest_burst_at_the_highest_rate_is_possible) {
    doorman__rate rate = rate_of(1e15, DOORMAN_DURATION_MAX, 0);
    assert_int_equal(doorman__rate_try(&rate, 1, SECOND), DOORMAN_ALLOWED);
}

/* ---- L1: gauges ---- */

/* L1 */
TEST(a_gauge_never_exceeds_its_capacity) {
    doorman__gauge gauge = gauge_of(10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(doorman__gauge_try(&gauge, 1, 0), DOORMAN_ALLOWED);
    }
    assert_int_equal(doorman__gauge_try(&gauge, 1.0 / 4096, YEAR), DOORMAN_REFUSED);
    doorman__gauge_release(&gauge, 1);
    assert_int_equal(doorman__gauge_try(&gauge, 1, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman__gauge_try(&gauge, 10, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman__gauge_try(&gauge, 10.01, 0), DOORMAN_IMPOSSIBLE);
}

/* L1 */
TEST(a_gauge_that_shrinks_allows_nothing_until_it_fits) {
    source s = source_open_gauge(10);
    doorman__gauge *gauge = &s.resource->gauge;
    for (int i = 0; i < 8; i++) assert_int_equal(doorman__gauge_try(gauge, 1, 0), DOORMAN_ALLOWED);
    source_set(&s, 4, SECOND);
    for (int in_flight = 8; in_flight > 3; in_flight--) {
        assert_exact(doorman__gauge_in_flight(gauge), in_flight);
        assert_int_equal(doorman__gauge_try(gauge, 1, SECOND), DOORMAN_REFUSED);
        doorman__gauge_release(gauge, 1);
    }
    assert_int_equal(doorman__gauge_try(gauge, 1, SECOND), DOORMAN_ALLOWED);
    source_set(&s, 0, SECOND);
    doorman__gauge_release(gauge, 4);
    assert_int_equal(doorman__gauge_try(gauge, 1, SECOND), DOORMAN_REFUSED);
    doorman_client_destroy(s.client);
}

/* L1 */
TEST(a_gauge_refuses_and_counts_a_release_of_more_than_is_in_use) {
    doorman_resource_info info;
    source s = source_open_gauge(2);
    const double wrong[] = {1.001, 2, 1000, DOORMAN_AMOUNT_MAX};
    assert_int_equal(doorman_client_try(s.resource, 1, NULL, 0), DOORMAN_ALLOWED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(doorman_client_release(s.resource, wrong[i]), DOORMAN_INVALID_ARGUMENT);
        doorman_client_read(s.resource, &info, 0);
        assert_int_equal(info.counts.over_released, i + 1);
        assert_exact(info.in_use, 1);
    }
    assert_int_equal(doorman_client_try(s.resource, 2, NULL, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman_client_release(s.resource, -1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_client_release(s.resource, 1), DOORMAN_OK);
    assert_int_equal(doorman_client_release(s.resource, 0), DOORMAN_OK);
    doorman_client_read(s.resource, &info, 0);
    assert_int_equal(info.counts.over_released, 4);
    assert_exact(info.in_use, 0);
    doorman_client_destroy(s.client);
}

/* C9 */
TEST(fractions_return_to_exactly_0) {
    doorman__gauge gauge = gauge_of(100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(doorman__gauge_try(&gauge, 0.1, 0), DOORMAN_ALLOWED);
    }
    assert_near(doorman__gauge_in_flight(&gauge), 10, 1e-2);
    assert_true(doorman__gauge_in_flight(&gauge) >= 10); /* amounts are rounded up */
    for (int i = 0; i < 100; i++) doorman__gauge_release(&gauge, 0.1);
    assert_exact(doorman__gauge_in_flight(&gauge), 0);
}

/* L1 */
TEST(gauges_with_capacity_0_and_unlimited_ones) {
    doorman__gauge none = gauge_of(0), all = gauge_of(DOORMAN_UNLIMITED);
    assert_int_equal(doorman__gauge_try(&none, 1e-9, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman__gauge_try(&all, 1e14, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman__gauge_try(&all, 8e14, 0), DOORMAN_ALLOWED);
    doorman__gauge_release(&all, 9e14);
    assert_exact(doorman__gauge_in_flight(&all), 0);
}

/* L1: compares the gauge with a model that keeps a list of the units in flight. */
TEST(a_gauge_equals_a_model_with_a_list_of_holds) {
    enum { HOLDS = 64 };
    for (int run = 0; run < 50; run++) {
        double holds[HOLDS], sum = 0, capacity = 32;
        size_t count = 0;
        source s = source_open_gauge(capacity);
        doorman__gauge *gauge = &s.resource->gauge;
        for (int i = 0; i < 500; i++) {
            if (random_below(20) == 0) {
                capacity = (double)random_below(64);
                source_set(&s, capacity, 0);
            }
            /* A gauge can count any multiple of 1/4096. */
            double n = (double)(1 + random_below(3 * 4096)) / 4096;
            if (random_below(2) && count < HOLDS) {
                bool fits = sum + n <= capacity;
                assert_int_equal(doorman__gauge_try(gauge, n, 0) == DOORMAN_ALLOWED, fits);
                if (fits) sum += holds[count++] = n;
            } else if (count) {
                sum -= holds[--count];
                doorman__gauge_release(gauge, holds[count]);
            }
            assert_exact(doorman__gauge_in_flight(gauge), sum);
        }
        doorman_client_destroy(s.client);
    }
}

/* ---- L5: shadow mode and counts ---- */

static void assert_counts(const doorman_counts *counts, double allowed, double refused,
                          double excess) {
    assert_exact(counts->allowed, allowed);
    assert_exact(counts->refused, refused);
    assert_exact(counts->excess, excess);
}

/* L5 */
TEST(shadow_mode_allows_above_a_rate_and_counts_it) {
    doorman_counts counts;
    doorman__rate rate = rate_of(10, 0, 0);
    assert_int_equal(count_allowed(&rate, 5, MINUTE), 1);
    assert_int_equal(doorman__rate_try(&rate, 2.5, MINUTE), DOORMAN_REFUSED);
    set_shadow(&rate.usage, true);
    assert_int_equal(count_allowed(&rate, 5, MINUTE), 5);
    assert_int_equal(doorman__rate_try(&rate, 2.5, MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(doorman__rate_delay(&rate, 100, MINUTE), 0);
    assert_int_equal(doorman__rate_try(&rate, (double)NAN, MINUTE), DOORMAN_IMPOSSIBLE);
    assert_int_equal(count_allowed(&rate, 5, 2 * MINUTE), 5); /* one of them fits the rate */
    doorman__usage_read(&rate.usage, &counts);
    assert_counts(&counts, 2, 4 + 2.5, 5 + 2.5 + 4);
    set_shadow(&rate.usage, false);
    /* The excess is not paid back later. */
    assert_int_equal(count_allowed(&rate, 5, 2 * MINUTE), 0);
    assert_int_equal(count_allowed(&rate, 5, 2 * MINUTE + SECOND), 1);
    doorman__rate none = rate_of(0, 0, 0);
    set_shadow(&none.usage, true);
    assert_int_equal(count_allowed(&none, 3, MINUTE), 3);
}

/* L5, L1: units that shadow mode has allowed count as in flight. */
TEST(shadow_mode_allows_above_a_gauge_and_counts_it) {
    doorman_counts counts;
    doorman__gauge gauge = gauge_of(2);
    set_shadow(&gauge.usage, true);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(doorman__gauge_try(&gauge, 1, 0), DOORMAN_ALLOWED);
    }
    assert_int_equal(doorman__gauge_try(&gauge, 3, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman__gauge_try(&gauge, DOORMAN_AMOUNT_MAX, 0), DOORMAN_IMPOSSIBLE);
    assert_exact(doorman__gauge_in_flight(&gauge), 8);
    set_shadow(&gauge.usage, false);
    doorman__gauge_release(&gauge, 6);
    assert_int_equal(doorman__gauge_try(&gauge, 1, 0), DOORMAN_REFUSED);
    doorman__gauge_release(&gauge, 1);
    assert_int_equal(doorman__gauge_try(&gauge, 1, 0), DOORMAN_ALLOWED);
    doorman__usage_read(&gauge.usage, &counts);
    assert_counts(&counts, 3, 1, 3 + 3);
}

/* ---- the classical limiters, each compared with a slow model of its definition ---- */
/* The models use whole numbers: amounts in 1/4096, times in nanoseconds, and rates that divide a
 * second. They keep every try, with its time and amount. */

typedef enum limiter_kind {
    TOKEN,
    LEAKY,
    DEBT,
    FIXED,
    SLIDING,
    LOG,
    LIMITER_KIND_COUNT
} limiter_kind;

enum { LIMIT = 12, EVENTS = 300 }; /* LIMIT: the units that a bucket or a window can have */

static const char *const limiter_names[] = {"token bucket", "leaky bucket",   "bucket with debt",
                                            "fixed window", "sliding window", "sliding log"};

static doorman_limit limit_of(const doorman_limit_options *options) {
    doorman_limit limit;
    doorman_error error = {0};
    doorman_status status = doorman_limit_init(&limit, options, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return limit;
}

/* Makes a limiter of any kind except a log. */
static doorman_limiter limiter_of(const doorman_limit *limit, doorman_time now) {
    doorman_limiter limiter;
    assert_int_equal(doorman_limiter_init(&limiter, limit, NULL, now), DOORMAN_OK);
    return limiter;
}

/* Makes a try. Sets `wait` to the time until the units may be used, or, if refused, until a
 * retry. */
static doorman_decision limiter_try(doorman_limiter *limiter, const doorman_limit *limit, double n,
                                    doorman_time *wait, doorman_time now) {
    doorman_result result;
    doorman_decision decision = doorman_limiter_try(limiter, limit, n, &result, now);
    assert_int_equal(result.decision, decision);
    assert_true(result.wait == 0 || result.retry_after == 0);
    assert_exact(result.limit, limit->amount);
    assert_true(result.remaining >= 0 && result.reset_after >= 0);
    *wait = decision == DOORMAN_ALLOWED ? result.wait : result.retry_after;
    return decision;
}

typedef struct subject {
    limiter_kind kind;
    doorman_limit limit;
    doorman_limiter limiter;
    doorman_arrival arrivals[LIMIT];
    doorman_time length, max_wait; /* max_wait 0: any wait is allowed */
    doorman_time max_debt;
    int64_t per_second, capacity; /* of buckets, in units */
} subject;

static doorman_limit_options subject_options(const subject *s) {
    if (s->kind < FIXED) {
        return (doorman_limit_options){.kind = DOORMAN_TOKEN_BUCKET,
                                       .rate = (double)s->per_second,
                                       .size = (double)s->capacity,
                                       .max_debt = s->max_debt,
                                       .has_max_wait = s->max_wait > 0,
                                       .max_wait = s->max_wait};
    }
    static const doorman_limit_kind kinds[] = {[FIXED] = DOORMAN_FIXED_WINDOW,
                                               [SLIDING] = DOORMAN_SLIDING_WINDOW,
                                               [LOG] = DOORMAN_SLIDING_LOG};
    return (doorman_limit_options){.kind = kinds[s->kind], .limit = LIMIT, .window = s->length};
}

/* Prepares a subject. The arrivals of a log are in the subject, so the subject must not move after
 * this call. */
static void subject_init(subject *s, limiter_kind kind, doorman_time now) {
    static const int64_t rates[] = {1, 2, 4, 5, 10, 100, 1000};
    *s = (subject){.kind = kind, .length = (doorman_time)(1 + random_below(90)) * SECOND / 4};
    s->per_second = rates[random_below(7)];
    s->capacity = kind == LEAKY ? 0 : LIMIT;
    s->max_debt = kind == TOKEN ? 0 : LIMIT * SECOND / s->per_second;
    if (kind == DEBT && random_below(2)) s->max_wait = 5 * SECOND / s->per_second;
    doorman_limit_options options = subject_options(s);
    s->limit = limit_of(&options);
    doorman_arrival *arrivals = kind == LOG ? s->arrivals : NULL;
    assert_int_equal(doorman_limiter_init(&s->limiter, &s->limit, arrivals, now), DOORMAN_OK);
}

static void subject_copy(subject *copy, const subject *s) {
    *copy = *s;
    if (s->kind == LOG) copy->limiter.state.log.arrivals = copy->arrivals;
}

static doorman_decision subject_try(subject *s, double n, doorman_time *wait, doorman_time now) {
    return limiter_try(&s->limiter, &s->limit, n, wait, now);
}

static doorman_time subject_delay(const subject *s, double n, doorman_time now) {
    return doorman_limiter_delay(&s->limiter, &s->limit, n, now);
}

/* A try and its result. */
typedef struct event {
    doorman_time at;
    int64_t parts; /* in 1/4096 */
    bool allowed;
} event;

/* Returns the level of a bucket by its definition, in 1/4096 of a billionth of a unit. The level
 * rises with time up to the capacity, and falls by what is taken. The level of a leaky bucket is
 * the negative length of its queue. */
static int64_t bucket_level(const subject *s, const event *events, size_t count, doorman_time start,
                            doorman_time now) {
    int64_t most = s->capacity * 4096 * SECOND, level = most;
    for (size_t i = 0; i <= count; i++) {
        doorman_time from = i ? events[i - 1].at : start, to = i < count ? events[i].at : now;
        level += (to - from) * s->per_second * 4096;
        if (level > most) level = most;
        if (i < count && events[i].allowed) level -= events[i].parts * SECOND;
    }
    return level;
}

static bool bucket_allows(const subject *s, int64_t level, int64_t parts, doorman_time *wait) {
    int64_t a_second = s->per_second * 4096;
    *wait = level < 0 ? (-level + a_second - 1) / a_second : 0;
    bool soon = s->max_wait == 0 || -level <= s->max_wait * a_second;
    return soon && level - parts * SECOND >= -s->max_debt * a_second;
}

/* Returns whether a window allows a try, by its definition. */
static bool window_allows(const subject *s, const event *events, size_t count, int64_t parts,
                          doorman_time now) {
    int64_t now_window = now / s->length, rest = s->length - now % s->length;
    int64_t here = 0, last = 0, logged = 0, most = LIMIT * 4096;
    for (size_t i = 0; i < count; i++) {
        int64_t units = events[i].allowed ? events[i].parts : 0;
        if (events[i].at / s->length == now_window) here += units;
        if (events[i].at / s->length == now_window - 1) last += units;
        if (now - events[i].at < s->length) logged += events[i].parts;
    }
    if (s->kind == LOG) return logged + parts <= most;
    if (s->kind == FIXED) return here + parts <= most;
    return last * rest <= (most - here - parts) * s->length;
}

/* Checks that a try is allowed when the delay is over, and refused 1 ns before. */
static void check_delay(const subject *s, double n, doorman_time now) {
    doorman_time wait, delay = subject_delay(s, n, now);
    subject early, late;
    subject_copy(&early, s);
    subject_copy(&late, s);
    assert_true(delay >= 0 && delay != DOORMAN_NEVER);
    assert_int_equal(subject_try(&late, n, &wait, now + delay), DOORMAN_ALLOWED);
    if (delay == 0) return;
    assert_int_equal(subject_try(&early, n, &wait, now + delay - 1), DOORMAN_REFUSED);
}

/* Returns how many units are left after all events, by the definition of the kind. Sets `reset` to
 * the time until all units are available again. */
static double left_by_model(const subject *s, const event *events, size_t count, doorman_time start,
                            doorman_time now, doorman_time *reset) {
    const int64_t length = s->length, rest = length - now % length, most = LIMIT * 4096;
    int64_t here = 0, last = 0, logged = 0;
    if (s->kind < FIXED) {
        int64_t level = bucket_level(s, events, count, start, now);
        int64_t missing = s->capacity * 4096 * SECOND - level, a_second = s->per_second * 4096;
        *reset = (missing + a_second - 1) / a_second;
        return level > 0 ? (double)level / 4096 / 1e9 : 0;
    }
    *reset = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t units = events[i].allowed ? events[i].parts : 0;
        if (events[i].at / length == now / length) here += units;
        if (events[i].at / length == now / length - 1) last += units;
        if (now - events[i].at >= length) continue;
        logged += events[i].parts;
        if (s->kind == LOG) *reset = events[i].at + length - now;
    }
    if (s->kind == LOG) return logged < most ? (double)(most - logged) / 4096 : 0;
    if (s->kind == SLIDING && last > 0) *reset = rest;
    if (here > 0) *reset = s->kind == FIXED ? rest : rest + length;
    if (s->kind == SLIDING) here += (last * rest + length - 1) / length;
    return here < most ? (double)(most - here) / 4096 : 0;
}

/* Checks the fields of a result. For a bucket they may differ a little from the model, because a
 * bucket rounds each price up to 1/256 ns. */
static void check_result(const subject *s, const doorman_result *result, const event *events,
                         size_t count, doorman_time start) {
    doorman_time reset;
    double left = left_by_model(s, events, count, start, events[count - 1].at, &reset);
    bool bucket = s->kind < FIXED;
    bool right =
        result->remaining >= left - 1e-5 && result->remaining <= left + (bucket ? 1e-5 : 0);
    if (!right || result->reset_after < reset || result->reset_after > reset + (bucket ? 2 : 0)) {
        fail_msg("%s, try %zu: %.9g left, reset after %lld; by the model %.9g and %lld",
                 limiter_names[s->kind], count, result->remaining, (long long)result->reset_after,
                 left, (long long)reset);
    }
    assert_exact(result->limit, bucket ? (double)s->per_second : LIMIT);
}

static void compare_with_model(limiter_kind kind) {
    event events[EVENTS];
    doorman_time start = (doorman_time)random_below(1000000) * MILLISECOND, now = start;
    subject s;
    subject_init(&s, kind, start);
    bool bucket = kind < FIXED;
    doorman_time part = bucket ? LIMIT * SECOND / s.per_second : s.length;
    for (size_t i = 0; i < EVENTS; i++) {
        doorman_time expected = 0;
        size_t pause = random_below(16);
        if (pause == 0) now += (doorman_time)random_below(5) * part;
        if (pause < 8) now += (doorman_time)(random_unit() * (double)part / 8);
        int64_t parts = 4096 * (1 + (int64_t)random_below(3));
        if (kind != LOG && random_below(2)) parts = 1 + (int64_t)random_below(LIMIT * 4096);
        double n = (double)parts / 4096;
        check_delay(&s, n, now);
        bool fits =
            bucket ? bucket_allows(&s, bucket_level(&s, events, i, start, now), parts, &expected)
                   : window_allows(&s, events, i, parts, now);
        doorman_result result;
        bool allowed =
            doorman_limiter_try(&s.limiter, &s.limit, n, &result, now) == DOORMAN_ALLOWED;
        if (allowed != fits) fail_msg("%s, try %zu: %d", limiter_names[kind], i, allowed);
        if (allowed) assert_in_range(result.wait, expected, expected + 1);
        assert_int_equal(result.retry_after, allowed ? 0 : subject_delay(&s, n, now));
        events[i] = (event){now, parts, allowed};
        check_result(&s, &result, events, i + 1, start);
    }
}

/* L2 */
TEST(each_kind_of_limiter_follows_its_definition) {
    for (int i = 0; i < 60; i++) {
        for (int kind = 0; kind < LIMITER_KIND_COUNT; kind++) {
            compare_with_model((limiter_kind)kind);
        }
    }
}

#define CLOCK(minutes, seconds) ((minutes)*MINUTE + (seconds)*SECOND)

/* Example: the limit is 2 a minute. */
TEST(a_log_also_counts_refused_attempts) {
    const doorman_limit_options options = {
        .kind = DOORMAN_SLIDING_LOG, .limit = 2, .window = MINUTE};
    doorman_limit limit = limit_of(&options);
    doorman_arrival arrivals[2];
    doorman_limiter log;
    const doorman_time times[] = {CLOCK(60, 1), CLOCK(60, 30), CLOCK(60, 50), CLOCK(61, 40),
                                  CLOCK(61, 49)};
    const doorman_decision expected[] = {DOORMAN_ALLOWED, DOORMAN_ALLOWED, DOORMAN_REFUSED,
                                         DOORMAN_ALLOWED, DOORMAN_REFUSED}; /* the attempt at
                                                                             * 1:00:50 counts */
    assert_int_equal(doorman_limiter_init(&log, &limit, arrivals, 0), DOORMAN_OK);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        assert_int_equal(doorman_limiter_try(&log, &limit, 1, NULL, times[i]), expected[i]);
    }
}

/* L2: an arrival in the log stores the latest time that any clock has shown. Otherwise a window
 * would begin too early for the threads whose clock is right. */
TEST(a_late_clock_makes_no_arrival_older) {
    const doorman_limit_options options = {
        .kind = DOORMAN_SLIDING_LOG, .limit = 1, .window = SECOND};
    doorman_limit limit = limit_of(&options);
    doorman_arrival arrivals[1];
    doorman_limiter log;
    doorman_time behind = MINUTE - SECOND / 2, end = MINUTE + SECOND;
    assert_int_equal(doorman_limiter_init(&log, &limit, arrivals, 0), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(&log, &limit, 1, NULL, MINUTE), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_try(&log, &limit, 1, NULL, behind), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_delay(&log, &limit, 1, behind), end - behind);
    assert_int_equal(doorman_limiter_delay(&log, &limit, 1, end - 1), 1);
    assert_int_equal(doorman_limiter_try(&log, &limit, 1, NULL, end), DOORMAN_ALLOWED);
}

/* L2: windows are numbered modulo 2^24. Even where the numbers begin again, a new limiter is in the
 * window of its clock. Its counts do not belong to a later window. */
TEST(a_new_limiter_starts_in_the_window_of_its_clock) {
    static const doorman_time numbers[] = {0, 1, 255, (1 << 24) - 200, (1 << 24) - 1, 1 << 24};
    doorman_limit_options options = {.kind = DOORMAN_FIXED_WINDOW, .limit = 1, .window = SECOND};
    doorman_limit one = limit_of(&options);
    options.kind = DOORMAN_SLIDING_WINDOW;
    doorman_limit two = limit_of(&options);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        doorman_time now = numbers[i] * SECOND;
        doorman_limiter fixed = limiter_of(&one, now), sliding = limiter_of(&two, now);
        assert_int_equal(doorman_limiter_try(&fixed, &one, 1, NULL, now), DOORMAN_ALLOWED);
        assert_int_equal(doorman_limiter_delay(&fixed, &one, 1, now), SECOND);
        assert_int_equal(doorman_limiter_try(&sliding, &two, 1, NULL, now), DOORMAN_ALLOWED);
        assert_int_equal(doorman_limiter_delay(&sliding, &two, 1, now), 2 * SECOND);
    }
}

/* Example: the limit is 7 a minute. 5 units in the last minute and 3 units in this minute count as
 * 6.5 after 30 % of this minute. */
TEST(a_sliding_window_counts_a_part_of_the_last_window) {
    const doorman_limit_options options = {
        .kind = DOORMAN_SLIDING_WINDOW, .limit = 7, .window = MINUTE};
    doorman_limit limit = limit_of(&options);
    doorman_limiter window = limiter_of(&limit, 0);
    const doorman_time now = CLOCK(61, 18);
    doorman_time wait;
    for (int i = 0; i < 8; i++) {
        doorman_time at = i < 5 ? CLOCK(60, 10 * i) : now;
        assert_int_equal(doorman_limiter_try(&window, &limit, 1, NULL, at), DOORMAN_ALLOWED);
    }
    doorman_limiter half = window, more = window;
    assert_int_equal(limiter_try(&window, &limit, 1, &wait, now), DOORMAN_REFUSED);
    assert_int_equal(wait, 6 * SECOND); /* 5 count as 3 then */
    assert_int_equal(doorman_limiter_try(&half, &limit, 0.5, NULL, now), DOORMAN_ALLOWED);
    double too_much = 0.5 + 1.0 / 4096;
    assert_int_equal(doorman_limiter_try(&more, &limit, too_much, NULL, now), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_delay(&window, &limit, 1, now), 6 * SECOND);
}

/* L2: a thread whose clock is a little behind stays in the window that other threads have reached.
 * A clock that is far behind has jumped, and starts a new window. */
TEST(a_late_clock_does_not_reopen_a_window) {
    doorman_limit_options options = {.kind = DOORMAN_FIXED_WINDOW, .limit = 10, .window = SECOND};
    doorman_limit one = limit_of(&options);
    options.kind = DOORMAN_SLIDING_WINDOW;
    doorman_limit two = limit_of(&options);
    for (int odd = 0; odd < 2; odd++) { /* two counts take turns */
        doorman_time now = MINUTE + odd * SECOND, behind = now - SECOND / 4;
        doorman_limiter fixed = limiter_of(&one, 0), sliding = limiter_of(&two, 0);
        assert_int_equal(doorman_limiter_try(&fixed, &one, 10, NULL, now), DOORMAN_ALLOWED);
        assert_int_equal(doorman_limiter_try(&sliding, &two, 10, NULL, now), DOORMAN_ALLOWED);
        assert_int_equal(doorman_limiter_try(&fixed, &one, 1, NULL, behind), DOORMAN_REFUSED);
        assert_int_equal(doorman_limiter_delay(&fixed, &one, 1, behind), SECOND + SECOND / 4);
        assert_int_equal(doorman_limiter_try(&sliding, &two, 1, NULL, behind), DOORMAN_REFUSED);
        assert_true(doorman_limiter_delay(&sliding, &two, 1, behind) > SECOND + SECOND / 4);
        assert_int_equal(doorman_limiter_try(&fixed, &one, 10, NULL, MINUTE * 60), DOORMAN_ALLOWED);
        assert_int_equal(doorman_limiter_try(&fixed, &one, 10, NULL, now), DOORMAN_ALLOWED);
    }
}

TEST(a_fixed_window_allows_twice_its_limit_at_the_border) {
    const doorman_limit_options options = {
        .kind = DOORMAN_FIXED_WINDOW, .limit = 100, .window = MINUTE};
    doorman_limit limit = limit_of(&options);
    doorman_limiter window = limiter_of(&limit, 0);
    doorman_time border = CLOCK(61, 0), end = CLOCK(61, 59);
    assert_int_equal(doorman_limiter_try(&window, &limit, 100, NULL, border - 1), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_delay(&window, &limit, 100, border - 1), 1);
    assert_int_equal(doorman_limiter_try(&window, &limit, 100, NULL, border), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_try(&window, &limit, 1, NULL, end), DOORMAN_REFUSED);
}

/* The example has a debt, and reaches both bounds of the bucket: max_debt and max_wait. */
TEST(calls_after_a_debt_wait_until_it_is_paid) {
    doorman_limit_options options = {
        .kind = DOORMAN_TOKEN_BUCKET, .rate = 10, .size = 5, .max_debt = 2 * SECOND};
    doorman_limit limit = limit_of(&options);
    doorman_limiter bucket = limiter_of(&limit, 0);
    doorman_time wait = -1;
    assert_int_equal(limiter_try(&bucket, &limit, 15, &wait, 0), DOORMAN_ALLOWED);
    assert_int_equal(wait, 0);
    assert_int_equal(limiter_try(&bucket, &limit, 10, &wait, 0), DOORMAN_ALLOWED);
    assert_int_equal(wait, SECOND);
    assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, 0), DOORMAN_REFUSED);
    assert_int_equal(wait, SECOND / 10); /* 20 units are owed */
    assert_int_equal(doorman_limiter_delay(&bucket, &limit, 1, 0), SECOND / 10);
    assert_int_equal(limiter_try(&bucket, &limit, 25.1, &wait, MINUTE), DOORMAN_IMPOSSIBLE);
    assert_int_equal(wait, DOORMAN_NEVER);
    options.has_max_wait = true, options.max_wait = SECOND / 2;
    limit = limit_of(&options);
    bucket = limiter_of(&limit, 0);
    assert_int_equal(limiter_try(&bucket, &limit, 15, &wait, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_delay(&bucket, &limit, 1, 0), SECOND / 2);
    doorman_time half = SECOND / 2;
    assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, half - 1), DOORMAN_REFUSED);
    assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, half), DOORMAN_ALLOWED);
    assert_int_equal(wait, half);
}

/* A debt may be worth more than 18 minutes, the largest difference between clocks. */
TEST(a_debt_of_hours_is_not_mistaken_for_the_past) {
    const doorman_limit_options options = {
        .kind = DOORMAN_TOKEN_BUCKET, .rate = 0.01, .max_debt = 10000 * SECOND};
    doorman_limit limit = limit_of(&options);
    doorman_limiter bucket = limiter_of(&limit, 0);
    doorman_time wait = -1;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, MINUTE), DOORMAN_ALLOWED);
        assert_int_equal(wait, i * 100 * SECOND);
    }
    assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, MINUTE), DOORMAN_REFUSED);
    assert_int_equal(wait, 100 * SECOND);
}

/* If max_wait is 0, units are lent only to a caller that need not wait for earlier debt. */
TEST(a_bucket_with_wait_max_0_lends_once_until_the_debt_is_paid) {
    const doorman_limit_options options = {.kind = DOORMAN_TOKEN_BUCKET,
                                           .rate = 10,
                                           .size = 5,
                                           .max_debt = 2 * SECOND,
                                           .has_max_wait = true};
    doorman_limit limit = limit_of(&options);
    doorman_limiter bucket = limiter_of(&limit, 0);
    assert_int_equal(doorman_limiter_try(&bucket, &limit, 15, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_delay(&bucket, &limit, 1, 0), SECOND);
    assert_int_equal(doorman_limiter_try(&bucket, &limit, 1, NULL, SECOND - 1), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_try(&bucket, &limit, 20, NULL, SECOND), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_delay(&bucket, &limit, 1, SECOND), 2 * SECOND);
}

/* The queue of the bucket has room for 3, and its rate is 2 a second. */
TEST(a_leaky_bucket_smooths_a_burst) {
    const doorman_limit_options options = {
        .kind = DOORMAN_TOKEN_BUCKET, .rate = 2, .max_debt = 3 * SECOND / 2};
    doorman_limit limit = limit_of(&options);
    doorman_limiter bucket = limiter_of(&limit, 0);
    doorman_time wait = -1;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, MINUTE), DOORMAN_ALLOWED);
        assert_int_equal(wait, i * SECOND / 2);
    }
    assert_int_equal(limiter_try(&bucket, &limit, 1, &wait, MINUTE), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_delay(&bucket, &limit, 1, MINUTE), SECOND / 2);
}

/* One limit serves any number of limiters, and each limiter counts by itself. */
TEST(limiters_of_one_limit_do_not_share_their_state) {
    enum { USERS = 50 };
    assert_int_equal(sizeof(doorman_limiter), 16);
    assert_int_equal(sizeof(doorman_limit), 64);
    for (int kind = 0; kind < LIMITER_KIND_COUNT; kind++) {
        subject s, alone;
        subject_init(&s, (limiter_kind)kind, MINUTE);
        const doorman_limit before = s.limit;
        doorman_limiter users[USERS];
        doorman_arrival arrivals[USERS][LIMIT];
        for (size_t i = 0; i < USERS; i++) {
            doorman_arrival *room = kind == LOG ? arrivals[i] : NULL;
            assert_int_equal(doorman_limiter_init(&users[i], &s.limit, room, MINUTE), DOORMAN_OK);
        }
        for (size_t i = 0; i < USERS; i++) {
            doorman_time wait, expected;
            subject_copy(&alone, &s);
            for (size_t k = 0; k < i % (2 * LIMIT + 2); k++) {
                doorman_decision decision = subject_try(&alone, 1, &expected, MINUTE);
                assert_int_equal(limiter_try(&users[i], &s.limit, 1, &wait, MINUTE), decision);
                assert_int_equal(wait, expected);
            }
        }
        assert_memory_equal(&before, &s.limit, sizeof before);
    }
}

/* L1: the rate of a resource and a bucket compute with the same function. After a rest a rate has
 * saved its whole burst, like a bucket of that size. */
TEST(a_rate_and_an_equal_bucket_decide_alike) {
    for (int i = 0; i < 200; i++) {
        static const int rates[] = {1, 2, 5, 10, 64, 125, 1000}; /* their unit's time is exact */
        int units = rates[random_below(7)];
        const doorman_limit_options options = {
            .kind = DOORMAN_TOKEN_BUCKET, .rate = units, .size = units};
        doorman_limit limit = limit_of(&options);
        doorman_time now = MINUTE;
        doorman_limiter bucket = limiter_of(&limit, now);
        doorman__rate rate = rate_of(units, SECOND, now - SECOND);
        for (int k = 0; k < 200; k++) {
            double n = random_below(2) ? 1 : random_unit() * units;
            now += (doorman_time)(random_unit() * 1e9 / units);
            doorman_time wait, delay = doorman__rate_delay(&rate, n, now);
            assert_int_equal(doorman_limiter_delay(&bucket, &limit, n, now), delay);
            doorman_decision decision = doorman__rate_try(&rate, n, now);
            assert_int_equal(limiter_try(&bucket, &limit, n, &wait, now), decision);
            assert_int_equal(wait, delay);
        }
    }
}

/* ---- CONCURRENCY ---- */

static doorman_limit concurrency_of(double units) {
    const doorman_limit_options options = {.kind = DOORMAN_CONCURRENCY, .limit = units};
    return limit_of(&options);
}

static double in_use(const doorman_limiter *limiter) {
    return (double)limiter->state.words[0] / 4096;
}

/* L1: compares the limiter with a model that keeps a list of the units in use. Sometimes a release
 * has more units than are in use, and changes nothing. */
TEST(a_concurrency_limiter_equals_a_model_with_a_list_of_holds) {
    enum { HOLDS = 64 };
    for (int run = 0; run < 50; run++) {
        double holds[HOLDS], sum = 0, units = (double)random_below(32 * 4096) / 4096;
        size_t count = 0;
        doorman_limit limit = concurrency_of(units);
        doorman_limiter limiter = limiter_of(&limit, 0);
        for (int i = 0; i < 500; i++) {
            doorman_time now = (doorman_time)random_below(1000) * SECOND;
            double n = (double)(1 + random_below(3 * 4096)) / 4096;
            doorman_decision expected = sum + n <= units ? DOORMAN_ALLOWED : DOORMAN_REFUSED;
            if (n > units) expected = DOORMAN_IMPOSSIBLE;
            doorman_time never = expected == DOORMAN_ALLOWED ? 0 : DOORMAN_NEVER;
            doorman_result result;
            if (random_below(50) == 0) {
                assert_int_equal(doorman_limiter_release(&limiter, &limit, sum + n),
                                 DOORMAN_INVALID_ARGUMENT);
            } else if (random_below(2) && count < HOLDS) {
                assert_int_equal(doorman_limiter_delay(&limiter, &limit, n, now), never);
                assert_int_equal(doorman_limiter_try(&limiter, &limit, n, &result, now), expected);
                if (expected == DOORMAN_ALLOWED) sum += holds[count++] = n;
                assert_exact(result.remaining, units - sum);
                assert_true(result.retry_after == never);
                assert_true(result.wait == 0 && result.reset_after == 0);
            } else if (count) {
                sum -= holds[--count];
                assert_int_equal(doorman_limiter_release(&limiter, &limit, holds[count]),
                                 DOORMAN_OK);
            }
            assert_exact(in_use(&limiter), sum);
        }
    }
}

/* L1 */
TEST(a_release_of_more_than_is_in_use_is_refused) {
    doorman_limit limit = concurrency_of(2);
    doorman_limiter limiter = limiter_of(&limit, 0);
    const double none[] = {-1,     (double)NAN, (double)INFINITY,  -(double)INFINITY,
                           1.1e15, 2.001,       DOORMAN_AMOUNT_MAX};
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 2, NULL, 0), DOORMAN_ALLOWED);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(doorman_limiter_release(&limiter, &limit, none[i]),
                         DOORMAN_INVALID_ARGUMENT);
        assert_exact(in_use(&limiter), 2);
    }
    assert_int_equal(doorman_limiter_release(&limiter, &limit, 0), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 1, NULL, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_release(&limiter, &limit, 2), DOORMAN_OK);
    assert_int_equal(doorman_limiter_release(&limiter, &limit, 1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 2, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_try(&limiter, &limit, 1, NULL, 0), DOORMAN_REFUSED);
}

/* L2: other kinds have nothing to release, so their state stays as it is. */
TEST(a_release_changes_no_limiter_of_another_kind) {
    for (int kind = 0; kind < LIMITER_KIND_COUNT; kind++) {
        doorman_time wait;
        subject s;
        subject_init(&s, (limiter_kind)kind, MINUTE);
        (void)subject_try(&s, 3, &wait, MINUTE);
        const doorman_limiter before = s.limiter;
        assert_int_equal(doorman_limiter_release(&s.limiter, &s.limit, 2),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(&before, &s.limiter, sizeof before);
    }
}

/* L2 */
TEST(a_concurrency_limiter_of_any_size_works) {
    doorman_limit none = concurrency_of(0), all = concurrency_of(DOORMAN_AMOUNT_MAX);
    doorman_limiter small = limiter_of(&none, 0), large = limiter_of(&all, 0);
    assert_int_equal(doorman_limiter_try(&small, &none, 0, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_try(&small, &none, 1e-9, NULL, 0), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_limiter_try(&large, &all, 1e15, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_try(&large, &all, 1e-9, NULL, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_release(&large, &all, 1e-9), DOORMAN_OK);
    assert_int_equal(doorman_limiter_try(&large, &all, 1e-9, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_release(&large, &all, 1e15), DOORMAN_OK);
    assert_exact(in_use(&large), 0);
}

/* L2: fractions are rounded up in the same way when they are taken and when they are released. */
TEST(fractions_of_a_concurrency_limiter_return_to_exactly_0) {
    doorman_limit limit = concurrency_of(100);
    doorman_limiter limiter = limiter_of(&limit, 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(doorman_limiter_try(&limiter, &limit, 0.1, NULL, 0), DOORMAN_ALLOWED);
    }
    assert_true(in_use(&limiter) >= 10);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(doorman_limiter_release(&limiter, &limit, 0.1), DOORMAN_OK);
    }
    assert_exact(in_use(&limiter), 0);
}

/* ---- L1: a rate that changes, as a pure function ---- */

static doorman__quota random_quota(const doorman__rate *rate) {
    size_t kind = random_below(8);
    double amount = kind == 0 ? 0 : kind == 1 ? DOORMAN_UNLIMITED : random_rate();
    return doorman__rate_quota(rate, amount);
}

/* Returns the saved units, as L1 defines them: the rate times the saved time. The saved time is the
 * time since paid_until, but at most what the bucket can save. The result is negative if paid_until
 * is in the future. */
static double saved_units(const doorman__quota *quota, uint64_t paid_until, uint64_t now) {
    double ticks = fmin((double)(int64_t)(now - paid_until), (double)quota->most);
    return ticks / 256e9 * quota->amount;
}

/* L1: a change of the rate never adds units, except that one unit can always be saved. A debt does
 * not change. A lower rate keeps the saved time, or, if the burst is in units, the saved units. */
TEST(a_changed_rate_keeps_no_more_units_than_were_saved) {
    const uint64_t now = doorman__ticks(1000 * SECOND);
    for (int i = 0; i < 20000; i++) {
        doorman__rate rate = rate_of(1, random_burst(), 0);
        bool in_units = random_below(2);
        if (in_units) rate.burst_units = 0.1 + random_unit() * 100;
        doorman__quota from = random_quota(&rate), to = random_quota(&rate);
        int64_t level = (int64_t)((random_unit() * 4 - 1) * (double)rate.burst * 256);
        uint64_t paid = now - (uint64_t)level;
        const doorman__rate_change change = {&from, &to, in_units, 0};
        uint64_t after = doorman__quota_carry(&change, paid, now);
        if (level <= 0) assert_true(after == paid);
        if (level > 0 && !in_units) assert_true((int64_t)(now - after) <= level);
        if (level <= 0 || !(from.amount > 0) || !(to.amount > 0)) continue;
        double before = saved_units(&from, paid, now), kept = saved_units(&to, after, now);
        if (to.amount > from.amount || in_units) {
            assert_true(kept <= before * (1 + 1e-9) + 1e-9);
            assert_true(kept >= fmin(before, (double)to.most / 256e9 * to.amount) * (1 - 1e-6) -
                                    2 * to.amount / 256e9);
        } else {
            assert_true(after == paid);
        }
    }
}

/* ---- limits that make no sense ---- */

/* Options with one wrong field. */
typedef struct invalid_option {
    const char *field;
    doorman_limit_options options;
} invalid_option;

#define BUCKET .kind = DOORMAN_TOKEN_BUCKET
#define FIXED_WINDOW .kind = DOORMAN_FIXED_WINDOW
#define SLIDING_WINDOW .kind = DOORMAN_SLIDING_WINDOW
#define SLIDING_LOG .kind = DOORMAN_SLIDING_LOG
#define CONCURRENCY .kind = DOORMAN_CONCURRENCY

static const invalid_option invalid_options[] = {
    {"kind", {.rate = 1, .size = 1}},
    {"kind", {.kind = (doorman_limit_kind)6, .limit = 1, .window = SECOND}},
    {"rate", {BUCKET, .size = 1}},
    {"rate", {BUCKET, .rate = -1, .size = 1}},
    {"rate", {BUCKET, .rate = (double)NAN, .size = 1}},
    {"rate", {BUCKET, .rate = (double)INFINITY, .size = 1}},
    {"rate", {BUCKET, .rate = 1.1e15, .size = 1}},
    {"size", {BUCKET, .rate = 1}},
    {"size", {BUCKET, .rate = 1, .size = -1}},
    {"size", {BUCKET, .rate = 1, .size = (double)NAN}},
    {"size", {BUCKET, .rate = 1, .size = (double)INFINITY}},
    {"size", {BUCKET, .rate = 1, .size = 1.1e15}},
    {"size", {BUCKET, .rate = 1e-9, .size = 1}}, /* 30 years */
    {"size", {BUCKET, .rate = 1e-7, .size = 0.6, .max_debt = 6000000 * SECOND}},
    {"max_debt", {BUCKET, .rate = 1, .max_debt = -1}},
    {"max_debt", {BUCKET, .rate = 1, .size = 2, .max_debt = -1}},
    {"max_debt", {BUCKET, .rate = 1, .max_debt = 10000000 * SECOND + 1}},
    {"max_wait", {BUCKET, .rate = 1, .max_debt = 1, .has_max_wait = true, .max_wait = -1}},
    {"max_wait", {BUCKET, .rate = 1, .max_debt = 1, .max_wait = SECOND}},
    {"has_max_wait", {BUCKET, .rate = 1, .size = 1, .has_max_wait = true}},
    {"limit", {BUCKET, .rate = 1, .size = 1, .limit = 1}},
    {"window", {BUCKET, .rate = 1, .size = 1, .window = SECOND}},
    {"limit", {FIXED_WINDOW, .limit = -1, .window = SECOND}},
    {"limit", {FIXED_WINDOW, .limit = 1.1e8, .window = SECOND}},
    {"limit", {SLIDING_WINDOW, .limit = (double)NAN, .window = SECOND}},
    {"limit", {SLIDING_WINDOW, .limit = (double)INFINITY, .window = SECOND}},
    {"limit", {SLIDING_LOG, .window = SECOND}},
    {"limit", {SLIDING_LOG, .limit = 1.5, .window = SECOND}},
    {"limit", {SLIDING_LOG, .limit = 2e8, .window = SECOND}},
    {"window", {FIXED_WINDOW, .limit = 1}},
    {"window", {FIXED_WINDOW, .limit = 1, .window = -1}},
    {"window", {SLIDING_WINDOW, .limit = 1, .window = DOORMAN_DURATION_MAX + 1}},
    {"window", {SLIDING_LOG, .limit = 1, .window = DOORMAN_NEVER}},
    {"rate", {FIXED_WINDOW, .limit = 1, .window = SECOND, .rate = 1}},
    {"size", {SLIDING_WINDOW, .limit = 1, .window = SECOND, .size = 1}},
    {"max_debt", {SLIDING_LOG, .limit = 1, .window = SECOND, .max_debt = 1}},
    {"has_max_wait", {FIXED_WINDOW, .limit = 1, .window = SECOND, .has_max_wait = true}},
    {"max_wait", {FIXED_WINDOW, .limit = 1, .window = SECOND, .max_wait = 1}},
    {"limit", {CONCURRENCY, .limit = -1}},
    {"limit", {CONCURRENCY, .limit = (double)NAN}},
    {"limit", {CONCURRENCY, .limit = (double)INFINITY}},
    {"limit", {CONCURRENCY, .limit = 1.1e15}},
    {"window", {CONCURRENCY, .limit = 1, .window = SECOND}},
    {"rate", {CONCURRENCY, .limit = 1, .rate = 1}},
    {"size", {CONCURRENCY, .limit = 1, .size = 1}},
    {"max_debt", {CONCURRENCY, .limit = 1, .max_debt = 1}},
    {"has_max_wait", {CONCURRENCY, .limit = 1, .has_max_wait = true}},
    {"max_wait", {CONCURRENCY, .limit = 1, .max_wait = 1}},
};

/* C5: the error names the field, and the limit stays as it was. */
TEST(an_error_names_the_invalid_field_of_a_limit) {
    doorman_limit limit, before;
    memset(&limit, 0x5a, sizeof limit);
    before = limit;
    for (size_t i = 0; i < sizeof invalid_options / sizeof *invalid_options; i++) {
        doorman_error error = {0};
        char start[64];
        snprintf(start, sizeof start, "%s: must ", invalid_options[i].field);
        assert_int_equal(doorman_limit_init(&limit, &invalid_options[i].options, &error),
                         DOORMAN_INVALID_ARGUMENT);
        if (strncmp(error.text, start, strlen(start)) != 0) {
            fail_msg("fault %zu, %s: %s", i, invalid_options[i].field, error.text);
        }
        assert_int_equal(doorman_limit_init(&limit, &invalid_options[i].options, NULL),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(&limit, &before, sizeof limit);
    }
}

/* C5: each limit has a figure at the bound of what is allowed. */
TEST(limits_at_their_bounds_are_accepted) {
    const doorman_limit_options options[] = {
        {BUCKET, .rate = 1e15, .size = 1e15, .max_debt = 9999999 * SECOND},
        {BUCKET, .rate = 1e-7, .size = 0.5, .max_debt = 5000000 * SECOND},
        {BUCKET, .rate = 1, .max_debt = 1, .has_max_wait = true},
        {FIXED_WINDOW, .limit = 0, .window = 1},
        {SLIDING_WINDOW, .limit = 1e8, .window = DOORMAN_DURATION_MAX},
        {SLIDING_LOG, .limit = 1, .window = DOORMAN_DURATION_MAX},
        {SLIDING_LOG, .limit = 1e8, .window = 1},
        {CONCURRENCY, .limit = 0},
        {CONCURRENCY, .limit = 1e15},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) (void)limit_of(&options[i]);
}

/* C5: a call detects that an init was left out, or that `out` is missing. */
TEST(a_limiter_without_its_init_is_impossible) {
    const doorman_limit zero = {.kind = (doorman_limit_kind)0};
    const doorman_limit_options log = {SLIDING_LOG, .limit = 2, .window = SECOND};
    const doorman_limit_options leaky = {BUCKET, .rate = 1, .max_debt = SECOND};
    const doorman_limit limits[] = {zero, limit_of(&log)};
    for (size_t i = 0; i < 2; i++) {
        doorman_limiter limiter = {.state = {.words = {0, 0}}};
        doorman_result result;
        assert_int_equal(doorman_limiter_try(&limiter, &limits[i], 1, &result, 1),
                         DOORMAN_IMPOSSIBLE);
        assert_int_equal(result.decision, DOORMAN_IMPOSSIBLE);
        assert_true(result.retry_after == DOORMAN_NEVER);
        assert_int_equal(doorman_limiter_try(&limiter, &limits[i], 0, NULL, 1), DOORMAN_IMPOSSIBLE);
        assert_true(doorman_limiter_delay(&limiter, &limits[i], 1, 1) == DOORMAN_NEVER);
        assert_int_equal(doorman_limiter_release(&limiter, &limits[i], 1),
                         DOORMAN_INVALID_ARGUMENT);
    }
    const doorman_limit waits = limit_of(&leaky);
    doorman_limiter queue = limiter_of(&waits, 0);
    assert_int_equal(doorman_limiter_try(&queue, &waits, 1, NULL, 0), DOORMAN_IMPOSSIBLE);
}

/* C5: a log needs aligned memory for its arrivals. Other kinds take no such memory. */
TEST(a_limiter_with_invalid_log_memory_is_refused) {
    const doorman_limit_options options[] = {
        {BUCKET, .rate = 1, .size = 1},
        {FIXED_WINDOW, .limit = 1, .window = SECOND},
        {SLIDING_WINDOW, .limit = 1, .window = SECOND},
        {SLIDING_LOG, .limit = 1, .window = SECOND},
        {CONCURRENCY, .limit = 1},
    };
    doorman_arrival arrivals[2], *askew = (doorman_arrival *)(void *)((char *)arrivals + 4);
    doorman_limiter limiter;
    const doorman_status wrong = DOORMAN_INVALID_ARGUMENT;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        doorman_limit limit = limit_of(&options[i]);
        bool log = limit.kind == DOORMAN_SLIDING_LOG;
        assert_int_equal(doorman_limiter_init(&limiter, &limit, log ? NULL : arrivals, 0), wrong);
        assert_int_equal(doorman_limiter_init(&limiter, &limit, askew, 0), wrong);
    }
    const doorman_limit none = {.unit_time = 0};
    assert_int_equal(doorman_limiter_init(&limiter, &none, NULL, 0), wrong);
}

/* L2: amounts are 0, invalid or too large. The clock stands still, or jumps by a year. */
TEST(limiters_withstand_any_amount_and_clock) {
    const double none[] = {-1,    -1e-300, (double)NAN,    (double)INFINITY,
                           1e300, 1e15,    2 * LIMIT + 0.1};
    for (int kind = 0; kind < LIMITER_KIND_COUNT; kind++) {
        doorman_time wait, now = MINUTE;
        subject s;
        subject_init(&s, (limiter_kind)kind, now);
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
            assert_int_equal(subject_try(&s, none[i], &wait, now), DOORMAN_IMPOSSIBLE);
            assert_int_equal(wait, DOORMAN_NEVER);
            assert_int_equal(subject_delay(&s, none[i], now), DOORMAN_NEVER);
        }
        for (int jump = 0; jump < 3; jump++, now += YEAR) {
            int allowed = 0;
            for (int i = 0; i < 100; i++) {
                allowed += subject_try(&s, 1, &wait, now) == DOORMAN_ALLOWED;
                assert_int_equal(subject_try(&s, 0, &wait, now), DOORMAN_ALLOWED);
                assert_int_equal(wait, 0);
                assert_int_equal(subject_delay(&s, 0, now), 0);
            }
            if (kind != DEBT) assert_int_equal(allowed, LIMIT);
            if (kind == DEBT) assert_in_range(allowed, LIMIT, 2 * LIMIT);
            assert_int_equal(subject_try(&s, 1, &wait, now - MILLISECOND), DOORMAN_REFUSED);
        }
    }
}

/* ---- 16 threads ---- */
/* Threads make no assertions and do not read the real clock. They count errors. */

enum { THREADS = 16 };

typedef struct thread_group {
    doorman__rate *rate;
    doorman__gauge *gauge;
    subject *subject;
    doorman_limiter *limiter; /* has a CONCURRENCY limit; NULL: the threads use the gauge */
    const doorman_limit *limit;
    atomic_llong clock;
    atomic_bool stop;
    /* The thread does not yield between tries, so that it can be preempted at any point of a
     * try. */
    bool spins;
    atomic_int arrived; /* the number of threads that have started */
    atomic_llong tries, allowed;
    atomic_llong held;     /* units in flight, as the threads count them */
    atomic_llong capacity; /* the largest capacity of the gauge */
    atomic_int exceeded;
} thread_group;

static void thread_group_gather(thread_group *c) {
    atomic_fetch_add(&c->arrived, 1);
    while (atomic_load(&c->arrived) < THREADS) sched_yield();
}

static void thread_group_start(thread_group *c, pthread_t *threads, void *(*work)(void *)) {
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, c), 0);
    }
    while (atomic_load(&c->arrived) < THREADS) sched_yield();
}

static void thread_group_join(pthread_t *threads) {
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void *try_at_one_time(void *context) {
    thread_group *c = context;
    thread_group_gather(c);
    for (int i = 0; i < 2000; i++) {
        if (doorman__rate_try(c->rate, 1, MINUTE) == DOORMAN_ALLOWED) {
            atomic_fetch_add(&c->allowed, 1);
        }
    }
    return NULL;
}

/* L1, L3 */
TEST(sixteen_threads_share_one_burst_exactly) {
    pthread_t threads[THREADS];
    for (int i = 0; i < 5; i++) {
        doorman__rate rate = rate_of(10000, SECOND, 0);
        thread_group c = {.rate = &rate};
        thread_group_start(&c, threads, try_at_one_time);
        thread_group_join(threads);
        assert_int_equal(atomic_load(&c.allowed), 10000);
        doorman_counts counts;
        doorman__usage_read(&rate.usage, &counts);
        assert_exact(counts.allowed, 10000);
        assert_true(counts.refused > 0 && counts.refused <= THREADS * 2000 - 10000);
    }
}

static bool subject_takes_unit(subject *s, doorman_time now) {
    doorman_result result; /* required for buckets whose callers must wait */
    return doorman_limiter_try(&s->limiter, &s->limit, 1, &result, now) == DOORMAN_ALLOWED;
}

static void *try_limiter(void *context) {
    thread_group *c = context;
    thread_group_gather(c);
    for (int i = 0; i < 500; i++) {
        (void)subject_delay(c->subject, 1, MINUTE);
        bool allowed = subject_takes_unit(c->subject, MINUTE);
        if (allowed) atomic_fetch_add(&c->allowed, 1);
    }
    return NULL;
}

/* L1, L3: the threads together get exactly the units that one thread would get. */
TEST(sixteen_threads_share_each_kind_of_limiter_exactly) {
    pthread_t threads[THREADS];
    for (int kind = 0; kind < LIMITER_KIND_COUNT; kind++) {
        subject s, alone;
        subject_init(&s, (limiter_kind)kind, MINUTE);
        subject_copy(&alone, &s);
        thread_group c = {.subject = &s};
        int expected = 0;
        doorman_time wait;
        for (int i = 0; i < 100; i++) {
            expected += subject_try(&alone, 1, &wait, MINUTE) == DOORMAN_ALLOWED;
        }
        thread_group_start(&c, threads, try_limiter);
        thread_group_join(threads);
        assert_int_equal(atomic_load(&c.allowed), expected);
    }
}

/* Each 10,000th try moves the clock by one window, while other threads may still be in the last
 * window. */
static void *try_windows(void *context) {
    thread_group *c = context;
    thread_group_gather(c);
    for (int i = 0; i < 100000; i++) {
        doorman_time now = atomic_load(&c->clock);
        bool allowed = subject_takes_unit(c->subject, now);
        if (allowed) atomic_fetch_add(&c->allowed, 1);
        bool last = atomic_fetch_add(&c->tries, 1) % 10000 == 9999;
        if (last) atomic_fetch_add(&c->clock, c->subject->length);
    }
    return NULL;
}

/* L1: a window keeps its limit even if other threads still call with an earlier time. If a try
 * stayed in the window that it first found, three of eight runs of this test would fail. */
TEST(a_late_thread_does_not_reset_the_next_window) {
    pthread_t threads[THREADS];
    subject s;
    subject_init(&s, FIXED, 0);
    thread_group c = {.subject = &s};
    thread_group_start(&c, threads, try_windows);
    thread_group_join(threads);
    assert_in_range(atomic_load(&c.allowed), LIMIT, (c.clock / s.length + 1) * LIMIT);
}

static void *try_until_stopped(void *context) {
    thread_group *c = context;
    thread_group_gather(c);
    while (!atomic_load(&c->stop)) {
        doorman_time now = atomic_load(&c->clock);
        (void)doorman__rate_delay(c->rate, 1, now);
        if (doorman__rate_try(c->rate, 1, now) == DOORMAN_ALLOWED) atomic_fetch_add(&c->allowed, 1);
        atomic_fetch_add(&c->tries, 1);
        sched_yield();
    }
    return NULL;
}

/* Moves the clock, and waits for enough tries that have seen the new time. */
static void thread_group_clock(thread_group *c, doorman_time now) {
    atomic_store(&c->clock, now);
    long long enough = atomic_load(&c->tries) + 2 * THREADS;
    while (atomic_load(&c->tries) < enough) sched_yield();
}

/* L1, C2 */
TEST(sixteen_threads_stay_within_a_rate_that_changes) {
    pthread_t threads[THREADS];
    source s = source_open(1000, 0, 0);
    thread_group c = {.rate = &s.resource->rate};
    thread_group_start(&c, threads, try_until_stopped);
    for (doorman_time now = 0; now < 10 * SECOND; now += 5 * MILLISECOND) {
        source_set(&s, now / SECOND % 2 ? 1000 : 200, now);
        thread_group_clock(&c, now);
    }
    atomic_store(&c.stop, true);
    thread_group_join(threads);
    assert_in_range(atomic_load(&c.allowed), 5500, 5 * 1000 + 5 * 200 + 100);
    doorman_client_destroy(s.client);
}

static doorman_decision thread_group_hold(thread_group *c) {
    if (!c->limiter) return doorman__gauge_try(c->gauge, 1, 0);
    return doorman_limiter_try(c->limiter, c->limit, 1, NULL, 0);
}

static void thread_group_release(thread_group *c) {
    if (!c->limiter) doorman__gauge_release(c->gauge, 1);
    if (c->limiter) doorman_limiter_release(c->limiter, c->limit, 1);
}

static void *hold_and_release(void *context) {
    thread_group *c = context;
    thread_group_gather(c);
    while (!atomic_load(&c->stop)) {
        if (thread_group_hold(c) == DOORMAN_ALLOWED) {
            atomic_fetch_add(&c->allowed, 1);
            long long held = atomic_fetch_add(&c->held, 1) + 1;
            if (held > atomic_load(&c->capacity)) atomic_fetch_add(&c->exceeded, 1);
            sched_yield();
            atomic_fetch_sub(&c->held, 1);
            thread_group_release(c);
        }
        if (!c->spins) sched_yield();
    }
    return NULL;
}

static void hold_in_threads(thread_group *c) {
    pthread_t threads[THREADS];
    thread_group_start(c, threads, hold_and_release);
    for (int i = 0; atomic_load(&c->allowed) < 20000 && i < 1000000; i++) sched_yield();
    atomic_store(&c->stop, true);
    thread_group_join(threads);
    assert_true(atomic_load(&c->allowed) >= 20000);
    assert_int_equal(atomic_load(&c->exceeded), 0);
}

/* L1 */
TEST(sixteen_threads_never_exceed_a_gauge) {
    doorman__gauge gauge = gauge_of(5);
    thread_group c = {.gauge = &gauge, .capacity = 5};
    hold_in_threads(&c);
    assert_exact(doorman__gauge_in_flight(&gauge), 0);
}

/* L1, L3 */
TEST(sixteen_threads_never_exceed_a_concurrency_limiter) {
    doorman_limit limit = concurrency_of(5);
    doorman_limiter limiter = limiter_of(&limit, 0);
    thread_group c = {.limiter = &limiter, .limit = &limit, .capacity = 5};
    hold_in_threads(&c);
    assert_exact(in_use(&limiter), 0);
}

/* R3: a thread lowers a gauge, and then reads the units in flight. The result includes all units
 * that can still start under the old capacity. If a try did not check the capacity again, one of
 * two runs of this test would fail. */
TEST(a_claim_includes_every_unit_in_flight) {
    pthread_t threads[THREADS];
    source s = source_open_gauge(12);
    thread_group c = {.gauge = &s.resource->gauge, .capacity = 12, .spins = true};
    thread_group_start(&c, threads, hold_and_release);
    int missed = 0;
    for (int i = 0; i < 40000; i++) {
        source_set(&s, 2, 0);
        doorman_resource_info info;
        doorman_client_read(s.resource, &info, 0);
        double most = fmax(info.in_use, 2);
        for (int k = 0; k < 100; k++) missed += (double)atomic_load(&c.held) > most;
        source_set(&s, 12, 0);
        for (int k = 0; k < 100; k++) missed += atomic_load(&c.held) > 12;
    }
    atomic_store(&c.stop, true);
    thread_group_join(threads);
    assert_int_equal(missed, 0);
    assert_int_equal(atomic_load(&c.exceeded), 0);
    assert_true(atomic_load(&c.allowed) > 0);
    assert_exact(doorman__gauge_in_flight(c.gauge), 0);
    doorman_client_destroy(s.client);
}
