/* doorman_server, part HTTP: copies of the state for the pages, the metrics and the history. It
 * takes the lock of the service, and writes only service->longest_hold. But the iterations of the
 * library also move the clock of the server object, and remove expired leases (S2).
 *
 * The state is copied while the lock is held, and the text is written later, without the lock. A
 * snapshot holds the first resources of an iteration, ROWS_MAX at most, and the sum of the others.
 * A list of leases holds ROWS_MAX leases at most.
 *
 * Each step of an iteration takes about 0.2 us. If its data is not in the CPU's caches, it takes
 * several us. If leases have expired, it takes up to 0.2 ms (S2). An iteration has slices of
 * SLICE_DURATION, and releases the lock after each slice. It then sleeps for a moment. Without the
 * sleep, a thread that waits for the lock wakes up too late to get it. Rows get their memory
 * between the slices, because moving them can take milliseconds. The longest slice is logged when
 * the process stops. */
#include "pages.h"
#include "../util/host.h"

#include <nng/supplemental/util/platform.h>

#define SLICE_DURATION (DOORMAN_SECOND / 1000)
#define SLICE_CLOCK_STEPS 8 /* the clock is read after this many steps */
#define SLICE_PAUSE_MS 1

/* The longest time for which a slice held the lock of the service. The lock guards this struct. */
struct lock_hold {
    doorman_time duration;
    doorman_time cpu_time; /* without the time in which the thread did not run */
};

static doorman_time cpu_clock(void) {
    struct timespec time = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (doorman_time)time.tv_sec * DOORMAN_SECOND + time.tv_nsec;
}

struct slice server_slice_start(struct service *service) {
    server_lock(&service->lock);
    return (struct slice){.started_at = doorman_clock(), .started_cpu = cpu_clock()};
}

void server_slice_end(const struct slice *slice, struct service *service) {
    struct lock_hold *longest = service->longest_hold;
    doorman_time duration = doorman_clock() - slice->started_at;
    doorman_time cpu_time = cpu_clock() - slice->started_cpu;
    if (duration > longest->duration) longest->duration = duration;
    if (cpu_time > longest->cpu_time) longest->cpu_time = cpu_time;
    server_unlock(&service->lock);
    nng_msleep(SLICE_PAUSE_MS);
}

bool server_slice_step(struct slice *slice) {
    slice->steps++;
    return slice->steps == SLICE_STEPS_MAX ||
           (slice->steps % SLICE_CLOCK_STEPS == 0 &&
            doorman_clock() - slice->started_at >= SLICE_DURATION);
}

const char *server_kind_name(doorman_kind kind) {
#define KIND_NAME(kind, name) [kind] = (name),
    static const char *const names[] = {DOORMAN_KINDS(KIND_NAME)};
    return names[kind];
}

void server_for_each_resource(struct service *service, bool (*reserve)(void *context),
                              bool (*callback)(void *context, const doorman_server_resource *info),
                              void *context) {
    doorman_cursor cursor = {0};
    doorman_server_resource info;
    bool more = true;
    while (more && reserve(context)) {
        struct slice slice = server_slice_start(service);
        do {
            more =
                doorman_server_next_resource(service->server, &cursor, &info, slice.started_at) &&
                callback(context, &info);
        } while (more && !server_slice_step(&slice));
        server_slice_end(&slice, service);
    }
}

void *server_reserve(void *items, size_t count, size_t *capacity, size_t bytes) {
    if (*capacity - count >= SLICE_STEPS_MAX) return items;
    size_t more = *capacity * 2 + SLICE_STEPS_MAX;
    void *grown = realloc(items, more * bytes);
    if (grown) *capacity = more;
    return grown;
}

bool server_snapshot_reserve(void *context) {
    struct snapshot *snapshot = (struct snapshot *)context;
    void *rows = server_reserve(snapshot->rows, snapshot->row_count, &snapshot->row_capacity,
                                sizeof *snapshot->rows);
    if (rows) snapshot->rows = (struct row *)rows;
    snapshot->failed = snapshot->failed || !rows;
    return rows != NULL;
}

/* Returns how much capacity the holders want and may have, but do not have yet. The shares always
 * sum to the smaller of the capacity and the wants. So this amount is how much the shares of
 * holders have grown since the holders last asked. A holder that asked only once keeps others from
 * using its share until its lease ends. Returns 0 if the amount may come from rounding, and while
 * the resource learns, because other rules decide then. */
static double reserved_amount(const doorman_server_resource *info) {
    double shares = info->wants < info->capacity ? info->wants : info->capacity;
    double reserved = shares - info->committed;
    bool applies = info->divides_capacity && !info->is_learning;
    return applies && reserved > info->capacity * 1e-9 ? reserved : 0;
}

