/* Reads any bytes as a configuration. If the bytes are accepted, each field is in its range, and
 * the search for a template finds what the rules say. A node below a server receives the same
 * settings. The server can switch to the configuration and away from it while leases are in
 * force. */
#define DOORMAN_STATIC /* compiles in less time */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "fuzz.h"

#define IDS 16
#define FAR (4 * DOORMAN_DURATION_MAX / 3) /* longer than any lease plus the drift */

static const char *const common_ids[] = {"db", "db/orders", "a", "*", "[x]", "\xc3\xa9t\xc3\xa9"};

typedef struct config_world {
    doorman_config *config, *other;
    doorman_server *root, *leaf;
    const char *ids[IDS];
    size_t id_count;
    doorman_time now;
} config_world;

static bool duration(doorman_time time, doorman_time least) {
    return time >= least && time <= DOORMAN_DURATION_MAX;
}

static void check_template(const doorman_template *found, bool last) {
    const doorman_algorithm *algorithm = &found->algorithm;
    must(doorman__id_valid(found->identifier_glob) && found->description);
    must(last || strcmp(found->identifier_glob, "*") != 0);
    must(fuzz_amount(found->capacity) && found->has_algorithm);
    must(!found->has_safe_capacity || fuzz_amount(found->safe_capacity) ||
         fuzz_same(found->safe_capacity, DOORMAN_UNLIMITED));
    must(!found->whole || !doorman__divides(found->capacity));
    must(algorithm->kind >= DOORMAN_FAIR_SHARE && algorithm->kind < DOORMAN_KIND_COUNT);
    must(algorithm->handover == DOORMAN_CONFIRMED || algorithm->handover == DOORMAN_IMMEDIATE);
    must(duration(algorithm->lease_length, 1));
    must(algorithm->refresh_interval >= 1);
    must(algorithm->refresh_interval <= algorithm->lease_length);
    must(duration(algorithm->learning_mode_duration, 0) &&
         duration(algorithm->minimum_interval, 0) &&
         duration(algorithm->minimum_refresh_interval, 1));
    must(algorithm->decay_factor > 0 && algorithm->decay_factor <= 1);
    must(algorithm->reserve >= 0 && algorithm->reserve <= 1);
}

/* G1: doorman_config_find must find the template that a search through all templates finds. */
static void check_find(const doorman_config *config, const char *id) {
    doorman_config_options read;
    doorman_config_read(config, &read);
    size_t count = read.template_count;
    const doorman_template *all = read.templates, *wanted = NULL;
    for (size_t i = count; i-- > 0;) {
        if (doorman__glob_match(all[i].identifier_glob, id)) wanted = &all[i];
    }
    for (size_t i = count; i-- > 0;) {
        if (strcmp(all[i].identifier_glob, id) == 0) wanted = &all[i];
    }
    must(doorman_config_find(config, id) == wanted);
}

/* G4: the check that lists the problems has the same result as reading the text. Each problem is at
 * a character of the text, or at its end. */
static void check_problems(const char *text, size_t bytes, doorman_status expected,
                           const doorman_error *error) {
    doorman_config_problem problems[4];
    doorman_config_problems list = {.items = problems, .room = 4};
    must(doorman_json_check_config(NULL, text, bytes, &list) == expected);
    must((list.count > 0) == (error->text[0] != 0));
    for (size_t i = 0; i < list.count && i < 4; i++) {
        if (problems[i].line == 0) continue; /* the text is too large */
        size_t line = 1, column = 1, at = 0;
        while (at < bytes && (line < problems[i].line || column < problems[i].column)) {
            bool starts_character = ((unsigned char)text[at] & 0xc0) != 0x80;
            column = text[at] == '\n' ? 1 : column + starts_character;
            line += text[at++] == '\n';
        }
        must(problems[i].error.text[0]);
        must(problems[i].line == line && problems[i].column == column);
    }
}

/* W1: a descriptor made of the entries of a rule resolves to valid names. If no value of the rule
 * has a "[" or a "\", the descriptor matches this rule or an earlier one. */
