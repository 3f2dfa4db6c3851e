/* doorman_server, part NOTES: acts of administration in etcd.
 *
 * E7 The rows of acts are in the store of --state, except overrides and plans with --shards (see
 *    server/shards/shards.h). Without --state, a server with --config etcd:KEY and --http-token
 *    keeps them in etcd. Its counters and bans are only in memory, so no permit waits for etcd.
 *
 * A thread uses the store. When this process becomes master, the thread begins a mastership there
 * and lets the other parts read what they keep. Then it runs calls. After a failure it tries again,
 * and calls are refused until it succeeds. */
#include "notes_etcd.h"

#define NOTES_RETRY DOORMAN_SECOND      /* after a reading that failed */
#define NOTES_STOP (2 * DOORMAN_SECOND) /* for a call that runs when the server stops */
#define NOTES_LOOK (DOORMAN_SECOND / 5) /* between two looks whether the server stops */

struct notes {
    struct service *service;
    struct store *store; /* while the thread runs, only the thread uses it */
    pthread_t thread;
    bool is_started;

    /* The lock of the service guards the fields below. */
    pthread_cond_t changed;  /* the thread waits for it */
    pthread_cond_t finished; /* the thread of pages waits for it */
    uint64_t victories;      /* how many masterships of this process have begun */
    uint64_t victory;        /* the last one whose notes were read */
    bool stops, has_ended;
    bool is_busy;            /* a call runs */
    struct state_call *call; /* waits for the thread; NULL: none */
    struct trouble trouble;  /* why the notes cannot be read */
};

/* ---- the thread ----------------------------------------------------------------------------- */

/* Logs that the notes were read, or the first of several failures to read them. */
static void notes_report(struct notes *notes, bool is_read) {
    struct service *service = notes->service;
    const char *error = server_store_error(notes->store);
    server_lock(&service->lock);
    const bool had_trouble = notes->trouble.since != 0;
    if (is_read) {
        notes->trouble.since = 0;
    } else {
        server_trouble_set(&notes->trouble, error, doorman_clock());
    }
    server_unlock(&service->lock);
    if (is_read) {
        server_log(service->settings, LEVEL_INFO, "acts of administration read", "store", "etcd",
                   LOG_END);
    } else if (!had_trouble) {
        server_log(service->settings, LEVEL_ERROR,
                   "acts of administration cannot be read; overrides and plans are not in force",
                   "store", "etcd", "error", error, LOG_END);
    }
}

/* Begins a mastership, and lets the other parts read what they keep. Returns false after a
 * failure. */
static bool notes_read(struct notes *notes, int64_t lease) {
    server_store_etcd_set_lease(notes->store, lease);
    bool is_read = server_store_begin(notes->store, 0) == STORE_OK;
    EACH_PART(part, read_store) {
        is_read = is_read && (*part)->read_store(notes->service, notes->store);
    }
    return is_read;
}

/* Begins a mastership. If that fails, waits before the next try. Precondition: the lock is held.
 *   victory   the number of the mastership */
static void notes_begin_mastership(struct notes *notes, uint64_t victory) {
    assert(server_lock_is_held(&notes->service->lock));
    struct service *service = notes->service;
    const int64_t lease = service->election_status.lease;
    server_unlock(&service->lock);
    const bool is_read = notes_read(notes, lease);
    server_lock(&service->lock);
    const bool lasts = victory == notes->victories && !notes->stops;
    if (is_read) notes->victory = victory;
    if (!lasts) return;
    server_unlock(&service->lock);
    notes_report(notes, is_read);
    server_lock(&service->lock);
    if (!is_read && !notes->stops && victory == notes->victories) {
        server_condition_wait(&notes->changed, &service->lock, NOTES_RETRY);
    }
}

/* Runs the call that waits. Precondition: the lock is held. */
static void notes_run_call(struct notes *notes) {
    assert(server_lock_is_held(&notes->service->lock));
    struct service *service = notes->service;
    struct state_call *call = notes->call;
    notes->call = NULL;
    call->has_begun = notes->is_busy = true;
    server_unlock(&service->lock);
    call->run(service, notes->store, call->context);
    server_lock(&service->lock);
    notes->is_busy = false;
    const bool is_lost = call->is_lost;
    call->is_over = true;
    pthread_cond_broadcast(&notes->finished);
    server_unlock(&service->lock);
    if (is_lost) call->drop(call->context);
    server_lock(&service->lock);
}

