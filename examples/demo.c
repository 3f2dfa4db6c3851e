/* make demo: a server and five clients of one database, for 21 seconds. The clients join,
 * leave, and change how much they want.
 *
 *     build/examples/demo build/doorman_server config.example.json
 *
 * On a terminal the demo shows a table. Otherwise it prints a line every second. The last line says
 * how much of the capacity was in use, and whether it was ever exceeded.
 */
#include "demo_fleet.h"

enum { CHECKOUT, SEARCH, REPORTS, MOBILE, CRAWLER, CLIENTS };
enum { SECONDS = 21, BAR_COLUMNS = 44, TABLE_LINES = 13 };

typedef struct demo {
    char folder[256];
    server server;
    client_fleet all;
    screen screen;
    const char *phase, *phase_shown;
} demo;

/* `wants` is in queries a second. 0: the client leaves. `phase` is the text to show. NULL: no
 * change. */
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
    {17, CHECKOUT, 100, "checkout now wants only 100: crawler gets the rest"},
};

/* ---- the server ------------------------------------------------------------------------------ */

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
    doorman_error error = {0};
    if (doorman_json_config(&config, text, bytes, &error) != DOORMAN_OK) {
        fprintf(stderr, "demo: %s: %s\n", path, error.text);
        return false;
    }
    doorman_config_options read;
    doorman_config_read(config, &read);
    for (size_t i = 0; i < read.template_count; i++) {
        if (strcmp(read.templates[i].identifier_glob, RESOURCE) == 0) {
            d->all.capacity = read.templates[i].capacity;
        }
    }
    doorman_config_destroy(config);
    if (d->all.capacity <= 0) fprintf(stderr, "demo: %s gives " RESOURCE " no capacity\n", path);
    return d->all.capacity > 0;
}

static bool start_server(demo *d, const char *program, const char *config) {
    if (!folder_make(d->folder)) return false;
    d->server = (server){.program = program, .arguments = {"--config", config}};
    snprintf(d->server.log, sizeof d->server.log, "%s/server.log", d->folder);
    return server_start(&d->server);
}

static void stop_server(demo *d) {
    server_stop(&d->server, SIGTERM);
    if (d->folder[0]) {
        unlink(d->server.log);
        rmdir(d->folder);
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* Returns the length of the bar for an amount, in columns. */
static int column(const demo *d, double amount) {
    int columns = (int)(amount / d->all.capacity * BAR_COLUMNS + 0.5);
    return columns < BAR_COLUMNS ? columns : BAR_COLUMNS;
}

static void show_client(const demo *d, const client *c) {
    int wants = atomic_load(&c->wants);
    if (wants) {
        printf("  %-9s%7d%7.0f%7.0f  ", c->name, wants, c->has, c->does);
        screen_bar(&d->screen, c->color, '#', column(d, c->does));
    } else {
        printf("  %-9s%7s%7s%7s", c->name, "-", "-", "-");
    }
    printf("\x1b[K\n");
}

/* Shows the bars of all clients in one line. A mark shows the capacity. */
static void show_total(const demo *d) {
    double has = 0, does = 0, shown = 0;
    for (int i = 0; i < CLIENTS; i++) {
        has += d->all.clients[i].has;
        does += d->all.clients[i].does;
    }
    printf("  %-9s%7.0f%7.0f%7.0f  ", "all", fleet_wants(&d->all), has, does);
    for (int i = 0; i < CLIENTS; i++) {
        int start = column(d, shown);
        shown += d->all.clients[i].does;
        screen_bar(&d->screen, d->all.clients[i].color, '#', column(d, shown) - start);
    }
    printf("%*s|\x1b[K\n", BAR_COLUMNS - column(d, shown), "");
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  %.0f queries a second on " RESOURCE ", shared fairly%21d s\x1b[K\n\x1b[K\n",
           d->all.capacity, tick / TICKS_A_SECOND);
    printf("  client     wants    has   does\x1b[K\n");
    for (int i = 0; i < CLIENTS; i++) show_client(d, &d->all.clients[i]);
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
        const client *c = &d->all.clients[i];
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
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("%.0f queries a second on " RESOURCE
           ", shared fairly; wants/has/does of each client\n\n",
           d->all.capacity);
    printf("      ");
    for (int i = 0; i < CLIENTS; i++) printf("%14s", d->all.clients[i].name);
    printf("%6s\n", "all");
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool act(demo *d, const struct event *event) {
    if (event->phase) d->phase = event->phase;
    return client_set_wants(&d->all.clients[event->client], event->wants);
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
        if (!server_runs(&d->server)) {
            server_show_log(&d->server);
            return;
        }
        if (d->screen.terminal) show_table(d, tick);
        if (!d->screen.terminal) show_line(d, tick);
    }
}

int main(int argc, char **argv) {
    static demo d = {.all = {.count = CLIENTS,
                             .settle_seconds = 2,
                             .clients = {[CHECKOUT] = {.name = "checkout", .color = 6},
                                         [SEARCH] = {.name = "search", .color = 2},
                                         [REPORTS] = {.name = "reports", .color = 4},
                                         [MOBILE] = {.name = "mobile", .color = 5},
                                         [CRAWLER] = {.name = "crawler", .color = 3}}}};
    if (argc != 3) {
        fprintf(stderr, "usage: demo SERVER CONFIG\n");
        return 2;
    }
    catch_signals();
    for (int i = 0; i < CLIENTS; i++) d.all.clients[i].server = &d.server;
    int status = 1;
    if (read_capacity(&d, argv[2]) && start_server(&d, argv[1], argv[2])) {
        show_start(&d);
        run(&d);
        fleet_leave(&d.all);
        screen_close(&d.screen);
        status = fleet_show_result(&d.all);
    }
    stop_server(&d);
    return status;
}
