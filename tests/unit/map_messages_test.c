/* The map of shards on the wire (N9): which clients ask for it, which servers send it, and its JSON
 * in a response. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char limits[] = "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": ["
                             "{\"name\": \"rate\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                             "\"size\": 5}]}]}";

static const char *const address_a[] = {"tcp://10.0.0.1:5001", "tcp://10.0.0.2:5001"};
static const char *const address_b[] = {"tcp://10.0.0.3:5001"};
static const doorman_shard_node nodes[] = {
    {.name = "a", .addresses = address_a, .address_count = 2},
    {.name = "\"b\"", .addresses = address_b, .address_count = 1, .election_key = "k"}};
static const doorman_shard_rule rules[] = {{"tenant/*", true}};
static doorman_shard owners[4];

/* Returns a map in which two nodes own the shards in turn, and shard 1 moves. */
static doorman_shard_map map_of(uint64_t epoch) {
    for (size_t i = 0; i < 4; i++) owners[i] = (doorman_shard){.owner = i % 2, .target = i % 2};
    owners[1].target = 0;
    owners[2].from = 7;
    owners[2].is_lost = true;
    return (doorman_shard_map){.epoch = epoch,
                               .shards = {.count = 4, .seed = {3, 4}},
                               .owners = owners,
                               .nodes = nodes,
                               .node_count = 2,
                               .rules = rules,
                               .rule_count = 1};
}

struct node {
    doorman_config *config;
    doorman_server *server;
    doorman_buffer reply;
    doorman_time now;
};

static void become_master(const struct node *n, bool is_master) {
    const doorman_mastership mastership = {.address = "tcp://here:1",
                                           .until = is_master ? DOORMAN_NEVER : 0};
    assert_int_equal(doorman_server_set_master(n->server, &mastership, n->now), DOORMAN_OK);
}

static struct node node_start(void) {
    struct node n = {.now = 7 * SECOND};
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&n.config, limits, strlen(limits), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    const doorman_server_options options = {.node = "n", .config = n.config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&n.server, &options, &error, n.now), DOORMAN_OK);
    become_master(&n, true);
    return n;
}

static void node_end(struct node *n) {
    doorman_buffer_uninit(&n->reply);
    doorman_server_destroy(n->server);
    doorman_config_destroy(n->config);
}

static void set_map(const struct node *n, uint64_t epoch) {
    const doorman_shard_map map = map_of(epoch);
    assert_int_equal(doorman_server_set_shard_map(n->server, &map), DOORMAN_OK);
}

/* Returns the reply to a message. The reply is valid until the next call. */
static const char *serve(struct node *n, const char *text) {
    (void)doorman_json_serve(n->server, text, strlen(text), &n->reply, 0, n->now);
    return n->reply.text;
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("%s has no %s", text, part);
}

static void assert_has_not(const char *text, const char *part) {
    if (strstr(text, part)) fail_msg("%s has %s", text, part);
}

/* ---- a server tells its map ----------------------------------------------------------------- */

static const char *const messages[] = {
    "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"r\"}]}]}}",
    "{\"report\": {\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"r\", \"cost\": 1}]}}",
    "{\"inspect\": {\"entry\": [{\"resource_id\": \"r\"}]}}",
    "{\"reset\": {\"entry\": [{\"resource_id\": \"r\"}]}}",
    "{\"renew\": {\"client_id\": \"c\", \"entry\": [{\"id\": 5}]}}",
    "{\"release\": {\"client_id\": \"c\", \"entry\": [{\"id\": 5}]}}",
    "{\"transfer\": {\"client_id\": \"c\", \"entry\": [{\"id\": 5, \"request_id\": 6}]}}",
    "{\"seize\": {\"client_id\": \"c\", \"entry\": [{\"transfer_id\": 5, \"request_id\": 7}]}}",
    "{\"settle\": {\"client_id\": \"c\", \"entry\": [{\"id\": 5, \"item\": [{\"resource_id\": "
    "\"r\", \"cost\": 1}]}]}}"};

TEST(each_response_on_permits_has_the_epoch_of_the_map) {
    struct node n = node_start();
    set_map(&n, 12);
    for (size_t i = 0; i < COUNT(messages); i++) {
        assert_has(serve(&n, messages[i]), "\":{\"map_epoch\":12,\"");
        assert_has_not(n.reply.text, "error");
    }
    assert_has_not(serve(&n, "{\"get_capacity\": {\"client_id\": \"c\", \"resource\": []}}"),
                   "map_epoch");
    node_end(&n);
}

TEST(a_server_without_a_map_answers_as_before) {
    struct node n = node_start();
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < COUNT(messages); i++) {
            assert_has_not(serve(&n, messages[i]), "map");
            assert_has_not(n.reply.text, "error");
        }
        assert_string_equal(serve(&n, "{\"discovery\": {\"map_epoch\": 0}}"),
                            "{\"discovery\":{\"is_master\":true,\"mastership\":"
                            "{\"master_address\":\"tcp://here:1\"}}}");
        set_map(&n, 12); /* in the second round the server has had a map */
        assert_int_equal(doorman_server_set_shard_map(n.server, NULL), DOORMAN_OK);
    }
    node_end(&n);
}

