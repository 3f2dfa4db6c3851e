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
    "{\"identifier_glob\": \"shop/wide\", \"limits\": [{\"name\": \"wide\", \"kind\": "            \
    "\"FIXED_WINDOW\", \"limit\": 5, \"window\": 86400}]}, "                                       \
    "{\"identifier_glob\": \"slow\", \"limits\": [{\"name\": \"slow\", \"kind\": "                 \
    "\"TOKEN_BUCKET\", \"rate\": 2, \"size\": 1, \"max_debt\": 5}]}, "                             \
    "{\"identifier_glob\": \"tight\", \"limits\": [{\"name\": \"tight\", \"kind\": "               \
    "\"FIXED_WINDOW\", \"limit\": 3, \"window\": 86400}]}, "                                       \
    "{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", "   \
    "\"limit\": 100000, \"window\": 86400}]}]}"

static void expect_at(int node, const char *path, const char *body, int code, const char *text) {
    expect_post(&cluster.nodes[node].fixture, path, LINES, body, code, text);
}

/* Waits until a node's answer to a GET has a text. */
static void expect_eventually(int node, const char *path, const char *text) {
    bool has_it = false;
    for (int i = 0; i < 500 && !has_it; i++) {
        char *response = get(&cluster.nodes[node].fixture, path, LINES);
        has_it = strstr(response, text) != NULL;
        free(response);
        if (!has_it) sleep_ms(20);
    }
    if (!has_it) fail_msg("%s never says %s", path, text);
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

/* Returns what a key has used of a limit. Any node may be asked. */
static long used_at(int node, const char *resource, const char *key) {
    char body[256];
    snprintf(body, sizeof body, "{\"entry\": [{\"resource_id\": \"%.100s\", \"key\": \"%.100s\"}]}",
             resource, key);
    return (long)number_at(node, "/v1/inspect", body, "\"used\":");
}

/* ---- each method ---------------------------------------------------------------------------- */

TEST(a_permit_is_decided_by_the_owner_whichever_node_is_asked) {
    char key[32], body[256];
    cluster_share(LIMITS, 2);
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
    cluster_share(LIMITS, 2);
    key_of_node(1, "whole", key);
    snprintf(body, sizeof body,
             "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\"}]}]}}",
             key);
    for (int node = 0; node < 2; node++) {
        expect_at(node, "/v1", body, 200, "\r\n\r\n{\"acquire\":{\"map_epoch\":");
        expect_at(node, "/v1", body, 200, ",\"permit\":[{\"decision\":\"GRANTED\"");
    }
}

TEST(a_report_and_a_settlement_reach_the_owner) {
    char key[32], body[512];
    cluster_share(LIMITS, 2);
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
    cluster_share(LIMITS, 2);
    key_of_node(0, "hold", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 1, \"item\": [{\"resource_id\": "
             "\"slots\", \"key\": \"%s\", \"cost\": 2}]}]}",
             key);
    long long id = -1;
    EVENTUALLY((id = number_at(1, "/v1/acquire", body, "\"id\":")) > 0); /* n0 learns first */
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
    cluster_share(LIMITS, 2);
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
    cluster_share(LIMITS, 2);
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

/* ---- administration ------------------------------------------------------------------------- */

TEST(a_reset_at_the_wrong_node_names_the_owner_and_changes_nothing) {
    char mine[32], other[32], body[512], body_of_owner[256], owner[256];
    cluster_share(LIMITS, 2);
    key_of_node(0, "mine", mine);
    key_of_node(1, "other", other);
    const char *const keys[] = {mine, other};
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", "
                 "\"key\": \"%s\", \"cost\": 7}]}]}",
                 keys[i]);
        expect_at(0, "/v1/acquire", body, 200, "\"granted\":7");
    }
    snprintf(body, sizeof body,
             "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\"}, {\"resource_id\": "
             "\"api\", \"key\": \"%s\", \"ban\": 60}]}",
             mine, other);
    snprintf(owner, sizeof owner, "entry[1]: the node 'n1' decides for it, so ask that one, at %s",
             cluster.nodes[1].fixture.server.url);
    expect_verb(&cluster.nodes[0].fixture, "POST", "/v1/reset", OPERATOR, body, 409, owner);
    assert_int_equal(used_at(0, "api", mine), 7);
    assert_int_equal(used_at(0, "api", other), 7);
    char *audit = get(&cluster.nodes[0].fixture, "/v1/audit", OPERATOR);
    assert_null(strstr(audit, "mine-")); /* no row says that something was tried */
    free(audit);
    snprintf(body_of_owner, sizeof body_of_owner,
             "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}", other);
    expect_verb(&cluster.nodes[1].fixture, "POST", "/v1/reset", OPERATOR, body_of_owner, 200,
                "\"count\":1");
    expect_verb(&cluster.nodes[1].fixture, "GET", "/v1/audit", OPERATOR, "", 200,
                "\"token\":\"ann\"");
    assert_int_equal(used_at(0, "api", other), 0);
}

