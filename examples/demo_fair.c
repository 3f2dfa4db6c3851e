/* make demo FAIR=1: ten tenants share an API of a partner that takes 100 requests a second, for
 * twenty seconds. Nine of them ask for 5 a second each, three at a time, and one is greedy.
 *
 *     build/examples/demo_fair build/doorman_server
 *
 * Each permit is asked for at two resources with the same load: the limit of one is fair, and the
 * other is served in the order of arrival. Each row of the table is a tenant, with what it asked
 * for and got in the last second, and bars of what it got. The last line says what the nine got of
 * all that they asked for since the tenth became greedy. The demo checks that neither limit was
 * exceeded.
 */
#define DEMO_HAS_PERMITS
#include "demo.h"

enum { TENANTS = 10, GREEDY = 9, SECONDS = 20, BAR_COLUMNS = 20, TABLE_LINES = 18 };
enum { BURST = 3, RATE = 100, SIZE = 100, KINDS = 2 };
enum { FAIR, PLAIN };

static const char *const resources[KINDS] = {"partner-fair", "partner"};

static const char config[] =
    "{\"resources\": [\n"
    "  {\"identifier_glob\": \"partner-fair\", \"limits\": [{\"name\": \"all\",\n"
    "   \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 100, \"size\": 100,\n"
    "   \"fair\": true}]},\n"
    "  {\"identifier_glob\": \"partner\", \"limits\": [{\"name\": \"all\",\n"
    "   \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 100, \"size\": 100}]}]}\n";

typedef struct counts {
    unsigned long asked[KINDS], granted[KINDS];
} counts;

typedef struct tenant {
    char name[16];
    atomic_int pace; /* milliseconds after which it asks for BURST permits again */
    atomic_ulong asked[KINDS], granted[KINDS];
    pthread_t thread;
    bool runs;
    struct demo *demo;
    counts samples[SAMPLES]; /* a tick uses samples[tick % SAMPLES] */
    counts begin;            /* when the tenth tenant became greedy */
} tenant;

typedef struct demo {
    server server;
    doorman_agent *agent;
    atomic_bool stops;
    tenant tenants[TENANTS];
    doorman_time since;
    bool exceeded;
    screen screen;
    const char *phase, *phase_shown;
} demo;

/* The pace of the greedy tenant. */
static const struct event {
    int second, pace;
    const char *phase;
} story[] = {
    {0, 600, "ten tenants ask for 5 a second each: everybody gets it"},
    {5, 6, "tenant-9 becomes greedy: it asks for 500 a second, of the 100 that there are"},
    {16, 600, "tenant-9 asks for 5 a second again"},
};

/* ---- the server ------------------------------------------------------------------------------ */

static bool start_server(demo *d, const char *program) {
    if (!server_create(&d->server, program, config)) return false;
    const char *addresses[] = {d->server.address};
    const doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_error error = {0};
    if (doorman_agent_start(&d->agent, &options, &error) == DOORMAN_OK) return true;
    fprintf(stderr, "demo: the agent cannot start: %s\n", error.text);
    return false;
}

static void stop_server(demo *d) {
    doorman_agent_stop(d->agent);
    server_destroy(&d->server);
}

/* ---- the tenants ----------------------------------------------------------------------------- */

