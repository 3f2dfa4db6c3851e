/* doorman_server, part ADMIN: PUT /v1/config and POST /v1/config/rollback (E3).
 *
 *     read        on the thread of pages: the version that the change replaces, the reason, and the
 *                 new configuration, which is checked as POST /v1/config/check does
 *     compared    on the thread of the store, with the version that is there
 *     written     there. In the store: the version and the row of the audit, in one step. In etcd:
 *                 the row with "known": false, then the key, then the row and the version. So if
 *                 the process ends in between, the row says that the outcome is not known
 *     in force    the main thread, or the thread of the election, takes it within a second
 *
 * What another program has put into the key of etcd becomes a version at the next change, which
 * reads the key. */
#include "../config/config.h"
#include "trim.h"
#include "versions.h"

#include <stdarg.h>

/* What a change needs. Its act owns it. */
struct config_detail {
    uint64_t expected; /* the version that it replaces; 0: there is none */
    uint64_t target;   /* of a rollback: the version that comes back; 0: it is no rollback */
    struct config_problems problems;
    doorman_config *config; /* the new one. Moves to the part that puts it into force */
    cJSON *tree;            /* its normal form */
    cJSON *warnings;        /* an object with the list of warnings */

    uint64_t present; /* the version that is there; 0: none */
    cJSON *last;      /* its normal form; NULL: there is none */
    char *foreign;    /* its text in etcd, if it has no note yet */
    cJSON *summary;   /* an object with the list of changes */

    uint64_t number; /* of the new version */
    struct version_trim trim;
};

static void detail_free(void *context) {
    struct config_detail *detail = (struct config_detail *)context;
    doorman_config_destroy(detail->config);
    cJSON_Delete(detail->tree);
    cJSON_Delete(detail->warnings);
    cJSON_Delete(detail->last);
    cJSON_Delete(detail->summary);
    free(detail->foreign);
    free(detail);
}

static struct config_detail *change_of(const struct act *act) {
    return (struct config_detail *)act->detail;
}

__attribute__((format(printf, 4, 5))) static bool
change_refuse(struct http_response *response, int code, const char *name, const char *format, ...) {
    char error[ACT_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, sizeof error, format, arguments);
    va_end(arguments);
    server_http_response_set_error(response, code, name, error);
    return false;
}

/* ---- the request ---------------------------------------------------------------------------- */

/* Reads the version that a change replaces: If-Match: "N", or If-None-Match: *.
 *   returns   false: the response is an error */
static bool change_read_match(struct config_detail *detail, const struct http_request *request,
                              struct http_response *response) {
    char match[64], none[8];
    const char *end = "";
    int count = server_http_field_read(request->fields, "If-Match", match, sizeof match);
    int nones = server_http_field_read(request->fields, "If-None-Match", none, sizeof none);
    if (count == 0 && nones == 1 && strcmp(none, "*") == 0) return true;
    const bool is_quoted = match[0] == '"';
    detail->expected = server_number_read(match + is_quoted, 10, &end);
    bool is_valid =
        count == 1 && nones == 0 && detail->expected > 0 && strcmp(end, is_quoted ? "\"" : "") == 0;
    return is_valid ||
           change_refuse(response, 400, "INVALID_ARGUMENT",
                         "If-Match: must be the version that the change replaces, such as \"7\", "
                         "which is the ETag of GET /v1/config; If-None-Match: * if there is none");
}

/* Checks that this process has versions, and may change them. */
static bool change_serves(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    const struct settings *settings = service->settings;
    if (settings->config_in_store || settings->config_key) {
        return server_admin_serves(service, request, response);
    }
    return change_refuse(response, 409, "FAILED_PRECONDITION",
                         "the configuration of this server is a file (--config %s), so change the "
                         "file; a server with --config store: or --config etcd:KEY takes a "
                         "configuration here",
                         settings->config ? settings->config : "of its parent");
}

/* Reads what a change and a rollback have in common: the version that is replaced, and the
 * reason. */
static bool change_read(struct act *act, const struct http_request *request,
                        const char *const *names, struct http_response *response) {
    struct config_detail *detail = change_of(act);
    if (!server_http_check_query(request->query, names, response) ||
        !change_read_match(detail, request, response) ||
        !server_act_add_reason(act->row, request, response)) {
        return false;
    }
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(act->row, "reason"));
    return (reason && *reason) || change_refuse(response, 400, "INVALID_ARGUMENT",
                                                "reason: is missing; say why, as ?reason=TEXT");
}

