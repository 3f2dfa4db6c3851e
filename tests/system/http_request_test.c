/* Requests to the server over HTTP: targets, the interim response, and bodies in chunks. Some tests
 * send requests in pieces of several sizes. */
#define _GNU_SOURCE
#include "http.h"

#define DISCOVERY "POST /v1/discovery HTTP/1.1\r\n" HOST JSON
#define CAPACITY "POST /v1/get_capacity HTTP/1.1\r\n" HOST JSON
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define CONTINUE "Expect: 100-continue\r\n"
#define INTERIM "HTTP/1.1 100 Continue\r\n\r\n"

/* A request, and the status of its response. */
struct request_case {
    const char *request;
    int code;
};

/* Sends bytes in pieces of at most `piece` bytes. */
static void send_in_pieces(int fd, const char *text, size_t bytes, size_t piece) {
    for (size_t at = 0; at < bytes; at += piece) {
        raw_send(fd, text + at, bytes - at < piece ? bytes - at : piece);
        if (piece < 20) sleep_ms(1);
    }
}

/* Sends each request in one piece, followed by one more request, and compares the status. After a
 * refused request the connection must close, so that the bytes behind it are never read as a
 * request. */
static void expect_codes(const struct fixture *fixture, const struct request_case *cases,
                         size_t count) {
    static const char next[] = "GET /next HTTP/1.0\r\n" HOST "\r\n";
    for (size_t i = 0; i < count; i++) {
        int fd = raw_connect(&fixture->http);
        raw_send(fd, cases[i].request, strlen(cases[i].request));
        raw_send(fd, next, sizeof next - 1);
        shutdown(fd, SHUT_WR); /* so that the server does not wait for the rest of the body */
        char *response = drain(fd);
        bool goes_on = strstr(response + 1, "HTTP/1.1 404") != NULL;
        if (code_of(response) != cases[i].code || goes_on != (cases[i].code == 200)) {
            fail_msg("%s: expected %d, got:\n%.2000s", cases[i].request, cases[i].code, response);
        }
        free(response);
    }
}

#define EXPECT_CODES(fixture, cases) expect_codes(fixture, cases, sizeof cases / sizeof *cases)

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) count++;
    return count;
}

/* ---- targets -------------------------------------------------------------------------------- */

/* V3, RFC 9112, 3.2.2. */
TEST(the_host_of_a_url_counts_instead_of_the_field) {
#define URL(url, lines)                                                                            \
    "POST " url "/v1/discovery HTTP/1.1\r\n" JSON "Content-Length: 2\r\n" lines "\r\n{}"
    static const struct request_case cases[] = {
        {URL("http://localhost", "Host: evil.example\r\n"), 200},
        {URL("http://localhost:15050", ""), 400},
        {URL("HTTPS://127.0.0.1", HOST), 200},
        {URL("http://[::1]:80", HOST), 200},
        {URL("http://Doorman.Example", HOST), 200},
        {URL("http://evil.example", HOST), 403},
        {URL("http://localhost.evil.example", HOST), 403},
        {URL("http://localhost", HOST HOST), 400},
        {URL("http://user@localhost", HOST), 400},
        {URL("http://localhost:80@evil.example", HOST), 400},
        {URL("http://localhost:8x", HOST), 400},
        {URL("http://[::1]evil.example", HOST), 400},
        {URL("http://[::1", HOST), 400},
        {URL("http://", HOST), 400},
        {URL("ftp://localhost", HOST), 400},
        {URL("localhost", HOST), 400},
        {URL("", "Host: [::1]evil.example\r\n"), 403},
        {URL("", "Host: localhost:80@evil.example\r\n"), 403},
        {URL("", "Host: localhost:\r\n"), 200},
    };
    struct fixture fixture = fixture_start(
        CONFIG("100", ""), (const char *[]){"--advertise", "tcp://doorman.example:15000", NULL});
    EXPECT_CODES(&fixture, cases);
    expect(&fixture, "http://localhost", HOST, 200, "<html");
    expect(&fixture, "http://localhost?filter=%3Cx", HOST, 200, "value=\"&lt;x\"");
    expect(&fixture, "http://localhost/?filter=y", HOST, 200, "value=\"y\"");
    expect(&fixture, "http://evil.example/healthz", HOST, 200, "ok");
    server_stop(&fixture.server);
}

