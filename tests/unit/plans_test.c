/* Plan rows: which key has which plan of the configuration, for some time (E2). */
#include "unit.h"

#include "permits_at_noon.h"

/* ---- limits, and how they are used ----------------------------------------------------------- */

#define QUOTA(more)                                                                                \
    "{\"name\": \"quota\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"month\"" more \
    "}"
#define PLANS ", \"plans\": {\"free\": {\"limit\": 10}, \"pro\": {\"limit\": 1000}}"
#define BURST                                                                                      \
    "{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 5000, "          \
    "\"plans\": {\"max\": {\"size\": 9000}, \"pro\": {\"size\": 7000}}}"
#define JOBS                                                                                       \
    "{\"name\": \"jobs\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 9, "                 \
    "\"max_wait\": 600, \"time_to_live\": 60, \"on_restart\": \"full\", "                          \
    "\"plans\": {\"pro\": {\"limit\": 3, \"time_to_live\": 3600}}}"

static double quota_of(struct process *p, const char *resource, const char *key) {
    return look(p, resource, key, "quota").most;
}

static doorman_status set_for(struct process *p, const char *key, const char *plan,
                              doorman_time seconds, doorman_error *error) {
    const doorman_plan_row row = {.identifier_glob = "api/*",
                                  .key = key,
                                  .plan = plan,
                                  .id = ++p->ids,
                                  .ends_at = seconds ? noon + p->now + seconds * SECOND : 0};
    return doorman_permits_set_plan(p->permits, &row, error, p->now);
}

/* Gives a key a plan for some seconds; 0: for ever. */
static void give(struct process *p, const char *key, const char *plan, doorman_time seconds) {
    doorman_error error = {0};
    if (set_for(p, key, plan, seconds, &error) != DOORMAN_OK) fail_msg("%s", error.text);
}

static const doorman_plan_row acme = {.identifier_glob = "api/*", .key = "acme"};

/* ---- what a plan gives ----------------------------------------------------------------------- */

TEST(a_plan_concerns_all_limits_of_one_template_that_have_it) {
    struct process p = process_of(QUOTA(PLANS) ", " BURST);
    give(&p, "acme", "pro", 0);
    assert_exact(quota_of(&p, "api/a", "acme"), 1000);
    assert_exact(quota_of(&p, "api/b", "acme"), 1000);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 7000);
    assert_string_equal(look(&p, "api/a", "acme", "burst").plan, "pro");
    assert_exact(quota_of(&p, "maps/a", "acme"), 100);
    assert_exact(quota_of(&p, "api/a", "bob"), 100);
    assert_null(look(&p, "api/a", "bob", "quota").plan);
    give(&p, "acme", "free", 0); /* only one limit has it */
    assert_exact(quota_of(&p, "api/a", "acme"), 10);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 5000);
    assert_null(look(&p, "api/a", "acme", "burst").plan);
    assert_int_equal(info_of(&p).plan_count, 1);
    assert_int_equal(info_of(&p).override_count, 0);
    process_end(&p);
}

/* P15 */
TEST(a_counter_keeps_its_use_when_the_plan_of_its_key_changes) {
    struct process p = process_of(QUOTA(PLANS));
    assert_exact(take(&p, "api/a", "acme", 1e6), 100);
    give(&p, "acme", "pro", 60);
    assert_exact(take(&p, "api/a", "acme", 1e6), 900);
    p.now = 60 * SECOND - 1;
    assert_exact(quota_of(&p, "api/a", "acme"), 1000);
    p.now = 60 * SECOND;
    assert_exact(quota_of(&p, "api/a", "acme"), 100);
    assert_exact(take(&p, "api/a", "acme", 1), 0);
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(info_of(&p).plan_count, 0);
    process_end(&p);
}

