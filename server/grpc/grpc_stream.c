/* doorman_server, part GRPC: the way of one request, from its head to its response. grpc.h has the
 * table of states, and stream_move is the only function that changes the state.
 *
 * A request that is wrong gets a status of gRPC. It does not disturb the other streams of its
 * connection, unless the peer floods the server. */
#include "../log/log.h"
#include "grpc.h"

#include <nghttp2/nghttp2.h>
#include <stdarg.h>
#include <strings.h>

#define BUFFER_MAX (GRPC_MESSAGE_MAX + GRPC_PREFIX)
#define RESET_COST 10    /* frames of the budget that a cancelled request costs */
#define SPARE_BYTES 1024 /* larger buffers are not kept */
#define CALL_GAIN 10     /* frames of the budget that a complete call gives back */

static nghttp2_session *stream_session(const struct grpc_stream *stream) {
    return (nghttp2_session *)stream->connection->session;
}

static void stream_move(struct grpc_stream *stream, enum grpc_stream_state state) {
    assert(state > stream->state || (state == GRPC_STREAM_ASKING && stream->state == state));
    stream->state = state;
    stream->state_at = stream->connection->grpc->now;
}

/* ---- the response --------------------------------------------------------------------------- */

/* Writes a text as a value of grpc-message: '%', and what is not printable ASCII, becomes an
 * escape. */
static void stream_escape_text(const char *from, char *to, size_t room) {
    size_t used = 0;
    for (; *from && used + 4 < room; from++) {
        unsigned char code = (unsigned char)*from;
        bool plain = code >= 0x20 && code < 0x7f && code != '%';
        used += (size_t)snprintf(to + used, room - used, plain ? "%c" : "%%%02X", code);
    }
    to[used] = 0;
}

/* Makes a field. nghttp2 copies the value unless it is constant. */
static nghttp2_nv stream_field(const char *name, const char *value, bool is_constant) {
    union {
        const char *from;
        uint8_t *to;
    } one = {name}, other = {value}; /* nghttp2 has no const here */
    const uint8_t marks = is_constant ? NGHTTP2_NV_FLAG_NO_COPY_VALUE : NGHTTP2_NV_FLAG_NONE;
    return (nghttp2_nv){one.to, other.to, strlen(name), strlen(value),
                        marks | NGHTTP2_NV_FLAG_NO_COPY_NAME};
}

/* Sends the status: as trailers behind a message, or alone. */
static void stream_send_status(struct grpc_stream *stream, bool is_alone) {
    char code[8] = "", text[3 * GRPC_TEXT_MAX];
    const bool is_ok = stream->status.code == GRPC_OK;
    nghttp2_nv fields[4];
    size_t count = 0;
    text[0] = 0;
    if (!is_ok) {
        snprintf(code, sizeof code, "%d", (int)stream->status.code);
        stream_escape_text(stream->status.text, text, sizeof text);
    }
    if (is_alone) {
        fields[count++] = stream_field(":status", "200", true);
        fields[count++] = stream_field("content-type", "application/grpc", true);
    }
    fields[count++] = stream_field("grpc-status", is_ok ? "0" : code, is_ok);
    if (text[0]) fields[count++] = stream_field("grpc-message", text, false);
    int error =
        is_alone ? nghttp2_submit_response(stream_session(stream), stream->id, fields, count, NULL)
                 : nghttp2_submit_trailer(stream_session(stream), stream->id, fields, count);
    if (error != 0) {
        nghttp2_submit_rst_stream(stream_session(stream), NGHTTP2_FLAG_NONE, stream->id,
                                  NGHTTP2_INTERNAL_ERROR);
    }
}

/* Gives nghttp2 more of `out`, and sends the status behind the last of it, unless more can follow.
 * nghttp2 calls this function when it can send more of a response. */
static ssize_t stream_on_read(nghttp2_session *session, int32_t id, uint8_t *bytes, size_t room,
                              uint32_t *marks, nghttp2_data_source *source, void *context) {
    struct grpc_stream *stream = (struct grpc_stream *)source->ptr;
    size_t left = stream->out.buffer.bytes - stream->out_sent;
    size_t count = left < room ? left : room;
    (void)session, (void)id, (void)context;
    if (count > 0) memcpy(bytes, stream->out.buffer.text + stream->out_sent, count);
    stream->out_sent += count;
    if (stream->out_sent < stream->out.buffer.bytes) return (ssize_t)count;
    if (stream->state == GRPC_STREAM_WATCHING || stream->state == GRPC_STREAM_QUOTA) {
        return count > 0 ? (ssize_t)count : NGHTTP2_ERR_DEFERRED;
    }
    *marks |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    stream_send_status(stream, false);
    return (ssize_t)count;
}

