/* Tests the part "demand" of section >>client of doorman.h: how much a resource should want,
 * computed from the counts of its limiters. The estimator is a pure structure, so these tests need
 * no client, no limiter and no server. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)

/* ---- an estimator, and the reading that comes next ---- */

typedef struct fixture {
    doorman__estimator estimator;
    doorman__reading reading;
    doorman__supply supply;
} fixture;

/* Starts an estimator with a window of 10 s, so that a sample is due every second. */
static fixture start_kind(bool is_gauge, double minimum) {
    fixture f = {.estimator = {.is_gauge = is_gauge,
                               .minimum = minimum,
                               .maximum = 1e15,
                               .initial = minimum,
                               .window = 10 * SECOND},
                 .reading = {.at = 1000 * SECOND, .unmet_since = DOORMAN_NEVER}};
    doorman__estimator_init(&f.estimator, &f.reading);
    return f;
}

static fixture start(double minimum) { return start_kind(false, minimum); }

static uint64_t units(double n) { return (uint64_t)(n * 4096); }

/* Counts allowed and refused units during `duration`. The first refusal comes at the start. */
static void count(fixture *f, double allowed, double refused, doorman_time duration) {
    f->reading.unmet_since = refused > 0 ? f->reading.at : DOORMAN_NEVER;
    f->reading.at += duration;
    f->reading.allowed += units(allowed);
    f->reading.refused += units(refused);
}

static double sample(fixture *f) {
    doorman__estimator_sample(&f->estimator, &f->reading, &f->supply);
    f->reading.largest = f->reading.peak = f->reading.waiting_peak = 0;
    return f->estimator.wants;
}

static double poll_demand(fixture *f) {
    doorman__estimator_look(&f->estimator, &f->reading, &f->supply);
    return f->estimator.wants;
}

/* Counts units for a second, and takes a sample. Returns the wants. */
static double run_for(fixture *f, double allowed, double refused) {
    count(f, allowed, refused, SECOND);
    return sample(f);
}

/* ---- tests ---- */

/* K6 */
TEST(without_use_wants_fall_from_the_initial_wants_to_the_minimum) {
    fixture f = start(2);
    assert_exact(run_for(&f, 0, 0), 2);
    f.estimator.initial = 70;
    for (int i = 1; i < 9; i++) assert_exact(run_for(&f, 0, 0), 70);
    assert_exact(run_for(&f, 0, 0), 2); /* a window is over */
    f.estimator.maximum = 50;
    f.estimator.initial_until = 0;
    assert_exact(run_for(&f, 400, 0), 50);
}

/* L4 */
TEST(wants_settle_on_a_steady_use) {
    for (int i = 0; i < 100; i++) {
        double rate = pow(10, random_unit() * 6), wants = 0;
        fixture f = start(0.5);
        for (int k = 0; k < 20; k++) wants = run_for(&f, rate, 0);
        assert_near(wants, fmax(0.5, rate), 0.1);
    }
}

/* L4: the counters wrap around after 2^52 units. */
TEST(counters_can_wrap_around) {
    fixture f = start(1);
    f.reading.allowed = f.reading.refused = UINT64_MAX - 4096;
    doorman__estimator_init(&f.estimator, &f.reading);
    assert_near(run_for(&f, 60, 40), 100, 0.1);
}

/* L4: refused units count in full until the server has reported that it has no more. */
TEST(refused_units_count_until_the_server_has_no_more) {
    fixture f = start(1);
    assert_near(run_for(&f, 10, 2390), 2400, 0.1);
    f.supply = (doorman__supply){.amount = 100, .exhausted = true};
    for (int i = 0; i < 20; i++) assert_in_range((uintmax_t)run_for(&f, 100, 1e6), 800, 850);
    f.supply = (doorman__supply){.amount = 0, .exhausted = true};
    double wants = 0;
    for (int i = 0; i < 20; i++) wants = run_for(&f, 0, 1e6);
    assert_near(wants, 7.35, 1e-6); /* seven times the minimum */
}

/* L4: refusals may begin at any moment between two polls. */
TEST(a_poll_sees_a_rate_within_a_tenth_of_a_second) {
    for (int ms = 0; ms < 900; ms += 7) {
        fixture f = start(1);
        run_for(&f, 0, 0);
        count(&f, 0, 0, ms * MILLISECOND);
        count(&f, 0, 240, 100 * MILLISECOND);
        assert_near(poll_demand(&f), 2400, 0.1);
        assert_true(f.estimator.unmet);
        count(&f, 24, 0, (900 - ms) * MILLISECOND);
        assert_near(sample(&f), 2400, 0.1); /* the demand stays, */
        for (int i = 0; i < 11; i++) run_for(&f, 0, 0);
        assert_exact(f.estimator.wants, 1); /* and is forgotten */
    }
}

