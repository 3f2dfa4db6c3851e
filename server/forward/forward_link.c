/* doorman_server, part SHARDS: connections to other nodes, and questions over them. Threads of nng
 * call batch_step when a batch was sent, and when its answer has arrived. Between the send and the
 * answer only they use the batch.
 *
 * All questions to a process share one connection. If it breaks, nng would send them again later,
 * so the thread ends them, and asks another process of the node. The units of a lost answer can be
 * charged twice, but are never granted twice.
 *
 * Most of what a forward costs is what wakes threads of two processes, and a batch costs that only
 * once. So a question is sent at once if the process has nothing to answer, and waits otherwise
 * until it has answered, or until enough others wait. Nothing waits for a timer. */
#include "forward.h"
#include "../util/dial.h"

#include <nng/protocol/reqrep0/req.h>

#define CONNECT_TIME (DOORMAN_SECOND / 4) /* until a process has taken a message */
#define LINK_KEPT (60 * DOORMAN_SECOND)   /* without a question */
#define JOINED_BYTES 65536 /* of texts that wait no longer; a longer one goes alone */

/* ---- batches under way ---------------------------------------------------------------------- */

/* Gives the next operation the rest of the time, or at most CONNECT_TIME if the process has no
 * connection. The shorter time ends when a process has taken the message, because that process may
 * have decided already. */
static void batch_set_timeout(const struct forward_batch *batch) {
    const bool connects = batch->state == BATCH_SENDING &&
                          __atomic_load_n(&batch->link->pipe_count, __ATOMIC_RELAXED) <= 0;
    doorman_time left = batch->ends_at - doorman_clock();
    if (connects && left > CONNECT_TIME) left = CONNECT_TIME;
    nng_aio_set_timeout(batch->aio,
                        1 + (left > 0 ? (nng_duration)(left / (DOORMAN_SECOND / 1000)) : 0));
}

/* Gives each question its part of the answer. An answer that is no batch, such as an error, is the
 * answer to all of them. */
static void batch_share(struct forward_batch *batch) {
    struct forward_span spans[FORWARD_JOINED_MAX];
    const char *text = (const char *)nng_msg_body(batch->message);
    const size_t bytes = nng_msg_len(batch->message);
    const bool is_split =
        batch->count > 1 && server_batch_split(text, bytes, spans) == batch->count;
    struct forward_question *each = batch->questions;
    for (size_t i = 0; each; each = each->next, i++) {
        each->text = is_split ? spans[i].text : text;
        each->bytes = is_split ? spans[i].bytes : bytes;
    }
}

static void batch_finish(struct forward_batch *batch, int result, nng_msg *message) {
    batch->state = BATCH_DONE;
    batch->message = message;
    for (struct forward_question *each = batch->questions; each; each = each->next) {
        each->result = result;
    }
    if (message) batch_share(batch);
    batch->link->forward->take_batch(batch->link->forward, batch);
}

static void batch_step(void *argument) {
    struct forward_batch *batch = (struct forward_batch *)argument;
    const int result = nng_aio_result(batch->aio);
    if (batch->state == BATCH_SENDING && result == 0) {
        batch->state = BATCH_WAITING;
        batch_set_timeout(batch);
        nng_ctx_recv(batch->context, batch->aio);
    } else if (batch->state == BATCH_SENDING) {
        nng_msg_free(nng_aio_get_msg(batch->aio));
        nng_aio_set_msg(batch->aio, NULL);
        batch_finish(batch, result, NULL);
    } else {
        batch_finish(batch, result, result == 0 ? nng_aio_get_msg(batch->aio) : NULL);
    }
}

static void batch_send(struct forward_batch *batch) {
    struct forward_link *link = batch->link;
    nng_msg *message = batch->message;
    batch->message = NULL;
    batch->state = BATCH_SENDING;
    batch->is_sent = true;
    batch->left = batch->count;
    if (!batch->is_alone) link->sent_count++;
    batch_set_timeout(batch);
    nng_aio_set_msg(batch->aio, message);
    nng_ctx_send(batch->context, batch->aio);
}

