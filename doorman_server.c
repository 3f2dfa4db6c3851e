/* doorman_server: a node of Doorman's tree as a process of its own. It reads messages from sockets,
 * hands them to doorman.h, and sends back what that says: every decision about capacity is taken
 * there.
 *
 * nng calls lane_step on its own threads, and the answer is made there, since handing a request to
 * another thread costs more than deciding it. One mutex guards the server object, and is held for a
 * decision alone: reading and writing go on beside it. The main thread waits for signals, and once
 * a second does what has come due. Where the node has a parent, one more thread asks that for
 * capacity; where it has several processes, another one takes part in their election.
 *
 * G8 A node with a parent has its resources from there: a configuration beside it is wrong use.
 * T4 At a node's first request for a resource it asks its parent at once.
 * T5 The processes of a node ask its parent under its one name.
 * V1 SIGHUP loads the configuration anew, and so does a change of the file, also where another one
 *    took its place, or of etcd's key; one that is wrong is refused, and the last one stays.
 *    SIGTERM and SIGINT finish what is in progress, give up mastership, and end the process with
 *    exit code 0.
 * V2 With an election a server is master for as long as etcd's lease on a key is its own, and
 *    stops, by its own clock, before etcd can give the key to another one.
 * V3 HTTP tells people, Prometheus and programs how it goes, and takes the protocol's messages.
 * V4 Metrics by Prometheus' conventions.
 * V5 A message is 4 MiB at most. A peer that sends rubbish, or goes away half-way, costs no one
 *    else anything.
 * V6 Log lines are logfmt on standard error. A trouble that repeats is said once a minute. Nobody
 *    waits for the log: what finds no room is lost, and counted.
 * V7 Exit codes: 0 done, 1 failure, 2 wrong use; each with one line that says what, and what to do.
 *
 * In order: flags, log, etcd, configuration, state, the way of one request, upward, election, what
 * HTTP tells, HTTP, TLS, sockets, signals, main. Every function has one way out; `enum outcome`
 * carries what is to become of the process to the end. */

#define _GNU_SOURCE /* getopt_long, sigtimedwait */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/tls/tls.h>
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
    FLAG_ETCD,
    FLAG_ELECTION_KEY,
    FLAG_ELECTION_TTL,
    FLAG_HTTP,
    FLAG_HTTP_TOKEN,
    FLAG_TLS_CERT,
    FLAG_TLS_KEY,
    FLAG_TLS_CA,
    FLAG_MAX_RESOURCES,
    FLAG_MAX_HOLDERS,
    FLAG_MAX_MESSAGE,
    FLAG_MAX_CONNECTIONS,
    FLAG_LOG_LEVEL,
    FLAG_CHECK_CONFIG,
    FLAG_VERSION,
    FLAG_HELP,
    FLAG_COUNT
};
#define FLAG_FIRST 256 /* getopt's code for flag 0: above all characters */
#define ADDRESS_MAX 16 /* of one flag; as many parents as the library takes */
#define LISTEN_DEFAULT "tcp://127.0.0.1:15000"
#define ETCD_EXAMPLE "http://127.0.0.1:2379"
#define TTL_MIN 2 /* seconds; etcd makes no shorter lease */
#define TTL_MAX 3600
#define TTL_DEFAULT 10
#define ETCD_KEY_BYTES_MAX DOORMAN_ID_BYTES_MAX /* as the default name of a node, it is an id */
#define HTTP_DEFAULT "127.0.0.1:15050"

static const struct flag {
    const char *name, *argument; /* NULL: takes none */
    const char *variable;        /* NULL: none in the environment */
    const char *help;
} flags[FLAG_COUNT] = {
    [FLAG_CONFIG] = {"config", "FILE|etcd:KEY", "DOORMAN_CONFIG",
                     "the resources and how each is shared, from a file, or from a key of etcd's, "
                     "which is\n        watched; required, but for --parent"},
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
                   "to be the same\n        after a restart, and for all processes of the node "
                   "(default the election key, else the id)"},
    [FLAG_ADVERTISE] = {"advertise", "URL", "DOORMAN_ADVERTISE",
                        "the address that others reach it at (default the first --listen)"},
    [FLAG_ETCD] = {"etcd", "URL[,URL...]", "DOORMAN_ETCD",
                   "the members of an etcd, tried in turn, for an election or a configuration; may "
                   "be given more\n        than once (default none: the server is the master)"},
    [FLAG_ELECTION_KEY] = {"election-key", "KEY", "DOORMAN_ELECTION_KEY",
                           "the key of etcd's whose owner is the master: the same for all "
                           "processes of the node, and for\n        no other one"},
    [FLAG_ELECTION_TTL] = {"election-ttl", "SECONDS", "DOORMAN_ELECTION_TTL",
                           "how long a master that is not heard of stays master, 2 to 3600 "
                           "(default 10)"},
    [FLAG_HTTP] = {"http", "HOST:PORT|off", "DOORMAN_HTTP",
                   "where the status page, the metrics and the protocol over HTTP are (default\n"
                   "        " HTTP_DEFAULT "); beyond loopback it wants --http-token or --tls-ca"},
    [FLAG_HTTP_TOKEN] = {"http-token", "FILE", "DOORMAN_HTTP_TOKEN",
                         "holds what all must say over HTTP, as 'Authorization: Bearer TOKEN' or "
                         "as a password,\n        but for /healthz and /readyz (default none)"},
    [FLAG_TLS_CERT] = {"tls-cert", "FILE", "DOORMAN_TLS_CERT",
                       "this server's certificate in PEM, for --listen tls+tcp://... and for HTTP, "
                       "which is\n        HTTPS then (default none: no TLS)"},
    [FLAG_TLS_KEY] = {"tls-key", "FILE", "DOORMAN_TLS_KEY", "the key of --tls-cert, in PEM"},
    [FLAG_TLS_CA] = {"tls-ca", "FILE", "DOORMAN_TLS_CA",
                     "the authorities, in PEM, that must have signed the certificates of all who "
                     "connect, and\n        of a --parent tls+tcp://... (default: anybody gets "
                     "in)"},
    [FLAG_MAX_RESOURCES] = {"max-resources", "NUMBER", "DOORMAN_MAX_RESOURCES",
                            "the resources there may be (default 1000000)"},
    [FLAG_MAX_HOLDERS] = {"max-holders", "NUMBER", "DOORMAN_MAX_HOLDERS",
                          "the holders that one resource may have (default 10000000)"},
    [FLAG_MAX_MESSAGE] = {"max-message", "BYTES", "DOORMAN_MAX_MESSAGE",
                          "the longest message (default 4194304, and no more)"},
    [FLAG_MAX_CONNECTIONS] = {"max-connections", "NUMBER", "DOORMAN_MAX_CONNECTIONS",
                              "the connections of nng there may be at once (default: as many as "
                              "files may be open)"},
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
    const char *config_key, *election_key; /* of etcd's; NULL: none */
    int election_ttl;                      /* seconds */
    const char *http, *http_token;         /* http "off": none */
    const char *tls_cert, *tls_key, *tls_ca;
    size_t resource_max, holder_max, message_max, connection_max; /* 0: the default */
    struct addresses listen, parents, etcd;
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

static enum outcome settings_set_config(struct settings *settings, const char *value) {
    static const char scheme[] = "etcd:";
    bool key = strncmp(value, scheme, strlen(scheme)) == 0;
    settings->config = value;
    settings->config_key = key ? value + strlen(scheme) : NULL;
    return key && !*settings->config_key
               ? refuse(WRONG_USE, "--config etcd: needs the name of a key after the colon")
               : GO_ON;
}

static enum outcome settings_set_ttl(struct settings *settings, const char *value) {
    char *end = NULL;
    long seconds = strtol(value, &end, 10);
    bool valid = end != value && !*end && seconds >= TTL_MIN && seconds <= TTL_MAX;
    if (valid) settings->election_ttl = (int)seconds;
    return valid ? GO_ON
                 : refuse(WRONG_USE, "--election-ttl '%s' is no whole number from %d to %d", value,
                          TTL_MIN, TTL_MAX);
}

static enum outcome settings_set_number(size_t *out, int flag, const char *value, size_t most) {
    enum outcome outcome = GO_ON;
    size_t digits = strspn(value, "0123456789");
    *out = (size_t)strtoull(value, NULL, 10);
    if (value[digits] || digits > 15 || *out == 0 || *out > most) {
        outcome = refuse(WRONG_USE, "--%s is '%s', not a number from 1 to %zu", flags[flag].name,
                         value, most);
    }
    return outcome;
}

static enum outcome settings_store(struct settings *settings, int flag, const char *value) {
    enum outcome outcome = GO_ON;
    switch (flag) {
    case FLAG_CONFIG: outcome = settings_set_config(settings, value); break;
    case FLAG_LISTEN: outcome = addresses_add_list(&settings->listen, flag, value); break;
    case FLAG_PARENT: outcome = addresses_add_list(&settings->parents, flag, value); break;
    case FLAG_ID: settings->id = value; break;
    case FLAG_NODE: settings->node = value; break;
    case FLAG_ADVERTISE: settings->advertise = value; break;
    case FLAG_ETCD: outcome = addresses_add_list(&settings->etcd, flag, value); break;
    case FLAG_ELECTION_KEY: settings->election_key = value; break;
    case FLAG_ELECTION_TTL: outcome = settings_set_ttl(settings, value); break;
    case FLAG_HTTP: settings->http = value; break;
    case FLAG_HTTP_TOKEN: settings->http_token = value; break;
    case FLAG_TLS_CERT: settings->tls_cert = value; break;
    case FLAG_TLS_KEY: settings->tls_key = value; break;
    case FLAG_TLS_CA: settings->tls_ca = value; break;
    case FLAG_MAX_RESOURCES:
        outcome = settings_set_number(&settings->resource_max, flag, value, 1000000000);
        break;
    case FLAG_MAX_HOLDERS:
        outcome = settings_set_number(&settings->holder_max, flag, value, 1000000000);
        break;
    case FLAG_MAX_MESSAGE:
        outcome =
            settings_set_number(&settings->message_max, flag, value, DOORMAN_MESSAGE_BYTES_MAX);
        break;
    case FLAG_MAX_CONNECTIONS:
        outcome = settings_set_number(&settings->connection_max, flag, value, 1000000000);
        break;
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

/* One that nng would not call is found here, and not at its turn. */
static enum outcome settings_check_etcd_address(const char *address) {
    nng_url *url = NULL;
    bool parsed = nng_url_parse(&url, address) == 0;
    bool valid = parsed && strcmp(url->u_scheme, "http") == 0 && *url->u_hostname;
    if (parsed) nng_url_free(url);
    return valid ? GO_ON
                 : refuse(WRONG_USE, "--etcd '%s': an address of etcd's looks like %s", address,
                          ETCD_EXAMPLE);
}

/* Does what is given go together? */
static enum outcome settings_check_etcd(const struct settings *settings) {
    const char *key = settings->election_key;
    enum outcome outcome = GO_ON;
    if (settings->etcd.count == 0 && (key || settings->config_key)) {
        outcome = refuse(WRONG_USE, "%s needs --etcd " ETCD_EXAMPLE,
                         key ? "--election-key" : "--config etcd:KEY");
    } else if (settings->etcd.count > 0 && !key && !settings->config_key) {
        outcome = refuse(WRONG_USE, "--etcd does nothing by itself: give --election-key KEY, or "
                                    "--config etcd:KEY");
    } else if (settings->given[FLAG_ELECTION_TTL] && !key) {
        outcome = refuse(WRONG_USE, "--election-ttl does nothing without --election-key");
    } else if ((key && strlen(key) > ETCD_KEY_BYTES_MAX) ||
               (settings->config_key && strlen(settings->config_key) > ETCD_KEY_BYTES_MAX)) {
        outcome = refuse(WRONG_USE, "a key of etcd's may have %d bytes here", ETCD_KEY_BYTES_MAX);
    }
    for (size_t i = 0; outcome == GO_ON && i < settings->etcd.count; i++) {
        outcome = settings_check_etcd_address(settings->etcd.items[i]);
    }
    return outcome;
}

/* Schemes of nng's that stand for TLS. */
static bool url_wants_tls(const char *url) {
    return strncmp(url, "tls+", 4) == 0 || strncmp(url, "wss", 3) == 0;
}

/* Certificates that belong together, and what wants them. */
static enum outcome settings_check_tls(const struct settings *settings) {
    enum outcome outcome = GO_ON;
    bool parent = false, listens = false;
    for (size_t i = 0; i < settings->parents.count; i++) {
        parent = parent || url_wants_tls(settings->parents.items[i]);
    }
    for (size_t i = 0; i < settings->listen.count; i++) {
        listens = listens || url_wants_tls(settings->listen.items[i]);
    }
    if (!settings->tls_cert != !settings->tls_key) {
        outcome = refuse(WRONG_USE, "--tls-cert and --tls-key go together: give both");
    } else if (listens && !settings->tls_cert) {
        outcome = refuse(WRONG_USE, "--listen tls+tcp://... wants --tls-cert and --tls-key");
    } else if (parent && !settings->tls_ca) {
        outcome = refuse(WRONG_USE, "--parent tls+tcp://... wants --tls-ca: the authority that "
                                    "signed its certificate");
    } else if (settings->tls_ca && !settings->tls_cert && !parent) {
        outcome = refuse(WRONG_USE, "--tls-ca without a certificate of this server's own: give "
                                    "--tls-cert and --tls-key too");
    }
    return outcome;
}

static enum outcome settings_read(struct settings *settings, int argc, char **argv) {
    settings->log_level = LEVEL_INFO;
    settings->election_ttl = TTL_DEFAULT;
    settings->http = HTTP_DEFAULT;
    settings->message_max = DOORMAN_MESSAGE_BYTES_MAX;
    enum outcome outcome = settings_read_flags(settings, argc, argv);
    if (outcome == GO_ON) outcome = settings_read_environment(settings);
    if (outcome == GO_ON) outcome = settings_check_source(settings);
    if (outcome == GO_ON) outcome = settings_check_etcd(settings);
    if (outcome == GO_ON && settings->listen.count == 0) {
        outcome = addresses_add_list(&settings->listen, FLAG_LISTEN, LISTEN_DEFAULT);
    }
    if (outcome == GO_ON) outcome = settings_check_tls(settings);
    return outcome;
}

static void settings_uninit(struct settings *settings) {
    addresses_uninit(&settings->listen);
    addresses_uninit(&settings->parents);
    addresses_uninit(&settings->etcd);
}

/* ---- >>log ---------------------------------------------------------------------------------- */
/* One line is one event, in logfmt: key=value, values in quotes where they need them (V6). */

struct line {
    char text[PIPE_BUF]; /* what does not fit is cut off */
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

static void line_start(struct line *line, enum level level, const char *message) {
    line->bytes = 0;
    line_add_time(line);
    line_add_pair(line, "level", level_names[level]);
    line_add_pair(line, "msg", message);
}

/* The lines that were lost. */
static struct lost {
    pthread_mutex_t lock; /* also from the look for room to the write */
    uint64_t count;
} lost = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A line goes out in one write, so that lines of two threads, or of two processes, do not mix.
 * Nobody waits for it, least of all with the lock of the service: a pipe that nobody reads, or a
 * disk that is full, takes no line. A pipe that has room takes PIPE_BUF bytes, which a line is at
 * most; a socket, such as systemd gives, is asked in its own way. */
static bool line_write(struct line *line) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (line->bytes == sizeof line->text) line->bytes--;
    line_add(line, "\n", 1);
    ssize_t wrote = send(out.fd, line->text, line->bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote < 0 && errno == ENOTSOCK && poll(&out, 1, 0) == 1) {
        wrote = write(out.fd, line->text, line->bytes);
    }
    return wrote == (ssize_t)line->bytes;
}

/* Says first what was lost before, if anything was. */
static void line_send(struct line *line) {
    struct line before;
    char count[24];
    pthread_mutex_lock(&lost.lock);
    if (lost.count > 0) {
        snprintf(count, sizeof count, "%" PRIu64, lost.count);
        line_start(&before, LEVEL_WARNING, "lines of this log found no room and are lost");
        line_add_pair(&before, "count", count);
        if (line_write(&before)) lost.count = 0;
    }
    if (lost.count > 0 || !line_write(line)) lost.count++;
    pthread_mutex_unlock(&lost.lock);
}

/* Logs a message and pairs of key and value, both texts, up to END. */
__attribute__((sentinel)) static void say(const struct settings *settings, enum level level,
                                          const char *message, ...) {
    struct line line;
    va_list pairs;
    va_start(pairs, message);
    if (level >= settings->log_level) {
        line_start(&line, level, message);
        for (const char *key = NULL; (key = va_arg(pairs, const char *)) != NULL;) {
            line_add_pair(&line, key, va_arg(pairs, const char *));
        }
        line_send(&line);
    }
    va_end(pairs);
}

/* ---- >>etcd --------------------------------------------------------------------------------- */
/* Calls to etcd's v3 gateway: a POST of JSON, in which keys and values are in base64 and 64-bit
 * numbers are texts. Each call has a connection of its own and a deadline, and goes to the member
 * that answered last; where that fails, to the others in turn. One thread at a time.
 *
 * The way there is a socket of the system's: nng 1.5 has an HTTP client, but a call that reaches
 * its deadline while the answer comes in crashes the process. HTTP/1.0 suffices, whose answer ends
 * with the connection. */

#define ETCD_KEY_TEXT (ETCD_KEY_BYTES_MAX * 4 / 3 + 4)           /* in base64, with the end */
#define ETCD_REQUEST 2048                                        /* room for any */
#define ETCD_ANSWER_MAX (2 * (DOORMAN_MESSAGE_BYTES_MAX + 4096)) /* a configuration in base64 */
#define ETCD_NO_LEASE 5                                          /* gRPC's NOT_FOUND */
#define ETCD_SLICE_MS 50 /* so often a call looks whether it is to end */

struct etcd {
    const struct addresses *members;
    size_t at; /* the member that answered last, or is next */
    size_t tries;
    doorman_time deadline; /* a duration: of one try */
    doorman_time ends_at;  /* of the one under way */
    bool hurried;          /* what is under way is to end; atomic */
    doorman_error error;   /* why the last call failed */
};

/* For a start nothing else waits for the answer, so a busy etcd has time. */
static void etcd_init(struct etcd *etcd, const struct settings *settings) {
    etcd->members = &settings->etcd;
    etcd->tries = settings->etcd.count;
    etcd->deadline = 5 * DOORMAN_SECOND;
}

/* Five tries fit into the time for which a master is master, but none is too short for a disk. */
static void etcd_press(struct etcd *etcd, const struct settings *settings) {
    etcd->deadline = settings->election_ttl * DOORMAN_SECOND / 5;
    if (etcd->deadline < DOORMAN_SECOND / 2) etcd->deadline = DOORMAN_SECOND / 2;
    if (etcd->deadline > 2 * DOORMAN_SECOND) etcd->deadline = 2 * DOORMAN_SECOND;
}

/* Ends the call that is under way, and any other; another thread may ask for it. */
static void etcd_hurry(struct etcd *etcd, bool hurried) {
    __atomic_store_n(&etcd->hurried, hurried, __ATOMIC_RELAXED);
}

static bool etcd_hurried(const struct etcd *etcd) {
    return __atomic_load_n(&etcd->hurried, __ATOMIC_RELAXED);
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The text has room for a key, and a key is all that is given. */
static void base64_write(char text[ETCD_KEY_TEXT], const char *bytes) {
    size_t count = strlen(bytes);
    for (size_t i = 0; i < count; i += 3) {
        uint32_t bits = 0;
        for (size_t k = i; k < i + 3; k++) {
            bits = bits << 8 | (k < count ? (unsigned char)bytes[k] : 0);
        }
        for (size_t k = 0; k < 4; k++, bits <<= 6) {
            *text++ = i + k > count ? '=' : base64_digits[bits >> 18 & 63];
        }
    }
    *text = 0;
}

/* Up to the first character that is no digit: the padding, or the end.
 *   room      in bytes, of which one is for a 0 at the end
 *   returns   the number of bytes; room: they do not fit */
static size_t base64_read(char *bytes, size_t room, const char *text) {
    size_t count = 0;
    uint32_t bits = 0;
    unsigned held = 0;
    for (const char *digit; count < room && *text; text++) {
        if ((digit = strchr(base64_digits, *text)) == NULL) break;
        bits = bits << 6 | (uint32_t)(digit - base64_digits);
        held += 6;
        if (held < 8) continue;
        held -= 8;
        bytes[count++] = (char)(bits >> held & 255);
    }
    if (count < room) bytes[count] = 0;
    return count;
}

/* Waits until a socket is ready. 0, or what errno would say. */
static int etcd_wait(const struct etcd *etcd, int fd, short events) {
    struct pollfd ready = {.fd = fd, .events = events};
    int count = 0;
    while (count == 0 && doorman_clock() < etcd->ends_at && !etcd_hurried(etcd)) {
        count = poll(&ready, 1, ETCD_SLICE_MS);
        if (count < 0 && errno == EINTR) count = 0;
    }
    return count > 0 ? 0 : count < 0 ? errno : etcd_hurried(etcd) ? ECANCELED : ETIMEDOUT;
}

/* A connection to one address; *fd is -1 where there is none. */
static int etcd_connect_to(const struct etcd *etcd, const struct addrinfo *address, int *fd) {
    socklen_t bytes = sizeof(int);
    int error = 0;
    *fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0 || connect(*fd, address->ai_addr, address->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
        error = etcd_wait(etcd, *fd, POLLOUT);
        if (error == 0) getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error != 0 && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return error;
}

/* To the first address of a name that can be reached. Looking it up has the time-outs of the
 * system's resolver. NULL, or what is wrong. */
static const char *etcd_connect(const struct etcd *etcd, const nng_url *url, int *fd) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int unknown = getaddrinfo(url->u_hostname, url->u_port, &hints, &list), error = 0;
    const char *why = unknown ? gai_strerror(unknown) : NULL;
    *fd = -1;
    for (const struct addrinfo *at = list; at && *fd < 0; at = at->ai_next) {
        error = etcd_connect_to(etcd, at, fd);
        why = error ? strerror(error) : NULL;
    }
    if (list) freeaddrinfo(list);
    return why;
}

static int etcd_send(const struct etcd *etcd, int fd, const char *text) {
    int error = 0;
    while (error == 0 && *text) {
        error = etcd_wait(etcd, fd, POLLOUT);
        ssize_t sent = error == 0 ? send(fd, text, strlen(text), MSG_NOSIGNAL) : 0;
        if (sent > 0) text += sent;
        if (sent < 0 && errno != EAGAIN) error = errno;
    }
    return error;
}

/* Up to the end of the connection; with a 0 behind it. */
static int etcd_receive(const struct etcd *etcd, int fd, doorman_buffer *answer) {
    int error = 0;
    for (ssize_t got = 1; error == 0 && got != 0;) {
        if (answer->bytes + 1 >= answer->capacity) {
            size_t capacity = answer->capacity ? 2 * answer->capacity : 4096;
            char *text = capacity <= ETCD_ANSWER_MAX ? realloc(answer->text, capacity) : NULL;
            error = text ? 0 : ENOMEM;
            if (text) *answer = (doorman_buffer){text, answer->bytes, capacity};
        }
        if (error == 0) error = etcd_wait(etcd, fd, POLLIN);
        if (error == 0) {
            got = recv(fd, answer->text + answer->bytes, answer->capacity - answer->bytes - 1, 0);
            if (got < 0 && errno != EAGAIN) error = errno;
            if (got > 0) answer->bytes += (size_t)got;
        }
    }
    if (answer->text) answer->text[answer->bytes] = 0;
    return error;
}

/* One request to one member. NULL, or what is wrong. */
static const char *etcd_exchange(struct etcd *etcd, const char *path, const char *body,
                                 doorman_buffer *answer) {
    char request[ETCD_REQUEST];
    nng_url *url = NULL;
    int fd = -1, error = 0;
    const char *why = NULL;
    etcd->ends_at = doorman_clock() + etcd->deadline;
    if (nng_url_parse(&url, etcd->members->items[etcd->at]) != 0) return strerror(ENOMEM);
    snprintf(request, sizeof request,
             "POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             path, url->u_host, strlen(body), body);
    why = etcd_connect(etcd, url, &fd);
    if (!why) error = etcd_send(etcd, fd, request);
    if (!why && error == 0) error = etcd_receive(etcd, fd, answer);
    if (fd >= 0) close(fd);
    nng_url_free(url);
    return why ? why : error ? strerror(error) : NULL;
}

/* What a member has answered, where it is an answer: also that there is no such lease. */
static cJSON *etcd_read_answer(struct etcd *etcd, const doorman_buffer *answer) {
    const char *body = answer->text ? strstr(answer->text, "\r\n\r\n") : NULL;
    cJSON *tree = body ? cJSON_Parse(body) : NULL;
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(tree, "code");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    bool no_lease = cJSON_IsNumber(code) && code->valueint == ETCD_NO_LEASE;
    if (!cJSON_IsObject(tree) || (error && !no_lease)) {
        bool said = cJSON_IsString(error);
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %.200s",
                 etcd->members->items[etcd->at], said ? error->valuestring : "no etcd's answer");
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

static cJSON *etcd_try(struct etcd *etcd, const char *path, const char *body) {
    doorman_buffer answer = {NULL, 0, 0};
    const char *why = etcd_exchange(etcd, path, body, &answer);
    cJSON *tree = why ? NULL : etcd_read_answer(etcd, &answer);
    if (why) {
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %s",
                 etcd->members->items[etcd->at], why);
    }
    free(answer.text);
    return tree;
}

/* The answer as a tree, which the caller deletes; NULL: there is none, see error. A call that is
 * tried again may have been heard the first time; none here does harm when it is heard twice. */
__attribute__((format(printf, 3, 4))) static cJSON *etcd_call(struct etcd *etcd, const char *path,
                                                              const char *format, ...) {
    char body[ETCD_REQUEST / 4 * 3];
    cJSON *answer = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    for (size_t tries = 0; !answer && tries < etcd->tries && !etcd_hurried(etcd); tries++) {
        answer = etcd_try(etcd, path, body);
        if (!answer) etcd->at = (etcd->at + 1) % etcd->members->count;
    }
    return answer;
}

/* A number at a key of an object, as the text that it is; "0" where there is none, as etcd leaves
 * out what is 0. */
static const char *etcd_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "0";
}

/* What stands at a key.
 *   out       the entry, within the answer; NULL: nothing stands there
 *   returns   the answer, which the caller deletes; NULL: there is none */
static cJSON *etcd_get(struct etcd *etcd, const char *key, const cJSON **out) {
    char name[ETCD_KEY_TEXT];
    base64_write(name, key);
    cJSON *answer = etcd_call(etcd, "/v3/kv/range", "{\"key\":\"%s\"}", name);
    *out = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answer, "kvs"), 0);
    return answer;
}

/* The bytes of an entry, as a text. false: they do not fit. */
static bool etcd_read_value(const cJSON *entry, char *bytes, size_t room, size_t *count) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(entry, "value");
    *count = base64_read(bytes, room, cJSON_IsString(value) ? value->valuestring : "");
    return *count < room;
}

