/*
 * The agent (section nng), against a server in a thread of the same process. Time is real, so the
 * tests assert only counts, orders and bounds, and every wait has a time-out.
 */
#define DOORMAN_JSON
#define DOORMAN_NNG
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../test.h"

#define MILLISECOND (DOORMAN_SECOND / 1000)

/* Far longer than anything here takes, even on a slow machine. */
#define TEST_TIMEOUT (60 * DOORMAN_SECOND)

/* A test of timing can fail on a busy machine, so it has 10 tries, and one try must succeed. */
#define TRIES 10

/* Sleeps for less than a second. */
static void sleep_for(doorman_time duration) {
    nanosleep(&(struct timespec){.tv_nsec = (long)duration}, NULL);
}

/* Waits until a condition holds. The condition is not evaluated again after that, because it may
 * not hold for long. */
#define EVENTUALLY(condition)                                                                      \
    do {                                                                                           \
        doorman_time deadline_ = doorman_clock() + TEST_TIMEOUT;                                   \
        bool in_time_ = true, holds_ = (condition);                                                \
        while (!holds_ && in_time_) {                                                              \
            sleep_for(2 * MILLISECOND);                                                            \
            in_time_ = doorman_clock() < deadline_;                                                \
            holds_ = (condition);                                                                  \
        }                                                                                          \
        if (!holds_) fail_msg("never: %s", #condition);                                            \
    } while (0)

/* Whether closing a socket hangs, and how many sockets hang. Both are atomic. */
static int closing_hangs, closing_count;

/* How many aios were freed, and how many of them before the last socket was closed. Both are
 * atomic. */
static int freed_count, freed_before_close;

/* In the library a thread that sleeps also wakes each second, which would hide a lost wake-up. In
 * these tests it does not. So if a wake-up is lost, a wait lasts until its timeout, which is much
 * longer than anything takes on a slow machine. */
int64_t hook_nap_max(void) { return 600 * DOORMAN_SECOND; }

/* The Makefile lets the agent call this function in place of nng_aio_free, and the next one in
 * place of nng_close. */
void free_and_count(nng_aio *aio);
void free_and_count(nng_aio *aio) {
    nng_aio_free(aio);
    __atomic_fetch_add(&freed_count, 1, __ATOMIC_SEQ_CST);
}

int close_or_hang(nng_socket socket);
int close_or_hang(nng_socket socket) {
    __atomic_store_n(&freed_before_close, __atomic_load_n(&freed_count, __ATOMIC_SEQ_CST),
                     __ATOMIC_SEQ_CST);
    doorman_time deadline = doorman_clock() + TEST_TIMEOUT;
    __atomic_fetch_add(&closing_count, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&closing_hangs, __ATOMIC_SEQ_CST) && doorman_clock() < deadline) {
        sleep_for(2 * MILLISECOND);
    }
    __atomic_fetch_sub(&closing_count, 1, __ATOMIC_SEQ_CST);
    return nng_close(socket);
}

/* ---- a server in a thread ------------------------------------------------------------------ */

/* The server reads and writes nng's protocol on plain sockets. If it used nng, an agent and a
 * server in one process would share nng's threads. With nng 1.5.2, a server that closes its nng
 * socket while clients send requests can block these threads for ever. */

typedef enum behaviour { ANSWERS, SILENT, SENDS_GARBAGE } behaviour;

#define PEERS_MAX 16

typedef struct test_server {
    char url[64]; /* kept when the server stops, so that it can start again there */
    double capacity;
    doorman_time lease_length;     /* 0: 2 s */
    doorman_time refresh_interval; /* 0: 300 ms */
    char redirect[64];             /* the address that it names as the master; "": its own */
    int behaviour;
    int request_count, connection_count;
    pthread_mutex_t mutex; /* guards the server */
    doorman_config *config;
    doorman_server *server;
    int listener; /* bound until the process ends, so that no other program takes the port */
    int stopping; /* atomic */
    pthread_t thread;
} test_server;

