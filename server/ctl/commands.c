/* doormanctl: the commands. Each one makes requests and shows what the server answers. */
#include "ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_ROWS "5000" /* the most leases that the server lists in one answer */
#define TOP_ROWS 20

static cJSON *list_of(const struct ctl_reply *reply, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(reply->json, name);
}

/* Makes a request, and shows the list that the answer has under the name `request->expects`. */
static enum ctl_exit list_show(struct ctl *ctl, const struct ctl_request *request,
                               const struct ctl_column *columns) {
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    enum ctl_exit code = ctl_call(ctl, request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        ctl_table_print(&table, list_of(&reply, request->expects), ctl->has_color);
    }
    ctl_reply_free(&reply);
    return code;
}

/* ---- status --------------------------------------------------------------------------------- */

/* Says what is wrong, if something is, and for how long. */
static void trouble_print(const cJSON *object, const char *name, const char *what) {
    const cJSON *trouble = cJSON_GetObjectItemCaseSensitive(object, name);
    char time[CTL_NUMBER_BYTES];
    if (!trouble) return;
    ctl_say("%-8s %s, for %s: %s", "problem", what, ctl_seconds(time, ctl_number(trouble, "for")),
            ctl_text(trouble, "reason"));
}

/* Says when and why the mastership was lost, unless this process is master again. */
static void loss_print(const cJSON *status) {
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(status, "last_loss");
    char time[CTL_NUMBER_BYTES];
    if (!loss || ctl_is_true(status, "is_master")) return;
    ctl_say("%-8s the mastership was lost %s ago: %s", "problem",
            ctl_seconds(time, ctl_number(loss, "ago")), ctl_text(loss, "reason"));
}

/* Says what could not be reloaded. */
static void failures_print(const cJSON *status) {
    const cJSON *failure = NULL;
    cJSON_ArrayForEach(failure, cJSON_GetObjectItemCaseSensitive(status, "load_failures")) {
        ctl_say("%-8s the last %s refused, or cannot be read; what was loaded before stays in "
                "force: %s",
                "problem",
                strcmp(ctl_text(failure, "what"), "tokens") == 0        ? "tokens were"
                : strcmp(ctl_text(failure, "what"), "certificate") == 0 ? "certificate was"
                                                                        : "configuration was",
                ctl_text(failure, "reason"));
    }
}

static void process_print(const cJSON *status) {
    const cJSON *parent = cJSON_GetObjectItemCaseSensitive(status, "parent");
    const cJSON *state = cJSON_GetObjectItemCaseSensitive(status, "state");
    const cJSON *drain = cJSON_GetObjectItemCaseSensitive(status, "drain");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(status, "config");
    const char *master = ctl_text(status, "master_address");
    char time[CTL_NUMBER_BYTES];
    if (ctl_is_true(status, "is_master")) master = "this process";
    ctl_say("%-8s %s, version %s", "node", ctl_text(status, "node"), ctl_text(status, "version"));
    ctl_say("%-8s %s", "process", ctl_text(status, "id"));
    ctl_say("%-8s %s", "master", master[0] ? master : "none");
    if (parent) ctl_say("%-8s %s", "parent", ctl_text(parent, "address"));
    if (drain) {
        ctl_say("%-8s %s by %s for %s: %s", "drain", ctl_text(drain, "state"),
                ctl_text(drain, "by"), ctl_seconds(time, ctl_number(drain, "for")),
                ctl_text(drain, ctl_text(drain, "failure")[0] ? "failure" : "reason"));
    }
    if (state) ctl_say("%-8s %s old", "state", ctl_seconds(time, ctl_number(state, "age")));
    if (ctl_is_true(config, "is_cached")) {
        ctl_say("%-8s the configuration is a copy of version %.0f, from --config-cache", "problem",
                ctl_number(config, "version"));
    }
    failures_print(status);
    trouble_print(status, "config_failure", "the configuration in the store cannot be read");
    trouble_print(status, "no_master", "there is no master");
    trouble_print(status, "etcd_failure", "etcd does not answer");
    loss_print(status);
    trouble_print(parent, "failure", "the parent does not answer");
    trouble_print(state, "failure", "the store cannot be written");
    trouble_print(status, "descriptor_leak", "file descriptors leak");
    putchar('\n');
}

