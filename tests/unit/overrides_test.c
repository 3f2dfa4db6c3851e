/* Override rows: other figures of one limit for one key, for some time (E1). */
#include "unit.h"

#include "permits_at_noon.h"

static const doorman_time february = INT64_C(1767225600) * SECOND + 31 * DAY;

/* ---- limits, and how they are used ----------------------------------------------------------- */

#define MONTH                                                                                      \
    "{\"name\": \"month\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": \"month\"}"
#define BURST "{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 100}"
#define JOBS                                                                                       \
    "{\"name\": \"jobs\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 9, "                 \
    "\"max_wait\": 600, \"time_to_live\": 3600, \"on_restart\": \"full\"}"

/* Sets a row that is written in JSON, with apostrophes instead of quotes.
 *   restores   as after a restart */
static doorman_status set_as(struct process *p, bool restores, const char *text,
                             doorman_error *error) {
    char json[1024];
    size_t bytes = strlen(text);
    doorman_override_message message = {0};
    assert_true(bytes < sizeof json);
    for (size_t i = 0; i <= bytes; i++) json[i] = text[i] == '\'' ? '"' : text[i];
    doorman_status status = doorman_json_read_override(&message, json, bytes, error);
    if (status != DOORMAN_OK) return status;
    message.row.id = ++p->ids;
    if (message.expires_in) message.row.ends_at = noon + p->now + message.expires_in;
    status = restores ? doorman_permits_restore_override(p->permits, &message.row, error, p->now)
                      : doorman_permits_set_override(p->permits, &message.row, error, p->now);
    doorman_override_message_uninit(&message);
    return status;
}

static void set(struct process *p, const char *text) {
    doorman_error error = {0};
    if (set_as(p, false, text, &error) != DOORMAN_OK) fail_msg("%s", error.text);
}

static const doorman_override_row month_of_acme = {
    .resource_id = "api/a", .limit = "month", .key = "acme"};

/* ---- a row and its end ----------------------------------------------------------------------- */

TEST(a_row_raises_the_limit_of_one_key_until_its_end) {
    struct process p = process_of(MONTH);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 3000}, "
            "'expires_in': 60}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 3000);
    assert_exact(take(&p, "api/a", "bob", 1e6), 1000);
    assert_exact(take(&p, "api/b", "acme", 1e6), 1000);
    p.now = 60 * SECOND - 1;
    assert_exact(look(&p, "api/a", "acme", "month").most, 3000);
    p.now = 60 * SECOND;
    assert_exact(look(&p, "api/a", "acme", "month").most, 1000);
    process_end(&p);
}

/* P15, E1 */
TEST(a_row_acts_on_counters_that_exist_and_they_keep_their_use_when_it_ends) {
    struct process p = process_of(MONTH);
    assert_exact(take(&p, "api/a", "acme", 1e6), 1000);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 3000}, "
            "'expires_in': 86400}");
    assert_exact(take(&p, "api/a", "acme", 900), 900);

    doorman_permit_detail after;
    assert_int_equal(doorman_permits_after_override(p.permits, &month_of_acme, &after, NULL, p.now),
                     DOORMAN_OK);
    assert_exact(after.most, 1000);
    assert_exact(after.used, 1900);
    assert_int_equal(after.more_after, february - noon - DAY);
    assert_exact(look(&p, "api/a", "acme", "month").remaining, 1100); /* nothing was changed */

    p.now = DAY;
    assert_exact(take(&p, "api/a", "acme", 1), 0);
    assert_int_equal(look(&p, "api/a", "acme", "month").more_after, february - noon - DAY);
    process_end(&p);
}

/* A row of a glob applies to many resources, so the caller must name one of them. */
TEST(the_end_of_a_row_of_a_glob_is_described_for_each_resource) {
    struct process p = process_of(MONTH);
    doorman_override_row name = {.identifier_glob = "api/*", .limit = "month", .key = "acme"};
    doorman_permit_detail after;
    set(&p, "{'glob': 'api/*', 'limit': 'month', 'key': 'acme', 'set': {'limit': 3000}, "
            "'expires_in': 86400}");
    assert_exact(take(&p, "api/a", "acme", 1900), 1900);
    assert_int_equal(doorman_permits_after_override(p.permits, &name, &after, NULL, p.now),
                     DOORMAN_INVALID_ARGUMENT);
    name.resource_id = "api/a";
    assert_int_equal(doorman_permits_after_override(p.permits, &name, &after, NULL, p.now),
                     DOORMAN_OK);
    assert_exact(after.most, 1000);
    assert_exact(after.used, 1900);
    name.resource_id = "api/b";
    assert_int_equal(doorman_permits_after_override(p.permits, &name, &after, NULL, p.now),
                     DOORMAN_OK);
    assert_exact(after.used, 0);
    name.resource_id = "web/a";
    assert_int_equal(doorman_permits_after_override(p.permits, &name, &after, NULL, p.now),
                     DOORMAN_INVALID_ARGUMENT);
    process_end(&p);
}

