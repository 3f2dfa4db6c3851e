/* doorman_server, part HTTP: the child nodes of this process, for the links on its pages. This file
 * changes service->children, with the lock of the service.
 *
 * Pages link to the pages of the parent and of the child nodes. So a node and its parent tell each
 * other the HTTP addresses of their pages, in the requests for capacity and in their responses.
 * Both are optional: an older server sends none, and a process without HTTP has none. An address
 * that is not valid is not known (server_host_is_http_address), as in the election.
 *
 * The table has one entry for each node, and not for each lease, because all leases of a node have
 * the same address. The name of a node is not verified. So the table is bounded: if it is full, a
 * new node takes the place of the node that has been silent for longest. Nothing is persisted: a
 * new master knows its children after their next requests. */
#include "http.h"

#define CHILDREN_MAX 256
#define CHILD_SILENT_MAX (3600 * DOORMAN_SECOND) /* a node that is silent for longer is forgotten */

struct children {
    size_t count;
    struct child items[CHILDREN_MAX];
};

/* Returns the entry of a node, which may be new. Returns NULL if memory runs out. */
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

void server_children_note(struct service *service, doorman_json_exchange *exchange,
                          doorman_time now) {
    const doorman_request *request = &exchange->request;
    bool is_child = request->method == DOORMAN_GET_CAPACITY && request->is_server;
    if (!is_child || !exchange->response.is_master || !server_http_is_on(service->settings)) return;
    /* The address is set once, so it stays valid until the response is written. */
    if (service->http_advertise[0]) exchange->response.http_address = service->http_advertise;
    struct child *child = children_find(service, request->holder_id);
    if (!child) return;
    bool valid = request->http_address && server_host_is_http_address(request->http_address);
    snprintf(child->node, sizeof child->node, "%s", request->holder_id);
    snprintf(child->http_address, sizeof child->http_address, "%s",
             valid ? request->http_address : "");
    child->seen_at = now;
}

static int compare_children(const void *left, const void *right) {
    return strcmp(((const struct child *)left)->node, ((const struct child *)right)->node);
}

void server_children_take(struct child_list *list, struct service *service) {
    doorman_time now = doorman_clock();
    list->count = 0;
    list->items = (struct child *)malloc(CHILDREN_MAX * sizeof *list->items);
    if (!list->items) return;
    pthread_mutex_lock(&service->lock);
    const struct children *children = service->children;
    for (size_t i = 0; children && i < children->count; i++) {
        if (now - children->items[i].seen_at > CHILD_SILENT_MAX) continue;
        list->items[list->count++] = children->items[i];
    }
    pthread_mutex_unlock(&service->lock);
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
