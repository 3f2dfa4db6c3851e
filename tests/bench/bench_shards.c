/* Nodes that share their keys (N4, N7): what a permit costs with more nodes, what a forward costs,
 * and how long callers wait while many shards move.
 *
 * The clients are connections of HTTP in one thread, because only HTTP and gRPC are forwarded. CPU
 * time is that of all nodes of a cluster, also of their threads that look at etcd and write to the
 * Redis. Clusters that are compared run at the same time, and are loaded one after the other. */
#define _GNU_SOURCE /* strcasestr, ppoll */
#include "bench.h"

#ifdef BENCH_SHARDS
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

enum { NODES_MAX = 4, SHARDS = 64, NODE_KEYS = 1024, ROUNDS_MAX = 8 };
enum { CONNECTIONS_MAX = 64, ITEM_BYTES = 96, BUFFER_BYTES = 1 << 16, KEY_BYTES = 24 };

/* ---- clusters -------------------------------------------------------------------------------- */

/* Keys are named by their numbers. */
typedef struct key_list {
    unsigned *numbers; /* NULL: 0 to count - 1 */
    size_t count, next;
    bool random; /* in any order */
} key_list;

typedef struct cluster {
    size_t count;
    peer *nodes[NODES_MAX];
    key_list keys[NODES_MAX]; /* some of each node, after cluster_share */
} cluster;

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void write_key(char out[KEY_BYTES], unsigned number) {
    snprintf(out, KEY_BYTES, "user-%u", number);
}

static unsigned next_key(key_list *keys, uint64_t *random) {
    size_t index =
        keys->random ? (size_t)random_below(random, keys->count) : keys->next++ % keys->count;
    return keys->numbers ? keys->numbers[index] : (unsigned)index;
}

