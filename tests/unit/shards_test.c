/* Shards (N1 to N7): which node decides for a key; the bytes that tell the next owner of a shard
 * what is known of it; and the movers of several nodes, which share a map that transactions
 * change. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define HOUR (3600 * SECOND)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const doorman_time noon = INT64_C(1767225600) * SECOND + 12 * HOUR; /* 1 January 2026 */
static const doorman_shards eight = {.count = 8, .seed = {11, 12}};

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void assert_refused(const char *text, const char *expected) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, expected));
}

/* ---- which shard ---------------------------------------------------------------------------- */

static size_t shard_of(const char *key) { return doorman_shard_of(&eight, "orders", key, false); }

TEST(only_the_first_text_in_braces_of_a_key_is_hashed) {
    const doorman_shards many = {.count = 1024, .seed = {1, 2}};
    const size_t acme = doorman_shard_of(&many, "r", "acme", false);
    assert_int_equal(doorman_shard_of(&many, "r", "user:{acme}:7", false), acme);
    assert_int_equal(doorman_shard_of(&many, "s", "{acme}{other}", false), acme);
    assert_int_not_equal(doorman_shard_of(&many, "r", "{}acme", false), acme);
    assert_int_not_equal(doorman_shard_of(&many, "r", "{acme", false), acme);
    assert_int_not_equal(doorman_shard_of(&many, "r", "acme}", false), acme);
}

TEST(an_empty_key_and_a_resource_of_one_shard_are_hashed_by_the_resource) {
    const doorman_shards many = {.count = 1024, .seed = {1, 2}};
    const size_t orders = doorman_shard_of(&many, "orders", NULL, false);
    assert_int_equal(doorman_shard_of(&many, "orders", "", false), orders);
    assert_int_equal(doorman_shard_of(&many, "orders", "acme", true), orders);
    assert_int_equal(doorman_shard_of(&many, "eu:{orders}", "acme", true), orders);
    assert_int_equal(doorman_shard_of(&many, "x", "orders", false), orders);
}

TEST(each_shard_has_about_equally_many_keys) {
    size_t counts[64] = {0};
    const doorman_shards shards = {.count = 64, .seed = {random_bits(), random_bits()}};
    for (int i = 0; i < 64000; i++) {
        char key[32];
        snprintf(key, sizeof key, "user-%d", i);
        counts[doorman_shard_of(&shards, "r", key, false)]++;
    }
    for (size_t i = 0; i < 64; i++) {
        assert_true(counts[i] > 800 && counts[i] < 1200); /* more than 6 standard deviations */
    }
}

TEST(another_seed_has_other_shards) {
    size_t same = 0;
    const doorman_shards other = {.count = 8, .seed = {11, 13}};
    for (int i = 0; i < 1000; i++) {
        char key[32];
        snprintf(key, sizeof key, "user-%d", i);
        same += doorman_shard_of(&other, "r", key, false) == shard_of(key);
    }
    assert_true(same < 250);
}

/* ---- configurations ------------------------------------------------------------------------- */

#define WINDOW                                                                                     \
    "{\"name\": \"a\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 60, \"per\": "        \
    "\"resource\"}"
#define RATE "{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1"

TEST(a_configuration_says_how_many_shards_there_are) {
    doorman_config *config =
        config_of("{\"shards\": 64, \"resources\": [{\"identifier_glob\": \"t/*\", \"shard_by\": "
                  "\"resource\", \"limits\": [" RATE ", \"per\": \"resource\"}]}]}");
    doorman_config_options read;
    doorman_config_read(config, &read);
    assert_int_equal(read.shard_count, 64);
    assert_true(read.templates[0].shard_by_resource);
    doorman_buffer text = {0};
    assert_int_equal(doorman_json_write_config(&read, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"shards\":64"));
    assert_non_null(strstr(text.text, "\"shard_by\":\"resource\""));
    doorman_buffer_uninit(&text);
    doorman_config_destroy(config);
}

TEST(limits_that_would_be_counted_once_a_shard_are_refused) {
    static const char head[] = "{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", ";
    char text[512];
    snprintf(text, sizeof text, "%s\"limits\": [" RATE ", \"per\": \"resource\"}]}]}", head);
    assert_refused(text, "limits[0].per: with shards, a limit per resource must be leased");
    snprintf(text, sizeof text, "%s\"limits\": [" RATE ", \"per\": \"template\"}]}]}", head);
    assert_refused(text, "limits[0].per: with shards, a limit per template must be leased, and per "
                         "resource");
    snprintf(text, sizeof text,
             "%s\"shard_by\": \"resource\", \"limits\": [" RATE ", \"per\": \"template\"}]}]}",
             head);
    assert_refused(text, "limits[0].per: with shards, a limit per template must be leased");
    snprintf(text, sizeof text,
             "%s\"limits\": [{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\", "
             "\"per\": \"resource\"}]}]}",
             head);
    doorman_config_destroy(config_of(text));
    snprintf(text, sizeof text,
             "%s\"limits\": [{\"name\": \"a\", \"kind\": \"CONCURRENCY\", \"limit\": \"leased\", "
             "\"per\": \"resource\"}]}]}",
             head);
    doorman_config_destroy(config_of(text));
    snprintf(text, sizeof text, "%s\"limits\": [" WINDOW "]}]}", head);
    assert_refused(text, "or its template needs shard_by: resource");
    snprintf(text, sizeof text, "%s\"shard_by\": \"resource\", \"limits\": [" WINDOW "]}]}", head);
    doorman_config_destroy(config_of(text));
}

TEST(wrong_shards_are_named) {
    assert_refused("{\"shards\": 0, \"resources\": []}", "shards");
    assert_refused("{\"shards\": 100000, \"resources\": []}", "shards");
    assert_refused("{\"shards\": \"many\", \"resources\": []}", "shards");
    assert_refused("{\"resources\": [{\"identifier_glob\": \"*\", \"shard_by\": \"resource\", "
                   "\"limits\": []}]}",
                   "shard_by: needs shards");
    assert_refused("{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", \"shard_by\": "
                   "\"key or so\", \"limits\": []}]}",
                   "shard_by");
    const doorman_config_options options = {.shard_count = 1025};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "shard_count: must be from 0 to 1,024");
}

/* ---- maps ----------------------------------------------------------------------------------- */

static const char *const address_a[] = {"tcp://10.0.0.1:5001", "tcp://10.0.0.2:5001"};
static const char *const address_b[] = {"tcp://10.0.0.3:5001"};
static const char *const http_a[] = {"http://10.0.0.1:15050", "https://10.0.0.2"};
static const doorman_shard_node two_nodes[] = {
    {"a", address_a, 2, "/doorman/a", .http_addresses = http_a, .http_address_count = 2},
    {.name = "b", .addresses = address_b, .address_count = 1}};
static const doorman_shard_rule rules[] = {
    {"orders", false}, {"tenant/*", true}, {"tenant/acme", false}};

static doorman_shard_map example_map(doorman_shard owners[8]) {
    for (size_t i = 0; i < 8; i++) owners[i] = (doorman_shard){.owner = i % 2, .target = i % 2};
    owners[3].target = 0;
    owners[5].from = 17;
    owners[5].is_lost = true;
    return (doorman_shard_map){.epoch = 18,
                               .shards = eight,
                               .owners = owners,
                               .nodes = two_nodes,
                               .node_count = 2,
                               .rules = rules,
                               .rule_count = 3};
}

