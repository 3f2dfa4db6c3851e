/* Permits over HTTP: decisions for gateways and scripts (/v1/allow). Time is real here. So limits
 * whose units must not come back have a rate of about one unit in a day. */
#define _GNU_SOURCE
#include "http.h"

#include <poll.h>

#define DAILY "\"rate\": 0.00001"
#define LIMIT(name, kind, more) "{\"name\": \"" name "\", \"kind\": \"" kind "\", " more "}"
#define TEMPLATE(glob, limits) "{\"identifier_glob\": \"" glob "\", \"limits\": [" limits "]}"
#define PER_USER LIMIT("per-user", "TOKEN_BUCKET", DAILY ", \"size\": 2")
#define ALL                                                                                        \
    LIMIT("all", "FIXED_WINDOW", "\"per\": \"resource\", \"limit\": 1000, \"window\": 100000000")
#define SLOW LIMIT("debt", "TOKEN_BUCKET", "\"rate\": 1, \"size\": 0, \"max_debt\": 60")
#define SOON LIMIT("debt", "TOKEN_BUCKET", "\"rate\": 2, \"size\": 0, \"max_debt\": 60")
#define ODD LIMIT("\\u00e9\\\"", "TOKEN_BUCKET", "\"rate\": 1e8, \"size\": 1e15")
#define SOFT LIMIT("hidden", "TOKEN_BUCKET", DAILY ", \"size\": 1, \"shadow\": true")
#define LOGIN TEMPLATE("login", PER_USER ", " ALL)
#define OTHERS TEMPLATE("slow", SLOW) "," TEMPLATE("soon", SOON) "," TEMPLATE("odd", ODD)
#define ONE LIMIT("one", "TOKEN_BUCKET", DAILY ", \"size\": 1")
#define OPEN TEMPLATE("soft", SOFT) "," TEMPLATE("free", "")
#define PERMITS "{\"unmatched\": \"reject\", \"resources\": [" LOGIN "," OTHERS "," OPEN "]}"

static struct fixture start(const char *const *more) { return fixture_start(PERMITS, more); }

/* Fails unless the response of a GET has this status code, all these texts, and Cache-Control:
 * no-store. */
static void expect_all(const struct fixture *fixture, const char *path, int code,
                       const char *const *texts) {
    char *response = get(fixture, path, HOST);
    assert_non_null(strstr(response, "\r\nCache-Control: no-store\r\n"));
    if (code_of(response) != code) fail_msg("%s: expected %d, got\n%s", path, code, response);
    for (size_t i = 0; texts[i]; i++) {
        if (!strstr(response, texts[i])) fail_msg("%s: no '%s' in\n%s", path, texts[i], response);
    }
    free(response);
}

/* P4: the status of a grant is 200. The status of a refusal is 429, or 403 if the query says so.
 * Both responses say how much is left. */
TEST(the_status_is_the_decision) {
    struct fixture fixture = start(NULL);
    expect_all(
        &fixture, "/v1/allow?resource=login&key=ann", 200,
        (const char *[]){
            "\r\nRateLimit-Policy: \"per-user\";q=2;w=200000, \"all\";q=1000;w=100000000\r\n",
            "\r\nRateLimit: \"per-user\";r=1;t=100000, \"all\";r=999;t=",
            "\r\nX-RateLimit-Limit: 2\r\nX-RateLimit-Remaining: 1\r\n"
            "X-RateLimit-Reset: 100000\r\n",
            "\r\n\r\n{\"decision\":\"GRANTED\",\"granted\":1,\"limit\":\"per-user\",", NULL});
    expect(&fixture, "/v1/allow?resource=login&key=ann", HOST, 200, "r=0;t=");
    expect_all(
        &fixture, "/v1/allow?resource=login&key=ann", 429,
        (const char *[]){"HTTP/1.1 429 Too Many Requests\r\n", "\r\nRateLimit: \"per-user\";r=0;t=",
                         "\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: ", "\r\nRetry-After: ",
                         "{\"decision\":\"REFUSED\",\"reason\":\"RATE\",\"limit\":"
                         "\"per-user\"",
                         "\"retry_after\":", NULL});
    expect(&fixture, "/v1/allow?key=ann&refuse=403&resource=login", HOST, 403, "\r\nRetry-After: ");
    expect(&fixture, "/v1/allow?resource=login&key=bob", HOST, 200, "GRANTED");
    const char *series = "doorman_server_requests_total{method=\"acquire\",code=\"OK\"}";
    assert_int_equal((int)metric(&fixture, series), 5);
    server_stop(&fixture.server);
}

