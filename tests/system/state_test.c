/* Counters and bans that outlast a restart (V8): real servers with --state are killed, stopped and
 * started again, and an account of every grant says what was forgotten. DOORMAN_KILLS and
 * DOORMAN_RESTARTS in the environment set the number of rounds. */
#define _GNU_SOURCE
#include "state_fixture.h"

#include <pthread.h>
#include <sys/resource.h>

/* ---- what lasts ----------------------------------------------------------------------------- */

/* V8 */
TEST(a_planned_restart_forgets_nothing) {
    char path[96];
    state_path(path);
    for (int i = 0; i < 4; i++) {
        struct fixture fixture = start(QUOTA, path, NULL);
        assert_int_equal(used(&fixture, "ann"), 1000L * i);
        assert_int_equal(used(&fixture, "bob"), i);
        take(&fixture, "ann", 1000);
        take(&fixture, "bob", 1);
        server_stop(&fixture.server);
    }
}

TEST(without_a_file_a_restart_forgets_everything) {
    for (int i = 0; i < 2; i++) {
        struct fixture fixture = fixture_start(QUOTA, NULL);
        assert_int_equal(process_logged(fixture.server.process, "is kept only in memory"), 1);
        assert_int_equal(used(&fixture, "ann"), 0);
        take(&fixture, "ann", 1000);
        expect(&fixture, "/metrics", HOST, 200, "doorman_build_info");
        char *response = get(&fixture, "/metrics", HOST);
        assert_null(strstr(response, "doorman_state_"));
        free(response);
        server_stop(&fixture.server);
    }
}

/* V8: what is written outlasts a crash. */
TEST(what_is_written_outlasts_a_crash) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 1000);
    await_written(&fixture);
    assert_true(metric(&fixture, "doorman_state_rows_written_total") >= 1);
    kill_now(&fixture);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 1000);
    server_stop(&fixture.server);
}

TEST(a_limit_that_is_not_durable_begins_again) {
    static const char config[] = MAPS(LIMIT("quota", ", \"durable\": false"));
    char path[96];
    state_path(path);
    struct fixture fixture = start(config, path, NULL);
    take(&fixture, "ann", 1000);
    server_stop(&fixture.server);
    fixture = start(config, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 0);
    server_stop(&fixture.server);
}

TEST(a_ban_lasts) {
    static const char config[] =
        MAPS("{\"name\": \"few\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.001, \"size\": 1, "
             "\"ban\": {\"refusals\": 1, \"window\": 60, \"duration\": 3600}}");
    const char *ask = "/v1/allow?resource=maps&key=ann&cost=1";
    char path[96];
    state_path(path);
    struct fixture fixture = start(config, path, NULL);
    expect(&fixture, ask, HOST, 200, "GRANTED");
    for (int i = 0; i < 2; i++) free(get(&fixture, ask, HOST));
    expect(&fixture, ask, HOST, 429, "\"reason\":\"BANNED\"");
    server_stop(&fixture.server);
    for (int i = 0; i < 2; i++) {
        fixture = start(config, path, NULL);
        expect(&fixture, ask, HOST, 429, "\"reason\":\"BANNED\"");
        expect(&fixture, "/v1/allow?resource=maps&key=bob&cost=0", HOST, 200, "GRANTED");
        server_stop(&fixture.server);
    }
}

/* D3: what was reset must not come back. */
TEST(a_reset_lasts) {
    struct process *files = process_new();
    char path[96];
    file_write(files->config, "admin ann token-1\n");
    snprintf(path, sizeof path, "%s/state", files->folder);
    const char *const more[] = {"--http-token", files->config, NULL};
    const char *lines = HOST JSON "Authorization: Bearer token-1\r\n";
    struct fixture fixture = start(QUOTA, path, more);
    expect(&fixture, "/v1/allow?resource=maps&key=ann&cost=7", lines, 200, "GRANTED");
    expect(&fixture, "/v1/allow?resource=maps&key=bob&cost=7", lines, 200, "GRANTED");
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, more);
    expect_post(&fixture, "/v1/reset", lines,
                "{\"entry\": [{\"resource_id\": \"maps\", \"key\": \"ann\"}]}", 200, "\"count\":1");
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, more);
    expect(&fixture, "/v1/allow?resource=maps&key=ann&cost=0", lines, 200, "\"remaining\":1000000");
    expect(&fixture, "/v1/allow?resource=maps&key=bob&cost=0", lines, 200, "\"remaining\":999993");
    server_stop(&fixture.server);
}

