/* doorman_server, part SHARDS: the map in a key of etcd (N2).
 *
 * A change is one transaction. It compares the revision of the key with the one that was read, so
 * of two changes at the same time only one is made. If only a master may make the change, the
 * transaction also compares the epoch of this master with the version of ELECTION_KEY/epoch. So if
 * another process of the node has become master, nothing is changed. If the response to a try is
 * lost, etcd may get the transaction twice, or late. So only SHARD_WRITTEN is sure. */
#include "shards.h"

#include <nng/supplemental/util/platform.h>

#define CONDITION_BYTES (ETCD_KEY_TEXT + 160)
#define EPOCH_KEY_BYTES (ETCD_KEY_BYTES_MAX + 7) /* with "/epoch" */

static bool key_fail(struct shard_key *key, const char *error) {
    snprintf(key->error, sizeof key->error, "%.*s", (int)sizeof key->error - 1, error);
    return false;
}

static bool shards_equal(const doorman_shards *one, const doorman_shards *other) {
    return one->count == other->count && one->seed[0] == other->seed[0] &&
           one->seed[1] == other->seed[1];
}

/* Reads the map out of an entry of etcd into key->map. The number and the seed of the shards must
 * be the same as in the last map, because the index of a shard must mean the same in each map. */
static bool key_take(struct shard_key *key, const cJSON *entry) {
    const size_t room = DOORMAN_MESSAGE_BYTES_MAX + 2;
    char *text = (char *)malloc(room);
    doorman_shard_map *map = NULL;
    doorman_error error = {0};
    size_t bytes = 0;
    if (!text) return key_fail(key, "out of memory");
    (void)server_etcd_read_value(entry, text, room, &bytes);
    doorman_status status = doorman_json_read_shard_map(&map, text, bytes, &error);
    free(text);
    if (status != DOORMAN_OK) {
        snprintf(key->error, sizeof key->error, "the key %.256s is no map of shards: %.200s",
                 key->name, error.text);
        return false;
    }
    if (key->map && !shards_equal(&key->map->shards, &map->shards)) {
        doorman_shard_map_destroy(map);
        return key_fail(key, "it has another number of shards, or another seed, than when this "
                             "process started; stop all processes, and write the last map back");
    }
    doorman_shard_map_destroy(key->map);
    key->map = map;
    key->revision = strtoull(server_etcd_number(entry, "mod_revision"), NULL, 10);
    return true;
}

bool server_shard_key_read(struct shard_key *key) {
    const cJSON *entry = NULL;
    cJSON *response = server_etcd_get(&key->etcd, key->name, &entry);
    bool is_read = response != NULL;
    if (!response) key_fail(key, key->etcd.error.text);
    if (response && entry) is_read = key_take(key, entry);
    if (response && !entry && key->map) {
        is_read = key_fail(key, "the key of the map is gone; write it back from a copy");
    }
    cJSON_Delete(response);
    return is_read;
}

/* Writes the name of the key of a node's epoch, in base64. */
static void key_write_epoch(const char *election_key, char out[BASE64_TEXT(EPOCH_KEY_BYTES)]) {
    char name[EPOCH_KEY_BYTES + 1];
    snprintf(name, sizeof name, "%.256s/epoch", election_key);
    server_base64_write(out, name);
}

static void key_write_conditions(const struct shard_key *key,
                                 const struct shard_conditions *conditions,
                                 char out[4 * CONDITION_BYTES]) {
    char name[BASE64_TEXT(EPOCH_KEY_BYTES)];
    const size_t room = (size_t)4 * CONDITION_BYTES;
    server_base64_write(name, key->name);
    int used =
        snprintf(out, room, "{\"key\":\"%s\",\"target\":\"MOD\",\"mod_revision\":\"%" PRIu64 "\"}",
                 name, key->revision);
    if (conditions->election_key) {
        key_write_epoch(conditions->election_key, name);
        used += snprintf(out + used, room - (size_t)used,
                         ",{\"key\":\"%s\",\"target\":\"VERSION\",\"version\":\"%" PRIu64 "\"}",
                         name, conditions->epoch);
    }
    if (!conditions->gone_key) return;
    key_write_epoch(conditions->gone_key, name);
    used += snprintf(out + used, room - (size_t)used,
                     ",{\"key\":\"%s\",\"target\":\"VERSION\",\"version\":\"%" PRIu64 "\"}", name,
                     conditions->gone_epoch);
    server_base64_write(name, conditions->gone_key);
    snprintf(out + used, room - (size_t)used,
             ",{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}", name);
}

/* Returns the body of a transaction, which the caller frees; NULL: out of memory. */
static char *key_make_body(const struct shard_key *key, const doorman_shard_map *map,
                           const struct shard_conditions *conditions) {
    char name[ETCD_KEY_TEXT], compares[4 * CONDITION_BYTES];
    doorman_buffer text = {0};
    if (doorman_json_write_shard_map(map, &text) != DOORMAN_OK) return NULL;
    const size_t room = sizeof compares + sizeof name + BASE64_TEXT(text.bytes) + 256;
    char *body = (char *)malloc(room);
    if (body) {
        key_write_conditions(key, conditions, compares);
        server_base64_write(name, key->name);
        int used = snprintf(body, room,
                            "{\"compare\":[%s],\"success\":[{\"request_put\":{\"key\":\"%s\","
                            "\"value\":\"",
                            compares, name);
        server_base64_write(body + used, text.text);
        const size_t bytes = strlen(body);
        snprintf(body + bytes, room - bytes, "\"}}]}");
    }
    doorman_buffer_uninit(&text);
    return body;
}

