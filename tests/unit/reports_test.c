/* The log lines of server/reports.c (V6), with the time as a variable: refused messages, changed
 * configurations, and learning. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_REPORTS
#define DOORMAN_SERVER_WARNINGS
#include "../../doorman_server.c"
#undef main
#include "../../server/reports.c"
#include "../../server/warnings.c"

#include "server_log.h"

/* ---- configurations and servers -------------------------------------------------------------- */

#define RESOURCE(glob, capacity) "{\"identifier_glob\":\"" glob "\",\"capacity\":" capacity "}"

static doorman_config *config_of(const char *list, const char *more) {
    char text[2048];
    doorman_config *config = NULL;
    doorman_error error;
    snprintf(text, sizeof text, "{%s\"resources\":[%s]}", more, list);
    if (doorman_json_config(&config, text, strlen(text), &error) != DOORMAN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    return config;
}

#define A RESOURCE("a", "1")
#define B RESOURCE("b", "1")
#define C RESOURCE("c", "1")

static void set_master(struct world *w, doorman_time until, doorman_time now) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = until};
    assert_int_equal(doorman_server_set_master(w->service.server, &mastership, now), DOORMAN_OK);
}

/* Creates a root whose leases last 60 s. It learns for 63 s. */
static doorman_config *server_create(struct world *w, doorman_time now) {
    doorman_config *config = config_of(A, "");
    const doorman_server_options options = {.node = "n", .config = config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&w->service.server, &options, NULL, now), DOORMAN_OK);
    return config;
}

