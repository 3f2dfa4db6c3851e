/* doorman_server: a process that serves one node of a Doorman tree. It reads requests from sockets,
 * passes them to doorman.h, and sends the responses. doorman.h makes all decisions about capacity.
 *
 * Threads: nng calls server_worker_step on one of its threads. This thread also handles the
 * request, because passing it to another thread would cost more than the decision. One mutex guards
 * the server object. A thread of nng holds the mutex only for the decision, and reads and writes
 * JSON without it. The main thread waits for signals. Once a second it does the work that is due.
 * With --parent, one more thread does the work that is due for the link to the parent. Some parts
 * have threads too, for example for permits that wait, for pages and metrics, for the election and
 * the configuration in etcd (--etcd), for the store of counters (--state), and for probes
 * (--http-health).
 *
 * With --parent, the capacities come from the parent, so --config may only have limits of permits
 * (G8). When a node gets the first request for a resource, it requests the resource from its parent
 * at once (T4). All processes of a node use the name of the node in requests to the parent (T5).
 *
 * V1 The server reloads the configuration on SIGHUP, when the file changes or is replaced, and when
 *    the key of etcd, or the version in the store (`store:`), changes. It reloads certificates and
 *    tokens on SIGHUP and when their files change. It refuses what is invalid, and keeps what it
 *    has. If the configuration file is deleted, the server logs a warning and keeps the last
 *    configuration. On SIGTERM or SIGINT, the server finishes the requests in progress, gives up
 *    mastership, and ends (V7). With an election, >>election of doorman.h decides which server is
 *    master (V2).
 * V3 HTTP has a status page for people, metrics for Prometheus and JSON for programs. It also takes
 *    the messages of the protocol.
 * V4 Metrics follow the conventions of Prometheus.
 *    A message has at most 4 MiB (V5). A peer that sends invalid data, or disconnects in the middle
 *    of a message, does not affect other peers.
 * V6 The server writes log lines in logfmt to standard error. A warning that repeats is logged once
 *    a minute, with a count. Such a line describes the last event, but a line about permits
 *    describes the first event since the last line. A line about ended leases from the parent names
 *    their resources, and comes at most every 10 s. Refused messages have a line for each method.
 *    If two processes seem to use the same id, a line names it. At most 8 such ids at a time have a
 *    line each, and further ids share one line. No thread waits for the log. A line that cannot be
 *    written at once is lost and counted.
 * V7 The exit code is 0 for success, 1 for a failure, 2 for a usage error, and 3 if the server has
 *    stopped but the last changes are not in --state. A --state that cannot be used is a failure,
 *    also if its scheme is not known. One line on standard error says what is wrong and what to do.
 *    For a configuration, the lines before it list at most 20 errors, each with its line and
 *    column.
 * V8 With --state, counters of durable limits and bans are in a store, which is read before such
 *    limits decide, unless the reading takes longer than --state-wait. A thread writes changes once
 *    in each --state-interval. No decision waits for this thread. After SIGTERM only the counters
 *    of other limits are lost, and neither leases nor holds, unless the exit code is 3. A crash
 *    loses what is not written: usually the changes of the last interval, and of a write in
 *    progress.
 * P33 With --events, each decision, end of a wait, ban, lease, mastership, configuration and act of
 *    administration is an event with a number, for subscribers of an nng PUB socket. Of the grants,
 *    only a random sample are events. No decision waits until an event is sent. Events that are
 *    lost leave a gap in the numbers of the stream and in the numbers of their topic. The gap is
 *    never smaller than what was lost.
 *
 * The sections of this file: flags, parent link, sockets, signals, main. The files of server/core/
 * that it includes have the rest of the core: the log, the table of parts, the configuration, the
 * way of a message, and the workers. A function that can end the process returns an enum
 * exit_status: the exit code of the process, or CONTINUE.
 *
 * This file alone is enough for a node of a tree: cc doorman_server.c -lnng -lcjson -pthread. The
 * build adds the parts in the other folders of server/. A part registers itself: see
 * server/core/part.h. `make HTTP=0 ETCD=0 TLS=0 STATE=0` leaves out most of them. A folder uses
 * only the folders above it in this list, and `make lint` checks that:
 *
 *     server/core/      the core, and server/server.h, which all files include
 *     server/util/      hosts in addresses, base64, password files
 *     server/config/    how configurations differ, and those that come over HTTP
 *     server/log/       log lines about events, messages, configurations and learning (V6)
 *     server/process/   checks before the start, files that change, systemd, memory, replacement
 *     server/tls/       certificates
 *     server/etcd/      the election, and the configuration in a key of etcd
 *     server/store/     stores for rows and notes: a file, a Redis, etcd
 *     server/state/     counters and acts that outlast a restart, in a store (V8)
 *     server/shards/    one key space on several nodes: the map in etcd, and moves (N1 to N9)
 *     server/link/      questions to other processes over nng
 *     server/forward/   messages for the nodes that decide for their keys (N4)
 *     server/waiting/   messages whose permits wait (P7)
 *     server/http/      connections, requests, tokens, the protocol over HTTP, /v1/allow
 *     server/events/    what happens, as lines of JSON on an nng PUB socket (P33)
 *     server/grpc/      the rate limit services of Envoy and Kuadrant, over gRPC
 *     server/admin/     overrides, plans, resets, versions of the configuration, drains, the audit
 *                       (E1, E2, E3, E5, E11)
 *     server/pages/     the pages for people, JSON for programs, metrics, probes
 *
 * server/ctl/ is a program of its own, doormanctl. It uses no file of the server. */

