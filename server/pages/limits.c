/* doorman_server, part HTTP: the limits of permits, as pages, as JSON and as metrics. This file
 * takes the lock of the service. It changes no count, but an inspection moves the clock of the
 * server object.
 *
 *     /limits                          all limits, and what they have decided
 *     /limits?template=GLOB&limit=NAME one limit, and its most frequent keys
 *     /keys?resource=ID&key=KEY        what the limits have counted for one key. The page can reset
 *                                      the key and end its ban, with the method reset of the
 *                                      protocol. That method checks the role, and logs the change
 *     /v1/limits                       the first two as JSON
 *
 * A copy of the state is made while the lock is held. The text is written later, without the lock.
 * Only the few lines about one key are written while the lock is held. */
#include "pages.h"

#include <nng/supplemental/util/platform.h>

#define LIMITS_MAX 10000  /* limits of a list */
#define LIMITS_SERIES 500 /* limits that have metrics of their own; the others are added up */
#define SLICE_LIMITS 256  /* limits that are copied while the lock is held */
#define LIMITS_DRAWN 500  /* limits whose history the list draws, in about 1 kB each */
#define TOPS_SHOWN 20

struct limit_row {
    char *glob, *name;
    char definition[192];
    doorman_permits_limit info; /* its pointers are not valid */
    size_t keys_max;            /* 0: the list of limits is empty */
    bool is_fair;
};

struct limit_list {
    bool is_master;
    doorman_permits_info info;
    struct limit_row *rows;
    size_t row_count, row_capacity;
    bool has_more; /* there are LIMITS_MAX rows, and perhaps more limits */
    bool failed;   /* out of memory */
};

/* ---- copies of the state ---- */

/* Writes the part of the text that all limits of kind CONCURRENCY have. Returns how many bytes it
 * has written. */
static int limit_define_holds(const doorman_figures *figures, char *out, size_t room) {
    int used =
        snprintf(out, room, "held at once, each for %.10g s", (double)figures->time_to_live / 1e9);
    if (!figures->queue) return used;
    return used + snprintf(out + used, room - (size_t)used, ", %zu may wait", figures->queue);
}

/* Writes a limit as text, such as "each key: 10 a second, up to 50 saved".
 *   limit   NULL: the list of limits is empty */
static void limit_define(const doorman_permit_limit *limit, char *out, size_t room) {
    static const char *const scopes[] = {[DOORMAN_PER_KEY] = "each key",
                                         [DOORMAN_PER_RESOURCE] = "each resource",
                                         [DOORMAN_PER_TEMPLATE] = "all resources together"};
    static const char *const calendars[DOORMAN_CALENDAR_COUNT] = {"",    "minute", "hour",
                                                                  "day", "week",   "month"};
    if (!limit) {
        snprintf(out, room, "no limits: everything is granted, and counted");
        return;
    }
    const doorman_figures *figures = &limit->figures;
    double window = (double)figures->window / 1e9, debt = (double)figures->max_debt / 1e9;
    int used = snprintf(out, room, "%s: ", scopes[limit->per]);
    char *text = out + used;
    room -= (size_t)used;
    if (limit->leased) {
        used = snprintf(text, room, "leased%s%.60s", limit->lease_of ? " of " : "",
                        limit->lease_of ? limit->lease_of : "");
        if (limit->kind == DOORMAN_CONCURRENCY) {
            used += snprintf(text + used, room - (size_t)used, ", ");
            used += limit_define_holds(figures, text + used, room - (size_t)used);
        }
    } else if (limit->kind == DOORMAN_TIERS) {
        used = snprintf(text, room, "%zu tier%s", figures->tier_count,
                        figures->tier_count == 1 ? "" : "s");
    } else if (limit->kind == DOORMAN_SLIDING_WINDOW) {
        used = snprintf(text, room, "%.10g in any %.10g s", figures->limit, window);
    } else if (limit->kind == DOORMAN_FIXED_WINDOW && figures->calendar) {
        used = snprintf(text, room, "%.10g each %s", figures->limit, calendars[figures->calendar]);
    } else if (limit->kind == DOORMAN_FIXED_WINDOW) {
        used = snprintf(text, room, "%.10g each %.10g s", figures->limit, window);
    } else if (limit->kind == DOORMAN_CONCURRENCY) {
        used = snprintf(text, room, "%.10g ", figures->limit);
        used += limit_define_holds(figures, text + used, room - (size_t)used);
    } else {
        used =
            snprintf(text, room, "%.10g a second, up to %.10g saved", figures->rate, figures->size);
        if (debt > 0) used += snprintf(text + used, room - (size_t)used, ", %.10g s lent", debt);
        if (limit->fair) used += snprintf(text + used, room - (size_t)used, ", shared by keys");
    }
    snprintf(text + used, room - (size_t)used, "%s%s%s%s", limit->key_count ? ", some keys" : "",
             limit->override_count ? ", with overrides" : "",
             limit->plan_count ? ", with plans" : "", limit->shadow ? ", in shadow" : "");
}