/* Returns -1 if the node does not accept a connection. */
static int try_connect(const peer *p) {
    const struct timeval patience = {.tv_sec = TIMEOUT / DOORMAN_SECOND};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(p->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0, "cannot open a socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_to(const peer *p) {
    int fd = try_connect(p);
    must(fd >= 0, "cannot connect to a node");
    return fd;
}

static size_t write_head(char *out, size_t room, const char *target, size_t body_bytes) {
    return (size_t)snprintf(out, room,
                            "%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " PEER_TOKEN
                            "\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                            target, body_bytes);
}

/* Returns the number of bytes of a response, or 0 if the response is not complete. */
static size_t response_bytes(const char *text, size_t bytes) {
    const char *end = memmem(text, bytes, "\r\n\r\n", 4);
    const char *length = end ? strcasestr(text, "\r\nContent-Length:") : NULL;
    if (!length || length > end) return 0;
    size_t all = (size_t)(end + 4 - text) + strtoul(length + 17, NULL, 10);
    return bytes >= all ? all : 0;
}

/* Sends one request, and returns the body of its response, which the caller deletes. NULL: there is
 * no answer. */
static cJSON *node_request(const peer *p, const char *target, const char *body) {
    char request[8192], *text = calloc(1, BUFFER_BYTES);
    size_t bytes = write_head(request, sizeof request, target, strlen(body)), have = 0;
    int fd = try_connect(p);
    must(text, "out of memory");
    bytes += (size_t)snprintf(request + bytes, sizeof request - bytes, "%s", body);
    ssize_t got = send(fd, request, bytes, MSG_NOSIGNAL);
    while (got > 0 && response_bytes(text, have) == 0 && have + 1 < BUFFER_BYTES) {
        got = recv(fd, text + have, BUFFER_BYTES - 1 - have, 0);
        if (got > 0) have += (size_t)got;
    }
    if (fd >= 0) close(fd);
    const char *inner = strstr(text, "\r\n\r\n");
    cJSON *tree = inner ? cJSON_Parse(inner) : NULL;
    free(text);
    return tree;
}

/* Returns a number that a node says about its shards, or -1. The value `true` counts as 1. */
static double node_number(const peer *p, const char *name) {
    cJSON *tree = node_request(p, "GET /v1/shards", "");
    const cJSON *value = cJSON_GetObjectItem(tree, name);
    double number = cJSON_IsNumber(value) ? value->valuedouble : cJSON_IsTrue(value) ? 1 : -1;
    cJSON_Delete(tree);
    return number;
}

/* Waits until the number `name` of a node reaches the goal. */
static void node_await(bench *b, const peer *p, const char *name, goal to) {
    doorman_time end = doorman_clock() + 3 * TIMEOUT;
    bool reached = false;
    while (!reached && doorman_clock() < end) {
        double number = node_number(p, name);
        reached = to.sense == AT_LEAST ? number >= to.value : number <= to.value;
        if (!reached) sleep_ms(20);
        bench_tick(b);
    }
    must(reached, "the nodes do not get their shards");
}

/* Starts a cluster, whose first node owns all shards. */
static void cluster_start(bench *b, cluster *c, size_t count, shard_place place) {
    *c = (cluster){.count = count};
    for (size_t i = 0; i < count; i++) {
        place.node = (unsigned)i;
        c->nodes[i] = peer_shard_node(b, &place);
        node_await(b, c->nodes[i], "is_master", LEAST(1));
        if (i == 0) node_await(b, c->nodes[0], "owned", LEAST(SHARDS));
    }
    node_await(b, c->nodes[0], "epoch", LEAST((double)count)); /* each node has joined the map */
}

/* Asks for a move of shards. Returns how many will move. */
static size_t cluster_change(const cluster *c, const char *change) {
    cJSON *tree = node_request(c->nodes[0], "POST /v1/shards", change);
    const cJSON *moves = cJSON_GetObjectItem(tree, "moves");
    must(cJSON_IsNumber(moves) && moves->valuedouble >= 0, "the shards cannot be moved");
    size_t count = (size_t)moves->valuedouble;
    cJSON_Delete(tree);
    return count;
}

/* Finds keys of each node with the map. */
static void cluster_find_keys(cluster *c, unsigned number) {
    doorman_shard_map *map = NULL;
    cJSON *tree = node_request(c->nodes[0], "POST /v1/discovery", "{\"map_epoch\": 0}");
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(tree, "map"));
    must(text && doorman_json_read_shard_map(&map, text, strlen(text), NULL) == DOORMAN_OK,
         "a node has no map");
    for (size_t i = 0; i < c->count; i++) {
        char name[16], key[KEY_BYTES];
        key_list *keys = &c->keys[i];
        snprintf(name, sizeof name, "n%u-%zu", number, i);
        size_t node = doorman_shard_map_node(map, name);
        keys->numbers = calloc(NODE_KEYS, sizeof *keys->numbers);
        must(keys->numbers && node < map->node_count, "a node is not in the map");
        for (unsigned k = 0; keys->count < NODE_KEYS && k < 100 * NODE_KEYS; k++) {
            write_key(key, k);
            if (map->owners[doorman_shard_map_find(map, "passing", key)].owner != node) continue;
            keys->numbers[keys->count++] = k;
        }
        must(keys->count == NODE_KEYS, "a node has too few keys");
    }
    doorman_shard_map_destroy(map);
    cJSON_free(text);
    cJSON_Delete(tree);
}

/* Gives each node equally many shards, and finds keys of each. */
static void cluster_share(bench *b, cluster *c, unsigned number) {
    if (c->count > 1) cluster_change(c, "{\"rebalance\": true}");
    for (size_t i = 0; i < c->count; i++) {
        node_await(b, c->nodes[i], "owned", LEAST((double)(SHARDS / c->count)));
    }
    node_await(b, c->nodes[0], "moving", MOST(0));
    double epoch = node_number(c->nodes[0], "epoch");
    for (size_t i = 1; i < c->count; i++) node_await(b, c->nodes[i], "epoch", LEAST(epoch));
    cluster_find_keys(c, number);
}

static double cluster_seconds(const cluster *c) {
    double sum = 0;
    for (size_t i = 0; i < c->count; i++) sum += peer_seconds(c->nodes[i]);
    return sum;
}

static void cluster_stop(cluster *c) {
    for (size_t i = 0; i < c->count; i++) {
        peer_stop(c->nodes[i]);
        free(c->keys[i].numbers);
    }
}

/* ---- asks ------------------------------------------------------------------------------------ */

typedef struct ask_options {
    const cluster *to;
    const char *resource;
    size_t permits; /* in each message */
    size_t asked_count;
    struct asked {
        size_t node;
        key_list *keys;
    } asked[NODES_MAX]; /* the nodes that are asked, in turn */
    size_t connections; /* to each of them, with one message at a time on each */
    double rate; /* messages a second to each node, at random times; 0: as many as possible */
    doorman_time length; /* of the round, at most */
    size_t message_max;  /* 0: as many as there is time for */
    atomic_bool *over;   /* ends the round; NULL: nothing does */
} ask_options;

typedef struct asker {
    int fd;
    const struct asked *asked;
    bool waits;
    doorman_time due;
    char *in; /* BUFFER_BYTES */
    size_t have;
} asker;

/* What a round has measured. */
typedef struct asks {
    double messages, granted, lost; /* lost: permits without a decision */
    double cpu, length;             /* seconds: of the nodes, and of the round */
    double p50, p99, longest;       /* seconds from when a message was due until its answer */
} asks;

typedef struct ask_round {
    const ask_options *options;
    asker askers[CONNECTIONS_MAX];
    size_t count, waiting, sent;
    uint64_t random;
    double *latencies;
    size_t latency_count, latency_max;
    asks result;
} ask_round;

static void send_all(int fd, const char *text, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t part = send(fd, text + sent, bytes - sent, MSG_NOSIGNAL);
        must(part > 0, "a node has closed a connection");
        sent += (size_t)part;
    }
}

