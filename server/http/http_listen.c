/* doorman_server, part HTTP: the listener and the loop. This file accepts connections, limits their
 * number, and starts and stops HTTP. It changes service->http.
 *
 * One thread runs the loop. It waits with epoll for the sockets of all connections, for the
 * listener, for responses that other threads have made, and for the next deadline. All that it does
 * is short: see http_connection.c. One thread is enough, because the lock of the service lets only
 * one thread decide at a time anyway. epoll is level-triggered, so what a connection does not read
 * now is reported again.
 *
 * The loop needs no lock for its own members of a connection. It takes the lock of the service in
 * handlers and for log lines, and the lock of HTTP for lists and counts that other threads read.
 *
 * At most http->limit connections are open. One eighth of them is a reserve for new connections.
 * HTTP is crowded while a part of the reserve is in use. It then does two things, so that clients
 * with open connections never keep others out:
 *
 * 1. A connection closes after its next response that is made at once, and the response says so.
 *    This is enough while the clients send requests, and it costs no client a response.
 * 2. The loop looks at the connections every EVICTION_INTERVAL. If no connection is free, it closes
 *    connections until the reserve is free. Connections with the lowest rank close first. Within a
 *    rank, the connection with the nearest deadline closes first, because it has waited longest:
 *
 *        rank       state                    condition
 *        IDLE       IDLE                     the state has lasted for PATIENCE
 *        WAITING    SHAKING, HEAD,           the request has lasted for PATIENCE
 *                   CONTINUING, BODY
 *        SENDING    SENDING                  the state has lasted for PATIENCE_SENDING
 *        NEVER      any other                the state ends by itself: ANSWERING and ABANDONED by
 *                                            another thread, DELAYED at its time, and DRAINING soon
 *
 * A connection may have bytes that the loop has not read yet, for example after the process was
 * stopped and continued. So before the loop closes a connection in IDLE, HEAD or BODY, at its
 * deadline or for others, it reads what has arrived, and decides again.
 *
 * A new connection is accepted as soon as a struct http_connection is free. Each state ends, so a
 * struct becomes free in the end. */
#include "http_connection.h"

#include "../util/host.h"
#include "../util/socket.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENT_MAX 64
#define LOOKS_MAX 4    /* in a turn */
#define ACCEPTS_MAX 64 /* before others have their turn */
#define EVICTION_INTERVAL (DOORMAN_SECOND / 50)
#define ACCEPT_PAUSE (DOORMAN_SECOND / 100) /* after an error, such as too many open files */
#define ENDING DOORMAN_SECOND               /* at the stop: how long the last responses may take */
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
    case CONNECTION_SHAKING:
    case CONNECTION_HEAD:
    case CONNECTION_CONTINUING:
    case CONNECTION_BODY: return is_long ? RANK_WAITING : RANK_NEVER;
    case CONNECTION_SENDING: return is_longer ? RANK_SENDING : RANK_NEVER;
    case CONNECTION_FREE:
    case CONNECTION_ANSWERING:
    case CONNECTION_ABANDONED:
    case CONNECTION_DELAYED:
    case CONNECTION_DRAINING:
    default: return RANK_NEVER;
    }
}

/* Returns the connection to close next; NULL: none. */
static struct http_connection *http_choose(struct http *http, doorman_time now) {
    struct http_connection *chosen = NULL;
    enum eviction_rank lowest = RANK_NEVER;
    for (size_t i = 0; i < http->limit; i++) {
        struct http_connection *connection = &http->connections[i];
        enum eviction_rank rank = connection_rank(connection, now);
        bool earlier = chosen && rank == lowest && connection->deadline < chosen->deadline;
        if (rank >= lowest && !earlier) continue;
        chosen = connection;
        lowest = rank;
    }
    return chosen;
}

/* If no connection is free, closes connections until the reserve is free. If the probe finds the
 * next request of a connection, the connection has a new deadline, so it is not chosen twice. */
