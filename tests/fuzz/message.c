/* Reads any lines as messages to a root, and to a node below it, which sends requests to the root.
 * The root and the node answer each message that they get, and their sums stay right.
 *
 * A line is a message to the root or, after a `<`, to the node. If the line begins with a digit n,
 * 2^n seconds pass first. What the node sends to its parent and receives from it is text too.
 *
 * A line that begins with `=` is a response on permits, which a client reads.
 *
 * There are two roots that get the same messages. One root serves a message in one call. The other
 * root reads it, decides it and writes the reply in three calls, with one doorman_json_exchange for
 * all messages. The replies of the two roots are the same to the last byte. */
#define DOORMAN_STATIC /* compiles in less time */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

#define LINES 64 /* the lines that are used at most */

typedef struct message_world {
    doorman_config *config;
    doorman_server *root, *twin, *leaf;
    doorman_json_exchange exchange, reread;
    doorman_buffer reply, request;
    doorman_time now;
} message_world;

static const char *const vip[] = {"v*"};
static const doorman_override overrides[] = {
    {.keys = vip, .key_count = 1, .figures = {.has_max_debt = true, .max_debt = DOORMAN_SECOND}}};
static const doorman_tier tiers[] = {
    {.limit = 4, .window = DOORMAN_SECOND, .active = 2 * DOORMAN_SECOND},
    {.limit = 8, .window = DOORMAN_SECOND, .active = 3 * DOORMAN_SECOND, .skippable = true}};

/* One limit of each kind except CONCURRENCY, and a ban. Few keys fit, so that counters are
 * evicted. */
static const doorman_permit_limit limits[] = {
    {.name = "bucket",
     .kind = DOORMAN_TOKEN_BUCKET,
     .figures = {.rate = 2, .size = 5, .max_debt = 3 * DOORMAN_SECOND},
     .overrides = overrides,
     .override_count = 1,
     .ban = {.refusals = 2, .window = 9 * DOORMAN_SECOND, .duration = 4 * DOORMAN_SECOND},
     .max_keys = 3,
     .warn_at = 0.5,
     .refunds = true},
    {.name = "day",
     .per = DOORMAN_PER_RESOURCE,
     .kind = DOORMAN_FIXED_WINDOW,
     .figures = {.limit = 20, .calendar = DOORMAN_DAY}},
    {.name = "slide",
     .kind = DOORMAN_SLIDING_WINDOW,
     .figures = {.limit = 9, .window = 7 * DOORMAN_SECOND},
     .refund_unsettled = true,
     .max_keys = 4,
     .refuse_new = true},
    {.name = "tiers",
     .per = DOORMAN_PER_TEMPLATE,
     .kind = DOORMAN_TIERS,
     .figures = {.tiers = tiers, .tier_count = 2},
     .shadow = true}};

/* The limits are small, so that permits are refused. The times to live are short, so that holds
 * end. */
static const doorman_permit_limit hold_limits[] = {
    {.name = "slots",
     .kind = DOORMAN_CONCURRENCY,
     .figures = {.limit = 4,
                 .time_to_live = 9 * DOORMAN_SECOND,
                 .queue = 2,
                 .max_wait = 5 * DOORMAN_SECOND},
     .full_at_start = true},
    {.name = "machine",
     .per = DOORMAN_PER_TEMPLATE,
     .kind = DOORMAN_CONCURRENCY,
     .figures = {.limit = 6, .time_to_live = 5 * DOORMAN_SECOND}}};

/* A template for each kind of share. The first template that matches counts. The limits: NULL
 * refuses permits as UNMATCHED. */
static const struct {
    const char *glob;
    doorman_kind kind;
    double reserve;
    const doorman_permit_limit *limits;
    size_t limit_count;
} shared[] = {
    {"pr*", DOORMAN_PRIORITY_SHARE, 0.25, limits, 4},
    {"p*", DOORMAN_PROPORTIONAL_SHARE, 0, limits, 0}, /* permits are granted and counted */
    {"s*", DOORMAN_STATIC_SHARE, 0, NULL, 0},
    {"n*", DOORMAN_NO_ALGORITHM, 0, hold_limits, 2},
    {"[!u]*", DOORMAN_FAIR_SHARE, 0, NULL, 0},
};
enum { TEMPLATES = sizeof shared / sizeof *shared };

