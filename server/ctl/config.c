/* doormanctl: the commands that show, check and change the configuration. */
#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((size_t)4 << 20) /* the largest message that a server takes */
#define NUMBER_TEXT 24
#define PATH_TEXT 64

static const cJSON *field(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Reads a file, or standard input if its name is "-". Returns its text, which the caller frees, or
 * NULL: then what is wrong was reported. */
static char *file_text(const char *path) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = (char *)ctl_need(malloc(CONFIG_BYTES_MAX + 2));
    size_t bytes = file ? fread(text, 1, CONFIG_BYTES_MAX + 1, file) : 0;
    bool failed = !file || ferror(file);
    const char *why = failed ? strerror(errno) : NULL;
    text[bytes] = 0;
    if (!failed && bytes > CONFIG_BYTES_MAX) why = "it has more than 4 MiB";
    if (!failed && strlen(text) != bytes) why = "it has a 0 byte, so it is not JSON";
    if (file && file != stdin) fclose(file);
    if (!why) return text;
    (void)ctl_fail(CTL_USAGE, "%s: %s", path, why);
    free(text);
    return NULL;
}

/* Returns whether a word is the number of a version. */
static bool is_number(const char *word) {
    size_t digits = strspn(word, "0123456789");
    return digits > 0 && digits < 17 && !word[digits];
}

/* Checks a word that must be the number of a version. */
static enum ctl_exit number_check(const char *word) {
    return is_number(word) ? CTL_DONE
                           : ctl_fail(CTL_USAGE,
                                      "'%s' is not the number of a version; `doormanctl config "
                                      "versions` lists them",
                                      word);
}

/* ---- get ------------------------------------------------------------------------------------ */

enum ctl_exit ctl_config_get(struct ctl *ctl, char *const words[]) {
    char path[PATH_TEXT] = "/v1/config";
    struct ctl_reply reply;
    struct ctl_request request = {.path = path, .expects = "resources", .here = true};
    ctl->json = true; /* there is no table of it */
    if (words[0]) {
        enum ctl_exit wrong = number_check(words[0]);
        if (wrong != CTL_DONE) return wrong;
        snprintf(path, sizeof path, "/v1/config/versions/%s", words[0]);
        request = (struct ctl_request){
            .path = path, .query = {{"redirect", "1"}}, .expects = "configuration"};
        ctl->json = false; /* only a part of the answer is printed */
    }
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && words[0]) {
        char *text = (char *)ctl_need(cJSON_Print(field(reply.json, "configuration")));
        puts(text);
        cJSON_free(text);
    }
    ctl_reply_free(&reply);
    return code;
}

/* ---- check ---------------------------------------------------------------------------------- */

/* Prints problems in the form in which compilers report errors. */
static void problems_print(const cJSON *answer, const char *name, const char *kind,
                           const char *path) {
    const cJSON *problem = NULL;
    cJSON_ArrayForEach(problem, field(answer, name)) {
        double line = ctl_number(problem, "line"), column = ctl_number(problem, "column");
        if (line > 0) fprintf(stderr, "%s:%.0f:%.0f: ", path, line, column);
        if (line <= 0) fprintf(stderr, "%s: ", path);
        fprintf(stderr, "%s: ", kind);
        ctl_print(stderr, ctl_text(problem, "text"));
        fputc('\n', stderr);
    }
}

/* Writes what a configuration would drop: "; drops 3 counters and 2 bans". */
static void drops_format(const cJSON *object, char out[96]) {
    double counters = ctl_number(object, "drops_counters"), bans = ctl_number(object, "drops_bans");
    out[0] = 0;
    if (counters > 0 && bans > 0) {
        snprintf(out, 96, "; drops %.0f counters and %.0f bans", counters, bans);
    } else if (counters > 0) {
        snprintf(out, 96, "; drops %.0f counters", counters);
    } else if (bans > 0) {
        snprintf(out, 96, "; drops %.0f bans", bans);
    }
}

/* Prints what a checked configuration would change. */
static void check_print(const cJSON *answer) {
    const cJSON *change = NULL, *limit = NULL, *over = NULL;
    char drops[96];
    cJSON_ArrayForEach(change, field(answer, "changes")) {
        const bool has_capacity = field(change, "capacity") && field(change, "last_capacity");
        char capacity[96] = "";
        if (has_capacity) {
            snprintf(capacity, sizeof capacity, "; capacity %g -> %g",
                     ctl_number(change, "last_capacity"), ctl_number(change, "capacity"));
        }
        ctl_say("%s: %s%s", ctl_text(change, "template"), ctl_text(change, "change"), capacity);
        cJSON_ArrayForEach(limit, field(change, "limits")) {
            drops_format(limit, drops);
            ctl_say("    %s: %s%s", ctl_text(limit, "limit"), ctl_text(limit, "text"), drops);
        }
    }
    if (ctl_is_true(answer, "is_reordered")) ctl_say("the templates have another order");
    if (ctl_text(answer, "unmatched")[0]) ctl_say("unmatched: %s", ctl_text(answer, "unmatched"));
    if (field(answer, "descriptors")) ctl_say("the rules for descriptors change");
    cJSON_ArrayForEach(over, field(answer, "leased_over")) {
        ctl_say("%s: %g is leased, which is more than the new capacity %g",
                ctl_text(over, "resource_id"), ctl_number(over, "leased"),
                ctl_number(over, "capacity"));
    }
    const bool is_same =
        cJSON_GetArraySize(field(answer, "changes")) == 0 && !field(answer, "descriptors");
    drops_format(answer, drops);
    ctl_say("%s%s", is_same ? "valid; nothing would change" : "valid", drops);
}

