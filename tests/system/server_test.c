/* doorman_server as a process: which requests it answers and refuses, and how it starts, reloads
 * and stops. Decisions about capacity have their own tests, without processes. */
#define _GNU_SOURCE
#include "harness.h"

#include <dirent.h>
#include <poll.h>
#include <regex.h>

#include "../../doorman.h"

#define ALGORITHM(kind)                                                                            \
    "\"algorithm\":{\"kind\":\"" kind "\",\"lease_length\":60,\"refresh_interval\":16,"            \
    "\"learning_mode_duration\":0}"
#define RESOURCE(glob, capacity)                                                                   \
    "{\"identifier_glob\":\"" glob "\",\"capacity\":" capacity "," ALGORITHM("FAIR_SHARE") "}"
#define CONFIG(capacity)                                                                           \
    "{\"resources\":[" RESOURCE("db/*", capacity) "," RESOURCE("other", "7") "]}"
#define CONFIG_120 CONFIG("120")

#define CAPACITY_REQUEST(client, resource, wants)                                                  \
    "{\"get_capacity\":{\"client_id\":\"" client "\",\"resource\":[{\"resource_id\":\"" resource   \
    "\",\"wants\":" wants "}]}}"
#define RESPONSE "get_capacity.response[0]."
#define GETS RESPONSE "gets."

/* Returns the capacity that a request gets. */
static double capacity_of(const struct server *server, const char *request) {
    cJSON *reply = send_request(server, request);
    double capacity = number(reply, GETS "capacity");
    cJSON_Delete(reply);
    return capacity;
}

/* Fails unless the server has logged a text at least once, and at most once a minute. */
static void assert_logged_each_minute(const struct server *server, const char *text, time_t from) {
    int most = 1 + (int)((time(NULL) - from) / 60);
    assert_in_range(process_logged(server->process, text), 1, most);
}

/* ---- requests ------------------------------------------------------------------------------- */

TEST(a_request_over_nng_gets_a_lease) {
    const char *const more[] = {"--node", "leaf-eu-1", NULL};
    struct server server = server_start(CONFIG_120, more);
    double before = (double)time(NULL);
    cJSON *reply = send_request(&server, CAPACITY_REQUEST("a", "db/orders", "50"));
    assert_string_equal(text(reply, "get_capacity.response[0].resource_id"), "db/orders");
    assert_true(number(reply, GETS "capacity") == 50);
    assert_string_equal(text(reply, GETS "node"), "leaf-eu-1");
    assert_true(number(reply, GETS "id") >= 1);
    assert_true(number(reply, GETS "expires_in") == 60);
    assert_true(number(reply, GETS "refresh_interval") == 16);
    double now = (double)time(NULL);
    assert_true(number(reply, GETS "expiry_time") >= before + 60 - 1);
    assert_true(number(reply, GETS "expiry_time") <= now + 60 + 1);
    assert_true(number(reply, "get_capacity.response[0].safe_capacity") == 120);
    cJSON_Delete(reply);
    server_stop(&server);
}

/* S1, V2: without an election the server is master, at the address given by --advertise or
 * --listen. */
TEST(discovery_names_the_master) {
    const char *const more[] = {"--advertise", "tcp://doorman.example:15000", NULL};
    struct server plain = server_start(CONFIG_120, NULL),
                  advertised = server_start(CONFIG_120, more);
    cJSON *reply = send_request(&plain, "{\"discovery\":{}}");
    assert_true(cJSON_IsTrue(find(reply, "discovery.is_master")));
    assert_string_equal(text(reply, "discovery.mastership.master_address"), plain.url);
    cJSON_Delete(reply);
    reply = send_request(&advertised, "{\"discovery\":{}}");
    assert_string_equal(text(reply, "discovery.mastership.master_address"),
                        "tcp://doorman.example:15000");
    cJSON_Delete(reply);
    server_stop(&plain);
    server_stop(&advertised);
}

/* R10: a release names its lease; any other id has no effect. */
TEST(a_release_frees_the_capacity_of_the_lease_it_names) {
    char release[256];
    struct server server = server_start(CONFIG_120, NULL);
    cJSON *reply = send_request(&server, CAPACITY_REQUEST("a", "db/orders", "120"));
    uint64_t id = (uint64_t)number(reply, GETS "id");
    cJSON_Delete(reply);
    for (uint64_t invalid = 1; invalid <= 2; invalid++) {
        bool right = invalid == 2;
        snprintf(release, sizeof release,
                 "{\"release_capacity\":{\"client_id\":\"a\",\"resource\":["
                 "{\"resource_id\":\"db/orders\",\"id\":%llu}]}}",
                 (unsigned long long)(right ? id : id ^ 1));
        reply = send_request(&server, release);
        assert_true(cJSON_IsObject(find(reply, "release_capacity")));
        cJSON_Delete(reply);
        assert_true(capacity_of(&server, CAPACITY_REQUEST("b", "db/orders", "120")) ==
                    (right ? 120 : 0));
    }
    server_stop(&server);
}

/* S4: a server that starts does not know the holders of leases, and grants no new leases at first.
 * It answers TRY_LATER instead of granting 0. */
TEST(a_server_that_starts_learns_first) {
    struct server server =
        server_start("{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":120}]}", NULL);
    cJSON *reply = send_request(&server, CAPACITY_REQUEST("a", "db/orders", "50"));
    const char *reason = cJSON_GetStringValue(find(reply, RESPONSE "refused.reason"));
    assert_non_null(reason);
    assert_string_equal(reason, "TRY_LATER");
    assert_true(number(reply, RESPONSE "refused.refresh_interval") == 16);
    assert_true(cJSON_IsTrue(find(reply, RESPONSE "learning")));
    cJSON_Delete(reply);
    server_stop(&server);
}

/* The requests are written like the examples of docs/protocol.md. */
TEST(the_examples_of_the_protocol_are_answered) {
    const char *const more[] = {"--node", "leaf-eu-1", NULL};
    struct server server = server_start(CONFIG_120, more);
    cJSON *reply = send_request(
        &server, "{\"get_capacity\": {\"client_id\": \"web-7:4242:9f0c2e51a7b38d64\", "
                 "\"resource\": [\n  {\"resource_id\": \"db/orders\", \"priority\": 1, "
                 "\"wants\": 120, \"outstanding\": 0,\n   \"has\": {\"id\": 7301944120035, "
                 "\"node\": \"leaf-eu-1\", \"capacity\": 80, \"expires_in\": 48.2}}]}}");
    assert_true(number(reply, GETS "capacity") == 120);
    cJSON_Delete(reply);
    process_await(server.process, "a lease that this server does not know", 1); /* S9 */
    reply = send_request(&server,
                         "{\"release_capacity\": {\"client_id\": \"web-7:4242:9f0c2e51a7b38d64\", "
                         "\"resource\": [{\"resource_id\": \"db/orders\", "
                         "\"id\": 1180663310274}]}}");
    assert_true(cJSON_IsObject(find(reply, "release_capacity")));
    cJSON_Delete(reply);
    reply = send_request(&server, "{\"discovery\": {}}");
    assert_true(cJSON_IsTrue(find(reply, "discovery.is_master")));
    cJSON_Delete(reply);
    server_stop(&server);
}

