/* doorman_server, part LINK: connections to other processes, and questions over them. Threads of
 * nng call batch_step when a batch was sent, and when its answer has arrived. Between the send and
 * the answer only these threads change the batch. If there is a second connection, over HTTP, it
 * carries one batch at a time, and the loop takes the answer: see link_http.c.
 *
 * All questions of a pool to one process share a link. If a connection breaks, nng would send its
 * questions again later. So the link ends these questions, and their owners may ask another
 * process. If an answer was lost, its units can be charged twice, but they are never granted twice.
 *
 * Most of the cost of a question is to wake threads in two processes, and a batch wakes them only
 * once. So a question is sent at once if no question that may share a batch is under way on the
 * link. Otherwise it waits until all such questions have ended, or until enough questions wait.
 * Nothing waits for a timer. */
#include "link.h"
#include "batch.h"
#include "link_http.h"
#include "../util/dial.h"

#include <nng/protocol/reqrep0/req.h>

#define CONNECT_TIME (DOORMAN_SECOND / 4) /* until a process has taken a message */
#define LINK_KEPT (60 * DOORMAN_SECOND)   /* without a question */
#define JOINED_BYTES 65536 /* the most bytes of texts that go together; a longer text goes alone */

static bool link_is_connected(const struct link *link) {
    return __atomic_load_n(&link->pipe_count, __ATOMIC_RELAXED) > 0;
}

/* ---- batches under way ---------------------------------------------------------------------- */

/* Lets the next operation of nng take the rest of the time, but at most CONNECT_TIME if it sends
 * and there is no connection. CONNECT_TIME no longer applies when a process has taken the message,
 * because that process may have decided already. */
static void batch_set_timeout(const struct link_batch *batch) {
    const bool connects = batch->state == LINK_SENDING && !link_is_connected(batch->link);
    doorman_time left = batch->ends_at - doorman_clock();
    if (connects && left > CONNECT_TIME) left = CONNECT_TIME;
    nng_aio_set_timeout(batch->aio,
                        1 + (left > 0 ? (nng_duration)(left / (DOORMAN_SECOND / 1000)) : 0));
}

/* Gives each question its part of the answer. A process that does not take batches, such as one of
 * an older version, answers with an error and has decided nothing. */
static void batch_share(struct link_batch *batch) {
    struct text_span spans[BATCH_MAX] = {
        {(const char *)nng_msg_body(batch->message), nng_msg_len(batch->message)}};
    const bool is_whole = batch->count == 1 ||
                          server_batch_split(spans[0].text, spans[0].bytes, spans) == batch->count;
    struct link_question *each = batch->questions;
    if (!is_whole) __atomic_store_n(&batch->link->refuses_batches, true, __ATOMIC_RELAXED);
    for (size_t i = 0; each; each = each->next, i++) {
        each->result = is_whole ? 0 : NNG_EAGAIN;
        each->text = spans[i].text;
        each->bytes = spans[i].bytes;
    }
}

static void batch_finish(void *question, int result, nng_msg *message) {
    struct link_batch *batch = (struct link_batch *)question;
    batch->state = LINK_DONE;
    batch->message = message;
    for (struct link_question *each = batch->questions; each; each = each->next) {
        each->result = result;
    }
    if (message) batch_share(batch);
    batch->link->pool->take(batch->link->pool, batch);
}

static void batch_step(void *argument) {
    struct link_batch *batch = (struct link_batch *)argument;
    assert(batch->state == LINK_SENDING || batch->state == LINK_WAITING);
    const int result = nng_aio_result(batch->aio);
    if (batch->state == LINK_SENDING && result == 0) {
        batch->state = LINK_WAITING;
        batch_set_timeout(batch);
        nng_ctx_recv(batch->context, batch->aio);
    } else if (batch->state == LINK_SENDING) {
        nng_msg_free(nng_aio_get_msg(batch->aio));
        nng_aio_set_msg(batch->aio, NULL);
        batch_finish(batch, result, NULL);
    } else {
        batch_finish(batch, result, result == 0 ? nng_aio_get_msg(batch->aio) : NULL);
    }
}

