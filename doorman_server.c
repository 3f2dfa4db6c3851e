/* doorman_server: a process that serves one node of a Doorman tree. It reads requests from sockets,
 * passes them to doorman.h, and sends the responses. doorman.h makes all decisions about capacity.
 *
 * Threads: nng calls worker_step on its own threads. These threads also handle the request, because
 * a handover to another thread would cost more than the decision. One mutex guards the server
 * object. A thread holds it only for the decision, and reads and writes JSON without it. The main
 * thread waits for signals, and once a second does the work that is due. With --parent, one more
 * thread does this work, and requests capacity from the parent. With --etcd, another one takes part
 * in the election of the master and watches the configuration.
 *
 * G8 A node with a parent gets its resources from the parent. A --config beside --parent is a usage
 *    error.
 *    At the first request for a resource, a node requests it from its parent at once (T4). All
 *    processes of a node send requests to the parent under the name of the node (T5).
 * V1 The server reloads the configuration on SIGHUP, when the file changes or is replaced, and when
 *    the etcd key changes. It refuses an invalid configuration and keeps the last one. SIGTERM and
 *    SIGINT finish the requests in progress, give up mastership, and end the process with exit
 *    code 0.
 * V2 With an election, a server is master only while its own etcd lease holds the key. It stops
 *    being master, by its own clock, before etcd can give the key to another server.
 * V3 HTTP has a status page for people, metrics for Prometheus and JSON for programs. It also takes
 *    the messages of the protocol.
 * V4 Metrics follow the conventions of Prometheus.
 *    A message has at most 4 MiB (V5). A peer that sends invalid data, or disconnects in the middle
 *    of a message, does not affect other peers.
 * V6 Log lines are logfmt on standard error. A warning that repeats is logged once a minute, with a
 *    count. No thread waits for the log: a line that cannot be written at once is lost and counted.
 * V7 Exit codes: 0 done, 1 failure, 2 usage error. One line on standard error says what is wrong
 *    and what to do.
 *
 * The sections, in order: flags, log, etcd, configuration, state, request, parent link, election,
 * text, snapshot, history, metrics, status page, JSON over HTTP, HTTP, TLS, sockets, signals, main.
 * A function that can end the process returns an enum exit_status, which main turns into the exit
 * code. */

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
#include <sys/random.h>
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
#define DOORMAN_NNG /* for the transport, the clock and random bits */
#include "doorman.h"

/* Whether the process continues (CONTINUE) or ends. All other values are exit codes (V7). */
enum exit_status { CONTINUE = -1, EXIT_OK = 0, EXIT_ERROR = 1, EXIT_USAGE = 2 };

