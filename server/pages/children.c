/* doorman_server, part HTTP: the child nodes of this process: links to their pages, and which of
 * them are silent. This file changes service->children under the lock of the service.
 *
 *     state     meaning                                    event                        next state
 *     LIVE      it sends requests, or has no leases        it has missed two refreshes  SILENT
 *               and needs none                             its last lease has expired   ENDED
 *     SILENT    its leases are still reserved for it       its last lease has expired   ENDED
 *                                                          it sends a request           LIVE
 *     ENDED     it has failed, or its link has             it sends a request           LIVE
 *
 * Pages link to the pages of the parent and of the child nodes. So a node and its parent tell each
 * other the HTTP addresses of their pages, in the requests for capacity and in their responses.
 * Each address is optional: an older server sends none, and a process without HTTP has none. An
 * address that is not valid counts as not known (server_host_is_http_address), as in the election.
 *
 * The table has one entry for each node, and not for each lease, because all leases of a node have
 * the same address. Peers can invent names of nodes, so the table is bounded. If it is full, a new
 * node takes the place of the node whose last request is the oldest. Nothing is persisted: a new
 * master knows its children after their next requests. */
#include "pages.h"
#include "../util/host.h"

#define CHILDREN_MAX 256
#define CHILD_SILENT_MAX (3600 * DOORMAN_SECOND) /* a node that is silent for longer is not shown */
#define CHILD_LINES_MAX 20 /* log lines about single nodes in a minute; see child_log */

struct children {
    size_t count;
    size_t line_count; /* log lines since lines_since */
    doorman_time lines_since;
    struct child items[CHILDREN_MAX];
};

/* Returns the entry of a node, or the entry that the node will take if it is new. Returns NULL if
 * memory runs out. */
static struct child *children_find(struct service *service, const char *node) {
    if (!service->children) {
        service->children = (struct children *)calloc(1, sizeof *service->children);
    }
    struct children *children = service->children;
    if (!children) return NULL;
    struct child *oldest = children->items;
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->items[i];
        if (strcmp(child->node, node) == 0) return child;
        if (child->seen_at < oldest->seen_at) oldest = child;
    }
    return children->count < CHILDREN_MAX ? &children->items[children->count++] : oldest;
}

/* Returns whether there may be a further line about a node. Peers can invent nodes at any rate, so
 * there are few lines (V6). */
static bool child_may_log(struct children *children, doorman_time now) {
    if (now - children->lines_since >= 60 * DOORMAN_SECOND) {
        children->lines_since = now;
        children->line_count = 0;
    }
    return children->line_count < CHILD_LINES_MAX;
}

/* Logs what happens to a node.
 *   kind   the warning. Beyond CHILD_LINES_MAX lines a minute, all nodes share a line of it */
static void child_log(struct service *service, const struct child *child, int kind,
                      doorman_time now) {
    struct children *children = service->children;
    char silent[32], left[32];
    doorman_time end = child->lease_end > now ? child->lease_end - now : 0;
    snprintf(silent, sizeof silent, "%.0f", (double)(now - child->seen_at) / 1e9);
    snprintf(left, sizeof left, "%.0f", (double)end / 1e9);
    bool ended = kind == WARNING_CHILD_ENDED;
    if (!child_may_log(children, now)) {
        const char *const pairs[WARNING_PAIR_MAX][2] = {{"child", child->node},
                                                        {"silent_seconds", silent}};
        server_log_warning(service, kind, pairs, now);
    } else {
        children->line_count++;
        server_log(service->settings, LEVEL_WARNING, server_warning_text(kind), "child",
                   child->node, "silent_seconds", silent, ended ? LOG_END : "lease_ends_in_seconds",
                   left, LOG_END);
    }
}

/* If a node was silent or had ended, notes that it sends requests again. Logs this if there may be
 * a further line. */