TEST(only_a_sender_that_asks_and_knows_an_earlier_map_gets_the_map) {
    struct node n = node_start();
    set_map(&n, 12);
    assert_has_not(serve(&n, "{\"discovery\": {}}"), "map");
    assert_has_not(serve(&n, "{\"discovery\": {\"map_epoch\": 12}}"), "map");
    assert_has_not(serve(&n, "{\"discovery\": {\"map_epoch\": 13}}"), "map");
    assert_has(serve(&n, "{\"discovery\": {\"map_epoch\": 11}}"),
               "\"is_master\":true,\"map\":{\"epoch\":12,");
    assert_has(serve(&n, "{\"discovery\": {\"map_epoch\": 0}}"),
               "\"nodes\":[{\"name\":\"a\",\"addresses\":[\"tcp://10.0.0.1:5001\","
               "\"tcp://10.0.0.2:5001\"]},{\"name\":\"\\\"b\\\"\",");
    node_end(&n);
}

TEST(a_server_that_is_not_master_tells_its_map) {
    struct node n = node_start();
    set_map(&n, 12);
    become_master(&n, false);
    assert_has(serve(&n, "{\"discovery\": {\"map_epoch\": 0}}"),
               "\"is_master\":false,\"map\":{\"epoch\":12,");
    assert_has_not(serve(&n, messages[0]), "map_epoch");
    become_master(&n, true);
    assert_has(serve(&n, messages[0]), "\"map_epoch\":12");
    node_end(&n);
}

TEST(an_epoch_that_is_no_epoch_is_refused) {
    struct node n = node_start();
    static const char *const wrong[] = {"-1", "1.5", "\"7\"", "null", "1e300"};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char text[80];
        snprintf(text, sizeof text, "{\"discovery\": {\"map_epoch\": %s}}", wrong[i]);
        assert_has(serve(&n, text), "discovery.map_epoch: must be ");
    }
    node_end(&n);
}

TEST(the_reply_has_the_map_of_the_decision) {
    struct node n = node_start();
    const char *text = "{\"discovery\": {\"map_epoch\": 0}}";
    doorman_json_exchange exchange = {.has_method = false};
    set_map(&n, 12);
    assert_int_equal(doorman_json_exchange_read(&exchange, NULL, text, strlen(text)), DOORMAN_OK);
    assert_int_equal(doorman_json_exchange_decide(&exchange, n.server, n.now), DOORMAN_OK);
    set_map(&n, 13); /* frees the last map */
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
    assert_has(exchange.reply.text, "\"map\":{\"epoch\":12,");
    doorman_json_exchange_uninit(&exchange);
    node_end(&n);
}

TEST(a_map_that_is_wrong_or_too_large_leaves_the_last_one) {
    struct node n = node_start();
    set_map(&n, 12);
    doorman_shard_map map = map_of(13);
    map.node_count = 1; /* shards name the other one */
    assert_int_equal(doorman_server_set_shard_map(n.server, &map), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_server_set_shard_map(NULL, &map), DOORMAN_INVALID_ARGUMENT);
    char glob[DOORMAN_ID_BYTES_MAX + 1];
    memset(glob, '"', DOORMAN_ID_BYTES_MAX);
    glob[DOORMAN_ID_BYTES_MAX] = 0;
    const size_t many = 10000;
    doorman_shard_rule *long_rules = calloc(many, sizeof *long_rules);
    assert_non_null(long_rules);
    for (size_t i = 0; i < many; i++) long_rules[i].identifier_glob = glob;
    map = map_of(13);
    map.rules = long_rules;
    map.rule_count = many;
    assert_int_equal(doorman_server_set_shard_map(n.server, &map), DOORMAN_RESOURCE_EXHAUSTED);
    assert_has(serve(&n, messages[0]), "\"map_epoch\":12");
    map.rule_count = 7000; /* just below the bound */
    assert_int_equal(doorman_server_set_shard_map(n.server, &map), DOORMAN_OK);
    assert_has(serve(&n, "{\"discovery\": {\"map_epoch\": 0}}"), "\"map\":{\"epoch\":13,");
    assert_true(n.reply.bytes <= DOORMAN_MESSAGE_BYTES_MAX);
    free(long_rules);
    node_end(&n);
}

