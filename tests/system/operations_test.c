/* What an operator sees of doorman_server: the metrics of the process and of its connections, and
 * the log lines about messages, configurations, learning and elections. Tests with an election are
 * skipped if etcd is not installed. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define GET(field)                                                                                 \
    "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":[{\"resource_id\":\"db\"" field "}]}}"

/* Returns the value of one series, or -1 if there is no such series. */
static double metric_or_none(const struct fixture *fixture, const char *series) {
    char *response = get(fixture, "/metrics", HOST), line[256];
    snprintf(line, sizeof line, "\n%s ", series);
    const char *at = strstr(response, line);
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    free(response);
    return value;
}

/* Waits until a series has at least this value. */
static void metric_await(const struct fixture *fixture, const char *series, double least) {
    int waited = 0;
    while (waited < TIMEOUT_MS && metric_or_none(fixture, series) < least) {
        sleep_ms(20);
        waited += 20;
    }
    if (waited >= TIMEOUT_MS) fail_msg("waited for %s to be %g", series, least);
}

static void send_and_free(const struct fixture *fixture, const char *message) {
    char *reply = send_bytes(fixture->server.url, message, strlen(message));
    assert_non_null(reply);
    free(reply);
}

/* ---- metrics -------------------------------------------------------------------------------- */

/* V4: the names, types and units are those of Prometheus' client libraries. */
TEST(the_process_has_the_metrics_of_other_exporters) {
    time_t before = time(NULL);
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    double resident = metric(&fixture, "process_resident_memory_bytes");
    double kib = (double)server_memory(&fixture.server);
    assert_true(resident > kib * 1024 / 2 && resident < kib * 1024 * 2);
    assert_true(metric(&fixture, "process_virtual_memory_bytes") > resident);
    double cpu = metric(&fixture, "process_cpu_seconds_total");
    assert_true(cpu > 0);
    for (int i = 0; i < 200; i++) expect(&fixture, "/v1/config", HOST, 200, "resources");
    assert_true(metric(&fixture, "process_cpu_seconds_total") > cpu);
    int held[20];
    for (int i = 0; i < 20; i++) held[i] = raw_greet(&fixture.server);
    double files = metric(&fixture, "process_open_fds");
    assert_true(files > 20 && metric(&fixture, "process_max_fds") >= files);
    for (int i = 0; i < 20; i++) close(held[i]);
    EVENTUALLY(metric(&fixture, "process_open_fds") <= files - 15);
    double started = metric(&fixture, "process_start_time_seconds");
    assert_true(started >= (double)before - 2 && started <= (double)time(NULL) + 2);
    assert_true(metric(&fixture, "process_start_time_seconds") >= started);
    assert_true(metric(&fixture, "process_start_time_seconds") <= started);
    expect(&fixture, "/metrics", HOST, 200, "\n# TYPE process_cpu_seconds_total counter\n");
    expect(&fixture, "/metrics", HOST, 200, "\n# TYPE process_open_fds gauge\n");
    server_stop(&fixture.server);
}

/* V4. A connection counts until the server has noticed its end. */
TEST(connections_are_counted_by_kind) {
    enum { NNG = 5, HTTP = 7 };
    struct fixture root =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "root", NULL});
    int nng[NNG], http[HTTP];
    for (int i = 0; i < NNG; i++) nng[i] = raw_greet(&root.server);
    for (int i = 0; i < HTTP; i++) http[i] = raw_connect(&root.http);
    metric_await(&root, "doorman_server_connections{kind=\"nng\"}", NNG);
    assert_true(metric(&root, "doorman_server_connections{kind=\"nng\"}") == NNG);
    metric_await(&root, "doorman_server_connections{kind=\"http\"}", HTTP + 1);
    assert_true(metric_or_none(&root, "doorman_server_connections{kind=\"parent\"}") < 0);
    for (int i = 0; i < NNG; i++) close(nng[i]);
    for (int i = 0; i < HTTP; i++) close(http[i]);
    double left = NNG;
    for (int waited = 0; left > 0 && waited < TIMEOUT_MS; waited += 20) {
        left = metric(&root, "doorman_server_connections{kind=\"nng\"}");
        sleep_ms(20);
    }
    assert_true(left == 0);
    server_stop(&root.server);
}

