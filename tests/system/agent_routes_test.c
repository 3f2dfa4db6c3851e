/* An agent and shards (N9): each permit goes to the owner of its shard, over a connection for each
 * node. Time is real, so the tests assert only orders and bounds, and every wait has a time-out.
 *
 * The nodes are servers of the library in threads of the test. They speak nng's protocol on plain
 * sockets, because an agent and a server in one process would share nng's threads. */
#define _GNU_SOURCE
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman_permits.h"

#include "harness.h"
#include <poll.h>
#include <pthread.h>

#define LONG_TIME (TIMEOUT_MS * (DOORMAN_SECOND / 1000)) /* far longer than anything here takes */
#define NODES 3
#define SHARDS 6
#define PEERS 16

static const char config_text[] =
    "{\"shards\": 6, \"resources\": [{\"identifier_glob\": \"hold\", \"limits\": [{\"name\": "
    "\"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 600, \"max_wait\": 600, "
    "\"queue\": 10}]}, {\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"day\", \"kind\": "
    "\"FIXED_WINDOW\", \"limit\": 1000000, \"window\": 1000000}]}]}";

static const doorman_shards shards = {.count = SHARDS, .seed = {5, 6}};
static const char *const names[NODES] = {"a", "b", "c"};

struct cluster;

struct node {
    struct cluster *cluster;
    doorman_server *server;
    char url[64];
    int listener;
    int stopping; /* atomic */
    pthread_t thread;
};

/* The mutex guards the servers and the map. */
struct cluster {
    pthread_mutex_t mutex;
    doorman_config *config;
    struct node nodes[NODES];
    doorman_shard owners[SHARDS];
    uint64_t epoch;
    size_t permits[NODES]; /* how many each node was asked for */
};

/* ---- a node --------------------------------------------------------------------------------- */

