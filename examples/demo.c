/* make demo: a server, five clients of one database, and twenty seconds in which they come, go and
 * change their minds.
 *
 *     build/examples/demo build/doorman_server config.example.json
 *
 * Each client is an agent of its own, with its own connection, and a thread that does as many
 * queries a second as it wants to, waiting for the limiter before each. Nothing is acted: "does" is
 * what came through. On a terminal this is a table, elsewhere a line a second. All along the demo
 * looks for a moment at which more was out than there is; the last line says what it found.
 */
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

enum { CHECKOUT, SEARCH, REPORTS, MOBILE, CRAWLER, CLIENTS };
enum { TICKS_A_SECOND = 4, SAMPLES = TICKS_A_SECOND + 1, SECONDS = 21 };
enum { BAR_COLUMNS = 44, TABLE_LINES = 13 };

typedef struct client {
    const char *name;
    int color;        /* ANSI, 1 to 6 */
    atomic_int wants; /* queries a second; 0: not here */
    atomic_ulong done;
    doorman_agent *agent;
    doorman_resource *resource;
    pthread_t thread;
    double has, does;
} client;

typedef struct sample {
    doorman_time at;
    unsigned long done[CLIENTS], total;
} sample;

typedef struct demo {
    char folder[256], log[280], address[64];
    pid_t server;
    double capacity;
    client clients[CLIENTS];
    sample samples[SAMPLES]; /* of the last second; that of a tick is samples[tick % SAMPLES] */
    const char *phase, *phase_shown;
    int full_ticks; /* for how long the clients have wanted at least the capacity */
    double used, usable;
    double most_leased, most_done; /* parts of what is allowed: over 1 is too much */
    bool terminal, colors;
} demo;

/* Wants of 0: leaves. */
static const struct event {
    int second, client, wants;
    const char *phase;
} story[] = {
    {0, CHECKOUT, 350, NULL},
    {0, SEARCH, 300, NULL},
    {0, REPORTS, 150, "three clients want 800 of 1000: after a second of learning, they get it"},
    {5, CRAWLER, 5000, "crawler joins and wants 5000: it gets a fair share, not more"},
    {9, MOBILE, 150, "mobile comes late: the larger ones make room"},
    {13, SEARCH, 0, "search leaves: its share goes to the others"},
    {17, CHECKOUT, 100, "checkout calms down to 100: crawler may have the rest"},
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static double larger(double a, double b) { return a > b ? a : b; }

static void sleep_until(doorman_time time) {
    doorman_time left = time - doorman_clock();
    if (left <= 0) return;
    struct timespec duration = {.tv_sec = (time_t)(left / DOORMAN_SECOND),
                                .tv_nsec = (long)(left % DOORMAN_SECOND)};
    nanosleep(&duration, NULL);
}

/* ---- the server, a child process ------------------------------------------------------------- */

static bool read_capacity(demo *d, const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "demo: %s: %s\n", path, strerror(errno));
        return false;
    }
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    doorman_config *config = NULL;
    doorman_error error = {""};
    if (doorman_json_config(&config, text, bytes, &error) != DOORMAN_OK) {
        fprintf(stderr, "demo: %s: %s\n", path, error.text);
        return false;
    }
    const doorman_template *settings = doorman_config_find(config, RESOURCE);
    d->capacity = settings ? settings->capacity : 0;
    doorman_config_destroy(config);
    if (d->capacity <= 0) fprintf(stderr, "demo: %s gives " RESOURCE " no capacity\n", path);
    return d->capacity > 0;
}

/* A port that nobody listens on: the system chooses one, and it is let go again. */
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

static bool answers(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    if (probe < 0) return false;
    bool connected = !connect(probe, (struct sockaddr *)&address, sizeof address);
    close(probe);
    return connected;
}

/* In the child. A process group of its own, so that Ctrl-C reaches the demo alone, which lets the
 * clients give their leases back before it ends the server. */
static void become_server(const demo *d, const char *program, const char *config) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it does not outlive a demo that is killed */
#endif
    int log = open(d->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) _exit(127);
    setpgid(0, 0);
    execl(program, program, "--config", config, "--listen", d->address, (char *)NULL);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