/* Runs doormanctl against the first node. Returns what it prints; the caller frees it. */
static char *run_doormanctl(const char *words) {
    char command[1024], *text = (char *)calloc(1, 4096);
    snprintf(command, sizeof command,
             "DOORMAN_TOKEN=top-1 build/doormanctl --url http://%s %s 2>&1",
             cluster.nodes[0].fixture.http.url + strlen("tcp://"), words);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(text);
    (void)fread(text, 1, 4095, pipe);
    pclose(pipe);
    return text;
}

/* doormanctl shows an act that moved shards as the command that causes it, here "drain n0". */
TEST(doormanctl_says_in_the_audit_which_shards_were_moved) {
    require(access("build/doormanctl", X_OK) == 0, "build/doormanctl");
    cluster_share(LIMITS, 2);
    cluster_change(0, "{\"drain\": \"n0\"}", 200, "\"moves\":");
    char *audit = run_doormanctl("audit");
    assert_non_null(strstr(audit, " drain n0"));
    free(audit);
}

TEST(doormanctl_shows_a_key_of_any_node_and_says_where_to_reset_it) {
    char key[32], body[256], words[64];
    require(access("build/doormanctl", X_OK) == 0, "build/doormanctl");
    cluster_share(LIMITS, 2);
    key_of_node(1, "ctl", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\", \"cost\": 7}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 200, "\"granted\":7");
    snprintf(words, sizeof words, "--json key api %s", key);
    char *shown = run_doormanctl(words);
    if (!strstr(shown, "\"used\":7")) fail_msg("%s", shown);
    free(shown);
    snprintf(words, sizeof words, "reset api %s", key);
    shown = run_doormanctl(words);
    if (!strstr(shown, "the node 'n1' decides for it")) fail_msg("%s", shown);
    free(shown);
}

TEST(the_end_of_a_hold_at_the_wrong_node_names_the_owner) {
    char key[32], body[512];
    cluster_share(LIMITS, 2);
    key_of_node(1, "hold", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 1, \"item\": [{\"resource_id\": "
             "\"slots\", \"key\": \"%s\"}]}]}",
             key);
    long long id = -1;
    EVENTUALLY((id = number_at(0, "/v1/acquire", body, "\"id\":")) > 0); /* n1 learns first */
    snprintf(body, sizeof body, "{\"id\": %lld}", id);
    expect_verb(&cluster.nodes[0].fixture, "POST", "/v1/holds/end", OPERATOR, body, 409,
                "id: the node 'n1' decides for it, so ask that one, at tcp://");
    expect_verb(&cluster.nodes[1].fixture, "POST", "/v1/holds/end", OPERATOR, body, 200,
                "\"ended\":true");
    expect_verb(&cluster.nodes[1].fixture, "POST", "/v1/holds/end", OPERATOR, body, 404,
                "there is no such hold");
}

/* ---- batches -------------------------------------------------------------------------------- */

