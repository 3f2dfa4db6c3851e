/* doorman_server, part STATE: counters of durable limits and bans outlast a restart (V8). The
 * library says what a row is (D2 to D5), and server/state/store.c keeps rows in a file. This
 * file moves them: all of them into memory at the start, and what has changed into the file once in
 * each interval.
 *
 * A thread does this. It holds the lock of the service for at most STEP_ROWS rows at once, and
 * never while it uses the file. So no message waits for the disk.
 *
 *     state     permits of durable limits     what the thread does
 *     reading   LEARNING                      reads all rows; after a failure, begins again
 *     late      as on_unread says             the same, because --state-wait has passed
 *     writing   decided in memory             writes what has changed, once in each interval; after
 *                                             a failure, the same rows again
 *     ended     none: the server stops        has written what was left
 *
 * A change is marked in the library until it is in a batch, and a batch stays until it is written.
 * So a file that cannot be written loses nothing, and the memory for it does not grow (D6). When a
 * batch is full, the next one follows at once.
 *
 * Nothing is written before all is read: a row in the file may say that more is used than memory
 * knows. */
#include "state.h"
#include "store.h"

#include <signal.h>
#include <unistd.h>

/* Rows while the lock is held. This takes some tenths of a millisecond. The pause lets a thread
 * that waits for the lock wake up and take it. */
#define STEP_ROWS 512
#define PAUSE_NANOSECONDS 100000

/* Of one transaction. With many rows in random order each page of the file has several of them, so
 * a large batch writes fewer pages for each row. */
#define BATCH_ROWS 32768
#define BATCH_BYTES (8U << 20)

#define NAMES_MAX 20 /* rows that cannot be read and have a line of the log, for each reading */

#define RETRY_INTERVAL (5 * DOORMAN_SECOND) /* after a reading that failed */

/* Rows that are fresh are dropped after this time, in seconds. Until then a limit that was removed
 * by mistake can come back. */
#define KEPT_SECONDS 86400
#define DROP_INTERVAL (3600 * DOORMAN_SECOND)

/* How long a new configuration waits until the changes before it are written. */
#define FLUSH_SECONDS 2

/* How long the changes are written at the end. systemd and Kubernetes must wait longer: see
 * TimeoutStopSec and terminationGracePeriodSeconds in examples/deploy. */
#define STOP_SECONDS 25

/* Rows, and the bytes that they point to. */
struct batch {
    size_t count, bytes;
    struct store_row rows[BATCH_ROWS];
    unsigned char memory[BATCH_BYTES];
};

struct state {
    struct service *service;
    struct store *store; /* only the thread uses it while it runs */
    pthread_t thread;
    bool is_started;
    doorman_time drop_at;  /* when to drop old rows next; only for the thread */
    struct batch *written; /* being read or written; only for the thread */

    /* The lock of the service guards these. */
    pthread_cond_t changed;          /* the thread waits for it */
    pthread_cond_t finished;         /* threads that wait for the thread */
    struct batch *filled;            /* changes that the thread has not begun to write */
    uint64_t flush_wanted;           /* the number of the last wish that all is written */
    uint64_t flush_seen, flush_done; /* the last one that the thread knows, and has fulfilled */
    doorman_time late_at; /* when permits no longer wait for the rows; DOORMAN_NEVER: they do not */
    doorman_time
        ends_at;      /* the server stops, and gives the thread until then; 0: it does not stop */
    bool has_ended;   /* the thread has written all, or has given up */
    bool reads_again; /* the configuration has other durable limits, which may have rows */
    uint64_t limits;  /* a hash of the durable limits */
    struct state_status status;
};

/* ---- log ------------------------------------------------------------------------------------ */

