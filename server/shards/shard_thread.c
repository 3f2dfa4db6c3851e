/* doorman_server, part SHARDS: the thread that does what the mover says (N3, N7).
 *
 * The thread reads the map twice a second, and forty times a second while shards move, so that the
 * next owner of a shard begins soon. These reads are linearizable, so the mover relies on each
 * (is_sure of doorman_shard_mover_map). The thread works for one mastership at a time. When the
 * process becomes master, it owns no shard, and the thread takes the shards that the map gives to
 * its node. While the part STATE still reads the rows of the store, durable limits answer LEARNING,
 * or after --state-wait as on_unread says. When all rows are read, and before it gives a shard, the
 * thread forgets the rows of shards that have moved away. The overrides and plans of the cluster
 * are read before the first shard is taken.
 *
 * A node puts itself into the map, with the nng and HTTP addresses of its processes. So an operator
 * can move shards to a new node without adding the node first. The first process of all makes the
 * map, in which its node owns every shard. */
#include "shards.h"

#include <nng/supplemental/util/platform.h>

#define LOOK (DOORMAN_SECOND / 2)         /* between two reads of the map */
#define LOOK_MOVING (DOORMAN_SECOND / 40) /* the same while shards move */
#define UNSURE_MAX 3 /* changes of the map that others have overtaken, in a row */
#define PACE 4       /* the pause after a shard, in multiples of the time it was closed */
#define PACE_MAX DOORMAN_SECOND /* at most */
#define FIRST_TRIES 20          /* of etcd at the start, one each half second */
#define CHANGE_SECONDS 60       /* for a change; only FORCE takes more than a moment */

static void shards_log_move(struct shards *shards, const char *what, size_t shard,
                            const char *node) {
    char number[24];
    snprintf(number, sizeof number, "%zu", shard);
    server_log(shards->service->settings, LEVEL_INFO, what, "shard", number, "node", node, LOG_END);
}

/* ---- the map -------------------------------------------------------------------------------- */

/* Returns the number of templates up to the last one that is sharded by resource. Only these need
 * rules in a map. */
static size_t shards_count_rules(const doorman_config_options *read) {
    size_t count = 0;
    for (size_t i = 0; i < read->template_count; i++) {
        if (read->templates[i].shard_by_resource) count = i + 1;
    }
    return count;
}

/* Gives the map to clients, with the rules of the configuration in force, and without the election
 * keys. If memory runs out, clients keep the last map. Precondition: the lock is held. */
static void shards_tell_clients(const struct shards *shards) {
    assert(server_lock_is_held(&shards->service->lock));
    const struct service *service = shards->service;
    doorman_config_options read;
    doorman_config_read(service->config, &read);
    const size_t count = shards_count_rules(&read);
    doorman_shard_map told = *shards->map;
    doorman_shard_rule *rules = (doorman_shard_rule *)calloc(count + 1, sizeof *rules);
    doorman_shard_node *nodes = (doorman_shard_node *)calloc(told.node_count, sizeof *nodes);
    for (size_t i = 0; rules && i < count; i++) {
        rules[i] = (doorman_shard_rule){read.templates[i].identifier_glob,
                                        read.templates[i].shard_by_resource};
    }
    for (size_t i = 0; nodes && i < told.node_count; i++) {
        nodes[i] = told.nodes[i];
        nodes[i].election_key = NULL;
    }
    told.rules = rules;
    told.rule_count = count;
    told.nodes = nodes;
    if (rules && nodes) (void)doorman_server_set_shard_map(service->server, &told);
    free(rules);
    free(nodes);
}

/* Gives the map to other threads, and to clients. */
static void shards_publish(struct shards *shards) {
    struct service *service = shards->service;
    doorman_shard_map *copy = NULL, *last = NULL;
    if (!shards->key.map) return;
    if (doorman_shard_map_create(&copy, shards->key.map, NULL) != DOORMAN_OK) return;
    server_lock(&service->lock);
    if (!shards->map || shards->map->epoch != copy->epoch) {
        last = shards->map;
        shards->map = copy;
        copy = NULL;
        if (service->server) shards_tell_clients(shards);
    }
    server_unlock(&service->lock);
    doorman_shard_map_destroy(copy);
    doorman_shard_map_destroy(last);
}