TEST(the_answers_to_a_batch_are_in_its_order) {
    char keys[USERS][32], body[USERS * 128] = "{\"client_id\": \"c\", \"permit\": [";
    cluster_share(LIMITS, 3);
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
    cluster_share(LIMITS, 2);
    key_of_node(0, "first", first);
    key_of_node(1, "other", other);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}, {\"resource_id\": \"api\", \"key\": \"%s\"}]}]}",
             first, other);
    char names[160];
    snprintf(names, sizeof names,
             "\"key\":\"%s\",\"item_index\":1,\"reason\":\"SHARDS\",\"first_item\":"
             "{\"resource_id\":\"api\",\"key\":\"%s\"}",
             other, first);
    for (int node = 0; node < 2; node++) expect_at(node, "/v1/acquire", body, 200, names);
    assert_int_equal(used_at(0, "api", first), 0);
    assert_int_equal(used_at(0, "api", other), 0);
}

TEST(a_settlement_with_items_in_two_shards_names_both_keys_at_each_node) {
    char first[32], other[32], body[512], names[200];
    cluster_share(LIMITS, 2);
    key_of_node(0, "first", first);
    key_of_node(1, "other", other);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"entry\": [{\"request_id\": 7, \"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\", \"cost\": 2}, {\"resource_id\": \"api\", \"key\": \"%s\", "
             "\"cost\": 2}]}]}",
             first, other);
    snprintf(names, sizeof names,
             "{\"reason\":\"SHARDS\",\"resource_id\":\"api\",\"key\":\"%s\",\"item_index\":1,"
             "\"first_item\":{\"resource_id\":\"api\",\"key\":\"%s\"}}",
             other, first);
    for (int node = 0; node < 2; node++) expect_at(node, "/v1/settle", body, 200, names);
    assert_int_equal(used_at(0, "api", first), 0);
    assert_int_equal(used_at(0, "api", other), 0);
}

TEST(an_error_in_a_forwarded_message_is_named) {
    char key[32], body[512];
    cluster_share(LIMITS, 2);
    key_of_node(1, "wrong", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\", \"cost\": -1}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 400, "acquire.permit[0].item[0].cost");
}

/* ---- faults --------------------------------------------------------------------------------- */

TEST(a_killed_node_fails_alone) {
    char mine[32], other[32], body[512], two[512];
    cluster_share(LIMITS, 2);
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
    snprintf(two, sizeof two,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}, {\"item\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}]}",
             other, other); /* nothing of it is decided here */
    expect_at(0, "/v1/acquire", two, 503, "the node 'n1' does not answer");
    cluster_node_start(1);
    EVENTUALLY(cluster_owned(1) == 8);
    EVENTUALLY(number_at(0, "/v1/acquire", body, "\"granted\":") == 1);
}

/* Expects `doormanctl shards` to print a text. */
static void expect_nodes(const char *text) {
    char *shown = run_doormanctl("shards");
    if (!strstr(shown, text)) fail_msg("no '%s' in %s", text, shown);
    free(shown);
}

TEST(a_node_that_was_killed_is_shown_at_once_and_without_a_master_later) {
    char other[32], body[256];
    require(access("build/doormanctl", X_OK) == 0, "build/doormanctl");
    cluster_share(LIMITS, 2);
    key_of_node(1, "other", other);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             other);
    expect_at(0, "/v1/acquire", body, 200, "\"granted\":1");
    expect_eventually(0, "/v1/shards", "\"n1\",\"shards\":8,\"has_master\":true,\"answers\":true");
    expect_eventually(0, "/metrics", "doorman_shard_node_has_master{of=\"n1\"} 1");
    process_signal(cluster.nodes[1].process, SIGKILL);
    process_wait(cluster.nodes[1].process);
    expect_at(0, "/v1/acquire", body, 503, "does not answer");
    expect_eventually(0, "/v1/shards", "\"answers\":false");
    expect_eventually(0, "/shards", "yes, but did not answer");
    expect_nodes("yes, but did not answer");
    expect_eventually(0, "/v1/shards",
                      "\"n1\",\"shards\":8,\"has_master\":false,\"without_master_seconds\":");
    expect_eventually(0, "/shards", "class=bad>none for ");
    expect_eventually(0, "/metrics", "doorman_shard_node_has_master{of=\"n1\"} 0");
    expect_nodes("none for ");
    cluster_node_start(1);
    expect_eventually(0, "/v1/shards", "\"n1\",\"shards\":8,\"has_master\":true");
}

