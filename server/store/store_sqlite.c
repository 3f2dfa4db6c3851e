/* doorman_server, part STATE: the store that is a file, over SQLite.
 *
 * The tables are for people too, so their names are words, and the view readable_counters has dates
 * (`sqlite3 FILE 'SELECT * FROM readable_counters'`). The figures are in the records, which only
 * the library reads.
 *
 *     PRAGMA application_id   says that the file is of Doorman
 *     PRAGMA user_version     the schema; 0: the file is empty
 *     process                 one row: the epoch, which counts the masterships
 *     counters                a row for each durable counter, each ban and each reservation, until
 *                             a day after it is fresh
 *     handover                at most one row: what a planned stop has left, and for whom. A file
 *                             of an earlier version gets this table. An earlier server ignores it,
 *                             and raises the epoch, so the row is not used after that
 *     administration          a row for each note, such as an override or an act of the audit. A
 *                             file of an earlier version gets this table too, and an earlier server
 *                             ignores it
 *
 * In the mode WAL with synchronous=FULL a transaction lasts when it is committed. Readers, such as
 * a person's query, do not stop the writer.
 *
 * SQLite's own locks last for one transaction, so they do not keep a second server out. A lock by
 * flock on the same file keeps it out. The descriptor of this lock must be closed last: when a
 * process closes any descriptor of a file, it loses SQLite's locks on that file. */
#include "store_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#define EPOCH_ATTRIBUTE "user.doorman.epoch"
#define APPLICATION_ID 0x446f6f72 /* "Door" */
#define STRING_OF(number) #number
#define STRING(number) STRING_OF(number)

/* How long to wait for a lock: a person who changes the file by hand may lock it for a moment. */
#define BUSY_MS 1000

/* The log of SQLite grows with the largest transaction. It is cut to this size afterwards. */
#define LOG_BYTES_MAX "67108864"

/* Memory for pages of the file, in KiB, and how many pages of the log make SQLite copy it into the
 * file. Both are above the defaults, because a transaction with random rows changes most pages. */
#define CACHE_KIB "32768"
#define LOG_PAGES "8192"

/* Rows of a transaction between two pauses. They take about a millisecond of a core. Because of the
 * pauses the scheduler prefers other threads to this one: where all cores are busy, a thread that
 * has a permit to decide runs at once, and not after a time slice of some milliseconds. */
#define RUN_ROWS 256
#define PAUSE_NANOSECONDS 100000

struct file_store {
    struct store base;
    sqlite3 *database;
    int lock;   /* a descriptor of the file, with its lock; -1: there is none */
    char *path; /* absolute, so that SQLite takes it for nothing else, such as ":memory:" */
    sqlite3_stmt *read, *put, *delete, *drop;
    bool has_begun; /* the mastership for which the file was opened */
    bool is_older;  /* the file had the present epoch, or a later one, before */
};

/* A planned stop writes the row. The checksum finds damage that SQLite does not see. */
static const char handover_schema[] =
    "CREATE TABLE IF NOT EXISTS handover ("
    "    epoch INTEGER NOT NULL,"  /* of the process that has left it */
    "    device INTEGER NOT NULL," /* of this file; a copy has others */
    "    inode INTEGER NOT NULL,"
    "    checksum INTEGER NOT NULL,"
    "    leases BLOB NOT NULL)"; /* and holds: see >>handover in doorman.h */

static const char administration_schema[] = "CREATE TABLE IF NOT EXISTS administration ("
                                            "    kind TEXT NOT NULL,"
                                            "    identity TEXT NOT NULL,"
                                            "    ends_at INTEGER NOT NULL," /* seconds since 1970 */
                                            "    note TEXT NOT NULL,"       /* JSON */
                                            "    PRIMARY KEY (kind, identity)"
                                            ") WITHOUT ROWID;";

