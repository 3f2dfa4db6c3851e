/* doorman_server, part ADMIN: the form that gives one key other figures for a time (E10).
 *
 *     GET /override?resource=ID&key=KEY   the limits of a key, its overrides, and the form
 *     POST /override                      does what PUT /v1/overrides does
 *
 * The page does not load itself again, so it keeps what was typed. It needs no script.
 *
 * Each page has a nonce, so that a form that is sent twice acts once:
 *
 *     the nonce of the form          what a POST does
 *     is not known, or an hour old   nothing. The page has a new nonce
 *     has done an act                nothing. The page says which act it was
 *     has done nothing               the act. After an error the nonce stays valid, except after
 *                                    503: the store may still do the act, so the page has a new one
 *
 * After an act the browser is sent to a page that names the act. Pages of other servers cannot send
 * the form: see request_check_access. */
#include "acts.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/random.h>

#define NONCE_COUNT 1024
#define NONCE_AGE_MAX (3600 * DOORMAN_SECOND)
#define NONCE_BYTES 33       /* as text */
#define FORM_BYTES_MAX 16384 /* of the body */
#define FIGURES_BYTES 512    /* of the text with the figures */
#define FORM_LIMITS 16       /* that a key can have */

/* A form that was given to a browser. */
struct form_nonce {
    char text[NONCE_BYTES]; /* "": not used yet */
    char token[TOKEN_NAME_MAX + 1];
    char resource[DOORMAN_ID_BYTES_MAX + 1], key[DOORMAN_ID_BYTES_MAX + 1];
    doorman_time at;
    uint64_t act; /* that the form has done; 0: none */
};

/* The forms of all browsers. Only the thread of pages uses this struct, so it needs no lock. A new
 * nonce replaces the oldest one. */
struct override_form {
    struct form_nonce ring[NONCE_COUNT];
    size_t next;
};

/* What a request says. Each text has room for one byte more than is valid, so that a text that is
 * too long is noticed. */
struct form {
    char resource[DOORMAN_ID_BYTES_MAX + 2], key[DOORMAN_ID_BYTES_MAX + 2];
    char limit[DOORMAN_ID_BYTES_MAX + 2], figures[FIGURES_BYTES + 2];
    char number[26], unit[10], reason[REASON_MAX + 2];
    char nonce[NONCE_BYTES + 1], done[NONCE_BYTES + 1];
    char error[ACT_TEXT]; /* "": none */
    char field[16];       /* that is wrong; "": not one of the form */
    uint64_t act;         /* that was done; 0: none */
    bool is_new;          /* the act was done by this form, and not by an earlier copy */
};

