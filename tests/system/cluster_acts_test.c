/* Overrides and plans of a cluster (N1 to N9, E1, E2): an act holds for a key wherever the key is
 * decided. Any node takes the act, unless it adds units. The tests use real processes, an etcd and
 * a Redis. */
#define _GNU_SOURCE
#include "shards_fixture.h"

#define SHARDS 16
#define LIMITS                                                                                     \
    "{\"shards\": 16, \"resources\": [{\"identifier_glob\": \"probe\", \"limits\": [{\"name\": "   \
    "\"probe\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": 86400}]}, "                \
    "{\"identifier_glob\": \"bucket\", \"limits\": [{\"name\": \"burst\", \"kind\": "              \
    "\"TOKEN_BUCKET\", \"rate\": 0.0001, \"size\": 5}]}, "                                         \
    "{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", "   \
    "\"limit\": 3, \"window\": 86400, \"plans\": {\"pro\": {\"limit\": 40}}}]}]}"
#define DAY "\"expires_in\": 86400"

static const struct fixture *at(int node) { return &cluster.nodes[node].fixture; }

/* Sets the limit `day` of a key of the resource api, at a node.
 *   end   a member of JSON, such as DAY */
static void override_put(int node, const char *key, int limit, const char *end, int code,
                         const char *text) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"resource\": \"api\", \"limit\": \"day\", \"key\": \"%.60s\", \"set\": {\"limit\": "
             "%d}, %s, \"reason\": \"ticket 4711\"}",
             key, limit, end);
    expect_verb(at(node), "PUT", "/v1/overrides", OPERATOR, body, code, text);
}

static void plan_put(int node, const char *key) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"glob\": \"*\", \"key\": \"%.60s\", \"plan\": \"pro\", " DAY
             ", \"reason\": \"a new contract\"}",
             key);
    expect_verb(at(node), "PUT", "/v1/plans", OPERATOR, body, 200, "{\"id\": ");
}

/* Returns the limit of a key at the node that decides for it, or -1. Any node may be asked. */
static int limit_at(int node, const char *resource, const char *key) {
    char body[256];
    snprintf(body, sizeof body, "{\"entry\": [{\"resource_id\": \"%.60s\", \"key\": \"%.60s\"}]}",
             resource, key);
    char *response = post(at(node), "/v1/inspect", LINES, body);
    const char *found = strstr(response, "\"limit\":");
    while (found && found[8] == '"') found = strstr(found + 8, "\"limit\":"); /* the name */
    const int limit = found ? atoi(found + 8) : -1;
    free(response);
    return limit;
}

static bool list_has(int node, const char *path, const char *text) {
    char *response = get(at(node), path, OPERATOR);
    const bool has = strstr(response, text) != NULL;
    free(response);
    return has;
}

/* Sends a change that moves all shards away from a node, and waits until that is done. */
static void move_all(int from, const char *change, int moves) {
    char text[32];
    snprintf(text, sizeof text, "\"moves\":%d", moves);
    cluster_change(from, change, 200, text);
    EVENTUALLY(cluster_owned(from) == 0 && cluster_rests(from));
}

/* Returns the number of the newest act in the audit of a node, which must contain a text. */
static int newest_act(int node, const char *text) {
    char *response = get(at(node), "/v1/audit?limit=1", OPERATOR);
    if (!strstr(response, text)) fail_msg("no '%s' in %s", text, response);
    const int id = atoi(strstr(response, "{\"id\":") + strlen("{\"id\":"));
    free(response);
    return id;
}

/* ---- where a key is decided ----------------------------------------------------------------- */

TEST(an_override_holds_for_a_key_of_another_node_and_where_the_key_moves) {
    char key[32];
    cluster_share(LIMITS, 3);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    EVENTUALLY(limit_at(2, "api", key) == 30);
    for (int i = 0; i < 3; i++) EVENTUALLY(list_has(i, "/v1/overrides", "\"ticket 4711\""));
    move_all(1, "{\"drain\": \"n1\"}", 5);
    assert_int_equal(limit_at(0, "api", key), 30);
    assert_int_equal(limit_at(1, "api", key), 30);
}

