/* Holds over nng: a real server lets permits wait (P7). It answers them when units come back, when
 * their time is over, and when it stops. The limit has 2 units. In most tests, one client holds one
 * unit, and another client waits for both units. */
#define _GNU_SOURCE
#include "etcd_fixture.h"

#include <poll.h>
#include <time.h>

#define LIMIT_OF(queue, more)                                                                      \
    "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "        \
    "\"per\": \"resource\", \"kind\": \"CONCURRENCY\", \"limit\": 2, \"max_wait\": 600, "          \
    "\"queue\": " queue ", " more "}]}]}"
#define QUEUE_OF(queue) LIMIT_OF(queue, "\"time_to_live\": 600, \"on_restart\": \"full\"")
#define LONG_WAIT 590.0    /* seconds; no test may take so long */
#define LINE_MAX_WAITS 100 /* permits of one connection that wait (P19) */
#define LINES 100          /* connections in the test of 10,000 permits */
#define KEY "doorman/holds"

/* One connection that sends requests and receives responses in any order. */
struct line {
    int fd;
    bool greeted; /* the greeting of the server was received */
};

static bool line_try_send(const struct line *line, const char *text) {
    unsigned char head[12] = {[8] = 0x80, [11] = 1};
    size_t bytes = strlen(text) + 4;
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)bytes >> (56 - 8 * i));
    return send_all(line->fd, head, sizeof head) && send_all(line->fd, text, strlen(text));
}

static void line_send(const struct line *line, const char *text) {
    assert_true(line_try_send(line, text));
}

/* Returns the next response, which the caller deletes, or NULL if the connection is closed. */
static cJSON *line_try_receive(struct line *line) {
    unsigned char head[8 + 4], greeting[8];
    uint64_t bytes = 0;
    if (!line->greeted && !receive_all(line->fd, greeting, sizeof greeting)) return NULL;
    line->greeted = true;
    if (!receive_all(line->fd, head, sizeof head)) return NULL;
    for (int i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    assert_in_range(bytes, 4, 1 << 20);
    char *text = (char *)calloc(1, (size_t)bytes - 4 + 1);
    assert_true(receive_all(line->fd, text, (size_t)bytes - 4));
    cJSON *tree = cJSON_Parse(text);
    assert_non_null(tree);
    free(text);
    return tree;
}

static cJSON *line_receive(struct line *line) {
    cJSON *response = line_try_receive(line);
    assert_non_null(response);
    return response;
}

/* Opens a connection. nng 1.5.2 closes some new connections of a busy server, so the function tries
 * again until the server answers on a connection. */
static struct line line_open(const struct server *server) {
    static const unsigned char greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    for (int tries = 0; tries < 100; tries++) {
        struct line line = {.fd = connect_within(server->url, TIMEOUT_MS)};
        assert_true(line.fd >= 0);
        cJSON *response = NULL;
        if (send_all(line.fd, greeting, sizeof greeting) &&
            line_try_send(&line, "{\"discovery\": {}}")) {
            response = line_try_receive(&line);
        }
        cJSON_Delete(response);
        if (response) return line;
        print_message("the server closed a new connection\n");
        close(line.fd);
        sleep_ms(10);
    }
    fail_msg("the server answers on no new connection");
    return (struct line){.fd = -1};
}

static const char *acquire_text(char text[512], const char *client, int request_id, int cost,
                                double wait) {
    snprintf(text, 512,
             "{\"acquire\": {\"client_id\": \"%s\", \"permit\": [{\"request_id\": %d, "
             "\"max_wait\": %g, \"item\": [{\"resource_id\": \"slots\", \"cost\": %d}]}]}}",
             client, request_id, wait, cost);
    return text;
}

/* Tries to acquire one unit without a wait. Returns the id of the hold, or 0. */
static double acquire(const struct server *server, const char *client, int request_id) {
    char message[512];
    cJSON *response = send_request(server, acquire_text(message, client, request_id, 1, 0));
    const char *decision = text(response, "acquire.permit[0].decision");
    bool granted = strcmp(decision, "GRANTED") == 0;
    double id = granted ? number(response, "acquire.permit[0].hold.id") : 0;
    cJSON_Delete(response);
    return id;
}

static void release(const struct server *server, const char *client, double id) {
    char message[256];
    snprintf(message, sizeof message,
             "{\"release\": {\"client_id\": \"%s\", \"entry\": [{\"id\": %.0f}]}}", client, id);
    cJSON_Delete(send_request(server, message));
}

/* Waits until a permit waits, or until none waits. Precondition: one unit is free. This unit is
 * granted only while no permit waits, because no permit overtakes one that waits. */
static void await_queue(const struct server *server, bool waits) {
    static int request_id;
    for (int waited = 0;; waited += 10) {
        double id = acquire(server, "probe", ++request_id);
        if (id > 0) release(server, "probe", id);
        if ((id > 0) != waits) return;
        assert_true(waited < TIMEOUT_MS);
        sleep_ms(10);
    }
}

TEST(a_permit_waits_until_units_come_back) {
    struct server server = server_start(QUEUE_OF("1"), NULL);
    char message[512];
    double first = acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line, acquire_text(message, "b", 1, 2, LONG_WAIT));
    await_queue(&server, true);
    release(&server, "a", first);
    cJSON *response = line_receive(&line);
    assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
    assert_true(number(response, "acquire.permit[0].hold.waited") > 0);
    release(&server, "b", number(response, "acquire.permit[0].hold.id"));
    cJSON_Delete(response);
    assert_true(acquire(&server, "c", 1) > 0);
    close(line.fd);
    server_stop(&server);
}

