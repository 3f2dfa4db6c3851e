/* doorman_server, part HTTP: /v1/allow. Each request asks for a permit of one item. Gateways and
 * scripts need no JSON for it: the status of the response is the decision. This file changes the
 * permits of the server object, and counts the decisions as messages `acquire`.
 *
 *     parameter   meaning                                                   default
 *     resource    the resource, 1 to 256 bytes                              required
 *     key         on whose behalf, up to 256 bytes                          empty
 *     cost        units, at least 0; 0 only looks                           1
 *     max_wait    how long the response may wait for the units, in seconds  0
 *     refuse      the status of a refusal: 429, or 403 for gateways that    429
 *                 know no other
 *     redirect    1: the response leads to the master if another process    0
 *                 is the master
 *
 *     status      meaning
 *     200         granted. If the permit has to wait, the response comes when the wait is over
 *     429, 403    refused
 *     404         UNMATCHED: no template with limits matches the resource. The operator has made a
 *                 mistake, so this is no refusal. nginx treats this status as an error of Doorman
 *     503         this process is not the master, stops or hands over, or no node can decide now
 *     307         another process is the master, redirect is 1, and its HTTP address is known
 *     400         a parameter is wrong. The error names it
 *
 * A gateway often builds the query from what its own client sent. So a parameter that occurs twice
 * is an error: otherwise that client could add a second `key` or `cost`. An unknown parameter is an
 * error too: with `kye` instead of `key`, all users would share one counter.
 *
 * server/http/limit_fields.c says what the fields RateLimit-Policy and RateLimit contain.
 * X-RateLimit-Limit, -Remaining and -Reset describe only the first limit of these lists.
 * X-RateLimit-Reset is the time until all units are back, or the time of Retry-After if this limit
 * refuses. A limit of 0 never has units, so it has no X-RateLimit-Reset.
 *
 * A resource with a limit of kind CONCURRENCY is an error, because nobody would release the hold.
 * It is an error with a cost of 0 too. */
#include "http.h"

/* One request, and its decision. */
struct allow {
    char resource[DOORMAN_ID_BYTES_MAX + 2]; /* room for an id that is too long */
    char key[DOORMAN_ID_BYTES_MAX + 2];
    int refused_code;
    bool redirects;
    doorman_permit_item item;
    doorman_permit_request permit;
    doorman_json_exchange exchange; /* only its request and its error, for the report */
    doorman_error error;            /* of a parameter */

    /* These are copies: the response of the server object is valid only under the lock. */
    bool is_master, granted, warning;
    bool is_away;                               /* another node decides for the key */
    char master_http[DOORMAN_ID_BYTES_MAX + 1]; /* "": not known */
    double units;
    doorman_time wait;
    doorman_reason reason;
    struct limit_fields *limits; /* only set with the decision, because it has some KiB */
    char *refused_body;          /* of the template; NULL: none */
};

/* ---- parameters ----------------------------------------------------------------------------- */

static const char *const allow_parameters[] = {"resource", "key",      "cost", "max_wait",
                                               "refuse",   "redirect", NULL};

/* Sets the error of a parameter. Returns false. */
static bool allow_fail(struct allow *allow, const char *name, const char *rule) {
    snprintf(allow->error.text, sizeof allow->error.text, "%s: %s", name, rule);
    allow->error.path_bytes = strlen(name);
    return false;
}

/* Reads a parameter that may be missing.
 *   out       in: the default; out: the value
 *   returns   false: the parameter is wrong */
static bool allow_read_text(struct allow *allow, const char *query, const char *name, char *out,
                            size_t room) {
    int count = server_query_count(query, name);
    if (count == 0) return true;
    if (count > 1) return allow_fail(allow, name, "occurs twice");
    return server_query_read(query, name, out, room) ||
           allow_fail(allow, name, "must not contain a 0 byte");
}

/* Reads a number. JSON has no hexadecimal numbers and no infinity, so they are wrong here too. */
static bool allow_read_number(struct allow *allow, const char *query, const char *name, double most,
                              double *out) {
    char text[40] = "", rule[64], *end = NULL;
    if (!allow_read_text(allow, query, name, text, sizeof text)) return false;
    if (server_query_count(query, name) == 0) return true;
    bool plain = text[0] && strspn(text, "0123456789.eE-") == strlen(text);
    double value = plain ? strtod(text, &end) : -1;
    if (plain && !*end && value >= 0 && value <= most) {
        *out = value;
        return true;
    }
    snprintf(rule, sizeof rule, "must be a number from 0 to %g", most);
    return allow_fail(allow, name, rule);
}

