/* doorman_server, part WAITING: messages whose permits wait for units of CONCURRENCY (P7).
 *
 * A message may wait if one of its permits has a max_wait and a request_id. Over nng, the worker of
 * such a message keeps its context until it has answered. Another worker receives in its place. So
 * messages that wait do not reduce the number of workers that receive. The replaced worker retires
 * after its answer, and can replace another one later. A further worker is created only if none is
 * idle. The number of permits that wait has bounds (P19).
 *
 *     event                            what happens to the message
 *     its last permit is decided       the next thread in waiting_finish answers it
 *     its connection is closed         its permits leave the queues, and there is no answer
 *     the server is not master         it is decided again: the answer names the master, if known
 *     the server stops                 it is answered as UNAVAILABLE
 *     memory runs out                  it is answered as OUT_OF_MEMORY
 *
 * When the server loses its mastership, it forgets all permits that wait. It may become master
 * again in the same call. Therefore `victory` keeps the start of the mastership in which they began
 * to wait, and waiting_permits compares it with the start of the present mastership.
 *
 * The end of a connection is reported only once, perhaps while its message is still being decided.
 * So the numbers of the last connections that were closed are kept, and a message of such a
 * connection does not begin to wait.
 *
 * While the thread runs, the lock of the service guards the struct waiting, except `idle` and
 * `extra`, which pool_lock guards, and done_count, which is atomic. */
#include "../server.h"

#define BUCKETS 4096     /* of the table of tickets; a power of 2 */
#define CLOSED_COUNT 256 /* connections that were closed last */

/* While messages wait, waiting_main wakes up every LOOK and checks whether the server is still
 * master. A node with a parent decides in the thread of its link, so waiting_main collects the
 * decisions every LOOK_OF_CHILD. Due work wakes it earlier, but not before LOOK_MIN. */
#define LOOK (DOORMAN_SECOND / 10)
#define LOOK_OF_CHILD (DOORMAN_SECOND / 100)
#define LOOK_MIN (DOORMAN_SECOND / 1000)

struct waiter_ticket {
    uint64_t number;
    struct waiter *waiter;
    struct waiter_ticket *next; /* in the bucket */
};

struct waiter_list {
    struct waiter *first, *last;
};

/* A worker in addition to service->workers. */
struct extra_worker {
    struct worker worker;
    struct extra_worker *next; /* in the list of all */
};

struct waiting {
    pthread_t thread;
    pthread_cond_t wake;
    bool started, ending;
    struct waiter_list waiters, done; /* done: they wait no longer, and are not answered yet */
    size_t done_count;                /* atomic: the number of messages in `done` */
    struct waiter_ticket *buckets[BUCKETS];
    doorman_time victory; /* started_at of the permits in which the messages wait */
    uint64_t closed[CLOSED_COUNT];
    size_t closed_count; /* since the start */
    struct lock pool_lock;
    struct worker *idle;
    struct extra_worker *extra; /* all of them */
};

/* ---- lists and tickets */

static void list_add(struct waiter_list *list, struct waiter *waiter) {
    assert(list->last ? list->first && !list->last->next : !list->first);
    waiter->next = NULL;
    waiter->previous = list->last;
    if (list->last) list->last->next = waiter;
    if (!list->first) list->first = waiter;
    list->last = waiter;
}

static void list_remove(struct waiter_list *list, struct waiter *waiter) {
    assert(waiter->previous ? waiter->previous->next == waiter : list->first == waiter);
    assert(waiter->next ? waiter->next->previous == waiter : list->last == waiter);
    if (waiter->previous) waiter->previous->next = waiter->next;
    if (waiter->next) waiter->next->previous = waiter->previous;
    if (list->first == waiter) list->first = waiter->next;
    if (list->last == waiter) list->last = waiter->previous;
}

static struct waiter_ticket **ticket_find(struct waiting *waiting, uint64_t number) {
    struct waiter_ticket **link = &waiting->buckets[number % BUCKETS];
    while (*link && (*link)->number != number) link = &(*link)->next;
    return link;
}

