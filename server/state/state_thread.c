/* doorman_server, part STATE: counters of durable limits and bans outlast a restart (V8). The
 * library says what a row is (D2 to D5), and server/store/store.h keeps rows in a file or a Redis.
 * This file moves them: all of them into memory when this process becomes master, and what has
 * changed into the store once in each --state-interval.
 *
 * A thread does this. It holds the lock of the service for some tenths of a millisecond at a time,
 * except at a stop and in a drain, and never while it uses the store. So no message waits for a
 * disk or a network.
 *
 *     state     permits of durable limits     what the thread does
 *     waiting   none: another is master       writes what the last mastership of this process has
 *                                             left, unless another process has been master since;
 *                                             lets parts follow what the master puts into the store
 *     reading   LEARNING                      begins the mastership in the store, and reads all
 *                                             rows; after a failure, begins again
 *     late      as on_unread says             the same; this state begins after --state-wait
 *     writing   decided in memory             writes what has changed, once in each interval; after
 *                                             a failure, the same rows again
 *     ended     none: the server stops        has written what was left, or has given up
 *
 * A planned stop of a process with an election, whose rows are not all written:
 *
 *     state     mastership      what ends it
 *     writing   of this one     all is written, and left for the next process, or no batch was
 *                               written for GIVE_BACK_SECONDS: then the mastership is given back
 *     given     of a standby    all is written, or another process has begun in the store, or
 *                               STOP_SECONDS have passed
 *
 * D6 No decision waits for a write. A change is marked in the library until it is in a batch, and a
 *    batch stays until it is written. So while a store cannot be written, nothing is lost, and the
 *    memory for changes does not grow. When a batch is full, the next one follows at once.
 * D7 Without an election, a mastership lasts until a drain or the end of the process. When an
 *    election ends a mastership, such as when etcd does not answer for too long, this process keeps
 *    its leases, its holds and the changes of rows that are not written, as far as they fit into a
 *    batch. Then the library forgets them. If the next mastership is this process's own, and no
 *    other process was master in between, none of what was kept is lost: the process writes the
 *    changes, reads the rows, and takes over its leases and holds, as after a planned stop. Only
 *    counters that are not durable begin again. Epochs prove that nobody was master in between: the
 *    next epoch is the same, because the election key was never gone, or one more (D9). Otherwise
 *    another process may have granted units and leases that this one does not know. So this one
 *    forgets what it has kept, reads the rows, and learns, unless the last master has left its
 *    leases and holds in the store (D8).
 *
 * A mastership writes none of its own changes before all rows are read: a row in the store may say
 * that more is used than memory knows. */
#include "notes_etcd.h"
#include "planned.h"

#include <signal.h>
#include <unistd.h>

/* The most rows of a step. During a step the thread holds the lock, for some tenths of a
 * millisecond. Then a pause lets a thread that waits for the lock wake up and take it. While rows
 * are read there is no pause: on a busy machine each pause may take milliseconds, and the lock is
 * free anyway until the next rows have come from the store. */
#define STEP_ROWS 512
#define PAUSE_NANOSECONDS 100000

/* The most rows and bytes of one transaction. Its rows are spread over the whole file. In a larger
 * batch more of them are on the same page, so fewer pages are written for each row. */
#define BATCH_ROWS 32768
#define BATCH_BYTES (8U << 20)

#define NAMES_MAX 20 /* rows that cannot be read and have a line of the log, for each reading */

#define RETRY_INTERVAL (5 * DOORMAN_SECOND) /* after a reading that failed */
#define REREAD_INTERVAL DOORMAN_SECOND      /* the same for what other parts keep */
#define BEGIN_INTERVAL DOORMAN_SECOND       /* after a store that did not answer */

/* How often rows are dropped that were fresh STORE_KEPT_SECONDS ago. Before that, a limit that was
 * removed by mistake can come back with its rows. */
#define DROP_INTERVAL (3600 * DOORMAN_SECOND)

/* How long a process that has won the election waits for what the last master has left in the
 * store. It waits a fifth of the TTL if that is shorter. */
#define WIN_SECONDS 1

/* How long a new configuration waits until the changes before it are written. */
#define FLUSH_SECONDS 2

/* How long a stop writes changes at most. systemd and Kubernetes must wait longer: see
 * TimeoutStopSec and terminationGracePeriodSeconds in examples/deploy. */
#define STOP_SECONDS 25

/* How long a stop keeps the mastership while no batch can be written. A node without a master is
 * worse than the loss of the last changes, which a crash would lose too (V8). An answer that
 * takes longer than 5 s has failed, see COMMAND_SECONDS. */
#define GIVE_BACK_SECONDS 5
#define GIVE_BACK_FAILING_SECONDS 1 /* the same if the store fails already when the stop begins */

#define HURRY_INTERVAL (DOORMAN_SECOND / 5) /* between two looks for a second signal */

/* Uses of the store. If one succeeds, another may still fail: a full disk can be read. */
enum use { USE_READ = 1, USE_WRITE = 2, USE_DROP = 4 };

/* Rows, and the bytes that they point to. */
struct batch {
    size_t count, bytes;
    struct store_row rows[BATCH_ROWS];
    unsigned char memory[BATCH_BYTES];
};

struct state {
    struct service *service;
    struct store_place place;
    char name[STORE_TEXT]; /* of the place, for logs */
    struct store *store;   /* while the thread runs, only the thread uses it */
    pthread_t thread;
    bool is_started;
    doorman_time drop_at;  /* when to drop old rows next; only for the thread */
    struct batch *written; /* being read or written; only for the thread */

    /* The lock of the service guards the fields below. */
    uint64_t won;            /* the epoch of a mastership that is won and not in force; 0: none */
    uint64_t prepared;       /* the epoch that the thread has prepared last */
    struct planned planned;  /* what it has found in the store then */
    struct planned kept;     /* what the last mastership of this process has kept (D7) */
    uint64_t epoch;          /* of the last mastership of this process; 0: the store counts */
    uint64_t victories;      /* how many masterships of this process have begun */
    uint64_t victory;        /* the one that the thread works for */
    pthread_cond_t changed;  /* the thread waits for it */
    pthread_cond_t finished; /* threads that wait for the thread */
    struct batch *filled;    /* changes that the thread has not begun to write */
    uint64_t flush_wanted;   /* the number of the last request to write all */
    uint64_t flush_seen, flush_done; /* the last one that the thread knows, and has fulfilled */
    doorman_time late_at; /* when permits no longer wait for the rows; DOORMAN_NEVER: none waits */
    doorman_time
        ends_at;    /* the server stops, and gives the thread until then; 0: it does not stop */
    bool has_ended; /* the thread has written all, or has given up */
    doorman_time give_back_at; /* when a stop gives the mastership back; DOORMAN_NEVER: it does not,
                                  or has done so */
    bool forgets;              /* the mastership was given back, and some changes are in no batch */
    unsigned fails;            /* each `enum use` that has failed, and not succeeded since */
    bool reads_again;          /* the configuration has other durable limits, which may have rows */
    struct state_call *call;   /* waits for the thread; NULL: none */
    doorman_time reread_at;    /* when parts read again what they keep in the store; DOORMAN_NEVER:
                                they need not */
    uint64_t limits;           /* a hash of the durable limits */
    struct state_status status;
};

