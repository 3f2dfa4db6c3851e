/* doorman_server, part GRPC: the listener and the loop. This file has the sockets.
 *
 * One thread runs the loop. It waits with epoll for connections, for answers of processes and for
 * orders of the main thread, and looks at all connections every TICK. Decisions are short, so one
 * thread is enough: the lock of the service would let only one thread decide at a time anyway.
 *
 * At most --grpc-connections are open. If this number is reached, a new connection takes the place
 * of one that has not made a call yet, or else of one that has no request now. Of several, the one
 * that has been idle longest goes. If the server has tokens, a health check is not a call: it needs
 * no token, so any peer could keep a place for ever with Watch. In any case, a connection is closed
 * if it has completed no request GRPC_PATIENCE after its beginning, or if its peer leaves unread
 * for that long what was sent. */
#include "grpc.h"

#include "../util/socket.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK (DOORMAN_SECOND / 10)
#define LOOK_INTERVAL (DOORMAN_SECOND / 2)
#define EVENT_MAX 64
#define READS_MAX 4                       /* of one connection, before others have their turn */
#define ACCEPTS_MAX 64                    /* the same for new connections */
#define EVICTION_AGE (DOORMAN_SECOND / 2) /* younger connections keep their place */
#define ENDING (DOORMAN_SECOND / 2)       /* at the stop: how long the last responses may take */

/* ---- one connection ------------------------------------------------------------------------- */

static ssize_t io_recv(struct grpc_connection *connection, uint8_t *bytes, size_t room) {
    const struct tls_calls *tls = connection->grpc->service->tls_calls;
    if (connection->tls) return tls->receive(connection->tls, bytes, room);
    return recv(connection->socket, bytes, room, 0);
}

static ssize_t io_send(struct grpc_connection *connection, const uint8_t *bytes, size_t count) {
    const struct tls_calls *tls = connection->grpc->service->tls_calls;
    if (connection->tls) return tls->send(connection->tls, bytes, count);
    return send(connection->socket, bytes, count, MSG_NOSIGNAL);
}

/* Sends what there is, until the socket is full. */
static void io_flush(struct grpc_connection *connection) {
    while (!connection->has_ended && server_grpc_connection_fill(connection)) {
        ssize_t sent = io_send(connection, connection->out + connection->out_sent,
                               connection->out_bytes - connection->out_sent);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) {
            server_grpc_connection_end(connection, GRPC_END_PEER);
            return;
        }
        if (sent < 0) {
            if (!connection->stalled_at) connection->stalled_at = connection->grpc->now;
            return;
        }
        connection->out_sent += (size_t)sent;
        connection->stalled_at = 0;
    }
    if (!connection->has_ended && server_grpc_connection_is_over(connection)) {
        server_grpc_connection_end(connection,
                                   connection->is_closing ? GRPC_END_STOP : GRPC_END_PEER);
    }
}

/* Reads what has come, but nothing from a peer that does not read its responses. If a read leaves
 * room in the buffer, the socket is most likely empty, and reading ends. If the socket is not
 * empty, epoll says so at once. */
static void io_read(struct grpc_connection *connection) {
    const struct tls_calls *tls = connection->grpc->service->tls_calls;
    uint8_t bytes[16 << 10];
    for (int i = 0; !connection->has_ended && !connection->stalled_at; i++) {
        bool has_bytes = connection->tls && tls->has_bytes(connection->tls);
        if (i >= READS_MAX && !has_bytes) return;
        ssize_t count = io_recv(connection, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count <= 0) {
            server_grpc_connection_end(connection, GRPC_END_PEER);
            return;
        }
        server_grpc_connection_feed(connection, bytes, (size_t)count);
        io_flush(connection);
        has_bytes = connection->tls && tls->has_bytes(connection->tls);
        if ((size_t)count < sizeof bytes && !has_bytes) return;
    }
}

static void io_shake(struct grpc_connection *connection) {
    struct service *service = connection->grpc->service;
    char refusal[TLS_TEXT] = "";
    enum tls_result result =
        service->tls_calls->handshake(connection->tls, refusal, sizeof refusal);
    connection->is_shaking = result != TLS_DONE;
    connection->is_writing = result == TLS_WRITES;
    if (result != TLS_FAILED && !refusal[0]) return;
    server_log_handshake(service, refusal[0] != 0, connection->peer);
    if (refusal[0]) service->tls_calls->refuse(connection->tls);
    server_grpc_connection_end(connection, GRPC_END_HANDSHAKE);
}

