/* The input is a map of shards as JSON, or the rows of a shard that has moved. It may be damaged,
 * or written by another program. It is accepted, or refused with an error. An accepted map is
 * written as text, which is the same after it is read and written again. A restored shard is given
 * to another node without a loss, and then both nodes forget it. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

static const char limits[] =
    "{\"shards\": 2, \"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
    "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\"},"
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, \"size\": 100, \"max_debt\": 9},"
    "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 16},"
    "{\"name\": \"h\", \"kind\": \"CONCURRENCY\", \"limit\": 100, \"time_to_live\": 60}]}]}";

static doorman_permits *start(const doorman_config *config, doorman_time now) {
    static const doorman_shards shards = {.count = 2, .seed = {3, 4}};
    doorman_permits *permits = NULL;
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    must(doorman_permits_create(&permits, &options, NULL, now) == DOORMAN_OK);
    doorman_permits_set_epoch(permits, 1700000000 * DOORMAN_SECOND, now);
    must(doorman_permits_set_shards(permits, &shards) == DOORMAN_OK);
    return permits;
}

static void read_map(const char *text, size_t bytes) {
    doorman_shard_map *map = NULL, *again = NULL;
    doorman_buffer first = {0}, second = {0};
    doorman_error error = {0};
    if (doorman_json_read_shard_map(&map, text, bytes, &error) != DOORMAN_OK) {
        must(error.text[0] && !map);
        return;
    }
    must(doorman_json_write_shard_map(map, &first) == DOORMAN_OK);
    must(doorman_json_read_shard_map(&again, first.text, first.bytes, &error) == DOORMAN_OK);
    must(doorman_json_write_shard_map(again, &second) == DOORMAN_OK);
    must(first.bytes == second.bytes && memcmp(first.text, second.text, first.bytes) == 0);
    must(doorman_shard_map_find(map, "x", "k") < map->shards.count);
    doorman_buffer_uninit(&first);
    doorman_buffer_uninit(&second);
    doorman_shard_map_destroy(map);
    doorman_shard_map_destroy(again);
}

static void drop(doorman_permits *permits, size_t shard, doorman_time now) {
    doorman_permits_info info;
    for (doorman_shard_cursor cursor = {0}; !cursor.at_end;) {
        must(doorman_permits_drop_shard(permits, shard, &cursor, now) == DOORMAN_OK);
    }
    doorman_permits_read(permits, &info);
    must(info.ban_count == 0 && info.hold_count == 0 && info.request_count == 0);
}

static void move(doorman_permits *from, doorman_permits *to, size_t shard, doorman_time now) {
    doorman_permits_info first, second;
    for (doorman_shard_cursor cursor = {0}; !cursor.at_end;) {
        doorman_shard_part part;
        size_t lost = 0;
        must(doorman_permits_next_shard_rows(from, shard, &cursor, &part, now) == DOORMAN_OK);
        must(doorman_permits_restore_shard(to, &part, &lost, NULL, now) == DOORMAN_OK);
        must(lost == 0);
    }
    doorman_permits_read(from, &first);
    doorman_permits_read(to, &second);
    must(second.hold_count <= first.hold_count && second.ban_count <= first.ban_count);
    must(second.request_count == first.request_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static doorman_config *config; /* the same for all inputs */
    const doorman_time now = 5 * DOORMAN_SECOND;
    if (!config) must(doorman_json_config(&config, limits, strlen(limits), NULL) == DOORMAN_OK);
    if (bytes && data[0] == '{') {
        read_map((const char *)data, bytes);
        return 0;
    }
    doorman_permits *permits = start(config, now), *other = start(config, now);
    doorman_error error = {0};
    size_t lost = 0;
    const size_t shard = bytes > 1 ? data[1] & 1 : 0;
    const doorman_shard_part part = {shard, data, bytes};
    doorman_status status = doorman_permits_restore_shard(permits, &part, &lost, &error, now);
    must(status == DOORMAN_OK || (status == DOORMAN_INVALID_ARGUMENT && error.text[0]));
    move(permits, other, shard, now);
    drop(permits, shard, now);
    drop(other, shard, now);
    doorman_permits_destroy(permits);
    doorman_permits_destroy(other);
    return 0;
}
