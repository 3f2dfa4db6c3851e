/* doorman_server, part CHECK: what a process checks before it serves, and --check-config. This file
 * only reads the settings and prints what is wrong. A server without this part finds a wrong
 * address later, when it uses the address. */
#include "server.h"

#include <nng/protocol/reqrep0/req.h>

enum exit_status server_check_config(const struct settings *settings) {
    struct service service = {.settings = settings};
    doorman_error error;
    enum exit_status exit_status = server_election_create(&service);
    if (exit_status == CONTINUE && server_fetch_config(&service, &error)) {
        doorman_config_options read;
        doorman_config_read(service.config, &read);
        if (error.text[0]) fprintf(stderr, "%s: warning: %s\n", settings->config, error.text);
        printf("%s: ok, %zu resources\n", settings->config, read.template_count);
        exit_status = EXIT_OK;
    } else if (exit_status == CONTINUE) {
        exit_status = server_config_error(settings->config, &error);
    }
    server_election_stop(&service);
    doorman_config_destroy(service.config);
    return exit_status;
}

/* Does not use the network. nng tells whether it supports the address. */
enum exit_status server_check_parent(const struct service *service, const char *url) {
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
        exit_status = server_fatal_error(EXIT_USAGE, "--parent '%s' is this server itself", url);
    } else if (error != 0) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--parent '%s': %s; an address is, for example, %s", url,
                               nng_strerror(error), LISTEN_DEFAULT);
    }
    nng_close(socket);
    return exit_status;
}

/* The protocol of nng has no authentication, so an address that other machines can reach should use
 * TLS. */
void server_check_listener(const struct service *service, const char *url) {
    char host[256];
    server_host_read(url, host, sizeof host);
    bool is_remote = strncmp(url, "tcp", 3) == 0 || strncmp(url, "ws", 2) == 0;
    if (is_remote && !server_host_is_loopback(host)) {
        server_log(service->settings, LEVEL_WARNING,
                   "this address can be reached from other machines without TLS", "listen", url,
                   LOG_END);
    }
}
