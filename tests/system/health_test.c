/* The address for probes, which needs no certificate and no token (--http-health). */
#define _GNU_SOURCE
#include "http.h"

/* Starts a server, and reads the port of its probes. fixture.http is the address for probes.
 *   more   further flags, up to a NULL */
static struct fixture start_with_probes(const char *const *more) {
    const char *arguments[ARGUMENT_MAX] = {"--http-health", "127.0.0.1:0"};
    for (size_t i = 0; more[i]; i++) arguments[i + 2] = more[i];
    struct fixture fixture = {.server = server_start(CONFIG("100", ""), arguments)};
    char *log_text = file_read(fixture.server.process->err);
    unsigned port = 0;
    const char *at = strstr(log_text, " port=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, " port=%u", &port), 1);
    fixture.http.process = fixture.server.process;
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    return fixture;
}

/* V3. */
TEST(probes_need_no_token_and_get_nothing_else) {
    struct process *files = process_new();
    file_write(files->config, "secret");
    const char *const flags[2][5] = {{"--http", "127.0.0.1:0", "--http-token", files->config, NULL},
                                     {"--http", "off", NULL}};
    static const char *const others[] = {"/", "/metrics", "/v1/status", "/v1/config", "/healthz/x"};
    for (size_t i = 0; i < 2; i++) {
        struct fixture fixture = start_with_probes(flags[i]);
        expect(&fixture, "/healthz", HOST, 200, "ok");
        expect(&fixture, "/readyz", "Host: any.example\r\n", 200, "ready");
        expect(&fixture, "/readyz?master=1", HOST, 200, "ready");
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            expect(&fixture, others[k], HOST "Authorization: Bearer secret\r\n", 404, "/readyz");
        }
        expect_post(&fixture, "/healthz", HOST JSON, "", 405, "Allow: GET, HEAD");
        expect_post(&fixture, "/v1/discovery", HOST JSON, "", 404, "/readyz");
        char *response = exchange(&fixture, "HEAD /healthz HTTP/1.1\r\n" HOST "\r\n");
        assert_int_equal(code_of(response), 200);
        assert_string_equal(body_of(response), "");
        free(response);
        response = exchange(&fixture, "nonsense\r\n\r\n");
        assert_int_equal(code_of(response), 400);
        free(response);
        server_stop(&fixture.server);
    }
}

/* V5: neither silent peers nor unfinished heads keep a probe from its response. */
TEST(many_connections_do_not_block_probes) {
    struct fixture fixture = start_with_probes((const char *[]){"--http", "off", NULL});
    int peers[40];
    char head[8192];
    memset(head, 'x', sizeof head);
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        peers[i] = raw_connect(&fixture.http);
        if (i % 2) (void)!send(peers[i], head, sizeof head, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 20; i++) expect(&fixture, "/healthz", HOST, 200, "ok");
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) close(peers[i]);
    expect(&fixture, "/healthz", HOST, 200, "ok");
    server_stop(&fixture.server);
}

/* V7. */
TEST(an_invalid_address_for_probes_is_refused) {
    static const char *const invalid[] = {"127.0.0.1",    "127.0.0.1:",       "127.0.0.1:x",
                                          "127.0.0.1:1x", "127.0.0.1:123456", "127.0.0.1:65536"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        expect_refusal((const char *[]){"--http-health", invalid[i], NULL}, 2, "not HOST:PORT");
    }
    struct fixture fixture = start_with_probes((const char *[]){"--http", "off", NULL});
    expect_refusal((const char *[]){"--http-health", fixture.http.url + strlen("tcp://"), NULL}, 1,
                   "cannot listen on --http-health");
    server_stop(&fixture.server);
}
