/* doorman_server, part ADMIN: what was done, by whom, and why.
 *
 *     GET /v1/audit                     the newest acts, as lines of JSON
 *     GET /v1/audit?key=KEY&who=NAME    acts filtered by key, by token, or by both
 *     GET /v1/audit?after=ID            the next page: acts before the one with this number */
#include "admin.h"

static bool text_is(const cJSON *object, const char *name, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text && strcmp(text, value) == 0;
}

/* Returns whether an act concerns a key. An act with entries concerns the key of each entry. */
static bool row_has_key(const cJSON *row, const char *key) {
    const cJSON *entry = NULL;
    bool found = text_is(row, "key", key);
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        found = found || text_is(entry, "key", key);
    }
    return found;
}

cJSON *server_audit_find(const struct note_page *page, const struct store_note *note) {
    cJSON *row = cJSON_Parse(note->text);
    const bool shows = (!page->has_who || text_is(row, "token", page->who)) &&
                       (!page->has_key || row_has_key(row, page->key));
    if (shows) return row;
    cJSON_Delete(row);
    return NULL;
}

static bool audit_add(struct note_page *page, const struct store_note *note) {
    const bool shows_all = !page->has_key && !page->has_who;
    cJSON *row = shows_all ? NULL : server_audit_find(page, note);
    const bool shows = shows_all || row;
    cJSON_Delete(row);
    if (shows) server_admin_add_line(&page->text, note->text);
    return shows;
}

static void handle_audit(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    static const char *const names[] = {"key", "who", "after", "limit", "redirect", NULL};
    if (!server_admin_serves(service, request, response)) return;
    const struct note_list list = {.kind = AUDIT_NOTE, .names = names, .add = audit_add};
    server_admin_list(service, request, response, &list);
}

static const struct http_route audit_routes[] = {
    {"/v1/audit", .administers = true, .reads = ROLE_SUPPORT, .handle = handle_audit},
    {.path = NULL}};

const struct server_part server_part_audit = {.routes = audit_routes};
