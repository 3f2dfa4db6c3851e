/* doorman_server, part HTTP: what a descriptor of a gateway becomes, and what the limits would
 * decide for it. Nothing is charged, but an inspection moves the clock of the server object.
 *
 *     /descriptors      a form, the answer, the rules, and the last descriptors without a template
 *     /v1/descriptors   the same as JSON, without the rules
 *
 *     parameter    meaning
 *     domain       the domain. Without it, the response has no answer
 *     KEY          an entry of the descriptor. The entries are in the order of the query
 *     entry.KEY    the same, for a KEY that begins with `entry.` or is `domain` or `entries`
 *     entries      only of the page: entries as they are in a query */
#include "../log/log.h"
#include "pages.h"

#define DESCRIPTOR_RULES_SHOWN 100
#define DESCRIPTOR_PREFIX "entry."

/* A descriptor of a query. */
struct descriptor_query {
    char *text; /* room for the decoded keys and values; the entries point into it */
    size_t bytes;
    const char *domain; /* NULL: none */
    doorman_descriptor_entry entries[DOORMAN_DESCRIPTOR_ENTRIES_MAX];
    size_t count;
    const char *wrong; /* the rule that a parameter breaks; NULL: none */
    char wrong_name[41];
};

/* ---- the query */

/* Decodes text up to a character of `ends`. Returns where it has stopped. */
static const char *descriptor_decode(struct descriptor_query *query, const char *at,
                                     const char *ends) {
    for (; *at && !strchr(ends, *at); at++) {
        char character = *at == '+' ? ' ' : *at;
        if (*at == '%' && server_hex_value(at[1]) >= 0 && server_hex_value(at[2]) >= 0) {
            character = (char)(server_hex_value(at[1]) * 16 + server_hex_value(at[2]));
            at += 2;
        }
        query->text[query->bytes++] = character;
    }
    query->text[query->bytes++] = '\0';
    return at;
}

static void descriptor_refuse(struct descriptor_query *query, const char *name, const char *rule) {
    if (query->wrong) return;
    snprintf(query->wrong_name, sizeof query->wrong_name, "%s", name);
    for (char *at = query->wrong_name; *at; at++) {
        if (*at <= 0x20 || *at >= 0x7f) *at = '?';
    }
    query->wrong = rule;
}

/* Takes a parameter. Its name and its value may contain 0 bytes, and have one more at the end. */
static void descriptor_take(struct descriptor_query *query, doorman_descriptor_entry entry) {
    const size_t prefix = strlen(DESCRIPTOR_PREFIX);
    const bool is_entry = strncmp(entry.key, DESCRIPTOR_PREFIX, prefix) == 0;
    if (!is_entry && strcmp(entry.key, "domain") == 0) {
        if (query->domain) descriptor_refuse(query, "domain", "occurs twice");
        if (strlen(entry.value) != entry.value_bytes) {
            descriptor_refuse(query, "domain", "must not contain a 0 byte");
        }
        query->domain = entry.value;
        return;
    }
    if (query->count == DOORMAN_DESCRIPTOR_ENTRIES_MAX) {
        descriptor_refuse(query, entry.key, "is one entry too many: a descriptor has at most 16");
        return;
    }
    if (is_entry) entry.key += prefix, entry.key_bytes -= prefix;
    query->entries[query->count++] = entry;
}

/* Reads parameters. `text` of the query has room for them. */
static void descriptor_read(struct descriptor_query *query, const char *at) {
    while (*at) {
        doorman_descriptor_entry entry = {.key = query->text + query->bytes};
        const bool is_empty = *at == '&';
        at = descriptor_decode(query, at, "=&");
        entry.key_bytes = (size_t)(query->text + query->bytes - entry.key) - 1;
        if (*at != '=' && !is_empty) {
            descriptor_refuse(query, entry.key, "must have a value, as in KEY=VALUE");
        }
        if (*at == '=') {
            entry.value = query->text + query->bytes;
            at = descriptor_decode(query, at + 1, "&");
            entry.value_bytes = (size_t)(query->text + query->bytes - entry.value) - 1;
            descriptor_take(query, entry);
        }
        if (*at == '&') at++;
    }
}

/* Returns room for the decoded text of a query, or NULL. The caller frees it. */
static char *descriptor_room(size_t bytes) {
    return (char *)malloc(2 * bytes + 2); /* each parameter also needs two zeros */
}

/* ---- the answer */