static bool receive(int fd, void *out, size_t bytes) {
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool transmit(int fd, const void *from, size_t bytes) {
    return send(fd, from, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Accepts a connection of a REQ socket, and greets it as a REP socket. Returns -1 on a fault. */
static int accept_req(int listener) {
    static const char rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    char greeting[8];
    const struct timeval timeout = {.tv_sec = TIMEOUT_MS / 1000};
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (transmit(fd, rep, sizeof rep) && receive(fd, greeting, sizeof greeting)) return fd;
    close(fd);
    return -1;
}

/* Answers a message. A message is the length of the rest in 8 bytes, the number of the request in 4
 * bytes, and the text. */
static bool answer(struct node *node, int fd) {
    unsigned char head[12];
    uint64_t size = 0;
    doorman_buffer reply = {0};
    if (!receive(fd, head, sizeof head)) return false;
    for (int i = 0; i < 8; i++) size = size << 8 | head[i];
    if (size < 4 || size > DOORMAN_MESSAGE_BYTES_MAX) return false;
    char *text = malloc((size_t)size);
    bool good = text && receive(fd, text, (size_t)size - 4);
    if (good) {
        struct cluster *cluster = node->cluster;
        pthread_mutex_lock(&cluster->mutex);
        const bool acquires = size > 15 && strncmp(text, "{\"acquire\"", 10) == 0;
        cluster->permits[node - cluster->nodes] += acquires;
        (void)doorman_json_serve(node->server, text, (size_t)size - 4, &reply, 0, doorman_clock());
        pthread_mutex_unlock(&cluster->mutex);
        const uint64_t bytes = reply.bytes + 4;
        for (int i = 0; i < 8; i++) head[i] = (unsigned char)(bytes >> (56 - 8 * i));
        good = transmit(fd, head, sizeof head) && transmit(fd, reply.text, reply.bytes);
    }
    doorman_buffer_uninit(&reply);
    free(text);
    return good;
}

/* Serves all connections until the node stops. peers[0] is the listener. */
static void *node_main(void *context) {
    struct node *node = (struct node *)context;
    struct pollfd peers[PEERS];
    for (int i = 0; i < PEERS; i++) peers[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    peers[0].fd = node->listener;
    while (poll(peers, PEERS, -1) > 0 && !__atomic_load_n(&node->stopping, __ATOMIC_SEQ_CST)) {
        int unused = 0;
        for (int i = 1; i < PEERS; i++) {
            if (peers[i].fd >= 0 && peers[i].revents && !answer(node, peers[i].fd)) {
                close(peers[i].fd);
                peers[i].fd = -1;
            }
            if (peers[i].fd < 0) unused = i;
        }
        if (peers[0].revents && unused) peers[unused].fd = accept_req(node->listener);
    }
    for (int i = 1; i < PEERS; i++) {
        if (peers[i].fd >= 0) close(peers[i].fd);
    }
    return NULL;
}

/* Begins to accept connections. The first call chooses the port. */
static void node_listen(struct node *node) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    const int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!node->url[0]) {
        node->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(node->listener >= 0);
        setsockopt(node->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        address.sin_port = htons((uint16_t)port_free()); /* with 0, shutdown would unbind it */
        assert_int_equal(bind(node->listener, (struct sockaddr *)&address, bytes), 0);
        snprintf(node->url, sizeof node->url, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    }
    __atomic_store_n(&node->stopping, 0, __ATOMIC_SEQ_CST);
    assert_int_equal(listen(node->listener, PEERS), 0);
    assert_int_equal(pthread_create(&node->thread, NULL, node_main, node), 0);
}

/* Closes all connections, and refuses new ones. The server keeps what it knows. */
static void node_hush(struct node *node) {
    __atomic_store_n(&node->stopping, 1, __ATOMIC_SEQ_CST);
    shutdown(node->listener, SHUT_RDWR);
    pthread_join(node->thread, NULL);
}

/* ---- a cluster ------------------------------------------------------------------------------ */

static doorman_permits *permits_of(struct cluster *c, size_t node) {
    return doorman_server_permits(c->nodes[node].server);
}

static void own(struct cluster *c, size_t node, size_t shard, bool owned) {
    assert_int_equal(doorman_permits_own(permits_of(c, node), shard, owned, true, doorman_clock()),
                     DOORMAN_OK);
}

/* Gives the map to all nodes. */
static void tell(struct cluster *c) {
    doorman_shard_node nodes[NODES];
    const char *urls[NODES];
    for (size_t i = 0; i < NODES; i++) {
        urls[i] = c->nodes[i].url;
        nodes[i] =
            (doorman_shard_node){.name = names[i], .addresses = &urls[i], .address_count = 1};
    }
    const doorman_shard_map map = {.epoch = c->epoch,
                                   .shards = shards,
                                   .owners = c->owners,
                                   .nodes = nodes,
                                   .node_count = NODES};
    for (size_t i = 0; i < NODES; i++) {
        assert_int_equal(doorman_server_set_shard_map(c->nodes[i].server, &map), DOORMAN_OK);
    }
}

static void cluster_start(struct cluster *c) {
    doorman_error error = {0};
    const doorman_time now = doorman_clock();
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->mutex, NULL);
    c->epoch = 1;
    assert_int_equal(doorman_json_config(&c->config, config_text, strlen(config_text), &error),
                     DOORMAN_OK);
    for (size_t i = 0; i < NODES; i++) {
        struct node *node = &c->nodes[i];
        const doorman_server_options options = {.node = names[i], .config = c->config};
        node->cluster = c;
        assert_int_equal(doorman_server_create(&node->server, &options, &error, now), DOORMAN_OK);
        const doorman_mastership mastership = {
            .address = "tcp://x:1", .until = DOORMAN_NEVER, .predecessor_gone = 1};
        assert_int_equal(doorman_server_set_master(node->server, &mastership, now), DOORMAN_OK);
        assert_int_equal(doorman_permits_set_shards(permits_of(c, i), &shards), DOORMAN_OK);
        node_listen(node);
    }
    pthread_mutex_lock(&c->mutex);
    for (size_t i = 0; i < SHARDS; i++) {
        c->owners[i] = (doorman_shard){.owner = i % NODES, .target = i % NODES};
        own(c, i % NODES, i, true);
    }
    tell(c);
    pthread_mutex_unlock(&c->mutex);
}

static void cluster_stop(struct cluster *c) {
    for (size_t i = 0; i < NODES; i++) {
        node_hush(&c->nodes[i]);
        close(c->nodes[i].listener);
        doorman_server_destroy(c->nodes[i].server);
    }
    doorman_config_destroy(c->config);
    pthread_mutex_destroy(&c->mutex);
}

/* Gives a shard, and what its owner knows of it, to another node. The mutex is locked. */
static void hand_over(struct cluster *c, size_t shard, size_t to) {
    const size_t from = c->owners[shard].owner;
    doorman_shard_cursor cursor = {0};
    const doorman_time now = doorman_clock();
    while (!cursor.at_end) {
        doorman_shard_part part;
        assert_int_equal(
            doorman_permits_next_shard_rows(permits_of(c, from), shard, &cursor, &part, now),
            DOORMAN_OK);
        assert_int_equal(doorman_permits_restore_shard(permits_of(c, to), &part, NULL, NULL, now),
                         DOORMAN_OK);
    }
    for (cursor = (doorman_shard_cursor){0}; !cursor.at_end;) {
        assert_int_equal(doorman_permits_drop_shard(permits_of(c, from), shard, &cursor, now),
                         DOORMAN_OK);
    }
    c->owners[shard].owner = c->owners[shard].target = to;
    c->epoch++;
}

/* Moves a shard. No node decides for the shard for `ms` milliseconds. */
static void move(struct cluster *c, size_t shard, size_t to, int ms) {
    pthread_mutex_lock(&c->mutex);
    const size_t from = c->owners[shard].owner;
    if (from != to) own(c, from, shard, false);
    pthread_mutex_unlock(&c->mutex);
    if (from == to) return;
    sleep_ms(ms);
    pthread_mutex_lock(&c->mutex);
    hand_over(c, shard, to);
    own(c, to, shard, true);
    tell(c);
    pthread_mutex_unlock(&c->mutex);
}

static void key_of(char key[32], size_t shard) {
    size_t n = 0;
    do snprintf(key, 32, "key-%zu", n++);
    while (doorman_shard_of(&shards, "r", key, false) != shard);
}

/* Returns how many units the key of a shard has used at the owner of the shard. */
static double used(struct cluster *c, size_t shard) {
    char key[32];
    doorman_permit state;
    key_of(key, shard);
    pthread_mutex_lock(&c->mutex);
    assert_int_equal(doorman_permits_inspect(permits_of(c, c->owners[shard].owner),
                                             &(doorman_permit_item){.resource_id = "r", .key = key},
                                             &state, NULL, doorman_clock()),
                     DOORMAN_OK);
    const double units = state.detail_count ? state.details[0].used : 0;
    pthread_mutex_unlock(&c->mutex);
    return units;
}

static size_t hold_count(struct cluster *c, size_t node) {
    doorman_permits_info info;
    pthread_mutex_lock(&c->mutex);
    doorman_permits_read(permits_of(c, node), &info);
    pthread_mutex_unlock(&c->mutex);
    return info.hold_count;
}

/* ---- an application ------------------------------------------------------------------------- */

static doorman_agent *agent_start(const char *url) {
    const doorman_client_options options = {
        .addresses = &url,
        .address_count = 1,
        .request_timeout = LONG_TIME,
        .permits = {.fallback = DOORMAN_FAIL_CLOSED, .max_pause = DOORMAN_SECOND}};
    doorman_agent *agent = NULL;
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    return agent;
}

/* Asks for one unit of the key of a shard. */
static doorman_acquired ask(doorman_agent *agent, const char *resource, size_t shard,
                            uint64_t *hold) {
    char key[32];
    key_of(key, shard);
    const doorman_permit_item item = {.resource_id = resource, .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .hold = hold};
    doorman_acquired out = {.granted = false};
    assert_int_equal(doorman_agent_acquire(agent, &request, LONG_TIME, &out, NULL), DOORMAN_OK);
    return out;
}

static bool is_granted(doorman_agent *agent, size_t shard) {
    const doorman_acquired out = ask(agent, "r", shard, NULL);
    return out.granted && out.decided_by == DOORMAN_BY_SERVER;
}

static doorman_permit_client_info info_of(doorman_agent *agent) {
    doorman_agent_info info = {.connected = false};
    assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
    return info.permits;
}

TEST(an_agent_asks_the_owner_of_each_shard) {
    struct cluster c;
    cluster_start(&c);
    doorman_agent *agent = agent_start(c.nodes[0].url);
    for (size_t i = 0; i < SHARDS; i++) assert_true(is_granted(agent, i));
    const uint64_t moved = info_of(agent).moved;
    assert_true(moved <= 1); /* before the map came */
    assert_int_equal(info_of(agent).map_epoch, 1);
    for (size_t i = 0; i < SHARDS; i++) assert_true(is_granted(agent, i));
    assert_int_equal(info_of(agent).moved, moved);
    for (size_t i = 0; i < NODES; i++) assert_true(c.permits[i] >= 2);
    for (size_t i = 0; i < SHARDS; i++) assert_true(used(&c, i) >= 2);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    cluster_stop(&c);
}

struct load {
    doorman_agent *agent;
    pthread_t thread;
    int done; /* atomic */
    size_t granted[SHARDS], refused;
};

static void *load_main(void *context) {
    struct load *load = (struct load *)context;
    for (size_t i = 0; !__atomic_load_n(&load->done, __ATOMIC_SEQ_CST); i++) {
        const bool granted = is_granted(load->agent, i % SHARDS);
        load->granted[i % SHARDS] += granted;
        load->refused += !granted;
    }
    return NULL;
}

TEST(no_permit_is_lost_while_shards_move) {
    struct cluster c;
    struct load loads[3];
    cluster_start(&c);
    doorman_agent *agent = agent_start(c.nodes[0].url);
    for (int i = 0; i < 3; i++) {
        loads[i] = (struct load){.agent = agent};
        assert_int_equal(pthread_create(&loads[i].thread, NULL, load_main, &loads[i]), 0);
    }
    for (size_t i = 0; i < 30; i++) move(&c, i % SHARDS, (i * 7 / SHARDS) % NODES, 5);
    size_t refused = 0;
    for (int i = 0; i < 3; i++) {
        __atomic_store_n(&loads[i].done, 1, __ATOMIC_SEQ_CST);
        pthread_join(loads[i].thread, NULL);
        refused += loads[i].refused;
    }
    assert_int_equal(refused, 0);
    for (size_t i = 0; i < SHARDS; i++) {
        size_t granted = 0;
        for (int j = 0; j < 3; j++) granted += loads[j].granted[i];
        assert_true(used(&c, i) == (double)granted);
    }
    assert_true(info_of(agent).map_epoch > 1);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    cluster_stop(&c);
}

TEST(a_node_that_cannot_be_reached_stops_only_its_own_keys) {
    struct cluster c;
    cluster_start(&c);
    doorman_agent *agent = agent_start(c.nodes[0].url);
    for (size_t i = 0; i < SHARDS; i++) assert_true(is_granted(agent, i));
    node_hush(&c.nodes[1]);
    for (int i = 0; i < 3; i++) {
        const doorman_acquired out = ask(agent, "r", 1, NULL);
        assert_false(out.granted);
        assert_int_equal(out.decided_by, DOORMAN_BY_FALLBACK);
        assert_true(is_granted(agent, 0));
        assert_true(is_granted(agent, 2));
    }
    node_listen(&c.nodes[1]);
    EVENTUALLY(is_granted(agent, 1));
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    cluster_stop(&c);
}

TEST(a_hold_is_released_at_the_node_that_has_taken_its_shard) {
    struct cluster c;
    cluster_start(&c);
    doorman_agent *agent = agent_start(c.nodes[2].url);
    uint64_t hold = 0;
    assert_true(ask(agent, "hold", 0, &hold).granted);
    assert_int_equal(hold_count(&c, 0), 1);
    move(&c, 0, 1, 0);
    assert_int_equal(hold_count(&c, 1), 1);
    uint64_t other = 0;
    assert_false(ask(agent, "hold", 0, &other).granted);
    assert_int_equal(doorman_agent_release(agent, hold), DOORMAN_OK);
    EVENTUALLY(hold_count(&c, 1) == 0);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    cluster_stop(&c);
}

/* Before an agent stops, it sends the releases that it still owes the nodes. */
TEST(a_release_is_sent_before_the_agent_stops) {
    struct cluster c;
    cluster_start(&c);
    doorman_agent *agent = agent_start(c.nodes[0].url);
    uint64_t hold = 0;
    assert_true(ask(agent, "hold", 1, &hold).granted);
    assert_int_equal(hold_count(&c, 1), 1);
    assert_int_equal(doorman_agent_release(agent, hold), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    assert_int_equal(hold_count(&c, 1), 0);
    cluster_stop(&c);
}