static enum ctl_exit leases_show(struct ctl *ctl, const char *resource) {
    static const struct ctl_column columns[] = {{"HOLDER", "holder_id", CTL_TEXT},
                                                {"HAS", "has", CTL_AMOUNT},
                                                {"COMMITTED", "committed", CTL_AMOUNT},
                                                {"WANTS", "wants", CTL_AMOUNT},
                                                {"PRIORITY", "priority", CTL_AMOUNT},
                                                {"ENDS IN", "expires_in", CTL_SECONDS},
                                                {"REASON", "reason", CTL_TEXT},
                                                {"MARKS", "late shared unconfirmed", CTL_MARKS},
                                                {.header = NULL}};
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    char after[CTL_POSITION_BYTES] = "";
    enum ctl_exit code = CTL_DONE;
    do {
        const struct ctl_request request = {.path = "/v1/status",
                                            .query = {{"resource", resource},
                                                      {"limit", PAGE_ROWS},
                                                      {"after", after[0] ? after : NULL}},
                                            .expects = "leases"};
        code = ctl_call(ctl, &request, &reply);
        if (code == CTL_DONE && !ctl->json) {
            ctl_table_print(&table, list_of(&reply, "leases"), ctl->has_color);
        }
        if (code == CTL_DONE && !ctl_position_move(after, ctl_text(reply.json, "next"))) {
            code = ctl_answer_is_wrong(ctl);
        }
        ctl_reply_free(&reply);
    } while (code == CTL_DONE && after[0] && !ferror(stdout));
    return code;
}

static enum ctl_exit run_status(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"RESOURCE", "resource_id", CTL_TEXT},
                                                {"CAPACITY", "capacity", CTL_AMOUNT},
                                                {"HAS", "has", CTL_AMOUNT},
                                                {"COMMITTED", "committed", CTL_AMOUNT},
                                                {"WANTS", "wants", CTL_AMOUNT},
                                                {"OVERSHOOT", "overshoot", CTL_AMOUNT},
                                                {"HOLDERS", "holders", CTL_AMOUNT},
                                                {"ALGORITHM", "algorithm", CTL_TEXT},
                                                {"MARKS", "learning", CTL_MARKS},
                                                {.header = NULL}};
    struct ctl_table table = {.columns = columns, .what = "resources"};
    struct ctl_reply reply;
    if (words[0]) return leases_show(ctl, words[0]);
    const struct ctl_request request = {.path = "/v1/status", .expects = "resources", .here = true};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        process_print(reply.json);
        ctl_table_print(&table, list_of(&reply, "resources"), ctl->has_color);
    }
    ctl_reply_free(&reply);
    return code;
}

/* Makes one check of health, and fills in its row.
 *   good   how the text of a good answer begins */
static enum ctl_exit check_one(struct ctl *ctl, const struct ctl_request *request, const char *good,
                               cJSON *row) {
    struct ctl_reply reply;
    enum ctl_exit code = ctl_send(ctl, request, &reply);
    bool is_good = reply.status == 200 && strncmp(reply.text, good, strlen(good)) == 0;
    if (code == CTL_DONE && !is_good && reply.status != 503) code = ctl_answer_is_wrong(ctl);
    if (code == CTL_DONE && !is_good) code = CTL_REFUSED;
    reply.text[strcspn(reply.text, "\r\n")] = 0;
    cJSON_AddStringToObject(row, "answer", reply.text);
    cJSON_AddBoolToObject(row, "failed", !is_good);
    ctl_reply_free(&reply);
    return code;
}

/* Checks the health of a process. A process that is not the master passes too. */
static enum ctl_exit run_check(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"CHECK", "check", CTL_TEXT},
                                                {"ANSWER", "answer", CTL_TEXT},
                                                {"MARKS", "failed", CTL_MARKS},
                                                {.header = NULL}};
    static const struct ctl_request requests[] = {
        {.path = "/healthz"}, {.path = "/readyz"}, {.path = "/readyz", .query = {{"master", "1"}}}};
    static const char *const names[] = {"healthy", "ready", "master"};
    static const char *const good[] = {"ok", "ready", "ready"};
    struct ctl_table table = {.columns = columns};
    cJSON *rows = cJSON_CreateArray();
    enum ctl_exit worst = CTL_DONE;
    (void)words;
    for (int i = 0; i < 3 && worst <= CTL_REFUSED; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "check", names[i]);
        cJSON_AddItemToArray(rows, row);
        enum ctl_exit code = check_one(ctl, &requests[i], good[i], row);
        if (code > worst && (i < 2 || code > CTL_REFUSED)) worst = code;
    }
    char *text = worst <= CTL_REFUSED && ctl->json ? cJSON_PrintUnformatted(rows) : NULL;
    if (text) puts(text);
    if (worst <= CTL_REFUSED && !ctl->json) ctl_table_print(&table, rows, ctl->has_color);
    cJSON_free(text);
    cJSON_Delete(rows);
    return worst;
}

/* ---- limits --------------------------------------------------------------------------------- */

static enum ctl_exit run_limits(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"TEMPLATE", "template", CTL_TEXT},
                                                {"LIMIT", "limit", CTL_TEXT},
                                                {"KEYS", "keys", CTL_AMOUNT},
                                                {"GRANTED", "granted", CTL_AMOUNT},
                                                {"REFUSED", "refused", CTL_SUM},
                                                {"BANS", "bans", CTL_AMOUNT},
                                                {"WAITING", "waiting", CTL_AMOUNT},
                                                {"DEFINITION", "definition", CTL_TEXT},
                                                {.header = NULL}};
    (void)words;
    return list_show(ctl, &(struct ctl_request){.path = "/v1/limits", .expects = "limits"},
                     columns);
}

