/* Reads any lines as responses to a client and to a node. Both accept or refuse each response, and
 * send only valid requests themselves.
 *
 * A line is a response to the client or, after a `<`, to the node. A digit n before the response
 * lets 2^n seconds pass first. Up to four of these letters may precede the digit:
 *   o   the client closes the resource "db", or opens it again
 *   u   it uses half of its gauge, or releases that
 *   w   it wants more, or less
 *   f   the requests in progress of both fail
 *   m   the node loses its mastership, and wins it again */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

#define LINES 64 /* the lines that are used at most */

typedef struct response_world {
    doorman_client *client;
    doorman_client_resource *database, *gauge; /* NULL: closed */
    doorman_server *node;
    double in_use, wants;
    uint64_t client_sequence, node_sequence;
    doorman_time now;
} response_world;

static void open_resource(response_world *world, const char *id, doorman_resource_kind kind,
                          doorman_client_resource **out) {
    doorman_resource_options options = {.resource_id = id,
                                        .kind = kind,
                                        .wants = world->wants,
                                        .has_safe_capacity = true,
                                        .safe_capacity = DOORMAN_UNLIMITED};
    must(doorman_client_open(out, world->client, &options, NULL, world->now) == DOORMAN_OK);
}

static void start(response_world *world) {
    static const char *const addresses[] = {"tcp://above:1", "tls+tcp://beside:1"};
    doorman_client_options options = {
        .client_id = "client", .addresses = addresses, .address_count = 2, .seed = 1};
    world->wants = 5;
    must(doorman_client_create(&world->client, &options, NULL, 0) == DOORMAN_OK);
    open_resource(world, "db", DOORMAN_RATE, &world->database);
    open_resource(world, "gauge", DOORMAN_GAUGE, &world->gauge);
    world->node = fuzz_server(
        &(doorman_server_options){.node = "leaf", .parents = addresses, .parent_count = 2});
}

static bool amount_or_unlimited(double amount) {
    return fuzz_amount(amount) || fuzz_same(amount, DOORMAN_UNLIMITED);
}

static void check_resource(const response_world *world, const doorman_client_resource *resource) {
    doorman_resource_info info;
    if (!resource) return;
    doorman_client_read(resource, &info, world->now);
    must(info.leased ? fuzz_amount(info.capacity) : amount_or_unlimited(info.capacity));
    must(fuzz_amount(info.wants) && (!info.has_outcome || info.outcome >= DOORMAN_GRANTED) &&
         info.outcome <= DOORMAN_FULL);
    if (!info.leased) return;
    must(info.expires_at > world->now);
    must(info.expires_at <= world->now + DOORMAN_DURATION_MAX);
}

/* Checks that a request is valid, also after it is written and read as text. */
static void check_request(const doorman_request *request) {
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    doorman_buffer text = {NULL, 0, 0};
    must(doorman_json_request(request, &text) == DOORMAN_OK);
    must(doorman_json_exchange_read(&exchange, NULL, text.text, text.bytes) == DOORMAN_OK);
    must(exchange.request.method == request->method);
    must(exchange.request.item_count == request->item_count && request->item_count > 0);
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_capacity_request *item = &request->items[i];
        if (request->method == DOORMAN_RELEASE_CAPACITY) must(item->has.id);
        if (request->method == DOORMAN_RELEASE_CAPACITY || !item->has.id) continue;
        must(item->has.expires_in > 0 && item->has.expires_in <= DOORMAN_DURATION_MAX);
        must(fuzz_amount(item->has.capacity) && fuzz_amount(item->outstanding));
    }
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(&text);
}

/* Requests a lease from the node as one of its clients, and checks what it gets. */
static void request_from_node(response_world *world, const char *client, double wants) {
    doorman_demand demand = {.wants = wants, .subclients = 1, .priority = 1};
    doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
    doorman_request request = {.method = DOORMAN_GET_CAPACITY, .holder_id = client};
    doorman_response response;
    request.items = &item;
    request.item_count = 1;
    must(doorman_server_handle(world->node, &request, &response, NULL, world->now) == DOORMAN_OK);
    if (!response.is_master || response.items->outcome != DOORMAN_GRANTED) return;
    const doorman_lease *gets = &response.items->gets;
    must(gets->capacity >= 0 && gets->capacity <= wants);
    must(gets->expires_in >= 0 && gets->expires_in <= DOORMAN_DURATION_MAX);
}

