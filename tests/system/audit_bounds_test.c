/* Bounds of the audit (E5): what people type as a reason, and how much one token may write. The
 * tests use real servers with a file as their store. */
#define _GNU_SOURCE
#include "state_fixture.h"

#define ADMIN HOST JSON BEARER("top-1")
#define ALICE HOST JSON BEARER("alice-2")
#define BOB HOST JSON BEARER("bob-3")
#define TOKENS "admin ann top-1\nsupport alice alice-2 api/*\nsupport bob bob-3 api/*\n"
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000, \"plans\": {\"pro\": "        \
    "{\"limit\": 40}}}]}]}"
#define BAN ", \"ban\": 60"
#define RESET "{\"entry\": [{\"resource_id\": \"api/a\", \"key\": \"acme\"}]}"

struct bounds {
    char path[96], tokens[96];
    struct fixture fixture;
};

static void bounds_start(struct bounds *bounds) {
    const char *const more[] = {"--http-token", bounds->tokens, NULL};
    bounds->fixture = start(API, bounds->path, more);
}

static void bounds_open(struct bounds *bounds) {
    state_path(bounds->path);
    snprintf(bounds->tokens, sizeof bounds->tokens, "%s/tokens", process_new()->folder);
    file_write(bounds->tokens, TOKENS);
    bounds_start(bounds);
}

static void act(const struct bounds *bounds, const char *verb, const char *path, const char *lines,
                const char *body, int code, const char *text) {
    char request[4096];
    snprintf(request, sizeof request,
             "%s %s HTTP/1.1\r\n%sContent-Length: %zu\r\nConnection: close\r\n\r\n%s", verb, path,
             lines, strlen(body), body);
    char *response = exchange(&bounds->fixture, request);
    if (code_of(response) != code || !strstr(body_of(response), text)) {
        fail_msg("%s %s %s: expected %d and %s, got %s", verb, path, body, code, text, response);
    }
    free(response);
}

/* Sends a reason in five requests, in the body or in the query. */
static void expect_reason(const struct bounds *bounds, const char *in_json, const char *in_query,
                          int code, const char *text) {
    static const char override[] = "{\"resource\": \"api/a\", \"limit\": \"quota\", \"key\": "
                                   "\"acme\", \"set\": {\"limit\": 7}, \"expires_in\": 90000";
    static const char plan[] = "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\"";
    char body[2048], path[1024];
    snprintf(body, sizeof body, "%s, \"reason\": \"%s\"}", override, in_json);
    act(bounds, "PUT", "/v1/overrides", ADMIN, body, code, text);
    snprintf(body, sizeof body, "%s, \"reason\": \"%s\"}", plan, in_json);
    act(bounds, "PUT", "/v1/plans", ADMIN, body, code, text);
    snprintf(path, sizeof path, "/v1/reset?reason=%s", in_query);
    act(bounds, "POST", path, ADMIN, RESET, code, text);
    snprintf(path, sizeof path, "/v1/plans?glob=api/*&key=acme&reason=%s", in_query);
    act(bounds, "DELETE", path, ADMIN, "", code, text);
    snprintf(path, sizeof path, "/v1/overrides?resource=api/a&limit=quota&key=acme&reason=%s",
             in_query);
    act(bounds, "DELETE", path, ADMIN, "", code, text);
}

/* E5: a reason has no control characters, because other people read it in a terminal and on
 * pages. */
