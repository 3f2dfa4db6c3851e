/* Messages that a node sends to the nodes that decide for their keys (N4), with real processes, an
 * etcd and a Redis. */
#define _GNU_SOURCE
#include "shards_fixture.h"

#define SHARDS 16
#define USERS 48
#define LIMITS                                                                                     \
    "{\"shards\": 16, \"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": "   \
    "\"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 2, \"time_to_live\": 5}]}, "                 \
    "{\"identifier_glob\": \"shop/tight\", \"limits\": [{\"name\": \"tight\", \"kind\": "          \
    "\"FIXED_WINDOW\", \"limit\": 3, \"window\": 86400}]}, "                                       \
    "{\"identifier_glob\": \"slow\", \"limits\": [{\"name\": \"slow\", \"kind\": "                 \
    "\"TOKEN_BUCKET\", \"rate\": 2, \"size\": 1, \"max_debt\": 5}]}, "                             \
    "{\"identifier_glob\": \"tight\", \"limits\": [{\"name\": \"tight\", \"kind\": "               \
    "\"FIXED_WINDOW\", \"limit\": 3, \"window\": 86400}]}, "                                       \
    "{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", "   \
    "\"limit\": 100000, \"window\": 86400}]}]}"

/* Starts nodes that have equally many shards. */
static void cluster_share(int count) {
    char moves[24];
    cluster_start(LIMITS, count);
    EVENTUALLY(cluster_number(0, "epoch") > count - 1);
    snprintf(moves, sizeof moves, "\"moves\":%d", count == 2 ? 8 : 10);
    cluster_wish(0, "{\"rebalance\": true}", 200, moves);
    for (int i = 0; i < count; i++) EVENTUALLY(cluster_owned(i) >= SHARDS / count);
    EVENTUALLY(cluster_rests(0));
    for (int i = 1; i < count; i++) {
        EVENTUALLY(cluster_number(i, "epoch") == cluster_number(0, "epoch"));
    }
}

/* Finds a key that a node owns, and that none of the keys before has.
 *   out   "PREFIX-NUMBER" */
static void key_of_node(int node, const char *prefix, char out[32]) {
    for (int i = 0; i < 1000; i++) {
        snprintf(out, 32, "%s-%d", prefix, i);
        const enum answer answer = node_ask(node, "probe", out);
        assert_int_not_equal(answer, ANSWER_NONE);
        if (answer == ANSWER_GRANTED) return;
    }
    fail_msg("node %d owns no key", node);
}

static void expect_at(int node, const char *path, const char *body, int code, const char *text) {
    expect_post(&cluster.nodes[node].fixture, path, LINES, body, code, text);
}

/* Returns a number that follows a name in the answer to a message, or -1. */
static long long number_at(int node, const char *path, const char *body, const char *name) {
    char *response = post(&cluster.nodes[node].fixture, path, LINES, body);
    const char *at = strstr(response, name);
    const long long number = at ? atoll(at + strlen(name)) : -1;
    if (!at && getenv("SHOW")) print_message("%s\n", body_of(response));
    free(response);
    return number;
}

/* Returns what a key has used of a limit, by the answer of any node. */
static long used_at(int node, const char *resource, const char *key) {
    char body[256];
    snprintf(body, sizeof body, "{\"entry\": [{\"resource_id\": \"%.100s\", \"key\": \"%.100s\"}]}",
             resource, key);
    return (long)number_at(node, "/v1/inspect", body, "\"used\":");
}

/* ---- each method ---------------------------------------------------------------------------- */

TEST(a_permit_is_decided_by_the_owner_whichever_node_is_asked) {
    char key[32], body[256];
    cluster_share(2);
    for (int owner = 0; owner < 2; owner++) {
        key_of_node(owner, "tight", key);
        snprintf(body, sizeof body,
                 "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"tight\", "
                 "\"key\": \"%s\"}]}]}",
                 key);
        expect_at(1 - owner, "/v1/acquire", body, 200, "\"granted\":1");
        expect_at(owner, "/v1/acquire", body, 200, "\"granted\":1");
        expect_at(1 - owner, "/v1/acquire", body, 200, "\"granted\":1");
        expect_at(1 - owner, "/v1/acquire", body, 200, "\"decision\":\"REFUSED\"");
        expect_at(1 - owner, "/v1/acquire?redirect=1", body, 200, "MOVED");
        assert_int_equal(used_at(0, "tight", key), 3);
        assert_int_equal(used_at(1, "tight", key), 3);
    }
}

