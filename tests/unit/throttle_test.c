/* Tests doorman_throttle.h: which requests a throttle takes and in which order, and the retry
 * budget. The clock is a variable. A slow model repeats random histories. The header defines the
 * rules. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman_throttle.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)
#define HOUR (3600 * SECOND)

/* ---- helpers ---- */

static doorman_throttle *throttle_of(doorman_throttle_options options) {
    doorman_throttle *throttle = NULL;
    doorman_error error = {0};
    if (doorman_throttle_create(&throttle, &options, &error) != DOORMAN_OK) {
        fail_msg("%s", error.text);
    }
    return throttle;
}

static doorman_throttle_result offer(doorman_throttle *throttle, uint64_t id, unsigned criticality,
                                     doorman_time now) {
    const doorman_throttle_request request = {.id = id, .criticality = criticality};
    return doorman_throttle_offer(throttle, &request, NULL, now);
}

/* Returns the id of the next request, or 0. The tests use no id 0. */
static uint64_t next(doorman_throttle *throttle, doorman_time now) {
    uint64_t id = 0;
    return doorman_throttle_next(throttle, &id, now) ? id : 0;
}

/* Reads one refusal, and checks its reason. Returns its id, or 0. */
static uint64_t refused(doorman_throttle *throttle, doorman_throttle_reason reason) {
    doorman_throttle_refusal refusal;
    if (!doorman_throttle_next_refused(throttle, &refusal)) return 0;
    assert_int_equal(refusal.reason, reason);
    return refusal.id;
}

static doorman_throttle_counters counters_of(const doorman_throttle *throttle) {
    doorman_throttle_counters counters;
    doorman_throttle_read(throttle, &counters);
    return counters;
}

/* ---- the worked example of the manual ---- */

/* Lets 16 workers finish their requests, which cost 1, and start others. Returns the id of the
 * first request that starts. The ids of the requests that run are in `running`. */
static uint64_t workers_turn(doorman_throttle *throttle, uint64_t running[16], doorman_time now) {
    for (int i = 0; i < 16; i++) {
        if (running[i]) assert_true(doorman_throttle_finish(throttle, running[i], 1, now));
    }
    for (int i = 0; i < 16; i++) running[i] = next(throttle, now);
    assert_int_equal(next(throttle, now), 0);
    return running[0];
}

TEST(the_worked_example_of_the_manual_holds) {
    doorman_throttle *throttle =
        throttle_of((doorman_throttle_options){.queue_cost = 1600, .concurrency = 16});
    uint64_t running[16] = {0}, left = 0;
    for (uint64_t id = 1; id <= 2000; id++) offer(throttle, id, 1, 0);
    assert_int_equal(counters_of(throttle).waiting, 1600);
    assert_int_equal(counters_of(throttle).warned, 320);
    assert_int_equal(counters_of(throttle).refused[DOORMAN_THROTTLE_FULL], 400);
    assert_int_equal(workers_turn(throttle, running, 0), 1);
    assert_int_equal(workers_turn(throttle, running, MILLISECOND), 17);
    offer(throttle, 2001, 5, MILLISECOND);
    assert_int_equal(workers_turn(throttle, running, 2 * MILLISECOND), 2001);
    assert_int_equal(running[1], 33);
    for (int i = 3; i <= 50; i++) workers_turn(throttle, running, i * MILLISECOND);
    assert_int_equal(workers_turn(throttle, running, 51 * MILLISECOND), 1600);
    left = counters_of(throttle).waiting;
    doorman_throttle_update(throttle, 101 * MILLISECOND);
    assert_int_equal(counters_of(throttle).refused[DOORMAN_THROTTLE_WAITED], left);
    assert_int_equal(counters_of(throttle).waiting, 0);
    for (doorman_throttle_refusal refusal; left > 0; left--) {
        assert_true(doorman_throttle_next_refused(throttle, &refusal));
        assert_in_range(refusal.retry_after, 50 * MILLISECOND, 150 * MILLISECOND);
    }
    doorman_throttle_destroy(throttle);
}

/* ---- options ---- */

