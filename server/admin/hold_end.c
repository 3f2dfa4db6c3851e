/* doorman_server, part ADMIN: POST /v1/holds/end ends a hold, and POST /v1/reservations/end a
 * reservation, with a row of the audit (E8). The body has the id, as /v1/holds shows it. If the
 * body has a resource or a key that does not match, nothing is ended, because the id may be wrong.
 * For a reservation the body also says whether its units come back (P27).
 *
 * If this server keeps no acts (server_keeps_acts), this file only ends the hold or the
 * reservation, and logs that. */
#include "admin.h"

/* What is ended. */
struct hold_target {
    uint64_t id;
    bool reserves; /* a reservation */
    bool refunds;  /* its units come back */
    bool failed;   /* memory has run out, so it was not ended */
};

/* What a request names, and what the hold or the reservation was before its end. */
struct hold_call {
    struct hold_target target;
    const char *resource_id, *key; /* NULL: not checked. The body owns them */
    char holder[HOLDER_BYTES];     /* what people may see of the client_id; "": a transfer */
    char found_resource[DOORMAN_ID_BYTES_MAX + 1], found_key[DOORMAN_ID_BYTES_MAX + 1];
    double amount;
    size_t item_count;
    doorman_time since, left;
    bool ended;
    uint64_t audit; /* the row; 0: none */
};

static bool hold_refuse(struct http_response *response, int code, const char *name,
                        const char *error) {
    server_http_response_set_error(response, code, name, error);
    return false;
}

/* Returns the text for a reservation, or the text for a hold. */
static const char *hold_word(const struct hold_call *call, const char *reservation,
                             const char *hold) {
    return call->target.reserves ? reservation : hold;
}

static bool hold_refuse_field(struct http_response *response, const char *error) {
    return hold_refuse(response, 400, "INVALID_ARGUMENT", error);
}

/* ---- the request ---------------------------------------------------------------------------- */

/* Reads a field of the body that may be missing. Returns false if it is no text or too long. */
static bool hold_read_text(const cJSON *body, const char *name, const char **out) {
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(body, name);
    *out = cJSON_GetStringValue(field);
    return !field || (*out && strlen(*out) <= DOORMAN_ID_BYTES_MAX);
}

/* Refuses a body that is no object, or has a field that is not known. Returns false if it did. */
static bool hold_check_fields(const struct hold_call *call, const cJSON *body,
                              struct http_response *response) {
    static const char *const names[] = {"id", "resource_id", "key", "unsettled"};
    const size_t count = call->target.reserves ? 4 : 3;
    const cJSON *field = NULL;
    char error[128];
    if (!cJSON_IsObject(body)) return hold_refuse_field(response, "the body must be an object");
    cJSON_ArrayForEach(field, body) {
        bool is_known = false;
        for (size_t i = 0; i < count; i++) {
            is_known = is_known || strcmp(field->string, names[i]) == 0;
        }
        if (is_known) continue;
        snprintf(error, sizeof error, "%.60s: is no field; the fields are %s", field->string,
                 hold_word(call, "id, unsettled, resource_id and key", "id, resource_id and key"));
        return hold_refuse_field(response, error);
    }
    return true;
}

/* For a reservation, reads whether its units come back. Returns false if `unsettled` is not
 * valid. */
static bool hold_read_unsettled(struct hold_call *call, const cJSON *body) {
    const char *word = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(body, "unsettled"));
    call->target.refunds = word && strcmp(word, "refund") == 0;
    return !call->target.reserves || call->target.refunds || (word && strcmp(word, "keep") == 0);
}

/* Reads the body. Returns false if it is wrong: then the response is an error. */
static bool hold_read(struct hold_call *call, const cJSON *body, struct http_response *response) {
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(body, "id");
    if (!hold_check_fields(call, body, response)) return false;
    const double number = cJSON_IsNumber(id) ? id->valuedouble : 0;
    const double most = 9007199254740991.0;
    bool is_valid = number >= 1 && number <= most && (double)(uint64_t)number >= number;
    if (!is_valid) {
        return hold_refuse_field(
            response, hold_word(call, "id: must be the id of a reservation, as /v1/holds shows it",
                                "id: must be the id of a hold, as /v1/holds shows it"));
    }
    call->target.id = (uint64_t)number;
    if (!hold_read_unsettled(call, body)) {
        return hold_refuse_field(response, "unsettled: must be \"keep\" or \"refund\"");
    }
    if (!hold_read_text(body, "resource_id", &call->resource_id)) {
        return hold_refuse_field(response, "resource_id: must be a text of at most 256 bytes");
    }
    return hold_read_text(body, "key", &call->key) ||
           hold_refuse_field(response, "key: must be a text of at most 256 bytes");
}

/* ---- the hold ------------------------------------------------------------------------------- */