static void batch_send(struct link_batch *batch) {
    struct link *link = batch->link;
    nng_msg *message = batch->message;
    assert(batch->state == LINK_QUEUED && message && batch->count > 0 && !batch->is_sent);
    batch->is_sent = true;
    batch->left = batch->count;
    if (!batch->is_alone) link->sent_count++;
    batch->message = NULL;
    if (!batch->is_alone && server_link_http_is_idle(link->http)) {
        batch->state = LINK_WAITING;
        server_link_http_send(link->http, message, batch->ends_at, batch);
        return;
    }
    batch->state = LINK_SENDING;
    batch_set_timeout(batch);
    nng_aio_set_msg(batch->aio, message);
    nng_ctx_send(batch->context, batch->aio);
}

/* ---- links ---------------------------------------------------------------------------------- */

static void link_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *context) {
    struct link *link = (struct link *)context;
    struct link_pool *pool = link->pool;
    const bool ends = event == NNG_PIPE_EV_REM_POST;
    if (!ends) __atomic_store_n(&link->pipe_id, (uint32_t)nng_pipe_id(pipe), __ATOMIC_RELAXED);
    __atomic_add_fetch(&link->pipe_count, ends ? -1 : 1, __ATOMIC_RELAXED);
    if (ends) __atomic_store_n(&link->is_lost, true, __ATOMIC_RELAXED);
    pool->changed(pool, ends);
}

/* Returns whether the link has lost its connection for good, because its files of TLS are old. */
static bool link_is_over(const struct link *link) {
    return link->is_stale && !link_is_connected(link);
}

static struct link *link_find(const struct link_pool *pool, const char *address) {
    struct link *link = pool->links;
    while (link && (link_is_over(link) || strcmp(link->address, address) != 0)) link = link->next;
    return link;
}

bool server_link_is_reached(const struct link_pool *pool, const char *address) {
    assert(server_lock_is_held(pool->lock));
    const struct link *link = link_find(pool, address);
    return link && link_is_connected(link);
}

void server_link_note_tls(struct link_pool *pool) {
    assert(server_lock_is_held(pool->lock));
    for (struct link *each = pool->links; each; each = each->next) {
        each->is_stale = each->is_stale || server_url_wants_tls(each->address);
    }
}

/* Closes a link without questions. */
static void link_free(struct link *link) {
    for (struct link_batch *next = NULL, *each = link->all; each; each = next) {
        next = each->next_of_link;
        nng_aio_free(each->aio);
        free(each);
    }
    nng_close(link->socket);
    server_link_http_uninit(link->http);
    free(link->http);
    free(link);
}

static void link_on_http_closed(void *context) {
    struct link_pool *pool = (struct link_pool *)context;
    pool->changed(pool, true);
}

/* Makes a link that is not connected. Returns NULL if memory has run out. */
static struct link *link_create(struct link_pool *pool, const char *address) {
    struct link *link = (struct link *)calloc(1, sizeof *link);
    if (link) link->http = (struct link_http *)calloc(1, sizeof *link->http);
    if (!link || !link->http) {
        free(link);
        return NULL;
    }
    link->pool = pool;
    link->queue_end = &link->queue;
    snprintf(link->address, sizeof link->address, "%s", address);
    *link->http = (struct link_http){.service = pool->service,
                                     .lock = pool->lock,
                                     .to = link->address,
                                     .context = pool,
                                     .finish = batch_finish,
                                     .closed = link_on_http_closed};
    server_link_http_init(link->http);
    return link;
}

struct link *server_link_open(struct link_pool *pool, const char *address) {
    assert(server_lock_is_held(pool->lock));
    struct link *found = link_find(pool, address);
    struct link *link = found ? found : link_create(pool, address);
    if (!link) return NULL;
    link->used_at = doorman_clock();
    if (found) return found;
    const int error = server_dial(pool->service, address, &link->socket, link_on_pipe, link);
    if (error != 0) {
        server_log(pool->service->settings, LEVEL_DEBUG, "cannot ask another process", "address",
                   address, "error", nng_strerror(error), LOG_END);
        free(link->http);
        free(link);
        return NULL;
    }
    link->next = pool->links;
    pool->links = link;
    return link;
}

bool server_link_wants_http(const struct link *link) {
    const struct link_pool *pool = link->pool;
    assert(server_lock_is_held(pool->lock));
    return pool->service->loop && link->http->state == LINK_HTTP_NONE && !pool->stops &&
           link_is_connected(link) && doorman_clock() >= link->http->again_at;
}

