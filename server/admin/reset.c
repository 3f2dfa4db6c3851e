/* doorman_server, part ADMIN: POST /v1/reset with a row of the audit. The row is written before the
 * message is decided, and says that the outcome is not known. The row is written once more when the
 * message is decided. It says what each counter had used before, and for how long a banned key
 * would have stayed banned.
 *
 * If this server keeps no acts (server_keeps_acts), this file only passes the message on, as a
 * server without the part ADMIN does. */
#include "reset_count.h"

#include <math.h>

#define ENTRIES_MAX 1000   /* of one message, so that its row stays readable */
#define ENTRIES_OF_BULK 20 /* the row of an act with more entries is removed from the audit first */
#define NO_ROOM "there is no room for a further ban"
#define SUPPORT_RESETS 20 /* of a key a day, by the role support. Filling its bucket counts too */

/* Adds the state of a key before the act. Precondition: the lock is held.
 *   returns   false: the message is not valid, so it will be refused */
static bool entry_add_before(cJSON *out, struct service *service,
                             const doorman_permit_entry *entry) {
    assert(server_lock_is_held(&service->lock));
    const doorman_permit_entry asked = {
        .resource_id = entry->resource_id, .key = entry->key, .limit = entry->limit};
    const doorman_request inspect = {
        .method = DOORMAN_INSPECT, .entries = &asked, .entry_count = 1};
    doorman_response response = {.result_count = 0};
    doorman_status status =
        doorman_server_handle(service->server, &inspect, &response, NULL, doorman_clock());
    const doorman_permit *state = response.result_count ? &response.results[0].state : NULL;
    if (entry->sets_ban && entry->limit) return false;
    if (entry->sets_ban && (entry->ban < 0 || entry->ban > DOORMAN_DURATION_MAX)) return false;
    if (status != DOORMAN_OK || !state) return entry->sets_ban; /* a ban needs no limit */
    if (state->reason == DOORMAN_REASON_BANNED && !state->granted && !entry->limit) {
        cJSON_AddNumberToObject(out, "banned_before", (double)state->retry_after / 1e9);
    }
    if (entry->sets_ban) return true;
    cJSON *used = cJSON_AddObjectToObject(out, "used_before");
    for (size_t i = 0; i < state->detail_count; i++) {
        const doorman_permit_detail *detail = &state->details[i];
        if (detail->kind == DOORMAN_CONCURRENCY) continue;             /* its holds stay */
        if (!entry->limit && detail->per != DOORMAN_PER_KEY) continue; /* these stay too */
        cJSON_AddNumberToObject(used, detail->limit, ceil(detail->used * 1e6) / 1e6);
    }
    return true;
}

/* Adds whether other keys share the counter of a limit. Precondition: the lock is held. */
static void entry_add_shared(cJSON *out, const struct service *service,
                             const doorman_permit_entry *entry) {
    assert(server_lock_is_held(&service->lock));
    const char *glob = NULL;
    const doorman_permit_limit *limit =
        server_limit_find(service, entry->resource_id, entry->limit, &glob);
    if (limit && limit->per != DOORMAN_PER_KEY) {
        cJSON_AddStringToObject(out, "shared_by",
                                limit->per == DOORMAN_PER_RESOURCE ? "resource" : "template");
    }
}

/* Adds an entry, with its state before the act: see entry_add_before. */
static bool entry_add(cJSON *entries, struct service *service, const doorman_permit_entry *entry) {
    cJSON *out = cJSON_CreateObject();
    cJSON_AddStringToObject(out, "resource_id", entry->resource_id);
    cJSON_AddStringToObject(out, "key", entry->key ? entry->key : "");
    if (entry->limit) cJSON_AddStringToObject(out, "limit", entry->limit);
    if (entry->limit) entry_add_shared(out, service, entry);
    if (entry->sets_ban) cJSON_AddNumberToObject(out, "ban", (double)entry->ban / 1e9);
    cJSON_AddItemToArray(entries, out);
    return entry_add_before(out, service, entry);
}