/* Prints which counters and bans a change would drop. */
static void drops_print(const cJSON *answer) {
    const cJSON *change = NULL, *limit = NULL;
    char drops[96];
    cJSON_ArrayForEach(change, field(answer, "changes")) {
        cJSON_ArrayForEach(limit, field(change, "limits")) {
            drops_format(limit, drops);
            if (!drops[0]) continue;
            ctl_say("%s %s: %s%s", ctl_text(change, "template"), ctl_text(limit, "limit"),
                    ctl_text(limit, "text"), drops);
        }
    }
}

/* Lets the server check a text, and prints what is wrong with it.
 *   shows   true: also prints what the text would change; false: only what it would drop */
static enum ctl_exit text_check(struct ctl *ctl, const char *path, const char *text, bool shows) {
    struct ctl_reply reply;
    const struct ctl_request request = {.path = "/v1/config/check",
                                        .text = text,
                                        .verb = "POST",
                                        .expects = shows ? "valid" : NULL};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !(shows && ctl->json)) {
        problems_print(reply.json, "errors", "error", path);
        problems_print(reply.json, "warnings", "warning", path);
    }
    bool is_valid = ctl_is_true(reply.json, "valid");
    if (code == CTL_DONE && !is_valid) {
        code = ctl->json && shows
                   ? CTL_REFUSED
                   : ctl_fail(CTL_REFUSED, "%s: the configuration is not valid", path);
    } else if (code == CTL_DONE && shows && !ctl->json) {
        check_print(reply.json);
    } else if (code == CTL_DONE && !ctl->json) {
        drops_print(reply.json);
    }
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_config_check(struct ctl *ctl, char *const words[]) {
    char *text = file_text(words[0]);
    if (!text) return CTL_USAGE;
    enum ctl_exit code = text_check(ctl, words[0], text, true);
    free(text);
    return code;
}

/* ---- versions ------------------------------------------------------------------------------- */

/* Asks the master for the version in force.
 *   number   out: "" if there is none */
static enum ctl_exit version_find(struct ctl *ctl, char number[NUMBER_TEXT]) {
    struct ctl_reply reply;
    bool json = ctl->json;
    const struct ctl_request request = {.path = "/v1/status", .expects = "resources"};
    ctl->json = false; /* this answer is no part of the output */
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    ctl->json = json;
    number[0] = 0;
    const double version = ctl_number(field(reply.json, "config"), "version");
    if (version > 0) snprintf(number, NUMBER_TEXT, "%.0f", version);
    ctl_reply_free(&reply);
    return code;
}

/* Joins the texts of a list. The caller frees the result. */
static char *texts_join(const cJSON *list, const char *separator) {
    const cJSON *item = NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = (FILE *)ctl_need(open_memstream(&text, &bytes));
    cJSON_ArrayForEach(item, list) {
        const char *value = cJSON_GetStringValue(item);
        fprintf(file, "%s%s", item == list->child ? "" : separator, value ? value : "");
    }
    ctl_need(fclose(file) == 0 ? text : NULL);
    return text;
}

static void versions_flatten(cJSON *row) {
    char *text = texts_join(field(row, "changes"), "; ");
    cJSON_AddStringToObject(row, "what", text);
    free(text);
}

enum ctl_exit ctl_config_versions(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {
        {"VERSION", "version", CTL_ID}, {"AT", "at", CTL_TEXT},        {"TOKEN", "token", CTL_TEXT},
        {"REASON", "reason", CTL_TEXT}, {"CHANGES", "what", CTL_TEXT}, {.header = NULL}};
    const struct ctl_request request = {.path = "/v1/config/versions",
                                        .query = {{"limit", "1000"}, {"redirect", "1"}}};
    (void)words;
    return ctl_lines_show(ctl, request, "version", versions_flatten, ctl->json ? NULL : columns);
}

/* ---- diff ----------------------------------------------------------------------------------- */

