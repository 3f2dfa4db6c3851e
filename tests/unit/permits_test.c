/* Permits: the configuration of limits, the arithmetic of each kind, and decisions. Random
 * histories compare the code with slow, simple models. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- configurations ------------------------------------------------------------------------- */

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) print_error("%s\n", error.text);
    assert_int_equal(status, DOORMAN_OK);
    return config;
}

/* Returns a configuration whose template `*` has the limits. */
static doorman_config *limits_of(const char *limits) {
    char text[4096];
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    return config_of(text);
}

/* This configuration has each field of a limit. */
static const char example[] =
    "{\"resources\": [\n"
    "  {\"identifier_glob\": \"login\", \"refused_body\":\"{\\\"a\\\": 1}\",\"limits\": [\n"
    "    {\"name\": \"per-user\", \"per\": \"key\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.2,\n"
    "     \"size\": 5, \"ban\": {\"refusals\": 20, \"window\": 60, \"duration\": 3600}},\n"
    "    {\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": "
    "1000000,\n"
    "     \"window\": \"day\", \"warn_at\": 0.8, \"on_restart\": \"full\",\n"
    "     \"on_unread\": \"refuse\"}]},\n"
    "  {\"identifier_glob\": \"api-*\", \"capacity\": 5000, \"limits\": [\n"
    "    {\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 10, \"size\": 50, "
    "\"max_debt\": 2,\n"
    "     \"max_cost\": 60, \"max_keys\": 1000, \"overflow\": \"refuse\", \"refunds\": true,\n"
    "     \"unsettled\": \"refund\",\n"
    "     \"durable\": false, \"set_max\": 3,\n"
    "     \"overrides\": [{\"keys\": [\"acme\", \"globex-*\"], \"rate\": 100, \"size\": 500}]},\n"
    "    {\"name\": \"trials\", \"per\": \"template\", \"keys\": [\"trial-*\", \"!trial-vip\"],\n"
    "     \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 60, \"on_restart\": "
    "\"empty\",\n"
    "     \"shadow\": true}]},\n"
    "  {\"identifier_glob\": \"export\", \"limits\": [\n"
    "    {\"name\": \"bulk\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 5000, \"window\": 300,\n"
    "     \"active\": 300, \"cooldown\": 86100, \"skippable\": true}]}]},\n"
    "  {\"identifier_glob\": \"open\", \"limits\": []},\n"
    "  {\"identifier_glob\": \"jobs\", \"limits\": [\n"
    "    {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 4, \"time_to_live\": 30,\n"
    "     \"queue\": 9, \"max_wait\": 60}]},\n"
    "  {\"identifier_glob\": \"mail\", \"limits\": [\n"
    "    {\"name\": \"shared\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\",\n"
    "     \"rate\": \"leased\", \"lease_of\": \"api-mail\", \"priority\": 2, \"subclients\": 3},\n"
    "    {\"name\": \"pool\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 9,\n"
    "     \"size\": 9, \"fair\": true, \"fair_window\": 4, \"weight\": 2,\n"
    "     \"plans\": {\"gold\": {\"weight\": 3}}}]}],\n"
    " \"shadow\": [\"beta-*\"]}";

static void assert_example_has(const doorman__row *rows) {
    for (const doorman__row *row = rows; row->type; row++) {
        char key[64];
        snprintf(key, sizeof key, "\"%s\":", row->key ? row->key : "");
        if (row->key && !strstr(example, key)) fail_msg("%s is not in the example", key);
        if (row->below && row->key) assert_example_has(row->below);
    }
}

/* A new field is in the tests below only if the example has it. */
TEST(the_example_has_each_field_of_a_limit) {
    assert_example_has(doorman__limit_rows);
    assert_example_has(doorman__figure_rows);
}

TEST(limits_are_read_with_all_their_fields) {
    doorman_config *config = config_of(example);
    doorman_config_options read;
    doorman_config_read(config, &read);
    const doorman_template *all = read.templates;
    assert_int_equal(read.template_count, 6);
    assert_true(all[0].without_capacity && all[0].has_limits && all[0].limit_count == 2);
    assert_string_equal(all[0].refused_body, "{\"a\": 1}");
    assert_string_equal(all[1].refused_body, "");
    const doorman_permit_limit *user = &all[0].limits[0];
    assert_string_equal(user->name, "per-user");
    assert_exact(user->figures.rate, 0.2);
    assert_int_equal(user->ban.refusals, 20);
    assert_int_equal(user->ban.duration, 3600 * SECOND);
    assert_int_equal(user->max_keys, 1000000);
    assert_int_equal(all[0].limits[1].figures.calendar, DOORMAN_DAY);
    assert_true(all[0].limits[1].full_at_start && !all[1].limits[0].full_at_start);
    assert_false(all[1].without_capacity);
    const doorman_permit_limit *burst = &all[1].limits[0];
    assert_int_equal(burst->figures.max_wait, 2 * SECOND);
    assert_true(burst->refuse_new && burst->refunds && burst->has_max_cost);
    assert_true(burst->refund_unsettled);
    assert_exact(burst->overrides[0].figures.rate, 100);
    assert_int_equal(burst->overrides[0].figures.max_debt, 2 * SECOND);
    assert_string_equal(burst->overrides[0].keys[1], "globex-*");
    assert_true(all[1].limits[1].empty_at_start && all[1].limits[1].shadow);
    assert_int_equal(all[1].limits[1].per, DOORMAN_PER_TEMPLATE);
    assert_true(all[2].limits[0].figures.tiers[0].skippable);
    assert_true(burst->has_durable && !burst->durable);
    assert_true(!user->has_durable && user->durable && !user->refuse_unread);
    assert_true(all[0].limits[1].refuse_unread);
    assert_true(all[3].has_limits && all[3].limit_count == 0);
    assert_string_equal(read.shadow[0], "beta-*");
    doorman_config_destroy(config);
}

/* Checks that a text has all keys of the original. The test below compares two written texts. If
 * the writer forgot a field, both would lack it. */
static void assert_has_the_keys_of(const char *text, const char *original) {
    for (const char *at = original; (at = strchr(at, '"'));) {
        const size_t bytes = strcspn(++at, "\"") + 1; /* with the second quote */
        char key[64];
        if (at[bytes] == ':') {
            snprintf(key, sizeof key, "\"%.*s", (int)bytes, at);
            if (!strstr(text, key)) fail_msg("%s is not written", key);
        }
        at += bytes;
    }
}

TEST(a_written_configuration_is_read_back_the_same) {
    doorman_config *config = config_of(example);
    doorman_config_options read;
    doorman_buffer first = {NULL, 0, 0}, second = {NULL, 0, 0};
    doorman_config_read(config, &read);
    assert_int_equal(doorman_json_write_config(&read, &first), DOORMAN_OK);
    assert_has_the_keys_of(first.text, example);
    doorman_config *again = config_of(first.text);
    doorman_config_read(again, &read);
    assert_int_equal(doorman_json_write_config(&read, &second), DOORMAN_OK);
    assert_string_equal(first.text, second.text);
    doorman_config *copy = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_config_create(&copy, &read, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    doorman_config_destroy(copy);
    doorman_config_destroy(again);
    doorman_config_destroy(config);
    doorman_buffer_uninit(&first);
    doorman_buffer_uninit(&second);
}

#define TIER "{\"limit\": 1, \"window\": 1, \"active\": 1}"

/* Each row has a wrong limit, and its error without the position. */
static const struct {
    const char *limit, *error;
} wrong_limits[] = {
    {"1", "must be an object"},
    {"{\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1}", ".name: is missing"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_LOG\"}", ".kind: must be one of TOKEN_BUCKET, "},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\"}", ".limit: is missing"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 0}",
     ".time_to_live: must be more than 0 and at most 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 0.5}",
     ".queue: must be an integer from 0 to 1e+06"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"max_wait\": -1}",
     ".max_wait: must be from 0 to 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"ban\": {\"refusals\": 1, "
     "\"window\": 1, \"duration\": 1}}",
     ".ban: CONCURRENCY has none"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"on_restart\": \"empty\"}",
     ".on_restart: must be one of learn, full"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"queue\": 1}",
     ".queue: only CONCURRENCY has one"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1}", ".size: is missing"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"lease\", \"size\": 1}",
     ".rate: must be a number, or \"leased\""},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1e309, \"size\": 1}",
     ".rate: must be a finite number"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0, \"size\": 1}",
     ".rate: must be more than 0 and at most 1e15"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 0}",
     ".size: must be more than 0 where max_debt is 0"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 2e8}",
     ".size: must be worth at most 1e8 seconds of the rate"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"max_wait\": 2}",
     ".max_wait: must be at most max_debt, because no debt is longer"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": -1, \"window\": 1}",
     ".limit: must be a finite number from 0 to 1e15"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 0}",
     ".window: must be more than 0 and at most 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 3.2e13}",
     ".window: must be more than 0 and at most 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": \"year\"}",
     ".window: must be one of minute, hour, day, week, month"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1, \"window\": \"day\"}",
     ".window: only a FIXED_WINDOW follows the calendar"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1, \"window\": 1, \"rate\": 1}",
     ".rate: only a TOKEN_BUCKET has one"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": -1e309, \"window\": 1}",
     ".limit: must be a finite number"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": \"NaN\", \"window\": 1}",
     ".limit: must be a number"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1, \"window\": 1e309}",
     ".window: must be a finite number"},
    {"{\"name\": \"a\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1, \"window\": null}",
     ".window: must be a number"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\"}", ".tiers: is missing"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [" TIER ", " TIER ", " TIER ", " TIER
     ", " TIER ", " TIER ", " TIER ", " TIER ", " TIER "]}",
     ".tiers: must be a list of at most 8"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [" TIER ", {\"limit\": 1, \"active\": 1}]}",
     ".tiers[1].window: is missing"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": 1, \"active\": "
     "1},"
     "{\"limit\": 1, \"window\": 0, \"active\": 1}]}",
     ".tiers[1].window: must be more than 0 and at most 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"on_restart\": \"empty\"}",
     ".on_restart: must be full for TIERS"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"refunds\": true}",
     ".refunds: only a TOKEN_BUCKET and a FIXED_WINDOW can take units back"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"unsettled\": \"refund\"}",
     ".unsettled: TIERS, CONCURRENCY and leased limits give nothing back"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"unsettled\": "
     "\"lost\"}",
     ".unsettled: must be "},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"per\": \"resource\", \"ban\": "
     "{\"refusals\": 1, \"window\": 1, \"duration\": 1}}",
     ".ban: needs a limit per key"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"ban\": {\"refusals\": 0.5, "
     "\"window\": 1, "
     "\"duration\": 1}}",
     ".ban.refusals: must be an integer from 1 to 1e+09"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"keys\": []}",
     ".keys: must not be empty; without keys, all keys are concerned"},
    {"{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": -1, \"size\": 1}",
     ".rate: must be more than 0 and at most 1e15"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"keys\": [\"\"]}",
     ".keys[0]: must be 1 to 256 bytes of UTF-8 without control characters"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"keys\": [\"a\", 1]}",
     ".keys[1]: must be a string"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"max_keys\": 0}",
     ".max_keys: must be an integer from 1 to 1e+07"},
    {"{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"durable\": true}",
     ".durable: CONCURRENCY has no rows, because clients say what they hold"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"on_unread\": \"refuse\"}",
     ".on_unread: needs a durable limit"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"durable\": 1}",
     ".durable: must be a boolean"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"warn_at\": 2}",
     ".warn_at: must be from 0 to 1"},
    {"{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": [], \"colour\": 2}",
     ".colour: is not known"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"overrides\": "
     "[{\"keys\": [\"b\"], \"limit\": 2}, {\"keys\": [\"c\"], \"window\": -1}]}",
     ".overrides[1].window: must be more than 0 and at most 1e8 seconds"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"overrides\": "
     "[{\"limit\": 2}]}",
     ".overrides[0].keys: is missing"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"overrides\": 1}",
     ".overrides: must be a list"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"overrides\": "
     "[{\"keys\": []}]}",
     ".overrides[0].keys: must be a list of 1 to 10,000 globs"},
    {"{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"per\": "
     "\"resource\", "
     "\"overrides\": [{\"keys\": [\"b\"], \"limit\": 2}]}",
     ".overrides: needs a limit per key"},
};

TEST(a_wrong_limit_is_named_by_path_and_position) {
    for (size_t i = 0; i < COUNT(wrong_limits); i++) {
        char text[1024], path[512];
        doorman_error error = {0};
        doorman_config *config = NULL;
        snprintf(text, sizeof text,
                 "{\"resources\": [{\"identifier_glob\": \"x\",\n\"limits\": [%s]}]}",
                 wrong_limits[i].limit);
        doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
        assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
        snprintf(path, sizeof path, "resources[0].limits[0]%s%s",
                 wrong_limits[i].error[0] == '.' ? "" : ": ", wrong_limits[i].error);
        if (!strstr(error.text, path)) fail_msg("%s\nis not in\n%s", path, error.text);
        assert_true(strncmp(error.text, "line 2, column ", 15) == 0);
        doorman_config_problem problems[4];
        doorman_config_problems list = {.items = problems, .room = 4};
        (void)doorman_json_check_config(NULL, text, strlen(text), &list);
        if (list.count != 1) fail_msg("%zu errors: %s", list.count, problems[1].error.text);
    }
}

/* In a text, each error also has the line and column of the field. */
TEST(wrong_lists_of_limits_are_named_by_path_and_position) {
    static const char *const texts[] = {
        "[{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": []},\n"
        "{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": []}]",
        "{}", "[{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": NaN, \"window\": 1}]"};
    static const char *const errors[] = {
        "line 3, column 2: resources[0].limits[1].name: equals that of limits[0]",
        "line 2, column 1: resources[0].limits: must be a list", "line 2, column "};
    for (size_t i = 0; i < COUNT(texts); i++) {
        char text[512];
        doorman_config *config = NULL;
        doorman_error error = {0};
        snprintf(text, sizeof text,
                 "{\"resources\": [{\"identifier_glob\": \"x\",\n\"limits\": %s}]}", texts[i]);
        assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                         DOORMAN_INVALID_ARGUMENT);
        if (strncmp(error.text, errors[i], strlen(errors[i])) != 0) fail_msg("%s", error.text);
    }
    char text[4096] = "{\"resources\": [{\"identifier_glob\": \"x\",\n\"limits\": [";
    size_t used = strlen(text);
    for (int i = 0; i < 17; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%s{\"name\": \"%d\", \"kind\": \"TIERS\", \"tiers\": []}",
                                 i ? ", " : "", i);
    }
    snprintf(text + used, sizeof text - used, "]}]}");
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text,
                        "line 2, column 1: resources[0].limits: must be a list of at most 16");
}

TEST(a_template_has_at_most_16_limits_with_different_names) {
    doorman_permit_limit limits[17];
    char names[17][8];
    memset(limits, 0, sizeof limits);
    for (size_t i = 0; i < 17; i++) {
        snprintf(names[i], sizeof names[i], "%zu", i);
        limits[i].name = names[i];
        limits[i].kind = DOORMAN_TIERS;
    }
    doorman_template template_ = {.identifier_glob = "x",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = limits,
                                  .limit_count = 17};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    doorman_config *config = NULL;
    doorman_error error;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "templates[0].limits: must be a list of at most 16");
    template_.limit_count = 16;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_OK);
    doorman_config_destroy(config);
    limits[3].name = "1";
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "templates[0].limits[3].name: equals that of limits[1]");
    limits[3].name = "3";
    limits[3].kind = DOORMAN_FIXED_WINDOW;
    limits[3].figures = (doorman_figures){.limit = (double)NAN, .window = SECOND};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(
        error.text, "templates[0].limits[3].figures.limit: must be a finite number from 0 to 1e15");
    limits[3].figures.limit = 1;
    limits[3].empty_at_start = limits[3].full_at_start = true;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text,
                        "templates[0].limits[3].full_at_start: must be false with empty_at_start");
    template_.has_limits = false;
    template_.limits = NULL;
    template_.limit_count = 0;
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "templates[0].limits: a template needs capacity or limits");
}

/* A configuration in C is not read from JSON, so its checks must have the bounds of the reader. */
TEST(the_checks_of_c_have_each_bound_of_the_rows_of_a_limit) {
    size_t bounded = 0;
    for (const doorman__row *row = doorman__limit_rows; row->type; row++) {
        doorman_permit_limit limit = {
            .name = "a", .kind = DOORMAN_TOKEN_BUCKET, .per = DOORMAN_PER_RESOURCE, .leased = true};
        char *field = (char *)&limit + row->at;
        const uint32_t above = row->most + 1;
        if (row->has) memcpy((char *)&limit + row->has, &(bool){true}, sizeof(bool));
        if (row->most && row->type == DOORMAN__JSON_SIZE) {
            memcpy(field, &(size_t){above}, sizeof(size_t));
        } else if (row->most && row->type == DOORMAN__JSON_UINT32) {
            memcpy(field, &above, sizeof above);
        } else if (row->most && row->type == DOORMAN__JSON_NUMBER) {
            memcpy(field, &(double){above}, sizeof(double));
        } else if (row->type == DOORMAN__JSON_AMOUNT || row->type == DOORMAN__JSON_FRACTION) {
            memcpy(field, &(double){2 * doorman__numbers[row->type].most}, sizeof(double));
        } else {
            continue; /* it has no bound, or is no number */
        }
        const doorman_template template_ = {.identifier_glob = "x",
                                            .without_capacity = true,
                                            .has_limits = true,
                                            .limits = &limit,
                                            .limit_count = 1};
        const doorman_config_options options = {.templates = &template_, .template_count = 1};
        doorman_config *config = NULL;
        doorman_error error;
        char expected[64];
        snprintf(expected, sizeof expected, "templates[0].limits[0].%s: must be ", row->key);
        const doorman_status status = doorman_config_create(&config, &options, &error);
        if (status == DOORMAN_OK) fail_msg("no check of C has the bound of %s", row->key);
        assert_memory_equal(error.text, expected, strlen(expected));
        bounded++;
    }
    assert_true(bounded >= 5);
}

/* Checks the warnings about a text, and that each one has a position. */
static void expect_warnings(const char *text, const char *const *warnings, size_t expected) {
    doorman_config_problem problems[8];
    doorman_config_problems list = {.items = problems, .room = COUNT(problems)};
    assert_int_equal(doorman_json_check_config(NULL, text, strlen(text), &list), DOORMAN_OK);
    for (size_t i = 0; i < list.count && i < COUNT(problems); i++) {
        assert_true(problems[i].line > 0 && problems[i].column > 0);
        if (i < expected) assert_string_equal(problems[i].error.text, warnings[i]);
    }
    assert_int_equal(list.count, expected);
}

TEST(limits_that_cannot_act_cause_warnings) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
        "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": 1, "
        "\"active\": 0},"
        "{\"limit\": 1, \"window\": 9, \"active\": 5}, {\"limit\": 1, \"window\": 2, \"active\": "
        "5}]},"
        "{\"name\": \"k\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 9, \"size\": 1},"
        "{\"name\": \"r\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 8, "
        "\"size\": 1}]}]}";
    static const char *const warnings[] = {
        "resources[0].limits[0].tiers[0].active: is 0, so the tier is never entered",
        "resources[0].limits[0].tiers[1].window: is longer than active, so the tier ends first",
        "resources[0].limits[0].tiers[2].window: does not divide active, so the last window is cut",
        "resources[0].limits[1].rate: is above that of limits[2], which all keys share"};
    expect_warnings(text, warnings, COUNT(warnings));
}

/* A limit that always refuses a request of cost 1 causes a warning, except in shadow. But a limit
 * of 0 for some keys causes none, because it is a way to refuse these keys. */
TEST(limits_that_refuse_everything_cause_warnings) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
        "{\"name\": \"a\", \"kind\": \"TIERS\", \"tiers\": []},"
        "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 0.5},"
        "{\"name\": \"c\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 5, \"max_cost\": 0},"
        "{\"name\": \"d\", \"kind\": \"FIXED_WINDOW\", \"limit\": 0.5, \"window\": 1},"
        "{\"name\": \"e\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"overrides\": "
        "["
        "{\"keys\": [\"x\"], \"limit\": 0}, {\"keys\": [\"y\"], \"limit\": 0.9}]},"
        "{\"name\": \"f\", \"kind\": \"FIXED_WINDOW\", \"limit\": 0, \"window\": 1, \"shadow\": "
        "true},"
        "{\"name\": \"g\", \"kind\": \"FIXED_WINDOW\", \"limit\": 0, \"window\": 1, \"keys\": "
        "[\"x\"]}"
        "]}]}";
    static const char *const warnings[] = {
        "resources[0].limits[0].tiers: grants nothing, so every permit that costs something is "
        "refused",
        "resources[0].limits[1].size: grants less than 1, so a permit of cost 1 is always refused",
        "resources[0].limits[2].max_cost: grants nothing, so every permit that costs something is "
        "refused",
        "resources[0].limits[3].limit: grants less than 1, so a permit of cost 1 is always "
        "refused",
        "resources[0].limits[4].overrides[1].limit: grants less than 1, so a permit of cost 1 is "
        "always refused"};
    expect_warnings(text, warnings, COUNT(warnings));
}