static void start(message_world *world) {
    static const char *const parents[] = {"tcp://above:1"};
    doorman_template templates[TEMPLATES] = {{0}};
    for (size_t i = 0; i < TEMPLATES; i++) {
        doorman_template *next = &templates[i];
        *next = (doorman_template){.identifier_glob = shared[i].glob, .capacity = 100};
        next->has_algorithm = next->algorithm.has_learning_mode_duration = true;
        next->algorithm.kind = shared[i].kind;
        next->algorithm.reserve = shared[i].reserve;
        next->has_limits = shared[i].limits != NULL;
        next->limits = shared[i].limits;
        next->limit_count = shared[i].limit_count;
    }
    doorman_config_options options = {
        .templates = templates, .template_count = TEMPLATES, .reject_unmatched = true};
    must(doorman_config_create(&world->config, &options, NULL) == DOORMAN_OK);
    doorman_server_options node = {.node = "root", .config = world->config};
    node.resource_max = 12;
    node.holder_max = 6;
    node.resource_max_per_holder = 5;
    world->root = fuzz_server(&node);
    world->twin = fuzz_server(&node);
    world->leaf = fuzz_server(&(doorman_server_options){
        .node = "leaf", .parents = parents, .parent_count = 1, .holder_max = 6});
}

static void stop(message_world *world) {
    doorman_server_destroy(world->root);
    doorman_server_destroy(world->twin);
    doorman_server_destroy(world->leaf);
    doorman_json_exchange_uninit(&world->exchange);
    doorman_json_exchange_uninit(&world->reread);
    doorman_buffer_uninit(&world->reply);
    doorman_buffer_uninit(&world->request);
    doorman_config_destroy(world->config);
}

/* Checks that a reply is JSON. Returns whether it is an error. */
static bool is_error(const doorman_buffer *reply) {
    cJSON *tree = NULL;
    doorman__scan scan;
    must(reply->bytes == strlen(reply->text) && reply->bytes <= DOORMAN_MESSAGE_BYTES_MAX);
    must(doorman__json_parse(&tree, &scan, reply->text, reply->bytes) == DOORMAN_OK);
    bool error = cJSON_GetObjectItemCaseSensitive(tree, "error") != NULL;
    cJSON_Delete(tree);
    return error;
}

/* Returns whether the library itself could send a request: its ids are valid, and its durations are
 * at most 26 days, so that they are exact as numbers of seconds. */
static bool can_be_sent(const doorman_request *request) {
    bool needs_id = request->method != DOORMAN_DISCOVERY && request->method != DOORMAN_INSPECT &&
                    request->method != DOORMAN_RESET;
    bool valid = !needs_id && !request->holder_id;
    valid = valid || doorman__id_valid(request->holder_id);
    for (size_t i = 0; i < request->permit_count; i++) {
        valid = valid && request->permits[i].max_wait <= 26 * 86400 * DOORMAN_SECOND;
    }
    for (size_t i = 0; i < request->entry_count; i++) {
        valid = valid && request->entries[i].ban <= 26 * 86400 * DOORMAN_SECOND;
    }
    for (size_t i = 0; i < request->path_count; i++) {
        valid = valid && doorman__id_valid(request->path[i]);
    }
    for (size_t i = 0; i < request->item_count; i++) {
        const doorman_capacity_request *item = &request->items[i];
        valid = valid && doorman__id_valid(item->resource_id) &&
                (!item->has.node || doorman__id_valid(item->has.node)) &&
                item->has.expires_in <= 26 * 86400 * DOORMAN_SECOND;
    }
    return valid;
}

/* Writes a request, reads the text, and writes it again. Both texts must be the same. */
static void check_round_trip(message_world *world, const doorman_request *request) {
    doorman_buffer second = {NULL, 0, 0};
    if (!can_be_sent(request)) return;
    must(doorman_json_request(request, &world->request) == DOORMAN_OK);
    doorman_status status =
        doorman_json_exchange_read(&world->reread, NULL, world->request.text, world->request.bytes);
    must(status == DOORMAN_OK);
    must(doorman_json_request(&world->reread.request, &second) == DOORMAN_OK);
    must(strcmp(second.text, world->request.text) == 0);
    doorman_buffer_uninit(&second);
}

/* Checks the amounts of a decision, and returns the number of bytes of its texts. */
static size_t check_permit(const doorman_permit *permit) {
    size_t bytes = permit->limit ? strlen(permit->limit) : 0;
    must(permit->wait >= 0 && permit->retry_after >= 0 && permit->valid_for >= 0);
    must((unsigned)permit->reason < DOORMAN_REASON_COUNT);
    for (size_t i = 0; i < permit->item_count; i++) {
        must(fuzz_amount(permit->items[i].granted) && permit->items[i].reset_after >= 0);
        bytes += permit->items[i].limit ? strlen(permit->items[i].limit) : 0;
    }
    for (size_t i = 0; i < permit->detail_count; i++) {
        must(permit->details[i].tier <= DOORMAN_TIERS_MAX && isfinite(permit->details[i].used));
        bytes += strlen(permit->details[i].limit);
    }
    return bytes;
}

/* Reads a response on permits as a client does.
 *   request   what it answers; NULL: nothing */
