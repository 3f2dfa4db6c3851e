/* doorman_server, part HTTP: probes (--http-health). /healthz and /readyz are at --http, and at an
 * address of their own without TLS and without a token, because some programs that watch a process
 * cannot send a certificate or a token. The responses say nothing about resources or clients.
 *
 * One thread serves all connections of this address. It uses plain sockets and poll, and nothing of
 * server/http/http_connection.c, so a probe never waits in the queue of the pages. /readyz takes
 * the lock of the service. A connection has one request. The response fits in the buffer of the
 * socket, so the thread never waits for a peer. A request must arrive within HEALTH_SECONDS. When
 * all connections are in use, a new one replaces the oldest one. */
#include "../util/socket.h"
#include "pages.h"

#include <poll.h>
#include <unistd.h>

#define HEALTH_CONNECTION_MAX 16
#define HEALTH_BYTES_MAX 4096 /* of the head of a request */
#define HEALTH_SECONDS 5
#define HEALTH_RETRY_MS 10 /* after accept has failed, for example without free descriptors */

struct health_connection {
    int fd; /* -1: not in use */
    doorman_time deadline;
    size_t bytes; /* bytes of `in` that have been received */
    char in[HEALTH_BYTES_MAX];
};

struct health {
    int listener;      /* -1: none */
    char address[264]; /* HOST:PORT, with the real port */
    int wake[2];       /* a pipe: the thread stops when its writing end is closed */
    pthread_t thread;
    bool has_thread;
    struct health_connection connections[HEALTH_CONNECTION_MAX];
};

/* ---- responses ------------------------------------------------------------------------------ */

static void handle_health(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    (void)service;
    (void)request;
    server_text_add(&response->text, "ok\n");
}

/* A process is ready if it is the master or knows the master, and it neither stops nor is drained.
 * With ?master=1, only the master is ready. A load balancer in front of clients that follow no
 * redirects needs this. */
static void handle_ready(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct snapshot snapshot = {.now = 0};
    server_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    server_unlock(&service->lock);
    const char *text = "ready\n";
    if (snapshot.stopping) {
        text = "stopping\n";
    } else if (snapshot.drain.phase != DRAIN_NONE) {
        text = "drained\n";
    } else if (!snapshot.is_master && !snapshot.master[0]) {
        text = "the master is not known\n";
    } else if (!snapshot.is_master && server_query_is_set(request->query, "master")) {
        text = "another process is the master\n";
    }
    if (strcmp(text, "ready\n") != 0) response->code = 503;
    server_text_add(&response->text, text);
}

/* ---- connections ---------------------------------------------------------------------------- */

static void health_close(struct health_connection *connection) {
    close(connection->fd);
    connection->fd = -1;
}

static void health_handle(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    bool get = strcmp(request->verb, "GET") == 0 || request->is_head;
    bool is_health = strcmp(request->path, "/healthz") == 0;
    if (!is_health && strcmp(request->path, "/readyz") != 0) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "this address has only /healthz and /readyz");
    } else if (!get) {
        server_http_response_set_error(response, 405, "INVALID_ARGUMENT",
                                       "this path needs GET or HEAD");
        response->more = "Allow: GET, HEAD\r\n";
    } else {
        (is_health ? handle_health : handle_ready)(service, request, response);
    }
}

/* Answers a request whose head is complete, and closes the connection.
 *   bytes   of the head, with the empty line at its end */