/* Notes that a call of the store has failed. A failure that lasts has one line. */
static void state_note_failure(struct state *state, const char *what) {
    struct service *service = state->service;
    const char *error = server_store_error(state->store);
    server_lock(&service->lock);
    bool is_new = state->status.trouble.since == 0;
    server_trouble_set(&state->status.trouble, error, doorman_clock());
    server_counter_add(&state->status.errors, 1);
    server_unlock(&service->lock);
    if (!is_new) return;
    server_log(service->settings, LEVEL_ERROR, what, "file", service->settings->state, "error",
               error, LOG_END);
}

/* Notes that a call has succeeded. */
static void state_note_success(struct state *state) {
    struct service *service = state->service;
    server_lock(&service->lock);
    struct trouble_text text = server_trouble_text(&state->status.trouble, doorman_clock());
    bool had_trouble = state->status.trouble.since != 0;
    state->status.trouble.since = 0;
    server_unlock(&service->lock);
    if (!had_trouble) return;
    server_log(service->settings, LEVEL_INFO, "the file of counters works again", "file",
               service->settings->state, "after_seconds", text.seconds, "failures", text.count,
               LOG_END);
}

/* Names a row that cannot be restored.
 *   count   how many there were before */
static void state_log_row(const struct state *state, const struct store_row *row, const char *error,
                          uint64_t count) {
    if (count > NAMES_MAX) return;
    if (count == NAMES_MAX) error = "further rows have no lines";
    server_log(state->service->settings, LEVEL_WARNING,
               "a counter cannot be read, and stays in the file", "file",
               state->service->settings->state, "template", row->template, "limit", row->limit,
               "resource", row->resource, "key", row->key, "error", error, LOG_END);
}

/* ---- batches -------------------------------------------------------------------------------- */

static void state_pause(long nanoseconds) {
    const struct timespec time = {.tv_nsec = nanoseconds};
    nanosleep(&time, NULL);
}

/* Returns whether a further row fits. Its record has its texts too, but a row that was read from
 * the file has them twice. */
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
    size_t bytes = doorman_permits_next_changed(permits, record, now);
    if (bytes == 0) return false;
    doorman_status status = doorman_permit_row_read(record, bytes, &row, NULL);
    assert(status == DOORMAN_OK);
    (void)status;
    batch->bytes += bytes;
    batch->rows[batch->count++] = (struct store_row){.identity = row.identity,
                                                     .identity_bytes = row.identity_bytes,
                                                     .is_ban = row.is_ban,
                                                     .template = row.identifier_glob,
                                                     .limit = row.limit,
                                                     .resource = row.resource_id,
                                                     .key = row.key,
                                                     .fresh_at = seconds_after(row.fresh_at),
                                                     .record = row.removed ? NULL : record,
                                                     .record_bytes = bytes};
    return true;
}

static const void *batch_keep(struct batch *batch, const void *from, size_t bytes) {
    void *to = batch->memory + batch->bytes;
    memcpy(to, from, bytes);
    batch->bytes += bytes;
    return to;
}