#define ETCD_REVISION 24 /* room for a revision: 64 bits */

static doorman_status etcd_parse_config(const cJSON *entry, doorman_config **out,
                                        doorman_error *error) {
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    size_t bytes = 0, room = DOORMAN_MESSAGE_BYTES_MAX + 2;
    char *text = (char *)malloc(room);
    if (text) {
        etcd_read_value(entry, text, room, &bytes);
        status = doorman_json_config(out, text, bytes, error);
    }
    free(text);
    return status;
}

/* Loads the configuration from a key, if that has changed.
 *   revision   in/out: of the value that was looked at last; "": none
 *   out        NULL where it has not changed, or is wrong
 *   error      what is wrong; "": nothing
 *   returns    false: etcd does not answer */
static bool etcd_load_config(struct etcd *etcd, const char *key, char revision[ETCD_REVISION],
                             doorman_config **out, doorman_error *error) {
    const cJSON *entry = NULL;
    cJSON *answer = etcd_get(etcd, key, &entry);
    const char *now = etcd_number(entry, "mod_revision");
    bool changed = answer && strcmp(now, revision) != 0;
    *out = NULL;
    error->text[0] = 0;
    if (changed) {
        snprintf(revision, ETCD_REVISION, "%s", now);
        doorman_status status = DOORMAN_NOT_FOUND;
        if (entry) status = etcd_parse_config(entry, out, error);
        if (!entry) snprintf(error->text, sizeof error->text, "there is no such key");
        if (status != DOORMAN_OK && !error->text[0]) {
            snprintf(error->text, sizeof error->text, "%s", doorman_status_text(status));
        }
        if (status == DOORMAN_OUT_OF_MEMORY) revision[0] = 0; /* to be tried again */
    }
    cJSON_Delete(answer);
    return answer != NULL;
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

/* From where --config says.
 *   etcd       may be NULL where that is a file
 *   revision   out: of the key of etcd's */
static bool config_fetch(doorman_config **out, const struct settings *settings, struct etcd *etcd,
                         char revision[ETCD_REVISION], doorman_error *error) {
    revision[0] = 0;
    if (!settings->config_key) return config_load(out, settings->config, error);
    if (!etcd_load_config(etcd, settings->config_key, revision, out, error)) *error = etcd->error;
    return *out != NULL;
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
    struct etcd etcd = {.at = 0};
    char revision[ETCD_REVISION];
    etcd_init(&etcd, settings);
    if (config_fetch(&config, settings, &etcd, revision, &error)) {
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

/* For so long giving up mastership may take: a call to etcd, or a name that cannot be looked up. */
#define RESIGNING_SECONDS 4

/* For so long closing the sockets may take, see leave. */
#define CLOSING_SECONDS 2

#define QUIET (60 * DOORMAN_SECOND) /* between two lines about the same trouble */

/* So many leases have to go before memory is given back: some MB; and so long it is not done again.
 */
#define TRIM_LEASES 10000
#define TRIM_INTERVAL (10 * DOORMAN_SECOND)

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
    TROUBLE_ETCD_SILENT,
    TROUBLE_COUNT
};
static const char *const trouble_texts[TROUBLE_COUNT] = {
    [DOORMAN_EVENT_UNMATCHED] = "a resource that no template matches was asked for",
    [DOORMAN_EVENT_UNKNOWN_CLAIM] = "a holder named a lease that is not known here",
    [DOORMAN_EVENT_EXCESS_CLAIM] = "a holder claims more than it was given",
    [DOORMAN_EVENT_EXPIRED] = "a lease has expired",
    [DOORMAN_EVENT_FULL] = "a bound was reached, and a request refused",
    [DOORMAN_EVENT_UNKNOWN_KIND] = "the parent names an algorithm that is not known here",
    [DOORMAN_EVENT_SHARED_ID] = "two processes seem to use one id, and each uses the whole share",
    [TROUBLE_REFUSED] = "a message was refused",
    [TROUBLE_PARENT_SILENT] = "the parent cannot be reached",
    [TROUBLE_PARENT_ANSWER] = "the parent refuses, or its answer makes no sense",
    [TROUBLE_ETCD_SILENT] = "etcd cannot be reached",
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

enum election_state { ELECTION_NOBODY, ELECTION_STANDBY, ELECTION_MASTER, ELECTION_RESIGNED };

/* What this process knows of the election, and its way to etcd; its thread's alone, but for what
 * the lock of the service guards. */
struct election {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct etcd etcd;
    char lease[24];               /* etcd's name for it, a number; "": none */
    doorman_time right_until;     /* what the lease is good for, should the key be ours by it */
    char revision[ETCD_REVISION]; /* of the configuration that was looked at last */
    bool heard;                   /* etcd answered, the last time */
    bool reload;                  /* look at the configuration again; guarded, as what follows */
    enum election_state state;    /* election_move moves it */
    doorman_time until;
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* the master's; "": not known */
};

/* What is counted for the metrics: messages by what they ask and how it went, and how long they
 * took. The numbers are atomic, and each is right by itself. */
enum {
    CALL_DISCOVERY,
    CALL_GET_CAPACITY,
    CALL_GET_SERVER_CAPACITY,
    CALL_RELEASE_CAPACITY,
    CALL_UNKNOWN, /* what could not be read */
    CALL_COUNT
};
static const char *const call_names[CALL_COUNT] = {
    "discovery", "get_capacity", "get_server_capacity", "release_capacity", "unknown"};

#define BUCKET_COUNT 12
static const double bucket_bounds[BUCKET_COUNT] = {
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5};

/* Of all threads. On 32-bit x86 it would not be aligned by itself. */
typedef uint64_t counter __attribute__((aligned(8)));

struct counts {
    counter requests[CALL_COUNT][DOORMAN_STATUS_COUNT];
    counter buckets[CALL_COUNT][BUCKET_COUNT + 1]; /* the last is for all that took longer */
    counter nanoseconds[CALL_COUNT];
    counter parent[DOORMAN_STATUS_COUNT];
    counter unmatched, shared_id;
};

/* One state of a file. */
struct watched {
    uint64_t device, file; /* file 0: there is none */
    int64_t bytes, seconds, nanoseconds;
};

/* What became of the configuration; the error is of the last try, "" where that is in force. */
struct loading {
    time_t loaded_at;
    char error[512];
    struct watched watched; /* the main thread's own */
};

/* What the files of --tls-... hold; NULL: not given. */
struct pem {
    char *certificate, *key, *authority;
};

/* A request of HTTP, in pieces of its head. */
struct call {
    const char *verb, *path, *query, *version, *head, *body;
    size_t body_bytes;
    const struct route *route; /* NULL: none, or a method of the protocol */
};

static void count_add(counter *count, uint64_t more) {
    __atomic_fetch_add(count, more, __ATOMIC_RELAXED);
}

/* A message that was answered.
 *   request   NULL: it could not be read */
static void count_request(struct counts *counts, const doorman_request *request,
                          doorman_status status, doorman_time duration) {
    static const int calls[DOORMAN_METHOD_COUNT] = {CALL_DISCOVERY, CALL_GET_CAPACITY,
                                                    CALL_RELEASE_CAPACITY};
    int call = request ? calls[request->method] : CALL_UNKNOWN, bucket = 0;
    if (call == CALL_GET_CAPACITY && request->is_server) call = CALL_GET_SERVER_CAPACITY;
    double seconds = (double)duration / (double)DOORMAN_SECOND;
    while (bucket < BUCKET_COUNT && seconds > bucket_bounds[bucket]) bucket++;
    count_add(&counts->requests[call][status], 1);
    count_add(&counts->buckets[call][bucket], 1);
    count_add(&counts->nanoseconds[call], (uint64_t)duration);
}

struct service {
    const struct settings *settings;
    const char *id, *node, *advertise;
    doorman_time started_at;
    struct pem pem;
    nng_tls_config *tls;     /* NULL: none */
    struct http *http;       /* NULL: off */
    struct history *history; /* as long as there is HTTP */
    struct counts counts;
    size_t connection_count; /* of the socket; atomic */
    nng_socket socket;
    char *urls[ADDRESS_MAX]; /* as they came out: a port of 0 has become a real one */
    size_t url_count;
    struct lane lanes[LANE_COUNT];
    unsigned sending_count; /* of the lanes; atomic */
    pthread_mutex_t lock;   /* of all that follows, while lanes run */
    doorman_config *config;
    doorman_server *server;
    struct trouble troubles[TROUBLE_COUNT];
    uint64_t gone_count;   /* leases, since memory was given back */
    doorman_time trim_due; /* not before */
    bool trim_again;       /* even if no more leases go */
    bool stopping;
    struct loading loading;
    struct upward upward;
    struct election election;
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
        service->gone_count++;
        snprintf(amount, sizeof amount, "%.15g", event->amount);
        say(service->settings, LEVEL_DEBUG, trouble_texts[event->kind], "resource",
            event->resource_id, "holder", event->holder_id, "amount", amount, END);
    } else {
        if (event->kind == DOORMAN_EVENT_UNMATCHED) count_add(&service->counts.unmatched, 1);
        if (event->kind == DOORMAN_EVENT_SHARED_ID) count_add(&service->counts.shared_id, 1);
        service->troubles[event->kind].unsaid_count++;
        trouble_say(service, (int)event->kind, "resource", event->resource_id, event->holder_id,
                    doorman_clock());
    }
}

/* Puts a configuration that has been loaded into force, and says so; or says what is wrong with it,
 * which changes nothing (V1).
 *   config   taken over; NULL: it could not be loaded, see error */
static void service_take_config(struct service *service, doorman_config *config,
                                const doorman_error *error) {
    const char *why = error->text;
    bool loaded = config != NULL;
    if (loaded) {
        pthread_mutex_lock(&service->lock);
        doorman_status status = doorman_server_configure(service->server, config, doorman_clock());
        loaded = status == DOORMAN_OK;
        why = doorman_status_text(status);
        if (loaded) {
            doorman_config *last = service->config;
            service->config = config;
            config = last;
        }
        pthread_mutex_unlock(&service->lock);
    }
    doorman_config_destroy(config);
    pthread_mutex_lock(&service->lock);
    if (loaded) service->loading.loaded_at = time(NULL);
    snprintf(service->loading.error, sizeof service->loading.error, "%s", loaded ? "" : why);
    pthread_mutex_unlock(&service->lock);
    if (loaded) {
        say(service->settings, LEVEL_INFO, "configuration loaded", "file",
            service->settings->config, END);
    } else {
        say(service->settings, LEVEL_ERROR, "configuration refused; the last one stays", "file",
            service->settings->config, "error", why, END);
    }
}

/* By a clock that stands still while the machine is suspended, as condition variables must. */
static bool condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    bool done = pthread_condattr_init(&monotonic) == 0 &&
                pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return done;
}

static void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, doorman_time nap) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)nap;
    until.tv_sec += until.tv_nsec / (long)DOORMAN_SECOND;
    until.tv_nsec %= (long)DOORMAN_SECOND;
    pthread_cond_timedwait(condition, lock, &until);
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

/* Answers a message, whatever way it came: the reply is in the exchange. It may be empty where
 * there is no memory for one.
 * The clock is read with the lock held, so that no call sees a time before that of the last one. */
