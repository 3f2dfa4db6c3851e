/* The server over HTTP: the status page, the metrics, the protocol as JSON, and access control. A
 * test that needs a tool which is missing (promtool, prometheus) says so and is skipped. */
#define _GNU_SOURCE
#include "http.h"

#include <poll.h>
#include <sched.h>
#include <sys/stat.h>

#include "../../doorman.h"

/* ---- the status page ------------------------------------------------------------------------ */

/* V3. */
TEST(the_page_shows_every_resource_and_escapes_ids) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "a<b>&'", NULL});
    request_capacity(&fixture, CAPACITY_REQUEST("<img src=x onerror=alert(1)>",
                                                "<script>alert(1)</script>", "250"));
    char *page = get(&fixture, "/", HOST);
    assert_int_equal(code_of(page), 200);
    assert_non_null(strstr(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert_null(strstr(page, "<script>alert"));
    assert_non_null(strstr(page, "a&lt;b&gt;&amp;&#39;"));
    assert_non_null(strstr(page, "resource=%3Cscript%3E"));
    assert_non_null(strstr(page, "has <b>100</b> of <b>100</b>"));
    assert_non_null(strstr(page, "wants <b>250</b>"));
    assert_non_null(strstr(page, "FAIR_SHARE"));
    assert_non_null(strstr(page, "this process"));
    assert_non_null(strstr(page, "<span title='how much the holders ask for'>wants <b>"));
    assert_non_null(strstr(page, "<dt title='the process of a node that grants leases'>master<"));
    assert_non_null(strstr(page, "<summary>what the words mean</summary>"));
    free(page);
    page = get(&fixture, "/resources?resource=%3Cscript%3Ealert(1)%3C/script%3E", HOST);
    assert_non_null(strstr(page, "&lt;img src=x onerror=alert(1)&gt;"));
    assert_null(strstr(page, "<img"));
    free(page);
    expect(&fixture, "/?filter=%22%3E%3Cscript%3E", HOST, 200,
           "value=\"&quot;&gt;&lt;script&gt;\"");
    expect(&fixture, "/resources?resource=none", HOST, 404, "This resource has no leases");
    server_stop(&fixture.server);
}

/* V3: the browser may load or run only what the page itself contains. The page's styles and scripts
 * have a nonce that is different in each response. */
TEST(the_security_policy_allows_only_the_pages_own_content) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char nonces[2][33];
    for (int i = 0; i < 2; i++) {
        char *page = get(&fixture, "/", HOST), tag[64];
        const char *policy = strstr(page, "Content-Security-Policy: default-src 'none'; "
                                          "style-src 'nonce-");
        assert_non_null(policy);
        assert_int_equal(sscanf(strstr(policy, "nonce-"), "nonce-%32[0-9a-f]", nonces[i]), 1);
        assert_int_equal(strlen(nonces[i]), 32);
        snprintf(tag, sizeof tag, "<style nonce='%s'>", nonces[i]);
        assert_non_null(strstr(page, tag));
        snprintf(tag, sizeof tag, "<script nonce='%s'>", nonces[i]);
        assert_non_null(strstr(page, tag));
        assert_null(strstr(page, " style="));
        assert_null(strstr(page, " onclick="));
        assert_null(strstr(page, "http://"));
        assert_null(strstr(page, "Access-Control"));
        free(page);
    }
    assert_string_not_equal(nonces[0], nonces[1]);
    server_stop(&fixture.server);
}

/* V3: the page stays usable with 10,000 resources. */
TEST(many_resources_are_paged_and_can_be_filtered) {
    enum { RESOURCES = 10000, A_MESSAGE = 500 };
    static const char config[] = /* no lease ends before the last page, on a slow machine too */
        "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 100, \"algorithm\": "
        "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 3600, \"refresh_interval\": 5, "
        "\"learning_mode_duration\": 0}}]}";
    struct fixture fixture = fixture_start(config, NULL);
    char *body = (char *)malloc(A_MESSAGE * 64 + 256);
    for (int i = 0; i < RESOURCES; i += A_MESSAGE) {
        int bytes = sprintf(body, "{\"client_id\": \"all\", \"resource\": [");
        for (int j = i; j < i + A_MESSAGE; j++) {
            bytes += sprintf(body + bytes, "%s{\"resource_id\": \"r/%05d\", \"wants\": %d}",
                             j > i ? "," : "", j, j % 100);
        }
        sprintf(body + bytes, "]}");
        request_capacity(&fixture, body);
    }
    free(body);
    expect(&fixture, "/", HOST, 200, "1 to 100 of 10000 resources");
    expect(&fixture, "/?page=100", HOST, 200, ">r/09999<");
    expect(&fixture, "/?page=7777777", HOST, 200, "1 to 100 of 10000");
    expect(&fixture, "/?filter=r/0123", HOST, 200, "1 to 10 of 10 resources");
    expect(&fixture, "/?filter=nothing", HOST, 200, "No resource name contains");
    expect(&fixture, "/?sort=wants", HOST, 200, ">r/00099<");
    char *page = get(&fixture, "/?sort=wants", HOST);
    assert_true(strlen(page) < 200000);
    free(page);

    /* V4: 1,000 resources have series of their own; the rest is summed. */
    page = get(&fixture, "/metrics", HOST);
    int series = 0;
    double wants = 0; /* of all resources */
    for (const char *at = page; (at = strstr(at, "\ndoorman_resource_wants{")) != NULL; at++) {
        series++;
        wants += strtod(strstr(at, "} ") + 2, NULL);
    }
    assert_int_equal(series, 1001);
    free(page);
    for (int i = 0; i < RESOURCES; i++) wants -= i % 100;
    assert_true(wants == 0);
    assert_true(metric(&fixture, "doorman_resource_wants{resource=\"other\"}") > 0);
    server_stop(&fixture.server);
}

