/* Events (P33): what happens in a real server, as subscribers see it. */
#define _GNU_SOURCE
#define BEARER(token) "Authorization: Bearer " token "\r\n"
#include "etcd_fixture.h"
#include "state_fixture.h"

#include <netinet/in.h>
#include <poll.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/supplemental/tls/tls.h>

#define ADMIN HOST JSON BEARER("top-1")
#define DAYS "10000000"
#define LIMITS                                                                                     \
    "{\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"per_user\", \"kind\": "            \
    "\"FIXED_WINDOW\", \"limit\": 2, \"window\": " DAYS ", \"max_keys\": 1, \"ban\": "             \
    "{\"refusals\": 2, \"window\": 60, \"duration\": 3600}}]},"                                    \
    "{\"identifier_glob\": \"steps\", \"limits\": [{\"name\": \"steps\", \"kind\": \"TIERS\", "    \
    "\"tiers\": [{\"limit\": 1, \"window\": " DAYS ", \"active\": 3600}, {\"limit\": 9, "          \
    "\"window\": " DAYS ", \"active\": 3600}]}]},"                                                 \
    "{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", \"per\": \"resource\", "  \
    "\"kind\": \"CONCURRENCY\", \"limit\": 1, \"max_wait\": 600, \"queue\": 9, "                   \
    "\"time_to_live\": 1, \"on_restart\": \"full\"}]},"                                            \
    "{\"identifier_glob\": \"llm\", \"limits\": [{\"name\": \"tokens\", \"kind\": "                \
    "\"FIXED_WINDOW\", \"limit\": 100, \"window\": " DAYS "}]},"                                   \
    "{\"identifier_glob\": \"free\", \"limits\": [{\"name\": \"all\", \"per\": \"template\", "     \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, \"window\": " DAYS ", \"on_restart\": "           \
    "\"full\"}]}"
#define LEASES_OF(glob, length)                                                                    \
    "{\"identifier_glob\": \"" glob "\", \"capacity\": 100, \"algorithm\": {\"kind\": "            \
    "\"FAIR_SHARE\", \"lease_length\": " length ", \"refresh_interval\": 1, "                      \
    "\"learning_mode_duration\": 0}}"
#define LEASES LEASES_OF("db", "600") "," LEASES_OF("brief", "2")
#define ALL "{\"resources\": [" LIMITS "," LEASES "]}"
#define NODE                                                                                       \
    "{\"resources\": [{\"identifier_glob\": \"maps\", \"limits\": [{\"name\": \"q\", "             \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, \"window\": " DAYS "}]}]}"

#define KIND_MAX 64

/* A subscriber, and the fields of each kind of event that it has seen. */
struct subscriber {
    nng_socket socket;
    double seq; /* of the last event; 0: none */
    char kinds[KIND_MAX][32];
    cJSON *fields[KIND_MAX];
    size_t kind_count;
};

static void find_url(const struct process *process, char url[128]) {
    process_await(process, "publishing events", 1);
    char *log_text = file_read(process->err);
    assert_int_equal(sscanf(strstr(log_text, " events="), " events=%127s", url), 1);
    free(log_text);
}

static void subscribe_with(struct subscriber *own, const char *url, const char *topic, int buffer) {
    *own = (struct subscriber){.seq = 0};
    assert_int_equal(nng_sub0_open(&own->socket), 0);
    nng_socket_set_ms(own->socket, NNG_OPT_RECVTIMEO, TIMEOUT_MS);
    nng_socket_set_int(own->socket, NNG_OPT_RECVBUF, buffer);
    assert_int_equal(nng_socket_set(own->socket, NNG_OPT_SUB_SUBSCRIBE, topic, strlen(topic)), 0);
    assert_int_equal(nng_dial(own->socket, url, NULL, 0), 0);
}

static void unsubscribe(struct subscriber *own) {
    nng_close(own->socket);
    for (size_t i = 0; i < own->kind_count; i++) cJSON_Delete(own->fields[i]);
}

/* Receives an event. The caller deletes it.
 *   topic   out */