TEST(a_row_begins_at_its_time) {
    struct process p = process_of(BURST);
    assert_exact(take(&p, "api/a", "acme", 1e6), 100);
    set(&p, "{'glob': 'api/*', 'limit': 'burst', 'key': 'acme', "
            "'set': {'rate': 10, 'size': 1000}, 'starts_at': 1767268810, 'ends_at': 1767268910}");
    p.now = 10 * SECOND - 1;
    assert_exact(look(&p, "api/a", "acme", "burst").most, 100);
    assert_int_equal(doorman_permits_due(p.permits), SECOND); /* there is a counter */
    p.now = 10 * SECOND;
    assert_exact(look(&p, "api/a", "acme", "burst").most, 1000);
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(info_of(&p).override_count, 1);
    p.now = 110 * SECOND;
    assert_exact(take(&p, "api/a", "acme", 1e6), 100);
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(info_of(&p).override_count, 0);
    process_end(&p);
}

TEST(the_permits_want_to_be_called_when_a_row_begins_and_when_it_ends) {
    struct process p = process_of(MONTH);
    assert_int_equal(doorman_permits_due(p.permits), DOORMAN_NEVER);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 1}, "
            "'starts_at': 1767268810, 'ends_at': 1767268910}");
    assert_int_equal(doorman_permits_due(p.permits), 10 * SECOND);
    p.now = 10 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(doorman_permits_due(p.permits), 110 * SECOND);
    p.now = 110 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(doorman_permits_due(p.permits), DOORMAN_NEVER);
    process_end(&p);
}

TEST(a_row_that_is_ended_early_acts_no_more) {
    struct process p = process_of(MONTH);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 5}}");
    assert_exact(take(&p, "api/a", "acme", 7), 5);
    assert_int_equal(doorman_permits_end_override(p.permits, &month_of_acme, NULL, p.now),
                     DOORMAN_OK);
    assert_exact(take(&p, "api/a", "acme", 7), 7);
    doorman_error error = {0};
    assert_int_equal(doorman_permits_end_override(p.permits, &month_of_acme, &error, p.now),
                     DOORMAN_NOT_FOUND);
    assert_string_equal(error.text, "there is no such override row");
    process_end(&p);
}

/* ---- which row counts ------------------------------------------------------------------------ */

TEST(a_row_of_the_resource_goes_before_one_of_the_glob_and_that_before_the_configuration) {
    struct process p = process_of(
        "{\"name\": \"month\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": \"month\", "
        "\"overrides\": [{\"keys\": [\"ac*\"], \"limit\": 2000}]}");
    assert_exact(look(&p, "api/a", "acme", "month").most, 2000);
    set(&p, "{'glob': 'api/*', 'limit': 'month', 'key': 'acme', 'set': {'limit': 3000}}");
    assert_exact(look(&p, "api/a", "acme", "month").most, 3000);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 4000}}");
    assert_exact(look(&p, "api/a", "acme", "month").most, 4000);
    assert_exact(look(&p, "api/b", "acme", "month").most, 3000);
    assert_int_equal(doorman_permits_end_override(p.permits, &month_of_acme, NULL, p.now),
                     DOORMAN_OK);
    assert_exact(look(&p, "api/a", "acme", "month").most, 3000);
    process_end(&p);
}

TEST(what_a_row_does_not_give_is_that_of_the_limit) {
    struct process p =
        process_of("{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 100, "
                   "\"max_debt\": 50}");
    doorman_override_info info;
    set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'set': {'max_debt': 70}}");
    const doorman_override_row name = {.resource_id = "api/a", .limit = "burst", .key = "acme"};
    assert_true(doorman_permits_find_override(p.permits, &name, &info));
    assert_exact(info.all.rate, 1);
    assert_exact(info.all.size, 100);
    assert_int_equal(info.all.max_debt, 70 * SECOND);
    assert_int_equal(info.all.max_wait, 70 * SECOND); /* neither row gives it */
    assert_true(info.in_force && !info.idle);
    assert_string_equal(info.glob, "api/*");
    process_end(&p);
}

