/* doorman_server, part REPORTS: log lines for a person who looks for a cause (V6). They tell which
 * messages are refused, how a new configuration differs from the last one, how long the server
 * learns, and whether the parent answers. This file changes the state of the link to the parent,
 * and logs warnings through server/log/warnings.c. */
#include "../config/config.h"
#include "log.h"

#define CONFIG_LOADED "configuration loaded"
#define CONFIG_REFUSED "configuration refused; the last one stays in force"

/* What the log has said about learning. */
struct learning {
    bool is_logged; /* the log says that the server learns */
    doorman_time started_at, until;
};

/* What this part keeps. The lock of the service guards `learning`. */
struct reports {
    struct learning learning;
    struct limit_counts
        *last_counts; /* of each limit before a new configuration; NULL: not known, or
                                         no configuration is being applied */
};

/* ---- messages ------------------------------------------------------------------------------- */

static const struct message_method {
    doorman_method method;
    bool is_server;
} message_methods[MESSAGE_UNKNOWN] = {
    [MESSAGE_DISCOVERY] = {DOORMAN_DISCOVERY, false},
    [MESSAGE_GET_CAPACITY] = {DOORMAN_GET_CAPACITY, false},
    [MESSAGE_GET_SERVER_CAPACITY] = {DOORMAN_GET_CAPACITY, true},
    [MESSAGE_RELEASE_CAPACITY] = {DOORMAN_RELEASE_CAPACITY, false},
    [MESSAGE_REPORT_OVERLOAD] = {DOORMAN_REPORT_OVERLOAD, false},
    [MESSAGE_ACQUIRE] = {DOORMAN_ACQUIRE, false},
    [MESSAGE_REPORT] = {DOORMAN_REPORT, false},
    [MESSAGE_INSPECT] = {DOORMAN_INSPECT, false},
    [MESSAGE_RESET] = {DOORMAN_RESET, false},
    [MESSAGE_RENEW] = {DOORMAN_RENEW, false},
    [MESSAGE_RELEASE] = {DOORMAN_RELEASE, false},
    [MESSAGE_TRANSFER] = {DOORMAN_TRANSFER, false},
    [MESSAGE_SEIZE] = {DOORMAN_SEIZE, false},
    [MESSAGE_SETTLE] = {DOORMAN_SETTLE, false},
};

static const char *message_name(int kind) {
    assert(kind >= 0 && kind <= MESSAGE_UNKNOWN);
    if (kind == MESSAGE_UNKNOWN) return "unknown";
    return doorman_method_name(message_methods[kind].method, message_methods[kind].is_server);
}

/* Finds the kind of a message. A refused message has a kind too, if it names a method. */
static int message_find_kind(const doorman_json_exchange *exchange) {
    const doorman_request *request = &exchange->request;
    const char *method = doorman_method_name(request->method, request->is_server);
    int kind = exchange->has_method ? 0 : MESSAGE_UNKNOWN;
    while (kind < MESSAGE_UNKNOWN && strcmp(message_name(kind), method) != 0) kind++;
    return kind;
}

/* Logs a refused message. If its error has a path, the path begins with the method, and the field
 * is the rest of it.
 *   kind   of the message; MESSAGE_UNKNOWN: the whole text of the error is logged */
static void message_log_refusal(struct service *service, const struct message_report *report,
                                const char *peer, int kind) {
    const doorman_error *error = &report->exchange->error;
    const char *token = report->peer->token, *rule = error->text;
    const size_t before = strlen(message_name(kind)) + 1; /* the method and a dot */
    char field[sizeof error->text] = "";
    if (!error->text[0]) rule = server_status_text(report->status);
    if (kind != MESSAGE_UNKNOWN && error->path_bytes > 0) {
        assert(strncmp(error->text, message_name(kind), before - 1) == 0);
        rule = error->text + error->path_bytes + strlen(": ");
        if (error->path_bytes > before) {
            int bytes = (int)(error->path_bytes - before);
            snprintf(field, sizeof field, "%.*s", bytes, error->text + before);
        }
    }
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"peer", peer},
                                                    {"token", token && *token ? token : NULL},
                                                    {"method", message_name(kind)},
                                                    {"code", doorman_status_name(report->status)},
                                                    {"field", field[0] ? field : NULL},
                                                    {"error", rule}};
    server_lock(&service->lock);
    server_log_warning(service, WARNING_MESSAGE_REFUSED + kind, pairs, doorman_clock());
    server_unlock(&service->lock);
}