TEST(an_override_of_a_node_outlasts_a_restart_of_all_nodes) {
    char key[32];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    for (int i = 0; i < 2; i++) {
        process_signal(cluster.nodes[i].process, SIGKILL);
        process_wait(cluster.nodes[i].process);
    }
    for (int i = 0; i < 2; i++) cluster_node_start(i);
    for (int i = 0; i < 2; i++) EVENTUALLY(cluster_owned(i) == 8);
    assert_int_equal(limit_at(0, "api", key), 30); /* it was read before the first decision */
    assert_int_equal(limit_at(1, "api", key), 30);
}

#define OVERRIDE_NOTES "doorman/shards/notes/override/"

static bool etcd_has_override(int id) {
    char key[96];
    snprintf(key, sizeof key, OVERRIDE_NOTES "%020d", id);
    char *note = etcd_read(&cluster.etcd, key);
    const bool has = note[0] != 0;
    free(note);
    return has;
}

static void override_end(int node, const char *key) {
    char path[160];
    snprintf(path, sizeof path, "/v1/overrides?resource=api&limit=day&key=%s&reason=done", key);
    expect_verb(at(node), "DELETE", path, OPERATOR, "", 200, "");
}

/* Two acts at once can leave two notes for one name. Only the later note counts. Its end must not
 * bring the earlier note back. */
TEST(an_override_that_a_later_one_has_replaced_does_not_come_back) {
    char key[32], note_key[96];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 20, DAY, 200, "{\"id\":"); /* 1: the next one is the revision of etcd */
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    EVENTUALLY(limit_at(1, "api", key) == 30);
    char *list = get(at(0), "/v1/overrides", OPERATOR);
    const int id = atoi(strstr(list, "\"id\":") + strlen("\"id\":"));
    free(list);
    assert_true(etcd_has_override(id) && !etcd_has_override(1));
    snprintf(note_key, sizeof note_key, OVERRIDE_NOTES "%020d", id);
    char *note = etcd_read_lines(&cluster.etcd, note_key);
    etcd_put(&cluster.etcd, OVERRIDE_NOTES "00000000000000000001", note);
    free(note);
    override_put(1, "another", 7, DAY, 200, "{\"id\":"); /* the nodes read all notes again */
    EVENTUALLY(!etcd_has_override(1));
    assert_true(etcd_has_override(id));
    override_end(0, key);
    for (int i = 0; i < 2; i++) EVENTUALLY(limit_at(i, "api", key) == 3);
    for (int i = 0; i < 2; i++) {
        process_signal(cluster.nodes[i].process, SIGKILL);
        process_wait(cluster.nodes[i].process);
    }
    for (int i = 0; i < 2; i++) cluster_node_start(i);
    for (int i = 0; i < 2; i++) EVENTUALLY(cluster_owned(i) == 8);
    assert_int_equal(limit_at(1, "api", key), 3);
}

TEST(an_override_ends_at_its_end_at_each_node) {
    char key[32];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, "\"expires_in\": 3", 200, "{\"id\":");
    EVENTUALLY(limit_at(0, "api", key) == 30);
    EVENTUALLY(limit_at(0, "api", key) == 3);
    EVENTUALLY(!list_has(0, "/v1/overrides", "ticket 4711"));
    EVENTUALLY(!list_has(1, "/v1/overrides", "ticket 4711"));
}

TEST(a_plan_of_a_glob_holds_for_keys_of_all_nodes) {
    char mine[32], other[32];
    cluster_share(LIMITS, 2);
    key_of_node(0, "mine", mine);
    key_of_node(1, "other", other);
    plan_put(0, mine);
    plan_put(0, other);
    EVENTUALLY(limit_at(0, "api", mine) == 40 && limit_at(0, "api", other) == 40);
    EVENTUALLY(list_has(1, "/v1/plans", mine) && list_has(1, "/v1/plans", other));
    char path[96];
    snprintf(path, sizeof path, "/v1/plans?glob=*&key=%s&reason=over", other);
    expect_verb(at(1), "DELETE", path, OPERATOR, "", 200, "{\"id\": "); /* at the other node */
    EVENTUALLY(limit_at(0, "api", other) == 3);
    EVENTUALLY(!list_has(0, "/v1/plans", other));
    assert_int_equal(limit_at(0, "api", mine), 40);
}

/* Returns how many of the plans that a node lists are in force. */
static int plans_at(int node) {
    char *response = get(at(node), "/v1/plans?limit=1000", OPERATOR);
    int count = 0;
    for (const char *row = response; (row = strstr(row, "\"in_force\":true")); row++) count++;
    free(response);
    return count;
}

#define BULK 300 /* more than etcd takes in one transaction */