TEST(a_client_cannot_claim_that_it_is_a_node) {
    char key[32], body[512], forged[512];
    cluster_share(LIMITS, 2);
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
           "doorman_forwards_total{to=\"n1\",result=\"sent\"}");
    expect(&cluster.nodes[0].fixture, "/shards", LINES, 200, "data-name='forwards'");
}

TEST(messages_that_travel_as_one_have_their_own_answers_and_rights) {
    char key[32], reset[256], acquire[256], batch[1024];
    cluster_share(LIMITS, 2);
    key_of_node(1, "batch", key);
    snprintf(acquire, sizeof acquire,
             "{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": "
             "\"api\", \"key\": \"%s\"}]}]}}",
             key);
    snprintf(reset, sizeof reset,
             "{\"reset\": {\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}}", key);
    snprintf(batch, sizeof batch, "{\"batch\":{\"bytes\":[%zu,%zu,3],\"messages\":[%s,%s,{x}]}}",
             strlen(acquire), strlen(reset), acquire, reset);
    char *response =
        send_over_nng(cluster.nodes[1].fixture.server.url, batch, strlen(batch), TIMEOUT_MS);
    assert_true(strstr(response, "{\"batch\":{\"bytes\":[") == response);
    const char *granted = strstr(response, "\"granted\":1"),
               *refused = strstr(response, "NOT_FOUND");
    assert_true(granted && refused && granted < refused);
    assert_non_null(strstr(refused, "INVALID_ARGUMENT")); /* {x} is no JSON */
    free(response);
    assert_int_equal(used_at(0, "api", key), 1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

TEST(two_nodes_with_different_maps_do_not_send_a_message_to_and_fro) {
    char key[32], body[256];
    cluster_is_cut_off = true;
    cluster_share(LIMITS, 2);
    cluster_is_cut_off = false;
    key_of_node(1, "loop", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 200, "\"granted\":1");
    /* the first node does not learn that it owns all shards, so each node says that the other is
     * owner */
    proxy_cut(&cluster.proxy, true);
    cluster_change(1, "{\"drain\": \"n1\"}", 200, "\"moves\":8");
    EVENTUALLY(cluster_number(1, "moved_out") == 8); /* until then node 1 decides for it */
    assert_int_equal(node_ask(1, "api", key), ANSWER_MOVED);
    const double began = seconds();
    expect_at(0, "/v1/acquire", body, 200, "MOVED");
    char *response = get(&cluster.nodes[1].fixture, "/metrics", LINES);
    assert_null(strstr(response, "doorman_forwards_total{to=\"n0\"")); /* none was sent back */
    free(response);
    expect_at(1, "/v1/acquire", body, 200, "MOVED");
    print_message("%.2f s\n", seconds() - began);
    assert_true(seconds() - began < 8);
    expect_eventually(0, "/metrics", "doorman_forwards_received_total ");
    proxy_cut(&cluster.proxy, false);
    EVENTUALLY(cluster_number(0, "owned") == SHARDS);
    int tries = 0; /* on a busy machine the first node may be late, and charge without an answer */
    EVENTUALLY((tries++, number_at(1, "/v1/acquire", body, "\"granted\":") == 1));
    assert_in_range(used_at(1, "api", key), 2, 1 + tries);
    proxy_stop(&cluster.proxy);
}

/* An operator can write any map into etcd. The nodes keep the last valid one. */
TEST(a_map_with_another_number_of_shards_is_not_used) {
    char key[32], body[256];
    cluster_share(LIMITS, 2);
    key_of_node(1, "count", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
    etcd_put(&cluster.etcd, "doorman/shards",
             "{\"epoch\": 1000, \"seed\": \"00112233445566778899aabbccddeeff\", \"nodes\": "
             "[{\"name\": \"n0\", \"addresses\": [\"tcp://127.0.0.1:1\"]}], \"shards\": "
             "[{\"owner\": \"n0\"}]}");
    for (int node = 0; node < 2; node++) {
        expect_eventually(node, "/v1/shards", "another number of shards");
        expect_at(node, "/v1/acquire", body, 200, "\"granted\":1");
    }
    assert_int_equal(used_at(0, "api", key), 2);
}

/* A message that a thread sends, and what is answered. */
struct sent {
    pthread_t thread;
    const char *body;
    bool stops;   /* atomic */
    long granted; /* atomic */
    long refused, unknown;
    double longest;   /* seconds until an answer */
    char sample[512]; /* one of the unknown answers */
};

/* Sends a message to the first node again and again. */
static void *sent_main(void *context) {
    struct sent *sent = (struct sent *)context;
    while (!__atomic_load_n(&sent->stops, __ATOMIC_RELAXED)) {
        const double began = seconds();
        char *response = post(&cluster.nodes[0].fixture, "/v1/acquire", LINES, sent->body);
        const double lasted = seconds() - began;
        const bool is_refused = strstr(response, "MOVED") || strstr(response, "LEARNING") ||
                                (code_of(response) == 503 && strstr(response, "the node 'n1' "));
        if (lasted > sent->longest) sent->longest = lasted;
        if (strstr(response, "\"granted\":1")) {
            __atomic_add_fetch(&sent->granted, 1, __ATOMIC_RELAXED);
        } else if (is_refused) {
            sent->refused++;
        } else {
            sent->unknown++;
            snprintf(sent->sample, sizeof sent->sample, "%.500s", response);
        }
        free(response);
    }
    return NULL;
}

TEST(a_standby_process_takes_over_with_messages_under_way) {
    char key[32], body[256];
    cluster_share(LIMITS, 2);
    cluster_standby = 2;
    cluster_node_start(2);
    cluster_standby = 0;
    key_of_node(1, "standby", key);
    /* the first node knows the process, which has joined last, and is not the master */
    expect_eventually(0, "/v1/shards", cluster.nodes[2].fixture.server.url);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 200, "\"granted\":1");
    expect_at(2, "/v1/acquire", body, 200, "master_address"); /* a standby names its master */
    cluster_change(2, "{\"rebalance\": true}", 503, "ask the master"); /* it has the audit */
    struct sent sent = {.body = body, .granted = 1};
    assert_int_equal(pthread_create(&sent.thread, NULL, sent_main, &sent), 0);
    sleep_ms(300);
    process_signal(cluster.nodes[1].process, SIGKILL);
    process_wait(cluster.nodes[1].process);
    EVENTUALLY(cluster_owned(2) == 8);
    const long before = __atomic_load_n(&sent.granted, __ATOMIC_RELAXED);
    EVENTUALLY(__atomic_load_n(&sent.granted, __ATOMIC_RELAXED) > before + 10);
    __atomic_store_n(&sent.stops, true, __ATOMIC_RELAXED);
    assert_int_equal(pthread_join(sent.thread, NULL), 0);
    print_message("%ld granted, %ld refused, %.2f s at most\n", sent.granted, sent.refused,
                  sent.longest);
    if (sent.unknown) fail_msg("%ld answers such as %s", sent.unknown, sent.sample);
    assert_true(sent.granted > 1 && sent.refused > 0);
    assert_true(sent.longest < 5);
    /* the units of an answer that was lost may be charged, and no others */
    assert_true(used_at(0, "api", key) <= sent.granted + sent.refused);
}

static void *sent_once(void *context) {
    struct sent *sent = (struct sent *)context;
    char *response = post(&cluster.nodes[0].fixture, "/v1/acquire", LINES, sent->body);
    snprintf(sent->sample, sizeof sent->sample, "%.500s", response);
    free(response);
    return NULL;
}

TEST(a_node_stops_with_messages_under_way) {
    char key[32], body[256], metric[96];
    cluster_share(LIMITS, 2);
    key_of_node(1, "stop", key);
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
    expect_at(0, "/v1/acquire", body, 200, "\"granted\":1"); /* there is a connection */
    process_signal(cluster.nodes[1].process, SIGSTOP);
    struct sent sent[4] = {{.body = body}, {.body = body}, {.body = body}, {.body = body}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&sent[i].thread, NULL, sent_once, &sent[i]), 0);
    }
    snprintf(metric, sizeof metric, "doorman_forwards_total{to=\"n1\",result=\"sent\"} 5\n");
    expect_eventually(0, "/metrics", metric);
    const double began = seconds();
    process_signal(cluster.nodes[0].process, SIGTERM);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(sent[i].thread, NULL), 0);
        assert_null(strstr(sent[i].sample, "GRANTED"));
        assert_non_null(strstr(sent[i].sample, "503"));
    }
    process_signal(cluster.nodes[1].process, SIGCONT);
    process_end(cluster.nodes[0].process, 0);
    print_message("stopped after %.2f s\n", seconds() - began);
    process_signal(cluster.nodes[1].process, SIGTERM);
    process_end(cluster.nodes[1].process, 0);
}

