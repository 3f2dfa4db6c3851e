/* doorman_server, part STATE: the file in which counters and bans last, a database of SQLite. This
 * face knows no permits: a row is an identity and a record, whose bytes only the library
 * understands.
 *
 * D9 One process has the file at a time: the second one is refused. Each start raises the epoch in
 *    the file.
 * D10 A row that the library cannot read, or whose limit is not configured, stays in the file until
 *    a day after it is fresh. A file of a newer schema is refused.
 *
 * One thread uses a store at a time. No function is fast: each may wait for the disk. */
#ifndef DOORMAN_SERVER_STORE_H
#define DOORMAN_SERVER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_SCHEMA 1 /* of the tables. A server refuses a file that has a newer one */
#define STORE_TEXT 1024

struct store;

/* A counter or a ban in the file. The texts are for people who read the file. */
struct store_row {
    const void *identity; /* no two rows have the same one */
    size_t identity_bytes;
    bool is_ban;
    const char *template, *limit; /* the glob, and the name of the limit in it */
    const char *resource, *key;   /* "": the row is about all of them */
    int64_t fresh_at;             /* seconds since 1970 */
    const void *record;           /* NULL: the row is deleted, and only identity counts */
    size_t record_bytes;
};

enum store_result { STORE_OK, STORE_END, STORE_FAILED };

/* Opens a file, and makes it and its tables if it does not exist or is empty. Locks it until
 * server_store_close, raises its epoch, and reads no row.
 *   path      the folder must exist
 *   error     out: on failure, what is wrong and what to do, as a phrase about the path
 *   returns   NULL: another process uses the file, it cannot be written, it is damaged, it is not
 *             of Doorman, or a newer version has written it. The file is unchanged then */
struct store *server_store_open(const char *path, char error[STORE_TEXT]);

/* Closes the store, which may be NULL, and unlocks the file. All that was written stays. */
void server_store_close(struct store *store);

/* Returns how often the file was opened. Each opening has a number of its own, without gaps. */
uint64_t server_store_epoch(const struct store *store);

/* Reads the next row.
 *   row       out: valid until the next call on this store
 *   returns   STORE_END: there is no further row, and the next call begins with the first one.
 *             STORE_FAILED: see server_store_error; the next call begins with the first row too */
enum store_result server_store_next(struct store *store, struct store_row *row);

/* Writes and deletes rows in one transaction: all of them, or none. When it returns STORE_OK they
 * last, even if the machine loses its power. A row replaces the one with its
 * identity. server_store_next begins with the first row again.
 *   returns   STORE_OK, or STORE_FAILED: see server_store_error */
enum store_result server_store_write(struct store *store, const struct store_row *rows,
                                     size_t count);

/* Deletes the rows that were fresh before a time. server_store_next begins with the first row
 * again.
 *   before    seconds since 1970
 *   cost      reads the whole table */
enum store_result server_store_drop(struct store *store, int64_t before);

/* Says why the last call failed and what to do, as a phrase about the path. */
const char *server_store_error(const struct store *store);

#endif
