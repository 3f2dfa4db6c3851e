/* doorman_server, part CHECK: what a process checks before it serves, and --check-config. This file
 * changes nothing: it prints or logs what is wrong. A server without this part shows only the first
 * error of a configuration. Such a server finds a wrong address later, when it uses the address. */
#include "../server.h"
#include "../util/host.h"

#include <nng/protocol/reqrep0/req.h>

static size_t problems_listed(const struct config_problems *problems) {
    return problems->count < PROBLEM_MAX ? problems->count : PROBLEM_MAX;
}

/* Prints a line for each problem that has a position. The line has the form of an error of a
 * compiler, so editors can jump to the position. */
static void print_problems(const char *path, const struct config_problems *problems,
                           const char *kind) {
    for (size_t i = 0; i < problems_listed(problems); i++) {
        const doorman_config_problem *problem = &problems->items[i];
        if (problem->line == 0) continue;
        fprintf(stderr, "%s:%zu:%zu: %s: %s\n", path, problem->line, problem->column, kind,
                problem->error.text);
    }
}

static enum exit_status check_refuse_config(const struct settings *settings,
                                            const struct config_problems *problems) {
    const char *path = settings->config;
    const size_t count = problems->count;
    char what[sizeof problems->items[0].error.text];
    if (problems->is_unreachable) {
        return server_fatal_error(EXIT_ERROR,
                                  "--config %s: %s; try again when it answers. --config-cache FILE "
                                  "keeps a copy with which this server starts meanwhile",
                                  path, problems->items[0].error.text);
    }
    print_problems(path, problems, "error");
    if (problems->items[0].line == 0) {
        snprintf(what, sizeof what, "%s", problems->items[0].error.text);
    } else {
        snprintf(what, sizeof what, "%zu error%s%s", count, count > 1 ? "s" : "",
                 count > PROBLEM_MAX ? ", of which the first 20 are listed" : "");
    }
    return server_fatal_error(EXIT_ERROR, "%s: %s; correct %s, or give another --config", path,
                              what, count > 1 ? "them" : "it");
}

/* Logs the warnings about a valid configuration. Of an invalid one, logs the listed errors except
 * the first, which is in the line about the refusal. */
static void check_log_problems(struct service *service, const struct config_change *change) {
    const struct settings *settings = service->settings;
    char text[PROBLEM_TEXT];
    for (size_t i = change->valid ? 0 : 1; i < problems_listed(change->problems); i++) {
        server_problem_text(&change->problems->items[i], text);
        if (change->valid) {
            server_log(settings, LEVEL_WARNING, "warning about the configuration", "file",
                       settings->config, "warning", text, LOG_END);
        } else {
            server_log(settings, LEVEL_ERROR, "another error of the configuration", "file",
                       settings->config, "error", text, LOG_END);
        }
    }
}

/* Returns what a restart does to the counters of a limit (V8). */
static const char *survival_text(const struct settings *settings,
                                 const doorman_permit_limit *limit) {
    if (limit->kind == DOORMAN_CONCURRENCY) {
        return settings->state ? "keeps no counters: its holds last over a planned stop, and are "
                                 "learned from their holders after a crash"
                               : "keeps no counters: its holds are learned from their holders";
    }
    if (limit->leased) return "keeps no counters: its units are those of a lease";
    if (!limit->durable) return "is not durable: each restart begins its counters again";
    return settings->state
               ? "is durable: a restart forgets nothing, and a crash forgets the last changes"
               : "is durable, but without --state each restart begins its counters again";
}

/* Prints for each limit what a restart does to its counters. */
static void print_survival(const struct settings *settings, const doorman_config_options *read) {
    for (size_t i = 0; i < read->template_count; i++) {
        const doorman_template *template = &read->templates[i];
        for (size_t j = 0; j < template->limit_count; j++) {
            printf("%s: limit %s of %s %s\n", settings->config, template->limits[j].name,
                   template->identifier_glob, survival_text(settings, &template->limits[j]));
        }
    }
}

static enum exit_status print_result(const struct settings *settings,
                                     const struct config_problems *warnings,
                                     const doorman_config *config) {
    doorman_config_options read;
    doorman_config_read(config, &read);
    print_problems(settings->config, warnings, "warning");
    printf("%s: ok, %zu resource%s\n", settings->config, read.template_count,
           read.template_count == 1 ? "" : "s");
    print_survival(settings, &read);
    return EXIT_OK;
}