/* Prints why the process ends, as one line on standard error, and returns the status (V7). */
__attribute__((format(printf, 2, 3))) static enum exit_status
fatal_error(enum exit_status exit_status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("doorman_server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs(exit_status == EXIT_USAGE ? "; try 'doorman_server --help'\n" : "\n", stderr);
    va_end(arguments);
    return exit_status;
}

static const char *status_text(doorman_status status) {
#define STATUS_TEXT(code, name, text) [code] = (text),
    static const char *const texts[] = {DOORMAN_STATUSES(STATUS_TEXT)};
    return texts[status];
}

/* The name of a kind of algorithm, as in a configuration. */
static const char *kind_name(doorman_kind kind) {
#define KIND_NAME(kind, name) [kind] = (name),
    static const char *const names[] = {DOORMAN_KINDS(KIND_NAME)};
    return names[kind];
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
#define FLAG_FIRST 256 /* getopt's code for flag 0; larger than any character */
#define ADDRESS_MAX 16 /* addresses per flag; the library also takes at most 16 parents */
#define LISTEN_DEFAULT "tcp://127.0.0.1:15000"
#define ETCD_EXAMPLE "http://127.0.0.1:2379"
#define TTL_MIN 2 /* seconds; etcd grants no shorter lease */
#define TTL_MAX 3600
#define TTL_DEFAULT 10
#define ETCD_KEY_BYTES_MAX DOORMAN_ID_BYTES_MAX /* the election key is the default node name */
#define HTTP_DEFAULT "127.0.0.1:15050"

static const struct flag {
    const char *name, *argument; /* argument NULL: the flag takes none */
    const char *variable;        /* NULL: the flag has no environment variable */
    const char *help;
} flags[FLAG_COUNT] = {
    [FLAG_CONFIG] = {"config", "FILE|etcd:KEY", "DOORMAN_CONFIG",
                     "the resources and how each is shared: a file, or a key of etcd; the server "
                     "reloads it when\n        it changes; required unless --parent is given"},
    [FLAG_LISTEN] =
        {"listen", "URL[,URL...]", "DOORMAN_LISTEN",
         "the addresses to listen on; can be given more than once (default " LISTEN_DEFAULT ")"},
    [FLAG_PARENT] = {"parent", "URL[,URL...]", "DOORMAN_PARENT",
                     "the servers of the parent node, which grants this node its capacity and "
                     "names its resources;\n        replaces --config; can be given more than once "
                     "(default none: this node is a root)"},
    [FLAG_ID] = {"id", "NAME", "DOORMAN_ID",
                 "the name of this process (default HOST:PORT of the first --listen)"},
    [FLAG_NODE] =
        {"node", "NAME", "DOORMAN_NODE",
         "the name of the node that this process serves; unique in the tree, and the same "
         "for all\n        processes of the node and after a restart, because leases "
         "name it (default the election\n        key, else the id)"},
    [FLAG_ADVERTISE] = {"advertise", "URL", "DOORMAN_ADVERTISE",
                        "the address at which others reach this process (default the first "
                        "--listen)"},
    [FLAG_ETCD] = {"etcd", "URL[,URL...]", "DOORMAN_ETCD",
                   "the members of an etcd cluster, for an election or a configuration; can be "
                   "given more than\n        once (default none: this server is the master)"},
    [FLAG_ELECTION_KEY] = {"election-key", "KEY", "DOORMAN_ELECTION_KEY",
                           "the key of etcd whose owner is the master; the same for all "
                           "processes of this node, and\n        used by no other node"},
    [FLAG_ELECTION_TTL] = {"election-ttl", "SECONDS", "DOORMAN_ELECTION_TTL",
                           "how long an unreachable master remains master, 2 to 3600 (default 10)"},
    [FLAG_HTTP] = {"http", "HOST:PORT|off", "DOORMAN_HTTP",
                   "the address of the status page, the metrics and the protocol over HTTP "
                   "(default\n        " HTTP_DEFAULT
                   "); beyond loopback it needs --http-token or --tls-ca"},
    [FLAG_HTTP_TOKEN] = {"http-token", "FILE", "DOORMAN_HTTP_TOKEN",
                         "a file with the token that every HTTP request must send, as "
                         "'Authorization: Bearer TOKEN' or\n        as a password, except for "
                         "/healthz and /readyz (default none)"},
    [FLAG_TLS_CERT] = {"tls-cert", "FILE", "DOORMAN_TLS_CERT",
                       "the certificate of this server, in PEM, for --listen tls+tcp://... and for "
                       "HTTP, which then\n        is HTTPS (default none: no TLS)"},
    [FLAG_TLS_KEY] = {"tls-key", "FILE", "DOORMAN_TLS_KEY", "the key of --tls-cert, in PEM"},
    [FLAG_TLS_CA] = {"tls-ca", "FILE", "DOORMAN_TLS_CA",
                     "the authorities, in PEM, that must have signed the certificate of every peer "
                     "that connects,\n        and of a --parent tls+tcp://... (default none: "
                     "peers need no certificate)"},
    [FLAG_MAX_RESOURCES] = {"max-resources", "NUMBER", "DOORMAN_MAX_RESOURCES",
                            "the maximum number of resources (default 1000000)"},
    [FLAG_MAX_HOLDERS] = {"max-holders", "NUMBER", "DOORMAN_MAX_HOLDERS",
                          "the maximum number of holders of one resource (default 10000000)"},
    [FLAG_MAX_MESSAGE] = {"max-message", "BYTES", "DOORMAN_MAX_MESSAGE",
                          "the maximum size of a message (default 4194304, also the upper bound)"},
    [FLAG_MAX_CONNECTIONS] = {"max-connections", "NUMBER", "DOORMAN_MAX_CONNECTIONS",
                              "the maximum number of nng connections at once (default: as many as "
                              "the process can open\n        files)"},
    [FLAG_LOG_LEVEL] = {"log-level", "LEVEL", "DOORMAN_LOG_LEVEL",
                        "debug, info, warning or error (default info)"},
    [FLAG_CHECK_CONFIG] = {"check-config", NULL, "DOORMAN_CHECK_CONFIG",
                           "check the configuration, print the result, and exit (default no)"},
    [FLAG_VERSION] = {"version", NULL, NULL, "print the version, and exit"},
    [FLAG_HELP] = {"help", NULL, NULL, "print this help, and exit"},
};

enum log_level { LEVEL_DEBUG, LEVEL_INFO, LEVEL_WARNING, LEVEL_ERROR, LEVEL_COUNT };
static const char *const level_names[LEVEL_COUNT] = {"debug", "info", "warning", "error"};

struct addresses {
    char *items[ADDRESS_MAX];
    size_t count;
};

/* The values of the flags and the environment. The strings point into argv and the environment,
 * except the addresses, which are copies. */
struct settings {
    bool given[FLAG_COUNT];
    const char *config, *id, *node, *advertise;
    const char *config_key, *election_key; /* keys of etcd; NULL: none */
    int election_ttl;                      /* seconds */
    const char *http, *http_token;         /* http "off": no HTTP */
    const char *tls_cert, *tls_key, *tls_ca;
    size_t resource_max, holder_max, message_max, connection_max; /* 0: the default */
    struct addresses listen, parents, etcd;
    enum log_level log_level;
    bool check_config;
};

static enum exit_status print_help(void) {
    puts("Usage: doorman_server --config FILE [FLAG]...\n"
         "       doorman_server --parent URL [FLAG]...\n"
         "Grants the clients of Doorman leases on shared capacity.\n"
         "\n"
         "An environment variable in [BRACKETS] sets the same value; the flag takes precedence.\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const struct flag *flag = &flags[i];
        printf("  --%s%s%s", flag->name, flag->argument ? " " : "",
               flag->argument ? flag->argument : "");
        if (flag->variable) printf("   [%s]", flag->variable);
        printf("\n        %s\n", flag->help);
    }
    puts("\n"
         "Signals: SIGHUP reloads the configuration; an invalid one is refused, and the last one\n"
         "stays in force. SIGTERM and SIGINT end the server.\n"
         "Exit codes: 0 done, 1 failure, 2 usage error.");
    return EXIT_OK;
}

static enum exit_status print_version(void) {
    puts("doorman_server " DOORMAN_VERSION);
    return EXIT_OK;
}

static enum exit_status addresses_add(struct addresses *addresses, int flag, const char *text,
                                      size_t bytes) {
    enum exit_status exit_status = CONTINUE;
    if (bytes == 0) {
        exit_status = fatal_error(EXIT_USAGE, "an address of --%s is empty", flags[flag].name);
    } else if (addresses->count == ADDRESS_MAX) {
        exit_status = fatal_error(EXIT_USAGE, "more than %d addresses for --%s", ADDRESS_MAX,
                                  flags[flag].name);
    } else if ((addresses->items[addresses->count] = strndup(text, bytes)) == NULL) {
        exit_status = fatal_error(EXIT_ERROR, "out of memory");
    } else {
        addresses->count++;
    }
    return exit_status;
}

/* Adds the comma-separated addresses of one value of a flag. A repeated flag adds more. */
static enum exit_status addresses_add_list(struct addresses *addresses, int flag,
                                           const char *list) {
    enum exit_status exit_status = CONTINUE;
    while (exit_status == CONTINUE && list) {
        const char *comma = strchr(list, ',');
        size_t bytes = comma ? (size_t)(comma - list) : strlen(list);
        exit_status = addresses_add(addresses, flag, list, bytes);
        list = comma ? comma + 1 : NULL;
    }
    return exit_status;
}

static void addresses_uninit(struct addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) free(addresses->items[i]);
}

/* Writes the addresses to `text`, separated by commas; cuts off what does not fit. */
static void addresses_join(char *const *items, size_t count, char *text, size_t room) {
    for (size_t i = 0, bytes = 0; i < count && bytes < room; i++) {
        bytes += (size_t)snprintf(text + bytes, room - bytes, "%s%s", i ? "," : "", items[i]);
    }
}

static enum exit_status settings_set_log_level(struct settings *settings, const char *name) {
    enum exit_status exit_status = CONTINUE;
    unsigned level = 0;
    while (level < LEVEL_COUNT && strcmp(name, level_names[level]) != 0) level++;
    settings->log_level = (enum log_level)level;
    if (level == LEVEL_COUNT) {
        exit_status = fatal_error(EXIT_USAGE, "'%s' is not a log level", name);
    }
    return exit_status;
}

/* value: of the environment variable; NULL for the flag, which takes none and means yes. */
static enum exit_status settings_set_check_config(struct settings *settings, const char *value) {
    enum exit_status exit_status = CONTINUE;
    if (!value || strcmp(value, "1") == 0 || strcmp(value, "true") == 0) {
        settings->check_config = true;
    } else if (strcmp(value, "0") != 0 && strcmp(value, "false") != 0) {
        exit_status =
            fatal_error(EXIT_USAGE, "DOORMAN_CHECK_CONFIG is '%s', not 1, true, 0 or false", value);
    }
    return exit_status;
}

static enum exit_status settings_set_config(struct settings *settings, const char *value) {
    static const char scheme[] = "etcd:";
    bool key = strncmp(value, scheme, strlen(scheme)) == 0;
    settings->config = value;
    settings->config_key = key ? value + strlen(scheme) : NULL;
    return key && !*settings->config_key
               ? fatal_error(EXIT_USAGE, "--config etcd: needs a key after the colon")
               : CONTINUE;
}

static enum exit_status settings_set_ttl(struct settings *settings, const char *value) {
    char *end = NULL;
    long seconds = strtol(value, &end, 10);
    bool valid = end != value && !*end && seconds >= TTL_MIN && seconds <= TTL_MAX;
    if (valid) settings->election_ttl = (int)seconds;
    return valid
               ? CONTINUE
               : fatal_error(EXIT_USAGE, "--election-ttl is '%s', not a whole number from %d to %d",
                             value, TTL_MIN, TTL_MAX);
}

static enum exit_status settings_set_number(size_t *out, int flag, const char *value,
                                            size_t maximum) {
    enum exit_status exit_status = CONTINUE;
    size_t digits = strspn(value, "0123456789");
    *out = (size_t)strtoull(value, NULL, 10);
    if (value[digits] || digits > 15 || *out == 0 || *out > maximum) {
        exit_status = fatal_error(EXIT_USAGE, "--%s is '%s', not a number from 1 to %zu",
                                  flags[flag].name, value, maximum);
    }
    return exit_status;
}

static enum exit_status settings_store(struct settings *settings, int flag, const char *value) {
    enum exit_status exit_status = CONTINUE;
    switch (flag) {
    case FLAG_CONFIG: exit_status = settings_set_config(settings, value); break;
    case FLAG_LISTEN: exit_status = addresses_add_list(&settings->listen, flag, value); break;
    case FLAG_PARENT: exit_status = addresses_add_list(&settings->parents, flag, value); break;
    case FLAG_ID: settings->id = value; break;
    case FLAG_NODE: settings->node = value; break;
    case FLAG_ADVERTISE: settings->advertise = value; break;
    case FLAG_ETCD: exit_status = addresses_add_list(&settings->etcd, flag, value); break;
    case FLAG_ELECTION_KEY: settings->election_key = value; break;
    case FLAG_ELECTION_TTL: exit_status = settings_set_ttl(settings, value); break;
    case FLAG_HTTP: settings->http = value; break;
    case FLAG_HTTP_TOKEN: settings->http_token = value; break;
    case FLAG_TLS_CERT: settings->tls_cert = value; break;
    case FLAG_TLS_KEY: settings->tls_key = value; break;
    case FLAG_TLS_CA: settings->tls_ca = value; break;
    case FLAG_MAX_RESOURCES:
        exit_status = settings_set_number(&settings->resource_max, flag, value, 1000000000);
        break;
    case FLAG_MAX_HOLDERS:
        exit_status = settings_set_number(&settings->holder_max, flag, value, 1000000000);
        break;
    case FLAG_MAX_MESSAGE:
        exit_status =
            settings_set_number(&settings->message_max, flag, value, DOORMAN_MESSAGE_BYTES_MAX);
        break;
    case FLAG_MAX_CONNECTIONS:
        exit_status = settings_set_number(&settings->connection_max, flag, value, 1000000000);
        break;
    case FLAG_LOG_LEVEL: exit_status = settings_set_log_level(settings, value); break;
    case FLAG_CHECK_CONFIG: exit_status = settings_set_check_config(settings, value); break;
    case FLAG_VERSION: exit_status = print_version(); break;
    default: exit_status = print_help(); break;
    }
    return exit_status;
}

static enum exit_status settings_set(struct settings *settings, int flag, const char *value) {
    enum exit_status exit_status = CONTINUE;
    settings->given[flag] = true;
    if (value && !*value) {
        exit_status = fatal_error(EXIT_USAGE, "the value of --%s is empty", flags[flag].name);
    } else {
        exit_status = settings_store(settings, flag, value);
    }
    return exit_status;
}

/* Prints why getopt_long refused an argument. why: its result. */
static enum exit_status flag_error(int why, char **argv) {
    enum exit_status exit_status = EXIT_USAGE;
    if (why == ':') {
        exit_status =
            fatal_error(EXIT_USAGE, "--%s needs a value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt >= FLAG_FIRST) {
        exit_status =
            fatal_error(EXIT_USAGE, "--%s takes no value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt != 0) {
        exit_status = fatal_error(EXIT_USAGE, "unknown flag '-%c'", optopt);
    } else {
        exit_status = fatal_error(EXIT_USAGE, "unknown flag '%s'", argv[optind - 1]);
    }
    return exit_status;
}

static enum exit_status settings_read_flags(struct settings *settings, int argc, char **argv) {
    struct option options[FLAG_COUNT + 1] = {{0}};
    for (int i = 0; i < FLAG_COUNT; i++) {
        options[i].name = flags[i].name;
        options[i].has_arg = flags[i].argument ? required_argument : no_argument;
        options[i].val = FLAG_FIRST + i;
    }
    enum exit_status exit_status = CONTINUE;
    int code = 0;
    opterr = 0;
    while (exit_status == CONTINUE && (code = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        exit_status = code < FLAG_FIRST ? flag_error(code, argv)
                                        : settings_set(settings, code - FLAG_FIRST, optarg);
    }
    if (exit_status == CONTINUE && optind < argc) {
        exit_status = fatal_error(EXIT_USAGE, "unexpected argument '%s'", argv[optind]);
    }
    return exit_status;
}

/* A flag takes precedence over its variable. An empty variable counts as unset. */
static enum exit_status settings_read_environment(struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    for (int i = 0; exit_status == CONTINUE && i < FLAG_COUNT; i++) {
        const char *variable = flags[i].variable;
        const char *value = variable && !settings->given[i] ? getenv(variable) : NULL;
        if (!value || !*value) continue;
        exit_status = settings_set(settings, i, value);
    }
    return exit_status;
}

/* The resources come either from a configuration or from a parent (G8). */
static enum exit_status settings_check_source(const struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    bool has_parent = settings->parents.count > 0;
    if (settings->config && has_parent) {
        exit_status = fatal_error(EXIT_USAGE,
                                  "--config and --parent exclude each other: a node with a "
                                  "parent gets its resources from the parent; give one of the two");
    } else if (!settings->config && !has_parent) {
        exit_status = fatal_error(EXIT_USAGE, "no configuration: give --config FILE for a root, or "
                                              "--parent URL for another node");
    } else if (!settings->config && settings->check_config) {
        exit_status = fatal_error(EXIT_USAGE, "no configuration to check: give --config FILE");
    }
    return exit_status;
}

/* Finds an invalid address at the start, not when the server first tries that member. */
static enum exit_status settings_check_etcd_address(const char *address) {
    nng_url *url = NULL;
    bool parsed = nng_url_parse(&url, address) == 0;
    bool valid = parsed && strcmp(url->u_scheme, "http") == 0 && *url->u_hostname;
    if (parsed) nng_url_free(url);
    return valid ? CONTINUE
                 : fatal_error(EXIT_USAGE, "--etcd '%s' is not an address of etcd, such as %s",
                               address, ETCD_EXAMPLE);
}

static enum exit_status settings_check_etcd(const struct settings *settings) {
    const char *key = settings->election_key;
    enum exit_status exit_status = CONTINUE;
    if (settings->etcd.count == 0 && (key || settings->config_key)) {
        exit_status = fatal_error(EXIT_USAGE, "%s needs --etcd " ETCD_EXAMPLE,
                                  key ? "--election-key" : "--config etcd:KEY");
    } else if (settings->etcd.count > 0 && !key && !settings->config_key) {
        exit_status =
            fatal_error(EXIT_USAGE, "--etcd needs --election-key KEY or --config etcd:KEY");
    } else if (settings->given[FLAG_ELECTION_TTL] && !key) {
        exit_status = fatal_error(EXIT_USAGE, "--election-ttl needs --election-key KEY");
    } else if ((key && strlen(key) > ETCD_KEY_BYTES_MAX) ||
               (settings->config_key && strlen(settings->config_key) > ETCD_KEY_BYTES_MAX)) {
        exit_status =
            fatal_error(EXIT_USAGE, "a key of etcd has more than %d bytes", ETCD_KEY_BYTES_MAX);
    }
    for (size_t i = 0; exit_status == CONTINUE && i < settings->etcd.count; i++) {
        exit_status = settings_check_etcd_address(settings->etcd.items[i]);
    }
    return exit_status;
}

/* The schemes of nng that use TLS. */
static bool url_wants_tls(const char *url) {
    return strncmp(url, "tls+", 4) == 0 || strncmp(url, "wss", 3) == 0;
}

/* Checks that the flags for TLS fit together, and that each TLS address has the files it needs. */
static enum exit_status settings_check_tls(const struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    bool parent = false, listens = false;
    for (size_t i = 0; i < settings->parents.count; i++) {
        parent = parent || url_wants_tls(settings->parents.items[i]);
    }
    for (size_t i = 0; i < settings->listen.count; i++) {
        listens = listens || url_wants_tls(settings->listen.items[i]);
    }
    if (!settings->tls_cert != !settings->tls_key) {
        exit_status =
            fatal_error(EXIT_USAGE, "--tls-cert and --tls-key need each other: give both");
    } else if (listens && !settings->tls_cert) {
        exit_status =
            fatal_error(EXIT_USAGE, "--listen tls+tcp://... needs --tls-cert and --tls-key");
    } else if (parent && !settings->tls_ca) {
        exit_status =
            fatal_error(EXIT_USAGE, "--parent tls+tcp://... needs --tls-ca: the authority that "
                                    "signed the parent's certificate");
    } else if (settings->tls_ca && !settings->tls_cert && !parent) {
        exit_status =
            fatal_error(EXIT_USAGE, "--tls-ca needs a certificate of this server: give --tls-cert "
                                    "and --tls-key too");
    }
    return exit_status;
}

static enum exit_status settings_read(struct settings *settings, int argc, char **argv) {
    settings->log_level = LEVEL_INFO;
    settings->election_ttl = TTL_DEFAULT;
    settings->http = HTTP_DEFAULT;
    settings->message_max = DOORMAN_MESSAGE_BYTES_MAX;
    enum exit_status exit_status = settings_read_flags(settings, argc, argv);
    if (exit_status == CONTINUE) exit_status = settings_read_environment(settings);
    if (exit_status == CONTINUE) exit_status = settings_check_source(settings);
    if (exit_status == CONTINUE) exit_status = settings_check_etcd(settings);
    if (exit_status == CONTINUE && settings->listen.count == 0) {
        exit_status = addresses_add_list(&settings->listen, FLAG_LISTEN, LISTEN_DEFAULT);
    }
    if (exit_status == CONTINUE) exit_status = settings_check_tls(settings);
    return exit_status;
}

static void settings_uninit(struct settings *settings) {
    addresses_uninit(&settings->listen);
    addresses_uninit(&settings->parents);
    addresses_uninit(&settings->etcd);
}

/* ---- >>log ---------------------------------------------------------------------------------- */
/* Each event is one line of logfmt: key=value pairs, with quotes where a value needs them (V6). */

struct log_line {
    char text[PIPE_BUF]; /* a longer line is cut off */
    size_t bytes;
};

static void log_line_add(struct log_line *line, const char *text, size_t bytes) {
    size_t room = sizeof line->text - line->bytes;
    if (bytes > room) bytes = room;
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

/* Adds one character of a quoted value. It escapes control characters, so that a value cannot
 * control a terminal. */
static void log_line_add_escaped(struct log_line *line, unsigned char character) {
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
    log_line_add(line, escape, (size_t)bytes);
}

static void log_line_add_pair(struct log_line *line, const char *key, const char *value) {
    bool quoted = !*value;
    for (const char *at = value; *at; at++) {
        quoted = quoted || *at <= ' ' || strchr("\"=\\\x7f", *at);
    }
    log_line_add(line, " ", line->bytes > 0);
    log_line_add(line, key, strlen(key));
    log_line_add(line, "=\"", quoted ? 2 : 1);
    for (const char *at = value; *at; at++) {
        if (quoted) {
            log_line_add_escaped(line, (unsigned char)*at);
        } else {
            log_line_add(line, at, 1);
        }
    }
    log_line_add(line, "\"", quoted);
}

static void log_line_add_time(struct log_line *line) {
    struct timespec now;
    struct tm utc;
    char seconds[32], text[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
    log_line_add_pair(line, "time", text);
}

#define LOG_END ((const char *)0) /* ends the list of pairs */

static void log_line_start(struct log_line *line, enum log_level level, const char *message) {
    line->bytes = 0;
    log_line_add_time(line);
    log_line_add_pair(line, "level", level_names[level]);
    log_line_add_pair(line, "msg", message);
}

/* The number of lines that could not be written and have not been reported yet. */
static struct lost_lines {
    pthread_mutex_t lock; /* held from poll to write, so that only one thread does both */
    uint64_t count;
} lost_lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Writes a line with one system call, so that lines of two threads or two processes do not mix.
 *
 * It never blocks, because the caller may hold the lock of the service. A full pipe takes no line.
 * A pipe that poll reports as writable takes PIPE_BUF bytes, the most that a line can have. For a
 * socket, which systemd provides, send has a flag instead.
 *   returns   false: the line is lost */
static bool log_line_write(struct log_line *line) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (line->bytes == sizeof line->text) line->bytes--;
    log_line_add(line, "\n", 1);
    ssize_t wrote = send(out.fd, line->text, line->bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote < 0 && errno == ENOTSOCK && poll(&out, 1, 0) == 1) {
        wrote = write(out.fd, line->text, line->bytes);
    }
    return wrote == (ssize_t)line->bytes;
}

/* Writes a line. If lines were lost, it first reports how many. */
static void log_line_send(struct log_line *line) {
    struct log_line before;
    char count[24];
    pthread_mutex_lock(&lost_lines.lock);
    if (lost_lines.count > 0) {
        snprintf(count, sizeof count, "%" PRIu64, lost_lines.count);
        log_line_start(&before, LEVEL_WARNING,
                       "log lines were lost: standard error did not accept them");
        log_line_add_pair(&before, "count", count);
        if (log_line_write(&before)) lost_lines.count = 0;
    }
    if (lost_lines.count > 0 || !log_line_write(line)) lost_lines.count++;
    pthread_mutex_unlock(&lost_lines.lock);
}

/* Logs a message, followed by pairs of key and value, both strings, and END. */
__attribute__((sentinel)) static void log_event(const struct settings *settings,
                                                enum log_level level, const char *message, ...) {
    struct log_line line;
    va_list pairs;
    va_start(pairs, message);
    if (level >= settings->log_level) {
        log_line_start(&line, level, message);
        for (const char *key = NULL; (key = va_arg(pairs, const char *)) != NULL;) {
            log_line_add_pair(&line, key, va_arg(pairs, const char *));
        }
        log_line_send(&line);
    }
    va_end(pairs);
}

/* ---- >>etcd --------------------------------------------------------------------------------- */
/* Calls to the v3 gateway of etcd. A call is a POST of JSON, in which keys and values are base64
 * and 64-bit numbers are strings. Each call opens a connection and has a deadline. It goes first to
 * the member that answered last, and on failure to the other members in turn. Only one thread at a
 * time uses a struct etcd.
 *
 * The calls use a plain socket. nng 1.5 has an HTTP client, but it crashes the process when a call
 * reaches its deadline while the response comes in. HTTP/1.0 suffices: the end of the connection
 * ends the response. */

#define ETCD_KEY_TEXT (ETCD_KEY_BYTES_MAX * 4 / 3 + 4) /* bytes: base64 and the final 0 */
#define ETCD_REQUEST 2048                              /* bytes; any request fits */
#define ETCD_RESPONSE_MAX (2 * (DOORMAN_MESSAGE_BYTES_MAX + 4096)) /* a configuration in base64 */
#define ETCD_NO_LEASE 5                                            /* gRPC's NOT_FOUND */
#define ETCD_CHECK_MS 50 /* a blocked call checks `cancelled` this often */

struct etcd {
    const struct addresses *members;
    size_t at;             /* index of the member to try next; stays at one that answers */
    size_t tries;          /* members to try for one call */
    doorman_time deadline; /* a duration: the time limit of one try */
    doorman_time ends_at;  /* when the current try ends */
    bool cancelled;        /* atomic; true: the current call fails at once */
    doorman_error error;   /* why the last call failed */
};

/* At the start nothing else waits for the response, so the deadline is long: etcd may be busy. */
static void etcd_init(struct etcd *etcd, const struct settings *settings) {
    etcd->members = &settings->etcd;
    etcd->tries = settings->etcd.count;
    etcd->deadline = 5 * DOORMAN_SECOND;
}

/* A fifth of the election's TTL, so that five tries fit into the time that a master remains master;
 * but at least 0.5 s, because etcd writes to a disk, and at most 2 s. */
static void etcd_set_election_deadline(struct etcd *etcd, const struct settings *settings) {
    etcd->deadline = settings->election_ttl * DOORMAN_SECOND / 5;
    if (etcd->deadline < DOORMAN_SECOND / 2) etcd->deadline = DOORMAN_SECOND / 2;
    if (etcd->deadline > 2 * DOORMAN_SECOND) etcd->deadline = 2 * DOORMAN_SECOND;
}

/* true: the current call and all later ones fail at once. Any thread may call it. */
static void etcd_cancel(struct etcd *etcd, bool cancelled) {
    __atomic_store_n(&etcd->cancelled, cancelled, __ATOMIC_RELAXED);
}

static bool etcd_is_cancelled(const struct etcd *etcd) {
    return __atomic_load_n(&etcd->cancelled, __ATOMIC_RELAXED);
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* bytes: at most ETCD_KEY_BYTES_MAX, without the final 0; so `text` has room for the result. */
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

/* Decodes up to the first character that is not a base64 digit: the padding, or the end.
 *   room      size of `bytes`, including a final 0
 *   returns   the number of bytes; `room` if they do not fit */
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

/* Waits until a socket is ready. Returns 0 or an errno value. */
static int etcd_wait(const struct etcd *etcd, int fd, short events) {
    struct pollfd ready = {.fd = fd, .events = events};
    int count = 0;
    while (count == 0 && doorman_clock() < etcd->ends_at && !etcd_is_cancelled(etcd)) {
        count = poll(&ready, 1, ETCD_CHECK_MS);
        if (count < 0 && errno == EINTR) count = 0;
    }
    return count > 0 ? 0 : count < 0 ? errno : etcd_is_cancelled(etcd) ? ECANCELED : ETIMEDOUT;
}

/* Connects to one address. Returns 0, or an errno value; then *fd is -1. */
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

/* Connects to the first reachable address of a host name. The name lookup has the timeouts of the
 * system's resolver, not the deadline. Returns NULL or an error text. */
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

/* Receives until the peer closes the connection, and appends a 0. */
static int etcd_receive(const struct etcd *etcd, int fd, doorman_buffer *response) {
    int error = 0;
    for (ssize_t got = 1; error == 0 && got != 0;) {
        if (response->bytes + 1 >= response->capacity) {
            size_t capacity = response->capacity ? 2 * response->capacity : 4096;
            char *text = capacity <= ETCD_RESPONSE_MAX ? realloc(response->text, capacity) : NULL;
            error = text ? 0 : ENOMEM;
            if (text) *response = (doorman_buffer){text, response->bytes, capacity};
        }
        if (error == 0) error = etcd_wait(etcd, fd, POLLIN);
        if (error == 0) {
            got = recv(fd, response->text + response->bytes,
                       response->capacity - response->bytes - 1, 0);
            if (got < 0 && errno != EAGAIN) error = errno;
            if (got > 0) response->bytes += (size_t)got;
        }
    }
    if (response->text) response->text[response->bytes] = 0;
    return error;
}

/* Sends one request to one member. Returns NULL or an error text. */
static const char *etcd_exchange(struct etcd *etcd, const char *path, const char *body,
                                 doorman_buffer *response) {
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
    if (!why && error == 0) error = etcd_receive(etcd, fd, response);
    if (fd >= 0) close(fd);
    nng_url_free(url);
    return why ? why : error ? strerror(error) : NULL;
}

/* Parses a response. The error "no such lease" counts as a response too. Returns NULL, and sets
 * `error`, on any other error or invalid JSON. */
static cJSON *etcd_read_response(struct etcd *etcd, const doorman_buffer *response) {
    const char *body = response->text ? strstr(response->text, "\r\n\r\n") : NULL;
    cJSON *tree = body ? cJSON_Parse(body) : NULL;
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(tree, "code");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    bool no_lease = cJSON_IsNumber(code) && code->valueint == ETCD_NO_LEASE;
    if (!cJSON_IsObject(tree) || (error && !no_lease)) {
        bool has_text = cJSON_IsString(error);
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %.200s",
                 etcd->members->items[etcd->at],
                 has_text ? error->valuestring : "this is not a response of etcd");
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

static cJSON *etcd_try(struct etcd *etcd, const char *path, const char *body) {
    doorman_buffer response = {NULL, 0, 0};
    const char *why = etcd_exchange(etcd, path, body, &response);
    cJSON *tree = why ? NULL : etcd_read_response(etcd, &response);
    if (why) {
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %s",
                 etcd->members->items[etcd->at], why);
    }
    free(response.text);
    return tree;
}

/* Tries the members in turn until one answers. etcd may get a call twice, if the response to the
 * first try is lost; all calls in this file are safe to repeat.
 *   returns   the response, which the caller deletes; NULL: none, see `error` */
__attribute__((format(printf, 3, 4))) static cJSON *etcd_call(struct etcd *etcd, const char *path,
                                                              const char *format, ...) {
    char body[ETCD_REQUEST / 4 * 3];
    cJSON *response = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    for (size_t tries = 0; !response && tries < etcd->tries && !etcd_is_cancelled(etcd); tries++) {
        response = etcd_try(etcd, path, body);
        if (!response) etcd->at = (etcd->at + 1) % etcd->members->count;
    }
    return response;
}

/* A number of an object, as a string. "0" if it is missing, because etcd omits zeros. */
static const char *etcd_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "0";
}

/* Reads a key.
 *   out       the entry, a part of the response; NULL: the key does not exist
 *   returns   the response, which the caller deletes; NULL: etcd does not answer */
static cJSON *etcd_get(struct etcd *etcd, const char *key, const cJSON **out) {
    char name[ETCD_KEY_TEXT];
    base64_write(name, key);
    cJSON *response = etcd_call(etcd, "/v3/kv/range", "{\"key\":\"%s\"}", name);
    *out = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(response, "kvs"), 0);
    return response;
}

/* Decodes the value of an entry. Returns false if it does not fit. */
static bool etcd_read_value(const cJSON *entry, char *bytes, size_t room, size_t *count) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(entry, "value");
    *count = base64_read(bytes, room, cJSON_IsString(value) ? value->valuestring : "");
    return *count < room;
}

#define ETCD_REVISION 24 /* bytes; a 64-bit number in decimal fits */

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

/* Loads the configuration from a key, if the key has changed.
 *   revision   in/out: the revision that was loaded last; "": none
 *   out        NULL: the key has not changed, or its value is invalid
 *   error      why the value is invalid; "": it is valid or unchanged
 *   returns    false: etcd does not answer */
static bool etcd_load_config(struct etcd *etcd, const char *key, char revision[ETCD_REVISION],
                             doorman_config **out, doorman_error *error) {
    const cJSON *entry = NULL;
    cJSON *response = etcd_get(etcd, key, &entry);
    const char *now = etcd_number(entry, "mod_revision");
    bool changed = response && strcmp(now, revision) != 0;
    *out = NULL;
    error->text[0] = 0;
    if (changed) {
        snprintf(revision, ETCD_REVISION, "%s", now);
        doorman_status status = DOORMAN_NOT_FOUND;
        if (entry) status = etcd_parse_config(entry, out, error);
        if (!entry) snprintf(error->text, sizeof error->text, "the key does not exist");
        if (status != DOORMAN_OK && !error->text[0]) {
            snprintf(error->text, sizeof error->text, "%s", status_text(status));
        }
        if (status == DOORMAN_OUT_OF_MEMORY) revision[0] = 0; /* try again next time */
    }
    cJSON_Delete(response);
    return response != NULL;
}

/* ---- >>configuration ------------------------------------------------------------------------ */

/* Reads up to one byte more than the maximum, so that doorman_json_config refuses a larger file. */
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

/* Loads a configuration from a file. Returns false, with a text in `error`, on failure. */
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
        snprintf(error->text, sizeof error->text, "%s", status_text(status));
    }
    return status == DOORMAN_OK;
}

/* Loads the configuration from the source that --config names.
 *   etcd       may be NULL for a file
 *   revision   out: the revision of the etcd key; "" for a file */
static bool config_fetch(doorman_config **out, const struct settings *settings, struct etcd *etcd,
                         char revision[ETCD_REVISION], doorman_error *error) {
    revision[0] = 0;
    if (!settings->config_key) return config_load(out, settings->config, error);
    if (!etcd_load_config(etcd, settings->config_key, revision, out, error)) *error = etcd->error;
    return *out != NULL;
}

static enum exit_status config_error(const char *path, const doorman_error *error) {
    return fatal_error(EXIT_ERROR, "%s: %s; correct it, or give another --config", path,
                       error->text);
}

/* A new master that learns for less than the longest lease of its predecessor may grant capacity
 * that is still in use (G6). */
static void warn_about_learning(const char *path, const doorman_config *config) {
    const double drift = 0.05; /* the default of doorman_server_options */
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
                    "than the longest lease, %g s with clock drift: after a change of master, more "
                    "than the capacity may be in use\n",
                    path, i, learning, lease);
        }
    }
}

static enum exit_status check_config(const struct settings *settings) {
    enum exit_status exit_status = EXIT_OK;
    doorman_config *config = NULL;
    doorman_error error;
    struct etcd etcd = {.at = 0};
    char revision[ETCD_REVISION];
    etcd_init(&etcd, settings);
    if (config_fetch(&config, settings, &etcd, revision, &error)) {
        size_t count = 0;
        doorman_config_templates(config, &count);
        warn_about_learning(settings->config, config);
        printf("%s: ok, %zu resources\n", settings->config, count);
    } else {
        exit_status = config_error(settings->config, &error);
    }
    doorman_config_destroy(config);
    return exit_status;
}

/* ---- >>state -------------------------------------------------------------------------------- */

/* A worker receives a request, handles it, sends the response, and receives the next one. There are
 * more workers than nng threads, so that one is always ready to receive. */
#define WORKER_COUNT 32

/* A worker blocks on a send only if the peer keeps sending requests and does not read the
 * responses. nng then holds one response after the other, each in its worker. After the timeout the
 * server closes the connection of that peer, which frees all its workers at once. The timeout is
 * long while at most half of the workers send. It is short when more do, or one such peer would
 * block all others. It cannot be shorter: on a busy machine threads wait for tens of milliseconds,
 * which is not the fault of the peer. */
#define SEND_TIMEOUT_MS 250
#define SEND_TIMEOUT_SHORT_MS 50

/* At the end, the server refuses new requests for this time, while the last responses leave. */
#define STOPPING_MS 250

/* The time limit for giving up mastership: a call to etcd, and perhaps a slow name lookup. */
#define RESIGN_TIMEOUT_SECONDS 4