TEST(a_bracket_of_keys_that_does_not_close_causes_a_warning) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
        "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 9, \"size\": 1, "
        "\"keys\": [\"[a]\", \"![a\", \"\\\\[a\"], "
        "\"overrides\": [{\"keys\": [\"b[\"], \"rate\": 8}]}]}]}";
    static const char *const warnings[] = {"resources[0].limits[0].keys[1]: a [ has no ], so it is "
                                           "an ordinary character; write \\[ if "
                                           "this is intended",
                                           "resources[0].limits[0].overrides[0].keys[0]: a [ has "
                                           "no ], so it is an ordinary character; "
                                           "write \\[ if this is intended"};
    expect_warnings(text, warnings, COUNT(warnings));
}

/* Each limit per key, and each of its overrides with another rate, limit or window, is compared
 * with the limits of its kind and window that all keys share, except in shadow. */
TEST(a_limit_per_key_above_one_that_all_keys_share_causes_a_warning) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [\n"
        "{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"minute\",\n"
        " \"overrides\": [{\"keys\": [\"x\"], \"limit\": 10},\n"
        "  {\"keys\": [\"y\"], \"limit\": 8}, {\"keys\": [\"z\"], \"window\": 30}]},\n"
        "{\"name\": \"b\", \"kind\": \"FIXED_WINDOW\", \"limit\": 8, \"window\": 30},\n"
        "{\"name\": \"c\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 7,\n"
        " \"window\": 30},\n"
        "{\"name\": \"d\", \"per\": \"resource\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1,\n"
        " \"window\": 60},\n"
        "{\"name\": \"e\", \"per\": \"resource\", \"keys\": [\"k\"], \"kind\": \"FIXED_WINDOW\",\n"
        " \"limit\": 1, \"window\": \"minute\"},\n"
        "{\"name\": \"f\", \"per\": \"resource\", \"shadow\": true, \"kind\": \"FIXED_WINDOW\",\n"
        " \"limit\": 1, \"window\": \"minute\"},\n"
        "{\"name\": \"g\", \"per\": \"template\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9,\n"
        " \"window\": \"minute\"}]}]}";
    static const char *const warnings[] = {
        "resources[0].limits[0].overrides[0].limit: is above that of limits[6], which all keys "
        "share",
        "resources[0].limits[0].overrides[2].limit: is above that of limits[2], which all keys "
        "share",
        "resources[0].limits[1].limit: is above that of limits[2], which all keys share"};
    expect_warnings(text, warnings, COUNT(warnings));
}

/* Without capacity, fields that only leases use have no effect. But other templates use the
 * algorithm of "*", so it causes no warning. */
TEST(fields_of_leases_in_a_template_without_capacity_cause_warnings) {
    static const char text[] =
        "{\"resources\": [\n"
        "{\"identifier_glob\": \"a\", \"limits\": [], \"safe_capacity\": 1},\n"
        "{\"identifier_glob\": \"b\", \"limits\": [], \"whole\": true,\n"
        " \"algorithm\": {\"kind\": \"FAIR_SHARE\"}},\n"
        "{\"identifier_glob\": \"c\", \"limits\": [], \"capacity\": 1, \"safe_capacity\": 1},\n"
        "{\"identifier_glob\": \"*\", \"limits\": [], \"algorithm\": {\"kind\": \"FAIR_SHARE\"}}]}";
    static const char *const warnings[] = {
        "resources[0].safe_capacity: has no effect without capacity",
        "resources[1].whole: has no effect without capacity",
        "resources[1].algorithm: has no effect without capacity"};
    expect_warnings(text, warnings, COUNT(warnings));
}

/* The tiers of an override are checked like the tiers of the limit. */
TEST(tiers_of_an_override_that_cannot_act_cause_warnings) {
    static const char text[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"t\",\n"
        " \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": 2, \"active\": 4}],\n"
        " \"overrides\": [{\"keys\": [\"x\"]}, {\"keys\": [\"y\"], \"tiers\": [\n"
        "  {\"limit\": 1, \"window\": 2, \"active\": 5}]}, {\"keys\": [\"z\"], \"tiers\": [\n"
        "  {\"limit\": 0, \"window\": 2, \"active\": 4}, {\"limit\": 0, \"window\": 2, \n"
        "   \"active\": 4}]}]}]}]}";
    static const char *const warnings[] = {
        "resources[0].limits[0].overrides[1].tiers[0].window: does not divide active, so the last "
        "window is cut",
        "resources[0].limits[0].overrides[2].tiers[1].limit: is 0, so the last tier is never "
        "entered"};
    expect_warnings(text, warnings, COUNT(warnings));
}

/* A resource with limits alone gets no leases, even if resources without a template get them. */
TEST(a_template_without_capacity_grants_no_leases) {
    doorman_config *config = config_of(example);
    doorman_server *server = NULL;
    const doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    const doorman_mastership master = {.address = "here", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_create(&server, &options, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &master, 0), DOORMAN_OK);
    static const char *const ids[] = {"login", "other"};
    static const doorman_outcome outcomes[] = {DOORMAN_UNMATCHED, DOORMAN_GRANTED};
    for (int i = 0; i < 2; i++) {
        const doorman_demand demand = {5, 1, 1};
        const doorman_capacity_request item = {
            .resource_id = ids[i], .wants = &demand, .wants_count = 1};
        const doorman_request request = {
            .method = DOORMAN_GET_CAPACITY, .holder_id = "client", .items = &item, .item_count = 1};
        doorman_response response = {.item_count = 0};
        assert_int_equal(doorman_server_handle(server, &request, &response, NULL, 100 * SECOND),
                         DOORMAN_OK);
        assert_int_equal(response.items[0].outcome, outcomes[i]);
    }
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* ---- a fixture ------------------------------------------------------------------------------ */

typedef struct fixture {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now, epoch;
    doorman_permit out;
    size_t events[DOORMAN_PERMIT_EVENT_COUNT];
    char limit[16];     /* of the last event */
    double evicted;     /* the amount of the last eviction */
    char unmatched[16]; /* the resource that matched nothing last */
    char item[16];      /* the resource of the item that was refused last */
    bool shadow;        /* the last refusal was one in shadow */
} fixture;

static void count_event(void *context, const doorman_permit_event *event) {
    fixture *f = (fixture *)context;
    f->events[event->kind]++;
    snprintf(f->limit, sizeof f->limit, "%s", event->limit ? event->limit : "");
    if (event->kind == DOORMAN_PERMIT_KEY_EVICTED) f->evicted = event->amount;
    if (event->kind == DOORMAN_PERMIT_REFUSED) {
        f->shadow = event->shadow;
        snprintf(f->item, sizeof f->item, "%s",
                 event->item_resource_id ? event->item_resource_id : "");
    }
    if (event->kind == DOORMAN_PERMIT_UNMATCHED) {
        snprintf(f->unmatched, sizeof f->unmatched, "%s", event->resource_id);
    }
}

static fixture start_config(doorman_config *config) {
    return (fixture){.config = config, .now = 1000 * SECOND, .epoch = 1700000000 * SECOND};
}

/* Sets the clock of the calendar. */
static void set_epoch(fixture *f, doorman_time epoch) {
    f->epoch = epoch;
    doorman_permits_set_epoch(f->permits, epoch, f->now);
}

static void create_with(fixture *f, const doorman_permits_options *options) {
    assert_int_equal(doorman_permits_create(&f->permits, options, NULL, f->now), DOORMAN_OK);
    set_epoch(f, f->epoch);
}

static void create(fixture *f) {
    const doorman_permits_options options = {
        .config = f->config, .seed = {7, 9}, .on_event = count_event, .context = f};
    create_with(f, &options);
}

static void stop(fixture *f) {
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
}

static void pass(fixture *f, doorman_time time) {
    f->now += time;
    f->epoch += time;
}

static bool acquire_items(fixture *f, const doorman_permit_item *items, size_t count,
                          doorman_time max_wait) {
    const doorman_permit_request request = {
        .items = items, .item_count = count, .max_wait = max_wait, .detail = true};
    doorman_error error = {0};
    doorman_status status = doorman_permits_acquire(f->permits, &request, &f->out, &error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return f->out.granted;
}

static bool acquire(fixture *f, const char *resource_id, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = resource_id, .key = key, .cost = cost};
    return acquire_items(f, &item, 1, 0);
}

static size_t counters(const fixture *f) {
    doorman_permits_info info;
    doorman_permits_read(f->permits, &info);
    return info.counter_count;
}

/* ---- one decision --------------------------------------------------------------------------- */

#define BUCKET "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 10, \"size\": 5}"
#define BANS2                                                                                      \
    "{\"name\": \"b2\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 9, \"ban\": "           \
    "{\"refusals\": 3, "                                                                           \
    "\"window\": 10, \"duration\": 100}}"
#define ALL                                                                                        \
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 7, "        \
    "\"window\": 60}"

/* P1 */
TEST(a_refusal_charges_nothing_and_creates_nothing) {
    fixture f = start_config(limits_of(BUCKET ", " ALL));
    create(&f);
    assert_true(acquire(&f, "r", "ann", 5));
    assert_true(acquire(&f, "r", "bob", 2));
    size_t before = counters(&f);
    assert_false(acquire(&f, "r", "cyd", 1)); /* the window is full; the bucket of cyd is not */
    assert_string_equal(f.out.limit, "all");
    assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    assert_int_equal(counters(&f), before);
    assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "cyd"), &f.out, NULL, f.now),
                     DOORMAN_OK);
    assert_int_equal(f.out.detail_count, 2);
    assert_exact(f.out.details[0].remaining, 5);
    assert_false(f.out.details[0].shadow);
    stop(&f);
}

/* P1 */
TEST(items_that_meet_in_one_counter_are_added_up) {
    fixture f = start_config(limits_of(ALL ", " BUCKET));
    create(&f);
    const doorman_permit_item items[] = {{.resource_id = "r", .key = "ann", .cost = 4},
                                         {.resource_id = "r", .key = "bob", .cost = 4}};
    assert_false(acquire_items(&f, items, 2, 0));
    assert_string_equal(f.out.limit, "all");
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST); /* 8 never fit in 7 */
    assert_int_equal(counters(&f), 0);
    doorman_permit_item same[100];
    for (int i = 0; i < 100; i++)
        same[i] = (doorman_permit_item){.resource_id = "r", .cost = 0.051};
    assert_false(acquire_items(&f, same, 100, 0)); /* 5.1 > 5 */
    for (int i = 0; i < 100; i++) same[i].cost = 0.05;
    assert_true(acquire_items(&f, same, 100, 0)); /* the sum is rounded, not each of the items */
    assert_exact(f.out.details[0].used, 5);
    stop(&f);
}

/* P1. Counters count in 63 bits. */
TEST(the_largest_costs_of_many_items_do_not_overflow) {
    fixture f = start_config(limits_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", "
                                       "\"limit\": 1e15, \"window\": \"day\"}, "
                                       "{\"name\": \"s\", \"kind\": \"FIXED_WINDOW\", "
                                       "\"limit\": 1, \"window\": \"day\", \"shadow\": true}"));
    create(&f);
    doorman_permit_item same[100];
    for (int i = 0; i < 100; i++) same[i] = (doorman_permit_item){.resource_id = "r", .cost = 1e15};
    assert_false(acquire_items(&f, same, 5, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    assert_false(acquire_items(&f, same, 100, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    for (int i = 0; i < 100; i++) same[i].has_min = true;
    assert_true(acquire_items(&f, same, 100, 0));
    assert_exact(f.out.items[0].granted, 1e15);
    assert_exact(f.out.items[99].granted, 0);
    stop(&f);
}

/* P2. Counters count in 1/4096 of a unit, but a client gets what it has asked for. */
TEST(no_item_is_granted_more_than_its_cost) {
    fixture f = start_config(limits_of(ALL));
    create(&f);
    const doorman_permit_item items[] = {
        {.resource_id = "r", .key = "a", .cost = 0.1},
        {.resource_id = "r", .key = "b", .cost = 1.7, .has_min = true, .min = 0.3},
        {.resource_id = "r", .key = "c", .cost = 9, .has_min = true, .min = 0.2}};
    assert_true(acquire_items(&f, items, 1, 0));
    assert_exact(f.out.items[0].granted, 0.1);
    assert_exact(f.out.details[0].used, 410.0 / 4096); /* never less than what was granted */
    assert_true(acquire_items(&f, items, 3, 0));
    assert_exact(f.out.items[0].granted, 0.1);
    assert_exact(f.out.items[1].granted, 1.7);
    assert_exact(f.out.items[2].granted, 4.2);             /* 0.2, and whole units */
    assert_exact(f.out.details[0].used, 410.0 / 4096 + 6); /* the sum is rounded up once */
    doorman_permits_limit limit;
    doorman_cursor cursor = {0};
    assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
    assert_true(fabs(limit.granted_units - 6.1) < 1e-9);
    stop(&f);
}

/* P2. 1.3 and 0.65 are no multiples of 1/4096. Costs and limits are rounded once, and alike. */
TEST(a_limit_grants_a_cost_that_is_equal_to_it) {
    static const char *const limits[] = {
        "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1.3}",
        "{\"name\": \"d\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1.3, \"size\": 0, \"max_debt\": "
        "1}",
        "{\"name\": \"f\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1.3, \"window\": 1}",
        "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1.3, \"window\": 1}",
        "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 0.6, \"window\": 1, "
        "\"active\": 1}, {\"limit\": 0.7, \"window\": 1, \"active\": 1}]}",
        "{\"name\": \"c\", \"kind\": \"CONCURRENCY\", \"limit\": 1.3}",
        "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 1, \"max_cost\": "
        "1.3}"};
    for (size_t i = 0; i < 2 * COUNT(limits); i++) {
        fixture f = start_config(limits_of(limits[i / 2]));
        create(&f);
        doorman_permit_item item = {.resource_id = "r", .cost = 1.3, .has_min = true, .min = 1.3};
        bool lends = i / 2 == 1;
        if (i % 2 && !lends) item.min = 0.65;
        const doorman_permit_request request = {
            .items = &item, .item_count = 1, .client_id = "c", .request_id = 1, .detail = true};
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_true(f.out.granted);
        assert_exact(f.out.items[0].granted, 1.3);
        assert_true(f.out.details[0].remaining <= 7.7);
        if (i / 2 < 4) assert_true(f.out.details[0].used <= 1.3);
        item.cost = item.min = 0.001;
        if (i / 2 < 5) assert_false(acquire_items(&f, &item, 1, 0));
        if (i / 2 == 0) assert_true(f.out.retry_after <= SECOND / 500);
        stop(&f);
    }
}

/* A size need not be a whole number of grains, so the time until a bucket is full must not depend
 * on whole grains. */
TEST(a_bucket_grants_its_size_as_soon_as_it_is_full) {
    fixture f = start_config(
        limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1.3}"));
    create(&f);
    for (int i = 0; i < 5; i++) {
        assert_true(acquire(&f, "r", "", 1.3));
        assert_false(acquire(&f, "r", "", 1.3));
        assert_int_equal(f.out.retry_after, 1300 * SECOND / 1000);
        pass(&f, f.out.retry_after - 1);
        assert_false(acquire(&f, "r", "", 1.3));
        pass(&f, 1);
    }
    stop(&f);
}

static const char *const limits_with_max_cost[] = {
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 100, \"max_cost\": "
    "5}",
    "{\"name\": \"f\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\", "
    "\"max_cost\": 5}",
    "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 60, "
    "\"max_cost\": 5}",
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 100, \"window\": 60, "
    "\"active\": 60}], \"max_cost\": 5}",
    "{\"name\": \"c\", \"kind\": \"CONCURRENCY\", \"limit\": 100, \"max_cost\": 5}"};

/* P2. max_cost also bounds what is granted above the minimum. */
TEST(no_permit_is_granted_more_than_max_cost) {
    for (size_t i = 0; i < COUNT(limits_with_max_cost); i++) {
        fixture f = start_config(limits_of(limits_with_max_cost[i]));
        create(&f);
        doorman_permit_item items[] = {{.resource_id = "r", .cost = 100},
                                       {.resource_id = "r", .cost = 100}};
        doorman_permit_request request = {
            .items = items, .item_count = 1, .client_id = "c", .request_id = 1};
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
        assert_false(f.out.has_retry_after);
        for (size_t count = 1; count <= 2; count++) { /* two items share what is allowed */
            request.request_id++;
            request.item_count = count;
            items[0].has_min = items[1].has_min = true;
            items[0].min = count == 1 ? 4.5 : 1;
            items[1].min = 2;
            assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                             DOORMAN_OK);
            assert_true(f.out.granted);
            assert_exact(f.out.items[0].granted, count == 1 ? 4.5 : 3);
            if (count == 2) assert_exact(f.out.items[1].granted, 2);
        }
        request.equal = true;
        items[0].min = items[1].min = 1;
        request.request_id++;
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_exact(f.out.items[0].granted + f.out.items[1].granted, 4);
        items[0].min = items[1].min = 3;
        request.request_id++;
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
        stop(&f);
    }
}

/* P2. A permit goes into debt only for its minimum, because the next callers wait for the debt. */
TEST(a_permit_with_a_minimum_borrows_only_for_its_minimum) {
    for (int i = 0; i < 3; i++) {
        fixture f =
            start_config(limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                                   "\"size\": 10, \"max_debt\": 5}"));
        create(&f);
        const doorman_permit_item item = {.resource_id = "r",
                                          .cost = 15,
                                          .has_min = i > 0,
                                          .min = i == 0   ? 0
                                                 : i == 1 ? 1
                                                          : 12};
        assert_true(acquire_items(&f, &item, 1, 0));
        assert_exact(f.out.items[0].granted, i == 0 ? 15 : i == 1 ? 10 : 12);
        stop(&f);
    }
}

/* P13. A cost and its refund leave no more than was there before. */
TEST(a_report_charges_no_more_than_its_cost_and_refunds_no_more_than_it_charged) {
    fixture f = start_config(limits_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", "
                                       "\"limit\": 5, \"window\": \"day\", \"refunds\": true}"));
    create(&f);
    double charged = 0;
    assert_true(acquire(&f, "r", "a", 1));
    for (int i = 0; i < 2; i++) {
        double cost = i ? -0.1 : 0.1;
        assert_int_equal(doorman_permits_report(
                             f.permits,
                             &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = cost},
                             &charged, NULL, f.now),
                         DOORMAN_OK);
        assert_exact(charged, i ? -409.0 / 4096 : 0.1);
    }
    assert_true(acquire(&f, "r", "a", 0));
    assert_exact(f.out.details[0].used, 1 + 1.0 / 4096);
    stop(&f);
}

/* P2 */
TEST(items_get_whole_units_above_their_minimum_in_order) {
    fixture f = start_config(limits_of(ALL));
    create(&f);
    const doorman_permit_item items[] = {
        {.resource_id = "r", .key = "a", .cost = 4.5, .has_min = true, .min = 0.5},
        {.resource_id = "r", .key = "b", .cost = 9, .has_min = true, .min = 1}};
    assert_true(acquire_items(&f, items, 2, 0));
    assert_exact(f.out.items[0].granted, 4.5); /* all of its cost fits */
    assert_exact(f.out.items[1].granted, 2);   /* 7 - 4.5 = 2.5 */
    assert_exact(f.out.items[0].remaining, 0.5);
    stop(&f);
}

/* P2 */
TEST(equal_items_get_the_same_whole_number) {
    fixture f = start_config(limits_of(ALL));
    create(&f);
    const doorman_permit_item items[] = {
        {.resource_id = "r", .key = "a", .cost = 9, .has_min = true, .min = 0.5},
        {.resource_id = "r", .key = "b", .cost = 9, .has_min = true, .min = 1},
        {.resource_id = "r", .key = "b", .cost = 5, .has_min = true, .min = 0}};
    doorman_permit_request request = {.items = items, .item_count = 3, .equal = true};
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now), DOORMAN_OK);
    assert_true(f.out.granted);
    for (int i = 0; i < 3; i++) assert_exact(f.out.items[i].granted, 2);
    const doorman_permit_item half = {
        .resource_id = "r", .cost = 0.75, .has_min = true, .min = 0.5};
    request.items = &half;
    request.item_count = 1;
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    stop(&f);
}

