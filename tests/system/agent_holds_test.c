/* Holds through the agent, with a real server. Time is real, so the tests assert only orders and
 * bounds, and every wait has a time-out. */
#define _GNU_SOURCE
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman_permits.h"

#include "harness.h"
#include <pthread.h>

#define LONG_TIME (TIMEOUT_MS * (DOORMAN_SECOND / 1000)) /* far longer than anything here takes */

static const char config[] =
    "{\"resources\": ["
    "{\"identifier_glob\": \"short\", \"limits\": [{\"name\": \"one\", \"kind\": \"CONCURRENCY\", "
    "\"limit\": 1, \"time_to_live\": 12, \"max_wait\": 600, \"queue\": 100, \"on_restart\": "
    "\"full\"}]},"
    "{\"identifier_glob\": \"free\", \"limits\": []},"
    "{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"two\", \"kind\": \"CONCURRENCY\", "
    "\"limit\": 2, \"time_to_live\": 600, \"max_wait\": 600, \"queue\": 100, \"on_restart\": "
    "\"full\"}]}]}";

static doorman_agent *start_with(const char *url, doorman_permit_policy policy) {
    const doorman_client_options options = {
        .addresses = &url, .address_count = 1, .request_timeout = LONG_TIME, .permits = policy};
    doorman_agent *agent = NULL;
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    return agent;
}

static doorman_agent *start(const char *url) {
    return start_with(url, (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED});
}

static void stop(doorman_agent *agent) { assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK); }

/* Asks for units. Returns the number of the hold, or 0. */
static uint64_t hold_units(doorman_agent *agent, const char *resource, double units,
                           doorman_time max_wait) {
    uint64_t hold = 0;
    const doorman_permit_item item = {.resource_id = resource, .cost = units};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait, .hold = &hold};
    doorman_acquired acquired;
    doorman_status status = doorman_agent_acquire(agent, &request, LONG_TIME, &acquired, NULL);
    return status == DOORMAN_OK && acquired.granted ? acquired.hold : 0;
}

static void release(doorman_agent *agent, uint64_t hold) {
    assert_int_equal(doorman_agent_release(agent, hold), DOORMAN_OK);
}

static doorman_held read_hold(doorman_agent *agent, uint64_t hold) {
    doorman_held held;
    assert_int_equal(doorman_agent_read_hold(agent, hold, &held), DOORMAN_OK);
    return held;
}

/* Starts a process that holds the unit of `short` until it is killed, or for a minute. */
static pid_t start_holder(const char *url, int to) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    doorman_agent *agent = start(url);
    char done = hold_units(agent, "short", 1, 0) ? 'y' : 'n';
    if (write(to, &done, 1) != 1) _exit(1);
    for (int i = 0; i < 600; i++) sleep_ms(100);
    _exit(0);
}

/* This must be the first test, because a child of a process that has used nng cannot use nng. */
TEST(a_killed_holder_frees_its_units) {
    struct server server = server_start(config, NULL);
    int ends[2];
    char done = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t holder = start_holder(server.url, ends[1]);
    assert_int_equal(read(ends[0], &done, 1), 1);
    assert_int_equal(done, 'y');
    doorman_agent *agent = start(server.url);
    assert_true(hold_units(agent, "short", 1, 0) == 0);
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    uint64_t hold = hold_units(agent, "short", 1, LONG_TIME);
    assert_true(hold > 0);
    release(agent, hold);
    stop(agent);
    close(ends[0]);
    close(ends[1]);
    server_stop(&server);
}

TEST(a_hold_is_renewed_until_it_is_released) {
    struct server server = server_start(config, NULL);
    doorman_agent *agent = start(server.url), *other = start(server.url);
    uint64_t hold = hold_units(agent, "short", 1, 0);
    assert_true(hold > 0);
    doorman_time end = read_hold(agent, hold).ends_at;
    EVENTUALLY(read_hold(agent, hold).ends_at > end);
    assert_true(hold_units(other, "short", 1, 0) == 0);
    release(agent, hold);
    release(agent, hold);
    assert_true(read_hold(agent, hold).gone);
    assert_true(hold_units(other, "short", 1, LONG_TIME) > 0);
    stop(agent);
    stop(other);
    server_stop(&server);
}

struct waiter {
    doorman_agent *agent;
    uint64_t hold;
    pthread_t thread;
};

static void *wait_for_two(void *context) {
    struct waiter *waiter = (struct waiter *)context;
    waiter->hold = hold_units(waiter->agent, "slots", 2, LONG_TIME);
    return NULL;
}