static bool limit_list_add(struct limit_list *list, const doorman_permits_limit *info) {
    struct limit_row row = {.info = *info};
    assert(list->row_count < list->row_capacity);
    row.glob = strdup(info->identifier_glob);
    row.name = strdup(info->limit);
    if (info->settings) row.keys_max = info->settings->max_keys;
    row.is_fair = info->settings && info->settings->fair;
    limit_define(info->settings, row.definition, sizeof row.definition);
    if (!row.glob || !row.name) {
        free(row.glob);
        free(row.name);
        list->failed = true;
        return false;
    }
    list->rows[list->row_count++] = row;
    return true;
}

static bool limit_list_reserve(struct limit_list *list) {
    void *rows =
        server_reserve(list->rows, list->row_count, &list->row_capacity, sizeof *list->rows);
    if (rows) list->rows = (struct limit_row *)rows;
    list->failed = list->failed || !rows;
    return rows != NULL;
}

/* Copies some limits. Returns whether there are more. */
static bool limit_list_step(struct limit_list *list, struct service *service,
                            doorman_cursor *cursor) {
    doorman_permits_limit info;
    bool more = true;
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    list->is_master = permits != NULL;
    if (permits) doorman_permits_read(permits, &list->info);
    for (size_t i = 0; more && i < SLICE_LIMITS; i++) {
        more = permits && list->row_count < LIMITS_MAX &&
               doorman_permits_next_limit(permits, cursor, &info) && limit_list_add(list, &info);
    }
    list->has_more = permits && list->row_count == LIMITS_MAX;
    server_unlock(&service->lock);
    return more;
}

/* Copies the first LIMITS_MAX limits. If the configuration changes meanwhile, the list can have
 * limits of the earlier and of the later one. */
static struct limit_list limit_list_take(struct service *service, const bool *abandoned) {
    struct limit_list list = {.rows = NULL};
    doorman_cursor cursor = {0};
    while (limit_list_reserve(&list) && limit_list_step(&list, service, &cursor) &&
           !server_is_abandoned(abandoned)) {
        nng_msleep(1); /* a thread that waits for the lock gets it now */
    }
    return list;
}

static void limit_list_free(struct limit_list *list) {
    for (size_t i = 0; i < list->row_count; i++) {
        free(list->rows[i].glob);
        free(list->rows[i].name);
    }
    free(list->rows);
}

/* One of the keys that a limit decides on most often. */
struct top_row {
    char *resource, *key;
    uint64_t count, error;
    double units;
    bool is_fair; /* a fair limit remembers the key, so the next three are known (P29) */
    double demand, share, level;
};

struct top_list {
    struct top_row rows[TOPS_SHOWN];
    size_t count;
};

static void top_list_take(struct top_list *list, struct service *service, size_t limit_index,
                          doorman_top_kind kind) {
    doorman_cursor cursor = {0};
    doorman_permits_top top;
    list->count = 0;
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    while (permits && list->count < TOPS_SHOWN &&
           doorman_permits_next_top(permits, limit_index, kind, &cursor, &top)) {
        char *resource = strdup(top.resource_id), *key = strdup(top.key);
        list->rows[list->count] =
            (struct top_row){resource, key,        top.count, top.error, top.units,
                             top.fair, top.demand, top.share, top.level};
        if (resource && key) {
            list->count++;
        } else {
            free(resource);
            free(key);
        }
    }
    server_unlock(&service->lock);
}

static void top_list_free(struct top_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->rows[i].resource);
        free(list->rows[i].key);
    }
}

/* ---- metrics ---- */

enum limit_metric {
    LIMIT_GRANTED,
    LIMIT_UNITS,
    LIMIT_REFUSED,
    LIMIT_SHADOW,
    LIMIT_SET,
    LIMIT_SET_CHANGES,
    LIMIT_EVICTED,
    LIMIT_EVICTED_IN_USE,
    LIMIT_BANS_EVICTED,
    LIMIT_WAITED,
    LIMIT_WAITING,
    LIMIT_KEYS,
    LIMIT_KEYS_MAX,
    LIMIT_BANS,
    LIMIT_METRIC_COUNT
};

