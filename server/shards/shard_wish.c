/* doorman_server, part SHARDS: what operators want of shards. A wish only changes the targets in
 * the map. The owners follow them, one shard after the other. So a wish can be changed or called
 * off at any moment, and it outlasts every process. Only FORCE also changes owners: the node has no
 * master that could do it. */
#include "shards.h"

#include <nng/supplemental/util/platform.h>

static void wish_refuse(struct shard_wish *wish, const char *why) {
    snprintf(wish->error, sizeof wish->error, "%s", why);
}

/* Finds the node of a wish. Returns false if the map has none. */
static bool wish_find(const doorman_shard_map *map, struct shard_wish *wish, size_t *node) {
    *node = doorman_shard_map_node(map, wish->node);
    if (*node < map->node_count) return true;
    snprintf(wish->error, sizeof wish->error, "the map has no node '%.256s'", wish->node);
    return false;
}

/* Finds which nodes have a master. A node without one takes no shards, and gives none.
 *   has_master   out: one for each node
 *   returns      false: etcd does not answer */
static bool wish_find_masters(struct shards *shards, struct shard_wish *wish, bool *has_master) {
    const doorman_shard_map *map = shards->key.map;
    for (size_t i = 0; i < map->node_count; i++) {
        const char *key = map->nodes[i].election_key;
        has_master[i] = true;
        if (!key || server_shard_key_find_master(&shards->key, key, &has_master[i], NULL)) continue;
        wish_refuse(wish, shards->key.error);
        return false;
    }
    return true;
}

/* Refuses a wish, because a node that must give a shard has no master. */
static bool wish_refuse_giver(const struct shard_edit *edit, struct shard_wish *wish, size_t node) {
    snprintf(wish->error, sizeof wish->error,
             "the node '%.256s' has shards, but no master that could move them: start a process of "
             "it, or take its shards with force",
             edit->map.nodes[node].name);
    return false;
}

/* Balances the shards. A node that was drained stays empty until the next rebalance. */
static bool wish_balance(struct shard_edit *edit, struct shard_wish *wish, const bool *has_master) {
    const size_t shards = edit->map.shards.count;
    for (size_t i = 0; i < shards; i++) {
        const size_t owner = edit->owners[i].owner;
        if (!has_master[owner]) return wish_refuse_giver(edit, wish, owner);
    }
    wish->moves = doorman_shards_balance(edit->owners, shards, has_master, edit->map.node_count);
    return true;
}

/* Returns the node that has fewest shards, of those that may take some; node_count: none may. */
static size_t wish_fewest(const size_t *loads, const bool *takes, size_t node_count) {
    size_t best = node_count;
    for (size_t i = 0; i < node_count; i++) {
        if (takes[i] && (best == node_count || loads[i] < loads[best])) best = i;
    }
    return best;
}

/* Moves only the shards of one node, each to the node that has fewest. */
static bool wish_drain(struct shard_edit *edit, struct shard_wish *wish, size_t node,
                       const bool *has_master) {
    const size_t count = edit->map.node_count, shards = edit->map.shards.count;
    size_t loads[DOORMAN_SHARD_NODES_MAX] = {0};
    bool takes[DOORMAN_SHARD_NODES_MAX];
    for (size_t i = 0; i < count; i++) takes[i] = i != node && has_master[i];
    if (wish_fewest(loads, takes, count) == count) {
        wish_refuse(wish, "there is no other node with a master");
        return false;
    }
    for (size_t i = 0; i < shards; i++) loads[edit->owners[i].target]++;
    for (size_t i = 0; i < shards; i++) {
        const size_t owner = edit->owners[i].owner, target = edit->owners[i].target;
        if (owner != node && target != node) continue;
        size_t best = wish_fewest(loads, takes, count);
        if (takes[target]) best = target;
        if (owner != node) best = owner; /* it was on its way */
        loads[target]--;
        loads[best]++;
        edit->owners[i].target = best;
        wish->moves += owner == node;
    }
    return true;
}

static bool wish_move(struct shard_edit *edit, struct shard_wish *wish, size_t node,
                      const bool *has_master) {
    if (wish->shard >= edit->map.shards.count) {
        snprintf(wish->error, sizeof wish->error, "there are only the shards 0 to %zu",
                 edit->map.shards.count - 1);
        return false;
    }
    const size_t owner = edit->owners[wish->shard].owner;
    if (owner != node && !has_master[owner]) return wish_refuse_giver(edit, wish, owner);
    if (owner != node && !has_master[node]) {
        wish_refuse(wish, "the node has no master that could decide for the shard");
        return false;
    }
    edit->owners[wish->shard].target = node;
    wish->moves = owner != node;
    return true;
}

