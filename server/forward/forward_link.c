/* doorman_server, part SHARDS: connections to other nodes, and questions over them. The thread of
 * the part makes and ends questions. Threads of nng call question_step when a message was sent or
 * has arrived.
 *
 * All questions to a process share one connection. If it breaks, nng would send them again later,
 * so the thread ends them, and asks another process of the node. The units of a lost answer can be
 * charged twice, but are never granted twice. */
#include "forward.h"
#include "../util/dial.h"

#include <nng/protocol/reqrep0/req.h>

#define CONNECT_TIME (DOORMAN_SECOND / 4) /* until a process has taken a message */
#define LINK_KEPT (60 * DOORMAN_SECOND)   /* without a question */

void server_forward_note_done(struct forward *forward, struct forward_question *question) {
    server_lock(&forward->lock);
    if (question) question->next = forward->done;
    if (question) forward->done = question;
    pthread_cond_signal(&forward->wake);
    server_unlock(&forward->lock);
}

/* Gives the next operation the rest of the time, or at most CONNECT_TIME if the process has no
 * connection. The shorter time ends when a process has taken the message, because that process may
 * have decided already. */
static void question_set_timeout(const struct forward_question *question) {
    const bool connects = question->state == QUESTION_SENDING &&
                          __atomic_load_n(&question->link->pipe_count, __ATOMIC_RELAXED) <= 0;
    doorman_time left = question->ends_at - doorman_clock();
    if (connects && left > CONNECT_TIME) left = CONNECT_TIME;
    nng_aio_set_timeout(question->aio,
                        1 + (left > 0 ? (nng_duration)(left / (DOORMAN_SECOND / 1000)) : 0));
}

static void question_finish(struct forward_question *question, int result, nng_msg *message) {
    question->state = QUESTION_DONE;
    question->result = result;
    question->message = message;
    server_forward_note_done(question->link->forward, question);
}

static void question_step(void *argument) {
    struct forward_question *question = (struct forward_question *)argument;
    const int result = nng_aio_result(question->aio);
    if (question->state == QUESTION_SENDING && result == 0) {
        question->state = QUESTION_WAITING;
        question_set_timeout(question);
        nng_ctx_recv(question->context, question->aio);
    } else if (question->state == QUESTION_SENDING) {
        nng_msg_free(nng_aio_get_msg(question->aio));
        nng_aio_set_msg(question->aio, NULL);
        question_finish(question, result, NULL);
    } else {
        question_finish(question, result, result == 0 ? nng_aio_get_msg(question->aio) : NULL);
    }
}

static void link_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *context) {
    struct forward_link *link = (struct forward_link *)context;
    (void)pipe;
    const bool ends = event == NNG_PIPE_EV_REM_POST;
    __atomic_add_fetch(&link->pipe_count, ends ? -1 : 1, __ATOMIC_RELAXED);
    if (!ends) return;
    __atomic_store_n(&link->is_lost, true, __ATOMIC_RELAXED);
    server_forward_note_done(link->forward, NULL);
}

static struct forward_link *link_find(const struct forward *forward, const char *address) {
    struct forward_link *link = forward->links;
    while (link && strcmp(link->address, address) != 0) link = link->next;
    return link;
}

/* Closes a link without questions under way. */
static void link_free(struct forward_link *link) {
    for (struct forward_question *next = NULL, *each = link->all; each; each = next) {
        next = each->next_of_link;
        nng_aio_free(each->aio);
        free(each->indexes);
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

static struct forward_question *question_take(struct forward_link *link) {
    struct forward_question *question = link->idle;
    if (question) {
        link->idle = question->next;
        return question;
    }
    question = (struct forward_question *)calloc(1, sizeof *question);
    if (!question) return NULL;
    question->link = link;
    int error = nng_aio_alloc(&question->aio, question_step, question);
    if (error == 0) error = nng_ctx_open(&question->context, link->socket);
    if (error != 0) {
        nng_aio_free(question->aio);
        free(question);
        return NULL;
    }
    question->next_of_link = link->all;
    link->all = question;
    return question;
}

struct forward_question *server_forward_send(struct forward *forward, const char *address,
                                             nng_msg *message, doorman_time timeout) {
    struct forward_link *link = link_open(forward, address);
    struct forward_question *question = link ? question_take(link) : NULL;
    if (!question) return NULL;
    link->used_at = question->started_at = doorman_clock();
    question->ends_at = question->started_at + timeout;
    question->state = QUESTION_SENDING;
    question->message = NULL;
    question->next = NULL;
    question_set_timeout(question);
    nng_aio_set_msg(question->aio, message);
    nng_ctx_send(question->context, question->aio);
    return question;
}

void server_forward_end(struct forward_question *question) {
    assert(question->state == QUESTION_DONE);
    if (question->message) nng_msg_free(question->message);
    free(question->indexes);
    question->message = NULL;
    question->indexes = NULL;
    question->state = QUESTION_IDLE;
    question->next = question->link->idle;
    question->link->idle = question;
}

static bool link_is_used(const struct forward_link *link) {
    bool is_used = false;
    for (const struct forward_question *each = link->all; each; each = each->next_of_link) {
        is_used = is_used || each->job;
    }
    return is_used;
}

void server_forward_tend(struct forward *forward, doorman_time now) {
    struct forward_link **at = &forward->links;
    while (*at) {
        struct forward_link *link = *at;
        const bool is_lost = __atomic_exchange_n(&link->is_lost, false, __ATOMIC_RELAXED);
        if (is_lost || forward->is_stopping) {
            for (struct forward_question *each = link->all; each; each = each->next_of_link) {
                if (each->job) nng_aio_abort(each->aio, NNG_ECONNRESET);
            }
        }
        if (now - link->used_at > LINK_KEPT && !link_is_used(link)) {
            *at = link->next;
            link_free(link);
        } else {
            at = &link->next;
        }
    }
}

void server_forward_close_links(struct forward *forward) {
    for (struct forward_link *next = NULL, *each = forward->links; each; each = next) {
        next = each->next;
        link_free(each);
    }
    forward->links = NULL;
}
