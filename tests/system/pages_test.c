/* The thread of pages: requests for leases and health checks are answered at once, whatever pages
 * are asked for. */
#define _GNU_SOURCE
#include "http.h"

#include <netinet/tcp.h>
#include <pthread.h>

#define LONG_LEASES                                                                                \
    "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1000000, \"algorithm\": "         \
    "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 600, \"refresh_interval\": 5, "                  \
    "\"learning_mode_duration\": 0}}]}"
#define PAGE "GET / HTTP/1.1\r\n" HOST "\r\n"
#define QUEUE_MAX 32 /* as in the server */

static bool sanitized(void) {
    const char *program = getenv("DOORMAN_SERVER");
    return program && (strstr(program, "asan") || strstr(program, "tsan"));
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* ---- many resources and leases -------------------------------------------------------------- */

/* Waits for responses whose bodies end with "}" and a line feed. */
static void await_responses(int fd, int count) {
    char bytes[65536], last = 0;
    while (count > 0) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        assert_true(got > 0);
        for (ssize_t i = 0; i < got; i++) {
            count -= last == '}' && bytes[i] == '\n';
            last = bytes[i];
        }
    }
}

static int write_request(char *out, const char *body, int body_bytes) {
    return sprintf(out,
                   "POST /v1/get_capacity HTTP/1.1\r\n" HOST JSON "Content-Length: %d\r\n\r\n%s",
                   body_bytes, body);
}

static void create_resources(int fd, int count) {
    enum { EACH = 500 };
    char *body = (char *)malloc(EACH * 64 + 256), *request = (char *)malloc(EACH * 64 + 512);
    for (int i = 0; i < count; i += EACH) {
        int bytes = sprintf(body, "{\"client_id\": \"all\", \"resource\": [");
        for (int j = i; j < i + EACH; j++) {
            bytes += sprintf(body + bytes, "%s{\"resource_id\": \"r/%06d\", \"wants\": %d}",
                             j > i ? "," : "", j, j % 100);
        }
        bytes += sprintf(body + bytes, "]}");
        raw_send(fd, request, (size_t)write_request(request, body, bytes));
        await_responses(fd, 1);
    }
    free(request);
    free(body);
}

/* Makes leases of one resource, each for another holder. */
static void create_leases(int fd, int count) {
    enum { EACH = 200 };
    char *requests = (char *)malloc(EACH * 512);
    for (int i = 0; i < count; i += EACH) {
        int bytes = 0;
        for (int j = i; j < i + EACH; j++) {
            char body[256];
            int body_bytes =
                snprintf(body, sizeof body, CAPACITY_REQUEST("c%06d", "shared", "3"), j);
            bytes += write_request(requests + bytes, body, body_bytes);
        }
        raw_send(fd, requests, (size_t)bytes);
        await_responses(fd, EACH);
    }
    free(requests);
}

static struct fixture start_with(int resources, int leases) {
    struct fixture fixture =
        fixture_start(LONG_LEASES, (const char *[]){"--log-level", "debug", NULL});
    int fd = raw_connect(&fixture.http);
    create_resources(fd, resources);
    create_leases(fd, leases);
    close(fd);
    return fixture;
}

/* Ends the server. Returns a number that it logs when it stops. */
static double stop_and_read(struct fixture *fixture, const char *key) {
    struct process *process = fixture->server.process;
    server_stop(&fixture->server);
    char *log_text = file_read(process->err);
    const char *at = strstr(log_text, key);
    assert_non_null(at);
    print_message("%.*s\n", (int)strcspn(at, "\n"), at);
    double value = strtod(at + strlen(key), NULL);
    free(log_text);
    return value;
}

/* ---- readers -------------------------------------------------------------------------------- */

struct reader {
    const struct fixture *fixture;
    const char *path;
    pthread_t thread;
    int page_count, error_count;
};

static bool readers_stop; /* atomic */

/* Reads a page again and again. */
static void *reader_main(void *argument) {
    struct reader *reader = (struct reader *)argument;
    char request[256], bytes[65536];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n",
             reader->path);
    while (!__atomic_load_n(&readers_stop, __ATOMIC_RELAXED)) {
        int fd = raw_connect(&reader->fixture->http);
        raw_send(fd, request, strlen(request));
        bool good = recv(fd, bytes, 12, MSG_WAITALL) == 12 && memcmp(bytes + 9, "200", 3) == 0;
        while (recv(fd, bytes, sizeof bytes, 0) > 0) {
        }
        close(fd);
        *(good ? &reader->page_count : &reader->error_count) += 1;
    }
    return NULL;
}

/* The latencies of a series of requests, in milliseconds. */
struct latencies {
    double median, p99, maximum;
};

