/* Lists that operators need, and the end of a hold by an administrator (E8). The tests use real
 * servers. */
#define _GNU_SOURCE
#define LINES HOST JSON BEARER("top-1")
#define READER HOST JSON BEARER("read-4")
#include "state_fixture.h"

#define LISTED                                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"quota\", "          \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": 100000000, \"ban\": {\"refusals\": "  \
    "2, "                                                                                          \
    "\"window\": 1000000, \"duration\": 1000000}}]}, {\"identifier_glob\": \"slots\", "            \
    "\"limits\": [{\"name\": \"slots\", \"per\": \"resource\", \"kind\": \"CONCURRENCY\", "        \
    "\"limit\": 2, \"time_to_live\": 6000, \"queue\": 9, \"max_wait\": 600, "                      \
    "\"on_restart\": \"full\"}]}]}"

/* Starts a server with tokens, and with a file of counters if `has_state`. */
static struct fixture start_listed(bool has_state) {
    char path[96], tokens[96];
    state_path(path);
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, "admin ann top-1\nread ron read-4\n");
    const char *const more[] = {"--http-token", tokens, NULL};
    return has_state ? start(LISTED, path, more) : fixture_start(LISTED, more);
}

static void use(const struct fixture *fixture, const char *key, int cost, int code) {
    char path[128];
    snprintf(path, sizeof path, "/v1/allow?resource=api&key=%s&cost=%d", key, cost);
    expect(fixture, path, LINES, code, "");
}

/* Returns the JSON of the response to a GET, which the caller deletes. */
static cJSON *get_json(const struct fixture *fixture, const char *path) {
    char *response = get(fixture, path, READER);
    if (code_of(response) != 200) fail_msg("%s: %s", path, response);
    cJSON *tree = cJSON_Parse(body_of(response));
    free(response);
    assert_non_null(tree);
    return tree;
}

/* ---- keys ----------------------------------------------------------------------------------- */

TEST(the_keys_that_use_most_units_are_listed) {
    static const char *const windows[] = {"minute", "hour", "day"};
    struct fixture fixture = start_listed(false);
    for (int i = 0; i < 5; i++) use(&fixture, "many", 1, 200);
    use(&fixture, "large", 40, 200);
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/top?by=units&over=%s", windows[i]);
        cJSON *top = get_json(&fixture, path);
        assert_string_equal(text(top, "over"), windows[i]);
        assert_int_equal(cJSON_GetArraySize(find(top, "keys")), 2);
        assert_string_equal(text(top, "keys[0].key"), "large");
        assert_string_equal(text(top, "keys[0].limit"), "quota");
        assert_string_equal(text(top, "keys[1].key"), "many");
        assert_true(number(top, "keys[0].units") > 7 * number(top, "keys[1].units"));
        assert_true(number(top, "keys[0].error") <= 0);
        cJSON_Delete(top);
    }
    cJSON *top = get_json(&fixture, "/v1/top?limit=1");
    assert_int_equal(cJSON_GetArraySize(find(top, "keys")), 1);
    cJSON_Delete(top);
    expect(&fixture, "/top", READER, 200, "Most units in the last hour");
    expect(&fixture, "/top", READER, 200, ">large</a>");
    server_stop(&fixture.server);
}

TEST(the_keys_that_are_nearest_to_their_limits_are_listed) {
    struct fixture fixture = start_listed(false);
    use(&fixture, "half", 50, 200);
    use(&fixture, "full", 100, 200);
    use(&fixture, "little", 1, 200);
    cJSON *top = get_json(&fixture, "/v1/top?by=nearest&limit=2");
    assert_int_equal(cJSON_GetArraySize(find(top, "keys")), 2);
    assert_true(cJSON_IsTrue(find(top, "complete")));
    assert_string_equal(text(top, "keys[0].key"), "full");
    assert_true(number(top, "keys[0].fraction") >= 1);
    assert_string_equal(text(top, "keys[1].key"), "half");
    assert_true(number(top, "keys[1].used") >= 50 && number(top, "keys[1].size") >= 100);
    cJSON_Delete(top);
    server_stop(&fixture.server);
}