/* Returns the permits of the mastership that the thread works for, or NULL if it has ended.
 * Precondition: the lock is held. */
static doorman_permits *state_permits(const struct state *state) {
    assert(server_lock_is_held(&state->service->lock));
    bool is_current = state->victory == state->victories;
    return is_current ? doorman_server_permits(state->service->server) : NULL;
}

/* Returns whether the thread must stop its present work. Precondition: the lock is held. */
static bool state_must_leave(const struct state *state) {
    return state->ends_at != 0 || !state_permits(state);
}

/* Returns whether the thread must write what a drain needs. Precondition: the lock is held. */
static bool state_drains(const struct state *state) {
    bool is_wanted = state->service->drain.phase == DRAIN_WRITING;
    return is_wanted && state_permits(state) && !state->status.is_reading;
}

/* ---- log ------------------------------------------------------------------------------------ */

/* Notes that a call of the store has failed. A failure that lasts has one line of the log. */
static void state_note_failure(struct state *state, enum use use, const char *what) {
    struct service *service = state->service;
    const char *error = server_store_error(state->store);
    server_lock(&service->lock);
    bool is_new = state->status.trouble.since == 0;
    state->fails |= use;
    server_trouble_set(&state->status.trouble, error, doorman_clock());
    server_counter_add(&state->status.errors, 1);
    server_unlock(&service->lock);
    if (!is_new) return;
    server_log(service->settings, LEVEL_ERROR, what, "store", state->name, "error", error, LOG_END);
}

/* Notes that a call has succeeded. The trouble is over when nothing fails any more.
 *   uses   of the store, which work */
static void state_note_success(struct state *state, unsigned uses) {
    struct service *service = state->service;
    server_lock(&service->lock);
    struct trouble_text text = server_trouble_text(&state->status.trouble, doorman_clock());
    state->fails &= ~uses;
    bool is_over = state->status.trouble.since != 0 && state->fails == 0;
    if (is_over) state->status.trouble.since = 0;
    server_unlock(&service->lock);
    if (!is_over) return;
    server_log(service->settings, LEVEL_INFO, "the store of counters works again", "store",
               state->name, "after_seconds", text.seconds, "failures", text.count, LOG_END);
}

/* Names a row that cannot be restored.
 *   count   how many there were before */
static void state_log_row(const struct state *state, const struct store_row *row, const char *error,
                          uint64_t count) {
    if (count > NAMES_MAX) return;
    if (count == NAMES_MAX) error = "further rows have no lines";
    server_log(state->service->settings, LEVEL_WARNING,
               "a counter cannot be read, and stays in the store", "store", state->name, "template",
               row->template, "limit", row->limit, "resource", row->resource, "key", row->key,
               "error", error, LOG_END);
}

/* ---- batches -------------------------------------------------------------------------------- */

static void state_pause(long nanoseconds) {
    const struct timespec time = {.tv_nsec = nanoseconds};
    nanosleep(&time, NULL);
}

/* Returns whether a further row fits. A row of the library needs only its record, which has its
 * texts. A row of the store needs up to twice as much: its texts are outside of the record too. */
static bool batch_has_room(const struct batch *batch) {
    return batch->count < BATCH_ROWS &&
           BATCH_BYTES - batch->bytes >= 2 * DOORMAN_PERMIT_ROW_BYTES_MAX;
}

static int64_t seconds_after(doorman_time time) { return time / DOORMAN_SECOND + 1; }

/* Adds the next changed row. Precondition: there is room, and the lock is held. Returns false if
 * nothing has changed. */
static bool batch_take(struct batch *batch, doorman_permits *permits, doorman_time now) {
    unsigned char *record = batch->memory + batch->bytes;
    doorman_permit_row row;
    assert(batch_has_room(batch));
    size_t bytes = doorman_permits_next_changed(permits, record, now);
    if (bytes == 0) return false;
    doorman_status status = doorman_permit_row_read(record, bytes, &row, NULL);
    assert(status == DOORMAN_OK);
    (void)status;
    batch->bytes += bytes;
    batch->rows[batch->count++] = (struct store_row){.identity = row.identity,
                                                     .identity_bytes = row.identity_bytes,
                                                     .is_ban = row.is_ban,
                                                     .is_reservation = row.is_reservation,
                                                     .is_last = row.is_last,
                                                     .template = row.identifier_glob,
                                                     .limit = row.limit,
                                                     .resource = row.resource_id,
                                                     .key = row.key,
                                                     .fresh_at = seconds_after(row.fresh_at),
                                                     .record = row.removed ? NULL : record,
                                                     .record_bytes = bytes};
    return true;
}

/* Returns whether the last row is of a reservation. state_take does not count such rows: the
 * library yields new reservations first, so older changes would be left. */
static bool batch_ends_in_reservation(const struct batch *batch) {
    assert(batch->count > 0);
    return batch->rows[batch->count - 1].is_reservation;
}

static const void *batch_keep(struct batch *batch, const void *from, size_t bytes) {
    void *to = batch->memory + batch->bytes;
    assert(bytes <= BATCH_BYTES - batch->bytes);
    memcpy(to, from, bytes);
    batch->bytes += bytes;
    return to;
}

/* Adds a copy of a row of the store. Returns false if it is longer than any row of the library. */
static bool batch_copy(struct batch *batch, const struct store_row *from) {
    const char *const texts[] = {from->template, from->limit, from->resource, from->key};
    const char *copies[4];
    size_t bytes = from->record_bytes;
    assert(batch_has_room(batch));
    for (int i = 0; i < 4; i++) bytes += strlen(texts[i]) + 1;
    if (bytes > 2 * DOORMAN_PERMIT_ROW_BYTES_MAX) return false;
    struct store_row *row = &batch->rows[batch->count++];
    for (int i = 0; i < 4; i++) {
        copies[i] = (const char *)batch_keep(batch, texts[i], strlen(texts[i]) + 1);
    }
    *row = (struct store_row){.template = copies[0],
                              .limit = copies[1],
                              .resource = copies[2],
                              .key = copies[3],
                              .record = batch_keep(batch, from->record, from->record_bytes),
                              .record_bytes = from->record_bytes};
    return true;
}

static void batch_sort(struct batch *batch) {
    batch->count = server_store_order(batch->rows, batch->count);
}

static void batch_clear(struct batch *batch) { batch->count = batch->bytes = 0; }

/* ---- reading -------------------------------------------------------------------------------- */

/* What one reading of the store has found. */
struct reading {
    uint64_t rows, unreadable;
    uint64_t unused; /* rows of limits that are not in the configuration */
};

/* Restores rows until one cannot be restored. Precondition: the lock is held.
 *   count    in/out: as of doorman_permits_restore_rows
 *   error    out: why one cannot be restored */
static doorman_status state_restore(doorman_permits *permits, const doorman_stored_row *rows,
                                    size_t *count, doorman_error *error) {
    error->text[0] = 0;
    doorman_status status =
        doorman_permits_restore_rows(permits, rows, count, error, doorman_clock());
    if (!error->text[0]) {
        snprintf(error->text, sizeof error->text, "%s", server_status_text(status));
    }
    return status;
}

