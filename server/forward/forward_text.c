/* doorman_server, part SHARDS: splits a message among nodes, and merges their answers. The
 * functions change only their arguments. The inner object of {"METHOD":{...}} is {...}. */
#include "forward.h"

/* Reads the inner object of a message. Returns false if memory runs out. */
static bool job_read(struct forward_job *job) {
    if (job->tree) return true;
    job->root = cJSON_ParseWithLength(job->text, job->bytes);
    job->tree = job->root;
    if (!job->is_body) {
        const char *name = doorman_method_name(job->method, false);
        job->tree = cJSON_GetObjectItemCaseSensitive(job->root, name);
    }
    return job->tree != NULL;
}

/* Adds the entries of a list that have the given indexes. */
static bool message_add_list(cJSON *out, const cJSON *list, const size_t *indexes, size_t count) {
    cJSON *array = cJSON_AddArrayToObject(out, list->string);
    size_t at = 0, next = 0;
    bool added = array != NULL;
    for (cJSON *each = list->child; each && next < count && added; each = each->next, at++) {
        if (indexes[next] != at) continue;
        added = cJSON_AddItemReferenceToArray(array, each);
        next++;
    }
    return added && next == count;
}

/* Adds a copy of a field. cJSON_AddItemReferenceToObject would leak if memory runs out. */
static bool message_add_field(cJSON *out, const cJSON *field) {
    cJSON *copy = cJSON_Duplicate(field, true);
    if (copy && cJSON_AddItemToObject(out, field->string, copy)) return true;
    cJSON_Delete(copy);
    return false;
}

/* Writes the inner object with only the entries that have the given indexes. The caller frees it
 * with cJSON_free. */
static char *message_print(struct forward_job *job, const size_t *indexes, size_t count) {
    const char *list = server_forward_list(job);
    if (!job_read(job)) return NULL;
    cJSON *out = cJSON_CreateObject();
    bool made = out != NULL;
    for (cJSON *each = job->tree->child; each && made; each = each->next) {
        if (strcmp(each->string, "forwarded") == 0) continue; /* only a node may set it */
        made = strcmp(each->string, list) == 0 ? message_add_list(out, each, indexes, count)
                                               : message_add_field(out, each);
    }
    char *text = made ? cJSON_PrintUnformatted(out) : NULL;
    cJSON_Delete(out);
    return text;
}

/* Returns the message, with its mark.
 *   inner   an object with at least one field */
static nng_msg *message_make(const struct forward_job *job, const char *inner, size_t bytes,
                             const struct mark_source *source) {
    const char *start = (const char *)memchr(inner, '{', bytes);
    char head[MARK_HEAD_BYTES];
    nng_msg *message = NULL;
    if (!start) return NULL;
    const size_t count = bytes - (size_t)(start + 1 - inner);
    if (nng_msg_alloc(&message, MARK_HEAD_BYTES + count + 1) != 0) return NULL;
    char *room = (char *)nng_msg_body(message) + MARK_HEAD_BYTES;
    memcpy(room, start + 1, count);
    room[count] = '}';
    const doorman_buffer rest = {.text = room, .bytes = count + 1};
    const char *method = doorman_method_name(job->method, false);
    const size_t head_bytes = server_mark_write(head, source, method, &rest);
    nng_msg_trim(message, MARK_HEAD_BYTES - head_bytes); /* see server_batch_open */
    memcpy(nng_msg_body(message), head, head_bytes);
    return message;
}

nng_msg *server_forward_message(struct forward_job *job, const size_t *indexes, size_t count,
                                const struct mark_source *source) {
    static const char word[] = "\"forwarded\"";
    assert(count > 0 && count <= job->count);
    const bool is_plain = job->is_body && count == job->count &&
                          !memmem(job->text, job->bytes, word, sizeof word - 1);
    if (is_plain) return message_make(job, job->text, job->bytes, source);
    char *inner = message_print(job, indexes, count);
    nng_msg *message = inner ? message_make(job, inner, strlen(inner), source) : NULL;
    cJSON_free(inner);
    return message;
}

/* ---- answers -------------------------------------------------------------------------------- */

static bool text_has(const char *text, size_t bytes, const char *word) {
    return memmem(text, bytes, word, strlen(word)) != NULL;
}