/* V4: a node with a parent shows its connection to the parent. A node without a configuration of
 * its own shows no hash. */
TEST(a_node_shows_whether_its_parent_answers) {
    const char *const series = "doorman_server_connections{kind=\"parent\"}";
    struct fixture root =
        fixture_start(CONFIG("100", ""), (const char *[]){"--node", "root", NULL});
    struct fixture leaf = leaf_start(root.server.url);
    metric_await(&leaf, series, 1); /* before its first client */
    request_capacity(&leaf, CAPACITY_REQUEST("a", "db", "30"));
    metric_await(&leaf, series, 1);
    char *response = get(&leaf, "/metrics", HOST);
    assert_null(strstr(response, "doorman_server_config_info"));
    free(response);
    server_stop(&root.server);
    for (int waited = 0; metric(&leaf, series) > 0 && waited < TIMEOUT_MS; waited += 50) {
        sleep_ms(50);
    }
    assert_true(metric(&leaf, series) == 0);
    server_stop(&leaf.server);
}

static void hash_read(const struct fixture *fixture, char hash[17]) {
    char *response = get(fixture, "/metrics", HOST);
    const char *at = strstr(response, "\ndoorman_server_config_info{hash=\"");
    assert_non_null(at);
    assert_int_equal(sscanf(strchr(at, '"') + 1, "%16[0-9a-f]\"} 1\n", hash), 1);
    assert_int_equal(strlen(hash), 16);
    free(response);
}

/* V4: two servers with one configuration show the same hash. The log has the hash too. */
TEST(the_hash_tells_which_configuration_is_in_force) {
    struct fixture one = fixture_start(CONFIG("100", ""), NULL);
    struct fixture other = fixture_start("  " CONFIG("1e2", "") "\n", NULL);
    char hash[3][17], line[64];
    hash_read(&one, hash[0]);
    hash_read(&other, hash[1]);
    assert_string_equal(hash[0], hash[1]);
    config_replace(one.server.process, CONFIG("101", ""));
    process_signal(one.server.process, SIGHUP);
    process_await(one.server.process, "configuration loaded", 1);
    hash_read(&one, hash[2]);
    assert_string_not_equal(hash[2], hash[0]);
    snprintf(line, sizeof line, " hash=%s changed=*\n", hash[2]);
    assert_int_equal(process_logged(one.server.process, line), 1);
    config_replace(one.server.process, "rubbish");
    process_signal(one.server.process, SIGHUP);
    process_await(one.server.process, "configuration refused", 1);
    hash_read(&one, hash[0]);
    assert_string_equal(hash[0], hash[2]);
    server_stop(&one.server);
    server_stop(&other.server);
}

/* V4. Missing tokens are counted apart, because a browser sends its first request without one. */
TEST(requests_without_the_right_token_are_counted) {
    struct process *files = process_new();
    file_write(files->config, "secret\n");
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config, NULL});
    for (int i = 0; i < 3; i++) expect(&fixture, "/", HOST, 401, "UNAUTHENTICATED");
    for (int i = 0; i < 2; i++) {
        expect(&fixture, "/", HOST "Authorization: Bearer no\r\n", 401, "UNAUTHENTICATED");
    }
    expect(&fixture, "/healthz", HOST, 200, "ok");
    char *page = get(&fixture, "/metrics", HOST "Authorization: Bearer secret\r\n");
    static const char *const name = "\ndoorman_server_authentication_failures_total";
    char line[128];
    snprintf(line, sizeof line, "%s{kind=\"http\",reason=\"token_missing\"} 3\n", name);
    assert_non_null(strstr(page, line));
    snprintf(line, sizeof line, "%s{kind=\"http\",reason=\"token_wrong\"} 2\n", name);
    assert_non_null(strstr(page, line));
    free(page);
    server_stop(&fixture.server);
}

