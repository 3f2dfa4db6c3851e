/* doorman_server, part ADMIN: a drain (E11). The process gives up its mastership, but does not end,
 * so that its machine can be taken away. server/core/drain.h has the phases.
 *
 *     GET  /v1/drain     what the process does
 *     POST /v1/drain     begins a drain, and answers before it is over
 *     POST /v1/undrain   ends it
 *
 * Only a master writes the audit: it writes the row of a drain before the drain begins. A process
 * that is not master logs the act. If it keeps acts, it writes the row when it is master again. */
#include "admin.h"

/* A request for a drain or an undrain. */
struct drain_call {
    struct service *service;
    const struct http_request *request;
    struct http_response *response;
    enum act_kind kind;
    cJSON *row; /* has the reason, if there is one */
    bool is_forced;
};

static const char *const drain_steps[DRAIN_PHASE_COUNT] = {
    [DRAIN_NONE] = "",
    [DRAIN_WANTED] = "the drain begins",
    [DRAIN_WRITING] = "changes of counters are written",
    [DRAIN_PAUSED] = "the last changes of counters are written",
    [DRAIN_LEAVING] = "leases and holds are left in the store",
    [DRAIN_LEFT] = "the mastership is given back",
    [DRAIN_DONE] = "",
    [DRAIN_RETURNING] = "what was left in the store is taken",
};

/* ---- answers -------------------------------------------------------------------------------- */

static void drain_add_text(cJSON *json, const char *name, const char *text) {
    if (text[0]) cJSON_AddStringToObject(json, name, text);
}

/* Describes the state of this process as JSON. Precondition: the lock is held. */
static cJSON *drain_describe(const struct service *service) {
    assert(server_lock_is_held(&service->lock));
    const struct drain *drain = &service->drain;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "state", server_drain_state(drain));
    cJSON_AddBoolToObject(json, "is_master", doorman_server_permits(service->server) != NULL);
    const bool is_known = drain->phase < DRAIN_PHASE_COUNT;
    cJSON_AddStringToObject(json, "step", is_known ? drain_steps[drain->phase] : "");
    if (drain->phase != DRAIN_NONE) {
        server_act_add_time(json, "since", (time_t)drain->since);
        drain_add_text(json, "by", drain->by);
        drain_add_text(json, "reason", drain->reason);
    }
    drain_add_text(json, "failure", drain->failure);
    return json;
}

/* Answers with the state of the process.
 *   id       of the row of the audit; 0: none
 *   has_act  the answer says whether there is a row */
static void drain_answer(struct service *service, struct http_response *response, bool has_act,
                         uint64_t id) {
    server_lock(&service->lock);
    cJSON *json = drain_describe(service);
    server_unlock(&service->lock);
    if (has_act && id > 0) cJSON_AddNumberToObject(json, "audit", (double)id);
    if (has_act && id == 0) {
        cJSON_AddNullToObject(json, "audit");
        cJSON_AddStringToObject(json, "audit_note",
                                server_keeps_acts(service)
                                    ? "only a master writes the audit: this process does so when "
                                      "it is master again, and until then its log has this act"
                                    : "this server keeps no acts of administration; the log of "
                                      "this process has this act");
    }
    char *text = cJSON_PrintUnformatted(json);
    response->text.failed = !text;
    if (text) server_text_addf(&response->text, "%s\n", text);
    response->type = "application/json";
    cJSON_free(text);
    cJSON_Delete(json);
}

/* ---- acts ----------------------------------------------------------------------------------- */

/* Makes the act of a call. Returns NULL if memory runs out: then the response has failed. */
static struct act *drain_act(const struct drain_call *call) {
    struct act *act = server_act_new(call->service, call->request, call->kind, call->response);
    const cJSON *reason = cJSON_GetObjectItem(call->row, "reason");
    if (act && reason) {
        cJSON_AddStringToObject(act->row, "reason", cJSON_GetStringValue(reason));
    }
    if (act && call->is_forced) cJSON_AddTrueToObject(act->row, "force");
    return act;
}

/* Logs an act that is not in the audit. If this server keeps acts, the row is written later. */
static void drain_log_act(const struct drain_call *call) {
    struct act *act = server_keeps_acts(call->service) ? drain_act(call) : NULL;
    if (act) server_act_write_later(act);
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItem(call->row, "reason"));
    const char *token = call->request->token.name;
    server_log(call->service->settings, LEVEL_INFO, "an act that is not in the audit", "what",
               call->kind == ACT_DRAIN ? "drain" : "undrain", "token",
               token[0] ? token : "(no token)", reason ? "reason" : LOG_END, reason, LOG_END);
}

/* Begins a drain. Precondition: the lock is held. */
static void drain_begin(struct service *service, const char *by, const char *reason) {
    assert(server_lock_is_held(&service->lock));
    struct drain *drain = &service->drain;
    const doorman_mastership none = {.until = 0};
    if (drain->phase != DRAIN_NONE) return;
    drain->since = (int64_t)time(NULL);
    drain->failure[0] = 0;
    snprintf(drain->by, sizeof drain->by, "%s", by);
    snprintf(drain->reason, sizeof drain->reason, "%s", reason ? reason : "");
    if (service->settings->election_key) {
        server_drain_move(service, DRAIN_WANTED);
    } else if (service->state) {
        server_drain_move(service, DRAIN_WRITING);
    } else {
        (void)doorman_server_set_master(service->server, &none, doorman_clock());
        server_drain_move(service, DRAIN_DONE);
    }
}

static void drain_apply(struct act *act) {
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItem(act->row, "reason"));
    drain_begin(act->service, act->token.name, reason);
}

