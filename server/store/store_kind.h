/* doorman_server, part STATE: what each kind of store does for server/store/store.h. A kind has a
 * struct whose first member is a struct store. */
#ifndef DOORMAN_SERVER_STORE_KIND_H
#define DOORMAN_SERVER_STORE_KIND_H

#include "store.h"

struct store {
    const struct store_kind *kind;
    uint64_t epoch;
    char error[STORE_TEXT]; /* why the last call failed */
    bool is_unsure;         /* what put_notes was to write may be written nevertheless */
    char warning[STORE_TEXT];
};

/* store.h describes these functions. */
struct store_kind {
    const char *prefix; /* of the address */
    bool is_shared, has_tls;
    size_t bytes; /* of its struct, which begins as zeros */

    bool (*check)(const struct store_place *place, char error[STORE_TEXT]);
    bool (*has_password)(const char *address);                /* NULL: none has */
    void (*name)(const char *address, char name[STORE_TEXT]); /* NULL: the address */

    /* Returns false on failure: error says why, and close is called next. */
    bool (*open)(struct store *store, const struct store_place *place);

    /* Frees everything but the struct itself. */
    void (*close)(struct store *store);

    enum store_result (*begin)(struct store *store, uint64_t epoch); /* NULL: nothing to do */
    enum store_result (*next)(struct store *store, struct store_row *row);
    enum store_result (*write)(struct store *store, const struct store_row *rows, size_t count);
    enum store_result (*drop)(struct store *store, int64_t before); /* NULL: nothing to do */

    enum store_result (*put_notes)(struct store *store, const struct store_note *notes,
                                   size_t count);
    enum store_result (*list_notes)(struct store *store, const char *kind, const char *before,
                                    store_visitor *visit, void *context);
    /* NULL: list_notes is called instead. */
    enum store_result (*last_note)(struct store *store, const char *kind,
                                   char identity[STORE_TEXT + 1]);

    /* NULL: it keeps no shards. */
    enum store_result (*put_shard)(struct store *store, const struct store_shard_part *part);
    enum store_result (*get_shard)(struct store *store, struct store_shard_part *part,
                                   unsigned char **bytes);
    enum store_result (*drop_shard)(struct store *store, const char *cluster, size_t shard,
                                    uint64_t move);

    /* NULL: it keeps nothing of a planned stop. */
    enum store_result (*leave)(struct store *store, const void *bytes, size_t count);
    enum store_result (*take)(struct store *store, unsigned char **bytes, size_t *count);
};

extern const struct store_kind server_store_redis, server_store_redis_tls, server_store_sqlite;

/* Returns what a row is, in a word for people who read the store. */
static inline const char *server_store_what(const struct store_row *row) {
    if (row->is_reservation) return "reservation";
    return row->is_ban ? "ban" : "counter";
}

#endif
