/* doorman_server, part ADMIN: which key has which plan of the configuration, from a beginning to an
 * end (E2).
 *
 *     PUT /v1/plans       gives a plan to one key, or to up to 10,000 keys at once
 *     GET /v1/plans       lists the rows that have not ended, the newest first
 *     DELETE /v1/plans    ends a row
 *
 * The store keeps each row as a note. The id of a row is the number of its act times 2^14, plus its
 * index in the act. With --shards, a number from server/admin/cluster.c takes the place of the
 * number of the act. Before an act is written, all of its rows are checked. If one is not valid,
 * none is set, and the answer names up to 20 that are not valid. What a row replaces is looked up
 * on the thread of the store, which does one act after the other.
 *
 * A plan has the figures of the configuration, so the role support may give any plan within its
 * globs. It has to say when the plan ends. If a plan has other windows than its limit, a change of
 * the plan can let counters start fresh (P15). So the role support may change the plan of a key
 * only a few times a day, as it may reset a key. */
#include "admin.h"

#include <stdarg.h>

#define PLAN_PROBLEMS 20 /* errors that an answer has at most */
#define SUPPORT_PLANS 20 /* changes of the plan of one key a day, by the role support */

/* A row of an act. */
struct plan_change {
    doorman_plan_row row;
    bool ends;                          /* it ends the row, and sets none */
    uint64_t left;                      /* ACT_UNDO: the row that must be there; 0: none must be */
    uint64_t replaced;                  /* the row that it replaces or ends; 0: none */
    doorman_time before_at, before_end; /* of the replaced row */
    char before[DOORMAN_PLAN_BYTES_MAX + 1];
    size_t written_with;    /* how many notes of the act are written once its own are */
    size_t support_changes; /* of this plan in the last day, by the role support */
};

/* What an act on plans needs. */
struct plan_detail {
    doorman_plans_message message; /* owns the texts of the rows after PUT */
    cJSON *query;                  /* owns them after DELETE */
    struct plan_change *changes;
    size_t count;
    doorman_config_problem problems[PLAN_PROBLEMS];
    size_t problem_count; /* may be more than PLAN_PROBLEMS */
};

static void plan_detail_free(void *context) {
    struct plan_detail *detail = (struct plan_detail *)context;
    doorman_plans_message_uninit(&detail->message);
    cJSON_Delete(detail->query);
    free(detail->changes);
    free(detail);
}

static struct plan_detail *plan_detail_of(const struct act *act) {
    return (struct plan_detail *)act->detail;
}

/* Begins an act on plans. Returns NULL if memory runs out: then the response has failed. */
static struct act *plan_act_new(struct service *service, const struct http_request *request,
                                enum act_kind kind, struct http_response *response) {
    struct act *act = server_act_new(service, request, kind, response);
    if (!act) return NULL;
    act->detail = calloc(1, sizeof(struct plan_detail));
    if (act->detail) act->free_detail = plan_detail_free;
    response->text.failed = !act->detail;
    if (act->detail) return act;
    server_act_free(act);
    return NULL;
}

static doorman_time plan_time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (doorman_time)now.tv_sec * DOORMAN_SECOND + now.tv_nsec;
}

/* ---- errors --------------------------------------------------------------------------------- */

/* Writes an error, and returns false. */
static bool plan_refuse(struct http_response *response, int code, const char *error) {
    server_http_response_set_error(response, code,
                                   code == 400   ? "INVALID_ARGUMENT"
                                   : code == 403 ? "PERMISSION_DENIED"
                                                 : "NOT_FOUND",
                                   error);
    return false;
}

/* Notes that a row is not valid.
 *   index   of the row; ignored if the body is a single one */
