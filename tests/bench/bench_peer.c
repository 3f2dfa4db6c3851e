/* The peers that answer, each a child process: the server, with a configuration of its own, and an
 * echo. The echo has the same sockets and contexts, and sends the request back at the place in the
 * code where the server decides. So the difference between the two is Doorman's own cost; the rest
 * is nng's. */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#define PEER_MAX 4
static peer peers[PEER_MAX]; /* static, because a signal handler ends them */

/* The holders of each FAIR_SHARE resource want about a fourth more than its capacity, so that the
 * shares have to be solved. There is no minimum interval and no learning. */
#define SETTINGS                                                                                   \
    "\"algorithm\": {\"kind\": \"%s\", \"learning_mode_duration\": 0, "                            \
    "\"parameters\": [{\"name\": \"minimum_interval\", \"value\": 0}]}"
static const struct {
    const char *glob, *kind;
    double capacity;
} templates[] = {
    {"fair/10", "FAIR_SHARE", 40 * 10},
    {"fair/64", "FAIR_SHARE", 40 * 64},
    {"fair/10000", "FAIR_SHARE", 40 * 10000},
    {"many/*", "FAIR_SHARE", 40 * 16},
    {"pace/*", "NO_ALGORITHM", 0},
};

static bool write_config(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fputs("{\"resources\": [", file);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        fprintf(file, "%s{\"identifier_glob\": \"%s\", \"capacity\": %g, " SETTINGS "}",
                i ? ", " : "", templates[i].glob, templates[i].capacity, templates[i].kind);
    }
    /* Each key has a bucket that never refuses. */
    fputs(", {\"identifier_glob\": \"permits/*\", \"limits\": [{\"name\": \"per-key\", "
          "\"kind\": \"TOKEN_BUCKET\", \"rate\": 1e6, \"size\": 1e9}]}",
          file);
    fputs("]}\n", file);
    return fclose(file) == 0;
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static peer *peer_new(void) {
    peer *p = peers;
    while (p < peers + PEER_MAX && p->folder[0]) p++;
    must(p < peers + PEER_MAX, "too many peers");
    const char *parent = getenv("TMPDIR");
    char folder[sizeof p->folder];
    int bytes =
        snprintf(folder, sizeof folder, "%s/doorman-bench-XXXXXX", parent ? parent : "/tmp");
    must(bytes < (int)sizeof folder && mkdtemp(folder), "cannot make a temporary folder");
    memcpy(p->folder, folder, sizeof folder);
    snprintf(p->config, sizeof p->config, "%s/config.json", folder);
    snprintf(p->log, sizeof p->log, "%s/log", folder);
    return p;
}

/* Runs in the child. Its output goes to its log, and it ends when its parent ends. It leaves the
 * terminal's process group, so that Ctrl-C reaches only the parent. Its memory is in small pages,
 * as usual. */
static void peer_exec(const peer *p, const char *const *arguments) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    unsetenv("GLIBC_TUNABLES");
    int log = open(p->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (log >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0) {
        execv(arguments[0], (char *const *)(uintptr_t)arguments);
        dprintf(STDERR_FILENO, "%s: %s\n", arguments[0], strerror(errno));
    }
    _exit(127);
}

/* Returns the port that follows "listen=" in a log; 0 if there is none yet. */
static uint16_t read_port(const char *path) {
    char text[4096] = "";
    unsigned port = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *listen = strstr(text, " listen=");
    if (!listen || sscanf(listen, " listen=tcp://127.0.0.1:%u", &port) != 1) return 0;
    return (uint16_t)port;
}

static void show_log(const peer *p) {
    char line[512];
    FILE *file = fopen(p->log, "r");
    fprintf(stderr, "\nbench: a peer does not start. Its log:\n");
    while (file && fgets(line, sizeof line, file)) fprintf(stderr, "    %s", line);
    if (file) fclose(file);
}