/* Waits until a server whose log cannot be read accepts connections. */
static void http_await(const struct fixture *fixture) {
    unsigned port = 0;
    int fd = -1;
    assert_int_equal(sscanf(fixture->http.url, "tcp://127.0.0.1:%u", &port), 1);
    for (int waited = 0; fd < 0 && waited < TIMEOUT_MS; waited += 10) {
        fd = tcp_connect((int)port);
        sleep_ms(10);
    }
    assert_true(fd >= 0);
    close(fd);
}

/* V6, V4: the log is on a full disk. */
TEST(lost_log_lines_are_counted) {
    struct fixture fixture = {.server = {process_new(), ""}};
    struct process *process = fixture.server.process;
    char http[32], url[96];
    int port = port_free();
    snprintf(process->err, sizeof process->err, "/dev/full");
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    snprintf(url, sizeof url, "ipc://%s", process->socket);
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://%s", http);
    file_write(process->config, CONFIG("100", ""));
    const char *const arguments[] = {"--config", process->config, "--listen", url, "--http", http,
                                     NULL};
    process_start(process, arguments, NULL);
    http_await(&fixture);
    metric_await(&fixture, "doorman_server_log_lines_lost_total", 1);
    double lost = metric(&fixture, "doorman_server_log_lines_lost_total");
    process_signal(process, SIGHUP);
    metric_await(&fixture, "doorman_server_log_lines_lost_total", lost + 1);
    server_stop(&fixture.server);
}

/* ---- log ------------------------------------------------------------------------------------ */

/* V6: the log line has the address of the peer, over nng and over HTTP. */
TEST(a_refused_message_is_logged_with_its_peer) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    char line[160];
    send_and_free(&fixture, GET(",\"wants\":-1"));
    process_await(fixture.server.process,
                  "method=get_capacity code=INVALID_ARGUMENT field=resource[0].wants error=", 1);
    assert_int_equal(process_logged(fixture.server.process, " count=1 peer=127.0.0.1:"), 1);
    int fd = raw_connect(&fixture.http);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &bytes), 0);
    static const char request[] = "POST /v1/discovery HTTP/1.1\r\n" HOST JSON
                                  "Content-Length: 1\r\nConnection: close\r\n\r\n7";
    assert_true(raw_send(fd, request, strlen(request)));
    free(drain(fd));
    snprintf(line, sizeof line,
             " count=1 peer=127.0.0.1:%d method=discovery code=INVALID_ARGUMENT error=\"must be an "
             "object\"\n",
             ntohs(own.sin_port));
    process_await(fixture.server.process, line, 1);
    server_stop(&fixture.server);
}

/* V6: the log level info has no lines for requests. */
TEST(debug_logs_each_request) {
    static const char *const levels[] = {"info", "debug"};
    for (int i = 0; i < 2; i++) {
        struct fixture fixture =
            fixture_start(CONFIG("100", ""), (const char *[]){"--log-level", levels[i], NULL});
        send_and_free(&fixture, GET(",\"wants\":1"));
        send_and_free(&fixture, "{\"discovery\":{}}");
        server_stop(&fixture.server);
        const struct process *process = fixture.server.process;
        assert_int_equal(process_logged(process, "level=debug msg=request peer=127.0.0.1:"), 2 * i);
        assert_int_equal(process_logged(process, " method=get_capacity items=1 code=OK "), i);
        assert_int_equal(process_logged(process, " method=discovery items=0 code=OK "), i);
    }
}

