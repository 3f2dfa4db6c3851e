/* doorman_server, part HTTP: JSON for programs. This file reads snapshots and the configuration.
 *
 * The status has the numbers that people and monitoring read. Its amounts are integers, or have at
 * most 12 significant digits. What holders have, or may have, is rounded down. Messages about
 * leases have all digits, because both sides calculate with them: see >>json in doorman.h.
 *
 * openapi.json describes all paths of the server. */
#include "pages.h"

#include "build/openapi.h" /* openapi_lines, made from openapi.json */

/* Writes a duration in seconds. `before` is the text in front of the number. */
static void json_seconds(struct text *text, const char *before, doorman_time time) {
    server_text_add(text, before);
    server_text_add_number(text, (double)time / (double)DOORMAN_SECOND);
}

/* Writes a field whose value is an amount that holders have, or may have. */
static void json_lease(struct text *text, const char *name, double amount) {
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_lease(text, amount);
}

/* Writes a field whose value is a text. An empty text is left out. */
static void json_field(struct text *text, const char *name, const char *value) {
    if (!value || !*value) return;
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_json(text, "", value);
}

static void json_number(struct text *text, const char *name, double value) {
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_number(text, value);
}

/* Writes the reports of overload. They can make the capacity in force smaller than the configured
 * one. */
static void json_overload(struct text *text, const doorman_server_resource *info,
                          doorman_time now) {
    server_text_add(text, ",\"overload\":{\"configured\":");
    server_text_add_number(text, info->configured_capacity);
    if (info->overload_cut_at) {
        json_seconds(text, ",\"seconds_since_cut\":", now - info->overload_cut_at);
    } else {
        server_text_add(text, ",\"seconds_since_cut\":null");
    }
    json_number(text, "arrived", info->overload.arrived);
    json_number(text, "finished", info->overload.finished);
    json_number(text, "refused", info->overload.refused);
    json_number(text, "late", info->overload.late);
    server_text_add(text, "}");
}

/* Writes a resource. Its field `clients` is the number of holders too: it is older than the word
 * `holder`.
 *   description   NULL: none */
static void json_resource(struct text *text, const struct row *row, const char *id,
                          const char *description, doorman_time now) {
    const doorman_server_resource *info = &row->info;
    server_text_add_json(text, "{\"resource_id\":", id);
    json_field(text, "description", description);
    json_field(text, "unit", row->unit);
    json_lease(text, "capacity", info->capacity);
    json_lease(text, "has", info->has);
    json_lease(text, "committed", info->committed);
    json_number(text, "reserved", row->reserved);
    json_number(text, "overshoot", info->overshoot);
    json_number(text, "wants", info->wants);
    server_text_addf(text, ",\"holders\":%zu,\"clients\":%zu,\"unconfirmed_holders\":%zu",
                     info->holder_count, info->holder_count, info->unconfirmed_count);
    json_number(text, "subclients", info->subclients);
    if (info->has_safe_capacity) {
        json_lease(text, "safe_capacity", info->safe_capacity);
    } else {
        server_text_add(text, ",\"safe_capacity\":null");
    }
    if (info->overload.interval || info->overload_cut_at) json_overload(text, info, now);
    server_text_addf(text, ",\"learning\":%s,\"algorithm\":\"%s\"",
                     info->is_learning ? "true" : "false", server_kind_name(row->kind));
    if (info->leased) json_seconds(text, ",\"lease_expires_in\":", info->lease_end - now);
    json_field(text, "lease_reason", doorman_lease_reason_name(info->reason));
    server_text_add(text, "}");
}

/* If there is a problem, writes its reason and the seconds since it began. */
static void json_trouble(struct text *text, const char *name, const char *duration,
                         const struct trouble *trouble, doorman_time now) {
    if (trouble->since == 0) return;
    server_text_addf(text, ",\"%s\":{\"%s\":", name, duration);
    server_text_add_number(text, (double)(now - trouble->since) / (double)DOORMAN_SECOND);
    json_field(text, "reason", trouble->reason);
    server_text_add(text, "}");
}

