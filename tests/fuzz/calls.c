/* Makes calls from any bytes: on a root, on a node below it, and on four clients, two for each
 * server. Some calls deliver, copy or fail a message. Two bytes are a call and its argument.
 *
 * After each call T7 holds: the leases add up to at most the largest capacity. The sums that both
 * servers keep are right too. At the end everything is closed, and after a while no server knows
 * any resource. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

#define CLIENTS 4
#define NODE CLIENTS /* the index of the node among the parties */
#define SENDERS (CLIENTS + 1)
#define RESOURCES 2
#define CONFIGS 4
#define MESSAGES 8 /* in progress */
#define CALLS 1000
#define CAPACITY 100.0

static const char *const ids[RESOURCES] = {"db", "pr"};

/* A request or a response, or a copy of one. */
typedef struct call_message {
    doorman_buffer text; /* "": no message */
    bool is_response;
    size_t sender;
    uint64_t incarnation, sequence; /* of the sender */
} call_message;

typedef struct call_client {
    doorman_client *client; /* NULL: it was destroyed */
    doorman_client_resource *resources[RESOURCES];
    double in_use; /* of the gauge of the first resource */
} call_client;

typedef struct call_world {
    doorman_config *configs[CONFIGS];
    size_t config;
    doorman_server *root, *node;
    call_client clients[CLIENTS];
    uint64_t incarnations[SENDERS], seed;
    call_message messages[MESSAGES];
    size_t newest;
    doorman_time now;
} call_world;

/* ---- servers and clients */

static void add_config(call_world *world, size_t index) {
    static const doorman_kind kinds[CONFIGS] = {DOORMAN_FAIR_SHARE, DOORMAN_PROPORTIONAL_SHARE,
                                                DOORMAN_PRIORITY_SHARE, DOORMAN_FAIR_SHARE};
    doorman_template all = {.identifier_glob = "*", .has_algorithm = true};
    all.capacity = index < CONFIGS - 1 ? CAPACITY / (double)(index + 1) : 0;
    all.whole = index == 1;
    all.algorithm.kind = kinds[index];
    all.algorithm.reserve = index == 2 ? 0.25 : 0;
    all.algorithm.has_minimum_interval = index == 1; /* it is 0 */
    doorman_config_options options = {.templates = &all, .template_count = 1};
    must(doorman_config_create(&world->configs[index], &options, NULL) == DOORMAN_OK);
}

static void set_master(call_world *world, doorman_server *server, doorman_time until) {
    doorman_mastership mastership = {.address = "here", .until = until};
    must(doorman_server_set_master(server, &mastership, world->now) == DOORMAN_OK);
}

static void start_root(call_world *world) {
    doorman_server_options options = {.node = "root", .config = world->configs[world->config]};
    options.seed[0] = ++world->seed;
    must(doorman_server_create(&world->root, &options, NULL, world->now) == DOORMAN_OK);
    set_master(world, world->root, DOORMAN_NEVER);
}

static void start_node(call_world *world) {
    static const char *const parents[] = {"tcp://root:1"};
    doorman_server_options options = {.node = "node", .parents = parents, .parent_count = 1};
    options.seed[0] = ++world->seed;
    world->incarnations[NODE]++;
    must(doorman_server_create(&world->node, &options, NULL, world->now) == DOORMAN_OK);
    set_master(world, world->node, DOORMAN_NEVER);
}

static void open_resource(call_world *world, size_t index, size_t resource) {
    doorman_resource_options options = {
        .resource_id = ids[resource], .wants = 10 * (double)(index + 1), .has_priority = true};
    options.priority = (int)index;
    options.kind = resource == 0 ? DOORMAN_GAUGE : DOORMAN_RATE;
    call_client *client = &world->clients[index];
    must(doorman_client_open(&client->resources[resource], client->client, &options, NULL,
                             world->now) == DOORMAN_OK);
}

