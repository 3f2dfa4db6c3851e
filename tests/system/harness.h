/* Helpers shared by the system tests: real processes in their own folders, requests over nng, raw
 * connections, and access to replies. Nothing is left behind: waits for a server have a time-out,
 * each process dies with the test program, and harness_clean ends what a failed test has left. */
#ifndef DOORMAN_TESTS_HARNESS_H
#define DOORMAN_TESTS_HARNESS_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before all includes"
#endif

#include "../test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

/* The time-out of most waits. It is long, because machines can be slow and busy. A wait for
 * something that must not happen has a bound of its own. */
#define TIMEOUT_MS 180000
#define PROCESS_MAX 48 /* in one test */
#define ARGUMENT_MAX 32

/* Skips the test unless the machine has what it needs. tests/run.sh collects the printed line. */
static inline void require(bool has, const char *what) {
    if (has) return;
    print_message("needs: %s\n", what);
    skip();
}

static inline void sleep_ms(int ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

/* Waits until a condition holds. The condition is not evaluated again after that, because it may
 * not hold for long. The pauses grow from 5 to 20 ms during the wait, because a condition often
 * sends a request. */
#define EVENTUALLY(condition)                                                                      \
    do {                                                                                           \
        bool holds_ = (condition);                                                                 \
        for (int waited_ = 0, pause_ = 5; !holds_ && waited_ < TIMEOUT_MS; waited_ += pause_) {    \
            pause_ = waited_ < 40 ? 5 : waited_ < 160 ? waited_ / 8 : 20;                          \
            sleep_ms(pause_);                                                                      \
            holds_ = (condition);                                                                  \
        }                                                                                          \
        if (!holds_) fail_msg("never: %s", #condition);                                            \
    } while (0)

/* ---- files ---------------------------------------------------------------------------------- */

/* Returns a whole file as text; the caller frees it. */
static inline char *file_read(const char *path) {
    struct stat status;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &status), 0);
    size_t bytes = (size_t)status.st_size;
    char *text = (char *)malloc(bytes + 1);
    assert_non_null(text);
    text[fread(text, 1, bytes, file)] = 0;
    fclose(file);
    return text;
}

static inline void file_write(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* ---- processes ------------------------------------------------------------------------------ */

/* A process, and its folder for output, errors, configuration and a socket. */
struct process {
    pid_t pid; /* 0: the process has ended */
    char folder[64], out[80], err[80], config[80], socket[80];
};

static struct process processes[PROCESS_MAX];
static size_t process_count;

static inline struct process *process_new(void) {
    assert_in_range(process_count, 0, PROCESS_MAX - 1);
    char folder[] = "/tmp/doorman-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    struct process *process = &processes[process_count++];
    process->pid = 0;
    snprintf(process->folder, sizeof process->folder, "%s", folder);
    snprintf(process->out, sizeof process->out, "%s/out", folder);
    snprintf(process->err, sizeof process->err, "%s/err", folder);
    snprintf(process->config, sizeof process->config, "%s/config.json", folder);
    snprintf(process->socket, sizeof process->socket, "%s/socket", folder);
    return process;
}

/* Executes the program in the child. Between fork and exec the child may call only what a signal
 * handler may call, because the test program has threads. */
static inline void process_exec(const struct process *process, char *const argv[],
                                char *const envp[]) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int out = open(process->out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open(process->err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out >= 0 && err >= 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2) execve(argv[0], argv, envp);
    _exit(127);
}

extern char **environ;

/* Starts a program.
 *   program       its path
 *   arguments     up to a NULL
 *   environment   "NAME=VALUE" up to a NULL; or NULL. It is added to the test's own environment,
 *                 from which the variables DOORMAN_... are removed. HTTP is off by default,
 *                 because many servers run on one machine */
static inline void process_launch(struct process *process, const char *program,
                                  const char *const *arguments, const char *const *environment) {
    const char *argv[ARGUMENT_MAX + 2] = {program};
    const char *envp[512];
    size_t count = 0;
    for (size_t i = 0; arguments[i]; i++) {
        assert_in_range(i, 0, ARGUMENT_MAX - 1);
        argv[i + 1] = arguments[i];
    }
    for (char **variable = environ; *variable && count < 480; variable++) {
        if (strncmp(*variable, "DOORMAN_", 8) != 0) envp[count++] = *variable;
    }
    for (size_t i = 0; environment && environment[i]; i++) envp[count++] = environment[i];
    envp[count++] = "DOORMAN_HTTP=off"; /* last, because the first value of a variable wins */
    /* A server that cannot close nng's connections in time exits without waiting for nng's threads.
     * ThreadSanitizer must not report them. */
    envp[count++] = "TSAN_OPTIONS=report_thread_leaks=0";
    envp[count] = NULL;
    file_write(process->out, "");
    file_write(process->err, "");
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        process_exec(process, (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)envp);
    }
}