static cJSON *receive(struct subscriber *own, char topic[512]) {
    char *bytes = NULL;
    size_t count = 0;
    int error = nng_recv(own->socket, &bytes, &count, NNG_FLAG_ALLOC);
    if (error != 0) fail_msg("no event: %s", nng_strerror(error));
    const char *space = (const char *)memchr(bytes, ' ', count);
    assert_non_null(space);
    assert_int_equal(bytes[count - 1], '\n');
    snprintf(topic, 512, "%.*s", (int)(space - bytes), bytes);
    cJSON *json = cJSON_ParseWithLength(space, count - (size_t)(space - bytes));
    assert_non_null(json);
    assert_int_equal(strncmp(topic, text(json, "event"), strlen(text(json, "event"))), 0);
    nng_free(bytes, count);
    return json;
}

/* Records which fields an event of this kind has. */
static void note_fields(struct subscriber *own, const cJSON *json) {
    const char *kind = text(json, "event");
    size_t i = 0;
    while (i < own->kind_count && strcmp(own->kinds[i], kind) != 0) i++;
    assert_true(i < KIND_MAX);
    if (i == own->kind_count) {
        snprintf(own->kinds[i], sizeof own->kinds[i], "%s", kind);
        own->fields[i] = cJSON_CreateObject();
        own->kind_count++;
    }
    for (const cJSON *field = json->child; field; field = field->next) {
        if (cJSON_HasObjectItem(own->fields[i], field->string)) continue;
        cJSON_AddNumberToObject(own->fields[i], field->string, 1);
    }
}

/* Receives events until one has this topic. Fails if there is a gap in the `seq` of the events. The
 * caller deletes the JSON. */
static cJSON *await(struct subscriber *own, const char *wanted) {
    char topic[512] = "";
    cJSON *json = NULL;
    while (strcmp(topic, wanted) != 0) {
        cJSON_Delete(json);
        json = receive(own, topic);
        note_fields(own, json);
        if (own->seq > 0) assert_true(number(json, "seq") == own->seq + 1);
        own->seq = number(json, "seq");
    }
    return json;
}

static void expect_event(struct subscriber *own, const char *wanted, const char *field,
                         const char *value) {
    cJSON *json = await(own, wanted);
    if (field) assert_string_equal(text(json, field), value);
    cJSON_Delete(json);
}

/* Asks for units of a resource until an event has arrived. From then on no event is lost.
 *   returns   the event; the caller deletes it */
static cJSON *connect_by(struct subscriber *own, const struct fixture *fixture, const char *path,
                         const char *lines) {
    char topic[512];
    cJSON *json = NULL;
    for (int tries = 0; !json; tries++) {
        struct pollfd ready = {.events = POLLIN};
        assert_int_equal(nng_socket_get_int(own->socket, NNG_OPT_RECVFD, &ready.fd), 0);
        assert_true(tries < TIMEOUT_MS / 50);
        expect(fixture, path, lines, 200, "");
        if (poll(&ready, 1, 50) > 0) json = receive(own, topic);
    }
    return json;
}

/* Asks for units of the resource `hello` until an event has arrived. */
static void connect_to(struct subscriber *own, const struct fixture *fixture, const char *lines) {
    cJSON_Delete(connect_by(own, fixture, "/v1/allow?resource=hello&key=a", lines));
}

static void allow(const struct fixture *fixture, const char *resource, const char *key, int code) {
    char path[128];
    snprintf(path, sizeof path, "/v1/allow?resource=%s&key=%s", resource, key);
    expect(fixture, path, ADMIN, code, "");
}