static void ask(ask_round *r, asker *a, doorman_time due) {
    static char body[BUFFER_BYTES], text[BUFFER_BYTES + 512]; /* one thread asks */
    size_t used = (size_t)snprintf(body, sizeof body, "{\"client_id\":\"bench\",\"permit\":[");
    for (size_t i = 0; i < r->options->permits; i++) {
        char key[KEY_BYTES];
        write_key(key, next_key(a->asked->keys, &r->random));
        used += (size_t)snprintf(body + used, ITEM_BYTES,
                                 "%s{\"item\":[{\"resource_id\":\"%s\",\"key\":\"%s\"}]}",
                                 i ? "," : "", r->options->resource, key);
    }
    used += (size_t)snprintf(body + used, ITEM_BYTES, "]}");
    size_t head = write_head(text, sizeof text, "POST /v1/acquire", used);
    memcpy(text + head, body, used);
    a->due = due;
    a->waits = true;
    a->have = 0;
    r->waiting++;
    r->sent++;
    send_all(a->fd, text, head + used);
}

static size_t count_of(const char *text, const char *what) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) count++;
    return count;
}

/* Counts the permits of an answer. No key ever reaches its limit, so a permit that is not granted
 * was not decided. */
static void take_answer(ask_round *r, asker *a) {
    size_t granted = count_of(a->in, "\"decision\":\"GRANTED\"");
    if (granted < r->options->permits && r->result.lost <= 0) {
        fprintf(stderr, "\nbench: not decided: %.700s\n", a->in);
    }
    r->result.granted += (double)granted;
    r->result.lost += (double)(r->options->permits - granted);
    r->result.messages++;
    a->waits = false;
    r->waiting--;
    if (r->latency_count == r->latency_max) {
        r->latency_max = r->latency_max ? 2 * r->latency_max : 4096;
        r->latencies = realloc(r->latencies, r->latency_max * sizeof *r->latencies);
        must(r->latencies, "out of memory");
    }
    r->latencies[r->latency_count++] = (double)(doorman_clock() - a->due) / 1e9;
}