/* Makes the act of a call, and writes its row. Returns false if the response is an error.
 *   apply   see struct act
 *   id      out: of the row */
static bool drain_write(const struct drain_call *call, void (*apply)(struct act *), uint64_t *id) {
    struct act *act = drain_act(call);
    if (!act) return false;
    act->apply = apply;
    if (!server_act_run(act, call->response)) return false;
    *id = act->id;
    server_act_free(act);
    return true;
}

/* ---- drain ---------------------------------------------------------------------------------- */

static void drain_start(const struct drain_call *call) {
    struct service *service = call->service;
    uint64_t id = 0;
    server_lock(&service->lock);
    bool is_drained = service->drain.phase != DRAIN_NONE;
    service->drain.must_end = service->drain.must_end && !is_drained;
    bool is_audited = server_keeps_acts(service) && doorman_server_permits(service->server);
    server_unlock(&service->lock);
    if (!is_drained && !service->settings->election_key && !call->is_forced) {
        server_http_response_set_error(call->response, 409, "UNAVAILABLE",
                                       "this server has no --election-key, so no other process "
                                       "takes over and nobody would answer; to drain it all the "
                                       "same, add force=1, or use `doormanctl drain-alone`");
        return;
    }
    if (!is_drained && is_audited && !drain_write(call, drain_apply, &id)) return;
    if (!is_drained && !is_audited) {
        const cJSON *reason = cJSON_GetObjectItem(call->row, "reason");
        drain_log_act(call);
        server_lock(&service->lock);
        drain_begin(service, call->request->token.name, cJSON_GetStringValue(reason));
        server_unlock(&service->lock);
    }
    drain_answer(service, call->response, !is_drained, id);
}

/* ---- undrain -------------------------------------------------------------------------------- */

/* Ends a drain. A drain that is LEAVING or LEFT ends when it is DONE. Precondition: the lock is
 * held. */
static void drain_end(struct service *service) {
    assert(server_lock_is_held(&service->lock));
    struct drain *drain = &service->drain;
    const doorman_mastership master = {.address = service->advertise, .until = DOORMAN_NEVER};
    switch (drain->phase) {
    case DRAIN_WANTED:
    case DRAIN_WRITING:
    case DRAIN_PAUSED: server_drain_move(service, DRAIN_NONE); break;
    case DRAIN_LEAVING:
    case DRAIN_LEFT: drain->must_end = true; break;
    case DRAIN_DONE:
        if (!service->settings->election_key && service->state) {
            server_drain_move(service, DRAIN_RETURNING);
            break;
        }
        if (!service->settings->election_key) {
            (void)doorman_server_set_master(service->server, &master, doorman_clock());
            server_note_learning(service, LEARNING_OF_MASTER, doorman_clock());
        }
        server_drain_move(service, DRAIN_NONE);
        break;
    case DRAIN_NONE:
    case DRAIN_RETURNING:
    case DRAIN_PHASE_COUNT:
    default: break;
    }
}

/* Ends the drain. If the server keeps acts (server_keeps_acts), the act has a row. If the drain is
 * over and the process is master, the row is written before the answer. Else it is written later,
 * and the answer does not wait for it. */
static void undrain_start(const struct drain_call *call) {
    struct service *service = call->service;
    struct http_response refused = server_http_response_init(NULL);
    struct drain_call audited = *call;
    uint64_t id = 0;
    server_lock(&service->lock);
    const bool was_drained = service->drain.phase != DRAIN_NONE;
    drain_end(service);
    const bool is_back = service->drain.phase == DRAIN_NONE &&
                         doorman_server_permits(service->server) && server_keeps_acts(service);
    server_unlock(&service->lock);
    audited.response = &refused;
    if (was_drained && is_back && !drain_write(&audited, NULL, &id)) id = 0;
    doorman_buffer_uninit(&refused.text.buffer);
    if (was_drained && id == 0) drain_log_act(call);
    drain_answer(service, call->response, was_drained, id);
}

/* ---- paths ---------------------------------------------------------------------------------- */

/* Reads the query of a call, and begins or ends the drain. */
static void drain_run(struct drain_call *call) {
    static const char *const names[] = {"reason", "force", NULL};
    if (!server_http_check_query(call->request->query, names, call->response)) return;
    call->is_forced = server_query_is_set(call->request->query, "force");
    call->row = cJSON_CreateObject();
    call->response->text.failed = !call->row;
    if (!call->row) return;
    if (server_act_add_reason(call->row, call->request, call->response)) {
        (call->kind == ACT_DRAIN ? drain_start : undrain_start)(call);
    }
    cJSON_Delete(call->row);
}

static void handle_drain(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct drain_call call = {service, request, response, ACT_DRAIN, NULL, false};
    if (strcmp(request->verb, "POST") == 0) {
        drain_run(&call);
    } else {
        drain_answer(service, response, false, 0);
    }
}

static void handle_undrain(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    struct drain_call call = {service, request, response, ACT_UNDRAIN, NULL, false};
    drain_run(&call);
}

/* Keeps the process from replacing itself, because a restart would end the drain. */
static const char *drain_hinders(const struct service *service) {
    return service->drain.phase != DRAIN_NONE ? "this process is drained" : NULL;
}

static const struct http_route drain_routes[] = {
    {"/v1/drain", .verbs = VERB_GET | VERB_POST, .role = ROLE_ADMIN, .handle = handle_drain},
    {"/v1/undrain", .verbs = VERB_POST, .role = ROLE_ADMIN, .handle = handle_undrain},
    {.path = NULL}};

const struct server_part server_part_drain = {.hinders = drain_hinders, .routes = drain_routes};