/* What a descriptor becomes. The strings of the rule belong to the configuration. */
struct descriptor_answer {
    doorman_descriptor_item item;
    const doorman_descriptor_rule *rule; /* NULL: none */
    const doorman_template *template_;   /* with limits; NULL: none */
    size_t rule_count;
    const doorman_descriptor_rule *rules;
};

/* Finds the rule and the template. Precondition: the lock of the configuration is held, so the
 * pointers stay valid. */
static void descriptor_answer_make(struct service *service, const struct descriptor_query *query,
                                   struct descriptor_answer *out) {
    assert(server_lock_is_held(&service->config_lock));
    memset(out, 0, sizeof *out);
    doorman_config_options options;
    server_lock(&service->lock);
    const doorman_config *config = service->config;
    doorman_config_read(config, &options);
    server_unlock(&service->lock);
    out->rules = options.descriptors;
    out->rule_count = options.descriptor_count;
    if (!query->domain) return;
    (void)doorman_descriptors_resolve(doorman_config_descriptors(config), query->domain,
                                      query->entries, query->count, &out->item);
    if (out->item.matched) out->rule = out->rules + out->item.rule;
    out->template_ = doorman_config_find(config, out->item.resource_id);
    if (out->template_ && !out->template_->has_limits) out->template_ = NULL;
}

/* Asks what the limits have counted for the item. A template without any limit grants everything.
 * Precondition: the lock of the service is held.
 *   returns   NULL: this process cannot know */
static const doorman_permit *descriptor_inspect(struct service *service,
                                                const struct descriptor_answer *answer,
                                                doorman_response *response) {
    assert(server_lock_is_held(&service->lock));
    static const doorman_permit granted = {.granted = true};
    const doorman_permit_entry entry = {.resource_id = answer->item.resource_id,
                                        .key = answer->item.key};
    const doorman_request inspect = {
        .method = DOORMAN_INSPECT, .entries = &entry, .entry_count = 1, .wire_names = true};
    if (answer->template_->limit_count == 0) return &granted;
    const bool is_known = doorman_server_handle(service->server, &inspect, response, NULL,
                                                doorman_clock()) == DOORMAN_OK &&
                          response->is_master && response->result_count == 1;
    return is_known ? &response->results[0].state : NULL;
}

/* Returns the reason for which a permit of one unit would be refused now; NULL: it would be
 * granted.
 *   limit   out: the limit that refuses; "": not known */
static const char *descriptor_refusal(const doorman_permit *state, const char **limit) {
    *limit = "";
    if (state->reason) return doorman_reason_name(state->reason);
    for (size_t i = 0; i < state->detail_count; i++) {
        const doorman_permit_detail *detail = &state->details[i];
        if (detail->shadow || detail->remaining >= 1) continue;
        *limit = detail->limit;
        return doorman_reason_name(detail->kind == DOORMAN_CONCURRENCY ? DOORMAN_REASON_CONCURRENCY
                                                                       : DOORMAN_REASON_RATE);
    }
    return NULL;
}

/* ---- JSON */

static void descriptor_json_rule(struct text *text, const doorman_descriptor_rule *rule,
                                 size_t index) {
    server_text_addf(text, ",\"rule\":{\"index\":%zu", index);
    server_text_add_json(text, ",\"domain\":", rule->domain);
    server_text_add(text, ",\"entries\":[");
    for (size_t i = 0; i < rule->entry_count; i++) {
        server_text_add_json(text, i ? ",[" : "[", rule->entries[i].key);
        server_text_add_json(text, ",", rule->entries[i].value);
        server_text_add(text, "]");
    }
    server_text_add_json(text, "],\"resource\":", rule->resource);
    server_text_add_json(text, ",\"key\":", rule->key);
    server_text_add(text, "}");
}

static void descriptor_json_limits(struct text *text, const doorman_permit *state) {
    const char *limit = NULL, *reason = descriptor_refusal(state, &limit);
    server_text_add_json(text, ",\"decision\":", reason ? "REFUSED" : "GRANTED");
    if (reason) server_text_add_json(text, ",\"reason\":", reason);
    if (reason && limit[0]) server_text_add_json(text, ",\"limit\":", limit);
    server_text_add(text, ",\"limits\":[");
    for (size_t i = 0; i < state->detail_count; i++) {
        const doorman_permit_detail *detail = &state->details[i];
        server_text_add_json(text, i ? ",{\"name\":" : "{\"name\":", detail->limit);
        server_text_add(text, ",\"limit\":");
        server_text_add_number(text, detail->most);
        server_text_add(text, ",\"used\":");
        server_text_add_number(text, detail->used);
        server_text_add(text, ",\"remaining\":");
        server_text_add_number(text, detail->remaining);
        server_text_addf(text, ",\"reset_after\":%.3f", (double)detail->reset_after / 1e9);
        if (detail->shadow) server_text_add(text, ",\"shadow\":true");
        server_text_add(text, "}");
    }
    server_text_add(text, "]");
}