/* Posts a message, and expects the status 200 and a text in the response. */
static void send_message(const struct fixture *fixture, const char *path, const char *body,
                         const char *text) {
    expect_post(fixture, path, ADMIN, body, 200, text);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

static void play_permits(struct subscriber *own, const struct fixture *fixture) {
    allow(fixture, "login", "bob", 200);
    expect_event(own, "permit.granted.login", "limit", "per_user");
    allow(fixture, "login", "bob", 200);
    allow(fixture, "login", "bob", 429);
    expect_event(own, "permit.refused.login", "reason", "RATE");
    allow(fixture, "login", "bob", 429);
    expect_event(own, "ban.started.login", "key", "bob");
    allow(fixture, "login", "bob", 429);
    expect_event(own, "permit.refused.login", "reason", "BANNED");
    allow(fixture, "login", "ann", 200); /* there is room for the counter of one key */
    expect_event(own, "key.evicted.login", "key", "bob");
    allow(fixture, "login", "ann", 200);
    allow(fixture, "login", "ann", 429);
    allow(fixture, "login", "ann", 429); /* there is room for one ban */
    expect_event(own, "ban.evicted.login", "key", "bob");
    allow(fixture, "steps", "bob", 200);
    allow(fixture, "steps", "bob", 200);
    expect_event(own, "permit.tier.steps", "limit", "steps");
    allow(fixture, "a%2fb%20c", "bob", 200);
    expect_event(own, "permit.unmatched.a/b%20c", "resource_id", "a/b c");
    allow(fixture, "free", "bob", 200); /* its counter is that of the template */
    expect_event(own, "permit.granted.free", "resource_id", "free");
}

#define PERMIT(client, wait)                                                                       \
    "{\"client_id\": \"" client "\", \"permit\": [{\"request_id\": 1, \"max_wait\": " wait ", "    \
    "\"item\": [{\"resource_id\": \"slots\", \"cost\": 1}]}]}"

static void play_queues(struct subscriber *own, const struct fixture *fixture) {
    send_message(fixture, "/v1/acquire", PERMIT("ann", "0"), "GRANTED");
    send_message(fixture, "/v1/acquire", PERMIT("bob", "500"), "GRANTED");
    expect_event(own, "queue.entered.slots", "limit", "slots");
    expect_event(own, "hold.expired.slots", "resource_id", "slots");
    expect_event(own, "queue.ended.slots", "outcome", "granted");
}

#define RESERVE(number, within)                                                                    \
    "{\"client_id\": \"gw\", \"permit\": [{\"request_id\": " number ", \"settle_within\": " within \
    ", \"item\": [{\"resource_id\": \"llm\", \"key\": \"bob\", \"cost\": 6}]}]}"
#define SETTLE                                                                                     \
    "{\"client_id\": \"gw\", \"entry\": [{\"request_id\": 1, \"item\": [{\"resource_id\": "        \
    "\"llm\", \"key\": \"bob\", \"cost\": 1}]}]}"

static void play_reservations(struct subscriber *own, const struct fixture *fixture) {
    send_message(fixture, "/v1/acquire", RESERVE("1", "3000"), "GRANTED");
    cJSON *json = await(own, "reservation.made.llm");
    const double id = number(json, "id");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "key")), "bob");
    assert_true(id > 0);
    cJSON_Delete(json);
    send_message(fixture, "/v1/settle", SETTLE, "\"returned\":5");
    json = await(own, "reservation.settled.llm");
    assert_true(number(json, "cost") == 1 && number(json, "returned") == 5);
    assert_true(number(json, "id") >= id && number(json, "id") <= id);
    cJSON_Delete(json);
    send_message(fixture, "/v1/acquire", RESERVE("2", "0.001"), "GRANTED");
    json = await(own, "reservation.ended.llm");
    assert_true(number(json, "units") == 6 && number(json, "returned") == 0);
    cJSON_Delete(json);
}

#define WANTS(client, resource)                                                                    \
    "{\"client_id\": \"" client "\", \"resource\": [{\"resource_id\": \"" resource                 \
    "\", \"wants\": 5}]}"

static void play_leases(struct subscriber *own, const struct fixture *fixture) {
    char *answer = post(fixture, "/v1/get_capacity", ADMIN, WANTS("host:1:secret", "db"));
    char body[256];
    assert_non_null(strstr(answer, "\"id\":"));
    snprintf(body, sizeof body,
             "{\"client_id\": \"host:1:secret\", \"resource\": [{\"resource_id\": \"db\", "
             "\"id\": %.*s}]}",
             (int)strspn(strstr(answer, "\"id\":") + 5, "0123456789"),
             strstr(answer, "\"id\":") + 5);
    free(answer);
    expect_event(own, "lease.granted.db", "holder_id", "host:1...");
    send_message(fixture, "/v1/release_capacity", body, "");
    expect_event(own, "lease.ended.db", "outcome", "released");
    send_message(fixture, "/v1/get_capacity", WANTS("host:2:secret", "brief"), "gets");
    expect_event(own, "lease.ended.brief", "outcome", "expired");
    send_message(fixture, "/v1/get_capacity", WANTS("host:1:secret", "free"), "UNMATCHED");
    expect_event(own, "lease.refused.free", "outcome", "UNMATCHED");
}

