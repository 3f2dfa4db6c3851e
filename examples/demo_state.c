/* make demo STATE=1: a server that keeps its counters in a file, for twenty seconds. It is killed,
 * and later it is upgraded. Each time the next process knows what the users have used.
 *
 *     build/examples/demo_state build/doorman_server
 *
 * The table has a column for each of three processes. A column shows what its process decides, and
 * stays as it was when the process ended. Nobody reads the file except the server.
 *
 * The demo checks all the time that acme gets no more than its quota, that mallory gets nothing
 * after the ban, and that job-b does not get the GPU while job-a has it.
 */
#define DEMO_HAS_PERMITS
#include "demo.h"

enum { ACME, MALLORY, JOB_A, JOB_B, USERS };
enum { PROCESSES = 3, SECONDS = 20, TABLE_LINES = 13, BAR_COLUMNS = 10, CELL_COLUMNS = 17 };
enum { QUOTA = 1000, STEP = 50 }; /* units a day; units that acme uses at once */

/* The quota is for any 24 hours, so it does not matter if the demo runs at midnight. Holds have no
 * rows in the file. A process that does not know the holds of the one before it gives away no slot
 * until each of them was either renewed or has ended. The time to live is short, so that this takes
 * only seconds. */
static const char config[] =
    "{\"resources\": [\n"
    "  {\"identifier_glob\": \"export\", \"limits\": [{\"name\": \"quota\",\n"
    "   \"kind\": \"SLIDING_WINDOW\", \"limit\": 1000, \"window\": 86400}]},\n"
    "  {\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"few\",\n"
    "   \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.1, \"size\": 2,\n"
    "   \"ban\": {\"refusals\": 3, \"window\": 10, \"duration\": 600}}]},\n"
    "  {\"identifier_glob\": \"gpu\", \"limits\": [{\"name\": \"slots\", \"per\": \"resource\",\n"
    "   \"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 4}]}]}\n";

/* What a process has decided last for a user. */
typedef struct cell {
    enum { UNKNOWN, GRANTED, REFUSED, BANNED, RELEASED } state;
    double used;           /* acme: units of the quota */
    doorman_time ban_left; /* BANNED */
} cell;

typedef struct user {
    const char *name, *about, *resource;
    cell cells[PROCESSES];
    double granted; /* units, by all processes */
    bool banned;    /* a process has said so */
    struct demo *demo;
} user;

enum act { USE_HALF, KILL, START, STOP, USE_REST, RELEASE };

static const struct event {
    double second;
    enum act act;
    const char *phase;
} story[] = {
    {0, USE_HALF, "acme uses half of its quota; mallory guesses passwords, and is banned"},
    {6, KILL, "kill -9: the server is gone in the middle of its work"},
    {7, START, "a new process: the same quota, the same ban, and job-a keeps its GPU"},
    {10.5, STOP, "an upgrade: the server is told to stop, and the next version starts"},
    {13.5, USE_REST, "acme uses the rest of its quota: the other half, and no more"},
    {15.5, RELEASE, "job-a gives the GPU back: only now job-b gets it"},
};

typedef struct demo {
    server server;
    doorman_agent *agent;
    user users[USERS];
    pthread_mutex_t mutex;    /* guards the users, and the next members */
    int process;              /* the number of the process, from 0 */
    uint64_t hold;            /* of job-a; 0: it has none */
    doorman_time known_until; /* when the hold ends, as the process before this one has said */
    bool let_in, granted_twice;
    bool is_stopping; /* the demo has sent SIGTERM to the server */
    bool has_ended;   /* the server has ended as intended, and the next one is not started */
    bool uses_rest, released;
    const char *ends[PROCESSES]; /* how each process has ended; NULL: it has not */
    screen screen;
    const char *phase, *phase_shown;
} demo;

/* ---- the users ------------------------------------------------------------------------------- */

/* Notes a decision of a server. Others are not shown: those of the agent while no server answers,
 * and those that it remembers. */
static void user_note(user *u, const doorman_acquired *decision) {
    demo *d = u->demo;
    int index = (int)(u - d->users);
    cell *now = &u->cells[d->process];
    if (decision->decided_by != DOORMAN_BY_SERVER) return;
    if (!decision->granted && decision->reason == DOORMAN_REASON_LEARNING && index == ACME) return;
    now->state = decision->granted ? GRANTED : REFUSED;
    if (decision->quota > 0) now->used = decision->quota - decision->remaining;
    if (decision->granted) u->granted += decision->units[0];
    if (!decision->granted && decision->reason == DOORMAN_REASON_BANNED) {
        now->state = BANNED;
        now->ban_left = decision->retry_after;
        u->banned = true;
    }
    if (index == MALLORY && u->banned && decision->granted) d->let_in = true;
    if (index == JOB_A && decision->granted) d->hold = decision->hold;
    if (index == JOB_B && decision->granted && d->hold) d->granted_twice = true;
}