static void start_client(call_world *world, size_t index) {
    static const char *const names[CLIENTS] = {"a", "b", "c", "d"};
    static const char *const addresses[] = {"tcp://here:1"};
    doorman_client_options options = {
        .client_id = names[index], .addresses = addresses, .address_count = 1};
    options.seed = index + 1;
    call_client *client = &world->clients[index];
    world->incarnations[index]++;
    *client = (call_client){.client = NULL};
    must(doorman_client_create(&client->client, &options, NULL, world->now) == DOORMAN_OK);
    for (size_t i = 0; i < RESOURCES; i++) open_resource(world, index, i);
}

static void stop(call_world *world) {
    for (size_t i = 0; i < CLIENTS; i++) doorman_client_destroy(world->clients[i].client);
    for (size_t i = 0; i < MESSAGES; i++) doorman_buffer_uninit(&world->messages[i].text);
    doorman_server_destroy(world->node);
    doorman_server_destroy(world->root);
    for (size_t i = 0; i < CONFIGS; i++) doorman_config_destroy(world->configs[i]);
}

/* ---- messages */

static doorman_upstream *upstream_of(const call_world *world, size_t sender) {
    if (sender == NODE) return doorman_server_upstream(world->node);
    return world->clients[sender].client ? doorman_client_upstream(world->clients[sender].client)
                                         : NULL;
}

/* Two clients ask the node; the other two and the node ask the root. */
static doorman_server *server_of(const call_world *world, size_t sender) {
    return sender < CLIENTS / 2 ? world->node : world->root;
}

static void send_request(call_world *world, size_t sender) {
    doorman_upstream *upstream = upstream_of(world, sender);
    doorman_request request;
    if (!upstream) return;
    (void)doorman_upstream_request(upstream, &request, world->now);
    must(doorman_upstream_due(upstream) > world->now);
    if (!request.sequence) return;
    world->newest = (world->newest + 1) % MESSAGES;
    call_message *message = &world->messages[world->newest];
    must(doorman_json_request(&request, &message->text) == DOORMAN_OK);
    message->is_response = false;
    message->sender = sender;
    message->incarnation = world->incarnations[sender];
    message->sequence = request.sequence;
}

/* Delivers a message: a request is replaced by its response, a response goes to the sender. `keep`:
 * the response stays in progress and can be delivered again. */
static void deliver(call_world *world, call_message *message, bool keep) {
    doorman_buffer text = message->text;
    doorman_upstream *upstream = upstream_of(world, message->sender);
    if (!text.bytes) return;
    if (!message->is_response) {
        message->text = (doorman_buffer){NULL, 0, 0};
        must(doorman_json_serve(server_of(world, message->sender), text.text, text.bytes,
                                &message->text, 0, world->now) == DOORMAN_OK);
        message->is_response = true;
        doorman_buffer_uninit(&text);
        return;
    }
    if (upstream && message->incarnation == world->incarnations[message->sender]) {
        doorman_status status = doorman_json_response(upstream, message->sequence, text.text,
                                                      text.bytes, NULL, world->now);
        must(status == DOORMAN_OK || status == DOORMAN_STALE);
    }
    if (!keep) message->text.bytes = 0;
}

/* Copies a message. A request that is delivered twice gets two responses. */
static void copy_message(call_world *world, const call_message *message) {
    if (!message->text.bytes) return;
    world->newest = (world->newest + 1) % MESSAGES;
    call_message *copy = &world->messages[world->newest];
    if (copy == message) return;
    doorman_buffer_uninit(&copy->text);
    *copy = *message;
    copy->text.text = (char *)malloc(message->text.capacity);
    must(copy->text.text != NULL);
    memcpy(copy->text.text, message->text.text, message->text.bytes + 1);
}

