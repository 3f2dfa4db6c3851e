/* Tests the section >>election of doorman.h: rule V2. The first tests make the calls of one process
 * by hand. At the end, several processes with random histories use a simple model of a store. Their
 * clocks differ, and calls are lost, late or made twice. */
#include "unit.h"

#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define MILLISECOND (DOORMAN_SECOND / 1000)
#define START (1000 * SECOND)
#define TTL (10 * SECOND)
#define OURS "tcp://ours"
#define OTHER "tcp://other"
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- one process, by hand ------------------------------------------------------------------- */

typedef struct fixture {
    doorman_election election;
    doorman_election_call call; /* the last call */
    doorman_time now;
} fixture;

static fixture start_with_ttl(doorman_time ttl) {
    fixture f = {.now = START};
    doorman_election_options options = {.address = OURS, .ttl = ttl};
    assert_int_equal(doorman_election_init(&f.election, &options, NULL, f.now), DOORMAN_OK);
    return f;
}

static fixture start(void) { return start_with_ttl(TTL); }

static void expect(fixture *f, doorman_election_call_kind kind) {
    assert_true(doorman_election_next(&f->election, &f->call, f->now));
    assert_int_equal(f->call.kind, kind);
}

static void expect_pause(fixture *f, doorman_time due) {
    assert_false(doorman_election_next(&f->election, &f->call, f->now));
    assert_int_equal(f->call.kind, DOORMAN_NO_CALL);
    assert_int_equal(f->call.sequence, 0);
    assert_int_equal(f->call.due, due);
}

static void answer(fixture *f, doorman_election_answer given) {
    assert_int_equal(doorman_election_answered(&f->election, f->call.sequence, &given, f->now),
                     DOORMAN_OK);
}

static void no_answer(fixture *f) {
    assert_int_equal(doorman_election_answered(&f->election, f->call.sequence, NULL, f->now),
                     DOORMAN_OK);
}

static doorman_mastership expect_state(const fixture *f, doorman_election_state state) {
    doorman_mastership mastership;
    assert_int_equal(doorman_election_mastership(&f->election, &mastership, f->now), state);
    if (state != DOORMAN_MASTER) assert_int_equal(mastership.until, 0);
    return mastership;
}

static void expect_master_until(const fixture *f, doorman_time until) {
    doorman_mastership mastership = expect_state(f, DOORMAN_MASTER);
    assert_string_equal(mastership.address, OURS);
    assert_int_equal(mastership.until, until);
}

#define NO_KEY ((doorman_election_answer){.exists = false})
#define NO_KEY_AFTER(n) ((doorman_election_answer){.term = (n)})
#define KEY(id, of) ((doorman_election_answer){.exists = true, .lease = (id), .address = (of)})
#define GRANTED_FOR(id, time) ((doorman_election_answer){.lease = (id), .ttl = (time)})
#define RENEWED_FOR(time) ((doorman_election_answer){.ttl = (time)})
#define NO_LEASE ((doorman_election_answer){.ttl = 0})
#define CREATED ((doorman_election_answer){.created = true})
#define NOT_CREATED ((doorman_election_answer){.created = false})

