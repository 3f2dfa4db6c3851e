/* doorman_server, part ADMIN: acts of administration. An act is a change that people make, for
 * example to a counter, to an override or to the configuration. The store keeps each act, with the
 * name of its token.
 *
 *     described   on the thread of pages: who, what, the value before and after, the reason
 *     checked     on the thread of the store: what depends on earlier acts
 *     written     there: the row of the audit, and what the act has made, in one step if they fit
 *     applied     there, with the lock of the service
 *     answered    on the thread of pages
 *
 * If the store fails, only what was written is applied, and the answer says how much that is, and
 * why. If the store does not answer in time, it is not known whether an act with notes was done,
 * and the answer says so. If the store writes the act later, its notes come into force then.
 *
 * The audit has a row for each act. The identity of the row is the number of the act. Numbers have
 * no gaps. audit_trim.c says how long a row stays. */
#include "audit_trim.h"

#include <stdarg.h>

#define TRIM_INTERVAL (3600 * DOORMAN_SECOND)
#define WAITING_MAX 16 /* acts that are written when this process is master */

/* The lock of the service guards the last two members. Only the thread of the store uses the other
 * members, or the main thread while the thread of the store does not run. */
struct admin {
    bool is_read; /* `audit` and `newest_id` are known */
    struct audit_size audit;
    uint64_t newest_id;     /* the largest last_id so far. A Redis can come back with an
                             earlier one */
    uint64_t late_id;       /* of an act that the store may have written, or may still write; 0:
                             none */
    bool late_has_row_only; /* it has nothing but its row, so it was not put into force */
    doorman_time trim_at;   /* when to look again for rows that are over */
    struct act *waiting[WAITING_MAX];
    size_t waiting_count;
};

static void admin_set_last(struct admin *admin, uint64_t id) {
    admin->audit.last_id = id;
    if (id > admin->newest_id) admin->newest_id = id;
}

/* Reads what the audit has, and removes rows. Returns false if the store has failed. */
static bool audit_trim(struct admin *admin, struct store *store) {
    if (!server_audit_trim(&admin->audit, store)) return false;
    admin_set_last(admin, admin->audit.last_id);
    admin->trim_at = doorman_clock() + TRIM_INTERVAL;
    return true;
}

/* ---- overrides and plans that have ended ---------------------------------------------------- */

struct ended_notes {
    size_t count;
    int64_t now;
    char identities[STORE_NOTES_MAX][24];
};

static bool ended_visit(void *context, const struct store_note *note) {
    struct ended_notes *ended = (struct ended_notes *)context;
    if (note->ends_at > 0 && note->ends_at < ended->now) {
        snprintf(ended->identities[ended->count++], 24, "%.23s", note->identity);
    }
    return ended->count < STORE_NOTES_MAX;
}

bool server_notes_trim(struct store *store, const char *kind) {
    struct ended_notes ended;
    do {
        struct store_note notes[STORE_NOTES_MAX];
        ended.count = 0;
        ended.now = (int64_t)time(NULL);
        if (server_store_list_notes(store, kind, "", ended_visit, &ended) != STORE_OK) {
            return false;
        }
        for (size_t i = 0; i < ended.count; i++) {
            notes[i] = (struct store_note){.kind = kind, .identity = ended.identities[i]};
        }
        if (ended.count > 0 && server_store_put_notes(store, notes, ended.count) != STORE_OK) {
            return false;
        }
    } while (ended.count == STORE_NOTES_MAX);
    return true;
}

/* ---- acts ----------------------------------------------------------------------------------- */

static void add_text(cJSON *object, const char *name, const char *value) {
    cJSON_AddStringToObject(object, name, value);
}

