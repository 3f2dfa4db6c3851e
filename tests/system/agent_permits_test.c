/* Permits through the agent, with real servers, and with listeners that play a server which is
 * silent, redirects, or talks nonsense. Time is real, so the tests assert only counts, orders and
 * bounds, and every wait has a time-out. */
#define _GNU_SOURCE
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman_permits.h"

#include "harness.h"
#include <poll.h>
#include <pthread.h>

#define MILLISECOND (DOORMAN_SECOND / 1000)
#define LONG_TIME (TIMEOUT_MS * MILLISECOND) /* far longer than anything here takes */

static const char config[] =
    "{\"resources\": ["
    "{\"identifier_glob\": \"twice\", \"limits\": [{\"name\": \"two\", \"kind\": \"FIXED_WINDOW\","
    " \"limit\": 2, \"window\": 1e8}]},"
    "{\"identifier_glob\": \"thousand\", \"limits\": [{\"name\": \"all\", \"per\": \"resource\","
    " \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": 1e8}]},"
    "{\"identifier_glob\": \"paced\", \"limits\": [{\"name\": \"ten\", \"kind\": \"TOKEN_BUCKET\","
    " \"rate\": 10, \"size\": 0, \"max_debt\": 10}]},"
    "{\"identifier_glob\": \"slow\", \"limits\": [{\"name\": \"crawl\", \"kind\": \"TOKEN_BUCKET\","
    " \"rate\": 0.001, \"size\": 0, \"max_debt\": 1e6}]},"
    "{\"identifier_glob\": \"saved\", \"limits\": [{\"name\": \"much\", \"kind\": \"TOKEN_BUCKET\","
    " \"rate\": 0.001, \"size\": 1000}]},"
    "{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"two\", \"kind\": \"CONCURRENCY\","
    " \"limit\": 2}]},"
    "{\"identifier_glob\": \"free\", \"limits\": []}]}";

static struct server serve(void) { return server_start(config, NULL); }

/* ---- an application ------------------------------------------------------------------------- */

/* Starts an agent whose messages have a long timeout, so that a machine that is slow for a moment
 * does not look like a server that fails. */
static doorman_agent *start_with(const char *const *addresses, size_t count,
                                 doorman_permit_policy policy) {
    const doorman_client_options options = {.addresses = addresses,
                                            .address_count = count,
                                            .request_timeout = LONG_TIME,
                                            .permits = policy};
    doorman_agent *agent = NULL;
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    return agent;
}

static doorman_agent *start(const char *url) {
    return start_with(&url, 1, (doorman_permit_policy){.shadow = false});
}

/* Returns how long a call may wait: DOORMAN_DURATION_MAX if the limit has a max_debt, else 0. */
static doorman_time max_wait_of(const char *resource_id) {
    bool lends = strcmp(resource_id, "paced") == 0 || strcmp(resource_id, "slow") == 0;
    return lends ? DOORMAN_DURATION_MAX : 0;
}

static doorman_status acquire(doorman_agent *agent, const char *resource_id, const char *key,
                              doorman_time timeout, doorman_acquired *out) {
    const doorman_permit_item item = {.resource_id = resource_id, .key = key, .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait_of(resource_id)};
    return doorman_agent_acquire(agent, &request, timeout, out, NULL);
}

static doorman_acquired decide(doorman_agent *agent, const char *resource_id, const char *key) {
    doorman_acquired acquired;
    assert_int_equal(acquire(agent, resource_id, key, LONG_TIME, &acquired), DOORMAN_OK);
    return acquired;
}

static doorman_permit_client_info info_of(doorman_agent *agent) {
    doorman_agent_info info;
    assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
    return info.permits;
}

typedef struct worker {
    doorman_agent *agent;
    const char *resource_id;
    size_t times;
    doorman_time timeout;
    size_t granted, by_server; /* atomic */
    size_t calls;              /* atomic */
    doorman_status last;
    bool stops; /* atomic */
    pthread_t thread;
} worker;

static size_t load(const size_t *counter) { return __atomic_load_n(counter, __ATOMIC_SEQ_CST); }

static void add_one(size_t *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST); }

static void *worker_main(void *context) {
    worker *self = (worker *)context;
    for (size_t i = 0; i < self->times && !__atomic_load_n(&self->stops, __ATOMIC_SEQ_CST); i++) {
        doorman_acquired acquired;
        self->last = acquire(self->agent, self->resource_id, "key", self->timeout, &acquired);
        if (self->last != DOORMAN_OK) break;
        if (acquired.granted) add_one(&self->granted);
        if (acquired.decided_by == DOORMAN_BY_SERVER) add_one(&self->by_server);
        add_one(&self->calls);
    }
    return NULL;
}