TEST(a_row_replaces_the_one_with_its_name) {
    struct process p = process_of(MONTH);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 5}, "
            "'expires_in': 60}");
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'set': {'limit': 7}}");
    doorman_override_info info;
    assert_int_equal(info_of(&p).override_count, 1);
    assert_true(doorman_permits_find_override(p.permits, &month_of_acme, &info));
    assert_int_equal(info.row.id, 2);
    assert_int_equal(info.row.ends_at, 0);
    p.now = DAY;
    assert_exact(look(&p, "api/a", "acme", "month").most, 7);
    process_end(&p);
}

/* ---- each kind ------------------------------------------------------------------------------- */

TEST(a_row_changes_the_number_of_tiers_of_a_counter_and_they_come_back) {
    struct process p =
        process_of("{\"name\": \"steps\", \"kind\": \"TIERS\", \"tiers\": ["
                   "{\"limit\": 10, \"window\": 60, \"active\": 600},"
                   "{\"limit\": 20, \"window\": 60, \"active\": 600, \"cooldown\": 600},"
                   "{\"limit\": 30, \"window\": 60, \"active\": 600, \"cooldown\": 600}]}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 60);
    set(&p, "{'resource': 'api/a', 'limit': 'steps', 'key': 'acme', 'set': {'tiers': ["
            "{'limit': 15, 'window': 60, 'active': 600}]}, 'expires_in': 30}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 5);
    p.now = 30 * SECOND;
    assert_exact(look(&p, "api/a", "acme", "steps").most, 60);
    assert_exact(take(&p, "api/a", "acme", 1e6), 50); /* tier 1 is used up, the others are fresh */
    process_end(&p);
}

TEST(a_sliding_window_of_another_length_starts_fresh) {
    struct process p = process_of(
        "{\"name\": \"hour\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 10, \"window\": 3600}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 10);
    set(&p, "{'resource': 'api/a', 'limit': 'hour', 'key': 'acme', 'set': {'limit': 20}, "
            "'expires_in': 60}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 10);
    set(&p, "{'resource': 'api/a', 'limit': 'hour', 'key': 'acme', 'set': {'window': 60}, "
            "'expires_in': 60}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 10);
    p.now = 60 * SECOND;
    assert_exact(take(&p, "api/a", "acme", 1e6), 10);
    assert_exact(take(&p, "api/a", "acme", 1e6), 0);
    process_end(&p);
}

/* Asks for one unit of CONCURRENCY. Returns whether the permit is granted; otherwise it waits. */
static bool hold(struct process *p, uint64_t request_id) {
    const doorman_permit_item item = {.resource_id = "api/a", .key = "acme", .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "worker",
                                            .request_id = request_id,
                                            .max_wait = 600 * SECOND};
    doorman_error error = {0};
    doorman_status status = doorman_permits_acquire(p->permits, &request, &p->out, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    assert_true(p->out.granted || p->out.pending);
    return p->out.granted;
}

/* Returns how many permits that waited have been granted since the last call. */
static size_t served(struct process *p) {
    doorman_permit permit;
    uint64_t ticket;
    size_t count = 0;
    while (doorman_permits_next_decision(p->permits, &ticket, &permit)) count += permit.granted;
    return count;
}

TEST(permits_that_wait_are_served_as_soon_as_a_row_is_set) {
    struct process p = process_of(JOBS);
    assert_true(hold(&p, 1));
    for (uint64_t i = 2; i < 6; i++) assert_false(hold(&p, i));
    set(&p, "{'resource': 'api/a', 'limit': 'jobs', 'key': 'acme', 'set': {'limit': 3}}");
    assert_int_equal(served(&p), 2);
    set(&p, "{'glob': 'api/*', 'limit': 'jobs', 'key': 'acme', 'set': {'limit': 4}}");
    assert_int_equal(served(&p), 0); /* the row of the resource goes first */
    const doorman_override_row name = {.resource_id = "api/a", .limit = "jobs", .key = "acme"};
    assert_int_equal(doorman_permits_end_override(p.permits, &name, NULL, p.now), DOORMAN_OK);
    assert_int_equal(served(&p), 1);
    process_end(&p);
}

TEST(permits_that_wait_are_served_when_a_row_begins_and_when_a_low_one_ends) {
    struct process p =
        process_of("{\"name\": \"jobs\", \"kind\": \"CONCURRENCY\", \"limit\": 2, \"queue\": 9, "
                   "\"max_wait\": 600, \"time_to_live\": 3600, \"on_restart\": \"full\"}");
    set(&p, "{'resource': 'api/a', 'limit': 'jobs', 'key': 'acme', 'set': {'limit': 1}, "
            "'expires_in': 5}");
    assert_true(hold(&p, 1));
    assert_false(hold(&p, 2));
    assert_false(hold(&p, 3));
    p.now = 5 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(served(&p), 1);
    set(&p, "{'glob': 'api/*', 'limit': 'jobs', 'key': 'acme', 'set': {'limit': 3}, "
            "'starts_at': 1767268810}");
    assert_int_equal(served(&p), 0);
    assert_int_equal(doorman_permits_due(p.permits), 6 * SECOND);
    p.now = 10 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(served(&p), 1);
    process_end(&p);
}

/* ---- rows that add --------------------------------------------------------------------------- */

TEST(a_row_adds_units_to_this_window_and_to_no_other) {
    struct process p = process_of(MONTH);
    assert_exact(take(&p, "api/a", "acme", 1e6), 1000);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'add': 500}");
    doorman_override_row name = month_of_acme;
    doorman_override_info info;
    name.add = 1;
    assert_true(doorman_permits_find_override(p.permits, &name, &info));
    assert_int_equal(info.row.ends_at, february);
    assert_exact(take(&p, "api/a", "acme", 1e6), 500);
    p.now = february - noon;
    doorman_permits_set_epoch(p.permits, february, p.now);
    assert_exact(take(&p, "api/a", "acme", 1e6), 1000);
    process_end(&p);
}

TEST(a_row_adds_to_what_another_row_gives) {
    struct process p = process_of(MONTH);
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', 'add': 500}");
    assert_exact(look(&p, "api/a", "acme", "month").most, 1500);
    set(&p, "{'glob': 'api/*', 'limit': 'month', 'key': 'acme', 'set': {'limit': 3000}}");
    assert_exact(look(&p, "api/a", "acme", "month").most, 3500);
    assert_exact(look(&p, "api/b", "acme", "month").most, 3000);
    assert_int_equal(info_of(&p).override_count, 2);
    process_end(&p);
}

TEST(a_bucket_gets_what_a_row_adds_once_however_often_it_is_set) {
    struct process p = process_of(BURST);
    assert_exact(take(&p, "api/a", "acme", 80), 80);
    for (int i = 0; i < 3; i++) {
        set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'add': 500, "
                "'expires_in': 3600}");
    }
    assert_exact(look(&p, "api/a", "acme", "burst").remaining, 520);
    set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'add': 600, "
            "'expires_in': 3600}");
    assert_exact(take(&p, "api/a", "acme", 1e6), 620);
    p.now = HOUR;
    assert_exact(take(&p, "api/a", "acme", 1e6), 100);
    process_end(&p);
}

TEST(a_bucket_gets_what_a_row_adds_when_the_row_begins) {
    struct process p = process_of(BURST);
    assert_exact(take(&p, "api/a", "acme", 100), 100);
    set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'add': 500, "
            "'starts_at': 1767268810, 'ends_at': 1767268910}");
    p.now = 10 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_exact(take(&p, "api/a", "acme", 1e6), 510);
    process_end(&p);
}

TEST(a_row_that_adds_is_not_given_again_after_a_restart) {
    struct process p = process_of(BURST);
    assert_exact(take(&p, "api/a", "acme", 100), 100);
    assert_int_equal(set_as(&p, true,
                            "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'add': 500, "
                            "'starts_at': 1767268700, 'ends_at': 1767268900}",
                            NULL),
                     DOORMAN_OK);
    assert_exact(take(&p, "api/a", "acme", 1e6), 0);
    process_end(&p);
}

/* ---- configurations -------------------------------------------------------------------------- */

TEST(a_row_whose_limit_is_gone_is_idle_and_acts_again_when_it_comes_back) {
    struct process p = process_of(MONTH);
    set(&p, "{'glob': 'api/*', 'limit': 'month', 'key': 'acme', 'set': {'limit': 5}}");
    reconfigure(&p, BURST);
    assert_int_equal(info_of(&p).override_idle_count, 1);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 100);
    doorman_override_cursor cursor = {0};
    doorman_override_info info;
    assert_true(doorman_permits_next_override(p.permits, &cursor, &info));
    assert_true(info.idle && !info.in_force && !info.glob);
    reconfigure(&p, MONTH);
    assert_int_equal(info_of(&p).override_idle_count, 0);
    assert_exact(look(&p, "api/a", "acme", "month").most, 5);
    process_end(&p);
}

TEST(a_row_that_breaks_a_rule_of_a_changed_limit_is_idle) {
    struct process p = process_of(BURST);
    set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'acme', 'set': {'size': 1e8}}");
    reconfigure(&p, "{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, "
                    "\"size\": 7}");
    assert_int_equal(info_of(&p).override_idle_count, 1);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 7);
    reconfigure(&p, "{\"name\": \"burst\", \"kind\": \"FIXED_WINDOW\", \"limit\": 3, "
                    "\"window\": 9}");
    assert_int_equal(info_of(&p).override_idle_count, 1);
    reconfigure(&p, BURST);
    assert_int_equal(info_of(&p).override_idle_count, 0);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 1e8);
    process_end(&p);
}

