/* doorman_server, part ADMIN: the page of the versions of the configuration (E3, E10).
 *
 *     /versions             the versions, the newest first, and what each has changed
 *     /versions?after=N     the next part of the list
 *     /versions?version=N   how one version differs from the one before it, with all figures */
#include "../admin/admin.h"
#include "pages.h"

#define VALUE_ABSENT "default"

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static uint64_t member_number(const cJSON *object, const char *name) {
    const cJSON *number = member(object, name);
    return cJSON_IsNumber(number) && number->valuedouble > 0 ? (uint64_t)number->valuedouble : 0;
}

/* ---- the list ------------------------------------------------------------------------------- */

static void versions_row(struct text *text, const cJSON *row, uint64_t in_force) {
    const uint64_t number = member_number(row, "version");
    const char *token = server_row_word(row, "token");
    const cJSON *item = NULL;
    server_text_addf(text, "<tr><td><a href='/versions?version=%" PRIu64 "'>%" PRIu64 "</a>%s</td>",
                     number, number,
                     number == in_force ? "&nbsp;<b class=good>in&nbsp;force</b>" : "");
    server_page_cell_text(text, "at", server_row_word(row, "at"));
    server_page_cell_text(text, "by", token[0] ? token : "another program");
    server_page_cell_text(text, "why", server_row_word(row, "reason"));
    server_text_add(text, "<td data-name='changes' class=note>");
    if (member_number(row, "of_version")) {
        server_text_addf(text, "<div>brings version %" PRIu64 " back</div>",
                         member_number(row, "of_version"));
    }
    cJSON_ArrayForEach(item, member(row, "changes")) {
        server_text_add(text, "<div>");
        server_text_add_escaped(text, cJSON_IsString(item) ? item->valuestring : "",
                                server_escape_html);
        server_text_add(text, "</div>");
    }
    server_text_add(text, "</td></tr>");
}

