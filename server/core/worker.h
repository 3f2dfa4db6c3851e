/* doorman_server: workers, which receive messages over nng and answer them. Only the core
 * includes this file. */
#ifndef DOORMAN_SERVER_WORKER_H
#define DOORMAN_SERVER_WORKER_H

#include "message.h"

/* A worker keeps its buffers for the next message, unless they are larger than this size. */
#define WORKER_BUFFER_MAX ((size_t)256 << 10)

/* A send blocks only if the peer keeps sending requests and does not read the responses. Each
 * response that waits then occupies one worker. After the timeout the server closes the connection
 * of that peer, which frees all these workers at once. The timeout is long while at most half of
 * the workers send. It is short while more workers send, because one such peer could otherwise
 * block all other peers. A still shorter timeout would be wrong: on a busy machine threads wait for
 * tens of milliseconds, which is not the fault of the peer.
 *
 * A worker that retires blocks no peer, because another worker receives in its place (waiting.c).
 * So it is not counted. Its timeout is the longest, because thousands of permits may end their wait
 * at once, and then a response can wait for seconds until nng has sent the others. */
#define SEND_TIMEOUT_MS 250
#define SEND_TIMEOUT_SHORT_MS 50
#define SEND_TIMEOUT_RETIRED_MS 10000

static void worker_end(struct worker *worker) {
    if (worker->sending && !worker->retires) {
        __atomic_sub_fetch(&worker->service->sending_count, 1, __ATOMIC_RELAXED);
    }
    worker->sending = false;
    if (worker->retires) {
        worker->service->waits->retire_worker(worker);
    } else {
        server_worker_receive(worker);
    }
}

