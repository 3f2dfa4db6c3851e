/* doorman_server, part ADMIN: other figures for one key, from a beginning to an end (E1).
 *
 *     PUT /v1/overrides       sets a row, and replaces that of the same resource, limit and key
 *     GET /v1/overrides       lists the rows that have not ended, the newest first
 *     DELETE /v1/overrides    ends a row
 *
 * The library decides with the overrides. The store keeps each override as a note, whose identity
 * is the number of the act that has set the override. In the library, the `id` of the row is this
 * number. With --shards all nodes share these notes, and server/admin/cluster.c chooses their
 * numbers.
 *
 * Before an override is written, it is tried: the library sets it with a beginning in the future,
 * and what was there before is set again, without a decision in between. So what is wrong with it
 * is known before anything is written.
 *
 * E6 The role support may help customers, and must not give units without a bound. So it changes
 *    only what its globs name. Its overrides have bounds, and change no window. Its resets and its
 *    changes of plans have a bound for each key and day. */
#include "admin.h"

#include <math.h>
#include <stdarg.h>

#define OVERRIDE_MAX 10 /* times the limit as configured, for the role support */

/* What an act on an override needs. */
struct override_detail {
    doorman_override_message message; /* the row, whose texts it owns after PUT */
    cJSON *query;                     /* owns the texts of the row after DELETE */
    bool ends;                        /* it ends the row, and sets none */
    uint64_t replaced;                /* the row that it replaces or ends; 0: none */
    double added;                     /* units that another row adds to the key; only set for the
                                         role support */
    uint64_t left;                    /* ACT_UNDO: the row that must be there; 0: none must be */
    doorman_time ended_at; /* ACT_UNDO: when the row ended that is not set again; 0: no row did */
};

static void override_detail_free(void *context) {
    struct override_detail *detail = (struct override_detail *)context;
    doorman_override_message_uninit(&detail->message);
    cJSON_Delete(detail->query);
    free(detail);
}

static struct override_detail *override_of(const struct act *act) {
    return (struct override_detail *)act->detail;
}

/* Begins an act on an override. Returns NULL if memory runs out: then the response has failed. */
static struct act *override_new(struct service *service, const struct http_request *request,
                                enum act_kind kind, struct http_response *response) {
    struct act *act = server_act_new(service, request, kind, response);
    if (!act) return NULL;
    act->detail = calloc(1, sizeof(struct override_detail));
    if (act->detail) {
        act->free_detail = override_detail_free;
        override_of(act)->query = cJSON_CreateObject();
    }
    response->text.failed = !act->detail || !override_of(act)->query;
    if (!response->text.failed) return act;
    server_act_free(act);
    return NULL;
}

/* Returns whether this process has the counter of the key of a row. Precondition: the lock is
 * held. */
static bool counts_here(const struct service *service, const doorman_permits *permits,
                        const doorman_override_row *row) {
    assert(server_lock_is_held(&service->lock));
    if (!service->settings->shards) return true;
    return permits && row->resource_id &&
           doorman_permits_owns(permits,
                                doorman_permits_shard_of(permits, row->resource_id, row->key));
}

/* Returns whether an act gives units to a counter. A row that an undo sets again gives none: see
 * override_apply. */
static bool needs_owner(const struct act *act) {
    const struct override_detail *detail = override_of(act);
    return detail->message.row.add > 0 && !detail->ends && act->kind != ACT_UNDO;
}

static doorman_time time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (doorman_time)now.tv_sec * DOORMAN_SECOND + now.tv_nsec;
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* Returns a row as JSON without its id, or NULL if memory runs out. */
static cJSON *row_json(const doorman_override_row *row, const char *reason) {
    doorman_buffer text = {.text = NULL};
    cJSON *json = NULL;
    if (doorman_json_write_override(row, reason, &text) == DOORMAN_OK) {
        json = cJSON_ParseWithLength(text.text, text.bytes);
    }
    doorman_buffer_uninit(&text);
    cJSON_DeleteItemFromObject(json, "id");
    return json;
}

/* Adds what happens at the end of a row, such as "then refused until 2026-12-01T00:00:00Z: 1900 of
 * 1000 used". Adds nothing if the row has a glob or no end, or if another node decides for the key.
 * Preconditions: the lock is held, and this process is master. */
static void add_after(cJSON *json, const struct service *service, const doorman_override_row *row) {
    assert(server_lock_is_held(&service->lock));
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permit_detail after;
    char until[40] = "", text[160];
    if (!row->resource_id || row->ends_at == 0 || !counts_here(service, permits, row) ||
        doorman_permits_after_override(permits, row, &after, NULL, doorman_clock()) != DOORMAN_OK) {
        return;
    }
    const bool is_refused = after.more_after > 0 || after.kind == DOORMAN_CONCURRENCY;
    if (after.remaining < 1 && is_refused) {
        time_t at = (time_t)((row->ends_at + after.more_after) / DOORMAN_SECOND) + 1;
        struct tm parts;
        gmtime_r(&at, &parts);
        strftime(until, sizeof until, "refused until %Y-%m-%dT%H:%M:%SZ: ", &parts);
        if (after.kind == DOORMAN_CONCURRENCY) snprintf(until, sizeof until, "refused: ");
    }
    snprintf(text, sizeof text, "then %s%.15g of %.15g used", until, ceil(after.used * 1e6) / 1e6,
             after.most);
    cJSON_AddStringToObject(json, "then", text);
}