/* Adds the rows of a list, which are lines of JSON, and a link to the next part. */
static void versions_rows(struct text *text, char *lines, uint64_t in_force) {
    char *at = NULL;
    size_t count = 0;
    char next[24] = "";
    server_text_add(text, "<table class=versions><thead><tr><th>version</th><th>at (UTC)</th>"
                          "<th>by</th><th>why</th><th>changes</th></tr></thead><tbody>");
    for (char *line = strtok_r(lines, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        cJSON *row = cJSON_Parse(line);
        if (member(row, "next")) {
            snprintf(next, sizeof next, "%.23s", server_row_word(row, "next"));
        } else if (row) {
            versions_row(text, row, in_force);
            count++;
        }
        cJSON_Delete(row);
    }
    server_text_add(text, "</tbody></table>");
    if (count == 0) server_text_add(text, "<p class=soft>There is no version yet.</p>");
    if (!next[0]) return;
    server_text_add(text, "<p><a href='/versions?after=");
    server_text_add_escaped(text, next, server_escape_query);
    server_text_add(text, "'>older versions &rarr;</a></p>");
}

/* Says how the configuration is changed, or that it is a file or a copy. */
static void versions_about(struct text *text, const struct settings *settings, bool is_cached) {
    if (is_cached) {
        server_text_add(text, "<p class=bad>The configuration in force is that of --config-cache, "
                              "because its place could not be reached at the start.</p>");
    }
    if (settings->config_in_store || settings->config_key) {
        server_text_add(text, "<p class=soft>doormanctl config put and config rollback change the "
                              "configuration.</p>");
    } else {
        server_text_add(text, "<p class=soft>The configuration of this server is a file, so it "
                              "has no versions here.</p>");
    }
}

/* Shows the error in a response as a sentence. */
static void versions_error(struct text *text, const struct http_response *answer) {
    cJSON *json = answer->text.buffer.text
                      ? cJSON_ParseWithLength(answer->text.buffer.text, answer->text.buffer.bytes)
                      : NULL;
    const char *message = server_row_word(member(json, "error"), "message");
    server_text_add(text, "<p class=bad>");
    server_text_add_escaped(text, message[0] ? message : "out of memory", server_escape_html);
    server_text_add(text, "</p>");
    cJSON_Delete(json);
}

static void versions_list(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct http_response answer = server_http_response_init(response->abandoned);
    struct text *text = &response->text;
    struct config_load load = server_last_load(service);
    server_text_add(text, "<h2>Versions of the configuration</h2>");
    versions_about(text, service->settings, load.is_cached);
    if (server_admin_serves(service, request, &answer)) {
        server_admin_list(service, request, &answer, &server_version_list);
    }
    server_text_add_bytes(&answer.text, "", 1);
    if (answer.code == 200 && !answer.text.failed) {
        versions_rows(text, answer.text.buffer.text, load.version);
    } else {
        versions_error(text, &answer);
    }
    doorman_buffer_uninit(&answer.text.buffer);
    doorman_buffer_uninit(&answer.lines.buffer);
}

/* ---- one version ---------------------------------------------------------------------------- */

static void version_value(struct text *text, const char *name, const cJSON *value) {
    char *printed = cJSON_IsNull(value) ? NULL : cJSON_PrintUnformatted(value);
    server_page_cell_text(text, name, printed ? printed : VALUE_ABSENT);
    cJSON_free(printed);
}

/* Adds a row for each field of a template or a limit.
 *   place   the template, and the limit */
static void version_fields(struct text *text, const cJSON *object, const char *const place[2]) {
    const cJSON *field = NULL;
    cJSON_ArrayForEach(field, member(object, "fields")) {
        server_text_add(text, "<tr>");
        server_page_cell_text(text, "template", place[0]);
        server_page_cell_text(text, "limit", place[1]);
        server_page_cell_text(text, "field", server_row_word(field, "field"));
        version_value(text, "before", member(field, "last"));
        version_value(text, "after", member(field, "now"));
        server_text_add(text, "</tr>");
    }
}

/* Adds a row if a template or a limit was added or removed. */
static void version_change(struct text *text, const cJSON *object, const char *const place[2]) {
    const char *change = server_row_word(object, "change");
    if (strcmp(change, "changed") == 0) return;
    server_text_add(text, "<tr>");
    server_page_cell_text(text, "template", place[0]);
    server_page_cell_text(text, "limit", place[1]);
    server_text_addf(text, "<td data-name='field'><b>%s</b></td><td></td><td></td></tr>",
                     strcmp(change, "added") == 0 ? "added" : "removed");
}

static void version_difference(struct text *text, const cJSON *difference) {
    const cJSON *change = NULL, *limit = NULL;
    const char *const whole[2] = {"", ""};
    server_text_add(text, "<table class=versions><thead><tr><th>template</th><th>limit</th>"
                          "<th>field</th><th>before</th><th>after</th></tr></thead><tbody>");
    version_fields(text, difference, whole);
    cJSON_ArrayForEach(change, member(difference, "changes")) {
        const char *place[2] = {server_row_word(change, "template"), ""};
        version_change(text, change, place);
        version_fields(text, change, place);
        cJSON_ArrayForEach(limit, member(change, "limits")) {
            place[1] = server_row_word(limit, "limit");
            version_change(text, limit, place);
            version_fields(text, limit, place);
        }
    }
    server_text_add(text, "</tbody></table>");
    if (cJSON_IsTrue(member(difference, "is_reordered"))) {
        server_text_add(text, "<p>The templates have another order.</p>");
    }
}

static void version_show(struct text *text, const cJSON *now, const cJSON *last) {
    const char *token = server_row_word(now, "token");
    cJSON *difference = server_version_differ(now, last);
    server_text_addf(text, "<h2>Version %" PRIu64 "</h2><p>", member_number(now, "version"));
    server_text_add_escaped(text, server_row_word(now, "at"), server_escape_html);
    server_text_add(text, " &middot; by ");
    server_text_add_escaped(text, token[0] ? token : "another program", server_escape_html);
    server_text_add(text, " &middot; ");
    server_text_add_escaped(text, server_row_word(now, "reason"), server_escape_html);
    server_text_add(text, "</p>");
    if (last) {
        server_text_addf(text, "<p class=soft>The difference from version %" PRIu64 ":</p>",
                         member_number(last, "version"));
    }
    version_difference(text, difference);
    server_text_addf(text,
                     "<p><a href='/v1/config/versions/%" PRIu64 "'>as JSON</a> &middot; "
                     "<a href='/versions'>all versions</a></p>",
                     member_number(now, "version"));
    cJSON_Delete(difference);
}

static void version_page(struct service *service, const struct http_request *request,
                         struct http_response *response, uint64_t number) {
    struct http_response answer = server_http_response_init(response->abandoned);
    cJSON *now = NULL, *last = NULL;
    if (server_admin_serves(service, request, &answer) &&
        server_version_find(service, number, &now, &last, &answer)) {
        version_show(&response->text, now, last);
    } else {
        response->code = answer.code == 404 ? 404 : 200;
        versions_error(&response->text, &answer);
        server_text_add(&response->text, "<p><a href='/versions'>all versions</a></p>");
    }
    cJSON_Delete(now);
    cJSON_Delete(last);
    doorman_buffer_uninit(&answer.text.buffer);
    doorman_buffer_uninit(&answer.lines.buffer);
}

static void handle_page(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    char number[24] = "";
    const char *end = "";
    bool has_number = server_query_read(request->query, "version", number, sizeof number);
    uint64_t version = server_number_read(number, 10, &end);
    server_page_start(service, request, response, NULL, "");
    if (has_number) {
        version_page(service, request, response, *end ? 0 : version);
    } else {
        versions_list(service, request, response);
    }
    server_page_end(response, false);
}

static const struct http_route versions_page_routes[] = {{"/versions", .handle = handle_page},
                                                         {.path = NULL}};

const struct server_part server_part_versions_page = {.routes = versions_page_routes};
