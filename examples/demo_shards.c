/* make demo SHARDS=1: three nodes share the 64 shards of a thousand keys, for twenty-four seconds.
 * The shards are spread, one node is drained, and another one is killed.
 *
 *     build/examples/demo_shards build/doorman_server
 *
 * An agent asks for 1.5 permits a second for each key, and each key may have one a second. It knows
 * the map of shards, so it asks the node that decides. A second client knows nothing of
 * shards: it asks the nodes in turn over HTTP, and they forward what is not theirs.
 *
 * Each row of the table is a node, with its shards, the permits that it decided and the messages
 * that it forwarded in the last second, and how many shards it has taken or given. The demo checks
 * all the time that all nodes together grant no key more than its limit. It needs etcd and
 * redis-server.
 */
#define DEMO_HAS_PERMITS
#include "demo.h"

enum { NODES = 3, SHARDS = 64, KEYS = 1000, SECONDS = 24, TABLE_LINES = 12, BAR_COLUMNS = 32 };
enum { RATE = 1, SIZE = 5 }; /* of each key: units a second, and at once */
enum { ASKED_A_TICK = KEYS * 3 / 2 / TICKS_A_SECOND }; /* by the agent */
enum { OLD_CLIENT_PAUSE_MS = 25, REPLY_BYTES = 1 << 18, TOOL_ARGUMENTS = 16 };

#define MAP "doorman/shards"
#define TOKEN "demo-operator"

static const char config[] = "{\"shards\": 64, \"resources\": [\n"
                             "  {\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"each\", "
                             "\"kind\": \"TOKEN_BUCKET\",\n"
                             "   \"rate\": 1, \"size\": 5}]}]}\n";

/* A program that the demo needs beside its servers. */
typedef struct tool {
    const char *program;
    int port;
    pid_t process;
} tool;

/* What a node says of itself. */
typedef struct figures {
    bool answers;
    double shards, decided, forwarded, moves; /* the last three since it has started */
} figures;

typedef struct node {
    server server;
    int http;
    char name[8], key[32], http_address[32];
    figures now, before;
} node;

enum act { WATCH, SPREAD, DRAIN, KILL, START };

static const struct event {
    int second;
    enum act act;
    const char *phase;
} story[] = {
    {0, WATCH, "a decides for all keys; b and c have just joined"},
    {3, SPREAD, "rebalance: each node takes a third of the shards, with what their keys have used"},
    {8, DRAIN, "drain b: its shards go to a and c, while everybody goes on"},
    {13, KILL, "kill -9 c: nobody decides for its keys; a goes on"},
    {15, START, "c starts again, and goes on with what its keys have used"},
};

typedef struct demo {
    tool etcd, redis;
    node nodes[NODES];
    char folder[256], config[280], tokens[280], log[280], etcd_url[64], redis_url[64];
    doorman_agent *agent;
    doorman_time since;
    int next_key;
    atomic_bool stops;
    pthread_t old_client;
    bool old_client_runs, exceeded;
    pthread_mutex_t mutex; /* guards the next members */
    double granted[KEYS], by_old_client;
    screen screen;
    const char *phase, *phase_shown;
} demo;

/* ---- HTTP ------------------------------------------------------------------------------------ */

/* Sends a request, and returns the status of the response, or 0. Cuts off what has no room in
 * `out`.
 *   target   such as "GET /metrics"
 *   out      written: the response with its header fields */
static int http_ask(int port, const char *target, const char *body, char *out, size_t size) {
    char request[512];
    const struct timeval patience = {.tv_sec = 2};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int bytes = snprintf(request, sizeof request,
                               "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Authorization: Bearer " TOKEN "\r\n"
                               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                               target, strlen(body), body);
    size_t have = 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address) &&
        send(fd, request, (size_t)bytes, MSG_NOSIGNAL) == bytes) {
        ssize_t got = 1;
        while (got > 0 && have + 1 < size) {
            got = recv(fd, out + have, size - 1 - have, 0);
            if (got > 0) have += (size_t)got;
        }
    }
    close(fd);
    out[have] = 0;
    return strncmp(out, "HTTP/1.1 ", 9) == 0 ? (int)strtol(out + 9, NULL, 10) : 0;
}

