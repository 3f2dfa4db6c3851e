/* doorman_server, part NOTES: notes in etcd, for a cluster, or for a node without --state whose
 * configuration is in etcd (E7). There are no rows: counters and bans are not kept.
 *
 *     PREFIX/notes/epoch            the last write: NONCE BATCH
 *     PREFIX/notes/KIND/IDENTITY    a note: a line with ends_at, and then its text
 *
 * PREFIX is the election key. Without an election it is the key of the configuration, followed by
 * /NODE if there is --node. The notes of all nodes of a cluster have the key of --shards as
 * PREFIX.
 *
 * A mastership begins with a write of the key "epoch". Each transaction that writes notes compares
 * the revision of this key with the revision of the last write of this process, and writes the key
 * again. With an election it also compares the etcd lease of the election key. So a process that
 * has lost its mastership writes no note, and neither does a copy of a request that arrives late.
 * If a response is lost, the second try of the same transaction finds the number of its batch in
 * the key, so the process knows that the first try has succeeded. If no try has a response, the
 * next call begins the mastership again, with a new nonce.
 *
 * The notes of a cluster have many writers, and no mastership. For them server_store_begin only
 * reads the key "epoch". So the next write of the process succeeds only if nobody has written since
 * then. Otherwise the result is STORE_OUTDATED.
 *
 * Notes are listed in pages. etcd may need long for a page of large notes, or the page may be too
 * long for a response. Then the process asks for a shorter page. */
#include "../etcd/etcd.h"
#include "store_kind.h"

#include <stdarg.h>
#include <sys/random.h>
#include <unistd.h>

#define NOTES_TRIES 3 /* members that are asked */
#define NOTES_DEADLINE (4 * DOORMAN_SECOND)
#define PAGE_DEADLINE (6 * DOORMAN_SECOND) /* of a page, for all tries together */
#define NOTES_BYTES_MAX 1500000            /* of one transaction; etcd takes 1.5 MiB */
#define NOTES_OVERHEAD 64                  /* of each note in a request of etcd */
#define NOTES_PAGE 256                     /* notes of the first page */
#define NOTES_PAGE_SHRINK 16               /* a page that was too long is divided by this */
#define NOTES_PAGE_GROW 4                  /* how many times longer the page after a small one is */
#define NOTES_PAGE_MAX 4096 /* etcd sorts all notes for each page, so pages are few */
#define NOTES_PAGE_FEW ((size_t)512 << 10) /* bytes */

#define PREFIX_BYTES (2 * ETCD_KEY_BYTES_MAX + 16)
#define NAME_BYTES (PREFIX_BYTES + STORE_TEXT + 64)
#define STAMP_BYTES 48
#define COMPARE_BYTES (ETCD_KEY_TEXT + 96)

struct etcd_store {
    struct store base;
    const struct settings *settings;
    struct etcd etcd;
    char prefix[PREFIX_BYTES];
    char epoch[BASE64_TEXT(PREFIX_BYTES)]; /* the key of the epoch, in base64 */
    int64_t lease;                         /* of the election key; 0: writes do not compare it */
    bool is_of_cluster;                    /* all nodes write these notes */
    uint64_t nonce, batch;                 /* of the last write */
    char revision[ETCD_REVISION];          /* of the last write; "": the next call begins again */
};

/* ---- errors --------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static enum store_result
kept_fail(struct etcd_store *store, enum store_result result, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store->base.error, STORE_TEXT, format, arguments);
    va_end(arguments);
    return result;
}

/* Notes that etcd does not answer, or refuses the call. */
static enum store_result kept_fail_call(struct etcd_store *store) {
    const char *error = store->etcd.error.text;
    if (store->etcd.is_denied) store->base.is_unsure = false;
    switch (store->etcd.failure) {
    case ETCD_DENIED:
        return kept_fail(store, STORE_FAILED,
                         "%s; the user of etcd needs the right readwrite for the prefix %s", error,
                         store->prefix);
    case ETCD_FULL:
        return kept_fail(store, STORE_FAILED, "%s; etcd is full: compact and defragment it", error);
    case ETCD_FAILED:
    case ETCD_TOO_LONG:
    case ETCD_TIMED_OUT:
    default: return kept_fail(store, STORE_FAILED, "etcd: %s", error);
    }
}

