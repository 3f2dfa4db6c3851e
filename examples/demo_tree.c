/* make demo TREE=1: a tree of servers, for forty seconds. The root has two regions as children,
 * each region has two leaves, and each leaf has three clients. There is a spike at one leaf.
 * Another leaf is killed and restarted.
 *
 *     build/examples/demo_tree build/doorman_server
 *
 * Each server is a process, and has a line in the table. The line shows how much the clients below
 * the server want, have (their leases) and do. The bars show how much capacity each leaf has. Each
 * leaf has a color of its own.
 */
#include "demo_fleet.h"

enum { ROOT, EU, US, EU_1, EU_2, US_1, US_2, SERVERS };
enum { CLIENTS_A_LEAF = 3, LEAVES = SERVERS - EU_1, CLIENTS = LEAVES * CLIENTS_A_LEAF };
enum { SECONDS = 40, BAR_COLUMNS = 36, TABLE_LINES = 14, CAPACITY = 1200 };

/* The leases are short, so that the demo is short. In production they should be longer, because a
 * client that loses its server can work until its lease ends. */
static const char config[] =
    "{\"resources\": [{\"identifier_glob\": \"" RESOURCE "\", \"capacity\": 1200,\n"
    "  \"algorithm\": {\"kind\": \"FAIR_SHARE\", \"lease_length\": 5, \"refresh_interval\": 1,\n"
    "    \"parameters\": [{\"name\": \"minimum_interval\", \"value\": 0.2},\n"
    "                   {\"name\": \"minimum_refresh_interval\", \"value\": 0.2}]}}]}\n";

/* Parents come before their children. */
static const struct node {
    const char *name;
    int parent, depth, color;
} nodes[SERVERS] = {
    [ROOT] = {"root", -1, 0, 0}, [EU] = {"eu", ROOT, 1, 0},   [US] = {"us", ROOT, 1, 0},
    [EU_1] = {"eu-1", EU, 2, 6}, [EU_2] = {"eu-2", EU, 2, 2}, [US_1] = {"us-1", US, 2, 4},
    [US_2] = {"us-2", US, 2, 3},
};

static const int order_shown[SERVERS] = {ROOT, EU, EU_1, EU_2, US, US_1, US_2};

enum act { WANT, KILL, START };

/* `server` is the leaf. `wants` is only for WANT: the queries a second that each client of the leaf
 * wants. */
static const struct event {
    int second;
    enum act act;
    int server, wants;
    const char *phase;
} story[] = {
    {0, WANT, EU_1, 60, NULL},
    {0, WANT, EU_2, 60, NULL},
    {0, WANT, US_1, 60, NULL},
    {0, WANT, US_2, 60, "all servers are new: for one lease length they learn who has what"},
    {7, WANT, US_2, 60, "twelve clients want 720 of 1200, and have it"},
    {10, WANT, US_2, 1000, "a spike at us-2: its clients get what the others do not want"},
    {17, WANT, EU_1, 200, "eu-1 wants more too: its clients get as much as those of us-2"},
    {24, KILL, EU_1, 0, "eu-1 is killed: its clients continue with their leases"},
    {26, START, EU_1, 0, "eu-1 is back, and grants its clients what they claim"},
    {34, WANT, US_2, 60, "the spike is over: eu-1 gets all that it wants"},
};

typedef struct demo {
    char folder[256], config[280];
    server servers[SERVERS];
    client_fleet all; /* the clients, in the order of the leaves */
    screen screen;
    const char *phase, *phase_shown;
} demo;

/* ---- the servers ----------------------------------------------------------------------------- */

static bool write_config(demo *d) {
    snprintf(d->config, sizeof d->config, "%s/config.json", d->folder);
    FILE *file = fopen(d->config, "w");
    bool written = file && fputs(config, file) >= 0;
    if (file && fclose(file) != 0) written = false;
    if (!written) fprintf(stderr, "demo: %s: %s\n", d->config, strerror(errno));
    return written;
}

static bool start_servers(demo *d, const char *program) {
    if (!folder_make(d->folder) || !write_config(d)) return false;
    for (int i = 0; i < SERVERS; i++) {
        server *s = &d->servers[i];
        bool root = nodes[i].parent < 0;
        *s = (server){.program = program,
                      .arguments = {"--node", nodes[i].name, root ? "--config" : "--parent",
                                    root ? d->config : d->servers[nodes[i].parent].address}};
        snprintf(s->log, sizeof s->log, "%s/%s.log", d->folder, nodes[i].name);
        if (!server_start(s)) return false;
    }
    return true;
}

/* Stops children before their parents, so that no child logs a missing parent. */
static void stop_servers(demo *d) {
    for (int i = SERVERS - 1; i >= 0; i--) {
        server_stop(&d->servers[i], SIGTERM);
        if (d->servers[i].log[0]) unlink(d->servers[i].log);
    }
    unlink(d->config);
    if (d->folder[0]) rmdir(d->folder);
}

/* ---- what is shown --------------------------------------------------------------------------- */

static bool below(int index, int ancestor) {
    while (index >= 0 && index != ancestor) index = nodes[index].parent;
    return index == ancestor;
}