/* ---- over HTTP ------------------------------------------------------------------------------ */

/* Starts two nodes. Other nodes reach the HTTP of the second one through a proxy.
 *   body   out: a message for a permit of the second node */
static void relay_start(char key[32], char body[256]) {
    cluster_is_relayed = true;
    cluster_share(LIMITS, 2);
    cluster_is_relayed = false;
    key_of_node(1, "relay", key);
    snprintf(body, 256,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
}

TEST(an_answer_that_is_lost_grants_nothing_twice) {
    enum { LOST = 3 };
    char key[32], body[256];
    long granted = 0;
    relay_start(key, body);
    for (int i = 0; i < LOST; i++) {
        proxy_lose(&cluster.relay, "\"forwarded\"", 1);
        /* a connection comes back after a second, and nng carries messages until then */
        for (int k = 0; k < 500 && __atomic_load_n(&cluster.relay.lose_count, __ATOMIC_ACQUIRE);
             k++) {
            expect_at(0, "/v1/acquire", body, 200, "\"granted\":1");
            granted++;
            sleep_ms(10);
        }
        assert_int_equal(__atomic_load_n(&cluster.relay.lose_count, __ATOMIC_ACQUIRE), 0);
    }
    /* each message whose answer was lost was sent again, so its unit is charged twice */
    assert_int_equal(used_at(0, "api", key), granted + LOST);
    assert_true(cluster.relay.accepted >= LOST);
    proxy_stop(&cluster.relay);
}

TEST(a_process_that_has_the_port_of_another_one_does_not_decide) {
    char key[32], body[256];
    int port = 0;
    relay_start(key, body);
    assert_int_equal(sscanf(cluster.nodes[0].fixture.http.url, "tcp://127.0.0.1:%d", &port), 1);
    __atomic_store_n(&cluster.relay.to, port, __ATOMIC_RELAXED);
    for (int i = 0; i < 120; i++) {
        expect_at(0, "/v1/acquire", body, 200, "\"granted\":1");
        sleep_ms(10);
    }
    assert_int_equal(used_at(0, "api", key), 120);
    assert_int_equal(__atomic_load_n(&cluster.relay.accepted, __ATOMIC_RELAXED), 1);
    proxy_stop(&cluster.relay);
}

/* The third node has gRPC. Its HTTP is off, because the default address of HTTP is in use. */
TEST(a_node_whose_http_is_off_asks_over_nng_and_stops) {
    char key[32], other[32], address[64], command[256];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(15050)};
    struct process *process = process_new();
    const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)(bind(taken, (struct sockaddr *)&at, sizeof at) == 0 && listen(taken, 1) == 0);
    relay_start(key, command);
    key_of_node(0, "other", other);
    cluster_write_config(process->config);
    const char *const arguments[] = {"--config",
                                     process->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--grpc",
                                     "127.0.0.1:0",
                                     "--etcd",
                                     cluster.etcd.url,
                                     "--election-key",
                                     "doorman/n2",
                                     "--node",
                                     "n2",
                                     "--state",
                                     cluster.redis.address,
                                     "--shards",
                                     "doorman/shards",
                                     NULL};
    process_start(process, arguments, (const char *[]){"DOORMAN_HTTP=", NULL});
    process_await(process, "HTTP is off, because its address is in use", 1);
    process_await(process, "this node is in the map of shards", 1);
    char *log_text = file_read(process->err);
    assert_int_equal(sscanf(strstr(log_text, " grpc="), " grpc=%63[^ \n]", address), 1);
    free(log_text);
    snprintf(command, sizeof command, "/usr/bin/python3 tests/grpc/forward.py web-3 %s %s %s",
             address, key, other);
    assert_int_equal(system(command), 0);
    assert_int_equal(__atomic_load_n(&cluster.relay.accepted, __ATOMIC_RELAXED), 0);
    process_signal(process, SIGTERM);
    process_end(process, 0);
    proxy_stop(&cluster.relay);
    close(taken);
}

