/* doorman_server, part GRPC: reads the messages of calls, and writes their responses. The functions
 * change only their arguments. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"

#define COST_MAX 1e15 /* of an item of a permit; no limit grants more */

/* ---- the request ---------------------------------------------------------------------------- */

/* The numbers of the fields, as messages.proto has them. The method of a request decides what the
 * fields 3 and 4 mean. This file reads messages itself, because protobuf-c would need ten pieces of
 * memory and three times the time. */
enum { FIELD_DOMAIN = 1, FIELD_DESCRIPTOR = 2 };
enum { FIELD_ENTRY = 1, FIELD_WANTED = 2, FIELD_HITS = 3, FIELD_REFUND = 4 };

#define NUMBERS 4 /* a message of numbers has the fields 1 to 3 */

/* Reads a message that has only numbers. A number that the message lacks stays as it is. */
static void numbers_read(struct grpc_bytes from, uint64_t numbers[NUMBERS]) {
    struct grpc_field field;
    while (server_grpc_field_next(&from, &field)) {
        if (field.number < NUMBERS) numbers[field.number] = field.value;
    }
}

/* What the message of a call has beside its descriptors. */
struct call_source {
    struct grpc_bytes message, domain;
    size_t descriptor_count;
    uint64_t number;                  /* hits_addend, amount or actual_amount */
    struct grpc_bytes reservation_id; /* of a Commit */
    uint64_t ttl[NUMBERS];            /* of a Reserve */
    bool has_ttl;
};

static void source_read(struct call_source *source, enum grpc_method method,
                        struct grpc_bytes message) {
    const uint32_t number = method == GRPC_COMMIT ? 4 : 3;
    struct grpc_field field;
    *source = (struct call_source){.message = message};
    while (server_grpc_field_next(&message, &field)) {
        if (field.number == FIELD_DOMAIN) {
            source->domain = field.bytes;
        } else if (field.number == FIELD_DESCRIPTOR) {
            source->descriptor_count++;
        } else if (field.number == number) {
            source->number = field.value;
        } else if (field.number == 3) {
            source->reservation_id = field.bytes;
        } else if (field.number == 4 && method == GRPC_RESERVE) {
            source->has_ttl = true;
            numbers_read(field.bytes, source->ttl);
        }
    }
}

/* Checks that there are a valid domain and a descriptor. The scan has not checked this. */
static bool source_check(const struct call_source *source, struct grpc_status *status) {
    const struct grpc_bytes *domain = &source->domain;
    if (domain->count == 0 || memchr(domain->bytes, 0, domain->count)) {
        return server_grpc_fail(status, GRPC_INVALID_ARGUMENT,
                                "domain: must be 1 to %d bytes without a zero",
                                DOORMAN_ID_BYTES_MAX);
    }
    return source->descriptor_count > 0 ||
           server_grpc_fail(status, GRPC_INVALID_ARGUMENT, "descriptors: must have 1 to %d",
                            GRPC_DESCRIPTOR_MAX);
}

static doorman_descriptor_entry entry_read(struct grpc_bytes from) {
    struct grpc_bytes key = {NULL, 0}, value = {NULL, 0};
    struct grpc_field field;
    while (server_grpc_field_next(&from, &field)) {
        if (field.number == 1) key = field.bytes;
        if (field.number == 2) value = field.bytes;
    }
    return (doorman_descriptor_entry){.key = (const char *)key.bytes,
                                      .key_bytes = key.count,
                                      .value = (const char *)value.bytes,
                                      .value_bytes = value.count};
}

static double hits_of(uint64_t number) {
    return (double)number < COST_MAX ? (double)number : COST_MAX;
}

/* Reads a descriptor. If it has hits, they replace those of the request, and 0 hits charge nothing.
 * A unit_multiplier of 0 counts as 1. Returns the count of entries. */