static const struct {
    const char *name, *type, *help;
} limit_metrics[LIMIT_METRIC_COUNT] = {
    {"permits_granted_total", "counter", "Grants of permits that a limit concerned."},
    {"permits_granted_units_total", "counter", "Units of these grants."},
    {"permits_refused_total", "counter", "Refusals by a limit, by reason."},
    {"permits_shadow_refused_total", "counter", "Refusals that shadow has prevented."},
    {"permits_set_total", "counter", "Grants for which the caller has brought figures."},
    {"permits_set_changes_total", "counter",
     "How often these figures differed from those that the counter remembered."},
    {"permits_evicted_total", "counter", "Counters that were forgotten to make room for others."},
    {"permits_evicted_in_use_total", "counter",
     "Those of them that had used a part of their limit, so that their keys got more."},
    {"permits_bans_evicted_total", "counter",
     "Bans that were ended early to make room for others."},
    {"permits_waited_total", "counter", "How often a permit has entered a queue of a limit."},
    {"permits_queued", "gauge", "Permits that wait in the queues of a limit."},
    {"permits_keys", "gauge", "Counters of a limit that differ from fresh ones."},
    {"permits_keys_max", "gauge", "The most counters that a limit keeps: its max_keys."},
    {"permits_banned_keys", "gauge", "Bans that a limit has set."}};

static double limit_value(const doorman_permits_limit *info, enum limit_metric metric) {
    switch (metric) {
    case LIMIT_GRANTED: return (double)info->granted;
    case LIMIT_UNITS: return info->granted_units;
    case LIMIT_SHADOW: return (double)info->shadow_refused;
    case LIMIT_SET: return (double)info->set_granted;
    case LIMIT_SET_CHANGES: return (double)info->set_changes;
    case LIMIT_EVICTED: return (double)info->evicted;
    case LIMIT_EVICTED_IN_USE: return (double)info->evicted_in_use;
    case LIMIT_BANS_EVICTED: return (double)info->bans_evicted;
    case LIMIT_BANS: return (double)info->ban_count;
    case LIMIT_WAITED: return (double)info->waited;
    case LIMIT_WAITING: return (double)info->waiting;
    case LIMIT_KEYS: return (double)info->counter_count;
    case LIMIT_REFUSED:
    case LIMIT_KEYS_MAX:
    case LIMIT_METRIC_COUNT:
    default: return 0;
    }
}

/* Adds the value of one series.
 *   reason   NULL: the metric has no reasons */
static void limit_series(struct text *text, const struct limit_row *row, const char *name,
                         const char *reason, double value) {
    server_text_addf(text, "doorman_%s{template=\"", name);
    server_text_add_escaped(text, row->glob, server_escape_label);
    server_text_add(text, "\",limit=\"");
    server_text_add_escaped(text, row->name, server_escape_label);
    if (reason) server_text_addf(text, "\",reason=\"%s", reason);
    server_text_add(text, "\"} ");
    server_text_add_number(text, value);
    server_text_add(text, "\n");
}

static void limit_metric(struct text *text, const struct limit_row *row, enum limit_metric metric) {
    const char *name = limit_metrics[metric].name;
    if (metric == LIMIT_KEYS_MAX) {
        if (row->keys_max) limit_series(text, row, name, NULL, (double)row->keys_max);
        return;
    }
    if (metric != LIMIT_REFUSED) {
        limit_series(text, row, name, NULL, limit_value(&row->info, metric));
        return;
    }
    for (int i = DOORMAN_NO_REASON + 1; i < DOORMAN_REASON_COUNT; i++) {
        if (i == DOORMAN_REASON_UNMATCHED) continue; /* no limit has this reason */
        const char *reason = doorman_reason_name((doorman_reason)i);
        limit_series(text, row, name, reason, (double)row->info.refused[i]);
    }
}

/* Adds a limit to the sum of the limits without metrics of their own. */
static void limit_add_other(doorman_permits_limit *others, const doorman_permits_limit *info) {
    others->granted += info->granted;
    others->granted_units += info->granted_units;
    others->shadow_refused += info->shadow_refused;
    others->set_granted += info->set_granted;
    others->set_changes += info->set_changes;
    others->evicted += info->evicted;
    others->evicted_in_use += info->evicted_in_use;
    others->bans_evicted += info->bans_evicted;
    others->ban_count += info->ban_count;
    others->waited += info->waited;
    others->waiting += info->waiting;
    others->counter_count += info->counter_count;
    for (int i = 0; i < DOORMAN_REASON_COUNT; i++) others->refused[i] += info->refused[i];
}

static void limits_reservation_metrics(struct text *text, const doorman_permits_info *info) {
    server_metrics_value(text, "permits_reservations", "gauge",
                         "Reservations that are not settled, and have not ended.",
                         (double)info->reservation_count);
    server_metrics_value(text, "permits_reservations_settled_total", "counter",
                         "Settlements of reservations, also late ones and unknown ones.",
                         (double)info->settled);
    server_metrics_value(text, "permits_reservations_unsettled_total", "counter",
                         "Reservations that have ended without a settlement.",
                         (double)info->unsettled);
    server_metrics_value(text, "permits_returned_units_total", "counter",
                         "Units of reservations that were given back.", info->returned_units);
}

