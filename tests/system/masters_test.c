/* How a client over HTTP finds the master of a node (V3). Some tests need an election, so they are
 * skipped if etcd is not installed. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define KEY "doorman/masters"
#define REQUEST CAPACITY_REQUEST("a", "db", "5")
#define MEMBERS 2

/* Writes the HTTP address of a fixture, as a client sees it. */
static void address_of(const struct fixture *fixture, char address[160]) {
    snprintf(address, 160, "http%s", strchr(fixture->http.url, ':'));
}

/* Asks a process over HTTP which process is master. Returns the response, which the caller
 * deletes. */
static cJSON *discover(const struct fixture *fixture) {
    char *response = post(fixture, "/v1/discovery", HOST JSON, "{}");
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_int_equal(code_of(response), 200);
    assert_non_null(tree);
    free(response);
    return tree;
}

/* Fails unless a process says that this is the HTTP address of the master.
 *   expected   NULL: it says none */
static void expect_address(const struct fixture *fixture, const char *expected) {
    cJSON *tree = discover(fixture);
    const cJSON *address = find(tree, "mastership.http_address");
    if (!expected) assert_null(address);
    if (expected) assert_string_equal(text(tree, "mastership.http_address"), expected);
    cJSON_Delete(tree);
}

/* ---- the default of --http-advertise -------------------------------------------------------- */

struct advertised {
    const char *expected; /* "PORT" stands for the port of HTTP; NULL: none */
    const char *flags[8];
};

/* Copies a text, with the real port of HTTP in place of "PORT". */
static void put_port(const char *expected, const struct fixture *fixture, char out[160]) {
    const char *at = strstr(expected, "PORT");
    size_t bytes = at ? (size_t)(at - expected) : strlen(expected);
    snprintf(out, 160, "%.*s%s", (int)bytes, expected,
             at ? strrchr(fixture->http.url, ':') + 1 : "");
}

static void try_advertised(const struct advertised *row, const char *token) {
    struct process *process = process_new();
    const char *arguments[ARGUMENT_MAX] = {"--config", process->config, "--http-token",
                                           process->socket};
    struct fixture fixture = {.http = {process, ""}, .server = {process, ""}};
    char expected[160] = "";
    unsigned port = 0;
    for (size_t i = 0; row->flags[i]; i++) arguments[4 + i] = row->flags[i];
    file_write(process->config, CONFIG("100", ""));
    file_write(process->socket, token);
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    char *log_text = file_read(process->err);
    const char *at = strstr(log_text, " http=http://");
    assert_non_null(at);
    assert_int_equal(sscanf(strrchr(strndupa(at, strcspn(at + 1, " ") + 1), ':'), ":%u", &port), 1);
    free(log_text);
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%u", port);
    char *response =
        post(&fixture, "/v1/discovery", HOST JSON "Authorization: Bearer secret\r\n", "{}");
    assert_int_equal(code_of(response), 200);
    cJSON *tree = cJSON_Parse(body_of(response));
    const cJSON *address = find(tree, "mastership.http_address");
    if (row->expected) put_port(row->expected, &fixture, expected);
    print_message("%s: %s\n", row->flags[1], address ? address->valuestring : "none");
    if (address ? strcmp(address->valuestring, expected) != 0 : row->expected != NULL) {
        fail_msg("expected %s", row->expected ? expected : "none");
    }
    cJSON_Delete(tree);
    free(response);
    server_stop(&fixture.server);
}

