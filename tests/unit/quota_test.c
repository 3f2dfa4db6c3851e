/* Quotas as a state machine (W5), with a real server object. The simulator has random runs of it:
 * tests/sim/sim_quota.c. */
#include "unit.h"

#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#include <stdlib.h>

static void *quota_calloc(size_t count, size_t bytes) {
    void *memory = unit_malloc(count * bytes);
    if (memory) memset(memory, 0, count * bytes);
    return memory;
}
#define calloc quota_calloc
#define realloc unit_realloc
#define free unit_free
#include "../../server/grpc/quota.c"
#undef calloc
#undef realloc
#undef free

#define SECOND DOORMAN_SECOND
#define LEASE (10 * SECOND)
#define STREAMS 4

/* A master with a capacity of 100 units a second, leases of 10 s, and some streams. */
struct world {
    doorman_config *config;
    doorman_server *server;
    struct quotas *quotas;
    struct quota_stream *streams[STREAMS];
    doorman_time now;
    bool does_not_learn;
    doorman_time lease_length; /* that the owner describes; 0: LEASE */
};

/* Describes a resource to the quotas. The server object never learns, so that the tests are short.
 * But out->learns is true, except in tests that set does_not_learn. */
static void describe(void *context, const char *resource_id, struct quota_facts *out) {
    const struct world *w = (const struct world *)context;
    (void)resource_id;
    out->lease_length = w->lease_length ? w->lease_length : LEASE;
    out->learns = !w->does_not_learn;
}

