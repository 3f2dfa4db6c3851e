/* Tests section >>json of doorman.h: messages and configurations as text. The comment that opens
 * the section has the rules and the formats. */
#include "unit.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- a server that gets its messages as text ---- */

typedef struct world {
    doorman_config *config;
    doorman_server *server;
    doorman_buffer reply;
    doorman_time now;
} world;

static const char plain_config[] =
    "{\"unmatched\":\"reject\",\"resources\":[{\"identifier_glob\":\"db*\",\"capacity\":100,"
    "\"safe_capacity\":2.5,\"algorithm\":{\"kind\":\"FAIR_SHARE\",\"learning_mode_duration\":0}}]}";

static void set_master(world *w, const char *address, doorman_time until) {
    const doorman_mastership mastership = {.address = address, .until = until};
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
}

static world *world_start(void) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->now = 1000 * SECOND;
    assert_int_equal(doorman_json_config(&w->config, plain_config, sizeof plain_config - 1, NULL),
                     DOORMAN_OK);
    const doorman_server_options options = {.node = "ro\"ot", .config = w->config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&w->server, &options, NULL, w->now), DOORMAN_OK);
    set_master(w, "tcp://here:1", DOORMAN_NEVER);
    return w;
}

static void world_stop(world *w) {
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    doorman_buffer_uninit(&w->reply);
    free(w);
}

static doorman_status send_bytes(world *w, const char *text, size_t bytes) {
    /* The copy ends with the text, so that a sanitizer detects a read behind the end. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    doorman_status status = doorman_json_serve(w->server, copy, bytes, &w->reply, 0, w->now);
    free(copy);
    assert_int_equal(w->reply.bytes, strlen(w->reply.text));
    return status;
}

static const char *send_text(world *w, const char *text) {
    (void)send_bytes(w, text, strlen(text));
    return w->reply.text;
}

/* Returns how much the server has leased out of its one resource. Returns -1 if the server has no
 * resource. */
static double granted_sum(world *w) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    bool any = doorman_server_next_resource(w->server, &cursor, &resource, w->now);
    return any ? resource.has : -1;
}

/* Returns the reply with the digits of each lease id replaced by one #, because ids are random. */
static const char *without_ids(const char *reply) {
    static char text[4096];
    char *to = text;
    while (*reply) {
        size_t key = strncmp(reply, "\"id\":", 5) == 0 ? 5 : 1;
        memcpy(to, reply, key);
        to += key;
        reply += key;
        if (key == 1) continue;
        *to++ = '#';
        reply += strspn(reply, "0123456789");
    }
    *to = '\0';
    return text;
}

#define GET(resource) "{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[" resource "]}}"
#define DB(fields) GET("{\"resource_id\":\"db\"," fields "}")
#define SERVER_GET(path, resource)                                                                 \
    "{\"get_server_capacity\":{\"server_id\":\"leaf\",\"path\":" path ",\"resource\":[" resource   \
    "]}}"
#define SERVER_DB(fields) SERVER_GET("[\"leaf\"]", "{\"resource_id\":\"db\"," fields "}")
#define GROUP(fields) SERVER_DB("\"wants\":[{\"num_clients\":1,\"wants\":1},{" fields "}]")

/* ---- what a server answers ---- */

TEST(a_response_has_all_fields_of_a_lease) {
    world *w = world_start();
    static const char request_text[] = DB("\"wants\":120");
    assert_int_equal(doorman_json_serve(w->server, request_text, sizeof request_text - 1, &w->reply,
                                        1795219213, w->now),
                     DOORMAN_OK);
    assert_string_equal(without_ids(w->reply.text),
                        "{\"get_capacity\":{\"response\":[{\"resource_id\":\"db\","
                        "\"safe_capacity\":2.5,\"gets\":{\"id\":#,\"node\":\"ro\\\"ot\","
                        "\"capacity\":100,\"expires_in\":60,\"refresh_interval\":16,"
                        "\"expiry_time\":1795219273,\"reason\":\"SHARE\"}}]}}");
    /* The holder reports 100 and wants less. 100 stay committed, because the holder has not given
     * anything back yet. */
    char again[256];
    snprintf(again, sizeof again,
             DB("\"wants\":12.5,\"has\":{%.*s,\"node\":\"ro\\\"ot\","
                "\"capacity\":100,\"expires_in\":40}"),
             (int)strcspn(strstr(w->reply.text, "\"id\""), ","), strstr(w->reply.text, "\"id\""));
    w->now += 20 * SECOND;
    assert_string_equal(without_ids(send_text(w, again)),
                        "{\"get_capacity\":{\"response\":[{\"resource_id\":\"db\","
                        "\"safe_capacity\":2.5,\"gets\":{\"id\":#,\"node\":\"ro\\\"ot\","
                        "\"capacity\":12.5,\"expires_in\":60,\"refresh_interval\":16,"
                        "\"keep\":100}}]}}");
    world_stop(w);
}

TEST(a_refused_resource_has_a_reason_and_others_are_granted) {
    world *w = world_start();
    assert_string_equal(without_ids(send_text(w, GET("{\"resource_id\":\"other\",\"wants\":1},"
                                                     "{\"resource_id\":\"db\",\"wants\":1}"))),
                        "{\"get_capacity\":{\"response\":[{\"resource_id\":\"other\",\"refused\":{"
                        "\"reason\":\"UNMATCHED\",\"refresh_interval\":16}},"
                        "{\"resource_id\":\"db\",\"safe_capacity\":2.5,\"gets\":{\"id\":#,"
                        "\"node\":\"ro\\\"ot\",\"capacity\":1,\"expires_in\":60,"
                        "\"refresh_interval\":16}}]}}");
    assert_string_equal(send_text(w, GET("")), "{\"get_capacity\":{\"response\":[]}}");
    world_stop(w);
}

/* A5: a client receives `whole` with its lease. A server receives `whole` with the algorithm. */
TEST(a_response_says_whether_units_are_whole) {
    static const char config[] = "{\"resources\":[{\"identifier_glob\":\"db\",\"capacity\":20,"
                                 "\"whole\":true,\"algorithm\":{\"kind\":\"FAIR_SHARE\","
                                 "\"learning_mode_duration\":0}}]}";
    world *w = world_start();
    doorman_config *whole = NULL;
    assert_int_equal(doorman_json_config(&whole, config, sizeof config - 1, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_configure(w->server, whole, w->now), DOORMAN_OK);
    assert_string_equal(without_ids(send_text(w, DB("\"wants\":2.5"))),
                        "{\"get_capacity\":{\"response\":[{\"resource_id\":\"db\","
                        "\"safe_capacity\":20,\"gets\":{\"id\":#,\"node\":\"ro\\\"ot\","
                        "\"capacity\":3,\"expires_in\":60,\"refresh_interval\":16,"
                        "\"whole\":true}}]}}");
    const char *reply = send_text(w, SERVER_DB("\"wants\":[{\"num_clients\":2,\"wants\":2}]"));
    assert_non_null(strstr(reply,
                           "\"refresh_interval\":16,\"whole\":true,\"learning_mode_duration\":"
                           "0,\"parameters\":[]"));
    world_stop(w);
    doorman_config_destroy(whole);
}

/* S1: in each response, a server that is not master names the master that it knows. */
TEST(a_server_that_is_not_master_names_the_master) {
    world *w = world_start();
    assert_string_equal(send_text(w, "{\"discovery\":{}}"),
                        "{\"discovery\":{\"is_master\":true,\"mastership\":{"
                        "\"master_address\":\"tcp://here:1\"}}}");
    set_master(w, "tcp://there:1", w->now);
    assert_string_equal(send_text(w, "{\"discovery\":{}}"),
                        "{\"discovery\":{\"is_master\":false,\"mastership\":{"
                        "\"master_address\":\"tcp://there:1\"}}}");
    assert_string_equal(
        send_text(w, DB("\"wants\":1")),
        "{\"get_capacity\":{\"mastership\":{\"master_address\":\"tcp://there:1\"}}}");
    set_master(w, NULL, w->now);
    assert_string_equal(
        send_text(w, "{\"release_capacity\":{\"client_id\":\"c\",\"resource\":[]}}"),
        "{\"release_capacity\":{\"mastership\":{}}}");
    world_stop(w);
}

/* R10: a release names its lease. */
TEST(a_released_lease_frees_its_capacity) {
    world *w = world_start();
    const char *id = strstr(send_text(w, DB("\"wants\":5")), "\"id\":");
    char release[200];
    assert_non_null(id);
    snprintf(release, sizeof release,
             "{\"release_capacity\":{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db\","
             "%.*s}]}}",
             (int)strcspn(id, ","), id);
    assert_exact(granted_sum(w), 5);
    assert_string_equal(send_text(w, "{\"release_capacity\":{\"client_id\":\"c\",\"resource\":["
                                     "{\"resource_id\":\"db\",\"id\":1}]}}"),
                        "{\"release_capacity\":{}}");
    assert_exact(granted_sum(w), 5);
    assert_string_equal(send_text(w, release), "{\"release_capacity\":{}}");
    assert_true(granted_sum(w) <= 0);
    world_stop(w);
}

/* The errors for a content without a method, and for a method inside a method. */
#define CONTENT_ALONE                                                                              \
    "must be an object with one key, the method, such as {\\\"get_capacity\\\": {...}}. Only "     \
    "POST "
#define METHOD_TWICE "is a method inside a method. POST /v1/METHOD takes only the content"

#define SURROGATE "a surrogate without its pair"
#define INVALID "INVALID_ARGUMENT"
#define AT(path) "get_capacity.resource[0]." path
#define SERVER_AT(path) "get_server_capacity.resource[0]." path
#define CLIENTS "num_clients: must be an integer from 1 to 1e9"
static const struct {
    const char *text, *code, *message;
} wrong_messages[] = {
    {"", INVALID, "byte 0: not JSON"},
    {"rubbish", INVALID, "byte 0: not JSON"},
    {"{\"discovery\":{}} x", INVALID, "byte 17: not JSON"},
    {"{\"discovery\":{}}{}", INVALID, "byte 16: not JSON"},
    {"\xef\xbb\xbf{\"discovery\":{}}", INVALID, "byte 0: not JSON"},
    {"{\"discovery\":{}", INVALID, "byte 15: not JSON"},
    {"{\"discovery\"{}}", INVALID, "byte 12: not JSON"},
    {"{\"discovery\":{},}", INVALID, "byte 16: not JSON"},
    {"{discovery:{}}", INVALID, "byte 1: not JSON"},
    {"{\"discovery\":[1,]}", INVALID, "byte 16: not JSON"},
    {"{\"discovery\":[1 2]}", INVALID, "byte 16: not JSON"},
    {"{\"discovery\":[}}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":nul}", INVALID, "byte 16: not JSON"},
    {"{\"discovery\":True}", INVALID, "byte 13: not JSON"},
    {"{\"discovery\":'x'}", INVALID, "byte 13: not JSON"},
    {"{\"discovery\":\"x}", INVALID, "byte 16: not JSON"},
    {"{\"discovery\":NaN}", INVALID, "byte 13: not JSON"},
    {"{\"discovery\":01}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":+1}", INVALID, "byte 13: not JSON"},
    {"{\"discovery\":-}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":1.}", INVALID, "byte 15: not JSON"},
    {"{\"discovery\":.5}", INVALID, "byte 13: not JSON"},
    {"{\"discovery\":1e}", INVALID, "byte 15: not JSON"},
    {"{\"discovery\":1e+}", INVALID, "byte 16: not JSON"},
    {"{\"discovery\":0x1}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":\"\\x\"}", INVALID, "byte 15: not JSON"},
    {"{\"discovery\":\"\\u12g4\"}", INVALID, "byte 18: not JSON"},
    {"{\"discovery\":\"a\\u0000b\"}", INVALID,
     "byte 21: the control character U+0000 is not allowed"},
    {"{\"discovery\":\"\\ud800\"}", INVALID, "byte 20: " SURROGATE},
    {"{\"discovery\":\"\\ud800\\u0041\"}", INVALID, "byte 26: " SURROGATE},
    {"{\"discovery\":\"\\ud800\\ue000\"}", INVALID, "byte 26: " SURROGATE},
    {"{\"discovery\":\"\\udc00\\ud800\"}", INVALID, "byte 20: " SURROGATE},
    {"{\"discovery\":\"\t\"}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":\"\xc0\x80\"}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":\"\xed\xa0\x80\"}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":\"\xff\"}", INVALID, "byte 14: not JSON"},
    {"{\"discovery\":\"\xe2\x82\"}", INVALID, "byte 14: not JSON"},
    {"5", INVALID, "must be an object with one key, the method"},
    {"[]", INVALID, "must be an object with one key, the method"},
    {"{}", INVALID, "must be an object with one key, the method"},
    {"{\"discovery\":{},\"get_capacity\":{}}", INVALID, "must be an object with one key"},
    {"{\"discovery\":{},\"discovery\":{}}", INVALID, "discovery: appears twice"},
    {"{\"discovery\":7}", INVALID, "discovery: must be an object"},
    {"{\"Discovery\":{}}", "NOT_FOUND", "no such method: Discovery"},
    {"{\"get_server\":{}}", "NOT_FOUND", "no such method: get_server"},
    {"{\"a\\n\\\"b\":{}}", "NOT_FOUND", "no such method: a\\u000a\\\"b"},
    {"{\"get_capacity\":{}}", INVALID, "get_capacity.client_id: is missing"},
    {"{\"client_id\":\"c\",\"resource\":[]}", INVALID, CONTENT_ALONE},
    {"{\"server_id\":\"s\"}", INVALID, CONTENT_ALONE},
    {"{\"resource\":[]}", INVALID, CONTENT_ALONE},
    {"{\"get_capacity\":{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[]}}}", INVALID,
     "get_capacity.get_capacity: " METHOD_TWICE},
    {"{\"get_server_capacity\":{\"get_server_capacity\":{}}}", INVALID,
     "get_server_capacity.get_server_capacity: " METHOD_TWICE},
    {"{\"release_capacity\":{\"discovery\":{}}}", INVALID,
     "release_capacity.discovery: " METHOD_TWICE},
    {"{\"get_capacity\":{\"client_id\":\"c\"}}", INVALID, "get_capacity.resource: is missing"},
    {"{\"get_capacity\":{\"client_id\":\"c\",\"resources\":[]}}", INVALID,
     "get_capacity.resource: is missing; \\\"resources\\\" is not a field"},
    {"{\"get_capacity\":{\"client_id\":\"c\",\"resource\":{}}}", INVALID,
     "get_capacity.resource: must be a list"},
    {"{\"get_capacity\":{\"client_id\":4,\"resource\":[]}}", INVALID,
     "get_capacity.client_id: must be a string"},
    {"{\"get_capacity\":{\"client_id\":\"\",\"resource\":[]}}", INVALID,
     "get_capacity.client_id: " DOORMAN__ID_RULE},
    {"{\"get_capacity\":{\"client_id\":\"a\\u0007\",\"resource\":[]}}", INVALID,
     "get_capacity.client_id: " DOORMAN__ID_RULE},
    {"{\"get_capacity\":{\"client_id\":\"c\",\"client_id\":\"c\",\"resource\":[]}}", INVALID,
     "get_capacity.client_id: appears twice"},
    {GET("7"), INVALID, "get_capacity.resource[0]: must be an object"},
    {GET("{\"wants\":1}"), INVALID, AT("resource_id: is missing")},
    {GET("{\"resource_id\":\"\",\"wants\":1}"), INVALID, AT("resource_id: " DOORMAN__ID_RULE)},
    {DB("\"w\":1"), INVALID, AT("wants: is missing")},
    {DB("\"Wants\":1"), INVALID, AT("wants: is missing")},
    {DB("\"want\":1"), INVALID, AT("wants: is missing; \\\"want\\\" is not a field")},
    {DB("\"wants\":\"1\""), INVALID, AT("wants: must be a number")},
    {DB("\"wants\":null"), INVALID, AT("wants: must be a number")},
    {DB("\"wants\":1e309"), INVALID, AT("wants: must be a finite number")},
    {DB("\"wants\":-1e99999999999"), INVALID, AT("wants: must be a finite number")},
    {DB("\"wants\":-1"), INVALID, AT("wants: " DOORMAN__AMOUNT_RULE)},
    {DB("\"wants\":1e16"), INVALID, AT("wants: " DOORMAN__AMOUNT_RULE)},
    {DB("\"wants\":1,\"wants\":1"), INVALID, AT("wants: appears twice")},
    {DB("\"wants\":1,\"want\\u0073\":2"), INVALID, AT("wants: appears twice")},
    {DB("\"wants\":1,\"x\":1,\"x\":2"), INVALID, AT("x: appears twice")},
    {DB("\"wants\":1,\"x\":[{\"y\":1,\"y\":2}]"), INVALID, AT("x[0].y: appears twice")},
    {DB("\"wants\":1,\"outstanding\":-1"), INVALID, AT("outstanding: " DOORMAN__AMOUNT_RULE)},
    {DB("\"wants\":1,\"priority\":16"), INVALID, AT("priority: must be an integer from 0 to 15")},
    {DB("\"wants\":1,\"priority\":-1"), INVALID, AT("priority: must be an integer from 0 to 15")},
    {DB("\"wants\":1,\"priority\":1.5"), INVALID, AT("priority: must be an integer")},
    {DB("\"wants\":1,\"priority\":\"1\""), INVALID, AT("priority: must be a number")},
    {DB("\"wants\":1,\"has\":[]"), INVALID, AT("has: must be an object")},
    {DB("\"wants\":1,\"has\":{}"), INVALID, AT("has.id: is missing")},
    {DB("\"wants\":1,\"has\":{\"id\":0}"), INVALID, AT("has.id: must be an integer from 1")},
    {DB("\"wants\":1,\"has\":{\"id\":1.5}"), INVALID, AT("has.id: must be an integer from 1")},
    {DB("\"wants\":1,\"has\":{\"id\":9007199254740994}"), INVALID, AT("has.id: must be an in")},
    {DB("\"wants\":1,\"has\":{\"id\":9007199254740993}"), INVALID, AT("has.id: must be an in")},
    {DB("\"wants\":1,\"has\":{\"id\":9007199254740992.5}"), INVALID, AT("has.id: must be an in")},
    {DB("\"wants\":1,\"has\":{\"id\":9007199254740992}"), INVALID, AT("has.node: is missing")},
    {DB("\"wants\":1,\"has\":{\"id\":1}"), INVALID, AT("has.node: is missing")},
    {DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"n\"}"), INVALID, AT("has.capacity: is missing")},
    {DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"\",\"capacity\":1,\"expires_in\":1}"), INVALID,
     AT("has.node: " DOORMAN__ID_RULE)},
    {DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"n\",\"capacity\":-1,\"expires_in\":1}"), INVALID,
     AT("has.capacity: " DOORMAN__AMOUNT_RULE)},
    {DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"n\",\"capacity\":1,\"expires_in\":-1}"), INVALID,
     AT("has.expires_in: must be from 0 to 1e8 seconds")},
    {DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"n\",\"capacity\":1,\"expires_in\":1e9}"), INVALID,
     AT("has.expires_in: must be from 0 to 1e8 seconds")},
    {GET("{\"resource_id\":\"db\",\"wants\":1},{\"resource_id\":\"db2\",\"wants\":-1}"), INVALID,
     "get_capacity.resource[1].wants: " DOORMAN__AMOUNT_RULE},
    {GET("{\"resource_id\":\"db\",\"wants\":1},{\"resource_id\":\"db\",\"wants\":1}"), INVALID,
     "get_capacity.resource[1].resource_id: "},
    {"{\"release_capacity\":{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db\"}]}}",
     INVALID, "release_capacity.resource[0].id: is missing"},
    {"{\"release_capacity\":{\"resource\":[]}}", INVALID, "release_capacity.client_id: is missing"},
    {"{\"release_capacity\":{\"server_id\":1,\"resource\":[]}}", INVALID,
     "release_capacity.server_id: must be a string"},
    {"{\"release_capacity\":{\"server_id\":\"s\",\"client_id\":\"c\",\"resource\":[]}}", INVALID,
     "release_capacity.client_id: must not be given with server_id"},
    {"{\"get_server_capacity\":[]}", INVALID, "get_server_capacity: must be an object"},
    {"{\"get_server_capacity\":{\"client_id\":\"leaf\"}}", INVALID,
     "get_server_capacity.server_id: is missing"},
    {"{\"get_server_capacity\":{\"server_id\":\"leaf\"}}", INVALID,
     "get_server_capacity.path: is missing"},
    {"{\"get_server_capacity\":{\"server_id\":\"leaf\",\"path\":[\"leaf\"]}}", INVALID,
     "get_server_capacity.resource: is missing"},
    {SERVER_GET("\"leaf\"", ""), INVALID,
     "get_server_capacity.path: must be a list of 1 to 16 ids"},
    {SERVER_GET("[]", ""), INVALID, "get_server_capacity.path: must be a list of 1 to 16 ids"},
    {SERVER_GET("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", ""), INVALID,
     "get_server_capacity.path: must be a list of 1 to 16 ids"},
    {SERVER_GET("[\"other\",\"leaf\"]", ""), INVALID,
     "get_server_capacity.path[0]: must be the server_id"},
    {SERVER_GET("[\"leaf\",null]", ""), INVALID, "get_server_capacity.path[1]: must be a string"},
    {SERVER_GET("[\"leaf\"]", "[]"), INVALID, "get_server_capacity.resource[0]: must be an object"},
    {SERVER_GET("[\"leaf\"]", "{\"wants\":[]}"), INVALID, SERVER_AT("resource_id: is missing")},
    {SERVER_DB("\"outstanding\":1"), INVALID, SERVER_AT("wants: is missing")},
    {SERVER_DB("\"wants\":1"), INVALID, SERVER_AT("wants: must be a list")},
    {SERVER_DB("\"wants\":{}"), INVALID, SERVER_AT("wants: must be a list")},
    {SERVER_DB("\"wants\":[1]"), INVALID, SERVER_AT("wants[0]: must be an object")},
    {SERVER_DB("\"wants\":[],\"outstanding\":-1"), INVALID,
     SERVER_AT("outstanding: " DOORMAN__AMOUNT_RULE)},
    {SERVER_DB("\"wants\":[],\"outstanding\":\"1\""), INVALID,
     SERVER_AT("outstanding: must be a number")},
    {SERVER_DB("\"wants\":[],\"learning\":1"), INVALID, SERVER_AT("learning: must be a boolean")},
    {SERVER_DB("\"wants\":[],\"has\":{\"id\":0}"), INVALID,
     SERVER_AT("has.id: must be an integer")},
    {GROUP("\"wants\":1"), INVALID, SERVER_AT("wants[1].num_clients: is missing")},
    {GROUP("\"wants\":1,\"num_clients\":0"), INVALID, SERVER_AT("wants[1]." CLIENTS)},
    {GROUP("\"wants\":1,\"num_clients\":-1"), INVALID, SERVER_AT("wants[1]." CLIENTS)},
    {GROUP("\"wants\":1,\"num_clients\":1.5"), INVALID, SERVER_AT("wants[1]." CLIENTS)},
    {GROUP("\"wants\":1,\"num_clients\":1000000001"), INVALID, SERVER_AT("wants[1]." CLIENTS)},
    {GROUP("\"wants\":1,\"num_clients\":true"), INVALID,
     SERVER_AT("wants[1].num_clients: must be a number")},
    {GROUP("\"num_clients\":1"), INVALID, SERVER_AT("wants[1].wants: is missing")},
    {GROUP("\"num_clients\":1,\"wants\":-1"), INVALID,
     SERVER_AT("wants[1].wants: " DOORMAN__AMOUNT_RULE)},
    {GROUP("\"num_clients\":1,\"wants\":1e16"), INVALID,
     SERVER_AT("wants[1].wants: " DOORMAN__AMOUNT_RULE)},
    {GROUP("\"num_clients\":1,\"wants\":1,\"priority\":16"), INVALID,
     SERVER_AT("wants[1].priority: must be an integer from 0 to 15")},
};
#undef CLIENTS
#undef SERVER_AT
#undef INVALID
#undef AT