/* P2: a double does not hold each sum of units above 2.2e12 exactly, and still no limit gives more
 * than it has. */
TEST(items_of_huge_amounts_never_get_more_than_there_is) {
    static const double limits[] = {5e12, 1e13, 1e14, 1e15};
    for (size_t round = 0; round < 4000; round++) {
        char text[256];
        const double limit = limits[round % 4];
        doorman_permit_item items[4] = {{.resource_id = NULL}};
        doorman_permit_request request = {.items = items, .item_count = 1 + random_below(4)};
        snprintf(text, sizeof text,
                 "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", "
                 "\"limit\": %.0f, \"window\": 60}",
                 limit);
        fixture f = start_config(limits_of(text));
        create(&f);
        const doorman_permit_item first = {.resource_id = "r", .cost = random_unit() * 1e-3};
        assert_true(acquire_items(&f, &first, 1, 0));
        request.equal = random_below(2) == 1;
        for (size_t i = 0; i < request.item_count; i++) {
            const double min = floor(random_unit() * 4096 * 1000) / 4096;
            items[i] = (doorman_permit_item){
                .resource_id = "r", .cost = limit, .has_min = true, .min = min};
            if (request.equal) items[i].min = floor(min);
        }
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        double granted = 0;
        for (size_t i = 0; f.out.granted && i < request.item_count; i++) {
            granted += f.out.items[i].granted;
            assert_true(f.out.items[i].granted >= items[i].min);
        }
        assert_true(granted <= limit);
        assert_true(!f.out.granted || granted >= limit * (1 - 1e-11) - 100);
        stop(&f);
    }
}

/* P12: a slice lasts at least 1 ns. So the end of a window of 1 ns is never in the past, even at
 * the largest times. */
TEST(the_shortest_window_is_never_reset_in_the_past) {
    fixture f = start_config(limits_of("{\"name\": \"w\", \"kind\": \"SLIDING_WINDOW\", "
                                       "\"limit\": 1, \"window\": 1e-9}"));
    f.now = INT64_C(1) << 61;
    create(&f);
    for (int i = 0; i < 10; i++, f.now += 40) {
        const doorman_permit_item item = {.resource_id = "r", .cost = 1};
        assert_true(acquire_items(&f, &item, 1, 0));
        assert_true(f.out.items[0].reset_after >= 0 && f.out.items[0].reset_after < 40);
    }
    stop(&f);
}

/* P2, P3 */
TEST(a_debt_is_waited_for_and_no_longer_than_allowed) {
    fixture f =
        start_config(limits_of("{\"name\": \"leaky\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 10, "
                               "\"size\": 0, \"max_debt\": 2, \"max_wait\": 1}"));
    create(&f);
    doorman_permit_item item = {.resource_id = "r", .cost = 8};
    assert_true(acquire_items(&f, &item, 1, 0));
    assert_int_equal(f.out.wait, 0); /* there was no debt before */
    assert_false(acquire_items(&f, &item, 1, 0));
    assert_int_equal(f.out.retry_after, 8 * SECOND / 10);
    assert_true(acquire_items(&f, &item, 1, SECOND));
    assert_int_equal(f.out.wait, 8 * SECOND / 10);
    assert_false(acquire_items(&f, &item, 1, 9 * SECOND)); /* max_wait of the limit is 1 s */
    assert_int_equal(f.out.retry_after, 6 * SECOND / 10);
    item.has_min = true;
    item.min = 0;
    assert_true(acquire_items(&f, &item, 1, 0)); /* units above the minimum are never borrowed */
    assert_exact(f.out.items[0].granted, 0);
    assert_int_equal(f.out.wait, 0);
    stop(&f);
}

/* P2 */
TEST(a_cost_of_zero_looks_and_creates_nothing) {
    fixture f = start_config(limits_of(BUCKET));
    create(&f);
    assert_true(acquire(&f, "r", "a", 0));
    assert_exact(f.out.items[0].remaining, 5);
    assert_string_equal(f.out.items[0].limit, "b");
    assert_int_equal(counters(&f), 0);
    assert_true(acquire(&f, "r", "a", 5));
    assert_true(acquire(&f, "r", "a", 0));
    assert_exact(f.out.items[0].remaining, 0);
    stop(&f);
}

/* P4, P5 */
TEST(the_refusal_that_lasts_longest_is_named) {
    fixture f = start_config(limits_of(BUCKET ", " ALL));
    f.epoch = 1700000040 * SECOND; /* a minute begins */
    create(&f);
    assert_true(acquire(&f, "r", "a", 5));
    assert_true(acquire(&f, "r", "b", 2));
    assert_false(acquire(&f, "r", "a", 1));
    assert_string_equal(f.out.limit, "all");
    assert_int_equal(f.out.retry_after, 60 * SECOND);
    assert_int_equal(f.out.valid_for, SECOND);
    assert_true(f.out.details[0].refused && f.out.details[1].refused);
    doorman_permits_limit limit;
    doorman_cursor cursor = {0};
    for (int i = 0; i < 2; i++) {
        assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
        assert_int_equal(limit.refused[DOORMAN_REASON_RATE], 1);
        assert_int_equal(limit.granted, 2);
        assert_exact(limit.granted_units, 7);
    }
    assert_false(doorman_permits_next_limit(f.permits, &cursor, &limit));
    assert_false(acquire(&f, "r", "a", 6)); /* more than the bucket ever has */
    assert_string_equal(f.out.limit, "b");
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    assert_false(f.out.has_retry_after);
    const doorman_permit_item two[] = {{.resource_id = "r", .key = "a", .cost = 1},
                                       {.resource_id = "s", .key = "a", .cost = 1}};
    assert_false(acquire_items(&f, two, 2, 0));
    assert_int_equal(f.out.valid_for, 0);
    stop(&f);
}

TEST(a_resource_without_limits_is_unmatched) {
    static const char *const texts[] = {
        "{\"resources\": [{\"identifier_glob\": \"leases\", \"capacity\": 1}]}",
        "{\"resources\": [{\"identifier_glob\": \"leases\", \"capacity\": 1}], \"unmatched\": "
        "\"reject\"}"};
    for (int i = 0; i < 2; i++) {
        fixture f = start_config(config_of(texts[i]));
        create(&f);
        assert_false(acquire(&f, "leases", "a", 1));
        assert_int_equal(f.out.reason, DOORMAN_REASON_UNMATCHED);
        assert_int_equal(f.out.valid_for, SECOND);
        assert_int_equal(acquire(&f, "other", "a", 1), i == 0);
        stop(&f);
    }
}

/* P18: "other" may be a typing error, so it is counted whether it is granted or refused. */
TEST(items_without_limits_are_counted_and_named) {
    for (int reject = 0; reject < 2; reject++) {
        fixture f = start_config(config_of(
            reject ? "{\"resources\": [{\"identifier_glob\": \"api\", \"limits\": [" BUCKET
                     "]}], \"unmatched\": \"reject\"}"
                   : "{\"resources\": [{\"identifier_glob\": \"api\", \"limits\": [" BUCKET
                     "]}, {\"identifier_glob\": \"open\", \"limits\": []}]}"));
        create(&f);
        const doorman_permit_item items[] = {{.resource_id = "api", .key = "a", .cost = 1},
                                             {.resource_id = "Api", .key = "a", .cost = 1}};
        assert_int_equal(acquire_items(&f, items, 2, 0), !reject);
        assert_int_equal(acquire(&f, "other", "a", 1), !reject);
        assert_string_equal(f.unmatched, "other");
        assert_int_equal(f.events[DOORMAN_PERMIT_UNMATCHED], 2);
        assert_true(acquire(&f, "api", "b", 1));
        if (!reject) assert_true(acquire(&f, "open", "b", 1));
        assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("x", ""), &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_int_equal(f.events[DOORMAN_PERMIT_UNMATCHED], 2);
        doorman_permits_info info;
        doorman_permits_read(f.permits, &info);
        assert_int_equal(info.unmatched, 2);
        stop(&f);
    }
}

TEST(only_the_events_that_are_asked_for_are_raised) {
    fixture f = start_config(limits_of(BUCKET));
    doorman_permits_options options = {.config = f.config,
                                       .seed = {7, 9},
                                       .on_event = count_event,
                                       .event_kinds = 1u << DOORMAN_PERMIT_REFUSED,
                                       .context = &f};
    create_with(&f, &options);
    while (acquire(&f, "r", "a", 1)) continue;
    assert_int_equal(f.events[DOORMAN_PERMIT_REFUSED], 1);
    for (int i = 0; i < DOORMAN_PERMIT_EVENT_COUNT; i++) {
        assert_int_equal(f.events[i], i == DOORMAN_PERMIT_REFUSED);
    }
    doorman_permits *none = NULL;
    doorman_error error = {0};
    options.event_kinds = 1u << DOORMAN_PERMIT_EVENT_COUNT;
    assert_int_equal(doorman_permits_create(&none, &options, &error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "event_kinds: has an unknown kind");
    stop(&f);
}

TEST(an_inspection_raises_no_event) {
    fixture f = start_config(limits_of(BUCKET));
    create(&f);
    for (int refused = 0; refused < 2; refused++) {
        doorman_time ban = refused ? SECOND : 0;
        assert_int_equal(doorman_permits_ban(f.permits, ITEM_OF("r", "a"), ban, NULL, f.now),
                         DOORMAN_OK);
        memset(f.events, 0, sizeof f.events);
        assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "a"), &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_int_equal(f.out.granted, !refused);
        for (int i = 0; i < DOORMAN_PERMIT_EVENT_COUNT; i++) assert_int_equal(f.events[i], 0);
    }
    stop(&f);
}

TEST(an_empty_list_of_limits_grants_everything) {
    fixture f = start_config(limits_of(""));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1e15));
    assert_null(f.out.items[0].limit);
    stop(&f);
}

TEST(an_empty_list_of_tiers_refuses_everything) {
    fixture f = start_config(limits_of("{\"name\": \"no\", \"kind\": \"TIERS\", \"tiers\": []}"));
    create(&f);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    stop(&f);
}

TEST(keys_and_overrides_choose_the_figures) {
    fixture f = start_config(limits_of(
        "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 2, \"window\": 60, "
        "\"overrides\": ["
        "{\"keys\": [\"vip-*\", \"!vip-out\"], \"limit\": 5}, {\"keys\": [\"bad\"], \"limit\": "
        "0}]},"
        "{\"name\": \"t\", \"per\": \"resource\", \"keys\": [\"trial-*\", \"!trial-vip\"],"
        "\"kind\": \"FIXED_WINDOW\", \"limit\": 3, \"window\": 60}"));
    create(&f);
    assert_true(acquire(&f, "r", "vip-1", 5));
    assert_false(acquire(&f, "r", "vip-out", 3));
    assert_false(acquire(&f, "r", "bad", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    assert_true(acquire(&f, "r", "trial-1", 2));
    assert_false(acquire(&f, "r", "trial-2", 2));
    assert_true(acquire(&f, "r", "trial-vip", 2));
    assert_true(acquire(&f, "r", NULL, 2));
    stop(&f);
}

TEST(a_detail_says_when_all_units_come_back) {
    fixture f = start_config(
        limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 4, \"size\": 10}, "
                  "{\"name\": \"w\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 2, \"window\": 60}, "
                  "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 2, "
                  "\"window\": \"month\"}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.detail_count, 3);
    assert_int_equal(f.out.details[0].window, 5 * SECOND / 2);
    assert_int_equal(f.out.details[1].window, 60 * SECOND);
    assert_int_equal(f.out.details[2].window, 30 * 86400 * SECOND); /* November 2023 */
    stop(&f);
}

TEST(shadow_counts_but_never_refuses) {
    fixture f = start_config(limits_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": "
                                       "2, \"window\": 60, \"shadow\": true}"));
    create(&f);
    for (int i = 0; i < 5; i++) assert_true(acquire(&f, "r", "a", 1));
    assert_true(f.out.details[0].refused && f.out.details[0].shadow);
    assert_exact(f.out.details[0].used, 2); /* what would be refused is not charged */
    assert_true(f.shadow);
    assert_string_equal(f.item, "r");
    doorman_cursor cursor = {0};
    doorman_permits_limit limit;
    assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
    assert_int_equal(limit.shadow_refused, 3);
    assert_int_equal(limit.refused[DOORMAN_REASON_RATE], 0);
    stop(&f);
    char text[512];
    snprintf(text, sizeof text,
             "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}], "
             "\"shadow\": [\"beta-*\"]}",
             BUCKET);
    f = start_config(config_of(text));
    create(&f);
    for (int i = 0; i < 9; i++) assert_true(acquire(&f, "beta-x", "a", 5));
    assert_true(acquire(&f, "r", "a", 5) && !acquire(&f, "r", "a", 5));
    stop(&f);
}

/* One item in shadow must not let the other items of its permit exceed their limit. */
TEST(a_shared_counter_is_in_shadow_only_if_all_items_are) {
    fixture f = start_config(
        config_of("{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"w\","
                  "\"per\": \"template\", \"kind\": \"FIXED_WINDOW\", \"limit\": 3, \"window\": "
                  "60}]}], \"shadow\": [\"beta-*\"]}"));
    create(&f);
    const doorman_permit_item items[] = {{.resource_id = "beta-x", .key = "a", .cost = 2},
                                         {.resource_id = "r", .key = "a", .cost = 2}};
    assert_false(acquire_items(&f, items, 2, 0));
    assert_true(acquire_items(&f, items, 1, 0));
    assert_true(acquire_items(&f, items, 1, 0));
    stop(&f);
}

TEST(a_warning_comes_above_its_fraction) {
    fixture f =
        start_config(limits_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 10, "
                               "\"window\": 60, \"warn_at\": 0.8}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 8) && !f.out.warning);
    assert_true(acquire(&f, "r", "a", 1) && f.out.warning);
    stop(&f);
}

#define BANS                                                                                       \
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"ban\": "            \
    "{\"refusals\": 3, "                                                                           \
    "\"window\": 10, \"duration\": 100}}"

TEST(a_key_that_keeps_sending_is_banned) {
    fixture f = start_config(limits_of(BANS));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    for (int i = 0; i < 3; i++) {
        assert_false(acquire(&f, "r", "a", 1));
        assert_int_equal(f.out.reason, DOORMAN_REASON_RATE); /* also the third */
        assert_int_equal(f.out.retry_after, (i < 2 ? 1 : 100) * SECOND);
        assert_int_equal(f.out.valid_for, 0);
    }
    assert_int_equal(f.events[DOORMAN_PERMIT_BANNED], 1);
    pass(&f, 50 * SECOND);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(f.out.retry_after, 50 * SECOND);
    assert_int_equal(f.out.detail_count, 0); /* the limits are not evaluated */
    assert_true(acquire(&f, "r", "b", 1));
    assert_true(acquire(&f, "s", "a", 1));
    pass(&f, 50 * SECOND - 1);
    assert_false(acquire(&f, "r", "a", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 1));
    stop(&f);
}

/* P4. The refusal names MAX_COST or UNMATCHED, so it does not count for the limit with the ban. */
TEST(a_refusal_that_names_another_reason_counts_for_no_ban) {
    fixture f = start_config(config_of(
        "{\"resources\": [{\"identifier_glob\": \"r\", \"limits\": [" BANS
        "]}, {\"identifier_glob\": \"small\", \"limits\": [{\"name\": \"s\", \"kind\": "
        "\"FIXED_WINDOW\", \"limit\": 1, \"window\": 60}]}], \"unmatched\": \"reject\"}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    doorman_permit_item items[] = {{.resource_id = "r", .key = "a", .cost = 1},
                                   {.resource_id = "small", .key = "a", .cost = 2}};
    for (int i = 0; i < 10; i++) {
        items[1].resource_id = i % 2 ? "none" : "small";
        assert_false(acquire_items(&f, items, 2, 0));
        assert_int_equal(f.out.reason, i % 2 ? DOORMAN_REASON_UNMATCHED : DOORMAN_REASON_MAX_COST);
        assert_int_equal(f.out.details[0].refusals, 0);
    }
    assert_int_equal(f.events[DOORMAN_PERMIT_BANNED], 0);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    assert_int_equal(f.out.details[0].refusals, 1);
    stop(&f);
}

static doorman_status ban(fixture *f, const char *id, const char *key, doorman_time duration);

/* P4. If one item is banned and another is refused, the decision names the longer refusal. */
TEST(a_ban_does_not_hide_a_longer_refusal_of_another_item) {
    fixture f = start_config(limits_of("{\"name\": \"d\", \"kind\": \"TOKEN_BUCKET\", \"rate\": "
                                       "0.001, \"size\": 1}"));
    create(&f);
    assert_true(acquire(&f, "r", "used", 1));
    assert_int_equal(ban(&f, "r", "banned", 10 * SECOND), DOORMAN_OK);
    for (int i = 0; i < 2; i++) {
        const doorman_permit_item items[] = {
            {.resource_id = "r", .key = i ? "used" : "banned", .cost = 1},
            {.resource_id = "r", .key = i ? "banned" : "used", .cost = 1}};
        assert_false(acquire_items(&f, items, 2, 0));
        assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
        assert_int_equal(f.out.item_index, !i);
        assert_int_equal(f.out.retry_after, 1000 * SECOND);
    }
    stop(&f);
}

/* After one refusal, two limits ban the key. */
TEST(of_two_bans_the_longer_one_is_in_force) {
    static const char limits[] =
        "{\"name\": \"long\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, "
        "\"ban\": {\"refusals\": 1, \"window\": 10, \"duration\": 100}},"
        "{\"name\": \"short\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, \"size\": 1, "
        "\"ban\": {\"refusals\": 1, \"window\": 10, \"duration\": 20}}";
    fixture f = start_config(limits_of(limits));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    assert_false(acquire(&f, "r", "a", 1));
    assert_string_equal(f.out.limit, "long");
    assert_int_equal(f.out.retry_after, 100 * SECOND);
    pass(&f, 100 * SECOND - 1);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 1));
    stop(&f);
}

TEST(a_count_of_refusals_ends_with_its_window) {
    fixture f = start_config(limits_of(BANS));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    for (int i = 0; i < 20; i++) {
        assert_false(acquire(&f, "r", "a", 1));
        assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
        assert_false(acquire(&f, "r", "a", 1));
        pass(&f, 10 * SECOND + 1);
        assert_true(acquire(&f, "r", "a", 1));
    }
    assert_int_equal(f.events[DOORMAN_PERMIT_BANNED], 0);
    stop(&f);
}

TEST(reset_makes_a_key_fresh_and_ends_its_ban) {
    fixture f = start_config(limits_of(BANS ", " ALL));
    create(&f);
    for (int i = 0; i < 6; i++) (void)acquire(&f, "r", "a", 1);
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "a"), &f.out, NULL, f.now),
                     DOORMAN_OK);
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(f.out.detail_count, 2);
    assert_exact(f.out.details[0].used, 1);
    size_t count = 0;
    assert_int_equal(doorman_permits_reset(f.permits, ITEM_OF("r", "a"), NULL, &count, NULL),
                     DOORMAN_OK);
    assert_int_equal(count, 2);
    assert_true(acquire(&f, "r", "a", 1));
    assert_exact(f.out.details[1].used, 2); /* the counter of all keys has stayed */
    assert_int_equal(doorman_permits_reset(f.permits, ITEM_OF("r", "a"), "all", &count, NULL),
                     DOORMAN_OK);
    assert_int_equal(count, 1);
    assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "a"), &f.out, NULL, f.now),
                     DOORMAN_OK);
    assert_exact(f.out.details[1].used, 0);
    assert_int_equal(doorman_permits_reset(f.permits, ITEM_OF("none", NULL), NULL, &count, NULL),
                     DOORMAN_OK);
    assert_int_equal(count, 0);
    stop(&f);
}

/* P20 */
static doorman_status ban(fixture *f, const char *id, const char *key, doorman_time duration) {
    return doorman_permits_ban(f->permits, ITEM_OF(id, key), duration, NULL, f->now);
}

