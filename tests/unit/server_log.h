/* Helpers of the tests of the server's log: a service that logs to a file. A test includes
 * doorman_server.c first. */
#ifndef DOORMAN_TESTS_SERVER_LOG_H
#define DOORMAN_TESTS_SERVER_LOG_H

#include "../test.h"

#define SECOND DOORMAN_SECOND

/* A service that logs to a file. Its server is NULL until the test sets it. The test holds the lock
 * of the service, and releases the lock while it calls a function that takes it. */
struct world {
    struct settings settings;
    struct service service;
    FILE *log;
    int standard_error; /* a copy of the descriptor, for the end of the test */
};

static void world_setup(struct world *w) {
    w->service.settings = &w->settings;
    assert_int_equal(server_make_states(&w->service), CONTINUE);
    assert_true(server_lock_init(&w->service.lock, LOCK_SERVICE));
    server_lock(&w->service.lock);
    w->log = tmpfile();
    assert_non_null(w->log);
    w->standard_error = dup(STDERR_FILENO);
    assert_true(dup2(fileno(w->log), STDERR_FILENO) == STDERR_FILENO);
}

static void world_teardown(struct world *w) {
    dup2(w->standard_error, STDERR_FILENO);
    close(w->standard_error);
    fclose(w->log);
    server_unlock(&w->service.lock);
    server_lock_uninit(&w->service.lock);
    server_free_states(&w->service);
}
FIXTURE(world)

/* Returns how many lines contain a text, and empties the log. */
static inline int logged(struct world *w, const char *text) {
    char line[PIPE_BUF + 1];
    int count = 0;
    rewind(w->log);
    while (fgets(line, sizeof line, w->log)) count += strstr(line, text) != NULL;
    assert_int_equal(ftruncate(fileno(w->log), 0), 0);
    rewind(w->log);
    return count;
}

#endif