/* Makes a row without an id. The caller sets the id. */
static struct row row_make(const doorman_server_resource *info) {
    struct row row = {.info = *info, .kind = info->settings->algorithm.kind};
    row.reserved = reserved_amount(info);
    snprintf(row.unit, sizeof row.unit, "%s", info->settings->unit);
    return row;
}

void server_snapshot_add_row(struct snapshot *snapshot, const doorman_server_resource *info) {
    char *id = strdup(info->resource_id);
    assert(snapshot->row_count < snapshot->row_capacity);
    snapshot->failed = snapshot->failed || !id;
    if (id) {
        snapshot->rows[snapshot->row_count] = row_make(info);
        snapshot->rows[snapshot->row_count++].id = id;
    }
}

void server_snapshot_add_other(struct snapshot *snapshot, const struct row *row) {
    doorman_server_resource *others = &snapshot->others.info;
    const doorman_server_resource *info = &row->info;
    bool later = info->is_learning && info->learned_at > others->learned_at;
    snapshot->has_others = true;
    snapshot->others.reserved += row->reserved;
    others->capacity += info->capacity;
    others->has += info->has;
    others->overshoot += info->overshoot;
    others->configured_capacity += info->configured_capacity;
    others->committed += info->committed;
    others->wants += info->wants;
    others->subclients += info->subclients;
    others->holder_count += info->holder_count;
    others->unconfirmed_count += info->unconfirmed_count;
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
    assert(server_lock_is_held(&service->lock));
    snapshot->now = doorman_clock();
    snapshot->stopping = service->stopping;
    doorman_server_handle(service->server, &discovery, &response, NULL, snapshot->now);
    snapshot->is_master = response.is_master;
    snapshot->learns_until = doorman_server_learns_until(service->server, snapshot->now);
    const char *master = response.master_address ? response.master_address : "";
    snprintf(snapshot->master, sizeof snapshot->master, "%s", master);
    snprintf(snapshot->master_http, sizeof snapshot->master_http, "%s", service->master_http);
    const char *parent = service->parent_link.state.http_address;
    snapshot->parent = service->parent_link.state;
    snapshot->election = service->election_status;
    snprintf(snapshot->parent_http, sizeof snapshot->parent_http, "%s",
             server_host_is_http_address(parent) ? parent : "");
    snapshot->descriptors = service->descriptors;
    snapshot->config_version = service->last_load.version;
    snapshot->config_is_cached = service->last_load.is_cached;
    snapshot->drain = service->drain;
    snapshot->has_state = service->state_status != NULL;
    if (!snapshot->has_state) return;
    snapshot->state = *service->state_status;
    snapshot->state_age = server_state_age(service, snapshot->now);
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
    return !server_is_abandoned(snapshot->abandoned);
}

void server_snapshot_take(struct snapshot *snapshot, struct service *service, const char *filter,
                          size_t limit) {
    snapshot->filter = filter;
    snapshot->limit = limit;
    server_lock(&service->lock);
    server_snapshot_find_master(snapshot, service);
    server_unlock(&service->lock);
    server_for_each_resource(service, server_snapshot_reserve, snapshot_add, snapshot);
}

void server_snapshot_uninit(struct snapshot *snapshot) {
    for (size_t i = 0; i < snapshot->row_count; i++) free(snapshot->rows[i].id);
    free(snapshot->rows);
}

int server_compare_row_ids(const void *left, const void *right) {
    return strcmp(((const struct row *)left)->id, ((const struct row *)right)->id);
}

struct config_load server_last_load(struct service *service) {
    server_lock(&service->lock);
    struct config_load last_load = service->last_load;
    server_unlock(&service->lock);
    return last_load;
}

/* Returns how long after its last renewal a lease is late. A holder asks once in a refresh
 * interval, with some jitter. So after two and a half intervals it has missed two refreshes. A node
 * whose own lease has ended grants no leases, so its holders are not late. */
static doorman_time late_age(const struct service *service, const doorman_server_resource *info) {
    bool grants = service->settings->parents.count == 0 || info->leased;
    return grants ? info->settings->algorithm.refresh_interval / 2 * 5 : DOORMAN_NEVER;
}

/* Makes a row without an id. The caller sets the id. Precondition: the lock is held. */
static struct lease_row lease_row_make(const struct service *service,
                                       const doorman_server_lease *info, doorman_time late_age,
                                       doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    struct lease_row row = {.info = *info};
    const struct suspect *suspect = NULL;
    row.is_late = info->granted_at > 0 && now - info->granted_at > late_age;
    if (info->shared || info->unconfirmed) {
        suspect = server_suspect_find(service, info->holder_id, info->is_server);
    }
    if (suspect) row.suspect = (struct suspect *)malloc(sizeof *row.suspect);
    if (row.suspect) *row.suspect = *suspect;
    return row;
}