/* Adds what would be decided. Precondition: the lock of the configuration is held. */
static void descriptor_json_answer(struct text *text, struct service *service,
                                   const struct descriptor_answer *answer) {
    assert(server_lock_is_held(&service->config_lock));
    server_text_add_json(text, ",\"descriptor\":{\"resource_id\":", answer->item.resource_id);
    server_text_add_json(text, ",\"key\":", answer->item.key);
    server_text_addf(text, ",\"hashed\":%s", answer->item.hashed ? "true" : "false");
    if (answer->rule) descriptor_json_rule(text, answer->rule, answer->item.rule);
    if (answer->template_) {
        doorman_response response;
        server_text_add_json(text, ",\"template\":", answer->template_->identifier_glob);
        server_lock(&service->lock);
        const doorman_permit *state =
            service->tokens ? descriptor_inspect(service, answer, &response) : NULL;
        if (state) descriptor_json_limits(text, state);
        server_unlock(&service->lock);
    } else {
        server_text_add_json(text, ",\"decision\":", "UNMATCHED");
    }
    server_text_add(text, "}");
}

static void descriptor_json_unmatched(struct text *text, struct service *service) {
    struct unmatched_row rows[UNMATCHED_MAX];
    uint64_t all = 0;
    const size_t count = server_unmatched_list(service, rows, &all);
    const doorman_time now = doorman_clock();
    server_text_addf(text, ",\"unmatched_count\":%" PRIu64 ",\"unmatched\":[", all);
    for (size_t i = 0; i < count; i++) {
        server_text_add_json(text, i ? ",\n{\"domain\":" : "{\"domain\":", rows[i].domain);
        server_text_add_json(text, ",\"resource_id\":", rows[i].resource);
        server_text_add_json(text, ",\"key\":", rows[i].key);
        server_text_addf(text, ",\"count\":%" PRIu64 ",\"by_rule\":%s,\"ago\":%.3f}", rows[i].count,
                         rows[i].matched ? "true" : "false",
                         now > rows[i].at ? (double)(now - rows[i].at) / 1e9 : 0);
    }
    server_text_add(text, "]}\n");
}

/* Reads the query of a request. If it is wrong, or memory runs out, sets an error and returns
 * false. */
static bool descriptor_json_query(struct descriptor_query *query,
                                  const struct http_request *request,
                                  struct http_response *response) {
    char error[160];
    response->text.failed = !query->text;
    if (!query->text) return false;
    descriptor_read(query, request->query);
    if (query->count && !query->domain) {
        descriptor_refuse(query, "domain", "is required with entries");
    }
    if (!query->wrong) return true;
    snprintf(error, sizeof error, "%s: %s", query->wrong_name, query->wrong);
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return false;
}

static void handle_json_descriptors(struct service *service, const struct http_request *request,
                                    struct http_response *response) {
    struct text *text = &response->text;
    char *decoded = descriptor_room(strlen(request->query));
    struct descriptor_query query = {.text = decoded};
    response->type = "application/json";
    if (descriptor_json_query(&query, request, response)) {
        struct descriptor_answer answer;
        server_lock(&service->config_lock);
        descriptor_answer_make(service, &query, &answer);
        server_lock(&service->lock);
        const bool is_master = doorman_server_permits(service->server) != NULL;
        server_unlock(&service->lock);
        server_text_addf(text, "{\"is_master\":%s,\"rules\":%zu", is_master ? "true" : "false",
                         answer.rule_count);
        if (query.domain) descriptor_json_answer(text, service, &answer);
        server_unlock(&service->config_lock);
        descriptor_json_unmatched(text, service);
    }
    free(decoded);
}

/* ---- the page */

static void descriptor_page_form(struct text *text, const char *domain, const char *entries) {
    server_text_add(text,
                    "<form action='/descriptors' class='ask wraps' role=search><input name=domain "
                    "required aria-label=domain placeholder=domain value=\"");
    server_text_add_escaped(text, domain, server_escape_html);
    server_text_add(text, "\"> <input name=entries class=entries aria-label=entries size=40 "
                          "placeholder='path=/login&amp;remote_address=1.2.3.4' value=\"");
    server_text_add_escaped(text, entries, server_escape_html);
    server_text_add(text, "\"> <button>what is decided?</button></form>");
}