static const struct form_field {
    const char *name;
    size_t at, room;
} form_fields[] = {
#define FORM_FIELD(name)                                                                           \
    { #name, offsetof(struct form, name), sizeof((struct form *)NULL)->name }
    FORM_FIELD(resource), FORM_FIELD(key),  FORM_FIELD(limit),  FORM_FIELD(figures),
    FORM_FIELD(number),   FORM_FIELD(unit), FORM_FIELD(reason), FORM_FIELD(nonce),
#undef FORM_FIELD
};

/* ---- nonces --------------------------------------------------------------------------------- */

/* Returns the nonce of a form, or NULL if it is not known or too old, or not of this token,
 * resource and key. */
static struct form_nonce *form_find_nonce(struct override_form *all, const struct form *form,
                                          const char *token, const char *text) {
    const doorman_time oldest = doorman_clock() - NONCE_AGE_MAX;
    struct form_nonce *found = NULL;
    for (size_t i = 0; i < NONCE_COUNT && text[0]; i++) {
        struct form_nonce *nonce = &all->ring[i];
        bool same = strcmp(nonce->text, text) == 0 && strcmp(nonce->token, token) == 0 &&
                    strcmp(nonce->resource, form->resource) == 0 &&
                    strcmp(nonce->key, form->key) == 0 && nonce->at >= oldest;
        if (same) found = nonce;
    }
    return found;
}

/* Gives a form a new nonce. Returns false if the system has no random bits. */
static bool form_issue_nonce(struct override_form *all, struct form *form, const char *token) {
    struct form_nonce *nonce = &all->ring[all->next];
    uint64_t random[2];
    if (getentropy(random, sizeof random) != 0) return false;
    all->next = (all->next + 1) % NONCE_COUNT;
    *nonce = (struct form_nonce){.at = doorman_clock()};
    snprintf(nonce->text, sizeof nonce->text, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    snprintf(nonce->token, sizeof nonce->token, "%s", token);
    snprintf(nonce->resource, sizeof nonce->resource, "%.*s", DOORMAN_ID_BYTES_MAX, form->resource);
    snprintf(nonce->key, sizeof nonce->key, "%.*s", DOORMAN_ID_BYTES_MAX, form->key);
    snprintf(form->nonce, sizeof form->nonce, "%s", nonce->text);
    return true;
}

/* ---- what a request says -------------------------------------------------------------------- */

/* Notes what is wrong, and returns false.
 *   field   that is wrong; "": none of the form */
__attribute__((format(printf, 3, 4))) static bool form_refuse(struct form *form, const char *field,
                                                              const char *format, ...) {
    va_list arguments;
    snprintf(form->field, sizeof form->field, "%s", field);
    va_start(arguments, format);
    vsnprintf(form->error, sizeof form->error, format, arguments);
    va_end(arguments);
    return false;
}

/* Reads all fields, also if one is wrong, so that the page can keep their values. */
static bool form_read(struct form *form, const char *text) {
    bool is_valid = true;
    for (size_t i = 0; i < sizeof form_fields / sizeof *form_fields; i++) {
        const struct form_field *field = &form_fields[i];
        char *value = (char *)form + field->at;
        const int count = server_query_count(text, field->name);
        bool is_read = server_query_read(text, field->name, value, field->room);
        bool is_long = strlen(value) + 1 == field->room;
        if (is_long) value[field->room - 2] = 0;
        if (!is_valid) continue;
        if (count > 1) {
            is_valid = form_refuse(form, field->name, "%s: occurs twice", field->name);
        } else if (is_long) {
            is_valid = form_refuse(form, field->name, "%s: must have at most %zu bytes",
                                   field->name, field->room - 2);
        } else if ((count == 1 && !is_read) || !server_text_is_utf8(value)) {
            is_valid =
                form_refuse(form, field->name, "%s: must be UTF-8 without 0 bytes", field->name);
        }
    }
    return is_valid;
}

static bool form_read_body(struct form *form, const struct http_request *request) {
    char *text = (char *)calloc(1, FORM_BYTES_MAX + 1);
    bool is_valid = text && request->body_bytes <= FORM_BYTES_MAX;
    if (!text) return form_refuse(form, "", "out of memory");
    if (is_valid) {
        if (request->body_bytes > 0) memcpy(text, request->body, request->body_bytes);
        is_valid = form_read(form, text);
        if (strlen(text) != request->body_bytes) {
            is_valid = form_refuse(form, "", "the form has a 0 byte");
        }
    } else {
        is_valid = form_refuse(form, "", "the form has more than %d bytes", FORM_BYTES_MAX);
    }
    free(text);
    return is_valid;
}

/* Reads a decimal number. strtod alone would also read others, such as hexadecimal ones.
 *   end       out: behind the number
 *   returns   false: there is none, or it is too large */
static bool form_read_number(const char *text, char **end, double *number) {
    const size_t bytes = strspn(text, "+-.0123456789eE");
    *number = strtod(text, end);
    return *end > text && *end <= text + bytes && isfinite(*number);
}

/* Reads figures such as "rate=200,size=1000" into an object. */
static bool form_read_figures(struct form *form, cJSON *figures) {
    const char *at = form->figures;
    bool is_valid = *at != 0;
    while (is_valid && *at) {
        char name[64] = "", *end = NULL;
        const size_t bytes = strcspn(at, "=,");
        is_valid = at[bytes] == '=' && bytes > 0 && bytes < sizeof name;
        double value = 0;
        is_valid = is_valid && form_read_number(at + bytes + 1, &end, &value) &&
                   (!*end || (*end == ',' && end[1]));
        if (!is_valid) break;
        snprintf(name, sizeof name, "%.*s", (int)bytes, at);
        is_valid =
            !cJSON_HasObjectItem(figures, name) && cJSON_AddNumberToObject(figures, name, value);
        at = end + (*end == ',');
    }
    return is_valid || form_refuse(form, "figures",
                                   "figures: must be names with numbers, such as "
                                   "rate=200,size=1000, or add=500");
}

/* The units in which the form takes a duration. The last one is the default. */
static const struct form_unit {
    const char *name;
    int seconds;
} form_units[] = {{"seconds", 1}, {"minutes", 60}, {"hours", 3600}, {"days", 86400}};

#define UNIT_COUNT (sizeof form_units / sizeof *form_units)

/* Returns the index of a unit; UNIT_COUNT: there is no such unit. */
static size_t form_find_unit(const char *name) {
    size_t i = 0;
    while (i < UNIT_COUNT && strcmp(form_units[i].name, name) != 0) i++;
    return i;
}

/* Reads when the figures end, in seconds from now. */
static bool form_read_end(struct form *form, double *seconds) {
    char *end = NULL;
    double number = 0;
    const size_t unit = form_find_unit(form->unit);
    if (!form_read_number(form->number, &end, &number) || *end || number <= 0) {
        return form_refuse(form, "number", "number: must be more than 0, such as 12 or 1.5");
    }
    if (unit == UNIT_COUNT) {
        return form_refuse(form, "unit", "unit: must be seconds, minutes, hours or days");
    }
    *seconds = number * form_units[unit].seconds;
    return true;
}

/* Returns the body of PUT /v1/overrides as text, which the caller frees with cJSON_free. Returns
 * NULL if the form is wrong, or memory runs out. */
static char *form_write_json(struct form *form) {
    cJSON *body = cJSON_CreateObject(), *figures = cJSON_CreateObject();
    double seconds = 0;
    char *text = NULL;
    bool is_valid = form_read_figures(form, figures) && form_read_end(form, &seconds);
    if (is_valid && !form->reason[0]) {
        is_valid = form_refuse(form, "reason", "reason: is missing");
    }
    cJSON *add = cJSON_DetachItemFromObjectCaseSensitive(figures, "add");
    const bool is_glob = strpbrk(form->resource, "*?[") != NULL; /* as in doormanctl */
    cJSON_AddStringToObject(body, is_glob ? "glob" : "resource", form->resource);
    cJSON_AddStringToObject(body, "limit", form->limit);
    cJSON_AddStringToObject(body, "key", form->key);
    cJSON_AddStringToObject(body, "reason", form->reason);
    cJSON_AddNumberToObject(body, "expires_in", seconds);
    bool sets = !add || (figures && figures->child);
    if (add && !cJSON_AddItemToObject(body, "add", add)) cJSON_Delete(add);
    if (!sets || !cJSON_AddItemToObject(body, "set", figures)) cJSON_Delete(figures);
    if (is_valid) {
        text = cJSON_PrintUnformatted(body);
        if (!text) form_refuse(form, "", "out of memory");
    }
    cJSON_Delete(body);
    return text;
}

/* ---- acts ----------------------------------------------------------------------------------- */

/* Returns the field of the form that sets a member of the body of PUT /v1/overrides; "": none. */
static const char *form_field_of(const char *member) {
    static const char *const names[][2] = {{"set", "figures"},       {"add", "figures"},
                                           {"expires_in", "number"}, {"ends_at", "number"},
                                           {"limit", "limit"},       {"reason", "reason"}};
    const char *found = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(member, names[i][0]) == 0) found = names[i][1];
    }
    return found;
}