TEST(each_wrong_option_is_named) {
    const struct {
        const char *text;
        doorman_throttle_options options;
    } rows[] = {
        {"queue_cost: must be more than 0 and at most 1e15", {.queue_cost = 0}},
        {"queue_cost: must be more than 0 and at most 1e15", {.queue_cost = NAN}},
        {"queue_cost: must be more than 0 and at most 1e15", {.queue_cost = 2e15}},
        {"queue_max: must be at most 1,000,000", {.queue_cost = 1, .queue_max = 1000001}},
        {"queue_max: must be at most 1,000,000", {.queue_cost = 1, .queue_max = 0xffffffff}},
        {"concurrency: must be at most 1,000,000", {.queue_cost = 1, .concurrency = 1000001}},
        {"class_max: must be at most 1,000,000", {.queue_cost = 1, .class_max = 1000001}},
        {"rate: must be a finite number from 0 to 1e15", {.queue_cost = 1, .rate = -1}},
        {"initial_cost: must be a finite number from 0 to 1e15",
         {.queue_cost = 1, .initial_cost = NAN}},
        {"max_wait: must be from 0 to 1e8 seconds", {.queue_cost = 1, .max_wait = -1}},
        {"max_wait: must be from 0 to 1e8 seconds", {.queue_cost = 1, .max_wait = DOORMAN_NEVER}},
        {"warn_at: must be from 0 to 1", {.queue_cost = 1, .warn_at = 1.1}},
        {"warn_at: must be from 0 to 1", {.queue_cost = 1, .warn_at = NAN}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        doorman_throttle *throttle = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_throttle_create(&throttle, &rows[i].options, &error),
                         DOORMAN_INVALID_ARGUMENT);
        assert_null(throttle);
        assert_string_equal(error.text, rows[i].text);
    }
    doorman_throttle_destroy(NULL);
}

/* ---- H1: ids ---- */

TEST(an_unknown_id_and_a_second_finish_change_nothing) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_TAKEN);
    assert_false(doorman_throttle_finish(throttle, 1, 1, 0)); /* it waits, and does not run */
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(offer(throttle, 2, 16, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(counters_of(throttle).refused[DOORMAN_THROTTLE_BAD_REQUEST], 2);
    assert_int_equal(next(throttle, 0), 1);
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_REFUSED); /* it runs */
    assert_false(doorman_throttle_finish(throttle, 7, 1, 0));
    assert_true(doorman_throttle_finish(throttle, 1, 1, 0));
    assert_false(doorman_throttle_finish(throttle, 1, 1, 0));
    assert_int_equal(counters_of(throttle).finished, 1);
    assert_int_equal(counters_of(throttle).running, 0);
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_TAKEN); /* the id is free again */
    doorman_throttle_destroy(throttle);
}

/* ---- H2: costs ---- */

static void finish_one(doorman_throttle *throttle, uint64_t class_id, double cost) {
    const doorman_throttle_request request = {.id = 1000, .class_id = class_id, .criticality = 15};
    assert_int_not_equal(doorman_throttle_offer(throttle, &request, NULL, 0),
                         DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(next(throttle, 0), 1000);
    assert_true(doorman_throttle_finish(throttle, 1000, cost, 0));
}

static double cost_of(doorman_throttle *throttle, uint64_t class_id) {
    const doorman_throttle_request request = {.id = 1001, .class_id = class_id};
    doorman_throttle_offer(throttle, &request, NULL, 0);
    double cost = counters_of(throttle).waiting_cost;
    assert_int_equal(next(throttle, 0), 1001);
    assert_true(doorman_throttle_finish(throttle, 1001, NAN, 0));
    return cost;
}

TEST(a_class_costs_its_average_and_an_unknown_class_the_mean) {
    doorman_throttle *throttle = throttle_of(
        (doorman_throttle_options){.queue_cost = 1000, .initial_cost = 5, .class_max = 2});
    assert_exact(cost_of(throttle, 1), 5);
    finish_one(throttle, 1, 10);
    finish_one(throttle, 1, 20);
    finish_one(throttle, 2, 30);
    assert_about(cost_of(throttle, 1), 15);
    assert_about(cost_of(throttle, 2), 30);
    assert_about(cost_of(throttle, 3), 20); /* never seen */
    finish_one(throttle, 3, 100);           /* there is no room for a third class */
    assert_about(cost_of(throttle, 3), 40);
    for (int i = 0; i < 100; i++) finish_one(throttle, 4 + (uint64_t)i % 2, 40);
    double before = cost_of(throttle, 1);
    for (int i = 0; i < 100; i++) finish_one(throttle, 2, 30); /* now the weight is 0.02 */
    finish_one(throttle, 2, 80);
    assert_about(cost_of(throttle, 2), 31);
    assert_exact(cost_of(throttle, 1), before);
    doorman_throttle_destroy(throttle);
}

TEST(the_prediction_learns_only_from_amounts) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    finish_one(throttle, 1, NAN);
    finish_one(throttle, 1, -1);
    finish_one(throttle, 1, INFINITY);
    finish_one(throttle, 1, 1.1e15);
    assert_exact(cost_of(throttle, 1), 1);
    finish_one(throttle, 1, 0);
    assert_exact(cost_of(throttle, 1), 0);
    finish_one(throttle, 2, 1e15);
    assert_exact(cost_of(throttle, 2), 1e15); /* the empty queue takes it */
    assert_exact(counters_of(throttle).waiting_cost, 0);
    doorman_throttle_destroy(throttle);
}