/* ---- what a role may ------------------------------------------------------------------------ */

/* Returns the settings of a limit, or NULL. Precondition: the lock is held. */
static const doorman_permit_limit *limit_find(const doorman_permits *permits, const char *glob,
                                              const char *name) {
    doorman_cursor cursor = {0};
    doorman_permits_limit limit;
    while (doorman_permits_next_limit(permits, &cursor, &limit)) {
        bool same = strcmp(limit.identifier_glob, glob) == 0 && strcmp(limit.limit, name) == 0;
        if (same) return limit.settings;
    }
    return NULL;
}

/* Returns the largest limit / window of the tiers, in units per nanosecond. */
static double tiers_rate(const doorman_figures *figures) {
    double most = 0;
    for (size_t i = 0; i < figures->tier_count; i++) {
        most = fmax(most, figures->tiers[i].limit / (double)figures->tiers[i].window);
    }
    return most;
}

static double tiers_sum(const doorman_figures *figures) {
    double sum = 0;
    for (size_t i = 0; i < figures->tier_count; i++) sum += figures->tiers[i].limit;
    return sum;
}

/* Returns the weight of a key of a fair limit; 1 if the figures have none. */
static double weight_of(const doorman_figures *figures) {
    return figures->weight ? (double)figures->weight : 1;
}

/* Returns the name of the first figure that is more than OVERRIDE_MAX times that of the limit, or
 * NULL. Not in this table: time_to_live, which no row has, and window, which the role support may
 * not change.
 *   all     of the override
 *   added   by another override of the key
 *   most    out: how much it may be */
static const char *figure_beyond(const doorman_permit_limit *limit, const doorman_figures *all,
                                 double added, double *most) {
    const doorman_figures *own = &limit->figures;
    const bool is_bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    const struct {
        const char *name;
        double value, configured;
    } figures[] = {{"set.rate", all->rate, own->rate},
                   {"set.size", all->size + (is_bucket ? added : 0), own->size},
                   {"set.max_debt", (double)all->max_debt / 1e9, (double)own->max_debt / 1e9},
                   {"set.max_wait", (double)all->max_wait / 1e9, (double)own->max_wait / 1e9},
                   {"set.limit", all->limit + (is_bucket ? 0 : added), own->limit},
                   {"set.queue", (double)all->queue, (double)own->queue},
                   {"set.weight", weight_of(all), weight_of(own)},
                   {"set.tiers: the sum of their limits", tiers_sum(all), tiers_sum(own)},
                   {"set.tiers: limit / window", tiers_rate(all) * 1e9, tiers_rate(own) * 1e9}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        *most = OVERRIDE_MAX * figures[i].configured;
        if (figures[i].value > *most * (1 + 1e-9)) return figures[i].name;
    }
    return NULL;
}

/* Writes an error, and returns false.
 *   path_bytes   of the text, as in struct doorman_error; 0: no member of the body is wrong */
static bool refuse_text(struct http_response *response, int code, const char *text,
                        size_t path_bytes) {
    const size_t top = strcspn(text, ".[:"); /* of a path such as set.tiers[0] */
    server_http_response_set_error(response, code,
                                   code == 400   ? "INVALID_ARGUMENT"
                                   : code == 403 ? "PERMISSION_DENIED"
                                   : code == 404 ? "NOT_FOUND"
                                   : code == 429 ? "RESOURCE_EXHAUSTED"
                                                 : "INTERNAL",
                                   text);
    snprintf(response->field, sizeof response->field, "%.*s",
             (int)(top < path_bytes ? top : path_bytes), text);
    return false;
}

/* Writes an error, and returns false.
 *   path   of the member of the body that is wrong, before the text; NULL: there is none */
__attribute__((format(printf, 4, 5))) static bool
refuse(struct http_response *response, int code, const char *path, const char *format, ...) {
    char text[ACT_TEXT];
    const size_t path_bytes = path ? strlen(path) : 0;
    const int used = path ? snprintf(text, sizeof text, "%s: ", path) : 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    return refuse_text(response, code, text, path_bytes);
}

/* Writes an error of the library, and returns false.
 *   otherwise   what it is if the library has no text */
static bool refuse_error(struct http_response *response, int code, const doorman_error *error,
                         const char *otherwise) {
    return refuse_text(response, code, error->text[0] ? error->text : otherwise, error->path_bytes);
}

/* Checks that a row is within the globs of the token. */
static bool check_globs(const struct act *act, const doorman_override_row *row,
                        struct http_response *response) {
    const char *name = row->resource_id ? row->resource_id : row->identifier_glob;
    char globs[TOKEN_GLOBS_BYTES];
    if (!name ||
        server_token_covers(act->service->tokens, &act->token, name, !row->resource_id, globs)) {
        return true;
    }
    return refuse(response, 403, row->resource_id ? "resource" : "glob",
                  "%s: '%s' may only change %s", name, act->token.name,
                  globs[0] ? globs : "nothing any more");
}

/* Returns whether tiers differ from the tiers of their limit in more than `limit`. Other times can
 * grant more, and other windows let counters start fresh. */