static enum act_kind kind_of(const doorman_request *reset) {
    bool bans = reset->entries[0].sets_ban;
    for (size_t i = 0; i < reset->entry_count; i++) bans = bans && reset->entries[i].sets_ban;
    if (!bans) return ACT_RESET;
    return reset->entries[0].ban > 0 ? ACT_BAN : ACT_BAN_END;
}

bool server_reset_check_count(struct act *act, const cJSON *entry, int more) {
    const char *resource = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "resource_id"));
    const char *key = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "key"));
    if (!resource) resource = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "resource"));
    if (!resource) resource = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "glob"));
    const int count = server_act_count_resets(act, entry);
    if (count + more < SUPPORT_RESETS) return true;
    return server_act_refuse(act, 403, "PERMISSION_DENIED",
                             "the role support resets a key at most %d times a day, and '%s' "
                             "of %s was reset %d times; the role admin may do it again",
                             SUPPORT_RESETS, key, resource, count + more);
}

/* Refuses a reset of a key that the role support has reset too often. */
static bool reset_prepare(struct act *act, struct store *store) {
    struct resets_seen seen = {.count = 0}; /* of this message */
    const cJSON *entry = NULL;
    bool may = true;
    (void)store;
    if (act->token.role == ROLE_ADMIN) return true;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(act->row, "entries")) {
        if (!may || cJSON_GetObjectItem(entry, "ban")) continue;
        may = server_reset_check_count(act, entry, server_resets_count(&seen, entry, NULL, 0));
        if (may && !server_resets_add(&seen, entry, 1)) {
            may = server_act_refuse(act, 500, "INTERNAL", "out of memory");
        }
    }
    server_resets_clear(&seen);
    return may;
}

/* Adds to the row of an act what the message will change. Returns false if the message is not
 * valid. */
static bool reset_describe(struct act *act, const doorman_request *reset) {
    struct service *service = act->service;
    bool is_valid = true;
    if (reset->entry_count > ENTRIES_OF_BULK) cJSON_AddTrueToObject(act->row, "bulk");
    cJSON *entries = cJSON_AddArrayToObject(act->row, "entries");
    server_lock(&service->lock);
    for (size_t i = 0; is_valid && i < reset->entry_count; i++) {
        is_valid = entry_add(entries, service, &reset->entries[i]);
    }
    server_unlock(&service->lock);
    return is_valid;
}

/* Writes the row of a message. Returns false if the message must not be decided: then the response
 * is an error.
 *   out   the act, for reset_confirm; NULL: the message is not valid */
static bool reset_write(struct service *service, const struct http_request *request,
                        const doorman_request *reset, struct http_response *response,
                        struct act **out) {
    if (reset->entry_count > ENTRIES_MAX) {
        server_http_response_set_error(response, 413, "RESOURCE_EXHAUSTED",
                                       "entry: a server with --state takes at most 1000 of reset");
        return false;
    }
    struct act *act = server_act_new(service, request, kind_of(reset), response);
    if (!act) return false;
    bool has_reason = server_act_add_reason(act->row, request, response);
    bool is_valid = has_reason && reset_describe(act, reset);
    if (!is_valid) {
        server_act_free(act);
        return has_reason; /* the decision says what is wrong */
    }
    act->prepare = reset_prepare;
    act->announces = true;
    if (!server_act_run(act, response)) return false;
    *out = act;
    return true;
}

/* Writes into the row of the audit what became of the message, and frees the act.
 *   refusal    why nothing was changed; NULL: it was
 *   response   in/out: becomes an error if the change was made and the row cannot be written */
static void reset_confirm(struct act *act, const char *refusal, struct http_response *response) {
    struct http_response failure = server_http_response_init(NULL);
    if (server_act_confirm(act, refusal, refusal ? &failure : response)) server_act_free(act);
    doorman_buffer_uninit(&failure.text.buffer);
}