/* Writes the response that refuses a configuration: an error text for people, and the list of
 * errors. */
static bool change_refuse_config(const struct config_problems *problems,
                                 struct http_response *response) {
    char text[PROBLEM_TEXT];
    cJSON *answer = cJSON_CreateObject();
    server_problems_text(problems, text);
    cJSON *error = cJSON_AddObjectToObject(answer, "error");
    cJSON_AddStringToObject(error, "code", "INVALID_ARGUMENT");
    cJSON_AddStringToObject(error, "message", text);
    server_problems_add(answer, "errors", problems);
    char *body = cJSON_PrintUnformatted(answer);
    response->code = 400;
    response->type = "application/json";
    response->text.failed = !body;
    if (body) server_text_add(&response->text, body);
    server_text_add(&response->text, "\n");
    cJSON_free(body);
    cJSON_Delete(answer);
    return false;
}

/* Makes the normal form of the new configuration, and the list of its warnings. Returns false if
 * memory runs out. */
static bool detail_normalise(struct config_detail *detail) {
    detail->tree = server_config_normalise(detail->config);
    detail->warnings = cJSON_CreateObject();
    server_problems_add(detail->warnings, "warnings", &detail->problems);
    return detail->tree && detail->warnings;
}

static bool change_read_body(struct act *act, const struct http_request *request,
                             struct http_response *response) {
    struct config_detail *detail = change_of(act);
    detail->config = server_config_read_text(act->service, request->body, request->body_bytes,
                                             &detail->problems);
    if (!detail->config) return change_refuse_config(&detail->problems, response);
    response->text.failed = !detail_normalise(detail);
    return !response->text.failed;
}

/* ---- the version that is there -------------------------------------------------------------- */

static const cJSON *note_field(const cJSON *note, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(note, name);
}

static uint64_t note_version(const cJSON *note) {
    const cJSON *number = note_field(note, "version");
    return cJSON_IsNumber(number) && number->valuedouble > 0 ? (uint64_t)number->valuedouble : 0;
}

static bool change_fail_store(struct act *act, struct store *store) {
    return server_act_refuse(act, 503, "UNAVAILABLE",
                             "nothing was changed, because %s cannot be read: %s",
                             server_acts_store(act->service), server_store_error(store));
}

static enum config_access_result access_key(struct act *act, struct config_access *access) {
    enum config_access_result result = ACCESS_REFUSED;
    EACH_PART(part, access_config) result = (*part)->access_config(act->service, access);
    return result;
}

/* Reads the present version from the key of etcd. If the newest note is of another version, the
 * present one has no note yet, and `foreign` gets the text of the key. */
static bool present_read_key(struct act *act, const cJSON *newest) {
    struct config_detail *detail = change_of(act);
    struct config_access access = {.text = NULL};
    if (access_key(act, &access) != ACCESS_DONE) {
        return server_act_refuse(act, 503, "UNAVAILABLE",
                                 "nothing was changed, because etcd, which has the configuration, "
                                 "does not answer: %s",
                                 access.error);
    }
    detail->present = access.version;
    bool is_known = access.version == note_version(newest);
    if (is_known || !access.present) {
        free(access.present);
        detail->last = cJSON_Duplicate(note_field(newest, "configuration"), true);
        return true;
    }
    struct config_problems problems;
    doorman_config *config =
        server_config_read_text(act->service, access.present, strlen(access.present), &problems);
    detail->last = config ? server_config_normalise(config) : NULL;
    doorman_config_destroy(config);
    detail->foreign = access.present;
    return true;
}

/* Finds the version that is there.
 *   newest   the newest note; NULL: none */
static bool present_read(struct act *act, const cJSON *newest) {
    struct config_detail *detail = change_of(act);
    if (act->service->settings->config_key) return present_read_key(act, newest);
    detail->present = note_version(newest);
    detail->last = cJSON_Duplicate(note_field(newest, "configuration"), true);
    return true;
}

/* Refuses a change of a version that is not the present one. The error names the token and the time
 * of the replacement, if the newest version has them. */
