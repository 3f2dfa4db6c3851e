/* doorman_server: a node of Doorman's tree as a process of its own. It reads messages from sockets,
 * hands them to doorman.h, and sends back what that says: every decision about capacity is taken
 * there.
 *
 * nng calls lane_step on its own threads, and the answer is made there, since handing a request to
 * another thread costs more than deciding it. One mutex guards the server object, and is held for a
 * decision alone: reading and writing go on beside it. The main thread waits for signals, and once
 * a second does what has come due. Where the node has a parent, one more thread asks that for
 * capacity.
 *
 * G8 A node with a parent has its resources from there: a configuration beside it is wrong use.
 * T4 At a node's first request for a resource it asks its parent at once.
 * V1 SIGHUP loads the configuration anew; one that is wrong is refused, and the last one stays.
 *    SIGTERM and SIGINT finish what is in progress, and end the process with exit code 0.
 * V5 A message is 4 MiB at most. A peer that sends rubbish, or goes away half-way, costs no one
 *    else anything.
 * V6 Log lines are logfmt on standard error. A trouble that repeats is said once a minute.
 * V7 Exit codes: 0 done, 1 failure, 2 wrong use; each with one line that says what, and what to do.
 *
 * In order: flags, log, configuration, state, the way of one request, upward, sockets, signals,
 * main. Every function has one way out; `enum outcome` carries what is to become of the process to
 * the end. */

#define _GNU_SOURCE /* getopt_long, sigtimedwait */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/util/platform.h>

#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG /* for the carrier, the clock and random bits */
#include "doorman.h"

/* What is to become of the process; but for GO_ON, its exit code. */
enum outcome { GO_ON = -1, DONE = 0, FAILED = 1, WRONG_USE = 2 };

/* Says in one line on standard error why the process does not do what it was told. */
__attribute__((format(printf, 2, 3))) static enum outcome refuse(enum outcome outcome,
                                                                 const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("doorman_server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs(outcome == WRONG_USE ? "; try 'doorman_server --help'\n" : "\n", stderr);
    va_end(arguments);
    return outcome;
}

/* ---- >>flags -------------------------------------------------------------------------------- */

enum {
    FLAG_CONFIG,
    FLAG_LISTEN,
    FLAG_PARENT,
    FLAG_ID,
    FLAG_NODE,
    FLAG_ADVERTISE,
    FLAG_LOG_LEVEL,
    FLAG_CHECK_CONFIG,
    FLAG_VERSION,
    FLAG_HELP,
    FLAG_COUNT
};
#define FLAG_FIRST 256 /* getopt's code for flag 0: above all characters */
#define ADDRESS_MAX 16 /* of one flag; as many parents as the library takes */
#define LISTEN_DEFAULT "tcp://127.0.0.1:15000"

static const struct flag {
    const char *name, *argument; /* NULL: takes none */
    const char *variable;        /* NULL: none in the environment */
    const char *help;
} flags[FLAG_COUNT] = {
    [FLAG_CONFIG] = {"config", "FILE", "DOORMAN_CONFIG",
                     "the resources and how each is shared; required, but for --parent"},
    [FLAG_LISTEN] = {"listen", "URL[,URL...]", "DOORMAN_LISTEN",
                     "where to answer; may be given more than once (default " LISTEN_DEFAULT ")"},
    [FLAG_PARENT] = {"parent", "URL[,URL...]", "DOORMAN_PARENT",
                     "the servers of the parent node, which gives this one its capacity, and its "
                     "resources\n        in place of --config; may be given more than once "
                     "(default none: a root)"},
    [FLAG_ID] = {"id", "NAME", "DOORMAN_ID",
                 "what this process is called (default HOST:PORT of the first --listen)"},
    [FLAG_NODE] = {"node", "NAME", "DOORMAN_NODE",
                   "the node of the tree that it serves, unlike any other's; named in leases, and "
                   "to be the same\n        after a restart (default the id)"},
    [FLAG_ADVERTISE] = {"advertise", "URL", "DOORMAN_ADVERTISE",
                        "the address that others reach it at (default the first --listen)"},
    [FLAG_LOG_LEVEL] = {"log-level", "LEVEL", "DOORMAN_LOG_LEVEL",
                        "debug, info, warning or error (default info)"},
    [FLAG_CHECK_CONFIG] = {"check-config", NULL, "DOORMAN_CHECK_CONFIG",
                           "say whether the configuration is right, and end (default no)"},
    [FLAG_VERSION] = {"version", NULL, NULL, "print the version, and end"},
    [FLAG_HELP] = {"help", NULL, NULL, "print this, and end"},
};

enum level { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARNING, LEVEL_ERROR, LEVEL_COUNT };
static const char *const level_names[LEVEL_COUNT] = {"debug", "info", "warning", "error"};

struct addresses {
    char *items[ADDRESS_MAX];
    size_t count;
};

/* What the flags and the environment say; the texts are theirs, but for the addresses. */
struct settings {
    bool given[FLAG_COUNT];
    const char *config, *id, *node, *advertise;
    struct addresses listen, parents;
    enum level log_level;
    bool check_config;
};

static enum outcome print_help(void) {
    puts("Usage: doorman_server --config FILE [FLAG]...\n"
         "       doorman_server --parent URL [FLAG]...\n"
         "Hands out leases on shared capacity to the clients of Doorman.\n"
         "\n"
         "Every flag that names a variable can be set in the environment too; the flag wins.\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const struct flag *flag = &flags[i];
        printf("  --%s%s%s", flag->name, flag->argument ? " " : "",
               flag->argument ? flag->argument : "");
        if (flag->variable) printf("   [%s]", flag->variable);
        printf("\n        %s\n", flag->help);
    }
    puts("\n"
         "Signals: SIGHUP loads the configuration anew; one that is wrong is refused, and the\n"
         "last one stays. SIGTERM and SIGINT end the server.\n"
         "Exit code: 0 done, 1 failure, 2 wrong use.");
    return DONE;
}

static enum outcome print_version(void) {
    puts("doorman_server " DOORMAN_VERSION);
    return DONE;
}

static enum outcome addresses_add(struct addresses *addresses, int flag, const char *text,
                                  size_t bytes) {
    enum outcome outcome = GO_ON;
    if (bytes == 0) {
        outcome = refuse(WRONG_USE, "--%s needs addresses that are not empty", flags[flag].name);
    } else if (addresses->count == ADDRESS_MAX) {
        outcome =
            refuse(WRONG_USE, "more than %d addresses of --%s", ADDRESS_MAX, flags[flag].name);
    } else if ((addresses->items[addresses->count] = strndup(text, bytes)) == NULL) {
        outcome = refuse(FAILED, "out of memory");
    } else {
        addresses->count++;
    }
    return outcome;
}

/* One value of a flag, with commas between the addresses; the next one adds to them. */
static enum outcome addresses_add_list(struct addresses *addresses, int flag, const char *list) {
    enum outcome outcome = GO_ON;
    while (outcome == GO_ON && list) {
        const char *comma = strchr(list, ',');
        size_t bytes = comma ? (size_t)(comma - list) : strlen(list);
        outcome = addresses_add(addresses, flag, list, bytes);
        list = comma ? comma + 1 : NULL;
    }
    return outcome;
}

static void addresses_uninit(struct addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) free(addresses->items[i]);
}