TEST(leases_are_sorted_paged_and_filtered) {
    enum { CLIENTS = 250 };
    struct fixture fixture = fixture_start(CONFIG("1000000", ""), NULL);
    for (int i = 0; i < CLIENTS; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"client_id\": \"c%03d\", \"resource\": [{\"resource_id\": \"db\", "
                 "\"priority\": %d, \"wants\": %d}]}",
                 i, i % 16, (i * 7) % CLIENTS + 1);
        request_capacity(&fixture, body);
    }
    expect(&fixture, "/resources?resource=db", HOST, 200, "1 to 100 of 250 leases");
    expect(&fixture, "/resources?resource=db&page=3", HOST, 200, "<td>c249</td>");
    expect(&fixture, "/resources?resource=db&filter=c24", HOST, 200, "1 to 10 of 10 leases");
    char *page = get(&fixture, "/resources?resource=db&sort=wants", HOST);
    const char *row = strstr(page, "<tbody>");
    double last = 1e9;
    for (int i = 0; i < 100; i++) {
        row = strstr(row, "data-name=wants>");
        assert_non_null(row);
        double wants = strtod(row += strlen("data-name=wants>"), NULL);
        assert_true(wants <= last);
        last = wants;
    }
    assert_true(last == CLIENTS - 99);
    free(page);
    server_stop(&fixture.server);
}

/* ---- JSON and metrics ----------------------------------------------------------------------- */

/* V3: the server shows its state as JSON. */
TEST(the_status_names_the_node_its_master_and_every_resource) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "n\"1", NULL});
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db/\\\"orders", "30"));
    request_capacity(&fixture, CAPACITY_REQUEST("b", "db/\\\"orders", "90.5"));
    char *response = get(&fixture, "/v1/status", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_non_null(tree);
    assert_string_equal(text(tree, "node"), "n\"1");
    assert_string_equal(text(tree, "master_address"), fixture.server.url);
    assert_true(cJSON_IsTrue(find(tree, "is_master")));
    assert_string_equal(text(tree, "resources[0].resource_id"), "db/\"orders");
    assert_string_equal(text(tree, "resources[0].algorithm"), "FAIR_SHARE");
    assert_true(number(tree, "resources[0].capacity") == 100);
    assert_true(number(tree, "resources[0].wants") == 120.5);
    assert_true(number(tree, "resources[0].has") == 100);
    assert_true(number(tree, "resources[0].clients") == 2);
    assert_true(number(tree, "resources[0].subclients") == 2);
    assert_true(number(tree, "resources[0].safe_capacity") == 50);
    assert_true(cJSON_IsFalse(find(tree, "resources[0].learning")));
    assert_null(find(tree, "resources[1]"));
    cJSON_Delete(tree);
    free(response);
    expect(&fixture, "/healthz", HOST, 200, "ok");
    expect(&fixture, "/readyz", HOST, 200, "ready");
    server_stop(&fixture.server);
}

/* V3: a server that has not heard of a master says so. */
TEST(the_status_says_that_the_master_is_not_known) {
    const char *const more[] = {"--etcd", "http://127.0.0.1:1", "--election-key", "/k", NULL};
    struct fixture fixture = fixture_start(CONFIG("100", ""), more);
    expect(&fixture, "/v1/status", HOST, 200, "\"is_master\":false,\"master_address\":null");
    expect(&fixture, "/readyz", HOST, 503, "the master is not known");
    expect(&fixture, "/", HOST, 200, "<span id=live class=bad>no master</span>");
    expect(&fixture, "/", HOST, 200, "<main data-state=bad ");
    expect(&fixture, "/", HOST, 200, "This process is not the master.");
    server_stop(&fixture.server);
}

/* S7: while a server learns, there is no safe capacity unless the template has one. */
TEST(the_status_says_that_a_resource_learns) {
    struct fixture fixture =
        fixture_start("{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":100}]}", NULL);
    expect(&fixture, "/", HOST, 200, "all resources, for "); /* also before the first request */
    assert_true(metric(&fixture, "doorman_server_learning_remaining_seconds") > 0);
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "10"));
    expect(&fixture, "/v1/status", HOST, 200, "\"safe_capacity\":null,\"learning\":true");
    assert_true(metric(&fixture, "doorman_resource_learning{resource=\"db\"}") == 1);
    expect(&fixture, "/", HOST, 200, "learning for");
    server_stop(&fixture.server);
}

/* Until its parent has answered, a node does not know how long it will learn. */
TEST(the_page_shows_no_time_of_learning_before_the_parent_answers) {
    struct fixture leaf = leaf_start("tcp://127.0.0.1:1");
    request_capacity(&leaf, CAPACITY_REQUEST("a", "db", "30"));
    expect(&leaf, "/", HOST, 200, "1 resource, until the parent has a lease");
    expect(&leaf, "/", HOST, 200, "learning until the parent has a lease");
    expect(&leaf, "/resources?resource=db", HOST, 200, "learning until the parent has a lease");
    expect(&leaf, "/", HOST, 200, "<main data-state=bad ");
    server_stop(&leaf.server);
}

/* V3: the body of the response to /v1/config is a valid configuration file. */
TEST(the_configuration_page_is_a_valid_configuration) {
    char *example = file_read("config.example.json");
    struct fixture fixture = fixture_start(example, NULL);
    char *first = get(&fixture, "/v1/config", HOST);
    struct fixture again = fixture_start(body_of(first), NULL);
    char *second = get(&again, "/v1/config", HOST);
    assert_string_equal(body_of(first), body_of(second));
    assert_non_null(strstr(first, "\"name\":\"reserve\",\"value\":0.1"));
    server_stop(&fixture.server);
    server_stop(&again.server);
    struct fixture rejects = fixture_start(CONFIG("1", ", \"unmatched\": \"reject\""), NULL);
    expect(&rejects, "/v1/config", HOST, 200, "{\"unmatched\":\"reject\",");
    server_stop(&rejects.server);
    free(second);
    free(first);
    free(example);
}