static doorman_status service_answer(struct service *service, doorman_json_exchange *exchange,
                                     const char *text, size_t bytes) {
    doorman_time started_at = doorman_clock();
    doorman_status read = doorman_json_exchange_read(exchange, text, bytes);
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    if (!service->stopping) {
        doorman_json_exchange_decide(exchange, service->server, now);
        bool releases = exchange->request.method == DOORMAN_RELEASE_CAPACITY;
        if (read == DOORMAN_OK && releases) service->gone_count += exchange->request.ask_count;
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
    count_request(&service->counts, read == DOORMAN_OK ? &exchange->request : NULL, status,
                  doorman_clock() - started_at);
    return status;
}

/* Puts the answer to a message in the place of its text. false: there is no memory for one, and the
 * peer has to ask again. */
static bool lane_answer(struct lane *lane, nng_msg *message) {
    doorman_json_exchange *exchange = &lane->exchange;
    const doorman_buffer *reply = &exchange->reply;
    service_answer(lane->service, exchange, (const char *)nng_msg_body(message),
                   nng_msg_len(message));
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
        if (status == DOORMAN_STALE) status = DOORMAN_OK; /* asked by the master that it was */
        count_add(&service->counts.parent[status], 1);
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
    upward->wakes_at = now + nap;
    condition_wait(&upward->wake, &service->lock, nap);
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
    const doorman_tls tls = {service->pem.authority, service->pem.certificate, service->pem.key};
    doorman_carrier_options options = {.asker = doorman_server_asker(service->server),
                                       .on_news = upward_on_news,
                                       .context = service,
                                       .tls = tls.authority ? &tls : NULL};
    return condition_init(&upward->wake) &&
           doorman_carrier_create(&upward->carrier, &options) == DOORMAN_OK;
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

/* ---- >>election ----------------------------------------------------------------------------- */
/* One thread looks at etcd every second, or five times within the TTL: at the key of the election,
 * whose value is the address of the master, and which goes with the master's lease (V2); and at
 * that of the configuration (V1). It has the lock of the service only to use what it found.
 *
 *     state     meaning                    event                              next state
 *     NOBODY    nobody is known to be      the key stands, by our lease       MASTER
 *               the master                 the key stands, by another's       STANDBY
 *     STANDBY   another process is, at     as above                           MASTER, STANDBY
 *               `address`                  gone, or not heard of for the TTL  NOBODY
 *     MASTER    this process is            our lease is renewed               MASTER
 *                                          the key stands, by another's       STANDBY
 *                                          gone, or the last renewal too old  NOBODY
 *     RESIGNED  this one gives the key     (from all others: the process is   none
 *               back, for good             to end)
 *
 * A master may answer until 0.95 TTL after it sent the last renewal that succeeded. etcd counts the
 * whole TTL, from when it took that in, so that nobody else can have the key before, while clocks
 * differ by less than 5 % in rate. The server object holds `until` against the clock at each
 * request, and needs no news for it: a process that wakes up after a long sleep, or cannot reach
 * etcd, does not answer as master. Who wins learns from its victory on (R8): where the key went is
 * seen by the same look that then creates it, so there is nothing to know from before. */

#define ELECTION_PERIOD DOORMAN_SECOND
#define ELECTION_PERIOD_NOBODY (DOORMAN_SECOND / 10) /* somebody is about to win */

/* What a look at etcd has found. */
struct finding {
    enum election_state state;
    doorman_time until; /* it holds for so long */
    char address[DOORMAN_ID_BYTES_MAX + 1];
};

static void election_say(const struct service *service, const struct finding *finding) {
    static const char *const texts[] = {
        [ELECTION_NOBODY] = "nobody is known to be the master",
        [ELECTION_STANDBY] = "another server is the master",
        [ELECTION_MASTER] = "this server is the master",
        [ELECTION_RESIGNED] = "this server is out of the election",
    };
    say(service->settings, LEVEL_INFO, texts[finding->state], "key",
        service->settings->election_key, finding->address[0] ? "master" : END, finding->address,
        END);
}

/* Nothing else moves the election. With the lock held. */
static void election_move(struct service *service, const struct finding *to, doorman_time now) {
    struct election *election = &service->election;
    assert(election->state != ELECTION_RESIGNED);
    doorman_mastership mastership = {.address = to->address[0] ? to->address : NULL,
                                     .until = to->state == ELECTION_MASTER ? to->until : 0};
    if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        mastership.address = NULL; /* it is no address, so nobody can be sent there */
        doorman_server_set_master(service->server, &mastership, now);
    }
    bool was_master = election->state == ELECTION_MASTER;
    bool lapsed = was_master && now >= election->until;
    if (was_master && to->state != ELECTION_MASTER) service->gone_count += TRIM_LEASES; /* or all */
    bool news =
        lapsed || to->state != election->state || strcmp(to->address, election->address) != 0;
    election->state = to->state;
    election->until = to->until;
    snprintf(election->address, sizeof election->address, "%s", to->address);
    if (news) election_say(service, to);
}

/* Makes a lease, or renews the one there is; then `lease` and `right_until` are as etcd says.
 *   returns   false: etcd does not answer */
static bool election_renew(struct election *election, int ttl) {
    doorman_time sent = doorman_clock();
    bool has = election->lease[0] != 0;
    struct etcd *etcd = &election->etcd;
    cJSON *answer = has ? etcd_call(etcd, "/v3/lease/keepalive", "{\"ID\":\"%s\"}", election->lease)
                        : etcd_call(etcd, "/v3/lease/grant", "{\"TTL\":\"%d\"}", ttl);
    const cJSON *lease = has ? cJSON_GetObjectItemCaseSensitive(answer, "result") : answer;
    long long seconds = strtoll(etcd_number(lease, "TTL"), NULL, 10);
    if (answer) {
        const char *id = seconds > 0 ? etcd_number(lease, "ID") : "";
        snprintf(election->lease, sizeof election->lease, "%s", id);
    }
    if (seconds > TTL_MAX) seconds = TTL_MAX;
    if (seconds > 0) election->right_until = sent + seconds * (DOORMAN_SECOND / 100 * 95);
    cJSON_Delete(answer);
    return answer != NULL;
}

/* Creates the key, unless somebody else has.
 *   returns   false: etcd does not answer */
static bool election_create_key(struct service *service, bool *created) {
    struct election *election = &service->election;
    char key[ETCD_KEY_TEXT], value[ETCD_KEY_TEXT];
    base64_write(key, service->settings->election_key);
    base64_write(value, service->advertise);
    cJSON *answer = etcd_call(
        &election->etcd, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%s\"}}]}",
        key, key, value, election->lease);
    *created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "succeeded"));
    cJSON_Delete(answer);
    return answer != NULL;
}

/* The key is not there. It may have been another's since the last look, so that a master begins
 * anew. */
static bool election_campaign(struct service *service, struct finding *out) {
    struct election *election = &service->election;
    bool heard = true, created = false;
    if (election->state != ELECTION_MASTER) {
        if (!election->lease[0]) {
            heard = election_renew(election, service->settings->election_ttl);
        }
        if (heard && election->lease[0]) heard = election_create_key(service, &created);
    }
    if (created) out->state = ELECTION_MASTER;
    return heard;
}

/* Whose is the key? One at our address by a lease that is not ours is of a process that was there
 * before, and nobody should be sent back here. */
static void election_read_key(struct service *service, const cJSON *entry, struct finding *out) {
    struct election *election = &service->election;
    size_t bytes = 0;
    bool own = election->lease[0] && strcmp(etcd_number(entry, "lease"), election->lease) == 0;
    out->state = own ? ELECTION_MASTER : ELECTION_STANDBY;
    if (!own) election->lease[0] = 0; /* it is of no use any more, and ends */
    if (!etcd_read_value(entry, out->address, sizeof out->address, &bytes) ||
        strcmp(out->address, service->advertise) == 0) {
        out->address[0] = 0;
    }
}

/* Renews what there is to renew, looks at the key, and creates it where it is not there.
 *   returns   false: etcd does not answer */
static bool election_look(struct service *service, struct finding *out) {
    struct election *election = &service->election;
    const cJSON *entry = NULL;
    cJSON *answer = NULL;
    int ttl = service->settings->election_ttl;
    doorman_time sent = doorman_clock();
    *out = (struct finding){.state = ELECTION_NOBODY};
    bool heard = !election->lease[0] || election_renew(election, ttl);
    if (heard) {
        answer = etcd_get(&election->etcd, service->settings->election_key, &entry);
        heard = answer != NULL;
    }
    if (entry) {
        election_read_key(service, entry, out);
    } else if (heard) {
        heard = election_campaign(service, out);
    }
    cJSON_Delete(answer);
    bool master = out->state == ELECTION_MASTER;
    out->until = master ? election->right_until : sent + ttl * DOORMAN_SECOND;
    if (master) snprintf(out->address, sizeof out->address, "%s", service->advertise);
    return heard;
}

/* One look, and what follows from it. What has become too old by the time that it is known, or has
 * not been heard again, counts for nothing.
 *   returns   false: etcd does not answer */
static bool election_step(struct service *service) {
    const struct election *election = &service->election;
    struct finding finding;
    bool heard = election_look(service, &finding);
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    bool old = now >= (heard ? finding.until : election->until);
    if (old) finding = (struct finding){.state = ELECTION_NOBODY, .until = DOORMAN_NEVER};
    if (heard || old) election_move(service, &finding, now);
    pthread_mutex_unlock(&service->lock);
    return heard;
}

/* V1. One that is wrong is said once, since its revision has been looked at then. */
static bool election_watch_config(struct service *service) {
    struct election *election = &service->election;
    doorman_config *config = NULL;
    doorman_error error;
    bool heard = etcd_load_config(&election->etcd, service->settings->config_key,
                                  election->revision, &config, &error);
    if (config || error.text[0]) service_take_config(service, config, &error);
    return heard;
}

/* With the lock held. */
static void election_note(struct service *service, bool heard) {
    struct election *election = &service->election;
    const char *member = election->etcd.members->items[election->etcd.at];
    if (!heard && !service->stopping) {
        service->troubles[TROUBLE_ETCD_SILENT].unsaid_count++;
        trouble_say(service, TROUBLE_ETCD_SILENT, "key",
                    service->settings->election_key ? service->settings->election_key
                                                    : service->settings->config_key,
                    election->etcd.error.text, doorman_clock());
    } else if (heard && !election->heard) {
        say(service->settings, LEVEL_INFO, "etcd answers", "etcd", member, END);
    }
    election->heard = heard;
}

/* With the lock held; gives it up while it sleeps. */
static void election_sleep(struct service *service, doorman_time began) {
    struct election *election = &service->election;
    doorman_time period = service->settings->election_ttl * DOORMAN_SECOND / 5;
    bool nobody = service->settings->election_key && election->state == ELECTION_NOBODY;
    if (period > ELECTION_PERIOD) period = ELECTION_PERIOD;
    if (nobody && election->heard) period = ELECTION_PERIOD_NOBODY;
    doorman_time nap = began + period - doorman_clock();
    if (nap > 0 && !service->stopping) condition_wait(&election->wake, &service->lock, nap);
}

/* The key is given back when no request is answered any more, so that the next master has it at
 * once. Where etcd does not answer now, the key goes with its lease. */
static void election_resign(struct service *service) {
    struct election *election = &service->election;
    const struct finding finding = {.state = ELECTION_RESIGNED, .until = DOORMAN_NEVER};
    pthread_mutex_lock(&service->lock);
    election_move(service, &finding, doorman_clock());
    pthread_mutex_unlock(&service->lock);
    if (election->lease[0]) {
        election->etcd.tries = 1;
        etcd_hurry(&election->etcd, false);
        cJSON_Delete(
            etcd_call(&election->etcd, "/v3/lease/revoke", "{\"ID\":\"%s\"}", election->lease));
    }
}

static void *election_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct election *election = &service->election;
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        doorman_time began = doorman_clock();
        if (election->reload) election->revision[0] = 0;
        election->reload = false;
        pthread_mutex_unlock(&service->lock);
        bool heard = !service->settings->election_key || election_step(service);
        if (heard && service->settings->config_key) heard = election_watch_config(service);
        pthread_mutex_lock(&service->lock);
        election_note(service, heard);
        election_sleep(service, began);
    }
    pthread_mutex_unlock(&service->lock);
    if (service->settings->election_key) election_resign(service);
    return NULL;
}

/* Would other machines that were sent to this address come here? A loopback is fine: all may be on
 * one machine. */
static bool address_is_reachable(const char *address) {
    char host[INET6_ADDRSTRLEN] = "";
    struct in_addr four;
    struct in6_addr six;
    const char *at = strstr(address, "://");
    if (strncmp(address, "inproc:", 7) == 0 || !at) return false;
    if (strncmp(address, "ipc:", 4) == 0) return true;
    at += 3;
    bool bracket = *at == '[';
    size_t bytes = bracket ? strcspn(++at, "]") : strcspn(at, ":/");
    snprintf(host, sizeof host, "%.*s", (int)bytes, at);
    bool any = bytes == 0 || strcmp(host, "*") == 0;
    if (inet_pton(AF_INET, host, &four) == 1) any = four.s_addr == htonl(INADDR_ANY);
    if (inet_pton(AF_INET6, host, &six) == 1) any = IN6_IS_ADDR_UNSPECIFIED(&six);
    return !any;
}

static enum outcome election_start(struct service *service) {
    struct election *election = &service->election;
    etcd_press(&election->etcd, service->settings);
    election->heard = true;
    election->until = DOORMAN_NEVER;
    election->started = condition_init(&election->wake) &&
                        pthread_create(&election->thread, NULL, election_main, service) == 0;
    return election->started ? GO_ON : refuse(FAILED, "cannot ask etcd: no memory, or no thread");
}

/* When it returns the key has been given back. No call to etcd under way keeps it waiting. */
static void election_stop(struct service *service) {
    struct election *election = &service->election;
    if (election->started) {
        pthread_mutex_lock(&service->lock);
        service->stopping = true;
        etcd_hurry(&election->etcd, true);
        pthread_cond_signal(&election->wake);
        pthread_mutex_unlock(&service->lock);
        pthread_join(election->thread, NULL);
        pthread_cond_destroy(&election->wake);
        election->started = false;
    }
}

/* ---- >>text --------------------------------------------------------------------------------- */
/* What is told over HTTP is text that grows. Where memory runs out it takes no more, and `failed`
 * says so in the end, so that nobody has to look in between. What comes from outside goes in by
 * text_add_escaped alone, by the rules of the language that it stands in. */

struct text {
    doorman_buffer buffer;
    bool failed;
};

static void text_add_bytes(struct text *text, const char *bytes, size_t count) {
    doorman_buffer *buffer = &text->buffer;
    size_t needed = buffer->bytes + count + 1;
    if (!text->failed && needed > buffer->capacity) {
        size_t capacity = needed * 2;
        char *grown = (char *)realloc(buffer->text, capacity);
        text->failed = !grown;
        if (grown) *buffer = (doorman_buffer){grown, buffer->bytes, capacity};
    }
    if (text->failed) return;
    memcpy(buffer->text + buffer->bytes, bytes, count);
    buffer->bytes += count;
    buffer->text[buffer->bytes] = 0;
}

static void text_add(struct text *text, const char *plain) {
    text_add_bytes(text, plain, strlen(plain));
}

/* For numbers and names of our own: what would be longer than 1,023 bytes is cut off. */
__attribute__((format(printf, 2, 3))) static void text_addf(struct text *text, const char *format,
                                                            ...) {
    char made[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made, sizeof made, format, arguments);
    va_end(arguments);
    text_add(text, made);
}

/* What stands for a character in a language; NULL: the character itself. */
typedef const char *(*escape)(char character, char room[8]);