#define DOORMAN_IMPLEMENTATION /* in this file only */
#include "server/server.h"
#include "server/core/log.h"
#include "server/core/permits.h"
#include "server/core/registry.h"
#include "server/core/configuration.h"
#include "server/core/message.h"
#include "server/core/worker.h"

#include <getopt.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/util/platform.h>

/* ---- >>flags -------------------------------------------------------------------------------- */

#define FLAG_FIRST 256 /* getopt's code for flag 0; larger than any character */
#define TTL_DEFAULT 10

static const struct flag {
    const char *name, *argument, *variable, *part; /* see server/core/flags.h */
    size_t place;
    const char *help;
} flags[FLAG_COUNT] = {
#define PLACE(member) offsetof(struct settings, member)
#define FLAG(code, name, argument, variable, part, place, help)                                    \
    [FLAG_##code] = {(name), (argument), (variable), (part), (place), (help)},
#include "server/core/flags.h"
#undef FLAG
};

const char *server_flag_lacks(int flag) {
    const char *lacks = flags[flag].part;
    EACH_PART(part, name) if (lacks && strcmp((*part)->name, lacks) == 0) lacks = NULL;
    return lacks;
}

const char *server_flag_name(int flag) { return flags[flag].name; }

bool server_http_is_on(const struct settings *settings) {
    return !server_flag_lacks(FLAG_HTTP) && strcmp(settings->http, "off") != 0;
}

static enum exit_status print_help(void) {
    puts("Usage: doorman_server --config FILE [FLAG]...\n"
         "       doorman_server --parent URL [FLAG]...\n"
         "Grants the clients of Doorman leases on shared capacity.\n"
         "\n"
         "An environment variable in [BRACKETS] sets the same value; the flag takes precedence.\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        const struct flag *flag = &flags[i];
        if (server_flag_lacks((int)i)) continue;
        printf("  --%s%s%s", flag->name, flag->argument ? " " : "",
               flag->argument ? flag->argument : "");
        if (flag->variable) printf("   [%s]", flag->variable);
        printf("\n        %s\n", flag->help);
    }
    puts("\n"
         "Signals: SIGHUP reloads the configuration, the certificates and the tokens; an invalid\n"
         "file is refused, and the last one stays in force. SIGTERM and SIGINT end the server.\n"
         "Exit codes: 0 done, 1 failure, 2 usage error, 3 the last changes are not in the store.");
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
        exit_status = server_usage_error("an address of --%s is empty", flags[flag].name);
    } else if (addresses->count == ADDRESS_MAX) {
        exit_status =
            server_usage_error("more than %d addresses for --%s", ADDRESS_MAX, flags[flag].name);
    } else if ((addresses->items[addresses->count] = strndup(text, bytes)) == NULL) {
        exit_status = server_fatal_error(EXIT_ERROR, "out of memory");
    } else {
        addresses->count++;
    }
    return exit_status;
}

/* Adds the comma-separated addresses of one value of a flag. A repeated flag adds further
 * addresses. */
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

/* Writes the addresses to `text`, separated by commas. Text that does not fit is cut off. */
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
        exit_status = server_usage_error("'%s' is not a log level", name);
    }
    return exit_status;
}

/* Sets a switch.
 *   value   of the environment variable; NULL: the flag was given, which means yes */
static enum exit_status settings_set_switch(bool *out, int flag, const char *value) {
    enum exit_status exit_status = CONTINUE;
    if (!value || strcmp(value, "1") == 0 || strcmp(value, "true") == 0) {
        *out = true;
    } else if (strcmp(value, "0") != 0 && strcmp(value, "false") != 0) {
        exit_status =
            server_usage_error("%s is '%s', not 1, true, 0 or false", flags[flag].variable, value);
    }
    return exit_status;
}