static bool wish_remove(struct shard_edit *edit, struct shard_wish *wish, size_t node,
                        const bool *has_master) {
    doorman_shard_map *map = &edit->map;
    for (size_t i = 0; i < map->shards.count; i++) {
        if (edit->owners[i].owner == node || edit->owners[i].target == node) {
            wish_refuse(wish, "the node has shards, or gets some; drain it first");
            return false;
        }
        edit->owners[i].owner -= edit->owners[i].owner > node;
        edit->owners[i].target -= edit->owners[i].target > node;
    }
    if (has_master[node]) {
        wish_refuse(wish, "the node has a master, and would join again; stop its processes first");
        return false;
    }
    map->node_count--;
    for (size_t i = node; i < map->node_count; i++) edit->nodes[i] = edit->nodes[i + 1];
    return true;
}

/* Takes the shards of a node that has no master.
 *   conditions   out: that it still has none */
static bool wish_force(struct shards *shards, struct shard_edit *edit, struct shard_wish *wish,
                       size_t node, struct shard_conditions *conditions) {
    const doorman_shard_map *map = shards->key.map;
    const char *key = map->nodes[node].election_key;
    bool has_master = false, masters[DOORMAN_SHARD_NODES_MAX];
    server_lock(&shards->service->lock);
    const bool is_master = server_shards_permits(shards) != NULL;
    server_unlock(&shards->service->lock);
    if (!is_master || !key || strcmp(map->nodes[node].name, shards->node) == 0) {
        wish_refuse(wish, !key        ? "the map does not say where the node has its election"
                          : is_master ? "this is the node itself; drain it"
                                      : "this process is not a master; ask a master of another "
                                        "node");
        return false;
    }
    if (!server_shard_key_find_master(&shards->key, key, &has_master, &conditions->gone_epoch)) {
        wish_refuse(wish, shards->key.error);
        return false;
    }
    if (has_master) {
        wish_refuse(wish, "the node has a master, which moves its shards itself; drain it. If its "
                          "machine is gone, wait until its mastership has ended");
        return false;
    }
    if (!wish_find_masters(shards, wish, masters)) return false;
    if (!wish_drain(edit, wish, node, masters)) return false;
    if (!server_shard_give_for(shards, node, edit->map.epoch)) {
        server_lock(&shards->service->lock);
        wish_refuse(wish, shards->trouble.since ? shards->trouble.reason : "out of memory");
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
    conditions->epoch = shards->epoch;
    return true;
}

/* Makes the new map of a wish. Returns false if the wish is refused. */
static bool wish_edit(struct shards *shards, struct shard_edit *edit, struct shard_wish *wish,
                      struct shard_conditions *conditions) {
    const doorman_shard_map *map = shards->key.map;
    size_t node = map->node_count;
    bool has_master[DOORMAN_SHARD_NODES_MAX] = {false};
    if (wish->kind != SHARD_REBALANCE && !wish_find(map, wish, &node)) return false;
    if (wish->kind == SHARD_FORCE) return wish_force(shards, edit, wish, node, conditions);
    if (!wish_find_masters(shards, wish, has_master)) return false;
    if (wish->kind == SHARD_REMOVE) return wish_remove(edit, wish, node, has_master);
    if (wish->kind == SHARD_MOVE) return wish_move(edit, wish, node, has_master);
    if (wish->kind == SHARD_REBALANCE) return wish_balance(edit, wish, has_master);
    if (!wish_drain(edit, wish, node, has_master)) return false;
    return has_master[node] || wish->moves == 0 || wish_refuse_giver(edit, wish, node);
}

#define WISH_TRIES 20 /* other nodes may change the map at the same time, once for each shard */

void server_shards_carry_out(struct shards *shards, struct shard_wish *wish) {
    struct shard_edit *edit = (struct shard_edit *)calloc(1, sizeof *edit);
    enum shard_write write = SHARD_UNSURE;
    for (int i = 0; edit && write != SHARD_WRITTEN && i < WISH_TRIES; i++) {
        struct shard_conditions conditions = {.election_key = NULL};
        if (i > 0 && !server_shard_key_read(&shards->key)) break;
        server_shard_edit(edit, shards->key.map);
        wish->moves = 0;
        if (!wish_edit(shards, edit, wish, &conditions)) break;
        write = server_shard_key_write(&shards->key, &edit->map, &conditions);
        if (write != SHARD_WRITTEN && i > 2) nng_msleep(20);
    }
    free(edit);
    if (write != SHARD_WRITTEN && !wish->error[0]) wish_refuse(wish, shards->key.error);
    if (write != SHARD_WRITTEN) return;
    server_lock(&shards->service->lock);
    if (wish->kind == SHARD_FORCE) shards->forced += wish->moves;
    server_unlock(&shards->service->lock);
}