TEST(a_ban_can_be_set_changed_and_ended) {
    fixture f = start_config(limits_of(BUCKET));
    create(&f);
    assert_int_equal(ban(&f, "r", "a", 10 * SECOND), DOORMAN_OK);
    assert_int_equal(f.events[DOORMAN_PERMIT_BANNED], 1);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(f.out.retry_after, 10 * SECOND);
    assert_true(acquire(&f, "r", "b", 1));
    assert_true(acquire(&f, "s", "a", 1));
    assert_int_equal(ban(&f, "r", "a", 2 * SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", NULL, 2 * SECOND), DOORMAN_OK);
    pass(&f, 2 * SECOND - 1);
    assert_false(acquire(&f, "r", "a", 1));
    assert_false(acquire(&f, "r", "", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 1));
    assert_int_equal(ban(&f, "r", "a", DOORMAN_DURATION_MAX), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", "a", 0), DOORMAN_OK);
    assert_int_equal(ban(&f, "none", "a", 0), DOORMAN_OK);
    assert_true(acquire(&f, "r", "a", 1));
    doorman_permits_info info;
    doorman_permits_read(f.permits, &info);
    assert_int_equal(info.banned, 3);
    assert_true(info.ban_count <= 1); /* the ban of the empty key, until a sweep */
    assert_int_equal(ban(&f, "r", "a", -1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(ban(&f, "", "a", 1), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(ban(&f, "r", "a", DOORMAN_DURATION_MAX + 1), DOORMAN_INVALID_ARGUMENT);
    stop(&f);
}

TEST(a_ban_holds_also_where_nothing_is_limited) {
    static const char text[] = "{\"resources\": [{\"identifier_glob\": \"free\", \"limits\": []}]}";
    fixture f = start_config(config_of(text));
    create(&f);
    assert_int_equal(ban(&f, "free", "a", SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "unknown", "a", SECOND), DOORMAN_OK);
    assert_false(acquire(&f, "free", "a", 1));
    assert_false(acquire(&f, "unknown", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    assert_true(acquire(&f, "unknown", "b", 1));
    pass(&f, SECOND);
    assert_true(acquire(&f, "unknown", "a", 1));
    assert_true(acquire(&f, "free", "a", 1));
    stop(&f);
}

/* P13 */
TEST(a_report_charges_what_was_used) {
    fixture f = start_config(limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": "
                                       "10, \"size\": 5, \"refunds\": true},"
                                       "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": "
                                       "7, \"window\": 60, \"refunds\": true}"));
    create(&f);
    double charged = -1;
    assert_int_equal(
        doorman_permits_report(f.permits,
                               &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = 4},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(charged, 4);
    assert_int_equal(
        doorman_permits_report(f.permits,
                               &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = 99},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(charged, 5); /* max_cost of the bucket; the window takes 7 */
    assert_int_equal(
        doorman_permits_report(f.permits,
                               &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = 99},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(charged, 1); /* the debt is at most size / rate */
    assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "a"), &f.out, NULL, f.now),
                     DOORMAN_OK);
    assert_exact(f.out.details[0].used, 10);
    assert_int_equal(
        doorman_permits_report(f.permits,
                               &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = -99},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(charged, -10);
    assert_true(acquire(&f, "r", "a", 5));
    assert_int_equal(
        doorman_permits_report(
            f.permits, &(doorman_permit_item){.resource_id = "r", .key = "a", .cost = (double)NAN},
            &charged, NULL, f.now),
        DOORMAN_INVALID_ARGUMENT);
    stop(&f);
}

/* P18 */
TEST(a_counter_for_refusals_is_created_with_an_event) {
    fixture f = start_config(limits_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": "
                                       "1, \"window\": 60, \"on_restart\": \"empty\", \"ban\": "
                                       "{\"refusals\": 3, \"window\": 60, \"duration\": 60}}"));
    create(&f);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(counters(&f), 1);
    assert_int_equal(f.events[DOORMAN_PERMIT_KEY_CREATED], 1);
    stop(&f);
}

/* P14 */
TEST(idle_counters_are_removed) {
    fixture f = start_config(limits_of(BUCKET ", " BANS2 ", " ALL));
    create(&f);
    char key[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "%d", i % 7);
        (void)acquire(&f, i % 2 ? "r" : "s", key, 1);
    }
    assert_true(counters(&f) > 0);
    assert_true(doorman_permits_due(f.permits) < DOORMAN_NEVER);
    pass(&f, 200 * SECOND);
    for (int i = 0; i < 10; i++) doorman_permits_update(f.permits, f.now);
    doorman_permits_info info;
    doorman_permits_read(f.permits, &info);
    assert_int_equal(info.counter_count + info.ban_count + info.resource_count, 0);
    assert_int_equal(f.permits->node_bytes, 0);
    assert_int_equal(doorman_permits_due(f.permits), DOORMAN_NEVER);
    assert_true(f.events[DOORMAN_PERMIT_KEY_CREATED] == f.events[DOORMAN_PERMIT_KEY_REMOVED]);
    stop(&f);
}

/* P19 */
TEST(counters_stay_within_max_keys) {
    for (int refuse = 0; refuse < 2; refuse++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 2, \"window\": 60, "
                 "\"max_keys\": 50, \"overflow\": \"%s\"}",
                 refuse ? "refuse" : "evict");
        fixture f = start_config(limits_of(text));
        create(&f);
        size_t refused = 0;
        for (int i = 0; i < 5000; i++) {
            snprintf(text, sizeof text, "%d", i);
            if (!acquire(&f, "r", text, 1)) refused++;
            if (!f.out.granted) assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_KEYS);
            assert_true(counters(&f) <= 50);
        }
        assert_int_equal(refused, refuse ? 4950 : 0);
        assert_int_equal(f.events[DOORMAN_PERMIT_KEY_EVICTED], refuse ? 0 : 4950);
        stop(&f);
    }
}

TEST(memory_stays_within_its_bound) {
    fixture f = start_config(limits_of(BUCKET));
    const doorman_permits_options options = {
        .config = f.config, .seed = {7, 9}, .counter_max = 1000, .memory_max = 20000};
    create_with(&f, &options);
    char key[32];
    for (int i = 0; i < 3000; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        assert_true(acquire(&f, "r", key, 1));
        assert_true(f.permits->node_bytes <= 20000 && counters(&f) <= 1000);
    }
    stop(&f);
}

TEST(wrong_requests_are_named_by_path) {
    fixture f = start_config(limits_of(BUCKET));
    create(&f);
    char long_key[300];
    memset(long_key, 'x', 257);
    long_key[257] = 0;
    const struct {
        doorman_permit_item item;
        const char *error;
    } wrong[] = {
        {{.resource_id = NULL, .cost = 1}, "items[0].resource_id: "},
        {{.resource_id = "r", .key = long_key, .cost = 1}, "items[0].key: must be 0 to 256 bytes"},
        {{.resource_id = "r", .key = "\xff", .cost = 1}, "items[0].key: must be 0 to 256 bytes"},
        {{.resource_id = "r", .cost = -1}, "items[0].cost: "},
        {{.resource_id = "r", .cost = (double)NAN}, "items[0].cost: "},
        {{.resource_id = "r", .cost = 1.1e15}, "items[0].cost: "},
        {{.resource_id = "r", .cost = 1, .has_min = true, .min = 2},
         "items[0].min: must be from 0"},
        {{.resource_id = "r", .cost = 1, .min = 1}, "items[0].min: needs has_min"},
    };
    doorman_error error;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        doorman_permit_request request = {.items = &wrong[i].item, .item_count = 1};
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, &error, f.now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_true(strstr(error.text, wrong[i].error) == error.text);
    }
    doorman_permit_item items[101];
    for (int i = 0; i < 101; i++) items[i] = (doorman_permit_item){.resource_id = "r", .cost = 0};
    const doorman_permit_request many = {.items = items, .item_count = 101};
    assert_int_equal(doorman_permits_acquire(f.permits, &many, &f.out, &error, f.now),
                     DOORMAN_RESOURCE_EXHAUSTED);
    long_key[256] = 0;
    assert_true(acquire(&f, "r", long_key, 1) && acquire(&f, "r", long_key, 4));
    assert_false(acquire(&f, "r", long_key, 1));
    assert_false(acquire(&f, "r", "a", 1e15));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    stop(&f);
}

/* ---- time ----------------------------------------------------------------------------------- */

#define CALENDAR(unit)                                                                             \
    "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": \"" unit "\"}"

/* Acquires at a time of the calendar, and returns when the window ends, in seconds since 1970. */
static int64_t end_of_window(const char *limits, int64_t at) {
    fixture f = start_config(limits_of(limits));
    f.epoch = at * SECOND;
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    assert_false(acquire(&f, "r", "a", 1));
    doorman_time rest = f.out.retry_after;
    pass(&f, rest - 1);
    assert_false(acquire(&f, "r", "a", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 1));
    stop(&f);
    assert_int_equal(rest % SECOND, 0);
    return at + rest / SECOND;
}

TEST(windows_follow_the_calendar) {
    assert_int_equal(end_of_window(CALENDAR("minute"), 1700000000), 1700000040);
    assert_int_equal(end_of_window(CALENDAR("hour"), 1700000000), 1700002800);
    assert_int_equal(end_of_window(CALENDAR("day"), 1700000000), 1700006400);
    assert_int_equal(end_of_window(CALENDAR("week"), 1700000000), 1700438400); /* a Monday */
    assert_int_equal(end_of_window(CALENDAR("week"), 0), 4 * 86400);
    assert_int_equal(end_of_window(CALENDAR("month"), 0), 31 * 86400);
    assert_int_equal(end_of_window(CALENDAR("month"), 1706659200), 1706745600); /* 31 January */
    assert_int_equal(end_of_window(CALENDAR("month"), 1709164800), 1709251200); /* 29 February */
    for (int64_t day = 0; day < 50000; day += 13) {
        doorman__span span = doorman__span_of_month(day * DOORMAN__DAY);
        time_t at = (time_t)(day * 86400);
        struct tm tm = *gmtime(&at);
        tm.tm_mday = 1;
        tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
        assert_int_equal(span.begin / SECOND, timegm(&tm));
        tm.tm_mon++;
        assert_int_equal(span.end / SECOND, timegm(&tm));
    }
}

/* P26 */
TEST(windows_go_on_when_the_clock_steps_back) {
    fixture f = start_config(limits_of(CALENDAR("minute")));
    f.epoch = 1700000040 * SECOND;
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    set_epoch(&f, f.epoch - 365 * 86400 * SECOND);
    assert_false(acquire(&f, "r", "a", 1));
    doorman_time rest = f.out.retry_after;
    assert_int_equal(rest, 64 * SECOND - 1); /* the clock runs at 15/16 of its speed */
    pass(&f, rest - 1);
    assert_false(acquire(&f, "r", "a", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 1));
    /* the clock is right again, and another window has begun */
    set_epoch(&f, f.epoch + 366 * 86400 * SECOND);
    assert_true(acquire(&f, "r", "a", 1));
    f.now -= 500 * SECOND; /* time that goes back stands still */
    assert_false(acquire(&f, "r", "a", 1));
    stop(&f);
}

/* P16 */
TEST(nothing_is_saved_at_the_start_if_the_limit_says_so) {
    static const struct {
        const char *kind;
        doorman_time rest;
    } kinds[] = {{"\"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 5", SECOND / 2},
                 {"\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 40", 40 * SECOND},
                 {"\"kind\": \"SLIDING_WINDOW\", \"limit\": 5, \"window\": 40", 40 * SECOND}};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"name\": \"e\", %s, \"on_restart\": \"empty\"}",
                 kinds[i].kind);
        fixture f = start_config(limits_of(text));
        create(&f);
        assert_false(acquire(&f, "r", "a", 1));
        assert_int_equal(f.out.retry_after, kinds[i].rest);
        pass(&f, kinds[i].rest - 1);
        assert_false(acquire(&f, "r", "a", 1));
        pass(&f, 1);
        assert_true(acquire(&f, "r", "a", 1));
        pass(&f, 100 * SECOND);
        assert_true(acquire(&f, "r", "b", 5));
        stop(&f);
    }
}

/* P16: the first epoch may be set late, and still tells the epoch of the creation. */
TEST(the_first_epoch_says_in_which_window_the_permits_began) {
    const doorman_time minute = 1700000040 * SECOND;
    for (doorman_time at = 5; at <= 15; at += 10) {
        fixture f =
            start_config(limits_of("{\"name\": \"e\", \"kind\": \"FIXED_WINDOW\", \"limit\": 5, "
                                   "\"window\": 60, \"on_restart\": \"empty\"}"));
        const doorman_permits_options options = {.config = f.config, .seed = {7, 9}};
        assert_int_equal(doorman_permits_create(&f.permits, &options, NULL, f.now), DOORMAN_OK);
        pass(&f, 10 * SECOND);
        set_epoch(&f, minute + at * SECOND);
        assert_int_equal(acquire(&f, "r", "a", 5), at < 10);
        set_epoch(&f, minute + 86400 * SECOND); /* a later one does not change it */
        assert_true(acquire(&f, "r", "b", 5));
        stop(&f);
    }
}

/* P12, the example of the comment */
TEST(tiers_are_entered_one_after_the_other) {
    fixture f = start_config(
        limits_of("{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 100, \"window\": "
                  "60, \"active\": 60},"
                  "{\"limit\": 300, \"window\": 60, \"active\": 120, \"cooldown\": 600}]}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 150));
    assert_int_equal(f.out.details[0].tier, 2);
    assert_true(f.out.details[0].moved_up);
    assert_exact(f.out.details[0].remaining, 250);
    assert_true(acquire(&f, "r", "a", 250));
    assert_false(f.out.details[0].moved_up);
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.retry_after, 60 * SECOND); /* the window of tier 2 */
    pass(&f, 60 * SECOND);
    assert_true(acquire(&f, "r", "a", 300));
    pass(&f, 60 * SECOND); /* no tier is active */
    assert_true(acquire(&f, "r", "a", 100));
    assert_int_equal(f.out.details[0].tier, 1);
    assert_false(acquire(&f, "r", "a", 1)); /* tier 2 cools down */
    pass(&f, 599 * SECOND);
    assert_true(acquire(&f, "r", "a", 100));
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.retry_after, SECOND); /* tier 2 can be entered at 720 s */
    pass(&f, SECOND);
    assert_true(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.details[0].tier, 2);
    stop(&f);
}

/* ---- reload (P15) --------------------------------------------------------------------------- */

/* P12: the end of a tier frees no units before their window has passed. */
TEST(a_tier_that_is_entered_again_has_its_units_in_its_window) {
    fixture f = start_config(limits_of("{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": "
                                       "[{\"limit\": 10, \"window\": 2, \"active\": 2}]}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    pass(&f, 2 * SECOND - SECOND / 10);
    assert_true(acquire(&f, "r", "a", 9));
    pass(&f, SECOND / 10); /* the tier ends, and the first unit returns */
    assert_exact(f.out.details[0].used, 10);
    assert_true(acquire(&f, "r", "a", 1));
    assert_true(f.out.details[0].moved_up);
    assert_exact(f.out.details[0].used, 10);
    assert_false(acquire(&f, "r", "a", 1));
    assert_true(f.out.retry_after > SECOND && f.out.retry_after < 2 * SECOND);
    pass(&f, f.out.retry_after - 1);
    assert_false(acquire(&f, "r", "a", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 9));
    pass(&f, 4 * SECOND);
    assert_true(acquire(&f, "r", "a", 10)); /* the window is empty: it begins with this hit */
    pass(&f, 2 * SECOND - 1);
    assert_false(acquire(&f, "r", "a", 1));
    pass(&f, 1);
    assert_true(acquire(&f, "r", "a", 10));
    stop(&f);
}

static void configure(fixture *f, doorman_config *config) {
    assert_int_equal(doorman_permits_configure(f->permits, config), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = config;
}

/* P16: a window of changed length is fresh. With on_restart: empty, a fresh window that contains
 * the start is used up. */
TEST(a_changed_window_that_contains_the_start_is_used_up) {
    static const char limit[] = "{\"name\": \"w\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 5, "
                                "\"window\": %d, \"on_restart\": \"empty\"}";
    char text[200];
    snprintf(text, sizeof text, limit, 10);
    fixture f = start_config(limits_of(text));
    create(&f);
    pass(&f, 20 * SECOND);
    assert_true(acquire(&f, "r", "a", 1));
    snprintf(text, sizeof text, limit, 100);
    configure(&f, limits_of(text));
    assert_false(acquire(&f, "r", "a", 1)); /* the counter exists */
    assert_false(acquire(&f, "r", "b", 1));
    pass(&f, 100 * SECOND);
    assert_true(acquire(&f, "r", "a", 5) && acquire(&f, "r", "b", 5));
    stop(&f);
}

/* P18: with an empty list of limits, users can learn what a limit could be. */
TEST(an_empty_list_of_limits_counts_what_it_grants) {
    static const char open[] = "{\"resources\": [{\"identifier_glob\": \"a*\", \"limits\": []},"
                               "{\"identifier_glob\": \"b\", \"limits\": [" BUCKET "]},"
                               "{\"identifier_glob\": \"c\", \"capacity\": 1},"
                               "{\"identifier_glob\": \"d\", \"limits\": []}]}";
    fixture f = start_config(config_of(open));
    create(&f);
    const doorman_permit_item items[] = {{.resource_id = "a1", .key = "ann", .cost = 2.5},
                                         {.resource_id = "b", .key = "ann", .cost = 9}};
    assert_false(acquire_items(&f, items, 2, 0)); /* refused by b: nothing was granted */
    assert_true(acquire_items(&f, items, 1, 0));
    assert_true(acquire(&f, "a2", "bob", 1) && acquire(&f, "d", "bob", 1));
    assert_true(acquire(&f, "a2", "bob", 0)); /* only looks */
    assert_int_equal(counters(&f), 0);
    for (int reloaded = 0; reloaded < 2; reloaded++) {
        doorman_permits_limit limit;
        doorman_cursor cursor = {0};
        assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
        assert_string_equal(limit.limit, "b");
        assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
        assert_string_equal(limit.identifier_glob, "a*");
        assert_string_equal(limit.limit, "");
        assert_null(limit.settings);
        assert_int_equal(limit.granted, 2);
        assert_exact(limit.granted_units, 3.5);
        assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
        assert_string_equal(limit.identifier_glob, "d");
        assert_int_equal(limit.granted, 1);
        assert_false(doorman_permits_next_limit(f.permits, &cursor, &limit));
        doorman_permits_top top;
        doorman_cursor tops = {0};
        assert_true(doorman_permits_next_top(f.permits, 1, DOORMAN_TOP_GRANTED, &tops, &top));
        assert_string_equal(top.key, "ann");
        configure(&f, config_of(open)); /* a reload keeps the counts */
        for (int i = 0; i < 10; i++) doorman_permits_update(f.permits, f.now);
    }
    configure(&f, limits_of(BUCKET)); /* the slots are freed */
    for (int i = 0; i < 10; i++) doorman_permits_update(f.permits, f.now);
    assert_true(acquire(&f, "a1", "ann", 1));
    stop(&f);
}

/* P18 */
TEST(an_event_names_the_limit_that_a_counter_had) {
    fixture f = start_config(limits_of(ALL));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    configure(&f, limits_of(BUCKET));
    f.limit[0] = 0;
    doorman_permits_update(f.permits, f.now);
    assert_int_equal(f.events[DOORMAN_PERMIT_KEY_REMOVED], 1);
    assert_string_equal(f.limit, "all");
    stop(&f);
}

TEST(a_bucket_keeps_its_level_when_the_rate_changes) {
    fixture f = start_config(limits_of(BUCKET));
    create(&f);
    assert_true(acquire(&f, "r", "a", 4));
    configure(&f,
              limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 9}"));
    assert_true(acquire(&f, "r", "a", 0));
    assert_exact(f.out.items[0].remaining, 1);
    pass(&f, 3 * SECOND);
    assert_true(acquire(&f, "r", "a", 0));
    assert_exact(f.out.items[0].remaining, 4);
    configure(&f,
              limits_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 2}"));
    assert_true(acquire(&f, "r", "a", 2));
    assert_false(acquire(&f, "r", "a", 1));
    configure(&f, limits_of(ALL));
    configure(&f, limits_of(BUCKET)); /* another limit came between, so the bucket is fresh */
    assert_true(acquire(&f, "r", "a", 5));
    stop(&f);
}

TEST(a_lowered_limit_grants_nothing_until_usage_is_below_it) {
    fixture f = start_config(limits_of(ALL));
    create(&f);
    assert_true(acquire(&f, "r", "a", 7));
    configure(&f,
              limits_of("{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", "
                        "\"limit\": 3, \"window\": 60}"));
    assert_false(acquire(&f, "r", "a", 1));
    configure(&f,
              limits_of("{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", "
                        "\"limit\": 9, \"window\": 60}"));
    assert_true(acquire(&f, "r", "a", 2));
    assert_false(acquire(&f, "r", "a", 1));
    configure(&f,
              limits_of("{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", "
                        "\"limit\": 9, \"window\": 61}"));
    assert_true(acquire(&f, "r", "a", 9)); /* a window of changed length starts fresh */
    stop(&f);
}

TEST(counters_follow_their_resource_to_another_template) {
    fixture f = start_config(limits_of(BUCKET ", " BANS2));
    create(&f);
    assert_true(acquire(&f, "api-x", "a", 4));
    configure(&f, config_of("{\"resources\": [{\"identifier_glob\": \"api-*\", \"limits\": [" BUCKET
                            "]},"
                            "{\"identifier_glob\": \"*\", \"limits\": [" BUCKET "]}]}"));
    assert_true(acquire(&f, "api-x", "a", 0));
    assert_exact(f.out.items[0].remaining, 1);
    assert_true(acquire(&f, "api-y", "a", 5));
    doorman_permits_limit limit;
    doorman_cursor cursor = {0};
    assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
    assert_string_equal(limit.identifier_glob, "api-*");
    assert_exact(limit.granted_units, 5);
    stop(&f);
}

TEST(bans_stay_when_the_configuration_changes) {
    fixture f = start_config(limits_of(BANS));
    create(&f);
    for (int i = 0; i < 4; i++) (void)acquire(&f, "r", "a", 1);
    configure(&f, limits_of(ALL));
    assert_false(acquire(&f, "r", "a", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_BANNED);
    stop(&f);
}

/* A refusal at the end of the window of a ban counts for the ban. A later refusal does not. */
TEST(a_count_of_refusals_includes_the_end_of_its_window) {
    for (int late = 0; late < 2; late++) {
        fixture f = start_config(limits_of(BANS));
        create(&f);
        assert_true(acquire(&f, "r", "a", 1));
        assert_false(acquire(&f, "r", "a", 1));
        pass(&f, 10 * SECOND + late - SECOND / 2);
        assert_true(acquire(&f, "r", "a", 1)); /* the bucket is empty again */
        pass(&f, SECOND / 2);
        for (int i = 0; i < 2; i++) assert_false(acquire(&f, "r", "a", 1));
        assert_int_equal(f.events[DOORMAN_PERMIT_BANNED], !late);
        stop(&f);
    }
}

/* A resource that leaves a template and comes back finds no counters of the time before. */
TEST(counters_do_not_come_back_with_a_template) {
#define TWO(other)                                                                                 \
    "{\"resources\": [{\"identifier_glob\": \"" other "\", \"limits\": [" ALL                      \
    "]}, {\"identifier_glob\": \"*\", \"limits\": [" BUCKET "]}]}"
    fixture f = start_config(config_of(TWO("none")));
    create(&f);
    assert_true(acquire(&f, "r", "a", 4));
    assert_true(acquire(&f, "r", "b", 4));
    configure(&f, config_of(TWO("r")));
    configure(&f, config_of(TWO("none")));
    assert_true(acquire(&f, "r", "b", 5));
    stop(&f);
}

TEST(windows_of_different_lengths_are_different_at_the_same_end) {
    fixture f = start_config(limits_of(CALENDAR("hour")));
    f.epoch = (1700002800 - 30) * SECOND; /* the last minute of an hour */
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    configure(&f, limits_of(CALENDAR("minute")));
    assert_true(acquire(&f, "r", "a", 1));
    assert_false(acquire(&f, "r", "a", 1));
    stop(&f);
}

/* ---- random decisions against a model ------------------------------------------------------- */
/*
 * The model keeps a log of all charges of each counter, and adds up what still counts. It knows
 * nothing of slots, slices in rings or stored levels. Tiers are as the paper of Charon describes
 * them: one hit of one unit after the other. Rates and times are such that all amounts are exact in
 * a double.
 */

enum {
    MODEL_COUNTERS = 4096,
    MODEL_LOG = 512,
    MODEL_ITEMS = 4,
    MODEL_KEYS = 4,
    MODEL_RESOURCES = 4
};
#define STEP (SECOND / 8)

typedef struct model_hit {
    doorman_time at, end; /* when; FIXED_WINDOW: the end of its window */
    double units;
} model_hit;

typedef struct model_tier {
    bool entered;
    doorman_time at, window, origin; /* origin: when the slices of the window begin */
    size_t count;
    model_hit hits[MODEL_LOG];
} model_tier;

typedef struct model_counter {
    char name[96]; /* "": free */
    bool exists;
    double level; /* TOKEN_BUCKET */
    doorman_time at, window;
    size_t count;
    model_hit hits[MODEL_LOG];
    model_tier tiers[3];
    uint32_t refusals;
    doorman_time refusals_since;
} model_counter;

typedef struct model_ban {
    char name[64];
    doorman_time until;
} model_ban;

typedef struct model {
    model_counter *counters;
    model_ban bans[MODEL_KEYS * MODEL_RESOURCES];
    doorman_time now, epoch, rest; /* P26 */
    doorman_time given;
} model;

static const char *const model_keys[MODEL_KEYS] = {"", "ann", "vip-1", "bob"};
static const char *const model_resources[MODEL_RESOURCES] = {"r", "api-x", "beta-y", "s"};

/* Returns whether a glob matches. The globs of the test are literals or end with one `*`. */
static bool model_glob(const char *glob, const char *text) {
    size_t bytes = strlen(glob);
    if (bytes && glob[bytes - 1] == '*') return strncmp(glob, text, bytes - 1) == 0;
    return strcmp(glob, text) == 0;
}

static const doorman_template *model_template(const doorman_config_options *config,
                                              const char *id) {
    for (size_t i = 0; i < config->template_count; i++) {
        if (strcmp(config->templates[i].identifier_glob, id) == 0) return &config->templates[i];
    }
    for (size_t i = 0; i < config->template_count; i++) {
        if (model_glob(config->templates[i].identifier_glob, id)) return &config->templates[i];
    }
    return NULL;
}

static bool model_concerns(const char *const *keys, size_t count, const char *key) {
    bool any = false, positive = false, excluded = false;
    for (size_t i = 0; i < count; i++) {
        if (keys[i][0] == '!') {
            excluded = excluded || model_glob(keys[i] + 1, key);
        } else {
            positive = true;
            any = any || model_glob(keys[i], key);
        }
    }
    return !excluded && (any || !positive);
}

static const doorman_figures *model_figures(const doorman_permit_limit *limit, const char *key) {
    for (size_t i = 0; i < limit->override_count; i++) {
        const doorman_override *o = &limit->overrides[i];
        if (model_concerns(o->keys, o->key_count, key)) return &o->figures;
    }
    return &limit->figures;
}

static void model_name(char *out, size_t bytes, const doorman_template *template_,
                       const doorman_permit_limit *limit, const char *id, const char *key) {
    if (limit->per == DOORMAN_PER_TEMPLATE) {
        snprintf(out, bytes, "t %s %s %d", template_->identifier_glob, limit->name, limit->kind);
    } else {
        bool per_key = limit->per == DOORMAN_PER_KEY;
        snprintf(out, bytes, "%s %s %s %d%s%s", per_key ? "k" : "r", id, limit->name, limit->kind,
                 per_key ? " " : "", per_key ? key : "");
    }
}

static model_counter *model_find(model *m, const char *name) {
    for (size_t i = 0; i < MODEL_COUNTERS; i++) {
        model_counter *c = &m->counters[i];
        if (!c->name[0]) snprintf(c->name, sizeof c->name, "%s", name);
        if (strcmp(c->name, name) == 0) return c;
    }
    fail();
    return NULL;
}

static doorman_time model_window_end(const doorman_figures *f, doorman_time epoch) {
    if (!f->calendar) return (epoch / f->window + 1) * f->window;
    time_t at = (time_t)(epoch / SECOND);
    struct tm tm = *gmtime(&at);
    tm.tm_sec = 0;
    if (f->calendar == DOORMAN_MINUTE) tm.tm_min++;
    if (f->calendar >= DOORMAN_HOUR) tm.tm_min = 0;
    if (f->calendar == DOORMAN_HOUR) tm.tm_hour++;
    if (f->calendar >= DOORMAN_DAY) tm.tm_hour = 0;
    if (f->calendar == DOORMAN_DAY) tm.tm_mday++;
    if (f->calendar == DOORMAN_WEEK) tm.tm_mday += 7 - (tm.tm_wday + 6) % 7;
    if (f->calendar == DOORMAN_MONTH) tm.tm_mday = 1, tm.tm_mon++;
    return (doorman_time)timegm(&tm) * SECOND;
}

static int64_t model_slice(doorman_time since, doorman_time window) {
    return since / window * 16 + since % window * 16 / window;
}

/* Returns the units of the hits that count in a window of 16 slices, which begin at `base`. */
static double model_sum(const model_hit *hits, size_t count, doorman_time base, doorman_time window,
                        doorman_time now) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t slice = model_slice(hits[i].at - base, window);
        if (slice + 16 > model_slice(now - base, window)) sum += hits[i].units;
    }
    return sum;
}

static void model_add(model_hit *hits, size_t *count, model_hit hit, doorman_time keep) {
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (hits[i].at + keep >= hit.at) hits[kept++] = hits[i];
    }
    assert_true(kept < MODEL_LOG);
    hits[kept++] = hit;
    *count = kept;
}

/* ---- the model of TIERS */

static bool model_tier_active(const model_tier *t, const doorman_tier *d, doorman_time now) {
    return t->entered && now < t->at + d->active;
}

static bool model_tier_cools(const model_tier *t, const doorman_tier *d, doorman_time now) {
    return t->entered && now >= t->at + d->active && now < t->at + d->active + d->cooldown;
}

static double model_tier_used(const model_tier *t, const doorman_tier *d, doorman_time now) {
    if (!t->entered || t->window != d->window) return 0;
    return model_sum(t->hits, t->count, t->origin, d->window, now);
}

/* Adds one hit. Returns whether it is accepted. */
static bool model_tiers_hit(model_counter *c, const doorman_figures *f, doorman_time now) {
    int current = -1; /* the tier before the first one is always active, and full */
    for (int i = 0; i < (int)f->tier_count; i++) {
        if (model_tier_active(&c->tiers[i], &f->tiers[i], now)) current = i;
    }
    if (current >= 0) {
        model_tier *t = &c->tiers[current];
        const doorman_tier *d = &f->tiers[current];
        double used = model_tier_used(t, d, now);
        if (used + 1 <= d->limit) {
            if (t->window != d->window) t->count = 0, t->origin = t->at;
            t->window = d->window;
            model_add(t->hits, &t->count, (model_hit){now, 0, 1}, d->window);
            return true;
        }
    }
    for (int i = current + 1; i < (int)f->tier_count; i++) {
        model_tier *t = &c->tiers[i];
        if (!f->tiers[i].active) continue;
        if (model_tier_cools(t, &f->tiers[i], now)) {
            if (f->tiers[i].skippable) continue;
            return false;
        }
        if (model_tier_used(t, &f->tiers[i], now) <= 0) {
            t->origin = now;
            t->window = f->tiers[i].window;
            t->count = 0;
        }
        t->entered = true;
        t->at = now;
        return model_tiers_hit(c, f, now);
    }
    return false;
}

static double model_tiers_offer(const model_counter *given, const doorman_figures *f,
                                doorman_time now) {
    static model_counter copy;
    double count = 0;
    copy = *given;
    while (count < 100 && model_tiers_hit(&copy, f, now)) count++;
    return count;
}

/* ---- the model of all kinds */

static double model_level(const model_counter *c, const doorman_figures *f, doorman_time now) {
    if (!c->exists) return f->size;
    double level = c->level + (double)(now - c->at) / 1e9 * f->rate;
    return level < f->size ? level : f->size;
}

static double model_used(const model *m, const model_counter *c, const doorman_permit_limit *limit,
                         const doorman_figures *f, doorman_time now, doorman_time epoch) {
    double sum = 0;
    (void)m;
    if (limit->kind == DOORMAN_SLIDING_WINDOW) {
        return c->window == f->window ? model_sum(c->hits, c->count, 0, f->window, now) : 0;
    }
    doorman_time end = model_window_end(f, epoch);
    for (size_t i = 0; i < c->count; i++) {
        if (c->hits[i].end == end && c->window == f->window + (doorman_time)f->calendar)
            sum += c->hits[i].units;
    }
    return sum;
}

static double model_offer(const model *m, const model_counter *c, const doorman_permit_limit *limit,
                          const doorman_figures *f, doorman_time max_wait, doorman_time now,
                          doorman_time epoch) {
    if (limit->kind == DOORMAN_TIERS) return model_tiers_offer(c, f, now);
    if (limit->kind != DOORMAN_TOKEN_BUCKET) {
        double used = model_used(m, c, limit, f, now, epoch);
        return used < f->limit ? f->limit - used : 0;
    }
    double level = model_level(c, f, now), owed = level < 0 ? -level : 0;
    double wait = (double)(max_wait < f->max_wait ? max_wait : f->max_wait) / 1e9;
    if (owed / f->rate > wait) return 0;
    double offer = level + f->rate * (double)f->max_debt / 1e9;
    return offer > 0 ? offer : 0;
}

static void model_charge(model *m, model_counter *c, const doorman_permit_limit *limit,
                         const doorman_figures *f, double units) {
    if (units <= 0) return;
    if (limit->kind == DOORMAN_TOKEN_BUCKET) {
        c->level = model_level(c, f, m->now) - units;
        c->at = m->now;
    } else if (limit->kind == DOORMAN_TIERS) {
        for (double i = 0; i < units; i++) assert_true(model_tiers_hit(c, f, m->now));
    } else {
        bool fixed = limit->kind == DOORMAN_FIXED_WINDOW;
        doorman_time window = f->window + (doorman_time)f->calendar; /* identifies the length */
        if (c->window != window) c->count = 0;
        c->window = window;
        doorman_time end = fixed ? model_window_end(f, m->epoch) : 0;
        if (fixed) {
            size_t kept = 0;
            for (size_t i = 0; i < c->count; i++) {
                if (c->hits[i].end == end) c->hits[kept++] = c->hits[i];
            }
            c->count = kept;
        }
        model_hit hit = {m->now, end, units};
        model_add(c->hits, &c->count, hit, fixed ? 1000000 * SECOND : f->window);
    }
    c->exists = true;
}

static void model_move(model *m, doorman_time now, doorman_time epoch) {
    doorman_time passed = now > m->now ? now - m->now : 0;
    doorman_time slowed = passed + m->rest;
    m->now += passed;
    m->rest = slowed % 16;
    doorman_time least = m->epoch + passed - slowed / 16;
    m->epoch = epoch > least ? epoch : least;
    m->given = epoch;
}

static model_ban *model_find_ban(model *m, const char *id, const char *key) {
    char name[64];
    snprintf(name, sizeof name, "%s %s", id, key);
    for (size_t i = 0; i < COUNT(m->bans); i++) {
        if (!m->bans[i].name[0]) snprintf(m->bans[i].name, sizeof m->bans[i].name, "%s", name);
        if (strcmp(m->bans[i].name, name) == 0) return &m->bans[i];
    }
    fail();
    return NULL;
}

/* What one counter must give, in the model of one decision. */
typedef struct model_need {
    model_counter *counter;
    const doorman_permit_limit *limit;
    const doorman_figures *figures;
    const char *id, *key;
    bool shadow, refuses, impossible;
    double need, offer, spare, granted;
    doorman_time wait;
} model_need;

typedef struct model_decision {
    bool granted;
    double units[MODEL_ITEMS];
    doorman_time wait;
    bool impossible, unmatched, banned;
    model_need needs[MODEL_ITEMS * 8];
    size_t need_count;
    size_t of_item[MODEL_ITEMS][8], of_count[MODEL_ITEMS];
} model_decision;

static void model_collect(model *m, const doorman_config_options *config,
                          const doorman_permit_request *request, model_decision *d) {
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        const doorman_template *template_ = model_template(config, item->resource_id);
        if (template_ && !template_->has_limits) {
            d->unmatched = true;
            continue;
        }
        if (model_find_ban(m, item->resource_id, item->key)->until > m->now) {
            d->banned = true;
            continue;
        }
        if (!template_) continue;
        bool dark = false;
        for (size_t j = 0; j < config->shadow_count; j++) {
            dark = dark || model_glob(config->shadow[j], item->resource_id);
        }
        for (size_t j = 0; j < template_->limit_count; j++) {
            const doorman_permit_limit *limit = &template_->limits[j];
            if (!model_concerns(limit->keys, limit->key_count, item->key)) continue;
            char name[96];
            model_name(name, sizeof name, template_, limit, item->resource_id, item->key);
            model_counter *counter = model_find(m, name);
            size_t n = 0;
            while (n < d->need_count && d->needs[n].counter != counter) n++;
            if (n == d->need_count) {
                memset(&d->needs[n], 0, sizeof d->needs[n]);
                d->needs[n].counter = counter;
                d->needs[n].limit = limit;
                d->needs[n].id = item->resource_id;
                d->needs[n].key = item->key;
                d->needs[n].figures = limit->per == DOORMAN_PER_KEY
                                          ? model_figures(limit, item->key)
                                          : &limit->figures;
                d->needs[n].shadow = true;
                d->need_count++;
            }
            if (!limit->shadow && !dark) d->needs[n].shadow = false;
            d->needs[n].need += item->has_min ? item->min : item->cost;
            d->of_item[i][d->of_count[i]++] = n;
        }
    }
}

static double model_most(const model_need *n) {
    const doorman_figures *f = n->figures;
    double most = f->limit;
    if (n->limit->kind == DOORMAN_TOKEN_BUCKET)
        most = f->size + f->rate * ((double)f->max_debt / 1e9);
    if (n->limit->kind == DOORMAN_TIERS) {
        most = 0;
        for (size_t i = 0; i < f->tier_count; i++)
            most += f->tiers[i].active ? f->tiers[i].limit : 0;
    }
    return n->limit->has_max_cost && n->limit->max_cost < most ? n->limit->max_cost : most;
}

static void model_evaluate(model *m, const doorman_permit_request *request, model_decision *d) {
    d->granted = !d->unmatched && !d->banned;
    for (size_t i = 0; i < d->need_count; i++) {
        model_need *n = &d->needs[i];
        n->offer =
            model_offer(m, n->counter, n->limit, n->figures, request->max_wait, m->now, m->epoch);
        n->impossible = n->need > model_most(n);
        n->refuses = n->impossible || n->need > n->offer;
        double saved = n->offer;
        if (n->limit->kind == DOORMAN_TOKEN_BUCKET) {
            saved = model_level(n->counter, n->figures, m->now);
            if (saved < 0) n->wait = (doorman_time)ceil(-saved / n->figures->rate * 1e9);
        }
        if (n->limit->has_max_cost && n->limit->max_cost < saved) saved = n->limit->max_cost;
        n->spare = saved > n->need ? saved - n->need : 0;
        if (n->refuses && !n->shadow) d->granted = false;
        if (n->impossible && !n->shadow) d->impossible = true;
    }
}

static void model_commit(model *m, const doorman_permit_request *request, model_decision *d) {
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        double min = item->has_min ? item->min : item->cost, extra = item->cost - min;
        for (size_t j = 0; j < d->of_count[i]; j++) {
            const model_need *n = &d->needs[d->of_item[i][j]];
            if (!n->shadow && n->spare < extra) extra = floor(n->spare);
        }
        d->units[i] = min + extra;
        for (size_t j = 0; j < d->of_count[i]; j++) {
            model_need *n = &d->needs[d->of_item[i][j]];
            n->granted += min + extra;
            n->spare = n->spare > extra ? n->spare - extra : 0;
        }
    }
    for (size_t i = 0; i < d->need_count; i++) {
        model_need *n = &d->needs[i];
        double charge = n->shadow && n->granted > n->offer ? n->offer : n->granted;
        if (n->limit->kind == DOORMAN_TIERS) charge = floor(charge);
        if (n->refuses) charge = 0;
        model_charge(m, n->counter, n->limit, n->figures, charge);
        if (!n->shadow && n->granted > 0 && n->wait > d->wait) d->wait = n->wait;
    }
}

