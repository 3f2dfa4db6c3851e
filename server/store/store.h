/* doorman_server, part STATE: the store that keeps counters and bans over a restart: a file of
 * SQLite, or a Redis. This interface knows no permits: a row is an identity and a record, whose
 * bytes only the library understands.
 *
 * D9 Each mastership has an epoch. A later mastership has a larger epoch, unless it continues an
 *    interrupted one (D7). Only the process whose epoch is the last one in the store can write. One
 *    process has a file at a time: a second process is refused. Each start raises the epoch in a
 *    file. What a planned stop leaves is valid for the next epoch alone, in the same file and not
 *    in a copy of it. It is removed before it is used.
 * D10 A row that the library cannot read, or whose limit is not configured, stays in the store
 *    until a day after it is fresh. A store of a newer schema is refused.
 *
 * One thread uses a store at a time. Functions that use the store may wait for the disk or the
 * network. Only waits for the network have a time limit. */
#ifndef DOORMAN_SERVER_STORE_H
#define DOORMAN_SERVER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_SCHEMA 1 /* of the tables or keys. A server refuses a store that has a newer one */
#define STORE_TEXT 1024
#define STORE_KEPT_SECONDS 86400 /* how long rows stay after they are fresh */
#define STORE_NOTES_MAX 64       /* of one call */

struct settings;
struct store;

/* Where a store is, and for whom. The struct and its strings must stay valid until the store is
 * closed. */
struct store_place {
    const char *address;       /* a path, or redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE],
                                  or rediss://... with TLS */
    const char *node;          /* Redis: the name of the node, which is in the names of its keys;
                                  NULL: there is none */
    const char *password_file; /* Redis: its first line is the password; NULL: none */

    /* rediss://...: files in PEM. NULL: the authorities of the system; no certificate */
    const char *authority, *certificate, *key;
};

/* A counter, a ban or a reservation in the store. The texts are for people who read the store. */
struct store_row {
    const void *identity; /* no two rows have the same one */
    size_t identity_bytes;
    bool is_ban, is_reservation;
    bool is_last;                 /* the store must have all rows before it when it has this one */
    const char *template, *limit; /* the glob, and the name of the limit in it */
    const char *resource, *key;   /* "": the row is about all of them */
    int64_t fresh_at;             /* seconds since 1970 */
    const void *record;           /* NULL: the row is deleted, and only identity counts */
    size_t record_bytes;
};

enum store_result {
    STORE_OK,
    STORE_END,
    STORE_FAILED,   /* see server_store_error. A later call may succeed */
    STORE_OUTDATED, /* another process has begun a later mastership, or has written notes of the
                       cluster. A Redis may have some of the rows */
    STORE_LOST      /* the store has lost its rows, such as a Redis that was restarted without its
                       file: it has an earlier epoch than this process, or none */
};

/* Returns why this server cannot use an address whose scheme it does not know, as a phrase without
 * any part of the address. Returns NULL if it knows the scheme. */
const char *server_store_unknown(const char *address);

/* Checks a place, without using the store. Precondition: its scheme is known.
 *   error     out: what is wrong, without any part of the address
 *   returns   false: it is not valid */
bool server_store_check(const struct store_place *place, char error[STORE_TEXT]);

/* Sorts rows into the order in which a store must write them, and leaves out rows that are not to
 * be written: see server/store/row_order.c.
 *   rows      their identities are in one block of memory, in the order in which they were taken
 *   returns   how many rows are left */
size_t server_store_order(struct store_row *rows, size_t count);

/* Returns whether all processes of a node can use the store at an address, one after the other. */
bool server_store_is_shared(const char *address);

/* Returns whether an address has a password. */
bool server_store_has_password(const char *address);

/* Returns whether an address wants TLS. */
bool server_store_has_tls(const char *address);

/* Writes the address for people and logs, without user and password. */
void server_store_name(const char *address, char name[STORE_TEXT]);

