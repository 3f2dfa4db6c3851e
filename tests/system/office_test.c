/* A day in the office: what an operator and a support engineer do with a node of three processes,
 * and what is left after all three were killed (E1, E3, E4, E5). The node has an etcd, and a Redis
 * with the configuration, the overrides and the audit. */
#define _GNU_SOURCE
#define ANN HOST JSON BEARER("top-1")
#define ALICE HOST JSON BEARER("alice-2")
#define WEB HOST JSON BEARER("web-3")
#define LINES WEB
#include "node_fixture.h"

#define LIMITS_OF(limit, window)                                                                   \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": " limit ", \"window\": " window "}]}]}"
#define FIRST LIMITS_OF("5", "100000000")

/* Returns the fixture of the master, which answers all requests of administration. */
static const struct fixture *master(void) { return &node.members[node_await_master()].fixture; }

/* Returns whether the master answers a GET with a status. */
static bool says(const char *path, const char *lines, int code) {
    char *response = get(master(), path, lines);
    bool is_so = code_of(response) == code;
    free(response);
    return is_so;
}

/* Asks all processes of the node for the limit of a key. The one that decides answers, and the
 * others redirect to it. Returns -1 while the master still reads the store, and while a process
 * redirects to a master that was killed. */
static int limit_of(const char *key) {
    int limit = -1;
    bool is_known = true;
    for (int i = 0; i < MEMBERS; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/allow?resource=api/search&key=%s&cost=0&redirect=1", key);
        char *response = get(&node.members[i].fixture, path, WEB);
        const char *at = strstr(response, "X-RateLimit-Limit: ");
        if (code_of(response) == 307) {
            is_known = is_known && strstr(response, master()->http.url + strlen("tcp://"));
        } else if (code_of(response) == 200) {
            if (!at) fail_msg("no limit in %s", response);
            limit = atoi(at + strlen("X-RateLimit-Limit: "));
        }
        free(response);
    }
    return is_known ? limit : -1;
}

static void use_keys(void) {
    static char body[200000];
    size_t used = (size_t)snprintf(body, sizeof body, "{\"client_id\": \"load\", \"permit\": [");
    for (int i = 0; i < 1000; i++) {
        used += (size_t)snprintf(body + used, sizeof body - used,
                                 "%s{\"item\": [{\"resource_id\": \"api/search\", \"key\": "
                                 "\"user-%d\"}]}",
                                 i ? ", " : "", i);
    }
    snprintf(body + used, sizeof body - used, "]}");
    char *response = post(master(), "/v1/acquire", WEB, body);
    assert_int_equal(code_of(response), 200);
    free(response);
}

/* Starts the node, with the first version of its configuration. */
static void open_office(void) {
    static char tokens[96];
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, "admin ann top-1\nsupport alice alice-2 api/*\nwrite web web-3\n");
    node.tokens = tokens;
    node.is_in_store = true;
    node_start("{}", "20");
    EVENTUALLY(says("/v1/config/versions", ANN, 200)); /* the store is read */
    expect_verb(master(), "PUT", "/v1/config?reason=begin", ANN "If-None-Match: *\r\n", FIRST, 200,
                "\"version\":1,");
    EVENTUALLY(limit_of("acme") == 5);
}

static void support_raises_a_limit(void) {
    expect_verb(master(), "PUT", "/v1/overrides", ALICE,
                "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": "
                "{\"limit\": 50}, \"expires_in\": 2, \"reason\": \"ticket 4711\"}",
                200, "\"id\":2");
    EVENTUALLY(limit_of("acme") == 5); /* it ends by itself */
    expect_verb(master(), "PUT", "/v1/overrides", ALICE,
                "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"acme\", \"set\": "
                "{\"limit\": 50}, \"expires_in\": 86400, \"reason\": \"ticket 4712\"}",
                200, "\"id\":3");
    assert_int_equal(limit_of("acme"), 50);
    expect_verb(master(), "PUT", "/v1/overrides", ALICE,
                "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"amce\", \"set\": "
                "{\"limit\": 50}, \"expires_in\": 86400, \"reason\": \"ticket 4712\"}",
                200, "\"id\":4");
    expect_verb(master(), "POST", "/v1/audit/4/undo?reason=a%20wrong%20name", ALICE, "", 200,
                "\"id\":5");
    assert_int_equal(limit_of("amce"), 5);
    expect_verb(master(), "PUT", "/v1/config?reason=r", ALICE "If-Match: \"1\"\r\n", FIRST, 403,
                "with the role admin");
}

static void operator_changes_the_configuration(void) {
    expect_verb(master(), "PUT", "/v1/config?reason=r", ANN "If-Match: \"1\"\r\n",
                LIMITS_OF("-5", "100000000"), 400, "resources[0].limits[0].limit");
    expect_verb(master(), "POST", "/v1/config/check", ANN, LIMITS_OF("9", "50000000"), 200,
                "\"drops_counters\":1000");
    expect_verb(master(), "PUT", "/v1/config?reason=more", ANN "If-Match: \"1\"\r\n",
                LIMITS_OF("9", "100000000"), 200, "\"changes\":[\"api/* quota limit: 5 -> 9\"]");
    EVENTUALLY(limit_of("user-1") == 9);
    expect_verb(master(), "POST", "/v1/config/rollback?version=1&reason=too%20much",
                ANN "If-Match: \"2\"\r\n", "", 200, "\"version\":3,");
    EVENTUALLY(limit_of("user-1") == 5);
}

/* Expects the acts of the day in the audit, the newest one first. */
static void expect_audit(void) {
    static const char *const acts[] = {
        "\"token\":\"ann\",\"role\":\"admin\"",
        "\"what\":\"rollback\",\"reason\":\"too much\",\"before\":{\"version\":2},\"after\":"
        "{\"version\":3,\"changes\":[\"api/* quota limit: 9 -> 5\"],\"of_version\":1}",
        "\"what\":\"config\",\"reason\":\"more\",\"before\":{\"version\":1},\"after\":{\"version\":"
        "2,\"changes\":[\"api/* quota limit: 5 -> 9\"]}",
        "\"what\":\"undo\",\"undoes\":4,\"of\":\"override\",\"reason\":\"a wrong name\"",
        "\"key\":\"amce\",\"before\":null,",
        "\"what\":\"override\",\"reason\":\"ticket 4712\",\"resource\":\"api/search\",\"limit\":"
        "\"quota\",\"key\":\"acme\",\"before\":null,\"after\":{",
        "\"what\":\"override\",\"reason\":\"ticket 4711\"",
        "\"what\":\"config\",\"reason\":\"begin\""};
    char *response = get(master(), "/v1/audit", ANN);
    const char *at = body_of(response);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        const char *found = strstr(at, acts[i]);
        if (!found) fail_msg("no %s in %s", acts[i], response);
        at = found;
    }
    free(response);
}

TEST(a_day_in_the_office_outlasts_the_end_of_all_processes) {
    open_office();
    use_keys();
    EVENTUALLY(limit_of("acme") == 5);
    support_raises_a_limit();
    operator_changes_the_configuration();
    expect_audit();
    for (int i = 0; i < MEMBERS; i++) {
        process_signal(node.members[i].process, SIGKILL);
        process_wait(node.members[i].process);
    }
    for (int i = 0; i < MEMBERS; i++) member_start(i);
    EVENTUALLY(limit_of("acme") == 50);
    expect_audit();
    assert_int_equal(limit_of("amce"), 5);
    for (int i = 0; i < MEMBERS; i++) {
        process_signal(node.members[i].process, SIGTERM);
        process_end(node.members[i].process, 0);
    }
}
