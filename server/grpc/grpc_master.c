/* doorman_server, part GRPC: asks another process that is the master (W4). A gateway follows no
 * redirects, so a process that is not the master asks the master over nng, as an agent does. The
 * master answers such a message itself, or says that it is not the master: there is one hop.
 *
 * The loop makes and ends questions. Each has a context of a REQ socket, so all share one
 * connection. A thread of nng calls question_step when a message was sent or has arrived. It adds
 * the question to the list `done`, and wakes the loop. The loop takes it from there.
 *
 *     state     meaning                           event            next
 *     SENDING   nng has the message               it was sent      WAITING
 *     WAITING   the master has not answered yet   the answer       DONE
 *     (both)                                      error, timeout   DONE
 *     DONE      in the list, until the loop frees it
 *
 * A connection that breaks makes nng send the message again, if there is a new one in time. So the
 * units of a lost answer can be charged twice, but are never granted twice. */
#include "grpc.h"
#include "../http/decision.h"
#include "../util/dial.h"

#include <unistd.h>

#define QUESTION_MAX 4096 /* at the same time */
#define QUESTION_TIMEOUT (2 * DOORMAN_SECOND)

enum question_state { QUESTION_SENDING, QUESTION_WAITING, QUESTION_DONE };

struct grpc_question {
    struct grpc_master *master;
    enum question_state state;
    void *owner; /* only the loop uses it */
    nng_ctx context;
    nng_aio *aio;         /* NULL: another part asks other nodes */
    doorman_time ends_at; /* an aio has a timeout for one operation, and a question has two */
    int result;
    nng_msg *message;
    struct grpc_question *next, *previous; /* of all; only the loop uses them */
    struct grpc_question *next_done;
};

struct grpc_master {
    struct service *service;
    int wake; /* an eventfd */
    nng_socket socket;
    bool has_socket;
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* "": none */
    struct grpc_question *all;
    size_t count;
    int pipe_count;   /* atomic */
    bool has_new_tls; /* atomic: the files of TLS have changed since the socket was opened */
    struct lock lock; /* guards the list of what is done */
    struct grpc_question *done;
};

/* ---- the connection ------------------------------------------------------------------------- */

static void master_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    struct grpc_master *master = (struct grpc_master *)argument;
    const uint64_t one = 1;
    (void)pipe;
    __atomic_add_fetch(&master->pipe_count, event == NNG_PIPE_EV_REM_POST ? -1 : 1,
                       __ATOMIC_RELAXED);
    ssize_t written = write(master->wake, &one, sizeof one); /* the health may have changed */
    (void)written;
}

static int master_open(struct grpc_master *master) {
    __atomic_store_n(&master->has_new_tls, false, __ATOMIC_RELAXED); /* before they are read */
    return server_dial(master->service, master->address, &master->socket, &master->has_socket,
                       master_on_pipe, master);
}

bool server_grpc_master_is_reached(const struct grpc_master *master) {
    return master->has_socket && __atomic_load_n(&master->pipe_count, __ATOMIC_RELAXED) > 0;
}

/* ---- questions ------------------------------------------------------------------------------ */

static void question_finish(struct grpc_question *question, int result, nng_msg *message) {
    struct grpc_master *master = question->master;
    const uint64_t one = 1;
    question->state = QUESTION_DONE;
    question->result = result;
    question->message = message;
    server_lock(&master->lock);
    question->next_done = master->done;
    master->done = question;
    server_unlock(&master->lock);
    ssize_t written = write(master->wake, &one, sizeof one);
    (void)written; /* it fails only if the loop is awake already */
}

/* Gives the next operation the rest of the time. */
static void question_set_timeout(const struct grpc_question *question) {
    doorman_time left = question->ends_at - doorman_clock();
    nng_duration ms = left > 0 ? (nng_duration)(left / (DOORMAN_SECOND / 1000)) : 0;
    nng_aio_set_timeout(question->aio, ms + 1);
}

static void question_step(void *argument) {
    struct grpc_question *question = (struct grpc_question *)argument;
    int result = nng_aio_result(question->aio);
    if (question->state == QUESTION_SENDING && result == 0) {
        question->state = QUESTION_WAITING;
        question_set_timeout(question);
        nng_ctx_recv(question->context, question->aio);
    } else if (question->state == QUESTION_SENDING) {
        nng_msg_free(nng_aio_get_msg(question->aio));
        question_finish(question, result, NULL);
    } else {
        question_finish(question, result, result == 0 ? nng_aio_get_msg(question->aio) : NULL);
    }
}

/* Ends a question, which is in the list `done` then. nng takes no receive after the stop, and calls
 * back no more. No effect on a question to other nodes: the part that forwards it ends it. */
static void question_stop(struct grpc_question *question) {
    if (!question->aio) return;
    nng_aio_stop(question->aio);
    if (question->state != QUESTION_DONE) question_finish(question, NNG_ECLOSED, NULL);
    nng_aio_free(question->aio);
    question->aio = NULL;
}

/* Ends the connection and all questions. Their aios are freed before the socket is closed: see
 * doorman_transport_destroy. */