/* Moves the keys of a limit to the list of the keys of all limits. */
static void keys_take(cJSON *all, cJSON *limit, const char *name) {
    cJSON *keys = cJSON_GetObjectItemCaseSensitive(limit, name);
    for (cJSON *key; (key = cJSON_DetachItemFromArray(keys, 0)) != NULL;) {
        cJSON_AddStringToObject(key, "template", ctl_text(limit, "template"));
        cJSON_AddStringToObject(key, "limit", ctl_text(limit, "limit"));
        cJSON_AddItemToArray(all, key);
    }
}

/* Shows the most frequent keys of a list, and removes them from the list. */
static void keys_show(const struct ctl *ctl, cJSON *all, const char *header) {
    const struct ctl_column columns[] = {{header, "count", CTL_AMOUNT},
                                         {"UNITS", "units", CTL_AMOUNT},
                                         {"KEY", "key", CTL_TEXT},
                                         {"RESOURCE", "resource_id", CTL_TEXT},
                                         {"TEMPLATE", "template", CTL_TEXT},
                                         {"LIMIT", "limit", CTL_TEXT},
                                         {.header = NULL}};
    struct ctl_table table = {.columns = columns, .what = header};
    cJSON *rows = cJSON_CreateArray();
    for (int i = 0; i < TOP_ROWS && all->child; i++) {
        cJSON *key = NULL, *first = all->child;
        cJSON_ArrayForEach(key, all) {
            if (ctl_number(key, "count") > ctl_number(first, "count")) first = key;
        }
        cJSON_AddItemToArray(rows, cJSON_DetachItemViaPointer(all, first));
    }
    if (!ctl->json) ctl_table_print(&table, rows, ctl->has_color);
    cJSON_Delete(rows);
}

/* Asks for the keys of each limit, because the list of all limits has no keys. */
static enum ctl_exit run_top(struct ctl *ctl, char *const words[]) {
    cJSON *refused = cJSON_CreateArray(), *granted = cJSON_CreateArray();
    const cJSON *limit = NULL;
    struct ctl_reply list, reply;
    bool found = false, json = ctl->json;
    ctl->json = false; /* the list is no part of the output */
    enum ctl_exit code =
        ctl_call(ctl, &(struct ctl_request){.path = "/v1/limits", .expects = "limits"}, &list);
    ctl->json = json;
    cJSON_ArrayForEach(limit, list_of(&list, "limits")) {
        const char *template = ctl_text(limit, "template"), *name = ctl_text(limit, "limit");
        bool is_wanted = !words[0] || (strcmp(words[0], template) == 0 &&
                                       (!words[1] || strcmp(words[1], name) == 0));
        if (!is_wanted || code != CTL_DONE) continue;
        const struct ctl_request request = {.path = "/v1/limits",
                                            .query = {{"template", template}, {"limit", name}},
                                            .expects = "limits"};
        code = ctl_call(ctl, &request, &reply);
        keys_take(refused, cJSON_GetArrayItem(list_of(&reply, "limits"), 0), "most_refused");
        keys_take(granted, cJSON_GetArrayItem(list_of(&reply, "limits"), 0), "most_granted");
        ctl_reply_free(&reply);
        found = true;
    }
    if (code == CTL_DONE && words[0] && !found) {
        code = ctl_fail(CTL_REFUSED, "there is no such limit; `doormanctl limits` lists them");
    } else if (code == CTL_DONE) {
        keys_show(ctl, refused, "REFUSED");
        if (!ctl->json) putchar('\n');
        keys_show(ctl, granted, "GRANTED");
    }
    cJSON_Delete(refused);
    cJSON_Delete(granted);
    ctl_reply_free(&list);
    return code;
}

/* ---- one key -------------------------------------------------------------------------------- */

static cJSON *entry_make(char *const words[]) {
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "resource_id", words[0]);
    cJSON_AddStringToObject(entry, "key", words[1]);
    return entry;
}

/* Sends a message with one entry, which it destroys.
 *   returns   the entry of the answer, in `reply`; NULL: there is none, and `code` says why */
static const cJSON *entry_send(struct ctl *ctl, const char *path, cJSON *entry,
                               struct ctl_reply *reply, enum ctl_exit *code) {
    cJSON *body = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(body, "entry"), entry);
    const struct ctl_request request = {.path = path,
                                        .query = {{"reason", ctl->reason}},
                                        .body = body,
                                        .expects = "entry",
                                        .forwards = strcmp(path, "/v1/inspect") == 0};
    *code = ctl_call(ctl, &request, reply);
    cJSON_Delete(body);
    return *code == CTL_DONE ? cJSON_GetArrayItem(list_of(reply, "entry"), 0) : NULL;
}

