/* doorman_server, part ADMIN: POST /v1/audit/ID/undo takes an act back (E5).
 *
 * An undo is an act that sets what was there before an earlier act. Its row has `undoes`, the
 * number of the earlier act, and `of`, what that act was about. So an undo can be taken back in the
 * same way. An undo needs the same role and globs as any other act with this effect, and has the
 * same bounds.
 *
 * The present value must be as the act has left it. If a later act has changed it, the answer is
 * 409, and names that act if the audit of this node has it. A value that is set again keeps its old
 * end. If that end has passed, the value is not set. */
#define _GNU_SOURCE /* strptime */
#include "admin.h"

/* Says for each kind of act what the act was about, and which function takes it back. A kind that
 * is missing cannot be undone. */
static const struct {
    const char *what, *of;
    undo_function *undo;
} undo_kinds[] = {
    {"override", "override", server_override_undo},
    {"end_override", "override", server_override_undo},
    {"plan", "plan", server_plan_undo},
    {"end_plan", "plan", server_plan_undo},
    {"ban", "ban", server_ban_undo},
    {"end_ban", "ban", server_ban_undo},
    {"config", "config", server_config_undo},
    {"rollback", "config", server_config_undo},
};

/* ---- the act that is taken back ------------------------------------------------------------- */

/* A search for the row of an act. It is allocated, because the thread of the store may need it
 * longer than the request. */
struct undo_lookup {
    struct state_call call;
    uint64_t id;
    char *text; /* of the row; NULL: there is none */
    bool failed;
    char error[STORE_TEXT];
};

static void undo_lookup_free(void *context) {
    struct undo_lookup *lookup = (struct undo_lookup *)context;
    free(lookup->text);
    free(lookup);
}

static bool undo_lookup_visit(void *context, const struct store_note *note) {
    struct undo_lookup *lookup = (struct undo_lookup *)context;
    if (strtoull(note->identity, NULL, 10) == lookup->id) {
        lookup->text = strdup(note->text);
        lookup->failed = !lookup->text;
    }
    return false;
}

/* Looks for the row. Runs on the thread of the store. */
static void undo_lookup_run(struct service *service, struct store *store, void *context) {
    struct undo_lookup *lookup = (struct undo_lookup *)context;
    char before[24];
    (void)service;
    snprintf(before, sizeof before, "%020" PRIu64, lookup->id + 1);
    if (server_store_list_notes(store, AUDIT_NOTE, before, undo_lookup_visit, lookup) != STORE_OK) {
        lookup->failed = true;
    }
    snprintf(lookup->error, sizeof lookup->error, "%s",
             lookup->failed && lookup->text == NULL ? server_store_error(store) : "");
}

/* Returns the row of an act for cJSON_Delete, or NULL: then the response is an error. */
static cJSON *undo_find(struct service *service, uint64_t id, struct http_response *response) {
    struct undo_lookup *lookup = (struct undo_lookup *)calloc(1, sizeof *lookup);
    char why[CALL_TEXT];
    cJSON *row = NULL;
    response->text.failed = !lookup;
    if (!lookup) return NULL;
    lookup->id = id;
    lookup->call =
        (struct state_call){.run = undo_lookup_run, .drop = undo_lookup_free, .context = lookup};
    enum call_result result = server_state_call(service, &lookup->call, why);
    if (result != CALL_OVER || lookup->failed) {
        server_http_response_set_unavailable(response, result == CALL_OVER ? lookup->error : why);
    } else if (!lookup->text) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "the audit has no act with this number");
    } else {
        row = cJSON_Parse(lookup->text);
        response->text.failed = !row;
    }
    if (result != CALL_LOST) undo_lookup_free(lookup);
    return row;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Reads "/v1/audit/ID/undo". Returns 0 if the path is another one. */
static uint64_t undo_read_path(const char *path) {
    const char *number = path + strlen("/v1/audit/"), *end = NULL;
    const uint64_t id = server_number_read(number, 10, &end);
    return end != number && strcmp(end, "/undo") == 0 ? id : 0;
}

static void undo_row(struct service *service, const struct http_request *request, struct undo *undo,
                     struct http_response *response) {
    const char *what = server_row_text(undo->row, "what"), *of = server_row_text(undo->row, "of");
    const char *at = server_row_text(undo->row, "at");
    const bool is_undo = what && strcmp(what, "undo") == 0;
    const char *kind = is_undo ? of : what;
    char error[128];
    struct tm parts = {.tm_year = 0};
    if (at && strptime(at, "%Y-%m-%dT%H:%M:%SZ", &parts)) undo->at = timegm(&parts);
    for (size_t i = 0; kind && i < sizeof undo_kinds / sizeof *undo_kinds; i++) {
        if (strcmp(kind, undo_kinds[i].what) != 0) continue;
        undo->of = undo_kinds[i].of;
        undo_kinds[i].undo(service, request, undo, response);
        return;
    }
    snprintf(error, sizeof error, "the act %" PRIu64 " cannot be undone: it was '%.40s'", undo->id,
             what ? what : "");
    server_http_response_set_error(response, 409, "FAILED_PRECONDITION", error);
}

static void handle_undo(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct undo undo = {.id = undo_read_path(request->path)};
    if (undo.id == 0) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "the path must be /v1/audit/ID/undo, with the number of an "
                                       "act");
        return;
    }
    if (!server_admin_serves(service, request, response)) return;
    cJSON *row = undo_find(service, undo.id, response);
    undo.row = row;
    if (row) undo_row(service, request, &undo, response);
    cJSON_Delete(row);
}

static const struct http_route undo_routes[] = {{"/v1/audit/", .administers = true,
                                                 .has_rest = true, .verbs = VERB_POST,
                                                 .role = ROLE_SUPPORT, .handle = handle_undo},
                                                {.path = NULL}};

const struct server_part server_part_undo = {.routes = undo_routes};