static void http_evict(struct http *http, doorman_time now) {
    if (http->used_count < http->limit) return;
    size_t left = http->limit - server_http_reserve(http);
    while (http->used_count > left) {
        struct http_connection *chosen = http_choose(http, now);
        if (!chosen) break;
        server_connection_probe(chosen);
        if (connection_rank(chosen, now) != RANK_NEVER) server_connection_close(chosen);
    }
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

enum exit_status server_http_check_reach(const struct service *service, const char *flag,
                                         const char *address, const char *warning) {
    const struct settings *settings = service->settings;
    char host[256];
    server_host_read(address, host, sizeof host);
    if (server_host_is_loopback(host)) return CONTINUE;
    if (!settings->http_token && !(service->tls && settings->tls_ca)) {
        return server_fatal_error(EXIT_USAGE,
                                  "--%s %s can be reached from other machines: give --http-token, "
                                  "--tls-ca, or a loopback address",
                                  flag, address);
    }
    if (!service->tls) server_log(settings, LEVEL_WARNING, warning, flag, address, LOG_END);
    return CONTINUE;
}

/* Checks --http-advertise, and whether other machines may reach --http. */
static enum exit_status http_check_settings(const struct service *service) {
    const struct settings *settings = service->settings;
    if (settings->http_advertise && !http_can_advertise(settings->http_advertise)) {
        return server_fatal_error(
            EXIT_USAGE,
            "--http-advertise '%s' is not an address that others can reach, such as "
            "http://10.0.0.1:15050",
            settings->http_advertise);
    }
    return server_http_check_reach(service, "http", settings->http,
                                   "the HTTP token travels in plain text: give --tls-cert");
}

/* Handles an error of the listener. If the default address is in use, the server continues without
 * HTTP and logs a warning. So a second server on the same machine starts without extra flags.
 *   error   of errno */
static enum exit_status http_listen_error(const struct service *service, int error) {
    const struct settings *settings = service->settings;
    if (error == EADDRINUSE && !settings->given[FLAG_HTTP]) {
        server_log(settings, LEVEL_WARNING,
                   "HTTP is off, because its address is in use; give --http, or --http off", "http",
                   settings->http, LOG_END);
        return CONTINUE;
    }
    return server_socket_refuse("http", settings->http, HTTP_DEFAULT, error,
                                "give another address, or --http off");
}

/* ---- the listener --------------------------------------------------------------------------- */

/* Logs that few connections are free, at most once a minute. */
static void http_log_crowded(struct service *service) {
    char limit[24];
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"limit", limit}};
    snprintf(limit, sizeof limit, "%zu", service->http->limit);
    server_lock(&service->lock);
    server_log_warning(service, WARNING_HTTP_CROWDED, pairs, doorman_clock());
    server_unlock(&service->lock);
}

/* Opens a connection. Precondition: one is free.
 *   tls   NULL: no TLS */
static struct http_connection *http_open_connection(struct http *http, int socket,
                                                    struct tls_session *tls) {
    struct http_connection *connection = http->free;
    assert(connection && connection->state == CONNECTION_FREE);
    http->free = connection->next;
    connection->socket = socket;
    connection->tls = tls;
    connection->events = 0;
    connection->refusal[0] = 0;
    connection->last = connection->is_head = false;
    connection->sent = connection->used = connection->body_left = 0;
    server_connection_move(connection, tls ? CONNECTION_SHAKING : CONNECTION_HEAD);
    if (server_http_is_crowded(http) && http->evict_at == DOORMAN_NEVER && !http->is_ending) {
        http->evict_at = doorman_clock() + EVICTION_INTERVAL;
        http_log_crowded(http->service);
    }
    return connection;
}

static void http_take(struct http *http, int socket, const char *peer) {
    struct tls_session *tls = NULL;
    server_lock(&http->lock);
    if (http->tls) tls = http->service->tls_calls->begin(http->tls, socket);
    bool done = tls || !http->tls;
    server_unlock(&http->lock);
    if (done) {
        struct http_connection *connection = http_open_connection(http, socket, tls);
        memcpy(connection->peer, peer, sizeof connection->peer);
        server_connection_step(connection);
    } else {
        close(socket);
    }
}