/* As one text, with commas between. */
static void addresses_join(char *const *items, size_t count, char *text, size_t room) {
    for (size_t i = 0, bytes = 0; i < count && bytes < room; i++) {
        bytes += (size_t)snprintf(text + bytes, room - bytes, "%s%s", i ? "," : "", items[i]);
    }
}

static enum outcome settings_set_log_level(struct settings *settings, const char *name) {
    enum outcome outcome = GO_ON;
    unsigned level = 0;
    while (level < LEVEL_COUNT && strcmp(name, level_names[level]) != 0) level++;
    settings->log_level = (enum level)level;
    if (level == LEVEL_COUNT) {
        outcome = refuse(WRONG_USE, "'%s' is no log level", name);
    }
    return outcome;
}

/* The flag itself has no value: it means yes. */
static enum outcome settings_set_check_config(struct settings *settings, const char *value) {
    enum outcome outcome = GO_ON;
    if (!value || strcmp(value, "1") == 0 || strcmp(value, "true") == 0) {
        settings->check_config = true;
    } else if (strcmp(value, "0") != 0 && strcmp(value, "false") != 0) {
        outcome = refuse(WRONG_USE, "DOORMAN_CHECK_CONFIG is '%s', not 1, true, 0 or false", value);
    }
    return outcome;
}

static enum outcome settings_store(struct settings *settings, int flag, const char *value) {
    enum outcome outcome = GO_ON;
    switch (flag) {
    case FLAG_CONFIG: settings->config = value; break;
    case FLAG_LISTEN: outcome = addresses_add_list(&settings->listen, flag, value); break;
    case FLAG_PARENT: outcome = addresses_add_list(&settings->parents, flag, value); break;
    case FLAG_ID: settings->id = value; break;
    case FLAG_NODE: settings->node = value; break;
    case FLAG_ADVERTISE: settings->advertise = value; break;
    case FLAG_LOG_LEVEL: outcome = settings_set_log_level(settings, value); break;
    case FLAG_CHECK_CONFIG: outcome = settings_set_check_config(settings, value); break;
    case FLAG_VERSION: outcome = print_version(); break;
    default: outcome = print_help(); break;
    }
    return outcome;
}

static enum outcome settings_set(struct settings *settings, int flag, const char *value) {
    enum outcome outcome = GO_ON;
    settings->given[flag] = true;
    if (value && !*value) {
        outcome = refuse(WRONG_USE, "--%s needs a value that is not empty", flags[flag].name);
    } else {
        outcome = settings_store(settings, flag, value);
    }
    return outcome;
}

