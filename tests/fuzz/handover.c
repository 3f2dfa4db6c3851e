/* Reads any bytes as what a master has handed over. The first byte says whether the server is a
 * root, a root with whole units, a node with a parent, or a root with holds. The server takes over
 * either all of the other bytes, or nothing. Afterwards its sums are the sums of its leases, and a
 * holder can request a lease. The server can hand everything over again. The counter of "db" has at
 * least the units of its holds. */
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
    const doorman_permits_options permits = {.hold_max = 8};
    doorman_server_options options = {
        .node = "n", .config = config, .seed = {1, 2}, .permits = &permits};
    options.resource_max = options.holder_max = 8;
    if (!config) options.parents = parents, options.parent_count = 1;
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    must(doorman_server_create(&server, &options, NULL, START) == DOORMAN_OK);
    must(doorman_server_set_master(server, &mastership, START) == DOORMAN_OK);
    return server;
}

/* Asks for a resource as a holder that may have a lease already. */
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

/* Returns the units of all holds that have "db" as their only item. */
static double held(const doorman_permits *permits) {
    doorman_cursor cursor = {0};
    doorman_permits_hold hold;
    double sum = 0;
    while (doorman_permits_next_hold(permits, &cursor, &hold)) {
        if (hold.item_count == 1 && strcmp(hold.resource_id, "db") == 0) sum += hold.amount;
    }
    return sum;
}

/* Checks that the counter of "db" has at least the units of the holds whose only item is "db".
 * Holds of several items may add more. Then lets all holds end, and checks that nothing is left. */
static void check_holds(doorman_server *server) {
    doorman_permits *permits = doorman_server_permits(server);
    doorman_permit permit;
    doorman_permits_info info;
    const doorman_permit_item item = {.resource_id = "db"};
    must(doorman_permits_inspect(permits, &item, &permit, NULL, START) == DOORMAN_OK);
    must(permit.detail_count == 1);
    const double used = permit.details[0].used, least = held(permits) * (1 - 1e-9) - 1e-9;
    must(used >= least || used > 1e12); /* a counter rounds, and counts no more than its maximum */
    for (int i = 0; i < 9; i++) doorman_permits_update(permits, DOORMAN_NEVER - 1);
    doorman_permits_read(permits, &info);
    must(info.hold_count == 0 && info.counter_count == 0);
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
    const bool has_holds = data[0] % 4 == 3;
    const doorman_permit_limit limit = {.name = "l",
                                        .kind = DOORMAN_CONCURRENCY,
                                        .per = DOORMAN_PER_RESOURCE,
                                        .figures = {.limit = 10}};
    const doorman_template all = {.identifier_glob = "*",
                                  .capacity = 100,
                                  .whole = data[0] % 4 == 1,
                                  .has_limits = has_holds,
                                  .limits = has_holds ? &limit : NULL,
                                  .limit_count = has_holds};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_config *config = NULL;
    must(doorman_config_create(&config, &options, NULL) == DOORMAN_OK);
    doorman_server *server = start(data[0] % 4 == 2 ? NULL : config);
    doorman_error error = {0};
    doorman_status status = doorman_server_take_over(server, data + 1, bytes - 1, &error, START);
    if (status != DOORMAN_OK) must(error.text[0] && check(server, START) == 0);
    (void)check(server, START);
    ask(server, "db", START + DOORMAN_SECOND);
    (void)check(server, START + DOORMAN_SECOND);
    must(doorman_server_hand_over(server, ignore, NULL, START + DOORMAN_SECOND) == DOORMAN_OK);
    must(check(server, START + DOORMAN_SECOND) == 0);
    doorman_server_destroy(server);
    if (has_holds) {
        server = start(config);
        (void)doorman_server_take_over(server, data + 1, bytes - 1, &error, START);
        check_holds(server);
        doorman_server_destroy(server);
    }
    doorman_config_destroy(config);
    return 0;
}