static void descriptor_page_rule_text(struct text *text, const doorman_descriptor_rule *rule) {
    for (size_t i = 0; i < rule->entry_count; i++) {
        server_text_add(text, i ? ", " : "");
        server_text_add_escaped(text, rule->entries[i].key, server_escape_html);
        server_text_add(text, " = ");
        server_text_add_escaped(text, rule->entries[i].value, server_escape_html);
    }
}

static void descriptor_page_fact(struct text *text, const char *name, const char *value) {
    server_text_addf(text, "<div><dt>%s</dt><dd>", name);
    server_text_add_escaped(text, value[0] ? value : "(empty)", server_escape_html);
    server_text_add(text, "</dd></div>");
}

static void descriptor_page_limits(struct text *text, const doorman_permit *state) {
    const char *limit = NULL, *reason = descriptor_refusal(state, &limit);
    server_text_addf(text, "<p>A permit of one unit would now be <b class=%s>%s</b>",
                     reason ? "bad" : "good", reason ? "refused" : "granted");
    if (reason) server_text_addf(text, ": %s", reason);
    if (reason && limit[0]) {
        server_text_add(text, " by the limit ");
        server_text_add_escaped(text, limit, server_escape_html);
    }
    server_text_add(text, ".</p><table><thead><tr><th>limit</th><th>used</th><th>of</th><th>"
                          "remaining</th><th>fresh again in</th></tr></thead><tbody>");
    for (size_t i = 0; i < state->detail_count; i++) {
        const doorman_permit_detail *detail = &state->details[i];
        server_text_add(text, "<tr><td>");
        server_text_add_escaped(text, detail->limit, server_escape_html);
        server_text_add(text, detail->shadow ? " <small>in shadow</small></td>" : "</td>");
        server_page_cell(text, "used", detail->used);
        server_page_cell(text, "of", detail->most);
        server_page_cell(text, "remaining", detail->remaining);
        server_page_cell_duration(text, "fresh again in", detail->reset_after + DOORMAN_SECOND - 1);
        server_text_add(text, "</tr>");
    }
    server_text_add(text, "</tbody></table>");
    if (state->detail_count == 0) {
        server_text_add(text, "<p class=soft>No limit concerns this key.</p>");
    }
}

/* Adds what the limits have counted, or why this is not known. */
static void descriptor_page_state(struct text *text, struct service *service,
                                  const struct descriptor_answer *answer) {
    doorman_response response;
    if (!answer->template_) {
        server_text_add(text, "<p class=warn>No template with limits matches the resource, so the "
                              "gateway lets such requests pass.</p>");
    } else if (!service->tokens) {
        server_text_add(text,
                        "<p class=soft>What the limits have counted is shown only by a server "
                        "with --http-token.</p>");
    } else {
        server_lock(&service->lock);
        const doorman_permit *state = descriptor_inspect(service, answer, &response);
        if (state) descriptor_page_limits(text, state);
        server_unlock(&service->lock);
        if (!state) {
            server_text_add(text, PAGE_NOT_MASTER);
        }
    }
}

static void descriptor_page_answer(struct text *text, struct service *service,
                                   const struct descriptor_answer *answer) {
    char number[32];
    snprintf(number, sizeof number, "descriptors[%zu]", answer->item.rule);
    server_text_add(text, "<dl class=facts>");
    descriptor_page_fact(text, "rule", answer->rule ? number : "none: the default names");
    descriptor_page_fact(text, "resource", answer->item.resource_id);
    descriptor_page_fact(text, "key", answer->item.key);
    descriptor_page_fact(text, "template",
                         answer->template_ ? answer->template_->identifier_glob : "none");
    server_text_add(text, "</dl>");
    if (answer->item.hashed) {
        server_text_add(text, "<p class=soft>A name is a hash, because it would be too long or not "
                              "valid.</p>");
    }
    descriptor_page_state(text, service, answer);
}