/* C5, V5: the reply has the code, and the path if a field is wrong. Nothing in the message takes
 * effect. */
TEST(an_invalid_message_gets_an_error_with_a_path_and_changes_nothing) {
    world *w = world_start();
    for (size_t i = 0; i < COUNT(wrong_messages); i++) {
        char expected[512];
        snprintf(expected, sizeof expected, "{\"error\":{\"code\":\"%s\",\"message\":\"%s",
                 wrong_messages[i].code, wrong_messages[i].message);
        const char *reply = send_text(w, wrong_messages[i].text);
        if (strncmp(reply, expected, strlen(expected)) != 0) {
            fail_msg("%s\nis answered by %s\ninstead of     %s", wrong_messages[i].text, reply,
                     expected);
        }
        assert_true(granted_sum(w) < 0);
    }
    assert_non_null(strstr(send_text(w, DB("\"wants\":1")), "\"gets\""));
    world_stop(w);
}

/* C5: a message that is cut at any place is refused. A message with a NUL at any place is refused
 * too. */
TEST(a_cut_message_or_one_with_a_nul_is_refused) {
    world *w = world_start();
    static const char whole[] =
        DB("\"wants\":1,\"has\":{\"id\":1,\"node\":\"n\\ud83d\\ude00\xc3\xa9\","
           "\"capacity\":1.5e0,\"expires_in\":1},\"x\":[true,false,null]");
    for (size_t i = 0; i + 1 < sizeof whole; i++) {
        char text[sizeof whole];
        memcpy(text, whole, sizeof whole);
        text[i] = '\0';
        assert_int_equal(send_bytes(w, text, sizeof whole - 1), DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(send_bytes(w, whole, i), DOORMAN_INVALID_ARGUMENT);
    }
    assert_int_equal(send_bytes(w, whole, sizeof whole), DOORMAN_INVALID_ARGUMENT);
    assert_true(granted_sum(w) < 0);
    assert_int_equal(send_bytes(w, whole, sizeof whole - 1), DOORMAN_OK);
    world_stop(w);
}

TEST(every_form_that_rfc_8259_allows_is_accepted) {
    static const char *const texts[] = {
        " \t\r\n{ \"discovery\" : { } } \n",
        "{\"discovery\":{\"x\":[0,-0,1.50,1E5,1e-400,-0.0e+2,9e307,{},[],[[]],{\"\":\"\"}]}}",
        "{\"discovery\":\t{\"x\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}}",
        "{\"discovery\":{\"x\":\"\\u00e9\\uD83D\\uDE00\\ud7ff\\ue000\x7f\"}}",
        "{\"discovery\":{\"x\":\"\xc2\x80 \xef\xbf\xbf \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf\"}}",
        "{\"disco\\u0076ery\":{\"x\":true,\"X\":null}}",
    };
    world *w = world_start();
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_int_equal(send_bytes(w, texts[i], strlen(texts[i])), DOORMAN_OK);
    }
    /* Two ids are equal if their escapes mean the same characters. */
    const char *reply = send_text(w, GET("{\"resource_id\":\"db\\/\\u00e9\\\"\\\\\",\"wants\":1}"));
    assert_non_null(strstr(reply, "\"resource_id\":\"db/\xc3\xa9\\\"\\\\\""));
    world_stop(w);
}

/* Returns a text of many equal parts, to test limits. */
static char *repeat(const char *start, const char *part, size_t times, const char *end) {
    size_t bytes = strlen(part);
    char *text = malloc(strlen(start) + times * bytes + strlen(end) + 1);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", start);
    for (size_t i = 0; i < times; i++, at += bytes) memcpy(at, part, bytes);
    strcpy(at, end);
    return text;
}

static void expect(world *w, char *text, doorman_status expected) {
    assert_int_equal(send_bytes(w, text, strlen(text)), expected);
    free(text);
}

/* V5 */
TEST(messages_have_limits_of_size_depth_and_values) {
    world *w = world_start();
    const size_t frame = strlen("{\"discovery\":{}}");
    char spaces[] = " ";
    expect(w, repeat("{\"discovery\":{}}", spaces, DOORMAN_MESSAGE_BYTES_MAX - frame, ""),
           DOORMAN_OK);
    expect(w, repeat("{\"discovery\":{}}", spaces, DOORMAN_MESSAGE_BYTES_MAX - frame + 1, ""),
           DOORMAN_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(w->reply.text, "\"RESOURCE_EXHAUSTED\""));
    for (size_t depth = 30; depth <= 31; depth++) {
        char *half = repeat("{\"discovery\":{\"x\":", "[", depth, "");
        expect(w, repeat(half, "]", depth, "}}"),
               depth == 30 ? DOORMAN_OK : DOORMAN_RESOURCE_EXHAUSTED);
        free(half);
    }
    expect(w, repeat("", "[", 5000, ""), DOORMAN_RESOURCE_EXHAUSTED);
    expect(w, repeat("", "{\"a\":", 700000, ""), DOORMAN_RESOURCE_EXHAUSTED);
    expect(w, repeat("{\"discovery\":{\"x\":[0", ",0", 200000 - 4, "]}}"), DOORMAN_OK);
    expect(w, repeat("{\"discovery\":{\"x\":[0", ",0", 200000 - 3, "]}}"),
           DOORMAN_RESOURCE_EXHAUSTED);
    expect(w, repeat("{\"discovery\":{\"x\":0.", "0", 61, "}}"), DOORMAN_OK);
    expect(w, repeat("{\"discovery\":{\"x\":0.", "0", 62, "}}"), DOORMAN_INVALID_ARGUMENT);
    world_stop(w);
}

/* V5: comparing all pairs of keys would take too long. */
TEST(a_message_with_100000_keys_is_parsed_within_a_second) {
    world *w = world_start();
    const size_t count = 100000;
    char *text = malloc(40 * count);
    assert_non_null(text);
    char *at = text + sprintf(text, "{\"discovery\":{\"first\":0");
    for (size_t i = 0; i < count; i++) at += sprintf(at, ",\"key-%zu\":0", i);
    strcpy(at, "}}");
    assert_int_equal(send_bytes(w, text, strlen(text)), DOORMAN_OK);
    strcpy(at, ",\"key-77777\":0}}");
    assert_int_equal(send_bytes(w, text, strlen(text)), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(w->reply.text, "discovery.key-77777: appears twice"));
    free(text);
    world_stop(w);
}

static doorman_status send_resources(world *w, size_t count) {
    char *text = malloc(64 * (count + 1));
    assert_non_null(text);
    char *at = text + sprintf(text, "{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[");
    for (size_t i = 0; i < count; i++) {
        at += sprintf(at, "%s{\"resource_id\":\"db%zu\",\"wants\":1}", i ? "," : "", 100000 + i);
    }
    strcpy(at, "]}}");
    doorman_status status = send_bytes(w, text, strlen(text));
    free(text);
    return status;
}

/* V5: a response is a message too, so it has at most 4 MiB. The error says how many resources a
 * message can have. */
TEST(a_request_whose_response_could_be_too_large_is_refused) {
    world *w = world_start();
    assert_int_equal(send_resources(w, 6000), DOORMAN_RESOURCE_EXHAUSTED);
    assert_true(granted_sum(w) < 0);
    assert_non_null(strstr(w->reply.text, "send at most 4680 resources in one message"));
    assert_int_equal(send_resources(w, 4681), DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(send_resources(w, 4680), DOORMAN_OK);
    world_stop(w);
}

TEST(an_id_has_at_most_256_bytes) {
    world *w = world_start();
    expect(w,
           repeat("{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db", "x",
                  254, "\",\"wants\":1}]}}"),
           DOORMAN_OK);
    expect(w,
           repeat("{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db", "x",
                  255, "\",\"wants\":1}]}}"),
           DOORMAN_INVALID_ARGUMENT);
    expect(w,
           repeat("{\"get_capacity\":{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db", "x",
                  4000000, "\",\"wants\":1}]}}"),
           DOORMAN_INVALID_ARGUMENT);
    world_stop(w);
}

TEST(transport_errors_have_the_same_form) {
    static const struct {
        doorman_status status;
        const char *message, *expected;
    } rows[] = {
        {DOORMAN_UNAVAILABLE, "stopping",
         "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"stopping\"}}"},
        {DOORMAN_OUT_OF_MEMORY, "a\"\x01",
         "{\"error\":{\"code\":\"INTERNAL\",\"message\":\"a\\\"\\u0001\"}}"},
        {DOORMAN_STALE, "\xc2\x85 \xe2\x82",
         "{\"error\":{\"code\":\"INTERNAL\",\"message\":\"\\u0085 \\ufffd\\ufffd\"}}"},
        {DOORMAN_TIMED_OUT, "",
         "{\"error\":{\"code\":\"INTERNAL\",\"message\":\"the timeout has passed\"}}"},
    };
    doorman_buffer reply = {0};
    for (size_t i = 0; i < COUNT(rows); i++) {
        doorman__writer out = doorman__put_start(&reply);
        doorman__put_error(&out, rows[i].status, rows[i].message);
        assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
        assert_string_equal(reply.text, rows[i].expected);
    }
    doorman_buffer_uninit(&reply);
    assert_null(reply.text);
}

/* ---- numbers ---- */

/* Checks that a request with these numbers is read as it was written. */
static void expect_round_trip_of_request(double amount, doorman_time duration) {
    const doorman_demand demand = {.wants = amount, .priority = 3};
    const doorman_capacity_request item_request = {
        .resource_id = "r\\\"\xc3\xa9",
        .wants = &demand,
        .wants_count = 1,
        .outstanding = amount,
        .has = {UINT64_C(1) << 53, "n", amount, 0, duration, 0}};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = "c", .items = &item_request, .item_count = 1};
    doorman_buffer text = {0};
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    doorman__reader reader = {.error = NULL};
    doorman_request read = {.method = DOORMAN_DISCOVERY};
    doorman__field root = doorman__read_start(&reader, text.text, text.bytes);
    doorman__read_request(&root, &read);
    assert_int_equal(reader.status, DOORMAN_OK);
    assert_int_equal(read.method, DOORMAN_GET_CAPACITY);
    assert_string_equal(read.holder_id, "c");
    assert_string_equal(read.items->resource_id, item_request.resource_id);
    assert_exact(read.items->wants->wants, amount);
    assert_int_equal(read.items->wants->priority, 3);
    assert_exact(read.items->outstanding, amount);
    assert_true(read.items->has.id == UINT64_C(1) << 53);
    assert_exact(read.items->has.capacity, amount);
    assert_true(read.items->has.expires_in == duration);
    assert_int_equal(doorman__read_end(&reader), DOORMAN_OK);
    doorman_buffer_uninit(&text);
}

/* Checks that a response with these numbers is read as it was written. */
static void expect_round_trip_of_response(double amount, doorman_time duration) {
    const doorman_capacity_response item_response = {
        .resource_id = "r",
        .outcome = DOORMAN_GRANTED,
        .has_safe_capacity = true,
        .safe_capacity = amount,
        .gets = {7, "n", amount / 2, amount, duration, duration, DOORMAN_LEASE_CUT}};
    const doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                       .is_master = true,
                                       .items = &item_response,
                                       .item_count = 1};
    doorman_buffer text = {0};
    doorman__writer out = doorman__put_start(&text);
    doorman__put_response(&out, &response, 0);
    assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
    doorman__reader reader = {.error = NULL};
    doorman_response back = {.items = NULL};
    doorman__field root = doorman__read_start(&reader, text.text, text.bytes);
    doorman__read_response(&root, &back);
    assert_int_equal(reader.status, DOORMAN_OK);
    assert_true(back.is_master && back.item_count == 1 && back.items->has_safe_capacity);
    assert_exact(back.items->safe_capacity, amount);
    assert_exact(back.items->gets.capacity, amount / 2);
    assert_exact(back.items->gets.committed, amount);
    assert_true(back.items->gets.expires_in == duration);
    assert_true(back.items->gets.refresh_interval == duration);
    assert_int_equal(back.items->gets.reason, DOORMAN_LEASE_CUT);
    assert_int_equal(doorman__read_end(&reader), DOORMAN_OK);
    doorman_buffer_uninit(&text);
}

static void expect_round_trip(double amount, doorman_time duration) {
    expect_round_trip_of_request(amount, duration);
    expect_round_trip_of_response(amount, duration);
}

static void expect_round_trips(void) {
    for (int i = 0; i < 5000; i++) {
        double amount = random_amount();
        if (random_below(3) == 0) amount = (double)random_below(1000000000) / 1e6;
        doorman_time duration = (doorman_time)(random_bits() >> (13 + random_below(51)));
        expect_round_trip(amount, duration);
    }
    expect_round_trip(DOORMAN_AMOUNT_MAX, DOORMAN_DURATION_MAX);
    expect_round_trip(0, 0);
    expect_round_trip(9007199254740991.0 / 16, 1);
}

TEST(amounts_and_times_survive_a_round_trip_exactly) { expect_round_trips(); }

/* Compiles the German locale into a temporary folder, and uses it. Few machines have it ready. */
static bool german_locale_compiled(void) {
    char folder[] = "/tmp/doorman-locale-XXXXXX", command[128];
    if (!mkdtemp(folder)) return false;
    snprintf(command, sizeof command,
             "localedef -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
    if (system(command) != 0) print_message("localedef failed\n"); /* or printed warnings */
    setenv("LOCPATH", folder, 1);
    bool found = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 && found;
}

/* The application chooses the locale, so any decimal separator must work. */
TEST(a_locale_with_a_decimal_comma_changes_nothing) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < COUNT(names) && !found; i++) found = setlocale(LC_NUMERIC, names[i]);
    if (!found && !german_locale_compiled()) {
        print_message("needs: a locale with a decimal comma\n");
        skip();
    }
    char probe[8];
    snprintf(probe, sizeof probe, "%.1f", 0.5);
    assert_string_equal(probe, "0,5");
    expect_round_trips();
    doorman_buffer text = {0};
    const doorman_template small = {.identifier_glob = "a", .capacity = 1.5e-7};
    const doorman_config_options options = {.templates = &small, .template_count = 1};
    assert_int_equal(doorman_json_write_config(&options, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"capacity\":1.5e-07}"));
    doorman_buffer_uninit(&text);
    assert_non_null(setlocale(LC_NUMERIC, "C"));
}

/* The amounts are around powers of two, where the distance between neighbouring doubles changes.
 * Between two of these powers, 2^-6 and 2^53, the writer does not need printf. */
TEST(adjacent_doubles_are_written_differently) {
    doorman_buffer text = {0};
    for (int power = -8; power <= 54; power++) {
        double amount = ldexp(1, power) * (1 - 3 * DBL_EPSILON);
        for (int step = 0; step < 12; step++, amount = nextafter(amount, INFINITY)) {
            doorman__writer out = doorman__put_start(&text);
            doorman__put(&out, "%n", amount);
            assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
            assert_true(strtod(text.text, NULL) == amount);
        }
    }
    doorman_buffer_uninit(&text);
}

TEST(numbers_are_written_in_their_shortest_form) {
    static const struct {
        double amount;
        const char *text;
    } rows[] = {{0, "0"},
                {-1, "-1"},
                {120, "120"},
                {0.1, "0.1"},
                {96.5, "96.5"},
                {1e15, "1000000000000000"},
                {0.000001, "0.000001"},
                {123456.654321, "123456.654321"},
                {1.0 / 3, "0.3333333333333333"},
                {1e-9, "1e-09"},
                {9007199254740992.0, "9007199254740992"},
                {1e22, "1e+22"}};
    doorman_buffer text = {0};
    for (size_t i = 0; i < COUNT(rows); i++) {
        doorman__writer out = doorman__put_start(&text);
        doorman__put(&out, "%n", rows[i].amount);
        assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
        assert_string_equal(text.text, rows[i].text);
    }
    doorman__writer out = doorman__put_start(&text);
    doorman__put(&out, "%t %t %t %t", INT64_C(0), SECOND, SECOND / 10, 48 * SECOND + 200000001);
    assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
    assert_string_equal(text.text, "0 1 0.1 48.200000001");
    doorman_buffer_uninit(&text);
}

