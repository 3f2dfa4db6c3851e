/* The normal form of configurations, and how two configurations differ (E3). Random configurations
 * are normalised twice, and read back. SEED=N repeats a run. */
#include "../../server/admin/normal.c"
#include "../../server/admin/trim.h"
#include "../test.h"

#define LIMIT(more) "{\"name\":\"quota\",\"kind\":\"FIXED_WINDOW\",\"window\":60," more "}"
#define MAPS(more) "{\"resources\":[{\"identifier_glob\":\"maps\"," more "}]}"
#define QUOTA(more) MAPS("\"limits\":[" LIMIT(more) "]")

static doorman_config *config_read(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s: %s", text, error.text);
    return config;
}

static cJSON *normal_of(const char *text) {
    doorman_config *config = config_read(text);
    cJSON *tree = server_config_normalise(config);
    assert_non_null(tree);
    doorman_config_destroy(config);
    return tree;
}

static void expect_normal(const char *text, const char *expected) {
    cJSON *tree = normal_of(text);
    char *printed = cJSON_PrintUnformatted(tree);
    assert_string_equal(printed, expected);
    cJSON_free(printed);
    cJSON_Delete(tree);
}

/* Expects the texts that describe a difference, each with a semicolon behind it. */
static void expect_summary(const char *last, const char *now, const char *expected) {
    cJSON *left = last ? normal_of(last) : NULL, *right = normal_of(now);
    cJSON *difference = server_config_differ(left, right), *object = cJSON_CreateObject();
    char texts[4096] = "";
    const cJSON *item = NULL;
    server_config_summarise(object, "changes", difference);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(object, "changes")) {
        const size_t bytes = strlen(texts);
        snprintf(texts + bytes, sizeof texts - bytes, "%s; ", item->valuestring);
    }
    assert_string_equal(texts, expected);
    cJSON_Delete(object);
    cJSON_Delete(difference);
    cJSON_Delete(left);
    cJSON_Delete(right);
}

/* ---- the normal form ------------------------------------------------------------------------ */

TEST(lists_without_an_order_are_sorted_and_defaults_left_out) {
    expect_normal("{ \"unmatched\": \"allow\", \"shadow\": [\"b\", \"a\"],\n\"resources\": [] }",
                  "{\"shadow\":[\"a\",\"b\"],\"resources\":[]}");
    expect_normal(QUOTA("\"limit\": 5.0, \"keys\": [\"z\", \"a\", \"m\"], \"shadow\": false"),
                  MAPS("\"limits\":[{\"name\":\"quota\",\"keys\":[\"a\",\"m\",\"z\"],"
                       "\"kind\":\"FIXED_WINDOW\",\"limit\":5,\"window\":60}]"));
}

/* E2: the order of plans has no meaning. */
TEST(plans_are_sorted_and_take_the_window_of_their_limit) {
    expect_normal(QUOTA("\"limit\":5,\"plans\":{\"pro\":{\"limit\":9},\"free\":{},"
                        "\"max\":{\"limit\":7,\"window\":5}}"),
                  MAPS("\"limits\":[{\"name\":\"quota\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,"
                       "\"window\":60,\"plans\":{\"free\":{},"
                       "\"max\":{\"limit\":7,\"window\":5},\"pro\":{\"limit\":9}}}]"));
    expect_summary(QUOTA("\"limit\":5,\"plans\":{\"pro\":{\"limit\":9}}"),
                   QUOTA("\"limit\":5,\"plans\":{\"pro\":{\"limit\":8}}"),
                   "maps quota plans.pro.limit: 9 -> 8; ");
}

/* Templates and overrides keep their order, because it can decide which of them is used. Limits
 * keep their order too. */
TEST(what_has_an_order_keeps_it) {
    static const char *const text =
        "{\"resources\":[{\"identifier_glob\":\"z\",\"capacity\":1},"
        "{\"identifier_glob\":\"a\",\"capacity\":1,\"limits\":["
        "{\"name\":\"y\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,\"window\":60,\"overrides\":["
        "{\"keys\":[\"c\"],\"limit\":9},{\"keys\":[\"b\"],\"limit\":8}]},"
        "{\"name\":\"b\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,\"window\":60}]}]}";
    expect_normal(text, text);
}