static void fields_print(const cJSON *object, const char *before) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, field(object, "fields")) {
        char *values[2];
        static const char *const names[2] = {"last", "now"};
        for (int i = 0; i < 2; i++) {
            const cJSON *value = field(item, names[i]);
            values[i] = (char *)ctl_need(cJSON_IsNull(value) ? strdup("default")
                                                             : cJSON_PrintUnformatted(value));
        }
        ctl_say("%s%s: %s -> %s", before, ctl_text(item, "field"), values[0], values[1]);
        for (int i = 0; i < 2; i++) free(values[i]);
    }
}

static void diff_print(const cJSON *answer) {
    const cJSON *change = NULL, *limit = NULL;
    ctl_say("version %.0f, after %.0f", ctl_number(answer, "version"),
            ctl_number(answer, "before"));
    fields_print(answer, "");
    cJSON_ArrayForEach(change, field(answer, "changes")) {
        ctl_say("%s: %s", ctl_text(change, "template"), ctl_text(change, "change"));
        fields_print(change, "    ");
        cJSON_ArrayForEach(limit, field(change, "limits")) {
            ctl_say("    %s: %s", ctl_text(limit, "limit"), ctl_text(limit, "change"));
            fields_print(limit, "        ");
        }
    }
    if (ctl_is_true(answer, "is_reordered")) ctl_say("the templates have another order");
}

enum ctl_exit ctl_config_diff(struct ctl *ctl, char *const words[]) {
    char path[PATH_TEXT], number[NUMBER_TEXT] = "";
    struct ctl_reply reply;
    enum ctl_exit code = CTL_DONE;
    if (words[0] && !is_number(words[0])) return ctl_config_check(ctl, words);
    if (words[0]) snprintf(number, sizeof number, "%s", words[0]);
    if (!words[0]) code = version_find(ctl, number);
    if (code == CTL_DONE && !number[0]) {
        code = ctl_fail(CTL_REFUSED, "the configuration of this server has no versions");
    }
    if (code != CTL_DONE) return code;
    snprintf(path, sizeof path, "/v1/config/versions/%s/diff", number);
    const struct ctl_request request = {
        .path = path, .query = {{"redirect", "1"}}, .expects = "changes"};
    code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) diff_print(reply.json);
    ctl_reply_free(&reply);
    return code;
}

/* ---- put and rollback ----------------------------------------------------------------------- */

/* Changes the configuration, if the version that was given is the present one.
 *   number    the version that is replaced; NULL: the one in force
 *   change    the request, without the header for the version */
static enum ctl_exit change_send(struct ctl *ctl, const char *number,
                                 const struct ctl_request *change) {
    char present[NUMBER_TEXT], match[64];
    struct ctl_reply reply;
    enum ctl_exit code = number ? number_check(number) : version_find(ctl, present);
    if (code != CTL_DONE) return code;
    if (!number) number = present;
    if (strcmp(number, "0") == 0) number = ""; /* there is none */
    snprintf(match, sizeof match, number[0] ? "If-Match: \"%s\"" : "If-None-Match: *%s", number);
    struct ctl_request request = *change;
    request.header = match;
    request.expects = "version";
    code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        const cJSON *item = NULL;
        ctl_say("version %.0f%s", ctl_number(reply.json, "version"),
                ctl_is_true(reply.json, "in_force") ? " is in force" : " will be in force soon");
        cJSON_ArrayForEach(item, field(reply.json, "changes")) {
            ctl_say("    %s", cJSON_IsString(item) ? item->valuestring : "");
        }
    }
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_config_put(struct ctl *ctl, char *const words[]) {
    char *text = file_text(words[0]);
    if (!text) return CTL_USAGE;
    const struct ctl_request request = {
        .path = "/v1/config", .query = {{"reason", words[1]}}, .verb = "PUT", .text = text};
    enum ctl_exit code = text_check(ctl, words[0], text, false);
    if (code == CTL_DONE) code = change_send(ctl, words[2], &request);
    free(text);
    return code;
}

/* Checks the configuration of a version, and prints what it would drop. */
static enum ctl_exit version_check(struct ctl *ctl, const char *number) {
    char path[PATH_TEXT], name[PATH_TEXT];
    struct ctl_reply reply;
    const struct ctl_request request = {.path = path, .query = {{"redirect", "1"}}};
    snprintf(path, sizeof path, "/v1/config/versions/%s", number);
    snprintf(name, sizeof name, "version %s", number);
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    char *text =
        code == CTL_DONE ? cJSON_PrintUnformatted(field(reply.json, "configuration")) : NULL;
    if (code == CTL_DONE)
        code = text ? text_check(ctl, name, text, false) : ctl_answer_is_wrong(ctl);
    cJSON_free(text);
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_config_rollback(struct ctl *ctl, char *const words[]) {
    const struct ctl_request request = {.path = "/v1/config/rollback",
                                        .query = {{"version", words[0]}, {"reason", words[1]}},
                                        .verb = "POST",
                                        .text = ""};
    enum ctl_exit code = number_check(words[0]);
    if (code == CTL_DONE) code = version_check(ctl, words[0]);
    return code == CTL_DONE ? change_send(ctl, words[2], &request) : code;
}