void server_act_add_time(cJSON *object, const char *name, time_t at) {
    char text[32];
    struct tm parts;
    gmtime_r(&at, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    add_text(object, name, text);
}

static const char *const act_names[] = {
#define ACT_NAME(code, name) name,
    ACT_KINDS(ACT_NAME)
#undef ACT_NAME
};

void server_act_clear_notes(struct act *act) {
    for (size_t i = 0; i < act->notes.count; i++) cJSON_free(act->notes.notes[i].text);
    free(act->notes.notes);
    act->notes = (struct act_notes){.notes = NULL};
    act->written = 0;
}

void server_act_free(struct act *act) {
    if (!act) return;
    const bool shared_before = act->shared_before;
    cJSON_Delete(act->row);
    server_act_clear_notes(act);
    if (act->free_detail) act->free_detail(act->detail);
    free(act);
    server_shares_memory = shared_before;
}

/* Frees an act on the thread of the store or of the shards, which always share memory, or on the
 * main thread at the end. */
static void act_drop(void *context) {
    struct act *act = (struct act *)context;
    act->shared_before = true;
    server_act_free(act);
}

bool server_act_add_note(struct act *act, const struct act_note *note) {
    struct act_notes *all = &act->notes;
    if (all->count == all->capacity) {
        size_t capacity = 2 * all->capacity + 4;
        void *grown = realloc(all->notes, capacity * sizeof *all->notes);
        if (!grown) {
            cJSON_free(note->text);
            return false;
        }
        all->notes = (struct act_note *)grown;
        all->capacity = capacity;
    }
    all->notes[all->count++] = *note;
    return true;
}

/* Returns the index behind the last note that the next call of the store writes. The notes of one
 * entry are in one call, so that the entry is written whole or not at all, unless there are too
 * many for one call.
 *   has_row   the call has the row of the audit too */
static size_t act_batch_end(const struct act *act, bool has_row) {
    const struct act_note *notes = act->notes.notes;
    const size_t end = act->written + STORE_NOTES_MAX - (has_row ? 1 : 0);
    size_t whole = end;
    if (end >= act->notes.count) return act->notes.count;
    while (whole > act->written && notes[whole].entry == notes[whole - 1].entry) whole--;
    return whole > act->written ? whole : end;
}

/* Returns how many entries of an act are whole among its first `notes` notes. */
static size_t act_count_entries(const struct act_notes *all, size_t notes) {
    if (all->count == 0) return 0;
    return notes < all->count ? all->notes[notes].entry : all->notes[all->count - 1].entry + 1;
}

/* Writes the row of an act, and as many of the notes that are not written yet as fit into one call
 * of the store.
 *   row   NULL: only notes */
static enum store_result act_put_some(struct act *act, struct store *store, const char *row) {
    char identities[STORE_NOTES_MAX][24];
    struct store_note notes[STORE_NOTES_MAX];
    const size_t end = act_batch_end(act, row != NULL);
    size_t count = 0, next = act->written;
    server_audit_identity(identities[0], act->id);
    if (row)
        notes[count++] =
            (struct store_note){.kind = AUDIT_NOTE,
                                .identity = identities[0],
                                .ends_at = (int64_t)time(NULL) + INT64_C(86400) * AUDIT_DAYS,
                                .text = row};
    for (; next < end; next++, count++) {
        const struct act_note *note = &act->notes.notes[next];
        server_audit_identity(identities[count], note->id);
        notes[count] = (struct store_note){.kind = note->kind,
                                           .identity = identities[count],
                                           .ends_at = note->ends_at,
                                           .text = note->text};
    }
    enum store_result result = server_store_put_notes(store, notes, count);
    if (result == STORE_OK) act->written = next;
    return result;
}

/* Returns the row of an act as text. If the call that writes the row cannot write all entries, the
 * row says how many this call writes. Returns NULL if memory runs out. */
static char *act_row(struct act *act) {
    const size_t end = act_batch_end(act, true);
    cJSON_DeleteItemFromObject(act->row, "written");
    if (end < act->notes.count) {
        cJSON_AddNumberToObject(act->row, "written", (double)act_count_entries(&act->notes, end));
    }
    return cJSON_PrintUnformatted(act->row);
}

/* Writes the row of an act and its notes. If that needs several calls of the store, the row of the
 * first call says how many entries this call writes. The last call writes the row again, without
 * this number. */
static enum store_result act_put(struct act *act, struct store *store) {
    enum store_result result = STORE_OK;
    bool is_last = false;
    while (result == STORE_OK && !is_last) {
        const bool is_first = act->row_bytes == 0;
        is_last = act_batch_end(act, true) == act->notes.count;
        char *row = is_first || is_last ? act_row(act) : NULL;
        bool has_memory = row || !(is_first || is_last);
        result = has_memory ? act_put_some(act, store, row) : STORE_FAILED;
        if (result == STORE_OK && row) act->row_bytes = strlen(row);
        cJSON_free(row);
    }
    return result;
}

enum store_result server_act_put_notes(struct act *act, struct store *store) {
    enum store_result result = STORE_OK;
    while (result == STORE_OK && act->written < act->notes.count) {
        result = act_put_some(act, store, NULL);
    }
    return result;
}

/* If the act has several entries, the report only counts them: they are in the row of the audit. */
static struct act_report act_report_of(const struct act *act) {
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(act->row, "entries");
    const int count = entries ? cJSON_GetArraySize(entries) : 1;
    const cJSON *about = entries ? (count == 1 ? entries->child : NULL) : act->row;
    const char *resource = server_row_text(about, "resource_id");
    if (!resource) resource = server_row_text(about, "resource");
    const char *glob = resource ? NULL : server_row_text(about, "glob");
    return (struct act_report){.what = act_names[act->kind],
                               .token = act->token.name,
                               .resource = resource ? resource : glob,
                               .is_glob = glob != NULL,
                               .key = server_row_text(about, "key"),
                               .limit = server_row_text(about, "limit"),
                               .reason = server_row_text(act->row, "reason"),
                               .audit = act->id,
                               .entries = (size_t)count};
}

/* Counts and logs an act that was written, puts it into force, and reports it to the parts. */
static void act_apply(struct act *act) {
    struct service *service = act->service;
    const struct act_report report = act_report_of(act);
    char id[24];
    server_counter_add(&service->counters.acts[act->kind], 1);
    server_lock(&service->lock);
    if (act->apply) act->apply(act);
    EACH_PART(part, acted)(*part)->acted(service, &report);
    server_unlock(&service->lock);
    snprintf(id, sizeof id, "%" PRIu64, act->id);
    server_log(service->settings, LEVEL_INFO, "an act of administration", "what",
               act_names[act->kind], "token", act->token.name, "audit", id, LOG_END);
}

/* Says how much of an act was done when the store has failed. An act without notes is only put into
 * force after it was written.
 *   is_sent   the store was asked to write it */
static void act_describe_failure(const struct act *act, const struct store *store, bool is_sent,
                                 char what[160]) {
    const size_t room = 160;
    const struct act_notes *notes = &act->notes;
    const size_t done = act_count_entries(notes, act->written);
    const size_t all = act_count_entries(notes, notes->count);
    const bool is_unsure = is_sent && server_store_is_unsure(store) && notes->count > 0;
    if (act->row_bytes > 0) {
        snprintf(what, room, "%s the first %zu of %zu entries were changed, [0] to [%zu]%s",
                 is_unsure ? "at least" : "only", done, all, done ? done - 1 : 0,
                 is_unsure ? "; look at the list for the others" : "");
    } else {
        snprintf(what, room, "%s",
                 is_unsure ? "it is not known whether this was done; look at "
                             "/v1/audit when the store answers again"
                           : "nothing was changed");
    }
}

/* Notes that the store has failed. A store that did not answer may have written the act, or may do
 * so soon. So everything is read once more, and what was written then comes into force. */
static void act_note_failure(const struct act *act, const struct store *store, bool is_sent) {
    struct admin *admin = act->service->admin;
    admin->is_read = false;
    admin->trim_at = 0;
    if (is_sent && server_store_is_unsure(store)) {
        admin->late_id = act->id;
        admin->late_has_row_only = act->notes.count == 0 && !act->is_done;
    }
    server_state_reread(act->service);
}

/* Refuses an act that the store has not kept, or not whole.
 *   is_sent   as above */
static void act_fail(struct act *act, struct store *store, bool is_sent) {
    char what[160];
    act_describe_failure(act, store, is_sent, what);
    act_note_failure(act, store, is_sent);
    if (act->is_done) {
        server_act_refuse(act, 503, "UNAVAILABLE",
                          "the change was made, and its row of the audit says that this is not "
                          "known, because %s cannot keep it: %s",
                          server_acts_store(act->service), server_store_error(store));
        return;
    }
    server_act_refuse(act, 503, "UNAVAILABLE", "%s, because %s cannot keep %s: %s", what,
                      server_acts_store(act->service), act->row_bytes > 0 ? "the others" : "it",
                      server_store_error(store));
}

/* Refuses an act whose row the store has not kept before the change.
 *   is_sent   as above */
static void act_fail_announced(struct act *act, struct store *store, bool is_sent) {
    act_note_failure(act, store, is_sent);
    server_act_refuse(act, 503, "UNAVAILABLE", "nothing was changed, because %s cannot keep it: %s",
                      server_acts_store(act->service), server_store_error(store));
}

bool server_act_announce(struct act *act, struct store *store) {
    cJSON_AddFalseToObject(act->row, "known");
    char *row = cJSON_PrintUnformatted(act->row);
    enum store_result result = row ? act_put_some(act, store, row) : STORE_FAILED;
    if (result == STORE_OK) act->row_bytes = strlen(row);
    cJSON_free(row);
    cJSON_DeleteItemFromObject(act->row, "known");
    if (result != STORE_OK) act_fail_announced(act, store, true);
    return result == STORE_OK;
}

bool server_act_forget(struct act *act, struct store *store, const char *why) {
    cJSON_AddStringToObject(act->row, "refused", why);
    return act_put(act, store) == STORE_OK;
}

struct newest_act {
    uint64_t id;
    int64_t ends_at;
    cJSON *row; /* NULL: there is none, or memory has run out */
};

static bool newest_visit(void *context, const struct store_note *note) {
    struct newest_act *newest = (struct newest_act *)context;
    newest->id = strtoull(note->identity, NULL, 10);
    newest->ends_at = note->ends_at;
    newest->row = cJSON_Parse(note->text);
    return false;
}

/* Adds "known": false to the row of an act without notes, if the store has taken the row late. The
 * act was not put into force. Returns false if the store has failed, or memory has run out. */
static bool admin_mark_late(const struct admin *admin, struct store *store) {
    struct newest_act newest = {.row = NULL};
    char identity[24], *text = NULL;
    bool done = server_store_list_notes(store, AUDIT_NOTE, "", newest_visit, &newest) == STORE_OK;
    if (done && newest.id == admin->late_id && !cJSON_HasObjectItem(newest.row, "known")) {
        cJSON_AddFalseToObject(newest.row, "known");
        text = newest.row ? cJSON_PrintUnformatted(newest.row) : NULL;
        server_audit_identity(identity, newest.id);
        const struct store_note note = {AUDIT_NOTE, identity, newest.ends_at, text};
        done = text && server_store_put_notes(store, &note, 1) == STORE_OK;
    }
    cJSON_free(text);
    cJSON_Delete(newest.row);
    return done;
}

/* Reads what the store has. If the audit had rows before, an empty batch is written first, because
 * a store cannot carry out an earlier, unanswered write after this batch. If the store has come
 * back with fewer acts than there were, rows may be missing that no act has removed. Then all rows
 * stay in force. */
static bool admin_read(struct service *service, struct store *store) {
    struct admin *admin = service->admin;
    if (admin->newest_id > 0 && server_store_write(store, NULL, 0) != STORE_OK) return false;
    if (admin->late_has_row_only && !admin_mark_late(admin, store)) return false;
    if (!audit_trim(admin, store)) return false;
    const struct rows_wanted wanted = {.ends_others = admin->audit.last_id >= admin->newest_id,
                                       .late_id = admin->late_id,
                                       .deletes = true};
    const bool has_rows = !service->settings->shards; /* else see server/admin/cluster.c */
    if (has_rows && !server_rows_read(service, store, &wanted)) return false;
    admin->late_id = 0;
    admin->late_has_row_only = false;
    return true;
}

/* Refuses an act of the role support if the audit would get too much from its token (E5). */
static bool act_check_room(struct act *act) {
    char *row = act->token.role == ROLE_SUPPORT ? act_row(act) : NULL;
    const size_t bytes = row ? strlen(row) : 0;
    cJSON_free(row);
    if (server_audit_has_room(&act->service->admin->audit, &act->token, bytes)) return true;
    return server_act_refuse(act, 429, "RESOURCE_EXHAUSTED",
                             "nothing was changed: the role support writes at most %zu MiB of the "
                             "audit a day, and the token '%s' has no room for this act; the role "
                             "admin may do it",
                             AUDIT_SUPPORT_BYTES_MAX >> 20, act->token.name);
}

int server_act_count_resets(const struct act *act, const cJSON *entry) {
    struct service *service = act->service;
    const int64_t day_ago = (int64_t)time(NULL) - 86400;
    const char *resource = server_row_word(entry, "resource_id");
    char glob[DOORMAN_ID_BYTES_MAX + 1] = "";
    if (!resource[0]) resource = server_row_word(entry, "resource");
    server_lock(&service->lock);
    const doorman_template *found =
        service->config && resource[0] ? doorman_config_find(service->config, resource) : NULL;
    if (found) snprintf(glob, sizeof glob, "%s", found->identifier_glob);
    server_unlock(&service->lock);
    return server_resets_count(&service->admin->audit.resets, entry, glob[0] ? glob : NULL,
                               day_ago);
}

/* Writes an act, and applies it unless `announces` is true. Runs on the thread of the store. */
static void act_write(struct service *service, struct store *store, void *context) {
    struct act *act = (struct act *)context;
    struct admin *admin = service->admin;
    if (!admin->is_read) admin->is_read = admin_read(service, store);
    if (admin->is_read &&
        (doorman_clock() >= admin->trim_at || admin->audit.bytes > admin->audit.trim_bytes)) {
        admin->is_read = audit_trim(admin, store) && server_notes_trim(store, OVERRIDE_NOTE) &&
                         server_notes_trim(store, PLAN_NOTE);
    }
    act->id = admin->audit.last_id + 1;
    cJSON_SetNumberValue(cJSON_GetObjectItem(act->row, "id"), (double)act->id);
    if (admin->is_read && act->prepare && !act->prepare(act, store)) {
        if (act->row_bytes > 0) admin_set_last(admin, act->id); /* it was announced */
        return;
    }
    if (act->add_notes && !act->add_notes(act)) {
        server_act_refuse(act, 500, "INTERNAL", "out of memory");
        return;
    }
    const bool is_sent = admin->is_read;
    if (is_sent && !act_check_room(act)) return;
    if (act->announces) cJSON_AddFalseToObject(act->row, "known");
    enum store_result result = is_sent ? act_put(act, store) : STORE_FAILED;
    if (act->row_bytes > 0) {
        admin_set_last(admin, act->id);
        const bool is_added =
            server_audit_add(&admin->audit, &act->token, act->row_bytes, act->row);
        admin->is_read = admin->is_read && is_added;
        if (!act->announces) act_apply(act);
    }
    if (result != STORE_OK) (act->announces ? act_fail_announced : act_fail)(act, store, is_sent);
}

/* Writes the row of an act once more, after its change was made or refused. If it was made, applies
 * the act. Runs on the thread of the store. */
static void act_write_again(struct service *service, struct store *store, void *context) {
    struct act *act = (struct act *)context;
    (void)service;
    const enum store_result result = act_put(act, store);
    if (act->is_done) act_apply(act);
    if (result != STORE_OK && act->is_done) act_fail(act, store, true);
    if (result != STORE_OK && !act->is_done) act_note_failure(act, store, true);
}

struct act *server_act_new(struct service *service, const struct http_request *request,
                           enum act_kind kind, struct http_response *response) {
    struct act *act = (struct act *)calloc(1, sizeof *act);
    const bool shared_before = server_shares_memory;
    const struct peer peer = {.text = request->peer};
    char address[PEER_BYTES];
    response->text.failed = !act;
    if (!act) return NULL;
    server_shares_memory = true;
    act->shared_before = shared_before;
    act->row = cJSON_CreateObject();
    response->text.failed = !act->row;
    if (!act->row) {
        server_act_free(act);
        return NULL;
    }
    act->call = (struct state_call){.run = act_write, .drop = act_drop, .context = act};
    act->service = service;
    act->kind = kind;
    act->token = request->token;
    server_peer_write(&peer, address);
    cJSON_AddNumberToObject(act->row, "id", 0);
    server_act_add_time(act->row, "at", time(NULL));
    add_text(act->row, "token", request->token.name);
    add_text(act->row, "role", server_role_name(request->token.role));
    add_text(act->row, "peer", address);
    add_text(act->row, "what", act_names[kind]);
    return act;
}

bool server_act_refuse(struct act *act, int code, const char *name, const char *format, ...) {
    va_list arguments;
    act->code = code;
    act->name = name;
    va_start(arguments, format);
    vsnprintf(act->error, sizeof act->error, format, arguments);
    va_end(arguments);
    return false;
}

bool server_act_confirm(struct act *act, const char *refusal, struct http_response *response) {
    act->is_done = !refusal;
    cJSON_DeleteItemFromObject(act->row, "known");
    if (refusal) add_text(act->row, "refused", refusal);
    act->call.run = act_write_again;
    return server_act_run(act, response);
}

bool server_act_run(struct act *act, struct http_response *response) {
    char why[CALL_TEXT], error[ACT_TEXT];
    const bool shared_before = act->shared_before;
    enum call_result result = server_state_call(act->service, &act->call, why);
    if (result == CALL_OVER && act->code == 0) return true;
    if (result == CALL_OVER) {
        server_http_response_set_error(response, act->code, act->name, act->error);
    } else {
        snprintf(error, sizeof error, "%s%s",
                 act->is_done ? "the change was made, and its row of the audit says that this is "
                                "not known: "
                 : act->announces || result == CALL_REFUSED
                     ? "nothing was changed: "
                     : "it is not known whether this was done; look at /v1/audit when the store "
                       "answers again: ",
                 why);
        server_http_response_set_error(response, 503, "UNAVAILABLE", error);
    }
    if (response->code == 503) response->more = "Retry-After: 1\r\n";
    if (result == CALL_LOST) {
        server_shares_memory = shared_before; /* the thread of the store frees the act */
    } else {
        server_act_free(act);
    }
    return false;
}

/* ---- requests ------------------------------------------------------------------------------- */

bool server_admin_serves(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    char master_http[DOORMAN_ID_BYTES_MAX + 1];
    if (!server_keeps_acts(service)) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "this server keeps no acts of administration, because it "
                                       "has no store: start it with --state, or with "
                                       "--config etcd:KEY and --http-token");
        return false;
    }
    server_lock(&service->lock);
    bool is_master = doorman_server_permits(service->server) != NULL;
    snprintf(master_http, sizeof master_http, "%s", service->master_http);
    server_unlock(&service->lock);
    if (is_master) return true;
    server_http_response_set_unavailable(response,
                                         "this process is not the master: ask the master, or add "
                                         "redirect=1 to be sent there");
    if (!master_http[0] || !server_query_is_set(request->query, "redirect")) return false;
    response->code = 307;
    response->more = "";
    server_text_addf(&response->lines, "Location: %s%s?", master_http, request->path);
    server_text_add(&response->lines, request->query);
    server_text_add(&response->lines, "\r\n");
    return false;
}