TEST(every_resource_of_a_request_is_answered_in_order) {
    struct server server = server_start(CONFIG_120, NULL);
    cJSON *reply = send_request(&server, "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":["
                                         "{\"resource_id\":\"other\",\"wants\":100},"
                                         "{\"resource_id\":\"db/b\",\"wants\":1.5},"
                                         "{\"resource_id\":\"unknown\",\"wants\":1000}]}}");
    assert_string_equal(text(reply, "get_capacity.response[0].resource_id"), "other");
    assert_true(number(reply, "get_capacity.response[0].gets.capacity") == 7);
    assert_string_equal(text(reply, "get_capacity.response[1].resource_id"), "db/b");
    assert_true(number(reply, "get_capacity.response[1].gets.capacity") == 1.5);
    assert_true(number(reply, "get_capacity.response[2].gets.capacity") == 1000); /* G2 */
    assert_null(find(reply, "get_capacity.response[3]"));
    cJSON_Delete(reply);
    reply = send_request(&server, "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":[]}}");
    assert_int_equal(cJSON_GetArraySize(find(reply, "get_capacity.response")), 0);
    cJSON_Delete(reply);
    server_stop(&server);
}

/* G2: a resource that no template matches is logged, at most once a minute. */
TEST(an_unmatched_resource_is_logged_once_a_minute) {
    struct server server = server_start(CONFIG_120, NULL);
    time_t from = time(NULL);
    for (int i = 0; i < 50; i++) {
        assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "no", "9")) == 9);
    }
    server_stop(&server);
    assert_logged_each_minute(&server, "level=warning msg=\"a request names a resource", from);
    assert_int_equal(process_logged(server.process, "count=1 resource=no holder=a"), 1);
}

/* Renews the lease that two processes share under the id "sN". Returns the id of the new lease.
 *   id   the last lease of one of the two processes; 0: this process starts */
static double shared_id_renew(const struct server *server, int number_of_id, double id) {
    char request[300], has[120] = "";
    if (id > 0) {
        snprintf(has, sizeof has,
                 ",\"has\":{\"id\":%.0f,\"node\":\"n\",\"capacity\":1,\"expires_in\":60}", id);
    }
    snprintf(request, sizeof request,
             "{\"get_capacity\":{\"client_id\":\"s%d\",\"resource\":[{\"resource_id\":\"db/a\","
             "\"wants\":1%s}]}}",
             number_of_id, has);
    cJSON *reply = send_request(server, request);
    double next = number(reply, GETS "id");
    cJSON_Delete(reply);
    return next;
}

/* S10, V6: each of eight ids has a line of its own. Later ids share a line. */
TEST(each_id_that_two_processes_use_is_logged) {
    const char *const more[] = {"--node", "n", NULL};
    struct server server = server_start(CONFIG_120, more);
    for (int i = 0; i < 10; i++) {
        double one = shared_id_renew(&server, i, 0), two = shared_id_renew(&server, i, 0);
        for (int round = 0; round < 4; round++) {
            one = shared_id_renew(&server, i, one);
            two = shared_id_renew(&server, i, two);
        }
    }
    server_stop(&server);
    for (int i = 0; i < 8; i++) {
        char line[120];
        snprintf(line, sizeof line,
                 "each uses the whole share\" count=1 resource=db/a holder=s%d peer=127.0.0.1:", i);
        assert_int_equal(process_logged(server.process, line), 1);
    }
    assert_true(process_logged(server.process, "further ids") >= 1);
    assert_int_equal(process_logged(server.process, "this is the last\" count=1 resource=db/a "
                                                    "holder=s8 peer=127.0.0.1:"),
                     1);
}

TEST(two_servers_at_once_do_not_affect_each_other) {
    struct server one = server_start(CONFIG_120, NULL), two = server_start(CONFIG("50"), NULL);
    assert_string_not_equal(one.url, two.url);
    assert_true(capacity_of(&one, CAPACITY_REQUEST("a", "db/orders", "1000")) == 120);
    assert_true(capacity_of(&two, CAPACITY_REQUEST("a", "db/orders", "1000")) == 50);
    cJSON *reply = send_request(&two, CAPACITY_REQUEST("b", "db/orders", "0"));
    assert_string_equal(text(reply, GETS "node"), two.url + strlen("tcp://"));
    cJSON_Delete(reply);
    server_stop(&one);
    assert_true(capacity_of(&two, CAPACITY_REQUEST("c", "other", "3")) == 3);
    server_stop(&two);
}

/* ---- errors in messages --------------------------------------------------------------------- */

#define IDS_64 "0123456789012345678901234567890123456789012345678901234567890123"
#define IDS_256 IDS_64 IDS_64 IDS_64 IDS_64
#define RESOURCE_0 "get_capacity.resource[0]."
#define WITH(field)                                                                                \
    "{\"get_capacity\":{\"client_id\":\"bad\",\"resource\":[{\"resource_id\":\"db/orders\"," field \
    "}]}}"
#define HAS(field) WITH("\"wants\":1,\"has\":{" field "}")

/* Messages, and the error that each must cause: its code, and a part of its text. Most texts have
 * the path of the field, or the number of the byte if the message is not JSON or has a character
 * that no field may have. */
