/* doorman_server, part HTTP: the status page. This file reads snapshots and the history, and writes
 * HTML. page.css and page.js are the style and the script; the build embeds them.
 *
 * The pages are for operators. `/` lists the resources, 100 on a page, or the limits (front.c).
 * Each resource has a page with its leases, and `/clients` searches the leases of holders. The
 * pages work without JavaScript, except the button that resets a key. With JavaScript, a short
 * script fetches the pages of resources, limits and keys again every two seconds and replaces
 * <main>. The Content-Security-Policy lets a page load nothing from other servers. It also forbids
 * style attributes, so bars and lines are SVG. */
#include "pages.h"

#include "build/page_files.h" /* page_css and page_js, made from page.css and page.js */

#define PAGE_ROWS 100

/* The state of the process, at the top of a page. The color is green only if this process is master
 * and, in a node with a parent, has the leases of its resources. <main> has the state too, for the
 * script. */
struct page_state {
    const char *class, *text;
    char child[CHILDREN_TEXT]; /* the text, if it is about a child node */
};

#define LEASES_COUNTED 1000 /* resources that are counted, because the lock is held */

/* Returns the state of the leases of a node with a parent. Precondition: the lock is held. */
static struct page_state page_leases_read(struct service *service,
                                          const struct snapshot *snapshot) {
    assert(server_lock_is_held(&service->lock));
    doorman_cursor cursor = {.position = 0};
    doorman_server_resource info;
    size_t count = 0, leased_count = 0;
    while (count < LEASES_COUNTED &&
           doorman_server_next_resource(service->server, &cursor, &info, snapshot->now)) {
        count++;
        leased_count += info.leased;
    }
    if (count > 0 && leased_count == 0)
        return (struct page_state){"bad", "no lease from the parent", ""};
    if (leased_count < count) return (struct page_state){"warn", "some leases are missing", ""};
    if (snapshot->parent.trouble.since == 0) return (struct page_state){"good", "live", ""};
    return count > 0 ? (struct page_state){"warn", "live, but the parent fails", ""}
                     : (struct page_state){"warn", "the parent fails", ""};
}

/* Finds a problem with which this process still works: a configuration or a file that was refused
 * or cannot be read, or a child node that is silent or has ended. Precondition: the lock is
 * held. */
static void page_find_trouble(struct service *service, struct page_state *state, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    const struct config_load *load = &service->last_load;
    bool failed = false;
    for (int i = 0; i < LOAD_FAILURE_COUNT; i++) failed = failed || load->failures[i][0];
    server_children_text(service, state->child, now);
    if (load->error[0]) {
        *state = (struct page_state){"warn", "live, but the last configuration was refused", ""};
    } else if (failed) {
        *state = (struct page_state){"warn", "live, but a file was refused or cannot be read", ""};
    } else if (state->child[0]) {
        state->class = "warn";
    }
}

static struct page_state page_state_read(struct service *service) {
    struct snapshot snapshot = {.now = 0};
    struct page_state state = {"good", "live", ""};
    server_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    if (service->settings->parents.count > 0) state = page_leases_read(service, &snapshot);
    if (strcmp(state.class, "good") == 0) page_find_trouble(service, &state, snapshot.now);
    server_unlock(&service->lock);
    if (snapshot.is_master) return state;
    return snapshot.master[0] ? (struct page_state){"warn", "not the master", ""}
                              : (struct page_state){"bad", "no master", ""};
}

/* Adds the field that filters a list by a part of a name. */
static void page_filter(struct text *text, const struct http_request *request, const char *filter) {
    server_text_addf(text, "<form action='%s' role=search>", request->path);
    char id[DOORMAN_ID_BYTES_MAX + 1];
    if (server_query_read(request->query, "resource", id, sizeof id)) {
        server_text_add(text, "<input type=hidden name=resource value=\"");
        server_text_add_escaped(text, id, server_escape_html);
        server_text_add(text, "\">");
    }
    server_text_add(text,
                    "<input name=filter aria-label='part of a name' placeholder='part of a name' "
                    "value=\"");
    server_text_add_escaped(text, filter, server_escape_html);
    server_text_add(text, "\"><button>filter</button></form>");
}

