/* One key space on several nodes (N1 to N9), with real processes, an etcd and a Redis. */
#define _GNU_SOURCE
#include "shards_fixture.h"

#define SHARDS 16
#define USERS 60
#define LIMITS(shards) LIMITS_OF(shards, ", \"on_restart\": \"full\"")
#define LIMITS_OF(shards, slots)                                                                   \
    "{\"shards\": " shards                                                                         \
    ", \"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "       \
    "\"kind\": \"CONCURRENCY\", \"limit\": 2, \"time_to_live\": 30" slots                          \
    "}]}, {\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"day\", \"kind\": "                \
    "\"FIXED_WINDOW\", \"limit\": 100000, \"window\": 86400}, {\"name\": \"burst\", \"kind\": "    \
    "\"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 1000}]}]}"

/* ---- a load and its account ----------------------------------------------------------------- */

static struct {
    pthread_t thread;
    bool stops; /* atomic */
    long granted[USERS], asked[USERS], decided[NODES_MAX];
} load;

static void user_name(int user, char out[32]) { snprintf(out, 32, "user-%d", user); }

static void *load_main(void *context) {
    (void)context;
    for (int i = 0; !__atomic_load_n(&load.stops, __ATOMIC_RELAXED) && i < 200000; i++) {
        char key[32];
        enum answer answer;
        user_name(i % USERS, key);
        load.asked[i % USERS]++;
        const int node = cluster_ask("api", key, &answer);
        if (node < 0 || answer != ANSWER_GRANTED) continue;
        load.granted[i % USERS]++;
        load.decided[node]++;
    }
    return NULL;
}

static void load_start(void) {
    memset(&load, 0, sizeof load);
    assert_int_equal(pthread_create(&load.thread, NULL, load_main, NULL), 0);
}

static void load_stop(void) {
    __atomic_store_n(&load.stops, true, __ATOMIC_RELAXED);
    assert_int_equal(pthread_join(load.thread, NULL), 0);
}

/* Returns what a key has used of a limit, at the node that decides for it. */
static double used_of(const char *key, const char *limit) {
    char path[128];
    for (int tries = 0; tries < 1000; tries++) {
        const int index = tries % NODES_MAX;
        const struct shard_node *node = &cluster.nodes[index];
        if (!node->process || node->process->pid == 0) continue;
        snprintf(path, sizeof path, "/v1/inspect?redirect=1");
        char body[256];
        snprintf(body, sizeof body,
                 "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\", \"limit\": \"%s\"}]}",
                 key, limit);
        char *response = post(&node->fixture, path, LINES, body);
        const char *at = strstr(response, "\"used\":");
        const double used = at && !strstr(response, "MOVED") ? atof(at + strlen("\"used\":")) : -1;
        free(response);
        if (used >= 0) return used;
        if (index == NODES_MAX - 1) sleep_ms(10);
    }
    return -1;
}