static size_t descriptor_read(struct grpc_descriptor *out, struct grpc_bytes from,
                              doorman_descriptor_entry entries[GRPC_ENTRY_MAX]) {
    uint64_t hits[NUMBERS] = {0}, wanted[NUMBERS] = {0};
    size_t count = 0;
    struct grpc_field field;
    while (server_grpc_field_next(&from, &field)) {
        if (field.number == FIELD_ENTRY && count < GRPC_ENTRY_MAX) {
            entries[count++] = entry_read(field.bytes);
        } else if (field.number == FIELD_WANTED) {
            out->has_wanted = true;
            numbers_read(field.bytes, wanted);
        } else if (field.number == FIELD_HITS) {
            numbers_read(field.bytes, hits);
            out->hits = hits_of(hits[1]);
        } else if (field.number == FIELD_REFUND) {
            out->is_refund = field.value != 0;
        }
    }
    if (!out->has_wanted) return count;
    out->wanted.requests = (double)(uint32_t)wanted[1];
    out->wanted.seconds = server_grpc_unit_seconds((uint32_t)wanted[2]);
    if ((uint32_t)wanted[3] > 0) out->wanted.seconds *= (double)(uint32_t)wanted[3];
    return count;
}

/* Reads all descriptors, and finds their names.
 *   rules     of the configuration; NULL: none
 *   returns   the index of the first one without entries, or their count */
static size_t call_read_descriptors(struct grpc_call *call, const doorman_descriptors *rules,
                                    struct grpc_bytes message) {
    size_t at = 0, empty = call->descriptor_count;
    struct grpc_field field;
    while (server_grpc_field_next(&message, &field)) {
        doorman_descriptor_entry entries[GRPC_ENTRY_MAX];
        if (field.number != FIELD_DESCRIPTOR) continue;
        struct grpc_descriptor *descriptor = &call->descriptors[at];
        const size_t count = descriptor_read(descriptor, field.bytes, entries);
        (void)doorman_descriptors_resolve(rules, call->domain, entries, count, &descriptor->item);
        if (count == 0 && empty == call->descriptor_count) empty = at;
        at++;
    }
    assert(at == call->descriptor_count);
    return empty;
}

#define FEW_DESCRIPTORS 4 /* reading them takes little longer than another lock would */

/* Reads all descriptors. A lock keeps the configuration from being destroyed. For many descriptors
 * it is the lock of the configuration, so that other threads can use the service. But if another
 * thread has this lock, perhaps for long, the loop must not wait. Then, and for few descriptors,
 * the lock of the service is used: a configuration is destroyed only after another one was put in
 * its place under this lock. Returns false if a descriptor has no entries. */
static bool call_resolve(struct grpc_call *call, struct grpc_bytes message,
                         struct grpc_status *status) {
    struct service *service = call->service;
    const bool has_config_lock =
        call->descriptor_count > FEW_DESCRIPTORS && server_try_lock(&service->config_lock);
    server_lock(&service->lock);
    const doorman_config *config = service->config;
    const doorman_descriptors *rules = doorman_config_descriptors(config);
    if (has_config_lock) server_unlock(&service->lock);
    const size_t empty = call_read_descriptors(call, rules, message);
    call->holds_at = call->descriptor_count;
    if (call->method == GRPC_RESERVE) call->holds_at = server_grpc_call_find_holds(call, config);
    server_unlock(has_config_lock ? &service->config_lock : &service->lock);
    return empty == call->descriptor_count ||
           server_grpc_fail(status, GRPC_INVALID_ARGUMENT,
                            "descriptors[%zu].entries: must have 1 to %d", empty, GRPC_ENTRY_MAX);
}

static void call_count(const struct grpc_call *call) {
    struct grpc_counters *counters = call->counters;
    server_counter_add(&counters->descriptors, call->descriptor_count);
    for (size_t i = 0; i < call->descriptor_count; i++) {
        if (call->descriptors[i].item.hashed) server_counter_add(&counters->hashed, 1);
    }
}

