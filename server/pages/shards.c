/* doorman_server, part SHARDS: what pages, metrics and commands show of shards, and the path by
 * which operators move them.
 *
 *     GET  /v1/shards   the map, and the state of each shard at this node
 *     POST /v1/shards   {"move": 17, "node": "b"}, {"drain": "a"}, {"rebalance": true},
 *                       {"force": "a"} or {"remove": "a"}
 *     GET  /shards      a page
 *
 * N8 Metrics and pages show the owner and the state of each shard, the permits that this process
 *    has decided for it, how many shards have moved, what was forwarded to each node, and whether
 *    the node has a master. */
#include "../admin/admin.h"
#include "../forward/forward.h"

#include "pages.h"

static const char *const state_names[DOORMAN_SHARD_STATE_COUNT] = {
    [DOORMAN_SHARD_AWAY] = "away",       [DOORMAN_SHARD_TAKING] = "taking",
    [DOORMAN_SHARD_OWNED] = "owned",     [DOORMAN_SHARD_GIVING] = "giving",
    [DOORMAN_SHARD_OFFERED] = "offered", [DOORMAN_SHARD_LEAVING] = "leaving",
};

/* A copy of what is shown. */
struct shards_view {
    doorman_shard_map *map;
    unsigned char states[DOORMAN_SHARDS_MAX];
    uint64_t decided[DOORMAN_SHARDS_MAX]; /* permits of each shard, by this process */
    uint64_t moved_out, moved_in, forced, rows_lost;
    size_t owned, loads[DOORMAN_SHARD_NODES_MAX], moving;
    bool is_master;
    char trouble[PROBLEM_TEXT];                               /* "": none */
    struct shard_master masters[DOORMAN_SHARD_NODES_MAX];     /* one for each node of the map */
    struct forward_figures forwards[DOORMAN_SHARD_NODES_MAX]; /* one for each node of the map */
    uint64_t marks_wrong, received;
};

/* Copies what is shown. Returns NULL if memory runs out, or if there are no shards. */
static struct shards_view *view_take(struct service *service) {
    struct shards *shards = service->shards;
    struct shards_view *view =
        server_shards_on(service) ? (struct shards_view *)calloc(1, sizeof *view) : NULL;
    if (!view) return NULL;
    server_lock(&service->lock);
    doorman_status status = doorman_shard_map_create(&view->map, shards->map, NULL);
    memcpy(view->states, shards->states, sizeof view->states);
    view->moved_out = shards->moved_out;
    view->moved_in = shards->moved_in;
    view->forced = shards->forced;
    view->rows_lost = shards->rows_lost;
    const doorman_permits *permits = doorman_server_permits(service->server);
    view->is_master = permits != NULL;
    for (size_t i = 0; status == DOORMAN_OK && i < view->map->shards.count; i++) {
        view->decided[i] = doorman_permits_shard_decided(permits, i);
    }
    for (size_t i = 0; status == DOORMAN_OK && i < view->map->node_count; i++) {
        view->masters[i] = server_shards_master(shards, view->map->nodes[i].name);
    }
    if (shards->trouble.since) {
        snprintf(view->trouble, sizeof view->trouble, "%.*s", (int)sizeof view->trouble - 1,
                 shards->trouble.reason);
    }
    server_unlock(&service->lock);
    if (status != DOORMAN_OK) {
        free(view);
        return NULL;
    }
    server_forward_read(service, view->map, view->forwards);
    server_forward_read_marks(service, &view->received, &view->marks_wrong);
    for (size_t i = 0; i < view->map->shards.count; i++) {
        const doorman_shard *shard = &view->map->owners[i];
        view->owned += view->is_master && view->states[i] == DOORMAN_SHARD_OWNED;
        view->loads[shard->owner]++;
        view->moving += shard->owner != shard->target || shard->from;
    }
    return view;
}

static void view_free(struct shards_view *view) {
    if (view) doorman_shard_map_destroy(view->map);
    free(view);
}

/* Returns for how many seconds this process has seen a node without a master. */
static double seconds_without(const struct shard_master *master) {
    return (double)(doorman_clock() - master->since) / 1e9;
}

