/* doorman_server, part HTTP: metrics for Prometheus (V4). This file counts messages, and reads the
 * counters and a snapshot.
 *
 * The metrics follow the conventions of Prometheus. At most SERIES_MAX resources have series of
 * their own, because every series costs memory in Prometheus. The series `other` is the sum of the
 * remaining resources.
 *
 * The series of a resource do not end with its last holder. For ten minutes, the series about its
 * holders are 0, if the resources with holders leave room below SERIES_MAX. So a graph falls to 0,
 * and an alert can see this. */
#include "pages.h"

#include "../tls/tls.h"

#define SERIES_MAX 1000

/* The upper bounds of the buckets, in seconds. */
static const double bucket_bounds[BUCKET_COUNT] = {
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5};

/* Counts a message and its response. */
static void metrics_count_message(struct service *service, const struct message_report *report) {
    static const int kinds[DOORMAN_METHOD_COUNT] = {
        [DOORMAN_DISCOVERY] = MESSAGE_DISCOVERY,
        [DOORMAN_GET_CAPACITY] = MESSAGE_GET_CAPACITY,
        [DOORMAN_RELEASE_CAPACITY] = MESSAGE_RELEASE_CAPACITY,
        [DOORMAN_REPORT_OVERLOAD] = MESSAGE_REPORT_OVERLOAD,
        [DOORMAN_ACQUIRE] = MESSAGE_ACQUIRE,
        [DOORMAN_REPORT] = MESSAGE_REPORT,
        [DOORMAN_INSPECT] = MESSAGE_INSPECT,
        [DOORMAN_RESET] = MESSAGE_RESET,
        [DOORMAN_RENEW] = MESSAGE_RENEW,
        [DOORMAN_RELEASE] = MESSAGE_RELEASE,
        [DOORMAN_TRANSFER] = MESSAGE_TRANSFER,
        [DOORMAN_SEIZE] = MESSAGE_SEIZE,
        [DOORMAN_SETTLE] = MESSAGE_SETTLE};
    const doorman_request *request = &report->exchange->request;
    struct counters *counters = &service->counters;
    int kind = report->was_read ? kinds[request->method] : MESSAGE_UNKNOWN, bucket = 0;
    if (kind == MESSAGE_GET_CAPACITY && request->is_server) kind = MESSAGE_GET_SERVER_CAPACITY;
    double seconds = (double)report->duration / (double)DOORMAN_SECOND;
    while (bucket < BUCKET_COUNT && seconds > bucket_bounds[bucket]) bucket++;
    server_counter_add(&counters->requests[kind][report->status], 1);
    server_counter_add(&counters->buckets[kind][bucket], 1);
    server_counter_add(&counters->nanoseconds[kind], (uint64_t)report->duration);
}

static void metrics_gauge(struct text *text, const char *name, const char *help, double value) {
    server_metrics_value(text, name, "gauge", help, value);
}