static const struct invalid {
    const char *text;
    size_t bytes; /* 0: up to the NUL */
    const char *code, *error_text;
} invalid_messages[] = {
    {"", 0, "INVALID_ARGUMENT", "byte "},
    {"rubbish", 0, "INVALID_ARGUMENT", "byte "},
    {"\0\0\0\0", 4, "INVALID_ARGUMENT", "byte "},
    {"{\"discovery\":{}", 0, "INVALID_ARGUMENT", "byte "},
    {"{\"discovery\":{}} x", 0, "INVALID_ARGUMENT", "byte 17"},
    {"{\"discovery\":{}}{}", 0, "INVALID_ARGUMENT", "byte 16"},
    {"{\"discovery\":{}}\0", 17, "INVALID_ARGUMENT", "byte 16"},
    {"[]", 0, "INVALID_ARGUMENT", "one key"},
    {"{}", 0, "INVALID_ARGUMENT", "one key"},
    {"{\"discovery\":{},\"get_capacity\":{}}", 0, "INVALID_ARGUMENT", "one key"},
    {"{\"discovery\":{},\"discovery\":{}}", 0, "INVALID_ARGUMENT", "appears twice"},
    {"{\"discovery\":7}", 0, "INVALID_ARGUMENT", "discovery"},
    {"{\"conquer\":{}}", 0, "NOT_FOUND", "conquer"},
    {"{\"get_capacity\":{\"resource\":[]}}", 0, "INVALID_ARGUMENT", "get_capacity.client_id"},
    {"{\"get_capacity\":{\"client_id\":\"bad\"}}", 0, "INVALID_ARGUMENT", "get_capacity.resource"},
    {"{\"get_capacity\":{\"client_id\":7,\"resource\":[]}}", 0, "INVALID_ARGUMENT",
     "get_capacity.client_id"},
    {"{\"get_capacity\":{\"client_id\":\"bad\",\"client_id\":\"b\",\"resource\":[]}}", 0,
     "INVALID_ARGUMENT", "get_capacity.client_id"},
    {"{\"get_capacity\":{\"client_id\":\"bad\",\"resource\":{}}}", 0, "INVALID_ARGUMENT",
     "get_capacity.resource"},
    {"{\"get_capacity\":{\"client_id\":\"bad\",\"resource\":[7]}}", 0, "INVALID_ARGUMENT",
     "get_capacity.resource[0]"},
    {WITH("\"priority\":1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":-1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":1e16"), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":1e309"), 0, "INVALID_ARGUMENT", "get_capacity.resource[0].wants: "},
    {WITH("\"wants\":NaN"), 0, "INVALID_ARGUMENT", "byte "},
    {WITH("\"wants\":Infinity"), 0, "INVALID_ARGUMENT", "byte "},
    {WITH("\"wants\":\"1\""), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":null"), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":1,\"wants\":2"), 0, "INVALID_ARGUMENT", RESOURCE_0 "wants"},
    {WITH("\"wants\":1,\"priority\":16"), 0, "INVALID_ARGUMENT", RESOURCE_0 "priority"},
    {WITH("\"wants\":1,\"priority\":0.5"), 0, "INVALID_ARGUMENT", RESOURCE_0 "priority"},
    {WITH("\"wants\":1,\"outstanding\":-1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "outstanding"},
    {HAS("\"node\":\"n\",\"capacity\":1,\"expires_in\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.id"},
    {HAS("\"id\":0,\"node\":\"n\",\"capacity\":1,\"expires_in\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.id"},
    {HAS("\"id\":1.5,\"node\":\"n\",\"capacity\":1,\"expires_in\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.id"},
    {HAS("\"id\":9007199254740994,\"node\":\"n\",\"capacity\":1,\"expires_in\":1"), 0,
     "INVALID_ARGUMENT", RESOURCE_0 "has.id"},
    {HAS("\"id\":1,\"node\":\"\",\"capacity\":1,\"expires_in\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.node"},
    {HAS("\"id\":1,\"node\":\"n\",\"capacity\":-1,\"expires_in\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.capacity"},
    {HAS("\"id\":1,\"node\":\"n\",\"capacity\":1"), 0, "INVALID_ARGUMENT",
     RESOURCE_0 "has.expires_in"},
    {CAPACITY_REQUEST("", "db/orders", "1"), 0, "INVALID_ARGUMENT", "get_capacity.client_id"},
    {CAPACITY_REQUEST("bad", "", "1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "resource_id"},
    {CAPACITY_REQUEST("bad", IDS_256 "x", "1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "resource_id"},
    {CAPACITY_REQUEST(IDS_256 "x", "db/orders", "1"), 0, "INVALID_ARGUMENT",
     "get_capacity.client_id"},
    {CAPACITY_REQUEST("bad", "db/orders\\u0000x", "1"), 0, "INVALID_ARGUMENT", "byte "},
    {CAPACITY_REQUEST("bad", "db/orders\0x", "1"),
     sizeof CAPACITY_REQUEST("bad", "db/orders\0x", "1") - 1, "INVALID_ARGUMENT", "byte "},
    {CAPACITY_REQUEST("bad", "db/\\u0007", "1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "resource_id"},
    {CAPACITY_REQUEST("bad", "db/\\u007f", "1"), 0, "INVALID_ARGUMENT", RESOURCE_0 "resource_id"},
    {CAPACITY_REQUEST("bad", "db/\007", "1"), 0, "INVALID_ARGUMENT", "byte "},
    {CAPACITY_REQUEST("bad", "db/\377", "1"), 0, "INVALID_ARGUMENT", "byte "},
    {CAPACITY_REQUEST("bad", "db/\300\200", "1"), 0, "INVALID_ARGUMENT", "byte "},
    {CAPACITY_REQUEST("bad", "db/\\ud800", "1"), 0, "INVALID_ARGUMENT", "byte "},
    /* The first half of this message is valid, but it must not take effect. */
    {"{\"get_capacity\":{\"client_id\":\"bad\",\"resource\":["
     "{\"resource_id\":\"db/orders\",\"wants\":1000},{\"resource_id\":\"other\",\"wants\":-1}]}}",
     0, "INVALID_ARGUMENT", "get_capacity.resource[1].wants"},
    {"{\"get_capacity\":{\"client_id\":\"bad\",\"resource\":["
     "{\"resource_id\":\"db/orders\",\"wants\":1},{\"resource_id\":\"db/orders\",\"wants\":1}]}}",
     0, "INVALID_ARGUMENT", "get_capacity.resource[1]"},
    {"{\"release_capacity\":{\"client_id\":\"a\",\"resource\":[{\"resource_id\":\"db/orders\"}]}}",
     0, "INVALID_ARGUMENT", "release_capacity.resource[0].id"},
};

TEST(an_invalid_message_gets_an_error_and_has_no_effect) {
    struct server server = server_start(CONFIG_120, NULL);
    time_t from = time(NULL);
    for (size_t i = 0; i < sizeof invalid_messages / sizeof *invalid_messages; i++) {
        const struct invalid *invalid = &invalid_messages[i];
        size_t bytes = invalid->bytes ? invalid->bytes : strlen(invalid->text);
        char *reply = send_bytes(server.url, invalid->text, bytes);
        if (!reply) fail_msg("no answer to %s", invalid->text);
        cJSON *tree = cJSON_Parse(reply);
        if (strcmp(text(tree, "error.code"), invalid->code) != 0 ||
            !strstr(text(tree, "error.message"), invalid->error_text)) {
            fail_msg("%s\nis answered with\n%s\nnot with %s ... %s", invalid->text, reply,
                     invalid->code, invalid->error_text);
        }
        cJSON_Delete(tree);
        free(reply);
    }
    /* If "bad" were a holder now, it would have a share. */
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "1000")) == 120);
    server_stop(&server);
    static const char *const methods[] = {"unknown", "discovery", "get_capacity",
                                          "release_capacity"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char line[64];
        snprintf(line, sizeof line, " method=%s code=", methods[i]);
        assert_logged_each_minute(&server, line, from);
    }
    assert_int_equal(process_logged(server.process, "a message was refused\" count=1 peer=127."),
                     4);
}

/* V5. */
TEST(a_message_that_is_too_deep_or_too_full_is_refused) {
    struct server server = server_start(CONFIG_120, NULL);
    static char deep[10001], full[(size_t)1 << 20];
    memset(deep, '[', 5000);
    memset(deep + 5000, ']', 5000);
    for (size_t i = 0; i + 1 < sizeof full; i += 2) memcpy(full + i, i ? ",0" : "[0", 2);
    full[sizeof full - 1] = ']';
    cJSON *reply = send_request(&server, deep);
    assert_string_equal(text(reply, "error.code"), "RESOURCE_EXHAUSTED");
    cJSON_Delete(reply);
    char *response = send_bytes(server.url, full, sizeof full);
    assert_non_null(response);
    assert_non_null(strstr(response, "RESOURCE_EXHAUSTED"));
    free(response);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "1")) == 1);
    server_stop(&server);
}

/* V5: the largest message is answered; a larger one is not read. */
TEST(one_byte_more_than_the_largest_message_ends_the_connection) {
    static char largest[DOORMAN_MESSAGE_BYTES_MAX];
    static const char request[] = "{\"discovery\":{}}";
    struct server server = server_start(CONFIG_120, NULL);
    memset(largest, ' ', sizeof largest);
    memcpy(largest, request, sizeof request - 1);
    char *reply = send_bytes(server.url, largest, sizeof largest);
    assert_non_null(reply);
    assert_non_null(strstr(reply, "is_master"));
    free(reply);
    int fd = raw_greet(&server);
    assert_true(raw_send_head(fd, sizeof largest + 1));
    assert_true(raw_hung_up(fd));
    close(fd);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "1")) == 1);
    server_stop(&server);
}

TEST(garbage_instead_of_a_greeting_ends_only_that_connection) {
    struct server server = server_start(CONFIG_120, NULL);
    static const char *const garbage[] = {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                          "\377\377\377\377\377\377\377\377",
                                          "{\"discovery\":{}}\n"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        int fd = raw_connect(&server);
        raw_send(fd, garbage[i], strlen(garbage[i]));
        assert_true(raw_hung_up(fd));
        close(fd);
        assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "1")) == 1);
    }
    /* This message is too short to have a request number. */
    int fd = raw_greet(&server);
    assert_true(raw_send(fd, "\0\0\0\0\0\0\0\2hi", 10));
    assert_true(raw_hung_up(fd));
    close(fd);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "1")) == 1);
    server_stop(&server);
}

