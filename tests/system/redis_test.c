/* A Redis keeps the counters of a node of several processes (V8). First come tests of the store
 * alone (server/store/store.h), then tests of real servers with a Redis, and with an etcd.
 * DOORMAN_RESTARTS and DOORMAN_KILLS in the environment set the numbers of rounds. */
#define _GNU_SOURCE
#define DOORMAN_SERVER_REDIS
#define COMMAND_SECONDS 1 /* a Redis that hangs is noticed soon */
#include "../../server/store/address_redis.c"
#include "../../server/store/store_choice.c"
#include "../../server/store/store_redis.c"
#include "../../server/util/password.c"

#include "node_fixture.h"

/* ---- the store ------------------------------------------------------------------------------ */

const struct store_kind server_store_sqlite = {.prefix = ""}; /* this program opens no file */

struct world {
    struct redis redis;
    struct store_place place;
    char error[STORE_TEXT];
    struct store *store; /* NULL: closed */
};

/* Opens the store as one more process would. Begins no mastership. */
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

/* Defines a test that has an open store. The harness ends the Redis. */
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

/* D9. An election could have the epochs 6 and 7. */
STORY(a_mastership_that_is_not_the_last_cannot_begin) {
    struct store *other = open_one(w);
    assert_int_equal(server_store_begin(other, 7), STORE_OK);
    assert_int_equal(server_store_begin(other, 7), STORE_OK); /* as after a lost answer */
    assert_int_equal(server_store_epoch(other), 7);
    expect_error(w->store, server_store_begin(w->store, 6), STORE_OUTDATED, "has the epoch 7");
    assert_int_equal(try_put(other, "a", "1"), STORE_OK);
    server_store_close(other);
}

/* After a timeout a batch is sent again. The first copy may arrive after later batches. Such a copy
 * writes nothing, because later batches have higher numbers. */
STORY(a_late_copy_of_a_batch_writes_nothing) {
    struct redis_store *late = (struct redis_store *)open_one(w);
    put(w, "a", "1");
    put(w, "a", "2");
    put(w, "b", "3");
    late->base.epoch = w->store->epoch;
    assert_int_equal(try_put(&late->base, "a", "1"), STORE_OK); /* nobody reads this answer */
    expect_rows(w, "a=2 b=3");
    server_store_close(&late->base);
    reopen(w); /* a new mastership counts its batches from the start */
    put(w, "a", "4");
    expect_rows(w, "a=4 b=3");
}

/* The names of these nodes are also patterns that match other names. */
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

/* D10: a person or another program may have written keys that are not rows. */
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

/* Ends all connections to the Redis, as its setting "timeout" or a restart does. */
static void close_idle(const struct redis *redis) {
    redis_run(redis, "CLIENT KILL TYPE normal SKIPME yes");
}

static bool visit_none(void *context, const struct store_note *note) {
    (void)context, (void)note;
    return true;
}

/* A standby uses its connection for the first time when it becomes master. The Redis may have
 * closed it by then. */
STORY(a_connection_that_was_closed_while_it_was_idle_fails_no_call) {
    const struct store_note note = {"audit", "1", 0, "text"};
    struct store_row row;
    unsigned char *bytes = NULL;
    size_t count = 0;
    close_idle(&w->redis);
    assert_int_equal(server_store_begin(w->store, 7), STORE_OK);
    close_idle(&w->redis);
    assert_int_equal(server_store_next(w->store, &row), STORE_END);
    close_idle(&w->redis);
    assert_int_equal(server_store_put_notes(w->store, &note, 1), STORE_OK);
    close_idle(&w->redis);
    assert_int_equal(server_store_list_notes(w->store, "audit", "", visit_none, NULL), STORE_OK);
    close_idle(&w->redis);
    assert_int_equal(server_store_leave(w->store, "left", 4), STORE_OK);
    assert_int_equal(server_store_begin(w->store, 8), STORE_OK);
    close_idle(&w->redis);
    assert_int_equal(server_store_take(w->store, &bytes, &count), STORE_OK);
    assert_int_equal(count, 4);
    free(bytes);
}

/* A Redis that has restarted does not know the cursor of a reading that began before. */
STORY(a_reading_whose_connection_ends_fails_and_begins_again) {
    struct store_row row;
    char key[16];
    for (int i = 0; i < 3000; i++) {
        snprintf(key, sizeof key, "%d", i);
        put(w, key, "x");
    }
    assert_int_equal(server_store_next(w->store, &row), STORE_OK);
    close_idle(&w->redis);
    enum store_result result = STORE_OK;
    while (result == STORE_OK) result = server_store_next(w->store, &row);
    expect_error(w->store, result, STORE_FAILED, "Redis cannot be reached");
    int rows = 0; /* SCAN may find a row twice */
    while (server_store_next(w->store, &row) == STORE_OK) rows++;
    assert_true(rows >= 3000);
}

/* D10: a start must not need a Redis that runs. */
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
    redis_run(&w->redis, "ACL SETUSER doorman on >word ~doorman:* +select +info +scan +mget "
                         "+get +hmget +hget +hset +hdel +set +del +eval");
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

/* V8 */
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
        "redis://",        "redis://:6379",  "redis://h:",        "redis://h:x",
        "redis://h:70000", "redis://h/x",    "redis://h/1/2",     "redis://h:0",
        "redis://[::1",    "redis://[::1]x", "redis://u:%@h",     "redis://u:%+5@h",
        "redis://%00@h",   "redis://h:1:2",  "redis://h/1000000", "redisx://h"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (!server_redis_address_read(wrong[i], &out)) fail_msg("%s is accepted", wrong[i]);
    }
}

