/* doorman_server, part GRPC: streams of quotas (W5). quota.c decides. This file reads reports,
 * gives the requests of quota.c to the server object, and writes actions.
 *
 * The client of Envoy cuts intervals and times to live to whole seconds. It keeps its bucket of
 * tokens if a new assignment has the same numbers, but it does not compare the seconds of the
 * interval. So the intervals of a resource all have the same number of seconds. Only a new
 * configuration changes this number, and Envoy must notice the change. Envoy does compare the
 * nanoseconds, before it cuts them off. So an interval of N seconds is sent with N - 1 nanoseconds.
 * A new bucket of tokens is full, so it must hold no more than one interval brings. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"
#include <math.h>
#include <unistd.h>

#define ACTION_MAX 64                 /* of one message */
#define FILL_BYTES ((size_t)64 << 10) /* of all messages that are written at once */
#define STEP_MAX 256                  /* requests, before connections have their turn */
#define INTERVAL_TOKENS 100.0         /* an interval is so long that the capacity brings as many */
#define INTERVAL_MAX 10               /* seconds */
#define COUNT_MAX 1e12                /* requests in one report */

/* ---- the server object ---------------------------------------------------------------------- */

#define DRIFT 0.05 /* of two clocks */

/* Returns the interval of a resource: 1 s, or more for a small capacity, because a share that
 * brings less than one token in an interval is 0.
 *   capacity   0: it comes from the parent, and can change at any time; the interval is 1 s */
static unsigned rlqs_interval(double capacity) {
    unsigned interval = 1;
    while (capacity > 0 && interval < INTERVAL_MAX &&
           capacity * (double)interval < INTERVAL_TOKENS) {
        interval++;
    }
    return interval;
}

/* Describes a resource. The length of a lease comes from the configuration, or from the last lease
 * of the parent if that is longer. The configuration also says whether a new master learns for as
 * long as a lease. Precondition: the lock is held. */
static void rlqs_describe(void *context, const char *resource_id, struct quota_facts *out) {
    const struct service *service = (const struct service *)context;
    assert(server_lock_is_held(&service->lock));
    const doorman_template *found =
        service->config ? doorman_config_find(service->config, resource_id) : NULL;
    const doorman_algorithm *algorithm = found ? &found->algorithm : NULL;
    doorman_server_resource resource;
    out->learns = true;
    if (found && !found->without_capacity) out->interval = rlqs_interval(found->capacity);
    if (algorithm) out->lease_length = algorithm->lease_length;
    if (doorman_server_find(service->server, resource_id, &resource, doorman_clock()) &&
        resource.lease_length > out->lease_length) {
        out->lease_length = resource.lease_length;
    }
    if (algorithm && algorithm->has_learning_mode_duration) {
        const double longest = (double)out->lease_length * (1 + DRIFT);
        out->learns = (double)algorithm->learning_mode_duration >= longest;
    }
}

bool server_grpc_quotas_create(struct grpc *grpc) {
    struct quota_options options = {.bucket_max = grpc->service->settings->resource_max,
                                    .drift = DRIFT,
                                    .describe = rlqs_describe,
                                    .context = grpc->service};
    if (options.bucket_max == 0) options.bucket_max = 1000000;
    if (getentropy(&options.seed, sizeof options.seed) != 0) return false;
    grpc->quotas = server_quotas_create(&options);
    return grpc->quotas != NULL;
}

static void rlqs_count(struct grpc *grpc) {
    const struct quota_counts *counts = server_quotas_counts(grpc->quotas);
    struct grpc_counters *to = &grpc->counters;
    __atomic_store_n(&to->quota_streams, counts->streams, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_buckets, counts->buckets, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_resources, counts->resources, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_ended_streams, counts->ended_streams, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_ended_committed, (uint64_t)ceil(counts->ended_committed),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_assignments, counts->assignments, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_abandoned, counts->abandoned, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_refused, counts->refused, __ATOMIC_RELAXED);
    __atomic_store_n(&to->quota_unmatched, counts->unmatched, __ATOMIC_RELAXED);
}

/* Takes the quotas from all streams, because the mastership in which they began has ended. */
static void rlqs_end_streams(struct grpc *grpc) {
    grpc->has_quotas = false;
    for (struct grpc_connection *each = grpc->first; each; each = each->next) {
        for (struct grpc_stream *stream = each->streams; stream; stream = stream->next) {
            server_grpc_quota_close(stream);
        }
    }
}

/* Returns how often an election has made this process the master. */
static uint64_t rlqs_mastership(const struct service *service) {
    return __atomic_load_n(&service->counters.master_changes[DOORMAN_MASTER], __ATOMIC_RELAXED);
}