/* Adds a copy of a row of the file. Returns false if it is longer than any row of the library. */
static bool batch_copy(struct batch *batch, const struct store_row *from) {
    const char *const texts[] = {from->template, from->limit, from->resource, from->key};
    const char *copies[4];
    size_t bytes = from->record_bytes;
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

/* The order of the file, so that each page is visited once. A row that was taken later comes behind
 * one with the same identity. */
static int compare_rows(const void *left, const void *right) {
    const struct store_row *one = (const struct store_row *)left;
    const struct store_row *other = (const struct store_row *)right;
    bool is_shorter = one->identity_bytes < other->identity_bytes;
    int order = memcmp(one->identity, other->identity,
                       is_shorter ? one->identity_bytes : other->identity_bytes);
    if (order != 0) return order;
    if (one->identity_bytes != other->identity_bytes) return is_shorter ? -1 : 1;
    return one->identity < other->identity ? -1 : one->identity > other->identity;
}

static void batch_sort(struct batch *batch) {
    qsort(batch->rows, batch->count, sizeof *batch->rows, compare_rows);
}

static void batch_clear(struct batch *batch) { batch->count = batch->bytes = 0; }

/* ---- reading -------------------------------------------------------------------------------- */

/* What one reading of the file has found. */
struct reading {
    uint64_t rows, unreadable;
    uint64_t unused; /* rows of limits that are not in the configuration */
};

/* Restores one row. Precondition: the lock is held.
 *   error   out: why it cannot be restored */
static doorman_status state_restore(struct state *state, const struct store_row *row,
                                    doorman_error *error) {
    doorman_permits *permits = doorman_server_permits(state->service->server);
    assert(permits);
    *error = (doorman_error){0};
    doorman_status status = doorman_permits_restore(permits, (const unsigned char *)row->record,
                                                    row->record_bytes, error, doorman_clock());
    if (!error->text[0]) {
        snprintf(error->text, sizeof error->text, "%s", server_status_text(status));
    }
    return status;
}

/* Restores the rows of a batch, in steps. */
static void state_restore_all(struct state *state, struct reading *reading) {
    struct service *service = state->service;
    struct batch *batch = state->written;
    doorman_error error;
    for (size_t i = 0; i < batch->count;) {
        doorman_status status = DOORMAN_OK;
        server_lock(&service->lock);
        for (size_t last = i + STEP_ROWS; i < batch->count && i < last && status == DOORMAN_OK;) {
            status = state_restore(state, &batch->rows[i++], &error);
            state->status.rows_read = reading->rows + i;
            if (status == DOORMAN_NOT_FOUND) reading->unused++, status = DOORMAN_OK;
        }
        server_unlock(&service->lock);
        if (status != DOORMAN_OK) {
            state_log_row(state, &batch->rows[i - 1], error.text, reading->unreadable++);
        }
        state_pause(PAUSE_NANOSECONDS);
    }
    reading->rows += batch->count;
    batch_clear(batch);
}

static bool state_is_stopping(struct state *state) {
    server_lock(&state->service->lock);
    bool stops = state->ends_at != 0;
    server_unlock(&state->service->lock);
    return stops;
}

/* Reads the file once. Returns false if it cannot be read, or the server stops. */
static bool state_read(struct state *state, struct reading *reading) {
    struct store_row row;
    enum store_result result = STORE_OK;
    while (result == STORE_OK && !state_is_stopping(state)) {
        while (state->written->count < STEP_ROWS && batch_has_room(state->written) &&
               (result = server_store_next(state->store, &row)) == STORE_OK) {
            if (batch_copy(state->written, &row)) continue;
            state_log_row(state, &row, "it is too long", reading->unreadable++);
        }
        state_restore_all(state, reading);
    }
    if (result == STORE_FAILED) state_note_failure(state, "the file of counters cannot be read");
    return result == STORE_END;
}

/* Ends the reading: the limits decide out of what was read. Returns false if the file must be read
 * again, because the configuration has other durable limits now. */
static bool state_end_reading(struct state *state, const struct reading *reading) {
    struct service *service = state->service;
    char rows[24], unused[24], unreadable[24];
    server_lock(&service->lock);
    bool is_over = !state->reads_again;
    if (is_over) {
        doorman_permits *permits = doorman_server_permits(service->server);
        doorman_status status = doorman_permits_set_rows(permits, DOORMAN_ROWS_READ);
        assert(status == DOORMAN_OK);
        (void)status;
        state->late_at = DOORMAN_NEVER;
        state->status.is_reading = false;
        state->status.rows_unreadable = reading->unreadable;
    }
    state->reads_again = false;
    server_unlock(&service->lock);
    if (!is_over) return false;
    snprintf(rows, sizeof rows, "%" PRIu64, reading->rows);
    snprintf(unused, sizeof unused, "%" PRIu64, reading->unused);
    snprintf(unreadable, sizeof unreadable, "%" PRIu64, reading->unreadable);
    server_log(service->settings, reading->unused ? LEVEL_WARNING : LEVEL_INFO, "counters read",
               "file", service->settings->state, "rows", rows, "of_no_limit", unused, "unreadable",
               unreadable, LOG_END);
    return true;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Takes changes into the batch `filled`. Between two steps the lock is free, so that others can use
 * it. What changes meanwhile is left for the next round. Precondition: the lock is held.
 *   in_steps  false: the lock is never free
 *   returns   whether it has taken all */
static bool state_take(struct state *state, bool in_steps) {
    struct service *service = state->service;
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permits_info info;
    doorman_permits_read(permits, &info);
    size_t left = info.changed_count;
    bool more = left > 0;
    if (info.changed_since < state->status.taken_since) {
        state->status.taken_since = info.changed_since;
    }
    for (size_t step = 1; more && batch_has_room(state->filled); step++) {
        more = batch_take(state->filled, permits, doorman_clock()) && --left > 0;
        if (!more || !in_steps || step % STEP_ROWS != 0) continue;
        server_unlock(&service->lock);
        state_pause(PAUSE_NANOSECONDS);
        server_lock(&service->lock);
    }
    return !more;
}

enum round { ROUND_DONE, ROUND_FULL, ROUND_FAILED };

/* Writes what has changed, as much as fits into a batch, or again the batch that could not be
 * written. */
static enum round state_write(struct state *state) {
    struct service *service = state->service;
    uint64_t flush = 0;
    bool took_all = false;
    if (state->written->count == 0) {
        server_lock(&service->lock);
        flush = state->flush_wanted;
        took_all = state_take(state, true);
        struct batch *filled = state->filled;
        state->filled = state->written;
        state->written = filled;
        server_unlock(&service->lock);
        batch_sort(state->written);
    }
    size_t count = state->written->count;
    if (count > 0 && server_store_write(state->store, state->written->rows, count) != STORE_OK) {
        state_note_failure(state, "the file of counters cannot be written; the server decides as "
                                  "before, and keeps the changes");
        return ROUND_FAILED;
    }
    if (count > 0) state_note_success(state);
    batch_clear(state->written);
    server_lock(&service->lock);
    server_counter_add(&state->status.rows_written, count);
    if (state->filled->count == 0) state->status.taken_since = DOORMAN_NEVER;
    if (took_all) state->flush_done = flush;
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
    return took_all ? ROUND_DONE : ROUND_FULL;
}

/* Drops rows that were fresh a day ago. */
static void state_drop(struct state *state, doorman_time now) {
    if (now < state->drop_at) return;
    if (server_store_drop(state->store, (int64_t)time(NULL) - KEPT_SECONDS) == STORE_OK) {
        state->drop_at = now + DROP_INTERVAL;
        state_note_success(state);
    } else {
        state->drop_at = now + RETRY_INTERVAL;
        state_note_failure(state, "old rows of the file of counters cannot be dropped");
    }
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Waits until a time, or until the server stops or wants a flush. Returns false if it stops. */
static bool state_sleep(struct state *state, doorman_time until) {
    struct service *service = state->service;
    doorman_time now = doorman_clock();
    server_lock(&service->lock);
    while (now < until && state->ends_at == 0 && state->flush_wanted == state->flush_seen) {
        server_condition_wait(&state->changed, &service->lock, until - now);
        now = doorman_clock();
    }
    state->flush_seen = state->flush_wanted;
    bool goes_on = state->ends_at == 0;
    server_unlock(&service->lock);
    return goes_on;
}

/* Reads the file until it has succeeded. Returns false if the server stops before. */
static bool state_read_surely(struct state *state) {
    for (;;) {
        struct reading reading = {0};
        if (!state_read(state, &reading)) {
            if (!state_sleep(state, doorman_clock() + RETRY_INTERVAL)) return false;
            continue;
        }
        state_note_success(state);
        if (state_end_reading(state, &reading)) return true;
    }
}

/* Reads the file again if the configuration has other durable limits. A row that was read or
 * written before does not count twice. Returns false if the server stops before. */
static bool state_read_again(struct state *state) {
    struct service *service = state->service;
    server_lock(&service->lock);
    bool wanted = state->reads_again;
    state->reads_again = false;
    server_unlock(&service->lock);
    return !wanted || state_read_surely(state);
}

/* Writes what is left. Without success it gives up when the time is over. If the file was about to
 * be read again, it is not: what it has is kept. */
static void state_finish(struct state *state) {
    struct service *service = state->service;
    enum round round;
    server_lock(&service->lock);
    (void)doorman_permits_set_rows(doorman_server_permits(service->server), DOORMAN_ROWS_READ);
    server_unlock(&service->lock);
    while ((round = state_write(state)) != ROUND_DONE) {
        server_lock(&service->lock);
        bool is_over = doorman_clock() >= state->ends_at;
        server_unlock(&service->lock);
        if (is_over) return;
        if (round == ROUND_FAILED) state_pause(100 * PAUSE_NANOSECONDS);
    }
}

static void *state_main(void *context) {
    struct state *state = (struct state *)context;
    struct service *service = state->service;
    const doorman_time interval = (doorman_time)service->settings->state_interval * DOORMAN_SECOND;
    doorman_time began = doorman_clock();
    bool was_read = state_read_surely(state);
    while (was_read && state_sleep(state, began + interval)) {
        enum round round = ROUND_FULL;
        began = doorman_clock();
        while (round == ROUND_FULL && !state_is_stopping(state)) round = state_write(state);
        if (round != ROUND_DONE || !state_read_again(state)) continue;
        state_drop(state, began);
    }
    if (was_read) state_finish(state);
    server_lock(&service->lock);
    state->has_ended = true;
    pthread_cond_broadcast(&state->finished);
    server_unlock(&service->lock);
    return NULL;
}

/* ---- the part ------------------------------------------------------------------------------- */

/* A write to a file that is too large fails then, as on a full disk. */
static void state_init(void) { signal(SIGXFSZ, SIG_IGN); }

static enum exit_status state_check(const struct settings *settings) {
    for (int flag = FLAG_STATE_INTERVAL; flag <= FLAG_STATE_WAIT; flag++) {
        if (!settings->given[flag] || settings->state) continue;
        return server_usage_error("--%s needs --state", server_flag_name(flag));
    }
    if (!settings->state || !settings->election_key) return CONTINUE;
    return server_usage_error("--state and --election-key: the processes of a node cannot share a "
                              "file; leave one of them out");
}

static enum exit_status state_open(struct service *service) {
    const char *path = service->settings->state;
    char error[STORE_TEXT] = "out of memory";
    if (!path) return CONTINUE;
    struct state *state = (struct state *)calloc(1, sizeof *state);
    if (!state) return server_fatal_error(EXIT_ERROR, "--state %s: %s", path, error);
    service->state = state;
    state->service = service;
    state->late_at = state->status.taken_since = DOORMAN_NEVER;
    state->filled = (struct batch *)calloc(1, sizeof *state->filled);
    state->written = (struct batch *)calloc(1, sizeof *state->written);
    bool made = state->filled && state->written && server_condition_init(&state->changed) &&
                server_condition_init(&state->finished);
    if (made) state->store = server_store_open(path, error);
    if (!state->store) return server_fatal_error(EXIT_ERROR, "--state %s: %s", path, error);
    return CONTINUE;
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

/* The server object exists, and has answered nothing. */
static void state_begin(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_status status = doorman_permits_set_rows(permits, DOORMAN_ROWS_AWAITED);
    assert(status == DOORMAN_OK);
    (void)status;
    state->limits = limits_hash(permits);
    state->late_at = doorman_clock() + (doorman_time)service->settings->state_wait * DOORMAN_SECOND;
    state->status.is_reading = true;
    service->state_status = &state->status;
}

static enum exit_status state_start(struct service *service) {
    struct state *state = service->state;
    if (!state) return CONTINUE;
    int error = pthread_create(&state->thread, NULL, state_main, state);
    state->is_started = error == 0;
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", strerror(error));
}

/* The main thread looks, because a disk that hangs also stops the thread that reads. */
static void state_update(struct service *service, doorman_time now) {
    struct state *state = service->state;
    if (!state || now < state->late_at) return;
    state->late_at = DOORMAN_NEVER;
    (void)doorman_permits_set_rows(doorman_server_permits(service->server), DOORMAN_ROWS_UNREAD);
    server_log(service->settings, LEVEL_ERROR,
               "the counters were not read in time; limits decide without them, except those with "
               "on_unread: refuse",
               "file", service->settings->state, LOG_END);
}

/* Waits until what has changed is written, because the changes of a limit that a configuration
 * removes are not yielded any more. A file that is too slow must not stop a configuration. */
static void state_flush(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + FLUSH_SECONDS * DOORMAN_SECOND;
    uint64_t wish = ++state->flush_wanted;
    pthread_cond_signal(&state->changed);
    while (now < until && state->flush_done < wish && !state->status.is_reading &&
           !state->has_ended) {
        server_condition_wait(&state->finished, &service->lock, until - now);
        now = doorman_clock();
    }
    server_unlock(&service->lock);
}

/* Takes what has changed since the flush. */
static void state_before_configuration(struct service *service) {
    struct state *state = service->state;
    if (state && !state->status.is_reading) (void)state_take(state, false);
}

/* The file may have rows of limits that the last configuration had not. So durable limits decide
 * again when it has been read, as at the start. */
static void state_in_force(struct service *service) {
    struct state *state = service->state;
    if (!state) return;
    doorman_permits *permits = doorman_server_permits(service->server);
    uint64_t limits = limits_hash(permits);
    if (limits == state->limits) return;
    state->limits = limits;
    state->reads_again = true;
    if (state->status.is_reading) return;
    doorman_status status = doorman_permits_set_rows(permits, DOORMAN_ROWS_AWAITED);
    assert(status == DOORMAN_OK);
    (void)status;
    state->late_at = doorman_clock() + (doorman_time)service->settings->state_wait * DOORMAN_SECOND;
    state->flush_wanted++;
    pthread_cond_signal(&state->changed);
}

/* Waits until the thread has written everything. No message is decided any more. */
static void state_stopping(struct service *service) {
    struct state *state = service->state;
    if (!state || !state->is_started) return;
    alarm(STOP_SECONDS + 2);
    server_lock(&service->lock);
    bool has_trouble = state->status.trouble.since != 0;
    server_unlock(&service->lock);
    if (has_trouble) {
        server_log(service->settings, LEVEL_WARNING,
                   "waiting at most 25 s until the file of counters can be written", "file",
                   service->settings->state, LOG_END);
    }
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + STOP_SECONDS * DOORMAN_SECOND;
    state->ends_at = until;
    pthread_cond_signal(&state->changed);
    while (now < until && !state->has_ended) {
        server_condition_wait(&state->finished, &service->lock, until - now);
        now = doorman_clock();
    }
    bool was_read = !state->status.is_reading;
    bool is_written = was_read && server_state_age(service, now) == 0;
    server_unlock(&service->lock);
    if (is_written) return;
    server_log(service->settings, LEVEL_ERROR,
               was_read ? "the last changes of counters are not in the file"
                        : "the counters were not read yet, so no change of them is in the file",
               "file", service->settings->state, LOG_END);
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
    free(state->filled);
    free(state->written);
    free(state);
    service->state = NULL;
    service->state_status = NULL;
}

/* Changes that cannot be written would be lost. */
static const char *state_hinders(const struct service *service) {
    const struct state *state = service->state;
    return state && state->status.trouble.since ? "the file of counters cannot be written" : NULL;
}

const struct server_part server_part_state = {.name = "STATE",
                                              .init = state_init,
                                              .check = state_check,
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
                                              .in_force = state_in_force};
