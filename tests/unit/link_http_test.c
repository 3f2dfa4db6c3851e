/* The connection over HTTP that carries batches to a process (N4): when it is used, and what
 * happens to the questions if it fails. The test plays the process, and runs the turns of the
 * loop. */
#define _GNU_SOURCE
#include "../../server/link/batch.c"
#include "../../server/link/link.c"
#include "../../server/link/link_http.c"
#include "../../server/util/host.c"

#include <arpa/inet.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/util/platform.h>
#include <poll.h>
#include <time.h>

#include "../test.h"

#define PATIENCE 5000 /* ms */
#define OK "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
#define EMPTY OK "Content-Length: 0\r\n\r\n"

struct world {
    struct settings settings;
    struct service service;
    struct lock lock;
    struct link_pool pool;
    struct loop_source *source; /* which the loop watches */
    int socket;                 /* of the source; -1: none */
    uint32_t events;
    size_t changes; /* how often the pool was told that a connection has changed */
    char address[64], http[64];
    nng_socket node;
    int listener, accepted; /* of the process */
    char got[1 << 17];      /* what the process has received and not taken */
    size_t got_bytes;
    struct link_question *done;
    size_t done_count;
};

#include "links.h"

static bool watch(const struct service *service, struct loop_source *source, int socket,
                  uint32_t events, bool is_new) {
    assert_true(service == &here->service && is_new == (here->socket != socket));
    here->source = source;
    here->socket = socket;
    here->events = events;
    return true;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void world_setup(struct world *w) {
    static const struct loop_calls loop = {watch};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    nng_listener listener;
    int port = 0;
    w->service.loop = &loop;
    w->socket = w->accepted = -1;
    links_init(w);
    assert_int_equal(nng_rep0_open_raw(&w->node), 0);
    assert_int_equal(nng_socket_set_ms(w->node, NNG_OPT_RECVTIMEO, PATIENCE), 0);
    assert_int_equal(nng_listen(w->node, "tcp://127.0.0.1:0", &listener, 0), 0);
    assert_int_equal(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), 0);
    snprintf(w->address, sizeof w->address, "tcp://127.0.0.1:%d", port);
    w->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(w->listener, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(listen(w->listener, 5), 0);
    assert_int_equal(getsockname(w->listener, (struct sockaddr *)&at, &bytes), 0);
    snprintf(w->http, sizeof w->http, "http://127.0.0.1:%d", ntohs(at.sin_port));
}

static void lock(struct world *w) { server_lock(&w->lock); }
static void unlock(struct world *w) { server_unlock(&w->lock); }

static struct link_http *http_of(const struct world *w) { return w->pool.links->http; }

/* Takes a turn of the loop. Returns whether there was an event. */
static bool turn(struct world *w, int patience) {
    if (w->socket < 0) return false;
    struct pollfd of = {.fd = w->socket, .events = (short)w->events};
    if (poll(&of, 1, patience) <= 0) return false;
    struct loop_source *source = w->source;
    source->ready(source->context, (uint32_t)of.revents);
    if (http_of(w)->state == LINK_HTTP_NONE) w->socket = -1;
    return true;
}

static void turns(struct world *w) {
    while (turn(w, 20)) continue;
}

static void world_teardown(struct world *w) {
    w->pool.stops = true;
    lock(w);
    struct link *unused = server_link_tend(&w->pool, doorman_clock());
    unlock(w);
    server_link_close(unused);
    for (int i = 0; i < 100 && w->pool.links; i++) {
        turn(w, 10);
        lock(w);
        unused = server_link_tend(&w->pool, doorman_clock());
        unlock(w);
        server_link_close(unused);
    }
    if (w->pool.links) assert_false(http_of(w)->state != LINK_HTTP_NONE);
    server_link_close(w->pool.links);
    nng_close(w->node);
    if (w->listener >= 0) close(w->listener);
    if (w->accepted >= 0) close(w->accepted);
    server_lock_uninit(&w->lock);
}
FIXTURE(world)

static struct link_question *ask(struct world *w, const char *text, bool is_alone) {
    struct link_question *question = send_text(w, text, is_alone);
    flush(w);
    return question;
}

/* Opens the link, and offers it an address for HTTP when nng is connected. */
static void offer(struct world *w, const char *address) {
    lock(w);
    struct link *link = server_link_open(&w->pool, w->address);
    unlock(w);
    for (int i = 0; i < PATIENCE && !link_is_connected(link); i++) nng_msleep(1);
    lock(w);
    if (server_link_wants_http(link)) server_link_open_http(link, address);
    unlock(w);
}

/* Receives a request in the process. Returns its body. */
static const char *process_receive(struct world *w) {
    const char *end = NULL;
    size_t length = 0;
    do {
        struct pollfd of = {.fd = w->accepted, .events = POLLIN};
        if (poll(&of, 1, 10) > 0) {
            const ssize_t count =
                recv(w->accepted, w->got + w->got_bytes, sizeof w->got - w->got_bytes - 1, 0);
            if (count <= 0) fail_msg("the connection was closed");
            w->got_bytes += (size_t)count;
        }
        w->got[w->got_bytes] = 0;
        end = strstr(w->got, "\r\n\r\n");
        const char *field = strstr(w->got, "Content-Length: ");
        if (end && field) length = strtoul(field + 16, NULL, 10);
        turn(w, 0);
    } while (!end || w->got_bytes < (size_t)(end - w->got) + 4 + length);
    w->got_bytes = 0;
    return end + 4;
}

static void process_answer(struct world *w, const char *text) {
    assert_int_equal(send(w->accepted, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    turns(w);
}

static void process_send(struct world *w, const char *body) {
    char text[1024];
    snprintf(text, sizeof text, OK "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    process_answer(w, text);
}

/* Offers the address of the process, which accepts the connection and answers the probe. */
static void process_agree(struct world *w, const char *answer) {
    offer(w, w->http);
    assert_int_equal(http_of(w)->state, LINK_HTTP_CONNECTING);
    w->accepted = accept(w->listener, NULL, NULL);
    assert_true(w->accepted >= 0);
    assert_string_equal(process_receive(w), "");
    assert_int_equal(http_of(w)->state, LINK_HTTP_PROBING);
    process_answer(w, answer);
}

/* Receives a message of nng in the process, and answers it. */
static void node_expect(const struct world *w, const char *text, const char *answer) {
    nng_msg *message = NULL;
    assert_int_equal(nng_recvmsg(w->node, &message, 0), 0);
    assert_int_equal(nng_msg_len(message), strlen(text));
    assert_memory_equal(nng_msg_body(message), text, strlen(text));
    nng_msg_clear(message);
    assert_int_equal(nng_msg_append(message, answer, strlen(answer)), 0);
    assert_int_equal(nng_sendmsg(w->node, message, 0), 0);
}

/* Waits until questions are over, and ends them.
 *   result   of each */
static void expect_done(struct world *w, size_t count, int result) {
    size_t done = 0;
    for (int i = 0; i < PATIENCE && done < count; i++) {
        turn(w, 0);
        lock(w);
        done = w->done_count;
        unlock(w);
        if (done < count) nng_msleep(1);
    }
    assert_int_equal(done, count);
    lock(w);
    for (struct link_question *next = NULL, *each = w->done; each; each = next) {
        next = each->next;
        assert_int_equal(each->result, result);
        server_link_end(each);
        free(each);
    }
    w->done = NULL;
    w->done_count = 0;
    server_link_flush(&w->pool);
    unlock(w);
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST_WITH(world, a_process_that_agrees_gets_its_batches_over_http) {
    process_agree(w, EMPTY);
    assert_int_equal(http_of(w)->state, LINK_HTTP_IDLE);
    struct link_question *first = ask(w, "a", false);
    const char *body = process_receive(w);
    assert_string_equal(body, "a");
    assert_non_null(strstr(w->got, "POST /v1/batch HTTP/1.1\r\n"));
    assert_non_null(strstr(w->got, w->address)); /* Doorman-To */
    struct link_question *later[2] = {ask(w, "b", false), ask(w, "c", false)};
    process_send(w, "A");
    assert_int_equal(w->done_count, 1);
    expect_answer(first, "A");
    expect_done(w, 1, 0);
    assert_string_equal(process_receive(w), "{\"batch\":{\"bytes\":[1,1],\"messages\":[b,c]}}");
    process_send(w, "{\"batch\":{\"bytes\":[2,1],\"messages\":[BB,C]}}");
    expect_answer(later[0], "BB");
    expect_answer(later[1], "C");
    expect_done(w, 2, 0);
    assert_int_equal(http_of(w)->state, LINK_HTTP_IDLE);
}

TEST_WITH(world, nng_carries_what_http_has_no_room_for) {
    ask(w, "a", false);
    node_expect(w, "a", "A"); /* there is no connection */
    expect_done(w, 1, 0);
    process_agree(w, EMPTY);
    ask(w, "b", false);
    assert_string_equal(process_receive(w), "b");
    ask(w, "slow", true); /* its answer may come late */
    node_expect(w, "slow", "SLOW");
    expect_done(w, 1, 0);
    process_send(w, "B");
    expect_done(w, 1, 0);
}

/* A process of an older version answers 404. If another process listens on the port now, it answers
 * 421. */
TEST_WITH(world, a_process_that_refuses_is_asked_over_nng_for_a_minute) {
    static const char *const answers[] = {"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
                                          "HTTP/1.1 421 Misdirected Request\r\n"
                                          "content-length:0\r\nConnection: close\r\n\r\n"};
    for (size_t i = 0; i < 2; i++) {
        process_agree(w, answers[i]);
        assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
        const doorman_time left = http_of(w)->again_at - doorman_clock();
        assert_true(left > 55 * DOORMAN_SECOND && left <= 60 * DOORMAN_SECOND);
        offer(w, w->http);
        assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
        ask(w, "a", false);
        node_expect(w, "a", "A");
        expect_done(w, 1, 0);
        http_of(w)->again_at = 0;
        close(w->accepted);
    }
}

TEST_WITH(world, an_answer_may_come_in_pieces) {
    static const char text[] = "HTTP/1.1 200 OK\r\nX-Content-Length: 9\r\ncontent-LENGTH:\t 12\r\n"
                               "Connection: keep-alive\r\n\r\n{\"a\":\"\\r\\n\"}";
    process_agree(w, EMPTY);
    struct link_question *question = ask(w, "a", false);
    process_receive(w);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_int_equal(w->done_count, 0);
        assert_int_equal(send(w->accepted, text + i, 1, MSG_NOSIGNAL), 1);
        assert_true(turn(w, PATIENCE));
    }
    expect_answer(question, "{\"a\":\"\\r\\n\"}");
    expect_done(w, 1, 0);
    assert_int_equal(http_of(w)->state, LINK_HTTP_IDLE);
}

TEST_WITH(world, a_long_request_is_sent_in_pieces_and_a_long_answer_is_read) {
    static char text[JOINED_BYTES + 1], answer[300000];
    int small = 4096;
    process_agree(w, EMPTY);
    assert_int_equal(setsockopt(w->socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    memset(text, 'x', JOINED_BYTES);
    struct link_question *question = ask(w, text, false);
    assert_true(http_of(w)->has_rest);
    assert_string_equal(process_receive(w), text);
    assert_false(http_of(w)->has_rest);
    const int head = snprintf(answer, 100, OK "Content-Length: 200000\r\n\r\n");
    memset(answer + head, 'y', 200000);
    for (size_t sent = 0; sent < 200000 + (size_t)head;) {
        const ssize_t count = send(w->accepted, answer + sent, 200000 + (size_t)head - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) sent += (size_t)count;
        turns(w);
    }
    assert_int_equal(w->done_count, 1);
    assert_int_equal(question->bytes, 200000);
    assert_memory_equal(question->text, answer + head, 200000);
    expect_done(w, 1, 0);
    assert_int_equal(http_of(w)->capacity, 0); /* a large buffer is not kept */
}

/* The process must not take the rest of the request for the next request. */
TEST_WITH(world, a_process_that_answers_before_it_has_read_gets_no_other_question) {
    static char text[JOINED_BYTES + 1];
    int small = 4096;
    assert_int_equal(setsockopt(w->listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    process_agree(w, EMPTY);
    assert_int_equal(setsockopt(w->socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    memset(text, 'x', JOINED_BYTES);
    struct link_question *question = ask(w, text, false);
    assert_true(http_of(w)->has_rest);
    process_send(w, "A");
    expect_answer(question, "A");
    expect_done(w, 1, 0);
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
    assert_null(http_of(w)->request);
    ask(w, "b", false);
    node_expect(w, "b", "B");
    expect_done(w, 1, 0);
}

TEST_WITH(world, a_connection_that_is_lost_ends_its_questions) {
    process_agree(w, EMPTY);
    ask(w, "a", false);
    process_receive(w);
    shutdown(w->accepted, SHUT_RDWR);
    expect_done(w, 1, NNG_ECONNRESET);
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
    assert_true(http_of(w)->again_at <= doorman_clock() + DOORMAN_SECOND);
    ask(w, "b", false);
    node_expect(w, "b", "B");
    expect_done(w, 1, 0);
}

/* A refused batch was not decided, and may be asked again. A batch that has failed may have been
 * decided. */
TEST_WITH(world, a_refused_batch_is_asked_again_and_a_failed_one_is_lost) {
    static const struct {
        const char *answer;
        int result;
    } cases[] = {
        {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", NNG_EAGAIN},
        {"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", NNG_ECONNRESET}};
    for (size_t i = 0; i < 2; i++) {
        process_agree(w, EMPTY);
        ask(w, "a", false);
        process_receive(w);
        process_answer(w, cases[i].answer);
        expect_done(w, 1, cases[i].result);
        assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
        http_of(w)->again_at = 0;
        close(w->accepted);
    }
}

TEST_WITH(world, an_answer_without_sense_ends_the_connection) {
    static char long_head[READ_BYTES + 100] = "HTTP/1.1 200 OK\r\nX: ";
    static const char *const answers[] = {"HTTP/1.1 200 OK\r\n\r\n",
                                          "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                                          "HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
                                          "SSH-2.0-OpenSSH\r\n\r\n",
                                          "\r\n\r\n",
                                          long_head};
    memset(long_head + strlen(long_head), 'x', READ_BYTES);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        process_agree(w, EMPTY);
        ask(w, "a", false);
        process_receive(w);
        process_answer(w, answers[i]);
        expect_done(w, 1, NNG_EPROTO);
        http_of(w)->again_at = 0;
        close(w->accepted);
    }
    process_agree(w, EMPTY);
    process_answer(w, EMPTY); /* nobody has asked */
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
    close(w->accepted);
    http_of(w)->again_at = 0;
    process_agree(w, EMPTY EMPTY); /* two answers to one request */
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
}

TEST_WITH(world, a_connection_that_the_process_will_close_is_not_used_again) {
    process_agree(w, EMPTY);
    ask(w, "a", false);
    process_receive(w);
    process_answer(w, OK "Connection: close\r\nContent-Length: 1\r\n\r\nA");
    expect_done(w, 1, 0);
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
}

TEST_WITH(world, each_state_has_an_end) {
    process_agree(w, EMPTY);
    lock(w);
    doorman_time due = server_link_due(&w->pool);
    assert_true(due > doorman_clock() + 15 * DOORMAN_SECOND); /* idle */
    unlock(w);
    ask(w, "a", false);
    process_receive(w);
    lock(w);
    due = server_link_due(&w->pool);
    assert_true(due <= doorman_clock() + 2 * DOORMAN_SECOND); /* the time of the question */
    assert_null(server_link_tend(&w->pool, due));
    assert_int_equal(server_link_due(&w->pool), DOORMAN_NEVER);
    unlock(w);
    expect_done(w, 1, NNG_ETIMEDOUT);
    close(w->accepted);
    http_of(w)->again_at = 0;
    offer(w, w->http); /* nobody answers the probe */
    turn(w, PATIENCE);
    assert_int_equal(http_of(w)->state, LINK_HTTP_PROBING);
    lock(w);
    assert_true(server_link_has_http(&w->pool));
    server_link_tend(&w->pool, server_link_due(&w->pool));
    unlock(w);
    turns(w);
    lock(w);
    assert_false(server_link_has_http(&w->pool));
    unlock(w);
    assert_true(http_of(w)->again_at > doorman_clock() + 55 * DOORMAN_SECOND);
    w->accepted = accept(w->listener, NULL, NULL);
}

/* A process that is full accepts no connection, and the system drops connections when the queue of
 * the listener is full. */
TEST_WITH(world, a_connection_that_does_not_come_about_ends) {
    int others[16];
    assert_int_equal(listen(w->listener, 0), 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(w->http, ':') + 1));
    for (int i = 0; i < 16; i++) {
        others[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(others[i], (struct sockaddr *)&at, sizeof at);
    }
    offer(w, w->http);
    assert_false(turn(w, 20));
    assert_int_equal(http_of(w)->state, LINK_HTTP_CONNECTING);
    lock(w);
    server_link_tend(&w->pool, server_link_due(&w->pool));
    unlock(w);
    assert_true(turn(w, PATIENCE));
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
    for (int i = 0; i < 16; i++) close(others[i]);
}

/* When a process starts, it listens over nng first, and then over HTTP. */
TEST_WITH(world, a_connection_that_is_refused_is_tried_again_after_a_second) {
    close(w->listener);
    w->listener = -1;
    offer(w, w->http);
    turns(w);
    assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
    assert_true(http_of(w)->again_at > doorman_clock());
    assert_true(http_of(w)->again_at <= doorman_clock() + DOORMAN_SECOND);
}

TEST_WITH(world, a_pool_that_stops_closes_the_connection_and_opens_none) {
    process_agree(w, EMPTY);
    ask(w, "a", false);
    process_receive(w);
    w->pool.stops = true;
    lock(w);
    assert_null(server_link_tend(&w->pool, doorman_clock()));
    assert_true(server_link_has_http(&w->pool));
    const size_t changes = w->changes;
    unlock(w);
    expect_done(w, 1, NNG_ECONNRESET);
    assert_true(w->changes > changes); /* so the part does not wait for a timer */
    lock(w);
    http_of(w)->again_at = 0;
    assert_false(server_link_has_http(&w->pool));
    assert_false(server_link_wants_http(w->pool.links));
    unlock(w);
}

TEST_WITH(world, a_lost_process_is_tried_again_as_soon_as_it_is_back) {
    process_agree(w, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    assert_true(http_of(w)->again_at > doorman_clock());
    nng_close(w->node);
    for (int i = 0; i < PATIENCE && link_is_connected(w->pool.links); i++) nng_msleep(1);
    lock(w);
    server_link_tend(&w->pool, doorman_clock());
    assert_int_equal(http_of(w)->again_at, 0);
    assert_false(server_link_wants_http(w->pool.links)); /* not before nng is connected */
    unlock(w);
}

TEST_WITH(world, only_a_plain_address_of_the_same_host_is_connected) {
    static const char *const addresses[] = {"",
                                            "https://127.0.0.1:1",
                                            "http://127.0.0.2:1",
                                            "http://localhost:1",
                                            "http://127.0.0.1:0",
                                            "http://127.0.0.1:65536",
                                            "127.0.0.1:1"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        offer(w, addresses[i]);
        assert_int_equal(http_of(w)->state, LINK_HTTP_NONE);
        http_of(w)->again_at = 0;
    }
    assert_int_equal(address_port("http://host"), 80);
    assert_int_equal(address_port("http://[::1]"), 80);
    assert_int_equal(address_port("http://[::1]:8080"), 8080);
}
