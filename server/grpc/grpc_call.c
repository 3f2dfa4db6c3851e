/* doorman_server, part GRPC: reads the messages of calls, and writes their responses. The functions
 * change only their arguments. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"

#define COST_MAX 1e15 /* of an item of a permit; no limit grants more */

/* ---- the request ---------------------------------------------------------------------------- */

/* Returns the hits of a descriptor: its own number, or else that of the request, or else 1. A
 * descriptor with 0 hits only looks. */
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

/* Finds the names of all descriptors. A lock keeps the configuration from being destroyed. With the
 * lock of the configuration, other threads can use the service meanwhile. But a thread that
 * compares or writes a large configuration holds that lock for long, and the loop must not wait. In
 * this case the lock of the service is used: a configuration is destroyed only after another one
 * was put in its place under this lock. */
static void call_resolve_all(struct grpc_call *call, struct service *service,
                             const GrpcWire__LimitRequest *request) {
    const bool has_config_lock = server_try_lock(&service->config_lock);
    server_lock(&service->lock);
    const doorman_config *config = service->config;
    const doorman_descriptors *rules = doorman_config_descriptors(config);
    if (has_config_lock) server_unlock(&service->lock);
    for (size_t i = 0; i < call->descriptor_count; i++) {
        call_resolve(&call->descriptors[i], rules, call->domain, request->descriptors[i]);
    }
    call->holds_at = call->descriptor_count;
    if (call->method == GRPC_RESERVE) call->holds_at = server_grpc_call_find_holds(call, config);
    server_unlock(has_config_lock ? &service->config_lock : &service->lock);
}