static void on_decided(void *context, doorman_status status, const doorman_acquired *decision) {
    user *u = context;
    pthread_mutex_lock(&u->demo->mutex);
    if (status == DOORMAN_OK) user_note(u, decision);
    pthread_mutex_unlock(&u->demo->mutex);
}

/* Asks for a permit, and does not wait for the decision. */
static void user_ask(user *u, double cost, bool holds) {
    const doorman_permit_item item = {.resource_id = u->resource, .key = u->name, .cost = cost};
    uint64_t number = 0;
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .detail = true, .hold = holds ? &number : NULL};
    (void)doorman_agent_acquire_async(u->demo->agent, &request, DOORMAN_SECOND, on_decided, u,
                                      NULL);
}

/* Shows the hold of job-a when the process has renewed it. The agent asks for that by itself. */
static void watch_hold(demo *d) {
    doorman_held held = {0};
    if (!d->hold || d->released) return;
    (void)doorman_agent_read_hold(d->agent, d->hold, &held);
    if (held.gone) {
        d->hold = 0;
        d->users[JOB_A].cells[d->process].state = REFUSED;
    } else if (held.ends_at > d->known_until) {
        d->users[JOB_A].cells[d->process].state = GRANTED;
    }
}

/* Lets the users ask, four times a second. */
static void users_ask(demo *d) {
    pthread_mutex_lock(&d->mutex);
    watch_hold(d);
    bool uses = d->uses_rest || d->users[ACME].granted < QUOTA / 2.0;
    bool wants_gpu = !d->hold && !d->released;
    bool rival = d->users[JOB_B].granted == 0 && !wants_gpu;
    pthread_mutex_unlock(&d->mutex);
    user_ask(&d->users[ACME], uses ? STEP : 0, false);
    user_ask(&d->users[MALLORY], 1, false);
    if (wants_gpu) user_ask(&d->users[JOB_A], 1, true);
    if (rival) user_ask(&d->users[JOB_B], 1, true);
}

/* ---- the server ------------------------------------------------------------------------------ */

static bool start_server(demo *d, const char *program) {
    d->server.has_state = true;
    if (!server_create(&d->server, program, config)) return false;
    const char *addresses[] = {d->server.address};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    options.permits.max_pause = DOORMAN_SECOND;
    doorman_error error = {0};
    if (doorman_agent_start(&d->agent, &options, &error) == DOORMAN_OK) return true;
    fprintf(stderr, "demo: the agent cannot start: %s\n", error.text);
    return false;
}

/* Starts the next process, which gets the next column. */
static void start_next(demo *d) {
    pthread_mutex_lock(&d->mutex);
    d->process++;
    d->has_ended = d->is_stopping = false;
    pthread_mutex_unlock(&d->mutex);
    server_launch(&d->server);
}

static void end_process(demo *d, const char *how) {
    doorman_held held = {0};
    (void)doorman_agent_read_hold(d->agent, d->hold, &held);
    pthread_mutex_lock(&d->mutex);
    d->known_until = held.ends_at;
    d->ends[d->process] = how;
    d->has_ended = true;
    pthread_mutex_unlock(&d->mutex);
}

/* Returns false if the server has ended by itself. */
static bool watch_server(demo *d) {
    if (d->has_ended || server_runs(&d->server)) return true;
    if (!d->is_stopping) {
        server_show_log(&d->server);
        return false;
    }
    end_process(d, "stopped");
    start_next(d);
    return true;
}

