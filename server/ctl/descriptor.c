/* doormanctl: the commands about descriptors of gateways. */
#include "convert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

/* ---- descriptor ----------------------------------------------------------------------------- */

static void descriptor_escape(const struct ctl *ctl, FILE *out, const char *text, size_t bytes) {
    char *escaped = bytes ? curl_easy_escape(ctl->curl, text, (int)bytes) : NULL;
    if (bytes) ctl_need(escaped);
    fputs(escaped ? escaped : "", out);
    curl_free(escaped);
}

/* Makes the path of a request. Returns NULL, with an error, if an entry is wrong. */
static char *descriptor_path(const struct ctl *ctl, char *const words[]) {
    char *path = NULL;
    size_t bytes = 0;
    FILE *out = (FILE *)ctl_need(open_memstream(&path, &bytes));
    const char *wrong = NULL;
    fputs("/v1/descriptors", out);
    if (words[0]) {
        fputs("?domain=", out);
        descriptor_escape(ctl, out, words[0], strlen(words[0]));
    }
    for (size_t i = 1; words[0] && words[i] && !wrong; i++) {
        const size_t key_bytes = strcspn(words[i], "=");
        if (!key_bytes || !words[i][key_bytes]) wrong = words[i];
        fputs("&entry.", out);
        descriptor_escape(ctl, out, words[i], key_bytes);
        fputs("=", out);
        if (!wrong) {
            const char *value = words[i] + key_bytes + 1;
            descriptor_escape(ctl, out, value, strlen(value));
        }
    }
    ctl_need(fclose(out) == 0 ? path : NULL);
    if (!wrong) return path;
    (void)ctl_fail(CTL_USAGE, "%s: must be an entry KEY=VALUE", wrong);
    free(path);
    return NULL;
}

static void descriptor_print(const struct ctl *ctl, const cJSON *descriptor) {
    static const struct ctl_column columns[] = {{"LIMIT", "name", CTL_TEXT},
                                                {"SIZE", "limit", CTL_AMOUNT},
                                                {"USED", "used", CTL_AMOUNT},
                                                {"LEFT", "remaining", CTL_AMOUNT},
                                                {"FRESH IN", "reset_after", CTL_SECONDS},
                                                {"MARKS", "shadow", CTL_MARKS},
                                                {.header = NULL}};
    struct ctl_table table = {.columns = columns};
    const cJSON *rule = cJSON_GetObjectItemCaseSensitive(descriptor, "rule");
    const cJSON *limits = cJSON_GetObjectItemCaseSensitive(descriptor, "limits");
    const char *template_ = ctl_text(descriptor, "template");
    if (rule) ctl_say("%-8s descriptors[%g]", "rule", ctl_number(rule, "index"));
    if (!rule) ctl_say("%-8s none: the default names", "rule");
    ctl_say("%-8s %s", "resource", ctl_text(descriptor, "resource_id"));
    ctl_say("%-8s %s", "key", ctl_text(descriptor, "key"));
    if (ctl_is_true(descriptor, "hashed")) {
        ctl_say("%-8s a name is a hash, because it would be too long or not valid", "hashed");
    }
    ctl_say("%-8s %s", "template", template_[0] ? template_ : "none");
    if (ctl_text(descriptor, "decision")[0]) {
        ctl_say("%-8s %s%s%s %s", "decision", ctl_text(descriptor, "decision"),
                ctl_text(descriptor, "reason")[0] ? ", " : "", ctl_text(descriptor, "reason"),
                ctl_text(descriptor, "limit"));
    } else {
        ctl_say("%-8s not shown: the server needs --http-token", "limits");
    }
    if (limits) putchar('\n');
    if (limits) ctl_table_print(&table, limits, ctl->has_color);
}

