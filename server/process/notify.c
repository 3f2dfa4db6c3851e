/* doorman_server, part NOTIFY: tells systemd that the server serves, reloads or stops, and that it
 * does not hang. A message is a datagram with lines NAME=VALUE to the socket in $NOTIFY_SOCKET, as
 * sd_notify(3) describes. Without $NOTIFY_SOCKET this file does nothing.
 *
 *     message                     when
 *     READY=1                     the server answers requests; also at the end of a reload
 *     RELOADING=1, MONOTONIC_USEC SIGHUP has arrived, or the process replaces itself
 *     STOPPING=1                  SIGTERM or SIGINT has arrived
 *     STATUS=TEXT                 the text has changed; `systemctl status` shows it
 *     WATCHDOG=1                  a probe has succeeded, and $WATCHDOG_USEC is set
 *
 * A probe runs on a thread of nng, as requests over nng do. It takes the lock of the service, and
 * lets the server object answer a discovery request. If a thread never releases the lock, or if all
 * threads of nng hang, no probe ends. systemd then ends the process and starts it again. The pause
 * between probes is at most half of the interval of the watchdog, so that one late probe does no
 * harm.
 *
 * The probe does not involve the main thread. That thread may wait for a slow disk while it loads a
 * configuration, and requests are answered meanwhile. The probe needs no new file descriptor: it
 * opens no connection, and the socket to systemd stays open from the start to the end. If there are
 * no file descriptors left, the clients that are connected still get answers, so a restart would be
 * wrong.
 *
 * Of struct notify, only the probe uses `status`. The other members do not change while the probe
 * runs. */
#include "../server.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nng/supplemental/util/platform.h>

#define PROBE_INTERVAL_MS 5000 /* the maximum; it is shorter if the watchdog needs that */
#define SEND_SECONDS 5         /* how long a message of the main thread waits for systemd */

struct notify {
    struct service *service;
    struct sockaddr_un address; /* of the socket of systemd */
    socklen_t address_bytes;
    int fd;
    nng_aio *aio; /* runs the probes, one after the other */
    nng_duration interval_ms;
    bool has_watchdog;
    char status[512]; /* the last text of STATUS= */
};

/* Reads an address: a path, or the name of an abstract socket, which starts with '@'. */
static bool notify_set_address(struct notify *notify, const char *text) {
    size_t bytes = strlen(text);
    bool valid =
        (text[0] == '/' || text[0] == '@') && bytes > 1 && bytes < sizeof notify->address.sun_path;
    if (valid) {
        notify->address.sun_family = AF_UNIX;
        memcpy(notify->address.sun_path, text, bytes + 1);
        if (text[0] == '@') notify->address.sun_path[0] = 0;
        notify->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    }
    return valid;
}

/* Reads a positive number from the environment. Returns 0 if there is none. */
static uint64_t read_number(const char *variable) {
    const char *text = getenv(variable);
    bool valid = text && *text && strlen(text) < 20 && !text[strspn(text, "0123456789")];
    return valid ? strtoull(text, NULL, 10) : 0;
}

/* Sets the interval of the probes. If $WATCHDOG_PID names another process, this one has no
 * watchdog. */
static void notify_set_watchdog(struct notify *notify) {
    const char *pid = getenv("WATCHDOG_PID");
    uint64_t half_ms = read_number("WATCHDOG_USEC") / 2000;
    bool is_ours = !pid || !*pid || read_number("WATCHDOG_PID") == (uint64_t)getpid();
    notify->has_watchdog = is_ours && read_number("WATCHDOG_USEC") > 0;
    notify->interval_ms = PROBE_INTERVAL_MS;
    if (notify->has_watchdog && half_ms < PROBE_INTERVAL_MS) {
        notify->interval_ms = half_ms > 0 ? (nng_duration)half_ms : 1;
    }
}

/* Sends a message.
 *   wait   0, or MSG_DONTWAIT: the message is lost if systemd has too many messages to read */
static bool notify_send(const struct notify *notify, const char *text, int wait) {
    const struct sockaddr *address = (const struct sockaddr *)(const void *)&notify->address;
    ssize_t sent =
        sendto(notify->fd, text, strlen(text), wait | MSG_NOSIGNAL, address, notify->address_bytes);
    return sent == (ssize_t)strlen(text);
}