typedef struct sums {
    double wants, has, does;
} sums;

static sums sums_of(const demo *d, int index) {
    sums all = {0, 0, 0};
    for (int i = 0; i < CLIENTS; i++) {
        const client *c = &d->all.clients[i];
        if (!below(EU_1 + i / CLIENTS_A_LEAF, index)) continue;
        all.wants += atomic_load(&c->wants);
        all.has += c->has;
        all.does += c->does;
    }
    return all;
}

static int column(double amount) {
    int columns = (int)(amount / CAPACITY * BAR_COLUMNS + 0.5);
    return columns < BAR_COLUMNS ? columns : BAR_COLUMNS;
}

/* Shows the leases of the leaves below a server in one bar. For the root, a mark shows the
 * capacity.
 */
static void show_bar(const demo *d, int index) {
    double shown = 0;
    for (int i = EU_1; i < SERVERS; i++) {
        if (!below(i, index)) continue;
        int start = column(shown);
        shown += sums_of(d, i).has;
        screen_bar(&d->screen, nodes[i].color, '#', column(shown) - start);
    }
    if (index == ROOT) printf("%*s|", BAR_COLUMNS - column(shown), "");
}

static void show_server(const demo *d, int index) {
    const struct node *node = &nodes[index];
    sums all = sums_of(d, index);
    printf("  %*s%-*s%7.0f%7.0f%7.0f  ", 2 * node->depth, "", 13 - 2 * node->depth, node->name,
           all.wants, all.has, all.does);
    show_bar(d, index);
    if (d->servers[index].process == 0) printf(" killed");
    printf("\x1b[K\n");
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  %d queries a second on " RESOURCE ", in a tree of servers%14d s\x1b[K\n",
           CAPACITY, tick / TICKS_A_SECOND);
    printf("\x1b[K\n  server         wants    has   does\x1b[K\n");
    for (int i = 0; i < SERVERS; i++) show_server(d, order_shown[i]);
    printf("\x1b[K\n  > %s\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

static void show_line(demo *d, int tick) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    if (tick % TICKS_A_SECOND) return;
    printf("%3d s ", tick / TICKS_A_SECOND);
    for (int i = EU_1; i <= SERVERS; i++) {
        char cell[64];
        sums all = sums_of(d, i < SERVERS ? i : ROOT);
        snprintf(cell, sizeof cell, "%.0f/%.0f/%.0f", all.wants, all.has, all.does);
        printf("%16s", cell);
    }
    printf("\n");
    fflush(stdout);
}

static void show_start(demo *d) {
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("%d queries a second on " RESOURCE
           ", in a tree of servers; wants/has/does of the clients of each leaf\n\n      ",
           CAPACITY);
    for (int i = EU_1; i < SERVERS; i++) printf("%16s", nodes[i].name);
    printf("%16s\n", "all");
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool act(demo *d, const struct event *event) {
    server *s = &d->servers[event->server];
    bool done = true;
    if (event->phase) d->phase = event->phase;
    if (event->act == KILL) server_stop(s, SIGKILL);
    if (event->act == START) server_launch(s);
    for (int i = 0; event->act == WANT && i < CLIENTS_A_LEAF; i++) {
        int index = (event->server - EU_1) * CLIENTS_A_LEAF + i;
        done = done && client_set_wants(&d->all.clients[index], event->wants);
    }
    return done;
}

/* Checks all servers, except those that the demo has killed. */
static bool servers_run(demo *d) {
    for (int i = 0; i < SERVERS; i++) {
        if (d->servers[i].process > 0 && !server_runs(&d->servers[i])) {
            server_show_log(&d->servers[i]);
            return false;
        }
    }
    return true;
}

static void run(demo *d) {
    size_t event_count = sizeof story / sizeof *story, next = 0;
    doorman_time start = doorman_clock();
    fleet_start(&d->all, start);
    for (int tick = 0; tick <= SECONDS * TICKS_A_SECOND && !interrupted; tick++) {
        sleep_until(start + tick * TICK);
        fleet_sample_leases(&d->all);
        fleet_sample_queries(&d->all, tick);
        for (; next < event_count && story[next].second * TICKS_A_SECOND <= tick; next++) {
            if (!act(d, &story[next])) return;
        }
        if (!servers_run(d)) return;
        if (d->screen.terminal) show_table(d, tick);
        if (!d->screen.terminal) show_line(d, tick);
    }
}

int main(int argc, char **argv) {
    static demo d = {.all = {.capacity = CAPACITY, .count = CLIENTS, .settle_seconds = 4}};
    if (argc != 2) {
        fprintf(stderr, "usage: demo_tree SERVER\n");
        return 2;
    }
    catch_signals();
    for (int i = 0; i < CLIENTS; i++) {
        int leaf = EU_1 + i / CLIENTS_A_LEAF;
        d.all.clients[i].name = nodes[leaf].name;
        d.all.clients[i].server = &d.servers[leaf];
    }
    int status = 1;
    if (start_servers(&d, argv[1])) {
        show_start(&d);
        run(&d);
        fleet_leave(&d.all);
        screen_close(&d.screen);
        status = fleet_show_result(&d.all);
    }
    stop_servers(&d);
    return status;
}
