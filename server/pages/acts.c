/* doorman_server, part ADMIN: the pages of administration.
 *
 *     /audit?key=KEY&who=NAME   who has done what, when, and why, the newest first
 *     /overrides?key=KEY        other figures of single keys, and when they end
 *
 * E10 Administration has pages that work without JavaScript: the audit, overrides, versions of the
 *     configuration, and a form that gives one key other figures for a time.
 *
 * The store keeps each act and each override as a note: see struct store_note. The thread of the
 * store, or of the shards, makes the rows of the tables from these notes. */
#include "acts.h"

#define ENTRIES_SHOWN 3 /* of an act with many */
#define OVERRIDE_COLUMNS                                                                           \
    "<th>act</th><th>key, limit</th><th>figures</th><th>state</th><th>at the end</th><th>by</th>"  \
    "<th>why</th>"

/* ---- what JSON says, in words --------------------------------------------------------------- */

static const cJSON *act_member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void act_escaped(struct text *text, const char *value) {
    server_text_add_escaped(text, value, server_escape_html);
}

/* Adds a point in time, given in seconds since 1970. */
static void act_time(struct text *text, double seconds) {
    char at[32];
    const time_t whole = (time_t)seconds;
    struct tm parts;
    gmtime_r(&whole, &parts);
    strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S", &parts);
    server_text_add(text, at);
}

/* Adds a list of texts, such as the changes of a configuration. Returns false if the value is not
 * such a list, and then adds nothing. */
static bool act_texts(struct text *text, const cJSON *value) {
    const cJSON *item = NULL;
    if (!cJSON_IsArray(value)) return false;
    cJSON_ArrayForEach(item, value) {
        if (!cJSON_IsString(item)) return false;
    }
    cJSON_ArrayForEach(item, value) {
        if (item != value->child) server_text_add(text, "; ");
        act_escaped(text, item->valuestring);
    }
    return true;
}

/* Adds a value, such as a number or a list of changes. */
static void act_value(struct text *text, const cJSON *value) {
    if (act_texts(text, value)) return;
    const char *plain = cJSON_GetStringValue(value);
    char *printed = plain ? NULL : cJSON_PrintUnformatted(value);
    act_escaped(text, plain ? plain : printed ? printed : "");
    cJSON_free(printed);
}

/* Adds the members of an object, such as "limit 50, window 60". */
static void act_members(struct text *text, const cJSON *object) {
    const cJSON *member = NULL;
    cJSON_ArrayForEach(member, object) {
        if (member != object->child) server_text_add(text, ", ");
        act_escaped(text, member->string);
        server_text_add(text, " ");
        act_value(text, member);
    }
}

/* Adds what an act has found, or has left behind.
 *   state   null; or an override, a plan or a version */