/* Expects the limit `day` of each user to have counted exactly what was granted to the user. */
static void expect_exact(void) {
    long all = 0;
    for (int user = 0; user < USERS; user++) {
        char key[32];
        user_name(user, key);
        assert_int_equal((long)used_of(key, "day"), load.granted[user]);
        all += load.granted[user];
    }
    assert_true(all > 0);
    print_message("%ld granted: %ld by n0, %ld by n1, %ld by n2\n", all, load.decided[0],
                  load.decided[1], load.decided[2]);
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST(the_first_node_owns_all_and_others_join_without_a_command) {
    cluster_start(LIMITS("16"), 2);
    assert_int_equal(cluster_owned(0), SHARDS);
    EVENTUALLY(cluster_size(0) > 1); /* the second node is in the map */
    assert_int_equal(cluster_owned(1), 0);
    enum answer answer;
    assert_int_equal(cluster_ask("api", "acme", &answer), 0);
    assert_int_equal(answer, ANSWER_GRANTED);
    assert_int_equal(node_ask(1, "api", "acme"), ANSWER_MOVED);
    expect(&cluster.nodes[1].fixture, "/shards", LINES, 200, "n1");
    expect(&cluster.nodes[0].fixture, "/metrics", LINES, 200, "doorman_shards_owned 16");
    expect(&cluster.nodes[0].fixture, "/v1/status", LINES, 200, "\"shards\":{\"epoch\":");
    expect(&cluster.nodes[0].fixture, "/", LINES, 200, "16 of 16");
}

TEST(shards_move_under_load_and_nothing_is_forgotten) {
    cluster_start(LIMITS("16"), 3);
    EVENTUALLY(cluster_size(0) > 2);
    load_start();
    cluster_change(1, "{\"rebalance\": true}", 200, "\"moves\":10");
    EVENTUALLY(cluster_owned(0) == 6 && cluster_owned(1) == 5 && cluster_owned(2) == 5);
    EVENTUALLY(cluster_rests(0));
    cluster_change(0, "{\"drain\": \"n0\"}", 200, "\"moves\":6");
    EVENTUALLY(cluster_owned(0) == 0 && cluster_owned(1) == 8 && cluster_owned(2) == 8);
    EVENTUALLY(cluster_rests(2));
    cluster_change(2, "{\"move\": 3, \"node\": \"n0\"}", 200, "\"moves\":1");
    EVENTUALLY(cluster_owned(0) == 1);
    load_stop();
    expect_exact();
    for (int i = 0; i < 3; i++) assert_true(load.decided[i] > 0);
    EVENTUALLY(cluster_rests(0));
    assert_int_equal(cluster_number(1, "rows_lost"), 0);
    cluster_change(0, "{\"remove\": \"n0\"}", 409, "has shards");
}

/* Asks the first node to decide for each user, in one message that it does not forward. Returns how
 * many are granted. The cost is 0, because there are thousands of messages.
 *   granted   out: of each user */
static int users_ask(bool granted[USERS]) {
    char body[USERS * 80 + 64];
    size_t used = (size_t)snprintf(body, sizeof body, "{\"client_id\": \"c\", \"permit\": [");
    for (int user = 0; user < USERS; user++) {
        used += (size_t)snprintf(
            body + used, sizeof body - used,
            "%s{\"item\": [{\"resource_id\": \"api\", \"key\": \"user-%d\", \"cost\": "
            "0}]}",
            user ? ", " : "", user);
    }
    snprintf(body + used, sizeof body - used, "]}");
    char *response = post(&cluster.nodes[0].fixture, "/v1/acquire?redirect=1", LINES, body);
    cJSON *json = cJSON_Parse(body_of(response));
    const cJSON *permits = cJSON_GetObjectItem(json, "permit");
    int count = 0;
    assert_int_equal(cJSON_GetArraySize(permits), USERS);
    for (int user = 0; user < USERS; user++) {
        granted[user] = cJSON_HasObjectItem(cJSON_GetArrayItem(permits, user), "item");
        count += granted[user];
    }
    cJSON_Delete(json);
    free(response);
    return count;
}

/* Returns how many shards the first node has closed, and not handed over yet. */
static int shards_closed(void) {
    char *response = get(&cluster.nodes[0].fixture, "/v1/shards", LINES);
    int count = 0;
    for (const char *at = response; (at = strstr(at, "\"state\":\"")) != NULL; at++) {
        count += strncmp(at + strlen("\"state\":\""), "giving", 6) == 0 ||
                 strncmp(at + strlen("\"state\":\""), "offered", 7) == 0;
    }
    free(response);
    return count;
}

TEST(while_shards_move_one_is_closed_at_a_time_and_the_other_keys_are_answered) {
    bool granted[USERS], always[USERS];
    int messages = 0, moved = 0;
    memset(always, true, sizeof always);
    cluster_start(LIMITS("16"), 2);
    EVENTUALLY(cluster_size(0) > 1);
    assert_int_equal(users_ask(granted), USERS);
    cluster_change(1, "{\"rebalance\": true}", 200, "\"moves\":8");
    for (; messages < 100000 && cluster_owned(1) < 8; messages++) {
        (void)users_ask(granted);
        for (int user = 0; user < USERS; user++) always[user] = always[user] && granted[user];
        assert_in_range(shards_closed(), 0, 1);
    }
    (void)users_ask(granted);
    for (int user = 0; user < USERS; user++) { /* a key that stays was granted each time */
        assert_true(always[user] || !granted[user]);
        moved += !granted[user];
    }
    assert_in_range(moved, 1, USERS - 1);
    assert_true(messages > 1);
    print_message("%d messages were answered while %d keys moved\n", messages, moved);
}

/* A change of the map, as etcd gets it: the key is in base64. */
#define MAP_WRITE "\"request_put\":{\"key\":\"ZG9vcm1hbi9zaGFyZHM=\""

TEST(moves_whose_answers_are_lost_forget_nothing) {
    cluster_is_cut_off = true;
    cluster_start(LIMITS("16"), 2);
    cluster_is_cut_off = false;
    EVENTUALLY(cluster_size(0) > 1);
    load_start();
    proxy_lose(&cluster.proxy, MAP_WRITE, 12); /* the owner does not know that a shard has moved */
    cluster_change(1, "{\"rebalance\": true}", 200, "\"moves\":8");
    EVENTUALLY(cluster_owned(0) == 8 && cluster_owned(1) == 8);
    EVENTUALLY(cluster_rests(0));
    load_stop();
    assert_true(__atomic_load_n(&cluster.proxy.lose_count, __ATOMIC_ACQUIRE) < 12);
    expect_exact();
    assert_int_equal(cluster_number(1, "rows_lost"), 0);
    proxy_stop(&cluster.proxy);
}

TEST(a_hold_is_released_at_the_next_owner) {
    cluster_start(LIMITS("16"), 2);
    EVENTUALLY(cluster_size(0) > 1);
    static const char hold[] = "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 1, \"item\": "
                               "[{\"resource_id\": \"slots\", \"key\": \"k\", \"cost\": 2}]}]}";
    char *response = post(&cluster.nodes[0].fixture, "/v1/acquire", LINES, hold);
    const char *at = strstr(response, "\"hold\":{\"id\":");
    if (!at) fail_msg("no hold in %s", response);
    const long long id = atoll(strstr(at, "id\":") + strlen("id\":"));
    free(response);
    cluster_change(0, "{\"drain\": \"n0\"}", 200, "\"moves\":16");
    EVENTUALLY(cluster_owned(1) == SHARDS);
    assert_int_equal(node_ask(1, "slots", "k"), ANSWER_NONE); /* it lacks a request_id */
    char body[128];
    snprintf(body, sizeof body, "{\"client_id\": \"c\", \"entry\": [{\"id\": %lld}]}", id);
    expect_post(&cluster.nodes[0].fixture, "/v1/release?redirect=1", LINES, body, 200, "MOVED");
    char other[256];
    snprintf(other, sizeof other, "%s", hold);
    *strstr(other, "1, \"item") = '2';
    expect_post(&cluster.nodes[1].fixture, "/v1/acquire", LINES, other, 200, "CONCURRENCY");
    expect_post(&cluster.nodes[1].fixture, "/v1/release", LINES, body, 200, "\"amount\":");
    expect_post(&cluster.nodes[1].fixture, "/v1/acquire", LINES, other, 200, "\"hold\":");
}

TEST(a_node_that_was_killed_keeps_its_shards_and_the_others_work) {
    cluster_start(LIMITS("16"), 2);
    EVENTUALLY(cluster_size(0) > 1);
    cluster_change(0, "{\"rebalance\": true}", 200, "\"moves\":8");
    EVENTUALLY(cluster_owned(0) == 8 && cluster_owned(1) == 8 && cluster_rests(0));
    load_start();
    sleep_ms(500);
    load_stop();
    sleep_ms(2500); /* the store has all changes */
    process_signal(cluster.nodes[1].process, SIGKILL);
    process_wait(cluster.nodes[1].process);
    int unavailable = 0;
    for (int user = 0; user < USERS; user++) {
        char key[32];
        user_name(user, key);
        const enum answer answer = node_ask(0, "api", key);
        unavailable += answer == ANSWER_MOVED;
        load.granted[user] += answer == ANSWER_GRANTED;
    }
    assert_true(unavailable > 0 && unavailable < USERS);
    cluster_node_start(1);
    process_await(cluster.nodes[1].process, "counters read", 1); /* until then they are unknown */
    EVENTUALLY(cluster_owned(1) == 8);
    expect_exact();
}

TEST(another_node_takes_the_shards_of_a_node_that_is_gone) {
    cluster_start(LIMITS("16"), 3);
    EVENTUALLY(cluster_size(0) > 2);
    cluster_change(0, "{\"rebalance\": true}", 200, "\"moves\":10");
    EVENTUALLY(cluster_owned(0) == 6 && cluster_owned(2) == 5 && cluster_rests(0));
    load_start();
    sleep_ms(500);
    load_stop();
    sleep_ms(2500);
    cluster_change(0, "{\"force\": \"n2\"}", 409, "the node has a master");
    process_signal(cluster.nodes[2].process, SIGKILL);
    process_wait(cluster.nodes[2].process);
    char *response = NULL;
    int code = 409;
    for (int i = 0; code == 409 && i < 100; i++) {
        response = post(&cluster.nodes[0].fixture, "/v1/shards", OPERATOR, "{\"force\": \"n2\"}");
        code = code_of(response);
        if (code == 409) sleep_ms(100); /* its mastership has not ended yet */
        if (code == 409) free(response);
    }
    assert_int_equal(code, 200);
    assert_non_null(strstr(response, "\"moves\":5"));
    free(response);
    EVENTUALLY(cluster_owned(0) == 8 && cluster_owned(1) == 8);
    EVENTUALLY(cluster_rests(0));
    expect_exact(); /* of the durable limit; a burst starts fresh */
    cluster_change(1, "{\"remove\": \"n2\"}", 200, "\"nodes\":[");
    cluster_node_start(2); /* it comes back, without shards */
    EVENTUALLY(cluster_number(2, "is_master") != 0);
    enum answer answer;
    assert_true(cluster_ask("api", "user-1", &answer) < 2);
    assert_int_equal(cluster_owned(2), 0);
}

TEST(wrong_changes_are_refused_by_name) {
    static const struct {
        const char *change, *text;
        int code;
    } wrong[] = {
        {"", "must be an object", 400},
        {"{}", "give one of", 400},
        {"{\"move\": 1, \"drain\": \"n0\"}", "give one of", 400},
        {"{\"move\": -1, \"node\": \"n0\"}", "must be the number of a shard", 400},
        {"{\"move\": 1.5, \"node\": \"n0\"}", "must be the number of a shard", 400},
        {"{\"move\": 1}", "node: must be the name of a node", 400},
        {"{\"move\": 99, \"node\": \"n0\"}", "only the shards 0 to 15", 409},
        {"{\"move\": 1, \"node\": \"x\"}", "no node 'x'", 409},
        {"{\"drain\": \"n0\"}", "there is no other node", 409},
        {"{\"rebalance\": 1}", "must be true", 400},
        {"{\"rebalance\": true, \"node\": \"n0\"}", "only with move", 400},
        {"{\"split\": 3}", "not known", 400},
        {"{\"force\": \"n0\"}", "drain it", 409},
    };
    cluster_start(LIMITS("16"), 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cluster_change(0, wrong[i].change, wrong[i].code, wrong[i].text);
    }
    assert_int_equal(cluster_owned(0), SHARDS);
}

/* Expects the audit of a node to contain a text. */
static void expect_row(int node, const char *row) {
    expect_verb(&cluster.nodes[node].fixture, "GET", "/v1/audit", OPERATOR, "", 200, row);
}

TEST(each_change_is_in_the_audit_of_the_node_that_was_asked) {
    cluster_start(LIMITS("16"), 2);
    EVENTUALLY(cluster_size(0) > 1);
    expect_verb(&cluster.nodes[0].fixture, "POST", "/v1/shards?reason=hot", OPERATOR,
                "{\"move\": 3, \"node\": \"n1\"}", 200, "\"moves\":1");
    expect_row(0, "\"token\":\"ann\",\"role\":\"admin\"");
    expect_row(0, "\"what\":\"shards\",\"change\":\"move\",\"shard\":3,\"node\":\"n1\",\"reason\":"
                  "\"hot\",\"moves\":1}");
    EVENTUALLY(cluster_owned(1) == 1 && cluster_rests(1));
    cluster_change(1, "{\"rebalance\": true}", 200, "\"moves\":7");
    expect_row(1, "\"what\":\"shards\",\"change\":\"rebalance\",\"moves\":7}");
    EVENTUALLY(cluster_owned(1) == 8 && cluster_rests(0));
    cluster_change(0, "{\"drain\": \"n1\"}", 200, "\"moves\":8");
    expect_row(0, "\"change\":\"drain\",\"node\":\"n1\",\"moves\":8}");
    EVENTUALLY(cluster_owned(0) == SHARDS && cluster_rests(0));
    cluster_change(0, "{\"force\": \"n1\"}", 409, "the node has a master");
    expect_row(0, "\"change\":\"force\",\"node\":\"n1\",\"refused\":\"the node has a master");
    cluster_change(0, "{\"remove\": \"n1\"}", 409, "would join again");
    expect_row(0, "\"change\":\"remove\",\"node\":\"n1\",\"refused\":\"");
    expect(&cluster.nodes[0].fixture, "/metrics", LINES, 200,
           "doorman_administration_acts_total{what=\"shards\"}");
    char *audit = get(&cluster.nodes[0].fixture, "/v1/audit", OPERATOR);
    assert_null(strstr(audit, "\"known\":false"));
    free(audit);
}

/* Starts one more process, which must refuse to serve. */
static void expect_no_start(const char *node, const char *key, const char *text) {
    struct process *other = process_new();
    file_write(other->config, cluster.config);
    const char *const arguments[] = {"--config",
                                     other->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--http",
                                     "off",
                                     "--etcd",
                                     cluster.etcd.url,
                                     "--election-key",
                                     key,
                                     "--node",
                                     node,
                                     "--state",
                                     cluster.redis.address,
                                     "--shards",
                                     "doorman/shards",
                                     NULL};
    process_start(other, arguments, NULL);
    process_end(other, 1);
    char *log_text = file_read(other->err);
    assert_non_null(strstr(log_text, text));
    free(log_text);
}

TEST(the_number_of_shards_stays) {
    cluster_start(LIMITS("16"), 1);
    struct process *process = cluster.nodes[0].process;
    file_write(process->config, LIMITS("32"));
    process_signal(process, SIGHUP);
    process_await(process, "must stay 16, not 32", 1);
    assert_int_equal(cluster_owned(0), SHARDS);
    cluster.config = LIMITS("32");
    expect_no_start("other", "doorman/other", "must stay 16, not 32");
}

#define CAPACITY 200.0
#define LEASED                                                                                     \
    "\"limits\": [{\"name\": \"share\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "       \
    "\"rate\": \"leased\"}]"

/* Takes units of one resource from both nodes, until each node has granted 100. After a refusal it
 * waits 1 ms, less than the time in which a unit comes. Fails if the units are ever more than the
 * capacity allows, with a burst of 0.1 s for each node, and one unit that each node may round
 * up. */
static void share_take(int64_t start) {
    double granted[2] = {0}, all = 0;
    for (int i = 0; granted[0] < 100 || granted[1] < 100; i++) {
        char key[32];
        assert_in_range(i, 0, 100000);
        user_name(i % USERS, key);
        const bool grants = node_ask(i % 2, "db", key) == ANSWER_GRANTED;
        granted[i % 2] += grants;
        if (!grants) sleep_ms(1);
        all = granted[0] + granted[1];
        const double seconds = (double)(clock_read() - start) / SECOND;
        if (all > CAPACITY * (seconds + 0.2) + 2) fail_msg("%g units in %g s", all, seconds);
    }
    print_message("granted by n0 %g, by n1 %g\n", granted[0], granted[1]);
}

/* N6: a limit of all keys is leased, so the root divides it among the nodes. */
TEST(a_limit_of_all_keys_is_leased_by_each_node) {
    struct server root = server_start("{\"resources\": [{\"identifier_glob\": \"db\", "
                                      "\"capacity\": 200, \"algorithm\": {\"kind\": "
                                      "\"FAIR_SHARE\", \"lease_length\": 20, "
                                      "\"refresh_interval\": 2, \"learning_mode_duration\": "
                                      "0}}]}",
                                      (const char *[]){"--node", "root", NULL});
    cluster_parent = root.url;
    cluster_share("{\"shards\": 16, \"resources\": [{\"identifier_glob\": \"db\", " LEASED "}]}",
                  2);
    cluster_parent = NULL;
    const int64_t start = clock_read();
    share_take(start);
    server_stop(&root);
}

/* Changes a copy of a map. Returns it as text, which the caller frees with cJSON_free. */
static char *map_with(const char *text, void (*change)(cJSON *map)) {
    cJSON *map = cJSON_Parse(text);
    assert_non_null(map);
    change(map);
    char *changed = cJSON_PrintUnformatted(map);
    cJSON_Delete(map);
    return changed;
}

static void map_hole(cJSON *map) {
    cJSON_DeleteItemFromObject(cJSON_GetArrayItem(cJSON_GetObjectItem(map, "shards"), 7), "owner");
}

static void map_no_address(cJSON *map) {
    cJSON *node = cJSON_GetArrayItem(cJSON_GetObjectItem(map, "nodes"), 1);
    cJSON_DeleteItemFromObject(node, "addresses");
    cJSON_AddArrayToObject(node, "addresses");
}

static void map_fewer(cJSON *map) {
    cJSON_DeleteItemFromArray(cJSON_GetObjectItem(map, "shards"), 15);
    cJSON_GetObjectItem(map, "epoch")->valuedouble += 1;
}

static void map_many(cJSON *map) {
    cJSON *shards = cJSON_GetObjectItem(map, "shards");
    while (cJSON_GetArraySize(shards) <= 1024) {
        cJSON_AddItemToArray(shards, cJSON_Duplicate(cJSON_GetArrayItem(shards, 0), true));
    }
}

static void map_none(cJSON *map) {
    cJSON_DeleteItemFromObject(map, "shards");
    cJSON_AddArrayToObject(map, "shards");
}

/* Makes the second node the owner of all shards in a map, and gives this map an earlier epoch. */
static void map_older(cJSON *map) {
    cJSON *shard = NULL;
    cJSON_ArrayForEach(shard, cJSON_GetObjectItem(map, "shards")) {
        cJSON_SetValuestring(cJSON_GetObjectItem(shard, "owner"), "n1");
        if (cJSON_HasObjectItem(shard, "target")) cJSON_DeleteItemFromObject(shard, "target");
    }
    cJSON_GetObjectItem(map, "epoch")->valuedouble = 1;
}

TEST(a_wrong_map_is_named_and_the_last_one_stays) {
    static const struct {
        void (*change)(cJSON *map);
        const char *text;
    } wrong[] = {
        {map_hole, "shards[7].owner: is missing"},
        {map_no_address, "nodes[1].addresses: must be a list of 1 to 16"},
        {map_fewer, "another number of shards, or another seed"},
        {map_many, "shards: must be a list of at most 1024"},
        {map_none, "shards: must be from 1 to 1,024"},
        {map_older, NULL},
    };
    cluster_start(LIMITS("16"), 2);
    EVENTUALLY(cluster_size(0) > 1);
    char *map = etcd_read(&cluster.etcd, "doorman/shards");
    int mended = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *changed = map_with(map, wrong[i].change);
        etcd_put(&cluster.etcd, "doorman/shards", changed);
        cJSON_free(changed);
        if (wrong[i].text) process_await(cluster.nodes[0].process, wrong[i].text, 1);
        if (!wrong[i].text) sleep_ms(1500); /* the nodes look twice a second */
        assert_int_equal(node_ask(0, "api", "acme"), ANSWER_GRANTED);
        assert_int_equal(node_ask(1, "api", "acme"), ANSWER_MOVED);
        etcd_put(&cluster.etcd, "doorman/shards", map);
        mended += wrong[i].text != NULL;
        process_await(cluster.nodes[0].process, "msg=\"shards work again\"", mended);
    }
    etcd_control(&cluster.etcd, (const char *[]){"del", "doorman/shards", NULL});
    process_await(cluster.nodes[0].process, "the key of the map is gone", 1);
    assert_int_equal(node_ask(0, "api", "acme"), ANSWER_GRANTED);
    etcd_put(&cluster.etcd, "doorman/shards", map);
    process_await(cluster.nodes[0].process, "msg=\"shards work again\"", mended + 1);
    cluster_change(0, "{\"rebalance\": true}", 200, "\"moves\":8");
    EVENTUALLY(cluster_owned(0) == 8 && cluster_owned(1) == 8);
    free(map);
}

