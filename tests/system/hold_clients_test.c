/* The holds of examples/clients, in Python, JavaScript and Go, with a real server over HTTP. In
 * most tests the limit has one unit, so a second hold is granted only when the first has ended.
 *
 * Each client prints a line for each change: "held", "refused", "gone" or "released". The tests
 * wait for these lines rather than for times where they can, because machines may be slow. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define LANGUAGES 3
#define UNITS(units, seconds, restart)                                                             \
    "{\"resources\": [{\"identifier_glob\": \"slots\", \"limits\": [{\"name\": \"slots\", "        \
    "\"kind\": \"CONCURRENCY\", \"limit\": " units ", \"queue\": 10, \"max_wait\": 600, "          \
    "\"on_restart\": \"" restart "\", \"time_to_live\": " seconds "}]}]}"
#define LIMIT(seconds, restart) UNITS("1", seconds, restart)

static const struct language {
    const char *program, *file; /* the file runs a client of examples/clients */
} languages[LANGUAGES] = {
    {"python3", "tests/system/clients/run_hold.py"},
    {"node", "tests/system/clients/run_hold.mjs"},
    {"go", "tests/system/clients/run_hold.go"},
};

/* Compiles the client in Go, and writes the path of the program to `out`. */
static void go_build(const char *program, char out[256]) {
    char command[1024];
    struct process *process = process_new();
    snprintf(out, 256, "%s/hold", process->folder);
    snprintf(command, sizeof command,
             "mkdir %s/doorman && cp examples/clients/*.go %s/doorman && cp %s %s && cd %s && "
             "printf 'module run\\ngo 1.18\\n' >go.mod && GOCACHE=$OLDPWD/build/go_cache '%s' "
             "build -o hold",
             process->folder, process->folder, languages[2].file, process->folder, process->folder,
             program);
    assert_int_equal(system(command), 0);
}

/* Finds what runs the client of a language, or skips the test. */
static void language_require(const struct language *language, char program[256]) {
    char path[256];
    require(find_program(language->program, path), language->program);
    snprintf(program, 256, "%s", path);
    if (strcmp(language->program, "go") == 0) go_build(path, program);
}

static struct process *holder_start_for(const struct language *language, const char *program,
                                        const char *urls, const char *resource, const char *wait) {
    bool is_script = strcmp(language->program, "go") != 0;
    const char *const arguments[] = {language->file, urls, resource, wait, NULL};
    struct process *process = process_new();
    process_launch(process, program, arguments + !is_script, NULL);
    return process;
}

static struct process *holder_start(const struct language *language, const char *program,
                                    const char *urls, const char *wait) {
    return holder_start_for(language, program, urls, "slots", wait);
}

static void await_line(const struct process *holder, const char *line) {
    for (int waited = 0;; waited += 20) {
        char *output = file_read(holder->out);
        bool found = strstr(output, line) != NULL;
        free(output);
        if (found) return;
        if (waited >= 2 * TIMEOUT_MS) {
            char *errors = file_read(holder->err);
            fail_msg("no line \"%s\": %s", line, errors);
        }
        sleep_ms(20);
    }
}

static bool has_line(const struct process *holder, const char *line) {
    char *output = file_read(holder->out);
    bool found = strstr(output, line) != NULL;
    free(output);
    return found;
}

/* Ends a holder, which releases its hold. */
static void holder_stop(struct process *holder) {
    process_signal(holder, SIGTERM);
    process_end(holder, 0);
    assert_true(has_line(holder, "released"));
}

/* Starts a server at a port. Returns its process as soon as it serves. */
static struct process *server_at(int port, const char *config) {
    char http[64];
    struct process *process = process_new();
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    file_write(process->config, config);
    const char *const arguments[] = {
        "--config", process->config, "--listen", "tcp://127.0.0.1:0", "--http", http, NULL};
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    return process;
}

static void process_kill(struct process *process) {
    process_signal(process, SIGKILL);
    process_wait(process);
}

static void url_of(int port, char out[64]) {
    snprintf(out, 64, "http://127.0.0.1:1,http://127.0.0.1:%d", port);
}

/* The first holder renews its hold for longer than the time to live of six seconds. When it
 * releases the hold, a second holder that waits gets the unit. The second holder is killed, and its
 * unit comes back by itself. No server listens at the first of the two addresses of each holder.
 * Returns false if the machine has stopped the first holder for so long that its hold has ended. */
static bool turns(const struct language *language, const char *program) {
    char url[64];
    int port = port_free();
    url_of(port, url);
    struct process *server = server_at(port, LIMIT("6", "full"));
    struct process *first = holder_start(language, program, url, "500");
    await_line(first, "held");
    struct process *second = holder_start(language, program, url, "500");
    sleep_ms(7000);
    bool renewed = !has_line(first, "gone") && !has_line(second, "held");
    if (renewed) {
        holder_stop(first);
        await_line(second, "held");
        struct process *third = holder_start(language, program, url, "500");
        process_kill(second);
        await_line(third, "held");
        holder_stop(third);
    } else {
        process_kill(first);
        process_kill(second);
    }
    process_kill(server);
    return renewed;
}

static void try_turns(const struct language *language) {
    char program[256];
    bool renewed = false;
    language_require(language, program);
    for (int i = 0; i < 4 && !renewed; i++) renewed = turns(language, program);
    assert_true(renewed);
}