TEST(a_plan_begins_and_ends_at_its_times) {
    struct process p = process_of(QUOTA(PLANS));
    const doorman_plan_row row = {.identifier_glob = "api/*",
                                  .key = "acme",
                                  .plan = "pro",
                                  .id = 1,
                                  .starts_at = noon + 10 * SECOND,
                                  .ends_at = noon + 20 * SECOND};
    doorman_plan_info info;
    assert_int_equal(doorman_permits_set_plan(p.permits, &row, NULL, p.now), DOORMAN_OK);
    assert_int_equal(doorman_permits_due(p.permits), 10 * SECOND);
    assert_exact(quota_of(&p, "api/a", "acme"), 100);
    assert_true(doorman_permits_find_plan(p.permits, &acme, &info));
    assert_false(info.in_force || info.idle);
    p.now = 10 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_exact(quota_of(&p, "api/a", "acme"), 1000);
    assert_true(doorman_permits_find_plan(p.permits, &acme, &info));
    assert_true(info.in_force);
    p.now = 20 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_false(doorman_permits_find_plan(p.permits, &acme, &info));
    assert_exact(quota_of(&p, "api/a", "acme"), 100);
    process_end(&p);
}

TEST(overrides_go_before_a_plan_and_a_plan_before_those_of_the_configuration) {
    struct process p =
        process_of(QUOTA(PLANS ", \"overrides\": [{\"keys\": [\"*\"], \"limit\": 77}]"));
    assert_exact(quota_of(&p, "api/a", "acme"), 77);
    give(&p, "acme", "pro", 0);
    assert_exact(quota_of(&p, "api/a", "acme"), 1000);
    doorman_override_row row = {.identifier_glob = "api/*",
                                .limit = "quota",
                                .key = "acme",
                                .id = 1,
                                .figures = {.limit = 5, .has_limit = true}};
    assert_int_equal(doorman_permits_set_override(p.permits, &row, NULL, p.now), DOORMAN_OK);
    assert_exact(quota_of(&p, "api/a", "acme"), 5);
    assert_string_equal(look(&p, "api/a", "acme", "quota").plan, "pro"); /* a row hides the plan */
    assert_int_equal(doorman_permits_end_override(p.permits, &row, NULL, p.now), DOORMAN_OK);
    doorman_override_row adds = {
        .resource_id = "api/a", .limit = "quota", .key = "acme", .id = 2, .add = 50};
    assert_int_equal(doorman_permits_set_override(p.permits, &adds, NULL, p.now), DOORMAN_OK);
    assert_exact(quota_of(&p, "api/a", "acme"), 1050);
    assert_int_equal(doorman_permits_end_plan(p.permits, &acme, NULL, p.now), DOORMAN_OK);
    assert_exact(quota_of(&p, "api/a", "acme"), 127);
    process_end(&p);
}

TEST(what_a_plan_does_not_give_is_that_of_the_limit) {
    struct process p =
        process_of("{\"name\": \"quota\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 3, \"size\": 100, "
                   "\"plans\": {\"pro\": {\"size\": 300}}}");
    give(&p, "acme", "pro", 0);
    assert_exact(take(&p, "api/a", "acme", 1e6), 300);
    p.now = 10 * SECOND;
    assert_exact(look(&p, "api/a", "acme", "quota").remaining, 30);
    process_end(&p);
}

/* E1 */
TEST(a_row_that_adds_ends_with_the_window_that_the_plan_gives) {
    struct process p = process_of(QUOTA(", \"plans\": {\"pro\": {\"window\": \"day\"}}"));
    const doorman_override_row adds = {
        .resource_id = "api/a", .limit = "quota", .key = "acme", .id = 1, .add = 50};
    doorman_override_info info;
    give(&p, "acme", "pro", 0);
    assert_int_equal(doorman_permits_set_override(p.permits, &adds, NULL, p.now), DOORMAN_OK);
    assert_true(doorman_permits_find_override(p.permits, &adds, &info));
    assert_int_equal(info.row.ends_at, noon + DAY / 2);
    process_end(&p);
}

