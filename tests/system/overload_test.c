/* H11: servers behind a resource report over HTTP and nng what they had to refuse. The reports
 * lower the capacity in force, in a tree too, and people see why. */
#define _GNU_SOURCE
#include "http.h"

#define SEARCH                                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"search\", \"capacity\": 100, \"overload\": "         \
    "{\"target\": 0.1, \"capacity_min\": 20}, \"algorithm\": {\"kind\": \"FAIR_SHARE\", "          \
    "\"lease_length\": 60, \"refresh_interval\": 16, \"learning_mode_duration\": 0}}]}"
#define ASK(more)                                                                                  \
    "{\"client_id\": \"web\", \"resource\": [{\"resource_id\": \"search\", \"wants\": 100" more    \
    "}]}"
#define REPORT(finished, refused)                                                                  \
    "{\"client_id\": \"search-3\", \"resource\": [{\"resource_id\": \"search\", \"interval\": "    \
    "16, "                                                                                         \
    "\"arrived\": 1000, \"finished\": " #finished ", \"refused\": " #refused "}]}"
#define CAPACITY "doorman_resource_capacity{resource=\"search\"}"
#define CONFIGURED "doorman_resource_configured_capacity{resource=\"search\"}"

TEST(a_report_lowers_the_capacity_and_people_see_why) {
    struct fixture fixture = fixture_start(SEARCH, NULL);
    expect_post(&fixture, "/v1/report_overload", HOST JSON, REPORT(500, 500), 200,
                "{\"response\":[{\"resource_id\":\"search\"}]}"); /* nobody has a lease */
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, ASK(""), 200, "\"overload_target\":0.1");
    assert_true(metric(&fixture, CAPACITY) == 100);
    expect_post(&fixture, "/v1/report_overload", HOST JSON, REPORT(500, 500), 200,
                "{\"response\":[{\"resource_id\":\"search\",\"overload_target\":0.1}]}");
    double capacity = metric(&fixture, CAPACITY);
    assert_true(capacity > 48.4 && capacity < 48.6);
    assert_true(metric(&fixture, CONFIGURED) == 100);
    expect(&fixture, "/", HOST, 200, "lowered from 100 by reports of overload");
    expect(&fixture, "/v1/status", HOST, 200, "\"overload\":{\"configured\":100,");
    expect(&fixture, "/v1/status", HOST, 200, "\"arrived\":1000,\"finished\":500,\"refused\":500");
    process_await(fixture.server.process,
                  "servers report overload of a resource, so its capacity in force was lowered", 1);
    expect_post(&fixture, "/v1/report_overload", HOST JSON, REPORT(0, 1000), 200, "search");
    capacity = metric(&fixture, CAPACITY);
    assert_true(capacity > 24.2 && capacity < 24.3); /* 500 of 2,000 finished */
    server_stop(&fixture.server);
}

TEST(a_report_over_nng_counts_too) {
    struct fixture fixture = fixture_start(SEARCH, NULL);
    cJSON_Delete(send_request(&fixture.server, "{\"get_capacity\": " ASK("") "}"));
    cJSON *reply = send_request(&fixture.server, "{\"report_overload\": " REPORT(100, 900) "}");
    char *text = cJSON_PrintUnformatted(reply);
    assert_string_equal(text, "{\"report_overload\":{\"response\":[{\"resource_id\":\"search\","
                              "\"overload_target\":0.1}]}}");
    assert_true(metric(&fixture, CAPACITY) == 20); /* capacity_min */
    free(text);
    cJSON_Delete(reply);
    server_stop(&fixture.server);
}

/* A client that has a lease can report with its renewal. */
TEST(a_request_for_capacity_can_carry_a_report) {
    struct fixture fixture = fixture_start(SEARCH, NULL);
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, ASK(""), 200, "\"capacity\":100");
    expect_post(&fixture, "/v1/get_capacity", HOST JSON,
                ASK(", \"overload\": {\"interval\": 16, \"arrived\": 100, \"finished\": 100, "
                    "\"refused\": 0, \"late\": 51}"),
                200, "\"overload_target\":0.1");
    double capacity = metric(&fixture, CAPACITY);
    assert_true(capacity > 96.9 && capacity < 97.1);
    server_stop(&fixture.server);
}