/* The client and the node each send a request, if one is due and none is in progress. Afterwards
 * both must be due later than now, because a caller sends requests until none is due. */
static void send_requests(response_world *world) {
    doorman_request request;
    doorman_upstream *upstream = doorman_client_upstream(world->client);
    (void)doorman_upstream_request(upstream, &request, world->now);
    if (request.sequence) world->client_sequence = request.sequence;
    if (request.sequence) check_request(&request);
    must(doorman_upstream_due(upstream) > world->now);

    request_from_node(world, "a", 5);
    request_from_node(world, "b", 3);
    upstream = doorman_server_upstream(world->node);
    (void)doorman_upstream_request(upstream, &request, world->now);
    if (request.sequence) world->node_sequence = request.sequence;
    if (request.sequence) check_request(&request);
    must(doorman_upstream_due(upstream) > world->now);
}

static void check(response_world *world) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    check_resource(world, world->database);
    check_resource(world, world->gauge);
    (void)fuzz_check_server(world->node, false, world->now);
    while (doorman_server_next_resource(world->node, &cursor, &resource, world->now)) {
        must(resource.has <= 8 && resource.wants <= 8 + 1e-9);
    }
}

static void use_gauge(response_world *world) {
    doorman_resource_info info;
    if (world->in_use > 0) {
        must(doorman_client_release(world->gauge, world->in_use) == DOORMAN_OK);
        world->in_use = 0;
        return;
    }
    doorman_client_read(world->gauge, &info, world->now);
    double half = fmin(1e12, info.capacity / 2);
    if (half < 0.5 / 4096) return; /* too small: units are counted in 1/4096 */
    must(doorman_client_try(world->gauge, half, NULL, world->now) == DOORMAN_ALLOWED);
    world->in_use = half;
}

static void set_master(response_world *world, doorman_time until) {
    doorman_mastership mastership = {.address = "here", .until = until};
    must(doorman_server_set_master(world->node, &mastership, world->now) == DOORMAN_OK);
}

/* Performs the action that a letter names. Returns false if it names none. */
static bool perform(response_world *world, char letter) {
    switch (letter) {
    case 'o':
        if (world->database) {
            doorman_client_close(world->database, world->now);
            world->database = NULL;
        } else {
            open_resource(world, "db", DOORMAN_RATE, &world->database);
        }
        return true;
    case 'u': use_gauge(world); return true;
    case 'w':
        world->wants = world->wants < 100 ? 2 * world->wants : 1;
        must(doorman_client_set_wants(world->gauge, world->wants, world->now) == DOORMAN_OK);
        return true;
    case 'f':
        doorman_upstream_failed(doorman_client_upstream(world->client), world->client_sequence,
                                world->now);
        doorman_upstream_failed(doorman_server_upstream(world->node), world->node_sequence,
                                world->now);
        return true;
    case 'm':
        set_master(world, world->now);
        send_requests(world);
        set_master(world, DOORMAN_NEVER);
        return true;
    default: return false;
    }
}

static void receive(response_world *world, fuzz_text line) {
    bool below = line.bytes && line.text[0] == '<';
    doorman_upstream *upstream =
        below ? doorman_server_upstream(world->node) : doorman_client_upstream(world->client);
    doorman_error error = {0};
    doorman_status status =
        doorman_json_response(upstream, below ? world->node_sequence : world->client_sequence,
                              line.text + below, line.bytes - below, &error, world->now);
    bool invalid = status == DOORMAN_INVALID_ARGUMENT || status == DOORMAN_RESOURCE_EXHAUSTED;
    must(invalid || status == DOORMAN_OK || status == DOORMAN_STALE);
    must(invalid == (error.text[0] != 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    response_world world = {.now = 0};
    fuzz_text rest = {(const char *)data, bytes}, line;
    start(&world);
    send_requests(&world);
    for (int i = 0; i < LINES && fuzz_line(&rest, &line); i++) {
        for (int k = 0; k < 4 && line.bytes && perform(&world, line.text[0]); k++) {
            line.text++, line.bytes--;
        }
        if (line.bytes && line.text[0] >= '0' && line.text[0] <= '9') {
            world.now += DOORMAN_SECOND << (line.text[0] - '0');
            line.text++, line.bytes--;
        }
        send_requests(&world);
        if (line.bytes) receive(&world, line);
        send_requests(&world);
        check(&world);
    }
    doorman_client_destroy(world.client);
    doorman_server_destroy(world.node);
    return 0;
}
