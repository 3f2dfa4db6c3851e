/* Holds over HTTP: a message whose permits wait is answered when they are decided (P7). No thread
 * of the server waits for the decision. The limit has 2 units. Most tests take one of them
 * first. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define PERMITS                                                                                    \
    "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "        \
    "\"per\": \"resource\", \"kind\": \"CONCURRENCY\", \"limit\": 2, \"max_wait\": 600, "          \
    "\"queue\": 1000, \"time_to_live\": 600, \"on_restart\": \"full\"}]}]}"
#define LONG_WAIT 590.0 /* seconds; no test may take so long */
#define WAIT_MAX 64     /* connections that wait at the same time */

static struct fixture start(void) { return fixture_start(PERMITS, NULL); }

static const char *acquire_body(char body[256], const char *client, int cost, double wait) {
    snprintf(body, 256,
             "{\"client_id\": \"%s\", \"permit\": [{\"request_id\": 1, \"max_wait\": %g, "
             "\"item\": [{\"resource_id\": \"slots\", \"cost\": %d}]}]}",
             client, wait, cost);
    return body;
}

/* Acquires without a wait. The permit must be granted. */
static void acquire(const struct fixture *fixture, const char *client, int cost) {
    char body[256];
    expect_post(fixture, "/v1/acquire", HOST JSON, acquire_body(body, client, cost, 0), 200,
                "GRANTED");
}

static void release(const struct fixture *fixture, const char *client) {
    char body[256];
    snprintf(body, sizeof body, "{\"client_id\": \"%s\", \"entry\": [{\"request_id\": 1}]}",
             client);
    expect_post(fixture, "/v1/release", HOST JSON, body, 200, "\"amount\":[]");
}

/* Sends an acquire on a connection that stays open. */
static int send_acquire(const struct fixture *fixture, const char *client, int cost, double wait) {
    char body[256], request[1024];
    int fd = raw_connect(&fixture->http);
    acquire_body(body, client, cost, wait);
    snprintf(request, sizeof request,
             "POST /v1/acquire HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    assert_true(raw_send(fd, request, strlen(request)));
    return fd;
}

/* Waits until this number of connections wait. */
static void await_waiting(const struct fixture *fixture, int count) {
    for (int waited = 0;; waited += 10) {
        if ((int)metric(fixture, "doorman_server_http_connections_delayed") == count) return;
        assert_true(waited < TIMEOUT_MS);
        sleep_ms(10);
    }
}

/* Receives until all texts have come in this order. The last text is NULL. */
static void await_texts(int fd, const char *const *texts) {
    char received[16384] = "";
    size_t bytes = 0;
    for (;;) {
        const char *at = received;
        size_t found = 0;
        while (texts[found] && (at = strstr(at, texts[found])) != NULL) found++;
        if (!texts[found]) return;
        ssize_t got = recv(fd, received + bytes, sizeof received - bytes - 1, 0);
        if (got <= 0) fail_msg("no '%s' in\n%s", texts[found], received);
        bytes += (size_t)got;
        received[bytes] = 0;
    }
}

static void await_text(int fd, const char *text) {
    await_texts(fd, (const char *const[]){text, NULL});
}

TEST(a_message_waits_until_units_come_back) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    release(&fixture, "a");
    await_text(fd, "\"decision\":\"GRANTED\",\"hold\":{\"id\":");
    await_waiting(&fixture, 0);
    release(&fixture, "b");
    acquire(&fixture, "c", 2);
    close(fd);
    server_stop(&fixture.server);
}

TEST(a_message_waits_no_longer_than_it_asks_for) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, 0.05);
    await_text(fd, "\"reason\":\"TIMED_OUT\"");
    close(fd);
    server_stop(&fixture.server);
}

/* If the next request of the connection arrives during the wait, it is answered after the
 * permit. */
TEST(the_next_request_is_answered_after_the_wait) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    const char *next = "GET /healthz HTTP/1.1\r\n" HOST "\r\n";
    assert_true(raw_send(fd, next, strlen(next)));
    release(&fixture, "a");
    await_texts(fd, (const char *const[]){"\"GRANTED\"", "HTTP/1.1 200 OK", NULL});
    close(fd);
    server_stop(&fixture.server);
}

/* The permit of a peer that has left delays nobody. */
TEST(a_closed_connection_cancels_its_permit) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    close(fd);
    await_waiting(&fixture, 0);
    acquire(&fixture, "c", 1);
    server_stop(&fixture.server);
}

/* A client that gives up sends a release over another connection. */
TEST(a_release_cancels_a_permit_that_waits) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    release(&fixture, "b");
    await_text(fd, "\"reason\":\"TIMED_OUT\"");
    close(fd);
    server_stop(&fixture.server);
}

/* At most 64 connections wait. Beyond this bound a permit is decided as if it could not wait. A
 * client that leaves makes room. */