static void waiter_add_ticket(struct waiting *waiting, struct waiter *waiter, uint64_t number) {
    struct waiter_ticket **link = ticket_find(waiting, number);
    assert(!*link && waiter->tickets);
    struct waiter_ticket *ticket = &waiter->tickets[waiter->ticket_count++];
    *ticket = (struct waiter_ticket){.number = number, .waiter = waiter};
    *link = ticket;
    waiter->left++;
}

static void waiter_drop_tickets(struct waiting *waiting, struct waiter *waiter) {
    for (size_t i = 0; i < waiter->ticket_count; i++) {
        struct waiter_ticket **link = ticket_find(waiting, waiter->tickets[i].number);
        if (*link == &waiter->tickets[i]) *link = (*link)->next;
    }
    waiter->ticket_count = waiter->left = 0;
}

/* Adds the tickets of all pending permits. Returns whether there are any. */
static bool waiter_register(struct waiting *waiting, struct waiter *waiter) {
    const doorman_response *response = &waiter->exchange->response;
    waiter->ticket_count = waiter->left = 0;
    for (size_t i = 0; response->is_master && i < response->permit_count; i++) {
        const doorman_permit *permit = &response->permits[i];
        if (permit->pending) waiter_add_ticket(waiting, waiter, permit->ticket);
    }
    if (waiter->left) list_add(&waiting->waiters, waiter);
    return waiter->left > 0;
}

/* Ends the wait of a message. Precondition: it is in no list.
 *   answers   false: its connection is closed */
static void waiter_end(struct waiting *waiting, struct waiter *waiter, bool answers) {
    waiter_drop_tickets(waiting, waiter);
    waiter->answers = answers;
    list_add(&waiting->done, waiter);
    __atomic_add_fetch(&waiting->done_count, 1, __ATOMIC_RELAXED);
}

/* ---- decisions */

/* Returns the permits, or NULL if the server is not master now. doorman_server_find lets the server
 * notice the end of its mastership, after which it must not decide. */
static doorman_permits *permits_now(const struct service *service) {
    doorman_server_resource none;
    (void)doorman_server_find(service->server, "", &none, doorman_clock());
    return doorman_server_permits(service->server);
}

/* Returns the permits in which the messages wait. Returns NULL if the server has forgotten these
 * messages: it is not master, or has become master again since they began to wait. */
static doorman_permits *waiting_permits(const struct service *service) {
    doorman_permits_info info;
    assert(server_lock_is_held(&service->lock));
    doorman_permits *permits = doorman_server_permits(service->server);
    if (!permits) return NULL;
    doorman_permits_read(permits, &info);
    return info.started_at == service->waiting->victory ? permits : NULL;
}

static void waiting_set_victory(const struct service *service) {
    doorman_permits_info info;
    const doorman_permits *permits = doorman_server_permits(service->server);
    if (permits) doorman_permits_read(permits, &info);
    if (permits) service->waiting->victory = info.started_at;
}

/* Decides again on all messages that wait, because the server has forgotten their permits. While
 * the server pauses or stops, answers them as UNAVAILABLE instead. */
static void waiting_repeat(struct service *service) {
    struct waiting *waiting = service->waiting;
    struct waiter *next = NULL, *waiter = waiting->waiters.first;
    assert(server_lock_is_held(&service->lock));
    waiting->waiters = (struct waiter_list){.first = NULL};
    for (struct waiter *each = waiter; each; each = each->next) waiter_drop_tickets(waiting, each);
    waiting_set_victory(service);
    for (; waiter; waiter = next) {
        next = waiter->next;
        doorman_json_exchange_undo(waiter->exchange);
        doorman_status status = DOORMAN_UNAVAILABLE;
        if (!server_pauses(service)) {
            status =
                doorman_json_exchange_decide(waiter->exchange, service->server, doorman_clock());
        }
        waiter->is_decided = status == DOORMAN_OK;
        bool waits = status == DOORMAN_OK && waiter_register(waiting, waiter);
        if (!waits) waiter_end(waiting, waiter, true);
    }
}

