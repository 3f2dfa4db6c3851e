/* doorman_server, part HTTP: the history of the resources. This file changes service->history, and
 * reads the state through snapshots.
 *
 * The history is what resources had, wanted and could give in the last ten minutes. The graphs of
 * the status page show it. It has a point every ten seconds, for at most 10,000 resources (7 MB).
 * The main thread adds the points. It merges the last list with a new snapshot. Both are sorted by
 * id. */
#include "http.h"

#define HISTORY_MAX 10000

struct history {
    pthread_mutex_t lock;
    struct trend *trends;
    size_t count;
    doorman_time due;
};

static int compare_trend_id(const void *id, const void *trend) {
    return strcmp((const char *)id, ((const struct trend *)trend)->id);
}

static void points_add(float points[HISTORY_POINTS], double value) {
    memmove(points, points + 1, (HISTORY_POINTS - 1) * sizeof *points);
    points[HISTORY_POINTS - 1] = (float)value;
}

static void trend_add(struct trend *trend, const doorman_server_resource *info) {
    if (trend->count < HISTORY_POINTS) trend->count++;
    points_add(trend->has, info->has);
    points_add(trend->wants, info->wants);
    points_add(trend->capacity, info->divides_capacity ? info->capacity : -1);
}

/* Copies the first HISTORY_MAX resources, and ignores the other resources. */
static bool history_add_row(void *context, const doorman_server_resource *info) {
    struct snapshot *snapshot = (struct snapshot *)context;
    server_snapshot_add_row(snapshot, info);
    return snapshot->row_count < HISTORY_MAX && !snapshot->failed;
}

static void history_copy(struct snapshot *snapshot, struct service *service) {
    server_for_each_resource(service, server_snapshot_reserve, history_add_row, snapshot);
}

/* Makes the new list. Keeps the points of resources that still exist, and adds one point to each
 * resource. Takes ownership of the ids of the rows. Returns NULL if memory runs out. */
static struct trend *history_merge(const struct history *history, struct snapshot *snapshot) {
    struct trend *trends = (struct trend *)calloc(snapshot->row_count + 1, sizeof *trends);
    for (size_t i = 0, old = 0; trends && i < snapshot->row_count; i++) {
        struct row *row = &snapshot->rows[i];
        while (old < history->count && strcmp(history->trends[old].id, row->id) < 0) old++;
        if (old < history->count && strcmp(history->trends[old].id, row->id) == 0) {
            trends[i] = history->trends[old];
        }
        trends[i].id = row->id;
        row->id = NULL;
        trend_add(&trends[i], &row->info);
    }
    return trends;
}

static void history_clear(struct history *history) {
    for (size_t i = 0; i < history->count; i++) free(history->trends[i].id);
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
    struct trend *trends = snapshot.failed ? NULL : history_merge(history, &snapshot);
    if (trends) {
        pthread_mutex_lock(&history->lock);
        history_clear(history);
        history->trends = trends;
        history->count = snapshot.row_count;
        pthread_mutex_unlock(&history->lock);
    }
    server_snapshot_uninit(&snapshot);
}

struct trend server_history_find(struct service *service, const char *id) {
    struct history *history = service->history;
    struct trend found = {.count = 0};
    pthread_mutex_lock(&history->lock);
    const struct trend *trend = NULL;
    if (history->count > 0) {
        trend = (const struct trend *)bsearch(id, history->trends, history->count,
                                              sizeof *history->trends, compare_trend_id);
    }
    if (trend) found = *trend;
    pthread_mutex_unlock(&history->lock);
    found.id = NULL;
    return found;
}

void server_history_update(struct service *service, doorman_time now) {
    if (service->history && service->history->due <= now) {
        service->history->due = now + HISTORY_INTERVAL;
        history_sample(service);
    }
}

bool server_history_create(struct service *service) {
    struct history *history = (struct history *)calloc(1, sizeof *history);
    service->history = history;
    return history && pthread_mutex_init(&history->lock, NULL) == 0;
}

void server_history_destroy(struct service *service) {
    if (service->history) {
        history_clear(service->history);
        pthread_mutex_destroy(&service->history->lock);
    }
    free(service->history);
}
