/* make demo THROTTLE=1: two servers that can answer 400 requests a second, one of them behind a
 * throttle, for twenty seconds.
 *
 *     build/examples/demo_throttle build/examples/throttled_server
 *
 * Both get the same requests at the same times: half of what they can do, then all, two times and
 * five times as much, and half again. Requests arrive without regard to the responses before. An
 * answer is in time after at most 200 ms. A request that finds no free connection among 800 counts
 * as asked and gets no answer.
 */
#include "demo.h"

#include <sys/epoll.h>
#include <sys/resource.h>

enum { WITH, WITHOUT, SIDES };
enum { CAPACITY = 400, CONNECTIONS = 800, PHASES = 5, PHASE_SECONDS = 4, TABLE_LINES = 12 };
enum { BAR_COLUMNS = 10, TIMES = 10000, RESPONSE_MAX = 1024, EVENTS = 256 };

#define MILLISECOND (DOORMAN_SECOND / 1000)
#define IN_TIME 200 /* milliseconds */

static const double loads[PHASES] = {0.5, 1, 2, 5, 0.5};
static const char *const stories[PHASES] = {
    "half of what the servers can do: both answer all requests in time",
    "all that they can do",
    "twice as many: without a throttle each request waits behind all others",
    "five times as many: the throttle refuses four of five at once, and answers the others",
    "half again: without a throttle, the requests that wait are worked off first",
};

/* What happened to the requests of a phase. */
typedef struct counts {
    unsigned long asked, in_time, late, refused, failed;
    unsigned times[TIMES + 1]; /* answers, by milliseconds */
} counts;

typedef struct connection {
    int socket, side, phase;
    bool waits; /* for a response */
    doorman_time sent;
    size_t bytes;
    char response[RESPONSE_MAX + 1];
} connection;

typedef struct demo {
    char folder[256];
    server servers[SIDES];
    connection *connections[SIDES], **unused[SIDES];
    size_t unused_count[SIDES];
    counts counts[SIDES][PHASES];
    int epoll, phase;
    screen screen;
} demo;

/* ---- the servers ----------------------------------------------------------------------------- */

/* Raises the limit of open files, because each server and the demo need more than the usual one. */
static void allow_connections(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max < 8192 ? limit.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static bool start_servers(demo *d, const char *program) {
    allow_connections();
    if (!folder_make(d->folder)) return false;
    for (int i = 0; i < SIDES; i++) {
        server *s = &d->servers[i];
        *s = (server){.program = program, .http = true, .arguments = {i == WITH ? NULL : "--off"}};
        snprintf(s->log, sizeof s->log, "%s/%d.log", d->folder, i);
        if (!server_start(s)) return false;
    }
    return true;
}

static void stop_servers(demo *d) {
    for (int i = 0; i < SIDES; i++) {
        server_stop(&d->servers[i], SIGKILL); /* the requests that wait need no answer */
        unlink(d->servers[i].log);
    }
    if (d->folder[0]) rmdir(d->folder);
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool connection_open(demo *d, connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)d->servers[c->side].port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (c->socket < 0) return false;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    return connect(c->socket, (struct sockaddr *)&address, sizeof address) == 0 &&
           fcntl(c->socket, F_SETFL, O_NONBLOCK) == 0 &&
           epoll_ctl(d->epoll, EPOLL_CTL_ADD, c->socket, &event) == 0;
}

static bool open_connections(demo *d) {
    d->epoll = epoll_create1(0);
    for (int side = 0; side < SIDES; side++) {
        d->connections[side] = calloc(CONNECTIONS, sizeof *d->connections[side]);
        d->unused[side] = calloc(CONNECTIONS, sizeof *d->unused[side]);
        for (int i = 0; i < CONNECTIONS; i++) {
            connection *c = d->connections[side] ? &d->connections[side][i] : NULL;
            if (c) c->side = side;
            if (!c || !d->unused[side] || !connection_open(d, c)) {
                fprintf(stderr, "demo: connection %d: %s\n", i, strerror(errno));
                return false;
            }
            d->unused[side][d->unused_count[side]++] = c;
        }
    }
    return true;
}

static void close_connections(demo *d) {
    for (int side = 0; side < SIDES; side++) {
        for (int i = 0; d->connections[side] && i < CONNECTIONS; i++) {
            if (d->connections[side][i].socket > 0) close(d->connections[side][i].socket);
        }
        free(d->connections[side]);
        free(d->unused[side]);
    }
    if (d->epoll > 0) close(d->epoll);
}

/* ---- requests and responses ------------------------------------------------------------------ */

static void ask(demo *d, int side) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: demo\r\n\r\n";
    counts *all = &d->counts[side][d->phase];
    all->asked++;
    if (!d->unused_count[side]) return;
    connection *c = d->unused[side][--d->unused_count[side]];
    c->sent = doorman_clock();
    c->phase = d->phase;
    c->bytes = 0;
    c->waits = send(c->socket, request, sizeof request - 1, MSG_NOSIGNAL) > 0;
    if (!c->waits) all->failed++;
}