/* Returns the sum of a metric over its labels. */
static double metric_sum(const char *text, const char *name) {
    double sum = 0;
    const size_t bytes = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + bytes, name)) {
        const char *end = at + bytes;
        if (at[-1] != '\n' || (*end != ' ' && *end != '{')) continue;
        const char *line = at + strcspn(at, "\n");
        while (line > at && line[-1] != ' ') line--;
        sum += strtod(line, NULL);
    }
    return sum;
}

static void node_look(node *n) {
    static char text[REPLY_BYTES]; /* only the first thread looks */
    n->before = n->now;
    n->now = (figures){.answers = false};
    if (n->server.process <= 0 || http_ask(n->http, "GET /metrics", "", text, sizeof text) != 200) {
        return;
    }
    n->now = (figures){.answers = true,
                       .shards = metric_sum(text, "doorman_shards_owned"),
                       .decided = metric_sum(text, "doorman_permits_granted_total") +
                                  metric_sum(text, "doorman_permits_refused_total"),
                       .forwarded = metric_sum(text, "doorman_forwards_total"),
                       .moves = metric_sum(text, "doorman_shard_moves_total")};
}

/* Returns by how much a counter has grown. It begins at 0 when its process starts again. */
static double growth(double now, double before) { return now < before ? now : now - before; }

/* Asks node a, as `doormanctl shards` does. */
static bool operator_change(const demo *d, const char *change) {
    char text[1024];
    const int code = http_ask(d->nodes[0].http, "POST /v1/shards", change, text, sizeof text);
    if (code < 200 || code > 299) fprintf(stderr, "demo: %s: %s\n", change, text);
    return code >= 200 && code <= 299;
}

/* ---- etcd, Redis and the nodes --------------------------------------------------------------- */

static void tool_become(const demo *d, const char *const *arguments) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the demo is killed */
#endif
    const int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) _exit(127);
    setpgid(0, 0); /* Ctrl-C reaches only the demo */
    const union {
        const char *const *given;
        char *const *taken;
    } words = {.given = arguments}; /* execvp changes none of them */
    execvp(arguments[0], words.taken);
    _exit(127);
}

/* Starts a program, and waits up to 20 s until it listens. */
static bool tool_start(demo *d, tool *t, const char *const *arguments) {
    const doorman_time patience = doorman_clock() + 20 * DOORMAN_SECOND;
    t->program = arguments[0];
    t->process = fork();
    if (t->process == 0) tool_become(d, arguments);
    while (t->process > 0 && !interrupted && doorman_clock() < patience) {
        if (answers(t->port)) return true;
        if (waitpid(t->process, NULL, WNOHANG) != 0) t->process = 0;
        sleep_until(doorman_clock() + DOORMAN_SECOND / 50);
    }
    if (!interrupted) {
        fprintf(stderr, "demo: %s does not start. Is it installed? `make deps` does it.\n",
                t->program);
    }
    return false;
}

static void tool_stop(tool *t) {
    if (t->process <= 0) return;
    kill(t->process, SIGKILL); /* nothing of its data is needed any more */
    waitpid(t->process, NULL, 0);
}

static bool file_write(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool written = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0) written = false;
    if (!written) fprintf(stderr, "demo: %s: %s\n", path, strerror(errno));
    return written;
}

static bool start_tools(demo *d) {
    char port[16], peer[64], cluster[96], data[280];
    d->etcd.port = free_port();
    d->redis.port = free_port();
    snprintf(d->etcd_url, sizeof d->etcd_url, "http://127.0.0.1:%d", d->etcd.port);
    snprintf(d->redis_url, sizeof d->redis_url, "redis://127.0.0.1:%d", d->redis.port);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", free_port());
    snprintf(cluster, sizeof cluster, "default=%s", peer);
    snprintf(data, sizeof data, "%s/etcd", d->folder);
    snprintf(port, sizeof port, "%d", d->redis.port);
    const char *const etcd[TOOL_ARGUMENTS] = {"etcd",      "--data-dir",
                                              data,        "--listen-client-urls",
                                              d->etcd_url, "--advertise-client-urls",
                                              d->etcd_url, "--listen-peer-urls",
                                              peer,        "--initial-advertise-peer-urls",
                                              peer,        "--initial-cluster",
                                              cluster};
    const char *const redis[TOOL_ARGUMENTS] = {
        "redis-server", "--port", port, "--bind",       "127.0.0.1", "--dir",
        d->folder,      "--save", "",   "--appendonly", "yes"};
    return tool_start(d, &d->etcd, etcd) && tool_start(d, &d->redis, redis);
}