/* Returns whether all parameters are known and have a value. The error names the first that is not
 * known or has none. */
static bool allow_check_names(struct allow *allow, const char *query) {
    const char *unknown = server_query_find_unknown(query, allow_parameters);
    char name[41];
    if (!unknown) return true;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(unknown, "=&"), unknown);
    return allow_fail(allow, name,
                      "is no parameter; the parameters are resource, key, cost, max_wait, refuse "
                      "and redirect, each with a value");
}

/* Reads the parameters of a request. Returns false if one is wrong. */
static bool allow_read(struct allow *allow, const char *query) {
    char refuse[8] = "429", redirect[8] = "0";
    double wait = 0, cost = 1;
    bool valid =
        allow_check_names(allow, query) &&
        allow_read_text(allow, query, "resource", allow->resource, sizeof allow->resource) &&
        allow_read_text(allow, query, "key", allow->key, sizeof allow->key) &&
        allow_read_number(allow, query, "cost", 1e15, &cost) &&
        allow_read_number(allow, query, "max_wait", HTTP_DELAY_SECONDS_MAX, &wait) &&
        allow_read_text(allow, query, "refuse", refuse, sizeof refuse) &&
        allow_read_text(allow, query, "redirect", redirect, sizeof redirect);
    if (!valid) return false;
    if (server_query_count(query, "resource") == 0)
        return allow_fail(allow, "resource", "is required");
    bool forbidden = strcmp(refuse, "403") == 0;
    if (!forbidden && strcmp(refuse, "429") != 0) {
        return allow_fail(allow, "refuse", "must be 403 or 429");
    }
    allow->refused_code = forbidden ? 403 : 429;
    allow->redirects = strcmp(redirect, "1") == 0;
    if (!allow->redirects && strcmp(redirect, "0") != 0) {
        return allow_fail(allow, "redirect", "must be 0 or 1");
    }
    allow->item =
        (doorman_permit_item){.resource_id = allow->resource, .key = allow->key, .cost = cost};
    allow->permit =
        (doorman_permit_request){.items = &allow->item,
                                 .item_count = 1,
                                 .max_wait = (doorman_time)(wait * (double)DOORMAN_SECOND),
                                 .detail = true};
    return true;
}

/* ---- the decision --------------------------------------------------------------------------- */

static void allow_keep_permit(struct allow *allow, const doorman_permit *permit) {
    allow->granted = permit->granted;
    allow->warning = permit->warning;
    allow->wait = permit->granted ? permit->wait : 0;
    allow->units = permit->granted ? permit->items[0].granted : 0;
    allow->reason = permit->reason;
    server_limit_fields_take(allow->limits, permit, 0);
}

/* Copies the body that the template has for refusals, if the permit is refused. If memory runs out,
 * the body is the usual one. Precondition: the lock is held. */
static void allow_keep_refused_body(struct allow *allow, const struct service *service) {
    const doorman_template *found =
        allow->granted ? NULL : doorman_config_find(service->config, allow->resource);
    if (found && found->refused_body[0]) allow->refused_body = strdup(found->refused_body);
}

/* Copies the response of the server object. Precondition: the lock is held. */
static void allow_keep(struct allow *allow, const struct service *service,
                       const doorman_response *response) {
    assert(server_lock_is_held(&service->lock));
    allow->is_master = response->is_master;
    allow->is_away = response->is_master && response->permits[0].reason == DOORMAN_REASON_MOVED;
    if (!allow->is_master) {
        const struct forward_calls *forwards = service->forwards;
        allow->is_away = forwards && forwards->is_away(service, &allow->exchange.request);
        snprintf(allow->master_http, sizeof allow->master_http, "%s", service->master_http);
        return;
    }
    allow_keep_permit(allow, &response->permits[0]);
    allow_keep_refused_body(allow, service);
}

/* Returns whether the item has a limit of kind CONCURRENCY. With a cost of 0, such a permit is
 * valid for the server object, but this file refuses it: a gateway that sends 0 by mistake would
 * let everything pass. */
