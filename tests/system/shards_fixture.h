/* A cluster of nodes that share one key space, with an etcd and a Redis. Each node is one process,
 * on ports of its own. */
#ifndef DOORMAN_TESTS_SHARDS_FIXTURE_H
#define DOORMAN_TESTS_SHARDS_FIXTURE_H

#define LINES HOST JSON BEARER("web-3")
#define OPERATOR HOST JSON BEARER("top-1")
#include "http.h"
#include "redis_fixture.h"
#include "state_fixture.h"

#define NODES_MAX 3
#define NODE_TTL "4" /* seconds; see node_start of node_fixture.h */

struct shard_node {
    struct process *process;
    struct fixture fixture;
    char name[16];
};

static struct {
    struct etcd etcd;
    struct proxy proxy; /* between the first node and etcd, if cluster_is_cut_off */
    struct proxy relay; /* in front of the HTTP of node 1, if cluster_is_relayed */
    struct redis redis;
    const char *config;
    struct shard_node nodes[NODES_MAX];
} cluster;

static const char *cluster_grpc; /* --grpc of the nodes; NULL: none */

static const char *cluster_parent; /* --parent of the nodes; NULL: none */

static bool cluster_is_cut_off; /* the first node can be cut off from etcd */
static bool cluster_is_relayed; /* other nodes reach HTTP of the second node through a proxy */
static bool cluster_is_single;  /* the nodes have no --shards */
static int cluster_standby;     /* a process that is a standby of the node before it; 0: none */

/* Writes the configuration of a node. A node that starts without --shards refuses a configuration
 * that has `shards`. */
static inline void cluster_write_config(const char *path) {
    char *text = strdup(cluster.config), *shards = strstr(text, "\"shards\": 16, ");
    if (cluster_is_single) memset(shards, ' ', strlen("\"shards\": 16, "));
    file_write(path, text);
    free(text);
}