/* The time limit for closing the sockets, see leave. */
#define CLOSE_TIMEOUT_SECONDS 2

#define WARNING_INTERVAL                                                                           \
    (60 * DOORMAN_SECOND) /* between two lines of the same repeated warning (V6) */

/* Memory goes back to the system after this many leases have ended, which is some MB, and at most
 * once in this interval. */
#define TRIM_LEASES 10000
#define TRIM_INTERVAL (10 * DOORMAN_SECOND)

struct worker {
    struct service *service;
    nng_ctx context;
    nng_aio *aio;
    bool sending;
    doorman_json_exchange exchange;
};

/* Repeated warnings: events that peers can cause at any rate. They are the kinds of doorman_event,
 * and some of the server's own. */
enum {
    WARNING_MESSAGE_REFUSED = DOORMAN_EVENT_COUNT,
    WARNING_PARENT_UNREACHABLE,
    WARNING_PARENT_RESPONSE,
    WARNING_ETCD_UNREACHABLE,
    WARNING_COUNT
};
static const char *const warning_texts[WARNING_COUNT] = {
    [DOORMAN_EVENT_UNMATCHED] = "a request names a resource that no template matches",
    [DOORMAN_EVENT_UNKNOWN_CLAIM] = "a holder claims a lease that this server does not know",
    [DOORMAN_EVENT_EXCESS_CLAIM] = "a holder claims more than it was granted",
    [DOORMAN_EVENT_EXPIRED] = "a lease has expired",
    [DOORMAN_EVENT_FULL] = "a request was refused, because the server or a resource is full",
    [DOORMAN_EVENT_UNKNOWN_KIND] = "the parent names an algorithm that this server does not know",
    [DOORMAN_EVENT_SHARED_ID] = "two processes seem to use one id, and each uses the whole share",
    [WARNING_MESSAGE_REFUSED] = "a message was refused",
    [WARNING_PARENT_UNREACHABLE] = "the parent cannot be reached",
    [WARNING_PARENT_RESPONSE] = "the parent refuses the request, or its response is invalid",
    [WARNING_ETCD_UNREACHABLE] = "etcd cannot be reached",
};

struct repeated_warning {
    uint64_t unlogged_count;
    doorman_time quiet_until;
};

/* The link to the parent. The lock of the service guards it, except the transport, which only the
 * thread of this link uses. */
struct parent_link {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    doorman_transport *transport;
    doorman_time wakes_at; /* when the thread wakes up to do what is due; 0: it is awake */
    bool reachable;        /* the last request to the parent succeeded */
    size_t leased_count, resource_count; /* the values that were logged last */
};

enum election_state { ELECTION_NO_MASTER, ELECTION_STANDBY, ELECTION_MASTER, ELECTION_RESIGNED };

/* What this process knows of the election, and its link to etcd. Only its thread uses it, except
 * the members that the lock of the service guards. */
struct election {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct etcd etcd;
    char lease[24];               /* the lease id in etcd, a number; "": none */
    doorman_time master_until;    /* when mastership ends, if this lease holds the key */
    char revision[ETCD_REVISION]; /* of the configuration that was loaded last */
    bool reachable;               /* the last call to etcd succeeded */
    bool reload;                  /* load the configuration again; the lock guards this and below */
    enum election_state state;    /* only election_set_state changes it */
    doorman_time until;           /* when the state ends, unless it is renewed */
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* of the master; "": not known */
};

/* Counters for the metrics: messages by method and status, and their duration. Each counter is
 * atomic by itself; two counters that are read together may differ by requests in progress. */
enum {
    MESSAGE_DISCOVERY,
    MESSAGE_GET_CAPACITY,
    MESSAGE_GET_SERVER_CAPACITY,
    MESSAGE_RELEASE_CAPACITY,
    MESSAGE_UNKNOWN, /* a message that could not be read */
    MESSAGE_KIND_COUNT
};
static const char *const message_names[MESSAGE_KIND_COUNT] = {
    "discovery", "get_capacity", "get_server_capacity", "release_capacity", "unknown"};

#define BUCKET_COUNT 12 /* of the histogram of durations; bounds in seconds */
static const double bucket_bounds[BUCKET_COUNT] = {
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5};

/* Shared by all threads. 32-bit x86 would not align it to 8 bytes, which an atomic access needs. */
typedef uint64_t counter __attribute__((aligned(8)));

struct counters {
    counter requests[MESSAGE_KIND_COUNT][DOORMAN_STATUS_COUNT];
    counter buckets[MESSAGE_KIND_COUNT][BUCKET_COUNT + 1]; /* the last one has no upper bound */
    counter nanoseconds[MESSAGE_KIND_COUNT];
    counter parent[DOORMAN_STATUS_COUNT];
    counter unmatched, shared_id;
};

/* The identity and version of a file. */
struct file_version {
    uint64_t device, file; /* file 0: the file does not exist */
    int64_t bytes, seconds, nanoseconds;
};

/* The result of the last load of the configuration. */
struct config_load {
    time_t loaded_at;                 /* when the configuration in force was loaded */
    char error[512];                  /* why the last load failed; "": it succeeded */
    struct file_version file_version; /* used only by the main thread */
};

/* The contents of the files that the flags --tls-... name; NULL: without that flag. */
struct pem {
    char *certificate, *key, *authority;
};

/* The parts of an HTTP request. */
struct http_request {
    const char *verb, *path, *query, *version, *head, *body;
    size_t body_bytes;
    const struct route *route; /* NULL: unknown path, or a method of the protocol */
};

static void counter_add(counter *count, uint64_t more) {
    __atomic_fetch_add(count, more, __ATOMIC_RELAXED);
}

/* Counts a message and its response.
 *   request   NULL: it could not be read */
static void counters_add_message(struct counters *counters, const doorman_request *request,
                                 doorman_status status, doorman_time duration) {
    static const int kinds[DOORMAN_METHOD_COUNT] = {MESSAGE_DISCOVERY, MESSAGE_GET_CAPACITY,
                                                    MESSAGE_RELEASE_CAPACITY};
    int kind = request ? kinds[request->method] : MESSAGE_UNKNOWN, bucket = 0;
    if (kind == MESSAGE_GET_CAPACITY && request->is_server) kind = MESSAGE_GET_SERVER_CAPACITY;
    double seconds = (double)duration / (double)DOORMAN_SECOND;
    while (bucket < BUCKET_COUNT && seconds > bucket_bounds[bucket]) bucket++;
    counter_add(&counters->requests[kind][status], 1);
    counter_add(&counters->buckets[kind][bucket], 1);
    counter_add(&counters->nanoseconds[kind], (uint64_t)duration);
}

struct service {
    const struct settings *settings;
    const char *id, *node, *advertise;
    doorman_time started_at;
    struct pem pem;
    nng_tls_config *tls;     /* NULL: none */
    struct http *http;       /* NULL: off */
    struct history *history; /* NULL: HTTP is off */
    struct counters counters;
    size_t connection_count; /* nng connections; atomic */
    nng_socket socket;
    char *urls[ADDRESS_MAX]; /* the bound addresses: a port of 0 has become a real one */
    size_t url_count;
    struct worker workers[WORKER_COUNT];
    unsigned sending_count; /* workers that send; atomic */
    pthread_mutex_t lock;   /* guards all members below while workers run */
    doorman_config *config;
    doorman_server *server;
    struct repeated_warning warnings[WARNING_COUNT];
    uint64_t ended_lease_count; /* leases that ended since memory was last returned */
    doorman_time trim_due;      /* the earliest time to return memory to the system */
    bool trim_again;            /* return memory once more, even if no more leases end */
    bool stopping;
    struct config_load last_load;
    struct parent_link parent_link;
    struct election election;
};

/* Logs a repeated warning with the number of events since the last line, at most once a minute
 * (V6).
 *   key, value   what the last event is about; may be NULL
 *   cause        the holder or the error of the last event; may be NULL */
static void warning_log(struct service *service, int kind, const char *key, const char *value,
                        const char *cause, doorman_time now) {
    struct repeated_warning *warning = &service->warnings[kind];
    const char *cause_key = kind < DOORMAN_EVENT_COUNT ? "holder" : "error";
    if (warning->unlogged_count > 0 && now >= warning->quiet_until) {
        char count[24];
        snprintf(count, sizeof count, "%" PRIu64, warning->unlogged_count);
        log_event(service->settings, LEVEL_WARNING, warning_texts[kind], "count", count, key, value,
                  cause ? cause_key : LOG_END, cause, LOG_END);
        warning->unlogged_count = 0;
        warning->quiet_until = now + WARNING_INTERVAL;
    }
}

/* The server object calls this, with the lock held. */
static void on_event(void *context, const doorman_event *event) {
    struct service *service = (struct service *)context;
    if (event->kind == DOORMAN_EVENT_EXPIRED) {
        char amount[32];
        service->ended_lease_count++;
        snprintf(amount, sizeof amount, "%.15g", event->amount);
        log_event(service->settings, LEVEL_DEBUG, warning_texts[event->kind], "resource",
                  event->resource_id, "holder", event->holder_id, "amount", amount, LOG_END);
    } else {
        if (event->kind == DOORMAN_EVENT_UNMATCHED) counter_add(&service->counters.unmatched, 1);
        if (event->kind == DOORMAN_EVENT_SHARED_ID) counter_add(&service->counters.shared_id, 1);
        service->warnings[event->kind].unlogged_count++;
        warning_log(service, (int)event->kind, "resource", event->resource_id, event->holder_id,
                    doorman_clock());
    }
}

/* Puts a configuration into force and logs it. If it is invalid, only logs why (V1).
 *   config   takes ownership; NULL: it could not be loaded
 *   error    why; only read if config is NULL */
static void service_apply_config(struct service *service, doorman_config *config,
                                 const doorman_error *error) {
    const char *why = error->text;
    bool loaded = config != NULL;
    if (loaded) {
        pthread_mutex_lock(&service->lock);
        doorman_status status = doorman_server_configure(service->server, config, doorman_clock());
        loaded = status == DOORMAN_OK;
        why = status_text(status);
        if (loaded) {
            doorman_config *last = service->config;
            service->config = config;
            config = last;
        }
        pthread_mutex_unlock(&service->lock);
    }
    doorman_config_destroy(config);
    pthread_mutex_lock(&service->lock);
    if (loaded) service->last_load.loaded_at = time(NULL);
    snprintf(service->last_load.error, sizeof service->last_load.error, "%s", loaded ? "" : why);
    pthread_mutex_unlock(&service->lock);
    if (loaded) {
        log_event(service->settings, LEVEL_INFO, "configuration loaded", "file",
                  service->settings->config, LOG_END);
    } else {
        log_event(service->settings, LEVEL_ERROR,
                  "configuration refused; the last one stays in force", "file",
                  service->settings->config, "error", why, LOG_END);
    }
}

/* Condition variables cannot use doorman_clock's clock. This one stops while the machine is
 * suspended. */
static bool condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    bool done = pthread_condattr_init(&monotonic) == 0 &&
                pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return done;
}

/* nap: a duration; the longest time to wait. */
static void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                           doorman_time duration) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)duration;
    until.tv_sec += until.tv_nsec / (long)DOORMAN_SECOND;
    until.tv_nsec %= (long)DOORMAN_SECOND;
    pthread_cond_timedwait(condition, lock, &until);
}

/* ---- >>request ------------------------------------------------------------------------------ */

/* An arena allocator for cJSON. cJSON allocates two or three small blocks per value, and malloc and
 * free take a quarter of its time. So each thread has an arena, and cuts the blocks from it one
 * after the other. The whole arena is free again when the last block is freed. It suffices for a
 * request with 250 resources. For larger ones the arena grows by pieces from malloc, which are
 * freed together with the last block, so that a message of 4 MiB leaves no memory in use.
 *
 * The thread that parses a tree must also delete it. All code here does. */
#define ARENA_BYTES ((size_t)256 << 10)
#define CHUNK_BYTES ((size_t)1 << 20)

struct chunk {
    struct chunk *previous;
};

static _Thread_local struct arena {
    _Alignas(max_align_t) char memory[ARENA_BYTES];
    char *at;                 /* the free part of `memory` or of the last piece */
    size_t left, block_count; /* left: bytes in the free part */
    struct chunk *last;
} arena;

/* Rounds up to the strictest alignment. */
static size_t arena_round(size_t bytes) {
    const size_t unit = _Alignof(max_align_t);
    return (bytes + unit - 1) / unit * unit;
}

static bool arena_grow(size_t bytes) {
    size_t head = arena_round(sizeof(struct chunk));
    size_t all = bytes > CHUNK_BYTES - head ? head + bytes : CHUNK_BYTES;
    struct chunk *chunk = (struct chunk *)malloc(all);
    if (chunk) {
        chunk->previous = arena.last;
        arena.last = chunk;
        arena.at = (char *)chunk + head;
        arena.left = all - head;
    }
    return chunk != NULL;
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
        struct chunk *chunk = arena.last;
        arena.last = chunk->previous;
        free(chunk);
    }
}

/* A worker keeps its buffers for the next message, unless they are larger than this. */
#define WORKER_BUFFER_MAX ((size_t)256 << 10)

/* A request can make the next request to the parent due earlier. This function wakes the thread of
 * the parent link, so that it sends that request at once (T4). Precondition: the lock is held. */
static void parent_link_expedite(struct service *service) {
    struct parent_link *link = &service->parent_link;
    if (doorman_upstream_due(doorman_server_upstream(service->server)) < link->wakes_at) {
        link->wakes_at = 0;
        pthread_cond_signal(&link->wake);
    }
}

/* Handles a message that came by nng or by HTTP. The response is in exchange->reply, which is empty
 * if memory runs out.
 *
 * It reads the clock while it holds the lock. So the time never decreases from one call of the
 * server object to the next. */
static doorman_status service_handle(struct service *service, doorman_json_exchange *exchange,
                                     const char *text, size_t bytes) {
    doorman_time started_at = doorman_clock();
    doorman_status read = doorman_json_exchange_read(exchange, text, bytes);
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    if (!service->stopping) {
        doorman_json_exchange_decide(exchange, service->server, now);
        bool releases = exchange->request.method == DOORMAN_RELEASE_CAPACITY;
        if (read == DOORMAN_OK && releases) {
            service->ended_lease_count += exchange->request.item_count;
        }
        parent_link_expedite(service);
    }
    pthread_mutex_unlock(&service->lock);
    doorman_status status = doorman_json_exchange_write(exchange, (int64_t)time(NULL));
    if (status != DOORMAN_OK && status != DOORMAN_UNAVAILABLE) {
        pthread_mutex_lock(&service->lock);
        service->warnings[WARNING_MESSAGE_REFUSED].unlogged_count++;
        warning_log(service, WARNING_MESSAGE_REFUSED, "code", doorman_status_name(status), NULL,
                    now);
        pthread_mutex_unlock(&service->lock);
    }
    counters_add_message(&service->counters, read == DOORMAN_OK ? &exchange->request : NULL, status,
                         doorman_clock() - started_at);
    return status;
}

/* Replaces the text of a message with the response. Returns false if memory runs out; the peer gets
 * no response then, and retries. */
static bool worker_handle(struct worker *worker, nng_msg *message) {
    doorman_json_exchange *exchange = &worker->exchange;
    const doorman_buffer *response = &exchange->reply;
    service_handle(worker->service, exchange, (const char *)nng_msg_body(message),
                   nng_msg_len(message));
    nng_msg_clear(message);
    bool answered =
        response->bytes > 0 && nng_msg_append(message, response->text, response->bytes) == 0;
    if (response->capacity > WORKER_BUFFER_MAX) doorman_json_exchange_uninit(exchange);
    return answered;
}

static void worker_receive(struct worker *worker) {
    if (worker->sending) __atomic_sub_fetch(&worker->service->sending_count, 1, __ATOMIC_RELAXED);
    worker->sending = false;
    nng_aio_set_timeout(worker->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(worker->context, worker->aio);
}

static void worker_send(struct worker *worker, nng_msg *message) {
    unsigned sending = __atomic_add_fetch(&worker->service->sending_count, 1, __ATOMIC_RELAXED);
    worker->sending = true;
    nng_aio_set_timeout(worker->aio,
                        sending <= WORKER_COUNT / 2 ? SEND_TIMEOUT_MS : SEND_TIMEOUT_SHORT_MS);
    nng_aio_set_msg(worker->aio, message);
    nng_ctx_send(worker->context, worker->aio);
}

static void worker_discard(struct worker *worker, nng_msg *message) {
    nng_msg_free(message);
    nng_aio_set_msg(worker->aio, NULL);
}

/* nng calls this when a worker has received a request or sent a response, and when either has
 * failed. The worker then sends or receives again, until the socket is closed. */
static void worker_step(void *argument) {
    struct worker *worker = (struct worker *)argument;
    int result = nng_aio_result(worker->aio);
    bool received = !worker->sending && result == 0;
    nng_msg *message = received || worker->sending ? nng_aio_get_msg(worker->aio) : NULL;
    if (worker->sending && result != 0) {
        if (result == NNG_ETIMEDOUT) nng_pipe_close(nng_msg_get_pipe(message));
        worker_discard(worker, message);
    }
    if (received && worker_handle(worker, message)) {
        worker_send(worker, message);
    } else if (result != NNG_ECLOSED && result != NNG_ECANCELED) {
        if (received) worker_discard(worker, message);
        worker_receive(worker);
    }
}

/* ---- >>parent link -------------------------------------------------------------------------- */
/* One thread requests capacity from the parent. It releases the lock while it sends or sleeps. */

/* The transport calls this, without the lock. */
static void parent_link_on_wakeup(void *context) {
    struct service *service = (struct service *)context;
    pthread_mutex_lock(&service->lock);
    pthread_cond_signal(&service->parent_link.wake);
    pthread_mutex_unlock(&service->lock);
}

static void parent_link_log_failure(struct service *service, const doorman_transport_result *result,
                                    doorman_time now) {
    bool unreachable = result->status == DOORMAN_UNAVAILABLE;
    int kind = unreachable ? WARNING_PARENT_UNREACHABLE : WARNING_PARENT_RESPONSE;
    const char *why = result->error.text[0] ? result->error.text : status_text(result->status);
    service->warnings[kind].unlogged_count++;
    warning_log(service, kind, "parent", result->address, why, now);
}

/* Counts and logs the result of a request to the parent. */
static void parent_link_note_result(struct service *service, doorman_transport_result *result,
                                    doorman_time now) {
    struct parent_link *link = &service->parent_link;
    /* A stale response is one from an earlier mastership. */
    if (result->status == DOORMAN_STALE) result->status = DOORMAN_OK;
    counter_add(&service->counters.parent[result->status], 1);
    if (result->status != DOORMAN_OK) parent_link_log_failure(service, result, now);
    if (result->status == DOORMAN_OK && !link->reachable) {
        log_event(service->settings, LEVEL_INFO, "the parent answers", "parent", result->address,
                  LOG_END);
    }
    link->reachable = result->status == DOORMAN_OK;
}

/* Logs how many resources have a lease from the parent, if the number has changed. It iterates over
 * all resources, so it does nothing unless the log level is debug. */
static void parent_link_log_leases(struct service *service, doorman_time now) {
    struct parent_link *link = &service->parent_link;
    doorman_server_resource resource;
    size_t leased_count = 0, count = 0;
    doorman_cursor cursor = {0};
    bool wanted = service->settings->log_level == LEVEL_DEBUG;
    while (wanted && doorman_server_next_resource(service->server, &cursor, &resource, now)) {
        count++;
        if (resource.leased) leased_count++;
    }
    if (leased_count != link->leased_count || count != link->resource_count) {
        char leased_text[24], count_text[24];
        snprintf(leased_text, sizeof leased_text, "%zu", leased_count);
        snprintf(count_text, sizeof count_text, "%zu", count);
        log_event(service->settings, LEVEL_DEBUG, "leases from the parent", "leased", leased_text,
                  "resources", count_text, LOG_END);
    }
    link->leased_count = leased_count;
    link->resource_count = count;
}

/* Sleeps until something is due, or until the transport signals. It sleeps at least 10 ms, so that
 * it cannot spin, and at most 1 s: the clock of condition variables stops while the machine is
 * suspended, and doorman_clock does not. */
static void parent_link_sleep(struct service *service, doorman_time now) {
    struct parent_link *link = &service->parent_link;
    doorman_time duration = doorman_upstream_due(doorman_server_upstream(service->server)) - now;
    if (duration > DOORMAN_SECOND) duration = DOORMAN_SECOND;
    if (duration < DOORMAN_SECOND / 100) duration = DOORMAN_SECOND / 100;
    link->wakes_at = now + duration;
    condition_wait(&link->wake, &service->lock, duration);
    link->wakes_at = 0;
}

static void *parent_link_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct parent_link *link = &service->parent_link;
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        doorman_time now = doorman_clock();
        doorman_transport_result result;
        bool made = doorman_transport_update(link->transport, &result, now);
        if (result.has_ended) parent_link_note_result(service, &result, now);
        parent_link_log_leases(service, now);
        if (made) {
            pthread_mutex_unlock(&service->lock);
            doorman_transport_send(link->transport);
            pthread_mutex_lock(&service->lock);
        } else {
            parent_link_sleep(service, now);
        }
    }
    pthread_mutex_unlock(&service->lock);
    return NULL;
}