TEST(a_bulk_of_plans_is_whole_at_each_node) {
    char *body = (char *)calloc(1, BULK * 80 + 64);
    size_t used = 0;
    assert_non_null(body);
    cluster_share(LIMITS, 2);
    used += (size_t)sprintf(body, "{\"reason\": \"moved\", \"plans\": [");
    for (int i = 0; i < BULK; i++) {
        used += (size_t)sprintf(body + used,
                                "%s{\"glob\": \"*\", \"key\": \"bulk-%d\", \"plan\": \"pro\"}",
                                i ? ", " : "", i);
    }
    sprintf(body + used, "]}");
    expect_verb(at(0), "PUT", "/v1/plans", OPERATOR, body, 200, "{\"id\": ");
    free(body);
    for (int i = 0; i < 2; i++) EVENTUALLY(plans_at(i) == BULK);
    EVENTUALLY(limit_at(1, "api", "bulk-0") == 40 && limit_at(1, "api", "bulk-299") == 40);
    assert_false(list_has(0, "/v1/audit", "\"known\":false"));
    char path[64];
    snprintf(path, sizeof path, "/v1/audit/%d/undo?reason=wrong", newest_act(0, "\"bulk\":true"));
    expect_verb(at(0), "POST", path, OPERATOR, "", 200, "\"id\":");
    for (int i = 0; i < 2; i++) EVENTUALLY(plans_at(i) == 0);
}

TEST(a_node_that_joins_reads_the_overrides_before_it_decides) {
    char key[32];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    cluster_node_start(2);
    EVENTUALLY(cluster_number(2, "is_master") == 1);
    move_all(1, "{\"drain\": \"n1\"}", 8);
    EVENTUALLY(cluster_owned(2) > 0);
    assert_int_equal(limit_at(2, "api", key), 30);
}

/* ---- a node that had no --shards before ----------------------------------------------------- */

TEST(rows_from_before_shards_hold_at_all_nodes) {
    cluster_start_single(LIMITS);
    override_put(0, "acme", 30, DAY, 200, "{\"id\":");
    override_put(0, "gone", 50, "\"expires_in\": 2", 200, "{\"id\":");
    for (int i = 0; i < 3; i++) {
        char key[16];
        snprintf(key, sizeof key, "pro-%d", i);
        plan_put(0, key);
    }
    sleep_ms(2500); /* the override of "gone" has ended */
    cluster_divide();
    process_await(cluster.nodes[0].process, "from before --shards hold at all nodes now", 1);
    EVENTUALLY(limit_at(0, "api", "acme") == 30);
    assert_string_equal(redis_run(&cluster.redis, "HLEN doorman:{n0}:notes:override"), "0");
    assert_string_equal(redis_run(&cluster.redis, "HLEN doorman:{n0}:notes:plan"), "0");
    cluster_node_start(1);
    EVENTUALLY(cluster_number(1, "is_master") == 1);
    move_all(0, "{\"drain\": \"n0\"}", 16);
    assert_int_equal(limit_at(1, "api", "acme"), 30);
    assert_int_equal(limit_at(1, "api", "gone"), 3);
    for (int i = 0; i < 3; i++) {
        char key[16];
        snprintf(key, sizeof key, "pro-%d", i);
        assert_int_equal(limit_at(1, "api", key), 40);
    }
    for (int i = 0; i < 2; i++) EVENTUALLY(list_has(i, "/v1/overrides", "\"ticket 4711\""));
    override_put(1, "acme", 60, DAY, 200, "{\"id\":"); /* it can be changed, at each node */
    EVENTUALLY(limit_at(0, "api", "acme") == 60);
    assert_false(list_has(1, "/v1/overrides", "\"limit\":30"));
}

TEST(a_row_of_the_cluster_outranks_one_from_before_shards) {
    cluster_start_single(LIMITS);
    override_put(0, "acme", 30, DAY, 200, "{\"id\":");
    override_put(0, "other", 20, DAY, 200, "{\"id\":");
    process_signal(cluster.nodes[0].process, SIGTERM);
    process_end(cluster.nodes[0].process, 0);
    cluster_is_single = false;
    cluster_node_start(1); /* this node makes the map */
    EVENTUALLY(cluster_owned(1) == SHARDS);
    override_put(1, "acme", 50, DAY, 200, "{\"id\":");
    cluster_node_start(0);
    process_await(cluster.nodes[0].process, "the nodes share one with its name", 1);
    EVENTUALLY(limit_at(0, "api", "other") == 20);
    assert_int_equal(limit_at(0, "api", "acme"), 50);
}