TEST(a_thread_waits_in_the_queue_and_delays_no_other_permit) {
    struct server server = server_start(config, NULL);
    doorman_agent *agent = start(server.url);
    uint64_t first = hold_units(agent, "slots", 1, 0);
    assert_true(first > 0);
    struct waiter waiters[3];
    for (int i = 0; i < 3; i++) {
        waiters[i] = (struct waiter){.agent = agent};
        assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_for_two, &waiters[i]), 0);
    }
    doorman_agent_info info = {.connected = false};
    EVENTUALLY(doorman_agent_read_info(agent, &info) == DOORMAN_OK &&
               info.permits.hold_count == 4 && info.permits.messages >= 4);
    const doorman_permit_item item = {.resource_id = "free", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired acquired;
    assert_int_equal(doorman_agent_acquire(agent, &request, LONG_TIME, &acquired, NULL),
                     DOORMAN_OK);
    assert_true(acquired.granted && acquired.decided_by == DOORMAN_BY_SERVER);
    release(agent, first);
    int left = 3;
    while (left > 0) {
        size_t count = 0;
        EVENTUALLY(doorman_agent_read_info(agent, &info) == DOORMAN_OK &&
                   info.permits.waiting_count < (size_t)left);
        for (int i = 0; i < 3; i++) {
            if (!waiters[i].agent) continue;
            if (pthread_tryjoin_np(waiters[i].thread, NULL) != 0) continue;
            waiters[i].agent = NULL;
            assert_true(waiters[i].hold > 0);
            release(agent, waiters[i].hold);
            left--;
            count++;
        }
        if (!count) sleep_ms(5);
    }
    stop(agent);
    server_stop(&server);
}

struct decision {
    int calls; /* atomic */
    doorman_acquired acquired;
};

static void on_decided(void *context, doorman_status status, const doorman_acquired *acquired) {
    struct decision *decision = (struct decision *)context;
    if (status == DOORMAN_OK) decision->acquired = *acquired;
    __atomic_add_fetch(&decision->calls, 1, __ATOMIC_RELEASE);
}

TEST(a_release_ends_a_call_that_waits) {
    struct server server = server_start(config, NULL);
    doorman_agent *agent = start(server.url);
    uint64_t first = hold_units(agent, "slots", 2, 0), second = 0;
    assert_true(first > 0);
    struct decision decision = {.calls = 0};
    const doorman_permit_item item = {.resource_id = "slots", .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = LONG_TIME, .hold = &second};
    assert_int_equal(
        doorman_agent_acquire_async(agent, &request, LONG_TIME, on_decided, &decision, NULL),
        DOORMAN_OK);
    assert_true(second > 0 && second != first);
    release(agent, second);
    EVENTUALLY(__atomic_load_n(&decision.calls, __ATOMIC_ACQUIRE) == 1);
    assert_false(decision.acquired.granted);
    assert_int_equal(decision.acquired.decided_by, DOORMAN_BY_CALLER);
    release(agent, first);
    uint64_t both = hold_units(agent, "slots", 2, LONG_TIME); /* nothing has leaked */
    assert_true(both > 0);
    stop(agent);
    server_stop(&server);
}

/* A thread that asks for units. The number of its hold was chosen before the thread began. */
struct job {
    doorman_agent *agent;
    uint64_t number;
    doorman_status status;
    doorman_acquired out;
    pthread_t thread;
};

static void *job_main(void *context) {
    struct job *job = (struct job *)context;
    const doorman_time max_wait = LONG_TIME, timeout = LONG_TIME;
    const doorman_permit_item item = {.resource_id = "slots", .cost = 2};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait, .request_id = job->number};
    job->status = doorman_agent_acquire(job->agent, &request, timeout, &job->out, NULL);
    return NULL;
}

static struct job job_of(doorman_agent *agent) {
    struct job job = {.agent = agent};
    assert_int_equal(doorman_agent_new_hold(agent, &job.number), DOORMAN_OK);
    return job;
}

static void job_start(struct job *job) {
    assert_int_equal(pthread_create(&job->thread, NULL, job_main, job), 0);
}

static void job_join(struct job *job, bool granted) {
    assert_int_equal(pthread_join(job->thread, NULL), 0);
    assert_int_equal(job->status, DOORMAN_OK);
    assert_int_equal(job->out.granted, granted);
    if (granted) {
        assert_true(job->out.hold == job->number);
    } else {
        assert_int_equal(job->out.decided_by, DOORMAN_BY_CALLER);
    }
}

/* The test cancels permits of other threads: one before the call, one in the queue, and one after
 * the grant. Neither thread reads a variable while the other one writes it. */