/* Accepts connections while some are free. */
static void http_accept(void *context, uint32_t events) {
    struct http *http = (struct http *)context;
    (void)events;
    for (int i = 0; i < ACCEPTS_MAX && http->used_count < http->limit; i++) {
        char peer[PEER_BYTES];
        bool is_short = false;
        int socket = server_socket_accept(http->listener, peer, &is_short);
        if (socket < 0) {
            if (is_short) http->accept_at = doorman_clock() + ACCEPT_PAUSE;
            return;
        }
        http_take(http, socket, peer);
    }
}

/* Lets epoll report new connections only while a connection is free. */
static void http_watch_listener(struct http *http, doorman_time now) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &http->on_listener};
    bool listens = !http->is_ending && http->used_count < http->limit && now >= http->accept_at;
    if (http->is_listening == listens) return;
    int operation = listens ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (epoll_ctl(http->epoll, operation, http->listener, &event) == 0) {
        http->is_listening = listens;
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* Begins the end: no connection is accepted, and delayed responses say that the server stops. */
static void loop_begin_end(struct http *http) {
    http->is_ending = true;
    http->ends_at = doorman_clock() + ENDING;
    for (size_t i = 0; i < http->limit; i++) {
        struct http_connection *connection = &http->connections[i];
        if (connection->state == CONNECTION_DELAYED) server_connection_end_delay(connection);
    }
}

/* Begins the end if another thread has ordered it. The responses of other threads wake the loop
 * too, but loop_handle takes them. */
static void loop_wake(void *context, uint32_t events) {
    struct http *http = (struct http *)context;
    eventfd_t count = 0;
    (void)events;
    (void)eventfd_read(http->wake, &count);
    server_lock(&http->lock);
    bool stops = http->stopping;
    server_unlock(&http->lock);
    if (stops && !http->is_ending) loop_begin_end(http);
}

/* Ends the states whose deadlines have passed, and finds the next deadline. next_at does not move
 * when a deadline moves later, so this function may find nothing to do. */
static void loop_look_at_deadlines(struct http *http, doorman_time now) {
    if (now < http->next_at) return;
    http->next_at = DOORMAN_NEVER;
    for (size_t i = 0; i < http->limit; i++) {
        struct http_connection *connection = &http->connections[i];
        if (connection->state == CONNECTION_FREE) continue;
        if (now >= connection->deadline) server_connection_probe(connection);
        if (now >= connection->deadline) server_connection_expire(connection);
        if (connection->deadline < http->next_at) http->next_at = connection->deadline;
    }
}

static void loop_look_at_crowd(struct http *http, doorman_time now) {
    if (now < http->evict_at) return;
    bool crowded = server_http_is_crowded(http) && !http->is_ending;
    if (crowded) http_evict(http, now);
    http->evict_at = crowded ? now + EVICTION_INTERVAL : DOORMAN_NEVER;
}

static bool loop_has_answers(struct http *http) {
    server_lock(&http->lock);
    const bool has = http->answered != NULL;
    server_unlock(&http->lock);
    return has;
}

/* Returns how long the loop may wait, in milliseconds; -1: no limit. */
static int loop_timeout(struct http *http, doorman_time now) {
    if (loop_has_answers(http)) return 0;
    doorman_time at = http->next_at < http->evict_at ? http->next_at : http->evict_at;
    if (now < http->accept_at && http->accept_at < at) at = http->accept_at;
    if (http->ends_at < at) at = http->ends_at;
    if (at == DOORMAN_NEVER) return -1;
    doorman_time left = at - now;
    if (left > 60 * DOORMAN_SECOND) left = 60 * DOORMAN_SECOND;
    return left > 0 ? (int)(left / 1000000) + 1 : 0;
}

/* Returns whether there are still responses to send, at the stop. */
static bool loop_is_busy(struct http *http) {
    bool busy = loop_has_answers(http);
    for (size_t i = 0; i < http->limit && !busy; i++) {
        busy = http->connections[i].state == CONNECTION_SENDING;
    }
    return busy;
}

static void loop_step(void *context, uint32_t events) {
    (void)events;
    server_connection_step((struct http_connection *)context);
}

static bool loop_watch(const struct service *service, struct loop_source *source, int socket,
                       uint32_t events, bool is_new) {
    struct epoll_event event = {.events = events, .data.ptr = source};
    const int operation = is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    return epoll_ctl(service->http->epoll, operation, socket, &event) == 0;
}

static const struct loop_calls loop_functions = {.watch = loop_watch};

/* Handles events. While messages for other nodes are held back, looks for more events, so that more
 * messages share a batch. Each batch wakes another process, which costs much more than a look. */
static void loop_handle(struct http *http, struct epoll_event events[EVENT_MAX], int count) {
    const struct forward_calls *forwards = http->service->forwards;
    for (int looks = 1;; looks++) {
        for (int i = 0; i < count; i++) {
            const struct loop_source *source = (const struct loop_source *)events[i].data.ptr;
            source->ready(source->context, events[i].events);
        }
        server_http_take_answers(http);
        if (count <= 0 || looks == LOOKS_MAX || !forwards || !forwards->holds()) return;
        count = epoll_wait(http->epoll, events, EVENT_MAX, 0);
    }
}

static void *loop_main(void *argument) {
    struct http *http = (struct http *)argument;
    const struct forward_calls *forwards = http->service->forwards;
    struct epoll_event events[EVENT_MAX];
    server_http_is_loop = true;
    http->now = doorman_clock();
    while (!http->is_ending || (http->now < http->ends_at && loop_is_busy(http))) {
        http_watch_listener(http, http->now);
        int count = epoll_wait(http->epoll, events, EVENT_MAX, loop_timeout(http, http->now));
        http->now = doorman_clock();
        if (forwards) forwards->hold();
        loop_handle(http, events, count);
        if (forwards) forwards->release(http->service);
        loop_look_at_deadlines(http, http->now);
        loop_look_at_crowd(http, http->now);
    }
    return NULL;
}

/* ---- the start ------------------------------------------------------------------------------ */

/* Starts to listen. Returns 0 or an error of errno. */
static int http_listen(struct http *http) {
    char name[sizeof http->address - sizeof "https://"];
    const struct service *service = http->service;
    int error = server_socket_listen(&http->listener, service->settings->http, name, sizeof name);
    if (error == 0) {
        snprintf(http->address, sizeof http->address, "%s://%s", service->tls ? "https" : "http",
                 name);
    }
    return error;
}

/* Makes what the loop needs. Returns 0 or an error of errno. */
static int http_open(struct http *http) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &http->on_wake};
    http->on_listener = (struct loop_source){http_accept, http};
    http->on_wake = (struct loop_source){loop_wake, http};
    http->limit = http_limit();
    http->next_at = http->evict_at = http->ends_at = DOORMAN_NEVER;
    for (size_t i = http->limit; i-- > 0;) {
        struct http_connection *connection = &http->connections[i];
        connection->service = http->service;
        connection->source = (struct loop_source){loop_step, connection};
        connection->socket = -1;
        connection->deadline = DOORMAN_NEVER;
        connection->next = http->free;
        http->free = connection;
    }
    http->epoll = epoll_create1(EPOLL_CLOEXEC);
    http->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    bool done = http->epoll >= 0 && http->wake >= 0 &&
                epoll_ctl(http->epoll, EPOLL_CTL_ADD, http->wake, &event) == 0;
    return done ? 0 : errno;
}