/* Asks over nng for units of a key of 256 bytes: all printable characters of ASCII, then others. */
static const char *ask_long_key(const struct fixture *fixture, char decision[32]) {
    char key[257];
    size_t bytes = 0;
    for (int i = ' '; i < 0x7f; i++) key[bytes++] = (char)i;
    for (int i = 0xa1; bytes + 2 <= 256; i++) {
        key[bytes++] = (char)(0xc0 | i >> 6);
        key[bytes++] = (char)(0x80 | (i & 0x3f));
    }
    while (bytes < 256) key[bytes++] = '~';
    key[bytes] = 0;
    cJSON *request = cJSON_Parse("{\"acquire\": {\"client_id\": \"c\", \"permit\": [{\"item\": "
                                 "[{\"resource_id\": \"maps\", \"cost\": 600000}]}]}}");
    cJSON *item = (cJSON *)(uintptr_t)find(request, "acquire.permit[0].item[0]");
    cJSON_AddStringToObject(item, "key", key);
    char *message = cJSON_PrintUnformatted(request);
    cJSON *response = send_request(&fixture->server, message);
    snprintf(decision, 32, "%s", text(response, "acquire.permit[0].decision"));
    cJSON_Delete(response);
    cJSON_Delete(request);
    cJSON_free(message);
    return decision;
}

TEST(a_key_may_have_256_bytes_and_every_character) {
    char path[96], decision[32];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    assert_string_equal(ask_long_key(&fixture, decision), "GRANTED");
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, NULL);
    assert_string_equal(ask_long_key(&fixture, decision), "REFUSED");
    server_stop(&fixture.server);
}

/* D10: a limit that was missing at a start, or for a while, gets its counters back. */
TEST(a_limit_that_comes_back_has_its_counters) {
    static const char other[] = MAPS(LIMIT("other", ""));
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 1000);
    server_stop(&fixture.server);
    fixture = start(other, path, NULL);
    process_await(fixture.server.process, "rows=1 of_no_limit=1 unreadable=0", 1);
    assert_int_equal(used(&fixture, "ann"), 0);
    config_replace(fixture.server.process, QUOTA);
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "msg=\"counters read\"", 2);
    assert_int_equal(used(&fixture, "ann"), 1000);
    server_stop(&fixture.server);
}

/* D4: the limit grants nothing after the reload until its rows are read. The interval between two
 * writes to the file is long here. */
TEST(a_limit_that_comes_back_grants_nothing_before_its_rows_are_read) {
    static const char other[] = MAPS(LIMIT("other", ""));
    static const char *const slowly[] = {"--state-interval", "600", NULL};
    static const char *const configs[] = {other, QUOTA};
    static const char *const changes[] = {"limit=other change=added", "limit=quota change=added"};
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, slowly);
    take(&fixture, "ann", MOST);
    for (int i = 0; i < 2; i++) {
        config_replace(fixture.server.process, configs[i]);
        process_signal(fixture.server.process, SIGHUP);
        process_await(fixture.server.process, changes[i], 1);
    }
    bool is_read = false; /* false while the refusals are LEARNING */
    for (int i = 0; i < 100000 && !is_read; i++) {
        char *response = get(&fixture, "/v1/allow?resource=maps&key=ann&cost=1", HOST);
        if (code_of(response) != 429) fail_msg("%s", response);
        is_read = strstr(response, "LEARNING") == NULL;
        free(response);
    }
    assert_true(is_read);
    server_stop(&fixture.server);
}