static const char *escape_html(char character, char room[8]) {
    (void)room;
    switch (character) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

static const char *escape_json(char character, char room[8]) {
    unsigned char code = (unsigned char)character;
    if (character != '"' && character != '\\' && code >= ' ') return NULL;
    snprintf(room, 8, "\\u%04x", code);
    return room;
}

static const char *escape_label(char character, char room[8]) {
    (void)room;
    switch (character) {
    case '\\': return "\\\\";
    case '"': return "\\\"";
    case '\n': return "\\n";
    default: return NULL;
    }
}

/* In the query of an address. */
static const char *escape_query(char character, char room[8]) {
    bool plain = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
                 (character >= '0' && character <= '9') || strchr("-._~/:", character);
    if (plain) return NULL;
    snprintf(room, 8, "%%%02X", (unsigned)(unsigned char)character);
    return room;
}

/* A resource's id in a configuration, where it would be a glob. */
static const char *escape_glob(char character, char room[8]) {
    if (!strchr("*?[]\\", character)) return escape_json(character, room);
    snprintf(room, 8, "\\\\%s%c", character == '\\' ? "\\" : "", character);
    return room;
}

static void text_add_escaped(struct text *text, const char *from, escape rule) {
    char room[8];
    for (; *from; from++) {
        const char *instead = rule(*from, room);
        if (instead) {
            text_add(text, instead);
        } else {
            text_add_bytes(text, from, 1);
        }
    }
}

/* The answer to a request of HTTP. */
struct reply {
    int code;
    const char *type, *more; /* further lines of the head */
    char nonce[33];          /* which styles and scripts are ours */
    struct text text;
};

static int hex_value(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *at = digit ? strchr(digits, digit | ('a' - 'A')) : NULL;
    return at && (digit <= '9' || digit >= 'A') ? (int)(at - digits) : -1;
}

/* A value of "name=value&name=value", decoded; what does not fit is cut off. false: there is none,
 * or it holds what no text does. */
static bool query_read(const char *query, const char *name, char *out, size_t room) {
    size_t name_bytes = strlen(name), bytes = 0;
    out[0] = 0;
    while (query && (strncmp(query, name, name_bytes) != 0 || query[name_bytes] != '=')) {
        query = strchr(query, '&');
        if (query) query++;
    }
    if (!query) return false;
    for (const char *at = query + name_bytes + 1; *at && *at != '&' && bytes + 1 < room; at++) {
        char character = *at == '+' ? ' ' : *at;
        if (*at == '%' && hex_value(at[1]) >= 0 && hex_value(at[2]) >= 0) {
            character = (char)(hex_value(at[1]) * 16 + hex_value(at[2]));
            at += 2;
        }
        if (!character) return false;
        out[bytes++] = character;
        out[bytes] = 0;
    }
    return true;
}

/* ---- >>survey ------------------------------------------------------------------------------- */
/* What the pages and the metrics tell, copied while the lock is held, so that all the writing goes
 * on without it. At most so many are copied: who has more is told a part of them, by name, and the
 * sum of the rest.
 *
 * A walk takes some 0.2 us a resource, or several where these are new to the caches, so that it is
 * made in slices. Between them whoever waits for the lock has it: it is not enough to let go of it,
 * as who sleeps wakes up too late to catch it. */
#define ROWS_MAX 100000
#define SLICE 1000 /* resources at once: less than 5 ms, with their leases that have ended */
#define SLICE_NAP_MS 1

/* Lets others have the lock for a moment. */
static void service_yield(struct service *service) {
    pthread_mutex_unlock(&service->lock);
    nng_msleep(SLICE_NAP_MS);
    pthread_mutex_lock(&service->lock);
}

/* Calls for each resource until that says false, with the lock held, but not from one slice to the
 * next. */
static void service_walk(struct service *service,
                         bool (*visit)(void *context, const doorman_server_resource *info),
                         void *context) {
    doorman_walk walk;
    doorman_server_resource info;
    doorman_time now = doorman_clock();
    doorman_server_walk_start(service->server, &walk);
    bool more = doorman_server_walk_next(service->server, &walk, &info, now);
    for (size_t count = 1; more; count++) {
        more = visit(context, &info);
        if (count % SLICE == 0) {
            service_yield(service);
            now = doorman_clock();
        }
        more = more && doorman_server_walk_next(service->server, &walk, &info, now);
    }
    doorman_server_walk_end(service->server, &walk);
}

struct row {
    char *id;
    doorman_server_resource info; /* but for its id and settings */
    doorman_kind kind;
    double overshoot; /* how much more than the capacity is out: what the promise is about */
};

struct survey {
    const char *filter; /* part of the ids of the rows, */
    size_t limit;       /* and how many there may be */
    doorman_time now;
    bool is_master, stopping, has_rest;
    char master[DOORMAN_ID_BYTES_MAX + 1]; /* "": nobody knows */
    size_t resource_count, leased_count, learning_count, holder_count, match_count;
    doorman_time learned_at, lease_end; /* the last; the first */
    struct row *rows;
    size_t row_count, row_capacity;
    struct row rest;
    bool failed; /* out of memory */
};

/* Whether a resource or lease list can grow by one; `items` moves. */
static bool reserve_row(void **items, size_t count, size_t *capacity, size_t bytes) {
    if (count == *capacity) {
        size_t more = *capacity ? *capacity * 2 : 64;
        void *grown = realloc(*items, more * bytes);
        if (!grown) return false;
        *items = grown;
        *capacity = more;
    }
    return true;
}

/* Are the amounts parts of a whole, the capacity? Else there is nothing to learn. */
static bool kind_is_whole(doorman_kind kind) {
    return kind != DOORMAN_STATIC_SHARE && kind != DOORMAN_NO_ALGORITHM;
}

static bool row_learning(const struct row *row, doorman_time now) {
    return kind_is_whole(row->kind) && row->info.learned_at > now;
}

/* Without an id yet. */
static struct row row_make(const doorman_server_resource *info) {
    struct row row = {.info = *info, .kind = info->settings->algorithm.kind};
    if (kind_is_whole(row.kind) && info->has > info->capacity) {
        row.overshoot = info->has - info->capacity;
    }
    return row;
}

static void survey_add_row(struct survey *survey, const doorman_server_resource *info) {
    void *rows = survey->rows;
    char *id = strdup(info->resource_id);
    if (id && reserve_row(&rows, survey->row_count, &survey->row_capacity, sizeof(struct row))) {
        survey->rows = (struct row *)rows;
        survey->rows[survey->row_count] = row_make(info);
        survey->rows[survey->row_count++].id = id;
    } else {
        survey->failed = true;
        free(id);
    }
}

static void survey_add_rest(struct survey *survey, const struct row *row) {
    doorman_server_resource *rest = &survey->rest.info;
    const doorman_server_resource *info = &row->info;
    bool later = info->learned_at > rest->learned_at;
    survey->has_rest = true;
    survey->rest.overshoot += row->overshoot;
    rest->capacity += info->capacity;
    rest->has += info->has;
    rest->counted += info->counted;
    rest->wants += info->wants;
    rest->subclients += info->subclients;
    rest->holder_count += info->holder_count;
    rest->expired_count += info->expired_count;
    if (kind_is_whole(row->kind) && later) rest->learned_at = info->learned_at;
}

static void survey_count(struct survey *survey, const doorman_server_resource *info) {
    bool learning = kind_is_whole(info->settings->algorithm.kind) && info->learned_at > survey->now;
    survey->resource_count++;
    survey->holder_count += info->holder_count;
    survey->learning_count += learning;
    if (learning && info->learned_at > survey->learned_at) survey->learned_at = info->learned_at;
    if (info->leased && (!survey->leased_count++ || info->lease_end < survey->lease_end)) {
        survey->lease_end = info->lease_end;
    }
}

/* Who is master is asked as anybody would. With the lock held. */
static void survey_mastership(struct survey *survey, struct service *service) {
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    survey->now = doorman_clock();
    survey->stopping = service->stopping;
    doorman_server_handle(service->server, &discovery, &response, NULL, survey->now);
    survey->is_master = response.is_master;
    const char *master = response.master_address ? response.master_address : "";
    snprintf(survey->master, sizeof survey->master, "%s", master);
}

static bool survey_visit(void *context, const doorman_server_resource *info) {
    struct survey *survey = (struct survey *)context;
    survey_count(survey, info);
    if (strstr(info->resource_id, survey->filter)) {
        survey->match_count++;
        if (survey->row_count < survey->limit) {
            survey_add_row(survey, info);
        } else {
            struct row row = row_make(info);
            survey_add_rest(survey, &row);
        }
    }
    return true;
}

/* Looks at all resources, which takes as long as there are of them.
 *   filter   part of the ids of those that are wanted
 *   limit    of rows; of those beyond it there is the sum */
static void survey_take(struct survey *survey, struct service *service, const char *filter,
                        size_t limit) {
    survey->filter = filter;
    survey->limit = limit;
    pthread_mutex_lock(&service->lock);
    survey_mastership(survey, service);
    service_walk(service, survey_visit, survey);
    pthread_mutex_unlock(&service->lock);
}

static void survey_uninit(struct survey *survey) {
    for (size_t i = 0; i < survey->row_count; i++) free(survey->rows[i].id);
    free(survey->rows);
}

static struct loading service_loading(struct service *service) {
    pthread_mutex_lock(&service->lock);
    struct loading loading = service->loading;
    pthread_mutex_unlock(&service->lock);
    return loading;
}

struct lease_row {
    char *id;
    doorman_server_lease info; /* but for its id */
};

/* One resource and its leases. */
struct leases {
    const char *resource_id;
    doorman_time now;
    bool found;
    struct row resource;
    char *description; /* NULL: none */
    struct lease_row *rows;
    size_t row_count, row_capacity;
    bool failed;
};

static void leases_add(struct leases *leases, const doorman_server_lease *info) {
    void *rows = leases->rows;
    char *id = strdup(info->holder_id);
    if (id &&
        reserve_row(&rows, leases->row_count, &leases->row_capacity, sizeof(struct lease_row))) {
        leases->rows = (struct lease_row *)rows;
        leases->rows[leases->row_count++] = (struct lease_row){id, *info};
    } else {
        leases->failed = true;
        free(id);
    }
}

static bool leases_visit(void *context, const doorman_server_resource *info) {
    struct leases *leases = (struct leases *)context;
    const char *description = info->settings->description;
    leases->found = strcmp(info->resource_id, leases->resource_id) == 0;
    if (leases->found) leases->resource = row_make(info);
    if (leases->found && description) leases->description = strdup(description);
    return !leases->found;
}

static void leases_take(struct leases *leases, struct service *service, const char *resource_id) {
    const void *cursor = NULL;
    doorman_server_lease lease;
    leases->resource_id = resource_id;
    pthread_mutex_lock(&service->lock);
    service_walk(service, leases_visit, leases);
    leases->now = doorman_clock();
    while (leases->found && leases->row_count < ROWS_MAX &&
           doorman_server_next_lease(service->server, resource_id, &cursor, &lease, leases->now)) {
        leases_add(leases, &lease);
    }
    pthread_mutex_unlock(&service->lock);
}

static void leases_uninit(struct leases *leases) {
    for (size_t i = 0; i < leases->row_count; i++) free(leases->rows[i].id);
    free(leases->rows);
    free(leases->description);
}

/* ---- >>history ------------------------------------------------------------------------------ */
/* What resources had and wanted in the last ten minutes, for the lines of the status page: a point
 * every ten seconds, of 10,000 resources at most (5 MB). The main thread adds the points; the list
 * is sorted by id, so that a new one is made by walking along the last one. */
#define HISTORY_POINTS 60
#define HISTORY_INTERVAL (10 * DOORMAN_SECOND)
#define HISTORY_MAX 10000

struct past {
    char *id;
    unsigned count; /* of the points that there are, the newest at the end */
    float has[HISTORY_POINTS], wants[HISTORY_POINTS];
};

struct history {
    pthread_mutex_t lock;
    struct past *pasts;
    size_t count;
    doorman_time due;
};

static int compare_row_ids(const void *left, const void *right) {
    return strcmp(((const struct row *)left)->id, ((const struct row *)right)->id);
}

static int compare_past_id(const void *id, const void *past) {
    return strcmp((const char *)id, ((const struct past *)past)->id);
}

static void past_add(struct past *past, float has, float wants) {
    if (past->count < HISTORY_POINTS) past->count++;
    memmove(past->has, past->has + 1, sizeof past->has - sizeof *past->has);
    memmove(past->wants, past->wants + 1, sizeof past->wants - sizeof *past->wants);
    past->has[HISTORY_POINTS - 1] = has;
    past->wants[HISTORY_POINTS - 1] = wants;
}

/* The first resources, and nothing of the rest: nobody waits for this one. */
static bool history_visit(void *context, const doorman_server_resource *info) {
    struct survey *survey = (struct survey *)context;
    survey_add_row(survey, info);
    return survey->row_count < HISTORY_MAX && !survey->failed;
}

static void history_take(struct survey *survey, struct service *service) {
    pthread_mutex_lock(&service->lock);
    service_walk(service, history_visit, survey);
    pthread_mutex_unlock(&service->lock);
}

/* Takes over what is known of those that are still there. The rows' ids become the list's. */
static struct past *history_make(const struct history *history, struct survey *survey) {
    struct past *pasts = (struct past *)calloc(survey->row_count + 1, sizeof *pasts);
    for (size_t i = 0, old = 0; pasts && i < survey->row_count; i++) {
        struct row *row = &survey->rows[i];
        while (old < history->count && strcmp(history->pasts[old].id, row->id) < 0) old++;
        if (old < history->count && strcmp(history->pasts[old].id, row->id) == 0) {
            pasts[i] = history->pasts[old];
        }
        pasts[i].id = row->id;
        row->id = NULL;
        past_add(&pasts[i], (float)row->info.has, (float)row->info.wants);
    }
    return pasts;
}

static void history_clear(struct history *history) {
    for (size_t i = 0; i < history->count; i++) free(history->pasts[i].id);
    free(history->pasts);
    history->pasts = NULL;
    history->count = 0;
}

static void history_sample(struct service *service) {
    struct history *history = service->history;
    struct survey survey = {.now = 0};
    history_take(&survey, service);
    if (survey.row_count > 1) {
        qsort(survey.rows, survey.row_count, sizeof *survey.rows, compare_row_ids);
    }
    struct past *pasts = survey.failed ? NULL : history_make(history, &survey);
    if (pasts) {
        pthread_mutex_lock(&history->lock);
        history_clear(history);
        history->pasts = pasts;
        history->count = survey.row_count;
        pthread_mutex_unlock(&history->lock);
    }
    survey_uninit(&survey);
}

/* A copy of the past of a resource; without points where it has none. */
static struct past history_find(struct service *service, const char *id) {
    struct history *history = service->history;
    struct past found = {.count = 0};
    pthread_mutex_lock(&history->lock);
    const struct past *past = NULL;
    if (history->count > 0) {
        past = (const struct past *)bsearch(id, history->pasts, history->count,
                                            sizeof *history->pasts, compare_past_id);
    }
    if (past) found = *past;
    pthread_mutex_unlock(&history->lock);
    found.id = NULL;
    return found;
}

/* ---- >>metrics ------------------------------------------------------------------------------ */
/* V4 For Prometheus, by its conventions. Series are made of SERIES_MAX resources, and the sum of
 *    the rest: who counts by resource pays for each. */
#define SERIES_MAX 1000

static void metrics_head(struct text *text, const char *name, const char *type, const char *help) {
    text_addf(text, "# HELP doorman_%s %s\n# TYPE doorman_%s %s\n", name, help, name, type);
}

static void metrics_one(struct text *text, const char *name, const char *help, double value) {
    metrics_head(text, name, "gauge", help);
    text_addf(text, "doorman_%s %.17g\n", name, value);
}

static uint64_t count_read(const counter *count) {
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void metrics_count(struct text *text, const char *name, const char *help,
                          const counter *count) {
    metrics_head(text, name, "counter", help);
    text_addf(text, "doorman_%s %" PRIu64 "\n", name, count_read(count));
}

static void metrics_requests(struct text *text, const struct counts *counts) {
    metrics_head(text, "server_requests_total", "counter", "Messages answered, by how it went.");
    for (int call = 0; call < CALL_COUNT; call++) {
        for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
            uint64_t count = count_read(&counts->requests[call][code]);
            if (count == 0 && code != DOORMAN_OK) continue;
            text_addf(text,
                      "doorman_server_requests_total{method=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                      call_names[call], doorman_status_name((doorman_status)code), count);
        }
    }
}

static void metrics_durations(struct text *text, const struct counts *counts) {
    const char *name = "doorman_server_request_duration_seconds";
    metrics_head(text, "server_request_duration_seconds", "histogram",
                 "Time from a message's arrival to its answer, reading and writing included.");
    for (int call = 0; call < CALL_COUNT; call++) {
        const char *method = call_names[call];
        uint64_t sum = 0;
        for (int i = 0; i < BUCKET_COUNT; i++) {
            sum += count_read(&counts->buckets[call][i]);
            text_addf(text, "%s_bucket{method=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, method,
                      bucket_bounds[i], sum);
        }
        sum += count_read(&counts->buckets[call][BUCKET_COUNT]);
        text_addf(text,
                  "%s_bucket{method=\"%s\",le=\"+Inf\"} %" PRIu64 "\n"
                  "%s_sum{method=\"%s\"} %.9f\n%s_count{method=\"%s\"} %" PRIu64 "\n",
                  name, method, sum, name, method,
                  (double)count_read(&counts->nanoseconds[call]) / 1e9, name, method, sum);
    }
}

static void metrics_parent(struct text *text, const struct counts *counts) {
    metrics_head(text, "server_parent_requests_total", "counter",
                 "Requests to the parent, by how it went.");
    for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
        uint64_t count = count_read(&counts->parent[code]);
        if (count == 0 && code != DOORMAN_OK) continue;
        text_addf(text, "doorman_server_parent_requests_total{code=\"%s\"} %" PRIu64 "\n",
                  doorman_status_name((doorman_status)code), count);
    }
}

/* What there is to say of each resource. */
enum measure {
    MEASURE_CAPACITY,
    MEASURE_HAS,
    MEASURE_WANTS,
    MEASURE_CLIENTS,
    MEASURE_SUBCLIENTS,
    MEASURE_SAFE_CAPACITY,
    MEASURE_LEARNING,
    MEASURE_OVERSHOOT,
    MEASURE_EXPIRED,
    MEASURE_REMAINING,
    MEASURE_COUNT
};
static const struct {
    const char *name, *type, *help;
} measures[MEASURE_COUNT] = {
    {"resource_capacity", "gauge", "What there is to be given out, in the resource's units."},
    {"resource_has", "gauge", "Sum of the leases, in the resource's units."},
    {"resource_wants", "gauge", "Sum of what the holders want, in the resource's units."},
    {"resource_clients", "gauge", "Holders: clients and servers that ask here."},
    {"resource_subclients", "gauge", "Clients, those below servers included."},
    {"resource_safe_capacity", "gauge", "What a client may use without a lease; -1 is unlimited."},
    {"resource_learning", "gauge", "1 while holders get back what they say they have, else 0."},
    {"resource_overshoot", "gauge", "By how much the leases exceed the capacity."},
    {"resource_leases_expired_total", "counter", "Leases that ran out without being renewed."},
    {"server_parent_lease_remaining_seconds", "gauge",
     "Time to the end of the node's own lease; 0: it has none."},
};

/* false: there is nothing to say. */
static bool measure_row(const struct survey *survey, const struct row *row, enum measure measure,
                        bool has_parent, double *out) {
    const doorman_server_resource *info = &row->info;
    double left = (double)(info->lease_end - survey->now) / 1e9;
    switch (measure) {
    case MEASURE_CAPACITY: *out = info->capacity; break;
    case MEASURE_HAS: *out = info->has; break;
    case MEASURE_WANTS: *out = info->wants; break;
    case MEASURE_CLIENTS: *out = (double)info->holder_count; break;
    case MEASURE_SUBCLIENTS: *out = info->subclients; break;
    case MEASURE_SAFE_CAPACITY: *out = info->safe_capacity; return info->has_safe_capacity;
    case MEASURE_LEARNING: *out = row_learning(row, survey->now); break;
    case MEASURE_OVERSHOOT: *out = row->overshoot; break;
    case MEASURE_EXPIRED: *out = (double)info->expired_count; break;
    case MEASURE_REMAINING: *out = info->leased ? left : 0; return has_parent && row->id;
    case MEASURE_COUNT:
    default: return false;
    }
    return true;
}

static void metrics_row(struct text *text, const struct survey *survey, const struct row *row,
                        enum measure measure, bool has_parent) {
    double value = 0;
    if (!measure_row(survey, row, measure, has_parent, &value)) return;
    text_addf(text, "doorman_%s{resource=\"", measures[measure].name);
    text_add_escaped(text, row->id ? row->id : "other", escape_label);
    text_addf(text, "\"} %.17g\n", value);
}

/* A resource that is called "other" would make its series twice. */
static void metrics_fold_other(struct survey *survey) {
    for (size_t i = 0; survey->has_rest && i < survey->row_count; i++) {
        struct row *row = &survey->rows[i];
        if (strcmp(row->id, "other") != 0) continue;
        survey_add_rest(survey, row);
        free(row->id);
        *row = survey->rows[--survey->row_count];
    }
}

static void metrics_resources(struct text *text, const struct survey *survey, bool has_parent) {
    for (int i = 0; i < MEASURE_COUNT; i++) {
        enum measure measure = (enum measure)i;
        if (measure == MEASURE_REMAINING && !has_parent) continue;
        metrics_head(text, measures[i].name, measures[i].type, measures[i].help);
        for (size_t at = 0; at < survey->row_count; at++) {
            metrics_row(text, survey, &survey->rows[at], measure, has_parent);
        }
        if (survey->has_rest) metrics_row(text, survey, &survey->rest, measure, has_parent);
    }
}

static void answer_metrics(struct service *service, const struct call *call, struct reply *reply) {
    struct text *text = &reply->text;
    struct survey survey = {.now = 0};
    struct loading loading = service_loading(service);
    bool has_parent = service->settings->parents.count > 0;
    (void)call;
    survey_take(&survey, service, "", SERIES_MAX);
    metrics_fold_other(&survey);
    reply->type = "text/plain; version=0.0.4; charset=utf-8";
    metrics_head(text, "build_info", "gauge", "1, and which version this is.");
    text_add(text, "doorman_build_info{version=\"" DOORMAN_VERSION "\"} 1\n");
    metrics_one(text, "server_is_master", "1 if this process answers for its node, else 0.",
                survey.is_master);
    metrics_one(text, "server_config_last_reload_successful",
                "1 if the last configuration that was loaded is in force, 0 if it was refused.",
                !loading.error[0]);
    metrics_one(text, "server_config_last_reload_success_timestamp_seconds",
                "When the configuration in force was loaded, in seconds since 1970.",
                (double)loading.loaded_at);
    metrics_count(text, "server_unmatched_requests_total",
                  "Requests for a resource that no template matches.", &service->counts.unmatched);
    metrics_count(text, "server_shared_id_requests_total",
                  "Requests that show that two processes use one id.", &service->counts.shared_id);
    metrics_requests(text, &service->counts);
    metrics_durations(text, &service->counts);
    if (has_parent) metrics_parent(text, &service->counts);
    metrics_resources(text, &survey, has_parent);
    text->failed = text->failed || survey.failed;
    survey_uninit(&survey);
}

/* ---- >>status page -------------------------------------------------------------------------- */
/* For people who run it at night: one page of all resources, and one of the leases of each. It
 * works without JavaScript; a little of that fetches it anew every two seconds and puts the new
 * <main> in the place of the old one. What it may load, and from where, the security policy says:
 * nothing but itself. It forbids style attributes too, so bars and lines are SVG. */
#define PAGE_ROWS 100

static const char page_style[] =
    ":root{--paper:#fff;--ink:#1c2024;--soft:#60686f;--line:#e3e6e9;--card:#f6f7f8;--has:#2368c4;"
    "--wants:#b9d2f0;--track:#e8ebee;--good:#1a7f45;--warn:#9a5b00;--bad:#b3261e;"
    "color-scheme:light dark}"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--soft:#98a1a9;"
    "--line:#2c3238;--card:#1c2126;--has:#5b9df0;--wants:#27466d;--track:#262c32;--good:#56c288;"
    "--warn:#e3a44a;--bad:#f2857c}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--paper);color:var(--ink);"
    "font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "font-variant-numeric:tabular-nums}"
    "header,main,footer{max-width:1200px;margin:0 auto;padding:0 20px}"
    "header{display:flex;flex-wrap:wrap;gap:8px 16px;align-items:center;padding-top:18px}"
    "h1{font-size:20px;margin:0 auto 0 0}h1 a{color:inherit;text-decoration:none}"
    "h2{font-size:17px;margin:22px 0 4px;overflow-wrap:anywhere}"
    "a{color:var(--has)}p{margin:4px 0}"
    "form{display:flex;gap:6px}"
    "input,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);"
    "border-radius:6px;padding:5px 10px;min-width:0}"
    "#live{color:var(--soft);font-size:13px}#live:before{content:'\\25cf  '}"
    "#live.on:before{color:var(--good)}#live.off:before{color:var(--bad)}"
    ".soft{color:var(--soft)}.good{color:var(--good)}.warn{color:var(--warn)}"
    ".bad{color:var(--bad)}"
    ".facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(185px,1fr));gap:10px 20px;"
    "background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;"
    "margin:14px 0}"
    ".facts div{min-width:0}.facts dt{color:var(--soft);font-size:12px}"
    ".facts dd{margin:0;overflow-wrap:anywhere}dl{margin:0}"
    ".facts .wide{grid-column:1/-1}";