/* Takes the number of the act, or the error, out of a response, and frees it.
 *   response   gets the status, and Retry-After */
static void form_take_answer(struct form *form, struct http_response *answer,
                             struct http_response *response) {
    cJSON *json = answer->text.failed || !answer->text.buffer.text
                      ? NULL
                      : cJSON_ParseWithLength(answer->text.buffer.text, answer->text.buffer.bytes);
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(json, "error");
    const char *message = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(error, "message"));
    const double act = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "id"));
    response->code = answer->code;
    response->more = answer->more;
    if (answer->code == 200 && act > 0) {
        form->act = (uint64_t)act;
    } else if (message) {
        form_refuse(form, form_field_of(answer->field), "%s", message);
    } else {
        response->code = 500;
        form_refuse(form, "", "out of memory: look at the audit whether this was done");
    }
    cJSON_Delete(json);
    doorman_buffer_uninit(&answer->text.buffer);
    doorman_buffer_uninit(&answer->lines.buffer);
}

/* Sets the override that a form describes, if the form is complete. */
static void form_act(struct form *form, struct service *service, const struct http_request *request,
                     struct http_response *response) {
    struct http_request put = *request;
    struct http_response answer = server_http_response_init(NULL);
    char *body = form_write_json(form);
    response->code = 400;
    if (!body) return;
    put.body = body;
    put.body_bytes = strlen(body);
    server_override_set(service, &put, &answer);
    cJSON_free(body);
    form_take_answer(form, &answer, response);
}

/* Sends the browser to the page that says what was done. A reload of that page does not send the
 * form again. */