TEST(only_a_node_sends_a_batch) {
    char key[32], body[256], whole[300], lines[512];
    cluster_share(LIMITS, 2);
    key_of_node(1, "forged", key);
    struct fixture *of = &cluster.nodes[1].fixture;
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"api\", \"key\": "
             "\"%s\"}]}]}",
             key);
    snprintf(whole, sizeof whole, "{\"acquire\": %s}", body);
    snprintf(lines, sizeof lines, HOST JSON "Doorman-To: %s\r\n", of->server.url);
    expect_post(of, "/v1/batch", lines, "", 200, "");
    expect_post(of, "/v1/batch", lines, whole, 403, "does not have the mark of a node");
    expect_post(of, "/v1/batch", LINES, whole, 421, "Doorman-To is not the address");
    expect_post(&cluster.nodes[0].fixture, "/v1/batch", lines, whole, 421, "Doorman-To");
    char *large = (char *)calloc(1, (128 << 10) + 2); /* anybody may send one */
    memset(large, ' ', (128 << 10) + 1);
    expect_post(of, "/v1/batch", lines, large, 413, "larger than this path takes: 131072 bytes");
    free(large);
    expect(of, "/metrics", LINES, 200, "doorman_forward_marks_refused_total 0");
    assert_int_equal(used_at(0, "api", key), 0);
}