static void workers_start(worker *workers, size_t count, const worker *like) {
    for (size_t i = 0; i < count; i++) {
        workers[i] = *like;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
}

static void workers_join(worker *workers, size_t count) {
    for (size_t i = 0; i < count; i++) assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
}

/* ---- a listener that plays a server --------------------------------------------------------- */

typedef struct fake {
    char url[NNG_MAXADDRLEN];
    const char *reply; /* to each request; NULL: the server is silent */
    bool only_permits; /* it is silent to requests for leases */
    int listener;
    bool stopping;                /* atomic */
    size_t requests, connections; /* atomic */
    pthread_t thread;
} fake;

enum { FAKE_PEERS = 16 };

static bool fake_greet(int fd) {
    static const unsigned char rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    unsigned char greeting[8];
    struct timeval most = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    return send_all(fd, rep, sizeof rep) && receive_all(fd, greeting, sizeof greeting);
}

/* Reads a request, and replies. Returns false if the connection must be closed. */
static bool fake_serve(fake *self, int fd) {
    unsigned char head[12];
    char body[65536];
    uint64_t bytes = 0;
    if (!receive_all(fd, head, sizeof head)) return false;
    for (int i = 0; i < 8; i++) bytes = bytes << 8 | head[i];
    if (bytes < 4 || bytes > sizeof body || !receive_all(fd, body, (size_t)bytes - 4)) return false;
    add_one(&self->requests);
    if (!self->reply) return true;
    bool permits = memmem(body, (size_t)bytes - 4, "{\"acquire\":", 11) != NULL;
    if (self->only_permits && !permits) return true;
    size_t count = strlen(self->reply);
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)(count + 4) >> (56 - 8 * i));
    return send_all(fd, head, sizeof head) && send_all(fd, self->reply, count);
}