/* Why getopt_long did not take an argument. */
static enum outcome refuse_argument(int why, char **argv) {
    enum outcome outcome = WRONG_USE;
    if (why == ':') {
        outcome = refuse(WRONG_USE, "--%s needs a value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt >= FLAG_FIRST) {
        outcome = refuse(WRONG_USE, "--%s takes no value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt != 0) {
        outcome = refuse(WRONG_USE, "unknown flag '-%c'", optopt);
    } else {
        outcome = refuse(WRONG_USE, "unknown flag '%s'", argv[optind - 1]);
    }
    return outcome;
}

static enum outcome settings_read_flags(struct settings *settings, int argc, char **argv) {
    struct option options[FLAG_COUNT + 1] = {{0}};
    for (int i = 0; i < FLAG_COUNT; i++) {
        options[i].name = flags[i].name;
        options[i].has_arg = flags[i].argument ? required_argument : no_argument;
        options[i].val = FLAG_FIRST + i;
    }
    enum outcome outcome = GO_ON;
    int code = 0;
    opterr = 0;
    while (outcome == GO_ON && (code = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        outcome = code < FLAG_FIRST ? refuse_argument(code, argv)
                                    : settings_set(settings, code - FLAG_FIRST, optarg);
    }
    if (outcome == GO_ON && optind < argc) {
        outcome = refuse(WRONG_USE, "unexpected argument '%s'", argv[optind]);
    }
    return outcome;
}

/* Variables stand in for the flags that were not given. An empty one is as good as none. */
static enum outcome settings_read_environment(struct settings *settings) {
    enum outcome outcome = GO_ON;
    for (int i = 0; outcome == GO_ON && i < FLAG_COUNT; i++) {
        const char *variable = flags[i].variable;
        const char *value = variable && !settings->given[i] ? getenv(variable) : NULL;
        if (!value || !*value) continue;
        outcome = settings_set(settings, i, value);
    }
    return outcome;
}

/* Where the resources come from: one or the other (G8). */
static enum outcome settings_check_source(const struct settings *settings) {
    enum outcome outcome = GO_ON;
    bool has_parent = settings->parents.count > 0;
    if (settings->config && has_parent) {
        outcome = refuse(WRONG_USE, "--config beside --parent: a node with a parent has its "
                                    "resources from there; give one of the two");
    } else if (!settings->config && !has_parent) {
        outcome =
            refuse(WRONG_USE, "no configuration: give --config FILE, or --parent URL for a node "
                              "below another one");
    } else if (!settings->config && settings->check_config) {
        outcome = refuse(WRONG_USE, "no configuration to check: give --config FILE");
    }
    return outcome;
}

static enum outcome settings_read(struct settings *settings, int argc, char **argv) {
    settings->log_level = LEVEL_INFO;
    enum outcome outcome = settings_read_flags(settings, argc, argv);
    if (outcome == GO_ON) outcome = settings_read_environment(settings);
    if (outcome == GO_ON) outcome = settings_check_source(settings);
    if (outcome == GO_ON && settings->listen.count == 0) {
        outcome = addresses_add_list(&settings->listen, FLAG_LISTEN, LISTEN_DEFAULT);
    }
    return outcome;
}

static void settings_uninit(struct settings *settings) {
    addresses_uninit(&settings->listen);
    addresses_uninit(&settings->parents);
}

/* ---- >>log ---------------------------------------------------------------------------------- */
/* One line is one event, in logfmt: key=value, values in quotes where they need them (V6). */

struct line {
    char text[4096]; /* what does not fit is cut off */
    size_t bytes;
};

static void line_add(struct line *line, const char *text, size_t bytes) {
    size_t room = sizeof line->text - line->bytes;
    if (bytes > room) bytes = room;
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

/* One character of a value in quotes. Control characters must not reach a terminal. */
static void line_add_escaped(struct line *line, unsigned char character) {
    char escape[8];
    int bytes = 1;
    if (character == '"' || character == '\\') {
        bytes = snprintf(escape, sizeof escape, "\\%c", character);
    } else if (character == '\n') {
        bytes = snprintf(escape, sizeof escape, "\\n");
    } else if (character < ' ' || character == 0x7f) {
        bytes = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)character);
    } else {
        escape[0] = (char)character;
    }
    line_add(line, escape, (size_t)bytes);
}

static void line_add_pair(struct line *line, const char *key, const char *value) {
    bool quoted = !*value;
    for (const char *at = value; *at; at++) {
        quoted = quoted || *at <= ' ' || strchr("\"=\\\x7f", *at);
    }
    line_add(line, " ", line->bytes > 0);
    line_add(line, key, strlen(key));
    line_add(line, "=\"", quoted ? 2 : 1);
    for (const char *at = value; *at; at++) {
        if (quoted) {
            line_add_escaped(line, (unsigned char)*at);
        } else {
            line_add(line, at, 1);
        }
    }
    line_add(line, "\"", quoted);
}

static void line_add_time(struct line *line) {
    struct timespec now;
    struct tm utc;
    char seconds[32], text[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
    line_add_pair(line, "time", text);
}

#define END ((const char *)0) /* of the pairs */

/* Logs a message and pairs of key and value, both texts, up to END. The line goes out in one write,
 * so that lines of two threads, or of two processes, do not mix. */
__attribute__((sentinel)) static void say(const struct settings *settings, enum level level,
                                          const char *message, ...) {
    struct line line = {.bytes = 0};
    va_list pairs;
    va_start(pairs, message);
    if (level >= settings->log_level) {
        line_add_time(&line);
        line_add_pair(&line, "level", level_names[level]);
        line_add_pair(&line, "msg", message);
        for (const char *key = NULL; (key = va_arg(pairs, const char *)) != NULL;) {
            line_add_pair(&line, key, va_arg(pairs, const char *));
        }
        if (line.bytes == sizeof line.text) line.bytes--;
        line_add(&line, "\n", 1);
        fwrite(line.text, 1, line.bytes, stderr);
    }
    va_end(pairs);
}

/* ---- >>configuration ------------------------------------------------------------------------ */

/* Reads one byte more than there may be, so that a file that is too large is seen to be. */
static doorman_status config_parse(doorman_config **out, FILE *file, doorman_error *error) {
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    char *text = (char *)malloc(DOORMAN_MESSAGE_BYTES_MAX + 1);
    size_t bytes = text ? fread(text, 1, DOORMAN_MESSAGE_BYTES_MAX + 1, file) : 0;
    if (ferror(file)) {
        snprintf(error->text, sizeof error->text, "cannot be read: %s", strerror(errno));
        status = DOORMAN_UNAVAILABLE;
    } else if (text) {
        status = doorman_json_config(out, text, bytes, error);
    }
    free(text);
    return status;
}

/* Loads a configuration, or says in error what is wrong with the file. */
static bool config_load(doorman_config **out, const char *path, doorman_error *error) {
    doorman_status status = DOORMAN_UNAVAILABLE;
    FILE *file = fopen(path, "rb");
    error->text[0] = 0;
    if (file) {
        status = config_parse(out, file, error);
        fclose(file);
    } else {
        snprintf(error->text, sizeof error->text, "cannot be opened: %s", strerror(errno));
    }
    if (status != DOORMAN_OK && !error->text[0]) {
        snprintf(error->text, sizeof error->text, "%s", doorman_status_text(status));
    }
    return status == DOORMAN_OK;
}

static enum outcome refuse_config(const char *path, const doorman_error *error) {
    return refuse(FAILED, "%s: %s; correct it, or give another --config", path, error->text);
}

/* A new master that learns for less than the longest lease of its predecessor may give away what is
 * still in use (G6). */
static void warn_of_learning(const char *path, const doorman_config *config) {
    const double drift = 0.05; /* the library's default */
    size_t count = 0;
    const doorman_template *templates = doorman_config_templates(config, &count);
    for (size_t i = 0; i < count; i++) {
        const doorman_algorithm *algorithm = &templates[i].algorithm;
        double learning = (double)algorithm->learning_mode_duration / (double)DOORMAN_SECOND;
        double lease = (double)algorithm->lease_length * (1 + drift) / (double)DOORMAN_SECOND;
        if (algorithm->handover == DOORMAN_CONFIRMED && algorithm->has_learning_mode_duration &&
            learning < lease) {
            fprintf(stderr,
                    "%s: warning: resources[%zu].algorithm.learning_mode_duration: %g s is shorter "
                    "than the longest lease, %g s with drift: after a change of master more than "
                    "the capacity may be in use\n",
                    path, i, learning, lease);
        }
    }
}

static enum outcome check_config(const struct settings *settings) {
    enum outcome outcome = DONE;
    doorman_config *config = NULL;
    doorman_error error;
    if (config_load(&config, settings->config, &error)) {
        size_t count = 0;
        doorman_config_templates(config, &count);
        warn_of_learning(settings->config, config);
        printf("%s: ok, %zu resources\n", settings->config, count);
    } else {
        outcome = refuse_config(settings->config, &error);
    }
    doorman_config_destroy(config);
    return outcome;
}

/* ---- >>state -------------------------------------------------------------------------------- */

/* A lane takes one request at a time through the server. There are more of them than threads, so
 * that there is always one to receive. */
#define LANE_COUNT 32

/* A lane waits for a peer only when that peer asks on and on, and does not read the answers: then
 * nng holds on to one answer after the other, each in its lane. When the time is over the peer
 * loses its connection, and all its lanes are free at once. The first half of the lanes can afford
 * to be patient; the rest cannot, or one such peer would keep all the others waiting. But threads
 * of a busy machine wait for tens of milliseconds themselves, and that is no fault of a peer. */
#define SEND_TIMEOUT_MS 250
#define SEND_TIMEOUT_SHORT_MS 50

/* For so long further requests are told that the server is stopping, while answers leave. */
#define STOPPING_MS 250

/* For so long closing the sockets may take, see leave. */
#define CLOSING_SECONDS 2

#define QUIET (60 * DOORMAN_SECOND) /* between two lines about the same trouble */

struct lane {
    struct service *service;
    nng_ctx context;
    nng_aio *aio;
    bool sending;
    doorman_json_exchange exchange;
};

/* What others can cause at any rate: the kinds of doorman_event, and some of our own. */
enum {
    TROUBLE_REFUSED = DOORMAN_EVENT_COUNT,
    TROUBLE_PARENT_SILENT,
    TROUBLE_PARENT_ANSWER,
    TROUBLE_COUNT
};
static const char *const trouble_texts[TROUBLE_COUNT] = {
    [DOORMAN_EVENT_UNMATCHED] = "a resource that no template matches was asked for",
    [DOORMAN_EVENT_UNKNOWN_CLAIM] = "a holder named a lease that is not known here",
    [DOORMAN_EVENT_EXCESS_CLAIM] = "a holder claims more than it was given",
    [DOORMAN_EVENT_EXPIRED] = "a lease has expired",
    [DOORMAN_EVENT_FULL] = "a bound was reached, and a request refused",
    [DOORMAN_EVENT_UNKNOWN_KIND] = "the parent names an algorithm that is not known here",
    [TROUBLE_REFUSED] = "a message was refused",
    [TROUBLE_PARENT_SILENT] = "the parent cannot be reached",
    [TROUBLE_PARENT_ANSWER] = "the parent refuses, or its answer makes no sense",
};

struct trouble {
    uint64_t unsaid_count;
    doorman_time quiet_until;
};

/* The way to the parent; guarded by the lock of the service, but for the carrier, which is of its
 * thread. */
struct upward {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    doorman_carrier *carrier;
    doorman_time wakes_at; /* when the thread will look at what is due; 0: there is none asleep */
    bool news;             /* the carrier has something */
    bool answers;          /* the parent did, the last time */
    size_t leased_count, resource_count; /* as said last */
};

struct service {
    const struct settings *settings;
    const char *id, *node, *advertise;
    nng_socket socket;
    char *urls[ADDRESS_MAX]; /* as they came out: a port of 0 has become a real one */
    size_t url_count;
    struct lane lanes[LANE_COUNT];
    unsigned sending_count; /* of the lanes; atomic */
    pthread_mutex_t lock;   /* of all that follows, while lanes run */
    doorman_config *config;
    doorman_server *server;
    struct trouble troubles[TROUBLE_COUNT];
    bool stopping;
    struct upward upward;
};

/* Says what has not been said yet of a trouble, once a minute (V6).
 *   key, value   what the last one was about; may be NULL
 *   cause        and who caused it, or why; may be NULL */
static void trouble_say(struct service *service, int kind, const char *key, const char *value,
                        const char *cause, doorman_time now) {
    struct trouble *trouble = &service->troubles[kind];
    const char *cause_key = kind < DOORMAN_EVENT_COUNT ? "holder" : "error";
    if (trouble->unsaid_count > 0 && now >= trouble->quiet_until) {
        char count[24];
        snprintf(count, sizeof count, "%" PRIu64, trouble->unsaid_count);
        say(service->settings, LEVEL_WARNING, trouble_texts[kind], "count", count, key, value,
            cause ? cause_key : END, cause, END);
        trouble->unsaid_count = 0;
        trouble->quiet_until = now + QUIET;
    }
}

/* Called by the server object, with the lock held. */
static void on_event(void *context, const doorman_event *event) {
    struct service *service = (struct service *)context;
    if (event->kind == DOORMAN_EVENT_EXPIRED) {
        char amount[32];
        snprintf(amount, sizeof amount, "%.15g", event->amount);
        say(service->settings, LEVEL_DEBUG, trouble_texts[event->kind], "resource",
            event->resource_id, "holder", event->holder_id, "amount", amount, END);
    } else {
        service->troubles[event->kind].unsaid_count++;
        trouble_say(service, (int)event->kind, "resource", event->resource_id, event->holder_id,
                    doorman_clock());
    }
}

/* ---- >>request ------------------------------------------------------------------------------ */

/* cJSON makes two or three small blocks of each value. malloc and free of them are a quarter of the
 * time that it takes, so each thread has memory to cut them from, one after the other, which is
 * whole again when the last of them is freed. It is enough for a request of 250 resources; for more
 * there are further pieces, which go back with the last block, so that a message of 4 MiB leaves
 * nothing taken. A tree must be freed by the thread that made it, as all here are. */
#define ARENA_BYTES ((size_t)256 << 10)
#define PIECE_BYTES ((size_t)1 << 20)

struct piece {
    struct piece *previous;
};

static _Thread_local struct arena {
    _Alignas(max_align_t) char memory[ARENA_BYTES];
    char *at; /* what is left, of the memory above or of the last piece */
    size_t left, block_count;
    struct piece *last;
} arena;

/* As much as the strictest alignment takes. */
static size_t arena_round(size_t bytes) {
    const size_t unit = _Alignof(max_align_t);
    return (bytes + unit - 1) / unit * unit;
}

static bool arena_grow(size_t bytes) {
    size_t head = arena_round(sizeof(struct piece));
    size_t all = bytes > PIECE_BYTES - head ? head + bytes : PIECE_BYTES;
    struct piece *piece = (struct piece *)malloc(all);
    if (piece) {
        piece->previous = arena.last;
        arena.last = piece;
        arena.at = (char *)piece + head;
        arena.left = all - head;
    }
    return piece != NULL;
}

static void *arena_malloc(size_t bytes) {
    size_t rounded = arena_round(bytes);
    void *block = NULL;
    if (arena.block_count == 0) {
        arena.at = arena.memory;
        arena.left = ARENA_BYTES;
    }
    if (rounded <= arena.left || arena_grow(rounded)) {
        block = arena.at;
        arena.at += rounded;
        arena.left -= rounded;
        arena.block_count++;
    }
    return block;
}

static void arena_free(void *block) {
    bool empty = block && --arena.block_count == 0;
    while (empty && arena.last) {
        struct piece *piece = arena.last;
        arena.last = piece->previous;
        free(piece);
    }
}

/* A lane keeps its memory from message to message, unless it has become more than this. */
#define LANE_BYTES_KEPT ((size_t)256 << 10)

/* A request can bring forward when the parent is to be asked: then its thread must not sleep on
 * (T4). With the lock held. */
static void upward_hurry(struct service *service) {
    struct upward *upward = &service->upward;
    if (doorman_server_due(service->server) < upward->wakes_at) {
        upward->wakes_at = 0;
        pthread_cond_signal(&upward->wake);
    }
}

/* Puts the answer to a message in the place of its text. false: there is no memory for one, and the
 * peer has to ask again.
 * The clock is read with the lock held, so that no call sees a time before that of the last one. */
static bool lane_answer(struct lane *lane, nng_msg *message) {
    struct service *service = lane->service;
    doorman_json_exchange *exchange = &lane->exchange;
    const doorman_buffer *reply = &exchange->reply;
    doorman_json_exchange_read(exchange, (const char *)nng_msg_body(message), nng_msg_len(message));
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    if (!service->stopping) {
        doorman_json_exchange_decide(exchange, service->server, now);
        upward_hurry(service);
    }
    pthread_mutex_unlock(&service->lock);
    doorman_status status = doorman_json_exchange_write(exchange, (int64_t)time(NULL));
    if (status != DOORMAN_OK && status != DOORMAN_UNAVAILABLE) {
        pthread_mutex_lock(&service->lock);
        service->troubles[TROUBLE_REFUSED].unsaid_count++;
        trouble_say(service, TROUBLE_REFUSED, "code", doorman_status_name(status), NULL, now);
        pthread_mutex_unlock(&service->lock);
    }
    nng_msg_clear(message);
    bool answered = reply->bytes > 0 && nng_msg_append(message, reply->text, reply->bytes) == 0;
    if (reply->capacity > LANE_BYTES_KEPT) doorman_json_exchange_uninit(exchange);
    return answered;
}

static void lane_receive(struct lane *lane) {
    if (lane->sending) __atomic_sub_fetch(&lane->service->sending_count, 1, __ATOMIC_RELAXED);
    lane->sending = false;
    nng_aio_set_timeout(lane->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(lane->context, lane->aio);
}

static void lane_send(struct lane *lane, nng_msg *message) {
    unsigned sending = __atomic_add_fetch(&lane->service->sending_count, 1, __ATOMIC_RELAXED);
    lane->sending = true;
    nng_aio_set_timeout(lane->aio,
                        sending <= LANE_COUNT / 2 ? SEND_TIMEOUT_MS : SEND_TIMEOUT_SHORT_MS);
    nng_aio_set_msg(lane->aio, message);
    nng_ctx_send(lane->context, lane->aio);
}

static void lane_drop(struct lane *lane, nng_msg *message) {
    nng_msg_free(message);
    nng_aio_set_msg(lane->aio, NULL);
}

/* nng calls this when a request has come in on a lane, when its answer has left, and when either
 * has failed. A lane always goes on to receive or to send, until the socket is closed. */
static void lane_step(void *argument) {
    struct lane *lane = (struct lane *)argument;
    int result = nng_aio_result(lane->aio);
    bool received = !lane->sending && result == 0;
    nng_msg *message = received || lane->sending ? nng_aio_get_msg(lane->aio) : NULL;
    if (lane->sending && result != 0) {
        if (result == NNG_ETIMEDOUT) nng_pipe_close(nng_msg_get_pipe(message));
        lane_drop(lane, message);
    }
    if (received && lane_answer(lane, message)) {
        lane_send(lane, message);
    } else if (result != NNG_ECLOSED && result != NNG_ECANCELED) {
        if (received) lane_drop(lane, message);
        lane_receive(lane);
    }
}

/* ---- >>upward ------------------------------------------------------------------------------- */
/* One thread asks the parent. It has the lock all the time, but while it sends or sleeps. */

/* Called by the carrier, without the lock. */
static void upward_on_news(void *context) {
    struct service *service = (struct service *)context;
    pthread_mutex_lock(&service->lock);
    service->upward.news = true;
    pthread_cond_signal(&service->upward.wake);
    pthread_mutex_unlock(&service->lock);
}

static void upward_say_failure(struct service *service, doorman_status status,
                               const doorman_error *error, doorman_time now) {
    int kind = status == DOORMAN_UNAVAILABLE ? TROUBLE_PARENT_SILENT : TROUBLE_PARENT_ANSWER;
    const char *why = error->text[0] ? error->text : doorman_status_text(status);
    service->troubles[kind].unsaid_count++;
    trouble_say(service, kind, "parent", doorman_carrier_address(service->upward.carrier), why,
                now);
}

/* What became of the last request, if that is known. */
static void upward_take(struct service *service, doorman_time now) {
    struct upward *upward = &service->upward;
    doorman_error error = {""};
    if (upward->news) {
        doorman_status status = doorman_carrier_take(upward->carrier, &error, now);
        if (status != DOORMAN_OK) upward_say_failure(service, status, &error, now);
        if (status == DOORMAN_OK && !upward->answers) {
            say(service->settings, LEVEL_INFO, "the parent answers", "parent",
                doorman_carrier_address(upward->carrier), END);
        }
        upward->answers = status == DOORMAN_OK;
        upward->news = false;
    }
}

/* How many resources have a lease of the parent's, when that has changed; it takes a walk over all
 * of them, so only where somebody wants to read it. */
static void upward_say_leases(struct service *service, doorman_time now) {
    struct upward *upward = &service->upward;
    doorman_server_resource resource;
    size_t leased_count = 0, count = 0;
    const void *cursor = NULL;
    bool wanted = service->settings->log_level == LEVEL_DEBUG;
    while (wanted && doorman_server_next_resource(service->server, &cursor, &resource, now)) {
        count++;
        if (resource.leased) leased_count++;
    }
    if (leased_count != upward->leased_count || count != upward->resource_count) {
        char leased_text[24], count_text[24];
        snprintf(leased_text, sizeof leased_text, "%zu", leased_count);
        snprintf(count_text, sizeof count_text, "%zu", count);
        say(service->settings, LEVEL_DEBUG, "leases of the parent", "leased", leased_text,
            "resources", count_text, END);
    }
    upward->leased_count = leased_count;
    upward->resource_count = count;
}

/* Sleeps until something is due or there is news, but for 10 ms, so that it cannot spin, and no
 * longer than a second: condition variables go by another clock, which stands still while the
 * machine is suspended. */
static void upward_sleep(struct service *service, doorman_time now) {
    struct upward *upward = &service->upward;
    doorman_time nap = doorman_server_due(service->server) - now;
    if (nap > DOORMAN_SECOND) nap = DOORMAN_SECOND;
    if (nap < DOORMAN_SECOND / 100) nap = DOORMAN_SECOND / 100;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)nap;
    until.tv_sec += until.tv_nsec / (long)DOORMAN_SECOND;
    until.tv_nsec %= (long)DOORMAN_SECOND;
    upward->wakes_at = now + nap;
    pthread_cond_timedwait(&upward->wake, &service->lock, &until);
    upward->wakes_at = 0;
}

static void *upward_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct upward *upward = &service->upward;
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        doorman_time now = doorman_clock();
        upward_take(service, now);
        if (doorman_server_due(service->server) <= now) doorman_server_update(service->server, now);
        upward_say_leases(service, now);
        if (doorman_carrier_prepare(upward->carrier, now)) {
            pthread_mutex_unlock(&service->lock);
            doorman_carrier_send(upward->carrier);
            pthread_mutex_lock(&service->lock);
        } else {
            upward_sleep(service, now);
        }
    }
    pthread_mutex_unlock(&service->lock);
    return NULL;
}

/* nng can tell without the network whether it has such a transport. */
static enum outcome upward_check_address(const struct service *service, const char *url) {
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    enum outcome outcome = GO_ON;
    int error = nng_req0_open(&socket);
    if (error == 0) error = nng_dialer_create(&dialer, socket, url);
    bool own = strcmp(url, service->advertise) == 0;
    for (size_t i = 0; i < service->url_count; i++) own = own || !strcmp(url, service->urls[i]);
    if (own) {
        outcome = refuse(WRONG_USE, "--parent '%s' is this server itself", url);
    } else if (error != 0) {
        outcome = refuse(WRONG_USE, "cannot ask --parent '%s': %s; an address looks like %s", url,
                         nng_strerror(error), LISTEN_DEFAULT);
    }
    nng_close(socket);
    return outcome;
}

static bool upward_init(struct service *service) {
    struct upward *upward = &service->upward;
    doorman_carrier_options options = {.asker = doorman_server_asker(service->server),
                                       .on_news = upward_on_news,
                                       .context = service};
    pthread_condattr_t monotonic;
    bool done = pthread_condattr_init(&monotonic) == 0 &&
                pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&upward->wake, &monotonic) == 0 &&
                doorman_carrier_create(&upward->carrier, &options) == DOORMAN_OK;
    pthread_condattr_destroy(&monotonic);
    return done;
}

