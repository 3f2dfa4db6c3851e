/* doorman_server, part STATE: chooses the kind of a store by the value of --state, and calls its
 * functions. */
#include "store_kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct store *server_store_open(const char *path, char error[STORE_TEXT]) {
    const struct store_kind *kind = &server_store_sqlite;
    struct store *store = (struct store *)calloc(1, kind->bytes);
    if (!store) {
        snprintf(error, STORE_TEXT, "out of memory");
        return NULL;
    }
    store->kind = kind;
    if (kind->open(store, path)) return store;
    memcpy(error, store->error, STORE_TEXT);
    server_store_close(store);
    return NULL;
}

void server_store_close(struct store *store) {
    if (!store) return;
    store->kind->close(store);
    free(store);
}

uint64_t server_store_epoch(const struct store *store) { return store->epoch; }

enum store_result server_store_next(struct store *store, struct store_row *row) {
    return store->kind->next(store, row);
}

enum store_result server_store_write(struct store *store, const struct store_row *rows,
                                     size_t count) {
    return store->kind->write(store, rows, count);
}

enum store_result server_store_drop(struct store *store, int64_t before) {
    return store->kind->drop(store, before);
}

const char *server_store_error(const struct store *store) { return store->error; }