static void check_descriptors(const doorman_config *config, const doorman_config_options *read) {
    for (size_t i = 0; i < read->descriptor_count; i++) {
        const doorman_descriptor_rule *rule = &read->descriptors[i];
        doorman_descriptor_entry entries[DOORMAN_DESCRIPTOR_ENTRIES_MAX];
        doorman_descriptor_item item;
        bool literal = true;
        must(rule->entry_count >= 1 && rule->entry_count <= DOORMAN_DESCRIPTOR_ENTRIES_MAX);
        for (size_t j = 0; j < rule->entry_count; j++) {
            const char *key = rule->entries[j].key, *value = rule->entries[j].value;
            entries[j] = (doorman_descriptor_entry){key, strlen(key), value, strlen(value)};
            literal = literal && !value[strcspn(value, "[\\")];
        }
        must(doorman_descriptors_resolve(doorman_config_descriptors(config), rule->domain, entries,
                                         rule->entry_count, &item) == DOORMAN_OK);
        must(!literal || (item.matched && item.rule <= i));
        must(doorman__id_valid(item.resource_id) && doorman__key_valid(item.key));
    }
}

static void request_capacity(config_world *world, doorman_server *server, double wants) {
    doorman_response response;
    doorman_demand demand = {.wants = wants, .subclients = 1, .priority = 1};
    doorman_capacity_request asks[IDS];
    for (size_t i = 0; i < world->id_count; i++) {
        asks[i] = (doorman_capacity_request){
            .resource_id = world->ids[i], .wants = &demand, .wants_count = 1};
    }
    doorman_request request = {.method = DOORMAN_GET_CAPACITY, .holder_id = "client"};
    request.items = asks;
    request.item_count = world->id_count;
    must(doorman_server_handle(server, &request, &response, NULL, world->now) == DOORMAN_OK);
    for (size_t i = 0; i < response.item_count; i++) {
        const doorman_capacity_response *answer = &response.items[i];
        must(answer->gets.refresh_interval > 0);
        if (answer->outcome != DOORMAN_GRANTED) continue;
        must(answer->gets.capacity >= 0 && answer->gets.capacity <= wants);
        must(duration(answer->gets.expires_in, 0));
    }
}

/* Sends the leaf's next request, if one is due, to the root as text, and the response back. */
static void exchange(config_world *world) {
    doorman_upstream *upstream = doorman_server_upstream(world->leaf);
    doorman_buffer text = {NULL, 0, 0}, reply = {NULL, 0, 0};
    doorman_request request;
    (void)doorman_upstream_request(upstream, &request, world->now);
    if (request.sequence) {
        must(doorman_json_request(&request, &text) == DOORMAN_OK);
        must(doorman_json_serve(world->root, text.text, text.bytes, &reply, 0, world->now) ==
             DOORMAN_OK);
        must(doorman_json_response(upstream, request.sequence, reply.text, reply.bytes, NULL,
                                   world->now) == DOORMAN_OK);
    }
    doorman_buffer_uninit(&text);
    doorman_buffer_uninit(&reply);
}

/* T3: the leaf received from its parent what the configuration says. Lease lengths of more than 26
 * days are not compared, because as a number of seconds they are not exact to the nanosecond. */
static void check_below(config_world *world) {
    doorman_cursor cursor = {0};
    doorman_server_resource below;
    while (doorman_server_next_resource(world->leaf, &cursor, &below, world->now)) {
        const doorman_template *found = doorman_config_find(world->config, below.resource_id);
        const doorman_algorithm *received = &below.settings->algorithm;
        if (!found || !below.leased) continue;
        must(received->kind == found->algorithm.kind);
        must(received->handover == found->algorithm.handover);
        must(fabs(received->decay_factor - found->algorithm.decay_factor) <= 0);
        must(fabs(received->reserve - found->algorithm.reserve) <= 0);
        if (found->algorithm.lease_length > 26 * 86400 * DOORMAN_SECOND) continue;
        must(received->lease_length == found->algorithm.lease_length);
    }
}