TEST(a_template_keeps_its_shard_by) {
    static const char *const text =
        "{\"shards\": 16, \"resources\": [{\"identifier_glob\": \"*\", "
        "%s\"limits\": [{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", "
        "\"limit\": 9, \"window\": 86400}]}]}";
    char before[256], after[256];
    snprintf(before, sizeof before, text, "");
    snprintf(after, sizeof after, text, "\"shard_by\": \"resource\", ");
    cluster_start(before, 1);
    struct process *process = cluster.nodes[0].process;
    file_write(process->config, after);
    process_signal(process, SIGHUP);
    process_await(process, "shard_by: of '*' must stay 'key'", 1);
    assert_int_equal(node_ask(0, "api", "acme"), ANSWER_GRANTED);
}

TEST(a_name_has_one_election_and_an_election_one_name) {
    cluster_start(LIMITS("16"), 1);
    expect_no_start("n0", "doorman/other", "has a node 'n0' with --election-key doorman/n0, not");
    expect_no_start("other", "doorman/n0", "each node needs its own key");
    assert_int_equal(cluster_owned(0), SHARDS);
}

/* Sends a change to a node. Returns whether it was carried out. */
static bool change_is_taken(int node, const char *change) {
    char *response = post(&cluster.nodes[node].fixture, "/v1/shards", OPERATOR, change);
    const bool is_taken = strstr(response, "200 OK") != NULL;
    free(response);
    return is_taken;
}

