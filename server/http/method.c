/* doorman_server, part HTTP: the messages of the protocol over HTTP. The path names the method. So
 * the body of a request or of a response is only the object inside {"METHOD": ...}. With the path
 * /v1 the bodies are whole messages. This file passes them to the server object through
 * server_handle_waiter, and logs what a RESET has changed. */
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

/* Removes the method's key from a response {"METHOD":RESPONSE}. An error keeps its own key. Without
 * a method the response stays unchanged. */
static void response_unwrap(struct text *text, const doorman_buffer *response, const char *method,
                            doorman_status status) {
    size_t around = method ? strlen(method) + 4 : 0;
    if (method && status == DOORMAN_OK && response->bytes > around) {
        server_text_add_bytes(text, response->text + around, response->bytes - around - 1);
    } else {
        server_text_add_bytes(text, response->text, response->bytes);
    }
    server_text_add(text, "\n");
}

/* Returns whether a body consists of white space. */
static bool body_is_empty(const struct http_request *request) {
    static const char white_space[] = {' ', '\t', '\r', '\n'};
    size_t at = 0;
    while (at < request->body_bytes && memchr(white_space, request->body[at], sizeof white_space)) {
        at++;
    }
    return at == request->body_bytes;
}

/* Reads "byte 17: " at the beginning of an error. Returns the text after it, or NULL if the error
 * does not begin so. */
static const char *error_skip_position(const char *error, size_t *at) {
    static const char before[] = "byte ", after[] = ": ";
    char *end = NULL;
    if (strncmp(error, before, strlen(before)) != 0) return NULL;
    *at = (size_t)strtoull(error + strlen(before), &end, 10);
    return strncmp(end, after, strlen(after)) == 0 ? end + strlen(after) : NULL;
}

/* Makes the response to a body with an error. The texts of the reader refer to the whole message,
 * which the server makes from the method and the body. This function changes them to refer to the
 * body.
 *   before   bytes of the message in front of the body */
static void response_set_body_error(struct http_response *response,
                                    const struct http_request *request, doorman_status status,
                                    const char *error, size_t before) {
    static const char one_key[] = "must be an object with one key, the method";
    char text[sizeof(doorman_error) + 64];
    size_t at = 0, bytes = request->body_bytes;
    const char *rest = error_skip_position(error, &at);
    at = at > before ? at - before : 0;
    if (at > bytes) at = bytes; /* the brace behind the body has ended it */
    cJSON *tree = rest && at < bytes ? cJSON_ParseWithLength(request->body, at) : NULL;
    snprintf(text, sizeof text, "%s", error);
    if (body_is_empty(request)) {
        snprintf(text, sizeof text, "the body is empty: send {}, or the content of the method");
    } else if (bytes >= 3 && memcmp(request->body, "\xef\xbb\xbf", 3) == 0) {
        snprintf(text, sizeof text, "byte 0: not JSON: remove the byte order mark");
    } else if (tree || strncmp(error, one_key, strlen(one_key)) == 0) {
        snprintf(text, sizeof text, "not JSON: text follows the content of the method");
    } else if (rest) {
        snprintf(text, sizeof text, "byte %zu: %s", at, rest);
    }
    cJSON_Delete(tree);
    server_http_response_set_error(response, status_code(status), doorman_status_name(status),
                                   text);
}

/* Redirects a request to the master, if the request asks for that, the master is another process,
 * and its HTTP address is known. The body stays the response that says so. The URL has no other
 * part of the query, because the path is known and a query is not.
 *   decided   the response of the server object */
static void response_redirect(struct http_response *response, const struct http_request *request,
                              const doorman_response *decided) {
    if (decided->is_master || !decided->http_address ||
        !server_query_is_set(request->query, "redirect"))
        return;
    response->code = 307;
    snprintf(response->location, sizeof response->location, "%s%s?redirect=1",
             decided->http_address, request->path);
}

#define AUDIT_MAX 20 /* entries of one message */

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

/* Logs one entry of a RESET. */
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

/* Logs what a RESET has changed. The message is read once more, because the exchange has dropped
 * it, but not its results.
 *   call   has been answered
 *   text   the whole message */
static void audit_reset(const struct service *service, const struct method_call *call,
                        const struct text *text) {
    const doorman_response *response = &call->exchange.response;
    doorman_json_exchange exchange = {.frame_bytes = strlen("{\"reset\":}")};
    struct audit_source source = {.settings = service->settings, .token = call->waiter.peer.token};
    char more[24];
    server_peer_write(&call->waiter.peer, source.peer);
    if (doorman_json_exchange_read(&exchange, text->buffer.text, text->buffer.bytes) ==
        DOORMAN_OK) {
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

/* Returns the method that a path names, or NULL for the path /v1. */
static const char *path_method(const char *path) {
    return strcmp(path, "/v1") == 0 ? NULL : path + strlen("/v1/");
}

void server_method_respond(struct method_call *call, const struct http_request *request,
                           struct http_response *response) {
    const char *method = path_method(request->path);
    doorman_json_exchange *exchange = &call->exchange;
    doorman_status status = call->waiter.status;
    response->code = status_code(status);
    if (status == DOORMAN_OK) response_redirect(response, request, &exchange->response);
    response->type = "application/json";
    response_unwrap(&response->text, &exchange->reply, method, status);
    response->text.failed = response->text.failed || exchange->reply.bytes == 0;
    doorman_json_exchange_uninit(exchange);
}

/* Makes the response to a message that has not waited.
 *   wrapped   the whole message */
static void method_respond_now(struct service *service, struct method_call *call,
                               const struct http_request *request, const struct text *wrapped,
                               struct http_response *response) {
    const char *method = path_method(request->path);
    const doorman_json_exchange *exchange = &call->exchange;
    const doorman_error error = exchange->error;
    doorman_status status = call->waiter.status;
    if (status == DOORMAN_OK && method && strcmp(method, "reset") == 0 &&
        exchange->response.is_master) {
        audit_reset(service, call, wrapped);
    }
    server_method_respond(call, request, response);
    if (method && status == DOORMAN_INVALID_ARGUMENT) {
        response_set_body_error(response, request, status, error.text, strlen(method) + 4);
    }
}

bool server_method_handle(struct service *service, struct method_call *call,
                          const struct http_request *request, struct http_response *response) {
    const char *method = path_method(request->path);
    struct text wrapped = {.failed = false};
    bool done = true;
    call->exchange.frame_bytes = method ? strlen(method) + strlen("{\"\":}") : 0;
    call->exchange.forbids_administration = !method; /* the role was checked for the path */
    call->waiter.exchange = &call->exchange;
    call->waiter.http_address = call->http_address;
    call->waiter.peer = (struct peer){.stream = request->stream, .token = request->token.name};
    if (method) server_text_addf(&wrapped, "{\"%s\":", method);
    server_text_add_bytes(&wrapped, request->body, request->body_bytes);
    if (method) server_text_add(&wrapped, "}");
    if (wrapped.failed) {
        response->text.failed = true;
    } else {
        done =
            server_handle_waiter(service, &call->waiter, wrapped.buffer.text, wrapped.buffer.bytes);
        if (done) method_respond_now(service, call, request, &wrapped, response);
    }
    doorman_buffer_uninit(&wrapped.buffer);
    return done;
}