/* Counts the refusals of a decision. Returns the longest of the bans that begin now, or 0. */
static doorman_time model_count_refusals(model *m, model_decision *d) {
    doorman_time banned = 0;
    for (size_t i = 0; i < d->need_count; i++) {
        model_need *n = &d->needs[i];
        const doorman_ban *ban = &n->limit->ban;
        if (!n->refuses || n->shadow || n->impossible || !ban->refusals) continue;
        model_counter *c = n->counter;
        if (!c->exists && n->limit->kind == DOORMAN_TOKEN_BUCKET)
            c->level = n->figures->size, c->at = m->now;
        c->exists = true;
        if (!c->refusals || m->now > c->refusals_since + ban->window) {
            c->refusals = 0;
            c->refusals_since = m->now;
        }
        if (++c->refusals < ban->refusals) continue;
        c->refusals = 0;
        model_ban *longest = model_find_ban(m, n->id, n->key);
        doorman_time until = m->now + ban->duration;
        if (longest->until < until) longest->until = until;
        if (ban->duration > banned) banned = ban->duration;
    }
    return banned;
}

/* Returns whether the permit would fit after this delay, if nothing else happened. */
static bool model_fits_at(model *m, const model_decision *d, const doorman_permit_request *request,
                          doorman_time delay) {
    doorman_time slowed = delay + m->rest;
    doorman_time least = m->epoch + delay - slowed / 16, given = m->given + delay;
    doorman_time epoch = given > least ? given : least;
    for (size_t i = 0; i < d->need_count; i++) {
        const model_need *n = &d->needs[i];
        if (n->shadow || !n->refuses) continue;
        double offer = model_offer(m, n->counter, n->limit, n->figures, request->max_wait,
                                   m->now + delay, epoch);
        if (n->need > offer) return false;
    }
    return true;
}