TEST(a_store_may_have_rows_that_do_not_fit_the_configuration) {
    struct process p = process_of(MONTH);
    static const char *const rows[] = {
        "{'resource': 'api/a', 'limit': 'gone', 'key': 'acme', 'set': {'limit': 5}}",
        "{'glob': 'web/*', 'limit': 'month', 'key': 'acme', 'set': {'limit': 5}}",
        "{'glob': 'api/*', 'limit': 'month', 'key': 'acme', 'set': {'rate': 5}}"};
    for (size_t i = 0; i < COUNT(rows); i++) {
        doorman_error error = {0};
        assert_int_not_equal(set_as(&p, false, rows[i], &error), DOORMAN_OK);
        assert_int_equal(set_as(&p, true, rows[i], &error), DOORMAN_OK);
    }
    assert_int_equal(info_of(&p).override_count, 3);
    assert_int_equal(info_of(&p).override_idle_count, 3);
    assert_exact(look(&p, "api/a", "acme", "month").most, 1000);
    /* a row that has ended has no effect, and only a restart can set it */
    const char *ended = "{'resource': 'api/a', 'limit': 'month', 'key': 'acme', "
                        "'set': {'limit': 5}, 'starts_at': 1767268000, 'ends_at': 1767268800}";
    doorman_error error = {0};
    assert_int_equal(set_as(&p, true, ended, &error), DOORMAN_OK);
    assert_int_equal(info_of(&p).override_count, 3);
    assert_int_equal(set_as(&p, false, ended, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "ends_at: has passed");
    process_end(&p);
}

/* ---- what is wrong with a row ---------------------------------------------------------------- */

static const struct {
    const char *row, *error;
} wrong_rows[] = {
    {"{'limit': 'burst', 'key': 'a', 'set': {'rate': 5}}", "resource: must be 1 to 256 bytes"},
    {"{'resource': 'api/a', 'glob': 'api/*', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}}",
     "glob: must not be given with resource"},
    {"{'resource': 'api/a', 'key': 'a', 'set': {'rate': 5}}", "limit: is missing"},
    {"{'resource': 'api/a', 'limit': 'burst', 'set': {'rate': 5}}", "key: is missing"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a'}", "set: must have at least one figure"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {}}",
     "set: must have at least one figure"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 'leased'}}",
     "set.rate: must be a number"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rates': 5}}",
     "set.rates: is not known"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'limit': 5}}",
     "set.limit: only a FIXED_WINDOW, a SLIDING_WINDOW and CONCURRENCY have one"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'size': 0}}",
     "set.size: must be more than 0 where max_debt is 0"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}, 'add': 5}",
     "add: must not be given with set"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'add': 0}",
     "add: must be more than 0 and at most 1e15"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'add': 5}",
     "expires_in: a row that adds to a TOKEN_BUCKET needs an end"},
    {"{'glob': 'api/*', 'limit': 'burst', 'key': 'a', 'add': 5, 'expires_in': 5}",
     "add: needs a resource, because each resource of a template has counters of its own"},
    {"{'resource': 'api/a', 'limit': 'jobs', 'key': 'a', 'add': 5, 'expires_in': 5}",
     "add: only a TOKEN_BUCKET, a FIXED_WINDOW and a SLIDING_WINDOW have units that can be "
     "added to"},
    {"{'resource': 'api/a', 'limit': 'jobs', 'key': 'a', 'set': {'time_to_live': 5}}",
     "set.time_to_live: a row has none, because a server that restarts would not know it in "
     "time"},
    {"{'resource': 'api/a', 'limit': 'all', 'key': 'a', 'set': {'rate': 5}}",
     "limit: needs a limit per key, because other limits share a counter between keys"},
    {"{'resource': 'api/a', 'limit': 'lent', 'key': 'a', 'set': {'rate': 5}}",
     "limit: is leased, so its figures are those of the lease"},
    {"{'resource': 'api/a', 'limit': 'some', 'key': 'a', 'set': {'rate': 5}}",
     "key: the limit does not concern this key"},
    {"{'resource': 'api/a', 'limit': 'none', 'key': 'a', 'set': {'rate': 5}}",
     "limit: the template \"api/*\" has no such one"},
    {"{'resource': 'web', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}}",
     "resource: no template with limits matches this resource"},
    {"{'glob': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}}",
     "glob: no template with limits has this glob"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}, "
     "'starts_at': 'now'}",
     "starts_at: must be a time in seconds since 1970"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}, "
     "'starts_at': 2e9, 'ends_at': 2e9}",
     "ends_at: must be later than starts_at"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}, "
     "'ends_at': 2e9, 'expires_in': 5}",
     "expires_in: must not be given with ends_at"},
    {"{'resource': 'api/a', 'limit': 'burst', 'key': 'a', 'set': {'rate': 5}, 'reason': ''}",
     "reason: must have 1 to 500 bytes of UTF-8"},
    {"{'resource': 'api/a', 'limit': 'burst'", "not JSON: "},
};

