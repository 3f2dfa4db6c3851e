/* The peers that answer, each a child process: the server, with a configuration of its own, an
 * echo, and other programs. The echo has the same sockets and contexts as the server, and sends the
 * request back where the server decides. So the difference between the two is Doorman's own cost;
 * the rest is nng's. */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#define PEER_MAX 12
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

/* Two limits of permits. The counters of the first one last over a restart. The counters of the
 * second one are fresh after a nanosecond. */
#define LASTING                                                                                    \
    "{\"identifier_glob\": \"quota\", \"limits\": [{\"name\": \"per-key\", "                       \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, \"window\": \"month\", "                          \
    "\"max_keys\": 2000000}]}, "                                                                   \
    "{\"identifier_glob\": \"passing\", \"limits\": [{\"name\": \"per-key\", "                     \
    "\"kind\": \"TOKEN_BUCKET\", \"rate\": 1e9, \"size\": 1e9}]}"

/* Writes a configuration of counters, and of leases and holds that last over a planned restart.
 * After any other start, leases and holds are learned for five seconds. */
static bool write_state_config(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fputs("{\"resources\": [" LASTING ", "
          "{\"identifier_glob\": \"kept/lease\", \"capacity\": 1000, \"algorithm\": "
          "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 5, \"refresh_interval\": 1}}, "
          "{\"identifier_glob\": \"kept/hold\", \"limits\": [{\"name\": \"slots\", \"kind\": "
          "\"CONCURRENCY\", \"limit\": 1000, \"time_to_live\": 5}]}]}\n",
          file);
    return fclose(file) == 0;
}

static bool write_config(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fputs("{\"resources\": [", file);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        fprintf(file, "%s{\"identifier_glob\": \"%s\", \"capacity\": %g, " SETTINGS "}",
                i ? ", " : "", templates[i].glob, templates[i].capacity, templates[i].kind);
    }
    /* Each key has a bucket that never refuses. Under load it is not full again before the next
     * permit, so its counter stays, as counters of nginx and Redis do. */
    fputs(", {\"identifier_glob\": \"permits/*\", \"limits\": [{\"name\": \"per-key\", "
          "\"kind\": \"TOKEN_BUCKET\", \"rate\": 1e3, \"size\": 1e9}]}",
          file);
    fputs(", " LASTING, file);
    fputs(", {\"identifier_glob\": \"pool/pairs\", \"limits\": [{\"name\": \"slots\", "
          "\"kind\": \"CONCURRENCY\", \"limit\": 16, \"time_to_live\": 60, "
          "\"on_restart\": \"full\"}]}",
          file);
    for (int killed = 0; killed < 2; killed++) {
        fprintf(file,
                ", {\"identifier_glob\": \"pool/%s\", \"limits\": [{\"name\": \"slots\", "
                "\"kind\": \"CONCURRENCY\", \"limit\": %d, \"time_to_live\": 60, "
                "\"queue\": 100, \"max_wait\": 60, \"on_restart\": \"full\"}]}",
                killed ? "killed" : "queue", killed ? 1 : 4);
    }
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
    snprintf(p->pid_file, sizeof p->pid_file, "%s/pid", folder);
    snprintf(p->state, sizeof p->state, "%s/state", folder);
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

bool peer_read_log(const peer *p, const char *text_before, double *number) {
    char text[16384] = ""; /* the start of the log, with warnings about the configuration */
    FILE *file = fopen(p->log, "r");
    if (!file) return false;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *found = strstr(text, text_before);
    return found && sscanf(found + strlen(text_before), "%lf", number) == 1;
}

/* Returns the port that follows a text in the log; 0 if there is none yet. */
static uint16_t read_port(const peer *p, const char *text_before) {
    double port = 0;
    return peer_read_log(p, text_before, &port) ? (uint16_t)port : 0;
}

static void show_log(const peer *p) {
    char line[512];
    FILE *file = fopen(p->log, "r");
    fprintf(stderr, "\nbench: a peer does not start. Its log:\n");
    while (file && fgets(line, sizeof line, file)) fprintf(stderr, "    %s", line);
    if (file) fclose(file);
}

static void peer_fork(peer *p, const char *const *arguments) {
    p->pid = fork();
    if (p->pid == 0) peer_exec(p, arguments);
    must(p->pid > 0, "cannot start a process");
}

#define LISTENS_NNG " listen=tcp://127.0.0.1:"
#define LISTENS_HTTP " http=http://127.0.0.1:"

