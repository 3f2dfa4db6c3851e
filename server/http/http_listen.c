/* doorman_server, part HTTP: the listener. This file accepts connections, limits their number, and
 * starts and stops HTTP. It changes service->http.
 *
 * At most http->limit connections are open. One eighth of them is a reserve for new connections.
 * HTTP is crowded while a part of the reserve is in use. It then does two things, so that clients
 * with open connections never keep others out (V5):
 *
 * 1. A connection closes after its next response, and the response says so. This is enough while
 *    the clients send requests, and it costs no client a response.
 * 2. A timer looks at the connections every EVICTION_MS. If no connection is free, it closes
 *    connections until the reserve will be free. It closes first those with the lowest rank, and of
 *    one rank those with the nearest deadline, which have waited longest:
 *
 *        rank       state                    condition
 *        IDLE       IDLE                     the state has lasted for PATIENCE
 *        WAITING    HEAD, CONTINUING, BODY   the request has lasted for PATIENCE
 *        SENDING    SENDING                  the state has lasted for PATIENCE_SENDING
 *        NEVER      any other                the state ends by itself: ANSWERING and ABANDONED by
 *                                            the thread of pages, DELAYED at its time, and
 *                                            DRAINING and CLOSING soon
 *
 *    The timer runs until HTTP is no longer crowded. So no event is lost: a connection that cannot
 *    be closed now can be closed at a later look.
 *
 * A connection may have bytes that nng has not read yet, for example after the process was stopped
 * and continued. So the timer cancels its receive operation twice. After the first time
 * the connection receives again, and the start of this operation takes bytes that have arrived. The
 * second time closes the connection. With TLS the first time already closes it, because nng closes
 * a TLS connection whose receive operation is cancelled.
 *
 * A new connection is accepted as soon as one is free. Each state ends, so a connection becomes
 * free in the end. */
#include "http_connection.h"

#include <sys/resource.h>

#define EVICTION_MS 20
#define PATIENCE (DOORMAN_SECOND / 2)
#define PATIENCE_SENDING (5 * DOORMAN_SECOND)
#define HTTP_CONNECTION_MIN 8 /* the limit of a process that can open very few files */

/* ---- the limit ------------------------------------------------------------------------------ */

static size_t http_limit(void) {
    struct rlimit files;
    size_t limit = HTTP_CONNECTION_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY &&
        files.rlim_cur / HTTP_FILES_PER_CONNECTION < limit) {
        limit = (size_t)files.rlim_cur / HTTP_FILES_PER_CONNECTION;
    }
    return limit > HTTP_CONNECTION_MIN ? limit : HTTP_CONNECTION_MIN;
}

enum eviction_rank { RANK_IDLE, RANK_WAITING, RANK_SENDING, RANK_NEVER };

/* Returns the rank of a connection, see the table above. */
static enum eviction_rank connection_rank(const struct http_connection *connection,
                                          doorman_time now) {
    doorman_time since = connection->deadline - HTTP_TIMEOUT_SECONDS * DOORMAN_SECOND;
    bool is_long = now - since >= PATIENCE, is_longer = now - since >= PATIENCE_SENDING;
    switch (connection->state) {
    case CONNECTION_IDLE: return is_long ? RANK_IDLE : RANK_NEVER;
    case CONNECTION_HEAD:
    case CONNECTION_CONTINUING:
    case CONNECTION_BODY: return is_long ? RANK_WAITING : RANK_NEVER;
    case CONNECTION_SENDING: return is_longer ? RANK_SENDING : RANK_NEVER;
    case CONNECTION_FREE:
    case CONNECTION_ANSWERING:
    case CONNECTION_ABANDONED:
    case CONNECTION_DELAYED:
    case CONNECTION_DRAINING:
    case CONNECTION_CLOSING:
    default: return RANK_NEVER;
    }
}

/* Returns the connection to close next; NULL: none. Precondition: the lock is held. */
static struct http_connection *http_choose(struct http *http, doorman_time now) {
    struct http_connection *chosen = NULL;
    enum eviction_rank lowest = RANK_NEVER;
    for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
        struct http_connection *connection = &http->connections[i];
        enum eviction_rank rank = connection_rank(connection, now);
        bool earlier = chosen && rank == lowest && connection->deadline < chosen->deadline;
        if (connection->is_evicted || (rank >= lowest && !earlier)) continue;
        chosen = connection;
        lowest = rank;
    }
    return chosen;
}