__attribute__((format(printf, 3, 4))) static void
plan_add_problem(struct plan_detail *detail, size_t index, const char *format, ...) {
    char text[sizeof detail->problems[0].error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (detail->problem_count < PLAN_PROBLEMS) {
        doorman_error *error = &detail->problems[detail->problem_count].error;
        if (detail->message.is_bulk) {
            snprintf(error->text, sizeof error->text, "plans[%zu].%.200s", index, text);
        } else {
            snprintf(error->text, sizeof error->text, "%.200s", text);
        }
    }
    detail->problem_count++;
}

/* Answers with the errors. Returns false if there are any. */
static bool plan_refuse_problems(const struct plan_detail *detail, int code,
                                 struct http_response *response) {
    char text[PLAN_PROBLEMS * sizeof(doorman_error)];
    const size_t count =
        detail->problem_count < PLAN_PROBLEMS ? detail->problem_count : PLAN_PROBLEMS;
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < count && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "; " : "",
                                 detail->problems[i].error.text);
    }
    if (detail->problem_count > count && used < sizeof text) {
        snprintf(text + used, sizeof text - used, "; and %zu more", detail->problem_count - count);
    }
    return detail->problem_count == 0 || plan_refuse(response, code, text);
}

/* ---- PUT: what is valid --------------------------------------------------------------------- */

/* Orders rows by name, and rows with the same name by their order in the act. */
static int plan_compare(const void *a, const void *b) {
    const struct plan_change *one = *(const struct plan_change *const *)a;
    const struct plan_change *other = *(const struct plan_change *const *)b;
    int order = strcmp(one->row.identifier_glob, other->row.identifier_glob);
    if (order == 0) order = strcmp(one->row.key, other->row.key);
    return order ? order : (one > other) - (one < other);
}

/* Adds a problem for each row with the name of an earlier row. Returns false if memory runs out. */
static bool plan_find_doubles(struct plan_detail *detail) {
    const struct plan_change **sorted =
        (const struct plan_change **)malloc(detail->count * sizeof *sorted);
    if (!sorted) return false;
    for (size_t i = 0; i < detail->count; i++) sorted[i] = &detail->changes[i];
    qsort((void *)sorted, detail->count, sizeof *sorted, plan_compare);
    for (size_t i = 1; i < detail->count; i++) {
        const doorman_plan_row *last = &sorted[i - 1]->row, *row = &sorted[i]->row;
        if (strcmp(last->identifier_glob, row->identifier_glob) != 0) continue;
        if (strcmp(last->key, row->key) != 0) continue;
        plan_add_problem(detail, (size_t)(sorted[i] - detail->changes),
                         "key: plans[%zu] has this glob and key too",
                         (size_t)(sorted[i - 1] - detail->changes));
    }
    free((void *)sorted);
    return true;
}

/* Checks that the rows are within the globs of the token. */
static bool plan_check_globs(const struct act *act, struct http_response *response) {
    const struct plan_detail *detail = plan_detail_of(act);
    const char *checked = "";
    char globs[TOKEN_GLOBS_BYTES], error[ACT_TEXT];
    for (size_t i = 0; i < detail->count; i++) {
        const char *glob = detail->changes[i].row.identifier_glob;
        if (strcmp(glob, checked) == 0) continue;
        checked = glob;
        if (server_token_covers(act->service->tokens, &act->token, glob, true, globs)) continue;
        size_t used = 0;
        error[0] = 0;
        if (detail->message.is_bulk) {
            used = (size_t)snprintf(error, sizeof error, "plans[%zu].", i);
        }
        snprintf(error + used, sizeof error - used, "glob: %s: '%s' may only change %s", glob,
                 act->token.name, globs[0] ? globs : "nothing any more");
        return plan_refuse(response, 403, error);
    }
    return true;
}