static enum store_result kept_fail_memory(struct etcd_store *store) {
    return kept_fail(store, STORE_FAILED, "out of memory");
}

/* ---- masterships ---------------------------------------------------------------------------- */

/* Writes the comparison with the election key, or "" if store->lease is 0. */
static void kept_compare(const struct etcd_store *store, char text[COMPARE_BYTES]) {
    char key[ETCD_KEY_TEXT];
    text[0] = 0;
    if (store->lease == 0) return;
    server_base64_write(key, store->settings->election_key);
    snprintf(text, COMPARE_BYTES, "{\"key\":\"%s\",\"target\":\"LEASE\",\"lease\":\"%lld\"}", key,
             (long long)store->lease);
}

/* Writes the value that the next write gives to the key "epoch", in base64. */
static void kept_stamp(const struct etcd_store *store, char text[BASE64_TEXT(STAMP_BYTES)]) {
    char stamp[STAMP_BYTES];
    snprintf(stamp, sizeof stamp, "%" PRIx64 " %" PRIu64, store->nonce, store->batch);
    server_base64_write(text, stamp);
}

static bool kept_succeeded(const cJSON *response) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"));
}

/* Takes the revision of a transaction that has succeeded. */
static void kept_take_revision(struct etcd_store *store, const cJSON *response) {
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(response, "header");
    snprintf(store->revision, sizeof store->revision, "%.20s",
             server_etcd_number(header, "revision"));
    if (store->is_of_cluster) store->base.epoch = strtoull(store->revision, NULL, 10);
}

/* Reads the revision of the last write of all nodes. It is 0 if there was none. */
static enum store_result kept_join(struct etcd_store *store) {
    store->revision[0] = 0;
    cJSON *response =
        server_etcd_call(&store->etcd, "/v3/kv/range", "{\"key\":\"%s\"}", store->epoch);
    if (!response) return kept_fail_call(store);
    const cJSON *entry = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(response, "kvs"), 0);
    snprintf(store->revision, sizeof store->revision, "%.20s",
             entry ? server_etcd_number(entry, "mod_revision") : "0");
    cJSON_Delete(response);
    store->base.epoch = strtoull(store->revision, NULL, 10);
    return STORE_OK;
}

/* The epoch is the revision of a write. The revisions of etcd only grow, so a later mastership has
 * a larger epoch. */
static enum store_result kept_begin(struct store *base, uint64_t epoch) {
    struct etcd_store *store = (struct etcd_store *)base;
    char compare[COMPARE_BYTES], stamp[BASE64_TEXT(STAMP_BYTES)];
    (void)epoch;
    if (store->is_of_cluster) return kept_join(store);
    store->revision[0] = 0;
    if (store->settings->election_key && store->lease == 0) {
        return kept_fail(store, STORE_OUTDATED, "this process is no longer the master");
    }
    if (getentropy(&store->nonce, sizeof store->nonce) != 0) {
        return kept_fail(store, STORE_FAILED, "the system has no random numbers");
    }
    store->batch = 0;
    kept_compare(store, compare);
    kept_stamp(store, stamp);
    cJSON *response = server_etcd_call(&store->etcd, "/v3/kv/txn",
                                       "{\"compare\":[%s],\"success\":[{\"request_put\":{\"key\":"
                                       "\"%s\",\"value\":\"%s\"}}]}",
                                       compare, store->epoch, stamp);
    if (!response) return kept_fail_call(store);
    bool has_begun = kept_succeeded(response);
    if (has_begun) kept_take_revision(store, response);
    cJSON_Delete(response);
    if (!has_begun) return kept_fail(store, STORE_OUTDATED, "this process is no longer the master");
    store->base.epoch = strtoull(store->revision, NULL, 10);
    return STORE_OK;
}