/* Returns how many files and sockets a server has open, plus 2 for "." and "..". */
static int files_of(const struct server *server) {
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)server->process->pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Waits until a server has closed the connections of the peers that have left. If the server
 * stopped while it closes them, nng 1.5.2 could leak the memory of a message. */
static void await_files(const struct server *server, int count) {
    for (int waited = 0; files_of(server) > count; waited += 10) {
        assert_true(waited < TIMEOUT_MS);
        sleep_ms(10);
    }
}

/* V5: a client stops sending before the greeting, after it, in the head, or in the text, or does
 * not read its response. */
TEST(a_peer_that_stops_in_a_message_does_not_affect_others) {
    struct server server = server_start(CONFIG_120, NULL);
    enum { ROUNDS = 40 }; /* more than the server has contexts */
    int silent[ROUNDS][5], files = files_of(&server);
    for (int i = 0; i < ROUNDS; i++) {
        silent[i][0] = raw_connect(&server);
        silent[i][1] = raw_greet(&server);
        silent[i][2] = raw_greet(&server);
        silent[i][3] = raw_greet(&server);
        silent[i][4] = raw_greet(&server);
        assert_true(raw_send(silent[i][2], "\0\0\0", 3));
        assert_true(raw_send_head(silent[i][3], 1000) && raw_send(silent[i][3], "{\"disc", 6));
        assert_true(raw_send_head(silent[i][4], 16));
        assert_true(raw_send(silent[i][4], "{\"discovery\":{}}", 16));
    }
    for (int i = 0; i < 10; i++) {
        assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "120")) == 120);
    }
    for (int i = 0; i < ROUNDS * 5; i++) close(silent[i / 5][i % 5]);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "db/orders", "120")) == 120);
    await_files(&server, files);
    server_stop(&server);
}

/* Sends requests and reads no responses. Returns whether the server closes the connection. Fails
 * unless another client is answered while the connection is full. */
static bool is_disconnected_if_it_does_not_read(const struct server *server, const char *request,
                                                size_t bytes) {
    enum { REQUESTS = 20000 };
    const struct timeval soon = {0, 200000}, late = {TIMEOUT_MS / 12000, 0};
    int fd = raw_greet(server);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
    int sent = 0;
    while (sent < REQUESTS && raw_send_head(fd, bytes) && raw_send(fd, request, bytes)) sent++;
    assert_in_range(sent, 1, REQUESTS - 1);
    assert_true(capacity_of(server, CAPACITY_REQUEST("good", "other", "1")) == 1);
    /* A slow server may not have reached its limit yet, so more bytes follow, until it closes the
     * connection. */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &late, sizeof late);
    while (sent < REQUESTS && raw_send(fd, request, bytes)) sent++;
    assert_in_range(sent, 1, REQUESTS - 1);
    struct pollfd cut = {.fd = fd, .events = 0};
    bool is_cut = poll(&cut, 1, TIMEOUT_MS / 12) == 1 && cut.revents & (POLLHUP | POLLERR);
    close(fd);
    assert_true(capacity_of(server, CAPACITY_REQUEST("good", "other", "1")) == 1);
    return is_cut;
}

/* V5: a client that sends requests and does not read the responses fills its connection, and then
 * the server's slots for requests. The server closes the connection, so that other clients are
 * answered. nng 1.5.2 can block the thread that closes the file descriptors of ended connections.
 * Then the peer does not see the end of its connection, so one of three servers is enough. */
