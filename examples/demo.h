/* The code that both demos share: servers as child processes, a group of clients, and measurements.
 *
 * Each client has its own agent, connection and thread. The thread tries to do as many queries a
 * second as the client wants, and waits for the limiter before each query. "does" counts the
 * queries that passed the limiter. The demos check all the time whether the sum of the leases, or
 * of the queries, exceeds the capacity.
 */
#ifndef DOORMAN_EXAMPLES_DEMO_H
#define DOORMAN_EXAMPLES_DEMO_H

#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

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

#define RESOURCE "db/orders"
#define TICK (DOORMAN_SECOND / TICKS_A_SECOND)
#define BURST (DOORMAN_SECOND / 10)

enum { TICKS_A_SECOND = 4, SAMPLES = TICKS_A_SECOND + 1, CLIENTS_MAX = 16, ARGUMENTS_MAX = 16 };

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

static double larger(double a, double b) { return a > b ? a : b; }

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
    int port; /* 0: not chosen yet */
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
    snprintf(s->address, sizeof s->address, "tcp://127.0.0.1:%d", s->port);
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

/* ---- the clients ----------------------------------------------------------------------------- */

typedef struct client {
    const char *name;
    int color;            /* ANSI, 1 to 6 */
    const server *server; /* the server that the client asks */
    atomic_int wants;     /* queries a second; 0: the client has left */
    atomic_ulong done;
    doorman_agent *agent;
    doorman_resource *resource;
    pthread_t thread;
    double has, does;
} client;

/* Tries to do a query every 1 / wants seconds. After a delay the thread skips queries that are late
 * by more than half a burst. */
static void *client_main(void *argument) {
    client *c = argument;
    doorman_time next = doorman_clock();
    for (int wants; (wants = atomic_load(&c->wants)) > 0;) {
        sleep_until(next);
        if (doorman_resource_wait(c->resource, 1, TICK) == DOORMAN_OK) {
            atomic_fetch_add(&c->done, 1);
        }
        doorman_time backlog = doorman_clock() - BURST / 2;
        next += DOORMAN_SECOND / wants;
        if (next < backlog) next = backlog;
    }
    return NULL;
}

/* The fallback is pessimistic. A client without a lease does nothing, so leases cover all use. */
static bool client_join(client *c, int wants) {
    const char *addresses[] = {c->server->address};
    doorman_client_options options = {
        .addresses = addresses, .address_count = 1, .request_timeout = DOORMAN_SECOND};
    doorman_resource_options resource = {
        .resource_id = RESOURCE, .wants = wants, .burst = BURST, .fallback = DOORMAN_PESSIMISTIC};
    doorman_error error = {""};
    atomic_store(&c->wants, wants);
    if (doorman_agent_start(&c->agent, &options, &error) == DOORMAN_OK &&
        doorman_resource_open(&c->resource, c->agent, &resource, &error) == DOORMAN_OK &&
        pthread_create(&c->thread, NULL, client_main, c) == 0) {
        return true;
    }
    fprintf(stderr, "demo: %s cannot start: %s\n", c->name, error.text);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
    return false;
}

/* Ends the thread first, because an agent that has stopped must not be used. */
static void client_leave(client *c) {
    atomic_store(&c->wants, 0);
    if (!c->agent) return;
    pthread_join(c->thread, NULL);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
}

/* Changes what a client wants. A client that has not joined joins. A client that wants 0 leaves. */
static bool client_set_wants(client *c, int wants) {
    if (wants == 0) {
        client_leave(c);
        return true;
    }
    if (!c->agent) return client_join(c, wants);
    atomic_store(&c->wants, wants);
    return doorman_resource_set_wants(c->resource, wants) == DOORMAN_OK;
}

/* ---- what is measured ------------------------------------------------------------------------ */

typedef struct sample {
    doorman_time at;
    unsigned long done[CLIENTS_MAX], total;
} sample;

typedef struct client_fleet {
    double capacity;
    int count, settle_seconds; /* use counts after wants reach the capacity for this time */
    client clients[CLIENTS_MAX];
    sample samples[SAMPLES]; /* the last second; a tick uses samples[tick % SAMPLES] */
    int full_ticks;          /* the clients have wanted at least the capacity for this many ticks */
    double used, usable;
    double peak_leased, peak_use; /* as parts of what is allowed; above 1 is a failure */
} client_fleet;

static void fleet_read_leases(const client_fleet *all, double leases[CLIENTS_MAX]) {
    for (int i = 0; i < all->count; i++) {
        const client *c = &all->clients[i];
        doorman_resource_info info = {0};
        if (c->agent) doorman_resource_read(c->resource, &info);
        leases[i] = info.leased ? info.capacity : 0;
    }
}