/* Adds a pair, unless its value is NULL. Returns the number of pairs. */
static size_t pairs_add(const char *pairs[][2], size_t count, const char *key, const char *value) {
    pairs[count][0] = value ? key : NULL;
    pairs[count][1] = value;
    return count + (value != NULL);
}

static void message_log(const struct service *service, const struct message_report *report,
                        const char *peer, int kind) {
    const char *token = report->peer->token, *client = report->client;
    char items[24], duration[32];
    const doorman_request *request = &report->exchange->request;
    size_t item_count = request->item_count + request->permit_count + request->entry_count;
    const char *pairs[2][2] = {{NULL}};
    if (!report->was_read) item_count = 0;
    size_t count = pairs_add(pairs, 0, "client", client && *client ? client : NULL);
    pairs_add(pairs, count, "token", token && *token ? token : NULL);
    snprintf(items, sizeof items, "%zu", item_count);
    snprintf(duration, sizeof duration, "%.3f", (double)report->duration / 1e6);
    server_log(service->settings, LEVEL_DEBUG, "request", "peer", peer, "method",
               message_name(kind), "items", items, "code", doorman_status_name(report->status),
               "duration_ms", duration, pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1],
               LOG_END);
}

/* Logs a refused message, at most once a minute for each kind of message (V6). With --log-level
 * debug, logs every message. */
static void report_message(struct service *service, const struct message_report *report) {
    bool is_refused = report->status != DOORMAN_OK && report->status != DOORMAN_UNAVAILABLE;
    bool is_debug = service->settings->log_level == LEVEL_DEBUG;
    char peer[PEER_BYTES];
    if (!is_refused && !is_debug) return;
    int kind = message_find_kind(report->exchange);
    server_peer_write(report->peer, peer);
    if (is_refused) message_log_refusal(service, report, peer, kind);
    if (is_debug) message_log(service, report, peer, kind);
}

/* ---- configurations ------------------------------------------------------------------------- */

#define NAMES_MAX 3 /* names in one list; the line says how many more there are */

struct name_list {
    char text[NAMES_MAX * (DOORMAN_ID_BYTES_MAX + 2) + 32];
    size_t bytes, count;
};

static void name_list_add(struct name_list *list, const char *name) {
    if (list->count++ >= NAMES_MAX) return;
    int added = snprintf(list->text + list->bytes, sizeof list->text - list->bytes, "%s%s",
                         list->bytes ? ", " : "", name);
    list->bytes += (size_t)added;
    assert(list->bytes < sizeof list->text);
}

/* Returns the text of a list, or NULL if the list is empty. */
static const char *name_list_end(struct name_list *list) {
    if (list->count > NAMES_MAX) {
        snprintf(list->text + list->bytes, sizeof list->text - list->bytes, " and %zu more",
                 list->count - NAMES_MAX);
    }
    return list->count > 0 ? list->text : NULL;
}

#define LIMIT_LINES_MAX 20 /* lines about limits and times for one configuration */

/* What is logged about a new configuration. */
struct config_report {
    const struct settings *settings;
    struct config_changes changes;
    const struct limit_counts
        *counts;  /* of the limits of the last configuration; NULL: not known */
    size_t lines; /* about limits and shortened times, also those that are not logged */
};