static const char *string_of(const cJSON *object, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text ? text : "";
}

/* Takes the answer to a whole message without parsing it. Returns false if it must be parsed. */
static bool take_whole(struct forward_job *job, const char *text, size_t bytes) {
    char head[48];
    const int length =
        snprintf(head, sizeof head, "{\"%s\":{", doorman_method_name(job->method, false));
    const size_t before = (size_t)length - 1;
    if (bytes < before + 3 || memcmp(text, head, (size_t)length) != 0) return false;
    if (text_has(text, bytes, "\"mastership\"") || text_has(text, bytes, "\"MOVED\"")) return false;
    job->whole = (char *)malloc(bytes);
    if (!job->whole) return false;
    job->whole_bytes = bytes - before - 1;
    memcpy(job->whole, text + before, job->whole_bytes);
    for (size_t i = 0; i < job->count; i++) job->entries[i].is_done = true;
    return true;
}

/* Takes an error. UNAVAILABLE is no error of the message, so the message tries again. */
static enum forward_result take_error(struct forward_job *job, const cJSON *error, const char *text,
                                      size_t bytes) {
    const char *code = string_of(error, "code");
    if (strcmp(code, "UNAVAILABLE") == 0) return FORWARD_LATER;
    if (!job->error) {
        job->error = (char *)malloc(bytes + 1);
        if (job->error) memcpy(job->error, text, bytes);
        job->error_bytes = bytes;
    }
    return FORWARD_WRONG;
}

static void take_entry(struct forward_job *job, struct forward_entry *entry, cJSON *answer) {
    const bool is_moved = strcmp(string_of(answer, "reason"), "MOVED") == 0;
    const bool is_gone = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "gone"));
    (void)job;
    if (entry->is_everywhere) {
        if (is_moved || is_gone) return;
    } else {
        entry->is_done = !is_moved;
    }
    cJSON_Delete(entry->answer);
    entry->answer = answer ? cJSON_Duplicate(answer, true) : NULL;
}

static enum forward_result take_tree(const struct forward_question *question, const cJSON *tree,
                                     char *master) {
    struct forward_job *job = question->job;
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    const cJSON *body =
        cJSON_GetObjectItemCaseSensitive(tree, doorman_method_name(job->method, false));
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(body, server_forward_list(job));
    const cJSON *mastership = cJSON_GetObjectItemCaseSensitive(body, "mastership");
    if (error) return take_error(job, error, question->link.text, question->link.bytes);
    if (mastership) {
        snprintf(master, DOORMAN_ID_BYTES_MAX + 1, "%s", string_of(mastership, "master_address"));
        return FORWARD_REDIRECT;
    }
    if ((size_t)cJSON_GetArraySize(list) != question->count) return FORWARD_LATER;
    cJSON *each = list->child;
    for (size_t i = 0; i < question->count; i++, each = each->next) {
        assert(question->indexes[i] < job->count);
        take_entry(job, &job->entries[question->indexes[i]], each);
    }
    return FORWARD_TAKEN;
}

enum forward_result server_forward_take(const struct forward_question *question,
                                        char master[DOORMAN_ID_BYTES_MAX + 1]) {
    struct forward_job *job = question->job;
    bool is_whole = question->count == job->count;
    for (size_t i = 0; i < job->count; i++) is_whole = is_whole && !job->entries[i].is_everywhere;
    master[0] = 0;
    if (is_whole && take_whole(job, question->link.text, question->link.bytes))
        return FORWARD_TAKEN;
    cJSON *tree = cJSON_ParseWithLength(question->link.text, question->link.bytes);
    const enum forward_result result = take_tree(question, tree, master);
    cJSON_Delete(tree);
    return result;
}

/* ---- the whole answer ----------------------------------------------------------------------- */

/* Returns the inner object of the reply of this process. If there is none, returns an object that
 * refuses each entry as MOVED. */