static void json_parent(struct text *text, const struct snapshot *snapshot) {
    const struct parent_state *parent = &snapshot->parent;
    bool reachable = parent->answered_at > 0 && parent->trouble.since == 0;
    server_text_addf(text, ",\"parent\":{\"reachable\":%s", reachable ? "true" : "false");
    json_field(text, "address", parent->address);
    if (parent->answered_at > 0) {
        json_seconds(text, ",\"answered_ago\":", snapshot->now - parent->answered_at);
    }
    json_trouble(text, "failure", "for", &parent->trouble, snapshot->now);
    if (server_node_is_shared(parent, snapshot->now)) {
        server_text_add(text, ",\"shared_node\":true");
    }
    server_text_add(text, "}");
}

static void json_state(struct text *text, const struct snapshot *snapshot) {
    const struct state_status *state = &snapshot->state;
    json_seconds(text, ",\"state\":{\"age\":", snapshot->state_age);
    server_text_addf(text, ",\"reading\":%s,\"unreadable_rows\":%" PRIu64 ",\"taken_over\":%s",
                     state->is_reading ? "true" : "false", state->rows_unreadable,
                     state->took_over ? "true" : "false");
    json_trouble(text, "failure", "for", &state->trouble, snapshot->now);
    server_text_add(text, "}");
}

/* Writes whether file descriptors leak, and how often the process has replaced itself because of
 * leaks. */
static void json_descriptors(struct text *text, const struct snapshot *snapshot) {
    const struct descriptors *descriptors = &snapshot->descriptors;
    json_trouble(text, "descriptor_leak", "for", &descriptors->trouble, snapshot->now);
    if (descriptors->replacement_count == 0) return;
    server_text_addf(text, ",\"replacements\":{\"count\":%" PRIu64, descriptors->replacement_count);
    json_seconds(text, ",\"last_ago\":", snapshot->now - descriptors->replaced_at);
    server_text_add(text, "}");
}

/* Writes the version of the configuration in force, if it has one. */
static void json_version(struct text *text, const struct snapshot *snapshot) {
    if (!snapshot->config_version) return;
    server_text_addf(text, ",\"config\":{\"version\":%" PRIu64 ",\"is_cached\":%s}",
                     snapshot->config_version, snapshot->config_is_cached ? "true" : "false");
}

static void json_failure(struct text *text, bool *is_first, const char *what, const char *reason) {
    if (!reason[0]) return;
    server_text_addf(text, "%s{\"what\":\"%s\"", *is_first ? ",\"load_failures\":[" : ",", what);
    json_field(text, "reason", reason);
    server_text_add(text, "}");
    *is_first = false;
}

/* Writes what could not be loaded again. What was loaded before stays in force. */
static void json_failures(struct text *text, struct service *service) {
    static const char *const names[LOAD_FAILURE_COUNT] = {[CONFIG_UNREADABLE] = "configuration",
                                                          [CERTIFICATE_REFUSED] = "certificate",
                                                          [CERTIFICATE_UNREADABLE] = "certificate",
                                                          [TOKENS_REFUSED] = "tokens",
                                                          [TOKENS_UNREADABLE] = "tokens"};
    const struct config_load load = server_last_load(service);
    bool is_first = true;
    json_failure(text, &is_first, "configuration", load.error);
    for (int i = 0; i < LOAD_FAILURE_COUNT; i++) {
        json_failure(text, &is_first, names[i], load.failures[i]);
    }
    if (!is_first) server_text_add(text, "]");
}

/* Writes whether the process is drained, or why its last drain was called off. */
static void json_drain(struct text *text, const struct drain *drain) {
    if (drain->phase == DRAIN_NONE && !drain->failure[0]) return;
    server_text_addf(text, ",\"drain\":{\"state\":\"%s\"", server_drain_state(drain));
    if (drain->phase != DRAIN_NONE) {
        int64_t age = (int64_t)time(NULL) - drain->since;
        server_text_addf(text, ",\"for\":%" PRId64, age > 0 ? age : 0);
        json_field(text, "by", drain->by);
        json_field(text, "reason", drain->reason);
    }
    json_field(text, "failure", drain->failure);
    server_text_add(text, "}");
}

