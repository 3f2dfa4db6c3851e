/* A Redis in which the counters of a node of several processes last (V8): first the store alone
 * (server/state/store.h), then real servers with a Redis, and with an etcd. DOORMAN_RESTARTS in the
 * environment sets the number of rounds. */
#define _GNU_SOURCE
#define DOORMAN_SERVER_REDIS
#define COMMAND_SECONDS 1 /* a Redis that hangs is noticed soon */
#include "../../server/state/address_redis.c"
#include "../../server/state/store.c"
#include "../../server/state/store_redis.c"

#include "redis_fixture.h"
#include "state_fixture.h"

/* ---- the store ------------------------------------------------------------------------------ */

const struct store_kind server_store_sqlite = {.prefix = ""}; /* this program opens no file */

struct world {
    struct redis redis;
    struct store_place place;
    char error[STORE_TEXT];
    struct store *store; /* NULL: closed */
};

/* Opens the store for one more process, which begins no mastership. */
static struct store *open_one(struct world *w) {
    struct store *store = NULL;
    if (server_store_check(&w->place, w->error)) store = server_store_open(&w->place, w->error);
    if (!store) fail_msg("%s", w->error);
    return store;
}

static void reopen(struct world *w) {
    server_store_close(w->store);
    w->store = open_one(w);
    if (server_store_begin(w->store, 0) != STORE_OK) fail_msg("%s", server_store_error(w->store));
}

static void world_start(struct world *w) {
    signal(SIGPIPE, SIG_IGN); /* as the server does */
    redis_require(&w->redis);
    w->place = (struct store_place){.address = w->redis.address, .node = "node"};
    reopen(w);
}

/* A test that has an open store. The harness ends the Redis. */
#define STORY(name)                                                                                \
    static void name##_told(struct world *w);                                                      \
    TEST(name) {                                                                                   \
        struct world w = {.store = NULL};                                                          \
        world_start(&w);                                                                           \
        name##_told(&w);                                                                           \
        server_store_close(w.store);                                                               \
    }                                                                                              \
    static void name##_told(struct world *w)

#include "../unit/store_stories.h"

/* Expects that the last call of a store has failed for a reason. */
static void expect_error(const struct store *store, enum store_result result,
                         enum store_result expected, const char *why) {
    assert_int_equal(result, expected);
    const char *error = server_store_error(store);
    if (!strstr(error, why)) fail_msg("'%s' does not say '%s'", error, why);
}

static enum store_result try_put(struct store *store, const char *key, const char *record) {
    struct store_row row = row_of(key, record, tomorrow(1000));
    return server_store_write(store, &row, 1);
}

/* D9 */
STORY(an_old_mastership_cannot_write) {
    struct store *other = open_one(w);
    put(w, "a", "1");
    assert_int_equal(server_store_begin(other, 0), STORE_OK);
    expect_error(w->store, try_put(w->store, "a", "2"), STORE_OUTDATED,
                 "another process has begun the mastership 2 of this node");
    expect_rows(w, "a=1");
    assert_int_equal(try_put(other, "a", "3"), STORE_OK);
    expect_rows(w, "a=3");
    server_store_close(other);
}

/* D9: the epochs are those of an election. */
STORY(a_mastership_that_is_not_the_last_cannot_begin) {
    struct store *other = open_one(w);
    assert_int_equal(server_store_begin(other, 7), STORE_OK);
    assert_int_equal(server_store_begin(other, 7), STORE_OK); /* its answer was lost, say */
    assert_int_equal(server_store_epoch(other), 7);
    expect_error(w->store, server_store_begin(w->store, 6), STORE_OUTDATED, "has the epoch 7");
    assert_int_equal(try_put(other, "a", "1"), STORE_OK);
    server_store_close(other);
}

/* Nodes whose names are patterns of each other. */
STORY(nodes_that_share_a_redis_have_rows_of_their_own) {
    static const char *const names[] = {"n*", "n?", "nn", "[n]n", "n\\*"};
    struct store_place place = w->place;
    for (int i = 0; i < 5; i++) {
        w->place.node = names[i];
        reopen(w);
        assert_int_equal(server_store_epoch(w->store), 1);
        put(w, names[i], "x");
    }
    for (int i = 0; i < 5; i++) {
        char expected[32];
        w->place.node = names[i];
        snprintf(expected, sizeof expected, "%s=x", names[i]);
        reopen(w);
        expect_rows(w, expected);
    }
    w->place = place;
    reopen(w);
    expect_rows(w, "");
}

