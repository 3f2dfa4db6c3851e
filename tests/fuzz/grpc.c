/* Reads any bytes as what a peer of gRPC sends, as an answer of the master, or as descriptors. The
 * first byte says what the rest is:
 *
 *     0 to 3   frames of HTTP/2, behind the preface, in pieces of 1, 7, 100 or 100,000 bytes
 *     4        the message of a call. If it is accepted, the response is checked
 *     5        an answer of the master in JSON
 *     6        two descriptors: lines of key and value. Their names are valid, and are equal only
 *              if their entries are equal
 *     7        messages of reports, each behind its length in one byte, on a stream of quotas
 *
 * The doorman_server is real, but there is no socket. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* as in server.h */
#endif
#define main server_main
int server_main(int argc, char **argv);
#include "doorman_server.c"
#undef main
#include "server/util/base64.c"
#include "server/util/dial.c"
#include "server/util/host.c"
#include "server/log/unmatched.c"
#include "server/log/warnings.c"
#include "server/http/decision.c"
#include "server/http/limit_fields.c"
#include "server/http/text.c"
#include "server/http/tokens.c"
#include "server/link/batch.c"
#include "server/link/link.c"
#include "server/link/link_http.c"
#include "server/grpc/grpc_budget.c"
#include "server/grpc/grpc_call.c"
#include "server/grpc/grpc_connection.c"
#include "server/grpc/grpc_figures.c"
#include "server/grpc/grpc_health.c"
#include "server/grpc/grpc_master.c"
#include "server/grpc/grpc_memory.c"
#include "server/grpc/grpc_names.c"
#include "server/grpc/grpc_permit.c"
#include "server/grpc/grpc_quota.c"
#include "server/grpc/grpc_reserve.c"
#include "server/grpc/grpc_scan.c"
#include "server/grpc/grpc_stream.c"
#include "server/grpc/quota.c"

#include "fuzz.h"

static const char grpc_config[] =
    "{\"resources\":[{\"identifier_glob\":\"a/*\",\"limits\":["
    "{\"name\":\"w\",\"kind\":\"FIXED_WINDOW\",\"limit\":5,\"window\":86400,\"refunds\":true},"
    "{\"name\":\"b\",\"kind\":\"TOKEN_BUCKET\",\"rate\":1,\"size\":9,\"shadow\":true}]},"
    "{\"identifier_glob\":\"c/*\",\"limits\":["
    "{\"name\":\"c\",\"kind\":\"CONCURRENCY\",\"limit\":1}]},"
    "{\"identifier_glob\":\"q/*\",\"capacity\":1000,\"algorithm\":{\"kind\":\"FAIR_SHARE\","
    "\"lease_length\":10,\"refresh_interval\":1,\"learning_mode_duration\":0}}]}";

static void start(struct grpc *grpc, struct service *service) {
    must(doorman_json_config(&service->config, grpc_config, sizeof grpc_config - 1, NULL) ==
         DOORMAN_OK);
    const doorman_server_options options = {.node = "node", .config = service->config};
    service->server = fuzz_server(&options);
    must(server_lock_init(&service->lock, LOCK_SERVICE));
    must(server_lock_init(&service->config_lock, LOCK_CONFIG));
    grpc->service = service;
    grpc->now = doorman_clock();
    grpc->serving = GRPC_WIRE__HEALTH__SERVING;
    must(server_grpc_quotas_create(grpc));
    grpc->is_master = true;
    server_grpc_quotas_look(grpc);
}

static void stop(struct grpc *grpc, struct service *service) {
    must(grpc->first == NULL && grpc->buffered == 0);
    must(server_quotas_counts(grpc->quotas)->streams == 0);
    server_grpc_spares_free(grpc);
    server_grpc_memory_free(&grpc->memory);
    server_quotas_destroy(grpc->quotas);
    doorman_server_destroy(service->server);
    doorman_config_destroy(service->config);
}

/* Checks that the list of streams is linked correctly, and that the counts are right. */
static void check_streams(const struct grpc_connection *connection) {
    size_t count = 0, bytes = 0;
    for (const struct grpc_stream *each = connection->streams; each; each = each->next) {
        must(each->connection == connection && (!each->next || each->next->previous == each));
        must(each->state == GRPC_STREAM_READING || each->state == GRPC_STREAM_WATCHING ||
             each->state == GRPC_STREAM_QUOTA || each->state == GRPC_STREAM_ANSWERING);
        bytes += each->in.buffer.bytes;
        count++;
    }
    must(count == connection->stream_count && count <= GRPC_STREAM_MAX + 1);
    must(bytes == connection->grpc->buffered && connection->budget <= GRPC_BUDGET_MAX);
}

