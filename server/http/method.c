/* doorman_server, part HTTP: the messages of the protocol over HTTP. The path names the method. So
 * the body of a request or of a response is only the object inside {"METHOD": ...}. With the path
 * /v1 the bodies are whole messages. This file passes the messages to server_handle_message of the
 * core, and logs what a RESET has changed. */
#include "http.h"

static int status_code(doorman_status status) {
    switch (status) {
    case DOORMAN_OK: return 200;
    case DOORMAN_INVALID_ARGUMENT: return 400;
    case DOORMAN_NOT_FOUND: return 404;
    case DOORMAN_RESOURCE_EXHAUSTED: return 413;
    case DOORMAN_UNAVAILABLE: return 503;
    case DOORMAN_STALE:
    case DOORMAN_TIMED_OUT:
    case DOORMAN_OUT_OF_MEMORY:
    case DOORMAN_DEADLOCK:
    case DOORMAN_STATUS_COUNT:
    default: return 500;
    }
}

/* Redirects a request to the master, if the request asks for that, the master is another process,
 * and its HTTP address is known. The body stays the response of the server object. The rest of the
 * query is not in the URL, because nothing has checked it.
 *   decided   the response of the server object */
static void response_redirect(struct http_response *response, const struct http_request *request,
                              const doorman_response *decided) {
    if (decided->is_master || !decided->http_address ||
        !server_query_is_set(request->query, "redirect"))
        return;
    response->code = 307;
    server_text_add_all(&response->lines, TEXTS("Location: ", decided->http_address, request->path,
                                                "?redirect=1\r\n"));
}

#define AUDIT_MAX 20 /* entries of one message that are logged */

/* The sender of a message, for the log. */
struct audit_source {
    const struct settings *settings;
    const char *token;
    char peer[PEER_BYTES];
};

/* Logs what a RESET has done to one limit of a key. */
static void audit_limit(const struct audit_source *source, const doorman_permit_entry *entry,
                        const doorman_permit_detail *detail) {
    const char *text = "nothing was reset, because the limit has counted nothing for the key";
    bool holds = detail->kind == DOORMAN_CONCURRENCY;
    char before[32];
    snprintf(before, sizeof before, "%.9g", detail->used);
    if (holds) text = "nothing was reset, because holds stay until they are released or end";
    if (detail->was_reset) text = "a counter was reset";
    server_log(source->settings, LEVEL_INFO, text, "token", source->token, "peer", source->peer,
               "resource", entry->resource_id, "key", entry->key ? entry->key : "", "limit",
               detail->limit, holds ? "held" : "used_before", before, LOG_END);
}

/* Logs what a RESET has done to a ban. */
static void audit_ban(const struct audit_source *source, const doorman_permit_entry *entry,
                      bool done) {
    const char *text = done ? "a ban was ended" : "no ban was ended, because there is none";
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.9g", (double)entry->ban / (double)DOORMAN_SECOND);
    bool bans = entry->sets_ban && entry->ban > 0;
    if (bans) text = done ? "a key was banned" : "a key was not banned, because there is no room";
    server_log(source->settings, bans && !done ? LEVEL_WARNING : LEVEL_INFO, text, "token",
               source->token, "peer", source->peer, "resource", entry->resource_id, "key",
               entry->key ? entry->key : "", bans ? "seconds" : LOG_END, seconds, LOG_END);
}

static void audit_entry(const struct audit_source *source, const doorman_permit_entry *entry,
                        const doorman_permit_result *result) {
    const doorman_permit *before = &result->state;
    bool ends_ban = !entry->limit && before->reason == DOORMAN_REASON_BANNED;
    if (entry->sets_ban) {
        audit_ban(source, entry, result->count > 0);
        return;
    }
    for (size_t i = 0; i < before->detail_count; i++) {
        audit_limit(source, entry, &before->details[i]);
    }
    if (ends_ban) audit_ban(source, entry, true);
    if (ends_ban || before->detail_count > 0) return;
    server_log(source->settings, LEVEL_INFO, "nothing was reset, because no limit concerns the key",
               "token", source->token, "peer", source->peer, "resource", entry->resource_id, "key",
               entry->key ? entry->key : "", entry->limit ? "limit" : LOG_END, entry->limit,
               LOG_END);
}