static enum exit_status http_start_threads(struct http *http) {
    bool done = server_http_start_thread(http);
    if (done) done = http->has_loop = pthread_create(&http->loop, NULL, loop_main, http) == 0;
    return done ? CONTINUE : server_fatal_error(EXIT_ERROR, "cannot serve HTTP: out of threads");
}

static enum exit_status http_start_tls(struct http *http) {
    struct service *service = http->service;
    char why[TLS_TEXT] = "";
    if (!service->pem.certificate) return CONTINUE;
    http->tls = service->tls_calls->create(&service->pem, NULL, why);
    return http->tls ? CONTINUE
                     : server_fatal_error(EXIT_ERROR,
                                          "--http: the files of --tls-cert, --tls-key and --tls-ca "
                                          "cannot be used: %s",
                                          why);
}

static enum exit_status http_create(struct service *service) {
    struct http *http = (struct http *)calloc(1, sizeof *http);
    if (http && server_lock_init(&http->lock, LOCK_HTTP) &&
        server_condition_init(&http->page_wake)) {
        http->service = service;
        http->epoll = http->wake = http->listener = -1;
        service->http = http;
        return CONTINUE;
    }
    free(http);
    return server_fatal_error(EXIT_ERROR, "out of memory");
}

static enum exit_status http_start(struct service *service) {
    if (!server_http_is_on(service->settings)) return CONTINUE;
    enum exit_status exit_status = http_check_settings(service);
    if (exit_status == CONTINUE) exit_status = http_create(service);
    if (exit_status == CONTINUE) exit_status = http_start_tls(service->http);
    if (exit_status != CONTINUE) return exit_status;
    struct http *http = service->http;
    int error = http_open(http);
    if (error == 0) error = http_listen(http);
    if (error != 0) return http_listen_error(service, error);
    service->http_address = http->address;
    service->loop = &loop_functions;
    http_set_advertised(service);
    return http_start_threads(http);
}