TEST(one_request_passes_the_bound_whatever_it_costs) {
    for (unsigned waiting = 9; waiting <= 10; waiting++) {
        doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
        finish_one(throttle, 9, 100);
        finish_one(throttle, 0, 1);
        for (uint64_t id = 1; id <= waiting; id++) offer(throttle, id, 0, 0);
        const doorman_throttle_request large = {.id = 20, .class_id = 9};
        assert_int_equal(doorman_throttle_offer(throttle, &large, NULL, 0),
                         waiting < 10 ? DOORMAN_THROTTLE_WARNED : DOORMAN_THROTTLE_REFUSED);
        assert_int_equal(offer(throttle, 21, 0, 0), DOORMAN_THROTTLE_REFUSED);
        doorman_throttle_destroy(throttle);
    }
}

/* ---- H3: concurrency and rate ---- */

TEST(work_starts_within_the_concurrency) {
    doorman_throttle *throttle =
        throttle_of((doorman_throttle_options){.queue_cost = 10, .concurrency = 2});
    for (uint64_t id = 1; id <= 3; id++) offer(throttle, id, 0, 0);
    assert_int_equal(next(throttle, 0), 1);
    assert_int_equal(next(throttle, 0), 2);
    assert_int_equal(next(throttle, 0), 0);
    assert_true(doorman_throttle_finish(throttle, 1, 1, 0));
    assert_int_equal(next(throttle, 0), 3);
    doorman_throttle_destroy(throttle);
}

TEST(work_starts_at_the_rate_and_is_corrected_at_the_end) {
    doorman_throttle *throttle = throttle_of(
        (doorman_throttle_options){.queue_cost = 100, .rate = 20, .max_wait = 100 * SECOND});
    for (uint64_t id = 1; id <= 5; id++) offer(throttle, id, 0, 0);
    assert_int_equal(next(throttle, 0), 1); /* 0.1 s of the rate are 2 units */
    assert_int_equal(next(throttle, 0), 2);
    assert_int_equal(next(throttle, 0), 0);
    doorman_time due = doorman_throttle_due(throttle);
    assert_true(due >= 50 * MILLISECOND && due <= 50 * MILLISECOND + 1000);
    assert_int_equal(next(throttle, 49 * MILLISECOND), 0);
    assert_int_equal(next(throttle, doorman_throttle_due(throttle)), 3);
    assert_true(doorman_throttle_finish(throttle, 3, 21, due)); /* 20 more units take a second */
    assert_int_equal(next(throttle, due + SECOND), 0);
    assert_int_equal(next(throttle, due + 2050 * MILLISECOND), 4);
    doorman_throttle_destroy(throttle);
}

/* ---- H4: a full queue ---- */

TEST(a_higher_criticality_displaces_the_lowest_and_newest) {
    doorman_throttle *throttle =
        throttle_of((doorman_throttle_options){.queue_cost = 4, .max_wait = SECOND});
    offer(throttle, 1, 1, 0);
    offer(throttle, 2, 0, 0);
    offer(throttle, 3, 0, 0);
    offer(throttle, 4, 2, 0);
    assert_int_equal(offer(throttle, 5, 0, 0), DOORMAN_THROTTLE_REFUSED); /* an equal one stays */
    assert_int_not_equal(offer(throttle, 6, 2, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), 3);
    offer(throttle, 7, 2, 0);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), 2);
    offer(throttle, 8, 2, 0);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), 1);
    assert_int_equal(offer(throttle, 9, 2, 0), DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), 0);
    doorman_throttle_destroy(throttle);
}

TEST(nothing_is_displaced_if_that_would_not_suffice) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 4});
    finish_one(throttle, 9, 5);
    finish_one(throttle, 1, 1);
    const doorman_throttle_request cheap = {.id = 1, .class_id = 1};
    const doorman_throttle_request high = {.id = 2, .class_id = 9, .criticality = 5};
    const doorman_throttle_request other = {.id = 3, .class_id = 1, .criticality = 5};
    doorman_throttle_offer(throttle, &cheap, NULL, 0);
    doorman_throttle_offer(throttle, &high, NULL, 0);
    doorman_throttle_refusal refusal;
    assert_int_equal(doorman_throttle_offer(throttle, &other, &refusal, 0),
                     DOORMAN_THROTTLE_REFUSED);
    assert_int_equal(refusal.id, 3);
    assert_int_equal(refusal.reason, DOORMAN_THROTTLE_FULL);
    assert_int_equal(counters_of(throttle).waiting, 2);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_FULL), 0);
    doorman_throttle_destroy(throttle);
}

/* Returns the first id, from `from` on, whose digits are the name of a user in the cohort. */
static uint64_t id_in(doorman_throttle *throttle, unsigned cohort, uint64_t from, char user[24]) {
    for (;; from++) {
        snprintf(user, 24, "%llu", (unsigned long long)from);
        if (doorman__throttle_cohort(throttle, user) == cohort) return from;
    }
}