static void model_clear(model_counter *c) {
    char name[96];
    snprintf(name, sizeof name, "%s", c->name);
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
}

static bool model_fresh(const model *m, const model_counter *c, const doorman_permit_limit *limit,
                        const doorman_figures *f) {
    if (c->refusals && m->now <= c->refusals_since + limit->ban.window) return false;
    if (limit->kind == DOORMAN_TOKEN_BUCKET) return model_level(c, f, m->now) >= f->size;
    if (limit->kind != DOORMAN_TIERS) return model_used(m, c, limit, f, m->now, m->epoch) <= 0;
    for (size_t i = 0; i < f->tier_count; i++) {
        if (model_tier_active(&c->tiers[i], &f->tiers[i], m->now)) return false;
        if (model_tier_cools(&c->tiers[i], &f->tiers[i], m->now)) return false;
        if (model_tier_used(&c->tiers[i], &f->tiers[i], m->now) > 0) return false;
    }
    return true;
}

/* Removes the counters that equal fresh counters, and the tiers that are not in the configuration.
 * The test lets the permits do the same before it changes the configuration, because a counter that
 * is fresh now may not be fresh in the next configuration. */
static void model_settle(model *m, const doorman_config_options *config) {
    for (size_t r = 0; r < MODEL_RESOURCES; r++) {
        const doorman_template *template_ = model_template(config, model_resources[r]);
        for (size_t j = 0; template_ && j < template_->limit_count; j++) {
            for (size_t k = 0; k < MODEL_KEYS; k++) {
                const doorman_permit_limit *limit = &template_->limits[j];
                bool per_key = limit->per == DOORMAN_PER_KEY;
                const doorman_figures *f =
                    per_key ? model_figures(limit, model_keys[k]) : &limit->figures;
                char name[96];
                model_name(name, sizeof name, template_, limit, model_resources[r], model_keys[k]);
                model_counter *c = model_find(m, name);
                if (model_fresh(m, c, limit, f)) model_clear(c);
                for (size_t i = f->tier_count; i < COUNT(c->tiers); i++) {
                    memset(&c->tiers[i], 0, sizeof c->tiers[i]);
                }
            }
        }
    }
}

/* Removes the counters that a changed configuration does not keep. */
static void model_reload(model *m, const doorman_config_options *config) {
    for (size_t i = 0; i < MODEL_COUNTERS && m->counters[i].name[0]; i++) {
        bool kept = false;
        char name[96];
        for (size_t t = 0; t < config->template_count; t++) {
            const doorman_template *template_ = &config->templates[t];
            for (size_t j = 0; j < template_->limit_count; j++) {
                for (size_t r = 0; r < MODEL_RESOURCES; r++) {
                    if (model_template(config, model_resources[r]) != template_ &&
                        template_->limits[j].per != DOORMAN_PER_TEMPLATE) {
                        continue;
                    }
                    for (size_t k = 0; k < MODEL_KEYS; k++) {
                        model_name(name, sizeof name, template_, &template_->limits[j],
                                   model_resources[r], model_keys[k]);
                        if (strcmp(name, m->counters[i].name) != 0) continue;
                        kept = true;
                        /* a configuration without a ban forgets the refusals */
                        if (!template_->limits[j].ban.refusals) m->counters[i].refusals = 0;
                    }
                }
            }
        }
        if (!kept) model_clear(&m->counters[i]);
    }
}

/* ---- random configurations for the model */

static int pick(int bound) { return (int)random_below((size_t)bound); }

static void add_text(char *to, size_t room, const char *format, ...) {
    va_list values;
    va_start(values, format);
    size_t used = strlen(to);
    int bytes = vsnprintf(to + used, room - used, format, values);
    va_end(values);
    assert_true(bytes >= 0 && used + (size_t)bytes < room);
}

/* How long each tier is active, and how long it cools down. Both stay the same during a history. If
 * they grew, a tier that is over could be active again, unless it was removed before. */
static int tier_times[3][2];

static void random_tier_times(void) {
    for (int i = 0; i < 3; i++) {
        tier_times[i][0] = pick(4) ? pick(40) : 0;
        tier_times[i][1] = pick(40);
    }
}

static void random_figures(char *to, size_t room, int kind) {
    static const char *const rates[] = {"0.5", "8", "2", "16"};
    static const char *const windows[] = {"2",        "16",        "32",       "\"minute\"",
                                          "\"hour\"", "\"month\"", "\"week\"", "\"day\""};
    if (kind == 0) {
        int debt = pick(3);
        add_text(to, room, ", \"rate\": %s, \"size\": %d, \"max_debt\": %d, \"max_wait\": %d",
                 rates[pick(4)], pick(9) + (debt == 0), debt, pick(debt + 1));
    } else if (kind < 3) {
        add_text(to, room, ", \"limit\": %d, \"window\": %s", pick(12),
                 windows[pick(kind == 1 ? 8 : 3)]);
    } else {
        add_text(to, room, ", \"tiers\": [");
        int count = pick(4);
        for (int i = 0; i < count; i++) {
            add_text(to, room,
                     "%s{\"limit\": %d, \"window\": %s, \"active\": %d, \"cooldown\": %d, "
                     "\"skippable\": %s}",
                     i ? ", " : "", pick(6), windows[pick(3)], tier_times[i][0], tier_times[i][1],
                     pick(2) ? "true" : "false");
        }
        add_text(to, room, "]");
    }
}

static void random_limit(char *to, size_t room, int index) {
    static const char *const kinds[] = {"TOKEN_BUCKET", "FIXED_WINDOW", "SLIDING_WINDOW", "TIERS"};
    static const char *const scopes[] = {"key", "key", "resource", "template"};
    int kind = index % 4, scope = pick(8) ? index / 4 : pick(4); /* mostly the same */
    add_text(to, room, "%s{\"name\": \"n%d\", \"kind\": \"%s\", \"per\": \"%s\"", index ? ", " : "",
             index, kinds[kind], scopes[scope]);
    random_figures(to, room, kind);
    if (pick(4) == 0) add_text(to, room, ", \"shadow\": true");
    if (pick(4) == 0)
        add_text(to, room, ", \"keys\": [%s]", pick(2) ? "\"*\", \"!ann\"" : "\"vip-*\", \"bob\"");
    if (pick(8) == 0) add_text(to, room, ", \"max_cost\": %d", pick(4));
    if (scope < 2 && index == 0) {
        /* all windows are equal: a longer window could bring back a count that has ended (P15) */
        add_text(to, room, ", \"ban\": {\"refusals\": %d, \"window\": 5, \"duration\": %d}",
                 1 + pick(4), 1 + pick(30));
    }
    if (scope < 2 && pick(2)) {
        add_text(to, room, ", \"overrides\": [{\"keys\": [\"vip-*\"]");
        random_figures(to, room, kind);
        add_text(to, room, "}]");
    }
    add_text(to, room, "}");
}

static doorman_config *random_config(void) {
    static const char *const globs[] = {"api-*", "r", "s", "*"};
    static char text[1 << 15];
    snprintf(text, sizeof text, "{%s\"resources\": [", pick(3) ? "" : "\"shadow\": [\"beta-*\"], ");
    bool first = true;
    for (int i = 0; i < 4; i++) {
        if (pick(4) == 0) continue;
        add_text(text, sizeof text, "%s{\"identifier_glob\": \"%s\"", first ? "" : ", ", globs[i]);
        first = false;
        if (pick(8) == 0) {
            add_text(text, sizeof text, ", \"capacity\": 1}");
            continue;
        }
        add_text(text, sizeof text, ", \"limits\": [");
        int count = 1 + pick(8);
        for (int j = 0; j < count; j++) random_limit(text, sizeof text, j);
        add_text(text, sizeof text, "]}");
    }
    add_text(text, sizeof text, "]}");
    doorman_config *config = NULL;
    doorman_error error;
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s\n%s", error.text, text);
    return config;
}

static void random_request(doorman_permit_item *items, doorman_permit_request *request) {
    *request =
        (doorman_permit_request){.items = items, .item_count = 1 + random_below(2), .detail = true};
    if (pick(8) == 0) request->item_count = 1 + random_below(MODEL_ITEMS);
    request->max_wait = pick(2) ? pick(20) * STEP : 0;
    for (size_t i = 0; i < request->item_count; i++) {
        items[i] = (doorman_permit_item){.resource_id = model_resources[pick(MODEL_RESOURCES)],
                                         .key = model_keys[pick(MODEL_KEYS)],
                                         .cost = pick(5)};
        if (pick(3) == 0) {
            items[i].has_min = true;
            items[i].min = pick((int)items[i].cost + 1);
        }
    }
}

static void print_decision(const doorman_permit_request *request, const model_decision *d,
                           const doorman_permit *out, const model *m) {
    print_error("granted %d, in the model %d; reason %s of %s; now %lld epoch %lld\n", out->granted,
                d->granted, doorman_reason_name(out->reason), out->limit ? out->limit : "-",
                (long long)m->now, (long long)m->epoch);
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_permit_item *item = &request->items[i];
        print_error("item %s (%s) cost %g min %g, granted %g, in the model %g\n", item->resource_id,
                    item->key, item->cost, item->has_min ? item->min : item->cost,
                    out->granted ? out->items[i].granted : -1, d->units[i]);
    }
    for (size_t i = 0; i < d->need_count; i++) {
        const model_need *n = &d->needs[i];
        print_error("%s: need %g offer %g spare %g granted %g%s%s\n", n->counter->name, n->need,
                    n->offer, n->spare, n->granted, n->shadow ? " shadow" : "",
                    n->refuses ? " refuses" : "");
    }
    for (size_t i = 0; i < out->detail_count; i++) {
        const doorman_permit_detail *p = &out->details[i];
        print_error("item %zu %s: most %g used %g remaining %g%s\n", p->item_index, p->limit,
                    p->most, p->used, p->remaining, p->refused ? " refuses" : "");
    }
}

static bool is_same(const doorman_permit_request *request, const model_decision *d,
                    const doorman_permit *out) {
    bool same = out->granted == d->granted && (!d->granted || out->wait == d->wait);
    for (size_t i = 0; same && d->granted && i < request->item_count; i++) {
        same = !(out->items[i].granted < d->units[i]) && !(out->items[i].granted > d->units[i]);
    }
    return same;
}

/* Compares a refusal with the model. If several limits refuse, retry_after is the longest of their
 * waits. After this time a limit with tiers may refuse again, so the permit need not fit then. */
static void compare_refusal(const doorman_permit *out, model *m,
                            const doorman_permit_request *request, model_decision *d) {
    doorman_reason reason = out->reason;
    if (d->unmatched || d->impossible) {
        assert_true(reason == DOORMAN_REASON_MAX_COST || reason == DOORMAN_REASON_UNMATCHED);
        assert_false(out->has_retry_after);
        return;
    }
    doorman_time banned = model_count_refusals(m, d);
    assert_true(reason == DOORMAN_REASON_RATE || reason == DOORMAN_REASON_BANNED);
    assert_true(out->has_retry_after && out->retry_after > 0);
    assert_true(out->retry_after >= banned);
    if (reason != DOORMAN_REASON_RATE || out->retry_after == banned) return;
    size_t refusals = 0;
    for (size_t i = 0; i < d->need_count; i++) {
        refusals += d->needs[i].refuses && !d->needs[i].shadow;
    }
    if (refusals == 1 && !model_fits_at(m, d, request, out->retry_after)) {
        fail_msg("refused again after %lld ns", (long long)out->retry_after);
    }
    assert_false(model_fits_at(m, d, request, out->retry_after - 1));
}

/* Makes a random request, and compares the decision with the decision of the model. */
static void compare(fixture *f, model *m, const doorman_config_options *config) {
    static model_decision d;
    doorman_permit_item items[MODEL_ITEMS];
    doorman_permit_request request;
    random_request(items, &request);
    memset(&d, 0, sizeof d);
    model_collect(m, config, &request, &d);
    model_evaluate(m, &request, &d);
    if (d.granted) model_commit(m, &request, &d);
    assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                     DOORMAN_OK);
    const doorman_permit *out = &f->out;
    if (!is_same(&request, &d, out)) print_decision(&request, &d, out, m);
    assert_int_equal(out->granted, d.granted);
    if (!d.granted) {
        compare_refusal(out, m, &request, &d);
        return;
    }
    for (size_t i = 0; i < request.item_count; i++) {
        assert_exact(out->items[i].granted, d.units[i]);
    }
    assert_int_equal(out->wait, d.wait);
}

static void random_clock(fixture *f) {
    int kind = pick(64);
    doorman_time step = pick(3) ? 0 : pick(20) * STEP;
    if (kind == 0) step = pick(600) * SECOND;
    pass(f, step);
    if (kind == 1) f->now -= pick(100) * STEP;
    if (kind == 2) f->epoch += (pick(200000) - 100000) * SECOND;
    if (kind == 3 && pick(50) == 0) f->epoch += pick(60) * 86400 * SECOND;
    set_epoch(f, f->epoch);
}

static void reset_one(fixture *f, model *m, const doorman_config_options *config) {
    const char *id = model_resources[pick(MODEL_RESOURCES)], *key = model_keys[pick(MODEL_KEYS)];
    const doorman_template *template_ = model_template(config, id);
    assert_int_equal(doorman_permits_reset(f->permits, ITEM_OF(id, key), NULL, NULL, NULL),
                     DOORMAN_OK);
    model_find_ban(m, id, key)->until = 0;
    for (size_t j = 0; template_ && j < template_->limit_count; j++) {
        char name[96];
        if (template_->limits[j].per != DOORMAN_PER_KEY) continue;
        model_name(name, sizeof name, template_, &template_->limits[j], id, key);
        model_clear(model_find(m, name));
    }
}

static void ban_one(fixture *f, model *m) {
    const char *id = model_resources[pick(MODEL_RESOURCES)], *key = model_keys[pick(MODEL_KEYS)];
    doorman_time duration = pick(3) * SECOND;
    assert_int_equal(doorman_permits_ban(f->permits, ITEM_OF(id, key), duration, NULL, f->now),
                     DOORMAN_OK);
    model_find_ban(m, id, key)->until = m->now + duration;
}

/* Checks the counts and the lists of a sketch. */
static void recount_top(const doorman__top *top) {
    size_t listed = 0, used = 0;
    for (size_t i = 0; i < DOORMAN__TOP_ENTRIES; i++) {
        const doorman__top_entry *entry = &top->entries[i];
        used += entry->text != NULL;
        assert_true(top->counts[i] >= top->least);
        assert_true(entry->error <= top->counts[i]);
    }
    for (size_t i = 0; i < DOORMAN__TOP_HEADS; i++) {
        for (uint8_t at = top->heads[i]; at != DOORMAN__TOP_NONE; at = top->entries[at].next) {
            assert_int_equal(top->entries[at].hash % DOORMAN__TOP_HEADS, i);
            assert_true(++listed <= used);
        }
    }
    assert_int_equal(listed, used);
}

/* Compares the counts and sums that the object keeps with a slow recount. */
static void recount(const doorman_permits *p) {
    size_t all = 0, bytes = 0, tops = 0, ban_bytes = 0, bans = 0,
           *of_place = (size_t *)calloc(p->place_count + 1, sizeof *of_place);
    for (size_t i = 0; i < p->slot_count; i++) {
        const doorman__chains *chains = &p->slots[i]->nodes;
        size_t count = 0;
        for (size_t b = 0; b < chains->bucket_count; b++) {
            const doorman__chain *node = *doorman__chains_at(chains, b);
            for (; node; node = node->next, count++) {
                const doorman__counter *counter = (const doorman__counter *)(const void *)node;
                assert_ptr_equal(doorman__chains_bucket(chains, node->hash),
                                 doorman__chains_at(chains, b));
                assert_false(counter->flags & DOORMAN__IN_USE);
                if (i == 0) ban_bytes += doorman__ban_bytes(counter->key_bytes);
                if (i > 0) bytes += doorman__counter_bytes(counter);
                if (node->tag != DOORMAN__NO_PLACE) of_place[node->tag]++;
            }
        }
        assert_int_equal(count, chains->count);
        if (i > 0) all += count;
        bans += p->slots[i]->bans.count;
        for (size_t j = 0; j < DOORMAN_TOP_COUNT; j++) {
            const doorman__top *top = p->slots[i]->tops[j];
            if (top) recount_top(top);
            if (top) tops += doorman__top_bytes(top);
        }
        const doorman__units_top *units = p->slots[i]->usage;
        if (units) tops += doorman__units_top_bytes(units);
    }
    assert_int_equal(all, p->counter_count);
    for (size_t i = 0; i < p->place_count; i++) {
        if (!p->places[i]) continue;
        assert_int_equal(of_place[i], p->places[i]->counter_count);
        bytes += doorman__place_bytes(p->places[i]);
    }
    assert_int_equal(bans, p->slots[0]->nodes.count);
    assert_int_equal(ban_bytes, p->ban_bytes);
    assert_int_equal(bytes + ban_bytes, p->node_bytes);
    assert_int_equal(tops, p->top_bytes);
    free(of_place);
}

/* DECISIONS in the environment sets how many decisions there are. */
TEST(random_decisions_are_those_of_the_model) {
    const char *given = getenv("DECISIONS");
    size_t left = given ? strtoull(given, NULL, 10) : 20000, granted = 0, reloads = 0;
    for (size_t all = left; left > 0;) {
        random_tier_times();
        fixture f = start_config(random_config());
        model m = {.counters = (model_counter *)calloc(MODEL_COUNTERS, sizeof(model_counter))};
        assert_non_null(m.counters);
        create(&f);
        m.now = f.now; /* no decision has used an epoch yet, so the epoch may be set back */
        doorman_config_options config;
        doorman_config_read(f.config, &config);
        for (size_t i = 0; i < 4000 && left > 0; i++, left--) {
            random_clock(&f);
            model_move(&m, f.now, f.epoch);
            compare(&f, &m, &config);
            granted += f.out.granted;
            if (pick(100) == 0) reset_one(&f, &m, &config);
            if (pick(200) == 0) ban_one(&f, &m);
            if (pick(50) == 0) doorman_permits_update(f.permits, f.now);
            if (pick(100) == 0) recount(f.permits);
            if (pick(200)) continue;
            reloads++;
            for (int u = 0; u < 4; u++) doorman_permits_update(f.permits, f.now);
            model_settle(&m, &config);
            configure(&f, random_config());
            doorman_config_read(f.config, &config);
            model_reload(&m, &config);
        }
        if (left == 0) print_message("%zu of %zu granted, %zu reloads\n", granted, all, reloads);
        for (int i = 0; i < 3; i++) pass(&f, 1000000 * SECOND);
        for (int i = 0; i < 50; i++) doorman_permits_update(f.permits, f.now);
        assert_int_equal(f.permits->node_bytes, 0);
        free(m.counters);
        stop(&f);
    }
}

/* ---- bounds (P19) --------------------------------------------------------------------------- */

static void create_bounded(fixture *f, size_t counter_max, size_t memory_max) {
    const doorman_permits_options options = {.config = f->config,
                                             .seed = {7, 9},
                                             .counter_max = counter_max,
                                             .memory_max = memory_max,
                                             .on_event = count_event,
                                             .context = f};
    create_with(f, &options);
}

static size_t longest_list(const doorman__chains *chains) {
    size_t longest = 0;
    for (size_t i = 0; i < chains->bucket_count; i++) {
        size_t length = 0;
        const doorman__chain *node = *doorman__chains_at(chains, i);
        for (; node; node = node->next) length++;
        if (length > longest) longest = length;
    }
    return longest;
}