STORY(rows_end_a_day_after_they_are_fresh) {
    const int64_t now = (int64_t)time(NULL);
    const struct store_row rows[] = {row_of("a", "1", now), row_of("old", "2", now - 86400 - 10)};
    assert_int_equal(server_store_write(w->store, rows, 2), STORE_OK);
    expect_rows(w, "a=1");
    int left = atoi(redis_run(&w->redis, "TTL doorman:{node}:row:a"));
    assert_in_range(left, 86400 - 60, 86400);
}

/* D10: what a person, or another program, has written. */
STORY(what_is_not_a_row_stays_and_stops_nothing) {
    struct store_row row;
    put(w, "a", "1");
    redis_run(&w->redis, "SET doorman:{node}:row:text rubbish");
    redis_run(&w->redis, "LPUSH doorman:{node}:row:list rubbish");
    redis_run(&w->redis, "SET other rubbish");
    bool found = false;
    int count = 0;
    for (; server_store_next(w->store, &row) == STORE_OK; count++) {
        if (row.identity_bytes != 4) continue;
        found = true;
        assert_int_equal(row.record_bytes, strlen("rubbish"));
        assert_memory_equal(row.record, "rubbish", row.record_bytes);
    }
    assert_true(found && count == 2);
    assert_string_equal(redis_run(&w->redis, "GET doorman:{node}:row:text"), "rubbish");
}

STORY(a_redis_that_has_lost_its_rows_is_named_and_used_again) {
    put(w, "a", "1");
    redis_run(&w->redis, "FLUSHALL");
    expect_error(w->store, try_put(w->store, "b", "2"), STORE_LOST, "it has lost rows");
    expect_rows(w, "");
    assert_int_equal(server_store_begin(w->store, server_store_epoch(w->store)), STORE_OK);
    put(w, "b", "2");
    expect_rows(w, "b=2");
}

STORY(a_redis_that_restarts_is_used_again) {
    put(w, "a", "1");
    redis_kill(&w->redis);
    expect_error(w->store, try_put(w->store, "a", "2"), STORE_FAILED, "Connection refused");
    struct store_row row;
    expect_error(w->store, server_store_next(w->store, &row), STORE_FAILED, "cannot be reached");
    redis_start(&w->redis);
    put(w, "b", "2");
    expect_rows(w, "a=1 b=2");
    redis_kill(&w->redis); /* while the connection is idle */
    redis_start(&w->redis);
    put(w, "c", "3");
    expect_rows(w, "a=1 b=2 c=3");
}

/* D10: a start must not need a Redis. */
STORY(a_store_can_be_opened_before_its_redis_is_there) {
    redis_kill(&w->redis);
    server_store_close(w->store);
    w->store = open_one(w);
    expect_error(w->store, server_store_begin(w->store, 0), STORE_FAILED, "cannot be reached");
    redis_start(&w->redis);
    assert_int_equal(server_store_begin(w->store, 0), STORE_OK);
    assert_int_equal(server_store_epoch(w->store), 2);
}

STORY(a_redis_that_hangs_fails_a_call) {
    put(w, "a", "1");
    process_signal(w->redis.process, SIGSTOP);
    expect_error(w->store, try_put(w->store, "a", "2"), STORE_FAILED,
                 "Redis does not answer in time");
    process_signal(w->redis.process, SIGCONT);
    put(w, "a", "3");
    expect_rows(w, "a=3");
}

STORY(a_redis_that_cannot_take_more_is_named) {
    redis_run(&w->redis, "CONFIG SET maxmemory 1");
    expect_error(w->store, try_put(w->store, "a", "1"), STORE_FAILED, "Redis is full");
    redis_run(&w->redis, "CONFIG SET maxmemory 0");
    redis_run(&w->redis, "REPLICAOF 127.0.0.1 1");
    expect_error(w->store, try_put(w->store, "a", "1"), STORE_FAILED, "this Redis is a replica");
    redis_run(&w->redis, "REPLICAOF NO ONE");
    redis_run(&w->redis, "CONFIG SET min-replicas-to-write 1");
    expect_error(w->store, try_put(w->store, "a", "1"), STORE_FAILED, "has too few replicas");
    redis_run(&w->redis, "CONFIG SET min-replicas-to-write 0");
    put(w, "a", "1");
}