/* Restores the rows of a batch, which are at most STEP_ROWS. */
static void state_restore_all(struct state *state, struct reading *reading) {
    struct service *service = state->service;
    struct batch *batch = state->written;
    doorman_stored_row rows[STEP_ROWS];
    doorman_error error;
    assert(batch->count <= STEP_ROWS);
    for (size_t i = 0; i < batch->count; i++) {
        const struct store_row *row = &batch->rows[i];
        rows[i] = (doorman_stored_row){(const unsigned char *)row->record, row->record_bytes};
    }
    for (size_t i = 0; i < batch->count;) {
        doorman_status status = DOORMAN_OK;
        server_lock(&service->lock);
        doorman_permits *permits = state_permits(state);
        if (!permits) i = batch->count; /* state_read sees this too */
        while (i < batch->count && status == DOORMAN_OK) {
            size_t count = batch->count - i;
            status = state_restore(permits, &rows[i], &count, &error);
            i += count + (status != DOORMAN_OK);
            state->status.rows_read = reading->rows + i;
            if (status == DOORMAN_NOT_FOUND) reading->unused++, status = DOORMAN_OK;
        }
        server_unlock(&service->lock);
        if (status != DOORMAN_OK) {
            state_log_row(state, &batch->rows[i - 1], error.text, reading->unreadable++);
        }
    }
    reading->rows += batch->count;
    batch_clear(batch);
}

static bool state_leaves(struct state *state) {
    server_lock(&state->service->lock);
    bool leaves = state_must_leave(state);
    server_unlock(&state->service->lock);
    return leaves;
}

/* Reads the store once. Returns false if it cannot be read, or the thread must leave. */
static bool state_read(struct state *state, struct reading *reading) {
    struct store_row row;
    enum store_result result = STORE_OK;
    while (result == STORE_OK && !state_leaves(state)) {
        while (state->written->count < STEP_ROWS && batch_has_room(state->written) &&
               (result = server_store_next(state->store, &row)) == STORE_OK) {
            if (batch_copy(state->written, &row)) continue;
            state_log_row(state, &row, "it is too long", reading->unreadable++);
        }
        state_restore_all(state, reading);
    }
    if (result == STORE_FAILED) {
        state_note_failure(state, USE_READ, "the store of counters cannot be read");
    }
    return result == STORE_END;
}

/* Ends the reading: from now on the limits decide with the rows that were read. Returns false if
 * the store must be read again, because the configuration has other durable limits now, or if the
 * mastership has ended. */