/* ---- who did it, and the way back ----------------------------------------------------------- */

TEST(an_act_is_in_the_audit_of_the_node_that_was_asked_and_is_undone_there) {
    char key[32], path[64];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    const int id = newest_act(0, "\"what\":\"override\",\"reason\":\"ticket 4711\"");
    newest_act(0, "\"token\":\"ann\"");
    assert_false(list_has(0, "/v1/audit", "\"known\":false"));
    assert_false(list_has(1, "/v1/audit", "ticket 4711"));
    EVENTUALLY(limit_at(0, "api", key) == 30);
    snprintf(path, sizeof path, "/v1/audit/%d/undo?reason=wrong", id);
    expect_verb(at(0), "POST", path, OPERATOR, "", 200, "\"id\":");
    EVENTUALLY(limit_at(0, "api", key) == 3);
    expect_verb(at(0), "POST", path, OPERATOR, "", 409, "came later");
}

TEST(an_undo_is_refused_if_another_node_has_changed_the_override_since) {
    char key[32], path[64];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    override_put(0, key, 30, DAY, 200, "{\"id\":");
    const int id = newest_act(0, "\"what\":\"override\"");
    override_put(1, key, 50, DAY, 200, "{\"id\":");
    snprintf(path, sizeof path, "/v1/audit/%d/undo?reason=wrong", id);
    expect_verb(at(0), "POST", path, OPERATOR, "", 409, "an act at another node came later");
    EVENTUALLY(limit_at(0, "api", key) == 50);
    newest_act(1, "\"before\":{\"resource\":\"api\"");
}

TEST(an_override_that_adds_units_is_taken_by_the_owner_of_its_key) {
    char key[32], body[256];
    cluster_share(LIMITS, 2);
    key_of_node(1, "acme", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"bucket\", "
             "\"key\": \"%s\", \"cost\": 5}]}]}",
             key);
    expect_post(at(1), "/v1/acquire", LINES, body, 200, "\"granted\":5");
    snprintf(body, sizeof body,
             "{\"resource\": \"bucket\", \"limit\": \"burst\", \"key\": \"%s\", \"add\": 7, " DAY
             ", \"reason\": \"once\"}",
             key);
    expect_verb(at(0), "PUT", "/v1/overrides", OPERATOR, body, 409, "the node 'n1' decides for it");
    expect_verb(at(1), "PUT", "/v1/overrides", OPERATOR, body, 200, "{\"id\":");
    EVENTUALLY(list_has(0, "/v1/overrides", "\"once\""));
    move_all(1, "{\"drain\": \"n1\"}", 8);
    int granted = 0;
    for (int i = 0; i < 12; i++) granted += node_ask(0, "bucket", key) == ANSWER_GRANTED;
    assert_int_equal(granted, 7);
}

/* ---- two at once, and failures -------------------------------------------------------------- */

#define ACTS 20 /* at each node, on keys of its own */

struct writer {
    pthread_t thread;
    int node, failed;
};

static void *writer_main(void *context) {
    struct writer *writer = (struct writer *)context;
    for (int i = 0; i < ACTS; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"resource\": \"api\", \"limit\": \"day\", \"key\": \"w%d-%d\", \"set\": "
                 "{\"limit\": %d}, " DAY ", \"reason\": \"at once\"}",
                 writer->node, i, 10 + i);
        char request[1024];
        snprintf(request, sizeof request,
                 "PUT /v1/overrides HTTP/1.1\r\n" OPERATOR "Content-Length: %zu\r\nConnection: "
                 "close\r\n\r\n%s",
                 strlen(body), body);
        char *response = exchange(at(writer->node), request);
        writer->failed += code_of(response) != 200;
        free(response);
    }
    return NULL;
}

TEST(nodes_that_write_at_the_same_moment_lose_no_act) {
    struct writer writers[3];
    cluster_share(LIMITS, 3);
    for (int i = 0; i < 3; i++) {
        writers[i] = (struct writer){.node = i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, writer_main, &writers[i]), 0);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(writers[i].thread, NULL), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(writers[i].failed, 0);
    for (int i = 0; i < 3 * ACTS; i++) {
        char key[32];
        snprintf(key, sizeof key, "w%d-%d", i / ACTS, i % ACTS);
        EVENTUALLY(limit_at(i % 3, "api", key) == 10 + i % ACTS);
    }
}