/* Logs what has changed in one limit. If the change has dropped counters, the line is a warning
 * with their number. After LIMIT_LINES_MAX lines, further lines are only counted. */
static void limit_log(struct config_report *report, const doorman_template *template,
                      const struct limit_change *change) {
    const doorman_permit_limit *limit = change->now ? change->now : change->last;
    char counters[24] = "";
    size_t count =
        change->drops
            ? server_changes_counts(&report->changes, report->counts, change->last).counters
            : 0;
    if (report->lines++ >= LIMIT_LINES_MAX) return;
    snprintf(counters, sizeof counters, "%zu", count);
    server_log(report->settings, count > 0 ? LEVEL_WARNING : LEVEL_INFO, "a limit has changed",
               "template", template->identifier_glob, "limit", limit->name, "change", change->text,
               count > 0 ? "counters" : LOG_END, counters, LOG_END);
}

/* Returns how long a hold of a limit may last without a renewal. */
static doorman_time limit_life(const doorman_permit_limit *limit) {
    doorman_time life = limit->figures.time_to_live;
    for (size_t i = 0; i < limit->override_count; i++) {
        doorman_time other = limit->overrides[i].figures.time_to_live;
        if (other > life) life = other;
    }
    for (size_t i = 0; i < limit->plan_count; i++) {
        doorman_time other = limit->plans[i].figures.time_to_live;
        if (other > life) life = other;
    }
    return life;
}

/* Warns of a time that was shortened. A server that restarts does not know the old time. So it
 * learns for too short a time, unless learning_mode_duration is long enough.
 *   limit   NULL: the time is the lease length of the template */
static void shortened_log(struct config_report *report, const doorman_template *template,
                          const char *limit, doorman_time last, doorman_time now) {
    const doorman_algorithm *algorithm = &template->algorithm;
    char seconds[32];
    if (last <= now || last == 0) return;
    if (algorithm->has_learning_mode_duration && algorithm->learning_mode_duration >= last) return;
    if (report->lines++ >= LIMIT_LINES_MAX) return;
    snprintf(seconds, sizeof seconds, "%.10g", (double)last / (double)DOORMAN_SECOND);
    server_log(report->settings, LEVEL_WARNING,
               limit ? "time_to_live was shortened: if this server restarts within the old time, "
                       "more than the limit may be held"
                     : "lease_length was shortened: if this server restarts within the old time, "
                       "more than the capacity may be in use",
               "template", template->identifier_glob, "old_seconds", seconds,
               limit ? "limit" : LOG_END, limit, LOG_END);
}

/* Warns of the times of holds that were shortened in a limit. */
static void limit_log_life(struct config_report *report, const doorman_template *template,
                           const struct limit_change *change) {
    const doorman_permit_limit *last = change->last, *now = change->now;
    bool holds = last && now && last->kind == now->kind && now->kind == DOORMAN_CONCURRENCY;
    if (!holds || last->leased) return;
    shortened_log(report, template, now->name, limit_life(last), limit_life(now));
}

static void config_log_template(struct config_report *report,
                                const struct template_change *change) {
    const doorman_template *last = change->last, *now = change->now;
    struct limit_change limit;
    size_t cursor = 0;
    if (!last || !now) return; /* other lines name those that were added or removed */
    while (server_changes_next_limit(change, &cursor, report->settings->state, &limit)) {
        limit_log(report, now, &limit);
        limit_log_life(report, now, &limit);
    }
    if (last->without_capacity || now->without_capacity) return;
    shortened_log(report, now, NULL, last->algorithm.lease_length, now->algorithm.lease_length);
}

static void config_log_limits(struct config_report *report) {
    char more[24];
    for (size_t i = 0; i < report->changes.count; i++) {
        config_log_template(report, &report->changes.items[i]);
    }
    size_t lines = report->lines;
    if (lines <= LIMIT_LINES_MAX) return;
    snprintf(more, sizeof more, "%zu", lines - LIMIT_LINES_MAX);
    server_log(report->settings, LEVEL_INFO, "more limits have changed", "limits", more, LOG_END);
}