/* Logs what the thread of pages did. The stop may be cut off while it closes the sockets, so this
 * line comes before that. */
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

/* Lets the loop send the responses that are made, and waits for its end. */
static void http_stop_loop(struct http *http) {
    server_lock(&http->lock);
    http->stopping = true;
    server_unlock(&http->lock);
    if (http->has_loop) {
        server_http_wake(http);
        pthread_join(http->loop, NULL);
    }
    http->has_loop = false;
}

/* The thread of pages ends first, so that the loop can send its last response. */
static void http_stop(struct service *service) {
    struct http *http = service->http;
    if (!http) return;
    server_http_stop_thread(http);
    http_stop_loop(http);
    http->queue = http->answered = NULL;
    for (size_t i = 0; i < http->limit; i++) {
        struct http_connection *connection = &http->connections[i];
        if (connection->state != CONNECTION_FREE) server_connection_close(connection);
        free(connection->in);
    }
    if (http->listener >= 0) close(http->listener);
    if (http->epoll >= 0) close(http->epoll);
    if (http->wake >= 0) close(http->wake);
    if (http->tls) service->tls_calls->release(http->tls);
    pthread_cond_destroy(&http->page_wake);
    server_lock_uninit(&http->lock);
    service->http = NULL;
    free(http);
}

/* Lets new connections use the new certificates. */
static void http_set_tls(struct service *service) {
    struct http *http = service->http;
    char why[TLS_TEXT] = "";
    if (!http || !http->tls || !service->pem.certificate) return;
    struct tls_server *tls = service->tls_calls->create(&service->pem, NULL, why);
    if (!tls) {
        server_log(service->settings, LEVEL_WARNING,
                   "HTTP keeps its certificate until the server starts again", "error", why,
                   LOG_END);
        return;
    }
    server_lock(&http->lock);
    struct tls_server *last = http->tls;
    http->tls = tls;
    server_unlock(&http->lock);
    service->tls_calls->release(last);
}

const struct server_part server_part_http = {.name = "HTTP",
                                             .start = http_start,
                                             .stopping = http_stopping,
                                             .stop = http_stop,
                                             .tls_changed = http_set_tls};