/* ---- links ---------------------------------------------------------------------------------- */

static void link_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *context) {
    struct forward_link *link = (struct forward_link *)context;
    (void)pipe;
    const bool ends = event == NNG_PIPE_EV_REM_POST;
    __atomic_add_fetch(&link->pipe_count, ends ? -1 : 1, __ATOMIC_RELAXED);
    if (!ends) return;
    __atomic_store_n(&link->is_lost, true, __ATOMIC_RELAXED);
    server_lock(&link->forward->lock);
    server_forward_call(link->forward);
    server_unlock(&link->forward->lock);
}

static struct forward_link *link_find(const struct forward *forward, const char *address) {
    struct forward_link *link = forward->links;
    while (link && strcmp(link->address, address) != 0) link = link->next;
    return link;
}

/* Closes a link without questions. */
static void link_free(struct forward_link *link) {
    for (struct forward_batch *next = NULL, *each = link->all; each; each = next) {
        next = each->next_of_link;
        nng_aio_free(each->aio);
        free(each);
    }
    if (link->has_socket) nng_close(link->socket);
    free(link);
}

static struct forward_link *link_open(struct forward *forward, const char *address) {
    struct forward_link *link = link_find(forward, address);
    if (link) return link;
    link = (struct forward_link *)calloc(1, sizeof *link);
    if (!link) return NULL;
    link->forward = forward;
    link->queue_end = &link->queue;
    snprintf(link->address, sizeof link->address, "%s", address);
    const int error = server_dial(forward->service, address, &link->socket, &link->has_socket,
                                  link_on_pipe, link);
    if (error != 0) {
        server_log(forward->service->settings, LEVEL_DEBUG, "cannot ask another node", "address",
                   address, "error", nng_strerror(error), LOG_END);
        link_free(link);
        return NULL;
    }
    link->next = forward->links;
    forward->links = link;
    return link;
}