/* Copies what people may see of a hold. Precondition: the lock is held. */
static void hold_take(struct hold_call *call, const doorman_permits_hold *hold, doorman_time now) {
    if (hold->client_id) server_holder_write(hold->client_id, call->holder);
    snprintf(call->found_resource, sizeof call->found_resource, "%s", hold->resource_id);
    snprintf(call->found_key, sizeof call->found_key, "%s", hold->key);
    call->amount = hold->amount;
    call->item_count = hold->item_count;
    call->since = now - hold->granted_at;
    call->left = hold->ends_at - now;
}

/* Finds a reservation, and describes it as a hold. Returns false if there is none. */
static bool hold_find_reservation(const doorman_permits *permits, uint64_t id,
                                  doorman_permits_hold *out) {
    doorman_permits_reservation found;
    if (!doorman_permits_find_reservation(permits, id, &found)) return false;
    *out = (doorman_permits_hold){.client_id = found.client_id,
                                  .resource_id = found.resource_id,
                                  .key = found.key,
                                  .amount = found.amount,
                                  .item_count = found.item_count,
                                  .granted_at = found.granted_at,
                                  .ends_at = found.ends_at};
    return true;
}

/* Copies the hold or the reservation that has the id. Returns false if there is none. Precondition:
 * the lock is held. */
static bool hold_look(struct hold_call *call, const doorman_permits *permits) {
    const uint64_t id = call->target.id;
    doorman_permits_hold hold;
    bool is_there = call->target.reserves ? hold_find_reservation(permits, id, &hold)
                                          : doorman_permits_find_hold(permits, id, &hold);
    if (is_there) hold_take(call, &hold, doorman_clock());
    return is_there;
}

/* Refuses an id that no hold or reservation has here. Names the node that owns the id, if any. */
static bool hold_refuse_unknown(const struct hold_call *call, struct service *service,
                                struct http_response *response) {
    const doorman_hold_request hold = {.id = call->target.id};
    const doorman_request release = {.method = DOORMAN_RELEASE, .holds = &hold, .hold_count = 1};
    char owner[OWNER_TEXT], error[OWNER_TEXT + 8];
    size_t index = SIZE_MAX;
    server_lock(&service->lock);
    if (service->forwards) index = service->forwards->find_owner(service, &release, owner);
    server_unlock(&service->lock);
    if (index != SIZE_MAX) {
        snprintf(error, sizeof error, "id: %s", owner);
        return hold_refuse(response, 409, "UNAVAILABLE", error);
    }
    return hold_refuse(response, 404, "NOT_FOUND",
                       hold_word(call, "id: there is no such reservation that is not settled",
                                 "id: there is no such hold"));
}

/* Finds the hold or the reservation that the request names. Returns false if the response is an
 * error: this process is not the master, it does not know the id, or the resource or the key does
 * not match. */
static bool hold_find(struct hold_call *call, struct service *service,
                      struct http_response *response) {
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    bool is_there = permits && hold_look(call, permits);
    server_unlock(&service->lock);
    if (!permits) {
        response->more = "Retry-After: 1\r\n";
        return hold_refuse(response, 503, "UNAVAILABLE",
                           "this process is not the master: ask the master");
    }
    if (!is_there) return hold_refuse_unknown(call, service, response);
    if (call->resource_id && strcmp(call->resource_id, call->found_resource) != 0) {
        return hold_refuse(response, 409, "INVALID_ARGUMENT",
                           hold_word(call,
                                     "resource_id: the reservation with this id has another "
                                     "resource",
                                     "resource_id: the hold with this id has another resource"));
    }
    if (call->key && strcmp(call->key, call->found_key) != 0) {
        return hold_refuse(response, 409, "INVALID_ARGUMENT",
                           hold_word(call, "key: the reservation with this id has another key",
                                     "key: the hold with this id has another key"));
    }
    return true;
}

/* Ends the hold or the reservation, and decides on the permits that wait for its units.
 * Precondition: the lock is held. */
static bool hold_end(struct service *service, struct hold_target *target) {
    assert(server_lock_is_held(&service->lock));
    doorman_permits *permits = doorman_server_permits(service->server);
    const doorman_time now = doorman_clock();
    bool ended = false;
    if (permits && target->reserves) {
        doorman_status status =
            doorman_permits_end_reservation(permits, target->id, target->refunds, now);
        ended = status == DOORMAN_OK;
        target->failed = status == DOORMAN_OUT_OF_MEMORY;
    } else if (permits) {
        ended = doorman_permits_end_hold(permits, target->id, now);
    }
    if (ended && service->waits) service->waits->collect(service);
    return ended;
}

/* Ends the target of the act. Sets the id of the target to 0 if it was not ended. */
static void hold_apply(struct act *act) {
    struct hold_target *target = (struct hold_target *)act->detail;
    if (!hold_end(act->service, target)) target->id = 0;
}