static void play_operators(struct subscriber *own, const struct fixture *fixture) {
    const struct process *process = fixture->server.process;
    send_message(fixture, "/v1/reset?reason=ticket%201",
                 "{\"entry\": [{\"resource_id\": \"login\", \"key\": \"bob\"}]}", "count");
    cJSON *json = await(own, "admin.reset");
    assert_string_equal(text(json, "token"), "ann");
    assert_string_equal(text(json, "key"), "bob");
    assert_true(number(json, "audit") == 1 && number(json, "entries") == 1);
    cJSON_Delete(json);
    config_replace(process, "{\"resources\": [" LEASES "," LIMITS "]}");
    expect_event(own, "config.loaded", NULL, NULL);
    config_replace(process, "{\"resources\": []");
    expect_event(own, "config.refused", NULL, NULL);
    config_replace(process, ALL);
    expect_event(own, "config.loaded", NULL, NULL);
}

/* Returns the example of a kind of event in docs/protocol.md. The caller deletes it. */
static cJSON *find_example(const char *manual, const char *kind) {
    char start[64];
    snprintf(start, sizeof start, "\n%s", kind);
    for (const char *at = manual; (at = strstr(at, start)); at++) {
        const char *next = at + strlen(start);
        if (*next != '.' && *next != ' ') continue;
        cJSON *json = cJSON_Parse(next + strcspn(next, " \n"));
        if (cJSON_HasObjectItem(json, "event")) return json;
        cJSON_Delete(json);
    }
    fail_msg("docs/protocol.md has no example of the event %s", kind);
    return NULL;
}

/* Expects each kind of event that was seen to have the fields of its example in the manual. */
static void compare_with_manual(const struct subscriber *own) {
    char *manual = file_read("docs/protocol.md");
    for (size_t i = 0; i < own->kind_count; i++) {
        cJSON *example = find_example(manual, own->kinds[i]);
        const cJSON *field = NULL;
        assert_string_equal(text(example, "event"), own->kinds[i]);
        cJSON_ArrayForEach(field, own->fields[i]) {
            if (cJSON_HasObjectItem(example, field->string)) continue;
            fail_msg("the example of %s lacks %s", own->kinds[i], field->string);
        }
        cJSON_ArrayForEach(field, example) {
            if (cJSON_HasObjectItem(own->fields[i], field->string)) continue;
            fail_msg("no event %s has %s", own->kinds[i], field->string);
        }
        cJSON_Delete(example);
    }
    free(manual);
}

/* P33 */
TEST(what_happens_is_an_event_as_the_manual_says) {
    char path[96], tokens[96];
    struct subscriber own;
    char url[128];
    state_path(path);
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, "admin ann top-1\n");
    const char *const more[] = {"--http-token",   tokens, "--events", "tcp://127.0.0.1:0",
                                "--event-sample", "1",    NULL};
    struct fixture fixture = start(ALL, path, more);
    find_url(fixture.server.process, url);
    subscribe_with(&own, url, "", 8192);
    connect_to(&own, &fixture, ADMIN);
    play_permits(&own, &fixture);
    play_queues(&own, &fixture);
    play_reservations(&own, &fixture);
    play_leases(&own, &fixture);
    play_operators(&own, &fixture);
    compare_with_manual(&own);
    assert_int_equal(own.kind_count, 19);
    expect(&fixture, "/metrics", ADMIN, 200,
           "doorman_events_published_total{event=\"lease.refused\"} 1\n");
    expect(&fixture, "/metrics", ADMIN, 200, "\ndoorman_events_lost_total 0\n");
    expect(&fixture, "/v1/status", ADMIN, 200, "\"subscribers\":1,\"lost\":0,\"sample\":1}");
    server_stop(&fixture.server);
    unsubscribe(&own);
}

static bool gets_lease(const struct fixture *fixture) {
    char *answer = post(fixture, "/v1/get_capacity", HOST JSON, WANTS("a", "brief"));
    bool is_granted = strstr(answer, "\"capacity\":5") != NULL;
    free(answer);
    return is_granted;
}

/* Receives events until one has this topic, also if others were lost. The caller deletes it. */
static cJSON *seek(struct subscriber *own, const char *wanted) {
    char topic[512] = "";
    cJSON *json = NULL;
    while (strcmp(topic, wanted) != 0) {
        cJSON_Delete(json);
        json = receive(own, topic);
    }
    note_fields(own, json);
    return json;
}