/* Logs what a RESET has changed. The exchange still has the results, but not the message, so the
 * message is read once more.
 *   call   has been answered */
static void audit_reset(const struct service *service, const struct method_call *call,
                        const struct http_request *request) {
    const doorman_response *response = &call->exchange.response;
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    struct audit_source source = {.settings = service->settings, .token = call->waiter.peer.token};
    char more[24];
    server_peer_write(&call->waiter.peer, source.peer);
    if (doorman_json_exchange_read(&exchange, call->waiter.method, request->body,
                                   request->body_bytes) == DOORMAN_OK) {
        size_t count = exchange.request.entry_count;
        for (size_t i = 0; i < count && i < AUDIT_MAX && i < response->result_count; i++) {
            audit_entry(&source, &exchange.request.entries[i], &response->results[i]);
        }
        snprintf(more, sizeof more, "%zu", count > AUDIT_MAX ? count - AUDIT_MAX : 0);
        if (count > AUDIT_MAX) {
            server_log(service->settings, LEVEL_INFO, "the message had more entries", "token",
                       source.token, "peer", source.peer, "entries", more, LOG_END);
        }
    }
    doorman_json_exchange_uninit(&exchange);
}

/* Why a token of the role support must not reset an entry. */
struct forbidden {
    const char *field, *name;
    const char *template_of; /* whose resources share the counter; NULL: they do not */
    char globs[TOKEN_GLOBS_BYTES];
};

const doorman_permit_limit *server_limit_find(const struct service *service, const char *resource,
                                              const char *name, const char **glob) {
    const doorman_template *found =
        service->config ? doorman_config_find(service->config, resource) : NULL;
    for (size_t i = 0; found && i < found->limit_count; i++) {
        if (strcmp(found->limits[i].name, name) != 0) continue;
        *glob = found->identifier_glob;
        return &found->limits[i];
    }
    return NULL;
}

/* Returns whether a token may reset a limit. If all resources of a template share the counter, the
 * token must cover all of them. Precondition: the lock of the service is held. */
static bool reset_covers_limit(const struct service *service, const struct token_identity *token,
                               const doorman_permit_entry *entry, struct forbidden *out) {
    const char *glob = NULL;
    assert(server_lock_is_held(&service->lock));
    const doorman_permit_limit *limit =
        server_limit_find(service, entry->resource_id, entry->limit, &glob);
    if (!limit || limit->per != DOORMAN_PER_TEMPLATE) return true;
    if (server_token_covers(service->tokens, token, glob, true, out->globs)) return true;
    out->field = "limit";
    out->name = entry->limit;
    out->template_of = glob;
    return false;
}

/* Writes the error of an entry that a token must not reset. Precondition: the lock is held, if
 * `why` has a template. */
static void reset_forbid(struct http_response *response, const struct token_identity *token,
                         size_t index, const struct forbidden *why) {
    char error[2 * DOORMAN_ID_BYTES_MAX + TOKEN_GLOBS_BYTES + 256],
        shared[64 + DOORMAN_ID_BYTES_MAX];
    snprintf(shared, sizeof shared, " is shared by all resources of %s, and",
             why->template_of ? why->template_of : "");
    snprintf(error, sizeof error, "entry[%zu].%s: %s%s '%s' may only change %s", index, why->field,
             why->name, why->template_of ? shared : ":", token->name,
             why->globs[0] ? why->globs : "nothing any more");
    server_http_response_set_error(response, 403, "PERMISSION_DENIED", error);
}