static enum exit_status settings_set_config(struct settings *settings, const char *value) {
    static const char scheme[] = "etcd:";
    bool key = strncmp(value, scheme, strlen(scheme)) == 0;
    const char *missing = server_flag_lacks(FLAG_ETCD);
    enum exit_status exit_status = CONTINUE;
    settings->config = value;
    settings->config_key = key ? value + strlen(scheme) : NULL;
    settings->config_in_store = strcmp(value, "store:") == 0;
    if (settings->config_in_store && server_flag_lacks(FLAG_CONFIG_CACHE)) {
        return server_usage_error("--config store: this server was built without %s",
                                  server_flag_lacks(FLAG_CONFIG_CACHE));
    }
    if (key && missing) {
        exit_status =
            server_usage_error("--config etcd:KEY: this server was built without %s", missing);
    } else if (key && !*settings->config_key) {
        exit_status = server_usage_error("--config etcd: needs a key after the colon");
    }
    return exit_status;
}

static enum exit_status settings_set_number(size_t *out, int flag, const char *value,
                                            size_t minimum, size_t maximum) {
    enum exit_status exit_status = CONTINUE;
    size_t digits = strspn(value, "0123456789");
    *out = (size_t)strtoull(value, NULL, 10);
    if (value[digits] || digits > 15 || *out < minimum || *out > maximum) {
        exit_status = server_usage_error("--%s is '%s', not a whole number from %zu to %zu",
                                         flags[flag].name, value, minimum, maximum);
    }
    return exit_status;
}

static enum exit_status settings_store(struct settings *settings, int flag, const char *value) {
    enum exit_status exit_status = CONTINUE;
    size_t number = 0;
    switch (flag) {
    case FLAG_CONFIG: exit_status = settings_set_config(settings, value); break;
    case FLAG_LISTEN: exit_status = addresses_add_list(&settings->listen, flag, value); break;
    case FLAG_PARENT: exit_status = addresses_add_list(&settings->parents, flag, value); break;
    case FLAG_ETCD: exit_status = addresses_add_list(&settings->etcd, flag, value); break;
    case FLAG_ELECTION_TTL:
        exit_status = settings_set_number(&number, flag, value, TTL_MIN, TTL_MAX);
        settings->election_ttl = (int)number;
        break;
    case FLAG_STATE_INTERVAL:
        exit_status = settings_set_number(&settings->state_interval, flag, value, 1, 3600);
        break;
    case FLAG_STATE_WAIT:
        exit_status = settings_set_number(&settings->state_wait, flag, value, 0, 3600);
        break;
    case FLAG_MAX_RESOURCES:
        exit_status = settings_set_number(&settings->resource_max, flag, value, 1, 1000000000);
        break;
    case FLAG_MAX_HOLDERS:
        exit_status = settings_set_number(&settings->holder_max, flag, value, 1, 1000000000);
        break;
    case FLAG_MAX_MESSAGE:
        exit_status =
            settings_set_number(&settings->message_max, flag, value, 1, DOORMAN_MESSAGE_BYTES_MAX);
        break;
    case FLAG_MAX_CONNECTIONS:
        exit_status = settings_set_number(&settings->connection_max, flag, value, 1, 1000000000);
        break;
    case FLAG_LOG_LEVEL: exit_status = settings_set_log_level(settings, value); break;
    case FLAG_CHECK_CONFIG:
        exit_status = settings_set_switch(&settings->check_config, flag, value);
        break;
    case FLAG_GRPC_CONNECTIONS:
        exit_status = settings_set_number(&settings->grpc_connection_max, flag, value, 1, 1000000);
        break;
    case FLAG_GRPC_HEADERS:
        exit_status = settings_set_switch(&settings->grpc_headers, flag, value);
        break;
    case FLAG_VERSION: exit_status = print_version(); break;
    default: exit_status = print_help(); break;
    }
    return exit_status;
}

static enum exit_status settings_set(struct settings *settings, int flag, const char *value) {
    enum exit_status exit_status = CONTINUE;
    const char *missing = server_flag_lacks(flag);
    bool is_off = flag == FLAG_HTTP && value && strcmp(value, "off") == 0;
    settings->given[flag] = true;
    if (missing && !is_off) {
        exit_status =
            server_usage_error("--%s: this server was built without %s", flags[flag].name, missing);
    } else if (value && !*value) {
        exit_status = server_usage_error("the value of --%s is empty", flags[flag].name);
    } else if (flags[flag].place != 0) {
        memcpy((char *)settings + flags[flag].place, &value, sizeof value);
    } else {
        exit_status = settings_store(settings, flag, value);
    }
    return exit_status;
}