enum shard_write server_shard_key_write(struct shard_key *key, const doorman_shard_map *map,
                                        const struct shard_conditions *conditions) {
    doorman_shard_map *copy = NULL;
    doorman_error error = {0};
    if (doorman_shard_map_create(&copy, map, &error) != DOORMAN_OK) {
        key_fail(key, error.text);
        return SHARD_UNSURE;
    }
    char *body = key_make_body(key, copy, conditions);
    cJSON *response = body ? server_etcd_post(&key->etcd, "/v3/kv/txn", body) : NULL;
    const bool is_written = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"));
    if (is_written) {
        const cJSON *header = cJSON_GetObjectItemCaseSensitive(response, "header");
        key->revision = strtoull(server_etcd_number(header, "revision"), NULL, 10);
        doorman_shard_map_destroy(key->map);
        key->map = copy;
    } else {
        key_fail(key, !body      ? "out of memory"
                      : response ? "another process has changed the map meanwhile"
                                 : key->etcd.error.text);
        doorman_shard_map_destroy(copy);
    }
    free(body);
    cJSON_Delete(response);
    return is_written ? SHARD_WRITTEN : SHARD_UNSURE;
}

bool server_shard_key_find_master(struct shard_key *key, const char *election_key, bool *has_master,
                                  uint64_t *epoch) {
    char name[BASE64_TEXT(EPOCH_KEY_BYTES)];
    const cJSON *entry = NULL;
    cJSON *response = server_etcd_get(&key->etcd, election_key, &entry);
    *has_master = entry != NULL;
    bool is_read = response != NULL;
    cJSON_Delete(response);
    if (is_read && !epoch) return true;
    key_write_epoch(election_key, name);
    response =
        is_read ? server_etcd_call(&key->etcd, "/v3/kv/range", "{\"key\":\"%s\"}", name) : NULL;
    is_read = response != NULL;
    entry = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(response, "kvs"), 0);
    if (epoch) *epoch = strtoull(server_etcd_number(entry, "version"), NULL, 10);
    cJSON_Delete(response);
    return is_read || key_fail(key, key->etcd.error.text);
}

#define SECRET_DIGITS 32
#define SECRET_KEY_BYTES (ETCD_KEY_BYTES_MAX + 8) /* with "/secret" */

/* Makes the secret, unless another process was faster. */
static bool secret_make(struct shard_key *key, const char *name) {
    char digits[SECRET_DIGITS + 1], value[BASE64_TEXT(SECRET_DIGITS)];
    snprintf(digits, sizeof digits, "%08x%08x%08x%08x", nng_random(), nng_random(), nng_random(),
             nng_random());
    server_base64_write(value, digits);
    cJSON *response = server_etcd_call(
        &key->etcd, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\"}}]}",
        name, name, value);
    const bool is_made = response != NULL;
    cJSON_Delete(response);
    return is_made || key_fail(key, key->etcd.error.text);
}

static bool secret_read(char *digits, size_t bytes, uint64_t secret[2]) {
    digits[bytes] = 0;
    if (bytes != SECRET_DIGITS || strspn(digits, "0123456789abcdef") != bytes) return false;
    secret[1] = strtoull(digits + bytes / 2, NULL, 16);
    digits[bytes / 2] = 0;
    secret[0] = strtoull(digits, NULL, 16);
    return true;
}

bool server_shard_key_secret(struct shard_key *key, uint64_t secret[2]) {
    char path[SECRET_KEY_BYTES], name[BASE64_TEXT(SECRET_KEY_BYTES)], digits[SECRET_DIGITS + 2];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%.256s/secret", key->name);
    server_base64_write(name, path);
    for (int i = 0; i < 2; i++) {
        cJSON *response = server_etcd_call(&key->etcd, "/v3/kv/range", "{\"key\":\"%s\"}", name);
        const cJSON *entry =
            cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(response, "kvs"), 0);
        const bool is_read = response != NULL, is_there = entry != NULL;
        const bool fits = is_there && server_etcd_read_value(entry, digits, sizeof digits, &bytes);
        cJSON_Delete(response);
        if (!is_read) return key_fail(key, key->etcd.error.text);
        if (is_there) {
            if (!fits || !secret_read(digits, bytes, secret)) {
                return key_fail(key, "the key with the secret of the cluster has no secret; "
                                     "remove it, and start all processes again");
            }
            return true;
        }
        if (!secret_make(key, name)) return false;
    }
    return key_fail(key, "the key with the secret of the cluster is removed again and again");
}

void server_shard_edit(struct shard_edit *edit, const doorman_shard_map *map) {
    edit->map = *map;
    edit->map.epoch++;
    memcpy(edit->owners, map->owners, map->shards.count * sizeof *map->owners);
    memcpy(edit->nodes, map->nodes, map->node_count * sizeof *map->nodes);
    edit->map.owners = edit->owners;
    edit->map.nodes = edit->nodes;
}