void server_grpc_quotas_look(struct grpc *grpc) {
    const uint64_t mastership = rlqs_mastership(grpc->service);
    const bool is_same = grpc->is_master && mastership == grpc->quota_mastership;
    if (!grpc->quotas || (grpc->has_quotas ? is_same : !grpc->is_master)) return;
    if (grpc->has_quotas) rlqs_end_streams(grpc);
    if (grpc->is_master) {
        server_quotas_begin(grpc->quotas, grpc->now);
        grpc->quota_mastership = mastership;
        grpc->has_quotas = true;
    }
    rlqs_count(grpc);
}

/* Makes the next request that is due, and takes its response. Returns false if there is none, or if
 * none can be answered now. */
static bool rlqs_step(struct grpc *grpc) {
    struct service *service = grpc->service;
    doorman_request request;
    doorman_response response = {.is_master = true};
    bool has_more = false;
    server_lock(&service->lock);
    doorman_time now = doorman_clock();
    bool is_master = rlqs_mastership(service) == grpc->quota_mastership;
    if (is_master && !server_pauses(service) &&
        server_quotas_request(grpc->quotas, &request, now)) {
        doorman_status status =
            doorman_server_handle(service->server, &request, &response, NULL, now);
        is_master = response.is_master;
        has_more = is_master && status == DOORMAN_OK;
        server_quotas_response(grpc->quotas, has_more ? &response : NULL, now);
        server_expedite_parent(service);
    }
    server_unlock(&service->lock);
    if (!is_master) {
        grpc->is_master = false; /* until the next look */
        rlqs_end_streams(grpc);
    }
    return has_more;
}

void server_grpc_quotas_work(struct grpc *grpc) {
    server_grpc_quotas_look(grpc);
    for (int i = 0; i < STEP_MAX && grpc->has_quotas; i++) {
        if (server_quotas_due(grpc->quotas) > doorman_clock() || !rlqs_step(grpc)) break;
    }
    if (grpc->quotas) rlqs_count(grpc);
}

/* ---- streams -------------------------------------------------------------------------------- */