static bool shards_read(struct shards *shards) {
    if (!server_shard_key_read(&shards->key)) {
        server_shards_fail(shards, "the map of shards cannot be read", shards->key.error);
        return false;
    }
    shards_publish(shards);
    return true;
}

/* Addresses of a node, over nng or HTTP. */
struct node_addresses {
    const char *all[DOORMAN_SHARD_ADDRESSES_MAX];
    size_t count;
};

/* Returns `all`, the addresses of a node, and after them `address` if it is new. A list that is
 * full loses its first address, which is the oldest.
 *   address   "": none
 *   is_new    set to true if the node did not have it */
static struct node_addresses addresses_with(const char *const *all, size_t count,
                                            const char *address, bool *is_new) {
    struct node_addresses out = {.count = 0};
    bool is_known = !address[0];
    for (size_t i = 0; i < count; i++) is_known = is_known || strcmp(all[i], address) == 0;
    const size_t first = !is_known && count == DOORMAN_SHARD_ADDRESSES_MAX ? 1 : 0;
    assert(count <= DOORMAN_SHARD_ADDRESSES_MAX);
    for (size_t i = first; i < count; i++) out.all[out.count++] = all[i];
    if (!is_known) out.all[out.count++] = address;
    *is_new = *is_new || !is_known;
    return out;
}

/* Returns whether the map has no other election key for this node, and no other node with its
 * election key. Otherwise one node could have two masters, or two nodes could share one.
 *   why   out: the text, if false */
static bool shards_fit(const struct shards *shards, char why[PROBLEM_TEXT]) {
    const doorman_shard_map *map = shards->key.map;
    const char *key = shards->service->settings->election_key;
    for (size_t i = 0; map && i < map->node_count; i++) {
        const doorman_shard_node *node = &map->nodes[i];
        const bool is_name = strcmp(node->name, shards->node) == 0;
        if (!node->election_key || is_name == (strcmp(node->election_key, key) == 0)) continue;
        if (is_name) {
            snprintf(
                why, PROBLEM_TEXT,
                "the map has a node '%.128s' with --election-key %.128s, not %.128s: give this "
                "process the same key, or another --node",
                node->name, node->election_key, key);
        } else {
            snprintf(
                why, PROBLEM_TEXT,
                "the map has the node '%.128s' with --election-key %.128s: each node needs its "
                "own key, and all processes of a node have the same --node",
                node->name, key);
        }
        return false;
    }
    return true;
}

/* Puts this process into the map, unless it is there with its addresses, or the map is full. */
static void shards_join(struct shards *shards) {
    const struct service *service = shards->service;
    const doorman_shard_map *map = shards->key.map;
    const struct shard_conditions none = {.election_key = NULL};
    if (!map) return;
    const size_t at = doorman_shard_map_node(map, shards->node);
    const bool is_known = at < map->node_count;
    const doorman_shard_node last =
        is_known ? map->nodes[at] : (doorman_shard_node){.name = shards->node};
    bool is_new = !is_known;
    const struct node_addresses addresses =
        addresses_with(last.addresses, last.address_count, service->advertise, &is_new);
    const struct node_addresses http = addresses_with(last.http_addresses, last.http_address_count,
                                                      service->http_advertise, &is_new);
    if (!is_new || (!is_known && map->node_count == DOORMAN_SHARD_NODES_MAX)) return;
    struct shard_edit *edit = (struct shard_edit *)calloc(1, sizeof *edit);
    if (!edit) return;
    server_shard_edit(edit, map);
    assert(at < DOORMAN_SHARD_NODES_MAX);
    edit->nodes[at] = (doorman_shard_node){.name = shards->node,
                                           .addresses = addresses.all,
                                           .address_count = addresses.count,
                                           .http_addresses = http.all,
                                           .http_address_count = http.count,
                                           .election_key = service->settings->election_key};
    if (!is_known) edit->map.node_count++;
    if (server_shard_key_write(&shards->key, &edit->map, &none) == SHARD_WRITTEN) {
        server_log(service->settings, LEVEL_INFO,
                   is_known ? "a process of this node is in the map of shards"
                            : "this node is in the map of shards, and has no shard yet",
                   "key", shards->key.name, "node", shards->node, LOG_END);
        shards_publish(shards);
    }
    free(edit);
}