/* Prints why getopt_long refused an argument. `why` is the result of getopt_long. */
static enum exit_status flag_error(int why, char **argv) {
    enum exit_status exit_status = EXIT_USAGE;
    if (why == ':') {
        exit_status = server_usage_error("--%s needs a value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt >= FLAG_FIRST) {
        exit_status = server_usage_error("--%s takes no value", flags[optopt - FLAG_FIRST].name);
    } else if (optopt != 0) {
        exit_status = server_usage_error("unknown flag '-%c'", optopt);
    } else {
        exit_status = server_usage_error("unknown flag '%s'", argv[optind - 1]);
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
        exit_status = server_usage_error("unexpected argument '%s'", argv[optind]);
    }
    return exit_status;
}

/* Reads the environment variables of the flags that were not given. An empty variable counts as
 * unset. */
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

/* Checks that a configuration or a parent is given, because capacities come from one of them
 * (G8). */
static enum exit_status settings_check_source(const struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    if (!settings->config && settings->parents.count == 0) {
        exit_status = server_usage_error("no configuration: give --config FILE for a root, or "
                                         "--parent URL for another node");
    } else if (!settings->config && settings->check_config) {
        exit_status = server_usage_error("no configuration to check: give --config FILE");
    }
    return exit_status;
}

static enum exit_status settings_check_tls(const struct settings *settings) {
    bool wanted = server_addresses_want_tls(&settings->listen) ||
                  server_addresses_want_tls(&settings->parents);
    const char *missing = server_flag_lacks(FLAG_TLS_CERT);
    return wanted && missing
               ? server_usage_error("an address starts with tls+ or wss: this server was built "
                                    "without %s",
                                    missing)
               : CONTINUE;
}

static enum exit_status settings_read(struct settings *settings, int argc, char **argv) {
    settings->log_level = LEVEL_INFO;
    settings->election_ttl = TTL_DEFAULT;
    settings->state_interval = 1, settings->state_wait = 10;
    settings->http = HTTP_DEFAULT;
    settings->grpc_connection_max = 1024;
    settings->message_max = DOORMAN_MESSAGE_BYTES_MAX;
    enum exit_status exit_status = settings_read_flags(settings, argc, argv);
    if (exit_status == CONTINUE) exit_status = settings_read_environment(settings);
    if (exit_status == CONTINUE) exit_status = settings_check_source(settings);
    if (exit_status == CONTINUE && settings->listen.count == 0) {
        exit_status = addresses_add_list(&settings->listen, FLAG_LISTEN, LISTEN_DEFAULT);
    }
    if (exit_status == CONTINUE) exit_status = settings_check_tls(settings);
    EACH_PART(part, check) if (exit_status == CONTINUE) exit_status = (*part)->check(settings);
    EACH_PART(part, adopt)
    if (exit_status == CONTINUE) exit_status = (*part)->adopt(settings, argv);
    return exit_status;
}

static void settings_uninit(struct settings *settings) {
    addresses_uninit(&settings->listen);
    addresses_uninit(&settings->parents);
    addresses_uninit(&settings->etcd);
}

#define YIELD_MS 1

/* Releases the lock for a moment, so that other threads can take it. */
static void service_yield(struct service *service) {
    server_unlock(&service->lock);
    nng_msleep(YIELD_MS);
    server_lock(&service->lock);
}

/* ---- >>parent link -------------------------------------------------------------------------- */
/* One thread requests capacity from the parent. It releases the lock while it sends or sleeps. */

/* The transport calls this function without the lock. */
static void parent_link_on_wakeup(void *context) {
    struct service *service = (struct service *)context;
    server_lock(&service->lock);
    pthread_cond_signal(&service->parent_link.wake);
    server_unlock(&service->lock);
}

/* Counts the result of a request to the parent. A part logs the result. Without such a part, this
 * function logs failures. Probes are not counted. */
static void parent_link_note_result(struct service *service, doorman_transport_result *result,
                                    doorman_time now) {
    /* A stale response belongs to an earlier mastership, and is no failure. */
    if (result->status == DOORMAN_STALE) result->status = DOORMAN_OK;
    if (!result->is_probe) server_counter_add(&service->counters.parent[result->status], 1);
    bool is_logged = result->status == DOORMAN_OK;
    EACH_PART(part, parent_answered) {
        (*part)->parent_answered(service, result, now);
        is_logged = true;
    }
    if (!is_logged) {
        server_log(service->settings, LEVEL_WARNING, "a request to the parent has failed", "parent",
                   result->address, "error", result->error.text, LOG_END);
    }
}

/* Gives the transport the certificates that were loaded last. If that fails, the next call tries
 * again. */
static void parent_link_set_tls(struct service *service) {
    struct parent_link *link = &service->parent_link;
    const struct pem *pem = &service->pem;
    const doorman_tls tls = {pem->authority, pem->certificate, pem->key};
    if (!link->has_new_tls) return;
    link->has_new_tls =
        pem->authority && doorman_transport_set_tls(link->transport, &tls) != DOORMAN_OK;
}

/* Sleeps until work is due, or until another thread signals. Without a signal the sleep lasts at
 * least 10 ms, so that the thread cannot spin. It lasts at most 1 s, because the clock of condition
 * variables stops while the machine is suspended, but doorman_clock continues. */
static void parent_link_sleep(struct service *service, doorman_time now) {
    struct parent_link *link = &service->parent_link;
    doorman_time duration = doorman_upstream_due(doorman_server_upstream(service->server)) - now;
    if (duration > DOORMAN_SECOND) duration = DOORMAN_SECOND;
    if (duration < DOORMAN_SECOND / 100) duration = DOORMAN_SECOND / 100;
    link->wakes_at = now + duration;
    server_condition_wait(&link->wake, &service->lock, duration);
    link->wakes_at = 0;
}

static void *parent_link_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct parent_link *link = &service->parent_link;
    server_lock(&service->lock);
    while (!service->stopping) {
        doorman_time now = doorman_clock();
        doorman_transport_result result;
        parent_link_set_tls(service);
        bool made = doorman_transport_update(link->transport, &result, now);
        if (result.has_ended) parent_link_note_result(service, &result, now);
        if (made) {
            server_unlock(&service->lock);
            doorman_transport_send(link->transport);
            server_lock(&service->lock);
        } else {
            parent_link_sleep(service, now);
        }
    }
    server_unlock(&service->lock);
    return NULL;
}