/* A server that starts again learns the hold from a renewal that names its items. If the client
 * left out the items, or renewed at another address, the hold would be gone. */
static void try_restart(const struct language *language) {
    char program[256], url[64];
    language_require(language, program);
    int port = port_free();
    url_of(port, url);
    struct process *server = server_at(port, LIMIT("60", "full"));
    struct process *holder = holder_start(language, program, url, "500");
    await_line(holder, "held");
    process_kill(server);
    server = server_at(port, LIMIT("60", "learn"));
    sleep_ms(26000); /* a renewal, and another one if the first met no server */
    assert_false(has_line(holder, "gone"));
    holder_stop(holder);
    process_kill(server);
}

/* A server that starts again with a limit of 0 does not accept the next renewal. The holder must
 * print "gone". */
static void try_gone(const struct language *language) {
    char program[256], url[64];
    language_require(language, program);
    int port = port_free();
    url_of(port, url);
    struct process *server = server_at(port, LIMIT("6", "full"));
    struct process *holder = holder_start(language, program, url, "500");
    await_line(holder, "held");
    process_kill(server);
    server = server_at(port, UNITS("0", "6", "full"));
    await_line(holder, "gone");
    holder_stop(holder);
    process_kill(server);
}

/* Waits until this number of permits wait at a server. */
static void await_waiting(const struct fixture *server, const char *count) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "\"waiting\":%s,", count);
    for (int waited = 0;; waited += 20) {
        char *response = get(server, "/v1/holds", HOST);
        bool found = strstr(response, wanted) != NULL;
        free(response);
        if (found) return;
        assert_true(waited < 2 * TIMEOUT_MS);
        sleep_ms(20);
    }
}

/* A release ends an acquire that still waits, and takes its permit out of the queue. */
static void try_cancel(const struct language *language) {
    char program[256], url[64];
    unsigned port = 0;
    language_require(language, program);
    struct fixture server = fixture_start(LIMIT("60", "full"), NULL);
    assert_int_equal(sscanf(server.http.url, "tcp://127.0.0.1:%u", &port), 1);
    url_of((int)port, url);
    struct process *first = holder_start(language, program, url, "500");
    await_line(first, "held");
    struct process *second = holder_start(language, program, url, "500");
    await_waiting(&server, "1");
    process_signal(second, SIGUSR2);
    await_line(second, "refused");
    await_waiting(&server, "0");
    holder_stop(first);
    struct process *third = holder_start(language, program, url, "0");
    await_line(third, "held");
    holder_stop(second);
    holder_stop(third);
    server_stop(&server.server);
}

/* A resource id that is too long is refused with 400. No client sends the request again, although
 * its permit may wait. */
static void try_refusal(const struct language *language) {
    char program[256], url[64], resource[300];
    unsigned port = 0;
    language_require(language, program);
    struct fixture server = fixture_start(LIMIT("60", "full"), NULL);
    assert_int_equal(sscanf(server.http.url, "tcp://127.0.0.1:%u", &port), 1);
    url_of((int)port, url);
    memset(resource, 'r', sizeof resource);
    resource[sizeof resource - 1] = 0;
    struct process *holder = holder_start_for(language, program, url, resource, "500");
    await_line(holder, "refused");
    holder_stop(holder);
    assert_false(has_line(holder, "gone"));
    char *metrics = get(&server, "/metrics", HOST);
    assert_non_null(strstr(metrics, "{method=\"acquire\",code=\"INVALID_ARGUMENT\"} 1\n"));
    free(metrics);
    server_stop(&server.server);
}

TEST(a_hold_in_python_is_renewed_released_and_waited_for) { try_turns(&languages[0]); }

TEST(a_hold_in_python_survives_a_restart_of_the_server) { try_restart(&languages[0]); }

TEST(a_holder_in_python_is_told_that_its_hold_is_gone) { try_gone(&languages[0]); }

TEST(a_holder_in_python_can_give_up_waiting) { try_cancel(&languages[0]); }

TEST(a_hold_in_javascript_is_renewed_released_and_waited_for) { try_turns(&languages[1]); }

TEST(a_hold_in_javascript_survives_a_restart_of_the_server) { try_restart(&languages[1]); }

TEST(a_holder_in_javascript_is_told_that_its_hold_is_gone) { try_gone(&languages[1]); }

TEST(a_holder_in_javascript_can_give_up_waiting) { try_cancel(&languages[1]); }

TEST(a_hold_in_go_is_renewed_released_and_waited_for) { try_turns(&languages[2]); }

TEST(a_hold_in_go_survives_a_restart_of_the_server) { try_restart(&languages[2]); }

TEST(a_holder_in_go_is_told_that_its_hold_is_gone) { try_gone(&languages[2]); }

TEST(a_holder_in_go_can_give_up_waiting) { try_cancel(&languages[2]); }

TEST(a_refused_hold_in_python_is_not_asked_for_again) { try_refusal(&languages[0]); }

TEST(a_refused_hold_in_javascript_is_not_asked_for_again) { try_refusal(&languages[1]); }

TEST(a_refused_hold_in_go_is_not_asked_for_again) { try_refusal(&languages[2]); }