TEST(a_map_is_read_as_it_was_written) {
    doorman_shard owners[8];
    const doorman_shard_map map = example_map(owners);
    doorman_shard_map *read = NULL;
    doorman_buffer text = {0}, again = {0};
    assert_int_equal(doorman_json_write_shard_map(&map, &text), DOORMAN_OK);
    doorman_error error = {0};
    doorman_status status = doorman_json_read_shard_map(&read, text.text, text.bytes, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    assert_int_equal(read->epoch, 18);
    assert_int_equal(read->shards.seed[1], 12);
    assert_int_equal(read->owners[3].target, 0);
    assert_int_equal(read->owners[5].from, 17);
    assert_true(read->owners[5].is_lost);
    assert_string_equal(read->nodes[0].addresses[1], "tcp://10.0.0.2:5001");
    assert_string_equal(read->nodes[0].election_key, "/doorman/a");
    assert_null(read->nodes[1].election_key);
    assert_int_equal(read->nodes[0].http_address_count, 2);
    assert_string_equal(read->nodes[0].http_addresses[1], "https://10.0.0.2");
    assert_int_equal(read->nodes[1].http_address_count, 0);
    assert_int_equal(doorman_json_write_shard_map(read, &again), DOORMAN_OK);
    assert_string_equal(again.text, text.text);
    doorman_shard_map_destroy(read);
    doorman_buffer_uninit(&text);
    doorman_buffer_uninit(&again);
}

TEST(a_map_knows_which_resources_are_one_shard) {
    doorman_shard owners[8];
    const doorman_shard_map map = example_map(owners);
    const size_t tenant = doorman_shard_map_find(&map, "tenant/eu", "x");
    assert_int_equal(tenant, doorman_shard_map_find(&map, "tenant/eu", "other"));
    assert_int_equal(tenant, doorman_shard_of(&eight, "tenant/eu", "x", true));
    /* an equal glob comes first, also behind one that matches */
    assert_int_equal(doorman_shard_map_find(&map, "tenant/acme", "x"), shard_of("x"));
    assert_int_equal(doorman_shard_map_find(&map, "orders", "x"), shard_of("x"));
}

/* The client packages have their own code for the hash and the globs, and the same vectors test
 * it. */
TEST(keys_are_in_the_shards_of_the_vectors_of_the_client_packages) {
    static char text[1 << 16];
    FILE *file = fopen("clients/stories/vectors/shards.json", "r");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    cJSON *all = cJSON_Parse(text);
    cJSON *written = cJSON_GetObjectItem(all, "map");
    const cJSON *items = cJSON_GetObjectItem(all, "items"), *item = NULL;
    cJSON *shards = cJSON_AddArrayToObject(written, "shards");
    const double count = cJSON_GetNumberValue(cJSON_GetObjectItem(all, "shards"));
    for (int i = 0; i < count; i++) {
        cJSON *shard = cJSON_CreateObject();
        cJSON_AddStringToObject(shard, "owner", "a");
        cJSON_AddItemToArray(shards, shard);
    }
    char *map_text = cJSON_PrintUnformatted(written);
    doorman_shard_map *map = NULL;
    doorman_error error = {0};
    if (doorman_json_read_shard_map(&map, map_text, strlen(map_text), &error) != DOORMAN_OK) {
        fail_msg("%s", error.text);
    }
    assert_true(cJSON_GetArraySize(items) > 40);
    cJSON_ArrayForEach(item, items) {
        const char *resource = cJSON_GetStringValue(cJSON_GetObjectItem(item, "resource_id"));
        const char *key = cJSON_GetStringValue(cJSON_GetObjectItem(item, "key"));
        const double shard = cJSON_GetNumberValue(cJSON_GetObjectItem(item, "shard"));
        const size_t found = doorman_shard_map_find(map, resource, key);
        if ((double)found != shard) fail_msg("%s %s: %zu, not %g", resource, key, found, shard);
    }
    doorman_shard_map_destroy(map);
    cJSON_free(map_text);
    cJSON_Delete(all);
}

TEST(wrong_maps_are_named) {
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {"{}", "epoch: is missing"},
        {"{\"epoch\": 0, \"seed\": \"x\"}", "epoch"},
        {"{\"epoch\": 1, \"seed\": \"0123\", \"nodes\": [], \"shards\": []}",
         "seed: must have 32 hexadecimal digits"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": []}], \"shards\": [{\"owner\": \"a\"}]}",
         "nodes[0].addresses: must be a list of 1 to 16"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"]}], \"shards\": [{\"owner\": \"a\"}, {\"owner\": \"b\"}]}",
         "shards[1].owner: no node has this name"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"], \"http_addresses\": [\"\"]}], "
         "\"shards\": [{\"owner\": \"a\"}]}",
         "nodes[0].http_addresses"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"]}], \"shards\": [{\"owner\": \"a\"}, {}]}",
         "shards[1].owner: is missing"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"]}], \"shards\": [{\"owner\": \"a\", \"target\": \"b\"}]}",
         "shards[0].target: no node has this name"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"]}, {\"name\": \"a\", \"addresses\": [\"t\"]}], "
         "\"shards\": [{\"owner\": \"a\"}]}",
         "nodes[1].name: another node has it"},
        {"{\"epoch\": 1, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"t\"]}], \"shards\": []}",
         "shards: must be from 1 to 1,024"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        doorman_shard_map *map = NULL;
        doorman_error error = {0};
        assert_int_equal(
            doorman_json_read_shard_map(&map, wrong[i].text, strlen(wrong[i].text), &error),
            DOORMAN_INVALID_ARGUMENT);
        assert_null(map);
        if (!strstr(error.text, wrong[i].error)) fail_msg("%zu: %s", i, error.text);
    }
}

TEST(a_map_without_memory_leaves_nothing) {
    doorman_shard owners[8];
    const doorman_shard_map map = example_map(owners);
    doorman_shard_map *copy = NULL;
    const size_t before = memory_blocks();
    size_t n = 0;
    do {
        doorman_shard_map_destroy(copy);
        copy = NULL;
        memory_fails_at(++n);
        doorman_status status = doorman_shard_map_create(&copy, &map, NULL);
        if (status != DOORMAN_OK) assert_null(copy);
        if (!copy) assert_int_equal(memory_blocks(), before);
    } while (!memory_works());
    doorman_shard_map_destroy(copy);
    assert_int_equal(memory_blocks(), before);
}

TEST(shards_without_memory_change_nothing) {
    doorman_shard owners[8];
    const doorman_shard_map map = example_map(owners);
    doorman_shard_map *read = NULL;
    doorman_shard_mover *mover = NULL;
    doorman_buffer text = {0}, again = {0};
    assert_int_equal(doorman_json_write_shard_map(&map, &text), DOORMAN_OK);
    const size_t before = memory_blocks();
    size_t n = 0;
    do {
        memory_fails_at(++n);
        doorman_status status = doorman_json_read_shard_map(&read, text.text, text.bytes, NULL);
        if (status == DOORMAN_OK) status = doorman_json_write_shard_map(read, &again);
        if (status == DOORMAN_OK) status = doorman_shard_mover_create(&mover, "a");
        if (status == DOORMAN_OK) status = doorman_shard_mover_map(mover, read, true);
        doorman_shard_map_destroy(read);
        doorman_shard_mover_destroy(mover);
        doorman_buffer_uninit(&again);
        read = NULL;
        mover = NULL;
        assert_int_equal(memory_blocks(), before);
        if (status != DOORMAN_OK) assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
    } while (!memory_works());
    assert_true(n > 8);
    doorman_buffer_uninit(&text);
}

/* ---- balancing ------------------------------------------------------------------------------ */

TEST(balancing_moves_as_few_shards_as_possible) {
    for (int run = 0; run < 2000; run++) {
        doorman_shard owners[64];
        bool stays[9];
        size_t now[9] = {0}, then[9] = {0}, staying = 0, least = 0, kept = 0;
        const size_t count = 1 + random_below(64), nodes = 1 + random_below(9);
        for (size_t i = 0; i < nodes; i++) {
            stays[i] = i == 0 || random_below(3) > 0;
            staying += stays[i];
        }
        for (size_t i = 0; i < count; i++) {
            owners[i] = (doorman_shard){.owner = random_below(nodes)};
            now[owners[i].owner]++;
        }
        const size_t moves = doorman_shards_balance(owners, count, stays, nodes);
        for (size_t i = 0; i < count; i++) {
            then[owners[i].target]++;
            kept += owners[i].target == owners[i].owner;
            assert_true(stays[owners[i].target]);
        }
        assert_int_equal(moves + kept, count);
        /* no node has two more than another, and nobody gives what it could keep */
        const size_t low = count / staying, high = low + (count % staying > 0);
        size_t larger = 0;
        for (size_t i = 0; i < nodes; i++) {
            if (!stays[i]) continue;
            assert_true(then[i] >= low && then[i] <= high);
            larger += now[i] > low;
            least += now[i] < low ? now[i] : low;
        }
        const size_t extra = count % staying;
        assert_int_equal(kept, least + (larger < extra ? larger : extra));
    }
}

TEST(balancing_without_a_node_that_stays_moves_nothing) {
    doorman_shard owners[4] = {{.owner = 1, .target = 1}};
    const bool stays[2] = {false, false};
    assert_int_equal(doorman_shards_balance(owners, 4, stays, 2), 0);
    assert_int_equal(owners[0].target, 1);
}

/* ---- permits of a node ---------------------------------------------------------------------- */

static const char limits_text[] =
    "{\"shards\": 8, \"resources\": [\n"
    "  {\"identifier_glob\": \"one/*\", \"shard_by\": \"resource\", \"limits\": [\n"
    "    {\"name\": \"all\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 3, \"size\": 20, \"per\": "
    "\"resource\"}]},\n"
    "  {\"identifier_glob\": \"hold\", \"limits\": [\n"
    "    {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 4, \"time_to_live\": 600, "
    "\"queue\": 5, \"max_wait\": 60}]},\n"
    "  {\"identifier_glob\": \"*\", \"limits\": [\n"
    "    {\"name\": \"rate\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 10},\n"
    "    {\"name\": \"hour\", \"kind\": \"FIXED_WINDOW\", \"limit\": 60, \"window\": 3600, "
    "\"unsettled\": \"refund\"},\n"
    "    {\"name\": \"minute\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 30, \"window\": 60},\n"
    "    {\"name\": \"tiers\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 20, \"window\": 20, "
    "\"active\": 20}, {\"limit\": 40, \"window\": 30, \"active\": 40, \"cooldown\": 60}]}]}]}";

struct node {
    doorman_permits *permits;
    doorman_permit out;
};

static doorman_time now, epoch;

static struct node node_of(const doorman_config *config, const doorman_shards *shards) {
    const doorman_permits_options options = {.config = config, .seed = {1, random_bits() | 1}};
    struct node node = {.permits = NULL};
    assert_int_equal(doorman_permits_create(&node.permits, &options, NULL, now), DOORMAN_OK);
    doorman_permits_set_epoch(node.permits, epoch, now);
    assert_int_equal(doorman_permits_set_shards(node.permits, shards), DOORMAN_OK);
    return node;
}

static void own(struct node *node, size_t shard, bool owned) {
    assert_int_equal(doorman_permits_own(node->permits, shard, owned, true, now), DOORMAN_OK);
}

static bool ask(struct node *node, const char *resource, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = resource, .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_status status = doorman_permits_acquire(node->permits, &request, &node->out, NULL, now);
    assert_int_equal(status, DOORMAN_OK);
    return node->out.granted;
}

static bool hold(struct node *node, const char *key, uint64_t request_id) {
    const doorman_permit_item item = {.resource_id = "hold", .key = key, .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = "client", .request_id = request_id};
    doorman_status status = doorman_permits_acquire(node->permits, &request, &node->out, NULL, now);
    assert_int_equal(status, DOORMAN_OK);
    return node->out.granted;
}

/* Writes to `out` a key that is not in the shard of `key`. */
static void key_elsewhere(char out[32], const char *key) {
    size_t n = 0;
    do snprintf(out, 32, "user-%zu", n++);
    while (shard_of(out) == shard_of(key));
}

/* Asks for a hold that may wait. Returns whether it waits. */
static bool wait_for_hold(struct node *node, const char *key, uint64_t request_id) {
    const doorman_permit_item item = {.resource_id = "hold", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = request_id,
                                            .max_wait = 50 * SECOND};
    doorman_status status = doorman_permits_acquire(node->permits, &request, &node->out, NULL, now);
    assert_int_equal(status, DOORMAN_OK);
    return node->out.pending;
}

static doorman_hold release(struct node *node, uint64_t id) {
    const doorman_hold_request request = {.client_id = "client", .id = id};
    doorman_hold out;
    assert_int_equal(doorman_permits_release(node->permits, &request, &out, NULL, now), DOORMAN_OK);
    return out;
}

/* Moves a shard with all that is known of it to another node. Returns the number of bytes. */
static size_t move(struct node *from, struct node *to, size_t shard) {
    doorman_shard_cursor cursor = {0};
    doorman_shard_part part;
    size_t all = 0;
    own(from, shard, false);
    while (!cursor.at_end) {
        assert_int_equal(doorman_permits_next_shard_rows(from->permits, shard, &cursor, &part, now),
                         DOORMAN_OK);
        size_t lost = 1;
        doorman_error error = {0};
        doorman_status status =
            doorman_permits_restore_shard(to->permits, &part, &lost, &error, now);
        if (status != DOORMAN_OK) fail_msg("%s", error.text);
        assert_int_equal(lost, 0);
        all += part.bytes;
    }
    cursor = (doorman_shard_cursor){0};
    while (!cursor.at_end) {
        assert_int_equal(doorman_permits_drop_shard(from->permits, shard, &cursor, now),
                         DOORMAN_OK);
    }
    own(to, shard, true);
    return all;
}

static void nodes_end(struct node *a, struct node *b, doorman_config *config) {
    doorman_permits_destroy(a->permits);
    if (b) doorman_permits_destroy(b->permits);
    doorman_config_destroy(config);
}

static void setup(void) {
    now = 5 * SECOND;
    epoch = noon;
}

static void pass(struct node *node, doorman_time time) {
    now += time;
    epoch += time;
    doorman_permits_set_epoch(node->permits, epoch, now);
    doorman_permits_update(node->permits, now);
}

TEST(only_keys_of_owned_shards_are_decided) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const size_t mine = shard_of("mine");
    char key[32];
    key_elsewhere(key, "mine");
    assert_false(ask(&node, "r", "mine", 1));
    assert_int_equal(node.out.reason, DOORMAN_REASON_MOVED);
    own(&node, mine, true);
    assert_true(ask(&node, "r", "mine", 1));
    assert_false(ask(&node, "r", key, 1));
    assert_int_equal(node.out.reason, DOORMAN_REASON_MOVED);
    double charged = 0;
    size_t count = 0;
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 1};
    doorman_error error = {0};
    assert_int_equal(doorman_permits_report(node.permits, &item, &charged, &error, now),
                     DOORMAN_UNAVAILABLE);
    assert_non_null(strstr(error.text, "another node"));
    assert_int_equal(doorman_permits_reset(node.permits, ITEM_OF("r", key), NULL, &count, NULL),
                     DOORMAN_UNAVAILABLE);
    assert_int_equal(doorman_permits_ban(node.permits, ITEM_OF("r", key), SECOND, NULL, now),
                     DOORMAN_UNAVAILABLE);
    doorman_permits_info info;
    doorman_permits_read(node.permits, &info);
    assert_int_equal(info.ban_count, 0);
    assert_int_equal(info.counter_count, 4); /* of "mine" */
    nodes_end(&node, NULL, config);
}