static bool state_end_reading(struct state *state, const struct reading *reading) {
    struct service *service = state->service;
    char rows[24], unused[24], unreadable[24];
    server_lock(&service->lock);
    doorman_permits *permits = state_permits(state);
    bool is_over = permits && !state->reads_again;
    if (is_over) {
        doorman_status status = doorman_permits_set_rows(permits, DOORMAN_ROWS_READ);
        assert(status == DOORMAN_OK);
        (void)status;
        state->late_at = DOORMAN_NEVER;
        state->status.is_reading = false;
        state->status.rows_unreadable = reading->unreadable;
    }
    if (permits) state->reads_again = false;
    server_unlock(&service->lock);
    if (!is_over) return false;
    snprintf(rows, sizeof rows, "%" PRIu64, reading->rows);
    snprintf(unused, sizeof unused, "%" PRIu64, reading->unused);
    snprintf(unreadable, sizeof unreadable, "%" PRIu64, reading->unreadable);
    server_log(service->settings, reading->unused ? LEVEL_WARNING : LEVEL_INFO, "counters read",
               "store", state->name, "rows", rows, "of_no_limit", unused, "unreadable", unreadable,
               LOG_END);
    return true;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Takes changes into the batch `filled`. Between two steps other threads can use the lock. What
 * changes after the first step may wait for the next round. Precondition: the lock is held.
 *   in_steps  false: the lock is never free
 *   returns   whether it has taken all */
static bool state_take(struct state *state, bool in_steps) {
    struct service *service = state->service;
    doorman_permits *permits = state_permits(state);
    doorman_permits_info info;
    if (!permits) return true;
    doorman_permits_read(permits, &info);
    size_t left = info.changed_count;
    bool more = left > 0;
    if (info.changed_since < state->status.taken_since) {
        state->status.taken_since = info.changed_since;
    }
    for (size_t step = 1; more && batch_has_room(state->filled); step++) {
        more = batch_take(state->filled, permits, doorman_clock());
        if (more && !batch_ends_in_reservation(state->filled)) more = --left > 0;
        if (!more || !in_steps || step % STEP_ROWS != 0) continue;
        server_unlock(&service->lock);
        state_pause(PAUSE_NANOSECONDS);
        server_lock(&service->lock);
        if (state_permits(state) != permits) return true;
    }
    return !more;
}

enum round { ROUND_DONE, ROUND_FULL, ROUND_FAILED, ROUND_OUTDATED };

/* Swaps the batches `filled` and `written`. Precondition: the lock is held; `written` is empty. */
static void state_swap(struct state *state) {
    struct batch *filled = state->filled;
    assert(server_lock_is_held(&state->service->lock) && state->written->count == 0);
    state->filled = state->written;
    state->written = filled;
}

/* Marks all rows as changed, in steps between which other threads can use the lock. */
static void state_mark_all(struct state *state) {
    struct service *service = state->service;
    doorman_counter_cursor cursor = {0};
    for (bool more = true; more;) {
        server_lock(&service->lock);
        more = doorman_permits_mark_all(state_permits(state), &cursor);
        server_unlock(&service->lock);
        if (more) state_pause(PAUSE_NANOSECONDS);
    }
}

/* Lets the next rounds write all that this process knows, because the store has lost its rows. Rows
 * of limits that are not configured stay lost. */
static void state_fill_again(struct state *state) {
    struct service *service = state->service;
    char error[STORE_TEXT];
    snprintf(error, sizeof error, "%s", server_store_error(state->store));
    (void)server_store_begin(state->store, server_store_epoch(state->store));
    server_counter_add(&state->status.errors, 1);
    state_mark_all(state);
    server_log(service->settings, LEVEL_ERROR,
               "the store of counters has lost rows; all that this process knows is written again",
               "store", state->name, "error", error, LOG_END);
}

/* Notes how a write has ended.
 *   outdated   what the log says if another process has begun a later mastership */
static enum round state_note_written(struct state *state, enum store_result result,
                                     const char *outdated) {
    if (result == STORE_OK) {
        state_note_success(state, USE_WRITE);
        return ROUND_DONE;
    }
    if (result == STORE_LOST) {
        state_fill_again(state);
        return ROUND_FAILED;
    }
    bool is_outdated = result == STORE_OUTDATED;
    state_note_failure(state, USE_WRITE,
                       is_outdated ? outdated
                                   : "the store of counters cannot be written; the server decides "
                                     "as before, and keeps the changes");
    return is_outdated ? ROUND_OUTDATED : ROUND_FAILED;
}

/* Writes the batch, and keeps it if that fails.
 *   outdated   as of state_note_written */
static enum round state_write_batch(struct state *state, const char *outdated) {
    const struct batch *batch = state->written;
    if (batch->count == 0) return ROUND_DONE;
    enum round round = state_note_written(
        state, server_store_write(state->store, batch->rows, batch->count), outdated);
    if (round != ROUND_DONE) return round;
    server_counter_add(&state->status.rows_written, batch->count);
    batch_clear(state->written);
    return ROUND_DONE;
}

#define OUTDATED                                                                                   \
    "the store of counters belongs to another process now; if that is not the next master, stop "  \
    "one of them, or give another --node"

/* Finds out whether a shared store has lost rows, or has another master now. Any write would show
 * this, but there may be nothing to write. */
static enum round state_probe(struct state *state) {
    if (!server_store_is_shared(state->place.address)) return ROUND_DONE;
    return state_note_written(state, server_store_write(state->store, state->written->rows, 0),
                              OUTDATED);
}

/* During a planned stop: gives the mastership back only in `seconds` from now. Precondition: the
 * lock is held. */
static void state_keep_mastership(struct state *state, int seconds) {
    assert(server_lock_is_held(&state->service->lock));
    state->give_back_at = doorman_clock() + seconds * DOORMAN_SECOND;
}

/* Writes the batch that could not be written before, or else a batch of what has changed. */
static enum round state_write(struct state *state) {
    struct service *service = state->service;
    uint64_t flush = 0;
    bool took_all = false;
    if (state->written->count == 0) {
        server_lock(&service->lock);
        flush = state->flush_wanted;
        took_all = state_take(state, state->ends_at == 0); /* at the end nobody waits */
        state_swap(state);
        server_unlock(&service->lock);
        batch_sort(state->written);
    }
    enum round round = state_write_batch(state, OUTDATED);
    if (round != ROUND_DONE) return round;
    server_lock(&service->lock);
    if (state->filled->count == 0) state->status.taken_since = DOORMAN_NEVER;
    if (took_all) state->flush_done = flush;
    if (state->give_back_at != DOORMAN_NEVER) state_keep_mastership(state, GIVE_BACK_SECONDS);
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
    return took_all ? ROUND_DONE : ROUND_FULL;
}

/* Drops rows that were fresh a day ago. */
static void state_drop(struct state *state, doorman_time now) {
    if (now < state->drop_at) return;
    if (server_store_drop(state->store, (int64_t)time(NULL) - STORE_KEPT_SECONDS) == STORE_OK) {
        state->drop_at = now + DROP_INTERVAL;
        state_note_success(state, USE_DROP);
    } else {
        state->drop_at = now + RETRY_INTERVAL;
        state_note_failure(state, USE_DROP, "old rows of the store of counters cannot be dropped");
    }
}

/* ---- calls of other parts ------------------------------------------------------------------- */

#define CALL_LOOK (DOORMAN_SECOND / 5) /* between two looks whether the server stops */

/* Lets other parts read what they keep in the store. Returns false if the store cannot be read. */
static bool state_read_parts(struct state *state) {
    bool is_read = true;
    EACH_PART(part, read_store) {
        is_read = is_read && (*part)->read_store(state->service, state->store);
    }
    if (!is_read) state_note_failure(state, USE_READ, "the store of counters cannot be read");
    return is_read;
}

/* Lets other parts read again. If the store fails, tries again after REREAD_INTERVAL. */
static void state_reread(struct state *state) {
    if (state_read_parts(state)) {
        state_note_success(state, USE_READ);
        return;
    }
    server_lock(&state->service->lock);
    state->reread_at = doorman_clock() + REREAD_INTERVAL;
    server_unlock(&state->service->lock);
}

/* Lets parts read again if that is due, and runs the call that waits, if there is one. */
static void state_run_call(struct state *state) {
    struct service *service = state->service;
    server_lock(&service->lock);
    struct state_call *call = state->call;
    bool rereads = doorman_clock() >= state->reread_at;
    state->call = NULL;
    if (rereads) state->reread_at = DOORMAN_NEVER;
    if (call) call->has_begun = true;
    server_unlock(&service->lock);
    if (rereads) state_reread(state);
    if (!call) return;
    call->run(service, state->store, call->context);
    server_lock(&service->lock);
    bool is_lost = call->is_lost;
    call->is_over = true;
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
    if (is_lost) call->drop(call->context);
}

/* Returns why no call can be made, or NULL. Precondition: the lock is held. */
static const char *state_forbids_call(const struct state *state) {
    assert(server_lock_is_held(&state->service->lock));
    if (state->service->stopping || state->has_ended) return "the server is stopping";
    if (server_pauses(state->service)) return "this process hands over to another one";
    if (!doorman_server_permits(state->service->server)) return "this process is not the master";
    if (!state->status.is_reading) return NULL;
    return state->status.trouble.since ? "the store cannot be read" : "the store is being read";
}

struct store *server_state_store(struct service *service) {
    return service->state->store;
}

void server_state_reread(struct service *service) {
    struct state *state = service->state;
    server_lock(&service->lock);
    if (state) {
        state->reread_at = doorman_clock();
        pthread_cond_signal(&state->changed);
    }
    server_unlock(&service->lock);
#ifdef DOORMAN_SERVER_NOTES
    if (!state) server_notes_reread(service);
#endif
}

enum call_result server_state_call(struct service *service, struct state_call *call,
                                   char why[CALL_TEXT]) {
    struct state *state = service->state;
#ifdef DOORMAN_SERVER_NOTES
    if (!state) return server_notes_call(service, call, why);
#endif
    doorman_time now = doorman_clock(), until = now + CALL_SECONDS * DOORMAN_SECOND;
    server_lock(&service->lock);
    const char *forbids = state_forbids_call(state);
    call->has_begun = call->is_over = call->is_lost = false;
    if (!forbids) state->call = call;
    pthread_cond_signal(&state->changed);
    while (!forbids && !call->is_over && now < until) {
        server_condition_wait(&state->finished, &service->lock, CALL_LOOK);
        now = doorman_clock();
        if (!call->has_begun) forbids = state_forbids_call(state);
    }
    bool is_over = call->is_over, has_begun = call->has_begun;
    call->is_lost = has_begun && !is_over;
    if (!has_begun) state->call = NULL;
    const char *reason = state->status.trouble.since ? state->status.trouble.reason
                                                     : "try again, and look at the log";
    snprintf(why, CALL_TEXT, "%s: %.*s", forbids ? forbids : "the store does not answer",
             STORE_TEXT - 1, reason);
    server_unlock(&service->lock);
    if (is_over) return CALL_OVER;
    return has_begun ? CALL_LOST : CALL_REFUSED;
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Waits until a time, or until a flush, a call, a reading of other parts or a drain is wanted.
 * Returns false at once if the thread must leave. */
static bool state_sleep(struct state *state, doorman_time until) {
    struct service *service = state->service;
    doorman_time now = doorman_clock();
    server_lock(&service->lock);
    while (now < until && !state_must_leave(state) && state->flush_wanted == state->flush_seen &&
           !((state->call || now >= state->reread_at) && !state->status.is_reading) &&
           !state_drains(state)) {
        const doorman_time next =
            state->reread_at > now && state->reread_at < until ? state->reread_at : until;
        server_condition_wait(&state->changed, &service->lock, next - now);
        now = doorman_clock();
    }
    state->flush_seen = state->flush_wanted;
    bool goes_on = !state_must_leave(state);
    server_unlock(&service->lock);
    return goes_on;
}

/* Returns whether no other process was master between the last mastership of this process and the
 * one with this epoch (D7). Precondition: the lock is held. */
static bool state_follows_own(const struct state *state, uint64_t epoch) {
    assert(server_lock_is_held(&state->service->lock));
    return epoch == state->epoch || epoch == state->epoch + 1;
}

/* Forgets what the last mastership of this process could not write, if another process was master
 * since then. The other process has read and changed the same rows.
 *   epoch   of the next mastership, which does not write yet */
static void state_forget_changes(struct state *state, uint64_t epoch) {
    struct service *service = state->service;
    server_lock(&service->lock);
    const bool forgets = !state_follows_own(state, epoch);
    if (forgets) {
        batch_clear(state->filled);
        state->status.taken_since = DOORMAN_NEVER;
    }
    server_unlock(&service->lock);
    if (!forgets) return;
    batch_clear(state->written);
    server_log(service->settings, LEVEL_ERROR,
               "changes are forgotten, because another process was master before they were written",
               "store", state->name, LOG_END);
}

/* Writes what the last mastership of this process has left, unless another process has been master
 * since then. Returns whether nothing is left. */
static bool state_settle(struct state *state) {
    struct service *service = state->service;
    for (int i = 0; i < 2; i++) { /* the batch that was being written, and the one being filled */
        enum round round = state_write_batch(
            state, "changes are forgotten, because another process has become master");
        if (round == ROUND_FAILED) return false;
        batch_clear(state->written);
        server_lock(&service->lock);
        state_swap(state);
        if (i > 0) state->status.taken_since = DOORMAN_NEVER;
        server_unlock(&service->lock);
        batch_sort(state->written);
    }
    return true;
}

/* Returns the epoch that the thread must prepare, or 0. Precondition: the lock is held. */
static uint64_t state_to_prepare(const struct state *state) {
    assert(server_lock_is_held(&state->service->lock));
    return state->won == state->prepared ? 0 : state->won;
}

/* Lets other parts read what another process may have changed in the store.
 *   epoch   of the mastership that will be in force; 0: none */
static void state_follow(struct state *state, uint64_t epoch) {
    EACH_PART(part, follow_store)(*part)->follow_store(state->service, state->store, epoch);
}

/* Begins a mastership in the store before it is in force, and takes what the last master has left
 * there. */
static void state_prepare(struct state *state, uint64_t epoch) {
    struct service *service = state->service;
    struct planned planned = {.result = STORE_FAILED};
    const enum store_result begun = server_store_begin(state->store, epoch);
    if (begun == STORE_OK) {
        server_state_take(state->store, &planned);
    } else {
        snprintf(planned.why, sizeof planned.why, "%.*s", (int)sizeof planned.why - 1,
                 server_store_error(state->store));
    }
    if (begun != STORE_FAILED) state_follow(state, epoch); /* the last master writes no more */
    server_lock(&service->lock);
    server_state_drop(&state->planned);
    state->planned = planned;
    state->prepared = epoch;
    if (state->won != epoch) server_state_drop(&state->planned); /* nobody waits any more */
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
}

/* Without an election: begins the mastership in the store, and takes what the last one has left
 * there. Returns the epoch; 0: the store does not work now.
 *   out   see server_state_take */
static uint64_t state_begin_only(struct state *state, struct planned *out) {
    *out = (struct planned){.result = STORE_FAILED};
    if (server_store_begin(state->store, 0) == STORE_OK) {
        server_state_take(state->store, out);
        return server_store_epoch(state->store);
    }
    snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1,
             server_store_error(state->store));
    return 0;
}

static void state_elected(struct service *service, bool is_master, uint64_t epoch);

/* Makes a process without an election master again after a drain, as a start does. */
static void state_return(struct state *state) {
    struct service *service = state->service;
    const doorman_mastership mastership = {.address = service->advertise, .until = DOORMAN_NEVER};
    struct planned planned;
    uint64_t epoch = state_begin_only(state, &planned);
    server_lock(&service->lock);
    doorman_status status =
        doorman_server_set_master(service->server, &mastership, doorman_clock());
    assert(status == DOORMAN_OK);
    (void)status;
    state_elected(service, true, epoch);
    server_state_take_over(service, &planned, state->name, &state->status);
    server_note_learning(service, LEARNING_OF_MASTER, doorman_clock());
    server_drain_move(service, DRAIN_NONE);
    server_unlock(&service->lock);
}

/* Waits for the next mastership of this process. Meanwhile writes what the last one has left,
 * prepares what is won, and lets other parts follow the store. Returns false if the server
 * stops. */
static bool state_await_mastership(struct state *state) {
    struct service *service = state->service;
    bool settled = false;
    server_lock(&service->lock);
    while (state->ends_at == 0 && state->victory == state->victories) {
        uint64_t won = state_to_prepare(state);
        bool returns = service->drain.phase == DRAIN_RETURNING;
        server_unlock(&service->lock);
        settled = settled || state_settle(state);
        if (won && !settled) state_forget_changes(state, won);
        if (won) state_prepare(state, won);
        if (!won && !returns) state_follow(state, 0);
        if (returns) state_return(state);
        server_lock(&service->lock);
        bool is_called = state_to_prepare(state) || state->victory != state->victories;
        if (is_called || state->ends_at != 0) continue;
        server_condition_wait(&state->changed, &service->lock, BEGIN_INTERVAL);
    }
    bool goes_on = state->ends_at == 0;
    if (goes_on) state->victory = state->victories;
    server_unlock(&service->lock);
    return goes_on;
}

/* Logs what a person should know about a store that works. */
static void state_log_warning(const struct state *state) {
    const char *warning = server_store_warning(state->store);
    if (!warning[0]) return;
    server_log(state->service->settings, LEVEL_WARNING, "the store of counters may forget rows",
               "store", state->name, "why", warning, LOG_END);
}

/* Begins a mastership in the store (D9). Returns false if the thread must leave first. */
static bool state_begin_mastership(struct state *state) {
    struct service *service = state->service;
    server_lock(&service->lock);
    uint64_t epoch = state->epoch;
    server_unlock(&service->lock);
    for (;;) {
        if (state_settle(state)) {
            if (server_store_begin(state->store, epoch) == STORE_OK) break;
            state_note_failure(state, USE_WRITE, "the store of counters cannot be used");
        }
        if (!state_sleep(state, doorman_clock() + BEGIN_INTERVAL)) return false;
    }
    state_note_success(state, USE_READ | USE_WRITE | USE_DROP);
    state_log_warning(state);
    return true;
}

/* Reads the store, and tries again until that succeeds. Returns false if the thread must leave
 * first. */
static bool state_read_surely(struct state *state) {
    for (;;) {
        struct reading reading = {0};
        if (!state_read_parts(state) || !state_read(state, &reading)) {
            if (!state_sleep(state, doorman_clock() + RETRY_INTERVAL)) return false;
            continue;
        }
        state_note_success(state, USE_READ);
        if (state_end_reading(state, &reading)) return true;
    }
}

/* Reads the store again if the configuration has other durable limits. A row that was read or
 * written before does not count twice. Returns false if the thread must leave first. */
static bool state_read_again(struct state *state) {
    struct service *service = state->service;
    server_lock(&service->lock);
    bool wanted = state->reads_again;
    state->reads_again = false;
    server_unlock(&service->lock);
    return !wanted || state_read_surely(state);
}

/* Writes what is left, with further tries until `ends_at`. The store is not read again any more,
 * even if the configuration has other durable limits. Returns whether all is written. */
static bool state_finish(struct state *state) {
    struct service *service = state->service;
    enum round round;
    server_lock(&service->lock);
    (void)doorman_permits_set_rows(doorman_server_permits(service->server), DOORMAN_ROWS_READ);
    server_unlock(&service->lock);
    while ((round = state_write(state)) != ROUND_DONE && round != ROUND_OUTDATED) {
        server_lock(&service->lock);
        bool is_over = doorman_clock() >= state->ends_at;
        server_unlock(&service->lock);
        if (is_over) return false;
        if (round == ROUND_FAILED) state_pause(100 * PAUSE_NANOSECONDS);
    }
    return round == ROUND_DONE;
}

/* If a drain wants it, writes what is left while no message is decided. Returns whether the drain
 * continues. A drain that continues here cannot be called off any more. */
static bool state_pause_to_leave(struct state *state) {
    struct service *service = state->service;
    enum round round = ROUND_FULL;
    server_lock(&service->lock);
    bool drains = state_drains(state);
    if (drains) server_drain_move(service, DRAIN_PAUSED);
    server_unlock(&service->lock);
    while (drains && round == ROUND_FULL) round = state_write(state);
    server_lock(&service->lock);
    bool is_paused = service->drain.phase == DRAIN_PAUSED && state_permits(state);
    bool leaves = drains && is_paused && round == ROUND_DONE;
    if (leaves) {
        server_drain_move(service, DRAIN_LEAVING);
    } else if (drains && is_paused) {
        server_drain_call_off(service, "the store of counters cannot be written");
    }
    server_unlock(&service->lock);
    return leaves;
}

/* Leaves the leases and holds in the store if a drain wants that. Precondition: all rows that had
 * changed are written, so that messages are refused for a short time only. */
static void state_drain(struct state *state) {
    struct service *service = state->service;
    const doorman_mastership none = {.until = 0};
    if (!state_pause_to_leave(state)) return;
    server_state_hand_over(service, state->store, state->name);
    server_lock(&service->lock);
    bool has_election = service->settings->election_key != NULL;
    if (!has_election) {
        (void)doorman_server_set_master(service->server, &none, doorman_clock());
        state_elected(service, false, 0);
    }
    if (service->drain.phase == DRAIN_LEAVING) {
        server_drain_move(service, has_election ? DRAIN_LEFT : DRAIN_DONE);
    }
    server_unlock(&service->lock);
}

/* Serves one mastership: reads all rows, and then writes what changes, until the thread must
 * leave. */
static void state_serve(struct state *state) {
    const doorman_time interval =
        (doorman_time)state->service->settings->state_interval * DOORMAN_SECOND;
    doorman_time began = doorman_clock();
    if (!state_begin_mastership(state) || !state_read_surely(state)) return;
    while (state_sleep(state, began + interval)) {
        state_run_call(state);
        enum round round = ROUND_FULL;
        began = doorman_clock();
        while (round == ROUND_FULL && !state_leaves(state)) round = state_write(state);
        if (round == ROUND_DONE) round = state_probe(state);
        if (round == ROUND_FAILED) state_pause(PAUSE_NANOSECONDS); /* a drain does not sleep */
        if (round != ROUND_DONE || !state_read_again(state)) continue;
        state_drop(state, began);
        state_drain(state);
    }
}

/* Leaves the leases and holds at the end, unless the mastership was given back before. */
static void state_leave(struct state *state) {
    server_lock(&state->service->lock);
    bool is_master = state_permits(state) != NULL;
    server_unlock(&state->service->lock);
    if (is_master) server_state_hand_over(state->service, state->store, state->name);
}

static void *state_main(void *context) {
    struct state *state = (struct state *)context;
    struct service *service = state->service;
    server_shares_memory = true; /* it deletes trees of the thread of pages, and the reverse */
    while (state_await_mastership(state)) state_serve(state);
    server_lock(&service->lock);
    bool was_read = state->victory == state->victories && !state->status.is_reading;
    bool is_planned = service->stopping && state_permits(state); /* and the start was complete */
    server_unlock(&service->lock);
    if (was_read && state_finish(state) && is_planned) state_leave(state);
    server_lock(&service->lock);
    state->has_ended = true;
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
    return NULL;
}

/* ---- the part ------------------------------------------------------------------------------- */

/* Ignores SIGXFSZ. Then a write to a file that is too large fails, as on a full disk. */
static void state_init(void) { signal(SIGXFSZ, SIG_IGN); }

/* Returns the place of the store. Several nodes can share a store, so the names of keys have
 * --node, or else the election key. They never have the default of --node, an address that can
 * differ after a restart. */
static struct store_place state_place(const struct settings *settings) {
    return (struct store_place){.address = settings->state,
                                .node = settings->node ? settings->node : settings->election_key,
                                .password_file = settings->state_password_file,
                                .authority = settings->state_ca,
                                .certificate = settings->state_cert,
                                .key = settings->state_key};
}

/* Checks the value of --state. The command line of a process can be read by others, so it must not
 * have a password. A scheme that is not known is no usage error, because another build of the
 * server may know it. */
static enum exit_status state_check_place(const struct settings *settings) {
    const struct store_place place = state_place(settings);
    const char *variable = getenv("DOORMAN_STATE"), *unknown = server_store_unknown(place.address);
    char error[STORE_TEXT], name[STORE_TEXT];
    server_store_name(settings->state, name);
    if (unknown) return server_fatal_error(EXIT_ERROR, "--state %s %s", name, unknown);
    if (settings->state != variable && server_store_has_password(settings->state)) {
        return server_usage_error(
            "--state has a password, or cannot be read: the list of processes shows it; give "
            "--state-password-file, or the variable DOORMAN_STATE");
    }
    if (!settings->state_cert != !settings->state_key) {
        return server_usage_error("--state-cert and --state-key need each other");
    }
    if ((settings->state_ca || settings->state_cert) && !server_store_has_tls(settings->state)) {
        return server_usage_error("--state-ca and --state-cert need --state rediss://...");
    }
    if (!server_store_check(&place, error)) return server_usage_error("--state %s %s", name, error);
    if (settings->election_key && !server_store_is_shared(settings->state)) {
        return server_usage_error("--state and --election-key: the processes of a node cannot "
                                  "share a file; give a redis://... or leave one of them out");
    }
    return CONTINUE;
}

static enum exit_status state_check(const struct settings *settings) {
    static const int flags[] = {FLAG_STATE_PASSWORD_FILE, FLAG_STATE_CA,       FLAG_STATE_CERT,
                                FLAG_STATE_KEY,           FLAG_STATE_INTERVAL, FLAG_STATE_WAIT};
    if (settings->state) return state_check_place(settings);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (!settings->given[flags[i]]) continue;
        return server_usage_error("--%s needs --state", server_flag_name(flags[i]));
    }
    return CONTINUE;
}