static void read_permits(const char *text, size_t bytes, const doorman_request *request) {
    doorman__incoming incoming;
    doorman_error error = {0};
    doorman__incoming_read(&incoming, text, bytes, &error);
    const doorman_response *response = &incoming.response;
    bool valid = incoming.reader.status == DOORMAN_OK;
    must(valid == (error.text[0] == 0));
    if (request && response->is_master) {
        must(valid && response->method == request->method);
        must(response->permit_count == request->permit_count);
        must(response->result_count == request->entry_count);
    }
    size_t names = 0;
    for (size_t i = 0; valid && i < response->permit_count; i++) {
        names += check_permit(&response->permits[i]);
        bool known = request && !response->permits[i].granted;
        must(!known || response->permits[i].reason);
    }
    for (size_t i = 0; valid && i < response->result_count; i++) {
        names += check_permit(&response->results[i].state);
        must(isfinite(response->results[i].charged));
    }
    must(names <= bytes);
    (void)doorman__read_end(&incoming.reader);
}

/* Sends a message to both roots. The reply is in world->reply. */
static void send_to_root(message_world *world, const char *text, size_t bytes) {
    doorman_json_exchange *steps = &world->exchange;
    doorman_status whole =
        doorman_json_serve(world->root, text, bytes, &world->reply, 0, world->now);
    if (doorman_json_exchange_read(steps, NULL, text, bytes) == DOORMAN_OK) {
        check_round_trip(world, &steps->request);
    }
    (void)doorman_json_exchange_decide(steps, world->twin, world->now);
    bool permits = doorman__method_has_permits(steps->request.method);
    bool decided = steps->state == DOORMAN__EXCHANGE_DECIDED && permits;
    doorman_request counts = steps->request; /* only its counts are used after the next step */
    must(doorman_json_exchange_write(steps, 0) == whole);
    must(strcmp(steps->reply.text, world->reply.text) == 0);
    if (decided) read_permits(steps->reply.text, steps->reply.bytes, &counts);
    must(is_error(&world->reply) == (whole != DOORMAN_OK));
}

static void send_to_leaf(message_world *world, const char *text, size_t bytes) {
    doorman_status status =
        doorman_json_serve(world->leaf, text, bytes, &world->reply, 0, world->now);
    must(is_error(&world->reply) == (status != DOORMAN_OK));
}

/* Sends the node's request to the root, if one is due, and the response back. The root accepts the
 * request, unless an earlier message has given the node a path with a loop. */
static void exchange(message_world *world) {
    doorman_upstream *upstream = doorman_server_upstream(world->leaf);
    doorman_buffer text = {NULL, 0, 0};
    doorman_request request;
    (void)doorman_upstream_request(upstream, &request, world->now);
    if (request.sequence) {
        must(doorman_json_request(&request, &text) == DOORMAN_OK);
        send_to_root(world, text.text, text.bytes);
        doorman_status status = doorman_json_response(upstream, request.sequence, world->reply.text,
                                                      world->reply.bytes, NULL, world->now);
        must(status == DOORMAN_OK || is_error(&world->reply));
    }
    doorman_buffer_uninit(&text);
}

static void check(message_world *world) {
    must(fuzz_check_server(world->root, true, world->now) ==
         fuzz_check_server(world->twin, true, world->now));
    (void)fuzz_check_server(world->leaf, false, world->now);
}

static void run_for(message_world *world, doorman_time time) {
    world->now += time;
    doorman_request none;
    must(!doorman_upstream_request(doorman_server_upstream(world->root), &none, world->now));
    must(!doorman_upstream_request(doorman_server_upstream(world->twin), &none, world->now));
    exchange(world);
}

/* Lets all leases end, and checks that the node and the root then know no resource. */
static void expire_all(message_world *world) {
    for (int i = 0; i < 8; i++) run_for(world, 100 * DOORMAN_SECOND);
    must(fuzz_check_server(world->leaf, false, world->now) == 0);
    must(fuzz_check_server(world->root, true, world->now) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    message_world world = {.now = 0};
    fuzz_text rest = {(const char *)data, bytes}, line;
    start(&world);
    for (int i = 0; i < LINES && fuzz_line(&rest, &line); i++) {
        if (line.bytes && line.text[0] >= '0' && line.text[0] <= '9') {
            run_for(&world, DOORMAN_SECOND << (line.text[0] - '0'));
            line.text++, line.bytes--;
        }
        if (line.bytes && line.text[0] == '=') {
            read_permits(line.text + 1, line.bytes - 1, NULL);
        } else if (line.bytes && line.text[0] == '<') {
            send_to_leaf(&world, line.text + 1, line.bytes - 1);
        } else {
            send_to_root(&world, line.text, line.bytes);
        }
        exchange(&world);
        check(&world);
    }
    expire_all(&world);
    stop(&world);
    return 0;
}