static bool reset_bans(const doorman_request *reset) {
    bool bans = false;
    for (size_t i = 0; i < reset->entry_count; i++) {
        bans = bans || (reset->entries[i].sets_ban && reset->entries[i].ban > 0);
    }
    return bans;
}

/* Says in the answer to a ban that the ban is only in memory. */
static void reset_add_note(struct http_response *response) {
    doorman_buffer *body = &response->text.buffer;
    while (body->bytes > 0 && strchr("}\n", body->text[body->bytes - 1])) {
        bool is_end = body->text[--body->bytes] == '}';
        body->text[body->bytes] = 0;
        if (is_end) break;
    }
    server_text_add(&response->text,
                    ",\"note\":\"bans last until this process ends, or another one becomes master, "
                    "because this server has no --state\"}\n");
}

/* Returns whether this node decides for all keys of a message. A message with a key of another node
 * is refused as a whole, because the audit of the other node must have the act. */
static bool reset_check_owner(struct service *service, const doorman_request *reset,
                              struct http_response *response) {
    char owner[OWNER_TEXT], error[OWNER_TEXT + 64];
    if (!service->forwards) return true;
    server_lock(&service->lock);
    const size_t index = service->forwards->find_owner(service, reset, owner);
    server_unlock(&service->lock);
    if (index == SIZE_MAX) return true;
    snprintf(error, sizeof error, "nothing was changed: entry[%zu]: %s", index, owner);
    server_http_response_set_error(response, 409, "UNAVAILABLE", error);
    return false;
}

/* Writes the row of a message, and returns whether the message may be decided. A message that is
 * not valid, or reaches a process that is not the master, has no row and changes nothing. It is
 * answered as by a server that keeps no acts.
 *   out    the act, for reset_confirm; NULL: there is none
 *   bans   out: the message is valid, and sets a ban */
static bool reset_keep(struct service *service, const struct http_request *request,
                       struct http_response *response, struct act **out, bool *bans) {
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    bool may = true;
    server_lock(&service->lock);
    bool is_master = doorman_server_permits(service->server) != NULL;
    server_unlock(&service->lock);
    if (!server_keeps_acts(service) || !is_master) return true;
    bool is_valid = doorman_json_exchange_read(&exchange, "reset", request->body,
                                               request->body_bytes) == DOORMAN_OK;
    is_valid = is_valid && exchange.request.entry_count > 0;
    *bans = is_valid && reset_bans(&exchange.request);
    if (is_valid) {
        may = server_reset_check_token(service, request, response) &&
              reset_check_owner(service, &exchange.request, response) &&
              reset_write(service, request, &exchange.request, response, out);
    }
    doorman_json_exchange_uninit(&exchange);
    return may;
}

/* ---- undo ----------------------------------------------------------------------------------- */

#define BAN_TOLERANCE (30 * DOORMAN_SECOND) /* the audit has whole seconds, and a store may hang */

/* A ban that an undo changes. */
struct ban_change {
    doorman_permit_entry entry; /* what it sets */
    doorman_time left_until;    /* the end that the present ban must have; 0: there must be none */
    doorman_time until;         /* of the ban before; 0: there was none */
};

struct ban_detail {
    cJSON *row; /* of the act that is taken back. It has the texts of the entries */
    struct ban_change *changes;
    size_t count;
};

static void ban_detail_free(void *context) {
    struct ban_detail *detail = (struct ban_detail *)context;
    cJSON_Delete(detail->row);
    free(detail->changes);
    free(detail);
}

/* Reads an entry of the row of an act.
 *   at   when the act was done */