/* RFC 3986, 2.1. A % without two hexadecimal digits is refused, because programs do not agree on
 * its meaning. */
TEST(a_broken_escape_in_a_target_is_refused) {
#define GET(target) "GET " target " HTTP/1.1\r\n" HOST "\r\n"
#define ALLOW(query) GET("/v1/allow?resource=db&" query)
    static const struct request_case cases[] = {
        {ALLOW("key=%zz"), 400},     {ALLOW("key=%"), 400},
        {ALLOW("key=%2"), 400},      {ALLOW("key=%2&cost=1"), 400},
        {ALLOW("key=%2x"), 400},     {ALLOW("key=%%41"), 400},
        {ALLOW("key=%u0041"), 400},  {GET("/%zz"), 400},
        {GET("/?filter=%zz"), 400},  {GET("/?filter=%"), 400},
        {GET("/readyz?%zz"), 400},   {GET("http://localhost/%g0"), 400},
        {GET("/readyz?%25zz"), 200}, {GET("/readyz?%4A%4a"), 200},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    EXPECT_CODES(&fixture, cases);
    expect(&fixture, "/v1/allow?resource=db&key=100%", HOST, 400, "two hexadecimal digits");
    expect(&fixture, "/?filter=100%25", HOST, 200, "value=\"100%\"");
    server_stop(&fixture.server);
}

/* RFC 9112, 3.2: HTTP/1.1 needs exactly one Host, also where any Host is allowed. */
TEST(a_missing_or_doubled_host_is_refused) {
    static const struct request_case cases[] = {
        {"GET /healthz HTTP/1.1\r\n\r\n", 400},
        {"GET /healthz HTTP/1.1\r\n" HOST "host: localhost\r\n\r\n", 400},
        {"GET /healthz HTTP/1.0\r\n" HOST HOST "\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET http://localhost/ HTTP/1.1\r\n\r\n", 400},
        {"POST /v1/discovery HTTP/1.1\r\n" JSON "Content-Length: 2\r\n\r\n{}", 400},
        {"GET /v1/allow?resource=db HTTP/1.1\r\n" HOST HOST "\r\n", 400},
        {"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 200},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    EXPECT_CODES(&fixture, cases);
    expect(&fixture, "/healthz", "", 400, "the Host is missing");
    expect(&fixture, "/healthz", HOST HOST, 400, "the Host occurs twice");
    char *response = exchange(&fixture, "GET /healthz HTTP/1.0\r\n\r\n");
    assert_int_equal(code_of(response), 200);
    free(response);
    server_stop(&fixture.server);
}

/* RFC 9112, 2.2. Some clients send an empty line behind the body of a POST. */
TEST(empty_lines_before_a_request_are_skipped) {
    static const char requests[] =
        "\r\n" DISCOVERY "Content-Length: 2\r\n\r\n{}\r\n"
        "\r\n\r\n\r\n" DISCOVERY CHUNKED "\r\n2\r\n{}\r\n0\r\n\r\n\r\n"
        "GET /v1/status HTTP/1.1\r\n" HOST "\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n";
    static const struct request_case cases[] = {
        {"\r\nGET /readyz HTTP/1.1\r\n" HOST "\r\n", 200},
        {"\nGET /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"\r\n GET /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"\r\rGET /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /readyz HTTP/1.1\r\n\r\n" HOST "\r\n", 400},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    EXPECT_CODES(&fixture, cases);
    for (size_t piece = 1; piece < sizeof requests; piece = piece * 3 + 1) {
        int fd = raw_connect(&fixture.http);
        send_in_pieces(fd, requests, sizeof requests - 1, piece);
        char *responses = drain(fd);
        if (count_of(responses, "HTTP/1.1 200") != 4) fail_msg("%zu: %s", piece, responses);
        assert_int_equal(count_of(responses, "HTTP/1.1 "), 4);
        free(responses);
    }
    server_stop(&fixture.server);
}

TEST(a_head_with_invalid_fields_is_refused) {
    static const struct request_case cases[] = {
        {"GET /readyz HTTP/1.1\r\n" HOST "\r\n", 200},
        {"GET /readyz HTTP/1.2\r\n" HOST "Name:\t\xc3\xa4 \r\n\r\n", 200},
        {"GET /readyz HTTP/1.11\r\n" HOST "\r\n", 400},
        {"GET /readyz HTTP/1.x\r\n" HOST "\r\n", 400},
        {"GET /readyz HTTP/1.1 \r\n" HOST "\r\n", 400},
        {"GET  /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"G(T /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {" /readyz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /readyz HTTP/1.1\n" HOST "\r\n\r\n", 400},
        {DISCOVERY "Content-Length : 2\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\n folded\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\nno colon\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\n: no name\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\nName: bare\nLF: x\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\nName: bare\rCR: x\r\n\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\nName: \x01\r\n\r\n{}", 400},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    EXPECT_CODES(&fixture, cases);
    server_stop(&fixture.server);
}

/* ---- the interim response ------------------------------------------------------------------- */

/* Sends a head, waits for the interim response, sends the body, and returns the final response. */
static char *send_with_interim(const struct fixture *fixture, const char *head, const char *body,
                               size_t piece) {
    char interim[sizeof INTERIM] = "";
    int fd = raw_connect(&fixture->http);
    send_in_pieces(fd, head, strlen(head), piece);
    assert_int_equal(recv(fd, interim, sizeof interim - 1, MSG_WAITALL), sizeof interim - 1);
    assert_string_equal(interim, INTERIM);
    send_in_pieces(fd, body, strlen(body), piece);
    return drain(fd);
}

/* RFC 9110, 10.1.1. */
TEST(an_interim_response_asks_for_the_body) {
    static const char *const requests[][2] = {
        {DISCOVERY "Connection: close\r\n" CONTINUE "Content-Length: 2\r\n\r\n", "{}"},
        {DISCOVERY "Connection: close\r\nexpect:  100-Continue \r\n" CHUNKED "\r\n",
         "2\r\n{}\r\n0\r\n\r\n"},
        {"POST http://localhost/v1 HTTP/1.1\r\nConnection: close\r\n" HOST JSON CONTINUE
         "Content-Length: 17\r\n\r\n",
         "{\"discovery\": {}}"}};
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        for (size_t piece = 1; piece < 1000; piece = piece * 5 + 1) {
            char *response = send_with_interim(&fixture, requests[i][0], requests[i][1], piece);
            assert_int_equal(code_of(response), 200);
            assert_non_null(strstr(response, "\"is_master\":true"));
            assert_null(strstr(response, "100 Continue"));
            free(response);
        }
    }
    server_stop(&fixture.server);
}

/* A connection may send several requests. Each gets its own interim response. */
TEST(each_request_of_a_connection_gets_its_interim_response) {
    static const char head[] = DISCOVERY CONTINUE "Content-Length: 2\r\n\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    int fd = raw_connect(&fixture.http);
    for (int i = 0; i < 3; i++) {
        char interim[sizeof INTERIM] = "", response[2048] = "";
        raw_send(fd, head, sizeof head - 1);
        assert_int_equal(recv(fd, interim, sizeof interim - 1, MSG_WAITALL), sizeof interim - 1);
        assert_string_equal(interim, INTERIM);
        raw_send(fd, "{}", 2);
        for (size_t got = 0; !strstr(response, "}}\n");) {
            ssize_t more = recv(fd, response + got, sizeof response - 1 - got, 0);
            assert_true(more > 0);
            got += (size_t)more;
        }
        assert_int_equal(code_of(response), 200);
    }
    close(fd);
    server_stop(&fixture.server);
}

TEST(a_peer_that_does_not_wait_gets_no_interim_response) {
    static const char *const requests[] = {
        DISCOVERY CONTINUE "Content-Length: 2\r\n\r\n{}",
        DISCOVERY CONTINUE CHUNKED "\r\n2\r\n{}\r\n0\r\n\r\n",
        DISCOVERY CONTINUE CHUNKED "\r\n2",
        "GET /v1/status HTTP/1.1\r\n" HOST CONTINUE "\r\n",
        "POST /v1/discovery HTTP/1.0\r\n" HOST JSON CONTINUE "Content-Length: 2\r\n\r\n",
    };
    static const char *const rests[] = {"", "", "\r\n{}\r\n0\r\n\r\n", "", "{}"};
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        int fd = raw_connect(&fixture.http);
        raw_send(fd, requests[i], strlen(requests[i]));
        sleep_ms(100); /* an interim response would be sent now */
        raw_send(fd, rests[i], strlen(rests[i]));
        raw_send(fd, "GET /healthz HTTP/1.0\r\n\r\n", 25);
        char *response = drain(fd);
        assert_int_equal(code_of(response), 200);
        assert_null(strstr(response, "100 Continue"));
        free(response);
    }
    server_stop(&fixture.server);
}

/* The body of a refused request need not be sent at all. */
TEST(a_refused_request_gets_no_interim_response) {
#define REFUSED(head, lines) head " HTTP/1.1\r\n" lines CONTINUE "Content-Length: 9000000\r\n\r\n"
    static const struct request_case cases[] = {
        {REFUSED("POST /v1/discovery", "Host: evil.example\r\n" JSON), 403},
        {REFUSED("POST /v1/nothing", HOST JSON), 404},
        {REFUSED("POST /", HOST JSON), 405},
        {REFUSED("POST /v1/discovery", HOST), 415},
        {REFUSED("POST /v1/discovery", HOST JSON), 413},
        {REFUSED("POST /v1/discovery", HOST JSON CHUNKED), 400},
        {DISCOVERY "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n", 417},
        {DISCOVERY "Expect: 100-continue, other\r\nContent-Length: 2\r\n\r\n", 417},
        {DISCOVERY CONTINUE "Expect: other\r\n" CHUNKED "\r\n", 417},
        {"GET / HTTP/1.1\r\n" HOST "Expect: other\r\n\r\n", 417},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char response[2048] = "";
        int fd = raw_connect(&fixture.http);
        raw_send(fd, cases[i].request, strlen(cases[i].request));
        assert_true(recv(fd, response, sizeof response - 1, 0) > 0);
        if (code_of(response) != cases[i].code) fail_msg("%s: %s", cases[i].request, response);
        assert_non_null(strstr(response, "Connection: close\r\n"));
        close(fd);
    }
    server_stop(&fixture.server);
}

/* ---- bodies in chunks ----------------------------------------------------------------------- */

/* RFC 9112, 7.1. */
TEST(a_body_in_chunks_is_the_same_for_any_split_of_its_bytes) {
    static const char requests[] = CAPACITY CHUNKED
        "\r\n"
        "1\r\n{\r\n"
        "00f;name=value;other=\"a b\"\r\n\"client_id\": \"a\r\n"
        "1B \t;\r\n\", \"resource\": [{\"resource_\r\n"
        "1c\r\nid\": \"db\", \"wants\": 12.25}]}\r\n"
        "0\r\nTrailer: ignored\r\nOther:\r\n\r\n" CAPACITY "transfer-encoding:CHUNKED\r\n\r\n"
        "50\r\n" CAPACITY_REQUEST("b", "db", "2.5") "           \r\n"
                                                    "000;last\r\n\r\n"
                                                    "GET /v1/status HTTP/1.1\r\n" HOST CHUNKED
                                                    "\r\n0\r\n\r\n"
                                                    "GET /healthz HTTP/1.0\r\n\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (size_t piece = 1; piece < sizeof requests; piece = piece * 2 + 1) {
        int fd = raw_connect(&fixture.http);
        send_in_pieces(fd, requests, sizeof requests - 1, piece);
        char *responses = drain(fd);
        if (count_of(responses, "HTTP/1.1 200") != 4) fail_msg("%zu: %s", piece, responses);
        assert_int_equal(count_of(responses, "\"capacity\":12.25"), 1);
        assert_int_equal(count_of(responses, "\"capacity\":2.5"), 1);
        assert_int_equal(count_of(responses, "\"wants\":14.75"), 1);
        assert_string_equal(responses + strlen(responses) - 3, "ok\n");
        free(responses);
    }
    server_stop(&fixture.server);
}

/* After a request that is refused, no byte is read as the next request. */
TEST(a_body_whose_end_is_not_clear_is_refused) {
#define CHUNKS(text) DISCOVERY CHUNKED "\r\n" text
    static const struct request_case cases[] = {
        {CHUNKS("2\r\n{}\r\n0\r\n\r\n"), 200},
        {CHUNKS("000000000000002\r\n{}\r\n0\r\n\r\n"), 200},
        {CHUNKS("0000000000000002\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS(" 2\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS(";\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("-2\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("0x2\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("g\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2 2\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2\r{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2;\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2;a\rb\r\n{}\r\n0\r\n\r\n"), 400},
        {CHUNKS("2\r\n{}0\r\n\r\n"), 400},
        {CHUNKS("2\r\n{}\n0\r\n\r\n"), 400},
        {CHUNKS("2\r\n{} \r\n0\r\n\r\n"), 400},
        {CHUNKS("2\r\n{}\r\n0\r\nName: a\n\r\n"), 400},
        {CHUNKS("2\r\n{}\r\n0\r\nName: a\r\n\rb"), 400},
        {CHUNKS("2\r\n{}\r\n0\r\n\n\r\n"), 400},
        {DISCOVERY CHUNKED "Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
        {DISCOVERY "Content-Length: 2\r\n" CHUNKED "\r\n{}", 400},
        {DISCOVERY "Content-Length: 2\r\nTransfer-Encoding:\r\n\r\n{}", 400},
        {"POST /v1/discovery HTTP/1.0\r\n" HOST JSON CHUNKED "\r\n2\r\n{}\r\n0\r\n\r\n", 400},
        {DISCOVERY "Transfer-Encoding: gzip\r\n\r\n", 501},
        {DISCOVERY "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
        {DISCOVERY "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 501},
        {DISCOVERY "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
        {DISCOVERY "Transfer-Encoding: \r\n\r\n0\r\n\r\n", 501},
        {DISCOVERY CHUNKED CHUNKED "\r\n0\r\n\r\n", 501},
        {DISCOVERY "Transfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n{}", 400},
        {DISCOVERY "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", 501},
        {DISCOVERY "\r\n", 411},
    };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    EXPECT_CODES(&fixture, cases);
    server_stop(&fixture.server);
}

/* Sends a head and then the same text many times. Returns the status of the response. */
static int send_repeated(const struct fixture *fixture, const char *head, const char *text,
                         size_t count) {
    size_t bytes = strlen(text);
    char *all = (char *)malloc(bytes * count + 1);
    assert_non_null(all);
    for (size_t i = 0; i < count; i++) memcpy(all + i * bytes, text, bytes);
    int fd = raw_connect(&fixture->http);
    raw_send(fd, head, strlen(head));
    raw_send(fd, all, bytes * count);
    raw_send(fd, "0\r\n\r\n", 5);
    raw_send(fd, "GET /never HTTP/1.0\r\n\r\n", 23);
    char response[4096] = "";
    assert_true(recv(fd, response, sizeof response - 1, 0) > 0);
    close(fd);
    free(all);
    return code_of(response);
}

/* V5: a body in chunks has at most --max-message bytes. Extensions of chunks and trailers, which
 * are ignored, have a limit too. */
TEST(the_size_of_a_body_in_chunks_is_limited) {
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--max-message", "1000", NULL});
    char full[1100], extension[2048];
    memset(full, ' ', sizeof full);
    memcpy(full, "3e8\r\n{}", 7);
    snprintf(full + 1005, sizeof full - 1005, "\r\n");
    const char *head = DISCOVERY CHUNKED "\r\n";
    assert_int_equal(send_repeated(&fixture, head, full, 1), 200);
    assert_int_equal(send_repeated(&fixture, head, full, 2), 413);
    assert_int_equal(
        send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n", "1\r\n \r\n", 998), 200);
    assert_int_equal(
        send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n", "1\r\n \r\n", 999), 413);
    assert_int_equal(send_repeated(&fixture, head, "3e9\r\n", 1), 413);
    assert_int_equal(send_repeated(&fixture, head, "fffffffffffffff\r\n", 1), 413);
    memset(extension, 'e', sizeof extension);
    memcpy(extension, "1;", 2);
    snprintf(extension + 1026, sizeof extension - 1026, "\r\n \r\n");
    assert_int_equal(send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n", extension, 15),
                     200);
    assert_int_equal(send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n", extension, 17),
                     431);
    assert_int_equal(
        send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n0\r\n", "Name: value\r\n", 2000),
        431);
    server_stop(&fixture.server);
}

/* V5: memory depends on the data of a body, and not on how it is divided into chunks. */
MEASURES(many_small_chunks_need_no_more_memory)
TEST(many_small_chunks_need_no_more_memory) {
    enum { BYTES = 1 << 20, ROUNDS = 6 };
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    const char *program = getenv("DOORMAN_SERVER");
    bool sanitized = program && (strstr(program, "asan") || strstr(program, "tsan"));
    long first = 0;
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(
            send_repeated(&fixture, DISCOVERY CHUNKED "\r\n2\r\n{}\r\n", "1\r\n \r\n", BYTES), 200);
        if (round == 1) first = server_memory(&fixture.server);
    }
    assert_in_range(server_memory(&fixture.server), 1, first + (sanitized ? 1 << 20 : 8 << 10));
    server_stop(&fixture.server);
}

/* The buffer of a large request becomes smaller after it, and keeps the bytes of the next
 * request. */
TEST(bytes_after_a_large_body_are_the_next_request) {
    enum { BYTES = 1000000 };
    static const char next[] = "GET /healthz HTTP/1.0\r\n\r\n";
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char *body = (char *)malloc(BYTES + sizeof next), head[256];
    assert_non_null(body);
    memset(body, ' ', BYTES);
    memcpy(body, "{}", 2);
    memcpy(body + BYTES, next, sizeof next);
    snprintf(head, sizeof head, DISCOVERY "Content-Length: %d\r\n\r\n", BYTES);
    for (size_t early = 0; early < sizeof next; early++) {
        int fd = raw_connect(&fixture.http);
        raw_send(fd, head, strlen(head));
        raw_send(fd, body, BYTES + early);
        sleep_ms(5);
        raw_send(fd, next + early, sizeof next - 1 - early);
        char *responses = drain(fd);
        assert_int_equal(count_of(responses, "HTTP/1.1 200"), 2);
        assert_string_equal(responses + strlen(responses) - 3, "ok\n");
        free(responses);
    }
    free(body);
    server_stop(&fixture.server);
}