/* Opens the store, unless state_load has opened it. */
static enum exit_status state_open(struct service *service) {
    char error[STORE_TEXT] = "out of memory";
    if (!service->settings->state || service->state) return CONTINUE;
    struct state *state = (struct state *)calloc(1, sizeof *state);
    if (!state) return server_fatal_error(EXIT_ERROR, "%s", error);
    service->state = state;
    state->service = service;
    state->place = state_place(service->settings);
    server_store_name(state->place.address, state->name);
    state->late_at = state->reread_at = state->status.taken_since = DOORMAN_NEVER;
    state->give_back_at = DOORMAN_NEVER;
    state->filled = (struct batch *)calloc(1, sizeof *state->filled);
    state->written = (struct batch *)calloc(1, sizeof *state->written);
    bool made = state->filled && state->written && server_condition_init(&state->changed) &&
                server_condition_init(&state->finished);
    if (made) state->store = server_store_open(&state->place, error);
    if (!state->store) return server_fatal_error(EXIT_ERROR, "--state %s: %s", state->name, error);
    return CONTINUE;
}

/* If the configuration is in the store, opens the store. If not, state_open opens it later, so that
 * an invalid configuration does not spend the epoch of a planned stop (D9). */
static enum exit_status state_load(struct service *service) {
    return service->settings->config_in_store ? state_open(service) : CONTINUE;
}