TEST(a_map_without_memory_is_an_error_and_leaves_the_last_one) {
    struct node n = node_start();
    set_map(&n, 12);
    size_t fault = 0;
    bool complete = false;
    while (!complete) {
        const doorman_shard_map map = map_of(13);
        memory_fails_at(++fault);
        doorman_status status = doorman_server_set_shard_map(n.server, &map);
        complete = memory_works();
        assert_int_equal(status, complete ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
        assert_has(serve(&n, messages[0]), complete ? "\"map_epoch\":13" : "\"map_epoch\":12");
    }
    node_end(&n);
    struct node other = node_start();
    set_map(&other, 12);
    const doorman_request request = {.method = DOORMAN_DISCOVERY, .has_map_epoch = true};
    fault = 0;
    complete = false;
    while (!complete) {
        doorman_response response = {.map = NULL};
        memory_fails_at(++fault);
        doorman_status status =
            doorman_server_handle(other.server, &request, &response, NULL, other.now);
        complete = memory_works();
        assert_int_equal(status, complete ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
        if (complete) assert_int_equal(response.map->epoch, 12);
    }
    node_end(&other);
    assert_int_equal(memory_blocks(), 0);
}

/* ---- a client reads the map ----------------------------------------------------------------- */

static void assert_equal_maps(const doorman_shard_map *map, const doorman_shard_map *expected) {
    doorman_buffer one = {0}, other = {0};
    assert_int_equal(doorman_json_write_shard_map(map, &one), DOORMAN_OK);
    assert_int_equal(doorman_json_write_shard_map(expected, &other), DOORMAN_OK);
    assert_string_equal(one.text, other.text);
    doorman_buffer_uninit(&one);
    doorman_buffer_uninit(&other);
}

TEST(a_client_reads_the_map_that_a_server_tells) {
    struct node n = node_start();
    set_map(&n, 12);
    const doorman_shard_map expected = map_of(12);
    const doorman_request request = {.method = DOORMAN_DISCOVERY, .has_map_epoch = true};
    doorman_buffer text = {0};
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"discovery\":{\"map_epoch\":0}}");
    (void)serve(&n, text.text);
    doorman_error error = {0};
    doorman__incoming incoming;
    doorman__incoming_read(&incoming, n.reply.text, n.reply.bytes, &error);
    assert_int_equal(incoming.reader.status, DOORMAN_OK);
    assert_non_null(incoming.response.map);
    assert_equal_maps(incoming.response.map, &expected);
    assert_int_equal(doorman_shard_map_find(incoming.response.map, "tenant/7", "x"),
                     doorman_shard_map_find(&expected, "tenant/7", "y"));
    (void)doorman__read_end(&incoming.reader);
    (void)serve(&n, messages[0]);
    doorman__incoming_read(&incoming, n.reply.text, n.reply.bytes, &error);
    assert_int_equal(incoming.reader.status, DOORMAN_OK);
    assert_int_equal(incoming.response.map_epoch, 12);
    assert_null(incoming.response.map);
    (void)doorman__read_end(&incoming.reader);
    doorman_buffer_uninit(&text);
    node_end(&n);
}

/* A client needs no epoch to use the permits of a response, so an epoch that is not valid counts as
 * absent. */
TEST(an_invalid_epoch_of_a_response_is_ignored) {
    const char *const wrong[] = {"-1", "1e999", "9007199254740993"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[128];
        int bytes =
            snprintf(text, sizeof text, "{\"acquire\":{\"map_epoch\":%s,\"permit\":[]}}", wrong[i]);
        doorman_error error = {0};
        doorman__incoming incoming;
        doorman__incoming_read(&incoming, text, (size_t)bytes, &error);
        assert_string_equal(error.text, "");
        assert_int_equal(incoming.response.map_epoch, 0);
        (void)doorman__read_end(&incoming.reader);
    }
}

TEST(a_wrong_map_in_a_response_is_refused) {
    static const struct {
        const char *map, *error;
    } wrong[] = {
        {"7", "discovery.map: must be an object"},
        {"{}", "discovery.map.epoch: is missing"},
        {"{\"epoch\": 5, \"seed\": \"0\", \"nodes\": [], \"shards\": []}", "discovery.map.seed"},
        {"{\"epoch\": 5, \"seed\": \"00000000000000000000000000000000\", \"nodes\": [], "
         "\"shards\": []}",
         "discovery.map: shards: must be from 1"},
        {"{\"epoch\": 5, \"seed\": \"00000000000000000000000000000000\", \"nodes\": [{\"name\": "
         "\"a\", \"addresses\": [\"x\"]}], \"shards\": [{\"owner\": \"b\"}]}",
         "discovery.map: shards[0].owner: no node has this name"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"discovery\": {\"is_master\": true, \"map\": %s}}",
                 wrong[i].map);
        doorman_error error = {0};
        doorman__incoming incoming;
        doorman__incoming_read(&incoming, text, strlen(text), &error);
        assert_int_equal(incoming.reader.status, DOORMAN_INVALID_ARGUMENT);
        (void)doorman__read_end(&incoming.reader);
        assert_has(error.text, wrong[i].error);
    }
}

TEST(a_response_with_a_map_needs_memory) {
    struct node n = node_start();
    set_map(&n, 12);
    (void)serve(&n, "{\"discovery\": {\"map_epoch\": 0}}");
    const size_t before = memory_blocks();
    size_t fault = 0;
    bool complete = false;
    while (!complete) {
        doorman__incoming incoming;
        doorman_error error = {0};
        memory_fails_at(++fault);
        doorman__incoming_read(&incoming, n.reply.text, n.reply.bytes, &error);
        complete = memory_works();
        assert_int_equal(doorman__read_end(&incoming.reader),
                         complete ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
        assert_int_equal(memory_blocks(), before);
    }
    node_end(&n);
}