TEST(a_reload_without_a_limit_forgets_no_change_of_it) {
    static const char other[] = MAPS(LIMIT("other", ""));
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    const char *const configs[] = {other, QUOTA};
    take(&fixture, "ann", 1000);
    for (int i = 0; i < 2; i++) {
        config_replace(fixture.server.process, configs[i]);
        process_signal(fixture.server.process, SIGHUP);
        process_await(fixture.server.process, "msg=\"counters read\"", 2 + i);
        assert_int_equal(used(&fixture, "ann"), i ? 1000 : 0);
    }
    server_stop(&fixture.server);
}

/* ---- kill -9, under load -------------------------------------------------------------------- */

#define KEYS 4           /* of each thread */
#define LOADS 3          /* threads */
#define GRANTS_MAX 50000 /* of a thread in a round */

/* A client that takes one unit after the other. */
struct load {
    pthread_t thread;
    char url[NNG_MAXADDRLEN];
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

/* Takes units until the server is gone, and records each grant. With `make kills` it never
 * pauses. */
static void *load_main(void *context) {
    static const unsigned char greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct load *load = (struct load *)context;
    unsigned char own[8];
    int fd = connect_within(load->url, TIMEOUT_MS);
    if (fd < 0) return NULL;
    bool alive = send_all(fd, greeting, 8) && receive_all(fd, own, 8);
    const bool pauses = rounds("DOORMAN_KILLS", 0) == 0;
    while (alive && load->count < GRANTS_MAX && !__atomic_load_n(&load->stops, __ATOMIC_RELAXED)) {
        int key = (int)(load->count % KEYS);
        load->asked[key]++;
        alive = load_ask(fd, load->number, key);
        if (alive) load->grants[load->count++] = (struct grant){clock_read(), key};
        if (pauses) sleep_ms(2);
    }
    close(fd);
    return NULL;
}

static void loads_start(const struct fixture *fixture) {
    for (int i = 0; i < LOADS; i++) {
        struct load *load = &loads[i];
        snprintf(load->url, sizeof load->url, "%s", fixture->server.url);
        load->number = i;
        load->stops = false;
        load->count = 0;
        memset(load->asked, 0, sizeof load->asked);
        assert_int_equal(pthread_create(&load->thread, NULL, load_main, load), 0);
    }
}

static void loads_join(void) {
    for (int i = 0; i < LOADS; i++) assert_int_equal(pthread_join(loads[i].thread, NULL), 0);
}

/* Returns how many grants of a key, or of all keys if `key` is -1, a thread had since a time. */
static long granted_since(const struct load *load, int key, int64_t since) {
    long sum = 0;
    for (size_t i = 0; i < load->count; i++) {
        sum += load->grants[i].at >= since && (key < 0 || load->grants[i].key == key);
    }
    return sum;
}

/* Compares what the threads were granted with what a new server says is used. Fails if more is used
 * than was asked for, or if grants of the time before `since` are forgotten.
 *   before   in/out: what each key had used before the round
 *   since    grants after this time may be forgotten
 *   returns  how many grants were forgotten */
static long account_compare(const struct fixture *fixture, long before[LOADS][KEYS],
                            int64_t since) {
    long forgotten = 0;
    for (int i = 0; i < LOADS; i++) {
        for (int key = 0; key < KEYS; key++) {
            char name[16];
            snprintf(name, sizeof name, "%d-%d", i, key);
            long now = used(fixture, name), had = before[i][key];
            long lost = had + granted_since(&loads[i], key, 0) - now;
            assert_true(now <= had + loads[i].asked[key]);
            assert_true(lost <= granted_since(&loads[i], key, since));
            forgotten += lost > 0 ? lost : 0;
            before[i][key] = now;
        }
    }
    return forgotten;
}

/* Waits for `duration` while the load runs. Returns the time up to which the file has all changes,
 * as the server has said last. */
static int64_t run_for(const struct fixture *fixture, int64_t duration) {
    int64_t end = clock_read() + duration, since = 0;
    do {
        int64_t asked_at = clock_read();
        double age = status_number(fixture, "state.age");
        since = asked_at - (int64_t)(age * SECOND) - 1;
        sleep_ms(10);
    } while (clock_read() < end);
    return since;
}

/* V8: the server says up to which time all changes are written. A kill forgets only grants after
 * that time, and in at least one round only grants of the last two seconds. */
TEST(a_kill_forgets_at_most_the_changes_that_are_not_written) {
    static long before[LOADS][KEYS];
    char path[96];
    bool in_time = false;
    unsigned random = (unsigned)time(NULL);
    state_path(path);
    memset(before, 0, sizeof before);
    struct fixture fixture = start(QUOTA, path, NULL);
    print_message("SEED=%u\n", random);
    for (int i = 0, count = rounds("DOORMAN_KILLS", 10); i < count; i++) {
        random = random * 1103515245U + 12345U;
        loads_start(&fixture);
        int64_t since = run_for(&fixture, (int64_t)(random >> 16) % 2500 * (SECOND / 1000));
        int64_t killed_at = clock_read();
        kill_now(&fixture);
        loads_join();
        process_remove_last();
        fixture = start(QUOTA, path, NULL);
        long forgotten = account_compare(&fixture, before, since), in_two = 0, all = 0;
        for (int k = 0; k < LOADS; k++) {
            in_two += granted_since(&loads[k], -1, killed_at - 2 * SECOND);
            all += granted_since(&loads[k], -1, 0);
        }
        assert_true(all > 0);
        in_time = in_time || forgotten <= in_two;
        print_message("round %d: %ld granted, %ld forgotten, %ld in two intervals\n", i, all,
                      forgotten, in_two);
    }
    assert_true(in_time);
    server_stop(&fixture.server);
}

/* V8: a restart keeps even the units that are granted at the moment of the signal. */
TEST(restarts_under_load_forget_nothing) {
    static long before[LOADS][KEYS];
    char path[96];
    state_path(path);
    memset(before, 0, sizeof before);
    struct fixture fixture = start(QUOTA, path, NULL);
    for (int i = 0, count = rounds("DOORMAN_RESTARTS", 5); i < count; i++) {
        loads_start(&fixture);
        (void)run_for(&fixture, SECOND / 4);
        process_signal(fixture.server.process, SIGTERM);
        process_end(fixture.server.process, 0);
        loads_join();
        process_remove_last();
        fixture = start(QUOTA, path, NULL);
        assert_int_equal(account_compare(&fixture, before, INT64_MAX), 0);
    }
    server_stop(&fixture.server);
}

/* ---- a file that fails ---------------------------------------------------------------------- */

/* Bounds the size of the files of a server. Writes beyond the bound fail, as on a full disk. */
static void limit_files(const struct fixture *fixture, rlim_t bytes) {
    const struct rlimit limit = {bytes, RLIM_INFINITY};
    assert_int_equal(prlimit(fixture->server.process->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* D6 */
TEST(a_full_disk_delays_the_writes_and_stops_no_decision) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 1);
    await_written(&fixture);
    limit_files(&fixture, 4096);
    take(&fixture, "ann", 1000);
    /* The log cannot be written either, so the test looks at the metrics. */
    EVENTUALLY(metric(&fixture, "doorman_state_errors_total") >= 2);
    assert_true(metric(&fixture, "doorman_state_age_seconds") > 0);
    expect(&fixture, "/v1/status", HOST, 200, "\"failure\":{\"for\":");
    expect(&fixture, "/", HOST, 200, "cannot be written");
    take(&fixture, "bob", 7);
    assert_int_equal(used(&fixture, "ann"), 1001);
    limit_files(&fixture, RLIM_INFINITY);
    process_await(fixture.server.process, "msg=\"the store of counters works again\"", 1);
    await_written(&fixture);
    kill_now(&fixture);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 1001);
    assert_int_equal(used(&fixture, "bob"), 7);
    server_stop(&fixture.server);
}

/* The file was moved to another place, and comes back. */
TEST(a_file_that_is_gone_is_written_when_it_is_back) {
    char path[96], other[112];
    state_path(path);
    snprintf(other, sizeof other, "%s-moved", path);
    struct fixture fixture = start(QUOTA, path, NULL);
    assert_int_equal(rename(path, other), 0);
    take(&fixture, "ann", 1000);
    process_await(fixture.server.process, "was removed or replaced", 1);
    assert_int_equal(rename(other, path), 0);
    process_await(fixture.server.process, "msg=\"the store of counters works again\"", 1);
    server_stop(&fixture.server);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 1000);
    server_stop(&fixture.server);
}