static enum outcome upward_start(struct service *service) {
    struct upward *upward = &service->upward;
    upward->started =
        upward_init(service) && pthread_create(&upward->thread, NULL, upward_main, service) == 0;
    return upward->started ? GO_ON
                           : refuse(FAILED, "cannot ask the parent: no memory, or no thread");
}

/* The lease of the node is not released: it is the next process's of that node (R10). */
static void upward_stop(struct service *service) {
    struct upward *upward = &service->upward;
    if (upward->started) {
        pthread_mutex_lock(&service->lock);
        service->stopping = true;
        pthread_cond_signal(&upward->wake);
        pthread_mutex_unlock(&service->lock);
        pthread_join(upward->thread, NULL);
    }
    doorman_carrier_destroy(upward->carrier); /* which may still signal */
    if (upward->started) pthread_cond_destroy(&upward->wake);
}

/* ---- >>sockets ------------------------------------------------------------------------------ */

/* Starts to listen, and notes the address. Keepalive is for peers that lost their power, and would
 * stay for ever; not all transports have it. */
static int service_start_listener(struct service *service, nng_listener listener) {
    nng_listener_set_bool(listener, NNG_OPT_TCP_KEEPALIVE, true);
    int error = nng_listener_start(listener, 0);
    if (error == 0) {
        char **url = &service->urls[service->url_count];
        error = nng_listener_get_string(listener, NNG_OPT_URL, url);
    }
    if (error == 0) service->url_count++;
    return error;
}

