/* /descriptors and /v1/descriptors: which resource and key a descriptor of a gateway becomes, and
 * what would be decided for them. Windows are of many days, so a test hardly ever meets the edge of
 * a window. */
#define _GNU_SOURCE
#include "http.h"

#define ADMIN HOST "Authorization: Bearer top-4\r\n"
#define RULES                                                                                      \
    "\"descriptors\": [{\"domain\": \"shop\", \"entries\": [[\"path\", \"/login\"], "              \
    "[\"ip\", \"*\"]], \"resource\": \"login\", \"key\": \"{ip}\"},"                               \
    "{\"domain\": \"shop\", \"entries\": [[\"<zz>\", \"&*\"]], \"resource\": \"<b>{<zz>}\"}], "
#define DESCRIBED                                                                                  \
    "{" RULES "\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [{\"name\": "          \
    "\"per-ip\", \"kind\": \"FIXED_WINDOW\", \"limit\": 2, \"window\": 100000000}, {\"name\": "    \
    "\"soft\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 100000000, \"shadow\": "      \
    "true}]}]}"
#define PATH "/v1/descriptors?domain=shop&path=/login&ip=1.2.3.4"

static struct fixture start_with_token(void) {
    struct process *files = process_new();
    file_write(files->config, "admin ann top-4\n");
    return fixture_start(DESCRIBED, (const char *[]){"--http-token", files->config, NULL});
}

TEST(a_descriptor_says_what_would_be_decided_and_charges_nothing) {
    struct fixture fixture = start_with_token();
    for (int i = 0; i < 3; i++) {
        expect(&fixture, PATH, ADMIN, 200,
               "\"descriptor\":{\"resource_id\":\"login\",\"key\":\"1.2.3.4\",\"hashed\":false,"
               "\"rule\":{\"index\":0,\"domain\":\"shop\",\"entries\":[[\"path\",\"/login\"],"
               "[\"ip\",\"*\"]],\"resource\":\"login\",\"key\":\"{ip}\"},\"template\":\"login\","
               "\"decision\":\"GRANTED\",\"limits\":[{\"name\":\"per-ip\",\"limit\":2,\"used\":0,"
               "\"remaining\":2,\"reset_after\":0.000},{\"name\":\"soft\",\"limit\":1,");
    }
    expect(&fixture, "/v1/allow?resource=login&key=1.2.3.4&cost=2", ADMIN, 200, "GRANTED");
    expect(&fixture, PATH, ADMIN, 200,
           "\"decision\":\"REFUSED\",\"reason\":\"RATE\",\"limit\":\"per-ip\",\"limits\":"
           "[{\"name\":\"per-ip\",\"limit\":2,\"used\":2,\"remaining\":0,");
    expect(&fixture, "/v1/descriptors?domain=shop&path=/login&ip=5", ADMIN, 200,
           "\"decision\":\"GRANTED\"");
    server_stop(&fixture.server);
}

TEST(a_descriptor_without_a_template_is_unmatched) {
    struct fixture fixture = fixture_start(DESCRIBED, NULL);
    expect(&fixture, "/v1/descriptors?domain=a%2Fb&ip=1", HOST, 200,
           "{\"is_master\":true,\"rules\":2,\"descriptor\":{\"resource_id\":\"a%2Fb/ip\",\"key\":"
           "\"1\",\"hashed\":false,\"decision\":\"UNMATCHED\"},\"unmatched_count\":0,"
           "\"unmatched\":[]}");
    expect(&fixture, "/v1/descriptors?domain=d&entry.domain=x&entry.entry.y=z%00", HOST, 200,
           "{\"resource_id\":\"d/domain/entry.y\",\"key\":\"sha256:");
    expect(&fixture, "/v1/descriptors?domain=", HOST, 200, "\"resource_id\":\"sha256:e3b0c442");
    expect(&fixture, "/v1/descriptors", HOST, 200,
           "{\"is_master\":true,\"rules\":2,\"unmatched_count\":0,\"unmatched\":[]}");
    server_stop(&fixture.server);
}

/* Counters are shown only by a server with tokens, as on the page of a key. */
TEST(a_server_without_tokens_shows_no_counters) {
    struct fixture fixture = fixture_start(DESCRIBED, NULL);
    expect(&fixture, PATH, HOST, 200, "\"key\":\"{ip}\"},\"template\":\"login\"},\"unmatched_");
    expect(&fixture, "/descriptors?domain=shop&path=/login&ip=1", HOST, 200,
           "shown only by a server with --http-token");
    server_stop(&fixture.server);
}

