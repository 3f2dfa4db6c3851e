/* doorman_server: a root of Doorman as a process of its own. It reads messages from sockets, hands
 * them to doorman.h, and sends back what that says: every decision about capacity is taken there.
 *
 * nng calls lane_step on its own threads, and the answer is made there, since handing a request to
 * another thread costs more than deciding it. One mutex guards the server object, and is held for a
 * decision alone: reading and writing go on beside it. The main thread waits for signals, and once
 * a second does what has come due.
 *
 * V1 SIGHUP loads the configuration anew; one that is wrong is refused, and the last one stays.
 *    SIGTERM and SIGINT finish what is in progress, and end the process with exit code 0.
 * V5 A message is 4 MiB at most. A peer that sends rubbish, or goes away half-way, costs no one
 *    else anything.
 * V6 Log lines are logfmt on standard error. A trouble that repeats is said once a minute.
 * V7 Exit codes: 0 done, 1 failure, 2 wrong use; each with one line that says what, and what to do.
 *
 * In order: flags, log, configuration, state, the way of one request, sockets, signals, main. Every
 * function has one way out; `enum outcome` carries what is to become of the process to the end. */

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
#include <nng/supplemental/util/platform.h>

#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG /* for doorman_clock and doorman_random */
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
#define LISTEN_MAX 16
#define LISTEN_DEFAULT "tcp://127.0.0.1:15000"