TEST(each_wrong_row_is_named) {
    struct process p =
        process_of(BURST ", " JOBS ", "
                         "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "
                         "\"rate\": 1, \"size\": 9}, "
                         "{\"name\": \"some\", \"keys\": [\"b*\"], \"kind\": \"TOKEN_BUCKET\", "
                         "\"rate\": 1, \"size\": 9}, "
                         "{\"name\": \"lent\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "
                         "\"rate\": \"leased\", \"lease_of\": \"api/a\"}");
    for (size_t i = 0; i < COUNT(wrong_rows); i++) {
        doorman_error error = {0};
        assert_int_not_equal(set_as(&p, false, wrong_rows[i].row, &error), DOORMAN_OK);
        if (strncmp(error.text, wrong_rows[i].error, strlen(wrong_rows[i].error)) != 0) {
            fail_msg("row %zu: \"%s\", expected \"%s\"", i, error.text, wrong_rows[i].error);
        }
    }
    assert_int_equal(info_of(&p).override_count, 0);
    process_end(&p);
}

TEST(a_row_beyond_the_bound_is_refused_and_one_that_replaces_another_is_not) {
    struct process p = process_of(MONTH);
    doorman_permits_destroy(p.permits);
    const doorman_permits_options options = {.config = p.config, .seed = {1, 2}, .override_max = 1};
    assert_int_equal(doorman_permits_create(&p.permits, &options, NULL, 0), DOORMAN_OK);
    doorman_permits_set_epoch(p.permits, noon, 0);
    doorman_error error = {0};
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'a', 'set': {'limit': 5}}");
    assert_int_equal(set_as(&p, false,
                            "{'resource': 'api/a', 'limit': 'month', 'key': 'b', "
                            "'set': {'limit': 5}}",
                            &error),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "there are 1 override rows already");
    set(&p, "{'resource': 'api/a', 'limit': 'month', 'key': 'a', 'set': {'limit': 6}}");
    process_end(&p);
}