/* G3: a template without an algorithm uses the algorithm of `*`, and follows a later change of
 * `*`. */
TEST(an_algorithm_that_is_inherited_is_left_out) {
    static const char *const own = "{\"kind\":\"STATIC\",\"lease_length\":60,"
                                   "\"refresh_interval\":16,\"parameters\":[]}";
    char text[1024];
    snprintf(text, sizeof text,
             "{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1},"
             "{\"identifier_glob\":\"*\",\"capacity\":1,\"algorithm\":%s}]}",
             own);
    expect_normal(text, text);
    expect_normal("{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1,\"algorithm\":"
                  "{\"kind\":\"FAIR_SHARE\"}}]}",
                  "{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1}]}");
}

/* An override follows a later change of its limit. */
TEST(figures_that_an_override_takes_from_its_limit_are_left_out) {
    static const char *const text =
        MAPS("\"limits\":[{\"name\":\"b\",\"kind\":\"TOKEN_BUCKET\",\"rate\":5,\"size\":9,"
             "\"overrides\":[{\"keys\":[\"a\"],\"rate\":7}]}]");
    expect_normal(text, text);
    expect_normal(MAPS("\"limits\":[{\"name\":\"b\",\"kind\":\"TOKEN_BUCKET\",\"rate\":5,"
                       "\"size\":9,\"overrides\":[{\"keys\":[\"a\"],\"rate\":7,\"size\":9}]}]"),
                  text);
    expect_normal(QUOTA("\"limit\":5,\"plans\":{\"pro\":{\"limit\":7,\"window\":60}}"),
                  MAPS("\"limits\":[{\"name\":\"quota\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,"
                       "\"window\":60,\"plans\":{\"pro\":{\"limit\":7}}}]"));
}

/* ---- random configurations ------------------------------------------------------------------ */

static unsigned pick(unsigned count) { return (unsigned)rand() % count; }

struct config_text {
    char text[16384];
    size_t bytes;
};

__attribute__((format(printf, 2, 3))) static void add(struct config_text *out, const char *format,
                                                      ...) {
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(out->text + out->bytes, sizeof out->text - out->bytes, format, arguments);
    va_end(arguments);
    out->bytes += (size_t)bytes;
    assert_true(out->bytes < sizeof out->text);
}

/* Adds a list of different strings in a random order. */
static void random_list(struct config_text *out, const char *name) {
    const unsigned count = 1 + pick(4), first = pick(5);
    add(out, ",\"%s\":[", name);
    for (unsigned i = 0; i < count; i++) add(out, "%s\"k%u\"", i ? "," : "", (first + 3 * i) % 5);
    add(out, "]");
}

static void random_limit(struct config_text *out, unsigned number) {
    add(out, "{\"name\":\"l%u\",\"kind\":\"FIXED_WINDOW\",\"limit\":%u,\"window\":%u", number,
        1 + pick(99), 1 + pick(3));
    if (pick(2)) random_list(out, "keys");
    if (pick(3) == 0) add(out, ",\"shadow\":%s", pick(2) ? "true" : "false");
    if (pick(3) == 0) add(out, ",\"durable\":%s", pick(2) ? "true" : "false");
    if (pick(3) == 0) add(out, ",\"max_keys\":%u", 1 + pick(9));
    if (pick(3) == 0) {
        add(out, ",\"overrides\":[{\"limit\":%u", 1 + pick(9));
        if (pick(2)) add(out, ",\"window\":%u", 1 + pick(3));
        random_list(out, "keys");
        add(out, "}]");
    }
    if (pick(3) == 0) {
        add(out, ",\"plans\":{\"pro\":{\"limit\":%u", 1 + pick(9));
        if (pick(2)) add(out, ",\"window\":%u", 1 + pick(3));
        add(out, "}}");
    }
    add(out, "}");
}