/* Counts the counters of the limits of a template that was removed. Holds are not counted, because
 * they stay until they are released or end. */
static size_t removed_counters(const struct config_report *report,
                               const struct template_change *change) {
    struct limit_change limit;
    size_t cursor = 0, count = 0;
    while (server_changes_next_limit(change, &cursor, false, &limit)) {
        if (!limit.drops) continue;
        count += server_changes_counts(&report->changes, report->counts, limit.last).counters;
    }
    return count;
}

/* Warns that templates are gone. A template that was renamed by mistake looks removed. */
static void config_log_removed(const struct config_report *report) {
    char counters[24];
    struct name_list names = {.count = 0};
    size_t count = 0;
    for (size_t i = 0; i < report->changes.count; i++) {
        const struct template_change *change = &report->changes.items[i];
        if (change->now) continue;
        name_list_add(&names, change->last->identifier_glob);
        count += removed_counters(report, change);
    }
    const char *templates = name_list_end(&names);
    snprintf(counters, sizeof counters, "%zu", count);
    if (!templates) return;
    server_log(report->settings, LEVEL_WARNING,
               "templates were removed or renamed: only another template that matches limits their "
               "resources now, and their counters are dropped",
               "templates", templates, "counters", counters, LOG_END);
}

/* Logs one line that says what has changed. */
static void config_log_summary(const struct service *service, const struct config_changes *changes,
                               bool found) {
    struct name_list added = {.count = 0}, removed = {.count = 0}, changed = {.count = 0};
    const char *pairs[8][2] = {{NULL}};
    const char *hash = service->last_load.hash;
    bool rejects = changes->now.reject_unmatched;
    bool switched = changes->last.reject_unmatched != rejects;
    for (size_t i = 0; i < changes->count; i++) {
        const doorman_template *last = changes->items[i].last, *now = changes->items[i].now;
        name_list_add(!last  ? &added
                      : !now ? &removed
                             : &changed,
                      (now ? now : last)->identifier_glob);
    }
    size_t first = pairs_add(pairs, 0, "hash", hash[0] ? hash : NULL);
    size_t count = pairs_add(pairs, first, "added", name_list_end(&added));
    count = pairs_add(pairs, count, "removed", name_list_end(&removed));
    count = pairs_add(pairs, count, "changed", name_list_end(&changed));
    count = pairs_add(pairs, count, "order", changes->reordered ? "changed" : NULL);
    count = pairs_add(pairs, count, "unmatched", !switched ? NULL : rejects ? "reject" : "allow");
    count = pairs_add(pairs, count, "descriptors", changes->descriptors ? "changed" : NULL);
    if (found && count == first) pairs_add(pairs, count, "changes", "none");
    server_log(service->settings, LEVEL_INFO, CONFIG_LOADED, "file", service->settings->config,
               pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1], pairs[2][0], pairs[2][1],
               pairs[3][0], pairs[3][1], pairs[4][0], pairs[4][1], pairs[5][0], pairs[5][1],
               pairs[6][0], pairs[6][1], LOG_END);
}

static void config_log_changes(const struct service *service, const doorman_config *last,
                               const struct limit_counts *counts) {
    struct config_report report = {.settings = service->settings, .counts = counts};
    bool found = server_changes_find(&report.changes, last, service->config);
    config_log_summary(service, &report.changes, found);
    config_log_removed(&report);
    config_log_limits(&report);
    server_changes_uninit(&report.changes);
}

/* Logs the result of the last load of the configuration, which is in service->last_load. After a
 * success, logs how the configuration in force differs from `last`. Only the thread that loads
 * configurations calls this function, so it needs no lock.
 *   counts   of the limits of `last`; may be NULL */