/* Asks epoll for what the connection waits for. */
static void io_watch(struct grpc_connection *connection) {
    uint32_t events = connection->stalled_at ? 0 : EPOLLIN;
    if (connection->stalled_at || (connection->is_shaking && connection->is_writing)) {
        events |= EPOLLOUT;
    }
    if (connection->has_ended || events == connection->events) return;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    connection->events = events;
    if (epoll_ctl(connection->grpc->epoll, EPOLL_CTL_MOD, connection->socket, &event) != 0) {
        server_grpc_connection_end(connection, GRPC_END_PEER);
    }
}

static void io_step(struct grpc_connection *connection) {
    if (connection->has_ended) return;
    if (connection->is_shaking) io_shake(connection);
    if (!connection->is_shaking) {
        io_flush(connection);
        io_read(connection);
    }
    io_watch(connection);
}

/* ---- new connections ------------------------------------------------------------------------ */

/* Makes epoll watch the listener, or stop watching it. */
static void listener_watch(struct grpc *grpc, bool listens) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &grpc->listener};
    if (grpc->is_listening == listens || grpc->listener < 0) return;
    int operation = listens ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (epoll_ctl(grpc->epoll, operation, grpc->listener, &event) == 0) {
        grpc->is_listening = listens;
    }
}

/* Returns the connection whose place a new one takes; NULL: none. */
static struct grpc_connection *listener_choose(const struct grpc *grpc) {
    struct grpc_connection *chosen = NULL;
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        bool is_free = !each->is_proved || each->stream_count == 0;
        doorman_time since = each->is_proved ? each->idle_at : each->accepted_at;
        if (!is_free || each->has_ended || grpc->now - since < EVICTION_AGE) continue;
        bool better = !chosen || (chosen->is_proved && !each->is_proved) ||
                      (chosen->is_proved == each->is_proved && each->idle_at < chosen->idle_at);
        if (better) chosen = each;
    }
    return chosen;
}

/* Makes a connection of a socket. The caller closes the socket if this fails. */
static bool listener_take(struct grpc *grpc, int socket, const char *peer) {
    const int on = 1;
    const struct tls_calls *calls = grpc->service->tls_calls;
    struct tls_session *session = NULL;
    server_lock(&grpc->lock);
    if (grpc->tls) session = calls->begin(grpc->tls, socket);
    bool done = session || !grpc->tls;
    server_unlock(&grpc->lock);
    struct grpc_connection *connection =
        done ? server_grpc_connection_create(grpc, socket, session) : NULL;
    if (!connection) {
        if (session) calls->end(session);
        return false;
    }
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    memcpy(connection->peer, peer, sizeof connection->peer);
    connection->events = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(grpc->epoll, EPOLL_CTL_ADD, socket, &event) != 0) {
        server_grpc_connection_end(connection, GRPC_END_PEER);
    }
    server_counter_add(&grpc->counters.accepted, 1);
    io_step(connection);
    return true;
}

static void connection_free(struct grpc_connection *connection) {
    int socket = connection->socket;
    server_grpc_connection_destroy(connection);
    close(socket);
}

static void connections_sweep(struct grpc *grpc) {
    struct grpc_connection *next = NULL;
    for (struct grpc_connection *each = grpc->first; each; each = next) {
        next = each->next;
        if (each->has_ended) connection_free(each);
    }
}

/* Ends a connection whose place is needed. Sends the peer a GOAWAY if the socket takes it now. */
static void connection_evict(struct grpc_connection *connection) {
    if (!connection->is_shaking) {
        server_grpc_connection_drain(connection);
        if (server_grpc_connection_fill(connection)) {
            (void)io_send(connection, connection->out + connection->out_sent,
                          connection->out_bytes - connection->out_sent);
        }
    }
    server_grpc_connection_end(connection, GRPC_END_CROWDED);
}

/* Accepts connections. If the limit is reached and no connection can be closed, the listener waits
 * for the next tick. The sockets of ended connections are closed at the end of the turn, so until
 * then up to ACCEPTS_MAX sockets more than the limit are open. */
static void listener_accept(struct grpc *grpc) {
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        char peer[PEER_BYTES];
        bool is_short = false;
        const bool is_full = grpc->connection_count - grpc->ended_count >= grpc->limit;
        struct grpc_connection *chosen = is_full ? listener_choose(grpc) : NULL;
        if (is_full && !chosen) {
            listener_watch(grpc, false);
            return;
        }
        int socket = server_socket_accept(grpc->listener, peer, &is_short);
        if (socket < 0) {
            if (is_short) listener_watch(grpc, false); /* no descriptor or memory is free */
            return;
        }
        if (chosen) connection_evict(chosen);
        if (!listener_take(grpc, socket, peer)) close(socket);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void loop_drain(struct grpc *grpc) {
    grpc->is_draining = true;
    listener_watch(grpc, false);
    close(grpc->listener);
    grpc->listener = -1;
    server_grpc_look(grpc);
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        if (each->has_ended) continue;
        server_grpc_connection_drain(each);
        if (each->is_shaking) server_grpc_connection_end(each, GRPC_END_STOP);
        io_step(each);
    }
}