/* Makes the first map, unless another process was faster. The map has no HTTP address yet, because
 * HTTP does not listen yet. */
static void shards_make_map(struct shards *shards, size_t count) {
    const struct service *service = shards->service;
    const char *const addresses[] = {service->advertise};
    const doorman_shard_node node = {.name = shards->node,
                                     .addresses = addresses,
                                     .address_count = 1,
                                     .election_key = service->settings->election_key};
    const struct shard_conditions none = {.election_key = NULL};
    doorman_shard owners[DOORMAN_SHARDS_MAX] = {{.owner = 0}};
    doorman_shard_map map = {.epoch = 1, .owners = owners, .nodes = &node, .node_count = 1};
    map.shards.count = count;
    for (int i = 0; i < 4; i++) {
        map.shards.seed[i / 2] = map.shards.seed[i / 2] << 32 | nng_random();
    }
    if (server_shard_key_write(&shards->key, &map, &none) != SHARD_WRITTEN) return;
    server_log(service->settings, LEVEL_INFO, "the map of shards is made; this node owns all",
               "key", shards->key.name, "node", shards->node, LOG_END);
}

/* ---- what the mover says -------------------------------------------------------------------- */

/* Notes the states of the shards for other threads. */
static void shards_note_states(struct shards *shards) {
    const size_t count = shards->key.map ? shards->key.map->shards.count : 0;
    assert(count <= DOORMAN_SHARDS_MAX);
    server_lock(&shards->service->lock);
    for (size_t i = 0; i < count; i++) {
        shards->states[i] = (unsigned char)doorman_shard_mover_state(shards->mover, i);
    }
    server_unlock(&shards->service->lock);
}

/* Makes this process decide for a shard from now on. */
static bool shards_own(struct shards *shards, size_t shard, bool is_lost) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    doorman_permits *permits = server_shards_permits(shards);
    if (permits) (void)doorman_permits_own(permits, shard, true, !is_lost, doorman_clock());
    server_unlock(&service->lock);
    return permits != NULL;
}

/* Returns whether the store is still being read. */
static bool shards_await_rows(const struct shards *shards) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    const bool waits = service->state_status && service->state_status->is_reading;
    server_unlock(&service->lock);
    return waits;
}

static doorman_shard_result shards_take(struct shards *shards, const doorman_shard_action *action) {
    bool is_lost = action->is_lost;
    if (action->move && shards_await_rows(shards)) return DOORMAN_SHARD_FAILED;
    /* If this node owned the shard when its mastership began, its own rows may be newer than the
     * rows of the move. Otherwise they are older. */
    const bool is_old = action->move && shards->has_taken_own && !shards->has_swept;
    if (is_old && !server_shard_drop(shards, action->shard)) return DOORMAN_SHARD_FAILED;
    if (!server_shard_take(shards, action->shard, action->move, &is_lost) ||
        !shards_own(shards, action->shard, is_lost)) {
        return DOORMAN_SHARD_FAILED;
    }
    if (!action->move) return DOORMAN_SHARD_DONE;
    shards->flush_wanted = server_state_want_flush(shards->service);
    shards_log_move(shards, "a shard has come to this node", action->shard, shards->node);
    server_lock(&shards->service->lock);
    shards->moved_in++;
    server_unlock(&shards->service->lock);
    return DOORMAN_SHARD_DONE;
}