TEST(a_peer_that_does_not_read_its_responses_is_disconnected) {
    enum { RESOURCES = 2000, TRIES = 3 };
    static char request[RESOURCES * 64];
    static const char head[] = "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":[";
    size_t bytes = (size_t)sprintf(request, "%s", head);
    for (int i = 0; i < RESOURCES; i++) {
        bytes += (size_t)sprintf(request + bytes, "%s{\"resource_id\":\"db/%d\",\"wants\":1}",
                                 i ? "," : "", i);
    }
    bytes += (size_t)sprintf(request + bytes, "]}}");
    bool is_cut = false;
    for (int i = 0; i < TRIES && !is_cut; i++) {
        struct server server = server_start(CONFIG_120, NULL);
        is_cut = is_disconnected_if_it_does_not_read(&server, request, bytes);
        server_stop(&server);
    }
    assert_true(is_cut);
}

/* V1, V5: many connections are reset while responses are on their way. */
TEST(a_peer_that_vanishes_does_not_block_the_shutdown) {
    enum { ROUNDS = 20, PEERS = 40, REQUESTS = 8 };
    static const char request[] = CAPACITY_REQUEST("a", "db/orders", "1");
    const struct linger cut = {.l_onoff = 1, .l_linger = 0};
    struct server server = server_start(CONFIG_120, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        int peers[PEERS];
        for (int i = 0; i < PEERS; i++) {
            peers[i] = raw_greet(&server);
            setsockopt(peers[i], SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
        }
        for (int i = 0; i < PEERS * REQUESTS; i++) {
            int peer = peers[i % PEERS];
            assert_true(raw_send_head(peer, sizeof request - 1));
            assert_true(raw_send(peer, request, sizeof request - 1));
        }
        for (int i = 0; i < PEERS; i++) close(peers[i]);
    }
    assert_true(capacity_of(&server, CAPACITY_REQUEST("good", "other", "1")) == 1);
    server_stop(&server);
}

/* ---- signals -------------------------------------------------------------------------------- */

/* V1, G5. */
TEST(a_changed_configuration_takes_effect_at_sighup) {
    struct server server = server_start(CONFIG_120, NULL);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/one", "1000")) == 120);
    config_replace(server.process, CONFIG("50"));
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration loaded", 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/two", "1000")) == 50);
    server_stop(&server);
}

/* V1. */
TEST(an_invalid_configuration_at_sighup_leaves_the_last_one_in_force) {
    struct server server = server_start(CONFIG_120, NULL);
    config_replace(server.process, CONFIG("-50"));
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration refused", 1);
    assert_true(process_logged(server.process, "resources[0].capacity") >= 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/one", "1000")) == 120);
    unlink(server.process->config);
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration refused", 2);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/two", "1000")) == 120);
    config_replace(server.process, CONFIG("50"));
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration loaded", 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/three", "1000")) == 50);
    server_stop(&server);
}

/* V1. Each error of a refused configuration has a line in the log, and each warning too. */
TEST(the_log_has_all_errors_and_warnings_of_a_configuration) {
    struct server server = server_start("{\"resources\": []}", NULL);
    const struct process *process = server.process;
    process_await(process, "warning=\"line 1, column 2: resources: is empty", 1);
    config_replace(process, "{\"resources\": [\n7,\n{\"identifier_glob\": \"a\"}, 8]}");
    process_await(process, "resources[2]: must be an object", 1);
    assert_int_equal(process_logged(process, "configuration refused"), 1);
    assert_int_equal(process_logged(process, "error=\"line 2, column 1: resources[0]: must be an "
                                             "object (and 2 more)\""),
                     1);
    assert_int_equal(process_logged(process, "another error of the configuration"), 2);
    assert_int_equal(
        process_logged(process,
                       "error=\"line 3, column 1: resources[1].capacity: is missing; a template "),
        1);
    config_replace(process, "{\"resources\":[{\"identifier_glob\":\"[\",\"capacity\":5}]}");
    process_await(process, "warning=\"line 1, column 16: resources[0].identifier_glob: a [", 1);
    process_await(process, "configuration loaded", 1);
    server_stop(&server);
}

/* V1. The file may be missing for a moment while it is replaced, so the server reports it after two
 * seconds, and only once. */
TEST(a_deleted_configuration_is_reported_and_stays_in_force) {
    static const char missing[] = "level=warning msg=\"the configuration file is missing; the last "
                                  "configuration stays in force\"";
    struct server server = server_start(CONFIG_120, NULL);
    char kept[96];
    snprintf(kept, sizeof kept, "%s/kept", server.process->folder);
    assert_int_equal(rename(server.process->config, kept), 0);
    process_await(server.process, missing, 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/one", "1000")) == 120);
    sleep_ms(2500);
    assert_int_equal(process_logged(server.process, missing), 1);
    assert_int_equal(rename(kept, server.process->config), 0);
    process_await(server.process, "the configuration file is there again", 1);
    assert_int_equal(process_logged(server.process, "configuration loaded"), 0);
    unlink(server.process->config);
    process_await(server.process, missing, 2);
    process_signal(server.process, SIGHUP);
    process_await(server.process, "cannot be opened: No such file or directory", 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("b", "db/two", "1000")) == 120);
    config_replace(server.process, CONFIG("50"));
    process_await(server.process, "configuration loaded", 1);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("c", "db/three", "1000")) == 50);
    assert_int_equal(process_logged(server.process, missing), 2);
    server_stop(&server);
}

TEST(sigterm_and_sigint_end_the_server_with_success) {
    static const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        struct server server = server_start(CONFIG_120, NULL);
        int idle = raw_greet(&server);
        process_signal(server.process, signals[i]);
        process_end(server.process, 0);
        assert_int_equal(process_logged(server.process, "level=info msg=stopping"), 1);
        close(idle);
    }
}

/* Returns whether a process blocks SIGTERM now. */
static bool blocks_sigterm(const struct process *process) {
    char path[64], line[256];
    unsigned long long blocked = 0;
    bool is_read = false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)process->pid);
    FILE *status = fopen(path, "r");
    while (status && !is_read && fgets(line, sizeof line, status)) {
        is_read = sscanf(line, "SigBlk: %llx", &blocked) == 1;
    }
    if (status) fclose(status);
    return is_read && (blocked >> (SIGTERM - 1) & 1);
}

/* The first process of a container would lose a signal that it neither blocks nor handles. The
 * process in this test waits in --help, because nobody reads its output. */
TEST(a_signal_waits_from_the_beginning) {
    struct process *process = process_new();
    char text[4096];
    int ends[2];
    memset(text, 'x', sizeof text);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], text, sizeof text) > 0) continue;
    snprintf(process->out, sizeof process->out, "/proc/self/fd/%d", ends[1]);
    process_start(process, (const char *const[]){"--help", NULL}, NULL);
    close(ends[1]);
    EVENTUALLY(blocks_sigterm(process));
    sleep_ms(500); /* a sanitizer blocks signals for a moment before main */
    EVENTUALLY(blocks_sigterm(process));
    process_signal(process, SIGTERM);
    while (read(ends[0], text, sizeof text) > 0) continue;
    close(ends[0]);
    process_end(process, 0);
}

/* Returns whether a client that sends requests while a server stops is answered UNAVAILABLE. */
static bool answers_stopping(struct server *server) {
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    char request[] = "{\"discovery\":{}}", *reply = NULL;
    size_t bytes = 0;
    bool advertised = false;
    assert_int_equal(nng_req0_open(&socket), 0);
    nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, 1000);
    nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 1000);
    assert_int_equal(nng_dial(socket, server->url, NULL, 0), 0);
    process_signal(server->process, SIGTERM);
    while (!advertised && nng_send(socket, request, strlen(request), 0) == 0 &&
           nng_recv(socket, &reply, &bytes, NNG_FLAG_ALLOC) == 0) {
        char *copy = strndup(reply, bytes);
        advertised = strstr(copy, "\"UNAVAILABLE\"") != NULL;
        free(copy);
        nng_free(reply, bytes);
    }
    nng_close(socket);
    process_end(server->process, 0);
    return advertised;
}

