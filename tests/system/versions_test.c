/* Tests the versions of the configuration (E3): how they are put, listed, undone and kept, and what
 * happens when the store or the etcd that has them is away. The tests use real servers with a
 * store, and with an etcd if there is one. */
#define _GNU_SOURCE
#include "redis_fixture.h"
#include "state_fixture.h"

#include <sys/stat.h>

#define ADMIN HOST JSON BEARER("top-1")
#define READER HOST JSON BEARER("read-2")
#define WEB HOST JSON BEARER("web-3")
#define FIRST "If-None-Match: *\r\n"
#define MATCH(version) "If-Match: \"" version "\"\r\n"
#define QUOTA_OF(limit)                                                                            \
    "{\"resources\": [{\"identifier_glob\": \"maps\", \"limits\": [{\"name\": \"quota\", "         \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": " limit ", \"window\": 100000000}]}]}"
#define KEY "doorman/config"

/* A store, and the flags of a server whose configuration is in it. */
struct place {
    char path[96], tokens[96], cache[96];
    const char *flags[16];
};

static void place_init(struct place *place) {
    *place = (struct place){.path = ""};
    state_path(place->path);
    snprintf(place->tokens, sizeof place->tokens, "%s/tokens", process_new()->folder);
    snprintf(place->cache, sizeof place->cache, "%s/cache", process_new()->folder);
    file_write(place->tokens, "admin ann top-1\nread ron read-2\nwrite web web-3\n");
    const char *flags[] = {"--config", "store:", "--state",      place->path,
                           "--node",   "n",      "--http-token", place->tokens};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) place->flags[i] = flags[i];
}

static struct fixture place_start(const struct place *place) {
    struct fixture fixture = fixture_start("{}", place->flags);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    return fixture;
}

#define PUT(fixture, lines, body, code, text)                                                      \
    expect_verb(fixture, "PUT", "/v1/config?reason=ticket%204711", ADMIN lines, body, code, text)

/* Puts three versions into a fresh store: limits of 5, 2 and 9 units. */
static struct fixture place_start_with_three(const struct place *place) {
    struct fixture fixture = place_start(place);
    PUT(&fixture, FIRST, QUOTA_OF("5"), 200, "\"version\":1,");
    PUT(&fixture, MATCH("1"), QUOTA_OF("2"), 200, "\"version\":2,");
    PUT(&fixture, MATCH("2"), QUOTA_OF("9"), 200, "\"version\":3,");
    return fixture;
}

/* Returns whether a permit is refused because the server has not yet read the counters of a new
 * limit. */
static bool is_learning(const struct fixture *fixture, const char *path) {
    char *response = get(fixture, path, WEB);
    bool learns = strstr(response, "LEARNING") != NULL;
    free(response);
    return learns;
}

/* Takes a unit of a key, once the counters of its limit are read. */
static void take_one(const struct fixture *fixture, const char *key, int code, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "/v1/allow?resource=maps&key=%s&cost=0", key);
    EVENTUALLY(!is_learning(fixture, path));
    snprintf(path, sizeof path, "/v1/allow?resource=maps&key=%s", key);
    expect(fixture, path, WEB, code, text);
}

/* ---- the store ------------------------------------------------------------------------------ */

/* E3: the file of a configuration often comes from a repository (GitOps), so the server never
 * changes it. */
TEST(a_configuration_in_a_file_is_not_changed_over_http) {
    struct place place;
    place_init(&place);
    struct fixture fixture = fixture_start(QUOTA_OF("5"), place.flags + 2);
    PUT(&fixture, FIRST, QUOTA_OF("2"), 409, "is a file (--config ");
    expect_verb(&fixture, "POST", "/v1/config/rollback?version=1&reason=r", ADMIN MATCH("1"), "",
                409, "a server with --config store: or --config etcd:KEY");
    expect(&fixture, "/v1/config", READER, 200, "\"limit\":5");
    expect(&fixture, "/versions", READER, 200, "is a file, so it");
    server_stop(&fixture.server);
}

TEST(a_fresh_store_has_an_empty_configuration_and_says_how_to_put_one) {
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start(&place);
    process_await(fixture.server.process, "doormanctl config put FILE REASON", 1);
    take_one(&fixture, "acme", 200, "{\"decision\":\"GRANTED\",\"granted\":1}");
    PUT(&fixture, MATCH("1"), QUOTA_OF("2"), 412, "give doormanctl the version 0");
    PUT(&fixture, FIRST, QUOTA_OF("2"), 200, "ETag: \"1\"\r\n");
    expect(&fixture, "/v1/config", READER, 200, "ETag: \"1\"\r\n");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    server_stop(&fixture.server);
}

