/* doorman_server, part HTTP: JSON for programs. This file reads snapshots and the configuration,
 * and passes messages to the server object through server_handle_message.
 *
 * Programs can read the state and the configuration in force, and can call the methods of the
 * protocol. The path names the method. So a request or response is only the object inside
 * {"METHOD": ...}. */
#include "server.h"

static void json_text(struct text *text, const char *value) {
    server_text_add(text, "\"");
    server_text_add_escaped(text, value, server_escape_json);
    server_text_add(text, "\"");
}

/* Writes a number with 15 digits if they read back as the same number. Otherwise writes 17 digits,
 * which always read back as the same number. */
static void json_number(struct text *text, double value) {
    char formatted[40];
    snprintf(formatted, sizeof formatted, "%.15g", value);
    if (strtod(formatted, NULL) < value || strtod(formatted, NULL) > value) {
        snprintf(formatted, sizeof formatted, "%.17g", value);
    }
    server_text_add(text, formatted);
}

/* Writes a duration in seconds. `before` is the text in front of the number. */
static void json_seconds(struct text *text, const char *before, doorman_time time) {
    server_text_add(text, before);
    json_number(text, (double)time / (double)DOORMAN_SECOND);
}

void server_http_response_set_error(struct http_response *response, int code, const char *name,
                                    const char *message) {
    response->code = code;
    response->type = "application/json";
    response->text.buffer.bytes = 0;
    response->text.failed = false;
    server_text_addf(&response->text, "{\"error\":{\"code\":\"%s\",\"message\":", name);
    json_text(&response->text, message);
    server_text_add(&response->text, "}}\n");
}

static void json_resource(struct text *text, const struct row *row, doorman_time now) {
    const doorman_server_resource *info = &row->info;
    server_text_add(text, "{\"resource_id\":");
    json_text(text, row->id);
    server_text_add(text, ",\"capacity\":");
    json_number(text, info->capacity);
    server_text_add(text, ",\"has\":");
    json_number(text, info->has);
    server_text_add(text, ",\"wants\":");
    json_number(text, info->wants);
    server_text_addf(text, ",\"clients\":%zu,\"subclients\":", info->holder_count);
    json_number(text, info->subclients);
    server_text_add(text, ",\"safe_capacity\":");
    if (info->has_safe_capacity) {
        json_number(text, info->safe_capacity);
    } else {
        server_text_add(text, "null");
    }
    server_text_addf(text, ",\"learning\":%s,\"algorithm\":\"%s\"",
                     server_row_is_learning(row, now) ? "true" : "false",
                     server_kind_name(row->kind));
    if (info->leased) json_seconds(text, ",\"lease_expires_in\":", info->lease_end - now);
    server_text_add(text, "}");
}

void server_handle_status(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    char filter[DOORMAN_ID_BYTES_MAX + 1] = "";
    server_query_read(request->query, "filter", filter, sizeof filter);
    server_snapshot_take(&snapshot, service, filter, ROWS_MAX);
    response->type = "application/json";
    server_text_add(text, "{\"node\":");
    json_text(text, service->node);
    server_text_add(text, ",\"id\":");
    json_text(text, service->id);
    server_text_addf(text,
                     ",\"version\":\"%s\",\"is_master\":%s,\"master_address\":", DOORMAN_VERSION,
                     snapshot.is_master ? "true" : "false");
    if (snapshot.master[0]) {
        json_text(text, snapshot.master);
    } else {
        server_text_add(text, "null");
    }
    server_text_add(text, ",\"resources\":[");
    for (size_t i = 0; i < snapshot.row_count; i++) {
        if (i) server_text_add(text, ",\n");
        json_resource(text, &snapshot.rows[i], snapshot.now);
    }
    server_text_add(text, "]}\n");
    text->failed = text->failed || snapshot.failed;
    server_snapshot_uninit(&snapshot);
}

static void json_parameter(struct text *text, const char *name, double value) {
    server_text_addf(text, "{\"name\":\"%s\",\"value\":", name);
    json_number(text, value);
    server_text_add(text, "},");
}