TEST(a_node_whose_lease_ends_says_so) {
    struct fixture root = fixture_start(ALL, NULL), leaf = {.server = {process_new(), ""}};
    struct subscriber own;
    char url[128];
    unsigned port = 0;
    process_start(leaf.server.process,
                  (const char *[]){"--parent", root.server.url, "--node", "leaf", "--listen",
                                   "tcp://127.0.0.1:0", "--http", "127.0.0.1:0", "--events",
                                   "tcp://127.0.0.1:0", NULL},
                  NULL);
    find_url(leaf.server.process, url);
    char *log_text = file_read(leaf.server.process->err);
    assert_int_equal(sscanf(strstr(log_text, " http="), " http=http://127.0.0.1:%u", &port), 1);
    snprintf(leaf.http.url, sizeof leaf.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    leaf.http.process = leaf.server.process;
    subscribe_with(&own, url, "lease.", 8192);
    EVENTUALLY(gets_lease(&leaf));
    process_signal(root.server.process, SIGKILL);
    process_wait(root.server.process);
    cJSON_Delete(seek(&own, "lease.lost.brief"));
    compare_with_manual(&own);
    server_stop(&leaf.server);
    unsubscribe(&own);
}

/* ---- masters -------------------------------------------------------------------------------- */

static struct fixture member_of(const struct etcd *etcd) {
    struct fixture fixture = {.server = {process_new(), ""}};
    struct process *process = fixture.server.process;
    unsigned port = 0;
    file_write(process->config, NODE);
    process_start(process,
                  (const char *[]){"--config", process->config, "--listen", "tcp://127.0.0.1:0",
                                   "--http", "127.0.0.1:0", "--etcd", etcd->url, "--election-key",
                                   "doorman/master", "--election-ttl", "5", "--events",
                                   "tcp://127.0.0.1:0", NULL},
                  NULL);
    process_await(process, "publishing events", 1);
    char *log_text = file_read(process->err);
    assert_int_equal(sscanf(strstr(log_text, " http="), " http=http://127.0.0.1:%u", &port), 1);
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    fixture.http.process = process;
    return fixture;
}

/* Lets a process load its configuration again and again, until an event has arrived. */
static void connect_by_reload(struct subscriber *own, const struct process *process) {
    char topic[512];
    struct pollfd ready = {.events = POLLIN};
    assert_int_equal(nng_socket_get_int(own->socket, NNG_OPT_RECVFD, &ready.fd), 0);
    for (int tries = 0; poll(&ready, 1, 100) == 0; tries++) {
        assert_true(tries < TIMEOUT_MS / 100);
        process_signal(process, SIGHUP);
    }
    cJSON_Delete(receive(own, topic));
}

/* P33: each process has a stream of its own. */
TEST(a_change_of_master_is_an_event_of_both_processes) {
    struct etcd etcd;
    struct subscriber first, second;
    char url[128];
    etcd_require(&etcd);
    struct fixture one = member_of(&etcd);
    process_await(one.server.process, "this server is the master", 1);
    find_url(one.server.process, url);
    subscribe_with(&first, url, "", 8192);
    struct fixture other = member_of(&etcd);
    find_url(other.server.process, url);
    subscribe_with(&second, url, "", 8192);
    connect_by_reload(&first, one.server.process);
    connect_by_reload(&second, other.server.process);
    process_signal(one.server.process, SIGTERM);
    cJSON *lost = seek(&first, "mastership.lost");
    cJSON *gained = seek(&second, "mastership.gained");
    process_end(one.server.process, 0);
    assert_string_equal(text(lost, "node"), text(gained, "node"));
    assert_string_not_equal(text(lost, "server"), text(gained, "server"));
    assert_string_not_equal(text(lost, "stream"), text(gained, "stream"));
    cJSON_Delete(lost);
    cJSON_Delete(gained);
    compare_with_manual(&first);
    compare_with_manual(&second);
    server_stop(&other.server);
    unsubscribe(&first);
    unsubscribe(&second);
    etcd_stop(&etcd);
}

/* ---- numbers -------------------------------------------------------------------------------- */

#define PERMITS_OF_MESSAGE 1000

/* Acquires many permits with one message. All must be granted. */
static void acquire_many(const struct fixture *fixture) {
    static char body[PERMITS_OF_MESSAGE * 80 + 256];
    size_t bytes = (size_t)snprintf(body, sizeof body, "{\"client_id\": \"me\", \"permit\": [");
    for (int i = 0; i < PERMITS_OF_MESSAGE; i++) {
        bytes += (size_t)snprintf(body + bytes, sizeof body - bytes,
                                  "%s{\"item\": [{\"resource_id\": \"free\", \"key\": \"%d\"}]}",
                                  i ? "," : "", i);
    }
    snprintf(body + bytes, sizeof body - bytes, "]}");
    char *answer = post(fixture, "/v1/acquire", HOST JSON, body);
    assert_int_equal(code_of(answer), 200);
    assert_null(strstr(answer, "REFUSED"));
    free(answer);
}

static struct fixture start_with(const char *config, const char *sample, char url[128]) {
    const char *const more[] = {"--events", "tcp://127.0.0.1:0", "--event-sample", sample, NULL};
    struct fixture fixture = fixture_start(config, more);
    find_url(fixture.server.process, url);
    return fixture;
}

/* Connects as a subscriber that does not read, and has a small receive buffer. */
static int subscribe_silently(const char *url) {
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x21, 0, 0};
    unsigned char answer[8];
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), room = 4096;
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_true(raw_send(fd, hello, sizeof hello));
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    return fd;
}

