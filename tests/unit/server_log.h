/* Helpers of the tests of the server's log: a service without a server object, which logs to a
 * file. A test includes doorman_server.c first. */
#ifndef DOORMAN_TESTS_SERVER_LOG_H
#define DOORMAN_TESTS_SERVER_LOG_H

#include <setjmp.h>
#include <cmocka.h>

#define SECOND DOORMAN_SECOND

/* A service that logs to a file. It has no server object. */
struct world {
    struct settings settings;
    struct service service;
    FILE *log;
    int standard_error; /* a copy of the descriptor, for the end of the test */
};

static int log_setup(void **state) {
    struct world *w = (struct world *)calloc(1, sizeof *w);
    assert_non_null(w);
    w->service.settings = &w->settings;
    w->log = tmpfile();
    assert_non_null(w->log);
    w->standard_error = dup(STDERR_FILENO);
    assert_true(dup2(fileno(w->log), STDERR_FILENO) == STDERR_FILENO);
    *state = w;
    return 0;
}

static int log_teardown(void **state) {
    struct world *w = (struct world *)*state;
    dup2(w->standard_error, STDERR_FILENO);
    close(w->standard_error);
    fclose(w->log);
    free(w->service.suspects);
    free(w);
    return 0;
}

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