/* D9: an old master leaves nothing in the store, and takes nothing from it. */
STORY(an_old_mastership_cannot_leave_leases) {
    struct store *other = open_one(w);
    unsigned char *bytes = NULL;
    size_t count = 0;
    assert_int_equal(server_store_begin(other, 0), STORE_OK);
    assert_int_equal(server_store_leave(w->store, "old", 4), STORE_OUTDATED);
    assert_int_equal(server_store_leave(other, "new", 4), STORE_OK);
    assert_int_equal(server_store_begin(other, 0), STORE_OK);
    assert_int_equal(server_store_take(w->store, &bytes, &count), STORE_FAILED);
    assert_null(bytes);
    assert_int_equal(server_store_take(other, &bytes, &count), STORE_OK);
    assert_string_equal((const char *)bytes, "new");
    free(bytes);
    server_store_close(other);
}

/* ---- one server ----------------------------------------------------------------------------- */

static const char *const one_node[] = {"--node", "node", NULL};

TEST(a_restart_forgets_nothing_and_a_crash_nothing_that_is_written) {
    struct redis redis;
    redis_require(&redis);
    for (int i = 0; i < 4; i++) {
        struct fixture fixture = start(QUOTA, redis.address, one_node);
        assert_int_equal(used(&fixture, "ann"), 1000L * i);
        take(&fixture, "ann", 1000);
        if (i % 2 == 0) {
            server_stop(&fixture.server);
        } else {
            await_written(&fixture);
            kill_now(&fixture);
        }
    }
    assert_string_equal(redis_run(&redis, "HGET doorman:{node}:process epoch"), "4");
}

/* D6: while the Redis is away decisions continue, and all changes are written when it is back. */
TEST(a_redis_that_is_gone_for_a_while_stops_no_decision) {
    struct redis redis;
    redis_require(&redis);
    struct fixture fixture = start(QUOTA, redis.address, one_node);
    take(&fixture, "ann", 1);
    await_written(&fixture);
    redis_kill(&redis);
    take(&fixture, "ann", 1000);
    process_await(fixture.server.process, "counters cannot be written", 1);
    expect(&fixture, "/v1/status", HOST, 200, "Redis cannot be reached");
    take(&fixture, "bob", 7);
    assert_int_equal(used(&fixture, "ann"), 1001);
    redis_start(&redis);
    process_await(fixture.server.process, "counters works again", 1);
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(QUOTA, redis.address, one_node);
    assert_int_equal(used(&fixture, "ann"), 1001);
    assert_int_equal(used(&fixture, "bob"), 7);
    server_stop(&fixture.server);
}

#define ADMIN HOST JSON BEARER("top-1")
#define RESET "{\"entry\": [{\"resource_id\": \"maps\", \"key\": \"ann\", \"ban\": 60}]}"

static double count_errors(const struct fixture *fixture) {
    static const char series[] = "\ndoorman_state_errors_total ";
    char *response = get(fixture, "/metrics", ADMIN), *at = strstr(response, series);
    if (!at) fail_msg("%s", response);
    const double count = strtod(at + strlen(series), NULL);
    free(response);
    return count;
}

/* A Redis that refuses to write, as with a full disk, can be read nevertheless. After an act that
 * the Redis has not kept, the server reads all acts once more. */
TEST(a_reading_that_succeeds_does_not_end_a_failure_to_write) {
    struct redis redis;
    char tokens[96];
    redis_require(&redis);
    snprintf(tokens, sizeof tokens, "%s/tokens", redis.process->folder);
    file_write(tokens, "admin ann top-1\n");
    const char *const more[] = {"--node", "node", "--http-token", tokens, NULL};
    struct fixture fixture = start(QUOTA, redis.address, more);
    struct process *process = fixture.server.process;
    redis_run(&redis, "CONFIG SET min-replicas-to-write 1");
    process_await(process, "counters cannot be written", 1);
    for (int i = 0; i < 3; i++) {
        const double errors = count_errors(&fixture);
        expect_post(&fixture, "/v1/reset", ADMIN, RESET, 503, "too few replicas");
        EVENTUALLY(count_errors(&fixture) >= errors + 2);
    }
    assert_int_equal(process_logged(process, "the store of counters works again"), 0);
    assert_int_equal(process_logged(process, "counters cannot be written"), 1);
    redis_run(&redis, "CONFIG SET min-replicas-to-write 0");
    process_await(process, "the store of counters works again", 1);
    server_stop(&fixture.server);
}

/* D4: a server may start before its Redis, and reads the counters later. */
TEST(counters_are_read_when_the_redis_is_there) {
    struct redis redis;
    redis_require(&redis);
    struct fixture fixture = start(QUOTA, redis.address, one_node);
    take(&fixture, "ann", MOST);
    server_stop(&fixture.server);
    redis_kill(&redis);
    const char *const more[] = {"--state",      redis.address, "--node", "node",
                                "--state-wait", "3600",        NULL};
    fixture = fixture_start(QUOTA, more);
    process_await(fixture.server.process, "counters cannot be used", 1);
    expect(&fixture, "/v1/allow?resource=maps&key=ann&cost=1", HOST, 429, "LEARNING");
    redis_start(&redis);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    assert_int_equal(used(&fixture, "ann"), MOST);
    server_stop(&fixture.server);
}