/* Cancels the operations of the connections that were chosen before. An operation that had not
 * started was not cancelled then. Returns the number of these connections. */
static size_t http_evict_again(struct http *http) {
    size_t count = 0;
    for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
        if (!http->connections[i].is_evicted) continue;
        nng_aio_cancel(http->connections[i].aio);
        count++;
    }
    return count;
}

/* Closes connections until the reserve is free, if no connection is free. Precondition: the lock is
 * held. So no connection changes its state during the call, and a cancelled operation belongs to
 * the current state. */
static void http_evict(struct http *http, doorman_time now) {
    size_t leaving = http_evict_again(http);
    size_t wanted = http->used_count == http->limit ? server_http_reserve(http) : 0;
    for (; leaving < wanted; leaving++) {
        struct http_connection *chosen = http_choose(http, now);
        if (!chosen) break;
        chosen->is_evicted = true;
        nng_aio_cancel(chosen->aio);
    }
}

/* The callback of the timer. When HTTP is no longer crowded, the chosen connections stay open. */
static void http_on_timer(void *argument) {
    struct http *http = (struct http *)argument;
    server_lock(&http->lock);
    bool again =
        nng_aio_result(http->timer) == 0 && !http->stopping && server_http_is_crowded(http);
    if (again) http_evict(http, doorman_clock());
    for (size_t i = 0; i < HTTP_CONNECTION_MAX && !again; i++) {
        http->connections[i].is_evicted = http->connections[i].is_probed = false;
    }
    http->evicting = again;
    server_unlock(&http->lock);
    if (again) nng_sleep_aio(EVICTION_MS, http->timer);
}

/* ---- settings ------------------------------------------------------------------------------- */

static bool http_can_advertise(const char *address) {
    char host[256];
    server_host_read(address, host, sizeof host);
    return server_host_is_http_address(address) && !server_host_is_wildcard(host);
}

/* Sets service->http_advertise. The default follows from the address of HTTP and from --advertise:
 *
 *     HTTP listens on   default
 *     all addresses     the host of --advertise, with the port of HTTP. None if --advertise has no
 *                       host
 *     loopback          the address of HTTP if --advertise is on this machine too. Otherwise none,
 *                       because others would reach themselves at this address
 *     any other         the address of HTTP */
static void http_set_advertised(struct service *service) {
    const char *address = server_http_address(service), *port = strrchr(address, ':');
    const char *given = service->settings->http_advertise, *advertise = service->advertise;
    char text[600], listening[256], host[256] = "";
    bool is_local = strncmp(advertise, "ipc:", 4) == 0 || strncmp(advertise, "inproc:", 7) == 0;
    if (!is_local) server_host_read(advertise, host, sizeof host);
    is_local = is_local || server_host_is_loopback(host);
    server_host_read(address, listening, sizeof listening);
    snprintf(text, sizeof text, "%s", given ? given : address);
    if (!given && server_host_is_wildcard(listening)) {
        snprintf(text, sizeof text, "%s://%s%s", service->tls ? "https" : "http", host, port);
    } else if (!given && server_host_is_loopback(listening) && !is_local) {
        text[0] = 0;
    }
    if (!http_can_advertise(text)) text[0] = 0;
    server_lock(&service->lock);
    snprintf(service->http_advertise, sizeof service->http_advertise, "%.256s", text);
    server_unlock(&service->lock);
}

/* Checks that an address that is not loopback has a token or client certificates, and that
 * --http-advertise is an address. */
static enum exit_status http_check_settings(const struct service *service) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    char host[256];
    server_host_read(settings->http, host, sizeof host);
    bool is_remote = !server_host_is_loopback(host);
    bool needs_certificate = service->tls && settings->tls_ca;
    if (settings->http_advertise && !http_can_advertise(settings->http_advertise)) {
        exit_status = server_fatal_error(
            EXIT_USAGE,
            "--http-advertise '%s' is not an address that others can reach, such as "
            "http://10.0.0.1:15050",
            settings->http_advertise);
    } else if (is_remote && !settings->http_token && !needs_certificate) {
        exit_status =
            server_fatal_error(EXIT_USAGE,
                               "--http %s can be reached from other machines: give --http-token, "
                               "--tls-ca, or a loopback address",
                               settings->http);
    } else if (is_remote && !service->tls) {
        server_log(settings, LEVEL_WARNING, "the HTTP token travels in plain text: give --tls-cert",
                   "http", settings->http, LOG_END);
    }
    return exit_status;
}