/* Returns whether the whole response has arrived. */
static bool response_ended(const connection *c) {
    const char *body = strstr(c->response, "\r\n\r\n");
    const char *length = strstr(c->response, "Content-Length: ");
    if (!body || !length) return false;
    size_t expected = strtoul(length + strlen("Content-Length: "), NULL, 10);
    return c->bytes >= (size_t)(body - c->response) + 4 + expected;
}

static void count_response(demo *d, const connection *c) {
    counts *all = &d->counts[c->side][c->phase];
    doorman_time milliseconds = (doorman_clock() - c->sent) / MILLISECOND;
    if (strncmp(c->response, "HTTP/1.1 200", 12) != 0) {
        all->refused++;
        return;
    }
    all->times[milliseconds < TIMES ? milliseconds : TIMES]++;
    if (milliseconds <= IN_TIME) all->in_time++;
    if (milliseconds > IN_TIME) all->late++;
}

/* Reads from a connection. A connection that the server has closed is not used again. */
static void receive(demo *d, connection *c) {
    ssize_t bytes = recv(c->socket, c->response + c->bytes, RESPONSE_MAX - c->bytes, 0);
    if (bytes < 0 && errno == EAGAIN) return;
    if (bytes <= 0) {
        if (c->waits) d->counts[c->side][c->phase].failed++;
        c->waits = false;
        epoll_ctl(d->epoll, EPOLL_CTL_DEL, c->socket, NULL);
        return;
    }
    c->bytes += (size_t)bytes;
    c->response[c->bytes] = 0;
    if (!c->waits || !response_ended(c)) return;
    c->waits = false;
    count_response(d, c);
    d->unused[c->side][d->unused_count[c->side]++] = c;
}