/* Sends requests six times. All leases end before the fourth time. */
static void run_servers(config_world *world, const doorman_config *other) {
    for (int i = 0; i < 6; i++) {
        world->now += i % 3 ? DOORMAN_SECOND : FAR;
        request_capacity(world, world->root, i % 2 ? 1e15 : 7);
        request_capacity(world, world->leaf, i % 2 ? 3 : 1e15);
        exchange(world);
        check_below(world);
        (void)fuzz_check_server(world->root, false, world->now);
        (void)fuzz_check_server(world->leaf, false, world->now);
        if (i != 4) continue;
        must(doorman_server_configure(world->root, other, world->now) == DOORMAN_OK);
        (void)fuzz_check_server(world->root, false, world->now);
        must(doorman_server_configure(world->root, world->config, world->now) == DOORMAN_OK);
    }
}

static void serve(config_world *world) {
    static const char *const parents[] = {"tcp://above:1"};
    doorman_template all = {.identifier_glob = "*", .capacity = 10, .has_algorithm = true};
    all.algorithm.kind = DOORMAN_PRIORITY_SHARE;
    doorman_config_options options = {.templates = &all, .template_count = 1};
    must(doorman_config_create(&world->other, &options, NULL) == DOORMAN_OK);
    doorman_server_options node = {.node = "root", .config = world->config};
    world->root = fuzz_server(&node);
    node = (doorman_server_options){.node = "leaf", .parents = parents, .parent_count = 1};
    world->leaf = fuzz_server(&node);
    run_servers(world, world->other);
    must(doorman_server_configure(world->root, world->other, world->now) == DOORMAN_OK);
    (void)fuzz_check_server(world->root, false, world->now);
    doorman_server_destroy(world->root);
    doorman_server_destroy(world->leaf);
    doorman_config_destroy(world->other);
}

/* Checks that the options and a configuration made from them are written as the same text. This
 * text can be read again, unless it is too large. */
static void check_written(const doorman_config_options *options) {
    doorman_buffer texts[3] = {{NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0}};
    doorman_config *again = NULL, *copy = NULL;
    doorman_config_options read;
    must(doorman_json_write_config(options, &texts[0]) == DOORMAN_OK);
    must(doorman_config_create(&copy, options, NULL) == DOORMAN_OK);
    doorman_config_read(copy, &read);
    must(doorman_json_write_config(&read, &texts[1]) == DOORMAN_OK);
    must(strcmp(texts[0].text, texts[1].text) == 0);
    doorman_status status = doorman_json_config(&again, texts[0].text, texts[0].bytes, NULL);
    must(status == DOORMAN_OK || status == DOORMAN_RESOURCE_EXHAUSTED);
    if (status == DOORMAN_OK) {
        doorman_config_read(again, &read);
        must(doorman_json_write_config(&read, &texts[2]) == DOORMAN_OK);
        must(read.template_count == options->template_count);
        must(read.reject_unmatched == options->reject_unmatched);
        must(read.descriptor_count == options->descriptor_count);
    }
    for (int i = 0; i < 3; i++) doorman_buffer_uninit(&texts[i]);
    doorman_config_destroy(again);
    doorman_config_destroy(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    config_world world = {.now = 0};
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&world.config, (const char *)data, bytes, &error);
    must(status == DOORMAN_OK || error.text[0]);
    check_problems((const char *)data, bytes, status, &error);
    if (status != DOORMAN_OK) return 0;
    doorman_config_options read;
    doorman_config_read(world.config, &read);
    check_written(&read);
    check_descriptors(world.config, &read);
    size_t count = read.template_count, common = sizeof common_ids / sizeof *common_ids;
    const doorman_template *all = read.templates;
    for (size_t i = 0; i < count; i++) check_template(&all[i], i + 1 == count);
    for (size_t i = 0; i < common; i++) world.ids[world.id_count++] = common_ids[i];
    for (size_t i = 0; i < count && world.id_count < IDS; i++) {
        bool known = false;
        for (size_t k = 0; k < common; k++) {
            known = known || strcmp(common_ids[k], all[i].identifier_glob) == 0;
        }
        if (!known) world.ids[world.id_count++] = all[i].identifier_glob;
    }
    for (size_t i = 0; i < world.id_count; i++) check_find(world.config, world.ids[i]);
    serve(&world);
    doorman_config_destroy(world.config);
    return 0;
}