TEST(each_shard_counts_the_permits_that_were_decided_for_it) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const size_t mine = shard_of("mine");
    assert_false(ask(&node, "r", "mine", 1)); /* it is not owned */
    assert_int_equal(doorman_permits_shard_decided(node.permits, mine), 0);
    own(&node, mine, true);
    assert_true(ask(&node, "r", "mine", 10));
    assert_false(ask(&node, "r", "mine", 10));
    for (uint64_t i = 1; i <= 4; i++) assert_true(hold(&node, "mine", i));
    const uint64_t first = node.out.hold_id;
    assert_true(wait_for_hold(&node, "mine", 9));
    assert_int_equal(release(&node, first).reason, DOORMAN_NO_REASON);
    uint64_t ticket = 0;
    doorman_permit decided;
    assert_true(doorman_permits_next_decision(node.permits, &ticket, &decided));
    assert_true(decided.granted);
    assert_int_equal(
        doorman_permits_inspect(node.permits, ITEM_OF("r", "mine"), &node.out, NULL, now),
        DOORMAN_OK);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(doorman_permits_shard_decided(node.permits, i), i == mine ? 7 : 0);
    }
    nodes_end(&node, NULL, config);
}

TEST(items_of_two_shards_are_refused_also_where_one_node_has_both) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    for (size_t i = 0; i < 8; i++) own(&node, i, true);
    char other[32];
    key_elsewhere(other, "acme");
    const doorman_permit_item items[] = {
        {"r", "acme", 1, .min = 0}, {"r", "x{acme}", 1, .min = 0}, {"r", other, 1, .min = 0}};
    doorman_permit_request request = {.items = items, .item_count = 3};
    assert_int_equal(doorman_permits_acquire(node.permits, &request, &node.out, NULL, now),
                     DOORMAN_OK);
    assert_false(node.out.granted);
    assert_int_equal(node.out.reason, DOORMAN_REASON_SHARDS);
    assert_int_equal(node.out.item_index, 2);
    request.item_count = 2;
    assert_int_equal(doorman_permits_acquire(node.permits, &request, &node.out, NULL, now),
                     DOORMAN_OK);
    assert_true(node.out.granted);
    nodes_end(&node, NULL, config);
}

/* Makes a reservation of 8 units at a node. Returns its id. */
static uint64_t reserve(struct node *node, const char *key) {
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 8};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = 1,
                                            .settle_within = 60 * SECOND};
    assert_int_equal(doorman_permits_acquire(node->permits, &request, &node->out, NULL, now),
                     DOORMAN_OK);
    assert_true(node->out.granted);
    return node->out.reservation_id;
}

TEST(a_settlement_of_two_shards_is_refused_and_says_which_item) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    for (size_t i = 0; i < 8; i++) own(&node, i, true);
    char other[32];
    key_elsewhere(other, "acme");
    const uint64_t id = reserve(&node, "acme");
    const doorman_permit_item items[] = {
        {"r", "acme", 3, .min = 0}, {"r", "x{acme}", 1, .min = 0}, {"r", other, 1, .min = 0}};
    const doorman_settle_request settle = {
        .client_id = "client", .id = id, .items = items, .item_count = 3};
    doorman_settlement settled;
    assert_int_equal(doorman_permits_settle(node.permits, &settle, &settled, NULL, now),
                     DOORMAN_OK);
    assert_int_equal(settled.reason, DOORMAN_REASON_SHARDS);
    assert_int_equal(settled.item_index, 2);
    nodes_end(&node, NULL, config);
}

/* A reservation is known only to the owner of its shard. So the owner of another shard must refuse
 * the settle, and must not charge it as unknown. */
TEST(a_reservation_of_another_shard_is_not_settled_with_items_that_it_has_not) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    char other[32];
    key_elsewhere(other, "acme");
    own(&a, shard_of("acme"), true);
    own(&b, shard_of(other), true);
    const uint64_t id = reserve(&a, "acme");
    const doorman_permit_item item = {.resource_id = "r", .key = other, .cost = 3};
    const doorman_settle_request settle = {
        .client_id = "client", .id = id, .items = &item, .item_count = 1};
    doorman_settlement settled;
    assert_int_equal(doorman_permits_settle(b.permits, &settle, &settled, NULL, now), DOORMAN_OK);
    assert_int_equal(settled.reason, DOORMAN_REASON_REPEATED);
    assert_true(ask(&b, "r", other, 10)); /* nothing was charged */
    nodes_end(&a, &b, config);
}

TEST(permits_without_memory_for_shards_have_none) {
    now = 5 * SECOND;
    epoch = noon;
    doorman_config *config = config_of(limits_text);
    const doorman_permits_options options = {.config = config, .seed = {1, 2}};
    doorman_permits *permits = NULL;
    assert_int_equal(doorman_permits_create(&permits, &options, NULL, now), DOORMAN_OK);
    memory_fails_at(1);
    assert_int_equal(doorman_permits_set_shards(permits, &eight), DOORMAN_OUT_OF_MEMORY);
    assert_false(memory_works());
    assert_int_equal(doorman_permits_own(permits, 0, true, true, now), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_set_shards(permits, &eight), DOORMAN_OK);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
}

TEST(the_number_of_shards_cannot_change_while_keys_are_in_force) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const doorman_shards more = {.count = 16, .seed = {11, 12}};
    own(&node, shard_of("a"), true);
    assert_true(ask(&node, "r", "a", 1));
    assert_int_equal(doorman_permits_set_shards(node.permits, &eight), DOORMAN_OK);
    assert_int_equal(doorman_permits_set_shards(node.permits, &more), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_set_shards(node.permits, NULL), DOORMAN_INVALID_ARGUMENT);
    assert_true(ask(&node, "r", "a", 1));
    assert_int_equal(doorman_permits_own(node.permits, 8, true, true, now),
                     DOORMAN_INVALID_ARGUMENT);
    nodes_end(&node, NULL, config);
}

TEST(an_id_tells_its_shard) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    for (size_t i = 0; i < 8; i++) own(&node, i, true);
    for (uint64_t i = 1; i <= 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "user-%d", (int)i);
        assert_true(hold(&node, key, i));
        assert_int_equal(node.out.hold_id % 8, shard_of(key));
        const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 1};
        const doorman_permit_request request = {.items = &item,
                                                .item_count = 1,
                                                .client_id = "client",
                                                .request_id = 1000 + i,
                                                .settle_within = SECOND};
        assert_int_equal(doorman_permits_acquire(node.permits, &request, &node.out, NULL, now),
                         DOORMAN_OK);
        assert_int_equal(node.out.reservation_id % 8, shard_of(key));
    }
    nodes_end(&node, NULL, config);
}

TEST(a_release_by_request_id_belongs_to_the_shard_of_its_items) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const size_t shard = shard_of("k");
    const doorman_hold_item item = {.resource_id = "hold", .key = "k", .amount = 1};
    const doorman_hold_request request = {
        .client_id = "client", .request_id = 1, .items = &item, .item_count = 1};
    doorman_hold out;
    assert_int_equal(doorman_permits_release(node.permits, &request, &out, NULL, now), DOORMAN_OK);
    assert_int_equal(out.reason, DOORMAN_REASON_MOVED);
    assert_false(out.gone); /* the owner may have the hold */
    own(&node, shard, true);
    assert_true(hold(&node, "k", 1));
    assert_int_equal(doorman_permits_release(node.permits, &request, &out, NULL, now), DOORMAN_OK);
    assert_false(out.gone);
    assert_true(hold(&node, "k", 2));
    const doorman_hold_item wrong = {.resource_id = "", .key = "k", .amount = 1};
    const doorman_hold_request bad = {
        .client_id = "client", .request_id = 2, .items = &wrong, .item_count = 1};
    doorman_error error = {0};
    assert_int_equal(doorman_permits_release(node.permits, &bad, &out, &error, now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "items[0].resource_id"));
    nodes_end(&node, NULL, config);
}

