/* doorman_server, part HTTP: holds, permits that wait, and reservations, as a page and as JSON.
 * This file only reads the state. It takes the lock of the service.
 *
 *     /holds      the holds that have lasted longest, the permits that have waited longest, and the
 *                 oldest reservations that are not settled
 *     /v1/holds   the same as JSON
 *
 * A program that knows a client_id can end the holds of that client, and one that knows the id of a
 * transfer can seize the transfer. So this file shows only the first part of a client_id, and no id
 * of a transfer. It shows the ids of holds, because they are of no use without the client_id,
 * except to an administrator (POST /v1/holds/end). */
#include "pages.h"

#define HOLDS_SHOWN 100

/* A hold, a permit that waits, or a reservation. */
struct hold_row {
    char holder[HOLDER_BYTES]; /* "": a transfer, which belongs to nobody */
    uint64_t id;               /* 0: a transfer, or a permit that waits */
    char resource[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1];
    char limit[DOORMAN_ID_BYTES_MAX + 1]; /* only of a permit that waits; "": none */
    double amount;
    size_t item_count;
    int priority;
    doorman_time since, left; /* how long it has lasted, and how long it lasts at most from now */
};

struct hold_list {
    bool is_master;
    doorman_permits_info info;
    struct hold_row holds[HOLDS_SHOWN], waits[HOLDS_SHOWN], reservations[HOLDS_SHOWN];
    size_t hold_count, wait_count, reservation_count;
};

/* ---- a copy of the state ---- */

static void hold_row_set_item(struct hold_row *row, const char *resource_id, const char *key) {
    snprintf(row->resource, sizeof row->resource, "%s", resource_id);
    snprintf(row->key, sizeof row->key, "%s", key);
}

static void list_take_holds(struct hold_list *list, const doorman_permits *permits,
                            doorman_time now) {
    doorman_cursor cursor = {0};
    doorman_permits_hold hold;
    while (list->hold_count < HOLDS_SHOWN && doorman_permits_next_hold(permits, &cursor, &hold)) {
        struct hold_row *row = &list->holds[list->hold_count++];
        if (hold.client_id) server_holder_write(hold.client_id, row->holder);
        row->id = hold.client_id ? hold.id : 0;
        hold_row_set_item(row, hold.resource_id, hold.key);
        row->amount = hold.amount;
        row->item_count = hold.item_count;
        row->since = now - hold.granted_at;
        row->left = hold.ends_at - now;
    }
}

static void list_take_waits(struct hold_list *list, const doorman_permits *permits,
                            doorman_time now) {
    doorman_cursor cursor = {0};
    doorman_permits_wait wait;
    while (list->wait_count < HOLDS_SHOWN && doorman_permits_next_wait(permits, &cursor, &wait)) {
        struct hold_row *row = &list->waits[list->wait_count++];
        server_holder_write(wait.client_id, row->holder);
        hold_row_set_item(row, wait.resource_id, wait.key);
        snprintf(row->limit, sizeof row->limit, "%s", wait.limit ? wait.limit : "");
        row->amount = wait.cost;
        row->priority = wait.priority;
        row->since = now - wait.asked_at;
        row->left = wait.ends_at - now;
    }
}

static void list_take_reservations(struct hold_list *list, const doorman_permits *permits,
                                   doorman_time now) {
    doorman_cursor cursor = {0};
    doorman_permits_reservation found;
    while (list->reservation_count < HOLDS_SHOWN &&
           doorman_permits_next_reservation(permits, &cursor, &found)) {
        struct hold_row *row = &list->reservations[list->reservation_count++];
        server_holder_write(found.client_id, row->holder);
        row->id = found.id;
        hold_row_set_item(row, found.resource_id, found.key);
        row->amount = found.amount;
        row->item_count = found.item_count;
        row->since = now - found.granted_at;
        row->left = found.ends_at - now;
    }
}

/* Copies at most 300 rows, so the lock is held for a short time. The caller frees the list. Returns
 * NULL if memory runs out. */
static struct hold_list *hold_list_take(struct service *service) {
    struct hold_list *list = (struct hold_list *)calloc(1, sizeof *list);
    if (!list) return NULL;
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    doorman_time now = doorman_clock();
    list->is_master = permits != NULL;
    if (permits) {
        doorman_permits_read(permits, &list->info);
        list_take_holds(list, permits, now);
        list_take_waits(list, permits, now);
        list_take_reservations(list, permits, now);
    }
    server_unlock(&service->lock);
    return list;
}

/* ---- JSON ---- */

static void hold_row_json(struct text *text, const struct hold_row *row, bool waits) {
    server_text_add(text, "{\"holder\":");
    if (row->holder[0]) server_text_add_json(text, "", row->holder);
    if (!row->holder[0]) server_text_add(text, "null");
    if (row->id) server_text_addf(text, ",\"id\":%" PRIu64, row->id);
    server_text_add_json(text, ",\"resource_id\":", row->resource);
    server_text_add_json(text, ",\"key\":", row->key);
    server_text_add(text, ",\"amount\":");
    server_text_add_number(text, row->amount);
    if (waits) {
        server_text_add_json(text, ",\"limit\":", row->limit);
        server_text_addf(text, ",\"priority\":%d", row->priority);
    } else {
        server_text_addf(text, ",\"items\":%zu", row->item_count);
    }
    server_text_addf(text, ",\"since\":%.3f,\"expires_in\":%.3f}", (double)row->since / 1e9,
                     row->left > 0 ? (double)row->left / 1e9 : 0);
}

