/* A node of three processes with an etcd and a Redis, and clients that load it. */
#ifndef DOORMAN_TESTS_NODE_FIXTURE_H
#define DOORMAN_TESTS_NODE_FIXTURE_H

#include "redis_fixture.h"
#include "state_fixture.h"

#define MEMBERS 3
#define KEYS 4
#define LOADS 2
#define GRANTS_MAX 100000 /* of a thread in a test */

struct member {
    struct process *process;
    struct fixture fixture;
};

static struct {
    struct etcd etcd;
    struct redis redis;
    const char *config, *ttl;
    const char *tokens; /* a file; NULL: HTTP needs no token */
    bool is_in_store;   /* the configuration is in the Redis: --config store: */
    struct member members[MEMBERS];
    pthread_mutex_t lock;
    char urls[MEMBERS][NNG_MAXADDRLEN]; /* guarded by the lock */
} node = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Starts a process of the node, on new ports. */
static inline void member_start(int index) {
    struct member *member = &node.members[index];
    if (!member->process) member->process = process_new();
    struct process *process = member->process;
    unsigned port = 0;
    file_write(process->config, node.config);
    const char *const arguments[] = {"--config",
                                     node.is_in_store ? "store:" : process->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--http",
                                     "127.0.0.1:0",
                                     "--etcd",
                                     node.etcd.url,
                                     "--election-key",
                                     "doorman/master",
                                     "--election-ttl",
                                     node.ttl,
                                     "--state",
                                     node.redis.address,
                                     node.tokens ? "--http-token" : NULL,
                                     node.tokens,
                                     NULL};
    process_start(process, arguments, NULL);
    process_await(process, " http=http", 1);
    char *log_text = file_read(process->err);
    struct fixture *fixture = &member->fixture;
    fixture->server.process = fixture->http.process = process;
    assert_int_equal(
        sscanf(strstr(log_text, " listen="), " listen=%127[^ ,\n]", fixture->server.url), 1);
    assert_int_equal(sscanf(strstr(log_text, " http="), " http=http://127.0.0.1:%u", &port), 1);
    snprintf(fixture->http.url, sizeof fixture->http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    pthread_mutex_lock(&node.lock);
    memmove(node.urls[index], fixture->server.url, sizeof node.urls[index]);
    pthread_mutex_unlock(&node.lock);
}

/* Starts a node.
 *   ttl   how many seconds a process stays master without etcd. After a kill, a standby becomes
 *         master after this time, and after a planned stop at once. A busy machine
 *         can delay the requests of a master to etcd. If the time is shorter than this delay, a
 *         standby takes over too early */
static inline void node_start(const char *config, const char *ttl) {
    node.config = config;
    node.ttl = ttl;
    memset(node.members, 0, sizeof node.members);
    etcd_require(&node.etcd);
    redis_require(&node.redis);
    for (int i = 0; i < MEMBERS; i++) member_start(i);
}

/* Returns whether a process is master, and has read the store. */
static inline bool member_decides(int index) {
    if (node.members[index].process->pid == 0) return false;
    char *response =
        get(&node.members[index].fixture, "/v1/allow?resource=maps&key=none&cost=1", LINES);
    bool decides = strstr(response, "GRANTED") != NULL;
    free(response);
    return decides;
}

/* Returns the index of the master, or -1.
 *   stopped   a process that does not answer; -1: none */
static inline int node_find_master(int stopped) {
    int index = MEMBERS - 1;
    while (index >= 0 && (index == stopped || !member_decides(index))) index--;
    return index;
}

static inline int node_await_master(void) {
    int master = -1;
    EVENTUALLY((master = node_find_master(-1)) >= 0);
    return master;
}

/* A client that takes one unit after the other from the process that is master. It pauses between
 * grants, for a shorter time in `make kills`. */
struct load {
    pthread_t thread;
    int number;
    bool stops; /* atomic */
    size_t count;
    struct grant {
        int64_t at; /* when the answer came */
        int key;
    } grants[GRANTS_MAX];
    long asked[KEYS]; /* requests, also those without an answer */
};

static struct load loads[LOADS];

static inline int load_connect(int member) {
    static const unsigned char greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    char url[NNG_MAXADDRLEN];
    unsigned char own[8];
    pthread_mutex_lock(&node.lock);
    snprintf(url, sizeof url, "%s", node.urls[member]);
    pthread_mutex_unlock(&node.lock);
    int fd = connect_within(url, 2000);
    if (fd < 0) return -1;
    if (send_all(fd, greeting, 8) && receive_all(fd, own, 8)) return fd;
    close(fd);
    return -1;
}

static inline void *load_main(void *context) {
    struct load *load = (struct load *)context;
    const int pause_ms = rounds("DOORMAN_KILLS", 0) ? 1 : 4;
    int member = 0, fd = -1;
    while (!__atomic_load_n(&load->stops, __ATOMIC_RELAXED) && load->count < GRANTS_MAX) {
        if (fd < 0) fd = load_connect(member);
        int key = (int)(load->count % KEYS);
        if (fd >= 0) load->asked[key]++;
        if (fd >= 0 && load_ask(fd, load->number, key)) {
            load->grants[load->count++] = (struct grant){clock_read(), key};
            sleep_ms(pause_ms);
            continue;
        }
        if (fd >= 0) close(fd);
        fd = -1;
        member = (member + 1) % MEMBERS;
        sleep_ms(5);
    }
    if (fd >= 0) close(fd);
    return NULL;
}

static inline void loads_start(void) {
    for (int i = 0; i < LOADS; i++) {
        struct load *load = &loads[i];
        load->number = i, load->stops = false, load->count = 0;
        memset(load->asked, 0, sizeof load->asked);
        assert_int_equal(pthread_create(&load->thread, NULL, load_main, load), 0);
    }
}

static inline void loads_stop(void) {
    for (int i = 0; i < LOADS; i++) __atomic_store_n(&loads[i].stops, true, __ATOMIC_RELAXED);
    for (int i = 0; i < LOADS; i++) assert_int_equal(pthread_join(loads[i].thread, NULL), 0);
}

/* Returns how many grants of a key a thread got between two times. */
static inline long granted_between(const struct load *load, int key, int64_t since, int64_t until) {
    long sum = 0;
    for (size_t i = 0; i < load->count; i++) {
        const struct grant *grant = &load->grants[i];
        sum += grant->key == key && grant->at >= since && grant->at < until;
    }
    return sum;
}

static inline void node_show(void) {
    for (int i = 0; i < MEMBERS; i++) {
        if (node.members[i].process) process_show(node.members[i].process);
    }
}

/* Compares what the threads were granted in a round with what the master says is used. Fails if
 * more is used than was asked for, or if grants from before `since` or after `until` are forgotten.
 *   before         in/out: what each key had used before the round
 *   since, until   grants of this time may be forgotten
 *   returns        how many grants were forgotten */
static inline long account_compare(int master, long before[LOADS][KEYS], int64_t since,
                                   int64_t until) {
    long forgotten = 0, all = 0;
    for (int i = 0; i < LOADS; i++) {
        for (int key = 0; key < KEYS; key++) {
            char name[16];
            snprintf(name, sizeof name, "%d-%d", i, key);
            long now = used(&node.members[master].fixture, name), had = before[i][key];
            long granted = granted_between(&loads[i], key, 0, INT64_MAX);
            long lost = had + granted - now;
            bool is_known = lost <= granted_between(&loads[i], key, since, until);
            bool is_granted = now <= had + loads[i].asked[key];
            if (!is_known || !is_granted) node_show();
            if (!is_granted) fail_msg("%ld of %s are used", now, name);
            if (!is_known) fail_msg("%ld grants of %s are forgotten", lost, name);
            forgotten += lost > 0 ? lost : 0;
            all += granted;
            before[i][key] = now;
        }
    }
    assert_true(all > 0);
    print_message("%ld granted, %ld forgotten\n", all, forgotten);
    return forgotten;
}

/* Returns the time up to which the store has all changes, according to the master. */
static inline int64_t written_until(int master) {
    int64_t asked_at = clock_read();
    double age = status_number(&node.members[master].fixture, "state.age");
    return asked_at - (int64_t)(age * SECOND) - 1;
}

#endif