/* Sends a request in which a further holder claims any lease. */
static void send_false_claim(call_world *world, doorman_server *server, unsigned argument) {
    doorman_demand demand = {
        .wants = 0, .subclients = 1 + argument / 64, .priority = (int)argument % 16};
    doorman_capacity_request item = {
        .resource_id = ids[argument % RESOURCES], .wants = &demand, .wants_count = 1};
    doorman_request request = {.method = DOORMAN_GET_CAPACITY, .holder_id = "liar"};
    const char *path[] = {"liar"};
    doorman_response response;
    demand.wants = argument % 4 ? 1000.0 / argument : 0;
    item.has = (doorman_lease){.id = argument % 8, .node = argument % 3 ? "root" : "node"};
    item.has.capacity = argument;
    item.has.expires_in = argument * DOORMAN_SECOND;
    item.outstanding = argument % 5 ? 0 : argument;
    request.items = &item;
    request.item_count = 1;
    request.is_server = argument % 7 == 0;
    item.learning = request.is_server && argument % 2;
    if (request.is_server) request.path = path;
    if (request.is_server) request.path_count = 1;
    if (!request.is_server) demand.subclients = 1;
    if (argument % 11 == 0) request.method = DOORMAN_RELEASE_CAPACITY;
    if (argument % 11 == 0 && !item.has.id) item.has.id = 1;
    must(doorman_server_handle(server, &request, &response, NULL, world->now) == DOORMAN_OK);
}

/* ---- calls */

static void open_or_close(call_world *world, size_t index, size_t resource) {
    call_client *client = &world->clients[index];
    if (!client->client) return;
    if (!client->resources[resource]) {
        open_resource(world, index, resource);
        return;
    }
    if (resource == 0) client->in_use = 0;
    doorman_client_close(client->resources[resource], world->now);
    client->resources[resource] = NULL;
}

static void start_or_stop_client(call_world *world, size_t index) {
    call_client *client = &world->clients[index];
    if (client->client) {
        doorman_client_destroy(client->client);
        *client = (call_client){.client = NULL};
    } else {
        start_client(world, index);
    }
}

/* Uses a part of the lease, never more than all of it; or releases what is in use. */
static void use(call_world *world, size_t index, unsigned part) {
    call_client *client = &world->clients[index];
    doorman_resource_info info;
    if (!client->client || !client->resources[0]) return;
    doorman_client_resource *gauge = client->resources[0];
    doorman_client_read(gauge, &info, world->now);
    if (client->in_use > 0) {
        must(doorman_client_release(gauge, info.in_use) == DOORMAN_OK);
        client->in_use = 0;
        return;
    }
    double amount = floor(info.capacity * part / 64);
    if (!info.leased || amount <= 0 || info.in_use > 0) return;
    must(doorman_client_try(gauge, amount, NULL, world->now) == DOORMAN_ALLOWED);
    client->in_use = amount;
}

static void set_wants(call_world *world, size_t index, unsigned argument) {
    static const double amounts[] = {0, 1, 10, 33, 95, 105, 1000, 1e15};
    call_client *client = &world->clients[index];
    doorman_client_resource *resource = client->resources[argument / 8 % RESOURCES];
    if (!client->client || !resource) return;
    must(doorman_client_set_wants(resource, amounts[argument % 8], world->now) == DOORMAN_OK);
}

static void change_servers(call_world *world, unsigned argument) {
    doorman_server *server = argument & 1 ? world->root : world->node;
    switch (argument / 2 % 4) {
    case 0: /* a new process, without the state of the last one */
        doorman_server_destroy(server);
        if (argument & 1) {
            start_root(world);
        } else {
            start_node(world);
        }
        break;
    case 1: set_master(world, server, world->now); break;
    case 2: set_master(world, server, DOORMAN_NEVER); break;
    default:
        world->config = argument / 8 % CONFIGS;
        must(doorman_server_configure(world->root, world->configs[world->config], world->now) ==
             DOORMAN_OK);
        break;
    }
}