static bool parent_link_init(struct service *service) {
    struct parent_link *link = &service->parent_link;
    doorman_transport_options options = {.upstream = doorman_server_upstream(service->server),
                                         .on_wakeup = parent_link_on_wakeup,
                                         .context = service,
                                         .http_address = service->http_advertise,
                                         .probes = true};
    link->has_new_tls = true; /* the thread of the link then sets the certificates */
    return server_condition_init(&link->wake) &&
           doorman_transport_create(&link->transport, &options) == DOORMAN_OK;
}

static enum exit_status parent_link_start(struct service *service) {
    struct parent_link *link = &service->parent_link;
    link->started = parent_link_init(service) &&
                    pthread_create(&link->thread, NULL, parent_link_main, service) == 0;
    return link->started ? CONTINUE
                         : server_fatal_error(EXIT_ERROR,
                                              "cannot start the link to the parent: out of memory "
                                              "or threads");
}

/* Keeps the leases of the node, because the next process of the node uses them (R10). */
static void parent_link_stop(struct service *service) {
    struct parent_link *link = &service->parent_link;
    if (link->started) {
        server_lock(&service->lock);
        service->stopping = true;
        pthread_cond_signal(&link->wake);
        server_unlock(&service->lock);
        pthread_join(link->thread, NULL);
    }
    doorman_transport_destroy(link->transport); /* the transport may signal until here */
    if (link->started) pthread_cond_destroy(&link->wake);
}

/* ---- >>sockets ------------------------------------------------------------------------------ */

/* Keepalive closes connections whose peers vanished, for example after a power failure. Some
 * transports have no keepalive, so an error of setting it is ignored. */
static int service_start_listener(struct service *service, nng_listener listener) {
    nng_listener_set_bool(listener, NNG_OPT_TCP_KEEPALIVE, true);
    int error = nng_listener_start(listener, 0);
    if (error == 0) {
        char **url = &service->urls[service->url_count];
        error = nng_listener_get_string(listener, NNG_OPT_URL, url);
    }
    if (error == 0) service->listeners[service->url_count++] = listener;
    return error;
}

static enum exit_status service_listen_at(struct service *service, const char *url) {
    enum exit_status exit_status = CONTINUE;
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    int error = nng_listener_create(&listener, service->socket, url);
    bool tls = server_url_wants_tls(url);
    if (error == 0 && tls) {
        error = nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, service->tls);
    }
    if (error != 0) {
        exit_status = server_usage_error(
            "cannot listen on '%s': %s; an address is, for example, %s, and a port "
            "is at most 65535",
            url, nng_strerror(error), LISTEN_DEFAULT);
    } else if ((error = service_start_listener(service, listener)) != 0) {
        exit_status = server_fatal_error(
            EXIT_ERROR, "cannot listen on %s: %s; give another --listen", url, nng_strerror(error));
    }
    return exit_status;
}