static void form_redirect(const struct form *form, struct http_response *response) {
    response->code = 303;
    response->type = "text/html; charset=utf-8";
    server_text_addf(&response->text,
                     "<!doctype html><title>Done</title><p>Done, as act %" PRIu64 ".</p>\n",
                     form->act);
    server_text_add(&response->lines, "Location: /override?resource=");
    server_text_add_escaped(&response->lines, form->resource, server_escape_query);
    server_text_add(&response->lines, "&key=");
    server_text_add_escaped(&response->lines, form->key, server_escape_query);
    server_text_addf(&response->lines, "&done=%s\r\n", form->nonce);
}

/* Does what a form says, unless its nonce is not valid or has done an act already. */
static void form_send(struct form *form, struct service *service,
                      const struct http_request *request, struct http_response *response) {
    struct form_nonce *nonce =
        form_find_nonce(service->override_form, form, request->token.name, form->nonce);
    if (!nonce) {
        form->nonce[0] = 0;
        response->code = 409;
        form_refuse(form, "",
                    "Nothing was done now, because this form is older than an hour, of an earlier "
                    "process, or was sent before without an answer of the store. Look at the "
                    "figures and the overrides again, and send it again.");
    } else if (nonce->act > 0) {
        *form = (struct form){.act = nonce->act};
        snprintf(form->resource, sizeof form->resource, "%s", nonce->resource);
        snprintf(form->key, sizeof form->key, "%s", nonce->key);
    } else {
        form_act(form, service, request, response);
        nonce->act = form->act;
        form->is_new = form->act > 0;
        if (response->code == 503) { /* the store may still do it */
            *nonce = (struct form_nonce){.act = 0};
            form->nonce[0] = 0;
        }
    }
}

/* ---- the page ------------------------------------------------------------------------------- */

/* The names of the limits that can have other figures for a key. */
struct form_limits {
    char names[FORM_LIMITS][DOORMAN_ID_BYTES_MAX + 1];
    size_t count, shared_count; /* shared_count: of limits that several keys share */
};

static bool form_limit_is_shared(const doorman_template *template, const char *name) {
    bool is_shared = false;
    for (size_t i = 0; template && i < template->limit_count; i++) {
        const doorman_permit_limit *limit = &template->limits[i];
        if (strcmp(limit->name, name) == 0) is_shared = limit->per != DOORMAN_PER_KEY;
    }
    return is_shared;
}

static void form_take_limits(struct form_limits *limits, struct service *service,
                             const struct form *form) {
    const doorman_permit_entry entry = {.resource_id = form->resource, .key = form->key};
    const doorman_request inspect = {
        .method = DOORMAN_INSPECT, .entries = &entry, .entry_count = 1, .wire_names = true};
    doorman_response response;
    limits->count = limits->shared_count = 0;
    server_lock(&service->lock);
    const doorman_template *template = doorman_config_find(service->config, form->resource);
    doorman_status status =
        doorman_server_handle(service->server, &inspect, &response, NULL, doorman_clock());
    if (status == DOORMAN_OK && response.is_master) {
        const doorman_permit *state = &response.results[0].state;
        for (size_t i = 0; i < state->detail_count && limits->count < FORM_LIMITS; i++) {
            const bool is_shared = form_limit_is_shared(template, state->details[i].limit);
            if (is_shared) limits->shared_count++;
            if (is_shared) continue;
            snprintf(limits->names[limits->count++], sizeof *limits->names, "%s",
                     state->details[i].limit);
        }
    }
    server_unlock(&service->lock);
}

static void form_escaped(struct text *text, const char *value) {
    server_text_add_escaped(text, value, server_escape_html);
}

/* Adds what is wrong with a field.
 *   other   a second field at the same place; may be NULL */
static void form_add_error(struct text *text, const struct form *form, const char *name,
                           const char *other) {
    if (!form->error[0]) return;
    if (strcmp(form->field, name) != 0 && (!other || strcmp(form->field, other) != 0)) return;
    server_text_add(text, "<p class=bad role=alert>");
    form_escaped(text, form->error);
    server_text_add(text, "</p>");
}

static void form_add_hidden(struct text *text, const char *name, const char *value) {
    server_text_addf(text, "<input type=hidden name=%s value=\"", name);
    form_escaped(text, value);
    server_text_add(text, "\">");
}