static void call(call_world *world, unsigned what, unsigned argument) {
    static const doorman_time times[] = {
        DOORMAN_SECOND / 1000, DOORMAN_SECOND,      6 * DOORMAN_SECOND,  8 * DOORMAN_SECOND,
        17 * DOORMAN_SECOND,   30 * DOORMAN_SECOND, 61 * DOORMAN_SECOND, 70 * DOORMAN_SECOND};
    call_message *message = &world->messages[argument % MESSAGES];
    size_t index = argument % CLIENTS;
    switch (what % 16) {
    case 0:
    case 1: world->now += times[argument % 8]; break;
    case 2:
    case 3: send_request(world, argument % SENDERS); break;
    case 4:
    case 5: deliver(world, &world->messages[world->newest], false); break;
    case 6: deliver(world, message, argument & 64); break;
    case 7: copy_message(world, message); break;
    case 8: /* one request and its response, at once and in order */
        send_request(world, argument % SENDERS);
        deliver(world, &world->messages[world->newest], false);
        deliver(world, &world->messages[world->newest], false);
        break;
    case 9: set_wants(world, index, argument / CLIENTS); break;
    case 10: open_or_close(world, index, argument / CLIENTS % RESOURCES); break;
    case 11: use(world, index, argument / CLIENTS); break;
    case 12: change_servers(world, argument); break;
    case 13: start_or_stop_client(world, index); break;
    case 14: send_false_claim(world, argument & 1 ? world->root : world->node, argument / 2); break;
    default:
        if (message->sender == NODE || world->clients[message->sender].client) {
            doorman_upstream_failed(upstream_of(world, message->sender), message->sequence,
                                    world->now);
        }
        break;
    }
}

/* ---- what must hold */

/* T7. All leases together are at most the largest capacity of any configuration. */
static void check_sum(const call_world *world, size_t resource) {
    double sum = 0;
    for (size_t i = 0; i < CLIENTS; i++) {
        doorman_resource_info info;
        if (!world->clients[i].resources[resource]) continue;
        doorman_client_read(world->clients[i].resources[resource], &info, world->now);
        must(fuzz_amount(info.capacity));
        if (info.leased) sum += info.capacity;
    }
    must(sum <= CAPACITY + 1e-9);
}

static void check(call_world *world) {
    for (size_t i = 0; i < RESOURCES; i++) check_sum(world, i);
    (void)fuzz_check_server(world->root, false, world->now);
    (void)fuzz_check_server(world->node, false, world->now);
}

static void close_and_drain(call_world *world) {
    set_master(world, world->root, DOORMAN_NEVER);
    set_master(world, world->node, DOORMAN_NEVER);
    for (size_t i = 0; i < CLIENTS; i++) {
        for (size_t k = 0; k < RESOURCES; k++) {
            if (world->clients[i].resources[k]) open_or_close(world, i, k);
        }
    }
    for (int i = 0; i < 12; i++) {
        for (size_t sender = 0; sender < SENDERS; sender++) {
            send_request(world, sender);
            deliver(world, &world->messages[world->newest], false);
            deliver(world, &world->messages[world->newest], false);
        }
        world->now += 60 * DOORMAN_SECOND;
        doorman_request none;
        must(!doorman_upstream_request(doorman_server_upstream(world->root), &none, world->now));
        check(world);
    }
    must(fuzz_check_server(world->node, false, world->now) == 0);
    must(fuzz_check_server(world->root, false, world->now) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    call_world world = {.now = DOORMAN_SECOND};
    for (size_t i = 0; i < CONFIGS; i++) add_config(&world, i);
    start_root(&world);
    start_node(&world);
    for (size_t i = 0; i < CLIENTS; i++) start_client(&world, i);
    for (size_t i = 0; i + 1 < bytes && i < (size_t)2 * CALLS; i += 2) {
        call(&world, data[i], data[i + 1]);
        check(&world);
    }
    close_and_drain(&world);
    stop(&world);
    return 0;
}