/* Reads from a connection. Opens the connection again if the node has closed it. A node closes a
 * connection that is not used for half a minute. */
static void receive(ask_round *r, asker *a) {
    ssize_t got = recv(a->fd, a->in + a->have, BUFFER_BYTES - 1 - a->have, MSG_DONTWAIT);
    if (got <= 0 && !a->waits) {
        close(a->fd);
        a->fd = connect_to(r->options->to->nodes[a->asked->node]);
        return;
    }
    must(got > 0, "a node has closed a connection");
    a->have += (size_t)got;
    a->in[a->have] = 0;
    if (response_bytes(a->in, a->have) > 0) take_answer(r, a);
    must(!a->waits || a->have + 1 < BUFFER_BYTES, "an answer is too long");
}

/* Waits until there is something to read, and takes it.
 *   patience   the longest time; 0 or less: does not wait */
static void take_answers(ask_round *r, doorman_time patience) {
    struct pollfd polls[CONNECTIONS_MAX];
    if (patience < 0) patience = 0;
    const struct timespec time = {.tv_sec = (time_t)(patience / DOORMAN_SECOND),
                                  .tv_nsec = (long)(patience % DOORMAN_SECOND)};
    for (size_t i = 0; i < r->count; i++) {
        polls[i] = (struct pollfd){.fd = r->askers[i].fd, .events = POLLIN};
    }
    if (ppoll(polls, r->count, &time, NULL) <= 0) return;
    for (size_t i = 0; i < r->count; i++) {
        if (polls[i].revents) receive(r, &r->askers[i]);
    }
}

/* Returns a connection to a node, without a message under way, or NULL. */
static asker *find_idle(ask_round *r, const struct asked *asked) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->askers[i].asked == asked && !r->askers[i].waits) return &r->askers[i];
    }
    return NULL;
}

static bool may_ask(const ask_round *r, doorman_time end) {
    const ask_options *o = r->options;
    if (o->over && atomic_load(o->over)) return false;
    return doorman_clock() < end && (o->message_max == 0 || r->sent < o->message_max);
}

/* Sends messages at random times. A message that is due waits for an idle connection, and its
 * latency includes this time. */
static void ask_paced(ask_round *r, bench *b, doorman_time end) {
    const ask_options *o = r->options;
    const double gap = (double)DOORMAN_SECOND / (o->rate * (double)o->asked_count);
    double due = (double)doorman_clock();
    while (may_ask(r, end)) {
        doorman_time wait = (doorman_time)due - doorman_clock();
        asker *a = wait <= 0 ? find_idle(r, &o->asked[r->sent % o->asked_count]) : NULL;
        if (a) ask(r, a, (doorman_time)due);
        if (a) due -= gap * log(1 - random_unit(&r->random));
        if (!a) take_answers(r, wait > 0 ? wait : DOORMAN_SECOND / 20);
        bench_tick(b);
    }
}

static void ask_always(ask_round *r, bench *b, doorman_time end) {
    while (may_ask(r, end)) {
        for (size_t i = 0; i < r->count && may_ask(r, end); i++) {
            if (!r->askers[i].waits) ask(r, &r->askers[i], doorman_clock());
        }
        take_answers(r, DOORMAN_SECOND / 20);
        bench_tick(b);
    }
}

static void round_open(ask_round *r) {
    const ask_options *o = r->options;
    r->count = o->connections * o->asked_count;
    must(r->count <= CONNECTIONS_MAX, "too many connections");
    for (size_t i = 0; i < r->count; i++) {
        const struct asked *asked = &o->asked[i % o->asked_count];
        r->askers[i] = (asker){.fd = connect_to(o->to->nodes[asked->node]),
                               .asked = asked,
                               .in = malloc(BUFFER_BYTES)};
        must(r->askers[i].in, "out of memory");
    }
}