/* L4: one refusal does not show a rate, even if it is for many units. */
TEST(the_first_refusal_only_starts_the_measurement) {
    fixture f = start(1);
    count(&f, 0, 1, 100 * MILLISECOND);
    assert_exact(poll_demand(&f), 1);
    count(&f, 0, 50, 100 * MILLISECOND);
    f.reading.largest = 50;
    assert_near(poll_demand(&f), 25, 1e-3); /* 25 a second save 50 units in 2 s */
    count(&f, 0, 50, 100 * MILLISECOND);
    assert_near(poll_demand(&f), 1.05 * 250, 1);
}

/* L4: a sample between a refusal and its poll must keep the counts that the poll needs, and remove
 * older counts. */
TEST(a_sample_between_a_refusal_and_its_poll_loses_nothing) {
    fixture f = start(1);
    for (int i = 0; i < 5; i++) run_for(&f, 1, 0);
    count(&f, 0, 0, 950 * MILLISECOND);
    count(&f, 0, 120, 50 * MILLISECOND);
    sample(&f);
    doorman_time since = f.reading.unmet_since;
    count(&f, 0, 120, 50 * MILLISECOND);
    f.reading.unmet_since = since;
    assert_near(poll_demand(&f), 2400, 0.1);
    f.supply = (doorman__supply){.amount = 500, .exhausted = true};
    for (int i = 0; i < 20; i++) run_for(&f, 500, 100000);
    f.supply.exhausted = false;
    count(&f, 50, 10, 100 * MILLISECOND);
    assert_in_range((uintmax_t)poll_demand(&f), 500,
                    8.4 * 500); /* not the two millions from before */
}

/* L4: the largest request, for n units, raises the wants for ten windows, to a rate that saves n
 * units in a fifth of a window. It does so even if the request is allowed. */
TEST(a_rate_saves_a_request_for_many_units_in_time) {
    fixture f = start(1);
    f.reading.largest = 200;
    assert_near(run_for(&f, 0, 20), 100, 1e-5);
    for (int i = 0; i < 99; i++) assert_near(run_for(&f, 1, 0), 100, 1e-5);
    assert_true(run_for(&f, 1, 0) < 3);
    f.reading.largest = 300;
    assert_near(run_for(&f, 30, 0), 150, 1e-5);
}

/* L4 */
TEST(wants_for_more_than_the_server_has_are_bounded) {
    fixture f = start(1);
    f.supply = (doorman__supply){.amount = 10, .exhausted = true};
    f.reading.largest = 1e9;
    assert_true(run_for(&f, 0, 1e9) <= 84);
    f.reading.largest = 100;
    f.supply.amount = 40;
    assert_true(poll_demand(&f) >= 50); /* wants within eight times the supply stay */
}

/* L4: a request of a gauge can be larger than what the server gives. After two windows, this
 * request is no demand for ten windows. Otherwise it would take capacity from other clients, and
 * never use it. */
TEST(a_request_that_never_fits_causes_no_demand) {
    fixture f = start_kind(true, 1);
    f.supply = (doorman__supply){.amount = 50, .exhausted = true};
    for (int i = 0; i < 100; i++) {
        f.reading.largest = 101;
        f.reading.refused += units(101);
        double wants = run_for(&f, 0, 0);
        assert_true(i < 19 ? wants >= 101 : i < 32 || wants <= 2); /* its window has passed */
    }
    f.supply = (doorman__supply){.amount = 200, .exhausted = false};
    for (int i = 0; i < 130; i++) (void)run_for(&f, 0, 0);
    f.reading.largest = 101;
    assert_true(run_for(&f, 0, 0) >= 101); /* then it is tried again */
}

/* L4: a request of a gauge that needs more than wants_maximum is IMPOSSIBLE, and no demand. */
TEST(an_impossible_request_causes_no_demand) {
    fixture f = start_kind(true, 1);
    f.estimator.maximum = 100;
    for (int i = 0; i < 30; i++) {
        f.reading.largest = 101;
        assert_true(run_for(&f, 0, 0) <= 2);
    }
    f.reading.largest = 100;
    assert_near(run_for(&f, 0, 0), 100, 1e-5);
}

/* L4: one refused request of n units is a demand for n units, and not for more. */
TEST(a_single_refused_request_counts_once) {
    fixture f = start(1);
    for (int i = 0; i < 60; i++) {
        if (i % 3 == 0) f.reading.largest = 250;
        double wants = run_for(&f, 0, i % 3 == 0 ? 250 : 0);
        if (i > 20)
            assert_in_range((uintmax_t)wants, 60, 270); /* 250 units in 3 s are 83 a second */
    }
}

/* L4: when all callers wait, the rate that they could use is unknown. So the wants are a multiple
 * of what the server gives. */
TEST(when_all_callers_wait_wants_are_a_multiple_of_the_possible) {
    fixture f = start(1);
    f.supply.amount = 50;
    f.reading.unmet_since = f.reading.at;
    f.reading.at += 100 * MILLISECOND;
    f.reading.waiting = 3;
    f.reading.waited += 0.3;
    double wants = poll_demand(&f);
    assert_true(f.estimator.unmet && wants >= 50 && wants <= 8.4 * 50);
}