static void form_add_limit(struct text *text, const struct form *form,
                           const struct form_limits *limits) {
    server_text_add(text, "<label for=limit>limit</label><div><select id=limit name=limit>");
    for (size_t i = 0; i < limits->count; i++) {
        const char *name = limits->names[i];
        server_text_add(text, "<option value=\"");
        form_escaped(text, name);
        server_text_add(text, strcmp(name, form->limit) == 0 ? "\" selected>" : "\">");
        form_escaped(text, name);
        server_text_add(text, "</option>");
    }
    server_text_add(text, "</select>");
    form_add_error(text, form, "limit", NULL);
    server_text_add(text, "</div>");
}

static void form_add_end(struct text *text, const struct form *form) {
    const size_t found = form_find_unit(form->unit);
    const size_t unit = found < UNIT_COUNT ? found : UNIT_COUNT - 1;
    server_text_add(text, "<label for=number>for</label><div><input id=number name=number required "
                          "maxlength=24 size=6 inputmode=decimal value=\"");
    form_escaped(text, form->number[0] ? form->number : "1");
    server_text_add(text, "\"> <select name=unit aria-label=unit>");
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        server_text_addf(text, "<option%s>%s</option>", i == unit ? " selected" : "",
                         form_units[i].name);
    }
    server_text_add(text, "</select>");
    form_add_error(text, form, "number", "unit");
    server_text_add(text, "</div>");
}

static void form_add_fields(struct text *text, const struct form *form,
                            const struct form_limits *limits) {
    server_text_add(text, "<h2>Other figures for a time</h2>");
    form_add_error(text, form, "", "nonce");
    form_add_error(text, form, "resource", "key");
    server_text_add(text, "<form method=post action='/override' class=fill autocomplete=off>");
    form_add_hidden(text, "resource", form->resource);
    form_add_hidden(text, "key", form->key);
    form_add_hidden(text, "nonce", form->nonce);
    form_add_limit(text, form, limits);
    server_text_addf(text,
                     "<label for=figures>figures</label><div><input id=figures name=figures "
                     "required maxlength=%d placeholder='rate=200,size=1000' value=\"",
                     FIGURES_BYTES);
    form_escaped(text, form->figures);
    server_text_add(text, "\"><p class=soft>rate=200,size=1000 for a bucket; limit=500 for a "
                          "window or for holds; add=500 gives 500 units once</p>");
    form_add_error(text, form, "figures", NULL);
    server_text_add(text, "</div>");
    form_add_end(text, form);
    server_text_addf(text,
                     "<label for=reason>why</label><div><input id=reason name=reason required "
                     "maxlength=%d placeholder='ticket 4711' value=\"",
                     REASON_MAX);
    form_escaped(text, form->reason);
    server_text_add(text, "\">");
    form_add_error(text, form, "reason", NULL);
    server_text_add(text, "</div><span></span><div><button>give these figures</button></div>"
                          "</form>");
}

/* Says which act was done, with a link to the audit of the key. */
static void form_add_done(struct text *text, const struct form *form, bool is_again) {
    server_text_addf(text,
                     is_again ? "<p class=warn role=status>This was done already as act "
                                "%" PRIu64 ". Nothing was done again."
                              : "<p class=good role=status>Done, as act %" PRIu64 ".",
                     form->act);
    server_text_add(text, " <a href=\"/audit?key=");
    server_text_add_escaped(text, form->key, server_escape_query);
    server_text_addf(
        text, "\">Audit</a>. <code>doormanctl undo %" PRIu64 " --reason WHY</code> undoes it.</p>",
        form->act);
}

/* Returns whether this token can have the form for this resource and key. If not, says why, unless
 * the key has no limits. */
static bool form_is_offered(struct form *form, struct service *service,
                            const struct http_request *request, struct text *text,
                            const struct form_limits *limits) {
    char globs[TOKEN_GLOBS_BYTES];
    if (limits->count == 0) {
        form_add_error(text, form, form->field, NULL);
        if (limits->shared_count == 0) return false;
        server_text_add(text, "<p class=soft>All limits of this resource are shared by keys, so a "
                              "key cannot have other figures.</p>");
        return false;
    }
    if (!server_role_includes(request->token.role, ROLE_SUPPORT)) {
        server_text_addf(text,
                         "<p class=soft>Other figures need a token with the role support. This one "
                         "has the role %s.</p>",
                         server_role_name(request->token.role));
        return false;
    }
    if (service->tokens && !server_token_covers(service->tokens, &request->token, form->resource,
                                                strpbrk(form->resource, "*?[") != NULL, globs)) {
        form_add_error(text, form, form->field, NULL);
        server_text_add(text, "<p class=soft>This token may only change ");
        form_escaped(text, globs);
        server_text_add(text, ".</p>");
        return false;
    }
    return true;
}