TEST(a_lower_cohort_displaces_the_highest) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 3});
    const unsigned cohorts[] = {6, 2, 4, 4, 1, 3};
    uint64_t ids[6] = {0};
    doorman_throttle_result results[6];
    for (size_t i = 0; i < 6; i++) {
        char user[24];
        ids[i] = id_in(throttle, cohorts[i], 1000 * (i + 1), user);
        const doorman_throttle_request request = {.id = ids[i], .user = user};
        results[i] = doorman_throttle_offer(throttle, &request, NULL, 0);
    }
    assert_int_equal(results[3], DOORMAN_THROTTLE_WARNED); /* it displaces the one of cohort 6 */
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), ids[0]);
    assert_int_equal(results[4], DOORMAN_THROTTLE_WARNED);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), ids[3]); /* the newest of 4 */
    assert_int_equal(results[5], DOORMAN_THROTTLE_WARNED);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), ids[2]);
    assert_int_equal(next(throttle, 0), ids[4]);
    doorman_throttle_destroy(throttle);
}

TEST(while_the_newest_goes_first_it_takes_the_place_of_the_oldest) {
    for (doorman_time late = 0; late <= 1; late++) {
        doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 3});
        for (uint64_t id = 1; id <= 3; id++) offer(throttle, id, 0, (doorman_time)id);
        doorman_time now = 50 * MILLISECOND + 1 + late;
        doorman_throttle_result result = offer(throttle, 4, 0, now);
        assert_int_equal(result, late ? DOORMAN_THROTTLE_WARNED : DOORMAN_THROTTLE_REFUSED);
        assert_int_equal(refused(throttle, DOORMAN_THROTTLE_DISPLACED), late ? 1 : 0);
        assert_int_equal(next(throttle, now), late ? 4 : 1);
        doorman_throttle_destroy(throttle);
    }
}

/* ---- H5: time ---- */

TEST(a_request_waits_at_most_max_wait) {
    for (doorman_time late = -1; late <= 1; late++) {
        doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
        assert_int_equal(doorman_throttle_due(throttle), DOORMAN_NEVER);
        offer(throttle, 1, 0, SECOND);
        assert_int_equal(doorman_throttle_due(throttle), SECOND + 100 * MILLISECOND + 1);
        uint64_t id = next(throttle, SECOND + 100 * MILLISECOND + late);
        assert_int_equal(id, late > 0 ? 0 : 1);
        assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), late > 0 ? 1 : 0);
        doorman_throttle_destroy(throttle);
    }
}

TEST(a_request_waits_for_half_of_the_time_to_its_deadline) {
    for (doorman_time late = -1; late <= 1; late++) {
        doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
        const doorman_throttle_request request = {.id = 1, .deadline = SECOND + 20 * MILLISECOND};
        offer(throttle, 2, 0, SECOND);
        doorman_throttle_offer(throttle, &request, NULL, SECOND);
        assert_int_equal(doorman_throttle_due(throttle), SECOND + 10 * MILLISECOND + 1);
        doorman_throttle_update(throttle, SECOND + 10 * MILLISECOND + late);
        assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), late > 0 ? 1 : 0);
        assert_int_equal(counters_of(throttle).waiting, late > 0 ? 1 : 2);
        doorman_throttle_destroy(throttle);
    }
}

TEST(a_deadline_in_the_past_is_refused) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    for (doorman_time late = -1; late <= 1; late++) {
        const doorman_throttle_request request = {.id = 1, .deadline = SECOND - late};
        assert_int_equal(doorman_throttle_offer(throttle, &request, NULL, SECOND),
                         late < 0 ? DOORMAN_THROTTLE_TAKEN : DOORMAN_THROTTLE_REFUSED);
        if (late < 0) assert_int_equal(next(throttle, SECOND), 1);
        if (late < 0) assert_true(doorman_throttle_finish(throttle, 1, 1, SECOND));
    }
    assert_int_equal(counters_of(throttle).refused[DOORMAN_THROTTLE_LATE], 2);
    doorman_throttle_destroy(throttle);
}

TEST(max_wait_is_ten_mean_service_times) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    offer(throttle, 1, 0, 0);
    assert_int_equal(next(throttle, 0), 1);
    assert_true(doorman_throttle_finish(throttle, 1, 1, 50 * MILLISECOND));
    assert_int_equal(counters_of(throttle).mean_service, 50 * MILLISECOND);
    assert_int_equal(counters_of(throttle).max_wait, 500 * MILLISECOND);
    doorman_throttle_destroy(throttle);
}

TEST(a_clock_that_steps_back_stands_still) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    offer(throttle, 1, 0, 10 * SECOND);
    offer(throttle, 2, 0, SECOND); /* counts as 10 s */
    doorman_throttle_update(throttle, 10 * SECOND + 100 * MILLISECOND);
    assert_int_equal(counters_of(throttle).waiting, 2);
    assert_int_equal(next(throttle, 0), 2); /* the oldest has waited more than half */
    assert_true(doorman_throttle_finish(throttle, 2, 1, 0));
    assert_int_equal(counters_of(throttle).mean_service, 0);
    doorman_throttle_destroy(throttle);
}