/* Makes a call and its arrays in one piece of memory. */
static struct grpc_call *call_create(struct grpc *grpc, const struct call_source *source) {
    const bool has_fields = grpc->service->settings->grpc_headers;
    const size_t count = source->descriptor_count;
    struct grpc_call *call = NULL;
    const size_t each = sizeof *call->descriptors + sizeof *call->items + sizeof *call->entries +
                        sizeof *call->places;
    call = (struct grpc_call *)server_grpc_memory_take(
        &grpc->memory, sizeof *call + count * each + (has_fields ? sizeof *call->fields : 0));
    if (!call) return NULL;
    call->items = (doorman_permit_item *)(void *)(call->descriptors + count);
    call->entries = (doorman_permit_entry *)(void *)(call->items + count);
    void *behind = call->entries + count;
    call->fields = has_fields ? (struct limit_fields *)behind : NULL;
    if (has_fields) behind = call->fields + 1;
    call->places = (size_t *)behind;
    assert(source->domain.count < sizeof call->domain);
    memcpy(call->domain, source->domain.bytes, source->domain.count);
    call->domain[source->domain.count] = 0;
    call->descriptor_count = count;
    const uint32_t hits = (uint32_t)source->number;
    for (size_t i = 0; i < count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[i];
        descriptor->hits = hits > 0 ? (double)hits : 1;
        descriptor->is_refund = descriptor->has_wanted = false;
        descriptor->is_unmatched = descriptor->brings = false;
        descriptor->outcome.is_over = false;
        descriptor->outcome.has_limit = descriptor->outcome.has_reset = false;
    }
    return call;
}

/* Reads what only a Reserve or a Commit has. Its amount becomes the hits of each descriptor. */
static bool call_read_reservation(struct grpc_call *call, const struct call_source *source,
                                  struct grpc_status *status) {
    const uint64_t *ttl = source->ttl;
    const struct grpc_bytes *id = &source->reservation_id;
    const bool reserves = call->method == GRPC_RESERVE, commits = call->method == GRPC_COMMIT;
    call->reservation = (struct grpc_reservation){.ttl = 0};
    if (!reserves && !commits) return true;
    if (reserves && !server_grpc_reserve_start(&call->reservation, source->has_ttl, (int64_t)ttl[1],
                                               (int32_t)(uint32_t)ttl[2], status)) {
        return false;
    }
    for (size_t i = 0; i < call->descriptor_count; i++) {
        call->descriptors[i].hits = hits_of(source->number);
        call->descriptors[i].is_refund = false;
    }
    if (commits && server_grpc_reserve_read_id(call, id->bytes, id->count)) {
        call->step = GRPC_STEP_SETTLE;
    }
    return true;
}

