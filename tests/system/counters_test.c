/* /v1/counters: all counters and bans, as lines of JSON, in pages. */
#define _GNU_SOURCE
#include "http.h"

#include <pthread.h>

#define LOGIN                                                                                      \
    "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": ["                            \
    "{\"name\": \"per-user\", \"kind\": \"FIXED_WINDOW\", \"limit\": 3, \"window\": \"month\", "   \
    "\"ban\": {\"refusals\": 2, \"window\": 60, \"duration\": 600}},"                              \
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100000,"    \
    " \"window\": \"month\"}]},"                                                                   \
    "{\"identifier_glob\": \"api\", \"limits\": ["                                                 \
    "{\"name\": \"per-user\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9.5, \"window\": \"month\"}"  \
    "]}]}"

#define PAGE_LINES 10000 /* lines of a page */

/* ---- helpers -------------------------------------------------------------------------------- */

/* Reads the response at the path /v1/counters with a query. Returns a list of its lines, which the
 * caller deletes. */
static cJSON *lines_of(const struct fixture *fixture, const char *query) {
    char path[512];
    snprintf(path, sizeof path, "/v1/counters%s", query);
    char *response = get(fixture, path, HOST);
    if (code_of(response) != 200) fail_msg("%s: %s", path, response);
    assert_non_null(strstr(response, "\r\nContent-Type: application/x-ndjson\r\n"));
    cJSON *lines = cJSON_CreateArray();
    const char *at = body_of(response), *end = at;
    for (; *at; at = end + 1) {
        cJSON *line = cJSON_ParseWithOpts(at, &end, false);
        assert_true(line && *end == '\n');
        cJSON_AddItemToArray(lines, line);
    }
    free(response);
    return lines;
}

/* Asks for one permit for each of `count` keys from `first` on, at most 5,000 in a message. */
static void acquire(const struct fixture *fixture, const char *resource, int first, int count) {
    for (int done = 0; done < count;) {
        cJSON *request = cJSON_CreateObject();
        cJSON *body = cJSON_AddObjectToObject(request, "acquire");
        cJSON_AddStringToObject(body, "client_id", "c");
        cJSON *permits = cJSON_AddArrayToObject(body, "permit");
        for (int i = 0; i < 5000 && done < count; i++, done++) {
            cJSON *permit = cJSON_CreateObject(), *item = cJSON_CreateObject();
            char key[16];
            snprintf(key, sizeof key, "%d", first + done);
            cJSON_AddStringToObject(item, "resource_id", resource);
            cJSON_AddStringToObject(item, "key", key);
            cJSON_AddItemToArray(cJSON_AddArrayToObject(permit, "item"), item);
            cJSON_AddItemToArray(permits, permit);
        }
        char *message = cJSON_PrintUnformatted(request);
        cJSON *response = send_request(&fixture->server, message);
        assert_non_null(find(response, "acquire.permit[0].decision"));
        cJSON_Delete(response);
        cJSON_Delete(request);
        cJSON_free(message);
    }
}

static void ask(const struct fixture *fixture, const char *query) {
    char path[512];
    snprintf(path, sizeof path, "/v1/allow?%s", query);
    free(get(fixture, path, HOST));
}

/* Returns the line of a kind for a key, or NULL. */
static const cJSON *line_of(const cJSON *lines, const char *what, const char *limit,
                            const char *key) {
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, lines) {
        const cJSON *own = find(line, "key");
        bool same = strcmp(text(line, "what"), what) == 0 &&
                    strcmp(text(line, "limit"), limit) == 0 &&
                    strcmp(own ? own->valuestring : "", key) == 0;
        if (same) return line;
    }
    return NULL;
}

/* Reads all pages. Returns how often each of the keys 0 to count - 1 occurs. */
static unsigned char *count_keys(const struct fixture *fixture, const char *filter, int count,
                                 int *pages) {
    unsigned char *counts = (unsigned char *)calloc((size_t)count, 1);
    char query[256];
    assert_non_null(counts);
    snprintf(query, sizeof query, "?%s", filter);
    for (*pages = 1; *query; ++*pages) {
        cJSON *lines = lines_of(fixture, query), *line = NULL;
        *query = 0;
        assert_true(cJSON_GetArraySize(lines) <= PAGE_LINES + 1);
        cJSON_ArrayForEach(line, lines) {
            const cJSON *next = find(line, "next"), *key = find(line, "key");
            assert_null(line->next && next ? next : NULL); /* only the last line has it */
            if (next) snprintf(query, sizeof query, "?%s&after=%s", filter, next->valuestring);
            if (!key) continue;
            int number = atoi(key->valuestring);
            assert_true(number >= 0 && number < count && counts[number] < 255);
            counts[number]++;
        }
        cJSON_Delete(lines);
    }
    --*pages;
    return counts;
}

/* ---- what a line says ----------------------------------------------------------------------- */

TEST(a_line_says_what_is_used_and_what_is_left) {
    struct fixture fixture = fixture_start(LOGIN, NULL);
    ask(&fixture, "resource=login/web&key=ann&cost=2");
    ask(&fixture, "resource=api&key=ann&cost=1.25");
    cJSON *lines = lines_of(&fixture, "");
    assert_int_equal(cJSON_GetArraySize(lines), 3);
    const cJSON *user = line_of(lines, "counter", "all", "");
    assert_string_equal(text(user, "template"), "login/*");
    assert_string_equal(text(user, "resource_id"), "login/web");
    assert_null(find(user, "key"));
    assert_true(number(user, "size") == 100000 && number(user, "used") == 2);
    assert_true(number(user, "remaining") == 99998 && number(user, "reset_after") > 0);
    cJSON_Delete(lines);
    lines = lines_of(&fixture, "?template=api");
    assert_int_equal(cJSON_GetArraySize(lines), 1);
    user = line_of(lines, "counter", "per-user", "ann");
    assert_true(number(user, "size") == 9.5 && number(user, "used") == 1.25);
    assert_true(number(user, "remaining") == 8.25);
    cJSON_Delete(lines);
    server_stop(&fixture.server);
}

TEST(a_ban_has_a_line_with_the_limit_that_has_set_it) {
    struct fixture fixture = fixture_start(LOGIN, NULL);
    for (int i = 0; i < 3; i++) ask(&fixture, "resource=login/web&key=eve&cost=2");
    cJSON *lines = lines_of(&fixture, "?limit=per-user");
    assert_int_equal(cJSON_GetArraySize(lines), 2);
    const cJSON *ban = line_of(lines, "ban", "per-user", "eve");
    assert_string_equal(text(ban, "template"), "login/*");
    assert_string_equal(text(ban, "resource_id"), "login/web");
    assert_true(number(ban, "ends_in") > 0 && number(ban, "ends_in") <= 600);
    assert_non_null(line_of(lines, "counter", "per-user", "eve"));
    cJSON_Delete(lines);
    lines = lines_of(&fixture, "?limit=all");
    assert_null(line_of(lines, "ban", "per-user", "eve"));
    cJSON_Delete(lines);
    server_stop(&fixture.server);
}

/* A key may have any characters, also those that end a line or a string. Each line stays JSON. */
TEST(a_hostile_key_stays_within_its_line) {
    static const struct {
        const char *escaped, *key;
    } cases[] = {{"a%0Ab", "a\nb"},
                 {"%22%7D%0A%7B%22next%22%3A%221", "\"}\n{\"next\":\"1"},
                 {"%5C%22%09%01%7F", "\\\"\t\x01\x7f"},
                 {"%3Cscript%3E", "<script>"},
                 {"%E2%80%A8%F0%9F%94%A5", "\xe2\x80\xa8\xf0\x9f\x94\xa5"},
                 {"%0D%0A%0D%0A", "\r\n\r\n"}};
    const int count = (int)(sizeof cases / sizeof *cases);
    struct fixture fixture = fixture_start(LOGIN, NULL);
    for (int i = 0; i < count; i++) {
        char query[256];
        snprintf(query, sizeof query, "resource=api&key=%s", cases[i].escaped);
        ask(&fixture, query);
    }
    cJSON *lines = lines_of(&fixture, "?template=api");
    assert_int_equal(cJSON_GetArraySize(lines), count);
    for (int i = 0; i < count; i++) {
        if (!line_of(lines, "counter", "per-user", cases[i].key)) fail_msg("%s", cases[i].escaped);
    }
    cJSON_Delete(lines);
    server_stop(&fixture.server);
}

/* ---- pages ---------------------------------------------------------------------------------- */

struct traffic {
    const struct fixture *fixture;
    int stops; /* atomic */
};

/* Makes new counters of other resources until the test stops it, but at most 500 times. */
static void *traffic_main(void *context) {
    struct traffic *traffic = (struct traffic *)context;
    for (int i = 0; i < 500 && !__atomic_load_n(&traffic->stops, __ATOMIC_SEQ_CST); i++) {
        char query[64];
        snprintf(query, sizeof query, "resource=login/%d&key=other", i);
        ask(traffic->fixture, query);
    }
    return NULL;
}

/* While new counters are made, each of 25,000 older counters is on exactly one page. */
TEST(each_counter_is_on_one_page_while_others_are_made) {
    enum { KEYS = 25000 };
    struct fixture fixture = fixture_start(LOGIN, NULL);
    acquire(&fixture, "api", 0, KEYS);
    struct traffic traffic = {.fixture = &fixture};
    pthread_t thread;
    int pages = 0;
    assert_int_equal(pthread_create(&thread, NULL, traffic_main, &traffic), 0);
    unsigned char *counts = count_keys(&fixture, "template=api", KEYS, &pages);
    __atomic_store_n(&traffic.stops, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    for (int i = 0; i < KEYS; i++) assert_int_equal(counts[i], 1);
    assert_int_equal(pages, 3);
    free(counts);
    server_stop(&fixture.server);
}

/* ---- errors --------------------------------------------------------------------------------- */

TEST(a_wrong_parameter_is_named) {
    struct fixture fixture = fixture_start(LOGIN, NULL);
    static const char *const unknown[] = {"?template=none", "?limit=none",
                                          "?template=api&limit=all", "?template=login/web"};
    static const char *const positions[] = {"?after=1", "?after=1-2-3-4", "?after=0-0-0-0",
                                            "?after=x-1-1-1", "?after=1-2-3-4-5"};
    static const char *const invalid[][2] = {
        {"?templates=api", "templates: is no parameter; the parameters are template, limit, "},
        {"?limit=all&key=acme", "key: is no parameter"},
        {"?template", "template: is no parameter"},
        {"?template=", "template: must not be empty"},
        {"?template=api&limit=", "limit: must not be empty"},
        {"?after=", "after: must not be empty"},
        {"?limit=all&limit=all", "limit: occurs twice"},
        {"?template=api%00", "template: must not contain a 0 byte"}};
    char path[128];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        snprintf(path, sizeof path, "/v1/counters%s", unknown[i]);
        expect(&fixture, path, HOST, 404, "there is no limit with this template and name");
    }
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        snprintf(path, sizeof path, "/v1/counters%s", positions[i]);
        expect(&fixture, path, HOST, 400, "after: is not a position of this process");
    }
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        snprintf(path, sizeof path, "/v1/counters%s", invalid[i][0]);
        expect(&fixture, path, HOST, 400, invalid[i][1]);
    }
    server_stop(&fixture.server);
}