int server_listen_again(struct service *service, size_t index) {
    nng_listener listener = NNG_LISTENER_INITIALIZER;
    assert(index < service->url_count);
    int error = nng_listener_create(&listener, service->socket, service->urls[index]);
    if (error != 0) return error;
    error = nng_listener_start(listener, 0);
    if (error == 0) {
        service->listeners[index] = listener;
    } else {
        nng_listener_close(listener);
    }
    return error;
}

/* Returns whether this process has made the connection, to check that nng takes connections. */
static bool is_probe(nng_pipe pipe) {
    uint64_t process = 0;
    int error = nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &process); /* only ipc:// has it */
    return error == 0 && process == (uint64_t)getpid();
}

/* Closes probes, and connections above --max-connections. nng also reports the end of a connection
 * that is closed here. So every connection that is added is also subtracted. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    struct service *service = (struct service *)argument;
    size_t maximum = service->settings->connection_max;
    if (event == NNG_PIPE_EV_REM_POST) {
        if (service->waits) service->waits->disconnect(service, (uint64_t)nng_pipe_id(pipe));
        __atomic_sub_fetch(&service->connection_count, 1, __ATOMIC_RELAXED);
        return;
    }
    size_t count = __atomic_add_fetch(&service->connection_count, 1, __ATOMIC_RELAXED);
    if (is_probe(pipe)) {
        __atomic_add_fetch(&service->probe_count, 1, __ATOMIC_RELAXED);
        nng_pipe_close(pipe);
    } else if (count > maximum && maximum) {
        nng_pipe_close(pipe);
    }
}

/* Listens on all addresses with one socket. If a peer announces a message that is too long, nng
 * closes the connection before it reads the message. The limit includes the request id of nng,
 * which takes 4 bytes in front of each text. */
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
        error == 0
            ? CONTINUE
            : server_fatal_error(EXIT_ERROR, "cannot open a socket: %s", nng_strerror(error));
    for (size_t i = 0; exit_status == CONTINUE && i < settings->listen.count; i++) {
        exit_status = service_listen_at(service, settings->listen.items[i]);
    }
    return exit_status;
}

/* Raises the limit of file descriptors. Each connection needs one, and the default limit is low. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* The default name of a node is its election key, because all processes of the node share it (T5).
 * Without an election, it is the id of the process. */
static void service_set_names(struct service *service) {
    const struct settings *settings = service->settings;
    const char *host = strstr(service->urls[0], "://");
    service->id = settings->id ? settings->id : host ? host + 3 : service->urls[0];
    service->node = settings->election_key ? settings->election_key : service->id;
    if (settings->node) service->node = settings->node;
    service->advertise = settings->advertise ? settings->advertise : service->urls[0];
}

#define NAME_RULE "must be 1 to 256 bytes of UTF-8 without control characters"

/* Without an election the server becomes master now. Precondition: the lock is held. */
static enum exit_status service_create_server(struct service *service) {
    assert(server_lock_is_held(&service->lock));
    const struct addresses *parents = &service->settings->parents;
    const char *addresses[ADDRESS_MAX];
    for (size_t i = 0; i < parents->count; i++) addresses[i] = parents->items[i];
    doorman_permits_options permits = {.on_event = tell_permit_event, .context = service};
    permits.event_kinds = find_permit_parts(service);
    if (!permits.event_kinds) permits.on_event = NULL;
    doorman_server_options options = {.node = service->node,
                                      .config = service->config,
                                      .parents = addresses,
                                      .parent_count = parents->count,
                                      .resource_max = service->settings->resource_max,
                                      .holder_max = service->settings->holder_max,
                                      .on_event = tell_event,
                                      .on_mastership_end = tell_mastership_end,
                                      .context = service,
                                      .permits = &permits};
    doorman_mastership mastership = {.address = service->advertise, .until = DOORMAN_NEVER};
    if (service->settings->election_key) mastership.until = 0;
    doorman_time now = doorman_clock();
    doorman_error error = {0};
    doorman_status status = doorman_server_create(&service->server, &options, &error, now);
    enum exit_status exit_status = CONTINUE;
    if (status == DOORMAN_OK) server_set_epoch(service, now);
    if (status == DOORMAN_INVALID_ARGUMENT) {
        exit_status = server_usage_error("%s; the node is '%s'", error.text, service->node);
    } else if (status != DOORMAN_OK) {
        exit_status = server_fatal_error(EXIT_ERROR, "cannot serve: %s", error.text);
    } else if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        exit_status = server_usage_error("--advertise '%s': " NAME_RULE, service->advertise);
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
        error = nng_aio_alloc(&worker->aio, server_worker_step, worker);
        if (error == 0) error = nng_ctx_open(&worker->context, service->socket);
        if (error == 0) server_worker_receive(worker);
    }
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_ERROR, "cannot serve: %s", nng_strerror(error));
}