static void descriptor_page_rules(struct text *text, const struct descriptor_answer *answer) {
    server_text_addf(text,
                     "<h2>Rules</h2><p class=soft>%zu in the configuration. The first one "
                     "that matches counts.</p>",
                     answer->rule_count);
    if (answer->rule_count == 0) return;
    server_text_add(text, "<table><thead><tr><th>entries</th><th class=words>domain</th>"
                          "<th class=words>resource</th><th class=words>key</th></tr></thead>"
                          "<tbody>");
    for (size_t i = 0; i < answer->rule_count && i < DESCRIPTOR_RULES_SHOWN; i++) {
        const doorman_descriptor_rule *rule = &answer->rules[i];
        server_text_addf(text, "<tr><td><span class=holder>%zu</span> ", i);
        descriptor_page_rule_text(text, rule);
        server_text_add(text, "</td>");
        server_page_cell_text(text, "domain", rule->domain);
        server_page_cell_text(text, "resource", rule->resource);
        server_page_cell_text(text, "key", rule->key);
        server_text_add(text, "</tr>");
    }
    server_text_add(text, "</tbody></table>");
    if (answer->rule_count > DESCRIPTOR_RULES_SHOWN) {
        server_text_addf(text, "<p class=warn>The list has the first %d rules.</p>",
                         DESCRIPTOR_RULES_SHOWN);
    }
}

static void descriptor_page_unmatched(struct text *text, struct service *service) {
    struct unmatched_row rows[UNMATCHED_MAX];
    uint64_t all = 0;
    const size_t count = server_unmatched_list(service, rows, &all);
    const doorman_time now = doorman_clock();
    server_text_addf(text,
                     "<h2>Descriptors without limits</h2><p class=soft>%" PRIu64
                     " since this process started%s</p>",
                     all, count > 0 ? ". The last ones, by resource:" : ".");
    if (count == 0) return;
    server_text_add(text,
                    "<table><thead><tr><th>resource</th><th class=words>domain</th>"
                    "<th class=words>last key</th><th>count</th><th>ago</th></tr></thead><tbody>");
    for (size_t i = 0; i < count; i++) {
        server_text_add(text, "<tr><td>");
        server_text_add_escaped(text, rows[i].resource, server_escape_html);
        server_text_add(text,
                        rows[i].matched ? " <span class=holder>by a rule</span></td>" : "</td>");
        server_page_cell_text(text, "domain", rows[i].domain);
        server_page_cell_text(text, "last key", rows[i].key);
        server_page_cell(text, "count", (double)rows[i].count);
        server_page_cell_duration(text, "ago", now - rows[i].at);
        server_text_add(text, "</tr>");
    }
    server_text_add(text, "</tbody></table>");
}

/* Reads a query as the form sends it: `entries` has the entries, which are decoded once more.
 *   entries   room for the text of the field */
static void descriptor_page_query(struct descriptor_query *query,
                                  const struct http_request *request, char *entries, size_t room) {
    const bool has_field = server_query_read(request->query, "entries", entries, room);
    char domain[DOORMAN_ID_BYTES_MAX + 1];
    if (!has_field) {
        descriptor_read(query, request->query);
    } else if (server_query_read(request->query, "domain", domain, sizeof domain)) {
        query->domain = query->text;
        query->bytes = strlen(domain) + 1;
        memcpy(query->text, domain, query->bytes);
        descriptor_read(query, entries);
    }
}

static void handle_descriptors(struct service *service, const struct http_request *request,
                               struct http_response *response) {
    struct text *text = &response->text;
    const size_t room = strlen(request->query) + 1;
    char *entries = (char *)calloc(1, room), *decoded = descriptor_room(room);
    struct descriptor_query query = {.text = decoded};
    server_page_start(service, request, response, NULL, "");
    server_text_add(text, "<h2>Descriptors of gateways</h2><p class=soft>A gateway such as Envoy "
                          "describes a request by a domain and by entries. They become the "
                          "resource and the key of a permit.</p>");
    text->failed = text->failed || !entries || !decoded;
    if (!text->failed) {
        struct descriptor_answer answer;
        descriptor_page_query(&query, request, entries, room);
        descriptor_page_form(text, query.domain ? query.domain : "", entries);
        if (query.wrong) {
            server_text_add(text, "<p class=bad>");
            server_text_add_escaped(text, query.wrong_name, server_escape_html);
            server_text_addf(text, ": %s</p>", query.wrong);
        }
        server_lock(&service->config_lock);
        descriptor_answer_make(service, &query, &answer);
        if (query.domain && !query.wrong) descriptor_page_answer(text, service, &answer);
        descriptor_page_rules(text, &answer);
        server_unlock(&service->config_lock);
        descriptor_page_unmatched(text, service);
    }
    server_text_add(text, "<p><a href='/limits'>all limits</a></p>");
    server_page_end(response, false);
    free(decoded);
    free(entries);
}

static const struct http_route descriptors_routes[] = {
    {"/descriptors", .handle = handle_descriptors},
    {"/v1/descriptors", .handle = handle_json_descriptors},
    {.path = NULL}};

const struct server_part server_part_descriptors = {.routes = descriptors_routes};