static enum outcome service_listen_at(struct service *service, const char *url) {
    enum outcome outcome = GO_ON;
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    int error = nng_listener_create(&listener, service->socket, url);
    if (error != 0) {
        outcome = refuse(WRONG_USE, "cannot listen on '%s': %s; an address looks like %s", url,
                         nng_strerror(error), LISTEN_DEFAULT);
    } else if ((error = service_start_listener(service, listener)) != 0) {
        outcome = refuse(FAILED, "cannot listen on %s: %s; give another --listen", url,
                         nng_strerror(error));
    }
    return outcome;
}

/* Listens on all addresses with one socket. nng cuts off a peer that announces a longer message
 * than allowed, before it takes any of it in; in front of each text goes the request's number. */
static enum outcome service_listen(struct service *service) {
    const struct settings *settings = service->settings;
    const size_t bytes_max = sizeof(uint32_t) + DOORMAN_MESSAGE_BYTES_MAX;
    int error = nng_rep0_open(&service->socket);
    if (error == 0) error = nng_socket_set_size(service->socket, NNG_OPT_RECVMAXSZ, bytes_max);
    enum outcome outcome =
        error == 0 ? GO_ON : refuse(FAILED, "cannot open a socket: %s", nng_strerror(error));
    for (size_t i = 0; outcome == GO_ON && i < settings->listen.count; i++) {
        outcome = service_listen_at(service, settings->listen.items[i]);
    }
    return outcome;
}