static const char page_style_lists[] =
    "ol{list-style:none;margin:0;padding:0}"
    ".resource{display:grid;grid-template-columns:minmax(200px,1.1fr) minmax(260px,1.6fr) 170px;"
    "gap:2px 24px;padding:11px 0;border-top:1px solid var(--line);align-items:center}"
    ".resource:last-child{border-bottom:1px solid var(--line)}"
    ".name{font-weight:600;overflow-wrap:anywhere;min-width:0}"
    ".name small,.numbers small{font-weight:400;color:var(--soft);display:block;font-size:12.5px}"
    ".numbers{min-width:0}"
    ".numbers p{display:flex;justify-content:space-between;gap:12px;font-size:13.5px}"
    "svg{display:block;width:100%}.bar{height:12px;border-radius:3px}.trend{height:40px}"
    ".track{fill:var(--track)}.has{fill:var(--has)}.wants{fill:var(--wants)}"
    ".edge{fill:var(--ink)}"
    ".trend polyline{fill:none;stroke:var(--has);stroke-width:1.5;"
    "vector-effect:non-scaling-stroke}"
    ".trend .wanted{stroke:var(--wants)}"
    ".trend line{stroke:var(--soft);stroke-dasharray:3 3;vector-effect:non-scaling-stroke}"
    ".key span:before{content:'';display:inline-block;width:10px;height:10px;border-radius:2px;"
    "margin:0 5px 0 0;background:var(--k)}"
    ".key{font-size:13px;margin-top:10px}.key span{margin-right:14px}"
    ".key .k1{--k:var(--has)}.key .k2{--k:var(--wants)}.key .k3{--k:var(--track)}"
    ".bars{display:flex;flex-wrap:wrap;gap:4px 16px;justify-content:space-between;"
    "margin:16px 0 8px;font-size:13px}"
    "nav{display:flex;gap:2px 12px;flex-wrap:wrap}nav b{font-weight:600}"
    ".big{border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin:14px 0}"
    ".big .bar{height:16px}.big .trend{height:90px;margin-top:10px}"
    "table{border-collapse:collapse;width:100%;font-size:14px}"
    "th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line)}"
    "th{font-weight:500;color:var(--soft);white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left;padding-left:0;overflow-wrap:anywhere}"
    "footer{color:var(--soft);font-size:13px;padding-bottom:28px;margin-top:18px}"
    "@media(max-width:760px){header,main,footer{padding-left:14px;padding-right:14px}"
    "form{width:100%}input{flex:1}"
    ".facts{grid-template-columns:1fr 1fr}"
    ".resource{grid-template-columns:1fr;gap:6px}.resource .trend{height:32px}"
    "thead{display:none}tr{display:grid;grid-template-columns:1fr 1fr 1fr;padding:8px 0;gap:2px "
    "10px;border-bottom:1px solid var(--line)}"
    "td{display:block;border:0;padding:0;text-align:left}"
    "td:first-child{grid-column:1/-1;font-weight:600}"
    "td:not(:first-child):before{content:attr(data-name) ' ';color:var(--soft);font-size:12px}}";

static const char page_script[] =
    "(function(){var main=document.querySelector('main'),live=document.getElementById('live'),"
    "form=document.forms[0],busy=false,timer;"
    "function say(on,text){live.className=on?'on':'off';live.textContent=text}"
    "function load(){if(busy||document.hidden)return;busy=true;var at=location.href;"
    "fetch(at,{credentials:'same-origin'}).then(function(r){return r.text()})"
    ".then(function(text){var next=new DOMParser().parseFromString(text,'text/html')"
    ".querySelector('main');if(!next)throw 0;"
    "if(at===location.href&&!main.contains(document.activeElement)&&!String(getSelection()))"
    "{main.replaceWith(next);main=next}say(true,'live')})"
    ".catch(function(){say(false,'not reachable')}).then(function(){busy=false})}"
    "say(true,'live');setInterval(load,2000);"
    "form.addEventListener('input',function(){clearTimeout(timer);timer=setTimeout(function(){"
    "var url=new URL(location.href);url.searchParams.set('filter',form.elements.filter.value);"
    "url.searchParams.delete('page');history.replaceState(null,'',url);load()},200)});"
    "})();";

/* Two digits after the point at most: nobody reads more. */
static const char *amount_text(double amount, char room[32]) {
    if (amount < 0) return "unlimited";
    snprintf(room, 32, amount > 0 && amount < 0.01 ? "%.2g" : "%.2f", amount);
    char *point = strchr(room, '.');
    size_t bytes = strlen(room);
    while (point && !strchr(room, 'e') && (room[bytes - 1] == '0' || room[bytes - 1] == '.')) {
        bool end = room[--bytes] == '.';
        room[bytes] = 0;
        if (end) break;
    }
    return room;
}

static void page_amount(struct text *text, double amount) {
    char room[32];
    text_add(text, amount_text(amount, room));
}

/* As "3 d 4 h", the two largest units. */
static void page_duration(struct text *text, doorman_time time) {
    long long seconds = (long long)(time / DOORMAN_SECOND);
    if (seconds >= 86400) {
        text_addf(text, "%lld d %lld h", seconds / 86400, seconds / 3600 % 24);
    } else if (seconds >= 3600) {
        text_addf(text, "%lld h %lld min", seconds / 3600, seconds / 60 % 60);
    } else if (seconds >= 60) {
        text_addf(text, "%lld min %lld s", seconds / 60, seconds % 60);
    } else {
        text_addf(text, "%lld s", seconds > 0 ? seconds : 0);
    }
}

static void page_start(struct service *service, const struct call *call, struct reply *reply,
                       const char *filter) {
    struct text *text = &reply->text;
    reply->type = "text/html; charset=utf-8";
    text_add(text, "<!doctype html><html lang=en><head><meta charset=utf-8>"
                   "<meta name=viewport content='width=device-width,initial-scale=1'>"
                   "<link rel=icon href='data:,'><title>");
    text_add_escaped(text, service->node, escape_html);
    text_add(text, " - Doorman</title><noscript><meta http-equiv=refresh content=30></noscript>");
    text_addf(text, "<style nonce='%s'>", reply->nonce);
    text_add(text, page_style);
    text_add(text, page_style_lists);
    text_add(text, "</style></head><body><header><h1><a href='/'>Doorman</a> ");
    text_add_escaped(text, service->node, escape_html);
    text_addf(text, "</h1><span id=live></span><form action='%s' role=search>", call->path);
    char id[DOORMAN_ID_BYTES_MAX + 1];
    if (query_read(call->query, "resource", id, sizeof id)) {
        text_add(text, "<input type=hidden name=resource value=\"");
        text_add_escaped(text, id, escape_html);
        text_add(text, "\">");
    }
    text_add(text, "<input name=filter aria-label='part of a name' placeholder='part of a name' "
                   "value=\"");
    text_add_escaped(text, filter, escape_html);
    text_add(text, "\"><button>filter</button></form></header><main>");
}

static void page_end(struct reply *reply) {
    struct text *text = &reply->text;
    text_add(text, "</main><footer>doorman_server " DOORMAN_VERSION
                   " &middot; <a href='/metrics'>metrics</a> &middot; <a href='/v1/status'>status "
                   "as JSON</a> &middot; <a href='/v1/config'>configuration</a></footer>");
    text_addf(text, "<script nonce='%s'>", reply->nonce);
    text_add(text, page_script);
    text_add(text, "</script></body></html>\n");
}

/* One fact of the box on top; the caller adds the value and ends it. */
static void page_fact(struct text *text, const char *name, const char *class) {
    text_addf(text, "<div%s><dt>%s</dt><dd class='%s'>",
              strcmp(class, "wide") == 0 ? " class=wide" : "", name, class);
}

static void page_fact_text(struct text *text, const char *name, const char *value,
                           const char *class) {
    page_fact(text, name, class);
    text_add_escaped(text, value, escape_html);
    text_add(text, "</dd></div>");
}

static void page_master(struct text *text, const struct survey *survey) {
    page_fact(text, "master", survey->is_master ? "good" : survey->master[0] ? "warn" : "bad");
    if (survey->is_master) {
        text_add(text, "this process");
    } else if (survey->master[0]) {
        text_add(text, "another: ");
        text_add_escaped(text, survey->master, escape_html);
    } else {
        text_add(text, "nobody knows");
    }
    text_add(text, "</dd></div>");
}

static void page_parent(struct text *text, struct service *service, const struct survey *survey) {
    const struct addresses *parents = &service->settings->parents;
    if (parents->count == 0) return;
    bool all = survey->leased_count == survey->resource_count;
    page_fact(text, "parent", "");
    for (size_t i = 0; i < parents->count; i++) {
        text_add(text, i ? ", " : "");
        text_add_escaped(text, parents->items[i], escape_html);
    }
    text_add(text, "</dd></div>");
    page_fact(text, "leases from it", all ? "" : "bad");
    text_addf(text, "%zu of %zu resources", survey->leased_count, survey->resource_count);
    if (survey->leased_count > 0) {
        text_add(text, ", the first ends in ");
        page_duration(text, survey->lease_end - survey->now);
    }
    text_add(text, "</dd></div>");
}

static void page_configuration(struct text *text, struct service *service) {
    struct loading loading = service_loading(service);
    char when[32];
    struct tm utc;
    if (!service->settings->config) return;
    gmtime_r(&loading.loaded_at, &utc);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &utc);
    page_fact_text(text, "configuration loaded (UTC)", when, loading.error[0] ? "warn" : "");
    if (!loading.error[0]) return;
    page_fact(text, "the last change was refused", "wide");
    text_add(text, "<span class=bad>");
    text_add_escaped(text, loading.error, escape_html);
    text_add(text, "</span></dd></div>");
}

static void page_facts(struct text *text, struct service *service, const struct survey *survey) {
    bool is_root = service->settings->parents.count == 0;
    text_add(text, "<dl class=facts>");
    page_fact_text(text, "node", service->node, "");
    if (strcmp(service->id, service->node) != 0) page_fact_text(text, "process", service->id, "");
    page_fact_text(text, "role", is_root ? "root: has the configuration" : "below a parent", "");
    page_master(text, survey);
    page_fact_text(text, "answers at", service->advertise, "");
    page_parent(text, service, survey);
    page_fact(text, "learning", survey->learning_count > 0 ? "warn" : "");
    if (survey->learning_count > 0) {
        text_addf(text, "%zu resources, for ", survey->learning_count);
        page_duration(text, survey->learned_at - survey->now);
    } else {
        text_add(text, "no");
    }
    text_add(text, "</dd></div>");
    page_fact(text, "resources, holders", "");
    text_addf(text, "%zu, %zu</dd></div>", survey->resource_count, survey->holder_count);
    page_fact(text, "up for", "");
    page_duration(text, survey->now - service->started_at);
    text_add(text, "</dd></div>");
    page_fact_text(text, "version", DOORMAN_VERSION, "");
    page_configuration(text, service);
    text_add(text, "</dl>");
}

/* The bar shows what is given, what is wanted, and with an edge the capacity, where there is one
 * for all. What is wanted may be a thousand times that: the bar ends at twice the capacity. */
static void page_bar(struct text *text, const struct row *row) {
    const doorman_server_resource *info = &row->info;
    double capacity = kind_is_whole(row->kind) ? info->capacity : 0, most = capacity;
    if (info->wants > most) most = info->wants;
    if (capacity > 0 && most > 2 * capacity) most = 2 * capacity;
    if (info->has > most) most = info->has;
    double scale = most > 0 ? 1000 / most : 0;
    double wants = info->wants * scale < 1000 ? info->wants * scale : 1000;
    text_addf(text,
              "<svg class=bar viewBox='0 0 1000 10' preserveAspectRatio=none role=img>"
              "<title>has %.6g, wants %.6g, capacity %.6g</title>"
              "<rect class=track width=1000 height=10 /><rect class=wants width=%.1f height=10 />"
              "<rect class=has width=%.1f height=10 />",
              info->has, info->wants, info->capacity, wants, info->has * scale);
    if (capacity > 0) {
        text_addf(text, "<rect class=edge x=%.1f width=3 height=10 />", capacity * scale - 3);
    }
    text_add(text, "</svg>");
}

static void page_line(struct text *text, const struct past *past, const float *values, double scale,
                      const char *class) {
    text_addf(text, "<polyline class=%s points='", class);
    for (unsigned i = HISTORY_POINTS - past->count; i < HISTORY_POINTS; i++) {
        double y = 38 - (double)values[i] * scale;
        text_addf(text, "%u,%.1f ", i, y > 1 ? y : 1);
    }
    text_add(text, "'/>");
}

/* The last ten minutes, and the capacity of now as a dashed line. What is wanted beyond the upper
 * end is cut off there. */
static void page_trend(struct text *text, struct service *service, const struct row *row,
                       const char *id) {
    struct past past = history_find(service, id);
    double capacity = kind_is_whole(row->kind) ? row->info.capacity : 0, most = capacity;
    for (unsigned i = HISTORY_POINTS - past.count; i < HISTORY_POINTS; i++) {
        if ((double)past.has[i] > most) most = (double)past.has[i];
    }
    double scale = most > 0 ? 30 / most : 0, y = 38 - capacity * scale;
    text_addf(text,
              "<svg class=trend viewBox='0 0 %d 40' preserveAspectRatio=none role=img>"
              "<title>the last ten minutes</title>",
              HISTORY_POINTS - 1);
    if (capacity > 0) {
        text_addf(text, "<line x1=0 x2=%d y1=%.1f y2=%.1f />", HISTORY_POINTS - 1, y, y);
    }
    if (past.count > 1) {
        page_line(text, &past, past.wants, scale, "wanted");
        page_line(text, &past, past.has, scale, "given");
    }
    text_add(text, "</svg>");
}

/* What a person should look at. */
static void page_warnings(struct text *text, struct service *service, const struct row *row,
                          doorman_time now) {
    if (row_learning(row, now)) {
        text_add(text, " <span class=warn>learning for ");
        page_duration(text, row->info.learned_at - now);
        text_add(text, "</span>");
    }
    if (row->overshoot > 0) text_add(text, " <span class=bad>over its capacity</span>");
    if (service->settings->parents.count == 0) return;
    if (row->info.leased) {
        text_add(text, " lease of ");
        page_duration(text, row->info.lease_end - now);
    } else {
        text_add(text, " <span class=bad>no lease from the parent</span>");
    }
}

static void page_numbers(struct text *text, const struct row *row) {
    const doorman_server_resource *info = &row->info;
    text_add(text, "<p><span>has <b>");
    page_amount(text, info->has);
    if (row->kind == DOORMAN_NO_ALGORITHM) {
        text_add(text, "</b>, not limited");
    } else {
        text_add(text, kind_is_whole(row->kind) ? "</b> of <b>" : "</b>, each up to <b>");
        page_amount(text, info->capacity);
        text_add(text, "</b>");
    }
    text_add(text, "</span><span>wants <b>");
    page_amount(text, info->wants);
    text_add(text, "</b></span></p><small>");
    text_addf(text, "%zu holder%s, ", info->holder_count, info->holder_count == 1 ? "" : "s");
    page_amount(text, info->subclients);
    text_addf(text, " client%s", info->subclients <= 1 ? "" : "s");
    if (info->has_safe_capacity) {
        text_add(text, " &middot; safe ");
        page_amount(text, info->safe_capacity);
    }
    text_add(text, "</small>");
}

static void page_resource(struct text *text, struct service *service, const struct row *row,
                          doorman_time now) {
    text_add(text, "<li class=resource><div class=name><a href=\"/resources?resource=");
    text_add_escaped(text, row->id, escape_query);
    text_add(text, "\">");
    text_add_escaped(text, row->id, escape_html);
    text_addf(text, "</a><small>%s", doorman_kind_name(row->kind));
    page_warnings(text, service, row, now);
    text_add(text, "</small></div><div class=numbers>");
    page_bar(text, row);
    page_numbers(text, row);
    text_add(text, "</div>");
    page_trend(text, service, row, row->id);
    text_add(text, "</li>");
}

/* What a list is sorted by, as the query says it. */
struct order {
    const char *name, *title;
    int (*compare)(const void *left, const void *right);
};

/* The larger first, and those that are the same by name. */
static int compare_amounts(double left, double right, const char *left_id, const char *right_id) {
    return left > right ? -1 : left < right ? 1 : strcmp(left_id, right_id);
}

#define ORDER_OF(name, type, amount)                                                               \
    static int name(const void *left, const void *right) {                                         \
        const struct type *a = (const struct type *)left, *b = (const struct type *)right;         \
        return compare_amounts((double)(a->amount), (double)(b->amount), a->id, b->id);            \
    }
ORDER_OF(compare_row_has, row, info.has)
ORDER_OF(compare_row_wants, row, info.wants)
ORDER_OF(compare_row_capacity, row, info.capacity)
ORDER_OF(compare_row_holders, row, info.holder_count)
ORDER_OF(compare_lease_has, lease_row, info.has)
ORDER_OF(compare_lease_wants, lease_row, info.wants)
ORDER_OF(compare_lease_weight, lease_row, info.subclients)
ORDER_OF(compare_lease_priority, lease_row, info.priority)
ORDER_OF(compare_lease_expiry, lease_row, info.expires_at)
ORDER_OF(compare_lease_seen, lease_row, info.granted_at)

static int compare_lease_ids(const void *left, const void *right) {
    return strcmp(((const struct lease_row *)left)->id, ((const struct lease_row *)right)->id);
}

static const struct order row_orders[] = {{"id", "name", compare_row_ids},
                                          {"has", "has", compare_row_has},
                                          {"wants", "wants", compare_row_wants},
                                          {"capacity", "capacity", compare_row_capacity},
                                          {"holders", "holders", compare_row_holders},
                                          {NULL, NULL, NULL}};