/* Changes the map as the mover says: COMMIT, or SETTLE. */
static doorman_shard_result shards_commit(struct shards *shards,
                                          const doorman_shard_action *action) {
    const doorman_shard_map *map = shards->key.map;
    const struct shard_conditions own = {.election_key = shards->service->settings->election_key,
                                         .epoch = shards->mastership};
    struct shard_edit *edit = (struct shard_edit *)calloc(1, sizeof *edit);
    if (!edit || map->epoch != action->epoch) {
        free(edit);
        return DOORMAN_SHARD_FAILED;
    }
    server_shard_edit(edit, map);
    uint64_t settled[DOORMAN_SHARDS_MAX] = {0};
    const bool commits = action->step == DOORMAN_SHARD_COMMIT;
    if (commits) {
        edit->owners[action->shard] = (doorman_shard){
            .owner = action->target, .target = action->target, .from = action->move};
    }
    for (size_t i = 0; !commits && i < map->shards.count; i++) {
        if (doorman_shard_mover_state(shards->mover, i) != DOORMAN_SHARD_OWNED) continue;
        settled[i] = edit->owners[i].from;
        edit->owners[i].from = 0;
        edit->owners[i].is_lost = false;
    }
    const enum shard_write write = server_shard_key_write(&shards->key, &edit->map, &own);
    if (write != SHARD_WRITTEN) {
        server_shards_fail(shards, "the map of shards cannot be changed", shards->key.error);
    } else if (commits) {
        shards_log_move(shards, "a shard has left this node", action->shard,
                        shards->key.map->nodes[action->target].name);
        server_lock(&shards->service->lock);
        shards->moved_out++;
        server_unlock(&shards->service->lock);
        const doorman_time now = doorman_clock(), pause = PACE * (now - shards->closed_at);
        shards->give_at = now + (pause < PACE_MAX ? pause : PACE_MAX);
    }
    for (size_t i = 0; write == SHARD_WRITTEN && i < DOORMAN_SHARDS_MAX; i++) {
        if (settled[i])
            (void)server_store_drop_shard(shards->store, shards->key.name, i, settled[i]);
    }
    if (write == SHARD_WRITTEN) shards_publish(shards);
    free(edit);
    return write == SHARD_WRITTEN ? DOORMAN_SHARD_DONE : DOORMAN_SHARD_UNKNOWN;
}

/* Does an action of the mover, except READ_MAP. */
static doorman_shard_result shards_do(struct shards *shards, const doorman_shard_action *action) {
    bool done = false;
    if (action->step == DOORMAN_SHARD_TAKE) return shards_take(shards, action);
    if (action->step == DOORMAN_SHARD_COMMIT || action->step == DOORMAN_SHARD_SETTLE) {
        return shards_commit(shards, action);
    }
    if (action->step == DOORMAN_SHARD_GIVE) {
        done = server_shard_give(shards, action->shard, action->move);
    } else if (action->step == DOORMAN_SHARD_RESUME) {
        done = shards_own(shards, action->shard, false);
        if (done) {
            (void)server_store_drop_shard(shards->store, shards->key.name, action->shard,
                                          action->move);
        }
    } else if (action->step == DOORMAN_SHARD_DROP) {
        done = server_shard_drop(shards, action->shard);
    }
    return done ? DOORMAN_SHARD_DONE : DOORMAN_SHARD_FAILED;
}

/* Gives the mover the map that was read last. Returns false if there is none, or if memory runs
 * out. */
static bool shards_tell(struct shards *shards) {
    if (!shards->key.map) return false;
    if (doorman_shard_mover_map(shards->mover, shards->key.map, true) == DOORMAN_OK) return true;
    server_shards_fail(shards, "the map of shards cannot be used", "out of memory");
    return false;
}

/* Forgets the rows of shards that have moved away, before the first action that is not READ_MAP or
 * TAKE. Returns whether the action must wait, for example while the store is being read. */
static bool shards_wait(struct shards *shards, const doorman_shard_action *action) {
    if (shards->has_swept || action->step == DOORMAN_SHARD_READ_MAP ||
        action->step == DOORMAN_SHARD_TAKE) {
        return false;
    }
    if (shards_await_rows(shards)) return true;
    shards->has_swept = server_shard_drop(shards, DOORMAN_SHARDS_AWAY);
    return !shards->has_swept;
}

/* Notes that the thread has taken all shards that the node owned when this mastership began. Warns
 * if the store has counters, but the node has no shards: it had keys of its own before it joined,
 * or another node has taken its shards. */