static const struct flag {
    const char *name, *argument; /* NULL: takes none */
    const char *variable;        /* NULL: none in the environment */
    const char *help;
} flags[FLAG_COUNT] = {
    [FLAG_CONFIG] = {"config", "FILE", "DOORMAN_CONFIG",
                     "the resources and how each is shared; required"},
    [FLAG_LISTEN] = {"listen", "URL", "DOORMAN_LISTEN",
                     "where to answer; may be given more than once, in the variable with commas "
                     "between\n        (default " LISTEN_DEFAULT ")"},
    [FLAG_ID] = {"id", "NAME", "DOORMAN_ID",
                 "what this process is called (default HOST:PORT of the first --listen)"},
    [FLAG_NODE] = {"node", "NAME", "DOORMAN_NODE",
                   "the node of the tree that it serves, named in leases (default the id)"},
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

/* What the flags and the environment say; the texts are theirs. */
struct settings {
    bool given[FLAG_COUNT];
    const char *config, *id, *node, *advertise;
    const char *listen[LISTEN_MAX];
    size_t listen_count;
    char *listen_list; /* of the environment, cut into the above */
    enum level log_level;
    bool check_config;
};

static enum outcome print_help(void) {
    puts("Usage: doorman_server --config FILE [FLAG]...\n"
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

static enum outcome settings_add_listen(struct settings *settings, const char *url) {
    enum outcome outcome = GO_ON;
    if (settings->listen_count < LISTEN_MAX) {
        settings->listen[settings->listen_count++] = url;
    } else {
        outcome = refuse(WRONG_USE, "more than %d addresses to listen on", LISTEN_MAX);
    }
    return outcome;
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
    case FLAG_LISTEN: outcome = settings_add_listen(settings, value); break;
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

static enum outcome settings_read_listen_list(struct settings *settings, const char *list) {
    enum outcome outcome = GO_ON;
    settings->listen_list = strdup(list);
    if (!settings->listen_list) outcome = refuse(FAILED, "out of memory");
    char *rest = settings->listen_list;
    while (outcome == GO_ON && rest) {
        outcome = settings_set(settings, FLAG_LISTEN, strsep(&rest, ","));
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
        outcome = i == FLAG_LISTEN ? settings_read_listen_list(settings, value)
                                   : settings_set(settings, i, value);
    }
    return outcome;
}

static enum outcome settings_read(struct settings *settings, int argc, char **argv) {
    settings->log_level = LEVEL_INFO;
    enum outcome outcome = settings_read_flags(settings, argc, argv);
    if (outcome == GO_ON) outcome = settings_read_environment(settings);
    if (outcome == GO_ON && !settings->config) {
        outcome = refuse(WRONG_USE, "no configuration: give --config FILE");
    }
    if (outcome == GO_ON && settings->listen_count == 0) {
        outcome = settings_add_listen(settings, LISTEN_DEFAULT);
    }
    return outcome;
}

static void settings_uninit(struct settings *settings) { free(settings->listen_list); }

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

/* A lane waits for a peer only when that peer asks on and on, and does not read the answers. */
#define SEND_TIMEOUT_MS 250

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

/* What outsiders can cause at any rate: the kinds of doorman_event, and one of our own. */
enum { TROUBLE_REFUSED = DOORMAN_EVENT_COUNT, TROUBLE_COUNT };
static const char *const trouble_texts[TROUBLE_COUNT] = {
    [DOORMAN_EVENT_UNMATCHED] = "a resource that no template matches was asked for",
    [DOORMAN_EVENT_UNKNOWN_CLAIM] = "a holder named a lease that is not known here",
    [DOORMAN_EVENT_EXCESS_CLAIM] = "a holder claims more than it was given",
    [DOORMAN_EVENT_EXPIRED] = "a lease has expired",
    [DOORMAN_EVENT_FULL] = "a bound was reached, and a request refused",
    [DOORMAN_EVENT_UNKNOWN_KIND] = "the parent names an algorithm that is not known here",
    [TROUBLE_REFUSED] = "a message was refused",
};

struct trouble {
    uint64_t unsaid_count;
    doorman_time quiet_until;
};

struct service {
    const struct settings *settings;
    const char *id, *node, *advertise;
    nng_socket socket;
    char *urls[LISTEN_MAX]; /* as they came out: a port of 0 has become a real one */
    size_t url_count;
    struct lane lanes[LANE_COUNT];
    pthread_mutex_t lock; /* of all that follows, while lanes run */
    doorman_config *config;
    doorman_server *server;
    struct trouble troubles[TROUBLE_COUNT];
    bool stopping;
};

/* Says what has not been said yet of a trouble, once a minute (V6).
 *   key, value   what the last one was about, and who caused it; may be NULL */
static void trouble_say(struct service *service, int kind, const char *key, const char *value,
                        const char *holder, doorman_time now) {
    struct trouble *trouble = &service->troubles[kind];
    if (trouble->unsaid_count > 0 && now >= trouble->quiet_until) {
        char count[24];
        snprintf(count, sizeof count, "%" PRIu64, trouble->unsaid_count);
        say(service->settings, LEVEL_WARNING, trouble_texts[kind], "count", count, key, value,
            holder ? "holder" : END, holder, END);
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

/* cJSON makes two or three small blocks of each value. malloc and free of them are a third of the
 * time that it takes, so each thread has a piece of memory to cut them from, one after the other,
 * which is whole again when the last of them is freed. It is enough for requests of some 250
 * resources; what does not fit comes from malloc, and so a message of 4 MiB leaves nothing taken.
 * A tree must be freed by the thread that made it: here, within one call. */
#define ARENA_BYTES ((size_t)256 << 10)

static _Thread_local struct arena {
    _Alignas(max_align_t) char memory[ARENA_BYTES];
    size_t used, block_count;
} arena;

static void *arena_malloc(size_t bytes) {
    const size_t unit = _Alignof(max_align_t);
    void *block = NULL;
    size_t rounded = bytes <= ARENA_BYTES ? (bytes + unit - 1) / unit * unit : SIZE_MAX;
    if (rounded <= ARENA_BYTES - arena.used) {
        block = arena.memory + arena.used;
        arena.used += rounded;
        arena.block_count++;
    } else {
        block = malloc(bytes);
    }
    return block;
}

static void arena_free(void *block) {
    uintptr_t offset = (uintptr_t)block - (uintptr_t)arena.memory;
    if (offset >= ARENA_BYTES) {
        free(block);
    } else if (--arena.block_count == 0) {
        arena.used = 0;
    }
}

/* A lane keeps its memory from message to message, unless it has become more than this. */
#define LANE_BYTES_KEPT ((size_t)256 << 10)

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
    if (!service->stopping) doorman_json_exchange_decide(exchange, service->server, now);
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
    lane->sending = false;
    nng_aio_set_timeout(lane->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(lane->context, lane->aio);
}

static void lane_send(struct lane *lane, nng_msg *message) {
    lane->sending = true;
    nng_aio_set_timeout(lane->aio, SEND_TIMEOUT_MS);
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
    for (size_t i = 0; outcome == GO_ON && i < settings->listen_count; i++) {
        outcome = service_listen_at(service, settings->listen[i]);
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

/* Makes the server object, master for good: a root without an election has no rival. */
static enum outcome service_create_server(struct service *service) {
    doorman_server_options options = {
        .node = service->node, .config = service->config, .on_event = on_event, .context = service};
    doorman_mastership mastership = {.address = service->advertise, .until = DOORMAN_NEVER};
    doorman_time now = doorman_clock();
    doorman_status status = DOORMAN_UNAVAILABLE;
    bool random = doorman_random(options.seed, sizeof options.seed);
    if (random) status = doorman_server_create(&service->server, &options, NULL, now);
    enum outcome outcome = GO_ON;
    if (status == DOORMAN_INVALID_ARGUMENT) {
        outcome = refuse(WRONG_USE, "node '%s': " NAME_RULE, service->node);
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
    char addresses[LISTEN_MAX * NNG_MAXADDRLEN] = "", count_text[24];
    size_t count = 0;
    for (size_t i = 0, bytes = 0; i < service->url_count && bytes < sizeof addresses; i++) {
        bytes += (size_t)snprintf(addresses + bytes, sizeof addresses - bytes, "%s%s", i ? "," : "",
                                  service->urls[i]);
    }
    doorman_config_templates(service->config, &count);
    snprintf(count_text, sizeof count_text, "%zu", count);
    say(service->settings, LEVEL_INFO, "serving", "version", DOORMAN_VERSION, "id", service->id,
        "node", service->node, "listen", addresses, "advertise", service->advertise, "resources",
        count_text, END);
}

static enum outcome service_start(struct service *service) {
    const char *path = service->settings->config;
    doorman_error error;
    enum outcome outcome =
        config_load(&service->config, path, &error) ? GO_ON : refuse_config(path, &error);
    if (outcome == GO_ON) {
        raise_file_limit();
        outcome = service_listen(service);
    }
    if (outcome == GO_ON) {
        service_name(service);
        outcome = service_create_server(service);
    }
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
static void service_reload(struct service *service) {
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
