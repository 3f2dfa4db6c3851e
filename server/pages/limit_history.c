/* doorman_server, part HTTP: the history of the limits of permits. This file changes
 * service->limit_history, and reads the permits.
 *
 * The history is how many permits a second each limit has granted and refused in the last ten
 * minutes. The pages of the limits draw it. It has a point every ten seconds, for at most the first
 * 10,000 limits of the configuration (10 MB, and another 10 MB while the main thread makes the new
 * list). The main thread adds the points.
 *
 * A limit is known by the glob of its template and by its name. The counts of a limit are sums
 * since a time that this file does not know. So the first sample of a limit adds no point. A limit
 * loses its history when it leaves the configuration, and when this process is not the master any
 * more. */
#include "pages.h"

#define LIMIT_HISTORY_MAX 10000
#define LIMIT_HISTORY_STEP 256 /* limits that are read while the lock is held */

struct limit_history {
    struct lock lock;
    struct limit_trend *trends; /* sorted by glob and name */
    size_t count;
    doorman_time due, sampled_at;
};

/* A new list of histories. */
struct limit_sample {
    struct limit_trend *trends;
    size_t count;
    bool failed; /* out of memory */
};

uint64_t server_limit_refused(const doorman_permits_limit *info) {
    uint64_t sum = 0;
    for (int i = 0; i < DOORMAN_REASON_COUNT; i++) sum += info->refused[i];
    return sum;
}

static int limit_trend_compare(const void *left, const void *right) {
    const struct limit_trend *one = (const struct limit_trend *)left;
    const struct limit_trend *other = (const struct limit_trend *)right;
    int order = strcmp(one->glob, other->glob);
    return order ? order : strcmp(one->name, other->name);
}

static const struct limit_trend *limit_history_search(const struct limit_history *history,
                                                      const struct limit_trend *key) {
    if (history->count == 0) return NULL;
    return (const struct limit_trend *)bsearch(key, history->trends, history->count, sizeof *key,
                                               limit_trend_compare);
}

static void limit_sample_add(struct limit_sample *sample, const doorman_permits_limit *info) {
    assert(sample->count < LIMIT_HISTORY_MAX);
    struct limit_trend *trend = &sample->trends[sample->count++];
    memset(trend, 0, sizeof *trend);
    snprintf(trend->glob, sizeof trend->glob, "%s", info->identifier_glob);
    snprintf(trend->name, sizeof trend->name, "%s", info->limit);
    trend->granted_count = info->granted;
    trend->refused_count = server_limit_refused(info);
}

/* Makes room for the limits of one slice. */
static bool limit_sample_reserve(struct limit_sample *sample) {
    size_t room = sample->count + LIMIT_HISTORY_STEP;
    void *grown = realloc(sample->trends, room * sizeof *sample->trends);
    if (grown) sample->trends = (struct limit_trend *)grown;
    sample->failed = !grown;
    return grown != NULL;
}

/* Reads some limits. Returns whether there are more. */
static bool limit_sample_step(struct limit_sample *sample, struct service *service,
                              doorman_cursor *cursor) {
    doorman_permits_limit info;
    struct slice slice = server_slice_start(service);
    const doorman_permits *permits = doorman_server_permits(service->server);
    bool more = permits != NULL;
    for (size_t i = 0; more && i < LIMIT_HISTORY_STEP; i++) {
        more =
            sample->count < LIMIT_HISTORY_MAX && doorman_permits_next_limit(permits, cursor, &info);
        if (more) limit_sample_add(sample, &info);
    }
    server_slice_end(&slice, service);
    return more;
}

/* Returns the growth of a sum per second since the last point. A sum that is smaller than before
 * has started again at 0. */
static double limit_rate(uint64_t sum, uint64_t last, doorman_time duration) {
    uint64_t added = sum < last ? sum : sum - last;
    assert(duration > 0);
    return (double)added / ((double)duration / (double)DOORMAN_SECOND);
}