static void round_close(ask_round *r) {
    for (size_t i = 0; i < r->count; i++) {
        close(r->askers[i].fd);
        free(r->askers[i].in);
    }
    free(r->latencies);
}

static asks ask_for(bench *b, const ask_options *options) {
    ask_round r = {.options = options, .random = 1};
    round_open(&r);
    double cpu = cluster_seconds(options->to);
    doorman_time start = doorman_clock(), end = start + options->length;
    (options->rate > 0 ? ask_paced : ask_always)(&r, b, end);
    doorman_time patience = doorman_clock() + TIMEOUT;
    while (r.waiting > 0 && doorman_clock() < patience) take_answers(&r, DOORMAN_SECOND / 20);
    asks result = r.result;
    result.cpu = cluster_seconds(options->to) - cpu;
    result.length = (double)(doorman_clock() - start) / 1e9;
    result.lost += (double)(r.waiting * options->permits);
    must(r.latency_count > 0 && result.granted > 0, "no permit was granted");
    sort(r.latencies, r.latency_count);
    result.p50 = r.latencies[r.latency_count / 2];
    result.p99 = r.latencies[r.latency_count * 99 / 100];
    result.longest = r.latencies[r.latency_count - 1];
    round_close(&r);
    return result;
}

/* ---- more nodes ------------------------------------------------------------------------------ */

#define SIZES 3 /* of clusters */
#define BATCH 16

/* Gives each node the same load: the same messages at the same rate, for keys of its own. */
static asks ask_owners(bench *b, cluster *c) {
    ask_options o = {.to = c, .resource = "passing", .permits = BATCH, .connections = 4};
    o.rate = 400;
    o.length = b->quick ? DOORMAN_SECOND : 2 * DOORMAN_SECOND;
    o.asked_count = c->count;
    for (size_t i = 0; i < c->count; i++) o.asked[i] = (struct asked){i, &c->keys[i]};
    return ask_for(b, &o);
}