/* ---- a server and its parent ---- */

/* A message that was read from a text. Its pointers point into the memory of the reader. */
typedef struct parsed_message {
    doorman__reader reader;
    doorman_error error;
    doorman_request request;
    doorman_response response;
} parsed_message;

static doorman_status read_request(parsed_message *r, const char *text, size_t bytes) {
    *r = (parsed_message){.request = {.sequence = 0}};
    r->reader.error = &r->error;
    doorman__field root = doorman__read_start(&r->reader, text, bytes);
    doorman__read_request(&root, &r->request);
    return r->reader.status;
}

static doorman_status read_response(parsed_message *r, const char *text, size_t bytes) {
    *r = (parsed_message){.response = {.item_count = 0}};
    r->reader.error = &r->error;
    doorman__field root = doorman__read_start(&r->reader, text, bytes);
    doorman__read_response(&root, &r->response);
    return r->reader.status;
}

static doorman_status write_response(doorman_buffer *text, const doorman_response *response) {
    doorman__writer out = doorman__put_start(text);
    doorman__put_response(&out, response, 0);
    return doorman__put_end(&out);
}

/* Compares two texts. Both may be NULL. */
static void assert_same_text(const char *a, const char *b) {
    assert_int_equal(a == NULL, b == NULL);
    if (a) assert_string_equal(a, b);
}

static void assert_same_report(const doorman_overload_report *a, const doorman_overload_report *b) {
    assert_true(a->interval == b->interval);
    assert_exact(a->arrived, b->arrived);
    assert_exact(a->finished, b->finished);
    assert_exact(a->refused, b->refused);
    assert_exact(a->late, b->late);
}

static void assert_same_request(const doorman_request *a, const doorman_request *b) {
    assert_int_equal(a->method, b->method);
    assert_int_equal(a->is_server, b->is_server);
    assert_string_equal(a->holder_id, b->holder_id);
    assert_same_text(a->http_address, b->http_address);
    assert_int_equal(a->path_count, b->path_count);
    for (size_t i = 0; i < a->path_count; i++) assert_string_equal(a->path[i], b->path[i]);
    assert_int_equal(a->item_count, b->item_count);
    for (size_t i = 0; i < a->item_count; i++) {
        const doorman_capacity_request *x = &a->items[i], *y = &b->items[i];
        assert_string_equal(x->resource_id, y->resource_id);
        assert_true(x->has.id == y->has.id);
        if (a->method == DOORMAN_RELEASE_CAPACITY) continue;
        assert_same_report(&x->overload, &y->overload);
        assert_true(x->has.id == 0 || strcmp(x->has.node, y->has.node) == 0);
        assert_exact(x->has.capacity, y->has.capacity);
        assert_true(x->has.expires_in == y->has.expires_in);
        assert_exact(x->outstanding, y->outstanding);
        assert_int_equal(x->learning, y->learning);
        assert_int_equal(x->wants_count, y->wants_count);
        for (size_t k = 0; k < x->wants_count; k++) {
            assert_exact(x->wants[k].wants, y->wants[k].wants);
            assert_exact(x->wants[k].subclients, y->wants[k].subclients);
            assert_int_equal(x->wants[k].priority, y->wants[k].priority);
        }
    }
}

static void assert_same_algorithm(const doorman_algorithm *a, const doorman_algorithm *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->handover, b->handover);
    assert_true(a->lease_length == b->lease_length);
    assert_true(a->refresh_interval == b->refresh_interval);
    assert_int_equal(a->has_learning_mode_duration, b->has_learning_mode_duration);
    assert_true(a->learning_mode_duration == b->learning_mode_duration);
    assert_int_equal(a->has_minimum_interval, b->has_minimum_interval);
    assert_true(a->minimum_interval == b->minimum_interval);
    assert_true(a->minimum_refresh_interval == b->minimum_refresh_interval);
    assert_exact(a->decay_factor, b->decay_factor);
    assert_exact(a->reserve, b->reserve);
}

static void assert_same_item(const doorman_capacity_response *a,
                             const doorman_capacity_response *b) {
    assert_string_equal(a->resource_id, b->resource_id);
    assert_int_equal(a->outcome, b->outcome);
    assert_true(a->gets.id == b->gets.id && a->gets.expires_in == b->gets.expires_in);
    assert_true(a->gets.refresh_interval == b->gets.refresh_interval);
    assert_exact(a->gets.capacity, b->gets.capacity);
    assert_exact(a->gets.committed, b->gets.committed);
    assert_int_equal(a->gets.reason, b->gets.reason);
    assert_int_equal(a->has_safe_capacity, b->has_safe_capacity);
    assert_int_equal(a->learning, b->learning);
    assert_exact(a->safe_capacity, b->safe_capacity);
    assert_true(a->overload_target == b->overload_target);
    assert_int_equal(a->whole, b->whole);
    assert_int_equal(a->algorithm == NULL, b->algorithm == NULL);
    if (a->algorithm) assert_same_algorithm(a->algorithm, b->algorithm);
    assert_int_equal(a->terms_count, b->terms_count);
    for (size_t i = 0; i < a->terms_count; i++) {
        assert_int_equal(a->terms[i].priority, b->terms[i].priority);
        assert_exact(a->terms[i].level, b->terms[i].level);
        assert_exact(a->terms[i].slope, b->terms[i].slope);
    }
    assert_int_equal(a->has_learn_for, b->has_learn_for);
    assert_true(a->learn_for == b->learn_for);
    assert_same_text(a->description, b->description);
    assert_same_text(a->unit, b->unit);
}

TEST(a_server_sends_the_demand_of_its_clients_in_groups) {
    static const char *const path[] = {"leaf", "mid\"dle"};
    static const doorman_demand wants[] = {{300, 40, 1}, {900.5, 3, 15}};
    static const doorman_capacity_request item_requests[] = {
        {.resource_id = "db",
         .has = {.id = 7, .node = "eu", .capacity = 750, .expires_in = 55 * SECOND},
         .outstanding = 700,
         .wants = wants,
         .wants_count = 2,
         .overload = {16 * SECOND, 400, 300.5, 90, 7}},
        {.resource_id = "other", .learning = true}};
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = true,
                                     .holder_id = "leaf",
                                     .path = path,
                                     .path_count = 2,
                                     .items = item_requests,
                                     .item_count = 2};
    doorman_buffer text = {0};
    parsed_message r;
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    assert_string_equal(text.text,
                        "{\"get_server_capacity\":{\"server_id\":\"leaf\",\"path\":[\"leaf\","
                        "\"mid\\\"dle\"],\"resource\":[{\"resource_id\":\"db\",\"wants\":["
                        "{\"priority\":1,\"num_clients\":40,\"wants\":300},"
                        "{\"priority\":15,\"num_clients\":3,\"wants\":900.5}],\"outstanding\":700,"
                        "\"has\":{\"id\":7,\"node\":\"eu\",\"capacity\":750,\"expires_in\":55},"
                        "\"overload\":{\"interval\":16,\"arrived\":400,\"finished\":300.5,"
                        "\"refused\":90,\"late\":7}},"
                        "{\"resource_id\":\"other\",\"learning\":true,\"wants\":[]}]}}");
    assert_int_equal(read_request(&r, text.text, text.bytes), DOORMAN_OK);
    assert_same_request(&r.request, &request);
    doorman__read_end(&r.reader);
    doorman_buffer_uninit(&text);
}

/* H11: a report of overload is a message of its own, and has a response. */
TEST(a_report_of_overload_has_its_numbers_in_the_resource) {
    static const doorman_capacity_request items[] = {
        {.resource_id = "db", .overload = {SECOND / 2, 400, 300, 90, 7}},
        {.resource_id = "other", .overload = {SECOND, 1, 1, 0, 0}}};
    static const doorman_capacity_response answers[] = {
        {.resource_id = "db", .overload_target = SECOND / 10}, {.resource_id = "other"}};
    const doorman_request request = {
        .method = DOORMAN_REPORT_OVERLOAD, .holder_id = "db-1", .items = items, .item_count = 2};
    doorman_response response = {.method = DOORMAN_REPORT_OVERLOAD, .is_master = true};
    doorman_buffer text = {0};
    parsed_message r;
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"report_overload\":{\"client_id\":\"db-1\",\"resource\":["
                                   "{\"resource_id\":\"db\",\"interval\":0.5,\"arrived\":400,"
                                   "\"finished\":300,\"refused\":90,\"late\":7},"
                                   "{\"resource_id\":\"other\",\"interval\":1,\"arrived\":1,"
                                   "\"finished\":1,\"refused\":0}]}}");
    assert_int_equal(read_request(&r, text.text, text.bytes), DOORMAN_OK);
    assert_same_request(&r.request, &request);
    doorman__read_end(&r.reader);
    response.items = answers;
    response.item_count = 2;
    assert_int_equal(write_response(&text, &response), DOORMAN_OK);
    assert_string_equal(text.text, "{\"report_overload\":{\"response\":[{\"resource_id\":\"db\","
                                   "\"overload_target\":0.1},{\"resource_id\":\"other\"}]}}");
    assert_int_equal(read_response(&r, text.text, text.bytes), DOORMAN_OK);
    assert_int_equal(r.response.item_count, 2);
    for (size_t i = 0; i < 2; i++) assert_same_item(&r.response.items[i], &answers[i]);
    doorman__read_end(&r.reader);
    doorman_buffer_uninit(&text);
}

TEST(a_release_of_a_server_says_that_it_is_a_server) {
    static const doorman_capacity_request item_request = {.resource_id = "db", .has = {.id = 5}};
    const doorman_request request = {.method = DOORMAN_RELEASE_CAPACITY,
                                     .is_server = true,
                                     .holder_id = "leaf",
                                     .items = &item_request,
                                     .item_count = 1};
    doorman_buffer text = {0};
    parsed_message r;
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"release_capacity\":{\"server_id\":\"leaf\",\"resource\":["
                                   "{\"resource_id\":\"db\",\"id\":5}]}}");
    assert_int_equal(read_request(&r, text.text, text.bytes), DOORMAN_OK);
    assert_same_request(&r.request, &request);
    doorman__read_end(&r.reader);
    doorman_buffer_uninit(&text);
}

TEST(a_discovery_request_has_no_other_fields) {
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    doorman_buffer text = {0};
    world *w = world_start();
    assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"discovery\":{}}");
    assert_non_null(strstr(send_text(w, text.text), "\"is_master\":true"));
    doorman_buffer_uninit(&text);
    world_stop(w);
}

/* T3: parameters with their default value are not sent, and the receiver fills them in. */
TEST(a_response_to_a_server_has_the_algorithm_and_terms) {
    static const doorman_algorithm usual = {.learning_mode_duration = 63 * SECOND,
                                            .has_learning_mode_duration = true};
    static const doorman_terms terms[] = {{3, 14.25, 0}, {DOORMAN_ANY_PRIORITY, 0, 1}};
    doorman_algorithm algorithm = doorman__algorithm_resolve(&usual);
    const doorman_capacity_response item_responses[] = {{.resource_id = "db",
                                                         .outcome = DOORMAN_GRANTED,
                                                         .gets = {.id = 6,
                                                                  .node = "eu",
                                                                  .capacity = 720,
                                                                  .committed = 750,
                                                                  .expires_in = 60 * SECOND,
                                                                  .refresh_interval = 8 * SECOND},
                                                         .algorithm = &algorithm,
                                                         .terms = terms,
                                                         .terms_count = 2},
                                                        {.resource_id = "other",
                                                         .outcome = DOORMAN_TRY_LATER,
                                                         .gets = {.refresh_interval = SECOND},
                                                         .has_learn_for = true}};
    const doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                       .is_server = true,
                                       .is_master = true,
                                       .items = item_responses,
                                       .item_count = 2};
    doorman_buffer text = {0};
    parsed_message r;
    assert_int_equal(write_response(&text, &response), DOORMAN_OK);
    assert_string_equal(
        text.text,
        "{\"get_server_capacity\":{\"response\":[{\"resource_id\":\"db\",\"gets\":{\"id\":6,"
        "\"node\":\"eu\",\"capacity\":720,\"expires_in\":60,\"refresh_interval\":8,\"keep\":750},"
        "\"algorithm\":{\"kind\":\"FAIR_SHARE\",\"lease_length\":60,\"refresh_interval\":16,"
        "\"learning_mode_duration\":63,\"parameters\":[]},"
        "\"terms\":[{\"priority\":3,\"level\":14.25,\"slope\":0},{\"level\":0,\"slope\":1}]},"
        "{\"resource_id\":\"other\",\"refused\":{\"reason\":\"TRY_LATER\",\"refresh_interval\":1},"
        "\"learn_for\":0}]}}");
    assert_int_equal(read_response(&r, text.text, text.bytes), DOORMAN_OK);
    assert_true(r.response.is_server && r.response.is_master);
    assert_int_equal(r.response.item_count, 2);
    for (size_t i = 0; i < 2; i++) assert_same_item(&r.response.items[i], &item_responses[i]);
    doorman__read_end(&r.reader);
    doorman_buffer_uninit(&text);
}

/* Returns a duration of up to 26 days, because such durations are exact. */
static doorman_time random_duration(void) {
    return (doorman_time)(random_bits() >> (13 + random_below(51))) + 1;
}

enum { GROUPS = 40, ITEMS = 6 }; /* the maxima of a random message */

/* A random message of a server or a client. Its pointers point into this struct. */
typedef struct random_message {
    const char *path[DOORMAN__PATH_MAX];
    doorman_demand demands[ITEMS][GROUPS];
    doorman_capacity_request item_requests[ITEMS];
    doorman_terms terms[ITEMS][DOORMAN_TERMS_MAX];
    doorman_algorithm algorithms[ITEMS];
    doorman_capacity_response item_responses[ITEMS];
} random_message;

static const char *random_name(void) {
    static const char *const names[] = {"a", "db/orders", "\"\\\"[{", "\xc3\xa9\xf0\x9f\x98\x80,]"};
    return names[random_below(COUNT(names))];
}

static void random_demands(random_message *d, size_t i, bool is_server) {
    doorman_capacity_request *item_request = &d->item_requests[i];
    item_request->wants = d->demands[i];
    item_request->wants_count = is_server ? random_below(GROUPS + 1) : 1;
    for (size_t k = 0; k < item_request->wants_count; k++) {
        double subclients = is_server ? 1.0 + (double)random_below(1000000000) : 1;
        d->demands[i][k] = (doorman_demand){random_amount(), subclients, (int)random_below(16)};
    }
}

static doorman_request random_request(random_message *d) {
    doorman_request request = {.method = random_below(4) ? DOORMAN_GET_CAPACITY
                                                         : DOORMAN_RELEASE_CAPACITY,
                               .is_server = random_below(3) > 0,
                               .holder_id = random_name(),
                               .items = d->item_requests,
                               .item_count = random_below(ITEMS + 1)};
    bool get = request.method == DOORMAN_GET_CAPACITY;
    if (get && request.is_server) {
        request.path = d->path;
        request.path_count = 1 + random_below(DOORMAN__PATH_MAX);
        for (size_t i = 0; i < request.path_count; i++) d->path[i] = random_name();
        if (random_below(2)) request.http_address = random_name();
    }
    for (size_t i = 0; i < request.item_count; i++) {
        doorman_capacity_request *item_request = &d->item_requests[i];
        *item_request = (doorman_capacity_request){.resource_id = random_name()};
        if (!get || random_below(2)) {
            item_request->has.id = 1 + random_bits() % (UINT64_C(1) << 53);
            item_request->has.node = random_name();
        }
        if (item_request->has.id && get) {
            item_request->has.capacity = random_amount();
            item_request->has.expires_in = random_duration();
        }
        if (get && random_below(2)) item_request->outstanding = random_amount();
        item_request->learning = get && request.is_server && random_below(2);
        if (get) random_demands(d, i, request.is_server);
    }
    return request;
}

/* Returns an algorithm in which each field is sometimes 0, and sometimes has a value. */
static doorman_algorithm random_given_algorithm(void) {
    doorman_algorithm given = {.kind = (doorman_kind)random_below(DOORMAN_KIND_COUNT)};
    if (random_below(2)) given.handover = DOORMAN_IMMEDIATE;
    if (random_below(2)) given.lease_length = random_duration();
    if (random_below(2)) given.refresh_interval = random_duration();
    given.has_learning_mode_duration = random_below(2);
    if (given.has_learning_mode_duration && random_below(3)) {
        given.learning_mode_duration = random_duration();
    }
    given.has_minimum_interval = random_below(2);
    if (given.has_minimum_interval && random_below(3)) given.minimum_interval = random_duration();
    if (random_below(2)) given.minimum_refresh_interval = random_duration();
    if (random_below(2)) given.decay_factor = 1 - random_unit();
    if (random_below(2)) given.reserve = random_unit();
    return given;
}

static doorman_algorithm random_algorithm(void) {
    const doorman_algorithm given = random_given_algorithm();
    return doorman__algorithm_resolve(&given);
}

static void random_item(random_message *d, size_t i) {
    doorman_capacity_response *item_response = &d->item_responses[i];
    *item_response =
        (doorman_capacity_response){.resource_id = random_name(), .outcome = DOORMAN_GRANTED};
    item_response->gets.refresh_interval = random_duration();
    if (random_below(4)) {
        item_response->gets = (doorman_lease){.id = 1 + random_bits() % (UINT64_C(1) << 53),
                                              .node = random_name(),
                                              .capacity = random_amount(),
                                              .expires_in = random_duration(),
                                              .refresh_interval = random_duration()};
        item_response->gets.committed = doorman__max(item_response->gets.capacity, random_amount());
        int reason = (int)random_below(5);
        if (reason)
            item_response->gets.reason = (doorman_lease_reason)(DOORMAN_LEASE_SHARE + reason - 1);
    } else {
        item_response->outcome = (doorman_outcome)(DOORMAN_TRY_LATER + random_below(3));
    }
    item_response->learning = random_below(2);
    item_response->has_safe_capacity = random_below(2);
    if (item_response->has_safe_capacity)
        item_response->safe_capacity = random_below(5) ? random_amount() : -1;
    if (random_below(4)) item_response->algorithm = &d->algorithms[i];
    item_response->whole = item_response->algorithm && random_below(2);
    d->algorithms[i] = random_algorithm();
    item_response->terms = d->terms[i];
    item_response->terms_count = random_below(DOORMAN_TERMS_MAX + 1);
    for (size_t k = 0; k < item_response->terms_count; k++) {
        d->terms[i][k] = (doorman_terms){(int)random_below(17) - 1, random_amount(), random_unit()};
    }
    item_response->has_learn_for = random_below(2);
    if (item_response->has_learn_for && random_below(2))
        item_response->learn_for = random_duration();
    if (random_below(2)) item_response->description = random_name();
    if (random_below(2)) item_response->unit = random_name();
}

TEST(random_messages_survive_a_round_trip) {
    random_message *d = calloc(1, sizeof *d);
    doorman_buffer text = {0};
    parsed_message r;
    assert_non_null(d);
    for (int step = 0; step < 3000; step++) {
        doorman_request request = random_request(d);
        assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
        assert_int_equal(read_request(&r, text.text, text.bytes), DOORMAN_OK);
        assert_same_request(&r.request, &request);
        assert_int_equal(doorman__read_end(&r.reader), DOORMAN_OK);
        doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = true,
                                     .is_master = true,
                                     .items = d->item_responses,
                                     .item_count = random_below(ITEMS + 1)};
        if (random_below(2)) response.http_address = random_name();
        response.shared_id = random_below(2) != 0;
        for (size_t i = 0; i < response.item_count; i++) random_item(d, i);
        assert_int_equal(write_response(&text, &response), DOORMAN_OK);
        assert_int_equal(read_response(&r, text.text, text.bytes), DOORMAN_OK);
        assert_true(r.response.is_server);
        assert_same_text(r.response.http_address, response.http_address);
        assert_int_equal(r.response.shared_id, response.shared_id);
        assert_int_equal(r.response.item_count, response.item_count);
        for (size_t i = 0; i < response.item_count; i++) {
            assert_same_item(&r.response.items[i], &d->item_responses[i]);
        }
        assert_int_equal(doorman__read_end(&r.reader), DOORMAN_OK);
    }
    doorman_buffer_uninit(&text);
    free(d);
}