TEST(an_id_tells_its_shard_also_if_a_permit_of_another_shard_was_decided_first) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    for (size_t i = 0; i < 8; i++) own(&node, i, true);
    char other[32];
    key_elsewhere(other, "a");
    for (uint64_t i = 1; i <= 4; i++) assert_true(hold(&node, "a", i));
    const doorman_permit_item item = {.resource_id = "hold", .key = "a", .cost = 1};
    const doorman_permit_request waits = {.items = &item,
                                          .item_count = 1,
                                          .client_id = "client",
                                          .request_id = 9,
                                          .max_wait = 50 * SECOND};
    now += 600 * SECOND;
    epoch += 600 * SECOND;
    assert_int_equal(doorman_permits_acquire(node.permits, &waits, &node.out, NULL, now),
                     DOORMAN_OK);
    assert_true(node.out.pending);
    now += 35 * SECOND; /* the holds end with the next call, which decides on the waiting permit */
    epoch += 35 * SECOND;
    const doorman_permit_item reserved = {.resource_id = "r", .key = other, .cost = 1};
    const doorman_permit_request request = {.items = &reserved,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = 10,
                                            .settle_within = SECOND};
    assert_int_equal(doorman_permits_acquire(node.permits, &request, &node.out, NULL, now),
                     DOORMAN_OK);
    assert_int_equal(node.out.reservation_id % 8, shard_of(other));
    uint64_t ticket = 0;
    doorman_permit decided;
    assert_true(doorman_permits_next_decision(node.permits, &ticket, &decided));
    assert_int_equal(decided.hold_id % 8, shard_of("a"));
    nodes_end(&node, NULL, config);
}

TEST(permits_that_wait_are_told_that_their_shard_moves) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const size_t shard = shard_of("a");
    own(&node, shard, true);
    for (uint64_t i = 1; i <= 4; i++) assert_true(hold(&node, "a", i));
    assert_true(wait_for_hold(&node, "a", 9));
    own(&node, shard, false);
    uint64_t ticket = 0;
    doorman_permit decided;
    assert_true(doorman_permits_next_decision(node.permits, &ticket, &decided));
    assert_int_equal(decided.reason, DOORMAN_REASON_MOVED);
    assert_false(doorman_permits_next_decision(node.permits, &ticket, &decided));
    nodes_end(&node, NULL, config);
}

/* ---- moving --------------------------------------------------------------------------------- */

TEST(a_hold_moves_with_its_shard) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    own(&a, shard, true);
    assert_true(hold(&a, "k", 1));
    const uint64_t id = a.out.hold_id;
    for (uint64_t i = 2; i <= 4; i++) assert_true(hold(&a, "k", i));
    move(&a, &b, shard);
    assert_int_equal(release(&a, id).reason, DOORMAN_REASON_MOVED);
    assert_false(hold(&b, "k", 9)); /* all units are held */
    assert_int_equal(b.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(hold(&b, "k", 1)); /* a repeat is the same hold */
    assert_int_equal(b.out.hold_id, id);
    assert_false(release(&b, id).gone);
    assert_true(hold(&b, "k", 9));
    doorman_permits_info info;
    doorman_permits_read(a.permits, &info);
    assert_int_equal(info.hold_count, 0);
    nodes_end(&a, &b, config);
}

TEST(a_used_transfer_moves_with_its_source) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    own(&a, shard, true);
    const doorman_permit_item item = {.resource_id = "hold", .key = "k", .cost = 3};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = "client", .request_id = 1};
    assert_int_equal(doorman_permits_acquire(a.permits, &request, &a.out, NULL, now), DOORMAN_OK);
    const double one = 1;
    const doorman_hold_request give = {.client_id = "client",
                                       .id = a.out.hold_id,
                                       .request_id = 2,
                                       .amounts = &one,
                                       .amount_count = 1};
    doorman_hold out;
    assert_int_equal(doorman_permits_transfer(a.permits, &give, &out, NULL, now), DOORMAN_OK);
    const doorman_hold_request take = {.client_id = "other", .id = out.id, .request_id = 1};
    assert_int_equal(doorman_permits_seize(a.permits, &take, &out, NULL, now), DOORMAN_OK);
    assert_false(out.gone);
    move(&a, &b, shard);
    /* a late copy of the transfer takes nothing from its source a second time */
    assert_int_equal(doorman_permits_transfer(b.permits, &give, &out, NULL, now), DOORMAN_OK);
    assert_true(out.gone);
    doorman_permits_info info;
    doorman_permits_read(b.permits, &info);
    assert_int_equal(info.hold_count, 3); /* source, transfer, and what was seized */
    nodes_end(&a, &b, config);
}

TEST(a_reservation_settles_at_the_next_owner_of_its_shard) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    own(&a, shard, true);
    doorman_permit_item item = {.resource_id = "r", .key = "k", .cost = 8};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = 1,
                                            .settle_within = 60 * SECOND};
    assert_int_equal(doorman_permits_acquire(a.permits, &request, &a.out, NULL, now), DOORMAN_OK);
    assert_true(a.out.granted);
    move(&a, &b, shard);
    item.cost = 3;
    const doorman_settle_request settle = {
        .client_id = "client", .request_id = 1, .items = &item, .item_count = 1};
    doorman_settlement settled;
    assert_int_equal(doorman_permits_settle(a.permits, &settle, &settled, NULL, now), DOORMAN_OK);
    assert_int_equal(settled.reason, DOORMAN_REASON_MOVED);
    assert_int_equal(doorman_permits_settle(b.permits, &settle, &settled, NULL, now), DOORMAN_OK);
    assert_int_equal(settled.reason, DOORMAN_NO_REASON);
    assert_about(settled.items[0].returned, 5);
    assert_true(ask(&b, "r", "k", 7)); /* of 10, also where the limit is not durable */
    assert_false(ask(&b, "r", "k", 1));
    nodes_end(&a, &b, config);
}

TEST(the_next_owner_stores_what_it_has_taken) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
    own(&a, shard, true);
    assert_true(ask(&a, "r", "k", 5));
    assert_int_equal(doorman_permits_ban(a.permits, ITEM_OF("r", "{k}x"), HOUR, NULL, now),
                     DOORMAN_OK);
    size_t stored = 0, removed = 0, rows = 0;
    while (doorman_permits_next_changed(a.permits, row, now)) stored++;
    assert_int_equal(stored, 4); /* hour, minute, tiers, and the ban */
    move(&a, &b, shard);
    for (size_t bytes; (bytes = doorman_permits_next_changed(a.permits, row, now));) {
        doorman_permit_row read;
        assert_int_equal(doorman_permit_row_read(row, bytes, &read, NULL), DOORMAN_OK);
        removed += read.removed;
    }
    assert_int_equal(removed, stored);
    while (doorman_permits_next_changed(b.permits, row, now)) rows++;
    assert_int_equal(rows, stored);
    assert_false(ask(&b, "r", "{k}x", 1));
    assert_int_equal(b.out.reason, DOORMAN_REASON_BANNED);
    doorman_permits_info info;
    doorman_permits_read(a.permits, &info);
    assert_int_equal(info.counter_count + info.ban_count, 0);
    nodes_end(&a, &b, config);
}

TEST(a_new_master_forgets_the_rows_of_shards_that_have_moved) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX], part[8192];
    char other[32];
    size_t rows = 0, used = 0, shard = 0;
    key_elsewhere(other, "k");
    own(&a, shard_of("k"), true);
    own(&a, shard_of(other), true);
    assert_true(ask(&a, "r", "k", 5));
    assert_true(ask(&a, "r", other, 5));
    for (size_t bytes; (bytes = doorman_permits_next_changed(a.permits, row, now)); rows++) {
        assert_int_equal(doorman_permits_restore(b.permits, row, bytes, NULL, now), DOORMAN_OK);
        assert_int_equal(doorman_permits_shard_of_row(a.permits, row, bytes, &shard), DOORMAN_OK);
        if (shard == shard_of("k")) used = doorman_shard_part_add(part, used, shard, row, bytes);
        assert_true(used < sizeof part - sizeof row);
    }
    assert_int_equal(rows, 6); /* three durable limits of two keys */
    own(&b, shard_of(other), true);
    while (doorman_permits_find_shards(b.permits, 100, now)) continue;
    for (doorman_shard_cursor cursor = {0}; !cursor.at_end;) {
        assert_int_equal(doorman_permits_drop_shard(b.permits, DOORMAN_SHARDS_AWAY, &cursor, now),
                         DOORMAN_OK);
    }
    doorman_permits_info info;
    doorman_permits_read(b.permits, &info);
    assert_int_equal(info.counter_count, 3);
    /* the next owner can read the rows of a store as a part */
    struct node c = node_of(config, &eight);
    const doorman_shard_part whole = {shard_of("k"), part, used};
    assert_int_equal(doorman_permits_restore_shard(c.permits, &whole, NULL, NULL, now), DOORMAN_OK);
    doorman_permits_read(c.permits, &info);
    assert_int_equal(info.counter_count, 3);
    doorman_permits_destroy(c.permits);
    nodes_end(&a, &b, config);
}

TEST(a_configuration_with_other_shards_is_refused) {
    setup();
    doorman_config *config = config_of(limits_text), *none = NULL;
    const doorman_config_options options = {.shard_count = 0};
    struct node a = node_of(config, &eight);
    assert_int_equal(doorman_config_create(&none, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_permits_configure(a.permits, none), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_configure(a.permits, config), DOORMAN_OK);
    doorman_config_destroy(none);
    nodes_end(&a, NULL, config);
}

TEST(rows_that_are_restored_twice_count_once) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    own(&a, shard, true);
    assert_true(ask(&a, "r", "k", 5));
    assert_true(hold(&a, "k", 1));
    own(&a, shard, false);
    for (int i = 0; i < 2; i++) {
        doorman_shard_cursor cursor = {0};
        doorman_shard_part part;
        while (!cursor.at_end) {
            assert_int_equal(doorman_permits_next_shard_rows(a.permits, shard, &cursor, &part, now),
                             DOORMAN_OK);
            assert_int_equal(doorman_permits_restore_shard(b.permits, &part, NULL, NULL, now),
                             DOORMAN_OK);
        }
    }
    own(&b, shard, true);
    assert_true(ask(&b, "r", "k", 5));
    for (uint64_t i = 2; i <= 4; i++) assert_true(hold(&b, "k", i));
    assert_false(hold(&b, "k", 5));
    nodes_end(&a, &b, config);
}

