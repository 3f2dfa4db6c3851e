/* doorman_server, part GRPC: asks another process that is the master (W4). A gateway follows no
 * redirects, so a process that is not the master asks the master over nng, as an agent does. The
 * asked process answers the message, or says that it is not the master: there is one hop.
 *
 * The loop makes and ends questions. A link carries the questions to the master, and
 * service->forwards sends the questions to other nodes. The thread that has an answer adds the
 * question to the list `done`, and wakes the loop. The loop takes it from there. */
#include "grpc.h"
#include "../link/link.h"

#include <nng/supplemental/util/platform.h>
#include <sys/eventfd.h>

#define QUESTION_MAX 4096 /* at the same time */
#define QUESTION_TIMEOUT (2 * DOORMAN_SECOND)

struct grpc_question {
    struct link_question link; /* the first member, so that both have one address */
    struct grpc_master *master;
    void *owner;    /* only the loop uses it */
    bool is_linked; /* false: another part asks other nodes */
    char *copy;     /* of the answer of that part; NULL: none */
    struct grpc_question *next_done;
};

struct grpc_master {
    struct service *service;
    int wake;                               /* an eventfd */
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* "": none. Only the loop uses it */
    size_t count;                           /* of questions. Only the loop uses it */
    struct lock lock;                       /* guards the pool, and the list of what is done */
    struct link_pool pool;
    struct grpc_question *done;
};

/* ---- the link ------------------------------------------------------------------------------- */

static void master_wake(const struct grpc_master *master) {
    (void)eventfd_write(master->wake, 1); /* it fails only if the loop is awake already */
}

static struct grpc_master *master_of(struct link_pool *pool) {
    return (struct grpc_master *)((char *)pool - offsetof(struct grpc_master, pool));
}

/* Wakes the loop, because the health may have changed. */
static void master_note_link(struct link_pool *pool, bool is_lost) {
    (void)is_lost;
    master_wake(master_of(pool));
}

bool server_grpc_master_is_reached(struct grpc_master *master) {
    server_lock(&master->lock);
    const bool is_reached = server_link_is_reached(&master->pool, master->address);
    server_unlock(&master->lock);
    return is_reached;
}

void server_grpc_master_note_tls(struct grpc_master *master) {
    server_lock(&master->lock);
    server_link_note_tls(&master->pool);
    server_unlock(&master->lock);
}

void server_grpc_master_set(struct grpc_master *master, const char *address) {
    snprintf(master->address, sizeof master->address, "%s", address);
    if (!address[0]) return;
    server_lock(&master->lock);
    (void)server_link_open(&master->pool, address); /* the next look tries again */
    server_unlock(&master->lock);
}

void server_grpc_master_tend(struct grpc_master *master) {
    server_lock(&master->lock);
    struct link *unused = server_link_tend(&master->pool, doorman_clock());
    server_link_flush(&master->pool);
    server_unlock(&master->lock);
    server_link_close(unused);
}

/* ---- questions ------------------------------------------------------------------------------ */

/* Adds a question to the list `done`. Any thread calls this. Precondition: the lock is held. */
static void question_finish(struct grpc_question *question) {
    assert(server_lock_is_held(&question->master->lock));
    question->next_done = question->master->done;
    question->master->done = question;
}

static void master_take(struct link_pool *pool, const struct link_batch *batch) {
    struct grpc_master *master = master_of(pool);
    server_lock(&master->lock);
    for (struct link_question *next = NULL, *each = batch->questions; each; each = next) {
        next = each->next;
        question_finish((struct grpc_question *)each);
    }
    server_unlock(&master->lock);
    master_wake(master);
}

static void question_free(struct grpc_question *question) {
    question->master->count--;
    free(question->copy);
    free(question);
}