/* ---- lists and JSON -------------------------------------------------------------------------- */

TEST(a_row_is_written_and_read_back) {
    struct process p = process_of(BURST);
    doorman_override_cursor cursor = {0};
    doorman_override_info info;
    doorman_buffer text = {0};
    set(&p, "{'resource': 'api/a', 'limit': 'burst', 'key': 'a\\u00e9', "
            "'set': {'rate': 0.5, 'size': 7, 'max_debt': 2}, 'ends_at': 1767268810}");
    assert_true(doorman_permits_next_override(p.permits, &cursor, &info));
    assert_int_equal(doorman_json_write_override(&info.row, "ticket 4711", &text), DOORMAN_OK);
    assert_string_equal(
        text.text, "{\"id\":1,\"resource\":\"api/a\",\"limit\":\"burst\",\"key\":\"a\xc3\xa9\","
                   "\"set\":{\"rate\":0.5,\"size\":7,\"max_debt\":2},"
                   "\"starts_at\":1767268800,\"ends_at\":1767268810,"
                   "\"reason\":\"ticket 4711\"}");
    assert_false(doorman_permits_next_override(p.permits, &cursor, &info));
    doorman_buffer_uninit(&text);
    process_end(&p);
}

TEST(rows_are_listed_in_the_order_of_their_next_event) {
    enum { ROWS = 500 };
    struct process p = process_of(MONTH);
    for (int i = 0; i < ROWS; i++) {
        char text[256];
        const char *from = random_below(2) ? "starts_at" : "ends_at";
        snprintf(text, sizeof text,
                 "{'resource': 'api/a', 'limit': 'month', 'key': 'k%d', 'set': {'limit': %d}, "
                 "'%s': %zu}",
                 i, i % 7 + 1, from, (size_t)1767268801 + random_below(100));
        set(&p, text);
    }
    doorman_override_cursor cursor = {0}, last = {0};
    doorman_override_info info;
    size_t count = 0;
    for (; doorman_permits_next_override(p.permits, &cursor, &info); count++, last = cursor) {
        const bool begun = info.row.starts_at <= noon;
        assert_int_equal(cursor.next_at, begun ? info.row.ends_at : info.row.starts_at);
        assert_true(cursor.next_at > last.next_at ||
                    (cursor.next_at == last.next_at && cursor.id > last.id));
    }
    assert_int_equal(count, ROWS);
    process_end(&p);
}

