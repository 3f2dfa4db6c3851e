/* How doorman_server notices changes of its configuration file (V1). Each call of server_watch_poll
 * is one second of the main thread. */
#define DOORMAN_SERVER_WATCH
#include "../../server/watch.c"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

/* The configuration file, and a service that has loaded it. */
struct world {
    struct settings settings;
    struct service service;
    char folder[32], path[48], kept[48];
};

static int missing_count, again_count;

/* Counts the lines that the watch logs. */
void server_log(const struct settings *settings, enum log_level level, const char *message, ...) {
    (void)settings;
    missing_count += level == LEVEL_WARNING && strstr(message, " is missing;") != NULL;
    again_count += level == LEVEL_INFO && strstr(message, " is there again") != NULL;
}

static void write_file(const struct world *w, const char *text) {
    FILE *file = fopen(w->path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    struct world *w = (struct world *)calloc(1, sizeof *w);
    assert_non_null(w);
    snprintf(w->folder, sizeof w->folder, "/tmp/doorman-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/config", w->folder);
    snprintf(w->kept, sizeof w->kept, "%s/kept", w->folder);
    write_file(w, "one");
    w->settings.config = w->path;
    w->service.settings = &w->settings;
    server_watch_start(&w->service);
    missing_count = again_count = 0;
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = (struct world *)*state;
    (void)unlink(w->path);
    (void)unlink(w->kept);
    assert_int_equal(rmdir(w->folder), 0);
    free(w);
    return 0;
}

static void assert_logged(int missing, int again) {
    assert_int_equal(missing_count, missing);
    assert_int_equal(again_count, again);
}

static void a_changed_file_is_noticed_until_it_is_loaded(void **state) {
    struct world *w = (struct world *)*state;
    assert_false(server_watch_poll(&w->service));
    write_file(w, "a longer text");
    assert_true(server_watch_poll(&w->service));
    assert_true(server_watch_poll(&w->service));
    server_watch_start(&w->service);
    assert_false(server_watch_poll(&w->service));
    assert_logged(0, 0);
}

static void a_file_that_is_missing_once_is_not_reported(void **state) {
    struct world *w = (struct world *)*state;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rename(w->path, w->kept), 0);
        assert_false(server_watch_poll(&w->service));
        assert_int_equal(rename(w->kept, w->path), 0);
        assert_false(server_watch_poll(&w->service));
    }
    assert_logged(0, 0);
}

static void a_deleted_file_is_reported_once(void **state) {
    struct world *w = (struct world *)*state;
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(rename(w->path, w->kept), 0);
        assert_false(server_watch_poll(&w->service));
        assert_logged(i - 1, i - 1);
        for (int k = 0; k < 100; k++) {
            assert_false(server_watch_poll(&w->service));
            assert_logged(i, i - 1);
        }
        assert_int_equal(rename(w->kept, w->path), 0);
        assert_false(server_watch_poll(&w->service));
        assert_logged(i, i);
    }
}

static void another_file_in_place_of_a_deleted_one_is_a_change(void **state) {
    struct world *w = (struct world *)*state;
    assert_int_equal(rename(w->path, w->kept), 0);
    for (int i = 0; i < 3; i++) assert_false(server_watch_poll(&w->service));
    write_file(w, "two");
    assert_true(server_watch_poll(&w->service));
    assert_logged(1, 1);
}

/* The reload logs that the file cannot be opened. */
static void a_file_that_is_missing_at_a_reload_is_not_reported_again(void **state) {
    struct world *w = (struct world *)*state;
    assert_int_equal(rename(w->path, w->kept), 0);
    assert_false(server_watch_poll(&w->service));
    server_watch_start(&w->service);
    for (int i = 0; i < 3; i++) assert_false(server_watch_poll(&w->service));
    assert_logged(0, 0);
    assert_int_equal(rename(w->kept, w->path), 0);
    assert_true(server_watch_poll(&w->service));
    assert_logged(0, 1);
}

/* A node with a parent has no file, and a key of etcd is not a file. */
static void without_a_file_nothing_is_reported(void **state) {
    struct world *w = (struct world *)*state;
    w->settings.config = NULL;
    for (int i = 0; i < 3; i++) assert_false(server_watch_poll(&w->service));
    w->settings.config = "etcd:key";
    w->settings.config_key = "key";
    server_watch_start(&w->service);
    for (int i = 0; i < 3; i++) assert_false(server_watch_poll(&w->service));
    assert_logged(0, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_changed_file_is_noticed_until_it_is_loaded),
        TEST(a_file_that_is_missing_once_is_not_reported),
        TEST(a_deleted_file_is_reported_once),
        TEST(another_file_in_place_of_a_deleted_one_is_a_change),
        TEST(a_file_that_is_missing_at_a_reload_is_not_reported_again),
        TEST(without_a_file_nothing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