static bool server_runs(demo *d) {
    if (d->server > 0 && waitpid(d->server, NULL, WNOHANG) == 0) return true;
    d->server = 0;
    return false;
}

static void show_log(const demo *d) {
    FILE *log = fopen(d->log, "r");
    if (!log) return;
    char line[512];
    fprintf(stderr, "demo: the server ended; its log says\n");
    while (fgets(line, sizeof line, log)) fprintf(stderr, "    %s", line);
    fclose(log);
}

static bool start_server(demo *d, const char *program, const char *config) {
    const char *parent = getenv("TMPDIR");
    snprintf(d->folder, sizeof d->folder, "%s/doorman_demo_XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(d->folder)) {
        fprintf(stderr, "demo: %s: %s\n", d->folder, strerror(errno));
        d->folder[0] = 0;
        return false;
    }
    snprintf(d->log, sizeof d->log, "%s/server.log", d->folder);
    int port = free_port();
    snprintf(d->address, sizeof d->address, "tcp://127.0.0.1:%d", port);
    d->server = fork();
    if (d->server == 0) become_server(d, program, config);
    doorman_time patience = doorman_clock() + 10 * DOORMAN_SECOND;
    while (server_runs(d) && !interrupted && doorman_clock() < patience) {
        if (answers(port)) return true;
        sleep_until(doorman_clock() + DOORMAN_SECOND / 50);
    }
    if (!interrupted) show_log(d);
    return false;
}

static void stop_server(demo *d) {
    if (d->server > 0) {
        kill(d->server, SIGTERM);
        waitpid(d->server, NULL, 0);
    }
    if (d->folder[0]) {
        unlink(d->log);
        rmdir(d->folder);
    }
}

/* ---- the clients ------------------------------------------------------------------------------
 */

/* Queries come as often as the client wants. Those that were held up do not pile up. */
static void *query(void *argument) {
    client *c = argument;
    doorman_time next = doorman_clock();
    for (int wants; (wants = atomic_load(&c->wants)) > 0;) {
        sleep_until(next);
        if (doorman_agent_rate_wait(c->agent, c->resource, 1, TICK) == DOORMAN_OK) {
            atomic_fetch_add(&c->done, 1);
        }
        doorman_time backlog = doorman_clock() - BURST / 2;
        next += DOORMAN_SECOND / wants;
        if (next < backlog) next = backlog;
    }
    return NULL;
}

static bool join(demo *d, client *c, int wants) {
    const char *addresses[] = {d->address};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_resource_options resource = {
        .resource_id = RESOURCE, .wants = wants, .burst = BURST, .mode = DOORMAN_PESSIMISTIC};
    doorman_error error = {""};
    atomic_store(&c->wants, wants);
    if (doorman_agent_start(&c->agent, &options, &error) == DOORMAN_OK &&
        doorman_agent_open(&c->resource, c->agent, &resource, &error) == DOORMAN_OK &&
        pthread_create(&c->thread, NULL, query, c) == 0) {
        return true;
    }
    fprintf(stderr, "demo: %s cannot start: %s\n", c->name, error.text);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
    return false;
}

/* The thread goes first, since nobody may use an agent that has stopped. */
static void leave(client *c) {
    atomic_store(&c->wants, 0);
    if (!c->agent) return;
    pthread_join(c->thread, NULL);
    doorman_agent_stop(c->agent);
    c->agent = NULL;
}

static bool act(demo *d, const struct event *event) {
    client *c = &d->clients[event->client];
    if (event->phase) d->phase = event->phase;
    if (event->wants == 0) {
        leave(c);
        return true;
    }
    if (!c->agent) return join(d, c, event->wants);
    atomic_store(&c->wants, event->wants);
    return doorman_agent_set_wants(c->agent, c->resource, event->wants) == DOORMAN_OK;
}

/* ---- what is measured -------------------------------------------------------------------------
 */

static void read_leases(const demo *d, double leases[CLIENTS]) {
    for (int i = 0; i < CLIENTS; i++) {
        const client *c = &d->clients[i];
        doorman_resource_info info = {0};
        if (c->agent) doorman_agent_read(c->agent, c->resource, &info);
        leases[i] = info.leased ? info.capacity : 0;
    }
}