void server_worker_receive(struct worker *worker) {
    assert(!worker->sending);
    nng_aio_set_timeout(worker->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(worker->context, worker->aio);
}

/* Counts a worker that begins to send, unless it retires. Returns the timeout of its send. */
static nng_duration worker_count_send(const struct worker *worker) {
    if (worker->retires) return SEND_TIMEOUT_RETIRED_MS;
    unsigned sending = __atomic_add_fetch(&worker->service->sending_count, 1, __ATOMIC_RELAXED);
    return sending <= WORKER_COUNT / 2 ? SEND_TIMEOUT_MS : SEND_TIMEOUT_SHORT_MS;
}

static void worker_send(struct worker *worker, nng_msg *message) {
    assert(!worker->sending && message);
    worker->sending = true;
    nng_aio_set_timeout(worker->aio, worker_count_send(worker));
    nng_aio_set_msg(worker->aio, message);
    nng_ctx_send(worker->context, worker->aio);
}

static void worker_discard(struct worker *worker, nng_msg *message) {
    nng_msg_free(message);
    nng_aio_set_msg(worker->aio, NULL);
}

/* Replaces the text of the message with the response, and sends it. If memory runs out, the peer
 * gets no response, and retries. */
static void worker_answer(struct worker *worker) {
    const doorman_buffer *response = &worker->exchange.reply;
    nng_msg *message = worker->message;
    nng_msg_clear(message);
    bool answered =
        response->bytes > 0 && nng_msg_append(message, response->text, response->bytes) == 0;
    if (response->capacity > WORKER_BUFFER_MAX) doorman_json_exchange_uninit(&worker->exchange);
    if (answered) {
        worker_send(worker, message);
    } else {
        worker_discard(worker, message);
        worker_end(worker);
    }
}

/* Sends or discards the response to a message whose permits wait no longer.
 *   answers   false: no peer waits for the response */
static void worker_finish(struct waiter *waiter, bool answers) {
    struct worker *worker = server_worker_of(waiter);
    if (answers) {
        worker_answer(worker);
    } else {
        worker_discard(worker, worker->message);
        worker_end(worker);
    }
}

/* Decides one message. Returns false if its reply comes later: it waits, or was forwarded.
 *   may_wait   other messages do not wait for this worker */
static bool worker_decide(struct worker *worker, struct text_span text, bool may_wait) {
    struct service *service = worker->service;
    const nng_pipe pipe = nng_msg_get_pipe(worker->message);
    const struct waiting_calls *waits = service->waits;
    const bool is_signed =
        service->forwards && service->forwards->is_signed(service, text.text, text.bytes);
    worker->exchange.forbids_administration = !is_signed; /* nng does not say who asks */
    worker->exchange.forbids_figures = !is_signed;
    worker->waiter = (struct waiter){.exchange = &worker->exchange,
                                     .peer = {.pipe = pipe},
                                     .connection = (uint64_t)nng_pipe_id(pipe),
                                     .prepare = waits && may_wait ? waits->replace_worker : NULL,
                                     .finish = worker_finish};
    return server_handle_message(service, &worker->waiter, text.text, text.bytes);
}

/* Decides the messages of a batch. Returns their answers, or NULL if memory has run out or the
 * answers are too long. */
static nng_msg *worker_decide_all(struct worker *worker, const struct text_span *messages,
                                  size_t count) {
    const struct batch_calls *batches = worker->service->batches;
    size_t bytes[BATCH_MAX];
    nng_msg *answer = batches->open();
    bool made = answer != NULL;
    for (size_t i = 0; i < count && made; i++) {
        (void)worker_decide(worker, messages[i], false);
        const doorman_buffer *reply = &worker->exchange.reply;
        bytes[i] = reply->bytes;
        /* a batch has the limit of one message, so that no peer fills the memory */
        const bool fits = nng_msg_len(answer) + reply->bytes < DOORMAN_MESSAGE_BYTES_MAX;
        made = fits && reply->bytes > 0 && nng_msg_append(answer, reply->text, reply->bytes) == 0 &&
               nng_msg_append(answer, ",", 1) == 0;
    }
    if (made && batches->close(answer, bytes, count)) return answer;
    if (answer) nng_msg_free(answer);
    return NULL;
}

/* Answers a batch, unless memory has run out or the answers are too long. */
static void worker_handle_all(struct worker *worker, const struct text_span *messages,
                              size_t count) {
    nng_msg *answer = worker_decide_all(worker, messages, count), *message = worker->message;
    nng_msg_clear(message);
    const bool answered =
        answer && nng_msg_append(message, nng_msg_body(answer), nng_msg_len(answer)) == 0;
    if (answer) nng_msg_free(answer);
    if (answered) {
        worker_send(worker, message);
    } else {
        worker_discard(worker, message);
        worker_end(worker);
    }
}

static void worker_handle(struct worker *worker, nng_msg *message) {
    const struct text_span text = {(const char *)nng_msg_body(message), nng_msg_len(message)};
    const struct batch_calls *batches = worker->service->batches;
    struct text_span messages[BATCH_MAX];
    const size_t count = batches ? batches->split(text.text, text.bytes, messages) : 0;
    worker->message = message;
    if (count > 0) {
        worker_handle_all(worker, messages, count);
    } else if (worker_decide(worker, text, true)) {
        worker_answer(worker);
    }
}

/* nng calls this function when a worker has received a request or sent a response. nng also calls
 * it after an error. The worker then answers the request or, unless it retires, receives the next
 * one, until the socket is closed. */
void server_worker_step(void *argument) {
    struct worker *worker = (struct worker *)argument;
    int result = nng_aio_result(worker->aio);
    nng_msg *message = worker->sending || result == 0 ? nng_aio_get_msg(worker->aio) : NULL;
    if (!worker->sending && result == 0) {
        worker_handle(worker, message);
        return;
    }
    if (worker->sending && result != 0) {
        if (result == NNG_ETIMEDOUT) nng_pipe_close(nng_msg_get_pipe(message));
        worker_discard(worker, message);
    }
    if (result != NNG_ECLOSED && result != NNG_ECANCELED) worker_end(worker);
}

#endif