static bool has_other_times(const doorman_figures *figures, const doorman_figures *limit) {
    bool differ = figures->tier_count != limit->tier_count;
    for (size_t i = 0; i < figures->tier_count && !differ; i++) {
        const doorman_tier *tier = &figures->tiers[i], *own = &limit->tiers[i];
        differ = tier->window != own->window || tier->active != own->active ||
                 tier->cooldown != own->cooldown || tier->skippable != own->skippable;
    }
    return differ && figures->tier_count > 0;
}

/* Returns whether figures have another window than their limit. A counter whose window changes
 * starts fresh (P15).
 *   figures   0: they take the window of the limit */
static bool has_other_window(const doorman_figures *figures, const doorman_figures *limit) {
    const bool is_given = figures->window > 0 || figures->calendar != DOORMAN_NO_CALENDAR;
    if (has_other_times(figures, limit)) return true;
    return is_given && (figures->window != limit->window || figures->calendar != limit->calendar);
}

/* Checks that a row of the role support, or its end, changes no window. Otherwise this role could
 * reset the counters of a key as often as it likes (E6). Without the row, the key may have the
 * figures of a plan or of an override of the configuration, so all of these must have the window of
 * the limit.
 *   all   the figures of the row */
static bool check_window(const doorman_permit_limit *limit, const doorman_figures *all,
                         struct http_response *response) {
    const doorman_figures *own = &limit->figures;
    bool others_differ = false;
    if (has_other_times(all, own)) {
        return refuse(response, 403, "set.tiers",
                      "the role support may not change the number of tiers, or their "
                      "times, but only their limits; the role admin may");
    }
    if (has_other_window(all, own)) {
        return refuse(response, 403, "set.window",
                      "the role support may not change the window of a limit, because "
                      "the counters of the key would start fresh; the role admin may");
    }
    for (size_t i = 0; i < limit->plan_count; i++) {
        others_differ = others_differ || has_other_window(&limit->plans[i].figures, own);
    }
    for (size_t i = 0; i < limit->override_count; i++) {
        others_differ = others_differ || has_other_window(&limit->overrides[i].figures, own);
    }
    return !others_differ ||
           refuse(response, 403, "limit",
                  "'%s' has plans or overrides with other windows, so the counters of a key "
                  "could start fresh; only the role admin may give its keys other figures",
                  limit->name);
}

/* Returns whether a limit has a plan.
 *   out   its figures */
static bool limit_find_plan(const doorman_permit_limit *limit, const char *plan,
                            const doorman_figures **out) {
    for (size_t i = 0; i < limit->plan_count; i++) {
        if (strcmp(limit->plans[i].name, plan) != 0) continue;
        *out = &limit->plans[i].figures;
        return true;
    }
    return false;
}

/* Returns the size or the limit that a row gives its key. 0: there is no such row, or it is idle.
 * Precondition: the lock is held. */
static double figure_of(const doorman_permits *permits, const doorman_permit_limit *limit,
                        const doorman_override_row *name) {
    doorman_override_info info;
    if (!doorman_permits_find_override(permits, name, &info) || info.idle) return 0;
    return limit->kind == DOORMAN_TOKEN_BUCKET ? info.all.size : info.all.limit;
}

/* Does the same for the row of `glob` with the limit and the key of `row`. */
static double figure_of_glob(const doorman_permits *permits, const doorman_permit_limit *limit,
                             const char *glob, const doorman_override_row *row) {
    const doorman_override_row name = {
        .identifier_glob = glob, .limit = row->limit, .key = row->key};
    return figure_of(permits, limit, &name);
}

/* Writes the id of a resource that matches a glob. Returns false if the glob has a class or a
 * backslash, or is too long. */
static bool glob_example(const char *glob, char id[DOORMAN_ID_BYTES_MAX + 1]) {
    size_t bytes = 0;
    if (strpbrk(glob, "[\\") || strlen(glob) > DOORMAN_ID_BYTES_MAX) return false;
    for (; *glob; glob++) id[bytes++] = strchr("*?", *glob) ? 'x' : *glob;
    id[bytes] = 0;
    return true;
}

/* Returns the size or the limit that the plan of a key has, also if the plan begins later or ends
 * soon. 0: the key has no plan of this limit. Precondition: the lock is held. */
static double figure_of_plan(const doorman_permits *permits, const doorman_permit_limit *limit,
                             const char *glob, const char *key) {
    const doorman_plan_row name = {.identifier_glob = glob, .key = key};
    const doorman_figures *figures = NULL;
    doorman_plan_info plan;
    if (!doorman_permits_find_plan(permits, &name, &plan) ||
        !limit_find_plan(limit, plan.row.plan, &figures)) {
        return 0;
    }
    return limit->kind == DOORMAN_TOKEN_BUCKET ? figures->size : figures->limit;
}

/* Returns the largest size or limit that a key has without a row, now or later. It may come from a
 * plan, from the row of a glob, or from an override of the configuration. Precondition: the lock is
 * held, and the row is set.
 *   added   units that another row adds to the key */