/* Begins the mastership again if a call had no response. */
static enum store_result kept_resume(struct etcd_store *store) {
    return store->revision[0] ? STORE_OK : kept_begin(&store->base, 0);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* A request that grows. */
struct kept_body {
    char *text;
    size_t bytes, room;
    bool failed; /* out of memory */
};

/* Makes room for more bytes and a final 0. */
static bool body_reserve(struct kept_body *body, size_t more) {
    if (body->failed) return false;
    if (body->bytes + more < body->room) return true;
    const size_t room = 2 * (body->bytes + more) + 256;
    char *text = (char *)realloc(body->text, room);
    body->failed = !text;
    if (!text) return false;
    body->text = text;
    body->room = room;
    return true;
}

static void body_add(struct kept_body *body, const char *text) {
    const size_t bytes = strlen(text);
    if (!body_reserve(body, bytes)) return;
    memcpy(body->text + body->bytes, text, bytes + 1);
    body->bytes += bytes;
}

static void body_add_base64(struct kept_body *body, const char *text) {
    if (!body_reserve(body, BASE64_TEXT(strlen(text)))) return;
    server_base64_write(body->text + body->bytes, text);
    body->bytes += strlen(body->text + body->bytes);
}

static void body_add_key(struct kept_body *body, const struct etcd_store *store, const char *kind,
                         const char *identity) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s/%s", store->prefix, kind, identity);
    body_add_base64(body, name);
}

static void body_add_note(struct kept_body *body, const struct etcd_store *store,
                          const struct store_note *note) {
    body_add(body, note->text ? ",{\"request_put\":{\"key\":\""
                              : ",{\"request_delete_range\":{\"key\":\"");
    body_add_key(body, store, note->kind, note->identity);
    if (note->text) {
        const size_t room = strlen(note->text) + 32;
        char *value = (char *)malloc(room);
        body->failed = body->failed || !value;
        if (value) snprintf(value, room, "%" PRId64 "\n%s", note->ends_at, note->text);
        body_add(body, "\",\"value\":\"");
        if (value) body_add_base64(body, value);
        free(value);
    }
    body_add(body, "\"}}");
}

/* Makes the transaction. Returns NULL if memory runs out. */
static char *kept_body(const struct etcd_store *store, const struct store_note *notes,
                       size_t count) {
    struct kept_body body = {.text = NULL};
    char compare[COMPARE_BYTES], stamp[BASE64_TEXT(STAMP_BYTES)];
    kept_compare(store, compare);
    kept_stamp(store, stamp);
    body_add(&body, "{\"compare\":[");
    body_add(&body, compare);
    body_add(&body, compare[0] ? ",{\"key\":\"" : "{\"key\":\"");
    body_add(&body, store->epoch);
    body_add(&body, "\",\"target\":\"MOD\",\"mod_revision\":\"");
    body_add(&body, store->revision);
    body_add(&body, "\"}],\"success\":[{\"request_put\":{\"key\":\"");
    body_add(&body, store->epoch);
    body_add(&body, "\",\"value\":\"");
    body_add(&body, stamp);
    body_add(&body, "\"}}");
    for (size_t i = 0; i < count; i++) body_add_note(&body, store, &notes[i]);
    body_add(&body, "],\"failure\":[{\"request_range\":{\"key\":\"");
    body_add(&body, store->epoch);
    body_add(&body, "\"}}]}");
    if (!body.failed) return body.text;
    free(body.text);
    return NULL;
}

/* Reads why the transaction has not succeeded.
 *   is_stale   out: a late copy of the begin has changed the key, so the revision is a new one */