/* E5: undoing a change makes a new version, which equals the version before the change. */
TEST(a_version_is_undone_unless_a_later_one_is_there) {
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start_with_three(&place);
    expect_verb(&fixture, "POST", "/v1/audit/3/undo?reason=wrong", ADMIN, "", 200,
                "\"version\":4,\"before\":3,\"audit\":4,");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    expect_verb(&fixture, "POST", "/v1/audit/3/undo?reason=wrong", ADMIN, "", 409,
                "the present version is 4, not 3: 'ann' has changed it at 2");
    expect_verb(&fixture, "POST", "/v1/audit/4/undo?reason=again", ADMIN, "", 200,
                "\"version\":5,");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 9");
    expect_verb(&fixture, "POST", "/v1/audit/1/undo?reason=r", ADMIN, "", 409,
                "there was no version before the act 1");
    expect(&fixture, "/v1/audit?limit=1", ADMIN, 200, "\"undoes\":4,\"of\":\"config\"");
    server_stop(&fixture.server);
}

/* E3, E5: each version is in force at once, and its row says what it has changed. */
TEST(a_version_acts_is_listed_compared_and_rolled_back) {
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start_with_three(&place);
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 9");
    expect(&fixture, "/v1/config/versions?limit=2", READER, 200,
           "\"token\":\"ann\",\"reason\":\"ticket 4711\",\"audit\":3,\"before\":2,"
           "\"changes\":[\"maps quota limit: 2 -> 9\"]}\n{\"version\":2,");
    expect(&fixture, "/v1/config/versions?limit=2", READER, 200, "\n{\"next\":\"2\"}\n");
    expect(&fixture, "/v1/config/versions/1", READER, 200, "\"limit\":5,");
    expect(&fixture, "/v1/config/versions/3/diff", READER, 200,
           "{\"version\":3,\"before\":2,\"changes\":[{\"template\":\"maps\","
           "\"change\":\"changed\",\"fields\":[],\"limits\":[{\"limit\":\"quota\",\"change\":"
           "\"changed\",\"fields\":[{\"field\":\"limit\",\"last\":2,\"now\":9}]}]}]");
    expect(&fixture, "/v1/config/versions/1/diff", READER, 200, "\"change\":\"added\"");
    expect(&fixture, "/v1/config/versions/4", READER, 404, "there is no version 4");
    expect_verb(&fixture, "POST", "/v1/config/rollback?version=2&reason=too%20much",
                ADMIN MATCH("3"), "", 200, "\"version\":4,\"before\":3,");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    expect(&fixture, "/v1/audit?limit=1", ADMIN, 200,
           "\"what\":\"rollback\",\"reason\":\"too much\",\"before\":{\"version\":3},\"after\":"
           "{\"version\":4,\"changes\":[\"maps quota limit: 9 -> 2\"],\"of_version\":2}}");
    expect(&fixture, "/v1/audit?limit=1&after=4", ADMIN, 200, "\"what\":\"config\"");
    expect(&fixture, "/audit", ADMIN, 200, "changes maps quota limit: 9 -&gt; 2, of_version 2");
    expect(&fixture, "/versions", READER, 200, "<div>maps quota limit: 9 -&gt; 2</div>");
    expect(&fixture, "/versions?version=3", READER, 200, "<td data-name='after'>9</td>");
    server_stop(&fixture.server);
}

/* Two people change the configuration at the same time. */
TEST(a_change_of_an_older_version_is_refused_and_says_who_was_faster) {
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start_with_three(&place);
    PUT(&fixture, MATCH("2"), QUOTA_OF("7"), 412,
        "the present version is 3, not 2: 'ann' has changed it at 20");
    PUT(&fixture, MATCH("2"), QUOTA_OF("7"), 412, "Z, because: ticket 4711");
    PUT(&fixture, FIRST, QUOTA_OF("7"), 412, "the present version is 3");
    expect_verb(&fixture, "POST", "/v1/config/rollback?version=1&reason=r", ADMIN MATCH("2"), "",
                412, "the present version is 3");
    expect(&fixture, "/v1/config", READER, 200, "ETag: \"3\"\r\n");
    expect(&fixture, "/v1/audit?limit=1", ADMIN, 200, "{\"id\":3,");
    server_stop(&fixture.server);
}