/* Reads a line as nng frames it: its length in 8 bytes, and then its bytes. The caller deletes the
 * JSON. */
static cJSON *read_frame(int fd) {
    static char line[65536];
    unsigned char head[8];
    size_t bytes = 0;
    assert_true(receive_all(fd, head, sizeof head));
    for (int i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    assert_true(bytes > 0 && bytes < sizeof line);
    assert_true(receive_all(fd, line, bytes));
    line[bytes] = 0;
    return cJSON_Parse(strchr(line, ' '));
}

/* Reads the next line. If none comes for a moment, makes a further event.
 *   count   in/out: the events that were made */
static cJSON *read_or_make(int fd, const struct fixture *fixture, double *count) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    for (int tries = 0; poll(&ready, 1, 50) == 0; tries++) {
        assert_true(tries < TIMEOUT_MS / 50);
        expect(fixture, "/v1/allow?resource=free&key=first", HOST, 200, "");
        (*count)++;
    }
    return read_frame(fd);
}

/* P33: a subscriber that does not read delays nobody. When it reads again, `seq` shows how many
 * events it has lost, and `topic_seq` shows how many events of one topic. */
TEST(a_slow_subscriber_delays_nobody_and_sees_what_it_has_lost) {
    char url[128];
    struct fixture fixture = start_with(ALL, "1", url);
    int fd = subscribe_silently(url);
    double made = 0, lost = 0, of_topic = 0;
    cJSON *json = read_or_make(fd, &fixture, &made);
    double seq = number(json, "seq"), topic_seq = number(json, "topic_seq");
    cJSON_Delete(json);
    for (int i = 0; i < 40; i++) acquire_many(&fixture);
    made += 40 * PERMITS_OF_MESSAGE;
    for (const double end = made; seq <= end;) { /* until one comes that was made later */
        json = read_or_make(fd, &fixture, &made);
        if (number(json, "seq") <= seq || number(json, "topic_seq") <= topic_seq) {
            fail_msg("event %.0f, %.0f comes after %.0f, %.0f", number(json, "seq"),
                     number(json, "topic_seq"), seq, topic_seq);
        }
        lost += number(json, "seq") - seq - 1;
        of_topic += number(json, "topic_seq") - topic_seq - 1;
        seq = number(json, "seq");
        topic_seq = number(json, "topic_seq");
        cJSON_Delete(json);
    }
    /* all events have the same topic */
    if (lost <= 0 || seq > made || of_topic > lost || of_topic < lost) {
        fail_msg("%.0f lost, %.0f of the topic, the last is %.0f of %.0f", lost, of_topic, seq,
                 made);
    }
    close(fd);
    EVENTUALLY(metric(&fixture, "doorman_events_subscribers") == 0);
    server_stop(&fixture.server);
}

#define FREE "/v1/allow?resource=free&key=a"

/* P33: the events of a topic have numbers of their own. Events that nobody has received leave a gap
 * in these numbers. */