TEST(few_connections_wait) {
    struct fixture fixture = start();
    int fds[WAIT_MAX];
    char client[16], body[256];
    acquire(&fixture, "a", 1);
    for (int i = 0; i < WAIT_MAX; i++) {
        snprintf(client, sizeof client, "b%d", i);
        fds[i] = send_acquire(&fixture, client, 2, LONG_WAIT);
    }
    await_waiting(&fixture, WAIT_MAX);
    expect_post(&fixture, "/v1/acquire", HOST JSON, acquire_body(body, "c", 2, LONG_WAIT), 200,
                "\"reason\":\"CONCURRENCY\"");
    close(fds[0]);
    await_waiting(&fixture, WAIT_MAX - 1);
    fds[0] = send_acquire(&fixture, "c", 2, LONG_WAIT);
    await_waiting(&fixture, WAIT_MAX);
    for (int i = 0; i < WAIT_MAX; i++) close(fds[i]);
    await_waiting(&fixture, 0);
    acquire(&fixture, "d", 1);
    server_stop(&fixture.server);
}

/* The server stops reading from a client that sends much while its permit waits, and still
 * answers. */
TEST(a_client_that_sends_while_it_waits_is_bounded) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    static char bytes[1 << 16];
    memset(bytes, 'x', sizeof bytes);
    await_waiting(&fixture, 1);
    for (int i = 0; i < 2; i++) assert_true(raw_send(fd, bytes, sizeof bytes));
    release(&fixture, "a");
    await_text(fd, "\"GRANTED\"");
    close(fd);
    server_stop(&fixture.server);
}

TEST(a_server_that_ends_answers_those_who_wait) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    process_signal(fixture.server.process, SIGTERM);
    await_texts(fd, (const char *const[]){"HTTP/1.1 503 ", "\"UNAVAILABLE\"", NULL});
    server_stop(&fixture.server);
    close(fd);
}

/* The test writes another address into etcd, as if another process had become master. The waiting
 * message is answered with a `mastership`, not with a decision. */
TEST(a_lost_mastership_answers_those_who_wait) {
    static struct etcd etcd;
    etcd_require(&etcd);
    const char *const more[] = {
        "--etcd", etcd.url, "--election-key", "doorman/holds", "--election-ttl", "20", NULL};
    struct fixture fixture = fixture_start(PERMITS, more);
    int code = 0;
    for (int waited = 0; code != 200; waited += 50) {
        assert_true(waited < TIMEOUT_MS);
        if (waited) sleep_ms(50);
        char *response = get(&fixture, "/readyz?master=1", HOST);
        code = code_of(response);
        free(response);
    }
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    etcd_put(&etcd, "doorman/holds", "tcp://other:1");
    await_texts(fd, (const char *const[]){"HTTP/1.1 200 OK", "{\"mastership\":{", NULL});
    close(fd);
    server_stop(&fixture.server);
}

/* A request to /v1/allow has no request_id, so nobody could release its hold. */
TEST(a_gateway_cannot_hold_units) {
    struct fixture fixture = start();
    expect(&fixture, "/v1/allow?resource=slots", HOST, 400, "CONCURRENCY");
    server_stop(&fixture.server);
}

TEST(a_list_of_amounts_of_the_wrong_length_is_refused) {
    struct fixture fixture = start();
    acquire(&fixture, "a", 2);
    expect_post(&fixture, "/v1/release", HOST JSON,
                "{\"client_id\": \"a\", \"entry\": [{\"request_id\": 1, \"keep\": [1, 1]}]}", 400,
                "entry[0].keep: must have one amount for each item of the hold");
    expect_post(&fixture, "/v1/release", HOST JSON,
                "{\"client_id\": \"a\", \"entry\": [{\"request_id\": 1, \"keep\": [1]}]}", 200,
                "\"amount\":[1]");
    server_stop(&fixture.server);
}

/* Any peer that knows a client_id has the right to its holds, so pages and JSON show only the
 * beginning of the client_id. */