/* Starts a peer, and waits until its port is in its log, after a text. */
static void peer_start(peer *p, const char *const *arguments, const char *text_before) {
    peer_fork(p, arguments);
    doorman_time end = doorman_clock() + TIMEOUT;
    bool runs = true;
    while (runs && doorman_clock() < end && (p->port = read_port(p, text_before)) == 0) {
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
    peer_start(p, arguments, LISTENS_NNG);
    return p;
}

peer *peer_event_server(const bench *b, const char *sample) {
    peer *p = peer_new();
    must(write_config(p->config), "cannot write a configuration");
    const char *const arguments[] = {b->server,           "--config",       p->config, "--listen",
                                     "tcp://127.0.0.1:0", "--node",         "root",    "--events",
                                     "tcp://127.0.0.1:0", "--event-sample", sample,    NULL};
    peer_start(p, arguments, LISTENS_NNG);
    return p;
}

/* Starts the process of a peer_state_server. Its log says when the store was read, on a line with
 * the level info. */
static void state_server_start(const bench *b, peer *p, const char *address) {
    char redis[48], etcd[40];
    const char *const arguments[] = {b->server,
                                     "--config",
                                     p->config,
                                     "--listen",
                                     address,
                                     "--node",
                                     "root",
                                     "--state",
                                     p->redis ? redis : p->state,
                                     p->etcd ? "--etcd" : NULL,
                                     etcd,
                                     "--election-key",
                                     "bench/state",
                                     "--election-ttl",
                                     "20",
                                     NULL};
    if (p->redis) snprintf(redis, sizeof redis, "redis://127.0.0.1:%u", (unsigned)p->redis->port);
    if (p->etcd) snprintf(etcd, sizeof etcd, "http://127.0.0.1:%u", (unsigned)p->etcd->port);
    peer_start(p, arguments, LISTENS_NNG);
}

peer *peer_state_server(const bench *b, const peer *redis, const peer *etcd) {
    peer *p = peer_new();
    p->redis = redis, p->etcd = etcd;
    must(write_state_config(p->config), "cannot write a configuration");
    state_server_start(b, p, "tcp://127.0.0.1:0");
    return p;
}

void peer_restart(const bench *b, peer *p) {
    char address[40];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", (unsigned)p->port);
    kill(p->pid, SIGTERM);
    must(waitpid(p->pid, NULL, 0) == p->pid, "a server does not end");
    p->pid = 0;
    unlink(p->log);
    state_server_start(b, p, address);
}

peer *peer_http_server(const bench *b) {
    peer *p = peer_new();
    must(write_config(p->config), "cannot write a configuration");
    const char *const arguments[] = {
        b->server, "--config",    p->config, "--listen", "tcp://127.0.0.1:0",
        "--http",  "127.0.0.1:0", "--node",  "root",     NULL};
    peer_start(p, arguments, LISTENS_HTTP);
    return p;
}

#define LISTENS_GRPC " grpc=127.0.0.1:"

peer *peer_grpc_server(const bench *b) {
    peer *p = peer_new();
    must(write_config(p->config), "cannot write a configuration");
    const char *const arguments[] = {
        b->server, "--config",    p->config, "--listen", "tcp://127.0.0.1:0",
        "--grpc",  "127.0.0.1:0", "--node",  "root",     NULL};
    peer_start(p, arguments, LISTENS_GRPC);
    return p;
}

peer *peer_http2(void) {
    peer *p = peer_new();
    const char *const arguments[] = {"/proc/self/exe", "http2", NULL};
    peer_start(p, arguments, LISTENS_GRPC);
    return p;
}

peer *peer_throttled(const bench *b, bool off) {
    peer *p = peer_new();
    char program[256];
    const char *end = strrchr(b->server, '/');
    int bytes = snprintf(program, sizeof program, "%.*sexamples/throttled_server",
                         end ? (int)(end + 1 - b->server) : 0, b->server);
    must(bytes < (int)sizeof program, "the path of the server is too long");
    const char *const arguments[] = {program, "--listen", "127.0.0.1:0", off ? "--off" : NULL,
                                     NULL};
    peer_start(p, arguments, "listens on 127.0.0.1:0, port ");
    return p;
}

/* Opens a socket on a port of the loopback, or on any free port if it is 0. Returns the port, or 0
 * if that is not possible.
 *   connects   connects to a listener in place of reserving the port */
static uint16_t try_port(uint16_t port, bool connects) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0, "cannot open a socket");
    struct sockaddr *at = (struct sockaddr *)&address;
    int result = connects ? connect(fd, at, bytes) : bind(fd, at, bytes);
    if (result == 0 && !connects) result = getsockname(fd, at, &bytes);
    close(fd);
    return result == 0 ? ntohs(address.sin_port) : 0;
}