TEST(a_reason_is_a_line_of_text) {
    char of_500[501], of_501[502];
    struct bounds bounds;
    memset(of_500, 'x', 500), of_500[500] = 0;
    memset(of_501, 'x', 501), of_501[501] = 0;
    const struct {
        const char *in_json, *in_query;
        int code;
        const char *text;
    } cases[] = {
        {"a\\nb", "a%0ab", 400, "reason: must be a line of text"},
        {"\\u0001", "%01", 400, "reason: must be a line of text"},
        {"a\\u007f", "a%7f", 400, "reason: must be a line of text"},
        {"\\u009bm", "%c2%9bm", 400, "reason: must be a line of text"},
        {"a\\u202eb", "a%e2%80%aeb", 400, "reason: must be a line of text"},
        {"a\\u2066b", "a%e2%81%a6b", 400, "reason: must be a line of text"},
        {"a\\u2028b", "a%e2%80%a8b", 400, "reason: must be a line of text"},
        {" ", "%20", 400, "reason: must say why"},
        {"\\u00a0\\u200b", "%c2%a0%e2%80%8b", 400, "reason: must say why"},
        {of_501, of_501, 400, "reason: must have 1 to 500 bytes"},
        {of_500, of_500, 200, ""},
        {"Grüße \\u202f\\ud83d\\udc4d", "Gr%c3%bc%c3%9fe%e2%80%af%f0%9f%91%8d", 200, ""},
    };
    bounds_open(&bounds);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_reason(&bounds, cases[i].in_json, cases[i].in_query, cases[i].code, cases[i].text);
    }
    act(&bounds, "POST", "/v1/reset?reason=a%00b", ADMIN, RESET, 400, "reason: must have no 0");
    server_stop(&bounds.fixture.server);
}

/* Sends an act that takes about 300,000 bytes of the audit. Returns the status.
 *   more   further members of each entry */
static int write_much(const struct bounds *bounds, const char *lines, const char *more) {
    static char body[400000];
    size_t used = (size_t)snprintf(body, sizeof body, "{\"entry\": [");
    char key[250];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    for (int i = 0; i < 1000; i++) {
        used += (size_t)snprintf(body + used, sizeof body - used,
                                 "%s{\"resource_id\": \"api/a\", \"key\": \"%s%d\"%s}",
                                 i ? "," : "", key, i, more);
    }
    snprintf(body + used, sizeof body - used, "]}");
    char *response = post(&bounds->fixture, "/v1/reset", lines, body);
    const int code = code_of(response);
    if (code == 429 &&
        !strstr(response, "at most 4 MiB of the audit a day, and the token 'alice'")) {
        fail_msg("%s", response);
    }
    free(response);
    return code;
}

/* E5: a token of the role support cannot push the acts of others, or its own acts of the last day,
 * out of the audit. */
TEST(a_token_of_the_role_support_writes_a_bounded_part_of_the_audit) {
    struct bounds bounds;
    int count = 0, code = 0;
    bounds_open(&bounds);
    for (int i = 0; i < 20; i++) act(&bounds, "POST", "/v1/reset", ALICE, RESET, 200, "");
    do {
        code = write_much(&bounds, ALICE, BAN);
        assert_true(code == 200 || code == 429);
        count += code == 200;
        assert_true(count < 20);
    } while (code == 200);
    assert_true(count >= 10);
    for (int i = 0; i < 2; i++) { /* also after the process was killed */
        act(&bounds, "POST", "/v1/reset", ALICE, RESET, 403, "at most 20 times a day");
        assert_int_equal(write_much(&bounds, ALICE, BAN), 429);
        assert_int_equal(write_much(&bounds, BOB, BAN), 200);
        assert_int_equal(write_much(&bounds, ADMIN, BAN), 200);
        if (i == 0) kill_now(&bounds.fixture);
        if (i == 0) bounds_start(&bounds);
    }
    act(&bounds, "GET", "/v1/audit?limit=1&after=2", ADMIN, "", 200, "\"id\":1,");
    server_stop(&bounds.fixture.server);
}

/* The server looks up 1,000 keys in the resets of the day, which must not take too long. */
TEST(a_message_of_many_resets_is_answered) {
    struct bounds bounds;
    bounds_open(&bounds);
    for (int i = 0; i < 6; i++) assert_int_equal(write_much(&bounds, ALICE, ""), 200);
    for (int i = 0; i < 2; i++) assert_int_equal(write_much(&bounds, BOB, ""), 200);
    server_stop(&bounds.fixture.server);
}
