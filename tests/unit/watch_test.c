/* How doorman_server notices changes of its configuration file, of certificates and of tokens (V1).
 * Each call of watch_poll or reload_update is one second of the main thread. */
#include "../../server/process/watch.c"
#include "../test.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* A file that the server loads, and a service that has loaded it. */
struct world {
    struct settings settings;
    struct service service;
    struct watch watch;
    char folder[32], path[48], kept[48];
    char own[RELOAD_FILE_COUNT][48]; /* the files of certificates and tokens; "": none */
};

static int missing_lines, again_lines; /* of the log, since the last look */
static int tls_loads, token_loads;
static bool tls_fits = true; /* the files of TLS belong together */
static int tls_refusals;     /* loads that log that they do not */
static char last_flag[32];   /* in the last line of the log that has a flag */

/* Counts the lines that the watch logs. */
void server_log(const struct settings *settings, enum log_level level, const char *message, ...) {
    va_list pairs;
    (void)settings;
    missing_lines += level == LEVEL_WARNING &&
                     (strstr(message, " is missing;") || strstr(message, " cannot be read;"));
    again_lines += level == LEVEL_INFO &&
                   (strstr(message, " is there again") || strstr(message, " read again"));
    va_start(pairs, message);
    const char *key = va_arg(pairs, const char *), *value = va_arg(pairs, const char *);
    if (strcmp(key, "flag") == 0) snprintf(last_flag, sizeof last_flag, "%s", value);
    va_end(pairs);
}

const char *server_flag_name(int flag) {
    return flag == FLAG_TLS_KEY ? "tls-key" : flag == FLAG_ETCD_CA ? "etcd-ca" : "other";
}

void server_reload_config(struct service *service) { (void)service; }

bool server_load_files(struct service *service, enum file_group group, bool is_quiet) {
    (void)service;
    token_loads += group == FILES_OF_TOKENS;
    if (group == FILES_OF_TOKENS) return true;
    tls_loads++;
    tls_refusals += !tls_fits && !is_quiet;
    return tls_fits;
}

/* Does what the server does at SIGHUP. */
static void reload_now(struct service *service) {
    watch_reload(service);
    server_load_files(service, FILES_OF_TLS, false);
    server_load_files(service, FILES_OF_TOKENS, false);
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void write_file(const struct world *w, const char *text) { write_text(w->path, text); }

static void world_setup(struct world *w) {
    snprintf(w->folder, sizeof w->folder, "/tmp/doorman-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/config", w->folder);
    snprintf(w->kept, sizeof w->kept, "%s/kept", w->folder);
    write_file(w, "one");
    w->settings.config = w->path;
    w->service.settings = &w->settings;
    w->service.watch = &w->watch;
    watch_start(&w->service);
    missing_lines = again_lines = tls_loads = token_loads = 0;
}

static void world_teardown(struct world *w) {
    (void)unlink(w->path);
    (void)unlink(w->kept);
    for (int i = 0; i < RELOAD_FILE_COUNT; i++) (void)unlink(w->own[i]);
    assert_int_equal(rmdir(w->folder), 0);
}
FIXTURE(world)

static void assert_logged(int missing, int again) {
    assert_int_equal(missing_lines, missing);
    assert_int_equal(again_lines, again);
}

TEST_WITH(world, a_changed_file_is_noticed_until_it_is_loaded) {
    assert_false(watch_poll(&w->service));
    write_file(w, "a longer text");
    assert_true(watch_poll(&w->service));
    assert_true(watch_poll(&w->service));
    watch_start(&w->service);
    assert_false(watch_poll(&w->service));
    assert_logged(0, 0);
}

TEST_WITH(world, a_file_that_is_missing_once_is_not_reported) {
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rename(w->path, w->kept), 0);
        assert_false(watch_poll(&w->service));
        assert_int_equal(rename(w->kept, w->path), 0);
        assert_false(watch_poll(&w->service));
    }
    assert_logged(0, 0);
}

TEST_WITH(world, a_deleted_file_is_reported_once) {
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(rename(w->path, w->kept), 0);
        assert_false(watch_poll(&w->service));
        assert_logged(i - 1, i - 1);
        for (int k = 0; k < 100; k++) {
            assert_false(watch_poll(&w->service));
            assert_logged(i, i - 1);
        }
        assert_int_equal(rename(w->kept, w->path), 0);
        assert_false(watch_poll(&w->service));
        assert_logged(i, i);
    }
}

TEST_WITH(world, another_file_in_place_of_a_deleted_one_is_a_change) {
    assert_int_equal(rename(w->path, w->kept), 0);
    for (int i = 0; i < 3; i++) assert_false(watch_poll(&w->service));
    write_file(w, "two");
    assert_true(watch_poll(&w->service));
    assert_logged(1, 1);
}