static enum ctl_exit run_key(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"LIMIT", "name", CTL_TEXT},
                                                {"SIZE", "limit", CTL_AMOUNT},
                                                {"USED", "used", CTL_AMOUNT},
                                                {"LEFT", "remaining", CTL_AMOUNT},
                                                {"FRESH IN", "reset_after", CTL_SECONDS},
                                                {"REFUSALS", "refusals", CTL_AMOUNT},
                                                {"MARKS", "shadow", CTL_MARKS},
                                                {.header = NULL}};
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    enum ctl_exit code = CTL_DONE;
    char time[CTL_NUMBER_BYTES];
    const cJSON *entry = entry_send(ctl, "/v1/inspect", entry_make(words), &reply, &code);
    if (entry && !ctl->json) {
        if (strcmp(ctl_text(entry, "reason"), "BANNED") == 0) {
            ctl_say("banned for %s more", ctl_seconds(time, ctl_number(entry, "retry_after")));
        }
        ctl_table_print(&table, cJSON_GetObjectItemCaseSensitive(entry, "limits"), ctl->has_color);
    }
    ctl_reply_free(&reply);
    return code;
}

static enum ctl_exit run_reset(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    enum ctl_exit code = CTL_DONE;
    cJSON *entry = entry_make(words);
    if (words[2]) cJSON_AddStringToObject(entry, "limit", words[2]);
    const cJSON *answer = entry_send(ctl, "/v1/reset", entry, &reply, &code);
    double count = ctl_number(answer, "count");
    if (answer && !ctl->json && count > 0) ctl_say("%g reset", count);
    if (answer && !ctl->json && count <= 0) {
        ctl_say("nothing to reset: the key has counted nothing. Holds stay until they end.");
    }
    const double held = ctl_number(answer, "held");
    if (answer && !ctl->json && held > 0) {
        ctl_say("%g units stay held; `doormanctl holds end` ends a hold", held);
    }
    ctl_reply_free(&reply);
    return code;
}

static enum ctl_exit run_ban(struct ctl *ctl, char *const words[]) {
    char time[CTL_NUMBER_BYTES];
    struct ctl_reply reply;
    enum ctl_exit code = CTL_DONE;
    double seconds = ctl_duration_read(words[2]);
    if (seconds < 0) {
        return ctl_fail(CTL_USAGE,
                        "%s: must be a time, for example 90s, 15m, 12h or 1d; 0 ends a ban",
                        words[2]);
    }
    cJSON *entry = entry_make(words);
    cJSON_AddNumberToObject(entry, "ban", seconds);
    const cJSON *answer = entry_send(ctl, "/v1/reset", entry, &reply, &code);
    if (answer && seconds > 0 && !(ctl_number(answer, "count") > 0)) {
        code =
            ctl_fail(CTL_REFUSED, "the key is not banned: with --shards, ask a master of the node "
                                  "that decides for it");
    } else if (answer && !ctl->json && seconds > 0) {
        ctl_say("banned for %s", ctl_seconds(time, seconds));
    } else if (answer && !ctl->json) {
        ctl_say("%s", ctl_number(answer, "count") > 0 ? "the ban has ended" : "there was no ban");
    }
    ctl_reply_free(&reply);
    return code;
}

/* ---- holds ---------------------------------------------------------------------------------- */

/* Makes the id of each hold a text, so that the table shows all of its digits. */
static void holds_name(const cJSON *rows) {
    for (cJSON *row = rows ? rows->child : NULL; row; row = row->next) {
        char id[CTL_NUMBER_BYTES];
        if (!cJSON_HasObjectItem(row, "id")) continue; /* a transfer has none */
        snprintf(id, sizeof id, "%.0f", ctl_number(row, "id"));
        cJSON_DeleteItemFromObjectCaseSensitive(row, "id");
        cJSON_AddStringToObject(row, "id", id);
    }
}

static enum ctl_exit run_holds(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"ID", "id", CTL_TEXT},
                                                {"KEY", "key", CTL_TEXT},
                                                {"RESOURCE", "resource_id", CTL_TEXT},
                                                {"HOLDER", "holder", CTL_TEXT},
                                                {"UNITS", "amount", CTL_AMOUNT},
                                                {"SINCE", "since", CTL_SECONDS},
                                                {"ENDS IN", "expires_in", CTL_SECONDS},
                                                {"LIMIT", "limit", CTL_TEXT},
                                                {.header = NULL}};
    struct ctl_table held = {.columns = columns, .what = "held"};
    struct ctl_table waiting = {.columns = columns, .what = "waiting"};
    struct ctl_table reserved = {.columns = columns, .what = "reserved"};
    struct ctl_reply reply;
    (void)words;
    enum ctl_exit code = ctl_call(
        ctl, &(struct ctl_request){.path = "/v1/holds", .expects = "longest_held"}, &reply);
    if (code == CTL_DONE && !ctl->json) {
        ctl_say("%g held, %g waiting, %g reserved", ctl_number(reply.json, "holds"),
                ctl_number(reply.json, "waiting"), ctl_number(reply.json, "reservations"));
        holds_name(list_of(&reply, "longest_held"));
        ctl_table_print(&held, list_of(&reply, "longest_held"), ctl->has_color);
        putchar('\n');
        ctl_table_print(&waiting, list_of(&reply, "longest_waiting"), ctl->has_color);
        putchar('\n');
        holds_name(list_of(&reply, "oldest_reservations"));
        ctl_table_print(&reserved, list_of(&reply, "oldest_reservations"), ctl->has_color);
    }
    ctl_reply_free(&reply);
    return code;
}