/* D8: a stop waits at most 25 s for the file. Changes that were written earlier are not lost. */
TEST(a_stop_gives_up_a_file_that_cannot_be_written) {
    char path[96], other[112];
    state_path(path);
    snprintf(other, sizeof other, "%s-moved", path);
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 10);
    await_written(&fixture);
    assert_int_equal(rename(path, other), 0);
    take(&fixture, "ann", 1000);
    process_await(fixture.server.process, "was removed or replaced", 1);
    process_signal(fixture.server.process, SIGTERM);
    process_end(fixture.server.process, 3); /* a person must know that changes are forgotten */
    assert_int_equal(process_logged(fixture.server.process, "why=\"25 s have passed\""), 1);
    assert_int_equal(rename(other, path), 0);
    fixture = start(QUOTA, path, NULL);
    assert_int_equal(used(&fixture, "ann"), 10);
    server_stop(&fixture.server);
}

TEST(a_second_signal_ends_the_wait_for_a_file_that_cannot_be_written) {
    char path[96], other[112];
    state_path(path);
    snprintf(other, sizeof other, "%s-moved", path);
    struct fixture fixture = start(QUOTA, path, NULL);
    assert_int_equal(rename(path, other), 0);
    take(&fixture, "ann", 1000);
    process_await(fixture.server.process, "was removed or replaced", 1);
    process_signal(fixture.server.process, SIGTERM);
    process_await(fixture.server.process, "a second signal ends the wait", 1);
    process_signal(fixture.server.process, SIGTERM);
    process_await(fixture.server.process, "why=\"a second signal came\"", 1);
    process_end(fixture.server.process, 3); /* a person must know that changes are forgotten */
}