static void add_node(struct text *text, const struct shards_view *view, size_t index) {
    assert(index < view->map->node_count);
    const doorman_shard_node *node = &view->map->nodes[index];
    const struct shard_master *master = &view->masters[index];
    server_text_add_json(text, "{\"name\":", node->name);
    server_text_addf(text, ",\"shards\":%zu", view->loads[index]);
    if (master->is_known) {
        server_text_addf(text, ",\"has_master\":%s", master->has_master ? "true" : "false");
    }
    if (master->is_known && !master->has_master) {
        server_text_addf(text, ",\"without_master_seconds\":%.1f", seconds_without(master));
    }
    if (view->forwards[index].is_known) {
        server_text_addf(text, ",\"answers\":%s",
                         view->forwards[index].is_broken ? "false" : "true");
    }
    for (size_t j = 0; j < node->address_count; j++) {
        server_text_add_json(text, j ? "," : ",\"addresses\":[", node->addresses[j]);
    }
    server_text_add(text, "]}");
}

static void answer_map(struct service *service, struct http_response *response, size_t moves) {
    struct text *text = &response->text;
    struct shards_view *view = view_take(service);
    response->type = "application/json";
    text->failed = !view;
    if (!view) return;
    const doorman_shard_map *map = view->map;
    server_text_addf(text, "{\"epoch\":%" PRIu64 ",\"is_master\":%s", map->epoch,
                     view->is_master ? "true" : "false");
    server_text_add_json(text, ",\"node\":", service->node);
    server_text_addf(text, ",\"owned\":%zu,\"moving\":%zu,\"moves\":%zu", view->owned, view->moving,
                     moves);
    server_text_addf(text,
                     ",\"moved_in\":%" PRIu64 ",\"moved_out\":%" PRIu64 ",\"rows_lost\":%" PRIu64,
                     view->moved_in, view->moved_out, view->rows_lost);
    if (view->trouble[0]) server_text_add_json(text, ",\"trouble\":", view->trouble);
    for (size_t i = 0; i < map->node_count; i++) {
        server_text_add(text, i ? ",\n" : ",\"nodes\":[\n");
        add_node(text, view, i);
    }
    for (size_t i = 0; i < map->shards.count; i++) {
        const doorman_shard *shard = &map->owners[i];
        server_text_addf(text, "%s{\"shard\":%zu", i ? ",\n" : "],\"shards\":[\n", i);
        server_text_add_json(text, ",\"owner\":", map->nodes[shard->owner].name);
        if (shard->target != shard->owner) {
            server_text_add_json(text, ",\"target\":", map->nodes[shard->target].name);
        }
        if (shard->from) server_text_addf(text, ",\"from\":%" PRIu64, shard->from);
        server_text_addf(text, ",\"state\":\"%s\",\"permits\":%" PRIu64 "}",
                         state_names[view->states[i]], view->decided[i]);
    }
    server_text_add(text, "]}\n");
    view_free(view);
}

static const char *const change_names[SHARD_CHANGE_COUNT] = {"move", "drain", "rebalance", "force",
                                                             "remove"};

/* Logs a change in the words of doormanctl, and the reason if it is refused. */
static void change_log(const struct service *service, const char *token,
                       const struct shard_change *change) {
    char text[64 + DOORMAN_ID_BYTES_MAX], number[24] = "";
    if (change->kind == SHARD_MOVE) snprintf(number, sizeof number, " %zu", change->shard);
    snprintf(text, sizeof text, "%s%s%s%s", change_names[change->kind], number,
             change->node[0] ? " " : "", change->node);
    server_log(service->settings, LEVEL_INFO,
               change->error[0] ? "a change of shards is refused" : "an operator changes shards",
               "token", token[0] ? token : "(no token)", "change", text,
               change->error[0] ? "reason" : LOG_END, change->error, LOG_END);
}

/* Reads the body of a change. Returns what is wrong with it, or NULL. */
static const char *change_read(const cJSON *body, struct shard_change *change) {
    const cJSON *found = NULL, *node = cJSON_GetObjectItemCaseSensitive(body, "node");
    int count = 0;
    const cJSON *each = NULL;
    if (!cJSON_IsObject(body)) return "the body must be an object of JSON";
    cJSON_ArrayForEach(each, body) {
        int kind = 0;
        while (kind < SHARD_CHANGE_COUNT && strcmp(each->string, change_names[kind]) != 0) kind++;
        if (kind == SHARD_CHANGE_COUNT && each != node) return "a field is not known";
        if (kind == SHARD_CHANGE_COUNT) continue;
        change->kind = (enum shard_change_kind)kind;
        found = each;
        count++;
    }
    if (count != 1) return "give one of move, drain, rebalance, force and remove";
    const bool moves = change->kind == SHARD_MOVE, all = change->kind == SHARD_REBALANCE;
    if (moves && !(found->valuedouble >= 0 && found->valuedouble < DOORMAN_SHARDS_MAX &&
                   cJSON_IsNumber(found) && found->valuedouble == (double)found->valueint)) {
        return "move: must be the number of a shard";
    }
    if (all && !cJSON_IsTrue(found)) return "rebalance: must be true";
    if (!moves && node) return "node: only with move";
    if (moves) change->shard = (size_t)found->valueint;
    if (moves) found = node;
    const char *name = cJSON_GetStringValue(found);
    if (!all && (!name || !name[0] || strlen(name) > DOORMAN_ID_BYTES_MAX)) {
        return moves ? "node: must be the name of a node" : "must be the name of a node";
    }
    if (!all) snprintf(change->node, sizeof change->node, "%s", name);
    return NULL;
}