/* Checks an address of --parent without using the network: nng knows whether it supports it. */
static enum exit_status parent_link_check_address(const struct service *service, const char *url) {
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    enum exit_status exit_status = CONTINUE;
    int error = nng_req0_open(&socket);
    if (error == 0) error = nng_dialer_create(&dialer, socket, url);
    bool is_self = strcmp(url, service->advertise) == 0;
    for (size_t i = 0; i < service->url_count; i++) {
        is_self = is_self || !strcmp(url, service->urls[i]);
    }
    if (is_self) {
        exit_status = fatal_error(EXIT_USAGE, "--parent '%s' is this server itself", url);
    } else if (error != 0) {
        exit_status = fatal_error(EXIT_USAGE, "--parent '%s': %s; an address is, for example, %s",
                                  url, nng_strerror(error), LISTEN_DEFAULT);
    }
    nng_close(socket);
    return exit_status;
}

static bool parent_link_init(struct service *service) {
    struct parent_link *link = &service->parent_link;
    const doorman_tls tls = {service->pem.authority, service->pem.certificate, service->pem.key};
    doorman_transport_options options = {.upstream = doorman_server_upstream(service->server),
                                         .on_wakeup = parent_link_on_wakeup,
                                         .context = service,
                                         .tls = tls.authority ? &tls : NULL};
    return condition_init(&link->wake) &&
           doorman_transport_create(&link->transport, &options) == DOORMAN_OK;
}

static enum exit_status parent_link_start(struct service *service) {
    struct parent_link *link = &service->parent_link;
    link->started = parent_link_init(service) &&
                    pthread_create(&link->thread, NULL, parent_link_main, service) == 0;
    return link->started
               ? CONTINUE
               : fatal_error(EXIT_ERROR, "cannot start the link to the parent: out of memory "
                                         "or threads");
}

/* Does not release the leases of the node: the next process of the node uses them (R10). */
static void parent_link_stop(struct service *service) {
    struct parent_link *link = &service->parent_link;
    if (link->started) {
        pthread_mutex_lock(&service->lock);
        service->stopping = true;
        pthread_cond_signal(&link->wake);
        pthread_mutex_unlock(&service->lock);
        pthread_join(link->thread, NULL);
    }
    doorman_transport_destroy(link->transport); /* which may still signal */
    if (link->started) pthread_cond_destroy(&link->wake);
}

/* ---- >>election ----------------------------------------------------------------------------- */
/* One thread polls etcd every second, or five times within the TTL if that is shorter. It reads two
 * keys. The election key holds the address of the master and is attached to the master's etcd lease
 * (V2). The other key holds the configuration (V1). The thread takes the lock of the service only
 * to apply what it has read.
 *
 *     state      meaning                     event                               next state
 *     NO_MASTER  no known master             our lease holds the key             MASTER
 *                                            another lease holds the key         STANDBY
 *     STANDBY    another process is master,  as above                            MASTER, STANDBY
 *                at `address`                no key, or no response for the TTL  NO_MASTER
 *     MASTER     this process is master      our lease is renewed                MASTER
 *                                            another lease holds the key         STANDBY
 *                                            no key, or the last renewal is      NO_MASTER
 *                                            too old
 *     RESIGNED   this process has left       none: every state changes to this
 *                the election                one when the process stops
 *
 * A master answers as master until 0.95 TTL after it sent the last renewal that succeeded. etcd
 * counts the whole TTL, and starts when it receives the renewal. So no other process can get the
 * key before, as long as the rates of the clocks differ by less than 5 %. The server object
 * compares `until` with the clock at each request. So a process that wakes up after a long sleep,
 * or cannot reach etcd, does not answer as master, even before this thread runs.
 *
 * A new master starts to learn when it wins (R8). It cannot know earlier when its predecessor
 * ended: it creates the key in the same poll in which it first finds no key. */

#define ELECTION_PERIOD DOORMAN_SECOND
#define ELECTION_PERIOD_NO_MASTER (DOORMAN_SECOND / 10) /* a process is about to win */

/* The result of one poll of etcd. */
struct poll_result {
    enum election_state state;
    doorman_time until; /* when the result becomes invalid */
    char address[DOORMAN_ID_BYTES_MAX + 1];
};

static void election_log(const struct service *service, const struct poll_result *result) {
    static const char *const texts[] = {
        [ELECTION_NO_MASTER] = "no known master",
        [ELECTION_STANDBY] = "another server is the master",
        [ELECTION_MASTER] = "this server is the master",
        [ELECTION_RESIGNED] = "this server has left the election",
    };
    log_event(service->settings, LEVEL_INFO, texts[result->state], "key",
              service->settings->election_key, result->address[0] ? "master" : LOG_END,
              result->address, LOG_END);
}

/* Changes the state of the election, and logs it; no other function does. Precondition: the lock is
 * held. */
static void election_set_state(struct service *service, const struct poll_result *to,
                               doorman_time now) {
    struct election *election = &service->election;
    assert(election->state != ELECTION_RESIGNED);
    doorman_mastership mastership = {.address = to->address[0] ? to->address : NULL,
                                     .until = to->state == ELECTION_MASTER ? to->until : 0};
    if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        mastership.address = NULL; /* it is not a valid address, so do not redirect to it */
        doorman_server_set_master(service->server, &mastership, now);
    }
    bool was_master = election->state == ELECTION_MASTER;
    bool expired = was_master && now >= election->until;
    /* A server that loses mastership frees all its leases, so memory should go back. */
    if (was_master && to->state != ELECTION_MASTER) service->ended_lease_count += TRIM_LEASES;
    bool changed =
        expired || to->state != election->state || strcmp(to->address, election->address) != 0;
    election->state = to->state;
    election->until = to->until;
    snprintf(election->address, sizeof election->address, "%s", to->address);
    if (changed) election_log(service, to);
}

/* Renews the etcd lease, or creates one. Sets `lease` and `master_until` from the response.
 *   ttl       seconds
 *   returns   false: etcd does not answer */
static bool election_renew(struct election *election, int ttl) {
    doorman_time sent = doorman_clock();
    bool has_lease = election->lease[0] != 0;
    struct etcd *etcd = &election->etcd;
    cJSON *response =
        has_lease ? etcd_call(etcd, "/v3/lease/keepalive", "{\"ID\":\"%s\"}", election->lease)
                  : etcd_call(etcd, "/v3/lease/grant", "{\"TTL\":\"%d\"}", ttl);
    const cJSON *lease =
        has_lease ? cJSON_GetObjectItemCaseSensitive(response, "result") : response;
    long long seconds = strtoll(etcd_number(lease, "TTL"), NULL, 10);
    if (response) {
        const char *id = seconds > 0 ? etcd_number(lease, "ID") : "";
        snprintf(election->lease, sizeof election->lease, "%s", id);
    }
    if (seconds > TTL_MAX) seconds = TTL_MAX;
    if (seconds > 0) election->master_until = sent + seconds * (DOORMAN_SECOND / 100 * 95);
    cJSON_Delete(response);
    return response != NULL;
}

/* Creates the key, unless it exists.
 *   created   whether it did; false too if etcd does not answer
 *   returns   false: etcd does not answer */
static bool election_create_key(struct service *service, bool *created) {
    struct election *election = &service->election;
    char key[ETCD_KEY_TEXT], value[ETCD_KEY_TEXT];
    base64_write(key, service->settings->election_key);
    base64_write(value, service->advertise);
    cJSON *response = etcd_call(
        &election->etcd, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%s\"}}]}",
        key, key, value, election->lease);
    *created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"));
    cJSON_Delete(response);
    return response != NULL;
}

/* Called when the key does not exist: tries to create it. A process that was master at the last
 * poll does not: another process may have held the key since then. So its state becomes
 * NO_MASTER first, and it learns again if it wins at the next poll. */
static bool election_campaign(struct service *service, struct poll_result *out) {
    struct election *election = &service->election;
    bool reachable = true, created = false;
    if (election->state != ELECTION_MASTER) {
        if (!election->lease[0]) {
            reachable = election_renew(election, service->settings->election_ttl);
        }
        if (reachable && election->lease[0]) reachable = election_create_key(service, &created);
    }
    if (created) out->state = ELECTION_MASTER;
    return reachable;
}

/* Finds out which process holds the key. A key with the address of this process, but another lease,
 * is from an earlier process at this address. Its address is not used, or clients would be
 * redirected to this process. */
static void election_read_key(struct service *service, const cJSON *entry,
                              struct poll_result *out) {
    struct election *election = &service->election;
    size_t bytes = 0;
    bool owns_key = election->lease[0] && strcmp(etcd_number(entry, "lease"), election->lease) == 0;
    out->state = owns_key ? ELECTION_MASTER : ELECTION_STANDBY;
    if (!owns_key) election->lease[0] = 0; /* no longer needed; it expires in etcd */
    if (!etcd_read_value(entry, out->address, sizeof out->address, &bytes) ||
        strcmp(out->address, service->advertise) == 0) {
        out->address[0] = 0;
    }
}

/* Polls etcd once: renews the lease, if there is one, reads the key, and tries to create the key if
 * it does not exist.
 *   returns   false: etcd does not answer */
static bool election_poll(struct service *service, struct poll_result *out) {
    struct election *election = &service->election;
    const cJSON *entry = NULL;
    cJSON *response = NULL;
    int ttl = service->settings->election_ttl;
    doorman_time sent = doorman_clock();
    *out = (struct poll_result){.state = ELECTION_NO_MASTER};
    bool reachable = !election->lease[0] || election_renew(election, ttl);
    if (reachable) {
        response = etcd_get(&election->etcd, service->settings->election_key, &entry);
        reachable = response != NULL;
    }
    if (entry) {
        election_read_key(service, entry, out);
    } else if (reachable) {
        reachable = election_campaign(service, out);
    }
    cJSON_Delete(response);
    bool master = out->state == ELECTION_MASTER;
    out->until = master ? election->master_until : sent + ttl * DOORMAN_SECOND;
    if (master) snprintf(out->address, sizeof out->address, "%s", service->advertise);
    return reachable;
}

/* Polls etcd once and applies the result. The state becomes NO_MASTER if the result is already too
 * old when it arrives, or if etcd does not answer and the last result is too old.
 *   returns   false: etcd does not answer */
static bool election_step(struct service *service) {
    const struct election *election = &service->election;
    struct poll_result result;
    bool reachable = election_poll(service, &result);
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    bool old = now >= (reachable ? result.until : election->until);
    if (old) result = (struct poll_result){.state = ELECTION_NO_MASTER, .until = DOORMAN_NEVER};
    if (reachable || old) election_set_state(service, &result, now);
    pthread_mutex_unlock(&service->lock);
    return reachable;
}

/* Loads the configuration if its key has changed (V1). An invalid one is logged only once, because
 * its revision is then known. */
static bool election_load_config(struct service *service) {
    struct election *election = &service->election;
    doorman_config *config = NULL;
    doorman_error error;
    bool reachable = etcd_load_config(&election->etcd, service->settings->config_key,
                                      election->revision, &config, &error);
    if (config || error.text[0]) service_apply_config(service, config, &error);
    return reachable;
}

/* Logs whether etcd answers, if that has changed. Precondition: the lock is held. */
static void election_log_etcd(struct service *service, bool reachable) {
    struct election *election = &service->election;
    const char *member = election->etcd.members->items[election->etcd.at];
    if (!reachable && !service->stopping) {
        service->warnings[WARNING_ETCD_UNREACHABLE].unlogged_count++;
        warning_log(service, WARNING_ETCD_UNREACHABLE, "key",
                    service->settings->election_key ? service->settings->election_key
                                                    : service->settings->config_key,
                    election->etcd.error.text, doorman_clock());
    } else if (reachable && !election->reachable) {
        log_event(service->settings, LEVEL_INFO, "etcd answers", "etcd", member, LOG_END);
    }
    election->reachable = reachable;
}

/* Sleeps until the next poll. began: when the last poll started. Precondition: the lock is held; it
 * is released during the sleep. */
static void election_sleep(struct service *service, doorman_time started_at) {
    struct election *election = &service->election;
    doorman_time period = service->settings->election_ttl * DOORMAN_SECOND / 5;
    bool nobody = service->settings->election_key && election->state == ELECTION_NO_MASTER;
    if (period > ELECTION_PERIOD) period = ELECTION_PERIOD;
    if (nobody && election->reachable) period = ELECTION_PERIOD_NO_MASTER;
    doorman_time duration = started_at + period - doorman_clock();
    if (duration > 0 && !service->stopping) {
        condition_wait(&election->wake, &service->lock, duration);
    }
}

/* Resigns as master, then deletes the key, so that another process can become master at once. If
 * etcd does not answer, the key ends with its lease. */
static void election_resign(struct service *service) {
    struct election *election = &service->election;
    const struct poll_result result = {.state = ELECTION_RESIGNED, .until = DOORMAN_NEVER};
    pthread_mutex_lock(&service->lock);
    election_set_state(service, &result, doorman_clock());
    pthread_mutex_unlock(&service->lock);
    if (election->lease[0]) {
        election->etcd.tries = 1;
        etcd_cancel(&election->etcd, false);
        cJSON_Delete(
            etcd_call(&election->etcd, "/v3/lease/revoke", "{\"ID\":\"%s\"}", election->lease));
    }
}

static void *election_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct election *election = &service->election;
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        doorman_time started_at = doorman_clock();
        if (election->reload) election->revision[0] = 0;
        election->reload = false;
        pthread_mutex_unlock(&service->lock);
        bool reachable = !service->settings->election_key || election_step(service);
        if (reachable && service->settings->config_key) reachable = election_load_config(service);
        pthread_mutex_lock(&service->lock);
        election_log_etcd(service, reachable);
        election_sleep(service, started_at);
    }
    pthread_mutex_unlock(&service->lock);
    if (service->settings->election_key) election_resign(service);
    return NULL;
}

/* Whether a client that is redirected to this address can reach this process. Loopback addresses
 * count as reachable, because all processes may run on one machine. */
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

static enum exit_status election_start(struct service *service) {
    struct election *election = &service->election;
    etcd_set_election_deadline(&election->etcd, service->settings);
    election->reachable = true;
    election->until = DOORMAN_NEVER;
    election->started = condition_init(&election->wake) &&
                        pthread_create(&election->thread, NULL, election_main, service) == 0;
    return election->started
               ? CONTINUE
               : fatal_error(EXIT_ERROR, "cannot start the election: out of memory or threads");
}

/* Cancels the current call to etcd, deletes the key, and waits for the end of the thread. */
static void election_stop(struct service *service) {
    struct election *election = &service->election;
    if (election->started) {
        pthread_mutex_lock(&service->lock);
        service->stopping = true;
        etcd_cancel(&election->etcd, true);
        pthread_cond_signal(&election->wake);
        pthread_mutex_unlock(&service->lock);
        pthread_join(election->thread, NULL);
        pthread_cond_destroy(&election->wake);
        election->started = false;
    }
}

/* ---- >>text --------------------------------------------------------------------------------- */
/* HTTP bodies are built in a buffer that grows. When memory runs out, it sets `failed` and ignores
 * all further text, so that a caller checks for failure only once, at the end. Text from outside,
 * such as ids, is added only by text_add_escaped, with the rule of the language around it. */

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