static void more_nodes(bench *b, cluster *clusters) {
    double costs[SIZES][ROUNDS_MAX], ratios[SIZES][ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    bench_step(b, "permits at one, two and four nodes");
    for (size_t k = 0; k < SIZES; k++) ask_owners(b, &clusters[k]);
    for (size_t i = 0; i < rounds; i++) {
        for (size_t k = 0; k < SIZES; k++) {
            asks a = ask_owners(b, &clusters[k]);
            costs[k][i] = a.cpu / a.granted;
            ratios[k][i] = costs[k][i] / costs[0][i];
        }
    }
    bench_row(b, 1e6 * median(costs[0], rounds), "us", ANY,
              "CPU time for a permit, %d in a message, one node", BATCH);
    for (size_t k = 1; k < SIZES; k++) {
        bench_row(b, 1e6 * median(costs[k], rounds), "us", ANY, "  %zu nodes, each with this load",
                  clusters[k].count);
        bench_row(b, median(ratios[k], rounds), "times", MOST(1.1), "  relative to one node");
    }
}

/* ---- forwards -------------------------------------------------------------------------------- */

/* Asks a node for permits of keys that the first node owns. */
static asks ask_node(bench *b, cluster *c, size_t node, size_t permits, size_t connections) {
    ask_options o = {.to = c, .resource = "passing", .permits = permits};
    o.connections = connections;
    o.length = b->quick ? DOORMAN_SECOND / 2 : DOORMAN_SECOND;
    o.asked_count = 1;
    o.asked[0] = (struct asked){node, &c->keys[0]};
    return ask_for(b, &o);
}

/* Compares messages that are forwarded with messages to the owner. CPU time is measured with 8
 * messages under way, and the latency with one. */
static void forwards(bench *b, cluster *c, size_t permits, goal to) {
    double cpu[2][ROUNDS_MAX], late[2][ROUNDS_MAX], more[ROUNDS_MAX], later[ROUNDS_MAX];
    size_t rounds = b->quick ? 3 : ROUNDS_MAX;
    bench_step(b, "messages of %zu permits that are forwarded", permits);
    for (size_t i = 0; i < rounds; i++) {
        for (size_t node = 0; node < 2; node++) {
            asks a = ask_node(b, c, node, permits, 8);
            cpu[node][i] = a.cpu / a.messages;
            late[node][i] = ask_node(b, c, node, permits, 1).p50;
        }
        more[i] = cpu[1][i] / cpu[0][i];
        later[i] = late[1][i] / late[0][i];
    }
    bench_row(b, 1e6 * median(cpu[1], rounds), "us", ANY,
              "CPU time of both nodes for a forward of %zu permit%s", permits,
              permits > 1 ? "s" : "");
    bench_row(b, 1e6 * median(cpu[0], rounds), "us", ANY, "  CPU time for a message to the owner");
    bench_row(b, median(more, rounds), "times", to, "  the forward relative to it");
    bench_row(b, 1e6 * median(late[1], rounds), "us", ANY, "  latency of the forward, median");
    bench_row(b, 1e6 * median(late[0], rounds), "us", ANY, "  latency of a message to the owner");
    bench_row(b, median(later, rounds), "times", to, "  the latency relative to it");
}

/* ---- a rebalance ----------------------------------------------------------------------------- */

typedef struct watch {
    const peer *node;
    atomic_bool over;
} watch;

/* A thread: ends the load when no shard moves any more. */
static void *watch_main(void *context) {
    watch *w = context;
    doorman_time end = doorman_clock() + 10 * TIMEOUT;
    while (!atomic_load(&w->over) && doorman_clock() < end) {
        if (node_number(w->node, "moving") == 0) atomic_store(&w->over, true);
        sleep_ms(50);
    }
    return NULL;
}

/* Asks for permits of any key, at all nodes in turn. */
static asks ask_any(bench *b, const cluster *c, key_list *keys, doorman_time length,
                    atomic_bool *over) {
    ask_options o = {.to = c, .resource = "quota", .permits = 1, .connections = 16};
    o.rate = b->quick ? 50 : 100;
    o.length = length;
    o.over = over;
    o.asked_count = c->count;
    for (size_t i = 0; i < c->count; i++) o.asked[i] = (struct asked){i, keys};
    return ask_for(b, &o);
}

/* Lets all keys arrive at the first node, which writes them to the Redis meanwhile. */
static void fill(bench *b, const cluster *c, key_list *keys) {
    ask_options o = {.to = c, .resource = "quota", .permits = 100, .connections = 4};
    o.length = 10 * TIMEOUT;
    o.message_max = keys->count / o.permits;
    o.asked_count = 1;
    o.asked[0] = (struct asked){0, keys};
    bench_step(b, "%zu keys arrive at one of four nodes", keys->count);
    asks a = ask_for(b, &o);
    must(a.granted >= (double)keys->count, "not all keys have arrived");
    keys->random = true;
}

/* Returns how many of 1,000 random keys have used no unit, by what the nodes say. Each key had used
 * a unit before the moves. */
static double count_forgotten(const cluster *c, size_t keys) {
    enum { MESSAGES = 20, ENTRIES = 50 };
    double forgotten = 0;
    uint64_t random = 2;
    for (size_t i = 0; i < MESSAGES; i++) {
        char body[ENTRIES * ITEM_BYTES] = "{\"entry\": [", key[KEY_BYTES];
        size_t used = strlen(body);
        for (size_t k = 0; k < ENTRIES; k++) {
            write_key(key, (unsigned)random_below(&random, keys));
            used +=
                (size_t)snprintf(body + used, ITEM_BYTES,
                                 "%s{\"resource_id\":\"quota\",\"key\":\"%s\"}", k ? "," : "", key);
        }
        snprintf(body + used, sizeof body - used, "]}");
        cJSON *tree = node_request(c->nodes[i % c->count], "POST /v1/inspect", body);
        char *text = tree ? cJSON_PrintUnformatted(tree) : NULL;
        size_t known = 0;
        for (const char *at = text; at && (at = strstr(at, "\"used\":")) != NULL; known++) {
            at += strlen("\"used\":");
            forgotten += strtod(at, NULL) < 1;
        }
        must(known >= ENTRIES, "the nodes do not say what keys have used");
        cJSON_free(text);
        cJSON_Delete(tree);
    }
    return forgotten;
}

static void rebalance(bench *b, shard_place place) {
    cluster c;
    key_list keys = {.count = b->quick ? 20000 : 1000000};
    pthread_t thread;
    cluster_start(b, &c, NODES_MAX, place);
    fill(b, &c, &keys);
    bench_step(b, "shards with %zu keys move under load", keys.count);
    asks before = ask_any(b, &c, &keys, (b->quick ? 2 : 5) * DOORMAN_SECOND, NULL);
    watch w = {.node = c.nodes[0]};
    size_t moves = cluster_change(&c, "{\"rebalance\": true}");
    must(pthread_create(&thread, NULL, watch_main, &w) == 0, "cannot start a thread");
    asks during = ask_any(b, &c, &keys, 10 * TIMEOUT, &w.over);
    pthread_join(thread, NULL);
    must(node_number(c.nodes[0], "moving") == 0, "the shards do not all move");
    bench_row(b, 1e3 * during.p99, "ms", MOST(200), "p99 of a permit while %zu of %d shards move",
              moves, SHARDS);
    bench_row(b, 1e3 * during.p50, "ms", ANY, "  median");
    bench_row(b, 1e3 * during.longest, "ms", ANY, "  the slowest");
    bench_row(b, 1e3 * before.p99, "ms", ANY, "  p99 before they move");
    bench_row(b, during.lost, "permits", MOST(0), "  without a decision, of %.0f", during.messages);
    bench_row(b, count_forgotten(&c, keys.count), "keys", MOST(0),
              "  whose use is forgotten, of 1,000");
    bench_row(b, during.length, "s", ANY, "  until all have moved, with %zu keys", keys.count);
    bench_row(b, during.cpu, "s", ANY, "  CPU time of all nodes meanwhile");
    bench_row(b, during.length * before.cpu / before.length, "s", ANY,
              "  the same for as long before they move");
    cluster_stop(&c);
}

/* ---- all ------------------------------------------------------------------------------------- */

void bench_shards(bench *b) {
    static const size_t sizes[SIZES] = {1, 2, 4};
    cluster clusters[SIZES];
    peer *etcd = NULL, *redis = NULL;
    if (!peers_find(b, "nodes that share their keys", &etcd, &redis)) return;
    for (size_t k = 0; k < SIZES; k++) {
        cluster_start(b, &clusters[k], sizes[k], (shard_place){etcd, redis, (unsigned)k, 0});
        cluster_share(b, &clusters[k], (unsigned)k);
    }
    more_nodes(b, clusters);
    forwards(b, &clusters[1], BATCH, MOST(1.8));
    forwards(b, &clusters[1], 1, MOST(3));
    for (size_t k = 0; k < SIZES; k++) cluster_stop(&clusters[k]);
    peer_stop(redis);
    peer_stop(etcd);
}

void bench_moves(bench *b) {
    peer *etcd = NULL, *redis = NULL;
    if (!peers_find(b, "shards that move under load", &etcd, &redis)) return;
    rebalance(b, (shard_place){etcd, redis, 0, 0});
    peer_stop(redis);
    peer_stop(etcd);
}
#else
void bench_shards(bench *b) {
    bench_skip(b, "nodes that share their keys", "the part SHARDS of the server");
}

void bench_moves(bench *b) {
    bench_skip(b, "shards that move under load", "the part SHARDS of the server");
}
#endif