/* The error UNAVAILABLE: a client learns at once that it must ask another server. There are up to
 * 20 tries, because on a busy machine the client may sleep while the server stops. */
TEST(a_stopping_server_answers_unavailable) {
    bool advertised = false;
    for (int i = 0; i < 20 && !advertised; i++) {
        struct server server = server_start(CONFIG_120, NULL);
        advertised = answers_stopping(&server);
    }
    assert_true(advertised);
}

/* ---- flags ---------------------------------------------------------------------------------- */

/* Checks that a process has printed one line with a text to standard error, and nothing to standard
 * output. */
static void assert_refused(const struct process *process, const char *error_text) {
    char *err = file_read(process->err), *out = file_read(process->out);
    char *end = strchr(err, '\n');
    if (strncmp(err, "doorman_server: ", 16) != 0 || !end || end[1] || !strstr(err, error_text)) {
        fail_msg("expected one line with '%s', got:\n%s", error_text, err);
    }
    assert_string_equal(out, "");
    free(err);
    free(out);
}

TEST(an_address_in_use_is_an_error_that_names_it) {
    struct server server = server_start(CONFIG_120, NULL);
    struct process *second = process_new();
    const char *const arguments[] = {"--config", server.process->config, "--listen", server.url,
                                     NULL};
    assert_int_equal(process_run(second, arguments, NULL), 1);
    assert_refused(second, server.url);
    assert_refused(second, "in use");
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a", "db/one", "1")) == 1);
    server_stop(&server);
}

/* Checks that a process prints these lines to standard error, and nothing to standard output. Each
 * `%` in `lines` is replaced by the path of the configuration. */
static void assert_printed(const struct process *process, const char *lines) {
    char expected[4096];
    size_t bytes = 0;
    for (const char *at = lines; *at; at++) {
        char one[2] = {*at, 0};
        bytes += (size_t)snprintf(expected + bytes, sizeof expected - bytes, "%s",
                                  *at == '%' ? process->config : one);
        assert_in_range(bytes, 0, sizeof expected - 1);
    }
    char *err = file_read(process->err), *out = file_read(process->out);
    assert_string_equal(err, expected);
    assert_string_equal(out, "");
    free(err);
    free(out);
}

#define ONE_ERROR "doorman_server: %: 1 error; correct it, or give another --config\n"

/* V7. The same lines are printed at the start and by --check-config. */
TEST(an_unusable_configuration_is_an_error_that_says_why_and_where) {
    static const struct {
        const char *config, *lines;
    } cases[] = {
        {NULL, "doorman_server: %: cannot be opened: No such file or directory; correct it, or "
               "give another --config\n"},
        {"", "%:1:1: error: not JSON: the text is empty\n" ONE_ERROR},
        {"{\n  \"resources\": [\n    {\"identifier_glob\": \"a\" \"capacity\": 1}\n  ]\n}\n",
         "%:3:29: error: not JSON: expected a comma or }\n" ONE_ERROR},
        {"{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":-1}]}",
         "%:1:38: error: resources[0].capacity: must be a finite number from 0 to "
         "1e15\n" ONE_ERROR},
        {"{\"resources\": [\n"
         "  {\"identifier_glob\": \"a\", \"capacity\": 1, \"colour\": \"red\"},\n"
         "  {\"identifier_glob\": \"b\", \"capacity\": 1,\n"
         "   \"algorithm\": {\"kind\": \"FAIREST\"}},\n"
         "  {\"capacity\": -1}\n"
         "]}",
         "%:2:43: error: resources[0].colour: is not known\n"
         "%:4:18: error: resources[1].algorithm.kind: must be one of FAIR_SHARE, "
         "PROPORTIONAL_SHARE, PRIORITY_SHARE, STATIC, NO_ALGORITHM\n"
         "%:5:3: error: resources[2].identifier_glob: is missing\n"
         "%:5:4: error: resources[2].capacity: must be a finite number from 0 to 1e15\n"
         "doorman_server: %: 4 errors; correct them, or give another --config\n"},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        struct process *process = process_new();
        const char *const arguments[] = {"--config", process->config, "--listen=tcp://127.0.0.1:0",
                                         i % 2 ? "--check-config" : NULL, NULL};
        if (cases[i / 2].config) file_write(process->config, cases[i / 2].config);
        assert_int_equal(process_run(process, arguments, NULL), 1);
        assert_printed(process, cases[i / 2].lines);
    }
}

TEST(the_first_20_errors_of_a_configuration_are_listed) {
    struct process *process = process_new();
    const char *const arguments[] = {"--check-config", "--config", process->config, NULL};
    char config[1024] = "{\"resources\": [";
    for (int i = 0; i < 25; i++) strcat(config, i ? ",\n7" : "\n7");
    strcat(config, "]}");
    file_write(process->config, config);
    assert_int_equal(process_run(process, arguments, NULL), 1);
    assert_int_equal(process_logged(process, "\n"), 21);
    assert_int_equal(process_logged(process, ":21:1: error: resources[19]: must be an object\n"),
                     1);
    assert_int_equal(process_logged(process, ": 25 errors, of which the first 20 are listed; "), 1);
}

/* The path names a folder, so it can be opened but not read. */
TEST(a_configuration_that_cannot_be_read_is_an_error) {
    struct process *process = process_new();
    const char *const arguments[] = {"--config", process->folder, "--listen=tcp://127.0.0.1:0",
                                     NULL};
    assert_int_equal(process_run(process, arguments, NULL), 1);
    assert_refused(process, "cannot be read");
    assert_refused(process, process->folder);
}

#define SEVENTEEN(text)                                                                            \
    text "," text "," text "," text "," text "," text "," text "," text "," text "," text "," text \
         "," text "," text "," text "," text "," text "," text