TEST(a_wrong_report_is_refused_by_name) {
    static const struct {
        const char *report, *error;
    } rows[] = {{"\"arrived\": 1, \"finished\": 1, \"refused\": 0", "[0].interval: is missing"},
                {"\"interval\": 0, \"arrived\": 1, \"finished\": 1, \"refused\": 0",
                 "[0].interval: must be more than 0"},
                {"\"interval\": 1, \"arrived\": -1, \"finished\": 1, \"refused\": 0",
                 "[0].arrived: must be"},
                {"\"interval\": 1, \"arrived\": 1, \"finished\": 1, \"refused\": 0, \"late\": 2",
                 "[0].late: must be from 0 to `finished`"}};
    struct fixture fixture = fixture_start(SEARCH, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"client_id\": \"s\", \"resource\": [{\"resource_id\": \"search\", %s}]}",
                 rows[i].report);
        expect_post(&fixture, "/v1/report_overload", HOST JSON, body, 400, rows[i].error);
    }
    server_stop(&fixture.server);
}

/* Sends a report over nng. Returns the error code of the response, or "". */
static const char *report_over_nng(const struct fixture *fixture, const char *client,
                                   const char *resource, const char *numbers) {
    static char code[64];
    char message[512];
    snprintf(message, sizeof message,
             "{\"report_overload\": {\"client_id\": \"%s\", \"resource\": [{\"resource_id\": "
             "\"%s\", %s}]}}",
             client, resource, numbers);
    cJSON *reply = send_request(&fixture->server, message);
    const cJSON *error = find(reply, "error.code");
    snprintf(code, sizeof code, "%s", error ? error->valuestring : "");
    cJSON_Delete(reply);
    return code;
}

/* Whatever reports say, the capacity in force stays between capacity_min and the configured
 * capacity. A request for capacity with a wrong report has no effect. */
TEST(reports_that_lie_cannot_leave_the_bounds_of_the_capacity) {
    static const char *const wrong[] = {
        "\"interval\": 1e9, \"arrived\": 99, \"finished\": 0, \"refused\": 99",
        "\"interval\": 1e-12, \"arrived\": 99, \"finished\": 0, \"refused\": 99",
        "\"interval\": 1, \"arrived\": 1e308, \"finished\": 0, \"refused\": 99",
        "\"interval\": 1, \"arrived\": NaN, \"finished\": 0, \"refused\": 99",
        "\"interval\": 1, \"arrived\": 99, \"finished\": 0, \"refused\": -1"};
    static const char *const lies[] = {
        "\"interval\": 1, \"arrived\": 1e15, \"finished\": 0, \"refused\": 1e15",
        "\"interval\": 1e-9, \"arrived\": 99, \"finished\": 1e15, \"refused\": 99",
        "\"interval\": 1e8, \"arrived\": 20, \"finished\": 1e15, \"refused\": 1e15",
        "\"interval\": 1, \"arrived\": 0, \"finished\": 0, \"refused\": 1e15"};
    struct fixture fixture = fixture_start(SEARCH, NULL);
    char client[16];
    cJSON_Delete(send_request(&fixture.server, "{\"get_capacity\": " ASK("") "}"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_string_equal(report_over_nng(&fixture, "a", "search", wrong[i]), "INVALID_ARGUMENT");
    }
    expect_post(&fixture, "/v1/get_capacity", HOST JSON,
                ASK(", \"overload\": {\"interval\": 1e9, \"arrived\": 99, \"finished\": 0, "
                    "\"refused\": 99}"),
                400, "[0].overload.interval: must be from 0 to 1e8 seconds");
    assert_true(metric(&fixture, CAPACITY) == 100);
    assert_string_equal(report_over_nng(&fixture, "a", "other", lies[0]), ""); /* nobody has it */
    for (int i = 0; i < 1000; i++) {
        snprintf(client, sizeof client, "c%d", i);
        assert_string_equal(report_over_nng(&fixture, client, "search", lies[i / 250]), "");
        double capacity = i % 250 ? 20 : metric(&fixture, CAPACITY);
        assert_true(capacity >= 20 && capacity <= 100);
    }
    server_stop(&fixture.server);
}

/* The node below adds reports up, and its next request passes the sum on. */
TEST(a_report_to_a_node_below_lowers_the_capacity_of_the_root) {
    struct fixture root = fixture_start(SEARCH, NULL), leaf = leaf_start(root.server.url);
    double capacity = 100;
    for (int waited = 0; capacity > 99; waited += 100) {
        if (waited > TIMEOUT_MS) fail_msg("the capacity of the root is %g", capacity);
        free(post(&leaf, "/v1/get_capacity", HOST JSON, ASK("")));
        free(post(&leaf, "/v1/report_overload", HOST JSON, REPORT(500, 500)));
        sleep_ms(100);
        if (waited > 1000) capacity = metric(&root, CAPACITY);
    }
    server_stop(&leaf.server);
    server_stop(&root.server);
}