/* For numbers and constant names. The result is cut off after 1,023 bytes. */
__attribute__((format(printf, 2, 3))) static void text_addf(struct text *text, const char *format,
                                                            ...) {
    char formatted[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(formatted, sizeof formatted, format, arguments);
    va_end(arguments);
    text_add(text, formatted);
}

/* Returns what replaces a character in a language; NULL: the character needs no escape. room:
 * memory that the result may use. */
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

/* For the query part of a URL. */
static const char *escape_query(char character, char room[8]) {
    bool plain = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
                 (character >= '0' && character <= '9') || strchr("-._~/:", character);
    if (plain) return NULL;
    snprintf(room, 8, "%%%02X", (unsigned)(unsigned char)character);
    return room;
}

/* For a resource id in a configuration, where it stands as a glob. */
static const char *escape_glob(char character, char room[8]) {
    if (!strchr("*?[]\\", character)) return escape_json(character, room);
    snprintf(room, 8, "\\\\%s%c", character == '\\' ? "\\" : "", character);
    return room;
}

static void text_add_escaped(struct text *text, const char *from, escape rule) {
    char room[8];
    for (; *from; from++) {
        const char *replacement = rule(*from, room);
        if (replacement) {
            text_add(text, replacement);
        } else {
            text_add_bytes(text, from, 1);
        }
    }
}

/* The response to an HTTP request. */
struct http_response {
    int code;
    const char *type, *more; /* Content-Type; further lines of the head */
    char nonce[33];          /* marks our styles and scripts, see Content-Security-Policy */
    struct text text;        /* the body */
};

/* Returns -1 if it is not a hexadecimal digit. */
static int hex_value(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *at = digit ? strchr(digits, digit | ('a' - 'A')) : NULL;
    return at && (digit <= '9' || digit >= 'A') ? (int)(at - digits) : -1;
}

/* Reads and decodes a value of "name=value&name=value", and cuts off what does not fit. Returns
 * false if there is none, or if it contains a 0 byte. */
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

/* ---- >>snapshot ----------------------------------------------------------------------------- */
/* A snapshot is a copy of the state for the pages and the metrics. The copy is made while the lock
 * is held, and all text is written later, without it. A snapshot holds at most ROWS_MAX resources
 * or leases, the first ones of an iteration; of the other resources it holds the sum.
 *
 * Each step of an iteration takes about 0.2 us, or several us if it is not in the CPU's caches. So
 * an iteration releases the lock after each ITERATION_BATCH steps. It sleeps for a moment then,
 * because a thread that waits for the lock wakes up too late to get it otherwise. */
#define ROWS_MAX 100000
#define ITERATION_BATCH 1000 /* steps: less than 5 ms, even if they remove ended leases */
#define ITERATION_PAUSE_MS 1

/* Releases the lock for a moment, so that other threads can take it. */
static void service_yield(struct service *service) {
    pthread_mutex_unlock(&service->lock);
    nng_msleep(ITERATION_PAUSE_MS);
    pthread_mutex_lock(&service->lock);
}

/* Calls `callback` for each resource until it returns false. The lock is held during the calls and
 * released between batches. */
static void service_for_each_resource(struct service *service,
                                      bool (*callback)(void *context,
                                                       const doorman_server_resource *info),
                                      void *context) {
    doorman_cursor cursor = {0};
    doorman_server_resource info;
    doorman_time now = doorman_clock();
    for (size_t count = 1; doorman_server_next_resource(service->server, &cursor, &info, now);
         count++) {
        if (!callback(context, &info)) return;
        if (count % ITERATION_BATCH == 0) {
            service_yield(service);
            now = doorman_clock();
        }
    }
}

struct row {
    char *id;
    doorman_server_resource info; /* its id and settings pointers are not valid */
    doorman_kind kind;
    double overshoot; /* by how much the leases exceed the capacity; 0 is the promise */
};

struct snapshot {
    const char *filter; /* only resources whose ids contain it become rows */
    size_t limit;       /* maximum number of rows */
    doorman_time now;
    bool is_master, stopping, has_others;
    char master[DOORMAN_ID_BYTES_MAX + 1]; /* "": not known */
    size_t resource_count, leased_count, learning_count, holder_count, match_count;
    doorman_time learned_at, lease_end; /* latest end of learning; earliest lease end */
    struct row *rows;
    size_t row_count, row_capacity;
    struct row others; /* the sum of the resources beyond `limit` */
    bool failed;       /* out of memory */
};

/* Makes room for one more row; may move `items`. Returns false if memory runs out. */
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

static bool row_learning(const struct row *row, doorman_time now) {
    return row->info.is_learning && row->info.learned_at > now;
}

/* The caller sets the id. */
static struct row row_make(const doorman_server_resource *info) {
    struct row row = {.info = *info, .kind = info->settings->algorithm.kind};
    if (info->divides_capacity && info->has > info->capacity) {
        row.overshoot = info->has - info->capacity;
    }
    return row;
}

static void snapshot_add_row(struct snapshot *snapshot, const doorman_server_resource *info) {
    void *rows = snapshot->rows;
    char *id = strdup(info->resource_id);
    if (id &&
        reserve_row(&rows, snapshot->row_count, &snapshot->row_capacity, sizeof(struct row))) {
        snapshot->rows = (struct row *)rows;
        snapshot->rows[snapshot->row_count] = row_make(info);
        snapshot->rows[snapshot->row_count++].id = id;
    } else {
        snapshot->failed = true;
        free(id);
    }
}

static void snapshot_add_other(struct snapshot *snapshot, const struct row *row) {
    doorman_server_resource *others = &snapshot->others.info;
    const doorman_server_resource *info = &row->info;
    bool later = info->is_learning && info->learned_at > others->learned_at;
    snapshot->has_others = true;
    snapshot->others.overshoot += row->overshoot;
    others->capacity += info->capacity;
    others->has += info->has;
    others->committed += info->committed;
    others->wants += info->wants;
    others->subclients += info->subclients;
    others->holder_count += info->holder_count;
    others->expired_count += info->expired_count;
    others->is_learning |= info->is_learning;
    if (later) others->learned_at = info->learned_at;
}

static void snapshot_count(struct snapshot *snapshot, const doorman_server_resource *info) {
    snapshot->resource_count++;
    snapshot->holder_count += info->holder_count;
    snapshot->learning_count += info->is_learning;
    if (info->is_learning && info->learned_at > snapshot->learned_at) {
        snapshot->learned_at = info->learned_at;
    }
    if (info->leased && (!snapshot->leased_count++ || info->lease_end < snapshot->lease_end)) {
        snapshot->lease_end = info->lease_end;
    }
}

/* Finds the master with a discovery request, as a client does. Precondition: the lock is held. */
static void snapshot_find_master(struct snapshot *snapshot, struct service *service) {
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    snapshot->now = doorman_clock();
    snapshot->stopping = service->stopping;
    doorman_server_handle(service->server, &discovery, &response, NULL, snapshot->now);
    snapshot->is_master = response.is_master;
    const char *master = response.master_address ? response.master_address : "";
    snprintf(snapshot->master, sizeof snapshot->master, "%s", master);
}

static bool snapshot_add(void *context, const doorman_server_resource *info) {
    struct snapshot *snapshot = (struct snapshot *)context;
    snapshot_count(snapshot, info);
    if (strstr(info->resource_id, snapshot->filter)) {
        snapshot->match_count++;
        if (snapshot->row_count < snapshot->limit) {
            snapshot_add_row(snapshot, info);
        } else {
            struct row row = row_make(info);
            snapshot_add_other(snapshot, &row);
        }
    }
    return true;
}

/* Takes a snapshot.
 *   filter   resources whose ids contain it become rows
 *   limit    maximum number of rows; the other matching resources are added up
 *   cost     O(resources) */
static void snapshot_take(struct snapshot *snapshot, struct service *service, const char *filter,
                          size_t limit) {
    snapshot->filter = filter;
    snapshot->limit = limit;
    pthread_mutex_lock(&service->lock);
    snapshot_find_master(snapshot, service);
    service_for_each_resource(service, snapshot_add, snapshot);
    pthread_mutex_unlock(&service->lock);
}

static void snapshot_uninit(struct snapshot *snapshot) {
    for (size_t i = 0; i < snapshot->row_count; i++) free(snapshot->rows[i].id);
    free(snapshot->rows);
}

static struct config_load service_last_load(struct service *service) {
    pthread_mutex_lock(&service->lock);
    struct config_load last_load = service->last_load;
    pthread_mutex_unlock(&service->lock);
    return last_load;
}

struct lease_row {
    char *id;
    doorman_server_lease info; /* its id pointer is not valid */
};

/* One resource and its leases. */
struct lease_list {
    const char *resource_id;
    doorman_time now;
    bool found;
    struct row resource;
    char *description; /* NULL: none */
    struct lease_row *rows;
    size_t row_count, row_capacity;
    bool failed;
};

static void lease_list_add(struct lease_list *leases, const doorman_server_lease *info) {
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

static void lease_list_find_resource(struct lease_list *leases, struct service *service) {
    doorman_server_resource info;
    leases->now = doorman_clock();
    leases->found = doorman_server_find(service->server, leases->resource_id, &info, leases->now);
    if (!leases->found) return;
    const char *description = info.settings->description;
    leases->resource = row_make(&info);
    if (description) leases->description = strdup(description);
}

static void lease_list_take(struct lease_list *leases, struct service *service,
                            const char *resource_id) {
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    leases->resource_id = resource_id;
    pthread_mutex_lock(&service->lock);
    lease_list_find_resource(leases, service);
    while (leases->row_count < ROWS_MAX && !leases->failed &&
           doorman_server_next_lease(service->server, resource_id, &cursor, &lease, leases->now)) {
        lease_list_add(leases, &lease);
        if (leases->row_count % ITERATION_BATCH == 0) service_yield(service);
    }
    pthread_mutex_unlock(&service->lock);
}

static void lease_list_uninit(struct lease_list *leases) {
    for (size_t i = 0; i < leases->row_count; i++) free(leases->rows[i].id);
    free(leases->rows);
    free(leases->description);
}

/* ---- >>history ------------------------------------------------------------------------------ */
/* What resources had and wanted in the last ten minutes, for the graphs of the status page: a point
 * every ten seconds, for at most 10,000 resources (5 MB). The main thread adds the points. It
 * merges the last list with a new snapshot, so both are sorted by id. */
#define HISTORY_POINTS 60
#define HISTORY_INTERVAL (10 * DOORMAN_SECOND)
#define HISTORY_MAX 10000

struct trend {
    char *id;
    unsigned count; /* of valid points: the last ones of the arrays, the newest at the end */
    float has[HISTORY_POINTS], wants[HISTORY_POINTS];
};

struct history {
    pthread_mutex_t lock;
    struct trend *trends;
    size_t count;
    doorman_time due;
};

static int compare_row_ids(const void *left, const void *right) {
    return strcmp(((const struct row *)left)->id, ((const struct row *)right)->id);
}

static int compare_trend_id(const void *id, const void *trend) {
    return strcmp((const char *)id, ((const struct trend *)trend)->id);
}

static void trend_add(struct trend *trend, float has, float wants) {
    if (trend->count < HISTORY_POINTS) trend->count++;
    memmove(trend->has, trend->has + 1, sizeof trend->has - sizeof *trend->has);
    memmove(trend->wants, trend->wants + 1, sizeof trend->wants - sizeof *trend->wants);
    trend->has[HISTORY_POINTS - 1] = has;
    trend->wants[HISTORY_POINTS - 1] = wants;
}

/* Copies the first HISTORY_MAX resources, and ignores the others. */
static bool history_add_row(void *context, const doorman_server_resource *info) {
    struct snapshot *snapshot = (struct snapshot *)context;
    snapshot_add_row(snapshot, info);
    return snapshot->row_count < HISTORY_MAX && !snapshot->failed;
}

static void history_copy(struct snapshot *snapshot, struct service *service) {
    pthread_mutex_lock(&service->lock);
    service_for_each_resource(service, history_add_row, snapshot);
    pthread_mutex_unlock(&service->lock);
}

/* Makes the new list: keeps the points of resources that still exist, and adds one point to each.
 * Takes ownership of the ids of the rows. NULL: out of memory. */
static struct trend *history_merge(const struct history *history, struct snapshot *snapshot) {
    struct trend *trends = (struct trend *)calloc(snapshot->row_count + 1, sizeof *trends);
    for (size_t i = 0, old = 0; trends && i < snapshot->row_count; i++) {
        struct row *row = &snapshot->rows[i];
        while (old < history->count && strcmp(history->trends[old].id, row->id) < 0) old++;
        if (old < history->count && strcmp(history->trends[old].id, row->id) == 0) {
            trends[i] = history->trends[old];
        }
        trends[i].id = row->id;
        row->id = NULL;
        trend_add(&trends[i], (float)row->info.has, (float)row->info.wants);
    }
    return trends;
}

static void history_clear(struct history *history) {
    for (size_t i = 0; i < history->count; i++) free(history->trends[i].id);
    free(history->trends);
    history->trends = NULL;
    history->count = 0;
}

static void history_sample(struct service *service) {
    struct history *history = service->history;
    struct snapshot snapshot = {.now = 0};
    history_copy(&snapshot, service);
    if (snapshot.row_count > 1) {
        qsort(snapshot.rows, snapshot.row_count, sizeof *snapshot.rows, compare_row_ids);
    }
    struct trend *trends = snapshot.failed ? NULL : history_merge(history, &snapshot);
    if (trends) {
        pthread_mutex_lock(&history->lock);
        history_clear(history);
        history->trends = trends;
        history->count = snapshot.row_count;
        pthread_mutex_unlock(&history->lock);
    }
    snapshot_uninit(&snapshot);
}

/* A copy of the history of a resource; it has no points if the resource is not found. */
static struct trend history_find(struct service *service, const char *id) {
    struct history *history = service->history;
    struct trend found = {.count = 0};
    pthread_mutex_lock(&history->lock);
    const struct trend *trend = NULL;
    if (history->count > 0) {
        trend = (const struct trend *)bsearch(id, history->trends, history->count,
                                              sizeof *history->trends, compare_trend_id);
    }
    if (trend) found = *trend;
    pthread_mutex_unlock(&history->lock);
    found.id = NULL;
    return found;
}

/* ---- >>metrics ------------------------------------------------------------------------------ */
/* V4 Metrics for Prometheus, by its conventions. At most SERIES_MAX resources have series of their
 *    own, because every series costs memory in Prometheus. The series `other` is the sum of the
 *    remaining resources. */
#define SERIES_MAX 1000

static void metrics_header(struct text *text, const char *name, const char *type,
                           const char *help) {
    text_addf(text, "# HELP doorman_%s %s\n# TYPE doorman_%s %s\n", name, help, name, type);
}

static void metrics_gauge(struct text *text, const char *name, const char *help, double value) {
    metrics_header(text, name, "gauge", help);
    text_addf(text, "doorman_%s %.17g\n", name, value);
}

static uint64_t counter_read(const counter *count) {
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void metrics_counter(struct text *text, const char *name, const char *help,
                            const counter *count) {
    metrics_header(text, name, "counter", help);
    text_addf(text, "doorman_%s %" PRIu64 "\n", name, counter_read(count));
}

static void metrics_requests(struct text *text, const struct counters *counters) {
    metrics_header(text, "server_requests_total", "counter",
                   "Messages answered, by method and status.");
    for (int kind = 0; kind < MESSAGE_KIND_COUNT; kind++) {
        for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
            uint64_t count = counter_read(&counters->requests[kind][code]);
            if (count == 0 && code != DOORMAN_OK) continue;
            text_addf(text,
                      "doorman_server_requests_total{method=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                      message_names[kind], doorman_status_name((doorman_status)code), count);
        }
    }
}

static void metrics_durations(struct text *text, const struct counters *counters) {
    const char *name = "doorman_server_request_duration_seconds";
    metrics_header(text, "server_request_duration_seconds", "histogram",
                   "Time from the arrival of a message to its response, parsing included.");
    for (int kind = 0; kind < MESSAGE_KIND_COUNT; kind++) {
        const char *method = message_names[kind];
        uint64_t sum = 0;
        for (int i = 0; i < BUCKET_COUNT; i++) {
            sum += counter_read(&counters->buckets[kind][i]);
            text_addf(text, "%s_bucket{method=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, method,
                      bucket_bounds[i], sum);
        }
        sum += counter_read(&counters->buckets[kind][BUCKET_COUNT]);
        text_addf(text,
                  "%s_bucket{method=\"%s\",le=\"+Inf\"} %" PRIu64 "\n"
                  "%s_sum{method=\"%s\"} %.9f\n%s_count{method=\"%s\"} %" PRIu64 "\n",
                  name, method, sum, name, method,
                  (double)counter_read(&counters->nanoseconds[kind]) / 1e9, name, method, sum);
    }
}

static void metrics_parent(struct text *text, const struct counters *counters) {
    metrics_header(text, "server_parent_requests_total", "counter",
                   "Requests to the parent, by status.");
    for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
        uint64_t count = counter_read(&counters->parent[code]);
        if (count == 0 && code != DOORMAN_OK) continue;
        text_addf(text, "doorman_server_parent_requests_total{code=\"%s\"} %" PRIu64 "\n",
                  doorman_status_name((doorman_status)code), count);
    }
}

/* The metrics of each resource. */
enum resource_metric {
    METRIC_CAPACITY,
    METRIC_HAS,
    METRIC_WANTS,
    METRIC_CLIENTS,
    METRIC_SUBCLIENTS,
    METRIC_SAFE_CAPACITY,
    METRIC_LEARNING,
    METRIC_OVERSHOOT,
    METRIC_EXPIRED,
    METRIC_REMAINING,
    METRIC_COUNT
};
static const struct {
    const char *name, *type, *help;
} resource_metrics[METRIC_COUNT] = {
    {"resource_capacity", "gauge", "Capacity that can be granted, in the resource's units."},
    {"resource_has", "gauge", "Sum of the leases, in the resource's units."},
    {"resource_wants", "gauge", "Sum of what the holders want, in the resource's units."},
    {"resource_clients", "gauge",
     "Holders: clients and child servers with an entry at this server."},
    {"resource_subclients", "gauge", "Clients, including those of child servers."},
    {"resource_safe_capacity", "gauge", "What a client may use without a lease; -1 is unlimited."},
    {"resource_learning", "gauge", "1 while holders are granted only what they claim, else 0."},
    {"resource_overshoot", "gauge", "By how much the leases exceed the capacity."},
    {"resource_leases_expired_total", "counter", "Leases that expired without renewal."},
    {"server_parent_lease_remaining_seconds", "gauge",
     "Time to the end of this node's own lease; 0 if it has none."},
};

/* Returns false if the metric does not apply to the resource. */
static bool metric_value(const struct snapshot *snapshot, const struct row *row,
                         enum resource_metric metric, bool has_parent, double *out) {
    const doorman_server_resource *info = &row->info;
    double left = (double)(info->lease_end - snapshot->now) / 1e9;
    switch (metric) {
    case METRIC_CAPACITY: *out = info->capacity; break;
    case METRIC_HAS: *out = info->has; break;
    case METRIC_WANTS: *out = info->wants; break;
    case METRIC_CLIENTS: *out = (double)info->holder_count; break;
    case METRIC_SUBCLIENTS: *out = info->subclients; break;
    case METRIC_SAFE_CAPACITY: *out = info->safe_capacity; return info->has_safe_capacity;
    case METRIC_LEARNING: *out = row_learning(row, snapshot->now); break;
    case METRIC_OVERSHOOT: *out = row->overshoot; break;
    case METRIC_EXPIRED: *out = (double)info->expired_count; break;
    case METRIC_REMAINING: *out = info->leased ? left : 0; return has_parent && row->id;
    case METRIC_COUNT:
    default: return false;
    }
    return true;
}

static void metrics_resource(struct text *text, const struct snapshot *snapshot,
                             const struct row *row, enum resource_metric metric, bool has_parent) {
    double value = 0;
    if (!metric_value(snapshot, row, metric, has_parent, &value)) return;
    text_addf(text, "doorman_%s{resource=\"", resource_metrics[metric].name);
    text_add_escaped(text, row->id ? row->id : "other", escape_label);
    text_addf(text, "\"} %.17g\n", value);
}

/* Adds a resource with the id "other" to the rest, or its series would exist twice. */
static void metrics_merge_other(struct snapshot *snapshot) {
    for (size_t i = 0; snapshot->has_others && i < snapshot->row_count; i++) {
        struct row *row = &snapshot->rows[i];
        if (strcmp(row->id, "other") != 0) continue;
        snapshot_add_other(snapshot, row);
        free(row->id);
        *row = snapshot->rows[--snapshot->row_count];
    }
}

static void metrics_all_resources(struct text *text, const struct snapshot *snapshot,
                                  bool has_parent) {
    for (int i = 0; i < METRIC_COUNT; i++) {
        enum resource_metric metric = (enum resource_metric)i;
        if (metric == METRIC_REMAINING && !has_parent) continue;
        metrics_header(text, resource_metrics[i].name, resource_metrics[i].type,
                       resource_metrics[i].help);
        for (size_t at = 0; at < snapshot->row_count; at++) {
            metrics_resource(text, snapshot, &snapshot->rows[at], metric, has_parent);
        }
        if (snapshot->has_others) {
            metrics_resource(text, snapshot, &snapshot->others, metric, has_parent);
        }
    }
}

static void handle_metrics(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    struct config_load last_load = service_last_load(service);
    bool has_parent = service->settings->parents.count > 0;
    (void)request;
    snapshot_take(&snapshot, service, "", SERIES_MAX);
    metrics_merge_other(&snapshot);
    response->type = "text/plain; version=0.0.4; charset=utf-8";
    metrics_header(text, "build_info", "gauge", "Always 1; the label is the version.");
    text_add(text, "doorman_build_info{version=\"" DOORMAN_VERSION "\"} 1\n");
    metrics_gauge(text, "server_is_master", "1 if this process is the master of its node, else 0.",
                  snapshot.is_master);
    metrics_gauge(text, "server_config_last_reload_successful",
                  "1 if the last load of the configuration succeeded, 0 if it was refused.",
                  !last_load.error[0]);
    metrics_gauge(text, "server_config_last_reload_success_timestamp_seconds",
                  "When the configuration in force was loaded, in Unix seconds.",
                  (double)last_load.loaded_at);
    metrics_counter(text, "server_unmatched_requests_total",
                    "Requests for a resource that no template matches.",
                    &service->counters.unmatched);
    metrics_counter(text, "server_shared_id_requests_total",
                    "Requests that show that two processes use one id.",
                    &service->counters.shared_id);
    metrics_requests(text, &service->counters);
    metrics_durations(text, &service->counters);
    if (has_parent) metrics_parent(text, &service->counters);
    metrics_all_resources(text, &snapshot, has_parent);
    text->failed = text->failed || snapshot.failed;
    snapshot_uninit(&snapshot);
}

/* ---- >>status page -------------------------------------------------------------------------- */
/* Pages for operators: one page lists all resources, and each resource has a page with its leases.
 * The pages work without JavaScript. With it, a short script fetches the page again every two
 * seconds and replaces <main>. The Content-Security-Policy lets a page load nothing but itself. It
 * also forbids style attributes, so bars and lines are SVG. */
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

/* Two decimals at most; two significant digits below 0.01. */
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

/* Writes the two largest units, such as "3 d 4 h". */
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

static void page_start(struct service *service, const struct http_request *request,
                       struct http_response *response, const char *filter) {
    struct text *text = &response->text;
    response->type = "text/html; charset=utf-8";
    text_add(text, "<!doctype html><html lang=en><head><meta charset=utf-8>"
                   "<meta name=viewport content='width=device-width,initial-scale=1'>"
                   "<link rel=icon href='data:,'><title>");
    text_add_escaped(text, service->node, escape_html);
    text_add(text, " - Doorman</title><noscript><meta http-equiv=refresh content=30></noscript>");
    text_addf(text, "<style nonce='%s'>", response->nonce);
    text_add(text, page_style);
    text_add(text, page_style_lists);
    text_add(text, "</style></head><body><header><h1><a href='/'>Doorman</a> ");
    text_add_escaped(text, service->node, escape_html);
    text_addf(text, "</h1><span id=live></span><form action='%s' role=search>", request->path);
    char id[DOORMAN_ID_BYTES_MAX + 1];
    if (query_read(request->query, "resource", id, sizeof id)) {
        text_add(text, "<input type=hidden name=resource value=\"");
        text_add_escaped(text, id, escape_html);
        text_add(text, "\">");
    }
    text_add(text, "<input name=filter aria-label='part of a name' placeholder='part of a name' "
                   "value=\"");
    text_add_escaped(text, filter, escape_html);
    text_add(text, "\"><button>filter</button></form></header><main>");
}

static void page_end(struct http_response *response) {
    struct text *text = &response->text;
    text_add(text, "</main><footer>doorman_server " DOORMAN_VERSION
                   " &middot; <a href='/metrics'>metrics</a> &middot; <a href='/v1/status'>status "
                   "as JSON</a> &middot; <a href='/v1/config'>configuration</a></footer>");
    text_addf(text, "<script nonce='%s'>", response->nonce);
    text_add(text, page_script);
    text_add(text, "</script></body></html>\n");
}

/* Starts one entry of the box at the top. The caller adds the value and the end tags. */
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

static void page_master(struct text *text, const struct snapshot *snapshot) {
    page_fact(text, "master", snapshot->is_master ? "good" : snapshot->master[0] ? "warn" : "bad");
    if (snapshot->is_master) {
        text_add(text, "this process");
    } else if (snapshot->master[0]) {
        text_add(text, "another: ");
        text_add_escaped(text, snapshot->master, escape_html);
    } else {
        text_add(text, "not known");
    }
    text_add(text, "</dd></div>");
}

static void page_parent(struct text *text, struct service *service,
                        const struct snapshot *snapshot) {
    const struct addresses *parents = &service->settings->parents;
    if (parents->count == 0) return;
    bool all = snapshot->leased_count == snapshot->resource_count;
    page_fact(text, "parent", "");
    for (size_t i = 0; i < parents->count; i++) {
        text_add(text, i ? ", " : "");
        text_add_escaped(text, parents->items[i], escape_html);
    }
    text_add(text, "</dd></div>");
    page_fact(text, "leases from the parent", all ? "" : "bad");
    text_addf(text, "%zu of %zu resources", snapshot->leased_count, snapshot->resource_count);
    if (snapshot->leased_count > 0) {
        text_add(text, "; the first one ends in ");
        page_duration(text, snapshot->lease_end - snapshot->now);
    }
    text_add(text, "</dd></div>");
}

static void page_configuration(struct text *text, struct service *service) {
    struct config_load last_load = service_last_load(service);
    char when[32];
    struct tm utc;
    if (!service->settings->config) return;
    gmtime_r(&last_load.loaded_at, &utc);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &utc);
    page_fact_text(text, "configuration loaded (UTC)", when, last_load.error[0] ? "warn" : "");
    if (!last_load.error[0]) return;
    page_fact(text, "last change refused", "wide");
    text_add(text, "<span class=bad>");
    text_add_escaped(text, last_load.error, escape_html);
    text_add(text, "</span></dd></div>");
}

static void page_facts(struct text *text, struct service *service,
                       const struct snapshot *snapshot) {
    bool is_root = service->settings->parents.count == 0;
    text_add(text, "<dl class=facts>");
    page_fact_text(text, "node", service->node, "");
    if (strcmp(service->id, service->node) != 0) page_fact_text(text, "process", service->id, "");
    page_fact_text(text, "role", is_root ? "root: has the configuration" : "child of a parent", "");
    page_master(text, snapshot);
    page_fact_text(text, "address", service->advertise, "");
    page_parent(text, service, snapshot);
    page_fact(text, "learning", snapshot->learning_count > 0 ? "warn" : "");
    if (snapshot->learning_count > 0) {
        text_addf(text, "%zu resources, for ", snapshot->learning_count);
        page_duration(text, snapshot->learned_at - snapshot->now);
    } else {
        text_add(text, "no");
    }
    text_add(text, "</dd></div>");
    page_fact(text, "resources, holders", "");
    text_addf(text, "%zu, %zu</dd></div>", snapshot->resource_count, snapshot->holder_count);
    page_fact(text, "uptime", "");
    page_duration(text, snapshot->now - service->started_at);
    text_add(text, "</dd></div>");
    page_fact_text(text, "version", DOORMAN_VERSION, "");
    page_configuration(text, service);
    text_add(text, "</dl>");
}

/* The bar shows what the holders have and want. If they share one capacity, an edge marks it. The
 * bar ends at twice the capacity, because the wants may be a thousand times larger. */
static void page_bar(struct text *text, const struct row *row) {
    const doorman_server_resource *info = &row->info;
    double capacity = info->divides_capacity ? info->capacity : 0, maximum = capacity;
    if (info->wants > maximum) maximum = info->wants;
    if (capacity > 0 && maximum > 2 * capacity) maximum = 2 * capacity;
    if (info->has > maximum) maximum = info->has;
    double scale = maximum > 0 ? 1000 / maximum : 0;
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

static void page_line(struct text *text, const struct trend *trend, const float *values,
                      double scale, const char *class) {
    text_addf(text, "<polyline class=%s points='", class);
    for (unsigned i = HISTORY_POINTS - trend->count; i < HISTORY_POINTS; i++) {
        double y = 38 - (double)values[i] * scale;
        text_addf(text, "%u,%.1f ", i, y > 1 ? y : 1);
    }
    text_add(text, "'/>");
}

/* The graph shows the last ten minutes, and the current capacity as a dashed line. Wants above its
 * upper end are cut off. */
static void page_trend(struct text *text, struct service *service, const struct row *row,
                       const char *id) {
    struct trend trend = history_find(service, id);
    double capacity = row->info.divides_capacity ? row->info.capacity : 0, maximum = capacity;
    for (unsigned i = HISTORY_POINTS - trend.count; i < HISTORY_POINTS; i++) {
        if ((double)trend.has[i] > maximum) maximum = (double)trend.has[i];
    }
    double scale = maximum > 0 ? 30 / maximum : 0, y = 38 - capacity * scale;
    text_addf(text,
              "<svg class=trend viewBox='0 0 %d 40' preserveAspectRatio=none role=img>"
              "<title>the last ten minutes</title>",
              HISTORY_POINTS - 1);
    if (capacity > 0) {
        text_addf(text, "<line x1=0 x2=%d y1=%.1f y2=%.1f />", HISTORY_POINTS - 1, y, y);
    }
    if (trend.count > 1) {
        page_line(text, &trend, trend.wants, scale, "wanted");
        page_line(text, &trend, trend.has, scale, "given");
    }
    text_add(text, "</svg>");
}

/* Conditions that an operator should know of. */
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
        text_add(text, row->info.divides_capacity ? "</b> of <b>" : "</b>, each up to <b>");
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
    text_addf(text, "</a><small>%s", kind_name(row->kind));
    page_warnings(text, service, row, now);
    text_add(text, "</small></div><div class=numbers>");
    page_bar(text, row);
    page_numbers(text, row);
    text_add(text, "</div>");
    page_trend(text, service, row, row->id);
    text_add(text, "</li>");
}

/* An order that a list can be sorted by. name: in the query; title: on the page. */
struct order {
    const char *name, *title;
    int (*compare)(const void *left, const void *right);
};

/* Larger amounts first; equal amounts by id. */
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
ORDER_OF(compare_lease_age, lease_row, info.granted_at)

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
    {"seen", "last renewal", compare_lease_age},      {NULL, NULL, NULL}};