static double figure_without(doorman_permits *permits, const doorman_permit_limit *limit,
                             const doorman_override_info *info, const doorman_override_row *row,
                             double added) {
    const double by_plan = figure_of_plan(permits, limit, info->glob, row->key);
    const double configured =
        limit->kind == DOORMAN_TOKEN_BUCKET ? limit->figures.size : limit->figures.limit;
    doorman_override_row name = *row;
    char example[DOORMAN_ID_BYTES_MAX + 1];
    doorman_permit_detail after;
    if (!name.resource_id && glob_example(info->glob, example)) name.resource_id = example;
    if (doorman_permits_after_override(permits, &name, &after, NULL, doorman_clock()) !=
        DOORMAN_OK) {
        return fmax(by_plan, configured);
    }
    if (added > 0) after.most = fmax(configured, after.most - added);
    const double most = fmax(by_plan, after.most);
    return row->resource_id ? fmax(most, figure_of_glob(permits, limit, info->glob, row)) : most;
}

/* Returns the size or the limit that a key has without the units that a row adds. It comes from
 * another row, from the plan of the key, or from an override of the configuration. 0: there is no
 * other row, and neither the plan nor the override gives more than the limit. Precondition: the
 * lock is held, and the row is set. */
static double figure_beside(doorman_permits *permits, const doorman_permit_limit *limit,
                            const doorman_override_info *info, const doorman_override_row *row) {
    const doorman_override_row name = {
        .resource_id = row->resource_id, .limit = row->limit, .key = row->key};
    const double configured =
        limit->kind == DOORMAN_TOKEN_BUCKET ? limit->figures.size : limit->figures.limit;
    const double without = figure_without(permits, limit, info, row, 0);
    return fmax(figure_of(permits, limit, &name), without > configured ? without : 0);
}

/* Checks that a row of the role support makes no bucket smaller (E6). A small bucket is soon full,
 * and the counter of a full bucket is removed (P14). So at the end of the row the key would have a
 * full bucket of the usual size. */
static bool check_size(const struct act *act, doorman_permits *permits,
                       const doorman_permit_limit *limit, const doorman_override_info *info,
                       struct http_response *response) {
    const doorman_override_row *row = &override_of(act)->message.row;
    if (limit->kind != DOORMAN_TOKEN_BUCKET || row->add > 0) return true;
    const double own = figure_without(permits, limit, info, row, override_of(act)->added);
    return info->all.size >= own ||
           refuse(response, 403, "set.size",
                  "the role support may not make a bucket smaller than it is without the "
                  "override, which is %.15g here, because it would be full at the end; the role "
                  "admin may",
                  own);
}

/* Checks the figures of a row of the role support. Precondition: the lock is held, and the row is
 * set.
 *   info   of the row */
static bool check_bound(const struct act *act, doorman_permits *permits,
                        const doorman_override_info *info, struct http_response *response) {
    assert(server_lock_is_held(&act->service->lock));
    const doorman_override_row *row = &override_of(act)->message.row;
    const doorman_permit_limit *limit = limit_find(permits, info->glob, row->limit);
    double most = 0, beside = override_of(act)->added;
    if (act->token.role == ROLE_ADMIN || !limit) return true;
    if (!check_window(limit, &info->all, response)) return false;
    const char *beyond = figure_beyond(limit, &info->all, beside, &most);
    if (row->add > 0) {
        bool is_bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
        most = OVERRIDE_MAX * (is_bucket ? limit->figures.size : limit->figures.limit);
        beside = figure_beside(permits, limit, info, row);
        beyond = row->add + beside > most * (1 + 1e-9) ? "add" : NULL;
    }
    if (!beyond) return check_size(act, permits, limit, info, response);
    if (beside > 0) {
        return refuse(response, 403, beyond,
                      "the role support may give at most %d times the limit as configured, "
                      "which is %.15g here, and another override or the plan of the key gives "
                      "%.15g of it; the role admin may give more",
                      OVERRIDE_MAX, most, beside);
    }
    return refuse(response, 403, beyond,
                  "the role support may give at most %d times the limit as configured, which is "
                  "%.15g here; the role admin may give more",
                  OVERRIDE_MAX, most);
}

/* Returns the most units that another override adds to the key of a row, at the resources that the
 * row concerns. Precondition: the lock is not held. */
static double units_added(struct service *service, const doorman_override_row *row) {
    const doorman_override_row name = {
        .resource_id = row->resource_id, .limit = row->limit, .key = row->key, .add = 1};
    const char *key = row->key ? row->key : "";
    doorman_override_cursor cursor = {.id = 0};
    doorman_override_info info;
    double most = 0;
    for (bool more = true; more;) {
        server_lock(&service->lock);
        const doorman_permits *permits = doorman_server_permits(service->server);
        more = permits && !row->resource_id;
        if (permits && row->resource_id && doorman_permits_find_override(permits, &name, &info)) {
            most = info.row.add;
        }
        for (int i = 0; more && i < ROWS_AT_ONCE; i++) {
            more = doorman_permits_next_override(permits, &cursor, &info);
            const bool is_meant = more && info.row.add > 0 && info.glob &&
                                  strcmp(info.glob, row->identifier_glob) == 0 &&
                                  strcmp(info.row.limit, row->limit) == 0 &&
                                  strcmp(info.key, key) == 0;
            if (is_meant) most = fmax(most, info.row.add);
        }
        server_unlock(&service->lock);
    }
    return most;
}

/* ---- PUT ------------------------------------------------------------------------------------ */

/* The row that a name has before an act. */
struct before {
    bool is_there;
    doorman_override_row row;
    doorman_tier tiers[8];
};