/* Tells the peers of all connections to leave, when a drain begins (E11). The loop still accepts
 * connections, because their peers may know no other address. */
static void loop_leave(struct grpc *grpc) {
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        if (each->has_ended || each->is_shaking) continue;
        server_grpc_connection_drain(each);
        io_step(each);
    }
}

/* Looks whether this process can answer, and whether a drain has begun. */
static void loop_look(struct grpc *grpc) {
    grpc->looked_at = grpc->now;
    server_grpc_look(grpc);
    if (grpc->is_drained && !grpc->was_drained) loop_leave(grpc);
    grpc->was_drained = grpc->is_drained;
}

/* Takes orders of the main thread, and answers of the processes that were asked. */
static void loop_wake(struct grpc *grpc) {
    struct grpc_answer answer;
    eventfd_t count = 0;
    (void)eventfd_read(grpc->wake, &count);
    server_lock(&grpc->lock);
    bool drains = grpc->drains || grpc->ends, ends = grpc->ends;
    server_unlock(&grpc->lock);
    if (drains && !grpc->is_draining) loop_drain(grpc);
    if (ends && !grpc->ends_at) grpc->ends_at = grpc->now + ENDING;
    while (server_grpc_master_next(grpc->master, &answer)) {
        struct grpc_stream *stream = (struct grpc_stream *)answer.owner;
        if (stream) {
            struct grpc_connection *connection = stream->connection;
            server_grpc_stream_answer(stream, &answer);
            io_flush(connection);
            io_watch(connection);
        }
        server_grpc_master_end(grpc->master, &answer);
    }
    bool is_reached = server_grpc_master_is_reached(grpc->master);
    if (is_reached != grpc->was_reached) grpc->looked_at = 0; /* the health may have changed */
    grpc->was_reached = is_reached;
}

static void connection_tick(struct grpc_connection *connection) {
    struct grpc *grpc = connection->grpc;
    bool is_silent = !connection->has_called && grpc->now - connection->accepted_at > GRPC_PATIENCE;
    bool is_stalled = connection->stalled_at && grpc->now - connection->stalled_at > GRPC_PATIENCE;
    if (is_silent || is_stalled) {
        server_grpc_connection_end(connection, GRPC_END_SLOW);
    } else if (!connection->is_shaking && connection->stream_count > 0) {
        server_grpc_streams_tick(connection);
        io_flush(connection);
        io_watch(connection);
    }
}

static void loop_tick(struct grpc *grpc) {
    grpc->ticked_at = grpc->now;
    if (!grpc->is_draining) listener_watch(grpc, true);
    server_grpc_quotas_work(grpc);
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        if (!each->has_ended) connection_tick(each);
    }
}

static void loop_handle(struct grpc *grpc, void *of) {
    if (of == &grpc->listener) {
        listener_accept(grpc);
    } else if (of == &grpc->wake) {
        loop_wake(grpc);
    } else {
        io_step((struct grpc_connection *)of);
    }
}

static void *grpc_main(void *argument) {
    struct grpc *grpc = (struct grpc *)argument;
    const struct forward_calls *forwards = grpc->service->forwards;
    struct epoll_event events[EVENT_MAX];
    while (!grpc->ends_at || (grpc->now < grpc->ends_at && grpc->connection_count > 0)) {
        int count = epoll_wait(grpc->epoll, events, EVENT_MAX, (int)(TICK / 1000000));
        grpc->now = doorman_clock();
        if (forwards) forwards->hold();
        for (int i = 0; i < count; i++) loop_handle(grpc, events[i].data.ptr);
        if (forwards) forwards->release(grpc->service);
        server_grpc_master_tend(grpc->master);
        if (grpc->now - grpc->looked_at >= LOOK_INTERVAL && !grpc->is_draining) loop_look(grpc);
        if (grpc->now - grpc->ticked_at >= TICK) loop_tick(grpc);
        connections_sweep(grpc);
    }
    return NULL;
}

/* ---- the start ------------------------------------------------------------------------------ */

static enum exit_status listener_start(struct grpc *grpc) {
    const char *address = grpc->service->settings->grpc;
    int error = server_socket_listen(&grpc->listener, address, grpc->address, sizeof grpc->address);
    return error == 0 ? CONTINUE
                      : server_socket_refuse("grpc", address, "127.0.0.1:15080", error,
                                             "give another address");
}

/* Makes what the loop needs. */
static bool grpc_open(struct grpc *grpc) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &grpc->wake};
    grpc->epoll = epoll_create1(EPOLL_CLOEXEC);
    grpc->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    grpc->master = grpc->wake >= 0 ? server_grpc_master_create(grpc->service, grpc->wake) : NULL;
    return grpc->epoll >= 0 && grpc->master && server_grpc_quotas_create(grpc) &&
           epoll_ctl(grpc->epoll, EPOLL_CTL_ADD, grpc->wake, &event) == 0;
}