/* Becomes master: the key is missing, and the store grants this store lease. */
static void win(fixture *f, int64_t lease) {
    expect(f, DOORMAN_READ_KEY);
    answer(f, NO_KEY);
    expect(f, DOORMAN_GRANT_LEASE);
    answer(f, GRANTED_FOR(lease, TTL));
    expect(f, DOORMAN_CREATE_KEY);
    answer(f, CREATED);
    expect_master_until(f, f->now + TTL / 100 * 95);
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST(the_process_that_creates_the_key_is_master) {
    fixture f = start();
    expect_state(&f, DOORMAN_NO_MASTER);
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    assert_int_equal(f.call.ttl, TTL);
    answer(&f, GRANTED_FOR(7, TTL));
    expect_state(&f, DOORMAN_NO_MASTER);
    expect(&f, DOORMAN_CREATE_KEY);
    assert_int_equal(f.call.lease, 7);
    assert_string_equal(f.call.address, OURS);
    answer(&f, CREATED);
    expect_master_until(&f, START + TTL / 100 * 95);
    assert_int_equal(expect_state(&f, DOORMAN_MASTER).predecessor_gone, 0);
}

TEST(a_mastership_ends_after_95_percent_of_the_ttl) {
    fixture f = start();
    win(&f, 7);
    doorman_time end = START + TTL / 100 * 95;
    f.now = end - 1;
    expect_master_until(&f, end);
    f.now = end;
    assert_null(expect_state(&f, DOORMAN_NO_MASTER).address);
    f.now = end + 1;
    expect_state(&f, DOORMAN_NO_MASTER);
}

TEST(a_mastership_counts_from_when_the_renewal_was_sent) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    assert_int_equal(f.call.lease, 7);
    f.now += 3 * SECOND;
    answer(&f, RENEWED_FOR(TTL));
    expect_master_until(&f, START + TTL / 100 * 95); /* until the key has been read */
    expect(&f, DOORMAN_READ_KEY);
    f.now += SECOND;
    answer(&f, KEY(7, OURS));
    expect_master_until(&f, START + SECOND + TTL / 100 * 95);
}

/* A store may grant another TTL than the one requested. */
TEST(a_mastership_lasts_for_the_ttl_that_the_store_grants) {
    static const doorman_time granted[] = {2 * SECOND, 60 * SECOND, DOORMAN_DURATION_MAX};
    for (size_t i = 0; i < COUNT_OF(granted); i++) {
        fixture f = start();
        expect(&f, DOORMAN_READ_KEY);
        answer(&f, NO_KEY);
        expect(&f, DOORMAN_GRANT_LEASE);
        answer(&f, GRANTED_FOR(-3, granted[i]));
        expect(&f, DOORMAN_CREATE_KEY);
        answer(&f, CREATED);
        expect_master_until(&f, START + granted[i] / 100 * 95);
    }
}

TEST(an_absurd_ttl_of_the_store_counts_as_the_longest_duration) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, DOORMAN_NEVER));
    expect(&f, DOORMAN_CREATE_KEY);
    answer(&f, CREATED);
    expect_master_until(&f, START + DOORMAN_DURATION_MAX / 100 * 95);
}

TEST(a_master_that_gets_no_answers_stays_master_until_its_time_ends) {
    fixture f = start();
    win(&f, 7);
    doorman_time end = START + TTL / 100 * 95;
    for (f.now = START + SECOND; f.now < end; f.now += SECOND) {
        expect(&f, DOORMAN_KEEP_ALIVE);
        no_answer(&f);
        expect_master_until(&f, end);
        expect_pause(&f, f.now + SECOND);
    }
    expect(&f, DOORMAN_KEEP_ALIVE);
    no_answer(&f);
    expect_state(&f, DOORMAN_NO_MASTER);
    expect_pause(&f, f.now + SECOND); /* the store does not answer, so polls stay rare */
}

/* The renewal was received, but the key was not read. */
TEST(a_renewal_without_a_look_at_the_key_does_not_extend_a_mastership) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    no_answer(&f);
    expect_master_until(&f, START + TTL / 100 * 95);
}

TEST(the_owner_of_another_lease_is_the_master) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    f.now += MILLISECOND;
    answer(&f, KEY(8, OTHER));
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
    expect_pause(&f, START + SECOND);
}

TEST(another_master_is_known_for_a_ttl_after_the_last_answer) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    f.now += MILLISECOND;
    answer(&f, KEY(8, OTHER));
    f.now = START + TTL - 1;
    expect(&f, DOORMAN_READ_KEY);
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
    no_answer(&f);
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
    f.now = START + TTL;
    assert_null(expect_state(&f, DOORMAN_NO_MASTER).address);
    f.now = START + TTL + SECOND;
    expect(&f, DOORMAN_READ_KEY);
    no_answer(&f);
    assert_null(expect_state(&f, DOORMAN_NO_MASTER).address);
}