/* V4. */
TEST(the_metrics_count_events) {
    struct fixture fixture =
        fixture_start("{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": "
                      "100, \"algorithm\": {\"kind\": \"FAIR_SHARE\", "
                      "\"lease_length\": 60, \"refresh_interval\": 5}}]}",
                      NULL);
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "30"));
    request_capacity(&fixture, CAPACITY_REQUEST("a", "unknown\\\\", "30"));
    char *reply = send_bytes(fixture.server.url, "{\"discovery\": {}}", 17);
    assert_non_null(reply);
    free(reply);
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, "{}", 400, "get_capacity.client_id");
    assert_true(metric(&fixture, "doorman_build_info{version=\"" DOORMAN_VERSION "\"}") == 1);
    assert_true(metric(&fixture, "doorman_server_is_master") == 1);
    assert_true(metric(&fixture, "doorman_server_config_last_reload_successful") == 1);
    double loaded = metric(&fixture, "doorman_server_config_last_reload_success_timestamp_seconds");
    assert_true(loaded > (double)time(NULL) - 60 && loaded <= (double)time(NULL));
    assert_true(metric(&fixture, "doorman_server_unmatched_requests_total") == 1);
    assert_true(metric(&fixture, "doorman_server_requests_total{method=\"get_capacity\","
                                 "code=\"OK\"}") == 2);
    assert_true(metric(&fixture, "doorman_server_requests_total{method=\"discovery\","
                                 "code=\"OK\"}") == 1);
    assert_true(metric(&fixture, "doorman_server_requests_total{method=\"unknown\","
                                 "code=\"INVALID_ARGUMENT\"}") == 1);
    assert_true(metric(&fixture, "doorman_server_request_duration_seconds_count{"
                                 "method=\"get_capacity\"}") == 2);
    assert_true(metric(&fixture, "doorman_resource_capacity{resource=\"db\"}") == 100);
    assert_true(metric(&fixture, "doorman_resource_wants{resource=\"db\"}") == 30);
    assert_true(metric(&fixture, "doorman_resource_has{resource=\"db\"}") == 0);
    assert_true(metric(&fixture, "doorman_resource_learning{resource=\"db\"}") == 1);
    assert_true(metric(&fixture, "doorman_resource_clients{resource=\"db\"}") == 1);
    assert_true(metric(&fixture, "doorman_resource_overshoot{resource=\"db\"}") == 0);
    assert_true(metric(&fixture, "doorman_resource_leases_expired_total{resource=\"db\"}") == 0);
    server_stop(&fixture.server);
}

/* Renews the lease `id` of the client "same", or asks for a first lease if `id` is 0. Returns the
 * id of the new lease. */
static double renew(const struct fixture *fixture, double id) {
    char body[300];
    snprintf(body, sizeof body,
             "{\"client_id\": \"same\", \"resource\": [{\"resource_id\": \"db\", \"wants\": 80, "
             "\"has\": {\"id\": %.0f, \"node\": \"n\", \"capacity\": 80, \"expires_in\": 60}}]}",
             id);
    if (id <= 0) snprintf(body, sizeof body, "%s", CAPACITY_REQUEST("same", "db", "80"));
    char *response = post(fixture, "/v1/get_capacity", HOST JSON, body);
    cJSON *tree = cJSON_Parse(body_of(response));
    double next = number(tree, "response[0].gets.id");
    cJSON_Delete(tree);
    free(response);
    return next;
}

/* S10: two processes that use one id are shown in the log (at most once a minute), in the metrics,
 * and on the page. */
TEST(two_processes_with_one_id_are_shown) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "n", NULL});
    double one = renew(&fixture, 0), two = renew(&fixture, 0);
    request_capacity(&fixture, CAPACITY_REQUEST("other", "db", "1"));
    expect(&fixture, "/metrics", HOST, 200,
           "\ndoorman_server_shared_id_requests_total{holder=\"client\"} 0\n");
    for (int i = 0; i < 4; i++) {
        one = renew(&fixture, one);
        two = renew(&fixture, two);
    }
    assert_true(metric(&fixture, "doorman_server_shared_id_requests_total{holder=\"client\"}") ==
                4);
    process_await(fixture.server.process, "two processes seem to use one id", 1);
    assert_int_equal(process_logged(fixture.server.process,
                                    "share\" count=1 resource=db holder=same peer=127.0.0.1:"),
                     1);
    expect(&fixture, "/resources?resource=db&filter=same", HOST, 200,
           "used by two processes</span>");
    expect(&fixture, "/resources?resource=db&filter=same", HOST, 200, "<span class=soft>from 127.");
    expect(&fixture, "/v1/status?resource=db&filter=same", HOST, 200, "\"other_peer\":\"127.");
    char *page = get(&fixture, "/resources?resource=db&filter=other", HOST);
    assert_null(strstr(page, "used by two processes"));
    free(page);
    server_stop(&fixture.server);
}

/* V4: Prometheus' own tool finds no violation of its conventions. */
TEST(promtool_accepts_the_metrics) {
    require_program("promtool");
    struct fixture root =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "root", NULL});
    request_capacity(&root, CAPACITY_REQUEST("a", "x{}\\\\", "30"));
    char *response = get(&root, "/metrics", HOST), path[128], command[256];
    snprintf(path, sizeof path, "%s", root.server.process->socket);
    file_write(path, body_of(response));
    snprintf(command, sizeof command, "promtool check metrics <%s", path);
    assert_int_equal(system(command), 0);
    free(response);
    server_stop(&root.server);
}

/* V4: a real Prometheus reads the metrics. */
TEST(prometheus_scrapes_the_metrics) {
    require_program("prometheus");
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db/orders", "30"));
    int port = port_free();
    struct process *process = process_new();
    char config[512], file[128], data[128], listen[64];
    snprintf(config, sizeof config,
             "global: {scrape_interval: 500ms}\nscrape_configs:\n- job_name: doorman\n"
             "  static_configs: [{targets: ['%s']}]\n",
             fixture.http.url + strlen("tcp://"));
    file_write(process->config, config);
    snprintf(file, sizeof file, "--config.file=%s", process->config);
    snprintf(data, sizeof data, "--storage.tsdb.path=%s/data", process->folder);
    snprintf(listen, sizeof listen, "--web.listen-address=127.0.0.1:%d", port);
    file_write(process->out, "");
    file_write(process->err, "");
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        char *argv[] = {(char *)"/usr/bin/env", (char *)"prometheus", file, data, listen, NULL};
        process_exec(process, argv, environ);
    }
    struct fixture prometheus = {.http = {process, ""}};
    snprintf(prometheus.http.url, sizeof prometheus.http.url, "tcp://127.0.0.1:%d", port);
    process_await(process, "Server is ready to receive web requests", 1);
    bool found = false;
    for (int waited = 0; !found && waited < TIMEOUT_MS; waited += 200) {
        sleep_ms(200);
        char *response = get(&prometheus, "/api/v1/query?query=doorman_resource_wants", HOST);
        found = strstr(response, "\"resource\":\"db/orders\"") && strstr(response, "\"30\"");
        free(response);
    }
    assert_true(found);
    kill(process->pid, SIGTERM);
    process_wait(process);
    char remove[128];
    snprintf(remove, sizeof remove, "rm -rf %s/data", process->folder);
    assert_int_equal(system(remove), 0);
    server_stop(&fixture.server);
}