/* D9: the second server has the store, and the first one logs that it has lost the store. */
TEST(of_two_servers_of_one_node_the_first_cannot_write) {
    struct redis redis;
    redis_require(&redis);
    struct fixture first = start(QUOTA, redis.address, one_node);
    take(&first, "ann", 10);
    await_written(&first);
    struct fixture second = start(QUOTA, redis.address, one_node);
    take(&first, "ann", 1000);
    process_await(first.server.process, "another process has begun the mastership 2", 1);
    assert_int_equal(used(&second, "ann"), 10);
    server_stop(&second.server);
    process_signal(first.server.process, SIGTERM);
    process_end(first.server.process, 3); /* what it has granted is forgotten */
    second = start(QUOTA, redis.address, one_node);
    assert_int_equal(used(&second, "ann"), 10);
    server_stop(&second.server);
}

/* What the Redis has lost is written again, even if nothing changes afterwards, and even if the
 * Redis was away in between, as after a crash. */
TEST(a_redis_that_was_emptied_is_filled_again) {
    for (int away = 0; away < 2; away++) {
        struct redis redis;
        redis_require(&redis);
        struct fixture fixture = start(QUOTA, redis.address, one_node);
        take(&fixture, "ann", 10);
        take(&fixture, "bob", 20);
        await_written(&fixture);
        redis_run(&redis, "FLUSHALL");
        if (away) {
            redis_kill(&redis);
            process_await(fixture.server.process, "cannot be written", 1);
            redis_start(&redis);
        }
        process_await(fixture.server.process, "has lost rows", 1);
        process_await(fixture.server.process, "the store of counters works again", away);
        await_written(&fixture);
        kill_now(&fixture);
        fixture = start(QUOTA, redis.address, one_node);
        assert_int_equal(used(&fixture, "ann"), 10);
        assert_int_equal(used(&fixture, "bob"), 20);
        server_stop(&fixture.server);
        redis_kill(&redis);
    }
}

/* ---- passwords ------------------------------------------------------------------------------ */

/* Expects that a password is in no log, no page and no command line. */
static void expect_secret(const struct fixture *fixture, const char *password) {
    static const char *const pages[] = {"/", "/v1/status", "/metrics", "/v1/config"};
    char path[64], line[4096];
    assert_int_equal(process_logged(fixture->server.process, password), 0);
    for (int i = 0; i < 4; i++) {
        char *response = get(fixture, pages[i], HOST);
        assert_null(strstr(response, password));
        free(response);
    }
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)fixture->server.process->pid);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t bytes = fread(line, 1, sizeof line, file);
    fclose(file);
    assert_true(bytes > 0);
    assert_null(memmem(line, bytes, password, strlen(password)));
}

TEST(a_password_stays_a_secret) {
    struct redis redis;
    char path[128], variable[128];
    redis_require(&redis);
    redis_run(&redis, "CONFIG SET requirepass s3cret");
    snprintf(path, sizeof path, "%s/password", redis.process->folder);
    file_write(path, "s3cret\n");
    const char *const more[] = {"--node", "node", "--state-password-file", path, NULL};
    struct fixture fixture = start(QUOTA, redis.address, more);
    take(&fixture, "ann", 10);
    await_written(&fixture);
    redis_kill(&redis);
    take(&fixture, "ann", 1);
    process_await(fixture.server.process, "counters cannot be written", 1);
    expect_secret(&fixture, "s3cret");
    kill_now(&fixture);
    redis_start(&redis); /* without the password, which was not in its file */
    redis_run(&redis, "CONFIG SET requirepass s3cret");
    snprintf(variable, sizeof variable, "redis://:s3cret@127.0.0.1:%d/1", redis.port);
    struct process *process = process_new();
    file_write(process->config, QUOTA);
    char state[160];
    snprintf(state, sizeof state, "DOORMAN_STATE=%s", variable);
    process_start(process,
                  (const char *[]){"--config", process->config, "--listen", "tcp://127.0.0.1:0",
                                   "--node", "node", NULL},
                  (const char *[]){state, NULL});
    process_await(process, "msg=\"counters read\"", 1);
    assert_int_equal(process_logged(process, "s3cret"), 0);
    process_signal(process, SIGTERM);
    process_end(process, 0);
}

/* D6: a wrong password is an error at the start, and stops no decision later. */
TEST(a_password_that_is_refused_ends_a_start_and_stops_no_decision) {
    struct redis redis;
    char path[128];
    redis_require(&redis);
    snprintf(path, sizeof path, "%s/password", redis.process->folder);
    file_write(path, "s3cret\n");
    const char *const more[] = {"--node", "node", "--state-password-file", path, NULL};
    const char *const all[] = {"--state", redis.address, "--node", "node", "--state-password-file",
                               path,      NULL};
    redis_run(&redis, "CONFIG SET requirepass other");
    expect_refusal(all, 1, "Redis refuses the user or the password");
    expect_refusal((const char *[]){"--state", redis.address, "--node", "node", NULL}, 1,
                   "Redis needs a password");
    file_write(path, "other\n");
    struct fixture fixture = start(QUOTA, redis.address, more);
    take(&fixture, "ann", 10);
    await_written(&fixture);
    file_write(path, "s3cret\n");
    redis_kill(&redis);
    redis_start(&redis);
    redis_run(&redis, "CONFIG SET requirepass other");
    take(&fixture, "ann", 1000);
    process_await(fixture.server.process, "counters cannot be written", 1);
    expect(&fixture, "/v1/status", HOST, 200, "Redis refuses the user or the password");
    assert_int_equal(used(&fixture, "ann"), 1010);
    file_write(path, "other\n");
    process_await(fixture.server.process, "the store of counters works again", 1);
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(QUOTA, redis.address, more);
    assert_int_equal(used(&fixture, "ann"), 1010);
    server_stop(&fixture.server);
}