TEST(what_is_wrong_with_a_change_is_named_and_nothing_changes) {
    static const struct {
        const char *verb, *path, *lines, *body;
        int code;
        const char *text;
    } cases[] = {
        {"PUT", "/v1/config?reason=r", ADMIN MATCH("3"), QUOTA_OF("-1"), 400,
         "\"field\":\"resources[0].limits[0].limit\""},
        {"PUT", "/v1/config?reason=r", ADMIN MATCH("3"), "{", 400, "\"errors\":[{\"line\":1"},
        {"PUT", "/v1/config?reason=r", ADMIN, QUOTA_OF("1"), 400, "If-Match: must be the version"},
        {"PUT", "/v1/config?reason=r", ADMIN "If-Match: *\r\n", QUOTA_OF("1"), 400, "If-Match: "},
        {"PUT", "/v1/config?reason=r", ADMIN "If-Match: \"3\r\n", QUOTA_OF("1"), 400, "If-Match:"},
        {"PUT", "/v1/config?reason=r", ADMIN MATCH("3") FIRST, QUOTA_OF("1"), 400, "If-Match: "},
        {"PUT", "/v1/config", ADMIN MATCH("3"), QUOTA_OF("1"), 400, "reason: is missing"},
        {"PUT", "/v1/config?reason=", ADMIN MATCH("3"), QUOTA_OF("1"), 400, "reason: is missing"},
        {"PUT", "/v1/config?why=r", ADMIN MATCH("3"), QUOTA_OF("1"), 400, "why: is no parameter"},
        {"PUT", "/v1/config?reason=r", READER MATCH("3"), QUOTA_OF("1"), 403, "the role admin"},
        {"POST", "/v1/config/rollback?reason=r", ADMIN MATCH("3"), "", 400, "version: must be"},
        {"POST", "/v1/config/rollback?reason=r&version=9", ADMIN MATCH("3"), "", 404, "version 9"},
        {"POST", "/v1/config/rollback?reason=r&version=2", READER MATCH("3"), "", 403, "admin"},
        {"DELETE", "/v1/config", ADMIN, "", 405, "Allow: GET, HEAD, PUT\r\n"},
        {"GET", "/v1/config/versions/x", ADMIN, "", 404, "/v1/config/versions/NUMBER"},
        {"GET", "/v1/config/versions/1/more", ADMIN, "", 404, "/v1/config/versions/NUMBER"},
    };
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start_with_three(&place);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_verb(&fixture, cases[i].verb, cases[i].path, cases[i].lines, cases[i].body,
                    cases[i].code, cases[i].text);
    }
    expect(&fixture, "/v1/config", READER, 200, "ETag: \"3\"\r\n");
    expect(&fixture, "/v1/config/versions?limit=1", READER, 200, "{\"version\":3,");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 9");
    server_stop(&fixture.server);
}

/* The list of versions is complete, even if the last version was written a moment before the
 * process was killed. */
TEST(versions_are_there_after_kill_9) {
    struct place place;
    place_init(&place);
    struct fixture fixture = place_start_with_three(&place);
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 9");
    kill_now(&fixture);
    fixture = place_start(&place);
    expect(&fixture, "/v1/config", READER, 200, "ETag: \"3\"\r\n");
    expect(&fixture, "/v1/config/versions", READER, 200, "{\"version\":1,");
    take_one(&fixture, "globex", 200, "X-RateLimit-Limit: 9");
    PUT(&fixture, MATCH("3"), QUOTA_OF("1"), 200, "\"version\":4,");
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "msg=\"the newest version of the store is read\"", 1);
    expect(&fixture, "/v1/config", READER, 200, "ETag: \"4\"\r\n");
    server_stop(&fixture.server);
}