static const char schema[] =
    "CREATE TABLE process (epoch INTEGER NOT NULL);"
    "INSERT INTO process VALUES (0);"
    "CREATE TABLE counters ("
    "    identity BLOB PRIMARY KEY,"
    "    what TEXT NOT NULL,"        /* 'counter', 'ban' or 'reservation' */
    "    template TEXT NOT NULL,"    /* the glob of the resources */
    "    limit_name TEXT NOT NULL,"  /* '': the ban was set by an administrator */
    "    resource TEXT NOT NULL,"    /* '': the counter is of all resources of the template */
    "    key TEXT NOT NULL,"         /* '': the counter is of all keys */
    "    fresh_at INTEGER NOT NULL," /* seconds since 1970 */
    "    record BLOB NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE VIEW readable_counters AS"
    "    SELECT what, template, limit_name, resource, key,"
    "        datetime(fresh_at, 'unixepoch') AS fresh_at_utc, hex(record) AS record"
    "    FROM counters;"
    "PRAGMA application_id = " STRING(APPLICATION_ID) ";"
                                                      "PRAGMA user_version = " STRING(
                                                          STORE_SCHEMA) ";";

/* ---- errors --------------------------------------------------------------------------------- */

/* Returns what a person can do about an error of SQLite. */
static const char *file_remedy(int code) {
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "another process has locked it; end that process";
    case SQLITE_FULL: return "the disk is full; make room on it";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return "it and its folder must be writable for this process; change their owner or mode";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return "it is damaged, or not of Doorman; stop the server, move the file and those beside "
               "it with -wal and -shm away, put a copy in their place or begin without counters, "
               "and start the server again";
    default: return "look at the disk and at the log of the machine";
    }
}

static enum store_result file_fail(struct file_store *store, const char *what) {
    int code = sqlite3_extended_errcode(store->database);
    snprintf(store->base.error, sizeof store->base.error, "%s: %s (%s)", what, file_remedy(code),
             sqlite3_errmsg(store->database));
    return STORE_FAILED;
}