/* V4, V3: a node shows the lease that its parent has granted. */
TEST(a_node_shows_its_parent_and_its_lease) {
    struct fixture root =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "root", NULL});
    struct fixture leaf = leaf_start(root.server.url);
    request_capacity(&leaf, CAPACITY_REQUEST("a", "db/[*]", "30"));
    const char *series = "doorman_server_parent_lease_remaining_seconds{resource=\"db/[*]\"}";
    double left = 0;
    for (int waited = 0; left <= 0 && waited < TIMEOUT_MS; waited += 50) {
        sleep_ms(50);
        left = metric(&leaf, series);
    }
    assert_true(left > 0 && left <= 60);
    const char *length = "doorman_server_parent_lease_length_seconds{resource=\"db/[*]\"}";
    assert_true(metric(&leaf, length) >= left && metric(&leaf, length) <= 60);
    assert_true(metric(&leaf, "doorman_server_parent_requests_total{code=\"OK\"}") >= 1);
    expect(&leaf, "/", HOST, 200, "1 of 1 resources");
    expect(&leaf, "/", HOST, 200, root.server.url);
    expect(&leaf, "/v1/config", HOST, 200, "\"identifier_glob\":\"db/\\\\[\\\\*\\\\]\"");
    expect(&root, "/resources?resource=db/[*]", HOST, 200, "(a server)");
    server_stop(&leaf.server);
    server_stop(&root.server);
}

/* ---- the protocol over HTTP ----------------------------------------------------------------- */

/* docs/protocol.md: the bodies of requests and responses are the inner objects of the messages.
 * Errors also have HTTP status codes. */
TEST(the_methods_answer_over_http_as_over_nng) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char *response =
        post(&fixture, "/v1/get_capacity", HOST JSON, CAPACITY_REQUEST("a", "db", "30"));
    assert_int_equal(code_of(response), 200);
    cJSON *tree = cJSON_Parse(body_of(response)), *again = NULL;
    assert_true(number(tree, "response[0].gets.capacity") == 30);
    char release[256];
    snprintf(release, sizeof release,
             "{\"client_id\": \"a\", \"resource\": [{\"resource_id\": \"db\", \"id\": %.0f}]}",
             number(tree, "response[0].gets.id"));
    free(response);
    cJSON_Delete(tree);
    again =
        send_request(&fixture.server, "{\"get_capacity\": " CAPACITY_REQUEST("b", "db", "500") "}");
    assert_true(number(again, "get_capacity.response[0].gets.capacity") == 70);
    cJSON_Delete(again);
    expect_post(&fixture, "/v1/release_capacity", HOST JSON, release, 200, "{}");
    assert_true(metric(&fixture, "doorman_resource_has{resource=\"db\"}") == 70);
    expect_post(&fixture, "/v1/discovery", HOST "content-type: Application/JSON; charset=utf-8\r\n",
                "{}", 200, "\"is_master\":true");
    expect_post(&fixture, "/v1/get_server_capacity", HOST JSON,
                "{\"server_id\": \"s\", \"path\": [\"s\"], \"resource\": []}", 200, "response");
    server_stop(&fixture.server);
}

/* The path /v1 takes whole messages, as nng does. */
TEST(a_whole_message_can_be_posted) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    const char *release = "{\"release_capacity\": {\"client_id\": \"a\", \"resource\": []}}";
    char *elsewhere = send_bytes(fixture.server.url, release, strlen(release));
    char *response = post(&fixture, "/v1", HOST JSON, release);
    assert_int_equal(code_of(response), 200);
    const char *body = body_of(response);
    assert_memory_equal(body, elsewhere, strlen(elsewhere));
    assert_string_equal(body + strlen(elsewhere), "\n");
    free(response);
    free(elsewhere);
    const char *wants = "{\"get_capacity\": " CAPACITY_REQUEST("a", "db", "30") "}";
    expect_post(&fixture, "/v1", HOST JSON, wants, 200, "{\"get_capacity\":{\"response\"");
    expect_post(&fixture, "/v1", HOST JSON, "{\"get_capacity\": {}}", 400,
                "get_capacity.client_id");
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, wants, 400,
                "POST /v1 takes the whole message");
    expect_post(&fixture, "/v1", HOST JSON, CAPACITY_REQUEST("a", "db", "30"), 400,
                "Only POST /v1/METHOD takes a body without the method");
    expect_post(&fixture, "/v1", HOST JSON, "{\"nothing\": {}}", 404, "NOT_FOUND");
    expect_post(&fixture, "/v1", HOST JSON, "", 400, "INVALID_ARGUMENT");
    expect_post(&fixture, "/v1", HOST, wants, 415, "UNSUPPORTED_MEDIA_TYPE");
    expect(&fixture, "/v1", HOST, 405, "Allow: POST");
    expect_post(&fixture, "/v1/", HOST JSON, wants, 404, "NOT_FOUND");
    server_stop(&fixture.server);
}