static void run_frames(struct grpc *grpc, fuzz_text input, size_t piece) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct grpc_connection *connection = server_grpc_connection_create(grpc, -1, NULL);
    must(connection != NULL);
    server_grpc_connection_feed(connection, (const uint8_t *)preface, sizeof preface - 1);
    for (int i = 0; !connection->has_ended && input.bytes > 0; i++) {
        size_t count = input.bytes < piece ? input.bytes : piece;
        server_grpc_connection_feed(connection, (const uint8_t *)input.text, count);
        input.text += count;
        input.bytes -= count;
        while (i % 3 > 0 && server_grpc_connection_fill(connection)) {
            connection->out_sent = connection->out_bytes;
        }
        grpc->now += DOORMAN_SECOND / 3;
        if (i % 50 == 9) server_grpc_streams_tick(connection);
        check_streams(connection);
        if (i == 200) server_grpc_connection_drain(connection);
    }
    while (server_grpc_connection_fill(connection)) connection->out_sent = connection->out_bytes;
    check_streams(connection);
    server_grpc_connection_destroy(connection);
}

static void check_response(const struct grpc_call *call) {
    struct text out = {.failed = false};
    server_grpc_call_write(call, &out);
    must(!out.failed && out.buffer.bytes >= GRPC_PREFIX);
    const uint8_t *bytes = (const uint8_t *)out.buffer.text;
    size_t count =
        (size_t)bytes[1] << 24 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 8 | bytes[4];
    must(count == out.buffer.bytes - GRPC_PREFIX);
    if (call->method == GRPC_RESERVE || call->method == GRPC_COMMIT) {
        doorman_buffer_uninit(&out.buffer);
        return;
    }
    GrpcWire__LimitResponse *response =
        grpc_wire__limit_response__unpack(NULL, count, bytes + GRPC_PREFIX);
    must(response && response->n_statuses == call->descriptor_count);
    bool is_over = false;
    for (size_t i = 0; i < response->n_statuses; i++) {
        is_over = is_over || response->statuses[i]->code == GRPC_WIRE__DECISION__OVER_LIMIT;
    }
    must(is_over == (response->overall_code == GRPC_WIRE__DECISION__OVER_LIMIT));
    grpc_wire__limit_response__free_unpacked(response, NULL);
    doorman_buffer_uninit(&out.buffer);
}

/* Reads a message and decides it. If both steps succeed, checks the response. */
static void run_message(struct grpc *grpc, fuzz_text input) {
    const enum grpc_method method = (enum grpc_method)(input.bytes % 5);
    struct grpc_status status = {.code = GRPC_OK};
    char master[DOORMAN_ID_BYTES_MAX + 1];
    const struct peer peer = {.text = "fuzz"};
    const struct grpc_bytes message = {(const uint8_t *)input.text, input.bytes};
    struct grpc_call *call = server_grpc_call_read(grpc, method, message, &status);
    must(call || status.code == GRPC_INVALID_ARGUMENT || status.code == GRPC_RESOURCE_EXHAUSTED ||
         (method == GRPC_RESERVE && status.code == GRPC_FAILED_PRECONDITION));
    must(call || strcmp(status.text, "out of memory") != 0);
    if (!call) return;
    must(call->descriptor_count > 0 && call->descriptor_count <= GRPC_DESCRIPTOR_MAX);
    enum grpc_decided decided = server_grpc_call_decide(call, &peer, &status, master);
    const bool is_too_large = method == GRPC_RESERVE && status.code == GRPC_RESOURCE_EXHAUSTED &&
                              strcmp(status.text, "out of memory") != 0;
    must(decided == GRPC_DECIDED ||
         (decided == GRPC_FAILED && (is_too_large || status.code == GRPC_FAILED_PRECONDITION)));
    if (decided == GRPC_DECIDED) check_response(call);
    server_grpc_memory_give(&grpc->memory, call);
}

static void run_answer(struct grpc *grpc, fuzz_text input) {
    static const uint8_t message[] =
        "\n\001a\022\010\n\006\n\001k\022\001v\022\010\n\006\n\001l\022\001w";
    struct grpc_status status = {.code = GRPC_OK};
    const struct grpc_answer answer = {.text = input.text, .bytes = input.bytes};
    struct grpc_call *call = server_grpc_call_read(
        grpc, GRPC_SHOULD_RATE_LIMIT, (struct grpc_bytes){message, sizeof message - 1}, &status);
    must(call && call->descriptor_count == 2 && call->permit.item_count == 2);
    bool done = server_grpc_master_read(call, &answer, &status);
    must(done == (status.code == GRPC_OK));
    if (done && call->step == GRPC_STEP_DONE) check_response(call);
    server_grpc_memory_give(&grpc->memory, call);
}