/* ---- counters ------------------------------------------------------------------------------- */

static enum ctl_exit counters_show(struct ctl *ctl, char *const words[], bool has_table) {
    static const struct ctl_column columns[] = {{"WHAT", "what", CTL_TEXT},
                                                {"TEMPLATE", "template", CTL_TEXT},
                                                {"LIMIT", "limit", CTL_TEXT},
                                                {"RESOURCE", "resource_id", CTL_TEXT},
                                                {"KEY", "key", CTL_TEXT},
                                                {"SIZE", "size", CTL_AMOUNT},
                                                {"USED", "used", CTL_AMOUNT},
                                                {"LEFT", "remaining", CTL_AMOUNT},
                                                {"FRESH IN", "reset_after", CTL_SECONDS},
                                                {"BAN ENDS IN", "ends_in", CTL_SECONDS},
                                                {.header = NULL}};
    const struct ctl_request request = {
        .path = "/v1/counters",
        .query = {{"template", words[0]}, {"limit", words[0] ? words[1] : NULL}}};
    return ctl_lines_show(ctl, request, "what", NULL, has_table ? columns : NULL);
}

static enum ctl_exit run_export(struct ctl *ctl, char *const words[]) {
    return counters_show(ctl, words, false);
}

static enum ctl_exit run_counters(struct ctl *ctl, char *const words[]) {
    return counters_show(ctl, words, !ctl->json);
}

/* ---- overrides ------------------------------------------------------------------------------ */

/* Returns the name of the field for a resource. A text with one of these characters is the glob of
 * a template. */
static const char *scope_name(const char *resource) {
    return strpbrk(resource, "*?[") ? "glob" : "resource";
}

/* Reads figures such as "rate=200,size=1000".
 *   returns   false: the text is not of this form */
static bool figures_read(const char *text, cJSON *figures) {
    for (const char *at = text; *at;) {
        char name[64] = "", *end = NULL;
        size_t bytes = strcspn(at, "=,");
        bool has_value = at[bytes] == '=' && bytes > 0 && bytes < sizeof name;
        /* strtod would also take 0x10 and inf */
        const size_t digits = has_value ? strspn(at + bytes + 1, "+-.0123456789eE") : 0;
        double value = has_value ? strtod(at + bytes + 1, &end) : 0;
        has_value = has_value && end <= at + bytes + 1 + digits;
        if (!has_value || end == at + bytes + 1 || (*end && *end != ',') || (*end && !end[1])) {
            return false;
        }
        memcpy(name, at, bytes);
        cJSON_AddNumberToObject(figures, name, value);
        at = end + (*end == ',');
    }
    return *text != 0;
}

/* Makes the body of an override.
 *   words   those of the command, with a time that is valid
 *   returns   NULL: the figures are not of their form */
static cJSON *override_make(char *const words[], double seconds) {
    cJSON *body = cJSON_CreateObject(), *figures = cJSON_CreateObject();
    bool is_read = figures_read(words[3], figures);
    cJSON *add = cJSON_DetachItemFromObjectCaseSensitive(figures, "add");
    cJSON_AddStringToObject(body, scope_name(words[0]), words[0]);
    cJSON_AddStringToObject(body, "limit", words[1]);
    cJSON_AddStringToObject(body, "key", words[2]);
    if (add) cJSON_AddItemToObject(body, "add", add);
    if (!add || figures->child) {
        cJSON_AddItemToObject(body, "set", figures);
    } else {
        cJSON_Delete(figures);
    }
    if (seconds > 0) cJSON_AddNumberToObject(body, "expires_in", seconds);
    cJSON_AddStringToObject(body, "reason", words[5]);
    if (is_read) return body;
    cJSON_Delete(body);
    return NULL;
}