static bool start_node(demo *d, int index) {
    node *n = &d->nodes[index];
    const char letter = (char)('a' + index);
    snprintf(n->name, sizeof n->name, "%c", letter);
    snprintf(n->key, sizeof n->key, "doorman/%c", letter);
    n->http = free_port();
    snprintf(n->http_address, sizeof n->http_address, "127.0.0.1:%d", n->http);
    snprintf(n->server.log, sizeof n->server.log, "%s/%c.log", d->folder, letter);
    const char *const arguments[] = {
        "--config",       d->config, "--node", n->name,         "--election-key", n->key,
        "--election-ttl", "4",       "--etcd", d->etcd_url,     "--state",        d->redis_url,
        "--shards",       MAP,       "--http", n->http_address, "--http-token",   d->tokens};
    memcpy(n->server.arguments, arguments, sizeof arguments);
    return server_start(&n->server);
}

/* Waits up to 20 s until a node is master and decides for at least `shards` shards. */
static bool await_node(demo *d, int index, double shards) {
    const doorman_time patience = doorman_clock() + 20 * DOORMAN_SECOND;
    node *n = &d->nodes[index];
    while (!interrupted && server_runs(&n->server) && doorman_clock() < patience) {
        char text[REPLY_BYTES / 16];
        const int code = http_ask(n->http, "GET /v1/shards", "", text, sizeof text);
        node_look(n);
        if (code == 200 && strstr(text, "\"is_master\":true") && n->now.shards >= shards) {
            return true;
        }
        sleep_until(doorman_clock() + DOORMAN_SECOND / 20);
    }
    if (!interrupted) server_show_log(&n->server);
    return false;
}

/* Starts the nodes. The first node makes the map, so it owns all shards. */
static bool start_nodes(demo *d, const char *program) {
    snprintf(d->config, sizeof d->config, "%s/config.json", d->folder);
    snprintf(d->tokens, sizeof d->tokens, "%s/tokens", d->folder);
    if (!file_write(d->config, config) || !file_write(d->tokens, "admin demo " TOKEN "\n")) {
        return false;
    }
    for (int i = 0; i < NODES; i++) {
        d->nodes[i].server.program = program;
        if (!start_node(d, i) || !await_node(d, i, i ? 0 : SHARDS)) return false;
    }
    return true;
}

static bool start_agent(demo *d) {
    const char *const addresses[NODES] = {d->nodes[0].server.address, d->nodes[1].server.address,
                                          d->nodes[2].server.address};
    const doorman_client_options options = {.addresses = addresses, .address_count = NODES};
    doorman_error error = {0};
    d->since = doorman_clock();
    if (doorman_agent_start(&d->agent, &options, &error) == DOORMAN_OK) return true;
    fprintf(stderr, "demo: the agent cannot start: %s\n", error.text);
    return false;
}

static void folder_remove(const char *folder) {
    if (!folder[0]) return;
    const pid_t process = fork();
    if (process == 0) {
        execlp("rm", "rm", "-rf", "--", folder, (char *)NULL);
        _exit(127);
    }
    if (process > 0) waitpid(process, NULL, 0);
}

static void stop_all(demo *d) {
    doorman_agent_stop(d->agent);
    for (int i = 0; i < NODES; i++) server_stop(&d->nodes[i].server, SIGTERM);
    tool_stop(&d->redis);
    tool_stop(&d->etcd);
    folder_remove(d->folder);
}

/* ---- the clients ----------------------------------------------------------------------------- */