static void shards_note_own(struct shards *shards) {
    struct service *service = shards->service;
    doorman_permits_info info = {.counter_count = 0};
    char number[24];
    bool owns = false;
    if (shards->has_taken_own || shards_await_rows(shards)) return;
    shards->has_taken_own = true;
    for (size_t i = 0; i < shards->key.map->shards.count; i++) {
        owns = owns || doorman_shard_mover_state(shards->mover, i) != DOORMAN_SHARD_AWAY;
    }
    server_lock(&service->lock);
    const doorman_permits *permits = server_shards_permits(shards);
    if (permits) doorman_permits_read(permits, &info);
    server_unlock(&service->lock);
    if (owns || !info.counter_count) return;
    snprintf(number, sizeof number, "%zu", info.counter_count);
    server_log(service->settings, LEVEL_WARNING,
               "this node has no shard, so the counters of its store do not count; they are "
               "forgotten when a shard comes or goes",
               "node", shards->node, "counters", number, LOG_END);
}

/* Returns whether a shard must wait before it is given (N7). The pause is PACE times as long as the
 * last shard was closed here. That shard is then closed at its next owner for about as long. So if
 * PACE_MAX does not cut the pause, there is a closed shard for less than half of the time. With 64
 * shards, less than 1 % of the permits are for a closed shard. No shard waits while another one,
 * which is closed already, comes to this node. */
static bool shards_pace(const struct shards *shards, const doorman_shard_action *action) {
    if (action->step != DOORMAN_SHARD_GIVE || doorman_clock() >= shards->give_at) return false;
    bool takes = false;
    for (size_t i = 0; i < shards->key.map->shards.count; i++) {
        takes = takes || doorman_shard_mover_state(shards->mover, i) == DOORMAN_SHARD_TAKING;
    }
    return !takes;
}

/* Does what the mover says, until nothing is due, an action fails or must wait, or other work
 * waits. While shards move, several nodes change the map, and one of two changes at the same time
 * is refused. Then the thread reads the map again without a pause: until the change succeeds, a
 * shard may have no node that decides for it. */
static void shards_act(struct shards *shards) {
    doorman_shard_action action;
    bool goes_on = true;
    int unsure = 0;
    while (goes_on) {
        const bool stored = server_state_is_flushed(shards->service, shards->flush_wanted);
        if (!doorman_shard_mover_next(shards->mover, stored, &action)) {
            shards_note_own(shards);
            break;
        }
        if (shards_wait(shards, &action) || shards_pace(shards, &action)) break;
        if (action.step == DOORMAN_SHARD_READ_MAP) {
            goes_on = shards_read(shards) && shards_tell(shards);
            if (!goes_on) doorman_shard_mover_end(shards->mover, DOORMAN_SHARD_FAILED);
        } else {
            const doorman_shard_result result = shards_do(shards, &action);
            doorman_shard_mover_end(shards->mover, result);
            unsure = result == DOORMAN_SHARD_UNKNOWN ? unsure + 1 : 0;
            goes_on = result != DOORMAN_SHARD_FAILED && unsure <= UNSURE_MAX;
        }
        shards_note_states(shards);
        server_lock(&shards->service->lock);
        goes_on = goes_on && !shards->stops && !shards->call && server_shards_permits(shards);
        server_unlock(&shards->service->lock);
        if (doorman_clock() - shards->notes_at > LOOK) break; /* others may have written notes */
    }
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Starts and stops the mover with the masterships. Returns whether this process is master. */
static bool shards_follow(struct shards *shards) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    const bool is_new = shards->victory != shards->victories;
    shards->victory = shards->victories;
    shards->mastership = shards->epoch;
    const bool is_master = server_shards_permits(shards) != NULL;
    server_unlock(&service->lock);
    if (is_new || !is_master) doorman_shard_mover_stop(shards->mover);
    if (is_new && is_master) {
        doorman_shard_mover_start(shards->mover);
        shards->has_taken_own = shards->has_swept = false;
        shards->has_notes = shards->has_adopted = false;
        shards->flush_wanted = 0;
    }
    return is_master;
}