/* Writes a row of the audit that says what an operator wants, and that the outcome is not known. If
 * the change must not be made, sets an error in the response and returns NULL. */
static struct act *change_announce(struct service *service, const struct http_request *request,
                                   const struct shard_change *change,
                                   struct http_response *response) {
    struct act *act = server_act_new(service, request, ACT_SHARDS, response);
    if (!act) return NULL;
    cJSON_AddStringToObject(act->row, "change", change_names[change->kind]);
    if (change->kind == SHARD_MOVE)
        cJSON_AddNumberToObject(act->row, "shard", (double)change->shard);
    if (change->node[0]) cJSON_AddStringToObject(act->row, "node", change->node);
    act->announces = true;
    if (!server_act_add_reason(act->row, request, response)) {
        server_act_free(act);
        return NULL;
    }
    return server_act_run(act, response) ? act : NULL;
}

/* Writes into the row of the audit what became of a change, and frees the act.
 *   returns   false: the change was made, and the row cannot be written. The response says so */
static bool change_confirm(struct act *act, const struct shard_change *change,
                           struct http_response *response) {
    struct http_response failure = server_http_response_init(NULL);
    const char *refusal = change->error[0] ? change->error : NULL;
    bool is_kept = true;
    if (change->is_unsure) {
        server_act_free(act); /* so the row stays as it is */
        return true;
    }
    if (!refusal) cJSON_AddNumberToObject(act->row, "moves", (double)change->moves);
    if (server_act_confirm(act, refusal, refusal ? &failure : response)) {
        server_act_free(act);
    } else {
        is_kept = refusal != NULL;
    }
    doorman_buffer_uninit(&failure.text.buffer);
    return is_kept;
}

static void handle_post(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    if (!server_admin_serves(service, request, response)) return;
    struct shard_change change = {.moves = 0};
    cJSON *body = cJSON_ParseWithLength(request->body, request->body_bytes);
    const char *wrong = change_read(body, &change);
    cJSON_Delete(body);
    if (wrong) {
        server_http_response_set_error(response, 400, "INVALID_ARGUMENT", wrong);
        return;
    }
    struct act *act = change_announce(service, request, &change, response);
    if (!act) return;
    server_shards_change(service, &change);
    change_log(service, request->token.name, &change);
    if (change_confirm(act, &change, response) && !change.error[0]) {
        answer_map(service, response, change.moves);
    } else if (change.error[0]) {
        server_http_response_set_error(response, 409, "UNAVAILABLE", change.error);
    }
}

static void handle_json(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    if (!server_shards_on(service)) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "this server has no shards: it was started without "
                                       "--shards");
    } else if (strcmp(request->verb, "POST") == 0) {
        handle_post(service, request, response);
    } else {
        answer_map(service, response, 0);
    }
}

/* ---- the page ------------------------------------------------------------------------------- */

static void page_master(struct text *text, const struct shards_view *view, size_t index) {
    assert(index < view->map->node_count);
    const struct shard_master *master = &view->masters[index];
    const bool is_bad = view->forwards[index].is_broken || !master->has_master;
    server_text_addf(text, "<td data-name='master'%s>",
                     is_bad && master->is_known ? " class=bad" : "");
    if (!master->is_known) {
        server_text_add(text, "not known");
    } else if (master->has_master) {
        server_text_add(text, view->forwards[index].is_broken ? "yes, but did not answer" : "yes");
    } else {
        server_text_addf(text, "none for %.0f s", seconds_without(master));
    }
    server_text_add(text, "</td>");
}