static void service_log_started(const struct service *service) {
    const struct addresses *parents = &service->settings->parents;
    char addresses[ADDRESS_MAX * NNG_MAXADDRLEN] = "";
    char source[ADDRESS_MAX * (DOORMAN_ID_BYTES_MAX + 1)] = "";
    addresses_join(service->urls, service->url_count, addresses, sizeof addresses);
    if (parents->count > 0) {
        addresses_join(parents->items, parents->count, source, sizeof source);
    } else {
        doorman_config_options read;
        doorman_config_read(service->config, &read);
        snprintf(source, sizeof source, "%zu", read.template_count);
    }
    server_log(service->settings, LEVEL_INFO, "serving", "version", DOORMAN_VERSION, "http",
               service->http_address ? service->http_address : "off", "id", service->id, "node",
               service->node, "listen", addresses, "advertise", service->advertise,
               parents->count > 0 ? "parent" : "resources", source, LOG_END);
}

static enum exit_status service_open(struct service *service) {
    enum exit_status exit_status = CONTINUE;
    raise_file_limit();
    service->started_at = doorman_clock();
    EACH_PART(part, open) if (exit_status == CONTINUE) exit_status = (*part)->open(service);
    EACH_PART(part, waits) service->waits = (*part)->waits;
    EACH_PART(part, forwards) service->forwards = (*part)->forwards;
    EACH_PART(part, batches) service->batches = (*part)->batches;
    EACH_PART(part, tls_calls) service->tls_calls = (*part)->tls_calls;
    if (exit_status == CONTINUE) exit_status = service_listen(service);
    if (exit_status != CONTINUE) return exit_status;
    service_set_names(service);
    EACH_PART(part, listen) if (exit_status == CONTINUE) exit_status = (*part)->listen(service);
    if (exit_status != CONTINUE) return exit_status;
    server_lock(&service->lock);
    exit_status = service_create_server(service);
    EACH_PART(part, begin) if (exit_status == CONTINUE)(*part)->begin(service);
    server_unlock(&service->lock);
    return exit_status;
}

static enum exit_status service_start(struct service *service) {
    struct config_problems problems;
    const struct config_change change = {.problems = &problems, .valid = true, .is_first = true};
    enum exit_status exit_status = server_load_config(service, &problems);
    if (exit_status != CONTINUE) return exit_status;
    server_config_hash(service->config, service->last_load.hash);
    server_note_load(&service->last_load, service->last_load.hash, &problems);
    exit_status = service_open(service);
    if (exit_status == CONTINUE && service->settings->parents.count > 0) {
        exit_status = parent_link_start(service);
    }
    if (exit_status == CONTINUE) exit_status = service_start_workers(service);
    EACH_PART(part, start) if (exit_status == CONTINUE) exit_status = (*part)->start(service);
    if (exit_status != CONTINUE) return exit_status;
    service_log_started(service);
    config_note(service, &change);
    EACH_PART(part, serve) if (exit_status == CONTINUE) exit_status = (*part)->serve(service);
    return exit_status;
}

/* Stops the service, also after an incomplete start. nng_close ends the operations of the workers.
 * nng_aio_free waits for the end of the callback of its aio. There is no call of nng_fini, because
 * it frees memory that nng's thread for TLS still uses: after failed TLS handshakes it aborted 9 of
 * 200 processes with nng 1.5.2, and 19 of 200 with nng 1.10.1 and with nng 1.12.4. */
void server_end(struct service *service) {
    EACH_PART_BACKWARDS(part, stop)(*part)->stop(service);
    EACH_PART(part, end)(*part)->end();
    nng_close(service->socket);
    for (size_t i = 0; i < WORKER_COUNT; i++) {
        nng_aio_free(service->workers[i].aio);
        doorman_json_exchange_uninit(&service->workers[i].exchange);
    }
    for (size_t i = 0; i < service->url_count; i++) nng_strfree(service->urls[i]);
    parent_link_stop(service);
    server_lock(&service->lock);
    doorman_server_destroy(service->server);
    server_unlock(&service->lock);
    doorman_config_destroy(service->config);
    EACH_PART_BACKWARDS(part, destroy)(*part)->destroy(service);
    server_free_states(service);
}

/* ---- >>signals ------------------------------------------------------------------------------ */

/* Before the server ends, it refuses new requests for at least this time and sends the last
 * responses. */
#define STOPPING_MS 250

/* The time limit for the functions `stopping` of the parts. Giving up mastership needs a call to
 * etcd, and perhaps a slow name lookup. The part STATE sets a longer limit. */
#define RESIGN_TIMEOUT_SECONDS 4

/* The time limit for server_end, which closes the sockets. */
#define CLOSE_TIMEOUT_SECONDS 2

