/* doorman_server, part HTTP: lists that operators need. This file takes the lock of the service. A
 * visit to a counter moves the clock of the permits, and adapts the counter, as in counters.c.
 *
 *     /v1/bans   the bans in force: /v1/bans?resource=RESOURCE&key=KEY&after=NEXT&limit=COUNT
 *     /v1/top    the keys that use most units:           /v1/top?by=units&over=hour&limit=COUNT
 *                or that are nearest to their limits:    /v1/top?by=nearest&limit=COUNT
 *     /bans      the first bans, as a page
 *     /top       both lists of keys, as a page
 *
 * E8 Operators can list bans, the keys that use most units, the keys that are nearest to their
 *    limits, and holds, and can end a hold or a reservation.
 *
 * Bans, and the keys that are nearest to their limits, are found by visiting the counters, in
 * slices as in counters.c. For the keys that use most units, the lock is held for one limit at a
 * time. */
#include "pages.h"

#define LISTS_DEFAULT 20
#define LISTS_MAX 100 /* keys of a list */
#define BANS_DEFAULT 100
#define BANS_MAX 1000
#define BANS_OF_PAGE 100
#define LISTS_VISITED_MAX 2000000 /* counters that a list visits: about a second */

/* A key of a list. */
struct list_row {
    char glob[DOORMAN_ID_BYTES_MAX + 1], limit[DOORMAN_ID_BYTES_MAX + 1];
    char resource[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1];
    double rank;                /* rows are ordered by it, the largest first */
    double units, error, total; /* by units */
    double size, used;          /* by nearest */
    doorman_time rest;          /* until the counter is fresh, or the ban ends */
};

/* The rows with the largest ranks so far. */
struct key_list {
    bool is_nearest;
    doorman_usage_window window;
    size_t limit, count; /* limit: at most LISTS_MAX */
    bool is_master, is_complete;
    const bool *abandoned;             /* see struct http_response */
    struct list_row *order[LISTS_MAX]; /* the rows, in their order */
    struct list_row rows[LISTS_MAX];
};

static const char *const window_names[DOORMAN_USAGE_WINDOW_COUNT] = {"minute", "hour", "day"};

static void list_name(struct list_row *row, const char *glob, const char *limit,
                      const char *resource) {
    snprintf(row->glob, sizeof row->glob, "%s", glob);
    snprintf(row->limit, sizeof row->limit, "%s", limit);
    snprintf(row->resource, sizeof row->resource, "%s", resource);
}

/* Returns a row to fill in for a rank, or NULL if the list is full of rows of at least this
 * rank. */
static struct list_row *list_place(struct key_list *list, double rank) {
    bool is_full = list->count == list->limit;
    if (is_full && rank <= list->order[list->count - 1]->rank) return NULL;
    struct list_row *row = is_full ? list->order[list->count - 1] : &list->rows[list->count];
    size_t at = is_full ? list->count - 1 : list->count++;
    for (; at > 0 && list->order[at - 1]->rank < rank; at--) list->order[at] = list->order[at - 1];
    list->order[at] = row;
    *row = (struct list_row){.rank = rank};
    return row;
}

/* ---- by units ------------------------------------------------------------------------------- */

/* Adds the keys of the next limit. Returns false if there is none. */
static bool list_add_limit(struct key_list *list, doorman_permits *permits, size_t index,
                           doorman_cursor *limits) {
    doorman_permits_limit limit;
    doorman_permits_usage usage;
    doorman_cursor cursor = {0};
    const doorman_usage_list of = {index, list->window};
    const doorman_time now = doorman_clock();
    if (!doorman_permits_next_limit(permits, limits, &limit)) return false;
    while (doorman_permits_next_usage(permits, &of, &cursor, &usage, now)) {
        struct list_row *row = list_place(list, usage.units);
        if (!row) break; /* the other keys of the limit do not have more units */
        list_name(row, limit.identifier_glob, limit.limit, usage.resource_id);
        snprintf(row->key, sizeof row->key, "%s", usage.key);
        row->units = usage.units;
        row->error = usage.error;
        row->total = usage.total;
    }
    return true;
}

static void list_take_units(struct key_list *list, struct service *service) {
    doorman_cursor limits = {0};
    bool more = true;
    for (size_t index = 0; more && !server_is_abandoned(list->abandoned); index++) {
        server_lock(&service->lock);
        doorman_permits *permits = doorman_server_permits(service->server);
        list->is_master = permits != NULL;
        more = permits && list_add_limit(list, permits, index, &limits);
        server_unlock(&service->lock);
    }
}

/* ---- by nearest ----------------------------------------------------------------------------- */