#define SERVER_RESPONSE(fields)                                                                    \
    "{\"get_server_capacity\":{\"response\":[{\"resource_id\":\"db\"," GETS "," fields "}]}}"
#define GETS                                                                                       \
    "\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":33.5,\"expires_in\":60,\"refresh_interval\":"  \
    "5}"

/* A newer parent may send fields that its child does not know. The child still takes the lease. */
TEST(unknown_fields_of_a_newer_parent_keep_the_lease) {
    static const char *const unknown[] = {
        SERVER_RESPONSE("\"algorithm\":{\"kind\":\"BETTER_SHARE\",\"lease_length\":-1,"
                        "\"parameters\":[{\"name\":\"x\"}]}"),
        SERVER_RESPONSE("\"color\":5"),
    };
    static const char known[] = SERVER_RESPONSE(
        "\"algorithm\":{\"kind\":\"STATIC\",\"lease_length\":20,\"refresh_interval\":4,\"x\":[],"
        "\"parameters\":[{\"name\":\"x\",\"value\":{}},{\"name\":\"reserve\",\"value\":0.5,"
        "\"unit\":1}]}");
    static const char *const whole[] = {
        SERVER_RESPONSE("\"algorithm\":{\"kind\":\"BETTER_SHARE\",\"whole\":true}"),
        SERVER_RESPONSE("\"algorithm\":{\"kind\":\"STATIC\",\"whole\":true}"),
    };
    parsed_message r;
    for (size_t i = 0; i < COUNT(whole); i++) { /* A5: even if the kind is unknown */
        assert_int_equal(read_response(&r, whole[i], strlen(whole[i])), DOORMAN_OK);
        assert_true(r.response.items->whole);
        doorman__read_end(&r.reader);
    }
    for (size_t i = 0; i < COUNT(unknown); i++) {
        assert_int_equal(read_response(&r, unknown[i], strlen(unknown[i])), DOORMAN_OK);
        assert_null(r.response.items->algorithm);
        assert_exact(r.response.items->gets.capacity, 33.5);
        doorman__read_end(&r.reader);
    }
    assert_int_equal(read_response(&r, known, strlen(known)), DOORMAN_OK);
    assert_int_equal(r.response.items->algorithm->kind, DOORMAN_STATIC_SHARE);
    assert_true(r.response.items->algorithm->lease_length == 20 * SECOND);
    assert_exact(r.response.items->algorithm->reserve, 0.5);
    assert_exact(r.response.items->algorithm->decay_factor, 0.5);
    doorman__read_end(&r.reader);
}

#define REASON_RESPONSE(field)                                                                     \
    "{\"get_capacity\":{\"response\":[{\"resource_id\":\"db\",\"gets\":{\"id\":5,\"node\":\"n\","  \
    "\"capacity\":1,\"expires_in\":60,\"refresh_interval\":5" field "}}]}}"

/* S14: a server may be older and send no reason, or newer and send a reason that this version does
 * not know. In both cases the lease counts, without a reason. */
TEST(a_reason_that_is_absent_or_unknown_keeps_the_lease) {
    static const struct {
        const char *text;
        int reason;
    } rows[] = {
        {REASON_RESPONSE(""), 0},
        {REASON_RESPONSE(",\"reason\":\"SHARE\""), DOORMAN_LEASE_SHARE},
        {REASON_RESPONSE(",\"reason\":\"CUT\""), DOORMAN_LEASE_CUT},
        {REASON_RESPONSE(",\"reason\":\"RESERVED\""), DOORMAN_LEASE_RESERVED},
        {REASON_RESPONSE(",\"reason\":\"LEARNING\""), DOORMAN_LEASE_LEARNING},
        {REASON_RESPONSE(",\"reason\":\"SPRING\""), 0},
        {REASON_RESPONSE(",\"reason\":\"\""), 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        parsed_message r;
        assert_int_equal(read_response(&r, rows[i].text, strlen(rows[i].text)), DOORMAN_OK);
        assert_int_equal(r.response.items->outcome, DOORMAN_GRANTED);
        assert_exact(r.response.items->gets.capacity, 1);
        assert_int_equal(r.response.items->gets.reason, rows[i].reason);
        doorman__read_end(&r.reader);
    }
}

#define AT(path) "get_server_capacity.response[0]." path
#define TERMS(fields) SERVER_RESPONSE("\"terms\":[{\"level\":1,\"slope\":0},{" fields "}]")
#define POLICY(fields) SERVER_RESPONSE("\"algorithm\":{\"kind\":\"STATIC\"," fields "}")
static const struct {
    const char *text, *error;
} wrong_server_answers[] = {
    {"{\"get_server_capacity\":{}}", "get_server_capacity.response: is missing"},
    {SERVER_RESPONSE("\"algorithm\":1"), AT("algorithm: must be an object")},
    {SERVER_RESPONSE("\"algorithm\":{}"), AT("algorithm.kind: is missing")},
    {SERVER_RESPONSE("\"algorithm\":{\"kind\":1}"), AT("algorithm.kind: must be a string")},
    {POLICY("\"whole\":0"), AT("algorithm.whole: must be a boolean")},
    {POLICY("\"lease_length\":0"), AT("algorithm.lease_length: must be more than 0")},
    {POLICY("\"refresh_interval\":\"1\""), AT("algorithm.refresh_interval: must be a number")},
    {POLICY("\"learning_mode_duration\":-1"), AT("algorithm.learning_mode_duration: must be from")},
    {POLICY("\"parameters\":{}"), AT("algorithm.parameters: must be a list")},
    {POLICY("\"parameters\":[1]"), AT("algorithm.parameters[0]: must be an object")},
    {POLICY("\"parameters\":[{\"value\":1}]"), AT("algorithm.parameters[0].name: is missing")},
    {POLICY("\"parameters\":[{\"name\":\"reserve\"}]"),
     AT("algorithm.parameters[0].value: is missing")},
    {POLICY("\"parameters\":[{\"name\":\"reserve\",\"value\":-0.5}]"),
     AT("algorithm.parameters[0].value: must be from 0 to 1")},
    {POLICY("\"parameters\":[{\"name\":\"handover\",\"value\":\"soon\"}]"),
     AT("algorithm.parameters[0].value: must be one of confirmed, immediate")},
    {SERVER_RESPONSE("\"terms\":{}"), AT("terms: must be a list")},
    {SERVER_RESPONSE("\"terms\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"),
     AT("terms: must be a list of at most 16")},
    {SERVER_RESPONSE("\"terms\":[0]"), AT("terms[0]: must be an object")},
    {TERMS("\"slope\":0"), AT("terms[1].level: is missing")},
    {TERMS("\"level\":0"), AT("terms[1].slope: is missing")},
    {TERMS("\"level\":-1,\"slope\":0"), AT("terms[1].level: " DOORMAN__AMOUNT_RULE)},
    {TERMS("\"level\":1,\"slope\":1.5"), AT("terms[1].slope: must be from 0 to 1")},
    {TERMS("\"level\":1,\"slope\":-1"), AT("terms[1].slope: must be from 0 to 1")},
    {TERMS("\"level\":1,\"slope\":1,\"priority\":-1"),
     AT("terms[1].priority: must be an integer from 0 to 15")},
    {SERVER_RESPONSE("\"learn_for\":-1"), AT("learn_for: must be from 0 to 1e8 seconds")},
    {SERVER_RESPONSE("\"learn_for\":true"), AT("learn_for: must be a number")},
    {SERVER_RESPONSE("\"description\":1"), AT("description: must be a string")},
    {SERVER_RESPONSE("\"unit\":[]"), AT("unit: must be a string")},
    {"{\"get_server_capacity\":{\"http_address\":{},\"response\":[]}}",
     "get_server_capacity.http_address: must be a string"},
};
#undef POLICY
#undef TERMS
#undef AT

/* C5 */
TEST(an_error_in_a_response_to_a_server_has_its_path) {
    for (size_t i = 0; i < COUNT(wrong_server_answers); i++) {
        const char *text = wrong_server_answers[i].text, *error = wrong_server_answers[i].error;
        parsed_message r;
        doorman_status status = read_response(&r, text, strlen(text));
        if (status != DOORMAN_INVALID_ARGUMENT ||
            strncmp(r.error.text, error, strlen(error)) != 0) {
            fail_msg("%s\ngives %s: %s\ninstead of %s", text, doorman_status_name(status),
                     r.error.text, error);
        }
        doorman__read_end(&r.reader);
    }
}

/* T2, V5 */
TEST(a_resource_has_at_most_512_groups) {
    static const char start[] = "{\"get_server_capacity\":{\"server_id\":\"leaf\",\"path\":"
                                "[\"leaf\"],\"resource\":[{\"resource_id\":\"db\",\"wants\":["
                                "{\"num_clients\":1,\"wants\":1}";
    for (size_t more = 511; more <= 512; more++) {
        char *text = repeat(start, ",{\"num_clients\":1,\"wants\":1}", more, "]}]}}");
        parsed_message r;
        doorman_status status = read_request(&r, text, strlen(text));
        assert_int_equal(status, more == 511 ? DOORMAN_OK : DOORMAN_INVALID_ARGUMENT);
        if (status == DOORMAN_OK) assert_int_equal(r.request.items->wants_count, 512);
        if (status != DOORMAN_OK) assert_non_null(strstr(r.error.text, "wants: must be a list of"));
        doorman__read_end(&r.reader);
        free(text);
    }
}

/* Checks that a response fits into the memory that is reserved for it. */
static void expect_enough_reserved(const doorman_request *request,
                                   const doorman_response *response) {
    doorman_buffer text = {0};
    assert_int_equal(doorman__reply_reserve(&text, request, NULL), DOORMAN_OK);
    memory_fails_from(1);
    doorman__writer out = doorman__put_start(&text);
    doorman__put_response(&out, response, INT64_C(99999999999));
    assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
    assert_true(memory_works());
    doorman_buffer_uninit(&text);
}

/* No amount and no duration has a longer text than these. */
static const double long_number = 1.2345678901234567e-100;
static const doorman_time long_duration = DOORMAN_DURATION_MAX - 1;

/* Returns the longest response for one resource.
 *   id   as long as an id can be */
static doorman_capacity_response longest_item(const char *id, const doorman_algorithm *algorithm,
                                              const doorman_terms *terms) {
    return (doorman_capacity_response){.resource_id = id,
                                       .outcome = DOORMAN_GRANTED,
                                       .gets = {UINT64_C(1) << 53, id, long_number,
                                                1.1 * long_number, long_duration, long_duration,
                                                DOORMAN_LEASE_RESERVED},
                                       .learning = true,
                                       .overload_target = long_duration,
                                       .whole = true,
                                       .has_safe_capacity = true,
                                       .safe_capacity = long_number,
                                       .algorithm = algorithm,
                                       .terms = terms,
                                       .terms_count = DOORMAN_TERMS_MAX,
                                       .has_learn_for = true,
                                       .learn_for = long_duration,
                                       .description = id,
                                       .unit = id + DOORMAN_ID_BYTES_MAX - DOORMAN_UNIT_BYTES_MAX};
}

/* C4: the memory that is reserved before a decision is enough for the longest response. */
TEST(the_longest_response_fits_the_reserved_memory) {
    enum { ANSWERS = 20 };
    const double amount = 123456789012345.67;
    const doorman_algorithm algorithm = {DOORMAN_PROPORTIONAL_SHARE,
                                         DOORMAN_IMMEDIATE,
                                         long_duration,
                                         long_duration,
                                         true,
                                         long_duration,
                                         true,
                                         long_duration,
                                         long_duration,
                                         long_number,
                                         long_number};
    char id[DOORMAN_ID_BYTES_MAX + 1] = "";
    doorman_terms terms[DOORMAN_TERMS_MAX];
    doorman_capacity_request asked[ANSWERS];
    doorman_capacity_response given[ANSWERS];
    memset(id, '"', DOORMAN_ID_BYTES_MAX);
    for (int i = 0; i < DOORMAN_TERMS_MAX; i++) terms[i] = (doorman_terms){15, amount, long_number};
    for (int i = 0; i < ANSWERS; i++) {
        asked[i] = (doorman_capacity_request){.resource_id = id};
        given[i] = longest_item(id, &algorithm, terms);
    }
    doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .items = asked, .item_count = ANSWERS};
    doorman_response response = {.method = DOORMAN_GET_CAPACITY,
                                 .is_master = true,
                                 .http_address = id,
                                 .items = given,
                                 .item_count = ANSWERS};
    expect_enough_reserved(&request, &response);
    request.is_server = response.is_server = true;
    expect_enough_reserved(&request, &response);
}

/* A node may ask for DOORMAN__ITEMS_MAX resources with the longest ids. */
TEST(the_reply_to_the_largest_request_of_a_node_fits) {
    char id[DOORMAN_ID_BYTES_MAX + 1];
    doorman_capacity_request *items = calloc(DOORMAN__ITEMS_MAX, sizeof *items);
    assert_non_null(items);
    memset(id, '"', DOORMAN_ID_BYTES_MAX);
    id[DOORMAN_ID_BYTES_MAX] = '\0';
    for (size_t i = 0; i < DOORMAN__ITEMS_MAX; i++) items[i].resource_id = id;
    const doorman_request request = {.method = DOORMAN_GET_CAPACITY,
                                     .is_server = true,
                                     .items = items,
                                     .item_count = DOORMAN__ITEMS_MAX};
    doorman_buffer text = {0};
    assert_int_equal(doorman__reply_reserve(&text, &request, NULL), DOORMAN_OK);
    doorman_buffer_uninit(&text);
    free(items);
}

static void expect_copy(const char *text, size_t room, const char *expected) {
    char copy[512];
    memset(copy, 'x', sizeof copy);
    doorman__text_copy(copy, room, text);
    assert_string_equal(copy, expected);
    assert_int_equal(copy[room], 'x');
}

/* T9: a text for people grows to at most twice its bytes in JSON. */
TEST(a_text_for_people_is_cut_between_characters_and_has_no_control_characters) {
    expect_copy(NULL, 8, "");
    expect_copy("", 1, "");
    expect_copy("abc", 1, "");
    expect_copy("abc", 4, "abc");
    expect_copy("abc", 3, "ab");
    expect_copy("0123456789abcdef", 33, "0123456789abcdef");
    expect_copy("0123456789abcdef", 17, "0123456789abcdef");
    expect_copy("0123456789abcdef", 16, "0123456789abcde");
    expect_copy("0123456789abcdef", 9, "01234567");
    expect_copy("a\xc3\xa9\xc3\xa9", 6, "a\xc3\xa9\xc3\xa9");
    expect_copy("a\xc3\xa9\xc3\xa9", 5, "a\xc3\xa9");
    expect_copy("\xf0\x9f\x98\x80", 4, "");
    expect_copy("line\none\ttwo\x7f\xc2\x85.", 32, "line one two  .");
    expect_copy("bad \xff\xc3", 32, "bad   ");
}

/* Delivers a node's request to its parent and the response to the node, both as text. Leaves the
 * request's text in *text. */
static void exchange_with_parent(world *parent, doorman_server *node, doorman_buffer *text) {
    doorman_request request;
    doorman_error error = {0};
    doorman_upstream *upstream = doorman_server_upstream(node);
    assert_true(doorman_upstream_request(upstream, &request, parent->now));
    assert_int_equal(doorman_json_request(&request, text), DOORMAN_OK);
    const char *reply = send_text(parent, text->text);
    if (doorman_json_response(upstream, request.sequence, reply, strlen(reply), &error,
                              parent->now) != DOORMAN_OK) {
        fail_msg("%s\nis answered by %s\nwhich fails: %s", text->text, reply, error.text);
    }
}

/* T1, T3, T4 */
TEST(a_node_and_its_parent_understand_each_other) {
    static const char *const parents[] = {"tcp://here:1"};
    world *root = world_start();
    world leaf = {.now = root->now};
    const doorman_server_options options = {
        .node = "leaf", .parents = parents, .parent_count = 1, .seed = {3, 4}};
    doorman_buffer text = {0};
    assert_int_equal(doorman_server_create(&leaf.server, &options, NULL, leaf.now), DOORMAN_OK);
    set_master(&leaf, "tcp://leaf:1", DOORMAN_NEVER);
    assert_non_null(strstr(send_text(&leaf, DB("\"wants\":120")), "\"TRY_LATER\""));
    exchange_with_parent(root, leaf.server, &text);
    assert_non_null(strstr(text.text, "{\"get_server_capacity\":{\"server_id\":\"leaf\","
                                      "\"path\":[\"leaf\"],\"resource\":[{\"resource_id\":\"db\""));
    assert_non_null(strstr(root->reply.text, "\"algorithm\":{\"kind\":\"FAIR_SHARE\""));
    root->now += 2 * SECOND;
    leaf.now = root->now;
    const char *reply = send_text(&leaf, DB("\"wants\":120"));
    assert_non_null(strstr(reply, "\"node\":\"leaf\",\"capacity\":"));
    assert_true(granted_sum(&leaf) <= granted_sum(root) && granted_sum(root) <= 100);
    doorman_server_destroy(leaf.server);
    doorman_buffer_uninit(&leaf.reply);
    doorman_buffer_uninit(&text);
    world_stop(root);
}

/* ---- in three steps ---- */

static doorman_status exchange_read(doorman_json_exchange *exchange, const char *text) {
    char *copy = malloc(strlen(text) + 1);
    assert_non_null(copy);
    strcpy(copy, text);
    doorman_status status = doorman_json_exchange_read(exchange, NULL, copy, strlen(copy));
    free(copy);
    return status;
}

/* The reply contains the decision. Later changes of the message's text, of other exchanges and of
 * the server do not change the reply. */
TEST(a_reply_can_be_written_after_the_server_has_changed) {
    static const char *const item_requests[] = {
        DB("\"wants\":120"), GET("{\"resource_id\":\"other\",\"wants\":1}"), "{\"discovery\":{}}",
        GET("{\"resource_id\":\"db\",\"wants\":1},{\"resource_id\":\"db2\","
            "\"wants\":7}")};
    doorman_json_exchange exchanges[COUNT(item_requests)] = {{.reply = {0}}};
    world *w = world_start(), *twin = world_start();
    for (size_t i = 0; i < COUNT(item_requests); i++) {
        assert_int_equal(exchange_read(&exchanges[i], item_requests[i]), DOORMAN_OK);
    }
    for (size_t i = 0; i < COUNT(item_requests); i++) {
        assert_int_equal(doorman_json_exchange_decide(&exchanges[i], w->server, w->now),
                         DOORMAN_OK);
    }
    world_stop(w);
    for (size_t i = COUNT(item_requests); i-- > 0;) {
        assert_int_equal(doorman_json_exchange_write(&exchanges[i], 0), DOORMAN_OK);
    }
    for (size_t i = 0; i < COUNT(item_requests); i++) {
        assert_string_equal(exchanges[i].reply.text, send_text(twin, item_requests[i]));
        doorman_json_exchange_uninit(&exchanges[i]);
    }
    world_stop(twin);
}

/* A server over HTTP adds the HTTP address of the master between decide and write. Even with the
 * longest addresses, the reply fits into the memory that decide has reserved. */
TEST(a_caller_can_add_the_http_address_of_the_master) {
    world *w = world_start();
    doorman_json_exchange exchange = {.reply = {0}};
    char master[DOORMAN_ID_BYTES_MAX + 1] = "", http[DOORMAN_ID_BYTES_MAX + 1] = "";
    assert_int_equal(exchange_read(&exchange, "{\"discovery\":{}}"), DOORMAN_OK);
    assert_int_equal(doorman_json_exchange_decide(&exchange, w->server, w->now), DOORMAN_OK);
    assert_true(exchange.response.is_master);
    assert_null(exchange.response.http_address);
    exchange.response.http_address = "http://here:2";
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
    assert_string_equal(
        exchange.reply.text,
        "{\"discovery\":{\"is_master\":true,\"mastership\":{"
        "\"master_address\":\"tcp://here:1\",\"http_address\":\"http://here:2\"}}}");
    memset(master, '"', DOORMAN_ID_BYTES_MAX);
    memset(http, 'h', DOORMAN_ID_BYTES_MAX);
    set_master(w, master, w->now);
    doorman_json_exchange_uninit(&exchange);
    assert_int_equal(exchange_read(&exchange, DB("\"wants\":1")), DOORMAN_OK);
    size_t room = exchange.reply.capacity;
    assert_int_equal(doorman_json_exchange_decide(&exchange, w->server, w->now), DOORMAN_OK);
    assert_false(exchange.response.is_master);
    exchange.response.http_address = http;
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
    assert_int_equal(exchange.reply.capacity, room);
    assert_non_null(strstr(exchange.reply.text, http));
    doorman_json_exchange_uninit(&exchange);
    world_stop(w);
}