TEST(ten_thousand_requests_can_time_out_at_once) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 1e6});
    for (uint64_t id = 1; id <= 10000; id++) {
        assert_int_not_equal(offer(throttle, id, id % 16, 0), DOORMAN_THROTTLE_REFUSED);
    }
    assert_int_equal(offer(throttle, 10001, 0, 0), DOORMAN_THROTTLE_REFUSED);
    doorman_throttle_update(throttle, SECOND);
    assert_int_equal(counters_of(throttle).waiting, 0);
    assert_exact(counters_of(throttle).waiting_cost, 0);
    for (uint64_t id = 1; id <= 10000; id++) {
        assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), id);
    }
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), 0);
    doorman_throttle_destroy(throttle);
}

/* ---- H6: the order ---- */

TEST(the_newest_goes_first_while_the_oldest_has_waited_more_than_half) {
    for (doorman_time late = -1; late <= 1; late++) {
        doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
        offer(throttle, 1, 0, 0);
        offer(throttle, 2, 0, MILLISECOND);
        offer(throttle, 3, 0, 2 * MILLISECOND);
        doorman_time now = 50 * MILLISECOND + late;
        assert_int_equal(next(throttle, now), late > 0 ? 3 : 1);
        assert_int_equal(next(throttle, now), 2);
        doorman_throttle_destroy(throttle);
    }
}

TEST(the_newest_goes_first_until_its_cohort_is_empty) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    offer(throttle, 1, 0, 0);
    offer(throttle, 2, 0, 60 * MILLISECOND);
    offer(throttle, 3, 0, 60 * MILLISECOND);
    doorman_throttle_update(throttle, 100 * MILLISECOND + 1);
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), 1);
    assert_int_equal(next(throttle, 100 * MILLISECOND + 1), 3); /* the oldest has waited 40 ms */
    assert_int_equal(next(throttle, 100 * MILLISECOND + 1), 2);
    offer(throttle, 4, 0, 101 * MILLISECOND);
    offer(throttle, 5, 0, 101 * MILLISECOND);
    assert_int_equal(next(throttle, 101 * MILLISECOND), 4);
    doorman_throttle_destroy(throttle);
}

TEST(a_user_has_one_cohort_for_an_hour) {
    doorman_throttle *throttle =
        throttle_of((doorman_throttle_options){.queue_cost = 10, .seed = {1, 2}});
    unsigned cohorts = 0, moved = 0;
    for (int i = 0; i < 100; i++) {
        char user[16];
        snprintf(user, sizeof user, "user %d", i);
        doorman__throttle_advance(throttle, (doorman_time)2 * i * HOUR);
        unsigned cohort = doorman__throttle_cohort(throttle, user);
        doorman__throttle_advance(throttle, (doorman_time)(2 * i + 1) * HOUR - 1);
        assert_int_equal(doorman__throttle_cohort(throttle, user), cohort);
        doorman__throttle_advance(throttle, (doorman_time)(2 * i + 1) * HOUR);
        moved += doorman__throttle_cohort(throttle, user) != cohort;
        cohorts |= 1u << cohort;
    }
    assert_int_equal(cohorts, 0xff);
    assert_true(moved > 50);
    assert_int_equal(doorman__throttle_cohort(throttle, NULL), 0);
    doorman_throttle_destroy(throttle);
}

/* ---- H9: warnings and retry_after ---- */

TEST(a_queue_that_is_nearly_full_warns) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    for (uint64_t id = 1; id <= 10; id++) {
        assert_int_equal(offer(throttle, id, 0, 0),
                         id <= 8 ? DOORMAN_THROTTLE_TAKEN : DOORMAN_THROTTLE_WARNED);
    }
    doorman_time least = DOORMAN_NEVER, most = 0;
    for (int i = 0; i < 1000; i++) {
        const doorman_throttle_request request = {.id = 11};
        doorman_throttle_refusal refusal;
        doorman_throttle_offer(throttle, &request, &refusal, 0);
        least = doorman__earlier(least, refusal.retry_after);
        most = doorman__later(most, refusal.retry_after);
    }
    assert_in_range(least, 50 * MILLISECOND, 55 * MILLISECOND);
    assert_in_range(most, 145 * MILLISECOND, 150 * MILLISECOND);
    doorman_throttle_destroy(throttle);
}

/* ---- H11: reports ---- */