static struct grpc_question *question_create(struct grpc_master *master, void *owner) {
    struct grpc_question *question =
        master->count < QUESTION_MAX ? (struct grpc_question *)calloc(1, sizeof *question) : NULL;
    if (!question) return NULL;
    question->master = master;
    question->owner = owner;
    master->count++;
    return question;
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

/* Prepares to send a question over the link. Returns false if this fails, for example because
 * memory has run out. */
static bool question_send(struct grpc_question *question, const struct grpc_call *call,
                          doorman_time timeout) {
    struct grpc_master *master = question->master;
    nng_msg *message = question_message(call);
    if (!message) return false;
    question->is_linked = true;
    server_lock(&master->lock);
    struct link *link = server_link_open(&master->pool, master->address);
    const bool sent = link && server_link_send(link, &question->link, message, timeout, false);
    server_unlock(&master->lock);
    if (!sent) nng_msg_free(message);
    return sent;
}

struct grpc_question *server_grpc_master_ask(struct grpc_master *master,
                                             const struct grpc_call *call, void *owner,
                                             doorman_time timeout, struct grpc_status *status) {
    if (!master->address[0]) {
        server_grpc_fail(status, GRPC_UNAVAILABLE, "no process is known to be the master");
        return NULL;
    }
    struct grpc_question *question = question_create(master, owner);
    if (timeout > QUESTION_TIMEOUT) timeout = QUESTION_TIMEOUT;
    if (question && question_send(question, call, timeout)) return question;
    if (question) question_free(question);
    server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "too many calls wait for the master");
    return NULL;
}

void server_grpc_master_forget(struct grpc_question *question) { question->owner = NULL; }

bool server_grpc_master_next(struct grpc_master *master, struct grpc_answer *out) {
    server_lock(&master->lock);
    struct grpc_question *question = master->done;
    if (question) master->done = question->next_done;
    server_unlock(&master->lock);
    if (!question) return false;
    const struct link_question *link = &question->link;
    *out = (struct grpc_answer){question, question->owner, link->result, link->text, link->bytes};
    return true;
}

void server_grpc_master_end(struct grpc_master *master, const struct grpc_answer *answer) {
    struct grpc_question *question = answer->question;
    if (question->is_linked) {
        server_lock(&master->lock);
        server_link_end(&question->link);
        server_unlock(&master->lock);
    }
    question_free(question);
}

/* ---- other nodes ---------------------------------------------------------------------------- */

/* Keeps a copy of an answer. The part that forwards messages calls this, on any thread. */
static void question_on_forwarded(void *context, const char *text, size_t bytes) {
    struct grpc_question *question = (struct grpc_question *)context;
    struct grpc_master *master = question->master;
    struct link_question *answer = &question->link;
    question->copy = text ? (char *)malloc(bytes + 1) : NULL;
    if (question->copy) memcpy(question->copy, text, bytes);
    *answer = (struct link_question){.text = question->copy, .bytes = bytes};
    if (!question->copy) answer->result = text ? NNG_ENOMEM : NNG_ECLOSED;
    server_lock(&master->lock);
    question_finish(question);
    server_unlock(&master->lock);
    master_wake(master);
}

struct grpc_question *server_grpc_master_forward(struct grpc_master *master,
                                                 const struct grpc_call *call, void *owner,
                                                 doorman_time timeout, struct grpc_status *status) {
    struct grpc_question *question = question_create(master, owner);
    if (!question) {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "too many calls wait for other nodes");
        return NULL;
    }
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

/* Sets the status of a call whose answer has no decision. */
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

/* Returns whether an entry or a permit has no decision, because another node decides for it. */
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
    cJSON *tree = cJSON_ParseWithLength(answer->text, answer->bytes);
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
    if (!master || !server_lock_init(&master->lock, LOCK_LINKS)) {
        free(master);
        return NULL;
    }
    master->service = service;
    master->wake = wake;
    master->pool = (struct link_pool){.service = service,
                                      .lock = &master->lock,
                                      .take = master_take,
                                      .changed = master_note_link};
    return master;
}

void server_grpc_master_destroy(struct grpc_master *master) {
    struct grpc_answer answer;
    if (!master) return;
    server_lock(&master->lock);
    master->pool.stops = true;
    server_unlock(&master->lock);
    while (master->count > 0) {
        server_grpc_master_tend(master);
        nng_msleep(1); /* threads of nng bring the answers */
        while (server_grpc_master_next(master, &answer)) server_grpc_master_end(master, &answer);
    }
    server_link_close(master->pool.links);
    server_lock_uninit(&master->lock);
    free(master);
}