bool server_grpc_quota_open(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    if (!grpc->has_quotas) server_grpc_look(grpc); /* it may be the master by now */
    server_grpc_quotas_look(grpc);
    if (!grpc->has_quotas || grpc->is_draining) {
        return server_grpc_fail(&stream->status, GRPC_UNAVAILABLE, "%s",
                                grpc->is_draining ? "the server is stopping"
                                                  : "this process is not the master");
    }
    stream->quota = server_quota_open(grpc->quotas, stream->connection->head.client, grpc->now);
    if (!stream->quota) {
        return server_grpc_fail(&stream->status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    rlqs_count(grpc);
    return true;
}

void server_grpc_quota_close(struct grpc_stream *stream) {
    struct grpc *grpc = stream->connection->grpc;
    if (!stream->quota) return;
    server_quota_close(stream->quota, grpc->now);
    stream->quota = NULL;
    rlqs_count(grpc);
}

/* ---- reports -------------------------------------------------------------------------------- */

static int rlqs_compare(const void *a, const void *b) {
    const ProtobufCBinaryData *one = &(*(GrpcWire__Entry *const *)a)->key;
    const ProtobufCBinaryData *other = &(*(GrpcWire__Entry *const *)b)->key;
    size_t count = one->len < other->len ? one->len : other->len;
    int order = count > 0 ? memcmp(one->data, other->data, count) : 0;
    return order != 0 ? order : (one->len > other->len) - (one->len < other->len);
}

/* Brings the entries of an id into the order of their keys. Of entries with the same key the last
 * one counts, and the others are freed. */
static void rlqs_sort(GrpcWire__BucketId *id) {
    GrpcWire__Entry **bucket = id->bucket;
    size_t count = 0;
    for (size_t i = 0; i < id->n_bucket; i++) {
        GrpcWire__Entry *entry = bucket[i];
        size_t at = count;
        while (at > 0 && rlqs_compare(&bucket[at - 1], &entry) > 0) at--;
        if (at > 0 && rlqs_compare(&bucket[at - 1], &entry) == 0) {
            protobuf_c_message_free_unpacked(&bucket[at - 1]->base, NULL);
            bucket[at - 1] = entry;
            continue;
        }
        memmove(&bucket[at + 1], &bucket[at], (count - at) * sizeof *bucket);
        bucket[at] = entry;
        count++;
    }
    id->n_bucket = count;
}

/* Adds a part of a name. The characters in `escaped` become escapes. */
static void rlqs_add_part(struct text *out, const ProtobufCBinaryData *part, const char *escaped) {
    for (size_t i = 0; i < part->len; i++) {
        const char code = (char)part->data[i];
        if (code && strchr(escaped, code)) {
            server_text_addf(out, "%%%02X", (unsigned)code);
        } else {
            server_text_add_bytes(out, &code, 1);
        }
    }
}

/* Makes the name of a bucket's resource: domain/key=value/... in the order of the keys. If it is
 * too long or not valid, a hash replaces it as for a descriptor. Returns false if memory runs
 * out. */
static bool rlqs_name(struct grpc_stream *stream, const GrpcWire__BucketId *id,
                      doorman_descriptor_item *out) {
    struct text text = {.failed = false};
    const ProtobufCBinaryData domain = {strlen(stream->domain), (uint8_t *)stream->domain};
    for (size_t i = 0; i < id->n_bucket; i++) {
        if (i > 0) server_text_add(&text, "/");
        rlqs_add_part(&text, &id->bucket[i]->key, "/%=");
        server_text_add(&text, "=");
        rlqs_add_part(&text, &id->bucket[i]->value, "/%");
    }
    if (!text.failed) {
        const doorman_descriptor_entry entry = {
            .key = text.buffer.text, .key_bytes = text.buffer.bytes, .value = ""};
        struct text name = {.failed = false};
        (void)doorman_descriptors_resolve(NULL, stream->domain, &entry, 1, out);
        rlqs_add_part(&name, &domain, "/%");
        server_text_add(&name, "/");
        server_text_add_bytes(&name, text.buffer.text, text.buffer.bytes);
        text.failed = name.failed;
        if (!name.failed && !out->hashed) {
            snprintf(out->resource_id, sizeof out->resource_id, "%.*s", (int)name.buffer.bytes,
                     name.buffer.text);
        }
        doorman_buffer_uninit(&name.buffer);
    }
    doorman_buffer_uninit(&text.buffer);
    return !text.failed;
}

static double rlqs_number(uint64_t number) {
    return (double)number < COUNT_MAX ? (double)number : COUNT_MAX;
}

static bool rlqs_take_usage(struct grpc_stream *stream, const GrpcWire__BucketUsage *usage,
                            size_t index) {
    struct grpc *grpc = stream->connection->grpc;
    GrpcWire__BucketId *id = usage->bucket_id;
    doorman_descriptor_item item = {.hashed = false};
    uint8_t label[GRPC_BUCKET_ID_MAX];
    if (!id || id->n_bucket == 0) {
        return server_grpc_fail(&stream->status, GRPC_INVALID_ARGUMENT,
                                "bucket_quota_usages[%zu].bucket_id.bucket: must have 1 to %d",
                                index, GRPC_ENTRY_MAX);
    }
    rlqs_sort(id);
    size_t bytes = grpc_wire__bucket_id__get_packed_size(id);
    if (bytes > sizeof label || !rlqs_name(stream, id, &item)) {
        return server_grpc_fail(&stream->status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    grpc_wire__bucket_id__pack(id, label);
    if (item.hashed) server_counter_add(&grpc->counters.hashed, 1);
    const struct quota_report report = {.resource_id = item.resource_id,
                                        .label = label,
                                        .label_bytes = bytes,
                                        .allowed = rlqs_number(usage->num_requests_allowed),
                                        .denied = rlqs_number(usage->num_requests_denied)};
    (void)server_quota_report(stream->quota, &report, doorman_clock()); /* which counts refusals */
    return true;
}

/* Checks the domain of a message. The first message must have one, and others may repeat it. */
static bool rlqs_check_domain(struct grpc_stream *stream, const ProtobufCBinaryData *domain) {
    const bool is_first = !stream->domain[0];
    if (!is_first && domain->len == 0) return true;
    if (domain->len == 0 || memchr(domain->data, 0, domain->len)) {
        return server_grpc_fail(&stream->status, GRPC_INVALID_ARGUMENT,
                                "domain: must be 1 to %d bytes without a zero",
                                DOORMAN_ID_BYTES_MAX);
    }
    if (is_first) {
        snprintf(stream->domain, sizeof stream->domain, "%.*s", (int)domain->len,
                 (const char *)domain->data);
    }
    return (strlen(stream->domain) == domain->len &&
            memcmp(stream->domain, domain->data, domain->len) == 0) ||
           server_grpc_fail(&stream->status, GRPC_INVALID_ARGUMENT,
                            "domain: must be that of the first message");
}

bool server_grpc_quota_take(struct grpc_stream *stream, const uint8_t *bytes, size_t count) {
    struct grpc_scan_error error;
    if (!server_grpc_scan(GRPC_QUOTA_REPORTS, bytes, count, &error)) {
        return server_grpc_fail(
            &stream->status, error.is_too_large ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT,
            "%s", error.text);
    }
    GrpcWire__QuotaReports *reports = grpc_wire__quota_reports__unpack(NULL, count, bytes);
    if (!reports) {
        return server_grpc_fail(&stream->status, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    }
    bool valid = rlqs_check_domain(stream, &reports->domain);
    for (size_t i = 0; valid && i < reports->n_bucket_quota_usages; i++) {
        valid = rlqs_take_usage(stream, reports->bucket_quota_usages[i], i);
    }
    grpc_wire__quota_reports__free_unpacked(reports, NULL);
    return valid;
}

/* ---- actions -------------------------------------------------------------------------------- */

/* One action as a message, with all that it points to. */
struct rlqs_action {
    GrpcWire__BucketAction action;
    GrpcWire__QuotaAssignment assignment;
    GrpcWire__QuotaAbandon abandon;
    GrpcWire__Strategy strategy;
    GrpcWire__TokenBucket bucket;
    GrpcWire__Number tokens;
    GrpcWire__Span interval, time_to_live;
};

/* Fills an action. The action has pointers to itself, so it must not be moved. */
static void rlqs_fill(struct rlqs_action *out, const struct quota_action *from) {
    union {
        const void *from;
        uint8_t *to;
    } label = {from->label}; /* protobuf-c has no const here */
    grpc_wire__bucket_action__init(&out->action);
    grpc_wire__quota_assignment__init(&out->assignment);
    grpc_wire__quota_abandon__init(&out->abandon);
    grpc_wire__strategy__init(&out->strategy);
    grpc_wire__token_bucket__init(&out->bucket);
    grpc_wire__number__init(&out->tokens);
    grpc_wire__span__init(&out->interval);
    grpc_wire__span__init(&out->time_to_live);
    out->action.bucket_id = (ProtobufCBinaryData){from->label_bytes, label.to};
    if (from->kind == QUOTA_ABANDON) {
        out->action.action_case = GRPC_WIRE__BUCKET_ACTION__ACTION_ABANDON_ACTION;
        out->action.abandon_action = &out->abandon;
        return;
    }
    out->action.action_case = GRPC_WIRE__BUCKET_ACTION__ACTION_QUOTA_ASSIGNMENT_ACTION;
    out->action.quota_assignment_action = &out->assignment;
    out->time_to_live.seconds = from->time_to_live;
    out->assignment.assignment_time_to_live = &out->time_to_live;
    out->assignment.rate_limit_strategy = &out->strategy;
    out->strategy.strategy_case = GRPC_WIRE__STRATEGY__STRATEGY_BLANKET_RULE;
    out->strategy.blanket_rule = GRPC_WIRE__BLANKET_RULE__DENY_ALL;
    if (from->tokens == 0) return;
    out->strategy.strategy_case = GRPC_WIRE__STRATEGY__STRATEGY_TOKEN_BUCKET;
    out->strategy.token_bucket = &out->bucket;
    out->bucket.max_tokens = from->tokens;
    out->tokens.value = from->tokens;
    out->bucket.tokens_per_fill = &out->tokens;
    out->interval.seconds = from->interval;
    out->interval.nanos = (int32_t)from->interval - 1;
    out->bucket.fill_interval = &out->interval;
}

/* Adds an action to the body of a message, as one more field 1. */
static void rlqs_add_action(struct text *body, const struct quota_action *action) {
    struct rlqs_action message;
    uint8_t bytes[GRPC_BUCKET_ID_MAX + 256], head[8] = {1 << 3 | 2};
    size_t head_bytes = 1;
    rlqs_fill(&message, action);
    size_t count = grpc_wire__bucket_action__get_packed_size(&message.action);
    assert(count <= sizeof bytes);
    grpc_wire__bucket_action__pack(&message.action, bytes);
    for (size_t rest = count; rest > 0; rest >>= 7) {
        head[head_bytes++] = (uint8_t)((rest & 0x7f) | (rest >= 0x80 ? 0x80 : 0));
    }
    server_text_add_bytes(body, (const char *)head, head_bytes);
    server_text_add_bytes(body, (const char *)bytes, count);
}

/* Adds one message. Returns true if the message is full, so there may be more actions. */
static bool rlqs_write_message(struct grpc_stream *stream) {
    struct text body = {.failed = false};
    struct quota_action action;
    size_t count = 0;
    while (count < ACTION_MAX &&
           server_quota_next_action(stream->quota, &action, doorman_clock())) {
        rlqs_add_action(&body, &action);
        count++;
    }
    if (count > 0) {
        server_grpc_add_prefix(&stream->out, body.buffer.bytes);
        server_text_add_bytes(&stream->out, body.buffer.text, body.buffer.bytes);
    }
    stream->out.failed = stream->out.failed || body.failed;
    doorman_buffer_uninit(&body.buffer);
    return count == ACTION_MAX;
}

bool server_grpc_quota_write(struct grpc_stream *stream) {
    stream->out.buffer.bytes = 0;
    stream->out_sent = 0;
    while (rlqs_write_message(stream) && stream->out.buffer.bytes < FILL_BYTES) continue;
    return stream->out.buffer.bytes > 0;
}