static enum exit_status check_config(const struct settings *settings) {
    if (!settings->check_config) return CONTINUE;
    struct service service = {.settings = settings,
                              .lock = LOCK_INITIALIZER(LOCK_SERVICE),
                              .config_lock = LOCK_INITIALIZER(LOCK_CONFIG)};
    struct config_problems problems;
    doorman_error unfit = {0};
    enum exit_status exit_status = server_load_config(&service, &problems);
    if (exit_status == CONTINUE) {
        bool fits =
            doorman_config_fits(service.config, settings->parents.count > 0, &unfit) == DOORMAN_OK;
        exit_status = fits ? print_result(settings, &problems, service.config)
                           : server_fatal_error(EXIT_ERROR, "%s: %s", settings->config, unfit.text);
    }
    server_end(&service);
    return exit_status;
}

/* Returns 0 if nng supports an address, else an error of nng. Does not use the network. */
static int check_dialer(const char *url) {
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    int error = nng_req0_open(&socket);
    if (error == 0) error = nng_dialer_create(&dialer, socket, url);
    nng_close(socket);
    return error;
}

/* Returns whether the port of an address, if it has one, is from 1 to 65535. nng checks the port
 * only when it connects. */
static bool port_fits(const char *url) {
    nng_url *parts = NULL;
    if (nng_url_parse(&parts, url) != 0) return true; /* check_dialer has the error */
    bool has_port = parts->u_port && *parts->u_port;
    long port = has_port ? strtol(parts->u_port, NULL, 10) : 1;
    nng_url_free(parts);
    return port >= 1 && port <= UINT16_MAX;
}

/* Checks --advertise. A proxy can do the TLS, so nng need not support TLS here. Without --advertise
 * the address is the first --listen, which nng has accepted. */
static enum exit_status check_advertise(const struct service *service) {
    const char *url = service->settings->advertise;
    char host[256];
    if (!url) return CONTINUE;
    int error = check_dialer(url);
    server_host_read(url, host, sizeof host);
    bool has_host = strncmp(url, "ipc:", 4) != 0;
    if (error != 0 && !(error == NNG_ENOTSUP && server_url_wants_tls(url))) {
        return server_usage_error("--advertise '%s': %s; an address is, for example, "
                                  "tcp://doorman.example:15000",
                                  url, nng_strerror(error));
    }
    if (error == 0 && !port_fits(url)) {
        return server_usage_error("--advertise '%s': the port must be a number from 1 to 65535",
                                  url);
    }
    if (has_host && server_host_is_wildcard(host)) {
        return server_usage_error(
            "others cannot reach '%s': give --advertise with a host that they can reach", url);
    }
    return CONTINUE;
}

static enum exit_status check_parent(const struct service *service, const char *url) {
    enum exit_status exit_status = CONTINUE;
    int error = check_dialer(url);
    bool is_self = strcmp(url, service->advertise) == 0;
    for (size_t i = 0; i < service->url_count; i++) {
        is_self = is_self || !strcmp(url, service->urls[i]);
    }
    if (is_self) {
        exit_status = server_fatal_error(EXIT_USAGE, "--parent '%s' is this server itself", url);
    } else if (error != 0) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--parent '%s': %s; an address is, for example, %s", url,
                               nng_strerror(error), LISTEN_DEFAULT);
    }
    return exit_status;
}

/* Warns about an address that other machines can reach without TLS. The protocol of nng has no
 * authentication, so such an address should use TLS. */
static void check_listener(const struct service *service, const char *url) {
    char host[256];
    server_host_read(url, host, sizeof host);
    bool is_remote = strncmp(url, "tcp", 3) == 0 || strncmp(url, "ws", 2) == 0;
    if (is_remote && !server_host_is_loopback(host)) {
        server_log(service->settings, LEVEL_WARNING,
                   "this address can be reached from other machines without TLS", "listen", url,
                   LOG_END);
    }
}

static enum exit_status check_addresses(struct service *service) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = check_advertise(service);
    for (size_t i = 0; exit_status == CONTINUE && i < settings->parents.count; i++) {
        exit_status = check_parent(service, settings->parents.items[i]);
    }
    for (size_t i = 0; exit_status == CONTINUE && i < settings->listen.count; i++) {
        const char *url = settings->listen.items[i];
        if (!server_url_wants_tls(url)) check_listener(service, url);
    }
    return exit_status;
}

const struct server_part server_part_check = {.name = "checks",
                                              .run = check_config,
                                              .listen = check_addresses,
                                              .refuse_config = check_refuse_config,
                                              .configured = check_log_problems};