TEST(a_usage_error_is_one_line_that_mentions_help) {
    static const struct {
        const char *arguments[6], *environment[2], *error_text;
    } cases[] = {
        {{NULL}, {NULL}, "--config"},
        {{"--bogus"}, {NULL}, "'--bogus'"},
        {{"-x"}, {NULL}, "'-x'"},
        {{"--config"}, {NULL}, "--config"},
        {{"--config="}, {NULL}, "--config"},
        {{"--parent"}, {NULL}, "--parent"},
        {{"--parent", "tcp://127.0.0.1:1,,"}, {NULL}, "--parent"},
        {{"--parent", "tcp://127.0.0.1:1", "--check-config"}, {NULL}, "--config"},
        {{"--config", "c", "more"}, {NULL}, "'more'"},
        {{"--config", "c", "--check-config=yes"}, {NULL}, "--check-config"},
        {{"--config", "c", "--log-level", "loud"}, {NULL}, "'loud'"},
        {{"--config", "c"}, {"DOORMAN_LOG_LEVEL=quiet"}, "'quiet'"},
        {{"--config", "c"}, {"DOORMAN_CHECK_CONFIG=perhaps"}, "'perhaps'"},
        {{"--config", "c"}, {"DOORMAN_LISTEN=tcp://127.0.0.1:0,,"}, "--listen"},
        {{"--parent", SEVENTEEN("tcp://127.0.0.1:1")}, {NULL}, "more than 16 addresses"},
        {{"--config", "c", "--max-holders", "0"}, {NULL}, "a whole number from 1 to 1000000000"},
        {{"--config", "c", "--max-message", "4194305"}, {NULL}, "from 1 to 4194304"},
        {{"--config", "c", "--max-resources", "1e3"}, {NULL}, "'1e3'"},
        {{"--config", "c", "--max-connections", "-1"}, {NULL}, "'-1'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process *process = process_new();
        assert_int_equal(process_run(process, cases[i].arguments, cases[i].environment), 2);
        assert_refused(process, cases[i].error_text);
        assert_refused(process, "; try 'doorman_server --help'\n");
    }
}

/* Like the test above, but with a valid configuration. */
TEST(an_invalid_address_or_name_is_a_usage_error) {
    static const struct {
        const char *flag, *value;
    } cases[] = {
        {"--listen", "carrier-pigeon://roof"},
        {"--listen", "15000"},
        {"--node", IDS_256 "x"},
        {"--node", "\xff"},
        {"--advertise", IDS_256 "x"},
        {"--advertise", "http://doorman.example:15000"},
        {"--advertise", "doorman.example:15000"},
        {"--advertise", "tcp://0.0.0.0:15000"},
        {"--advertise", "tcp://[::]:15000"},
        {"--advertise", "tcp://doorman.example:70000"},
        {"--advertise", "tcp4://doorman.example:0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process *process = process_new();
        bool listens = strcmp(cases[i].flag, "--listen") == 0;
        const char *const arguments[] = {"--config",
                                         process->config,
                                         cases[i].flag,
                                         cases[i].value,
                                         listens ? NULL : "--listen=tcp://127.0.0.1:0",
                                         NULL};
        file_write(process->config, CONFIG_120);
        assert_int_equal(process_run(process, arguments, NULL), 2);
        assert_refused(process, cases[i].value);
    }
}

TEST(help_lists_every_flag_with_its_variable_and_default) {
    static const char *const error_text[] = {"--config FILE",
                                             "--listen URL",
                                             "--parent URL",
                                             "--id NAME",
                                             "--node NAME",
                                             "--advertise URL",
                                             "--log-level",
                                             "--check-config",
                                             "--version",
                                             "--help",
                                             "DOORMAN_CONFIG",
                                             "DOORMAN_LISTEN",
                                             "DOORMAN_PARENT",
                                             "DOORMAN_ID",
                                             "DOORMAN_NODE",
                                             "DOORMAN_ADVERTISE",
                                             "DOORMAN_LOG_LEVEL",
                                             "DOORMAN_CHECK_CONFIG",
                                             "tcp://127.0.0.1:15000"};
    struct process *process = process_new();
    const char *const arguments[] = {"--help", NULL};
    assert_int_equal(process_run(process, arguments, NULL), 0);
    char *out = file_read(process->out);
    for (size_t i = 0; i < sizeof error_text / sizeof *error_text; i++) {
        if (!strstr(out, error_text[i])) fail_msg("--help does not mention %s", error_text[i]);
    }
    free(out);
    assert_int_equal(process_logged(process, "\n"), 0);
}

TEST(the_version_is_that_of_the_header) {
    struct process *process = process_new();
    const char *const arguments[] = {"--version", NULL};
    assert_int_equal(process_run(process, arguments, NULL), 0);
    char *out = file_read(process->out);
    assert_string_equal(out, "doorman_server " DOORMAN_VERSION "\n");
    free(out);
}

/* V7: nobody has seen the output, so the exit code is not 0. */
TEST(output_that_cannot_be_written_is_a_failure) {
    struct process *process = process_new();
    const char *const arguments[] = {"--version", NULL};
    snprintf(process->out, sizeof process->out, "/dev/full");
    assert_int_equal(process_run(process, arguments, NULL), 1);
    assert_int_equal(process_logged(process, "cannot write to standard output"), 1);
}

/* ---- environment ---------------------------------------------------------------------------- */

TEST(every_flag_can_be_set_in_the_environment) {
    char config[128], first[128], second[128];
    struct process *process = process_new();
    snprintf(config, sizeof config, "DOORMAN_CONFIG=%s", process->config);
    const char *const arguments[] = {NULL};
    const char *const environment[] = {config,
                                       "DOORMAN_LISTEN=tcp://127.0.0.1:0,tcp://127.0.0.1:0",
                                       "DOORMAN_ID=web-7",
                                       "DOORMAN_NODE=leaf eu",
                                       "DOORMAN_ADVERTISE=tcp://doorman.example:1",
                                       "DOORMAN_LOG_LEVEL=debug",
                                       "DOORMAN_CHECK_CONFIG=0",
                                       "DOORMAN_OF_ANOTHER_PROGRAM=left alone",
                                       NULL};
    file_write(process->config, CONFIG_120);
    process_start(process, arguments, environment);
    process_await(process, "msg=serving", 1);
    char *log_text = file_read(process->err);
    assert_non_null(strstr(log_text, " id=web-7 node=\"leaf eu\" "));
    assert_non_null(strstr(log_text, " advertise=tcp://doorman.example:1 resources=2\n"));
    const char *listen = strstr(log_text, " listen=");
    assert_int_equal(sscanf(listen, " listen=%127[^,],%127[^ ]", first, second), 2);
    free(log_text);
    for (int i = 0; i < 2; i++) {
        char *reply = send_bytes(i ? second : first, "{\"discovery\":{}}", 16);
        assert_non_null(reply);
        free(reply);
    }
    process_signal(process, SIGTERM);
    process_end(process, 0);
}

TEST(flags_take_precedence_over_the_environment) {
    struct process *process = process_new();
    const char *const arguments[] = {"--config",
                                     process->config,
                                     "--listen=tcp://127.0.0.1:0",
                                     "--node",
                                     "declared",
                                     "--log-level",
                                     "info",
                                     NULL};
    const char *const environment[] = {"DOORMAN_CONFIG=/nowhere", "DOORMAN_LISTEN=nonsense",
                                       "DOORMAN_NODE=undeclared", "DOORMAN_LOG_LEVEL=nonsense",
                                       NULL};
    file_write(process->config, CONFIG_120);
    process_start(process, arguments, environment);
    process_await(process, " node=declared ", 1);
    process_signal(process, SIGTERM);
    process_end(process, 0);
}

/* ---- checking a configuration --------------------------------------------------------------- */

static int check(struct process *process, const char *config) {
    const char *const arguments[] = {NULL};
    char variable[128];
    snprintf(variable, sizeof variable, "DOORMAN_CONFIG=%s", process->config);
    const char *const environment[] = {variable, "DOORMAN_CHECK_CONFIG=1", NULL};
    file_write(process->config, config);
    return process_run(process, arguments, environment);
}

TEST(check_config_accepts_a_valid_configuration) {
    char expected[128];
    struct process *process = process_new();
    assert_int_equal(check(process, "{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1},"
                                    "{\"identifier_glob\":\"*\",\"capacity\":1}]}"),
                     0);
    snprintf(expected, sizeof expected, "%s: ok, 2 resources\n", process->config);
    char *out = file_read(process->out);
    assert_string_equal(out, expected);
    free(out);
    assert_int_equal(process_logged(process, "\n"), 0);
}

/* G9 */
TEST(check_config_prints_a_line_for_each_warning) {
    struct process *process = process_new();
    char expected[2][256];
    snprintf(expected[0], sizeof expected[0],
             "%s:2:2: warning: resources[0].identifier_glob: a [ has no ],", process->config);
    snprintf(expected[1], sizeof expected[1],
             "%s:3:63: warning: resources[0].algorithm.refresh_interval: equals the lease_length",
             process->config);
    assert_int_equal(check(process,
                           "{\"resources\": [\n"
                           "{\"identifier_glob\": \"a[1-3\", \"capacity\": 1, \"algorithm\":\n"
                           "                   {\"kind\": \"FAIR_SHARE\", \"lease_length\": 60,"
                           " \"refresh_interval\": 60}}]}"),
                     0);
    assert_int_equal(process_logged(process, "\n"), 2);
    assert_int_equal(process_logged(process, expected[0]), 1);
    assert_int_equal(process_logged(process, expected[1]), 1);
    assert_int_equal(check(process, "{\"resources\": []}"), 0);
    assert_int_equal(process_logged(process, ":1:2: warning: resources: is empty,"), 1);
    char *out = file_read(process->out);
    assert_non_null(strstr(out, ": ok, 0 resources\n"));
    free(out);
}

/* G9: a learning_mode_duration below the lease length with drift, 60 s * 1.05, causes a warning.
 * Immediate handover does not promise T7, so it causes no warning. */
TEST(learning_for_less_than_a_lease_causes_a_warning) {
    struct process *process = process_new();
    assert_int_equal(
        check(process,
              "{\"resources\":["
              "{\"identifier_glob\":\"a\",\"capacity\":1,\"algorithm\":{\"kind\":\"FAIR_SHARE\","
              "\"lease_length\":60,\"refresh_interval\":16,\"learning_mode_duration\":63}},"
              "{\"identifier_glob\":\"b\",\"capacity\":1,\"algorithm\":{\"kind\":\"FAIR_SHARE\","
              "\"lease_length\":60,\"refresh_interval\":16,\"learning_mode_duration\":62.9}},"
              "{\"identifier_glob\":\"c\",\"capacity\":1,\"algorithm\":{\"kind\":\"FAIR_SHARE\","
              "\"lease_length\":60,\"refresh_interval\":16,\"learning_mode_duration\":0,"
              "\"parameters\":[{\"name\":\"handover\",\"value\":\"immediate\"}]}}]}"),
        0);
    assert_int_equal(process_logged(process, "\n"), 1);
    assert_int_equal(process_logged(process, "resources[1].algorithm.learning_mode_duration"), 1);
    char *out = file_read(process->out);
    assert_non_null(strstr(out, ": ok, 3 resources\n"));
    free(out);
}

/* ---- log ------------------------------------------------------------------------------------ */

/* V6. */
TEST(every_line_of_the_log_is_logfmt) {
    static const char *const form =
        "^time=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
        "level=(debug|info|warning|error) msg=([^ \"=]+|\"([^\"\\\\]|\\\\.)+\")"
        "( [a-z_]+=([^ \"=]+|\"([^\"\\\\]|\\\\.)*\"))*$";
    const char *const more[] = {"--node", "a \"node\" = \\ of mine", "--log-level", "debug", NULL};
    struct server server = server_start(CONFIG_120, more);
    assert_true(capacity_of(&server, CAPACITY_REQUEST("a \\\"client\\\"", "no = template", "1")) ==
                1);
    config_replace(server.process, "{\"resources\":[{\"a \\\"key\\\"\":1}]}");
    process_signal(server.process, SIGHUP);
    process_await(server.process, "configuration refused", 1);
    server_stop(&server);
    regex_t regex;
    assert_int_equal(regcomp(&regex, form, REG_EXTENDED | REG_NOSUB), 0);
    char *log_text = file_read(server.process->err), *rest = log_text;
    int lines = 0;
    for (char *line = NULL; (line = strsep(&rest, "\n")) != NULL && rest; lines++) {
        if (regexec(&regex, line, 0, NULL, 0) != 0) fail_msg("not logfmt: %s", line);
    }
    assert_true(lines >= 4);
    assert_non_null(strstr(log_text, "node=\"a \\\"node\\\" = \\\\ of mine\""));
    free(log_text);
    regfree(&regex);
}

/* V6: control characters could control a terminal, so they are escaped. */
TEST(control_characters_are_escaped_in_the_log) {
    char config[128];
    struct process *process = process_new();
    snprintf(config, sizeof config, "%s/a\nb\033c", process->folder);
    const char *const arguments[] = {"--config", config, "--listen=tcp://127.0.0.1:0", NULL};
    file_write(config, "{\"resources\":[{\"identifier_glob\":\"a\",\"capacity\":1}]}");
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    process_signal(process, SIGHUP);
    process_await(process, "msg=\"configuration loaded\"", 1);
    process_signal(process, SIGTERM);
    process_end(process, 0);
    assert_int_equal(process_logged(process, "/a\\nb\\u001bc\""), 1);
    assert_int_equal(process_logged(process, "\033"), 0);
}

TEST(lines_below_the_log_level_are_not_logged) {
    char url[96], *reply = NULL;
    struct process *process = process_new();
    snprintf(url, sizeof url, "ipc://%s", process->socket);
    const char *const arguments[] = {"--config", process->config,     "--listen",
                                     url,        "--log-level=error", NULL};
    file_write(process->config, CONFIG_120);
    process_start(process, arguments, NULL);
    for (int waited = 0; !reply && waited < TIMEOUT_MS; waited += 10) {
        reply = send_bytes(url, "{\"discovery\":{}}", 16);
        if (!reply) sleep_ms(10);
    }
    assert_non_null(reply);
    free(reply);
    file_write(process->config, "");
    process_signal(process, SIGHUP);
    process_await(process, "level=error", 1);
    process_signal(process, SIGTERM);
    process_end(process, 0);
    assert_int_equal(process_logged(process, "\n"), process_logged(process, "level=error"));
}