static void page_search(struct text *text, const char *client) {
    server_text_add(text, "<form action='/clients' role=search><input name=client required "
                          "aria-label='start of a client id' placeholder='start of a client id' "
                          "value=\"");
    server_text_add_escaped(text, client, server_escape_html);
    server_text_add(text, "\"><button>find client</button></form>");
}

/* Adds links to pages, if this server keeps acts and has the part ADMIN. Most of these pages need
 * both. */
static void page_nav(struct text *text, const struct service *service) {
    const bool has_acts =
        server_keeps_acts(service) && !server_flag_lacks(FLAG_CONFIG_CACHE); /* part ADMIN */
    if (!has_acts) return;
    server_text_add(text, "<nav aria-label=pages><a href='/limits'>limits</a>"
                          "<a href='/overrides'>overrides</a><a href='/audit'>audit</a>"
                          "<a href='/versions'>versions</a>");
    if (service->settings->shards) server_text_add(text, "<a href='/shards'>shards</a>");
    server_text_add(text, "</nav>");
}

void server_page_start(struct service *service, const struct http_request *request,
                       struct http_response *response, const char *filter, const char *client) {
    struct text *text = &response->text;
    struct page_state state = page_state_read(service);
    response->type = "text/html; charset=utf-8";
    server_text_add(text, "<!doctype html><html lang=en><head><meta charset=utf-8>"
                          "<meta name=viewport content='width=device-width,initial-scale=1'>"
                          "<link rel=icon href='data:,'><title>");
    server_text_add_escaped(text, service->node, server_escape_html);
    server_text_add(text, " - Doorman</title>");
    if (filter) {
        server_text_add(text, "<noscript><meta http-equiv=refresh content=30></noscript>");
    }
    server_text_addf(text, "<style nonce='%s'>", response->nonce);
    server_text_add(text, page_css);
    server_text_add(text, "</style></head><body><header><h1><a href='/'>Doorman</a> ");
    server_text_add_escaped(text, service->node, server_escape_html);
    server_text_addf(text, "</h1><span id=live class=%s>", state.class);
    server_text_add_escaped(text, state.child[0] ? state.child : state.text, server_escape_html);
    server_text_add(text, "</span>");
    page_nav(text, service);
    if (filter) page_filter(text, request, filter);
    page_search(text, client);
    server_text_add(text, "</header>");
    server_text_addf(text, "<main data-state=%s data-text='", state.class);
    server_text_add_escaped(text, state.child[0] ? state.child : state.text, server_escape_html);
    server_text_add(text, "'>");
}

void server_page_end(struct http_response *response, bool has_script) {
    struct text *text = &response->text;
    server_text_add(text,
                    "</main><footer>doorman_server " DOORMAN_VERSION
                    " &middot; <a href='/metrics'>metrics</a> &middot; <a href='/v1/status'>status "
                    "as JSON</a> &middot; <a href='/v1/config'>configuration</a>");
    server_page_terms(text);
    server_text_add(text, "</footer>");
    if (has_script) {
        server_text_addf(text, "<script nonce='%s'>", response->nonce);
        server_text_add(text, page_js);
        server_text_add(text, "</script>");
    }
    server_text_add(text, "</body></html>\n");
}

void server_page_key_start(struct text *text, const char *resource, const char *key) {
    server_text_add(text, "<tr><td><a href=\"/keys?resource=");
    server_text_add_escaped(text, resource, server_escape_query);
    server_text_add(text, "&amp;key=");
    server_text_add_escaped(text, key, server_escape_query);
    server_text_add(text, "\">");
    server_text_add_escaped(text, key[0] ? key : "(no key)", server_escape_html);
    server_text_add(text, "</a> <span class=holder>");
    server_text_add_escaped(text, resource, server_escape_html);
    server_text_add(text, "</span></td>");
}

void server_page_cell_text(struct text *text, const char *name, const char *value) {
    server_text_addf(text, "<td data-name='%s'>", name);
    server_text_add_escaped(text, value, server_escape_html);
    server_text_add(text, "</td>");
}

void server_page_cell_duration(struct text *text, const char *name, doorman_time duration) {
    server_text_addf(text, "<td data-name='%s'>", name);
    server_page_duration(text, duration);
    server_text_add(text, "</td>");
}