static struct grpc_call *call_make(struct grpc *grpc, enum grpc_method method,
                                   const struct call_source *source, struct grpc_status *status) {
    bool charges = method == GRPC_REPORT || method == GRPC_COMMIT;
    if (!source_check(source, status)) return NULL;
    struct grpc_call *call = call_create(grpc, source);
    if (!call) {
        server_grpc_fail(status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    call->service = grpc->service;
    call->counters = &grpc->counters;
    call->exchange = &grpc->exchange;
    call->method = method;
    call->step = charges ? GRPC_STEP_REPORT : GRPC_STEP_PERMIT;
    call->is_over = call->is_forwarded = call->is_away = call->has_fields = false;
    call->may_bring = call->brings = false;
    bool done = call_resolve(call, source->message, status);
    if (done) call_count(call);
    done = done && call_read_reservation(call, source, status);
    if (done && call->holds_at < call->descriptor_count) {
        done = server_grpc_call_refuse_holds(call, call->holds_at, status);
    }
    if (done) return call;
    server_grpc_memory_give(&grpc->memory, call);
    return NULL;
}

struct grpc_call *server_grpc_call_read(struct grpc *grpc, enum grpc_method method,
                                        struct grpc_bytes message, struct grpc_status *status) {
    const enum grpc_schema schema = method == GRPC_RESERVE  ? GRPC_RESERVE_REQUEST
                                    : method == GRPC_COMMIT ? GRPC_COMMIT_REQUEST
                                                            : GRPC_LIMIT_REQUEST;
    struct grpc_scan_error error;
    struct call_source source;
    if (!server_grpc_scan(schema, message.bytes, message.count, &error)) {
        server_grpc_fail(status,
                         error.is_too_large ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT, "%s",
                         error.text);
        return NULL;
    }
    source_read(&source, method, message);
    struct grpc_call *call = call_make(grpc, method, &source, status);
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

/* Returns the seconds of a window. A window of 28 to 31 days can be a month of the calendar, and
 * counts as 30 days, as MONTH does. */
static double figures_seconds(doorman_time window) {
    const double seconds = (double)window / (double)DOORMAN_SECOND, day = 86400;
    return seconds >= 28 * day && seconds <= 31 * day ? 30 * day : seconds;
}

static bool is_about_whole(double value) {
    const double rest = value - (double)(uint64_t)(value < 1e15 ? value : 0);
    return rest < 1e-6 || rest > 1 - 1e-6;
}

#define FIGURE_UNITS (sizeof figure_units / sizeof *figure_units)

/* Returns the index of the first of these units that exists: the unit that is as long as the
 * window, the smallest unit with a whole number of requests, the smallest unit with at least one
 * request. Returns FIGURE_UNITS if none of them exists, or if there is no window. */
static size_t figures_choose(double most, double window) {
    size_t some = FIGURE_UNITS;
    for (size_t i = 0; i < FIGURE_UNITS; i++) {
        if (figure_units[i].seconds == window) return i;
    }
    for (size_t i = 0; i < FIGURE_UNITS && window > 0; i++) {
        const double in_unit = most * figure_units[i].seconds / window;
        if (in_unit >= 1 && is_about_whole(in_unit)) return i;
        if (in_unit >= 1 && some == FIGURE_UNITS) some = i;
    }
    return some;
}

/* Returns the figures of a limit as requests in a unit, rounded down. */
static struct grpc_figures figures_of(const struct grpc_outcome *outcome) {
    struct grpc_figures figures = {.unit = GRPC_WIRE__UNIT__NO_UNIT};
    const double window = figures_seconds(outcome->window);
    const size_t chosen = figures_choose(outcome->most, window);
    double requests = outcome->most;
    if (chosen < FIGURE_UNITS) {
        requests = outcome->most * figure_units[chosen].seconds / window + 1e-6;
        figures.unit = figure_units[chosen].unit;
    }
    figures.requests = u32_of(requests);
    return figures;
}

/* A message that is written into another one. Its fields have bounds, so it always fits. protobuf-c
 * would need an array of structs and pointers, and twice the time. An empty part has 0 bytes, and
 * its text is not set. */
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

/* Writes the tag of a field, and a number: the value of the field or its length. Returns the count
 * of bytes, at most PART_HEAD_MAX. */
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

/* Adds the status of a descriptor. The numbers of the fields are those of messages.proto. */
static void response_add_status(struct text *out, const struct grpc_outcome *outcome) {
    struct call_part status, below;
    status.bytes = below.bytes = 0;
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

/* Adds a header. It needs a buffer of its own, because a list of limits may be longer than a
 * call_part. */
static void response_add_header(struct text *out, const char *name, const char *value) {
    struct text header = {.failed = false};
    response_add(&header, 1, name, strlen(name));
    response_add(&header, 2, value, strlen(value));
    if (header.failed) out->failed = true;
    if (!header.failed) response_add(out, 3, header.buffer.text, header.buffer.bytes);
    doorman_buffer_uninit(&header.buffer);
}

/* Adds the headers about the limits that a response of /v1/allow has too. */
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

/* Adds the text that the template of the first refused descriptor has for clients. The template is
 * from the configuration of this process, even if the master has decided. */
static void response_add_body(struct text *out, const struct grpc_call *call) {
    size_t at = 0;
    while (at < call->descriptor_count && !call->descriptors[at].outcome.is_over) at++;
    if (at == call->descriptor_count) return;
    server_lock(&call->service->lock);
    const doorman_config *config = call->service->config;
    const doorman_template *found =
        config ? doorman_config_find(config, call->descriptors[at].item.resource_id) : NULL;
    if (found && found->refused_body[0]) {
        response_add(out, 5, found->refused_body, strlen(found->refused_body));
    }
    server_unlock(&call->service->lock);
}

/* Writes the response of a limit service. The length in its prefix is known last, so it is written
 * last. */
static void call_write_limit(const struct grpc_call *call, struct text *out) {
    const size_t before = out->buffer.bytes;
    char head[GRPC_PREFIX + PART_HEAD_MAX] = {0}, length[4];
    const size_t head_bytes = part_put_head(head + GRPC_PREFIX, 1, PART_NUMBER,
                                            call->is_over ? GRPC_WIRE__DECISION__OVER_LIMIT
                                                          : GRPC_WIRE__DECISION__ALLOWED);
    server_text_add_bytes(out, head, GRPC_PREFIX + head_bytes);
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