TEST(another_thread_cancels_a_permit_by_its_number) {
    struct server server = server_start(config, NULL);
    doorman_agent *agent = start(server.url);
    uint64_t first = hold_units(agent, "slots", 1, 0);
    assert_true(first > 0);

    struct job early = job_of(agent);
    release(agent, early.number);
    job_start(&early);
    job_join(&early, false);

    struct job waiting = job_of(agent);
    doorman_agent_info info = {.connected = false};
    assert_int_equal(doorman_agent_read_info(agent, &info), DOORMAN_OK);
    uint64_t messages = info.permits.messages;
    job_start(&waiting);
    EVENTUALLY(doorman_agent_read_info(agent, &info) == DOORMAN_OK &&
               info.permits.messages > messages);
    assert_false(read_hold(agent, waiting.number).gone);
    release(agent, waiting.number);
    job_join(&waiting, false);

    struct job late = job_of(agent);
    release(agent, first);
    job_start(&late);
    job_join(&late, true);
    assert_float_equal(read_hold(agent, late.number).units[0], 2, 0);
    release(agent, late.number);
    assert_true(read_hold(agent, late.number).gone);
    uint64_t both = hold_units(agent, "slots", 2, LONG_TIME); /* nothing has leaked */
    assert_true(both > 0);
    release(agent, both);
    stop(agent);
    server_stop(&server);
}

/* The release comes before, during or after the call. In each case the units come back. */
TEST(a_release_by_number_may_come_at_any_moment) {
    struct server server = server_start(config, NULL);
    doorman_agent *agent = start(server.url);
    for (int i = 0; i < 100; i++) {
        struct job job = job_of(agent);
        job_start(&job);
        for (int spin = 0; spin < i % 10; spin++) (void)read_hold(agent, job.number);
        if (i % 5 == 0) sleep_ms(1);
        release(agent, job.number);
        assert_int_equal(pthread_join(job.thread, NULL), 0);
        assert_int_equal(job.status, DOORMAN_OK);
        if (!job.out.granted) assert_int_equal(job.out.decided_by, DOORMAN_BY_CALLER);
        assert_true(read_hold(agent, job.number).gone);
    }
    uint64_t both = hold_units(agent, "slots", 2, LONG_TIME);
    assert_true(both > 0);
    release(agent, both);
    doorman_agent_info info = {.connected = false};
    EVENTUALLY(doorman_agent_read_info(agent, &info) == DOORMAN_OK && info.permits.hold_count == 0);
    stop(agent);
    server_stop(&server);
}

TEST(units_move_to_another_agent) {
    struct server server = server_start(config, NULL);
    doorman_agent *giver = start(server.url), *taker = start(server.url);
    uint64_t hold = hold_units(giver, "slots", 2, 0);
    doorman_acquired acquired;
    const double one = 1;
    const doorman_hold_request transfer = {
        .id = hold, .amounts = &one, .amount_count = 1, .timeout = LONG_TIME};
    assert_int_equal(doorman_agent_transfer(giver, &transfer, &acquired, NULL), DOORMAN_OK);
    assert_true(acquired.granted && acquired.transfer_id);
    const doorman_hold_request seizure = {.id = acquired.transfer_id, .timeout = LONG_TIME};
    assert_int_equal(doorman_agent_seize(taker, &seizure, &acquired, NULL), DOORMAN_OK);
    assert_true(acquired.granted && acquired.hold);
    uint64_t seized = acquired.hold;
    assert_float_equal(read_hold(taker, seized).units[0], 1, 0);
    assert_float_equal(read_hold(giver, hold).units[0], 1, 0);
    assert_int_equal(doorman_agent_seize(giver, &seizure, &acquired, NULL), DOORMAN_OK);
    assert_false(acquired.granted); /* it was seized before */
    release(giver, seized);         /* the number of another agent: nothing happens */
    assert_true(hold_units(giver, "slots", 1, 0) == 0);
    release(taker, seized);
    assert_true(hold_units(giver, "slots", 1, LONG_TIME) > 0);
    stop(giver);
    stop(taker);
    server_stop(&server);
}

static void count_hold(void *context, const doorman_held *held) {
    if (held->gone) __atomic_add_fetch((int *)context, 1, __ATOMIC_RELEASE);
}

TEST(an_application_is_told_that_its_hold_has_ended) {
    int gone = 0; /* atomic */
    struct server server = server_start(config, NULL);
    doorman_agent *agent =
        start_with(server.url, (doorman_permit_policy){.fallback = DOORMAN_FAIL_CLOSED,
                                                       .on_hold_changed = count_hold,
                                                       .context = &gone});
    uint64_t hold = hold_units(agent, "short", 1, 0);
    assert_true(hold > 0);
    server_stop(&server);
    EVENTUALLY(__atomic_load_n(&gone, __ATOMIC_ACQUIRE) == 1);
    assert_true(read_hold(agent, hold).gone);
    release(agent, hold);
    stop(agent);
}

/* Starts a server at an address. Its limit is one unit.
 *   time_to_live   of a hold, in seconds
 *   on_restart     what the limit does when the server starts */