/* D3: a limit has rows in a store if the counter of a key with a plan needs them. */
TEST(a_plan_with_a_long_window_makes_its_limit_durable) {
    static const char short_window[] =
        "{\"name\": \"quota\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 5, "
        "\"plans\": {\"a\": {\"window\": %s}}}";
    static const char *const windows[] = {"6", "3600"};
    for (size_t i = 0; i < COUNT(windows); i++) {
        char text[256];
        doorman_config_options options;
        snprintf(text, sizeof text, short_window, windows[i]);
        doorman_config *config = limits_of(text);
        doorman_config_read(config, &options);
        assert_true(options.templates[0].limits[0].durable == (i == 1));
        doorman_config_destroy(config);
    }
}

/* ---- CONCURRENCY ----------------------------------------------------------------------------- */

/* Asks for one unit. Returns whether the permit is granted; otherwise it waits. */
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

TEST(permits_that_wait_are_served_by_the_next_update_which_is_due_at_once) {
    struct process p = process_of(JOBS);
    doorman_permit permit;
    uint64_t ticket;
    size_t served = 0;
    assert_true(hold(&p, 1));
    for (uint64_t i = 2; i < 6; i++) assert_false(hold(&p, i));
    give(&p, "acme", "pro", 0);
    assert_true(doorman_permits_due(p.permits) <= p.now);
    doorman_permits_update(p.permits, p.now);
    while (doorman_permits_next_decision(p.permits, &ticket, &permit)) served += permit.granted;
    assert_int_equal(served, 2);
    assert_true(doorman_permits_due(p.permits) > p.now);
    process_end(&p);
}

/* P15: the plan says how long a hold lasts, also after a change of the configuration. */
TEST(a_hold_lasts_as_its_plan_says_after_a_change_of_the_configuration) {
    struct process p = process_of(JOBS);
    doorman_permits_hold held;
    give(&p, "acme", "pro", 0);
    assert_true(hold(&p, 1));
    for (int i = 0; i < 2; i++) {
        doorman_cursor cursor = {0};
        assert_true(doorman_permits_next_hold(p.permits, &cursor, &held));
        const doorman_hold_request renewed = {.id = held.id, .client_id = "worker"};
        doorman_hold result;
        assert_int_equal(doorman_permits_renew(p.permits, &renewed, &result, NULL, p.now),
                         DOORMAN_OK);
        cursor = (doorman_cursor){0};
        assert_true(doorman_permits_next_hold(p.permits, &cursor, &held));
        /* with the drift of clocks */
        assert_true(held.ends_at - p.now >= 3600 * SECOND && held.ends_at - p.now < 4000 * SECOND);
        reconfigure(&p, JOBS ", " QUOTA(PLANS));
        p.now += 1000 * SECOND;
    }
    process_end(&p);
}

/* ---- rows and configurations ----------------------------------------------------------------- */

TEST(a_row_whose_plan_is_gone_is_idle_and_acts_again_when_it_is_back) {
    struct process p = process_of(QUOTA(PLANS));
    doorman_plan_info info;
    give(&p, "acme", "pro", 0);
    reconfigure(&p, QUOTA(", \"plans\": {\"free\": {\"limit\": 10}}"));
    assert_exact(quota_of(&p, "api/a", "acme"), 100);
    assert_true(doorman_permits_find_plan(p.permits, &acme, &info));
    assert_true(info.idle && !info.in_force);
    assert_int_equal(info_of(&p).plan_idle_count, 1);
    reconfigure(&p, QUOTA(PLANS));
    assert_exact(quota_of(&p, "api/a", "acme"), 1000);
    assert_int_equal(info_of(&p).plan_idle_count, 0);
    process_end(&p);
}

TEST(a_row_that_a_store_has_kept_is_restored_also_if_it_is_idle) {
    struct process p = process_of(QUOTA(PLANS));
    const doorman_plan_row kept = {.identifier_glob = "api/*", .key = "a", .plan = "gold", .id = 7};
    const doorman_plan_row over = {.identifier_glob = "api/*",
                                   .key = "b",
                                   .plan = "pro",
                                   .id = 8,
                                   .starts_at = noon - 9,
                                   .ends_at = noon};
    assert_int_equal(doorman_permits_restore_plan(p.permits, &kept, NULL, p.now), DOORMAN_OK);
    assert_int_equal(doorman_permits_restore_plan(p.permits, &over, NULL, p.now), DOORMAN_OK);
    assert_int_equal(info_of(&p).plan_count, 1);
    assert_int_equal(info_of(&p).plan_idle_count, 1);
    process_end(&p);
}