/* Leases change while they are read one after the other. When two readings agree, they were all
 * in force together at the moment between the two. */
static bool read_leases_of_one_moment(const demo *d, double leases[CLIENTS]) {
    for (int tries = 0; tries < 100; tries++) {
        double again[CLIENTS];
        read_leases(d, leases);
        read_leases(d, again);
        if (!memcmp(leases, again, sizeof again)) return true;
    }
    return false;
}

static double sum_of_wants(const demo *d) {
    double sum = 0;
    for (int i = 0; i < CLIENTS; i++) sum += atomic_load(&d->clients[i].wants);
    return sum;
}

static void sample_leases(demo *d) {
    double leases[CLIENTS], sum = 0;
    bool together = read_leases_of_one_moment(d, leases);
    for (int i = 0; i < CLIENTS; i++) {
        d->clients[i].has = leases[i];
        sum += leases[i];
    }
    if (together) d->most_leased = larger(d->most_leased, sum / d->capacity);
}

/* What came through since the oldest sample, about a second ago, held against L1: the capacity for
 * that time and one burst. A query is counted just after it was let through, so that each client
 * may have one that belongs to the time before. */
static void sample_queries(demo *d, int tick) {
    sample *newest = &d->samples[tick % SAMPLES];
    const sample *last = &d->samples[(tick + SAMPLES - 1) % SAMPLES];
    const sample *oldest = &d->samples[(tick + 1) % SAMPLES];
    newest->at = doorman_clock();
    newest->total = 0;
    for (int i = 0; i < CLIENTS; i++) {
        newest->done[i] = atomic_load(&d->clients[i].done);
        newest->total += newest->done[i];
    }
    double seconds = (double)(newest->at - oldest->at) / (double)DOORMAN_SECOND;
    for (int i = 0; i < CLIENTS; i++) {
        d->clients[i].does = (double)(newest->done[i] - oldest->done[i]) / seconds;
    }
    double burst = (double)BURST / (double)DOORMAN_SECOND;
    double allowed = d->capacity * (seconds + burst) + CLIENTS;
    d->most_done = larger(d->most_done, (double)(newest->total - oldest->total) / allowed);

    d->full_ticks = sum_of_wants(d) >= d->capacity ? d->full_ticks + 1 : 0;
    if (d->full_ticks <= 2 * TICKS_A_SECOND) return;
    d->used += (double)(newest->total - last->total);
    d->usable += d->capacity * (double)(newest->at - last->at) / (double)DOORMAN_SECOND;
}

/* ---- what is shown ----------------------------------------------------------------------------
 */

/* Where a bar of this amount ends. */
static int column(const demo *d, double amount) {
    int columns = (int)(amount / d->capacity * BAR_COLUMNS + 0.5);
    return columns < BAR_COLUMNS ? columns : BAR_COLUMNS;
}

/* Some columns of one color, as a background, so that it needs no character set. */
static void bar(const demo *d, int color, int columns) {
    if (d->colors) printf("\x1b[4%dm%*s\x1b[0m", color, columns, "");
    for (int i = 0; !d->colors && i < columns; i++) putchar('#');
}

static void show_client(const demo *d, const client *c) {
    int wants = atomic_load(&c->wants);
    if (wants) {
        printf("  %-9s%7d%7.0f%7.0f  ", c->name, wants, c->has, c->does);
        bar(d, c->color, column(d, c->does));
    } else {
        printf("  %-9s%7s%7s%7s", c->name, "-", "-", "-");
    }
    printf("\x1b[K\n");
}