/* Starts the object of a status with the fields about this process. */
static void json_start_status(struct text *text, struct service *service,
                              const struct snapshot *snapshot) {
    server_text_add_json(text, "{\"node\":", service->node);
    server_text_add_json(text, ",\"id\":", service->id);
    server_text_addf(text,
                     ",\"version\":\"%s\",\"is_master\":%s,\"master_address\":", DOORMAN_VERSION,
                     snapshot->is_master ? "true" : "false");
    if (snapshot->master[0]) {
        server_text_add_json(text, "", snapshot->master);
        if (!snapshot->is_master) json_field(text, "master_http_address", snapshot->master_http);
    } else {
        server_text_add(text, "null");
    }
    json_field(text, "parent_http_address", snapshot->parent_http);
    json_trouble(text, "no_master", "for", &snapshot->election.no_master, snapshot->now);
    json_trouble(text, "last_loss", "ago", &snapshot->election.last_loss, snapshot->now);
    json_trouble(text, "etcd_failure", "for", &snapshot->election.etcd, snapshot->now);
    if (snapshot->election.etcd_answered_at > 0) {
        json_seconds(
            text, ",\"etcd_answered_ago\":", snapshot->now - snapshot->election.etcd_answered_at);
    }
    if (snapshot->election.master_until > snapshot->now) {
        json_seconds(text,
                     ",\"mastership_ends_in\":", snapshot->election.master_until - snapshot->now);
    }
    json_drain(text, &snapshot->drain);
    json_descriptors(text, snapshot);
    json_version(text, snapshot);
    json_failures(text, service);
    if (snapshot->has_state) json_state(text, snapshot);
    if (service->settings->parents.count > 0) json_parent(text, snapshot);
}

static void json_children(struct text *text, struct service *service) {
    struct child_list children;
    server_children_take(&children, service);
    for (size_t i = 0; i < children.count; i++) {
        const struct child *child = &children.items[i];
        server_text_add(text, i ? ",\n" : ",\"children\":[");
        server_text_add_json(text, "{\"node\":", child->node);
        json_field(text, "http_address", child->http_address);
        json_seconds(text, ",\"last_request_ago\":", children.now - child->seen_at);
        server_text_addf(text, ",\"state\":\"%s\"", server_child_state_name(child->state));
        if (child->state == CHILD_SILENT && child->lease_end > children.now) {
            json_seconds(text, ",\"lease_ends_in\":", child->lease_end - children.now);
        }
        server_text_add(text, "}");
    }
    if (children.count > 0) server_text_add(text, "]");
    server_children_free(&children);
}

static void status_write_resources(struct service *service, const struct http_request *request,
                                   struct http_response *response) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    char filter[DOORMAN_ID_BYTES_MAX + 1] = "";
    server_query_read(request->query, "filter", filter, sizeof filter);
    snapshot.abandoned = response->abandoned;
    server_snapshot_take(&snapshot, service, filter, ROWS_MAX);
    json_start_status(text, service, &snapshot);
    if (snapshot.is_master) json_children(text, service);
    EACH_PART(part, status)(*part)->status(service, text);
    server_text_add(text, ",\"resources\":[");
    for (size_t i = 0; i < snapshot.row_count && !server_is_abandoned(response->abandoned); i++) {
        if (i) server_text_add(text, ",\n");
        json_resource(text, &snapshot.rows[i], snapshot.rows[i].id, NULL, snapshot.now);
    }
    server_text_add(text, "]}\n");
    text->failed = text->failed || snapshot.failed;
    server_snapshot_uninit(&snapshot);
}

#define LEASES_DEFAULT 1000 /* leases of a page, without `limit` */
#define LEASES_MAX 5000

