/* doorman_server, part GRPC: reads the messages of calls, and writes their responses. This file
 * changes only its arguments. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"

#define COST_MAX 1e15 /* of an item of a permit; no limit grants more */

/* ---- the request ---------------------------------------------------------------------------- */

/* Returns the hits of a descriptor. Its own number goes before that of the request. Without both
 * it is 1. A descriptor with 0 hits only looks. */
static double call_hits(const GrpcWire__Descriptor *descriptor, uint32_t hits_of_request) {
    double hits = hits_of_request > 0 ? (double)hits_of_request : 1;
    if (descriptor->hits_addend) hits = (double)descriptor->hits_addend->value;
    return hits < COST_MAX ? hits : COST_MAX;
}

/* Finds the names of one descriptor.
 *   rules   of the configuration; NULL: none */
static void call_resolve(struct grpc_descriptor *out, const doorman_descriptors *rules,
                         const char *domain, const GrpcWire__Descriptor *from) {
    doorman_descriptor_entry entries[GRPC_ENTRY_MAX];
    doorman_descriptor_item item;
    for (size_t i = 0; i < from->n_entries; i++) {
        const GrpcWire__Entry *entry = from->entries[i];
        entries[i] = (doorman_descriptor_entry){.key = (const char *)entry->key.data,
                                                .key_bytes = entry->key.len,
                                                .value = (const char *)entry->value.data,
                                                .value_bytes = entry->value.len};
    }
    (void)doorman_descriptors_resolve(rules, domain, entries, from->n_entries, &item);
    memcpy(out->resource_id, item.resource_id, sizeof out->resource_id);
    memcpy(out->key, item.key, sizeof out->key);
    out->matched = item.matched;
    out->is_hashed = item.hashed;
}

/* Finds the names of all descriptors. A lock keeps the configuration from being destroyed. The lock
 * of the configuration lets others use the service meanwhile. But a thread that compares or writes
 * a large configuration holds it for long, and the loop must not wait. Then it is the lock of the
 * service: a configuration is destroyed only after another one has taken its place under it. */
static void call_resolve_all(struct grpc_call *call, struct service *service,
                             const GrpcWire__LimitRequest *request) {
    const bool has_config_lock = server_try_lock(&service->config_lock);
    server_lock(&service->lock);
    const doorman_descriptors *rules = doorman_config_descriptors(service->config);
    if (has_config_lock) server_unlock(&service->lock);
    for (size_t i = 0; i < call->descriptor_count; i++) {
        call_resolve(&call->descriptors[i], rules, call->domain, request->descriptors[i]);
    }
    server_unlock(has_config_lock ? &service->config_lock : &service->lock);
}

static void call_count(const struct grpc_call *call, struct grpc_counters *counters) {
    server_counter_add(&counters->descriptors, call->descriptor_count);
    for (size_t i = 0; i < call->descriptor_count; i++) {
        if (call->descriptors[i].is_hashed) server_counter_add(&counters->hashed, 1);
    }
}

/* Checks what the wire format does not say. The count of entries is within its bound already. */
static bool call_check(const GrpcWire__LimitRequest *request, struct grpc_status *status) {
    const ProtobufCBinaryData *domain = &request->domain;
    if (domain->len == 0 || memchr(domain->data, 0, domain->len)) {
        return server_grpc_fail(status, GRPC_INVALID_ARGUMENT,
                                "domain: must be 1 to %d bytes without a zero",
                                DOORMAN_ID_BYTES_MAX);
    }
    if (request->n_descriptors == 0) {
        return server_grpc_fail(status, GRPC_INVALID_ARGUMENT, "descriptors: must have 1 to %d",
                                GRPC_DESCRIPTOR_MAX);
    }
    for (size_t i = 0; i < request->n_descriptors; i++) {
        if (request->descriptors[i]->n_entries > 0) continue;
        return server_grpc_fail(status, GRPC_INVALID_ARGUMENT,
                                "descriptors[%zu].entries: must have 1 to %d", i, GRPC_ENTRY_MAX);
    }
    return true;
}

/* Reads the limit of a descriptor. A multiplier of 0 is 1, because it is absent then. */
static void call_read_wanted(struct grpc_descriptor *out, const GrpcWire__Wanted *from) {
    out->has_wanted = from != NULL;
    if (!from) return;
    out->wanted.requests = (double)from->requests_per_unit;
    out->wanted.seconds = server_grpc_unit_seconds(from->unit);
    if (from->unit_multiplier > 0) out->wanted.seconds *= (double)from->unit_multiplier;
}