static void waiting_settle(struct waiting *waiting, uint64_t number,
                           const doorman_permit *decision) {
    struct waiter_ticket **link = ticket_find(waiting, number), *ticket = *link;
    if (!ticket) return; /* its message has failed */
    struct waiter *waiter = ticket->waiter;
    assert(waiter->left > 0);
    *link = ticket->next;
    waiter->left--;
    doorman_status status = doorman_json_exchange_settle(waiter->exchange, number, decision);
    assert(status != DOORMAN_NOT_FOUND);
    if (status == DOORMAN_OK && waiter->left) return;
    list_remove(&waiting->waiters, waiter);
    waiter_end(waiting, waiter, true);
}

static void waiting_collect(struct service *service) {
    struct waiting *waiting = service->waiting;
    assert(server_lock_is_held(&service->lock));
    if (!waiting->waiters.first) return;
    doorman_permits *permits = waiting_permits(service);
    doorman_permit decision;
    uint64_t ticket = 0;
    if (!permits || service->stopping) {
        waiting_repeat(service);
        return;
    }
    while (doorman_permits_next_decision(permits, &ticket, &decision)) {
        waiting_settle(waiting, ticket, &decision);
    }
}

/* ---- messages */

static bool request_waits(const doorman_request *request) {
    for (size_t i = 0; i < request->permit_count; i++) {
        const doorman_permit_request *permit = &request->permits[i];
        if (permit->max_wait > 0 && permit->request_id) return true;
    }
    return false;
}

/* Looks for `max_wait"`. Nearly all messages that ask to wait contain this text, and few others do.
 * An escape can hide it. */
static bool waiting_is_likely(const struct waiter *waiter, const char *text, size_t bytes) {
    static const char name[] = "max_wait\"";
    const size_t length = sizeof name - 1;
    const char *at = text, *end = text + bytes;
    while (waiter->prepare && (size_t)(end - at) >= length) {
        at = (const char *)memchr(at, name[0], (size_t)(end - at) - length + 1);
        if (!at) return false;
        if (memcmp(at, name, length) == 0) return true;
        at++;
    }
    return false;
}

/* Reads a message again, into a JSON tree that any thread may delete. */
static bool waiter_share(struct waiter *waiter, const char *text, size_t bytes) {
    doorman_json_exchange *exchange = waiter->exchange;
    bool forbids = exchange->forbids_administration, fixed = exchange->forbids_figures;
    doorman_json_exchange_uninit(exchange);
    exchange->forbids_administration = forbids;
    exchange->forbids_figures = fixed;
    server_shares_memory = true;
    doorman_status status = doorman_json_exchange_read(exchange, waiter->method, text, bytes);
    server_shares_memory = false;
    return status == DOORMAN_OK;
}

static void waiting_forget(struct waiter *waiter) {
    free(waiter->tickets);
    waiter->tickets = NULL;
}

static bool waiting_prepare(struct service *service, struct waiter *waiter, const char *text,
                            size_t bytes, bool *shared) {
    doorman_request *request = &waiter->exchange->request;
    if (!waiter->prepare || !request_waits(request)) return false;
    waiter->service = service;
    waiter->tickets =
        (struct waiter_ticket *)malloc(request->permit_count * sizeof *waiter->tickets);
    if (!waiter->tickets || !waiter->prepare(waiter)) {
        waiting_forget(waiter);
        return false;
    }
    /* if memory runs out now, the reply says so, and the exchange has no tree */
    bool again = !*shared;
    *shared = true;
    if (again && !waiter_share(waiter, text, bytes)) return true;
    request->may_wait = true;
    request->connection = waiter->connection;
    return true;
}

static bool waiting_is_closed(const struct waiting *waiting, uint64_t connection) {
    size_t count = waiting->closed_count < CLOSED_COUNT ? waiting->closed_count : CLOSED_COUNT;
    for (size_t i = 0; i < count; i++) {
        if (waiting->closed[i] == connection) return true;
    }
    return false;
}