static void *notes_main(void *context) {
    struct notes *notes = (struct notes *)context;
    struct service *service = notes->service;
    server_shares_memory = true; /* it deletes trees of the thread of pages, and the reverse */
    server_lock(&service->lock);
    while (!notes->stops) {
        const bool is_master = doorman_server_permits(service->server) != NULL;
        if (is_master && notes->victory != notes->victories) {
            notes_begin_mastership(notes, notes->victories);
        } else if (notes->call) {
            notes_run_call(notes);
        } else {
            server_condition_wait(&notes->changed, &service->lock, NOTES_RETRY);
        }
    }
    notes->has_ended = true;
    pthread_cond_broadcast(&notes->finished);
    server_unlock(&service->lock);
    return NULL;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Returns why no call can be made, or NULL. Precondition: the lock is held. */
static const char *notes_forbid_call(const struct notes *notes) {
    assert(server_lock_is_held(&notes->service->lock));
    if (notes->service->stopping || notes->has_ended) return "the server is stopping";
    if (server_pauses(notes->service)) return "this process hands over to another one";
    if (!doorman_server_permits(notes->service->server)) return "this process is not the master";
    if (notes->victory == notes->victories) return NULL;
    return notes->trouble.since ? "etcd cannot be used" : "the acts in etcd are being read";
}

enum call_result server_notes_call(struct service *service, struct state_call *call,
                                   char why[CALL_TEXT]) {
    struct notes *notes = service->notes;
    doorman_time now = doorman_clock(), until = now + CALL_SECONDS * DOORMAN_SECOND;
    server_lock(&service->lock);
    const char *forbids = notes_forbid_call(notes);
    call->has_begun = call->is_over = call->is_lost = false;
    if (!forbids) notes->call = call;
    pthread_cond_signal(&notes->changed);
    while (!forbids && !call->is_over && now < until) {
        server_condition_wait(&notes->finished, &service->lock, NOTES_LOOK);
        now = doorman_clock();
        if (!call->has_begun) forbids = notes_forbid_call(notes);
    }
    const bool is_over = call->is_over, has_begun = call->has_begun;
    call->is_lost = has_begun && !is_over;
    if (!has_begun) notes->call = NULL;
    snprintf(why, CALL_TEXT, "%s: %s", forbids ? forbids : "etcd does not answer",
             notes->trouble.since ? notes->trouble.reason : "try again, and look at the log");
    server_unlock(&service->lock);
    if (is_over) return CALL_OVER;
    return has_begun ? CALL_LOST : CALL_REFUSED;
}

void server_notes_reread(struct service *service) {
    struct notes *notes = service->notes;
    server_lock(&service->lock);
    notes->victory = 0; /* the thread begins once more */
    pthread_cond_signal(&notes->changed);
    server_unlock(&service->lock);
}

/* ---- the part ------------------------------------------------------------------------------- */

/* Opens the store if acts are kept in etcd. Without tokens there are no acts. */
static enum exit_status notes_open(struct service *service) {
    const struct settings *settings = service->settings;
    if (settings->state || !settings->config_key || !settings->http_token) return CONTINUE;
    struct notes *notes = (struct notes *)calloc(1, sizeof *notes);
    service->notes = notes;
    if (notes) {
        notes->service = service;
        notes->store = server_store_etcd_open(settings);
    }
    bool made = notes && notes->store && server_condition_init(&notes->changed) &&
                server_condition_init(&notes->finished);
    return made ? CONTINUE : server_fatal_error(EXIT_ERROR, "out of memory");
}

/* Without an election this process is master at once. If its notes can be read, they are in force
 * before it answers. */
static void notes_begin(struct service *service) {
    struct notes *notes = service->notes;
    if (!notes || service->settings->election_key) return;
    notes->victories++;
    if (notes_read(notes, 0)) notes->victory = notes->victories;
}

static enum exit_status notes_start(struct service *service) {
    struct notes *notes = service->notes;
    if (!notes) return CONTINUE;
    int error = pthread_create(&notes->thread, NULL, notes_main, notes);
    notes->is_started = error == 0;
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", strerror(error));
}

/* Lets the thread read the notes, which an earlier master may have changed. */
static void notes_elected(struct service *service, bool is_master, uint64_t epoch) {
    struct notes *notes = service->notes;
    (void)epoch;
    if (!notes || !is_master) return;
    notes->victories++;
    notes->trouble.since = 0;
    pthread_cond_signal(&notes->changed);
}

/* After a drain, a process without an election is master again, and reads the notes that it has
 * forgotten. */
static void notes_follow_drain(struct service *service) {
    if (service->settings->election_key || service->drain.phase != DRAIN_NONE) return;
    notes_elected(service, true, 0);
}

/* Waits at most NOTES_STOP for a call that runs, and then ends the thread. */
static void notes_stop(struct service *service) {
    struct notes *notes = service->notes;
    if (!notes || !notes->is_started) return;
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + NOTES_STOP;
    while (notes->is_busy && now < until) {
        server_condition_wait(&notes->finished, &service->lock, until - now);
        now = doorman_clock();
    }
    notes->stops = true;
    server_store_etcd_cancel(notes->store);
    pthread_cond_signal(&notes->changed);
    server_unlock(&service->lock);
    pthread_join(notes->thread, NULL);
    notes->is_started = false;
}

static void notes_destroy(struct service *service) {
    struct notes *notes = service->notes;
    if (!notes) return;
    server_store_close(notes->store);
    free(notes);
    service->notes = NULL;
}

const struct server_part server_part_notes = {.name = "NOTES",
                                              .open = notes_open,
                                              .begin = notes_begin,
                                              .start = notes_start,
                                              .elected = notes_elected,
                                              .drains = notes_follow_drain,
                                              .stopping = notes_stop,
                                              .stop = notes_stop,
                                              .destroy = notes_destroy};