static void *fake_main(void *context) {
    fake *self = (fake *)context;
    struct pollfd peers[FAKE_PEERS];
    for (int i = 0; i < FAKE_PEERS; i++) peers[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    peers[0].fd = self->listener;
    while (!__atomic_load_n(&self->stopping, __ATOMIC_SEQ_CST)) {
        if (poll(peers, FAKE_PEERS, 10) <= 0) continue;
        for (int i = 1; i < FAKE_PEERS; i++) {
            if (peers[i].fd < 0 || !peers[i].revents || fake_serve(self, peers[i].fd)) continue;
            close(peers[i].fd);
            peers[i].fd = -1;
        }
        int place = 1;
        while (place < FAKE_PEERS && peers[place].fd >= 0) place++;
        if (!peers[0].revents || place == FAKE_PEERS) continue;
        peers[place].fd = accept(self->listener, NULL, NULL);
        if (peers[place].fd >= 0 && fake_greet(peers[place].fd)) add_one(&self->connections);
    }
    for (int i = 0; i < FAKE_PEERS; i++) {
        if (peers[i].fd >= 0) close(peers[i].fd);
    }
    return NULL;
}

static void fake_start(fake *self, const char *reply, bool only_permits) {
    int port = 0;
    memset(self, 0, sizeof *self);
    self->reply = reply;
    self->only_permits = only_permits;
    self->listener = port_listen(&port);
    assert_true(self->listener >= 0);
    snprintf(self->url, sizeof self->url, "tcp://127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&self->thread, NULL, fake_main, self), 0);
}

static void fake_stop(fake *self) {
    __atomic_store_n(&self->stopping, true, __ATOMIC_SEQ_CST);
    assert_int_equal(pthread_join(self->thread, NULL), 0);
}

/* ---- decisions ------------------------------------------------------------------------------ */

TEST(a_server_decides_and_a_refusal_is_repeated_locally) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    for (int i = 0; i < 2; i++) {
        doorman_acquired granted = decide(agent, "twice", "ann");
        assert_true(granted.granted);
        assert_int_equal(granted.decided_by, DOORMAN_BY_SERVER);
        assert_true(granted.units[0] >= 1 && granted.units[0] <= 1);
        assert_string_equal(granted.limit, "two");
        assert_true(granted.remaining <= 1 - i && granted.remaining >= 1 - i);
    }
    doorman_acquired refused = decide(agent, "twice", "ann");
    assert_false(refused.granted);
    assert_int_equal(refused.decided_by, DOORMAN_BY_SERVER);
    assert_int_equal(refused.reason, DOORMAN_REASON_RATE);
    assert_string_equal(refused.limit, "two");
    assert_true(refused.has_retry_after && refused.retry_after > 0);
    assert_true(decide(agent, "twice", "bob").granted);
    /* a refusal is valid for at most a second, so on a slow machine it may end before a call */
    bool repeated = false;
    for (int i = 0; i < 1000 && !repeated; i++) {
        refused = decide(agent, "twice", "ann");
        assert_false(refused.granted);
        repeated = refused.decided_by == DOORMAN_BY_REFUSAL;
    }
    assert_true(repeated);
    assert_int_equal(refused.reason, DOORMAN_REASON_RATE);
    assert_string_equal(refused.limit, "two");
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(a_call_waits_as_the_server_tells) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    doorman_time start_at = doorman_clock();
    for (int i = 0; i < 4; i++) {
        doorman_acquired acquired = decide(agent, "paced", "ann");
        assert_true(acquired.granted);
        assert_int_equal(acquired.wait, 0);
    }
    assert_true(doorman_clock() - start_at >= 3 * DOORMAN_SECOND / 10);
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(many_threads_share_messages_and_a_limit_holds) {
    enum { THREADS = 64 };
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    static worker workers[THREADS];
    const worker free_worker = {
        .agent = agent, .resource_id = "free", .times = 50, .timeout = LONG_TIME};
    workers_start(workers, THREADS, &free_worker);
    workers_join(workers, THREADS);
    doorman_permit_client_info info = info_of(agent);
    assert_int_equal(info.granted, THREADS * 50);
    assert_int_equal(info.waiting_count, 0);
    assert_true(info.messages < info.granted);
    const worker limited = {
        .agent = agent, .resource_id = "thousand", .times = 30, .timeout = LONG_TIME};
    workers_start(workers, THREADS, &limited);
    workers_join(workers, THREADS);
    size_t granted = 0;
    for (size_t i = 0; i < THREADS; i++) granted += workers[i].granted;
    assert_int_equal(granted, 1000);
    assert_int_equal(info_of(agent).failures, 0);
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(wrong_permits_are_refused) {
    doorman_agent *agent = start("inproc://nobody");
    const doorman_permit_item item = {.resource_id = "free", .cost = -1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired acquired;
    doorman_error error = {0};
    assert_int_equal(doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &acquired, &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "items[0].cost: must be a finite number from 0 to 1e15");
    assert_int_equal(doorman_agent_report(agent, "", "ann", 1, &error), DOORMAN_INVALID_ARGUMENT);
    doorman_agent_stop(agent);
}

/* The server rejects the permit as wrong, and the fallback grants it. So only the state of the
 * agent says what is wrong. */
TEST(a_permit_that_needs_a_hold_is_named_in_the_last_error) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    doorman_agent_info info;
    assert_int_equal(decide(agent, "slots", "ann").decided_by, DOORMAN_BY_FALLBACK);
    assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
    assert_non_null(strstr(info.last_error.text, server.url));
    assert_non_null(strstr(info.last_error.text, "request_id: is needed for a limit of kind "
                                                 "CONCURRENCY"));
    assert_true(info.last_error_at > 0);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* ---- callbacks ------------------------------------------------------------------------------ */

typedef struct chain {
    doorman_agent *agent;
    const char *resource_id;
    doorman_time timeout;
    size_t left;
    size_t ended, unavailable, wrong; /* atomic */
} chain;

static void chain_next(chain *self);

static void chain_on_decided(void *context, doorman_status status,
                             const doorman_acquired *acquired) {
    chain *self = (chain *)context;
    doorman_acquired inner;
    bool good = status == DOORMAN_OK ? acquired && acquired->granted : !acquired;
    if (acquire(self->agent, "free", "ann", LONG_TIME, &inner) == DOORMAN_OK) good = false;
    if (status == DOORMAN_OK && doorman_agent_stop(self->agent) != DOORMAN_DEADLOCK) good = false;
    if (!good) add_one(&self->wrong);
    if (status == DOORMAN_UNAVAILABLE) add_one(&self->unavailable);
    if (status == DOORMAN_OK && --self->left > 0) chain_next(self);
    add_one(&self->ended);
}

static void chain_next(chain *self) {
    const doorman_permit_item item = {.resource_id = self->resource_id, .key = "ann", .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait_of(self->resource_id)};
    if (doorman_agent_acquire_async(self->agent, &request, self->timeout, chain_on_decided, self,
                                    NULL) != DOORMAN_OK) {
        add_one(&self->wrong);
    }
}

TEST(a_callback_gets_the_decision_and_may_ask_again) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    chain calls = {.agent = agent, .resource_id = "free", .timeout = LONG_TIME, .left = 20};
    chain_next(&calls);
    EVENTUALLY(load(&calls.ended) == 20);
    assert_int_equal(load(&calls.wrong), 0);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* The calls wait for an answer of the server or, after the answer, for the time that the answer
 * names. They have no timeout, so all of them still wait when the agent stops. */
TEST(each_callback_is_called_before_the_agent_has_stopped) {
    struct server server = serve();
    for (int answered = 0; answered <= 1; answered++) {
        doorman_agent *agent = start(server.url);
        assert_true(decide(agent, "slow", answered ? "bob" : "ann").granted);
        chain calls = {
            .agent = agent, .resource_id = "slow", .timeout = DOORMAN_NEVER, .left = 100};
        for (int i = 0; i < 5; i++) chain_next(&calls);
        if (answered) EVENTUALLY(info_of(agent).granted == 6);
        doorman_agent_stop(agent);
        assert_int_equal(load(&calls.ended), 5);
        assert_int_equal(load(&calls.unavailable), 5);
        assert_int_equal(load(&calls.wrong), 0);
    }
    server_stop(&server);
}

/* ---- reports -------------------------------------------------------------------------------- */

TEST(a_report_is_charged_also_when_the_agent_stops) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    assert_int_equal(doorman_agent_report(agent, "twice", "ann", 1.5, NULL), DOORMAN_OK);
    EVENTUALLY(info_of(agent).reported == 1);
    assert_false(decide(agent, "twice", "ann").granted);
    /* A stop waits for at most a second for the report, so a slow machine needs another try. */
    bool charged = false;
    for (int i = 0; i < 20 && !charged; i++) {
        char key[16];
        snprintf(key, sizeof key, "bob %d", i);
        assert_true(decide(agent, "twice", key).granted);
        assert_int_equal(doorman_agent_report(agent, "twice", key, 0.5, NULL), DOORMAN_OK);
        doorman_agent_stop(agent);
        agent = start(server.url);
        charged = !decide(agent, "twice", key).granted;
    }
    assert_true(charged);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* ---- reservations (P27) --------------------------------------------------------------------- */

static doorman_acquired reserve(doorman_agent *agent, const char *resource_id, const char *key,
                                double cost) {
    doorman_acquired out;
    const doorman_permit_item item = {.resource_id = resource_id, .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .max_wait = max_wait_of(resource_id),
                                            .settle_within = 3600 * DOORMAN_SECOND};
    assert_int_equal(doorman_agent_acquire(agent, &request, LONG_TIME, &out, NULL), DOORMAN_OK);
    return out;
}

/* Settles, and waits for the result if there is a timeout. */
static doorman_acquired settle(doorman_agent *agent, const char *key, uint64_t reservation,
                               double cost, doorman_time timeout) {
    doorman_acquired out;
    const doorman_permit_item item = {.resource_id = "twice", .key = key, .cost = cost};
    const doorman_settle_request request = {
        .id = reservation, .items = &item, .item_count = 1, .timeout = timeout};
    assert_int_equal(doorman_agent_settle(agent, &request, &out, NULL), DOORMAN_OK);
    return out;
}

TEST(what_a_reservation_did_not_cost_can_be_used) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    doorman_acquired out = reserve(agent, "twice", "ann", 2);
    const uint64_t number = out.reservation;
    assert_true(out.granted && number && out.settle_by > doorman_clock());
    assert_false(decide(agent, "twice", "ann").granted);
    for (int i = 0; i < 2; i++) { /* the second settle repeats the first one */
        out = settle(agent, "ann", number, 1, LONG_TIME);
        assert_true(out.granted && !out.late && !out.unknown);
        assert_int_equal(out.decided_by, DOORMAN_BY_SERVER);
        assert_true(out.units[0] == -1);
    }
    assert_int_equal(settle(agent, "ann", number, 2, LONG_TIME).reason, DOORMAN_REASON_REPEATED);
    assert_false(settle(agent, "ann", 0, 2, LONG_TIME).granted);
    assert_int_equal(info_of(agent).settled, 2);
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(a_settle_is_sent_also_when_the_agent_stops) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    bool settled = false;
    for (int i = 0; i < 20 && !settled; i++) { /* several tries, as for reports */
        char key[16];
        snprintf(key, sizeof key, "bob %d", i);
        const uint64_t number = reserve(agent, "twice", key, 2).reservation;
        (void)settle(agent, key, number, 0.5, 0);
        doorman_agent_stop(agent);
        agent = start(server.url);
        settled = decide(agent, "twice", key).granted;
    }
    assert_true(settled);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* The new process knows no reservation, so it charges the real cost. */
TEST(a_settle_finds_the_next_server) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    const uint64_t number = reserve(agent, "twice", "ann", 2).reservation;
    process_signal(server.process, SIGKILL);
    (void)process_wait(server.process);
    (void)settle(agent, "ann", number, 1.5, 0);
    const char *again[] = {"--config", server.process->config, "--listen", server.url, NULL};
    process_start(server.process, again, NULL);
    EVENTUALLY(info_of(agent).settled == 1);
    const doorman_acquired out = settle(agent, "ann", number, 1.5, LONG_TIME);
    assert_true(out.granted && out.unknown);
    assert_true(out.units[0] == 1.5);
    assert_false(decide(agent, "twice", "ann").granted);
    doorman_agent_stop(agent);
    server_stop(&server);
}

static void *reserve_slowly(void *context) {
    doorman_acquired out;
    const doorman_permit_item item = {.resource_id = "slow", .key = "ann", .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .max_wait = max_wait_of("slow"),
                                            .settle_within = DOORMAN_SECOND};
    doorman_agent *agent = (doorman_agent *)context;
    (void)doorman_agent_acquire(agent, &request, DOORMAN_NEVER, &out, NULL);
    return NULL;
}

/* The server has granted the reservation with a wait, and the thread is cancelled during the
 * wait. */
TEST(a_cancelled_thread_leaves_no_reservation) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    pthread_t thread;
    void *result = NULL;
    assert_true(decide(agent, "slow", "ann").granted);
    assert_int_equal(pthread_create(&thread, NULL, reserve_slowly, agent), 0);
    EVENTUALLY(info_of(agent).granted == 2);
    assert_int_equal(pthread_cancel(thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    EVENTUALLY(info_of(agent).settled == 1);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* examples/reservation_guard.cpp: the requests 1, 2 and 4 cost 10, 20 and 40 units of 250. Request
 * 3 fails, so it costs the 100 units that it has reserved. */
TEST(a_scope_settles_as_reserved_if_an_exception_ends_it) {
    static const char tokens[] =
        "{\"resources\": [{\"identifier_glob\": \"llm/*\", \"limits\": [{\"name\": \"day\","
        " \"kind\": \"FIXED_WINDOW\", \"limit\": 250, \"window\": 1e8}]}]}";
    struct server server = server_start(tokens, NULL);
    struct process *guard = process_new();
    const char *const arguments[] = {server.url, "llm/tokens", NULL};
    process_launch(guard, "build/examples/reservation_guard", arguments, NULL);
    process_end(guard, 0);
    char *output = file_read(guard->out);
    assert_string_equal(output, "request 1: 10 units\nrequest 2: 20 units\n"
                                "request 3: failed\nrequest 4: 40 units\n");
    free(output);
    doorman_agent *agent = start(server.url);
    doorman_acquired out = reserve(agent, "llm/tokens", "acme", 80.5);
    if (!out.granted) out = reserve(agent, "llm/tokens", "acme", 80);
    assert_true(out.granted && out.units[0] == 80);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* ---- servers that fail ---------------------------------------------------------------------- */

TEST(a_killed_server_stops_nobody_and_is_asked_again_when_it_is_back) {
    enum { THREADS = 8 };
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    static worker workers[THREADS];
    const worker one = {
        .agent = agent, .resource_id = "free", .times = SIZE_MAX, .timeout = DOORMAN_SECOND / 2};
    workers_start(workers, THREADS, &one);
    for (size_t i = 0; i < THREADS; i++) EVENTUALLY(load(&workers[i].by_server) > 10);
    process_signal(server.process, SIGKILL);
    (void)process_wait(server.process);
    EVENTUALLY(info_of(agent).is_pausing);
    for (size_t i = 0; i < THREADS; i++) {
        size_t before = load(&workers[i].granted);
        EVENTUALLY(load(&workers[i].granted) > before + 10);
    }
    const char *again[] = {"--config", server.process->config, "--listen", server.url, NULL};
    process_start(server.process, again, NULL);
    for (size_t i = 0; i < THREADS; i++) {
        size_t before = load(&workers[i].by_server);
        EVENTUALLY(load(&workers[i].by_server) > before + 10);
    }
    for (size_t i = 0; i < THREADS; i++)
        __atomic_store_n(&workers[i].stops, true, __ATOMIC_SEQ_CST);
    workers_join(workers, THREADS);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].last, DOORMAN_OK);
        assert_int_equal(workers[i].granted, workers[i].calls);
    }
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(without_a_server_closed_refuses_and_the_breaker_opens) {
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port_free());
    const char *addresses[] = {url};
    doorman_agent *agent =
        start_with(addresses, 1, (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
    for (int i = 0; i < 100 && info_of(agent).pauses == 0; i++) {
        doorman_acquired acquired = decide(agent, "free", "ann");
        assert_false(acquired.granted);
        assert_int_equal(acquired.decided_by, DOORMAN_BY_FALLBACK);
    }
    assert_true(info_of(agent).pauses > 0);
    assert_true(info_of(agent).failures >= 5);
    doorman_agent_stop(agent);
}

/* Each call ends at its timeout. A call that a busy machine has not sent by then does not count as
 * a failure of the server, so there are several calls. */
TEST(a_silent_server_does_not_hold_a_call_beyond_its_timeout) {
    fake silent;
    fake_start(&silent, NULL, false);
    doorman_agent *agent = start(silent.url);
    for (int i = 0; i < 1000 && info_of(agent).failures == 0; i++) {
        doorman_time start_at = doorman_clock();
        doorman_acquired acquired;
        assert_int_equal(acquire(agent, "free", "ann", DOORMAN_SECOND / 5, &acquired), DOORMAN_OK);
        doorman_time took = doorman_clock() - start_at;
        assert_true(acquired.granted);
        assert_int_equal(acquired.decided_by, DOORMAN_BY_FALLBACK);
        assert_true(took >= DOORMAN_SECOND / 5 && took < LONG_TIME);
    }
    assert_true(info_of(agent).failures > 0);
    doorman_agent_stop(agent);
    fake_stop(&silent);
}

TEST(nonsense_is_a_failure) {
    static const char *const replies[] = {
        "nonsense", "{\"error\": {\"status\": \"INTERNAL\", \"message\": \"no\"}}",
        "{\"acquire\": {\"permit\": []}}", "{\"get_capacity\": {\"resource\": []}}"};
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        fake liar;
        fake_start(&liar, replies[i], false);
        doorman_agent *agent = start(liar.url);
        doorman_acquired acquired = decide(agent, "free", "ann");
        assert_true(acquired.granted);
        assert_int_equal(acquired.decided_by, DOORMAN_BY_FALLBACK);
        EVENTUALLY(load(&liar.requests) == 2); /* the request was sent again once */
        doorman_agent_stop(agent);
        fake_stop(&liar);
    }
}

TEST(the_master_and_the_next_address_are_found) {
    char reply[256], unused[64];
    struct server server = serve();
    fake follower;
    snprintf(reply, sizeof reply, "{\"acquire\": {\"mastership\": {\"master_address\": \"%s\"}}}",
             server.url);
    fake_start(&follower, reply, false);
    doorman_agent *agent = start(follower.url);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(decide(agent, "free", "ann").decided_by, DOORMAN_BY_SERVER);
    }
    assert_int_equal(load(&follower.requests), 1);
    assert_int_equal(info_of(agent).failures, 0);
    doorman_agent_stop(agent);
    fake_stop(&follower);

    snprintf(unused, sizeof unused, "tcp://127.0.0.1:%d", port_free());
    const char *addresses[] = {unused, server.url};
    agent = start_with(addresses, 2, (doorman_permit_policy){.shadow = false});
    assert_int_equal(decide(agent, "free", "ann").decided_by, DOORMAN_BY_SERVER);
    assert_true(info_of(agent).failures >= 1);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* P24: the threads get nearly all units of the bucket, and no more. Together they try more often
 * than the bucket has units. */
TEST(units_taken_ahead_save_messages_and_stay_within_the_limit) {
    struct server server = serve();
    const char *url = server.url;
    doorman_agent *agent = start_with(
        &url, 1,
        (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED, .prefetch = 60 * DOORMAN_SECOND});
    worker workers[4];
    const worker one = {.agent = agent, .resource_id = "saved", .times = 300, .timeout = LONG_TIME};
    workers_start(workers, 4, &one);
    workers_join(workers, 4);
    size_t granted = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(workers[i].last, DOORMAN_OK);
        granted += workers[i].granted;
    }
    doorman_permit_client_info info = info_of(agent);
    assert_int_equal(info.fallback_refused, 0);
    assert_int_equal(granted, info.granted + info.prefetch_granted);
    assert_true(granted >= 900 && granted <= 1000);
    assert_true(info.prefetch_granted > 100 && info.messages < granted);
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(a_lease_that_is_not_answered_does_not_delay_a_permit) {
    static const char reply[] = "{\"acquire\": {\"permit\": [{\"decision\": \"GRANTED\", "
                                "\"item\": [{\"granted\": 1}]}]}}";
    fake server;
    fake_start(&server, reply, true);
    doorman_agent *agent = start(server.url);
    doorman_resource *resource = NULL;
    const doorman_resource_options options = {.resource_id = "free", .wants = 1};
    assert_int_equal(doorman_resource_open(&resource, agent, &options, NULL), DOORMAN_OK);
    EVENTUALLY(load(&server.requests) == 1);
    assert_int_equal(decide(agent, "free", "ann").decided_by, DOORMAN_BY_SERVER);
    assert_int_equal(load(&server.connections), 2);
    doorman_agent_stop(agent);
    fake_stop(&server);
}

/* ---- stop, cancel, fork --------------------------------------------------------------------- */

/* Starts threads whose permits are granted with a wait of many minutes. */
static void wait_long(doorman_agent *agent, worker *workers, size_t count) {
    assert_true(decide(agent, "slow", "key").granted);
    const worker one = {
        .agent = agent, .resource_id = "slow", .times = 1, .timeout = DOORMAN_NEVER};
    workers_start(workers, count, &one);
    EVENTUALLY(info_of(agent).granted == count + 1);
}

TEST(shutdown_ends_all_calls) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    worker workers[4];
    wait_long(agent, workers, 4);
    assert_int_equal(info_of(agent).waiting_count, 4);
    assert_int_equal(doorman_agent_shutdown(agent), DOORMAN_OK);
    workers_join(workers, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(workers[i].last, DOORMAN_UNAVAILABLE);
    doorman_acquired acquired;
    doorman_error error;
    assert_int_equal(acquire(agent, "free", "ann", 1, &acquired), DOORMAN_UNAVAILABLE);
    assert_int_equal(doorman_agent_report(agent, "free", "ann", 1, &error), DOORMAN_UNAVAILABLE);
    assert_string_equal(error.text, "the agent is shut down");
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(stop_waits_for_the_threads_that_still_wait) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    worker workers[4];
    wait_long(agent, workers, 4);
    doorman_agent_stop(agent);
    workers_join(workers, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(workers[i].last, DOORMAN_UNAVAILABLE);
    server_stop(&server);
}

TEST(a_waiting_thread_may_be_cancelled) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    worker workers[4];
    void *result = NULL;
    wait_long(agent, workers, 4);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_cancel(workers[i].thread), 0);
        assert_int_equal(pthread_join(workers[i].thread, &result), 0);
        assert_ptr_equal(result, PTHREAD_CANCELED);
    }
    assert_int_equal(info_of(agent).waiting_count, 2);
    assert_true(decide(agent, "free", "ann").granted);
    assert_int_equal(doorman_agent_shutdown(agent), DOORMAN_OK);
    workers_join(workers + 2, 2);
    doorman_agent_stop(agent);
    server_stop(&server);
}

/* An application whose first callback is slow: it returns when `goes_on` is set. */
struct slow_receiver {
    bool called, goes_on; /* atomic */
};

static void slow_on_decided(void *context, doorman_status status,
                            const doorman_acquired *acquired) {
    struct slow_receiver *receiver = (struct slow_receiver *)context;
    assert_int_equal(status, DOORMAN_UNAVAILABLE);
    assert_null(acquired);
    __atomic_store_n(&receiver->called, true, __ATOMIC_SEQ_CST);
    EVENTUALLY(__atomic_load_n(&receiver->goes_on, __ATOMIC_SEQ_CST));
}

/* The timeout of the second call ends after its decision was made, but before the agent reports it,
 * because the callback of the first call is slow. A thread that is cancelled then must return with
 * the decision, and not block the thread of the permits.
 *   margin    how long after its timeout the thread is cancelled
 *   returns   false if the thread was cancelled instead, because it noticed its timeout too late */
static bool returns_with_its_decision(doorman_time margin) {
    fake silent;
    fake_start(&silent, NULL, false);
    doorman_agent *agent = start(silent.url);
    const doorman_permit_item item = {.resource_id = "free", .key = "ann", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    struct slow_receiver receiver = {.called = false};
    const doorman_time timeout = 5 * DOORMAN_SECOND; /* long enough to see the call in the queue */
    const worker one = {.agent = agent, .resource_id = "free", .times = 1, .timeout = timeout};
    worker waiter;
    void *result = NULL;
    assert_int_equal(
        doorman_agent_acquire_async(agent, &request, LONG_TIME, slow_on_decided, &receiver, NULL),
        DOORMAN_OK);
    workers_start(&waiter, 1, &one);
    EVENTUALLY(info_of(agent).waiting_count == 2);
    const doorman_time end = doorman_clock() + timeout;
    assert_int_equal(doorman_agent_shutdown(agent), DOORMAN_OK);
    EVENTUALLY(__atomic_load_n(&receiver.called, __ATOMIC_SEQ_CST));
    EVENTUALLY(doorman_clock() > end + margin);
    assert_int_equal(pthread_cancel(waiter.thread), 0);
    __atomic_store_n(&receiver.goes_on, true, __ATOMIC_SEQ_CST);
    assert_int_equal(pthread_join(waiter.thread, &result), 0);
    if (result != PTHREAD_CANCELED) assert_int_equal(waiter.last, DOORMAN_UNAVAILABLE);
    doorman_agent_stop(agent);
    fake_stop(&silent);
    return result != PTHREAD_CANCELED;
}

/* A busy machine needs more time, so each further try has a larger margin. */
TEST(a_thread_is_not_cancelled_while_its_decision_is_told) {
    bool returns = false;
    for (int i = 1; i <= 64 && !returns; i *= 4) {
        returns = returns_with_its_decision(i * DOORMAN_SECOND / 10);
    }
    assert_true(returns);
}

TEST(the_kill_switch_ends_waits_and_grants) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    worker workers[4];
    wait_long(agent, workers, 4);
    assert_int_equal(doorman_agent_kill_switch(agent, true), DOORMAN_OK);
    workers_join(workers, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(workers[i].granted, 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(decide(agent, "twice", "ann").decided_by, DOORMAN_BY_BYPASS);
    }
    EVENTUALLY(info_of(agent).bypassed == 3);
    assert_int_equal(doorman_agent_kill_switch(agent, false), DOORMAN_OK);
    assert_false(decide(agent, "twice", "ann").granted);
    doorman_agent_stop(agent);
    server_stop(&server);
}

TEST(a_child_process_cannot_acquire) {
    struct server server = serve();
    doorman_agent *agent = start(server.url);
    assert_true(decide(agent, "free", "ann").granted);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        doorman_acquired acquired;
        bool good = acquire(agent, "free", "ann", 1, &acquired) == DOORMAN_UNAVAILABLE &&
                    doorman_agent_report(agent, "free", "ann", 1, NULL) == DOORMAN_UNAVAILABLE &&
                    doorman_agent_stop(agent) == DOORMAN_UNAVAILABLE;
        _exit(good ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(decide(agent, "free", "ann").granted);
    doorman_agent_stop(agent);
    server_stop(&server);
}

typedef struct change {
    doorman_agent *agent;  /* atomic */
    size_t calls, refused; /* atomic */
} change;

static void acquire_in_on_change(void *context, const doorman_resource_info *info) {
    change *self = (change *)context;
    doorman_agent *agent = __atomic_load_n(&self->agent, __ATOMIC_SEQ_CST);
    doorman_acquired acquired;
    (void)info;
    add_one(&self->calls);
    if (acquire(agent, "free", "ann", 1, &acquired) == DOORMAN_DEADLOCK &&
        doorman_agent_report(agent, "free", "ann", 1, NULL) == DOORMAN_DEADLOCK) {
        add_one(&self->refused);
    }
}

TEST(a_call_within_on_change_would_wait_for_itself) {
    struct server server = serve();
    change changes = {.agent = start(server.url)};
    doorman_resource *resource = NULL;
    const doorman_resource_options options = {.resource_id = "free",
                                              .wants = 1,
                                              .fallback = DOORMAN_OPTIMISTIC,
                                              .on_change = acquire_in_on_change,
                                              .context = &changes};
    assert_int_equal(doorman_resource_open(&resource, changes.agent, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_resource_set_wants(resource, 2), DOORMAN_OK);
    EVENTUALLY(load(&changes.calls) > 0);
    doorman_agent_stop(changes.agent);
    assert_int_equal(load(&changes.calls), load(&changes.refused));
    server_stop(&server);
}