/* The reload has logged that the file cannot be opened, so the watch does not log it again. */
TEST_WITH(world, a_file_that_is_missing_at_a_reload_is_not_reported_again) {
    assert_int_equal(rename(w->path, w->kept), 0);
    assert_false(watch_poll(&w->service));
    watch_start(&w->service);
    for (int i = 0; i < 3; i++) assert_false(watch_poll(&w->service));
    assert_logged(0, 0);
    assert_int_equal(rename(w->kept, w->path), 0);
    assert_true(watch_poll(&w->service));
    assert_logged(0, 1);
}

static const char *noted(const struct world *w, enum load_failure failure) {
    return w->service.last_load.failures[failure];
}

/* The metrics and the page show the note of a missing file. */
TEST_WITH(world, a_missing_file_is_noted_until_it_is_there_again) {
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rename(w->path, w->kept), 0);
        assert_false(watch_poll(&w->service));
        assert_string_equal(noted(w, CONFIG_UNREADABLE), "");
        assert_false(watch_poll(&w->service));
        assert_string_equal(noted(w, CONFIG_UNREADABLE), strerror(ENOENT));
        assert_int_equal(rename(w->kept, w->path), 0);
        assert_false(watch_poll(&w->service));
        assert_string_equal(noted(w, CONFIG_UNREADABLE), "");
    }
}

/* root may read every file, so this process becomes another user. */
TEST_WITH(world, a_file_that_this_process_may_not_read_is_noted) {
    bool is_root = geteuid() == 0;
    assert_int_equal(chmod(w->folder, 0755), 0);
    assert_int_equal(chmod(w->path, 0), 0);
    if (is_root && seteuid(65534) != 0) {
        print_message("needs: another user\n");
        skip();
    }
    for (int i = 0; i < 3; i++) assert_false(watch_poll(&w->service));
    if (is_root) assert_int_equal(seteuid(0), 0);
    assert_string_equal(noted(w, CONFIG_UNREADABLE), strerror(EACCES));
    assert_logged(1, 0);
    assert_int_equal(chmod(w->path, 0644), 0);
    assert_false(watch_poll(&w->service));
    assert_string_equal(noted(w, CONFIG_UNREADABLE), "");
    assert_logged(1, 1);
}

/* A node with a parent has no configuration file, and a key of etcd is not a file. */
TEST_WITH(world, without_a_file_nothing_is_reported) {
    w->settings.config = NULL;
    for (int i = 0; i < 3; i++) assert_false(watch_poll(&w->service));
    w->settings.config = "etcd:key";
    w->settings.config_key = "key";
    watch_start(&w->service);
    for (int i = 0; i < 3; i++) assert_false(watch_poll(&w->service));
    assert_logged(0, 0);
}

/* ---- certificates and tokens ---------------------------------------------------------------- */

/* Gives the service a certificate, its key, tokens, and an authority for etcd. */
static void use_own_files(struct world *w) {
    static const int files[] = {FILE_TLS_CERT, FILE_TLS_KEY, FILE_TOKENS, FILE_ETCD_CA};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = w->own[files[i]];
        snprintf(path, sizeof w->own[0], "%s/%d", w->folder, files[i]);
        write_text(path, "one");
    }
    w->settings.tls_cert = w->own[FILE_TLS_CERT];
    w->settings.tls_key = w->own[FILE_TLS_KEY];
    w->settings.http_token = w->own[FILE_TOKENS];
    w->settings.etcd_ca = w->own[FILE_ETCD_CA];
    reload_start(&w->service);
}

/* Does the work of some seconds, and compares how often each group was loaded in them. */
static void expect_loads(struct world *w, int seconds, int tls, int tokens) {
    tls_loads = token_loads = 0;
    for (int i = 0; i < seconds; i++) reload_update(&w->service);
    assert_int_equal(tls_loads, tls);
    assert_int_equal(token_loads, tokens);
}

TEST_WITH(world, changed_files_are_loaded_once_when_two_looks_agree) {
    use_own_files(w);
    expect_loads(w, 3, 0, 0);
    write_text(w->own[FILE_TLS_CERT], "a longer text");
    expect_loads(w, 1, 0, 0);
    write_text(w->own[FILE_TLS_KEY], "a longer text too");
    expect_loads(w, 1, 0, 0);
    expect_loads(w, 1, 1, 0);
    write_text(w->own[FILE_TOKENS], "a longer text");
    expect_loads(w, 1, 0, 0);
    expect_loads(w, 5, 0, 1);
    write_text(w->own[FILE_ETCD_CA], "a longer text");
    expect_loads(w, 5, 0, 0);
    assert_logged(0, 0);
}

TEST_WITH(world, a_missing_key_is_reported_once_and_nothing_is_loaded) {
    use_own_files(w);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(rename(w->own[FILE_TLS_KEY], w->kept), 0);
        expect_loads(w, 1, 0, 0);
        assert_logged(i - 1, i - 1);
        expect_loads(w, 10, 0, 0);
        assert_logged(i, i - 1);
        assert_string_equal(last_flag, "tls-key");
        assert_int_equal(rename(w->kept, w->own[FILE_TLS_KEY]), 0);
        expect_loads(w, 10, 0, 0);
        assert_logged(i, i);
    }
}

