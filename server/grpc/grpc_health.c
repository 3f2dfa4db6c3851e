/* doorman_server, part GRPC: the health check of gRPC. Like /healthz, it needs no token. It says
 * SERVING if this process can answer, itself or by asking the master (W4). A drained process (E11)
 * says NOT_SERVING, so that clients leave, and it answers those that stay. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"

void server_grpc_look(struct grpc *grpc) {
    struct service *service = grpc->service;
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    char address[DOORMAN_ID_BYTES_MAX + 1] = "";
    server_lock(&service->lock);
    bool stopping = service->stopping;
    const enum drain_phase phase = service->drain.phase;
    grpc->is_drained = phase != DRAIN_NONE && phase != DRAIN_RETURNING;
    if (!stopping) {
        doorman_server_handle(service->server, &discovery, &response, NULL, doorman_clock());
    }
    if (!response.is_master && response.master_address) {
        snprintf(address, sizeof address, "%s", response.master_address);
    }
    server_unlock(&service->lock);
    grpc->is_master = !stopping && response.is_master;
    if (!stopping && grpc->master) server_grpc_master_set(grpc->master, address);
    bool serves =
        !stopping && !grpc->is_drained &&
        (response.is_master || (grpc->master && server_grpc_master_is_reached(grpc->master)));
    grpc->serving = serves ? GRPC_WIRE__HEALTH__SERVING : GRPC_WIRE__HEALTH__NOT_SERVING;
}

static void health_write(struct text *out, int status) {
    const GrpcWire__HealthResponse response = {
        PROTOBUF_C_MESSAGE_INIT(&grpc_wire__health_response__descriptor), (GrpcWire__Health)status};
    uint8_t bytes[16];
    size_t count = grpc_wire__health_response__get_packed_size(&response);
    assert(count <= sizeof bytes);
    grpc_wire__health_response__pack(&response, bytes);
    server_grpc_add_prefix(out, count);
    server_text_add_bytes(out, (const char *)bytes, count);
}

/* Reads which service is meant.
 *   returns   false: the status says why the message is not valid */
static bool health_read(struct grpc_stream *stream, bool *is_known) {
    struct grpc_scan_error error;
    const uint8_t *bytes = (const uint8_t *)stream->in.buffer.text + GRPC_PREFIX;
    size_t count = stream->in.buffer.bytes - GRPC_PREFIX;
    if (!server_grpc_scan(GRPC_HEALTH_REQUEST, bytes, count, &error)) {
        return server_grpc_fail(
            &stream->status, error.is_too_large ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT,
            "%s", error.text);
    }
    GrpcWire__HealthRequest *request = grpc_wire__health_request__unpack(NULL, count, bytes);
    if (!request)
        return server_grpc_fail(&stream->status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    *is_known =
        server_grpc_service_is_known((const char *)request->service.data, request->service.len);
    grpc_wire__health_request__free_unpacked(request, NULL);
    return true;
}

bool server_grpc_health_answer(struct grpc *grpc, struct grpc_stream *stream, bool watches) {
    bool is_known = false;
    if (!health_read(stream, &is_known)) return false;
    if (!is_known && !watches) {
        return server_grpc_fail(&stream->status, GRPC_NOT_FOUND, "service: is not known");
    }
    if (!watches) server_grpc_look(grpc);
    stream->serving = is_known ? grpc->serving : GRPC_WIRE__HEALTH__SERVICE_UNKNOWN;
    health_write(&stream->out, stream->serving);
    return true;
}