/* A node sends its HTTP address to its parent, and receives the HTTP address of its parent. A
 * client learns nothing about the parent. */
TEST(a_node_and_its_parent_tell_each_other_their_http_addresses) {
    world *w = world_start();
    doorman_json_exchange exchange = {.reply = {0}};
    parsed_message r;
    static const char node[] = "{\"get_server_capacity\":{\"server_id\":\"leaf\",\"path\":"
                               "[\"leaf\"],\"http_address\":\"http://leaf:2\",\"resource\":[]}}";
    static const char *const messages[] = {node, DB("\"wants\":1")};
    for (int is_client = 0; is_client <= 1; is_client++) {
        assert_int_equal(exchange_read(&exchange, messages[is_client]), DOORMAN_OK);
        assert_same_text(exchange.request.http_address, is_client ? NULL : "http://leaf:2");
        assert_int_equal(doorman_json_exchange_decide(&exchange, w->server, w->now), DOORMAN_OK);
        assert_null(exchange.response.http_address);
        exchange.response.http_address = "http://root:1";
        assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
        assert_int_equal(read_response(&r, exchange.reply.text, exchange.reply.bytes), DOORMAN_OK);
        assert_same_text(r.response.http_address, is_client ? NULL : "http://root:1");
        doorman__read_end(&r.reader);
    }
    doorman_json_exchange_uninit(&exchange);
    world_stop(w);
}

/* After the decision, the data that a response points to may change. The reply stays the same. */
TEST(a_reply_to_a_server_can_be_written_after_it_has_changed) {
    random_message *d = calloc(1, sizeof *d);
    doorman_buffer expected = {0};
    doorman_json_exchange exchange = {.reply = {0}};
    assert_non_null(d);
    for (int step = 0; step < 300; step++) {
        doorman_request request = {.item_count = 0};
        while (request.method != DOORMAN_GET_CAPACITY || !request.is_server) {
            request = random_request(d);
        }
        assert_int_equal(doorman_json_request(&request, &expected), DOORMAN_OK);
        assert_int_equal(exchange_read(&exchange, expected.text), DOORMAN_OK);
        for (size_t i = 0; i < request.item_count; i++) {
            random_item(d, i);
            d->item_responses[i].resource_id = d->item_requests[i].resource_id;
            d->item_responses[i].gets.node = "this one";
        }
        exchange.response = (doorman_response){.method = DOORMAN_GET_CAPACITY,
                                               .is_server = true,
                                               .is_master = true,
                                               .items = d->item_responses,
                                               .item_count = request.item_count};
        assert_int_equal(write_response(&expected, &exchange.response), DOORMAN_OK);
        doorman__exchange_keep(&exchange);
        doorman__exchange_move(&exchange, DOORMAN__EXCHANGE_DECIDED, DOORMAN_OK);
        memset(d, 0xa5, sizeof *d);
        assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
        assert_string_equal(exchange.reply.text, expected.text);
    }
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(&expected);
    free(d);
}

TEST(an_exchange_is_decided_at_most_once_and_never_after_an_error) {
    world *w = world_start();
    doorman_json_exchange exchange = {.reply = {0}};
    const char *reply = NULL;
    assert_int_equal(exchange_read(&exchange, DB("\"wants\":-1")), DOORMAN_INVALID_ARGUMENT);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_json_exchange_decide(&exchange, w->server, w->now),
                         DOORMAN_INVALID_ARGUMENT);
    }
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(exchange.reply.text, "get_capacity.resource[0].wants: must be"));
    assert_true(granted_sum(w) < 0);

    assert_int_equal(exchange_read(&exchange, DB("\"wants\":5")), DOORMAN_OK);
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_UNAVAILABLE);
    reply = "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"the server is stopping\"}}";
    assert_string_equal(exchange.reply.text, reply);
    assert_true(granted_sum(w) < 0);

    assert_int_equal(exchange_read(&exchange, DB("\"wants\":5")), DOORMAN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_json_exchange_decide(&exchange, w->server, w->now), DOORMAN_OK);
        if (i == 0) assert_exact(granted_sum(w), 5);
        /* A second decision would answer with this address. */
        set_master(w, "tcp://there:1", w->now);
    }
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_OK);
    assert_non_null(strstr(exchange.reply.text, "\"gets\""));
    doorman_json_exchange_uninit(&exchange);
    world_stop(w);
}

static void bring_into(doorman_json_exchange *exchange, doorman__exchange_state to, world *w) {
    bool wrong = to == DOORMAN__EXCHANGE_FAILED;
    doorman_json_exchange_uninit(exchange);
    if (to != DOORMAN__EXCHANGE_EMPTY) {
        assert_int_equal(exchange_read(exchange, wrong ? "[]" : DB("\"wants\":5")),
                         wrong ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK);
    }
    if (to == DOORMAN__EXCHANGE_DECIDED || to == DOORMAN__EXCHANGE_WRITTEN) {
        assert_int_equal(doorman_json_exchange_decide(exchange, w->server, w->now), DOORMAN_OK);
    }
    if (to == DOORMAN__EXCHANGE_WRITTEN) {
        assert_int_equal(doorman_json_exchange_write(exchange, 0), DOORMAN_OK);
    }
    assert_int_equal(exchange->state, to);
}

enum { READ, DECIDE, WRITE }; /* the steps of an exchange */

static const char reply_of_none[] =
    "{\"error\":{\"code\":\"INVALID_ARGUMENT\",\"message\":\"no message was read\"}}";

static const char reply_of_wrong[] =
    "{\"error\":{\"code\":\"INVALID_ARGUMENT\",\"message\":\"must be an "
    "object with one key, the method\"}}";

static const char reply_of_stopping[] =
    "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"the server is stopping\"}}";

static const struct {
    doorman__exchange_state from;
    int step;
    doorman__exchange_state to;
    doorman_status status;
    const char *reply; /* after one more _write */
} exchange_steps[] = {
    {DOORMAN__EXCHANGE_EMPTY, READ, DOORMAN__EXCHANGE_READ, DOORMAN_OK, reply_of_stopping},
    {DOORMAN__EXCHANGE_EMPTY, DECIDE, DOORMAN__EXCHANGE_FAILED, DOORMAN_INVALID_ARGUMENT,
     reply_of_none},
    {DOORMAN__EXCHANGE_EMPTY, WRITE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_INVALID_ARGUMENT,
     reply_of_none},
    {DOORMAN__EXCHANGE_READ, READ, DOORMAN__EXCHANGE_READ, DOORMAN_OK, reply_of_stopping},
    {DOORMAN__EXCHANGE_READ, DECIDE, DOORMAN__EXCHANGE_DECIDED, DOORMAN_OK, NULL},
    {DOORMAN__EXCHANGE_READ, WRITE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_UNAVAILABLE,
     reply_of_stopping},
    {DOORMAN__EXCHANGE_DECIDED, READ, DOORMAN__EXCHANGE_READ, DOORMAN_OK, reply_of_stopping},
    {DOORMAN__EXCHANGE_DECIDED, DECIDE, DOORMAN__EXCHANGE_DECIDED, DOORMAN_OK, NULL},
    {DOORMAN__EXCHANGE_DECIDED, WRITE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_OK, NULL},
    {DOORMAN__EXCHANGE_FAILED, READ, DOORMAN__EXCHANGE_READ, DOORMAN_OK, reply_of_stopping},
    {DOORMAN__EXCHANGE_FAILED, DECIDE, DOORMAN__EXCHANGE_FAILED, DOORMAN_INVALID_ARGUMENT,
     reply_of_wrong},
    {DOORMAN__EXCHANGE_FAILED, WRITE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_INVALID_ARGUMENT,
     reply_of_wrong},
    {DOORMAN__EXCHANGE_WRITTEN, READ, DOORMAN__EXCHANGE_READ, DOORMAN_OK, reply_of_stopping},
    {DOORMAN__EXCHANGE_WRITTEN, DECIDE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_OK, NULL},
    {DOORMAN__EXCHANGE_WRITTEN, WRITE, DOORMAN__EXCHANGE_WRITTEN, DOORMAN_OK, NULL},
};

/* Checks the result, the next state and the reply of each step in each state. */
TEST(each_step_of_an_exchange_is_defined_in_each_state) {
    world *w = world_start();
    for (size_t i = 0; i < COUNT(exchange_steps); i++) {
        doorman_json_exchange exchange = {.reply = {0}};
        doorman_status status = DOORMAN_STALE;
        bring_into(&exchange, exchange_steps[i].from, w);
        if (exchange_steps[i].step == READ) status = exchange_read(&exchange, DB("\"wants\":7"));
        if (exchange_steps[i].step == DECIDE) {
            status = doorman_json_exchange_decide(&exchange, w->server, w->now);
        }
        if (exchange_steps[i].step == WRITE) status = doorman_json_exchange_write(&exchange, 0);
        assert_int_equal(status, exchange_steps[i].status);
        assert_int_equal(exchange.state, exchange_steps[i].to);
        for (int again = 0; again < 2; again++) {
            status = doorman_json_exchange_write(&exchange, 0);
            const char *reply = exchange.reply.text;
            assert_int_equal(status == DOORMAN_OK, exchange_steps[i].reply == NULL);
            if (exchange_steps[i].reply) assert_string_equal(reply, exchange_steps[i].reply);
            if (!exchange_steps[i].reply) assert_non_null(strstr(reply, "\"gets\""));
        }
        doorman_json_exchange_uninit(&exchange);
    }
    world_stop(w);
}

/* The error of an exchange has the same text as the reply, and names the field. The next message
 * clears it. */
TEST(an_exchange_says_why_a_message_was_refused) {
    world *w = world_start();
    doorman_json_exchange exchange = {.reply = {0}};
    assert_int_equal(exchange_read(&exchange, DB("\"wants\":-1")), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(exchange.error.text, "get_capacity.resource[0].wants: "));
    assert_int_equal(exchange.error.path_bytes, strlen("get_capacity.resource[0].wants"));
    assert_non_null(strstr(exchange.reply.text, exchange.error.text));
    assert_int_equal(exchange_read(&exchange, DB("\"wants\":1")), DOORMAN_OK);
    assert_string_equal(exchange.error.text, "");
    assert_int_equal(exchange.error.path_bytes, 0);
    doorman_json_exchange_uninit(&exchange);
    world_stop(w);
}

/* V5. A transport that stops receiving a large message has no text to pass on. */
TEST(a_message_that_is_too_large_is_refused_unread) {
    doorman_json_exchange exchange = {.reply = {0}};
    assert_int_equal(
        doorman_json_exchange_read(&exchange, NULL, NULL, DOORMAN_MESSAGE_BYTES_MAX + 1),
        DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(
        exchange.reply.text,
        "{\"error\":{\"code\":\"RESOURCE_EXHAUSTED\",\"message\":\"larger than 4 MiB\"}}");
    doorman_json_exchange_uninit(&exchange);
}

/* Over HTTP the method is in the path, so the bodies of the request and of the reply have none.
 * Each reply equals the content of the reply to the whole message. */
TEST(a_body_without_its_method_is_answered_with_a_body) {
    static const struct {
        const char *method, *body;
    } rows[] = {{"discovery", "{}"},
                {"get_capacity", "{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db\","
                                 "\"wants\":5}]}"},
                {"release_capacity",
                 "{\"client_id\":\"c\",\"resource\":[{\"resource_id\":\"db\",\"id\":1}]}"},
                {"get_server_capacity", "{\"server_id\":\"s\",\"path\":[\"s\"],\"resource\":[]}"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world *w = world_start(), *twin = world_start();
        const char *method = rows[i].method, *body = rows[i].body;
        doorman_json_exchange exchange = {.reply = {0}};
        doorman_buffer whole = {0};
        char text[256], expected[1024];
        snprintf(text, sizeof text, "{\"%s\":%s}", method, body);
        assert_int_equal(
            doorman_json_serve(twin->server, text, strlen(text), &whole, 1000, twin->now),
            DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_read(&exchange, method, body, strlen(body)),
                         DOORMAN_OK);
        doorman_json_exchange_decide(&exchange, w->server, w->now);
        assert_int_equal(doorman_json_exchange_write(&exchange, 1000), DOORMAN_OK);
        snprintf(expected, sizeof expected, "{\"%s\":%s}", method, exchange.reply.text);
        assert_string_equal(expected, whole.text);
        doorman_buffer_uninit(&whole);
        doorman_json_exchange_uninit(&exchange);
        world_stop(w);
        world_stop(twin);
    }
}

/* Positions count the bytes of the body. Paths begin with the method, as in a whole message. A key
 * of JSON may look like a path and a rule, so error.path_bytes says where the path ends. */
TEST(an_error_of_a_body_refers_to_the_body) {
    static const struct {
        const char *method, *body, *error, *path;
    } rows[] = {
        {"discovery", "", "the body is empty: send {}, or the content of the method", NULL},
        {"discovery", " \r\n\t", "the body is empty: ", NULL},
        {"discovery", "\xef\xbb\xbf{}", "byte 0: not JSON: remove the byte order mark", NULL},
        {"discovery", "{\"a\":}", "byte 5: not JSON: expected a value", NULL},
        {"discovery", "{\"a\":1", "byte 6: not JSON: expected a comma or }", NULL},
        {"discovery", "{} x", "not JSON: text follows the content of the method", NULL},
        {"discovery", "{},\"get_capacity\":{}", "not JSON: text follows the content", NULL},
        {"discovery", "{}}", "not JSON: text follows the content", NULL},
        {"discovery", "[]", "discovery: must be an object", "discovery"},
        {"get_capacity", "{\"client_id\":1}", "get_capacity.client_id: ", "get_capacity.client_id"},
        {"get_capacity", "{\"a\":{\"b\":1,\"b\":2}}", "get_capacity.a.b: appears twice",
         "get_capacity.a.b"},
        {"get_capacity", "{\"a: b\":1,\"a: b\":2}", "get_capacity.a: b: appears twice",
         "get_capacity.a: b"},
        {"get_capacity", "{\"get_capacity\":{}}", "get_capacity.get_capacity: " METHOD_TWICE,
         "get_capacity.get_capacity"}};
    doorman_json_exchange exchange = {.reply = {0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *body = rows[i].body;
        assert_int_equal(doorman_json_exchange_read(&exchange, rows[i].method, body, strlen(body)),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(exchange.error.text, rows[i].error, strlen(rows[i].error));
        assert_int_equal(exchange.error.path_bytes, rows[i].path ? strlen(rows[i].path) : 0);
        assert_int_equal(doorman_json_exchange_write(&exchange, 0), DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(exchange.reply.text, "{\"error\":", 9);
    }
    assert_int_equal(doorman_json_exchange_read(&exchange, "lend", "{}", 2), DOORMAN_NOT_FOUND);
    assert_memory_equal(exchange.error.text, "no such method: lend; the methods are discovery, ",
                        49);
    doorman_json_exchange_uninit(&exchange);
}

/* V5. The method in the path is not part of the body. */
TEST(a_body_has_at_most_4_MiB) {
    doorman_json_exchange exchange = {.reply = {0}};
    char *text = repeat("{}", " ", DOORMAN_MESSAGE_BYTES_MAX - 1, "");
    const size_t bytes = strlen(text);
    assert_int_equal(bytes, DOORMAN_MESSAGE_BYTES_MAX + 1);
    assert_int_equal(doorman_json_exchange_read(&exchange, "discovery", text, bytes - 1),
                     DOORMAN_OK);
    assert_int_equal(doorman_json_exchange_read(&exchange, "discovery", text, bytes),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(exchange.error.text, "larger than 4 MiB");
    doorman_json_exchange_uninit(&exchange);
    free(text);
}

/* A server reports refused messages by their method, without reading the text of the error. */
TEST(an_exchange_says_which_method_a_refused_message_has) {
    static const struct {
        const char *method, *text; /* as in doorman_json_exchange_read */
        bool has_method;
        doorman_method expected;
        bool is_server;
    } rows[] = {{NULL, "{\"get_capacity\":{\"client_id\":1}}", true, DOORMAN_GET_CAPACITY, false},
                {NULL, "{\"get_server_capacity\":{}}", true, DOORMAN_GET_CAPACITY, true},
                {NULL, "{\"release_capacity\":[]}", true, DOORMAN_RELEASE_CAPACITY, false},
                {NULL, "{\"discovery\":{}}", true, DOORMAN_DISCOVERY, false},
                {"get_capacity", "{", true, DOORMAN_GET_CAPACITY, false},
                {"get_server_capacity", "[]", true, DOORMAN_GET_CAPACITY, true},
                {"lend", "{}", false, DOORMAN_DISCOVERY, false},
                {NULL, "{\"lend\":{}}", false, DOORMAN_DISCOVERY, false},
                {NULL, "{\"get_capacity\":", false, DOORMAN_DISCOVERY, false},
                {NULL, "{\"client_id\":\"c\"}", false, DOORMAN_DISCOVERY, false},
                {NULL, "[]", false, DOORMAN_DISCOVERY, false}};
    doorman_json_exchange exchange = {.reply = {0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)doorman_json_exchange_read(&exchange, rows[i].method, rows[i].text,
                                         strlen(rows[i].text));
        assert_int_equal(exchange.has_method, rows[i].has_method);
        assert_int_equal(exchange.request.method, rows[i].expected);
        assert_int_equal(exchange.request.is_server, rows[i].is_server);
    }
    doorman_json_exchange_uninit(&exchange);
}

/* A message that was read but not answered leaks no memory, and an exchange can be used again after
 * its uninit. */
TEST(an_exchange_frees_its_memory_and_can_be_used_again) {
    world *w = world_start();
    size_t before = memory_blocks();
    doorman_json_exchange exchange = {.reply = {0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(exchange_read(&exchange, DB("\"wants\":5")), DOORMAN_OK);
        assert_int_equal(exchange_read(&exchange, "{\"discovery\":{}}"), DOORMAN_OK);
        if (i) doorman_json_exchange_decide(&exchange, w->server, w->now);
        if (i) doorman_json_exchange_write(&exchange, 0);
        assert_true(memory_blocks() > before);
        doorman_json_exchange_uninit(&exchange);
        assert_int_equal(memory_blocks(), before);
    }
    world_stop(w);
}

/* ---- what a client makes of an answer ---- */

typedef struct client_fixture {
    doorman_client *client;
    doorman_client_resource *resource;
    doorman_request request; /* in progress */
    doorman_error error;
    doorman_time now;
} client_fixture;

static doorman_request next_request(client_fixture *a) {
    doorman_request request = {.sequence = 0};
    (void)doorman_upstream_request(doorman_client_upstream(a->client), &request, a->now);
    return request;
}

static client_fixture *client_fixture_start(void) {
    static const char *const addresses[] = {"tcp://here:1", "tcp://spare:1"};
    client_fixture *a = calloc(1, sizeof *a);
    assert_non_null(a);
    const doorman_client_options options = {
        .client_id = "c", .addresses = addresses, .address_count = 2, .seed = 1};
    const doorman_resource_options resource = {.resource_id = "db", .wants = 40};
    assert_int_equal(doorman_client_create(&a->client, &options, &a->error, a->now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&a->resource, a->client, &resource, &a->error, a->now),
                     DOORMAN_OK);
    a->request = next_request(a);
    assert_true(a->request.sequence != 0);
    return a;
}

static void client_fixture_stop(client_fixture *a) {
    doorman_client_destroy(a->client);
    free(a);
}

static doorman_status receive(client_fixture *a, const char *text) {
    return doorman_json_response(doorman_client_upstream(a->client), a->request.sequence, text,
                                 strlen(text), &a->error, a->now);
}

static bool is_leased(client_fixture *a, double *capacity) {
    doorman_resource_info info;
    doorman_client_read(a->resource, &info, a->now);
    *capacity = info.capacity;
    return info.leased;
}

#define CLIENT_RESPONSE(fields)                                                                    \
    "{\"get_capacity\":{\"response\":[{\"resource_id\":\"db\"," fields "}]}}"

TEST(a_client_and_a_server_understand_each_other) {
    world *w = world_start();
    client_fixture *a = client_fixture_start();
    doorman_buffer text = {0};
    double capacity = 0;
    assert_int_equal(doorman_json_request(&a->request, &text), DOORMAN_OK);
    assert_string_equal(text.text, DB("\"priority\":1,\"wants\":40"));
    assert_int_equal(receive(a, send_text(w, text.text)), DOORMAN_OK);
    assert_true(is_leased(a, &capacity));
    assert_exact(capacity, 40);

    a->now += 20 * SECOND;
    w->now += 20 * SECOND;
    a->request = next_request(a);
    assert_int_equal(doorman_json_request(&a->request, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"node\":\"ro\\\"ot\",\"capacity\":40,\"expires_in\":40}"));
    assert_int_equal(receive(a, send_text(w, text.text)), DOORMAN_OK);
    assert_exact(granted_sum(w), 40);

    doorman_client_close(a->resource, a->now);
    a->request = next_request(a);
    assert_int_equal(a->request.method, DOORMAN_RELEASE_CAPACITY);
    assert_int_equal(doorman_json_request(&a->request, &text), DOORMAN_OK);
    assert_int_equal(receive(a, send_text(w, text.text)), DOORMAN_OK);
    assert_true(granted_sum(w) <= 0);
    doorman_buffer_uninit(&text);
    client_fixture_stop(a);
    world_stop(w);
}

TEST(a_response_is_accepted_once) {
    client_fixture *a = client_fixture_start();
    double capacity = 0;
    assert_int_equal(receive(a, CLIENT_RESPONSE(GETS)), DOORMAN_OK);
    assert_true(is_leased(a, &capacity));
    assert_exact(capacity, 33.5);
    assert_int_equal(receive(a, CLIENT_RESPONSE(GETS)), DOORMAN_STALE);
    client_fixture_stop(a);
}

TEST(a_redirect_is_followed) {
    client_fixture *a = client_fixture_start();
    assert_int_equal(
        receive(a, "{\"get_capacity\":{\"mastership\":{\"master_address\":\"tcp://there:1\"}}}"),
        DOORMAN_OK);
    assert_string_equal(doorman__upstream_address(doorman_client_upstream(a->client)),
                        "tcp://there:1");
    client_fixture_stop(a);
}

static const struct {
    const char *text, *error;
} invalid_responses[] = {
    {"", "byte 0: not JSON"},
    {"{\"get_capacity\":{\"response\":[]}} ]", "byte 33: not JSON"},
    {"[]", "must be an object with one key"},
    {"{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"stopping\"}}", "UNAVAILABLE: stopping"},
    {"{\"error\":{\"code\":\"UNAVAILABLE\"}}", "error.message: is missing"},
    {"{\"error\":\"no\"}", "error: must be an object"},
    {"{\"put_capacity\":{}}", "no such method: put_capacity"},
    {"{\"get_capacity\":{}}", "get_capacity.response: is missing"},
    {"{\"get_capacity\":{\"response\":[],\"response\":[]}}",
     "get_capacity.response: appears twice"},
    {"{\"get_capacity\":{\"response\":[]}}", "get_capacity: "},
    {"{\"release_capacity\":{}}", "release_capacity: "},
    {"{\"discovery\":{}}", "discovery.is_master: is missing"},
    {"{\"discovery\":{\"is_master\":1}}", "discovery.is_master: must be a boolean"},
    {"{\"get_capacity\":{\"mastership\":{\"master_address\":5}}}",
     "get_capacity.mastership.master_address: must be a string"},
    {CLIENT_RESPONSE("\"x\":1"), "get_capacity.response[0].gets: is missing"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5}"), "get_capacity.response[0].gets.node: is missing"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":\"5\"}"),
     "get_capacity.response[0].gets.id: must be a number"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":1,\"expires_in\":1}"),
     "get_capacity.response[0].gets.refresh_interval: is missing"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":1,\"refresh_interval\":1}"),
     "get_capacity.response[0].gets.expires_in: is missing"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":-3,\"expires_in\":1,"
                     "\"refresh_interval\":1}"),
     "get_capacity.response[0].gets.capacity: " DOORMAN__AMOUNT_RULE},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":3,\"expires_in\":1,"
                     "\"refresh_interval\":0}"),
     "get_capacity: "},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":3,\"expires_in\":1,"
                     "\"refresh_interval\":1,\"whole\":1}"),
     "get_capacity.response[0].gets.whole: must be a boolean"},
    {CLIENT_RESPONSE("\"gets\":{\"id\":5,\"node\":\"n\",\"capacity\":3,\"expires_in\":1,"
                     "\"refresh_interval\":1,\"reason\":1}"),
     "get_capacity.response[0].gets.reason: must be a string"},
    {CLIENT_RESPONSE("\"safe_capacity\":\"2\"," GETS),
     "get_capacity.response[0].safe_capacity: must be a"},
    {CLIENT_RESPONSE("\"learning\":1," GETS),
     "get_capacity.response[0].learning: must be a boolean"},
    {CLIENT_RESPONSE("\"refused\":{\"refresh_interval\":1}"),
     "get_capacity.response[0].refused.reason: is missing"},
    {CLIENT_RESPONSE("\"refused\":{\"reason\":\"NO\",\"refresh_interval\":1}"),
     "get_capacity.response[0].refused.reason: must be one of TRY_LATER, UNMATCHED, FULL"},
    {CLIENT_RESPONSE("\"refused\":{\"reason\":\"FULL\"}"),
     "get_capacity.response[0].refused.refresh_interval: is missing"},
};