void server_page_cell(struct text *text, const char *name, double amount) {
    server_text_addf(text, "<td data-name='%s'>", name);
    server_text_add_amount(text, amount);
    server_text_add(text, "</td>");
}

/* Returns why a node has no lease of a resource. */
static const char *lease_reason(const struct row *row, const struct parent_state *parent) {
    if (parent->trouble.since) return "it is not reached, see the top of the first page";
    switch (row->info.outcome) {
    case DOORMAN_TRY_LATER: return "it learns, or has no lease of its own yet";
    case DOORMAN_UNMATCHED: return "no template of the root matches the resource";
    case DOORMAN_FULL: return "it has reached a limit, such as --max-holders";
    case DOORMAN_GRANTED:
    default: return "it has not answered yet, or its last lease has ended";
    }
}

/* Adds why a lease is less than its holder wants. A reason is one of the terms of page_facts.c. */
static void page_reason(struct text *text, doorman_lease_reason reason) {
    const char *name = doorman_lease_reason_name(reason);
    if (!name[0]) return;
    server_page_start_term(text, "span", name);
    server_text_addf(text, "%s</span>", name);
}

/* Adds the lease of a node, or why there is none. */
static void page_own_lease(struct text *text, const struct row *row,
                           const struct parent_state *parent, doorman_time now) {
    if (!row->info.leased) {
        server_text_addf(text, " <span class=bad>no lease from the parent: %s</span>",
                         lease_reason(row, parent));
        return;
    }
    server_text_add(text, " ");
    server_text_add_amount(text, row->info.capacity);
    server_text_add(text, " leased from the parent ");
    server_text_add_escaped(text, parent->address, server_escape_html);
    server_text_add(text, " for ");
    server_page_duration(text, row->info.lease_end - now);
    if (!row->info.reason) return;
    server_text_add(text, ", less than it wants: ");
    page_reason(text, row->info.reason);
}

/* Says why the capacity in force is less than the configured one (H11). */
static void page_overload(struct text *text, const doorman_server_resource *info,
                          doorman_time now) {
    const doorman_overload_report *sum = &info->overload;
    server_text_add(text, " <span class=warn>lowered from ");
    server_text_add_amount(text, info->configured_capacity);
    server_text_add(text, " by reports of overload ");
    server_page_duration(text, now - info->overload_cut_at);
    server_text_add(text, " ago");
    if (sum->arrived > 0) {
        server_text_addf(text, ": now %.0f %% refused", 100 * sum->refused / sum->arrived);
    }
    if (sum->finished > 0) {
        server_text_addf(text, ", %.0f %% late", 100 * sum->late / sum->finished);
    }
    server_text_add(text, "</span>");
}

/* Adds warnings about conditions that an operator should know. */
static void page_warnings(struct text *text, struct service *service, const struct row *row,
                          const struct parent_state *parent, doorman_time now) {
    if (row->info.is_learning) {
        server_text_add(text, " <span class=warn>learning ");
        server_page_learning_time(text, row->info.learned_at, now);
        server_text_add(text, "</span>");
    }
    if (row->info.overshoot > 0) {
        server_text_add(text, " <span class=bad>");
        server_page_start_term(text, "span", "over its capacity");
        server_text_add(text, "over its capacity</span></span>");
    }
    if (row->info.overload_cut_at && row->info.capacity < row->info.configured_capacity) {
        page_overload(text, &row->info, now);
    }
    if (row->info.unconfirmed_count > 0) {
        server_text_addf(text, " <span class=bad>%zu holder%s not confirm</span>",
                         row->info.unconfirmed_count,
                         row->info.unconfirmed_count == 1 ? " does" : "s do");
    }
    if (service->settings->parents.count > 0) page_own_lease(text, row, parent, now);
}

static void page_unit(struct text *text, const char *unit) {
    if (unit[0]) server_text_add(text, " ");
    server_text_add_escaped(text, unit, server_escape_html);
}

/* Adds an amount behind its name, which is one of the terms. */
static void page_amount(struct text *text, const char *name, double amount) {
    server_text_add(text, " &middot; ");
    server_page_start_term(text, "span", name);
    server_text_addf(text, "%s ", name);
    server_text_add_amount(text, amount);
    server_text_add(text, "</span>");
}