static void act(demo *d, const struct event *event) {
    d->phase = event->phase;
    switch (event->act) {
    case KILL:
        server_stop(&d->server, SIGKILL);
        end_process(d, "killed");
        break;
    case START: start_next(d); break;
    case STOP:
        d->is_stopping = true;
        kill(d->server.process, SIGTERM);
        break;
    case USE_REST: d->uses_rest = true; break;
    case RELEASE:
        pthread_mutex_lock(&d->mutex);
        (void)doorman_agent_release(d->agent, d->hold);
        d->hold = 0;
        d->released = true;
        d->users[JOB_A].cells[d->process].state = RELEASED;
        pthread_mutex_unlock(&d->mutex);
        break;
    case USE_HALF: break;
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* Describes a cell, apart from the bar of acme. */
static const char *cell_text(int index, const cell *c, char room[32]) {
    static const char *const of_job[] = {
        [UNKNOWN] = "", [GRANTED] = "has it", [REFUSED] = "refused", [RELEASED] = "gave it back"};
    room[0] = 0;
    if (c->state == UNKNOWN) return room;
    if (index == ACME) {
        snprintf(room, 32, "%4.0f ", c->used);
    } else if (c->state == BANNED) {
        snprintf(room, 32, "banned, %d s", (int)(c->ban_left / DOORMAN_SECOND));
    } else if (index == MALLORY) {
        snprintf(room, 32, "%s", c->state == GRANTED ? "tries" : "refused");
    } else {
        snprintf(room, 32, "%s", index == JOB_A && c->state == REFUSED ? "asks" : of_job[c->state]);
    }
    return room;
}

static void show_cell(const demo *d, int index, const cell *c) {
    char room[32];
    int columns = printf("%s", cell_text(index, c, room));
    if (index == ACME && c->state != UNKNOWN) {
        int full = (int)(c->used * BAR_COLUMNS / QUOTA + 0.5);
        screen_bar(&d->screen, 2, '#', full);
        for (int i = full; i < BAR_COLUMNS; i++) putchar('.');
        columns += BAR_COLUMNS;
    }
    printf("%*s", CELL_COLUMNS - columns, "");
}

static const char *process_text(const demo *d, int process) {
    if (d->ends[process]) return d->ends[process];
    return process == d->process ? "runs" : "";
}

static void show_table(const demo *d, int tick) {
    if (tick > 0) printf("\x1b[%dA", TABLE_LINES);
    printf("\x1b[K\n  a server whose counters last (--state FILE)%30d s\x1b[K\n\x1b[K\n%26s",
           tick / TICKS_A_SECOND, "");
    for (int i = 0; i < PROCESSES; i++) {
        printf("process %d%*s", i + 1, CELL_COLUMNS - (int)strlen("process 1"), "");
    }
    printf("\x1b[K\n%26s", "");
    for (int i = 0; i < PROCESSES; i++) printf("%-*s", CELL_COLUMNS, process_text(d, i));
    printf("\x1b[K\n");
    for (int i = 0; i < USERS; i++) {
        printf("  %-9s%-15s", d->users[i].name, d->users[i].about);
        for (int k = 0; k < PROCESSES; k++) show_cell(d, i, &d->users[i].cells[k]);
        printf("\x1b[K\n");
    }
    printf("\x1b[K\n\x1b[K\n  > %s\x1b[K\n\x1b[K\n", d->phase);
    fflush(stdout);
}

static void show_line(demo *d, int tick) {
    if (d->phase_shown != d->phase) printf("      > %s\n", d->phase);
    d->phase_shown = d->phase;
    if (tick % TICKS_A_SECOND || tick == 0) return;
    printf("%3d s  process %d %-8s", tick / TICKS_A_SECOND, d->process + 1,
           process_text(d, d->process));
    for (int i = 0; i < USERS; i++) {
        char room[32];
        const char *text = cell_text(i, &d->users[i].cells[d->process], room);
        printf("%s%s: %-13s", i ? "  " : "", d->users[i].name, text[0] ? text : "-");
    }
    printf("\n");
    fflush(stdout);
}

static void show_start(demo *d) {
    d->screen = screen_open(TABLE_LINES);
    if (d->screen.terminal) return;
    printf("a server keeps counters in a file: what acme has used of 1000, and who is refused\n");
}

/* Prints the last lines. Returns the exit code. */
static int show_result(const demo *d, bool ended) {
    double all = d->users[ACME].granted;
    if (interrupted || !ended) {
        printf(interrupted ? "Stopped.\n" : "The demo ended early.\n");
        return interrupted ? 130 : 1;
    }
    printf("Three processes have granted acme %.0f units together, and its quota is %d.\n", all,
           QUOTA);
    printf("mallory was %slet in after the ban.\n", d->let_in ? "" : "never ");
    printf("job-b got the GPU %s.\n", d->granted_twice ? "WHILE JOB-A HAD IT"
                                      : d->users[JOB_B].granted > 0
                                          ? "only after job-a gave it back"
                                          : "not yet");
    return all > QUOTA || all <= QUOTA / 2.0 || d->let_in || d->granted_twice;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Returns false if the demo cannot continue. */
static bool run_tick(demo *d, int tick, size_t *next) {
    for (; *next < sizeof story / sizeof *story; ++*next) {
        if (story[*next].second * TICKS_A_SECOND > tick) break;
        act(d, &story[*next]);
    }
    if (!watch_server(d)) return false;
    users_ask(d);
    pthread_mutex_lock(&d->mutex);
    if (d->screen.terminal) show_table(d, tick);
    if (!d->screen.terminal) show_line(d, tick);
    pthread_mutex_unlock(&d->mutex);
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
    return runs;
}

int main(int argc, char **argv) {
    static demo d = {
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .users = {[ACME] = {.name = "acme", .about = "1,000 a day", .resource = "export"},
                  [MALLORY] = {.name = "mallory", .about = "a few logins", .resource = "login"},
                  [JOB_A] = {.name = "job-a", .about = "the only GPU", .resource = "gpu"},
                  [JOB_B] = {.name = "job-b", .about = "the only GPU", .resource = "gpu"}}};
    if (argc != 2) {
        fprintf(stderr, "usage: demo_state SERVER\n");
        return 2;
    }
    catch_signals();
    for (int i = 0; i < USERS; i++) d.users[i].demo = &d;
    int status = 1;
    if (start_server(&d, argv[1])) {
        show_start(&d);
        bool ended = run(&d);
        screen_close(&d.screen);
        doorman_agent_stop(d.agent); /* no decision comes any more */
        d.agent = NULL;
        status = show_result(&d, ended);
    }
    doorman_agent_stop(d.agent);
    server_destroy(&d.server);
    return status;
}
