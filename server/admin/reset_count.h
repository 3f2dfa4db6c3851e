/* doorman_server, part ADMIN: how often the role support has made a counter fresh. The count is in
 * memory, because reading the audit of a day takes long. */
#ifndef DOORMAN_SERVER_RESET_COUNT_H
#define DOORMAN_SERVER_RESET_COUNT_H

#include "admin.h"

/* A reset, under one of the hashes of reset_count.c. */
struct reset_seen {
    uint64_t hash;
    int64_t at;  /* seconds since 1970 */
    size_t next; /* the index plus 1 of another reset with the same head; 0: none */
};

/* Resets, by hash. {0} contains no reset. One thread at a time uses them. */
struct resets_seen {
    struct reset_seen *items; /* in the order in which they were added */
    size_t *heads;            /* the index plus 1 of the newest one; 0: none */
    size_t count, capacity;   /* capacity: of both arrays, a power of two */
    uint64_t seed;            /* so that nobody can choose keys that have the same hash */
};

/* Forgets all resets, and frees the memory. */
void server_resets_clear(struct resets_seen *seen);

/* Adds an entry of a reset.
 *   entry     has the key, the resource or the glob of a template, and, if keys share it, the limit
 *             and `shared_by`
 *   returns   false: memory has run out */
bool server_resets_add(struct resets_seen *seen, const cJSON *entry, int64_t at);

/* Adds what an act of the role support counts for: the entries of a reset, or an override that adds
 * to a bucket or sets its size.
 *   row       NULL, or not one of an act: counts for nothing
 *   returns   false: memory has run out */
bool server_resets_add_act(struct resets_seen *seen, const cJSON *row);

/* Returns how often a counter was reset after a time.
 *   glob   of the template that the resource of the entry has; NULL: none
 *   cost   O(resets of this counter) */
int server_resets_count(const struct resets_seen *seen, const cJSON *entry, const char *glob,
                        int64_t since);

#endif