static void list_add_counter(struct key_list *list, const doorman_permits_counter *found) {
    const doorman_permit_detail *state = &found->state;
    if (found->is_ban || !found->limit || !(state->most > 0) || !(state->used > 0)) return;
    struct list_row *row = list_place(list, state->used / state->most);
    if (!row) return;
    list_name(row, found->identifier_glob, found->limit, found->resource_id);
    snprintf(row->key, sizeof row->key, "%s", found->key);
    row->size = state->most;
    row->used = state->used;
    row->rest = state->reset_after;
}

static void list_take_nearest(struct key_list *list, struct service *service) {
    doorman_counter_cursor cursor = {0};
    doorman_status status = DOORMAN_OK;
    size_t visits = 0;
    while (status == DOORMAN_OK && visits < LISTS_VISITED_MAX &&
           !server_is_abandoned(list->abandoned)) {
        struct slice slice = server_slice_start(service);
        do {
            doorman_permits *permits = doorman_server_permits(service->server);
            doorman_permits_counter found;
            list->is_master = permits != NULL;
            status = permits ? doorman_permits_next_counter(permits, NULL, &cursor, &found,
                                                            slice.started_at)
                             : DOORMAN_UNAVAILABLE;
            if (status == DOORMAN_OK) list_add_counter(list, &found);
            visits++;
        } while (status == DOORMAN_OK && !server_slice_step(&slice));
        server_slice_end(&slice, service);
    }
    list->is_complete = status == DOORMAN_NOT_FOUND;
}

static void list_take(struct key_list *list, struct service *service) {
    list->count = 0;
    list->is_complete = true;
    (list->is_nearest ? list_take_nearest : list_take_units)(list, service);
}

/* ---- queries -------------------------------------------------------------------------------- */

static bool lists_refuse(struct http_response *response, const char *error) {
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return false;
}

/* Reads how many rows are wanted. Returns false if the number is wrong. */
static bool lists_read_limit(const char *query, size_t most, size_t *limit,
                             struct http_response *response) {
    char number[24], error[80];
    const char *end = NULL;
    if (!server_query_read(query, "limit", number, sizeof number)) return true;
    *limit = (size_t)server_number_read(number, 10, &end);
    if (!*end && *limit >= 1 && *limit <= most) return true;
    snprintf(error, sizeof error, "limit: must be a number from 1 to %zu", most);
    return lists_refuse(response, error);
}