TEST(a_shard_whose_holds_are_lost_learns_them) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node node = node_of(config, &eight);
    const size_t lost = shard_of("k");
    char other[32];
    key_elsewhere(other, "k");
    own(&node, shard_of(other), true);
    assert_int_equal(doorman_permits_own(node.permits, lost, true, false, now), DOORMAN_OK);
    assert_false(hold(&node, "k", 1));
    assert_int_equal(node.out.reason, DOORMAN_REASON_LEARNING);
    assert_true(node.out.retry_after > 500 * SECOND);
    assert_true(hold(&node, other, 2)); /* other shards do not learn */
    const doorman_hold_item item = {.resource_id = "hold", .key = "k", .amount = 3};
    const doorman_hold_request renew = {
        .client_id = "client", .id = 8000 + lost, .items = &item, .item_count = 1};
    doorman_hold out;
    assert_int_equal(doorman_permits_renew(node.permits, &renew, &out, NULL, now), DOORMAN_OK);
    assert_false(out.gone);
    const doorman_hold_request foreign = {
        .client_id = "client", .id = 8000 + (lost + 1) % 8, .items = &item, .item_count = 1};
    own(&node, (lost + 1) % 8, true);
    assert_int_equal(doorman_permits_renew(node.permits, &foreign, &out, NULL, now), DOORMAN_OK);
    assert_true(out.gone); /* its id is of another shard than its key */
    pass(&node, 500 * SECOND);
    assert_int_equal(doorman_permits_renew(node.permits, &renew, &out, NULL, now), DOORMAN_OK);
    pass(&node, 200 * SECOND);
    assert_true(hold(&node, "k", 3));
    assert_false(hold(&node, "k", 4)); /* 3 of 4 units were believed */
    assert_int_equal(node.out.reason, DOORMAN_REASON_CONCURRENCY);
    nodes_end(&node, NULL, config);
}

TEST(a_shard_that_moves_while_it_learns_learns_at_its_next_owner) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    assert_int_equal(doorman_permits_own(a.permits, shard, true, false, now), DOORMAN_OK);
    pass(&a, 100 * SECOND);
    move(&a, &b, shard); /* it says that all holds are known, although `a` was learning them */
    assert_false(hold(&b, "k", 1));
    assert_int_equal(b.out.reason, DOORMAN_REASON_LEARNING);
    const doorman_hold_item item = {.resource_id = "hold", .key = "k", .amount = 3};
    const doorman_hold_request renew = {
        .client_id = "client", .id = 8000 + shard, .items = &item, .item_count = 1};
    doorman_hold out;
    assert_int_equal(doorman_permits_renew(b.permits, &renew, &out, NULL, now), DOORMAN_OK);
    assert_false(out.gone);
    pass(&b, 560 * SECOND); /* 530 s with the drift were left */
    assert_true(hold(&b, "k", 3));
    assert_false(hold(&b, "k", 4));
    assert_int_equal(b.out.reason, DOORMAN_REASON_CONCURRENCY);
    nodes_end(&a, &b, config);
}

TEST(a_counter_that_was_reset_gives_nothing_back_after_a_move) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    doorman_permit_item item = {.resource_id = "r", .key = "k", .cost = 8};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = 1,
                                            .settle_within = 60 * SECOND};
    own(&a, shard, true);
    assert_int_equal(doorman_permits_acquire(a.permits, &request, &a.out, NULL, now), DOORMAN_OK);
    size_t count = 0;
    assert_int_equal(doorman_permits_reset(a.permits, ITEM_OF("r", "k"), NULL, &count, NULL),
                     DOORMAN_OK);
    assert_true(ask(&a, "r", "k", 6));
    move(&a, &b, shard);
    item.cost = 2;
    const doorman_settle_request settle = {
        .client_id = "client", .request_id = 1, .items = &item, .item_count = 1};
    doorman_settlement settled;
    assert_int_equal(doorman_permits_settle(b.permits, &settle, &settled, NULL, now), DOORMAN_OK);
    assert_about(settled.items[0].returned, 0);
    assert_false(ask(&b, "r", "k", 5)); /* 6 of 10 are used, by another permit */
    assert_true(ask(&b, "r", "k", 4));
    nodes_end(&a, &b, config);
}

TEST(damaged_rows_of_a_shard_are_refused) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    const size_t shard = shard_of("k");
    static unsigned char copy[65536], damaged[65536];
    own(&a, shard, true);
    for (uint64_t i = 1; i < 5; i++) {
        (void)ask(&a, "r", "k", 1);
        (void)hold(&a, "k", i);
    }
    own(&a, shard, false);
    doorman_shard_cursor cursor = {0};
    doorman_shard_part part;
    size_t refused = 0;
    assert_int_equal(doorman_permits_next_shard_rows(a.permits, shard, &cursor, &part, now),
                     DOORMAN_OK);
    const size_t bytes = part.bytes;
    assert_true(bytes > 100 && bytes < sizeof copy && cursor.at_end);
    memcpy(copy, part.rows, bytes);
    for (size_t cut = 1; cut < bytes; cut++) {
        memcpy(damaged, copy, cut);
        doorman_error error = {0};
        part = (doorman_shard_part){shard, damaged, cut};
        doorman_status status = doorman_permits_restore_shard(b.permits, &part, NULL, &error, now);
        if (status != DOORMAN_OK) assert_true(error.text[0]);
        refused += status == DOORMAN_INVALID_ARGUMENT;
    }
    assert_true(refused > bytes - 12); /* whole records are valid */
    for (int i = 0; i < 20000; i++) {
        memcpy(damaged, copy, bytes);
        for (size_t n = 1 + random_below(3); n > 0; n--) {
            damaged[random_below(bytes)] = (unsigned char)random_bits();
        }
        part = (doorman_shard_part){shard, damaged, bytes};
        (void)doorman_permits_restore_shard(b.permits, &part, NULL, NULL, now);
    }
    part = (doorman_shard_part){(shard + 1) % 8, copy, bytes};
    assert_int_equal(doorman_permits_restore_shard(b.permits, &part, NULL, NULL, now),
                     DOORMAN_INVALID_ARGUMENT);
    nodes_end(&a, &b, config);
}

TEST(moving_without_memory_changes_nothing) {
    setup();
    doorman_config *config = config_of(limits_text);
    struct node a = node_of(config, &eight);
    const size_t shard = shard_of("k");
    own(&a, shard, true);
    assert_true(ask(&a, "r", "k", 5));
    for (uint64_t i = 1; i <= 3; i++) assert_true(hold(&a, "k", i));
    own(&a, shard, false);
    size_t n = 0;
    bool complete = false;
    while (!complete) {
        struct node b = node_of(config, &eight);
        doorman_shard_cursor cursor = {0};
        doorman_status status = DOORMAN_OK;
        memory_fails_at(++n);
        while (!cursor.at_end && status == DOORMAN_OK) {
            doorman_shard_part part;
            const doorman_shard_cursor before = cursor;
            status = doorman_permits_next_shard_rows(a.permits, shard, &cursor, &part, now);
            if (status != DOORMAN_OK) assert_memory_equal(&before, &cursor, sizeof cursor);
            if (status != DOORMAN_OK) break;
            status = doorman_permits_restore_shard(b.permits, &part, NULL, NULL, now);
        }
        complete = memory_works() && status == DOORMAN_OK;
        if (complete) {
            own(&b, shard, true);
            assert_true(ask(&b, "r", "k", 5));
            assert_true(hold(&b, "k", 4));
            assert_false(hold(&b, "k", 5));
        }
        doorman_permits_destroy(b.permits);
    }
    nodes_end(&a, NULL, config);
}

/* ---- where the keys of shards are ------------------------------------------------------------ */

static const doorman_shards hundred = {.count = 100, .seed = {11, 12}};
static const char hundred_text[] =
    "{\"shards\": 100, \"resources\": [\n"
    "  {\"identifier_glob\": \"hold\", \"limits\": [\n"
    "    {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 4, \"time_to_live\": 600}]},\n"
    "  {\"identifier_glob\": \"*\", \"limits\": [\n"
    "    {\"name\": \"rate\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.01, \"size\": 1000},\n"
    "    {\"name\": \"hour\", \"kind\": \"FIXED_WINDOW\", \"limit\": 600, \"window\": 3600}]}]}";

/* Two nodes that get the same calls. Only the first one calls doorman_permits_find_shards. The
 * second one is a slow model: it searches all its keys for the keys of a shard. */
struct twins {
    doorman_config *config;
    struct node nodes[2];
    size_t keys;
    uint64_t requests;
};

static struct twins twins_begin(void) {
    setup();
    struct twins t = {.config = config_of(hundred_text), .keys = 60 + random_below(400)};
    const doorman_permits_options options = {.config = t.config, .seed = {1, random_bits() | 1}};
    for (size_t n = 0; n < 2; n++) {
        doorman_permits **permits = &t.nodes[n].permits;
        assert_int_equal(doorman_permits_create(permits, &options, NULL, now), DOORMAN_OK);
        doorman_permits_set_epoch(*permits, epoch, now);
        assert_int_equal(doorman_permits_set_shards(*permits, &hundred), DOORMAN_OK);
        for (size_t i = 0; i < hundred.count; i++) own(&t.nodes[n], i, true);
    }
    return t;
}

/* Writes a random key. There are enough keys to split tables, and twins_breathe removes enough of
 * them to merge tables. */
static void twins_key(const struct twins *t, char key[32]) {
    snprintf(key, 32, "u%zu", random_below(t->keys));
}

static void twins_reset(struct twins *t, const char *key) {
    for (size_t n = 0; n < 2; n++) {
        (void)doorman_permits_reset(t->nodes[n].permits, ITEM_OF("r", key), NULL, NULL, NULL);
    }
}

/* Makes the same call on both nodes: a permit, a reservation, a hold, a transfer, a ban, or a
 * reset. */
static void twins_act(struct twins *t) {
    char key[32];
    const size_t what = random_below(12);
    const bool holds = what >= 10;
    twins_key(t, key);
    t->requests++;
    if (what == 0) twins_reset(t, key);
    if (what == 0) return;
    for (size_t n = 0; n < 2; n++) {
        doorman_permits *permits = t->nodes[n].permits;
        struct node *node = &t->nodes[n];
        const doorman_permit_item item = {
            .resource_id = holds ? "hold" : "r", .key = key, .cost = 1};
        const doorman_permit_request request = {.items = &item,
                                                .item_count = 1,
                                                .client_id = "client",
                                                .request_id = what > 7 ? t->requests : 0,
                                                .settle_within = what > 7 && !holds ? HOUR : 0};
        if (what == 1) {
            (void)doorman_permits_ban(permits, ITEM_OF("r", key), HOUR, NULL, now);
            continue;
        }
        assert_int_equal(doorman_permits_acquire(permits, &request, &node->out, NULL, now),
                         DOORMAN_OK);
        if (what != 11 || !node->out.hold_id) continue;
        const doorman_hold_request transfer = {
            .client_id = "client", .id = node->out.hold_id, .request_id = ++t->requests};
        doorman_hold out;
        assert_int_equal(doorman_permits_transfer(permits, &transfer, &out, NULL, now), DOORMAN_OK);
        t->requests -= n == 0; /* the twin uses the same request_id */
    }
}