void server_limits_metrics(struct text *text, struct service *service, const bool *abandoned) {
    struct limit_list list = limit_list_take(service, abandoned);
    char other[] = "other";
    struct limit_row others = {.glob = other, .name = other};
    size_t own = list.row_count < LIMITS_SERIES ? list.row_count : LIMITS_SERIES;
    for (size_t i = own; i < list.row_count; i++) {
        limit_add_other(&others.info, &list.rows[i].info);
        others.keys_max += list.rows[i].keys_max;
    }
    for (int i = 0; i < LIMIT_METRIC_COUNT; i++) {
        server_metrics_header(text, limit_metrics[i].name, limit_metrics[i].type,
                              limit_metrics[i].help);
        for (size_t at = 0; at < own; at++) {
            limit_metric(text, &list.rows[at], (enum limit_metric)i);
        }
        if (own < list.row_count) limit_metric(text, &others, (enum limit_metric)i);
    }
    server_metrics_value(text, "permits_bans", "gauge",
                         "Keys that are banned, or were a short time ago.",
                         (double)list.info.ban_count);
    server_metrics_value(text, "permits_holds", "gauge", "Holds and transfers of units.",
                         (double)list.info.hold_count);
    server_metrics_value(text, "permits_waiting", "gauge", "Permits that wait in queues.",
                         (double)list.info.wait_count);
    limits_reservation_metrics(text, &list.info);
    server_metrics_value(text, "permits_memory_bytes", "gauge",
                         "Memory of all counters of permits.", (double)list.info.bytes);
    server_metrics_value(text, "permits_unmatched_total", "counter",
                         "Items of permits that no template with limits matches, granted or not.",
                         (double)list.info.unmatched);
    text->failed = text->failed || list.failed;
    limit_list_free(&list);
}

/* ---- JSON ---- */

static void json_limit(struct text *text, const struct limit_row *row) {
    const doorman_permits_limit *info = &row->info;
    const char *separator = "";
    server_text_add_json(text, "{\"template\":", row->glob);
    server_text_add_json(text, ",\"limit\":", row->name);
    server_text_add_json(text, ",\"definition\":", row->definition);
    server_text_addf(text, ",\"keys\":%zu", info->counter_count);
    if (row->keys_max) server_text_addf(text, ",\"max_keys\":%zu", row->keys_max);
    if (row->is_fair) server_text_addf(text, ",\"fair_keys\":%zu", info->fair_count);
    server_text_addf(text, ",\"granted\":%" PRIu64 ",\"granted_units\":", info->granted);
    server_text_add_number(text, info->granted_units);
    server_text_add(text, ",\"refused\":{");
    for (int i = DOORMAN_NO_REASON + 1; i < DOORMAN_REASON_COUNT; i++) {
        if (info->refused[i] == 0) continue;
        server_text_addf(text, "%s\"%s\":%" PRIu64, separator,
                         doorman_reason_name((doorman_reason)i), info->refused[i]);
        separator = ",";
    }
    server_text_addf(text,
                     "},\"shadow_refused\":%" PRIu64 ",\"set_granted\":%" PRIu64
                     ",\"set_changes\":%" PRIu64 ",\"evicted\":%" PRIu64
                     ",\"bans\":%zu,\"bans_evicted\":%" PRIu64 ",\"waiting\":%zu",
                     info->shadow_refused, info->set_granted, info->set_changes, info->evicted,
                     info->ban_count, info->bans_evicted, info->waiting);
}

/* Adds the demand, the share and the level of a key (P29). */
static void json_shares(struct text *text, const struct top_row *row) {
    server_text_add(text, ",\"demand\":");
    server_text_add_number(text, row->demand);
    server_text_add(text, ",\"share\":");
    server_text_add_number(text, row->share);
    server_text_add(text, ",\"level\":");
    server_text_add_number(text, row->level);
}

static void json_tops(struct text *text, struct service *service, size_t index, const char *name,
                      doorman_top_kind kind) {
    struct top_list tops;
    top_list_take(&tops, service, index, kind);
    server_text_addf(text, ",\"%s\":[", name);
    for (size_t i = 0; i < tops.count; i++) {
        server_text_add_json(
            text, i ? ",\n{\"resource_id\":" : "{\"resource_id\":", tops.rows[i].resource);
        server_text_add_json(text, ",\"key\":", tops.rows[i].key);
        server_text_addf(text, ",\"count\":%" PRIu64 ",\"error\":%" PRIu64 ",\"units\":",
                         tops.rows[i].count, tops.rows[i].error);
        server_text_add_number(text, tops.rows[i].units);
        if (tops.rows[i].is_fair) json_shares(text, &tops.rows[i]);
        server_text_add(text, "}");
    }
    server_text_add(text, "]");
    top_list_free(&tops);
}

