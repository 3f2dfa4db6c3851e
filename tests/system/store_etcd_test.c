/* Tests the store of notes (rows of administration) in etcd, without a server (E7): notes that were
 * written can be read, only the newest mastership can write, and long lists come in pages. The
 * tests use a real etcd, and are skipped without one. */
#define main server_main
int server_main(int argc, char **argv);
#include "../../doorman_server.c"
#undef main
#include "../../server/etcd/etcd.c"
#include "../../server/etcd/etcd_http.c"
#include "../../server/store/store_choice.c"
#include "../../server/store/store_etcd.c"
#include "../../server/util/base64.c"
#include "../../server/util/host.c"
#include "../../server/util/password.c"

#define etcd test_etcd /* the server has these names too */
#define config_replace test_config_replace
#include "etcd_fixture.h"
#undef etcd
#undef config_replace

/* This program opens no file. */
const struct store_kind server_store_sqlite = {.prefix = "", .bytes = sizeof(struct store)};

struct world {
    struct test_etcd members;
    struct settings settings;
    struct store *store;
};

static struct store *open_one(struct world *w) {
    struct store *store = server_store_etcd_open(&w->settings);
    assert_non_null(store);
    return store;
}

static void reopen(struct world *w) {
    server_store_close(w->store);
    w->store = open_one(w);
    if (server_store_begin(w->store, 0) != STORE_OK) fail_msg("%s", server_store_error(w->store));
}

static void world_start(struct world *w) {
    etcd_require(&w->members);
    w->settings.config_key = "doorman/config";
    w->settings.etcd.items[0] = w->members.url;
    w->settings.etcd.count = 1;
    reopen(w);
}

/* Defines a test that has an open store. */
#define STORY(name)                                                                                \
    static void name##_told(struct world *w);                                                      \
    TEST(name) {                                                                                   \
        static struct world w;                                                                     \
        memset(&w, 0, sizeof w);                                                                   \
        world_start(&w);                                                                           \
        name##_told(&w);                                                                           \
        server_store_close(w.store);                                                               \
        etcd_stop(&w.members);                                                                     \
    }                                                                                              \
    static void name##_told(struct world *w)

#define STORIES_OF_NOTES
#include "../unit/store_stories.h"

static enum store_result try_put(struct store *store, const char *identity, const char *text) {
    const struct store_note note = {"act", identity, 1, text};
    return server_store_put_notes(store, &note, 1);
}

static void expect_error(const struct store *store, enum store_result result,
                         enum store_result expected, const char *why) {
    assert_int_equal(result, expected);
    const char *error = server_store_error(store);
    if (!strstr(error, why)) fail_msg("'%s' does not say '%s'", error, why);
}

/* D9 */
STORY(an_old_mastership_cannot_write) {
    struct store *other = open_one(w);
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    assert_int_equal(server_store_begin(other, 0), STORE_OK);
    expect_error(w->store, try_put(w->store, "1", "b"), STORE_OUTDATED, "another process");
    expect_error(w->store, try_put(w->store, "1", "b"), STORE_OUTDATED, "another process");
    expect_notes(w, "act", "", "1=a@1");
    assert_int_equal(try_put(other, "1", "c"), STORE_OK);
    assert_true(server_store_epoch(other) > server_store_epoch(w->store));
    server_store_close(other);
}

/* Makes the election key, as the election does. Returns the id of the etcd lease of the key. */
static int64_t own_election_key(struct world *w) {
    struct etcd etcd;
    char key[ETCD_KEY_TEXT];
    w->settings.election_key = "doorman/master";
    assert_int_equal(server_etcd_init_again(&etcd, &w->settings), CONTINUE);
    cJSON *response = server_etcd_call(&etcd, "/v3/lease/grant", "{\"TTL\":\"600\"}");
    const int64_t lease = strtoll(server_etcd_number(response, "ID"), NULL, 10);
    cJSON_Delete(response);
    server_base64_write(key, w->settings.election_key);
    cJSON_Delete(server_etcd_call(&etcd, "/v3/kv/put", "{\"key\":\"%s\",\"lease\":\"%lld\"}", key,
                                  (long long)lease));
    server_etcd_uninit(&etcd);
    return lease;
}