/* Copies the row that has the name, unless it has ended. Precondition: the lock is held. */
static void before_take(struct before *out, const doorman_permits *permits,
                        const doorman_override_row *name) {
    doorman_override_info info;
    out->is_there = doorman_permits_find_override(permits, name, &info) &&
                    (info.row.ends_at == 0 || info.row.ends_at > time_now());
    if (!out->is_there) return;
    out->row = info.row;
    out->row.resource_id = name->resource_id;
    out->row.identifier_glob = name->identifier_glob;
    out->row.limit = name->limit;
    out->row.key = name->key;
    assert(info.row.figures.tier_count <= sizeof out->tiers / sizeof *out->tiers);
    for (size_t i = 0; i < info.row.figures.tier_count; i++) {
        out->tiers[i] = info.row.figures.tiers[i];
    }
    if (info.row.figures.tier_count > 0) out->row.figures.tiers = out->tiers;
}

/* Sets the row of an act, and takes it back at once. Returns false if the row cannot be set, or if
 * the role may not set it: then the response is an error. Precondition: the lock is held. */
static bool override_try(struct act *act, doorman_permits *permits, const struct before *before,
                         struct http_response *response) {
    assert(server_lock_is_held(&act->service->lock));
    doorman_override_row row = override_of(act)->message.row;
    doorman_override_info info;
    doorman_error error = {0};
    doorman_time now = doorman_clock(), last = row.ends_at ? row.ends_at : row.starts_at + 1;
    const doorman_time soon = time_now() + 60 * DOORMAN_SECOND;
    if (row.ends_at == 0 && last < soon) last = soon;
    if (last - 1 > row.starts_at) row.starts_at = last - 1;
    row.id = UINT64_MAX;
    doorman_status status = doorman_permits_set_override(permits, &row, &error, now);
    if (status != DOORMAN_OK) {
        return refuse_error(response,
                            status == DOORMAN_NOT_FOUND            ? 404
                            : status == DOORMAN_RESOURCE_EXHAUSTED ? 429
                            : status == DOORMAN_OUT_OF_MEMORY      ? 500
                                                                   : 400,
                            &error, server_status_text(status));
    }
    bool is_within = !doorman_permits_find_override(permits, &row, &info) || !info.glob ||
                     check_bound(act, permits, &info, response);
    (void)doorman_permits_end_override(permits, &row, NULL, now);
    if (before->is_there) {
        (void)doorman_permits_restore_override(permits, &before->row, NULL, now);
    }
    return is_within;
}

/* Checks that the role support may end the row of an act. Precondition: the lock is held. */
static bool override_try_end(const struct act *act, const doorman_permits *permits,
                             struct http_response *response) {
    assert(server_lock_is_held(&act->service->lock));
    const doorman_override_row *row = &override_of(act)->message.row;
    doorman_override_info info;
    if (act->token.role == ROLE_ADMIN || row->add > 0) return true;
    if (!doorman_permits_find_override(permits, row, &info) || !info.glob) return true;
    const doorman_permit_limit *limit = limit_find(permits, info.glob, row->limit);
    return !limit || check_window(limit, &info.all, response);
}

/* Puts an act into force. A row that an undo sets again adds nothing to a bucket, because it has
 * added its units before. */
static void override_apply(struct act *act) {
    struct override_detail *detail = override_of(act);
    doorman_permits *permits = doorman_server_permits(act->service->server);
    doorman_override_row *row = &detail->message.row;
    doorman_error error = {0};
    doorman_status status = DOORMAN_OK;
    if (!permits) return; /* the next master reads it */
    if (detail->ends) {
        (void)doorman_permits_end_override(permits, row, NULL, doorman_clock());
    } else {
        row->id = server_act_note_id(act);
        status = act->kind == ACT_UNDO
                     ? doorman_permits_restore_override(permits, row, &error, doorman_clock())
                     : doorman_permits_set_override(permits, row, &error, doorman_clock());
    }
    if (status == DOORMAN_OK) return;
    server_act_refuse(act, 500, "INTERNAL", "it is in the store, and is not in force: %s",
                      error.text[0] ? error.text : server_status_text(status));
}

/* Returns the text of the note of an act, or NULL if memory runs out. */
static char *override_text(const struct act *act) {
    const doorman_override_message *message = &override_of(act)->message;
    cJSON *note = cJSON_CreateObject();
    cJSON_AddNumberToObject(note, "id", (double)server_act_note_id(act));
    if (act->row_id) {
        cJSON_AddNumberToObject(note, "audit", (double)act->id);
        cJSON_AddStringToObject(note, "node", act->service->node);
    }
    cJSON_AddStringToObject(note, "token", act->token.name);
    server_act_add_time(note, "at", time(NULL));
    cJSON_AddItemToObject(note, "override", row_json(&message->row, message->reason));
    char *text = cJSON_PrintUnformatted(note);
    cJSON_Delete(note);
    return text;
}

/* Adds the note of the override that an act sets, and deletes the one that it replaces or ends. */
static bool override_add_notes(struct act *act) {
    const struct override_detail *detail = override_of(act);
    const doorman_time end = detail->message.row.ends_at;
    struct act_note made = {.kind = OVERRIDE_NOTE,
                            .id = server_act_note_id(act),
                            .ends_at = end ? end / DOORMAN_SECOND + 1 : 0}; /* not too early */
    const struct act_note deleted = {.kind = OVERRIDE_NOTE, .id = detail->replaced};
    if (!detail->ends) {
        made.text = override_text(act);
        if (!made.text || !server_act_add_note(act, &made)) return false;
    }
    return detail->replaced == 0 || server_act_add_note(act, &deleted);
}