static uint64_t counter_read(const counter *count) {
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static void metrics_counter(struct text *text, const char *name, const char *help,
                            const counter *count) {
    server_metrics_header(text, name, "counter", help);
    server_text_addf(text, "doorman_%s %" PRIu64 "\n", name, counter_read(count));
}

static void metrics_requests(struct text *text, const struct counters *counters) {
    server_metrics_header(text, "server_requests_total", "counter",
                          "Messages answered, by method and status.");
    for (int kind = 0; kind < MESSAGE_KIND_COUNT; kind++) {
        for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
            uint64_t count = counter_read(&counters->requests[kind][code]);
            if (count == 0 && code != DOORMAN_OK) continue;
            server_text_addf(
                text, "doorman_server_requests_total{method=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                server_message_names[kind], doorman_status_name((doorman_status)code), count);
        }
    }
}

static void metrics_durations(struct text *text, const struct counters *counters) {
    const char *name = "doorman_server_request_duration_seconds";
    server_metrics_header(text, "server_request_duration_seconds", "histogram",
                          "Time from the arrival of a message to its response, parsing included.");
    for (int kind = 0; kind < MESSAGE_KIND_COUNT; kind++) {
        const char *method = server_message_names[kind];
        uint64_t sum = 0;
        for (int i = 0; i < BUCKET_COUNT; i++) {
            sum += counter_read(&counters->buckets[kind][i]);
            server_text_addf(text, "%s_bucket{method=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, method,
                             bucket_bounds[i], sum);
        }
        sum += counter_read(&counters->buckets[kind][BUCKET_COUNT]);
        server_text_addf(text,
                         "%s_bucket{method=\"%s\",le=\"+Inf\"} %" PRIu64 "\n"
                         "%s_sum{method=\"%s\"} %.9f\n%s_count{method=\"%s\"} %" PRIu64 "\n",
                         name, method, sum, name, method,
                         (double)counter_read(&counters->nanoseconds[kind]) / 1e9, name, method,
                         sum);
    }
}

static void metrics_parent(struct text *text, const struct snapshot *snapshot,
                           const struct counters *counters) {
    const struct parent_state *parent = &snapshot->parent;
    metrics_gauge(text, "server_parent_reachable",
                  "1 if the parent has answered the last request or probe, else 0.",
                  parent->answered_at > 0 && parent->trouble.since == 0);
    server_metrics_header(text, "server_parent_requests_total", "counter",
                          "Requests to the parent, by status.");
    for (int code = 0; code < DOORMAN_STATUS_COUNT; code++) {
        uint64_t count = counter_read(&counters->parent[code]);
        if (count == 0 && code != DOORMAN_OK) continue;
        server_text_addf(text, "doorman_server_parent_requests_total{code=\"%s\"} %" PRIu64 "\n",
                         doorman_status_name((doorman_status)code), count);
    }
}

/* Adds the connections by kind. Prometheus itself uses a connection of the kind http. */
static void metrics_connections(struct text *text, struct service *service, bool has_parent) {
    size_t nng = __atomic_load_n(&service->connection_count, __ATOMIC_RELAXED), limit = 0;
    size_t delayed = 0, http = server_http_connection_count(service, &limit, &delayed);
    server_metrics_header(
        text, "server_connections", "gauge",
        "Open connections: of peers over nng, of peers over HTTP, and 1 to the parent "
        "while it answers.");
    server_text_addf(text, "doorman_server_connections{kind=\"nng\"} %zu\n", nng);
    server_text_addf(text, "doorman_server_connections{kind=\"http\"} %zu\n", http);
    if (has_parent) {
        server_lock(&service->lock);
        const struct parent_state *parent = &service->parent_link.state;
        int reachable = parent->answered_at > 0 && parent->trouble.since == 0;
        server_unlock(&service->lock);
        server_text_addf(text, "doorman_server_connections{kind=\"parent\"} %d\n", reachable);
    }
    metrics_gauge(text, "server_http_connections_limit",
                  "Maximum number of connections of peers over HTTP.", (double)limit);
    metrics_gauge(text, "server_http_connections_delayed",
                  "Connections over HTTP that wait until a permit is granted.", (double)delayed);
}

/* Adds the metrics of the election and of etcd. A server without an election has only one master,
 * itself. So it has no metrics of changes of the master. */
static void metrics_election(struct text *text, const struct service *service) {
    static const char *const masters[DOORMAN_ELECTION_STATE_COUNT] = {
        [DOORMAN_NO_MASTER] = "none", [DOORMAN_STANDBY] = "other", [DOORMAN_MASTER] = "self"};
    const struct settings *settings = service->settings;
    if (settings->election_key) {
        server_metrics_header(
            text, "server_master_changes_total", "counter",
            "Changes of the master that this process has seen, by the new master.");
    }
    for (int i = 0; settings->election_key && i < DOORMAN_RESIGNED; i++) {
        server_text_addf(text, "doorman_server_master_changes_total{to=\"%s\"} %" PRIu64 "\n",
                         masters[i], counter_read(&service->counters.master_changes[i]));
    }
    if (settings->etcd.count > 0) {
        server_metrics_header(text, "server_etcd_errors_total", "counter",
                              "Calls to a member of etcd that failed.");
    }
    for (size_t i = 0; i < settings->etcd.count; i++) {
        server_text_add(text, "doorman_server_etcd_errors_total{member=\"");
        server_text_add_escaped(text, settings->etcd.items[i], server_escape_label);
        server_text_addf(text, "\"} %" PRIu64 "\n",
                         counter_read(&service->counters.etcd_errors[i]));
    }
}

/* Adds the metrics of the store of counters. A server without --state has no such metrics. */
static void metrics_state(struct text *text, const struct snapshot *snapshot) {
    const struct state_status *state = &snapshot->state;
    if (!snapshot->has_state) return;
    metrics_gauge(text, "state_age_seconds",
                  "Age of the oldest change that is not in the store of --state; 0: it has all.",
                  (double)snapshot->state_age / DOORMAN_SECOND);
    metrics_gauge(text, "state_reading",
                  "1 while the rows of the store of --state are read, else 0.", state->is_reading);
    metrics_gauge(text, "state_unreadable_rows",
                  "Rows of the store of --state that could not be read. They stay in the store.",
                  (double)state->rows_unreadable);
    metrics_gauge(text, "state_taken_over",
                  "1 if the process began with the leases and holds of the last one, which had "
                  "stopped as planned. 0 if it learned them.",
                  state->took_over);
    metrics_counter(text, "state_rows_written_total",
                    "Rows written to the store of --state, and deleted from it.",
                    &state->rows_written);
    metrics_counter(text, "state_errors_total",
                    "Reads and writes of the store of --state that failed.", &state->errors);
}

/* Adds the metrics of file descriptors. A server without the part REPLACE has no such metrics. */
static void metrics_descriptors(struct text *text, const struct descriptors *descriptors) {
    if (descriptors->limit == 0) return;
    metrics_gauge(text, "server_leaked_fds",
                  "Open file descriptors whose peers have left. Some are normal for a moment.",
                  (double)descriptors->leaked);
    server_metrics_header(text, "server_replacements_total", "counter",
                          "How often this process has replaced itself, because file descriptors "
                          "leaked.");
    server_text_addf(text, "doorman_server_replacements_total %" PRIu64 "\n",
                     descriptors->replacement_count);
}

/* Adds the metrics of the configuration. A node with a parent and without --config has no
 * configuration, so it has no hash. */
static void metrics_config(struct text *text, const struct config_load *last_load) {
    metrics_gauge(text, "server_config_last_reload_successful",
                  "1 if the last load of the configuration succeeded. 0 if it was refused, or if "
                  "the file cannot be read.",
                  !last_load->error[0] && !last_load->failures[CONFIG_UNREADABLE][0]);
    metrics_gauge(text, "server_config_warnings",
                  "How many warnings there are about the configuration in force.",
                  (double)last_load->warning_count);
    metrics_gauge(text, "server_config_last_reload_success_timestamp_seconds",
                  "When the configuration in force was loaded, in Unix seconds.",
                  (double)last_load->loaded_at);
    if (last_load->hash[0]) {
        server_metrics_header(text, "server_config_info", "gauge",
                              "Always 1; the label is a hash of the configuration in force.");
        server_text_addf(text, "doorman_server_config_info{hash=\"%s\"} 1\n", last_load->hash);
    }
    if (!last_load->version) return;
    metrics_gauge(text, "server_config_version",
                  "The number of the version of the configuration in force.",
                  (double)last_load->version);
    metrics_gauge(text, "server_config_is_cached",
                  "1 if the configuration in force is that of --config-cache, because its place "
                  "could not be reached.",
                  last_load->is_cached);
}

/* Adds whether the configuration and the files could be loaded. Only what a flag names has a
 * series. */
static void metrics_files(struct text *text, const struct settings *settings,
                          const struct config_load *load) {
    const char(*why)[PROBLEM_TEXT] = load->failures;
    const struct {
        const char *what;
        bool given, failed;
    } files[] = {
        {"config", settings->config != NULL, load->error[0] || why[CONFIG_UNREADABLE][0]},
        {"certificate", settings->tls_cert || settings->tls_ca,
         why[CERTIFICATE_REFUSED][0] || why[CERTIFICATE_UNREADABLE][0]},
        {"tokens", settings->http_token != NULL,
         why[TOKENS_REFUSED][0] || why[TOKENS_UNREADABLE][0]},
    };
    server_metrics_header(text, "server_last_reload_successful", "gauge",
                          "0 if the last load of these files was refused, or if one of them cannot "
                          "be read, else 1. What was loaded before is in force.");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (!files[i].given) continue;
        server_text_addf(text, "doorman_server_last_reload_successful{what=\"%s\"} %d\n",
                         files[i].what, !files[i].failed);
    }
}