TEST(a_whole_message_is_forwarded_as_the_body_of_its_method_is) {
    char key[32], body[256];
    cluster_share(2);
    key_of_node(1, "whole", key);
    snprintf(body, sizeof body,
             "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\"}]}]}}",
             key);
    expect_at(0, "/v1", body, 200, "{\"acquire\":{\"permit\":[{\"decision\":\"GRANTED\"");
}

TEST(a_report_and_a_settlement_reach_the_owner) {
    char key[32], body[512];
    cluster_share(2);
    key_of_node(1, "report", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\", "
             "\"cost\": 5}]}",
             key);
    expect_at(0, "/v1/report", body, 200, "\"charged\":5");
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 9, \"settle_within\": 60, "
             "\"item\": [{\"resource_id\": \"api\", \"key\": \"%s\", \"cost\": 10}]}]}",
             key);
    const long long id = number_at(0, "/v1/acquire", body, "\"id\":");
    assert_true(id > 0);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"entry\": [{\"id\": %lld, \"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\", \"cost\": 4}]}]}",
             id, key);
    expect_at(0, "/v1/settle", body, 200, "\"returned\":6");
    assert_int_equal(used_at(0, "api", key), 9);
}

TEST(holds_are_renewed_moved_and_released_at_the_wrong_node) {
    char key[32], body[512];
    cluster_share(2);
    key_of_node(0, "hold", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 1, \"item\": [{\"resource_id\": "
             "\"slots\", \"key\": \"%s\", \"cost\": 2}]}]}",
             key);
    long long id = -1;
    EVENTUALLY((id = number_at(1, "/v1/acquire", body, "\"id\":")) > 0); /* it learns first */
    snprintf(body, sizeof body, "{\"client_id\": \"c\", \"entry\": [{\"id\": %lld}]}", id);
    expect_at(1, "/v1/renew", body, 200, "\"expires_in\":");
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"entry\": [{\"id\": %lld, \"request_id\": 2, \"amount\": "
             "[1]}]}",
             id);
    const long long transfer = number_at(1, "/v1/transfer", body, "\"transfer_id\":");
    assert_true(transfer > 0);
    snprintf(body, sizeof body,
             "{\"client_id\": \"d\", \"entry\": [{\"transfer_id\": %lld, \"request_id\": 1}]}",
             transfer);
    expect_at(1, "/v1/seize", body, 200, "\"id\":");
    snprintf(body, sizeof body, "{\"client_id\": \"c\", \"entry\": [{\"id\": %lld}]}", id);
    expect_at(1, "/v1/release", body, 200, "\"amount\":[]");
    /* the owner is found without an id too */
    expect_at(1, "/v1/release", "{\"client_id\": \"d\", \"entry\": [{\"request_id\": 1}]}", 200,
              "\"amount\":[]");
    expect_at(1, "/v1/release", "{\"client_id\": \"d\", \"entry\": [{\"request_id\": 7}]}", 200,
              "\"gone\":true");
}

TEST(a_gateway_may_ask_any_node_with_allow) {
    char key[32], path[128];
    cluster_share(2);
    for (int owner = 0; owner < 2; owner++) {
        struct fixture *other = &cluster.nodes[1 - owner].fixture;
        key_of_node(owner, "allow", key);
        snprintf(path, sizeof path, "/v1/allow?resource=tight&key=%s", key);
        expect(other, path, LINES, 200, "\"granted\":1");
        expect(&cluster.nodes[owner].fixture, path, LINES, 200, "\"remaining\":1");
        expect(other, path, LINES, 200, "X-RateLimit-Remaining: 0");
        expect(other, path, LINES, 429, "Retry-After: ");
        snprintf(path, sizeof path, "/v1/allow?resource=tight&key=%s&redirect=1", key);
        expect(other, path, LINES, 503, "MOVED");
        snprintf(path, sizeof path, "/v1/allow?resource=slots&key=%s", key);
        expect(other, path, LINES, 400, "request_id: is needed");
        snprintf(path, sizeof path, "/v1/allow?resource=slow&key=%s&max_wait=5", key);
        expect(other, path, LINES, 200, "\"granted\":1");
        expect(other, path, LINES, 200, "\"granted\":1"); /* on credit */
        expect(other, path, LINES, 200, "\"waited\":");
    }
}