/* V6: the peer of a message over IPC is a process. */
TEST(a_peer_over_ipc_is_logged_as_a_process) {
    struct process *process = process_new();
    char url[96], line[64];
    snprintf(url, sizeof url, "ipc://%s", process->socket);
    const char *const arguments[] = {"--config", process->config, "--listen", url, NULL};
    file_write(process->config, CONFIG("100", ""));
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    char *reply = send_bytes(url, "rubbish", 7);
    assert_non_null(reply);
    free(reply);
    snprintf(line, sizeof line, " peer=ipc:pid:%d method=unknown ", (int)getpid());
    process_await(process, line, 1);
    process_signal(process, SIGTERM);
    process_end(process, 0);
}

#define TEMPLATE(glob, capacity) "{\"identifier_glob\":\"" glob "\",\"capacity\":" capacity "}"

/* V1. */
TEST(the_log_says_what_a_new_configuration_changes) {
    struct fixture fixture = fixture_start(
        "{\"resources\":[" TEMPLATE("a", "1") "," TEMPLATE("b", "1") "," TEMPLATE("c", "1") "]}",
        NULL);
    const struct process *process = fixture.server.process;
    config_replace(
        process,
        "{\"resources\":[" TEMPLATE("a", "2") "," TEMPLATE("c", "1") "," TEMPLATE(
            "d", "1") "," TEMPLATE("e", "1") "," TEMPLATE("f", "1") "," TEMPLATE("g", "1") "]}");
    process_signal(process, SIGHUP);
    process_await(process, " added=\"d, e, f and 1 more\" removed=b changed=a\n", 1);
    server_stop(&fixture.server);
}

#define RELOAD_METRIC "doorman_server_last_reload_successful{what=\"config\"}"

/* V1. What was loaded stays in force, but a restart would fail. */
TEST(a_deleted_configuration_is_shown) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    struct process *process = fixture.server.process;
    assert_true(metric(&fixture, RELOAD_METRIC) == 1);
    assert_int_equal(unlink(process->config), 0);
    process_await(process, "the configuration file is missing", 1);
    assert_true(metric(&fixture, RELOAD_METRIC) == 0);
    assert_true(metric(&fixture, "doorman_server_config_last_reload_successful") == 0);
    char *page = get(&fixture, "/", HOST);
    assert_non_null(strstr(page, "configuration file cannot be read"));
    free(page);
    file_write(process->config, CONFIG("100", ""));
    process_await(process, "configuration loaded", 1);
    assert_true(metric(&fixture, RELOAD_METRIC) == 1);
    assert_true(metric(&fixture, "doorman_server_config_last_reload_successful") == 1);
    server_stop(&fixture.server);
}

/* G9. The corrected configuration has no warnings. */
TEST(warnings_about_the_configuration_are_shown) {
    struct fixture fixture = fixture_start("{\"resources\":[" TEMPLATE("a[", "1") "]}", NULL);
    struct process *process = fixture.server.process;
    assert_true(metric(&fixture, "doorman_server_config_warnings") == 1);
    char *page = get(&fixture, "/", HOST);
    assert_non_null(strstr(page, "identifier_glob: a [ has no ]"));
    free(page);
    config_replace(process, "{\"resources\":[" TEMPLATE("a", "1") "]}");
    process_signal(process, SIGHUP);
    process_await(process, "configuration loaded", 1);
    assert_true(metric(&fixture, "doorman_server_config_warnings") == 0);
    server_stop(&fixture.server);
}

/* S4. */
TEST(the_log_says_how_long_learning_lasts) {
    struct fixture fixture = fixture_start(
        "{\"resources\":[{\"identifier_glob\":\"static\",\"capacity\":1,\"algorithm\":{\"kind\":"
        "\"STATIC\"}},{\"identifier_glob\":\"*\",\"capacity\":1,\"algorithm\":{\"kind\":"
        "\"FAIR_SHARE\",\"lease_length\":60,\"refresh_interval\":5,\"learning_mode_duration\":10}}]"
        "}",
        NULL);
    const struct process *process = fixture.server.process;
    process_await(process,
                  "level=info msg=\"learning starts: until the leases of the last master have "
                  "ended, holders keep what they have, and get no more\" seconds=",
                  1);
    process_await(process, "level=info msg=\"learning has ended\" seconds=", 1);
    server_stop(&fixture.server);
    fixture = fixture_start(CONFIG("100", ""), NULL);
    server_stop(&fixture.server);
    assert_int_equal(process_logged(fixture.server.process, "learning starts"), 0);
}