static void shards_run_change(struct shards *shards) {
    struct service *service = shards->service;
    server_lock(&service->lock);
    struct shard_change change = shards->change;
    const bool waits = shards->change_state == CHANGE_WAITS;
    if (waits) shards->change_state = CHANGE_RUNS;
    server_unlock(&service->lock);
    if (!waits) return;
    server_shards_carry_out(shards, &change);
    shards_publish(shards);
    server_lock(&service->lock);
    shards->change = change;
    shards->change_state = shards->change_state == CHANGE_LEFT ? CHANGE_NONE : CHANGE_DONE;
    pthread_cond_broadcast(&shards->finished);
    server_unlock(&service->lock);
}

/* Returns whether any shard of the map moves, or has a move that is not settled. */
static bool shards_move(const struct shards *shards) {
    const doorman_shard_map *map = shards->key.map;
    bool moves = false;
    for (size_t i = 0; map && i < map->shards.count; i++) {
        moves = moves || map->owners[i].target != map->owners[i].owner || map->owners[i].from;
    }
    return moves;
}

/* Reads the notes of the cluster if they have changed. Returns whether this mastership has read the
 * notes once; before that, the process must not decide. */
static bool shards_read_notes(struct shards *shards) {
    if (!server_shard_notes_follow(shards)) {
        server_shards_fail(shards, "the overrides and plans of the cluster cannot be read",
                           server_store_error(shards->notes));
    }
    return shards->has_notes;
}

/* Reads the map and the notes, and does what follows from them. */
static void shards_work(struct shards *shards) {
    char why[PROBLEM_TEXT];
    const bool is_master = shards_follow(shards);
    shards->has_failed = false;
    server_shards_find_masters(shards);
    if (shards_read(shards)) {
        const bool fits = shards_fit(shards, why);
        if (!fits) server_shards_fail(shards, "this node cannot use the map of shards", why);
        if (fits) shards_join(shards);
        shards_run_change(shards);
        if (fits && is_master && shards_read_notes(shards) && shards_tell(shards)) {
            shards_act(shards);
        }
    }
    server_shard_notes_run_call(shards);
    if (!shards->has_failed) server_shards_work_again(shards);
    shards_note_states(shards);
}

static void *shards_main(void *context) {
    struct shards *shards = (struct shards *)context;
    struct service *service = shards->service;
    server_shares_memory = true; /* it deletes trees of the thread of pages, and the reverse */
    server_lock(&service->lock);
    while (!shards->stops) {
        server_unlock(&service->lock);
        shards_work(shards);
        server_lock(&service->lock);
        const bool is_called = shards->stops || shards->change_state == CHANGE_WAITS ||
                               shards->call || shards->victory != shards->victories;
        const doorman_time pause = shards_move(shards) ? LOOK_MOVING : LOOK;
        if (!is_called) server_condition_wait(&shards->changed, &service->lock, pause);
    }
    server_unlock(&service->lock);
    return NULL;
}

/* Gives a change to the thread, and waits. Precondition: the lock is held.
 *   returns   NULL: it is done | why it is not, or is not yet */
static const char *change_await(struct service *service, struct shard_change *change) {
    assert(server_lock_is_held(&service->lock));
    struct shards *shards = service->shards;
    const doorman_time until = doorman_clock() + CHANGE_SECONDS * DOORMAN_SECOND;
    if (shards->change_state != CHANGE_NONE) return "an earlier change is not done yet";
    shards->change = *change;
    shards->change_state = CHANGE_WAITS;
    pthread_cond_signal(&shards->changed);
    while (shards->change_state != CHANGE_DONE && !shards->stops && doorman_clock() < until) {
        server_condition_wait(&shards->finished, &service->lock, LOOK);
    }
    const enum change_state state = shards->change_state;
    shards->change_state = state == CHANGE_RUNS ? CHANGE_LEFT : CHANGE_NONE;
    if (state == CHANGE_DONE) {
        *change = shards->change;
        return NULL;
    }
    change->is_unsure = state == CHANGE_RUNS;
    return shards->stops       ? "the server is stopping"
           : change->is_unsure ? "it takes long; look at the map before you try again"
                               : "etcd does not answer; nothing was changed";
}

void server_shards_change(struct service *service, struct shard_change *change) {
    server_lock(&service->lock);
    const char *why = change_await(service, change);
    server_unlock(&service->lock);
    if (why) snprintf(change->error, sizeof change->error, "%s", why);
}