/* The server searches a message for the name max_wait before it parses the message. JSON can write
 * the name with escapes. */
TEST(a_permit_waits_if_the_name_of_its_wait_is_escaped) {
    struct server server = server_start(QUEUE_OF("1"), NULL);
    double first = acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line, "{\"acquire\": {\"client_id\": \"max_wait\", \"permit\": [{\"request_id\": 1, "
                     "\"max\\u005fwait\": 600, \"item\": [{\"resource_id\": \"slots\", "
                     "\"cost\": 2}]}]}}");
    await_queue(&server, true);
    release(&server, "a", first);
    cJSON *response = line_receive(&line);
    assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
    cJSON_Delete(response);
    close(line.fd);
    server_stop(&server);
}

TEST(a_permit_waits_no_longer_than_it_asks_for) {
    struct server server = server_start(QUEUE_OF("1000"), NULL);
    char message[512];
    (void)acquire(&server, "a", 1);
    cJSON *response = send_request(&server, acquire_text(message, "b", 1, 2, 0.05));
    assert_string_equal(text(response, "acquire.permit[0].reason"), "TIMED_OUT");
    cJSON_Delete(response);
    server_stop(&server);
}

/* P16. The server decides the permit as soon as it has learned, although no message arrives
 * then. */
TEST(a_permit_waits_while_the_server_learns) {
    struct server server = server_start(LIMIT_OF("9", "\"time_to_live\": 1"), NULL);
    char message[512];
    cJSON *response = send_request(&server, acquire_text(message, "a", 1, 1, LONG_WAIT));
    assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
    cJSON_Delete(response);
    server_stop(&server);
}

/* Sends as many permits on a connection as may wait (P19), each for two units, and one more. When
 * the last permit is refused, all others wait. */
static void line_fill(struct line *line, const char *client) {
    char message[512];
    for (int i = 1; i <= LINE_MAX_WAITS + 1; i++) {
        line_send(line, acquire_text(message, client, i, 2, LONG_WAIT));
    }
    cJSON *response = line_receive(line);
    assert_string_equal(text(response, "acquire.permit[0].reason"), "QUEUE_FULL");
    cJSON_Delete(response);
}