/* Reads the body, and checks what the library does not check. */
static bool override_read(struct act *act, const struct http_request *request,
                          struct http_response *response) {
    doorman_override_message *message = &override_of(act)->message;
    doorman_error error = {0};
    if (doorman_json_read_override(message, request->body, request->body_bytes, &error) !=
        DOORMAN_OK) {
        return refuse_error(response, 400, &error, "is too large");
    }
    const doorman_time now = time_now();
    if (message->row.starts_at == 0) message->row.starts_at = now; /* the same after a restart */
    if (message->expires_in > 0) message->row.ends_at = now + message->expires_in;
    if (!message->reason) return refuse(response, 400, "reason", "is missing");
    const char *wrong = server_reason_check(message->reason);
    if (wrong) return refuse_text(response, 400, wrong, strlen("reason"));
    if (act->token.role != ROLE_ADMIN && message->row.ends_at == 0) {
        return refuse(response, 400, "expires_in", "the role support must give it");
    }
    if (message->row.add > 0 && message->row.ends_at == 0) {
        return refuse(response, 400, "expires_in", "is missing beside add");
    }
    return check_globs(act, &message->row, response);
}

static void row_set(cJSON *row, const char *name, cJSON *value) {
    cJSON_DeleteItemFromObject(row, name);
    cJSON_AddItemToObject(row, name, value);
}

/* Looks up the row that an act replaces or ends, and describes it.
 *   store   as of server_undo_refuse */
static bool override_look(struct act *act, struct store *store) {
    struct override_detail *detail = override_of(act);
    const doorman_override_row *row = &detail->message.row;
    struct before before = {.is_there = false};
    server_lock(&act->service->lock);
    doorman_permits *permits = doorman_server_permits(act->service->server);
    const bool is_here = !needs_owner(act) || counts_here(act->service, permits, row);
    if (permits) before_take(&before, permits, row);
    server_unlock(&act->service->lock);
    if (!is_here) {
        return server_act_refuse(act, 409, "UNAVAILABLE",
                                 "nothing was changed: the shard of the key moves; try again");
    }
    if (act->kind == ACT_OVERRIDE_END && !before.is_there) {
        return server_act_refuse(act, 404, "NOT_FOUND", "there is no such override");
    }
    if (act->kind == ACT_UNDO && detail->left != (before.is_there ? before.row.id : 0)) {
        return server_undo_refuse(act, store, act->row);
    }
    row_set(act->row, "before", before.is_there ? row_json(&before.row, NULL) : cJSON_CreateNull());
    row_set(act->row, "after", detail->ends ? cJSON_CreateNull() : row_json(row, NULL));
    detail->replaced = before.is_there ? before.row.id : 0;
    return true;
}

static bool override_look_again(struct act *act) { return override_look(act, NULL); }

/* Adds to the row of an act what the act is about, and the value before the act. Runs on the thread
 * of the store, so that without --shards no other act comes between this call and the write. */
static bool override_prepare(struct act *act, struct store *store) {
    const struct override_detail *detail = override_of(act);
    const doorman_override_row *row = &detail->message.row;
    const char *name = row->resource_id ? row->resource_id : row->identifier_glob;
    const char *reason = detail->message.reason;
    if (act->kind != ACT_UNDO && reason) cJSON_AddStringToObject(act->row, "reason", reason);
    cJSON_AddStringToObject(act->row, row->resource_id ? "resource" : "glob", name);
    cJSON_AddStringToObject(act->row, "limit", row->limit);
    cJSON_AddStringToObject(act->row, "key", row->key ? row->key : "");
    const bool fills = (row->add > 0 || row->figures.size > 0) && !detail->ends;
    if (!override_look(act, store)) return false;
    return !fills || act->token.role == ROLE_ADMIN || server_reset_check_count(act, act->row, 0);
}

/* Adds what a row hides: the row of its glob, and the plan of its key. Precondition: the lock is
 * held. */
static void add_hidden(cJSON *json, const doorman_permits *permits,
                       const doorman_override_row *row) {
    doorman_override_info info, other;
    doorman_plan_info plan;
    if (row->add > 0 || !doorman_permits_find_override(permits, row, &info) || !info.glob) return;
    const doorman_override_row glob_row = {
        .identifier_glob = info.glob, .limit = row->limit, .key = row->key};
    const doorman_plan_row plan_row = {.identifier_glob = info.glob, .key = row->key};
    cJSON *hides = cJSON_CreateObject();
    if (row->resource_id && doorman_permits_find_override(permits, &glob_row, &other)) {
        cJSON_AddNumberToObject(hides, "override", (double)other.row.id);
    }
    const doorman_permit_limit *limit = limit_find(permits, info.glob, row->limit);
    const doorman_figures *figures = NULL;
    if (limit && doorman_permits_find_plan(permits, &plan_row, &plan) &&
        limit_find_plan(limit, plan.row.plan, &figures)) {
        cJSON_AddStringToObject(hides, "plan", plan.row.plan);
    }
    if (hides && hides->child && cJSON_AddItemToObject(json, "hides", hides)) return;
    cJSON_Delete(hides);
}