/* Reads the position at which a page of leases starts: "POSITION-PROCESS", in hexadecimal digits.
 * Each process has its own order of leases, so PROCESS is the time at which the process started.
 * Returns false if the position is not from this process. */
static bool leases_read_position(const char *query, const struct service *service,
                                 doorman_cursor *out) {
    char value[48];
    const char *end;
    if (!server_query_read(query, "after", value, sizeof value)) return true;
    out->position = server_number_read(value, 16, &end);
    bool valid = out->position > 0 && *end == '-';
    return valid && server_number_read(end + 1, 16, &end) == (uint64_t)service->started_at && !*end;
}

/* Reads which leases a page has. If the query is not valid, returns false and writes an error. */
static bool leases_read_query(const char *query, const struct service *service,
                              struct lease_list *leases, struct http_response *response) {
    char value[16];
    const char *end = "";
    const char *message = NULL;
    leases->limit = LEASES_DEFAULT;
    if (server_query_read(query, "limit", value, sizeof value)) {
        leases->limit = (size_t)server_number_read(value, 10, &end);
    }
    if (*end || leases->limit < 1 || leases->limit > LEASES_MAX) {
        message = "limit: must be an integer from 1 to 5000";
    } else if (!leases_read_position(query, service, &leases->cursor)) {
        message = "after: is not a position of this process; start again without `after`";
    }
    if (message) server_http_response_set_error(response, 400, "INVALID_ARGUMENT", message);
    return !message;
}

/* Writes the fields of a lease, and the end of its object. */
static void json_holder(struct text *text, const struct lease_row *row, doorman_time now) {
    const doorman_server_lease *info = &row->info;
    server_text_add_json(text, "\"holder_id\":", row->id);
    server_text_addf(text, ",\"is_server\":%s", info->is_server ? "true" : "false");
    json_lease(text, "has", info->has);
    json_lease(text, "committed", info->committed);
    json_number(text, "wants", info->wants);
    json_field(text, "reason", doorman_lease_reason_name(info->reason));
    json_number(text, "subclients", info->subclients);
    server_text_addf(text, ",\"priority\":%d,\"shared\":%s,\"unconfirmed\":%s", info->priority,
                     info->shared ? "true" : "false", info->unconfirmed ? "true" : "false");
    server_text_addf(text, ",\"late\":%s", row->is_late ? "true" : "false");
    if (row->suspect) {
        json_field(text, "peer", row->suspect->peer);
        if (info->shared) json_field(text, "other_peer", row->suspect->other_peer);
        json_field(text, "token", row->suspect->token);
    }
    json_seconds(text, ",\"expires_in\":", info->expires_at - now);
    if (info->granted_at > 0) json_seconds(text, ",\"renewed_ago\":", now - info->granted_at);
    server_text_add(text, "}");
}

static void json_leases(struct text *text, const struct service *service,
                        const struct lease_list *leases) {
    server_text_add(text, ",\"resource\":");
    json_resource(text, &leases->resource, leases->resource_id, leases->description, leases->now);
    server_text_add(text, ",\"leases\":[");
    for (size_t i = 0; i < leases->row_count && !server_is_abandoned(leases->abandoned); i++) {
        server_text_add(text, i ? ",\n{" : "{");
        json_holder(text, &leases->rows[i], leases->now);
    }
    server_text_add(text, "]");
    if (leases->has_more) {
        server_text_addf(text, ",\"next\":\"%" PRIx64 "-%" PRIx64 "\"", leases->cursor.position,
                         (uint64_t)service->started_at);
    }
    server_text_add(text, "}\n");
}

/* Writes a page of the leases of one resource, in the order of the lease table, and not of their
 * ids. So without a filter the cost of a page depends on how many leases the page has, and not on
 * the number of holders. Leases that last while a program reads all pages appear exactly once. */