static bool waiting_add(struct service *service, struct waiter *waiter) {
    struct waiting *waiting = service->waiting;
    assert(server_lock_is_held(&service->lock));
    if (waiting->waiters.first && !waiting_permits(service)) waiting_repeat(service);
    waiting_set_victory(service);
    if (waiting_is_closed(waiting, waiter->connection)) {
        doorman_permits *permits = permits_now(service);
        if (permits) {
            (void)doorman_permits_cancel(permits, waiter->connection, doorman_clock());
        }
        doorman_json_exchange_undo(waiter->exchange); /* nobody reads the response */
        return false;
    }
    if (!waiter_register(waiting, waiter)) return false;
    pthread_cond_signal(&waiting->wake);
    return true;
}

static void waiting_finish(struct service *service) {
    struct waiting *waiting = service->waiting;
    const struct forward_calls *forwards = service->forwards;
    while (__atomic_load_n(&waiting->done_count, __ATOMIC_RELAXED) > 0) {
        server_lock(&service->lock);
        struct waiter *waiter = waiting->done.first;
        if (waiter) {
            list_remove(&waiting->done, waiter);
            __atomic_sub_fetch(&waiting->done_count, 1, __ATOMIC_RELAXED);
        }
        server_unlock(&service->lock);
        if (!waiter) return;
        struct forward_job *job = NULL;
        waiting_forget(waiter);
        server_shares_memory = true;
        if (waiter->answers) {
            const struct peer peer = waiter->peer;
            job = forwards ? forwards->prepare(service, waiter, NULL, 0) : NULL;
            waiter->status = server_finish_message(service, waiter->exchange, &peer, true, 0);
        } else {
            doorman_json_exchange_uninit(waiter->exchange);
        }
        server_shares_memory = false;
        if (job) {
            forwards->begin(service, job); /* a shard has moved while permits for its keys waited */
        } else {
            waiter->finish(waiter, waiter->answers);
        }
    }
}

static void waiting_disconnect(struct service *service, uint64_t connection) {
    struct waiting *waiting = service->waiting;
    server_lock(&service->lock);
    waiting->closed[waiting->closed_count++ % CLOSED_COUNT] = connection;
    bool found = false;
    for (struct waiter *next = NULL, *waiter = waiting->waiters.first; waiter; waiter = next) {
        next = waiter->next;
        if (waiter->connection != connection) continue;
        found = true;
        list_remove(&waiting->waiters, waiter);
        waiter_end(waiting, waiter, false);
    }
    doorman_permits *permits = found ? permits_now(service) : NULL;
    if (permits) (void)doorman_permits_cancel(permits, connection, doorman_clock());
    if (found) pthread_cond_signal(&waiting->wake);
    server_unlock(&service->lock);
}

/* ---- the thread */

/* Does the work that is due. Returns how long the thread may sleep afterwards. */
static doorman_time waiting_update(struct service *service, doorman_time now) {
    doorman_upstream *upstream = doorman_server_upstream(service->server);
    bool is_root = service->settings->parents.count == 0; /* else the link updates the upstream */
    doorman_request none;
    doorman_time due = doorman_upstream_due(upstream);
    if (is_root && due <= now) {
        (void)doorman_upstream_request(upstream, &none, now);
        due = doorman_upstream_due(upstream);
    }
    (void)permits_now(service); /* notices the end of the mastership */
    waiting_collect(service);
    doorman_time rest = is_root ? LOOK : LOOK_OF_CHILD;
    if (due - now < rest) rest = due - now;
    return rest < LOOK_MIN ? LOOK_MIN : rest;
}

static void *waiting_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct waiting *waiting = service->waiting;
    server_lock(&service->lock);
    while (!waiting->ending) {
        if (!waiting->waiters.first && !waiting->done.first) {
            server_condition_wait(&waiting->wake, &service->lock, DOORMAN_NEVER);
            continue;
        }
        doorman_time rest = waiting_update(service, doorman_clock());
        if (waiting->done.first) {
            server_unlock(&service->lock);
            waiting_finish(service);
            server_lock(&service->lock);
        } else {
            server_condition_wait(&waiting->wake, &service->lock, rest);
        }
    }
    server_unlock(&service->lock);
    return NULL;
}