static enum store_result kept_read_refusal(struct etcd_store *store, const cJSON *response,
                                           bool *is_stale) {
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(response, "responses");
    const cJSON *range =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(all, 0), "response_range");
    const cJSON *entry = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(range, "kvs"), 0);
    char stamp[STAMP_BYTES] = "", *end = stamp;
    size_t bytes = 0;
    if (!entry) {
        store->revision[0] = 0;
        return kept_fail(store, STORE_LOST, "etcd has lost the key %sepoch; try again",
                         store->prefix);
    }
    (void)server_etcd_read_value(entry, stamp, sizeof stamp - 1, &bytes);
    const uint64_t nonce = strtoull(stamp, &end, 16), batch = strtoull(end, NULL, 10);
    const char *revision = server_etcd_number(entry, "mod_revision");
    const bool is_mine = nonce == store->nonce && batch == store->batch;
    if (store->is_of_cluster && !is_mine) {
        return kept_fail(store, STORE_OUTDATED,
                         "another act came in between, at this node or another one; try again");
    }
    if (nonce != store->nonce) {
        return kept_fail(store, STORE_OUTDATED,
                         "another process has begun to write the notes %s after this one; give "
                         "each node an --election-key or a --node of its own",
                         store->prefix);
    }
    const bool is_same = strcmp(revision, store->revision) == 0;
    if (is_same) return kept_fail(store, STORE_OUTDATED, "this process is no longer the master");
    snprintf(store->revision, sizeof store->revision, "%.20s", revision);
    if (is_mine) return STORE_OK; /* the first try had succeeded */
    *is_stale = true;
    return kept_fail(store, STORE_FAILED, "an earlier request arrived late; try again");
}

static enum store_result kept_send(struct etcd_store *store, const struct store_note *notes,
                                   size_t count, bool *is_stale) {
    char *body = kept_body(store, notes, count);
    *is_stale = false;
    if (!body) return kept_fail_memory(store);
    cJSON *response = server_etcd_post(&store->etcd, "/v3/kv/txn", body);
    free(body);
    enum store_result result = STORE_OK;
    if (!response) {
        store->revision[0] = 0;
        store->base.is_unsure = true;
        result = kept_fail_call(store);
    } else if (kept_succeeded(response)) {
        kept_take_revision(store, response);
    } else {
        result = kept_read_refusal(store, response, is_stale);
    }
    cJSON_Delete(response);
    return result;
}

static enum store_result kept_put_notes(struct store *base, const struct store_note *notes,
                                        size_t count) {
    struct etcd_store *store = (struct etcd_store *)base;
    size_t bytes = 0;
    bool is_stale = false;
    for (size_t i = 0; i < count; i++) {
        bytes += strlen(store->prefix) + strlen(notes[i].kind) + strlen(notes[i].identity);
        bytes += NOTES_OVERHEAD + (notes[i].text ? strlen(notes[i].text) : 0);
    }
    if (bytes > NOTES_BYTES_MAX) {
        return kept_fail(store, STORE_FAILED,
                         "this has %zu bytes, and etcd takes at most %d in one transaction; change "
                         "less at once, or use --state",
                         bytes, NOTES_BYTES_MAX);
    }
    if (store->is_of_cluster && !store->revision[0]) {
        return kept_fail(store, STORE_OUTDATED, "the notes must be read again");
    }
    enum store_result result = kept_resume(store);
    if (result != STORE_OK) return result;
    store->batch++;
    result = kept_send(store, notes, count, &is_stale);
    return is_stale ? kept_send(store, notes, count, &is_stale) : result;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Decodes the base64 in a member of an entry. Returns NULL if memory runs out. */
static char *entry_text(const cJSON *entry, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, name));
    const size_t room = (text ? strlen(text) : 0) + 2;
    char *bytes = (char *)calloc(1, room);
    if (bytes && text) (void)server_base64_read(bytes, room - 1, text);
    return bytes;
}

/* What one call of kept_list_notes reads. */
struct kept_list {
    const char *kind;
    store_visitor *visit;
    void *context;
    size_t limit;                 /* notes of a page */
    size_t bytes;                 /* of the notes of the last page */
    char last[STORE_TEXT + 1];    /* the identity of the last note; "": none yet */
    char revision[ETCD_REVISION]; /* of the first page, if others may write; "": the newest */
    bool wants;                   /* the visitor wants more */
};