static void unmatched_print(const struct ctl *ctl, const cJSON *reply) {
    static const struct ctl_column columns[] = {{"RESOURCE", "resource_id", CTL_TEXT},
                                                {"DOMAIN", "domain", CTL_TEXT},
                                                {"LAST KEY", "key", CTL_TEXT},
                                                {"COUNT", "count", CTL_AMOUNT},
                                                {"AGO", "ago", CTL_SECONDS},
                                                {"MARKS", "by_rule", CTL_MARKS},
                                                {.header = NULL}};
    struct ctl_table table = {.columns = columns};
    ctl_say("%g descriptors without a limit since the process started",
            ctl_number(reply, "unmatched_count"));
    ctl_table_print(&table, cJSON_GetObjectItemCaseSensitive(reply, "unmatched"), ctl->has_color);
}

enum ctl_exit ctl_run_descriptor(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    char *path = descriptor_path(ctl, words);
    if (!path) return CTL_USAGE;
    enum ctl_exit code = ctl_call(
        ctl, &(struct ctl_request){.path = path, .expects = "unmatched", .here = !words[0]},
        &reply);
    const cJSON *descriptor = cJSON_GetObjectItemCaseSensitive(reply.json, "descriptor");
    if (code == CTL_DONE && !ctl->json && descriptor) descriptor_print(ctl, descriptor);
    if (code == CTL_DONE && !ctl->json && !descriptor) unmatched_print(ctl, reply.json);
    ctl_reply_free(&reply);
    free(path);
    return code;
}

/* ---- convert -------------------------------------------------------------------------------- */

#ifdef DOORMAN_CTL_YAML
/* Reads at most CTL_YAML_BYTES_MAX + 1 bytes of a file: one more than are allowed. Returns NULL,
 * with an error, if the file cannot be read. */
static char *convert_file_read(const char *name, size_t *bytes) {
    FILE *file = fopen(name, "rb");
    if (!file) {
        (void)ctl_fail(CTL_USAGE, "%s: %s", name, strerror(errno));
        return NULL;
    }
    char *text = (char *)ctl_need(malloc(CTL_YAML_BYTES_MAX + 1));
    *bytes = fread(text, 1, CTL_YAML_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    if (failed) (void)ctl_fail(CTL_USAGE, "%s: cannot be read", name);
    fclose(file);
    if (!failed) return text;
    free(text);
    return NULL;
}

/* Converts the documents of a file. Returns false if it cannot be read. */
static bool convert_file(struct ctl_conversion *conversion, const char *name) {
    char error[CTL_ERROR_BYTES];
    size_t bytes = 0;
    char *text = convert_file_read(name, &bytes);
    cJSON *documents = text ? ctl_yaml_read(text, bytes, error) : NULL, *document = NULL;
    if (text && !documents) (void)ctl_fail(CTL_USAGE, "%s: %s", name, error);
    const int count = cJSON_GetArraySize(documents);
    int number = 0;
    cJSON_ArrayForEach(document, documents) {
        char label[512];
        snprintf(label, sizeof label, "%.480s, document %d", name, ++number);
        conversion->file = count > 1 ? label : name;
        ctl_convert(conversion, document);
    }
    const bool is_read = documents != NULL;
    cJSON_Delete(documents);
    free(text);
    return is_read;
}

enum ctl_exit ctl_run_convert(struct ctl *ctl, char *const words[]) {
    struct ctl_conversion conversion = {.report = stderr};
    bool is_read = true;
    (void)ctl;
    for (size_t i = 0; words[i] && is_read; i++) is_read = convert_file(&conversion, words[i]);
    enum ctl_exit code = is_read ? CTL_DONE : CTL_USAGE;
    if (is_read && !conversion.rules) {
        code = ctl_fail(CTL_USAGE, "%s: has no document", words[0]);
    } else if (is_read) {
        ctl_conversion_write(&conversion, stdout);
        if (conversion.left_count) {
            code =
                ctl_fail(CTL_REFUSED, "%zu things were left out: see above", conversion.left_count);
        }
    }
    ctl_conversion_free(&conversion);
    return code;
}
#else
enum ctl_exit ctl_run_convert(struct ctl *ctl, char *const words[]) {
    (void)ctl;
    (void)words;
    return ctl_fail(CTL_USAGE, "this doormanctl was built without YAML (make YAML=0)");
}
#endif