static const struct order lease_orders[] = {
    {"holder", "holder", compare_lease_ids},          {"has", "has", compare_lease_has},
    {"wants", "wants", compare_lease_wants},          {"weight", "weight", compare_lease_weight},
    {"priority", "priority", compare_lease_priority}, {"expiry", "ends in", compare_lease_expiry},
    {"seen", "seen before", compare_lease_seen},      {NULL, NULL, NULL}};

/* Which part of a list is shown. */
struct view {
    const struct call *call;
    const struct order *orders, *order;
    char filter[DOORMAN_ID_BYTES_MAX + 1], resource[DOORMAN_ID_BYTES_MAX + 1];
    size_t first, end, count;
};

static struct view view_read(const struct call *call, const struct order *orders) {
    struct view view = {.call = call, .orders = orders, .order = orders};
    char word[16];
    query_read(call->query, "filter", view.filter, sizeof view.filter);
    query_read(call->query, "resource", view.resource, sizeof view.resource);
    if (query_read(call->query, "sort", word, sizeof word)) {
        for (const struct order *order = orders; order->name; order++) {
            if (strcmp(order->name, word) == 0) view.order = order;
        }
    }
    if (query_read(call->query, "page", word, sizeof word) && word[0] != '-') {
        unsigned long page = strtoul(word, NULL, 10);
        view.first = page > 1 && page < ROWS_MAX ? (page - 1) * PAGE_ROWS : 0;
    }
    return view;
}

static void view_set_count(struct view *view, size_t count) {
    view->count = count;
    if (view->first >= count) view->first = 0;
    view->end = count - view->first < PAGE_ROWS ? count : view->first + PAGE_ROWS;
}

/* A link to the same list, sorted otherwise or elsewhere in it. */
static void view_add_link(struct text *text, const struct view *view, const struct order *order,
                          size_t page, const char *title) {
    text_addf(text, "<a href=\"%s?sort=%s", view->call->path, order->name);
    if (view->resource[0]) {
        text_add(text, "&amp;resource=");
        text_add_escaped(text, view->resource, escape_query);
    }
    if (view->filter[0]) {
        text_add(text, "&amp;filter=");
        text_add_escaped(text, view->filter, escape_query);
    }
    if (page > 1) text_addf(text, "&amp;page=%zu", page);
    text_addf(text, "\">%s</a>", title);
}

static void view_add_bars(struct text *text, const struct view *view, const char *what) {
    size_t page = view->first / PAGE_ROWS + 1;
    text_add(text, "<div class=bars><nav><span class=soft>sorted by</span>");
    for (const struct order *order = view->orders; order->name; order++) {
        if (order == view->order) {
            text_addf(text, "<b>%s</b>", order->title);
        } else {
            view_add_link(text, view, order, 1, order->title);
        }
    }
    text_add(text, "</nav><nav>");
    if (view->first > 0) view_add_link(text, view, view->order, page - 1, "&larr; before");
    text_addf(text, "<span>%zu to %zu of %zu %s</span>", view->count ? view->first + 1 : 0,
              view->end, view->count, what);
    if (view->end < view->count) view_add_link(text, view, view->order, page + 1, "next &rarr;");
    text_add(text, "</nav></div>");
}

static void answer_page(struct service *service, const struct call *call, struct reply *reply) {
    struct view view = view_read(call, row_orders);
    struct survey survey = {.now = 0};
    struct text *text = &reply->text;
    survey_take(&survey, service, view.filter, ROWS_MAX);
    view_set_count(&view, survey.row_count);
    if (survey.row_count > 1) {
        qsort(survey.rows, survey.row_count, sizeof *survey.rows, view.order->compare);
    }
    page_start(service, call, reply, view.filter);
    page_facts(text, service, &survey);
    view_add_bars(text, &view, "resources");
    text_add(text, "<ol>");
    for (size_t i = view.first; i < view.end; i++) {
        page_resource(text, service, &survey.rows[i], survey.now);
    }
    text_add(text, "</ol>");
    if (survey.resource_count == 0) {
        text_add(text, "<p class=soft>Nobody has asked for anything yet.</p>");
    } else if (survey.row_count == 0) {
        text_add(text, "<p class=soft>No resource has that in its name.</p>");
    } else {
        text_add(text, "<p class='soft key'><span class=k1>has</span><span class=k2>wants</span>"
                       "<span class=k3>free</span>the edge is the capacity</p>");
    }
    page_end(reply);
    text->failed = text->failed || survey.failed;
    survey_uninit(&survey);
}

static void page_lease(struct text *text, const struct lease_row *row, doorman_time now) {
    const doorman_server_lease *info = &row->info;
    text_add(text, "<tr><td>");
    text_add_escaped(text, row->id, escape_html);
    if (info->is_server) text_add(text, " <span class=soft>(a server)</span>");
    if (info->shared) text_add(text, " <span class=bad>used by two processes</span>");
    text_add(text, "</td><td data-name=has>");
    page_amount(text, info->has);
    text_add(text, "</td><td data-name=wants>");
    page_amount(text, info->wants);
    text_add(text, "</td><td data-name=weight>");
    page_amount(text, info->subclients);
    text_addf(text, "</td><td data-name=priority>%d</td><td data-name='ends in'>", info->priority);
    page_duration(text, info->expires_at - now);
    text_add(text, "</td><td data-name=seen>");
    if (info->granted_at > 0) {
        page_duration(text, now - info->granted_at);
    } else {
        text_add(text, "no lease yet");
    }
    text_add(text, "</td></tr>");
}

/* Leaves those whose names have it, sorted. */
static void leases_arrange(struct leases *leases, const struct view *view) {
    size_t kept = 0;
    for (size_t i = 0; i < leases->row_count; i++) {
        if (strstr(leases->rows[i].id, view->filter)) {
            leases->rows[kept++] = leases->rows[i];
        } else {
            free(leases->rows[i].id);
        }
    }
    leases->row_count = kept;
    if (kept > 1) qsort(leases->rows, kept, sizeof *leases->rows, view->order->compare);
}

static void page_leases(struct text *text, struct service *service, struct leases *leases,
                        const struct view *view) {
    const struct row *row = &leases->resource;
    text_addf(text, "<p class=soft>%s ", doorman_kind_name(row->kind));
    page_warnings(text, service, row, leases->now);
    text_add(text, "</p><p class=soft>");
    if (leases->description) text_add_escaped(text, leases->description, escape_html);
    text_add(text, "</p><div class=big><div class=numbers>");
    page_bar(text, row);
    page_numbers(text, row);
    text_add(text, "</div>");
    page_trend(text, service, row, view->resource);
    text_add(text, "</div>");
    view_add_bars(text, view, "leases");
    text_add(text, "<table><thead><tr>");
    for (const struct order *order = view->orders; order->name; order++) {
        text_addf(text, "<th>%s</th>", order->title);
    }
    text_add(text, "</tr></thead><tbody>");
    for (size_t i = view->first; i < view->end; i++) {
        page_lease(text, &leases->rows[i], leases->now);
    }
    text_add(text, "</tbody></table>");
    if (row->info.holder_count > ROWS_MAX) {
        text_addf(text, "<p class=warn>There are %zu holders; %d of them are looked at here.</p>",
                  row->info.holder_count, ROWS_MAX);
    }
}

static void answer_leases(struct service *service, const struct call *call, struct reply *reply) {
    struct view view = view_read(call, lease_orders);
    struct leases leases = {.found = false};
    struct text *text = &reply->text;
    leases_take(&leases, service, view.resource);
    leases_arrange(&leases, &view);
    view_set_count(&view, leases.row_count);
    page_start(service, call, reply, view.filter);
    text_add(text, "<h2>");
    text_add_escaped(text, view.resource, escape_html);
    text_add(text, "</h2>");
    if (leases.found) {
        page_leases(text, service, &leases, &view);
    } else {
        reply->code = 404;
        text_add(text, "<p>Nobody holds anything of such a resource. "
                       "<a href='/'>All resources</a></p>");
    }
    page_end(reply);
    text->failed = text->failed || leases.failed;
    leases_uninit(&leases);
}

/* ---- >>json over http ----------------------------------------------------------------------- */
/* What programs ask: the state, the configuration in force, and the methods of the protocol, whose
 * inner objects travel alone, since the path names the method. */

static void json_text(struct text *text, const char *value) {
    text_add(text, "\"");
    text_add_escaped(text, value, escape_json);
    text_add(text, "\"");
}

/* The shortest of two that reads back as the same number. */
static void json_number(struct text *text, double value) {
    char made[40];
    snprintf(made, sizeof made, "%.15g", value);
    if (strtod(made, NULL) < value || strtod(made, NULL) > value) {
        snprintf(made, sizeof made, "%.17g", value);
    }
    text_add(text, made);
}

static void json_seconds(struct text *text, const char *before, doorman_time time) {
    text_add(text, before);
    json_number(text, (double)time / (double)DOORMAN_SECOND);
}

/* Errors have a code of the protocol, which HTTP has a number for. */
static void refuse_call(struct reply *reply, int code, const char *name, const char *message) {
    reply->code = code;
    reply->type = "application/json";
    reply->text.buffer.bytes = 0;
    reply->text.failed = false;
    text_addf(&reply->text, "{\"error\":{\"code\":\"%s\",\"message\":", name);
    json_text(&reply->text, message);
    text_add(&reply->text, "}}\n");
}

static void json_resource(struct text *text, const struct row *row, doorman_time now) {
    const doorman_server_resource *info = &row->info;
    text_add(text, "{\"resource_id\":");
    json_text(text, row->id);
    text_add(text, ",\"capacity\":");
    json_number(text, info->capacity);
    text_add(text, ",\"has\":");
    json_number(text, info->has);
    text_add(text, ",\"wants\":");
    json_number(text, info->wants);
    text_addf(text, ",\"clients\":%zu,\"subclients\":", info->holder_count);
    json_number(text, info->subclients);
    text_add(text, ",\"safe_capacity\":");
    if (info->has_safe_capacity) {
        json_number(text, info->safe_capacity);
    } else {
        text_add(text, "null");
    }
    text_addf(text, ",\"learning\":%s,\"algorithm\":\"%s\"",
              row_learning(row, now) ? "true" : "false", doorman_kind_name(row->kind));
    if (info->leased) json_seconds(text, ",\"lease_expires_in\":", info->lease_end - now);
    text_add(text, "}");
}

static void answer_status(struct service *service, const struct call *call, struct reply *reply) {
    struct text *text = &reply->text;
    struct survey survey = {.now = 0};
    char filter[DOORMAN_ID_BYTES_MAX + 1] = "";
    query_read(call->query, "filter", filter, sizeof filter);
    survey_take(&survey, service, filter, ROWS_MAX);
    reply->type = "application/json";
    text_add(text, "{\"node\":");
    json_text(text, service->node);
    text_add(text, ",\"id\":");
    json_text(text, service->id);
    text_addf(text, ",\"version\":\"%s\",\"is_master\":%s,\"master_address\":", DOORMAN_VERSION,
              survey.is_master ? "true" : "false");
    if (survey.master[0]) {
        json_text(text, survey.master);
    } else {
        text_add(text, "null");
    }
    text_add(text, ",\"resources\":[");
    for (size_t i = 0; i < survey.row_count; i++) {
        if (i) text_add(text, ",\n");
        json_resource(text, &survey.rows[i], survey.now);
    }
    text_add(text, "]}\n");
    text->failed = text->failed || survey.failed;
    survey_uninit(&survey);
}

static void json_parameter(struct text *text, const char *name, double value) {
    text_addf(text, "{\"name\":\"%s\",\"value\":", name);
    json_number(text, value);
    text_add(text, "},");
}

static void json_algorithm(struct text *text, const doorman_algorithm *algorithm) {
    const double second = (double)DOORMAN_SECOND;
    text_addf(text, ",\"algorithm\":{\"kind\":\"%s\"", doorman_kind_name(algorithm->kind));
    json_seconds(text, ",\"lease_length\":", algorithm->lease_length);
    json_seconds(text, ",\"refresh_interval\":", algorithm->refresh_interval);
    if (algorithm->has_learning_mode_duration) {
        json_seconds(text, ",\"learning_mode_duration\":", algorithm->learning_mode_duration);
    }
    text_add(text, ",\"parameters\":[");
    if (algorithm->has_minimum_interval) {
        json_parameter(text, "minimum_interval", (double)algorithm->minimum_interval / second);
    }
    json_parameter(text, "minimum_refresh_interval",
                   (double)algorithm->minimum_refresh_interval / second);
    json_parameter(text, "decay_factor", algorithm->decay_factor);
    if (algorithm->reserve > 0) json_parameter(text, "reserve", algorithm->reserve);
    text_addf(text, "{\"name\":\"handover\",\"value\":\"%s\"}]}",
              algorithm->handover == DOORMAN_IMMEDIATE ? "immediate" : "confirmed");
}

/* One template, as it stands in a file.
 *   rule   of the glob: JSON's, or that by which an id becomes one */
static void json_template(struct text *text, const doorman_template *settings, const char *glob,
                          escape rule) {
    text_add(text, "\n{\"identifier_glob\":\"");
    text_add_escaped(text, glob, rule);
    text_add(text, "\",\"description\":");
    json_text(text, settings->description ? settings->description : "");
    text_add(text, ",\"capacity\":");
    json_number(text, settings->capacity);
    if (settings->has_safe_capacity) {
        text_add(text, ",\"safe_capacity\":");
        json_number(text, settings->safe_capacity);
    }
    if (settings->whole) text_add(text, ",\"whole\":true");
    json_algorithm(text, &settings->algorithm);
    text_add(text, "}");
}

static bool json_visit(void *context, const doorman_server_resource *info) {
    struct text *text = (struct text *)context;
    if (text->buffer.bytes > 0 && text->buffer.text[text->buffer.bytes - 1] == '}') {
        text_add(text, ",");
    }
    json_template(text, info->settings, info->resource_id, escape_glob);
    return true;
}

/* With the lock held. A node with a parent has one template for each resource. */
static void json_templates(struct text *text, struct service *service) {
    size_t count = 0;
    const doorman_template *templates = NULL;
    if (service->config) templates = doorman_config_templates(service->config, &count);
    for (size_t i = 0; i < count; i++) {
        if (i) text_add(text, ",");
        json_template(text, &templates[i], templates[i].identifier_glob, escape_json);
    }
    if (!service->config) service_walk(service, json_visit, text);
}

static void answer_config(struct service *service, const struct call *call, struct reply *reply) {
    struct text *text = &reply->text;
    (void)call;
    reply->type = "application/json";
    pthread_mutex_lock(&service->lock);
    bool rejects = service->config && service->config->reject_unmatched;
    text_addf(text, "{%s\"resources\":[", rejects ? "\"unmatched\":\"reject\"," : "");
    json_templates(text, service);
    pthread_mutex_unlock(&service->lock);
    text_add(text, "]}\n");
}

static void answer_health(struct service *service, const struct call *call, struct reply *reply) {
    (void)service;
    (void)call;
    text_add(&reply->text, "ok\n");
}

/* Can answer, or redirect. */
static void answer_ready(struct service *service, const struct call *call, struct reply *reply) {
    struct survey survey = {.now = 0};
    (void)call;
    pthread_mutex_lock(&service->lock);
    survey_mastership(&survey, service);
    pthread_mutex_unlock(&service->lock);
    bool ready = !survey.stopping && (survey.is_master || survey.master[0]);
    if (!ready) reply->code = 503;
    text_add(&reply->text, ready             ? "ready\n"
                           : survey.stopping ? "stopping\n"
                                             : "the master is not known\n");
}

static int status_code(doorman_status status) {
    switch (status) {
    case DOORMAN_OK: return 200;
    case DOORMAN_INVALID_ARGUMENT: return 400;
    case DOORMAN_NOT_FOUND: return 404;
    case DOORMAN_RESOURCE_EXHAUSTED: return 413;
    case DOORMAN_UNAVAILABLE: return 503;
    case DOORMAN_STALE:
    case DOORMAN_TIMED_OUT:
    case DOORMAN_OUT_OF_MEMORY:
    case DOORMAN_DEADLOCK:
    case DOORMAN_STATUS_COUNT:
    default: return 500;
    }
}

/* Removes the method's key from an answer, {"METHOD":ANSWER}. An error keeps its own key, and
 * without a method the answer stays whole. */
static void answer_unwrap(struct text *text, const doorman_buffer *reply, const char *method,
                          doorman_status status) {
    size_t around = method ? strlen(method) + 4 : 0;
    if (method && status == DOORMAN_OK && reply->bytes > around) {
        text_add_bytes(text, reply->text + around, reply->bytes - around - 1);
    } else {
        text_add_bytes(text, reply->text, reply->bytes);
    }
    text_add(text, "\n");
}

/* A path that is a method has the inner object as its body, and is answered with one. The path /v1
 * takes and answers the whole message, as every other transport does. */
static void answer_method(struct service *service, const struct call *call, struct reply *reply) {
    const char *method = strcmp(call->path, "/v1") == 0 ? NULL : call->path + strlen("/v1/");
    struct text wrapped = {.failed = false};
    doorman_json_exchange exchange = {.status = DOORMAN_OK};
    if (method) text_addf(&wrapped, "{\"%s\":", method);
    text_add_bytes(&wrapped, call->body, call->body_bytes);
    if (method) text_add(&wrapped, "}");
    if (wrapped.failed) {
        reply->text.failed = true;
    } else {
        doorman_status status =
            service_answer(service, &exchange, wrapped.buffer.text, wrapped.buffer.bytes);
        reply->code = status_code(status);
        reply->type = "application/json";
        answer_unwrap(&reply->text, &exchange.reply, method, status);
        reply->text.failed = reply->text.failed || exchange.reply.bytes == 0;
    }
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(&wrapped.buffer);
}

/* ---- >>http --------------------------------------------------------------------------------- */
/* nng has an HTTP server, but it waits for the rest of a request for ever, holds as many
 * connections and as long a head as peers like, and reads a body before anybody is asked who sent
 * it. So only nng's streams are used here, which bring TLS with them.
 *
 * A visit is one connection, and has one aio, so that one thing happens on it at a time:
 *
 *     state    meaning                     event                     next state
 *     FREE     nobody is there             a connection comes        READS
 *     READS    a request is coming in      it is whole, or refused   WRITES
 *                                          time is over, or gone     FREE
 *     WRITES   its answer leaves           all of it has             READS, DRAINS, FREE
 *     DRAINS   the rest of a body that     it has come, or time is   FREE
 *              nobody wants                over, or gone
 *
 * V3 Who may ask what is decided when the head is there: a known Host, so that no web page can
 *    reach a port of its reader's machine by a name of its own; the token; and for POST a type that
 *    no form has. There is no CORS header anywhere.
 * V5 When all visits are taken the one that has waited longest for its request makes way. A request
 *    has VISIT_SECONDS to come in, and its answer to leave. */
#define VISIT_SECONDS 30
#define DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* at once, and the longest head */
#define VISIT_BYTES_KEPT ((size_t)64 << 10)

#define VISIT_MAX 256
#define TOKEN_BYTES_MAX 512

enum visit_state { VISIT_FREE, VISIT_READS, VISIT_WRITES, VISIT_DRAINS };

struct visit {
    struct service *service;
    nng_stream *stream;
    nng_aio *aio;
    enum visit_state state; /* this and the next are guarded by the lock of HTTP */
    doorman_time deadline;
    char *in;                           /* what has come */
    size_t in_bytes, in_capacity, used; /* used: by the request that was answered */
    struct text out;                    /* what is to be sent, */
    size_t sent;                        /* and how much of it has been */
    bool last, is_head;                 /* close then; the answer has no body */
    size_t rest;                        /* close then, when so much more has come: a body that
                                           nobody wants, whose sender must not be cut off */
};