/* Answers all messages that wait, and ends the thread. */
static void waiting_end(struct service *service) {
    struct waiting *waiting = service->waiting;
    if (!waiting || !waiting->started) return;
    server_lock(&service->lock);
    waiting->ending = true;
    if (service->stopping) waiting_collect(service); /* all of them are answered */
    pthread_cond_signal(&waiting->wake);
    server_unlock(&service->lock);
    pthread_join(waiting->thread, NULL);
    waiting->started = false;
    waiting_finish(service);
}

/* ---- workers */

/* Returns NULL if memory or the contexts of nng run out. */
static struct worker *worker_create(struct service *service) {
    struct extra_worker *extra = (struct extra_worker *)calloc(1, sizeof *extra);
    if (!extra) return NULL;
    struct worker *worker = &extra->worker;
    worker->service = service;
    if (nng_aio_alloc(&worker->aio, server_worker_step, worker) != 0) {
        free(extra);
        return NULL;
    }
    if (nng_ctx_open(&worker->context, service->socket) != 0) {
        nng_aio_free(worker->aio);
        free(extra);
        return NULL;
    }
    server_lock(&service->waiting->pool_lock);
    extra->next = service->waiting->extra;
    service->waiting->extra = extra;
    server_unlock(&service->waiting->pool_lock);
    return worker;
}

static bool waiting_replace_worker(struct waiter *waiter) {
    struct worker *replaced = server_worker_of(waiter);
    struct waiting *waiting = replaced->service->waiting;
    server_lock(&waiting->pool_lock);
    struct worker *worker = waiting->idle;
    if (worker) waiting->idle = worker->next;
    server_unlock(&waiting->pool_lock);
    if (!worker) worker = worker_create(replaced->service);
    if (!worker) return false;
    replaced->retires = true;
    server_worker_receive(worker);
    return true;
}

static void waiting_retire_worker(struct worker *worker) {
    struct waiting *waiting = worker->service->waiting;
    assert(worker->retires && !worker->sending);
    worker->retires = false;
    worker->message = NULL;
    server_lock(&waiting->pool_lock);
    worker->next = waiting->idle;
    waiting->idle = worker;
    server_unlock(&waiting->pool_lock);
}

static void waiting_destroy(struct service *service) {
    struct waiting *waiting = service->waiting;
    if (!waiting) return;
    while (waiting->extra) {
        struct extra_worker *extra = waiting->extra;
        waiting->extra = extra->next;
        nng_aio_free(extra->worker.aio);
        doorman_json_exchange_uninit(&extra->worker.exchange);
        free(extra);
    }
    pthread_cond_destroy(&waiting->wake);
    server_lock_uninit(&waiting->pool_lock);
    free(waiting);
    service->waiting = NULL;
}

/* ---- the part */

static const struct waiting_calls waiting_calls = {.is_likely = waiting_is_likely,
                                                   .prepare = waiting_prepare,
                                                   .forget = waiting_forget,
                                                   .add = waiting_add,
                                                   .collect = waiting_collect,
                                                   .finish = waiting_finish,
                                                   .disconnect = waiting_disconnect,
                                                   .replace_worker = waiting_replace_worker,
                                                   .retire_worker = waiting_retire_worker};

/* Makes the state, and starts a thread that decides what is due while messages wait. */
static enum exit_status waiting_start(struct service *service) {
    struct waiting *waiting = (struct waiting *)calloc(1, sizeof *waiting);
    service->waiting = waiting;
    if (waiting) {
        server_lock_init(&waiting->pool_lock, LOCK_POOL);
        waiting->started = server_condition_init(&waiting->wake) &&
                           pthread_create(&waiting->thread, NULL, waiting_main, service) == 0;
    }
    return waiting && waiting->started
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR,
                                    "cannot let permits wait: out of memory or threads");
}

const struct server_part server_part_waiting = {.waits = &waiting_calls,
                                                .open = waiting_start,
                                                .stopping = waiting_end,
                                                .stop = waiting_end,
                                                .destroy = waiting_destroy};