STORY(a_process_that_has_lost_the_election_key_cannot_write) {
    const int64_t lease = own_election_key(w);
    server_store_close(w->store);
    w->store = open_one(w);
    expect_error(w->store, server_store_begin(w->store, 0), STORE_OUTDATED, "no longer the master");
    server_store_etcd_set_lease(w->store, lease + 1);
    expect_error(w->store, server_store_begin(w->store, 0), STORE_OUTDATED, "no longer the master");
    server_store_etcd_set_lease(w->store, lease);
    assert_int_equal(server_store_begin(w->store, 0), STORE_OK);
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    etcd_control(&w->members, (const char *[]){"del", "doorman/master", NULL});
    expect_error(w->store, try_put(w->store, "1", "b"), STORE_OUTDATED, "no longer the master");
    expect_notes(w, "act", "", "1=a@1");
}

/* A request whose response is lost is sent again. The second copy finds what the first one has
 * done. */
STORY(the_second_copy_of_a_request_counts_as_done) {
    struct etcd_store *store = (struct etcd_store *)w->store;
    char revision[ETCD_REVISION];
    snprintf(revision, sizeof revision, "%s", store->revision);
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    snprintf(store->revision, sizeof store->revision, "%s", revision);
    store->batch--;
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    assert_int_equal(try_put(w->store, "2", "b"), STORE_OK);
    expect_notes(w, "act", "", "2=b@1 1=a@1");
}

STORY(a_key_of_the_epoch_that_is_gone_is_written_again) {
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    etcd_control(&w->members, (const char *[]){"del", "doorman/config/notes/epoch", NULL});
    expect_error(w->store, try_put(w->store, "2", "b"), STORE_LOST, "etcd has lost the key");
    assert_int_equal(try_put(w->store, "2", "b"), STORE_OK);
    expect_notes(w, "act", "", "2=b@1 1=a@1");
}

STORY(an_etcd_that_is_away_is_used_again_when_it_is_back) {
    assert_int_equal(try_put(w->store, "1", "a"), STORE_OK);
    etcd_stop(&w->members);
    expect_error(w->store, try_put(w->store, "2", "b"), STORE_FAILED, "etcd: http://");
    w->members.process = process_new();
    etcd_start(&w->members);
    assert_int_equal(try_put(w->store, "2", "c"), STORE_OK);
    expect_notes(w, "act", "", "2=c@1 1=a@1");
}

/* An etcd with the alarm NOSPACE takes no writes. */
/* An etcd that becomes full while it makes a change may have made it. So the outcome is not
 * known. */
STORY(an_etcd_without_space_is_named) {
    struct etcd *etcd = &((struct etcd_store *)w->store)->etcd;
    cJSON *status = server_etcd_call(etcd, "/v3/maintenance/status", "{}");
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(status, "header");
    cJSON *alarm =
        server_etcd_call(etcd, "/v3/maintenance/alarm",
                         "{\"action\":\"ACTIVATE\",\"memberID\":\"%s\",\"alarm\":\"NOSPACE\"}",
                         server_etcd_number(header, "member_id"));
    assert_non_null(alarm);
    expect_error(w->store, try_put(w->store, "1", "a"), STORE_FAILED, "compact and defragment it");
    assert_int_equal(etcd->failure, ETCD_FULL);
    assert_true(server_store_is_unsure(w->store));
    cJSON_Delete(status);
    cJSON_Delete(alarm);
}

/* A node whose write got no answer does not know what is there. It must read all notes of the
 * cluster before it writes again, or it could replace a row of another node. */