static void page_nodes(struct text *text, const struct shards_view *view) {
    const doorman_shard_map *map = view->map;
    server_text_add(text, "<table><thead><tr><th>node</th><th>shards</th>"
                          "<th class=words>master</th><th>forwards</th><th>failed</th>"
                          "<th class=words>addresses</th></tr></thead><tbody>");
    for (size_t i = 0; i < map->node_count; i++) {
        server_text_add(text, "<tr><td>");
        server_text_add_escaped(text, map->nodes[i].name, server_escape_html);
        server_text_addf(text, "</td><td data-name='shards'>%zu</td>", view->loads[i]);
        page_master(text, view, i);
        server_text_addf(text,
                         "<td data-name='forwards'>%" PRIu64 "</td><td data-name='failed'>%" PRIu64
                         "</td><td data-name='addresses'>",
                         view->forwards[i].sent, view->forwards[i].failed);
        for (size_t j = 0; j < map->nodes[i].address_count; j++) {
            if (j) server_text_add(text, ", ");
            server_text_add_escaped(text, map->nodes[i].addresses[j], server_escape_html);
        }
        server_text_add(text, "</td></tr>");
    }
    server_text_add(text, "</tbody></table>");
}

static void page_shards(struct text *text, const struct shards_view *view) {
    const doorman_shard_map *map = view->map;
    server_text_add(text, "<h2>Shards</h2><table><thead><tr><th>shard</th><th class=words>owner"
                          "</th><th class=words>moves to</th><th class=words>here</th>"
                          "<th>permits</th></tr></thead><tbody>");
    for (size_t i = 0; i < map->shards.count; i++) {
        const doorman_shard *shard = &map->owners[i];
        server_text_addf(text, "<tr><td>%zu</td><td data-name='owner'>", i);
        server_text_add_escaped(text, map->nodes[shard->owner].name, server_escape_html);
        server_text_add(text, "</td><td data-name='moves to'>");
        if (shard->target != shard->owner) {
            server_text_add_escaped(text, map->nodes[shard->target].name, server_escape_html);
        }
        server_text_addf(
            text, "</td><td data-name='here'>%s</td><td data-name='permits'>%" PRIu64 "</td></tr>",
            view->is_master ? state_names[view->states[i]] : "", view->decided[i]);
    }
    server_text_add(text, "</tbody></table>");
}

static void handle_page(struct service *service, const struct http_request *request,
                        struct http_response *response) {
    struct text *text = &response->text;
    struct shards_view *view = view_take(service);
    server_page_start(service, request, response, NULL, "");
    if (!server_shards_on(service)) {
        server_text_add(text, "<p class=soft>This server has no shards: it decides for all keys. "
                              "--shards lets several nodes share them.</p>");
    } else if (!view) {
        text->failed = true;
    } else {
        server_text_addf(text,
                         "<h2>Nodes</h2><p class=soft>The map has the epoch %" PRIu64 ". "
                         "%zu of %zu shards move.</p>",
                         view->map->epoch, view->moving, view->map->shards.count);
        if (view->trouble[0]) {
            server_text_add(text, "<p class=bad>");
            server_text_add_escaped(text, view->trouble, server_escape_html);
            server_text_add(text, "</p>");
        }
        page_nodes(text, view);
        page_shards(text, view);
    }
    server_page_end(response, false);
    view_free(view);
}

/* ---- metrics and facts ---------------------------------------------------------------------- */

/* Adds the metrics of the messages to and from other nodes. */
static void metrics_add_forwards(struct text *text, const struct shards_view *view) {
    static const char *const names[] = {"sent", "failed", "full"};
    server_metrics_header(text, "forwards_total", "counter",
                          "Messages to the nodes that own the shards of their keys. failed: no "
                          "process of the node answered. full: not sent, because too many were "
                          "under way.");
    for (size_t i = 0; i < view->map->node_count; i++) {
        const struct forward_figures *figures = &view->forwards[i];
        const uint64_t values[] = {figures->sent, figures->failed, figures->full};
        for (size_t j = 0; j < 3 && figures->is_known; j++) {
            server_text_add(text, "doorman_forwards_total{to=\"");
            server_text_add_escaped(text, view->map->nodes[i].name, server_escape_label);
            server_text_addf(text, "\",result=\"%s\"} %" PRIu64 "\n", names[j], values[j]);
        }
    }
    server_metrics_header(text, "forward_seconds_total", "counter",
                          "How long messages to other nodes were under way.");
    for (size_t i = 0; i < view->map->node_count; i++) {
        if (!view->forwards[i].is_known) continue;
        server_text_add(text, "doorman_forward_seconds_total{to=\"");
        server_text_add_escaped(text, view->map->nodes[i].name, server_escape_label);
        server_text_addf(text, "\"} %.6f\n", (double)view->forwards[i].nanoseconds / 1e9);
    }
    server_metrics_value(text, "forwards_received_total", "counter",
                         "Messages that other nodes have forwarded to this process.",
                         (double)view->received);
    server_metrics_value(text, "forward_marks_refused_total", "counter",
                         "Messages that claimed to come from another node, with a wrong mark. The "
                         "clocks of two nodes may differ by five minutes.",
                         (double)view->marks_wrong);
}

