/* doorman_server, part ADMIN: overrides and plan rows from a time before --shards.
 *
 * Without --shards a node keeps these rows in its own store. With --shards all nodes share such
 * rows, and their notes are in etcd. So a new master moves what its store still has: it puts a row
 * into force, writes it to etcd with an id of the cluster, and deletes it from its store. If the
 * cluster already has a row with this name, the master only deletes its own row. So a row that is
 * in both places, because a process has ended between these steps, is deleted from the store too. A
 * row that cannot be read stays. */
#include "admin.h"

/* Some notes of one kind that are being moved. */
struct adoption {
    struct service *service;
    const char *kind;
    uint64_t first_id; /* of the first note that is written. The next ids follow it */
    size_t most;       /* notes at once */
    bool failed;       /* out of memory */
    char last[24];     /* the identity of the note that was visited last */
    size_t old_count, new_count;
    char old_identities[STORE_NOTES_MAX][24], new_identities[STORE_NOTES_MAX][24];
    struct store_note olds[STORE_NOTES_MAX]; /* to delete from the store of the node */
    struct store_note news[STORE_NOTES_MAX]; /* to write to etcd */
    char *texts[STORE_NOTES_MAX];            /* of `news`, for cJSON_free */
};

/* Returns the text of a note for the cluster, with the id `id`, for cJSON_free. Returns NULL if
 * memory runs out. */
static char *adopt_text(const struct adoption *adoption, const struct store_note *note,
                        uint64_t id) {
    cJSON *json = cJSON_Parse(note->text);
    if (!cJSON_HasObjectItem(json, "audit")) {
        cJSON_AddNumberToObject(json, "audit", strtod(note->identity, NULL));
    }
    cJSON_DeleteItemFromObject(json, "id");
    cJSON_AddNumberToObject(json, "id", (double)id);
    if (!cJSON_HasObjectItem(json, "node")) {
        cJSON_AddStringToObject(json, "node", adoption->service->node);
    }
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    return text;
}

/* Puts an override into force. Returns false if it stays in the store.
 *   is_known   out: the cluster has a row with its name */
static bool adopt_override(const struct store_note *note, doorman_permits *permits, uint64_t id,
                           bool *is_known) {
    doorman_override_message message = {.expires_in = 0};
    doorman_override_info info;
    bool done = server_override_read(note, &message);
    *is_known = done && doorman_permits_find_override(permits, &message.row, &info);
    message.row.id = id;
    if (done && !*is_known) {
        done = doorman_permits_restore_override(permits, &message.row, NULL, doorman_clock()) ==
               DOORMAN_OK;
    }
    doorman_override_message_uninit(&message);
    return done;
}

/* Does the same for a plan row. */
static bool adopt_plan(const struct store_note *note, doorman_permits *permits, uint64_t id,
                       bool *is_known) {
    doorman_plans_message message = {.tree = NULL};
    doorman_plan_info info;
    bool done = server_plan_read(note, &message);
    doorman_plan_row row = {.id = 0};
    if (done) row = message.plans[0].row;
    *is_known = done && doorman_permits_find_plan(permits, &row, &info);
    row.id = id;
    if (done && !*is_known) {
        done = doorman_permits_restore_plan(permits, &row, NULL, doorman_clock()) == DOORMAN_OK;
    }
    doorman_plans_message_uninit(&message);
    return done;
}

static void adopt_log(const struct adoption *adoption, enum log_level level, const char *what,
                      const char *identity) {
    server_log(adoption->service->settings, level, what, adoption->kind, identity, LOG_END);
}