TEST(the_http_address_of_the_master_is_one_that_others_can_reach) {
    static const struct advertised rows[] = {
        {"http://127.0.0.1:PORT", {"--http", "127.0.0.1:0", "--listen", "tcp://127.0.0.1:0"}},
        {"http://127.0.0.1:PORT", {"--http", "0.0.0.0:0", "--listen", "tcp://127.0.0.1:0"}},
        {"http://10.9.8.7:PORT",
         {"--http", "0.0.0.0:0", "--listen", "tcp://127.0.0.1:0", "--advertise",
          "tls+tcp://10.9.8.7:15000"}},
        {NULL,
         {"--http", "127.0.0.1:0", "--listen", "tcp://127.0.0.1:0", "--advertise",
          "tcp://10.9.8.7:15000"}},
        {NULL, {"--http", "0.0.0.0:0", "--listen", "tcp://0.0.0.0:0"}},
        {NULL, {"--http", "0.0.0.0:0", "--listen", "inproc://here"}},
        {"http://127.0.0.1:PORT", {"--http", "127.0.0.1:0", "--listen", "inproc://here"}},
        {"https://proxy.example:8443",
         {"--http", "127.0.0.1:0", "--listen", "inproc://here", "--http-advertise",
          "https://proxy.example:8443"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        try_advertised(&rows[i], "secret");
        process_remove_last();
    }
}

TEST(a_wrong_http_advertise_is_a_usage_error) {
    static const char *const addresses[] = {
        "10.0.0.1:15050",       "tcp://10.0.0.1:15050",      "http://",
        "http://:15050",        "http://0.0.0.0:15050",      "http://[::]:15050",
        "http://10.0.0.1/path", "http://10.0.0.1\r\nSet: x", "http://user@10.0.0.1"};
    struct process *process = process_new();
    file_write(process->config, CONFIG("100", ""));
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        const char *const arguments[] = {"--config",          process->config, "--listen",
                                         "tcp://127.0.0.1:0", "--http",        "127.0.0.1:0",
                                         "--http-advertise",  addresses[i],    NULL};
        assert_int_equal(process_run(process, arguments, NULL), 2);
        assert_int_equal(process_logged(process, "not an address that others can reach"), 1);
    }
}

/* A request that was redirected has the advertised name as its Host. */
TEST(the_advertised_name_is_a_known_host) {
    const char *const more[] = {"--http-advertise", "http://doorman.example:8080", NULL};
    struct fixture fixture = fixture_start(CONFIG("100", ""), more);
    expect_post(&fixture, "/v1/get_capacity", "Host: Doorman.example:8080\r\n" JSON, REQUEST, 200,
                "\"gets\"");
    expect_post(&fixture, "/v1/get_capacity", "Host: other.example:8080\r\n" JSON, REQUEST, 403,
                "--http-advertise");
    server_stop(&fixture.server);
}

/* ---- one process ---------------------------------------------------------------------------- */

TEST(a_master_answers_and_is_ready_as_the_master) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char address[160];
    address_of(&fixture, address);
    expect_address(&fixture, address);
    expect(&fixture, "/readyz?master=1", HOST, 200, "ready");
    expect_post(&fixture, "/v1/get_capacity?redirect=1", HOST JSON, REQUEST, 200, "\"gets\"");
    server_stop(&fixture.server);
}

TEST(a_standby_without_a_known_master_does_not_redirect) {
    const char *const more[] = {"--etcd", "http://127.0.0.1:1", "--election-key", KEY, NULL};
    struct fixture fixture = fixture_start(CONFIG("100", ""), more);
    expect_address(&fixture, NULL);
    expect(&fixture, "/readyz?master=1", HOST, 503, "the master is not known");
    expect_post(&fixture, "/v1/get_capacity?redirect=1", HOST JSON, REQUEST, 200,
                "{\"mastership\":{}}");
    expect_post(&fixture, "/v1/get_capacity?redirect=1", HOST JSON, "{}", 400, "INVALID_ARGUMENT");
    server_stop(&fixture.server);
}

/* ---- a node of two processes ---------------------------------------------------------------- */

/* Starts a process of the node. With a short TTL it soon learns of a new master, because it asks
 * etcd every fifth of the TTL. With a long TTL a master stays master on a busy machine. */
static struct fixture member_start(const struct etcd *etcd, const char *ttl) {
    const char *const more[] = {"--etcd", etcd->url, "--election-key", KEY, "--election-ttl",
                                ttl,      NULL};
    return fixture_start(CONFIG("100", ""), more);
}

static void await_code(const struct fixture *fixture, const char *path, int code) {
    int got = 0;
    for (int waited = 0; waited < TIMEOUT_MS && got != code; waited += 50) {
        char *response = get(fixture, path, HOST);
        got = code_of(response);
        free(response);
        if (got != code) sleep_ms(50);
    }
    assert_int_equal(got, code);
}

/* Waits until one process is master and the other process knows this. Returns the master's
 * index. */
static int await_master(const struct fixture members[MEMBERS]) {
    int master = -1;
    for (int waited = 0; waited < TIMEOUT_MS && master < 0; waited += 50) {
        for (int i = 0; i < MEMBERS && master < 0; i++) {
            char *response = get(&members[i], "/readyz?master=1", HOST);
            if (code_of(response) == 200) master = i;
            free(response);
        }
        if (master < 0) sleep_ms(50);
    }
    assert_true(master >= 0);
    await_code(&members[1 - master], "/readyz", 200);
    return master;
}

/* Fails unless the response of a standby to a POST has the status 307, and this line in its
 * head. */
static void expect_redirect(const struct fixture *standby, const char *path, const char *line) {
    char *response = post(standby, path, HOST JSON, REQUEST);
    if (code_of(response) != 307 || !strstr(response, line)) {
        fail_msg("%s: no redirect to %s:\n%s", path, line, response);
    }
    assert_non_null(strstr(body_of(response), "{\"mastership\":{\"master_address\":"));
    free(response);
}