/* Adds which nodes have a master, as far as this process knows. */
static void metrics_add_masters(struct text *text, const struct shards_view *view) {
    server_metrics_header(text, "shard_node_has_master", "gauge",
                          "Whether a node of the map has a master, by its election key. A node "
                          "that was killed has one until its --election-ttl has passed.");
    for (size_t i = 0; i < view->map->node_count; i++) {
        if (!view->masters[i].is_known) continue;
        server_text_add(text, "doorman_shard_node_has_master{of=\"");
        server_text_add_escaped(text, view->map->nodes[i].name, server_escape_label);
        server_text_addf(text, "\"} %d\n", view->masters[i].has_master);
    }
}

/* Adds how many permits of each shard this process has decided. */
static void metrics_add_permits(struct text *text, const struct shards_view *view) {
    server_metrics_header(text, "shard_permits_total", "counter",
                          "Permits of a shard that this process has granted or refused.");
    for (size_t i = 0; i < view->map->shards.count; i++) {
        if (view->decided[i] == 0) continue;
        server_text_addf(text, "doorman_shard_permits_total{shard=\"%zu\"} %" PRIu64 "\n", i,
                         view->decided[i]);
    }
}

static void shards_metrics(struct service *service, struct text *text) {
    struct shards_view *view = view_take(service);
    if (!view) return;
    const doorman_shard_map *map = view->map;
    server_metrics_value(text, "shards", "gauge", "Shards of the map.", (double)map->shards.count);
    server_metrics_value(text, "shards_owned", "gauge",
                         "Shards for which this process decides. The sum over all processes is "
                         "the number of shards; less means that a shard has no owner now.",
                         (double)view->owned);
    server_metrics_value(text, "shards_moving", "gauge",
                         "Shards of the map that move, or whose last move is not complete.",
                         (double)view->moving);
    server_metrics_value(text, "shard_map_epoch", "gauge", "The epoch of the map of shards.",
                         (double)map->epoch);
    server_metrics_header(text, "shard_moves_total", "counter",
                          "Shards that this process has taken or given.");
    server_text_addf(text,
                     "doorman_shard_moves_total{direction=\"in\"} %" PRIu64
                     "\ndoorman_shard_moves_total{direction=\"out\"} %" PRIu64
                     "\ndoorman_shard_moves_total{direction=\"forced\"} %" PRIu64 "\n",
                     view->moved_in, view->moved_out, view->forced);
    server_metrics_value(text, "shard_rows_lost_total", "counter",
                         "Rows of shards that had no room, or no limit, at their new node.",
                         (double)view->rows_lost);
    metrics_add_masters(text, view);
    metrics_add_permits(text, view);
    metrics_add_forwards(text, view);
    view_free(view);
}

static void shards_status(struct service *service, struct text *text) {
    struct shards_view *view = view_take(service);
    if (!view) return;
    server_text_addf(
        text, ",\"shards\":{\"epoch\":%" PRIu64 ",\"count\":%zu,\"owned\":%zu,\"moving\":%zu",
        view->map->epoch, view->map->shards.count, view->owned, view->moving);
    if (view->trouble[0]) server_text_add_json(text, ",\"trouble\":", view->trouble);
    server_text_add(text, "}");
    view_free(view);
}

static void shards_facts(struct service *service, struct text *text) {
    struct shards_view *view = view_take(service);
    if (!view) return;
    server_text_addf(text,
                     "<div><dt>shards</dt><dd><a href='/shards'>%zu of %zu</a>; %zu move%s</dd>"
                     "</div>",
                     view->owned, view->map->shards.count, view->moving,
                     view->trouble[0] ? "; <b>trouble</b>" : "");
    view_free(view);
}

static const struct http_route shards_routes[] = {
    {"/shards", .handle = handle_page},
    {"/v1/shards", .verbs = VERB_GET | VERB_POST, .role = ROLE_ADMIN, .handle = handle_json},
    {.path = NULL}};

const struct server_part server_part_shard_pages = {.routes = shards_routes,
                                                    .metrics = shards_metrics,
                                                    .status = shards_status,
                                                    .facts = shards_facts};
