/* POST /v1/config/check: what is wrong with a configuration, and what it would change in the
 * running server. */
#define _GNU_SOURCE
#include "http.h"

#define LIMIT(name, limit, ban)                                                                    \
    "{\"name\": \"" name "\", \"kind\": \"FIXED_WINDOW\", \"limit\": " limit                       \
    ", \"window\": \"month\"" ban "}"
#define BAN ", \"ban\": {\"refusals\": 1, \"window\": 60, \"duration\": 600}"
#define CAPACITY(glob, capacity)                                                                   \
    "{\"identifier_glob\": \"" glob "\", \"capacity\": " capacity                                  \
    ", \"algorithm\": {\"kind\": \"FAIR_SHARE\", \"learning_mode_duration\": 0}}"
#define LIMITS(glob, limits) "{\"identifier_glob\": \"" glob "\", \"limits\": [" limits "]}"
#define WITH(templates) "{\"resources\": [" templates "]}"
#define FREE LIMITS("free", "")

static const char in_force[] =
    WITH(FREE "," CAPACITY("db", "100") "," LIMITS("login/*", LIMIT("user", "1", BAN)));

/* Returns the answer to a configuration. The caller deletes it. */
static cJSON *check(const struct fixture *fixture, const char *config) {
    char *response = post(fixture, "/v1/config/check", HOST JSON, config);
    if (code_of(response) != 200) fail_msg("%s", response);
    cJSON *answer = cJSON_Parse(body_of(response));
    assert_non_null(answer);
    free(response);
    return answer;
}

static struct fixture start(void) { return fixture_start(in_force, (const char *[]){NULL}); }

static void acquire(const struct fixture *fixture, const char *key, const char *decision) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"login/x\", "
             "\"key\": \"%s\"}]}]}",
             key);
    expect_post(fixture, "/v1/acquire", HOST JSON, body, 200, decision);
}

static void expect_number(const cJSON *answer, const char *path, double number) {
    const cJSON *found = find(answer, path);
    if (!cJSON_IsNumber(found)) fail_msg("%s is missing", path);
    assert_true(found->valuedouble >= number && found->valuedouble <= number);
}

static void expect_text(const cJSON *answer, const char *path, const char *text) {
    const cJSON *found = find(answer, path);
    if (!cJSON_IsString(found)) fail_msg("%s is missing", path);
    assert_string_equal(found->valuestring, text);
}

TEST(the_configuration_in_force_changes_nothing) {
    struct fixture fixture = start();
    cJSON *answer = check(&fixture, in_force);
    assert_true(cJSON_IsTrue(find(answer, "valid")));
    assert_int_equal(cJSON_GetArraySize(find(answer, "changes")), 0);
    assert_true(cJSON_IsFalse(find(answer, "is_reordered")));
    expect_text(answer, "hash", find(answer, "hash_in_force")->valuestring);
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(an_invalid_configuration_has_all_its_errors_with_their_places) {
    struct fixture fixture = start();
    cJSON *answer =
        check(&fixture, "{\"resources\": [{\"identifier_glob\": \"db\",\n\"capacity\": -1}], "
                        "\"x\": 1}");
    assert_true(cJSON_IsFalse(find(answer, "valid")));
    assert_int_equal(cJSON_GetArraySize(find(answer, "errors")), 2);
    expect_number(answer, "errors[1].line", 2);
    expect_number(answer, "errors[1].column", 1);
    expect_text(answer, "errors[1].field", "resources[0].capacity");
    assert_null(find(answer, "changes"));
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(a_renamed_limit_says_how_many_counters_and_bans_it_drops) {
    struct fixture fixture = start();
    acquire(&fixture, "a", "GRANTED");
    acquire(&fixture, "b", "GRANTED");
    acquire(&fixture, "b", "REFUSED"); /* bans b */
    cJSON *answer =
        check(&fixture,
              WITH(FREE "," CAPACITY("db", "100") "," LIMITS("login/*", LIMIT("users", "1", BAN))));
    expect_text(answer, "changes[0].template", "login/*");
    expect_text(answer, "changes[0].change", "changed");
    expect_text(answer, "changes[0].limits[0].limit", "users");
    expect_text(answer, "changes[0].limits[0].text", "added");
    expect_text(answer, "changes[0].limits[1].limit", "user");
    expect_number(answer, "changes[0].limits[1].drops_counters", 2);
    expect_number(answer, "changes[0].limits[1].drops_bans", 1);
    expect_number(answer, "drops_counters", 2);
    expect_number(answer, "drops_bans", 1);
    acquire(&fixture, "a", "REFUSED"); /* nothing was changed */
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(a_limit_without_its_ban_keeps_its_counters_and_drops_its_bans) {
    struct fixture fixture = start();
    acquire(&fixture, "b", "GRANTED");
    acquire(&fixture, "b", "REFUSED");
    cJSON *answer =
        check(&fixture,
              WITH(FREE "," CAPACITY("db", "100") "," LIMITS("login/*", LIMIT("user", "5", ""))));
    expect_text(answer, "changes[0].limits[0].text", "other settings; its counters stay");
    assert_null(find(answer, "changes[0].limits[0].drops_counters"));
    expect_number(answer, "changes[0].limits[0].drops_bans", 1);
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(a_template_that_is_removed_drops_the_counters_of_all_its_limits) {
    struct fixture fixture = start();
    acquire(&fixture, "a", "GRANTED");
    cJSON *answer = check(&fixture, WITH(CAPACITY("db", "100") "," FREE));
    expect_text(answer, "changes[0].template", "login/*");
    expect_text(answer, "changes[0].change", "removed");
    expect_number(answer, "drops_counters", 1);
    assert_true(cJSON_IsTrue(find(answer, "is_reordered")));
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(a_capacity_below_what_is_leased_names_the_resource) {
    struct fixture fixture = start();
    expect_post(&fixture, "/v1/get_capacity", HOST JSON,
                "{\"client_id\": \"c\", \"resource\": [{\"resource_id\": \"db\", \"wants\": 60}]}",
                200, "\"capacity\":60");
    cJSON *answer =
        check(&fixture,
              WITH(FREE "," CAPACITY("db", "50") "," LIMITS("login/*", LIMIT("user", "1", BAN))));
    expect_text(answer, "changes[0].template", "db");
    expect_number(answer, "changes[0].last_capacity", 100);
    expect_number(answer, "changes[0].capacity", 50);
    expect_text(answer, "leased_over[0].resource_id", "db");
    expect_number(answer, "leased_over[0].leased", 60);
    expect_number(answer, "leased_over[0].capacity", 50);
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(warnings_come_with_a_valid_configuration) {
    struct fixture fixture = start();
    cJSON *answer = check(&fixture, WITH(CAPACITY("db*", "1") "," FREE));
    assert_true(cJSON_IsTrue(find(answer, "valid")));
    expect_text(answer, "warnings[0].field", "resources[0].algorithm.learning_mode_duration");
    cJSON_Delete(answer);
    server_stop(&fixture.server);
}

TEST(other_verbs_and_bodies_that_are_no_json_are_refused) {
    struct fixture fixture = start();
    expect(&fixture, "/v1/config/check", HOST, 405, "Allow: POST");
    expect_post(&fixture, "/v1/config/check", HOST, "{}", 415, "application/json");
    expect_post(&fixture, "/v1/config/check", HOST JSON, "", 200, "the text is empty");
    server_stop(&fixture.server);
}
