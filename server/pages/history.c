/* doorman_server, part HTTP: the history of the resources. This file changes service->history, and
 * reads the state through snapshots.
 *
 * The history is what the holders of each resource had and wanted in the last ten minutes, and its
 * capacity. The graphs of the status page show it. It has a point every ten seconds, for at most
 * 10,000 resources (10 MB, and another 10 MB during a merge). The ids are in the same block as the
 * points. Otherwise they would lie between blocks of leases, so the memory of leases that have
 * ended could not go back to the system. The main thread adds the points. Every ten seconds it
 * merges the list of histories with a new snapshot of the resources. Both are sorted by id.
 *
 * A resource vanishes from the server with its last holder. Its history and its metrics stay until
 * all its points are from a time without holders. Resources without holders only get the room that
 * the others leave, and at most VACANT_MAX are kept. */
#include "pages.h"

#define HISTORY_MAX 10000
#define VACANT_MAX 1000 /* resources without holders */

struct history {
    struct lock lock;
    struct trend *trends;
    size_t count;
    doorman_time due;
};

static int compare_trend_id(const void *id, const void *trend) {
    return strcmp((const char *)id, ((const struct trend *)trend)->id);
}

void server_points_add(float points[HISTORY_POINTS], double value) {
    memmove(points, points + 1, (HISTORY_POINTS - 1) * sizeof *points);
    points[HISTORY_POINTS - 1] = (float)value;
}

static void trend_add(struct trend *trend, const doorman_server_resource *info) {
    assert(trend->count <= HISTORY_POINTS && trend->missing == 0);
    if (trend->count < HISTORY_POINTS) trend->count++;
    server_points_add(trend->has, info->has);
    server_points_add(trend->wants, info->wants);
    server_points_add(trend->capacity, info->divides_capacity ? info->capacity : -1);
}

/* Copies a resource. Returns false if there are HISTORY_MAX rows, or if memory has run out. */
static bool history_add_row(void *context, const doorman_server_resource *info) {
    struct snapshot *snapshot = (struct snapshot *)context;
    server_snapshot_add_row(snapshot, info);
    return snapshot->row_count < HISTORY_MAX && !snapshot->failed;
}

static void history_copy(struct snapshot *snapshot, struct service *service) {
    server_for_each_resource(service, server_snapshot_reserve, history_add_row, snapshot);
}

/* Continues the history of a resource that has no holders any more. Returns false if the history
 * ends. */
static bool trend_continue(struct trend *trend, const struct trend *last) {
    assert(last->missing < HISTORY_POINTS && last->count <= HISTORY_POINTS);
    if (last->missing == HISTORY_POINTS - 1) return false;
    *trend = *last;
    trend->missing++;
    if (trend->count < HISTORY_POINTS) trend->count++;
    server_points_add(trend->has, 0);
    server_points_add(trend->wants, 0);
    server_points_add(trend->capacity, -1);
    return true;
}

/* Adds a point to a resource that has holders.
 *   last   its points; NULL: it is new */
static void trend_update(struct trend *trend, const struct trend *last, const struct row *row) {
    if (last) *trend = *last;
    trend->missing = 0;
    snprintf(trend->id, sizeof trend->id, "%s", row->id);
    trend_add(trend, &row->info);
}

/* Makes the new list. Keeps the points of the last list, and adds one point to each resource.
 * Returns NULL if memory runs out.
 *   count   out: the length of the list */
static struct trend *history_merge(const struct history *history, const struct snapshot *snapshot,
                                   size_t *count) {
    assert(snapshot->row_count <= HISTORY_MAX);
    size_t room = HISTORY_MAX - snapshot->row_count, i = 0, old = 0;
    if (room > VACANT_MAX) room = VACANT_MAX;
    struct trend *trends = (struct trend *)calloc(snapshot->row_count + room + 1, sizeof *trends);
    *count = 0;
    while (trends && (i < snapshot->row_count || old < history->count)) {
        const struct trend *last = old < history->count ? &history->trends[old] : NULL;
        int order = !last                     ? 1
                    : i < snapshot->row_count ? strcmp(last->id, snapshot->rows[i].id)
                                              : -1;
        if (order < 0) {
            bool kept = room > 0 && trend_continue(&trends[*count], last);
            room -= kept;
            *count += kept;
        } else {
            trend_update(&trends[(*count)++], order == 0 ? last : NULL, &snapshot->rows[i++]);
        }
        old += order <= 0;
    }
    return trends;
}

static void history_clear(struct history *history) {
    free(history->trends);
    history->trends = NULL;
    history->count = 0;
}

static void history_sample(struct service *service) {
    struct history *history = service->history;
    struct snapshot snapshot = {.now = 0};
    history_copy(&snapshot, service);
    if (snapshot.row_count > 1) {
        qsort(snapshot.rows, snapshot.row_count, sizeof *snapshot.rows, server_compare_row_ids);
    }
    size_t count = 0;
    struct trend *trends = snapshot.failed ? NULL : history_merge(history, &snapshot, &count);
    if (trends) {
        server_lock(&history->lock);
        history_clear(history);
        history->trends = trends;
        history->count = count;
        server_unlock(&history->lock);
    }
    server_snapshot_uninit(&snapshot);
}

struct trend server_history_find(struct service *service, const char *id) {
    struct history *history = service->history;
    struct trend found = {.count = 0};
    server_lock(&history->lock);
    const struct trend *trend = NULL;
    if (history->count > 0) {
        trend = (const struct trend *)bsearch(id, history->trends, history->count,
                                              sizeof *history->trends, compare_trend_id);
    }
    if (trend) found = *trend;
    server_unlock(&history->lock);
    return found;
}

/* Returns whether one of the first `count` rows, which are sorted, has this id. */
static bool rows_have(const struct snapshot *snapshot, size_t count, char *id) {
    const struct row key = {.id = id};
    return count > 0 && bsearch(&key, snapshot->rows, count, sizeof key, server_compare_row_ids);
}

void server_history_add_missing(struct service *service, struct snapshot *snapshot, size_t limit) {
    struct history *history = service->history;
    size_t sorted = snapshot->row_count;
    if (sorted > 1) qsort(snapshot->rows, sorted, sizeof *snapshot->rows, server_compare_row_ids);
    server_lock(&history->lock);
    for (size_t i = 0; i < history->count && snapshot->row_count < limit; i++) {
        struct trend *trend = &history->trends[i];
        if (trend->missing == 0 || rows_have(snapshot, sorted, trend->id)) continue;
        char *id = server_snapshot_reserve(snapshot) ? strdup(trend->id) : NULL;
        if (!id) break;
        snapshot->rows[snapshot->row_count++] = (struct row){.id = id, .is_missing = true};
        /* cppcheck-suppress memleak ; the row owns the memory */
    }
    server_unlock(&history->lock);
}

static void history_work(struct service *service, doorman_time now) {
    if (service->history && service->history->due <= now) {
        service->history->due = now + HISTORY_INTERVAL;
        history_sample(service);
    }
}

static enum exit_status history_open(struct service *service) {
    if (!server_http_is_on(service->settings)) return CONTINUE;
    struct history *history = (struct history *)calloc(1, sizeof *history);
    service->history = history;
    return history && server_lock_init(&history->lock, LOCK_HISTORY)
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR, "out of memory");
}

static void history_destroy(struct service *service) {
    if (service->history) {
        history_clear(service->history);
        server_lock_uninit(&service->history->lock);
    }
    free(service->history);
}

const struct server_part server_part_history = {
    .open = history_open, .work = history_work, .destroy = history_destroy};