/* Reads the body, and checks what the library does not check. */
static bool plan_read(struct act *act, const struct http_request *request,
                      struct http_response *response) {
    struct plan_detail *detail = plan_detail_of(act);
    doorman_plans_message *message = &detail->message;
    const doorman_time now = plan_time_now();
    doorman_config_problems problems = {.items = detail->problems, .room = PLAN_PROBLEMS};
    const doorman_status status =
        doorman_json_read_plans(message, request->body, request->body_bytes, &problems);
    detail->problem_count = problems.count;
    if (!plan_refuse_problems(detail, 400, response)) return false;
    if (status != DOORMAN_OK) return plan_refuse(response, 400, "the body: is too large");
    if (!message->reason) return plan_refuse(response, 400, "reason: is missing");
    const char *wrong = server_reason_check(message->reason);
    if (wrong) return plan_refuse(response, 400, wrong);
    detail->changes = (struct plan_change *)calloc(message->plan_count, sizeof *detail->changes);
    response->text.failed = !detail->changes;
    if (!detail->changes) return false;
    detail->count = message->plan_count;
    for (size_t i = 0; i < detail->count; i++) {
        const doorman_plan_entry *entry = &message->plans[i];
        doorman_plan_row *row = &detail->changes[i].row;
        *row = entry->row;
        row->id = 1;
        if (row->starts_at == 0) row->starts_at = now; /* the same after a restart */
        if (entry->expires_in > 0) row->ends_at = now + entry->expires_in;
        if (act->token.role != ROLE_ADMIN && row->ends_at == 0) {
            plan_add_problem(detail, i, "expires_in: the role support must give it");
        }
    }
    response->text.failed = !plan_find_doubles(detail);
    if (response->text.failed || !plan_refuse_problems(detail, 400, response)) return false;
    return plan_check_globs(act, response);
}

/* Checks the rows against the configuration. Releases the lock after each ROWS_AT_ONCE rows,
 * because decisions wait for it. */
static bool plan_check(struct act *act, struct http_response *response) {
    struct plan_detail *detail = plan_detail_of(act);
    struct service *service = act->service;
    int code = 404;
    for (size_t i = 0; i < detail->count;) {
        server_lock(&service->lock);
        doorman_permits *permits = doorman_server_permits(service->server);
        for (size_t n = 0; permits && n < ROWS_AT_ONCE && i < detail->count; n++, i++) {
            doorman_error error = {0};
            doorman_status status = doorman_permits_check_plan(permits, &detail->changes[i].row,
                                                               &error, doorman_clock());
            if (status == DOORMAN_OK) continue;
            if (status != DOORMAN_NOT_FOUND) code = 400;
            plan_add_problem(detail, i, "%s", error.text);
        }
        server_unlock(&service->lock);
        if (!permits) break; /* the act is refused later */
    }
    return plan_refuse_problems(detail, code, response);
}

/* ---- what is written ------------------------------------------------------------------------ */

/* Returns a plan and its times as JSON. */
static cJSON *plan_json(const char *plan, doorman_time starts_at, doorman_time ends_at) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "plan", plan);
    if (starts_at > plan_time_now()) {
        cJSON_AddNumberToObject(json, "starts_at", (double)starts_at / 1e9);
    }
    if (ends_at) cJSON_AddNumberToObject(json, "ends_at", (double)ends_at / 1e9);
    return json;
}

/* Adds the name of a row, what was there before, and what is there after the act. */
static void plan_describe(cJSON *json, const struct plan_change *change) {
    const doorman_plan_row *row = &change->row;
    cJSON_AddStringToObject(json, "glob", row->identifier_glob);
    cJSON_AddStringToObject(json, "key", row->key);
    cJSON_AddItemToObject(json, "before",
                          change->replaced
                              ? plan_json(change->before, change->before_at, change->before_end)
                              : cJSON_CreateNull());
    cJSON_AddItemToObject(json, "after",
                          change->ends ? cJSON_CreateNull()
                                       : plan_json(row->plan, row->starts_at, row->ends_at));
}

/* Looks up what a row replaces. Precondition: the lock is held. */
static void plan_take_before(struct plan_change *change, const doorman_permits *permits) {
    doorman_plan_info info;
    change->replaced = 0;
    if (!doorman_permits_find_plan(permits, &change->row, &info)) return;
    change->replaced = info.row.id;
    change->before_at = info.row.starts_at;
    change->before_end = info.row.ends_at;
    snprintf(change->before, sizeof change->before, "%s", info.row.plan);
}