static void page_numbers(struct text *text, const struct row *row) {
    const doorman_server_resource *info = &row->info;
    server_text_add(text, "<p>");
    server_page_start_term(text, "span", "has");
    server_text_add(text, "has <b>");
    server_text_add_amount(text, info->has);
    if (row->kind == DOORMAN_NO_ALGORITHM) {
        server_text_add(text, "</b>");
        page_unit(text, row->unit);
        server_text_add(text, ", not limited");
    } else {
        server_text_add(text, row->info.divides_capacity ? "</b> of <b>" : "</b>, each up to <b>");
        server_text_add_amount(text, info->capacity);
        server_text_add(text, "</b>");
        page_unit(text, row->unit);
    }
    server_text_add(text, "</span>");
    server_page_start_term(text, "span", "wants");
    server_text_add(text, "wants <b>");
    server_text_add_amount(text, info->wants);
    server_text_add(text, "</b></span></p><small>");
    server_page_start_term(text, "span", "holder");
    server_text_addf(text, "%zu holder%s</span>, ", info->holder_count,
                     info->holder_count == 1 ? "" : "s");
    server_text_add_amount(text, info->subclients);
    server_text_addf(text, " subclient%s &middot; ", info->subclients <= 1 ? "" : "s");
    server_page_start_term(text, "span", "committed");
    server_text_add(text, "committed ");
    server_text_add_amount(text, info->committed);
    server_text_add(text, "</span>");
    if (row->reserved > 0) page_amount(text, "reserved", row->reserved);
    if (info->has_safe_capacity) page_amount(text, "safe", info->safe_capacity);
    server_text_add(text, "</small>");
}

static void page_resource(struct text *text, struct service *service, const struct row *row,
                          const struct parent_state *parent, doorman_time now) {
    server_text_add(text, "<li class=resource><div class=name><a href=\"/resources?resource=");
    server_text_add_escaped(text, row->id, server_escape_query);
    server_text_add(text, "\">");
    server_text_add_escaped(text, row->id, server_escape_html);
    server_text_addf(text, "</a><small>%s", server_kind_name(row->kind));
    page_warnings(text, service, row, parent, now);
    server_text_add(text, "</small></div><div class=numbers>");
    server_graph_add_bar(text, row);
    page_numbers(text, row);
    server_text_add(text, "</div>");
    server_graph_add_trend(text, service, row->id);
    server_text_add(text, "</li>");
}

/* An order for a list. `name` is its name in the query. `title` is its name on the page. */
struct order {
    const char *name, *title;
    int (*compare)(const void *left, const void *right);
};

/* Compares two rows. Larger amounts come first. Rows with equal amounts are in the order of their
 * ids. */
static int compare_amounts(double left, double right, const char *left_id, const char *right_id) {
    return left > right ? -1 : left < right ? 1 : strcmp(left_id, right_id);
}

#define ORDER_OF(name, type, amount)                                                               \
    static int name(const void *left, const void *right) {                                         \
        const struct type *a = (const struct type *)left, *b = (const struct type *)right;         \
        return compare_amounts((double)(a->amount), (double)(b->amount), a->id, b->id);            \
    }
ORDER_OF(compare_row_has, row, info.has)
ORDER_OF(compare_row_wants, row, info.wants)
ORDER_OF(compare_row_capacity, row, info.capacity)
ORDER_OF(compare_row_holders, row, info.holder_count)
ORDER_OF(compare_lease_has, lease_row, info.has)
ORDER_OF(compare_lease_wants, lease_row, info.wants)
ORDER_OF(compare_lease_committed, lease_row, info.committed)
ORDER_OF(compare_lease_subclients, lease_row, info.subclients)
ORDER_OF(compare_lease_priority, lease_row, info.priority)
ORDER_OF(compare_lease_reasons, lease_row, info.reason)
ORDER_OF(compare_lease_expiry, lease_row, info.expires_at)
ORDER_OF(compare_lease_age, lease_row, info.granted_at)