TEST(a_key_of_an_earlier_process_at_the_same_address_is_not_ours) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(6, OURS));
    assert_null(expect_state(&f, DOORMAN_STANDBY).address);
    f.now += SECOND;
    win(&f, 7);
}

TEST(an_invalid_address_of_the_master_is_not_known) {
    char long_text[DOORMAN_ID_BYTES_MAX + 2];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    const char *const addresses[] = {NULL, "", "tcp://\n", "\xff", long_text};
    fixture f = start();
    for (size_t i = 0; i < COUNT_OF(addresses); i++, f.now += SECOND) {
        expect(&f, DOORMAN_READ_KEY);
        answer(&f, KEY(8, addresses[i]));
        assert_null(expect_state(&f, DOORMAN_STANDBY).address);
    }
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(8, long_text + 1));
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, long_text + 1);
}

TEST(the_store_is_polled_every_second_or_five_times_within_the_ttl) {
    static const struct {
        doorman_time ttl, period;
    } cases[] = {{0, SECOND},
                 {3600 * SECOND, SECOND},
                 {5 * SECOND, SECOND},
                 {5 * SECOND - 5, SECOND - 1},
                 {2 * SECOND, SECOND * 2 / 5},
                 {SECOND, SECOND / 5}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fixture f = start_with_ttl(cases[i].ttl);
        expect(&f, DOORMAN_READ_KEY);
        f.now += MILLISECOND;
        answer(&f, KEY(8, OTHER));
        expect_pause(&f, START + cases[i].period);
        f.now = START + cases[i].period - 1;
        expect_pause(&f, START + cases[i].period);
        f.now++;
        expect(&f, DOORMAN_READ_KEY);
    }
}

TEST(a_poll_that_takes_long_is_followed_by_the_next_at_once) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    f.now += 2 * SECOND;
    answer(&f, KEY(8, OTHER));
    expect(&f, DOORMAN_READ_KEY);
}

TEST(a_missing_master_is_looked_for_ten_times_a_second) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    f.now += MILLISECOND;
    answer(&f, NOT_CREATED);
    expect_state(&f, DOORMAN_NO_MASTER);
    expect_pause(&f, START + SECOND / 10);
}

/* The loser of a race keeps its store lease until it sees the winner. */
TEST(the_loser_of_a_race_becomes_a_standby) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    answer(&f, NOT_CREATED);
    f.now += SECOND / 10;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(8, OTHER));
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
    f.now += SECOND;
    expect(&f, DOORMAN_READ_KEY); /* without a store lease */
}

/* The answer was lost, so the next poll finds the key. */
TEST(a_key_created_by_a_call_without_an_answer_is_ours) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    no_answer(&f);
    expect_state(&f, DOORMAN_NO_MASTER);
    expect_pause(&f, START + SECOND);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(7, OURS));
    expect_master_until(&f, START + SECOND + TTL / 100 * 95);
}

TEST(a_refused_store_lease_ends_the_poll) {
    static const doorman_election_answer refusals[] = {{.lease = 7}, {.ttl = TTL}};
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        fixture f = start();
        expect(&f, DOORMAN_READ_KEY);
        answer(&f, NO_KEY);
        expect(&f, DOORMAN_GRANT_LEASE);
        answer(&f, refusals[i]);
        expect_state(&f, DOORMAN_NO_MASTER);
        expect_pause(&f, START + SECOND / 10);
    }
}

/* Another process may have held the key since the last poll. */
TEST(a_master_that_misses_its_key_steps_down_before_it_tries_again) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, NO_LEASE);
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect_state(&f, DOORMAN_NO_MASTER);
    expect_pause(&f, f.now + SECOND / 10);
    f.now += SECOND / 10;
    win(&f, 8);
}

/* Somebody has deleted the key, so the master steps down although its store lease still exists. */
TEST(a_master_whose_key_was_deleted_steps_down_first_too) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect_state(&f, DOORMAN_NO_MASTER);
    f.now += SECOND / 10;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_CREATE_KEY);
    assert_int_equal(f.call.lease, 7);
}