TEST(a_gateway_may_call_any_node_with_grpc) {
    char key[32], other[32], address[64], command[512];
    cluster_grpc = "127.0.0.1:0";
    cluster_share(2);
    cluster_grpc = NULL;
    key_of_node(1, "key", key);
    key_of_node(0, "other", other);
    char *log_text = file_read(cluster.nodes[0].process->err);
    const char *at = strstr(log_text, " grpc=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, " grpc=%63[^ \n]", address), 1);
    free(log_text);
    snprintf(command, sizeof command, "/usr/bin/python3 tests/grpc/forward.py web-3 %s %s %s",
             address, key, other);
    assert_int_equal(system(command), 0);
}

/* ---- batches -------------------------------------------------------------------------------- */

TEST(the_answers_to_a_batch_are_in_its_order) {
    char keys[USERS][32], body[USERS * 128] = "{\"client_id\": \"c\", \"permit\": [";
    cluster_share(3);
    for (int i = 0; i < USERS; i++) {
        snprintf(keys[i], sizeof keys[i], "batch-%d", i);
        const size_t used = strlen(body);
        snprintf(body + used, sizeof body - used,
                 "%s{\"item\": [{\"resource_id\": \"api\", \"key\": \"%s\", \"cost\": %d}]}",
                 i ? "," : "", keys[i], i + 1);
    }
    strcat(body, "]}");
    for (int node = 0; node < 3; node++) {
        char *response = post(&cluster.nodes[node].fixture, "/v1/acquire", LINES, body);
        cJSON *json = cJSON_Parse(body_of(response));
        const cJSON *list = cJSON_GetObjectItem(json, "permit");
        assert_int_equal(cJSON_GetArraySize(list), USERS);
        for (int i = 0; i < USERS; i++) {
            const cJSON *items = cJSON_GetObjectItem(cJSON_GetArrayItem(list, i), "item");
            const cJSON *granted = cJSON_GetObjectItem(cJSON_GetArrayItem(items, 0), "granted");
            assert_true(cJSON_IsNumber(granted));
            assert_int_equal(granted->valueint, i + 1);
        }
        cJSON_Delete(json);
        free(response);
    }
    for (int i = 0; i < USERS; i++) assert_int_equal(used_at(i % 3, "api", keys[i]), 3 * (i + 1));
}

TEST(a_permit_with_items_in_two_shards_is_refused_at_each_node) {
    char first[32], other[32], body[512];
    cluster_share(2);
    key_of_node(0, "first", first);
    key_of_node(1, "other", other);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}, {\"resource_id\": \"api\", \"key\": \"%s\"}]}]}",
             first, other);
    for (int node = 0; node < 2; node++) expect_at(node, "/v1/acquire", body, 200, "SHARDS");
    assert_int_equal(used_at(0, "api", first), 0);
    assert_int_equal(used_at(0, "api", other), 0);
}

TEST(an_error_in_a_forwarded_message_is_named) {
    char key[32], body[512];
    cluster_share(2);
    key_of_node(1, "wrong", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\", \"cost\": -1}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 400, "acquire.permit[0].item[0].cost");
}

/* ---- faults --------------------------------------------------------------------------------- */

TEST(a_killed_node_fails_alone) {
    char mine[32], other[32], body[512];
    cluster_share(2);
    key_of_node(0, "mine", mine);
    key_of_node(1, "other", other);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}, {\"item\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}]}",
             mine, other);
    char *response = post(&cluster.nodes[0].fixture, "/v1/acquire", LINES, body);
    assert_null(strstr(response, "REFUSED"));
    free(response);
    process_signal(cluster.nodes[1].process, SIGKILL);
    process_wait(cluster.nodes[1].process);
    for (int i = 0; i < 3; i++) {
        response = post(&cluster.nodes[0].fixture, "/v1/acquire", LINES, body);
        assert_non_null(strstr(response, "GRANTED"));
        assert_non_null(strstr(response, "MOVED"));
        free(response);
    }
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             other);
    expect_at(0, "/v1/acquire", body, 503, "the node 'n1' does not answer");
    cluster_node_start(1);
    EVENTUALLY(cluster_owned(1) == 8);
    EVENTUALLY(number_at(0, "/v1/acquire", body, "\"granted\":") == 1);
}