/* Checks that each action in `out` has the id of a bucket, and assigns a quota for some time. */
static void check_actions(const struct text *out) {
    const uint8_t *at = (const uint8_t *)out->buffer.text, *end = at + out->buffer.bytes;
    while (at < end) {
        size_t count = (size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4];
        must(count <= (size_t)(end - at) - GRPC_PREFIX);
        GrpcWire__QuotaResponse *response =
            grpc_wire__quota_response__unpack(NULL, count, at + GRPC_PREFIX);
        must(response && response->n_bucket_action > 0);
        for (size_t i = 0; i < response->n_bucket_action; i++) {
            const GrpcWire__BucketAction *action = response->bucket_action[i];
            GrpcWire__BucketId *id =
                grpc_wire__bucket_id__unpack(NULL, action->bucket_id.len, action->bucket_id.data);
            must(id && id->n_bucket > 0 && id->n_bucket <= GRPC_ENTRY_MAX);
            grpc_wire__bucket_id__free_unpacked(id, NULL);
            must(action->action_case == GRPC_WIRE__BUCKET_ACTION__ACTION_QUOTA_ASSIGNMENT_ACTION);
            must(action->quota_assignment_action->assignment_time_to_live->seconds > 0);
        }
        grpc_wire__quota_response__free_unpacked(response, NULL);
        at += GRPC_PREFIX + count;
    }
}

static void run_reports(struct grpc *grpc, fuzz_text input) {
    struct grpc_connection *connection = server_grpc_connection_create(grpc, -1, NULL);
    must(connection != NULL);
    struct grpc_stream *stream = server_grpc_stream_open(connection, 1);
    bool valid = true;
    must(stream && server_grpc_quota_open(stream));
    while (valid && input.bytes > 0) {
        size_t count = (unsigned char)input.text[0];
        if (count >= input.bytes) count = input.bytes - 1;
        valid = server_grpc_quota_take(stream, (const uint8_t *)input.text + 1, count);
        must(valid || stream->status.code == GRPC_INVALID_ARGUMENT ||
             stream->status.code == GRPC_RESOURCE_EXHAUSTED);
        must(valid || strcmp(stream->status.text, "out of memory") != 0);
        input.text += count + 1;
        input.bytes -= count + 1;
        server_grpc_quotas_work(grpc);
        if (server_grpc_quota_write(stream)) check_actions(&stream->out);
        must(!stream->out.failed);
    }
    server_grpc_connection_destroy(connection);
}

/* Reads a descriptor: a line with a key, a line with its value, and so on, up to an empty key. */
static size_t read_entries(fuzz_text *input, doorman_descriptor_entry entries[GRPC_ENTRY_MAX]) {
    fuzz_text key = {NULL, 0}, value = {NULL, 0};
    size_t count = 0;
    while (count < GRPC_ENTRY_MAX && fuzz_line(input, &key) && key.bytes > 0) {
        if (!fuzz_line(input, &value)) value = key;
        entries[count++] = (doorman_descriptor_entry){key.text, key.bytes, value.text, value.bytes};
    }
    return count;
}

static bool same_entries(const doorman_descriptor_entry *one, const doorman_descriptor_entry *other,
                         size_t count) {
    bool same = true;
    for (size_t i = 0; i < count; i++) {
        same = same && one[i].key_bytes == other[i].key_bytes &&
               one[i].value_bytes == other[i].value_bytes &&
               memcmp(one[i].key, other[i].key, one[i].key_bytes) == 0 &&
               memcmp(one[i].value, other[i].value, one[i].value_bytes) == 0;
    }
    return same;
}

static void run_descriptor(fuzz_text input) {
    doorman_descriptor_entry entries[2][GRPC_ENTRY_MAX];
    doorman_descriptor_item items[2];
    size_t counts[2];
    for (int i = 0; i < 2; i++) {
        counts[i] = read_entries(&input, entries[i]);
        if (counts[i] == 0) return;
        must(doorman_descriptors_resolve(NULL, "a", entries[i], counts[i], &items[i]) ==
             DOORMAN_OK);
        must(!items[i].matched && strlen(items[i].key) <= DOORMAN_ID_BYTES_MAX);
        must(strncmp(items[i].resource_id, "a/", 2) == 0 || items[i].hashed);
    }
    bool same_names = strcmp(items[0].resource_id, items[1].resource_id) == 0 &&
                      strcmp(items[0].key, items[1].key) == 0;
    bool same = counts[0] == counts[1] && same_entries(entries[0], entries[1], counts[0]);
    must(same_names == same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const size_t pieces[] = {1, 7, 100, 100000};
    if (!bytes) return 0;
    const struct settings settings = {.log_level = LEVEL_ERROR, .grpc_headers = bytes % 2 == 0};
    struct service *service = (struct service *)calloc(1, sizeof *service);
    struct grpc grpc = {.limit = 1};
    fuzz_text input = {(const char *)data + 1, bytes - 1};
    must(service != NULL);
    service->settings = &settings;
    start(&grpc, service);
    switch (data[0] % 8) {
    case 4: run_message(&grpc, input); break;
    case 5: run_answer(&grpc, input); break;
    case 6: run_descriptor(input); break;
    case 7: run_reports(&grpc, input); break;
    default: run_frames(&grpc, input, pieces[data[0] % 8]);
    }
    stop(&grpc, service);
    free(service);
    return 0;
}