static int compare_numbers(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static struct latencies latencies_of(double *times, size_t count, const char *what) {
    qsort(times, count, sizeof *times, compare_numbers);
    struct latencies latencies = {times[count / 2], times[count * 99 / 100], times[count - 1]};
    print_message("%s: median %.2f ms, 99th percentile %.2f ms, maximum %.2f ms\n", what,
                  latencies.median, latencies.p99, latencies.maximum);
    return latencies;
}

/* Sends a message over nng, and waits for its response. The caller has set TCP_NODELAY, so the two
 * parts of the message are sent without a delay. */
static void exchange_message(int fd, const char *text) {
    unsigned char head[8];
    char response[4096];
    assert_true(raw_send_head(fd, strlen(text)) && raw_send(fd, text, strlen(text)));
    assert_int_equal(recv(fd, head, sizeof head, MSG_WAITALL), sizeof head);
    size_t bytes = (size_t)head[6] << 8 | head[7];
    assert_in_range(bytes, 1, sizeof response - 1);
    assert_int_equal(recv(fd, response, bytes, MSG_WAITALL), bytes);
    response[bytes] = 0;
    assert_non_null(strstr(response + 4, "\"capacity\""));
}

/* Measures how long requests over nng take. A server with a sanitizer is slow, and gets only half
 * as many requests. */
static struct latencies measure_requests(const struct fixture *fixture, const char *what) {
    enum { REQUESTS = 1000 };
    static double times[REQUESTS];
    size_t count = sanitized() ? REQUESTS / 2 : REQUESTS;
    const char *text = "{\"get_capacity\": " CAPACITY_REQUEST("client", "shared", "5") "}";
    int fd = raw_greet(&fixture->server), on = 1;
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    for (size_t i = 0; i < count; i++) {
        double started = now_ms();
        exchange_message(fd, text);
        times[i] = now_ms() - started;
        sleep_ms(1);
    }
    close(fd);
    return latencies_of(times, count, what);
}

static struct latencies measure_health(const struct fixture *fixture) {
    enum { CHECKS = 100 };
    double times[CHECKS];
    for (int i = 0; i < CHECKS; i++) {
        double started = now_ms();
        expect(fixture, i % 2 ? "/healthz" : "/readyz", HOST, 200, i % 2 ? "ok" : "ready");
        times[i] = now_ms() - started;
        sleep_ms(1);
    }
    return latencies_of(times, CHECKS, "health checks");
}

/* Returns whether requests are fast enough while eight threads read pages. */
static bool requests_are_fast_beside_readers(void) {
    enum { READERS = 8 };
    int count = sanitized() ? 4000 : 100000, page_count = 0;
    static const char *const paths[] = {"/?sort=has", "/resources?resource=shared&sort=wants",
                                        "/clients?client=none"};
    struct reader readers[READERS] = {{.page_count = 0}};
    struct fixture fixture = start_with(count, count), idle = start_with(0, 0);
    __atomic_store_n(&readers_stop, false, __ATOMIC_RELAXED);
    for (int i = 0; i < READERS; i++) {
        readers[i].fixture = &fixture;
        readers[i].path = paths[i % 3];
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    struct latencies beside = measure_requests(&fixture, "requests beside eight readers");
    struct latencies health = measure_health(&fixture);
    struct latencies usual = measure_requests(&idle, "requests to an idle server");
    __atomic_store_n(&readers_stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_int_equal(readers[i].error_count, 0);
        page_count += readers[i].page_count;
    }
    print_message("%d pages of %d\n", page_count, count);
    double hold = stop_and_read(&fixture, " longest_hold_cpu_ms=");
    server_stop(&idle.server);
    return beside.p99 < 500 + 20 * usual.p99 && health.median < 500 + 20 * usual.p99 &&
           (sanitized() || hold < 5);
}

/* V3: the bound is large, because tests run in parallel. Requests to a second server, which has no
 * readers, show how slow the machine is at the time. Without a sanitizer, the server must hold its
 * lock for less than 5 ms of CPU time. In a virtual machine this time can include the time of other
 * machines, so there are several tries. */
MEASURES(eight_readers_of_large_pages_do_not_delay_requests)
TEST(eight_readers_of_large_pages_do_not_delay_requests) {
    bool fast = false;
    for (int i = 0; i < 5 && !fast; i++) fast = requests_are_fast_beside_readers();
    assert_true(fast);
}

/* Returns how many of the connections got a response with this status. The responses stay
 * unread. */
static int count_codes(const int *peers, int count, const char *code) {
    int found = 0;
    for (int i = 0; i < count; i++) {
        char head[13] = "";
        assert_int_equal(recv(peers[i], head, 12, MSG_PEEK | MSG_WAITALL), 12);
        found += strcmp(head + 9, code) == 0;
    }
    return found;
}

/* The server is stopped while the requests are sent, so that they arrive at the same time. */
TEST(a_full_queue_refuses_pages_but_nothing_else) {
    enum { PEERS = 200 };
    int peers[PEERS];
    struct fixture fixture = start_with(sanitized() ? 4000 : 20000, 0);
    for (int i = 0; i < PEERS; i++) peers[i] = raw_connect(&fixture.http);
    for (int i = 0; i < 5; i++) expect(&fixture, "/healthz", HOST, 200, "ok");
    process_signal(fixture.server.process, SIGSTOP);
    for (int i = 0; i < PEERS; i++) raw_send(peers[i], PAGE, strlen(PAGE));
    process_signal(fixture.server.process, SIGCONT);
    for (int i = 0; i < 5; i++) {
        expect(&fixture, "/healthz", HOST, 200, "ok");
        expect(&fixture, "/readyz", HOST, 200, "ready");
        request_capacity(&fixture, CAPACITY_REQUEST("a", "db", "30"));
    }
    int made = count_codes(peers, PEERS, "200"), refused = count_codes(peers, PEERS, "503");
    print_message("%d pages, %d refused\n", made, refused);
    assert_int_equal(made + refused, PEERS);
    assert_in_range(made, QUEUE_MAX, PEERS - 1);
    for (int i = 0; i < PEERS; i++) close(peers[i]);
    expect(&fixture, "/", HOST, 200, "resources");
    server_stop(&fixture.server);
}

/* Returns how many pages a server makes for peers that leave at once, and for one that stays. */
static double pages_made_for_leavers(void) {
    int peers[QUEUE_MAX - 1];
    struct fixture fixture = start_with(sanitized() ? 4000 : 50000, 0);
    for (int i = 0; i < QUEUE_MAX - 1; i++) {
        peers[i] = raw_connect(&fixture.http);
        raw_send(peers[i], PAGE, strlen(PAGE));
    }
    for (int i = 0; i < QUEUE_MAX - 1; i++) close(peers[i]);
    expect(&fixture, "/", HOST, 200, "resources");
    return stop_and_read(&fixture, " made=");
}

/* Most of the peers leave before the server has made their pages, unless the machine is so busy
 * that the test closes its connections too late. */
TEST(a_reader_that_disconnects_stops_costing) {
    double made = QUEUE_MAX;
    for (int i = 0; i < 5 && made > QUEUE_MAX / 2; i++) made = pages_made_for_leavers();
    assert_true(made >= 1 && made <= QUEUE_MAX / 2);
}

/* Bytes of the next requests arrive while a page is made. The server stops receiving them for a
 * while, and loses none. */
TEST(requests_behind_a_page_are_answered_after_it) {
    enum { REQUEST_COUNT = 8000 };
    static const char next[] = "GET /healthz HTTP/1.1\r\n" HOST "\r\n",
                      last[] = "GET /readyz HTTP/1.0\r\n\r\n";
    struct fixture fixture = start_with(sanitized() ? 2000 : 20000, 0);
    size_t bytes = strlen(PAGE);
    char *requests = (char *)malloc(REQUEST_COUNT * sizeof next + 256);
    memcpy(requests, PAGE, bytes);
    for (int i = 0; i < REQUEST_COUNT; i++, bytes += sizeof next - 1) {
        memcpy(requests + bytes, next, sizeof next);
    }
    memcpy(requests + bytes, last, sizeof last);
    int fd = raw_connect(&fixture.http);
    raw_send(fd, requests, bytes + sizeof last - 1);
    char *responses = drain(fd);
    int count = 0;
    const char *page = strstr(responses, "</html>"), *at = page;
    assert_non_null(page);
    while ((at = strstr(at, "\r\n\r\nok\n")) != NULL) {
        at++;
        count++;
    }
    assert_int_equal(count, REQUEST_COUNT);
    assert_non_null(strstr(page, "\r\n\r\nready\n"));
    free(responses);
    free(requests);
    server_stop(&fixture.server);
}

TEST(the_server_stops_while_pages_wait) {
    for (int round = 0; round < 3; round++) {
        struct fixture fixture = start_with(sanitized() ? 2000 : 20000, 0);
        int peers[2 * QUEUE_MAX];
        for (int i = 0; i < 2 * QUEUE_MAX; i++) {
            peers[i] = raw_connect(&fixture.http);
            raw_send(peers[i], PAGE, strlen(PAGE));
        }
        for (int i = 0; i < QUEUE_MAX * round; i++) close(peers[i]);
        server_stop(&fixture.server);
        for (int i = QUEUE_MAX * round; i < 2 * QUEUE_MAX; i++) close(peers[i]);
    }
}