TEST(a_process_that_is_not_the_master_says_so) {
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port_free());
    const char *const more[] = {"--etcd", url, "--election-key", "counters", NULL};
    struct fixture fixture = fixture_start(LOGIN, more);
    expect(&fixture, "/v1/counters", HOST, 404, "this process is not the master");
    server_stop(&fixture.server);
}

/* The position of a page (`after`) is in the table of a limit, which a new configuration may
 * remove. */
TEST(a_configuration_that_removes_a_limit_ends_the_list) {
    struct fixture fixture = fixture_start(LOGIN, NULL);
    acquire(&fixture, "api", 0, PAGE_LINES + 1);
    cJSON *lines = lines_of(&fixture, "");
    const cJSON *last = cJSON_GetArrayItem(lines, PAGE_LINES);
    char path[160];
    snprintf(path, sizeof path, "/v1/counters?after=%s", text(last, "next"));
    expect(&fixture, path, HOST, 200, "\"what\":\"counter\"");
    config_replace(fixture.server.process,
                   "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": []}]}");
    process_signal(fixture.server.process, SIGHUP);
    char *response = NULL;
    EVENTUALLY((free(response), response = get(&fixture, path, HOST), code_of(response) == 400));
    assert_non_null(strstr(response, "a limit was removed from the configuration"));
    free(response);
    cJSON_Delete(lines);
    server_stop(&fixture.server);
}