static void master_close(struct grpc_master *master) {
    for (struct grpc_question *each = master->all; each; each = each->next) question_stop(each);
    if (master->has_socket) nng_close(master->socket);
    master->has_socket = false;
}

void server_grpc_master_note_tls(struct grpc_master *master) {
    __atomic_store_n(&master->has_new_tls, true, __ATOMIC_RELAXED);
}

/* A dialer keeps the files of TLS that it was made with. So once they have changed and the last
 * connection is lost, there is a new dialer. */
void server_grpc_master_set(struct grpc_master *master, const char *address) {
    bool is_same = strcmp(master->address, address) == 0;
    bool is_stale = __atomic_load_n(&master->has_new_tls, __ATOMIC_RELAXED) &&
                    server_url_wants_tls(address) && !server_grpc_master_is_reached(master);
    if (is_same && !is_stale && (master->has_socket || !address[0])) return;
    master_close(master);
    snprintf(master->address, sizeof master->address, "%s", address);
    if (!address[0]) return;
    int error = master_open(master);
    if (error == 0) return;
    server_log(master->service->settings, LEVEL_DEBUG, "gRPC cannot ask the master", "master",
               address, "error", nng_strerror(error), LOG_END);
    master_close(master); /* the next look tries again */
}

/* Frees a question. Waits for the end of its callback. */
static void question_free(struct grpc_question *question) {
    struct grpc_master *master = question->master;
    if (question->previous) question->previous->next = question->next;
    if (question->next) question->next->previous = question->previous;
    if (master->all == question) master->all = question->next;
    master->count--;
    if (question->aio) nng_ctx_close(question->context);
    nng_aio_free(question->aio);
    free(question);
}

static nng_msg *question_message(const struct grpc_call *call) {
    doorman_buffer text = {.text = NULL};
    nng_msg *message = NULL;
    bool made = doorman_json_request(&call->request, &text) == DOORMAN_OK &&
                nng_msg_alloc(&message, 0) == 0;
    if (made && nng_msg_append(message, text.text, text.bytes) != 0) {
        nng_msg_free(message);
        message = NULL;
    }
    doorman_buffer_uninit(&text);
    return message;
}

static void question_add(struct grpc_question *question) {
    struct grpc_master *master = question->master;
    question->next = master->all;
    if (master->all) master->all->previous = question;
    master->all = question;
    master->count++;
}

static struct grpc_question *question_create(struct grpc_master *master) {
    struct grpc_question *question = (struct grpc_question *)calloc(1, sizeof *question);
    if (!question) return NULL;
    question->master = master;
    int error = nng_aio_alloc(&question->aio, question_step, question);
    if (error == 0) error = nng_ctx_open(&question->context, master->socket);
    if (error != 0) {
        nng_aio_free(question->aio);
        free(question);
        return NULL;
    }
    question_add(question);
    return question;
}

struct grpc_question *server_grpc_master_ask(struct grpc_master *master,
                                             const struct grpc_call *call, void *owner,
                                             doorman_time timeout, struct grpc_status *status) {
    if (!master->has_socket) {
        server_grpc_fail(status, GRPC_UNAVAILABLE, "no process is known to be the master");
        return NULL;
    }
    struct grpc_question *question = master->count < QUESTION_MAX ? question_create(master) : NULL;
    nng_msg *message = question ? question_message(call) : NULL;
    if (!message) {
        if (question) question_free(question);
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "too many calls wait for the master");
        return NULL;
    }
    if (timeout > QUESTION_TIMEOUT) timeout = QUESTION_TIMEOUT;
    question->owner = owner;
    question->ends_at = doorman_clock() + timeout;
    question_set_timeout(question);
    nng_aio_set_msg(question->aio, message);
    nng_ctx_send(question->context, question->aio);
    return question;
}

void server_grpc_master_forget(struct grpc_question *question) { question->owner = NULL; }

bool server_grpc_master_next(struct grpc_master *master, struct grpc_answer *out) {
    server_lock(&master->lock);
    struct grpc_question *question = master->done;
    if (question) master->done = question->next_done;
    server_unlock(&master->lock);
    if (!question) return false;
    *out = (struct grpc_answer){question->owner, question->result, question->message};
    question_free(question);
    return true;
}

/* ---- other nodes ---------------------------------------------------------------------------- */

/* The part that forwards messages calls this, on any thread. */
static void question_on_forwarded(void *context, const char *text, size_t bytes) {
    struct grpc_question *question = (struct grpc_question *)context;
    nng_msg *message = NULL;
    int result = text ? nng_msg_alloc(&message, 0) : NNG_ECLOSED;
    if (result == 0) result = nng_msg_append(message, text, bytes);
    if (result != 0 && message) nng_msg_free(message);
    question_finish(question, result, result == 0 ? message : NULL);
}