STORY(a_list_of_notes_lets_no_node_of_a_cluster_write) {
    w->settings.shards = "doorman/shards";
    struct store *one = server_store_etcd_open_cluster(&w->settings);
    struct store *other = server_store_etcd_open_cluster(&w->settings);
    char last[STORE_TEXT + 1];
    assert_int_equal(server_store_begin(one, 0), STORE_OK);
    ((struct etcd_store *)one)->revision[0] = 0; /* as after a call without a response */
    assert_int_equal(server_store_begin(other, 0), STORE_OK);
    assert_int_equal(try_put(other, "7", "of the other"), STORE_OK);
    assert_int_equal(server_store_last_note(one, "act", last), STORE_OK);
    expect_error(one, try_put(one, "7", "of the one"), STORE_OUTDATED, "must be read again");
    assert_int_equal(server_store_begin(one, 0), STORE_OK);
    assert_int_equal(try_put(one, "8", "of the one"), STORE_OK);
    server_store_close(one);
    server_store_close(other);
}

/* The texts come from etcd 3.4 and from its library for gRPC. */
TEST(errors_of_etcd_are_told_apart) {
    static const struct {
        struct etcd_error error;
        enum etcd_failure failure;
    } cases[] = {
        {{7, "etcdserver: permission denied"}, ETCD_DENIED},
        {{0, "permission denied"}, ETCD_FAILED},
        {{8, "etcdserver: mvcc: database space exceeded"}, ETCD_FULL},
        {{8, "etcdserver: too many requests"}, ETCD_FAILED},
        {{8, "grpc: received message larger than max (10001000 vs. 4194304)"}, ETCD_TOO_LONG},
        {{8, "grpc: trying to send message larger than max (3 vs. 2)"}, ETCD_TOO_LONG},
        {{14, "etcdserver: request timed out, possibly due to connection lost"}, ETCD_TIMED_OUT},
        {{14, "etcdserver: no leader"}, ETCD_FAILED},
        {{5, "etcdserver: requested lease not found"}, ETCD_FAILED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (etcd_failure_of(&cases[i].error) != cases[i].failure) {
            fail_msg("%s", cases[i].error.text);
        }
    }
}

/* What a visitor of many notes has seen. */
struct seen {
    int count, expected; /* expected: the number of the next note */
    size_t bytes;
};

static bool see(void *context, const struct store_note *note) {
    struct seen *seen = (struct seen *)context;
    assert_int_equal(atoi(note->identity), seen->expected--);
    seen->bytes += strlen(note->text);
    seen->count++;
    return true;
}

STORY(many_notes_are_listed_in_pages) {
    enum { ROUNDS = 10, COUNT = ROUNDS * STORE_NOTES_MAX };
    char names[STORE_NOTES_MAX][24];
    struct store_note notes[STORE_NOTES_MAX];
    for (int i = 0; i < COUNT; i++) {
        const int at = i % STORE_NOTES_MAX;
        snprintf(names[at], sizeof names[at], "%020d", i);
        notes[at] = (struct store_note){"act", names[at], 1, "text"};
        if (at < STORE_NOTES_MAX - 1) continue;
        assert_int_equal(server_store_put_notes(w->store, notes, STORE_NOTES_MAX), STORE_OK);
    }
    struct seen seen = {.expected = COUNT - 1};
    assert_int_equal(server_store_list_notes(w->store, "act", "", see, &seen), STORE_OK);
    assert_int_equal(seen.count, COUNT);
}

/* Ten notes of 1 MB do not fit into one response. */
STORY(long_notes_come_in_shorter_pages_and_too_long_ones_are_refused) {
    const size_t bytes = 1000000;
    char *text = (char *)malloc(2 * bytes + 1), name[24];
    assert_non_null(text);
    memset(text, 'x', 2 * bytes);
    text[2 * bytes] = 0;
    expect_error(w->store, try_put(w->store, "1", text), STORE_FAILED,
                 "etcd takes at most 1500000");
    text[bytes] = 0;
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%020d", i);
        assert_int_equal(try_put(w->store, name, text), STORE_OK);
    }
    struct seen seen = {.expected = 9};
    assert_int_equal(server_store_list_notes(w->store, "act", "", see, &seen), STORE_OK);
    assert_int_equal(seen.count, 10);
    assert_int_equal(seen.bytes, 10 * bytes);
    free(text);
}