static void world_setup(struct world *w) {
    const doorman_template template = {.identifier_glob = "shop/*",
                                       .capacity = 100,
                                       .has_algorithm = true,
                                       .algorithm = {.lease_length = LEASE,
                                                     .refresh_interval = 2 * SECOND,
                                                     .has_learning_mode_duration = true}};
    const doorman_config_options config = {
        .templates = &template, .template_count = 1, .reject_unmatched = true};
    const doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    const struct quota_options options = {
        .bucket_max = 8, .drift = 0.05, .seed = 1, .describe = describe, .context = w};
    w->now = 1000 * SECOND;
    assert_int_equal(doorman_config_create(&w->config, &config, NULL), DOORMAN_OK);
    const doorman_server_options server = {.node = "node", .config = w->config, .seed = {1, 2}};
    assert_int_equal(doorman_server_create(&w->server, &server, NULL, w->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(w->server, &mastership, w->now), DOORMAN_OK);
    w->quotas = server_quotas_create(&options);
    assert_non_null(w->quotas);
    server_quotas_begin(w->quotas, w->now);
}

static void world_teardown(struct world *w) {
    server_quotas_destroy(w->quotas);
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
}
FIXTURE(world)

static struct quota_stream *stream_of(struct world *w, size_t index, const char *name) {
    if (!w->streams[index]) w->streams[index] = server_quota_open(w->quotas, name, w->now);
    assert_non_null(w->streams[index]);
    return w->streams[index];
}

static bool report(struct world *w, size_t index, const char *resource, double denied) {
    const struct quota_report counts = {resource, resource, strlen(resource), 0, denied};
    return server_quota_report(stream_of(w, index, ""), &counts, w->now);
}

/* Asks for all leases that are due. */
static void work(struct world *w) {
    doorman_request request;
    doorman_response response;
    while (server_quotas_request(w->quotas, &request, w->now)) {
        assert_int_equal(doorman_server_handle(w->server, &request, &response, NULL, w->now),
                         DOORMAN_OK);
        server_quotas_response(w->quotas, &response, w->now);
    }
    assert_true(server_quotas_due(w->quotas) > w->now);
}

/* Returns the tokens of the last assignment that a stream gets now; -1: it has no action, -2: its
 * last action is no assignment. */
static double next_tokens(struct world *w, size_t index) {
    struct quota_action action;
    double tokens = -1;
    while (server_quota_next_action(w->streams[index], &action, w->now)) {
        tokens = action.kind == QUOTA_ASSIGN ? (double)action.tokens : -2;
    }
    return tokens;
}

/* Lets a stream ask for much until a time. Returns its last tokens. */
static double run_until(struct world *w, size_t index, doorman_time until) {
    double tokens = -1;
    while (w->now < until) {
        w->now += SECOND;
        assert_true(report(w, index, "shop/a", 10000));
        work(w);
        double next = next_tokens(w, index);
        if (next != -1) tokens = next;
    }
    return tokens;
}

/* W5: an assignment ends a second before its lease, and is the same each time. */
TEST_WITH(world, an_assignment_is_repeated_without_a_change) {
    struct quota_action first = {.tokens = 0}, action;
    assert_float_equal(run_until(w, 0, w->now + 20 * SECOND), 100, 0);
    for (int count = 0; count < 5;) {
        w->now += SECOND;
        assert_true(report(w, 0, "shop/a", 10000));
        work(w);
        if (!server_quota_next_action(w->streams[0], &action, w->now)) continue;
        if (count++ == 0) first = action;
        assert_int_equal(action.tokens, first.tokens);
        assert_int_equal(action.interval, 1);
        assert_int_equal(action.time_to_live, 9);
    }
}

/* W5: a smaller assignment is in force at once, but the larger one stays committed until its time
 * to live has passed. */
TEST_WITH(world, a_larger_assignment_stays_committed_until_it_has_ended) {
    struct quota_action action;
    assert_float_equal(run_until(w, 0, w->now + 20 * SECOND), 100, 0);
    doorman_time cut_at = 0;
    double other = 0, now_has = 100;
    doorman_time renewed_at = w->now;
    for (int i = 0; i < 300 && other < 50; i++) {
        w->now += SECOND / 10;
        if (i % 10 == 0) assert_true(report(w, 0, "shop/a", 10000));
        if (i % 10 == 0) assert_true(report(w, 1, "shop/a", 10000));
        work(w);
        while (server_quota_next_action(w->streams[0], &action, w->now)) {
            if (action.tokens == 100) renewed_at = w->now;
            if (action.tokens == 50 && !cut_at) cut_at = w->now;
            now_has = action.tokens;
        }
        double tokens = next_tokens(w, 1);
        if (tokens >= 0) other = tokens;
        /* the larger one lasts 9 s, and its clock may be slow by 5 % */
        if (other > 0) assert_true(w->now >= renewed_at + 9 * SECOND + 9 * SECOND / 20);
    }
    assert_true(cut_at > 0 && now_has == 50 && other == 50);
    assert_true(w->now <= cut_at + LEASE + LEASE / 2);
}

/* W5: when the time to live has passed, other streams get what an ended stream had. A new stream
 * with the name of the ended one need not wait. */
TEST_WITH(world, a_stream_continues_the_one_that_had_its_name) {
    assert_non_null(stream_of(w, 0, "edge"));
    assert_float_equal(run_until(w, 0, w->now + 20 * SECOND), 100, 0);
    server_quota_close(w->streams[0], w->now);
    w->streams[0] = NULL;
    assert_true(report(w, 1, "shop/a", 10000));
    work(w);
    assert_float_equal(next_tokens(w, 1), 0, 0);
    assert_non_null(stream_of(w, 0, "edge"));
    assert_string_equal(server_quota_holder(w->streams[0]), "quota:edge");
    assert_true(report(w, 0, "shop/a", 10000));
    w->now += 2 * SECOND;
    work(w);
    assert_true(next_tokens(w, 0) >= 50);
    /* a second live stream with the name is another holder */
    assert_string_not_equal(server_quota_holder(stream_of(w, 2, "edge")), "quota:edge");
    assert_string_not_equal(server_quota_holder(stream_of(w, 3, "\x01")), "quota:\x01");
}

/* W5: a bucket without requests for three leases is abandoned, after its assignment has ended. */
TEST_WITH(world, an_idle_bucket_is_abandoned_when_nothing_is_committed) {
    assert_true(run_until(w, 0, w->now + 5 * SECOND) > 0);
    doorman_time used_at = w->now, assigned_at = w->now;
    double tokens = -1;
    while (tokens != -2 && w->now < used_at + 100 * SECOND) {
        w->now += SECOND / 2;
        if (tokens != -2) assert_true(report(w, 0, "shop/a", 0));
        work(w);
        tokens = next_tokens(w, 0);
        if (tokens >= 0) assigned_at = w->now;
    }
    assert_true(w->now >= used_at + 3 * LEASE && w->now >= assigned_at + 9 * SECOND);
    assert_true(w->now <= used_at + 4 * LEASE + SECOND);
    assert_int_equal(server_quotas_counts(w->quotas)->buckets, 0);
    assert_true(report(w, 0, "shop/a", 1)); /* the bucket begins again */
    work(w);
    assert_true(next_tokens(w, 0) >= 1);
}

/* W5: a stream that no longer reports gets no new assignment once a lease length has passed. */
TEST_WITH(world, a_stream_that_stands_still_gets_nothing_new) {
    assert_true(run_until(w, 0, w->now + 5 * SECOND) > 0);
    doorman_time reported_at = w->now, assigned_at = w->now;
    while (w->now < reported_at + 3 * LEASE - SECOND) {
        w->now += SECOND;
        work(w);
        if (next_tokens(w, 0) >= 0) assigned_at = w->now;
    }
    assert_true(assigned_at > reported_at && assigned_at <= reported_at + LEASE);
}

/* W5: a mastership whose server object does not learn assigns nothing for a lease and the drift.
 * The lease of a node with a parent may be short at first. The configured length counts. */
TEST_WITH(world, a_mastership_that_does_not_learn_waits_for_the_longest_lease) {
    w->does_not_learn = true;
    for (int i = 1; i <= 3; i += 2) {
        w->lease_length = i * LEASE;
        server_quotas_begin(w->quotas, w->now);
        const doorman_time begun_at = w->now;
        double tokens = -1;
        while (tokens < 0 && w->now < begun_at + 100 * SECOND) {
            w->now += SECOND / 10;
            assert_true(report(w, 0, "shop/a", 1));
            work(w);
            tokens = next_tokens(w, 0);
        }
        assert_true(w->now >= begun_at + i * (LEASE + LEASE / 20));
        assert_true(w->now <= begun_at + i * (LEASE + LEASE / 20) + SECOND);
        server_quota_close(w->streams[0], w->now);
        w->streams[0] = NULL;
    }
}

/* An assignment that could not be sent for half a second is decided again. */
TEST_WITH(world, an_old_assignment_is_not_sent) {
    struct quota_action action;
    assert_true(report(w, 0, "shop/a", 1));
    work(w);
    w->now += SECOND;
    assert_false(server_quota_next_action(w->streams[0], &action, w->now));
    work(w);
    assert_true(server_quota_next_action(w->streams[0], &action, w->now));
    assert_true(action.time_to_live >= 1 && action.time_to_live <= 9);
}

TEST_WITH(world, the_number_of_buckets_has_a_limit) {
    char name[32];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "shop/%d", i);
        assert_int_equal(report(w, 0, name, 1), i < 8);
    }
    assert_true(report(w, 0, "shop/3", 1)); /* it exists */
    assert_int_equal(server_quotas_counts(w->quotas)->buckets, 8);
    assert_int_equal(server_quotas_counts(w->quotas)->refused, 2);
    /* a bucket without a template makes room */
    server_quota_close(w->streams[0], w->now);
    w->streams[0] = NULL;
    assert_true(report(w, 0, "none", 1));
    work(w);
    assert_float_equal(next_tokens(w, 0), -1, 0);
    assert_int_equal(server_quotas_counts(w->quotas)->buckets, 0);
    assert_int_equal(server_quotas_counts(w->quotas)->unmatched, 1);
}