/* Gives the note of an entry to the visitor. Returns false if memory runs out. */
static bool kept_visit(const struct etcd_store *store, struct kept_list *list, const cJSON *entry) {
    const size_t head = strlen(store->prefix) + strlen(list->kind) + 1;
    char *name = entry_text(entry, "key"), *value = entry_text(entry, "value");
    const bool has_memory = name && value;
    if (has_memory && strlen(name) > head) {
        char *text = value;
        const int64_t ends_at = strtoll(value, &text, 10);
        if (*text == '\n') text++;
        list->bytes += strlen(text);
        snprintf(list->last, sizeof list->last, "%s", name + head);
        const struct store_note note = {list->kind, list->last, ends_at, text};
        list->wants = list->visit(list->context, &note);
    }
    free(name);
    free(value);
    return has_memory;
}

/* Asks for a page: the notes before list->last, or the last notes of the kind if it is empty. */
static cJSON *kept_ask(struct etcd_store *store, const struct kept_list *list) {
    struct kept_body body = {.text = NULL};
    char name[NAME_BYTES], limit[32];
    cJSON *response = NULL;
    snprintf(name, sizeof name, "%s%s0", store->prefix, list->kind); /* '0' follows '/' */
    snprintf(limit, sizeof limit, "%zu", list->limit);
    body_add(&body, "{\"key\":\"");
    body_add_key(&body, store, list->kind, "");
    body_add(&body, "\",\"range_end\":\"");
    if (list->last[0]) body_add_key(&body, store, list->kind, list->last);
    if (!list->last[0]) body_add_base64(&body, name);
    body_add(&body, "\",\"sort_order\":\"DESCEND\",\"sort_target\":\"KEY\",\"limit\":\"");
    body_add(&body, limit);
    if (list->revision[0]) {
        body_add(&body, "\",\"revision\":\"");
        body_add(&body, list->revision);
    }
    body_add(&body, "\"}");
    if (body.failed) {
        store->etcd.failure = ETCD_FAILED;
        snprintf(store->etcd.error.text, sizeof store->etcd.error.text, "out of memory");
    } else {
        response = server_etcd_post(&store->etcd, "/v3/kv/range", body.text);
    }
    free(body.text);
    return response;
}

/* Returns whether a shorter page may succeed after a failure. */
static bool kept_is_long(const struct etcd_store *store, const struct kept_list *list) {
    const enum etcd_failure failure = store->etcd.failure;
    return (failure == ETCD_TOO_LONG || failure == ETCD_TIMED_OUT) && list->limit > 1;
}

/* Reads a page, or makes pages shorter.
 *   more   out: there are further pages */
static enum store_result kept_read_page(struct etcd_store *store, struct kept_list *list,
                                        bool *more) {
    store->etcd.deadline = PAGE_DEADLINE / (doorman_time)store->etcd.tries;
    cJSON *response = kept_ask(store, list);
    store->etcd.deadline = NOTES_DEADLINE;
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(response, "kvs"), *entry = NULL;
    *more = true;
    if (!response && kept_is_long(store, list)) {
        list->limit /= NOTES_PAGE_SHRINK;
        return STORE_OK;
    }
    if (!response) return kept_fail_call(store);
    bool has_memory = true;
    list->bytes = 0;
    if (store->is_of_cluster && !list->revision[0]) {
        snprintf(
            list->revision, sizeof list->revision, "%.20s",
            server_etcd_number(cJSON_GetObjectItemCaseSensitive(response, "header"), "revision"));
    }
    cJSON_ArrayForEach(entry, entries) {
        if (list->wants && has_memory) has_memory = kept_visit(store, list, entry);
    }
    *more = list->wants && cJSON_GetArraySize(entries) == (int)list->limit;
    cJSON_Delete(response);
    const bool grows = list->bytes < NOTES_PAGE_FEW && list->limit < NOTES_PAGE_MAX;
    if (grows) list->limit *= NOTES_PAGE_GROW;
    return has_memory ? STORE_OK : kept_fail_memory(store);
}

