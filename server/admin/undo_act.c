/* doorman_server, part ADMIN: what all undos have in common. See server/admin/undo.c. */
#include "admin.h"

uint64_t server_undo_note_id(const struct undo *undo) {
    const cJSON *row = cJSON_GetObjectItemCaseSensitive(undo->row, "row");
    return cJSON_IsNumber(row) ? (uint64_t)row->valuedouble : undo->id;
}

bool server_undo_begin(struct act *act, const struct undo *undo, const struct http_request *request,
                       struct http_response *response) {
    static const char *const names[] = {"reason", "redirect", NULL};
    if (!server_http_check_query(request->query, names, response)) return false;
    cJSON_AddNumberToObject(act->row, "undoes", (double)undo->id);
    cJSON_AddStringToObject(act->row, "of", undo->of);
    if (!server_act_add_reason(act->row, request, response)) return false;
    if (cJSON_HasObjectItem(act->row, "reason")) return true;
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", "reason: is missing");
    return false;
}

/* A search for a later act. */
struct undo_search {
    const cJSON *name;
    uint64_t undone, found; /* numbers of acts */
    char text[256];
};

/* Returns whether two rows are about the same thing. */
static bool undo_same_name(const cJSON *one, const cJSON *other) {
    static const char *const names[] = {"resource", "resource_id", "glob", "limit", "key"};
    bool same = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && same; i++) {
        const char *a = server_row_text(one, names[i]), *b = server_row_text(other, names[i]);
        same = a && b ? strcmp(a, b) == 0 : a == b;
    }
    return same;
}

static bool undo_search_visit(void *context, const struct store_note *note) {
    struct undo_search *search = (struct undo_search *)context;
    const uint64_t id = strtoull(note->identity, NULL, 10);
    cJSON *row = id > search->undone ? cJSON_Parse(note->text) : NULL;
    const cJSON *entry = NULL;
    bool found = row && undo_same_name(row, search->name);
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        found = found || undo_same_name(entry, search->name);
    }
    if (found) {
        const char *what = server_row_text(row, "what"), *token = server_row_text(row, "token");
        const char *at = server_row_text(row, "at");
        search->found = id;
        snprintf(search->text, sizeof search->text, "%s by %s at %s", what ? what : "",
                 token ? token : "", at ? at : "");
    }
    cJSON_Delete(row);
    return id > search->undone && !found;
}

bool server_undo_has_newer(struct act *act, struct store *store, const cJSON *name) {
    const double undone = cJSON_GetNumberValue(cJSON_GetObjectItem(act->row, "undoes"));
    struct undo_search search = {.name = name, .undone = (uint64_t)undone};
    (void)server_store_list_notes(store, AUDIT_NOTE, "", undo_search_visit, &search);
    if (!search.found) return false;
    server_act_refuse(act, 409, "FAILED_PRECONDITION",
                      "nothing was changed, because the act %" PRIu64
                      " came later (%s): undo that one first, if it can be undone, or set the "
                      "value itself",
                      search.found, search.text);
    return true;
}

bool server_undo_refuse(struct act *act, struct store *store, const cJSON *name) {
    const double undone = cJSON_GetNumberValue(cJSON_GetObjectItem(act->row, "undoes"));
    if (store && server_undo_has_newer(act, store, name)) return false;
    return server_act_refuse(act, 409, "FAILED_PRECONDITION",
                             "nothing was changed, because what the act %.0f has set is not there "
                             "any more: %s",
                             undone,
                             act->service->settings->shards
                                 ? "an act at another node came later, or it has ended"
                                 : "it has ended");
}