TEST(a_topic_has_its_own_numbers) {
    char url[128];
    struct fixture fixture = start_with(ALL, "1", url);
    struct subscriber own;
    subscribe_with(&own, url, "permit.granted.free ", 8192);
    cJSON *json = connect_by(&own, &fixture, FREE, HOST);
    double before = number(json, "topic_seq");
    cJSON_Delete(json);
    for (int i = 0; i < 5; i++) {
        expect(&fixture, "/v1/allow?resource=hello&key=a", HOST, 200, "");
        expect(&fixture, FREE, HOST, 200, "");
        json = seek(&own, "permit.granted.free");
        assert_true(number(json, "topic_seq") == before + 1);
        before++;
        cJSON_Delete(json);
    }
    unsubscribe(&own);
    EVENTUALLY(metric(&fixture, "doorman_events_subscribers") == 0);
    for (int i = 0; i < 7; i++) expect(&fixture, FREE, HOST, 200, "");
    subscribe_with(&own, url, "permit.granted.free ", 8192);
    json = connect_by(&own, &fixture, FREE, HOST);
    assert_true(number(json, "topic_seq") >= before + 8);
    cJSON_Delete(json);
    unsubscribe(&own);
    server_stop(&fixture.server);
}

/* P33: a random fraction of each key's grants becomes events. Each refusal becomes an event. */
TEST(grants_are_sampled_and_refusals_are_not) {
    char url[128];
    struct fixture fixture = start_with(ALL, "0.1", url);
    struct subscriber own;
    bool seen[PERMITS_OF_MESSAGE] = {false};
    char topic[512] = "";
    int keys = 0, events = 0;
    subscribe_with(&own, url, "permit.", 8192);
    connect_to(&own, &fixture, HOST);
    for (int i = 0; i < 40; i++) acquire_many(&fixture);
    for (int i = 0; i < 3; i++) free(get(&fixture, "/v1/allow?resource=login&key=x", HOST));
    for (bool is_over = false; !is_over;) {
        cJSON *json = receive(&own, topic);
        is_over = strcmp(topic, "permit.refused.login") == 0;
        if (strcmp(topic, "permit.granted.free") == 0) {
            assert_true(number(json, "sample") == 0.1);
            seen[atoi(text(json, "key"))] = true;
            events++;
        }
        cJSON_Delete(json);
    }
    for (int i = 0; i < PERMITS_OF_MESSAGE; i++) keys += seen[i];
    assert_in_range(events, 3500, 4500); /* 4,000 are expected, and 60 are a standard deviation */
    assert_true(keys > 950); /* a key is missed with a probability of 0.9^40, or 1.5 % */
    unsubscribe(&own);
    server_stop(&fixture.server);
}

/* ---- settings ------------------------------------------------------------------------------- */

TEST(keys_can_be_left_out_of_events) {
    struct fixture fixture = fixture_start(
        ALL, (const char *[]){"--events", "tcp://127.0.0.1:0", "--event-keys", "none", NULL});
    struct subscriber own;
    char url[128];
    find_url(fixture.server.process, url);
    subscribe_with(&own, url, "", 8192);
    connect_to(&own, &fixture, HOST);
    for (int i = 0; i < 3; i++) free(get(&fixture, "/v1/allow?resource=login&key=x", HOST));
    cJSON *json = await(&own, "permit.refused.login");
    assert_false(cJSON_HasObjectItem(json, "key"));
    cJSON_Delete(json);
    unsubscribe(&own);
    server_stop(&fixture.server);
}

