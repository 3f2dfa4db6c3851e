/* What operators see of the limits of permits: pages, JSON and metrics (P18, P20). */
#define _GNU_SOURCE
#include "http.h"

#define ADMIN "Authorization: Bearer a-1\r\n"
#define LOGIN                                                                                      \
    "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": ["                            \
    "{\"name\": \"per-<user>\", \"kind\": \"FIXED_WINDOW\", \"limit\": 3, \"window\": \"month\"}," \
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100,"     \
    " \"window\": 60}]}]}"

static struct fixture start_with_limits(bool tokens) {
    struct process *files = process_new();
    file_write(files->config, "admin alice a-1\nread rob r-1\n");
    return fixture_start(LOGIN,
                         tokens ? (const char *[]){"--http-token", files->config, NULL} : NULL);
}

/* Asks for permits, one after the other. */
static void acquire(const struct fixture *fixture, const char *key, int count) {
    char body[256], *response;
    snprintf(body, sizeof body,
             "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
             "\"login/web\", \"key\": \"%s\"}]}]}}",
             key);
    for (int i = 0; i < count; i++) {
        response = post(fixture, "/v1", HOST JSON ADMIN, body);
        if (code_of(response) != 200) fail_msg("%s", response);
        free(response);
    }
}

static cJSON *read_limits(const struct fixture *fixture, const char *query) {
    char path[256];
    snprintf(path, sizeof path, "/v1/limits%s", query);
    char *response = get(fixture, path, HOST);
    if (code_of(response) != 200) fail_msg("%s", response);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_non_null(tree);
    free(response);
    return tree;
}

/* P18: the server counts what each limit has granted, and what it has refused, by reason. */
TEST(the_decisions_of_each_limit_are_counted) {
    struct fixture fixture = start_with_limits(false);
    acquire(&fixture, "ann", 2);
    acquire(&fixture, "bob", 5);
    cJSON *tree = read_limits(&fixture, "");
    assert_true(number(tree, "keys") == 3 && number(tree, "bans") == 0);
    assert_string_equal(text(tree, "limits[0].template"), "login/*");
    assert_string_equal(text(tree, "limits[0].limit"), "per-<user>");
    assert_string_equal(text(tree, "limits[0].definition"), "each key: 3 each month");
    assert_true(number(tree, "limits[0].granted") == 5 && number(tree, "limits[0].keys") == 2);
    assert_true(number(tree, "limits[0].refused.RATE") == 2);
    assert_true(number(tree, "limits[1].granted") == 5 && number(tree, "limits[1].keys") == 1);
    assert_null(find(tree, "limits[1].refused.RATE"));
    cJSON_Delete(tree);
    expect(&fixture, "/metrics", HOST, 200,
           "doorman_permits_refused_total{template=\"login/*\",limit=\"per-<user>\","
           "reason=\"RATE\"} 2\n");
    expect(&fixture, "/metrics", HOST, 200,
           "doorman_permits_granted_units_total{template=\"login/*\",limit=\"all\"} 5\n");
    expect(&fixture, "/metrics", HOST, 200, "doorman_permits_bans 0\n");
    server_stop(&fixture.server);
}

TEST(the_first_page_of_a_server_with_limits_alone_shows_them) {
    struct fixture fixture = start_with_limits(false);
    acquire(&fixture, "ann", 2);
    expect(&fixture, "/", HOST, 200, "<h2>Limits of permits</h2>");
    expect(&fixture, "/", HOST, 200, "per-&lt;user&gt;");
    server_stop(&fixture.server);
    fixture =
        fixture_start("{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1}]}", NULL);
    expect(&fixture, "/", HOST, 200, "No resource has a holder");
    server_stop(&fixture.server);
}

static bool page_has(const struct fixture *fixture, const char *path, const char *part) {
    char *response = get(fixture, path, HOST);
    bool has = code_of(response) == 200 && strstr(body_of(response), part) != NULL;
    free(response);
    return has;
}

/* The history gets a point every ten seconds. A chart has only axes until there are two points for
 * a line. */
TEST(the_last_minutes_of_each_limit_are_drawn) {
    static const char *const one = "/limits?template=login/*&limit=per-%3Cuser%3E";
    struct fixture fixture = start_with_limits(false);
    expect(&fixture, "/limits", HOST, 200, "<div class='trend small'>");
    expect(&fixture, "/", HOST, 200, "<div class='trend small'>");
    expect(&fixture, one, HOST, 200, "<span class=from>10 min ago</span>");
    acquire(&fixture, "ann", 5);
    EVENTUALLY(page_has(&fixture, one, "<polyline class=refused "));
    expect(&fixture, one, HOST, 200, " s: granted at most ");
    expect(&fixture, "/limits", HOST, 200, "<polyline class=given ");
    expect(&fixture, "/", HOST, 200, "<polyline class=given ");
    server_stop(&fixture.server);
}

/* P20: a limit with room for one ban bans two keys, so the first ban ends early. */
TEST(bans_that_end_early_are_counted_and_logged) {
    struct fixture fixture = fixture_start(
        "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": [{\"name\": \"b\", "
        "\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": \"month\", \"max_keys\": 1, "
        "\"ban\": {\"refusals\": 1, \"window\": 60, \"duration\": 600}}]}]}",
        NULL);
    acquire(&fixture, "ann", 2);
    expect(&fixture, "/metrics", HOST, 200,
           "doorman_permits_bans_evicted_total{template=\"login/*\",limit=\"b\"} 0\n");
    acquire(&fixture, "bob", 2);
    expect(&fixture, "/metrics", HOST, 200,
           "doorman_permits_bans_evicted_total{template=\"login/*\",limit=\"b\"} 1\n");
    cJSON *tree = read_limits(&fixture, "");
    assert_true(number(tree, "limits[0].bans") == 1 && number(tree, "limits[0].bans_evicted") == 1);
    cJSON_Delete(tree);
    process_await(fixture.server.process,
                  "bans were ended early to make room for others: raise max_keys "
                  "of this limit, or memory\" count=1 template=login/* limit=b",
                  1);
    server_stop(&fixture.server);
}

/* P15 */
TEST(a_renamed_limit_is_a_warning_with_the_number_of_its_counters) {
    struct fixture fixture = start_with_limits(false);
    acquire(&fixture, "ann", 1);
    acquire(&fixture, "bob", 1);
    config_replace(fixture.server.process,
                   "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": ["
                   "{\"name\": \"renamed\", \"kind\": \"FIXED_WINDOW\", \"limit\": 3, \"window\": "
                   "\"month\"}]}]}");
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process,
                  "level=warning msg=\"a limit has changed\" template=login/* limit=per-<user> "
                  "change=\"removed or renamed, so its counters are dropped\" counters=2\n",
                  1);
    server_stop(&fixture.server);
}

/* P18: a template with an empty list of limits counts what is used, so that operators can learn
 * what a limit could be. */
TEST(an_empty_list_of_limits_shows_what_it_grants) {
    struct fixture fixture = fixture_start(
        "{\"resources\": [{\"identifier_glob\": \"login/*\", \"limits\": []}]}", NULL);
    acquire(&fixture, "ann", 2);
    cJSON *tree = read_limits(&fixture, "");
    assert_string_equal(text(tree, "limits[0].template"), "login/*");
    assert_string_equal(text(tree, "limits[0].limit"), "");
    assert_true(number(tree, "limits[0].granted") == 2);
    assert_true(number(tree, "limits[0].granted_units") == 2);
    cJSON_Delete(tree);
    expect(&fixture, "/metrics", HOST, 200,
           "doorman_permits_granted_units_total{template=\"login/*\",limit=\"\"} 2\n");
    expect(&fixture, "/limits", HOST, 200, "<td data-name='units'>2</td>");
    expect(&fixture, "/limits?template=login/*&limit=", HOST, 200,
           "<a href=\"/keys?resource=login/web&amp;key=ann\">ann</a>");
    server_stop(&fixture.server);
}

/* P20: the keys whose permits a limit refuses or grants most often are listed. */
TEST(the_most_frequent_keys_of_a_limit_are_listed) {
    struct fixture fixture = start_with_limits(false);
    acquire(&fixture, "ann", 2);
    acquire(&fixture, "bob", 8);
    acquire(&fixture, "carl", 4);
    cJSON *tree = read_limits(&fixture, "?template=login/*&limit=per-%3Cuser%3E");
    assert_int_equal(cJSON_GetArraySize(find(tree, "limits")), 1);
    assert_string_equal(text(tree, "limits[0].most_refused[0].key"), "bob");
    assert_string_equal(text(tree, "limits[0].most_refused[1].key"), "carl");
    assert_null(find(tree, "limits[0].most_refused[2]"));
    assert_int_equal(cJSON_GetArraySize(find(tree, "limits[0].most_granted")), 3);
    assert_true(number(tree, "limits[0].most_granted[0].units") > 0);
    cJSON_Delete(tree);
    expect(&fixture, "/limits", HOST, 200, "per-&lt;user&gt;");
    expect(&fixture, "/limits?template=login/*&limit=per-%3Cuser%3E", HOST, 200,
           "<a href=\"/keys?resource=login/web&amp;key=bob\">bob</a>");
    expect(&fixture, "/limits?template=login/*&limit=per-%3Cuser%3E", HOST, 200,
           "granted most often lately");
    expect(&fixture, "/limits?template=login/*&limit=per-%3Cuser%3E", HOST, 200,
           "those of the last minutes: they are halved each full minute");
    expect(&fixture, "/limits?template=login/*&limit=none", HOST, 404, "no such limit");
    expect(&fixture, "/v1/limits?limit=none", HOST, 404, "no limit with this template and name");
    server_stop(&fixture.server);
}

#define SHARED                                                                                     \
    "{\"resources\": [{\"identifier_glob\": \"partner\", \"limits\": [{\"name\": \"pool\", "       \
    "\"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 5, \"size\": 5, "                \
    "\"fair\": true}]}]}"

/* Asks once for each of two keys. Returns whether the second key was refused with SHARE. If so, the
 * caller frees the response. */
static bool is_refused_with_share(const struct fixture *fixture, char **response) {
    free(get(fixture, "/v1/allow?resource=partner&key=a", HOST));
    *response = get(fixture, "/v1/allow?resource=partner&key=b", HOST);
    if (strstr(*response, "\"SHARE\"")) return true;
    free(*response);
    return false;
}

/* P29: two keys ask for more than there is, until the second one is refused because of its
 * share. */
TEST(a_key_that_has_used_its_share_of_a_fair_limit_learns_the_share) {
    struct fixture fixture = fixture_start(SHARED, NULL);
    char *response = NULL;
    EVENTUALLY(is_refused_with_share(&fixture, &response));
    assert_int_equal(code_of(response), 429);
    /* a third of the limit while newcomers still count, and then a half */
    const char *header = strstr(response, "X-RateLimit-Share: ");
    const char *field = strstr(body_of(response), ",\"share\":");
    assert_true(header && atof(header + strlen("X-RateLimit-Share: ")) > 1.5);
    assert_true(field && atof(field + strlen(",\"share\":")) > 1.5);
    assert_true(atof(field + strlen(",\"share\":")) < 3);
    assert_non_null(strstr(body_of(response), "\"remaining\":0"));
    assert_non_null(strstr(response, "Retry-After: 1\r\n"));
    free(response);
    cJSON *tree = read_limits(&fixture, "?template=partner&limit=pool");
    assert_int_equal(number(tree, "limits[0].fair_keys"), 2);
    assert_true(number(tree, "limits[0].refused.SHARE") > 0);
    assert_true(number(tree, "limits[0].most_refused[0].demand") > 1);
    assert_true(number(tree, "limits[0].most_granted[0].share") > 1);
    assert_true(number(tree, "limits[0].most_granted[0].level") > 1);
    cJSON_Delete(tree);
    expect(&fixture, "/limits", HOST, 200, "5 a second, up to 5 saved, shared by keys");
    expect(&fixture, "/limits?template=partner&limit=pool", HOST, 200,
           "<th>asks for</th><th>share</th><th>level</th>");
    expect(&fixture, "/limits?template=partner&limit=pool", HOST, 200, "2 keys share this limit. ");
    server_stop(&fixture.server);
}

/* P20: a page says what the limits have counted for one key. The page needs a token, as /v1/inspect
 * does. */
TEST(a_key_can_be_inspected_with_a_token) {
    struct fixture open = start_with_limits(false), fixture = start_with_limits(true);
    expect(&open, "/keys?resource=login/web&key=bob", HOST, 403, "--http-token");
    acquire(&fixture, "bob", 4);
    expect(&fixture, "/keys?resource=login/web&key=bob", HOST, 401, "");
    const char *const reader = HOST "Authorization: Bearer r-1\r\n";
    expect(&fixture, "/keys?resource=login/web&key=bob", reader, 200, "used up");
    expect(&fixture, "/keys?resource=login/web&key=bob", reader, 200, "refusals towards a ban");
    expect(&fixture, "/keys?resource=login/web&key=new", reader, 200, "per-&lt;user&gt;");
    expect(&fixture, "/keys?resource=other&key=bob", reader, 200,
           "no template with limits matches this resource");
    expect(&fixture, "/keys?resource=&key=bob", reader, 200, "resource_id");
    server_stop(&fixture.server);
    server_stop(&open.server);
}

TEST(a_process_that_is_not_master_has_no_counters) {
    const char *const more[] = {"--etcd", "http://127.0.0.1:1", "--election-key", "/k", NULL};
    struct fixture fixture = fixture_start(LOGIN, more);
    cJSON *tree = read_limits(&fixture, "");
    assert_true(cJSON_IsFalse(find(tree, "is_master")));
    assert_int_equal(cJSON_GetArraySize(find(tree, "limits")), 0);
    cJSON_Delete(tree);
    expect(&fixture, "/limits", HOST, 200, "This process is not the master");
    expect(&fixture, "/v1/limits?limit=x", HOST, 404, "this process is not the master");
    server_stop(&fixture.server);
}