/* Each connection is a file; the number that a process may have open is low by default. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void service_name(struct service *service) {
    const struct settings *settings = service->settings;
    const char *host = strstr(service->urls[0], "://");
    service->id = settings->id ? settings->id : host ? host + 3 : service->urls[0];
    service->node = settings->node ? settings->node : service->id;
    service->advertise = settings->advertise ? settings->advertise : service->urls[0];
}

#define NAME_RULE "must be 1 to 256 bytes of UTF-8 without control characters"

/* Makes the server object, master for good: without an election it has no rival. */
static enum outcome service_create_server(struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    const char *addresses[ADDRESS_MAX];
    for (size_t i = 0; i < parents->count; i++) addresses[i] = parents->items[i];
    doorman_server_options options = {.node = service->node,
                                      .config = service->config,
                                      .parents = addresses,
                                      .parent_count = parents->count,
                                      .on_event = on_event,
                                      .context = service};
    doorman_mastership mastership = {.address = service->advertise, .until = DOORMAN_NEVER};
    doorman_time now = doorman_clock();
    doorman_status status = DOORMAN_UNAVAILABLE;
    bool random = doorman_random(options.seed, sizeof options.seed);
    doorman_error error = {""};
    if (random) status = doorman_server_create(&service->server, &options, &error, now);
    enum outcome outcome = GO_ON;
    if (status == DOORMAN_INVALID_ARGUMENT) {
        outcome = refuse(WRONG_USE, "%s; the node is '%s'", error.text, service->node);
    } else if (status != DOORMAN_OK) {
        outcome = refuse(FAILED, "cannot serve: %s",
                         random ? doorman_status_text(status) : "the system has no random bits");
    } else if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        outcome = refuse(WRONG_USE, "--advertise '%s': " NAME_RULE, service->advertise);
    }
    return outcome;
}