static cJSON *reply_start(const struct forward_job *job) {
    const char *name = doorman_method_name(job->method, false);
    cJSON *tree = NULL;
    if (job->has_reply) {
        const doorman_buffer *reply = &job->waiter->exchange->reply;
        tree = cJSON_ParseWithLength(reply->text, reply->bytes);
        if (job->is_body) return tree;
        cJSON *inner = cJSON_DetachItemFromObjectCaseSensitive(tree, name);
        cJSON_Delete(tree);
        return inner;
    }
    tree = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(tree, server_forward_list(job));
    for (size_t i = 0; list && i < job->count; i++) {
        cJSON *each = cJSON_CreateObject();
        if (job->method == DOORMAN_ACQUIRE) cJSON_AddStringToObject(each, "decision", "REFUSED");
        cJSON_AddStringToObject(each, "reason", "MOVED");
        if (job->method == DOORMAN_ACQUIRE) cJSON_AddNumberToObject(each, "item_index", 0);
        cJSON_AddItemToArray(list, each);
    }
    return tree;
}

/* Merges the answers. The caller frees the text with cJSON_free. */
static char *reply_merge(struct forward_job *job) {
    cJSON *tree = reply_start(job);
    cJSON *list = cJSON_GetObjectItemCaseSensitive(tree, server_forward_list(job));
    bool merged = (size_t)cJSON_GetArraySize(list) == job->count;
    cJSON *old = merged ? list->child : NULL;
    for (size_t i = 0; merged && i < job->count; i++) {
        cJSON *next = old->next, *answer = job->entries[i].answer;
        if (answer) merged = cJSON_ReplaceItemViaPointer(list, old, answer);
        if (answer && merged) job->entries[i].answer = NULL;
        old = next;
    }
    char *text = merged ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

static doorman_status error_status(const char *text, size_t bytes) {
    cJSON *tree = cJSON_ParseWithLength(text, bytes);
    const char *code = string_of(cJSON_GetObjectItemCaseSensitive(tree, "error"), "code");
    doorman_status found = DOORMAN_OUT_OF_MEMORY;
    for (int i = 0; i < DOORMAN_STATUS_COUNT; i++) {
        if (strcmp(code, doorman_status_name((doorman_status)i)) == 0) found = (doorman_status)i;
    }
    cJSON_Delete(tree);
    return found;
}

/* Returns the three texts as one, which the caller frees. */
static char *text_wrap(const char *before, const char *text, size_t bytes, const char *after) {
    const size_t size = strlen(before) + bytes + strlen(after) + 1;
    char *out = (char *)malloc(size);
    if (out) snprintf(out, size, "%s%.*s%s", before, (int)bytes, text, after);
    return out;
}

/* Returns the JSON of an error with the text of `failure`. The caller frees it. */
static char *text_of_failure(const char *failure) {
    cJSON *tree = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(tree, "error");
    cJSON_AddStringToObject(error, "code", "UNAVAILABLE");
    cJSON_AddStringToObject(error, "message", failure);
    char *printed = cJSON_PrintUnformatted(tree);
    char *text = printed ? text_wrap("", printed, strlen(printed), "") : NULL;
    cJSON_free(printed);
    cJSON_Delete(tree);
    return text;
}

/* Returns whether no entry has an answer. A reply of this process to several entries counts as an
 * answer. */
static bool job_has_nothing(const struct forward_job *job) {
    bool has = job->has_reply && job->count > 1;
    for (size_t i = 0; i < job->count; i++) {
        has = has || job->entries[i].answer || job->entries[i].is_done;
    }
    return !has;
}

char *server_forward_write(struct forward_job *job, bool is_body, doorman_status *status) {
    char head[48];
    snprintf(head, sizeof head, "{\"%s\":", doorman_method_name(job->method, false));
    *status = DOORMAN_OK;
    if (job->error) {
        *status = error_status(job->error, job->error_bytes);
        return text_wrap("", job->error, job->error_bytes, "");
    }
    if (job->failure[0] && job_has_nothing(job)) {
        *status = DOORMAN_UNAVAILABLE;
        return text_of_failure(job->failure);
    }
    const char *before = is_body ? "" : head, *after = is_body ? "" : "}";
    if (job->whole) return text_wrap(before, job->whole, job->whole_bytes, after);
    char *inner = reply_merge(job);
    char *text = inner ? text_wrap(before, inner, strlen(inner), after) : NULL;
    cJSON_free(inner);
    if (!text) *status = DOORMAN_OUT_OF_MEMORY;
    return text;
}