TEST(wrong_rows_are_refused_with_the_field) {
    static const struct {
        doorman_plan_row row;
        doorman_status status;
        const char *error;
    } cases[] = {
        {{.key = "a", .plan = "pro", .id = 1}, DOORMAN_INVALID_ARGUMENT, "glob: must be"},
        {{.identifier_glob = "api/*", .key = "\xff", .plan = "pro", .id = 1},
         DOORMAN_INVALID_ARGUMENT,
         "key: must be"},
        {{.identifier_glob = "api/*", .key = "a", .id = 1},
         DOORMAN_INVALID_ARGUMENT,
         "plan: must be 1 to 64 bytes"},
        {{.identifier_glob = "api/*", .key = "a", .plan = "pro"},
         DOORMAN_INVALID_ARGUMENT,
         "id: must not be 0"},
        {{.identifier_glob = "api/*", .key = "a", .plan = "pro", .id = 1, .ends_at = 5},
         DOORMAN_INVALID_ARGUMENT,
         "ends_at: has passed"},
        {{.identifier_glob = "api/*", .key = "a", .plan = "pro", .id = 1, .starts_at = -1},
         DOORMAN_INVALID_ARGUMENT,
         "starts_at: must be a time"},
        {{.identifier_glob = "api/x", .key = "a", .plan = "pro", .id = 1},
         DOORMAN_NOT_FOUND,
         "glob: no template with limits has this glob"},
        {{.identifier_glob = "api/*", .key = "a", .plan = "gold", .id = 1},
         DOORMAN_NOT_FOUND,
         "plan: no limit of the template \"api/*\" has such a plan"},
    };
    struct process p = process_of(QUOTA(PLANS));
    for (size_t i = 0; i < COUNT(cases); i++) {
        doorman_plan_row row = cases[i].row;
        doorman_error error = {0};
        row.wire_names = true;
        assert_int_equal(doorman_permits_check_plan(p.permits, &row, NULL, p.now), cases[i].status);
        assert_int_equal(doorman_permits_set_plan(p.permits, &row, &error, p.now), cases[i].status);
        if (!strstr(error.text, cases[i].error)) fail_msg("%zu: %s", i, error.text);
    }
    assert_int_equal(info_of(&p).plan_count, 0);
    process_end(&p);
}

TEST(rows_beyond_the_bound_are_refused_and_overrides_have_their_own) {
    struct process p = process_of(QUOTA(PLANS));
    doorman_permits_destroy(p.permits);
    const doorman_permits_options options = {.config = p.config, .seed = {1, 2}, .plan_max = 1};
    doorman_error error = {0};
    assert_int_equal(doorman_permits_create(&p.permits, &options, NULL, 0), DOORMAN_OK);
    doorman_permits_set_epoch(p.permits, noon, 0);
    give(&p, "a", "pro", 0);
    assert_int_equal(set_for(&p, "b", "pro", 0, &error), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "there are 1 plan rows already");
    give(&p, "a", "free", 0);
    assert_exact(quota_of(&p, "api/a", "a"), 10);
    process_end(&p);
}

/* ---- configurations -------------------------------------------------------------------------- */

