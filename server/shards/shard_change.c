/* doorman_server, part SHARDS: the changes of shards that operators ask for. MOVE, DRAIN and
 * REBALANCE set only targets in the map. Each owner then moves its shards to their targets, one
 * after the other. So such a change can be replaced or called off at any moment, and it outlasts
 * every process. FORCE also changes owners: it takes shards from a node that has no master to give
 * them. REMOVE takes a node out of the map. */
#include "shards.h"

#include <nng/supplemental/util/platform.h>

static void change_refuse(struct shard_change *change, const char *why) {
    snprintf(change->error, sizeof change->error, "%s", why);
}

/* Finds the node of a change. Returns false if it is not in the map. */
static bool change_find(const doorman_shard_map *map, struct shard_change *change, size_t *node) {
    *node = doorman_shard_map_node(map, change->node);
    if (*node < map->node_count) return true;
    snprintf(change->error, sizeof change->error, "the map has no node '%.256s'", change->node);
    return false;
}

/* Finds which nodes have a master. A node without one takes no shards, and only FORCE takes shards
 * from it.
 *   has_master   out: one for each node
 *   returns      false: etcd does not answer */
static bool change_find_masters(struct shards *shards, struct shard_change *change,
                                bool *has_master) {
    const doorman_shard_map *map = shards->key.map;
    for (size_t i = 0; i < map->node_count; i++) {
        const char *key = map->nodes[i].election_key;
        has_master[i] = true;
        if (!key || server_shard_key_find_master(&shards->key, key, &has_master[i], NULL)) continue;
        change_refuse(change, shards->key.error);
        return false;
    }
    return true;
}

/* Refuses a change, because a node that must give a shard has no master. */
static bool change_refuse_giver(const struct shard_edit *edit, struct shard_change *change,
                                size_t node) {
    assert(node < edit->map.node_count);
    snprintf(change->error, sizeof change->error,
             "the node '%.256s' has shards, but no master that could move them: start a process of "
             "it, or take its shards with force",
             edit->map.nodes[node].name);
    return false;
}

/* Balances the shards over the nodes that have a master. A node that was drained gets shards
 * again. */
static bool change_balance(struct shard_edit *edit, struct shard_change *change,
                           const bool *has_master) {
    const size_t shards = edit->map.shards.count;
    for (size_t i = 0; i < shards; i++) {
        const size_t owner = edit->owners[i].owner;
        assert(owner < edit->map.node_count);
        if (!has_master[owner]) return change_refuse_giver(edit, change, owner);
    }
    change->moves = doorman_shards_balance(edit->owners, shards, has_master, edit->map.node_count);
    return true;
}

/* Returns the node with the fewest shards among the nodes that may take one, or node_count. */
static size_t change_fewest(const size_t *loads, const bool *takes, size_t node_count) {
    size_t best = node_count;
    for (size_t i = 0; i < node_count; i++) {
        if (takes[i] && (best == node_count || loads[i] < loads[best])) best = i;
    }
    return best;
}

/* Empties one node: moves each of its shards to the node that then has the fewest. A shard that
 * already moves to a node with a master keeps its target. A shard that is on its way to the drained
 * node stays with its owner. */
static bool change_drain(struct shard_edit *edit, struct shard_change *change, size_t node,
                         const bool *has_master) {
    const size_t count = edit->map.node_count, shards = edit->map.shards.count;
    size_t loads[DOORMAN_SHARD_NODES_MAX] = {0};
    bool takes[DOORMAN_SHARD_NODES_MAX];
    assert(node < count && count <= DOORMAN_SHARD_NODES_MAX);
    for (size_t i = 0; i < count; i++) takes[i] = i != node && has_master[i];
    if (change_fewest(loads, takes, count) == count) {
        change_refuse(change, "there is no other node with a master");
        return false;
    }
    for (size_t i = 0; i < shards; i++) loads[edit->owners[i].target]++;
    for (size_t i = 0; i < shards; i++) {
        const size_t owner = edit->owners[i].owner, target = edit->owners[i].target;
        if (owner != node && target != node) continue;
        size_t best = change_fewest(loads, takes, count);
        if (takes[target]) best = target;
        if (owner != node) best = owner; /* it was on its way to the node */
        assert(loads[target] > 0);
        loads[target]--;
        loads[best]++;
        edit->owners[i].target = best;
        change->moves += owner == node;
    }
    return true;
}

static bool change_move(struct shard_edit *edit, struct shard_change *change, size_t node,
                        const bool *has_master) {
    assert(node < edit->map.node_count);
    if (change->shard >= edit->map.shards.count) {
        snprintf(change->error, sizeof change->error, "there are only the shards 0 to %zu",
                 edit->map.shards.count - 1);
        return false;
    }
    const size_t owner = edit->owners[change->shard].owner;
    if (owner != node && !has_master[owner]) return change_refuse_giver(edit, change, owner);
    if (owner != node && !has_master[node]) {
        change_refuse(change, "the node has no master that could decide for the shard");
        return false;
    }
    edit->owners[change->shard].target = node;
    change->moves = owner != node;
    return true;
}