struct grpc_question *server_grpc_master_forward(struct grpc_master *master,
                                                 const struct grpc_call *call, void *owner,
                                                 doorman_time timeout, struct grpc_status *status) {
    struct grpc_question *question =
        master->count < QUESTION_MAX ? (struct grpc_question *)calloc(1, sizeof *question) : NULL;
    if (!question) {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "too many calls wait for other nodes");
        return NULL;
    }
    question->master = master;
    question->owner = owner;
    question_add(question);
    const struct forward_asker asker = {question_on_forwarded, question, timeout};
    const char *why = master->service->forwards->ask(master->service, &call->request, asker);
    if (!why) return question;
    question_free(question);
    server_grpc_fail(status, GRPC_UNAVAILABLE, "%s", why);
    return NULL;
}

/* ---- answers -------------------------------------------------------------------------------- */

static const char *answer_text(const cJSON *object, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static bool answer_is_true(const cJSON *object, const char *name) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* Sets the status of an answer that has no decision. */
static bool answer_set_failed(const struct grpc_call *call, const cJSON *tree,
                              struct grpc_status *status) {
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    const char *code = answer_text(error, "code"), *message = answer_text(error, "message");
    if (!code) {
        return server_grpc_fail(status, GRPC_UNAVAILABLE,
                                "the process that was asked is not the master any more");
    }
    bool is_invalid = strcmp(code, "INVALID_ARGUMENT") == 0;
    return server_grpc_fail(status, is_invalid ? GRPC_FAILED_PRECONDITION : GRPC_UNAVAILABLE,
                            call->is_away ? "another node: %.180s" : "the master: %.180s",
                            message ? message : code);
}

/* Returns whether no node has decided about an entry. */
static bool answer_is_moved(const cJSON *list) {
    const cJSON *each = NULL;
    bool is_moved = false;
    cJSON_ArrayForEach(each, list) {
        const char *reason = answer_text(each, "reason");
        is_moved = is_moved || (reason && strcmp(reason, "MOVED") == 0);
    }
    return is_moved;
}

static bool answer_read(struct grpc_call *call, const cJSON *tree, struct decision *room,
                        struct grpc_status *status) {
    bool is_permit = call->step == GRPC_STEP_PERMIT, settles = call->step == GRPC_STEP_SETTLE;
    const char *method = is_permit ? "acquire" : settles ? "settle" : "report";
    const cJSON *body = cJSON_GetObjectItemCaseSensitive(tree, method);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(body, is_permit ? "permit" : "entry");
    const cJSON *first = cJSON_GetArrayItem(list, 0);
    doorman_response response = {.is_master = true};
    if (!first) return answer_set_failed(call, tree, status);
    if (answer_is_moved(list)) {
        return server_grpc_fail(status, GRPC_UNAVAILABLE,
                                "MOVED: the shard of a key moves to another node: send it again");
    }
    if (is_permit) {
        if (!server_decision_read(room, first, call->permit.item_count)) {
            return server_grpc_fail(status, GRPC_INTERNAL, "the answer of the master is not valid");
        }
        response.permits = &room->permit;
        response.permit_count = 1;
    }
    const char *name = answer_text(first, "reason");
    doorman_reason reason = server_decision_reason(name);
    if (name && !reason) reason = DOORMAN_REASON_REPEATED; /* a later version has refused it */
    const doorman_settlement settled = {.late = answer_is_true(first, "late"),
                                        .unknown = answer_is_true(first, "unknown"),
                                        .reason = reason};
    if (settles) response.settlements = &settled;
    if (settles) response.settlement_count = 1;
    server_lock(&call->service->lock);
    bool done = server_grpc_call_take(call, &response, status);
    server_unlock(&call->service->lock);
    return done;
}

bool server_grpc_master_read(struct grpc_call *call, const struct grpc_answer *answer,
                             struct grpc_status *status) {
    if (answer->result != 0) {
        return server_grpc_fail(status, GRPC_UNAVAILABLE, "the master does not answer: %s",
                                nng_strerror(answer->result));
    }
    struct decision *room = (struct decision *)malloc(sizeof *room);
    cJSON *tree = cJSON_ParseWithLength((const char *)nng_msg_body(answer->message),
                                        nng_msg_len(answer->message));
    bool done = room && tree ? answer_read(call, tree, room, status)
                             : server_grpc_fail(status, GRPC_INTERNAL,
                                                "the answer of the master is not "
                                                "valid");
    cJSON_Delete(tree);
    free(room);
    return done;
}

/* ---- the start and the end ------------------------------------------------------------------ */

struct grpc_master *server_grpc_master_create(struct service *service, int wake) {
    struct grpc_master *master = (struct grpc_master *)calloc(1, sizeof *master);
    if (!master || !server_lock_init(&master->lock, LOCK_GRPC)) {
        free(master);
        return NULL;
    }
    master->service = service;
    master->wake = wake;
    return master;
}

void server_grpc_master_destroy(struct grpc_master *master) {
    struct grpc_answer answer;
    if (!master) return;
    master_close(master); /* then all questions are in the list `done` */
    while (server_grpc_master_next(master, &answer)) {
        if (answer.message) nng_msg_free(answer.message);
    }
    assert(!master->all);
    server_lock_uninit(&master->lock);
    free(master);
}