bool server_reset_check_token(struct service *service, const struct http_request *request,
                              struct http_response *response) {
    const struct token_identity *token = &request->token;
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    bool covers = true;
    if (token->role == ROLE_ADMIN ||
        doorman_json_exchange_read(&exchange, "reset", request->body, request->body_bytes) !=
            DOORMAN_OK) {
        doorman_json_exchange_uninit(&exchange);
        return true;
    }
    const doorman_request *reset = &exchange.request;
    server_lock(&service->lock);
    for (size_t i = 0; i < reset->entry_count && covers; i++) {
        const doorman_permit_entry *entry = &reset->entries[i];
        struct forbidden why = {.field = "resource_id", .name = entry->resource_id};
        covers = !entry->resource_id ||
                 server_token_covers(service->tokens, token, entry->resource_id, false, why.globs);
        covers = covers && (!entry->limit || !entry->resource_id ||
                            reset_covers_limit(service, token, entry, &why));
        if (!covers) reset_forbid(response, token, i, &why);
    }
    server_unlock(&service->lock);
    doorman_json_exchange_uninit(&exchange);
    return covers;
}

/* P31: refuses a message whose permits bring figures in the field `set`. The caller has seen that
 * the token does not allow figures. A message that hides the field behind an escape is refused when
 * it is read.
 *   method   NULL: the body names it */
static bool figures_check_token(struct service *service, const struct http_request *request,
                                const char *method, struct http_response *response) {
    static const char word[] = "\"set\"";
    doorman_json_exchange exchange = {.forbids_figures = true};
    char error[sizeof exchange.error.text + TOKEN_NAME_MAX + 128];
    if (!request->body_bytes || !memmem(request->body, request->body_bytes, word, strlen(word))) {
        return true;
    }
    doorman_status status =
        doorman_json_exchange_read(&exchange, method, request->body, request->body_bytes);
    bool brings = status == DOORMAN_NOT_FOUND && exchange.request.method == DOORMAN_ACQUIRE;
    const int path = (int)exchange.error.path_bytes;
    if (brings && service->tokens) {
        snprintf(error, sizeof error,
                 "%.*s: needs a token with the role figures; '%s' has the role %s", path,
                 exchange.error.text, request->token.name, server_role_name(request->token.role));
        server_counter_add(&service->counters.authentication_failures[FAILED_ROLE], 1);
        server_log_peer(service, WARNING_ROLE, request->peer, request->token.name);
    } else if (brings) {
        snprintf(error, sizeof error, "%.*s: needs a server with --http-token", path,
                 exchange.error.text);
    }
    if (brings) server_http_response_set_error(response, 403, "PERMISSION_DENIED", error);
    doorman_json_exchange_uninit(&exchange);
    return !brings;
}

void server_method_respond(struct method_call *call, const struct http_request *request,
                           struct http_response *response) {
    doorman_json_exchange *exchange = &call->exchange;
    const doorman_buffer *reply = &exchange->reply;
    doorman_status status = call->waiter.status;
    response->code = status_code(status);
    if (status == DOORMAN_OK) response_redirect(response, request, &exchange->response);
    response->type = "application/json";
    server_text_add_bytes(&response->text, reply->text, reply->bytes);
    server_text_add(&response->text, "\n");
    response->text.failed = response->text.failed || reply->bytes == 0;
    doorman_json_exchange_uninit(exchange);
}

bool server_method_handle(struct service *service, struct method_call *call,
                          const struct http_request *request, struct http_response *response) {
    const char *method = strcmp(request->path, "/v1") == 0 ? NULL : request->path + strlen("/v1/");
    doorman_json_exchange *exchange = &call->exchange;
    struct waiter *waiter = &call->waiter;
    exchange->forbids_administration = !method; /* the role was checked for the path */
    exchange->forbids_figures =
        !service->tokens || !server_role_includes(request->token.role, ROLE_FIGURES);
    waiter->exchange = exchange;
    waiter->method = method;
    waiter->http_address = call->http_address;
    waiter->may_forward = !server_query_is_set(request->query, "redirect");
    waiter->peer = (struct peer){.text = request->peer, .token = request->token.name};
    bool is_reset = method && strcmp(method, "reset") == 0;
    if (exchange->forbids_figures && !figures_check_token(service, request, method, response)) {
        return true;
    }
    if (is_reset && service->tokens && !server_reset_check_token(service, request, response)) {
        return true;
    }
    if (!server_handle_message(service, waiter, request->body, request->body_bytes)) return false;
    call->has_reset = is_reset && waiter->status == DOORMAN_OK && exchange->response.is_master;
    if (call->has_reset) audit_reset(service, call, request);
    server_method_respond(call, request, response);
    return true;
}