/* Adds the failures of authentication. Failures of tokens are counted for each request, and other
 * failures for each connection. */
static void metrics_authentication(struct text *text, const struct counters *counters) {
    static const char *const labels[FAILED_COUNT] = {
        [FAILED_TOKEN_MISSING] = "kind=\"http\",reason=\"token_missing\"",
        [FAILED_TOKEN_WRONG] = "kind=\"http\",reason=\"token_wrong\"",
        [FAILED_ROLE] = "kind=\"http\",reason=\"role\"",
        [FAILED_CERTIFICATE] = "kind=\"http\",reason=\"certificate\"",
        [FAILED_HANDSHAKE] = "kind=\"http\",reason=\"handshake\"",
        [FAILED_NNG_HANDSHAKE] = "kind=\"nng\",reason=\"handshake\""};
    server_metrics_header(
        text, "server_authentication_failures_total", "counter",
        "Refused peers: no token, a wrong one, or one whose role is too small; no "
        "certificate of --tls-ca, or another failed TLS handshake. Over nng, handshake "
        "stands for both.");
    for (int i = 0; i < FAILED_COUNT; i++) {
        server_text_addf(text, "doorman_server_authentication_failures_total{%s} %" PRIu64 "\n",
                         labels[i], counter_read(&counters->authentication_failures[i]));
    }
}