/* Removes most keys, so that tables are merged. Then changes the number of keys. */
static void twins_breathe(struct twins *t) {
    char key[32];
    for (size_t i = 0; i < t->keys; i++) {
        snprintf(key, sizeof key, "u%zu", i);
        if (random_below(8)) twins_reset(t, key);
    }
    t->keys = 60 + random_below(400);
}

/* Writes what a shard has: all records, without the headers of the parts. Returns the size. */
static size_t twins_write(struct twins *t, size_t n, size_t shard, unsigned char *out) {
    doorman_shard_cursor cursor = {0};
    size_t all = 0;
    while (!cursor.at_end) {
        doorman_shard_part part;
        assert_int_equal(
            doorman_permits_next_shard_rows(t->nodes[n].permits, shard, &cursor, &part, now),
            DOORMAN_OK);
        if (!part.bytes) continue;
        const size_t count = part.bytes - DOORMAN_SHARD_PART_HEADER;
        memcpy(out + all, part.rows + DOORMAN_SHARD_PART_HEADER, count);
        all += count;
    }
    return all;
}

/* Lets both nodes write and drop a shard. Fails unless they write the same bytes, so that nothing
 * is missing or there twice. Returns the size. */
static size_t twins_leave(struct twins *t, size_t shard) {
    enum { ROOM = 1 << 20 };
    static unsigned char written[2][ROOM];
    size_t bytes[2];
    doorman_permits_info info[2];
    for (size_t n = 0; n < 2; n++) {
        own(&t->nodes[n], shard, false);
        bytes[n] = twins_write(t, n, shard, written[n]);
        doorman_shard_cursor cursor = {0};
        while (!cursor.at_end) {
            assert_int_equal(doorman_permits_drop_shard(t->nodes[n].permits, shard, &cursor, now),
                             DOORMAN_OK);
        }
        doorman_permits_read(t->nodes[n].permits, &info[n]);
        own(&t->nodes[n], shard, true);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(written[0], written[1], bytes[0]);
    assert_int_equal(info[0].counter_count, info[1].counter_count);
    assert_int_equal(info[0].ban_count, info[1].ban_count);
    assert_int_equal(info[0].hold_count, info[1].hold_count);
    assert_int_equal(info[0].request_count, info[1].request_count);
    return bytes[0];
}

/* Lets the first node find more keys of shards. Returns whether more steps are needed. */
static bool twins_find(struct twins *t, size_t most) {
    return doorman_permits_find_shards(t->nodes[0].permits, most, now);
}

static void twins_end(struct twins *t) { nodes_end(&t->nodes[0], &t->nodes[1], t->config); }

TEST(all_that_a_shard_has_is_found_while_keys_come_and_go) {
    size_t bytes = 0;
    for (size_t run = 0; run < random_runs(60); run++) {
        struct twins t = twins_begin();
        for (size_t i = random_below(3) * 300; i > 0; i--) twins_act(&t);
        for (size_t round = 0; round < 4; round++) {
            while (twins_find(&t, random_below(6))) {
                for (size_t i = random_below(8); i > 0; i--) twins_act(&t);
                if (random_below(40) == 0) twins_breathe(&t);
            }
            for (size_t i = random_below(100); i > 0; i--) twins_act(&t);
            for (size_t i = 0; i < 10; i++) bytes += twins_leave(&t, random_below(hundred.count));
            if (random_below(2)) continue;
            pass(&t.nodes[0], 2 * HOUR); /* windows are over */
            pass(&t.nodes[1], 0);
        }
        twins_end(&t);
    }
    assert_true(bytes > 100000);
}

TEST(a_shard_is_whole_also_if_it_is_written_before_all_keys_are_found) {
    struct twins t = twins_begin();
    for (size_t i = 0; i < 1000; i++) twins_act(&t);
    size_t bytes = 0;
    for (size_t shard = 0; shard < hundred.count && twins_find(&t, 1); shard++) {
        bytes += twins_leave(&t, shard);
    }
    assert_true(bytes > 0);
    twins_end(&t);
}

TEST(a_shard_takes_few_steps_if_its_keys_were_found) {
    setup();
    doorman_config *config = config_of(hundred_text);
    struct node node = node_of(config, &hundred);
    doorman_shard_cursor cursor = {0};
    size_t steps[2] = {0, 0};
    for (size_t i = 0; i < hundred.count; i++) own(&node, i, true);
    for (size_t i = 0; i < 20000; i++) {
        char key[32];
        snprintf(key, sizeof key, "u%zu", i);
        assert_true(ask(&node, "r", key, 1));
    }
    for (size_t finds = 0; finds < 2; finds++) {
        if (finds)
            while (doorman_permits_find_shards(node.permits, 1000, now)) continue;
        own(&node, 7, false);
        for (cursor = (doorman_shard_cursor){0}; !cursor.at_end; steps[finds]++) {
            doorman_shard_part part;
            assert_int_equal(doorman_permits_next_shard_rows(node.permits, 7, &cursor, &part, now),
                             DOORMAN_OK);
        }
        own(&node, 7, true);
    }
    assert_true(steps[0] >= 32); /* two tables with 20,000 keys, in steps of 1,024 buckets */
    assert_true(steps[1] * 4 < steps[0]);
    nodes_end(&node, NULL, config);
}

/* Drops a shard, until too many removals wait to be yielded. Returns whether nothing is left. */
static bool drop_some(struct node *node, size_t shard) {
    doorman_shard_cursor cursor = {0}, before = {.at_end = true};
    own(node, shard, false);
    while (!cursor.at_end && memcmp(&before, &cursor, sizeof cursor) != 0) {
        before = cursor;
        assert_int_equal(doorman_permits_drop_shard(node->permits, shard, &cursor, now),
                         DOORMAN_OK);
    }
    return cursor.at_end;
}

TEST(a_shard_is_written_also_while_many_removed_rows_wait) {
    setup();
    doorman_config *config = config_of(
        "{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": "
        "\"a\", "
        "\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.01, \"size\": 9, \"durable\": true}]}]}");
    struct node a = node_of(config, &eight), b = node_of(config, &eight);
    unsigned char row[DOORMAN_PERMIT_ROW_BYTES_MAX];
    for (size_t i = 0; i < 8; i++) own(&a, i, true);
    for (size_t i = 0; i < 70000; i++) {
        char key[32];
        snprintf(key, sizeof key, "u%zu", i);
        assert_true(ask(&a, "r", key, 1));
    }
    while (doorman_permits_next_changed(a.permits, row, now)) continue;
    bool dropped = true;
    for (size_t shard = 0; shard < 7 && dropped; shard++) dropped = drop_some(&a, shard);
    assert_false(dropped); /* 50,000 removals wait */
    own(&a, 7, false);
    for (doorman_shard_cursor cursor = {0}; !cursor.at_end;) {
        doorman_shard_part part;
        const doorman_shard_cursor before = cursor;
        assert_int_equal(doorman_permits_next_shard_rows(a.permits, 7, &cursor, &part, now),
                         DOORMAN_OK);
        assert_memory_not_equal(&before, &cursor, sizeof cursor);
        assert_int_equal(doorman_permits_restore_shard(b.permits, &part, NULL, NULL, now),
                         DOORMAN_OK);
    }
    doorman_permits_info info;
    doorman_permits_read(b.permits, &info);
    assert_true(info.counter_count > 8000);
    while (doorman_permits_next_changed(a.permits, row, now)) continue;
    for (size_t shard = 0; shard < 8; shard++) assert_true(drop_some(&a, shard));
    nodes_end(&a, &b, config);
}

TEST(a_new_configuration_may_put_keys_into_other_shards) {
    setup();
    doorman_config *config =
        config_of("{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", \"limits\": "
                  "[{\"name\": \"a\", "
                  "\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.01, \"size\": 9}]}]}");
    doorman_config *next = config_of(
        "{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", \"shard_by\": \"resource\", "
        "\"limits\": [{\"name\": \"a\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.01, \"size\": "
        "9}]}]}");
    struct node a = node_of(config, &eight), b = node_of(next, &eight);
    for (size_t i = 0; i < 8; i++) own(&a, i, true);
    char key[32];
    for (size_t i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "u%zu", i);
        assert_true(ask(&a, "r", key, 6));
    }
    while (doorman_permits_find_shards(a.permits, 10, now)) continue;
    assert_int_equal(doorman_permits_configure(a.permits, next), DOORMAN_OK);
    (void)move(&a, &b, doorman_shard_of(&eight, "r", "", true));
    doorman_permits_info info;
    doorman_permits_read(a.permits, &info);
    assert_int_equal(info.counter_count, 0);
    doorman_permits_read(b.permits, &info);
    assert_int_equal(info.counter_count, 200);
    nodes_end(&a, &b, config);
    doorman_config_destroy(next);
}

static size_t bytes_of(const struct node *node) {
    doorman_permits_info info;
    doorman_permits_read(node->permits, &info);
    return info.bytes;
}

TEST(where_keys_are_is_noted_again_after_a_minute_without_use_and_when_many_have_come) {
    setup();
    doorman_config *config = config_of(hundred_text);
    struct node node = node_of(config, &hundred);
    char key[32];
    for (size_t i = 0; i < hundred.count; i++) own(&node, i, true);
    assert_true(ask(&node, "r", "u0", 1));
    assert_true(doorman_permits_find_shards(node.permits, 1, now));
    while (doorman_permits_find_shards(node.permits, 1, now)) continue;
    assert_false(doorman_permits_find_shards(node.permits, 1, now)); /* the notes are still valid */
    pass(&node, 50 * SECOND);
    assert_false(doorman_permits_find_shards(node.permits, 1, now));
    pass(&node, 50 * SECOND);
    const size_t more = bytes_of(&node);
    pass(&node, 11 * SECOND);
    assert_true(bytes_of(&node) + 2048 <= more);
    assert_true(doorman_permits_find_shards(node.permits, 1, now));
    while (doorman_permits_find_shards(node.permits, 1, now)) continue;
    for (size_t i = 1; i < 300; i++) {
        snprintf(key, sizeof key, "u%zu", i);
        assert_true(ask(&node, "r", key, 1));
    }
    assert_true(doorman_permits_find_shards(node.permits, 1, now));
    nodes_end(&node, NULL, config);
}