static void ban_undo_read(struct ban_change *change, const cJSON *entry, doorman_time at) {
    const cJSON *ban = cJSON_GetObjectItem(entry, "ban");
    const cJSON *before = cJSON_GetObjectItem(entry, "banned_before");
    const double seconds = cJSON_IsNumber(ban) ? ban->valuedouble : 0;
    change->entry.resource_id = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "resource_id"));
    change->entry.key = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "key"));
    change->entry.sets_ban = true;
    if (seconds > 0) change->left_until = at + (doorman_time)(seconds * 1e9);
    if (cJSON_IsNumber(before)) change->until = at + (doorman_time)(before->valuedouble * 1e9);
}

/* Completes the row of the act, and checks that the bans are as the undone act has left them. Runs
 * on the thread of the store. */
static bool ban_undo_prepare(struct act *act, struct store *store) {
    struct ban_detail *detail = (struct ban_detail *)act->detail;
    const doorman_time now = (doorman_time)time(NULL) * DOORMAN_SECOND;
    cJSON *entries = cJSON_AddArrayToObject(act->row, "entries");
    for (size_t i = 0; i < detail->count; i++) {
        struct ban_change *change = &detail->changes[i];
        cJSON *out = cJSON_CreateObject();
        cJSON_AddStringToObject(out, "resource_id", change->entry.resource_id);
        cJSON_AddStringToObject(out, "key", change->entry.key);
        change->entry.ban = change->until > now ? change->until - now : 0;
        cJSON_AddNumberToObject(out, "ban", (double)change->entry.ban / 1e9);
        cJSON_AddItemToArray(entries, out);
        server_lock(&act->service->lock);
        entry_add_before(out, act->service, &change->entry);
        server_unlock(&act->service->lock);
        if (server_undo_has_newer(act, store, out)) return false;
        const cJSON *before = cJSON_GetObjectItem(out, "banned_before");
        const double left = (double)(change->left_until > now ? change->left_until - now : 0);
        const double rest = before ? before->valuedouble * 1e9 : 0;
        if (fabs(rest - left) > (double)BAN_TOLERANCE) return server_undo_refuse(act, store, out);
    }
    return true;
}

/* Sets the bans. Returns why not all of them are set, or NULL. Precondition: the lock is held. */
static const char *ban_undo_apply(const struct act *act) {
    assert(server_lock_is_held(&act->service->lock));
    const struct ban_detail *detail = (const struct ban_detail *)act->detail;
    for (size_t i = 0; i < detail->count; i++) {
        const doorman_request request = {
            .method = DOORMAN_RESET, .entries = &detail->changes[i].entry, .entry_count = 1};
        doorman_response response = {.result_count = 0};
        doorman_status status =
            doorman_server_handle(act->service->server, &request, &response, NULL, doorman_clock());
        if (status != DOORMAN_OK) return server_status_text(status);
        if (!response.is_master) return "this process is not the master any more";
    }
    return NULL;
}

/* Sets the bans of an act that is written, and answers. It frees the act. */
static void ban_undo_run(struct act *act, struct http_response *response) {
    const uint64_t id = act->id;
    server_lock(&act->service->lock);
    const char *refusal = ban_undo_apply(act);
    server_unlock(&act->service->lock);
    reset_confirm(act, refusal, response);
    if (refusal) {
        server_http_response_set_error(response, 503, "UNAVAILABLE", refusal);
    } else if (response->code == 200) {
        response->type = "application/json";
        server_text_addf(&response->text, "{\"id\": %" PRIu64 "}\n", id);
    }
}