/* Writes a random key, as an attacker sends it. */
static void flood_key(char out[40]) {
    snprintf(out, 40, "%08x%08x%08x%08x", (unsigned)pick(1 << 30), (unsigned)pick(1 << 30),
             (unsigned)pick(1 << 30), (unsigned)pick(1 << 30));
}

enum { FLOOD_KEYS = 1000, LOYAL_KEYS = 20 };

/* Asks for a unit of each loyal key. When loyal keys have used up their units, they must stay
 * refused while others flood, because a counter that is forgotten is fresh again. */
static void check_loyal(fixture *f, bool used_up) {
    for (int i = 0; i < LOYAL_KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "loyal-%d", i);
        assert_int_equal(acquire(f, "r", key, 1), !used_up);
    }
}

/* Floods a limit with keys. FLOOD in the environment sets how many; 10000000 take some seconds. */
static void flood(const char *overflow) {
    char text[256], key[40];
    const char *given = getenv("FLOOD");
    size_t count = given ? strtoull(given, NULL, 10) : 50000, most = 0;
    snprintf(text, sizeof text,
             "{\"name\": \"k\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1e-6, \"size\": 10, "
             "\"max_keys\": %d, \"overflow\": \"%s\"}",
             FLOOD_KEYS, overflow);
    fixture f = start_config(limits_of(text));
    create(&f);
    bool refuses = strcmp(overflow, "refuse") == 0;
    for (int i = 0; i < 10; i++) check_loyal(&f, false);
    for (size_t i = 0; i < count; i++) {
        size_t before = f.events[DOORMAN_PERMIT_KEY_EVICTED];
        flood_key(key);
        bool granted = acquire(&f, "r", key, 1);
        assert_int_equal(granted, !refuses || i + LOYAL_KEYS < FLOOD_KEYS);
        if (!granted) assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_KEYS);
        assert_true(f.events[DOORMAN_PERMIT_KEY_EVICTED] <= before + 1);
        pass(&f, 1000);
        if (i % 1000) continue;
        doorman_permits_info info;
        doorman_permits_read(f.permits, &info);
        assert_true(info.counter_count <= FLOOD_KEYS);
        if (info.bytes > most) most = info.bytes;
        assert_true(longest_list(&f.permits->slots[1]->nodes) <= 20);
        check_loyal(&f, true);
    }
    assert_true(most <= FLOOD_KEYS * 120 + 50000); /* 50000: frequent keys, hash table */
    recount(f.permits);
    stop(&f);
}

TEST(a_flood_of_keys_evicts_no_key_that_is_used_up) { flood("evict"); }

/* P19: all windows of a month end at the same time, so their end does not show which key to evict.
 * A reload evicts no quota either. */
TEST(a_flood_of_keys_evicts_no_quota_of_the_month) {
    const char *text = "{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 5, "
                       "\"window\": \"month\", \"max_keys\": 1000}";
    fixture f = start_config(limits_of(text));
    create(&f);
    char key[40];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "customer-%d", i);
        assert_true(acquire(&f, "r", key, 5));
    }
    for (int i = 0; i < 5800; i++) {
        if (i == 2900) configure(&f, limits_of(text));
        flood_key(key);
        assert_true(acquire(&f, "r", key, 1));
        assert_true(f.evicted < 0.21);
    }
    assert_true(f.events[DOORMAN_PERMIT_KEY_EVICTED] == 4900);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "customer-%d", i);
        assert_false(acquire(&f, "r", key, 1));
        assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    }
    stop(&f);
}

/* P19: with up to 8 counters, all are sampled. */
TEST(the_key_that_has_used_the_smallest_fraction_is_evicted) {
    fixture f = start_config(
        limits_of("{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", \"limit\": 10, \"window\": "
                  "\"month\", \"max_keys\": 4, \"overrides\": [{\"keys\": [\"large\"], "
                  "\"limit\": 100}], \"ban\": {\"refusals\": 2, \"window\": 60, "
                  "\"duration\": 60}}"));
    create(&f);
    assert_true(acquire(&f, "r", "full", 10));
    assert_true(acquire(&f, "r", "large", 20)); /* more units than the next, but a smaller part */
    assert_true(acquire(&f, "r", "half", 5));
    assert_true(acquire(&f, "r", "low", 3));
    assert_true(acquire(&f, "r", "first", 9));
    assert_exact(f.evicted, 0.2);
    assert_false(acquire(&f, "r", "low", 8)); /* one of two refusals */
    assert_true(acquire(&f, "r", "second", 9));
    assert_exact(f.evicted, 0.5);
    assert_int_equal(f.out.details[0].used, 9);
    assert_true(acquire(&f, "r", "third", 10)); /* "half" and "low" were equal */
    assert_exact(f.evicted, 0.5);
    assert_true(acquire(&f, "r", "fourth", 10));
    assert_exact(f.evicted, 0.9);
    assert_true(acquire(&f, "r", "fifth", 10));
    assert_exact(f.evicted, 0.9);
    assert_true(acquire(&f, "r", "sixth", 10)); /* all keys have used all of their units */
    assert_exact(f.evicted, 1);
    stop(&f);
}

TEST(a_flood_of_keys_is_refused_where_the_limit_says_so) { flood("refuse"); }

TEST(a_flood_of_keys_leaves_the_lists_of_a_map_short) {
    const doorman_limiter_map_options options = {
        .limit = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 1e-3, .size = 10},
        .max_keys = FLOOD_KEYS,
        .seed = {7, 9}};
    doorman_limiter_map *map = NULL;
    assert_int_equal(doorman_limiter_map_create(&map, &options, NULL), DOORMAN_OK);
    for (doorman_time now = SECOND; now < SECOND + 50000; now++) {
        char key[40];
        flood_key(key);
        assert_int_equal(doorman_limiter_map_try(map, key, 32, 1, NULL, now), DOORMAN_ALLOWED);
        if (now % 1000 == 0) assert_true(longest_list(&map->nodes) <= 20);
    }
    doorman_limiter_map_destroy(map);
}

/* A limit evicts only its own counters. If it has none, the permit is refused. */
TEST(all_limits_together_have_at_most_counter_max_counters) {
    fixture f =
        start_config(config_of("{\"resources\": [{\"identifier_glob\": \"a\", \"limits\": [" BUCKET
                               "]}, {\"identifier_glob\": \"b\", \"limits\": [" BUCKET "]}]}"));
    create_bounded(&f, 100, 0);
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "%d", i);
        assert_true(acquire(&f, i < 10 ? "b" : "a", key, 1));
        assert_true(counters(&f) <= 100);
    }
    assert_int_equal(counters(&f), 100);
    assert_true(acquire(&f, "b", "another", 1));
    assert_int_equal(counters(&f), 100);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof key, "%d", i);
        (void)doorman_permits_reset(f.permits, ITEM_OF("b", key), NULL, NULL, NULL);
    }
    (void)doorman_permits_reset(f.permits, ITEM_OF("b", "another"), NULL, NULL, NULL);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "%d", i);
        assert_true(acquire(&f, "a", key, 1));
    }
    assert_false(acquire(&f, "b", "one", 1));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_KEYS);
    assert_string_equal(f.out.limit, "b");
    stop(&f);
}

/* Long keys, new resources, frequent keys and bans all count as memory. */
TEST(all_memory_of_permits_stays_within_memory_max) {
    fixture f = start_config(
        limits_of("{\"name\": \"k\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1e-6, \"size\": 10}"));
    const size_t most = 200000;
    create_bounded(&f, 0, most);
    size_t grown = 0;
    char id[300], key[40];
    memset(id, 'x', sizeof id);
    for (int i = 0; i < 20000; i++) {
        flood_key(key);
        memcpy(id, key, 32);
        id[40 + pick(200)] = 0;
        if (i < 1000) id[1] = 0; /* at first, few resources with many keys */
        (void)acquire(&f, id, key, 1);
        if (!f.out.granted) assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_KEYS);
        if (pick(4) == 0) {
            (void)doorman_permits_ban(f.permits, ITEM_OF(id, key), SECOND, NULL, f.now);
        }
        memset(id, 'x', sizeof id);
        size_t bytes = f.permits->node_bytes + f.permits->top_bytes;
        assert_true(bytes <= most + 1000); /* a resource of the last permit */
        if (bytes > grown) grown = bytes;
        if (i % 100 == 0) pass(&f, SECOND);
        if (i % 500 == 0) recount(f.permits);
    }
    assert_true(grown > most / 2);
    stop(&f);
}

/* Each item of a refused permit adds a resource. Each call also removes some unused resources. */
TEST(refused_permits_of_new_resources_use_little_memory) {
    fixture f = start_config(limits_of("{\"name\": \"n\", \"kind\": \"TIERS\", \"tiers\": []}"));
    create(&f);
    doorman_permit_item items[100];
    char ids[100][40];
    for (int i = 0; i < 500; i++) {
        for (int j = 0; j < 100; j++) {
            flood_key(ids[j]);
            items[j] = (doorman_permit_item){.resource_id = ids[j], .cost = 1};
        }
        assert_false(acquire_items(&f, items, 100, 0));
        doorman_permits_info info;
        doorman_permits_read(f.permits, &info);
        assert_true(info.resource_count <= 400);
        assert_true(info.bytes <= 150000);
    }
    recount(f.permits);
    stop(&f);
}

/* P20: a limit bans the key at its first refusal. */
#define BANS_AT_ONCE                                                                               \
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"max_keys\": 10, "   \
    "\"ban\": {\"refusals\": 1, \"window\": 10, \"duration\": 100}}"

static bool is_banned(fixture *f, const char *key) {
    return !acquire(f, "r", key, 1) && f->out.reason == DOORMAN_REASON_BANNED;
}

static doorman_permits_limit first_limit(const fixture *f) {
    doorman_permits_limit limit;
    doorman_cursor cursor = {0};
    assert_true(doorman_permits_next_limit(f->permits, &cursor, &limit));
    return limit;
}

/* P19: a key that is fresh again makes room without an eviction. */
TEST(evicted_keys_that_were_in_use_are_counted) {
    fixture f = start_config(limits_of("{\"name\": \"m\", \"kind\": \"FIXED_WINDOW\", "
                                       "\"limit\": 10, \"window\": 10, \"max_keys\": 1}"));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    f.now += 20 * DOORMAN_SECOND;
    assert_true(acquire(&f, "r", "b", 1));
    assert_int_equal(first_limit(&f).evicted_in_use, 0);
    assert_true(acquire(&f, "r", "c", 1));
    assert_int_equal(first_limit(&f).evicted, 1);
    assert_int_equal(first_limit(&f).evicted_in_use, 1);
    stop(&f);
}

/* One client sends 1,000 keys, and each of them is banned. */
TEST(a_limit_has_at_most_max_keys_bans) {
    fixture f = start_config(limits_of(BANS_AT_ONCE));
    create(&f);
    assert_int_equal(ban(&f, "r", "of the admin", 50 * SECOND), DOORMAN_OK);
    char key[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "%d", i);
        pass(&f, 1);
        assert_true(acquire(&f, "r", key, 1));
        assert_false(acquire(&f, "r", key, 1));
        assert_int_equal(f.out.retry_after, 100 * SECOND);
        assert_true(first_limit(&f).ban_count <= 10);
        assert_true(is_banned(&f, key)); /* also the last one is banned */
    }
    assert_int_equal(first_limit(&f).bans_evicted, 990);
    assert_int_equal(f.events[DOORMAN_PERMIT_BAN_EVICTED], 990);
    assert_true(is_banned(&f, "990")); /* the last ten */
    assert_true(is_banned(&f, "of the admin"));
    doorman_permits_info info;
    doorman_permits_read(f.permits, &info);
    assert_int_equal(info.bans_evicted, 990);
    assert_int_equal(info.ban_count, 11);
    assert_false(is_banned(&f, "989"));
    recount(f.permits);
    stop(&f);
}

/* P20: keys that are not banned do not push out bans. */
TEST(a_flood_of_keys_ends_no_ban) {
    fixture f = start_config(limits_of(BANS_AT_ONCE));
    create(&f);
    assert_true(acquire(&f, "r", "a", 1));
    assert_false(acquire(&f, "r", "a", 1));
    char key[40];
    for (int i = 0; i < 1000; i++) {
        flood_key(key);
        assert_true(acquire(&f, "r", key, 1));
    }
    assert_true(is_banned(&f, "a"));
    assert_int_equal(f.events[DOORMAN_PERMIT_BAN_EVICTED], 0);
    stop(&f);
}

TEST(of_several_bans_the_one_that_ends_first_makes_room) {
    fixture f = start_config(limits_of(BUCKET));
    create_bounded(&f, 3, 0);
    assert_int_equal(ban(&f, "r", "a", 30 * SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", "b", 10 * SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", "c", 20 * SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", "b", 25 * SECOND), DOORMAN_OK);
    assert_int_equal(ban(&f, "r", "d", SECOND), DOORMAN_OK);
    assert_true(is_banned(&f, "a") && is_banned(&f, "b") && is_banned(&f, "d"));
    assert_false(is_banned(&f, "c"));
    assert_int_equal(f.events[DOORMAN_PERMIT_BAN_EVICTED], 1);
    pass(&f, SECOND); /* a ban that has ended makes room too, and is not counted */
    assert_int_equal(ban(&f, "r", "e", 40 * SECOND), DOORMAN_OK);
    assert_true(is_banned(&f, "a") && is_banned(&f, "b") && is_banned(&f, "e"));
    assert_int_equal(f.events[DOORMAN_PERMIT_BAN_EVICTED], 1);
    recount(f.permits);
    stop(&f);
}

/* P20: if an administrator bans a key that a limit has banned, the ban becomes the
 * administrator's. */
TEST(a_ban_of_an_administrator_gives_way_only_to_his_own) {
    fixture f = start_config(limits_of(BANS_AT_ONCE));
    create_bounded(&f, 3, 0);
    char key[16];
    for (int i = 0; i < 6; i++) { /* 0 to 2: bans of the limit; 3 and 4: of an administrator */
        snprintf(key, sizeof key, "%d", i);
        pass(&f, 1);
        if (i == 3 || i == 4) assert_int_equal(ban(&f, "r", key, SECOND), DOORMAN_OK);
        if (i < 3 || i > 4) (void)acquire(&f, "r", key, 1);
        if (i < 3 || i > 4) assert_false(acquire(&f, "r", key, 1));
    }
    assert_true(is_banned(&f, "3") && is_banned(&f, "4") && is_banned(&f, "5"));
    assert_false(is_banned(&f, "2"));
    assert_int_equal(ban(&f, "r", "5", 2 * SECOND), DOORMAN_OK); /* the ban is his now */
    assert_true(acquire(&f, "r", "6", 1));
    assert_false(acquire(&f, "r", "6", 1));
    assert_int_equal(f.out.retry_after, SECOND); /* there is no room for a ban */
    assert_true(is_banned(&f, "3") && is_banned(&f, "4") && is_banned(&f, "5"));
    assert_false(is_banned(&f, "6"));
    recount(f.permits);
    stop(&f);
}

/* P20: keys cannot take the memory of bans, and bans cannot take the memory of keys. */
TEST(a_full_memory_still_counts_keys_and_bans_them) {
    static const char limits[] =
        "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, "
        "\"ban\": {\"refusals\": 1, \"window\": 10, \"duration\": 100}}";
    for (int bans_first = 0; bans_first < 2; bans_first++) {
        fixture f = start_config(limits_of(limits));
        create_bounded(&f, 0, 60000);
        char key[40];
        for (int phase = 0; phase < 4; phase++) {
            for (int i = 0; i < 2000; i++) {
                flood_key(key);
                assert_true(acquire(&f, "r", key, 1));
                if (phase % 2 != bans_first) continue;
                assert_false(acquire(&f, "r", key, 1));
                assert_true(is_banned(&f, key));
                pass(&f, 1);
            }
            assert_true(f.permits->node_bytes + f.permits->top_bytes <= 60000);
            assert_true(f.permits->ban_bytes <= 30000);
            assert_true(counters(&f) > 50);
        }
        assert_true(first_limit(&f).ban_count > 50);
        assert_int_equal(ban(&f, "r", "of the admin", SECOND), DOORMAN_OK);
        assert_true(is_banned(&f, "of the admin"));
        recount(f.permits);
        stop(&f);
    }
}

TEST(bans_have_a_bound) {
    for (int by_memory = 0; by_memory < 2; by_memory++) {
        fixture f = start_config(limits_of(BUCKET));
        create_bounded(&f, by_memory ? 0 : 100, by_memory ? 10000 : 0);
        char key[16];
        for (int i = 0; i < 1000; i++) {
            snprintf(key, sizeof key, "%d", i);
            assert_int_equal(ban(&f, "r", key, SECOND + i), DOORMAN_OK);
            assert_true(is_banned(&f, key));
        }
        size_t count = 1000 - f.events[DOORMAN_PERMIT_BAN_EVICTED];
        assert_true(by_memory ? count > 30 && count < 100 : count == 100);
        assert_true(f.permits->node_bytes <= 10000);
        recount(f.permits);
        pass(&f, 2 * SECOND);
        for (int i = 0; i < 4; i++) doorman_permits_update(f.permits, f.now);
        assert_int_equal(f.permits->ban_bytes, 0);
        recount(f.permits);
        stop(&f);
    }
    fixture f = start_config(limits_of(BUCKET));
    create_bounded(&f, 0, 100);
    assert_int_equal(ban(&f, "r", "a", SECOND), DOORMAN_RESOURCE_EXHAUSTED);
    stop(&f);
}

/* ---- the most frequent keys ------------------------------------------------------------------ */

static const char tops_text[] =
    "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
    "{\"name\": \"k\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, \"window\": \"month\"}, "
    "{\"name\": \"r\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, "
    "\"window\": \"month\"}]}]}";

enum { TOP_KEYS = 1000 };

static size_t top_list(const fixture *f, size_t limit, doorman_top_kind kind, size_t room,
                       doorman_permits_top *out) {
    doorman_cursor cursor = {.position = 0};
    size_t count = 0;
    while (count < room &&
           doorman_permits_next_top(f->permits, limit, kind, &cursor, &out[count])) {
        if (count) assert_true(out[count].count <= out[count - 1].count);
        count++;
    }
    return count;
}

/* Two of three draws choose key n with a frequency of about 1 / n^2. The others choose any key
 * equally often. */
TEST(the_most_frequent_keys_are_listed_with_their_counts) {
    fixture f = start_config(config_of(tops_text));
    create(&f);
    uint64_t exact[TOP_KEYS] = {0}, all = 0;
    doorman_permits_top list[101];
    pass(&f, 60 * SECOND - f.now % (60 * SECOND));
    for (int i = 0; i < 100000; i++) {
        int n = TOP_KEYS / (1 + pick(TOP_KEYS));
        char key[16];
        n -= n == TOP_KEYS;
        if (pick(3) == 0) n = pick(TOP_KEYS);
        snprintf(key, sizeof key, "%d", n);
        assert_true(acquire(&f, n % 2 ? "odd" : "even", key, 1));
        exact[n]++;
        all++;
        if (i % 999 == 0) recount(f.permits);
    }
    for (size_t limit = 0; limit < 2; limit++) { /* both limits see the same keys */
        size_t count = top_list(&f, limit, DOORMAN_TOP_GRANTED, 101, list), frequent = 0;
        assert_int_equal(count, 100);
        for (size_t i = 0; i < count; i++) {
            uint64_t n = strtoull(list[i].key, NULL, 10);
            assert_true(n < TOP_KEYS);
            assert_string_equal(list[i].resource_id, n % 2 ? "odd" : "even");
            assert_true(exact[n] <= list[i].count && list[i].count <= exact[n] + list[i].error);
            assert_true(list[i].error <= all / 100);
            frequent += exact[n] > all / 100;
        }
        for (size_t n = 0; n < TOP_KEYS; n++) frequent -= exact[n] > all / 100;
        assert_int_equal(frequent, 0);
        assert_int_equal(top_list(&f, limit, DOORMAN_TOP_REFUSED, 101, list), 0);
    }
    assert_int_equal(top_list(&f, 2, DOORMAN_TOP_GRANTED, 101, list), 0);
    stop(&f);
}

TEST(counts_of_frequent_keys_are_halved_each_minute) {
    fixture f = start_config(config_of(tops_text));
    create(&f);
    doorman_permits_top list[101];
    pass(&f, 60 * SECOND - f.now % (60 * SECOND));
    for (int i = 0; i < 9; i++) assert_true(acquire(&f, "r", "a", 1));
    for (int i = 0; i < 4; i++) assert_true(acquire(&f, "r", "b", 1));
    pass(&f, 60 * SECOND - 1);
    doorman_permits_update(f.permits, f.now);
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 2);
    assert_int_equal(list[0].count, 9);
    pass(&f, 1);
    doorman_permits_update(f.permits, f.now);
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 2);
    assert_int_equal(list[0].count, 4);
    assert_int_equal(list[1].count, 2);
    for (int i = 0; i < 5; i++) assert_true(acquire(&f, "r", "b", 1));
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 2);
    assert_string_equal(list[0].key, "b");
    assert_int_equal(list[0].count, 7);
    pass(&f, 3 * 60 * SECOND);
    doorman_permits_update(f.permits, f.now);
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 0);
    pass(&f, DOORMAN_DURATION_MAX);
    assert_true(acquire(&f, "r", "c", 1));
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 1);
    assert_int_equal(list[0].error, 0);
    recount(f.permits);
    stop(&f);
}