/* Sends the head of a response, and then what is in `out`. */
static void stream_send_message(struct grpc_stream *stream) {
    const nghttp2_nv fields[] = {stream_field(":status", "200", true),
                                 stream_field("content-type", "application/grpc", true)};
    nghttp2_data_provider provider = {.source = {.ptr = stream}, .read_callback = stream_on_read};
    if (nghttp2_submit_response(stream_session(stream), stream->id, fields, 2, &provider) != 0) {
        nghttp2_submit_rst_stream(stream_session(stream), NGHTTP2_FLAG_NONE, stream->id,
                                  NGHTTP2_INTERNAL_ERROR);
    }
}

/* Takes a buffer that another stream had, so that a usual request needs no new memory. */
static void spare_take(struct grpc *grpc, doorman_buffer *buffer) {
    if (buffer->text || grpc->spare_count == 0) return;
    *buffer = grpc->spares[--grpc->spare_count];
}

static void spare_give(struct grpc *grpc, doorman_buffer *buffer) {
    if (!buffer->text || buffer->capacity > SPARE_BYTES || grpc->spare_count == GRPC_SPARE_MAX) {
        doorman_buffer_uninit(buffer);
        return;
    }
    grpc->spares[grpc->spare_count] = *buffer;
    grpc->spares[grpc->spare_count++].bytes = 0;
    *buffer = (doorman_buffer){.text = NULL};
}

void server_grpc_spares_free(struct grpc *grpc) {
    while (grpc->spare_count > 0) doorman_buffer_uninit(&grpc->spares[--grpc->spare_count]);
}

static void stream_free_buffers(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    grpc->buffered -= stream->in.buffer.bytes;
    spare_give(grpc, &stream->in.buffer);
    server_grpc_memory_give(&grpc->memory, stream->call);
    stream->call = NULL;
}

/* Ends the request with its status. If the response has not begun, it has a message only if the
 * status is OK. */