/* Adds a note to delete from the store of the node and, if is_written is true, to write to etcd. */
static void adopt_add(struct adoption *adoption, const struct store_note *note, bool is_written) {
    char *old_identity = adoption->old_identities[adoption->old_count];
    snprintf(old_identity, sizeof adoption->old_identities[0], "%s", note->identity);
    adoption->olds[adoption->old_count++] =
        (struct store_note){.kind = adoption->kind, .identity = old_identity};
    if (!is_written) return;
    const uint64_t id = adoption->first_id + adoption->new_count;
    char *identity = adoption->new_identities[adoption->new_count];
    snprintf(identity, sizeof adoption->new_identities[0], "%020" PRIu64, id);
    char *text = adopt_text(adoption, note, id);
    adoption->texts[adoption->new_count] = text;
    adoption->news[adoption->new_count++] = (struct store_note){
        .kind = adoption->kind, .identity = identity, .ends_at = note->ends_at, .text = text};
    if (!text) adoption->failed = true;
}

static bool adopt_visit(void *context, const struct store_note *note) {
    struct adoption *adoption = (struct adoption *)context;
    struct service *service = adoption->service;
    const uint64_t id = adoption->first_id + adoption->new_count;
    const bool is_plan = strcmp(adoption->kind, PLAN_NOTE) == 0;
    const bool has_ended = note->ends_at > 0 && note->ends_at <= (int64_t)time(NULL);
    bool is_known = false, done = has_ended;
    snprintf(adoption->last, sizeof adoption->last, "%s", note->identity);
    server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    if (permits && !has_ended) {
        done = is_plan ? adopt_plan(note, permits, id, &is_known)
                       : adopt_override(note, permits, id, &is_known);
    }
    server_unlock(&service->lock);
    if (!permits) return false;
    if (!done) {
        adopt_log(adoption, LEVEL_ERROR, "a row from before --shards cannot be read, and stays",
                  note->identity);
        return true;
    }
    if (is_known) {
        adopt_log(
            adoption, LEVEL_WARNING,
            "a row from before --shards is removed, because the nodes share one with its name",
            note->identity);
    }
    adopt_add(adoption, note, !has_ended && !is_known);
    return !adoption->failed && adoption->old_count < adoption->most;
}

/* Moves the next notes. Returns false if a store has failed, or memory has run out.
 *   left    out: there are more
 *   count   in/out: rows that were moved */
static bool adopt_some(struct adoption *adoption, struct store *from, struct store *to, bool *left,
                       size_t *count) {
    char before[24];
    const bool is_plan = strcmp(adoption->kind, PLAN_NOTE) == 0;
    snprintf(before, sizeof before, "%s", adoption->last);
    adoption->old_count = adoption->new_count = 0;
    adoption->most = is_plan ? STORE_NOTES_MAX : 1; /* each write has one id for overrides */
    adoption->first_id = (server_store_epoch(to) + 1) << (is_plan ? PLAN_ID_BITS : 0);
    bool done =
        server_store_list_notes(from, adoption->kind, before, adopt_visit, adoption) == STORE_OK &&
        !adoption->failed;
    if (done && adoption->new_count) {
        done = server_store_put_notes(to, adoption->news, adoption->new_count) == STORE_OK;
    }
    if (done && adoption->old_count) {
        done = server_store_put_notes(from, adoption->olds, adoption->old_count) == STORE_OK;
    }
    for (size_t i = 0; i < adoption->new_count; i++) cJSON_free(adoption->texts[i]);
    *left = adoption->old_count == adoption->most;
    *count += done ? adoption->new_count : 0;
    return done;
}

bool server_rows_adopt(struct service *service, struct store *from, struct store *to) {
    static const char *const kinds[] = {OVERRIDE_NOTE, PLAN_NOTE};
    struct adoption *adoption = (struct adoption *)malloc(sizeof *adoption);
    bool done = adoption != NULL;
    size_t count = 0;
    for (size_t i = 0; done && i < sizeof kinds / sizeof *kinds; i++) {
        *adoption = (struct adoption){.service = service, .kind = kinds[i]};
        for (bool left = true; done && left;) {
            done = adopt_some(adoption, from, to, &left, &count);
        }
    }
    free(adoption);
    if (!count) return done;
    char number[24];
    snprintf(number, sizeof number, "%zu", count);
    server_log(service->settings, LEVEL_INFO,
               "overrides and plans from before --shards hold at all nodes now", "rows", number,
               LOG_END);
    return done;
}