/* Which part of a list a page shows, and in which order. */
struct view {
    const struct http_request *request;
    const struct order *orders, *order;
    char filter[DOORMAN_ID_BYTES_MAX + 1], resource[DOORMAN_ID_BYTES_MAX + 1];
    size_t first, end, count;
};

static struct view view_read(const struct http_request *request, const struct order *orders) {
    struct view view = {.request = request, .orders = orders, .order = orders};
    char word[16];
    query_read(request->query, "filter", view.filter, sizeof view.filter);
    query_read(request->query, "resource", view.resource, sizeof view.resource);
    if (query_read(request->query, "sort", word, sizeof word)) {
        for (const struct order *order = orders; order->name; order++) {
            if (strcmp(order->name, word) == 0) view.order = order;
        }
    }
    if (query_read(request->query, "page", word, sizeof word) && word[0] != '-') {
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

/* Adds a link to the same list with another order or page. */
static void view_add_link(struct text *text, const struct view *view, const struct order *order,
                          size_t page, const char *title) {
    text_addf(text, "<a href=\"%s?sort=%s", view->request->path, order->name);
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
    if (view->first > 0) view_add_link(text, view, view->order, page - 1, "&larr; previous");
    text_addf(text, "<span>%zu to %zu of %zu %s</span>", view->count ? view->first + 1 : 0,
              view->end, view->count, what);
    if (view->end < view->count) view_add_link(text, view, view->order, page + 1, "next &rarr;");
    text_add(text, "</nav></div>");
}

static void handle_page(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct view view = view_read(request, row_orders);
    struct snapshot snapshot = {.now = 0};
    struct text *text = &response->text;
    snapshot_take(&snapshot, service, view.filter, ROWS_MAX);
    view_set_count(&view, snapshot.row_count);
    if (snapshot.row_count > 1) {
        qsort(snapshot.rows, snapshot.row_count, sizeof *snapshot.rows, view.order->compare);
    }
    page_start(service, request, response, view.filter);
    page_facts(text, service, &snapshot);
    view_add_bars(text, &view, "resources");
    text_add(text, "<ol>");
    for (size_t i = view.first; i < view.end; i++) {
        page_resource(text, service, &snapshot.rows[i], snapshot.now);
    }
    text_add(text, "</ol>");
    if (snapshot.resource_count == 0) {
        text_add(text, "<p class=soft>No client has requested a resource yet.</p>");
    } else if (snapshot.row_count == 0) {
        text_add(text, "<p class=soft>No resource name contains this text.</p>");
    } else {
        text_add(text, "<p class='soft key'><span class=k1>has</span><span class=k2>wants</span>"
                       "<span class=k3>free</span>the edge marks the capacity</p>");
    }
    page_end(response);
    text->failed = text->failed || snapshot.failed;
    snapshot_uninit(&snapshot);
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

/* Keeps the leases whose holder ids contain the filter, and sorts them. */
static void lease_list_arrange(struct lease_list *leases, const struct view *view) {
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

static void page_leases(struct text *text, struct service *service, struct lease_list *leases,
                        const struct view *view) {
    const struct row *row = &leases->resource;
    text_addf(text, "<p class=soft>%s ", kind_name(row->kind));
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
        text_addf(text, "<p class=warn>There are %zu holders; this list contains %d of them.</p>",
                  row->info.holder_count, ROWS_MAX);
    }
}

static void handle_leases(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct view view = view_read(request, lease_orders);
    struct lease_list leases = {.found = false};
    struct text *text = &response->text;
    lease_list_take(&leases, service, view.resource);
    lease_list_arrange(&leases, &view);
    view_set_count(&view, leases.row_count);
    page_start(service, request, response, view.filter);
    text_add(text, "<h2>");
    text_add_escaped(text, view.resource, escape_html);
    text_add(text, "</h2>");
    if (leases.found) {
        page_leases(text, service, &leases, &view);
    } else {
        response->code = 404;
        text_add(text, "<p>This resource has no leases. <a href='/'>All resources</a></p>");
    }
    page_end(response);
    text->failed = text->failed || leases.failed;
    lease_list_uninit(&leases);
}

/* ---- >>json over http ----------------------------------------------------------------------- */
/* HTTP for programs: the state, the configuration in force, and the methods of the protocol. The
 * path names the method, so a request or response is only the object inside {"METHOD": ...}. */

static void json_text(struct text *text, const char *value) {
    text_add(text, "\"");
    text_add_escaped(text, value, escape_json);
    text_add(text, "\"");
}

/* Writes 15 digits if they read back as the same number, else 17, which always do. */
static void json_number(struct text *text, double value) {
    char formatted[40];
    snprintf(formatted, sizeof formatted, "%.15g", value);
    if (strtod(formatted, NULL) < value || strtod(formatted, NULL) > value) {
        snprintf(formatted, sizeof formatted, "%.17g", value);
    }
    text_add(text, formatted);
}

/* time: a duration. before: the text in front of the number. */
static void json_seconds(struct text *text, const char *before, doorman_time time) {
    text_add(text, before);
    json_number(text, (double)time / (double)DOORMAN_SECOND);
}

/* Makes the reply an error: `name` is a code of the protocol, `code` a status of HTTP. */
static void http_response_set_error(struct http_response *response, int code, const char *name,
                                    const char *message) {
    response->code = code;
    response->type = "application/json";
    response->text.buffer.bytes = 0;
    response->text.failed = false;
    text_addf(&response->text, "{\"error\":{\"code\":\"%s\",\"message\":", name);
    json_text(&response->text, message);
    text_add(&response->text, "}}\n");
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
              row_learning(row, now) ? "true" : "false", kind_name(row->kind));
    if (info->leased) json_seconds(text, ",\"lease_expires_in\":", info->lease_end - now);
    text_add(text, "}");
}

static void handle_status(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    char filter[DOORMAN_ID_BYTES_MAX + 1] = "";
    query_read(request->query, "filter", filter, sizeof filter);
    snapshot_take(&snapshot, service, filter, ROWS_MAX);
    response->type = "application/json";
    text_add(text, "{\"node\":");
    json_text(text, service->node);
    text_add(text, ",\"id\":");
    json_text(text, service->id);
    text_addf(text, ",\"version\":\"%s\",\"is_master\":%s,\"master_address\":", DOORMAN_VERSION,
              snapshot.is_master ? "true" : "false");
    if (snapshot.master[0]) {
        json_text(text, snapshot.master);
    } else {
        text_add(text, "null");
    }
    text_add(text, ",\"resources\":[");
    for (size_t i = 0; i < snapshot.row_count; i++) {
        if (i) text_add(text, ",\n");
        json_resource(text, &snapshot.rows[i], snapshot.now);
    }
    text_add(text, "]}\n");
    text->failed = text->failed || snapshot.failed;
    snapshot_uninit(&snapshot);
}

static void json_parameter(struct text *text, const char *name, double value) {
    text_addf(text, "{\"name\":\"%s\",\"value\":", name);
    json_number(text, value);
    text_add(text, "},");
}

static void json_algorithm(struct text *text, const doorman_algorithm *algorithm) {
    const double second = (double)DOORMAN_SECOND;
    text_addf(text, ",\"algorithm\":{\"kind\":\"%s\"", kind_name(algorithm->kind));
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

/* Writes one template in the format of a configuration file.
 *   rule   escape_json for a glob, escape_glob for a resource id */
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

static bool json_add_template(void *context, const doorman_server_resource *info) {
    struct text *text = (struct text *)context;
    if (text->buffer.bytes > 0 && text->buffer.text[text->buffer.bytes - 1] == '}') {
        text_add(text, ",");
    }
    json_template(text, info->settings, info->resource_id, escape_glob);
    return true;
}

/* Writes the templates of the configuration; for a node with a parent, one template for each
 * resource. Precondition: the lock is held. */
static void json_templates(struct text *text, struct service *service) {
    size_t count = 0;
    const doorman_template *templates = NULL;
    if (service->config) templates = doorman_config_templates(service->config, &count);
    for (size_t i = 0; i < count; i++) {
        if (i) text_add(text, ",");
        json_template(text, &templates[i], templates[i].identifier_glob, escape_json);
    }
    if (!service->config) service_for_each_resource(service, json_add_template, text);
}

static void handle_config(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    (void)request;
    response->type = "application/json";
    pthread_mutex_lock(&service->lock);
    bool rejects = service->config && service->config->reject_unmatched;
    text_addf(text, "{%s\"resources\":[", rejects ? "\"unmatched\":\"reject\"," : "");
    json_templates(text, service);
    pthread_mutex_unlock(&service->lock);
    text_add(text, "]}\n");
}

static void handle_health(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    (void)service;
    (void)request;
    text_add(&response->text, "ok\n");
}

/* Ready means that this process can answer requests, or redirect them to the master. */
static void handle_ready(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct snapshot snapshot = {.now = 0};
    (void)request;
    pthread_mutex_lock(&service->lock);
    snapshot_find_master(&snapshot, service);
    pthread_mutex_unlock(&service->lock);
    bool ready = !snapshot.stopping && (snapshot.is_master || snapshot.master[0]);
    if (!ready) response->code = 503;
    text_add(&response->text, ready               ? "ready\n"
                              : snapshot.stopping ? "stopping\n"
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

/* Removes the method's key from a response, {"METHOD":RESPONSE}. An error keeps its own key, and
 * without a method the response stays unchanged. */
static void response_unwrap(struct text *text, const doorman_buffer *response, const char *method,
                            doorman_status status) {
    size_t around = method ? strlen(method) + 4 : 0;
    if (method && status == DOORMAN_OK && response->bytes > around) {
        text_add_bytes(text, response->text + around, response->bytes - around - 1);
    } else {
        text_add_bytes(text, response->text, response->bytes);
    }
    text_add(text, "\n");
}

/* If the path names a method, the bodies of the request and of the response are the inner objects.
 * With the path /v1 they are whole messages, as in every other transport. */
static void handle_method(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    const char *method = strcmp(request->path, "/v1") == 0 ? NULL : request->path + strlen("/v1/");
    struct text wrapped = {.failed = false};
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    if (method) text_addf(&wrapped, "{\"%s\":", method);
    text_add_bytes(&wrapped, request->body, request->body_bytes);
    if (method) text_add(&wrapped, "}");
    if (wrapped.failed) {
        response->text.failed = true;
    } else {
        doorman_status status =
            service_handle(service, &exchange, wrapped.buffer.text, wrapped.buffer.bytes);
        response->code = status_code(status);
        response->type = "application/json";
        response_unwrap(&response->text, &exchange.reply, method, status);
        response->text.failed = response->text.failed || exchange.reply.bytes == 0;
    }
    doorman_json_exchange_uninit(&exchange);
    doorman_buffer_uninit(&wrapped.buffer);
}

/* ---- >>http --------------------------------------------------------------------------------- */
/* nng has an HTTP server, but it waits without a timeout for the rest of a request, limits neither
 * the number of connections nor the size of a head, and reads a body before it checks the sender.
 * So this section uses only nng's streams, which support TLS.
 *
 * A connection (struct http_connection) has one aio, so that it does one thing at a time:
 *
 *     state      meaning                      event                           next state
 *     FREE       not in use                   the server accepts a connection RECEIVING
 *     RECEIVING  a request comes in           it is complete, or refused      SENDING
 *                                             timeout, or a disconnect        FREE
 *     SENDING    the response goes out        it is sent                      RECEIVING, DRAINING,
 *                                                                             FREE
 *                                             timeout, or a disconnect        FREE
 *     DRAINING   the rest of the body of a    it has been read, timeout, or   FREE
 *                refused request comes in     a disconnect
 *
 * The server checks a request as soon as its head is complete (V3). The Host must be known, so that
 *    a web page cannot reach a server on its reader's machine through a DNS name of its own. The
 *    token must be right. A POST must have a Content-Type that HTML forms cannot send. There are no
 *    CORS headers.
 * When all connections are in use (V5), the server closes the one that has waited longest for its
 *    request. A request must arrive within HTTP_TIMEOUT_SECONDS, and its response must leave within
 *    HTTP_TIMEOUT_SECONDS. */
#define HTTP_TIMEOUT_SECONDS 30
#define HTTP_DRAIN_SECONDS 2
#define READ_BYTES ((size_t)16 << 10) /* for one read; also the maximum size of a head */
#define HTTP_BUFFER_MAX ((size_t)64 << 10)

#define HTTP_CONNECTION_MAX 256
#define TOKEN_BYTES_MAX 512

enum http_connection_state {
    CONNECTION_FREE,
    CONNECTION_RECEIVING,
    CONNECTION_SENDING,
    CONNECTION_DRAINING
};

struct http_connection {
    struct service *service;
    nng_stream *stream;
    nng_aio *aio;
    enum http_connection_state state; /* the lock of HTTP guards state and deadline */
    doorman_time deadline;
    char *in;                           /* bytes received */
    size_t in_bytes, in_capacity, used; /* used: bytes of the request that was answered */
    struct text out;                    /* bytes to send */
    size_t sent;                        /* how many of them have been sent */
    bool last, is_head;                 /* close after the response; it has no body */
    size_t body_left;                   /* bytes of a refused body to read before closing, so that
                                           the peer can read the response */
};

struct http {
    pthread_mutex_t lock;
    char address[320];               /* "http://HOST:PORT"; "": HTTP does not listen */
    char token[TOKEN_BYTES_MAX + 1]; /* "": none */
    nng_stream_listener *listener;
    nng_aio *aio; /* for accepting connections */
    bool accepting, stopping;
    struct http_connection connections[HTTP_CONNECTION_MAX];
};

static void http_accept(struct http *http);

/* Reads a field of the head.
 *   out       the first value, without the spaces around it
 *   returns   how often the field occurs; 2 or more also if a value does not fit in `room` */
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

/* Reads the host of "SCHEME://HOST:PORT/PATH", in which only the host is required. */
static void host_read(const char *address, char *out, size_t room) {
    const char *scheme = strstr(address, "://");
    const char *host = scheme ? scheme + 3 : address;
    size_t bytes = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    snprintf(out, room, "%.*s", (int)(bytes < room ? bytes : room - 1), host);
}

/* Whether the host is an IP address, which needs no DNS. */
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

/* Known hosts: loopback, the host of --http, and the host of --advertise. If HTTP listens on all
 * addresses, every IP address is known too, but no other name. */
static bool host_known(const struct service *service, const char *given) {
    char host[256], listening[256], advertised[256];
    host_read(given, host, sizeof host);
    host_read(service->http->address, listening, sizeof listening);
    host_read(service->advertise, advertised, sizeof advertised);
    return host_loopback(host) || strcasecmp(host, listening) == 0 ||
           (!host_wildcard(advertised) && strcasecmp(host, advertised) == 0) ||
           (host_wildcard(listening) && host_numeric(host));
}

/* Takes constant time for a given length, so that the duration does not reveal the first wrong
 * byte. */
static bool token_equal(const char *token, const char *given, size_t bytes) {
    size_t token_bytes = strlen(token);
    unsigned different = token_bytes != bytes;
    for (size_t i = 0; i < token_bytes; i++) {
        different |= (unsigned char)token[i] ^ (unsigned char)given[i < bytes ? i : 0];
    }
    return different == 0;
}

/* Programs send "Bearer TOKEN". A browser prompts its user, and sends "Basic" with the token as the
 * password and any user name. */
static bool token_valid(const char *token, const char *head) {
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
    bool open; /* needs no token or Host: for the health checks of supervisors */
    void (*handle)(struct service *service, const struct http_request *request,
                   struct http_response *response);
} routes[] = {
    {"/", false, handle_page},
    {"/resources", false, handle_leases},
    {"/metrics", false, handle_metrics},
    {"/healthz", true, handle_health},
    {"/readyz", true, handle_ready},
    {"/v1/status", false, handle_status},
    {"/v1/config", false, handle_config},
};

static const struct route *route_find(const char *path) {
    const struct route *found = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) == 0) found = &routes[i];
    }
    return found;
}

/* Whether the path accepts messages of the protocol: /v1, or /v1/ and the name of a method. */
static bool path_is_method(const char *path) {
    bool found = strcmp(path, "/v1") == 0;
    for (int i = 0; strncmp(path, "/v1/", 4) == 0 && i < MESSAGE_UNKNOWN; i++) {
        found = found || strcmp(path + 4, message_names[i]) == 0;
    }
    return found;
}

static bool type_is_json(const char *head) {
    char type[128];
    if (head_read(head, "Content-Type", type, sizeof type) != 1) return false;
    type[strcspn(type, "; \t")] = 0;
    return strcasecmp(type, "application/json") == 0;
}

/* Checks the path, the verb and the type of the body. Returns false, with an error in the reply, if
 * the request is refused. */
static bool http_request_check(const struct http_request *request, struct http_response *response) {
    bool method = path_is_method(request->path);
    bool post = strcmp(request->verb, "POST") == 0;
    bool get = strcmp(request->verb, "GET") == 0 || strcmp(request->verb, "HEAD") == 0;
    if (!request->route && !method) {
        http_response_set_error(response, 404, "NOT_FOUND", "this path does not exist");
    } else if (method ? !post : !get) {
        http_response_set_error(response, 405, "INVALID_ARGUMENT",
                                method ? "methods of the protocol need POST"
                                       : "this path needs GET or HEAD");
        response->more = method ? "Allow: POST\r\n" : "Allow: GET, HEAD\r\n";
    } else if (post && !type_is_json(request->head)) {
        http_response_set_error(response, 415, "UNSUPPORTED_MEDIA_TYPE",
                                "the body must be of Content-Type application/json");
    }
    return response->code == 200;
}

/* Checks the Host and the token, then the path. With a token, a GET may have any Host, because the
 * token already protects what it reads, and proxies and Prometheus may use other names for the
 * server. Returns false, with an error in the reply, if the request is refused. */
static bool http_request_allowed(const struct service *service, const struct http_request *request,
                                 struct http_response *response) {
    const char *token = service->http->token;
    bool open = request->route && request->route->open;
    bool by_host = !token[0] || strcmp(request->verb, "POST") == 0;
    char host[256];
    if (open) return http_request_check(request, response);
    int hosts = head_read(request->head, "Host", host, sizeof host);
    if (by_host && (hosts != 1 || !host_known(service, host))) {
        http_response_set_error(
            response, 403, "PERMISSION_DENIED",
            "the Host is unknown: use a loopback name, or the host of --http or "
            "--advertise");
    } else if (token[0] && !token_valid(token, request->head)) {
        http_response_set_error(response, 401, "UNAUTHENTICATED", "the token is missing or wrong");
        response->more = "WWW-Authenticate: Basic realm=\"doorman\", charset=\"UTF-8\"\r\n";
    }
    return response->code == 200 && http_request_check(request, response);
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

/* Writes head and body of a response to connection->out. */
static void connection_format_response(struct http_connection *connection,
                                       struct http_response *response) {
    struct text *out = &connection->out;
    if (response->text.failed) http_response_set_error(response, 500, "INTERNAL", "out of memory");
    out->buffer.bytes = 0;
    text_addf(out,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: %s\r\n"
              "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
              "Referrer-Policy: no-referrer\r\n%s",
              response->code, code_reason(response->code), response->type,
              response->text.buffer.bytes, connection->last ? "close" : "keep-alive",
              response->more);
    text_addf(out,
              "Content-Security-Policy: default-src 'none'; style-src 'nonce-%s'; "
              "script-src 'nonce-%s'; connect-src 'self'; img-src data:; form-action 'self'; "
              "base-uri 'none'; frame-ancestors 'none'\r\n\r\n",
              response->nonce, response->nonce);
    if (!connection->is_head) {
        text_add_bytes(out, response->text.buffer.text, response->text.buffer.bytes);
    }
}

/* Starts to send or to receive, until the deadline. nng then calls connection_step. */
static void connection_start_io(struct http_connection *connection, bool sending) {
    doorman_time left = connection->deadline - doorman_clock();
    nng_aio_set_timeout(connection->aio, left > 0 ? (nng_duration)(left / 1000000 + 1) : 1);
    if (sending) {
        nng_iov iov = {connection->out.buffer.text + connection->sent,
                       connection->out.buffer.bytes - connection->sent};
        nng_aio_set_iov(connection->aio, 1, &iov);
        nng_stream_send(connection->stream, connection->aio);
    } else {
        nng_iov iov = {connection->in + connection->in_bytes,
                       connection->in_capacity - connection->in_bytes};
        nng_aio_set_iov(connection->aio, 1, &iov);
        nng_stream_recv(connection->stream, connection->aio);
    }
}

static void connection_set_state(struct http_connection *connection,
                                 enum http_connection_state state) {
    struct http *http = connection->service->http;
    int seconds = state == CONNECTION_DRAINING ? HTTP_DRAIN_SECONDS : HTTP_TIMEOUT_SECONDS;
    pthread_mutex_lock(&http->lock);
    connection->state = state;
    connection->deadline = doorman_clock() + seconds * DOORMAN_SECOND;
    pthread_mutex_unlock(&http->lock);
}

static void connection_free_buffers(struct http_connection *connection) {
    doorman_buffer_uninit(&connection->out.buffer);
    connection->out.failed = false;
    if (connection->in_capacity > HTTP_BUFFER_MAX) {
        free(connection->in);
        connection->in = NULL;
        connection->in_capacity = 0;
    }
}

static void connection_close(struct http_connection *connection) {
    struct http *http = connection->service->http;
    nng_stream_free(connection->stream);
    connection->stream = NULL;
    connection->in_bytes = 0;
    connection_free_buffers(connection);
    connection_set_state(connection, CONNECTION_FREE);
    http_accept(http);
}

/* Makes room for the next read. Memory grows with the bytes received, not with Content-Length. */
static bool connection_reserve(struct http_connection *connection) {
    bool done = true;
    if (connection->in_capacity - connection->in_bytes < READ_BYTES) {
        size_t capacity = connection->in_capacity * 2 + READ_BYTES + 1;
        char *in = (char *)realloc(connection->in, capacity);
        done = in != NULL;
        if (done) connection->in = in;
        if (done) connection->in_capacity = capacity;
    }
    return done;
}

static void connection_receive(struct http_connection *connection) {
    if (connection_reserve(connection)) {
        connection_start_io(connection, false);
    } else {
        connection_close(connection);
    }
}

/* Sends a reply, and frees its memory. */
static void connection_respond(struct http_connection *connection, struct http_response *response) {
    connection_format_response(connection, response);
    doorman_buffer_uninit(&response->text.buffer);
    connection->sent = 0;
    connection_set_state(connection, CONNECTION_SENDING);
    if (connection->out.failed) {
        connection_close(connection);
    } else {
        connection_start_io(connection, true);
    }
}

/* Fills at most 256 bytes with random bits of the system. */
static bool random_bits(void *out, size_t bytes) { return getentropy(out, bytes) == 0; }

static struct http_response http_response_init(void) {
    struct http_response response = {.code = 200, .type = "text/plain; charset=utf-8", .more = ""};
    uint64_t random[2] = {0};
    (void)random_bits(random, sizeof random);
    snprintf(response.nonce, sizeof response.nonce, "%016" PRIx64 "%016" PRIx64, random[0],
             random[1]);
    return response;
}

/* Refuses a request, and discards the rest of it.
 *   rest   bytes still to come; SIZE_MAX: unknown */
static void connection_refuse(struct http_connection *connection, size_t body_left, int code,
                              const char *name, const char *message) {
    struct http_response response = http_response_init();
    connection->last = true;
    connection->body_left = body_left;
    connection->is_head = false;
    http_response_set_error(&response, code, name, message);
    connection_respond(connection, &response);
}

/* The size of the body in bytes; 0 without Content-Length. SIZE_MAX: Content-Length is invalid, or
 * the body has a Transfer-Encoding, which this server does not support. */
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

/* Splits the first line of the head, "VERB /path?query HTTP/1.1", in place. Returns false if it is
 * invalid. */
static bool http_request_parse(struct http_request *request, char *line) {
    char *path = strchr(line, ' ');
    char *version = path ? strchr(path + 1, ' ') : NULL;
    if (!version || path[1] != '/' || strncmp(version, " HTTP/1.", 8) != 0) return false;
    *path++ = 0;
    *version++ = 0;
    request->version = version;
    char *query = strchr(path, '?');
    if (query) *query++ = 0;
    request->verb = line;
    request->path = path;
    request->query = query ? query : "";
    request->route = route_find(path);
    return true;
}

/* Whether to close the connection after the response: with HTTP/1.0, or if the peer asks for it. */
static bool http_request_is_last(const struct http_request *request) {
    char value[64];
    head_read(request->head, "Connection", value, sizeof value);
    return strcmp(request->version, "HTTP/1.0") == 0 || strcasestr(value, "close");
}

/* Handles a request whose head is complete. Refuses it at once if possible; otherwise it waits for
 * the body, and then answers. */
static void connection_handle(struct http_connection *connection, struct http_request *request,
                              size_t head_bytes) {
    char value[32];
    struct http_response response = http_response_init();
    size_t length = head_length(request->head), received = connection->in_bytes - head_bytes;
    size_t body_left = length == SIZE_MAX || length > received ? length - received : 0;
    bool has_length = head_read(request->head, "Content-Length", value, sizeof value) > 0;
    connection->last = http_request_is_last(request);
    connection->is_head = strcmp(request->verb, "HEAD") == 0;
    if (!http_request_allowed(connection->service, request, &response)) {
        connection->last = true;
        connection->body_left = body_left;
        connection_respond(connection, &response);
    } else if (length == SIZE_MAX || (!has_length && strcmp(request->verb, "POST") == 0)) {
        connection_refuse(connection, body_left, has_length ? 400 : 411, "INVALID_ARGUMENT",
                          "a body needs exactly one Content-Length, a number");
    } else if (length > connection->service->settings->message_max) {
        connection_refuse(connection, body_left, 413, "RESOURCE_EXHAUSTED",
                          "the message is larger than --max-message");
    } else if (body_left > 0) {
        connection_receive(connection);
    } else {
        connection->used = head_bytes + length;
        request->body = connection->in + head_bytes;
        request->body_bytes = length;
        (request->route ? request->route->handle : handle_method)(connection->service, request,
                                                                  &response);
        connection_respond(connection, &response);
    }
}

/* Checks whether the head, which ends with an empty line, is complete. */
static void connection_parse(struct http_connection *connection) {
    char head[READ_BYTES + 1], line[READ_BYTES + 1];
    struct http_request request = {.head = head};
    char *end = (char *)memmem(connection->in, connection->in_bytes, "\r\n\r\n", 4);
    size_t bytes = end ? (size_t)(end - connection->in) + 4 : connection->in_bytes;
    if (bytes > READ_BYTES) {
        connection_refuse(connection, SIZE_MAX, 431, "RESOURCE_EXHAUSTED",
                          "the head is longer than 16 KiB");
    } else if (!end) {
        connection_receive(connection);
    } else {
        memcpy(head, connection->in, bytes);
        head[bytes - 2] = 0;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(head, "\r"), head);
        if (strlen(head) == bytes - 2 && http_request_parse(&request, line)) {
            connection_handle(connection, &request, bytes);
        } else {
            connection_refuse(connection, SIZE_MAX, 400, "INVALID_ARGUMENT",
                              "this is not an HTTP/1.1 request");
        }
    }
}

/* Called when the response is sent. The next request may have been received already. */
static void connection_on_sent(struct http_connection *connection) {
    if (connection->body_left > 0) {
        connection->in_bytes = 0;
        connection_set_state(connection, CONNECTION_DRAINING);
        connection_receive(connection);
    } else if (connection->last) {
        connection_close(connection);
    } else {
        connection->in_bytes -= connection->used;
        memmove(connection->in, connection->in + connection->used, connection->in_bytes);
        connection->used = 0;
        connection_free_buffers(connection);
        connection_set_state(connection, CONNECTION_RECEIVING);
        if (connection->in_bytes > 0) {
            connection_parse(connection);
        } else {
            connection_receive(connection);
        }
    }
}

/* nng calls this when bytes have been received or sent, and after an error or a timeout. */
static void connection_step(void *argument) {
    struct http_connection *connection = (struct http_connection *)argument;
    size_t count = nng_aio_count(connection->aio);
    if (nng_aio_result(connection->aio) != 0) {
        connection_close(connection);
    } else if (connection->state == CONNECTION_DRAINING && count >= connection->body_left) {
        connection_close(connection);
    } else if (connection->state == CONNECTION_DRAINING) {
        connection->body_left -= count;
        connection_start_io(connection, false);
    } else if (connection->state == CONNECTION_RECEIVING) {
        connection->in_bytes += count;
        connection_parse(connection);
    } else if ((connection->sent += count) < connection->out.buffer.bytes) {
        connection_start_io(connection, true);
    } else {
        connection_on_sent(connection);
    }
}

/* If all connections are in use, closes the one with the nearest deadline. A connection that sends
 * a response is closed only if all others send one too. Precondition: the lock is held. So no
 * connection changes its state here, and the cancelled operation is the one of that state.
 *   newest   stays open */
static void http_make_room(struct http *http, const struct http_connection *newest) {
    struct http_connection *chosen = NULL;
    for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
        struct http_connection *connection = &http->connections[i];
        bool writes = connection->state == CONNECTION_SENDING;
        if (connection->state == CONNECTION_FREE) return;
        if (connection == newest) continue;
        bool better = !chosen || writes < (chosen->state == CONNECTION_SENDING);
        bool same = chosen && writes == (chosen->state == CONNECTION_SENDING);
        if (better || (same && connection->deadline < chosen->deadline)) chosen = connection;
    }
    if (chosen) nng_aio_cancel(chosen->aio);
}

/* Starts to accept a connection, if one is free and no accept is in progress. */
static void http_accept(struct http *http) {
    bool accepts = false;
    pthread_mutex_lock(&http->lock);
    for (size_t i = 0; i < HTTP_CONNECTION_MAX && !http->accepting && !http->stopping; i++) {
        accepts = accepts || http->connections[i].state == CONNECTION_FREE;
    }
    http->accepting = http->accepting || accepts;
    pthread_mutex_unlock(&http->lock);
    if (accepts) nng_stream_listener_accept(http->listener, http->aio);
}

static struct http_connection *http_open_connection(struct http *http, nng_stream *stream) {
    struct http_connection *connection = http->connections;
    pthread_mutex_lock(&http->lock);
    while (connection->state != CONNECTION_FREE) connection++;
    connection->stream = stream;
    connection->state = CONNECTION_RECEIVING;
    connection->deadline = doorman_clock() + HTTP_TIMEOUT_SECONDS * DOORMAN_SECOND;
    connection->last = connection->is_head = false;
    connection->sent = connection->used = connection->body_left = 0;
    http->accepting = false;
    http_make_room(http, connection);
    pthread_mutex_unlock(&http->lock);
    return connection;
}

/* nng calls this when it has accepted a connection, or could not. After an error, such as too many
 * open files, it waits 10 ms before the next try: other connections may close. */
static void http_step(void *argument) {
    struct http *http = (struct http *)argument;
    int result = nng_aio_result(http->aio);
    if (result == 0) {
        nng_stream *stream = (nng_stream *)nng_aio_get_output(http->aio, 0);
        connection_receive(http_open_connection(http, stream));
    } else {
        pthread_mutex_lock(&http->lock);
        http->accepting = false;
        http->stopping = http->stopping || result == NNG_ECLOSED || result == NNG_ECANCELED;
        pthread_mutex_unlock(&http->lock);
        nng_msleep(10);
    }
    http_accept(http);
}

/* Reads the first word of a file. */
static enum exit_status http_load_token(struct http *http, const char *path) {
    enum exit_status exit_status = CONTINUE;
    FILE *file = fopen(path, "rb");
    char line[TOKEN_BYTES_MAX + 2] = "";
    if (!file) {
        exit_status = fatal_error(EXIT_ERROR, "--http-token %s: %s", path, strerror(errno));
    } else {
        line[fread(line, 1, sizeof line - 1, file)] = 0;
        fclose(file);
        char *first = line + strspn(line, " \t\r\n");
        first[strcspn(first, " \t\r\n")] = 0;
        if (!*first || strlen(line) > TOKEN_BYTES_MAX) {
            exit_status =
                fatal_error(EXIT_ERROR, "--http-token %s: must hold a token of 1 to %d bytes", path,
                            TOKEN_BYTES_MAX);
        }
        snprintf(http->token, sizeof http->token, "%.*s", TOKEN_BYTES_MAX, first);
    }
    return exit_status;
}

/* An address that is not loopback needs a token or client certificates. */
static enum exit_status http_check(const struct service *service) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    char host[256];
    host_read(settings->http, host, sizeof host);
    bool is_remote = !host_loopback(host);
    bool needs_certificate = service->tls && settings->tls_ca;
    if (is_remote && !settings->http_token && !needs_certificate) {
        exit_status =
            fatal_error(EXIT_USAGE,
                        "--http %s can be reached from other machines: give --http-token, "
                        "--tls-ca, or a loopback address",
                        settings->http);
    } else if (is_remote && !service->tls) {
        log_event(settings, LEVEL_WARNING, "the HTTP token travels in plain text: give --tls-cert",
                  "http", settings->http, LOG_END);
    }
    return exit_status;
}