static void server_destroy(struct world *w, doorman_config *config) {
    doorman_server_destroy(w->service.server);
    w->service.server = NULL;
    doorman_config_destroy(config);
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Reports a message that the server has answered. The peer has no address. */
static void report(struct world *w, const char *message) {
    const struct peer peer = {.stream = NULL};
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    struct message_report report = {
        .exchange = &exchange, .peer = &peer, .duration = 1500000, .client = "a"};
    report.was_read = doorman_json_exchange_read(&exchange, message, strlen(message)) == DOORMAN_OK;
    doorman_json_exchange_decide(&exchange, w->service.server, 0);
    report.status = doorman_json_exchange_write(&exchange, 0);
    server_report_message(&w->service, &report);
    doorman_json_exchange_uninit(&exchange);
}

#define RELEASE(id)                                                                                \
    "{\"release_capacity\":{\"client_id\":\"a\",\"resource\":[{\"resource_id\":\"db\",\"id\":" id  \
    "}]}}"

static void a_refused_message_is_logged_with_its_method_and_field(void **state) {
    struct world *w = (struct world *)*state;
    report(w, "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":[{\"resource_id\":\"db\"}]}}");
    assert_int_equal(logged(w, "msg=\"a message was refused\" count=1 peer=unknown "
                               "method=get_capacity code=INVALID_ARGUMENT field=resource[0].wants "
                               "error=\"is missing\"\n"),
                     1);
    report(w, RELEASE("0"));
    assert_int_equal(logged(w, " count=1 peer=unknown method=release_capacity "
                               "code=INVALID_ARGUMENT field=resource[0].id error="),
                     1);
    report(w, "{\"discovery\":7}");
    assert_int_equal(logged(w, " method=discovery code=INVALID_ARGUMENT error=\"must be an "
                               "object\"\n"),
                     1);
}

/* A message without a known method has the kind "unknown". Text of a peer is escaped. */
static void a_message_without_a_method_is_logged_with_its_error(void **state) {
    struct world *w = (struct world *)*state;
    report(w, "{\"a\\\"b\\n\":{}}");
    assert_int_equal(logged(w, " peer=unknown method=unknown code=NOT_FOUND error=\"no such "
                               "method: a\\\"b\\n\"\n"),
                     1);
}

static void each_method_has_a_line_of_its_own_once_a_minute(void **state) {
    struct world *w = (struct world *)*state;
    for (int i = 0; i < 100; i++) report(w, "rubbish");
    assert_int_equal(logged(w, " count=1 peer=unknown method=unknown "), 1);
    for (int i = 0; i < 100; i++) report(w, RELEASE("0"));
    assert_int_equal(logged(w, " count=1 peer=unknown method=release_capacity "), 1);
    server_warnings_update(&w->service, doorman_clock() + 61 * SECOND);
    assert_int_equal(logged(w, " count=99 peer=unknown method="), 2);
}

/* A valid message is only logged with --log-level debug. */
static void debug_logs_every_message(void **state) {
    struct world *w = (struct world *)*state;
    static const char request[] = "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":["
                                  "{\"resource_id\":\"one\",\"wants\":1},"
                                  "{\"resource_id\":\"two\",\"wants\":1}]}}";
    doorman_config *config = server_create(w, 0);
    w->settings.log_level = LEVEL_INFO;
    report(w, request);
    assert_int_equal(logged(w, ""), 0);
    w->settings.log_level = LEVEL_DEBUG;
    report(w, request);
    assert_int_equal(logged(w, "level=debug msg=request peer=unknown method=get_capacity items=2 "
                               "code=OK duration_ms=1.500 client=a\n"),
                     1);
    server_destroy(w, config);
}

/* ---- configurations ------------------------------------------------------------------------- */

/* Reports that one configuration has replaced another. */
static void load(struct world *w, const doorman_config *last, doorman_config *now,
                 const char *hash) {
    w->settings.config = "file";
    w->service.config = now;
    snprintf(w->service.last_load.hash, sizeof w->service.last_load.hash, "%s", hash);
    server_report_config(&w->service, last);
}

/* Fails unless the line about a change from one list of templates to another ends with this. */
static void expect_changes(struct world *w, const char *before, const char *after,
                           const char *expected) {
    doorman_config *last = config_of(before, ""), *now = config_of(after, "");
    char line[512];
    load(w, last, now, "12ab");
    snprintf(line, sizeof line, "msg=\"configuration loaded\" file=file hash=12ab %s\n", expected);
    if (logged(w, line) != 1) fail_msg("the log does not have: %s", line);
    doorman_config_destroy(now);
    doorman_config_destroy(last);
}

static void the_log_says_what_a_new_configuration_changes(void **state) {
    struct world *w = (struct world *)*state;
    expect_changes(w, A "," B, A "," B, "changes=none");
    expect_changes(w, A "," B, B "," A, "order=changed");
    expect_changes(w, A "," B, A "," B "," C, "added=c");
    expect_changes(w, A "," B "," C, A "," C, "removed=b");
    expect_changes(w, A "," B "," C, C "," A, "removed=b order=changed");
    expect_changes(w, A "," B, RESOURCE("a", "2") "," B, "changed=a");
    expect_changes(w, A, B, "added=b removed=a");
    expect_changes(w, "", A, "added=a");
    expect_changes(w, A, "", "removed=a");
    expect_changes(w, A, "{\"identifier_glob\":\"a\",\"capacity\":1,\"description\":\"new\"}",
                   "changed=a");
}

static void the_log_names_a_few_templates_and_counts_the_rest(void **state) {
    struct world *w = (struct world *)*state;
    static const char more[] = RESOURCE("d", "1") "," RESOURCE("e", "1");
    char list[512];
    snprintf(list, sizeof list, A "," B "," C ",%s", more);
    expect_changes(w, A, list, "added=\"b, c, d and 1 more\"");
    expect_changes(w, list, A, "removed=\"b, c, d and 1 more\"");
    expect_changes(w, B, A "," B "," C "," RESOURCE("d", "1"), "added=\"a, c, d\"");
}

/* The longest lists of the longest names fit into a line, or are cut off. */
static void long_globs_are_logged(void **state) {
    struct world *w = (struct world *)*state;
    char list[2048] = "", name[DOORMAN_ID_BYTES_MAX + 1];
    size_t bytes = 0;
    memset(name, 'x', sizeof name);
    name[DOORMAN_ID_BYTES_MAX] = 0;
    for (char first = 'a'; first < 'f'; first++) {
        name[0] = first;
        bytes += (size_t)snprintf(list + bytes, sizeof list - bytes,
                                  "%s{\"identifier_glob\":\"%s\",\"capacity\":1}", bytes ? "," : "",
                                  name);
    }
    doorman_config *last = config_of("", ""), *now = config_of(list, "");
    load(w, last, now, "");
    assert_int_equal(logged(w, "x and 2 more\"\n"), 1);
    doorman_config_destroy(now);
    doorman_config_destroy(last);
}

static void the_log_says_what_happens_to_unmatched_resources(void **state) {
    struct world *w = (struct world *)*state;
    doorman_config *allows = config_of(A, ""), *rejects = config_of(A, "\"unmatched\":\"reject\",");
    load(w, allows, rejects, "");
    assert_int_equal(logged(w, "loaded\" file=file unmatched=reject\n"), 1);
    load(w, rejects, allows, "");
    assert_int_equal(logged(w, "loaded\" file=file unmatched=allow\n"), 1);
    doorman_config_destroy(rejects);
    doorman_config_destroy(allows);
}

static void a_refused_configuration_is_logged_with_its_error(void **state) {
    struct world *w = (struct world *)*state;
    w->settings.config = "file";
    snprintf(w->service.last_load.error, sizeof w->service.last_load.error, "wrong");
    server_report_config(&w->service, NULL);
    assert_int_equal(logged(w, "level=error msg=\"configuration refused; the last one stays in "
                               "force\" file=file error=wrong\n"),
                     1);
}

/* The hash does not depend on layout and defaults, but on every value. */
static void equal_configurations_have_equal_hashes(void **state) {
    (void)state;
    static const char *const lists[] = {A, " { \"capacity\" : 1.0 , \"identifier_glob\" : \"a\" } ",
                                        RESOURCE("a", "1.5"), RESOURCE("b", "1"), A "," B};
    char first[CONFIG_HASH_BYTES], hash[CONFIG_HASH_BYTES];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        doorman_config *config = config_of(lists[i], "");
        server_config_hash(config, hash);
        if (i == 0) memcpy(first, hash, sizeof first);
        assert_int_equal(strlen(hash), CONFIG_HASH_BYTES - 1);
        assert_int_equal(strcmp(hash, first) == 0, i < 2);
        doorman_config_destroy(config);
    }
    server_config_hash(NULL, hash);
    assert_string_equal(hash, "");
}

/* ---- learning ------------------------------------------------------------------------------- */

#define STARTS                                                                                     \
    "msg=\"learning starts: until the leases of the last master have ended, holders keep what "    \
    "they have, and get no more\" seconds="
#define ENDED "msg=\"learning has ended\" seconds="

static void the_log_says_how_long_learning_lasts(void **state) {
    struct world *w = (struct world *)*state;
    doorman_config *config = server_create(w, 100 * SECOND);
    server_report_learning(&w->service, 100 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    set_master(w, DOORMAN_NEVER, 100 * SECOND);
    server_report_learning(&w->service, 100 * SECOND);
    assert_int_equal(logged(w, STARTS "63.0 resources=0 holders=0\n"), 1);
    for (int second = 101; second < 163; second++) {
        server_report_learning(&w->service, second * SECOND);
    }
    server_report_learning(&w->service, 163 * SECOND - 1);
    assert_int_equal(logged(w, ""), 0);
    server_report_learning(&w->service, 163 * SECOND);
    assert_int_equal(logged(w, ENDED "63.0 resources=0 holders=0\n"), 1);
    server_report_learning(&w->service, 164 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    server_destroy(w, config);
}

/* A server that loses its mastership has not learned. As the next master it learns again. */
static void learning_that_a_lost_mastership_cuts_short_has_no_end(void **state) {
    struct world *w = (struct world *)*state;
    doorman_config *config = server_create(w, 100 * SECOND);
    set_master(w, 120 * SECOND, 100 * SECOND);
    server_report_learning(&w->service, 100 * SECOND);
    assert_int_equal(logged(w, STARTS "63.0 resources=0 holders=0\n"), 1);
    server_report_learning(&w->service, 120 * SECOND);
    set_master(w, 0, 121 * SECOND);
    server_report_learning(&w->service, 121 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    set_master(w, DOORMAN_NEVER, 130 * SECOND);
    server_report_learning(&w->service, 131 * SECOND);
    assert_int_equal(logged(w, STARTS "62.0 resources=0 holders=0\n"), 1);
    server_report_learning(&w->service, 193 * SECOND);
    assert_int_equal(logged(w, ENDED "62.0 resources=0 holders=0\n"), 1);
    server_destroy(w, config);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, log_setup, log_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_refused_message_is_logged_with_its_method_and_field),
        TEST(a_message_without_a_method_is_logged_with_its_error),
        TEST(each_method_has_a_line_of_its_own_once_a_minute),
        TEST(debug_logs_every_message),
        TEST(the_log_says_what_a_new_configuration_changes),
        TEST(the_log_names_a_few_templates_and_counts_the_rest),
        TEST(long_globs_are_logged),
        TEST(the_log_says_what_happens_to_unmatched_resources),
        TEST(a_refused_configuration_is_logged_with_its_error),
        TEST(equal_configurations_have_equal_hashes),
        TEST(the_log_says_how_long_learning_lasts),
        TEST(learning_that_a_lost_mastership_cuts_short_has_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