static bool try_connect(const peer *p) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(p->port)};
    must(inet_pton(AF_INET, p->address, &address.sin_addr) == 1, "an address is invalid");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0, "cannot open a socket");
    bool accepted = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return accepted;
}

/* Configures nginx as one process, whose limit_req refuses nothing. The answer is a GIF of 43
 * bytes: with `return` nginx would answer before it asks limit_req. All its folders for temporary
 * files are the peer's folder. By default nginx would close each connection after 1,000
 * requests. */
static bool write_nginx_config(const peer *p) {
    static const char *const uses[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"};
    FILE *file = fopen(p->config, "w");
    if (!file) return false;
    fprintf(file, "daemon off; master_process off; pid %s; error_log stderr; events {}\n",
            p->pid_file);
    fprintf(file, "http { access_log off; keepalive_requests 1000000000;\n");
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        fprintf(file, "%s_temp_path %s;\n", uses[i], p->folder);
    }
    fputs("limit_req_zone $arg_key zone=keys:10m rate=1000000r/s;\n", file);
    fprintf(file,
            "server { listen 127.0.0.1:%u; location / { "
            "limit_req zone=keys burst=100000 nodelay; empty_gif; } } }\n",
            (unsigned)p->port);
    return fclose(file) == 0;
}

/* Starts a program that cannot choose a port itself. If another program takes the port that was
 * free, the program ends, and is started again.
 *   port    NULL, or room for the port as a text, which is among the arguments */
static void peer_start_on_port(peer *p, const char *const *arguments, char port[8]) {
    doorman_time end = doorman_clock() + TIMEOUT;
    bool listens = false;
    for (int tries = 0; tries < 5 && !listens; tries++) {
        p->port = try_port(0, false);
        if (port) snprintf(port, 8, "%u", (unsigned)p->port);
        must(port || write_nginx_config(p), "cannot write a configuration");
        peer_fork(p, arguments);
        bool runs = true;
        while (runs && !listens && doorman_clock() < end) {
            sleep_ms(10);
            runs = waitpid(p->pid, NULL, WNOHANG) == 0;
            listens = runs && try_port(p->port, true) != 0;
        }
        if (!runs) p->pid = 0;
    }
    if (!listens) show_log(p);
    must(listens, "a peer did not start");
}

peer *peer_nginx(const char *program) {
    peer *p = peer_new();
    const char *const arguments[] = {program, "-c", p->config, "-p", p->folder, NULL};
    peer_start_on_port(p, arguments, NULL);
    return p;
}

peer *peer_redis(const char *program) {
    peer *p = peer_new();
    char port[8];
    const char *const arguments[] = {program,  "--port", port,    "--bind",  "127.0.0.1",
                                     "--save", "",       "--dir", p->folder, NULL};
    peer_start_on_port(p, arguments, port);
    return p;
}

bool peers_find(bench *b, const char *name, peer **etcd, peer **redis) {
    char etcd_program[256], redis_program[256];
    bench_step(b, "%s", name);
    bool has_etcd = bench_find_program(etcd_program, "etcd");
    bool has_redis = bench_find_program(redis_program, "redis-server");
    if (!has_etcd || !has_redis) bench_skip(b, name, has_etcd ? "redis-server" : "etcd");
    if (!has_etcd || !has_redis) return false;
    *etcd = peer_etcd(etcd_program);
    *redis = peer_redis(redis_program);
    return true;
}

peer *peer_etcd(const char *program) {
    peer *p = peer_new();
    char port[8], url[40], peers_url[40], cluster[64];
    snprintf(peers_url, sizeof peers_url, "http://127.0.0.1:%u", (unsigned)try_port(0, false));
    snprintf(cluster, sizeof cluster, "default=%s", peers_url);
    p->port = try_port(0, false);
    snprintf(port, sizeof port, "%u", (unsigned)p->port);
    snprintf(url, sizeof url, "http://127.0.0.1:%s", port);
    const char *const arguments[] = {program,   "--data-dir",
                                     p->state,  "--listen-client-urls",
                                     url,       "--advertise-client-urls",
                                     url,       "--listen-peer-urls",
                                     peers_url, "--initial-advertise-peer-urls",
                                     peers_url, "--initial-cluster",
                                     cluster,   NULL};
    doorman_time end = doorman_clock() + TIMEOUT;
    bool listens = false;
    p->has_folders = true;
    peer_fork(p, arguments);
    while (!listens && doorman_clock() < end && waitpid(p->pid, NULL, WNOHANG) == 0) {
        sleep_ms(10);
        listens = try_port(p->port, true) != 0;
    }
    if (!listens) show_log(p);
    must(listens, "etcd did not start");
    return p;
}