/* Continues the history of a limit with one more point. */
static void limit_trend_continue(struct limit_trend *trend, const struct limit_trend *last,
                                 doorman_time duration) {
    assert(last->count <= HISTORY_POINTS);
    trend->count = last->count < HISTORY_POINTS ? last->count + 1 : last->count;
    memcpy(trend->granted, last->granted, sizeof trend->granted);
    memcpy(trend->refused, last->refused, sizeof trend->refused);
    server_points_add(trend->granted,
                      limit_rate(trend->granted_count, last->granted_count, duration));
    server_points_add(trend->refused,
                      limit_rate(trend->refused_count, last->refused_count, duration));
}

static void limit_history_clear(struct limit_history *history) {
    free(history->trends);
    history->trends = NULL;
    history->count = 0;
}

/* Copies the histories of the list into a sample, and continues them. The sample then replaces the
 * list. Only the main thread changes the list, so it reads the list without its lock. */
static void limit_history_replace(struct limit_history *history, struct limit_sample *sample,
                                  doorman_time now) {
    doorman_time duration = now - history->sampled_at;
    if (sample->count > 1) {
        qsort(sample->trends, sample->count, sizeof *sample->trends, limit_trend_compare);
    }
    for (size_t i = 0; i < sample->count && duration > 0; i++) {
        const struct limit_trend *last = limit_history_search(history, &sample->trends[i]);
        if (last) limit_trend_continue(&sample->trends[i], last, duration);
    }
    server_lock(&history->lock);
    limit_history_clear(history);
    history->trends = sample->trends;
    history->count = sample->count;
    history->sampled_at = now;
    server_unlock(&history->lock);
}

/* Frees the memory that the sample does not use. */
static void limit_sample_shrink(struct limit_sample *sample) {
    if (sample->count == 0) {
        free(sample->trends);
        sample->trends = NULL;
        return;
    }
    void *less = realloc(sample->trends, sample->count * sizeof *sample->trends);
    if (less) sample->trends = (struct limit_trend *)less;
}

static void limit_history_sample(struct service *service, doorman_time now) {
    struct limit_sample sample = {.trends = NULL};
    doorman_cursor cursor = {0};
    bool more = true;
    while (more && limit_sample_reserve(&sample)) {
        more = limit_sample_step(&sample, service, &cursor);
    }
    if (sample.failed) {
        free(sample.trends);
        return;
    }
    limit_sample_shrink(&sample);
    limit_history_replace(service->limit_history, &sample, now);
}

struct limit_trend server_limit_history_find(struct service *service, const char *glob,
                                             const char *name) {
    struct limit_history *history = service->limit_history;
    struct limit_trend found = {.count = 0};
    snprintf(found.glob, sizeof found.glob, "%s", glob);
    snprintf(found.name, sizeof found.name, "%s", name);
    server_lock(&history->lock);
    const struct limit_trend *trend = limit_history_search(history, &found);
    if (trend) found = *trend;
    server_unlock(&history->lock);
    return found;
}

static void limit_history_work(struct service *service, doorman_time now) {
    struct limit_history *history = service->limit_history;
    if (history && history->due <= now) {
        history->due = now + HISTORY_INTERVAL;
        limit_history_sample(service, now);
    }
}

static enum exit_status limit_history_open(struct service *service) {
    if (!server_http_is_on(service->settings)) return CONTINUE;
    struct limit_history *history = (struct limit_history *)calloc(1, sizeof *history);
    service->limit_history = history;
    return history && server_lock_init(&history->lock, LOCK_HISTORY)
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR, "out of memory");
}

static void limit_history_destroy(struct service *service) {
    if (service->limit_history) {
        limit_history_clear(service->limit_history);
        server_lock_uninit(&service->limit_history->lock);
    }
    free(service->limit_history);
}

const struct server_part server_part_limit_history = {
    .open = limit_history_open, .work = limit_history_work, .destroy = limit_history_destroy};