/* Adds the acts of administration. A server that keeps no acts has no such metric. */
static void metrics_acts(struct text *text, const struct service *service) {
    static const char *const names[] = {
#define ACT_NAME(code, name) name,
        ACT_KINDS(ACT_NAME)
#undef ACT_NAME
    };
    if (!server_keeps_acts(service)) return;
    server_metrics_header(text, "administration_acts_total", "counter",
                          "Acts of administration that are in the audit, by what they did.");
    for (int i = 0; i < ACT_KIND_COUNT; i++) {
        server_text_addf(text, "doorman_administration_acts_total{what=\"%s\"} %" PRIu64 "\n",
                         names[i], counter_read(&service->counters.acts[i]));
    }
}

/* Adds when certificates end. A server without a certificate has no such metric. */
static void metrics_certificates(struct text *text, struct service *service) {
    const char *name = "doorman_server_certificate_not_after_timestamp_seconds";
    int64_t ends[CERTIFICATE_COUNT];
    server_lock(&service->lock);
    memcpy(ends, service->certificate_ends, sizeof ends);
    server_unlock(&service->lock);
    if (!ends[CERTIFICATE_OWN] && !ends[CERTIFICATE_AUTHORITY]) return;
    server_metrics_header(text, "server_certificate_not_after_timestamp_seconds", "gauge",
                          "When the certificates of --tls-cert and --tls-ca end, in Unix seconds.");
    for (int i = 0; i < CERTIFICATE_COUNT; i++) {
        if (!ends[i]) continue;
        server_text_addf(text, "%s{file=\"%s\"} %" PRId64 "\n", name, server_certificate_flag(i),
                         ends[i]);
    }
}

/* Adds the counters of events of the whole process. */
static void metrics_events(struct text *text, const struct counters *counters) {
    metrics_counter(text, "server_unmatched_requests_total",
                    "Requests for a resource that no template matches.", &counters->unmatched);
    server_metrics_header(text, "server_shared_id_requests_total", "counter",
                          "Requests that show that two processes use one id, by kind of holder.");
    for (int i = 0; i < 2; i++) {
        server_text_addf(text,
                         "doorman_server_shared_id_requests_total{holder=\"%s\"} %" PRIu64 "\n",
                         i ? "server" : "client", counter_read(&counters->shared_id[i]));
    }
    metrics_counter(text, "server_log_lines_lost_total",
                    "Log lines that standard error did not accept.", server_lost_line_count());
    metrics_authentication(text, counters);
}