/* Adds a text and its final 0 to an FNV-1a hash. */
static uint64_t hash_add(uint64_t hash, const char *text) {
    for (size_t i = 0; i <= strlen(text); i++) {
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211U;
    }
    return hash;
}

/* Returns a hash of the durable limits, without their figures. */
static uint64_t limits_hash(const doorman_permits *permits) {
    uint64_t hash = 14695981039346656037U;
    doorman_permits_limit limit;
    doorman_cursor cursor = {0};
    while (doorman_permits_next_limit(permits, &cursor, &limit)) {
        if (!limit.settings || !limit.settings->durable) continue;
        char kind[32];
        snprintf(kind, sizeof kind, "%d %d", (int)limit.settings->kind, (int)limit.settings->per);
        hash = hash_add(hash_add(hash_add(hash, limit.identifier_glob), limit.limit), kind);
    }
    return hash;
}

/* Makes permits of durable limits wait for the rows from now on. Precondition: this process is
 * master. */
static void state_await_rows(struct state *state) {
    doorman_permits *permits = doorman_server_permits(state->service->server);
    doorman_time wait = (doorman_time)state->service->settings->state_wait * DOORMAN_SECOND;
    doorman_status status = doorman_permits_set_rows(permits, DOORMAN_ROWS_AWAITED);
    assert(status == DOORMAN_OK);
    (void)status;
    state->limits = limits_hash(permits);
    state->late_at = doorman_clock() + wait;
    pthread_cond_signal(&state->changed);
}