TEST(wrong_questions_to_the_lists_are_refused) {
    static const char *const cases[][2] = {
        {"/v1/top?by=name", "by: must be units or nearest"},
        {"/v1/top?over=week", "over: must be minute, hour or day"},
        {"/v1/top?by=nearest&over=day", "over: only goes with by=units"},
        {"/v1/top?limit=0", "limit: must be a number from 1 to 100"},
        {"/v1/top?limit=101", "limit: must be a number from 1 to 100"},
        {"/v1/top?x=1", "x: is no parameter"},
        {"/v1/bans?limit=1001", "limit: must be a number from 1 to 1000"},
        {"/v1/bans?after=1-2-3-4", "after: is not a position of this process"},
        {"/v1/bans?key=a&key=b", "key: occurs twice"}};
    struct fixture fixture = start_listed(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(&fixture, cases[i][0], READER, 400, cases[i][1]);
    }
    server_stop(&fixture.server);
}

/* ---- bans ----------------------------------------------------------------------------------- */

TEST(bans_are_listed_with_who_has_set_them) {
    struct fixture fixture = start_listed(false);
    use(&fixture, "abuser", 100, 200);
    for (int i = 0; i < 3; i++) use(&fixture, "abuser", 1, 429);
    expect_post(&fixture, "/v1/reset", LINES,
                "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"mallory\", \"ban\": 9000}]}",
                200, "");
    cJSON *bans = get_json(&fixture, "/v1/bans?key=mallory");
    assert_int_equal(cJSON_GetArraySize(find(bans, "bans")), 1);
    assert_string_equal(text(bans, "bans[0].by"), "administrator");
    assert_true(number(bans, "bans[0].ends_in") > 8000);
    cJSON_Delete(bans);
    bans = get_json(&fixture, "/v1/bans?resource=api&key=abuser");
    assert_string_equal(text(bans, "bans[0].by"), "limit");
    assert_string_equal(text(bans, "bans[0].limit"), "quota");
    cJSON_Delete(bans);
    bans = get_json(&fixture, "/v1/bans?resource=other");
    assert_int_equal(cJSON_GetArraySize(find(bans, "bans")), 0);
    cJSON_Delete(bans);
    expect(&fixture, "/bans", READER, 200, ">mallory</a>");
    expect(&fixture, "/bans", READER, 200, "2 in all");
    server_stop(&fixture.server);
}

/* Each ban is on one page. */
TEST(bans_are_listed_in_pages) {
    struct fixture fixture = start_listed(false);
    char path[160] = "/v1/bans?limit=3";
    int count = 0;
    for (int i = 0; i < 10; i++) {
        char body[128];
        snprintf(body, sizeof body,
                 "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"k%d\", \"ban\": 9000}]}", i);
        expect_post(&fixture, "/v1/reset", LINES, body, 200, "");
    }
    for (int pages = 0; path[0]; pages++) {
        cJSON *bans = get_json(&fixture, path);
        const cJSON *next = find(bans, "next");
        count += cJSON_GetArraySize(find(bans, "bans"));
        assert_true(pages < 9);
        path[0] = 0;
        if (next) snprintf(path, sizeof path, "/v1/bans?limit=3&after=%s", next->valuestring);
        cJSON_Delete(bans);
    }
    assert_int_equal(count, 10);
    server_stop(&fixture.server);
}

/* ---- holds ---------------------------------------------------------------------------------- */

/* Asks for a unit of "slots" in the name of "ann:1". Returns the id of the hold. */
static double hold_slot(const struct fixture *fixture, int request_id) {
    char message[256];
    snprintf(message, sizeof message,
             "{\"acquire\": {\"client_id\": \"ann:1\", \"permit\": [{\"request_id\": %d, \"item\": "
             "[{\"resource_id\": \"slots\"}]}]}}",
             request_id);
    cJSON *response = send_request(&fixture->server, message);
    assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
    double id = number(response, "acquire.permit[0].hold.id");
    cJSON_Delete(response);
    return id;
}