static bool file_refuse(struct file_store *store, const char *what) {
    snprintf(store->base.error, sizeof store->base.error, "%s", what);
    return false;
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool file_lock(struct file_store *store, const char *path) {
    struct stat status;
    store->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    if (store->lock < 0) {
        snprintf(store->base.error, sizeof store->base.error,
                 "cannot be opened for writing: %s; its folder must exist, and both must be "
                 "writable for this process",
                 strerror(errno));
        return false;
    }
    if (fstat(store->lock, &status) != 0 || !S_ISREG(status.st_mode)) {
        return file_refuse(store, "is not a regular file; give another --state");
    }
    if (flock(store->lock, LOCK_EX | LOCK_NB) != 0) {
        return file_refuse(store,
                           errno == EWOULDBLOCK
                               ? "another process uses it; each server needs a file of its own"
                               : "cannot be locked; it must be on a disk of this machine");
    }
    store->path = realpath(path, NULL);
    return store->path != NULL || file_refuse(store, "out of memory");
}

/* Reads one number. Returns false if there is none, or SQLite fails. */
static bool file_query_number(struct file_store *store, const char *query, int64_t *number) {
    sqlite3_stmt *statement = NULL;
    bool read = sqlite3_prepare_v2(store->database, query, -1, &statement, NULL) == SQLITE_OK &&
                sqlite3_step(statement) == SQLITE_ROW;
    if (read) *number = sqlite3_column_int64(statement, 0);
    return sqlite3_finalize(statement) == SQLITE_OK && read;
}

/* Checks whose file it is, before anything is written.
 *   version   out: its schema; 0: it has no tables */
static bool file_check_schema(struct file_store *store, int64_t *version) {
    int64_t application = 0, tables = 0;
    if (!file_query_number(store, "PRAGMA application_id", &application) ||
        !file_query_number(store, "PRAGMA user_version", version) ||
        !file_query_number(store, "SELECT count(*) FROM sqlite_master", &tables)) {
        return file_fail(store, "cannot be read") == STORE_OK;
    }
    if (application != APPLICATION_ID && (application || *version || tables)) {
        return file_refuse(store, "is a database of another program; give another --state");
    }
    if (*version > STORE_SCHEMA) {
        return file_refuse(store,
                           "was written by a newer doorman_server; start that version, or give "
                           "another --state to begin without counters");
    }
    return true;
}

static bool file_run(struct file_store *store, const char *commands) {
    return sqlite3_exec(store->database, commands, NULL, NULL, NULL) == SQLITE_OK;
}

/* Commits a transaction that is done. Rolls back any other one, unless SQLite has done that. */
static enum store_result file_finish(struct file_store *store, bool done) {
    if (done && file_run(store, "COMMIT")) return STORE_OK;
    file_fail(store, "cannot be written");
    if (!sqlite3_get_autocommit(store->database)) file_run(store, "ROLLBACK");
    return STORE_FAILED;
}

/* D9: keeps the epoch outside of the bytes of the file too, in an attribute of its inode. `cp` over
 * the file leaves the attribute as it was, so an older copy that was put back is noticed. It is not
 * noticed where the file system has no such attributes, or where a tool copies them too. */
static void file_note_epoch(struct file_store *store) {
    char text[24];
    const ssize_t bytes = fgetxattr(store->lock, EPOCH_ATTRIBUTE, text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = 0;
    store->is_older = strtoull(text, NULL, 10) >= store->base.epoch;
    const int count = snprintf(text, sizeof text, "%" PRIu64, store->base.epoch);
    (void)fsetxattr(store->lock, EPOCH_ATTRIBUTE, text, (size_t)count, 0);
}

/* Makes the tables that are missing, and raises the epoch. */
static bool file_open_tables(struct file_store *store) {
    int64_t version = 0, epoch = 0;
    if (!file_check_schema(store, &version)) return false;
    if (!file_run(store,
                  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                  "PRAGMA journal_size_limit = " LOG_BYTES_MAX ";PRAGMA cache_size = -" CACHE_KIB
                  ";PRAGMA wal_autocheckpoint = " LOG_PAGES)) {
        return file_fail(store, "cannot be written") == STORE_OK;
    }
    bool done = file_run(store, "BEGIN IMMEDIATE") && (version > 0 || file_run(store, schema)) &&
                file_run(store, handover_schema) && file_run(store, administration_schema) &&
                file_run(store, "UPDATE process SET epoch = epoch + 1") &&
                file_query_number(store, "SELECT epoch FROM process", &epoch);
    store->base.epoch = (uint64_t)epoch;
    if (file_finish(store, done) != STORE_OK) return false;
    file_note_epoch(store);
    return true;
}

static bool file_prepare(struct file_store *store, sqlite3_stmt **statement, const char *text) {
    return sqlite3_prepare_v3(store->database, text, -1, SQLITE_PREPARE_PERSISTENT, statement,
                              NULL) == SQLITE_OK;
}

/* Prepares the statements. file_write_row and file_next use the columns in this order. */
static bool file_prepare_all(struct file_store *store) {
    return (file_prepare(
                store, &store->read,
                "SELECT identity, what = 'ban', template, limit_name, resource, key, fresh_at, "
                "record FROM counters") &&
            file_prepare(store, &store->put,
                         "INSERT OR REPLACE INTO counters (identity, what, template, limit_name, "
                         "resource, key, fresh_at, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)") &&
            file_prepare(store, &store->delete, "DELETE FROM counters WHERE identity = ?") &&
            file_prepare(store, &store->drop, "DELETE FROM counters WHERE fresh_at < ?")) ||
           file_fail(store, "cannot be read") == STORE_OK;
}

static bool file_open_database(struct file_store *store) {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(store->path, &store->database, flags, NULL) != SQLITE_OK) {
        return file_fail(store, "cannot be opened") == STORE_OK;
    }
    sqlite3_busy_timeout(store->database, BUSY_MS);
    return file_open_tables(store) && file_prepare_all(store);
}

static bool file_check(const struct store_place *place, char error[STORE_TEXT]) {
    const char *why = place->password_file ? "is a file, and has no password" : "";
    snprintf(error, STORE_TEXT, "%s", why);
    return !why[0];
}

static bool file_open(struct store *base, const struct store_place *place) {
    struct file_store *store = (struct file_store *)base;
    return file_lock(store, place->address) && file_open_database(store);
}

static void file_close(struct store *base) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_finalize(store->read);
    sqlite3_finalize(store->put);
    sqlite3_finalize(store->delete);
    sqlite3_finalize(store->drop);
    sqlite3_close(store->database);
    if (store->lock >= 0) close(store->lock);
    free(store->path);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static enum store_result file_next(struct store *base, struct store_row *row) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_stmt *read = store->read;
    int code = sqlite3_step(read);
    if (code == SQLITE_ROW) {
        *row = (struct store_row){.identity = sqlite3_column_blob(read, 0),
                                  .identity_bytes = (size_t)sqlite3_column_bytes(read, 0),
                                  .is_ban = sqlite3_column_int(read, 1) != 0,
                                  .template = (const char *)sqlite3_column_text(read, 2),
                                  .limit = (const char *)sqlite3_column_text(read, 3),
                                  .resource = (const char *)sqlite3_column_text(read, 4),
                                  .key = (const char *)sqlite3_column_text(read, 5),
                                  .fresh_at = sqlite3_column_int64(read, 6),
                                  .record = sqlite3_column_blob(read, 7),
                                  .record_bytes = (size_t)sqlite3_column_bytes(read, 7)};
        /* the columns are never NULL, so one that is missing was a lack of memory */
        if (row->template && row->limit && row->resource && row->key) return STORE_OK;
    }
    enum store_result result = code == SQLITE_DONE ? STORE_END : file_fail(store, "cannot be read");
    sqlite3_reset(read);
    return result;
}