/* P19. More messages wait than the server has workers. */
TEST(at_most_100_permits_of_a_connection_wait) {
    struct server server = server_start(QUEUE_OF("1000"), NULL);
    double first = acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_fill(&line, "b");
    release(&server, "a", first);
    for (int i = 0; i < LINE_MAX_WAITS; i++) {
        cJSON *response = line_receive(&line);
        assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
        release(&server, "b", number(response, "acquire.permit[0].hold.id"));
        cJSON_Delete(response);
    }
    assert_true(acquire(&server, "c", 1) > 0);
    close(line.fd);
    server_stop(&server);
}

/* The permits of a closed connection no longer count, so 100 permits of the next connection can
 * wait. */
TEST(a_closed_connection_cancels_100_permits) {
    struct server server = server_start(QUEUE_OF("100"), NULL);
    (void)acquire(&server, "a", 1);
    for (int i = 0; i < 3; i++) {
        struct line line = line_open(&server);
        line_fill(&line, "b");
        await_queue(&server, true);
        close(line.fd);
        await_queue(&server, false);
    }
    server_stop(&server);
}

static double clock_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* Sends requests until a response arrives on another connection. Returns the longest time that a
 * response took, in milliseconds. */
static double probe_until_readable(struct line *probe, int fd) {
    struct pollfd other = {.fd = fd, .events = POLLIN};
    double longest = 0, end = clock_ms() + TIMEOUT_MS;
    char message[512];
    while (poll(&other, 1, 1) == 0) {
        double sent_at = clock_ms();
        line_send(probe, acquire_text(message, "probe", 1, 2, 0));
        cJSON *response = line_receive(probe);
        assert_string_equal(text(response, "acquire.permit[0].reason"), "CONCURRENCY");
        cJSON_Delete(response);
        if (clock_ms() - sent_at > longest) longest = clock_ms() - sent_at;
        assert_true(clock_ms() < end);
    }
    return longest;
}

/* Receives the refusal TIMED_OUT for each permit that waits on a connection. */
static void line_receive_time_outs(struct line *line) {
    for (int i = 0; i < LINE_MAX_WAITS; i++) {
        cJSON *response = line_receive(line);
        assert_string_equal(text(response, "acquire.permit[0].reason"), "TIMED_OUT");
        cJSON_Delete(response);
    }
}

/* As many permits wait as the queue takes. Each of them is answered when its time is over, and
 * until then the server serves other requests. */
TEST(ten_thousand_permits_time_out_in_the_same_seconds) {
    struct server server = server_start(QUEUE_OF("10000"), NULL);
    char message[512], client[16];
    static struct line lines[LINES];
    (void)acquire(&server, "a", 1);
    struct line probe = line_open(&server);
    double start = clock_ms();
    for (int i = 0; i < LINES; i++) {
        lines[i] = line_open(&server);
        snprintf(client, sizeof client, "b%d", i);
        for (int j = 1; j <= LINE_MAX_WAITS; j++) {
            line_send(&lines[i], acquire_text(message, client, j, 2, 3));
        }
    }
    double sent_in = clock_ms() - start;
    double longest = probe_until_readable(&probe, lines[LINES - 1].fd);
    for (int i = 0; i < LINES; i++) line_receive_time_outs(&lines[i]);
    print_message("sent in %.0f ms, answered after %.0f ms, longest probe %.1f ms, %ld kB\n",
                  sent_in, clock_ms() - start, longest, server_memory(&server));
    for (int i = 0; i < LINES; i++) close(lines[i].fd);
    await_queue(&server, false);
    close(probe.fd);
    server_stop(&server);
}

TEST(a_closed_connection_cancels_its_permits) {
    struct server server = server_start(QUEUE_OF("9"), NULL);
    char message[512];
    (void)acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line, acquire_text(message, "b", 1, 2, LONG_WAIT));
    line_send(&line, acquire_text(message, "b", 2, 2, LONG_WAIT));
    await_queue(&server, true);
    close(line.fd);
    await_queue(&server, false);
    server_stop(&server);
}