/* Adds the form, or why this token cannot have it. */
static void form_add_form(struct form *form, struct service *service,
                          const struct http_request *request, struct http_response *response) {
    struct text *text = &response->text;
    struct form_limits limits;
    form_take_limits(&limits, service, form);
    if (!form_is_offered(form, service, request, text, &limits)) return;
    if (!form->nonce[0] && !form_issue_nonce(service->override_form, form, request->token.name)) {
        response->text.failed = true;
        return;
    }
    response->has_form = true;
    form_add_fields(text, form, &limits);
}

/* Says why this process has no form, with a link to the same page of the master if it is known. */
static void form_add_refusal(const struct form *form, struct service *service,
                             struct http_response *response) {
    struct text *text = &response->text;
    char master_http[DOORMAN_ID_BYTES_MAX + 1];
    server_lock(&service->lock);
    snprintf(master_http, sizeof master_http, "%s", service->master_http);
    server_unlock(&service->lock);
    form_add_error(text, form, form->field, NULL);
    if (!server_keeps_acts(service) || !master_http[0]) return;
    server_text_add(text, "<p><a href=\"");
    form_escaped(text, master_http);
    server_text_add(text, "/override?resource=");
    server_text_add_escaped(text, form->resource, server_escape_query);
    server_text_add(text, "&amp;key=");
    server_text_add_escaped(text, form->key, server_escape_query);
    server_text_add(text, "\">this page at the master</a></p>");
}

/* Writes the page of a key.
 *   serves   this process keeps acts and is master; false: the error of the form says why not */
static void form_show(struct form *form, bool serves, struct service *service,
                      const struct http_request *request, struct http_response *response) {
    struct text *text = &response->text;
    server_page_start(service, request, response, NULL, "");
    server_text_add(text, "<h2>");
    form_escaped(text, form->key[0] ? form->key : "(no key)");
    server_text_add(text, " <small class=holder>");
    form_escaped(text, form->resource);
    server_text_add(text, "</small></h2>");
    if (form->act > 0) form_add_done(text, form, strcmp(request->verb, "POST") == 0);
    if (serves) {
        server_page_key(text, service, form->resource, form->key);
        server_text_add(text, "<h2>Overrides</h2>");
        server_page_overrides(text, service, form->resource, form->key);
        form_add_form(form, service, request, response);
    } else {
        form_add_refusal(form, service, response);
    }
    server_text_add(text, "<p><a href=\"/keys?resource=");
    server_text_add_escaped(text, form->resource, server_escape_query);
    server_text_add(text, "&amp;key=");
    server_text_add_escaped(text, form->key, server_escape_query);
    server_text_add(text, "\">this key</a> &middot; <a href='/limits'>all limits</a> &middot; "
                          "<a href='/overrides'>all overrides</a></p>");
    server_page_end(response, false);
}

static bool form_read_query(struct form *form, struct service *service,
                            const struct http_request *request) {
    if (!form_read(form, request->query)) return false;
    form->nonce[0] = 0; /* a page has its own */
    server_query_read(request->query, "done", form->done, sizeof form->done);
    const struct form_nonce *nonce =
        form_find_nonce(service->override_form, form, request->token.name, form->done);
    if (nonce) form->act = nonce->act;
    return true;
}

static void handle_override_form(struct service *service, const struct http_request *request,
                                 struct http_response *response) {
    struct form form = {.act = 0};
    struct http_response answer = server_http_response_init(NULL);
    const bool sends = strcmp(request->verb, "POST") == 0;
    bool is_read =
        sends ? form_read_body(&form, request) : form_read_query(&form, service, request);
    if (!is_read) response->code = 400;
    bool serves = server_admin_serves(service, request, &answer);
    if (!serves) {
        form_take_answer(&form, &answer, response);
        if (!sends) response->code = 200; /* the page says what is missing */
    } else if (sends && is_read) {
        form_send(&form, service, request, response);
    }
    if (form.is_new) {
        form_redirect(&form, response);
    } else {
        form_show(&form, serves, service, request, response);
    }
}

static const struct http_route override_form_routes[] = {
    {"/override", .administers = true, .verbs = VERB_GET | VERB_POST, .role = ROLE_SUPPORT,
     .takes_form = true, .handle = handle_override_form},
    {.path = NULL}};

const struct server_part server_part_override_form = {SERVER_PART_STATE(override_form),
                                                      .routes = override_form_routes};