/* Starts doorman_server. */
static inline void process_start(struct process *process, const char *const *arguments,
                                 const char *const *environment) {
    const char *program = getenv("DOORMAN_SERVER");
    process_launch(process, program ? program : "build/doorman_server", arguments, environment);
}

/* Sends a signal. After SIGSTOP, waits until all threads have stopped, because on a busy machine
 * some could still answer for a moment. */
static inline void process_signal(const struct process *process, int number) {
    siginfo_t info;
    assert_true(process->pid > 0);
    assert_int_equal(kill(process->pid, number), 0);
    if (number != SIGSTOP) return;
    assert_int_equal(waitid(P_PID, (id_t)process->pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
}

/* Waits for a process and returns its exit code. Like a shell, it returns 128 plus the signal's
 * number if a signal ended the process. */
static inline int process_wait(struct process *process) {
    int status = 0;
    pid_t ended = 0;
    for (int waited = 0; ended == 0; waited += 10) {
        if (waited > TIMEOUT_MS) kill(process->pid, SIGKILL);
        ended = waitpid(process->pid, &status, waited > TIMEOUT_MS ? 0 : WNOHANG);
        if (ended == 0) sleep_ms(10);
    }
    process->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Prints the log of a process, for the reader of a failed test. */
static inline void process_show(const struct process *process) {
    char *log_text = file_read(process->err);
    print_error("the log of process %s:\n", process->folder);
    fputs(log_text, stderr); /* cmocka prints at most 1 KiB at once */
    free(log_text);
}

/* Waits for a process, which must exit with this code; otherwise the test fails and shows its
 * log. */
static inline void process_end(struct process *process, int expected) {
    int code = process_wait(process);
    if (code == expected) return;
    print_error("exited with %d, not with %d\n", code, expected);
    process_show(process);
    fail();
}

/* Runs doorman_server until it exits. Returns its exit code. */
static inline int process_run(struct process *process, const char *const *arguments,
                              const char *const *environment) {
    process_start(process, arguments, environment);
    return process_wait(process);
}

/* Returns how often a text occurs on a process's standard error. */
static inline int process_logged(const struct process *process, const char *text) {
    char *log_text = file_read(process->err);
    int count = 0;
    for (const char *at = log_text; (at = strstr(at, text)) != NULL; at++) count++;
    free(log_text);
    return count;
}

/* Returns whether a process has ended. The caller can still call process_wait for the exit code. */
static inline bool process_has_ended(const struct process *process) {
    siginfo_t info = {.si_pid = 0};
    if (process->pid == 0) return true;
    return waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
}

/* Waits until a text has occurred `times` times on a process's standard error. A process that has
 * ended without it fails the test at once. */
static inline void process_await(const struct process *process, const char *text, int times) {
    bool found = false, ended = false;
    for (int waited = 0; !found && !ended && waited < TIMEOUT_MS; waited += 10) {
        ended = process_has_ended(process); /* first, because its last line may have the text */
        found = process_logged(process, text) >= times;
        if (!found && !ended) sleep_ms(10);
    }
    if (!found) {
        print_error("waited for '%s'%s\n", text, ended ? ", but the process has ended" : "");
        process_show(process);
        fail();
    }
}

/* Replaces the configuration file of a running server in one step, so that the server never reads
 * half of it. The server checks the file once a second, so a server that gets a SIGHUP after this
 * call may load the file twice. */
static inline void config_replace(const struct process *process, const char *config) {
    char next[96];
    snprintf(next, sizeof next, "%s/next", process->folder);
    file_write(next, config);
    assert_int_equal(rename(next, process->config), 0);
}

static inline int folder_remove_one(const char *path, const struct stat *status, int kind,
                                    struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

/* Removes the process that was made last. Precondition: it has ended. */
static inline void process_remove_last(void) {
    struct process *process = &processes[--process_count];
    assert_int_equal(process->pid, 0);
    nftw(process->folder, folder_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Teardown for each test: ends the processes that still run, and removes the folders. */
static inline int harness_clean(void **state) {
    (void)state;
    for (; process_count > 0; process_count--) {
        struct process *process = &processes[process_count - 1];
        if (process->pid > 0) {
            kill(process->pid, SIGKILL);
            waitpid(process->pid, NULL, 0);
        }
        nftw(process->folder, folder_remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    return 0;
}

#undef TEST_TEARDOWN
#define TEST_TEARDOWN harness_clean

/* ---- servers -------------------------------------------------------------------------------- */

struct server {
    struct process *process;
    char url[NNG_MAXADDRLEN]; /* of its first listener */
};

/* Starts a server on a free port, and waits until it serves.
 *   config   the text of its configuration
 *   more     further arguments, up to a NULL; or NULL */
static inline struct server server_start(const char *config, const char *const *more) {
    struct server server = {process_new(), ""};
    const char *arguments[ARGUMENT_MAX] = {"--config", server.process->config, "--listen",
                                           "tcp://127.0.0.1:0"};
    for (size_t i = 0; more && more[i]; i++) arguments[i + 4] = more[i];
    file_write(server.process->config, config);
    process_start(server.process, arguments, NULL);
    process_await(server.process, " listen=", 1);
    char *log_text = file_read(server.process->err);
    assert_int_equal(sscanf(strstr(log_text, " listen="), " listen=%127[^ ,\n]", server.url), 1);
    free(log_text);
    return server;
}

/* Ends a server as an operator would. With a sanitizer, the exit code also reports leaks. */
static inline void server_stop(struct server *server) {
    process_signal(server->process, SIGTERM);
    process_end(server->process, 0);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Sends any bytes as one request over nng. See send_within. */
static inline char *send_over_nng(const char *url, const char *text, size_t bytes, int ms) {
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    char *reply = NULL, *copy = NULL;
    size_t reply_bytes = 0;
    assert_int_equal(nng_req0_open(&socket), 0);
    nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, ms);
    nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, ms);
    nng_socket_set_ms(socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, 0);
    int error = nng_dial(socket, url, NULL, 0);
    if (error == 0) error = nng_send(socket, (void *)(uintptr_t)text, bytes, 0);
    if (error == 0) error = nng_recv(socket, &reply, &reply_bytes, NNG_FLAG_ALLOC);
    if (error == 0) {
        copy = strndup(reply, reply_bytes);
        nng_free(reply, reply_bytes);
    } else {
        print_message("%s: %s\n", url, nng_strerror(error));
    }
    nng_close(socket);
    return copy;
}

/* Connects to an address such as tcp://127.0.0.1:15000. Returns -1 after an error. */
static inline int connect_within(const char *url, int ms) {
    const char *port = strrchr(url, ':');
    struct timeval most = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(port + 1))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static inline bool receive_all(int fd, void *buffer, size_t bytes) {
    return bytes == 0 || recv(fd, buffer, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static inline bool send_all(int fd, const void *buffer, size_t bytes) {
    return send(fd, buffer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Receives nng's greeting and one response. Returns the text of the response, which the caller
 * frees, or NULL. */
static inline char *receive_response(int fd) {
    unsigned char head[8 + 8 + 4]; /* the greeting, the length, the number */
    uint64_t bytes = 0;
    if (!receive_all(fd, head, sizeof head)) return NULL;
    for (int i = 8; i < 16; i++) bytes = bytes << 8 | head[i];
    assert_in_range(bytes, 4, 1 << 30);
    char *text = (char *)calloc(1, (size_t)bytes - 4 + 1);
    assert_non_null(text);
    if (receive_all(fd, text, (size_t)bytes - 4)) return text;
    free(text);
    return NULL;
}

/* Sends any bytes as one request on a new connection. Returns the reply, which the caller frees, or
 * NULL after an error, or if a step takes longer than `ms`. For TCP it speaks REQ on a plain
 * socket, because nng 1.5.2 can block a process that closes many connections. */
static inline char *send_within(const char *url, const char *text, size_t bytes, int ms) {
    static const unsigned char greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    if (strncmp(url, "tcp://127.0.0.1:", 16) != 0) return send_over_nng(url, text, bytes, ms);
    unsigned char head[12] = {[8] = 0x80, [11] = 1};
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)(bytes + 4) >> (56 - 8 * i));
    int fd = connect_within(url, ms);
    char *reply = NULL;
    if (fd >= 0 && send_all(fd, greeting, sizeof greeting) && send_all(fd, head, sizeof head) &&
        send_all(fd, text, bytes)) {
        reply = receive_response(fd);
    }
    if (!reply) print_message("%s: no response: %s\n", url, strerror(errno));
    if (fd >= 0) close(fd);
    return reply;
}

static inline char *send_bytes(const char *url, const char *text, size_t bytes) {
    return send_within(url, text, bytes, TIMEOUT_MS);
}

/* Sends a request that must be answered. Returns the parsed response, which the caller deletes. */
static inline cJSON *send_request(const struct server *server, const char *text) {
    char *reply = send_bytes(server->url, text, strlen(text));
    assert_non_null(reply);
    cJSON *tree = cJSON_Parse(reply);
    assert_non_null(tree);
    free(reply);
    return tree;
}

/* Returns the item at a path such as "get_capacity.response[0].gets", or NULL. */
static inline const cJSON *find(const cJSON *tree, const char *path) {
    char key[64];
    int index = 0, used = 0;
    while (tree && *path) {
        if (sscanf(path, "[%d]%n", &index, &used) == 1) {
            tree = cJSON_GetArrayItem(tree, index);
        } else {
            assert_int_equal(sscanf(path, "%63[^.[]%n", key, &used), 1);
            tree = cJSON_GetObjectItemCaseSensitive(tree, key);
        }
        path += used;
        path += *path == '.';
    }
    return tree;
}

static inline double number(const cJSON *tree, const char *path) {
    const cJSON *item = find(tree, path);
    if (!cJSON_IsNumber(item)) fail_msg("no number at %s", path);
    return item->valuedouble;
}

static inline const char *text(const cJSON *tree, const char *path) {
    const cJSON *item = find(tree, path);
    if (!cJSON_IsString(item)) fail_msg("no text at %s", path);
    return item->valuestring;
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* Returns a socket that listens on a free port of loopback. */
static inline int port_listen(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* Reserves a port among the test programs on this machine, until this program ends. The reservation
 * is a socket whose name contains the port: only one program can bind this name, and the name ends
 * with the program. Returns false if the port is already reserved. */
static inline bool port_reserve(int port) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "doorman-test-port-%d", port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) == 0) return true;
    close(fd);
    return false;
}

/* Returns a free port, for a program that cannot choose one itself. It is below the range from
 * which the system takes ports for port 0 and for outgoing connections. Tests run at the same time,
 * so each process begins its search at a port that depends on its id, and reserves the port it
 * takes. */
static inline int port_free(void) {
    enum { FIRST = 10000, COUNT = 22000, EACH = 31 };
    static int used;
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int tries = 0; tries < COUNT; tries++) {
        int port = FIRST + (int)((getpid() * (int64_t)EACH + used++) % COUNT);
        if (!port_reserve(port)) continue;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        address.sin_port = htons((uint16_t)port);
        bool free = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (free) return port;
    }
    fail_msg("no port is free");
    return 0;
}

/* Returns a socket that accepts connections and never sends anything. */
static inline int silent_listen(char url[NNG_MAXADDRLEN]) {
    int port = 0;
    int fd = port_listen(&port);
    snprintf(url, NNG_MAXADDRLEN, "tcp://127.0.0.1:%d", port);
    return fd;
}

/* ---- raw connections ------------------------------------------------------------------------ */

/* Opens a TCP connection on which nothing has been sent yet. */
static inline int raw_connect(const struct server *server) {
    const struct timeval timeout = {TIMEOUT_MS / 1000, 0};
    unsigned port = 0;
    assert_int_equal(sscanf(server->url, "tcp://127.0.0.1:%u", &port), 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Sends bytes. Returns false unless all were sent, for example if the peer has closed the
 * connection or reads nothing for too long. */
static inline bool raw_send(int fd, const void *bytes, size_t count) {
    size_t sent = 0;
    ssize_t part = 1;
    while (sent < count && part > 0) {
        part = send(fd, (const char *)bytes + sent, count - sent, MSG_NOSIGNAL);
        if (part > 0) sent += (size_t)part;
    }
    return sent == count;
}

/* Connects and exchanges nng's greeting: this side is a REQ, and the peer must be a REP. */
static inline int raw_greet(const struct server *server) {
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const unsigned char welcome[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    unsigned char response[8];
    int fd = raw_connect(server);
    assert_true(raw_send(fd, hello, sizeof hello));
    assert_int_equal(recv(fd, response, sizeof response, MSG_WAITALL), sizeof response);
    assert_memory_equal(response, welcome, sizeof welcome);
    return fd;
}

/* Returns a server's resident memory, in KiB. */
static inline long server_memory(const struct server *server) {
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)server->process->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "VmRSS: %ld", &kib);
    fclose(file);
    return kib;
}

/* Sends the head of a message with `bytes` bytes: its length and its request number. */
static inline bool raw_send_head(int fd, size_t bytes) {
    unsigned char head[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 1};
    uint64_t all = (uint64_t)bytes + 4;
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)(all >> (56 - 8 * i));
    return raw_send(fd, head, sizeof head);
}

/* Waits until the peer closes the connection, and discards what it sends. Returns whether the peer
 * closed it. */
static inline bool raw_hung_up(int fd) {
    char bytes[65536];
    ssize_t got = 1;
    while (got > 0) got = recv(fd, bytes, sizeof bytes, 0);
    return got == 0 || errno == ECONNRESET;
}

#endif