TEST(a_server_that_stops_answers_all_that_wait) {
    struct server server = server_start(QUEUE_OF("1"), NULL);
    char message[512];
    (void)acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line, acquire_text(message, "b", 1, 2, LONG_WAIT));
    await_queue(&server, true);
    process_signal(server.process, SIGTERM);
    cJSON *response = line_receive(&line);
    assert_string_equal(text(response, "error.code"), "UNAVAILABLE");
    cJSON_Delete(response);
    process_end(server.process, 0);
    close(line.fd);
}

/* Waits until a server is master, and takes one of its two units. */
static void await_mastership(const struct server *server) {
    double id = 0;
    for (int waited = 0; id == 0; waited += 50) {
        char message[512];
        assert_true(waited < TIMEOUT_MS);
        if (waited) sleep_ms(50);
        cJSON *response = send_request(server, acquire_text(message, "a", 1, 1, 0));
        const cJSON *found = find(response, "acquire.permit[0].hold.id");
        if (found) id = found->valuedouble;
        cJSON_Delete(response);
    }
}

/* The test writes another address into etcd, as if another process had become master. The waiting
 * message is answered with a `mastership`, not with a decision. */
TEST(a_lost_mastership_answers_all_that_wait) {
    static struct etcd etcd;
    char message[512];
    etcd_require(&etcd);
    const char *const more[] = {"--etcd", etcd.url, "--election-key", KEY, "--election-ttl",
                                "20",     NULL};
    struct server server = server_start(QUEUE_OF("9"), more);
    await_mastership(&server);
    struct line line = line_open(&server);
    line_send(&line, acquire_text(message, "b", 1, 2, LONG_WAIT));
    await_queue(&server, true);
    etcd_put(&etcd, KEY, "tcp://other:1");
    cJSON *response = line_receive(&line);
    assert_non_null(find(response, "acquire.mastership"));
    assert_null(find(response, "acquire.permit"));
    cJSON_Delete(response);
    close(line.fd);
    server_stop(&server);
}

/* A message has one permit that waits and one that may not wait. It is answered when both are
 * decided. */
TEST(a_message_waits_for_all_its_permits) {
    struct server server = server_start(QUEUE_OF("1"), NULL);
    double first = acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line,
              "{\"acquire\": {\"client_id\": \"b\", \"permit\": [{\"request_id\": 1, \"max_wait\": "
              "590, \"item\": [{\"resource_id\": \"slots\", \"cost\": 2}]}, {\"request_id\": 2, "
              "\"item\": [{\"resource_id\": \"slots\", \"cost\": 2}]}]}}");
    await_queue(&server, true);
    release(&server, "a", first);
    cJSON *response = line_receive(&line);
    assert_string_equal(text(response, "acquire.permit[0].decision"), "GRANTED");
    assert_string_equal(text(response, "acquire.permit[1].reason"), "CONCURRENCY");
    cJSON_Delete(response);
    close(line.fd);
    server_stop(&server);
}

/* P9. A message repeats a permit that waits, with a max_wait of 0. It is answered at once. The
 * earlier message is answered too. */
TEST(a_repeat_without_a_wait_answers_both_messages) {
    struct server server = server_start(QUEUE_OF("1"), NULL);
    char message[512];
    (void)acquire(&server, "a", 1);
    struct line line = line_open(&server);
    line_send(&line, acquire_text(message, "b", 1, 2, LONG_WAIT));
    await_queue(&server, true);
    cJSON *response = send_request(&server, acquire_text(message, "b", 1, 2, 0));
    assert_string_equal(text(response, "acquire.permit[0].reason"), "CONCURRENCY");
    cJSON_Delete(response);
    response = line_receive(&line);
    assert_string_equal(text(response, "acquire.permit[0].reason"), "REPEATED");
    cJSON_Delete(response);
    close(line.fd);
    server_stop(&server);
}
