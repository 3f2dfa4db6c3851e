/* doorman_server, part ADMIN: overrides and plans of a cluster.
 *
 * With --shards another node can become the owner of a key, and a glob matches keys of all nodes.
 * So the rows of overrides and plans are notes that all nodes share (server/shards/shards.h, "the
 * notes of the cluster"). Any master takes an act:
 *
 *     checked     on the thread of its store: the token, and what its audit says
 *     announced   there: a row of its audit with "known": false
 *     looked at   on the thread of the shards: the notes are read if others have written, and
 *     again       what the act replaces is looked up once more
 *     written     there. The first write only succeeds if nobody has written since; otherwise the
 *                 act is looked at again
 *     applied     there, with the lock; the other masters read it within a second
 *     confirmed   on the thread of the store: the row of the audit, with its outcome
 *
 * If etcd cannot be read, nothing is changed, and the answer says so. If it is not known whether
 * etcd has the notes, the row of the audit stays as it was announced.
 *
 * A row that adds units to a bucket gives them to a counter, which only the owner of its key has.
 * So only the owner takes such an act, as with resets. */
#include "admin.h"
#ifdef DOORMAN_SERVER_SHARDS
#include "../shards/shards.h"

#define WRITE_TRIES 20 /* each failure is an act of another node that has succeeded */
#define TRIM_INTERVAL (3600 * DOORMAN_SECOND)

/* ---- on the thread of the shards ------------------------------------------------------------ */

/* Reads what others have written, and then makes the notes of an act. Returns false if the act is
 * refused. */
static bool cluster_prepare(struct act *act, struct store *store) {
    uint64_t revision = 0;
    server_act_clear_notes(act);
    if (!server_shards_refresh(act->service, &revision)) {
        return server_act_refuse(act, 503, "UNAVAILABLE",
                                 "nothing was changed, because etcd, which has the overrides and "
                                 "plans of all nodes, cannot be used: %s",
                                 server_store_error(store));
    }
    act->row_id = revision + 1;
    cJSON_DeleteItemFromObject(act->row, "row");
    if (!act->look_again(act)) return false;
    cJSON_AddNumberToObject(act->row, "row", (double)act->row_id);
    return act->add_notes(act) || server_act_refuse(act, 500, "INTERNAL", "out of memory");
}

/* Writes the other notes of an act whose first notes are written. Other nodes may have written in
 * between: of two rows with one name, the row with the larger id counts. */
static enum store_result cluster_finish(struct act *act, struct store *store) {
    enum store_result result = STORE_OUTDATED;
    for (int i = 0; i < WRITE_TRIES && result == STORE_OUTDATED; i++) {
        result = server_store_begin(store, 0);
        if (result == STORE_OK) result = server_act_put_notes(act, store);
    }
    return result;
}

/* Refuses an act whose notes could not all be written to etcd. */
static void cluster_fail(struct act *act, const struct store *store) {
    const bool is_late = server_store_is_unsure(store);
    act->is_unsure = act->is_unsure || is_late || act->written > 0;
    if (is_late) server_shards_note_late(act->service, act->row_id);
    server_act_refuse(act, 503, "UNAVAILABLE",
                      "%s: etcd, which has the overrides and plans of all "
                      "nodes, cannot keep it: %s",
                      act->written > 0 ? "only a part of this was changed, or all of it; look at "
                                         "the list"
                      : is_late        ? "it is not known whether this was done; look at the list "
                                         "when etcd answers again"
                                       : "nothing was changed",
                      server_store_error(store));
}

/* Removes notes that have ended, at most once in TRIM_INTERVAL. What cannot be removed now is
 * removed later. */
static void cluster_trim(struct service *service, struct store *store) {
    static const char *const kinds[] = {OVERRIDE_NOTE, PLAN_NOTE};
    const doorman_time now = doorman_clock();
    uint64_t revision = 0;
    if (now < service->shards->trim_at) return;
    service->shards->trim_at = now + TRIM_INTERVAL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (server_shards_refresh(service, &revision)) (void)server_notes_trim(store, kinds[i]);
    }
}

static void cluster_write(struct service *service, struct store *store, void *context) {
    struct act *act = (struct act *)context;
    enum store_result result = STORE_OUTDATED;
    for (int i = 0; i < WRITE_TRIES && result == STORE_OUTDATED && act->written == 0; i++) {
        if (!cluster_prepare(act, store)) return;
        result = server_act_put_notes(act, store);
    }
    if (result == STORE_OUTDATED && act->written > 0) result = cluster_finish(act, store);
    if (act->written > 0) {
        server_lock(&service->lock);
        act->apply(act);
        act->is_unsure = act->code != 0; /* the notes are written, and not in force here */
        server_unlock(&service->lock);
    }
    if (result != STORE_OK) cluster_fail(act, store);
    if (result == STORE_OK) cluster_trim(service, store);
}

