/* doorman_server, part GRPC: one connection of HTTP/2, over nghttp2. This file has no socket: the
 * loop gives it what has come, and takes what must be sent. */
#include "grpc.h"

#include <nghttp2/nghttp2.h>

#define WINDOW_BYTES (1 << 20)
#define HEADERS_ABSURD ((size_t)64 << 10) /* a longer header list ends the connection */

static nghttp2_session *connection_session(const struct grpc_connection *connection) {
    return (nghttp2_session *)connection->session;
}

/* ---- callbacks of nghttp2 ------------------------------------------------------------------- */

static struct grpc_stream *connection_find(nghttp2_session *session, int32_t id) {
    return (struct grpc_stream *)nghttp2_session_get_stream_user_data(session, id);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct grpc_connection *connection = (struct grpc_connection *)context;
    const bool is_new = frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    connection->heading = is_new ? server_grpc_stream_open(connection, frame->hd.stream_id)
                                 : connection_find(session, frame->hd.stream_id);
    if (!is_new) return 0;
    if (!connection->heading) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, connection->heading);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t marks,
                     void *context) {
    struct grpc_stream *stream = ((const struct grpc_connection *)context)->heading;
    (void)session, (void)frame, (void)marks;
    if (!stream) return 0;
    server_grpc_stream_header(stream, (struct grpc_text){(const char *)name, name_bytes},
                              (struct grpc_text){(const char *)value, value_bytes});
    return stream->header_bytes > HEADERS_ABSURD ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_data(nghttp2_session *session, uint8_t marks, int32_t id, const uint8_t *bytes,
                   size_t count, void *context) {
    struct grpc_stream *stream = connection_find(session, id);
    (void)marks, (void)context;
    if (stream) server_grpc_stream_data(stream, bytes, count);
    return 0;
}

/* Returns whether a frame asks for something. Such frames cost no budget. */
static bool frame_is_useful(const nghttp2_frame *frame) {
    return frame->hd.type == NGHTTP2_HEADERS ||
           (frame->hd.type == NGHTTP2_DATA &&
            (frame->hd.length > 0 || frame->hd.flags & NGHTTP2_FLAG_END_STREAM));
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct grpc_connection *connection = (struct grpc_connection *)context;
    const bool is_head = frame->hd.type == NGHTTP2_HEADERS;
    const bool is_last = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (!frame_is_useful(frame)) server_grpc_connection_charge(connection, 1);
    if (connection->has_ended) return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (!is_head && (frame->hd.type != NGHTTP2_DATA || !is_last)) return 0;
    struct grpc_stream *stream =
        is_head ? connection->heading : connection_find(session, frame->hd.stream_id);
    if (!stream) return 0;
    if (is_head) server_grpc_stream_head_end(stream);
    if (is_last) server_grpc_stream_end(stream);
    return 0;
}

/* Ignores a frame of an unknown type. The frame costs budget, as it may be part of a flood. */
static int on_unknown(nghttp2_session *session, void **payload, const nghttp2_frame_hd *head,
                      void *context) {
    struct grpc_connection *connection = (struct grpc_connection *)context;
    (void)session, (void)payload, (void)head;
    server_grpc_connection_charge(connection, 1);
    return connection->has_ended ? NGHTTP2_ERR_CALLBACK_FAILURE : NGHTTP2_ERR_CANCEL;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error,
                            void *context) {
    (void)session, (void)frame, (void)error;
    server_grpc_connection_charge((struct grpc_connection *)context, 10);
    return 0;
}

/* Resets a stream whose response was sent before its request was complete: the peer need not send
 * the rest. */
static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    const bool is_last =
        frame->hd.type == NGHTTP2_HEADERS && frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    const struct grpc_stream *stream =
        is_last ? connection_find(session, frame->hd.stream_id) : NULL;
    (void)context;
    if (stream && !stream->is_ended) {
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
    }
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *context) {
    struct grpc_stream *stream = connection_find(session, id);
    (void)error, (void)context;
    if (stream) server_grpc_stream_close(stream); /* nghttp2 does not find it any more */
    return 0;
}

/* ---- the session ---------------------------------------------------------------------------- */

/* Makes the options. nghttp2 must not keep closed streams in its tree of priorities, which is of no
 * use here. It must report frames of unknown types. */
static int options_create(nghttp2_option **out) {
    int error = nghttp2_option_new(out);
    if (error != 0) return error;
    nghttp2_option_set_no_closed_streams(*out, 1);
    for (unsigned type = NGHTTP2_CONTINUATION + 1; type <= UINT8_MAX; type++) {
        nghttp2_option_set_user_recv_extension_type(*out, (uint8_t)type);
    }
    return 0;
}

static void *session_malloc(size_t bytes, void *memory) {
    return server_grpc_memory_take((struct grpc_memory *)memory, bytes);
}

static void session_free(void *piece, void *memory) {
    server_grpc_memory_give((struct grpc_memory *)memory, piece);
}

static void *session_calloc(size_t count, size_t each, void *memory) {
    if (each > 0 && count > SIZE_MAX / each) return NULL;
    void *piece = server_grpc_memory_take((struct grpc_memory *)memory, count * each);
    if (piece) memset(piece, 0, count * each);
    return piece;
}

static void *session_realloc(void *piece, size_t bytes, void *memory) {
    return server_grpc_memory_grow((struct grpc_memory *)memory, piece, bytes);
}