static bool renew_slot(const struct fixture *fixture, double id) {
    char message[128];
    snprintf(message, sizeof message,
             "{\"renew\": {\"client_id\": \"ann:1\", \"entry\": [{\"id\": %.0f}]}}", id);
    cJSON *response = send_request(&fixture->server, message);
    bool is_known = !cJSON_IsTrue(find(response, "renew.entry[0].gone"));
    cJSON_Delete(response);
    return is_known;
}

static void end_hold(const struct fixture *fixture, double id, const char *more, int code,
                     const char *expected) {
    char body[160];
    snprintf(body, sizeof body, "{\"id\": %.0f%s}", id, more);
    expect_post(fixture, "/v1/holds/end?reason=stuck", LINES, body, code, expected);
}

TEST(an_administrator_ends_a_hold) {
    for (int has_state = 0; has_state < 2; has_state++) {
        struct fixture fixture = start_listed(has_state);
        double first = hold_slot(&fixture, 1), second = hold_slot(&fixture, 2);
        cJSON *holds = get_json(&fixture, "/v1/holds");
        assert_true(number(holds, "longest_held[0].id") >= first);
        assert_string_equal(text(holds, "longest_held[0].holder"), "ann...");
        cJSON_Delete(holds);
        end_hold(&fixture, first, ", \"resource_id\": \"other\"", 409, "resource_id: ");
        end_hold(&fixture, first, ", \"key\": \"other\"", 409, "key: ");
        end_hold(&fixture, first, ", \"resource\": \"slots\"", 400, "resource: is no field");
        end_hold(&fixture, 0.0, "", 400, "id: must be the id");
        end_hold(&fixture, 77, "", 404, "there is no such hold");
        assert_true(renew_slot(&fixture, first));
        end_hold(&fixture, first, ", \"resource_id\": \"slots\"", 200,
                 has_state ? "\"audit\":1" : "\"ended\":true");
        assert_false(renew_slot(&fixture, first));
        assert_true(renew_slot(&fixture, second));
        (void)hold_slot(&fixture, 3); /* the unit is free at once */
        end_hold(&fixture, first, "", 404, "there is no such hold");
        const char *const row = "\"what\":\"hold_end\",\"hold\":";
        if (has_state) expect(&fixture, "/v1/audit", LINES, 200, row);
        if (has_state) expect(&fixture, "/v1/audit", LINES, 200, "\"reason\":\"stuck\"");
        expect_post(&fixture, "/v1/holds/end", READER, "{\"id\": 1}", 403, "the role admin");
        server_stop(&fixture.server);
    }
}

/* Reserves units of "api". Returns the id of the reservation. */
static double reserve_units(const struct fixture *fixture, int request_id, int units) {
    char message[256];
    snprintf(message, sizeof message,
             "{\"acquire\": {\"client_id\": \"ann:1\", \"permit\": [{\"request_id\": %d, "
             "\"settle_within\": 3000, \"item\": [{\"resource_id\": \"api\", \"cost\": %d}]}]}}",
             request_id, units);
    cJSON *response = send_request(&fixture->server, message);
    double id = number(response, "acquire.permit[0].reservation.id");
    cJSON_Delete(response);
    return id;
}

static void end_reservation(const struct fixture *fixture, double id, const char *more, int code,
                            const char *expected) {
    char body[160];
    snprintf(body, sizeof body, "{\"id\": %.0f%s}", id, more);
    expect_post(fixture, "/v1/reservations/end?reason=stuck", LINES, body, code, expected);
}

static void expect_left(const struct fixture *fixture, int units) {
    char expected[64];
    snprintf(expected, sizeof expected, "\"remaining\":%d,", units);
    expect(fixture, "/v1/allow?resource=api&cost=0", LINES, 200, expected);
}