static bool file_bind_text(sqlite3_stmt *statement, int index, const char *text) {
    return sqlite3_bind_text(statement, index, text, -1, SQLITE_STATIC) == SQLITE_OK;
}

static bool file_bind_bytes(sqlite3_stmt *statement, int index, const void *bytes, size_t count) {
    return sqlite3_bind_blob64(statement, index, bytes, count, SQLITE_STATIC) == SQLITE_OK;
}

static bool file_write_row(struct file_store *store, const struct store_row *row) {
    sqlite3_stmt *statement = row->record ? store->put : store->delete;
    bool bound = file_bind_bytes(statement, 1, row->identity, row->identity_bytes);
    if (row->record) {
        bound = bound && file_bind_text(statement, 2, server_store_what(row)) &&
                file_bind_text(statement, 3, row->template) &&
                file_bind_text(statement, 4, row->limit) &&
                file_bind_text(statement, 5, row->resource) &&
                file_bind_text(statement, 6, row->key) &&
                sqlite3_bind_int64(statement, 7, row->fresh_at) == SQLITE_OK &&
                file_bind_bytes(statement, 8, row->record, row->record_bytes);
    }
    if (bound) sqlite3_step(statement);
    return sqlite3_reset(statement) == SQLITE_OK && bound;
}

/* Checks that the file is still there. What is written to a file that was removed would be lost. */
static bool file_is_there(struct file_store *store) {
    struct stat open, named;
    bool same = fstat(store->lock, &open) == 0 && stat(store->path, &named) == 0 &&
                open.st_dev == named.st_dev && open.st_ino == named.st_ino;
    return same ||
           file_refuse(store, "was removed or replaced; move the same file back; or stop the "
                              "server, remove the files beside it with -wal and -shm, and start "
                              "it again, with a copy or without its counters");
}

static enum store_result file_write(struct store *base, const struct store_row *rows,
                                    size_t count) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_reset(store->read);
    if (!file_is_there(store)) return STORE_FAILED;
    bool done = file_run(store, "BEGIN IMMEDIATE");
    for (size_t i = 0; done && i < count; i++) {
        done = file_write_row(store, &rows[i]);
        if ((i + 1) % RUN_ROWS == 0) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
        }
    }
    return file_finish(store, done);
}

static enum store_result file_drop(struct store *base, int64_t before) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_reset(store->read);
    if (!file_is_there(store)) return STORE_FAILED;
    sqlite3_bind_int64(store->drop, 1, before);
    sqlite3_step(store->drop);
    return sqlite3_reset(store->drop) == SQLITE_OK ? STORE_OK
                                                   : file_fail(store, "cannot be written");
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* Writes or deletes a note. Notes are few and change seldom, so their statements are not kept. */
static bool file_put_note(struct file_store *store, const struct store_note *note) {
    const char *put = "INSERT OR REPLACE INTO administration (kind, identity, ends_at, note) "
                      "VALUES (?, ?, ?, ?)";
    const char *remove = "DELETE FROM administration WHERE kind = ? AND identity = ?";
    sqlite3_stmt *statement = NULL;
    bool done = file_prepare(store, &statement, note->text ? put : remove) &&
                file_bind_text(statement, 1, note->kind) &&
                file_bind_text(statement, 2, note->identity);
    if (note->text) {
        done = done && sqlite3_bind_int64(statement, 3, note->ends_at) == SQLITE_OK &&
               file_bind_text(statement, 4, note->text);
    }
    done = done && sqlite3_step(statement) == SQLITE_DONE;
    return sqlite3_finalize(statement) == SQLITE_OK && done;
}