/* ---- moves under load ----------------------------------------------------------------------- */

static struct {
    pthread_t threads[2];
    bool stops; /* atomic */
    long all;   /* permits granted; atomic */
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
            __atomic_add_fetch(&load.all, 1, __ATOMIC_RELAXED);
        } else {
            load.refused[number]++;
            snprintf(load.sample, sizeof load.sample, "%.500s", response);
        }
        free(response);
    }
    return NULL;
}

TEST(shards_move_under_load_and_no_client_notices) {
    cluster_share(LIMITS, 3);
    memset(&load, 0, sizeof load);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&load.threads[i], NULL, load_main, (void *)(intptr_t)i), 0);
    }
    cluster_change(0, "{\"drain\": \"n0\"}", 200, "\"moves\":6");
    EVENTUALLY(cluster_owned(0) == 0 && cluster_rests(1));
    cluster_change(1, "{\"rebalance\": true}", 200, "\"moves\":");
    EVENTUALLY(cluster_owned(0) > 3 && cluster_rests(1));
    EVENTUALLY(__atomic_load_n(&load.all, __ATOMIC_RELAXED) > USERS); /* a busy machine is slow */
    __atomic_store_n(&load.stops, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(load.threads[i], NULL), 0);
    if (load.refused[0] + load.refused[1]) print_message("%s\n", load.sample);
    assert_int_equal(load.refused[0] + load.refused[1], 0);
    for (int i = 0; i < USERS; i++) {
        char key[32];
        snprintf(key, sizeof key, "load-%d", i);
        const long granted = load.granted[0][i] + load.granted[1][i];
        assert_int_equal(used_at(i % 3, "api", key), granted);
    }
    print_message("%ld granted\n", load.all);
}
