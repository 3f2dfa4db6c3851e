/* The reservations of examples/clients, in Python, JavaScript and Go, with a real server over HTTP.
 *
 * Each client reserves 6 units and prints "granted". At a signal from the test it settles them at a
 * cost of 1 unit, and reserves 3 units more. Then an exception makes it settle the 3 units as
 * reserved, and it prints "failed". So the server has charged 4 units in the end, even if it was
 * killed and started again. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define LANGUAGES 3
#define LIMIT 10 /* units */
#define WAIT_MS (4 * TIMEOUT_MS)

static const char limits[] =
    "{\"resources\": [{\"identifier_glob\": \"llm\", \"limits\": [{\"name\": \"tokens\", \"kind\": "
    "\"FIXED_WINDOW\", \"limit\": 10, \"window\": 1e8}]}]}";

static const struct language {
    const char *program, *file; /* the file runs a client of examples/clients */
} languages[LANGUAGES] = {
    {"python3", "tests/system/clients/run_reservation.py"},
    {"node", "tests/system/clients/run_reservation.mjs"},
    {"go", "tests/system/clients/run_reservation.go"},
};

/* Compiles the client in Go, and writes the path of the program to `out`. */
static void go_build(const char *program, char out[256]) {
    char command[1024];
    struct process *process = process_new();
    snprintf(out, 256, "%s/reservation", process->folder);
    snprintf(command, sizeof command,
             "mkdir %s/doorman && cp examples/clients/*.go %s/doorman && cp %s %s && cd %s && "
             "printf 'module run\\ngo 1.18\\n' >go.mod && GOCACHE=$OLDPWD/build/go_cache '%s' "
             "build -o reservation",
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

/* Starts a client. Nothing listens at its first address. */
static struct process *client_start(const struct language *language, const char *program,
                                    const char *resource, int port) {
    char urls[64];
    bool is_script = strcmp(language->program, "go") != 0;
    const char *const arguments[] = {language->file, urls, resource, NULL};
    struct process *process = process_new();
    snprintf(urls, sizeof urls, "http://127.0.0.1:1,http://127.0.0.1:%d", port);
    process_launch(process, program, arguments + !is_script, NULL);
    return process;
}

/* Waits until a client has written a line to `file`, its standard output or error. */
static void await_line(const struct process *client, const char *file, const char *line) {
    for (int waited = 0;; waited += 20) {
        char *output = file_read(file);
        bool found = strstr(output, line) != NULL;
        free(output);
        if (found) return;
        if (waited >= WAIT_MS) {
            char *errors = file_read(client->err);
            fail_msg("no line \"%s\": %s", line, errors);
        }
        sleep_ms(20);
    }
}

static void client_stop(struct process *client) {
    process_signal(client, SIGTERM);
    process_end(client, 0);
    char *output = file_read(client->out);
    assert_string_equal(output, "granted\nfailed\nlost 0\n");
    free(output);
}

/* Starts a server whose HTTP has this port. */
static struct server server_at(int port) {
    char http[64];
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    return server_start(limits, (const char *[]){"--http", http, NULL});
}

static void server_kill(const struct server *server) {
    process_signal(server->process, SIGKILL);
    process_wait(server->process);
}

/* Waits until a server has charged `units`. A permit with a cost of 0 charges nothing. */
static void await_used(const struct server *server, int units) {
    static const char question[] =
        "{\"acquire\":{\"client_id\":\"test\",\"permit\":[{\"item\":[{\"resource_id\":\"llm\","
        "\"key\":\"acme\",\"cost\":0}]}]}}";
    char wanted[32];
    snprintf(wanted, sizeof wanted, "\"remaining\":%d,", LIMIT - units);
    for (int waited = 0;; waited += 20) {
        char *reply = send_over_nng(server->url, question, sizeof question - 1, TIMEOUT_MS);
        bool found = reply && strstr(reply, wanted) != NULL;
        if (!found && waited >= WAIT_MS) fail_msg("%s", reply ? reply : "no answer");
        free(reply);
        if (found) return;
        sleep_ms(20);
    }
}

static void try_settle(const struct language *language) {
    char program[256];
    language_require(language, program);
    int port = port_free();
    struct server server = server_at(port);
    struct process *client = client_start(language, program, "llm", port);
    await_line(client, client->out, "granted");
    await_used(&server, 6);
    process_signal(client, SIGUSR2);
    await_line(client, client->out, "failed");
    await_used(&server, 4);
    client_stop(client);
    await_used(&server, 4);
    server_kill(&server);
}

/* The second server does not know the first reservation, so a settle charges the real cost there.
 * While no server runs, the client grants by itself. It settles this reservation at the second
 * server too. */
static void try_restart(const struct language *language) {
    char program[256];
    language_require(language, program);
    int port = port_free();
    struct server server = server_at(port);
    struct process *client = client_start(language, program, "llm", port);
    await_line(client, client->out, "granted");
    server_kill(&server);
    process_signal(client, SIGUSR2);
    await_line(client, client->out, "failed");
    server = server_at(port);
    await_used(&server, 4);
    client_stop(client);
    server_kill(&server);
}

/* A request with a resource id that is too long is answered with 400. No client repeats it, so the
 * server counts two acquires and two settles. */
static void try_refusal(const struct language *language) {
    char program[256], resource[300];
    language_require(language, program);
    int port = port_free();
    struct server server = server_at(port);
    memset(resource, 'r', sizeof resource);
    resource[sizeof resource - 1] = 0;
    struct process *client = client_start(language, program, resource, port);
    await_line(client, client->out, "granted"); /* by the client itself */
    process_signal(client, SIGUSR2);
    await_line(client, client->out, "failed");
    process_await(client, "nobody has counted", 2);
    struct fixture fixture = {.server = server};
    snprintf(fixture.http.url, sizeof fixture.http.url, "tcp://127.0.0.1:%d", port);
    char *metrics = get(&fixture, "/metrics", HOST);
    assert_non_null(strstr(metrics, "{method=\"acquire\",code=\"INVALID_ARGUMENT\"} 2\n"));
    assert_non_null(strstr(metrics, "{method=\"settle\",code=\"INVALID_ARGUMENT\"} 2\n"));
    free(metrics);
    process_signal(client, SIGTERM);
    process_end(client, 0);
    server_kill(&server);
}

TEST(a_reservation_in_python_is_settled) { try_settle(&languages[0]); }

TEST(a_settle_in_python_finds_the_next_server) { try_restart(&languages[0]); }

TEST(a_reservation_in_javascript_is_settled) { try_settle(&languages[1]); }

TEST(a_settle_in_javascript_finds_the_next_server) { try_restart(&languages[1]); }

TEST(a_reservation_in_go_is_settled) { try_settle(&languages[2]); }

TEST(a_settle_in_go_finds_the_next_server) { try_restart(&languages[2]); }

TEST(a_refused_request_in_python_is_not_repeated) { try_refusal(&languages[0]); }

TEST(a_refused_request_in_javascript_is_not_repeated) { try_refusal(&languages[1]); }

TEST(a_refused_request_in_go_is_not_repeated) { try_refusal(&languages[2]); }