/* Writes a configuration of two limits with a counter for each key. Only the counters of `quota`
 * are durable. */
static bool write_shard_config(const peer *p) {
    FILE *file = fopen(p->config, "w");
    if (!file) return false;
    fputs("{\"shards\": 64, \"resources\": [{\"identifier_glob\": \"quota\", \"limits\": "
          "[{\"name\": \"per-key\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1e9, "
          "\"window\": \"month\", \"max_keys\": 2000000}]}, {\"identifier_glob\": \"passing\", "
          "\"limits\": [{\"name\": \"per-key\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1e9, "
          "\"size\": 1e9}]}]}\n",
          file);
    bool written = fclose(file) == 0;
    file = written ? fopen(p->state, "w") : NULL; /* the tokens; the counters are in the Redis */
    if (!file) return false;
    fputs("admin bench " PEER_TOKEN "\n", file);
    return fclose(file) == 0;
}

peer *peer_shard_node(const bench *b, const shard_place *place) {
    peer *p = peer_new();
    char etcd[40], redis[48], election[40], map[40], name[16];
    snprintf(etcd, sizeof etcd, "http://127.0.0.1:%u", (unsigned)place->etcd->port);
    snprintf(redis, sizeof redis, "redis://127.0.0.1:%u/%u", (unsigned)place->redis->port,
             place->cluster);
    snprintf(name, sizeof name, "n%u-%u", place->cluster, place->node);
    snprintf(election, sizeof election, "bench/%s", name);
    snprintf(map, sizeof map, "bench/shards-%u", place->cluster);
    must(write_shard_config(p), "cannot write a configuration");
    const char *const arguments[] = {b->server,
                                     "--config",
                                     p->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--http",
                                     "127.0.0.1:0",
                                     "--http-token",
                                     p->state,
                                     "--node",
                                     name,
                                     "--etcd",
                                     etcd,
                                     "--election-key",
                                     election,
                                     "--election-ttl",
                                     "20",
                                     "--state",
                                     redis,
                                     "--shards",
                                     map,
                                     NULL};
    peer_start(p, arguments, LISTENS_HTTP);
    return p;
}

#define POOLCOUNTER_PORT 7531 /* it cannot be changed */

/* PoolCounter has a fixed port, so it listens on an address of the loopback that other programs do
 * not use. */
peer *peer_poolcounter(const char *program) {
    peer *p = peer_new();
    unsigned pid = (unsigned)getpid();
    snprintf(p->address, sizeof p->address, "127.%u.%u.%u", 64 + (pid >> 16 & 63), pid >> 8 & 255,
             1 + pid % 254);
    p->port = POOLCOUNTER_PORT;
    const char *const arguments[] = {program, "-l", p->address, NULL};
    doorman_time end = doorman_clock() + TIMEOUT;
    peer_fork(p, arguments);
    bool runs = true, listens = false;
    while (runs && !listens && doorman_clock() < end) {
        sleep_ms(10);
        runs = waitpid(p->pid, NULL, WNOHANG) == 0;
        listens = runs && try_connect(p);
    }
    if (!runs) p->pid = 0;
    if (!listens) show_log(p);
    must(listens, "PoolCounter did not start");
    return p;
}

peer *peer_echo(void) {
    peer *p = peer_new();
    const char *const arguments[] = {"/proc/self/exe", "echo", NULL};
    peer_start(p, arguments, LISTENS_NNG);
    return p;
}

/* Removes folders too. Safe in a signal handler. */
static void remove_all(const char *path) {
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-rf", "--", path, (char *)NULL);
        _exit(127);
    }
    if (pid > 0) waitpid(pid, NULL, 0);
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
        unlink(p->pid_file);
        unlink(p->state);
        for (size_t i = 0; i < 2; i++) {
            char path[sizeof p->state + 4];
            snprintf(path, sizeof path, "%s%s", p->state, i ? "-wal" : "-shm");
            unlink(path);
        }
        if (p->has_folders) remove_all(p->state);
        rmdir(p->folder);
        p->folder[0] = 0;
        p->has_folders = false;
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