/* W5: one stream may have a tenth of bucket_max, or 100 buckets if that is more. */
TEST_WITH(world, one_stream_leaves_buckets_for_others) {
    const struct quota_options options = {
        .bucket_max = 2000, .drift = 0.05, .seed = 1, .describe = describe, .context = w};
    char name[32];
    server_quotas_destroy(w->quotas);
    w->quotas = server_quotas_create(&options);
    assert_non_null(w->quotas);
    server_quotas_begin(w->quotas, w->now);
    for (int i = 0; i < 250; i++) {
        snprintf(name, sizeof name, "shop/%d", i);
        assert_int_equal(report(w, 0, name, 1), i < 200);
    }
    assert_int_equal(server_quotas_counts(w->quotas)->refused, 50);
    assert_true(report(w, 1, "shop/other", 1));
    assert_true(report(w, 0, "shop/0", 1)); /* it exists */
    /* a bucket that is gone makes room in its stream */
    server_quota_close(w->streams[0], w->now);
    w->streams[0] = NULL;
    assert_true(report(w, 0, "shop/200", 1));
}

/* These are the counts that /v1/status shows. */
TEST_WITH(world, counts_are_those_of_streams_and_their_ends) {
    const struct quota_counts *counts = server_quotas_counts(w->quotas);
    assert_non_null(stream_of(w, 0, "edge"));
    assert_float_equal(run_until(w, 0, w->now + 20 * SECOND), 100, 0);
    assert_true(report(w, 1, "shop/a", 0) && report(w, 2, "shop/b", 10));
    work(w);
    assert_true(next_tokens(w, 2) > 0);
    assert_int_equal(counts->streams, 3);
    assert_int_equal(counts->buckets, 3);
    assert_int_equal(counts->resources, 2);
    assert_int_equal(counts->ended_streams, 0);
    server_quota_close(w->streams[0], w->now);
    server_quota_close(w->streams[2], w->now);
    w->streams[0] = w->streams[2] = NULL;
    assert_int_equal(counts->streams, 1);
    assert_int_equal(counts->ended_streams, 2);
    assert_true(counts->ended_committed > 100 && counts->ended_committed <= 200);
    assert_non_null(stream_of(w, 0, "edge")); /* the new stream continues the old one */
    assert_int_equal(counts->ended_streams, 1);
    assert_true(counts->ended_committed > 0 && counts->ended_committed <= 100);
    server_quota_close(w->streams[0], w->now);
    w->streams[0] = NULL;
    for (int i = 0; i < 2 * LEASE / SECOND; i++) {
        w->now += SECOND;
        work(w);
    }
    assert_int_equal(counts->ended_streams, 0);
    assert_int_equal(counts->ended_buckets, 0);
    assert_float_equal(counts->ended_committed, 0, 0);
    assert_int_equal(counts->buckets, 1);
    assert_int_equal(counts->resources, 1);
}

/* If memory runs out, a stream or a bucket is not made, and nothing else has changed. */
TEST_WITH(world, without_memory_nothing_is_made) {
    size_t n = 0, blocks = 0;
    bool done = false;
    assert_true(report(w, 0, "shop/kept", 1));
    do {
        memory_fails_at(++n);
        blocks = memory_blocks();
        struct quota_stream *stream = server_quota_open(w->quotas, "edge", w->now);
        if (stream) {
            const struct quota_report counts = {"shop/new", "x", 1, 1, 1};
            done = server_quota_report(stream, &counts, w->now);
            server_quota_close(stream, w->now);
        }
        /* tables may have grown */
        assert_true(memory_blocks() <= blocks + 2);
        assert_int_equal(server_quotas_counts(w->quotas)->buckets, 1);
    } while (!memory_works() && n < 50);
    assert_true(done && n > 3);
}