static int compare_lease_ids(const void *left, const void *right) {
    return strcmp(((const struct lease_row *)left)->id, ((const struct lease_row *)right)->id);
}

static const struct order row_orders[] = {
    {"id", "name", server_compare_row_ids},      {"has", "has", compare_row_has},
    {"wants", "wants", compare_row_wants},       {"capacity", "capacity", compare_row_capacity},
    {"holders", "holders", compare_row_holders}, {NULL, NULL, NULL}};
static const struct order lease_orders[] = {{"holder", "holder", compare_lease_ids},
                                            {"has", "has", compare_lease_has},
                                            {"committed", "committed", compare_lease_committed},
                                            {"wants", "wants", compare_lease_wants},
                                            {"reason", "reason", compare_lease_reasons},
                                            {"subclients", "subclients", compare_lease_subclients},
                                            {"priority", "priority", compare_lease_priority},
                                            {"expiry", "ends in", compare_lease_expiry},
                                            {"seen", "last renewal", compare_lease_age},
                                            {NULL, NULL, NULL}};

/* The part of a list that a page shows, and its order. */
struct view {
    const struct http_request *request;
    const struct order *orders, *order;
    char filter[DOORMAN_ID_BYTES_MAX + 1], resource[DOORMAN_ID_BYTES_MAX + 1];
    size_t first, end, count;
};

static struct view view_read(const struct http_request *request, const struct order *orders) {
    struct view view = {.request = request, .orders = orders, .order = orders};
    char word[16];
    server_query_read(request->query, "filter", view.filter, sizeof view.filter);
    server_query_read(request->query, "resource", view.resource, sizeof view.resource);
    if (server_query_read(request->query, "sort", word, sizeof word)) {
        for (const struct order *order = orders; order->name; order++) {
            if (strcmp(order->name, word) == 0) view.order = order;
        }
    }
    if (server_query_read(request->query, "page", word, sizeof word) && word[0] != '-') {
        unsigned long page = strtoul(word, NULL, 10);
        view.first = page > 1 && page < ROWS_MAX ? (page - 1) * PAGE_ROWS : 0;
    }
    return view;
}

static void view_set_count(struct view *view, size_t count) {
    view->count = count;
    if (view->first >= count) view->first = 0;
    view->end = count - view->first < PAGE_ROWS ? count : view->first + PAGE_ROWS;
}

/* Adds a link to the same list with another order or page. */
static void view_add_link(struct text *text, const struct view *view, const struct order *order,
                          size_t page, const char *title) {
    server_text_addf(text, "<a href=\"%s?sort=%s", view->request->path, order->name);
    if (view->resource[0]) {
        server_text_add(text, "&amp;resource=");
        server_text_add_escaped(text, view->resource, server_escape_query);
    }
    if (view->filter[0]) {
        server_text_add(text, "&amp;filter=");
        server_text_add_escaped(text, view->filter, server_escape_query);
    }
    if (page > 1) server_text_addf(text, "&amp;page=%zu", page);
    server_text_addf(text, "\">%s</a>", title);
}

static void view_add_bars(struct text *text, const struct view *view, const char *what) {
    size_t page = view->first / PAGE_ROWS + 1;
    server_text_add(text, "<div class=bars><nav><span class=soft>sorted by</span>");
    for (const struct order *order = view->orders; order->name; order++) {
        if (order == view->order) {
            server_text_addf(text, "<b>%s</b>", order->title);
        } else {
            view_add_link(text, view, order, 1, order->title);
        }
    }
    server_text_add(text, "</nav><nav>");
    if (view->first > 0) view_add_link(text, view, view->order, page - 1, "&larr; previous");
    server_text_addf(text, "<span>%zu to %zu of %zu %s</span>", view->count ? view->first + 1 : 0,
                     view->end, view->count, what);
    if (view->end < view->count) view_add_link(text, view, view->order, page + 1, "next &rarr;");
    server_text_add(text, "</nav></div>");
}