/* Opens a store. A file is made, with its tables, if it does not exist or is empty. It is locked
 * until server_store_close, and its epoch is raised. A Redis that does not answer is no error: each
 * later call tries to reach it. Reads no row.
 *   place     server_store_check accepts it. The folder of a file must exist
 *   error     out: on failure, what is wrong and what to do, as a phrase about the place
 *   returns   NULL: another process uses the file, it cannot be written, it is damaged, it is not
 *             of Doorman, or a newer version has written it. Or Redis refuses the password, the
 *             database or a command. The store is unchanged then */
struct store *server_store_open(const struct store_place *place, char error[STORE_TEXT]);

/* Closes the store, which may be NULL, and unlocks the file. All that was written stays. */
void server_store_close(struct store *store);

/* Begins a mastership (D9). From now on no process with an earlier epoch can write. Opening a
 * file has begun the first mastership of a process already, so only a later one raises the epoch.
 *   epoch     of the mastership; 0: one more than the last one in the store
 *   returns   STORE_OK, also if this process has begun the same mastership before |
 *             STORE_OUTDATED: the store has a later epoch | STORE_FAILED */
enum store_result server_store_begin(struct store *store, uint64_t epoch);

/* Returns the epoch with which this process writes. For the notes of a cluster: the revision of the
 * last write that this process knows. */
uint64_t server_store_epoch(const struct store *store);

/* Returns what a person should know about a store that works, such as that Redis keeps its rows
 * only in memory; "": nothing. server_store_begin finds it out. */
const char *server_store_warning(const struct store *store);

/* Reads the next row. A row may come twice if the store is a Redis.
 *   row       out: valid until the next call on this store
 *   returns   STORE_END: there is no further row, and the next call begins with the first one.
 *             STORE_FAILED: see server_store_error; the next call begins with the first row too */
enum store_result server_store_next(struct store *store, struct store_row *row);

/* Writes and deletes rows. A file gets all of them, or none. A Redis may get a part of them if it
 * fails meanwhile. When this returns STORE_OK they last: in a file even if the machine loses its
 * power, and in a Redis as its own settings say. A row replaces the one with its identity.
 * server_store_next begins with the first row again.
 *   count     0: nothing is written, and a Redis says whether rows could be written
 *   returns   STORE_OK, or why not all is written */
enum store_result server_store_write(struct store *store, const struct store_row *rows,
                                     size_t count);

/* Deletes the rows that were fresh before a time. A Redis does this by itself. server_store_next
 * begins with the first row again.
 *   before    seconds since 1970
 *   cost      reads the whole table */
enum store_result server_store_drop(struct store *store, int64_t before);

/* A note of administration, such as an override or an act of the audit. The store knows nothing of
 * what a note says. */
struct store_note {
    const char *kind;     /* a word */
    const char *identity; /* no two notes of a kind have the same one; at most STORE_TEXT bytes */
    int64_t ends_at;      /* seconds since 1970. The store keeps it, and does not remove the note */
    const char *text;     /* NULL: the note is deleted */
};

/* Writes and deletes notes, all of them or none. When this returns STORE_OK they last, like rows. A
 * note replaces the one with its kind and identity. server_store_next begins with the first row
 * again.
 *   count   1 to STORE_NOTES_MAX */
enum store_result server_store_put_notes(struct store *store, const struct store_note *notes,
                                         size_t count);

/* Returns whether the last call of server_store_put_notes, which has failed, may have written the
 * notes, or may still do so, because a Redis or an etcd did not answer. */
bool server_store_is_unsure(const struct store *store);

/* Gets a note, which is valid during the call. Returns whether it wants a further one. */
typedef bool store_visitor(void *context, const struct store_note *note);

/* Reads the notes of a kind, the largest identity first. Identities are compared byte by byte.
 *   before    only notes with a smaller identity; "": all
 *   returns   STORE_OK: the visitor wanted no more, or there are no more | STORE_FAILED */