static bool response_has_holds(const doorman_response *response) {
    const doorman_permit *permit = response->is_master ? &response->permits[0] : NULL;
    for (size_t i = 0; permit && i < permit->detail_count; i++) {
        if (permit->details[i].kind == DOORMAN_CONCURRENCY) return true;
    }
    return false;
}

/* Turns the error of a field of the message into the error of its parameter. There is no parameter
 * request_id: an error of this field means that the resource has a limit of kind CONCURRENCY. */
static void allow_fail_of_field(struct allow *allow, const doorman_error *error) {
    static const char *const parameters[][2] = {{"permit[0].item[0].resource_id", "resource"},
                                                {"permit[0].item[0].key", "key"},
                                                {"permit[0].request_id", "request_id"}};
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        const char *path = parameters[i][0];
        if (error->path_bytes != strlen(path) || memcmp(error->text, path, error->path_bytes) != 0)
            continue;
        allow_fail(allow, parameters[i][1], error->text + error->path_bytes + strlen(": "));
        return;
    }
    allow->error = *error;
}

/* Lets the server object decide.
 *   returns   OK | UNAVAILABLE (the server stops or hands over) | INVALID_ARGUMENT (a limit of kind
 *             CONCURRENCY) | an error of doorman_server_handle */
static doorman_status allow_decide(struct allow *allow, struct service *service) {
    doorman_request *request = &allow->exchange.request;
    doorman_response response;
    doorman_error error = {0};
    doorman_status status = DOORMAN_UNAVAILABLE;
    *request = (doorman_request){.method = DOORMAN_ACQUIRE,
                                 .holder_id = "allow",
                                 .permits = &allow->permit,
                                 .permit_count = 1,
                                 .wire_names = true};
    server_lock(&service->lock);
    if (!server_pauses(service)) {
        status =
            doorman_server_handle(service->server, request, &response, &error, doorman_clock());
        if (status == DOORMAN_OK) allow_keep(allow, service, &response);
        if (status == DOORMAN_OK && response_has_holds(&response)) {
            allow_fail(allow, "request_id", "is needed for a limit of kind CONCURRENCY");
            status = DOORMAN_INVALID_ARGUMENT;
        }
    }
    server_unlock(&service->lock);
    if (error.text[0]) allow_fail_of_field(allow, &error);
    return status;
}

/* ---- the response --------------------------------------------------------------------------- */

/* Returns the escape of a character in a Location, or NULL if the character stays. A `%` stays,
 * because the query has its escapes already. A line break is escaped: it would end the line. */
static const char *escape_target(char character, char room[8]) {
    unsigned char code = (unsigned char)character;
    if (code > ' ' && code < 0x7f) return NULL;
    snprintf(room, 8, "%%%02X", (unsigned)code);
    return room;
}

static void lines_add_list(struct text *lines, const struct limit_fields *limits, const char *name,
                           bool is_policy) {
    server_text_add_all(lines, TEXTS(name, ": "));
    server_limit_fields_add_list(lines, limits, is_policy);
    server_text_add(lines, "\r\n");
}

static void lines_add_integer(struct text *lines, const char *name, long long value) {
    server_text_add(lines, name);
    server_text_add_integer(lines, value);
    server_text_add(lines, "\r\n");
}

static void lines_add(struct text *lines, const struct limit_fields *limits) {
    const struct limit_field *first = &limits->items[0];
    if (limits->count > 0) {
        lines_add_list(lines, limits, "RateLimit-Policy", true);
        lines_add_list(lines, limits, "RateLimit", false);
    }
    if (limits->has_first) {
        lines_add_integer(lines, "X-RateLimit-Limit: ", server_limit_integer(first->most));
        lines_add_integer(lines, "X-RateLimit-Remaining: ", server_limit_integer(first->remaining));
    }
    if (limits->has_first && server_limit_has_times(first)) {
        lines_add_integer(lines, "X-RateLimit-Reset: ", server_limit_seconds(first->reset_after));
    }
    if (limits->has_retry_after) {
        lines_add_integer(lines, "Retry-After: ", server_limit_fields_retry(limits));
    }
    if (limits->share > 0) server_text_addf(lines, "X-RateLimit-Share: %.6g\r\n", limits->share);
}

static void body_add_seconds(struct text *text, const char *name, doorman_time duration) {
    server_text_add(text, name);
    server_text_add_seconds(text, duration > 0 ? duration : 0);
}

/* Adds the decision as JSON, with the field names of the response to `acquire`. But `wait` is
 * called `waited` here, because the wait is over when the response comes. */