/* C5: the error gives the reason. The request has failed, and the client tries the next address. */
TEST(an_invalid_response_is_a_failure) {
    for (size_t i = 0; i < COUNT(invalid_responses); i++) {
        client_fixture *a = client_fixture_start();
        double capacity = 0;
        doorman_status status = receive(a, invalid_responses[i].text);
        bool matches = strncmp(a->error.text, invalid_responses[i].error,
                               strlen(invalid_responses[i].error)) == 0;
        if (!matches || status != DOORMAN_INVALID_ARGUMENT) {
            fail_msg("%s\ngives %s: %s\ninstead of %s", invalid_responses[i].text,
                     doorman_status_name(status), a->error.text, invalid_responses[i].error);
        }
        assert_string_equal(doorman__upstream_address(doorman_client_upstream(a->client)),
                            "tcp://spare:1");
        assert_false(is_leased(a, &capacity));
        client_fixture_stop(a);
    }
}

TEST(a_refusal_is_read_with_its_outcome) {
    static const struct {
        const char *name;
        doorman_outcome outcome;
    } rows[] = {
        {"TRY_LATER", DOORMAN_TRY_LATER}, {"UNMATCHED", DOORMAN_UNMATCHED}, {"FULL", DOORMAN_FULL}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        client_fixture *a = client_fixture_start();
        char text[200];
        snprintf(text, sizeof text,
                 CLIENT_RESPONSE(
                     "\"refused\":{\"reason\":\"%s\",\"refresh_interval\":1},\"safe_capacity\":-1"),
                 rows[i].name);
        assert_int_equal(receive(a, text), DOORMAN_OK);
        doorman_resource_info info;
        doorman_client_read(a->resource, &info, a->now);
        assert_int_equal(info.outcome, rows[i].outcome);
        assert_exact(info.capacity, DOORMAN_UNLIMITED);
        client_fixture_stop(a);
    }
}

/* ---- configurations ---- */

static doorman_config *load(const char *text, doorman_error *error) {
    doorman_config *config = NULL;
    doorman_status status = doorman_json_config(&config, text, strlen(text), error);
    assert_int_equal(status == DOORMAN_OK, config != NULL);
    return config;
}

#define CONFIG(fields) "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":1" fields "}]}"
#define ALGORITHM(fields) CONFIG(",\"algorithm\":{" fields "}")
#define PARAMETERS(list)                                                                           \
    CONFIG(",\"algorithm\":{\"kind\":\"PRIORITY_SHARE\",\"parameters\":[" list "]}")
#define PARAMETER(name, value) "{\"name\":\"" name "\",\"value\":" value "}"

static const char every_field[] =
    "{\"unmatched\":\"allow\",\"resources\":["
    "{\"identifier_glob\":\"a\",\"capacity\":10.5,\"safe_capacity\":-1,\"description\":\"d\","
    "\"unit\":\"u/s\","
    "\"algorithm\":{\"kind\":\"PRIORITY_SHARE\",\"lease_length\":30.5,\"refresh_interval\":2,"
    "\"learning_mode_duration\":0,\"parameters\":["
    "{\"name\":\"minimum_interval\",\"value\":0},"
    "{\"name\":\"minimum_refresh_interval\",\"value\":0.25},"
    "{\"name\":\"decay_factor\",\"value\":\"0.75\"},"
    "{\"name\":\"handover\",\"value\":\"immediate\"},"
    "{\"name\":\"reserve\",\"value\":\"1e-1\"}]}},"
    "{\"identifier_glob\":\"b\",\"capacity\":0,\"algorithm\":{\"kind\":\"STATIC\","
    "\"parameters\":[{\"name\":\"lease_duration_secs\",\"value\":\"20\"},"
    "{\"name\":\"refresh_interval\",\"value\":4},"
    "{\"name\":\"handover\",\"value\":\"confirmed\"}]}},"
    "{\"identifier_glob\":\"c\",\"capacity\":1,\"whole\":true,"
    "\"overload\":{\"target\":0.1,\"capacity_min\":0.5}}]}";

/* G7. The text has every field of a template for leases. */
TEST(a_configuration_can_set_every_field) {
    doorman_config *config = load(every_field, NULL);
    assert_non_null(config);
    doorman_config_options read;
    doorman_config_read(config, &read);
    assert_int_equal(read.template_count, 3);
    const doorman_template *all = read.templates;
    assert_string_equal(all[0].identifier_glob, "a");
    assert_string_equal(all[0].description, "d");
    assert_string_equal(all[0].unit, "u/s");
    assert_string_equal(all[1].unit, "");
    assert_exact(all[0].capacity, 10.5);
    assert_true(all[0].has_safe_capacity);
    assert_exact(all[0].safe_capacity, DOORMAN_UNLIMITED);
    const doorman_algorithm *first = &all[0].algorithm, *second = &all[1].algorithm;
    assert_int_equal(first->kind, DOORMAN_PRIORITY_SHARE);
    assert_int_equal(first->handover, DOORMAN_IMMEDIATE);
    assert_true(first->lease_length == 30 * SECOND + SECOND / 2);
    assert_true(first->refresh_interval == 2 * SECOND);
    assert_true(first->has_learning_mode_duration && first->learning_mode_duration == 0);
    assert_true(first->has_minimum_interval && first->minimum_interval == 0);
    assert_true(first->minimum_refresh_interval == SECOND / 4);
    assert_exact(first->decay_factor, 0.75);
    assert_exact(first->reserve, 0.1);
    assert_int_equal(second->kind, DOORMAN_STATIC_SHARE);
    assert_int_equal(second->handover, DOORMAN_CONFIRMED);
    assert_true(second->lease_length == 20 * SECOND);
    assert_true(second->refresh_interval == 4 * SECOND);
    assert_false(second->has_learning_mode_duration);
    assert_false(all[1].has_safe_capacity);
    assert_int_equal(all[2].algorithm.kind, DOORMAN_FAIR_SHARE);
    assert_true(!all[0].whole && !all[1].whole && all[2].whole);
    assert_true(!all[0].overload.target && all[2].overload.target == SECOND / 10);
    assert_exact(all[2].overload.capacity_min, 0.5);
    doorman_config_destroy(config);
}

/* ---- configurations as text ---- */

/* Returns a valid algorithm. Its durations are exact in JSON: up to 26 days, or whole seconds. */
static doorman_algorithm random_valid_algorithm(void) {
    doorman_algorithm all = random_given_algorithm();
    if (random_below(4) == 0) {
        all.lease_length = (doorman_time)(1 + random_below(100000000)) * SECOND;
    }
    doorman_time longest = all.lease_length ? all.lease_length : 60 * SECOND;
    all.refresh_interval = doorman__earlier(all.refresh_interval, longest);
    if (all.kind != DOORMAN_PRIORITY_SHARE) all.reserve = 0;
    return all;
}

typedef struct random_strings {
    char glob[100], description[100];
} random_strings;

static void random_string(char *out, size_t index, size_t count) {
    static const char *const parts[] = {"db", "/",  "*",        "?",    "[a-z]",
                                        "\\", "\"", "\xc3\xa9", "\x7f", "\xf0\x9f\x98\x80"};
    int bytes = index < count ? snprintf(out, 100, "%zu", index) : 0;
    for (size_t i = random_below(8); i > 0; i--) {
        const char *part = parts[random_below(COUNT(parts))];
        if (*part == 0x7f && index < count) continue; /* not in a glob */
        bytes += snprintf(out + bytes, 100 - (size_t)bytes, "%s", part);
    }
    out[bytes] = 0;
}

static doorman_template random_template(random_strings *strings, size_t index, size_t count) {
    bool whole = random_below(2);
    doorman_template made = {.identifier_glob = strings->glob,
                             .capacity = whole ? (double)random_below(1000) : random_amount(),
                             .has_safe_capacity = random_below(2),
                             .whole = whole,
                             .has_algorithm = random_below(2)};
    random_string(strings->glob, index, count);
    random_string(strings->description, count, count);
    if (index + 1 == count && random_below(2)) made.identifier_glob = "*";
    if (random_below(2)) made.description = strings->description;
    if (random_below(2)) made.unit = random_name();
    if (made.has_safe_capacity) made.safe_capacity = whole ? -1 : random_amount();
    if (made.has_algorithm) made.algorithm = random_valid_algorithm();
    bool divides = made.has_algorithm && DOORMAN_KIND_DIVIDES(made.algorithm.kind);
    if (divides && random_below(2)) {
        made.overload.target = (doorman_time)(1 + random_below(1000)) * SECOND / 1000;
        made.overload.capacity_min = random_below(2) ? made.capacity / 2 : 0;
    }
    return made;
}

static void expect_equal_templates(const doorman_template *one, const doorman_template *two) {
    const doorman_algorithm *first = &one->algorithm, *second = &two->algorithm;
    assert_string_equal(one->identifier_glob, two->identifier_glob);
    assert_string_equal(one->description, two->description);
    assert_string_equal(one->unit, two->unit);
    assert_exact(one->capacity, two->capacity);
    assert_int_equal(one->has_safe_capacity, two->has_safe_capacity);
    assert_exact(one->safe_capacity, two->safe_capacity);
    assert_int_equal(one->whole, two->whole);
    assert_true(one->overload.target == two->overload.target);
    assert_exact(one->overload.capacity_min, two->overload.capacity_min);
    assert_int_equal(first->kind, second->kind);
    assert_int_equal(first->handover, second->handover);
    assert_int_equal(first->lease_length, second->lease_length);
    assert_int_equal(first->refresh_interval, second->refresh_interval);
    assert_int_equal(first->has_learning_mode_duration, second->has_learning_mode_duration);
    assert_int_equal(first->learning_mode_duration, second->learning_mode_duration);
    assert_int_equal(first->minimum_interval, second->minimum_interval);
    assert_int_equal(first->minimum_refresh_interval, second->minimum_refresh_interval);
    assert_exact(first->decay_factor, second->decay_factor);
    assert_exact(first->reserve, second->reserve);
}

/* Writes options, reads the text, and compares the result with a configuration. Returns the
 * text. */
static char *expect_written(const doorman_config_options *options, const doorman_config *config) {
    doorman_buffer text = {0};
    doorman_config_options first, second;
    assert_int_equal(doorman_json_write_config(options, &text), DOORMAN_OK);
    assert_int_equal(strlen(text.text), text.bytes);
    doorman_config *again = load(text.text, NULL);
    assert_non_null(again);
    doorman_config_read(config, &first);
    doorman_config_read(again, &second);
    assert_int_equal(first.template_count, second.template_count);
    assert_int_equal(first.reject_unmatched, second.reject_unmatched);
    for (size_t i = 0; i < first.template_count; i++) {
        expect_equal_templates(&first.templates[i], &second.templates[i]);
    }
    doorman_config_destroy(again);
    return text.text;
}

/* The configuration was made from the options, or the options were read from it. */
TEST(a_written_configuration_makes_an_equal_one) {
    random_strings strings[6];
    doorman_template templates[6];
    for (int round = 0; round < 2000; round++) {
        doorman_config_options options = {.templates = templates,
                                          .template_count = random_below(7),
                                          .reject_unmatched = random_below(2)};
        for (size_t i = 0; i < options.template_count; i++) {
            templates[i] = random_template(&strings[i], i, options.template_count);
        }
        doorman_config *config = NULL;
        doorman_error error = {0};
        if (doorman_config_create(&config, &options, &error) != DOORMAN_OK)
            fail_msg("%s", error.text);
        char *given = expect_written(&options, config);
        doorman_config_read(config, &options);
        char *read = expect_written(&options, config);
        free(given);
        free(read);
        doorman_config_destroy(config);
    }
}

/* Fields that have their default value are left out, except the lease length and the refresh
 * interval of an algorithm. */
TEST(a_written_configuration_is_short_and_has_a_line_for_each_template) {
    const doorman_template templates[] = {
        {.identifier_glob = "a", .capacity = 0.1},
        {.identifier_glob = "b*",
         .description = "\"b\"",
         .unit = "q/s",
         .capacity = 10,
         .has_safe_capacity = true,
         .safe_capacity = DOORMAN_UNLIMITED,
         .whole = true,
         .has_algorithm = true,
         .algorithm = {.kind = DOORMAN_PRIORITY_SHARE,
                       .handover = DOORMAN_IMMEDIATE,
                       .lease_length = 30 * SECOND,
                       .has_learning_mode_duration = true,
                       .has_minimum_interval = true,
                       .decay_factor = 1.0 / 3,
                       .reserve = 1e-7}},
    };
    const doorman_config_options options = {
        .templates = templates, .template_count = 2, .reject_unmatched = true};
    doorman_buffer text = {0};
    assert_int_equal(doorman_json_write_config(&options, &text), DOORMAN_OK);
    assert_string_equal(
        text.text, "{\"unmatched\":\"reject\",\"resources\":[\n"
                   "{\"identifier_glob\":\"a\",\"capacity\":0.1},\n"
                   "{\"identifier_glob\":\"b*\",\"description\":\"\\\"b\\\"\","
                   "\"unit\":\"q/s\",\"capacity\":10,"
                   "\"safe_capacity\":-1,\"whole\":true,\"algorithm\":{\"kind\":\"PRIORITY_SHARE\","
                   "\"lease_length\":30,\"refresh_interval\":10,\"learning_mode_duration\":0,"
                   "\"parameters\":[{\"name\":\"minimum_interval\",\"value\":0},"
                   "{\"name\":\"decay_factor\",\"value\":0.3333333333333333},"
                   "{\"name\":\"reserve\",\"value\":1e-07},"
                   "{\"name\":\"handover\",\"value\":\"immediate\"}]}}]}");
    const doorman_config_options none = {.template_count = 0};
    assert_int_equal(doorman_json_write_config(&none, &text), DOORMAN_OK);
    assert_string_equal(text.text, "{\"resources\":[]}");
    doorman_buffer_uninit(&text);
}

/* Returns the number of significant digits of a number. */
static int significant_digits(const char *text) {
    int count = 0, zeros = 0;
    bool fraction = strchr(text, '.') != NULL;
    for (; *text && *text != 'e'; text++) {
        if (*text < '0' || *text > '9') continue;
        if (*text == '0' && count == 0) continue;
        zeros = *text == '0' ? zeros + 1 : 0;
        count++;
    }
    return fraction ? count : count - zeros;
}

