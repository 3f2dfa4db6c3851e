/* The watchdog of doorman_server: WATCHDOG=1 is sent only while requests can be answered. The test
 * holds the lock of a service, or all threads of nng, as a defect would. tests/system/notify_test.c
 * tests the other messages with a real process. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_NOTIFY
#include "../../doorman_server.c"
#undef main
#include "../../server/process/notify.c"

#include "../test.h"

#define CONFIG "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":100}]}"
#define PING "WATCHDOG=1"
#define PINGS_MISSED 20   /* how many intervals a hang lasts in the tests */
#define TIMEOUT_MS 180000 /* long, because machines can be slow */
#define BLOCKER_COUNT 256 /* more than nng has threads */

/* A service with a server object and without sockets. Its probes are due every 5 ms. */
struct world {
    struct settings settings;
    struct service service;
    char folder[32], path[48];
    int systemd; /* receives the messages */
};

static void set_environment(const struct world *w) {
    assert_int_equal(setenv("NOTIFY_SOCKET", w->path, 1), 0);
    assert_int_equal(setenv("WATCHDOG_USEC", "10000", 1), 0);
    assert_int_equal(unsetenv("WATCHDOG_PID"), 0);
}

static void open_systemd(struct world *w) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(w->folder, sizeof w->folder, "/tmp/doorman-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/notify", w->folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", w->path);
    w->systemd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(w->systemd >= 0);
    assert_int_equal(bind(w->systemd, (struct sockaddr *)&address, sizeof address), 0);
}

static void world_setup(struct world *w) {
    w->service.settings = &w->settings;
    server_lock_init(&w->service.lock, LOCK_SERVICE);
    doorman_error error;
    assert_int_equal(doorman_json_config(&w->service.config, CONFIG, strlen(CONFIG), &error),
                     DOORMAN_OK);
    const doorman_server_options options = {.node = "node", .config = w->service.config};
    assert_int_equal(doorman_server_create(&w->service.server, &options, &error, doorman_clock()),
                     DOORMAN_OK);
    open_systemd(w);
    set_environment(w);
}

static void world_teardown(struct world *w) {
    notify_stop(&w->service);
    doorman_server_destroy(w->service.server);
    doorman_config_destroy(w->service.config);
    close(w->systemd);
    unlink(w->path);
    rmdir(w->folder);
}
FIXTURE(world)

/* Receives a message. Returns false if none comes within `ms`. */
static bool receive(const struct world *w, char text[512], int ms) {
    struct pollfd in = {.fd = w->systemd, .events = POLLIN};
    if (poll(&in, 1, ms) != 1) return false;
    ssize_t bytes = recv(w->systemd, text, 511, 0);
    assert_true(bytes > 0);
    text[bytes] = 0;
    return true;
}

/* Waits for a message that contains a text. */
static void await(const struct world *w, const char *text) {
    char message[512] = "";
    int count = 0;
    while (!strstr(message, text)) {
        assert_true(receive(w, message, TIMEOUT_MS));
        assert_in_range(++count, 1, 1000000);
    }
}

/* Returns how many pings arrive while the service hangs. One ping can be on its way when the hang
 * begins. */
static int count_pings(const struct world *w) {
    char message[512];
    int count = 0;
    nng_msleep(PINGS_MISSED * w->service.notify->interval_ms);
    while (receive(w, message, 0)) count += strcmp(message, PING) == 0;
    return count;
}

static void drain(const struct world *w) {
    char message[512];
    while (receive(w, message, 0)) continue;
}

TEST_WITH(world, no_ping_is_sent_while_a_thread_keeps_the_lock) {
    assert_int_equal(notify_start(&w->service), CONTINUE);
    await(w, "READY=1");
    await(w, PING);
    server_lock(&w->service.lock);
    drain(w);
    assert_in_range(count_pings(w) + count_pings(w), 0, 1);
    server_unlock(&w->service.lock);
    await(w, PING);
}

static void block(void *argument) {
    pthread_mutex_lock((pthread_mutex_t *)argument);
    pthread_mutex_unlock((pthread_mutex_t *)argument);
}