/* The limit that a query names. */
struct limit_query {
    char glob[DOORMAN_ID_BYTES_MAX + 1], name[DOORMAN_ID_BYTES_MAX + 1];
    bool all; /* the query names no limit */
};

static struct limit_query limit_query_read(const char *query) {
    struct limit_query read = {.all = false};
    bool glob = server_query_read(query, "template", read.glob, sizeof read.glob);
    bool name = server_query_read(query, "limit", read.name, sizeof read.name);
    read.all = !glob && !name;
    return read;
}

/* Returns the index of the limit that a query names; the length of the list: it is not there. */
static size_t limit_query_find(const struct limit_query *query, const struct limit_list *list) {
    size_t i = 0;
    while (i < list->row_count && (strcmp(list->rows[i].glob, query->glob) != 0 ||
                                   strcmp(list->rows[i].name, query->name) != 0)) {
        i++;
    }
    return i;
}

static void handle_json_limits(struct service *service, const struct http_request *request,
                               struct http_response *response) {
    struct text *text = &response->text;
    struct limit_query query = limit_query_read(request->query);
    struct limit_list list = limit_list_take(service, response->abandoned);
    size_t found = limit_query_find(&query, &list);
    response->type = "application/json";
    if (!query.all && found == list.row_count) {
        server_http_response_set_error(
            response, 404, "NOT_FOUND",
            list.is_master ? "there is no limit with this template and name"
                           : "this process is not the master, so it has no counters");
    } else {
        server_text_addf(text,
                         "{\"is_master\":%s,\"keys\":%zu,\"bans\":%zu,\"bytes\":%zu,"
                         "\"unmatched\":%" PRIu64 ",\"limits\":[",
                         list.is_master ? "true" : "false", list.info.counter_count,
                         list.info.ban_count, list.info.bytes, list.info.unmatched);
        for (size_t i = query.all ? 0 : found; i < (query.all ? list.row_count : found + 1); i++) {
            if (query.all && i) server_text_add(text, ",\n");
            json_limit(text, &list.rows[i]);
            if (!query.all) {
                json_tops(text, service, i, "most_refused", DOORMAN_TOP_REFUSED);
                json_tops(text, service, i, "most_granted", DOORMAN_TOP_GRANTED);
            }
            server_text_add(text, "}");
        }
        server_text_add(text, "]}\n");
    }
    text->failed = text->failed || list.failed;
    limit_list_free(&list);
}

/* ---- pages ---- */

static void page_limit_name(struct text *text, const struct limit_row *row) {
    server_text_add_escaped(text, row->glob, server_escape_html);
    server_text_add(text, " &middot; ");
    server_text_add_escaped(text, row->name[0] ? row->name : "(no limits)", server_escape_html);
}

static void page_limit_trend(struct text *text, struct service *service,
                             const struct limit_row *row) {
    struct limit_trend trend = server_limit_history_find(service, row->glob, row->name);
    server_text_add(text, "<td class=drawn>");
    server_graph_add_limit(text, &trend, true);
    server_text_add(text, "</td>");
}

/* Adds the row of a limit.
 *   service   for the drawing of the limit; NULL: the cell stays empty */
static void page_limit_row(struct text *text, struct service *service,
                           const struct limit_row *row) {
    const doorman_permits_limit *info = &row->info;
    server_text_add(text, "<tr><td><a href=\"/limits?template=");
    server_text_add_escaped(text, row->glob, server_escape_query);
    server_text_add(text, "&amp;limit=");
    server_text_add_escaped(text, row->name, server_escape_query);
    server_text_add(text, "\">");
    page_limit_name(text, row);
    server_text_add(text, "</a><div class=holder>");
    server_text_add_escaped(text, row->definition, server_escape_html);
    if (info->set_changes > 0) {
        server_text_addf(text,
                         "</div><div class=holder>callers bring figures that differ for one key: "
                         "%" PRIu64 " times; the last ones count",
                         info->set_changes);
    }
    server_text_add(text, "</div></td>");
    if (service) {
        page_limit_trend(text, service, row);
    } else {
        server_text_add(text, "<td></td>");
    }
    server_page_cell(text, "keys", (double)info->counter_count);
    server_page_cell(text, "granted", (double)info->granted);
    server_page_cell(text, "units", info->granted_units);
    server_page_cell(text, "refused", (double)server_limit_refused(info));
    server_page_cell(text, "in shadow", (double)info->shadow_refused);
    server_page_cell(text, "evicted", (double)info->evicted);
    server_page_cell(text, "waiting", (double)info->waiting);
    server_text_add(text, "</tr>");
}

