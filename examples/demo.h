/* The code that all demos share: servers as child processes, and what is shown. */
#ifndef DOORMAN_EXAMPLES_DEMO_H
#define DOORMAN_EXAMPLES_DEMO_H

#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#ifdef DEMO_HAS_PERMITS /* of the program */
#include "doorman_permits.h"
#else
#include "doorman.h"
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TICK (DOORMAN_SECOND / TICKS_A_SECOND)

enum { TICKS_A_SECOND = 4, SAMPLES = TICKS_A_SECOND + 1, ARGUMENTS_MAX = 20 };

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static void sleep_until(doorman_time time) {
    doorman_time left = time - doorman_clock();
    if (left <= 0) return;
    struct timespec duration = {.tv_sec = (time_t)(left / DOORMAN_SECOND),
                                .tv_nsec = (long)(left % DOORMAN_SECOND)};
    nanosleep(&duration, NULL);
}

/* ---- a folder for the files of a demo -------------------------------------------------------- */

static bool folder_make(char folder[256]) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, 256, "%s/doorman_demo_XXXXXX", parent ? parent : "/tmp");
    if (mkdtemp(folder)) return true;
    fprintf(stderr, "demo: %s: %s\n", folder, strerror(errno));
    folder[0] = 0;
    return false;
}

/* ---- a server, a child process --------------------------------------------------------------- */

typedef struct server {
    const char *program, *arguments[ARGUMENTS_MAX]; /* end with NULL; do not include the address */
    char log[300], address[64];
    char folder[256], config[280]; /* of server_create */
    char state[280];               /* of server_create: its file of counters */
    bool has_state;                /* it has such a file */
    bool http;                     /* the address has no scheme */
    int port;                      /* 0: not chosen yet */
    pid_t process;
} server;

/* Returns a port that is not in use. The system chooses the port, and this function closes it
 * again. Returns 0 if there is no such port. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0) return 0;
    if (!bind(listener, (struct sockaddr *)&address, bytes) &&
        !getsockname(listener, (struct sockaddr *)&address, &bytes)) {
        port = ntohs(address.sin_port);
    }
    close(listener);
    return port;
}

/* Returns whether a process listens on the port. */
static bool answers(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    if (probe < 0) return false;
    bool connected = !connect(probe, (struct sockaddr *)&address, sizeof address);
    close(probe);
    return connected;
}

/* Runs in the child process. The server gets a process group of its own, so that Ctrl-C reaches
 * only the demo. The demo then releases the leases of the clients before it ends the server. */
static void server_become(const server *s) {
    const char *arguments[ARGUMENTS_MAX + 3] = {s->program, "--listen", s->address};
    for (int i = 0; s->arguments[i]; i++) arguments[i + 3] = s->arguments[i];
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* the server ends if the demo is killed */
#endif
    int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) _exit(127);
    setpgid(0, 0);
    setenv("DOORMAN_HTTP", "off", 1); /* several servers cannot share the default port */
    execv(s->program, (char *const *)(uintptr_t)arguments);
    fprintf(stderr, "%s: %s\n", s->program, strerror(errno));
    _exit(127);
}

static bool server_runs(server *s) {
    if (s->process > 0 && waitpid(s->process, NULL, WNOHANG) == 0) return true;
    s->process = 0;
    return false;
}

static void server_show_log(const server *s) {
    FILE *log = fopen(s->log, "r");
    if (!log) return;
    char line[512];
    fprintf(stderr, "demo: the server ended; its log:\n");
    while (fgets(line, sizeof line, log)) fprintf(stderr, "    %s", line);
    fclose(log);
}

static void server_launch(server *s) {
    if (!s->port) s->port = free_port();
    snprintf(s->address, sizeof s->address, "%s127.0.0.1:%d", s->http ? "" : "tcp://", s->port);
    s->process = fork();
    if (s->process == 0) server_become(s);
}

/* Starts a server, and waits up to 10 s until it listens. A server that ran before gets the same
 * address again. */
static bool server_start(server *s) {
    server_launch(s);
    doorman_time patience = doorman_clock() + 10 * DOORMAN_SECOND;
    while (server_runs(s) && !interrupted && doorman_clock() < patience) {
        if (answers(s->port)) return true;
        sleep_until(doorman_clock() + DOORMAN_SECOND / 50);
    }
    if (!interrupted) server_show_log(s);
    return false;
}

static void server_stop(server *s, int signal_number) {
    if (s->process > 0) {
        kill(s->process, signal_number);
        waitpid(s->process, NULL, 0);
    }
    s->process = 0;
}

/* Starts a server with a folder of its own, for its configuration and its log. In any case the
 * caller calls server_destroy later.
 *   config   the text of the configuration */
static inline bool server_create(server *s, const char *program, const char *config) {
    if (!folder_make(s->folder)) return false;
    snprintf(s->config, sizeof s->config, "%s/config.json", s->folder);
    snprintf(s->log, sizeof s->log, "%s/server.log", s->folder);
    FILE *file = fopen(s->config, "w");
    bool written = file && fputs(config, file) >= 0;
    if (file && fclose(file) != 0) written = false;
    if (!written) fprintf(stderr, "demo: %s: %s\n", s->config, strerror(errno));
    s->program = program;
    s->arguments[0] = "--config";
    s->arguments[1] = s->config;
    if (s->has_state) {
        snprintf(s->state, sizeof s->state, "%s/counters.db", s->folder);
        s->arguments[2] = "--state";
        s->arguments[3] = s->state;
    }
    return written && server_start(s);
}

static inline void server_destroy(server *s) {
    server_stop(s, SIGTERM);
    if (!s->folder[0]) return;
    unlink(s->log);
    unlink(s->config);
    if (s->has_state) unlink(s->state);
    rmdir(s->folder);
}

/* ---- what is shown --------------------------------------------------------------------------- */

typedef struct screen {
    bool terminal, colors;
} screen;

static inline screen screen_open(int lines) {
    struct winsize size = {0};
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) && kind && strcmp(kind, "dumb") != 0 &&
                    !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row > lines;
    if (terminal) printf("\x1b[?25l\x1b[?7l"); /* hides the cursor, and cuts long lines */
    return (screen){terminal, terminal && !(no_color && *no_color)};
}

static inline void screen_close(const screen *s) {
    if (s->terminal) printf("\x1b[?25h\x1b[?7h");
}

/* Prints a bar of one color, or of marks. The function sets only the background, so it works in any
 * character set. */
static inline void screen_bar(const screen *s, int color, char mark, int columns) {
    if (s->colors) printf("\x1b[4%dm%*s\x1b[0m", color, columns, "");
    for (int i = 0; !s->colors && i < columns; i++) putchar(mark);
}

#endif