/* A template may set the body of its refusals. A body that looks like JSON has the content type of
 * JSON. */
TEST(a_refusal_has_the_body_of_its_template) {
    struct fixture fixture = fixture_start(
        "{\"resources\": ["
        "{\"identifier_glob\": \"text\", \"refused_body\": \"<wait>\\n\", \"limits\": [" ONE "]},"
        "{\"identifier_glob\": \"json\", \"refused_body\": \"[1]\", \"limits\": [" ONE "]}]}",
        NULL);
    for (int i = 0; i < 2; i++) {
        bool is_text = i == 0;
        const char *path = is_text ? "/v1/allow?resource=text" : "/v1/allow?resource=json";
        expect_all(&fixture, path, 200,
                   (const char *[]){"\r\n\r\n{\"decision\":\"GRANTED\"", NULL});
        expect_all(&fixture, path, 429,
                   (const char *[]){"\r\nRetry-After: ",
                                    is_text ? "\r\nContent-Type: text/plain; charset=utf-8\r\n"
                                            : "\r\nContent-Type: application/json\r\n",
                                    is_text ? "\r\n\r\n<wait>\n" : "\r\n\r\n[1]", NULL});
    }
    server_stop(&fixture.server);
}

/* A permit with a cost of 0 takes nothing. The refusal of a cost that the limit can never grant has
 * no Retry-After. */
TEST(the_cost_is_charged_to_the_key) {
    struct fixture fixture = start(NULL);
    expect(&fixture, "/v1/allow?resource=login&key=a%26b&cost=1.5", HOST, 200, "\"granted\":1.5");
    expect(&fixture, "/v1/allow?resource=login&key=a%26b&cost=1", HOST, 429, "\"RATE\"");
    expect(&fixture, "/v1/allow?resource=login&key=a%26b&cost=5e-1", HOST, 200, "\"granted\":0.5");
    expect(&fixture, "/v1/allow?resource=login&key=a%26b&cost=0", HOST, 200, "\"granted\":0");
    expect(&fixture, "/v1/allow?resource=login&key=a&cost=2", HOST, 200, "\"granted\":2");
    expect(&fixture, "/v1/allow?resource=login&cost=2", HOST, 200, "\"granted\":2");
    expect(&fixture, "/v1/allow?resource=login&key=&cost=1", HOST, 429, "\"RATE\"");
    char *response = get(&fixture, "/v1/allow?resource=login&key=new&cost=3", HOST);
    assert_int_equal(code_of(response), 429);
    assert_non_null(strstr(response, "\"MAX_COST\""));
    assert_null(strstr(response, "Retry-After"));
    free(response);
    server_stop(&fixture.server);
}

TEST(a_resource_without_limits_has_no_limit_headers) {
    static const struct {
        const char *path, *text;
        int code;
    } cases[] = {{"/v1/allow?resource=free", "\"GRANTED\",\"granted\":1}", 200},
                 {"/v1/allow?resource=none", "\"REFUSED\",\"reason\":\"UNMATCHED\"}", 404},
                 {"/v1/allow?resource=none&refuse=403", "\"UNMATCHED\"}", 404},
                 {"/v1/allow?resource=soft&key=a", "\"GRANTED\"", 200},
                 {"/v1/allow?resource=soft&key=a", "\"GRANTED\"", 200}};
    struct fixture fixture = start(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *response = get(&fixture, cases[i].path, HOST);
        if (code_of(response) != cases[i].code || !strstr(response, cases[i].text) ||
            strstr(response, "RateLimit")) {
            fail_msg("%s: got\n%s", cases[i].path, response);
        }
        free(response);
    }
    server_stop(&fixture.server);
}

/* RFC 9651: names are printable ASCII, and an integer has at most 15 digits. */
TEST(the_headers_are_structured_fields) {
    struct fixture fixture = start(NULL);
    expect(&fixture, "/v1/allow?resource=odd", HOST, 200,
           "\r\nRateLimit-Policy: \"%C3%A9\\\"\";q=999999999999999;w=10000000\r\n");
    server_stop(&fixture.server);
}