static bool change_remove(struct shard_edit *edit, struct shard_change *change, size_t node,
                          const bool *has_master) {
    doorman_shard_map *map = &edit->map;
    assert(node < map->node_count);
    for (size_t i = 0; i < map->shards.count; i++) {
        if (edit->owners[i].owner == node || edit->owners[i].target == node) {
            change_refuse(change, "the node has shards, or gets some; drain it first");
            return false;
        }
        edit->owners[i].owner -= edit->owners[i].owner > node;
        edit->owners[i].target -= edit->owners[i].target > node;
    }
    if (has_master[node]) {
        change_refuse(change,
                      "the node has a master, and would join again; stop its processes first");
        return false;
    }
    map->node_count--;
    for (size_t i = node; i < map->node_count; i++) edit->nodes[i] = edit->nodes[i + 1];
    return true;
}

/* Takes the shards of a node that has no master.
 *   conditions   out: the node must still have no master */
static bool change_force(struct shards *shards, struct shard_edit *edit,
                         struct shard_change *change, size_t node,
                         struct shard_conditions *conditions) {
    const doorman_shard_map *map = shards->key.map;
    const char *key = map->nodes[node].election_key;
    bool has_master = false, masters[DOORMAN_SHARD_NODES_MAX] = {false};
    assert(node < map->node_count);
    server_lock(&shards->service->lock);
    const bool is_master = server_shards_permits(shards) != NULL;
    server_unlock(&shards->service->lock);
    if (!is_master || !key || strcmp(map->nodes[node].name, shards->node) == 0) {
        change_refuse(change, !key        ? "the map does not say where the node has its election"
                              : is_master ? "this is the node itself; drain it"
                                          : "this process is not a master; ask a master of another "
                                            "node");
        return false;
    }
    if (!server_shard_key_find_master(&shards->key, key, &has_master, &conditions->gone_epoch)) {
        change_refuse(change, shards->key.error);
        return false;
    }
    if (has_master) {
        change_refuse(change,
                      "the node has a master, which moves its shards itself; drain it. If its "
                      "machine is gone, wait until its mastership has ended");
        return false;
    }
    if (!change_find_masters(shards, change, masters)) return false;
    if (!change_drain(edit, change, node, masters)) return false;
    if (!server_shard_give_for(shards, node, edit->map.epoch)) {
        server_lock(&shards->service->lock);
        change_refuse(change, shards->trouble.since ? shards->trouble.reason : "out of memory");
        server_unlock(&shards->service->lock);
        return false;
    }
    for (size_t i = 0; i < map->shards.count; i++) {
        doorman_shard *shard = &edit->owners[i];
        if (shard->owner != node) continue;
        *shard = (doorman_shard){.owner = shard->target,
                                 .target = shard->target,
                                 .from = edit->map.epoch,
                                 .is_lost = true};
    }
    conditions->gone_key = key;
    conditions->election_key = shards->service->settings->election_key;
    conditions->epoch = shards->mastership;
    return true;
}

/* Makes the new map of a change. Returns false if the change is refused. */
static bool change_edit(struct shards *shards, struct shard_edit *edit, struct shard_change *change,
                        struct shard_conditions *conditions) {
    const doorman_shard_map *map = shards->key.map;
    size_t node = map->node_count;
    bool has_master[DOORMAN_SHARD_NODES_MAX] = {false};
    if (change->kind != SHARD_REBALANCE && !change_find(map, change, &node)) return false;
    if (change->kind == SHARD_FORCE) return change_force(shards, edit, change, node, conditions);
    if (!change_find_masters(shards, change, has_master)) return false;
    if (change->kind == SHARD_REMOVE) return change_remove(edit, change, node, has_master);
    if (change->kind == SHARD_MOVE) return change_move(edit, change, node, has_master);
    if (change->kind == SHARD_REBALANCE) return change_balance(edit, change, has_master);
    if (!change_drain(edit, change, node, has_master)) return false;
    return has_master[node] || change->moves == 0 || change_refuse_giver(edit, change, node);
}

#define CHANGE_TRIES 20 /* other nodes may change the map at the same time, once for each shard */

void server_shards_carry_out(struct shards *shards, struct shard_change *change) {
    struct shard_edit *edit = (struct shard_edit *)calloc(1, sizeof *edit);
    enum shard_write write = SHARD_UNSURE;
    for (int i = 0; edit && write != SHARD_WRITTEN && i < CHANGE_TRIES; i++) {
        struct shard_conditions conditions = {.election_key = NULL};
        if (i > 0 && !server_shard_key_read(&shards->key)) break;
        server_shard_edit(edit, shards->key.map);
        change->moves = 0;
        if (!change_edit(shards, edit, change, &conditions)) break;
        write = server_shard_key_write(&shards->key, &edit->map, &conditions);
        if (write != SHARD_WRITTEN && i > 2) nng_msleep(20);
    }
    free(edit);
    if (write != SHARD_WRITTEN && !change->error[0]) change_refuse(change, shards->key.error);
    if (write != SHARD_WRITTEN) return;
    server_lock(&shards->service->lock);
    if (change->kind == SHARD_FORCE) shards->forced += change->moves;
    server_unlock(&shards->service->lock);
}