/* Handles an error of the listener. If the default address is in use, the server continues without
 * HTTP and logs a warning. So a second server on the same machine starts without extra flags. */
static enum exit_status http_listen_error(const struct service *service, int error) {
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    if (error == NNG_EADDRINUSE && !settings->given[FLAG_HTTP]) {
        server_log(settings, LEVEL_WARNING,
                   "HTTP is off, because its address is in use; give --http, or --http off", "http",
                   settings->http, LOG_END);
    } else if (error == NNG_EADDRINVAL || error == NNG_EINVAL) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "cannot listen on --http '%s': %s; an address is, for example, %s",
            settings->http, nng_strerror(error), HTTP_DEFAULT);
    } else {
        exit_status = server_fatal_error(
            EXIT_ERROR, "cannot listen on --http %s: %s; give another address, or --http off",
            settings->http, nng_strerror(error));
    }
    return exit_status;
}

/* ---- the listener --------------------------------------------------------------------------- */

/* Logs that few connections are free, at most once a minute. */
static void http_log_crowded(struct service *service) {
    char limit[24];
    snprintf(limit, sizeof limit, "%zu", service->http->limit);
    server_lock(&service->lock);
    server_log_warning(service, WARNING_HTTP_CROWDED, "limit", limit, NULL, doorman_clock());
    server_unlock(&service->lock);
}

/* Precondition: a connection is free, because server_http_accept has checked that, and only one
 * accept is in progress. */
static struct http_connection *http_open_connection(struct http *http, nng_stream *stream) {
    struct http_connection *connection = http->connections;
    server_lock(&http->lock);
    assert(http->used_count < http->limit);
    while (connection->state != CONNECTION_FREE) connection++;
    connection->stream = stream;
    connection->peer.s_family = NNG_AF_UNSPEC;
    if (stream) nng_stream_get_addr(stream, NNG_OPT_REMADDR, &connection->peer);
    server_connection_move(connection, CONNECTION_HEAD);
    connection->last = connection->is_head = false;
    connection->sent = connection->used = connection->body_left = 0;
    http->accepting = false;
    bool starts = server_http_is_crowded(http) && !http->evicting && !http->stopping;
    http->evicting = http->evicting || starts;
    server_unlock(&http->lock);
    if (starts) {
        http_log_crowded(connection->service);
        nng_sleep_aio(EVICTION_MS, http->timer);
    }
    return connection;
}

/* nng calls this function when it has accepted a connection, or has failed to accept one. After an
 * error, such as too many open files, the next try is 10 ms later. Other connections may close in
 * this time. */
static void http_step(void *argument) {
    struct http *http = (struct http *)argument;
    int result = nng_aio_result(http->aio);
    if (result == 0) {
        nng_stream *stream = (nng_stream *)nng_aio_get_output(http->aio, 0);
        server_connection_receive(http_open_connection(http, stream));
    } else {
        server_lock(&http->lock);
        http->accepting = false;
        http->stopping = http->stopping || result == NNG_ECLOSED;
        server_unlock(&http->lock);
        nng_msleep(10);
    }
    server_http_accept(http);
}

/* Starts to listen. Returns 0 or an error of nng. Sets http->address, with the real port instead of
 * 0. */
static int http_listen(struct service *service) {
    struct http *http = service->http;
    char url[320], host[256];
    int port = 0;
    snprintf(url, sizeof url, "%s://%s", service->tls ? "tls+tcp" : "tcp", service->settings->http);
    server_host_read(service->settings->http, host, sizeof host);
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

static enum exit_status http_start_connections(struct service *service) {
    struct http *http = service->http;
    int error = nng_aio_alloc(&http->aio, http_step, http);
    if (error == 0) error = nng_aio_alloc(&http->timer, http_on_timer, http);
    http->limit = http_limit();
    for (size_t i = 0; error == 0 && i < HTTP_CONNECTION_MAX; i++) {
        http->connections[i].service = service;
        error =
            nng_aio_alloc(&http->connections[i].aio, server_connection_step, &http->connections[i]);
    }
    if (error == 0 && !server_http_start_thread(http)) error = NNG_ENOMEM;
    if (error == 0) server_http_accept(http);
    return error == 0
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR, "cannot serve HTTP: %s", nng_strerror(error));
}

