/* The log lines of server/log/reports.c (V6), with the time as a variable: refused messages,
 * changed configurations, learning, and the parent. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_REPORTS
#define DOORMAN_SERVER_WARNINGS
#include "../../doorman_server.c"
#undef main
#include "../../server/config/changes.c"
#include "../../server/log/reports.c"
#include "../../server/log/warnings.c"

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

/* Lets the server answer a message, and reports the message. The peer has no address.
 *   method   NULL: the message names its method */
static void report_body(struct world *w, const char *method, const char *message) {
    const struct peer peer = {.text = NULL};
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    struct message_report report = {
        .exchange = &exchange, .peer = &peer, .duration = 1500000, .client = "a"};
    report.was_read =
        doorman_json_exchange_read(&exchange, method, message, strlen(message)) == DOORMAN_OK;
    doorman_json_exchange_decide(&exchange, w->service.server, 0);
    report.status = doorman_json_exchange_write(&exchange, 0);
    server_unlock(&w->service.lock);
    report_message(&w->service, &report);
    server_lock(&w->service.lock);
    doorman_json_exchange_uninit(&exchange);
}

static void report(struct world *w, const char *message) { report_body(w, NULL, message); }

#define RELEASE(id)                                                                                \
    "{\"release_capacity\":{\"client_id\":\"a\",\"resource\":[{\"resource_id\":\"db\",\"id\":" id  \
    "}]}}"

