/* doorman_server as a service of systemd. The test plays the role of systemd: it binds the socket
 * in $NOTIFY_SOCKET, and receives what the server sends. */
#define _GNU_SOURCE
#include "harness.h"

#include <sys/un.h>

#define CONFIG "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":100}]}"

/* A server, and the socket that receives its messages. */
struct unit {
    struct server server;
    int fd;
    char address[108]; /* as in $NOTIFY_SOCKET */
    char message[512]; /* the last one */
    bool was_refused;  /* a message has said that a configuration was refused */
};

/* Binds a socket. `address` is a path, or "@" and a name. */
static int notify_bind(const char *address) {
    const struct timeval timeout = {TIMEOUT_MS / 1000, 0};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t bytes = strlen(address);
    memcpy(name.sun_path, address, bytes);
    if (address[0] == '@') name.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, length), 0);
    return fd;
}

/* Starts a server. `watchdog` and `more` are variables of its environment, or NULL. `more` needs
 * `watchdog`. */
static void unit_start(struct unit *unit, bool is_abstract, const char *watchdog,
                       const char *more) {
    struct process *process = process_new();
    char variable[160];
    unit->server.process = process;
    if (is_abstract) {
        snprintf(unit->address, sizeof unit->address, "@%s", process->folder);
    } else {
        snprintf(unit->address, sizeof unit->address, "%s/notify", process->folder);
    }
    unit->fd = notify_bind(unit->address);
    snprintf(variable, sizeof variable, "NOTIFY_SOCKET=%s", unit->address);
    file_write(process->config, CONFIG);
    const char *const arguments[] = {"--config", process->config, "--listen", "tcp://127.0.0.1:0",
                                     NULL};
    const char *const environment[] = {variable, watchdog, watchdog ? more : NULL, NULL};
    process_start(process, arguments, environment);
}

static void unit_receive(struct unit *unit) {
    ssize_t bytes = recv(unit->fd, unit->message, sizeof unit->message - 1, 0);
    assert_true(bytes > 0);
    unit->message[bytes] = 0;
    if (strstr(unit->message, "the last configuration was refused: ")) unit->was_refused = true;
}

static void unit_await(struct unit *unit, const char *text) {
    time_t end = time(NULL) + TIMEOUT_MS / 1000;
    while (strncmp(unit->message, text, strlen(text)) != 0) {
        assert_true(time(NULL) <= end);
        unit_receive(unit);
    }
}

/* Reads the address of the server from its log. Precondition: the server has logged its address, as
 * it does before it is ready. */
