/* Messages to a process that travel together (N4, W4): when a message waits, what the process
 * gets, and which message gets which answer. The test is the process. */
#define _GNU_SOURCE
#include "../../server/link/batch.c"
#include "../../server/link/link.c"
#include "../../server/link/link_http.c"
#include "../../server/util/host.c"

#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/util/platform.h>
#include <time.h>

#include "../test.h"

#define PATIENCE 5000 /* ms */

struct world {
    struct settings settings;
    struct service service;
    struct lock lock;
    struct link_pool pool;
    char address[64];
    nng_socket node;
    struct link_question *done; /* the lock guards it */
    size_t done_count;
    size_t changes;
};

#include "links.h"

/* ---- steps ---------------------------------------------------------------------------------- */

static void world_setup(struct world *w) {
    static int number;
    snprintf(w->address, sizeof w->address, "inproc://node-%d", ++number);
    links_init(w);
    assert_int_equal(nng_rep0_open_raw(&w->node), 0);
    assert_int_equal(nng_socket_set_ms(w->node, NNG_OPT_RECVTIMEO, PATIENCE), 0);
    assert_int_equal(nng_listen(w->node, w->address, NULL, 0), 0);
}

static void world_teardown(struct world *w) {
    nng_close(w->node);
    server_link_close(w->pool.links);
    server_lock_uninit(&w->lock);
}
FIXTURE(world)

static struct link *open_link(struct world *w) {
    server_lock(&w->lock);
    struct link *link = server_link_open(&w->pool, w->address);
    server_unlock(&w->lock);
    return link;
}

static struct link *tend(struct world *w) {
    server_lock(&w->lock);
    struct link *unused = server_link_tend(&w->pool, doorman_clock());
    server_unlock(&w->lock);
    return unused;
}

/* Waits until the node is connected, or, if `is_wanted` is false, until it is not. */
static void await_reached(struct world *w, bool is_wanted) {
    bool is_reached = !is_wanted;
    for (int i = 0; i < PATIENCE && is_reached != is_wanted; i++) {
        server_lock(&w->lock);
        is_reached = server_link_is_reached(&w->pool, w->address);
        server_unlock(&w->lock);
        if (is_reached != is_wanted) nng_msleep(1);
    }
    assert_int_equal(is_reached, is_wanted);
}

/* Sends messages that are letters of the alphabet. */
static void send_letters(struct world *w, struct link_question **out, char from, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char text[2] = {(char)(from + (char)i), 0};
        out[i] = send_text(w, text, false);
    }
    flush(w);
}

static nng_msg *node_take(const struct world *w) {
    nng_msg *message = NULL;
    assert_int_equal(nng_recvmsg(w->node, &message, 0), 0);
    return message;
}

static void node_expect(nng_msg *message, const char *text) {
    assert_int_equal(nng_msg_len(message), strlen(text));
    assert_memory_equal(nng_msg_body(message), text, strlen(text));
}

static void node_answer(const struct world *w, nng_msg *message, const char *text) {
    nng_msg_clear(message);
    assert_int_equal(nng_msg_append(message, text, strlen(text)), 0);
    assert_int_equal(nng_sendmsg(w->node, message, 0), 0);
}

/* Waits until `count` questions are over. Fails if more are over. */
static void await_done(struct world *w, size_t count) {
    size_t done = 0;
    for (int i = 0; i < PATIENCE && done < count; i++) {
        server_lock(&w->lock);
        done = w->done_count;
        server_unlock(&w->lock);
        if (done < count) nng_msleep(1);
    }
    assert_int_equal(done, count);
}

/* Ends the questions that are over, as a part would do. Returns how many had an answer. */
static size_t end_done(struct world *w) {
    size_t answered = 0;
    server_lock(&w->lock);
    for (struct link_question *next = NULL, *each = w->done; each; each = next) {
        next = each->next;
        answered += each->result == 0;
        server_link_end(each);
        free(each);
    }
    w->done = NULL;
    w->done_count = 0;
    server_link_flush(&w->pool);
    server_unlock(&w->lock);
    return answered;
}

static size_t queued(const struct world *w) { return w->pool.links->queue_count; }

/* ---- stories -------------------------------------------------------------------------------- */

