/* doorman_server, part HTTP: copies of the state for the pages, the metrics and the history. This
 * file only reads the state; it takes the lock of the service.
 *
 * A snapshot is a copy of the state for the pages and the metrics. The copy is made while the lock
 * is held. All text is written later, without the lock. A snapshot holds the first ROWS_MAX
 * resources or leases of an iteration. It also holds the sum of the other resources.
 *
 * Each step of an iteration takes about 0.2 us. If its data is not in the CPU's caches, it takes
 * several us. So an iteration releases the lock after each ITERATION_BATCH steps. It then sleeps
 * for a moment. Without the sleep, a thread that waits for the lock wakes up too late to get it. */
#include "server.h"

#define ITERATION_BATCH 1000 /* steps: less than 5 ms, even if they remove ended leases */

const char *server_kind_name(doorman_kind kind) {
#define KIND_NAME(kind, name) [kind] = (name),
    static const char *const names[] = {DOORMAN_KINDS(KIND_NAME)};
    return names[kind];
}

void server_for_each_resource(struct service *service,
                              bool (*callback)(void *context, const doorman_server_resource *info),
                              void *context) {
    doorman_cursor cursor = {0};
    doorman_server_resource info;
    doorman_time now = doorman_clock();
    for (size_t count = 1; doorman_server_next_resource(service->server, &cursor, &info, now);
         count++) {
        if (!callback(context, &info)) return;
        if (count % ITERATION_BATCH == 0) {
            server_yield(service);
            now = doorman_clock();
        }
    }
}

/* Makes room for one more row; may move `items`. Returns false if memory runs out. */
static bool reserve_row(void **items, size_t count, size_t *capacity, size_t bytes) {
    if (count == *capacity) {
        size_t more = *capacity ? *capacity * 2 : 64;
        void *grown = realloc(*items, more * bytes);
        if (!grown) return false;
        *items = grown;
        *capacity = more;
    }
    return true;
}

/* Makes a row without an id. The caller sets the id. */
static struct row row_make(const doorman_server_resource *info) {
    return (struct row){.info = *info, .kind = info->settings->algorithm.kind};
}

void server_snapshot_add_row(struct snapshot *snapshot, const doorman_server_resource *info) {
    void *rows = snapshot->rows;
    char *id = strdup(info->resource_id);
    if (id &&
        reserve_row(&rows, snapshot->row_count, &snapshot->row_capacity, sizeof(struct row))) {
        snapshot->rows = (struct row *)rows;
        snapshot->rows[snapshot->row_count] = row_make(info);
        snapshot->rows[snapshot->row_count++].id = id;
    } else {
        snapshot->failed = true;
        free(id);
    }
}

void server_snapshot_add_other(struct snapshot *snapshot, const struct row *row) {
    doorman_server_resource *others = &snapshot->others.info;
    const doorman_server_resource *info = &row->info;
    bool later = info->is_learning && info->learned_at > others->learned_at;
    snapshot->has_others = true;
    others->capacity += info->capacity;
    others->has += info->has;
    others->overshoot += info->overshoot;
    others->committed += info->committed;
    others->wants += info->wants;
    others->subclients += info->subclients;
    others->holder_count += info->holder_count;
    others->expired_count += info->expired_count;
    others->is_learning |= info->is_learning;
    if (later) others->learned_at = info->learned_at;
}

static void snapshot_count(struct snapshot *snapshot, const doorman_server_resource *info) {
    snapshot->resource_count++;
    snapshot->holder_count += info->holder_count;
    snapshot->learning_count += info->is_learning;
    if (info->is_learning && info->learned_at > snapshot->learned_at) {
        snapshot->learned_at = info->learned_at;
    }
    if (info->leased && (!snapshot->leased_count++ || info->lease_end < snapshot->lease_end)) {
        snapshot->lease_end = info->lease_end;
    }
}

void server_snapshot_find_master(struct snapshot *snapshot, struct service *service) {
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    snapshot->now = doorman_clock();
    snapshot->stopping = service->stopping;
    doorman_server_handle(service->server, &discovery, &response, NULL, snapshot->now);
    snapshot->is_master = response.is_master;
    const char *master = response.master_address ? response.master_address : "";
    snprintf(snapshot->master, sizeof snapshot->master, "%s", master);
}

static bool snapshot_add(void *context, const doorman_server_resource *info) {
    struct snapshot *snapshot = (struct snapshot *)context;
    snapshot_count(snapshot, info);
    if (strstr(info->resource_id, snapshot->filter)) {
        snapshot->match_count++;
        if (snapshot->row_count < snapshot->limit) {
            server_snapshot_add_row(snapshot, info);
        } else {
            struct row row = row_make(info);
            server_snapshot_add_other(snapshot, &row);
        }
    }
    return true;
}

void server_snapshot_take(struct snapshot *snapshot, struct service *service, const char *filter,
                          size_t limit) {
    snapshot->filter = filter;
    snapshot->limit = limit;
    pthread_mutex_lock(&service->lock);
    server_snapshot_find_master(snapshot, service);
    server_for_each_resource(service, snapshot_add, snapshot);
    pthread_mutex_unlock(&service->lock);
}

void server_snapshot_uninit(struct snapshot *snapshot) {
    for (size_t i = 0; i < snapshot->row_count; i++) free(snapshot->rows[i].id);
    free(snapshot->rows);
}

int server_compare_row_ids(const void *left, const void *right) {
    return strcmp(((const struct row *)left)->id, ((const struct row *)right)->id);
}

struct config_load server_last_load(struct service *service) {
    pthread_mutex_lock(&service->lock);
    struct config_load last_load = service->last_load;
    pthread_mutex_unlock(&service->lock);
    return last_load;
}

static void lease_list_add(struct lease_list *leases, const doorman_server_lease *info) {
    void *rows = leases->rows;
    char *id = strdup(info->holder_id);
    if (id &&
        reserve_row(&rows, leases->row_count, &leases->row_capacity, sizeof(struct lease_row))) {
        leases->rows = (struct lease_row *)rows;
        leases->rows[leases->row_count++] = (struct lease_row){id, *info};
    } else {
        leases->failed = true;
        free(id);
    }
    /* cppcheck-suppress memleak ; the row owns the memory */
}

static void lease_list_find_resource(struct lease_list *leases, struct service *service) {
    doorman_server_resource info;
    leases->now = doorman_clock();
    leases->found = doorman_server_find(service->server, leases->resource_id, &info, leases->now);
    if (!leases->found) return;
    const char *description = info.settings->description;
    leases->resource = row_make(&info);
    if (description) leases->description = strdup(description);
}

void server_lease_list_take(struct lease_list *leases, struct service *service,
                            const char *resource_id) {
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    leases->resource_id = resource_id;
    pthread_mutex_lock(&service->lock);
    lease_list_find_resource(leases, service);
    while (leases->row_count < ROWS_MAX && !leases->failed &&
           doorman_server_next_lease(service->server, resource_id, &cursor, &lease, leases->now)) {
        lease_list_add(leases, &lease);
        if (leases->row_count % ITERATION_BATCH == 0) server_yield(service);
    }
    pthread_mutex_unlock(&service->lock);
}

void server_lease_list_uninit(struct lease_list *leases) {
    for (size_t i = 0; i < leases->row_count; i++) free(leases->rows[i].id);
    free(leases->rows);
    free(leases->description);
}