/* Lets the thread prepare the mastership that this process has won, and waits a little. */
static void state_wins(struct service *service, uint64_t epoch) {
    struct state *state = service->state;
    if (!state) return;
    doorman_time wait = service->settings->election_ttl * DOORMAN_SECOND / 5;
    if (wait > WIN_SECONDS * DOORMAN_SECOND) wait = WIN_SECONDS * DOORMAN_SECOND;
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + wait;
    state->won = epoch;
    pthread_cond_signal(&state->changed);
    while (now < until && state->prepared != epoch && !state->has_ended && !service->stopping) {
        server_condition_wait(&state->finished, &service->lock, until - now);
        now = doorman_clock();
    }
    server_unlock(&service->lock);
}

/* Begins with what this process has kept (D7), or else with what the last master has left, if it
 * was found in time. Precondition: this process is master, and has answered nothing as such.
 *   follows   no other process was master since this one was */
static void state_take_over(struct state *state, bool follows) {
    struct planned none = {.result = STORE_FAILED, .why = "the store did not answer in time"};
    if (state->won == 0) snprintf(none.why, sizeof none.why, "the mastership was only interrupted");
    bool in_time = state->prepared == state->epoch && state->won == state->epoch;
    struct planned *from = in_time ? &state->planned : &none;
    if (follows && state->kept.bytes) from = &state->kept;
    server_state_take_over(state->service, from, state->name, &state->status);
    server_state_drop(&state->kept);
    state->won = 0;
}

/* D7: keeps what the library is about to forget. Changes that do not fit into the batch are
 * forgotten, as after a crash. While the store is read, the library yields no rows. */
static void state_loses(struct service *service, doorman_time now) {
    struct state *state = service->state;
    if (!state) return;
    if (!state->status.is_reading) (void)state_take(state, false);
    server_state_drop(&state->kept);
    server_state_keep(service, &state->kept, now);
}

/* Forgets what was kept, as soon as another process is known to be master. */
static void state_update_kept(struct state *state) {
    const struct election_status *election = &state->service->election_status;
    const bool is_standby = !election->lease && !election->no_master.since;
    if (is_standby) server_state_drop(&state->kept);
}

/* Begins or ends a mastership of this process. */
static void state_elected(struct service *service, bool is_master, uint64_t epoch) {
    struct state *state = service->state;
    if (!state) return;
    is_master = is_master && doorman_server_permits(service->server); /* it may have left */
    state->status.is_reading = is_master;
    state->reads_again = false;
    state->late_at = DOORMAN_NEVER;
    state->status.trouble.since = 0;
    state->fails = 0;
    if (is_master) {
        const bool follows = state_follows_own(state, epoch);
        state->epoch = epoch;
        state->victories++;
        state_await_rows(state);
        if (state->service->settings->election_key) state_take_over(state, follows);
    }
    pthread_cond_signal(&state->changed);
    pthread_cond_broadcast(&state->finished);
}

/* Without an election: begins the mastership, and lets parts read what they keep in the store,
 * before any message is answered. */
static void state_begin(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    service->state_status = &state->status;
    if (service->settings->election_key) return;
    struct planned planned;
    uint64_t epoch = state_begin_only(state, &planned);
    state_elected(service, true, epoch);
    EACH_PART(part, read_store) {
        if (epoch) (void)(*part)->read_store(service, state->store); /* the thread tries again */
    }
    server_state_take_over(service, &planned, state->name, &state->status);
}

static enum exit_status state_start(struct service *service) {
    struct state *state = service->state;
    if (!state) return CONTINUE;
    int error = pthread_create(&state->thread, NULL, state_main, state);
    state->is_started = error == 0;
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", strerror(error));
}

/* Calls a drain off if its time has passed. A store that hangs must not hold up the drain and all
 * messages for ever. */
static void state_update_drain(struct service *service, doorman_time now) {
    const struct drain *drain = &service->drain;
    bool waits = drain->phase == DRAIN_WRITING || drain->phase == DRAIN_PAUSED;
    if (!waits || now < drain->until) return;
    server_drain_call_off(service, "the store of counters did not take all changes in time");
}

static void state_follow_drain(struct service *service) {
    if (service->state) pthread_cond_signal(&service->state->changed);
}

/* Lets limits decide without the rows when --state-wait has passed. The main thread does this,
 * because a disk that hangs also stops the thread that reads. */