static void report_config(const struct service *service, const doorman_config *last,
                          const struct limit_counts *counts) {
    const char *error = service->last_load.error;
    if (error[0]) {
        server_log(service->settings, LEVEL_ERROR, CONFIG_REFUSED, "file",
                   service->settings->config, "error", error, LOG_END);
    } else {
        config_log_changes(service, last, counts);
    }
}

/* ---- learning ------------------------------------------------------------------------------- */

#define KNOWN_MAX 1000 /* resources that are counted, because the lock is held */

/* Logs a line about learning, with a duration in seconds, and with how many resources and holders
 * the server knows. */
static void learning_log(const struct service *service, const char *text, doorman_time duration,
                         doorman_time now) {
    char seconds[32], resources[48], holders[48];
    size_t resource_count = 0, holder_count = 0;
    doorman_cursor cursor = {.position = 0};
    doorman_server_resource info;
    while (resource_count < KNOWN_MAX &&
           doorman_server_next_resource(service->server, &cursor, &info, now)) {
        resource_count++;
        holder_count += info.holder_count;
    }
    const char *most = resource_count == KNOWN_MAX ? "at least " : "";
    snprintf(seconds, sizeof seconds, "%.1f", (double)duration / (double)DOORMAN_SECOND);
    snprintf(resources, sizeof resources, "%s%zu", most, resource_count);
    snprintf(holders, sizeof holders, "%s%zu", most, holder_count);
    server_log(service->settings, LEVEL_INFO, text, "seconds", seconds, "resources", resources,
               "holders", holders, LOG_END);
}

/* Why the server learns. It learns for new templates, because holders can use any amount of a
 * resource before it has a template. */
static const char *const learning_starts[] = {
    [LEARNING_OF_MASTER] = "learning starts: until the leases of the last master have ended, "
                           "holders keep what they have, and get no more",
    [LEARNING_OF_CONFIGURATION] =
        "learning starts for new templates: until leases from before them have ended, holders "
        "keep what they have, and get no more",
};

/* Logs when learning starts and when it ends, and when a new configuration makes it longer. If a
 * node with a parent gets further resources while it learns, the end may move without a line, but
 * the line about the end has the whole time. If the mastership ends first, or a new configuration
 * no longer has the template that learns, no end of learning is logged. */
static void report_learning(struct service *service, enum learning_cause cause, doorman_time now) {
    struct learning *learning = &service->reports->learning;
    doorman_time until = doorman_server_learns_until(service->server, now);
    assert(server_lock_is_held(&service->lock));
    if (until && !learning->is_logged) {
        *learning = (struct learning){.is_logged = true, .started_at = now};
        learning_log(service, learning_starts[cause], until - now, now);
    } else if (cause == LEARNING_OF_CONFIGURATION && until > learning->until) {
        learning_log(service,
                     "learning takes longer: the new configuration has new templates, or longer "
                     "leases",
                     until - now, now);
    }
    if (until) {
        learning->until = until;
    } else if (learning->is_logged) {
        learning->is_logged = false;
        if (now >= learning->until) {
            learning_log(service, "learning has ended", learning->until - learning->started_at,
                         now);
        }
    }
}

/* ---- the parent ----------------------------------------------------------------------------- */

/* Logs that the parent answers, and drops the warnings that say that it does not. If a process of
 * the parent that is not its master has answered a probe, the line names the master. */
static void parent_log_answer(struct service *service, const doorman_transport_result *result,
                              doorman_time now) {
    const struct trouble *trouble = &service->parent_link.state.trouble;
    const char *pairs[3][2] = {{NULL}};
    struct trouble_text end = server_trouble_text(trouble, now);
    bool failed = trouble->since > 0;
    size_t count =
        pairs_add(pairs, 0, "redirects_to", result->redirect[0] ? result->redirect : NULL);
    count = pairs_add(pairs, count, "after_seconds", failed ? end.seconds : NULL);
    pairs_add(pairs, count, "failures", failed ? end.count : NULL);
    server_end_warning(service, WARNING_PARENT_UNREACHABLE);
    server_end_warning(service, WARNING_PARENT_RESPONSE);
    server_end_warning(service, WARNING_PARENT_MASTER);
    server_log(service->settings, LEVEL_INFO, "the parent answers", "parent", result->address,
               pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1], pairs[2][0], pairs[2][1],
               LOG_END);
}

