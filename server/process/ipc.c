/* doorman_server, part IPC: opens an address ipc://... again if nng takes no connection there any
 * more. If a peer leaves while nng 1.5.2 greets it, the listener never starts a connection again
 * (nanomsg/nng #1518). The system still accepts connections, but nobody answers them. Only
 * listeners of ipc:// have this fault.
 *
 * The main thread connects to the addresses, one after the other, as a client does, and greets.
 * When nng starts a connection, it calls on_pipe of doorman_server.c, which closes and counts the
 * connections that this process has made. The main thread looks once a second:
 *
 *     there is a probe    nng has started it       the probe is closed, and the next one is due
 *                                                  INTERVAL later
 *                         it is younger than TIME  nothing
 *                         otherwise                the address is opened again
 *     there is none       one is due               the thread connects
 *
 * The broken listener stays open. If it were closed, the connections that it has started would end,
 * and the path of the new listener would be removed. So each new listener costs a file descriptor.
 * Until the process stops, a probe that has greeted is closed only when nng has started it, or when
 * its listener is broken, because a probe that leaves earlier could break the listener. */
#include "../server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SCHEME "ipc://"
#define INTERVAL (2 * DOORMAN_SECOND)
#define TIME (3 * DOORMAN_SECOND)

/* What this part keeps. Only the main thread uses it. */
struct ipc_probe {
    size_t address;  /* the index of the address that is probed next, or now */
    int fd;          /* valid if is_open */
    bool is_open;    /* there is a probe */
    size_t seen;     /* connections of this process that nng had started before */
    doorman_time at; /* when the probe began, or when the next one is due */
};

/* Returns the path of an address; NULL: it has another scheme. */
static const char *ipc_path(const char *url) {
    return strncmp(url, SCHEME, strlen(SCHEME)) == 0 ? url + strlen(SCHEME) : NULL;
}

/* Returns whether this process listens at the other end of a connection. Another process may have
 * taken the path. Without SO_PEERCRED this is not known, so the function returns false. */
static bool ipc_is_own(int fd) {
#ifdef SO_PEERCRED
    struct {
        pid_t process;
        uid_t user;
        gid_t group;
    } peer; /* struct ucred of Linux */
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.process == getpid();
#else
    (void)fd;
    return false;
#endif
}

/* Connects to a path, and greets as a REQ of nng. Never waits. Returns false if the path takes no
 * connection now, or if another process listens there. */
static bool ipc_connect(struct ipc_probe *probe, const char *path) {
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    probe->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe->fd < 0) return false;
    probe->is_open = connect(probe->fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                     ipc_is_own(probe->fd) &&
                     send(probe->fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
    if (!probe->is_open) close(probe->fd);
    return probe->is_open;
}

/* Chooses the next address, which is due after a pause. Ends the probe, if there is one. */
static void ipc_next(struct service *service, doorman_time now) {
    struct ipc_probe *probe = service->ipc_probe;
    if (probe->is_open) close(probe->fd);
    probe->is_open = false;
    probe->address = (probe->address + 1) % service->url_count;
    probe->at = now + INTERVAL;
}

static void ipc_begin(struct service *service, doorman_time now) {
    struct ipc_probe *probe = service->ipc_probe;
    const char *path = ipc_path(service->urls[probe->address]);
    probe->at = now;
    probe->seen = __atomic_load_n(&service->probe_count, __ATOMIC_RELAXED);
    if (!path || !ipc_connect(probe, path)) ipc_next(service, now);
}

static void ipc_open_again(struct service *service) {
    const size_t index = service->ipc_probe->address;
    (void)unlink(ipc_path(service->urls[index])); /* otherwise the address is in use */
    int error = server_listen_again(service, index);
    server_log(service->settings, LEVEL_WARNING,
               error == 0 ? "nng took no connections at an address, so it was opened again"
                          : "nng takes no connections at an address, and it cannot be opened again",
               "address", service->urls[index], error == 0 ? LOG_END : "error", nng_strerror(error),
               LOG_END);
}

static void ipc_work(struct service *service, doorman_time now) {
    struct ipc_probe *probe = service->ipc_probe;
    if (!probe->is_open) {
        if (now >= probe->at && !service->stopping) ipc_begin(service, now);
        return;
    }
    bool started = __atomic_load_n(&service->probe_count, __ATOMIC_RELAXED) != probe->seen;
    if (!started && now - probe->at < TIME) return;
    if (!started) ipc_open_again(service);
    ipc_next(service, now);
}

static void ipc_stop(struct service *service) {
    const struct ipc_probe *probe = service->ipc_probe;
    if (probe && probe->is_open) close(probe->fd);
}

const struct server_part server_part_ipc = {SERVER_PART_STATE(ipc_probe), .work = ipc_work,
                                            .stop = ipc_stop};
