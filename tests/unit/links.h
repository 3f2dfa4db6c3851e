/* The tests of links share this: functions that replace functions of other files, and the work of a
 * part that sends questions. Include this file behind `struct world`, which has the members
 * settings, service, lock, pool, address, done, done_count and changes. */
#ifndef DOORMAN_TESTS_LINKS_H
#define DOORMAN_TESTS_LINKS_H

static struct world *here; /* of the test that runs */

void server_log(const struct settings *settings, enum log_level level, const char *event, ...) {
    (void)settings, (void)level, (void)event;
}

static void take_batch(struct link_pool *pool, const struct link_batch *batch) {
    server_lock(pool->lock);
    for (struct link_question *next = NULL, *each = batch->questions; each; each = next) {
        next = each->next;
        each->next = here->done;
        here->done = each;
        here->done_count++;
    }
    server_unlock(pool->lock);
}

static void note_link(struct link_pool *pool, bool is_lost) {
    (void)pool, (void)is_lost;
    __atomic_add_fetch(&here->changes, 1, __ATOMIC_RELAXED);
}

int server_dial(struct service *service, const char *address, nng_socket *socket,
                nng_pipe_cb notify, void *context) {
    (void)service;
    int error = nng_req0_open(socket);
    if (error != 0) return error;
    nng_pipe_notify(*socket, NNG_PIPE_EV_ADD_PRE, notify, context);
    nng_pipe_notify(*socket, NNG_PIPE_EV_REM_POST, notify, context);
    return nng_dial(*socket, address, NULL, NNG_FLAG_NONBLOCK);
}

/* Prepares the members that all tests of links need. */
static inline void links_init(struct world *w) {
    here = w;
    w->service.settings = &w->settings;
    w->pool = (struct link_pool){
        .service = &w->service, .lock = &w->lock, .take = take_batch, .changed = note_link};
    assert_true(server_lock_init(&w->lock, LOCK_LINKS));
}

static inline void flush(struct world *w) {
    server_lock(&w->lock);
    server_link_flush(&w->pool);
    server_unlock(&w->lock);
}

/* Opens a link and queues a message on it. Returns its question, which the test frees. */
static inline struct link_question *send_text(struct world *w, const char *text, bool is_alone) {
    nng_msg *message = NULL;
    assert_int_equal(nng_msg_alloc(&message, 0), 0);
    assert_int_equal(nng_msg_append(message, text, strlen(text)), 0);
    struct link_question *question = (struct link_question *)calloc(1, sizeof *question);
    server_lock(&w->lock);
    struct link *link = server_link_open(&w->pool, w->address);
    assert_true(link && question);
    assert_true(server_link_send(link, question, message, 2 * DOORMAN_SECOND, is_alone));
    server_unlock(&w->lock);
    return question;
}

static inline void expect_answer(const struct link_question *question, const char *text) {
    assert_int_equal(question->result, 0);
    assert_int_equal(question->bytes, strlen(text));
    assert_memory_equal(question->text, text, question->bytes);
}

#endif