/* The metrics of each resource. */
enum resource_metric {
    METRIC_CAPACITY,
    METRIC_CONFIGURED,
    METRIC_HAS,
    METRIC_COMMITTED,
    METRIC_RESERVED,
    METRIC_WANTS,
    METRIC_CLIENTS,
    METRIC_UNCONFIRMED,
    METRIC_SUBCLIENTS,
    METRIC_SAFE_CAPACITY,
    METRIC_LEARNING,
    METRIC_OVERSHOOT,
    METRIC_EXPIRED,
    METRIC_REMAINING,
    METRIC_LENGTH,
    METRIC_COUNT
};
static const struct {
    const char *name, *type, *help;
} resource_metrics[METRIC_COUNT] = {
    {"resource_capacity", "gauge", "Capacity that can be granted, in the resource's units."},
    {"resource_configured_capacity", "gauge",
     "The configured capacity. More than resource_capacity while servers report overload."},
    {"resource_has", "gauge", "Sum of the leases, in the resource's units."},
    {"resource_committed", "gauge",
     "Sum of what the server still counts as used by the holders, at least the leases."},
    {"resource_reserved", "gauge",
     "What holders want and may have, but none has yet: the shares of holders that have not asked "
     "again."},
    {"resource_wants", "gauge", "Sum of what the holders want, in the resource's units."},
    {"resource_clients", "gauge",
     "Holders: clients and child servers with an entry at this server."},
    {"resource_unconfirmed_holders", "gauge",
     "Holders that do not confirm their leases, and so hold back capacity after a cut."},
    {"resource_subclients", "gauge", "Clients, including those of child servers."},
    {"resource_safe_capacity", "gauge", "What a client may use without a lease; -1 is unlimited."},
    {"resource_learning", "gauge", "1 while holders are granted only what they claim, else 0."},
    {"resource_overshoot", "gauge",
     "By how much the leases exceed what the node may have in force at this moment."},
    {"resource_leases_expired_total", "counter", "Leases that expired without renewal."},
    {"server_parent_lease_remaining_seconds", "gauge",
     "Time to the end of this node's own lease; 0 if it has none."},
    {"server_parent_lease_length_seconds", "gauge",
     "Length of this node's last own lease when it was granted; 0 if it has had none."},
};

static bool metric_is_of_parent(enum resource_metric metric) {
    return metric == METRIC_REMAINING || metric == METRIC_LENGTH;
}

/* Finds the value of a metric. Returns false if the metric does not apply to the resource. */
static bool metric_value(const struct snapshot *snapshot, const struct row *row,
                         enum resource_metric metric, bool has_parent, double *out) {
    const doorman_server_resource *info = &row->info;
    double left = (double)(info->lease_end - snapshot->now) / 1e9;
    bool is_of_holders = metric != METRIC_CAPACITY && metric != METRIC_CONFIGURED &&
                         metric != METRIC_EXPIRED && metric != METRIC_SAFE_CAPACITY &&
                         !metric_is_of_parent(metric);
    if (row->is_missing && !is_of_holders) return false;
    switch (metric) {
    case METRIC_CAPACITY: *out = info->capacity; break;
    case METRIC_CONFIGURED: *out = info->configured_capacity; return !has_parent;
    case METRIC_HAS: *out = info->has; break;
    case METRIC_COMMITTED: *out = info->committed; break;
    case METRIC_RESERVED: *out = row->reserved; break;
    case METRIC_WANTS: *out = info->wants; break;
    case METRIC_CLIENTS: *out = (double)info->holder_count; break;
    case METRIC_UNCONFIRMED: *out = (double)info->unconfirmed_count; break;
    case METRIC_SUBCLIENTS: *out = info->subclients; break;
    case METRIC_SAFE_CAPACITY: *out = info->safe_capacity; return info->has_safe_capacity;
    case METRIC_LEARNING: *out = info->is_learning; break;
    case METRIC_OVERSHOOT: *out = info->overshoot; break;
    case METRIC_EXPIRED: *out = (double)info->expired_count; break;
    case METRIC_REMAINING: *out = info->leased ? left : 0; return has_parent && row->id;
    case METRIC_LENGTH: *out = (double)info->lease_length / 1e9; return has_parent && row->id;
    case METRIC_COUNT:
    default: return false;
    }
    return true;
}

/* Returns whether the value is an amount that holders have, or may have. */
static bool metric_is_lease(enum resource_metric metric) {
    return metric == METRIC_CAPACITY || metric == METRIC_HAS || metric == METRIC_COMMITTED ||
           metric == METRIC_SAFE_CAPACITY;
}