/* Starts a node of the cluster, or starts it again on new ports. */
static inline void cluster_node_start(int index) {
    struct shard_node *node = &cluster.nodes[index];
    const bool is_relayed = cluster_is_relayed && index == 1;
    char key[64], tokens[96];
    unsigned port = 0;
    if (!node->process) node->process = process_new();
    snprintf(node->name, sizeof node->name, "n%d", index - (index && index == cluster_standby));
    snprintf(key, sizeof key, "doorman/%s", node->name);
    cluster_write_config(node->process->config);
    snprintf(tokens, sizeof tokens, "%s/tokens", node->process->folder);
    file_write(tokens, "admin ann top-1\nwrite web web-3\n");
    const char *const arguments[] = {"--config",
                                     node->process->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--http",
                                     "127.0.0.1:0",
                                     "--etcd",
                                     index == 0 && cluster_is_cut_off ? cluster.proxy.url
                                                                      : cluster.etcd.url,
                                     "--election-key",
                                     key,
                                     "--election-ttl",
                                     NODE_TTL,
                                     "--node",
                                     node->name,
                                     "--state",
                                     cluster.redis.address,
                                     "--http-token",
                                     tokens,
                                     cluster_parent ? "--parent" : "--log-level",
                                     cluster_parent ? cluster_parent : "info",
                                     cluster_is_single ? NULL : "--shards",
                                     "doorman/shards",
                                     cluster_grpc ? "--grpc"
                                     : is_relayed ? "--http-advertise"
                                                  : NULL,
                                     cluster_grpc ? cluster_grpc : cluster.relay.url,
                                     NULL};
    process_start(node->process, arguments, NULL);
    process_await(node->process, " http=http", 1);
    char *log_text = file_read(node->process->err);
    node->fixture.server.process = node->fixture.http.process = node->process;
    assert_int_equal(
        sscanf(strstr(log_text, " listen="), " listen=%127[^ ,\n]", node->fixture.server.url), 1);
    assert_int_equal(sscanf(strstr(log_text, " http="), " http=http://127.0.0.1:%u", &port), 1);
    snprintf(node->fixture.http.url, sizeof node->fixture.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    if (is_relayed) __atomic_store_n(&cluster.relay.to, (int)port, __ATOMIC_RELAXED);
}

/* Returns a number or a bool from a node's answer about its shards, or -1 if it is not there. */
static inline int cluster_number(int index, const char *name) {
    char *response = get(&cluster.nodes[index].fixture, "/v1/shards", LINES);
    cJSON *json = cJSON_Parse(body_of(response));
    const cJSON *value = cJSON_GetObjectItem(json, name);
    int number = cJSON_IsNumber(value) ? value->valueint
                 : cJSON_IsBool(value) ? cJSON_IsTrue(value)
                                       : -1;
    cJSON_Delete(json);
    free(response);
    return number;
}

/* Returns how many nodes are in the map of shards that a node has. */
static inline int cluster_size(int index) {
    char *response = get(&cluster.nodes[index].fixture, "/v1/shards", LINES);
    cJSON *json = cJSON_Parse(body_of(response));
    const int size = cJSON_GetArraySize(cJSON_GetObjectItem(json, "nodes"));
    cJSON_Delete(json);
    free(response);
    return size;
}

/* Returns how many shards a node decides for. */
static inline int cluster_owned(int index) { return cluster_number(index, "owned"); }

/* Returns whether no shard is moving, according to a node. */
static inline bool cluster_rests(int index) { return cluster_number(index, "moving") == 0; }

/* Starts some nodes. The first node owns all shards. */
static inline void cluster_start(const char *config, int count) {
    memset(&cluster, 0, sizeof cluster);
    cluster.config = config;
    etcd_require(&cluster.etcd);
    if (cluster_is_cut_off) proxy_start(&cluster.proxy, &cluster.etcd);
    if (cluster_is_relayed) proxy_start(&cluster.relay, &cluster.etcd);
    redis_require(&cluster.redis);
    for (int i = 0; i < count; i++) {
        cluster_node_start(i);
        if (i == 0) EVENTUALLY(cluster_owned(0) > 0);
    }
    for (int i = 0; i < count; i++) EVENTUALLY(cluster_number(i, "is_master") == 1);
}

/* Sends a change to a node, and expects the answer to contain a text. */
static inline void cluster_change(int index, const char *change, int code, const char *text) {
    expect_verb(&cluster.nodes[index].fixture, "POST", "/v1/shards", OPERATOR, change, code, text);
}

/* Starts the first node without --shards. */
static inline void cluster_start_single(const char *config) {
    memset(&cluster, 0, sizeof cluster);
    cluster.config = config;
    etcd_require(&cluster.etcd);
    redis_require(&cluster.redis);
    cluster_is_single = true;
    cluster_node_start(0);
    process_await(cluster.nodes[0].process, "msg=\"counters read\"", 1);
}

/* Stops the first node as planned, and starts it again with --shards. */
static inline void cluster_divide(void) {
    process_signal(cluster.nodes[0].process, SIGTERM);
    process_end(cluster.nodes[0].process, 0);
    cluster_is_single = false;
    cluster_node_start(0);
    EVENTUALLY(cluster_owned(0) == 16);
    process_await(cluster.nodes[0].process, "msg=\"counters read\"", 1);
}

enum answer { ANSWER_GRANTED, ANSWER_REFUSED, ANSWER_MOVED, ANSWER_NONE };

/* Asks one node for a unit of a key. The node does not forward the request. */
static inline enum answer node_ask(int index, const char *resource, const char *key) {
    char body[512];
    if (cluster.nodes[index].process->pid == 0) return ANSWER_NONE;
    snprintf(body, sizeof body,
             "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"%s\", \"key\": "
             "\"%s\"}]}]}",
             resource, key);
    char *response = post(&cluster.nodes[index].fixture, "/v1/acquire?redirect=1", LINES, body);
    enum answer answer = strstr(response, "\"granted\"")  ? ANSWER_GRANTED
                         : strstr(response, "MOVED")      ? ANSWER_MOVED
                         : strstr(response, "LEARNING")   ? ANSWER_MOVED
                         : strstr(response, "\"reason\"") ? ANSWER_REFUSED
                                                          : ANSWER_NONE;
    free(response);
    return answer;
}

/* Starts two or three nodes, and divides 16 shards among them as equally as possible. */
static inline void cluster_share(const char *config, int count) {
    char moves[24];
    cluster_start(config, count);
    EVENTUALLY(cluster_size(0) == count);
    snprintf(moves, sizeof moves, "\"moves\":%d", count == 2 ? 8 : 10);
    cluster_change(0, "{\"rebalance\": true}", 200, moves);
    for (int i = 0; i < count; i++) EVENTUALLY(cluster_owned(i) >= 16 / count);
    EVENTUALLY(cluster_rests(0));
    for (int i = 1; i < count; i++) {
        EVENTUALLY(cluster_number(i, "epoch") == cluster_number(0, "epoch"));
    }
}

/* Finds the first of 1,000 keys that a node owns.
 *   out   "PREFIX-NUMBER" */
static inline void key_of_node(int node, const char *prefix, char out[32]) {
    for (int i = 0; i < 1000; i++) {
        snprintf(out, 32, "%s-%d", prefix, i);
        const enum answer answer = node_ask(node, "probe", out);
        assert_int_not_equal(answer, ANSWER_NONE);
        if (answer == ANSWER_GRANTED) return;
    }
    fail_msg("node %d owns no key", node);
}

/* Asks the nodes in turn until one of them decides. Returns its index, or -1 if none does within
 * some seconds.
 *   answer   out */
static inline int cluster_ask(const char *resource, const char *key, enum answer *answer) {
    for (int tries = 0; tries < 1000; tries++) {
        const int index = tries % NODES_MAX;
        if (!cluster.nodes[index].process) continue;
        *answer = node_ask(index, resource, key);
        if (*answer < ANSWER_MOVED) return index;
        if (index == NODES_MAX - 1) sleep_ms(10);
    }
    return -1;
}

#endif