TEST_WITH(world, messages_that_wait_for_an_answer_travel_together) {
    struct link_question *first, *later[3];
    send_letters(w, &first, 'a', 1);
    nng_msg *message = node_take(w);
    node_expect(message, "a"); /* it is sent at once, and not in a batch */
    send_letters(w, later, 'b', 3);
    assert_int_equal(queued(w), 3);
    node_answer(w, message, "A");
    await_done(w, 1);
    expect_answer(first, "A");
    assert_int_equal(end_done(w), 1);
    assert_int_equal(queued(w), 0);
    message = node_take(w);
    node_expect(message, "{\"batch\":{\"bytes\":[1,1,1],\"messages\":[b,c,d]}}");
    node_answer(w, message, "{\"batch\":{\"bytes\":[1,3,2],\"messages\":[B,CCC,DD]}}");
    await_done(w, 3);
    expect_answer(later[0], "B");
    expect_answer(later[1], "CCC");
    expect_answer(later[2], "DD");
    assert_int_equal(end_done(w), 3);
}

static const char sixteen_answers[] = "{\"batch\":{\"bytes\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
                                      "\"messages\":[B,C,D,E,F,G,H,I,J,K,L,M,N,O,P,Q]}}";

TEST_WITH(world, sixteen_messages_do_not_wait) {
    struct link_question *all[21];
    struct text_span spans[BATCH_MAX];
    send_letters(w, all, 'a', 1);
    node_answer(w, node_take(w), "A");
    await_done(w, 1);
    end_done(w);
    send_letters(w, all, 'a', 1);
    nng_msg *first = node_take(w);
    send_letters(w, all + 1, 'b', 20);
    assert_int_equal(queued(w), 4);
    nng_msg *message = node_take(w);
    assert_int_equal(server_batch_split((char *)nng_msg_body(message), nng_msg_len(message), spans),
                     16);
    assert_int_equal(spans[15].text[0], 'q');
    node_answer(w, message, sixteen_answers);
    await_done(w, 16);
    assert_int_equal(end_done(w), 16);
    assert_int_equal(queued(w), 4); /* the first message has no answer yet */
    node_answer(w, first, "A");
    await_done(w, 1);
    end_done(w);
    node_answer(w, node_take(w), "{\"batch\":{\"bytes\":[1,1,1,1],\"messages\":[R,S,T,U]}}");
    await_done(w, 4);
    assert_int_equal(end_done(w), 4);
}

/* A process of an older version answers a batch with an error, and has decided nothing. */
TEST_WITH(world, a_process_that_takes_no_batches_gets_each_message_alone) {
    struct link_question *all[6];
    send_letters(w, all, 'a', 1);
    nng_msg *first = node_take(w);
    send_letters(w, all + 1, 'b', 2);
    node_answer(w, first, "A");
    await_done(w, 1);
    end_done(w);
    node_answer(w, node_take(w), "{\"error\":{\"code\":\"INVALID_ARGUMENT\"}}");
    await_done(w, 2);
    assert_int_equal(all[1]->result, NNG_EAGAIN);
    assert_int_equal(all[2]->result, NNG_EAGAIN);
    end_done(w);
    send_letters(w, all, 'x', 3);
    assert_int_equal(queued(w), 0);
    const char *const alone[] = {"x", "y", "z"};
    for (int i = 0; i < 3; i++) {
        nng_msg *each = node_take(w);
        node_expect(each, alone[i]);
        node_answer(w, each, alone[i]);
    }
    await_done(w, 3);
    assert_int_equal(end_done(w), 3);
}

/* A dialer keeps the files of TLS that it was made with, so new files need a new link. */
TEST_WITH(world, a_link_with_old_certificates_is_opened_anew_when_it_is_lost) {
    struct link *link = open_link(w);
    assert_int_equal(open_link(w), link);
    link->is_stale = true; /* as server_link_note_tls does for addresses of TLS */
    await_reached(w, true);
    assert_int_equal(open_link(w), link); /* the old link still works */
    nng_close(w->node);
    await_reached(w, false);
    assert_int_not_equal(open_link(w), link);
    struct link *unused = tend(w);
    assert_int_equal(unused, link);
    assert_null(unused->next);
    server_link_close(unused);
}