static struct forward_batch *batch_take(struct forward_link *link) {
    struct forward_batch *batch = link->idle;
    if (batch) {
        link->idle = batch->next;
        return batch;
    }
    batch = (struct forward_batch *)calloc(1, sizeof *batch);
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

static void batch_give_back(struct forward_batch *batch) {
    batch->state = BATCH_IDLE;
    batch->is_sent = false;
    batch->questions = NULL;
    batch->next = batch->link->idle;
    batch->link->idle = batch;
}

/* ---- the queue of a link -------------------------------------------------------------------- */

static void queue_push(struct forward_batch *batch) {
    struct forward_link *link = batch->link;
    batch->next = NULL;
    *link->queue_end = batch;
    link->queue_end = &batch->next;
    link->queue_count++;
    link->queue_bytes += nng_msg_len(batch->message);
}

static struct forward_batch *queue_pop(struct forward_link *link) {
    struct forward_batch *batch = link->queue;
    link->queue = batch->next;
    if (!link->queue) link->queue_end = &link->queue;
    link->queue_count--;
    link->queue_bytes -= nng_msg_len(batch->message);
    return batch;
}

/* Takes the first batches of a queue that can be joined. Returns how many. */
static size_t queue_take(struct forward_link *link, struct forward_batch *out[FORWARD_JOINED_MAX]) {
    size_t count = 0, bytes = 0;
    while (link->queue && count < FORWARD_JOINED_MAX) {
        bytes += nng_msg_len(link->queue->message);
        if (count > 0 && bytes > JOINED_BYTES) break;
        out[count++] = queue_pop(link);
    }
    return count;
}

/* Returns the message of a batch of several ones, or NULL if memory has run out. */
static nng_msg *batches_join(struct forward_batch *const *batches, size_t count) {
    size_t bytes[FORWARD_JOINED_MAX];
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

/* Gives the questions of other batches to the first one, in their order. */
static void batches_move(struct forward_batch *const *batches, size_t count, nng_msg *message) {
    struct forward_batch *first = batches[0];
    struct forward_question *last = first->questions;
    for (size_t i = 0; i < count; i++) nng_msg_free(batches[i]->message);
    first->message = message;
    for (size_t i = 1; i < count; i++) {
        struct forward_batch *each = batches[i];
        if (each->ends_at < first->ends_at) first->ends_at = each->ends_at;
        last->next = each->questions;
        last = last->next;
        last->batch = first;
        first->count++;
        batch_give_back(each);
    }
}

/* Sends the first questions of a queue as one. If there is no memory for that, each goes alone. */
static void queue_send(struct forward_link *link) {
    struct forward_batch *batches[FORWARD_JOINED_MAX];
    size_t count = queue_take(link, batches);
    nng_msg *message = count > 1 ? batches_join(batches, count) : NULL;
    if (message) batches_move(batches, count, message);
    if (message) count = 1;
    for (size_t i = 0; i < count; i++) batch_send(batches[i]);
}

void server_forward_flush(struct forward *forward) {
    for (struct forward_link *each = forward->links; each; each = each->next) {
        while (each->queue && (!each->sent_count || each->queue_count >= FORWARD_JOINED_MAX ||
                               each->queue_bytes >= JOINED_BYTES)) {
            queue_send(each);
        }
    }
}

/* ---- questions ------------------------------------------------------------------------------ */

struct forward_question *server_forward_send(struct forward *forward, const char *address,
                                             nng_msg *message, doorman_time timeout,
                                             bool is_alone) {
    struct forward_link *link = link_open(forward, address);
    struct forward_question *question =
        link ? (struct forward_question *)calloc(1, sizeof *question) : NULL;
    struct forward_batch *batch = question ? batch_take(link) : NULL;
    if (!batch) {
        free(question);
        return NULL;
    }
    link->used_at = question->started_at = doorman_clock();
    question->batch = batch;
    batch->questions = question;
    batch->count = 1;
    batch->ends_at = question->started_at + timeout;
    batch->message = message;
    batch->is_alone = is_alone || nng_msg_len(message) > JOINED_BYTES;
    batch->state = BATCH_QUEUED;
    if (batch->is_alone) {
        batch_send(batch);
    } else {
        queue_push(batch);
    }
    return question;
}

void server_forward_end(struct forward_question *question) {
    struct forward_batch *batch = question->batch;
    assert(batch->state == BATCH_DONE && batch->left > 0);
    free(question->indexes);
    free(question);
    if (--batch->left > 0) return;
    if (batch->message) nng_msg_free(batch->message);
    batch->message = NULL;
    if (!batch->is_alone) batch->link->sent_count--;
    batch_give_back(batch);
}

static bool link_is_used(const struct forward_link *link) {
    bool is_used = link->queue != NULL;
    for (const struct forward_batch *each = link->all; each; each = each->next_of_link) {
        is_used = is_used || each->is_sent;
    }
    return is_used;
}

struct forward_link *server_forward_tend(struct forward *forward, doorman_time now) {
    struct forward_link **at = &forward->links, *unused = NULL;
    while (*at) {
        struct forward_link *link = *at;
        const bool is_lost = __atomic_exchange_n(&link->is_lost, false, __ATOMIC_RELAXED);
        if (is_lost || forward->stops) {
            for (struct forward_batch *each = link->all; each; each = each->next_of_link) {
                if (each->is_sent) nng_aio_abort(each->aio, NNG_ECONNRESET);
            }
        }
        if (now - link->used_at > LINK_KEPT && !link_is_used(link)) {
            *at = link->next;
            link->next = unused;
            unused = link;
        } else {
            at = &link->next;
        }
    }
    return unused;
}

void server_forward_close_links(struct forward_link *links) {
    for (struct forward_link *next = NULL; links; links = next) {
        next = links->next;
        link_free(links);
    }
}