TEST(a_node_without_a_master_gets_no_shards) {
    cluster_start(LIMITS("16"), 3);
    EVENTUALLY(cluster_size(0) > 2);
    process_signal(cluster.nodes[2].process, SIGKILL);
    process_wait(cluster.nodes[2].process);
    sleep_ms(1000 * (atoi(NODE_TTL) + 2)); /* its mastership ends */
    cluster_change(0, "{\"move\": 3, \"node\": \"n2\"}", 409, "the node has no master");
    cluster_change(0, "{\"rebalance\": true}", 200, "\"moves\":8");
    EVENTUALLY(cluster_owned(0) == 8 && cluster_owned(1) == 8 && cluster_rests(0));
    cluster_change(0, "{\"drain\": \"n1\"}", 200, "\"moves\":8");
    EVENTUALLY(cluster_owned(0) == 16 && cluster_rests(0));
    cluster_change(1, "{\"drain\": \"n2\"}", 200, "\"moves\":0"); /* it has none */
    cluster_change(0, "{\"remove\": \"n1\"}", 409, "would join again");
    process_await(cluster.nodes[0].process, "change=\"drain n1\"", 1);
    process_await(cluster.nodes[0].process, "change=\"remove n1\"", 1);
    cluster_node_start(2);
    EVENTUALLY(cluster_number(2, "is_master") == 1);
    EVENTUALLY(change_is_taken(2, "{\"rebalance\": true}")); /* it reads the store first */
    EVENTUALLY(cluster_owned(2) == 5 && cluster_rests(2));
    process_signal(cluster.nodes[2].process, SIGKILL);
    process_wait(cluster.nodes[2].process);
    sleep_ms(1000 * (atoi(NODE_TTL) + 2));
    cluster_change(0, "{\"rebalance\": true}", 409, "'n2' has shards, but no master");
    cluster_change(0, "{\"drain\": \"n2\"}", 409, "'n2' has shards, but no master");
    cluster_change(0, "{\"drain\": \"n1\"}", 200, "\"moves\":");
    EVENTUALLY(cluster_owned(0) == 11);
}