/* An update ends at most 1,000 rows, so that other calls need not wait for long. */
TEST(an_update_ends_a_thousand_rows_and_says_that_more_are_due) {
    enum { ROWS = 2500 };
    struct process p = process_of(MONTH);
    for (int i = 0; i < ROWS; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{'resource': 'api/a', 'limit': 'month', 'key': 'k%d', 'set': {'limit': 5}, "
                 "'expires_in': 9}",
                 i);
        set(&p, text);
    }
    p.now = 9 * SECOND;
    for (size_t left = ROWS; left > 0; left = left > 1000 ? left - 1000 : 0) {
        assert_int_equal(info_of(&p).override_count, left);
        assert_true(doorman_permits_due(p.permits) <= p.now);
        doorman_permits_update(p.permits, p.now);
    }
    assert_int_equal(info_of(&p).override_count, 0);
    process_end(&p);
}

/* ---- a slow model ---------------------------------------------------------------------------- */

enum { RESOURCES = 3, KEYS = 3, CONFIGS = 4 };

static const char *const resources[] = {"api/a", "api/b", "api/c"};
static const char *const keys[] = {"", "acme", "bob"};

/* The limit of each key in each configuration; 0: the configuration does not have the limit. */
static const double configured[CONFIGS][KEYS] = {
    {100, 100, 100}, {50, 70, 50}, {0, 0, 0}, {200, 200, 30}};
static const char *const configurations[CONFIGS] = {
    "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"month\"}",
    "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 50, \"window\": \"month\", "
    "\"overrides\": [{\"keys\": [\"acme\"], \"limit\": 70}]}",
    BURST,
    "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 200, \"window\": \"month\", "
    "\"overrides\": [{\"keys\": [\"b*\"], \"limit\": 30}]}",
};

struct model_row {
    bool exists;
    double limit;
    doorman_time starts_at, ends_at;
};

/* Rows are indexed by resource (the last index is the glob), by key, and by whether they add. */
struct model {
    struct model_row rows[RESOURCES + 1][KEYS][2];
    double used[RESOURCES][KEYS];
    size_t config;
};

static bool model_in_force(const struct model_row *row, doorman_time epoch) {
    return row->exists && row->starts_at <= epoch && epoch < row->ends_at;
}

static double model_most(const struct model *m, size_t resource, size_t key, doorman_time epoch) {
    const struct model_row *row = &m->rows[resource][key][0];
    double most = configured[m->config][key];
    if (!model_in_force(row, epoch)) row = &m->rows[RESOURCES][key][0];
    if (model_in_force(row, epoch)) most = row->limit;
    const struct model_row *adds = &m->rows[resource][key][1];
    return most + (model_in_force(adds, epoch) ? adds->limit : 0);
}