/* Looks up what all rows replace. Returns false if there is no room for new rows, or if this
 * process is not master any more. */
static bool plan_take_all(struct act *act) {
    struct plan_detail *detail = plan_detail_of(act);
    struct service *service = act->service;
    doorman_permits_info info = {0};
    size_t added = 0;
    for (size_t i = 0; i < detail->count;) {
        server_lock(&service->lock);
        doorman_permits *permits = doorman_server_permits(service->server);
        if (permits) doorman_permits_read(permits, &info);
        for (size_t n = 0; permits && n < ROWS_AT_ONCE && i < detail->count; n++, i++) {
            plan_take_before(&detail->changes[i], permits);
            added += detail->changes[i].replaced == 0 && !detail->changes[i].ends;
        }
        server_unlock(&service->lock);
        if (permits) continue;
        return server_act_refuse(act, 503, "UNAVAILABLE",
                                 "nothing was changed: this process is not the master any more");
    }
    if (info.plan_count + added <= info.plan_max) return true;
    return server_act_refuse(act, 429, "RESOURCE_EXHAUSTED",
                             "there are %zu plan rows already, and at most %zu", info.plan_count,
                             info.plan_max);
}

/* Refuses an undo unless each row is as the undone act has left it. */
static bool plan_check_left(struct act *act, struct store *store) {
    const struct plan_detail *detail = plan_detail_of(act);
    for (size_t i = 0; act->kind == ACT_UNDO && i < detail->count; i++) {
        const struct plan_change *change = &detail->changes[i];
        if (change->left == change->replaced) continue;
        cJSON *name = cJSON_CreateObject();
        cJSON_AddStringToObject(name, "glob", change->row.identifier_glob);
        cJSON_AddStringToObject(name, "key", change->row.key);
        server_undo_refuse(act, store, name);
        cJSON_Delete(name);
        return false;
    }
    return true;
}

/* ---- how often the role support has changed a plan ------------------------------------------ */

/* The changes of an act, sorted by glob and key. */
struct plan_count {
    struct plan_change **sorted;
    size_t count;
    char since[32]; /* later entries count. It is a text, as the times of entries are: these texts
                       have the order of the times */
};

static int plan_compare_names(const void *a, const void *b) {
    const doorman_plan_row *one = &(*(const struct plan_change *const *)a)->row;
    const doorman_plan_row *other = &(*(const struct plan_change *const *)b)->row;
    const int order = strcmp(one->identifier_glob, other->identifier_glob);
    return order ? order : strcmp(one->key ? one->key : "", other->key ? other->key : "");
}

/* If an entry of the audit has changed a plan, counts it for the row with this glob and key. */
static void plan_count_entry(const struct plan_count *all, const cJSON *entry) {
    const char *before = server_row_word(cJSON_GetObjectItemCaseSensitive(entry, "before"), "plan");
    const char *after = server_row_word(cJSON_GetObjectItemCaseSensitive(entry, "after"), "plan");
    const struct plan_change name = {.row = {.identifier_glob = server_row_word(entry, "glob"),
                                             .key = server_row_word(entry, "key")}};
    const struct plan_change *wanted = &name;
    if (strcmp(before, after) == 0) return;
    struct plan_change **found =
        (struct plan_change **)bsearch((const void *)&wanted, (const void *)all->sorted, all->count,
                                       sizeof(struct plan_change *), plan_compare_names);
    if (found) (*found)->support_changes++;
}