/* ---- the keys that use most units (E8) ------------------------------------------------------- */

static const double usage_windows[DOORMAN_USAGE_WINDOW_COUNT] = {60, 3600, 86400};

/* The units of each key, which a factor lowers over time: a slow exact count. */
struct usage_model {
    double units[DOORMAN_USAGE_WINDOW_COUNT][TOP_KEYS];
    doorman_time slice;
};

static void usage_model_move(struct usage_model *usage, doorman_time now) {
    const doorman_time slices = now / (5 * SECOND) - usage->slice;
    for (int w = 0; w < DOORMAN_USAGE_WINDOW_COUNT; w++) {
        const double factor = exp(-5 * (double)slices / usage_windows[w]);
        for (int n = 0; n < TOP_KEYS; n++) usage->units[w][n] *= factor;
    }
    usage->slice += slices;
}

/* Checks that each count of a list is within its error, and that no large key is missing. */
static void usage_compare(const fixture *f, const struct usage_model *usage, size_t limit, int w) {
    doorman_cursor cursor = {0};
    doorman_permits_usage out = {.total = 0};
    bool is_listed[TOP_KEYS] = {false};
    double total = 0, last = 1e300, slack = 1e-6;
    for (int n = 0; n < TOP_KEYS; n++) total += usage->units[w][n];
    const doorman_usage_list list = {limit, (doorman_usage_window)w};
    for (size_t count = 0; doorman_permits_next_usage(f->permits, &list, &cursor, &out, f->now);
         count++) {
        const long n = strtol(out.key, NULL, 10);
        const double expected = usage->units[w][n];
        assert_true(count < 100 && n < TOP_KEYS && !is_listed[n]);
        assert_true(out.units <= last + slack);
        assert_true(fabs(out.units - expected) <= out.error + slack * total);
        assert_true(out.error <= total / 100 + slack * total);
        assert_true(fabs(out.total - total) <= slack * total);
        assert_string_equal(out.resource_id, n % 2 ? "odd" : "even");
        is_listed[n] = true;
        last = out.units;
    }
    for (int n = 0; n < TOP_KEYS; n++) { /* a list has no amounts below a grain */
        const double most = fmax(total / 50 + slack * total, 1.01 / 4096);
        assert_true(is_listed[n] || usage->units[w][n] <= most);
    }
}

TEST(units_of_keys_are_counted_for_a_minute_an_hour_and_a_day) {
    static struct usage_model usage;
    fixture f = start_config(config_of(tops_text));
    create(&f);
    usage = (struct usage_model){.slice = f.now / (5 * SECOND)};
    for (int i = 0; i < 40000; i++) {
        int n = TOP_KEYS / (1 + pick(TOP_KEYS));
        char key[16];
        n -= n == TOP_KEYS;
        if (pick(3) == 0) n = pick(TOP_KEYS);
        const double cost = pick(4) ? 1 : pick(1000) / 8.0;
        snprintf(key, sizeof key, "%d", n);
        assert_true(acquire(&f, n % 2 ? "odd" : "even", key, cost));
        usage_model_move(&usage, f.now);
        for (int w = 0; w < DOORMAN_USAGE_WINDOW_COUNT; w++) usage.units[w][n] += cost;
        if (pick(10) == 0) pass(&f, pick(1000) * SECOND / 100);
        if (pick(5000) == 0) pass(&f, pick(7200) * SECOND);
        if (i % 1000) continue;
        usage_model_move(&usage, f.now);
        for (int w = 0; w < DOORMAN_USAGE_WINDOW_COUNT; w++) {
            for (size_t limit = 0; limit < 2; limit++) usage_compare(&f, &usage, limit, w);
        }
        recount(f.permits);
    }
    stop(&f);
}

TEST(the_units_of_few_keys_are_exact) {
    fixture f = start_config(config_of(tops_text));
    const doorman_usage_list day = {0, DOORMAN_USAGE_DAY}, minute = {0, DOORMAN_USAGE_MINUTE},
                             no_limit = {9, DOORMAN_USAGE_DAY},
                             no_window = {0, DOORMAN_USAGE_WINDOW_COUNT};
    doorman_permits_usage out;
    doorman_cursor cursor = {0};
    create(&f);
    for (int i = 0; i < 4; i++) assert_true(acquire(&f, "r", "small", 1));
    assert_true(acquire(&f, "r", "large", 1000));
    assert_true(doorman_permits_next_usage(f.permits, &day, &cursor, &out, f.now));
    assert_string_equal(out.key, "large");
    assert_exact(out.units, 1000);
    assert_exact(out.error, 0);
    assert_exact(out.total, 1004);
    assert_true(doorman_permits_next_usage(f.permits, &day, &cursor, &out, f.now));
    assert_exact(out.units, 4);
    assert_false(doorman_permits_next_usage(f.permits, &day, &cursor, &out, f.now));
    cursor = (doorman_cursor){0};
    pass(&f, 3600 * SECOND);
    assert_false(doorman_permits_next_usage(f.permits, &minute, &cursor, &out, f.now));
    assert_false(doorman_permits_next_usage(f.permits, &no_limit, &cursor, &out, f.now));
    assert_false(doorman_permits_next_usage(f.permits, &no_window, &cursor, &out, f.now));
    stop(&f);
}

/* P20: a key with few large permits uses more than a key with many small ones. */
TEST(the_list_of_frequent_keys_has_their_units) {
    fixture f = start_config(config_of(tops_text));
    create(&f);
    for (int i = 0; i < 4; i++) assert_true(acquire(&f, "r", "small", 1));
    for (int i = 0; i < 2; i++) assert_true(acquire(&f, "r", "large", 1000));
    for (int i = 0; i < 2; i++) assert_false(acquire(&f, "r", "large", 2e9));
    f.now += 60 * SECOND - f.now % (60 * SECOND); /* the numbers are halved */
    doorman_permits_update(f.permits, f.now);
    for (int kind = 0; kind < DOORMAN_TOP_COUNT; kind++) {
        doorman_cursor cursor = {0};
        doorman_permits_top top;
        size_t count = 0;
        while (doorman_permits_next_top(f.permits, 0, (doorman_top_kind)kind, &cursor, &top)) {
            bool granted = kind == DOORMAN_TOP_GRANTED, large = strcmp(top.key, "large") == 0;
            assert_exact(top.units, !granted ? 2e9 : large ? 1000 : 2);
            assert_int_equal(top.count, large ? 1 : 2);
            count++;
        }
        assert_int_equal(count, kind == DOORMAN_TOP_GRANTED ? 2 : 1);
    }
    stop(&f);
}

TEST(refused_keys_are_listed_also_in_shadow_and_while_banned) {
    fixture f = start_config(
        limits_of(BANS ", {\"name\": \"s\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, "
                       "\"shadow\": true}"));
    create(&f);
    doorman_permits_top list[101];
    pass(&f, 60 * SECOND - f.now % (60 * SECOND));
    for (int i = 0; i < 6; i++) (void)acquire(&f, "r", "a", 1); /* 1 granted, 3 refused, 2 banned */
    (void)acquire(&f, "r", "b", 0);
    assert_int_equal(doorman_permits_inspect(f.permits, ITEM_OF("r", "a"), &f.out, NULL, f.now),
                     DOORMAN_OK);
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_GRANTED, 101, list), 1);
    assert_int_equal(list[0].count, 1);
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_REFUSED, 101, list), 1);
    assert_int_equal(list[0].count, 5);
    assert_int_equal(top_list(&f, 1, DOORMAN_TOP_REFUSED, 101, list), 1);
    assert_int_equal(list[0].count, 3);
    stop(&f);
}

TEST(a_key_has_one_entry_after_its_resource_was_forgotten) {
    fixture f = start_config(limits_of("{\"name\": \"n\", \"kind\": \"TIERS\", \"tiers\": []}"));
    create(&f);
    doorman_permits_top list[101];
    pass(&f, 60 * SECOND - f.now % (60 * SECOND));
    for (int i = 0; i < 50; i++) {
        static const char *const ids[] = {"r", "s", "t"};
        assert_false(acquire(&f, ids[i % 3], "a", 1)); /* no counter keeps the resource */
        if (i % 5 == 0) doorman_permits_update(f.permits, f.now);
    }
    assert_int_equal(top_list(&f, 0, DOORMAN_TOP_REFUSED, 101, list), 3);
    assert_int_equal(list[0].count + list[1].count + list[2].count, 50);
    stop(&f);
}

/* ---- the table ------------------------------------------------------------------------------ */

/* While the table grows and shrinks, random nodes are found. At the end no bucket is left. */
TEST(a_table_finds_its_nodes_while_it_grows_and_shrinks) {
    enum { NODES = 3000 };
    doorman__chains chains = {.segments = NULL};
    doorman__chain *nodes = (doorman__chain *)calloc(NODES, sizeof *nodes);
    bool in[NODES] = {false};
    size_t count = 0;
    assert_non_null(nodes);
    for (int i = 0; i < 60000; i++) {
        size_t n = random_below(NODES), way = (size_t)(i / 10000) % 2;
        bool add = random_below(4) ? way == 0 : way == 1;
        if (add && !in[n]) {
            assert_true(doorman__chains_add(&chains, &nodes[n], (uint32_t)random_bits()));
        } else if (!add && in[n]) {
            doorman__chains_remove(&chains, &nodes[n]);
        } else {
            continue;
        }
        in[n] = add;
        count = add ? count + 1 : count - 1;
        assert_int_equal(chains.count, count);
        assert_true(chains.bucket_count <= 2 * count + 3);
        n = random_below(NODES);
        if (!in[n]) continue;
        const doorman__chain *found = doorman__chains_first(&chains, nodes[n].hash);
        while (found && found != &nodes[n]) found = found->next;
        assert_non_null(found);
    }
    for (size_t n = 0; n < NODES; n++) {
        if (in[n]) doorman__chains_remove(&chains, &nodes[n]);
    }
    assert_int_equal(chains.bucket_count, 0);
    free(nodes);
}

/* ---- limiters by key ------------------------------------------------------------------------ */

static doorman_limiter_map *create_map(const doorman_limiter_map_options *options) {
    doorman_limiter_map *map = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_limiter_map_create(&map, options, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return map;
}

/* Creates permits with one limit for everything, which has these figures. */
static doorman_permits *permits_with(const doorman_limit_options *options,
                                     doorman_config **config) {
    const doorman_permit_limit limit = {.name = "all",
                                        .kind = options->kind,
                                        .figures = {.rate = options->rate,
                                                    .size = options->size,
                                                    .max_debt = options->max_debt,
                                                    .has_max_wait = options->has_max_wait,
                                                    .max_wait = options->max_wait}};
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = &limit,
                                  .limit_count = 1};
    const doorman_config_options given = {.templates = &all, .template_count = 1};
    doorman_permits_options permits_options = {.seed = {1, 2}};
    doorman_permits *permits = NULL;
    assert_int_equal(doorman_config_create(config, &given, NULL), DOORMAN_OK);
    permits_options.config = *config;
    assert_int_equal(doorman_permits_create(&permits, &permits_options, NULL, 0), DOORMAN_OK);
    return permits;
}

/* A figure has the same meaning and unit in a limit of one process and in a limit of permits. */
TEST(figures_mean_the_same_in_a_limiter_and_in_a_permit) {
    for (int i = 0; i < 12; i++) {
        doorman_limit_options options = {
            .kind = DOORMAN_TOKEN_BUCKET, .rate = 4, .size = i % 3, .max_debt = SECOND};
        options.has_max_wait = i % 2;
        options.max_wait = options.has_max_wait ? SECOND / 2 : 0;
        doorman_config *config = NULL;
        doorman_permits *permits = permits_with(&options, &config);
        doorman_limit limit;
        doorman_limiter limiter;
        assert_int_equal(doorman_limit_init(&limit, &options, NULL), DOORMAN_OK);
        assert_int_equal(doorman_limiter_init(&limiter, &limit, NULL, 0), DOORMAN_OK);
        doorman_time now = 0;
        for (int j = 0; j < 1000; j++) {
            now += (doorman_time)random_below(3) * SECOND / 4;
            const doorman_permit_item item = {.resource_id = "r",
                                              .cost = (double)(1 + random_below(5))};
            const doorman_permit_request request = {
                .items = &item, .item_count = 1, .max_wait = DOORMAN_DURATION_MAX};
            doorman_result result;
            doorman_permit permit;
            doorman_decision decision =
                doorman_limiter_try(&limiter, &limit, item.cost, &result, now);
            assert_int_equal(doorman_permits_acquire(permits, &request, &permit, NULL, now),
                             DOORMAN_OK);
            assert_int_equal(permit.granted, decision == DOORMAN_ALLOWED);
            assert_int_equal(permit.wait, result.wait);
        }
        doorman_permits_destroy(permits);
        doorman_config_destroy(config);
    }
}

/* Each key has the decisions of a limiter of its own. A clock that steps back stands still. */
TEST(a_map_decides_as_a_limiter_for_each_key) {
    enum { KEYS = 50 };
    static const doorman_limit_options kinds[] = {
        {.kind = DOORMAN_TOKEN_BUCKET, .rate = 3, .size = 4, .max_debt = 2 * SECOND / 3},
        {.kind = DOORMAN_FIXED_WINDOW, .limit = 4, .window = 3 * SECOND},
        {.kind = DOORMAN_SLIDING_WINDOW, .limit = 4, .window = 3 * SECOND},
        {.kind = DOORMAN_CONCURRENCY, .limit = 4}};
    for (size_t k = 0; k < COUNT(kinds); k++) {
        const doorman_limiter_map_options options = {.limit = kinds[k], .seed = {1, 2}};
        doorman_limiter_map *map = create_map(&options);
        doorman_limit limit;
        doorman_limiter limiters[KEYS];
        double held[KEYS] = {0};
        doorman_time now = 1000 * SECOND, seen = now;
        assert_int_equal(doorman_limit_init(&limit, &kinds[k], NULL), DOORMAN_OK);
        for (int i = 0; i < KEYS; i++) (void)doorman_limiter_init(&limiters[i], &limit, NULL, now);
        for (int i = 0; i < 30000; i++) {
            size_t key = random_below(KEYS);
            double n = (double)random_below(6) / 2;
            doorman_result a, b;
            if (random_below(4) == 0) now += (doorman_time)random_below(2000) * SECOND / 1000;
            const bool steps_back = random_below(8) == 0 && i > 0; /* a map has no time before its
                                                                    * first call */
            doorman_time at = steps_back ? now - (doorman_time)random_below(1000000) : now;
            if (at > seen) seen = at;
            doorman_decision expected = doorman_limiter_try(&limiters[key], &limit, n, &a, seen);
            assert_int_equal(doorman_limiter_map_try(map, &key, sizeof key, n, &b, at), expected);
            assert_int_equal(b.wait, a.wait);
            assert_int_equal(b.retry_after, a.retry_after);
            assert_exact(b.remaining, a.remaining);
            if (k != 3) continue;
            if (expected == DOORMAN_ALLOWED) held[key] += n;
            if (random_below(2) || held[key] <= 0) continue;
            doorman_limiter_release(&limiters[key], &limit, held[key]);
            doorman_limiter_map_release(map, &key, sizeof key, held[key]);
            held[key] = 0;
        }
        for (size_t key = 0; key < KEYS; key++) {
            doorman_limiter_map_release(map, &key, sizeof key, held[key]);
        }
        for (int i = 0; i < 4; i++) (void)doorman_limiter_map_sweep(map, 1000, now + 100 * SECOND);
        assert_int_equal(doorman_limiter_map_sweep(map, SIZE_MAX, now), 0);
        assert_int_equal(doorman_limiter_map_sweep(map, 0, now), 0); /* idle keys are forgotten */
        doorman_limiter_map_destroy(map);
    }
}

TEST(a_map_stays_within_key_max_and_keeps_what_is_in_use) {
    for (int refuse = 0; refuse < 2; refuse++) {
        const doorman_limiter_map_options options = {
            .limit = {.kind = DOORMAN_CONCURRENCY, .limit = 2},
            .max_keys = 100,
            .refuse_new = refuse != 0,
            .seed = {1, 2}};
        doorman_limiter_map *map = create_map(&options);
        size_t allowed = 0;
        for (int key = 0; key < 1000; key++) {
            doorman_decision decision = doorman_limiter_map_try(map, &key, sizeof key, 1, NULL, 0);
            allowed += decision == DOORMAN_ALLOWED;
        }
        assert_int_equal(allowed, 100); /* all keys hold a unit, so none is forgotten */
        int first = 0, other = 5000;
        assert_true(doorman_limiter_map_reset(map, &first, sizeof first));
        assert_false(doorman_limiter_map_reset(map, &first, sizeof first));
        assert_int_equal(doorman_limiter_map_try(map, &other, sizeof other, 1, NULL, 0),
                         DOORMAN_ALLOWED);
        doorman_limiter_map_destroy(map);
    }
    const doorman_limiter_map_options options = {
        .limit = {.kind = DOORMAN_FIXED_WINDOW, .limit = 2, .window = SECOND}, .max_keys = 100};
    doorman_limiter_map *map = create_map(&options);
    for (int key = 0; key < 1000; key++) {
        assert_int_equal(doorman_limiter_map_try(map, &key, sizeof key, 1, NULL, 0),
                         DOORMAN_ALLOWED);
        assert_true(doorman_limiter_map_sweep(map, 0, 0) <= 100);
    }
    assert_int_equal(doorman_limiter_map_try(map, NULL, 0, 2, NULL, 0), DOORMAN_ALLOWED);
    assert_int_equal(doorman_limiter_map_try(map, NULL, 0, 1, NULL, 0), DOORMAN_REFUSED);
    assert_int_equal(doorman_limiter_map_try(map, "x", 257, 1, NULL, 0), DOORMAN_IMPOSSIBLE);
    doorman_limiter_map_destroy(map);
}

TEST(a_map_needs_a_limit_that_fits_into_it) {
    doorman_limiter_map *map = NULL;
    doorman_error error;
    doorman_limiter_map_options options = {
        .limit = {.kind = DOORMAN_SLIDING_LOG, .limit = 2, .window = SECOND}};
    assert_int_equal(doorman_limiter_map_create(&map, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "kind: must not be SLIDING_LOG");
    options.limit.kind = DOORMAN_TIERS;
    assert_int_equal(doorman_limiter_map_create(&map, &options, &error), DOORMAN_INVALID_ARGUMENT);
    options.limit.kind = DOORMAN_FIXED_WINDOW;
    options.max_keys = 10000001;
    assert_int_equal(doorman_limiter_map_create(&map, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "max_keys: must be at most 10,000,000");
    assert_null(map);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Each allocation of a decision fails in turn. The decision then has no effect, and is later the
 * same as without a failure. */
TEST(a_decision_without_memory_charges_nothing) {
    size_t blocks = memory_blocks();
    fixture f = start_config(limits_of(BUCKET ", " ALL ", " BANS2));
    create(&f);
    for (int i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i % 9);
        const doorman_permit_item items[] = {
            {.resource_id = i % 2 ? "r" : "s", .key = key, .cost = 1},
            {.resource_id = "t", .key = key, .cost = 1}};
        const doorman_permit_request request = {.items = items, .item_count = 2, .detail = true};
        doorman_status status = DOORMAN_OK;
        size_t n = 0, before = counters(&f);
        do {
            memory_fails_at(++n);
            status = doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now);
            bool failed = !memory_works();
            if (status != DOORMAN_OK) assert_int_equal(counters(&f), before);
            if (status == DOORMAN_OK) break;
            assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
            assert_true(failed);
            recount(f.permits);
        } while (n < 100);
        assert_int_equal(status, DOORMAN_OK);
        assert_int_equal(f.out.granted, i < 7);
        recount(f.permits);
    }
    stop(&f);
    assert_int_equal(memory_blocks(), blocks);
}
