/* Permits over nng: a real server decides, keeps its counters over a reload, and refuses what only
 * HTTP may ask for. */
#define _GNU_SOURCE
#include "harness.h"

#define LIMITS(size)                                                                               \
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": ["                              \
    "{\"name\": \"user\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": " size "},"       \
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, "     \
    "\"window\": \"month\"}]}]}"
#define CAPACITY "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 10}]}"
#define LEASED                                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"share\", "        \
    "\"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\"}]}]}"
#define ACQUIRE                                                                                    \
    "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"detail\": true, \"item\": "              \
    "[{\"resource_id\": \"login\", \"key\": \"alice\"}]}]}}"

/* Asks for one unit. Returns whether it was granted. */
static bool acquire(const struct server *server) {
    cJSON *response = send_request(server, ACQUIRE);
    const char *decision = text(response, "acquire.permit[0].decision");
    bool granted = strcmp(decision, "GRANTED") == 0;
    if (!granted) assert_string_equal(text(response, "acquire.permit[0].limit"), "user");
    cJSON_Delete(response);
    return granted;
}

TEST(permits_are_decided_over_nng) {
    struct server server = server_start(LIMITS("2"), NULL);
    assert_true(acquire(&server));
    assert_true(acquire(&server));
    assert_false(acquire(&server));
    cJSON *response = send_request(
        &server, "{\"report\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"login\", "
                 "\"key\": \"bob\", \"cost\": 2}]}}");
    assert_true(number(response, "report.entry[0].charged") > 1.99);
    cJSON_Delete(response);
    server_stop(&server);
}

/* P26: calendar windows follow the clock of the machine. */
TEST(windows_follow_the_calendar) {
    struct server server = server_start(LIMITS("9"), NULL);
    time_t now = time(NULL);
    struct tm utc;
    cJSON *response = send_request(&server, ACQUIRE);
    double rest = number(response, "acquire.permit[0].item[0].limits[1].reset_after");
    gmtime_r(&now, &utc);
    utc.tm_mon++;
    utc.tm_mday = 1;
    utc.tm_hour = utc.tm_min = utc.tm_sec = 0;
    double expected = difftime(timegm(&utc), now);
    /* the month may end between the two readings of the clock */
    assert_true(rest <= expected + 1);
    if (expected > 2.0 * TIMEOUT_MS / 1000) assert_true(rest > expected - TIMEOUT_MS / 1000.0);
    cJSON_Delete(response);
    server_stop(&server);
}

/* P15 */
TEST(a_reload_keeps_the_counters) {
    struct server server = server_start(LIMITS("1"), NULL);
    assert_true(acquire(&server));
    assert_false(acquire(&server));
    config_replace(server.process, LIMITS("5"));
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration loaded", 1);
    assert_false(acquire(&server)); /* a larger bucket is not full */
    server_stop(&server);
}

TEST(administration_is_not_possible_over_nng) {
    struct server server = server_start(LIMITS("1"), NULL);
    static const char *const methods[] = {"inspect", "reset"}, *const roles[] = {"read", "support"};
    assert_true(acquire(&server));
    for (int i = 0; i < 2; i++) {
        char message[128], expected[128];
        snprintf(message, sizeof message,
                 "{\"%s\": {\"entry\": [{\"resource_id\": \"login\", \"key\": \"alice\"}]}}",
                 methods[i]);
        snprintf(expected, sizeof expected,
                 "%s: send it over HTTP, as POST /v1/%s with a token of the role %s", methods[i],
                 methods[i], roles[i]);
        cJSON *response = send_request(&server, message);
        assert_string_equal(text(response, "error.code"), "NOT_FOUND");
        assert_string_equal(text(response, "error.message"), expected);
        cJSON_Delete(response);
    }
    assert_false(acquire(&server)); /* nothing was reset */
    server_stop(&server);
}

/* G8. The parent need not run. */
TEST(a_node_with_a_parent_decides_by_its_own_limits) {
    static const char *const parent[] = {"--parent", "ipc:///nowhere", NULL};
    struct server leaf = server_start(LIMITS("1"), parent);
    assert_true(acquire(&leaf));
    assert_false(acquire(&leaf));
    config_replace(leaf.process, CAPACITY);
    process_signal(leaf.process, SIGHUP);
    process_await(leaf.process, "resources[0].capacity: must be absent", 1);
    assert_false(acquire(&leaf)); /* the last configuration stays in force */
    config_replace(leaf.process, LIMITS("3"));
    process_signal(leaf.process, SIGHUP);
    process_await(leaf.process, "configuration loaded", 1);
    assert_false(acquire(&leaf));
    server_stop(&leaf);
}

/* G8 */
TEST(a_node_with_a_parent_refuses_capacities) {
    struct process *process = process_new();
    file_write(process->config, CAPACITY);
    for (int checks = 0; checks < 2; checks++) {
        const char *const arguments[] = {
            "--config", process->config, "--parent",
            "ipc:///x", "--listen",      "tcp://127.0.0.1:0",
            "--http",   "off",           checks ? "--check-config" : NULL,
            NULL};
        assert_int_equal(process_run(process, arguments, NULL), checks ? 1 : 2);
        assert_int_equal(process_logged(process, "resources[0].capacity: must be absent"), 1);
    }
    file_write(process->config, LIMITS("1"));
    const char *const valid[] = {"--config", process->config,  "--parent",
                                 "ipc:///x", "--check-config", NULL};
    assert_int_equal(process_run(process, valid, NULL), 0);
}

/* G8, P17: the root has no capacity for this resource, so nobody could grant the limit a lease. */
TEST(a_root_refuses_a_leased_limit_without_any_capacity) {
    struct process *process = process_new();
    file_write(process->config, LEASED);
    const char *const arguments[] = {"--config", process->config, "--check-config", NULL};
    assert_int_equal(process_run(process, arguments, NULL), 1);
    assert_int_equal(process_logged(process, "resources[0].limits[0]: cannot be leased"), 1);
    struct server root = server_start(LIMITS("1"), NULL);
    config_replace(root.process, LEASED);
    process_signal(root.process, SIGHUP);
    process_await(root.process, "resources[0].limits[0]: cannot be leased", 1);
    assert_true(acquire(&root)); /* the last configuration stays in force */
    server_stop(&root);
}

TEST(a_node_with_a_parent_and_no_limits_refuses_all_permits) {
    struct server root = server_start(LIMITS("1"), NULL);
    struct process *process = process_new();
    char socket_url[128];
    snprintf(socket_url, sizeof socket_url, "ipc://%s", process->socket);
    const char *const arguments[] = {"--parent", root.url, "--listen", socket_url,
                                     "--http",   "off",    NULL};
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    struct server leaf = {.process = process};
    snprintf(leaf.url, sizeof leaf.url, "%s", socket_url);
    cJSON *response = send_request(&leaf, ACQUIRE);
    assert_string_equal(text(response, "acquire.permit[0].reason"), "UNMATCHED");
    cJSON_Delete(response);
    server_stop(&leaf);
    server_stop(&root);
}