/* Returns 0 or an error of nng. Sets http->address, in which a port of 0 has become a real one. */
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

/* If the default address is in use, the server continues without HTTP and logs a warning. So a
 * second server on one machine starts without extra flags. */
static enum exit_status http_listen_error(struct service *service, int error) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    if (error == NNG_EADDRINUSE && !settings->given[FLAG_HTTP]) {
        log_event(settings, LEVEL_WARNING,
                  "HTTP is off, because its address is in use; give --http, or --http off", "http",
                  settings->http, LOG_END);
    } else if (error == NNG_EADDRINVAL || error == NNG_EINVAL) {
        exit_status = fatal_error(
            EXIT_USAGE, "cannot listen on --http '%s': %s; an address is, for example, %s",
            settings->http, nng_strerror(error), HTTP_DEFAULT);
    } else {
        exit_status = fatal_error(
            EXIT_ERROR, "cannot listen on --http %s: %s; give another address, or --http off",
            settings->http, nng_strerror(error));
    }
    return exit_status;
}

static enum exit_status http_start_connections(struct service *service) {
    struct http *http = service->http;
    int error = nng_aio_alloc(&http->aio, http_step, http);
    for (size_t i = 0; error == 0 && i < HTTP_CONNECTION_MAX; i++) {
        http->connections[i].service = service;
        error = nng_aio_alloc(&http->connections[i].aio, connection_step, &http->connections[i]);
    }
    if (error == 0) http_accept(http);
    return error == 0 ? CONTINUE
                      : fatal_error(EXIT_ERROR, "cannot serve HTTP: %s", nng_strerror(error));
}