static bool read_all(int fd, void *out, size_t bytes) {
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool write_all(int fd, const void *from, size_t bytes) {
    return send(fd, from, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Accepts a connection, and exchanges nng's greeting. The peer must be a REQ. Returns -1 if this
 * fails. */
static int accept_peer(int listener) {
    static const unsigned char req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const unsigned char rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    const struct timeval timeout = {.tv_sec = TEST_TIMEOUT / DOORMAN_SECOND};
    const int on = 1;
    unsigned char greeting[8];
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a response takes two writes */
    if (write_all(fd, rep, sizeof rep) && read_all(fd, greeting, sizeof greeting) &&
        memcmp(greeting, req, sizeof req) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

/* Handles a request, and sends the response, or garbage in its place. The length of the message and
 * the number of the request go before the text. */
static bool test_server_answer(test_server *self, int fd, const char *text, size_t bytes,
                               const unsigned char number[4]) {
    static const char garbage[] = "{\"get_capacity\": [1e999";
    doorman_buffer reply = {0};
    unsigned char head[12] = {0};
    pthread_mutex_lock(&self->mutex);
    doorman_json_serve(self->server, text, bytes, &reply, 0, doorman_clock());
    pthread_mutex_unlock(&self->mutex);
    bool wrong = __atomic_load_n(&self->behaviour, __ATOMIC_SEQ_CST) == SENDS_GARBAGE;
    size_t size = wrong ? strlen(garbage) : reply.bytes;
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)(size + 4) >> (56 - 8 * i));
    memcpy(head + 8, number, 4);
    bool sent =
        write_all(fd, head, sizeof head) && write_all(fd, wrong ? garbage : reply.text, size);
    doorman_buffer_uninit(&reply);
    return sent;
}

/* Reads a request, and responds unless the server is SILENT. Returns false if the connection must
 * be closed. */
static bool test_server_serve(test_server *self, int fd) {
    unsigned char head[12];
    uint64_t bytes = 0;
    if (!read_all(fd, head, sizeof head)) return false;
    for (int i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    if (bytes < 4 || bytes > DOORMAN_MESSAGE_BYTES_MAX) return false;
    char *text = (char *)malloc((size_t)bytes);
    bool good = text && read_all(fd, text, (size_t)bytes - 4);
    if (good) __atomic_fetch_add(&self->request_count, 1, __ATOMIC_SEQ_CST);
    if (good && __atomic_load_n(&self->behaviour, __ATOMIC_SEQ_CST) != SILENT) {
        good = test_server_answer(self, fd, text, (size_t)bytes - 4, head + 8);
    }
    free(text);
    return good;
}

/* Serves all peers until the server stops. peers[0] is the listener. A slot with the file
 * descriptor -1 is free. */
static void *test_server_main(void *context) {
    test_server *self = (test_server *)context;
    struct pollfd peers[PEERS_MAX];
    for (int i = 0; i < PEERS_MAX; i++) peers[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    peers[0].fd = self->listener;
    while (poll(peers, PEERS_MAX, -1) > 0 && !__atomic_load_n(&self->stopping, __ATOMIC_SEQ_CST)) {
        for (int i = 1; i < PEERS_MAX; i++) {
            if (peers[i].fd < 0 || !peers[i].revents || test_server_serve(self, peers[i].fd)) {
                continue;
            }
            close(peers[i].fd);
            peers[i].fd = -1;
        }
        int place = 1;
        while (place < PEERS_MAX && peers[place].fd >= 0) place++;
        if (!peers[0].revents || place == PEERS_MAX) continue;
        peers[place].fd = accept_peer(self->listener);
        if (peers[place].fd >= 0) __atomic_fetch_add(&self->connection_count, 1, __ATOMIC_SEQ_CST);
    }
    for (int i = 1; i < PEERS_MAX; i++) {
        if (peers[i].fd >= 0) shutdown(peers[i].fd, SHUT_RDWR); /* forked children have copies */
        if (peers[i].fd >= 0) close(peers[i].fd);
    }
    return NULL;
}

static void test_server_create(test_server *self) {
    doorman_template all = {.identifier_glob = "*", .capacity = self->capacity};
    all.has_algorithm = true;
    all.algorithm.lease_length = self->lease_length ? self->lease_length : 2 * DOORMAN_SECOND;
    all.algorithm.refresh_interval =
        self->refresh_interval ? self->refresh_interval : 300 * MILLISECOND;
    all.algorithm.minimum_refresh_interval = 100 * MILLISECOND;
    all.algorithm.has_learning_mode_duration = true;
    all.algorithm.has_minimum_interval = true;
    doorman_config_options templates = {.templates = &all, .template_count = 1};
    assert_int_equal(doorman_config_create(&self->config, &templates, NULL), DOORMAN_OK);
    doorman_server_options options = {.node = "root", .config = self->config};
    doorman_time now = doorman_clock();
    assert_int_equal(doorman_server_create(&self->server, &options, NULL, now), DOORMAN_OK);
    doorman_mastership mastership = {.address = self->url, .until = DOORMAN_NEVER};
    if (self->redirect[0]) mastership = (doorman_mastership){.address = self->redirect};
    assert_int_equal(doorman_server_set_master(self->server, &mastership, now), DOORMAN_OK);
}

/* Chooses a free port, and binds the listener to it. The port refuses connections until the server
 * starts. A stopped listener keeps its port only if it asked for this port. So the first socket
 * asks for any port, and the second socket asks for the port of the first. */
static void test_server_bind(test_server *self) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct sockaddr *any = (struct sockaddr *)&address;
    socklen_t bytes = sizeof address;
    const int on = 1;
    int sockets[2];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 2; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(sockets[i] >= 0);
        assert_int_equal(setsockopt(sockets[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
        assert_int_equal(bind(sockets[i], any, bytes), 0);
        assert_int_equal(getsockname(sockets[i], any, &bytes), 0);
    }
    close(sockets[0]);
    self->listener = sockets[1];
    snprintf(self->url, sizeof self->url, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
}

static void test_server_start(test_server *self) {
    if (!self->url[0]) test_server_bind(self);
    pthread_mutex_init(&self->mutex, NULL);
    test_server_create(self);
    self->stopping = 0;
    assert_int_equal(listen(self->listener, PEERS_MAX), 0);
    assert_int_equal(pthread_create(&self->thread, NULL, test_server_main, self), 0);
}

/* Stops the server. After shutdown(2) the listener is still bound, and refuses connections. */
static void test_server_stop(test_server *self) {
    __atomic_store_n(&self->stopping, 1, __ATOMIC_SEQ_CST);
    shutdown(self->listener, SHUT_RDWR);
    pthread_join(self->thread, NULL);
    doorman_server_destroy(self->server);
    doorman_config_destroy(self->config);
    pthread_mutex_destroy(&self->mutex);
}

static int test_server_request_count(test_server *self) {
    return __atomic_load_n(&self->request_count, __ATOMIC_SEQ_CST);
}

/* Returns the sums of the only resource; zeros if there is none. */
static doorman_server_resource test_server_read(test_server *self) {
    doorman_server_resource sums = {0};
    doorman_cursor cursor = {0};
    pthread_mutex_lock(&self->mutex);
    if (!doorman_server_next_resource(self->server, &cursor, &sums, doorman_clock())) {
        memset(&sums, 0, sizeof sums);
    }
    pthread_mutex_unlock(&self->mutex);
    return sums;
}

static void unused_address(char url[64]) {
    static int count;
    snprintf(url, 64, "ipc:///tmp/doorman-test-%ld-%d", (long)getpid(), count++);
}

/* ---- an application ------------------------------------------------------------------------ */

static doorman_agent *start_with(const char *url, doorman_time request_timeout) {
    const char *addresses[] = {url};
    doorman_agent *agent = NULL;
    doorman_client_options options = {
        .addresses = addresses, .address_count = 1, .request_timeout = request_timeout};
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    return agent;
}

static doorman_agent *start(const char *url) { return start_with(url, 500 * MILLISECOND); }

static doorman_resource *open_kind(doorman_agent *agent, doorman_resource_kind kind, const char *id,
                                   double wants, doorman_fallback fallback, double safe_capacity) {
    doorman_resource *resource = NULL;
    doorman_resource_options options = {.resource_id = id,
                                        .kind = kind,
                                        .wants = wants,
                                        .fallback = fallback,
                                        .has_safe_capacity = fallback == DOORMAN_SAFE,
                                        .safe_capacity = safe_capacity};
    assert_int_equal(doorman_resource_open(&resource, agent, &options, NULL), DOORMAN_OK);
    return resource;
}

static doorman_resource *open_as(doorman_agent *agent, const char *id, double wants,
                                 doorman_fallback fallback, double safe_capacity) {
    return open_kind(agent, DOORMAN_RATE, id, wants, fallback, safe_capacity);
}

static doorman_resource *open_gauge(doorman_agent *agent, const char *id, double wants,
                                    doorman_fallback fallback, double safe_capacity) {
    return open_kind(agent, DOORMAN_GAUGE, id, wants, fallback, safe_capacity);
}

static doorman_resource_info read_info(doorman_resource *resource) {
    doorman_resource_info info;
    doorman_resource_read(resource, &info);
    return info;
}

static bool leased(doorman_resource *resource) { return read_info(resource).leased; }

/* Returns how many of the waiting calls began at this time or later. */
static size_t waiters_since(doorman_agent *agent, doorman_time from) {
    size_t count = 0;
    pthread_mutex_lock(&agent->mutex);
    for (const doorman__waiter *at = agent->first; at; at = at->next) count += at->since >= from;
    pthread_mutex_unlock(&agent->mutex);
    return count;
}

static size_t waiters(doorman_agent *agent) { return waiters_since(agent, 0); }

/* Returns whether a resource is a gauge. Precondition: a wait for the resource was granted. */
static bool is_gauge(const doorman_resource *resource) {
    return resource->own->kind == DOORMAN_GAUGE;
}

typedef struct async_wait {
    doorman_agent *agent;
    doorman_resource *resource;
    double n;
    doorman_time timeout;
    int *order_counter; /* counts the granted waits, to show their order; may be NULL */
    int order;
    bool done; /* atomic */
    doorman_status status;
    doorman_time took;
    pthread_t thread;
} async_wait;

static void *async_wait_main(void *context) {
    async_wait *self = (async_wait *)context;
    doorman_time from = doorman_clock();
    self->status = doorman_resource_wait(self->resource, self->n, self->timeout);
    self->took = doorman_clock() - from;
    if (self->order_counter)
        self->order = __atomic_fetch_add(self->order_counter, 1, __ATOMIC_SEQ_CST);
    if (self->status == DOORMAN_OK && is_gauge(self->resource)) {
        sleep_for(5 * MILLISECOND);
        doorman_resource_release(self->resource, self->n);
    }
    __atomic_store_n(&self->done, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Starts the thread. Returns when it waits in the queue, or has finished. Earlier waiters may leave
 * the queue meanwhile. */
static void async_wait_start(async_wait *self) {
    doorman_time from = doorman_clock();
    assert_int_equal(pthread_create(&self->thread, NULL, async_wait_main, self), 0);
    EVENTUALLY(waiters_since(self->agent, from) > 0 ||
               __atomic_load_n(&self->done, __ATOMIC_SEQ_CST));
}

static doorman_status async_wait_end(async_wait *self) {
    pthread_join(self->thread, NULL);
    return self->status;
}

/* Fails unless the wait was granted because the thread was woken. At its timeout the thread tries
 * once more, so the wait can also be granted without a wake-up. But such a wait takes the whole
 * timeout. */
static void async_wait_end_woken(async_wait *self) {
    assert_true(self->timeout == TEST_TIMEOUT);
    assert_int_equal(async_wait_end(self), DOORMAN_OK);
    assert_true(self->took < TEST_TIMEOUT / 2);
}

/* ---- tests --------------------------------------------------------------------------------- */

/* Waits for a child, and returns its exit code: the number of the first CHECK that failed, or 0. A
 * child does not use cmocka, and ends after three minutes at the latest. */
static int child_result(pid_t child) {
    int result = 0;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        number++;                                                                                  \
        if (!(condition)) return number;                                                           \
    } while (0)

/* Runs in the child. Gets the address of a server from its parent, and a lease from the server. */
static int child_starts_an_agent(int from) {
    int number = 0;
    (void)alarm(180);
    char url[64] = "";
    CHECK(read(from, url, sizeof url) == (ssize_t)sizeof url);
    const char *addresses[] = {url};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_resource_options database = {.resource_id = "db", .wants = 50};
    doorman_resource_info info = {.leased = false};
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    CHECK(doorman_agent_start(&agent, &options, NULL) == DOORMAN_OK);
    CHECK(doorman_resource_open(&resource, agent, &database, NULL) == DOORMAN_OK);
    for (int i = 0; i < 30000 && !info.leased; i++) {
        sleep_for(2 * MILLISECOND);
        CHECK(doorman_resource_read(resource, &info) == DOORMAN_OK);
        number--;
    }
    CHECK(info.leased);
    CHECK(doorman_resource_wait(resource, 1, TEST_TIMEOUT) == DOORMAN_OK);
    CHECK(doorman_agent_stop(agent) == DOORMAN_OK);
    return 0;
}

/* This must be the first test, because a child of a process that has used nng cannot use nng. */
TEST(a_child_can_start_an_agent_where_its_parent_had_none) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) _exit(child_starts_an_agent(ends[0]));
    test_server server = {.capacity = 90};
    test_server_start(&server);
    assert_true(write(ends[1], server.url, sizeof server.url) == (ssize_t)sizeof server.url);
    assert_int_equal(child_result(child), 0);
    close(ends[0]);
    close(ends[1]);
    test_server_stop(&server);
}

/* L1, L2. */
TEST(an_application_is_limited_to_the_rate_of_its_lease) {
    test_server server = {.capacity = 500, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 500, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    assert_true(read_info(resource).capacity == 500);
    doorman_time from = doorman_clock();
    for (int count = 1; count <= 500; count++) {
        assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
        double elapsed = (double)(doorman_clock() - from) / 1e9;
        assert_true(count <= 500 * (elapsed + 0.1) + 1);
    }
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* L2. */
TEST(an_invalid_wait_is_refused_at_once) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *rate = open_as(agent, "rate", 1, DOORMAN_SAFE, 100);
    doorman_resource *gauge = open_gauge(agent, "gauge", 1, DOORMAN_SAFE, 100);
    const double invalid[] = {-1, -1e-300, 1e16, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        assert_int_equal(doorman_resource_wait(rate, invalid[i], TEST_TIMEOUT),
                         DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(doorman_resource_wait(gauge, invalid[i], TEST_TIMEOUT),
                         DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(doorman_resource_release(gauge, invalid[i]), DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(doorman_resource_try(gauge, invalid[i], NULL), DOORMAN_IMPOSSIBLE);
        assert_true(doorman_resource_delay(gauge, invalid[i]) == DOORMAN_NEVER);
        assert_true(doorman_resource_delay(rate, invalid[i]) == DOORMAN_NEVER);
    }
    assert_int_equal(doorman_resource_wait(rate, 1e15, DOORMAN_NEVER), DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(doorman_resource_wait(gauge, 101, DOORMAN_NEVER), DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(doorman_resource_release(rate, 1), DOORMAN_INVALID_ARGUMENT);
    doorman_agent_stop(agent);
}

/* K4, K7. */
TEST(without_a_server_nothing_blocks_and_the_fallback_applies) {
    char url[64];
    unused_address(url);
    doorman_time from = doorman_clock();
    doorman_agent *agent = start(url);
    doorman_resource *safe = open_as(agent, "safe", 1000, DOORMAN_SAFE, 100);
    doorman_resource *none = open_as(agent, "none", 1000, DOORMAN_PESSIMISTIC, 0);
    doorman_resource *all = open_gauge(agent, "all", 1000, DOORMAN_OPTIMISTIC, 0);
    assert_true(read_info(safe).capacity == 100);
    assert_true(read_info(none).capacity == 0);
    assert_true(read_info(all).capacity == 1000);
    assert_int_equal(doorman_resource_set_wants(all, 2000), DOORMAN_OK);
    assert_true(read_info(all).capacity == 2000);
    assert_int_equal(doorman_resource_wait(safe, 1, TEST_TIMEOUT), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(all, 2000, 0), DOORMAN_OK);
    doorman_resource_release(all, 2000);
    doorman_time before = doorman_clock();
    assert_int_equal(doorman_resource_wait(none, 1, 0), DOORMAN_TIMED_OUT);
    assert_int_equal(doorman_resource_wait(none, 1, 50 * MILLISECOND), DOORMAN_TIMED_OUT);
    assert_int_equal(doorman_resource_wait(all, 2001, 0), DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(doorman_resource_wait(all, 2000, 0), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(all, 1, 50 * MILLISECOND), DOORMAN_TIMED_OUT);
    assert_true(doorman_clock() - before >= 100 * MILLISECOND);
    doorman_resource_close(none);
    doorman_agent_stop(agent);
    assert_true(doorman_clock() - from < TEST_TIMEOUT);
}

/* K2, K4: after its server has gone, a lease stays in force until its end. Then the fallback
 * decides. When the server is back, all resources have leases again. */
TEST(leases_survive_a_server_that_restarts) {
    test_server server = {.capacity = 90};
    test_server_bind(&server);
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *safe = open_as(agent, "safe", 50, DOORMAN_SAFE, 7);
    doorman_resource *none = open_as(agent, "none", 50, DOORMAN_PESSIMISTIC, 0);
    doorman_resource *all = open_as(agent, "all", 70, DOORMAN_OPTIMISTIC, 0);
    doorman_resource_info info = {.leased = false};
    for (int i = 0; i < TRIES && !info.leased; i++) {
        if (i > 0) test_server_start(&server);
        EVENTUALLY(leased(safe) && leased(none) && leased(all));
        test_server_stop(&server);
        info = read_info(none);
    }
    assert_true(info.leased);
    doorman_time end = info.expires_at;
    for (int i = 0; i < 10000 && info.leased; i++) {
        assert_true(info.capacity == 50);
        sleep_for(MILLISECOND);
        info = read_info(none);
    }
    assert_false(info.leased);
    assert_true(doorman_clock() >= end);
    assert_true(info.capacity == 0);
    EVENTUALLY(!leased(safe) && !leased(all));
    assert_true(read_info(safe).capacity == 90); /* the safe capacity for one client */
    assert_true(read_info(all).capacity == 70);
    assert_int_equal(doorman_resource_try(none, 1, NULL), DOORMAN_REFUSED);
    test_server_start(&server);
    EVENTUALLY(leased(safe) && leased(none) && leased(all));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* L1: a blocked waiter sees at once that a lease has ended. */
TEST(a_waiter_sees_the_end_of_a_lease_of_0) {
    test_server server = {.capacity = 0};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 1000, DOORMAN_OPTIMISTIC, 0);
    doorman_resource *gauge = open_gauge(agent, "gauge", 1000, DOORMAN_OPTIMISTIC, 0);
    EVENTUALLY(leased(resource) && leased(gauge));
    test_server_stop(&server);
    doorman_time end = read_info(resource).expires_at;
    assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
    assert_true(doorman_clock() >= end);
    assert_int_equal(doorman_resource_wait(gauge, 1, TEST_TIMEOUT), DOORMAN_OK);
    doorman_agent_stop(agent);
}

/* K2, K7: requests that fail, for any reason, are sent at most once a second, each on a new
 * connection. When the server works again, the client gets a lease. */
static void check_bad_server(behaviour what) {
    test_server server = {.capacity = 90, .behaviour = (int)what};
    test_server_start(&server);
    doorman_time from = doorman_clock();
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_SAFE, 1000);
    EVENTUALLY(test_server_request_count(&server) >= 2);
    assert_false(leased(resource));
    assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
    int count = test_server_request_count(&server);
    assert_true(count <= 1 + (doorman_clock() - from) / DOORMAN_SECOND);
    EVENTUALLY(__atomic_load_n(&server.connection_count, __ATOMIC_SEQ_CST) >= count);
    __atomic_store_n(&server.behaviour, ANSWERS, __ATOMIC_SEQ_CST);
    EVENTUALLY(leased(resource));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

TEST(a_server_that_never_answers_blocks_nothing) { check_bad_server(SILENT); }

TEST(a_server_that_sends_garbage_blocks_nothing) { check_bad_server(SENDS_GARBAGE); }

/* K7: nng accepts the first address, but then cannot dial it. */
TEST(an_unreachable_address_counts_as_a_failure) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    const char *addresses[] = {"inproc://nobody", server.url};
    doorman_agent *agent = NULL;
    doorman_client_options options = {
        .addresses = addresses, .address_count = 2, .request_timeout = 60 * DOORMAN_SECOND};
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* K3. */
TEST(a_redirect_is_followed) {
    test_server master = {.capacity = 90}, other = {.capacity = 90};
    test_server_start(&master);
    memcpy(other.redirect, master.url, sizeof other.redirect);
    test_server_start(&other);
    doorman_agent *agent = start_with(other.url, TEST_TIMEOUT);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    EVENTUALLY(test_server_request_count(&master) >= 3);
    assert_int_equal(test_server_request_count(&other), 1);
    doorman_agent_stop(agent);
    test_server_stop(&other);
    test_server_stop(&master);
}

/* K3: after one request and five redirects the client gives up, and sends the next request at least
 * 1 s later. */
TEST(redirects_in_a_circle_end) {
    test_server left = {.capacity = 90}, right = {.capacity = 90};
    test_server_start(&left);
    memcpy(right.redirect, left.url, sizeof right.redirect);
    test_server_start(&right);
    doorman_mastership invalid = {.address = right.url};
    pthread_mutex_lock(&left.mutex);
    assert_int_equal(doorman_server_set_master(left.server, &invalid, doorman_clock()), DOORMAN_OK);
    pthread_mutex_unlock(&left.mutex);
    doorman_time from = doorman_clock();
    doorman_agent *agent = start(left.url);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(test_server_request_count(&left) + test_server_request_count(&right) >= 12);
    int count = test_server_request_count(&left) + test_server_request_count(&right);
    assert_true(count <= 6 * (1 + (doorman_clock() - from) / DOORMAN_SECOND));
    assert_false(leased(resource));
    doorman_agent_stop(agent);
    test_server_stop(&left);
    test_server_stop(&right);
}

/* nng 1.5.2 can lose a connection. nng_close then waits for this connection for ever. The agent
 * must stop all the same. */
TEST(an_agent_stops_even_if_nng_cannot_close) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    __atomic_store_n(&closing_hangs, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    assert_int_equal(__atomic_load_n(&closing_count, __ATOMIC_SEQ_CST), 1);
    __atomic_store_n(&closing_hangs, 0, __ATOMIC_SEQ_CST);
    EVENTUALLY(__atomic_load_n(&closing_count, __ATOMIC_SEQ_CST) == 0);
    test_server_stop(&server);
}

/* nng's thread for timeouts may use the socket of an aio until the aio is freed. So the agent frees
 * the aio first. */
TEST(a_socket_is_closed_after_its_aio_is_freed) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    freed_count = freed_before_close = 0;
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    assert_int_equal(freed_count, 2);        /* of the leases and of the permits */
    assert_int_equal(freed_before_close, 2); /* there was no permit, so only one socket */
    test_server_stop(&server);
}

/* A stop gives up when it has waited for a server for a second. A shorter stop did not give up. */
#define SHORT_STOP (DOORMAN_SECOND - 10 * MILLISECOND)

/* Stops an agent. Returns false if the stop may have given up before the leases were released, for
 * example on a machine that stands still for a second. */
static bool stops_in_time(doorman_agent *agent) {
    doorman_time from = doorman_clock();
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    return doorman_clock() - from <= SHORT_STOP;
}

/* Lets two agents get and release leases. Returns whether both agents stopped in time. */
static bool two_agents_hold_and_release(void) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *a = start(server.url), *b = start(server.url);
    doorman_resource *resource = open_as(a, "db", 80, DOORMAN_PESSIMISTIC, 0);
    assert_ptr_equal(open_as(a, "db", 80, DOORMAN_PESSIMISTIC, 0), resource);
    open_as(b, "db", 80, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(test_server_read(&server).holder_count == 2 && test_server_read(&server).has == 90);
    if (!stops_in_time(b)) {
        doorman_agent_stop(a);
        test_server_stop(&server);
        return false;
    }
    EVENTUALLY(test_server_read(&server).holder_count == 1);
    EVENTUALLY(read_info(resource).capacity == 80);
    doorman_resource_close(resource);
    assert_true(leased(resource));
    doorman_resource_close(resource);
    EVENTUALLY(test_server_read(&server).holder_count == 0);
    open_as(a, "db", 80, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(test_server_read(&server).has == 80);
    bool in_time = stops_in_time(a);
    if (in_time) {
        EVENTUALLY(test_server_read(&server).holder_count == 0);
        assert_true(test_server_read(&server).has == 0 && test_server_read(&server).committed == 0);
    }
    test_server_stop(&server);
    return in_time;
}

/* K5: opening a resource twice gives one resource. The lease of a resource that is closed, or whose
 * agent stops, is released at the server. */
TEST(two_agents_are_two_holders_and_release_when_they_stop) {
    bool in_time = false;
    for (int i = 0; i < TRIES && !in_time; i++) in_time = two_agents_hold_and_release();
    assert_true(in_time);
}

TEST(a_default_id_is_valid_and_names_the_process) {
    char id[DOORMAN_ID_BYTES_MAX + 1], tail[64];
    doorman__agent_default_id(id, 0x9f0c2e51a7b38d64);
    assert_true(doorman__id_valid(id));
    snprintf(tail, sizeof tail, ":%ld:9f0c2e51a7b38d64", (long)getpid());
    assert_string_equal(id + strlen(id) - strlen(tail), tail);
}

/* Containers can have the same host name and process id, so the random parts must differ. */
TEST(default_ids_differ_within_a_process) {
    enum { COUNT = 10 };
    static char ids[COUNT][DOORMAN_ID_BYTES_MAX + 1];
    for (int i = 0; i < COUNT; i++) {
        doorman_agent_info info;
        doorman_agent *agent = start("inproc://nobody");
        assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
        assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
        assert_true(strlen(info.client_id) > 16);
        snprintf(ids[i], sizeof ids[i], "%s", info.client_id + strlen(info.client_id) - 16);
        for (int k = 0; k < i; k++) assert_string_not_equal(ids[i], ids[k]);
    }
}

static doorman_agent_info info_of(doorman_agent *agent) {
    doorman_agent_info info;
    assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
    return info;
}

TEST(an_agent_reports_its_state) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    const char *addresses[] = {"inproc://nobody", server.url};
    doorman_agent *agent = NULL;
    doorman_client_options options = {.client_id = "me",
                                      .addresses = addresses,
                                      .address_count = 2,
                                      .request_timeout = 10 * TEST_TIMEOUT};
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    doorman_agent_info info = info_of(agent);
    assert_string_equal(info.client_id, "me");
    assert_string_equal(info.address, addresses[0]);
    assert_string_equal(info.last_error.text, "");
    assert_false(info.connected || info.failing || info.last_error_at);
    assert_true(info.next_refresh == DOORMAN_NEVER);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(info_of(agent).failing || leased(resource));
    EVENTUALLY(leased(resource));
    EVENTUALLY((info = info_of(agent)).next_refresh < DOORMAN_NEVER);
    assert_string_equal(info.address, server.url);
    assert_true(info.connected && !info.failing && info.last_error_at > 0);
    assert_non_null(strstr(info.last_error.text, "inproc://nobody: "));
    test_server_stop(&server);
    EVENTUALLY(!info_of(agent).connected && info_of(agent).failing);
    assert_true(info_of(agent).last_error_at > info.last_error_at);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
}

/* nng keeps trying to connect, and the agent says why that fails. */
TEST(an_agent_says_why_it_cannot_connect) {
    static const struct {
        const char *address, *why;
    } cases[] = {
        {"inproc://nobody", "inproc://nobody: cannot connect: Connection refused"},
        {"tcp://127.0.0.1:1", "tcp://127.0.0.1:1: cannot connect: Connection refused"},
        {"ipc:///tmp/doorman-nobody", "ipc:///tmp/doorman-nobody: cannot connect: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        doorman_client_options options = {.addresses = &cases[i].address,
                                          .address_count = 1,
                                          .request_timeout = 300 * MILLISECOND};
        doorman_agent *agent = NULL;
        assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
        (void)open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
        EVENTUALLY(info_of(agent).failing && strstr(info_of(agent).last_error.text, cases[i].why));
        assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    }
}

/* A refused connection is reported while the request still waits for a connection. When a server
 * comes, the same request gets its response. */
TEST(an_agent_reports_a_refused_connection_before_the_request_times_out) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_bind(&server);
    doorman_time from = doorman_clock();
    doorman_agent *agent = start_with(server.url, 10 * TEST_TIMEOUT);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(info_of(agent).failing);
    doorman_agent_info info = info_of(agent);
    assert_false(info.connected);
    assert_non_null(strstr(info.last_error.text, ": cannot connect: "));
    assert_true(info.last_error_at >= from && info.last_error_at <= doorman_clock());
    test_server_start(&server);
    EVENTUALLY(leased(resource));
    assert_true(read_info(resource).refresh_failures == 0);
    assert_true(info_of(agent).connected && !info_of(agent).failing);
    test_server_stop(&server);
    EVENTUALLY(info_of(agent).failing);
    assert_true(info_of(agent).last_error_at > info.last_error_at);
    test_server_start(&server);
    EVENTUALLY(!info_of(agent).failing);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    test_server_stop(&server);
}

TEST(an_agent_reports_that_there_is_no_master) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    pthread_mutex_lock(&server.mutex);
    doorman_mastership lost = {.address = NULL};
    assert_int_equal(doorman_server_set_master(server.server, &lost, doorman_clock()), DOORMAN_OK);
    pthread_mutex_unlock(&server.mutex);
    doorman_agent *agent = start(server.url);
    (void)open_as(agent, "db", 50, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(info_of(agent).failing &&
               strstr(info_of(agent).last_error.text, "it knows no master"));
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    test_server_stop(&server);
}

/* ---- from within on_change ---- */

typedef struct change_callback {
    doorman_agent *agent;
    doorman_resource *resource;
    int call_count, wrong_count; /* atomic */
    double capacity;
} change_callback;

static void call_everything(void *context, const doorman_resource_info *info) {
    change_callback *self = (change_callback *)context;
    doorman_resource_options options = {.resource_id = "other"};
    doorman_resource *other = NULL;
    doorman_resource_info read = {.resource_id = "as before"};
    doorman_agent_info state = {.client_id = "as before"};
    doorman_error error = {0};
    doorman_resource *resource = self->resource;
    doorman_agent *agent = self->agent;
    self->capacity = info->capacity;
    bool invalid = strcmp(info->resource_id, "db") != 0;
    invalid |= doorman_resource_open(&other, agent, &options, &error) != DOORMAN_DEADLOCK || other;
    invalid |= !strstr(error.text, "on_change");
    invalid |= doorman_agent_read_info(agent, &state) != DOORMAN_DEADLOCK;
    invalid |= state.client_id[0] != 0;
    invalid |= doorman_agent_kill_switch(agent, true) != DOORMAN_DEADLOCK;
    invalid |= doorman_agent_shutdown(agent) != DOORMAN_DEADLOCK;
    invalid |= doorman_agent_stop(agent) != DOORMAN_DEADLOCK;
    if (resource) {
        invalid |= doorman_resource_read(resource, &read) != DOORMAN_DEADLOCK;
        invalid |= read.resource_id != NULL;
        invalid |= doorman_resource_set_wants(resource, 1) != DOORMAN_DEADLOCK;
        invalid |= doorman_resource_wait(resource, 1, 0) != DOORMAN_DEADLOCK;
        invalid |= doorman_resource_wait(resource, 1, DOORMAN_NEVER) != DOORMAN_DEADLOCK;
        invalid |= doorman_resource_close(resource) != DOORMAN_DEADLOCK;
        doorman_result result;
        invalid |= doorman_resource_delay(resource, 1) > DOORMAN_SECOND;
        if (doorman_resource_try(resource, 1, &result) == DOORMAN_ALLOWED) {
            invalid |= doorman_resource_release(resource, 1) != DOORMAN_OK;
        } else {
            invalid |= info->capacity >= 1;
        }
    }
    __atomic_fetch_add(&self->wrong_count, invalid, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&self->call_count, 1, __ATOMIC_SEQ_CST);
}

/* on_change is called from within a call, and then from the agent's thread. */
TEST(calls_inside_on_change_are_refused_and_do_nothing) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    change_callback self = {.agent = start(server.url)};
    doorman_resource_options options = {.resource_id = "db",
                                        .wants = 50,
                                        .kind = DOORMAN_GAUGE,
                                        .has_safe_capacity = true,
                                        .safe_capacity = 7,
                                        .on_change = call_everything,
                                        .context = &self};
    doorman_resource *resource = NULL;
    assert_int_equal(doorman_resource_open(&resource, self.agent, &options, NULL), DOORMAN_OK);
    assert_true(__atomic_load_n(&self.call_count, __ATOMIC_SEQ_CST) >= 1);
    EVENTUALLY(leased(resource));
    pthread_mutex_lock(&self.agent->mutex);
    self.resource = resource;
    assert_true(self.capacity == 50);
    pthread_mutex_unlock(&self.agent->mutex);
    int before = __atomic_load_n(&self.call_count, __ATOMIC_SEQ_CST);
    assert_int_equal(doorman_resource_set_wants(resource, 20), DOORMAN_OK);
    EVENTUALLY(__atomic_load_n(&self.call_count, __ATOMIC_SEQ_CST) > before);
    assert_int_equal(self.wrong_count, 0);
    EVENTUALLY(read_info(resource).capacity == 20);
    assert_true(read_info(resource).wants == 20);
    assert_true(read_info(resource).in_use == 0);
    assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(self.agent), DOORMAN_OK);
    test_server_stop(&server);
}

/* L4: a call that waits for an idle gauge makes the agent request a lease at once. Otherwise each
 * call would wait for 0.1 s on average, until the agent next checks the wants. */
TEST(a_wait_for_an_idle_gauge_asks_at_once) {
    enum { CALLS = 8 };
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    bool fast = false;
    for (int round = 0; round < 20 && !fast; round++) {
        doorman_agent *agent = start(server.url);
        doorman_resource *gauge = open_gauge(agent, "db", 0, DOORMAN_PESSIMISTIC, 0);
        EVENTUALLY(leased(gauge));
        assert_true(read_info(gauge).capacity == 0);
        doorman_time longest = 0;
        for (int i = 0; i < CALLS; i++) { /* each call needs one more unit */
            doorman_time from = doorman_clock();
            assert_int_equal(doorman_resource_wait(gauge, 1, TEST_TIMEOUT), DOORMAN_OK);
            doorman_time took = doorman_clock() - from;
            if (took > longest) longest = took;
        }
        fast = longest < DOORMAN_SECOND / 20;
        for (int i = 0; i < CALLS; i++) (void)doorman_resource_release(gauge, 1);
        assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    }
    assert_true(fast);
    test_server_stop(&server);
}

/* ---- an agent stops ---- */

/* Starts an agent with this address, opens a resource, and lets `prepare` bring the agent into a
 * state. Then stops the agent. Returns how long the stop takes. */
static doorman_time time_of_stop(const char *url, doorman_resource_kind kind,
                                 void (*prepare)(doorman_agent *agent,
                                                 doorman_resource *resource)) {
    doorman_agent *agent = start_with(url, 10 * TEST_TIMEOUT);
    prepare(agent, open_kind(agent, kind, "db", 50, DOORMAN_PESSIMISTIC, 0));
    doorman_time from = doorman_clock();
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    return doorman_clock() - from;
}

static bool is_asking(doorman_agent *agent) {
    pthread_mutex_lock(&agent->mutex);
    bool asks = agent->client->upstream.state == DOORMAN__REQUESTED;
    pthread_mutex_unlock(&agent->mutex);
    return asks;
}

static void until_it_asks(doorman_agent *agent, doorman_resource *resource) {
    (void)resource;
    EVENTUALLY(is_asking(agent));
}

static void until_it_cannot_connect(doorman_agent *agent, doorman_resource *resource) {
    (void)resource;
    EVENTUALLY(info_of(agent).failing);
}

static void until_it_is_leased(doorman_agent *agent, doorman_resource *resource) {
    (void)agent;
    EVENTUALLY(leased(resource));
}

static void until_units_are_in_use(doorman_agent *agent, doorman_resource *resource) {
    (void)agent;
    assert_int_equal(doorman_resource_wait(resource, 3, TEST_TIMEOUT), DOORMAN_OK);
}

TEST(a_stop_without_a_server_takes_no_time) {
    char url[64];
    unused_address(url);
    doorman_time least = TEST_TIMEOUT;
    for (int i = 0; i < TRIES && least > SHORT_STOP; i++) {
        least = doorman__earlier(least, time_of_stop(url, DOORMAN_RATE, until_it_asks));
    }
    assert_true(least <= SHORT_STOP);
    least = TEST_TIMEOUT;
    for (int i = 0; i < TRIES && least > SHORT_STOP; i++) {
        least = doorman__earlier(least, time_of_stop(url, DOORMAN_RATE, until_it_cannot_connect));
    }
    assert_true(least <= SHORT_STOP);
}

/* A lease cannot be released while units are in use, so the stop does not wait for a release. */
TEST(a_stop_with_units_in_use_takes_no_time) {
    test_server server = {.capacity = 10000, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_time least = TEST_TIMEOUT;
    for (int i = 0; i < TRIES && least > SHORT_STOP; i++) {
        doorman_time took = time_of_stop(server.url, DOORMAN_GAUGE, until_units_are_in_use);
        least = doorman__earlier(least, took);
    }
    assert_true(least <= SHORT_STOP);
    assert_true(test_server_read(&server).has > 0);
    test_server_stop(&server);
}

static test_server *server_that_goes;

static void until_the_server_has_gone(doorman_agent *agent, doorman_resource *resource) {
    EVENTUALLY(leased(resource));
    test_server_stop(server_that_goes);
    EVENTUALLY(!info_of(agent).connected);
}

TEST(a_lease_without_its_server_does_not_delay_a_stop_for_long) {
    test_server server = {
        .capacity = 90, .lease_length = 10 * TEST_TIMEOUT, .refresh_interval = 10 * TEST_TIMEOUT};
    server_that_goes = &server;
    test_server_bind(&server);
    doorman_time least = TEST_TIMEOUT;
    for (int i = 0; i < TRIES && least > SHORT_STOP; i++) {
        test_server_start(&server);
        doorman_time took = time_of_stop(server.url, DOORMAN_RATE, until_the_server_has_gone);
        least = doorman__earlier(least, took);
    }
    assert_true(least <= SHORT_STOP);
}

/* The response to the first request may grant a lease, so a stop waits for this response. */
TEST(a_stop_releases_a_lease_that_is_granted_meanwhile) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    int in_time = 0;
    for (int i = 0; i < 2 * TRIES; i++) {
        if (time_of_stop(server.url, DOORMAN_RATE, i % 2 ? until_it_is_leased : until_it_asks) <=
            SHORT_STOP) {
            in_time++;
        } else { /* the stop gave up, so start with an empty lease table */
            test_server_stop(&server);
            test_server_start(&server);
        }
    }
    assert_true(in_time > 0);
    EVENTUALLY(test_server_read(&server).holder_count == 0);
    test_server_stop(&server);
}

/* ---- two steps to stop ---- */

typedef struct worker {
    doorman_agent *agent;
    doorman_resource *resource;
    bool is_first; /* the first of the threads that open and close resources */
    int done;      /* atomic */
    pthread_t thread;
} worker;

static void *worker_main(void *context) {
    worker *self = (worker *)context;
    doorman_status status = DOORMAN_OK;
    while (status == DOORMAN_OK) {
        status = doorman_resource_wait(self->resource, 1, DOORMAN_NEVER);
        if (status == DOORMAN_OK && is_gauge(self->resource)) {
            status = doorman_resource_release(self->resource, 1);
        }
        if (status == DOORMAN_OK) __atomic_fetch_add(&self->done, 1, __ATOMIC_SEQ_CST);
    }
    return (void *)(uintptr_t)status;
}

static void *shutdown_main(void *agent) {
    return (void *)(uintptr_t)doorman_agent_shutdown((doorman_agent *)agent);
}

/* The workers follow the pattern in the comment of doorman_agent_shutdown. Several threads shut the
 * agent down at once. */
TEST(shutdown_ends_endless_waits_without_a_race) {
    enum { WORKERS = 8, SHUTDOWN_THREADS = 3, ROUNDS = 5 };
    for (int round = 0; round < ROUNDS; round++) {
        doorman_agent *agent = start("inproc://nobody");
        doorman_resource *busy = open_as(agent, "busy", 2, DOORMAN_SAFE, 3000);
        doorman_resource *pool = open_gauge(agent, "pool", 2, DOORMAN_SAFE, 3000);
        doorman_resource *none = open_as(agent, "none", 2, DOORMAN_PESSIMISTIC, 0);
        worker workers[WORKERS];
        pthread_t shutdown_threads[SHUTDOWN_THREADS];
        void *result = NULL;
        for (int i = 0; i < WORKERS; i++) {
            doorman_resource *used = i % 2 == 0 ? pool : busy;
            workers[i] = (worker){.agent = agent, .resource = i % 4 == 3 ? none : used};
            assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            EVENTUALLY(__atomic_load_n(&workers[i].done, __ATOMIC_SEQ_CST) > 20);
        }
        for (int i = 0; i < SHUTDOWN_THREADS; i++) {
            assert_int_equal(pthread_create(&shutdown_threads[i], NULL, shutdown_main, agent), 0);
        }
        for (int i = 0; i < SHUTDOWN_THREADS; i++) {
            pthread_join(shutdown_threads[i], &result);
            assert_true((uintptr_t)result == DOORMAN_OK);
        }
        for (int i = 0; i < WORKERS; i++) {
            pthread_join(workers[i].thread, &result);
            assert_true((uintptr_t)result == DOORMAN_UNAVAILABLE);
        }
        assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    }
}

TEST(an_agent_that_is_shut_down_accepts_releases_and_grants_nothing) {
    doorman_agent *agent = start("inproc://nobody");
    doorman_resource *resource = open_gauge(agent, "db", 50, DOORMAN_SAFE, 50);
    doorman_resource *rate = open_as(agent, "rate", 50, DOORMAN_SAFE, 50);
    assert_int_equal(doorman_resource_wait(resource, 5, 0), DOORMAN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_agent_shutdown(agent), DOORMAN_OK);
        doorman_resource_options options = {.resource_id = "other"};
        doorman_resource *other = NULL;
        doorman_error error = {0};
        assert_int_equal(doorman_resource_open(&other, agent, &options, &error),
                         DOORMAN_UNAVAILABLE);
        assert_null(other);
        assert_string_equal(error.text, "the agent is shut down");
        assert_int_equal(doorman_resource_wait(resource, 1, 0), DOORMAN_UNAVAILABLE);
        assert_int_equal(doorman_resource_wait(rate, 1, 0), DOORMAN_UNAVAILABLE);
        assert_int_equal(doorman_resource_wait(resource, 1, DOORMAN_NEVER), DOORMAN_UNAVAILABLE);
        assert_int_equal(doorman_resource_set_wants(resource, 5), DOORMAN_OK);
        assert_int_equal(doorman_agent_kill_switch(agent, false), DOORMAN_OK);
    }
    assert_int_equal(doorman_resource_release(resource, 5), DOORMAN_OK);
    assert_true(read_info(resource).in_use == 0);
    assert_int_equal(doorman_resource_close(resource), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
}

/* ---- fork ---- */

static int child_limiters(doorman_resource *resource) {
    int number = 0;
    doorman_result result = {.retry_after = 0};
    CHECK(doorman_resource_try(resource, 1, NULL) == DOORMAN_REFUSED);
    CHECK(doorman_resource_try(resource, 1, &result) == DOORMAN_REFUSED);
    CHECK(result.retry_after == DOORMAN_NEVER);
    CHECK(doorman_resource_delay(resource, 1) == DOORMAN_NEVER);
    doorman_time far = doorman_clock() + DOORMAN_DURATION_MAX; /* for ever */
    CHECK(doorman_client_try(resource->own, 1, &result, far) == DOORMAN_REFUSED);
    CHECK(result.retry_after == DOORMAN_NEVER);
    return 0;
}

static int child_calls(doorman_agent *agent, doorman_resource *resource) {
    int number = 20;
    doorman_resource_options options = {.resource_id = "db"};
    doorman_resource *other = NULL;
    doorman_resource_info read;
    doorman_agent_info info;
    doorman_error error = {0};
    CHECK(doorman_resource_open(&other, agent, &options, &error) == DOORMAN_UNAVAILABLE && !other);
    CHECK(strstr(error.text, "parent process"));
    CHECK(doorman_resource_read(resource, &read) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_agent_read_info(agent, &info) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_resource_set_wants(resource, 1) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_agent_kill_switch(agent, true) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_resource_wait(resource, 1, 0) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_resource_wait(resource, 1, DOORMAN_NEVER) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_resource_release(resource, 1) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_resource_close(resource) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_agent_shutdown(agent) == DOORMAN_UNAVAILABLE);
    CHECK(doorman_agent_stop(agent) == DOORMAN_UNAVAILABLE);
    const char *addresses[] = {"inproc://nobody"};
    doorman_client_options own = {.addresses = addresses, .address_count = 1};
    doorman_agent *second = NULL;
    doorman_transport *transport = NULL;
    doorman_transport_options transport_options = agent->transport->options;
    CHECK(doorman_agent_start(&second, &own, &error) == DOORMAN_UNAVAILABLE && !second);
    CHECK(strstr(error.text, "before the fork"));
    CHECK(doorman_transport_create(&transport, &transport_options) == DOORMAN_UNAVAILABLE &&
          !transport);
    return 0;
}

static int child_checks(doorman_agent *agent, doorman_resource *rate, doorman_resource *gauge,
                        bool grandchild) {
    (void)alarm(180);
    int number = child_limiters(rate);
    if (!number) number = child_limiters(gauge);
    if (!number) number = child_calls(agent, gauge);
    if (number || !grandchild) return number;
    int result = 0;
    pid_t child = fork();
    if (child == 0) _exit(child_checks(agent, rate, gauge, false));
    if (child < 0 || waitpid(child, &result, 0) != child) return 100;
    return WIFEXITED(result) ? WEXITSTATUS(result) : 101;
}

/* Children are forked while the fallback, a lease, shadow mode or the kill switch allows units, and
 * then while a thread waits. */
TEST(after_a_fork_only_the_parent_can_use_the_agent) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_SAFE, DOORMAN_UNLIMITED);
    doorman_resource *gauge = open_gauge(agent, "gauge", 50, DOORMAN_SAFE, DOORMAN_UNLIMITED);
    for (int how = 0; how < 4; how++) {
        if (how == 1) EVENTUALLY(leased(resource) && leased(gauge));
        if (how == 2) doorman__usage_bypass(&resource->own->rate.usage, DOORMAN__SHADOW, true);
        if (how == 2) doorman__usage_bypass(&gauge->own->gauge.usage, DOORMAN__SHADOW, true);
        if (how == 3) assert_int_equal(doorman_agent_kill_switch(agent, true), DOORMAN_OK);
        pid_t child = fork();
        if (child == 0) _exit(child_checks(agent, resource, gauge, true));
        assert_int_equal(child_result(child), 0);
        assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
    }
    assert_int_equal(doorman_agent_kill_switch(agent, false), DOORMAN_OK);
    doorman__usage_bypass(&gauge->own->gauge.usage, DOORMAN__SHADOW, false);
    assert_int_equal(doorman_resource_wait(gauge, 50, TEST_TIMEOUT), DOORMAN_OK);
    async_wait waiting = {.agent = agent, .resource = gauge, .n = 1};
    waiting.timeout = DOORMAN_NEVER;
    async_wait_start(&waiting);
    pid_t child = fork();
    if (child == 0) _exit(child_checks(agent, resource, gauge, false));
    assert_int_equal(child_result(child), 0);
    assert_int_equal(doorman_resource_release(gauge, 50), DOORMAN_OK);
    assert_int_equal(async_wait_end(&waiting), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    child = fork(); /* nng's threads are still there */
    if (child == 0) {
        const char *addresses[] = {"inproc://nobody"};
        doorman_client_options options = {.addresses = addresses, .address_count = 1};
        _exit(doorman_agent_start(&agent, &options, NULL) == DOORMAN_UNAVAILABLE ? 0 : 1);
    }
    assert_int_equal(child_result(child), 0);
    test_server_stop(&server);
}

static void fork_on_change(void *context, const doorman_resource_info *info) {
    change_callback *self = (change_callback *)context;
    (void)info;
    if (!self->resource || self->call_count++) return;
    pid_t child = fork();
    if (child == 0) _exit(child_checks(self->agent, self->resource, self->resource, false));
    self->wrong_count = child_result(child);
}

TEST(on_change_can_fork) {
    change_callback self = {.agent = start("inproc://nobody")};
    doorman_resource_options options = {.resource_id = "db",
                                        .wants = 50,
                                        .fallback = DOORMAN_OPTIMISTIC,
                                        .on_change = fork_on_change,
                                        .context = &self};
    assert_int_equal(doorman_resource_open(&self.resource, self.agent, &options, NULL), DOORMAN_OK);
    self.call_count = 0;
    assert_int_equal(doorman_resource_set_wants(self.resource, 60), DOORMAN_OK);
    assert_int_equal(self.call_count, 1);
    assert_int_equal(self.wrong_count, 0);
    assert_true(read_info(self.resource).capacity == 60);
    assert_int_equal(doorman_agent_stop(self.agent), DOORMAN_OK);
}

/* Opens and closes resources all the time, so that some forks come in the middle of a change. */
static void *load_main(void *context) {
    worker *self = (worker *)context;
    for (int i = 0; !__atomic_load_n(&self->done, __ATOMIC_SEQ_CST); i++) {
        char id[32];
        snprintf(id, sizeof id, "%s-%d", self->is_first ? "a" : "b", i % 10);
        doorman_resource *resource = open_as(self->agent, id, 5, DOORMAN_SAFE, 5);
        (void)doorman_resource_wait(resource, 1, MILLISECOND);
        (void)doorman_resource_set_wants(resource, i % 7);
        assert_int_equal(doorman_resource_close(resource), DOORMAN_OK);
    }
    return NULL;
}

TEST(a_fork_at_any_moment_leaves_both_processes_working) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    doorman_agent *agent = start(server.url), *other = start("inproc://nobody");
    doorman_resource *resource = open_as(agent, "db", 50, DOORMAN_SAFE, DOORMAN_UNLIMITED);
    doorman_resource *gauge = open_gauge(agent, "gauge", 50, DOORMAN_SAFE, DOORMAN_UNLIMITED);
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){.agent = i < 2 ? agent : other, .is_first = i % 2};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, load_main, &workers[i]), 0);
    }
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) _exit(child_checks(agent, resource, gauge, false));
        assert_int_equal(child_result(child), 0);
    }
    for (int i = 0; i < 4; i++) {
        __atomic_store_n(&workers[i].done, 1, __ATOMIC_SEQ_CST);
        pthread_join(workers[i].thread, NULL);
    }
    assert_int_equal(doorman_agent_stop(other), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    test_server_stop(&server);
}

/* Locks the mutex of the permits and adds a lane, like the thread of the permits. */
static void *add_lane(void *context) {
    doorman__agent_permits *permits = (doorman__agent_permits *)context;
    pthread_mutex_lock(&permits->mutex);
    doorman__agent_permits_add_lane(permits);
    pthread_mutex_unlock(&permits->mutex);
    return NULL;
}

/* Returns the number of lanes. Returns 0 while another thread has locked the mutex. */
static size_t lane_count(doorman__agent_permits *permits) {
    if (pthread_mutex_trylock(&permits->mutex) != 0) return 0;
    size_t count = permits->transport_count - 1; /* without the transport of the client */
    pthread_mutex_unlock(&permits->mutex);
    return count;
}

/* A fork locks the mutex of the process, and then waits for the mutex of the agent. A stop locks
 * the mutex of the agent, and then waits for the mutex of the permits. So a thread that has locked
 * the mutex of the permits must not wait for the other two mutexes. */
TEST(a_lane_is_added_while_a_thread_forks) {
    test_server server = {.capacity = 90};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    pthread_t thread;
    pthread_mutex_lock(&doorman__process.mutex);
    assert_int_equal(pthread_create(&thread, NULL, add_lane, agent->permits), 0);
    EVENTUALLY(lane_count(agent->permits) == 1);
    pthread_mutex_unlock(&doorman__process.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    test_server_stop(&server);
}

/* K7. */
TEST(stop_and_close_end_waits) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *a = open_as(agent, "a", 10, DOORMAN_PESSIMISTIC, 0);
    doorman_resource *b = open_gauge(agent, "b", 10, DOORMAN_PESSIMISTIC, 0);
    assert_ptr_equal(open_as(agent, "a", 10, DOORMAN_PESSIMISTIC, 0), a);
    async_wait async_waits[6];
    for (int i = 0; i < 6; i++) {
        async_waits[i] = (async_wait){.agent = agent, .resource = i % 2 ? a : b, .n = 1};
        async_waits[i].timeout = DOORMAN_NEVER;
        async_wait_start(&async_waits[i]);
    }
    doorman_resource_close(a);
    assert_int_equal(waiters(agent), 6);
    doorman_resource_close(a);
    for (int i = 1; i < 6; i += 2)
        assert_int_equal(async_wait_end(&async_waits[i]), DOORMAN_UNAVAILABLE);
    assert_int_equal(waiters(agent), 3);
    doorman_agent_stop(agent);
    for (int i = 0; i < 6; i += 2)
        assert_int_equal(async_wait_end(&async_waits[i]), DOORMAN_UNAVAILABLE);
}

/* L2: waiters are served in the order of their arrival, even if a later waiter would fit. A waiter
 * that gives up does not delay the others. Only a release wakes the next waiter, because the
 * agent's thread sleeps until the lease must be renewed. */
TEST(waiters_are_served_in_order_of_arrival) {
    enum { COUNT = 10, IMPATIENT = 3 };
    test_server server = {
        .capacity = 4, .lease_length = 10 * TEST_TIMEOUT, .refresh_interval = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_gauge(agent, "db", 4, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    async_wait async_waits[COUNT];
    int order_counter = 0;
    assert_int_equal(doorman_resource_wait(resource, 3, 0), DOORMAN_OK);
    for (int i = 0; i < COUNT; i++) {
        async_waits[i] = (async_wait){.agent = agent, .resource = resource, .n = 4};
        async_waits[i].n = i == IMPATIENT ? 1 : 4;
        async_waits[i].timeout = i == IMPATIENT ? 100 * MILLISECOND : TEST_TIMEOUT;
        async_waits[i].order_counter = i == IMPATIENT ? NULL : &order_counter;
        async_wait_start(&async_waits[i]);
        if (i == IMPATIENT) assert_int_equal(async_wait_end(&async_waits[i]), DOORMAN_TIMED_OUT);
    }
    assert_int_equal(doorman_resource_wait(resource, 1, 0), DOORMAN_TIMED_OUT);
    doorman_resource_release(resource, 3);
    for (int i = 0; i < COUNT; i++) {
        if (i == IMPATIENT) continue;
        async_wait_end_woken(&async_waits[i]);
        assert_int_equal(async_waits[i].order, i < IMPATIENT ? i : i - 1);
    }
    assert_true(read_info(resource).in_use == 0);
    assert_true(doorman__queue_is_empty(&resource->queue));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* Returns whether three waiters for a rate were granted in the order of their arrival. Each thread
 * counts its own grant. So it must count before the next grant, which comes when the rate has saved
 * two more units. */
static bool waiters_served_in_order(double rate) {
    bool in_order = true;
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *resource = open_as(agent, "db", 0, DOORMAN_OPTIMISTIC, 0);
    assert_int_equal(doorman_resource_set_wants(resource, 0), DOORMAN_OK);
    async_wait async_waits[4];
    int order_counter = 0;
    for (int i = 0; i < 4; i++) {
        async_waits[i] = (async_wait){
            .agent = agent, .resource = resource, .n = 2, .order_counter = &order_counter};
        async_waits[i].timeout = i == 0 ? 200 * MILLISECOND : TEST_TIMEOUT;
        async_wait_start(&async_waits[i]);
    }
    assert_int_equal(async_wait_end(&async_waits[0]), DOORMAN_TIMED_OUT);
    assert_int_equal(doorman_resource_set_wants(resource, rate), DOORMAN_OK);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(async_wait_end(&async_waits[i]), DOORMAN_OK);
        in_order = in_order && async_waits[i].order == i;
    }
    doorman_agent_stop(agent);
    return in_order;
}

/* L2: waiters for a rate are served in order too. Time that passes lets the rate grant the next
 * waiter. Each further try gives the threads more time. */
TEST(waiters_for_a_rate_are_served_in_order_of_arrival) {
    bool in_order = false;
    for (int i = 0; i < TRIES && !in_order; i++) in_order = waiters_served_in_order(20.0 / (1 + i));
    assert_true(in_order);
}

/* Sleeps, and returns by how much longer than `duration` the sleep took. */
static doorman_time oversleep(doorman_time duration) {
    doorman_time from = doorman_clock();
    sleep_for(duration);
    return doorman_clock() - from - duration;
}

/* L2: a time-out is never early, and at most 2 ms late. A busy machine can delay some waits by
 * more, but not all 500, unless it also delays all sleeps. */
TEST(a_wait_ends_at_its_timeout) {
    enum { WAITS = 500 };
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    for (int gauge = 0; gauge < 2; gauge++) {
        doorman_resource *none = open_kind(agent, gauge ? DOORMAN_GAUGE : DOORMAN_RATE,
                                           gauge ? "gauge" : "rate", 1, DOORMAN_PESSIMISTIC, 0);
        doorman_time least = DOORMAN_NEVER, least_sleep = DOORMAN_NEVER;
        for (int i = 0; i < WAITS && least > 2 * MILLISECOND; i++) {
            doorman_time timeout = (1 + i % 10) * MILLISECOND, from = doorman_clock();
            assert_int_equal(doorman_resource_wait(none, 1, timeout), DOORMAN_TIMED_OUT);
            doorman_time late = doorman_clock() - from - timeout;
            assert_true(late >= 0);
            least = doorman__earlier(least, late);
            least_sleep = doorman__earlier(least_sleep, oversleep(timeout));
        }
        assert_true(least <= 2 * MILLISECOND + least_sleep);
    }
    doorman_agent_stop(agent);
}

/* L1: "a blocked waiter sees a new rate at once". At the old rate each of the 30 waiters would wait
 * for an hour. */
TEST(a_blocked_waiter_sees_a_new_rate) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *resource = open_as(agent, "db", 1, DOORMAN_OPTIMISTIC, 0);
    for (int i = 0; i < 30; i++) {
        async_wait waits = {.agent = agent, .resource = resource, .n = 1, .timeout = TEST_TIMEOUT};
        assert_int_equal(doorman_resource_set_wants(resource, 1.0 / 3600), DOORMAN_OK);
        async_wait_start(&waits);
        assert_int_equal(doorman_resource_set_wants(resource, 1000), DOORMAN_OK);
        async_wait_end_woken(&waits);
    }
    doorman_agent_stop(agent);
}

/* L1: a blocked waiter also sees the first lease at once. */
TEST(a_blocked_waiter_sees_the_first_lease) {
    test_server server = {.capacity = 100};
    test_server_bind(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *db = open_as(agent, "db", 100, DOORMAN_PESSIMISTIC, 0);
    doorman_resource *pool = open_gauge(agent, "pool", 100, DOORMAN_PESSIMISTIC, 0);
    async_wait rate = {.agent = agent, .resource = db, .n = 1, .timeout = TEST_TIMEOUT};
    async_wait gauge = {.agent = agent, .resource = pool, .n = 50};
    gauge.timeout = TEST_TIMEOUT;
    async_wait_start(&rate);
    async_wait_start(&gauge);
    test_server_start(&server);
    async_wait_end_woken(&rate);
    async_wait_end_woken(&gauge);
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* L4: wants follow arrivals, so each wait counts once as demand: as waiting while it waits, then as
 * allowed, or as refused if it gives up. */
TEST(every_wait_counts_once_as_demand) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *both[] = {open_as(agent, "rate", 5, DOORMAN_OPTIMISTIC, 0),
                                open_gauge(agent, "gauge", 5, DOORMAN_OPTIMISTIC, 0)};
    const doorman__usage *usages[] = {&both[0]->own->rate.usage, &both[1]->own->gauge.usage};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(doorman_resource_wait(both[0], 1, TEST_TIMEOUT), DOORMAN_OK);
    }
    assert_true(usages[0]->allowed == doorman__units(3) && usages[0]->refused == 0);
    async_wait waits[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_resource_set_wants(both[i], 0), DOORMAN_OK);
        assert_int_equal(doorman_resource_wait(both[i], 0.25, 0), DOORMAN_TIMED_OUT);
        assert_true(usages[i]->refused == doorman__units(0.25));
        waits[i] = (async_wait){.agent = agent, .resource = both[i], .n = 0.5};
        waits[i].timeout = DOORMAN_SECOND; /* enough for a busy machine to start the thread */
        async_wait_start(&waits[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(async_wait_end(&waits[i]), DOORMAN_TIMED_OUT);
        assert_true(usages[i]->refused == doorman__units(0.75));
        assert_true(doorman__queue_is_empty(&both[i]->queue));
        doorman_counts counts = read_info(both[i]).counts;
        assert_true(counts.refused >= 0.75 && counts.refused <= 0.75);
        assert_true(counts.waits >= 1 && counts.waited > 0);
        assert_true(i == 0 || counts.waits == 1); /* two calls on the gauge; one of them waited */
    }
    assert_true(usages[0]->allowed == doorman__units(3));
    doorman_agent_stop(agent);
}

/* L2: a waiter that times out is counted as refused before it leaves the queue. After that another
 * thread may close the resource. */
TEST(a_waiter_that_left_the_queue_does_not_use_the_resource) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *both[] = {open_as(agent, "rate", 1, DOORMAN_PESSIMISTIC, 0),
                                open_gauge(agent, "gauge", 1, DOORMAN_PESSIMISTIC, 0)};
    for (int i = 0; i < 2; i++) {
        doorman__waiter waiter = {.resource = both[i]->own, .queue = &both[i]->queue, .n = 0.5};
        const doorman__usage *usage = both[i]->own->usage;
        assert_int_equal(doorman__waiter_enqueue(agent, &waiter, doorman_clock() + MILLISECOND),
                         DOORMAN_TIMED_OUT);
        assert_true(usage->refused == doorman__units(0.5));
    }
    doorman_agent_stop(agent);
}

/* L4: a wait for more than the capacity can ever give also counts as demand, as a try does.
 * Otherwise wants that follow use would never grow so large that the wait is possible. */
TEST(an_impossible_wait_counts_as_demand) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *both[] = {open_as(agent, "rate", 5, DOORMAN_OPTIMISTIC, 0),
                                open_gauge(agent, "gauge", 5, DOORMAN_OPTIMISTIC, 0)};
    const double sizes[] = {1e9, 6}; /* it takes a rate of 5 longer than 208 days to save 1e9 */
    for (int i = 0; i < 4; i++) {
        double before = read_info(both[i % 2]).counts.refused, n = sizes[i % 2];
        assert_int_equal(doorman_resource_wait(both[i % 2], n, i < 2 ? 0 : TEST_TIMEOUT),
                         DOORMAN_RESOURCE_EXHAUSTED);
        assert_true(read_info(both[i % 2]).counts.refused >= before + n);
    }
    doorman_agent_stop(agent);
}

/* L2: a gauge counts in steps of 1/4096, rounded up, also for waiters. So 1/3 does not fit into a
 * capacity of 1/3, and the wait reports that. Two times 0.1 does not fit into 0.2001. Each wait
 * counts as demand only once. */
TEST(a_wait_for_a_gauge_uses_the_precision_of_the_gauge) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *third = open_gauge(agent, "third", 1.0 / 3, DOORMAN_OPTIMISTIC, 0);
    doorman_resource *fifth = open_gauge(agent, "fifth", 0.2001, DOORMAN_OPTIMISTIC, 0);
    assert_int_equal(doorman_resource_try(third, 1.0 / 3, NULL), DOORMAN_IMPOSSIBLE);
    assert_int_equal(doorman_resource_wait(third, 1.0 / 3, MILLISECOND),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_int_equal(doorman_resource_wait(fifth, 0.1, 0), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(fifth, 0.1, MILLISECOND), DOORMAN_TIMED_OUT);
    assert_true(fifth->own->gauge.usage.refused == doorman__units(0.1));
    doorman_resource_release(fifth, 0.1);
    doorman_agent_stop(agent);
}

/* L1: a rate saves up for a request of many units, even if its capacity never grows. */
TEST(a_wait_for_more_units_than_the_burst_ends) {
    doorman_agent *agent = start("inproc://nobody");
    doorman_time began = doorman_clock();
    doorman_resource *rate = open_as(agent, "rate", 0, DOORMAN_SAFE, 100);
    assert_int_equal(doorman_resource_wait(rate, 20, DOORMAN_NEVER), DOORMAN_OK);
    assert_int_equal(doorman_resource_wait(rate, 20, DOORMAN_NEVER), DOORMAN_OK);
    assert_true(doorman_clock() - began >= 380 * DOORMAN_SECOND / 1000); /* from 0 units */
    assert_int_equal(doorman_resource_wait(rate, 1, DOORMAN_NEVER), DOORMAN_OK);
    doorman_agent_stop(agent);
}

/* L2, L4: a waiting call counts as demand. If the lease in force is too small, the call waits for a
 * larger lease, which it gets if the server has the capacity. */
TEST(a_wait_for_many_units_waits_for_a_large_enough_lease) {
    test_server server = {.capacity = 1000, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 0, DOORMAN_SAFE, 0);
    doorman_resource *gauge = open_gauge(agent, "pool", 0, DOORMAN_SAFE, 0);
    EVENTUALLY(leased(resource));
    assert_true(read_info(resource).capacity <= 1);
    assert_int_equal(doorman_resource_wait(resource, 20, TEST_TIMEOUT), DOORMAN_OK);
    assert_true(read_info(resource).capacity >= 200);
    assert_int_equal(doorman_resource_wait(gauge, 900, TEST_TIMEOUT), DOORMAN_OK);
    assert_true(read_info(gauge).capacity >= 900);
    doorman_resource_release(gauge, 900);
    assert_int_equal(doorman_resource_wait(gauge, 1100, 300 * MILLISECOND),
                     DOORMAN_TIMED_OUT); /* the server has only 1000 */
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* L4: one caller that waits for unit after unit soon gets the whole of a free resource. Tests with
 * time as a variable check how soon. */
TEST(a_loop_of_waits_gets_all_of_a_free_resource) {
    test_server server = {.capacity = 500};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 0, DOORMAN_SAFE, 0);
    doorman_time deadline = doorman_clock() + TEST_TIMEOUT;
    double capacity = 0;
    while (capacity < 500 && doorman_clock() < deadline) {
        (void)doorman_resource_wait(resource, 1, 100 * MILLISECOND);
        capacity = read_info(resource).capacity;
    }
    assert_true(capacity >= 500);
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* An agent whose resources are idle, and whose server does not answer, uses little time of the
 * processor, because it wakes only a few times a second. */
TEST(an_idle_agent_with_many_resources_uses_little_time) {
    enum { RESOURCES = 2000 };
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    for (int i = 0; i < RESOURCES; i++) {
        char id[16];
        snprintf(id, sizeof id, "db/%d", i);
        (void)open_as(agent, id, 0, DOORMAN_OPTIMISTIC, 0);
    }
    sleep_for(500 * MILLISECOND);
    struct timespec before, after;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
    for (int i = 0; i < 4; i++) sleep_for(500 * MILLISECOND);
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
    double seconds =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    print_message("%d idle resources: %.1f ms of processor time in 2 s\n", RESOURCES,
                  1000 * seconds);
    assert_true(seconds < 0.5);
    doorman_agent_stop(agent);
}

/* AddressSanitizer reports an error in its own stack when a thread is cancelled. So the next test
 * is left out with AddressSanitizer. */
#if defined __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZED 1
#endif
#endif

#ifndef ADDRESS_SANITIZED
/* L2: a thread that is cancelled while it waits leaves the queue and releases the lock, and the
 * next waiter is served. */
TEST(a_cancelled_thread_leaves_the_queue) {
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *resource = open_gauge(agent, "db", 4, DOORMAN_OPTIMISTIC, 0);
    assert_int_equal(doorman_resource_wait(resource, 1, 0), DOORMAN_OK);
    async_wait first = {.agent = agent, .resource = resource, .n = 4};
    first.timeout = DOORMAN_NEVER;
    async_wait next = first;
    next.n = 3;
    async_wait_start(&first);
    async_wait_start(&next);
    pthread_cancel(first.thread);
    pthread_join(first.thread, NULL);
    EVENTUALLY(pthread_mutex_trylock(&agent->mutex) == 0);
    pthread_mutex_unlock(&agent->mutex);
    assert_int_equal(async_wait_end(&next), DOORMAN_OK);
    assert_int_equal(waiters(agent), 0);
    doorman_agent_stop(agent);
}
#endif

/* L5: while the kill switch is on, all waiters for rates and gauges return at once, and new calls
 * do not wait. */
TEST(the_kill_switch_ends_waits) {
    enum { COUNT = 8 };
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *resource = open_as(agent, "db", 100, DOORMAN_PESSIMISTIC, 0);
    doorman_resource *gauge = open_gauge(agent, "gauge", 100, DOORMAN_PESSIMISTIC, 0);
    async_wait async_waits[COUNT];
    for (int i = 0; i < COUNT; i++) {
        async_waits[i] =
            (async_wait){.agent = agent, .resource = i % 2 ? gauge : resource, .n = 1 + i};
        async_waits[i].timeout = TEST_TIMEOUT;
        async_wait_start(&async_waits[i]);
    }
    doorman_agent_kill_switch(agent, true);
    for (int i = 0; i < COUNT; i++) async_wait_end_woken(&async_waits[i]);
    assert_int_equal(doorman_resource_wait(resource, 1000, 0), DOORMAN_OK);
    assert_true(read_info(resource).counts.excess >= 1000);
    assert_true(read_info(gauge).in_use <= 0);
    doorman_agent_kill_switch(agent, false);
    assert_int_equal(doorman_resource_wait(resource, 1, 0), DOORMAN_TIMED_OUT);
    doorman_agent_stop(agent);
}

/* L5: the kill switch applies to all resources, also to resources that are opened later. Leases
 * stay in force. */
TEST(the_kill_switch_allows_everything_and_counts_it) {
    test_server server = {.capacity = 10, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *all[3] = {open_as(agent, "rate", 10, DOORMAN_PESSIMISTIC, 0),
                                open_gauge(agent, "gauge", 10, DOORMAN_PESSIMISTIC, 0)};
    EVENTUALLY(leased(all[0]) && leased(all[1]));
    assert_int_equal(doorman_agent_kill_switch(agent, true), DOORMAN_OK);
    all[2] = open_gauge(agent, "later", 5, DOORMAN_PESSIMISTIC, 0);
    for (int i = 0; i < 150; i++) {
        assert_int_equal(doorman_resource_try(all[i % 3], 1, NULL), DOORMAN_ALLOWED);
        assert_true(doorman_resource_delay(all[i % 3], 1000) == 0);
    }
    for (int i = 0; i < 3; i++) {
        doorman_counts counts = read_info(all[i]).counts;
        double sum = counts.allowed + counts.excess;
        assert_true(sum >= 50 && sum <= 50 && counts.refused <= 0);
    }
    assert_true(read_info(all[1]).counts.excess >= 40 && read_info(all[1]).counts.excess <= 40);
    assert_true(leased(all[0]));
    assert_int_equal(doorman_agent_kill_switch(agent, false), DOORMAN_OK);
    assert_int_equal(doorman_resource_try(all[1], 1, NULL), DOORMAN_REFUSED);
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* L2: a delay says what `retry_after` of a refusal would say, and takes nothing. The wants of the
 * rate are fixed. If they followed use, the agent could expect a larger lease, which would save the
 * 20 units sooner. The wait takes all that was saved, at a time between `before` and `after`. */
TEST(a_delay_says_when_to_try_again) {
    doorman_agent *agent = start("inproc://nobody");
    doorman_resource *rate = open_as(agent, "rate", 10, DOORMAN_SAFE, 10);
    doorman_resource *gauge = open_gauge(agent, "gauge", 0, DOORMAN_SAFE, 10);
    doorman_time before = doorman_clock();
    assert_int_equal(doorman_resource_wait(rate, 1, TEST_TIMEOUT), DOORMAN_OK);
    doorman_time after = doorman_clock(), tenth = DOORMAN_SECOND / 10;
    doorman_time delay = doorman_resource_delay(rate, 1);
    assert_true(delay <= tenth && delay >= tenth - (doorman_clock() - before));
    assert_true(doorman_resource_delay(rate, 0) == 0);
    doorman_time from = doorman_clock();
    delay = doorman_resource_delay(rate, 20); /* it takes two seconds to save them */
    assert_true(delay <= doorman__later(2 * DOORMAN_SECOND - (from - after), 0));
    assert_true(delay >= 2 * DOORMAN_SECOND - (doorman_clock() - before));
    assert_true(read_info(rate).counts.refused <= 0);
    assert_true(doorman_resource_delay(gauge, 10) == 0);
    assert_int_equal(doorman_resource_wait(gauge, 10, 0), DOORMAN_OK);
    delay = doorman_resource_delay(gauge, 1); /* until another lease is expected */
    assert_true(delay > 0 && delay < TEST_TIMEOUT);
    assert_int_equal(doorman_resource_release(gauge, 10), DOORMAN_OK);
    assert_true(doorman_resource_delay(gauge, 10) == 0);
    doorman_agent_stop(agent);
}

/* K5. */
TEST(a_resource_is_opened_as_one_kind) {
    doorman_agent *agent = start("inproc://nobody");
    doorman_resource *rate = open_as(agent, "db", 5, DOORMAN_SAFE, 10), *other = NULL;
    doorman_resource_options options = {.resource_id = "db", .kind = DOORMAN_GAUGE, .wants = 5};
    doorman_error error = {0};
    assert_int_equal(doorman_resource_open(&other, agent, &options, &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_null(other);
    assert_string_equal(error.text, "kind: 'db' is open as a RATE");
    assert_int_equal(read_info(rate).kind, DOORMAN_RATE);
    assert_int_equal(doorman_resource_release(rate, 1), DOORMAN_INVALID_ARGUMENT);
    doorman_agent_stop(agent);
}

/* L1, L2. */
TEST(waits_are_granted_at_the_rate_and_not_above) {
    enum { RATE = 2000, UNITS = 1000 };
    char url[64];
    unused_address(url);
    doorman_agent *agent = start(url);
    doorman_resource *resource = open_as(agent, "db", RATE, DOORMAN_OPTIMISTIC, 0);
    doorman_time from = doorman_clock();
    for (int i = 0; i < UNITS; i++) {
        assert_int_equal(doorman_resource_wait(resource, 1, TEST_TIMEOUT), DOORMAN_OK);
    }
    double elapsed = (double)(doorman_clock() - from) / 1e9;
    assert_true(UNITS <= RATE * (elapsed + 0.1) + 1);
    assert_true(elapsed < UNITS / 10); /* the waits do not sleep for 1 s each */
    assert_int_equal(doorman_resource_wait(resource, RATE / 10, TEST_TIMEOUT), DOORMAN_OK);
    doorman_agent_stop(agent);
}

#define START (1000 * DOORMAN_SECOND)

/* Takes one unit after the other, with time as a variable. The simulated machine wakes a sleeping
 * thread 50 to 90 us late. Once in `late_once_in` times it wakes the thread up to `late` later than
 * that. `passed_at` gets the time of each unit. */
static size_t simulate_busy_machine(doorman_client_resource *resource, double *passed_at,
                                    size_t max, doorman_time end, int late_once_in,
                                    doorman_time late) {
    uint64_t random = 1;
    size_t count = 0;
    doorman_time now = START, delay = 0;
    doorman__queue queue = {.units = 0};
    doorman__waiter waiter = {.resource = resource, .queue = &queue, .n = 1};
    while (now < end && count < max) {
        waiter.first = delay > 0;
        delay = 0;
        if (doorman__waiter_try(&waiter, &delay, false, now) == DOORMAN_OK) {
            passed_at[count++] = (double)now;
            now += 1000; /* and tries again at once */
            continue;
        }
        double more = 50e3 + 40e3 * doorman__random_unit(&random);
        bool stalled = late_once_in * doorman__random_unit(&random) < 1;
        if (stalled) more += (double)late * doorman__random_unit(&random);
        now += delay + (doorman_time)more;
    }
    return count;
}

static size_t most_in_10_ms(const double *passed_at, size_t count) {
    size_t most = 0, first = 0;
    for (size_t last = 0; last < count; last++) {
        while (passed_at[last] - passed_at[first] >= 10e6) first++;
        if (last + 1 - first > most) most = last + 1 - first;
    }
    return most;
}

/* Pacing: this is the example in the comment of >>nng. At 10,000 a second with a burst of 0.1 s, a
 * unit is paced 0.1 ms after the unit before it. The more units have been saved, the sooner the
 * next unit comes. */
TEST(the_pace_follows_what_is_saved) {
    static const struct {
        doorman_time saved; /* beyond the price of the unit */
        double faster;
    } cases[] = {{0, 1}, {2 * MILLISECOND, 1.03}, {10 * MILLISECOND, 2.8}, {12 * MILLISECOND, 12}};
    doorman__rate rate;
    doorman__rate_init(&rate, 10000, 0, 0, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        doorman_time now = START + cases[i].saved + MILLISECOND / 10;
        rate.paid_until = doorman__ticks(START);
        doorman__rate_view view = doorman__rate_look(&rate, 1, now);
        double paced = (double)(doorman__pace_due(START, &view) - START);
        assert_true(fabs(MILLISECOND / 10 / paced / cases[i].faster - 1) < 0.1);
    }
    doorman__rate_view view = doorman__rate_look(&rate, 1, START + 13 * MILLISECOND);
    assert_int_equal(doorman__pace_due(START, &view), START); /* more than an eighth: at once */
}

/* Pacing. The mean rate is within 0.1 % of the configured rate, apart from one burst. If a thread
 * sometimes wakes up to 2 ms late, no 10 ms have more than 1.05 times their share of the units at
 * 10,000 units a second, or more than 1.2 times at 1,000. If every sleep takes up to 80 ms longer,
 * the mean rate still holds. */
TEST(late_wakeups_cause_no_burst_and_lose_nothing) {
    enum { MAX = 400000, SECONDS = 30 };
    static double passed_at[MAX];
    static const struct {
        double rate, most;
        int late_once_in;
        doorman_time late;
    } machines[] = {{1000, 12, 1000, 2 * MILLISECOND},
                    {10000, 105, 10000, 2 * MILLISECOND},
                    {1000, INFINITY, 1, 80 * MILLISECOND},
                    {10000, INFINITY, 1, 80 * MILLISECOND}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const char *address = "tcp://127.0.0.1:1";
        doorman_client_options options = {
            .client_id = "client", .addresses = &address, .address_count = 1};
        doorman_resource_options fixed = {
            .resource_id = "db", .wants = machines[i].rate, .fallback = DOORMAN_OPTIMISTIC};
        doorman_client *client = NULL;
        doorman_client_resource *resource = NULL;
        assert_int_equal(doorman_client_create(&client, &options, NULL, START), DOORMAN_OK);
        assert_int_equal(doorman_client_open(&resource, client, &fixed, NULL, START), DOORMAN_OK);
        size_t count =
            simulate_busy_machine(resource, passed_at, MAX, START + SECONDS * DOORMAN_SECOND,
                                  machines[i].late_once_in, machines[i].late);
        double rate = (double)count / SECONDS / machines[i].rate, burst = 0.1 / SECONDS;
        size_t most = most_in_10_ms(passed_at, count);
        if (fabs(rate - 1) > 0.001 + burst || (double)most > machines[i].most) {
            fail_msg("at %g a second: %g times that on average, %zu in 10 ms", machines[i].rate,
                     rate, most);
        }
        doorman_client_destroy(client);
    }
}

/* L1. Threads take and release units of a gauge, and count the units in flight themselves. */
typedef struct gauge_users {
    doorman_agent *agent;
    doorman_resource *resource;
    doorman_time end; /* reached only if wake-ups are lost */
    int in_flight, most, failures;
} gauge_users;

static void *gauge_thread_main(void *context) {
    gauge_users *self = (gauge_users *)context;
    for (int i = 0; i < 500; i++) {
        doorman_time timeout = self->end - doorman_clock();
        if (doorman_resource_wait(self->resource, 1, timeout) != DOORMAN_OK) {
            __atomic_fetch_add(&self->failures, 1, __ATOMIC_SEQ_CST);
            break;
        }
        int now = __atomic_add_fetch(&self->in_flight, 1, __ATOMIC_SEQ_CST);
        int most = __atomic_load_n(&self->most, __ATOMIC_SEQ_CST);
        while (now > most && !__atomic_compare_exchange_n(&self->most, &most, now, false,
                                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        }
        if (i % 50 == 0) sleep_for(MILLISECOND);
        __atomic_sub_fetch(&self->in_flight, 1, __ATOMIC_SEQ_CST);
        doorman_resource_release(self->resource, 1);
    }
    return NULL;
}

TEST(many_threads_never_exceed_a_gauge) {
    test_server server = {.capacity = 3};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_gauge(agent, "db", 3, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    gauge_users all = {.agent = agent, .resource = resource, .end = doorman_clock() + TEST_TIMEOUT};
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, gauge_thread_main, &all), 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    assert_int_equal(all.failures, 0);
    assert_in_range(all.most, 1, 3);
    assert_true(read_info(resource).in_use == 0);
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* Several threads make calls on resources at the same time, to find data races and deadlocks. */
typedef struct call_thread {
    doorman_agent *agent;
    int index;
} call_thread;

static void *call_thread_main(void *context) {
    call_thread *self = (call_thread *)context;
    bool is_odd = self->index % 2;
    doorman_resource_options options = {.resource_id = is_odd ? "odd" : "even",
                                        .kind = is_odd ? DOORMAN_GAUGE : DOORMAN_RATE};
    for (int i = 0; i < 50; i++) {
        doorman_resource *resource = NULL;
        doorman_resource_info info;
        if (doorman_resource_open(&resource, self->agent, &options, NULL) != DOORMAN_OK) continue;
        if (doorman_resource_wait(resource, 1, 5 * MILLISECOND) == DOORMAN_OK && is_odd) {
            doorman_resource_release(resource, 1);
        }
        if (doorman_resource_try(resource, 1, NULL) == DOORMAN_ALLOWED && is_odd) {
            doorman_resource_release(resource, 1);
        }
        (void)doorman_resource_delay(resource, 1);
        doorman_resource_set_wants(resource, i);
        doorman_resource_read(resource, &info);
        doorman_resource_close(resource);
    }
    return NULL;
}

TEST(calls_from_many_threads_work_together) {
    test_server server = {.capacity = 20, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 1, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource)); /* from now on the agent also sends requests */
    pthread_t threads[6];
    call_thread all[6];
    for (int i = 0; i < 6; i++) {
        all[i] = (call_thread){.agent = agent, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, call_thread_main, &all[i]), 0);
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    if (stops_in_time(agent)) EVENTUALLY(test_server_read(&server).holder_count == 0);
    test_server_stop(&server);
}

/* ---- many resources ---- */

static int compare_times(const void *a, const void *b) {
    doorman_time first = *(const doorman_time *)a, second = *(const doorman_time *)b;
    return (first > second) - (first < second);
}

static void print_times(const char *what, doorman_time *times, size_t count) {
    qsort(times, count, sizeof *times, compare_times);
    print_message("%-20s %6zu calls, us: median %.1f, 99 %% %.1f, 99.9 %% %.1f, longest %.1f\n",
                  what, count, (double)times[count / 2] / 1e3,
                  (double)times[count * 99 / 100] / 1e3, (double)times[count * 999 / 1000] / 1e3,
                  (double)times[count - 1] / 1e3);
}

#define TIMED(times, call)                                                                         \
    do {                                                                                           \
        doorman_time from_ = doorman_clock();                                                      \
        assert_int_equal(call, DOORMAN_OK);                                                        \
        (times) = doorman_clock() - from_;                                                         \
    } while (0)

/* If the agent's thread waits for the mutex, a call that gets the mutex lets the thread go first.
 * So calls, however many there are, cannot keep the thread from renewing a lease. In this test the
 * thread has nothing else to do, so it waits for the mutex once in each round. */
TEST(the_agents_thread_passes_before_a_call) {
    test_server server = {.capacity = 100, .lease_length = 10 * TEST_TIMEOUT};
    server.refresh_interval = 5 * TEST_TIMEOUT;
    test_server_start(&server);
    doorman_agent *agent = start_with(server.url, TEST_TIMEOUT);
    doorman_resource *resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&agent->mutex);
        doorman__agent_notify(agent);
        EVENTUALLY(__atomic_load_n(&agent->thread_waits, __ATOMIC_SEQ_CST));
        pthread_mutex_unlock(&agent->mutex);
        (void)read_info(resource);
        assert_false(__atomic_load_n(&agent->thread_waits, __ATOMIC_SEQ_CST));
    }
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* K5: the release of a closed resource is delayed, and dropped if the resource is opened again
 * meanwhile. On a slow machine the next opening can come too late. It then costs a release and a
 * request for a new lease. */
TEST(opening_and_closing_in_a_loop_sends_few_messages) {
    enum { LOOPS = 200 };
    test_server server = {.capacity = 100, .lease_length = 10 * TEST_TIMEOUT};
    server.refresh_interval = 5 * TEST_TIMEOUT;
    test_server_start(&server);
    doorman_agent *agent = start_with(server.url, TEST_TIMEOUT);
    doorman_resource *resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
    int late_count = 0;
    for (int i = 0; i < LOOPS; i++) {
        EVENTUALLY(leased(resource));
        doorman_time closed_at = doorman_clock();
        doorman_resource_close(resource);
        if (i % 10 == 0) sleep_for(2 * MILLISECOND);
        resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
        late_count += doorman_clock() - closed_at >= 100 * MILLISECOND;
    }
    assert_true(test_server_request_count(&server) <= 1 + 2 * late_count);
    doorman_resource_close(resource);
    EVENTUALLY(test_server_read(&server).holder_count == 0);
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* K5: a stop does not wait for a resource to be opened again. */
TEST(a_stop_releases_what_was_just_closed) {
    test_server server = {.capacity = 100, .lease_length = 10 * TEST_TIMEOUT};
    test_server_start(&server);
    doorman_agent *agent = start_with(server.url, TEST_TIMEOUT);
    doorman_resource *resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    doorman_resource_close(resource);
    doorman_agent_stop(agent);
    assert_int_equal(test_server_read(&server).holder_count, 0);
    test_server_stop(&server);
}

static size_t count_held(test_server *server) {
    doorman_cursor cursor = {0};
    doorman_server_resource each;
    size_t count = 0;
    pthread_mutex_lock(&server->mutex);
    while (doorman_server_next_resource(server->server, &cursor, &each, doorman_clock())) {
        if (each.holder_count == 1) count++;
    }
    pthread_mutex_unlock(&server->mutex);
    return count;
}

/* Each of 10,000 resources gets a lease, and then another lease for its new wants. The test prints
 * how many requests that takes and how long calls take, but asserts neither, because both depend on
 * the machine. */
TEST(an_agent_with_many_resources_serves_each_one) {
    enum { RESOURCES = 10000 };
    static doorman_resource *resources[RESOURCES];
    static doorman_time opens[RESOURCES], reads[RESOURCES], wants[RESOURCES];
    static doorman_time infos[RESOURCES], closes[RESOURCES];
    test_server server = {.capacity = 1000, .lease_length = 10 * TEST_TIMEOUT};
    server.refresh_interval = 2 * DOORMAN_SECOND;
    test_server_start(&server);
    doorman_agent *agent = start_with(server.url, 10 * DOORMAN_SECOND);
    for (size_t i = 0; i < RESOURCES; i++) {
        char id[32];
        snprintf(id, sizeof id, "resource/%zu", i);
        doorman_resource_options options = {.resource_id = id};
        TIMED(opens[i], doorman_resource_open(&resources[i], agent, &options, NULL));
    }
    for (size_t i = 0; i < RESOURCES; i++) EVENTUALLY(leased(resources[i]));
    int before = test_server_request_count(&server);
    for (size_t i = 0; i < RESOURCES; i++) {
        doorman_resource *resource = resources[i * 7919 % RESOURCES];
        doorman_resource_info info;
        doorman_agent_info state_;
        TIMED(reads[i], doorman_resource_read(resource, &info));
        TIMED(infos[i], doorman_agent_read_info(agent, &state_));
        TIMED(wants[i], doorman_resource_set_wants(resource, 2));
        assert_true(info.leased);
        sleep_for(MILLISECOND / 4);
    }
    print_message("%d requests meanwhile\n", test_server_request_count(&server) - before);
    for (size_t i = 0; i < RESOURCES; i++) EVENTUALLY(read_info(resources[i]).capacity == 2);
    assert_int_equal(count_held(&server), RESOURCES);
    for (size_t i = 0; i < RESOURCES; i++) {
        TIMED(closes[i], doorman_resource_close(resources[i]));
    }
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    print_times("open", opens, RESOURCES);
    print_times("read", reads, RESOURCES);
    print_times("read_info", infos, RESOURCES);
    print_times("set_wants", wants, RESOURCES);
    print_times("close", closes, RESOURCES);
    test_server_stop(&server);
}

/* A call that fails leaves its output as it was. */
TEST(an_agent_that_cannot_start_reports_why) {
    doorman_agent *agent = NULL;
    doorman_error error = {0};
    doorman_client_options options = {.addresses = NULL};
    assert_int_equal(doorman_agent_start(&agent, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_null(agent);
    assert_non_null(strstr(error.text, "addresses"));
    assert_int_equal(doorman_agent_stop(NULL), DOORMAN_OK);
}

/* Starts an agent with this second address. If `refusal` is NULL, the agent must start. Otherwise
 * the start must fail with an error that contains `refusal`. */
static void try_address(const char *address, const doorman_tls *tls, const char *refusal) {
    const char *addresses[] = {"inproc://good", address};
    doorman_client_options options = {.addresses = addresses, .address_count = 2, .tls = tls};
    doorman_agent *agent = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_agent_start(&agent, &options, &error);
    if (refusal) {
        assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
        assert_null(agent);
        if (!strstr(error.text, refusal)) fail_msg("%s", error.text);
    } else {
        assert_int_equal(status, DOORMAN_OK);
        assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    }
}

TEST(an_address_that_nng_cannot_reach_is_refused_at_the_start) {
    const doorman_tls empty = {.authority = NULL}, key_only = {.authority = "A", .key = "K"};
    const doorman_tls garbage = {.authority = "not PEM"};
    static const char schemes[] = "must be tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc://PATH, "
                                  "inproc://NAME, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH";
    const struct {
        const char *address;
        const doorman_tls *tls;
        const char *refusal;
    } cases[] = {
        {"nonsense", NULL, schemes},
        {"localhost:15000", NULL, schemes},
        {"http://localhost:15000", NULL, schemes},
        {"tcp://localhost", NULL, schemes},
        {"tcp://:15000", NULL, schemes},
        {"ipc://", NULL, "addresses[1]: 'ipc://'"},
        {"tls+tcp://localhost:15000", NULL, "addresses[1]: 'tls+tcp://localhost:15000' needs"},
        {"wss://localhost:15000/", NULL, "needs options.tls"},
        {"tcp://localhost:15000", &empty, "tls.authority: must not be NULL"},
        {"tcp://localhost:15000", &key_only, "tls.certificate: must not be NULL beside key"},
        {"tcp://localhost:15000", &garbage, "tls.authority: "},
        {"tcp://localhost:15000", NULL, NULL},
        {"ws://localhost:15000/doorman", NULL, NULL},
        {"inproc://nobody", NULL, NULL},
        {"tcp4://127.0.0.1:15000", NULL, NULL},
        {"tcp6://[::1]:15000", NULL, NULL},
        {"unix:///tmp/nobody", NULL, NULL},
        {"tcp4://127.0.0.1:65536", NULL, "the port must be a number from 1 to 65535"},
        {"ipc:///tmp/nobody", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        try_address(cases[i].address, cases[i].tls, cases[i].refusal);
    }
}

/* Opens the breaker of an agent, whose server does not run, for far longer than the test lasts. */
static void pause_permits(doorman_agent *agent) {
    const doorman_permit_item item = {.resource_id = "db", .key = "k", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired acquired;
    for (int i = 0; i < 100 && !info_of(agent).permits.is_pausing; i++) {
        assert_int_equal(doorman_agent_acquire(agent, &request, 200 * MILLISECOND, &acquired, NULL),
                         DOORMAN_OK);
    }
    pthread_mutex_lock(&agent->permits->mutex);
    doorman_upstream *upstream = &agent->permits->client->home.batch.upstream;
    assert_int_equal(upstream->state, DOORMAN__BACKING_OFF);
    upstream->retry_at = doorman_clock() + 10 * TEST_TIMEOUT;
    pthread_mutex_unlock(&agent->permits->mutex);
}

static bool permits_may_ask(doorman_agent *agent) {
    pthread_mutex_lock(&agent->permits->mutex);
    bool soon =
        agent->permits->client->home.batch.upstream.retry_at < doorman_clock() + TEST_TIMEOUT;
    pthread_mutex_unlock(&agent->permits->mutex);
    return soon;
}

/* P23: a response to a request for leases ends the pause of the permits, which would last for much
 * longer. */
TEST(a_response_with_leases_ends_the_pause_of_permits) {
    test_server server = {.capacity = 100};
    test_server_bind(&server);
    doorman_agent *agent = start(server.url);
    pause_permits(agent);
    assert_false(permits_may_ask(agent));
    test_server_start(&server);
    doorman_resource *resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(leased(resource));
    EVENTUALLY(permits_may_ask(agent));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

static bool backs_off(doorman_agent *agent) {
    pthread_mutex_lock(&agent->mutex);
    bool backs = agent->client->upstream.state == DOORMAN__BACKING_OFF;
    if (backs) agent->client->upstream.retry_at = doorman_clock() + 10 * TEST_TIMEOUT;
    pthread_mutex_unlock(&agent->mutex);
    return backs;
}

/* P23: in the same way, a response to permits ends the pause of the requests for leases. */
TEST(a_response_to_permits_ends_the_pause_of_leases) {
    test_server server = {.capacity = 100};
    test_server_bind(&server);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = open_as(agent, "db", 10, DOORMAN_PESSIMISTIC, 0);
    EVENTUALLY(backs_off(agent));
    test_server_start(&server);
    const doorman_permit_item item = {.resource_id = "db", .key = "k", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired acquired;
    for (doorman_time end = doorman_clock() + TEST_TIMEOUT; doorman_clock() < end;) {
        (void)doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &acquired, NULL);
        if (leased(resource)) break;
        sleep_for(20 * MILLISECOND);
    }
    assert_true(leased(resource));
    doorman_agent_stop(agent);
    test_server_stop(&server);
}

/* ---- a transport without an agent ---------------------------------------------------------- */

static void count_wakeup(void *context) { __atomic_fetch_add((int *)context, 1, __ATOMIC_SEQ_CST); }

/* When this thread has read the state of a transport `reads_left` times, it unlocks the mutex of
 * the server, so that the server can respond, and waits until the response has come. */
static _Thread_local struct {
    int reads_left; /* 0: nothing happens */
    test_server *server;
    int *wakeup_count;
} meanwhile;

void hook_state_read(void) {
    if (meanwhile.reads_left == 0 || --meanwhile.reads_left > 0) return;
    int before = __atomic_load_n(meanwhile.wakeup_count, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&meanwhile.server->mutex);
    EVENTUALLY(__atomic_load_n(meanwhile.wakeup_count, __ATOMIC_SEQ_CST) > before);
}

/* Sends the next request of a client, and returns its result.
 *   made   in/out: the transport has a request to send; after a failure it may have the next one */
static doorman_transport_result transport_round_trip(doorman_transport *transport,
                                                     int *wakeup_count, bool *made) {
    int before = __atomic_load_n(wakeup_count, __ATOMIC_SEQ_CST);
    doorman_transport_result result;
    for (doorman_time end = doorman_clock() + TEST_TIMEOUT; !*made && doorman_clock() < end;) {
        *made = doorman_transport_update(transport, &result, doorman_clock());
        assert_false(result.has_ended);
        if (!*made) sleep_for(2 * MILLISECOND);
    }
    assert_true(*made);
    doorman_transport_send(transport);
    EVENTUALLY(__atomic_load_n(wakeup_count, __ATOMIC_SEQ_CST) > before);
    *made = doorman_transport_update(transport, &result, doorman_clock());
    assert_true(result.has_ended);
    return result;
}

/* Sends one request to each address of a client, one after the other, and compares the results. */
static void check_round_trips(const char *const *addresses, size_t count,
                              doorman_time request_timeout, const doorman_status *expected) {
    doorman_client_options who = {.client_id = "a", .addresses = addresses, .address_count = count};
    who.request_timeout = request_timeout;
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    doorman_resource_options what = {.resource_id = "db", .wants = 50};
    doorman_time now = doorman_clock();
    assert_int_equal(doorman_client_create(&client, &who, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&resource, client, &what, NULL, now), DOORMAN_OK);
    int wakeup_count = 0;
    bool made = false;
    doorman_transport *transport = NULL;
    doorman_transport_options options = {.upstream = doorman_client_upstream(client),
                                         .on_wakeup = count_wakeup,
                                         .context = &wakeup_count};
    assert_int_equal(doorman_transport_create(&transport, &options), DOORMAN_OK);
    for (size_t i = 0; i < count; i++) {
        doorman_transport_result result = transport_round_trip(transport, &wakeup_count, &made);
        assert_int_equal(result.status, expected[i]);
        assert_string_equal(result.address, addresses[i]);
        assert_true((result.error.text[0] != 0) == (expected[i] != DOORMAN_OK));
    }
    assert_int_equal(wakeup_count, (int)count);
    doorman_resource_info info;
    doorman_client_read(resource, &info, doorman_clock());
    assert_int_equal(info.leased, expected[count - 1] == DOORMAN_OK);
    doorman_transport_destroy(transport);
    doorman_client_destroy(client);
}

/* Sends a request whose response comes when an update has read the state `reads` times. Returns
 * false if there are fewer reads. */
static bool check_response_after_read(test_server *server, int reads) {
    const char *addresses[] = {server->url};
    const doorman_client_options who = {.client_id = "a",
                                        .addresses = addresses,
                                        .address_count = 1,
                                        .request_timeout = TEST_TIMEOUT};
    const doorman_resource_options what = {.resource_id = "db", .wants = 50};
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    doorman_transport *transport = NULL;
    doorman_transport_result result;
    int wakeup_count = 0, received = test_server_request_count(server);
    doorman_time now = doorman_clock();
    assert_int_equal(doorman_client_create(&client, &who, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&resource, client, &what, NULL, now), DOORMAN_OK);
    const doorman_transport_options options = {.upstream = doorman_client_upstream(client),
                                               .on_wakeup = count_wakeup,
                                               .context = &wakeup_count};
    assert_int_equal(doorman_transport_create(&transport, &options), DOORMAN_OK);
    assert_true(doorman_transport_update(transport, NULL, now));
    pthread_mutex_lock(&server->mutex);
    doorman_transport_send(transport);
    EVENTUALLY(test_server_request_count(server) > received &&
               doorman__transport_get(transport) == DOORMAN__TRANSPORT_RECEIVING);
    meanwhile.server = server;
    meanwhile.wakeup_count = &wakeup_count;
    meanwhile.reads_left = reads;
    assert_false(doorman_transport_update(transport, &result, doorman_clock()));
    bool reached = meanwhile.reads_left == 0;
    meanwhile.reads_left = 0;
    if (!reached) pthread_mutex_unlock(&server->mutex);
    EVENTUALLY(__atomic_load_n(&wakeup_count, __ATOMIC_SEQ_CST) > 0);
    if (!result.has_ended) {
        assert_false(doorman_transport_update(transport, &result, doorman_clock()));
    }
    assert_true(result.has_ended);
    assert_int_equal(result.status, DOORMAN_OK);
    doorman_resource_info info;
    doorman_client_read(resource, &info, doorman_clock());
    assert_true(info.leased);
    doorman_transport_destroy(transport);
    doorman_client_destroy(client);
    return reached;
}

/* K2: the response comes just after an update has looked for it, at each of the places where an
 * update looks. */
TEST(a_response_is_used_whenever_it_comes) {
    test_server server = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    server.refresh_interval = 10 * TEST_TIMEOUT;
    test_server_start(&server);
    int reads = 1;
    while (check_response_after_read(&server, reads)) assert_true(++reads < 10);
    assert_true(reads > 1);
    test_server_stop(&server);
}

/* K2, K7: each request ends with a result, and the next request goes to the next address at
 * once. */
TEST(a_transport_reports_the_result_of_each_request) {
    test_server silent = {.capacity = 90, .behaviour = SILENT}, invalid = {.capacity = 90};
    test_server right = {.capacity = 90, .lease_length = 10 * TEST_TIMEOUT};
    right.refresh_interval = 10 * TEST_TIMEOUT; /* no second request */
    invalid.behaviour = SENDS_GARBAGE;
    test_server_start(&silent);
    test_server_start(&invalid);
    test_server_start(&right);
    const char *const one_answers[] = {"nonsense", invalid.url, right.url};
    const doorman_status responses[] = {DOORMAN_UNAVAILABLE, DOORMAN_INVALID_ARGUMENT, DOORMAN_OK};
    const char *const none_answers[] = {silent.url, "nonsense"};
    const doorman_status silence[] = {DOORMAN_UNAVAILABLE, DOORMAN_UNAVAILABLE};
    check_round_trips(one_answers, 3, TEST_TIMEOUT, responses);
    check_round_trips(none_answers, 2, 200 * MILLISECOND, silence);
    doorman_transport_destroy(NULL);
    test_server_stop(&silent);
    test_server_stop(&invalid);
    test_server_stop(&right);
}

/* R1: servers that were given no seed choose random seeds, so that their leases have different
 * ids. */
TEST(a_server_without_a_seed_gets_a_random_one) {
    uint64_t ids[2];
    for (int i = 0; i < 2; i++) {
        test_server server = {.capacity = 100, .url = "tcp://nowhere:1"};
        doorman_demand demand = {1, 1, 1};
        doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
        doorman_request request = {
            .method = DOORMAN_GET_CAPACITY, .holder_id = "a", .items = &item, .item_count = 1};
        doorman_response response;
        test_server_create(&server);
        assert_int_equal(
            doorman_server_handle(server.server, &request, &response, NULL, doorman_clock()),
            DOORMAN_OK);
        ids[i] = response.items[0].gets.id;
        doorman_server_destroy(server.server);
        doorman_config_destroy(server.config);
    }
    assert_true(ids[0] != 0 && ids[0] != ids[1]);
}