/* The same bars end to end, up to the mark of the capacity: what one loses, another one has. */
static void show_total(const demo *d) {
    double has = 0, does = 0, shown = 0;
    for (int i = 0; i < CLIENTS; i++) {
        has += d->clients[i].has;
        does += d->clients[i].does;
    }
    printf("  %-9s%7.0f%7.0f%7.0f  ", "all", sum_of_wants(d), has, does);
    for (int i = 0; i < CLIENTS; i++) {
        int start = column(d, shown);
        shown += d->clients[i].does;
        bar(d, d->clients[i].color, column(d, shown) - start);
    }
    printf("%*s|\x1b[K\n", BAR_COLUMNS - column(d, shown), "");
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  %.0f queries a second on " RESOURCE ", shared fairly%21d s\x1b[K\n\x1b[K\n",
           d->capacity, tick / TICKS_A_SECOND);
    printf("  client     wants    has   does\x1b[K\n");
    for (int i = 0; i < CLIENTS; i++) show_client(d, &d->clients[i]);
    printf("\x1b[K\n");
    show_total(d);
    printf("\x1b[K\n  > %s\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

static void show_line(demo *d, int tick) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    if (tick % TICKS_A_SECOND) return;
    double does = 0;
    printf("%3d s ", tick / TICKS_A_SECOND);
    for (int i = 0; i < CLIENTS; i++) {
        const client *c = &d->clients[i];
        char cell[64] = "-";
        int wants = atomic_load(&c->wants);
        if (wants) snprintf(cell, sizeof cell, "%d/%.0f/%.0f", wants, c->has, c->does);
        printf("%14s", cell);
        does += c->does;
    }
    printf("%6.0f\n", does);
    fflush(stdout);
}

static void show_start(demo *d) {
    struct winsize size = {0};
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    d->terminal = isatty(STDOUT_FILENO) && kind && strcmp(kind, "dumb") != 0 &&
                  !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row > TABLE_LINES;
    d->colors = d->terminal && !(no_color && *no_color);
    if (d->terminal) {
        printf("\x1b[?25l\x1b[?7l"); /* no cursor, and a line that is too long is cut */
        return;
    }
    printf("%.0f queries a second on " RESOURCE
           ", shared fairly; wants/has/does of each client\n\n",
           d->capacity);
    printf("      ");
    for (int i = 0; i < CLIENTS; i++) printf("%14s", d->clients[i].name);
    printf("%6s\n", "all");
}

static int show_result(const demo *d) {
    if (interrupted) {
        printf("Stopped.\n");
        return 130;
    }
    if (d->usable <= 0) {
        printf("The demo ended early.\n");
        return 1;
    }
    bool kept = d->most_leased <= 1 + 1e-9 && d->most_done <= 1; /* sums of doubles are rounded */
    printf("%.1f %% of the capacity was in use while more was wanted than there is",
           100 * d->used / d->usable);
    if (kept) {
        printf(", and it was never exceeded.\n");
    } else {
        printf(". IT WAS EXCEEDED: up to %.4f %% in leases, %.2f %% of the queries allowed.\n",
               100 * d->most_leased, 100 * d->most_done);
    }
    return kept ? 0 : 1;
}

/* ---- all together -----------------------------------------------------------------------------
 */

static void run(demo *d) {
    size_t event_count = sizeof story / sizeof *story, next = 0;
    doorman_time start = doorman_clock();
    for (int i = 0; i < SAMPLES; i++) d->samples[i].at = start - DOORMAN_SECOND;
    for (int tick = 0; tick <= SECONDS * TICKS_A_SECOND && !interrupted; tick++) {
        sleep_until(start + tick * TICK);
        sample_leases(d);
        sample_queries(d, tick);
        for (; next < event_count && story[next].second * TICKS_A_SECOND <= tick; next++) {
            if (!act(d, &story[next])) return;
        }
        if (!server_runs(d)) {
            show_log(d);
            return;
        }
        if (d->terminal) show_table(d, tick);
        if (!d->terminal) show_line(d, tick);
    }
}

int main(int argc, char **argv) {
    static demo d = {.clients = {[CHECKOUT] = {.name = "checkout", .color = 6},
                                 [SEARCH] = {.name = "search", .color = 2},
                                 [REPORTS] = {.name = "reports", .color = 4},
                                 [MOBILE] = {.name = "mobile", .color = 5},
                                 [CRAWLER] = {.name = "crawler", .color = 3}}};
    if (argc != 3) {
        fprintf(stderr, "usage: demo SERVER CONFIG\n");
        return 2;
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);

    int status = 1;
    if (read_capacity(&d, argv[2]) && start_server(&d, argv[1], argv[2])) {
        show_start(&d);
        run(&d);
        for (int i = 0; i < CLIENTS; i++) leave(&d.clients[i]);
        if (d.terminal) printf("\x1b[?25h\x1b[?7h");
        status = show_result(&d);
    }
    stop_server(&d);
    return status;
}
