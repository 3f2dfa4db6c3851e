/* doorman_server, part HTTP: all counters and bans, as lines of JSON for programs. This file takes
 * the lock of the service. A visit to a counter moves the clock of the permits, and adapts the
 * counter to the configuration.
 *
 *     /v1/counters                               all
 *     /v1/counters?template=GLOB&limit=NAME      of one limit; each of the two may be left out
 *     /v1/counters?after=NEXT                    the next page
 *
 * A response is a page: at most COUNTERS_MAX lines, and a last line with `next` if there is more.
 * It is made in slices: the lock is held while some rows are copied, and not while they are written
 * as text. */
#include "pages.h"

#include <math.h>

#define COUNTERS_MAX 10000 /* lines of a page */
#define SLICE_COUNTERS 256 /* rows of a slice */

/* The most counters that are visited for one page. The page leaves out counters that are fresh or
 * that its filter excludes, so it can have few lines. */
#define COUNTERS_VISITED_MAX 500000

/* A counter or a ban. The texts have room for the longest valid id. */
struct counter_row {
    bool is_ban;
    char glob[DOORMAN_ID_BYTES_MAX + 1], limit[DOORMAN_ID_BYTES_MAX + 1];
    char resource[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1];
    double size, used, remaining;
    doorman_time rest; /* until the counter is fresh, or the ban ends */
};

struct counter_page {
    char glob[DOORMAN_ID_BYTES_MAX + 1], limit[DOORMAN_ID_BYTES_MAX + 1]; /* "": all */
    const bool *abandoned; /* see struct http_response */
    doorman_counter_cursor cursor;
    size_t visit_count, line_count;
    doorman_status status; /* OK: there is more */
    bool is_master;
    bool is_reading; /* the store still has counters that are not in memory */
    struct counter_row rows[SLICE_COUNTERS];
    size_t row_count;
};

/* ---- the query */

static bool page_refuse(struct http_response *response, const char *name, const char *rule) {
    char error[160];
    snprintf(error, sizeof error, "%s: %s", name, rule);
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return false;
}

/* Reads a parameter. If it is missing, `out` is empty. If it is wrong, returns false and writes an
 * error. */
static bool page_read_text(const char *query, const char *name, char out[DOORMAN_ID_BYTES_MAX + 1],
                           struct http_response *response) {
    out[0] = 0;
    if (server_query_count(query, name) == 0) return true;
    if (!server_query_read(query, name, out, DOORMAN_ID_BYTES_MAX + 1)) {
        return page_refuse(response, name, "must not contain a 0 byte");
    }
    return out[0] || page_refuse(response, name, "must not be empty");
}

bool server_counters_read_position(const char *text, const struct service *service,
                                   doorman_counter_cursor *out) {
    uint64_t numbers[3] = {0};
    const char *at = text;
    if (!text[0]) return true;
    for (size_t i = 0; i < 3; i++) {
        numbers[i] = server_number_read(at, 16, &at);
        if (*at++ != '-') return false;
    }
    *out = (doorman_counter_cursor){numbers[0], numbers[1], numbers[2]};
    return server_number_read(at, 16, &at) == (uint64_t)service->started_at && !*at && numbers[2];
}

/* Returns whether the query names no limit, or one that the configuration has. Precondition: the
 * lock is held. */
static bool page_has_limit(const struct counter_page *page, const doorman_permits *permits) {
    doorman_cursor cursor = {0};
    doorman_permits_limit limit;
    if (!page->glob[0] && !page->limit[0]) return true;
    while (doorman_permits_next_limit(permits, &cursor, &limit)) {
        bool is_wrong = (page->glob[0] && strcmp(page->glob, limit.identifier_glob) != 0) ||
                        (page->limit[0] && strcmp(page->limit, limit.limit) != 0);
        if (!is_wrong) return true;
    }
    return false;
}

/* Reads which counters a page has. If the query is not valid, returns false and writes an error. */
static bool page_read_query(struct counter_page *page, struct service *service, const char *query,
                            struct http_response *response) {
    static const char *const names[] = {"template", "limit", "after", NULL};
    char after[DOORMAN_ID_BYTES_MAX + 1];
    if (!server_http_check_query(query, names, response) ||
        !page_read_text(query, "template", page->glob, response) ||
        !page_read_text(query, "limit", page->limit, response) ||
        !page_read_text(query, "after", after, response)) {
        return false;
    }
    return server_counters_read_position(after, service, &page->cursor) ||
           page_refuse(response, "after",
                       "is not a position of this process; start again without `after`");
}

/* Returns whether this process is master and page_has_limit returns true. If not, writes an
 * error. */
static bool page_find(struct counter_page *page, struct service *service,
                      struct http_response *response) {
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    page->is_master = permits != NULL;
    bool is_known = permits && page_has_limit(page, permits);
    server_unlock(&service->lock);
    if (is_known) return true;
    server_http_response_set_error(response, 404, "NOT_FOUND",
                                   page->is_master
                                       ? "there is no limit with this template and name"
                                       : "this process is not the master, so it has no counters");
    return false;
}

/* ---- copies of the state */

/* Returns whether a page shows a counter or a ban. The page leaves out what the query excludes,
 * fresh counters, and bans that have ended. */
static bool page_shows(const struct counter_page *page, const doorman_permits_counter *found) {
    if (!found->limit) return false;
    if (page->glob[0] && strcmp(page->glob, found->identifier_glob) != 0) return false;
    if (page->limit[0] && strcmp(page->limit, found->limit) != 0) return false;
    if (found->is_ban) return found->ban_rest > 0;
    return found->state.used > 0 || found->state.reset_after > 0;
}