static void state_update(struct service *service, doorman_time now) {
    struct state *state = service->state;
    state_update_drain(service, now);
    if (state) state_update_kept(state);
    if (!state || now < state->late_at) return;
    state->late_at = DOORMAN_NEVER;
    doorman_permits *permits = doorman_server_permits(service->server);
    if (!permits) return;
    (void)doorman_permits_set_rows(permits, DOORMAN_ROWS_UNREAD);
    server_log(service->settings, LEVEL_ERROR,
               "the counters were not read in time; limits decide without them, except those with "
               "on_unread: refuse",
               "store", state->name, LOG_END);
}

/* Waits at most FLUSH_SECONDS until what has changed is written, because the library no longer
 * yields the changes of a limit that a configuration has removed. */
static void state_flush(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + FLUSH_SECONDS * DOORMAN_SECOND;
    uint64_t number = ++state->flush_wanted;
    pthread_cond_signal(&state->changed);
    while (now < until && state->flush_done < number && !state->status.is_reading &&
           state_permits(state) && !state->has_ended) {
        server_condition_wait(&state->finished, &service->lock, until - now);
        now = doorman_clock();
    }
    server_unlock(&service->lock);
}

uint64_t server_state_want_flush(struct service *service) {
    struct state *state = service->state;
    server_lock(&service->lock);
    const uint64_t number = ++state->flush_wanted;
    pthread_cond_signal(&state->changed);
    server_unlock(&service->lock);
    return number;
}

bool server_state_is_flushed(struct service *service, uint64_t number) {
    server_lock(&service->lock);
    const bool is_done = service->state->flush_done >= number;
    server_unlock(&service->lock);
    return is_done;
}

/* Takes into the batch what state_flush has not written. */
static void state_before_configuration(struct service *service) {
    struct state *state = service->state;
    if (state && !state->status.is_reading) (void)state_take(state, false);
}

/* Has the store read again if the durable limits have changed, because it may have rows of new
 * limits. Until it is read, permits of durable limits wait, as at the start. */
static void state_in_force(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    doorman_permits *permits = doorman_server_permits(service->server);
    uint64_t limits = limits_hash(permits);
    if (!permits || limits == state->limits) return;
    state->limits = limits;
    state->reads_again = true;
    if (state->status.is_reading) return;
    state->flush_wanted++;
    state_await_rows(state);
}

/* Returns whether a second signal ends the wait for a store that does not work. While it works, a
 * second signal changes nothing, because many wrappers send each signal twice. Precondition: the
 * lock is held. */
static bool state_must_hurry(const struct state *state) {
    assert(server_lock_is_held(&state->service->lock));
    sigset_t pending;
    bool waits = state->status.trouble.since != 0 && !state->service->replaces;
    if (!waits || sigpending(&pending) != 0) return false;
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

/* Lets a standby serve before all is written. What fits into a batch is still written later, unless
 * another process has begun a mastership in the store by then (D9). Precondition: the lock is
 * held. */
static void state_give_back(struct state *state, doorman_time now) {
    assert(server_lock_is_held(&state->service->lock));
    struct service *service = state->service;
    bool has_changes = server_state_age(service, now) != 0;
    bool took_all = !state->status.is_reading && state_permits(state) && state_take(state, false);
    state->forgets = has_changes && !took_all;
    state->give_back_at = DOORMAN_NEVER;
    server_log(service->settings, LEVEL_WARNING,
               "the mastership is given back before all changes are in the store, which does not "
               "take them; the next master may not know the last ones",
               "store", state->name, LOG_END);
    EACH_PART(part, gives_back)(*part)->gives_back(service);
}

/* Waits until the thread has ended. Returns NULL, or why the wait is over before that.
 * Precondition: the lock is held. */
static const char *state_await_end(struct state *state) {
    assert(server_lock_is_held(&state->service->lock));
    const char *why = "25 s have passed";
    doorman_time now = doorman_clock();
    bool fails = state->status.trouble.since != 0;
    state->ends_at = now + STOP_SECONDS * DOORMAN_SECOND;
    if (state->service->settings->election_key && doorman_server_permits(state->service->server)) {
        state_keep_mastership(state, fails ? GIVE_BACK_FAILING_SECONDS : GIVE_BACK_SECONDS);
    }
    pthread_cond_signal(&state->changed);
    while (now < state->ends_at && !state->has_ended) {
        if (now >= state->give_back_at) state_give_back(state, now);
        doorman_time wait = state->ends_at - now;
        if (wait > HURRY_INTERVAL) wait = HURRY_INTERVAL;
        server_condition_wait(&state->finished, &state->service->lock, wait);
        now = doorman_clock();
        if (!state_must_hurry(state)) continue;
        state->ends_at = now;
        why = "a second signal came";
    }
    return now < state->ends_at ? NULL : why;
}

/* Waits until the thread has written all or gives up, and sets the exit code. No message is decided
 * any more. */
static void state_stopping(struct service *service) {
    struct state *state = service->state;
    if (!state || !state->is_started) return;
    server_stop_code = EXIT_UNWRITTEN; /* also if the store never returns */
    alarm(STOP_SECONDS + 2);
    server_lock(&service->lock);
    bool has_trouble = state->status.trouble.since != 0;
    server_unlock(&service->lock);
    if (has_trouble) {
        server_log(service->settings, LEVEL_WARNING,
                   "waiting at most 25 s until the store of counters can be written; a second "
                   "signal ends the wait",
                   "store", state->name, LOG_END);
    }
    server_lock(&service->lock);
    const char *why = state_await_end(state);
    bool was_read = !state->status.is_reading;
    bool is_written = !state->forgets && server_state_age(service, doorman_clock()) == 0;
    server_unlock(&service->lock);
    if (is_written) server_stop_code = EXIT_OK;
    if (is_written && was_read) return;
    server_log(service->settings, LEVEL_ERROR,
               was_read ? "the last changes of counters are not in the store"
                        : "the counters were not read yet, so no change of them is in the store",
               "store", state->name, why ? "why" : LOG_END, why, LOG_END);
}

static void state_stop(struct service *service) {
    struct state *state = service->state;
    if (!state || !state->is_started) return;
    server_lock(&service->lock);
    if (state->ends_at == 0) state->ends_at = doorman_clock();
    pthread_cond_signal(&state->changed);
    server_unlock(&service->lock);
    pthread_join(state->thread, NULL);
    state->is_started = false;
}

static void state_destroy(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    server_store_close(state->store);
    server_state_drop(&state->planned);
    server_state_drop(&state->kept);
    free(state->filled);
    free(state->written);
    free(state);
    service->state = NULL;
    service->state_status = NULL;
}

/* Returns why a restart would lose changes now, or NULL. */
static const char *state_hinders(const struct service *service) {
    const struct state *state = service->state;
    return state && state->status.trouble.since ? "the store of counters cannot be written" : NULL;
}

const struct server_part server_part_state = {.name = "STATE",
                                              .init = state_init,
                                              .check = state_check,
                                              .load = state_load,
                                              .open = state_open,
                                              .begin = state_begin,
                                              .start = state_start,
                                              .update = state_update,
                                              .stopping = state_stopping,
                                              .stop = state_stop,
                                              .destroy = state_destroy,
                                              .before_config = state_flush,
                                              .hinders = state_hinders,
                                              .configures = state_before_configuration,
                                              .wins = state_wins,
                                              .elected = state_elected,
                                              .loses = state_loses,
                                              .drains = state_follow_drain,
                                              .in_force = state_in_force};