/* Makes a file that has a counter for each of `keys` keys. */
static void make_file(const char *path, int keys) {
    struct fixture fixture = start(QUOTA, path, NULL);
    for (int i = 0; i < keys; i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        take(&fixture, key, 1000);
    }
    server_stop(&fixture.server);
}

static void overwrite(const char *path, off_t at, const void *bytes, size_t count) {
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, at), (ssize_t)count);
    assert_int_equal(close(fd), 0);
}

/* D9 */
TEST(a_second_server_on_the_same_file_is_refused) {
    char path[96];
    state_path(path);
    struct fixture fixture = start(QUOTA, path, NULL);
    expect_refusal((const char *[]){"--state", path, NULL}, 1, "another process uses it");
    take(&fixture, "ann", 1);
    server_stop(&fixture.server);
}

/* D10 */
TEST(a_file_of_a_newer_version_is_refused) {
    char path[96];
    state_path(path);
    make_file(path, 1);
    overwrite(path, 60, "\0\0\0\2", 4); /* PRAGMA user_version */
    expect_refusal((const char *[]){"--state", path, NULL}, 1,
                   "was written by a newer doorman_server; start that version");
}

TEST(a_place_that_cannot_be_written_is_refused) {
    char path[96];
    state_path(path);
    file_write(path, "this is a text, and long enough not to be an empty database; "
                     "it has no header of SQLite, whose first 16 bytes are always the same");
    expect_refusal((const char *[]){"--state", path, NULL}, 1, "it is damaged, or not of Doorman");
    expect_refusal((const char *[]){"--state", "/nowhere/state", NULL}, 1, "its folder must exist");
    expect_refusal((const char *[]){"--state", "/proc/version", NULL}, 1, "--state /proc/version:");
}