TEST(wrong_plans_of_a_configuration_are_refused_with_their_path) {
    static const struct {
        const char *limits, *error;
    } cases[] = {
        {QUOTA(", \"plans\": []"), "limits[0].plans: must be an object"},
        {QUOTA(", \"plans\": {\"a\": {\"limit\": 1}, \"a\": {}}"), "plans.a: appears twice"},
        {QUOTA(", \"plans\": {\"a\": {\"limit\": -1}}"), "plans.a.limit: must be a finite number"},
        {QUOTA(", \"plans\": {\"a\": {\"rate\": 1}}"), "plans.a.rate: only a TOKEN_BUCKET"},
        {QUOTA(", \"plans\": {\"a\": {\"x\": 1}}"), "plans.a.x: is not known"},
        {QUOTA(", \"plans\": {\"\": {\"limit\": 1}}"), "the name of a plan must be 1 to 64 bytes"},
        {QUOTA(", \"plans\": {\"a\": {\"limit\": \"leased\"}}"), "plans.a.limit: must be a number"},
        {QUOTA(", \"per\": \"resource\", \"plans\": {\"a\": {}}"), "plans: needs a limit per key"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[1024];
        doorman_config *config = NULL;
        doorman_error error = {0};
        snprintf(text, sizeof text,
                 "{\"resources\": [{\"identifier_glob\": \"a\", \"limits\": [%s]}]}",
                 cases[i].limits);
        doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
        if (status == DOORMAN_OK || !strstr(error.text, cases[i].error)) {
            fail_msg("%zu: %s", i, error.text);
        }
    }
}

TEST(a_configuration_with_plans_is_written_and_read_back) {
    doorman_config *config = limits_of(QUOTA(PLANS) ", " BURST);
    doorman_config_options options;
    doorman_buffer one = {0}, other = {0};
    doorman_config_read(config, &options);
    assert_int_equal(doorman_json_write_config(&options, &one), DOORMAN_OK);
    assert_non_null(strstr(one.text, "\"plans\":{\"free\":{\"limit\":10,\"window\":\"month\"},"
                                     "\"pro\":{\"limit\":1000,\"window\":\"month\"}}"));
    doorman_config_destroy(config);
    config = NULL;
    assert_int_equal(doorman_json_config(&config, one.text, one.bytes, NULL), DOORMAN_OK);
    doorman_config_read(config, &options);
    assert_int_equal(doorman_json_write_config(&options, &other), DOORMAN_OK);
    assert_string_equal(one.text, other.text);
    doorman_buffer_uninit(&one);
    doorman_buffer_uninit(&other);
    doorman_config_destroy(config);
}

TEST(a_plan_with_a_name_that_is_too_long_is_refused) {
    char name[DOORMAN_PLAN_BYTES_MAX + 2];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    doorman_plan plans[DOORMAN_PLANS_MAX + 1] = {{.name = name}};
    doorman_permit_limit limit = {.name = "quota",
                                  .kind = DOORMAN_FIXED_WINDOW,
                                  .figures = {.limit = 5, .window = DAY},
                                  .plans = plans,
                                  .plan_count = 1};
    const doorman_template template_ = {.identifier_glob = "a",
                                        .without_capacity = true,
                                        .has_limits = true,
                                        .limits = &limit,
                                        .limit_count = 1};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "limits[0].plans[0].name: must be 1 to 64 bytes"));
    name[DOORMAN_PLAN_BYTES_MAX] = 0;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
    doorman_config_destroy(config);
    limit.plan_count = DOORMAN_PLANS_MAX + 1;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "plans: must be at most 16"));
}

/* ---- JSON of rows ---------------------------------------------------------------------------- */

