/* doorman_server, part ADMIN: what was done, by whom, and why.
 *
 *     GET /v1/audit                     the newest acts, as lines of JSON
 *     GET /v1/audit?key=KEY&who=NAME    those that concern a key, or of one token
 *     GET /v1/audit?after=ID            the next page: those before the act with this number */
#include "admin.h"

static bool text_is(const cJSON *object, const char *name, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text && strcmp(text, value) == 0;
}

/* Returns whether an act concerns a key. An act with several entries concerns the keys of all. */
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

/* ---- resets of the last day ----------------------------------------------------------------- */

struct reset_count {
    const cJSON *entry; /* what is reset */
    char since[32];     /* the times of rows are texts whose order is that of the times */
    int count;
};

static const char *entry_resource(const cJSON *entry) {
    const char *resource = server_row_word(entry, "resource_id");
    return resource[0] ? resource : server_row_word(entry, "resource");
}

/* Returns whether two entries are about one counter. Keys have no meaning for a counter that they
 * share. */
bool server_audit_same_counter(const cJSON *one, const cJSON *other) {
    const char *shared = server_row_word(one, "shared_by");
    const bool of_resource = strcmp(entry_resource(one), entry_resource(other)) == 0;
    if (!shared[0]) return of_resource && text_is(other, "key", server_row_word(one, "key"));
    return text_is(other, "shared_by", shared) &&
           text_is(other, "limit", server_row_word(one, "limit")) &&
           (of_resource || strcmp(shared, "template") == 0);
}

static bool reset_visit(void *context, const struct store_note *note) {
    struct reset_count *resets = (struct reset_count *)context;
    cJSON *row = cJSON_Parse(note->text);
    const char *at = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "at"));
    const cJSON *after = cJSON_GetObjectItemCaseSensitive(row, "after"), *entry = NULL;
    const bool is_later = !at || strcmp(at, resets->since) > 0;
    const bool counts = is_later && text_is(row, "role", "support");
    const cJSON *set = cJSON_GetObjectItemCaseSensitive(after, "set");
    const bool fills =
        counts && (cJSON_HasObjectItem(after, "add") || cJSON_HasObjectItem(set, "size"));
    resets->count += fills && server_audit_same_counter(resets->entry, row);
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        const bool is_reset =
            counts && text_is(row, "what", "reset") && !cJSON_GetObjectItem(entry, "ban");
        resets->count += is_reset && server_audit_same_counter(resets->entry, entry);
    }
    cJSON_Delete(row);
    return is_later;
}

int server_audit_count_resets(struct store *store, const cJSON *entry) {
    struct reset_count resets = {.entry = entry};
    time_t day = time(NULL) - 86400;
    struct tm parts;
    gmtime_r(&day, &parts);
    strftime(resets.since, sizeof resets.since, "%Y-%m-%dT%H:%M:%SZ", &parts);
    bool done = server_store_list_notes(store, AUDIT_NOTE, "", reset_visit, &resets) == STORE_OK;
    return done ? resets.count : -1;
}

static const struct http_route audit_routes[] = {
    {"/v1/audit", .administers = true, .reads = ROLE_SUPPORT, .handle = handle_audit},
    {.path = NULL}};

const struct server_part server_part_audit = {.routes = audit_routes};
