/* doorman_server, part SHARDS: the notes that all nodes of a cluster share. shards.h says how.
 *
 * Only the thread of the part reads and changes them, one call after the other. So no reading
 * replaces the result of a later one. */
#include "shards.h"

#define CALL_LOOK (DOORMAN_SECOND / 5) /* between two looks whether the call can still be made */

bool server_shard_notes_follow(struct shards *shards) {
    struct store *notes = shards->notes;
    shards->notes_at = doorman_clock();
    if (server_store_begin(notes, 0) != STORE_OK) return false;
    const uint64_t revision = server_store_epoch(notes);
    const bool has_all = shards->has_notes && shards->has_adopted;
    if (has_all && revision == shards->notes_revision) return true;
    const bool is_whole = revision >= shards->notes_revision;
    bool is_read = true;
    EACH_PART(part, read_cluster) {
        is_read =
            is_read && (*part)->read_cluster(shards->service, notes, shards->notes_late, is_whole);
    }
    if (!is_read) return false;
    shards->has_notes = true;
    shards->notes_revision = revision;
    shards->notes_late = 0;
    return true;
}

bool server_shards_refresh(struct service *service, uint64_t *revision) {
    struct shards *shards = service->shards;
    const bool is_read = server_shard_notes_follow(shards);
    *revision = shards->notes_revision;
    return is_read;
}

void server_shards_note_late(struct service *service, uint64_t id) {
    service->shards->notes_late = id;
}

void server_shard_notes_run_call(struct shards *shards) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    struct state_call *call = server_shards_permits(shards) ? shards->call : NULL;
    if (call) {
        shards->call = NULL;
        call->has_begun = true;
    }
    server_unlock(&service->lock);
    if (!call) return;
    call->run(service, shards->notes, call->context);
    server_lock(&service->lock);
    const bool is_lost = call->is_lost;
    call->is_over = true;
    pthread_cond_broadcast(&shards->finished);
    server_unlock(&service->lock);
    if (is_lost) call->drop(call->context);
}

/* Returns why no call can be made, or NULL. Precondition: the lock is held. */
static const char *notes_forbid_call(const struct service *service) {
    assert(server_lock_is_held(&service->lock));
    if (service->stopping || service->shards->stops) return "the server is stopping";
    if (server_pauses(service)) return "this process hands over to another one";
    return doorman_server_permits(service->server) ? NULL : "this process is not the master";
}

enum call_result server_shards_call(struct service *service, struct state_call *call,
                                    char why[CALL_TEXT]) {
    struct shards *shards = service->shards;
    doorman_time now = doorman_clock(), until = now + CALL_SECONDS * DOORMAN_SECOND;
    server_lock(&service->lock);
    const char *forbids = notes_forbid_call(service);
    call->has_begun = call->is_over = call->is_lost = false;
    if (!forbids) shards->call = call;
    pthread_cond_signal(&shards->changed);
    while (!forbids && !call->is_over && now < until) {
        server_condition_wait(&shards->finished, &service->lock, CALL_LOOK);
        now = doorman_clock();
        if (!call->has_begun) forbids = notes_forbid_call(service);
    }
    const bool is_over = call->is_over, has_begun = call->has_begun;
    call->is_lost = has_begun && !is_over;
    if (!has_begun) shards->call = NULL;
    snprintf(why, CALL_TEXT, "%s: %s",
             forbids ? forbids : "etcd, which has the overrides and plans, does not answer",
             shards->trouble.since ? shards->trouble.reason : "try again, and look at the log");
    server_unlock(&service->lock);
    if (is_over) return CALL_OVER;
    return has_begun ? CALL_LOST : CALL_REFUSED;
}