static struct grpc_call *call_create(const GrpcWire__LimitRequest *request) {
    size_t count = request->n_descriptors;
    struct grpc_call *call =
        (struct grpc_call *)malloc(sizeof *call + count * sizeof *call->descriptors);
    if (!call) return NULL;
    snprintf(call->domain, sizeof call->domain, "%.*s", (int)request->domain.len,
             (const char *)request->domain.data);
    call->descriptor_count = count;
    for (size_t i = 0; i < count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[i];
        const GrpcWire__Descriptor *from = request->descriptors[i];
        descriptor->hits = call_hits(from, request->hits_addend);
        descriptor->is_refund = from->is_negative_hits != 0;
        descriptor->is_unmatched = descriptor->brings = false;
        call_read_wanted(descriptor, from->limit);
        descriptor->outcome.is_over = false;
        descriptor->outcome.has_limit = descriptor->outcome.has_reset = false;
    }
    return call;
}

struct grpc_call *server_grpc_call_read(struct service *service, struct grpc_counters *counters,
                                        enum grpc_method method, const uint8_t *bytes, size_t count,
                                        struct grpc_status *status) {
    struct grpc_scan_error error;
    struct grpc_call *call = NULL;
    if (!server_grpc_scan(GRPC_LIMIT_REQUEST, bytes, count, &error)) {
        server_grpc_fail(status,
                         error.is_too_large ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT, "%s",
                         error.text);
        return NULL;
    }
    GrpcWire__LimitRequest *request = grpc_wire__limit_request__unpack(NULL, count, bytes);
    if (!request) {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    if (call_check(request, status)) {
        call = call_create(request);
        if (!call) server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    if (call) {
        call_resolve_all(call, service, request);
        call_count(call, counters);
    }
    grpc_wire__limit_request__free_unpacked(request, NULL);
    if (!call) return NULL;
    call->service = service;
    call->counters = counters;
    call->method = method;
    call->step = method == GRPC_REPORT ? GRPC_STEP_REPORT : GRPC_STEP_PERMIT;
    call->is_over = call->is_forwarded = call->has_fields = false;
    call->may_bring = call->brings = false;
    server_grpc_call_prepare(call);
    return call;
}

/* ---- the response --------------------------------------------------------------------------- */

static uint32_t u32_of(double value) {
    if (!(value > 0)) return 0;
    return value < (double)UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static const struct {
    GrpcWire__Unit unit;
    double seconds;
} figure_units[] = {
    {GRPC_WIRE__UNIT__SECOND, 1},         {GRPC_WIRE__UNIT__MINUTE, 60},
    {GRPC_WIRE__UNIT__HOUR, 3600},        {GRPC_WIRE__UNIT__DAY, 86400},
    {GRPC_WIRE__UNIT__MONTH, 30 * 86400}, {GRPC_WIRE__UNIT__YEAR, 365 * 86400},
};

/* Returns the seconds of a window. A month of the calendar has 28 to 31 days, and is a MONTH. */
static double figures_seconds(doorman_time window) {
    const double seconds = (double)window / (double)DOORMAN_SECOND, day = 86400;
    return seconds >= 28 * day && seconds <= 31 * day ? 30 * day : seconds;
}

/* Writes the figures of a limit as requests in a unit: the unit that is as long as the window. If
 * there is none, the smallest unit with a whole number of requests. If there is none, the smallest
 * unit with at least one request, rounded down. A limit without a window has no unit. */
static void figures_set(GrpcWire__Figures *figures, const struct grpc_outcome *outcome) {
    const size_t count = sizeof figure_units / sizeof *figure_units;
    double window = figures_seconds(outcome->window);
    size_t chosen = count, whole = count, some = count;
    double requests = outcome->most;
    for (size_t i = 0; i < count && window > 0; i++) {
        double in_unit = outcome->most * figure_units[i].seconds / window;
        double rest = in_unit - (double)(uint64_t)(in_unit < 1e15 ? in_unit : 0);
        if (figure_units[i].seconds == window && chosen == count) chosen = i;
        if (in_unit >= 1 && (rest < 1e-6 || rest > 1 - 1e-6) && whole == count) whole = i;
        if (in_unit >= 1 && some == count) some = i;
    }
    if (chosen == count) chosen = whole < count ? whole : some;
    if (chosen < count) {
        requests = outcome->most * figure_units[chosen].seconds / window + 1e-6;
        figures->unit = figure_units[chosen].unit;
    }
    figures->requests_per_unit = u32_of(requests);
}

/* What a response consists of. protobuf-c needs an array of pointers for each list. */
struct call_response {
    GrpcWire__LimitResponse message;
    GrpcWire__DescriptorStatus statuses[GRPC_DESCRIPTOR_MAX], *status_list[GRPC_DESCRIPTOR_MAX];
    GrpcWire__Figures figures[GRPC_DESCRIPTOR_MAX];
    GrpcWire__Span spans[GRPC_DESCRIPTOR_MAX];
    GrpcWire__Header headers[3], *header_list[3];
    struct text policy, limits;
    char retry[24];
};

/* The pointers to const texts are cast, because protobuf-c has no const. It only reads them. */
static char *text_of(const char *text) {
    union {
        const char *from;
        char *to;
    } pointer = {text};
    return pointer.to;
}

static void response_add_status(struct call_response *response, size_t at,
                                const struct grpc_outcome *outcome) {
    GrpcWire__DescriptorStatus *status = &response->statuses[at];
    GrpcWire__Figures *figures = &response->figures[at];
    GrpcWire__Span *span = &response->spans[at];
    grpc_wire__descriptor_status__init(status);
    status->code =
        outcome->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT : GRPC_WIRE__DECISION__ALLOWED;
    if (outcome->has_limit) {
        grpc_wire__figures__init(figures);
        figures_set(figures, outcome);
        figures->name = text_of(outcome->name);
        status->current_limit = figures;
        status->limit_remaining = u32_of(outcome->remaining);
    }
    if (outcome->has_reset) {
        grpc_wire__span__init(span);
        span->seconds = server_limit_seconds(outcome->reset);
        status->duration_until_reset = span;
    }
    response->status_list[at] = status;
}

static void response_add_header(struct call_response *response, const char *name,
                                const char *value) {
    size_t at = response->message.n_response_headers_to_add++;
    grpc_wire__header__init(&response->headers[at]);
    response->headers[at].key = text_of(name);
    response->headers[at].value = text_of(value);
    response->header_list[at] = &response->headers[at];
}

/* Adds the fields of the limits, as /v1/allow does. */
static void response_add_headers(struct call_response *response,
                                 const struct limit_fields *fields) {
    server_limit_fields_add_list(&response->policy, fields, true);
    server_limit_fields_add_list(&response->limits, fields, false);
    server_text_add_bytes(&response->policy, "", 1);
    server_text_add_bytes(&response->limits, "", 1);
    if (fields->count > 0 && !response->policy.failed && !response->limits.failed) {
        response_add_header(response, "RateLimit-Policy", response->policy.buffer.text);
        response_add_header(response, "RateLimit", response->limits.buffer.text);
    }
    if (fields->has_retry_after) {
        snprintf(response->retry, sizeof response->retry, "%lld",
                 server_limit_fields_retry(fields));
        response_add_header(response, "Retry-After", response->retry);
    }
}

void server_grpc_add_prefix(struct text *out, size_t bytes) {
    const char prefix[GRPC_PREFIX] = {0, (char)(bytes >> 24), (char)(bytes >> 16),
                                      (char)(bytes >> 8), (char)bytes};
    server_text_add_bytes(out, prefix, sizeof prefix);
}

/* A buffer of protobuf-c that writes to a text. */
struct call_sink {
    ProtobufCBuffer base;
    struct text *out;
};

static void sink_append(ProtobufCBuffer *buffer, size_t count, const uint8_t *bytes) {
    struct call_sink *sink = (struct call_sink *)(void *)buffer;
    server_text_add_bytes(sink->out, (const char *)bytes, count);
}

void server_grpc_call_write(const struct grpc_call *call, struct text *out) {
    struct call_response *response = (struct call_response *)malloc(sizeof *response);
    struct call_sink sink = {.base = {.append = sink_append}, .out = out};
    if (!response) {
        out->failed = true;
        return;
    }
    GrpcWire__LimitResponse *message = &response->message;
    grpc_wire__limit_response__init(message);
    response->policy = response->limits = (struct text){.failed = false};
    message->overall_code =
        call->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT : GRPC_WIRE__DECISION__ALLOWED;
    for (size_t i = 0; i < call->descriptor_count; i++) {
        response_add_status(response, i, &call->descriptors[i].outcome);
    }
    message->n_statuses = call->descriptor_count;
    message->statuses = response->status_list;
    message->response_headers_to_add = response->header_list;
    if (call->service->settings->grpc_headers && call->has_fields) {
        response_add_headers(response, &call->fields);
    }
    server_grpc_add_prefix(out, grpc_wire__limit_response__get_packed_size(message));
    grpc_wire__limit_response__pack_to_buffer(message, &sink.base);
    doorman_buffer_uninit(&response->policy.buffer);
    doorman_buffer_uninit(&response->limits.buffer);
    free(response);
}