static void body_add(struct text *text, const struct allow *allow) {
    const struct limit_fields *limits = allow->limits;
    const struct limit_field *first = limits->has_first ? &limits->items[0] : NULL;
    server_text_add(text, allow->granted ? "{\"decision\":\"GRANTED\",\"granted\":"
                                         : "{\"decision\":\"REFUSED\",\"reason\":\"");
    if (allow->granted) {
        server_text_add_number(text, allow->units);
    } else {
        server_text_add_all(text, TEXTS(doorman_reason_name(allow->reason), "\""));
    }
    if (allow->wait > 0) body_add_seconds(text, ",\"waited\":", allow->wait);
    if (allow->warning) server_text_add(text, ",\"warning\":true");
    if (first) {
        server_text_add(text, ",\"limit\":\"");
        server_text_add_escaped(text, first->name, server_escape_json);
        server_text_add(text, "\",\"remaining\":");
        server_text_add_number(text, first->remaining);
    }
    if (first && allow->granted) {
        body_add_seconds(text, ",\"reset_after\":", first->reset_after);
    }
    if (limits->has_retry_after) {
        body_add_seconds(text, ",\"retry_after\":", limits->retry_after);
    }
    if (limits->share > 0) {
        server_text_add(text, ",\"share\":");
        server_text_add_number(text, limits->share);
    }
    server_text_add(text, "}\n");
}

static void response_set_decision(struct http_response *response, const struct allow *allow) {
    const char *body = allow->refused_body;
    response->code = allow->granted ? 200 : allow->refused_code;
    if (!allow->granted && allow->reason == DOORMAN_REASON_UNMATCHED) response->code = 404;
    response->type = "application/json";
    response->delay = allow->wait;
    lines_add(&response->lines, allow->limits);
    if (body) {
        if (!strchr("{[", body[0])) response->type = "text/plain; charset=utf-8";
        server_text_add(&response->text, body);
    } else {
        body_add(&response->text, allow);
    }
}

/* Makes the response of a process that is not the master. A redirect keeps the whole query. */
static void response_set_not_master(struct http_response *response, const struct allow *allow,
                                    const struct http_request *request) {
    server_http_response_set_unavailable(response, "this process is not the master of its node");
    if (allow->redirects && allow->master_http[0]) {
        response->code = 307;
        response->more = "";
        server_text_add(&response->lines, "Location: ");
        server_text_add_escaped(&response->lines, allow->master_http, escape_target);
        server_text_add(&response->lines, "/v1/allow?");
        server_text_add_escaped(&response->lines, request->query, escape_target);
        server_text_add(&response->lines, "\r\n");
    }
}

static void response_set_failed(struct http_response *response, const struct allow *allow,
                                doorman_status status) {
    if (status == DOORMAN_INVALID_ARGUMENT || status == DOORMAN_RESOURCE_EXHAUSTED) {
        server_http_response_set_error(response, status == DOORMAN_INVALID_ARGUMENT ? 400 : 413,
                                       doorman_status_name(status), allow->error.text);
    } else if (status == DOORMAN_UNAVAILABLE) {
        server_http_response_set_error(response, 503, "UNAVAILABLE",
                                       "the server is stopping or hands over; try again");
    } else {
        server_http_response_set_error(response, 500, "INTERNAL", server_status_text(status));
    }
}

/* Reports the request as a message `acquire`, so the path of its error begins with the method. */
static void allow_report(struct allow *allow, struct service *service,
                         const struct http_request *request, doorman_status status,
                         doorman_time started_at) {
    static const char method[] = "acquire.";
    doorman_error *error = &allow->exchange.error;
    if (allow->error.path_bytes > 0) {
        error->path_bytes = strlen(method) + allow->error.path_bytes;
        snprintf(error->text, sizeof error->text, "%s%.480s", method, allow->error.text);
    } else {
        *error = allow->error;
    }
    const struct peer peer = {.text = request->peer, .token = request->token.name};
    const struct message_report report = {.exchange = &allow->exchange,
                                          .peer = &peer,
                                          .was_read = true,
                                          .status = status,
                                          .duration = doorman_clock() - started_at};
    server_note_message(service, &report);
}

