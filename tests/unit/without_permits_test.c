/* A program that includes doorman.h alone has leases, and refuses by name what needs permits. */
#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#include <string.h>

#include "../test.h"

#define NO_PERMITS "this program has no permits: see doorman_permits.h"

static const doorman_template everything = {.identifier_glob = "*", .capacity = 100};

/* Creates a server that is master. `config` must outlive it. */
static doorman_server *server_create(const doorman_config *config) {
    const doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    const doorman_server_options of_server = {.node = "node", .config = config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&server, &of_server, NULL, 0), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &mastership, 0), DOORMAN_OK);
    return server;
}

/* Returns the error of a configuration that is refused. */
static const char *error_of(const doorman_config_options *options) {
    static doorman_error error;
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_null(config);
    return error.text;
}

TEST(a_configuration_with_limits_is_refused) {
    doorman_template template_ = {.identifier_glob = "*", .capacity = 100, .has_limits = true};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    assert_string_equal(error_of(&options), "templates[0].limits: " NO_PERMITS);
    template_.has_limits = false;
    template_.without_capacity = true;
    template_.capacity = 0;
    assert_string_equal(error_of(&options), "templates[0].without_capacity: " NO_PERMITS);
}

TEST(a_configuration_with_resources_in_shadow_is_refused) {
    const char *const globs[] = {"a*"};
    const doorman_config_options options = {
        .templates = &everything, .template_count = 1, .shadow = globs, .shadow_count = 1};
    assert_string_equal(error_of(&options), "shadow: " NO_PERMITS);
}

TEST(a_configuration_with_rules_for_descriptors_is_refused) {
    const doorman_config_options options = {
        .templates = &everything, .template_count = 1, .descriptor_count = 1};
    assert_string_equal(error_of(&options), "descriptors: " NO_PERMITS);
    static const char text[] =
        "{\"descriptors\": [], \"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1}]}";
    doorman_config *config = NULL;
    doorman_error error;
    assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "line 1, column 2: descriptors: " NO_PERMITS);
}

TEST(limits_in_json_are_refused_where_they_stand) {
    static const char text[] = "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": []}]}";
    doorman_config *config = NULL;
    doorman_error error;
    assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "line 1, column 41: resources[0].limits: " NO_PERMITS);
}

TEST(a_server_with_options_for_permits_is_refused) {
    doorman_config *config = NULL;
    doorman_server *server = NULL;
    doorman_error error;
    const doorman_config_options options = {.templates = &everything, .template_count = 1};
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    const doorman_server_options of_server = {.node = "node",
                                              .config = config,
                                              .seed = {1, 2},
                                              .permits = (const doorman_permits_options *)&options};
    assert_int_equal(doorman_server_create(&server, &of_server, &error, 0),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "permits: " NO_PERMITS);
    assert_null(server);
    doorman_config_destroy(config);
}

static const char *reply_to(doorman_server *server, const char *text) {
    static char reply[4096];
    doorman_buffer buffer = {.text = NULL};
    (void)doorman_json_serve(server, text, strlen(text), &buffer, 0, DOORMAN_SECOND);
    assert_true(buffer.bytes < sizeof reply);
    memcpy(reply, buffer.text, buffer.bytes + 1);
    doorman_buffer_uninit(&buffer);
    return reply;
}

TEST(a_server_refuses_messages_on_permits_and_grants_leases) {
    const doorman_config_options options = {.templates = &everything, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    doorman_server *server = server_create(config);
    assert_non_null(
        strstr(reply_to(server, "{\"acquire\": {\"client_id\": \"me\", \"permit\": []}}"),
               "acquire: " NO_PERMITS));
    assert_non_null(strstr(reply_to(server, "{\"get_capacity\": {\"client_id\": \"me\", "
                                            "\"resource\": [{\"resource_id\": \"db\", "
                                            "\"wants\": 5}]}}"),
                           "\"resource_id\":\"db\""));
    const doorman_request request = {.method = DOORMAN_INSPECT};
    doorman_response response;
    doorman_error error;
    assert_int_equal(doorman_server_handle(server, &request, &response, &error, DOORMAN_SECOND),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "method: " NO_PERMITS);
    assert_true(doorman_upstream_due(doorman_server_upstream(server)) > DOORMAN_SECOND);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

TEST(a_request_for_permits_cannot_be_written) {
    const doorman_request request = {.method = DOORMAN_ACQUIRE, .holder_id = "me"};
    doorman_buffer buffer = {.text = NULL};
    assert_int_equal(doorman_json_request(&request, &buffer), DOORMAN_INVALID_ARGUMENT);
    doorman_buffer_uninit(&buffer);
}