struct http {
    pthread_mutex_t lock;
    char address[320];               /* "http://HOST:PORT"; "": does not listen */
    char token[TOKEN_BYTES_MAX + 1]; /* "": none */
    nng_stream_listener *listener;
    nng_aio *aio; /* of the next connection */
    bool accepting, stopping;
    struct visit visits[VISIT_MAX];
};

static void http_accept(struct http *http);

/* A value from the head: how often it is there, and the first of them without the spaces around it.
 * What does not fit in the room is as bad as what comes twice. */
static int head_read(const char *head, const char *name, char *out, size_t room) {
    size_t name_bytes = strlen(name);
    int count = 0;
    out[0] = 0;
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, name_bytes) != 0 || line[name_bytes] != ':') continue;
        const char *value = line + name_bytes + 1;
        value += strspn(value, " \t");
        size_t bytes = strcspn(value, "\r\n");
        while (bytes > 0 && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t')) bytes--;
        if (count++ == 0 && bytes < room) snprintf(out, room, "%.*s", (int)bytes, value);
        if (bytes >= room) count = 2;
    }
    return count;
}

/* The host of "SCHEME://HOST:PORT/PATH", of which all but the host may be absent. */
static void host_read(const char *address, char *out, size_t room) {
    const char *scheme = strstr(address, "://");
    const char *host = scheme ? scheme + 3 : address;
    size_t bytes = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    snprintf(out, room, "%.*s", (int)(bytes < room ? bytes : room - 1), host);
}

/* Only numbers, or an address of IPv6: no name server has a say in it. */
static bool host_numeric(const char *host) {
    return *host == '[' || (*host && strspn(host, "0123456789.") == strlen(host));
}

static bool host_loopback(const char *host) {
    bool numeric = host_numeric(host) && strncmp(host, "127.", 4) == 0;
    return numeric || strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0;
}

static bool host_wildcard(const char *host) {
    return !*host || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "[::]") == 0;
}

/* Where HTTP listens on all addresses, each of them is known, but no name is. */
static bool host_known(const struct service *service, const char *given) {
    char host[256], own[256], advertised[256];
    host_read(given, host, sizeof host);
    host_read(service->http->address, own, sizeof own);
    host_read(service->advertise, advertised, sizeof advertised);
    return host_loopback(host) || strcasecmp(host, own) == 0 ||
           (!host_wildcard(advertised) && strcasecmp(host, advertised) == 0) ||
           (host_wildcard(own) && host_numeric(host));
}

/* Takes as long whichever byte is wrong. */
static bool token_equal(const char *token, const char *given, size_t bytes) {
    size_t token_bytes = strlen(token);
    unsigned different = token_bytes != bytes;
    for (size_t i = 0; i < token_bytes; i++) {
        different |= (unsigned char)token[i] ^ (unsigned char)given[i < bytes ? i : 0];
    }
    return different == 0;
}

/* Programs say "Bearer TOKEN"; a browser asks its user, and says "Basic", with any name. */
static bool token_given(const char *token, const char *head) {
    char value[TOKEN_BYTES_MAX * 2 + 512], pair[sizeof value];
    if (head_read(head, "Authorization", value, sizeof value) != 1) return false;
    if (strncasecmp(value, "Bearer ", 7) == 0) {
        return token_equal(token, value + 7, strlen(value + 7));
    }
    if (strncasecmp(value, "Basic ", 6) != 0) return false;
    size_t bytes = base64_read(pair, sizeof pair, value + 6);
    const char *colon = (const char *)memchr(pair, ':', bytes);
    size_t before = colon ? (size_t)(colon - pair) + 1 : bytes;
    return token_equal(token, pair + before, bytes - before);
}

static const struct route {
    const char *path;
    bool open; /* asked by those who start processes, and have no token */
    void (*answer)(struct service *service, const struct call *call, struct reply *reply);
} routes[] = {
    {"/", false, answer_page},
    {"/resources", false, answer_leases},
    {"/metrics", false, answer_metrics},
    {"/healthz", true, answer_health},
    {"/readyz", true, answer_ready},
    {"/v1/status", false, answer_status},
    {"/v1/config", false, answer_config},
};

static const struct route *route_find(const char *path) {
    const struct route *found = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) == 0) found = &routes[i];
    }
    return found;
}

/* Does the path take messages of the protocol: /v1, or /v1/ and the name of a method? */
static bool path_is_method(const char *path) {
    bool found = strcmp(path, "/v1") == 0;
    for (int i = 0; strncmp(path, "/v1/", 4) == 0 && i < CALL_UNKNOWN; i++) {
        found = found || strcmp(path + 4, call_names[i]) == 0;
    }
    return found;
}

static bool type_is_json(const char *head) {
    char type[128];
    if (head_read(head, "Content-Type", type, sizeof type) != 1) return false;
    type[strcspn(type, "; \t")] = 0;
    return strcasecmp(type, "application/json") == 0;
}

/* Whether the path is there, and may be asked so. false: the reply says why not. */
static bool call_find(const struct call *call, struct reply *reply) {
    bool method = path_is_method(call->path);
    bool post = strcmp(call->verb, "POST") == 0;
    bool get = strcmp(call->verb, "GET") == 0 || strcmp(call->verb, "HEAD") == 0;
    if (!call->route && !method) {
        refuse_call(reply, 404, "NOT_FOUND", "there is no such path, or no such method");
    } else if (method ? !post : !get) {
        refuse_call(reply, 405, "INVALID_ARGUMENT",
                    method ? "methods of the protocol are asked by POST" : "this is for GET alone");
        reply->more = method ? "Allow: POST\r\n" : "Allow: GET, HEAD\r\n";
    } else if (post && !type_is_json(call->head)) {
        refuse_call(reply, 415, "UNSUPPORTED_MEDIA_TYPE",
                    "the body must be of Content-Type application/json");
    }
    return reply->code == 200;
}

/* Whether it is answered at all. A token guards what is read as well as a known Host does, and
 * proxies and Prometheus have names of their own for a server. */
static bool call_allowed(const struct service *service, const struct call *call,
                         struct reply *reply) {
    const char *token = service->http->token;
    bool open = call->route && call->route->open;
    bool by_host = !token[0] || strcmp(call->verb, "POST") == 0;
    char host[256];
    if (open) return call_find(call, reply);
    int hosts = head_read(call->head, "Host", host, sizeof host);
    if (by_host && (hosts != 1 || !host_known(service, host))) {
        refuse_call(reply, 403, "PERMISSION_DENIED",
                    "the Host is none that this server knows: a loopback name, or that of --http "
                    "or --advertise");
    } else if (token[0] && !token_given(token, call->head)) {
        refuse_call(reply, 401, "UNAUTHENTICATED", "the token is missing or wrong");
        reply->more = "WWW-Authenticate: Basic realm=\"doorman\", charset=\"UTF-8\"\r\n";
    }
    return reply->code == 200 && call_find(call, reply);
}

static const char *code_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {411, "Length Required"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {431, "Request Header Fields Too Large"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    const char *reason = "Internal Server Error";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].code == code) reason = reasons[i].reason;
    }
    return reason;
}

/* Puts head and body of an answer into the visit's way out. */
static void visit_compose(struct visit *visit, struct reply *reply) {
    struct text *out = &visit->out;
    if (reply->text.failed) refuse_call(reply, 500, "INTERNAL", "out of memory");
    out->buffer.bytes = 0;
    text_addf(out,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: %s\r\n"
              "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
              "Referrer-Policy: no-referrer\r\n%s",
              reply->code, code_reason(reply->code), reply->type, reply->text.buffer.bytes,
              visit->last ? "close" : "keep-alive", reply->more);
    text_addf(out,
              "Content-Security-Policy: default-src 'none'; style-src 'nonce-%s'; "
              "script-src 'nonce-%s'; connect-src 'self'; img-src data:; form-action 'self'; "
              "base-uri 'none'; frame-ancestors 'none'\r\n\r\n",
              reply->nonce, reply->nonce);
    if (!visit->is_head) text_add_bytes(out, reply->text.buffer.text, reply->text.buffer.bytes);
}

static void visit_wait(struct visit *visit, bool sends) {
    doorman_time left = visit->deadline - doorman_clock();
    nng_aio_set_timeout(visit->aio, left > 0 ? (nng_duration)(left / 1000000 + 1) : 1);
    if (sends) {
        nng_iov iov = {visit->out.buffer.text + visit->sent, visit->out.buffer.bytes - visit->sent};
        nng_aio_set_iov(visit->aio, 1, &iov);
        nng_stream_send(visit->stream, visit->aio);
    } else {
        nng_iov iov = {visit->in + visit->in_bytes, visit->in_capacity - visit->in_bytes};
        nng_aio_set_iov(visit->aio, 1, &iov);
        nng_stream_recv(visit->stream, visit->aio);
    }
}

static void visit_set_state(struct visit *visit, enum visit_state state) {
    struct http *http = visit->service->http;
    int seconds = state == VISIT_DRAINS ? DRAIN_SECONDS : VISIT_SECONDS;
    pthread_mutex_lock(&http->lock);
    visit->state = state;
    visit->deadline = doorman_clock() + seconds * DOORMAN_SECOND;
    pthread_mutex_unlock(&http->lock);
}

static void visit_shrink(struct visit *visit) {
    doorman_buffer_uninit(&visit->out.buffer);
    visit->out.failed = false;
    if (visit->in_capacity > VISIT_BYTES_KEPT) {
        free(visit->in);
        visit->in = NULL;
        visit->in_capacity = 0;
    }
}

static void visit_end(struct visit *visit) {
    struct http *http = visit->service->http;
    nng_stream_free(visit->stream);
    visit->stream = NULL;
    visit->in_bytes = 0;
    visit_shrink(visit);
    visit_set_state(visit, VISIT_FREE);
    http_accept(http);
}

/* Makes room for what comes next; memory grows with what has come, not with what was announced. */
static bool visit_reserve(struct visit *visit) {
    bool done = true;
    if (visit->in_capacity - visit->in_bytes < READ_BYTES) {
        size_t capacity = visit->in_capacity * 2 + READ_BYTES + 1;
        char *in = (char *)realloc(visit->in, capacity);
        done = in != NULL;
        if (done) visit->in = in;
        if (done) visit->in_capacity = capacity;
    }
    return done;
}

static void visit_read(struct visit *visit) {
    if (visit_reserve(visit)) {
        visit_wait(visit, false);
    } else {
        visit_end(visit);
    }
}

/* Sends a reply, whose memory goes back. */
static void visit_reply(struct visit *visit, struct reply *reply) {
    visit_compose(visit, reply);
    doorman_buffer_uninit(&reply->text.buffer);
    visit->sent = 0;
    visit_set_state(visit, VISIT_WRITES);
    if (visit->out.failed) {
        visit_end(visit);
    } else {
        visit_wait(visit, true);
    }
}

static struct reply reply_start(void) {
    struct reply reply = {.code = 200, .type = "text/plain; charset=utf-8", .more = ""};
    uint64_t random[2] = {0};
    doorman_random(random, sizeof random);
    snprintf(reply.nonce, sizeof reply.nonce, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return reply;
}

/* A request of which no more is wanted: what still comes of it is thrown away.
 *   rest   how much that is; SIZE_MAX: nobody knows */
static void visit_refuse(struct visit *visit, size_t rest, int code, const char *name,
                         const char *message) {
    struct reply reply = reply_start();
    visit->last = true;
    visit->rest = rest;
    visit->is_head = false;
    refuse_call(&reply, code, name, message);
    visit_reply(visit, &reply);
}

/* The bytes of the body, as the head says; SIZE_MAX: it does not, in a way that we take. */
static size_t head_length(const char *head) {
    char value[32], coding[64];
    int count = head_read(head, "Content-Length", value, sizeof value);
    size_t digits = strspn(value, "0123456789"), length = 0;
    if (count > 1 || value[digits] || (count == 1 && digits == 0) || digits > 18 ||
        head_read(head, "Transfer-Encoding", coding, sizeof coding) > 0) {
        length = SIZE_MAX;
    } else if (count == 1) {
        length = (size_t)strtoull(value, NULL, 10);
    }
    return length;
}

/* "VERB /path?query HTTP/1.1": cuts the line of the head into its parts. */
static bool call_parse(struct call *call, char *line) {
    char *path = strchr(line, ' ');
    char *version = path ? strchr(path + 1, ' ') : NULL;
    if (!version || path[1] != '/' || strncmp(version, " HTTP/1.", 8) != 0) return false;
    *path++ = 0;
    *version++ = 0;
    call->version = version;
    char *query = strchr(path, '?');
    if (query) *query++ = 0;
    call->verb = line;
    call->path = path;
    call->query = query ? query : "";
    call->route = route_find(path);
    return true;
}

/* HTTP/1.0 closes after each answer, and so does who says so. */
static bool call_is_last(const struct call *call) {
    char connection[64];
    head_read(call->head, "Connection", connection, sizeof connection);
    return strcmp(call->version, "HTTP/1.0") == 0 || strcasestr(connection, "close");
}

/* A request whose head is there. It is answered when its body is, too, or refused as soon as it can
 * be. */
static void visit_answer(struct visit *visit, struct call *call, size_t head_bytes) {
    char value[32];
    struct reply reply = reply_start();
    size_t length = head_length(call->head), here = visit->in_bytes - head_bytes;
    size_t rest = length == SIZE_MAX || length > here ? length - here : 0;
    bool said = head_read(call->head, "Content-Length", value, sizeof value) > 0;
    visit->last = call_is_last(call);
    visit->is_head = strcmp(call->verb, "HEAD") == 0;
    if (!call_allowed(visit->service, call, &reply)) {
        visit->last = true;
        visit->rest = rest;
        visit_reply(visit, &reply);
    } else if (length == SIZE_MAX || (!said && strcmp(call->verb, "POST") == 0)) {
        visit_refuse(visit, rest, said ? 400 : 411, "INVALID_ARGUMENT",
                     "a body must have one Content-Length, a number");
    } else if (length > visit->service->settings->message_max) {
        visit_refuse(visit, rest, 413, "RESOURCE_EXHAUSTED", "the message is larger than allowed");
    } else if (rest > 0) {
        visit_read(visit);
    } else {
        visit->used = head_bytes + length;
        call->body = visit->in + head_bytes;
        call->body_bytes = length;
        (call->route ? call->route->answer : answer_method)(visit->service, call, &reply);
        visit_reply(visit, &reply);
    }
}

/* Looks at what has come so far: a head ends with an empty line. */
static void visit_look(struct visit *visit) {
    char head[READ_BYTES + 1], line[READ_BYTES + 1];
    struct call call = {.head = head};
    char *end = (char *)memmem(visit->in, visit->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - visit->in) + 4 : visit->in_bytes;
    if (bytes > READ_BYTES) {
        visit_refuse(visit, SIZE_MAX, 431, "RESOURCE_EXHAUSTED", "the head is longer than 16 KiB");
    } else if (!end) {
        visit_read(visit);
    } else {
        memcpy(head, visit->in, bytes);
        head[bytes - 2] = 0;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(head, "\r"), head);
        if (strlen(head) == bytes - 2 && call_parse(&call, line)) {
            visit_answer(visit, &call, bytes);
        } else {
            visit_refuse(visit, SIZE_MAX, 400, "INVALID_ARGUMENT",
                         "this is no request of HTTP/1.1");
        }
    }
}

/* The answer has left: the next request may be there already. */
static void visit_next(struct visit *visit) {
    if (visit->rest > 0) {
        visit->in_bytes = 0;
        visit_set_state(visit, VISIT_DRAINS);
        visit_read(visit);
    } else if (visit->last) {
        visit_end(visit);
    } else {
        visit->in_bytes -= visit->used;
        memmove(visit->in, visit->in + visit->used, visit->in_bytes);
        visit->used = 0;
        visit_shrink(visit);
        visit_set_state(visit, VISIT_READS);
        if (visit->in_bytes > 0) {
            visit_look(visit);
        } else {
            visit_read(visit);
        }
    }
}

/* nng calls this when something has come, or has been sent, or neither is to be. */
static void visit_step(void *argument) {
    struct visit *visit = (struct visit *)argument;
    size_t count = nng_aio_count(visit->aio);
    if (nng_aio_result(visit->aio) != 0) {
        visit_end(visit);
    } else if (visit->state == VISIT_DRAINS && count >= visit->rest) {
        visit_end(visit);
    } else if (visit->state == VISIT_DRAINS) {
        visit->rest -= count;
        visit_wait(visit, false);
    } else if (visit->state == VISIT_READS) {
        visit->in_bytes += count;
        visit_look(visit);
    } else if ((visit->sent += count) < visit->out.buffer.bytes) {
        visit_wait(visit, true);
    } else {
        visit_next(visit);
    }
}

/* Makes room for the next one: whoever is closest to the end of its time leaves, those whose answer
 * is on its way last. With the lock held: then none can change its state meanwhile, and what is
 * cancelled is what it waits for. */
static void http_make_room(struct http *http, const struct visit *newest) {
    struct visit *chosen = NULL;
    for (size_t i = 0; i < VISIT_MAX; i++) {
        struct visit *visit = &http->visits[i];
        bool writes = visit->state == VISIT_WRITES;
        if (visit->state == VISIT_FREE) return;
        if (visit == newest) continue;
        bool better = !chosen || writes < (chosen->state == VISIT_WRITES);
        bool same = chosen && writes == (chosen->state == VISIT_WRITES);
        if (better || (same && visit->deadline < chosen->deadline)) chosen = visit;
    }
    if (chosen) nng_aio_cancel(chosen->aio);
}

/* Takes the next connection, if there is a place for it and that is not under way. */
static void http_accept(struct http *http) {
    bool accepts = false;
    pthread_mutex_lock(&http->lock);
    for (size_t i = 0; i < VISIT_MAX && !http->accepting && !http->stopping; i++) {
        accepts = accepts || http->visits[i].state == VISIT_FREE;
    }
    http->accepting = http->accepting || accepts;
    pthread_mutex_unlock(&http->lock);
    if (accepts) nng_stream_listener_accept(http->listener, http->aio);
}

static struct visit *http_open(struct http *http, nng_stream *stream) {
    struct visit *visit = http->visits;
    pthread_mutex_lock(&http->lock);
    while (visit->state != VISIT_FREE) visit++;
    visit->stream = stream;
    visit->state = VISIT_READS;
    visit->deadline = doorman_clock() + VISIT_SECONDS * DOORMAN_SECOND;
    visit->last = visit->is_head = false;
    visit->sent = visit->used = visit->rest = 0;
    http->accepting = false;
    http_make_room(http, visit);
    pthread_mutex_unlock(&http->lock);
    return visit;
}

/* Where no more files can be opened it waits a little: others may close theirs. */
static void http_step(void *argument) {
    struct http *http = (struct http *)argument;
    int result = nng_aio_result(http->aio);
    if (result == 0) {
        nng_stream *stream = (nng_stream *)nng_aio_get_output(http->aio, 0);
        visit_read(http_open(http, stream));
    } else {
        pthread_mutex_lock(&http->lock);
        http->accepting = false;
        http->stopping = http->stopping || result == NNG_ECLOSED || result == NNG_ECANCELED;
        pthread_mutex_unlock(&http->lock);
        nng_msleep(10);
    }
    http_accept(http);
}