static void page_add(struct counter_page *page, const doorman_permits_counter *found) {
    const doorman_permit_detail *state = &found->state;
    assert(page->row_count < SLICE_COUNTERS);
    struct counter_row *row = &page->rows[page->row_count++];
    row->is_ban = found->is_ban;
    snprintf(row->glob, sizeof row->glob, "%s", found->identifier_glob);
    snprintf(row->limit, sizeof row->limit, "%s", found->limit);
    snprintf(row->resource, sizeof row->resource, "%s", found->resource_id);
    snprintf(row->key, sizeof row->key, "%s", found->key);
    row->size = state->most;
    row->used = state->used;
    row->remaining = state->remaining;
    row->rest = found->is_ban ? found->ban_rest : state->reset_after;
}

/* Visits one counter. Returns whether the slice continues. Precondition: the lock is held. */
static bool page_step(struct counter_page *page, struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_permits_counter found;
    const char *name = page->limit[0] ? page->limit : NULL;
    page->is_master = permits != NULL;
    page->is_reading = service->state_status && service->state_status->is_reading;
    if (!permits || page->is_reading) return false;
    page->status = doorman_permits_next_counter(permits, name, &page->cursor, &found, now);
    if (page->status != DOORMAN_OK) return false;
    if (page_shows(page, &found)) page_add(page, &found);
    return ++page->visit_count < COUNTERS_VISITED_MAX && page->row_count < SLICE_COUNTERS &&
           page->line_count + page->row_count < COUNTERS_MAX &&
           !server_is_abandoned(page->abandoned);
}

/* ---- JSON */

static void counter_text(struct text *text, const char *name, const char *value) {
    if (!value[0]) return;
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_json(text, "", value);
}

/* `used` is rounded up and `remaining` down to six decimals, as in messages: see
 * docs/protocol.md. */
static double six_decimals(double amount) { return floor(amount * 1e6) / 1e6; }
static double six_decimals_up(double amount) { return ceil(amount * 1e6) / 1e6; }

static void counter_number(struct text *text, const char *name, double value) {
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_number(text, value);
}

/* A field without a value is left out: the resource of a counter per template, the key of a counter
 * that is not per key, and the template and limit of a ban that an administrator has set. */
static void counter_row_json(struct text *text, const struct counter_row *row) {
    server_text_addf(text, "{\"what\":\"%s\"", row->is_ban ? "ban" : "counter");
    counter_text(text, "template", row->glob);
    counter_text(text, "limit", row->limit);
    counter_text(text, "resource_id", row->resource);
    counter_text(text, "key", row->key);
    if (!row->is_ban) {
        counter_number(text, "size", row->size);
        counter_number(text, "used", six_decimals_up(row->used));
        counter_number(text, "remaining", six_decimals(row->remaining));
    }
    counter_number(text, row->is_ban ? "ends_in" : "reset_after", (double)row->rest / 1e9);
    server_text_add(text, "}\n");
}

static void page_write_rows(struct counter_page *page, struct text *text) {
    for (size_t i = 0; i < page->row_count; i++) counter_row_json(text, &page->rows[i]);
    page->line_count += page->row_count;
    page->row_count = 0;
}

static void page_write(struct counter_page *page, struct service *service, struct text *text) {
    bool more = true;
    while (more && page->line_count < COUNTERS_MAX && page->visit_count < COUNTERS_VISITED_MAX &&
           !server_is_abandoned(page->abandoned)) {
        struct slice slice = server_slice_start(service);
        do {
            more = page_step(page, service, slice.started_at);
        } while (more && !server_slice_step(&slice));
        server_slice_end(&slice, service);
        more = page->is_master && !page->is_reading && page->status == DOORMAN_OK;
        page_write_rows(page, text);
    }
}

void server_counters_add_position(struct text *text, const struct service *service,
                                  const doorman_counter_cursor *cursor) {
    server_text_addf(text, "%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64, cursor->table,
                     cursor->position, cursor->removals, (uint64_t)service->started_at);
}

static void page_write_next(const struct counter_page *page, const struct service *service,
                            struct text *text) {
    server_text_add(text, "{\"next\":\"");
    server_counters_add_position(text, service, &page->cursor);
    server_text_add(text, "\"}\n");
}

/* Ends a response whose lines are written: adds the position of the next page if there is one, or
 * makes the response an error. */
static void page_finish(struct counter_page *page, const struct service *service,
                        struct http_response *response) {
    if (page->is_reading) {
        server_http_response_set_unavailable(
            response, "the counters of the store are not read yet, so this list would lack some");
    } else if (!page->is_master) {
        server_http_response_set_error(
            response, 404, "NOT_FOUND",
            "this process is not the master any more, so it has no counters");
    } else if (page->status == DOORMAN_INVALID_ARGUMENT) {
        page_refuse(response, "after",
                    "a limit was removed from the configuration meanwhile; start again without "
                    "`after`");
    } else if (page->status == DOORMAN_OK) {
        page_write_next(page, service, &response->text);
    } else if (page->status == DOORMAN_OUT_OF_MEMORY) {
        response->text.failed = true;
    }
}

static void handle_counters(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    struct counter_page *page = (struct counter_page *)calloc(1, sizeof *page);
    if (!page) {
        response->text.failed = true;
        return;
    }
    page->abandoned = response->abandoned;
    if (page_read_query(page, service, request->query, response) &&
        page_find(page, service, response)) {
        response->type = "application/x-ndjson";
        page_write(page, service, &response->text);
        page_finish(page, service, response);
    }
    free(page);
}

static const struct http_route counters_routes[] = {{"/v1/counters", .handle = handle_counters},
                                                    {.path = NULL}};

const struct server_part server_part_counters = {.routes = counters_routes};