TEST_WITH(world, no_ping_is_sent_while_all_threads_of_nng_hang) {
    static nng_aio *blockers[BLOCKER_COUNT];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    assert_int_equal(notify_start(&w->service), CONTINUE);
    await(w, PING);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BLOCKER_COUNT; i++) {
        assert_int_equal(nng_aio_alloc(&blockers[i], block, &lock), 0);
        nng_sleep_aio(0, blockers[i]);
    }
    int last = count_pings(w);
    for (int waited = 0; waited < TIMEOUT_MS && last > 1; waited += 100) last = count_pings(w);
    assert_in_range(count_pings(w) + count_pings(w), 0, 1);
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < BLOCKER_COUNT; i++) nng_aio_free(blockers[i]);
    await(w, PING);
}

static void become_master(struct world *w) {
    const doorman_mastership mastership = {.address = "tcp://one:1", .until = DOORMAN_NEVER};
    server_lock(&w->service.lock);
    assert_int_equal(doorman_server_set_master(w->service.server, &mastership, doorman_clock()),
                     DOORMAN_OK);
    server_unlock(&w->service.lock);
}

static void follow_master(struct world *w) {
    const doorman_mastership mastership = {.address = "tcp://two:2", .until = 0};
    server_lock(&w->service.lock);
    assert_int_equal(doorman_server_set_master(w->service.server, &mastership, doorman_clock()),
                     DOORMAN_OK);
    server_unlock(&w->service.lock);
}

TEST_WITH(world, the_status_names_the_master_and_a_refused_configuration) {
    assert_int_equal(notify_start(&w->service), CONTINUE);
    await(w, "STATUS=no master is known");
    become_master(w);
    await(w, "STATUS=master, at tcp://one:1");
    follow_master(w);
    await(w, "STATUS=standby; the master is tcp://two:2");
    server_lock(&w->service.lock);
    snprintf(w->service.last_load.error, sizeof w->service.last_load.error, "a\nREADY=1");
    server_unlock(&w->service.lock);
    char message[512] = "";
    while (!strstr(message, "refused")) assert_true(receive(w, message, TIMEOUT_MS));
    assert_string_equal(message, "STATUS=standby; the master is tcp://two:2; the last configuration"
                                 " was refused: a");
}

/* Without a watchdog there are no pings, and the probes only update the status. */
TEST_WITH(world, only_a_watchdog_for_this_process_gets_pings) {
    static const struct {
        const char *microseconds, *pid;
        bool expected;
    } cases[] = {{"10000", "1", false}, {"0", NULL, false},
                 {"", NULL, false},     {"1", NULL, true},
                 {"-5", NULL, false},   {"10 s", NULL, false},
                 {"10000", "", true},   {"18446744073709551", NULL, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("WATCHDOG_USEC", cases[i].microseconds, 1);
        unsetenv("WATCHDOG_PID");
        if (cases[i].pid) setenv("WATCHDOG_PID", cases[i].pid, 1);
        struct notify notify = {.fd = -1};
        notify_set_watchdog(&notify);
        assert_int_equal(notify.has_watchdog, cases[i].expected);
        assert_in_range(notify.interval_ms, 1, PROBE_INTERVAL_MS);
    }
    char pid[24];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    set_environment(w);
    struct notify notify = {.fd = -1};
    notify_set_watchdog(&notify);
    assert_true(notify.has_watchdog);
    assert_int_equal(notify.interval_ms, 5);
}

TEST(an_address_is_a_path_or_an_abstract_name_that_fits) {
    struct notify notify = {.fd = -1};
    char text[128];
    const size_t most = sizeof notify.address.sun_path - 1;
    assert_true(notify_set_address(&notify, "/run/x"));
    assert_string_equal(notify.address.sun_path, "/run/x");
    assert_true(notify_set_address(&notify, "@name"));
    assert_int_equal(notify.address.sun_path[0], 0);
    assert_int_equal(notify.address_bytes, offsetof(struct sockaddr_un, sun_path) + 5);
    assert_false(notify_set_address(&notify, "vsock:2:1234"));
    assert_false(notify_set_address(&notify, "@"));
    assert_false(notify_set_address(&notify, "relative/path"));
    snprintf(text, sizeof text, "/%0*d", (int)most - 1, 0);
    assert_true(notify_set_address(&notify, text));
    snprintf(text, sizeof text, "/%0*d", (int)most, 0);
    assert_false(notify_set_address(&notify, text));
}