enum store_result server_store_list_notes(struct store *store, const char *kind, const char *before,
                                          store_visitor *visit, void *context);

/* Finds the largest identity of the notes of a kind. A Redis sends no text of a note for this, so
 * it costs a few bytes even if the notes are long.
 *   identity   out: "": there is none
 *   returns    STORE_OK | STORE_FAILED */
enum store_result server_store_last_note(struct store *store, const char *kind,
                                         char identity[STORE_TEXT + 1]);

/* Some rows of a shard that moves. They are for another node, so their key has the name of the
 * cluster, and not of a node. Only a store that is shared keeps them. */
struct store_shard_part {
    const char *cluster; /* the same for all nodes; at most 256 bytes */
    size_t shard;
    uint64_t move; /* no two moves of a shard have the same number */
    size_t index;  /* the parts of a move have the numbers from 0 on */
    const void *bytes;
    size_t count; /* of `bytes` */
    bool is_last; /* the move is whole with this part */
};

/* Writes a part. Part 0 replaces all parts of the move. Precondition: server_store_begin.
 *   returns   STORE_OK | STORE_OUTDATED, STORE_LOST: as server_store_write | STORE_FAILED */
enum store_result server_store_put_shard(struct store *store, const struct store_shard_part *part);

/* Reads a part.
 *   part      in: cluster, shard, move and index; out: count
 *   bytes     out: on STORE_OK, for the caller to free; else NULL
 *   returns   STORE_OK | STORE_END: there are no more | STORE_LOST: the store does not have the
 *             move, or not all of it | STORE_FAILED */
enum store_result server_store_get_shard(struct store *store, struct store_shard_part *part,
                                         unsigned char **bytes);

/* Deletes the rows of a move. Does nothing if the store is NULL. */
enum store_result server_store_drop_shard(struct store *store, const char *cluster, size_t shard,
                                          uint64_t move);

/* Returns whether the store can keep what a planned stop leaves. */
bool server_store_can_leave(const struct store *store);

/* Leaves bytes for the next mastership. When this returns STORE_OK they last, like a row. Nothing
 * may be written afterwards. Precondition: server_store_can_leave.
 *   bytes     at most about 1e9, which SQLite allows */
enum store_result server_store_leave(struct store *store, const void *bytes, size_t count);

/* Takes what the last mastership has left. It is removed, in a way that lasts, before this returns.
 * Precondition: server_store_can_leave, and no row was read or written in this mastership yet.
 *   bytes     out: on STORE_OK, for the caller to free; else NULL
 *   returns   STORE_OK | STORE_END: nothing was left | STORE_FAILED: what was left cannot be used.
 *             If it is not STORE_OK, server_store_error says why, as a whole phrase */
enum store_result server_store_take(struct store *store, unsigned char **bytes, size_t *count);

/* Says why the last call failed and what to do, as a phrase about the place. */
const char *server_store_error(const struct store *store);

/* ---- part NOTES: a store in etcd, which keeps notes and no rows ------------------------------ */

/* Opens the notes of a node. Makes no call to etcd.
 *   settings   with --config etcd:KEY; they must stay valid
 *   returns    NULL: out of memory */
struct store *server_store_etcd_open(const struct settings *settings);

/* Opens the notes that all nodes of a cluster share, below the key of --shards. server_store_begin
 * reads the revision of the last write, and server_store_epoch returns it. Makes no call to etcd.
 *   settings   with --shards; they must stay valid
 *   returns    NULL: out of memory, or the system has no random numbers */
struct store *server_store_etcd_open_cluster(const struct settings *settings);

/* Sets the etcd lease of the mastership that begins next. From then on writes fail unless the
 * election key has this lease.
 *   lease   0: there is no election */
void server_store_etcd_set_lease(struct store *store, int64_t lease);

/* Lets the current call and all later ones fail at once. Any thread may call this. */
void server_store_etcd_cancel(struct store *store);

#endif