static enum exit_status http_start(struct service *service) {
    if (!server_http_is_on(service->settings)) return CONTINUE;
    enum exit_status exit_status = http_check_settings(service);
    struct http *http = (struct http *)calloc(1, sizeof *http);
    service->http = http;
    if (exit_status == CONTINUE && (!http || !server_lock_init(&http->lock, LOCK_HTTP) ||
                                    !server_condition_init(&http->wake))) {
        exit_status = server_fatal_error(EXIT_ERROR, "out of memory");
    }
    if (exit_status == CONTINUE) {
        int error = http_listen(service);
        if (error == 0) {
            service->http_address = http->address;
            http_set_advertised(service);
        }
        exit_status =
            error == 0 ? http_start_connections(service) : http_listen_error(service, error);
    }
    return exit_status;
}

/* Logs what the thread of pages did. Closing the sockets may be cut off, so this is done before. */
static void http_stopping(struct service *service) {
    struct http *http = service->http;
    char made[24], abandoned[24];
    if (!http) return;
    server_lock(&http->lock);
    snprintf(made, sizeof made, "%" PRIu64, http->made_count);
    snprintf(abandoned, sizeof abandoned, "%" PRIu64, http->abandoned_count);
    server_unlock(&http->lock);
    server_log(service->settings, LEVEL_DEBUG, "pages", "made", made, "abandoned", abandoned,
               LOG_END);
}

#define DRAIN_STEPS_MAX 200 /* of 5 ms each */

/* Lets the responses that wait say that the server stops, and waits until they are sent. A peer
 * that does not read delays this for at most a second. The operation of a connection may not have
 * started yet, so it is cancelled again in the next step. The lock is held while an operation is
 * cancelled. Otherwise the connection could begin to send meanwhile, and would lose its response.
 */
static void http_drain(struct http *http) {
    for (int step = 0; step < DRAIN_STEPS_MAX; step++) {
        bool busy = false;
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
            struct http_connection *connection = &http->connections[i];
            server_lock(&http->lock);
            enum http_connection_state state = connection->state;
            bool answered = state == CONNECTION_ANSWERING && connection->is_answered;
            if (state == CONNECTION_DELAYED) nng_aio_cancel(connection->aio);
            server_unlock(&http->lock);
            busy = busy || answered || state == CONNECTION_DELAYED || state == CONNECTION_SENDING;
        }
        if (!busy) return;
        nng_msleep(5);
    }
}

/* nng_aio_stop waits for the end of the callback of the aio. */
static void http_stop(struct service *service) {
    struct http *http = service->http;
    if (http) {
        server_http_stop_thread(http);
        if (http->listener) nng_stream_listener_close(http->listener);
        nng_aio_stop(http->aio);
        nng_aio_stop(http->timer);
        http_drain(http);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) nng_aio_stop(http->connections[i].aio);
        for (size_t i = 0; i < HTTP_CONNECTION_MAX; i++) {
            struct http_connection *connection = &http->connections[i];
            nng_aio_free(connection->aio); /* waits until nng does not use the stream any more */
            nng_stream_free(connection->stream);
            server_connection_free_buffers(connection);
            free(connection->in);
        }
        nng_aio_free(http->aio);
        nng_aio_free(http->timer);
        if (http->listener) nng_stream_listener_free(http->listener);
        pthread_cond_destroy(&http->wake);
        server_lock_uninit(&http->lock);
    }
    free(http);
}

/* Lets new connections use the new certificates. The accept in progress would still use the last
 * ones, so it starts again. */
static void http_set_tls(struct service *service) {
    struct http *http = service->http;
    if (!http || !http->listener || !service->tls) return;
    int error = nng_stream_listener_set_ptr(http->listener, NNG_OPT_TLS_CONFIG, service->tls);
    if (error == 0) {
        nng_aio_cancel(http->aio);
    } else {
        server_log(service->settings, LEVEL_WARNING,
                   "HTTP keeps its certificate until the server starts again", "error",
                   nng_strerror(error), LOG_END);
    }
}

const struct server_part server_part_http = {.name = "HTTP",
                                             .start = http_start,
                                             .stopping = http_stopping,
                                             .stop = http_stop,
                                             .tls_changed = http_set_tls};