static struct process *server_at(const char *url, int time_to_live, const char *on_restart) {
    struct process *process = process_new();
    char text[512];
    snprintf(text, sizeof text,
             "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"one\", "
             "\"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": %d, \"max_wait\": 600, "
             "\"queue\": 100, \"on_restart\": \"%s\"}]}]}",
             time_to_live, on_restart);
    const char *const arguments[] = {"--config", process->config, "--listen", url, NULL};
    file_write(process->config, text);
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    return process;
}

/* Checks that a hold outlives a server that is killed and started again. The new server learns for
 * 1.05 times the time to live, and then decides on the permits that wait. So if the hold is renewed
 * until 2.5 times the time to live after its grant, the new server also counts it after learning.
 * Returns false if the hold ended because no server answered in time. */
static bool hold_outlives_server(int time_to_live) {
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port_free());
    struct process *server = server_at(url, time_to_live, "full");
    doorman_agent *agent = start(url);
    uint64_t hold = hold_units(agent, "slots", 1, 0);
    assert_true(hold > 0);
    doorman_time end = read_hold(agent, hold).ends_at;
    process_signal(server, SIGKILL);
    process_wait(server);
    server = server_at(url, time_to_live, "learn");
    doorman_agent *other = start(url);
    struct decision decision = {.calls = 0};
    const doorman_permit_item item = {.resource_id = "slots", .cost = 1};
    uint64_t second = 0;
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = LONG_TIME, .hold = &second};
    assert_int_equal(
        doorman_agent_acquire_async(other, &request, LONG_TIME, on_decided, &decision, NULL),
        DOORMAN_OK);
    doorman_held held;
    const doorman_time last = end + time_to_live * DOORMAN_SECOND * 3 / 2;
    EVENTUALLY((held = read_hold(agent, hold)).gone || held.ends_at > last);
    if (!held.gone) {
        assert_int_equal(__atomic_load_n(&decision.calls, __ATOMIC_ACQUIRE), 0);
        release(agent, hold);
        EVENTUALLY(__atomic_load_n(&decision.calls, __ATOMIC_ACQUIRE) == 1);
        assert_true(decision.acquired.granted);
        assert_int_equal(decision.acquired.decided_by, DOORMAN_BY_SERVER);
        release(other, second);
    }
    stop(agent);
    stop(other);
    process_signal(server, SIGTERM);
    process_end(server, 0);
    return !held.gone;
}

/* A busy machine can need longer than the time to live to start the next server. So the hold lives
 * longer in each further try. */
TEST(a_hold_outlives_its_server) {
    bool outlived = false;
    for (int seconds = 12; seconds <= 96 && !outlived; seconds *= 2) {
        outlived = hold_outlives_server(seconds);
    }
    assert_true(outlived);
}

#define WORKERS 6
#define ROUNDS 40

struct stress {
    doorman_agent *agent;
    int in_use, most, granted; /* atomic */
    unsigned seed;
};

static void ignore_decision(void *context, doorman_status status,
                            const doorman_acquired *acquired) {
    (void)context, (void)status, (void)acquired;
}

/* Takes and releases units, and cancels calls at random moments. */
static void *work(void *context) {
    struct stress *stress = (struct stress *)context;
    unsigned seed = __atomic_add_fetch(&stress->seed, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < ROUNDS; i++) {
        if (rand_r(&seed) % 2) {
            uint64_t hold = hold_units(stress->agent, "slots", 1, LONG_TIME);
            if (!hold) continue;
            int now = __atomic_add_fetch(&stress->in_use, 1, __ATOMIC_SEQ_CST);
            if (now > 2) __atomic_store_n(&stress->most, now, __ATOMIC_SEQ_CST);
            __atomic_add_fetch(&stress->granted, 1, __ATOMIC_SEQ_CST);
            __atomic_sub_fetch(&stress->in_use, 1, __ATOMIC_SEQ_CST);
            release(stress->agent, hold);
        } else {
            uint64_t hold = 0;
            const doorman_permit_item item = {.resource_id = "slots", .cost = 1};
            const doorman_permit_request request = {
                .items = &item, .item_count = 1, .max_wait = LONG_TIME, .hold = &hold};
            (void)doorman_agent_acquire_async(stress->agent, &request, LONG_TIME, ignore_decision,
                                              NULL, NULL);
            if (rand_r(&seed) % 2) sleep_ms((int)(rand_r(&seed) % 5));
            release(stress->agent, hold);
        }
    }
    return NULL;
}

TEST(releases_at_any_moment_leak_nothing) {
    struct server server = server_start(config, NULL);
    struct stress stress = {.agent = start(server.url)};
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, &stress), 0);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(stress.most, 0);
    assert_true(stress.granted > 0);
    uint64_t both = hold_units(stress.agent, "slots", 2, LONG_TIME);
    assert_true(both > 0);
    stop(stress.agent);
    server_stop(&server);
}