TEST(shards_need_an_election_and_a_redis) {
    expect_refusal((const char *[]){"--shards", "k", NULL}, 2, "--shards needs --election-key");
}

/* Acquires a hold that fills the limit of a key. Returns whether the hold was granted. */
static bool job_start(int node, const char *key, int request_id) {
    char body[256];
    snprintf(
        body, sizeof body,
        "{\"client_id\": \"c\", \"permit\": [{\"request_id\": %d, \"item\": [{\"resource_id\": "
        "\"slots\", \"key\": \"%s\", \"cost\": 2}]}]}",
        request_id, key);
    char *response = post(&cluster.nodes[node].fixture, "/v1/acquire?redirect=1", LINES, body);
    const bool is_granted = strstr(response, "\"hold\":") != NULL;
    free(response);
    return is_granted;
}

TEST(a_node_that_gets_shards_keeps_what_its_keys_have_used) {
    char key[32];
    memset(&load, 0, sizeof load);
    cluster_start_single(LIMITS("16"));
    for (int user = 0; user < USERS; user++) {
        user_name(user, key);
        for (int i = 0; i <= user % 4; i++) {
            assert_int_equal(node_ask(0, "api", key), ANSWER_GRANTED);
            load.granted[user]++;
        }
    }
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof key, "job-%d", i);
        assert_true(job_start(0, key, i + 1));
    }
    cluster.config = LIMITS_OF("16", ""); /* holds are learned */
    cluster_divide();
    process_await(cluster.nodes[0].process, "from a time without shards", 1);
    expect_exact();
    cluster_node_start(1);
    EVENTUALLY(cluster_number(1, "is_master") == 1);
    cluster_change(0, "{\"drain\": \"n0\"}", 200, "\"moves\":16");
    EVENTUALLY(cluster_owned(1) == SHARDS && cluster_rests(1));
    expect_exact();
    assert_int_equal(cluster_number(1, "rows_lost"), 0);
    for (int i = 0; i < 8; i++) { /* the first job still runs */
        snprintf(key, sizeof key, "job-%d", i);
        assert_false(job_start(1, key, i + 100));
    }
}

TEST(a_node_that_joins_with_a_full_store_says_that_it_does_not_count) {
    char key[32];
    memset(&load, 0, sizeof load);
    cluster_start_single(LIMITS("16"));
    for (int user = 0; user < USERS; user++) {
        user_name(user, key);
        assert_int_equal(node_ask(0, "api", key), ANSWER_GRANTED);
    }
    process_signal(cluster.nodes[0].process, SIGTERM);
    process_end(cluster.nodes[0].process, 0);
    cluster_is_single = false;
    cluster_node_start(1); /* the first node of the cluster is another one */
    EVENTUALLY(cluster_owned(1) == SHARDS);
    cluster_node_start(0);
    process_await(cluster.nodes[0].process, "the counters of its store do not count", 1);
    cluster_change(1, "{\"drain\": \"n1\"}", 200, "\"moves\":16");
    EVENTUALLY(cluster_owned(0) == SHARDS && cluster_rests(0));
    for (int user = 0; user < USERS; user++) { /* what comes with the shards counts */
        user_name(user, key);
        assert_int_equal((long)used_of(key, "day"), 0);
    }
}