TEST(an_error_names_the_wrong_parameter) {
    static const char *const cases[][2] = {
        {"", "resource: is required"},
        {"key=a", "resource: is required"},
        {"resource=", "resource: must be 1 to 256 bytes"},
        {"resource=a%0ab", "resource: must be 1 to 256 bytes"},
        {"resource=login&key=%ff", "key: must be 0 to 256 bytes"},
        {"resource=login&key=a%00b", "key: must not contain a 0 byte"},
        {"resource=login&cost=", "cost: must be a number"},
        {"resource=login&cost=-1", "cost: must be a number"},
        {"resource=login&cost=0x1", "cost: must be a number"},
        {"resource=login&cost=inf", "cost: must be a number"},
        {"resource=login&cost=1e16", "cost: must be a number"},
        {"resource=login&max_wait=25.1", "max_wait: must be a number from 0 to 25"},
        {"resource=login&refuse=500", "refuse: must be 403 or 429"},
        {"resource=login&redirect=2", "redirect: must be 0 or 1"},
        {"resource=login&key=a&key=b", "key: occurs twice"},
        {"resource=login&cost=1&cost=0", "cost: occurs twice"},
        {"resource=login&kye=a", "kye: is no parameter; the parameters are resource, key, "},
        {"resource=login&keys=a", "keys: is no parameter"},
        {"resource=login&ke=a", "ke: is no parameter"},
        {"resource=login&key", "key: is no parameter"},
        {"resource=login&=a", ": is no parameter"},
    };
    struct fixture fixture = start(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        snprintf(path, sizeof path, "/v1/allow?%s", cases[i][0]);
        expect(&fixture, path, HOST, 400, cases[i][1]);
    }
    char path[600];
    snprintf(path, sizeof path, "/v1/allow?resource=login&key=%0256d", 1);
    expect(&fixture, path, HOST, 200, "GRANTED");
    snprintf(path, sizeof path, "/v1/allow?resource=login&key=%0257d", 1);
    expect(&fixture, path, HOST, 400, "key: must be 0 to 256 bytes");
    expect(&fixture, "/v1/allow?resource=login&&key=z&", HOST, 200, "GRANTED");
    process_await(fixture.server.process, "method=acquire", 1); /* an operator sees the mistake */
    server_stop(&fixture.server);
}

/* GET, HEAD and POST do the same. A POST needs no body, and its body has no meaning. */
TEST(all_verbs_that_gateways_use_are_the_same) {
    struct fixture fixture = start(NULL);
    char *response = exchange(&fixture, "HEAD /v1/allow?resource=login&key=a HTTP/1.1\r\n" HOST
                                        "Connection: close\r\n\r\n");
    assert_int_equal(code_of(response), 200);
    assert_string_equal(body_of(response), "");
    assert_non_null(strstr(response, "X-RateLimit-Remaining: 1\r\n"));
    free(response);
    response = exchange(&fixture, "POST /v1/allow?resource=login&key=a HTTP/1.1\r\n" HOST
                                  "Connection: close\r\n\r\n");
    assert_int_equal(code_of(response), 200);
    assert_non_null(strstr(response, "X-RateLimit-Remaining: 0\r\n"));
    free(response);
    expect_post(&fixture, "/v1/allow?resource=login&key=a", HOST, "a=b", 429, "\"RATE\"");
    response = exchange(&fixture, "PUT /v1/allow?resource=login HTTP/1.1\r\n" HOST
                                  "Content-Length: 0\r\nConnection: close\r\n\r\n");
    assert_int_equal(code_of(response), 405);
    assert_non_null(strstr(response, "\r\nAllow: GET, HEAD, POST\r\n"));
    free(response);
    server_stop(&fixture.server);
}

/* A web page must not use up the units of a key with requests that a reader's browser sends. */
TEST(a_web_page_cannot_charge_a_key) {
    static const char *const refused[] = {HOST "Origin: http://localhost\r\n",
                                          HOST "Origin: null\r\n",
                                          HOST "Origin:\r\n",
                                          HOST "Sec-Fetch-Site: cross-site\r\n",
                                          HOST "Sec-Fetch-Site: same-site\r\n",
                                          HOST "sec-fetch-site: none\r\nSec-Fetch-Site: none\r\n",
                                          "Host: attacker.example\r\n"};
    const char *path = "/v1/allow?resource=login&key=a&cost=2";
    struct fixture fixture = start(NULL);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        expect(&fixture, path, refused[i], 403, "PERMISSION_DENIED");
    }
    expect(&fixture, path, HOST "Sec-Fetch-Site: none\r\n", 200, "GRANTED"); /* typed by a user */
    expect(&fixture, path, HOST "Sec-Fetch-Site: same-origin\r\n", 429, "REFUSED");
    server_stop(&fixture.server);
}