static enum outcome service_open_lanes(struct service *service) {
    int error = 0;
    for (size_t i = 0; error == 0 && i < LANE_COUNT; i++) {
        struct lane *lane = &service->lanes[i];
        lane->service = service;
        error = nng_aio_alloc(&lane->aio, lane_step, lane);
        if (error == 0) error = nng_ctx_open(&lane->context, service->socket);
        if (error == 0) lane_receive(lane);
    }
    return error == 0 ? GO_ON : refuse(FAILED, "cannot serve: %s", nng_strerror(error));
}

static void service_say_started(const struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    char addresses[ADDRESS_MAX * NNG_MAXADDRLEN] = "";
    char source[ADDRESS_MAX * (DOORMAN_ID_BYTES_MAX + 1)] = "";
    addresses_join(service->urls, service->url_count, addresses, sizeof addresses);
    if (parents->count > 0) {
        addresses_join(parents->items, parents->count, source, sizeof source);
    } else {
        size_t count = 0;
        doorman_config_templates(service->config, &count);
        snprintf(source, sizeof source, "%zu", count);
    }
    say(service->settings, LEVEL_INFO, "serving", "version", DOORMAN_VERSION, "id", service->id,
        "node", service->node, "listen", addresses, "advertise", service->advertise,
        parents->count > 0 ? "parent" : "resources", source, END);
}