/* Makes the response to a decision. The reason MOVED is a 503: this process cannot decide now. */
static void response_set_decided(struct http_response *response, const struct allow *allow) {
    if (!allow->granted && allow->reason == DOORMAN_REASON_MOVED) {
        server_http_response_set_unavailable(
            response, "MOVED: another node has the shard of the key, or gets it now");
        return;
    }
    response_set_decision(response, allow);
}

/* Asks the node that owns the shard of the key (N4). If it cannot be asked, the response says why.
 * Returns false, and makes no response, if this server asks no other nodes. */
static bool allow_ask(const struct allow *allow, struct service *service,
                      const struct http_request *request, bool delays,
                      struct http_response *response) {
    if (!service->forwards || !request->route->finish) return false;
    const char *why = server_http_ask(service, request, &allow->exchange.request, delays);
    response->is_asked = !why;
    if (!why) return true;
    server_http_response_set_error(response, 503, "UNAVAILABLE", why);
    response->more = "Retry-After: 1\r\n";
    return true;
}

/* Answers a request. The delay is reserved before the decision. Otherwise units could be charged
 * for a response that may not wait. Without a reservation the permit is decided as if it could not
 * wait. */
static void handle_allow(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct limit_fields limits;
    struct allow allow = {.refused_code = 429, .limits = &limits};
    doorman_time started_at = doorman_clock();
    doorman_status status = DOORMAN_INVALID_ARGUMENT;
    bool valid = allow_read(&allow, request->query);
    bool delays = valid && allow.permit.max_wait > 0 && server_http_reserve_delay(service);
    allow.exchange.request.method = DOORMAN_ACQUIRE;
    allow.exchange.has_method = true;
    if (!delays) allow.permit.max_wait = 0;
    if (valid) status = allow_decide(&allow, service);
    const bool asks = status == DOORMAN_OK && allow.is_away && !allow.redirects;
    if (status != DOORMAN_OK) {
        response_set_failed(response, &allow, status);
    } else if (asks && allow_ask(&allow, service, request, delays, response)) {
        if (response->is_asked) delays = false; /* allow_finish has the reservation */
    } else if (!allow.is_master) {
        response_set_not_master(response, &allow, request);
    } else {
        response_set_decided(response, &allow);
    }
    free(allow.refused_body);
    if (delays && response->delay == 0) server_http_cancel_delay(service);
    allow_report(&allow, service, request, status, started_at);
}

/* Makes the response out of an error of the node that was asked. */
static void allow_take_error(struct allow *allow, const cJSON *error,
                             struct http_response *response) {
    doorman_error why;
    if (server_decision_read_error(&why, error) == DOORMAN_INVALID_ARGUMENT) {
        allow_fail_of_field(allow, &why);
        response_set_failed(response, allow, DOORMAN_INVALID_ARGUMENT);
        return;
    }
    server_http_response_set_unavailable(response, why.text);
}

/* Makes the response out of the answer of the node that was asked. */
static void allow_finish(struct service *service, const struct http_request *request,
                         const char *text, size_t bytes, struct http_response *response) {
    struct limit_fields limits;
    struct allow allow = {.refused_code = 429, .limits = &limits};
    struct decision *room = (struct decision *)malloc(sizeof *room);
    cJSON *tree = text ? cJSON_ParseWithLength(text, bytes) : NULL;
    const cJSON *body = cJSON_GetObjectItemCaseSensitive(tree, "acquire");
    const cJSON *permit = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(body, "permit"), 0);
    (void)allow_read(&allow, request->query); /* handle_allow has read it without an error */
    allow.is_master = true;
    if (room && permit && server_decision_read(room, permit, 1)) {
        allow_keep_permit(&allow, &room->permit);
        server_lock(&service->lock);
        allow_keep_refused_body(&allow, service);
        server_unlock(&service->lock);
        if (!response->may_delay) allow.wait = 0;
        response_set_decided(response, &allow);
    } else {
        allow_take_error(&allow, cJSON_GetObjectItemCaseSensitive(tree, "error"), response);
    }
    cJSON_Delete(tree);
    free(room);
    free(allow.refused_body);
    if (response->may_delay && response->delay == 0) server_http_cancel_delay(service);
}

static const struct http_route allow_routes[] = {{"/v1/allow", .verbs = VERB_GET | VERB_POST,
                                                  .is_immediate = true, .charges = true,
                                                  .handle = handle_allow, .finish = allow_finish},
                                                 {.path = NULL}};

const struct server_part server_part_allow = {.routes = allow_routes};
