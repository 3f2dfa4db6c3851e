/* Planned stops that nobody notices (D8): a real server with --state stops, and the next one knows
 * its leases and holds. The first server of a test has a configuration with which it learns for at
 * most a second. Later servers would learn for ten minutes. */
#define _GNU_SOURCE
#include "http.h"

#define NODE(learning, time_to_live)                                                               \
    "{\"resources\": ["                                                                            \
    "{\"identifier_glob\": \"db\", \"capacity\": 100, \"algorithm\": {\"kind\": \"FAIR_SHARE\", "  \
    "\"lease_length\": 600, \"refresh_interval\": 5" learning "}}, "                               \
    "{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", \"per\": \"resource\", "  \
    "\"kind\": \"CONCURRENCY\", \"limit\": 2, \"time_to_live\": " time_to_live "}]}]}"
#define FIRST NODE(", \"learning_mode_duration\": 0", "1")
#define LATER NODE("", "600")

/* ---- helpers -------------------------------------------------------------------------------- */

/* Returns the path of a file of counters, in a folder of its own. */
static void state_path(char path[96]) { snprintf(path, 96, "%s/state", process_new()->folder); }

/* Starts a server of the node "n", and waits until its log says how it has begun. */
static struct fixture start(const char *config, const char *path, const char *said) {
    const char *const arguments[] = {"--state", path, "--node", "n", NULL};
    struct fixture fixture = fixture_start(config, arguments);
    process_await(fixture.server.process, said, 1);
    return fixture;
}

static const char taken_over[] = "msg=\"leases and holds taken over\"";
static const char learned[] = "msg=\"leases and holds are learned\"";

static void kill_now(struct fixture *fixture) {
    process_signal(fixture->server.process, SIGKILL);
    assert_int_equal(process_wait(fixture->server.process), 128 + SIGKILL);
}

/* A lease of the resource "db". */
struct lease {
    const char *client;
    double capacity;
    char has[512]; /* as the server has written it */
};

/* Asks for units of "db": 60 for the client "a", and 80 for any other. Returns whether the client
 * has a lease now, perhaps of 0. */
static bool renew_lease(const struct fixture *fixture, struct lease *lease) {
    char message[1024];
    const char *client = lease->client;
    snprintf(message, sizeof message,
             "{\"get_capacity\": {\"client_id\": \"%s\", \"resource\": [{\"resource_id\": \"db\", "
             "\"priority\": 1, \"wants\": %d%s%s}]}}",
             client, *client == 'a' ? 60 : 80, lease->has[0] ? ", \"has\": " : "", lease->has);
    cJSON *response = send_request(&fixture->server, message);
    const cJSON *gets = find(response, "get_capacity.response[0].gets");
    bool has_lease = gets && cJSON_IsObject(gets);
    if (has_lease) {
        char *printed = cJSON_PrintUnformatted(gets);
        snprintf(lease->has, sizeof lease->has, "%s", printed);
        cJSON_free(printed);
        lease->capacity = number(gets, "capacity");
    }
    cJSON_Delete(response);
    return has_lease;
}

/* Asks for one unit of "slots". Returns the id of the hold; 0: it was refused.
 *   reason   out: why */
static double acquire(const struct fixture *fixture, int request_id, char reason[32]) {
    char message[512];
    snprintf(message, sizeof message,
             "{\"acquire\": {\"client_id\": \"h\", \"permit\": [{\"request_id\": %d, \"item\": "
             "[{\"resource_id\": \"slots\"}]}]}}",
             request_id);
    cJSON *response = send_request(&fixture->server, message);
    bool granted = strcmp(text(response, "acquire.permit[0].decision"), "GRANTED") == 0;
    double id = granted ? number(response, "acquire.permit[0].hold.id") : 0;
    snprintf(reason, 32, "%s", granted ? "" : text(response, "acquire.permit[0].reason"));
    cJSON_Delete(response);
    return id;
}

/* Renews or releases a hold. The id 0 means no hold. Returns whether the server knows the hold. */
static bool call_hold(const struct fixture *fixture, const char *method, double id) {
    char message[256];
    snprintf(message, sizeof message,
             "{\"%s\": {\"client_id\": \"h\", \"entry\": [{\"id\": %.0f}]}}", method,
             id > 0 ? id : 1);
    cJSON *response = send_request(&fixture->server, message);
    snprintf(message, sizeof message, "%s.entry[0].gone", method);
    bool is_known = !cJSON_IsTrue(find(response, message));
    cJSON_Delete(response);
    return is_known;
}

static void expect_learning(const struct fixture *fixture, int request_id) {
    char reason[32];
    assert_true(acquire(fixture, request_id, reason) <= 0);
    assert_string_equal(reason, "LEARNING");
}

/* Starts a first server, waits until it has learned, acquires a hold of ten minutes with the
 * request_id 1, and stops the server. Returns the id of the hold. */