TEST(a_master_that_finds_another_key_becomes_a_standby) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, NO_LEASE);
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(8, OTHER));
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
}

/* The process slept while the answer of the store waited. */
TEST(a_result_that_is_too_old_when_it_arrives_does_not_count) {
    for (doorman_time late = -1; late <= 1; late++) {
        fixture f = start();
        expect(&f, DOORMAN_READ_KEY);
        f.now = START + TTL + late;
        answer(&f, KEY(8, OTHER));
        expect_state(&f, late < 0 ? DOORMAN_STANDBY : DOORMAN_NO_MASTER);
        fixture g = start();
        expect(&g, DOORMAN_READ_KEY);
        answer(&g, NO_KEY);
        expect(&g, DOORMAN_GRANT_LEASE);
        answer(&g, GRANTED_FOR(7, TTL));
        expect(&g, DOORMAN_CREATE_KEY);
        g.now = START + TTL / 100 * 95 + late;
        answer(&g, CREATED);
        expect_state(&g, late < 0 ? DOORMAN_MASTER : DOORMAN_NO_MASTER);
    }
}

TEST(only_the_first_answer_to_the_last_call_counts) {
    fixture f = start();
    doorman_election_answer key = KEY(8, OTHER);
    assert_int_equal(doorman_election_answered(&f.election, 0, &key, f.now), DOORMAN_STALE);
    expect(&f, DOORMAN_READ_KEY);
    uint64_t first = f.call.sequence;
    doorman_election_call none;
    assert_false(doorman_election_next(&f.election, &none, f.now)); /* this call is under way */
    assert_int_equal(none.due, DOORMAN_NEVER);
    no_answer(&f);
    assert_int_equal(doorman_election_answered(&f.election, first, &key, f.now), DOORMAN_STALE);
    f.now += SECOND;
    expect(&f, DOORMAN_READ_KEY);
    assert_int_equal(doorman_election_answered(&f.election, first, &key, f.now), DOORMAN_STALE);
    expect_state(&f, DOORMAN_NO_MASTER);
    answer(&f, key);
    assert_int_equal(doorman_election_answered(&f.election, f.call.sequence, NULL, f.now),
                     DOORMAN_STALE);
    expect_state(&f, DOORMAN_STANDBY);
}

TEST(a_process_that_resigns_is_not_master_and_gives_back_the_key) {
    for (int answered = 0; answered < 2; answered++) {
        fixture f = start();
        win(&f, 7);
        doorman_election_resign(&f.election, f.now);
        assert_null(expect_state(&f, DOORMAN_RESIGNED).address);
        doorman_election_resign(&f.election, f.now); /* no effect */
        expect(&f, DOORMAN_REVOKE_LEASE);
        assert_int_equal(f.call.lease, 7);
        if (answered) {
            answer(&f, NO_LEASE);
        } else {
            no_answer(&f);
        }
        f.now += 10 * TTL;
        expect_pause(&f, DOORMAN_NEVER);
        expect_state(&f, DOORMAN_RESIGNED);
    }
}

TEST(a_process_can_resign_at_any_time) {
    fixture f = start();
    doorman_election_resign(&f.election, f.now);
    expect_state(&f, DOORMAN_RESIGNED);
    expect_pause(&f, DOORMAN_NEVER); /* the process has no store lease to give back */
    f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    doorman_election_answer created = CREATED;
    doorman_election_resign(&f.election, f.now);
    assert_int_equal(doorman_election_answered(&f.election, f.call.sequence, &created, f.now),
                     DOORMAN_STALE);
    expect_state(&f, DOORMAN_RESIGNED);
    expect(&f, DOORMAN_REVOKE_LEASE);
    assert_int_equal(f.call.lease, 7);
}

/* ---- not standing --------------------------------------------------------------------------- */