static void hold_describe(cJSON *row, const struct hold_call *call) {
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, call->target.id);
    /* cJSON rounds numbers of 16 digits */
    cJSON_AddRawToObject(row, hold_word(call, "reservation", "hold"), id);
    if (call->target.reserves) {
        cJSON_AddStringToObject(row, "unsettled", call->target.refunds ? "refund" : "keep");
    }
    cJSON_AddStringToObject(row, "resource", call->found_resource);
    cJSON_AddStringToObject(row, "key", call->found_key);
    cJSON *before = cJSON_AddObjectToObject(row, "before");
    if (call->holder[0]) cJSON_AddStringToObject(before, "holder", call->holder);
    cJSON_AddNumberToObject(before, "amount", call->amount);
    cJSON_AddNumberToObject(before, "items", (double)call->item_count);
    cJSON_AddNumberToObject(before, "since", (double)call->since / 1e9);
    cJSON_AddNumberToObject(before, "expires_in", call->left > 0 ? (double)call->left / 1e9 : 0);
}

/* Ends the hold or the reservation with a row of the audit. Returns false if the response is an
 * error. */
static bool hold_run(struct hold_call *call, struct service *service,
                     const struct http_request *request, struct http_response *response) {
    const enum act_kind kind = call->target.reserves ? ACT_RESERVATION_END : ACT_HOLD_END;
    struct act *act = server_act_new(service, request, kind, response);
    struct hold_target *target = (struct hold_target *)calloc(1, sizeof *target);
    if (!act || !target) {
        response->text.failed = true;
        free(target);
        server_act_free(act);
        return false;
    }
    *target = call->target;
    act->detail = target;
    act->free_detail = free;
    act->apply = hold_apply;
    hold_describe(act->row, call);
    if (!server_act_add_reason(act->row, request, response)) {
        server_act_free(act);
        return false;
    }
    if (!server_act_run(act, response)) return false;
    call->ended = target->id != 0;
    call->target.failed = target->failed;
    call->audit = act->id;
    server_act_free(act);
    return true;
}

/* Ends the hold or the reservation without an audit. */
static void hold_run_alone(struct hold_call *call, struct service *service,
                           const struct http_request *request) {
    char id[24];
    server_lock(&service->lock);
    call->ended = hold_end(service, &call->target);
    server_unlock(&service->lock);
    snprintf(id, sizeof id, "%" PRIu64, call->target.id);
    server_log(service->settings, LEVEL_INFO, "an act that is not in the audit", "what",
               hold_word(call, "reservation_end", "hold_end"), "token", request->token.name,
               hold_word(call, "reservation", "hold"), id, LOG_END);
}

/* ---- the path ------------------------------------------------------------------------------- */

static void hold_answer(const struct hold_call *call, struct http_response *response) {
    struct text *text = &response->text;
    response->type = "application/json";
    server_text_addf(text, "{\"id\":%" PRIu64 ",\"ended\":%s", call->target.id,
                     call->ended ? "true" : "false");
    server_text_add_json(text, ",\"resource_id\":", call->found_resource);
    server_text_add_json(text, ",\"key\":", call->found_key);
    server_text_add(text, ",\"amount\":");
    server_text_add_number(text, call->amount);
    if (call->audit) server_text_addf(text, ",\"audit\":%" PRIu64, call->audit);
    server_text_add(text, "}\n");
}

static void handle_end(struct service *service, const struct http_request *request,
                       struct http_response *response, bool reserves) {
    static const char *const names[] = {"reason", "redirect", NULL};
    struct hold_call call = {.target = {.reserves = reserves}};
    if (!server_http_check_query(request->query, names, response)) return;
    if (server_keeps_acts(service) && !server_admin_serves(service, request, response)) return;
    cJSON *body = cJSON_ParseWithLength(request->body, request->body_bytes);
    if (hold_read(&call, body, response) && hold_find(&call, service, response)) {
        bool is_done = true;
        if (server_keeps_acts(service)) is_done = hold_run(&call, service, request, response);
        if (!server_keeps_acts(service)) hold_run_alone(&call, service, request);
        if (service->waits) service->waits->finish(service);
        if (is_done && call.target.failed) {
            response->more = "Retry-After: 1\r\n";
            (void)hold_refuse(response, 503, "UNAVAILABLE",
                              "memory has run out, so the reservation was not ended: try again");
        } else if (is_done) {
            hold_answer(&call, response);
        }
    }
    cJSON_Delete(body);
}

static void handle_hold_end(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    handle_end(service, request, response, false);
}

static void handle_reservation_end(struct service *service, const struct http_request *request,
                                   struct http_response *response) {
    handle_end(service, request, response, true);
}

static const struct http_route hold_end_routes[] = {
    {"/v1/holds/end", .verbs = VERB_POST, .role = ROLE_ADMIN, .handle = handle_hold_end},
    {"/v1/reservations/end", .verbs = VERB_POST, .role = ROLE_ADMIN,
     .handle = handle_reservation_end},
    {.path = NULL}};

const struct server_part server_part_hold_end = {.routes = hold_end_routes};