/* ---- elections ------------------------------------------------------------------------------ */

#define KEY "doorman/test"
#define TTL "10"
#define IS_MASTER "msg=\"this server is the master\""
#define IS_NO_LONGER_MASTER "level=warning msg=\"this server is no longer the master\" key=" KEY " "

static struct fixture elector_start(const struct etcd *etcd) {
    const char *const more[] = {"--etcd", etcd->url, "--election-key", KEY, "--election-ttl",
                                TTL,      NULL};
    return fixture_start(CONFIG("100", ""), more);
}

/* V2, V6: an operator deletes the election key. The server wins the next election. */
TEST(a_master_whose_key_is_deleted_says_so) {
    static struct etcd etcd;
    etcd_require(&etcd);
    struct fixture fixture = elector_start(&etcd);
    process_await(fixture.server.process, IS_MASTER, 1);
    assert_true(metric(&fixture, "doorman_server_master_changes_total{to=\"self\"}") == 1);
    etcd_control(&etcd, (const char *[]){"del", KEY, NULL});
    process_await(fixture.server.process,
                  IS_NO_LONGER_MASTER
                  "reason=\"the election key is gone, or its etcd lease has ended\"\n",
                  1);
    process_await(fixture.server.process, IS_MASTER, 2);
    assert_true(metric(&fixture, "doorman_server_master_changes_total{to=\"self\"}") >= 2);
    assert_true(metric(&fixture, "doorman_server_master_changes_total{to=\"none\"}") >= 1);
    assert_true(metric(&fixture, "doorman_server_master_changes_total{to=\"other\"}") == 0);
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* V2, V6. A master that is stopped resigns, and logs no warning that it has lost the mastership. */
TEST(a_change_of_master_is_counted_by_both_servers) {
    static struct etcd etcd;
    etcd_require(&etcd);
    struct fixture one = elector_start(&etcd);
    process_await(one.server.process, IS_MASTER, 1);
    struct fixture other = elector_start(&etcd);
    metric_await(&other, "doorman_server_master_changes_total{to=\"other\"}", 1);
    server_stop(&one.server);
    assert_int_equal(process_logged(one.server.process, "no longer the master"), 0);
    metric_await(&other, "doorman_server_master_changes_total{to=\"self\"}", 1);
    server_stop(&other.server);
    etcd_stop(&etcd);
}

/* V2, V6: the log line names the member of etcd and its error. */
TEST(a_master_without_etcd_says_so) {
    static struct etcd etcd;
    etcd_require(&etcd);
    struct fixture fixture = elector_start(&etcd);
    char series[160], line[320];
    snprintf(series, sizeof series, "doorman_server_etcd_errors_total{member=\"%s\"}", etcd.url);
    process_await(fixture.server.process, IS_MASTER, 1);
    assert_true(metric_or_none(&fixture, series) >= 0);
    etcd_stop(&etcd);
    metric_await(&fixture, series, 1);
    snprintf(line, sizeof line,
             IS_NO_LONGER_MASTER "reason=\"etcd did not answer in time\" error=\"%s: ", etcd.url);
    process_await(fixture.server.process, line, 1);
    assert_true(metric(&fixture, "doorman_server_is_master") == 0);
    server_stop(&fixture.server);
}

/* V4. */
TEST(a_server_without_an_election_has_no_metrics_of_one) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char *response = get(&fixture, "/metrics", HOST);
    assert_null(strstr(response, "master_changes"));
    assert_null(strstr(response, "etcd_errors"));
    free(response);
    server_stop(&fixture.server);
}