static bool plan_count_visit(void *context, const struct store_note *note) {
    const struct plan_count *all = (const struct plan_count *)context;
    cJSON *row = cJSON_Parse(note->text);
    const char *at = server_row_word(row, "at");
    const bool is_later = !at[0] || strcmp(at, all->since) > 0;
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(row, "entries"), *entry = NULL;
    if (is_later && strcmp(server_row_word(row, "role"), "support") == 0) {
        cJSON_ArrayForEach(entry, entries) { plan_count_entry(all, entry); }
        if (!entries) plan_count_entry(all, row);
    }
    cJSON_Delete(row);
    return is_later;
}

/* Counts for each row of an act how often the role support has changed the plan of its key in the
 * last day. Returns false if the store has failed, or memory runs out. */
static bool plan_count_changes(struct plan_detail *detail, struct store *store) {
    struct plan_count all = {.count = detail->count};
    const time_t day = time(NULL) - 86400;
    struct tm parts;
    gmtime_r(&day, &parts);
    strftime(all.since, sizeof all.since, "%Y-%m-%dT%H:%M:%SZ", &parts);
    all.sorted = (struct plan_change **)malloc((detail->count + 1) * sizeof *all.sorted);
    if (!all.sorted) return false;
    for (size_t i = 0; i < detail->count; i++) all.sorted[i] = &detail->changes[i];
    qsort((void *)all.sorted, all.count, sizeof *all.sorted, plan_compare_names);
    bool done = server_store_list_notes(store, AUDIT_NOTE, "", plan_count_visit, &all) == STORE_OK;
    free((void *)all.sorted);
    return done;
}

/* Refuses an act of the role support that changes a plan too often. */
static bool plan_check_count(struct act *act, struct store *store) {
    struct plan_detail *detail = plan_detail_of(act);
    if (act->token.role == ROLE_ADMIN) return true;
    if (!plan_count_changes(detail, store)) {
        return server_act_refuse(act, 503, "UNAVAILABLE",
                                 "nothing was changed, because %s cannot be read: %s",
                                 server_acts_store(act->service), server_store_error(store));
    }
    for (size_t i = 0; i < detail->count; i++) {
        const struct plan_change *change = &detail->changes[i];
        const char *before = change->replaced ? change->before : "";
        const char *after = change->ends ? "" : change->row.plan;
        if (change->support_changes < SUPPORT_PLANS || strcmp(before, after) == 0) continue;
        return server_act_refuse(act, 403, "PERMISSION_DENIED",
                                 "the role support changes the plan of a key at most %d times a "
                                 "day, and that of '%s' for %s was changed %zu times; the role "
                                 "admin may change it again",
                                 SUPPORT_PLANS, change->row.key ? change->row.key : "",
                                 change->row.identifier_glob, change->support_changes);
    }
    return true;
}

static void plan_describe_all(struct act *act) {
    static const char *const names[] = {"glob", "key", "before", "after", "bulk", "entries"};
    struct plan_detail *detail = plan_detail_of(act);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cJSON_DeleteItemFromObject(act->row, names[i]);
    }
    if (!detail->message.is_bulk) {
        plan_describe(act->row, &detail->changes[0]);
        return;
    }
    cJSON_AddBoolToObject(act->row, "bulk", true);
    cJSON *list = cJSON_AddArrayToObject(act->row, "entries");
    for (size_t i = 0; i < detail->count; i++) {
        cJSON *entry = cJSON_CreateObject();
        plan_describe(entry, &detail->changes[i]);
        cJSON_AddItemToArray(list, entry);
    }
}

/* Looks up what the rows of an act replace, and describes it.
 *   store   as of server_undo_refuse */
static bool plan_look(struct act *act, struct store *store) {
    const struct plan_detail *detail = plan_detail_of(act);
    if (!plan_take_all(act) || !plan_check_left(act, store)) return false;
    if (act->kind == ACT_PLAN_END && detail->changes[0].replaced == 0) {
        return server_act_refuse(act, 404, "NOT_FOUND", "the key has no plan row for this glob");
    }
    plan_describe_all(act);
    return true;
}

static bool plan_look_again(struct act *act) { return plan_look(act, NULL); }