void server_lease_row_uninit(struct lease_row *row) {
    free(row->suspect);
    free(row->id);
}

static bool lease_list_reserve(struct lease_list *leases) {
    void *rows = server_reserve(leases->rows, leases->row_count, &leases->row_capacity,
                                sizeof *leases->rows);
    if (rows) leases->rows = (struct lease_row *)rows;
    leases->failed = leases->failed || !rows;
    return rows != NULL;
}

/* Adds a lease. Returns false if there is no memory. */
static bool lease_list_add(struct lease_list *leases, const struct service *service,
                           const doorman_server_lease *info, doorman_time now) {
    char *id = strdup(info->holder_id);
    assert(leases->row_count < leases->row_capacity);
    leases->failed = leases->failed || !id;
    if (id) {
        struct lease_row *row = &leases->rows[leases->row_count++];
        *row = lease_row_make(service, info, leases->late_age, now);
        row->id = id;
    }
    /* cppcheck-suppress memleak ; the row owns the memory */
    return id != NULL;
}

/* Visits the next lease. The cursor moves only past leases that are in the list, or that do not
 * match the filter. Returns whether the iteration continues. Precondition: the lock is held. */
static bool lease_list_step(struct lease_list *leases, struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    doorman_cursor next = leases->cursor;
    doorman_server_lease info;
    bool found = doorman_server_next_lease(service->server, leases->resource_id, &next, &info, now);
    bool matches = found && strstr(info.holder_id, leases->filter);
    leases->has_more = matches && leases->row_count == leases->limit;
    bool visited =
        found && !leases->has_more && (!matches || lease_list_add(leases, service, &info, now));
    if (visited) leases->cursor = next;
    return visited && !server_is_abandoned(leases->abandoned);
}

static void lease_list_find_resource(struct lease_list *leases, struct service *service) {
    doorman_server_resource info;
    leases->now = doorman_clock();
    assert(leases->resource_id && leases->filter && leases->limit > 0);
    leases->found = doorman_server_find(service->server, leases->resource_id, &info, leases->now);
    if (!leases->found) return;
    const char *description = info.settings->description;
    leases->resource = row_make(&info);
    leases->late_age = late_age(service, &info);
    if (description) leases->description = strdup(description);
    if (service->settings->parents.count == 0)
        leases->glob = strdup(info.settings->identifier_glob);
}

void server_lease_list_take(struct lease_list *leases, struct service *service) {
    server_lock(&service->lock);
    lease_list_find_resource(leases, service);
    server_unlock(&service->lock);
    bool more = leases->found;
    while (more && lease_list_reserve(leases)) {
        struct slice slice = server_slice_start(service);
        do {
            more = lease_list_step(leases, service, slice.started_at);
        } while (more && !server_slice_step(&slice));
        server_slice_end(&slice, service);
    }
}

void server_lease_list_uninit(struct lease_list *leases) {
    for (size_t i = 0; i < leases->row_count; i++) server_lease_row_uninit(&leases->rows[i]);
    free(leases->rows);
    free(leases->description);
    free(leases->glob);
}

/* ---- a search ---- */

#define SEARCH_STEPS_PER_ROW 5000 /* a small limit makes a short search */
#define SEARCH_STEPS_MAX ((size_t)500000)

/* The current resource of a search. */
struct search_walk {
    bool inside; /* false: there is no current resource */
    doorman_cursor before, after;
    doorman_cursor lease; /* in the leases of the resource */
    char resource_id[DOORMAN_ID_BYTES_MAX + 1];
    char unit[DOORMAN_UNIT_BYTES_MAX + 1];
    doorman_time late_age; /* of leases of the resource */
};

static bool search_reserve(struct lease_search *search) {
    void *rows = server_reserve(search->rows, search->row_count, &search->row_capacity,
                                sizeof *search->rows);
    if (rows) search->rows = (struct found_lease *)rows;
    search->failed = search->failed || !rows;
    return rows != NULL;
}

/* Moves to the next resource. If the last search stopped at this resource, skips the leases that it
 * has visited. Returns false if there are no more resources. */
static bool search_enter(struct lease_search *search, struct search_walk *walk,
                         struct service *service, doorman_time now) {
    doorman_server_resource info;
    walk->after = walk->before;
    walk->inside = doorman_server_next_resource(service->server, &walk->after, &info, now);
    if (!walk->inside) return false;
    bool same = walk->after.position == search->position.resource;
    walk->lease = (doorman_cursor){.position = same ? search->position.lease : 0};
    snprintf(walk->resource_id, sizeof walk->resource_id, "%s", info.resource_id);
    snprintf(walk->unit, sizeof walk->unit, "%s", info.settings->unit);
    walk->late_age = late_age(service, &info);
    search->position =
        (struct search_position){walk->before.position, walk->after.position, walk->lease.position};
    return true;
}

