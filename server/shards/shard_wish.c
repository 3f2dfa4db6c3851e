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

/* Balances the shards. A node that was drained stays empty until the next rebalance.
 *   leaves   a node that gets none; node_count: all nodes get some */
static bool wish_balance(struct shard_edit *edit, struct shard_wish *wish, size_t leaves) {
    bool stays[DOORMAN_SHARD_NODES_MAX];
    const size_t count = edit->map.node_count;
    if (count - (leaves < count) == 0) {
        wish_refuse(wish, "there is no other node");
        return false;
    }
    for (size_t i = 0; i < count; i++) stays[i] = i != leaves;
    wish->moves = doorman_shards_balance(edit->owners, edit->map.shards.count, stays, count);
    return true;
}

/* Moves only the shards of one node, each to the node that has fewest. */
static bool wish_drain(struct shard_edit *edit, struct shard_wish *wish, size_t node) {
    const size_t count = edit->map.node_count, shards = edit->map.shards.count;
    size_t loads[DOORMAN_SHARD_NODES_MAX] = {0};
    if (count < 2) {
        wish_refuse(wish, "there is no other node");
        return false;
    }
    for (size_t i = 0; i < shards; i++) loads[edit->owners[i].target]++;
    for (size_t i = 0; i < shards; i++) {
        size_t best = node == 0 ? 1 : 0;
        if (edit->owners[i].owner != node && edit->owners[i].target != node) continue;
        for (size_t j = 0; j < count; j++) {
            if (j != node && loads[j] < loads[best]) best = j;
        }
        if (edit->owners[i].target != node) best = edit->owners[i].target;
        if (edit->owners[i].owner != node && edit->owners[i].target == node) {
            best = edit->owners[i].owner; /* it was on its way */
        }
        loads[edit->owners[i].target]--;
        loads[best]++;
        edit->owners[i].target = best;
        wish->moves += edit->owners[i].owner == node;
    }
    return true;
}

static bool wish_move(struct shard_edit *edit, struct shard_wish *wish, size_t node) {
    if (wish->shard >= edit->map.shards.count) {
        snprintf(wish->error, sizeof wish->error, "there are only the shards 0 to %zu",
                 edit->map.shards.count - 1);
        return false;
    }
    edit->owners[wish->shard].target = node;
    wish->moves = edit->owners[wish->shard].owner != node;
    return true;
}

static bool wish_remove(struct shard_edit *edit, struct shard_wish *wish, size_t node) {
    doorman_shard_map *map = &edit->map;
    for (size_t i = 0; i < map->shards.count; i++) {
        if (edit->owners[i].owner == node || edit->owners[i].target == node) {
            wish_refuse(wish, "the node has shards, or gets some; drain it first");
            return false;
        }
        edit->owners[i].owner -= edit->owners[i].owner > node;
        edit->owners[i].target -= edit->owners[i].target > node;
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
    bool has_master = false;
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
    if (!wish_drain(edit, wish, node)) return false;
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
    if (wish->kind != SHARD_REBALANCE && !wish_find(map, wish, &node)) return false;
    if (wish->kind == SHARD_MOVE) return wish_move(edit, wish, node);
    if (wish->kind == SHARD_REMOVE) return wish_remove(edit, wish, node);
    if (wish->kind == SHARD_DRAIN) return wish_drain(edit, wish, node);
    if (wish->kind == SHARD_FORCE) return wish_force(shards, edit, wish, node, conditions);
    return wish_balance(edit, wish, map->node_count);
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