TEST(people_see_who_holds_and_who_waits) {
    struct fixture fixture = start();
    acquire(&fixture, "<web>-7:4242:9f0c2e51", 1);
    int fd = send_acquire(&fixture, "secret", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    expect(&fixture, "/holds", HOST, 200, "<td data-name='holder'>&lt;web&gt;-7:4242...</td>");
    expect(&fixture, "/holds", HOST, 200, "<td data-name='holder'>sec...</td>");
    expect(&fixture, "/limits", HOST, 200, "2 held at once, each for 600 s, 1000 may wait");
    expect(&fixture, "/limits", HOST, 200, "1 hold, 1 permit waits");
    char *response = get(&fixture, "/v1/holds", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_null(strstr(response, "secret"));
    assert_null(strstr(response, "9f0c2e51"));
    assert_int_equal(number(tree, "holds"), 1);
    assert_int_equal(number(tree, "waiting"), 1);
    assert_string_equal(text(tree, "longest_held[0].holder"), "<web>-7:4242...");
    assert_string_equal(text(tree, "longest_held[0].resource_id"), "slots");
    assert_true(number(tree, "longest_held[0].amount") == 1);
    assert_true(number(tree, "longest_held[0].since") >= 0);
    assert_true(number(tree, "longest_held[0].expires_in") > 0);
    assert_string_equal(text(tree, "longest_waiting[0].holder"), "sec...");
    assert_string_equal(text(tree, "longest_waiting[0].limit"), "slots");
    assert_true(number(tree, "longest_waiting[0].priority") == 1);
    assert_true(metric(&fixture, "doorman_permits_holds") == 1);
    assert_true(metric(&fixture, "doorman_permits_waiting") == 1);
    assert_true(
        metric(&fixture, "doorman_permits_waited_total{template=\"slots\",limit=\"slots\"}") == 1);
    assert_true(metric(&fixture, "doorman_permits_queued{template=\"slots\",limit=\"slots\"}") ==
                1);
    expect(&fixture, "/limits", HOST, 200, "<td data-name='waiting'>1</td>");
    expect(&fixture, "/v1/limits", HOST, 200, "\"bans_evicted\":0,\"waiting\":1}");
    cJSON_Delete(tree);
    free(response);
    close(fd);
    server_stop(&fixture.server);
}

/* A server that has just started grants no holds, because it still learns those of its predecessor.
 * The page of limits also says how long the holds of a leased limit last. */
TEST(people_see_why_a_new_server_grants_no_holds) {
    struct fixture fixture = fixture_start(
        "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "
        "\"kind\": \"CONCURRENCY\", \"limit\": 2, \"time_to_live\": 3600}]}, "
        "{\"identifier_glob\": \"licence\", \"capacity\": 5, \"whole\": true, \"limits\": ["
        "{\"name\": \"leased\", \"per\": \"resource\", \"kind\": \"CONCURRENCY\", "
        "\"limit\": \"leased\", \"time_to_live\": 15, \"queue\": 7}]}]}",
        NULL);
    expect(&fixture, "/holds", HOST, 200, "more it learns which holds are in force");
    expect(&fixture, "/limits", HOST, 200, "leased, held at once, each for 15 s, 7 may wait");
    server_stop(&fixture.server);
}

/* A key is chosen by a user of an application. It must not become markup of a page. */
TEST(keys_are_escaped_wherever_people_see_them) {
    static const char *const keys[] = {"\\\"><script>alert(1)</script>", "' onclick='alert(1)",
                                       "&lt;img src=x&gt;", "\\u0001\\u202e\\ud83d\\ude00\\uffff"};
    struct fixture fixture = fixture_start(
        "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"slots\", "
        "\"kind\": \"CONCURRENCY\", \"limit\": 2, \"on_restart\": \"full\"}]}]}",
        NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"client_id\": \"<svg onload=alert(1)>\", \"permit\": [{\"request_id\": %zu, "
                 "\"item\": [{\"resource_id\": \"<blink>\", \"key\": \"%s\"}]}]}",
                 i + 1, keys[i]);
        expect_post(&fixture, "/v1/acquire", HOST JSON, body, 200, "GRANTED");
    }
    static const char *const pages[] = {"/holds", "/limits", "/"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char *page = get(&fixture, pages[i], HOST);
        assert_int_equal(code_of(page), 200);
        assert_null(strstr(page, "<script>alert"));
        assert_null(strstr(page, "' onclick"));
        assert_null(strstr(page, "<img src"));
        assert_null(strstr(page, "<svg onload"));
        assert_null(strstr(page, "<blink>"));
        free(page);
    }
    expect(&fixture, "/holds", HOST, 200, "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    expect(&fixture, "/holds", HOST, 200, "&amp;lt;img src=x&amp;gt;");
    char *response = get(&fixture, "/v1/holds", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_string_equal(text(tree, "longest_held[1].key"), "' onclick='alert(1)");
    cJSON_Delete(tree);
    free(response);
    server_stop(&fixture.server);
}

/* While a permit waits, requests of any kind can follow on its connection. The server answers them
 * after the permit in their order, and a second permit among them can wait too. */
TEST(requests_that_follow_a_wait_are_answered_in_order) {
    struct fixture fixture = start();
    char body[256], requests[2048];
    acquire(&fixture, "a", 1);
    int fd = send_acquire(&fixture, "b", 2, LONG_WAIT);
    await_waiting(&fixture, 1);
    acquire_body(body, "c", 2, 0.01);
    snprintf(requests, sizeof requests,
             "HEAD /healthz HTTP/1.1\r\n" HOST "\r\n"
             "POST /v1/acquire HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s"
             "GET /v1/holds HTTP/1.1\r\n" HOST "\r\n"
             "OPTIONS /v1/acquire HTTP/1.1\r\n" HOST "\r\n",
             strlen(body), body);
    assert_true(raw_send(fd, requests, strlen(requests)));
    release(&fixture, "a");
    await_texts(fd,
                (const char *const[]){"\"GRANTED\"", "HTTP/1.1 200 OK", "\"reason\":\"TIMED_OUT\"",
                                      "\"longest_held\"", "HTTP/1.1 405 ", NULL});
    close(fd);
    server_stop(&fixture.server);
}
