/* make demo PERMITS=1: a server that decides on permits, for 21 seconds. Users log in: one
 * behaves, one comes in bursts, one has a contract, three share a trial, and one does not stop.
 *
 *     build/examples/demo_permits build/doorman_server
 *
 * Each row of the table is a user, or the users of a group. The row shows how often they asked in
 * the last second, how often they were granted and refused, and what happened in the last ten
 * seconds: each column is a quarter of a second. All users ask through one agent. The demo checks
 * all the time that no user was granted more than its limit allows.
 */
#define DEMO_HAS_PERMITS
#include "demo.h"

enum { ANN, BOB, ACME, TRIALS, EVE, USERS };
enum { KEYS_MAX = 3, SECONDS = 21, STRIP_COLUMNS = 40, TABLE_LINES = 14 };

/* A ban and its count are short, so that the demo is short. */
static const char config[] =
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [\n"
    "  {\"name\": \"per-user\", \"per\": \"key\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 2,\n"
    "   \"size\": 6, \"ban\": {\"refusals\": 20, \"window\": 10, \"duration\": 4},\n"
    "   \"overrides\": [{\"keys\": [\"acme\"], \"rate\": 20, \"size\": 20}]},\n"
    "  {\"name\": \"trials\", \"per\": \"resource\", \"keys\": [\"trial-*\"],\n"
    "   \"kind\": \"TOKEN_BUCKET\", \"rate\": 3, \"size\": 3}]}]}\n";

/* What a column of a strip shows. */
typedef enum mark { NOTHING, GRANTED, PARTLY, REFUSED, BANNED } mark;
static const struct {
    char sign;
    int color; /* ANSI; 0: none */
    const char *text;
} marks[] = {[NOTHING] = {'.', 0, ""},
             [GRANTED] = {'#', 2, "granted"},
             [PARTLY] = {'+', 3, "granted and refused"},
             [REFUSED] = {'-', 1, "refused"},
             [BANNED] = {'x', 5, "banned"}};

typedef struct counts {
    unsigned long asked, granted, banned; /* the others were refused */
} counts;

typedef struct user {
    const char *name;
    const char *keys[KEYS_MAX]; /* they ask in turn; the rest is NULL */
    double rate, size;          /* what the configuration allows these keys together */
    atomic_int burst, pace;     /* asks `burst` times every `pace` milliseconds */
    atomic_ulong asked, granted, banned;
    atomic_llong banned_until;
    bool runs;
    doorman_time since; /* when the thread began */
    pthread_t thread;
    struct demo *demo;
    counts samples[SAMPLES]; /* a tick uses samples[tick % SAMPLES] */
    unsigned char strip[STRIP_COLUMNS];
} user;

/* `burst` 0: no change of how the user asks. */
static const struct event {
    int second, user, burst, pace;
    const char *phase;
} story[] = {
    {0, ANN, 1, 1000, NULL},
    {0, BOB, 5, 3000, NULL},
    {0, ACME, 4, 250, "2 a second for each user; bob saves some for a burst; acme has a contract"},
    {2, TRIALS, 2, 250, "three users on trial share 3 a second"},
    {5, EVE, 1, 100, "eve asks ten times a second, and gets what she saved, then 2 a second"},
    {17, EVE, 1, 1000, "eve is still banned, and has learned: from now on she asks once a second"},
};

typedef struct demo {
    server server;
    doorman_agent *agent;
    atomic_bool stops;
    user users[USERS];
    bool eve_is_banned, exceeded;
    int bans;
    screen screen;
    const char *phase, *phase_shown;
} demo;

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

/* ---- the users ------------------------------------------------------------------------------- */

/* Asks for one permit. A decision of the fallback does not count. */
static void user_ask(user *u, const char *key) {
    const doorman_permit_item item = {.resource_id = "login", .key = key, .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_acquired out;
    doorman_status status =
        doorman_agent_acquire(u->demo->agent, &request, 5 * DOORMAN_SECOND, &out, NULL);
    if (status != DOORMAN_OK || out.decided_by == DOORMAN_BY_FALLBACK) return;
    bool banned = !out.granted && out.reason == DOORMAN_REASON_BANNED;
    if (banned) atomic_store(&u->banned_until, doorman_clock() + out.retry_after);
    atomic_fetch_add(&u->granted, out.granted);
    atomic_fetch_add(&u->banned, banned);
    atomic_fetch_add(&u->asked, 1);
}

/* Waits until the next requests are due, and returns their time. Sleeps at most 50 ms at a time,
 * because the pace can change. Requests that are too late are skipped. */
static doorman_time user_pause(const user *u, doorman_time last) {
    for (;;) {
        doorman_time pace = atomic_load(&u->pace) * (DOORMAN_SECOND / 1000), next = last + pace;
        doorman_time now = doorman_clock(), soon = now + DOORMAN_SECOND / 20;
        if (now >= next || atomic_load(&u->demo->stops)) return now < next + pace ? next : now;
        sleep_until(next < soon ? next : soon);
    }
}

/* Begins in the middle of a tick, so that most ticks show the same number of permits. */
static void *user_main(void *argument) {
    user *u = argument;
    size_t turn = 0, keys = 1;
    while (keys < KEYS_MAX && u->keys[keys]) keys++;
    doorman_time at = doorman_clock() + TICK / 2;
    sleep_until(at);
    while (!atomic_load(&u->demo->stops)) {
        for (int i = 0; i < atomic_load(&u->burst); i++) user_ask(u, u->keys[turn++ % keys]);
        at = user_pause(u, at);
    }
    return NULL;
}

static bool user_act(user *u, const struct event *event) {
    atomic_store(&u->burst, event->burst);
    atomic_store(&u->pace, event->pace);
    if (u->runs) return true;
    u->since = doorman_clock();
    u->runs = pthread_create(&u->thread, NULL, user_main, u) == 0;
    return u->runs;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static mark mark_of(const counts *last, const counts *now) {
    unsigned long granted = now->granted - last->granted, banned = now->banned - last->banned;
    if (now->asked == last->asked) return NOTHING;
    if (granted == now->asked - last->asked) return GRANTED;
    if (granted) return PARTLY;
    return banned ? BANNED : REFUSED;
}

/* Reads the counts of a user. The user must not have been granted more than the size of its bucket,
 * and the rate for the time since its beginning. `granted` is read before `asked`, so it is never
 * larger. */
static void user_sample(demo *d, user *u, int tick) {
    counts *now = &u->samples[tick % SAMPLES];
    const counts *last = &u->samples[(tick + SAMPLES - 1) % SAMPLES];
    now->banned = atomic_load(&u->banned);
    now->granted = atomic_load(&u->granted);
    now->asked = atomic_load(&u->asked);
    memmove(u->strip, u->strip + 1, STRIP_COLUMNS - 1);
    u->strip[STRIP_COLUMNS - 1] = (unsigned char)mark_of(last, now);
    double seconds = (double)(doorman_clock() - u->since) / (double)DOORMAN_SECOND;
    if ((double)now->granted > u->size + u->rate * seconds) d->exceeded = true;
}

/* Tells the story of the bans of eve, whose times are not known in advance. */
static void watch_eve(demo *d) {
    user *eve = &d->users[EVE];
    bool banned = atomic_load(&eve->banned_until) > doorman_clock();
    if (banned == d->eve_is_banned) return;
    d->eve_is_banned = banned;
    d->bans += banned;
    d->phase = banned ? "20 of her requests were refused: eve is banned for four seconds"
                      : "the ban is over: eve is let in again";
}

static counts last_second(const user *u, int tick) {
    const counts *now = &u->samples[tick % SAMPLES], *then = &u->samples[(tick + 1) % SAMPLES];
    return (counts){now->asked - then->asked, now->granted - then->granted,
                    now->banned - then->banned};
}

/* ---- what is shown --------------------------------------------------------------------------- */

static void show_mark(const demo *d, int index) {
    if (marks[index].color) {
        screen_bar(&d->screen, marks[index].color, marks[index].sign, 1);
    } else {
        putchar(marks[index].sign);
    }
}

static void show_user(const demo *d, const user *u, int tick) {
    counts all = last_second(u, tick);
    printf("  %-8s%6lu%9lu%9lu  ", u->name, all.asked, all.granted, all.asked - all.granted);
    for (int i = 0; i < STRIP_COLUMNS; i++) show_mark(d, u->strip[i]);
    doorman_time left = atomic_load(&u->banned_until) - doorman_clock();
    if (left > 0) printf("  banned, %d s", (int)((left + DOORMAN_SECOND - 1) / DOORMAN_SECOND));
    printf("\x1b[K\n");
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  permits for \"login\", decided one by one%32d s\x1b[K\n",
           tick / TICKS_A_SECOND);
    printf("\x1b[K\n  user      asks  granted  refused  the last ten seconds\x1b[K\n");
    for (int i = 0; i < USERS; i++) show_user(d, &d->users[i], tick);
    printf("\x1b[K\n  ");
    for (int i = GRANTED; i <= BANNED; i++) {
        show_mark(d, i);
        printf(" %s   ", marks[i].text);
    }
    printf("\x1b[K\n\x1b[K\n  > %s\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

/* Shows granted/asked of each user in the last second, and its four marks. */
static void show_line(demo *d, int tick) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    if (tick % TICKS_A_SECOND || tick == 0) return;
    printf("%3d s ", tick / TICKS_A_SECOND);
    for (int i = 0; i < USERS; i++) {
        char cell[32];
        counts all = last_second(&d->users[i], tick);
        snprintf(cell, sizeof cell, "%lu/%lu", all.granted, all.asked);
        printf("%9s ", cell);
        for (int j = STRIP_COLUMNS - TICKS_A_SECOND; j < STRIP_COLUMNS; j++) {
            putchar(marks[d->users[i].strip[j]].sign);
        }
    }
    printf("\n");
    fflush(stdout);
}

static void show_start(demo *d) {
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("permits for \"login\"; granted/asked of each user in a second, and its quarters\n");
    printf("(# granted, + granted and refused, - refused, x banned)\n\n      ");
    for (int i = 0; i < USERS; i++) printf("%14s", d->users[i].name);
    printf("\n");
}

/* Prints the last line. Returns the exit code. */
static int show_result(const demo *d, bool ended) {
    counts all = {0, 0, 0};
    for (int i = 0; i < USERS; i++) {
        all.asked += atomic_load(&d->users[i].asked);
        all.granted += atomic_load(&d->users[i].granted);
        all.banned += atomic_load(&d->users[i].banned);
    }
    if (interrupted || !ended) {
        printf(interrupted ? "Stopped.\n" : "The demo ended early.\n");
        return interrupted ? 130 : 1;
    }
    printf("%lu permits: %lu granted, %lu refused, %lu of them in %d bans. %s\n", all.asked,
           all.granted, all.asked - all.granted, all.banned, d->bans,
           d->exceeded ? "A LIMIT WAS EXCEEDED." : "No limit was exceeded.");
    doorman_agent_info info;
    if (doorman_agent_read_info(d->agent, &info) == DOORMAN_OK) {
        printf("The agent sent %llu messages, and refused %llu permits by itself.\n",
               (unsigned long long)info.permits.messages,
               (unsigned long long)info.permits.refused_locally);
    }
    return d->exceeded || !all.granted;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Returns false if the demo cannot continue. */
static bool run_tick(demo *d, int tick, size_t *next) {
    for (int i = 0; i < USERS; i++) user_sample(d, &d->users[i], tick);
    watch_eve(d);
    for (; *next < sizeof story / sizeof *story; ++*next) {
        const struct event *event = &story[*next];
        if (event->second * TICKS_A_SECOND > tick) break;
        if (event->phase) d->phase = event->phase;
        if (!user_act(&d->users[event->user], event)) return false;
    }
    if (!server_runs(&d->server)) {
        server_show_log(&d->server);
        return false;
    }
    if (d->screen.terminal) show_table(d, tick);
    if (!d->screen.terminal) show_line(d, tick);
    return true;
}

/* Returns whether the demo has run to its end. */
static bool run(demo *d) {
    size_t next = 0;
    bool runs = true;
    doorman_time start = doorman_clock();
    for (int tick = 0; tick <= SECONDS * TICKS_A_SECOND && runs && !interrupted; tick++) {
        sleep_until(start + tick * TICK);
        runs = run_tick(d, tick, &next);
    }
    atomic_store(&d->stops, true);
    for (int i = 0; i < USERS; i++) {
        if (d->users[i].runs) pthread_join(d->users[i].thread, NULL);
    }
    return runs;
}

int main(int argc, char **argv) {
    static demo d = {.users = {[ANN] = {.name = "ann", .keys = {"ann"}, .rate = 2, .size = 6},
                               [BOB] = {.name = "bob", .keys = {"bob"}, .rate = 2, .size = 6},
                               [ACME] = {.name = "acme", .keys = {"acme"}, .rate = 20, .size = 20},
                               [TRIALS] = {.name = "trials",
                                           .keys = {"trial-1", "trial-2", "trial-3"},
                                           .rate = 3,
                                           .size = 3},
                               [EVE] = {.name = "eve", .keys = {"eve"}, .rate = 2, .size = 6}}};
    if (argc != 2) {
        fprintf(stderr, "usage: demo_permits SERVER\n");
        return 2;
    }
    catch_signals();
    for (int i = 0; i < USERS; i++) d.users[i].demo = &d;
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