TEST(without_etcd_an_act_is_refused_and_what_holds_still_holds) {
    char key[32];
    cluster_is_cut_off = true;
    cluster_share(LIMITS, 2);
    cluster_is_cut_off = false;
    key_of_node(0, "acme", key);
    override_put(1, key, 30, DAY, 200, "{\"id\":");
    EVENTUALLY(limit_at(0, "api", key) == 30);
    proxy_cut(&cluster.proxy, true);
    assert_int_equal(node_ask(0, "api", key), ANSWER_GRANTED);
    override_put(0, key, 50, DAY, 503, "nothing was changed");
    override_put(1, key, 60, DAY, 200, "{\"id\":"); /* the other node has an etcd */
    proxy_cut(&cluster.proxy, false);
    EVENTUALLY(limit_at(0, "api", key) == 60);
    assert_false(list_has(1, "/v1/overrides", "\"limit\":50"));
    proxy_stop(&cluster.proxy);
}

/* A write of overrides, as etcd gets it: the key is in base64. */
#define OVERRIDE_WRITE "\"request_put\":{\"key\":\"ZG9vcm1hbi9zaGFyZHMvbm90ZXMvb3ZlcnJpZGUv"

/* Starts two nodes. The first node reaches etcd through a proxy, which can lose answers. */
static void share_behind_proxy(void) {
    cluster_is_cut_off = true;
    cluster_share(LIMITS, 2);
    cluster_is_cut_off = false;
}

static int answers_left(void) {
    return __atomic_load_n(&cluster.proxy.lose_count, __ATOMIC_ACQUIRE);
}

TEST(an_act_whose_answer_was_lost_is_done_once) {
    char key[32];
    share_behind_proxy();
    key_of_node(1, "acme", key);
    proxy_lose(&cluster.proxy, OVERRIDE_WRITE, 1);
    override_put(0, key, 30, DAY, 200,
                 "{\"id\":"); /* the second try finds what the first has done */
    assert_int_equal(answers_left(), 0);
    for (int i = 0; i < 2; i++) EVENTUALLY(limit_at(i, "api", key) == 30);
    assert_false(list_has(0, "/v1/audit", "\"known\":false"));
    char *list = get(at(1), "/v1/overrides", OPERATOR);
    assert_null(strstr(strstr(list, "ticket 4711") + 1, "ticket 4711"));
    free(list);
    proxy_stop(&cluster.proxy);
}

TEST(an_act_that_etcd_takes_without_an_answer_holds_and_is_not_known_in_the_audit) {
    char key[32], mine[32], body[256];
    share_behind_proxy();
    key_of_node(1, "acme", key);
    key_of_node(0, "mine", mine);
    for (int i = 0; i < 5; i++) assert_int_equal(node_ask(0, "bucket", mine), ANSWER_GRANTED);
    proxy_lose(&cluster.proxy, OVERRIDE_WRITE, 100);
    override_put(0, key, 30, DAY, 503, "it is not known whether this was done");
    assert_true(answers_left() < 100);
    proxy_lose(&cluster.proxy, OVERRIDE_WRITE, 0);
    for (int i = 0; i < 2; i++) EVENTUALLY(limit_at(i, "api", key) == 30);
    assert_true(list_has(0, "/v1/overrides", "ticket 4711"));
    assert_true(list_has(0, "/v1/audit", "\"known\":false"));
    snprintf(body, sizeof body,
             "{\"resource\": \"bucket\", \"limit\": \"burst\", \"key\": \"%s\", \"add\": 7, " DAY
             ", \"reason\": \"once\"}",
             mine);
    proxy_lose(&cluster.proxy, OVERRIDE_WRITE, 100);
    expect_verb(at(0), "PUT", "/v1/overrides", OPERATOR, body, 503, "it is not known");
    proxy_lose(&cluster.proxy, OVERRIDE_WRITE, 0);
    EVENTUALLY(list_has(1, "/v1/overrides", "\"once\"") &&
               list_has(0, "/v1/overrides", "\"once\""));
    int granted = 0;
    EVENTUALLY((granted += node_ask(0, "bucket", mine) == ANSWER_GRANTED) >= 7);
    for (int i = 0; i < 12; i++) granted += node_ask(0, "bucket", mine) == ANSWER_GRANTED;
    assert_int_equal(granted, 7); /* the units were added once */
    proxy_stop(&cluster.proxy);
}