TEST(an_administrator_ends_a_reservation) {
    for (int has_state = 0; has_state < 2; has_state++) {
        struct fixture fixture = start_listed(has_state);
        double kept = reserve_units(&fixture, 1, 30), back = reserve_units(&fixture, 2, 20);
        end_reservation(&fixture, kept, "", 400, "unsettled: must be");
        end_reservation(&fixture, kept, ", \"unsettled\": 1", 400, "unsettled: must be");
        end_reservation(&fixture, kept, ", \"refund\": true", 400, "refund: is no field");
        end_reservation(&fixture, 0, ", \"unsettled\": \"keep\"", 400, "id: must be the id");
        end_reservation(&fixture, 77, ", \"unsettled\": \"keep\"", 404, "no such reservation");
        end_reservation(&fixture, kept, ", \"unsettled\": \"keep\", \"key\": \"other\"", 409,
                        "key: the reservation");
        expect_left(&fixture, 50);
        end_reservation(&fixture, kept, ", \"unsettled\": \"keep\", \"resource_id\": \"api\"", 200,
                        has_state ? "\"audit\":1" : "\"ended\":true");
        expect_left(&fixture, 50);
        end_reservation(&fixture, back, ", \"unsettled\": \"refund\"", 200, "\"amount\":20");
        expect_left(&fixture, 70);
        end_reservation(&fixture, back, ", \"unsettled\": \"refund\"", 404, "no such reservation");
        if (has_state) {
            expect(&fixture, "/v1/audit", LINES, 200, "\"what\":\"reservation_end\"");
            expect(&fixture, "/v1/audit", LINES, 200, "\"unsettled\":\"refund\"");
        }
        expect(&fixture, "/metrics", LINES, 200, "doorman_permits_reservations_unsettled_total 2");
        expect(&fixture, "/metrics", LINES, 200, "doorman_permits_returned_units_total 20");
        expect_post(&fixture, "/v1/reservations/end", READER, "{\"id\": 1}", 403, "the role admin");
        server_stop(&fixture.server);
    }
}

static double waiting(const struct fixture *fixture) {
    cJSON *holds = get_json(fixture, "/v1/holds");
    double count = number(holds, "waiting");
    cJSON_Delete(holds);
    return count;
}

/* A permit that waits is granted when a hold is ended, although no other request comes. */
TEST(the_end_of_a_hold_wakes_who_waits) {
    struct fixture fixture = start_listed(false);
    double first = hold_slot(&fixture, 1);
    (void)hold_slot(&fixture, 2);
    nng_socket socket;
    nng_msg *answer = NULL;
    const char message[] = "{\"acquire\": {\"client_id\": \"bob:1\", \"permit\": [{\"request_id\": "
                           "9, \"max_wait\": 600, \"item\": [{\"resource_id\": \"slots\"}]}]}}";
    assert_int_equal(nng_req0_open(&socket), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, TIMEOUT_MS), 0);
    assert_int_equal(nng_dial(socket, fixture.server.url, NULL, 0), 0);
    assert_int_equal(nng_send(socket, (void *)(uintptr_t)message, sizeof message - 1, 0), 0);
    EVENTUALLY(waiting(&fixture) >= 1);
    end_hold(&fixture, first, "", 200, "\"ended\":true");
    assert_int_equal(nng_recvmsg(socket, &answer, 0), 0);
    assert_non_null(memmem(nng_msg_body(answer), nng_msg_len(answer), "GRANTED", 7));
    nng_msg_free(answer);
    nng_close(socket);
    server_stop(&fixture.server);
}

/* The holds of the limit stay, and the response says how many they are. */
TEST(a_reset_says_that_holds_stay) {
    struct fixture fixture = start_listed(false);
    double first = hold_slot(&fixture, 1);
    const char *const body =
        "{\"entry\": [{\"resource_id\": \"slots\", \"limit\": \"slots\"}, {\"resource_id\": "
        "\"api\", \"key\": \"a\"}]}";
    expect_post(&fixture, "/v1/reset", LINES, body, 200, "{\"count\":0,\"held\":1},{\"count\":0}");
    assert_true(renew_slot(&fixture, first));
    server_stop(&fixture.server);
}