/* Makes a file whose rows are damaged. */
static void make_damaged_file(const char *path) {
    char rubbish[4096];
    struct stat status;
    make_file(path, 100);
    memset(rubbish, 'x', sizeof rubbish);
    assert_int_equal(stat(path, &status), 0);
    for (off_t at = 3 * 4096; at < status.st_size; at += 4096) { /* the pages of the rows */
        overwrite(path, at, rubbish, sizeof rubbish);
    }
}

/* D4: a page that is damaged is found while the server runs. */
TEST(counters_that_cannot_be_read_are_granted_or_refused_as_the_limit_says) {
    static const char refusing[] = MAPS(LIMIT("quota", ", \"on_unread\": \"refuse\""));
    const char *const more[] = {"--state-wait", "1", "--state"};
    const char *ask = "/v1/allow?resource=maps&key=key-1&cost=1";
    char path[96];
    state_path(path);
    make_damaged_file(path);
    for (int i = 0; i < 2; i++) {
        struct fixture fixture = fixture_start(
            i ? refusing : QUOTA, (const char *[]){more[0], more[1], more[2], path, NULL});
        process_await(fixture.server.process, "the counters were not read in time", 1);
        process_await(fixture.server.process, "it is damaged", 1);
        expect(&fixture, ask, HOST, i ? 429 : 200, i ? "\"reason\":\"LEARNING\"" : "GRANTED");
        assert_true(metric(&fixture, "doorman_state_reading") > 0);
        kill_now(&fixture);
    }
}

/* A list without the counters that are only in the file would look as if nothing was used. */
TEST(counters_that_are_not_read_yet_are_not_listed) {
    char path[96];
    state_path(path);
    make_damaged_file(path);
    struct fixture fixture = fixture_start(QUOTA, (const char *[]){"--state", path, NULL});
    process_await(fixture.server.process, "it is damaged", 1);
    expect(&fixture, "/v1/counters", HOST, 503, "the counters of the store are not read yet");
    expect(&fixture, "/v1/counters", HOST, 503, "\r\nRetry-After: 1\r\n");
    kill_now(&fixture);
}

/* D2: --check-config says for each limit what a restart forgets, with and without --state. */
TEST(check_config_says_what_a_restart_forgets) {
    static const char config[] = MAPS(LIMIT("quota", "") ", " LIMIT(
        "other",
        ", \"durable\": false") ", {\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 9, "
                                "\"size\": 9}"
                                ", {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 9}");
    const char *const expected[2][4] = {
        {"limit quota of maps is durable, but without --state each restart begins",
         "limit other of maps is not durable", "limit burst of maps is not durable",
         "limit slots of maps keeps no counters"},
        {"limit quota of maps is durable: a restart forgets nothing, and a crash forgets the",
         "limit other of maps is not durable", "limit burst of maps is not durable",
         "limit slots of maps keeps no counters: its holds last over a planned stop"}};
    for (int i = 0; i < 2; i++) {
        struct process *process = process_new();
        file_write(process->config, config);
        const char *const arguments[] = {"--config",           process->config,   "--check-config",
                                         i ? "--state" : NULL, "/nowhere/at/all", NULL};
        assert_int_equal(process_run(process, arguments, NULL), 0);
        char *out = file_read(process->out);
        for (int k = 0; k < 4; k++) {
            if (!strstr(out, expected[i][k])) fail_msg("no '%s' in %s", expected[i][k], out);
        }
        free(out);
        assert_int_equal(process_logged(process, "is kept only in memory"), i ? 1 : 2);
    }
}

TEST(flags_that_do_not_fit_are_refused) {
    expect_refusal((const char *[]){"--state-interval", "2", NULL}, 2,
                   "--state-interval needs --state");
    expect_refusal((const char *[]){"--state", "x", "--state-interval", "0", NULL}, 2,
                   "--state-interval is '0', not a whole number from 1 to 3600");
    expect_refusal((const char *[]){"--state", "x", "--etcd", "http://127.0.0.1:1",
                                    "--election-key", "k", NULL},
                   2, "the processes of a node cannot share a file");
}