TEST(the_http_status_names_the_error_of_a_request) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    const char *method = "/v1/get_capacity";
    expect_post(&fixture, method, HOST JSON, "{", 400, "INVALID_ARGUMENT");
    expect_post(&fixture, method, HOST JSON, "", 400, "INVALID_ARGUMENT");
    expect_post(&fixture, method, HOST JSON, "{}, \"discovery\": {}", 400, "INVALID_ARGUMENT");
    expect_post(&fixture, method, HOST JSON, "{\"client_id\": \"a\", \"resource\": [{}]}", 400,
                "get_capacity.resource[0].resource_id");
    expect_post(&fixture, "/v1/nothing", HOST JSON, "{}", 404, "NOT_FOUND");
    expect_post(&fixture, "/v1/unknown", HOST JSON, "{}", 404, "NOT_FOUND");
    expect_post(&fixture, "/", HOST JSON, "{}", 405, "Allow: GET");
    expect(&fixture, method, HOST, 405, "Allow: POST");
    expect(&fixture, "/nothing", HOST, 404, "NOT_FOUND");
    expect(&fixture, "/../etc/passwd", HOST, 404, "NOT_FOUND");
    expect_post(&fixture, method, HOST, "{}", 415, "UNSUPPORTED_MEDIA_TYPE");
    expect_post(&fixture, method, HOST "Content-Type: text/plain\r\n", "{}", 415,
                "application/json");
    expect_post(&fixture, method, HOST JSON "Content-Length: 2\r\n", "{}", 400, "Content-Length");
    expect_post(&fixture, method, HOST JSON "Transfer-Encoding: chunked\r\n", "{}", 400, "Length");
    static const struct {
        const char *request;
        int code;
    } cases[] = {
        {"BREW / HTTP/1.1\r\n" HOST "\r\n", 405},
        {"GET / HTTP/2\r\n" HOST "\r\n", 400},
        {"GET /\r\n" HOST "\r\n", 400},
        {" \r\n\r\n", 400},
        {"POST /v1/discovery HTTP/1.1\r\n" HOST JSON "\r\n", 411},
        {"POST /v1/discovery HTTP/1.1\r\n" HOST JSON "Content-Length: -1\r\n\r\n", 400},
        {"POST /v1/discovery HTTP/1.1\r\n" HOST JSON "Content-Length: 99999999999\r\n\r\n", 413},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *response = exchange(&fixture, cases[i].request);
        if (code_of(response) != cases[i].code) fail_msg("%s: %s", cases[i].request, response);
        free(response);
    }
    server_stop(&fixture.server);
}

/* The byte positions in errors count from the start of the body. */
TEST(an_error_refers_to_the_body_of_the_request) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--max-message", "1000", NULL});
    static const struct {
        const char *path, *lines, *body;
        int code;
        const char *text;
    } cases[] = {
        {"/v1/get_capacity", JSON, "", 400, "\"the body is empty: send {}, or the content"},
        {"/v1/discovery", JSON, " \r\n", 400, "\"the body is empty: send {}, or the content"},
        {"/v1/discovery", JSON, "\xef\xbb\xbf{}", 400, "\"byte 0: not JSON: remove the byte order"},
        {"/v1/discovery", JSON, "{\"a\":}", 400, "\"byte 5: not JSON: expected a value\""},
        {"/v1/get_capacity", JSON, "{\"a\":1", 400, "\"byte 6: not JSON: expected a comma or }\""},
        {"/v1/discovery", JSON, "{} trailing", 400, "\"not JSON: text follows the content"},
        {"/v1/discovery", JSON, "{},\"release_capacity\":{}", 400, "\"not JSON: text follows"},
        {"/v1/get_capacity", JSON, "{\"client_id\":1}", 400, "\"get_capacity.client_id: "},
        {"/v1", JSON, "{\"a\":}", 400, "\"byte 5: not JSON: expected a value\""},
        {"/v1/lend", JSON, "{}", 404, "get_capacity, get_server_capacity, release_capacity"},
        {"/v1/discovery", "Content-Type: application/json; charset=UTF-8\r\n", "{}", 200,
         "is_master"},
        {"/v1/discovery", "Content-Type: application/json; charset=\"utf-8\"\r\n", "{}", 200,
         "is_"},
        {"/v1/discovery", "Content-Type: application/json; charset=utf-16\r\n", "{}", 415, "UTF-8"},
        {"/v1/discovery", JSON "Content-Encoding: gzip\r\n", "{}", 415, "Content-Encoding"},
        {"/v1/discovery", JSON "Content-Encoding: identity\r\n", "{}", 200, "is_master"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, HOST "%s", cases[i].lines);
        expect_post(&fixture, cases[i].path, lines, cases[i].body, cases[i].code, cases[i].text);
    }
    char large[1002];
    memset(large, ' ', sizeof large - 1);
    large[sizeof large - 1] = 0;
    expect_post(&fixture, "/v1/discovery", HOST JSON, large, 413, "which is 1000 bytes");
    server_stop(&fixture.server);
}

TEST(a_connection_serves_requests_in_order_for_any_split_of_their_bytes) {
    static const char requests[] =
        "GET /healthz HTTP/1.1\r\n" HOST "\r\nPOST /v1/discovery HTTP/1.1\r\n" HOST JSON
        "Content-Length: 2\r\n\r\n{}HEAD / HTTP/1.1\r\n" HOST "\r\n"
        "GET /readyz HTTP/1.0\r\n\r\nGET /never HTTP/1.1\r\n" HOST "\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (size_t piece = 1; piece < sizeof requests; piece = piece * 3 + 1) {
        int fd = raw_connect(&fixture.http);
        for (size_t at = 0; at < sizeof requests - 1; at += piece) {
            size_t left = sizeof requests - 1 - at;
            raw_send(fd, requests + at, left < piece ? left : piece);
            if (piece < 20) sleep_ms(1);
        }
        char *responses = drain(fd);
        int count = 0;
        for (const char *at = responses; (at = strstr(at, "HTTP/1.1 200")) != NULL; at++) count++;
        assert_int_equal(count, 4);
        assert_non_null(strstr(responses, "ready\n"));
        assert_non_null(strstr(responses, "\"is_master\":true"));
        assert_null(strstr(responses, "<html"));
        assert_null(strstr(responses, "HTTP/1.1 404"));
        free(responses);
    }
    server_stop(&fixture.server);
}

/* ---- access control ------------------------------------------------------------------------- */

/* V3: a page of another site can make its reader's browser send requests to a port of loopback. If
 * the page reaches loopback by a name of its own site, the request has this name as its Host. If it
 * uses a name of loopback, the browser sends no JSON unless the server permits that. */