void server_link_open_http(struct link *link, const char *address) {
    const nng_pipe pipe = {.id = __atomic_load_n(&link->pipe_id, __ATOMIC_RELAXED)};
    assert(server_link_wants_http(link));
    server_link_http_open(link->http, pipe, address);
}

static struct link_batch *batch_take(struct link *link) {
    struct link_batch *batch = link->idle;
    if (batch) {
        link->idle = batch->next;
        return batch;
    }
    batch = (struct link_batch *)calloc(1, sizeof *batch);
    if (!batch) return NULL;
    batch->link = link;
    int error = nng_aio_alloc(&batch->aio, batch_step, batch);
    if (error == 0) error = nng_ctx_open(&batch->context, link->socket);
    if (error != 0) {
        nng_aio_free(batch->aio);
        free(batch);
        return NULL;
    }
    batch->next_of_link = link->all;
    link->all = batch;
    return batch;
}

static void batch_give_back(struct link_batch *batch) {
    assert(batch->state == LINK_QUEUED || (batch->state == LINK_DONE && batch->left == 0));
    batch->state = LINK_IDLE;
    batch->is_sent = false;
    batch->questions = NULL;
    batch->next = batch->link->idle;
    batch->link->idle = batch;
}

/* ---- the queue of a link -------------------------------------------------------------------- */

static void queue_push(struct link_batch *batch) {
    struct link *link = batch->link;
    assert(batch->state == LINK_QUEUED && !*link->queue_end);
    batch->next = NULL;
    *link->queue_end = batch;
    link->queue_end = &batch->next;
    link->queue_count++;
    link->queue_bytes += nng_msg_len(batch->message);
}

static struct link_batch *queue_pop(struct link *link) {
    struct link_batch *batch = link->queue;
    assert(batch && link->queue_count > 0 && link->queue_bytes >= nng_msg_len(batch->message));
    link->queue = batch->next;
    if (!link->queue) link->queue_end = &link->queue;
    link->queue_count--;
    link->queue_bytes -= nng_msg_len(batch->message);
    return batch;
}

static bool link_takes_batches(const struct link *link) {
    return !__atomic_load_n(&link->refuses_batches, __ATOMIC_RELAXED);
}

/* Takes the first batches of a queue that can be joined. Returns how many. */
static size_t queue_take(struct link *link, struct link_batch *out[BATCH_MAX]) {
    const size_t most = link_takes_batches(link) ? BATCH_MAX : 1;
    size_t count = 0, bytes = 0;
    while (link->queue && count < most) {
        bytes += nng_msg_len(link->queue->message);
        if (count > 0 && bytes > JOINED_BYTES) break;
        out[count++] = queue_pop(link);
    }
    return count;
}

/* Returns one message for several batches, or NULL if memory has run out. */
static nng_msg *batches_join(struct link_batch *const *batches, size_t count) {
    size_t bytes[BATCH_MAX];
    nng_msg *message = server_batch_open();
    bool made = message != NULL;
    for (size_t i = 0; i < count && made; i++) {
        nng_msg *each = batches[i]->message;
        bytes[i] = nng_msg_len(each);
        made = nng_msg_append(message, nng_msg_body(each), bytes[i]) == 0 &&
               nng_msg_append(message, ",", 1) == 0;
    }
    if (made && server_batch_close(message, bytes, count)) return message;
    if (message) nng_msg_free(message);
    return NULL;
}

/* Moves the questions of the other batches into the first batch, in their order. */
static void batches_move(struct link_batch *const *batches, size_t count, nng_msg *message) {
    struct link_batch *first = batches[0];
    struct link_question *last = first->questions;
    assert(first->count == 1 && !last->next); /* those of a queue have one question each */
    for (size_t i = 0; i < count; i++) nng_msg_free(batches[i]->message);
    first->message = message;
    for (size_t i = 1; i < count; i++) {
        struct link_batch *each = batches[i];
        if (each->ends_at > first->ends_at) first->ends_at = each->ends_at;
        last->next = each->questions;
        last = last->next;
        last->batch = first;
        first->count++;
        batch_give_back(each);
    }
}

/* Sends the first questions of a queue as one message. If there is no memory for that, each
 * question goes alone. */