/* Adds the form that asks for one key.
 *   resource, key   the texts in the fields */
static void page_key_form(struct text *text, const char *resource, const char *key) {
    server_text_add(text,
                    "<form action='/keys' class=ask role=search><input name=resource required "
                    "aria-label=resource placeholder=resource value=\"");
    server_text_add_escaped(text, resource, server_escape_html);
    server_text_add(text, "\"> <input name=key aria-label=key placeholder=key value=\"");
    server_text_add_escaped(text, key, server_escape_html);
    server_text_add(text, "\"> <button>inspect key</button></form>");
}

#define LIMIT_LEGEND                                                                               \
    "<p class='soft key'><span class=k1>granted</span><span class=k4>refused</span>permits a "     \
    "second, in the last ten minutes</p>"

static void page_limit_table(struct text *text, struct service *service,
                             const struct limit_list *list) {
    server_text_add(text, LIMIT_LEGEND
                    "<table><thead><tr><th>template, limit</th>"
                    "<th>permits a second</th><th>keys</th><th>granted</th><th>units</th>"
                    "<th>refused</th><th>in shadow</th><th>evicted</th><th>waiting</th></tr>"
                    "</thead><tbody>");
    for (size_t i = 0; i < list->row_count; i++) {
        page_limit_row(text, i < LIMITS_DRAWN ? service : NULL, &list->rows[i]);
    }
    server_text_add(text, "</tbody></table>");
    if (list->row_count > LIMITS_DRAWN) {
        server_text_addf(text,
                         "<p class=soft>The list draws the first %d limits. The page of a limit "
                         "draws it too.</p>",
                         LIMITS_DRAWN);
    }
    if (list->has_more) {
        server_text_addf(text, "<p class=warn>The list has the first %d limits.</p>", LIMITS_MAX);
    }
}

static void page_all_limits(struct text *text, struct service *service,
                            const struct limit_list *list) {
    const size_t counters = list->info.counter_count, bans = list->info.ban_count;
    server_text_addf(
        text,
        "<h2>Limits of permits</h2><p class=soft>%zu %s from fresh ones; %zu %s a short "
        "time ago; ",
        counters, counters == 1 ? "counter differs" : "counters differ", bans,
        bans == 1 ? "key is banned, or was" : "keys are banned, or were");
    server_text_add_amount(text, (double)list->info.bytes / 1e6);
    server_text_addf(text,
                     " MB; <a href='/holds'>%zu %s, %zu %s</a>; "
                     "<a href='/bans'>banned keys</a>; <a href='/top'>keys that use most</a>; "
                     "<a href='/descriptors'>descriptors</a></p>",
                     list->info.hold_count, list->info.hold_count == 1 ? "hold" : "holds",
                     list->info.wait_count,
                     list->info.wait_count == 1 ? "permit waits" : "permits wait");
    page_key_form(text, "", "");
    if (list->row_count == 0) {
        server_text_add(text, list->is_master
                                  ? "<p class=soft>No template of the configuration has limits.</p>"
                                  : PAGE_NOT_MASTER);
        return;
    }
    page_limit_table(text, service, list);
}

/* Adds the cells of a key of a fair limit. They are empty if the limit has forgotten the key. */
static void page_shares(struct text *text, const struct top_row *row) {
    if (!row->is_fair) {
        server_text_add(text, "<td></td><td></td><td></td>");
        return;
    }
    server_page_cell(text, "asks for", row->demand);
    server_page_cell(text, "share", row->share);
    server_page_cell(text, "level", row->level);
}

static void page_tops(struct text *text, struct service *service, size_t index,
                      doorman_top_kind kind, bool is_fair) {
    struct top_list tops;
    top_list_take(&tops, service, index, kind);
    server_text_addf(text,
                     "<div><table><thead><tr><th>%s most often lately</th><th>decisions</th>"
                     "<th>units</th>%s</tr></thead><tbody>",
                     kind == DOORMAN_TOP_REFUSED ? "refused" : "granted",
                     is_fair ? "<th>asks for</th><th>share</th><th>level</th>" : "");
    for (size_t i = 0; i < tops.count; i++) {
        const struct top_row *row = &tops.rows[i];
        server_page_key_start(text, row->resource, row->key);
        server_page_cell(text, "decisions", (double)row->count);
        server_page_cell(text, "units", row->units);
        if (is_fair) page_shares(text, row);
        server_text_add(text, "</tr>");
    }
    server_text_add(text, "</tbody></table>");
    server_text_add(text, tops.count > 0 ? "</div>" : "<p class=soft>none</p></div>");
    top_list_free(&tops);
}