static void unit_read_url(struct unit *unit) {
    char *log_text = file_read(unit->server.process->err);
    const char *at = strstr(log_text, " listen=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, " listen=%127[^ ,\n]", unit->server.url), 1);
    free(log_text);
}

/* Ends the server. Returns the number of its pings that were still unread in the socket. */
static int unit_stop(struct unit *unit) {
    int pings = 0;
    server_stop(&unit->server);
    ssize_t bytes = 0;
    while ((bytes = recv(unit->fd, unit->message, sizeof unit->message - 1, MSG_DONTWAIT)) > 0) {
        unit->message[bytes] = 0;
        pings += strstr(unit->message, "WATCHDOG=") != NULL;
    }
    close(unit->fd);
    return pings;
}

TEST(a_server_is_ready_when_it_answers_requests) {
    struct unit unit = {.fd = -1};
    unit_start(&unit, false, NULL, NULL);
    unit_receive(&unit);
    assert_string_equal(unit.message, "READY=1");
    unit_read_url(&unit);
    cJSON *reply = send_request(&unit.server, "{\"discovery\":{}}");
    assert_true(cJSON_IsTrue(find(reply, "discovery.is_master")));
    cJSON_Delete(reply);
    unit_await(&unit, "STATUS=master, at tcp://127.0.0.1:");
    unit_stop(&unit);
}

TEST(an_abstract_socket_gets_the_messages_too) {
    struct unit unit = {.fd = -1};
    unit_start(&unit, true, "WATCHDOG_USEC=100000", NULL);
    unit_await(&unit, "READY=1");
    unit_await(&unit, "WATCHDOG=1");
    unit_stop(&unit);
}

TEST(the_watchdog_gets_pings_until_the_server_stops) {
    struct unit unit = {.fd = -1};
    unit_start(&unit, false, "WATCHDOG_USEC=100000", NULL);
    for (int i = 0; i < 5; i++) {
        unit_await(&unit, "WATCHDOG=1");
        unit.message[0] = 0;
    }
    process_signal(unit.server.process, SIGTERM);
    unit_await(&unit, "STOPPING=1");
    process_end(unit.server.process, 0);
    close(unit.fd);
}

/* The server starts with WATCHDOG_PID of another process. In the time of the test, a watchdog of
 * 2 ms would get hundreds of pings. */
TEST(the_watchdog_of_another_process_gets_no_pings) {
    struct unit unit = {.fd = -1};
    unit_start(&unit, false, "WATCHDOG_USEC=2000", "WATCHDOG_PID=1");
    unit_await(&unit, "STATUS=");
    sleep_ms(500);
    assert_int_equal(unit_stop(&unit), 0);
}

/* A reload starts and ends with a message even if the new configuration is refused. The server and
 * the test read MONOTONIC_USEC from the same clock. */
TEST(a_reload_starts_and_ends_with_a_message) {
    struct unit unit = {.fd = -1};
    unit_start(&unit, false, "WATCHDOG_USEC=100000", NULL);
    unit_await(&unit, "READY=1");
    for (int i = 0; i < 2; i++) {
        struct timespec now;
        long long before = 0, sent = 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
        before = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        if (i == 1) config_replace(unit.server.process, "{}");
        process_signal(unit.server.process, SIGHUP);
        unit_await(&unit, "RELOADING=1");
        assert_int_equal(sscanf(unit.message, "RELOADING=1\nMONOTONIC_USEC=%lld", &sent), 1);
        clock_gettime(CLOCK_MONOTONIC, &now);
        assert_true(sent >= before);
        assert_true(sent <= (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
        unit_await(&unit, "READY=1");
    }
    /* The status that names the refusal can arrive before the reload ends, or after it. */
    time_t end = time(NULL) + TIMEOUT_MS / 1000;
    while (!unit.was_refused && time(NULL) <= end) unit_receive(&unit);
    assert_true(unit.was_refused);
    unit_stop(&unit);
}

/* A node with a parent has nothing to load, but systemd waits for the end of the reload. */
TEST(a_reload_of_a_node_with_a_parent_ends_too) {
    struct unit unit = {.fd = -1};
    struct process *process = process_new();
    char variable[160];
    unit.server.process = process;
    snprintf(unit.address, sizeof unit.address, "%s/notify", process->folder);
    unit.fd = notify_bind(unit.address);
    snprintf(variable, sizeof variable, "NOTIFY_SOCKET=%s", unit.address);
    const char *const arguments[] = {"--parent", "tcp://127.0.0.1:1", "--listen",
                                     "tcp://127.0.0.1:0", NULL};
    const char *const environment[] = {variable, NULL};
    process_start(process, arguments, environment);
    unit_await(&unit, "READY=1");
    process_signal(process, SIGHUP);
    unit_await(&unit, "RELOADING=1");
    unit_await(&unit, "READY=1");
    unit_stop(&unit);
}

/* If nobody receives its messages, the server serves all the same. It logs that it cannot send
 * READY, and later that it cannot send STOPPING. If NOTIFY_SOCKET is not an address, it logs only
 * that. */
TEST(a_server_serves_if_nobody_receives_its_messages) {
    static const struct {
        const char *variable, *logged;
        int times;
    } cases[] = {{"NOTIFY_SOCKET=/nowhere/notify", "cannot notify systemd", 2},
                 {"NOTIFY_SOCKET=vsock:2:1", "NOTIFY_SOCKET must be a path or start with @", 1},
                 {"NOTIFY_SOCKET=", NULL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct unit unit = {.server = {.process = process_new()}, .fd = -1};
        struct process *process = unit.server.process;
        const char *const environment[] = {cases[i].variable, "WATCHDOG_USEC=10000", NULL};
        const char *const arguments[] = {"--config", process->config, "--listen",
                                         "tcp://127.0.0.1:0", NULL};
        file_write(process->config, CONFIG);
        process_start(process, arguments, environment);
        process_await(process, " listen=", 1);
        unit_read_url(&unit);
        if (cases[i].logged) process_await(process, cases[i].logged, 1);
        cJSON_Delete(send_request(&unit.server, "{\"discovery\":{}}"));
        server_stop(&unit.server);
        assert_int_equal(process_logged(process, "cannot notify systemd"), cases[i].times);
    }
}