TEST(rows_are_read_alone_and_in_bulk_and_written) {
    static const char one[] = "{\"glob\": \"api/*\", \"key\": \"a\", \"plan\": \"pro\", "
                              "\"expires_in\": 60, \"reason\": \"x\"}";
    static const char two[] =
        "{\"plans\": [{\"glob\": \"g\", \"key\": \"\", \"plan\": \"p\"}, "
        "{\"glob\": \"h\", \"key\": \"k\", \"plan\": \"q\", \"ends_at\": 9}], "
        "\"reason\": \"x\"}";
    doorman_plans_message message = {0};
    doorman_buffer text = {0};
    assert_int_equal(doorman_json_read_plans(&message, one, strlen(one), NULL), DOORMAN_OK);
    assert_false(message.is_bulk);
    assert_int_equal(message.plan_count, 1);
    assert_int_equal(message.plans[0].expires_in, 60 * SECOND);
    assert_string_equal(message.reason, "x");
    assert_int_equal(doorman_json_read_plans(&message, two, strlen(two), NULL), DOORMAN_OK);
    assert_true(message.is_bulk);
    assert_int_equal(message.plan_count, 2);
    assert_string_equal(message.plans[0].row.key, "");
    doorman_plan_row row = message.plans[1].row;
    row.id = 3;
    assert_int_equal(doorman_json_write_plan(&row, "why", &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"id\":3,\"glob\":\"h\",\"key\":\"k\",\"plan\":\"q\","
                                   "\"ends_at\":9,\"reason\":\"why\"}");
    doorman_buffer_uninit(&text);
    doorman_plans_message_uninit(&message);
}

TEST(all_errors_of_a_list_are_named) {
    static const char text[] = "{\"plans\": [{\"glob\": 5, \"key\": \"a\", \"plan\": \"p\"}, "
                               "{\"glob\": \"h\", \"key\": \"k\"}], \"reason\": \"\"}";
    doorman_plans_message message = {0};
    doorman_config_problem problems[2];
    doorman_config_problems list = {.items = problems, .room = COUNT(problems)};
    assert_int_equal(doorman_json_read_plans(&message, text, strlen(text), &list),
                     DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(list.count, 3);
    assert_string_equal(problems[0].error.text, "plans[0].glob: must be a string");
    assert_string_equal(problems[1].error.text, "plans[1].plan: is missing");
    assert_null(message.plans);
    doorman_plans_message_uninit(&message);
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(without_memory_a_row_is_as_before) {
    static const char text[] = "{\"plans\": [{\"glob\": \"g\", \"key\": \"\", \"plan\": \"p\"}], "
                               "\"reason\": \"x\"}";
    struct process p = process_of(QUOTA(PLANS));
    doorman_status status;
    size_t n = 0;
    give(&p, "acme", "free", 0);
    do {
        memory_fails_at(++n);
        status = set_for(&p, "acme", "pro", 0, NULL);
        const double most = status == DOORMAN_OK ? 1000 : 10;
        if (status == DOORMAN_OK) assert_true(memory_works());
        memory_works();
        assert_exact(quota_of(&p, "api/a", "acme"), most);
    } while (status == DOORMAN_OUT_OF_MEMORY);
    assert_true(n > 1);
    n = 0;
    do {
        memory_fails_at(++n);
        status = set_for(&p, "new", "max", 0, NULL);
        assert_int_equal(status, DOORMAN_NOT_FOUND);
    } while (!memory_works());
    n = 0;
    do {
        doorman_plans_message message = {0};
        memory_fails_at(++n);
        status = doorman_json_read_plans(&message, text, strlen(text), NULL);
        assert_int_equal(message.plan_count, status == DOORMAN_OK);
        doorman_plans_message_uninit(&message);
    } while (!memory_works());
    assert_true(n > 1 && status == DOORMAN_OK);
    process_end(&p);
}

TEST(rows_of_few_plans_need_at_most_a_hundred_bytes_beside_their_keys) {
    enum { ROWS = 20000 };
    struct process p = process_of(QUOTA(PLANS));
    const size_t before = info_of(&p).bytes;
    size_t keys_bytes = 0;
    for (int i = 0; i < ROWS; i++) {
        char key[16];
        keys_bytes += (size_t)snprintf(key, sizeof key, "key-%d", i);
        give(&p, key, i % 2 ? "pro" : "free", 0);
    }
    assert_true(info_of(&p).bytes - before - keys_bytes <= (size_t)100 * ROWS);
    for (int i = 0; i < ROWS; i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        const doorman_plan_row row = {.identifier_glob = "api/*", .key = key};
        assert_int_equal(doorman_permits_end_plan(p.permits, &row, NULL, p.now), DOORMAN_OK);
    }
    assert_int_equal(info_of(&p).plan_count, 0);
    process_end(&p);
}

/* ---- a slow model ---------------------------------------------------------------------------- */

enum { TEMPLATES = 2, KEYS = 3, NAMES = 3, CONFIGS = 5, LIMITS = 2 };

static const char *const globs[] = {"api/*", "maps/*"};
static const char *const resources[] = {"api/a", "maps/a"};
static const char *const limit_names[] = {"m", "n"};
static const char *const keys[] = {"", "acme", "bob"};
static const char *const names[] = {"free", "pro", "max"};

/* What a limit gives in a configuration: to keys without a plan, to "acme" by an override of the
 * configuration (0: it has none), and to keys with each plan (0: the limit does not have it). */
struct model_limit {
    double usual, acme, plans[NAMES];
};

/* The plan rows, and the override rows of the limit "m", by template and key. */
struct model {
    struct model_limit limits[LIMITS];
    struct model_row {
        bool exists;
        size_t plan;
        double limit;
        doorman_time starts_at, ends_at;
    } plans[TEMPLATES][KEYS], overrides[TEMPLATES][KEYS];
    double used[TEMPLATES][KEYS][LIMITS];
};

/* Makes a random configuration. Returns its limits as JSON. */
static const char *model_configure(struct model *m) {
    static char text[2048];
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < LIMITS; i++) {
        struct model_limit *limit = &m->limits[i];
        *limit = (struct model_limit){.usual = i == 0 ? 50 : 5000};
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%s{\"name\": \"%s\", \"kind\": \"FIXED_WINDOW\", \"limit\": %g, "
                                 "\"window\": \"month\"",
                                 i ? ", " : "", limit_names[i], limit->usual);
        if (random_below(2)) {
            limit->acme = (double)random_below(300) + 1;
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     ", \"overrides\": [{\"keys\": [\"ac*\"], \"limit\": %g}]",
                                     limit->acme);
        }
        const char *separator = ", \"plans\": {";
        for (size_t j = 0; j < NAMES; j++) {
            if (random_below(3) == 0) continue;
            limit->plans[j] = (double)random_below(300) + 1;
            used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": {\"limit\": %g}",
                                     separator, names[j], limit->plans[j]);
            separator = ", ";
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s}", separator[2] ? "" : "}");
    }
    return text;
}

