/* doorman_server, part ADMIN: POST /v1/holds/end ends a hold, with a row of the audit (E8). The
 * body has the id, as /v1/holds shows it. With a resource or a key in the body, the hold must have
 * them, so that a wrong id ends nothing.
 *
 * Without --state this file only ends the hold, and logs it, as a reset is done then. */
#include "admin.h"

/* What a request names, and what the hold was. */
struct hold_call {
    uint64_t id;
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

static bool hold_refuse_field(struct http_response *response, const char *error) {
    return hold_refuse(response, 400, "INVALID_ARGUMENT", error);
}

/* ---- the request ---------------------------------------------------------------------------- */

/* Reads a text that may be missing. Returns false if it is no text. */
static bool hold_read_text(const cJSON *body, const char *name, const char **out) {
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(body, name);
    *out = cJSON_GetStringValue(field);
    return !field || (*out && strlen(*out) <= DOORMAN_ID_BYTES_MAX);
}

/* Reads the body. Returns false if it is wrong: then the response is an error. */
static bool hold_read(struct hold_call *call, const cJSON *body, struct http_response *response) {
    static const char *const names[] = {"id", "resource_id", "key"};
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(body, "id"), *field = NULL;
    char error[128];
    if (!cJSON_IsObject(body)) return hold_refuse_field(response, "the body must be an object");
    cJSON_ArrayForEach(field, body) {
        bool is_known = false;
        for (size_t i = 0; i < 3; i++) is_known = is_known || strcmp(field->string, names[i]) == 0;
        if (is_known) continue;
        snprintf(error, sizeof error, "%.60s: is no field; the fields are id, resource_id and key",
                 field->string);
        return hold_refuse_field(response, error);
    }
    const double number = cJSON_IsNumber(id) ? id->valuedouble : 0;
    const double most = 9007199254740991.0;
    bool is_valid = number >= 1 && number <= most && (double)(uint64_t)number >= number;
    if (!is_valid) {
        return hold_refuse_field(response, "id: must be the id of a hold, as /v1/holds shows it");
    }
    call->id = (uint64_t)number;
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

/* Finds the hold. Returns false if it is not the one that is meant: then the response is an
 * error. */
static bool hold_find(struct hold_call *call, struct service *service,
                      struct http_response *response) {
    doorman_permits_hold hold;
    server_lock(&service->lock);
    const doorman_permits *permits = doorman_server_permits(service->server);
    bool is_there = permits && doorman_permits_find_hold(permits, call->id, &hold);
    if (is_there) hold_take(call, &hold, doorman_clock());
    server_unlock(&service->lock);
    if (!permits) {
        response->more = "Retry-After: 1\r\n";
        return hold_refuse(response, 503, "UNAVAILABLE",
                           "this process is not the master: ask the master");
    }
    if (!is_there) return hold_refuse(response, 404, "NOT_FOUND", "id: there is no such hold");
    if (call->resource_id && strcmp(call->resource_id, call->found_resource) != 0) {
        return hold_refuse(response, 409, "INVALID_ARGUMENT",
                           "resource_id: the hold with this id has another resource");
    }
    if (call->key && strcmp(call->key, call->found_key) != 0) {
        return hold_refuse(response, 409, "INVALID_ARGUMENT",
                           "key: the hold with this id has another key");
    }
    return true;
}

/* Ends the hold, and decides on the permits that wait for its units. Precondition: the lock is
 * held. */
static bool hold_end(struct service *service, uint64_t id) {
    doorman_permits *permits = doorman_server_permits(service->server);
    bool ended = permits && doorman_permits_end_hold(permits, id, doorman_clock());
    if (ended && service->waits) service->waits->collect(service);
    return ended;
}

/* The detail of an act is the id; out: 0 if there was no such hold any more. */
static void hold_apply(struct act *act) {
    uint64_t *id = (uint64_t *)act->detail;
    if (!hold_end(act->service, *id)) *id = 0;
}

static void hold_describe(cJSON *row, const struct hold_call *call) {
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, call->id);
    cJSON_AddRawToObject(row, "hold", id); /* cJSON rounds numbers of 16 digits */
    cJSON_AddStringToObject(row, "resource", call->found_resource);
    cJSON_AddStringToObject(row, "key", call->found_key);
    cJSON *before = cJSON_AddObjectToObject(row, "before");
    if (call->holder[0]) cJSON_AddStringToObject(before, "holder", call->holder);
    cJSON_AddNumberToObject(before, "amount", call->amount);
    cJSON_AddNumberToObject(before, "items", (double)call->item_count);
    cJSON_AddNumberToObject(before, "since", (double)call->since / 1e9);
    cJSON_AddNumberToObject(before, "expires_in", call->left > 0 ? (double)call->left / 1e9 : 0);
}

/* Ends the hold with a row of the audit. Returns false if the response is an error. */
static bool hold_run(struct hold_call *call, struct service *service,
                     const struct http_request *request, struct http_response *response) {
    struct act *act = server_act_new(service, request, ACT_HOLD_END, response);
    uint64_t *id = (uint64_t *)calloc(1, sizeof *id);
    if (!act || !id) {
        response->text.failed = true;
        free(id);
        server_act_free(act);
        return false;
    }
    *id = call->id;
    act->detail = id;
    act->free_detail = free;
    act->apply = hold_apply;
    hold_describe(act->row, call);
    if (!server_act_add_reason(act->row, request, response)) {
        server_act_free(act);
        return false;
    }
    if (!server_act_run(act, response)) return false;
    call->ended = *id != 0;
    call->audit = act->id;
    server_act_free(act);
    return true;
}

/* Ends the hold without an audit. */
static void hold_run_alone(struct hold_call *call, struct service *service,
                           const struct http_request *request) {
    char id[24];
    server_lock(&service->lock);
    call->ended = hold_end(service, call->id);
    server_unlock(&service->lock);
    snprintf(id, sizeof id, "%" PRIu64, call->id);
    server_log(service->settings, LEVEL_INFO, "an act that is not in the audit", "what", "hold_end",
               "token", request->token.name, "hold", id, LOG_END);
}

/* ---- the path ------------------------------------------------------------------------------- */

static void hold_answer(const struct hold_call *call, struct http_response *response) {
    struct text *text = &response->text;
    response->type = "application/json";
    server_text_addf(text, "{\"id\":%" PRIu64 ",\"ended\":%s,\"resource_id\":\"", call->id,
                     call->ended ? "true" : "false");
    server_text_add_escaped(text, call->found_resource, server_escape_json);
    server_text_add(text, "\",\"key\":\"");
    server_text_add_escaped(text, call->found_key, server_escape_json);
    server_text_add(text, "\",\"amount\":");
    server_text_add_number(text, call->amount);
    if (call->audit) server_text_addf(text, ",\"audit\":%" PRIu64, call->audit);
    server_text_add(text, "}\n");
}

static void handle_hold_end(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    static const char *const names[] = {"reason", "redirect", NULL};
    struct hold_call call = {.id = 0};
    if (!server_admin_check_query(request, names, response)) return;
    if (server_keeps_acts(service) && !server_admin_serves(service, request, response)) return;
    cJSON *body = cJSON_ParseWithLength(request->body, request->body_bytes);
    if (hold_read(&call, body, response) && hold_find(&call, service, response)) {
        bool is_done = true;
        if (server_keeps_acts(service)) is_done = hold_run(&call, service, request, response);
        if (!server_keeps_acts(service)) hold_run_alone(&call, service, request);
        if (service->waits) service->waits->finish(service);
        if (is_done) hold_answer(&call, response);
    }
    cJSON_Delete(body);
}

static const struct http_route hold_end_routes[] = {
    {"/v1/holds/end", .verbs = VERB_POST, .role = ROLE_ADMIN, .handle = handle_hold_end},
    {.path = NULL}};

const struct server_part server_part_hold_end = {.routes = hold_end_routes};
