/* doormanctl: the command `audit` shows what was done and by whom, and `undo` takes an act back. */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

#define SIDE_BYTES 256 /* of the figures before or after an act */

/* Writes what there was before or after an act. What is too long is cut off. */
static void side_write(char out[SIDE_BYTES], const cJSON *side) {
    const cJSON *set = cJSON_GetObjectItemCaseSensitive(side, "set");
    const char *plan = ctl_text(side, "plan");
    char *text = NULL;
    snprintf(out, SIDE_BYTES, "-");
    if (plan[0]) {
        snprintf(out, SIDE_BYTES, "%s", plan);
    } else if (ctl_number(side, "add") > 0) {
        snprintf(out, SIDE_BYTES, "add %.15g", ctl_number(side, "add"));
    } else if (side && !cJSON_IsNull(side)) {
        text = (char *)ctl_need(cJSON_PrintUnformatted(set ? set : side));
        snprintf(out, SIDE_BYTES, "%s", text);
    }
    cJSON_free(text);
}

/* Writes what there was before and after an act, for one entry. */
static void side_write_entry(char before[SIDE_BYTES], char after[SIDE_BYTES], const cJSON *entry) {
    const double was = ctl_number(entry, "banned_before"), is = ctl_number(entry, "ban");
    char time[CTL_NUMBER_BYTES];
    if (cJSON_GetObjectItemCaseSensitive(entry, "ban")) {
        snprintf(before, SIDE_BYTES, "%s", was > 0 ? ctl_seconds(time, was) : "-");
        snprintf(after, SIDE_BYTES, "%s", is > 0 ? ctl_seconds(time, is) : "-");
    } else if (cJSON_GetObjectItemCaseSensitive(entry, "used_before")) {
        side_write(before, cJSON_GetObjectItemCaseSensitive(entry, "used_before"));
        snprintf(after, SIDE_BYTES, "fresh");
    } else {
        side_write(before, cJSON_GetObjectItemCaseSensitive(entry, "before"));
        side_write(after, cJSON_GetObjectItemCaseSensitive(entry, "after"));
    }
}

/* Writes a change of shards as the command that makes it: "move 17 b". Other acts have none. */
static void change_write(char out[SIDE_BYTES], const cJSON *row) {
    char shard[CTL_NUMBER_BYTES] = "";
    if (cJSON_GetObjectItemCaseSensitive(row, "shard")) {
        snprintf(shard, sizeof shard, " %.0f", ctl_number(row, "shard"));
    }
    snprintf(out, SIDE_BYTES, "%s%s%s%s", ctl_text(row, "change"), shard,
             ctl_text(row, "node")[0] ? " " : "", ctl_text(row, "node"));
}

/* Adds what an act concerns and has changed, as texts. For an act with several entries, the texts
 * are about the first one. */
static void audit_flatten(cJSON *row) {
    const cJSON *entries = cJSON_GetObjectItemCaseSensitive(row, "entries");
    const cJSON *entry = entries ? entries->child : row;
    const int count = entries ? cJSON_GetArraySize(entries) : 1;
    char before[SIDE_BYTES], after[SIDE_BYTES], text[2 * SIDE_BYTES + 8];
    snprintf(text, sizeof text, "%s", ctl_text(entry, "key"));
    if (count > 1) {
        snprintf(text, sizeof text, "%s and %d more", ctl_text(entry, "key"), count - 1);
    }
    cJSON_AddStringToObject(row, "shown_key", text);
    side_write_entry(before, after, entry);
    bool is_empty = strcmp(before, "-") == 0 && strcmp(after, "-") == 0;
    snprintf(text, sizeof text, "%s -> %s", before, after);
    if (ctl_text(row, "change")[0]) {
        change_write(text, row);
        is_empty = false;
    }
    if (!is_empty) cJSON_AddStringToObject(row, "figures", text);
    const char *outcome = "";
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(row, "known"))) outcome = " (not known)";
    if (ctl_text(row, "refused")[0]) outcome = " (refused)";
    if (ctl_number(row, "written") > 0) outcome = " (in part)";
    snprintf(text, sizeof text, "%s%s", ctl_text(row, "what"), outcome);
    if (ctl_number(row, "undoes") > 0) {
        snprintf(text, sizeof text, "undo of %.0f%s", ctl_number(row, "undoes"), outcome);
    }
    cJSON_AddStringToObject(row, "shown_what", text);
}

enum ctl_exit ctl_audit(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {
        {"ID", "id", CTL_ID},           {"AT", "at", CTL_TEXT},
        {"TOKEN", "token", CTL_TEXT},   {"ROLE", "role", CTL_TEXT},
        {"FROM", "peer", CTL_TEXT},     {"WHAT", "shown_what", CTL_TEXT},
        {"KEY", "shown_key", CTL_TEXT}, {"FIGURES", "figures", CTL_TEXT},
        {"REASON", "reason", CTL_TEXT}, {.header = NULL}};
    const struct ctl_request request = {
        .path = "/v1/audit", .query = {{"key", words[0]}, {"limit", "1000"}, {"redirect", "1"}}};
    return ctl_lines_show(ctl, request, "what", audit_flatten, ctl->json ? NULL : columns);
}

enum ctl_exit ctl_undo(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    char path[64];
    const size_t bytes = strlen(words[0]);
    if (bytes == 0 || bytes > 16 || strspn(words[0], "0123456789") != bytes) {
        return ctl_fail(CTL_USAGE, "%s: must be an id of `doormanctl audit`", words[0]);
    }
    if (!ctl->reason) return ctl_fail(CTL_USAGE, "undo needs --reason");
    snprintf(path, sizeof path, "/v1/audit/%s/undo", words[0]);
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    const struct ctl_request request = {
        .path = path, .query = {{"reason", ctl->reason}}, .body = body, .expects = "id"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        const char *then = ctl_text(reply.json, "then"), *note = ctl_text(reply.json, "note");
        ctl_say("act %s is undone, by act %.0f%s%s%s%s", words[0], ctl_number(reply.json, "id"),
                then[0] ? ", " : "", then, note[0] ? "; " : "", note);
    }
    cJSON_Delete(body);
    ctl_reply_free(&reply);
    return code;
}