static void child_wake(struct service *service, struct child *child, doorman_time now) {
    char seconds[32];
    if (child->state == CHILD_LIVE) return;
    child->state = CHILD_LIVE;
    if (!child_may_log(service->children, now)) return;
    service->children->line_count++;
    snprintf(seconds, sizeof seconds, "%.0f", (double)(now - child->seen_at) / 1e9);
    server_log(service->settings, LEVEL_INFO, "a child node sends requests again", "child",
               child->node, "after_seconds", seconds, LOG_END);
}

/* Notes the leases of a response: when the last of them ends, and how soon the next request comes.
 * One request renews all leases that are due soon, so the shortest refresh interval counts. */
static void child_note_leases(struct child *child, const doorman_response *response,
                              doorman_time now) {
    doorman_time refresh = DOORMAN_NEVER;
    for (size_t i = 0; i < response->item_count; i++) {
        const doorman_capacity_response *item = &response->items[i];
        if (item->outcome != DOORMAN_GRANTED) continue;
        doorman_time end = now + item->gets.expires_in;
        if (end > child->lease_end) child->lease_end = end;
        if (item->gets.refresh_interval < refresh) refresh = item->gets.refresh_interval;
    }
    if (refresh < DOORMAN_NEVER) child->refresh_interval = refresh;
}

/* Notes a child node that has asked this master for capacity, or has released some. If it has
 * asked, adds the address of this process's pages to the response. */
static void children_note(struct service *service, doorman_json_exchange *exchange,
                          doorman_time now) {
    const doorman_request *request = &exchange->request;
    bool asks = request->method == DOORMAN_GET_CAPACITY;
    bool is_child = request->is_server && (asks || request->method == DOORMAN_RELEASE_CAPACITY);
    assert(server_lock_is_held(&service->lock));
    if (!is_child || !exchange->response.is_master) return;
    /* http_advertise is set once, so it stays valid until the response is written. */
    if (asks && service->http_advertise[0]) {
        exchange->response.http_address = service->http_advertise;
    }
    struct child *child = children_find(service, request->holder_id);
    if (!child) return;
    if (strcmp(child->node, request->holder_id) != 0) *child = (struct child){.state = CHILD_LIVE};
    snprintf(child->node, sizeof child->node, "%s", request->holder_id);
    child_wake(service, child, now);
    child->seen_at = now;
    if (!asks) {
        child->refresh_interval = 0; /* the next request may come later now */
        return;
    }
    bool valid = request->http_address && server_host_is_http_address(request->http_address);
    snprintf(child->http_address, sizeof child->http_address, "%s",
             valid ? request->http_address : "");
    child_note_leases(child, &exchange->response, now);
}

/* Notes and logs that all leases of a child node have expired. */
static bool children_on_event(struct service *service, const doorman_event *event) {
    struct children *children = service->children;
    assert(server_lock_is_held(&service->lock));
    if (event->kind != DOORMAN_EVENT_CHILD_ENDED) return false;
    for (size_t i = 0; children && i < children->count; i++) {
        struct child *child = &children->items[i];
        if (strcmp(child->node, event->holder_id) != 0) continue;
        child->state = CHILD_ENDED;
        child_log(service, child, WARNING_CHILD_ENDED, doorman_clock());
        return true;
    }
    return false;
}

/* Finds and logs the child nodes that have become silent. */
static void children_update(struct service *service, doorman_time now) {
    struct children *children = service->children;
    assert(server_lock_is_held(&service->lock));
    if (!children) return;
    if (!doorman_server_permits(service->server)) children->count = 0; /* not the master any more */
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->items[i];
        doorman_time most = child->refresh_interval / 2 * 5; /* it has missed two refreshes */
        bool silent = most > 0 && now - child->seen_at > most &&
                      doorman_server_lease_count(service->server, child->node, true) > 0;
        if (!silent || child->state != CHILD_LIVE) continue;
        child->state = CHILD_SILENT;
        child_log(service, child, WARNING_CHILD_SILENT, now);
    }
}