static bool model_in_force(const struct model_row *row, doorman_time epoch) {
    return row->exists && row->starts_at <= epoch && epoch < row->ends_at;
}

static double model_most(const struct model *m, size_t place, size_t key, size_t limit,
                         doorman_time epoch) {
    const struct model_row *plan = &m->plans[place][key];
    const struct model_limit *own = &m->limits[limit];
    if (limit == 0 && model_in_force(&m->overrides[place][key], epoch)) {
        return m->overrides[place][key].limit;
    }
    if (model_in_force(plan, epoch) && own->plans[plan->plan] > 0) return own->plans[plan->plan];
    return key == 1 && own->acme > 0 ? own->acme : own->usual;
}

static bool model_has_plan(const struct model *m, size_t plan) {
    return m->limits[0].plans[plan] > 0 || m->limits[1].plans[plan] > 0;
}

/* Sets or ends a plan row. */
static void model_set(struct process *p, struct model *m) {
    const size_t place = random_below(TEMPLATES), key = random_below(KEYS);
    struct model_row *row = &m->plans[place][key];
    const doorman_time epoch = noon + p->now;
    const struct model_row next = {
        .exists = true,
        .plan = random_below(NAMES),
        .starts_at = epoch + (random_below(2) ? 0 : (doorman_time)random_below(9000) * SECOND),
        .ends_at = epoch + (doorman_time)(9000 + random_below(90000)) * SECOND};
    const doorman_plan_row given = {.identifier_glob = globs[place],
                                    .key = keys[key],
                                    .plan = names[next.plan],
                                    .id = ++p->ids,
                                    .starts_at = next.starts_at,
                                    .ends_at = next.ends_at};
    if (random_below(4) == 0) {
        const doorman_status status = doorman_permits_end_plan(p->permits, &given, NULL, p->now);
        if (row->exists && epoch < row->ends_at) assert_int_equal(status, DOORMAN_OK);
        row->exists = false;
        return;
    }
    const bool restores = random_below(4) == 0, known = model_has_plan(m, next.plan);
    const doorman_status status =
        restores ? doorman_permits_restore_plan(p->permits, &given, NULL, p->now)
                 : doorman_permits_set_plan(p->permits, &given, NULL, p->now);
    assert_int_equal(status, known || restores ? DOORMAN_OK : DOORMAN_NOT_FOUND);
    if (status == DOORMAN_OK) *row = next;
}