TEST_WITH(world, a_refused_message_is_logged_with_its_method_and_field) {
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

/* In an error, a colon follows the name of the field. But a key of JSON may have a colon too. */
TEST_WITH(world, a_colon_in_a_key_does_not_end_the_field_in_the_log) {
    report_body(w, "acquire", "{\"a: b\":1,\"a: b\":2}");
    assert_int_equal(logged(w, " method=acquire code=INVALID_ARGUMENT field=\"a: b\" "
                               "error=\"appears twice\"\n"),
                     1);
}

/* A message without a known method is logged with method=unknown. Text from a peer is escaped. */
TEST_WITH(world, a_message_without_a_method_is_logged_with_its_error) {
    report(w, "{\"a\\\"b\\n\":{}}");
    assert_int_equal(logged(w, " peer=unknown method=unknown code=NOT_FOUND error=\"no such "
                               "method: a\\\"b\\n; the methods are "),
                     1);
}

TEST_WITH(world, each_method_has_a_line_of_its_own_once_a_minute) {
    for (int i = 0; i < 100; i++) report(w, "rubbish");
    assert_int_equal(logged(w, " count=1 peer=unknown method=unknown "), 1);
    for (int i = 0; i < 100; i++) report(w, RELEASE("0"));
    assert_int_equal(logged(w, " count=1 peer=unknown method=release_capacity "), 1);
    warnings_update(&w->service, doorman_clock() + 61 * SECOND);
    assert_int_equal(logged(w, " count=99 peer=unknown method="), 2);
}

/* A valid message is only logged with --log-level debug. */
TEST_WITH(world, debug_logs_every_message) {
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
    report_config(&w->service, last, NULL);
}

/* Fails unless the line about a change from `before` to `after` ends with `expected`. */
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

TEST_WITH(world, the_log_says_what_a_new_configuration_changes) {
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

#define LIMITS(list) "{\"identifier_glob\":\"l\",\"limits\":[" list "]}"
#define WINDOW(name, more) "{\"name\":\"" name "\",\"kind\":\"FIXED_WINDOW\",\"limit\":5," more "}"
#define BUCKET(name) "{\"name\":\"" name "\",\"kind\":\"TOKEN_BUCKET\",\"rate\":1,\"size\":1}"

/* P15: an operator sees which counters start fresh. */
TEST_WITH(world, the_log_says_which_limits_have_changed) {
    static const char fresh[] = ", so its counters start fresh\"\n";
    static const struct {
        const char *before, *after, *change, *end;
    } cases[] = {
        {LIMITS(WINDOW("w", "\"window\":60")), LIMITS(WINDOW("w", "\"window\":\"minute\"")),
         "\"a window of another length", fresh},
        {LIMITS(WINDOW("w", "\"window\":60")),
         LIMITS(WINDOW("w", "\"window\":60,\"overrides\":[{\"keys\":[\"k\"],\"window\":9}]")),
         "\"a window of another length", fresh},
        {LIMITS(WINDOW("w", "\"window\":60")), LIMITS(BUCKET("w")), "\"another kind", fresh},
        {LIMITS(WINDOW("w", "\"window\":60")),
         LIMITS(WINDOW("w", "\"window\":60,\"per\":\"resource\"")), "\"another scope", fresh},
        {LIMITS(WINDOW("w", "\"window\":60")), LIMITS(WINDOW("w", "\"window\":60,\"warn_at\":0.5")),
         "\"other settings; its counters stay\"\n", ""},
        {LIMITS(WINDOW("v", "\"window\":60")), LIMITS(WINDOW("v", "\"window\":60") "," BUCKET("w")),
         "added\n", ""},
        {LIMITS(WINDOW("v", "\"window\":60") "," BUCKET("w")), LIMITS(WINDOW("v", "\"window\":60")),
         "\"removed or renamed, so its counters are dropped\"\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        doorman_config *last = config_of(cases[i].before, "");
        doorman_config *now = config_of(cases[i].after, "");
        load(w, last, now, "12ab");
        snprintf(line, sizeof line, "msg=\"a limit has changed\" template=l limit=w change=%s%s",
                 cases[i].change, cases[i].end);
        if (logged(w, line) != 1) fail_msg("case %zu: no line: %s", i, line);
        load(w, last, now, "12ab");
        assert_int_equal(logged(w, "a limit has changed"), 1); /* the others have not */
        doorman_config_destroy(now);
        doorman_config_destroy(last);
    }
}

/* P15: a warning says how many counters a change has dropped. */
TEST_WITH(world, a_warning_counts_the_counters_that_a_change_drops) {
    static const struct limit_counts counts[] = {{1, 0}, {300, 0}, {7, 0}};
    doorman_config *last =
        config_of("{\"identifier_glob\":\"a\",\"limits\":[" BUCKET("x") "]}," LIMITS(
                      BUCKET("w") "," WINDOW("v", "\"window\":60")),
                  "");
    doorman_config *now =
        config_of("{\"identifier_glob\":\"a\",\"limits\":[" BUCKET("x") "]}," LIMITS(
                      BUCKET("u") "," WINDOW("v", "\"window\":61")),
                  "");
    w->settings.config = "file";
    w->service.config = now;
    report_config(&w->service, last, counts);
    assert_int_equal(logged(w, "level=warning msg=\"a limit has changed\" template=l limit=w "
                               "change=\"removed or renamed, so its counters are dropped\" "
                               "counters=300\n"),
                     1);
    report_config(&w->service, last, counts);
    assert_int_equal(logged(w, "level=warning msg=\"a limit has changed\" template=l limit=v "
                               "change=\"a window of another length, so its counters start fresh\" "
                               "counters=7\n"),
                     1);
    doorman_config_destroy(now);
    doorman_config_destroy(last);
}

/* The store still has the rows of a durable limit, so its counters are not lost. */
TEST_WITH(world, counters_that_stay_in_the_store_are_reported_as_such) {
    static const struct limit_counts counts[] = {{300, 0}, {7, 0}};
    doorman_config *last = config_of(LIMITS(BUCKET("w") "," WINDOW("v", "\"window\":3600")), "");
    doorman_config *now = config_of(LIMITS(BUCKET("u")), "");
    w->settings.config = "file";
    w->settings.state = "counters.db";
    w->service.config = now;
    report_config(&w->service, last, counts);
    assert_int_equal(logged(w, "limit=v change=\"removed or renamed; its counters stay in the "
                               "store, and come back with its name\" counters=7\n"),
                     1);
    report_config(&w->service, last, counts);
    assert_int_equal(logged(w, "limit=w change=\"removed or renamed, so its counters are "
                               "dropped\" counters=300\n"),
                     1);
    doorman_config_destroy(now);
    doorman_config_destroy(last);
}

/* A template that was renamed by mistake looks like one that was removed. */
TEST_WITH(world, templates_that_are_gone_are_a_warning) {
    static const struct limit_counts counts[] = {{20, 0}, {3, 0}};
    doorman_config *last = config_of(A "," LIMITS(BUCKET("w") "," BUCKET("v")), "");
    doorman_config *now = config_of(A, "");
    w->settings.config = "file";
    w->service.config = now;
    report_config(&w->service, last, counts);
    assert_int_equal(logged(w,
                            "level=warning msg=\"templates were removed or renamed: only another "
                            "template that matches limits their resources now, and their "
                            "counters are dropped\" templates=l counters=23\n"),
                     1);
    w->service.config = last;
    report_config(&w->service, now, NULL);
    assert_int_equal(logged(w, "removed or renamed"), 0);
    doorman_config_destroy(now);
    doorman_config_destroy(last);
}

#define LIFE(seconds)                                                                              \
    LIMITS("{\"name\":\"s\",\"kind\":\"CONCURRENCY\",\"limit\":1,\"time_to_live\":" seconds "}")
#define LEASES(length, more)                                                                       \
    "{\"identifier_glob\":\"d\",\"capacity\":1,\"algorithm\":{\"kind\":\"FAIR_SHARE\","            \
    "\"refresh_interval\":5,\"lease_length\":" length more "}}"

/* R8, P16: a new server cannot know how long older leases and holds last. */
TEST_WITH(world, the_log_warns_of_a_shortened_time) {
    static const struct {
        const char *before, *after, *line;
    } cases[] = {
        {LIFE("60"), LIFE("15"),
         "level=warning msg=\"time_to_live was shortened: if this server restarts within the old "
         "time, more than the limit may be held\" template=l old_seconds=60 limit=s\n"},
        {LEASES("60", ""), LEASES("20", ""),
         "level=warning msg=\"lease_length was shortened: if this server restarts within the old "
         "time, more than the capacity may be in use\" template=d old_seconds=60\n"},
        {LEASES("60", ""), LEASES("20", ",\"learning_mode_duration\":60"), NULL},
        {LEASES("20", ""), LEASES("60", ""), NULL},
        {LIFE("15"), LIFE("60"), NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        doorman_config *last = config_of(cases[i].before, "");
        doorman_config *now = config_of(cases[i].after, "");
        load(w, last, now, "");
        int found = logged(w, cases[i].line ? cases[i].line : "shortened");
        if (found != (cases[i].line != NULL)) fail_msg("case %zu: %d lines", i, found);
        doorman_config_destroy(now);
        doorman_config_destroy(last);
    }
}

TEST_WITH(world, the_log_names_a_few_templates_and_counts_the_rest) {
    static const char more[] = RESOURCE("d", "1") "," RESOURCE("e", "1");
    char list[512];
    snprintf(list, sizeof list, A "," B "," C ",%s", more);
    expect_changes(w, A, list, "added=\"b, c, d and 1 more\"");
    expect_changes(w, list, A, "removed=\"b, c, d and 1 more\"");
    expect_changes(w, B, A "," B "," C "," RESOURCE("d", "1"), "added=\"a, c, d\"");
}

/* A line has room for three globs of the greatest length. */
TEST_WITH(world, long_globs_are_logged) {
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

#define RULE(glob)                                                                                 \
    "\"descriptors\":[{\"domain\":\"d\",\"entries\":[[\"k\",\"" glob "\"]],\"resource\":\"a\"}],"

TEST_WITH(world, the_log_says_that_rules_for_descriptors_have_changed) {
    doorman_config *without = config_of(A, ""), *one = config_of(A, RULE("*")),
                   *other = config_of(A, RULE("x"));
    load(w, without, one, "");
    assert_int_equal(logged(w, "loaded\" file=file descriptors=changed\n"), 1);
    load(w, one, other, "");
    assert_int_equal(logged(w, "loaded\" file=file descriptors=changed\n"), 1);
    load(w, other, other, "");
    assert_int_equal(logged(w, "loaded\" file=file changes=none\n"), 1);
    doorman_config_destroy(without);
    doorman_config_destroy(one);
    doorman_config_destroy(other);
}

TEST_WITH(world, the_log_says_what_happens_to_unmatched_resources) {
    doorman_config *allows = config_of(A, ""), *rejects = config_of(A, "\"unmatched\":\"reject\",");
    load(w, allows, rejects, "");
    assert_int_equal(logged(w, "loaded\" file=file unmatched=reject\n"), 1);
    load(w, rejects, allows, "");
    assert_int_equal(logged(w, "loaded\" file=file unmatched=allow\n"), 1);
    doorman_config_destroy(rejects);
    doorman_config_destroy(allows);
}

TEST_WITH(world, a_refused_configuration_is_logged_with_its_error) {
    w->settings.config = "file";
    snprintf(w->service.last_load.error, sizeof w->service.last_load.error, "wrong");
    report_config(&w->service, NULL, NULL);
    assert_int_equal(logged(w, "level=error msg=\"configuration refused; the last one stays in "
                               "force\" file=file error=wrong\n"),
                     1);
}

/* The hash depends on every value, but not on layout and defaults. */
TEST(equal_configurations_have_equal_hashes) {
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

TEST_WITH(world, the_log_says_how_long_learning_lasts) {
    doorman_config *config = server_create(w, 100 * SECOND);
    report_learning(&w->service, LEARNING_OF_MASTER, 100 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    set_master(w, DOORMAN_NEVER, 100 * SECOND);
    report_learning(&w->service, LEARNING_OF_MASTER, 100 * SECOND);
    assert_int_equal(logged(w, STARTS "63.0 resources=0 holders=0\n"), 1);
    for (int second = 101; second < 163; second++) {
        report_learning(&w->service, LEARNING_OF_MASTER, second * SECOND);
    }
    report_learning(&w->service, LEARNING_OF_MASTER, 163 * SECOND - 1);
    assert_int_equal(logged(w, ""), 0);
    report_learning(&w->service, LEARNING_OF_MASTER, 163 * SECOND);
    assert_int_equal(logged(w, ENDED "63.0 resources=0 holders=0\n"), 1);
    report_learning(&w->service, LEARNING_OF_MASTER, 164 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    server_destroy(w, config);
}

/* R8: a template that has only limits of permits has no leases, so nothing is learned for it. */
TEST_WITH(world, the_log_names_the_learning_time_of_the_leases_that_exist) {
    doorman_config *config =
        config_of("{\"identifier_glob\": \"a\", \"capacity\": 1, \"algorithm\": "
                  "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 30}}, {\"identifier_glob\": \"b\", "
                  "\"limits\": [{\"name\": \"l\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                  "\"size\": 1}]}",
                  "");
    const doorman_server_options options = {.node = "n", .config = config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&w->service.server, &options, NULL, 0), DOORMAN_OK);
    set_master(w, DOORMAN_NEVER, 0);
    report_learning(&w->service, LEARNING_OF_MASTER, 0);
    assert_int_equal(logged(w, STARTS "31.5 resources=0 holders=0\n"), 1);
    server_destroy(w, config);
}

/* A server that loses its mastership while it learns must learn again when it is master again. */
TEST_WITH(world, learning_that_a_lost_mastership_cuts_short_has_no_end) {
    doorman_config *config = server_create(w, 100 * SECOND);
    set_master(w, 120 * SECOND, 100 * SECOND);
    report_learning(&w->service, LEARNING_OF_MASTER, 100 * SECOND);
    assert_int_equal(logged(w, STARTS "63.0 resources=0 holders=0\n"), 1);
    report_learning(&w->service, LEARNING_OF_MASTER, 120 * SECOND);
    set_master(w, 0, 121 * SECOND);
    report_learning(&w->service, LEARNING_OF_MASTER, 121 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    set_master(w, DOORMAN_NEVER, 130 * SECOND);
    report_learning(&w->service, LEARNING_OF_MASTER, 131 * SECOND);
    assert_int_equal(logged(w, STARTS "62.0 resources=0 holders=0\n"), 1);
    report_learning(&w->service, LEARNING_OF_MASTER, 193 * SECOND);
    assert_int_equal(logged(w, ENDED "62.0 resources=0 holders=0\n"), 1);
    server_destroy(w, config);
}

/* While a resource had no template, it was not limited. So clients may still have leases of it. */
TEST_WITH(world, the_log_says_that_a_configuration_causes_learning) {
    doorman_config *first = server_create(w, 0), *second = config_of(A "," B, "");
    doorman_config *third = config_of(A "," B "," C, "");
    set_master(w, DOORMAN_NEVER, 0);
    report_learning(&w->service, LEARNING_OF_MASTER, 63 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    assert_int_equal(doorman_server_configure(w->service.server, second, 100 * SECOND), DOORMAN_OK);
    report_learning(&w->service, LEARNING_OF_CONFIGURATION, 100 * SECOND);
    assert_int_equal(logged(w, "msg=\"learning starts for new templates: until leases from before "
                               "them have ended, holders keep what they have, and get no more\" "
                               "seconds=63.0 "),
                     1);
    assert_int_equal(doorman_server_configure(w->service.server, third, 140 * SECOND), DOORMAN_OK);
    report_learning(&w->service, LEARNING_OF_CONFIGURATION, 140 * SECOND);
    assert_int_equal(logged(w, "msg=\"learning takes longer: the new configuration has new "
                               "templates, or longer leases\" seconds=63.0 "),
                     1);
    report_learning(&w->service, LEARNING_OF_CONFIGURATION, 150 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    report_learning(&w->service, LEARNING_OF_MASTER, 203 * SECOND);
    assert_int_equal(logged(w, ENDED "103.0 "), 1);
    server_destroy(w, third);
    doorman_config_destroy(second);
    doorman_config_destroy(first);
}

/* ---- the parent ----------------------------------------------------------------------------- */

static doorman_transport_result result_of(doorman_status status, const char *address) {
    doorman_transport_result result = {.has_ended = true, .status = status};
    result.is_master = status == DOORMAN_OK;
    snprintf(result.address, sizeof result.address, "%s", address);
    if (status != DOORMAN_OK) snprintf(result.error.text, sizeof result.error.text, "no answer");
    return result;
}

static void report_result(struct world *w, doorman_transport_result result, doorman_time now) {
    report_parent(&w->service, &result, now);
}

/* The line about the recovery counts the failures, so no later line reports them. */
TEST_WITH(world, the_log_says_how_long_the_parent_did_not_answer) {
    const struct parent_state *parent = &w->service.parent_link.state;
    report_result(w, result_of(DOORMAN_OK, "a"), 50 * SECOND);
    assert_int_equal(logged(w, "msg=\"the parent answers\" parent=a\n"), 1);
    for (int i = 0; i < 20; i++) {
        doorman_transport_result failure = result_of(DOORMAN_UNAVAILABLE, "a");
        failure.retry_at = (102 + 2 * i) * SECOND;
        report_result(w, failure, (100 + 2 * i) * SECOND);
    }
    assert_int_equal(logged(w, "the parent cannot be reached\" count=1 parent=a "), 1);
    assert_true(parent->retry_at == 140 * SECOND);
    report_result(w, result_of(DOORMAN_OK, "a"), 141 * SECOND);
    assert_int_equal(logged(w, "answers\" parent=a after_seconds=41.0 failures=20\n"), 1);
    warnings_update(&w->service, 1000 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    assert_true(parent->trouble.since == 0 && parent->answered_at == 141 * SECOND);
}

/* A redirect to a server that does not answer is not an answer of the parent. */
TEST_WITH(world, the_log_says_where_the_parent_redirects_to) {
    const struct parent_state *parent = &w->service.parent_link.state;
    doorman_transport_result redirect = result_of(DOORMAN_OK, "a");
    redirect.is_master = false;
    snprintf(redirect.redirect, sizeof redirect.redirect, "b");
    for (int i = 0; i < 5; i++) {
        report_result(w, redirect, (100 + i) * SECOND);
        report_result(w, result_of(DOORMAN_UNAVAILABLE, "b"), (100 + i) * SECOND);
    }
    assert_true(parent->trouble.since == 100 * SECOND && parent->answered_at == 0);
    report_result(w, result_of(DOORMAN_OK, "b"), 105 * SECOND);
    snprintf(redirect.redirect, sizeof redirect.redirect, "c");
    report_result(w, redirect, 106 * SECOND);
    char text[4096];
    size_t bytes = fread(text, 1, sizeof text - 1, (rewind(w->log), w->log));
    text[bytes] = 0;
    assert_int_equal(logged(w, "the parent redirects to its master\" from=a to="), 2);
    assert_non_null(strstr(text, " from=a to=b\n"));
    assert_non_null(strstr(text, " from=a to=c\n"));
    assert_non_null(strstr(text, "answers\" parent=b after_seconds=5.0 failures=5\n"));
}

/* A node without clients only sends probes, which follow no redirect. */
TEST_WITH(world, a_probe_says_where_the_master_is) {
    doorman_transport_result probe = result_of(DOORMAN_OK, "a");
    probe.is_master = false;
    probe.is_probe = true;
    snprintf(probe.redirect, sizeof probe.redirect, "b");
    report_result(w, probe, 100 * SECOND);
    assert_int_equal(logged(w, "the parent answers\" parent=a redirects_to=b\n"), 1);
    assert_true(w->service.parent_link.state.answered_at == 100 * SECOND);
}

TEST_WITH(world, a_parent_without_a_master_is_a_problem) {
    const struct parent_state *parent = &w->service.parent_link.state;
    doorman_transport_result answer = result_of(DOORMAN_OK, "a");
    answer.is_master = false;
    for (int i = 0; i < 3; i++) report_result(w, answer, (100 + i) * SECOND);
    assert_int_equal(logged(w, "level=warning msg=\"the parent knows no master, so "
                               "this node gets no leases\" count=1 parent=a "),
                     1);
    assert_true(parent->has_no_master && parent->trouble.since == 100 * SECOND);
    report_result(w, result_of(DOORMAN_OK, "a"), 103 * SECOND);
    assert_int_equal(logged(w, "answers\" parent=a after_seconds=3.0 failures=3\n"), 1);
    assert_false(parent->has_no_master);
}