TEST(a_client_cannot_claim_that_it_is_a_node) {
    char key[32], body[512], forged[512];
    cluster_share(2);
    key_of_node(1, "forged", key);
    snprintf(body, sizeof body,
             "{\"reset\": {\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}}", key);
    snprintf(forged, sizeof forged,
             "{\"reset\":{\"forwarded\":\"%016llx.00000000000000ab.00000000000000cd\",\"entry\":"
             "[{\"resource_id\":\"api\",\"key\":\"%s\"}]}}",
             (unsigned long long)time(NULL), key);
    const char *const messages[] = {body, forged};
    for (int i = 0; i < 2; i++) {
        char *response = send_over_nng(cluster.nodes[1].fixture.server.url, messages[i],
                                       strlen(messages[i]), TIMEOUT_MS);
        assert_non_null(strstr(response, "NOT_FOUND"));
        free(response);
    }
    expect(&cluster.nodes[1].fixture, "/metrics", LINES, 200,
           "doorman_forward_marks_refused_total 1");
    /* a message over nng is not forwarded */
    snprintf(body, sizeof body,
             "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\"}]}]}}",
             key);
    char *response =
        send_over_nng(cluster.nodes[0].fixture.server.url, body, strlen(body), TIMEOUT_MS);
    assert_non_null(strstr(response, "MOVED"));
    free(response);
    assert_int_equal(used_at(0, "api", key), 0);
    expect(&cluster.nodes[0].fixture, "/metrics", LINES, 200,
           "doorman_forwards_total{node=\"n1\",result=\"sent\"}");
    expect(&cluster.nodes[0].fixture, "/shards", LINES, 200, "data-name='forwards'");
}

/* ---- moves under load ----------------------------------------------------------------------- */

static struct {
    pthread_t threads[2];
    bool stops; /* atomic */
    long granted[2][USERS], refused[2];
    char sample[512];
} load;

static void *load_main(void *context) {
    const int number = (int)(intptr_t)context;
    for (int i = 0; !__atomic_load_n(&load.stops, __ATOMIC_RELAXED) && i < 200000; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", "
                 "\"key\": \"load-%d\"}]}]}",
                 i % USERS);
        char *response = post(&cluster.nodes[(number + i) % 3].fixture, "/v1/acquire", LINES, body);
        if (strstr(response, "\"granted\":1")) {
            load.granted[number][i % USERS]++;
        } else {
            load.refused[number]++;
            snprintf(load.sample, sizeof load.sample, "%.500s", response);
        }
        free(response);
    }
    return NULL;
}

TEST(shards_move_under_load_and_no_client_notices) {
    cluster_share(3);
    memset(&load, 0, sizeof load);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&load.threads[i], NULL, load_main, (void *)(intptr_t)i), 0);
    }
    cluster_wish(0, "{\"drain\": \"n0\"}", 200, "\"moves\":6");
    EVENTUALLY(cluster_owned(0) == 0 && cluster_rests(1));
    cluster_wish(1, "{\"rebalance\": true}", 200, "\"moves\":");
    EVENTUALLY(cluster_owned(0) > 3 && cluster_rests(1));
    __atomic_store_n(&load.stops, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(load.threads[i], NULL), 0);
    if (load.refused[0] + load.refused[1]) print_message("%s\n", load.sample);
    assert_int_equal(load.refused[0] + load.refused[1], 0);
    long all = 0;
    for (int i = 0; i < USERS; i++) {
        char key[32];
        snprintf(key, sizeof key, "load-%d", i);
        const long granted = load.granted[0][i] + load.granted[1][i];
        assert_int_equal(used_at(i % 3, "api", key), granted);
        all += granted;
    }
    print_message("%ld granted\n", all);
    assert_true(all > USERS);
}