static enum outcome service_load_config(struct service *service) {
    const char *path = service->settings->config;
    enum outcome outcome = GO_ON;
    doorman_error error;
    if (path && !config_load(&service->config, path, &error)) outcome = refuse_config(path, &error);
    return outcome;
}

static enum outcome service_start(struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    enum outcome outcome = service_load_config(service);
    if (outcome == GO_ON) {
        raise_file_limit();
        outcome = service_listen(service);
    }
    if (outcome == GO_ON) service_name(service);
    for (size_t i = 0; outcome == GO_ON && i < parents->count; i++) {
        outcome = upward_check_address(service, parents->items[i]);
    }
    if (outcome == GO_ON) outcome = service_create_server(service);
    if (outcome == GO_ON && parents->count > 0) outcome = upward_start(service);
    if (outcome == GO_ON) outcome = service_open_lanes(service);
    if (outcome == GO_ON) service_say_started(service);
    return outcome;
}

/* Also after a start that came half-way. Closing the socket ends what the lanes wait for, and
 * freeing an aio waits for its last step. */
static void service_stop(struct service *service) {
    nng_close(service->socket);
    for (size_t i = 0; i < LANE_COUNT; i++) {
        nng_aio_free(service->lanes[i].aio);
        doorman_json_exchange_uninit(&service->lanes[i].exchange);
    }
    for (size_t i = 0; i < service->url_count; i++) nng_strfree(service->urls[i]);
    upward_stop(service);
    doorman_server_destroy(service->server);
    doorman_config_destroy(service->config);
    nng_fini();
}

/* ---- >>signals ------------------------------------------------------------------------------ */

/* Blocked here, before there is a second thread, and so in all: the main loop fetches them. */
static void block_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A configuration that is wrong changes nothing (V1). It is read without the lock, so answers go
 * on meanwhile. */
static void service_reload_config(struct service *service) {
    const char *path = service->settings->config;
    doorman_config *config = NULL;
    doorman_error error;
    bool loaded = config_load(&config, path, &error);
    if (loaded) {
        pthread_mutex_lock(&service->lock);
        doorman_status status = doorman_server_configure(service->server, config, doorman_clock());
        loaded = status == DOORMAN_OK;
        if (loaded) {
            doorman_config *last = service->config;
            service->config = config;
            config = last;
        }
        pthread_mutex_unlock(&service->lock);
        snprintf(error.text, sizeof error.text, "%s", doorman_status_text(status));
    }
    doorman_config_destroy(config);
    if (loaded) {
        say(service->settings, LEVEL_INFO, "configuration loaded", "file", path, END);
    } else {
        say(service->settings, LEVEL_ERROR, "configuration refused; the last one stays", "file",
            path, "error", error.text, END);
    }
}

static void service_reload(struct service *service) {
    if (service->settings->config) {
        service_reload_config(service);
    } else {
        say(service->settings, LEVEL_INFO,
            "there is nothing to load: the resources are those of the parent", END);
    }
}

static void service_tick(struct service *service) {
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    if (doorman_server_due(service->server) <= now) doorman_server_update(service->server, now);
    for (int kind = 0; kind < TROUBLE_COUNT; kind++) {
        trouble_say(service, kind, NULL, NULL, NULL, now);
    }
    pthread_mutex_unlock(&service->lock);
}

/* The way out when nng_close does not return: nng 1.5 can lose a connection whose peer vanished
 * with an answer on its way, and then waits for it for ever. By now all has been answered. */
static void leave(int signal_number) {
    (void)signal_number;
    _exit(DONE);
}

/* Wakes once a second, since any request may have brought forward what is due. */
static void service_run(struct service *service, const sigset_t *signals) {
    const struct timespec second = {.tv_sec = 1};
    int got = 0;
    while (got != SIGTERM && got != SIGINT) {
        got = sigtimedwait(signals, NULL, &second);
        if (got == SIGHUP) service_reload(service);
        service_tick(service);
    }
    say(service->settings, LEVEL_INFO, "stopping", "signal", got == SIGTERM ? "SIGTERM" : "SIGINT",
        END);
    pthread_mutex_lock(&service->lock);
    service->stopping = true;
    pthread_mutex_unlock(&service->lock);
    nng_msleep(STOPPING_MS);
    signal(SIGALRM, leave);
    alarm(CLOSING_SECONDS);
}

/* ---- >>main --------------------------------------------------------------------------------- */

static enum outcome serve(const struct settings *settings) {
    struct service service = {.settings = settings, .lock = PTHREAD_MUTEX_INITIALIZER};
    sigset_t signals;
    block_signals(&signals);
    enum outcome outcome = service_start(&service);
    if (outcome == GO_ON) {
        service_run(&service, &signals);
        outcome = DONE;
    }
    service_stop(&service);
    return outcome;
}

int main(int argc, char **argv) {
    struct settings settings = {.config = NULL};
    cJSON_InitHooks(&(cJSON_Hooks){arena_malloc, arena_free});
    enum outcome outcome = settings_read(&settings, argc, argv);
    if (outcome == GO_ON) {
        outcome = settings.check_config ? check_config(&settings) : serve(&settings);
    }
    settings_uninit(&settings);
    if (fflush(stdout) != 0 && outcome == DONE) {
        outcome = refuse(FAILED, "cannot write to standard output: %s", strerror(errno));
    }
    return (int)outcome;
}