static void model_override(struct process *p, struct model *m) {
    const size_t place = random_below(TEMPLATES), key = random_below(KEYS);
    const doorman_time epoch = noon + p->now;
    struct model_row *row = &m->overrides[place][key];
    *row = (struct model_row){.exists = true,
                              .limit = (double)random_below(300),
                              .starts_at = epoch,
                              .ends_at = epoch + (doorman_time)(1 + random_below(9000)) * SECOND};
    const doorman_override_row given = {.identifier_glob = globs[place],
                                        .limit = "m",
                                        .key = keys[key],
                                        .id = ++p->ids,
                                        .figures = {.limit = row->limit, .has_limit = true},
                                        .ends_at = row->ends_at};
    assert_int_equal(doorman_permits_set_override(p->permits, &given, NULL, p->now), DOORMAN_OK);
}

/* Takes some units, and compares all keys with the model. */
static void model_compare(struct process *p, struct model *m) {
    const size_t place = random_below(TEMPLATES), key = random_below(KEYS);
    const doorman_time epoch = noon + p->now;
    double left = (double)random_below(200);
    const double cost = left;
    for (size_t i = 0; i < LIMITS; i++) {
        const double most = model_most(m, place, key, i, epoch), used = m->used[place][key][i];
        const double free_units = most > used ? most - used : 0;
        if (free_units < left) left = free_units;
    }
    assert_exact(take(p, resources[place], keys[key], cost), left);
    for (size_t i = 0; i < LIMITS; i++) m->used[place][key][i] += left;
    for (size_t i = 0; i < TEMPLATES * KEYS * LIMITS; i++) {
        const size_t in = i / (KEYS * LIMITS), of = i / LIMITS % KEYS, limit = i % LIMITS;
        const doorman_permit_detail state = look(p, resources[in], keys[of], limit_names[limit]);
        const struct model_row *plan = &m->plans[in][of];
        const bool has = model_in_force(plan, epoch) && m->limits[limit].plans[plan->plan] > 0;
        assert_exact(state.most, model_most(m, in, of, limit, epoch));
        assert_true(has ? state.plan && !strcmp(state.plan, names[plan->plan]) : !state.plan);
    }
}

/* Compares the list with the model, except for rows that are over and not freed yet. */
static void model_compare_list(const struct process *p, const struct model *m) {
    const doorman_time epoch = noon + p->now;
    doorman_override_cursor cursor = {0}, last = {0};
    doorman_plan_info info;
    size_t expected = 0, listed = 0;
    for (size_t i = 0; i < TEMPLATES * KEYS; i++) {
        const struct model_row *row = &m->plans[i / KEYS][i % KEYS];
        expected += row->exists && epoch < row->ends_at;
    }
    for (; doorman_permits_next_plan(p->permits, &cursor, &info); last = cursor) {
        assert_true(cursor.next_at > last.next_at ||
                    (cursor.next_at == last.next_at && cursor.id > last.id));
        if (info.row.ends_at <= epoch) continue;
        size_t plan = 0;
        while (strcmp(names[plan], info.row.plan) != 0) plan++;
        assert_true(info.idle == !model_has_plan(m, plan));
        listed++;
    }
    assert_int_equal(listed, expected);
}

TEST(random_histories_give_the_figures_of_a_slow_model) {
    for (int history = 0; history < 80; history++) {
        struct model m = {.used = {{{0}}}};
        struct process p = process_of(model_configure(&m));
        for (int step = 0; step < 150; step++) {
            const size_t what = random_below(20);
            if (what < 5) model_set(&p, &m);
            if (what == 5) model_override(&p, &m);
            if (what < 15) model_compare(&p, &m);
            if (what == 16) doorman_permits_update(p.permits, p.now);
            if (what == 17) reconfigure(&p, model_configure(&m));
            if (what == 18) model_compare_list(&p, &m);
            p.now += random_below(2) ? 0 : (doorman_time)random_below(7200) * SECOND;
        }
        process_end(&p);
    }
}