static void expect_refused(struct world *w, const char *why) {
    struct store *store = server_store_open(&w->place, w->error);
    if (store || !strstr(w->error, why)) fail_msg("'%s' does not say '%s'", w->error, why);
}

STORY(a_redis_that_refuses_is_named_at_the_start) {
    char address[96], path[96];
    const char *open = w->place.address;
    w->place.address = address;
    snprintf(address, sizeof address, "redis://127.0.0.1:%d/99", w->redis.port);
    expect_refused(w, "Redis has no database with this number");
    snprintf(address, sizeof address, "redis://:word@127.0.0.1:%d", w->redis.port);
    expect_refused(w, "Redis has no password; give none");
    redis_run(&w->redis, "SET doorman:{node}:process rubbish");
    w->place.address = open;
    expect_refused(w, "are of another program");
    redis_run(&w->redis, "DEL doorman:{node}:process");
    redis_run(&w->redis, "HSET doorman:{node}:process schema 2");
    expect_refused(w, "was written by a newer doorman_server");
    expect_error(w->store, server_store_begin(w->store, 9), STORE_FAILED, "was written by a newer");
    redis_run(&w->redis, "ACL SETUSER doorman on >word ~doorman:* +@all");
    redis_run(&w->redis, "ACL SETUSER weak on >word ~other:* +@all");
    redis_run(&w->redis, "HSET doorman:{node}:process schema 1");
    w->place.address = address;
    snprintf(address, sizeof address, "redis://doorman@127.0.0.1:%d/1", w->redis.port);
    snprintf(path, sizeof path, "%s/password", w->redis.process->folder);
    w->place.password_file = path;
    expect_refused(w, "--state-password-file /");
    file_write(path, "wrong\n");
    expect_refused(w, "refuses the user or the password");
    file_write(path, "word\n");
    reopen(w);
    put(w, "a", "1");
    snprintf(address, sizeof address, "redis://weak@127.0.0.1:%d/1", w->redis.port);
    expect_refused(w, "the user of Redis needs the keys doorman:*");
    w->place.password_file = NULL;
    redis_run(&w->redis, "CONFIG SET requirepass word");
    w->place.address = open;
    expect_refused(w, "Redis needs a password");
}

/* D5 */
STORY(a_redis_that_may_forget_is_named) {
    assert_string_equal(server_store_warning(w->store), "");
    redis_run(&w->redis, "CONFIG SET appendonly no");
    redis_run(&w->redis, "CONFIG SET maxmemory-policy allkeys-lru");
    reopen(w);
    assert_non_null(strstr(server_store_warning(w->store), "appendonly is no"));
    assert_non_null(strstr(server_store_warning(w->store), "maxmemory-policy is not noeviction"));
}

TEST(an_address_has_parts) {
    struct redis_address out;
    assert_null(server_redis_address_read("redis://h", &out));
    assert_string_equal(out.host, "h");
    assert_int_equal(out.port, 6379);
    assert_int_equal(out.database, 0);
    assert_string_equal(out.password, "");
    assert_null(server_redis_address_read("redis://u:p%40%3a@/@[::1]:7/15", &out));
    assert_string_equal(out.host, "::1");
    assert_int_equal(out.port, 7);
    assert_int_equal(out.database, 15);
    assert_string_equal(out.user, "u");
    assert_string_equal(out.password, "p@:@/");
    assert_null(server_redis_address_read("redis://:p@h/", &out));
    assert_string_equal(out.user, "");
    assert_string_equal(out.password, "p");
    assert_null(server_redis_address_read("redis://u@h:1", &out));
    assert_string_equal(out.user, "u");
    static const char *const wrong[] = {
        "redis://",      "redis://:6379", "redis://h:",    "redis://h:x",       "redis://h:70000",
        "redis://h/x",   "redis://h/1/2", "redis://h:0",   "redis://[::1",      "redis://[::1]x",
        "redis://u:%@h", "redis://%00@h", "redis://h:1:2", "redis://h/1000000", "rediss://h"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (!server_redis_address_read(wrong[i], &out)) fail_msg("%s is accepted", wrong[i]);
    }
}