/* A group of files has one note. While files of the group are missing, the note names one of
 * them. */
TEST_WITH(world, a_missing_file_of_a_group_is_noted) {
    use_own_files(w);
    assert_int_equal(unlink(w->own[FILE_TLS_CERT]), 0);
    expect_loads(w, 2, 0, 0);
    assert_non_null(strstr(noted(w, CERTIFICATE_UNREADABLE), w->own[FILE_TLS_CERT]));
    assert_non_null(strstr(noted(w, CERTIFICATE_UNREADABLE), strerror(ENOENT)));
    assert_int_equal(unlink(w->own[FILE_TLS_KEY]), 0);
    assert_int_equal(unlink(w->own[FILE_TOKENS]), 0);
    expect_loads(w, 2, 0, 0);
    assert_non_null(strstr(noted(w, CERTIFICATE_UNREADABLE), w->own[FILE_TLS_KEY]));
    assert_non_null(strstr(noted(w, TOKENS_UNREADABLE), w->own[FILE_TOKENS]));
    write_text(w->own[FILE_TLS_KEY], "one");
    write_text(w->own[FILE_TOKENS], "one");
    expect_loads(w, 1, 0, 0);
    assert_non_null(strstr(noted(w, CERTIFICATE_UNREADABLE), w->own[FILE_TLS_CERT]));
    assert_string_equal(noted(w, TOKENS_UNREADABLE), "");
    write_text(w->own[FILE_TLS_CERT], "one");
    expect_loads(w, 1, 0, 1);
    assert_string_equal(noted(w, CERTIFICATE_UNREADABLE), "");
}

TEST_WITH(world, tokens_are_loaded_while_a_key_is_missing) {
    use_own_files(w);
    assert_int_equal(unlink(w->own[FILE_TLS_KEY]), 0);
    write_text(w->own[FILE_TLS_CERT], "a longer text");
    write_text(w->own[FILE_TOKENS], "a longer text");
    expect_loads(w, 5, 0, 1);
    write_text(w->own[FILE_TLS_KEY], "another text");
    expect_loads(w, 5, 1, 0);
    assert_logged(1, 1);
}

/* A socket can be seen but not be opened, not even by root. */
TEST_WITH(world, a_file_that_cannot_be_opened_counts_as_missing) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    use_own_files(w);
    assert_int_equal(unlink(w->own[FILE_TLS_KEY]), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    memcpy(address.sun_path, w->own[FILE_TLS_KEY], sizeof w->own[0]);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    expect_loads(w, 5, 0, 0);
    assert_logged(1, 0);
    close(fd);
}

/* The server does not load the file for etcd itself, but reports that it is missing. */
TEST_WITH(world, a_missing_file_for_etcd_is_reported) {
    use_own_files(w);
    assert_int_equal(unlink(w->own[FILE_ETCD_CA]), 0);
    expect_loads(w, 5, 0, 0);
    assert_logged(1, 0);
    assert_string_equal(last_flag, "etcd-ca");
    reload_now(&w->service); /* SIGHUP */
    expect_loads(w, 5, 0, 0);
    assert_logged(1, 0);
}

/* A certificate and its key are replaced one after the other, five seconds apart. */
TEST_WITH(world, a_certificate_waits_for_its_key) {
    use_own_files(w);
    tls_refusals = 0;
    tls_fits = false;
    write_text(w->own[FILE_TLS_CERT], "another certificate");
    expect_loads(w, 5, 1, 0);
    write_text(w->own[FILE_TLS_KEY], "another key");
    tls_fits = true;
    expect_loads(w, 30, 1, 0);
    assert_int_equal(tls_refusals, 0);
}

TEST_WITH(world, a_certificate_without_its_key_is_refused_once) {
    use_own_files(w);
    tls_refusals = 0;
    tls_fits = false;
    write_text(w->own[FILE_TLS_CERT], "another certificate");
    expect_loads(w, 2 + TLS_WAIT - 1, 1, 0);
    assert_int_equal(tls_refusals, 0);
    expect_loads(w, 1, 1, 0);
    assert_int_equal(tls_refusals, 1);
    expect_loads(w, 30, 0, 0);
    reload_now(&w->service);
    assert_int_equal(tls_refusals, 2); /* a reload that a person asks for says it at once */
    tls_fits = true;
}

/* The load has logged that the file cannot be read, so the watch does not log it again. */
TEST_WITH(world, a_key_that_is_missing_at_a_reload_is_not_reported_again) {
    use_own_files(w);
    assert_int_equal(unlink(w->own[FILE_TLS_KEY]), 0);
    reload_now(&w->service);
    assert_int_equal(tls_loads, 1);
    expect_loads(w, 5, 0, 0);
    assert_logged(0, 0);
    write_text(w->own[FILE_TLS_KEY], "another text");
    expect_loads(w, 5, 1, 0);
    assert_logged(0, 1);
}