/* Reads the bans of the undone act, and checks that the token may change them. */
static bool ban_undo_begin(struct act *act, const struct undo *undo,
                           const struct http_request *request, struct http_response *response) {
    struct ban_detail *detail = (struct ban_detail *)act->detail;
    char globs[TOKEN_GLOBS_BYTES], error[ACT_TEXT];
    const cJSON *entry = NULL;
    size_t count = 0;
    if (!server_undo_begin(act, undo, request, response)) return false;
    detail->row = cJSON_Duplicate(undo->row, true);
    const cJSON *entries = cJSON_GetObjectItem(detail->row, "entries");
    detail->changes = (struct ban_change *)calloc((size_t)cJSON_GetArraySize(entries) + 1,
                                                  sizeof *detail->changes);
    response->text.failed = !entries || !detail->changes;
    if (response->text.failed) return false;
    cJSON_ArrayForEach(entry, entries) {
        struct ban_change *change = &detail->changes[count++];
        ban_undo_read(change, entry, (doorman_time)undo->at * DOORMAN_SECOND);
        const char *resource = change->entry.resource_id;
        if (server_token_covers(act->service->tokens, &act->token, resource, false, globs))
            continue;
        snprintf(error, sizeof error, "resource_id: %s: '%s' may only change %s", resource,
                 act->token.name, globs[0] ? globs : "nothing any more");
        server_http_response_set_error(response, 403, "PERMISSION_DENIED", error);
        return false;
    }
    detail->count = count;
    return true;
}

void server_ban_undo(struct service *service, const struct http_request *request,
                     const struct undo *undo, struct http_response *response) {
    struct act *act = server_act_new(service, request, ACT_UNDO, response);
    if (!act) return;
    act->detail = calloc(1, sizeof(struct ban_detail));
    response->text.failed = !act->detail;
    if (act->detail) act->free_detail = ban_detail_free;
    act->prepare = ban_undo_prepare;
    act->announces = true;
    if (!act->detail || !ban_undo_begin(act, undo, request, response)) {
        server_act_free(act);
    } else if (server_act_run(act, response)) {
        ban_undo_run(act, response);
    }
}

/* Marks the bans of an act for which there was no room.
 *   response   to the message
 *   returns    false: the message asks for nothing but such bans */
static bool reset_mark_refused(const struct act *act, const struct http_response *response) {
    cJSON *tree = cJSON_ParseWithLength(response->text.buffer.text, response->text.buffer.bytes);
    const cJSON *result = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(tree, "entry"), 0);
    cJSON *entry = NULL;
    size_t done = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(act->row, "entries")) {
        const cJSON *ban = cJSON_GetObjectItemCaseSensitive(entry, "ban");
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(result, "count");
        const bool is_refused = ban && ban->valuedouble > 0 && count && count->valuedouble <= 0;
        if (is_refused) cJSON_AddStringToObject(entry, "refused", NO_ROOM);
        done += !is_refused;
        result = result ? result->next : NULL;
    }
    cJSON_Delete(tree);
    return done > 0;
}

/* Decides the message, and completes the row of its act.
 *   act   NULL: there is none */
static void reset_decide(struct service *service, const struct http_request *request,
                         struct act *act, struct http_response *response) {
    struct method_call *call = (struct method_call *)calloc(1, sizeof *call);
    char refusal[80];
    response->text.failed = !call;
    server_shares_memory = false; /* the message is not shared, but the act is */
    if (call && !server_method_handle(service, call, request, response)) assert(false);
    server_shares_memory = true;
    const bool has_reset = call && call->has_reset;
    free(call);
    if (!act) return;
    snprintf(refusal, sizeof refusal, "the message was refused with the status %d", response->code);
    if (has_reset) snprintf(refusal, sizeof refusal, NO_ROOM);
    const bool is_done = has_reset && reset_mark_refused(act, response);
    reset_confirm(act, is_done ? NULL : refusal, response);
}

static void handle_reset(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    const bool shared_before = server_shares_memory;
    struct act *act = NULL;
    bool bans = false;
    server_shares_memory = true; /* trees are made before the act, and deleted while it is there */
    if (reset_keep(service, request, response, &act, &bans)) {
        reset_decide(service, request, act, response);
        if (bans && !service->state && response->code == 200) reset_add_note(response);
    }
    server_shares_memory = shared_before;
}

static const struct http_route reset_routes[] = {
    {"/v1/reset", .verbs = VERB_POST, .role = ROLE_SUPPORT, .handle = handle_reset},
    {.path = NULL}};

const struct server_part server_part_reset = {.routes = reset_routes};