static bool change_refuse_stale(struct act *act, const cJSON *newest) {
    const struct config_detail *detail = change_of(act);
    char who[256] = "another program has written it";
    if (detail->present == 0) {
        return server_act_refuse(act, 412, "FAILED_PRECONDITION",
                                 "the store has no version yet, also if a copy of one is in "
                                 "force: give doormanctl the version 0, or send If-None-Match: *");
    }
    const int code = act->kind == ACT_UNDO ? 409 : 412;
    if (detail->present != note_version(newest)) {
        return server_act_refuse(act, code, "FAILED_PRECONDITION",
                                 "the present version is %" PRIu64 ", not %" PRIu64
                                 ": another program has written it; look at the key in etcd, and "
                                 "if it may be replaced, give doormanctl the version %" PRIu64
                                 ", or send If-Match: \"%" PRIu64 "\"",
                                 detail->present, detail->expected, detail->present,
                                 detail->present);
    }
    if (server_row_word(newest, "token")[0]) {
        snprintf(who, sizeof who, "'%s' has changed it at %s", server_row_word(newest, "token"),
                 server_row_word(newest, "at"));
    }
    return server_act_refuse(act, code, "FAILED_PRECONDITION",
                             "the present version is %" PRIu64 ", not %" PRIu64 ": %s, because: %s",
                             detail->present, detail->expected, who,
                             server_row_word(newest, "reason")[0]
                                 ? server_row_word(newest, "reason")
                                 : "no reason is known");
}

/* ---- rollback ------------------------------------------------------------------------------- */

/* Reads the version that a rollback brings back. */
static bool change_read_target(struct act *act, struct store *store) {
    struct config_detail *detail = change_of(act);
    char *notes[2], error[PROBLEM_TEXT];
    if (!server_versions_read(store, detail->target + 1, notes, 1)) {
        return change_fail_store(act, store);
    }
    cJSON *note = notes[0] ? cJSON_Parse(notes[0]) : NULL;
    bool is_found = note && note_version(note) == detail->target;
    char *text = is_found ? cJSON_PrintUnformatted(note_field(note, "configuration")) : NULL;
    if (text) {
        detail->config =
            server_config_read_text(act->service, text, strlen(text), &detail->problems);
    }
    cJSON_free(text);
    cJSON_Delete(note);
    free(notes[0]);
    if (!is_found) {
        return server_act_refuse(act, 404, "NOT_FOUND", "version: there is no version %" PRIu64,
                                 detail->target);
    }
    if (!detail->config) {
        server_problems_text(&detail->problems, error);
        return server_act_refuse(act, 400, "INVALID_ARGUMENT",
                                 "version: this server does not accept it: %s", error);
    }
    return detail_normalise(detail) || server_act_refuse(act, 500, "INTERNAL", "out of memory");
}

/* ---- too many versions ---------------------------------------------------------------------- */