/* The first line of a file, without the space around it. */
static enum outcome http_load_token(struct http *http, const char *path) {
    enum outcome outcome = GO_ON;
    FILE *file = fopen(path, "rb");
    char line[TOKEN_BYTES_MAX + 2] = "";
    if (!file) {
        outcome = refuse(FAILED, "--http-token %s: %s", path, strerror(errno));
    } else {
        line[fread(line, 1, sizeof line - 1, file)] = 0;
        fclose(file);
        char *first = line + strspn(line, " \t\r\n");
        first[strcspn(first, " \t\r\n")] = 0;
        if (!*first || strlen(line) > TOKEN_BYTES_MAX) {
            outcome = refuse(FAILED, "--http-token %s: must hold a token of 1 to %d bytes", path,
                             TOKEN_BYTES_MAX);
        }
        snprintf(http->token, sizeof http->token, "%.*s", TOKEN_BYTES_MAX, first);
    }
    return outcome;
}

/* Beyond loopback a token or a certificate says who belongs. */
static enum outcome http_check(const struct service *service) {
    const struct settings *settings = service->settings;
    enum outcome outcome = GO_ON;
    char host[256];
    host_read(settings->http, host, sizeof host);
    bool far = !host_loopback(host);
    bool guarded = service->tls && settings->tls_ca;
    if (far && !settings->http_token && !guarded) {
        outcome = refuse(WRONG_USE,
                         "--http %s can be reached from other machines: give --http-token, or "
                         "--tls-ca, or an address of loopback",
                         settings->http);
    } else if (far && !service->tls) {
        say(settings, LEVEL_WARNING, "the token of HTTP travels in plain text: give --tls-cert",
            "http", settings->http, END);
    }
    return outcome;
}

/* nng's error, or 0. The address is noted as it came out: a port of 0 has become a real one. */
static int http_listen(struct service *service) {
    struct http *http = service->http;
    char url[320], host[256];
    int port = 0;
    snprintf(url, sizeof url, "%s://%s", service->tls ? "tls+tcp" : "tcp", service->settings->http);
    host_read(service->settings->http, host, sizeof host);
    int error = nng_stream_listener_alloc(&http->listener, url);
    if (error == 0 && service->tls) {
        error = nng_stream_listener_set_ptr(http->listener, NNG_OPT_TLS_CONFIG, service->tls);
    }
    if (error == 0) error = nng_stream_listener_listen(http->listener);
    if (error == 0) {
        error = nng_stream_listener_get_int(http->listener, NNG_OPT_TCP_BOUND_PORT, &port);
        snprintf(http->address, sizeof http->address, "%s://%s:%d", service->tls ? "https" : "http",
                 host, port);
    }
    return error;
}

/* An address that nobody chose is not worth failing for: a second server on one machine goes on
 * without HTTP, and says so. */
static enum outcome http_refuse(struct service *service, int error) {
    const struct settings *settings = service->settings;
    enum outcome outcome = GO_ON;
    if (error == NNG_EADDRINUSE && !settings->given[FLAG_HTTP]) {
        say(settings, LEVEL_WARNING, "no HTTP: its address is in use; give --http, or --http off",
            "http", settings->http, END);
    } else if (error == NNG_EADDRINVAL || error == NNG_EINVAL) {
        outcome = refuse(WRONG_USE, "cannot listen on --http '%s': %s; an address looks like %s",
                         settings->http, nng_strerror(error), HTTP_DEFAULT);
    } else {
        outcome = refuse(FAILED, "cannot listen on --http %s: %s; give another one, or off",
                         settings->http, nng_strerror(error));
    }
    return outcome;
}

static enum outcome http_open_visits(struct service *service) {
    struct http *http = service->http;
    int error = nng_aio_alloc(&http->aio, http_step, http);
    for (size_t i = 0; error == 0 && i < VISIT_MAX; i++) {
        http->visits[i].service = service;
        error = nng_aio_alloc(&http->visits[i].aio, visit_step, &http->visits[i]);
    }
    if (error == 0) http_accept(http);
    return error == 0 ? GO_ON : refuse(FAILED, "cannot serve HTTP: %s", nng_strerror(error));
}

static enum outcome http_start(struct service *service) {
    const char *token = service->settings->http_token;
    enum outcome outcome = http_check(service);
    struct http *http = (struct http *)calloc(1, sizeof *http);
    struct history *history = (struct history *)calloc(1, sizeof *history);
    service->http = http;
    service->history = history;
    if (outcome == GO_ON && (!http || !history || pthread_mutex_init(&http->lock, NULL) != 0 ||
                             pthread_mutex_init(&history->lock, NULL) != 0)) {
        outcome = refuse(FAILED, "out of memory");
    }
    if (outcome == GO_ON && token) outcome = http_load_token(http, token);
    if (outcome == GO_ON) {
        int error = http_listen(service);
        outcome = error == 0 ? http_open_visits(service) : http_refuse(service, error);
    }
    return outcome;
}

/* Also after a start that came half-way. Stopping an aio waits for its last step. */
static void http_stop(struct service *service) {
    struct http *http = service->http;
    if (http) {
        pthread_mutex_lock(&http->lock);
        http->stopping = true;
        pthread_mutex_unlock(&http->lock);
        if (http->listener) nng_stream_listener_close(http->listener);
        nng_aio_stop(http->aio);
        for (size_t i = 0; i < VISIT_MAX; i++) nng_aio_stop(http->visits[i].aio);
        for (size_t i = 0; i < VISIT_MAX; i++) {
            struct visit *visit = &http->visits[i];
            nng_stream_free(visit->stream);
            nng_aio_free(visit->aio);
            doorman_buffer_uninit(&visit->out.buffer);
            free(visit->in);
        }
        nng_aio_free(http->aio);
        if (http->listener) nng_stream_listener_free(http->listener);
        pthread_mutex_destroy(&http->lock);
    }
    if (service->history) {
        history_clear(service->history);
        pthread_mutex_destroy(&service->history->lock);
    }
    free(service->history);
    free(http);
}

/* ---- >>tls ---------------------------------------------------------------------------------- */
/* One configuration of certificates serves all that listens here. With an authority given, only
 * those get in whose certificates it has signed: nng checks them before we hear of the peer. The
 * same files are for the way to the parent, whose certificate the authority must have signed. */

#define PEM_BYTES_MAX ((size_t)1 << 20)

/* The whole of a file, if one is given. */
static enum outcome pem_load(char **out, int flag, const char *path) {
    enum outcome outcome = GO_ON;
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = path ? (char *)calloc(1, PEM_BYTES_MAX) : NULL;
    if (path && !text) {
        outcome = refuse(FAILED, "out of memory");
    } else if (path && (!file || (fread(text, 1, PEM_BYTES_MAX - 1, file) == 0))) {
        outcome = refuse(FAILED, "--%s %s: %s", flags[flag].name, path,
                         file ? "is empty, or cannot be read" : strerror(errno));
    }
    if (file) fclose(file);
    *out = text;
    return outcome;
}

/* nng knows what is wrong with a certificate; a configuration of the other kind is for the check
 * alone, as the carrier makes its own. */
static enum outcome tls_create(nng_tls_config **out, nng_tls_mode mode,
                               const struct service *service) {
    const struct pem *pem = &service->pem;
    const struct settings *settings = service->settings;
    enum outcome outcome = GO_ON;
    int error = nng_tls_config_alloc(out, mode);
    if (error != 0) {
        outcome =
            refuse(WRONG_USE, "no TLS: %s; this libnng was built without it", nng_strerror(error));
    }
    if (outcome == GO_ON && pem->certificate) {
        error = nng_tls_config_own_cert(*out, pem->certificate, pem->key, NULL);
        if (error != 0) {
            outcome = refuse(FAILED,
                             "--tls-cert %s, --tls-key %s: %s; they must be a certificate "
                             "and its key, in PEM",
                             settings->tls_cert, settings->tls_key, nng_strerror(error));
        }
    }
    if (outcome == GO_ON && pem->authority) {
        error = nng_tls_config_ca_chain(*out, pem->authority, NULL);
        if (error == 0) error = nng_tls_config_auth_mode(*out, NNG_TLS_AUTH_MODE_REQUIRED);
        if (error != 0) {
            outcome = refuse(FAILED, "--tls-ca %s: %s; it must hold certificates, in PEM",
                             settings->tls_ca, nng_strerror(error));
        }
    }
    return outcome;
}

static enum outcome tls_start(struct service *service) {
    const struct settings *settings = service->settings;
    struct pem *pem = &service->pem;
    enum outcome outcome = pem_load(&pem->certificate, FLAG_TLS_CERT, settings->tls_cert);
    if (outcome == GO_ON) outcome = pem_load(&pem->key, FLAG_TLS_KEY, settings->tls_key);
    if (outcome == GO_ON) outcome = pem_load(&pem->authority, FLAG_TLS_CA, settings->tls_ca);
    if (outcome == GO_ON && pem->certificate) {
        outcome = tls_create(&service->tls, NNG_TLS_MODE_SERVER, service);
    } else if (outcome == GO_ON && pem->authority) {
        nng_tls_config *upward = NULL;
        outcome = tls_create(&upward, NNG_TLS_MODE_CLIENT, service);
        if (upward) nng_tls_config_free(upward);
    }
    return outcome;
}

static void tls_stop(struct service *service) {
    if (service->tls) nng_tls_config_free(service->tls);
    free(service->pem.certificate);
    free(service->pem.key);
    free(service->pem.authority);
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

/* nng's own protocol asks nobody who it is. */
static void service_warn_of_listener(const struct service *service, const char *url) {
    char host[256];
    host_read(url, host, sizeof host);
    bool far = strncmp(url, "tcp", 3) == 0 || strncmp(url, "ws", 2) == 0;
    if (far && !host_loopback(host)) {
        say(service->settings, LEVEL_WARNING,
            "this address can be reached from other machines without TLS", "listen", url, END);
    }
}

static enum outcome service_listen_at(struct service *service, const char *url) {
    enum outcome outcome = GO_ON;
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    int error = nng_listener_create(&listener, service->socket, url);
    bool tls = url_wants_tls(url);
    if (error == 0 && tls) {
        error = nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, service->tls);
    }
    if (error != 0) {
        outcome = refuse(WRONG_USE, "cannot listen on '%s': %s; an address looks like %s", url,
                         nng_strerror(error), LISTEN_DEFAULT);
    } else if ((error = service_start_listener(service, listener)) != 0) {
        outcome = refuse(FAILED, "cannot listen on %s: %s; give another --listen", url,
                         nng_strerror(error));
    } else if (!tls) {
        service_warn_of_listener(service, url);
    }
    return outcome;
}

/* Keeps the number of connections. nng tells of one that it is going to close, too. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    struct service *service = (struct service *)argument;
    size_t most = service->settings->connection_max;
    if (event == NNG_PIPE_EV_REM_POST) {
        __atomic_sub_fetch(&service->connection_count, 1, __ATOMIC_RELAXED);
    } else if (__atomic_add_fetch(&service->connection_count, 1, __ATOMIC_RELAXED) > most && most) {
        nng_pipe_close(pipe);
    }
}

/* Listens on all addresses with one socket. nng cuts off a peer that announces a longer message
 * than allowed, before it takes any of it in; in front of each text goes the request's number. */
static enum outcome service_listen(struct service *service) {
    const struct settings *settings = service->settings;
    const size_t bytes_max = sizeof(uint32_t) + settings->message_max;
    int error = nng_rep0_open(&service->socket);
    if (error == 0) error = nng_pipe_notify(service->socket, NNG_PIPE_EV_ADD_PRE, on_pipe, service);
    if (error == 0) {
        error = nng_pipe_notify(service->socket, NNG_PIPE_EV_REM_POST, on_pipe, service);
    }
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

/* All processes of a node have the key of their election in common (T5). */
static enum outcome service_name(struct service *service) {
    const struct settings *settings = service->settings;
    const char *host = strstr(service->urls[0], "://");
    service->id = settings->id ? settings->id : host ? host + 3 : service->urls[0];
    service->node = settings->election_key ? settings->election_key : service->id;
    if (settings->node) service->node = settings->node;
    service->advertise = settings->advertise ? settings->advertise : service->urls[0];
    return settings->election_key && !address_is_reachable(service->advertise)
               ? refuse(WRONG_USE,
                        "others cannot reach '%s': give --advertise, with a host that they know",
                        service->advertise)
               : GO_ON;
}

#define NAME_RULE "must be 1 to 256 bytes of UTF-8 without control characters"

/* Makes the server object; without an election it has no rival, and is master for good. */
static enum outcome service_create_server(struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    const char *addresses[ADDRESS_MAX];
    for (size_t i = 0; i < parents->count; i++) addresses[i] = parents->items[i];
    doorman_server_options options = {.node = service->node,
                                      .config = service->config,
                                      .parents = addresses,
                                      .parent_count = parents->count,
                                      .resource_max = service->settings->resource_max,
                                      .holder_max = service->settings->holder_max,
                                      .on_event = on_event,
                                      .context = service};
    doorman_mastership mastership = {.address = service->advertise, .until = DOORMAN_NEVER};
    if (service->settings->election_key) mastership.until = 0;
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
    } else if (service->settings->election_key) {
        mastership.address = NULL; /* it was given to be checked; nobody is known yet */
        doorman_server_set_master(service->server, &mastership, now);
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
    const char *http = service->http && service->http->address[0] ? service->http->address : "off";
    say(service->settings, LEVEL_INFO, "serving", "version", DOORMAN_VERSION, "http", http, "id",
        service->id, "node", service->node, "listen", addresses, "advertise", service->advertise,
        parents->count > 0 ? "parent" : "resources", source, END);
}

/* Which file it is, and which state of it. Links are followed: a name that stands for another file
 * now, by a rename or by another link, is another file. */
static struct watched watch_file(const char *path) {
    struct watched watched = {.device = 0};
    struct stat state;
    if (path && stat(path, &state) == 0) {
        watched =
            (struct watched){(uint64_t)state.st_dev, (uint64_t)state.st_ino, (int64_t)state.st_size,
                             (int64_t)state.st_mtim.tv_sec, (int64_t)state.st_mtim.tv_nsec};
    }
    return watched;
}

static enum outcome service_load_config(struct service *service) {
    const struct settings *settings = service->settings;
    struct election *election = &service->election;
    enum outcome outcome = GO_ON;
    doorman_error error;
    etcd_init(&election->etcd, settings);
    service->loading.watched = watch_file(settings->config_key ? NULL : settings->config);
    if (settings->config &&
        !config_fetch(&service->config, settings, &election->etcd, election->revision, &error)) {
        outcome = refuse_config(settings->config, &error);
    }
    service->loading.loaded_at = time(NULL);
    return outcome;
}

static enum outcome service_start(struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    enum outcome outcome = service_load_config(service);
    if (outcome == GO_ON) {
        raise_file_limit();
        service->started_at = doorman_clock();
        outcome = tls_start(service);
    }
    if (outcome == GO_ON) outcome = service_listen(service);
    if (outcome == GO_ON) outcome = service_name(service);
    for (size_t i = 0; outcome == GO_ON && i < parents->count; i++) {
        outcome = upward_check_address(service, parents->items[i]);
    }
    if (outcome == GO_ON) outcome = service_create_server(service);
    if (outcome == GO_ON && parents->count > 0) outcome = upward_start(service);
    if (outcome == GO_ON) outcome = service_open_lanes(service);
    if (outcome == GO_ON && strcmp(service->settings->http, "off") != 0) {
        outcome = http_start(service);
    }
    if (outcome == GO_ON) service_say_started(service);
    if (outcome == GO_ON && service->settings->etcd.count > 0) outcome = election_start(service);
    return outcome;
}

/* Also after a start that came half-way. Closing the socket ends what the lanes wait for, and
 * freeing an aio waits for its last step. nng_fini is not called: nng 1.5 closes connections with
 * TLS in a thread of its own, and frees there what that still uses. */
static void service_stop(struct service *service) {
    http_stop(service);
    nng_close(service->socket);
    for (size_t i = 0; i < LANE_COUNT; i++) {
        nng_aio_free(service->lanes[i].aio);
        doorman_json_exchange_uninit(&service->lanes[i].exchange);
    }
    for (size_t i = 0; i < service->url_count; i++) nng_strfree(service->urls[i]);
    upward_stop(service);
    election_stop(service);
    doorman_server_destroy(service->server);
    doorman_config_destroy(service->config);
    tls_stop(service);
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

/* It is read without the lock, so answers go on meanwhile; from etcd by the thread that asks there.
 */
static void service_reload_config(struct service *service) {
    doorman_config *config = NULL;
    doorman_error error;
    if (service->settings->config_key) {
        pthread_mutex_lock(&service->lock);
        service->election.reload = true;
        pthread_cond_signal(&service->election.wake);
        pthread_mutex_unlock(&service->lock);
    } else {
        service->loading.watched = watch_file(service->settings->config);
        config_load(&config, service->settings->config, &error);
        service_take_config(service, config, &error);
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

/* A file that is not there may be on its way: the last one stays in force until there is one. */
static void service_watch_config(struct service *service) {
    struct watched now = watch_file(service->settings->config);
    const struct watched *last = &service->loading.watched;
    bool same = now.device == last->device && now.file == last->file && now.bytes == last->bytes &&
                now.seconds == last->seconds && now.nanoseconds == last->nanoseconds;
    if (now.file != 0 && !same) service_reload_config(service);
}

static void service_sample(struct service *service, doorman_time now) {
    if (service->history && service->history->due <= now) {
        service->history->due = now + HISTORY_INTERVAL;
        history_sample(service);
    }
}

/* What has become free is in pieces between what is not, and the C library keeps it. To look for
 * whole pages takes tens of milliseconds, in which who wants memory may wait; so it is done after
 * many leases have gone, and not soon again; but once more then, for what was freed a little later,
 * such as the history of their resources. */
static void service_trim(struct service *service, doorman_time now) {
#ifdef __GLIBC__
    pthread_mutex_lock(&service->lock);
    bool many = service->gone_count >= TRIM_LEASES;
    bool due = (many || service->trim_again) && now >= service->trim_due;
    if (due) {
        service->trim_again = many;
        service->trim_due = now + TRIM_INTERVAL;
        service->gone_count = 0;
    }
    pthread_mutex_unlock(&service->lock);
    if (due) malloc_trim(0);
#else
    (void)service, (void)now;
#endif
}

static void service_tick(struct service *service) {
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    bool due = doorman_server_due(service->server) <= now;
    while (due && doorman_server_update(service->server, now)) service_yield(service);
    for (int kind = 0; kind < TROUBLE_COUNT; kind++) {
        trouble_say(service, kind, NULL, NULL, NULL, now);
    }
    pthread_mutex_unlock(&service->lock);
}

/* The way out when nng_close does not return: nng 1.5 can lose a connection whose peer vanished
 * with an answer on its way, and then waits for it for ever. By now all has been answered. And when
 * the resolver does not, on the way to etcd: then the key goes with its lease. */
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
        service_watch_config(service);
        service_tick(service);
        service_sample(service, doorman_clock());
        service_trim(service, doorman_clock());
    }
    say(service->settings, LEVEL_INFO, "stopping", "signal", got == SIGTERM ? "SIGTERM" : "SIGINT",
        END);
    pthread_mutex_lock(&service->lock);
    service->stopping = true;
    pthread_mutex_unlock(&service->lock);
    signal(SIGALRM, leave);
    alarm(RESIGNING_SECONDS);
    election_stop(service);
    nng_msleep(STOPPING_MS);
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
