/* The order of the locks of the server: a thread that breaks it stops at an assertion, even if no
 * other thread holds a lock. */
#define DOORMAN_IMPLEMENTATION
#include "../../server/server.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"

static struct lock service = LOCK_INITIALIZER(LOCK_SERVICE), http = LOCK_INITIALIZER(LOCK_HTTP);
static struct lock other_http = LOCK_INITIALIZER(LOCK_HTTP);
static pthread_cond_t wake;

static void take_in_order(void) {
    server_lock(&service);
    server_lock(&http);
    server_unlock(&service);
    server_unlock(&http);
}

static void take_an_earlier_one(void) {
    server_lock(&http);
    server_lock(&service);
}

static void take_two_of_one_order(void) {
    server_lock(&http);
    server_lock(&other_http);
}

static void take_one_twice(void) {
    server_lock(&service);
    server_lock(&service);
}

static void try_an_earlier_one(void) {
    server_lock(&http);
    server_try_lock(&service);
}

static void release_what_is_not_held(void) { server_unlock(&service); }

static void wait_with_another_lock(void) {
    server_lock(&service);
    server_lock(&http);
    server_condition_wait(&wake, &http, 1);
}

/* Returns whether a child process that calls a function is stopped by an assertion. */
static bool is_stopped(void (*function)(void)) {
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        assert_non_null(freopen("/dev/null", "w", stderr)); /* the text of the assertion */
        alarm(10);
        function();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(a_thread_may_take_locks_in_their_order) { assert_false(is_stopped(take_in_order)); }

TEST(a_thread_that_takes_an_earlier_lock_is_stopped) {
    assert_true(is_stopped(take_an_earlier_one));
    assert_true(is_stopped(take_two_of_one_order));
    assert_true(is_stopped(take_one_twice));
    assert_true(is_stopped(try_an_earlier_one));
}

TEST(a_thread_that_releases_a_lock_of_another_is_stopped) {
    assert_true(is_stopped(release_what_is_not_held));
}

TEST(a_thread_that_waits_holds_no_other_lock) {
    assert_true(server_condition_init(&wake));
    assert_true(is_stopped(wait_with_another_lock));
    server_lock(&http);
    server_condition_wait(&wake, &http, 1);
    assert_true(server_lock_is_held(&http));
    server_unlock(&http);
    pthread_cond_destroy(&wake);
}

/* The nanoseconds stay below a second, so they fit into a `long` of 32 bits. */
TEST(a_wait_of_any_length_ends_at_a_valid_time) {
    static const struct {
        doorman_time duration, seconds, nanoseconds;
    } rows[] = {{0, 7, 600000000},
                {1, 7, 600000001},
                {DOORMAN_SECOND * 4 / 10 - 1, 7, 999999999},
                {DOORMAN_SECOND * 4 / 10, 8, 0},
                {DOORMAN_SECOND - 1, 8, 599999999},
                {DOORMAN_SECOND * 22 / 10, 9, 800000000}, /* more than 2^31 ns */
                {DOORMAN_SECOND * 86400 + 400000001, 86408, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct timespec start = {.tv_sec = 7, .tv_nsec = 600000000};
        const struct timespec end = server_time_after(start, rows[i].duration);
        assert_int_equal(end.tv_sec, rows[i].seconds);
        assert_int_equal(end.tv_nsec, rows[i].nanoseconds);
    }
}

static void *note_held(void *held) {
    *(bool *)held = server_lock_is_held(&http);
    return NULL;
}

static void *try_lock(void *taken) {
    *(bool *)taken = server_try_lock(&http);
    if (*(bool *)taken) server_unlock(&http);
    return NULL;
}

TEST(a_thread_that_tries_does_not_wait) {
    pthread_t thread;
    bool taken = true;
    assert_true(server_try_lock(&http));
    assert_true(server_lock_is_held(&http));
    assert_int_equal(pthread_create(&thread, NULL, try_lock, &taken), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(taken);
    server_unlock(&http);
    assert_int_equal(pthread_create(&thread, NULL, try_lock, &taken), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(taken);
}

TEST(a_thread_does_not_see_the_locks_of_another) {
    pthread_t thread;
    bool held = true;
    server_lock(&http);
    assert_int_equal(pthread_create(&thread, NULL, note_held, &held), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(held);
    server_unlock(&http);
}