TEST(without_memory_all_keys_are_looked_at) {
    struct twins t = twins_begin();
    for (size_t i = 0; i < 500; i++) twins_act(&t);
    memory_fails_at(1);
    assert_false(twins_find(&t, 1));
    memory_works();
    size_t bytes = 0; /* a shard may have no key */
    for (size_t shard = 0; shard < hundred.count / 2; shard++) bytes += twins_leave(&t, shard);
    assert_true(bytes > 0);
    assert_true(twins_find(&t, 1)); /* now there is memory */
    while (twins_find(&t, 10)) continue;
    bytes = 0;
    for (size_t shard = hundred.count / 2; shard < hundred.count; shard++) {
        bytes += twins_leave(&t, shard);
    }
    assert_true(bytes > 0);
    twins_end(&t);
}

/* ---- two nodes decide as one ---------------------------------------------------------------- */

#define KEYS 24
#define HELD 64

struct held {
    uint64_t cluster, single; /* ids; 0: free */
    char key[32];
};

/* A cluster of two nodes, and one node that decides for all keys. */
struct pair {
    doorman_config *config;
    struct node nodes[2], single;
    size_t owners[8];
    struct held held[HELD];
    uint64_t requests;
};

static struct node *owner_of(struct pair *p, size_t shard) { return &p->nodes[p->owners[shard]]; }

static void random_key(char key[32]) {
    static const char *const forms[] = {"u%d", "{u%d}:x", "a{u%d}b"};
    const int user = (int)random_below(KEYS);
    snprintf(key, 32, forms[random_below(3)], user);
}

static void pair_ask(struct pair *p) {
    char key[32], resource[32] = "r";
    random_key(key);
    if (random_below(3) == 0) snprintf(resource, sizeof resource, "one/%d", (int)random_below(5));
    const bool by_resource = resource[0] == 'o';
    const size_t shard = doorman_shard_of(&eight, resource, key, by_resource);
    const doorman_permit_item item = {.resource_id = resource,
                                      .key = key,
                                      .cost = 1 + (double)random_below(6),
                                      .has_min = true,
                                      .min = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    struct node *node = owner_of(p, shard);
    assert_int_equal(doorman_permits_acquire(node->permits, &request, &node->out, NULL, now),
                     DOORMAN_OK);
    assert_int_equal(
        doorman_permits_acquire(p->single.permits, &request, &p->single.out, NULL, now),
        DOORMAN_OK);
    const doorman_permit *x = &node->out, *y = &p->single.out;
    assert_int_equal(x->granted, y->granted);
    assert_int_equal(x->reason, y->reason);
    assert_int_equal(x->detail_count, y->detail_count);
    for (size_t i = 0; i < x->detail_count; i++) {
        assert_near(x->details[i].used, y->details[i].used, 1e-9);
        assert_int_equal(x->details[i].reset_after, y->details[i].reset_after);
        assert_int_equal(x->details[i].tier, y->details[i].tier);
    }
}

static void pair_hold(struct pair *p) {
    struct held *held = &p->held[random_below(HELD)];
    if (held->cluster) {
        struct node *node = owner_of(p, held->cluster % 8);
        assert_false(release(node, held->cluster).gone);
        assert_false(release(&p->single, held->single).gone);
        held->cluster = 0;
        return;
    }
    snprintf(held->key, sizeof held->key, "h%d", (int)random_below(KEYS));
    struct node *node = owner_of(p, shard_of(held->key));
    const uint64_t request = ++p->requests;
    const bool granted = hold(node, held->key, request);
    assert_int_equal(granted, hold(&p->single, held->key, request));
    if (!granted) return;
    held->cluster = node->out.hold_id;
    held->single = p->single.out.hold_id;
}

static void pair_reserve(struct pair *p) {
    char key[32];
    random_key(key);
    doorman_permit_item item = {.resource_id = "r", .key = key, .cost = 1 + random_unit() * 4};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "client",
                                            .request_id = ++p->requests,
                                            .settle_within = (1 + (int)random_below(20)) * SECOND};
    struct node *node = owner_of(p, shard_of(key));
    assert_int_equal(doorman_permits_acquire(node->permits, &request, &node->out, NULL, now),
                     DOORMAN_OK);
    assert_int_equal(
        doorman_permits_acquire(p->single.permits, &request, &p->single.out, NULL, now),
        DOORMAN_OK);
    assert_int_equal(node->out.granted, p->single.out.granted);
    if (!node->out.granted || random_below(3) == 0) return;
    if (random_below(2)) {
        const size_t shard = shard_of(key);
        move(node, &p->nodes[1 - p->owners[shard]], shard);
        p->owners[shard] = 1 - p->owners[shard];
        node = owner_of(p, shard);
    }
    item.cost = random_unit() * 6;
    const doorman_settle_request settle = {
        .client_id = "client", .request_id = p->requests, .items = &item, .item_count = 1};
    doorman_settlement x, y;
    assert_int_equal(doorman_permits_settle(node->permits, &settle, &x, NULL, now), DOORMAN_OK);
    const double returned = x.items[0].returned, charged = x.items[0].charged;
    assert_int_equal(doorman_permits_settle(p->single.permits, &settle, &y, NULL, now), DOORMAN_OK);
    assert_near(returned, y.items[0].returned, 1e-9);
    assert_near(charged, y.items[0].charged, 1e-9);
}

TEST(two_nodes_that_exchange_shards_decide_as_one) {
    for (int run = 0; run < 20; run++) {
        setup();
        struct pair p = {.config = config_of(limits_text)};
        const doorman_shards *const shards[] = {&eight, &eight, NULL};
        p.nodes[0] = node_of(p.config, shards[0]);
        p.nodes[1] = node_of(p.config, shards[1]);
        p.single = node_of(p.config, shards[2]);
        for (size_t i = 0; i < 8; i++) {
            p.owners[i] = random_below(2);
            own(owner_of(&p, i), i, true);
        }
        for (int i = 0; i < 1500; i++) {
            const size_t what = random_below(16), shard = random_below(8);
            if (what < 8) pair_ask(&p);
            if (what >= 8 && what < 12) pair_hold(&p);
            if (what == 12) pair_reserve(&p);
            if (what == 13) {
                move(owner_of(&p, shard), &p.nodes[1 - p.owners[shard]], shard);
                p.owners[shard] = 1 - p.owners[shard];
            }
            if (what < 14 || i % 8) continue;
            const doorman_time time = (doorman_time)(random_unit() * 3 * SECOND);
            now += time;
            epoch += time;
            for (size_t j = 0; j < 3; j++) {
                struct node *node = j < 2 ? &p.nodes[j] : &p.single;
                doorman_permits_set_epoch(node->permits, epoch, now);
                doorman_permits_update(node->permits, now);
            }
        }
        nodes_end(&p.nodes[0], &p.nodes[1], NULL);
        nodes_end(&p.single, NULL, p.config);
    }
}

/* ---- movers --------------------------------------------------------------------------------- */

#define NODES 4
#define SHARDS 6
#define FLYING 8

/* A transaction. While it is in movers.flying, it may still be done. */
struct flying {
    doorman_shard_action action;
    size_t node;
    int mastership;
    bool settles[SHARDS];
};

/* One process of a node. Each shard has a value that its owner raises. */
struct mover_node {
    doorman_shard_mover *mover;
    int mastership; /* 0: none */
    bool decides[SHARDS];
    int values[SHARDS]; /* in memory */
    int stored[SHARDS]; /* in the store of the node; 0: no row */
};

struct movers {
    doorman_shard owners[SHARDS];
    uint64_t epoch;
    struct mover_node nodes[NODES];
    int masterships, expected[SHARDS];
    struct {
        uint64_t move;
        int value;
    } rows[SHARDS];
    struct flying flying[FLYING];
    size_t flying_count, moves;
};

static const char *const names[NODES] = {"n0", "n1", "n2", "n3"};
static const char *const somewhere[] = {"tcp://127.0.0.1:1"};

static doorman_shard_map movers_map(const struct movers *m, doorman_shard_node nodes[NODES]) {
    for (size_t i = 0; i < NODES; i++)
        nodes[i] =
            (doorman_shard_node){.name = names[i], .addresses = somewhere, .address_count = 1};
    return (doorman_shard_map){.epoch = m->epoch,
                               .shards = {.count = SHARDS, .seed = {1, 2}},
                               .owners = m->owners,
                               .nodes = nodes,
                               .node_count = NODES};
}

/* Does a transaction, if its conditions hold. Returns whether they do. */
static bool movers_apply(struct movers *m, const struct flying *t) {
    const doorman_shard_action *action = &t->action;
    const struct mover_node *node = &m->nodes[t->node];
    if (m->epoch != action->epoch || node->mastership != t->mastership) return false;
    m->epoch++;
    for (size_t i = 0; i < SHARDS; i++) {
        if (t->settles[i]) m->owners[i].from = 0;
    }
    if (action->step == DOORMAN_SHARD_COMMIT) {
        m->owners[action->shard] = (doorman_shard){
            .owner = action->target, .target = action->target, .from = action->move};
        m->moves++;
    }
    return true;
}

/* Sends a transaction. The transaction may come late, and its answer may be lost. */
static doorman_shard_result movers_send(struct movers *m, size_t index,
                                        const doorman_shard_action *action) {
    struct mover_node *node = &m->nodes[index];
    struct flying t = {.action = *action, .node = index, .mastership = node->mastership};
    for (size_t i = 0; action->step == DOORMAN_SHARD_SETTLE && i < SHARDS; i++) {
        t.settles[i] = m->owners[i].owner == index &&
                       doorman_shard_mover_state(node->mover, i) == DOORMAN_SHARD_OWNED;
    }
    const size_t fate = random_below(8);
    if (fate == 0 && m->flying_count < FLYING) {
        m->flying[m->flying_count++] = t;
        return DOORMAN_SHARD_UNKNOWN;
    }
    const bool done = movers_apply(m, &t);
    if (fate == 1) return DOORMAN_SHARD_UNKNOWN;
    return done ? DOORMAN_SHARD_DONE : DOORMAN_SHARD_FAILED;
}

static void decide_for(struct movers *m, size_t index, size_t shard, bool decides) {
    for (size_t i = 0; decides && i < NODES; i++) assert_false(m->nodes[i].decides[shard]);
    m->nodes[index].decides[shard] = decides;
}