void server_page_resources(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    struct view view = view_read(request, row_orders);
    struct snapshot snapshot = {.now = 0};
    struct text *text = &response->text;
    snapshot.abandoned = response->abandoned;
    server_snapshot_take(&snapshot, service, view.filter, ROWS_MAX);
    view_set_count(&view, snapshot.row_count);
    if (snapshot.row_count > 1) {
        qsort(snapshot.rows, snapshot.row_count, sizeof *snapshot.rows, view.order->compare);
    }
    server_page_start(service, request, response, view.filter, "");
    server_page_facts(text, service, &snapshot);
    view_add_bars(text, &view, "resources");
    server_text_add(text, "<ol>");
    for (size_t i = view.first; i < view.end; i++) {
        page_resource(text, service, &snapshot.rows[i], &snapshot.parent, snapshot.now);
    }
    server_text_add(text, "</ol>");
    if (snapshot.resource_count == 0) {
        server_text_add(text, snapshot.is_master
                                  ? "<p class=soft>No resource has a holder at present.</p>"
                                  : "<p class=soft>This process is not the master. Only the master "
                                    "knows the resources.</p>");
    } else if (snapshot.row_count == 0) {
        server_text_add(text, "<p class=soft>No resource name contains this text.</p>");
    } else {
        server_text_add(text,
                        "<p class='soft key'><span class=k1>has</span><span class=k2>wants</span>"
                        "<span class=k3>free</span>the edge marks the capacity</p>");
    }
    server_page_end(response, true);
    text->failed = text->failed || snapshot.failed;
    server_snapshot_uninit(&snapshot);
}

/* Adds the peers of a holder that shares its id or does not confirm its lease. */
static void page_suspect(struct text *text, const struct suspect *suspect, bool is_shared) {
    if (!suspect || !suspect->peer[0]) return;
    server_text_add(text, " <span class=soft>from ");
    server_text_add_escaped(text, suspect->peer, server_escape_html);
    if (is_shared && suspect->other_peer[0]) {
        server_text_add(text, " and ");
        server_text_add_escaped(text, suspect->other_peer, server_escape_html);
    }
    if (suspect->token[0]) {
        server_text_add(text, ", token ");
        server_text_add_escaped(text, suspect->token, server_escape_html);
    }
    server_text_add(text, "</span>");
}

/* Adds the name of a holder, and what an operator should know about it.
 *   child   the holder, if it is a child node whose page is known; NULL: no link */
static void page_holder(struct text *text, const struct lease_row *row, const struct child *child,
                        const char *resource) {
    const doorman_server_lease *info = &row->info;
    bool has_link = info->is_server && child;
    server_page_link(text, has_link ? child->http_address : "", resource, row->id);
    if (info->is_server) server_text_add(text, " <span class=soft>(a server)</span>");
    if (info->shared) server_text_add(text, " <span class=bad>used by two processes</span>");
    if (info->shared && info->unconfirmed) server_text_add(text, ",");
    if (info->unconfirmed) server_text_add(text, " <span class=bad>does not confirm</span>");
    page_suspect(text, row->suspect, info->shared);
    if (row->is_late) {
        server_text_add(text, " <span class=warn>");
        server_page_start_term(text, "span", "late");
        server_text_add(text, "late</span></span>");
    }
}

/* Adds the cells that follow the name of the holder, and ends the row. */
static void page_lease(struct text *text, const struct lease_row *row, doorman_time now) {
    const doorman_server_lease *info = &row->info;
    server_text_add(text, "</td><td data-name=has>");
    server_text_add_amount(text, info->has);
    server_text_add(text, "</td><td data-name=committed>");
    server_text_add_amount(text, info->committed);
    server_text_add(text, "</td><td data-name=wants>");
    server_text_add_amount(text, info->wants);
    server_text_add(text, "</td><td data-name=reason>");
    page_reason(text, info->reason);
    server_text_add(text, "</td><td data-name=subclients>");
    server_text_add_amount(text, info->subclients);
    if (info->is_server) { /* each of the clients below it has a priority of its own */
        server_text_add(text, "</td><td data-name=priority>&ndash;</td><td data-name='ends in'>");
    } else {
        server_text_addf(text, "</td><td data-name=priority>%d</td><td data-name='ends in'>",
                         info->priority);
    }
    server_page_duration(text, info->expires_at - now);
    server_text_add(text, "</td><td data-name=seen>");
    if (info->granted_at > 0) {
        server_page_duration(text, now - info->granted_at);
    } else {
        server_text_add(text, "no lease yet");
    }
    server_text_add(text, "</td></tr>");
}

