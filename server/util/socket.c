/* doorman_server: TCP sockets that listen, for HTTP and gRPC. The functions use only their
 * arguments. */
#include "socket.h"
#include "host.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

/* Listens on the first address that works. Returns 0, or errno of the last address. */
static int socket_bind(int *listener, const struct addrinfo *addresses) {
    const int on = 1;
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *at = addresses; at && *listener < 0; at = at->ai_next) {
        int made = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        /* Connections inherit TCP_NODELAY from the listener. */
        bool done = made >= 0 && setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
                    bind(made, at->ai_addr, at->ai_addrlen) == 0 && listen(made, SOMAXCONN) == 0;
        error = done ? 0 : errno;
        if (done) {
            *listener = made;
        } else if (made >= 0) {
            close(made);
        }
    }
    return error;
}

/* Writes HOST:PORT with the port of the socket, which the system may have chosen. */
static void socket_name(int listener, const char *host, char *name, size_t room) {
    struct sockaddr_storage bound = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof bound;
    char port[NI_MAXSERV] = "0";
    if (getsockname(listener, (struct sockaddr *)&bound, &bytes) == 0) {
        (void)getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, port, sizeof port,
                          NI_NUMERICSERV);
    }
    snprintf(name, room, "%s:%s", host, port);
}

int server_socket_listen(int *listener, const char *address, char *name, size_t room) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const char *colon = strrchr(address, ':');
    struct addrinfo *found = NULL;
    char host[256], bare[256];
    *listener = -1;
    server_host_read(address, host, sizeof host);
    snprintf(bare, sizeof bare, "%s", host[0] == '[' ? host + 1 : host);
    bare[strcspn(bare, "]")] = 0;
    bool is_any = !bare[0] || strcmp(bare, "*") == 0;
    bool valid = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
                 strlen(colon + 1) <= 5 && strtoul(colon + 1, NULL, 10) <= 65535 &&
                 (size_t)(colon - address) == strlen(host);
    if (!valid || getaddrinfo(is_any ? NULL : bare, colon + 1, &hints, &found) != 0) return EINVAL;
    int error = socket_bind(listener, found);
    freeaddrinfo(found);
    if (error == 0) socket_name(*listener, host, name, room);
    return error;
}

enum exit_status server_socket_refuse(const char *flag, const char *address, const char *example,
                                      int error, const char *instead) {
    if (error == EINVAL) {
        return server_usage_error("cannot listen on --%s '%s': it is not HOST:PORT, or the host is "
                                  "not known; an address is, for example, %s",
                                  flag, address, example);
    }
    return server_fatal_error(EXIT_ERROR, "cannot listen on --%s %s: %s; %s", flag, address,
                              strerror(error), instead);
}

static void socket_peer(char text[PEER_BYTES], const struct sockaddr_storage *peer) {
    char host[INET6_ADDRSTRLEN] = "";
    snprintf(text, PEER_BYTES, "unknown");
    if (peer->ss_family == AF_INET) {
        struct sockaddr_in from;
        memcpy(&from, peer, sizeof from);
        inet_ntop(AF_INET, &from.sin_addr, host, sizeof host);
        snprintf(text, PEER_BYTES, "%s:%u", host, (unsigned)ntohs(from.sin_port));
    } else if (peer->ss_family == AF_INET6) {
        struct sockaddr_in6 from;
        memcpy(&from, peer, sizeof from);
        inet_ntop(AF_INET6, &from.sin6_addr, host, sizeof host);
        snprintf(text, PEER_BYTES, "[%s]:%u", host, (unsigned)ntohs(from.sin6_port));
    }
}

int server_socket_accept(int listener, char peer[PEER_BYTES], bool *is_short) {
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof from;
    int made = accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    *is_short = made < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    if (made >= 0) socket_peer(peer, &from);
    return made;
}