static void peer_start(peer *p, const char *const *arguments) {
    p->pid = fork();
    if (p->pid == 0) peer_exec(p, arguments);
    must(p->pid > 0, "cannot start a process");
    doorman_time end = doorman_clock() + TIMEOUT;
    bool runs = true;
    while (runs && doorman_clock() < end && (p->port = read_port(p->log)) == 0) {
        sleep_ms(10);
        runs = waitpid(p->pid, NULL, WNOHANG) == 0;
    }
    if (!runs) p->pid = 0;
    if (p->port == 0) show_log(p);
    must(p->port != 0, "a peer did not start");
}

peer *peer_server(const bench *b) {
    peer *p = peer_new();
    must(write_config(p->config), "cannot write a configuration");
    const char *const arguments[] = {b->server,           "--config", p->config, "--listen",
                                     "tcp://127.0.0.1:0", "--node",   "root",    NULL};
    peer_start(p, arguments);
    return p;
}

peer *peer_echo(void) {
    peer *p = peer_new();
    const char *const arguments[] = {"/proc/self/exe", "echo", NULL};
    peer_start(p, arguments);
    return p;
}

/* Ends a process and removes its folder. Safe in a signal handler. */
static void peer_end(peer *p) {
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        p->pid = 0;
    }
    if (p->folder[0]) {
        unlink(p->config);
        unlink(p->log);
        rmdir(p->folder);
        p->folder[0] = 0;
    }
}

/* Kills the peer, because with nng 1.5.2 it may not end by itself after thousands of connections.
 * With nng 1.10.1 and 1.12.4 an echo server ended by itself after 10,000 connections. */
void peer_stop(peer *p) { peer_end(p); }

void peers_kill(void) {
    for (peer *p = peers; p < peers + PEER_MAX; p++) peer_end(p);
}

double peer_memory(const peer *p) {
    char path[64];
    double pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)p->pid);
    FILE *file = fopen(path, "r");
    must(file && fscanf(file, "%*s %lf", &pages) == 1, "cannot read the memory of a process");
    fclose(file);
    return pages * (double)sysconf(_SC_PAGESIZE);
}

double peer_seconds(const peer *p) {
    clockid_t clock;
    struct timespec time;
    must(clock_getcpuclockid(p->pid, &clock) == 0 && clock_gettime(clock, &time) == 0,
         "cannot read the time of a process");
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- the echo -------------------------------------------------------------------------------- */

#define WORKER_COUNT 32 /* as in the server */

typedef struct worker {
    nng_ctx context;
    nng_aio *aio;
    bool sending;
} worker;

static void worker_step(void *argument) {
    worker *l = argument;
    int result = nng_aio_result(l->aio);
    if (result == NNG_ECLOSED) return;
    nng_msg *message = result == 0 && !l->sending ? nng_aio_get_msg(l->aio) : NULL;
    if (result != 0 && l->sending) nng_msg_free(nng_aio_get_msg(l->aio));
    nng_aio_set_msg(l->aio, message);
    l->sending = message != NULL;
    if (l->sending) {
        nng_ctx_send(l->context, l->aio);
    } else {
        nng_ctx_recv(l->context, l->aio);
    }
}

int echo_main(void) {
    static worker workers[WORKER_COUNT];
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    char *url = NULL;
    bool started = nng_rep0_open(&socket) == 0 &&
                   nng_listen(socket, "tcp://127.0.0.1:0", &listener, 0) == 0 &&
                   nng_listener_get_string(listener, NNG_OPT_URL, &url) == 0;
    for (size_t i = 0; started && i < WORKER_COUNT; i++) {
        started = nng_aio_alloc(&workers[i].aio, worker_step, &workers[i]) == 0 &&
                  nng_ctx_open(&workers[i].context, socket) == 0;
        if (started) nng_ctx_recv(workers[i].context, workers[i].aio);
    }
    if (!started) return 1;
    printf("echo listen=%s\n", url);
    fflush(stdout);
    while (true) pause(); /* until SIGTERM, or until the parent ends */
}