/* Completes the row of the audit, and checks what depends on earlier acts. */
static bool plan_prepare(struct act *act, struct store *store) {
    const struct plan_detail *detail = plan_detail_of(act);
    if (act->kind != ACT_UNDO && detail->message.reason) {
        cJSON_AddStringToObject(act->row, "reason", detail->message.reason);
    }
    return plan_look(act, store) && plan_check_count(act, store);
}

/* Returns the text of the note of a row, or NULL if memory runs out. */
static char *plan_text(const struct act *act, const doorman_plan_row *row) {
    doorman_buffer text = {.text = NULL};
    cJSON *note = cJSON_CreateObject(), *json = NULL;
    if (doorman_json_write_plan(row, plan_detail_of(act)->message.reason, &text) == DOORMAN_OK) {
        json = cJSON_ParseWithLength(text.text, text.bytes);
    }
    doorman_buffer_uninit(&text);
    cJSON_DeleteItemFromObject(json, "id");
    cJSON_AddNumberToObject(note, "id", (double)row->id);
    cJSON_AddNumberToObject(note, "audit", (double)act->id);
    if (act->row_id) cJSON_AddStringToObject(note, "node", act->service->node);
    cJSON_AddStringToObject(note, "token", act->token.name);
    server_act_add_time(note, "at", time(NULL));
    bool is_whole = json && cJSON_AddItemToObject(note, "plan", json);
    if (!is_whole) cJSON_Delete(json);
    char *written = is_whole ? cJSON_PrintUnformatted(note) : NULL;
    cJSON_Delete(note);
    return written;
}

/* Adds the notes of the rows that an act sets, and deletes the notes of the rows that it replaces
 * or ends. */
static bool plan_add_notes(struct act *act) {
    struct plan_detail *detail = plan_detail_of(act);
    for (size_t i = 0; i < detail->count; i++) {
        struct plan_change *change = &detail->changes[i];
        doorman_plan_row *row = &change->row;
        const doorman_time end = row->ends_at;
        row->id = (server_act_note_id(act) << PLAN_ID_BITS) + i;
        if (!change->ends) {
            const struct act_note made = {.kind = PLAN_NOTE,
                                          .id = row->id,
                                          .ends_at = end ? end / DOORMAN_SECOND + 1 : 0,
                                          .entry = i,
                                          .text = plan_text(act, row)};
            if (!made.text || !server_act_add_note(act, &made)) return false;
        }
        const struct act_note deleted = {.kind = PLAN_NOTE, .id = change->replaced, .entry = i};
        if (change->replaced && !server_act_add_note(act, &deleted)) return false;
        change->written_with = act->notes.count;
    }
    return true;
}

/* Puts the written rows into force. */
static void plan_apply(struct act *act) {
    const struct plan_detail *detail = plan_detail_of(act);
    doorman_permits *permits = doorman_server_permits(act->service->server);
    for (size_t i = 0; permits && i < detail->count; i++) {
        const struct plan_change *change = &detail->changes[i];
        doorman_error error = {0};
        if (change->written_with > act->written) return;
        if (change->ends) {
            (void)doorman_permits_end_plan(permits, &change->row, NULL, doorman_clock());
            continue;
        }
        doorman_status status =
            doorman_permits_restore_plan(permits, &change->row, &error, doorman_clock());
        if (status == DOORMAN_OK) continue;
        server_act_refuse(act, 500, "INTERNAL", "it is in the store, and is not in force: %s",
                          error.text[0] ? error.text : server_status_text(status));
    }
}

/* ---- PUT and DELETE ------------------------------------------------------------------------- */

static void plan_answer(const struct act *act, struct http_response *response) {
    response->type = "application/json";
    server_text_addf(&response->text, "{\"id\": %" PRIu64 "}\n", act->id);
}

/* Does an act whose rows were read, and answers. It frees the act.
 *   is_valid   false: the response is an error already */