/* Keeps the leases whose holder ids contain the filter, and sorts them. */
static void lease_list_arrange(struct lease_list *leases, const struct view *view) {
    size_t kept = 0;
    for (size_t i = 0; i < leases->row_count; i++) {
        if (strstr(leases->rows[i].id, view->filter)) {
            leases->rows[kept++] = leases->rows[i];
        } else {
            server_lease_row_uninit(&leases->rows[i]);
        }
    }
    leases->row_count = kept;
    if (kept > 1) qsort(leases->rows, kept, sizeof *leases->rows, view->order->compare);
}

static void page_start_table(struct text *text, const struct order *columns) {
    server_text_add(text, "<table><thead><tr>");
    for (const struct order *column = columns; column->name; column++) {
        server_page_start_term(text, "th", column->title);
        server_text_addf(text, "%s</th>", column->title);
    }
    server_text_add(text, "</tr></thead><tbody>");
}

/* Adds what people should know about a resource, and a link to the same resource at the parent. */
static void page_about(struct text *text, struct service *service,
                       const struct lease_list *leases) {
    struct snapshot snapshot = {.now = 0};
    server_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    server_unlock(&service->lock);
    server_text_addf(text, "<p class=soft>%s", server_kind_name(leases->resource.kind));
    if (leases->glob) {
        server_text_add(text, " by the template ");
        server_text_add_escaped(text, leases->glob, server_escape_html);
    }
    page_warnings(text, service, &leases->resource, &snapshot.parent, leases->now);
    if (snapshot.parent_http[0]) {
        server_text_add(text, " &middot; ");
        server_page_link(text, snapshot.parent_http, leases->resource_id,
                         "this resource at the parent");
    }
    server_text_add(text, "</p><p class=soft>");
    if (leases->description) server_text_add_escaped(text, leases->description, server_escape_html);
    server_text_add(text, "</p>");
}

static void page_leases(struct text *text, struct service *service, struct lease_list *leases,
                        const struct view *view) {
    const struct row *row = &leases->resource;
    struct child_list children;
    server_children_take(&children, service);
    page_about(text, service, leases);
    server_text_add(text, "<div class=big><div class=numbers>");
    server_graph_add_bar(text, row);
    page_numbers(text, row);
    server_text_add(text, "</div>");
    server_graph_add_trend(text, service, view->resource);
    server_text_add(text, "</div>");
    view_add_bars(text, view, "leases");
    page_start_table(text, view->orders);
    for (size_t i = view->first; i < view->end; i++) {
        const struct lease_row *lease = &leases->rows[i];
        server_text_add(text, "<tr><td>");
        page_holder(text, lease, server_children_find(&children, lease->id), leases->resource_id);
        page_lease(text, lease, leases->now);
    }
    server_children_free(&children);
    server_text_add(text, "</tbody></table>");
    if (row->info.holder_count > ROWS_MAX) {
        server_text_addf(text,
                         "<p class=warn>There are %zu holders; this list contains %d of them.</p>",
                         row->info.holder_count, ROWS_MAX);
    }
}

/* Makes the page of a resource without holders. For ten minutes it shows the history. */
static void page_missing(struct text *text, struct service *service, struct http_response *response,
                         const char *id) {
    bool has_history = server_history_find(service, id).count > 0;
    if (!has_history) response->code = 404;
    server_text_addf(text, "<p>This resource has no %s. <a href='/'>All resources</a></p>",
                     has_history ? "holders at present" : "leases");
    if (!has_history) return;
    server_text_add(text, "<div class=big>");
    server_graph_add_trend(text, service, id);
    server_text_add(text, "</div>");
}

static void handle_leases(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct view view = view_read(request, lease_orders);
    struct lease_list leases = {.resource_id = view.resource, .filter = "", .limit = ROWS_MAX};
    struct text *text = &response->text;
    leases.abandoned = response->abandoned;
    server_lease_list_take(&leases, service);
    lease_list_arrange(&leases, &view);
    view_set_count(&view, leases.row_count);
    server_page_start(service, request, response, view.filter, "");
    server_text_add(text, "<h2>");
    server_text_add_escaped(text, view.resource, server_escape_html);
    server_text_add(text, "</h2>");
    if (leases.found) {
        page_leases(text, service, &leases, &view);
    } else {
        page_missing(text, service, response, view.resource);
    }
    server_page_end(response, true);
    text->failed = text->failed || leases.failed;
    server_lease_list_uninit(&leases);
}

