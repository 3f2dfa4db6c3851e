/* doorman_server, part HTTP: reads decisions that another process has made. The functions change
 * only their arguments. */
#include "http.h"

static double answer_number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static doorman_time answer_time(const cJSON *object, const char *name) {
    double seconds = answer_number(object, name);
    return seconds > 0 && seconds < 1e9 ? (doorman_time)(seconds * (double)DOORMAN_SECOND) : 0;
}

static const char *decision_text(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool decision_is_true(const cJSON *object, const char *name) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

doorman_reason server_decision_reason(const char *name) {
    doorman_reason found = DOORMAN_NO_REASON;
    for (int i = 1; name && i < DOORMAN_REASON_COUNT && !found; i++) {
        if (strcmp(name, doorman_reason_name((doorman_reason)i)) == 0) found = (doorman_reason)i;
    }
    return found;
}

/* Reads what was granted to one item, and the limits of the item. */
static void answer_read_item(struct decision *out, const cJSON *item, size_t index) {
    const cJSON *limit = NULL;
    out->grants[index] = (doorman_permit_grant){.granted = answer_number(item, "granted"),
                                                .limit = decision_text(item, "limit")};
    cJSON_ArrayForEach(limit, cJSON_GetObjectItemCaseSensitive(item, "limits")) {
        const char *name = decision_text(limit, "name");
        if (!name || out->permit.detail_count == DECISION_DETAIL_MAX) continue;
        out->details[out->permit.detail_count++] =
            (doorman_permit_detail){.item_index = index,
                                    .limit = name,
                                    .most = answer_number(limit, "limit"),
                                    .remaining = answer_number(limit, "remaining"),
                                    .reset_after = answer_time(limit, "reset_after"),
                                    .more_after = answer_time(limit, "more_after"),
                                    .window = answer_time(limit, "window"),
                                    .shadow = decision_is_true(limit, "shadow"),
                                    .refused = decision_is_true(limit, "refused")};
    }
}

bool server_decision_read(struct decision *out, const cJSON *decision, size_t item_count) {
    doorman_permit *permit = &out->permit;
    const char *word = decision_text(decision, "decision"),
               *reason = decision_text(decision, "reason");
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(decision, "item"), *item = NULL;
    double index = answer_number(decision, "item_index");
    size_t count = 0;
    *permit = (doorman_permit){.granted = word && strcmp(word, "GRANTED") == 0,
                               .limit = decision_text(decision, "limit"),
                               .items = out->grants,
                               .details = out->details,
                               .item_count = item_count};
    permit->item_index = index >= 0 && index < 1000 ? (size_t)index : 0;
    permit->wait = answer_time(decision, "wait");
    permit->warning = decision_is_true(decision, "warning");
    permit->has_retry_after =
        cJSON_GetObjectItemCaseSensitive(decision, "retry_after") != NULL && !permit->granted;
    permit->retry_after = answer_time(decision, "retry_after");
    permit->share = answer_number(decision, "share");
    if (permit->granted || !(permit->share > 0)) permit->share = 0;
    permit->reason = server_decision_reason(reason);
    if (permit->reason == DOORMAN_REASON_UNMATCHED) return word != NULL;
    cJSON_ArrayForEach(item, items) {
        if (count < item_count) answer_read_item(out, item, count);
        count++;
    }
    return word && (permit->granted ? count == item_count : permit->item_index < item_count);
}

doorman_status server_decision_read_error(doorman_error *out, const cJSON *error) {
    static const char method[] = "acquire.";
    const char *code = decision_text(error, "code"), *text = decision_text(error, "message");
    const char *invalid = doorman_status_name(DOORMAN_INVALID_ARGUMENT);
    *out = (doorman_error){.path_bytes = 0};
    if (text && strncmp(text, method, strlen(method)) == 0) {
        text += strlen(method);
        out->path_bytes = strcspn(text, ":");
    }
    snprintf(out->text, sizeof out->text, "%s", text ? text : "out of memory");
    return code && strcmp(code, invalid) == 0 ? DOORMAN_INVALID_ARGUMENT : DOORMAN_UNAVAILABLE;
}