static enum ctl_exit run_override_set(struct ctl *ctl, char *const words[]) {
    double seconds = ctl_duration_read(words[4]);
    struct ctl_reply reply;
    if (seconds < 0) {
        return ctl_fail(CTL_USAGE,
                        "%s: must be a time, for example 90s, 15m, 12h or 1d; 0 is no end",
                        words[4]);
    }
    cJSON *body = override_make(words, seconds);
    if (!body) {
        return ctl_fail(
            CTL_USAGE, "%s: must be figures, for example rate=200,size=1000, or add=500", words[3]);
    }
    const struct ctl_request request = {
        .path = "/v1/overrides", .verb = "PUT", .body = body, .expects = "id"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        const char *then = ctl_text(reply.json, "then");
        ctl_say("override %.0f is set%s%s", ctl_number(reply.json, "id"), then[0] ? ", " : "",
                then);
    }
    cJSON_Delete(body);
    ctl_reply_free(&reply);
    return code;
}

/* Moves the fields of an override to its row, and adds in how many seconds it ends. */
static void override_flatten(cJSON *row) {
    cJSON *override = cJSON_DetachItemFromObjectCaseSensitive(row, "override");
    const cJSON *set = cJSON_GetObjectItemCaseSensitive(override, "set");
    const double now = ctl_now(), ends_at = ctl_number(override, "ends_at");
    const char *resource = ctl_text(override, "resource");
    char *figures = set ? cJSON_PrintUnformatted(set) : NULL;
    cJSON_AddStringToObject(row, "scope", resource[0] ? resource : ctl_text(override, "glob"));
    cJSON_AddStringToObject(row, "limit", ctl_text(override, "limit"));
    cJSON_AddStringToObject(row, "key", ctl_text(override, "key"));
    cJSON_AddStringToObject(row, "reason", ctl_text(override, "reason"));
    if (figures) cJSON_AddStringToObject(row, "set", figures);
    if (!set) cJSON_AddNumberToObject(row, "add", ctl_number(override, "add"));
    const bool is_later = !ctl_is_true(row, "in_force") && !ctl_is_true(row, "idle");
    cJSON_AddBoolToObject(row, "later", is_later); /* by the clock of the server */
    if (ends_at > 0) cJSON_AddNumberToObject(row, "ends_in", ends_at > now ? ends_at - now : 0);
    cJSON_free(figures);
    cJSON_Delete(override);
}

/* Shows overrides.
 *   key, ending   NULL: all */
static enum ctl_exit override_list(struct ctl *ctl, const char *key, const char *ending) {
    static const struct ctl_column columns[] = {{"ID", "id", CTL_ID},
                                                {"KEY", "key", CTL_TEXT},
                                                {"LIMIT", "limit", CTL_TEXT},
                                                {"RESOURCE", "scope", CTL_TEXT},
                                                {"SET", "set", CTL_TEXT},
                                                {"ADD", "add", CTL_AMOUNT},
                                                {"ENDS IN", "ends_in", CTL_SECONDS},
                                                {"BY", "token", CTL_TEXT},
                                                {"REASON", "reason", CTL_TEXT},
                                                {"MARKS", "idle later", CTL_MARKS},
                                                {.header = NULL}};
    const struct ctl_request request = {
        .path = "/v1/overrides",
        .query = {{"key", key}, {"limit", "1000"}, {"redirect", "1"}, {"ending", ending}}};
    return ctl_lines_show(ctl, request, "override", override_flatten, ctl->json ? NULL : columns);
}

static enum ctl_exit run_override_list(struct ctl *ctl, char *const words[]) {
    return override_list(ctl, words[0], NULL);
}

static enum ctl_exit run_override_ending(struct ctl *ctl, char *const words[]) {
    char ending[32];
    const double seconds = ctl_duration_read(words[0]);
    if (seconds < 0) {
        return ctl_fail(CTL_USAGE, "%s: must be a time, for example 90s, 15m, 12h or 1d", words[0]);
    }
    snprintf(ending, sizeof ending, "%.0f", seconds);
    return override_list(ctl, NULL, ending);
}

static enum ctl_exit run_override_end(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    const struct ctl_request request = {.path = "/v1/overrides",
                                        .query = {{scope_name(words[0]), words[0]},
                                                  {"limit", words[1]},
                                                  {"key", words[2]},
                                                  {"reason", words[3]}},
                                        .verb = "DELETE",
                                        .expects = "id"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) ctl_say("the override has ended");
    ctl_reply_free(&reply);
    return code;
}

/* ---- the table ------------------------------------------------------------------------------ */