/* ---- the part ------------------------------------------------------------------------------- */

static enum exit_status shards_check(const struct settings *settings) {
    if (!settings->shards) return CONTINUE;
    const char *lacks = !settings->election_key ? "--election-key"
                        : !settings->state      ? "--state redis://..."
                                                : NULL;
    if (lacks) {
        return server_usage_error("--shards needs %s: the nodes agree by etcd on who decides, and "
                                  "hand over what they know in a store",
                                  lacks);
    }
    if (!server_store_is_shared(settings->state)) {
        return server_usage_error("--shards needs --state redis://...: another node must be able "
                                  "to read it");
    }
    if (strlen(settings->shards) > ETCD_KEY_BYTES_MAX || !settings->shards[0]) {
        return server_usage_error("--shards: a key of etcd has 1 to %d bytes", ETCD_KEY_BYTES_MAX);
    }
    return CONTINUE;
}

static size_t shards_of(const doorman_config *config) {
    doorman_config_options read;
    doorman_config_read(config, &read);
    return read.shard_count;
}

/* Returns whether `next` has another shard_by for a glob than `last`. Then keys would be in other
 * shards, perhaps of other nodes, and their counters would not.
 *   error   out: which one, if true */
static bool shards_rules_differ(const doorman_config *last, const doorman_config *next,
                                char error[PROBLEM_TEXT]) {
    doorman_config_options read;
    doorman_config_read(last, &read);
    for (size_t i = 0; i < read.template_count; i++) {
        const doorman_template *before = &read.templates[i];
        const doorman_template *after = doorman_config_find(next, before->identifier_glob);
        if (!after || after->shard_by_resource == before->shard_by_resource) continue;
        snprintf(error, PROBLEM_TEXT,
                 "shard_by: of '%.256s' must stay '%s': keys would move to other shards, and their "
                 "counters would not; use it for resources with another name",
                 before->identifier_glob, before->shard_by_resource ? "resource" : "key");
        return true;
    }
    return false;
}

static bool shards_refuse(const struct service *service, const doorman_config *config,
                          char error[PROBLEM_TEXT]) {
    const size_t has = shards_of(config);
    const size_t wants =
        service->shards && service->shards->map ? service->shards->map->shards.count : 0;
    if (server_shards_on(service) && wants && has != wants) {
        snprintf(error, PROBLEM_TEXT,
                 "shards: must stay %zu, not %zu: keys would move to other shards, and their "
                 "counters would not; to change the number, start a new cluster with another key "
                 "of --shards",
                 wants, has);
        return true;
    }
    if (server_shards_on(service)) return shards_rules_differ(service->config, config, error);
    if (!has) return false;
    snprintf(error, PROBLEM_TEXT, "shards: needs --shards KEY, the key of etcd with the map");
    return true;
}

