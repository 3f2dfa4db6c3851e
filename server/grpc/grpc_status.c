/* doorman_server, part GRPC: what metrics, /v1/status and the status page say of gRPC. This file
 * only reads atomic counters and what never changes. */
#include "grpc.h"

static uint64_t grpc_count(const counter *count) {
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static bool grpc_is_on(const struct service *service) {
    return service->grpc && service->grpc->address[0];
}

static void grpc_metrics_requests(struct text *text, const struct grpc_counters *counters) {
    server_metrics_header(text, "grpc_requests_total", "counter",
                          "Requests over gRPC, by method and code.");
    for (int method = 0; method < GRPC_METHOD_COUNT; method++) {
        for (int code = 0; code < GRPC_CODE_COUNT; code++) {
            const char *name = server_grpc_code_name((enum grpc_code)code);
            uint64_t count = grpc_count(&counters->requests[method][code]);
            if (!name || (count == 0 && code != GRPC_OK)) continue;
            server_text_addf(text,
                             "doorman_grpc_requests_total{method=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                             server_grpc_method_name((enum grpc_method)method), name, count);
        }
    }
}

static void grpc_metrics(struct service *service, struct text *text) {
    if (!grpc_is_on(service)) return;
    const struct grpc_counters *counters = &service->grpc->counters;
    const struct {
        const char *name, *type, *help;
        const counter *count;
    } metrics[] = {
        {"grpc_connections", "gauge", "Open connections of gRPC.", &counters->connections},
        {"grpc_streams", "gauge", "Requests over gRPC that are in progress.", &counters->streams},
        {"grpc_connections_total", "counter", "Accepted connections of gRPC.", &counters->accepted},
        {"grpc_forwarded_total", "counter", "Questions to other processes, on behalf of gateways.",
         &counters->forwarded},
        {"grpc_descriptors_total", "counter", "Descriptors of gateways.", &counters->descriptors},
        {"grpc_descriptors_hashed_total", "counter",
         "Descriptors with a name that was too long or no valid text, so it became a hash.",
         &counters->hashed},
        {"grpc_descriptors_unmatched_total", "counter",
         "Descriptors that were allowed because no template with limits has their resource.",
         &counters->unmatched},
        {"grpc_quota_streams", "gauge", "Open streams of quotas.", &counters->quota_streams},
        {"grpc_quota_buckets", "gauge",
         "Buckets of quotas, also those of ended streams whose assignment lasts.",
         &counters->quota_buckets},
        {"grpc_quota_resources", "gauge", "Different resources that buckets of quotas have.",
         &counters->quota_resources},
        {"grpc_quota_ended_streams", "gauge",
         "Streams of quotas that have ended, and whose last assignment lasts.",
         &counters->quota_ended_streams},
        {"grpc_quota_ended_committed", "gauge",
         "What clients of ended streams of quotas may still use, in requests a second, rounded up.",
         &counters->quota_ended_committed},
        {"grpc_quota_assignments_total", "counter", "Assignments of quotas.",
         &counters->quota_assignments},
        {"grpc_quota_abandoned_total", "counter",
         "Buckets of quotas that were abandoned because they had no requests.",
         &counters->quota_abandoned},
        {"grpc_quota_refused_total", "counter",
         "Reports of buckets for which there was no room: see --max-resources. One stream may have "
         "a "
         "tenth.",
         &counters->quota_refused},
        {"grpc_quota_unmatched_total", "counter",
         "Buckets of quotas that got no assignment because no template has their resource.",
         &counters->quota_unmatched},
        {"grpc_limits_ignored_total", "counter",
         "Descriptors with a limit of their own that was ignored.", &counters->limits_ignored},
    };
    grpc_metrics_requests(text, counters);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        server_metrics_value(text, metrics[i].name, metrics[i].type, metrics[i].help,
                             (double)grpc_count(metrics[i].count));
    }
    server_metrics_header(text, "grpc_connections_ended_total", "counter",
                          "Connections of gRPC that have ended, by reason.");
    for (int i = 0; i < GRPC_END_COUNT; i++) {
        server_text_addf(text, "doorman_grpc_connections_ended_total{reason=\"%s\"} %" PRIu64 "\n",
                         server_grpc_ending_name((enum grpc_ending)i),
                         grpc_count(&counters->endings[i]));
    }
}

static void grpc_status(struct service *service, struct text *text) {
    if (!grpc_is_on(service)) return;
    const struct grpc *grpc = service->grpc;
    server_text_add_json(text, ",\"grpc\":{\"address\":", grpc->address);
    server_text_addf(text,
                     ",\"connections\":%" PRIu64 ",\"connections_max\":%zu,\"streams\":%" PRIu64,
                     grpc_count(&grpc->counters.connections),
                     service->settings->grpc_connection_max, grpc_count(&grpc->counters.streams));
    server_text_addf(
        text,
        ",\"quotas\":{\"streams\":%" PRIu64 ",\"buckets\":%" PRIu64 ",\"resources\":%" PRIu64
        ",\"ended_streams\":%" PRIu64 ",\"ended_committed\":%" PRIu64 "}}",
        grpc_count(&grpc->counters.quota_streams), grpc_count(&grpc->counters.quota_buckets),
        grpc_count(&grpc->counters.quota_resources),
        grpc_count(&grpc->counters.quota_ended_streams),
        grpc_count(&grpc->counters.quota_ended_committed));
}

/* Adds a number and its noun, which may need an s. */
static void grpc_add_count(struct text *text, const char *before, uint64_t count,
                           const char *noun) {
    server_text_addf(text, "%s%" PRIu64 " %s%s", before, count, noun, count == 1 ? "" : "s");
}

/* Adds how many streams of quotas there are. An ended one counts while its last assignment
 * lasts. */
static void grpc_facts_quotas(const struct grpc_counters *counters, struct text *text) {
    const uint64_t ended = grpc_count(&counters->quota_ended_streams);
    if (grpc_count(&counters->quota_streams) > 0 || ended > 0) {
        grpc_add_count(text, "; quotas: ", grpc_count(&counters->quota_streams), "stream");
        grpc_add_count(text, ", ", grpc_count(&counters->quota_buckets), "bucket");
        grpc_add_count(text, " of ", grpc_count(&counters->quota_resources), "resource");
    }
    if (ended > 0) {
        grpc_add_count(text, "; ", ended, "ended stream");
        grpc_add_count(text, " may still use ", grpc_count(&counters->quota_ended_committed),
                       "request");
        server_text_add(text, " a second");
    }
}

static void grpc_facts(struct service *service, struct text *text) {
    if (!grpc_is_on(service)) return;
    const struct grpc *grpc = service->grpc;
    server_text_add(text, "<div><dt>gRPC</dt><dd>");
    server_text_add_escaped(text, grpc->address, server_escape_html);
    server_text_addf(text, "; %" PRIu64 " of %zu connections",
                     grpc_count(&grpc->counters.connections),
                     service->settings->grpc_connection_max);
    grpc_facts_quotas(&grpc->counters, text);
    server_text_add(text, "</dd></div>");
}

const struct server_part server_part_grpc_status = {
    .metrics = grpc_metrics, .status = grpc_status, .facts = grpc_facts};