static void override_answer(struct act *act, struct http_response *response) {
    struct service *service = act->service;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "id", (double)act->id);
    server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    if (permits && !override_of(act)->ends) {
        add_after(json, service, &override_of(act)->message.row);
        add_hidden(json, permits, &override_of(act)->message.row);
    }
    server_unlock(&service->lock);
    if (override_of(act)->ended_at) {
        server_act_add_time(json, "had_ended",
                            (time_t)(override_of(act)->ended_at / DOORMAN_SECOND));
    }
    char *text = cJSON_PrintUnformatted(json);
    response->type = "application/json";
    response->text.failed = !text;
    if (text) server_admin_add_line(&response->text, text);
    cJSON_free(text);
    cJSON_Delete(json);
}

/* Checks that this node decides for the key of an act that gives units to a counter. */
static bool check_owner(const struct act *act, struct http_response *response) {
    struct service *service = act->service;
    const doorman_override_row *row = &override_of(act)->message.row;
    char owner[OWNER_TEXT], error[OWNER_TEXT + 64];
    if (!needs_owner(act) || !service->forwards) return true;
    doorman_permit_entry entry = {.resource_id = row->resource_id, .key = row->key};
    const doorman_request request = {
        .method = DOORMAN_RESET, .entries = &entry, .entry_count = row->resource_id ? 1 : 0};
    server_lock(&service->lock);
    const size_t index = service->forwards->find_owner(service, &request, owner);
    server_unlock(&service->lock);
    if (index == SIZE_MAX) return true;
    snprintf(error, sizeof error, "nothing was changed: key: add: %s", owner);
    server_http_response_set_error(response, 409, "UNAVAILABLE", error);
    return false;
}

/* Does an act whose row was read, and answers. It frees the act.
 *   is_valid   false: the response is an error already */
static void override_run(struct act *act, bool is_valid, struct http_response *response) {
    struct override_detail *detail = override_of(act);
    struct service *service = act->service;
    is_valid = is_valid && check_owner(act, response);
    if (is_valid) {
        struct before before = {.is_there = false};
        const bool is_set = !detail->ends && !(detail->message.row.add > 0);
        if (act->token.role != ROLE_ADMIN && is_set) {
            detail->added = units_added(service, &detail->message.row);
        }
        server_lock(&service->lock);
        doorman_permits *permits = doorman_server_permits(service->server);
        if (permits && detail->ends) is_valid = override_try_end(act, permits, response);
        if (permits && !detail->ends) {
            before_take(&before, permits, &detail->message.row);
            is_valid = override_try(act, permits, &before, response);
        }
        server_unlock(&service->lock);
    }
    act->prepare = override_prepare;
    act->apply = override_apply;
    act->add_notes = override_add_notes;
    act->look_again = override_look_again;
    if (is_valid && !server_act_run_rows(act, response)) return; /* it has freed the act */
    if (is_valid) override_answer(act, response);
    server_act_free(act);
}

void server_override_set(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct act *act = override_new(service, request, ACT_OVERRIDE, response);
    if (act) override_run(act, override_read(act, request, response), response);
}

/* ---- DELETE --------------------------------------------------------------------------------- */

/* Reads a text of the query. Returns a copy that the act owns, or NULL if there is none. */
static const char *query_text(cJSON *owner, const struct http_request *request, const char *name) {
    char value[DOORMAN_ID_BYTES_MAX + 2];
    if (!server_query_read(request->query, name, value, sizeof value)) return NULL;
    return cJSON_GetStringValue(cJSON_AddStringToObject(owner, name, value));
}

/* Reads the name of a row from the query. */
static bool end_read(struct act *act, const struct http_request *request,
                     struct http_response *response) {
    static const char *const names[] = {"resource", "glob",   "limit",    "key",
                                        "add",      "reason", "redirect", NULL};
    cJSON *owner = override_of(act)->query;
    doorman_override_row *row = &override_of(act)->message.row;
    if (!server_http_check_query(request->query, names, response)) return false;
    row->resource_id = query_text(owner, request, "resource");
    row->identifier_glob = query_text(owner, request, "glob");
    row->limit = query_text(owner, request, "limit");
    row->key = query_text(owner, request, "key");
    row->add = server_query_is_set(request->query, "add") ? 1 : 0;
    if (!row->limit || !row->resource_id == !row->identifier_glob) {
        return refuse(response, 400, NULL,
                      "an override has a limit, a key, and either a resource or a glob");
    }
    return server_act_add_reason(act->row, request, response) && check_globs(act, row, response);
}

static void handle_delete(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct act *act = override_new(service, request, ACT_OVERRIDE_END, response);
    if (!act) return;
    override_of(act)->ends = true;
    override_run(act, end_read(act, request, response), response);
}

/* ---- undo ----------------------------------------------------------------------------------- */

/* Copies a text of a row of the audit. Returns NULL if there is none. */
static const char *undo_text(cJSON *owner, const cJSON *row, const char *name) {
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
    return value ? cJSON_GetStringValue(cJSON_AddStringToObject(owner, name, value)) : NULL;
}