/* A GET takes units too, so it needs a token with more than the role read. */
TEST(a_token_needs_the_role_write) {
    struct process *files = process_new();
    file_write(files->config, "read r r-1\nwrite w w-1\n");
    struct fixture fixture = start((const char *[]){"--http-token", files->config, NULL});
    const char *path = "/v1/allow?resource=login&key=a";
    expect(&fixture, path, HOST, 401, "UNAUTHENTICATED");
    expect(&fixture, path, HOST "Authorization: Bearer r-1\r\n", 403,
           "needs a token with the role");
    expect(&fixture, path, HOST "Authorization: Bearer w-1\r\n", 200, "GRANTED");
    expect(&fixture, path, "Host: other\r\nAuthorization: Bearer w-1\r\n", 403, "Host is unknown");
    server_stop(&fixture.server);
}

TEST(a_process_that_is_not_the_master_decides_nothing) {
    const char *const more[] = {"--etcd", "http://127.0.0.1:1", "--election-key", "k", NULL};
    struct fixture fixture = start(more);
    expect(&fixture, "/v1/allow?resource=login", HOST, 503, "\r\nRetry-After: 1\r\n");
    expect(&fixture, "/v1/allow?resource=login&redirect=1", HOST, 503, "not the master");
    server_stop(&fixture.server);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static int send_get(const struct fixture *fixture, const char *path) {
    char request[512];
    int fd = raw_connect(&fixture->http);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n" HOST "\r\n", path);
    assert_true(raw_send(fd, request, strlen(request)));
    return fd;
}

/* Receives bytes until a text has come `count` times. */
static void await_text(int fd, const char *text, int count) {
    char received[16384] = "";
    size_t bytes = 0;
    for (int found = 0; found < count;) {
        ssize_t got = recv(fd, received + bytes, sizeof received - bytes - 1, 0);
        if (got <= 0) fail_msg("no '%s' in\n%s", text, received);
        bytes += (size_t)got;
        received[bytes] = 0;
        found = 0;
        for (const char *at = received; (at = strstr(at, text)) != NULL; at++) found++;
    }
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits until this number of connections wait. Returns false if this takes too long. */
static bool are_delayed(const struct fixture *fixture, int count, double end_s) {
    int delayed = -1;
    while (delayed != count && now_s() < end_s) {
        delayed = (int)metric(fixture, "doorman_server_http_connections_delayed");
        if (delayed != count) sleep_ms(10);
    }
    return delayed == count;
}

static void await_delayed(const struct fixture *fixture, int count) {
    assert_true(are_delayed(fixture, count, now_s() + TIMEOUT_MS / 1000));
}

/* P3: the response comes when the wait is over. The next request may have arrived meanwhile. */
TEST(a_grant_that_waits_answers_after_the_wait) {
    struct fixture fixture = start(NULL);
    double start_s = now_s();
    expect(&fixture, "/v1/allow?resource=soon&key=a&cost=4", HOST, 200, "\"granted\":4,\"limit\"");
    int fd = send_get(&fixture, "/v1/allow?resource=soon&key=a&max_wait=25");
    const char *next = "GET /healthz HTTP/1.1\r\n" HOST "\r\n";
    assert_true(raw_send(fd, next, strlen(next)));
    await_text(fd, "HTTP/1.1 200 OK", 2);
    assert_true(now_s() - start_s >= 1.99);
    close(fd);
    expect(&fixture, "/v1/allow?resource=soon&key=a&max_wait=25", HOST, 200, "GRANTED");
    server_stop(&fixture.server);
}

/* Opens as many connections as can wait, and checks what happens to one more connection. Returns
 * false if the machine is too slow: the connections wait for only about 24 s, and the checks must
 * be done by then. */
static bool connections_wait(void) {
    enum { MAX = 64 };
    const char *path = "/v1/allow?resource=slow&key=a&cost=0.001&max_wait=25";
    struct fixture fixture = start(NULL);
    double end_s = now_s() + 20;
    int fds[MAX];
    expect(&fixture, "/v1/allow?resource=slow&key=a&cost=24.5", HOST, 200, "GRANTED");
    for (int i = 0; i < MAX; i++) fds[i] = send_get(&fixture, path);
    bool in_time = are_delayed(&fixture, MAX, end_s);
    if (in_time) expect(&fixture, path, HOST, 429, "\r\nRetry-After: ");
    expect(&fixture, "/v1/allow?resource=login&key=a&max_wait=25", HOST, 200, "GRANTED");
    close(fds[0]);
    in_time = in_time && are_delayed(&fixture, MAX - 1, end_s);
    fds[0] = send_get(&fixture, path);
    in_time = in_time && are_delayed(&fixture, MAX, end_s);
    for (int i = 0; i < MAX; i++) close(fds[i]);
    await_delayed(&fixture, 0);
    server_stop(&fixture.server);
    return in_time;
}

/* The number of connections that wait is bounded. Beyond the bound a permit is decided as if it
 * could not wait. Connections that wait block no thread, and a client that leaves makes room. */
TEST(few_connections_wait_and_leaving_makes_room) {
    bool in_time = false;
    for (int i = 0; i < 5 && !in_time; i++) in_time = connections_wait();
    assert_true(in_time);
}

/* While a client waits, the server does not read all that the client sends, and still answers the
 * client. */
TEST(a_client_that_sends_while_it_waits_is_bounded) {
    struct fixture fixture = start(NULL);
    expect(&fixture, "/v1/allow?resource=soon&key=a&cost=4", HOST, 200, "GRANTED");
    int fd = send_get(&fixture, "/v1/allow?resource=soon&key=a&max_wait=25");
    static char bytes[1 << 16];
    memset(bytes, 'x', sizeof bytes);
    for (int i = 0; i < 2; i++) assert_true(raw_send(fd, bytes, sizeof bytes));
    await_text(fd, "GRANTED", 1);
    close(fd);
    server_stop(&fixture.server);
}

TEST(a_server_that_ends_does_not_wait_for_permits) {
    struct fixture fixture = start(NULL);
    expect(&fixture, "/v1/allow?resource=slow&key=a&cost=24.5", HOST, 200, "GRANTED");
    int fd = send_get(&fixture, "/v1/allow?resource=slow&key=a&max_wait=25");
    await_delayed(&fixture, 1);
    process_signal(fixture.server.process, SIGTERM);
    await_text(fd, "\r\n\r\n{\"error\":{\"code\":\"UNAVAILABLE\"", 1);
    server_stop(&fixture.server);
    assert_true(raw_hung_up(fd));
    close(fd);
}

/* The IETF draft of the RateLimit header: t is the time until more units are available, not until
 * all are. */
TEST(the_time_of_a_limit_is_that_of_more_units) {
    struct fixture fixture =
        fixture_start("{\"resources\": [" TEMPLATE(
                          "r", LIMIT("b", "TOKEN_BUCKET", "\"rate\": 0.001, \"size\": 100")) "]}",
                      NULL);
    expect(&fixture, "/v1/allow?resource=r&cost=50", HOST, 200,
           "\r\nRateLimit: \"b\";r=50;t=1000\r\n");
    expect(&fixture, "/v1/allow?resource=r&cost=0", HOST, 200, "X-RateLimit-Reset: 50000\r\n");
    server_stop(&fixture.server);
}

/* The header has no t, because a client that reads r=0 and t=0 would ask again at once, for
 * ever. */
TEST(a_limit_of_0_has_no_time_at_which_units_come) {
#define NONE(glob, kind) TEMPLATE(glob, LIMIT("none", kind, "\"limit\": 0, \"window\": 60"))
    struct fixture fixture =
        fixture_start("{\"resources\": [" NONE("fixed", "FIXED_WINDOW") ", " NONE(
                          "sliding", "SLIDING_WINDOW") "]}",
                      NULL);
    static const char *const paths[] = {"/v1/allow?resource=fixed",
                                        "/v1/allow?resource=fixed&cost=0",
                                        "/v1/allow?resource=sliding"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *response = get(&fixture, paths[i], HOST);
        assert_int_equal(code_of(response), i == 1 ? 200 : 429);
        assert_non_null(strstr(response, "\r\nRateLimit: \"none\";r=0\r\n"));
        assert_non_null(strstr(response, "\r\nX-RateLimit-Remaining: 0\r\n"));
        assert_null(strstr(response, "X-RateLimit-Reset"));
        free(response);
    }
    server_stop(&fixture.server);
}

/* /v1/allow takes no holds, because nobody would release them. A cost of 0 is an error too.
 * Otherwise a gateway that sends 0 by mistake would let everything pass. */
TEST(a_limit_of_concurrency_is_an_error_for_every_cost) {
    struct fixture fixture = fixture_start(
        "{\"resources\": [" TEMPLATE("jobs", LIMIT("slots", "CONCURRENCY", "\"limit\": 4")) "]}",
        NULL);
    static const char *const paths[] = {"/v1/allow?resource=jobs",
                                        "/v1/allow?resource=jobs&cost=0"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        expect(&fixture, paths[i], HOST, 400,
               "\"request_id: is needed for a limit of kind CONCURRENCY\"");
    }
    server_stop(&fixture.server);
}

#define UNMATCHED                                                                                  \
    "level=warning msg=\"a permit names a resource that no template with limits matches\""

/* P18: a permit of a misspelled resource is granted, or refused if `unmatched` says so. It is
 * counted and logged in both cases. */
TEST(a_resource_that_no_template_matches_is_counted_and_named_in_the_log) {
    static const char *const configs[] = {
        "{\"resources\": [" TEMPLATE("api", PER_USER) "]}",
        "{\"unmatched\": \"reject\", \"resources\": [" TEMPLATE("api", PER_USER) "]}"};
    for (size_t i = 0; i < 2; i++) {
        struct fixture fixture = fixture_start(configs[i], NULL);
        expect(&fixture, "/v1/allow?resource=api&key=ann", HOST, 200, "GRANTED");
        assert_int_equal((int)metric(&fixture, "doorman_permits_unmatched_total"), 0);
        for (int j = 0; j < 3; j++) {
            expect(&fixture, "/v1/allow?resource=Api&key=ann", HOST, i ? 404 : 200,
                   i ? "UNMATCHED" : "GRANTED");
        }
        assert_int_equal((int)metric(&fixture, "doorman_permits_unmatched_total"), 3);
        expect(&fixture, "/v1/limits", HOST, 200, "\"unmatched\":3,");
        process_await(fixture.server.process, UNMATCHED " count=1 resource=Api key=ann", 1);
        server_stop(&fixture.server);
    }
}

/* P19 */
TEST(a_key_in_use_that_is_forgotten_is_logged_and_max_keys_is_a_metric) {
    struct fixture fixture = fixture_start(
        "{\"resources\": [" TEMPLATE("r", LIMIT("m", "FIXED_WINDOW",
                                                "\"limit\": 4, \"window\": \"month\", "
                                                "\"max_keys\": 2")) "," TEMPLATE("free", "") "]}",
        NULL);
    expect(&fixture, "/v1/allow?resource=r&key=ann&cost=4", HOST, 200, "GRANTED");
    expect(&fixture, "/v1/allow?resource=r&key=bob&cost=2", HOST, 200, "GRANTED");
    expect(&fixture, "/v1/allow?resource=r&key=carl", HOST, 200, "GRANTED");
    expect(&fixture, "/v1/allow?resource=r&key=ann", HOST, 429, "RATE");
    process_await(fixture.server.process,
                  "level=warning msg=\"a limit has max_keys keys, so a key that was in use was "
                  "forgotten, and starts again\" count=1 limit=m resource=r key=bob used=0.5",
                  1);
    assert_true(metric(&fixture, "doorman_permits_keys{template=\"r\",limit=\"m\"}") == 2);
    assert_true(metric(&fixture, "doorman_permits_keys_max{template=\"r\",limit=\"m\"}") == 2);
    expect(&fixture, "/v1/limits", HOST, 200, "\"keys\":2,\"max_keys\":2,\"granted\":3");
    char *page = get(&fixture, "/metrics", HOST);
    assert_null(strstr(page, "doorman_permits_keys_max{template=\"free\""));
    free(page);
    server_stop(&fixture.server);
}