TEST_WITH(world, nothing_waits_for_a_message_whose_permits_may_wait) {
    struct link_question *first = send_text(w, "slow", true), *second;
    nng_msg *slow = node_take(w); /* without a flush */
    send_letters(w, &second, 'a', 1);
    node_answer(w, node_take(w), "A");
    await_done(w, 1);
    expect_answer(second, "A");
    assert_int_equal(end_done(w), 1);
    node_answer(w, slow, "SLOW");
    await_done(w, 1);
    expect_answer(first, "SLOW");
    end_done(w);
}

TEST_WITH(world, long_messages_go_alone_and_a_batch_has_64_kib_at_most) {
    static char text[JOINED_BYTES + 2];
    struct text_span spans[BATCH_MAX];
    struct link_question *first;
    send_letters(w, &first, 'a', 1);
    nng_msg *message = node_take(w);
    memset(text, 'x', JOINED_BYTES + 1);
    (void)send_text(w, text, false);
    nng_msg *whole = node_take(w);
    assert_int_equal(nng_msg_len(whole), JOINED_BYTES + 1);
    text[JOINED_BYTES / 3] = 0;
    for (int i = 0; i < 4; i++) (void)send_text(w, text, false);
    flush(w);
    assert_int_equal(queued(w), 1); /* a batch has room for three */
    nng_msg *batch = node_take(w);
    assert_int_equal(server_batch_split((char *)nng_msg_body(batch), nng_msg_len(batch), spans), 3);
    node_answer(w, whole, "1");
    node_answer(w, batch, "2");
    node_answer(w, message, "3");
    await_done(w, 5);
    end_done(w);
    node_answer(w, node_take(w), "4");
    await_done(w, 1);
    end_done(w);
}

TEST_WITH(world, a_lost_node_ends_what_was_sent_and_what_waits) {
    struct link_question *all[4];
    send_letters(w, all, 'a', 1);
    nng_msg_free(node_take(w));
    send_letters(w, all + 1, 'b', 3);
    nng_close(w->node);
    for (int i = 0; i < PATIENCE && !w->pool.links->is_lost; i++) nng_msleep(1);
    assert_null(tend(w));
    await_done(w, 1);
    assert_int_equal(end_done(w), 0);
    await_done(w, 3); /* they find no connection */
    assert_int_equal(end_done(w), 0);
}

/* ---- the text of a batch -------------------------------------------------------------------- */

/* A whole batch is split by the lengths that it lists. Any other text is refused, or split into
 * parts that are inside it. */
TEST(only_a_whole_batch_is_split) {
    static const char good[] = "{\"batch\":{\"bytes\":[5,0,2],\"messages\":[{[,]},,ab]}}";
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"batch\":{\"bytes\":[],\"messages\":[]}}",
                                      "{\"batch\":{\"bytes\":[1],\"messages\":[]}}",
                                      "{\"batch\":{\"bytes\":[99999999999],\"messages\":[a]}}",
                                      "{\"batch\":{\"bytes\":[-1],\"messages\":[a]}}",
                                      "{\"batch\":{\"bytes\":[1,1],\"messages\":[a,b]}} ",
                                      "{\"batch\":{\"bytes\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
                                      "\"messages\":[a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a]}}"};
    struct text_span spans[BATCH_MAX];
    assert_int_equal(server_batch_split(good, sizeof good - 1, spans), 3);
    assert_memory_equal(spans[0].text, "{[,]}", 5);
    assert_int_equal(spans[1].bytes, 0);
    assert_memory_equal(spans[2].text, "ab", 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(server_batch_split(bad[i], strlen(bad[i]), spans), 0);
    }
    for (size_t bytes = 0; bytes < sizeof good - 1; bytes++) {
        char *cut = (char *)malloc(bytes + 1); /* a sanitizer finds reads behind its end */
        assert_non_null(cut);
        memcpy(cut, good, bytes);
        assert_int_equal(server_batch_split(cut, bytes, spans), 0);
        for (size_t at = 0; at < bytes; at++) {
            memcpy(cut, good, bytes);
            cut[at] = (char)(cut[at] == '9' ? '0' : '9');
            (void)server_batch_split(cut, bytes, spans);
        }
        free(cut);
    }
}