/* L4 */
TEST(wants_of_a_gauge_are_units_in_flight_and_waiting_units) {
    fixture f = start_kind(true, 1);
    f.reading.peak = 12;
    assert_exact(run_for(&f, 0, 0), 12);
    f.reading.peak = 12;
    f.reading.waiting = 5;
    assert_exact(run_for(&f, 0, 0), 17);
    f.reading.waiting = 0;
    for (int i = 0; i < 10; i++) run_for(&f, 0, 0);
    assert_exact(f.estimator.wants, 1);
    f.reading.refused += units(8); /* one request for 8 units */
    f.reading.largest = 8;
    assert_exact(poll_demand(&f), 8);
    f.reading.refused += units(1e6);
    assert_exact(run_for(&f, 0, 0), 8); /* a loop that spins adds no demand */
}

/* L4: the wants are never NaN, and never outside the bounds. */
TEST(wants_stay_within_their_bounds_for_any_counts) {
    for (int i = 0; i < 300; i++) {
        fixture f = start_kind(i % 2, 1 + random_unit());
        f.estimator.maximum = fmin(1e15, 5 + random_amount());
        for (int k = 0; k < 60; k++) {
            f.supply = (doorman__supply){.amount = random_amount(), .exhausted = random_below(2)};
            f.reading.largest = random_below(2) ? random_amount() : 0;
            f.reading.waiting = f.reading.waiting_peak = random_below(3) ? 0 : random_amount();
            f.reading.waited += random_below(2) ? random_amount() : 0;
            f.reading.peak = random_below(2) ? random_amount() : 0;
            f.reading.in_use = random_below(2) ? random_amount() : 0;
            f.reading.refused += random_bits() >> random_below(64);
            double many = random_below(2) ? random_amount() / 1e6 : 0;
            count(&f, many, random_below(2) ? random_amount() / 1e6 : 0,
                  (doorman_time)(1 + random_below(2000)) * MILLISECOND);
            double wants = random_below(2) ? poll_demand(&f) : sample(&f);
            assert_true(wants >= f.estimator.minimum && wants <= f.estimator.maximum);
        }
    }
}

/* ---- an estimate without a client ---- */

static doorman_estimate *create_estimate(void) {
    const doorman_estimate_options options = {.minimum = 1};
    doorman_estimate *estimate = NULL;
    assert_int_equal(doorman_estimate_create(&estimate, &options, NULL, 1000 * SECOND), DOORMAN_OK);
    return estimate;
}

/* L4: with a steady demand the wants settle within 10 % of it, however rarely it is reported. */
TEST(an_estimate_does_not_depend_on_how_often_reports_arrive) {
    static const doorman_time pauses[] = {SECOND / 4, SECOND, 7 * SECOND / 2, 20 * SECOND};
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        doorman_estimate *estimate = create_estimate();
        double seconds = (double)pauses[i] / 1e9, wants = 0;
        doorman_time now = 1000 * SECOND;
        for (int k = 0; (double)k * seconds < 40; k++) {
            doorman_estimate_counts counts = {.allowed = 200 * seconds, .capacity = 200};
            wants = doorman_estimate_add(estimate, &counts, now += pauses[i]);
        }
        assert_true(wants >= 200 && wants <= 220);
        for (int k = 0; (double)k * seconds < 20; k++) {
            wants = doorman_estimate_add(estimate, NULL, now += pauses[i]);
        }
        assert_exact(wants, 1);
        doorman_estimate_destroy(estimate);
    }
}

/* L4: while the server has more capacity, refused units count in full. When it has no more, they
 * count up to seven times what the holder could use. */
TEST(an_estimate_counts_refused_units_as_a_resource_does) {
    doorman_estimate *estimate = create_estimate();
    doorman_time now = 1000 * SECOND;
    doorman_estimate_counts counts = {.allowed = 50, .refused = 200, .capacity = 50};
    double wants = 0;
    for (int i = 0; i < 20; i++) {
        wants = doorman_estimate_add(estimate, &counts, now += SECOND);
    }
    assert_true(wants >= 250 && wants <= 275);
    counts.refused = 10000;
    counts.exhausted = true;
    for (int i = 0; i < 20; i++) {
        wants = doorman_estimate_add(estimate, &counts, now += SECOND);
    }
    assert_true(wants >= 400 && wants <= 440);
    doorman_estimate_destroy(estimate);
}

/* Whatever a peer reports, at any time, the wants are an amount. */
TEST(an_estimate_takes_any_counts) {
    for (int i = 0; i < 200; i++) {
        doorman_estimate *estimate = create_estimate();
        doorman_time now = 1000 * SECOND;
        for (int k = 0; k < 40; k++) {
            doorman_estimate_counts counts = {
                .allowed = random_below(3) ? random_amount() : (double)NAN,
                .refused = random_below(3) ? random_amount() : -1,
                .capacity = random_below(3) ? random_amount() : (double)INFINITY,
                .exhausted = random_below(2)};
            now += (doorman_time)random_below(40000) * MILLISECOND - SECOND;
            double wants = doorman_estimate_add(estimate, &counts, now);
            assert_true(wants >= 1 && wants <= 1e15);
        }
        doorman_estimate_destroy(estimate);
    }
}