static void page_one_limit(struct text *text, struct service *service, const struct limit_row *row,
                           size_t index) {
    server_text_add(text, "<h2>");
    page_limit_name(text, row);
    server_text_add(text, "</h2><p class=soft>");
    server_text_add_escaped(text, row->definition, server_escape_html);
    server_text_addf(text,
                     " &middot; <a href='/limits'>all limits</a></p><p>granted %" PRIu64
                     ", refused %" PRIu64,
                     row->info.granted, server_limit_refused(&row->info));
    for (int i = DOORMAN_NO_REASON + 1; i < DOORMAN_REASON_COUNT; i++) {
        if (row->info.refused[i] == 0) continue;
        server_text_addf(text, " &middot; %s %" PRIu64, doorman_reason_name((doorman_reason)i),
                         row->info.refused[i]);
    }
    server_text_add(text, "</p><div class=big>");
    struct limit_trend trend = server_limit_history_find(service, row->glob, row->name);
    server_graph_add_limit(text, &trend, false);
    server_text_add(text, LIMIT_LEGEND "</div>");
    page_key_form(text, "", "");
    server_text_add(text, "<div class=tops>");
    page_tops(text, service, index, DOORMAN_TOP_REFUSED, row->is_fair);
    page_tops(text, service, index, DOORMAN_TOP_GRANTED, row->is_fair);
    server_text_add(text, "</div>");
    server_text_add(text, "<p class=soft>The numbers are approximate, and those of the last "
                          "minutes: they are halved each full minute. The units of a refusal are "
                          "what was asked for.</p>");
    if (!row->is_fair) return;
    server_text_addf(text,
                     "<p class=soft>%zu keys share this limit. What a key asks for, its share, and "
                     "the level, which is the share of a key of weight 1, are in units a second."
                     "</p>",
                     row->info.fair_count);
}

static void handle_limits(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    struct limit_query query = limit_query_read(request->query);
    struct limit_list list = limit_list_take(service, response->abandoned);
    size_t found = limit_query_find(&query, &list);
    server_page_start(service, request, response, NULL, "");
    if (query.all) {
        page_all_limits(text, service, &list);
    } else if (found < list.row_count) {
        page_one_limit(text, service, &list.rows[found], found);
    } else {
        response->code = 404;
        server_text_add(text, "<p>There is no such limit. <a href='/limits'>All limits</a></p>");
    }
    server_page_end(response, true);
    text->failed = text->failed || list.failed;
    limit_list_free(&list);
}

static void page_detail_share(struct text *text, const doorman_permit_detail *detail) {
    server_text_add(text, "<div class=holder>asks for ");
    server_text_add_amount(text, detail->demand);
    server_text_add(text, " a second, share ");
    server_text_add_amount(text, detail->share);
    server_text_add(text, ", level ");
    server_text_add_amount(text, detail->level);
    server_text_add(text, "</div>");
}

/* Adds a row for each limit of a key. */
static void page_details(struct text *text, const doorman_permit *state) {
    server_text_add(
        text, "<table><thead><tr><th>limit</th><th>used</th><th>of</th><th>remaining"
              "</th><th>refusals towards a ban</th><th>fresh again in</th></tr></thead><tbody>");
    for (size_t i = 0; i < state->detail_count; i++) {
        const doorman_permit_detail *detail = &state->details[i];
        server_text_add(text, "<tr><td>");
        server_text_add_escaped(text, detail->limit, server_escape_html);
        if (detail->tier) server_text_addf(text, " <small>tier %zu</small>", detail->tier);
        if (detail->plan) {
            server_text_add(text, " <small>plan ");
            server_text_add_escaped(text, detail->plan, server_escape_html);
            server_text_add(text, "</small>");
        }
        if (detail->remaining <= 0) server_text_add(text, " <span class=warn>used up</span>");
        if (detail->fair) page_detail_share(text, detail);
        server_text_add(text, "</td>");
        server_page_cell(text, "used", detail->used);
        server_page_cell(text, "of", detail->most);
        server_page_cell(text, "remaining", detail->remaining);
        server_page_cell(text, "refusals towards a ban", detail->refusals);
        server_page_cell_duration(text, "fresh again in", detail->reset_after + DOORMAN_SECOND - 1);
        server_text_add(text, "</tr>");
    }
    server_text_add(text, "</tbody></table>");
    server_text_add(text, state->detail_count == 0
                              ? "<p class=soft>No limit concerns this key.</p>"
                              : "<p class=soft>Refusals count towards a ban only at a limit with a "
                                "ban, and start again at 0 with the ban. All refusals of a limit, "
                                "and its most refused keys, are on <a href='/limits'>its "
                                "page</a>.</p>");
}