static bool list_read_query(struct key_list *list, const char *query,
                            struct http_response *response) {
    static const char *const names[] = {"by", "over", "limit", NULL};
    char by[16], over[16];
    if (!server_http_check_query(query, names, response)) return false;
    if (!server_query_read(query, "by", by, sizeof by)) snprintf(by, sizeof by, "units");
    if (!server_query_read(query, "over", over, sizeof over)) snprintf(over, sizeof over, "hour");
    list->limit = LISTS_DEFAULT;
    list->is_nearest = strcmp(by, "nearest") == 0;
    if (!list->is_nearest && strcmp(by, "units") != 0) {
        return lists_refuse(response, "by: must be units or nearest");
    }
    if (list->is_nearest && server_query_count(query, "over") > 0) {
        return lists_refuse(response, "over: only goes with by=units");
    }
    int window = 0;
    while (window < DOORMAN_USAGE_WINDOW_COUNT && strcmp(over, window_names[window]) != 0) window++;
    if (window == DOORMAN_USAGE_WINDOW_COUNT) {
        return lists_refuse(response, "over: must be minute, hour or day");
    }
    list->window = (doorman_usage_window)window;
    return lists_read_limit(query, LISTS_MAX, &list->limit, response);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void list_number(struct text *text, const char *name, double value) {
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_number(text, value);
}

static void list_row_json(struct text *text, const struct list_row *row, bool is_nearest) {
    server_text_add_json(text, "{\"template\":", row->glob);
    server_text_add_json(text, ",\"limit\":", row->limit);
    server_text_add_json(text, ",\"resource_id\":", row->resource);
    server_text_add_json(text, ",\"key\":", row->key);
    if (is_nearest) {
        list_number(text, "used", row->used);
        list_number(text, "size", row->size);
        list_number(text, "fraction", row->rank);
        list_number(text, "reset_after", (double)row->rest / 1e9);
    } else {
        list_number(text, "units", row->units);
        list_number(text, "error", row->error);
        list_number(text, "all_units", row->total);
    }
    server_text_add(text, "}");
}

static void handle_json_top(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    struct text *text = &response->text;
    struct key_list *list = (struct key_list *)calloc(1, sizeof *list);
    text->failed = !list;
    if (!list) return;
    list->abandoned = response->abandoned;
    if (list_read_query(list, request->query, response)) {
        list_take(list, service);
        response->type = "application/json";
        server_text_addf(text, "{\"is_master\":%s,\"by\":\"%s\"",
                         list->is_master ? "true" : "false",
                         list->is_nearest ? "nearest" : "units");
        if (!list->is_nearest) server_text_add_json(text, ",\"over\":", window_names[list->window]);
        server_text_addf(text, ",\"complete\":%s,\"keys\":[", list->is_complete ? "true" : "false");
        for (size_t i = 0; i < list->count; i++) {
            if (i) server_text_add(text, ",\n");
            list_row_json(text, list->order[i], list->is_nearest);
        }
        server_text_add(text, "]}\n");
    }
    free(list);
}

/* ---- bans ----------------------------------------------------------------------------------- */

struct ban_list {
    char resource[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1]; /* of the query */
    bool has_resource, has_key;
    size_t limit, count; /* limit: at most BANS_MAX */
    doorman_counter_cursor cursor;
    bool is_master, has_more, is_lost; /* is_lost: the cursor is not valid any more */
    size_t in_force;                   /* bans in all, or a little more */
    struct list_row rows[BANS_MAX];
};

static bool ban_list_shows(const struct ban_list *list, const doorman_permits_counter *found) {
    return found->ban_rest > 0 && found->limit &&
           (!list->has_resource || strcmp(list->resource, found->resource_id) == 0) &&
           (!list->has_key || strcmp(list->key, found->key) == 0);
}

/* Visits the next ban. Returns false if there is none, or if it cannot be read. Precondition: the
 * lock is held. */
static bool ban_list_step(struct ban_list *list, struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permits_counter found;
    doorman_permits_info info;
    list->is_master = permits != NULL;
    if (!permits) return false;
    doorman_permits_read(permits, &info);
    list->in_force = info.ban_count;
    doorman_status status = doorman_permits_next_counter(permits, NULL, &list->cursor, &found, now);
    list->is_lost = status == DOORMAN_INVALID_ARGUMENT;
    if (status != DOORMAN_OK || !found.is_ban) return false; /* the bans come first */
    if (!ban_list_shows(list, &found)) return true;
    struct list_row *row = &list->rows[list->count++];
    list_name(row, found.identifier_glob, found.limit, found.resource_id);
    snprintf(row->key, sizeof row->key, "%s", found.key);
    row->rest = found.ban_rest;
    return true;
}

static void ban_list_take(struct ban_list *list, struct service *service, const bool *abandoned) {
    bool more = true;
    while (more && list->count < list->limit && !server_is_abandoned(abandoned)) {
        struct slice slice = server_slice_start(service);
        do {
            more = ban_list_step(list, service, slice.started_at);
        } while (more && list->count < list->limit && !server_slice_step(&slice));
        server_slice_end(&slice, service);
    }
    list->has_more = more;
}

static bool ban_list_read_query(struct ban_list *list, struct service *service, const char *query,
                                struct http_response *response) {
    static const char *const names[] = {"resource", "key", "after", "limit", NULL};
    char after[DOORMAN_ID_BYTES_MAX + 1] = "";
    if (!server_http_check_query(query, names, response)) return false;
    list->has_resource =
        server_query_read(query, "resource", list->resource, sizeof list->resource);
    list->has_key = server_query_read(query, "key", list->key, sizeof list->key);
    list->limit = BANS_DEFAULT;
    server_query_read(query, "after", after, sizeof after);
    if (!server_counters_read_position(after, service, &list->cursor)) {
        return lists_refuse(response, "after: is not a position of this process; start again "
                                      "without `after`");
    }
    return lists_read_limit(query, BANS_MAX, &list->limit, response);
}

static void ban_row_json(struct text *text, const struct list_row *row) {
    server_text_add_json(text, "{\"resource_id\":", row->resource);
    server_text_add_json(text, ",\"key\":", row->key);
    server_text_add_json(text, ",\"by\":", row->limit[0] ? "limit" : "administrator");
    if (row->limit[0]) server_text_add_json(text, ",\"template\":", row->glob);
    if (row->limit[0]) server_text_add_json(text, ",\"limit\":", row->limit);
    list_number(text, "ends_in", (double)row->rest / 1e9);
    server_text_add(text, "}");
}

static void ban_list_json(const struct ban_list *list, const struct service *service,
                          struct text *text) {
    server_text_addf(text, "{\"is_master\":%s,\"bans\":[", list->is_master ? "true" : "false");
    for (size_t i = 0; i < list->count; i++) {
        if (i) server_text_add(text, ",\n");
        ban_row_json(text, &list->rows[i]);
    }
    server_text_add(text, "]");
    if (list->has_more) {
        server_text_add(text, ",\"next\":\"");
        server_counters_add_position(text, service, &list->cursor);
        server_text_add(text, "\"");
    }
    server_text_add(text, "}\n");
}

static void handle_json_bans(struct service *service, const struct http_request *request,
                             struct http_response *response) {
    struct ban_list *list = (struct ban_list *)calloc(1, sizeof *list);
    response->text.failed = !list;
    if (list && ban_list_read_query(list, service, request->query, response)) {
        ban_list_take(list, service, response->abandoned);
        response->type = "application/json";
        if (list->is_lost) {
            lists_refuse(response, "after: is not valid any more; start again without `after`");
        } else {
            ban_list_json(list, service, &response->text);
        }
    }
    free(list);
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* Adds the start of a table.
 *   headings   of the columns after the first two */
static void list_page_table(struct text *text, const char *second, const char *headings) {
    server_text_addf(text,
                     "<table><thead><tr><th>key, resource</th><th class=words>%s</th>%s</tr>"
                     "</thead><tbody>",
                     second, headings);
}

static void list_page_end(struct text *text, size_t count) {
    server_text_add(text, "</tbody></table>");
    if (count == 0) server_text_add(text, "<p class=soft>none</p>");
}

/* Adds the first two cells of a row.
 *   second   the name of the second one */
static void list_page_key(struct text *text, const struct list_row *row, const char *second) {
    server_page_key_start(text, row->resource, row->key);
    server_page_cell_text(text, second, row->limit[0] ? row->limit : "an administrator");
}

static void handle_bans(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct text *text = &response->text;
    struct ban_list *list = (struct ban_list *)calloc(1, sizeof *list);
    server_page_start(service, request, response, NULL, "");
    text->failed = text->failed || !list;
    if (list) {
        list->limit = BANS_OF_PAGE;
        ban_list_take(list, service, response->abandoned);
        server_text_addf(text, "<h2>Banned keys</h2><p class=soft>%zu in all%s</p>",
                         list->has_more ? list->in_force : list->count,
                         list->has_more ? ". The table has some of them." : "");
        if (!list->is_master) server_text_add(text, PAGE_NOT_MASTER);
        list_page_table(text, "banned by", "<th>ends in</th>");
        for (size_t i = 0; i < list->count; i++) {
            list_page_key(text, &list->rows[i], "banned by");
            server_page_cell_duration(text, "ends in", list->rows[i].rest);
            server_text_add(text, "</tr>");
        }
        server_text_add(text, "</tbody></table>");
    }
    server_text_add(text, "<p><a href='/limits'>all limits</a></p>");
    server_page_end(response, false);
    free(list);
}

static void page_most_used(struct text *text, const struct key_list *list) {
    server_text_addf(text, "<h2>Most units in the last %s</h2>", window_names[list->window]);
    list_page_table(text, "limit", "<th>units</th><th>of all</th>");
    for (size_t i = 0; i < list->count; i++) {
        const struct list_row *row = list->order[i];
        list_page_key(text, row, "limit");
        server_page_cell(text, "units", row->units);
        server_page_cell(text, "of all", row->total);
        server_text_add(text, "</tr>");
    }
    list_page_end(text, list->count);
}

static void page_nearest(struct text *text, const struct key_list *list) {
    server_text_add(text, "<h2>Nearest to their limits</h2>");
    list_page_table(text, "limit", "<th>used</th><th>of</th><th>fresh again in</th>");
    for (size_t i = 0; i < list->count; i++) {
        const struct list_row *row = list->order[i];
        list_page_key(text, row, "limit");
        server_page_cell(text, "used", row->used);
        server_page_cell(text, "of", row->size);
        server_page_cell_duration(text, "fresh again in", row->rest);
        server_text_add(text, "</tr>");
    }
    list_page_end(text, list->count);
}

static void handle_top(struct service *service, const struct http_request *request,
                       struct http_response *response) {
    struct text *text = &response->text;
    struct key_list *list = (struct key_list *)calloc(1, sizeof *list);
    server_page_start(service, request, response, NULL, "");
    text->failed = text->failed || !list;
    for (int i = 0; list && i <= DOORMAN_USAGE_WINDOW_COUNT; i++) {
        *list = (struct key_list){.limit = LISTS_DEFAULT, .abandoned = response->abandoned};
        list->is_nearest = i == DOORMAN_USAGE_WINDOW_COUNT;
        if (!list->is_nearest) list->window = (doorman_usage_window)i;
        list_take(list, service);
        if (i == 0 && !list->is_master) server_text_add(text, PAGE_NOT_MASTER);
        (list->is_nearest ? page_nearest : page_most_used)(text, list);
    }
    server_text_add(text, "<p class=soft>Units of the last minute, hour and day are decayed: what "
                          "was used a whole minute, hour or day ago counts a third.</p>"
                          "<p><a href='/limits'>all limits</a></p>");
    server_page_end(response, false);
    free(list);
}

static const struct http_route lists_routes[] = {{"/bans", .handle = handle_bans},
                                                 {"/top", .handle = handle_top},
                                                 {"/v1/bans", .handle = handle_json_bans},
                                                 {"/v1/top", .handle = handle_json_top},
                                                 {.path = NULL}};

const struct server_part server_part_lists = {.routes = lists_routes};