/* Asks for one permit. A decision of the fallback does not count. */
static void tenant_ask(tenant *t, int kind) {
    const doorman_permit_item item = {.resource_id = resources[kind], .key = t->name, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired out;
    doorman_status status =
        doorman_agent_acquire(t->demo->agent, &request, 5 * DOORMAN_SECOND, &out, NULL);
    if (status != DOORMAN_OK || out.decided_by == DOORMAN_BY_FALLBACK) return;
    atomic_fetch_add(&t->granted[kind], out.granted);
    atomic_fetch_add(&t->asked[kind], 1);
}

/* Waits until the next requests are due, and returns their time. Requests that are too late are
 * skipped. */
static doorman_time tenant_pause(const tenant *t, doorman_time last) {
    for (;;) {
        const doorman_time pace = atomic_load(&t->pace) * (DOORMAN_SECOND / 1000);
        const doorman_time next = last + pace, now = doorman_clock();
        const doorman_time soon = now + DOORMAN_SECOND / 20;
        if (now >= next || atomic_load(&t->demo->stops)) return now < next + pace ? next : now;
        sleep_until(next < soon ? next : soon);
    }
}

/* Asks until the demo stops. The tenants begin one after another, so that they do not all ask at
 * once. */
static void *tenant_main(void *argument) {
    tenant *t = argument;
    doorman_time at = doorman_clock() + (t - t->demo->tenants) * DOORMAN_SECOND / 17;
    sleep_until(at);
    while (!atomic_load(&t->demo->stops)) {
        for (int i = 0; i < BURST * KINDS; i++) tenant_ask(t, i % KINDS);
        at = tenant_pause(t, at);
    }
    return NULL;
}

static bool start_tenants(demo *d) {
    d->since = doorman_clock();
    for (int i = 0; i < TENANTS; i++) {
        tenant *t = &d->tenants[i];
        snprintf(t->name, sizeof t->name, "tenant-%d", i);
        t->demo = d;
        atomic_store(&t->pace, story[0].pace);
        t->runs = pthread_create(&t->thread, NULL, tenant_main, t) == 0;
        if (!t->runs) return false;
    }
    return true;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static counts tenant_read(tenant *t) {
    counts now;
    for (int kind = 0; kind < KINDS; kind++) { /* `granted` first, so it is never larger */
        now.granted[kind] = atomic_load(&t->granted[kind]);
        now.asked[kind] = atomic_load(&t->asked[kind]);
    }
    return now;
}

/* Reads the counts of all tenants. Together they must not have been granted more than the size of
 * the bucket, and the rate for the time since the beginning. */
static void sample(demo *d, int tick) {
    unsigned long all[KINDS] = {0, 0};
    for (int i = 0; i < TENANTS; i++) {
        counts *now = &d->tenants[i].samples[tick % SAMPLES];
        *now = tenant_read(&d->tenants[i]);
        for (int kind = 0; kind < KINDS; kind++) all[kind] += now->granted[kind];
    }
    const double seconds = (double)(doorman_clock() - d->since) / (double)DOORMAN_SECOND;
    for (int kind = 0; kind < KINDS; kind++) {
        if ((double)all[kind] > SIZE + RATE * seconds) d->exceeded = true;
    }
}

static counts difference(const counts *now, const counts *then) {
    counts out;
    for (int kind = 0; kind < KINDS; kind++) {
        out.asked[kind] = now->asked[kind] - then->asked[kind];
        out.granted[kind] = now->granted[kind] - then->granted[kind];
    }
    return out;
}

static counts last_second(const tenant *t, int tick) {
    return difference(&t->samples[tick % SAMPLES], &t->samples[(tick + 1) % SAMPLES]);
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* Shows what was granted, as a number and as a bar for up to 100 units. */
static void show_bar(const demo *d, unsigned long granted, unsigned long asked) {
    const int columns = (int)(granted * BAR_COLUMNS / RATE) + (granted > 0);
    const int most = columns < BAR_COLUMNS ? columns : BAR_COLUMNS;
    const bool all = granted >= asked;
    printf("%5lu ", granted);
    screen_bar(&d->screen, all ? 2 : 3, all ? '#' : '+', most);
    printf("%*s", BAR_COLUMNS - most + 2, "");
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  a partner takes %d requests a second; requests of the last second%13d s"
           "\x1b[K\n\x1b[K\n",
           RATE, tick / TICKS_A_SECOND);
    printf("  %-10s%7s %5s %-22s%5s %s\x1b[K\n", "tenant", "asks", "gets", "of a fair limit",
           "gets", "first come, first served");
    for (int i = 0; i < TENANTS; i++) {
        const counts all = last_second(&d->tenants[i], tick);
        printf("  %-10s%7lu ", d->tenants[i].name, all.asked[FAIR]);
        for (int kind = 0; kind < KINDS; kind++) {
            show_bar(d, all.granted[kind], all.asked[kind]);
        }
        printf("\x1b[K\n");
    }
    printf("\x1b[K\n  > %s\x1b[K\n\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

/* Shows what the nine and the greedy tenant got in the last second, of what they asked for. */
static void show_line(demo *d, int tick) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    if (tick % TICKS_A_SECOND || tick == 0) return;
    counts nine = {{0, 0}, {0, 0}};
    const counts greedy = last_second(&d->tenants[GREEDY], tick);
    for (int i = 0; i < GREEDY; i++) {
        const counts one = last_second(&d->tenants[i], tick);
        for (int kind = 0; kind < KINDS; kind++) {
            nine.asked[kind] += one.asked[kind];
            nine.granted[kind] += one.granted[kind];
        }
    }
    printf("%3d s", tick / TICKS_A_SECOND);
    for (int kind = 0; kind < KINDS; kind++) {
        printf("%10lu of %3lu %9lu of %3lu", nine.granted[kind], nine.asked[kind],
               greedy.granted[kind], greedy.asked[kind]);
    }
    printf("\n");
    fflush(stdout);
}

static void show_start(demo *d) {
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("what ten tenants get in a second of a limit of %d a second\n\n", RATE);
    printf("       fair: nine tenants       tenant-9   plain: nine tenants      tenant-9\n");
}

/* Prints the last line. Returns the exit code. The nine must get more of a fair limit. */
static int show_result(demo *d, bool ended) {
    unsigned long asked[KINDS] = {0, 0}, granted[KINDS] = {0, 0};
    if (interrupted || !ended) {
        printf(interrupted ? "Stopped.\n" : "The demo ended early.\n");
        return interrupted ? 130 : 1;
    }
    for (int i = 0; i < GREEDY; i++) {
        const counts now = tenant_read(&d->tenants[i]);
        const counts all = difference(&now, &d->tenants[i].begin);
        for (int kind = 0; kind < KINDS; kind++) {
            asked[kind] += all.asked[kind];
            granted[kind] += all.granted[kind];
        }
    }
    for (int kind = 0; kind < KINDS; kind++) {
        if (!asked[kind]) return 1;
    }
    const double fair = 100 * (double)granted[FAIR] / (double)asked[FAIR];
    const double plain = 100 * (double)granted[PLAIN] / (double)asked[PLAIN];
    printf("Beside a greedy tenant, the other nine got %.0f %% of what they asked for. First come, "
           "first\nserved, they got %.0f %%. %s\n",
           fair, plain, d->exceeded ? "A LIMIT WAS EXCEEDED." : "No limit was exceeded.");
    return d->exceeded || !(fair > plain);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void play(demo *d, const struct event *event) {
    atomic_store(&d->tenants[GREEDY].pace, event->pace);
    d->phase = event->phase;
    for (int i = 0; i < TENANTS && event == &story[1]; i++) {
        d->tenants[i].begin = tenant_read(&d->tenants[i]);
    }
}

/* Returns whether the demo has run to its end. */
static bool run(demo *d) {
    const size_t count = sizeof story / sizeof *story;
    size_t next = 0;
    bool runs = start_tenants(d);
    for (int tick = 0; tick <= SECONDS * TICKS_A_SECOND && runs && !interrupted; tick++) {
        sleep_until(d->since + tick * TICK);
        sample(d, tick);
        while (next < count && story[next].second * TICKS_A_SECOND <= tick) play(d, &story[next++]);
        runs = server_runs(&d->server);
        if (!runs) server_show_log(&d->server);
        if (d->screen.terminal) show_table(d, tick);
        if (!d->screen.terminal) show_line(d, tick);
    }
    atomic_store(&d->stops, true);
    for (int i = 0; i < TENANTS; i++) {
        if (d->tenants[i].runs) pthread_join(d->tenants[i].thread, NULL);
    }
    return runs;
}

int main(int argc, char **argv) {
    static demo d;
    if (argc != 2) {
        fprintf(stderr, "usage: demo_fair SERVER\n");
        return 2;
    }
    catch_signals();
    int status = 1;
    if (start_server(&d, argv[1])) {
        show_start(&d);
        bool ended = run(&d);
        screen_close(&d.screen);
        status = show_result(&d, ended);
    }
    stop_server(&d);
    return status;
}