static void act_state(struct text *text, const cJSON *state) {
    const cJSON *set = act_member(state, "set"), *add = act_member(state, "add");
    const cJSON *end = act_member(state, "ends_at");
    if (!cJSON_IsObject(state)) {
        if (state && !cJSON_IsNull(state)) act_value(text, state);
        if (!state || cJSON_IsNull(state)) server_text_add(text, "none");
        return;
    }
    if (set) {
        act_members(text, set);
    } else if (add) {
        server_text_add(text, "adds ");
        act_value(text, add);
    } else if (act_member(state, "plan")) {
        server_text_add(text, "plan ");
        act_escaped(text, server_row_word(state, "plan"));
    } else {
        act_members(text, state);
    }
    if (!cJSON_IsNumber(end)) return;
    server_text_add(text, " until ");
    act_time(text, end->valuedouble);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Adds what a row is about: a key, its resource or glob, and a limit. If the row has a resource,
 * the key links to its page. */
static void act_subject(struct text *text, const cJSON *row) {
    const char *resource = server_row_word(row, "resource"), *key = server_row_word(row, "key");
    if (!resource[0]) resource = server_row_word(row, "resource_id");
    if (resource[0]) {
        server_text_add(text, "<a href=\"/keys?resource=");
        server_text_add_escaped(text, resource, server_escape_query);
        server_text_add(text, "&amp;key=");
        server_text_add_escaped(text, key, server_escape_query);
        server_text_add(text, "\">");
    }
    act_escaped(text, key[0] ? key : act_member(row, "key") ? "(no key)" : "");
    if (resource[0]) server_text_add(text, "</a>");
    server_text_add(text, " <span class=holder>");
    act_escaped(text, resource[0] ? resource : server_row_word(row, "glob"));
    if (server_row_word(row, "limit")[0]) server_text_add(text, " ");
    act_escaped(text, server_row_word(row, "limit"));
    server_text_add(text, "</span>");
}

/* Adds what an act has changed: the value before it and the value after it. */
static void act_change(struct text *text, const cJSON *row) {
    if (act_member(row, "before") || act_member(row, "after")) {
        act_state(text, act_member(row, "before"));
        server_text_add(text, " &rarr; ");
        act_state(text, act_member(row, "after"));
    } else if (act_member(row, "ban")) {
        const double before = cJSON_GetNumberValue(act_member(row, "banned_before"));
        const double after = cJSON_GetNumberValue(act_member(row, "ban"));
        if (before > 0) server_text_addf(text, "banned for %.0f s &rarr; ", before);
        server_text_addf(text, after > 0 ? "banned for %.15g s" : "not banned", after);
    } else if (act_member(row, "used_before")) {
        server_text_add(text, "used: ");
        act_members(text, act_member(row, "used_before"));
        server_text_add(text, " &rarr; fresh");
    }
}

/* Adds a line if an act was refused, if only a part of it is known to be done, or if nobody knows
 * whether it was done. */
static void audit_outcome(struct text *text, const cJSON *row) {
    const cJSON *written = act_member(row, "written");
    if (cJSON_IsFalse(act_member(row, "known"))) {
        server_text_add(text, "<div class=warn>it is not known whether this was done</div>");
    }
    if (act_member(row, "refused")) {
        server_text_add(text, "<div class=bad>nothing was changed: ");
        act_escaped(text, server_row_word(row, "refused"));
        server_text_add(text, "</div>");
    }
    if (cJSON_IsNumber(written)) {
        server_text_addf(text, "<div class=warn>only the first %.0f are known to be done</div>",
                         written->valuedouble);
    }
}

/* Adds what an act is about, and what it has changed. If the act has several entries, one cell has
 * the subjects and the changes. */
static void audit_cells(struct text *text, const cJSON *row) {
    const cJSON *entry = NULL, *entries = act_member(row, "entries");
    const int count = cJSON_GetArraySize(entries);
    const cJSON *one = count == 1 ? entries->child : !entries ? row : NULL;
    int shown = 0;
    server_text_add(text, "<td data-name='about'>");
    cJSON_ArrayForEach(entry, entries) {
        if (one || shown++ == ENTRIES_SHOWN) break;
        server_text_add(text, "<div>");
        act_subject(text, entry);
        server_text_add(text, " ");
        act_change(text, entry);
        server_text_add(text, "</div>");
    }
    if (count > ENTRIES_SHOWN) {
        server_text_addf(text, "<div>and %d more</div>", count - ENTRIES_SHOWN);
    }
    if (one) act_subject(text, one);
    server_text_add(text, "</td><td data-name='change' class=note>");
    if (act_member(row, "undoes")) {
        server_text_addf(text, "<div>undoes %.0f</div>",
                         cJSON_GetNumberValue(act_member(row, "undoes")));
    }
    if (one) act_change(text, one);
    audit_outcome(text, row);
    server_text_add(text, "</td>");
}

static bool audit_row_add(struct note_page *page, const struct store_note *note) {
    struct text *text = &page->text;
    cJSON *row = server_audit_find(page, note);
    if (!row) return false;
    server_text_addf(text, "<tr><td>%.0f</td>", cJSON_GetNumberValue(act_member(row, "id")));
    server_page_cell_text(text, "at", server_row_word(row, "at"));
    server_page_cell_text(text, "by", server_row_word(row, "token"));
    server_page_cell_text(text, "what", server_row_word(row, "what"));
    audit_cells(text, row);
    server_page_cell_text(text, "why", server_row_word(row, "reason"));
    server_text_add(text, "</tr>");
    cJSON_Delete(row);
    return true;
}

/* Adds whether an override is in force, from when on, and what it hides.
 *   row   of the list of overrides */
static void override_state(struct text *text, const cJSON *row) {
    const cJSON *hides = act_member(row, "hides"), *hidden = act_member(hides, "override");
    const cJSON *start = act_member(act_member(row, "override"), "starts_at");
    const bool is_idle = cJSON_IsTrue(act_member(row, "idle"));
    const bool is_ahead = !is_idle && !cJSON_IsTrue(act_member(row, "in_force"));
    server_text_add(text, is_idle ? "idle" : is_ahead ? "ahead" : "in force");
    if (is_ahead && cJSON_IsNumber(start)) {
        server_text_add(text, ", from ");
        act_time(text, start->valuedouble);
    }
    if (cJSON_IsNumber(hidden)) {
        server_text_addf(text, "<div class=soft>goes before act %.0f</div>", hidden->valuedouble);
    }
    if (act_member(hides, "plan")) {
        server_text_add(text, "<div class=soft>goes before the plan ");
        act_escaped(text, server_row_word(hides, "plan"));
        server_text_add(text, "</div>");
    }
}

static bool override_row_add(struct note_page *page, const struct store_note *note) {
    struct text *text = &page->text;
    cJSON *row = server_override_find(page, note);
    if (!row) return false;
    const cJSON *override = act_member(row, "override");
    server_text_addf(text, "<tr><td>%.0f</td><td data-name='about'>",
                     cJSON_GetNumberValue(act_member(row, "id")));
    act_subject(text, override);
    server_text_add(text, "</td><td data-name='figures'>");
    act_state(text, override);
    server_text_add(text, "</td><td data-name='state'>");
    override_state(text, row);
    server_text_add(text, "</td>");
    server_page_cell_text(text, "at the end", server_row_word(row, "then"));
    server_page_cell_text(text, "by", server_row_word(row, "token"));
    server_page_cell_text(text, "why", server_row_word(override, "reason"));
    server_text_add(text, "</tr>");
    cJSON_Delete(row);
    return true;
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* A page with one list. */
struct act_page {
    const char *path, *title, *about;
    struct note_list list;
    const char *columns; /* the cells of the head of the table */
};

static void act_next(struct note_page *page, const char *next) {
    struct text *text = &page->text;
    server_text_add(text, "<tr><td></td><td colspan=6><a href=\"?");
    if (page->has_key) {
        server_text_add(text, "key=");
        server_text_add_escaped(text, page->key, server_escape_query);
        server_text_add(text, "&amp;");
    }
    if (page->has_who) {
        server_text_add(text, "who=");
        server_text_add_escaped(text, page->who, server_escape_query);
        server_text_add(text, "&amp;");
    }
    server_text_addf(text, "after=%s\">older &rarr;</a></td></tr>", next);
}

static void act_filter(struct text *text, const struct http_request *request, const char *name) {
    char value[DOORMAN_ID_BYTES_MAX + 1] = "";
    server_query_read(request->query, name, value, sizeof value);
    server_text_addf(text, "<input name=%s aria-label=%s placeholder=%s value=\"", name, name,
                     name);
    act_escaped(text, value);
    server_text_add(text, "\"> ");
}

/* Adds the message of the error that `answer` has as JSON. */
static void act_error(struct text *text, const struct http_response *answer) {
    cJSON *json = answer->text.buffer.text
                      ? cJSON_ParseWithLength(answer->text.buffer.text, answer->text.buffer.bytes)
                      : NULL;
    const char *message = server_row_word(act_member(json, "error"), "message");
    server_text_add(text, "<p class=bad>");
    act_escaped(text, message[0] ? message : "out of memory");
    server_text_add(text, "</p>");
    cJSON_Delete(json);
}

/* Adds a list as a table. If it is empty or cannot be read, adds a sentence instead. */
static void act_table(struct text *text, const char *columns, const struct http_response *answer) {
    if (answer->code != 200 || answer->text.failed) {
        act_error(text, answer);
    } else if (answer->text.buffer.bytes == 0) {
        server_text_add(text, "<p class=soft>There is none.</p>");
    } else {
        server_text_addf(text, "<table class=versions><thead><tr>%s</tr></thead><tbody>", columns);
        server_text_add_bytes(text, answer->text.buffer.text, answer->text.buffer.bytes);
        server_text_add(text, "</tbody></table>");
    }
}

static void act_page_show(const struct act_page *page, struct service *service,
                          const struct http_request *request, struct http_response *response) {
    struct http_response answer = server_http_response_init(response->abandoned);
    struct text *text = &response->text;
    server_page_start(service, request, response, NULL, "");
    server_text_addf(text, "<h2>%s</h2><p class=soft>%s</p>", page->title, page->about);
    server_text_addf(text, "<form action='%s' class=ask role=search>", page->path);
    act_filter(text, request, "key");
    if (strcmp(page->path, "/audit") == 0) act_filter(text, request, "who");
    server_text_add(text, "<button>show</button></form>");
    if (server_admin_serves(service, request, &answer)) {
        server_admin_list(service, request, &answer, &page->list);
    }
    act_table(text, page->columns, &answer);
    doorman_buffer_uninit(&answer.text.buffer);
    doorman_buffer_uninit(&answer.lines.buffer);
    server_text_add(text, "<p><a href='/limits'>all limits</a> &middot; <a href='/overrides'>"
                          "overrides</a> &middot; <a href='/audit'>audit</a></p>");
    server_page_end(response, false);
}

static void handle_audit_page(struct service *service, const struct http_request *request,
                              struct http_response *response) {
    static const char *const names[] = {"key", "who", "after", "limit", NULL};
    const struct act_page page = {
        .path = "/audit",
        .title = "Audit",
        .about = "Acts of administration, the newest first. doormanctl undo takes one back.",
        .list = {.kind = AUDIT_NOTE, .names = names, .add = audit_row_add, .add_next = act_next},
        .columns = "<th>act</th><th>at (UTC)</th><th>by</th><th>what</th><th>key, limit</th>"
                   "<th>before &rarr; after</th><th>why</th>"};
    act_page_show(&page, service, request, response);
}

static void handle_overrides_page(struct service *service, const struct http_request *request,
                                  struct http_response *response) {
    static const char *const names[] = {"key", "after", "limit", NULL};
    const struct act_page page = {
        .path = "/overrides",
        .title = "Overrides",
        .about = "Other figures of single keys that have not ended, the newest first. The page of "
                 "a key has a form that sets one. doormanctl override sets and ends them.",
        .list = {.kind = OVERRIDE_NOTE,
                 .names = names,
                 .add = override_row_add,
                 .add_next = act_next},
        .columns = OVERRIDE_COLUMNS};
    act_page_show(&page, service, request, response);
}

/* Adds a row with a link to all overrides of a key. The table has only the newest ones. */
static void act_more(struct note_page *page, const char *next) {
    (void)next;
    server_text_add(&page->text, "<tr><td></td><td colspan=6><a href=\"/overrides?key=");
    server_text_add_escaped(&page->text, page->key, server_escape_query);
    server_text_add(&page->text, "\">all overrides of this key</a></td></tr>");
}

void server_page_overrides(struct text *text, struct service *service, const char *resource,
                           const char *key) {
    static const char *const names[] = {"resource", "key", NULL};
    const struct note_list list = {
        .kind = OVERRIDE_NOTE, .names = names, .add = override_row_add, .add_next = act_more};
    struct http_response answer = server_http_response_init(NULL);
    struct text query = {.failed = false};
    server_text_add(&query, "resource=");
    server_text_add_escaped(&query, resource, server_escape_query);
    server_text_add(&query, "&key=");
    server_text_add_escaped(&query, key, server_escape_query);
    answer.text.failed = query.failed;
    if (!query.failed) {
        const struct http_request request = {.query = query.buffer.text};
        server_admin_list(service, &request, &answer, &list);
    }
    act_table(text, OVERRIDE_COLUMNS, &answer);
    doorman_buffer_uninit(&query.buffer);
    doorman_buffer_uninit(&answer.text.buffer);
}

static const struct http_route acts_routes[] = {
    {"/audit", .administers = true, .reads = ROLE_SUPPORT, .handle = handle_audit_page},
    {"/overrides", .administers = true, .handle = handle_overrides_page},
    {.path = NULL}};

const struct server_part server_part_acts = {.routes = acts_routes};
