/* Any bytes as what a master has handed over: the first byte says whether the server is a root, a
 * root with whole units, or a node with a parent. Either all of it is taken over, or nothing. The
 * sums are then those of the leases, and holders can renew, until all leases have ended. */
#define DOORMAN_IMPLEMENTATION
#include "fuzz.h"

#define START (1000 * DOORMAN_SECOND)

static bool ignore(void *context, const void *bytes, size_t count) {
    (void)context;
    must(bytes && count);
    return true;
}

static doorman_server *start(const doorman_config *config) {
    static const char *const parents[] = {"tcp://above:1"};
    doorman_server_options options = {.node = "n", .config = config, .seed = {1, 2}};
    options.resource_max = options.holder_max = 8;
    if (!config) options.parents = parents, options.parent_count = 1;
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    must(doorman_server_create(&server, &options, NULL, START) == DOORMAN_OK);
    must(doorman_server_set_master(server, &mastership, START) == DOORMAN_OK);
    return server;
}

/* A holder that may have a lease already asks for a resource. */
static void ask(doorman_server *server, const char *resource_id, doorman_time now) {
    const doorman_demand demand = {10, 1, 0};
    doorman_capacity_request item = {
        .resource_id = resource_id, .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = "a", .items = &item, .item_count = 1};
    doorman_response response;
    must(doorman_server_handle(server, &request, &response, NULL, now) == DOORMAN_OK);
    must(fuzz_amount(response.items[0].gets.capacity));
}

static size_t check(doorman_server *server, doorman_time now) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    size_t count = 0;
    for (; doorman_server_next_resource(server, &cursor, &resource, now); count++) {
        fuzz_recount(server, &resource, now);
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (!bytes) return 0;
    const doorman_template all = {
        .identifier_glob = "*", .capacity = 100, .whole = data[0] % 3 == 1};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    must(doorman_config_create(&config, &options, NULL) == DOORMAN_OK);
    doorman_server *server = start(data[0] % 3 < 2 ? config : NULL);
    doorman_error error = {0};
    doorman_status status = doorman_server_take_over(server, data + 1, bytes - 1, &error, START);
    if (status != DOORMAN_OK) must(error.text[0] && check(server, START) == 0);
    (void)check(server, START);
    ask(server, "db", START + DOORMAN_SECOND);
    (void)check(server, START + DOORMAN_SECOND);
    must(doorman_server_hand_over(server, ignore, NULL, START + DOORMAN_SECOND) == DOORMAN_OK);
    must(check(server, START + DOORMAN_SECOND) == 0);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
    return 0;
}