static void random_template(struct config_text *out, unsigned number) {
    static const char *const kinds[] = {"FAIR_SHARE", "PROPORTIONAL_SHARE", "STATIC"};
    if (number == 3) add(out, ",{\"identifier_glob\":\"*\",\"capacity\":%u", pick(9));
    if (number != 3)
        add(out, "%s{\"identifier_glob\":\"t%u\",\"capacity\":%u", number ? "," : "", number,
            pick(9));
    if (pick(2)) add(out, ",\"algorithm\":{\"kind\":\"%s\",\"lease_length\":60}", kinds[pick(3)]);
    if (pick(2)) {
        const unsigned count = pick(3);
        add(out, ",\"limits\":[");
        for (unsigned i = 0; i < count; i++) {
            if (i) add(out, ",");
            random_limit(out, i);
        }
        add(out, "]");
    }
    add(out, "}");
}

static void random_config(struct config_text *out) {
    const unsigned count = pick(5);
    out->bytes = 0;
    add(out, "{\"unmatched\":\"%s\"", pick(2) ? "allow" : "reject");
    if (pick(2)) random_list(out, "shadow");
    add(out, ",\"resources\":[");
    for (unsigned i = 0; i < count; i++) random_template(out, i);
    add(out, "]}");
}

/* Returns what the library writes of a configuration, with its keys sorted. */
static char *written(const doorman_config *config) {
    doorman_config_options options;
    doorman_buffer buffer = {.text = NULL};
    doorman_config_read(config, &options);
    assert_int_equal(doorman_json_write_config(&options, &buffer), DOORMAN_OK);
    cJSON *tree = cJSON_ParseWithLength(buffer.text, buffer.bytes);
    doorman_buffer_uninit(&buffer);
    assert_true(normal_sort_below(tree, DEPTH_MAX));
    char *text = cJSON_PrintUnformatted(tree);
    cJSON_Delete(tree);
    return text;
}

TEST(a_normal_form_is_its_own_and_reads_back_to_an_equal_configuration) {
    const char *seed = getenv("SEED");
    const unsigned first = seed ? (unsigned)atoi(seed) : (unsigned)time(NULL);
    static struct config_text random;
    printf("SEED=%u\n", first);
    srand(first);
    for (int i = 0; i < 300; i++) {
        random_config(&random);
        doorman_config *config = config_read(random.text);
        cJSON *once = server_config_normalise(config);
        char *text = cJSON_PrintUnformatted(once);
        doorman_config *again = config_read(text);
        cJSON *twice = server_config_normalise(again);
        char *first_text = written(config), *second_text = written(again);
        if (!cJSON_Compare(once, twice, true)) fail_msg("%s: is not normal: %s", random.text, text);
        assert_string_equal(first_text, second_text);
        cJSON_free(first_text);
        cJSON_free(second_text);
        cJSON_free(text);
        cJSON_Delete(once);
        cJSON_Delete(twice);
        doorman_config_destroy(config);
        doorman_config_destroy(again);
    }
}

/* ---- differences ---------------------------------------------------------------------------- */

TEST(a_difference_names_template_limit_and_field) {
    expect_summary(QUOTA("\"limit\":5"), QUOTA("\"limit\":5"), "");
    expect_summary(QUOTA("\"limit\":5"), QUOTA("\"limit\":6"), "maps quota limit: 5 -> 6; ");
    expect_summary(QUOTA("\"limit\":5"), QUOTA("\"limit\":5,\"warn_at\":0.5"),
                   "maps quota warn_at: default -> 0.5; ");
    expect_summary(QUOTA("\"limit\":5"),
                   QUOTA("\"limit\":5,\"ban\":{\"refusals\":3,\"window\":9,\"duration\":9}"),
                   "maps quota ban: default -> {\"refusals\":3,\"window\":9,\"duration\":9}; ");
    expect_summary(QUOTA("\"limit\":5,\"ban\":{\"refusals\":3,\"window\":9,\"duration\":9}"),
                   QUOTA("\"limit\":5,\"ban\":{\"refusals\":4,\"window\":9,\"duration\":9}"),
                   "maps quota ban.refusals: 3 -> 4; ");
    expect_summary(MAPS("\"capacity\":1"), MAPS("\"capacity\":1,\"limits\":[]"), "");
    expect_summary(MAPS("\"capacity\":1"), QUOTA("\"limit\":5"),
                   "maps capacity: 1 -> default; maps quota: added; ");
    expect_summary(QUOTA("\"limit\":5"), MAPS("\"capacity\":1"),
                   "maps capacity: default -> 1; maps quota: removed; ");
    expect_summary(NULL, QUOTA("\"limit\":5"), "maps: added; ");
    expect_summary(QUOTA("\"limit\":5"), "{\"unmatched\":\"reject\",\"resources\":[]}",
                   "maps: removed; unmatched: default -> \"reject\"; ");
}