/* ---- the part ------------------------------------------------------------------------------- */

/* Takes the first act that waits, or returns NULL. */
static struct act *waiting_take(struct service *service) {
    struct admin *admin = service->admin;
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    struct act *act = admin->waiting_count ? admin->waiting[0] : NULL;
    if (act) {
        admin->waiting_count--;
        memmove(admin->waiting, admin->waiting + 1, admin->waiting_count * sizeof act);
    }
    if (!held) server_unlock(&service->lock);
    return act;
}

void server_act_write_later(struct act *act) {
    struct service *service = act->service;
    struct admin *admin = service->admin;
    const bool shared_before = act->shared_before;
    server_lock(&service->lock);
    const bool has_room = admin->waiting_count < WAITING_MAX;
    if (has_room) admin->waiting[admin->waiting_count++] = act;
    server_unlock(&service->lock);
    if (!has_room) server_act_free(act);
    server_shares_memory = shared_before;
}

/* Reads what the store has, and writes the acts that wait for this mastership. An act that cannot
 * be written waits again. */
static bool admin_read_store(struct service *service, struct store *store) {
    struct admin *admin = service->admin;
    struct act *act = NULL;
    admin->is_read = admin_read(service, store);
    while (admin->is_read && (act = waiting_take(service))) {
        act->code = 0;
        act->shared_before = true; /* this thread always shares memory */
        act_write(service, store, act);
        if (act->code == 0) {
            act_drop(act);
        } else {
            server_act_write_later(act);
        }
    }
    return admin->is_read;
}

static void admin_destroy(struct service *service) {
    const bool shared_before = server_shares_memory;
    struct act *act = NULL;
    server_shares_memory = true; /* as on the threads that have made the acts */
    while (service->admin && (act = waiting_take(service))) act_drop(act);
    server_shares_memory = shared_before;
    if (service->admin) server_resets_clear(&service->admin->audit.resets);
}

const struct server_part server_part_admin = {.name = "ADMIN",
                                              SERVER_PART_STATE(admin),
                                              .read_store = admin_read_store,
                                              .destroy = admin_destroy};