TEST(a_report_has_what_was_counted_since_the_last_one) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 3});
    doorman_overload_report report;
    doorman_throttle_update(throttle, 100 * SECOND);
    doorman_throttle_report(throttle, 20 * MILLISECOND, &report, 101 * SECOND);
    assert_int_equal(report.interval, SECOND);
    assert_exact(report.arrived + report.finished + report.refused + report.late, 0);
    for (uint64_t id = 1; id <= 5; id++) offer(throttle, id, 0, 102 * SECOND); /* 3 are taken */
    offer(throttle, 6, 16, 102 * SECOND); /* a mistake: it does not count */
    assert_int_equal(next(throttle, 102 * SECOND + 20 * MILLISECOND), 1); /* in time */
    assert_int_equal(next(throttle, 102 * SECOND + 20 * MILLISECOND + 1), 2);
    assert_true(doorman_throttle_finish(throttle, 1, 1, 102 * SECOND + 30 * MILLISECOND));
    assert_true(doorman_throttle_finish(throttle, 2, 1, 102 * SECOND + 30 * MILLISECOND));
    doorman_throttle_report(throttle, 0, &report, 104 * SECOND); /* the third has waited too long */
    assert_int_equal(report.interval, 3 * SECOND);
    assert_exact(report.arrived, 5);
    assert_exact(report.finished, 2);
    assert_exact(report.refused, 3);
    assert_exact(report.late, 1);
    offer(throttle, 7, 0, 104 * SECOND);
    assert_int_equal(next(throttle, 104 * SECOND + 90 * MILLISECOND), 7);
    assert_true(doorman_throttle_finish(throttle, 7, 1, 105 * SECOND));
    doorman_throttle_report(throttle, 0, &report, 105 * SECOND);
    assert_exact(report.arrived, 1);
    assert_exact(report.finished, 1);
    assert_exact(report.refused, 0);
    assert_exact(report.late, 0); /* there was no target */
    doorman_throttle_destroy(throttle);
}

/* A report without an interval has no effect at a server. So such a report leaves all counts to the
 * next report, even if a clock stands still or begins at 0. */
TEST(a_report_without_time_leaves_all_to_the_next) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    doorman_overload_report report;
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_TAKEN);
    doorman_throttle_report(throttle, 0, &report, 0);
    assert_int_equal(report.interval, 0);
    assert_exact(report.arrived, 0);
    doorman_throttle_report(throttle, 0, &report, SECOND);
    assert_int_equal(report.interval, SECOND);
    assert_exact(report.arrived, 1);
    assert_int_equal(offer(throttle, 2, 0, SECOND), DOORMAN_THROTTLE_TAKEN);
    doorman_throttle_report(throttle, 0, &report, SECOND / 2); /* the clock steps back */
    assert_int_equal(report.interval, 0);
    assert_exact(report.arrived, 0);
    doorman_throttle_report(throttle, 0, &report, 3 * SECOND);
    assert_int_equal(report.interval, 2 * SECOND);
    assert_exact(report.arrived, 1);
    doorman_throttle_destroy(throttle);
}

/* The mean service time is at most DOORMAN_DURATION_MAX, even after the longest work that a clock
 * can show. */
TEST(the_mean_service_time_has_a_bound) {
    doorman_throttle *throttle = throttle_of((doorman_throttle_options){.queue_cost = 10});
    assert_int_equal(offer(throttle, 1, 0, 0), DOORMAN_THROTTLE_TAKEN);
    assert_int_equal(next(throttle, 0), 1);
    assert_true(doorman_throttle_finish(throttle, 1, 1, INT64_MAX));
    assert_int_equal(counters_of(throttle).mean_service, DOORMAN_DURATION_MAX);
    doorman_throttle_destroy(throttle);
}

/* ---- H12: refusals that are not read ---- */

TEST(refusals_that_are_not_read_use_room_and_lose_nothing) {
    doorman_throttle *throttle =
        throttle_of((doorman_throttle_options){.queue_cost = 10, .queue_max = 2, .concurrency = 1});
    uint64_t id = 0, last = 0;
    for (doorman_time now = 0; now < 10 * SECOND; now += SECOND) offer(throttle, ++id, 0, now);
    assert_int_equal(counters_of(throttle).refused[DOORMAN_THROTTLE_FULL], 6);
    for (uint64_t expected = 1; expected <= 4; expected++) {
        assert_int_equal(last = refused(throttle, DOORMAN_THROTTLE_WAITED), expected);
    }
    assert_int_equal(refused(throttle, DOORMAN_THROTTLE_WAITED), 0);
    assert_int_not_equal(offer(throttle, ++id, 0, 10 * SECOND), DOORMAN_THROTTLE_REFUSED);
    doorman_throttle_destroy(throttle);
}

/* ---- a slow model ---- */

/* The model has a list of the waiting requests, in order of arrival. */
enum { MODEL_MAX = 64, MODEL_QUEUE = 12 };

typedef struct model_request {
    uint64_t id;
    unsigned criticality, cohort;
    doorman_time arrived, limit;
} model_request;

typedef struct model {
    model_request waiting[MODEL_MAX];
    size_t count;
    uint64_t refused[MODEL_MAX];
    size_t refused_count;
    bool newest_first[4][DOORMAN__COHORTS];
} model;