/* A key of the demo, in the callback of the agent. */
typedef struct asked {
    demo *demo;
    int key;
} asked;

static asked all_asked[KEYS];

static void key_name(int key, char room[16]) { snprintf(room, 16, "user-%d", key); }

static void on_decided(void *context, doorman_status status, const doorman_acquired *decision) {
    const asked *a = context;
    if (status != DOORMAN_OK || decision->decided_by != DOORMAN_BY_SERVER) return;
    pthread_mutex_lock(&a->demo->mutex);
    if (decision->granted) a->demo->granted[a->key] += decision->units[0];
    pthread_mutex_unlock(&a->demo->mutex);
}

static void agent_ask(demo *d) {
    for (int i = 0; i < ASKED_A_TICK; i++) {
        char name[16];
        asked *a = &all_asked[d->next_key];
        *a = (asked){d, d->next_key};
        d->next_key = (d->next_key + 1) % KEYS;
        key_name(a->key, name);
        const doorman_permit_item item = {.resource_id = "api", .key = name, .cost = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        (void)doorman_agent_acquire_async(d->agent, &request, DOORMAN_SECOND, on_decided, a, NULL);
    }
}

/* Asks the nodes in turn, for one key after another. */
static void *old_client_main(void *context) {
    demo *d = context;
    for (int i = 0; !atomic_load(&d->stops); i++) {
        char target[64], text[2048];
        const int key = i * 7 % KEYS;
        snprintf(target, sizeof target, "GET /v1/allow?resource=api&key=user-%d", key);
        const int code = http_ask(d->nodes[i % NODES].http, target, "", text, sizeof text);
        pthread_mutex_lock(&d->mutex);
        d->granted[key] += code == 200;
        d->by_old_client += code == 200;
        pthread_mutex_unlock(&d->mutex);
        sleep_until(doorman_clock() + OLD_CLIENT_PAUSE_MS * (DOORMAN_SECOND / 1000));
    }
    return NULL;
}

/* Returns the most that a key has got. */
static double most_granted(demo *d) {
    double most = 0;
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < KEYS; i++) most = d->granted[i] > most ? d->granted[i] : most;
    pthread_mutex_unlock(&d->mutex);
    return most;
}