static void status_write_leases(struct service *service, const struct http_request *request,
                                struct http_response *response, const char *id) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    char filter[DOORMAN_ID_BYTES_MAX + 1] = "";
    struct lease_list leases = {
        .resource_id = id, .filter = filter, .abandoned = response->abandoned};
    server_query_read(request->query, "filter", filter, sizeof filter);
    if (!leases_read_query(request->query, service, &leases, response)) return;
    server_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    server_unlock(&service->lock);
    server_lease_list_take(&leases, service);
    if (leases.found) {
        json_start_status(text, service, &snapshot);
        json_leases(text, service, &leases);
    } else {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       snapshot.is_master
                                           ? "the resource has no holders"
                                           : "this process is not the master, so it has no leases");
    }
    text->failed = text->failed || leases.failed;
    server_lease_list_uninit(&leases);
}

/* Reads where a search starts and how many leases it returns. If the query is not valid, returns
 * false and writes an error. */
static bool search_read_query(const char *query, const struct service *service,
                              struct lease_search *search, struct http_response *response) {
    char value[16];
    const char *end = "", *message = NULL;
    search->limit = SEARCH_ROWS;
    if (server_query_read(query, "limit", value, sizeof value)) {
        search->limit = (size_t)server_number_read(value, 10, &end);
    }
    if (!search->prefix[0]) {
        message = "client: must be the start of a holder's id";
    } else if (*end || search->limit < 1 || search->limit > SEARCH_ROWS_MAX) {
        message = "limit: must be an integer from 1 to 1000";
    } else if (!server_search_read_position(query, service, &search->position)) {
        message = "after: is not a position of this process; start again without `after`";
    }
    if (message) server_http_response_set_error(response, 400, "INVALID_ARGUMENT", message);
    return !message;
}

/* Writes the leases of the holders whose ids start with a text, over all resources. A page can have
 * few leases and still a `next`, because a search also stops after a number of steps. */
static void status_write_search(struct service *service, const struct http_request *request,
                                struct http_response *response, const char *prefix) {
    struct text *text = &response->text;
    struct snapshot snapshot = {.now = 0};
    struct lease_search search = {.prefix = prefix, .abandoned = response->abandoned};
    if (!search_read_query(request->query, service, &search, response)) return;
    server_lock(&service->lock);
    server_snapshot_find_master(&snapshot, service);
    server_unlock(&service->lock);
    server_search_take(&search, service);
    json_start_status(text, service, &snapshot);
    server_text_add(text, ",\"leases\":[");
    for (size_t i = 0; i < search.row_count; i++) {
        const struct found_lease *found = &search.rows[i];
        server_text_add_json(text,
                             i ? ",\n{\"resource_id\":" : "{\"resource_id\":", found->resource_id);
        json_field(text, "unit", found->unit);
        server_text_add(text, ",");
        json_holder(text, &found->lease, search.now);
    }
    server_text_add(text, "]");
    if (search.has_more) {
        server_text_add(text, ",\"next\":\"");
        server_search_add_position(text, service, &search.position);
        server_text_add(text, "\"");
    }
    server_text_add(text, "}\n");
    text->failed = text->failed || search.failed;
    server_search_uninit(&search);
}

static void handle_status(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    char id[DOORMAN_ID_BYTES_MAX + 1];
    response->type = "application/json";
    if (server_query_read(request->query, "client", id, sizeof id)) {
        status_write_search(service, request, response, id);
    } else if (server_query_read(request->query, "resource", id, sizeof id)) {
        status_write_leases(service, request, response, id);
    } else {
        status_write_resources(service, request, response);
    }
}

/* The resources of a node with a parent, as templates. The list owns the strings of its items. */
struct template_list {
    doorman_template *items;
    size_t count, capacity;
    const bool *abandoned; /* see struct http_response */
    bool failed;           /* out of memory */
};

/* Returns a glob that matches only this id, or NULL if memory runs out. The caller frees the
 * glob. */