/* Reads the row that was there before an act, or only its name if the row does not come back. */
static bool undo_read(struct act *act, const struct undo *undo, struct http_response *response) {
    struct override_detail *detail = override_of(act);
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(undo->row, "before");
    const cJSON *after = cJSON_GetObjectItemCaseSensitive(undo->row, "after");
    doorman_override_message *message = &detail->message;
    detail->left = cJSON_IsObject(after) ? server_undo_note_id(undo) : 0;
    if (cJSON_IsObject(before)) {
        char *text = cJSON_PrintUnformatted(before);
        bool is_valid =
            text && doorman_json_read_override(message, text, strlen(text), NULL) == DOORMAN_OK;
        cJSON_free(text);
        if (!is_valid) return refuse(response, 500, NULL, "the row of the act cannot be read");
        if (message->row.ends_at == 0 || message->row.ends_at > time_now()) {
            message->reason = cJSON_GetStringValue(cJSON_GetObjectItem(act->row, "reason"));
            return true;
        }
        detail->ended_at = message->row.ends_at;
        doorman_override_message_uninit(message);
    }
    detail->ends = true;
    message->row.resource_id = undo_text(detail->query, undo->row, "resource");
    message->row.identifier_glob = undo_text(detail->query, undo->row, "glob");
    message->row.limit = undo_text(detail->query, undo->row, "limit");
    message->row.key = undo_text(detail->query, undo->row, "key");
    message->row.add = cJSON_HasObjectItem(after, "add") ? 1 : 0;
    return message->row.limit || refuse(response, 500, NULL, "the row of the act cannot be read");
}

void server_override_undo(struct service *service, const struct http_request *request,
                          const struct undo *undo, struct http_response *response) {
    struct act *act = override_new(service, request, ACT_UNDO, response);
    if (!act) return;
    const doorman_override_row *row = &override_of(act)->message.row;
    bool is_valid = server_undo_begin(act, undo, request, response) &&
                    undo_read(act, undo, response) && check_globs(act, row, response);
    if (is_valid && !override_of(act)->ends && row->ends_at == 0 && act->token.role != ROLE_ADMIN) {
        is_valid = refuse(response, 403, NULL,
                          "the row that was there before has no end, so only the role admin can "
                          "set it again");
    }
    override_run(act, is_valid, response);
}

/* ---- GET ------------------------------------------------------------------------------------ */

/* Adds whether a row is in force, what happens at its end, and what it hides. Returns false if the
 * row is not there any more. */
static bool page_add_state(struct service *service, cJSON *json, const doorman_override_row *row) {
    doorman_override_info info;
    server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    bool is_there =
        permits && doorman_permits_find_override(permits, row, &info) && info.row.id == row->id;
    if (is_there) {
        cJSON_AddBoolToObject(json, "in_force", info.in_force);
        if (info.idle) cJSON_AddBoolToObject(json, "idle", true);
        add_after(json, service, row);
        add_hidden(json, permits, row);
    }
    server_unlock(&service->lock);
    return is_there;
}

/* Returns whether a row may concern the resource of a list: the row names it, or the id of the
 * resource begins with the text before the first special character of the glob. */
static bool page_has_resource(const struct note_page *page, const doorman_override_row *row) {
    if (!page->has_resource) return true;
    if (row->resource_id) return strcmp(row->resource_id, page->resource) == 0;
    return strncmp(row->identifier_glob, page->resource, strcspn(row->identifier_glob, "*?[\\")) ==
           0;
}

cJSON *server_override_find(const struct note_page *page, const struct store_note *note) {
    doorman_override_message message = {.expires_in = 0};
    bool has_ended = note->ends_at > 0 && note->ends_at <= (int64_t)time(NULL);
    bool shows = !has_ended && server_override_read(note, &message);
    const char *key = message.row.key ? message.row.key : "";
    shows = shows && (!page->has_key || strcmp(key, page->key) == 0);
    shows = shows && page_has_resource(page, &message.row);
    cJSON *json = shows ? cJSON_Parse(note->text) : NULL;
    shows = shows && page_add_state(page->service, json, &message.row);
    doorman_override_message_uninit(&message);
    if (shows) return json;
    cJSON_Delete(json);
    return NULL;
}

static bool override_add(struct note_page *page, const struct store_note *note) {
    cJSON *json = server_override_find(page, note);
    char *text = json ? cJSON_PrintUnformatted(json) : NULL;
    page->text.failed = page->text.failed || (json && !text);
    if (text) server_admin_add_line(&page->text, text);
    const bool is_added = text != NULL;
    cJSON_free(text);
    cJSON_Delete(json);
    return is_added;
}

static void handle_list(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    static const char *const names[] = {"key", "ending", "after", "limit", "redirect", NULL};
    const struct note_list list = {.kind = OVERRIDE_NOTE, .names = names, .add = override_add};
    server_admin_list(service, request, response, &list);
}

static void handle_overrides(struct service *service, const struct http_request *request,
                             struct http_response *response) {
    if (!server_admin_serves(service, request, response)) return;
    if (strcmp(request->verb, "PUT") == 0) {
        server_override_set(service, request, response);
    } else if (strcmp(request->verb, "DELETE") == 0) {
        handle_delete(service, request, response);
    } else {
        handle_list(service, request, response);
    }
}

static const struct http_route override_routes[] = {
    {"/v1/overrides", .administers = true, .verbs = VERB_GET | VERB_PUT | VERB_DELETE,
     .role = ROLE_SUPPORT, .handle = handle_overrides},
    {.path = NULL}};

const struct server_part server_part_override = {.routes = override_routes};
