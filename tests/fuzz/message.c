/* Any bytes as a message to a server, and as an answer to what a node asks its parent: it answers,
 * keeps its sums, and goes on.
 *
 *     make fuzz [SECONDS=60]                 libFuzzer, with the seeds of tests/fuzz/message
 *     build/fuzz/message FILE...             runs files again, for instance one that it found
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "doorman.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(bool holds) {
    if (!holds) abort();
}

static doorman_server *start(doorman_config **config) {
    doorman_template all = {.identifier_glob = "*", .capacity = 100, .has_algorithm = true};
    all.algorithm.has_learning_mode_duration = true;
    doorman_config_options options = {.templates = &all, .template_count = 1};
    doorman_server *server = NULL;
    must(doorman_config_create(config, &options, NULL) == DOORMAN_OK);
    doorman_server_options node = {.node = "root", .config = *config};
    must(doorman_server_create(&server, &node, NULL, 0) == DOORMAN_OK);
    doorman_mastership mine = {.address = "here", .until = DOORMAN_NEVER};
    must(doorman_server_set_master(server, &mine, 0) == DOORMAN_OK);
    return server;
}

static doorman_server *start_below(void) {
    static const char *const parents[] = {"tcp://above:1"};
    doorman_server *server = NULL;
    doorman_server_options node = {.node = "leaf", .parents = parents, .parent_count = 1};
    must(doorman_server_create(&server, &node, NULL, 0) == DOORMAN_OK);
    doorman_mastership mine = {.address = "here", .until = DOORMAN_NEVER};
    must(doorman_server_set_master(server, &mine, 0) == DOORMAN_OK);
    return server;
}

/* A node has asked for one resource, "db", and this is what it hears. */
static void hear(const char *text, size_t bytes) {
    static const char ask[] = "{\"get_capacity\":{\"client_id\":\"c\",\"resource\":["
                              "{\"resource_id\":\"db\",\"wants\":5}]}}";
    doorman_server *server = start_below();
    doorman_asker *asker = doorman_server_asker(server);
    doorman_buffer reply = {0};
    doorman_request request;
    const void *cursor = NULL;
    doorman_server_resource resource;
    must(doorman_json_serve(server, ask, sizeof ask - 1, &reply, 0, 0) == DOORMAN_OK);
    doorman_server_update(server, 0);
    must(doorman_asker_request(asker, &request, 0) == DOORMAN_OK && request.sequence > 0);
    (void)doorman_json_response(asker, request.sequence, text, bytes, NULL, 0);
    must(doorman_json_serve(server, ask, sizeof ask - 1, &reply, 0, DOORMAN_SECOND) == DOORMAN_OK);
    while (doorman_server_next_resource(server, &cursor, &resource, DOORMAN_SECOND)) {
        must(resource.capacity >= 0 && resource.capacity <= DOORMAN_AMOUNT_MAX);
        must(resource.has >= 0 && resource.has <= 5);
    }
    doorman_buffer_uninit(&reply);
    doorman_server_destroy(server);
}

/* The same message comes twice, the second time when a new lease may be had. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    hear((const char *)data, bytes);
    doorman_config *config = NULL;
    doorman_server *server = start(&config);
    doorman_buffer reply = {0};
    const void *cursor = NULL;
    doorman_server_resource resource;
    for (doorman_time now = 0; now < 20 * DOORMAN_SECOND; now += 10 * DOORMAN_SECOND) {
        (void)doorman_json_serve(server, (const char *)data, bytes, &reply, 0, now);
        must(reply.bytes > 0 && reply.bytes == strlen(reply.text));
    }
    while (doorman_server_next_resource(server, &cursor, &resource, 10 * DOORMAN_SECOND)) {
        must(resource.counted <= 100 && resource.has <= resource.counted);
    }
    doorman_buffer_uninit(&reply);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
    return 0;
}