TEST(a_wrong_descriptor_is_named) {
    struct fixture fixture = fixture_start(DESCRIBED, NULL);
    static const struct {
        const char *query, *error;
    } wrong[] = {
        {"path=/login", "domain: is required with entries"},
        {"domain=a&domain=b", "domain: occurs twice"},
        {"domain=%00", "domain: must not contain a 0 byte"},
        {"domain=a&path", "path: must have a value, as in KEY=VALUE"},
        {"domain=a&1=&2=&3=&4=&5=&6=&7=&8=&9=&10=&11=&12=&13=&14=&15=&16=&17=",
         "17: is one entry too many: a descriptor has at most 16"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[256];
        snprintf(path, sizeof path, "/v1/descriptors?%s", wrong[i].query);
        expect(&fixture, path, HOST, 400, wrong[i].error);
        if (i == 0) continue;
        snprintf(path, sizeof path, "/descriptors?%s", wrong[i].query);
        expect(&fixture, path, HOST, 200, wrong[i].error);
    }
    server_stop(&fixture.server);
}

TEST(the_page_shows_the_answer_and_the_rules) {
    struct fixture fixture = start_with_token();
    static const char *const forms[] = {
        "/descriptors?domain=shop&entries=path=/login%26ip=9",
        "/descriptors?domain=shop&path=/login&ip=9",
    };
    for (size_t i = 0; i < 2; i++) {
        expect(&fixture, forms[i], ADMIN, 200, "<dt>rule</dt><dd>descriptors[0]</dd>");
        expect(&fixture, forms[i], ADMIN, 200, "would now be <b class=good>granted</b>");
        expect(&fixture, forms[i], ADMIN, 200, "<td data-name='remaining'>2</td>");
        expect(&fixture, forms[i], ADMIN, 200, "2 in the configuration");
        expect(&fixture, forms[i], ADMIN, 200, "0 since this process started");
    }
    expect(&fixture, "/descriptors?domain=x&ip=1", ADMIN, 200, "lets such requests pass");
    expect(&fixture, "/limits", ADMIN, 200, "<a href='/descriptors'>");
    server_stop(&fixture.server);
}

TEST(names_are_escaped_on_the_page) {
    struct fixture fixture = fixture_start(DESCRIBED, NULL);
    expect(&fixture, "/descriptors?domain=shop&entry.%3Czz%3E=%26%22'", HOST, 200,
           "<dd>&lt;b&gt;&amp;&quot;&#39;</dd>");
    expect(&fixture, "/descriptors?domain=%22%3E&entries=a=%22%3E", HOST, 200,
           "value=\"&quot;&gt;\"");
    char *response = get(&fixture, "/descriptors?domain=shop&entry.%3Czz%3E=%26%22'", HOST);
    assert_null(strstr(response, "<zz"));
    free(response);
    server_stop(&fixture.server);
}

TEST(a_reloaded_rule_counts) {
    struct fixture fixture = fixture_start(DESCRIBED, NULL);
    config_replace(fixture.server.process,
                   "{\"descriptors\": [{\"domain\": \"shop\", \"entries\": [[\"path\", "
                   "\"/login\"], [\"ip\", \"*\"]], \"resource\": \"new\"}], "
                   "\"resources\": [{\"identifier_glob\": \"*\", \"limits\": []}]}");
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "configuration loaded", 1);
    expect(&fixture, PATH, HOST, 200, "\"rules\":1,\"descriptor\":{\"resource_id\":\"new\"");
    expect(&fixture, "/v1/config", HOST, 200, "{\"descriptors\":[{\"domain\":\"shop\",");
    server_stop(&fixture.server);
}

TEST(a_process_that_is_not_the_master_knows_the_rule) {
    struct process *files = process_new();
    file_write(files->config, "admin ann top-4\n");
    const char *const more[] = {"--http-token",   files->config, "--etcd", "http://127.0.0.1:1",
                                "--election-key", "/k",          NULL};
    struct fixture fixture = fixture_start(DESCRIBED, more);
    expect(&fixture, PATH, ADMIN, 200, "{\"is_master\":false,\"rules\":2,");
    expect(&fixture, PATH, ADMIN, 200, "\"template\":\"login\"},\"unmatched_count\"");
    expect(&fixture, "/descriptors?domain=shop&path=/login&ip=1", ADMIN, 200,
           "This process is not the master");
    server_stop(&fixture.server);
}