TEST(a_foreign_web_page_cannot_use_the_server) {
    struct fixture fixture = fixture_start(
        CONFIG("100", ""), (const char *[]){"--advertise", "tcp://doorman.example:15000", NULL});
    static const char *const unknown_hosts[] = {
        "Host:\r\n", "Host: evil.example\r\n", "Host: 127.0.0.1.evil.example\r\n",
        "Host: localhost.evil.example:80\r\n", "Host: 10.0.0.1\r\n"};
    static const char *const known_hosts[] = {"Host: localhost:15050\r\n", "Host: 127.0.0.1\r\n",
                                              "Host: [::1]:80\r\n", "host:LOCALHOST\r\n",
                                              "Host: Doorman.Example:99\r\n"};
    for (size_t i = 0; i < sizeof unknown_hosts / sizeof *unknown_hosts; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, "%s" JSON, unknown_hosts[i]);
        expect_post(&fixture, "/v1/discovery", lines, "{}", 403, "PERMISSION_DENIED");
        expect(&fixture, "/", unknown_hosts[i], 403, "PERMISSION_DENIED");
        expect(&fixture, "/v1/status", unknown_hosts[i], 403, "PERMISSION_DENIED");
        expect(&fixture, "/healthz", unknown_hosts[i], 200, "ok");
    }
    for (size_t i = 0; i < sizeof known_hosts / sizeof *known_hosts; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, "%s" JSON, known_hosts[i]);
        expect_post(&fixture, "/v1/discovery", lines, "{}", 200, "is_master");
        expect(&fixture, "/", known_hosts[i], 200, "<html");
    }
    char *response = exchange(&fixture, "OPTIONS /v1/discovery HTTP/1.1\r\n" HOST
                                        "Origin: https://evil.example\r\n"
                                        "Access-Control-Request-Method: POST\r\n\r\n");
    assert_int_equal(code_of(response), 405);
    assert_null(strstr(response, "Access-Control"));
    free(response);
    server_stop(&fixture.server);
}

/* V3. */
TEST(a_configured_token_is_required_everywhere) {
    struct process *files = process_new();
    file_write(files->config, "  s3cret:token\n");
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config, NULL});
    static const char *const invalid[] = {HOST,
                                          HOST "Authorization: Bearer\r\n",
                                          HOST "Authorization: Bearer s3cret:toke\r\n",
                                          HOST "Authorization: Bearer s3cret:token2\r\n",
                                          HOST "Authorization: Bearer S3cret:token\r\n",
                                          HOST "Authorization: Basic bWU6d3Jvbmc=\r\n",
                                          HOST "Authorization: Basic !\r\n",
                                          HOST "Authorization: s3cret:token\r\n"};
    static const char *const right[] = {HOST "Authorization: Bearer s3cret:token\r\n",
                                        HOST "authorization: bearer s3cret:token\r\n",
                                        HOST "Authorization: Basic bWU6czNjcmV0OnRva2Vu\r\n",
                                        "Host:\r\nAuthorization: Bearer s3cret:token\r\n"};
    static const char *const paths[] = {
        "/",          "/resources?resource=a", "/metrics",      "/v1/status",
        "/v1/config", "/v1/openapi.json",      "/v1/discovery", "/not/there"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        for (size_t j = 0; j < sizeof paths / sizeof *paths; j++) {
            expect(&fixture, paths[j], invalid[i], 401, "WWW-Authenticate: Basic");
        }
        char lines[256];
        snprintf(lines, sizeof lines, "%s" JSON, invalid[i]);
        expect_post(&fixture, "/v1/discovery", lines, "{}", 401, "UNAUTHENTICATED");
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        expect(&fixture, "/metrics", right[i], 200, "doorman_build_info");
    }
    expect_post(&fixture, "/v1/discovery", HOST JSON "Authorization: Bearer s3cret:token\r\n", "{}",
                200, "is_master");
    expect_post(&fixture, "/v1/discovery",
                "Host: evil.example\r\n" JSON "Authorization: Bearer s3cret:token\r\n", "{}", 403,
                "PERMISSION_DENIED");
    expect(&fixture, "/healthz", HOST, 200, "ok");
    expect(&fixture, "/readyz", HOST, 200, "ready");
    server_stop(&fixture.server);
}

/* V3, V7. */
TEST(http_beyond_loopback_needs_authentication) {
    static const char *const far[] = {"0.0.0.0:0", "[::]:0", "*:0", "127.0.0.1.example:0",
                                      "10.1.2.3:0"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        expect_refusal((const char *[]){"--http", far[i], NULL}, 2, "--http-token");
    }
    struct process *files = process_new();
    file_write(files->config, "token");
    struct fixture fixture = {
        .server =
            server_start(CONFIG("100", ""), (const char *[]){"--http", "0.0.0.0:0", "--http-token",
                                                             files->config, NULL})};
    process_await(fixture.server.process, "travels in plain text", 1);
    server_stop(&fixture.server);
}

/* V7. */
TEST(http_errors_at_the_start_are_one_line) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    const char *taken = fixture.http.url + strlen("tcp://");
    expect_refusal((const char *[]){"--http", taken, NULL}, 1, "in use");
    expect_refusal((const char *[]){"--http", "rubbish::x", NULL}, 2, "--http");
    expect_refusal((const char *[]){"--http-token", "/no/such", "--http", "127.0.0.1:0", NULL}, 1,
                   "/no/such");
    expect_refusal((const char *[]){"--tls-cert", "/no/such", NULL}, 2, "--tls-key");
    expect_refusal((const char *[]){"--tls-ca", "/no/such", NULL}, 2, "--tls-cert");
    expect_refusal((const char *[]){"--tls-cert", "/no/such", "--tls-key", "/no/such", NULL}, 1,
                   "/no/such");
    expect_refusal((const char *[]){"--listen", "tls+tcp://127.0.0.1:0", NULL}, 2, "--tls-cert");
    expect_refusal((const char *[]){"--max-message", "4194305", NULL}, 2, "4194304");
    expect_refusal((const char *[]){"--max-holders", "many", NULL}, 2, "'many'");
    server_stop(&fixture.server);
}

/* ---- reload --------------------------------------------------------------------------------- */

static void await_capacity(const struct fixture *fixture, double capacity) {
    double now = -1;
    for (int waited = 0; now != capacity && waited < TIMEOUT_MS; waited += 50) {
        sleep_ms(50);
        now = metric(fixture, "doorman_resource_capacity{resource=\"db\"}");
    }
    assert_true(now == capacity);
}

/* Rewrites the configuration file in place. SIGSTOP stops the server meanwhile, because otherwise
 * it could read half of the file. */
static void config_rewrite(const struct fixture *fixture, const char *config) {
    const struct process *process = fixture->server.process;
    process_signal(process, SIGSTOP);
    file_write(process->config, config);
    process_signal(process, SIGCONT);
}