TEST(flags_that_do_not_fit_a_configuration_in_a_store_are_refused) {
    static const char *const cases[][10] = {
        {"--config store: needs --state", "--config", "store:"},
        {"--check-config needs a file", "--config", "store:", "--state", "s", "--check-config"},
        {"--config store: needs --http", "--config", "store:", "--state", "s", "--http", "off"},
        {"--config store: and --parent", "--config", "store:", "--state", "s", "--parent",
         "tcp://127.0.0.1:1"},
        {"--config-cache needs --config store:", "--config-cache", "c"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_refusal(cases[i] + 1, 2, cases[i][0]);
    }
}

/* ---- the copy on this machine --------------------------------------------------------------- */

/* E3: the copy is the last version that this machine has seen. The status, the metrics and the
 * pages say that it is a copy. */
TEST(a_store_that_is_away_at_the_start_is_replaced_by_the_copy) {
    struct place place;
    place_init(&place);
    char address[64];
    snprintf(address, sizeof address, "redis://127.0.0.1:%d", port_free());
    place.flags[8] = "--config-cache";
    place.flags[9] = place.cache;
    struct fixture fixture = place_start_with_three(&place);
    server_stop(&fixture.server);
    struct stat status;
    assert_int_equal(stat(place.cache, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    place.flags[3] = address;
    fixture = fixture_start("{}", place.flags);
    process_await(fixture.server.process, "its last version that this machine has seen is used", 1);
    expect(&fixture, "/v1/status", READER, 200, "\"config\":{\"version\":3,\"is_cached\":true}");
    expect(&fixture, "/metrics", READER, 200, "doorman_server_config_is_cached 1\n");
    expect(&fixture, "/", READER, 200, ", of --config-cache");
    expect(&fixture, "/v1/config", READER, 200, "\"limit\":9");
    server_stop(&fixture.server);
}

/* If the file of the store was moved away, all limits stay in force. */
TEST(a_new_store_begins_with_the_copy_until_it_has_a_version) {
    struct place place;
    char moved[128];
    place_init(&place);
    place.flags[8] = "--config-cache";
    place.flags[9] = place.cache;
    struct fixture fixture = place_start(&place); /* there is no copy yet */
    process_await(fixture.server.process, "so this server begins with an empty one", 1);
    PUT(&fixture, FIRST, QUOTA_OF("5"), 200, "\"version\":1,");
    PUT(&fixture, MATCH("1"), QUOTA_OF("2"), 200, "\"version\":2,");
    server_stop(&fixture.server);
    snprintf(moved, sizeof moved, "%s.old", place.path);
    assert_int_equal(rename(place.path, moved), 0);
    fixture = place_start(&place);
    process_await(fixture.server.process, "the store has no configuration; its last version", 1);
    expect(&fixture, "/v1/status", READER, 200, "\"config\":{\"version\":2,\"is_cached\":true}");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    PUT(&fixture, FIRST, QUOTA_OF("7"), 200, "\"version\":1,");
    expect(&fixture, "/v1/status", READER, 200, "\"config\":{\"version\":1,\"is_cached\":false}");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 7");
    kill_now(&fixture);
    fixture = place_start(&place);
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 7");
    server_stop(&fixture.server);
}

TEST(without_a_copy_a_store_that_is_away_ends_the_start) {
    struct place place;
    place_init(&place);
    char address[64];
    snprintf(address, sizeof address, "redis://127.0.0.1:%d", port_free());
    const char *flags[] = {"--config", "store:",      "--state",        address,     "--node", "n",
                           "--http",   "127.0.0.1:0", "--config-cache", place.cache, NULL};
    expect_refusal(flags, 1, "and --config-cache ");
    flags[8] = NULL;
    expect_refusal(flags, 1, "--config-cache FILE keeps a copy");
}

/* ---- etcd ----------------------------------------------------------------------------------- */

/* Starts a server whose configuration is in etcd, and which has read its store.
 *   password   the file with the password of etcd's user "doorman"; NULL: etcd has no users */
static struct fixture etcd_node_start_as(const struct place *place, const struct etcd *etcd,
                                         const char *state, const char *password) {
    const char *flags[] = {"--config",
                           "etcd:" KEY,
                           "--etcd",
                           etcd->url,
                           "--http-token",
                           place->tokens,
                           "--state",
                           state,
                           "--node",
                           "n",
                           password ? "--etcd-user" : NULL,
                           "doorman",
                           "--etcd-password-file",
                           password,
                           NULL};
    struct fixture fixture = fixture_start("{}", flags);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    return fixture;
}

static struct fixture etcd_node_start(const struct place *place, const struct etcd *etcd,
                                      const char *state) {
    return etcd_node_start_as(place, etcd, state, NULL);
}

/* Returns the version in force, which is the revision of the key. */
static long version_in_force(const struct fixture *fixture) {
    char *response = get(fixture, "/v1/status", READER);
    const char *at = strstr(response, "\"config\":{\"version\":");
    long version = at ? strtol(at + strlen("\"config\":{\"version\":"), NULL, 10) : 0;
    free(response);
    return version;
}

static bool metric_is(const struct fixture *fixture, const char *line) {
    char *response = get(fixture, "/metrics", READER);
    bool is_there = strstr(response, line) != NULL;
    free(response);
    return is_there;
}

/* Changes the configuration in etcd. The request names the version in force. */
static void etcd_node_put(const struct fixture *fixture, const char *body, int code,
                          const char *text) {
    char lines[256];
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n", version_in_force(fixture));
    expect_verb(fixture, "PUT", "/v1/config?reason=r", lines, body, code, text);
}

/* E3: a change is one transaction of etcd, and all processes of the node follow it. */
TEST(all_processes_follow_a_version_in_etcd) {
    struct etcd etcd;
    struct place one, other;
    etcd_require(&etcd);
    place_init(&one);
    place_init(&other);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    struct fixture first = etcd_node_start(&one, &etcd, one.path);
    struct fixture second = etcd_node_start(&other, &etcd, other.path);
    const long before = version_in_force(&first);
    etcd_node_put(&first, QUOTA_OF("2"), 200, "\"changes\":[\"maps quota limit: 5 -> 2\"]");
    EVENTUALLY(version_in_force(&second) > before);
    take_one(&second, "acme", 200, "X-RateLimit-Limit: 2");
    take_one(&first, "acme", 200, "X-RateLimit-Limit: 2");
    assert_int_equal(version_in_force(&first), version_in_force(&second));
    /* no warning says that counters are kept only in memory */
    expect(&first, "/metrics", READER, 200, "doorman_server_config_warnings 0\n");
    assert_int_equal(process_logged(first.server.process, "is kept only in memory"), 0);
    expect(&first, "/v1/audit", ADMIN, 200, "\"what\":\"config\",\"reason\":\"r\",\"before\":");
    expect(&first, "/v1/config/versions", READER, 200, "\"reason\":\"written by another program");
    server_stop(&first.server);
    server_stop(&second.server);
    etcd_stop(&etcd);
}

/* What another program has put into the key is a version too. A change must name this version. */
TEST(a_key_that_another_program_has_written_becomes_a_version) {
    struct etcd etcd;
    struct place place;
    char path[96], lines[256];
    etcd_require(&etcd);
    place_init(&place);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    struct fixture fixture = etcd_node_start(&place, &etcd, place.path);
    etcd_node_put(&fixture, QUOTA_OF("2"), 200, "");
    const long last = version_in_force(&fixture);
    etcd_put(&etcd, KEY, QUOTA_OF("7"));
    EVENTUALLY(version_in_force(&fixture) > last);
    const long foreign = version_in_force(&fixture);
    snprintf(path, sizeof path, "/v1/config/versions/%ld/diff", foreign);
    expect(&fixture, path, READER, 200, "\"field\":\"limit\",\"last\":2,\"now\":7");
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n", last);
    expect_verb(&fixture, "PUT", "/v1/config?reason=r", lines, QUOTA_OF("3"), 412,
                "another program has written it");
    etcd_node_put(&fixture, QUOTA_OF("3"), 200, "\"maps quota limit: 7 -> 3\"");
    snprintf(path, sizeof path, "/v1/config/versions/%ld", foreign);
    expect(&fixture, path, READER, 200, "\"limit\":7");
    snprintf(path, sizeof path, "/v1/config/rollback?reason=r&version=%ld", foreign);
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n", version_in_force(&fixture));
    expect_verb(&fixture, "POST", path, lines, "", 200, "\"maps quota limit: 3 -> 7\"");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 7");
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* Another program has broken the key. So the server must not name the author and the reason of the
 * previous version. */
TEST(a_broken_key_is_named_and_can_be_replaced) {
    struct etcd etcd;
    struct place place;
    char lines[256], text[256];
    etcd_require(&etcd);
    place_init(&place);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    struct fixture fixture = etcd_node_start(&place, &etcd, place.path);
    etcd_node_put(&fixture, QUOTA_OF("2"), 200, "");
    const long last = version_in_force(&fixture);
    etcd_put(&etcd, KEY, "{\"resources\": 5}");
    process_await(fixture.server.process, "msg=\"configuration refused", 1);
    expect(&fixture, "/v1/status", READER, 200,
           ",\"load_failures\":[{\"what\":\"configuration\",\"reason\":\"");
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n", last);
    snprintf(text, sizeof text,
             "the present version is %ld, not %ld: another program has written it; look at the key "
             "in etcd, and if it may be replaced, give doormanctl the version %ld,",
             last + 1, last, last + 1);
    expect_verb(&fixture, "PUT", "/v1/config?reason=r", lines, QUOTA_OF("3"), 412, text);
    snprintf(lines, sizeof lines, ADMIN "If-Match: \"%ld\"\r\n", last + 1);
    expect_verb(&fixture, "PUT", "/v1/config?reason=r", lines, QUOTA_OF("3"), 200, "");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 3");
    char *response = get(&fixture, "/v1/status", READER);
    assert_null(strstr(response, "load_failures"));
    free(response);
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* The audit never says that a change was made if it was not. */
TEST(an_etcd_that_is_away_changes_nothing) {
    struct etcd etcd;
    struct place place;
    etcd_require(&etcd);
    place_init(&place);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    struct fixture fixture = etcd_node_start(&place, &etcd, place.path);
    etcd_stop(&etcd);
    etcd_node_put(&fixture, QUOTA_OF("2"), 503, "nothing was changed, because etcd");
    char *response = get(&fixture, "/v1/audit", ADMIN);
    assert_null(strstr(response, "\"what\":\"config\""));
    free(response);
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 5");
    etcd.process = process_new();
    etcd_start(&etcd);
    etcd_node_put(&fixture, QUOTA_OF("2"), 200, "");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* Gives the user of the server this right to its keys: "read" makes etcd refuse writes, and
 * "readwrite" allows them again. */
static void etcd_allow(const struct etcd *etcd, const char *what) {
    etcd_control(etcd, (const char *[]){"role", "grant-permission", "doorman", what, "doorman/",
                                        "--prefix", NULL});
}

/* If the user of etcd lacks a right, nothing changes, and the error names the right. */
TEST(a_change_that_etcd_denies_is_not_made) {
    struct etcd etcd;
    struct place place;
    char password[96];
    etcd_require(&etcd);
    place_init(&place);
    snprintf(password, sizeof password, "%s/password", process_new()->folder);
    file_write(password, "secret\n");
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    etcd_enable_users(&etcd, "secret");
    struct fixture fixture = etcd_node_start_as(&place, &etcd, place.path, password);
    etcd_allow(&etcd, "read");
    etcd_node_put(&fixture, QUOTA_OF("2"), 503, "needs the right readwrite for the key\"}}");
    expect(&fixture, "/v1/audit", ADMIN, 200, "for the key\"}\n");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 5");
    etcd_allow(&etcd, "readwrite");
    etcd_node_put(&fixture, QUOTA_OF("2"), 200, "");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}

/* E3: the row of the audit is written before the key. So a process that is killed in between leaves
 * a row which says that the outcome is not known. Here etcd makes the change, and each answer that
 * says so is lost. */
TEST(a_change_whose_outcome_is_not_known_is_marked_so_after_kill_9) {
    struct etcd etcd;
    struct place place;
    struct proxy proxy;
    etcd_require(&etcd);
    place_init(&place);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    proxy_start(&proxy, &etcd);
    struct etcd behind = etcd;
    snprintf(behind.url, sizeof behind.url, "%s", proxy.url);
    struct fixture fixture = etcd_node_start(&place, &behind, place.path);
    proxy_lose(&proxy, "/v3/kv/txn", 100);
    etcd_node_put(&fixture, QUOTA_OF("2"), 503, "it is not known whether this was done");
    kill_now(&fixture);
    proxy_lose(&proxy, "/v3/kv/txn", 0);
    fixture = etcd_node_start(&place, &behind, place.path);
    expect(&fixture, "/v1/audit", ADMIN, 200, "\"known\":false}\n");
    expect(&fixture, "/audit", ADMIN, 200, "it is not known whether this was done");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 2");
    etcd_node_put(&fixture, QUOTA_OF("3"), 200, "\"audit\":2,");
    assert_int_equal(process_logged(fixture.server.process, "is kept only in memory"), 0);
    expect(&fixture, "/v1/audit?limit=1", ADMIN, 200, "limit: 2 -> 3\"]}}\n");
    server_stop(&fixture.server);
    proxy_stop(&proxy);
    etcd_stop(&etcd);
}

TEST(a_later_master_reads_the_newest_version) {
    struct etcd etcd;
    struct redis redis;
    struct place place;
    redis_require(&redis);
    etcd_require(&etcd);
    place_init(&place);
    const char *flags[] = {
        "--config",       "store:", "--state", redis.address,    "--http-token",
        place.tokens,     "--etcd", etcd.url,  "--election-key", "doorman/master",
        "--election-ttl", "2",      NULL};
    struct fixture first = fixture_start("{}", flags);
    process_await(first.server.process, "msg=\"counters read\"", 1);
    struct fixture second = fixture_start("{}", flags);
    PUT(&first, FIRST, QUOTA_OF("5"), 200, "\"version\":1,");
    PUT(&second, MATCH("1"), QUOTA_OF("2"), 503, "this process is not the master");
    kill_now(&first);
    process_await(second.server.process, "msg=\"counters read\"", 1);
    EVENTUALLY(version_in_force(&second) == 1);
    take_one(&second, "acme", 200, "X-RateLimit-Limit: 5");
    PUT(&second, MATCH("1"), QUOTA_OF("2"), 200, "\"version\":2,");
    server_stop(&second.server);
    etcd_stop(&etcd);
    redis_kill(&redis);
}

/* ---- the processes of a node ---------------------------------------------------------------- */

/* The limit is not durable, so a server decides on it even before the counters are read. */
#define LOOSE_OF(limit)                                                                            \
    "{\"resources\": [{\"identifier_glob\": \"maps\", \"limits\": [{\"name\": \"quota\", "         \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": " limit ", \"window\": 1000, \"durable\": false}]}]}"

/* Two processes of a node whose configuration is in a Redis, each with a copy of its own. */
struct pair {
    struct etcd etcd;
    struct redis redis;
    struct place places[2];
    struct fixture fixtures[2];
};

static void pair_start_one(struct pair *pair, int index) {
    const struct place *place = &pair->places[index];
    const char *flags[] = {"--config",
                           "store:",
                           "--state",
                           pair->redis.address,
                           "--http-token",
                           place->tokens,
                           "--config-cache",
                           place->cache,
                           "--etcd",
                           pair->etcd.url,
                           "--election-key",
                           "doorman/master",
                           "--election-ttl",
                           "2",
                           NULL};
    pair->fixtures[index] = fixture_start("{}", flags);
}

/* Starts both processes. The first process is the master. */
static void pair_start(struct pair *pair) {
    redis_require(&pair->redis);
    etcd_require(&pair->etcd);
    for (int i = 0; i < 2; i++) {
        place_init(&pair->places[i]);
        pair_start_one(pair, i);
        if (i == 0) process_await(pair->fixtures[0].server.process, "msg=\"counters read\"", 1);
    }
    process_await(pair->fixtures[1].server.process, "another server is the master", 1);
}

static void pair_put(struct pair *pair, int index, const char *lines, const char *body) {
    expect_verb(&pair->fixtures[index], "PUT", "/v1/config?reason=r", lines, body, 200, "");
}

/* Asks a process for a unit until it is the master and decides. Returns this first answer. The
 * caller frees it. */
static char *first_decision(const struct fixture *fixture) {
    char *response = NULL;
    EVENTUALLY((free(response), response = get(fixture, "/v1/allow?resource=maps&key=k", WEB),
                code_of(response) == 200 || code_of(response) == 429));
    return response;
}

/* Returns the line of the metric that has the hash of the configuration in force. */
static char *config_info(const struct fixture *fixture) {
    char *response = get(fixture, "/metrics", READER);
    const char *at = strstr(response, "doorman_server_config_info{");
    char *line = at ? strndup(at, strcspn(at, "\n")) : NULL;
    free(response);
    assert_non_null(line);
    return line;
}

static bool copy_has(const struct place *place, const char *text) {
    if (access(place->cache, R_OK) != 0) return false;
    char *copy = file_read(place->cache);
    bool has = strstr(copy, text) != NULL;
    free(copy);
    return has;
}

/* E3: whichever process becomes master next, it has the newest version already. */
TEST(a_standby_follows_the_versions_in_the_store_and_copies_them) {
    struct pair pair;
    pair_start(&pair);
    const struct fixture *standby = &pair.fixtures[1];
    pair_put(&pair, 0, ADMIN FIRST, LOOSE_OF("5"));
    EVENTUALLY(version_in_force(standby) == 1);
    expect(standby, "/v1/config", READER, 200, "\"limit\":5");
    EVENTUALLY(copy_has(&pair.places[1], "{\"version\":1,"));
    pair_put(&pair, 0, ADMIN MATCH("1"), LOOSE_OF("7"));
    EVENTUALLY(version_in_force(standby) == 2);
    expect(standby, "/v1/config", READER, 200, "\"limit\":7");
    EVENTUALLY(copy_has(&pair.places[1], "\"limit\":7"));
    char *one = config_info(&pair.fixtures[0]), *other = config_info(standby);
    assert_string_equal(one, other);
    free(one);
    free(other);
    server_stop(&pair.fixtures[1].server);
    server_stop(&pair.fixtures[0].server);
    etcd_stop(&pair.etcd);
    redis_kill(&pair.redis);
}

/* After a planned stop another process is the master at once. So that process cannot wait for its
 * next regular look into the store. */
TEST(the_next_master_decides_by_the_newest_version_from_the_first_permit_on) {
    struct pair pair;
    pair_start(&pair);
    pair_put(&pair, 0, ADMIN FIRST, LOOSE_OF("1000"));
    for (int round = 0; round < 4; round++) {
        const int master = round % 2;
        struct fixture *next = &pair.fixtures[1 - master];
        char lines[256], body[512], limit[64];
        snprintf(lines, sizeof lines, ADMIN "If-Match: \"%d\"\r\n", round + 1);
        snprintf(body, sizeof body,
                 "{\"resources\": [{\"identifier_glob\": \"maps\", \"limits\": [{\"name\": "
                 "\"quota\", \"kind\": \"FIXED_WINDOW\", \"limit\": %d, \"window\": 1000, "
                 "\"durable\": false}]}]}",
                 round + 5);
        snprintf(limit, sizeof limit, "X-RateLimit-Limit: %d\r\n", round + 5);
        EVENTUALLY(version_in_force(next) == round + 1);
        pair_put(&pair, master, lines, body);
        process_signal(pair.fixtures[master].server.process, SIGTERM);
        char *response = first_decision(next);
        if (!strstr(response, limit)) fail_msg("round %d: not %s in %s", round, limit, response);
        free(response);
        process_wait(pair.fixtures[master].server.process);
        process_await(next->server.process, "msg=\"counters read\"", 1);
        pair_start_one(&pair, master);
    }
    for (int i = 0; i < 2; i++) server_stop(&pair.fixtures[i].server);
    etcd_stop(&pair.etcd);
    redis_kill(&pair.redis);
}

TEST(after_kill_9_the_next_master_decides_by_the_newest_version) {
    struct pair pair;
    pair_start(&pair);
    pair_put(&pair, 0, ADMIN FIRST, LOOSE_OF("1000"));
    EVENTUALLY(version_in_force(&pair.fixtures[1]) == 1);
    pair_put(&pair, 0, ADMIN MATCH("1"), LOOSE_OF("5"));
    kill_now(&pair.fixtures[0]);
    char *response = first_decision(&pair.fixtures[1]);
    assert_non_null(strstr(response, "X-RateLimit-Limit: 5\r\n"));
    free(response);
    server_stop(&pair.fixtures[1].server);
    etcd_stop(&pair.etcd);
    redis_kill(&pair.redis);
}

TEST(the_next_master_has_the_limits_also_if_the_store_is_lost_with_the_last_one) {
    struct pair pair;
    int granted = 1;
    pair_start(&pair);
    pair_put(&pair, 0, ADMIN FIRST, LOOSE_OF("5"));
    EVENTUALLY(version_in_force(&pair.fixtures[1]) == 1);
    redis_kill(&pair.redis);
    kill_now(&pair.fixtures[0]);
    const struct fixture *next = &pair.fixtures[1];
    free(first_decision(next));
    for (int i = 0; i < 20; i++) {
        char *response = get(next, "/v1/allow?resource=maps&key=k", WEB);
        granted += code_of(response) == 200;
        free(response);
    }
    assert_int_equal(granted, 5);
    process_await(next->server.process,
                  "this mastership begins with the last version of the configuration", 1);
    kill_now(&pair.fixtures[1]);
    etcd_stop(&pair.etcd);
}

/* An empty configuration limits nothing. So a process that has no other configuration must not
 * decide while it cannot read the store. */
TEST(a_process_without_any_version_is_no_master_while_the_store_is_away) {
    struct pair pair;
    pair_start(&pair);
    redis_kill(&pair.redis);
    kill_now(&pair.fixtures[0]);
    const struct fixture *next = &pair.fixtures[1];
    process_await(next->server.process, "this process must not become master", 1);
    for (int i = 0; i < 40; i++) { /* longer than the key of the killed process lasts */
        char *response = get(next, "/v1/allow?resource=maps&key=k", WEB);
        if (code_of(response) != 503) fail_msg("%s", response);
        free(response);
        sleep_ms(100);
    }
    expect(next, "/readyz", READER, 503, "");
    expect(next, "/v1/status", READER, 200, ",\"config_failure\":{\"for\":");
    expect(next, "/v1/status", READER, 200,
           "the store, which has the configuration, cannot be read");
    assert_int_equal(process_logged(next->server.process, "this server is the master"), 0);
    redis_start(&pair.redis);
    char *response = first_decision(next);
    assert_int_equal(code_of(response), 200);
    free(response);
    server_stop(&pair.fixtures[1].server);
    etcd_stop(&pair.etcd);
    redis_kill(&pair.redis);
}

/* If the Redis loses its rows, all limits stay in force. */
TEST(a_store_that_has_lost_its_versions_ends_no_limit) {
    struct redis redis;
    struct place place;
    redis_require(&redis);
    place_init(&place);
    place.flags[3] = redis.address;
    struct fixture fixture = place_start_with_three(&place);
    redis_run(&redis, "FLUSHDB");
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "the store has no versions any more", 1);
    expect(&fixture, "/v1/config", READER, 200, "\"limit\":9");
    kill_now(&fixture);
    redis_kill(&redis);
}

/* E3: the copy is also used if etcd is away, until etcd is back. */
TEST(an_etcd_that_is_away_at_the_start_is_replaced_by_the_copy) {
    struct etcd etcd;
    struct place place;
    etcd_require(&etcd);
    place_init(&place);
    etcd_put(&etcd, KEY, QUOTA_OF("5"));
    const char *flags[] = {"--config",  "etcd:" KEY,    "--etcd",     etcd.url, "--config-cache",
                           place.cache, "--http-token", place.tokens, NULL};
    struct fixture fixture = fixture_start("{}", flags);
    const long version = version_in_force(&fixture);
    server_stop(&fixture.server);
    etcd_stop(&etcd);
    fixture = fixture_start("{}", flags);
    expect(&fixture, "/v1/status", READER, 200, "\"is_cached\":true");
    take_one(&fixture, "acme", 200, "X-RateLimit-Limit: 5");
    PUT(&fixture, MATCH("1"), QUOTA_OF("2"), 503, "etcd");
    etcd.process = process_new();
    etcd_start(&etcd);
    EVENTUALLY(metric_is(&fixture, "doorman_server_config_is_cached 0\n"));
    assert_int_equal(version_in_force(&fixture), version);
    server_stop(&fixture.server);
    etcd_stop(&etcd);
}