static enum exit_status http_start(struct service *service) {
    const char *token = service->settings->http_token;
    enum exit_status exit_status = http_check(service);
    struct http *http = (struct http *)calloc(1, sizeof *http);
    struct history *history = (struct history *)calloc(1, sizeof *history);
    service->http = http;
    service->history = history;
    if (exit_status == CONTINUE &&
        (!http || !history || pthread_mutex_init(&http->lock, NULL) != 0 ||
         pthread_mutex_init(&history->lock, NULL) != 0)) {
        exit_status = fatal_error(EXIT_ERROR, "out of memory");
    }
    if (exit_status == CONTINUE && token) exit_status = http_load_token(http, token);
    if (exit_status == CONTINUE) {
        int error = http_listen(service);
        exit_status =
            error == 0 ? http_start_connections(service) : http_listen_error(service, error);
    }
    return exit_status;
}

/* Works after an incomplete start too. nng_aio_stop waits for the end of the aio's callback. */
static void http_stop(struct service *service) {
    struct http *http = service->http;
    if (http) {
        pthread_mutex_lock(&http->lock);
        http->stopping = true;
        pthread_mutex_unlock(&http->lock);
        if (http->listener) nng_stream_listener_close(http->listener);
        nng_aio_stop(http->aio);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) nng_aio_stop(http->connections[i].aio);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
            struct http_connection *connection = &http->connections[i];
            nng_stream_free(connection->stream);
            nng_aio_free(connection->aio);
            doorman_buffer_uninit(&connection->out.buffer);
            free(connection->in);
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
/* All listeners share one TLS configuration. With --tls-ca, a peer must have a certificate that the
 * authority has signed; nng checks it before it reports the connection. The link to the parent uses
 * the same files, and the authority must have signed the parent's certificate. */

#define PEM_BYTES_MAX ((size_t)1 << 20)

/* Reads a file. path: NULL if the flag is not given, then *out is NULL. */
static enum exit_status pem_load(char **out, int flag, const char *path) {
    enum exit_status exit_status = CONTINUE;
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = path ? (char *)calloc(1, PEM_BYTES_MAX) : NULL;
    if (path && !text) {
        exit_status = fatal_error(EXIT_ERROR, "out of memory");
    } else if (path && (!file || (fread(text, 1, PEM_BYTES_MAX - 1, file) == 0))) {
        exit_status = fatal_error(EXIT_ERROR, "--%s %s: %s", flags[flag].name, path,
                                  file ? "is empty, or cannot be read" : strerror(errno));
    }
    if (file) fclose(file);
    *out = text;
    return exit_status;
}

/* Makes a TLS configuration, in which nng checks the certificates. In client mode it is only used
 * for this check, because the transport makes its own. */
static enum exit_status tls_create(nng_tls_config **out, nng_tls_mode mode,
                                   const struct service *service) {
    const struct pem *pem = &service->pem;
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    int error = nng_tls_config_alloc(out, mode);
    if (error != 0) {
        exit_status =
            fatal_error(EXIT_USAGE, "TLS is not available: %s; libnng was built without TLS",
                        nng_strerror(error));
    }
    if (exit_status == CONTINUE && pem->certificate) {
        error = nng_tls_config_own_cert(*out, pem->certificate, pem->key, NULL);
        if (error != 0) {
            exit_status = fatal_error(EXIT_ERROR,
                                      "--tls-cert %s, --tls-key %s: %s; they must be a certificate "
                                      "and its key, in PEM",
                                      settings->tls_cert, settings->tls_key, nng_strerror(error));
        }
    }
    if (exit_status == CONTINUE && pem->authority) {
        error = nng_tls_config_ca_chain(*out, pem->authority, NULL);
        if (error == 0) error = nng_tls_config_auth_mode(*out, NNG_TLS_AUTH_MODE_REQUIRED);
        if (error != 0) {
            exit_status =
                fatal_error(EXIT_ERROR, "--tls-ca %s: %s; it must hold certificates, in PEM",
                            settings->tls_ca, nng_strerror(error));
        }
    }
    return exit_status;
}

static enum exit_status tls_start(struct service *service) {
    const struct settings *settings = service->settings;
    struct pem *pem = &service->pem;
    enum exit_status exit_status = pem_load(&pem->certificate, FLAG_TLS_CERT, settings->tls_cert);
    if (exit_status == CONTINUE) exit_status = pem_load(&pem->key, FLAG_TLS_KEY, settings->tls_key);
    if (exit_status == CONTINUE) {
        exit_status = pem_load(&pem->authority, FLAG_TLS_CA, settings->tls_ca);
    }
    if (exit_status == CONTINUE && pem->certificate) {
        exit_status = tls_create(&service->tls, NNG_TLS_MODE_SERVER, service);
    } else if (exit_status == CONTINUE && pem->authority) {
        nng_tls_config *client = NULL;
        exit_status = tls_create(&client, NNG_TLS_MODE_CLIENT, service);
        if (client) nng_tls_config_free(client);
    }
    return exit_status;
}

static void tls_stop(struct service *service) {
    if (service->tls) nng_tls_config_free(service->tls);
    free(service->pem.certificate);
    free(service->pem.key);
    free(service->pem.authority);
}

/* ---- >>sockets ------------------------------------------------------------------------------ */

/* Starts to listen, and stores the bound address. Keepalive closes connections whose peers
 * vanished, for example after a power failure. Not all transports have it, so its error is
 * ignored. */
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

/* nng's protocol has no authentication, so an address beyond loopback should use TLS. */
static void service_warn_about_listener(const struct service *service, const char *url) {
    char host[256];
    host_read(url, host, sizeof host);
    bool is_remote = strncmp(url, "tcp", 3) == 0 || strncmp(url, "ws", 2) == 0;
    if (is_remote && !host_loopback(host)) {
        log_event(service->settings, LEVEL_WARNING,
                  "this address can be reached from other machines without TLS", "listen", url,
                  LOG_END);
    }
}

static enum exit_status service_listen_at(struct service *service, const char *url) {
    enum exit_status exit_status = CONTINUE;
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    int error = nng_listener_create(&listener, service->socket, url);
    bool tls = url_wants_tls(url);
    if (error == 0 && tls) {
        error = nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, service->tls);
    }
    if (error != 0) {
        exit_status =
            fatal_error(EXIT_USAGE, "cannot listen on '%s': %s; an address is, for example, %s",
                        url, nng_strerror(error), LISTEN_DEFAULT);
    } else if ((error = service_start_listener(service, listener)) != 0) {
        exit_status = fatal_error(EXIT_ERROR, "cannot listen on %s: %s; give another --listen", url,
                                  nng_strerror(error));
    } else if (!tls) {
        service_warn_about_listener(service, url);
    }
    return exit_status;
}

/* Counts the connections, and closes one above --max-connections. nng reports the end of a
 * connection that is closed here too, so every one that is added is also subtracted. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    struct service *service = (struct service *)argument;
    size_t maximum = service->settings->connection_max;
    if (event == NNG_PIPE_EV_REM_POST) {
        __atomic_sub_fetch(&service->connection_count, 1, __ATOMIC_RELAXED);
    } else if (__atomic_add_fetch(&service->connection_count, 1, __ATOMIC_RELAXED) > maximum &&
               maximum) {
        nng_pipe_close(pipe);
    }
}

/* Listens on all addresses with one socket. nng closes the connection of a peer that announces a
 * longer message than allowed, before it reads the message. The limit includes the request id of
 * nng, 4 bytes in front of each text. */
static enum exit_status service_listen(struct service *service) {
    const struct settings *settings = service->settings;
    const size_t bytes_max = sizeof(uint32_t) + settings->message_max;
    int error = nng_rep0_open(&service->socket);
    if (error == 0) error = nng_pipe_notify(service->socket, NNG_PIPE_EV_ADD_PRE, on_pipe, service);
    if (error == 0) {
        error = nng_pipe_notify(service->socket, NNG_PIPE_EV_REM_POST, on_pipe, service);
    }
    if (error == 0) error = nng_socket_set_size(service->socket, NNG_OPT_RECVMAXSZ, bytes_max);
    enum exit_status exit_status =
        error == 0 ? CONTINUE
                   : fatal_error(EXIT_ERROR, "cannot open a socket: %s", nng_strerror(error));
    for (size_t i = 0; exit_status == CONTINUE && i < settings->listen.count; i++) {
        exit_status = service_listen_at(service, settings->listen.items[i]);
    }
    return exit_status;
}

/* Each connection needs a file descriptor, and the default limit for a process is low. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Sets the names of this process. The default name of a node is its election key, because all
 * processes of the node share it (T5). */
static enum exit_status service_set_names(struct service *service) {
    const struct settings *settings = service->settings;
    const char *host = strstr(service->urls[0], "://");
    service->id = settings->id ? settings->id : host ? host + 3 : service->urls[0];
    service->node = settings->election_key ? settings->election_key : service->id;
    if (settings->node) service->node = settings->node;
    service->advertise = settings->advertise ? settings->advertise : service->urls[0];
    return settings->election_key && !address_is_reachable(service->advertise)
               ? fatal_error(
                     EXIT_USAGE,
                     "others cannot reach '%s': give --advertise with a host that they can reach",
                     service->advertise)
               : CONTINUE;
}

#define NAME_RULE "must be 1 to 256 bytes of UTF-8 without control characters"

/* Makes the server object. Without an election it is master from now on, without an end. */
static enum exit_status service_create_server(struct service *service) {
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
    doorman_error error = {""};
    doorman_status status = doorman_server_create(&service->server, &options, &error, now);
    enum exit_status exit_status = CONTINUE;
    if (status == DOORMAN_INVALID_ARGUMENT) {
        exit_status = fatal_error(EXIT_USAGE, "%s; the node is '%s'", error.text, service->node);
    } else if (status != DOORMAN_OK) {
        exit_status = fatal_error(EXIT_ERROR, "cannot serve: %s", error.text);
    } else if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        exit_status = fatal_error(EXIT_USAGE, "--advertise '%s': " NAME_RULE, service->advertise);
    } else if (service->settings->election_key) {
        mastership.address = NULL; /* the address was only checked; no master is known yet */
        doorman_server_set_master(service->server, &mastership, now);
    }
    return exit_status;
}

static enum exit_status service_start_workers(struct service *service) {
    int error = 0;
    for (size_t i = 0; error == 0 && i < WORKER_COUNT; i++) {
        struct worker *worker = &service->workers[i];
        worker->service = service;
        error = nng_aio_alloc(&worker->aio, worker_step, worker);
        if (error == 0) error = nng_ctx_open(&worker->context, service->socket);
        if (error == 0) worker_receive(worker);
    }
    return error == 0 ? CONTINUE : fatal_error(EXIT_ERROR, "cannot serve: %s", nng_strerror(error));
}

static void service_log_started(const struct service *service) {
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
    log_event(service->settings, LEVEL_INFO, "serving", "version", DOORMAN_VERSION, "http", http,
              "id", service->id, "node", service->node, "listen", addresses, "advertise",
              service->advertise, parents->count > 0 ? "parent" : "resources", source, LOG_END);
}

/* Returns the identity and version of a file. It follows symbolic links, so a path that names
 * another file after a rename or a changed link counts as changed. */
static struct file_version file_version_read(const char *path) {
    struct file_version file_version = {.device = 0};
    struct stat state;
    if (path && stat(path, &state) == 0) {
        file_version = (struct file_version){(uint64_t)state.st_dev, (uint64_t)state.st_ino,
                                             (int64_t)state.st_size, (int64_t)state.st_mtim.tv_sec,
                                             (int64_t)state.st_mtim.tv_nsec};
    }
    return file_version;
}

static enum exit_status service_load_config(struct service *service) {
    const struct settings *settings = service->settings;
    struct election *election = &service->election;
    enum exit_status exit_status = CONTINUE;
    doorman_error error;
    etcd_init(&election->etcd, settings);
    service->last_load.file_version =
        file_version_read(settings->config_key ? NULL : settings->config);
    if (settings->config &&
        !config_fetch(&service->config, settings, &election->etcd, election->revision, &error)) {
        exit_status = config_error(settings->config, &error);
    }
    service->last_load.loaded_at = time(NULL);
    return exit_status;
}

static enum exit_status service_start(struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    enum exit_status exit_status = service_load_config(service);
    if (exit_status == CONTINUE) {
        raise_file_limit();
        service->started_at = doorman_clock();
        exit_status = tls_start(service);
    }
    if (exit_status == CONTINUE) exit_status = service_listen(service);
    if (exit_status == CONTINUE) exit_status = service_set_names(service);
    for (size_t i = 0; exit_status == CONTINUE && i < parents->count; i++) {
        exit_status = parent_link_check_address(service, parents->items[i]);
    }
    if (exit_status == CONTINUE) exit_status = service_create_server(service);
    if (exit_status == CONTINUE && parents->count > 0) exit_status = parent_link_start(service);
    if (exit_status == CONTINUE) exit_status = service_start_workers(service);
    if (exit_status == CONTINUE && strcmp(service->settings->http, "off") != 0) {
        exit_status = http_start(service);
    }
    if (exit_status == CONTINUE) service_log_started(service);
    if (exit_status == CONTINUE && service->settings->etcd.count > 0) {
        exit_status = election_start(service);
    }
    return exit_status;
}

/* Works after an incomplete start too. nng_close ends the operations of the workers, and
 * nng_aio_free waits for the end of the callback. It does not call nng_fini: nng 1.5 closes TLS
 * connections in a thread of its own, and nng_fini frees memory that this thread still uses. */
static void service_stop(struct service *service) {
    http_stop(service);
    nng_close(service->socket);
    for (size_t i = 0; i < WORKER_COUNT; i++) {
        nng_aio_free(service->workers[i].aio);
        doorman_json_exchange_uninit(&service->workers[i].exchange);
    }
    for (size_t i = 0; i < service->url_count; i++) nng_strfree(service->urls[i]);
    parent_link_stop(service);
    election_stop(service);
    doorman_server_destroy(service->server);
    doorman_config_destroy(service->config);
    tls_stop(service);
}

/* ---- >>signals ------------------------------------------------------------------------------ */

/* Blocks the signals, which service_run waits for. Called before there is a second thread, because
 * threads inherit the mask. */
static void block_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Reads the file without the lock, so that requests do not wait. If the configuration is in etcd,
 * the thread of the election loads it. */
static void service_reload_config(struct service *service) {
    doorman_config *config = NULL;
    doorman_error error;
    if (service->settings->config_key) {
        pthread_mutex_lock(&service->lock);
        service->election.reload = true;
        pthread_cond_signal(&service->election.wake);
        pthread_mutex_unlock(&service->lock);
    } else {
        service->last_load.file_version = file_version_read(service->settings->config);
        config_load(&config, service->settings->config, &error);
        service_apply_config(service, config, &error);
    }
}

static void service_reload(struct service *service) {
    if (service->settings->config) {
        service_reload_config(service);
    } else {
        log_event(service->settings, LEVEL_INFO,
                  "there is nothing to load: this node gets its resources from the parent",
                  LOG_END);
    }
}

/* Reloads the configuration file if it has changed. A missing file may be in the middle of a
 * replacement, so the last configuration stays in force, without a warning. */
static void service_check_config_file(struct service *service) {
    struct file_version now = file_version_read(service->settings->config);
    const struct file_version *last = &service->last_load.file_version;
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

/* Returns free memory to the system. Otherwise glibc keeps it, because it lies between blocks in
 * use. malloc_trim takes tens of milliseconds, and other threads may have to wait for memory
 * meanwhile. So it runs only after TRIM_LEASES leases have ended, at most every TRIM_INTERVAL. It
 * then runs once more, for memory that is freed a little later, such as the history of the same
 * resources. */
static void service_trim(struct service *service, doorman_time now) {
#ifdef __GLIBC__
    pthread_mutex_lock(&service->lock);
    bool many = service->ended_lease_count >= TRIM_LEASES;
    bool due = (many || service->trim_again) && now >= service->trim_due;
    if (due) {
        service->trim_again = many;
        service->trim_due = now + TRIM_INTERVAL;
        service->ended_lease_count = 0;
    }
    pthread_mutex_unlock(&service->lock);
    if (due) malloc_trim(0);
#else
    (void)service, (void)now;
#endif
}

static void service_update(struct service *service) {
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    doorman_upstream *upstream = doorman_server_upstream(service->server);
    doorman_request none;
    bool is_root = service->settings->parents.count == 0; /* else the parent link does this */
    while (is_root && doorman_upstream_due(upstream) <= now) {
        (void)doorman_upstream_request(upstream, &none, now);
        if (doorman_upstream_due(upstream) <= now) service_yield(service);
    }
    for (int kind = 0; kind < WARNING_COUNT; kind++) {
        warning_log(service, kind, NULL, NULL, NULL, now);
    }
    pthread_mutex_unlock(&service->lock);
}

/* Ends the process if the shutdown hangs. nng_close can hang: if a peer vanished while a response
 * was on its way, nng 1.5 can lose the connection and wait for it forever. All requests have been
 * answered by then. A name lookup for etcd can hang too; then the election key ends with its lease.
 */
static void on_shutdown_timeout(int signal_number) {
    (void)signal_number;
    _exit(EXIT_OK);
}

/* The main loop. It wakes up every second, and does not compute a time to sleep, because any
 * request can make something due earlier. */
static void service_run(struct service *service, const sigset_t *signals) {
    const struct timespec second = {.tv_sec = 1};
    int got = 0;
    while (got != SIGTERM && got != SIGINT) {
        got = sigtimedwait(signals, NULL, &second);
        if (got == SIGHUP) service_reload(service);
        service_check_config_file(service);
        service_update(service);
        service_sample(service, doorman_clock());
        service_trim(service, doorman_clock());
    }
    log_event(service->settings, LEVEL_INFO, "stopping", "signal",
              got == SIGTERM ? "SIGTERM" : "SIGINT", LOG_END);
    pthread_mutex_lock(&service->lock);
    service->stopping = true;
    pthread_mutex_unlock(&service->lock);
    signal(SIGALRM, on_shutdown_timeout);
    alarm(RESIGN_TIMEOUT_SECONDS);
    election_stop(service);
    nng_msleep(STOPPING_MS);
    alarm(CLOSE_TIMEOUT_SECONDS);
}

/* ---- >>main --------------------------------------------------------------------------------- */

static enum exit_status serve(const struct settings *settings) {
    struct service service = {.settings = settings, .lock = PTHREAD_MUTEX_INITIALIZER};
    sigset_t signals;
    block_signals(&signals);
    enum exit_status exit_status = service_start(&service);
    if (exit_status == CONTINUE) {
        service_run(&service, &signals);
        exit_status = EXIT_OK;
    }
    service_stop(&service);
    return exit_status;
}

int main(int argc, char **argv) {
    struct settings settings = {.config = NULL};
    cJSON_InitHooks(&(cJSON_Hooks){arena_malloc, arena_free});
    enum exit_status exit_status = settings_read(&settings, argc, argv);
    if (exit_status == CONTINUE) {
        exit_status = settings.check_config ? check_config(&settings) : serve(&settings);
    }
    settings_uninit(&settings);
    if (fflush(stdout) != 0 && exit_status == EXIT_OK) {
        exit_status =
            fatal_error(EXIT_ERROR, "cannot write to standard output: %s", strerror(errno));
    }
    return (int)exit_status;
}