TEST(a_master_that_does_not_stand_gives_back_the_key_and_names_the_next_master) {
    fixture f = start();
    win(&f, 7);
    doorman_election_abstain(&f.election, true, f.now);
    doorman_election_abstain(&f.election, true, f.now); /* no effect */
    assert_null(expect_state(&f, DOORMAN_NO_MASTER).address);
    expect(&f, DOORMAN_REVOKE_LEASE);
    assert_int_equal(f.call.lease, 7);
    answer(&f, NO_LEASE);
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect_pause(&f, f.now + SECOND / 10); /* another process will soon be master */
    f.now += SECOND / 10;
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(9, OTHER));
    assert_string_equal(expect_state(&f, DOORMAN_STANDBY).address, OTHER);
    f.now += SECOND;
    doorman_election_abstain(&f.election, false, f.now);
    win(&f, 8);
}

/* No other process creates the key for a long time. */
TEST(a_process_that_does_not_stand_creates_no_key_and_polls_seldom) {
    fixture f = start();
    doorman_election_abstain(&f.election, true, f.now);
    for (int i = 0; i < 3; i++) {
        expect(&f, DOORMAN_READ_KEY);
        answer(&f, NO_KEY);
        expect_state(&f, DOORMAN_NO_MASTER);
        f.now += 10 * TTL;
    }
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect_pause(&f, f.now + SECOND);
    doorman_election_abstain(&f.election, false, f.now);
    win(&f, 7);
}

TEST(a_key_is_given_back_again_if_the_store_did_not_answer) {
    fixture f = start();
    win(&f, 7);
    doorman_election_abstain(&f.election, true, f.now);
    expect(&f, DOORMAN_REVOKE_LEASE);
    no_answer(&f);
    expect(&f, DOORMAN_REVOKE_LEASE);
    no_answer(&f);
    expect_pause(&f, f.now + SECOND);
    f.now += SECOND;
    expect(&f, DOORMAN_REVOKE_LEASE);
    no_answer(&f);
    expect_state(&f, DOORMAN_NO_MASTER);
    f.now += TTL; /* the lease is over */
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(9, OTHER));
    expect_state(&f, DOORMAN_STANDBY);
}

/* The answer to a call that was under way comes too late. */
TEST(a_process_can_stop_standing_at_any_time) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY);
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    doorman_election_answer created = CREATED;
    doorman_election_abstain(&f.election, true, f.now);
    assert_int_equal(doorman_election_answered(&f.election, f.call.sequence, &created, f.now),
                     DOORMAN_STALE);
    expect(&f, DOORMAN_REVOKE_LEASE);
    assert_int_equal(f.call.lease, 7);
    doorman_election_resign(&f.election, f.now);
    doorman_election_abstain(&f.election, false, f.now); /* no effect */
    expect_state(&f, DOORMAN_RESIGNED);
}

/* Finds no key in two polls, and creates it in the second. The store counts masterships.
 *   first, second   how many there had been at the polls
 *   won             the number of ours */
static doorman_time predecessor_gone(uint64_t first, uint64_t second, uint64_t won) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY_AFTER(first));
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    answer(&f, NOT_CREATED);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY_AFTER(second));
    expect(&f, DOORMAN_CREATE_KEY);
    answer(&f, (doorman_election_answer){.created = true, .term = won});
    assert_int_equal(expect_state(&f, DOORMAN_MASTER).term, won);
    return expect_state(&f, DOORMAN_MASTER).predecessor_gone;
}

TEST(a_predecessor_is_gone_since_the_key_was_first_missing) {
    assert_int_equal(predecessor_gone(4, 4, 5), START);
    assert_int_equal(predecessor_gone(4, 5, 6), START + SECOND);
}

TEST(a_master_in_between_is_a_predecessor_too) {
    assert_int_equal(predecessor_gone(4, 4, 6), 0);
    assert_int_equal(predecessor_gone(0, 0, 1), 0);
    assert_int_equal(predecessor_gone(0, 0, 0), 0); /* this store does not count */
}