static double leave_hold(const char *path) {
    char reason[32];
    int probe = 1000;
    struct fixture fixture = start(FIRST, path, "why=\"the file is new\"");
    EVENTUALLY(call_hold(&fixture, "release", acquire(&fixture, ++probe, reason)));
    config_replace(fixture.server.process, LATER);
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "msg=\"configuration loaded\"", 1);
    double id = acquire(&fixture, 1, reason);
    assert_true(id > 0);
    server_stop(&fixture.server);
    return id;
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST(after_a_planned_stop_a_new_client_has_a_lease_at_once) {
    struct lease a = {.client = "a"}, b = {.client = "b"}, c = {.client = "c"};
    char path[96];
    state_path(path);
    struct fixture fixture = start(FIRST, path, learned);
    assert_true(renew_lease(&fixture, &a));
    assert_true(a.capacity > 59);
    server_stop(&fixture.server);
    fixture = start(LATER, path, taken_over);
    assert_true(renew_lease(&fixture, &b));
    assert_true(b.capacity > 39 && a.capacity + b.capacity <= 100);
    for (int i = 0; i < 3; i++) {
        assert_true(renew_lease(&fixture, &c));
        assert_true(a.capacity + b.capacity + c.capacity <= 100.001);
        assert_true(renew_lease(&fixture, &a));
        assert_true(a.capacity + b.capacity + c.capacity <= 100.001);
        assert_true(renew_lease(&fixture, &b));
        assert_true(a.capacity + b.capacity + c.capacity <= 100.001);
    }
    assert_true(metric(&fixture, "doorman_server_learning_remaining_seconds") <= 0);
    assert_true(metric(&fixture, "doorman_state_taken_over") >= 1);
    expect(&fixture, "/v1/status", HOST, 200, "\"taken_over\":true");
    expect(&fixture, "/", HOST, 200, "taken over");
    server_stop(&fixture.server);
}

TEST(after_a_planned_stop_holds_are_granted_renewed_and_released_at_once) {
    char path[96], reason[32];
    state_path(path);
    double first = leave_hold(path);
    struct fixture fixture = start(LATER, path, taken_over);
    double second = acquire(&fixture, 2, reason);
    assert_true(second > 0);
    assert_true(acquire(&fixture, 3, reason) <= 0); /* the first one still counts */
    assert_string_equal(reason, "CONCURRENCY");
    assert_true(acquire(&fixture, 1, reason) >= first); /* P9: the answer was lost */
    assert_true(call_hold(&fixture, "renew", first));
    assert_true(call_hold(&fixture, "release", first));
    assert_true(acquire(&fixture, 4, reason) > 0);
    server_stop(&fixture.server);
    fixture = start(LATER, path, taken_over); /* and again */
    assert_true(call_hold(&fixture, "renew", second));
    assert_false(call_hold(&fixture, "renew", first));
    server_stop(&fixture.server);
}

/* D9: a process that takes over what was left at a planned stop removes it from the store before
 * its first answer. */
TEST(what_was_left_is_not_taken_twice) {
    char path[96];
    state_path(path);
    (void)leave_hold(path);
    struct fixture fixture = start(LATER, path, taken_over);
    kill_now(&fixture);
    fixture = start(LATER, path, "why=\"the last process did not stop as planned\"");
    expect_learning(&fixture, 2);
    expect(&fixture, "/v1/status", HOST, 200, "\"taken_over\":false");
    expect(&fixture, "/", HOST, 200, "did not stop as planned");
    assert_true(metric(&fixture, "doorman_state_taken_over") <= 0);
    server_stop(&fixture.server);
}

/* D9: a backup, or a disk that was cloned, may be older than the leases and holds in force. */
TEST(a_copy_of_the_file_is_not_taken) {
    char path[96], copy[112], command[256];
    state_path(path);
    double id = leave_hold(path);
    snprintf(copy, sizeof copy, "%s-copy", path);
    snprintf(command, sizeof command, "cp %s %s", path, copy);
    assert_int_equal(system(command), 0);
    struct fixture fixture = start(LATER, copy, "why=\"the file is a copy");
    expect_learning(&fixture, 2);
    server_stop(&fixture.server);
    fixture = start(LATER, path, taken_over);
    assert_true(call_hold(&fixture, "renew", id));
    server_stop(&fixture.server);
}

TEST(another_node_takes_nothing_over) {
    char path[96];
    state_path(path);
    (void)leave_hold(path);
    const char *const arguments[] = {"--state", path, "--node", "other", NULL};
    struct fixture fixture = fixture_start(LATER, arguments);
    process_await(fixture.server.process, "they are of another node; give --node", 1);
    expect_learning(&fixture, 2);
    server_stop(&fixture.server);
}

TEST(a_check_of_the_configuration_takes_nothing) {
    char path[96];
    state_path(path);
    (void)leave_hold(path);
    struct process *check = process_new();
    const char *const arguments[] = {"--state",        path, "--config", check->config,
                                     "--check-config", NULL};
    file_write(check->config, LATER);
    assert_int_equal(process_run(check, arguments, NULL), 0);
    struct fixture fixture = start(LATER, path, taken_over);
    server_stop(&fixture.server);
}