TEST(another_order_of_templates_and_limits_is_a_difference) {
#define T(name) "{\"identifier_glob\":\"" name "\",\"capacity\":1}"
#define L(name) "{\"name\":\"" name "\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,\"window\":60}"
    expect_summary("{\"resources\":[" T("a") "," T("b") "]}",
                   "{\"resources\":[" T("b") "," T("a") "]}", "resources: order; ");
    expect_summary("{\"resources\":[" T("a") "," T("b") "]}",
                   "{\"resources\":[" T("c") "," T("b") "]}", "c: added; a: removed; ");
    expect_summary(MAPS("\"limits\":[" L("a") "," L("b") "]"),
                   MAPS("\"limits\":[" L("b") "," L("a") "]"), "maps limits: order; ");
}

/* A summary has a bound, and says how much it leaves out. */
TEST(a_summary_says_how_much_it_leaves_out) {
    static struct config_text many;
    add(&many, "{\"resources\":[");
    for (int i = 0; i < SUMMARY_MAX + 5; i++) {
        add(&many, "%s{\"identifier_glob\":\"t%d\",\"capacity\":1}", i ? "," : "", i);
    }
    add(&many, "]}");
    cJSON *tree = normal_of(many.text), *object = cJSON_CreateObject();
    cJSON *difference = server_config_differ(NULL, tree);
    server_config_summarise(object, "changes", difference);
    const cJSON *list = cJSON_GetObjectItem(object, "changes");
    assert_int_equal(cJSON_GetArraySize(list), SUMMARY_MAX + 1);
    assert_string_equal(cJSON_GetArrayItem(list, SUMMARY_MAX)->valuestring, "and 5 more");
    cJSON_Delete(object);
    cJSON_Delete(difference);
    cJSON_Delete(tree);
}

/* ---- how many are kept ---------------------------------------------------------------------- */

/* The oldest versions are removed first, and a change removes at most TRIM_MAX. */
TEST(the_oldest_versions_are_removed_first) {
    struct version_trim trim = {.count = 1}; /* the new one */
    for (uint64_t number = 2000; number > 1000; number--) {
        assert_true(version_trim_add(&trim, number, 100));
    }
    assert_int_equal(trim.count, VERSION_MAX);
    assert_int_equal(trim.removed_count, 1);
    assert_int_equal(trim.removed[0], 1001);
    for (uint64_t number = 1000; number > 0 && version_trim_add(&trim, number, 1);) number--;
    assert_int_equal(trim.removed_count, TRIM_MAX);
    assert_int_equal(trim.removed[TRIM_MAX - 1], 1001 - (TRIM_MAX - 1));
}

TEST(versions_with_too_many_bytes_are_removed) {
    struct version_trim trim = {.count = 1};
    assert_true(version_trim_add(&trim, 9, VERSION_BYTES_MAX - 10));
    assert_true(version_trim_add(&trim, 8, 10));
    assert_int_equal(trim.removed_count, 0);
    assert_true(version_trim_add(&trim, 7, 1));
    assert_true(version_trim_add(&trim, 6, 0)); /* an older one does not stay behind */
    assert_int_equal(trim.removed_count, 2);
    assert_int_equal(trim.removed[0], 7);
    assert_int_equal(trim.count, 3);
}