/* In the second mastership, the predecessor is the process itself. */
TEST(a_master_that_becomes_master_again_learns_again) {
    fixture f = start();
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, NO_KEY_AFTER(4));
    expect(&f, DOORMAN_GRANT_LEASE);
    answer(&f, GRANTED_FOR(7, TTL));
    expect(&f, DOORMAN_CREATE_KEY);
    answer(&f, (doorman_election_answer){.created = true, .term = 5});
    assert_int_equal(expect_state(&f, DOORMAN_MASTER).predecessor_gone, START);
    f.now = START + TTL - 1; /* the mastership has ended, but the store lease has not */
    expect_state(&f, DOORMAN_NO_MASTER);
    expect(&f, DOORMAN_KEEP_ALIVE);
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, (doorman_election_answer){.exists = true, .lease = 7, .address = OURS, .term = 5});
    assert_int_equal(expect_state(&f, DOORMAN_MASTER).predecessor_gone, 0);
}

TEST(time_that_goes_back_stands_still) {
    fixture f = start();
    win(&f, 7);
    f.now += SECOND;
    expect(&f, DOORMAN_KEEP_ALIVE);
    f.now -= 100 * SECOND;
    answer(&f, RENEWED_FOR(TTL));
    expect(&f, DOORMAN_READ_KEY);
    answer(&f, KEY(7, OURS));
    expect_master_until(&f, START + SECOND + TTL / 100 * 95);
    expect_pause(&f, START + 2 * SECOND);
}