static enum store_result file_put_notes(struct store *base, const struct store_note *notes,
                                        size_t count) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_reset(store->read);
    if (!file_is_there(store)) return STORE_FAILED;
    bool done = file_run(store, "BEGIN IMMEDIATE");
    for (size_t i = 0; done && i < count; i++) done = file_put_note(store, &notes[i]);
    return file_finish(store, done);
}

/* Gives the note of the present row to the visitor. Returns whether it wants more. */
static bool file_visit_note(sqlite3_stmt *row, const char *kind, store_visitor *visit,
                            void *context, bool *failed) {
    const struct store_note note = {.kind = kind,
                                    .identity = (const char *)sqlite3_column_text(row, 0),
                                    .ends_at = sqlite3_column_int64(row, 1),
                                    .text = (const char *)sqlite3_column_text(row, 2)};
    *failed = !note.identity || !note.text; /* the columns are never NULL: a lack of memory */
    return !*failed && visit(context, &note);
}

static enum store_result file_list_notes(struct store *base, const char *kind, const char *before,
                                         store_visitor *visit, void *context) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_stmt *row = NULL;
    int code = SQLITE_ERROR;
    bool failed = false;
    if (file_prepare(store, &row,
                     "SELECT identity, ends_at, note FROM administration WHERE kind = ?1 AND "
                     "(?2 = '' OR identity < ?2) ORDER BY identity DESC") &&
        file_bind_text(row, 1, kind) && file_bind_text(row, 2, before)) {
        do {
            code = sqlite3_step(row);
        } while (code == SQLITE_ROW && file_visit_note(row, kind, visit, context, &failed));
    }
    failed = failed || (code != SQLITE_ROW && code != SQLITE_DONE);
    if (failed) file_fail(store, "cannot be read");
    sqlite3_finalize(row);
    return failed ? STORE_FAILED : STORE_OK;
}

/* ---- planned stops -------------------------------------------------------------------------- */

static uint64_t checksum_of(const unsigned char *bytes, size_t count) {
    uint64_t hash = 14695981039346656037U; /* FNV-1a */
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 1099511628211U;
    return hash;
}

/* Binds a number as a signed one, because SQLite has no unsigned numbers. */
static bool file_bind_number(sqlite3_stmt *statement, int index, uint64_t number) {
    return sqlite3_bind_int64(statement, index, (sqlite3_int64)number) == SQLITE_OK;
}

/* Raises the epoch for a new mastership. For the first mastership, opening the file has done
 * that. */
static enum store_result file_begin(struct store *base, uint64_t epoch) {
    struct file_store *store = (struct file_store *)base;
    int64_t raised = 0;
    bool is_new = epoch == 0 && store->has_begun;
    store->has_begun = true;
    if (!is_new) return STORE_OK;
    sqlite3_reset(store->read);
    if (!file_is_there(store)) return STORE_FAILED;
    bool done = file_run(store, "BEGIN IMMEDIATE; UPDATE process SET epoch = epoch + 1") &&
                file_query_number(store, "SELECT epoch FROM process", &raised);
    enum store_result result = file_finish(store, done);
    if (result == STORE_OK) {
        base->epoch = (uint64_t)raised;
        file_note_epoch(store);
    }
    return result;
}