static bool model_same_cohort(const model_request *a, const model_request *b) {
    return a->criticality == b->criticality && a->cohort == b->cohort;
}

/* Returns the index of the oldest request in the cohort of the request at `at`. */
static size_t model_oldest(const model *m, size_t at) {
    for (size_t i = 0;; i++) {
        if (model_same_cohort(&m->waiting[i], &m->waiting[at])) return i;
    }
}

static bool model_newest_first(const model *m, size_t at, doorman_time now) {
    const model_request *oldest = &m->waiting[model_oldest(m, at)];
    return m->newest_first[oldest->criticality][oldest->cohort] ||
           now - oldest->arrived > (oldest->limit - oldest->arrived) / 2;
}

static void model_remove(model *m, size_t at, doorman_time now) {
    const model_request removed = m->waiting[at];
    bool *newest_first = &m->newest_first[removed.criticality][removed.cohort];
    if (model_oldest(m, at) == at) *newest_first = model_newest_first(m, at, now);
    memmove(&m->waiting[at], &m->waiting[at + 1], (--m->count - at) * sizeof *m->waiting);
    for (size_t i = 0; i < m->count; i++) {
        if (model_same_cohort(&m->waiting[i], &removed)) return;
    }
    *newest_first = false; /* the cohort is empty */
}

static void model_refuse(model *m, size_t at, doorman_time now) {
    m->refused[m->refused_count++] = m->waiting[at].id;
    model_remove(m, at, now);
}

static void model_update(model *m, doorman_time now) {
    for (size_t i = m->count; i-- > 0;) {
        if (now > m->waiting[i].limit) model_refuse(m, i, now);
    }
}

/* Returns whether the request at i goes before the one at j. */
static bool model_before(const model *m, size_t i, size_t j, doorman_time now) {
    const model_request *a = &m->waiting[i], *b = &m->waiting[j];
    if (a->criticality != b->criticality) return a->criticality > b->criticality;
    if (a->cohort != b->cohort) return a->cohort < b->cohort;
    return model_newest_first(m, i, now) ? i > j : i < j;
}

/* Adds a request to the queue, which has room for MODEL_QUEUE requests. If the queue is full, the
 * last request in order is refused. Returns false if that is the new request. */
static bool model_offer(model *m, model_request request, doorman_time now) {
    m->waiting[m->count++] = request;
    if (m->count <= MODEL_QUEUE) return true;
    size_t last = 0;
    for (size_t i = 1; i < m->count; i++) {
        if (model_before(m, last, i, now)) last = i;
    }
    m->count--;
    if (last == MODEL_QUEUE) return false;
    model_refuse(m, last, now);
    m->waiting[m->count++] = request;
    return true;
}

static uint64_t model_next(model *m, doorman_time now) {
    if (m->count == 0) return 0;
    size_t first = 0;
    for (size_t i = 1; i < m->count; i++) {
        if (model_before(m, i, first, now)) first = i;
    }
    uint64_t id = m->waiting[first].id;
    model_remove(m, first, now);
    return id;
}

/* Compares the refusals of the throttle and of the model, as sets. */
static void compare_refusals(doorman_throttle *throttle, model *m) {
    doorman_throttle_refusal refusal;
    while (doorman_throttle_next_refused(throttle, &refusal)) {
        size_t i = 0;
        while (i < m->refused_count && m->refused[i] != refusal.id) i++;
        assert_true(i < m->refused_count);
        m->refused[i] = m->refused[--m->refused_count];
    }
    assert_int_equal(m->refused_count, 0);
}

static void offer_to_both(doorman_throttle *throttle, model *m, uint64_t id, doorman_time now) {
    char user[8];
    snprintf(user, sizeof user, "%zu", random_below(20));
    doorman_throttle_request request = {
        .id = id, .criticality = (unsigned)random_below(4), .user = random_below(3) ? user : NULL};
    if (random_below(3) == 0) request.deadline = now + 1 + (doorman_time)random_below(300);
    model_request own = {.id = id,
                         .criticality = request.criticality,
                         .cohort = doorman__throttle_cohort(throttle, request.user),
                         .arrived = now,
                         .limit = now + 100};
    doorman_time half = now + (request.deadline - now) / 2;
    if (request.deadline && half < own.limit) own.limit = half;
    bool taken = doorman_throttle_offer(throttle, &request, NULL, now) != DOORMAN_THROTTLE_REFUSED;
    model_update(m, now);
    assert_int_equal(taken, model_offer(m, own, now));
}