/* Restores a shard. */
static void movers_take(struct movers *m, size_t index, const doorman_shard_action *action) {
    struct mover_node *node = &m->nodes[index];
    const size_t shard = action->shard;
    node->values[shard] = node->stored[shard];
    if (action->move) {
        assert_int_equal(m->rows[shard].move, action->move);
        if (m->rows[shard].value > node->values[shard]) node->values[shard] = m->rows[shard].value;
    }
    assert_int_equal(node->values[shard], m->expected[shard]);
    decide_for(m, index, shard, true);
}

/* Does the next action of a node. */
static void movers_step(struct movers *m, size_t index) {
    struct mover_node *node = &m->nodes[index];
    doorman_shard_node nodes[NODES];
    doorman_shard_action action;
    bool stored = true;
    for (size_t i = 0; i < SHARDS; i++) {
        stored = stored && (!node->decides[i] || node->stored[i] == node->values[i]);
    }
    if (!doorman_shard_mover_next(node->mover, stored, &action)) return;
    const size_t shard = action.shard;
    doorman_shard_result result = random_below(6) ? DOORMAN_SHARD_DONE : DOORMAN_SHARD_FAILED;
    const bool done = result == DOORMAN_SHARD_DONE;
    if (action.step == DOORMAN_SHARD_READ_MAP && done) {
        const doorman_shard_map map = movers_map(m, nodes);
        assert_int_equal(doorman_shard_mover_map(node->mover, &map, true), DOORMAN_OK);
        return;
    }
    if (action.step == DOORMAN_SHARD_GIVE) {
        decide_for(m, index, shard, false);
        m->rows[shard].move = action.move;
        m->rows[shard].value = done ? node->values[shard] : -1; /* -1: not all were written */
    } else if (action.step == DOORMAN_SHARD_TAKE && done) {
        movers_take(m, index, &action);
    } else if (action.step == DOORMAN_SHARD_RESUME && done) {
        assert_int_equal(m->owners[shard].owner, index);
        decide_for(m, index, shard, true);
    } else if (action.step == DOORMAN_SHARD_DROP && done) {
        decide_for(m, index, shard, false);
        node->values[shard] = node->stored[shard] = 0;
    } else if (action.step == DOORMAN_SHARD_COMMIT || action.step == DOORMAN_SHARD_SETTLE) {
        result = movers_send(m, index, &action);
    }
    doorman_shard_mover_end(node->mover, result);
}

/* Lets something happen from outside. */
static void movers_happen(struct movers *m) {
    const size_t index = random_below(NODES), shard = random_below(SHARDS);
    struct mover_node *node = &m->nodes[index];
    doorman_shard_node nodes[NODES];
    switch (random_below(8)) {
    case 0: /* an operator wants a move, or calls it off */
        m->owners[shard].target = random_below(3) ? index : m->owners[shard].owner;
        m->epoch++;
        break;
    case 1: /* a process loses its mastership, and the next one has an empty memory */
        if (random_below(3)) break;
        node->mastership = 0;
        doorman_shard_mover_stop(node->mover);
        for (size_t i = 0; i < SHARDS; i++) node->decides[i] = false;
        memset(node->values, 0, sizeof node->values);
        break;
    case 2:
        if (node->mastership) break;
        node->mastership = ++m->masterships;
        doorman_shard_mover_start(node->mover);
        memcpy(node->values, node->stored, sizeof node->values);
        break;
    case 3: /* a watch brings a map */
        if (random_below(2)) {
            const doorman_shard_map map = movers_map(m, nodes);
            assert_int_equal(doorman_shard_mover_map(node->mover, &map, false), DOORMAN_OK);
        }
        break;
    case 4: /* a late transaction arrives */
        if (!m->flying_count) break;
        (void)movers_apply(m, &m->flying[--m->flying_count]);
        break;
    case 5: /* the store of a node gets its rows */
        for (size_t i = 0; i < SHARDS; i++) {
            if (node->decides[i]) node->stored[i] = node->values[i];
        }
        break;
    default: /* the owner decides */
        if (!node->decides[shard]) break;
        node->values[shard]++;
        m->expected[shard]++;
        node->stored[shard] = node->values[shard];
        break;
    }
}

TEST(no_two_nodes_ever_decide_for_one_shard_and_nothing_is_lost) {
    size_t moves = 0;
    for (int run = 0; run < 300; run++) {
        struct movers m = {.epoch = 1};
        for (size_t i = 0; i < NODES; i++) {
            assert_int_equal(doorman_shard_mover_create(&m.nodes[i].mover, names[i]), DOORMAN_OK);
            m.nodes[i].mastership = ++m.masterships;
            doorman_shard_mover_start(m.nodes[i].mover);
        }
        for (size_t i = 0; i < SHARDS; i++) {
            m.owners[i] = (doorman_shard){.owner = i % NODES, .target = i % NODES};
        }
        for (int i = 0; i < 2000; i++) {
            if (random_below(3))
                movers_step(&m, random_below(NODES));
            else
                movers_happen(&m);
        }
        /* without faults, every shard arrives */
        for (size_t i = 0; i < NODES; i++) {
            if (m.nodes[i].mastership) continue;
            m.nodes[i].mastership = ++m.masterships;
            doorman_shard_mover_start(m.nodes[i].mover);
        }
        for (int i = 0; i < 4000; i++) {
            doorman_shard_node nodes[NODES];
            struct mover_node *node = &m.nodes[random_below(NODES)];
            const doorman_shard_map map = movers_map(&m, nodes);
            movers_step(&m, random_below(NODES));
            assert_int_equal(doorman_shard_mover_map(node->mover, &map, false), DOORMAN_OK);
            for (size_t j = 0; j < SHARDS; j++) {
                if (node->decides[j]) node->stored[j] = node->values[j];
            }
        }
        for (size_t i = 0; i < SHARDS; i++) {
            assert_int_equal(m.owners[i].owner, m.owners[i].target);
            assert_int_equal(m.owners[i].from, 0);
            assert_true(m.nodes[m.owners[i].owner].decides[i]);
            assert_int_equal(m.nodes[m.owners[i].owner].values[i], m.expected[i]);
        }
        moves += m.moves;
        for (size_t i = 0; i < NODES; i++) doorman_shard_mover_destroy(m.nodes[i].mover);
    }
    assert_true(moves > 3000);
}

TEST(a_map_with_other_shards_is_refused) {
    struct movers m = {.epoch = 1};
    doorman_shard_node nodes[NODES];
    doorman_shard_mover *mover = NULL;
    assert_int_equal(doorman_shard_mover_create(&mover, "n0"), DOORMAN_OK);
    doorman_shard_mover_start(mover);
    doorman_shard_map map = movers_map(&m, nodes);
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_OK);
    map.epoch = 2;
    map.shards.count = SHARDS - 1;
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_INVALID_ARGUMENT);
    map.shards.count = SHARDS;
    map.shards.seed[0]++;
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_shard_mover_state(mover, SHARDS), DOORMAN_SHARD_AWAY);
    assert_int_equal(doorman_shard_mover_create(&mover, ""), DOORMAN_INVALID_ARGUMENT);
    doorman_shard_mover_destroy(mover);
}

/* Gives a mover a map with `is_sure`, in which shard 0 is `shard`, and node 1 owns the other
 * shards. */
static void give_sure(doorman_shard_mover *mover, struct movers *m, doorman_shard shard) {
    doorman_shard_node nodes[NODES];
    for (size_t i = 0; i < SHARDS; i++) m->owners[i] = (doorman_shard){.owner = 1, .target = 1};
    m->owners[0] = shard;
    const doorman_shard_map map = movers_map(m, nodes);
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_OK);
}

TEST(a_shard_that_left_and_came_back_unseen_is_restored) {
    struct movers m = {.epoch = 5};
    doorman_shard_mover *mover = NULL;
    doorman_shard_action action;
    assert_int_equal(doorman_shard_mover_create(&mover, "n0"), DOORMAN_OK);
    doorman_shard_mover_start(mover);
    give_sure(mover, &m, (doorman_shard){.owner = 0, .target = 1});
    static const doorman_shard_step steps[] = {DOORMAN_SHARD_TAKE, DOORMAN_SHARD_GIVE};
    for (size_t i = 0; i < COUNT(steps); i++) {
        assert_true(doorman_shard_mover_next(mover, true, &action));
        assert_int_equal(action.step, steps[i]);
        doorman_shard_mover_end(mover, DOORMAN_SHARD_DONE);
    }
    assert_true(doorman_shard_mover_next(mover, true, &action));
    assert_int_equal(action.step, DOORMAN_SHARD_COMMIT);
    doorman_shard_mover_end(mover, DOORMAN_SHARD_UNKNOWN);
    /* n1 has taken the shard, settled the move, decided, and given the shard back */
    m.epoch = 8;
    give_sure(mover, &m, (doorman_shard){.owner = 0, .target = 0, .from = 8});
    assert_true(doorman_shard_mover_next(mover, true, &action));
    assert_int_equal(action.step, DOORMAN_SHARD_DROP); /* and not RESUME, with old figures */
    doorman_shard_mover_end(mover, DOORMAN_SHARD_DONE);
    assert_true(doorman_shard_mover_next(mover, true, &action));
    assert_int_equal(action.step, DOORMAN_SHARD_TAKE);
    assert_int_equal(action.move, 8);
    doorman_shard_mover_destroy(mover);
}

TEST(an_older_map_has_no_effect) {
    struct movers m = {.epoch = 5};
    doorman_shard_node nodes[NODES];
    doorman_shard_mover *mover = NULL;
    doorman_shard_action action;
    assert_int_equal(doorman_shard_mover_create(&mover, "n1"), DOORMAN_OK);
    doorman_shard_mover_start(mover);
    doorman_shard_map map = movers_map(&m, nodes);
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_OK);
    assert_false(doorman_shard_mover_next(mover, true, &action)); /* n0 owns all */
    m.owners[0] = (doorman_shard){.owner = 1, .target = 1};
    map.epoch = 4;
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_OK);
    assert_false(doorman_shard_mover_next(mover, true, &action));
    map.epoch = 6;
    assert_int_equal(doorman_shard_mover_map(mover, &map, true), DOORMAN_OK);
    assert_true(doorman_shard_mover_next(mover, true, &action));
    assert_int_equal(action.step, DOORMAN_SHARD_TAKE);
    doorman_shard_mover_destroy(mover);
}