static void plan_run(struct act *act, bool is_valid, struct http_response *response) {
    act->prepare = plan_prepare;
    act->add_notes = plan_add_notes;
    act->apply = plan_apply;
    act->look_again = plan_look_again;
    if (is_valid && !server_act_run_rows(act, response)) return; /* it has freed the act */
    if (is_valid) plan_answer(act, response);
    server_act_free(act);
}

static void plan_put(struct service *service, const struct http_request *request,
                     struct http_response *response) {
    struct act *act = plan_act_new(service, request, ACT_PLAN, response);
    if (act)
        plan_run(act, plan_read(act, request, response) && plan_check(act, response), response);
}

/* Reads the name of a row from the query. */
static bool plan_end_read(struct act *act, const struct http_request *request,
                          struct http_response *response) {
    static const char *const names[] = {"glob", "key", "reason", "redirect", NULL};
    struct plan_detail *detail = plan_detail_of(act);
    const char *texts[2];
    if (!server_http_check_query(request->query, names, response)) return false;
    detail->query = cJSON_CreateObject();
    detail->changes = (struct plan_change *)calloc(1, sizeof *detail->changes);
    response->text.failed = !detail->query || !detail->changes;
    if (response->text.failed) return false;
    for (size_t i = 0; i < 2; i++) {
        char value[DOORMAN_ID_BYTES_MAX + 2];
        if (!server_query_read(request->query, names[i], value, sizeof value)) {
            return plan_refuse(response, 400, i ? "key: is missing" : "glob: is missing");
        }
        texts[i] = cJSON_GetStringValue(cJSON_AddStringToObject(detail->query, names[i], value));
        response->text.failed = !texts[i];
        if (!texts[i]) return false;
    }
    detail->count = 1;
    detail->changes[0].ends = true;
    detail->changes[0].row =
        (doorman_plan_row){.identifier_glob = texts[0], .key = texts[1], .wire_names = true};
    return server_act_add_reason(act->row, request, response) && plan_check_globs(act, response);
}

static void plan_delete(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct act *act = plan_act_new(service, request, ACT_PLAN_END, response);
    if (act) plan_run(act, plan_end_read(act, request, response), response);
}

/* ---- undo ----------------------------------------------------------------------------------- */

/* Returns a time of a row of the audit; 0: there is none. */
static doorman_time plan_undo_time(const cJSON *json, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsNumber(value) ? (doorman_time)(value->valuedouble * 1e9) : 0;
}

/* Reads what was there before a row was set or ended.
 *   entry   of the row of the audit; its texts are valid for the time of the act */
static bool plan_undo_entry(struct plan_change *change, const cJSON *entry, uint64_t id) {
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(entry, "before");
    const cJSON *after = cJSON_GetObjectItemCaseSensitive(entry, "after");
    doorman_plan_row *row = &change->row;
    row->identifier_glob = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "glob"));
    row->key = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "key"));
    row->plan = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(before, "plan"));
    row->starts_at = plan_undo_time(before, "starts_at");
    row->ends_at = plan_undo_time(before, "ends_at");
    row->wire_names = true;
    row->id = 1;
    if (row->starts_at == 0) row->starts_at = plan_time_now();
    change->left = cJSON_IsObject(after) ? id : 0;
    change->ends = !row->plan || (row->ends_at > 0 && row->ends_at <= plan_time_now());
    return row->identifier_glob && row->key;
}