/* Sends a message that systemd must not miss. Only the main thread calls this function. */
static void service_notify(struct service *service, const char *text) {
    if (service->notify && !notify_send(service->notify, text, 0)) {
        server_log(service->settings, LEVEL_WARNING, "cannot notify systemd", "message", text,
                   "error", strerror(errno), LOG_END);
    }
}

/* Writes the state of the server as a line of text. Precondition: the lock is held. */
static void write_status(struct service *service, char *text, size_t room) {
    assert(server_lock_is_held(&service->lock));
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    const char *refused = service->last_load.error;
    doorman_server_handle(service->server, &discovery, &response, NULL, doorman_clock());
    const char *master = response.master_address;
    const char *role = "no master is known";
    if (master) role = response.is_master ? "master, at " : "standby; the master is ";
    int bytes = snprintf(text, room, "STATUS=%s%s", role, master ? master : "");
    if (*refused && bytes > 0 && (size_t)bytes < room) {
        snprintf(text + bytes, room - (size_t)bytes, "; the last configuration was refused: %.*s",
                 (int)strcspn(refused, "\r\n"), refused);
    }
}

static void probe_step(void *argument) {
    struct notify *notify = (struct notify *)argument;
    struct service *service = notify->service;
    char status[sizeof notify->status];
    if (nng_aio_result(notify->aio) != 0) return; /* the server ends */
    server_lock(&service->lock);
    write_status(service, status, sizeof status);
    server_unlock(&service->lock);
    if (notify->has_watchdog) notify_send(notify, "WATCHDOG=1", MSG_DONTWAIT);
    if (strcmp(status, notify->status) != 0 && notify_send(notify, status, MSG_DONTWAIT)) {
        memcpy(notify->status, status, sizeof status);
    }
    nng_sleep_aio(notify->interval_ms, notify->aio);
}

static bool notify_open(struct notify *notify) {
    const struct timeval timeout = {.tv_sec = SEND_SECONDS};
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return notify->fd >= 0 &&
           setsockopt(notify->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
           nng_aio_alloc(&notify->aio, probe_step, notify) == 0;
}

static void notify_ready(struct service *service) { service_notify(service, "READY=1"); }

static void notify_reloading(struct service *service) {
    char text[64];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
             (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    service_notify(service, text);
}

/* Tells systemd that the process stops. A process that replaces itself reports a reload instead,
 * because after STOPPING=1 systemd would expect the end of the process. */
static void notify_stopping(struct service *service) {
    if (service->replaces) {
        notify_reloading(service);
    } else {
        service_notify(service, "STOPPING=1");
    }
}

static void notify_stop(struct service *service) {
    struct notify *notify = service->notify;
    if (notify) {
        nng_aio_free(notify->aio); /* waits for the end of the probe */
        if (notify->fd >= 0) close(notify->fd);
    }
    free(notify);
    service->notify = NULL;
}

static enum exit_status notify_start(struct service *service) {
    const char *address = getenv("NOTIFY_SOCKET");
    enum exit_status exit_status = CONTINUE;
    struct notify *notify = NULL;
    assert(!service->notify);
    if (!address || !*address) return CONTINUE;
    notify = (struct notify *)calloc(1, sizeof *notify);
    service->notify = notify;
    if (notify) *notify = (struct notify){.service = service, .fd = -1};
    if (!notify || !notify_open(notify)) {
        exit_status = server_fatal_error(EXIT_ERROR, "cannot notify systemd: out of memory or file "
                                                     "descriptors");
    } else if (!notify_set_address(notify, address)) {
        server_log(service->settings, LEVEL_WARNING,
                   "cannot notify systemd: NOTIFY_SOCKET must be a path or start with @",
                   "NOTIFY_SOCKET", address, LOG_END);
        notify_stop(service);
    } else {
        notify_set_watchdog(notify);
        notify_ready(service);
        nng_sleep_aio(0, notify->aio);
    }
    return exit_status;
}

const struct server_part server_part_notify = {.serve = notify_start,
                                               .reload = notify_reloading,
                                               .reloaded = notify_ready,
                                               .stopping = notify_stopping,
                                               .stop = notify_stop};