TEST(numbers_of_a_configuration_have_the_fewest_digits) {
    doorman_buffer text = {0};
    for (int i = 0; i < 20000; i++) {
        char shortest[40];
        double amount = random_amount();
        int digits = 1;
        do {
            snprintf(shortest, sizeof shortest, "%.*e", digits - 1, amount);
        } while (strtod(shortest, NULL) != amount && ++digits <= 17);
        doorman__writer out = doorman__put_start(&text);
        doorman__put(&out, "%x", amount);
        assert_int_equal(doorman__put_end(&out), DOORMAN_OK);
        assert_true(strtod(text.text, NULL) == amount);
        if (amount > 0) assert_in_range(significant_digits(text.text), 1, digits);
    }
    doorman_buffer_uninit(&text);
}

TEST(each_kind_has_its_name) {
    for (int kind = 0; kind < DOORMAN_KIND_COUNT; kind++) {
        char text[200];
        snprintf(text, sizeof text, ALGORITHM("\"kind\":\"%s\""), doorman__kind_names[kind]);
        doorman_config *config = load(text, NULL);
        assert_non_null(config);
        assert_int_equal(doorman_config_find(config, "x")->algorithm.kind, kind);
        doorman_config_destroy(config);
    }
}

#define AT "resources[0]."
#define IN AT "algorithm."
#define KIND "\"kind\":\"FAIR_SHARE\","
static const struct {
    const char *text, *error;
} wrong_configs[] = {
    {"[]", "must be an object"},
    {"{}", "resources: is missing"},
    {"{\"resources\":{}}", "resources: must be a list"},
    {"{\"resources\":[],\"resources\":[]}", "resources: appears twice"},
    {"{\"resources\":[],\"a:b?c\":1}", "a:b?c: is not known"},
    {"{\"resources\":[],\"\":1}", "is not known"},
    {"{\"resources\":[],\"resources:o unmatched\":1}", "resources:o unmatched: is not known"},
    {"{\"resources\":[],\"unmatched\":\"no\"}", "unmatched: must be one of allow, reject"},
    {"{\"resources\":[],\"unmatched\":false}", "unmatched: must be a string"},
    {"{\"resources\":[3]}", "resources[0]: must be an object"},
    {"{\"resources\":[{\"capacity\":1}]}", AT "identifier_glob: is missing"},
    {"{\"resources\":[{\"identifier_glob\":\"*\"}]}",
     AT "capacity: is missing; a template needs `capacity` or `limits`"},
    {CONFIG(",\"color\":1"), AT "color: is not known"},
    {CONFIG(",\"capacity\":1"), AT "capacity: appears twice"},
    {CONFIG(",\"description\":1"), AT "description: must be a string"},
    {CONFIG(",\"unit\":1"), AT "unit: must be a string"},
    {CONFIG(",\"unit\":\"123456789012345678901234567890123\""),
     AT "unit: must be at most 32 bytes of UTF-8 without control characters"},
    {CONFIG(",\"unit\":\"a\\n\""), AT "unit: must be at most 32 bytes"},
    {CONFIG(",\"safe_capacity\":-2"), AT "safe_capacity: must be -1"},
    {CONFIG(",\"whole\":1"), AT "whole: must be a boolean"},
    {CONFIG(",\"whole\":true,\"safe_capacity\":2.5"), AT "safe_capacity: must be an integer"},
    {ALGORITHM(KIND "\"whole\":true"), IN "whole: is not known"},
    {CONFIG(",\"algorithm\":\"STATIC\""), AT "algorithm: must be an object"},
    {ALGORITHM(""), IN "kind: is missing"},
    {ALGORITHM("\"kind\":\"BEST\""), IN "kind: must be one of FAIR_SHARE, PROPORTIONAL_SHARE, "
                                        "PRIORITY_SHARE, STATIC, NO_ALGORITHM"},
    {ALGORITHM("\"kind\":1"), IN "kind: must be a string"},
    {ALGORITHM(KIND "\"lease\":1"), IN "lease: is not known"},
    {ALGORITHM(KIND "\"lease_length\":0"), IN "lease_length: must be more than 0"},
    {ALGORITHM(KIND "\"lease_length\":-4"), IN "lease_length: must be more than 0"},
    {ALGORITHM(KIND "\"lease_length\":\"60\""), IN "lease_length: must be a number"},
    {ALGORITHM(KIND "\"lease_length\":1e9"),
     IN "lease_length: must be more than 0 and at most 1e8"},
    {ALGORITHM(KIND "\"refresh_interval\":0"), IN "refresh_interval: must be more than 0"},
    {ALGORITHM(KIND "\"lease_length\":5,\"refresh_interval\":6"), IN "refresh_interval: must be"},
    {ALGORITHM(KIND "\"learning_mode_duration\":-1"), IN "learning_mode_duration: must be from 0"},
    {ALGORITHM(KIND "\"parameters\":{}"), IN "parameters: must be a list"},
    {PARAMETERS("{\"name\":\"reserve\"}"), IN "parameters[0].value: is missing"},
    {PARAMETERS("{\"value\":1}"), IN "parameters[0].name: is missing"},
    {PARAMETERS(PARAMETER("speed", "1")), IN "parameters[0].name: must be one of lease_duration_"},
    {PARAMETERS("{\"name\":\"reserve\",\"value\":1,\"unit\":1}"), IN "parameters[0].unit: is not"},
    {PARAMETERS(PARAMETER("reserve", "0") "," PARAMETER("reserve", "0")),
     IN "parameters[1].name: is set already"},
    {ALGORITHM(KIND
               "\"lease_length\":60,\"parameters\":[" PARAMETER("lease_duration_secs", "60") "]"),
     IN "parameters[0].name: is set already"},
    {ALGORITHM(KIND
               "\"refresh_interval\":6,\"parameters\":[" PARAMETER("refresh_interval", "6") "]"),
     IN "parameters[0].name: is set already"},
    {PARAMETERS(PARAMETER("reserve", "\"one\"")), IN "parameters[0].value: must be a number"},
    {PARAMETERS(PARAMETER("reserve", "\"[1]\"")), IN "parameters[0].value: must be a number"},
    {PARAMETERS(PARAMETER("reserve", "true")), IN "parameters[0].value: must be a number"},
    {PARAMETERS(PARAMETER("reserve", "2")), IN "parameters[0].value: must be from 0 to 1"},
    {PARAMETERS(PARAMETER("decay_factor", "0")), IN "parameters[0].value: must be more than 0"},
    {PARAMETERS(PARAMETER("decay_factor", "2")), IN "parameters[0].value: must be more than 0"},
    {PARAMETERS(PARAMETER("decay_factor", "-1")), IN "parameters[0].value: must be more than 0"},
    {PARAMETERS(PARAMETER("decay_factor", "[]")), IN "parameters[0].value: must be a number"},
    {PARAMETERS("0"), IN "parameters[0]: must be an object"},
    {ALGORITHM("\"kind\":\"BEST\",\"lease_length\":0"), IN "kind: must be one of FAIR_SHARE, "},
    {ALGORITHM(KIND "\"parameters\":\"[]\""), IN "parameters: must be a list"},
    {PARAMETERS(PARAMETER("minimum_refresh_interval", "0")),
     IN "parameters[0].value: must be more than 0"},
    {PARAMETERS(PARAMETER("minimum_interval", "-1")), IN "parameters[0].value: must be from 0"},
    {PARAMETERS(PARAMETER("handover", "\"never\"")),
     IN "parameters[0].value: must be one of confirmed, immediate"},
    {PARAMETERS(PARAMETER("handover", "1")), IN "parameters[0].value: must be a string"},
    {"{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":1},"
     "{\"identifier_glob\":\"a\",\"capacity\":1}]}",
     AT "identifier_glob: \"*\" must be the last template"},
    {"{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1},"
     "{\"identifier_glob\":\"b\",\"capacity\":\"1\"}]}",
     "resources[1].capacity: must be a number"},
};
#undef AT
#undef IN
#undef KIND

/* G4: the whole configuration is refused, with the path of the field and what was expected. */
TEST(an_error_in_a_configuration_names_the_field) {
    for (size_t i = 0; i < COUNT(wrong_configs); i++) {
        doorman_error error = {0};
        int prefix = 0;
        assert_null(load(wrong_configs[i].text, &error));
        (void)sscanf(error.text, "line 1, column %*u: %n", &prefix);
        assert_true(prefix > 0);
        const char *text = error.text + prefix;
        if (strncmp(text, wrong_configs[i].error, strlen(wrong_configs[i].error)) != 0) {
            fail_msg("%s\ngives the error %s\ninstead of      %s", wrong_configs[i].text, text,
                     wrong_configs[i].error);
        }
        assert_null(load(wrong_configs[i].text, NULL));
    }
}

/* Each text has one error. */
static const struct {
    const char *text;
    size_t line, column;
    const char *error;
} misplaced[] = {
    /* not JSON */
    {"", 1, 1, "not JSON: the text is empty"},
    {"\n\n", 3, 1, "not JSON: the text is empty"},
    {"\xef\xbb\xbf{}", 1, 1, "not JSON: the text begins with a byte-order mark; save it as UTF-8"},
    {"\xff\xfe{", 1, 1, "not JSON: the text is UTF-16; save it as UTF-8"},
    {"\xfe\xff", 1, 1, "not JSON: the text is UTF-16; save it as UTF-8"},
    {"# no comments\n{}", 1, 1, "not JSON: expected a value"},
    {"{\"resources\": []} x", 1, 19, "not JSON: expected the end of the text"},
    {"{\n  resources: []\n}", 2, 3, "not JSON: expected a key in double quotes"},
    {"{\n  'resources': []\n}", 2, 3, "not JSON: expected a key in double quotes"},
    {"{\n  \"resources\": [],\n}", 3, 1, "not JSON: expected a key in double quotes"},
    {"{\n  \"resources\" []\n}", 2, 15, "not JSON: expected a colon"},
    {"{\n  \"resources\": [1 2]\n}", 2, 19, "not JSON: expected a comma or ]"},
    {"{\n  \"resources\": []\n  \"unmatched\": 1\n}", 3, 3, "not JSON: expected a comma or }"},
    {"{\r\n  \"resources\": [\r\n  1,\r\n  ]\r\n}", 4, 3, "not JSON: expected a value"},
    {"{\n  \"resources\": [\n", 3, 1, "not JSON: the text ends in the middle: expected a value"},
    {"{\n  \"resources\": [{}\n", 3, 1,
     "not JSON: the text ends in the middle: expected a comma or ]"},
    {"{\n  \"resour", 2, 10, "not JSON: the text ends in the middle: expected a double quote"},
    {"{\n  \"resources\": [01]}", 2, 18, "not JSON: expected a comma or ]"},
    {"{\n  \"resources\": True}", 2, 16, "not JSON: expected a value"},
    {"{\n\t\"resources: []\n}", 2, 16, "not JSON: expected a double quote at the end"},
    {"{\"resources\": \"\xc3\xa9\xe2\x82\xac\xff\"}", 1, 18, "not JSON: expected UTF-8"},
    {"{\"resources\": \"\xc3\xa9\\q\"}", 1, 18, "not JSON: expected an escape"},
    /* a wrong value, or an unknown key: the key */
    {"{\"resources\":\n  {}}", 1, 2, "resources: must be a list"},
    {"{\n \"\xc3\xa9\": [1, {\"a\": 2}], \"color\": 1,\n  \"resources\": [\n3]}", 4, 1, ""},
    {"{\"resources\": [],\n \"unmatched\": \"no\"}", 2, 2, "unmatched: must be one of allow"},
    {"{\"resources\": [],\n \"resources\": []}", 2, 2, "resources: appears twice"},
    {"\n[1]", 2, 1, "must be an object"},
    {"{\"resources\": [\n {\"identifier_glob\": \"a\", \"capacity\": 1},\n"
     " {\"identifier_glob\": \"b\", \"capacity\":\n-1}]}",
     3, 27, "resources[1].capacity: must be a finite number"},
    {"{\"resources\": [{\"identifier_glob\": \"[\\\"{\\u00e9,\", \"capacity\": 1,\n\"size\": 2}]}",
     2, 1, "resources[0].size: is not known"},
    /* a missing field: the object */
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 1},\n  {\"capacity\": 1}]}", 2, 3,
     "resources[1].identifier_glob: is missing"},
    {" {}", 1, 2, "resources: is missing"},
    /* rules that combine several fields */
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 2.5,\n\"whole\": true}]}", 1, 41,
     "resources[0].capacity: must be an integer"},
    {"{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1},\n"
     "{\"identifier_glob\": \"a\", \"capacity\": 1}]}",
     1, 17, "resources[0].identifier_glob: \"*\" must be the last"},
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 1},\n"
     "{\"capacity\": 1, \"identifier_glob\": \"a\"}]}",
     2, 17, "resources[1].identifier_glob: equals that of resources[0]"},
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 1,\n\"algorithm\": {\"kind\": "
     "\"FAIR_SHARE\",\n\"lease_length\": 5, \"refresh_interval\": 6}}]}",
     3, 20, "resources[0].algorithm.refresh_interval: must be at most"},
    /* a parameter: there is no key of this name, so the algorithm */
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 1,\n\"algorithm\": {\"kind\": "
     "\"STATIC\",\n\"parameters\": [{\"name\": \"reserve\", \"value\": 1}]}}]}",
     2, 1, "resources[0].algorithm.reserve: only PRIORITY_SHARE"},
};

/* G4 */
TEST(an_error_in_a_configuration_has_its_line_and_column) {
    for (size_t i = 0; i < COUNT(misplaced); i++) {
        const char *text = misplaced[i].text;
        doorman_config_problem problems[4];
        doorman_error error;
        char position[64];
        doorman_config_problems list = {.items = problems, .room = 4, .count = 77};
        doorman_status status = doorman_json_check_config(NULL, text, strlen(text), &list);
        const doorman_config_problem *last = &problems[list.count - 1];
        assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
        assert_in_range(list.count, 1, 4);
        bool same = last->line == misplaced[i].line && last->column == misplaced[i].column &&
                    strncmp(last->error.text, misplaced[i].error, strlen(misplaced[i].error)) == 0;
        if (!same) {
            fail_msg("%s\ngives %zu:%zu: %s", text, last->line, last->column, last->error.text);
        }
        assert_null(load(text, &error));
        snprintf(position, sizeof position, "line %zu, column %zu: ", problems[0].line,
                 problems[0].column);
        assert_int_equal(strncmp(error.text, position, strlen(position)), 0);
        assert_int_equal(strstr(error.text, " more)") != NULL, list.count > 1);
    }
}

static const char valid_config[] =
    "{\n"
    "  \"resources\": [\n"
    "    {\"identifier_glob\": \"a\", \"description\": \"\xc3\xa9\\n\\ud83d\\ude00\", "
    "\"capacity\": 1},\r\n"
    "\t{\"identifier_glob\": \"*\", \"capacity\": 2.5e1, \"safe_capacity\": -1,\n"
    "      \"algorithm\": {\"kind\": \"FAIR_SHARE\", \"lease_length\": 20, \"refresh_interval\": "
    "5,\n"
    "        \"parameters\": [{\"name\": \"decay_factor\", \"value\": \"0.5\"}, {\"name\":\n"
    "          \"minimum_interval\", \"value\": 0}]}}\n"
    "  ],\n"
    "  \"unmatched\": \"reject\"\n"
    "}\n";

/* Each text is the start of a configuration, or the whole configuration with one random byte. If it
 * is not JSON, the error of a message with the same text has the number of the byte. Both errors
 * name the same rule of the syntax, except for the empty text. */
TEST(the_line_and_column_of_a_syntax_error_are_those_of_its_byte) {
    size_t wrong_count = 0;
    for (size_t i = 0; i < 2 * sizeof valid_config; i++) {
        char text[sizeof valid_config];
        doorman_config_problem problem;
        doorman_json_exchange exchange = {.kept = NULL};
        doorman_config_problems list = {.items = &problem, .room = 1};
        size_t bytes = i / 2, byte = 0, line = 1, column = 1;
        memcpy(text, valid_config, sizeof text);
        if (i % 2 && bytes < sizeof text - 1) {
            text[bytes] = "x\"{}[],:\\\n"[random_below(10)];
            bytes = sizeof text - 1;
        }
        (void)doorman_json_check_config(NULL, text, bytes, &list);
        (void)doorman_json_exchange_read(&exchange, NULL, text, bytes);
        bool is_json = sscanf(exchange.error.text, "byte %zu: ", &byte) != 1;
        for (size_t k = 0; k < byte; k++) {
            if (text[k] == '\n') line++, column = 0;
            if ((signed char)text[k] >= -0x40) column++; /* not the second byte of a character */
        }
        if (!is_json) {
            wrong_count++;
            assert_int_equal(list.count, 1);
            assert_int_equal(problem.line, line);
            assert_int_equal(problem.column, column);
            const char *rule = strstr(exchange.error.text, ": ") + 2;
            if (strncmp(rule, "not JSON: ", 10) == 0) rule += 10;
            if (bytes > 0) assert_non_null(strstr(problem.error.text, rule));
        }
        doorman_json_exchange_uninit(&exchange);
    }
    assert_true(wrong_count > sizeof valid_config);
}

#define MANY                                                                                       \
    "{\"colour\": 1, \"resources\": [\n"                                                           \
    "{\"identifier_glob\": \"a\", \"capacity\": \"1\", \"whole\": 0},\n"                           \
    "{\"identifier_glob\": \"\", \"capacity\": 1.5, \"whole\": true},\n"                           \
    "{\"identifier_glob\": \"c\", \"capacity\": 1},\n"                                             \
    "7,\n"                                                                                         \
    "{\"size\": 1, \"size\": 2, \"kind\": 3},\n"                                                   \
    "{\"identifier_glob\": \"c\", \"capacity\": 1, \"algorithm\": {\"kind\": \"FAIR\", "           \
    "\"lease_length\": 0, \"parameters\": [0, {\"name\": \"speed\"}, {\"name\": \"reserve\", "     \
    "\"value\": 2}]}},\n"                                                                          \
    "{\"identifier_glob\": \"c\", \"capacity\": 1, \"algorithm\": {\"kind\": \"STATIC\",\n"        \
    "\"lease_length\": 5, \"refresh_interval\": 6, \"parameters\": [{\"name\": \"reserve\", "      \
    "\"value\": 1}]}}],\n"                                                                         \
    "\"unmatched\": true}"

static const char *const many_errors[] = {
    "6:13: resources[4].size: appears twice",
    "1:2: colour: is not known",
    "2:26: resources[0].capacity: must be a number",
    "2:43: resources[0].whole: must be a boolean",
    "3:2: resources[1].identifier_glob: must be 1 to 256 bytes of UTF-8 without control characters",
    "3:25: resources[1].capacity: must be an integer, since \"whole\" is true",
    "5:1: resources[3]: must be an object",
    "6:2: resources[4].size: is not known",
    "6:13: resources[4].size: is not known",
    "6:24: resources[4].kind: is not known",
    "6:1: resources[4].identifier_glob: is missing",
    "6:1: resources[4].capacity: is missing; a template needs `capacity` or `limits`",
    "7:55: resources[5].algorithm.kind: must be one of FAIR_SHARE, PROPORTIONAL_SHARE, "
    "PRIORITY_SHARE, STATIC, NO_ALGORITHM",
    "7:71: resources[5].algorithm.lease_length: must be more than 0 and at most 1e8 seconds",
    "7:105: resources[5].algorithm.parameters[0]: must be an object",
    "7:108: resources[5].algorithm.parameters[1].value: is missing",
    "7:109: resources[5].algorithm.parameters[1].name: must be one of lease_duration_secs, "
    "refresh_interval, minimum_interval, minimum_refresh_interval, decay_factor, reserve, handover",
    "7:147: resources[5].algorithm.parameters[2].value: must be from 0 to 1",
    "9:20: resources[6].algorithm.refresh_interval: must be at most the lease_length",
    "8:41: resources[6].algorithm.reserve: only PRIORITY_SHARE has one",
    "8:2: resources[6].identifier_glob: equals that of resources[2], so it would never be used",
    "10:1: unmatched: must be a string",
};