TEST(wrong_settings_of_events_are_refused_at_the_start) {
    static const struct {
        const char *flags[5];
        const char *error;
    } cases[] = {
        {{"--events", "tcp://0.0.0.0:0"},
         "--events tcp://0.0.0.0:0 can be reached from other machines, and subscribers have no "
         "token: give tls+tcp://... and --tls-ca, or a loopback address"},
        {{"--events", "tcp://*:15060"}, "can be reached from other machines"},
        {{"--events", "127.0.0.1:15060"}, "must be tcp://HOST:PORT or tls+tcp://HOST:PORT"},
        {{"--events", "ipc:///tmp/events"}, "must be tcp://HOST:PORT or tls+tcp://HOST:PORT"},
        {{"--events", "tcp://127.0.0.1:99999"}, "cannot listen on --events"},
        {{"--events", "tls+tcp://127.0.0.1:0"}, "needs --tls-cert and --tls-key"},
        {{"--event-sample", "0.5"}, "--event-sample needs --events"},
        {{"--event-keys", "hash"}, "--event-keys needs --events"},
        {{"--events", "tcp://127.0.0.1:0", "--event-sample", "1.5"},
         "--event-sample is '1.5', not a number from 0 to 1"},
        {{"--events", "tcp://127.0.0.1:0", "--event-sample", "-1"}, "not a number from 0 to 1"},
        {{"--events", "tcp://127.0.0.1:0", "--event-sample", "1e-2"}, "not a number from 0 to 1"},
        {{"--events", "tcp://127.0.0.1:0", "--event-keys", "no"},
         "--event-keys is 'no', not plain, hash or none"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refusal(cases[i].flags, 2, cases[i].error);
    }
}

/* Dials with TLS.
 *   folder   NULL: the subscriber has no certificate; otherwise it has the one in `authority` */
static void subscribe_tls(struct subscriber *own, const char *url, const char *authority,
                          const char *folder) {
    nng_tls_config *tls = NULL;
    nng_dialer dialer;
    char path[160];
    memset(own, 0, sizeof *own);
    assert_int_equal(nng_tls_config_alloc(&tls, NNG_TLS_MODE_CLIENT), 0);
    snprintf(path, sizeof path, "%s/ca.pem", authority);
    assert_int_equal(nng_tls_config_ca_file(tls, path), 0);
    assert_int_equal(nng_tls_config_auth_mode(tls, NNG_TLS_AUTH_MODE_NONE), 0);
    snprintf(path, sizeof path, "cat %s/own.pem %s/own.key >%s/both.pem", authority, authority,
             authority);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/both.pem", authority);
    if (folder) assert_int_equal(nng_tls_config_cert_key_file(tls, path, NULL), 0);
    assert_int_equal(nng_sub0_open(&own->socket), 0);
    nng_socket_set_ms(own->socket, NNG_OPT_RECVTIMEO, TIMEOUT_MS);
    assert_int_equal(nng_socket_set(own->socket, NNG_OPT_SUB_SUBSCRIBE, "", 0), 0);
    assert_int_equal(nng_dialer_create(&dialer, own->socket, url), 0);
    assert_int_equal(nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls), 0);
    assert_int_equal(nng_dialer_start(dialer, NNG_FLAG_NONBLOCK), 0);
    nng_tls_config_free(tls);
}

/* Starts a server with events over TLS. TSan does not see how the threads of nng wait for each
 * other. So it reports a race between the thread that copies a message for TLS and the thread that
 * frees it. This report is suppressed. */
static struct process *tls_server_start(const char *folder, const char *cert, const char *key,
                                        const char *ca) {
    struct process *process = process_new();
    char path[128], options[256];
    snprintf(path, sizeof path, "%s/suppressions", folder);
    snprintf(options, sizeof options, "TSAN_OPTIONS=report_thread_leaks=0 suppressions=%s", path);
    file_write(path, "race:libnng.so\n");
    file_write(process->config, ALL);
    process_start(process,
                  (const char *[]){"--config", process->config, "--listen", "tcp://127.0.0.1:0",
                                   "--events", "tls+tcp://0.0.0.0:0", "--tls-cert", cert,
                                   "--tls-key", key, "--tls-ca", ca, NULL},
                  (const char *[]){options, NULL});
    return process;
}

TEST(with_tls_only_subscribers_with_a_certificate_get_events) {
    require_program("openssl");
    struct process *files = process_new();
    char cert[128], key[128], ca[128], url[128];
    struct subscriber own, stranger;
    certificates_make(files->folder);
    snprintf(cert, sizeof cert, "%s/own.pem", files->folder);
    snprintf(key, sizeof key, "%s/own.key", files->folder);
    snprintf(ca, sizeof ca, "%s/ca.pem", files->folder);
    expect_refusal((const char *[]){"--events", "tls+tcp://0.0.0.0:0", "--tls-cert", cert,
                                    "--tls-key", key, NULL},
                   2, "subscribers have no token: give tls+tcp://... and --tls-ca");
    struct process *server = tls_server_start(files->folder, cert, key, ca);
    find_url(server, url);
    char dialed[128];
    snprintf(dialed, sizeof dialed, "tls+tcp://127.0.0.1%s", strrchr(url, ':'));
    subscribe_tls(&stranger, dialed, files->folder, NULL);
    subscribe_tls(&own, dialed, files->folder, files->folder);
    connect_by_reload(&own, server);
    nng_socket_set_ms(stranger.socket, NNG_OPT_RECVTIMEO, 100);
    char *bytes = NULL;
    size_t count = 0;
    assert_int_not_equal(nng_recv(stranger.socket, &bytes, &count, NNG_FLAG_ALLOC), 0);
    unsubscribe(&own);
    unsubscribe(&stranger);
    process_signal(server, SIGTERM);
    process_end(server, 0);
}
