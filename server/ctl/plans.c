/* doormanctl: which key has which plan of the configuration. */
#include "ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PLANS_AT_ONCE 10000 /* of one request */
#define LINE_BYTES 1024

/* Reads a duration. If the text is no duration, reports that, and returns a negative number. */
static double plan_seconds(const char *text) {
    double seconds = ctl_duration_read(text);
    if (seconds < 0) {
        ctl_fail(CTL_USAGE, "%s: must be a time, for example 90s, 15m, 12h or 1d; 0 is no end",
                 text);
    }
    return seconds;
}

/* Makes a row.
 *   seconds   0: it has no end */
static cJSON *plan_make(const char *glob, const char *key, const char *plan, double seconds) {
    cJSON *row = (cJSON *)ctl_need(cJSON_CreateObject());
    cJSON_AddStringToObject(row, "glob", glob);
    cJSON_AddStringToObject(row, "key", key);
    cJSON_AddStringToObject(row, "plan", plan);
    if (seconds > 0) cJSON_AddNumberToObject(row, "expires_in", seconds);
    return row;
}

static enum ctl_exit plan_send(struct ctl *ctl, const cJSON *body, double *id) {
    const struct ctl_request request = {
        .path = "/v1/plans", .verb = "PUT", .body = body, .expects = "id"};
    struct ctl_reply reply;
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    *id = ctl_number(reply.json, "id");
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_plan_set(struct ctl *ctl, char *const words[]) {
    double seconds = plan_seconds(words[3]), id = 0;
    if (seconds < 0) return CTL_USAGE;
    cJSON *body = plan_make(words[0], words[1], words[2], seconds);
    cJSON_AddStringToObject(body, "reason", words[4]);
    enum ctl_exit code = plan_send(ctl, body, &id);
    if (code == CTL_DONE && !ctl->json) ctl_say("the plan is set, act %.0f", id);
    cJSON_Delete(body);
    return code;
}

/* ---- a file of keys and plans --------------------------------------------------------------- */

/* A file that is read and sent in parts. */
struct plan_file {
    FILE *file;
    const char *name, *glob;
    double seconds;
    size_t line; /* the number of the last one */
};

/* Adds the row of a line: its last word is the plan, and the text before that is the key. Returns
 * false, after a report, if the line has another form. */
static bool plan_line_read(const struct plan_file *from, char *line, cJSON *rows) {
    char *end = line + strlen(line);
    while (end > line && strchr(" \t\r\n", end[-1])) *--end = 0;
    if (end == line) return true; /* an empty line */
    char *plan = end;
    while (plan > line && !strchr(" \t", plan[-1])) plan--;
    end = plan;
    while (end > line && strchr(" \t", end[-1])) *--end = 0;
    if (end == line) {
        ctl_fail(CTL_USAGE, "%s:%zu: must have a key, a space and a plan", from->name, from->line);
        return false;
    }
    cJSON_AddItemToArray(rows, plan_make(from->glob, line, plan, from->seconds));
    return true;
}

/* Reads the next rows. Returns false, after a report, if a line is wrong or the file cannot be
 * read. */
static bool plan_part_read(struct plan_file *from, cJSON *rows) {
    char line[LINE_BYTES];
    int count = 0;
    while (count < PLANS_AT_ONCE && fgets(line, sizeof line, from->file)) {
        from->line++;
        if (strlen(line) == sizeof line - 1) {
            ctl_fail(CTL_USAGE, "%s:%zu: is too long", from->name, from->line);
            return false;
        }
        if (!plan_line_read(from, line, rows)) return false;
        count++; /* an empty line counts too, which does no harm */
    }
    if (ferror(from->file)) {
        ctl_fail(CTL_USAGE, "%s: %s", from->name, strerror(errno));
        return false;
    }
    return true;
}

static enum ctl_exit plan_part_send(struct ctl *ctl, cJSON *rows, const char *reason) {
    double id = 0;
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    cJSON_AddStringToObject(body, "reason", reason);
    cJSON_AddItemToObject(body, "plans", rows);
    enum ctl_exit code = plan_send(ctl, body, &id);
    cJSON_Delete(body);
    return code;
}

static enum ctl_exit plan_file_send(struct ctl *ctl, struct plan_file *from, const char *reason) {
    size_t sent = 0;
    enum ctl_exit code = CTL_DONE;
    for (;;) {
        cJSON *rows = (cJSON *)ctl_need(cJSON_CreateArray());
        bool is_good = plan_part_read(from, rows);
        size_t count = (size_t)cJSON_GetArraySize(rows);
        if (!is_good) code = CTL_USAGE;
        if (code != CTL_DONE || count == 0) cJSON_Delete(rows);
        if (code == CTL_DONE && count > 0) code = plan_part_send(ctl, rows, reason);
        if (code != CTL_DONE) break;
        sent += count;
        if (feof(from->file)) break;
    }
    if (code != CTL_DONE && sent > 0) {
        ctl_fail(code, "the first %zu plans of %s are set, and the others are not", sent,
                 from->name);
    }
    if (code == CTL_DONE && !ctl->json) ctl_say("%zu plans are set", sent);
    return code;
}

enum ctl_exit ctl_plan_load(struct ctl *ctl, char *const words[]) {
    bool is_input = strcmp(words[1], "-") == 0;
    struct plan_file from = {.name = is_input ? "standard input" : words[1], .glob = words[0]};
    from.seconds = plan_seconds(words[2]);
    if (from.seconds < 0) return CTL_USAGE;
    from.file = is_input ? stdin : fopen(words[1], "r");
    if (!from.file) return ctl_fail(CTL_USAGE, "%s: %s", words[1], strerror(errno));
    enum ctl_exit code = plan_file_send(ctl, &from, words[3]);
    if (!is_input) fclose(from.file);
    return code;
}

/* ---- lists and ends ------------------------------------------------------------------------- */

/* Moves fields of a plan to its row, and adds `later`, and `ends_in` if the plan has an end. */
static void plan_flatten(cJSON *row) {
    cJSON *plan = cJSON_DetachItemFromObjectCaseSensitive(row, "plan");
    const double now = ctl_now(), ends_at = ctl_number(plan, "ends_at");
    static const char *const fields[] = {"key", "glob", "reason"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        cJSON_AddStringToObject(row, fields[i], ctl_text(plan, fields[i]));
    }
    cJSON_AddStringToObject(row, "plan", ctl_text(plan, "plan"));
    const bool is_later = !ctl_is_true(row, "in_force") && !ctl_is_true(row, "idle");
    cJSON_AddBoolToObject(row, "later", is_later); /* by the clock of the server */
    if (ends_at > 0) cJSON_AddNumberToObject(row, "ends_in", ends_at > now ? ends_at - now : 0);
    cJSON_Delete(plan);
}

enum ctl_exit ctl_plan_list(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"ACT", "audit", CTL_ID},
                                                {"KEY", "key", CTL_TEXT},
                                                {"PLAN", "plan", CTL_TEXT},
                                                {"TEMPLATE", "glob", CTL_TEXT},
                                                {"ENDS IN", "ends_in", CTL_SECONDS},
                                                {"BY", "token", CTL_TEXT},
                                                {"REASON", "reason", CTL_TEXT},
                                                {"MARKS", "idle later", CTL_MARKS},
                                                {.header = NULL}};
    const struct ctl_request request = {
        .path = "/v1/plans", .query = {{"key", words[0]}, {"limit", "1000"}, {"redirect", "1"}}};
    return ctl_lines_show(ctl, request, "plan", plan_flatten, ctl->json ? NULL : columns);
}

enum ctl_exit ctl_plan_end(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    const struct ctl_request request = {
        .path = "/v1/plans",
        .query = {{"glob", words[0]}, {"key", words[1]}, {"reason", words[2]}},
        .verb = "DELETE",
        .expects = "id"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) ctl_say("the plan has ended");
    ctl_reply_free(&reply);
    return code;
}