/* V1: the file is rewritten in place, replaced by a file, replaced by a link, and deleted. */
TEST(a_changed_file_is_loaded_after_any_kind_of_change) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    const char *path = fixture.server.process->config;
    char first[96], second[96], link_path[96];
    snprintf(first, sizeof first, "%s/first", fixture.server.process->folder);
    snprintf(second, sizeof second, "%s/second", fixture.server.process->folder);
    snprintf(link_path, sizeof link_path, "%s/link", fixture.server.process->folder);
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "30"));
    config_rewrite(&fixture, CONFIG("200", ""));
    await_capacity(&fixture, 200);
    file_write(first, CONFIG("300", ""));
    assert_int_equal(rename(first, path), 0);
    await_capacity(&fixture, 300);
    file_write(first, CONFIG("400", ""));
    file_write(second, CONFIG("500", ""));
    assert_int_equal(symlink(first, link_path), 0);
    assert_int_equal(rename(link_path, path), 0);
    await_capacity(&fixture, 400);
    assert_int_equal(symlink(second, link_path), 0);
    assert_int_equal(rename(link_path, path), 0);
    await_capacity(&fixture, 500);
    unlink(path);
    process_await(fixture.server.process, "the configuration file is missing", 1);
    await_capacity(&fixture, 500);
    assert_int_equal(process_logged(fixture.server.process, "refused"), 0);
    assert_int_equal(process_logged(fixture.server.process, "configuration loaded"), 4);
    unlink(first);
    unlink(second);
    server_stop(&fixture.server);
}

/* V1: an invalid file is refused, logged and counted, and the old configuration stays in force. */
TEST(an_invalid_changed_file_is_shown_and_the_last_configuration_stays) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "30"));
    config_rewrite(&fixture, CONFIG("\"<b>\"", ""));
    process_await(fixture.server.process, "configuration refused", 1);
    assert_true(metric(&fixture, "doorman_server_config_last_reload_successful") == 0);
    expect(&fixture, "/", HOST, 200, "resources[0].capacity");
    expect(&fixture, "/", HOST, 200, "<span id=live class=warn>live, but the last configuration");
    expect(&fixture, "/limits", HOST, 200, "<main data-state=warn data-text='live, but the last");
    await_capacity(&fixture, 100);
    sleep_ms(2500);
    assert_int_equal(process_logged(fixture.server.process, "configuration refused"), 1);
    config_rewrite(&fixture, CONFIG("70", ""));
    await_capacity(&fixture, 70);
    assert_true(metric(&fixture, "doorman_server_config_last_reload_successful") == 1);
    char *page = get(&fixture, "/", HOST);
    assert_null(strstr(page, "resources[0].capacity"));
    assert_non_null(strstr(page, "<span id=live class=good>live</span>"));
    free(page);
    server_stop(&fixture.server);
}

/* ---- bad input ------------------------------------------------------------------------------ */

/* Returns how much the server's memory may grow, in KiB. Sanitizers keep freed memory for some
 * time. */
static long slack(void) {
    const char *program = getenv("DOORMAN_SERVER");
    bool sanitized = program && (strstr(program, "asan") || strstr(program, "tsan"));
    return sanitized ? 1 << 20 : 32 << 10;
}

/* V5: connections that send nothing or half a request do not delay others, and do not take up more
 * and more memory. */
MEASURES(idle_connections_are_closed_when_others_need_them)
TEST(idle_connections_are_closed_when_others_need_them) {
    enum { PEERS = 1000, ROUNDS = 4 };
    static const char *const halves[] = {"", "G", "GET / HTTP/1.1\r\nHost: localhost\r\n",
                                         "POST /v1/discovery HTTP/1.1\r\n" HOST JSON
                                         "Content-Length: 4000000\r\n\r\n{\"a\":"};
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    long first = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int peers[PEERS];
        for (int i = 0; i < PEERS; i++) {
            peers[i] = raw_connect(&fixture.http);
            raw_send(peers[i], halves[round], strlen(halves[round]));
            if (i % 100 == 0) request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "30"));
        }
        expect(&fixture, "/healthz", HOST, 200, "ok");
        cJSON *tree = send_request(&fixture.server, "{\"discovery\": {}}");
        assert_true(cJSON_IsTrue(find(tree, "discovery.is_master")));
        cJSON_Delete(tree);
        for (int i = 0; i < PEERS; i++) close(peers[i]);
        if (round == 0) first = server_memory(&fixture.server);
    }
    assert_in_range(server_memory(&fixture.server), 1, first + slack());
    server_stop(&fixture.server);
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits until a point in time. A sleep ends too late, so the function sleeps until 0.2 ms before
 * that point, and then watches the clock. */
static void await_ns(int64_t moment) {
    const int64_t early = moment - 200000;
    const struct timespec time = {early / 1000000000, early % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    while (clock_ns() < moment) sched_yield();
}

/* V5: a peer may leave at the moment at which the server ends its connection, here 2 s after a
 * malformed request. The peers leave within 1 ms of that moment, so that some of them meet it. nng
 * 1.5.2 could abort the process if it freed the stream of the peer while it handled the timeout. */
TEST(a_peer_that_leaves_at_a_timeout_stops_nothing) {
    enum { PEERS = 100, ROUNDS = 3, STEP = 20000 };
    static const char request[] = "GET /a b HTTP/1.1\r\n" HOST "\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (int round = 0; round < ROUNDS; round++) {
        int peers[PEERS];
        int64_t leaves_at[PEERS];
        for (int i = 0; i < PEERS; i++) {
            char response[1024] = "";
            peers[i] = raw_connect(&fixture.http);
            raw_send(peers[i], request, strlen(request));
            assert_true(recv(peers[i], response, sizeof response - 1, 0) > 0);
            assert_int_equal(code_of(response), 400);
            leaves_at[i] = clock_ns() + 2000000000 + (i - PEERS / 2) * STEP;
        }
        for (int i = 0; i < PEERS; i++) {
            await_ns(leaves_at[i]);
            close(peers[i]);
        }
    }
    expect(&fixture, "/healthz", HOST, 200, "ok");
    server_stop(&fixture.server);
}

/* V5: a body of exactly 4 MiB is allowed. A body of 4 MiB and one byte is refused, and so is a path
 * of 100,000 bytes. A path of 10,000 bytes is still read, and not found. */