/* ---- TLS ------------------------------------------------------------------------------------ */

/* The flags of a server for a Redis that accepts TLS. */
struct tls_flags {
    char files[3][128];
    const char *all[16];
};

static void tls_flags_make(struct tls_flags *flags, const struct redis *redis) {
    static const char *const names[] = {"ca.pem", "own.pem", "own.key"};
    for (int i = 0; i < 3; i++) {
        snprintf(flags->files[i], sizeof flags->files[i], "%s/%s", redis->certificates, names[i]);
    }
    const char *const all[16] = {"--node",       "node",          "--state-ca",  flags->files[0],
                                 "--state-cert", flags->files[1], "--state-key", flags->files[2]};
    memcpy(flags->all, all, sizeof all);
}

/* Many rows with long keys need many records of TLS. */
TEST(a_redis_over_tls_forgets_nothing) {
    struct redis redis;
    struct tls_flags flags;
    char key[256], digits[16];
    redis_require_tls(&redis, true, NULL);
    tls_flags_make(&flags, &redis);
    struct fixture fixture = start(QUOTA, redis.address, flags.all);
    memset(key, 'k', sizeof key);
    for (int i = 0; i < 400; i++) {
        snprintf(digits, sizeof digits, "%08d", i);
        snprintf(key + 200, sizeof key - 200, "%s", digits);
        take(&fixture, key, i + 1);
    }
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(QUOTA, redis.address, flags.all);
    for (int i = 0; i < 400; i += 57) {
        snprintf(digits, sizeof digits, "%08d", i);
        snprintf(key + 200, sizeof key - 200, "%s", digits);
        assert_int_equal(used(&fixture, key), i + 1);
    }
    assert_int_equal(process_logged(fixture.server.process, "level=error"), 0);
    redis_kill(&redis);
    take(&fixture, "ann", 7);
    process_await(fixture.server.process, "counters cannot be written", 1);
    redis_start(&redis);
    process_await(fixture.server.process, "counters works again", 1);
    await_written(&fixture);
    process_signal(redis.process, SIGSTOP);
    take(&fixture, "ann", 7);
    process_await(fixture.server.process, "Redis does not answer in time", 1);
    process_signal(redis.process, SIGCONT);
    process_await(fixture.server.process, "counters works again", 2);
    server_stop(&fixture.server);
    fixture = start(QUOTA, redis.address, flags.all);
    process_await(fixture.server.process, "msg=\"leases and holds taken over\"", 1);
    assert_int_equal(used(&fixture, "ann"), 14);
    server_stop(&fixture.server);
}

/* Fails unless a server refuses a Redis at the start. */
static void expect_no_tls(const char *address, const char *authority, const char *text) {
    expect_refusal((const char *[]){"--state", address, "--node", "node",
                                    authority ? "--state-ca" : NULL, authority, NULL},
                   1, text);
}

TEST(a_redis_whose_certificate_is_not_valid_is_refused) {
    struct redis redis;
    struct tls_flags flags;
    char address[64], other[128];
    struct process *folder = process_new();
    redis_require_tls(&redis, false, NULL);
    tls_flags_make(&flags, &redis);
    certificates_make(folder->folder);
    snprintf(other, sizeof other, "%s/ca.pem", folder->folder);
    expect_no_tls(redis.address, other, "the certificate of Redis is refused");
    expect_no_tls(redis.address, NULL, "the certificate of Redis is refused");
    expect_no_tls(redis.address, "/nowhere", "--state-ca /nowhere: ");
    expect_no_tls(redis.address, flags.files[2], "--state-ca /");
    snprintf(address, sizeof address, "rediss://localhost:%d", redis.tls_port);
    expect_no_tls(address, flags.files[0],
                  "the certificate of Redis is not for the host localhost");
    struct fixture fixture =
        start(QUOTA, redis.address,
              (const char *[]){"--node", "node", "--state-ca", flags.files[0], NULL});
    assert_int_equal(process_logged(fixture.server.process, "level=error"), 0);
    server_stop(&fixture.server);
}

/* A Redis without TLS waits for the end of a line, so it seems to hang. A Redis that hangs does not
 * keep a server from starting. */
TEST(a_redis_without_tls_is_named) {
    struct redis redis;
    char address[64];
    redis_require(&redis);
    snprintf(address, sizeof address, "rediss://127.0.0.1:%d", redis.port);
    const char *const more[] = {"--state", address, "--node", "node", NULL};
    struct fixture fixture = fixture_start(QUOTA, more);
    process_await(fixture.server.process, "Redis does not answer, or has no TLS at this port", 2);
    kill_now(&fixture);
}

TEST(a_redis_that_needs_a_certificate_of_the_server_is_named_at_the_start) {
    struct redis redis;
    struct tls_flags flags;
    redis_require_tls(&redis, true, "TLSv1.2");
    tls_flags_make(&flags, &redis);
    expect_no_tls(redis.address, flags.files[0], "Redis refuses the handshake of TLS");
}