/* Notes that a request to the parent has failed, or that its answer names no master. */
static void parent_note_failure(struct service *service, const doorman_transport_result *result,
                                doorman_time now) {
    struct parent_state *state = &service->parent_link.state;
    const char *error =
        result->error.text[0] ? result->error.text : server_status_text(result->status);
    int kind = WARNING_PARENT_RESPONSE;
    state->has_no_master = result->status == DOORMAN_OK;
    state->retry_at = result->retry_at;
    if (result->status == DOORMAN_UNAVAILABLE) kind = WARNING_PARENT_UNREACHABLE;
    if (state->has_no_master) kind = WARNING_PARENT_MASTER, error = "its node has no known master";
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"parent", result->address}, {"error", error}};
    server_log_warning(service, kind, pairs, now);
    server_trouble_set(&state->trouble, error, now);
}

/* Logs a redirect if its target has changed. A redirect does not end a problem, because its target
 * may be a wrong address. */
static void parent_note_redirect(struct service *service, const doorman_transport_result *result) {
    struct parent_state *state = &service->parent_link.state;
    if (strcmp(state->redirect, result->redirect) == 0) return;
    memcpy(state->redirect, result->redirect, sizeof state->redirect);
    server_log(service->settings, LEVEL_INFO, "the parent redirects to its master", "from",
               result->address, "to", result->redirect, LOG_END);
}

/* Notes that another process uses the name of this node too. */
static void parent_note_shared_node(struct service *service, const doorman_transport_result *result,
                                    doorman_time now) {
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"node", service->node},
                                                    {"parent", result->address}};
    server_log_warning(service, WARNING_NODE_SHARED, pairs, now);
    service->parent_link.state.shared_at = now;
}

/* Logs and notes how a request to the parent has ended. */
static void report_parent(struct service *service, const doorman_transport_result *result,
                          doorman_time now) {
    struct parent_state *state = &service->parent_link.state;
    bool answered = state->answered_at > 0 && state->trouble.since == 0;
    bool is_redirected = result->redirect[0] && !result->is_probe;
    assert(server_lock_is_held(&service->lock));
    snprintf(state->address, sizeof state->address, "%s", result->address);
    if (result->status != DOORMAN_OK || (!result->is_master && !result->redirect[0])) {
        parent_note_failure(service, result, now);
    } else if (is_redirected) {
        parent_note_redirect(service, result);
    } else {
        if (!answered) parent_log_answer(service, result, now);
        state->trouble.since = 0;
        state->answered_at = now;
        state->has_no_master = false;
        if (result->shared_id) parent_note_shared_node(service, result, now);
        if (!result->is_probe) {
            memcpy(state->http_address, result->http_address, sizeof state->http_address);
        }
    }
}

/* ---- the part ------------------------------------------------------------------------------- */

/* Counts the counters before a new configuration drops some of them. */
static void reports_configures(struct service *service) {
    service->reports->last_counts = server_changes_count(service);
}

static void reports_config(struct service *service, const struct config_change *change) {
    if (!change->is_first) report_config(service, change->last, service->reports->last_counts);
    free(service->reports->last_counts);
    service->reports->last_counts = NULL;
}

static void reports_update(struct service *service, doorman_time now) {
    report_learning(service, LEARNING_OF_MASTER, now);
}

const struct server_part server_part_reports = {
    SERVER_PART_STATE(reports),       .update = reports_update,        .message = report_message,
    .configures = reports_configures, .report_config = reports_config, .learns = report_learning,
    .parent_answered = report_parent};
