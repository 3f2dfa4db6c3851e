/* doorman_server, part SHARDS: which nodes have a master (N8).
 *
 * A node has a master while its election key exists. The thread of the part reads these keys once a
 * second, with one call for many nodes. After a master was killed, the key stays until
 * --election-ttl has passed. Until then only failed messages to the master show that it is gone;
 * server/forward/ counts these messages. */
#include "shards.h"

#define MASTERS_LOOK DOORMAN_SECOND
#define KEYS_AT_ONCE 100 /* etcd takes 128 operations in one call */
#define OPERATION_BYTES (ETCD_KEY_TEXT + 80)

/* Returns a transaction that reads election keys. The caller frees it. NULL: out of memory. */
static char *masters_body(const doorman_shard_map *map, size_t first, size_t end) {
    assert(first < end && end <= map->node_count);
    const size_t room = (end - first) * OPERATION_BYTES + 32;
    char *body = (char *)malloc(room), name[ETCD_KEY_TEXT];
    size_t used = 0;
    if (!body) return NULL;
    used += (size_t)snprintf(body, room, "{\"success\":[");
    for (size_t i = first; i < end; i++) {
        const char *key = map->nodes[i].election_key;
        server_base64_write(name, key ? key : "\xff");
        used += (size_t)snprintf(body + used, room - used,
                                 "%s{\"request_range\":{\"key\":\"%s\",\"keys_only\":true}}",
                                 i > first ? "," : "", name);
    }
    snprintf(body + used, room - used, "]}");
    return body;
}

/* Reads some election keys. Returns false if etcd does not answer, or memory runs out. */
static bool masters_read(struct shards *shards, size_t first, size_t end, bool *has_master) {
    char *body = masters_body(shards->key.map, first, end);
    cJSON *response = body ? server_etcd_post(&shards->key.etcd, "/v3/kv/txn", body) : NULL;
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(response, "responses"), *each = NULL;
    size_t i = first;
    cJSON_ArrayForEach(each, all) {
        const cJSON *range = cJSON_GetObjectItemCaseSensitive(each, "response_range");
        const cJSON *entries = cJSON_GetObjectItemCaseSensitive(range, "kvs");
        if (i < end) has_master[i++] = cJSON_GetArraySize(entries) > 0;
    }
    free(body);
    cJSON_Delete(response);
    return i == end;
}

/* Returns what server_shards_find_masters has last noted about a node. If the node was not in the
 * map then, `is_known` is false. */
static struct shard_master masters_find(const struct shards *shards, const char *node) {
    for (size_t i = 0; i < DOORMAN_SHARD_NODES_MAX && shards->masters[i].node[0]; i++) {
        if (strcmp(shards->masters[i].node, node) == 0) return shards->masters[i];
    }
    return (struct shard_master){.is_known = false};
}

void server_shards_find_masters(struct shards *shards) {
    const doorman_shard_map *map = shards->key.map;
    const doorman_time now = doorman_clock();
    bool has_master[DOORMAN_SHARD_NODES_MAX] = {false}, is_read = true;
    if (!map || now < shards->masters_at) return;
    shards->masters_at = now + MASTERS_LOOK;
    for (size_t first = 0; first < map->node_count && is_read; first += KEYS_AT_ONCE) {
        const size_t end = first + KEYS_AT_ONCE;
        is_read =
            masters_read(shards, first, end < map->node_count ? end : map->node_count, has_master);
    }
    struct shard_master *found =
        (struct shard_master *)calloc(DOORMAN_SHARD_NODES_MAX, sizeof *found);
    for (size_t i = 0; found && i < map->node_count; i++) {
        struct shard_master *master = &found[i];
        *master = masters_find(shards, map->nodes[i].name);
        snprintf(master->node, sizeof master->node, "%s", map->nodes[i].name);
        const bool has_changed = is_read && master->has_master && !has_master[i];
        if (has_changed || master->since == 0) master->since = now;
        master->is_known = is_read;
        if (is_read) master->has_master = has_master[i];
    }
    server_lock(&shards->service->lock);
    if (found) memcpy(shards->masters, found, sizeof shards->masters);
    server_unlock(&shards->service->lock);
    free(found);
}

struct shard_master server_shards_master(const struct shards *shards, const char *node) {
    assert(server_lock_is_held(&shards->service->lock));
    return masters_find(shards, node);
}