/* Returns how many units a key may have got by now. */
static double allowed(const demo *d) {
    return SIZE + RATE * (double)(doorman_clock() - d->since) / (double)DOORMAN_SECOND;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static const char *node_state(const node *n) {
    if (n->server.process <= 0) return "killed";
    return n->now.answers ? "" : "starts";
}

static void show_node(const demo *d, const node *n) {
    const int columns = (int)(n->now.shards * BAR_COLUMNS / SHARDS);
    printf("  %-5s%6.0f ", n->name, n->now.shards);
    screen_bar(&d->screen, 2, '#', columns);
    printf("%-*s", BAR_COLUMNS - columns + 1, columns ? "" : node_state(n));
    printf("%9.0f%11.0f%8.0f\x1b[K\n", growth(n->now.decided, n->before.decided),
           growth(n->now.forwarded, n->before.forwarded), n->now.moves);
}

static void show_table(demo *d, int second) {
    const double most = most_granted(d);
    if (second > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  three nodes decide for %d keys%44d s\x1b[K\n\x1b[K\n", KEYS, second);
    printf("  %-5s%6s %-*s%9s%11s%8s\x1b[K\n", "node", "shards", BAR_COLUMNS + 1, "", "permits/s",
           "forwarded", "moved");
    for (int i = 0; i < NODES; i++) show_node(d, &d->nodes[i]);
    printf("\x1b[K\n  the key with most has got %.0f units, and %.0f are its own\x1b[K\n", most,
           allowed(d));
    printf("\x1b[K\n  > %s\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

static void show_line(demo *d, int second) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    printf("%3d s", second);
    for (int i = 0; i < NODES; i++) {
        const node *n = &d->nodes[i];
        printf("   %s: %2.0f shards %5.0f/s %2.0f fwd", n->name, n->now.shards,
               growth(n->now.decided, n->before.decided),
               growth(n->now.forwarded, n->before.forwarded));
    }
    printf("\n");
    fflush(stdout);
}

static void show_start(demo *d) {
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("three nodes share %d shards: permits a second of %d keys, and messages forwarded\n",
           SHARDS, KEYS);
}

/* Prints the last lines. Returns the exit code. */
static int show_result(demo *d, bool ended) {
    double moves = 0, owned = 0, units = 0;
    if (interrupted || !ended) {
        printf(interrupted ? "Stopped.\n" : "The demo ended early.\n");
        return interrupted ? 130 : 1;
    }
    for (int i = 0; i < NODES; i++) {
        moves += d->nodes[i].now.moves;
        owned += d->nodes[i].now.shards;
    }
    for (int i = 0; i < KEYS; i++) units += d->granted[i];
    printf("%.0f units were granted, %.0f of them to the client that knows no shards. The nodes "
           "that run\nhave moved shards %.0f times, and decide for %.0f of %d. %s\n",
           units, d->by_old_client, moves, owned, SHARDS,
           d->exceeded ? "A KEY GOT MORE THAN ITS OWN." : "No key got more than its own.");
    return d->exceeded || units == 0 || d->by_old_client == 0 || moves == 0;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Returns false if the demo cannot continue. */
static bool play(demo *d, const struct event *event) {
    d->phase = event->phase;
    switch (event->act) {
    case SPREAD: return operator_change(d, "{\"rebalance\": true}");
    case DRAIN: return operator_change(d, "{\"drain\": \"b\"}");
    case KILL: server_stop(&d->nodes[2].server, SIGKILL); break;
    case START: server_launch(&d->nodes[2].server); break;
    case WATCH: break;
    }
    return true;
}

/* Looks at the nodes once a second. Returns false if one has ended that should run. */
static bool look(demo *d, int second) {
    for (int i = 0; i < NODES; i++) {
        server *s = &d->nodes[i].server;
        const bool runs = s->process <= 0 || server_runs(s);
        if (!runs) server_show_log(s);
        if (!runs) return false;
        node_look(&d->nodes[i]);
    }
    if (d->screen.terminal) show_table(d, second);
    if (!d->screen.terminal) show_line(d, second);
    return true;
}

/* Returns whether the demo has run to its end. */
static bool run(demo *d) {
    const size_t count = sizeof story / sizeof *story;
    size_t next = 0;
    bool runs = true;
    d->old_client_runs = !pthread_create(&d->old_client, NULL, old_client_main, d);
    for (int tick = 0; tick <= SECONDS * TICKS_A_SECOND && runs && !interrupted; tick++) {
        sleep_until(d->since + tick * TICK);
        while (runs && next < count && story[next].second * TICKS_A_SECOND <= tick) {
            runs = play(d, &story[next++]);
        }
        agent_ask(d);
        if (runs && tick % TICKS_A_SECOND == 0) runs = look(d, tick / TICKS_A_SECOND);
        const double most = most_granted(d); /* before `allowed` reads the clock */
        if (most > allowed(d)) d->exceeded = true;
    }
    atomic_store(&d->stops, true);
    if (d->old_client_runs) pthread_join(d->old_client, NULL);
    doorman_agent_stop(d->agent); /* no decision comes any more */
    d->agent = NULL;
    if (most_granted(d) > allowed(d)) d->exceeded = true;
    return runs && d->old_client_runs;
}

int main(int argc, char **argv) {
    static demo d = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    if (argc != 2) {
        fprintf(stderr, "usage: demo_shards SERVER\n");
        return 2;
    }
    catch_signals();
    int status = 1;
    printf("starting etcd, Redis and three nodes ...\n");
    fflush(stdout);
    if (folder_make(d.folder)) {
        snprintf(d.log, sizeof d.log, "%s/tools.log", d.folder);
        if (start_tools(&d) && start_nodes(&d, argv[1]) && start_agent(&d)) {
            show_start(&d);
            bool ended = run(&d);
            screen_close(&d.screen);
            status = show_result(&d, ended);
        } else if (interrupted) {
            status = 130;
        }
    }
    stop_all(&d);
    return status;
}