/* With TLS 1.3 the Redis refuses the server after the handshake, and this refusal may be lost with
 * the connection. If it is lost, the server starts. */
TEST(a_redis_that_needs_a_certificate_of_the_server_is_named_with_tls_1_3) {
    struct redis redis;
    struct tls_flags flags;
    struct process *process = process_new();
    redis_require_tls(&redis, true, "TLSv1.3");
    tls_flags_make(&flags, &redis);
    file_write(process->config, QUOTA);
    const char *const arguments[] = {"--config",   process->config, "--listen", "inproc://tls",
                                     "--node",     "node",          "--state",  redis.address,
                                     "--state-ca", flags.files[0],  NULL};
    process_start(process, arguments, NULL);
    EVENTUALLY(process_logged(process, "TLS: Certificate is required") > 0 ||
               process_logged(process, "it may need another --state-cert") > 0);
}

TEST(flags_that_do_not_fit_a_redis_are_refused) {
    const char *const flags[][4] = {
        {"redis://:word@h", "--node", "n", "the list of processes"},
        {"redis://u:w@h/x", "--node", "n", "the list of processes"},
        {"redis://h", NULL, NULL, "give --node"},
        {"redis://h", "--node", "{n}", "without braces"},
        {"redis://", "--node", "n", "--state redis://... has no host"},
        {"redis://h/abc", "--node", "n", "--state redis://... has a wrong database"},
        {"redis://h/-1", "--node", "n", "has a wrong database; it is a number from 0"},
        {"redis://h:99999", "--node", "n", "has a wrong port; it is a number from 1 to 65535"},
        {"redis://h:0", "--node", "n", "has a wrong port"},
        {"redis://h/1?x=1", "--node", "n", "has options behind a ?"},
        {"redis://[::1/1", "--node", "n", "has a host with a [ and without a ]"},
        {"redis://%zz@h", "--node", "n", "has a user or a password that is too long"},
        {"rediss://u:w@h", "--node", "n", "the list of processes"},
        {"rediss://", "--node", "n", "--state rediss://... has no host"},
        {"rediss://h", "--state-cert", "x", "--state-cert and --state-key need each other"},
        {"redis://h", "--state-ca", "x", "--state-ca and --state-cert need --state rediss://"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        expect_refusal((const char *[]){"--state", flags[i][0], flags[i][1], flags[i][2], NULL}, 2,
                       flags[i][3]);
    }
    expect_refusal((const char *[]){"--state-password-file", "x", NULL}, 2,
                   "--state-password-file needs --state");
    expect_refusal((const char *[]){"--state", "x", "--state-password-file", "y", NULL}, 2,
                   "--state x is a file, and has no password");
}

/* The error does not contain the password of the address. */
TEST(an_unknown_scheme_is_a_failure) {
    expect_refusal((const char *[]){"--state", "mysql://u:w@h", "--node", "n", NULL}, 1,
                   "--state mysql://... is neither a file nor a store");
}

/* ---- a node of three processes -------------------------------------------------------------- */

/* V8, D9: the standbys are restarted first, and the master last, as docs/operations.md says. */
TEST(rolling_restarts_under_load_forget_nothing) {
    static long before[LOADS][KEYS];
    memset(before, 0, sizeof before);
    node_start(QUOTA, "30");
    for (int i = 0, count = rounds("DOORMAN_RESTARTS", 2); i < count; i++) {
        int master = node_await_master();
        loads_start();
        for (int k = 1; k <= MEMBERS; k++) {
            int index = (master + k) % MEMBERS;
            sleep_ms(100); /* of load */
            process_signal(node.members[index].process, SIGTERM);
            process_end(node.members[index].process, 0);
            if (process_logged(node.members[index].process, "level=error")) {
                process_show(node.members[index].process);
            }
            member_start(index);
        }
        master = node_await_master();
        loads_stop();
        assert_int_equal(account_compare(master, before, 0, 0), 0);
    }
}

/* V8: a master that stops keeps its election key until a slow store has the last changes. Its
 * requests to etcd, every fifth of the TTL, do not end this wait. */
TEST(a_master_that_stops_resigns_after_the_last_write) {
    node_start(QUOTA, "6");
    int master = node_await_master();
    const struct fixture *fixture = &node.members[master].fixture;
    take(fixture, "ann", 10);
    await_written(fixture);
    process_signal(node.redis.process, SIGSTOP);
    take(fixture, "ann", 1000);
    EVENTUALLY(status_number(fixture, "state.age") > 1.5); /* the thread waits for the store */
    take(fixture, "ann", 100);
    process_signal(node.members[master].process, SIGTERM);
    sleep_ms(2500); /* two questions to etcd; a slow machine asks less often */
    process_signal(node.redis.process, SIGCONT);
    process_end(node.members[master].process, 0);
    int next = node_await_master();
    assert_int_not_equal(next, master);
    assert_int_equal(used(&node.members[next].fixture, "ann"), 1110);
}

/* V8, D7: the next master knows all but the last changes. */
TEST(a_kill_of_the_master_forgets_at_most_the_changes_that_are_not_written) {
    static long before[LOADS][KEYS];
    memset(before, 0, sizeof before);
    node_start(QUOTA, "6");
    for (int i = 0, count = rounds("DOORMAN_RESTARTS", 2); i < count; i++) {
        int master = node_await_master();
        await_written(&node.members[master].fixture); /* what the last round granted at its end */
        loads_start();
        sleep_ms(700 + 300 * i % 1000); /* of load: a moment between two writes */
        int64_t since = written_until(master);
        process_signal(node.members[master].process, SIGKILL);
        assert_int_equal(process_wait(node.members[master].process), 128 + SIGKILL);
        int64_t killed_at = clock_read();
        int next = node_await_master();
        assert_int_not_equal(next, master);
        loads_stop();
        account_compare(next, before, since, killed_at);
        member_start(master);
    }
}

/* Starts the only server of a Redis. All load goes to it. */
static void only_start(void) {
    struct member *only = &node.members[0];
    only->fixture = start(QUOTA, node.redis.address, one_node);
    only->process = only->fixture.server.process;
    pthread_mutex_lock(&node.lock);
    for (int i = 0; i < MEMBERS; i++) {
        memcpy(node.urls[i], only->fixture.server.url, sizeof node.urls[i]);
    }
    pthread_mutex_unlock(&node.lock);
}

/* V8, D6: the Redis dies too, in each second round. It is back before the server dies, or later. */
TEST(kills_of_a_server_and_its_redis_forget_at_most_the_changes_that_are_not_written) {
    static long before[LOADS][KEYS];
    unsigned random = (unsigned)time(NULL);
    print_message("SEED=%u\n", random);
    memset(before, 0, sizeof before);
    memset(node.members, 0, sizeof node.members);
    redis_require(&node.redis);
    only_start();
    for (int i = 0, count = rounds("DOORMAN_KILLS", 4); i < count; i++) {
        random = random * 1103515245U + 12345U;
        loads_start();
        sleep_ms(100 + (int)(random >> 16) % 1500); /* of load: a random moment between writes */
        if (i % 2) redis_kill(&node.redis);
        if (i % 2) sleep_ms((int)(random >> 8) % 1500);
        if (i % 4 == 1) {
            redis_start(&node.redis);
            sleep_ms((int)(random >> 20) % 2500); /* long enough to write all that waits, or not */
        }
        int64_t since = written_until(0);
        kill_now(&node.members[0].fixture);
        int64_t killed_at = clock_read();
        loads_stop();
        process_remove_last();
        if (i % 4 == 3) redis_start(&node.redis);
        only_start();
        account_compare(0, before, since, killed_at);
    }
    server_stop(&node.members[0].fixture.server);
}

/* D9: a master that etcd has given up, but that does not know it yet, cannot write. */
TEST(a_master_that_was_stopped_for_a_while_cannot_write) {
    node_start(QUOTA, "10");
    int old = node_await_master();
    const struct fixture *fixture = &node.members[old].fixture;
    take(fixture, "ann", 10);
    await_written(fixture);
    process_signal(node.members[old].process, SIGSTOP);
    int next = -1;
    EVENTUALLY((next = node_find_master(old)) >= 0);
    assert_int_equal(used(&node.members[next].fixture, "ann"), 10);
    take(&node.members[next].fixture, "ann", 1000);
    await_written(&node.members[next].fixture);
    process_signal(node.members[old].process, SIGCONT);
    process_await(node.members[old].process, "another server is the master", 1);
    process_signal(node.members[next].process, SIGTERM);
    process_end(node.members[next].process, 0);
    int last = node_await_master();
    assert_int_equal(used(&node.members[last].fixture, "ann"), 1010);
    assert_string_equal(redis_run(&node.redis, "HGET doorman:{doorman/master}:process epoch"), "3");
}

/* Limits the keys that the Redis lets the node use: "*", or only the key with which masterships
 * begin. */
static void set_rights(const char *keys) {
    redis_run(&node.redis, "ACL SETUSER default resetkeys ~%s", keys);
}

/* D7, D9: what a master could not write must not be written in a later mastership of the same
 * process, because another master has changed the same rows in between. The Redis refuses all rows
 * of this process until the process is master for the second time. */
TEST(a_master_that_comes_back_does_not_write_what_is_outdated) {
    static const char beginnings[] = "doorman:{doorman/master}:process";
    node_start(QUOTA, "3");
    int old = node_await_master(), next = (old + 1) % MEMBERS, other = (old + 2) % MEMBERS;
    process_signal(node.members[other].process, SIGKILL);
    process_wait(node.members[other].process);
    set_rights(beginnings);
    take(&node.members[old].fixture, "ann", 10);
    process_await(node.members[old].process, "the store of counters cannot be written", 1);
    process_signal(node.members[old].process, SIGSTOP);
    process_await(node.members[next].process, "this server is the master", 1);
    set_rights("*");
    process_await(node.members[next].process, "msg=\"counters read\"", 1);
    take(&node.members[next].fixture, "ann", 1000);
    await_written(&node.members[next].fixture);
    set_rights(beginnings);
    process_signal(node.members[next].process, SIGKILL);
    process_wait(node.members[next].process);
    process_signal(node.members[old].process, SIGCONT);
    process_await(node.members[old].process, "this server is the master", 2);
    process_await(node.members[old].process, "changes are forgotten", 1);
    set_rights("*");
    EVENTUALLY(member_decides(old));
    assert_int_equal(used(&node.members[old].fixture, "ann"), 1000);
    assert_string_equal(redis_run(&node.redis, "HGET %s epoch", beginnings), "3");
}

/* V8, D7: an etcd that does not answer for longer than the TTL ends the mastership of a process
 * that lives. The next master, which may be the same process, knows all that was written. */
TEST(a_stalled_etcd_forgets_nothing_that_is_written) {
    static const char lost[] = "this server is no longer the master";
    node_start(QUOTA, "3");
    for (int i = 1; i < 4; i++) {
        int master = node_await_master();
        const struct fixture *fixture = &node.members[master].fixture;
        int losses = process_logged(node.members[master].process, lost);
        take(fixture, "ann", 1000);
        await_written(fixture);
        process_signal(node.etcd.process, SIGSTOP);
        process_await(node.members[master].process, lost, losses + 1);
        process_signal(node.etcd.process, SIGCONT);
        master = node_await_master();
        assert_int_equal(used(&node.members[master].fixture, "ann"), 1000L * i);
    }
}

/* ---- planned stops -------------------------------------------------------------------------- */

#define SLOTS(time_to_live)                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "        \
    "\"per\": "                                                                                    \
    "\"resource\", \"kind\": \"CONCURRENCY\", \"limit\": 2, \"time_to_live\": " time_to_live       \
    "}]}, "                                                                                        \
    "{\"identifier_glob\": \"maps\", \"limits\": [" LIMIT("quota", "") "]}]}"

/* Asks a process for a hold, and returns the decision, or why it was refused. "": the process is
 * not master. */
static const char *ask_hold(int member, int request_id, char said[32]) {
    char message[512];
    snprintf(message, sizeof message,
             "{\"acquire\": {\"client_id\": \"h\", \"permit\": [{\"request_id\": %d, \"item\": "
             "[{\"resource_id\": \"slots\"}]}]}}",
             request_id);
    cJSON *response = send_request(&node.members[member].fixture.server, message);
    const cJSON *permit = find(response, "acquire.permit[0]");
    const cJSON *reason = find(permit, "reason");
    bool granted = permit && strcmp(text(permit, "decision"), "GRANTED") == 0;
    snprintf(said, 32, "%s", granted ? "GRANTED" : reason ? reason->valuestring : "");
    cJSON_Delete(response);
    return said;
}

/* D8: a master that stops while the store is slow renews its mastership until all is written. The
 * Redis does not answer for 1.5 s, longer than the time between two renewals. */
TEST(a_master_that_stops_stays_master_until_all_is_written) {
    node_start(QUOTA, "2");
    int master = node_await_master();
    struct process *process = node.members[master].process;
    process_signal(node.redis.process, SIGSTOP);
    take(&node.members[master].fixture, "ann", 1000);
    process_signal(process, SIGTERM);
    process_await(process, "msg=stopping", 1);
    sleep_ms(1500);
    assert_int_equal(process_logged(process, "has left the election"), 0);
    process_signal(node.redis.process, SIGCONT);
    process_end(process, 0);
    int next = node_await_master();
    process_await(node.members[next].process, "msg=\"leases and holds taken over\"", 1);
    assert_int_equal(used(&node.members[next].fixture, "ann"), 1000);
}

/* D8: except the first master, a process that takes over no holds learns for ten minutes. */
TEST(after_a_planned_stop_the_next_master_knows_all_holds) {
    char said[32];
    int request_id = 100;
    node_start(SLOTS("1"), "6");
    int master = node_await_master();
    EVENTUALLY(strcmp(ask_hold(master, ++request_id, said), "GRANTED") == 0);
    node.config = SLOTS("600");
    for (int i = 0; i < MEMBERS; i++) {
        config_replace(node.members[i].process, node.config);
        process_signal(node.members[i].process, SIGHUP);
        process_await(node.members[i].process, "msg=\"configuration loaded\"", 1);
    }
    EVENTUALLY(strcmp(ask_hold(master, ++request_id, said), "GRANTED") == 0);
    process_signal(node.members[master].process, SIGTERM);
    process_end(node.members[master].process, 0);
    int next = node_await_master();
    process_await(node.members[next].process, "msg=\"leases and holds taken over\"", 1);
    /* a hold of a second may still be there */
    EVENTUALLY(strcmp(ask_hold(next, ++request_id, said), "CONCURRENCY") != 0);
    assert_string_equal(said, "GRANTED");
    assert_string_equal(ask_hold(next, ++request_id, said), "CONCURRENCY"); /* two are in force */
    member_start(master);
    process_signal(node.members[next].process, SIGKILL);
    process_wait(node.members[next].process);
    int last = node_await_master();
    process_await(node.members[last].process, "did not stop as planned", 1);
    assert_string_equal(ask_hold(last, ++request_id, said), "LEARNING");
}

/* Starts a node, kills all its processes but the master, and takes a hold for ten minutes. Returns
 * the index of the master. */
static int start_with_hold(const char *ttl) {
    char said[32];
    int request_id = 100;
    node_start(SLOTS("1"), ttl);
    int master = node_await_master();
    EVENTUALLY(strcmp(ask_hold(master, ++request_id, said), "GRANTED") == 0);
    for (int i = 0; i < MEMBERS; i++) {
        if (i == master) continue;
        process_signal(node.members[i].process, SIGKILL);
        process_wait(node.members[i].process);
    }
    config_replace(node.members[master].process, SLOTS("600"));
    process_signal(node.members[master].process, SIGHUP);
    process_await(node.members[master].process, "msg=\"configuration loaded\"", 1);
    EVENTUALLY(strcmp(ask_hold(master, ++request_id, said), "GRANTED") == 0);
    return master;
}

/* Takes one unit after the other, until the process is not master any more. Returns the number of
 * units. */
static long take_until_lost(const struct fixture *fixture) {
    long count = 0;
    for (bool granted = true; granted; count += granted) {
        char *response = get(fixture, "/v1/allow?resource=maps&key=ann&cost=1", LINES);
        granted = strstr(response, "\"decision\":\"GRANTED\"") != NULL;
        free(response);
        sleep_ms(2);
    }
    return count;
}

/* D7: no other process becomes master. In the first round etcd stands still, so the election key
 * ends, and the process makes it again. In the second round etcd is killed and starts again. After
 * the start etcd gives all its leases their whole time again, so the key is still there. */
TEST(an_interrupted_mastership_forgets_nothing) {
    static const char lost[] = "this server is no longer the master";
    char said[32];
    int master = start_with_hold("3");
    const struct member *member = &node.members[master];
    long granted = 0;
    for (int i = 0; i < 2; i++) {
        process_signal(node.etcd.process, i ? SIGKILL : SIGSTOP);
        granted += take_until_lost(&member->fixture);
        process_await(member->process, lost, i + 1);
        if (i) {
            process_wait(node.etcd.process);
            etcd_start(&node.etcd);
        } else {
            process_signal(node.etcd.process, SIGCONT);
        }
        process_await(member->process, "msg=\"leases and holds taken over\"", i + 1);
        EVENTUALLY(member_decides(master));
        assert_int_equal(used(&member->fixture, "ann"), granted);
        if (i == 0) { /* a hold of a second may still be there */
            EVENTUALLY(strcmp(ask_hold(master, 200, said), "CONCURRENCY") != 0);
            assert_string_equal(said, "GRANTED");
        }
        assert_string_equal(ask_hold(master, 300 + i, said), "CONCURRENCY");
        assert_string_equal(redis_run(&node.redis, "HGET doorman:{doorman/master}:process epoch"),
                            "2");
    }
    assert_true(granted > 0);
    print_message("%ld granted\n", granted);
}

/* D8: the standbys have not used their connections to the Redis since the start, so they do not
 * know yet that the Redis has closed them. */
TEST(after_a_restart_of_the_redis_a_planned_stop_hands_over_all_the_same) {
    node_start(QUOTA, "6");
    int master = node_await_master();
    redis_kill(&node.redis);
    redis_start(&node.redis);
    take(&node.members[master].fixture, "ann", 1000);
    await_written(&node.members[master].fixture);
    process_signal(node.members[master].process, SIGTERM);
    process_end(node.members[master].process, 0);
    int next = node_await_master();
    process_await(node.members[next].process, "msg=\"leases and holds taken over\"", 1);
}

/* Returns whether the log of a standby says that it has become the master. */
static bool standby_follows(int old) {
    bool follows = false;
    for (int i = 0; i < MEMBERS; i++) {
        const struct process *process = node.members[i].process;
        follows = follows || (i != old && process_logged(process, "this server is the master"));
    }
    return follows;
}

/* V8: the last second of changes may be lost, as in a crash. What was written is not lost, and what
 * the old master still tries to write does no harm. */
TEST(a_master_that_stops_gives_way_when_the_redis_does_not_answer) {
    node_start(QUOTA, "6");
    int old = node_await_master();
    struct process *process = node.members[old].process;
    take(&node.members[old].fixture, "ann", 10);
    await_written(&node.members[old].fixture);
    process_signal(node.redis.process, SIGSTOP);
    take(&node.members[old].fixture, "ann", 1000);
    process_signal(process, SIGTERM);
    process_await(process, "the mastership is given back before all changes", 1);
    process_await(process, "has left the election", 1);
    EVENTUALLY(standby_follows(old));
    assert_int_equal(process_logged(process, "25 s have passed"), 0);
    process_signal(node.redis.process, SIGCONT);
    process_wait(process);
    int next = node_await_master();
    await_written(&node.members[next].fixture);
    long known = used(&node.members[next].fixture, "ann");
    if (known != 10 && known != 1010) fail_msg("%ld are used", known);
    take(&node.members[next].fixture, "ann", 5);
    await_written(&node.members[next].fixture);
    process_signal(node.members[next].process, SIGTERM);
    process_end(node.members[next].process, 0);
    int last = node_await_master();
    assert_int_equal(used(&node.members[last].fixture, "ann"), known + 5);
}

/* D6: the old master still writes what it granted while the Redis was away, if the Redis is back
 * before the next master begins its mastership there. */
TEST(a_master_that_stops_gives_way_when_the_redis_is_away) {
    node_start(QUOTA, "6");
    int old = node_await_master();
    struct process *process = node.members[old].process;
    take(&node.members[old].fixture, "ann", 10);
    await_written(&node.members[old].fixture);
    redis_kill(&node.redis);
    take(&node.members[old].fixture, "ann", 1000);
    process_await(process, "counters cannot be written", 1);
    process_signal(process, SIGTERM);
    process_await(process, "has left the election", 1);
    EVENTUALLY(standby_follows(old));
    assert_int_equal(process_logged(process, "25 s have passed"), 0);
    redis_start(&node.redis);
    process_wait(process);
    int next = node_await_master();
    await_written(&node.members[next].fixture);
    assert_true(used(&node.members[next].fixture, "ann") >= 10);
}