/* Leases can change while they are read one after the other. If two readings are equal, all leases
 * were in force at the same moment, between the two readings. */
static bool fleet_read_leases_of_one_moment(const client_fleet *all, double leases[CLIENTS_MAX]) {
    for (int tries = 0; tries < 100; tries++) {
        double again[CLIENTS_MAX] = {0};
        memset(leases, 0, sizeof again);
        fleet_read_leases(all, leases);
        fleet_read_leases(all, again);
        if (!memcmp(leases, again, sizeof again)) return true;
    }
    return false;
}

static double fleet_wants(const client_fleet *all) {
    double sum = 0;
    for (int i = 0; i < all->count; i++) sum += atomic_load(&all->clients[i].wants);
    return sum;
}

static void fleet_sample_leases(client_fleet *all) {
    double leases[CLIENTS_MAX], sum = 0;
    bool together = fleet_read_leases_of_one_moment(all, leases);
    for (int i = 0; i < all->count; i++) {
        all->clients[i].has = leases[i];
        sum += leases[i];
    }
    if (together) all->peak_leased = larger(all->peak_leased, sum / all->capacity);
}

/* Checks rule L1 for the time since the oldest sample, about a second. The queries must not exceed
 * the capacity for that time plus one burst. A thread counts a query just after the query has
 * passed the limiter. So the check allows one more query of each client. */
static void fleet_sample_queries(client_fleet *all, int tick) {
    sample *newest = &all->samples[tick % SAMPLES];
    const sample *last = &all->samples[(tick + SAMPLES - 1) % SAMPLES];
    const sample *oldest = &all->samples[(tick + 1) % SAMPLES];
    newest->at = doorman_clock();
    newest->total = 0;
    for (int i = 0; i < all->count; i++) {
        newest->done[i] = atomic_load(&all->clients[i].done);
        newest->total += newest->done[i];
    }
    double seconds = (double)(newest->at - oldest->at) / (double)DOORMAN_SECOND;
    for (int i = 0; i < all->count; i++) {
        all->clients[i].does = (double)(newest->done[i] - oldest->done[i]) / seconds;
    }
    double burst = (double)BURST / (double)DOORMAN_SECOND;
    double allowed = all->capacity * (seconds + burst) + all->count;
    all->peak_use = larger(all->peak_use, (double)(newest->total - oldest->total) / allowed);

    all->full_ticks = fleet_wants(all) >= all->capacity ? all->full_ticks + 1 : 0;
    if (all->full_ticks <= all->settle_seconds * TICKS_A_SECOND) return;
    all->used += (double)(newest->total - last->total);
    all->usable += all->capacity * (double)(newest->at - last->at) / (double)DOORMAN_SECOND;
}

static void fleet_start(client_fleet *all, doorman_time now) {
    for (int i = 0; i < SAMPLES; i++) all->samples[i].at = now - DOORMAN_SECOND;
}

static void fleet_leave(client_fleet *all) {
    for (int i = 0; i < all->count; i++) client_leave(&all->clients[i]);
}

/* ---- what is shown --------------------------------------------------------------------------- */

typedef struct screen {
    bool terminal, colors;
} screen;

static screen screen_open(int lines) {
    struct winsize size = {0};
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) && kind && strcmp(kind, "dumb") != 0 &&
                    !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row > lines;
    if (terminal) printf("\x1b[?25l\x1b[?7l"); /* hides the cursor, and cuts long lines */
    return (screen){terminal, terminal && !(no_color && *no_color)};
}

static void screen_close(const screen *s) {
    if (s->terminal) printf("\x1b[?25h\x1b[?7h");
}

/* Prints a bar of one color. The function sets only the background, so it works in any character
 * set. */
static void screen_bar(const screen *s, int color, int columns) {
    if (s->colors) printf("\x1b[4%dm%*s\x1b[0m", color, columns, "");
    for (int i = 0; !s->colors && i < columns; i++) putchar('#');
}

/* Prints the last line. Returns the exit code. */
static int fleet_show_result(const client_fleet *all) {
    if (interrupted) {
        printf("Stopped.\n");
        return 130;
    }
    if (all->usable <= 0) {
        printf("The demo ended early.\n");
        return 1;
    }
    /* The tolerance is for rounding errors in sums of doubles. */
    bool kept = all->peak_leased <= 1 + 1e-9 && all->peak_use <= 1;
    printf("%.1f %% of the capacity was in use while more was wanted than there is",
           100 * all->used / all->usable);
    if (kept) {
        printf(", and it was never exceeded.\n");
    } else {
        printf(". IT WAS EXCEEDED: up to %.4f %% in leases, %.2f %% of the queries allowed.\n",
               100 * all->peak_leased, 100 * all->peak_use);
    }
    return kept ? 0 : 1;
}

#endif