static void metrics_resource(struct text *text, const struct snapshot *snapshot,
                             const struct row *row, enum resource_metric metric, bool has_parent) {
    double value = 0;
    if (!metric_value(snapshot, row, metric, has_parent, &value)) return;
    server_text_addf(text, "doorman_%s{resource=\"", resource_metrics[metric].name);
    server_text_add_escaped(text, row->id ? row->id : "other", server_escape_label);
    server_text_add(text, "\"} ");
    (metric_is_lease(metric) ? server_text_add_lease : server_text_add_number)(text, value);
    server_text_add(text, "\n");
}

/* Adds a resource with the id "other" to the sum of the remaining resources. Otherwise the series
 * `other` would exist twice. */
static void metrics_merge_other(struct snapshot *snapshot) {
    for (size_t i = 0; snapshot->has_others && i < snapshot->row_count; i++) {
        struct row *row = &snapshot->rows[i];
        if (strcmp(row->id, "other") != 0) continue;
        server_snapshot_add_other(snapshot, row);
        free(row->id);
        *row = snapshot->rows[--snapshot->row_count];
    }
}

static void metrics_all_resources(struct text *text, const struct snapshot *snapshot,
                                  bool has_parent) {
    for (int i = 0; i < METRIC_COUNT; i++) {
        enum resource_metric metric = (enum resource_metric)i;
        if (metric_is_of_parent(metric) && !has_parent) continue;
        server_metrics_header(text, resource_metrics[i].name, resource_metrics[i].type,
                              resource_metrics[i].help);
        for (size_t at = 0; at < snapshot->row_count; at++) {
            metrics_resource(text, snapshot, &snapshot->rows[at], metric, has_parent);
        }
        if (snapshot->has_others) {
            metrics_resource(text, snapshot, &snapshot->others, metric, has_parent);
        }
    }
}

static void handle_metrics(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    struct config_load last_load = server_last_load(service);
    bool has_parent = service->settings->parents.count > 0;
    (void)request;
    snapshot.abandoned = response->abandoned;
    server_snapshot_take(&snapshot, service, "", SERIES_MAX);
    metrics_merge_other(&snapshot);
    if (!snapshot.has_others) server_history_add_missing(service, &snapshot, SERIES_MAX);
    double learning =
        snapshot.learns_until ? (double)(snapshot.learns_until - snapshot.now) / DOORMAN_SECOND : 0;
    response->type = "text/plain; version=0.0.4; charset=utf-8";
    server_metrics_header(text, "build_info", "gauge", "Always 1; the label is the version.");
    server_text_add(text, "doorman_build_info{version=\"" DOORMAN_VERSION "\"} 1\n");
    metrics_gauge(text, "server_is_master", "1 if this process is the master of its node, else 0.",
                  snapshot.is_master);
    metrics_gauge(text, "server_is_drained",
                  "1 if this process is drained, or is about to be, else 0.",
                  snapshot.drain.phase != DRAIN_NONE);
    metrics_gauge(text, "server_learning_remaining_seconds",
                  "How long the server still learns; 0: it does not learn.", learning);
    metrics_config(text, &last_load);
    metrics_files(text, service->settings, &last_load);
    metrics_certificates(text, service);
    metrics_connections(text, service, has_parent);
    metrics_election(text, service);
    metrics_state(text, &snapshot);
    metrics_acts(text, service);
    metrics_descriptors(text, &snapshot.descriptors);
    metrics_events(text, &service->counters);
    server_process_metrics(text);
    metrics_requests(text, &service->counters);
    metrics_durations(text, &service->counters);
    if (has_parent) metrics_parent(text, &snapshot, &service->counters);
    metrics_all_resources(text, &snapshot, has_parent);
    server_children_metrics(text, service);
    server_limits_metrics(text, service, response->abandoned);
    EACH_PART(part, metrics)(*part)->metrics(service, text);
    text->failed = text->failed || snapshot.failed;
    server_snapshot_uninit(&snapshot);
}

static const struct http_route metrics_routes[] = {{"/metrics", .handle = handle_metrics},
                                                   {.path = NULL}};

const struct server_part server_part_metrics = {.message = metrics_count_message,
                                                .routes = metrics_routes};