/* ---- on the thread of pages ----------------------------------------------------------------- */

/* Lets the thread of the shards write an act. Returns false if that thread still has the act, and
 * will free it. Then the response is an error. */
static bool cluster_call(struct act *act, struct http_response *response) {
    char why[CALL_TEXT], error[ACT_TEXT];
    const bool shared_before = act->shared_before;
    act->call.run = cluster_write;
    const enum call_result result = server_shards_call(act->service, &act->call, why);
    if (result == CALL_REFUSED) {
        server_act_refuse(act, 503, "UNAVAILABLE", "nothing was changed: %s", why);
    }
    if (result != CALL_LOST) return true;
    snprintf(error, sizeof error, "it is not known whether this was done; look at the list: %s",
             why);
    server_http_response_set_unavailable(response, error);
    server_shares_memory = shared_before;
    return false;
}

/* Writes the outcome into the row of the audit.
 *   returns   false: the act is freed, or will be, and the response is an error */
static bool cluster_confirm(struct act *act, struct http_response *response) {
    struct http_response failure = server_http_response_init(NULL);
    char refusal[ACT_TEXT] = "";
    const int code = act->code;
    const char *name = act->name;
    server_act_clear_notes(act);
    act->look_again = NULL;
    act->apply = NULL;
    if (code) snprintf(refusal, sizeof refusal, "%s", act->error);
    act->code = 0;
    if (act->is_unsure) {
        server_act_free(act); /* so its row stays as it was announced */
    } else if (!code) {
        return server_act_confirm(act, NULL, response);
    } else if (server_act_confirm(act, refusal, &failure)) {
        server_act_free(act);
    }
    doorman_buffer_uninit(&failure.text.buffer);
    server_http_response_set_error(response, code, name, refusal);
    if (code == 503) response->more = "Retry-After: 1\r\n";
    return false;
}

static bool cluster_run(struct act *act, struct http_response *response) {
    bool (*add_notes)(struct act * act) = act->add_notes;
    void (*apply)(struct act * act) = act->apply;
    act->add_notes = NULL;
    act->apply = NULL;
    act->announces = true;
    if (!server_act_run(act, response)) return false;
    act->add_notes = add_notes;
    act->apply = apply;
    return cluster_call(act, response) && cluster_confirm(act, response);
}

#endif

bool server_act_run_rows(struct act *act, struct http_response *response) {
#ifdef DOORMAN_SERVER_SHARDS
    if (act->service->settings->shards) return cluster_run(act, response);
#endif
    return server_act_run(act, response);
}

enum call_result server_notes_read(struct service *service, const char *kind,
                                   struct state_call *call, char why[CALL_TEXT]) {
#ifdef DOORMAN_SERVER_SHARDS
    const bool is_row = strcmp(kind, OVERRIDE_NOTE) == 0 || strcmp(kind, PLAN_NOTE) == 0;
    if (service->settings->shards && is_row) return server_shards_call(service, call, why);
#else
    (void)kind;
#endif
    return server_state_call(service, call, why);
}

#ifdef DOORMAN_SERVER_SHARDS
/* Moves rows from the store of this node to etcd, once in each mastership. If a store fails, the
 * node still decides, and the next reading tries again. */
static void cluster_adopt(struct service *service, struct store *store) {
    struct shards *shards = service->shards;
    if (shards->has_adopted) return;
    struct store *own = server_shards_store(shards);
    shards->has_adopted = own && server_rows_adopt(service, own, store);
    if (shards->has_adopted || !own) return;
    const char *error = server_store_error(own);
    server_shards_fail(shards, "overrides and plans from before --shards do not hold yet",
                       error[0] ? error : server_store_error(store));
}
#endif

/* Puts the rows that all nodes share into force. */
static bool cluster_read(struct service *service, struct store *store, uint64_t late,
                         bool is_whole) {
    const struct rows_wanted wanted = {
        .ends_others = is_whole, .late_id = late, .deletes = is_whole, .is_shared = true};
    if (!server_rows_read(service, store, &wanted)) return false;
#ifdef DOORMAN_SERVER_SHARDS
    /* An earlier call of cluster_adopt may have put a row into force, and then failed to write it
     * to etcd. Only a whole reading ends such a row. If it stayed, cluster_adopt would take it for
     * a row of the cluster, and delete it from the store of the node. */
    if (is_whole) cluster_adopt(service, store);
#endif
    return true;
}

const struct server_part server_part_admin_cluster = {.read_cluster = cluster_read};
