/* A process whose file descriptors leak replaces itself (server/process/replace.c). The first test
 * makes the leak of nng 1.5.2. The other tests need no fault of nng: the server inherits sockets
 * whose peers have left, and which nothing closes. The server ignores a leak while few of the
 * allowed descriptors are open, so a test lowers the limit when the server must act. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#include <dirent.h>
#include <sys/resource.h>

enum { LEAKED = 100, LIMIT = 128 }; /* of a server with inherited sockets */

#define QUOTA                                                                                      \
    "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": \"quota\", "            \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 10, \"window\": \"month\"}]}]}"
#define REPLACES "file descriptors leak, so the process replaces itself"
#define STAYS "file descriptors leak, and the process must not replace itself now"

/* ---- helpers -------------------------------------------------------------------------------- */

/* Opens sockets whose peers have left. A process that is started afterwards inherits them. */
static void sockets_open(int sockets[LEAKED]) {
    for (int i = 0; i < LEAKED; i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        close(pair[1]);
        assert_int_equal(fcntl(pair[0], F_SETFD, 0), 0);
        sockets[i] = pair[0];
    }
}

static void sockets_close(const int sockets[LEAKED]) {
    for (int i = 0; i < LEAKED; i++) close(sockets[i]);
}

/* Reads the addresses of a server from its log. */
static struct fixture fixture_of(struct process *process) {
    struct fixture fixture = {.server = {process, ""}, .http = {process, ""}};
    unsigned port = 0;
    process_await(process, "msg=serving", 1);
    char *log_text = file_read(process->err);
    const char *listen = strstr(log_text, " listen="), *http = strstr(log_text, " http=http");
    assert_true(listen && http);
    assert_int_equal(sscanf(listen, " listen=%127[^ ,\n]", fixture.server.url), 1);
    assert_int_equal(sscanf(http, " http=http://127.0.0.1:%u", &port), 1);
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%u", port);
    free(log_text);
    return fixture;
}

/* Starts a server that inherits leaked sockets.
 *   more          further arguments, up to a NULL; or NULL
 *   environment   as in process_start */
static struct fixture leaky_start(const char *const *more, const char *const *environment) {
    struct process *process = process_new();
    const char *arguments[ARGUMENT_MAX] = {"--config",          process->config, "--listen",
                                           "tcp://127.0.0.1:0", "--http",        "127.0.0.1:0"};
    int sockets[LEAKED];
    for (size_t i = 0; more && more[i]; i++) arguments[i + 6] = more[i];
    file_write(process->config, QUOTA);
    sockets_open(sockets);
    process_start(process, arguments, environment);
    sockets_close(sockets);
    return fixture_of(process);
}