/* H4, H5, H6: random histories give what the slow model gives. */
TEST(random_histories_match_the_model) {
    for (int run = 0; run < 200; run++) {
        doorman_throttle *throttle = throttle_of(
            (doorman_throttle_options){.queue_cost = random_below(2) ? MODEL_QUEUE : 1e6,
                                       .queue_max = MODEL_QUEUE,
                                       .max_wait = 100,
                                       .seed = {random_bits(), random_bits()}});
        model m = {.count = 0};
        doorman_time now = 1;
        for (uint64_t id = 1; id < 500; id++) {
            now += (doorman_time)random_below(12);
            doorman__throttle_advance(throttle, now);
            offer_to_both(throttle, &m, id, now);
            if (random_below(3) == 0) {
                uint64_t started = next(throttle, now);
                assert_int_equal(started, model_next(&m, now));
                if (started) assert_true(doorman_throttle_finish(throttle, started, 1, now));
            }
            compare_refusals(throttle, &m);
            assert_int_equal(counters_of(throttle).waiting, m.count);
        }
        doorman_throttle_destroy(throttle);
    }
}

/* ---- extremes ---- */

/* Offers, starts and finishes requests whose numbers are extreme. */
static void use_extremely(doorman_throttle *throttle, uint64_t id, doorman_time now) {
    const double costs[] = {0, 5e-324, 1e-9, 1, 1e15, NAN, -1, INFINITY};
    const doorman_time deadlines[] = {0, INT64_MIN, -1, now, now + 1, INT64_MAX};
    const doorman_throttle_request request = {.id = id,
                                              .class_id = random_below(3) ? id % 3 : UINT64_MAX,
                                              .criticality = (unsigned)random_below(18),
                                              .user = random_below(2) ? "user" : NULL,
                                              .deadline = deadlines[random_below(6)]};
    doorman_throttle_refusal refusal;
    doorman_throttle_offer(throttle, &request, NULL, now);
    uint64_t started = random_below(2) ? next(throttle, now) : 0;
    if (started && random_below(3)) {
        assert_true(doorman_throttle_finish(throttle, started, costs[random_below(8)], now));
        assert_false(doorman_throttle_finish(throttle, started, 1, now));
    }
    while (random_below(2) && doorman_throttle_next_refused(throttle, &refusal)) {
        assert_true(refusal.retry_after >= 50 * MILLISECOND);
    }
}

/* Checks that no request is lost, and that a loop that sleeps until the throttle is due never
 * spins. */
static void check_extremely(doorman_throttle *throttle, doorman_time now) {
    const doorman_throttle_counters counters = counters_of(throttle);
    uint64_t sum = counters.started + counters.waiting;
    for (int i = 0; i < DOORMAN_THROTTLE_REASON_COUNT; i++) sum += counters.refused[i];
    assert_true(sum == counters.offered);
    assert_true(counters.started == counters.finished + counters.running);
    if (doorman_throttle_due(throttle) > now || next(throttle, now)) return;
    assert_true(doorman_throttle_due(throttle) > now);
}

/* H12. Options and numbers are at the ends of their ranges: all combinations of three options, and
 * the other options at random. */
TEST(extreme_options_and_numbers_lose_no_request) {
    const double rates[] = {0, 5e-324, 1e-9, 1e15}, bounds[] = {5e-324, 1, 1e15};
    const doorman_time waits[] = {0, 1, DOORMAN_DURATION_MAX}, steps[] = {0, 1, -1, SECOND};
    for (size_t i = 0; i < 36; i++) {
        doorman_throttle *throttle =
            throttle_of((doorman_throttle_options){.queue_cost = bounds[i % 3],
                                                   .rate = rates[i / 9],
                                                   .max_wait = waits[i / 3 % 3],
                                                   .initial_cost = bounds[random_below(3)],
                                                   .warn_at = random_below(2) ? 1 : 5e-324,
                                                   .queue_max = 1 + random_below(20),
                                                   .concurrency = 1 + random_below(40),
                                                   .class_max = 1 + random_below(3)});
        doorman_time now = random_below(2) ? 0 : INT64_MAX - HOUR, latest = now;
        for (uint64_t id = 1; id <= 300; id++) {
            use_extremely(throttle, id, now);
            check_extremely(throttle, latest);
            now += steps[random_below(4)];
            if (now > latest) latest = now;
        }
        doorman_throttle_destroy(throttle);
    }
}

/* ---- H10: the retry budget ---- */

TEST(retries_are_a_tenth_of_first_tries) {
    doorman_retry_budget budget;
    doorman_retry_budget_init(&budget);
    for (int i = 0; i < 10; i++) assert_true(doorman_retry_budget_retry(&budget));
    assert_false(doorman_retry_budget_retry(&budget));
    for (int i = 0; i < 9; i++) doorman_retry_budget_first_try(&budget);
    assert_false(doorman_retry_budget_retry(&budget));
    doorman_retry_budget_first_try(&budget);
    assert_true(doorman_retry_budget_retry(&budget));
    for (int i = 0; i < 1000; i++) doorman_retry_budget_first_try(&budget);
    for (int i = 0; i < 10; i++) assert_true(doorman_retry_budget_retry(&budget));
    assert_false(doorman_retry_budget_retry(&budget));
}