/* ---- a search for clients ---- */

/* The columns of the list. The first cell has the resource and the holder. */
static const struct order search_columns[] = {
    {"id", "resource, holder", NULL}, {"has", "has", NULL},
    {"committed", "committed", NULL}, {"wants", "wants", NULL},
    {"reason", "reason", NULL},       {"subclients", "subclients", NULL},
    {"priority", "priority", NULL},   {"expiry", "ends in", NULL},
    {"seen", "last renewal", NULL},   {NULL, NULL, NULL}};

/* Adds a row. The link leads to the page of the resource, filtered by this holder id. */
static void page_found(struct text *text, const struct found_lease *found, doorman_time now) {
    server_text_add(text, "<tr><td><a href=\"/resources?resource=");
    server_text_add_escaped(text, found->resource_id, server_escape_query);
    server_text_add(text, "&amp;filter=");
    server_text_add_escaped(text, found->lease.id, server_escape_query);
    server_text_add(text, "\">");
    server_text_add_escaped(text, found->resource_id, server_escape_html);
    server_text_add(text, "</a><span class=holder>");
    if (found->unit[0]) server_text_add(text, " in");
    page_unit(text, found->unit);
    server_text_add(text, "</span><div class=holder>");
    page_holder(text, &found->lease, NULL, NULL);
    server_text_add(text, "</div>");
    page_lease(text, &found->lease, now);
}

/* Says how many leases the list has, and links to its next part. */
static void page_search_end(struct text *text, const struct service *service,
                            const struct lease_search *search) {
    server_text_addf(text,
                     "<p class=soft>%zu lease%s%s. The search distinguishes upper and lower "
                     "case.",
                     search->row_count, search->row_count == 1 ? "" : "s",
                     search->has_more ? " in this part of the search" : "");
    if (search->has_more) {
        server_text_add(text, " <a href=\"/clients?client=");
        server_text_add_escaped(text, search->prefix, server_escape_query);
        server_text_add(text, "&amp;after=");
        server_search_add_position(text, service, &search->position);
        server_text_add(text, "\">continue &rarr;</a>");
    }
    server_text_add(text, "</p>");
}

/* Lists the leases of the holders whose ids start with a text, over all resources. */
static void handle_clients(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    char client[DOORMAN_ID_BYTES_MAX + 1] = "";
    struct lease_search search = {
        .prefix = client, .limit = SEARCH_ROWS, .abandoned = response->abandoned};
    struct text *text = &response->text;
    server_query_read(request->query, "client", client, sizeof client);
    bool valid = server_search_read_position(request->query, service, &search.position);
    if (client[0] && valid) server_search_take(&search, service);
    server_page_start(service, request, response, NULL, client);
    server_text_add(text, "<h2>Leases of clients whose id starts with ");
    server_text_add_escaped(text, client[0] ? client : "...", server_escape_html);
    server_text_add(text, "</h2>");
    if (!valid) {
        response->code = 404;
        server_text_add(text, "<p class=bad>This link is not from the running process. Search "
                              "again.</p>");
    } else if (client[0]) {
        if (search.row_count > 0) page_start_table(text, search_columns);
        for (size_t i = 0; i < search.row_count; i++) page_found(text, &search.rows[i], search.now);
        if (search.row_count > 0) server_text_add(text, "</tbody></table>");
        page_search_end(text, service, &search);
    } else {
        server_text_add(text,
                        "<p>Give the start of a client id, such as the name of its host.</p>");
    }
    server_page_end(response, false);
    text->failed = text->failed || search.failed;
    server_search_uninit(&search);
}

static const struct http_route page_routes[] = {{"/resources", .handle = handle_leases},
                                                {"/clients", .handle = handle_clients},
                                                {.path = NULL}};

const struct server_part server_part_pages = {.routes = page_routes};