TEST(wrong_options_are_refused) {
    static const struct {
        doorman_election_options options;
        const char *error;
    } cases[] = {
        {{NULL, TTL}, "address: must be 1 to 256 bytes of UTF-8 without control characters"},
        {{"", TTL}, "address: must be 1 to 256 bytes of UTF-8 without control characters"},
        {{OURS, SECOND - 1}, "ttl: must be from 1 to 1e8 seconds"},
        {{OURS, -SECOND}, "ttl: must be from 1 to 1e8 seconds"},
        {{OURS, DOORMAN_DURATION_MAX + 1}, "ttl: must be from 1 to 1e8 seconds"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        doorman_election election = {.ttl = 42};
        doorman_error error = {0};
        assert_int_equal(doorman_election_init(&election, &cases[i].options, &error, START),
                         DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, cases[i].error);
        assert_int_equal(election.ttl, 42);
        assert_int_equal(doorman_election_init(&election, &cases[i].options, NULL, START),
                         DOORMAN_INVALID_ARGUMENT);
    }
    (void)start_with_ttl(DOORMAN_DURATION_MAX);
}

/* ---- random histories ----------------------------------------------------------------------- */

/* A simple store: a key, and all store leases ever granted. Its clock is the true time. */
enum { PROCESSES = 4, LEASES = 4096, EVENTS = 512 };

typedef struct process {
    doorman_election election;
    char address[24];
    doorman_time offset, rate;    /* its clock; the rate is in parts per 1,000 */
    doorman_time frozen_until;    /* in true time */
    uint64_t incarnation, wakeup; /* events of earlier ones are dropped */
} process;

typedef enum event_kind { WAKE, ARRIVES, ANSWERED, TIMED_OUT } event_kind;

typedef struct event {
    doorman_time at; /* true time; 0: this slot is free */
    event_kind kind;
    size_t process;
    uint64_t incarnation, number; /* number: of the call, or of the planned wake-up */
    doorman_election_call call;
    doorman_election_answer answer;
} event;

static struct {
    doorman_time now, ttl;
    size_t lease_count;
    doorman_time lease_ends[LEASES];
    int64_t key; /* the store lease of the key; 0: no key */
    size_t holder;
    uint64_t term;
    bool faults;
    process processes[PROCESSES];
    size_t process_count;
    event events[EVENTS];
    uint64_t handovers;
} model;

static doorman_time between(doorman_time low, doorman_time high) {
    return low + (doorman_time)((double)(high - low) * random_unit());
}

static bool faults_with(double probability) { return random_unit() < probability && model.faults; }

static doorman_time local_time(const process *p) { return p->offset + model.now * p->rate / 1000; }

static void plan(doorman_time at, event planned) {
    size_t i = 0;
    while (i < EVENTS && model.events[i].at) i++;
    assert_true(i < EVENTS);
    model.events[i] = planned;
    model.events[i].at = at;
}

static bool lease_lives(int64_t id) {
    return id > 0 && (size_t)id <= model.lease_count && model.lease_ends[id - 1] > model.now;
}

/* Lets the store handle a call. Returns its answer. */
static doorman_election_answer store_handle(const doorman_election_call *call, size_t caller) {
    doorman_election_answer answer = {.term = model.term};
    if (!lease_lives(model.key)) model.key = 0;
    switch ((int)call->kind) {
    case DOORMAN_GRANT_LEASE:
        assert_true(model.lease_count < LEASES);
        model.lease_ends[model.lease_count++] = model.now + model.ttl;
        answer.lease = (int64_t)model.lease_count;
        answer.ttl = model.ttl;
        break;
    case DOORMAN_KEEP_ALIVE:
        if (!lease_lives(call->lease)) break;
        model.lease_ends[call->lease - 1] = model.now + model.ttl;
        answer.ttl = model.ttl;
        break;
    case DOORMAN_READ_KEY:
        answer.exists = model.key != 0;
        answer.lease = model.key;
        if (model.key) answer.address = model.processes[model.holder].address;
        break;
    case DOORMAN_CREATE_KEY:
        if (model.key || !lease_lives(call->lease)) break;
        model.key = call->lease;
        model.holder = caller;
        model.handovers++;
        answer.created = true;
        answer.term = ++model.term;
        break;
    case DOORMAN_REVOKE_LEASE:
        if (lease_lives(call->lease)) model.lease_ends[call->lease - 1] = model.now;
        break;
    default: fail();
    }
    return answer;
}

/* Sends a call or an answer, which may be lost, late or duplicated. */
static void transmit(event sent) {
    for (int copies = faults_with(0.1) ? 2 : 1; copies > 0; copies--) {
        doorman_time delay = between(0, 50 * MILLISECOND);
        if (faults_with(0.1)) delay = between(0, 2 * model.ttl);
        if (!faults_with(0.1)) plan(model.now + delay + 1, sent);
    }
}

/* Runs one iteration of the loop of a process. */
static void step(size_t index) {
    process *p = &model.processes[index];
    event call = {.kind = ARRIVES, .process = index, .incarnation = p->incarnation};
    if (model.now < p->frozen_until) {
        plan(p->frozen_until, (event){.kind = WAKE,
                                      .process = index,
                                      .incarnation = p->incarnation,
                                      .number = ++p->wakeup});
    } else if (doorman_election_next(&p->election, &call.call, local_time(p))) {
        call.number = call.call.sequence;
        transmit(call);
        call.kind = TIMED_OUT;
        plan(model.now + between(MILLISECOND * 100, 2 * SECOND), call);
    } else if (call.call.due < DOORMAN_NEVER) {
        call.kind = WAKE;
        call.number = ++p->wakeup;
        doorman_time wait = (call.call.due - local_time(p)) * 1000 / p->rate + 1;
        plan(model.now + wait, call);
    }
}

static void process_start(size_t index) {
    process *p = &model.processes[index];
    snprintf(p->address, sizeof p->address, "p%zu", index);
    doorman_election_options options = {.address = p->address, .ttl = model.ttl};
    p->incarnation++;
    p->frozen_until = 0;
    assert_int_equal(doorman_election_init(&p->election, &options, NULL, local_time(p)),
                     DOORMAN_OK);
    step(index);
}

static void handle(event *now) {
    process *p = &model.processes[now->process];
    if (now->kind == ARRIVES) {
        event answer = *now;
        answer.kind = ANSWERED;
        answer.answer = store_handle(&now->call, now->process);
        transmit(answer);
        return;
    }
    if (now->incarnation != p->incarnation) return;
    if (now->kind == WAKE && now->number != p->wakeup) return;
    if (model.now < p->frozen_until) {
        plan(p->frozen_until, *now);
        return;
    }
    if (now->kind != WAKE) {
        const doorman_election_answer *answer = now->kind == ANSWERED ? &now->answer : NULL;
        doorman_status status =
            doorman_election_answered(&p->election, now->number, answer, local_time(p));
        if (status == DOORMAN_STALE) return;
    }
    step(now->process);
}

/* Lets a process freeze, die and start again, or resign and start again. */
static void disturb(void) {
    size_t index = random_below(model.process_count);
    process *p = &model.processes[index];
    switch (random_below(3)) {
    case 0: p->frozen_until = model.now + between(0, 3 * model.ttl); break;
    case 1: process_start(index); break;
    default:
        doorman_election_resign(&p->election, local_time(p));
        step(index);
        process_start(index);
    }
}

/* V2: checks that at most one process is master now. Returns the number of masters. */
static size_t check_masters(void) {
    size_t masters = 0;
    for (size_t i = 0; i < model.process_count; i++) {
        const process *p = &model.processes[i];
        doorman_mastership mastership;
        doorman_election_state is =
            doorman_election_mastership(&p->election, &mastership, local_time(p));
        if (is != DOORMAN_MASTER) continue;
        masters++;
        assert_true(lease_lives(model.key));
        assert_int_equal(model.holder, i);
    }
    assert_true(masters <= 1);
    return masters;
}

/* Handles all events up to `end`. Returns for how long there was a master. */
static doorman_time run_until(doorman_time end) {
    doorman_time with_master = 0, disturb_at = model.now;
    while (true) {
        event *first = NULL;
        for (size_t i = 0; i < EVENTS; i++) {
            event *e = &model.events[i];
            if (e->at && (!first || e->at < first->at)) first = e;
        }
        assert_non_null(first);
        doorman_time before = model.now, next = first->at < end ? first->at : end;
        bool had_master = check_masters() == 1;
        model.now = next;
        if (had_master && check_masters() == 1) with_master += next - before;
        if (next == end) return with_master;
        event due = *first;
        first->at = 0;
        handle(&due);
        if (model.faults && model.now >= disturb_at) {
            disturb();
            disturb_at = model.now + between(0, 2 * model.ttl);
        }
    }
}

/* Checks that one process is master and the others name it, as it must be without faults. */
static void check_settled(void) {
    size_t masters = 0;
    for (size_t i = 0; i < model.process_count; i++) {
        const process *p = &model.processes[i];
        doorman_mastership mastership;
        doorman_election_state is =
            doorman_election_mastership(&p->election, &mastership, local_time(p));
        assert_true(is == DOORMAN_MASTER || is == DOORMAN_STANDBY);
        assert_string_equal(mastership.address, model.processes[model.holder].address);
        masters += is == DOORMAN_MASTER;
    }
    assert_int_equal(masters, 1);
}

TEST(random_histories_never_have_two_masters) {
    doorman_time with_master = 0, total = 0;
    uint64_t handovers = 0;
    for (int round = 0; round < 300; round++) {
        memset(&model, 0, sizeof model);
        model.now = SECOND;
        model.ttl = between(SECOND, 10 * SECOND);
        model.faults = true;
        model.process_count = 1 + random_below(PROCESSES);
        for (size_t i = 0; i < model.process_count; i++) {
            process *p = &model.processes[i];
            p->offset = between(0, 1000 * SECOND);
            p->rate = 951 + (doorman_time)random_below(99); /* that of the store's clock is 1000 */
            process_start(i);
        }
        doorman_time duration = 40 * model.ttl;
        with_master += run_until(model.now + duration);
        total += duration;
        handovers += model.handovers;
        model.faults = false;
        run_until(model.now + 8 * model.ttl);
        check_settled();
    }
    print_message("%.0f %% of the time with a master, %llu masterships\n",
                  100 * (double)with_master / (double)total, (unsigned long long)handovers);
    assert_true(handovers > 600 && 10 * with_master > total);
}