/* Fails unless a standby redirects /v1/allow with redirect=1 to the master. Without redirect=1 it
 * must answer 503. */
static void expect_allow_redirect(const struct fixture *standby, const char *address) {
    char line[256];
    snprintf(line, sizeof line, "\r\nLocation: %s/v1/allow?resource=db&key=a&redirect=1\r\n",
             address);
    char *response = get(standby, "/v1/allow?resource=db&key=a&redirect=1", HOST);
    if (code_of(response) != 307 || !strstr(response, line)) {
        fail_msg("no redirect to %s:\n%s", line, response);
    }
    free(response);
    expect(standby, "/v1/allow?resource=db&key=a", HOST, 503, "");
}

TEST(a_standby_sends_clients_to_the_master) {
    static struct etcd etcd;
    char address[160], line[256];
    etcd_require(&etcd);
    struct fixture members[MEMBERS] = {member_start(&etcd, "20"), member_start(&etcd, "20")};
    int master = await_master(members);
    const struct fixture *standby = &members[1 - master];
    address_of(&members[master], address);
    expect_address(standby, address);
    expect_address(&members[master], address);
    expect(standby, "/readyz?master=1", HOST, 503, "another process is the master");
    expect(standby, "/readyz?master=0", HOST, 200, "ready");
    expect_post(standby, "/v1/get_capacity", HOST JSON, REQUEST, 200, address);
    snprintf(line, sizeof line, "\"master_http_address\":\"%s\"", address);
    expect(standby, "/v1/status", HOST, 200, line);
    snprintf(line, sizeof line, "another: <a href=\"%s/\">", address);
    expect(standby, "/", HOST, 200, line);
    expect(standby, "/", HOST, 200, "<span id=live class=warn>not the master</span>");
    snprintf(line, sizeof line, "\r\nLocation: %s/v1/get_capacity?redirect=1\r\n", address);
    expect_redirect(standby, "/v1/get_capacity?x=%0d%0aSet-Cookie:&redirect=1&y", line);
    expect_post(standby, "/v1/get_capacity?redirect=1", HOST JSON, "{}", 400, "INVALID_ARGUMENT");
    expect_allow_redirect(standby, address);
    cJSON *over_nng = send_request(&standby->server, "{\"discovery\":{}}");
    assert_string_equal(text(over_nng, "discovery.mastership.master_address"),
                        members[master].server.url);
    assert_null(find(over_nng, "discovery.mastership.http_address"));
    cJSON_Delete(over_nng);
    server_stop(&members[master].server);
    await_code(standby, "/readyz?master=1", 200);
    address_of(standby, address);
    expect_address(standby, address);
    server_stop(&members[1 - master].server);
}

/* Writes the election key as a master of another version would, and waits until a process has read
 * it. */
static void put_key(const struct etcd *etcd, const struct fixture *standby, const char *value,
                    const char *address) {
    bool known = false;
    etcd_put(etcd, KEY, value);
    for (int waited = 0; waited < TIMEOUT_MS && !known; waited += 50) {
        cJSON *tree = discover(standby);
        const cJSON *found = find(tree, "mastership.master_address");
        known = address ? found && strcmp(found->valuestring, address) == 0 : !found;
        cJSON_Delete(tree);
        if (!known) sleep_ms(50);
    }
    assert_true(known);
}

/* The second line of the election key is the HTTP address. Earlier versions wrote only the first
 * line. */
TEST(the_key_of_another_version_is_understood) {
    static struct etcd etcd;
    etcd_require(&etcd);
    etcd_put(&etcd, KEY, "tcp://first:1");
    struct fixture standby = member_start(&etcd, "2");
    put_key(&etcd, &standby, "tcp://first:1", "tcp://first:1");
    expect_address(&standby, NULL);
    expect_post(&standby, "/v1/get_capacity?redirect=1", HOST JSON, REQUEST, 200, "tcp://first:1");
    put_key(&etcd, &standby, "tcp://second:1\nhttp://second:2", "tcp://second:1");
    expect_address(&standby, "http://second:2");
    put_key(&etcd, &standby, "tcp://third:1\nhttp://third:2\nmore", "tcp://third:1");
    expect_address(&standby, "http://third:2");
    put_key(&etcd, &standby, "tcp://fourth:1\njavascript:alert()", "tcp://fourth:1");
    expect_address(&standby, NULL);
    put_key(&etcd, &standby, "\nhttp://fifth:2", NULL);
    expect_address(&standby, NULL);
    server_stop(&standby.server);
}