/* Counts a version, and chooses whether it is removed. The newest version comes first. */
static bool trim_visit(void *context, const struct store_note *note) {
    return version_trim_add((struct version_trim *)context, strtoull(note->identity, NULL, 10),
                            strlen(note->text));
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Adds what the row of the audit says: the version before and after, and what changes. */
static bool change_describe(struct act *act) {
    struct config_detail *detail = change_of(act);
    cJSON *difference = server_config_differ(detail->last, detail->tree);
    detail->summary = cJSON_CreateObject();
    server_config_summarise(detail->summary, "changes", difference);
    cJSON_Delete(difference);
    cJSON *before = cJSON_AddObjectToObject(act->row, "before");
    cJSON *after = cJSON_AddObjectToObject(act->row, "after");
    cJSON_AddNumberToObject(before, "version", (double)detail->present);
    cJSON_AddNumberToObject(after, "version", (double)detail->number);
    cJSON_AddItemToObject(after, "changes",
                          cJSON_Duplicate(note_field(detail->summary, "changes"), true));
    if (detail->target) cJSON_AddNumberToObject(after, "of_version", (double)detail->target);
    return difference && after;
}

/* Refuses an act, because the key of etcd was not changed, or because it is not known whether it
 * was. */
static bool key_refuse(struct act *act, struct store *store, enum config_access_result result,
                       const struct config_access *access) {
    if (result == ACCESS_UNKNOWN) {
        return server_act_refuse(act, 503, "UNAVAILABLE",
                                 "it is not known whether this was done; look at GET /v1/config "
                                 "when etcd answers again: %s",
                                 access->error);
    }
    if (result == ACCESS_STALE) {
        (void)server_act_forget(act, store, "another version is there");
        return server_act_refuse(act, 412, "FAILED_PRECONDITION",
                                 "nothing was changed: another version is there: the key was "
                                 "written at the same moment, and has version %" PRIu64,
                                 access->version);
    }
    (void)server_act_forget(act, store, access->error);
    return server_act_refuse(act, 503, "UNAVAILABLE", "nothing was changed: %s", access->error);
}

/* Puts the new configuration into the key of etcd. */
static bool key_change(struct act *act, struct store *store) {
    struct config_detail *detail = change_of(act);
    char *text = cJSON_PrintUnformatted(detail->tree);
    struct config_access access = {.text = text, .expected = detail->present};
    if (!text) return server_act_refuse(act, 500, "INTERNAL", "out of memory");
    if (!server_act_announce(act, store)) {
        cJSON_free(text);
        return false;
    }
    enum config_access_result result = access_key(act, &access);
    cJSON_free(text);
    free(access.present);
    act->is_done = result == ACCESS_DONE;
    detail->number = access.version;
    if (result == ACCESS_DONE) {
        cJSON_SetNumberValue(
            cJSON_GetObjectItemCaseSensitive(note_field(act->row, "after"), "version"),
            (double)detail->number);
        return true;
    }
    return key_refuse(act, store, result, &access);
}

static bool change_prepare_with(struct act *act, struct store *store, const cJSON *newest) {
    struct config_detail *detail = change_of(act);
    if (!present_read(act, newest)) return false;
    if (detail->present != detail->expected) return change_refuse_stale(act, newest);
    if (detail->target && !change_read_target(act, store)) return false;
    detail->trim.count = 1; /* the new one */
    if (server_store_list_notes(store, VERSION_NOTE, "", trim_visit, &detail->trim) != STORE_OK) {
        return change_fail_store(act, store);
    }
    if (!act->service->settings->config_key) detail->number = detail->present + 1;
    if (!change_describe(act)) return server_act_refuse(act, 500, "INTERNAL", "out of memory");
    return !act->service->settings->config_key || key_change(act, store);
}

static bool change_prepare(struct act *act, struct store *store) {
    char *notes[2];
    if (!server_versions_read(store, 0, notes, 1)) return change_fail_store(act, store);
    cJSON *newest = notes[0] ? cJSON_Parse(notes[0]) : NULL;
    bool done = change_prepare_with(act, store, newest);
    cJSON_Delete(newest);
    free(notes[0]);
    return done;
}

/* Adds the note of a version. The configuration is the last field of the note, because a list of
 * versions shows only the fields before it. */
static bool add_version(struct act *act, uint64_t number, cJSON *note, const cJSON *config) {
    cJSON_AddItemToObject(note, "configuration",
                          config ? cJSON_Duplicate(config, true) : cJSON_CreateObject());
    char *text = cJSON_PrintUnformatted(note);
    cJSON_Delete(note);
    const struct act_note made = {.kind = VERSION_NOTE, .id = number, .text = text};
    return text && server_act_add_note(act, &made);
}

static cJSON *version_begin(uint64_t number, const char *token) {
    cJSON *note = cJSON_CreateObject();
    cJSON_AddNumberToObject(note, "version", (double)number);
    server_act_add_time(note, "at", time(NULL));
    cJSON_AddStringToObject(note, "token", token);
    return note;
}

static bool change_add_notes(struct act *act) {
    struct config_detail *detail = change_of(act);
    bool done = true;
    if (detail->foreign) {
        cJSON *note = version_begin(detail->present, "");
        cJSON_AddStringToObject(note, "reason",
                                "written by another program; the time is when it "
                                "was seen");
        done = add_version(act, detail->present, note, detail->last);
    }
    cJSON *note = version_begin(detail->number, act->token.name);
    cJSON_AddStringToObject(note, "reason", server_row_word(act->row, "reason"));
    cJSON_AddNumberToObject(note, "audit", (double)act->id);
    cJSON_AddNumberToObject(note, "before", (double)detail->present);
    if (detail->target) cJSON_AddNumberToObject(note, "of_version", (double)detail->target);
    cJSON_AddItemToObject(note, "changes",
                          cJSON_Duplicate(note_field(detail->summary, "changes"), true));
    done = add_version(act, detail->number, note, detail->tree) && done;
    for (size_t i = 0; i < detail->trim.removed_count && done; i++) {
        const struct act_note gone = {.kind = VERSION_NOTE, .id = detail->trim.removed[i]};
        done = server_act_add_note(act, &gone);
    }
    return done;
}

/* Offers a new version of the store, which the main thread puts into force. With etcd there is
 * nothing to do, because all processes of the node read the key. */
static void change_apply(struct act *act) {
    struct config_detail *detail = change_of(act);
    if (act->service->settings->config_key || act->written == 0) return;
    detail->problems.version = detail->number;
    server_versions_offer(act->service, detail->config, &detail->problems);
    detail->config = NULL;
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void change_answer(struct act *act, struct http_response *response) {
    struct config_detail *detail = change_of(act);
    bool is_in_force = server_versions_await(act->service, detail->number);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "version", (double)detail->number);
    cJSON_AddNumberToObject(json, "before", (double)detail->present);
    cJSON_AddNumberToObject(json, "audit", (double)act->id);
    if (act->kind == ACT_UNDO) cJSON_AddNumberToObject(json, "id", (double)act->id);
    cJSON_AddBoolToObject(json, "in_force", is_in_force);
    cJSON_AddItemToObject(json, "changes",
                          cJSON_Duplicate(note_field(detail->summary, "changes"), true));
    cJSON_AddItemToObject(json, "warnings",
                          cJSON_Duplicate(note_field(detail->warnings, "warnings"), true));
    char *text = cJSON_PrintUnformatted(json);
    response->type = "application/json";
    response->text.failed = !text;
    server_text_add(&response->text, text ? text : "");
    server_text_add(&response->text, "\n");
    server_text_addf(&response->lines, "ETag: \"%" PRIu64 "\"\r\n", detail->number);
    cJSON_free(text);
    cJSON_Delete(json);
}

/* Begins a change. Returns NULL if memory runs out: then the response has failed. */
static struct act *change_new(struct service *service, const struct http_request *request,
                              enum act_kind kind, struct http_response *response) {
    struct act *act = server_act_new(service, request, kind, response);
    if (!act) return NULL;
    act->detail = calloc(1, sizeof(struct config_detail));
    act->free_detail = detail_free;
    act->prepare = change_prepare;
    act->add_notes = change_add_notes;
    act->apply = change_apply;
    if (act->detail) return act;
    act->free_detail = NULL;
    server_act_free(act);
    response->text.failed = true;
    return NULL;
}

static void change_run(struct act *act, struct http_response *response) {
    if (!server_act_run(act, response)) return; /* it has freed the act */
    change_answer(act, response);
    server_act_free(act);
}

static void handle_config_put(struct service *service, const struct http_request *request,
                              struct http_response *response) {
    static const char *const names[] = {"reason", "redirect", NULL};
    if (!change_serves(service, request, response)) return;
    struct act *act = change_new(service, request, ACT_CONFIG, response);
    if (!act) return;
    if (change_read(act, request, names, response) && change_read_body(act, request, response)) {
        change_run(act, response);
    } else {
        server_act_free(act);
    }
}

static void handle_rollback(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    static const char *const names[] = {"version", "reason", "redirect", NULL};
    char number[24] = "";
    const char *end = "";
    if (!change_serves(service, request, response)) return;
    struct act *act = change_new(service, request, ACT_ROLLBACK, response);
    if (!act) return;
    bool is_valid = change_read(act, request, names, response);
    if (is_valid) {
        (void)server_query_read(request->query, "version", number, sizeof number);
        change_of(act)->target = server_number_read(number, 10, &end);
        is_valid = (change_of(act)->target > 0 && !*end) ||
                   change_refuse(response, 400, "INVALID_ARGUMENT",
                                 "version: must be the number of a version that is kept");
    }
    if (is_valid) {
        change_run(act, response);
    } else {
        server_act_free(act);
    }
}

void server_config_undo(struct service *service, const struct http_request *request,
                        const struct undo *undo, struct http_response *response) {
    const cJSON *before = note_field(undo->row, "before"), *after = note_field(undo->row, "after");
    if (!change_serves(service, request, response)) return;
    struct act *act = change_new(service, request, ACT_UNDO, response);
    if (!act) return;
    struct config_detail *detail = change_of(act);
    bool is_valid = server_undo_begin(act, undo, request, response);
    if (is_valid && act->token.role != ROLE_ADMIN) {
        is_valid = change_refuse(response, 403, "PERMISSION_DENIED",
                                 "only the role admin can change the configuration");
    }
    if (is_valid) {
        detail->expected = note_version(after);
        detail->target = note_version(before);
        is_valid = detail->target > 0 ||
                   change_refuse(response, 409, "FAILED_PRECONDITION",
                                 "there was no version before the act %" PRIu64, undo->id);
    }
    if (is_valid) {
        change_run(act, response);
    } else {
        server_act_free(act);
    }
}

static const struct http_route change_routes[] = {
    {"/v1/config", .verbs = VERB_PUT, .role = ROLE_ADMIN, .handle = handle_config_put},
    {"/v1/config/rollback", .verbs = VERB_POST, .role = ROLE_ADMIN, .handle = handle_rollback},
    {.path = NULL}};

const struct server_part server_part_config_change = {.routes = change_routes};