static void queue_send(struct link *link) {
    struct link_batch *batches[BATCH_MAX];
    size_t count = queue_take(link, batches);
    nng_msg *message = count > 1 ? batches_join(batches, count) : NULL;
    if (message) batches_move(batches, count, message);
    if (message) count = 1;
    for (size_t i = 0; i < count; i++) batch_send(batches[i]);
}

/* Returns whether the first questions of a queue must be sent now. */
static bool queue_is_due(const struct link *link) {
    const bool is_full = link->queue_count >= BATCH_MAX || link->queue_bytes >= JOINED_BYTES;
    return link->queue && (is_full || !link->sent_count || !link_takes_batches(link));
}

void server_link_flush(struct link_pool *pool) {
    assert(server_lock_is_held(pool->lock));
    for (struct link *each = pool->links; each; each = each->next) {
        while (queue_is_due(each)) queue_send(each);
    }
}

/* ---- questions ------------------------------------------------------------------------------ */

bool server_link_send(struct link *link, struct link_question *question, nng_msg *message,
                      doorman_time timeout, bool is_alone) {
    assert(server_lock_is_held(link->pool->lock));
    struct link_batch *batch = batch_take(link);
    if (!batch) return false;
    *question = (struct link_question){.batch = batch, .started_at = doorman_clock()};
    link->used_at = question->started_at;
    batch->questions = question;
    batch->count = 1;
    batch->ends_at = question->started_at + timeout;
    batch->message = message;
    batch->is_alone = is_alone || nng_msg_len(message) > JOINED_BYTES;
    batch->state = LINK_QUEUED;
    if (batch->is_alone) {
        batch_send(batch);
    } else {
        queue_push(batch);
    }
    return true;
}

void server_link_end(struct link_question *question) {
    struct link_batch *batch = question->batch;
    assert(server_lock_is_held(batch->link->pool->lock));
    assert(batch->state == LINK_DONE && batch->left > 0);
    if (--batch->left > 0) return;
    if (batch->message) nng_msg_free(batch->message);
    batch->message = NULL;
    assert(batch->is_alone || batch->link->sent_count > 0);
    if (!batch->is_alone) batch->link->sent_count--;
    batch_give_back(batch);
}

static bool link_is_used(const struct link *link) {
    bool is_used = link->queue != NULL || link->http->state != LINK_HTTP_NONE;
    for (const struct link_batch *each = link->all; each; each = each->next_of_link) {
        is_used = is_used || each->is_sent;
    }
    return is_used;
}

static void link_abort(struct link *link) {
    for (struct link_batch *each = link->all; each; each = each->next_of_link) {
        if (each->is_sent) nng_aio_abort(each->aio, NNG_ECONNRESET);
    }
    server_link_http_stop(link->http, NNG_ECONNRESET);
}

bool server_link_has_http(const struct link_pool *pool) {
    assert(server_lock_is_held(pool->lock));
    const struct link *link = pool->links;
    while (link && link->http->state == LINK_HTTP_NONE) link = link->next;
    return link != NULL;
}

doorman_time server_link_due(const struct link_pool *pool) {
    doorman_time due = DOORMAN_NEVER;
    assert(server_lock_is_held(pool->lock));
    for (const struct link *each = pool->links; each; each = each->next) {
        if (!each->http->error && each->http->ends_at < due) due = each->http->ends_at;
    }
    return due;
}

struct link *server_link_tend(struct link_pool *pool, doorman_time now) {
    assert(server_lock_is_held(pool->lock));
    struct link **at = &pool->links, *unused = NULL;
    while (*at) {
        struct link *link = *at;
        const bool is_lost = __atomic_exchange_n(&link->is_lost, false, __ATOMIC_RELAXED);
        if (is_lost) __atomic_store_n(&link->refuses_batches, false, __ATOMIC_RELAXED);
        if (is_lost) link->http->again_at = 0;
        if (is_lost || pool->stops) link_abort(link);
        if (link->http->ends_at <= now) server_link_http_stop(link->http, NNG_ETIMEDOUT);
        const bool is_old = now - link->used_at > LINK_KEPT || link_is_over(link);
        if (is_old && !link_is_used(link)) {
            *at = link->next;
            link->next = unused;
            unused = link;
        } else {
            at = &link->next;
        }
    }
    return unused;
}

void server_link_close(struct link *links) {
    for (struct link *next = NULL; links; links = next) {
        next = links->next;
        link_free(links);
    }
}