static void call_count(const struct grpc_call *call) {
    struct grpc_counters *counters = call->counters;
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

/* Makes a call, with what is behind it, in one piece of memory. */
static struct grpc_call *call_create(const GrpcWire__LimitRequest *request, bool has_fields) {
    const size_t count = request->n_descriptors;
    struct grpc_call *call = NULL;
    const size_t each = sizeof *call->descriptors + sizeof *call->items + sizeof *call->entries +
                        sizeof *call->places;
    call = (struct grpc_call *)malloc(sizeof *call + count * each +
                                      (has_fields ? sizeof *call->fields : 0));
    if (!call) return NULL;
    call->items = (doorman_permit_item *)(void *)(call->descriptors + count);
    call->entries = (doorman_permit_entry *)(void *)(call->items + count);
    void *behind = call->entries + count;
    call->fields = has_fields ? (struct limit_fields *)behind : NULL;
    if (has_fields) behind = call->fields + 1;
    call->places = (size_t *)behind;
    assert(request->domain.len < sizeof call->domain);
    memcpy(call->domain, request->domain.data, request->domain.len);
    call->domain[request->domain.len] = 0;
    call->descriptor_count = count;
    for (size_t i = 0; i < count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[i];
        const GrpcWire__Descriptor *from = request->descriptors[i];
        descriptor->hits = call_hits(from, request->hits_addend);
        descriptor->is_refund = from->is_negative_hits != 0;
        descriptor->is_hashed = descriptor->matched = false;
        descriptor->is_unmatched = descriptor->brings = false;
        call_read_wanted(descriptor, from->limit);
        descriptor->outcome.is_over = false;
        descriptor->outcome.has_limit = descriptor->outcome.has_reset = false;
    }
    return call;
}

/* Memory for protobuf-c, which needs about ten small pieces for a usual message. The first ones are
 * here, and the others are from malloc. */
struct call_arena {
    ProtobufCAllocator base;
    size_t used;
    _Alignas(16) unsigned char room[4096];
};

static void *arena_take(void *context, size_t bytes) {
    struct call_arena *arena = (struct call_arena *)context;
    const size_t whole = (bytes + 15) / 16 * 16;
    if (whole < bytes || whole > sizeof arena->room - arena->used) return malloc(bytes);
    arena->used += whole;
    return arena->room + arena->used - whole;
}

static void arena_give(void *context, void *piece) {
    struct call_arena *arena = (struct call_arena *)context;
    const uintptr_t at = (uintptr_t)piece, room = (uintptr_t)arena->room;
    if (at < room || at >= room + sizeof arena->room) free(piece);
}

/* The message of a call. `view` shows a Reserve or a Commit as a LimitRequest. */
struct call_source {
    GrpcWire__LimitRequest *limit, view;
    GrpcWire__ReserveRequest *reserve;
    GrpcWire__CommitRequest *commit;
};

static void source_free(struct call_source *source, ProtobufCAllocator *arena) {
    grpc_wire__limit_request__free_unpacked(source->limit, arena);
    grpc_wire__reserve_request__free_unpacked(source->reserve, arena);
    grpc_wire__commit_request__free_unpacked(source->commit, arena);
}

/* The bytes of a message. */
struct call_bytes {
    const uint8_t *bytes;
    size_t count;
};

/* Reads the bytes. Returns NULL if memory runs out. */
static const GrpcWire__LimitRequest *source_read(struct call_source *source,
                                                 enum grpc_method method, struct call_bytes in,
                                                 ProtobufCAllocator *arena) {
    *source = (struct call_source){.limit = NULL};
    grpc_wire__limit_request__init(&source->view);
    if (method == GRPC_RESERVE) {
        source->reserve = grpc_wire__reserve_request__unpack(arena, in.count, in.bytes);
        if (!source->reserve) return NULL;
        source->view.domain = source->reserve->domain;
        source->view.n_descriptors = source->reserve->n_descriptors;
        source->view.descriptors = source->reserve->descriptors;
        return &source->view;
    }
    if (method == GRPC_COMMIT) {
        source->commit = grpc_wire__commit_request__unpack(arena, in.count, in.bytes);
        if (!source->commit) return NULL;
        source->view.domain = source->commit->domain;
        source->view.n_descriptors = source->commit->n_descriptors;
        source->view.descriptors = source->commit->descriptors;
        return &source->view;
    }
    source->limit = grpc_wire__limit_request__unpack(arena, in.count, in.bytes);
    return source->limit;
}

/* Reads what only a Reserve or a Commit has. Its amount concerns all descriptors. */
static bool call_read_reservation(struct grpc_call *call, const struct call_source *source,
                                  struct grpc_status *status) {
    const GrpcWire__CommitRequest *commit = source->commit;
    uint64_t amount = commit ? commit->actual_amount : 0;
    call->reservation = (struct grpc_reservation){.ttl = 0};
    if (source->reserve) {
        const GrpcWire__Span *ttl = source->reserve->ttl;
        amount = source->reserve->amount;
        if (!server_grpc_reserve_start(&call->reservation, ttl != NULL, ttl ? ttl->seconds : 0,
                                       ttl ? ttl->nanos : 0, status)) {
            return false;
        }
    } else if (!commit) {
        return true;
    }
    for (size_t i = 0; i < call->descriptor_count; i++) {
        call->descriptors[i].hits = (double)amount < COST_MAX ? (double)amount : COST_MAX;
        call->descriptors[i].is_refund = false;
    }
    const ProtobufCBinaryData *id = commit ? &commit->reservation_id : NULL;
    if (id && server_grpc_reserve_read_id(call, id->data, id->len)) call->step = GRPC_STEP_SETTLE;
    return true;
}

/* Makes a call of a message. */
static struct grpc_call *call_make(struct grpc *grpc, enum grpc_method method,
                                   const struct call_source *source, struct grpc_status *status) {
    struct service *service = grpc->service;
    const GrpcWire__LimitRequest *request = source->limit ? source->limit : &source->view;
    bool charges = method == GRPC_REPORT || method == GRPC_COMMIT;
    if (!call_check(request, status)) return NULL;
    struct grpc_call *call = call_create(request, service->settings->grpc_headers);
    if (!call) {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    call->service = service;
    call->counters = &grpc->counters;
    call->method = method;
    call->step = charges ? GRPC_STEP_REPORT : GRPC_STEP_PERMIT;
    call->is_over = call->is_forwarded = call->is_away = call->has_fields = false;
    call->may_bring = call->brings = false;
    call_resolve_all(call, service, request);
    call_count(call);
    bool done = call_read_reservation(call, source, status);
    if (done && call->holds_at < call->descriptor_count) {
        done = server_grpc_call_refuse_holds(call, call->holds_at, status);
    }
    if (done) return call;
    free(call);
    return NULL;
}

struct grpc_call *server_grpc_call_read(struct grpc *grpc, enum grpc_method method,
                                        const uint8_t *bytes, size_t count,
                                        struct grpc_status *status) {
    const enum grpc_schema schema = method == GRPC_RESERVE  ? GRPC_RESERVE_REQUEST
                                    : method == GRPC_COMMIT ? GRPC_COMMIT_REQUEST
                                                            : GRPC_LIMIT_REQUEST;
    struct grpc_scan_error error;
    struct call_source source;
    struct grpc_call *call = NULL;
    if (!server_grpc_scan(schema, bytes, count, &error)) {
        server_grpc_fail(status,
                         error.is_too_large ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT, "%s",
                         error.text);
        return NULL;
    }
    struct call_arena arena = {.base = {arena_take, arena_give, &arena}};
    if (source_read(&source, method, (struct call_bytes){bytes, count}, &arena.base)) {
        call = call_make(grpc, method, &source, status);
    } else {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    source_free(&source, &arena.base);
    if (call) server_grpc_call_prepare(call);
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

/* The figures of a limit as the protocol has them. */
struct grpc_figures {
    uint32_t requests;
    GrpcWire__Unit unit;
};

/* Returns the seconds of a window. A month of the calendar has 28 to 31 days, and is a MONTH. */
static double figures_seconds(doorman_time window) {
    const double seconds = (double)window / (double)DOORMAN_SECOND, day = 86400;
    return seconds >= 28 * day && seconds <= 31 * day ? 30 * day : seconds;
}

/* Returns the figures of a limit as requests in a unit: the unit that is as long as the window. If
 * there is none, the smallest unit with a whole number of requests. If there is none, the smallest
 * unit with at least one request, rounded down. A limit without a window has no unit. */
static struct grpc_figures figures_of(const struct grpc_outcome *outcome) {
    struct grpc_figures figures = {.unit = GRPC_WIRE__UNIT__NO_UNIT};
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
        figures.unit = figure_units[chosen].unit;
    }
    figures.requests = u32_of(requests);
    return figures;
}

/* A message that is written into another one. Its parts have bounds, so it always fits. protobuf-c
 * would need an array of structs and pointers, and twice the time. */
struct call_part {
    size_t bytes;
    char text[2 * DOORMAN_ID_BYTES_MAX];
};

enum { PART_NUMBER = 0, PART_BYTES = 2, PART_HEAD_MAX = 12 };

static size_t part_put_varint(char *to, uint64_t value) {
    size_t bytes = 0;
    for (; value >= 0x80; value >>= 7) to[bytes++] = (char)(value | 0x80);
    to[bytes++] = (char)value;
    return bytes;
}

/* Writes the tag of a field, and its number or its length. Returns the bytes, at most
 * PART_HEAD_MAX. */
static size_t part_put_head(char *to, unsigned field, unsigned wire, uint64_t value) {
    to[0] = (char)(field << 3 | wire);
    return 1 + part_put_varint(to + 1, value);
}

/* Adds a number. 0 is the default, and is left out. */
static void part_add_number(struct call_part *part, unsigned field, uint64_t value) {
    if (value == 0) return;
    assert(part->bytes + PART_HEAD_MAX <= sizeof part->text);
    part->bytes += part_put_head(part->text + part->bytes, field, PART_NUMBER, value);
}

static void part_add_bytes(struct call_part *part, unsigned field, const char *from, size_t bytes) {
    assert(part->bytes + PART_HEAD_MAX + bytes <= sizeof part->text);
    part->bytes += part_put_head(part->text + part->bytes, field, PART_BYTES, bytes);
    memcpy(part->text + part->bytes, from, bytes);
    part->bytes += bytes;
}

static void response_add(struct text *out, unsigned field, const char *from, size_t bytes) {
    char head[PART_HEAD_MAX];
    server_text_add_bytes(out, head, part_put_head(head, field, PART_BYTES, bytes));
    server_text_add_bytes(out, from, bytes);
}

/* The numbers of the fields are those of messages.proto. */
static void response_add_status(struct text *out, const struct grpc_outcome *outcome) {
    struct call_part status = {.bytes = 0}, below = {.bytes = 0};
    part_add_number(&status, 1,
                    outcome->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT
                                     : GRPC_WIRE__DECISION__ALLOWED);
    if (outcome->has_limit) {
        struct grpc_figures figures = figures_of(outcome);
        part_add_number(&below, 1, figures.requests);
        part_add_number(&below, 2, figures.unit);
        part_add_bytes(&below, 3, outcome->name, strlen(outcome->name));
        part_add_bytes(&status, 2, below.text, below.bytes);
        part_add_number(&status, 3, u32_of(outcome->remaining));
    }
    if (outcome->has_reset) {
        const long long seconds = server_limit_seconds(outcome->reset);
        below.bytes = 0;
        part_add_number(&below, 1, seconds > 0 ? (uint64_t)seconds : 0);
        part_add_bytes(&status, 4, below.text, below.bytes);
    }
    response_add(out, 2, status.text, status.bytes);
}

/* Adds a header. A list of limits may be longer than a part. */
static void response_add_header(struct text *out, const char *name, const char *value) {
    struct text header = {.failed = false};
    response_add(&header, 1, name, strlen(name));
    response_add(&header, 2, value, strlen(value));
    if (header.failed) out->failed = true;
    if (!header.failed) response_add(out, 3, header.buffer.text, header.buffer.bytes);
    doorman_buffer_uninit(&header.buffer);
}

/* Adds the fields of the limits, as /v1/allow does. */
static void response_add_headers(struct text *out, const struct limit_fields *fields) {
    static const char *const names[] = {"RateLimit", "RateLimit-Policy"};
    for (int is_policy = 1; is_policy >= 0 && fields->count > 0; is_policy--) {
        struct text list = {.failed = false};
        server_limit_fields_add_list(&list, fields, is_policy);
        server_text_add_bytes(&list, "", 1);
        if (list.failed) out->failed = true;
        if (!list.failed) response_add_header(out, names[is_policy], list.buffer.text);
        doorman_buffer_uninit(&list.buffer);
    }
    if (fields->has_retry_after) {
        char retry[24];
        snprintf(retry, sizeof retry, "%lld", server_limit_fields_retry(fields));
        response_add_header(out, "Retry-After", retry);
    }
    if (fields->share > 0) {
        char share[24];
        snprintf(share, sizeof share, "%.6g", fields->share);
        response_add_header(out, "X-RateLimit-Share", share);
    }
}

void server_grpc_add_prefix(struct text *out, size_t bytes) {
    const char prefix[GRPC_PREFIX] = {0, (char)(bytes >> 24), (char)(bytes >> 16),
                                      (char)(bytes >> 8), (char)bytes};
    server_text_add_bytes(out, prefix, sizeof prefix);
}

/* Adds the text that the template of the refusing descriptor has for clients. It is that of this
 * process, also if the master has decided. */
static void response_add_body(struct text *out, const struct grpc_call *call) {
    size_t at = 0;
    while (at < call->descriptor_count && !call->descriptors[at].outcome.is_over) at++;
    if (at == call->descriptor_count) return;
    server_lock(&call->service->lock);
    const doorman_config *config = call->service->config;
    const doorman_template *found =
        config ? doorman_config_find(config, call->descriptors[at].resource_id) : NULL;
    if (found && found->refused_body[0]) {
        response_add(out, 5, found->refused_body, strlen(found->refused_body));
    }
    server_unlock(&call->service->lock);
}

/* The prefix has the length of the message, which is known at its end. */
static void call_write_limit(const struct grpc_call *call, struct text *out) {
    const size_t before = out->buffer.bytes;
    char head[PART_HEAD_MAX], length[4];
    server_grpc_add_prefix(out, 0);
    server_text_add_bytes(out, head,
                          part_put_head(head, 1, PART_NUMBER,
                                        call->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT
                                                      : GRPC_WIRE__DECISION__ALLOWED));
    for (size_t i = 0; i < call->descriptor_count; i++) {
        response_add_status(out, &call->descriptors[i].outcome);
    }
    if (call->has_fields) response_add_headers(out, call->fields);
    if (call->is_over) response_add_body(out, call);
    if (out->failed) return;
    const size_t bytes = out->buffer.bytes - before - GRPC_PREFIX;
    for (int i = 0; i < 4; i++) length[i] = (char)(bytes >> (24 - 8 * i));
    memcpy(out->buffer.text + before + 1, length, sizeof length);
}

/* Writes the response to a Reserve. */
static void call_write_reserve(const struct grpc_call *call, struct text *out) {
    GrpcWire__ReserveResponse message;
    uint8_t bytes[GRPC_RESERVATION_ID + 16];
    char id[GRPC_RESERVATION_ID] = "";
    grpc_wire__reserve_response__init(&message);
    if (call->reservation.is_made) server_grpc_reserve_id(call, id);
    message.code = call->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT : GRPC_WIRE__DECISION__ALLOWED;
    message.reservation_id = id;
    const size_t count = grpc_wire__reserve_response__pack(&message, bytes);
    server_grpc_add_prefix(out, count);
    server_text_add_bytes(out, (const char *)bytes, count);
}

static void call_write_commit(const struct grpc_call *call, struct text *out) {
    const char bytes[] = {1 << 3, 1}; /* the field reservation_released; an absent one is false */
    const size_t count = call->reservation.is_released ? sizeof bytes : 0;
    server_grpc_add_prefix(out, count);
    server_text_add_bytes(out, bytes, count);
}

void server_grpc_call_write(const struct grpc_call *call, struct text *out) {
    if (call->method == GRPC_RESERVE) {
        call_write_reserve(call, out);
    } else if (call->method == GRPC_COMMIT) {
        call_write_commit(call, out);
    } else {
        call_write_limit(call, out);
    }
}