const char *server_child_state_name(enum child_state state) {
    static const char *const names[CHILD_STATE_COUNT] = {"live", "silent", "ended"};
    return names[state];
}

/* Counts the nodes in each state. Leaves out those that are silent for longer than
 * CHILD_SILENT_MAX. */
static void children_count(const struct children *children, size_t counts[CHILD_STATE_COUNT],
                           doorman_time now) {
    for (size_t i = 0; children && i < children->count; i++) {
        const struct child *child = &children->items[i];
        if (now - child->seen_at <= CHILD_SILENT_MAX) counts[child->state]++;
    }
}

void server_children_metrics(struct text *text, struct service *service) {
    size_t counts[CHILD_STATE_COUNT] = {0};
    server_lock(&service->lock);
    children_count(service->children, counts, doorman_clock());
    server_unlock(&service->lock);
    server_metrics_header(text, "server_children", "gauge",
                          "Child nodes of the last hour. silent: the node has missed two "
                          "refreshes, and has leases. ended: these leases have ended.");
    for (int i = 0; i < CHILD_STATE_COUNT; i++) {
        server_text_addf(text, "doorman_server_children{state=\"%s\"} %zu\n",
                         server_child_state_name((enum child_state)i), counts[i]);
    }
}

void server_children_text(const struct service *service, char text[CHILDREN_TEXT],
                          doorman_time now) {
    const struct children *children = service->children;
    const struct child *worst = NULL;
    size_t counts[CHILD_STATE_COUNT] = {0};
    assert(server_lock_is_held(&service->lock));
    text[0] = 0;
    children_count(children, counts, now);
    for (size_t i = 0; children && i < children->count; i++) {
        const struct child *child = &children->items[i];
        bool shown = child->state != CHILD_LIVE && now - child->seen_at <= CHILD_SILENT_MAX;
        if (shown && (!worst || child->state > worst->state)) worst = child;
    }
    if (!worst) return;
    char end[48] = "its lease has ended";
    if (worst->state == CHILD_SILENT && worst->lease_end > now) {
        snprintf(end, sizeof end, "its lease ends in %.0f s",
                 (double)(worst->lease_end - now) / 1e9);
    }
    int bytes = snprintf(text, CHILDREN_TEXT, "child %s: silent for %.0f s; %s", worst->node,
                         (double)(now - worst->seen_at) / 1e9, end);
    size_t more = counts[CHILD_SILENT] + counts[CHILD_ENDED] - 1;
    if (more > 0) snprintf(text + bytes, CHILDREN_TEXT - (size_t)bytes, " (and %zu more)", more);
}

static int compare_children(const void *left, const void *right) {
    return strcmp(((const struct child *)left)->node, ((const struct child *)right)->node);
}

void server_children_take(struct child_list *list, struct service *service) {
    doorman_time now = doorman_clock();
    list->count = 0;
    list->items = (struct child *)malloc(CHILDREN_MAX * sizeof *list->items);
    if (!list->items) return;
    server_lock(&service->lock);
    const struct children *children = service->children;
    for (size_t i = 0; children && i < children->count; i++) {
        if (now - children->items[i].seen_at > CHILD_SILENT_MAX) continue;
        list->items[list->count++] = children->items[i];
    }
    server_unlock(&service->lock);
    list->now = now;
    qsort(list->items, list->count, sizeof *list->items, compare_children);
}

void server_children_free(struct child_list *list) { free(list->items); }

const struct child *server_children_find(const struct child_list *list, const char *node) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].node, node) == 0) return &list->items[i];
    }
    return NULL;
}

static void children_destroy(struct service *service) { free(service->children); }

const struct server_part server_part_children = {.update = children_update,
                                                 .destroy = children_destroy,
                                                 .decided = children_note,
                                                 .event = children_on_event};