/* Adds what the limits have counted for a key. There are at most 16 details, so they are written
 * while the lock is held. */
void server_page_key(struct text *text, struct service *service, const char *resource,
                     const char *key) {
    const doorman_permit_entry entry = {.resource_id = resource, .key = key};
    const doorman_request inspect = {
        .method = DOORMAN_INSPECT, .entries = &entry, .entry_count = 1, .wire_names = true};
    doorman_response response;
    doorman_error error = {0};
    server_lock(&service->lock);
    doorman_status status =
        doorman_server_handle(service->server, &inspect, &response, &error, doorman_clock());
    if (status != DOORMAN_OK) {
        server_text_add(text, "<p class=bad>");
        server_text_add_escaped(text, error.text, server_escape_html);
        server_text_add(text, "</p>");
    } else if (!response.is_master) {
        server_text_add(text, PAGE_NOT_MASTER);
    } else {
        const doorman_permit *state = &response.results[0].state;
        if (state->reason == DOORMAN_REASON_BANNED) {
            server_text_add(text, "<p class=bad>banned for ");
            server_page_duration(text, state->retry_after + DOORMAN_SECOND - 1);
            server_text_add(text, "</p>");
        }
        page_details(text, state);
    }
    server_unlock(&service->lock);
}

/* Adds the button that resets a key. The script sends the message, because an HTML form cannot send
 * JSON. So no form on another site can change a key either. */
static void page_key_buttons(struct text *text, const char *resource, const char *key) {
    server_text_add(text, "<p id=change data-resource=\"");
    server_text_add_escaped(text, resource, server_escape_html);
    server_text_add(text, "\" data-key=\"");
    server_text_add_escaped(text, key, server_escape_html);
    server_text_add(
        text,
        "\"><button>reset key and end its ban</button> <span></span><noscript> (needs JavaScript)"
        "</noscript></p>");
}

static void handle_keys(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    char resource[DOORMAN_ID_BYTES_MAX + 1] = "", key[DOORMAN_ID_BYTES_MAX + 1] = "";
    struct text *text = &response->text;
    server_query_read(request->query, "resource", resource, sizeof resource);
    server_query_read(request->query, "key", key, sizeof key);
    server_page_start(service, request, response, NULL, "");
    server_text_add(text, "<h2>");
    server_text_add_escaped(text, key[0] ? key : "(no key)", server_escape_html);
    server_text_add(text, " <small class=holder>");
    server_text_add_escaped(text, resource, server_escape_html);
    server_text_add(text, "</small></h2>");
    page_key_form(text, resource, key);
    if (!service->tokens) {
        response->code = 403;
        server_text_add(text, "<p class=bad>Keys can be inspected and reset only at a server with "
                              "--http-token.</p>");
    } else {
        server_page_key(text, service, resource, key);
        page_key_buttons(text, resource, key);
    }
    server_text_add(text, "<p><a href='/limits'>all limits</a>");
    const bool has_acts =
        server_keeps_acts(service) && !server_flag_lacks(FLAG_CONFIG_CACHE); /* part ADMIN */
    if (has_acts) {
        server_text_add(text, " &middot; <a href=\"/override?resource=");
        server_text_add_escaped(text, resource, server_escape_query);
        server_text_add(text, "&amp;key=");
        server_text_add_escaped(text, key, server_escape_query);
        server_text_add(text, "\">give other figures for a time</a>");
        server_text_add(text, " &middot; <a href=\"/overrides?key=");
        server_text_add_escaped(text, key, server_escape_query);
        server_text_add(text, "\">overrides</a> &middot; <a href=\"/audit?key=");
        server_text_add_escaped(text, key, server_escape_query);
        server_text_add(text, "\">audit</a>");
    }
    server_text_add(text, "</p>");
    server_page_end(response, true);
}

void server_page_limits(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct text *text = &response->text;
    struct limit_list list = limit_list_take(service, response->abandoned);
    struct snapshot snapshot = {.abandoned = response->abandoned};
    server_snapshot_take(&snapshot, service, "", 0);
    server_page_start(service, request, response, NULL, "");
    server_page_facts(text, service, &snapshot);
    page_all_limits(text, service, &list);
    server_page_end(response, true);
    text->failed = text->failed || list.failed || snapshot.failed;
    server_snapshot_uninit(&snapshot);
    limit_list_free(&list);
}

static const struct http_route limits_routes[] = {{"/limits", .handle = handle_limits},
                                                  {"/keys", .handle = handle_keys},
                                                  {"/v1/limits", .handle = handle_json_limits},
                                                  {.path = NULL}};

const struct server_part server_part_limits = {.routes = limits_routes};