static int session_create(struct grpc_connection *connection) {
    nghttp2_mem memory = {&connection->grpc->memory, session_malloc, session_free, session_calloc,
                          session_realloc};
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *options = NULL;
    nghttp2_session *session = NULL;
    int error = nghttp2_session_callbacks_new(&callbacks);
    if (error != 0) return error;
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_unpack_extension_callback(callbacks, on_unknown);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    error = options_create(&options);
    if (error == 0) {
        error = nghttp2_session_server_new3(&session, callbacks, connection, options, &memory);
    }
    nghttp2_option_del(options);
    nghttp2_session_callbacks_del(callbacks);
    connection->session = session;
    return error;
}

static int session_start(struct grpc_connection *connection) {
    const nghttp2_settings_entry settings[] = {
#if NGHTTP2_VERSION_NUM >= 0x013000 /* 1.48 */
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
#endif
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, GRPC_STREAM_MAX},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, GRPC_HEADERS_MAX}
    };
    int error = session_create(connection);
    if (error == 0) {
        error = nghttp2_submit_settings(connection_session(connection), NGHTTP2_FLAG_NONE, settings,
                                        sizeof settings / sizeof *settings);
    }
    if (error == 0) {
        error = nghttp2_session_set_local_window_size(connection_session(connection),
                                                      NGHTTP2_FLAG_NONE, 0, WINDOW_BYTES);
    }
    return error;
}

struct grpc_connection *server_grpc_connection_create(struct grpc *grpc, int socket,
                                                      struct tls_session *tls) {
    struct grpc_connection *connection = (struct grpc_connection *)calloc(1, sizeof *connection);
    if (!connection) return NULL;
    connection->grpc = grpc;
    connection->socket = socket;
    connection->accepted_at = connection->idle_at = connection->budget_at = grpc->now;
    connection->budget = GRPC_BUDGET_MAX;
    if (session_start(connection) != 0) {
        nghttp2_session_del(connection_session(connection));
        free(connection);
        return NULL;
    }
    connection->tls = tls;
    connection->is_shaking = tls != NULL;
    connection->next = grpc->first;
    if (grpc->first) grpc->first->previous = connection;
    grpc->first = connection;
    grpc->connection_count++;
    server_counter_add(&grpc->counters.connections, 1);
    return connection;
}

/* Closes the streams itself, because nghttp2_session_del does not call on_close. */
void server_grpc_connection_destroy(struct grpc_connection *connection) {
    struct grpc *grpc = connection->grpc;
    if (connection->has_ended) grpc->ended_count--;
    connection->has_ended = true; /* no stream can end it once more */
    while (connection->streams) server_grpc_stream_close(connection->streams);
    nghttp2_session_del(connection_session(connection));
    if (connection->tls) grpc->service->tls_calls->end(connection->tls);
    if (connection->previous) connection->previous->next = connection->next;
    if (connection->next) connection->next->previous = connection->previous;
    if (grpc->first == connection) grpc->first = connection->next;
    grpc->connection_count--;
    server_counter_add(&grpc->counters.connections, (uint64_t)-1);
    free(connection);
}

void server_grpc_connection_feed(struct grpc_connection *connection, const uint8_t *bytes,
                                 size_t count) {
    ssize_t used = nghttp2_session_mem_recv(connection_session(connection), bytes, count);
    if (used < 0) server_grpc_connection_end(connection, GRPC_END_PROTOCOL);
}

/* The bytes that nghttp2 gives are valid until it is asked again. So what does not fit into `out`
 * stays in `rest`, and nghttp2 is asked only when `rest` is empty. */
bool server_grpc_connection_fill(struct grpc_connection *connection) {
    nghttp2_session *session = connection_session(connection);
    if (connection->out_sent == connection->out_bytes) {
        connection->out_sent = connection->out_bytes = 0;
    }
    while (!connection->has_ended) {
        const uint8_t *bytes = NULL;
        size_t room = sizeof connection->out - connection->out_bytes;
        if (connection->rest_bytes == 0) {
            ssize_t count = nghttp2_session_mem_send(session, &bytes);
            if (count < 0) server_grpc_connection_end(connection, GRPC_END_PROTOCOL);
            if (count <= 0) break;
            connection->rest = bytes;
            connection->rest_bytes = (size_t)count;
        }
        size_t count = connection->rest_bytes < room ? connection->rest_bytes : room;
        memcpy(connection->out + connection->out_bytes, connection->rest, count);
        connection->out_bytes += count;
        connection->rest += count;
        connection->rest_bytes -= count;
        if (connection->rest_bytes > 0) break;
    }
    return connection->out_sent < connection->out_bytes;
}

bool server_grpc_connection_is_over(const struct grpc_connection *connection) {
    nghttp2_session *session = connection_session(connection);
    return connection->rest_bytes == 0 && connection->out_sent == connection->out_bytes &&
           !nghttp2_session_want_read(session) && !nghttp2_session_want_write(session);
}

void server_grpc_connection_drain(struct grpc_connection *connection) {
    nghttp2_session *session = connection_session(connection);
    if (connection->is_closing) return;
    connection->is_closing = true;
    nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE,
                          nghttp2_session_get_last_proc_stream_id(session), NGHTTP2_NO_ERROR, NULL,
                          0);
    struct grpc_stream *next = NULL;
    for (struct grpc_stream *stream = connection->streams; stream; stream = next) {
        next = stream->next;
        server_grpc_stream_drain(stream);
    }
}