/* Reads the rows that were there before an act. */
static bool plan_undo_read(struct act *act, const struct undo *undo,
                           struct http_response *response) {
    struct plan_detail *detail = plan_detail_of(act);
    detail->query = cJSON_Duplicate(undo->row, true); /* the act may outlast the request */
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(detail->query, "entries");
    const cJSON *entry = entries ? entries->child : detail->query;
    detail->message.is_bulk = entries != NULL;
    detail->count = entries ? (size_t)cJSON_GetArraySize(entries) : 1;
    detail->changes = (struct plan_change *)calloc(detail->count + 1, sizeof *detail->changes);
    response->text.failed = !detail->query || !detail->changes;
    for (size_t i = 0; !response->text.failed && i < detail->count; i++, entry = entry->next) {
        struct plan_change *change = &detail->changes[i];
        if (!plan_undo_entry(change, entry, (server_undo_note_id(undo) << PLAN_ID_BITS) + i)) {
            return plan_refuse(response, 404, "the row of the act cannot be read");
        }
        if (!change->ends && change->row.ends_at == 0 && act->token.role != ROLE_ADMIN) {
            plan_add_problem(detail, i,
                             "the row that was there before has no end, so only the "
                             "role admin can set it again");
        }
    }
    return !response->text.failed && plan_refuse_problems(detail, 403, response) &&
           plan_check_globs(act, response);
}

void server_plan_undo(struct service *service, const struct http_request *request,
                      const struct undo *undo, struct http_response *response) {
    struct act *act = plan_act_new(service, request, ACT_UNDO, response);
    if (!act) return;
    bool is_valid =
        server_undo_begin(act, undo, request, response) && plan_undo_read(act, undo, response);
    if (is_valid) {
        plan_detail_of(act)->message.reason =
            cJSON_GetStringValue(cJSON_GetObjectItem(act->row, "reason"));
    }
    plan_run(act, is_valid, response);
}

/* ---- GET ------------------------------------------------------------------------------------ */

/* Adds whether a row is in force. Returns false if the row is not there any more. */
static bool plan_add_state(struct service *service, cJSON *json, const doorman_plan_row *row) {
    doorman_plan_info info;
    server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    bool is_there =
        permits && doorman_permits_find_plan(permits, row, &info) && info.row.id == row->id;
    server_unlock(&service->lock);
    if (is_there) cJSON_AddBoolToObject(json, "in_force", info.in_force);
    if (is_there && info.idle) cJSON_AddBoolToObject(json, "idle", true);
    return is_there;
}

static bool plan_list_add(struct note_page *page, const struct store_note *note) {
    doorman_plans_message message = {.tree = NULL};
    bool has_ended = note->ends_at > 0 && note->ends_at <= (int64_t)time(NULL);
    bool shows = !has_ended && server_plan_read(note, &message);
    doorman_plan_row row = {.id = strtoull(note->identity, NULL, 10)};
    if (shows) {
        row.identifier_glob = message.plans[0].row.identifier_glob;
        row.key = message.plans[0].row.key;
    }
    shows = shows && (!page->has_key || strcmp(row.key, page->key) == 0);
    cJSON *json = shows ? cJSON_Parse(note->text) : NULL;
    shows = shows && plan_add_state(page->service, json, &row);
    char *text = shows ? cJSON_PrintUnformatted(json) : NULL;
    page->text.failed = page->text.failed || (shows && !text);
    if (text) server_admin_add_line(&page->text, text);
    cJSON_free(text);
    cJSON_Delete(json);
    doorman_plans_message_uninit(&message);
    return shows;
}

static void plan_list(struct service *service, const struct http_request *request,
                      struct http_response *response) {
    static const char *const names[] = {"key", "after", "limit", "redirect", NULL};
    const struct note_list list = {.kind = PLAN_NOTE, .names = names, .add = plan_list_add};
    server_admin_list(service, request, response, &list);
}

static void handle_plans(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    if (!server_admin_serves(service, request, response)) return;
    if (strcmp(request->verb, "PUT") == 0) {
        plan_put(service, request, response);
    } else if (strcmp(request->verb, "DELETE") == 0) {
        plan_delete(service, request, response);
    } else {
        plan_list(service, request, response);
    }
}

static const struct http_route plan_routes[] = {{"/v1/plans", .administers = true,
                                                 .verbs = VERB_GET | VERB_PUT | VERB_DELETE,
                                                 .role = ROLE_SUPPORT, .handle = handle_plans},
                                                {.path = NULL}};

const struct server_part server_part_plan = {.routes = plan_routes};