/* G4 */
TEST(all_errors_of_a_configuration_are_listed) {
    static const char text[] = MANY;
    doorman_config_problem problems[40];
    doorman_config *config = NULL;
    doorman_config_problems list = {.items = problems, .room = 40};
    doorman_status status = doorman_json_check_config(&config, text, sizeof text - 1, &list);
    assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
    assert_null(config);
    for (size_t i = 0; i < list.count || i < COUNT(many_errors); i++) {
        char found[600] = "";
        if (i < list.count) {
            snprintf(found, sizeof found, "%zu:%zu: %s", problems[i].line, problems[i].column,
                     problems[i].error.text);
        }
        assert_string_equal(found, i < COUNT(many_errors) ? many_errors[i] : "");
    }
}

/* The array of the caller receives the first errors, and the count includes all errors. */
TEST(a_list_of_errors_fits_the_room_that_is_given) {
    static const char text[] = MANY;
    doorman_config_problem problems[40], all[40];
    doorman_config_problems every = {.items = all, .room = 40};
    assert_int_equal(doorman_json_check_config(NULL, text, sizeof text - 1, NULL),
                     DOORMAN_INVALID_ARGUMENT);
    (void)doorman_json_check_config(NULL, text, sizeof text - 1, &every);
    for (size_t room = 0; room < 40; room++) {
        doorman_config_problems list = {.items = room ? problems : NULL, .room = room};
        memset(problems, 0x55, sizeof problems);
        assert_int_equal(doorman_json_check_config(NULL, text, sizeof text - 1, &list),
                         DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(list.count, COUNT(many_errors));
        for (size_t i = 0; i < 40; i++) {
            if (i >= room || i >= list.count) {
                assert_int_equal(problems[i].line, (size_t)0x5555555555555555);
            } else {
                assert_int_equal(problems[i].line, all[i].line);
                assert_int_equal(problems[i].column, all[i].column);
                assert_string_equal(problems[i].error.text, all[i].error.text);
            }
        }
    }
    doorman_error error;
    assert_null(load(text, &error));
    assert_string_equal(error.text, "line 6, column 13: resources[4].size: appears twice "
                                    "(and 21 more)");
}

/* An object with more than 16 keys is checked in another way than a small object. */
TEST(each_key_that_appears_twice_is_listed) {
    static const char text[] =
        "{\"resources\":[],\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,"
        "\"k\":1,\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"b\":1,\"q\":1,\"c\":1,\"b\":1}";
    doorman_config_problem problems[40];
    doorman_config_problems list = {.items = problems, .room = 40};
    size_t twice = 0;
    (void)doorman_json_check_config(NULL, text, sizeof text - 1, &list);
    assert_in_range(list.count, 0, 40);
    for (size_t i = 0; i < list.count; i++) {
        if (!strstr(problems[i].error.text, "appears twice")) continue;
        char key = text[problems[i].column];
        assert_true(key == problems[i].error.text[0] && (key == 'b' || key == 'c'));
        twice++;
    }
    assert_int_equal(twice, 3);
    assert_int_equal(list.count, 3 + 19); /* 19 keys are not known */
}

/* After an allocation has failed, the list of errors would be incomplete, so it has one error. */
TEST(without_memory_the_only_error_says_so) {
    static const char text[] = MANY;
    size_t blocks = memory_blocks(), n = 0, failures = 0;
    bool works = false;
    do {
        doorman_config_problem problems[4];
        doorman_config_problems list = {.items = problems, .room = 4};
        memory_fails_at(++n);
        doorman_status status = doorman_json_check_config(NULL, text, sizeof text - 1, &list);
        works = memory_works();
        if (status == DOORMAN_OUT_OF_MEMORY) {
            failures++;
            assert_int_equal(list.count, 1);
            assert_int_equal(problems[0].line, 0);
            assert_string_equal(problems[0].error.text, "out of memory");
        } else {
            assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
            assert_int_equal(list.count, COUNT(many_errors));
        }
        assert_int_equal(memory_blocks(), blocks);
    } while (!works && n < 1000);
    assert_true(works);
    assert_int_equal(failures, n - 1);
}

/* C4: if memory is missing for a list of the configuration, no error calls this list wrong. */
TEST(without_memory_a_good_configuration_has_no_other_error) {
    static const char text[] =
        "{\"shadow\": [\"s*\"], \"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 5, "
        "\"algorithm\": {\"kind\": \"PRIORITY_SHARE\", \"lease_length\": 60, "
        "\"refresh_interval\": 5, \"parameters\": [{\"name\": \"reserve\", \"value\": "
        "\"0.1\"}]}, \"limits\": [{\"name\": \"l\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, "
        "\"window\": 60, \"keys\": [\"x*\"], \"overrides\": [{\"keys\": [\"xy\"], \"limit\": "
        "3}]}, {\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": "
        "1, \"active\": 1}]}]}]}";
    size_t blocks = memory_blocks();
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    for (size_t n = 1; status != DOORMAN_OK && n < 1000; n++) {
        doorman_config *config = NULL;
        doorman_error error = {0};
        memory_fails_at(n);
        status = doorman_json_config(&config, text, sizeof text - 1, &error);
        bool works = memory_works();
        if (status != DOORMAN_OK) assert_string_equal(error.text, "out of memory");
        assert_int_equal(status, works ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
        doorman_config_destroy(config);
        assert_int_equal(memory_blocks(), blocks);
    }
    assert_int_equal(status, DOORMAN_OK);
}

/* G4. One of the first two bytes is 0. */
TEST(utf_16_without_a_mark_is_named) {
    static const char *const orders[] = {"{\0}\0", "\0{\0}"};
    for (size_t i = 0; i < COUNT(orders); i++) {
        doorman_config_problem problem;
        doorman_config_problems list = {.items = &problem, .room = 1};
        assert_int_equal(doorman_json_check_config(NULL, orders[i], 4, &list),
                         DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(list.count, 1);
        assert_string_equal(problem.error.text, "not JSON: the text is UTF-16; save it as UTF-8");
    }
}

/* C7, V5 */
TEST(a_configuration_that_is_too_large_has_one_error) {
    doorman_config_problem problems[4];
    doorman_config_problems list = {.items = problems, .room = 4};
    char *text = repeat("{\"resources\":[", "{},", 10000, "{}]}");
    assert_int_equal(doorman_json_check_config(NULL, text, strlen(text), &list),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(list.count, 1);
    assert_int_equal(problems[0].column, 2);
    assert_string_equal(problems[0].error.text, "resources: at most 10000, not 10001");
    free(text);
    text = repeat("\n", "[", 33, "");
    assert_int_equal(doorman_json_check_config(NULL, text, strlen(text), &list),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(list.count, 1);
    assert_int_equal(problems[0].line, 2);
    assert_int_equal(problems[0].column, 34);
    assert_string_equal(problems[0].error.text, "nested deeper than 32 levels");
    free(text);
    assert_int_equal(doorman_json_check_config(NULL, NULL, DOORMAN_MESSAGE_BYTES_MAX + 1, &list),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(list.count, 1);
    assert_int_equal(problems[0].line, 0);
    assert_string_equal(problems[0].error.text, "larger than 4 MiB");
}

static const struct {
    const char *text, *warnings[4];
} warned_configs[] = {
    {"{\"resources\":\n[]}", {"1:2: resources: is empty, so nothing is limited"}},
    {"{\"unmatched\": \"reject\",\n \"resources\": []}",
     {"2:2: resources: is empty, so all requests are refused"}},
    {"{\"resources\": [{\"identifier_glob\": \"[a]\", \"capacity\": 1},\n"
     "{\"identifier_glob\": \"\\\\[a\", \"capacity\": 1}]}",
     {NULL}},
    {"{\"resources\": [{\"identifier_glob\": \"a\", \"capacity\": 1},\n"
     "{\"identifier_glob\": \"[a]/[b\", \"capacity\": 1,\n"
     "\"algorithm\": {\"kind\": \"FAIR_SHARE\", \"lease_length\": 16,\n"
     "\"refresh_interval\": 16,\n\"learning_mode_duration\": 0}}]}",
     {"2:2: resources[1].identifier_glob: a [ has no ], so it is an ordinary character; "
      "write \\[ if this is intended",
      "4:1: resources[1].algorithm.refresh_interval: equals the lease_length, so a lease can end "
      "before its holder has renewed it",
      "5:1: resources[1].algorithm.learning_mode_duration: 0 s is shorter than the longest lease, "
      "16.8 s with clock drift: after a change of master, more than the capacity may be in use"}},
};

/* G9 */
TEST(warnings_about_a_configuration_have_a_position) {
    for (size_t i = 0; i < COUNT(warned_configs); i++) {
        const char *text = warned_configs[i].text, *const *warnings = warned_configs[i].warnings;
        doorman_config_problem problems[4];
        doorman_config *config = NULL;
        doorman_config_problems list = {.items = problems, .room = 4, .count = 77};
        assert_int_equal(doorman_json_check_config(&config, text, strlen(text), &list), DOORMAN_OK);
        assert_non_null(config);
        doorman_config_destroy(config);
        for (size_t k = 0; k < list.count || warnings[k]; k++) {
            char found[600] = "";
            if (k < list.count) {
                snprintf(found, sizeof found, "%zu:%zu: %s", problems[k].line, problems[k].column,
                         problems[k].error.text);
            }
            assert_string_equal(found, warnings[k] ? warnings[k] : "");
        }
        doorman_error error = {.text = "an old text"};
        config = load(text, &error);
        assert_non_null(config);
        assert_int_equal(error.text[0] != 0, list.count > 0);
        doorman_config_destroy(config);
    }
}

/* V5: a long path is cut, but the rule behind the path is not cut. */
TEST(a_long_key_does_not_hide_the_error_text) {
    doorman_error error = {0};
    char *text = repeat("{\"resources\":[],\"", "\xc3\xa9", 1000, "\":1}");
    assert_null(load(text, &error));
    assert_non_null(strstr(error.text, ": is not known"));
    free(text);
}

/* ---- all ---- */

static void *cjson_malloc(size_t bytes) { return unit_malloc(bytes); }
static void cjson_free(void *block) { unit_free(block); }

__attribute__((constructor)) static void use_allocator(void) {
    cJSON_InitHooks(&(cJSON_Hooks){cjson_malloc, cjson_free});
}

/* Checks that the first warning about a configuration in JSON begins with `expected` behind its
 * position. If `expected` is "", there must be no warning. */
static void expect_warning(const char *json, const char *expected) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_json_config(&config, json, strlen(json), &error), DOORMAN_OK);
    const char *text = strstr(error.text, ": ");
    text = text ? text + 2 : error.text;
    if (strncmp(text, expected, strlen(expected)) != 0 || (!*expected && *text)) {
        fail_msg("%s\n  has the warning: %s\n  not: %s", json, text, expected);
    }
    doorman_config_destroy(config);
}

#define ONE(more) "{\"resources\": [{\"identifier_glob\": \"a\", " more "}]}"
#define LIMITS(more) ONE("\"limits\": [{\"name\": \"n\", " more "}]")

/* G9 */
TEST(a_lease_above_an_hour_causes_a_warning) {
    expect_warning(ONE("\"capacity\": 1, \"algorithm\": {\"kind\": \"FAIR_SHARE\", "
                       "\"lease_length\": 3600, \"refresh_interval\": 60}"),
                   "");
    expect_warning(ONE("\"capacity\": 1, \"algorithm\": {\"kind\": \"FAIR_SHARE\", "
                       "\"lease_length\": 3601, \"refresh_interval\": 60}"),
                   "resources[0].algorithm.lease_length: 3601 s is long");
}

TEST(a_safe_capacity_above_the_capacity_causes_a_warning) {
    expect_warning(ONE("\"capacity\": 10, \"safe_capacity\": 10"), "");
    expect_warning(ONE("\"capacity\": 10, \"safe_capacity\": -1"), "");
    expect_warning(ONE("\"capacity\": 10, \"safe_capacity\": 11"),
                   "resources[0].safe_capacity: 11 is above the capacity 10, so");
}

TEST(a_long_window_that_is_empty_at_a_restart_causes_a_warning) {
#define EMPTY(kind, window)                                                                        \
    LIMITS("\"kind\": \"" kind "\", \"limit\": 9, \"on_restart\": \"empty\", \"window\": " window)
    expect_warning(EMPTY("FIXED_WINDOW", "3600"), "");
    expect_warning(EMPTY("FIXED_WINDOW", "\"hour\""), "");
    expect_warning(
        EMPTY("SLIDING_WINDOW", "7200"),
        "resources[0].limits[0].on_restart: empty refuses every permit for up to 7200 s");
    expect_warning(EMPTY("FIXED_WINDOW", "\"month\""),
                   "resources[0].limits[0].on_restart: empty refuses every permit for up to "
                   "2678400 s after each restart");
    expect_warning(LIMITS("\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 7200, "
                          "\"on_restart\": \"empty\""),
                   "");
    expect_warning(
        LIMITS("\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.0002, \"size\": 1, "
               "\"on_restart\": \"empty\""),
        "resources[0].limits[0].on_restart: empty refuses every permit for up to 5000 s");
    expect_warning(LIMITS("\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"on_restart\": \"empty\", "
                          "\"window\": 60, \"overrides\": [{\"keys\": [\"x\"], "
                          "\"window\": \"day\"}]"),
                   "resources[0].limits[0].overrides[0].on_restart: empty refuses every permit for "
                   "up to 86400 s");
}

static const char *const kept_quotas[] = {
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 3599.999",
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"minute\"",
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"month\", "
    "\"on_restart\": \"full\"",
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"hour\", "
    "\"on_restart\": \"empty\"",
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"month\", \"shadow\": true",
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 0, \"window\": \"month\", \"keys\": [\"x\"]",
    "\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 3599, \"max_debt\": 0.5",
    "\"kind\": \"CONCURRENCY\", \"limit\": 9, \"time_to_live\": 3600",
    "\"kind\": \"CONCURRENCY\", \"limit\": 9, \"time_to_live\": 7200, "
    "\"on_restart\": \"full\"",
    "\"kind\": \"TIERS\", \"tiers\": [{\"limit\": 9, \"window\": 60, \"active\": 60, "
    "\"cooldown\": 3539}]",
    "\"kind\": \"TIERS\", \"tiers\": [{\"limit\": 9, \"window\": 60, \"active\": 7200}], "
    "\"on_restart\": \"full\"",
};

static const struct {
    const char *limit, *place;
} renewed_quotas[] = {
    {"\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"hour\"",
     "window: a quota of 3600 s is"},
    {"\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"day\"",
     "window: a quota of 86400 s is"},
    {"\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"week\"",
     "window: a quota of 604800 s is"},
    {"\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"month\"",
     "window: a quota of 2678400 s is kept only in memory, so it begins again after each "
     "restart and each change of master. A shorter window beside it bounds how much more is "
     "granted. Write on_restart: full if this is intended"},
    {"\"kind\": \"SLIDING_WINDOW\", \"limit\": 9, \"window\": 3600",
     "window: a quota of 3600 s is"},
    {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, \"size\": 1800", "rate: a quota of 3600 s is"},
    {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 0.5, \"size\": 1799, \"max_debt\": 2",
     "rate: a quota of 3600 s is"},
    {"\"kind\": \"TIERS\", \"tiers\": [{\"limit\": 9, \"window\": 60, \"active\": 60, "
     "\"cooldown\": 3540}]",
     "tiers: a quota of 3600 s is"},
    {"\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 60, \"overrides\": "
     "[{\"keys\": [\"x\"], \"limit\": 8}, {\"keys\": [\"y\"], \"window\": \"day\"}]",
     "overrides[1].window: a quota of 86400 s is"},
};

/* A restart loses the counters of `renewed_quotas`. A quota in `kept_quotas` has no warning. */
TEST(a_quota_of_an_hour_that_a_restart_renews_causes_a_warning) {
    char json[600], warning[400];
    for (size_t i = 0; i < COUNT(kept_quotas); i++) {
        snprintf(json, sizeof json, LIMITS("%s"), kept_quotas[i]);
        expect_warning(json, "");
    }
    for (size_t i = 0; i < COUNT(renewed_quotas); i++) {
        snprintf(json, sizeof json, LIMITS("%s"), renewed_quotas[i].limit);
        snprintf(warning, sizeof warning, "resources[0].limits[0].%s", renewed_quotas[i].place);
        expect_warning(json, warning);
    }
}

/* People start with config.example.json, whose text says why it learns for a short time. */
TEST(the_example_only_warns_of_its_short_learning) {
    FILE *file = fopen("config.example.json", "r");
    assert_non_null(file);
    static char json[20000];
    const size_t bytes = fread(json, 1, sizeof json - 1, file);
    assert_true(bytes > 0 && bytes < sizeof json - 1);
    assert_int_equal(fclose(file), 0);
    doorman_config_problem problems[9];
    doorman_config_problems list = {.items = problems, .room = 9};
    assert_int_equal(doorman_json_check_config(NULL, json, bytes, &list), DOORMAN_OK);
    assert_int_equal(list.count, 2);
    for (size_t i = 0; i < list.count; i++) {
        assert_non_null(strstr(problems[i].error.text, "learning_mode_duration: 1 s is shorter"));
    }
}

/* Of several overrides with the same key, only the first is used. */
TEST(an_override_that_an_earlier_one_hides_causes_a_warning) {
#define OVER(first, second)                                                                        \
    LIMITS("\"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 60, \"overrides\": "             \
           "[{\"keys\": " first ", \"limit\": 20}, {\"keys\": " second ", \"limit\": 30}]")
    static const char hidden[] = "resources[0].limits[0].overrides[1].keys[0]: is never used, "
                                 "because overrides[0].keys[0] comes first";
    expect_warning(OVER("[\"x\"]", "[\"y\"]"), "");
    expect_warning(OVER("[\"x\"]", "[\"*\"]"), "");
    expect_warning(OVER("[\"x?\"]", "[\"x*\"]"), "");
    expect_warning(OVER("[\"*b*\"]", "[\"[bc]\"]"), "");
    expect_warning(OVER("[\"x\"]", "[\"x\"]"), hidden);
    expect_warning(OVER("[\"x*\"]", "[\"xy\"]"), hidden);
    expect_warning(OVER("[\"*\"]", "[\"x?*\"]"), hidden);
    expect_warning(OVER("[\"*\", \"!x\"]", "[\"x\"]"), "");
    expect_warning(OVER("[\"x*\", \"xy\"]", "[\"!x\"]"), "");
    expect_warning(OVER("[\"x\", \"x\"]", "[\"y\"]"),
                   "resources[0].limits[0].overrides[0].keys[1]: is never used, because "
                   "overrides[0].keys[0] comes first");
}

/* P16: the limit grants nothing while it learns. */
TEST(a_time_to_live_above_an_hour_causes_a_warning) {
    expect_warning(LIMITS("\"kind\": \"CONCURRENCY\", \"limit\": 9, \"time_to_live\": 10000"),
                   "resources[0].limits[0].time_to_live: 10000 s is long: after each restart the "
                   "limit learns, and grants nothing, for 10500 s");
}

/* G1: the template whose glob is the id is used, or else the first template whose glob matches. */
TEST(a_template_that_an_earlier_one_hides_causes_a_warning) {
#define TWO(first, second)                                                                         \
    "{\"resources\": [{\"identifier_glob\": \"" first "\", \"capacity\": 9}, "                     \
    "{\"identifier_glob\": \"" second "\", \"capacity\": 1}]}"
    static const char hidden[] = "resources[1].identifier_glob: is never used, because "
                                 "resources[0] comes first and matches it";
    expect_warning(TWO("db/*", "db*"), "");
    expect_warning(TWO("a", "*"), "");
    expect_warning(TWO("a?", "ab"), "");
    expect_warning(TWO("db*", "db/*"), hidden);
    expect_warning(TWO("**", "b?"), hidden);
    expect_warning(TWO("db*", "db/users"), "");
}