/* Reads the map, or makes the first one: the seed is needed before the first decision. */
static enum exit_status shards_listen(struct service *service) {
    char error[PROBLEM_TEXT];
    struct shards *shards = service->shards;
    if (!server_shards_on(service)) {
        return shards_refuse(service, service->config, error)
                   ? server_fatal_error(EXIT_ERROR, "%s: %s", service->settings->config, error)
                   : CONTINUE;
    }
    const struct settings *settings = service->settings;
    const size_t count = shards_of(service->config);
    shards->service = service;
    shards->node = service->node;
    shards->place = (struct store_place){.address = settings->state,
                                         .node = service->node,
                                         .password_file = settings->state_password_file,
                                         .authority = settings->state_ca,
                                         .certificate = settings->state_cert,
                                         .key = settings->state_key};
    shards->key.name = settings->shards;
    if (!count) {
        return server_fatal_error(EXIT_ERROR,
                                  "%s: with --shards it needs \"shards\", such as \"shards\": 64",
                                  settings->config ? settings->config : "the configuration");
    }
    if (doorman_shard_mover_create(&shards->mover, service->node) != DOORMAN_OK ||
        !server_condition_init(&shards->changed) || !server_condition_init(&shards->finished)) {
        return server_fatal_error(EXIT_ERROR, "out of memory");
    }
    shards->notes = server_store_etcd_open_cluster(settings);
    if (!shards->notes) return server_fatal_error(EXIT_ERROR, "out of memory");
    enum exit_status exit_status = server_etcd_init_again(&shards->key.etcd, settings);
    for (int i = 0; exit_status == CONTINUE && !shards->key.map && i < FIRST_TRIES; i++) {
        if (i > 0) nng_msleep(LOOK / 1000000);
        const bool is_read = server_shard_key_read(&shards->key);
        if (is_read && !shards->key.map) shards_make_map(shards, count);
    }
    bool has_secret = false;
    for (int i = 0; shards->key.map && !has_secret && i < FIRST_TRIES; i++) {
        if (i > 0) nng_msleep(LOOK / 1000000);
        has_secret = server_shard_key_secret(&shards->key, shards->secret);
    }
    if (exit_status != CONTINUE) return exit_status;
    if (!shards->key.map || !has_secret) {
        return server_fatal_error(EXIT_ERROR, "--shards %s: %s", settings->shards,
                                  shards->key.error);
    }
    if (!shards_fit(shards, error)) {
        return server_fatal_error(EXIT_ERROR, "--shards %s: %s", settings->shards, error);
    }
    shards_publish(shards);
    return shards_refuse(service, service->config, error)
               ? server_fatal_error(EXIT_ERROR, "%s: %s", settings->config, error)
               : CONTINUE;
}

static void shards_begin(struct service *service) {
    const struct shards *shards = service->shards;
    if (!server_shards_on(service)) return;
    doorman_status status = doorman_server_set_shards(service->server, &shards->map->shards);
    shards_tell_clients(shards);
    if (status == DOORMAN_OK) return;
    server_log(service->settings, LEVEL_ERROR, "out of memory for shards", LOG_END);
}

/* Gives the map to clients again, because the new configuration may have other rules for it. */
static void shards_configured(struct service *service, const struct config_change *change) {
    (void)change;
    if (!server_shards_on(service)) return;
    server_lock(&service->lock);
    shards_tell_clients(service->shards);
    server_unlock(&service->lock);
}

/* Starts the thread. The thread puts the addresses of this process into the map, so it starts when
 * HTTP listens. */
static enum exit_status shards_serve(struct service *service) {
    struct shards *shards = service->shards;
    if (!server_shards_on(service)) return CONTINUE;
    const int error = pthread_create(&shards->thread, NULL, shards_main, shards);
    shards->is_started = error == 0;
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", strerror(error));
}

static void shards_elected(struct service *service, bool is_master, uint64_t epoch) {
    struct shards *shards = service->shards;
    if (!server_shards_on(service)) return;
    shards->victories++;
    if (is_master) shards->epoch = epoch;
    pthread_cond_signal(&shards->changed);
}

static void shards_stop(struct service *service) {
    struct shards *shards = service->shards;
    if (!shards || !shards->is_started) return;
    server_lock(&service->lock);
    shards->stops = true;
    pthread_cond_broadcast(&shards->changed);
    pthread_cond_broadcast(&shards->finished);
    server_unlock(&service->lock);
    server_etcd_cancel(&shards->key.etcd, true);
    server_store_etcd_cancel(shards->notes);
    pthread_join(shards->thread, NULL);
    shards->is_started = false;
}

static void shards_destroy(struct service *service) {
    struct shards *shards = service->shards;
    if (!shards || !shards->service) return;
    server_store_close(shards->store);
    server_store_close(shards->notes);
    server_etcd_uninit(&shards->key.etcd);
    doorman_shard_map_destroy(shards->key.map);
    doorman_shard_map_destroy(shards->map);
    doorman_shard_mover_destroy(shards->mover);
    free(shards->part);
}

const struct server_part server_part_shards = {
    SERVER_PART_STATE(shards), .name = "SHARDS",         .check = shards_check,
    .listen = shards_listen,   .begin = shards_begin,    .serve = shards_serve,
    .elected = shards_elected, .refuses = shards_refuse, .configured = shards_configured,
    .stopping = shards_stop,   .stop = shards_stop,      .destroy = shards_destroy};