static void health_answer(struct service *service, struct health_connection *connection,
                          size_t bytes) {
    struct http_request request = {.verb = NULL};
    struct http_response response = server_http_response_init(NULL);
    struct text out = {.failed = false};
    connection->in[bytes - 2] = 0;
    const char *wrong = server_http_request_read(&request, connection->in, bytes - 2);
    if (wrong) {
        server_http_response_set_error(&response, 400, "INVALID_ARGUMENT", wrong);
    } else {
        health_handle(service, &request, &response);
    }
    server_http_response_write(&out, &response, true, request.is_head);
    if (!out.failed) {
        (void)!send(connection->fd, out.buffer.text, out.buffer.bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    doorman_buffer_uninit(&out.buffer);
    health_close(connection);
}

static void health_receive(struct service *service, struct health_connection *connection) {
    ssize_t got = recv(connection->fd, connection->in + connection->bytes,
                       sizeof connection->in - connection->bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    connection->bytes += got > 0 ? (size_t)got : 0;
    size_t empty = server_http_empty_lines(connection->in, connection->bytes);
    connection->bytes -= empty;
    memmove(connection->in, connection->in + empty, connection->bytes);
    char *end = (char *)memmem(connection->in, connection->bytes, "\r\n\r\n", 4);
    if (end) {
        health_answer(service, connection, (size_t)(end - connection->in) + 4);
    } else if (got <= 0 || connection->bytes == sizeof connection->in) {
        health_close(connection);
    }
}

/* Accepts a connection. Closes the oldest one if all are in use. */
static void health_accept(struct health *health) {
    struct health_connection *chosen = &health->connections[0];
    char peer[PEER_BYTES];
    bool is_short = false;
    int fd = server_socket_accept(health->listener, peer, &is_short);
    if (fd < 0) {
        if (is_short) poll(NULL, 0, HEALTH_RETRY_MS);
        return;
    }
    for (size_t i = 1; i < HEALTH_CONNECTION_MAX && chosen->fd >= 0; i++) {
        struct health_connection *connection = &health->connections[i];
        if (connection->fd < 0 || connection->deadline < chosen->deadline) chosen = connection;
    }
    if (chosen->fd >= 0) health_close(chosen);
    chosen->fd = fd;
    chosen->bytes = 0;
    chosen->deadline = doorman_clock() + HEALTH_SECONDS * DOORMAN_SECOND;
}

/* ---- thread --------------------------------------------------------------------------------- */

/* Waits until a socket is ready, for at most a second if there are connections. Returns false if
 * the thread must stop. */
static bool health_wait(struct health *health, struct pollfd polls[HEALTH_CONNECTION_MAX + 2]) {
    int timeout_ms = -1;
    polls[HEALTH_CONNECTION_MAX] = (struct pollfd){.fd = health->listener, .events = POLLIN};
    polls[HEALTH_CONNECTION_MAX + 1] = (struct pollfd){.fd = health->wake[0], .events = POLLIN};
    for (size_t i = 0; i < HEALTH_CONNECTION_MAX; i++) {
        polls[i] = (struct pollfd){.fd = health->connections[i].fd, .events = POLLIN};
        if (polls[i].fd >= 0) timeout_ms = 1000;
    }
    if (poll(polls, HEALTH_CONNECTION_MAX + 2, timeout_ms) < 0) {
        for (size_t i = 0; i < HEALTH_CONNECTION_MAX + 2; i++) polls[i].revents = 0;
    }
    return polls[HEALTH_CONNECTION_MAX + 1].revents == 0;
}

static void *health_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct health *health = service->health;
    struct pollfd polls[HEALTH_CONNECTION_MAX + 2];
    while (health_wait(health, polls)) {
        for (size_t i = 0; i < HEALTH_CONNECTION_MAX; i++) {
            struct health_connection *connection = &health->connections[i];
            if (polls[i].revents) health_receive(service, connection);
            if (connection->fd >= 0 && doorman_clock() >= connection->deadline) {
                health_close(connection);
            }
        }
        if (polls[HEALTH_CONNECTION_MAX].revents) health_accept(health);
    }
    return NULL;
}

/* ---- start ---------------------------------------------------------------------------------- */

static enum exit_status health_listen(struct health *health, const char *text) {
    int error =
        server_socket_listen(&health->listener, text, health->address, sizeof health->address);
    return error == 0 ? CONTINUE
                      : server_socket_refuse("http-health", text, "127.0.0.1:15051", error,
                                             "give another address");
}

/* Notes the real port, and logs it with the address. */
static void health_log(struct service *service) {
    const char *port = strrchr(service->health->address, ':') + 1;
    service->http_health_port = (unsigned)strtoul(port, NULL, 10);
    server_log(service->settings, LEVEL_INFO, "answering probes", "http_health",
               service->settings->http_health, "port", port, LOG_END);
}

static enum exit_status health_start(struct service *service) {
    const char *text = service->settings->http_health;
    if (!text) return CONTINUE;
    struct health *health = (struct health *)calloc(1, sizeof *health);
    if (!health) return server_fatal_error(EXIT_ERROR, "out of memory");
    service->health = health;
    health->listener = health->wake[0] = health->wake[1] = -1;
    for (size_t i = 0; i < HEALTH_CONNECTION_MAX; i++) health->connections[i].fd = -1;
    enum exit_status exit_status = health_listen(health, text);
    if (exit_status == CONTINUE) {
        health->has_thread = pipe(health->wake) == 0 &&
                             pthread_create(&health->thread, NULL, health_main, service) == 0;
        if (!health->has_thread) {
            return server_fatal_error(EXIT_ERROR, "cannot answer probes: %s", strerror(errno));
        }
        health_log(service);
    }
    return exit_status;
}

static void health_stop(struct service *service) {
    struct health *health = service->health;
    if (!health) return;
    if (health->wake[1] >= 0) close(health->wake[1]);
    if (health->has_thread) pthread_join(health->thread, NULL);
    if (health->wake[0] >= 0) close(health->wake[0]);
    if (health->listener >= 0) close(health->listener);
    for (size_t i = 0; i < HEALTH_CONNECTION_MAX; i++) {
        if (health->connections[i].fd >= 0) health_close(&health->connections[i]);
    }
    free(health);
}

static const struct http_route health_routes[] = {
    {"/healthz", .is_open = true, .is_immediate = true, .handle = handle_health},
    {"/readyz", .is_open = true, .is_immediate = true, .handle = handle_ready},
    {.path = NULL}};

const struct server_part server_part_health = {
    .start = health_start, .stop = health_stop, .routes = health_routes};