static void hold_rows(struct text *text, const struct hold_row *rows, size_t count, bool waits) {
    for (size_t i = 0; i < count; i++) {
        if (i) server_text_add(text, ",\n");
        hold_row_json(text, &rows[i], waits);
    }
}

static void handle_json_holds(struct service *service, const struct http_request *request,
                              struct http_response *response) {
    struct text *text = &response->text;
    struct hold_list *list = hold_list_take(service);
    (void)request;
    response->type = "application/json";
    if (!list) {
        text->failed = true;
        return;
    }
    server_text_addf(text, "{\"is_master\":%s,\"holds\":%zu,\"waiting\":%zu,\"longest_held\":[",
                     list->is_master ? "true" : "false", list->info.hold_count,
                     list->info.wait_count);
    hold_rows(text, list->holds, list->hold_count, false);
    server_text_add(text, "],\"longest_waiting\":[");
    hold_rows(text, list->waits, list->wait_count, true);
    server_text_addf(text, "],\"reservations\":%zu,\"oldest_reservations\":[",
                     list->info.reservation_count);
    hold_rows(text, list->reservations, list->reservation_count, false);
    server_text_add(text, "]}\n");
    free(list);
}

/* ---- the page ---- */

static void page_hold_row(struct text *text, const struct hold_row *row, bool waits) {
    server_text_add(text, "<tr><td>");
    server_text_add_escaped(text, row->key[0] ? row->key : "(no key)", server_escape_html);
    server_text_add(text, " <span class=holder>");
    server_text_add_escaped(text, row->resource, server_escape_html);
    if (row->item_count > 1) server_text_addf(text, " and %zu more", row->item_count - 1);
    server_text_add(text, "</span></td>");
    server_page_cell_text(text, "holder", row->holder[0] ? row->holder : "(transfer)");
    server_page_cell(text, "units", row->amount);
    if (waits) {
        server_page_cell_text(text, "limit", row->limit);
        server_text_addf(text, "<td data-name='priority'>%d</td>", row->priority);
    }
    server_page_cell_duration(text, "since", row->since);
    server_page_cell_duration(text, "ends in", row->left);
    server_text_add(text, "</tr>");
}

/* Adds the table of holds, of permits that wait, or of reservations.
 *   all   how many there are in all */
static void page_table(struct text *text, const struct hold_row *rows, size_t count, size_t all,
                       const char *title) {
    const bool waits = strcmp(title, "Waiting") == 0;
    server_text_addf(text, "<h2>%s</h2><p class=soft>%zu in all", title, all);
    server_text_add(text, count < all ? ". The table has the longest.</p>" : "</p>");
    if (count == 0) return;
    server_text_add(text, "<table><thead><tr><th>key, resource</th><th class=words>holder</th>"
                          "<th>units</th>");
    if (waits) server_text_add(text, "<th class=words>limit</th><th>priority</th>");
    server_text_add(text, "<th>since</th><th>ends in</th></tr></thead><tbody>");
    for (size_t i = 0; i < count; i++) page_hold_row(text, &rows[i], waits);
    server_text_add(text, "</tbody></table>");
}

/* Says how long the server still learns which holds are in force. */
static void page_learning(struct text *text, doorman_time left) {
    if (left <= 0) return;
    server_text_add(text, "<p>This process has just become the master. For ");
    server_page_duration(text, left);
    server_text_add(text, " more it learns which holds are in force. Until then limits grant "
                          "nothing, unless their on_restart is full. A limit with a shorter "
                          "time_to_live has learned earlier.</p>");
}

static void handle_holds(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct text *text = &response->text;
    struct hold_list *list = hold_list_take(service);
    server_page_start(service, request, response, NULL, "");
    if (!list) {
        text->failed = true;
    } else if (!list->is_master) {
        server_text_add(text, PAGE_NOT_MASTER);
    } else {
        page_learning(text, list->info.learns_until - doorman_clock());
        page_table(text, list->holds, list->hold_count, list->info.hold_count, "Holds");
        page_table(text, list->waits, list->wait_count, list->info.wait_count, "Waiting");
        page_table(text, list->reservations, list->reservation_count, list->info.reservation_count,
                   "Reservations");
    }
    server_text_add(text, "<p><a href='/limits'>all limits</a></p>");
    server_page_end(response, false);
    free(list);
}

static const struct http_route holds_routes[] = {
    {"/holds", .handle = handle_holds}, {"/v1/holds", .handle = handle_json_holds}, {.path = NULL}};

const struct server_part server_part_holds = {.routes = holds_routes};