/* Blocks the signals that service_run waits for, so that a signal during the start waits for
 * service_run. As the first process of a container the server would otherwise lose it: Linux drops
 * a signal for that process if it is neither blocked nor handled. Precondition: there is only one
 * thread. Later threads inherit the mask. */
static void block_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

static void service_reload(struct service *service) {
    EACH_PART_BACKWARDS(part, reload)(*part)->reload(service);
    server_load_files(service, FILES_OF_TLS, false);
    server_load_files(service, FILES_OF_TOKENS, false);
    if (service->settings->config) {
        server_reload_config(service);
    } else {
        server_log(service->settings, LEVEL_INFO,
                   "there is nothing to load: this node gets its resources from the parent",
                   LOG_END);
    }
    EACH_PART(part, reloaded)(*part)->reloaded(service);
}

static void service_update(struct service *service) {
    server_lock(&service->lock);
    doorman_time now = doorman_clock();
    doorman_upstream *upstream = doorman_server_upstream(service->server);
    doorman_request none;
    bool is_root = service->settings->parents.count == 0; /* with a parent, the link does this */
    server_set_epoch(service, now);
    while (is_root && doorman_upstream_due(upstream) <= now) {
        (void)doorman_upstream_request(upstream, &none, now);
        if (doorman_upstream_due(upstream) <= now) service_yield(service);
    }
    EACH_PART(part, update)(*part)->update(service, now);
    server_unlock(&service->lock);
}

volatile sig_atomic_t server_stop_code = EXIT_OK;

/* Ends the process if the shutdown hangs. Until then, requests in progress had at least 2 s for
 * their responses. nng_close can hang: nng 1.5.2 waits forever for connections that it has lost
 * (server/process/replace.c), and nng 1.5.2, 1.10.1 and 1.12.4 hung when a listener of IPC closed
 * while a socket connected to it. A name lookup for etcd can hang too. The election key then ends
 * with its lease. */
static void on_shutdown_timeout(int signal_number) {
    (void)signal_number;
    EACH_PART(part, end)(*part)->end();
    _exit(server_stop_code);
}

/* The main loop. It looks for due work every second, and not when the next work is due, because any
 * request can make work due earlier. */
static void service_run(struct service *service, const sigset_t *signals) {
    const struct timespec second = {.tv_sec = 1};
    int got = 0;
    while (got != SIGTERM && got != SIGINT && !service->replaces) {
        if (got == SIGHUP) service_reload(service);
        service_update(service);
        EACH_PART(part, work)(*part)->work(service, doorman_clock());
        got = service->replaces ? 0 : sigtimedwait(signals, NULL, &second);
    }
    const char *name = got == SIGTERM ? "SIGTERM" : "SIGINT";
    server_log(service->settings, LEVEL_INFO, "stopping", "signal", got > 0 ? name : "none",
               LOG_END);
    server_lock(&service->lock);
    service->stopping = true;
    server_unlock(&service->lock);
    signal(SIGALRM, on_shutdown_timeout);
    alarm(RESIGN_TIMEOUT_SECONDS);
    EACH_PART_BACKWARDS(part, stopping)(*part)->stopping(service);
    nng_msleep(STOPPING_MS);
    alarm(CLOSE_TIMEOUT_SECONDS);
}

/* ---- >>main --------------------------------------------------------------------------------- */

static enum exit_status serve(const struct settings *settings, const sigset_t *signals) {
    struct service service = {.settings = settings,
                              .lock = LOCK_INITIALIZER(LOCK_SERVICE),
                              .config_lock = LOCK_INITIALIZER(LOCK_CONFIG)};
    signal(SIGPIPE, SIG_IGN);
    enum exit_status exit_status = service_start(&service);
    if (exit_status == CONTINUE) {
        service_run(&service, signals);
        exit_status = (enum exit_status)server_stop_code;
    }
    server_end(&service);
    return exit_status;
}

int main(int argc, char **argv) {
    struct settings settings = {.config = NULL};
    sigset_t signals;
    block_signals(&signals);
    EACH_PART(part, init)(*part)->init();
    enum exit_status exit_status = settings_read(&settings, argc, argv);
    if (settings.check_config) pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* it ends by itself */
    EACH_PART(part, run) if (exit_status == CONTINUE) exit_status = (*part)->run(&settings);
    if (exit_status == CONTINUE) exit_status = serve(&settings, &signals);
    settings_uninit(&settings);
    if (fflush(stdout) != 0 && exit_status == EXIT_OK) {
        exit_status =
            server_fatal_error(EXIT_ERROR, "cannot write to standard output: %s", strerror(errno));
    }
    return (int)exit_status;
}