const struct ctl_command ctl_commands[] = {
    {"status", "[RESOURCE]", "the process and its resources, or the leases of one resource",
     "Without RESOURCE: which process this is, which one is the master, what is wrong, and a row\n"
     "for each resource. With RESOURCE: a row for each holder of a lease.\n"
     "Needs the role read.",
     run_status},
    {"check", "", "whether the server works, is ready, and is the master",
     "Exits with 0 if the server is healthy and ready, and with 1 otherwise. A process that is\n"
     "not the master is ready too. Needs no token.",
     run_check},
    {"limits", "", "what each limit has granted and refused", "Needs the role read.", run_limits},
    {"top units", "[minute|hour|day]", "the keys that use most units",
     "Of the last minute, hour (the default) or day, of all limits. What was used a whole minute,\n"
     "hour or day ago counts a third. ERROR is how wrong UNITS can be. Needs the role read.",
     ctl_run_top_units},
    {"top nearest", "", "the keys that are nearest to their limits",
     "Of all limits, those that have used the largest part. Needs the role read.",
     ctl_run_top_nearest},
    {"top", "[TEMPLATE [LIMIT]]", "the keys that are refused and granted most often",
     "The 20 most frequent keys of all limits, of those of one template, or of one limit. All\n"
     "counts are halved each minute. With --json, a document for each limit.\n"
     "Needs the role read.",
     run_top},
    {"key", "RESOURCE KEY", "what the limits have counted for one key",
     "Also says whether the key is banned. The server needs --http-token. Needs the role read.",
     run_key},
    {"reset", "RESOURCE KEY [LIMIT]", "make the counters of one key fresh, and end its ban",
     "With LIMIT: only the counter of this limit, and no ban. Holds of kind CONCURRENCY stay\n"
     "until they end. Exits with 0 also if there was nothing to reset. --reason is kept in the\n"
     "audit. Needs the role support.",
     run_reset},
    {"ban", "RESOURCE KEY TIME", "ban one key for a time, or end its ban",
     "TIME is seconds, or has a unit: 90s, 15m, 12h, 1d. 0 ends a ban. --reason is kept in\n"
     "the audit. Needs the role support.",
     run_ban},
    {"bans", "[RESOURCE [KEY]]", "the keys that are banned, by whom, and for how long",
     "BY is limit or administrator. Needs the role read.", ctl_run_bans},
    {"holds end", "ID REASON", "end one hold at once",
     "ID is that of `doormanctl holds`. Its units are free at once. Its client learns that the "
     "hold\n"
     "is gone with its next renewal. Needs the role admin.",
     ctl_run_hold_end},
    {"reservations end", "ID keep|refund REASON", "end one reservation at once",
     "ID is that of `doormanctl holds`. keep: what was charged stays. refund: it comes back, "
     "where\n"
     "units can come back. A later settle is late. Needs the role admin.",
     ctl_run_reservation_end},
    {"holds", "", "who holds units of limits of kind CONCURRENCY, who waits, and what is reserved",
     "Those that hold or wait longest, and the oldest reservations that are not settled, at most\n"
     "100 each. Needs the role read.",
     run_holds},
    {"counters", "[TEMPLATE [LIMIT]]", "all counters and bans, as a table",
     "Of all limits, of those of one template, or of one limit. Needs the role read.",
     run_counters},
    {"export", "[TEMPLATE [LIMIT]]", "all counters and bans, as lines of JSON",
     "For example for a bill: doormanctl export api/search quota >counters.json\n"
     "The fields are those of GET /v1/counters. Needs the role read.",
     run_export},
    {"audit", "[KEY]", "who has done what, when, and why; the newest first",
     "With KEY, only acts that concern this key. FIGURES is what was before, and what the act has\n"
     "left behind. With --json, the entries of each act too. `undo ID` undoes an act. The server\n"
     "must keep acts: --http-token, and --state or --config etcd:KEY. Needs the role support.",
     ctl_audit},
    {"undo", "ID", "undo an act of the audit; needs --reason",
     "ID is a number of the audit. An act can be undone while what it has changed is as it left\n"
     "it; otherwise the answer names the newer act. An end stays the same point in time. Resets\n"
     "cannot be undone. Give --reason. Needs the role support, as the act itself does.",
     ctl_undo},
    {"override set", "RESOURCE LIMIT KEY FIGURES TIME REASON",
     "give one key other figures of a limit, for a time",
     "FIGURES are those of the configuration, such as rate=200,size=1000; or add=500, which gives\n"
     "so many units more, once. TIME is seconds, or has a unit: 90s, 15m, 12h, 1d; 0 is no end.\n"
     "A RESOURCE with * ? or [ is the glob of a template. The server must keep\n"
     "acts: see 'doormanctl audit'. Needs the role support.",
     run_override_set},
    {"override list", "[KEY]", "the overrides that have not ended, the newest first",
     "Needs the role read.", run_override_list},
    {"override end", "RESOURCE LIMIT KEY REASON", "end an override before its time",
     "What was used under the override stays used. Needs the role support.", run_override_end},
    {"plan set", "GLOB KEY PLAN TIME REASON", "give one key a plan of the configuration",
     "GLOB is that of a template. TIME is seconds, or has a unit: 90s, 15m, 12h, 1d; 0 is no end.\n"
     "The server must keep acts: see 'doormanctl audit'. Needs the role support.",
     ctl_plan_set},
    {"plan load", "GLOB FILE TIME REASON", "give many keys their plans",
     "Each line of FILE is KEY PLAN; - is standard input. 10,000 lines are one act, and either "
     "all\n"
     "or none of them are set. Needs the role support.",
     ctl_plan_load},
    {"plan list", "[KEY]", "which key has which plan, the newest first", "Needs the role read.",
     ctl_plan_list},
    {"plan end", "GLOB KEY REASON", "end the plan of a key before its time",
     "What was used under the plan stays used. Needs the role support.", ctl_plan_end},
    {"override ending", "TIME", "the overrides that end within a time",
     "TIME is seconds, or has a unit: 90s, 15m, 12h, 1d. Needs the role read.",
     run_override_ending},
    {"drain", "REASON", "let this process hand over, before its machine is taken away",
     "The process leaves what it knows to the next master, and does not become master until\n"
     "`doormanctl undrain`. It keeps running, and is not ready. --url must name this process.\n"
     "Needs the role admin.",
     ctl_run_drain},
    {"drain-alone", "REASON", "the same for a server without an election",
     "Nobody takes over, so permits and leases are refused until `doormanctl undrain`.\n"
     "Needs the role admin.",
     ctl_run_drain_alone},
    {"undrain", "REASON", "end a drain",
     "The process may become master again. Needs the role admin.", ctl_run_undrain},
    {"shards move", "SHARD NODE", "let another node decide for one shard",
     "The server needs --shards. The owner moves it with all that is known of its keys, and this\n"
     "command waits for it. Needs the role admin, as the next ones do.",
     ctl_run_shards_move},
    {"shards drain", "NODE", "move all shards of a node to the others",
     "Before its machine is taken.", ctl_run_shards_drain},
    {"shards rebalance", "", "give each node equally many shards", "After a node was added.",
     ctl_run_shards_rebalance},
    {"shards force", "NODE", "take the shards of a node whose machine is gone",
     "--url must name a master of another node. Counters of durable limits come from the store.\n"
     "Other counters begin again, and holds are learned from their clients.",
     ctl_run_shards_force},
    {"shards remove", "NODE", "remove a node without shards from the map", "",
     ctl_run_shards_remove},
    {"shards", "", "which node has how many shards, and what moves", "Needs the role read.",
     ctl_run_shards},
    {"config get", "[VERSION]", "the configuration in force, or one version of it, as JSON",
     "Needs the role read.", ctl_config_get},
    {"config check", "FILE", "check a configuration, and show what it would change and drop",
     "The server that runs checks it, and the master says what it drops. FILE may be - for\n"
     "standard input. Exits with 1 if it is not valid. Needs the role read.",
     ctl_config_check},
    {"config versions", "", "who has changed the configuration, when, and why; the newest first",
     "The server needs --config store: or --config etcd:KEY, and --http-token. Needs the\n"
     "role read.",
     ctl_config_versions},
    {"config diff", "[VERSION|FILE]", "how a version differs from the one before it",
     "Without an argument: the version in force. A FILE is compared with the configuration in\n"
     "force, as config check does. Needs the role read.",
     ctl_config_diff},
    {"config put", "FILE REASON [VERSION]", "change the configuration",
     "The file is checked first, and what it drops is shown. VERSION is the one that it replaces: "
     "if another one is in force,\n"
     "nothing changes. Without VERSION it is the one in force now, and 0 is none. FILE may be -\n"
     "for standard input. The server needs --config store: or --config etcd:KEY. Needs the role "
     "admin.",
     ctl_config_put},
    {"config rollback", "OLD REASON [VERSION]", "bring an old version of the configuration back",
     "As a new version, which has the configuration of the version OLD. It is checked first, and\n"
     "what it drops is shown. VERSION is as in config put. Needs the role admin.",
     ctl_config_rollback},
    {"events", "[TOPIC...]", "what happens, as it happens, until you end it",
     "TOPIC is the start of topics, such as permit.refused or permit.refused.login: see\n"
     "docs/protocol.md. Says on standard error what was lost, and connects again by itself. The\n"
     "server needs --events. The role read is needed, unless --events names its address.",
     ctl_run_events},
    {"descriptor", "[DOMAIN] [KEY=VALUE...]", "what a descriptor of a gateway becomes",
     "For example: doormanctl descriptor shop path=/login remote_address=1.2.3.4\n"
     "Shows the rule, the resource, the key, and what the limits have left. Charges nothing.\n"
     "Without DOMAIN: the last descriptors that had no limit. Needs the role read.",
     ctl_run_descriptor},
    {"convert", "FILE...", "make a configuration from one of Envoy's ratelimit",
     "For example: doormanctl convert ratelimit.yaml >config.json\n"
     "Each file has one or several documents of YAML. Lists on standard error what it leaves out,\n"
     "by path, and then exits with 1. No server needs to run.",
     ctl_run_convert},
    {.name = NULL}};