/* Sends the requests that are due, and reads responses, until a time. */
static void exchange(demo *d, doorman_time phase_start, doorman_time until) {
    struct epoll_event events[EVENTS];
    for (doorman_time now; (now = doorman_clock()) < until && !interrupted;) {
        double seconds = (double)(now - phase_start) / (double)DOORMAN_SECOND;
        double due = seconds * loads[d->phase] * CAPACITY;
        while ((double)d->counts[WITH][d->phase].asked < due) {
            for (int side = 0; side < SIDES; side++) ask(d, side);
        }
        int count = epoll_wait(d->epoll, events, EVENTS, 1);
        for (int i = 0; i < count; i++) receive(d, events[i].data.ptr);
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* Returns the milliseconds after which 99 % of the answers of a phase had arrived. */
static int p99(const counts *all) {
    unsigned long answered = all->in_time + all->late, seen = 0;
    for (int i = 0; i <= TIMES; i++) {
        seen += all->times[i];
        if (answered && (double)seen >= 0.99 * (double)answered) return i;
    }
    return 0;
}

/* Shows the counts of a server. The bar is the part of its capacity that was answered in time. */
static void show_side(const demo *d, int side, int phase) {
    const counts *all = &d->counts[side][phase];
    double seconds = (double)all->asked / (loads[phase] * CAPACITY);
    double good = seconds > 0 ? (double)all->in_time / seconds / CAPACITY : 0;
    int columns = good < 1 ? (int)(good * BAR_COLUMNS + 0.5) : BAR_COLUMNS;
    printf("  %6lu %7lu %6d ", all->in_time, all->refused, p99(all));
    screen_bar(&d->screen, side == WITH ? 2 : 1, '#', columns);
    if (side == WITH) printf("%*s", BAR_COLUMNS - columns, "");
}

static void show_row(const demo *d, int phase) {
    printf("  %3.1f %6lu", loads[phase], d->counts[WITH][phase].asked);
    for (int side = 0; phase <= d->phase && side < SIDES; side++) show_side(d, side, phase);
    printf(d->screen.terminal ? "\x1b[K\n" : "\n");
    fflush(stdout);
}

static void show_header(const demo *d) {
    printf("  servers that can answer %d requests a second; in time is within %d ms\n\n", CAPACITY,
           IN_TIME);
    printf("              %-35s%s\n", "behind a throttle", "without a throttle");
    const char *columns = " in time refused p99 ms";
    printf("  load asked %s%*s%s\n", columns, BAR_COLUMNS + 2, "", columns);
    if (d->screen.terminal) printf("\n\n\n\n\n\n\n");
}

static void show_table(const demo *d) {
    printf("\x1b[%dA", PHASES + 2);
    for (int phase = 0; phase < PHASES; phase++) show_row(d, phase);
    printf("\n  > %s\x1b[K\n", stories[d->phase]);
    fflush(stdout);
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool servers_run(demo *d) {
    for (int i = 0; i < SIDES; i++) {
        if (server_runs(&d->servers[i])) continue;
        server_show_log(&d->servers[i]);
        return false;
    }
    return true;
}

/* Returns whether the demo has run to its end. */
static bool run(demo *d) {
    doorman_time start = doorman_clock();
    for (d->phase = 0; d->phase < PHASES; d->phase++) {
        if (!d->screen.terminal) printf("      > %s\n", stories[d->phase]);
        fflush(stdout);
        for (int tick = 1; tick <= PHASE_SECONDS * TICKS_A_SECOND; tick++) {
            exchange(d, start, start + tick * TICK);
            if (interrupted || !servers_run(d)) return false;
            if (d->screen.terminal) show_table(d);
        }
        if (!d->screen.terminal) show_row(d, d->phase);
        start += PHASE_SECONDS * DOORMAN_SECOND;
    }
    return true;
}

/* Prints the last line. Returns the exit code. */
static int show_result(const demo *d, bool ended) {
    unsigned long asked = 0, in_time[SIDES] = {0, 0};
    if (!ended) {
        printf(interrupted ? "Stopped.\n" : "The demo ended early.\n");
        return interrupted ? 130 : 1;
    }
    for (int phase = 0; phase < PHASES; phase++) {
        asked += d->counts[WITH][phase].asked;
        for (int side = 0; side < SIDES; side++) in_time[side] += d->counts[side][phase].in_time;
    }
    printf("%lu requests to each server. In time were %lu answers behind a throttle, and %lu "
           "without.\n",
           asked, in_time[WITH], in_time[WITHOUT]);
    return 0;
}

int main(int argc, char **argv) {
    static demo d;
    if (argc != 2) {
        fprintf(stderr, "usage: demo_throttle THROTTLED_SERVER\n");
        return 2;
    }
    catch_signals();
    int status = 1;
    if (start_servers(&d, argv[1]) && open_connections(&d)) {
        d.screen = screen_open(TABLE_LINES);
        show_header(&d);
        bool ended = run(&d);
        screen_close(&d.screen);
        status = show_result(&d, ended);
    }
    close_connections(&d);
    stop_servers(&d);
    return status;
}