static void stream_respond(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    bool has_head = stream->state == GRPC_STREAM_WATCHING || stream->state == GRPC_STREAM_QUOTA;
    if (stream->out.failed) {
        server_grpc_fail(&stream->status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    server_grpc_quota_close(stream);
    stream_free_buffers(stream);
    stream_move(stream, GRPC_STREAM_ANSWERING);
    server_counter_add(&grpc->counters.requests[stream->method][stream->status.code], 1);
    if (has_head) {
        nghttp2_session_resume_data(stream_session(stream), stream->id);
    } else if (stream->status.code == GRPC_OK) {
        stream_send_message(stream);
    } else {
        stream_send_status(stream, true);
    }
}

/* Refuses a request with a status. The response can be sent at once, because this file ignores what
 * the peer still sends. */
__attribute__((format(printf, 3, 4))) static void
stream_refuse(struct grpc_stream *stream, enum grpc_code code, const char *format, ...) {
    va_list arguments;
    if (stream->state != GRPC_STREAM_READING && stream->state != GRPC_STREAM_QUOTA) return;
    stream->status.code = code;
    va_start(arguments, format);
    vsnprintf(stream->status.text, sizeof stream->status.text, format, arguments);
    va_end(arguments);
    stream_respond(stream);
}

/* ---- the head ------------------------------------------------------------------------------- */

struct grpc_stream *server_grpc_stream_open(struct grpc_connection *connection, int32_t id) {
    struct grpc_stream *stream =
        (struct grpc_stream *)server_grpc_memory_take(&connection->grpc->memory, sizeof *stream);
    if (!stream) return NULL;
    *stream = (struct grpc_stream){.connection = connection};
    connection->head.authorization[0] = connection->head.client[0] = 0;
    stream->id = id;
    stream->method = GRPC_UNKNOWN_METHOD;
    stream->started_at = stream->state_at = connection->grpc->now;
    stream->timeout = DOORMAN_NEVER;
    stream->next = connection->streams;
    if (stream->next) stream->next->previous = stream;
    connection->streams = stream;
    connection->stream_count++;
    server_counter_add(&connection->grpc->counters.streams, 1);
    return stream;
}

/* Reads grpc-timeout, a number of at most 8 digits and a unit. Returns DOORMAN_NEVER if it is not
 * valid: the peer then has no deadline here, and keeps its own. */
static doorman_time timeout_read(const char *value, size_t bytes) {
    static const char units[] = "HMSmun";
    static const doorman_time lengths[] = {3600 * DOORMAN_SECOND,    60 * DOORMAN_SECOND,
                                           DOORMAN_SECOND,           DOORMAN_SECOND / 1000,
                                           DOORMAN_SECOND / 1000000, 1};
    const doorman_time most = 100000000 * DOORMAN_SECOND; /* three years */
    doorman_time number = 0;
    if (bytes < 2 || bytes > 9) return DOORMAN_NEVER;
    for (size_t i = 0; i + 1 < bytes; i++) {
        if (value[i] < '0' || value[i] > '9') return DOORMAN_NEVER;
        number = number * 10 + (value[i] - '0');
    }
    const char *unit = (const char *)memchr(units, value[bytes - 1], sizeof units - 1);
    if (!unit || number > most / lengths[unit - units]) return DOORMAN_NEVER;
    return number * lengths[unit - units];
}

static bool field_is(struct grpc_text value, const char *text) {
    return strlen(text) == value.count && memcmp(value.bytes, text, value.count) == 0;
}

/* Returns whether a type is application/grpc. It may have a suffix: application/grpc+proto. */
static bool type_is_grpc(const char *value, size_t bytes) {
    static const char type[] = "application/grpc";
    const size_t length = sizeof type - 1;
    return bytes >= length && strncasecmp(value, type, length) == 0 &&
           (bytes == length || value[length] == '+' || value[length] == ';');
}

/* Copies the field with the token. If it is too long, or if there are two, the copy is "?", which
 * is no valid token. */
static void head_take_token(struct grpc_head *head, struct grpc_text value) {
    bool fits = value.count < sizeof head->authorization && !head->authorization[0];
    snprintf(head->authorization, sizeof head->authorization, "%.*s", fits ? (int)value.count : 1,
             fits ? value.bytes : "?");
}

void server_grpc_stream_header(struct grpc_stream *stream, struct grpc_text name,
                               struct grpc_text value) {
    struct grpc_head *head = &stream->connection->head;
    stream->header_bytes += name.count + value.count + 32;
    if (stream->is_head || stream->header_bytes > GRPC_HEADERS_MAX) return;
    if (field_is(name, ":path")) {
        stream->method = server_grpc_method_find(value.bytes, value.count);
    } else if (field_is(name, ":method")) {
        stream->is_post = field_is(value, "POST");
    } else if (field_is(name, "content-type")) {
        stream->is_grpc = type_is_grpc(value.bytes, value.count);
    } else if (field_is(name, "grpc-timeout")) {
        stream->timeout = timeout_read(value.bytes, value.count);
    } else if (field_is(name, "authorization")) {
        head_take_token(head, value);
    } else if (field_is(name, "x-doorman-client") && value.count < sizeof head->client) {
        snprintf(head->client, sizeof head->client, "%.*s", (int)value.count, value.bytes);
    }
}

/* Returns whether the method needs no token. */
static bool stream_is_open(const struct grpc_stream *stream) {
    return stream->method == GRPC_HEALTH_CHECK || stream->method == GRPC_HEALTH_WATCH;
}

/* Checks the token, and counts a failure as HTTP does. The health check needs none. */
static bool stream_check_token(struct grpc_stream *stream) {
    struct service *service = stream->connection->grpc->service;
    const char *given = stream->connection->head.authorization;
    int failure = FAILED_ROLE;
    if (!service->tokens || stream_is_open(stream)) return true;
    if (!server_authorization_find(service->tokens, given, &stream->token)) {
        failure = given[0] ? FAILED_TOKEN_WRONG : FAILED_TOKEN_MISSING;
        server_grpc_fail(&stream->status, GRPC_UNAUTHENTICATED, "authorization: %s",
                         given[0] ? "the token is wrong: it is not in the server's file"
                                  : "the token is missing: send 'Bearer TOKEN'");
    } else if (!server_role_includes(stream->token.role, ROLE_WRITE)) {
        server_grpc_fail(&stream->status, GRPC_PERMISSION_DENIED,
                         "authorization: this call needs a token with the role write; '%s' has the "
                         "role %s",
                         stream->token.name, server_role_name(stream->token.role));
    } else {
        return true;
    }
    server_counter_add(&service->counters.authentication_failures[failure], 1);
    if (failure != FAILED_TOKEN_MISSING) {
        server_log_peer(service, failure == FAILED_ROLE ? WARNING_ROLE : WARNING_TOKEN,
                        stream->connection->peer,
                        failure == FAILED_ROLE ? stream->token.name : NULL);
    }
    return false;
}

static void stream_begin_quotas(struct grpc_stream *stream) {
    if (!server_grpc_quota_open(stream)) {
        stream_respond(stream);
        return;
    }
    stream_move(stream, GRPC_STREAM_QUOTA);
    stream_send_message(stream);
}

void server_grpc_stream_head_end(struct grpc_stream *stream) {
    if (stream->is_head) return; /* trailers */
    stream->is_head = true;
    if (stream->header_bytes > GRPC_HEADERS_MAX) {
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED, "the header list has more than %zu bytes",
                      GRPC_HEADERS_MAX);
    } else if (!stream->is_post || !stream->is_grpc) {
        stream_refuse(stream, GRPC_INVALID_ARGUMENT, "this is no request of gRPC: %s",
                      stream->is_post ? "content-type: must be application/grpc"
                                      : ":method: must be POST");
    } else if (stream->method == GRPC_UNKNOWN_METHOD) {
        stream_refuse(stream, GRPC_UNIMPLEMENTED, "the service or the method is not known");
    } else if (!stream_check_token(stream)) {
        stream_respond(stream);
    } else if (stream->method == GRPC_STREAM_QUOTAS) {
        stream_begin_quotas(stream);
    }
}

/* ---- the message ---------------------------------------------------------------------------- */

static size_t stream_message_max(const struct grpc_stream *stream) {
    return stream_is_open(stream) ? GRPC_HEALTH_MESSAGE_MAX : GRPC_MESSAGE_MAX;
}

/* Returns the length that the prefix says. Precondition: the prefix has arrived. */
static size_t stream_message_bytes(const struct grpc_stream *stream) {
    const uint8_t *prefix = (const uint8_t *)stream->in.buffer.text;
    return (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
}

/* Checks the prefix as soon as it is there, so that no message is kept that will be refused. */
static void stream_check_prefix(struct grpc_stream *stream) {
    if (stream->in.buffer.bytes < GRPC_PREFIX) return;
    size_t bytes = stream_message_bytes(stream);
    if (stream->in.buffer.text[0] != 0) {
        stream_refuse(stream, GRPC_UNIMPLEMENTED,
                      "the message is compressed, which this server does not accept");
    } else if (bytes > stream_message_max(stream)) {
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED, "the message has %zu bytes, at most %zu",
                      bytes, stream_message_max(stream));
    } else if (stream->in.buffer.bytes > GRPC_PREFIX + bytes) {
        stream_refuse(stream, GRPC_INVALID_ARGUMENT, "the request has more than one message");
    }
}

/* Quotas: sends the next assignments, if all earlier ones are sent. */
static void stream_write_quotas(struct grpc_stream *stream) {
    if (stream->state != GRPC_STREAM_QUOTA) return;
    if (!stream->quota) {
        server_grpc_fail(&stream->status, GRPC_UNAVAILABLE, "this process is not the master");
        stream_respond(stream);
        return;
    }
    if (stream->out_sent < stream->out.buffer.bytes) return;
    if (!server_grpc_quota_write(stream)) return;
    stream->filled_at = stream->connection->grpc->now;
    if (stream->out.failed) {
        stream->out.buffer.bytes = 0;
        stream_respond(stream);
        return;
    }
    nghttp2_session_resume_data(stream_session(stream), stream->id);
}

/* Quotas: takes the messages that are complete. */
static void stream_take_reports(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    doorman_buffer *in = &stream->in.buffer;
    while (stream->state == GRPC_STREAM_QUOTA && stream->quota && in->bytes >= GRPC_PREFIX) {
        size_t bytes = stream_message_bytes(stream);
        if (in->text[0] != 0 || bytes > GRPC_MESSAGE_MAX) {
            stream_check_prefix(stream);
            return;
        }
        if (in->bytes < GRPC_PREFIX + bytes) return;
        if (!server_grpc_quota_take(stream, (const uint8_t *)in->text + GRPC_PREFIX, bytes)) {
            stream_respond(stream);
            return;
        }
        stream->state_at = grpc->now;
        stream->connection->has_called = stream->connection->is_proved = true;
        grpc->buffered -= GRPC_PREFIX + bytes;
        in->bytes -= GRPC_PREFIX + bytes;
        memmove(in->text, in->text + GRPC_PREFIX + bytes, in->bytes);
    }
    server_grpc_quotas_work(grpc);
    stream_write_quotas(stream);
}

void server_grpc_stream_data(struct grpc_stream *stream, const uint8_t *bytes, size_t count) {
    struct grpc *grpc = stream->connection->grpc;
    if (stream->state != GRPC_STREAM_READING && stream->state != GRPC_STREAM_QUOTA) return;
    const bool is_quota = stream->state == GRPC_STREAM_QUOTA;
    if (is_quota && stream->in.buffer.bytes == 0) stream->state_at = grpc->now;
    if (stream->in.buffer.bytes + count > BUFFER_MAX) {
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED, "the request has more than %zu bytes",
                      BUFFER_MAX);
        return;
    }
    size_t most = stream_is_open(stream) ? GRPC_BUFFERED_OPEN_MAX : GRPC_BUFFERED_MAX;
    if (grpc->buffered + count > most) {
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED,
                      "the server has no room for more requests that are not complete");
        return;
    }
    spare_take(grpc, &stream->in.buffer);
    server_text_add_bytes(&stream->in, (const char *)bytes, count);
    if (stream->in.failed) {
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    grpc->buffered += count;
    if (is_quota) {
        stream_take_reports(stream);
    } else {
        stream_check_prefix(stream);
    }
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Returns how much time is left for the call; 0: its deadline is over. */
static doorman_time stream_time_left(const struct grpc_stream *stream) {
    if (stream->timeout == DOORMAN_NEVER) return DOORMAN_NEVER;
    doorman_time left = stream->started_at + stream->timeout - doorman_clock();
    return left > 0 ? left : 0;
}

static void stream_expire(struct grpc_stream *stream) {
    server_grpc_fail(&stream->status, GRPC_DEADLINE_EXCEEDED, "the deadline of the call is over");
    stream_respond(stream);
}

/* Counts a descriptor without limits, and shows it on the page of descriptors. */
static void stream_note_unmatched(struct grpc *grpc, const struct grpc_call *call,
                                  const struct grpc_descriptor *descriptor) {
    server_counter_add(&grpc->counters.unmatched, 1);
    server_unmatched_note(grpc->service, call->domain, &descriptor->item);
}

static void stream_finish_call(struct grpc_stream *stream) {
    struct grpc_call *call = stream->call;
    for (size_t i = 0; i < call->descriptor_count; i++) {
        if (!call->descriptors[i].is_unmatched) continue;
        stream_note_unmatched(stream->connection->grpc, call, &call->descriptors[i]);
    }
    spare_take(stream->connection->grpc, &stream->out.buffer);
    server_grpc_call_write(call, &stream->out);
    stream->unread = stream->out.buffer.bytes;
    stream->connection->unread += stream->unread;
    stream_respond(stream);
}

/* Sends the next request of the call to the master, or to other nodes. */
static void stream_ask(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    doorman_time left = stream_time_left(stream);
    if (left == 0) {
        stream_expire(stream);
        return;
    }
    struct grpc_call *call = stream->call;
    stream->question =
        call->is_away
            ? server_grpc_master_forward(grpc->master, call, stream, left, &stream->status)
            : server_grpc_master_ask(grpc->master, call, stream, left, &stream->status);
    if (!stream->question) {
        stream_respond(stream);
        return;
    }
    server_counter_add(&grpc->counters.forwarded, 1);
    stream_move(stream, GRPC_STREAM_ASKING);
}

static void stream_decide(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    char master[DOORMAN_ID_BYTES_MAX + 1];
    const struct peer peer = {.token = stream->token.name, .text = stream->connection->peer};
    enum grpc_decided decided =
        server_grpc_call_decide(stream->call, &peer, &stream->status, master);
    if (decided == GRPC_DECIDED) {
        stream_finish_call(stream);
    } else if (decided == GRPC_FAILED) {
        stream_respond(stream);
    } else if (decided == GRPC_AWAY) {
        stream->call->is_forwarded = stream->call->is_away = true;
        stream_ask(stream);
    } else {
        stream->call->is_forwarded = true;
        server_grpc_figures_drop(stream->call); /* the master would not take them from here */
        server_grpc_call_prepare(stream->call);
        server_grpc_master_set(grpc->master, master);
        stream_ask(stream);
    }
}

void server_grpc_stream_answer(struct grpc_stream *stream, const struct grpc_answer *answer) {
    stream->question = NULL;
    if (answer->result == NNG_ETIMEDOUT && stream_time_left(stream) == 0) {
        stream_expire(stream);
    } else if (answer->result == NNG_EAGAIN) {
        stream_ask(stream);
    } else if (!server_grpc_master_read(stream->call, answer, &stream->status)) {
        stream_respond(stream);
    } else if (stream->call->step == GRPC_STEP_DONE) {
        stream_finish_call(stream);
    } else {
        stream_ask(stream);
    }
}

static void stream_watch(struct grpc_stream *stream) {
    if (!server_grpc_health_answer(stream->connection->grpc, stream, true)) {
        stream_respond(stream);
        return;
    }
    stream_move(stream, GRPC_STREAM_WATCHING);
    stream_send_message(stream);
}

static void stream_handle(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    const struct doorman_buffer *in = &stream->in.buffer;
    if (in->bytes < GRPC_PREFIX || in->bytes < GRPC_PREFIX + stream_message_bytes(stream)) {
        stream_refuse(stream, GRPC_INVALID_ARGUMENT, "the request has no complete message");
        return;
    }
    if (stream_time_left(stream) == 0) {
        stream_expire(stream);
        return;
    }
    stream->connection->has_called = true;
    if (!stream_is_open(stream) || !grpc->service->tokens) stream->connection->is_proved = true;
    server_grpc_connection_charge(stream->connection, -CALL_GAIN);
    if (stream->method == GRPC_HEALTH_WATCH) {
        stream_watch(stream);
        return;
    }
    if (stream->method == GRPC_HEALTH_CHECK) {
        (void)server_grpc_health_answer(grpc, stream, false);
        stream_respond(stream);
        return;
    }
    if (stream->connection->unread > GRPC_UNREAD_MAX) { /* before the call is charged */
        stream_refuse(stream, GRPC_RESOURCE_EXHAUSTED,
                      "the answers that were not read have more than %zu bytes", GRPC_UNREAD_MAX);
        return;
    }
    const struct grpc_bytes message = {(const uint8_t *)in->text + GRPC_PREFIX,
                                       in->bytes - GRPC_PREFIX};
    stream->call = server_grpc_call_read(grpc, stream->method, message, &stream->status);
    if (stream->call) {
        stream->call->may_bring =
            grpc->service->tokens && server_role_includes(stream->token.role, ROLE_FIGURES);
        stream_decide(stream);
    } else {
        stream_respond(stream);
    }
}

void server_grpc_stream_end(struct grpc_stream *stream) {
    stream->is_ended = true;
    if (stream->state == GRPC_STREAM_READING) stream_handle(stream);
    if (stream->state != GRPC_STREAM_QUOTA) return;
    if (stream->in.buffer.bytes > 0) {
        server_grpc_fail(&stream->status, GRPC_INVALID_ARGUMENT,
                         "the last message is not complete");
    }
    stream_respond(stream);
}

/* ---- ends ----------------------------------------------------------------------------------- */

void server_grpc_stream_close(struct grpc_stream *stream) {
    struct grpc_connection *connection = stream->connection;
    if (stream->state != GRPC_STREAM_ANSWERING) { /* the peer has cancelled the request */
        server_counter_add(&connection->grpc->counters.requests[stream->method][GRPC_CANCELLED], 1);
        server_grpc_connection_charge(connection, RESET_COST);
        server_grpc_quota_close(stream);
        stream_free_buffers(stream);
    }
    assert(!stream->call && !stream->quota);
    if (stream->question) server_grpc_master_forget(stream->question);
    spare_give(connection->grpc, &stream->out.buffer);
    if (connection->heading == stream) connection->heading = NULL;
    if (stream->previous) stream->previous->next = stream->next;
    if (stream->next) stream->next->previous = stream->previous;
    if (connection->streams == stream) connection->streams = stream->next;
    connection->stream_count--;
    connection->unread -= stream->unread;
    connection->idle_at = connection->grpc->now;
    server_counter_add(&connection->grpc->counters.streams, (uint64_t)-1);
    server_grpc_memory_give(&connection->grpc->memory, stream);
}

/* Watch: sends the health if it has changed, as soon as the last message is sent. */
static void stream_tell_change(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    bool is_sent = stream->out_sent == stream->out.buffer.bytes;
    bool is_known = stream->serving == 1 || stream->serving == 2;
    if (!is_sent || !is_known || stream->serving == grpc->serving) return;
    stream->out.buffer.bytes = 0;
    stream->out_sent = 0;
    (void)server_grpc_health_answer(grpc, stream, true);
    nghttp2_session_resume_data(stream_session(stream), stream->id);
}

void server_grpc_stream_drain(struct grpc_stream *stream) {
    if (stream->state != GRPC_STREAM_WATCHING && stream->state != GRPC_STREAM_QUOTA) return;
    server_grpc_fail(&stream->status, GRPC_UNAVAILABLE, "the server is stopping");
    stream_respond(stream);
}

/* Quotas: the first message must come within GRPC_PATIENCE, and each message must be complete
 * within that time. A peer that does not read its assignments in that time loses the stream. */
static void stream_tick_quotas(struct grpc_stream *stream) {
    struct grpc_connection *connection = stream->connection;
    doorman_time now = connection->grpc->now;
    bool waits = !stream->domain[0] || stream->in.buffer.bytes > 0;
    bool is_full = stream->out_sent < stream->out.buffer.bytes;
    bool is_late = waits && now - stream->state_at > GRPC_PATIENCE;
    if (stream_time_left(stream) == 0 || is_late) {
        if (is_late) server_grpc_connection_charge(connection, 2 * RESET_COST);
        stream_expire(stream);
    } else if (is_full && now - stream->filled_at > GRPC_PATIENCE) {
        server_grpc_connection_charge(connection, 2 * RESET_COST);
        stream->filled_at = now;
        nghttp2_submit_rst_stream(stream_session(stream), NGHTTP2_FLAG_NONE, stream->id,
                                  NGHTTP2_CANCEL);
    } else {
        stream_write_quotas(stream);
    }
}

/* A request that is not complete in time gets a status. A peer that does not read its response in
 * time loses the stream. A stream that is later than GRPC_PATIENCE costs much of the budget, as a
 * peer could have many. */
void server_grpc_streams_tick(struct grpc_connection *connection) {
    doorman_time now = connection->grpc->now;
    struct grpc_stream *next = NULL;
    for (struct grpc_stream *stream = connection->streams; stream; stream = next) {
        next = stream->next;
        bool is_late = now - stream->state_at > GRPC_PATIENCE;
        if (stream->state == GRPC_STREAM_QUOTA) {
            stream_tick_quotas(stream);
            continue;
        }
        if (stream->state == GRPC_STREAM_WATCHING && stream_time_left(stream) > 0) {
            stream_tell_change(stream);
        } else if (stream->state == GRPC_STREAM_WATCHING) {
            stream_expire(stream);
        } else if (stream->state == GRPC_STREAM_ASKING && stream_time_left(stream) == 0) {
            if (stream->question) server_grpc_master_forget(stream->question);
            stream->question = NULL;
            stream_expire(stream);
        } else if (stream->state == GRPC_STREAM_READING &&
                   (is_late || stream_time_left(stream) == 0)) {
            if (is_late) server_grpc_connection_charge(connection, 2 * RESET_COST);
            stream_expire(stream);
        } else if (stream->state == GRPC_STREAM_ANSWERING && is_late) {
            server_grpc_connection_charge(connection, 2 * RESET_COST);
            stream->state_at = now;
            nghttp2_submit_rst_stream(stream_session(stream), NGHTTP2_FLAG_NONE, stream->id,
                                      NGHTTP2_CANCEL);
        }
    }
}