static void search_leave(struct lease_search *search, struct search_walk *walk) {
    walk->inside = false;
    walk->before = walk->after;
    search->position = (struct search_position){.before = walk->before.position};
}

static bool search_add(struct lease_search *search, const struct search_walk *walk,
                       const struct service *service, const doorman_server_lease *info,
                       doorman_time now) {
    char *resource = strdup(walk->resource_id), *holder = strdup(info->holder_id);
    assert(search->row_count < search->row_capacity);
    if (!resource || !holder) {
        free(resource);
        free(holder);
        search->failed = true;
        return false;
    }
    struct found_lease *row = &search->rows[search->row_count++];
    *row = (struct found_lease){.resource_id = resource,
                                .lease = lease_row_make(service, info, walk->late_age, now)};
    row->lease.id = holder;
    memcpy(row->unit, walk->unit, sizeof row->unit);
    /* cppcheck-suppress memleak ; the row owns the memory */
    return true;
}

/* Visits one resource or one lease. The position moves only past leases that are in the list, or
 * that do not match. Returns whether the search continues. Precondition: the lock is held. */
static bool search_step(struct lease_search *search, struct search_walk *walk,
                        struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    doorman_cursor next = walk->lease;
    doorman_server_lease info;
    if (!walk->inside) return search_enter(search, walk, service, now);
    if (!doorman_server_next_lease(service->server, walk->resource_id, &next, &info, now)) {
        search_leave(search, walk);
        return true;
    }
    bool matches = strncmp(info.holder_id, search->prefix, strlen(search->prefix)) == 0;
    search->has_more = matches && search->row_count == search->limit;
    if (search->has_more || (matches && !search_add(search, walk, service, &info, now)))
        return false;
    walk->lease = next;
    search->position.lease = next.position;
    return !server_is_abandoned(search->abandoned);
}

void server_search_take(struct lease_search *search, struct service *service) {
    struct search_walk walk = {.before = {.position = search->position.before}};
    size_t most = search->limit * SEARCH_STEPS_PER_ROW;
    bool more = true;
    assert(search->prefix && search->limit > 0 && search->limit <= SEARCH_ROWS_MAX);
    if (most > SEARCH_STEPS_MAX) most = SEARCH_STEPS_MAX;
    search->now = doorman_clock();
    while (more && search_reserve(search)) {
        struct slice slice = server_slice_start(service);
        do {
            more = search_step(search, &walk, service, slice.started_at);
            if (++search->step_count == most) search->has_more = search->has_more || more;
        } while (more && search->step_count < most && !server_slice_step(&slice));
        server_slice_end(&slice, service);
        more = more && search->step_count < most;
    }
}

void server_search_uninit(struct lease_search *search) {
    for (size_t i = 0; i < search->row_count; i++) {
        free(search->rows[i].resource_id);
        server_lease_row_uninit(&search->rows[i].lease);
    }
    free(search->rows);
}

/* ---- positions of a search */

/* Reads a position of a search: "BEFORE-RESOURCE-LEASE-PROCESS", in hexadecimal digits. */
bool server_search_read_position(const char *query, const struct service *service,
                                 struct search_position *out) {
    char value[96];
    uint64_t numbers[3] = {0};
    const char *at = value;
    if (!server_query_read(query, "after", value, sizeof value)) return true;
    for (size_t i = 0; i < 3; i++) {
        numbers[i] = server_number_read(at, 16, &at);
        if (*at++ != '-') return false;
    }
    *out = (struct search_position){numbers[0], numbers[1], numbers[2]};
    return server_number_read(at, 16, &at) == (uint64_t)service->started_at && !*at;
}

void server_search_add_position(struct text *text, const struct service *service,
                                const struct search_position *position) {
    server_text_addf(text, "%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64, position->before,
                     position->resource, position->lease, (uint64_t)service->started_at);
}

/* ---- the part ------------------------------------------------------------------------------- */

static void snapshot_stopping(struct service *service) {
    char duration[24], cpu_time[24];
    server_lock(&service->lock);
    struct lock_hold longest = *service->longest_hold;
    server_unlock(&service->lock);
    snprintf(duration, sizeof duration, "%.3f", (double)longest.duration / 1e6);
    snprintf(cpu_time, sizeof cpu_time, "%.3f", (double)longest.cpu_time / 1e6);
    server_log(service->settings, LEVEL_DEBUG, "pages and the history held the lock",
               "longest_hold_ms", duration, "longest_hold_cpu_ms", cpu_time, LOG_END);
}

const struct server_part server_part_snapshot = {SERVER_PART_STATE(longest_hold),
                                                 .stopping = snapshot_stopping};
