/* doorman_server, part STATE: chooses the kind of a store by its address, and calls the functions
 * of this kind. */
#include "store_kind.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last kind takes every address. */
static const struct store_kind *const kinds[] = {
#ifdef DOORMAN_SERVER_REDIS
    &server_store_redis,
#ifdef DOORMAN_SERVER_TLS
    &server_store_redis_tls,
#endif
#endif
    &server_store_sqlite,
};

static const struct store_kind *kind_of(const char *address) {
    size_t i = 0;
    while (strncmp(address, kinds[i]->prefix, strlen(kinds[i]->prefix)) != 0) i++;
    return kinds[i];
}

/* A path may have any characters, but a text with :// is taken for an address. */
const char *server_store_unknown(const char *address) {
    if (kind_of(address)->prefix[0] || !strstr(address, "://")) return NULL;
    if (strncmp(address, "rediss://", 9) == 0) {
        return "needs a server that was built with TLS and with Redis";
    }
    return "is neither a file nor a store that this server was built with";
}

bool server_store_check(const struct store_place *place, char error[STORE_TEXT]) {
    return kind_of(place->address)->check(place, error);
}

bool server_store_is_shared(const char *address) { return kind_of(address)->is_shared; }

bool server_store_has_password(const char *address) {
    const struct store_kind *kind = kind_of(address);
    return kind->has_password && kind->has_password(address);
}

bool server_store_has_tls(const char *address) { return kind_of(address)->has_tls; }

void server_store_name(const char *address, char name[STORE_TEXT]) {
    const struct store_kind *kind = kind_of(address);
    const char *scheme_end = strstr(address, "://");
    if (kind->name) {
        kind->name(address, name);
    } else if (scheme_end) { /* no kind knows it, and it may have a password */
        snprintf(name, STORE_TEXT, "%.*s://...", (int)(scheme_end - address), address);
    } else {
        snprintf(name, STORE_TEXT, "%s", address);
    }
}

struct store *server_store_open(const struct store_place *place, char error[STORE_TEXT]) {
    const struct store_kind *kind = kind_of(place->address);
    struct store *store = (struct store *)calloc(1, kind->bytes);
    if (!store) {
        snprintf(error, STORE_TEXT, "out of memory");
        return NULL;
    }
    store->kind = kind;
    if (kind->open(store, place)) return store;
    memcpy(error, store->error, STORE_TEXT);
    server_store_close(store);
    return NULL;
}

void server_store_close(struct store *store) {
    if (!store) return;
    store->kind->close(store);
    free(store);
}

enum store_result server_store_begin(struct store *store, uint64_t epoch) {
    return store->kind->begin ? store->kind->begin(store, epoch) : STORE_OK;
}

uint64_t server_store_epoch(const struct store *store) { return store->epoch; }

const char *server_store_warning(const struct store *store) { return store->warning; }

enum store_result server_store_next(struct store *store, struct store_row *row) {
    return store->kind->next(store, row);
}

enum store_result server_store_write(struct store *store, const struct store_row *rows,
                                     size_t count) {
    return store->kind->write(store, rows, count);
}

enum store_result server_store_drop(struct store *store, int64_t before) {
    return store->kind->drop ? store->kind->drop(store, before) : STORE_OK;
}

bool server_store_is_unsure(const struct store *store) { return store->is_unsure; }

enum store_result server_store_put_notes(struct store *store, const struct store_note *notes,
                                         size_t count) {
    store->is_unsure = false;
    return store->kind->put_notes(store, notes, count);
}

enum store_result server_store_list_notes(struct store *store, const char *kind, const char *before,
                                          store_visitor *visit, void *context) {
    return store->kind->list_notes(store, kind, before, visit, context);
}

static bool visit_last(void *context, const struct store_note *note) {
    snprintf((char *)context, STORE_TEXT + 1, "%s", note->identity);
    return false;
}

enum store_result server_store_last_note(struct store *store, const char *kind,
                                         char identity[STORE_TEXT + 1]) {
    identity[0] = 0;
    return store->kind->last_note ? store->kind->last_note(store, kind, identity)
                                  : store->kind->list_notes(store, kind, "", visit_last, identity);
}

enum store_result server_store_put_shard(struct store *store, const struct store_shard_part *part) {
    assert(store->kind->put_shard);
    return store->kind->put_shard(store, part);
}

enum store_result server_store_get_shard(struct store *store, struct store_shard_part *part,
                                         unsigned char **bytes) {
    assert(store->kind->get_shard);
    *bytes = NULL;
    part->count = 0;
    return store->kind->get_shard(store, part, bytes);
}

enum store_result server_store_drop_shard(struct store *store, const char *cluster, size_t shard,
                                          uint64_t move) {
    return store ? store->kind->drop_shard(store, cluster, shard, move) : STORE_OK;
}

bool server_store_can_leave(const struct store *store) { return store->kind->leave != NULL; }

enum store_result server_store_leave(struct store *store, const void *bytes, size_t count) {
    assert(store->kind->leave);
    return store->kind->leave(store, bytes, count);
}

enum store_result server_store_take(struct store *store, unsigned char **bytes, size_t *count) {
    assert(store->kind->take);
    *bytes = NULL;
    *count = 0;
    return store->kind->take(store, bytes, count);
}

const char *server_store_error(const struct store *store) { return store->error; }