static char *glob_of_id(const char *id) {
    char *glob = (char *)malloc(2 * strlen(id) + 1), *to = glob;
    for (; glob && *id; id++) {
        if (strchr("*?[]\\", *id)) *to++ = '\\';
        *to++ = *id;
    }
    if (glob) *to = 0;
    return glob;
}

static bool template_list_reserve(void *context) {
    struct template_list *list = (struct template_list *)context;
    void *items = server_reserve(list->items, list->count, &list->capacity, sizeof *list->items);
    if (!items) {
        list->failed = true;
        return false;
    }
    list->items = (doorman_template *)items;
    return true;
}

static bool template_list_add(void *context, const doorman_server_resource *info) {
    struct template_list *list = (struct template_list *)context;
    assert(list->count < list->capacity);
    doorman_template *item = &list->items[list->count];
    *item = *info->settings;
    item->identifier_glob = glob_of_id(info->resource_id);
    item->description = strdup(item->description);
    item->unit = strdup(item->unit);
    list->failed = !item->identifier_glob || !item->description || !item->unit;
    list->count++; /* even after a failure, because the list owns the other strings */
    return !list->failed && !server_is_abandoned(list->abandoned);
}

/* Frees a string to which a template has a pointer to const. */
static void free_constant(const char *text) {
    char *own = NULL;
    memcpy(&own, &text, sizeof own);
    free(own);
}

static void template_list_free(struct template_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        free_constant(list->items[i].identifier_glob);
        free_constant(list->items[i].description);
        free_constant(list->items[i].unit);
    }
    free(list->items);
}

/* Writes the resources of a node with a parent. They are copied with the lock held, and written
 * without it. */
static bool json_write_resources(struct service *service, const bool *abandoned,
                                 doorman_buffer *out) {
    struct template_list list = {.items = NULL, .abandoned = abandoned};
    server_for_each_resource(service, template_list_reserve, template_list_add, &list);
    const doorman_config_options options = {.templates = list.items, .template_count = list.count};
    bool written = !list.failed && doorman_json_write_config(&options, out) == DOORMAN_OK;
    template_list_free(&list);
    return written;
}

/* Writes the configuration of a root. While it is written, only config_lock is held, so that
 * messages do not wait. */
static bool json_write_config(struct service *service, doorman_buffer *out, uint64_t *version) {
    doorman_config_options options;
    server_lock(&service->config_lock);
    server_lock(&service->lock);
    doorman_config_read(service->config, &options);
    *version = service->last_load.version;
    server_unlock(&service->lock);
    bool written = doorman_json_write_config(&options, out) == DOORMAN_OK;
    server_unlock(&service->config_lock);
    return written;
}

/* Writes the configuration in force, and its version, if it has one, as an ETag. A node with a
 * parent writes one template for each resource. */
static void handle_config(struct service *service, const struct http_request *request,
                          struct http_response *response) {
    struct text *text = &response->text;
    bool is_root = service->settings->parents.count == 0;
    (void)request;
    response->type = "application/json";
    uint64_t version = 0;
    text->failed = is_root ? !json_write_config(service, &text->buffer, &version)
                           : !json_write_resources(service, response->abandoned, &text->buffer);
    server_text_add(text, "\n");
    if (version) server_text_addf(&response->lines, "ETag: \"%" PRIu64 "\"\r\n", version);
}

/* Answers with the description of the API, which is the same for all servers of a version. With
 * --http-token this path needs a token, as all paths do except probes and /v1/batch. */
static void handle_description(struct service *service, const struct http_request *request,
                               struct http_response *response) {
    (void)service;
    (void)request;
    response->type = "application/json";
    for (size_t i = 0; i < sizeof openapi_lines / sizeof *openapi_lines; i++) {
        server_text_add(&response->text, openapi_lines[i]);
    }
}

static const struct http_route json_routes[] = {
    {"/v1/status", .handle = handle_status},
    {"/v1/config", .handle = handle_config},
    {"/v1/openapi.json", .is_immediate = true, .handle = handle_description},
    {.path = NULL}};

const struct server_part server_part_json = {.routes = json_routes};