static void model_set(struct process *p, struct model *m) {
    const size_t resource = random_below(RESOURCES + 1), key = random_below(KEYS);
    const bool adds = resource < RESOURCES && random_below(3) == 0, ends = random_below(4) == 0;
    const doorman_time epoch = noon + p->now;
    struct model_row *row = &m->rows[resource][key][adds];
    const struct model_row next = {
        .exists = true,
        .limit = (double)(1 + random_below(300)),
        .starts_at = epoch + (random_below(2) ? 0 : (doorman_time)random_below(9000) * SECOND),
        .ends_at = epoch + (doorman_time)(9000 + random_below(90000)) * SECOND};
    doorman_override_row given = {.limit = "m",
                                  .key = keys[key],
                                  .id = ++p->ids,
                                  .starts_at = next.starts_at,
                                  .ends_at = next.ends_at};
    *(resource < RESOURCES ? &given.resource_id : &given.identifier_glob) =
        resource < RESOURCES ? resources[resource] : "api/*";
    given.add = adds ? next.limit : 0;
    if (!adds) given.figures = (doorman_figures){.limit = next.limit, .has_limit = true};
    doorman_error error = {0};
    doorman_status status = ends ? doorman_permits_end_override(p->permits, &given, &error, p->now)
                                 : doorman_permits_set_override(p->permits, &given, &error, p->now);
    if (ends) {
        const bool was = row->exists && epoch < row->ends_at;
        if (was) assert_int_equal(status, DOORMAN_OK); /* a row that is over may not be freed yet */
        row->exists = false;
    } else if (m->config == 2) {
        assert_int_equal(status, DOORMAN_NOT_FOUND);
    } else {
        if (status != DOORMAN_OK) fail_msg("%s", error.text);
        *row = next;
    }
}

/* Takes some units, and compares all keys with the model. */
static void model_compare(struct process *p, struct model *m) {
    const size_t resource = random_below(RESOURCES), key = random_below(KEYS);
    const doorman_time epoch = noon + p->now;
    if (m->config == 2) return;
    const double most = model_most(m, resource, key, epoch), cost = (double)random_below(200);
    const double left = most > m->used[resource][key] ? most - m->used[resource][key] : 0;
    const double got = take(p, resources[resource], keys[key], cost);
    assert_exact(got, cost < left ? cost : left);
    m->used[resource][key] += got;
    for (size_t i = 0; i < RESOURCES; i++) {
        for (size_t j = 0; j < KEYS; j++) {
            const doorman_permit_detail state = look(p, resources[i], keys[j], "m");
            const double all = model_most(m, i, j, epoch);
            assert_exact(state.most, all);
            assert_exact(state.remaining, all > m->used[i][j] ? all - m->used[i][j] : 0);
        }
    }
}

/* Checks how many rows are listed. Rows that are over and not freed yet do not count. */
static void model_compare_lists(const struct process *p, const struct model *m) {
    size_t expected = 0, listed = 0;
    doorman_override_cursor cursor = {0};
    doorman_override_info info;
    const doorman_time epoch = noon + p->now;
    for (size_t i = 0; i <= RESOURCES; i++) {
        for (size_t j = 0; j < KEYS; j++) {
            for (size_t adds = 0; adds < 2; adds++) {
                const struct model_row *row = &m->rows[i][j][adds];
                expected += row->exists && epoch < row->ends_at;
            }
        }
    }
    while (doorman_permits_next_override(p->permits, &cursor, &info)) {
        if (info.row.ends_at <= epoch) continue;
        assert_true(info.idle == (m->config == 2));
        listed++;
    }
    assert_int_equal(listed, expected);
}

TEST(random_histories_give_the_figures_of_a_slow_model) {
    for (int history = 0; history < 60; history++) {
        struct model m = {.config = 0};
        struct process p = process_of(configurations[0]);
        for (int step = 0; step < 150; step++) {
            const size_t what = random_below(20);
            if (what < 5) model_set(&p, &m);
            if (what < 15) model_compare(&p, &m);
            if (what == 16) doorman_permits_update(p.permits, p.now);
            if (what == 17) {
                m.config = random_below(CONFIGS);
                reconfigure(&p, configurations[m.config]);
                /* without the limit its counters are gone */
                if (m.config == 2) memset(m.used, 0, sizeof m.used);
            }
            if (what == 18) model_compare_lists(&p, &m);
            p.now += random_below(2) ? 0 : (doorman_time)random_below(7200) * SECOND;
        }
        process_end(&p);
    }
}