static enum store_result kept_list_notes(struct store *base, const char *kind, const char *before,
                                         store_visitor *visit, void *context) {
    struct etcd_store *store = (struct etcd_store *)base;
    struct kept_list list = {
        .kind = kind, .visit = visit, .context = context, .limit = NOTES_PAGE, .wants = true};
    /* With the notes of a cluster, only the reading of all of them may take a new revision. */
    enum store_result result = store->is_of_cluster ? STORE_OK : kept_resume(store);
    snprintf(list.last, sizeof list.last, "%s", before);
    for (bool more = true; more && result == STORE_OK;) {
        result = kept_read_page(store, &list, &more);
    }
    return result;
}

/* ---- the kind ------------------------------------------------------------------------------- */

static enum store_result kept_next(struct store *base, struct store_row *row) {
    (void)base;
    (void)row;
    return STORE_END;
}

/* Writes nothing: counters and bans are not kept. */
static enum store_result kept_write(struct store *base, const struct store_row *rows,
                                    size_t count) {
    (void)base;
    (void)rows;
    (void)count;
    return STORE_OK;
}

static void kept_close(struct store *base) {
    struct etcd_store *store = (struct etcd_store *)base;
    server_etcd_uninit(&store->etcd);
}

static const struct store_kind kept_kind = {.prefix = "",
                                            .is_shared = true,
                                            .bytes = sizeof(struct etcd_store),
                                            .close = kept_close,
                                            .begin = kept_begin,
                                            .next = kept_next,
                                            .write = kept_write,
                                            .put_notes = kept_put_notes,
                                            .list_notes = kept_list_notes};

/* Opens the notes below `key`, or below `key`/`node` if `node` is not empty. */
static struct etcd_store *kept_open(const struct settings *settings, const char *key,
                                    const char *node) {
    struct etcd_store *store = (struct etcd_store *)calloc(1, sizeof *store);
    char name[PREFIX_BYTES];
    if (!store) return NULL;
    store->base.kind = &kept_kind;
    store->settings = settings;
    snprintf(store->prefix, sizeof store->prefix, "%.*s%s%.*s/notes/", ETCD_KEY_BYTES_MAX, key,
             node[0] ? "/" : "", ETCD_KEY_BYTES_MAX, node);
    snprintf(name, sizeof name, "%.*sepoch", PREFIX_BYTES - 8, store->prefix);
    server_base64_write(store->epoch, name);
    if (server_etcd_init_again(&store->etcd, settings) != CONTINUE) {
        free(store);
        return NULL;
    }
    if (store->etcd.tries > NOTES_TRIES) store->etcd.tries = NOTES_TRIES;
    store->etcd.deadline = NOTES_DEADLINE;
    return store;
}

struct store *server_store_etcd_open(const struct settings *settings) {
    const bool has_node = !settings->election_key && settings->node;
    const char *key = settings->election_key ? settings->election_key : settings->config_key;
    struct etcd_store *store = kept_open(settings, key, has_node ? settings->node : "");
    return store ? &store->base : NULL;
}

struct store *server_store_etcd_open_cluster(const struct settings *settings) {
    struct etcd_store *store = kept_open(settings, settings->shards, "");
    if (!store) return NULL;
    store->is_of_cluster = true;
    if (getentropy(&store->nonce, sizeof store->nonce) == 0) return &store->base;
    server_store_close(&store->base);
    return NULL;
}

void server_store_etcd_set_lease(struct store *base, int64_t lease) {
    ((struct etcd_store *)base)->lease = lease;
}

void server_store_etcd_cancel(struct store *base) {
    server_etcd_cancel(&((struct etcd_store *)base)->etcd, true);
}