MEASURES(too_long_requests_are_refused_and_freed)
TEST(too_long_requests_are_refused_and_freed) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    size_t bytes = ((size_t)4 << 20) + 1;
    char *body = (char *)malloc(bytes + 1), *path = (char *)malloc(100001);
    memset(body, ' ', bytes);
    body[bytes] = 0;
    memset(path, 'a', 100000);
    path[0] = '/';
    long first = 0;
    for (int round = 0; round < 20; round++) {
        expect_post(&fixture, "/v1/discovery", HOST JSON, body, 413, "RESOURCE_EXHAUSTED");
        body[bytes - 1] = 0;
        memcpy(body, "{}", 2);
        expect_post(&fixture, "/v1/discovery", HOST JSON, body, 200, "is_master");
        body[bytes - 1] = ' ';
        path[10000] = 0;
        expect(&fixture, path, HOST, 404, "NOT_FOUND");
        path[10000] = 'a';
        path[100000] = 0;
        int fd = raw_connect(&fixture.http);
        raw_send(fd, "GET ", 4);
        raw_send(fd, path, 100000);
        char response[1024] = "";
        assert_true(recv(fd, response, sizeof response - 1, 0) > 0);
        assert_int_equal(code_of(response), 431);
        close(fd);
        if (round == 4) first = server_memory(&fixture.server);
    }
    assert_in_range(server_memory(&fixture.server), 1, first + slack());
    free(body);
    free(path);
    server_stop(&fixture.server);
}

/* The state of random_below (xorshift64*). SEED=N repeats a run. */
static uint64_t random_state;

static size_t random_below(size_t end) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (size_t)((random_state * UINT64_C(2685821657736338717)) >> 33) % end;
}

/* V5: each request is answered with a status code, or only its own connection is closed. */
TEST(requests_with_random_faults_do_not_affect_others) {
    static const char *const good[] = {
        "GET /?filter=%41&page=2&sort=has HTTP/1.1\r\n" HOST "\r\n",
        "GET /resources?resource=db&filter=a HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n",
        "HEAD /metrics HTTP/1.0\r\n" HOST "Authorization: Basic bWU6d3Jvbmc=\r\n\r\n",
        "POST /v1/get_capacity HTTP/1.1\r\n" HOST JSON
        "Content-Length: 66\r\n\r\n" CAPACITY_REQUEST("a", "db", "30") "      "};
    const char *seed = getenv("SEED");
    random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    print_message("SEED=%llu\n", (unsigned long long)random_state);
    random_state += !random_state;
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (int round = 0; round < 2000; round++) {
        char request[512];
        const char *from = good[random_below(4)];
        size_t bytes = strlen(from);
        memcpy(request, from, bytes);
        for (size_t faults = random_below(4); faults > 0; faults--) {
            size_t at = random_below(bytes), end = at + random_below(bytes - at);
            switch (random_below(3)) {
            case 0: request[at] = (char)random_below(256); break;
            case 1: bytes = at + 1; break;
            default:
                memmove(request + at, request + end, bytes - end);
                bytes -= end - at;
                break;
            }
        }
        int fd = raw_connect(&fixture.http);
        raw_send(fd, request, bytes);
        shutdown(fd, SHUT_WR);
        char *response = drain(fd);
        if (*response && strncmp(response, "HTTP/1.1 ", 9) != 0) fail_msg("%s", response);
        free(response);
    }
    expect(&fixture, "/", HOST, 200, "</html>");
    server_stop(&fixture.server);
}

/* C7, V5. */
TEST(the_limits_can_be_configured) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""),
                      (const char *[]){"--max-resources", "2", "--max-holders", "3",
                                       "--max-message", "1000", "--max-connections", "2", NULL});
    for (int i = 0; i < 3; i++) {
        char body[256];
        snprintf(body, sizeof body, CAPACITY_REQUEST("c%d", "one", "1"), i);
        request_capacity(&fixture, body);
    }
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, CAPACITY_REQUEST("c9", "one", "1"), 200,
                "FULL");
    request_capacity(&fixture, CAPACITY_REQUEST("c1", "two", "1"));
    expect_post(&fixture, "/v1/get_capacity", HOST JSON, CAPACITY_REQUEST("c1", "three", "1"), 200,
                "FULL");
    char body[1100];
    memset(body, ' ', sizeof body);
    memcpy(body, "{}", 2);
    body[1001] = 0;
    expect_post(&fixture, "/v1/discovery", HOST JSON, body, 413, "RESOURCE_EXHAUSTED");
    body[1000] = 0;
    expect_post(&fixture, "/v1/discovery", HOST JSON, body, 200, "is_master");
    /* The server may close any one of the three connections, because it counts greetings, and may
     * read them in any order. */
    struct pollfd peers[3];
    for (int i = 0; i < 3; i++) {
        peers[i] = (struct pollfd){.fd = raw_greet(&fixture.server), .events = POLLIN};
    }
    assert_int_equal(poll(peers, 3, TIMEOUT_MS), 1);
    for (int i = 0; i < 3; i++) {
        if (peers[i].revents) assert_true(raw_hung_up(peers[i].fd));
        close(peers[i].fd);
    }
    server_stop(&fixture.server);
}

/* Peers of nng send requests, and vanish while the responses are on their way. */
static void vanish(const struct server *server) {
    enum { PEERS = 40, REQUESTS = 16 };
    static const char request[] = "{\"discovery\": {}}";
    int peers[PEERS];
    for (int i = 0; i < PEERS; i++) peers[i] = raw_greet(server);
    for (int i = 0; i < PEERS * REQUESTS; i++) {
        assert_true(raw_send_head(peers[i % PEERS], sizeof request - 1));
        assert_true(raw_send(peers[i % PEERS], request, sizeof request - 1));
    }
    for (int i = 0; i < PEERS; i++) close(peers[i]);
}

/* With nng 1.5.2 peers that vanish block the thread that frees streams. The server must still close
 * the connection of a client over HTTP. */
TEST(a_connection_closes_after_peers_over_nng_have_vanished) {
    static const char request[] = "GET /healthz HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (int i = 0; i < 10; i++) {
        vanish(&fixture.server);
        int fd = raw_connect(&fixture.http);
        assert_true(raw_send(fd, request, sizeof request - 1));
        assert_true(raw_hung_up(fd));
        close(fd);
    }
    server_stop(&fixture.server);
}