static enum exit_status grpc_start_tls(struct grpc *grpc) {
    const struct pem *pem = &grpc->service->pem;
    char why[TLS_TEXT] = "";
    if (!pem->certificate) return CONTINUE;
    grpc->tls = grpc->service->tls_calls->create(pem, "h2", why);
    return grpc->tls ? CONTINUE
                     : server_fatal_error(EXIT_ERROR,
                                          "--grpc: the files of --tls-cert, --tls-key "
                                          "and --tls-ca cannot be used: %s",
                                          why);
}

static enum exit_status grpc_start(struct service *service) {
    struct grpc *grpc = service->grpc;
    const struct settings *settings = service->settings;
    grpc->service = service;
    grpc->epoll = grpc->wake = grpc->listener = -1;
    if (!settings->grpc) return CONTINUE;
    if (!server_lock_init(&grpc->lock, LOCK_GRPC) || !grpc_open(grpc)) {
        return server_fatal_error(EXIT_ERROR, "cannot serve gRPC: out of memory or descriptors");
    }
    grpc->has_lock = true;
    grpc->limit = settings->grpc_connection_max;
    grpc->now = doorman_clock();
    enum exit_status exit_status =
        server_http_check_reach(service, "grpc", settings->grpc,
                                "the token of gRPC travels in plain text: give --tls-cert");
    if (exit_status == CONTINUE) exit_status = grpc_start_tls(grpc);
    if (exit_status == CONTINUE) exit_status = listener_start(grpc);
    if (exit_status != CONTINUE) return exit_status;
    server_grpc_look(grpc);
    listener_watch(grpc, true);
    grpc->has_thread = pthread_create(&grpc->thread, NULL, grpc_main, grpc) == 0;
    if (!grpc->has_thread) {
        return server_fatal_error(EXIT_ERROR, "cannot serve gRPC: out of threads");
    }
    server_log(settings, LEVEL_INFO, "serving gRPC", "grpc", grpc->address, "tls",
               grpc->tls ? "yes" : "no", LOG_END);
    return CONTINUE;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void grpc_order(struct grpc *grpc, bool ends) {
    if (!grpc->has_thread) return;
    server_lock(&grpc->lock);
    grpc->drains = true;
    grpc->ends = ends;
    server_unlock(&grpc->lock);
    (void)eventfd_write(grpc->wake, 1);
}

static void grpc_stopping(struct service *service) { grpc_order(service->grpc, false); }

static void grpc_stop(struct service *service) {
    struct grpc *grpc = service->grpc;
    if (!grpc || !grpc->service) return; /* this part was not started */
    grpc_order(grpc, true);
    if (grpc->has_thread) pthread_join(grpc->thread, NULL);
    grpc->has_thread = false;
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        server_grpc_connection_end(each, GRPC_END_STOP);
    }
    connections_sweep(grpc);
    server_grpc_master_destroy(grpc->master);
    grpc->master = NULL;
    server_quotas_destroy(grpc->quotas);
    grpc->quotas = NULL;
    server_grpc_spares_free(grpc);
    server_grpc_memory_free(&grpc->memory);
    if (grpc->listener >= 0) close(grpc->listener);
    if (grpc->epoll >= 0) close(grpc->epoll);
    if (grpc->wake >= 0) close(grpc->wake);
    if (grpc->tls) service->tls_calls->release(grpc->tls);
    grpc->tls = NULL;
    if (grpc->has_lock) server_lock_uninit(&grpc->lock);
    grpc->service = NULL;
}

/* Lets new connections, also those to the master, use the new certificates. */
static void grpc_set_tls(struct service *service) {
    struct grpc *grpc = service->grpc;
    char why[TLS_TEXT] = "";
    if (grpc->master) server_grpc_master_note_tls(grpc->master);
    if (!grpc->tls || !service->pem.certificate) return;
    struct tls_server *tls = service->tls_calls->create(&service->pem, "h2", why);
    if (!tls) {
        server_log(service->settings, LEVEL_WARNING,
                   "gRPC keeps its certificate until the server starts again", "error", why,
                   LOG_END);
        return;
    }
    server_lock(&grpc->lock);
    struct tls_server *last = grpc->tls;
    grpc->tls = tls;
    server_unlock(&grpc->lock);
    service->tls_calls->release(last);
}

const struct server_part server_part_grpc = {SERVER_PART_STATE(grpc), .name = "GRPC",
                                             .start = grpc_start,     .stopping = grpc_stopping,
                                             .stop = grpc_stop,       .tls_changed = grpc_set_tls};