static void json_algorithm(struct text *text, const doorman_algorithm *algorithm) {
    const double second = (double)DOORMAN_SECOND;
    server_text_addf(text, ",\"algorithm\":{\"kind\":\"%s\"", server_kind_name(algorithm->kind));
    json_seconds(text, ",\"lease_length\":", algorithm->lease_length);
    json_seconds(text, ",\"refresh_interval\":", algorithm->refresh_interval);
    if (algorithm->has_learning_mode_duration) {
        json_seconds(text, ",\"learning_mode_duration\":", algorithm->learning_mode_duration);
    }
    server_text_add(text, ",\"parameters\":[");
    if (algorithm->has_minimum_interval) {
        json_parameter(text, "minimum_interval", (double)algorithm->minimum_interval / second);
    }
    json_parameter(text, "minimum_refresh_interval",
                   (double)algorithm->minimum_refresh_interval / second);
    json_parameter(text, "decay_factor", algorithm->decay_factor);
    if (algorithm->reserve > 0) json_parameter(text, "reserve", algorithm->reserve);
    server_text_addf(text, "{\"name\":\"handover\",\"value\":\"%s\"}]}",
                     algorithm->handover == DOORMAN_IMMEDIATE ? "immediate" : "confirmed");
}

/* Writes one template in the format of a configuration file.
 *   rule   server_escape_json for a glob, server_escape_glob for a resource id */
static void json_template(struct text *text, const doorman_template *settings, const char *glob,
                          escape_rule rule) {
    server_text_add(text, "\n{\"identifier_glob\":\"");
    server_text_add_escaped(text, glob, rule);
    server_text_add(text, "\",\"description\":");
    json_text(text, settings->description ? settings->description : "");
    server_text_add(text, ",\"capacity\":");
    json_number(text, settings->capacity);
    if (settings->has_safe_capacity) {
        server_text_add(text, ",\"safe_capacity\":");
        json_number(text, settings->safe_capacity);
    }
    if (settings->whole) server_text_add(text, ",\"whole\":true");
    json_algorithm(text, &settings->algorithm);
    server_text_add(text, "}");
}

static bool json_add_template(void *context, const doorman_server_resource *info) {
    struct text *text = (struct text *)context;
    if (text->buffer.bytes > 0 && text->buffer.text[text->buffer.bytes - 1] == '}') {
        server_text_add(text, ",");
    }
    json_template(text, info->settings, info->resource_id, server_escape_glob);
    return true;
}

/* Writes the templates of the configuration. A node with a parent writes one template for each
 * resource instead. Precondition: the lock is held. */
static void json_templates(struct text *text, struct service *service) {
    size_t count = 0;
    const doorman_template *templates = NULL;
    if (service->config) templates = doorman_config_templates(service->config, &count);
    for (size_t i = 0; i < count; i++) {
        if (i) server_text_add(text, ",");
        json_template(text, &templates[i], templates[i].identifier_glob, server_escape_json);
    }
    if (!service->config) server_for_each_resource(service, json_add_template, text);
}

void server_handle_config(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    (void)request;
    response->type = "application/json";
    pthread_mutex_lock(&service->lock);
    bool rejects = server_rejects_unmatched(service);
    server_text_addf(text, "{%s\"resources\":[", rejects ? "\"unmatched\":\"reject\"," : "");
    json_templates(text, service);
    pthread_mutex_unlock(&service->lock);
    server_text_add(text, "]}\n");
}

void server_handle_health(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    (void)service;
    (void)request;
    server_text_add(&response->text, "ok\n");
}

/* Ready means that this process can answer requests, or redirect them to the master. */
void server_handle_ready(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct snapshot snapshot = {.now = 0};
    (void)request;
    pthread_mutex_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    pthread_mutex_unlock(&service->lock);
    bool ready = !snapshot.stopping && (snapshot.is_master || snapshot.master[0]);
    if (!ready) response->code = 503;
    server_text_add(&response->text, ready               ? "ready\n"
                                     : snapshot.stopping ? "stopping\n"
                                                         : "the master is not known\n");
}

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

/* If the path names a method, the bodies of the request and of the response are the inner objects.
 * With the path /v1 the bodies are whole messages, as in every other transport. */
void server_handle_method(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    const char *method = strcmp(request->path, "/v1") == 0 ? NULL : request->path + strlen("/v1/");
    struct text wrapped = {.failed = false};
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    if (method) server_text_addf(&wrapped, "{\"%s\":", method);
    server_text_add_bytes(&wrapped, request->body, request->body_bytes);
    if (method) server_text_add(&wrapped, "}");
    if (wrapped.failed) {
        response->text.failed = true;
    } else {
        doorman_status status =
            server_handle_message(service, &exchange, wrapped.buffer.text, wrapped.buffer.bytes);
        response->code = status_code(status);
        response->type = "application/json";
        response_unwrap(&response->text, &exchange.reply, method, status);
        response->text.failed = response->text.failed || exchange.reply.bytes == 0;
    }
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(&wrapped.buffer);
}