static void limit_files(const struct fixture *fixture, rlim_t count) {
    const struct rlimit limit = {count, count};
    assert_int_equal(prlimit(fixture->server.process->pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

static int count_files(const struct fixture *fixture) {
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)fixture->server.process->pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* Waits for the second run of a process, and checks that it serves at the same nng address, without
 * the descriptors of the first run. Both runs have the same process id. */
static void await_replacement(const struct fixture *fixture) {
    process_await(fixture->server.process, REPLACES, 1);
    process_await(fixture->server.process, "this process has replaced itself", 1);
    cJSON_Delete(send_request(&fixture->server, "{\"discovery\":{}}"));
    assert_true(count_files(fixture) < LEAKED);
    assert_int_equal(process_logged(fixture->server.process, "msg=serving"), 2);
}

static void take(const struct fixture *fixture, int cost) {
    char path[64];
    snprintf(path, sizeof path, "/v1/allow?resource=maps&key=ann&cost=%d", cost);
    expect(fixture, path, HOST, 200, "\"decision\":\"GRANTED\"");
}

/* ---- the leak of nng ------------------------------------------------------------------------ */

#define CLIENTS 25

/* Lets clients send several requests at once, and leave without a look at the responses. */
static void clients_vanish(const struct server *server) {
    static const char request[] = "{\"discovery\":{}}";
    int clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) clients[i] = raw_greet(server);
    for (int i = 0; i < CLIENTS; i++) {
        for (int times = 0; times < 4; times++) {
            (void)(raw_send_head(clients[i], sizeof request - 1) &&
                   raw_send(clients[i], request, sizeof request - 1));
        }
    }
    for (int i = 0; i < CLIENTS; i++) close(clients[i]);
}

/* Makes a server leak descriptors until this many are open. */
static void leak(const struct fixture *fixture, int count) {
    for (int i = 0; i < 1000 && count_files(fixture) < count; i++) clients_vanish(&fixture->server);
    assert_true(count_files(fixture) >= count);
}

/* The next run has the same counters. After a second leak within ten minutes the server does not
 * replace itself. */
TEST(a_server_that_nng_makes_leak_replaces_itself_once_and_forgets_nothing) {
    enum { FILES = 512, MANY = 450 };
    char path[96];
    require(strcmp(nng_version(), "1.5.2") == 0, "nng 1.5.2");
    snprintf(path, sizeof path, "%s/state", process_new()->folder);
    struct fixture fixture = fixture_start(QUOTA, (const char *[]){"--state", path, NULL});
    pid_t pid = fixture.server.process->pid;
    limit_files(&fixture, FILES);
    process_await(fixture.server.process, "msg=\"counters read\"", 1);
    take(&fixture, 7);
    leak(&fixture, MANY);
    await_replacement(&fixture);
    assert_int_equal(fixture.server.process->pid, pid);
    process_await(fixture.server.process, "msg=\"counters read\"", 2);
    expect(&fixture, "/v1/allow?resource=maps&key=ann&cost=0", HOST, 200, "\"remaining\":3");
    assert_true(metric(&fixture, "doorman_server_replacements_total") == 1);

    leak(&fixture, MANY);
    process_await(fixture.server.process, STAYS, 1);
    process_await(fixture.server.process, "because=\"it has done so in the last ten minutes\"", 1);
    assert_true(metric(&fixture, "doorman_server_leaked_fds") > MANY / 2);
    take(&fixture, 3);
    assert_int_equal(process_logged(fixture.server.process, "msg=serving"), 2);
    server_stop(&fixture.server);
}

/* ---- the replacement ------------------------------------------------------------------------ */

/* The next run keeps all addresses, also ports that the system has chosen, and an address of
 * IPC. */
TEST(the_next_run_has_the_addresses_of_the_last_one) {
    char ipc[128];
    unsigned before = 0, after = 0;
    snprintf(ipc, sizeof ipc, "ipc://%s/other", process_new()->folder);
    const char *const more[] = {"--listen", ipc, "--http-health", "127.0.0.1:0", NULL};
    struct fixture fixture = leaky_start(more, NULL);
    take(&fixture, 7);
    limit_files(&fixture, LIMIT);
    await_replacement(&fixture);
    take(&fixture, 7); /* there is no file, so the counters begin again */
    struct server other = fixture.server;
    snprintf(other.url, sizeof other.url, "%s", ipc);
    cJSON_Delete(send_request(&other, "{\"discovery\":{}}"));
    char *log_text = file_read(fixture.server.process->err);
    const char *first = strstr(log_text, "http_health=127.0.0.1:0 port=");
    assert_non_null(first);
    assert_int_equal(sscanf(first, "http_health=127.0.0.1:0 port=%u", &before), 1);
    const char *second = strstr(strstr(first, "\n"), "http_health=127.0.0.1:");
    assert_non_null(second);
    assert_int_equal(sscanf(second, "http_health=127.0.0.1:%u", &after), 1);
    assert_int_equal(before, after);
    free(log_text);
    expect(&fixture, "/v1/status", HOST, 200, "\"replacements\":{\"count\":1,");
    expect(&fixture, "/", HOST, 200, "1 time, because file descriptors leaked; the last one ");
    server_stop(&fixture.server);
}

/* Writes DOORMAN_REPLACED for a process that has replaced itself three times, last
 * `seconds_ago`. */
static void variable_write(char text[64], int64_t seconds_ago) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    int64_t at = ((int64_t)now.tv_sec - seconds_ago) * 1000000000 + now.tv_nsec;
    snprintf(text, 64, "DOORMAN_REPLACED=3 %lld", (long long)at);
}

TEST(ten_minutes_after_a_replacement_there_may_be_another_one) {
    char variable[64];
    variable_write(variable, 601);
    struct fixture fixture = leaky_start(NULL, (const char *const[]){variable, NULL});
    assert_true(metric(&fixture, "doorman_server_replacements_total") == 3);
    limit_files(&fixture, LIMIT);
    process_await(fixture.server.process, "this process has replaced itself", 2);
    assert_true(metric(&fixture, "doorman_server_replacements_total") == 4);
    server_stop(&fixture.server);

    variable_write(variable, 300); /* 5 minutes are left for a slow machine */
    fixture = leaky_start(NULL, (const char *const[]){variable, NULL});
    limit_files(&fixture, LIMIT);
    process_await(fixture.server.process, STAYS, 1);
    assert_int_equal(process_logged(fixture.server.process, REPLACES), 0);
    server_stop(&fixture.server);
}

TEST(a_server_that_could_not_start_again_keeps_running) {
    struct fixture fixture = leaky_start(NULL, NULL);
    config_replace(fixture.server.process, "{");
    process_await(fixture.server.process, "configuration refused", 1);
    limit_files(&fixture, LIMIT);
    process_await(fixture.server.process, STAYS, 1);
    expect(&fixture, "/v1/status", HOST, 200, "\"descriptor_leak\":{\"for\":");
    expect(&fixture, "/", HOST, 200, "the process does not replace itself: ");
    config_replace(fixture.server.process, QUOTA);
    await_replacement(&fixture);
    server_stop(&fixture.server);
}

TEST(SIGTERM_ends_a_server_that_is_about_to_replace_itself) {
    struct fixture fixture = leaky_start(NULL, NULL);
    limit_files(&fixture, LIMIT);
    process_await(fixture.server.process, REPLACES, 1);
    server_stop(&fixture.server);
}

/* This is longer than the server watches a leak before it acts. */
#define PATIENCE_MS 9000

/* The connections alone reach the limit, but their peers are still there, so they are no leak. */
TEST(a_crowd_of_honest_clients_is_no_leak) {
    int clients[LEAKED];
    struct fixture fixture = fixture_start(QUOTA, NULL);
    for (int i = 0; i < LEAKED; i++) clients[i] = raw_greet(&fixture.server);
    limit_files(&fixture, LEAKED);
    sleep_ms(PATIENCE_MS);
    assert_int_equal(process_logged(fixture.server.process, "file descriptors leak"), 0);
    char byte = 0;
    for (int i = 0; i < LEAKED; i++) { /* all are still connected */
        assert_int_equal(recv(clients[i], &byte, 1, MSG_DONTWAIT), -1);
        close(clients[i]);
    }
    server_stop(&fixture.server);
}

TEST(replace_at_0_means_never) {
    struct fixture fixture = leaky_start((const char *[]){"--replace-at", "0", NULL}, NULL);
    limit_files(&fixture, LIMIT);
    EVENTUALLY(metric(&fixture, "doorman_server_leaked_fds") >= LEAKED);
    sleep_ms(PATIENCE_MS);
    assert_int_equal(process_logged(fixture.server.process, "file descriptors leak"), 0);
    server_stop(&fixture.server);
    expect_refusal((const char *[]){"--replace-at", "101", NULL}, 2, "from 0 to 100");
    expect_refusal((const char *[]){"--replace-at", "8o", NULL}, 2, "from 0 to 100");
}

/* ---- what watches the process --------------------------------------------------------------- */

/* When a process replaces itself, it must not send STOPPING=1, because systemd would end it. */
TEST(systemd_sees_a_reload) {
    const struct timeval timeout = {TIMEOUT_MS / 1000, 0};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char variable[160], message[512], seen[256] = "";
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    snprintf(name.sun_path, sizeof name.sun_path, "%s/notify", process_new()->folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    snprintf(variable, sizeof variable, "NOTIFY_SOCKET=%s", name.sun_path);
    struct fixture fixture = leaky_start(NULL, (const char *const[]){variable, NULL});
    limit_files(&fixture, LIMIT);
    for (int ready = 0; ready < 2;) {
        ssize_t bytes = recv(fd, message, sizeof message - 1, 0);
        assert_true(bytes > 0);
        message[bytes] = 0;
        ready += strcmp(message, "READY=1") == 0;
        if (strncmp(message, "STATUS=", 7) == 0) continue;
        size_t at = strlen(seen);
        snprintf(seen + at, sizeof seen - at, "%.*s ", (int)strcspn(message, "="), message);
    }
    assert_string_equal(seen, "READY RELOADING READY ");
    server_stop(&fixture.server);
    close(fd);
}

static bool is_master(const struct fixture *fixture) {
    return metric(fixture, "doorman_server_is_master") > 0;
}

/* V2: the election key is free at once, so nobody waits for the TTL of an hour. The first process
 * that asks etcd becomes master: another process, or the next run of this one. */
TEST(a_master_resigns_before_it_replaces_itself) {
    struct etcd etcd;
    etcd_require(&etcd);
    const char *const more[] = {
        "--etcd", etcd.url, "--election-key", "doorman/test", "--election-ttl", "3600", NULL};
    struct fixture first = leaky_start(more, NULL);
    EVENTUALLY(is_master(&first));
    struct fixture second = fixture_start(QUOTA, more);
    limit_files(&first, LIMIT);
    await_replacement(&first);
    EVENTUALLY(is_master(&first) || is_master(&second));
    assert_int_equal(process_logged(first.server.process, "this server has left the election"), 1);
    server_stop(&first.server);
    EVENTUALLY(is_master(&second));
    server_stop(&second.server);
    etcd_stop(&etcd);
}
