/* doorman_server, part UNMATCHED: a table of the last descriptors that match no template with
 * limits. A gateway lets their requests pass, so an operator must be able to see them.
 *
 * A row is for a resource of a domain and not for a key, because the resource decides which
 * template matches. So a client that sends new keys again and again fills only one row. If the
 * table is full, the row whose last descriptor is oldest is used again. */
#include "log.h"

struct unmatched {
    struct lock lock;
    uint64_t all;
    uint64_t hashes[UNMATCHED_MAX]; /* of the domain and resource of each row; 0: no row */
    struct unmatched_row rows[UNMATCHED_MAX];
};

/* FNV-1a. It only saves comparisons, so it needs no seed. */
static uint64_t unmatched_hash(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (hash ^ 0xff) * UINT64_C(0x100000001b3);
}

static void unmatched_copy_domain(char out[DOORMAN_ID_BYTES_MAX + 1], const char *domain) {
    size_t i = 0;
    for (; i < DOORMAN_ID_BYTES_MAX && domain[i]; i++) {
        out[i] = domain[i] >= 0x20 && domain[i] < 0x7f ? domain[i] : '?';
    }
    out[i] = '\0';
}

/* Returns the row of a domain and a resource, or else an empty or the oldest row to use. */
static size_t unmatched_find(const struct unmatched *table, uint64_t hash, const char *domain,
                             const char *resource) {
    size_t oldest = 0;
    for (size_t i = 0; i < UNMATCHED_MAX; i++) {
        const struct unmatched_row *row = &table->rows[i];
        if (table->hashes[i] == hash && strcmp(row->resource, resource) == 0 &&
            strcmp(row->domain, domain) == 0) {
            return i;
        }
        if (row->at < table->rows[oldest].at) oldest = i;
    }
    return oldest;
}

void server_unmatched_note(struct service *service, const char *domain,
                           const doorman_descriptor_item *item) {
    struct unmatched *table = service->unmatched;
    char shown[DOORMAN_ID_BYTES_MAX + 1];
    const doorman_time now = doorman_clock();
    if (!table) return;
    unmatched_copy_domain(shown, domain);
    const uint64_t hash =
        unmatched_hash(unmatched_hash(UINT64_C(0xcbf29ce484222325), shown), item->resource_id) | 1;
    server_lock(&table->lock);
    const size_t index = unmatched_find(table, hash, shown, item->resource_id);
    struct unmatched_row *row = &table->rows[index];
    const bool is_same = table->hashes[index] == hash && row->count &&
                         strcmp(row->resource, item->resource_id) == 0 &&
                         strcmp(row->domain, shown) == 0;
    if (!is_same) {
        *row = (struct unmatched_row){.matched = item->matched};
        table->hashes[index] = hash;
        snprintf(row->domain, sizeof row->domain, "%s", shown);
        snprintf(row->resource, sizeof row->resource, "%s", item->resource_id);
    }
    snprintf(row->key, sizeof row->key, "%s", item->key);
    row->matched = item->matched;
    row->at = now;
    row->count++;
    table->all++;
    server_unlock(&table->lock);
}

static int unmatched_order(const void *left, const void *right) {
    const struct unmatched_row *a = (const struct unmatched_row *)left;
    const struct unmatched_row *b = (const struct unmatched_row *)right;
    if (a->at != b->at) return a->at > b->at ? -1 : 1;
    return strcmp(a->resource, b->resource);
}

size_t server_unmatched_list(struct service *service, struct unmatched_row rows[UNMATCHED_MAX],
                             uint64_t *all) {
    struct unmatched *table = service->unmatched;
    size_t count = 0;
    *all = 0;
    if (!table) return 0;
    server_lock(&table->lock);
    for (size_t i = 0; i < UNMATCHED_MAX; i++) {
        if (table->hashes[i]) rows[count++] = table->rows[i];
    }
    *all = table->all;
    server_unlock(&table->lock);
    qsort(rows, count, sizeof *rows, unmatched_order);
    return count;
}

static enum exit_status unmatched_open(struct service *service) {
    struct unmatched *table = (struct unmatched *)calloc(1, sizeof *table);
    if (!table || !server_lock_init(&table->lock, LOCK_UNMATCHED)) {
        free(table);
        return server_fatal_error(EXIT_ERROR, "out of memory");
    }
    service->unmatched = table;
    return CONTINUE;
}

static void unmatched_destroy(struct service *service) {
    if (service->unmatched) server_lock_uninit(&service->unmatched->lock);
    free(service->unmatched);
    service->unmatched = NULL;
}

const struct server_part server_part_unmatched = {.open = unmatched_open,
                                                  .destroy = unmatched_destroy};