static enum store_result file_leave(struct store *base, const void *bytes, size_t count) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_stmt *put = NULL;
    struct stat status;
    sqlite3_reset(store->read);
    if (!file_is_there(store) || fstat(store->lock, &status) != 0) return STORE_FAILED;
    bool done = file_run(store, "BEGIN IMMEDIATE; DELETE FROM handover") &&
                file_prepare(store, &put,
                             "INSERT INTO handover (epoch, device, inode, checksum, leases) "
                             "VALUES (?, ?, ?, ?, ?)") &&
                file_bind_number(put, 1, base->epoch) &&
                file_bind_number(put, 2, (uint64_t)status.st_dev) &&
                file_bind_number(put, 3, (uint64_t)status.st_ino) &&
                file_bind_number(put, 4, checksum_of((const unsigned char *)bytes, count)) &&
                file_bind_bytes(put, 5, bytes, count) && sqlite3_step(put) == SQLITE_DONE;
    done = sqlite3_finalize(put) == SQLITE_OK && done;
    return file_finish(store, done);
}

/* Returns why a row of the table handover must not be used, or NULL. */
static const char *handover_wrong(const struct file_store *store, sqlite3_stmt *row) {
    struct stat status;
    const unsigned char *bytes = (const unsigned char *)sqlite3_column_blob(row, 4);
    size_t count = (size_t)sqlite3_column_bytes(row, 4);
    if ((uint64_t)sqlite3_column_int64(row, 0) + 1 != store->base.epoch) {
        return "what a planned stop has left was for an earlier start";
    }
    if (fstat(store->lock, &status) != 0 ||
        (uint64_t)sqlite3_column_int64(row, 1) != (uint64_t)status.st_dev ||
        (uint64_t)sqlite3_column_int64(row, 2) != (uint64_t)status.st_ino) {
        return "the file is a copy of the one in which a planned stop has left leases and holds";
    }
    if (store->is_older) return "the file is an older copy, which was put back";
    if (!bytes || (uint64_t)sqlite3_column_int64(row, 3) != checksum_of(bytes, count)) {
        return "what a planned stop has left is damaged";
    }
    return NULL;
}

/* Reads the row, and copies its bytes if they are valid. */
static enum store_result handover_read(struct file_store *store, sqlite3_stmt *row,
                                       unsigned char **bytes, size_t *count) {
    int code = sqlite3_step(row);
    const char *wrong = code == SQLITE_ROW ? handover_wrong(store, row) : NULL;
    if (code == SQLITE_DONE) {
        file_refuse(store, store->base.epoch == 1 ? "the file is new"
                                                  : "the last process did not stop as planned");
        return STORE_END;
    }
    if (code != SQLITE_ROW) return file_fail(store, "what a planned stop has left cannot be read");
    *count = (size_t)sqlite3_column_bytes(row, 4);
    if (!wrong) *bytes = (unsigned char *)malloc(*count);
    if (!wrong && !*bytes) wrong = "out of memory";
    if (!wrong) memcpy(*bytes, sqlite3_column_blob(row, 4), *count);
    return !wrong || file_refuse(store, wrong) ? STORE_OK : STORE_FAILED;
}

static enum store_result file_take(struct store *base, unsigned char **bytes, size_t *count) {
    struct file_store *store = (struct file_store *)base;
    sqlite3_stmt *row = NULL;
    if (!file_prepare(store, &row, "SELECT epoch, device, inode, checksum, leases FROM handover")) {
        return file_fail(store, "what a planned stop has left cannot be read");
    }
    enum store_result result = handover_read(store, row, bytes, count);
    sqlite3_finalize(row);
    if (result == STORE_END) return result;
    bool removed = file_run(store, "BEGIN IMMEDIATE; DELETE FROM handover");
    if (result != STORE_OK) { /* the error says why; the epoch forbids a later use too */
        (void)file_run(store, removed ? "COMMIT" : "ROLLBACK");
        return result;
    }
    result = file_finish(store, removed);
    if (result == STORE_OK) return result;
    free(*bytes);
    *bytes = NULL;
    return result;
}

const struct store_kind server_store_sqlite = {.prefix = "",
                                               .bytes = sizeof(struct file_store),
                                               .check = file_check,
                                               .open = file_open,
                                               .close = file_close,
                                               .begin = file_begin,
                                               .next = file_next,
                                               .write = file_write,
                                               .drop = file_drop,
                                               .put_notes = file_put_notes,
                                               .list_notes = file_list_notes,
                                               .leave = file_leave,
                                               .take = file_take};
